"""Rows packed into pieces and merged again: each bucket's rows once, in order, in little memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirehouse_pipelines.stages import pieces
from wirehouse_pipelines.stages.declaration import Order

SCHEMA = pa.schema(
    [("source", pa.string()), ("key", pa.binary()), ("at", pa.int64()), ("data", pa.binary()), ("never", pa.int64())]
)
ORDER = Order(("source", "key"), ("at",))
ROW = st.fixed_dictionaries(
    {
        "source": st.sampled_from(["a", "é", "\U0001f600", "\ufb01"]),
        "key": st.sampled_from([None, b"", b"\0", b"a", b"a\0", b"b", b"\xff"]),
        "at": st.none() | st.integers(-9, 9),
        "data": st.sampled_from([None, b"", b"x" * 40]),
        "never": st.none(),
    }
)
Row = dict[str, Any]


def batches(rows: Sequence[Row], size: int) -> list[pa.RecordBatch]:
    return pa.Table.from_pylist(list(rows), schema=SCHEMA).to_batches(max_chunksize=size)  # type: ignore[no-any-return]


def place(row: Row) -> tuple[Any, ...]:
    values = (row["source"].encode(), row["key"], row["at"])
    return tuple((value is not None, value) for value in values)


def exchanged(rows: Sequence[Row], size: int, buckets: int, run_bytes: int) -> list[list[pa.RecordBatch]]:
    """The batches of each bucket."""
    packed = list(pieces.pack(batches(rows, size), SCHEMA, ORDER, buckets, run_bytes))
    assert all(piece.schema == pieces.piece_schema(SCHEMA, ORDER) for piece in packed)
    of_bucket = [[one for one in packed if one.column("bucket")[0].as_py() == number] for number in range(buckets)]
    assert sum(map(len, of_bucket)) == len(packed)
    return [list(pieces.merge(pieces.in_order(each, ORDER), SCHEMA, ORDER)) for each in of_bucket]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces, what is merged and batches are a few rows."""
    for name, value in (("PIECE_BYTES", 200), ("MERGE_BYTES", 300), ("BATCH_BYTES", 150), ("BATCH_ROWS", 3)):
        monkeypatch.setattr(pieces, name, value)


@given(st.lists(ROW, max_size=60), st.sampled_from([1, 7]), st.sampled_from([1, 3]), st.sampled_from([1, 400, 1 << 20]))
def test_each_buckets_rows_come_out_once_and_in_order(rows: list[Row], size: int, buckets: int, run: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("PIECE_BYTES", 200), ("MERGE_BYTES", 300), ("BATCH_BYTES", 150), ("BATCH_ROWS", 3)):
            patch.setattr(pieces, name, value)
        found = exchanged(rows, size, buckets, run)
    told = [[row for batch in each for row in batch.to_pylist()] for each in found]
    for each in told:
        assert list(map(place, each)) == sorted(map(place, each))
    assert sorted(repr(row) for each in told for row in each) == sorted(
        repr(row) for batch in batches(rows, 100) for row in batch.to_pylist()
    )
    keys = [{(row["source"], row["key"]) for row in each} for each in told]
    assert sum(map(len, keys)) == len({(row["source"], row["key"]) for row in rows})


def test_nothing_gives_nothing() -> None:
    assert exchanged([], 1, 2, 1) == [[], []]
    empty = pa.RecordBatch.from_pylist([], schema=SCHEMA)
    assert list(pieces.pack([empty], SCHEMA, ORDER, 2)) == []


def row(key: bytes, at: int | None, data: bytes = b"") -> Row:
    return {"source": "a", "key": key, "at": at, "data": data, "never": None}


@pytest.mark.usefixtures("small")
def test_a_row_that_is_larger_than_a_piece_goes_alone() -> None:
    large = [row(b"k", 5, b"x" * 10_000), row(b"k", 6, b"y" * 10_000)]
    rows = [row(b"k", at) for at in range(5)] + large
    packed = list(pieces.pack(batches(rows, 100), SCHEMA, ORDER, 1))
    assert [one.column("at")[0].as_py() for one in packed][-2:] == [5, 6]
    merged = list(pieces.merge(packed, SCHEMA, ORDER))
    assert [one.num_rows for one in merged][-2:] == [1, 1]
    assert [one for batch in merged for one in batch.to_pylist()] == rows


@pytest.mark.usefixtures("small")
def test_what_lists_structs_and_maps_hold_counts_as_well() -> None:
    texts, fields = pa.list_(pa.string()), pa.struct([("text", pa.string())])
    schema = pa.schema([("texts", texts), ("fields", fields), ("sets", pa.map_(pa.string(), pa.binary()))])
    held = ({"texts": ["x" * 250] * 4}, {"fields": {"text": "x" * 1000}}, {"sets": {"a": b"x" * 999}})
    for long in held:
        short: Row = {"texts": ["a"], "fields": {"text": None}, "sets": None}
        rows = pa.RecordBatch.from_pylist([short, short | long, short, short, short], schema=schema)
        assert [each.num_rows for each in pieces.cut(rows.slice(1), 1000, 9)] == [1, 3]


def test_what_is_carried_comes_first() -> None:
    """It has no arrival, wherever it was read."""
    rows = [row(b"k", at) for at in range(50)] + [row(b"k", None, b"state")]
    (found,) = exchanged(rows, 5, 1, 300)
    assert found[0].to_pylist()[0] == rows[-1]


class Counted:
    """Pieces that are handed out one by one, and which is the last."""

    def __init__(self, packed: Sequence[pa.RecordBatch]) -> None:
        self.packed, self.taken = packed, 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for piece in self.packed:
            self.taken += 1
            yield piece


@pytest.mark.usefixtures("small")
def test_a_key_with_most_of_the_rows_streams() -> None:
    """Its rows go on while later pieces aren't read yet: what waits is a few pieces of many."""
    rows = [row(b"hot", at, b"x" * 30) for at in range(2000)] + [row(b"cold", at) for at in range(100)]
    packed = pieces.in_order(pieces.pack(batches(rows, 50), SCHEMA, ORDER, 1, 3000), ORDER)
    assert len(packed) > 500
    counted, told = Counted(packed), 0
    for batch in pieces.merge(counted, SCHEMA, ORDER):
        told += batch.num_rows
        if 200 < told < 2000:
            # A piece has two rows.
            assert counted.taken < told / 2 + 30
    assert told == len(rows)


def test_runs_of_many_keys_that_all_overlap_are_sorted_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "MERGE_BYTES", 2000)
    sorts: list[int] = []
    sort = pieces._sorted

    def counted(waiting: Sequence[pa.RecordBatch], order: Order) -> pa.RecordBatch:
        sorts.append(sum(batch.num_rows for batch in waiting))
        return sort(waiting, order)

    monkeypatch.setattr(pieces, "_sorted", counted)
    rows = [row(b"%06d" % (at * 7919 % 10_007), at) for at in range(10_007)]
    (found,) = exchanged(rows, 500, 1, 1)
    assert sum(batch.num_rows for batch in found) == len(rows)
    assert sum(sorts) < 3 * len(rows)
