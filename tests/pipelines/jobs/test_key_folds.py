"""Folds by key over Arrow batches cut anywhere; no JVM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirehouse_pipelines.jobs import key_folds
from wirehouse_pipelines.jobs.key_folds import KeyFold, fold_batches

KEYS = ("source", "author", "log")
TOLD = pa.schema(
    [
        *(("source", pa.string()), ("author", pa.binary()), ("log", pa.decimal128(20, 0))),
        *(("window_start", pa.string()), ("state", pa.string()), ("state_window", pa.string()), ("number", pa.int64())),
    ]
)
MADE = pa.schema([("total", pa.int64()), ("state", pa.string())])


class Sums(KeyFold):
    """A row of the total for each row of an odd number, and the total at each window's end."""

    def __init__(self, whose: Mapping[str, Any], state: str | None) -> None:
        assert tuple(whose) == KEYS
        self._total = int(state or 0)

    def take(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        out = []
        for number in rows.column("number").to_pylist():
            self._total += number
            out += [{"total": self._total}] if number % 2 else []
        return pa.RecordBatch.from_pylist(out, schema=MADE) if out else None

    def end_window(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([{"state": str(self._total)}], schema=MADE)


Key = tuple[str, bytes, int]
#: key -> state before, and numbers by window.
Story = dict[Key, tuple[int | None, dict[str, list[int]]]]
_KEY = st.tuples(st.sampled_from("ab"), st.sampled_from((b"", b"\0", b"x")), st.sampled_from((0, 7)))
_WINDOWS = st.dictionaries(st.sampled_from(("w1", "w2", "w3")), st.lists(st.integers(0, 9), min_size=1, max_size=5))
STORIES = st.dictionaries(_KEY, st.tuples(st.none() | st.integers(1, 99), _WINDOWS), max_size=6)


def _rows(story: Story) -> Iterator[dict[str, Any]]:
    for key, (state, windows) in sorted(story.items()):
        whose = dict(zip(KEYS, key, strict=True))
        if state is not None:
            yield whose | {"state": str(state), "state_window": "w0"}
        for window, numbers in sorted(windows.items()):
            yield from (whose | {"window_start": window, "number": number} for number in numbers)


def _expected(story: Story) -> Iterator[tuple[Any, ...]]:
    for key, (state, windows) in sorted(story.items()):
        total = state or 0
        for window, numbers in sorted(windows.items()):
            for number in numbers:
                total += number
                if number % 2:
                    yield *key, window, total, None
            yield *key, window, None, str(total)


def _folded(
    batches: list[pa.RecordBatch], alive: Mapping[tuple[str, str], str] = MappingProxyType({})
) -> list[tuple[Any, ...]]:
    made = list(fold_batches(batches, KEYS, Sums, alive))
    assert all(batch.schema.names == [*KEYS, "window_start", *MADE.names] for batch in made)
    return [tuple(row.values()) for batch in made for row in batch.to_pylist()]


@given(STORIES, st.lists(st.integers(0, 40), max_size=8))
def test_rows_are_the_same_however_batches_are_cut(story: Story, cuts: list[int]) -> None:
    whole = pa.RecordBatch.from_pylist(list(_rows(story)), schema=TOLD)
    edges = sorted({0, whole.num_rows, *(cut for cut in cuts if cut < whole.num_rows)})
    pieces = [whole.slice(begin, end - begin) for begin, end in pairwise(edges)]
    assert _folded([whole]) == _folded(pieces) == list(_expected(story))


def test_one_key_is_never_held_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows go out while more of them come in."""
    monkeypatch.setattr(key_folds, "BATCH_ROWS", 100)
    whose = {"source": "a", "author": b"x", "log": 0, "window_start": "w1", "number": 1}
    rows = pa.RecordBatch.from_pylist([whose] * 50, schema=TOLD)
    waiting = iter(range(1_000))
    made = fold_batches((rows for _ in waiting), KEYS, Sums, {})
    for _ in range(10):
        assert next(made).num_rows == 100
    assert next(waiting) == 20
    assert sum(batch.num_rows for batch in made) == 50 * 999 + 1 - 10 * 100


def test_a_key_that_was_silent_for_too_long_begins_anew() -> None:
    key = ("a", b"x", 0)
    story: Story = {key: (40, {"w1": [1], "w3": [3]})}
    rows = pa.RecordBatch.from_pylist(list(_rows(story)), schema=TOLD)

    def totals(alive: Mapping[tuple[str, str], str]) -> list[int]:
        return [total for *_, total, state in _folded([rows], alive) if state is None]

    assert totals({("a", "w1"): "w0", ("a", "w3"): "w1"}) == [41, 44]
    assert totals({("a", "w1"): "w0", ("a", "w3"): "w2"}) == [41, 3]
    assert totals({("a", "w1"): "w1", ("a", "w3"): "w1"}) == [1, 4]


def test_the_newest_of_several_states_counts() -> None:
    whose = {"source": "a", "author": b"x", "log": 0}
    states = [whose | {"state": state, "state_window": told} for state, told in (("7", "w0"), ("40", "w1"))]
    rows = pa.RecordBatch.from_pylist([*states, whose | {"window_start": "w2", "number": 1}], schema=TOLD)
    assert _folded([rows])[0][-2:] == (41, None)
    assert _folded([rows], {("a", "w2"): "w1"})[0][-2:] == (41, None)
    assert _folded([rows], {("a", "w2"): "w2"})[0][-2:] == (1, None)
