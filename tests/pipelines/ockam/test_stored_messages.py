"""The fold of stored messages, over Arrow batches cut anywhere; no JVM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from hashlib import sha256
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from wirehouse_codecs.ockam.correlation.data_changes import Compared, Observation
from wirehouse_codecs.ockam.correlation.events import Where
from wirehouse_pipelines.ockam import stored_messages
from wirehouse_pipelines.ockam.known import STATE
from wirehouse_pipelines.ockam.stored_messages import FOUND, STORED

Row = dict[str, Any]
WINDOWS = ("w1", "w2")
DATA = (None, b"", b"x", b"yy")
#: An observation in a window: who it was pulled by (None: a confirmed push), the data, and whether these are unsure.
SEEN = st.tuples(st.sampled_from(WINDOWS), st.sampled_from((None, "a", "b", "ä")), st.sampled_from(DATA), st.booleans())
#: What the window w0 said: digests of what was pushed, and of the first pull.
STATES = st.none() | st.tuples(st.lists(st.integers(0, 3), max_size=2), st.none() | st.integers(0, 3))
#: By stream and index.
STORIES = st.dictionaries(
    st.tuples(st.sampled_from(("s", "t")), st.sampled_from((0, 1, 5000))),
    st.tuples(STATES, st.lists(SEEN, max_size=12)),
    max_size=4,
)
Story = dict[tuple[str, int], tuple[Any, list[tuple[str, str | None, bytes | None, bool]]]]


def digest(data: bytes) -> int:
    return int(sha256(data).hexdigest()[:15], 16)


def observations(story: Story) -> Iterator[Row]:
    """Rows for the fold, in its order."""
    for (stream, index), (state, seen) in sorted(story.items()):
        whose = {"source": "a", "stream_address": stream, "index": Decimal(index), "part": index >> 12}
        if state is not None:
            for pulled, digests in ((False, state[0]), (True, [state[1]] if state[1] is not None else [])):
                yield from (whose | {"state_window": "w0", "pulled": pulled, "digest": number} for number in digests)
        for at, (window, by, data, unsure) in enumerate(sorted(seen, key=itemgetter(0))):
            place = {"connection_id": b"c", "capture_id": b"f", "record_number": at, "arrived_at_ns": at}
            row = (
                whose
                | {"window_start": window, "data": data, "data_bytes": None if data is None else len(data)}
                | place
            )
            row |= {"direction": "service", "byte_start": at, "byte_end": at + 1, "pulled": by is not None}
            pushed = {"publisher": "p", "pushed_at_ns": -at, "unsure": unsure, "deliveries": 0}
            yield row | (pushed if by is None else {"consumer": by, "deliveries": 1})


def expected(rows: Sequence[Row], alive: dict[tuple[str, str], str]) -> dict[str, list[Row]]:
    """What the fold is to say, by a loop over rows."""
    made: dict[str, list[Row]] = {STORED: [], STATE: [], FOUND: []}
    for (stream, index), of_message in groupby(rows, itemgetter("stream_address", "index")):
        compared, before = Compared(), ""
        for window, group in groupby(of_message, lambda row: row.get("state_window") or row["window_start"]):
            seen = list(group)
            for row in seen:
                if row.get("data") is not None and not row.get("unsure"):
                    row["digest"] = digest(row["data"])
            judged = [row for row in seen if row.get("digest") is not None]
            if judged and before < alive.get(("a", window), ""):
                compared = Compared()
            before = window if judged else before
            observed = [
                Observation(
                    Where._make(row.get(name) for name in Where._fields),
                    stream,
                    int(index),
                    row["digest"].to_bytes(8),
                    not row["pulled"],
                )
                for row in judged
            ]
            made[FOUND] += [
                found.where._asdict() | {"message": found.message, "window_start": window}
                for found in compared.take(observed)
                if found.where.capture_id is not None
            ]
            if window == "w0":
                continue
            pushes = [row for row in seen if not row["pulled"]]
            pulls = [row for row in seen if row["pulled"]]
            push, pull = (rows[0] if rows else {} for rows in (pushes, pulls))
            shown = {name: (push or pull)[name] for name in Where._fields}
            whose = {"source": "a", "window_start": window, "index": index}
            made[STORED].append(
                {**whose, **shown, "stream_address": stream}
                | {
                    name: push.get(name) if push.get(name) is not None else pull.get(name)
                    for name in ("data", "data_bytes")
                }
                | {name: push.get(name) for name in ("publisher", "pushed_at_ns")}
                | {"confirmed_at_ns": push.get("arrived_at_ns"), "first_delivered_at_ns": pull.get("arrived_at_ns")}
                | {"deliveries": len(pulls), "delivered_to": sorted({row["consumer"] for row in pulls})}
            )
            saved = sorted({row["digest"] for row in pushes if "digest" in row})
            made[STATE].append(whose | {"key": stream, "saved": saved, "pulled": pull.get("digest")})
    return made


def folded(batches: Sequence[pa.RecordBatch], alive: dict[tuple[str, str], str]) -> dict[str, list[Row]]:
    made: dict[str, list[Row]] = {STORED: [], STATE: [], FOUND: []}
    for table, rows in stored_messages._fold(batches, alive):
        made[table] += rows.to_pylist()
    names = (*Where._fields, "message", "window_start")
    assert all(row["rule"] == "ockam.data_changed" for row in made[FOUND])
    made[FOUND] = [{name: row[name] for name in names} for row in made[FOUND]]
    return made


@given(
    STORIES, st.lists(st.integers(0, 40), max_size=8), st.sampled_from(({}, {("a", "w1"): "w1"}, {("a", "w2"): "w1"}))
)
def test_rows_are_those_of_a_loop_however_batches_are_cut(
    story: Story, cuts: list[int], alive: dict[tuple[str, str], str]
) -> None:
    rows = list(observations(story))
    whole = pa.RecordBatch.from_pylist(rows, schema=stored_messages._OBSERVED)
    edges = sorted({0, whole.num_rows, *(cut for cut in cuts if cut < whole.num_rows)})
    pieces = [whole.slice(begin, end - begin) for begin, end in pairwise(edges)]
    assert folded(pieces, alive) == expected(rows, alive)


def test_a_message_that_is_delivered_again_and_again_is_not_held_as_a_whole() -> None:
    """A client that never gets on pulls the same message for ever."""
    rows = list(observations({("s", 0): (None, [("w1", None, b"x", False), *[("w1", "a", b"x", False)] * 50])}))
    batch = stored_messages._with_digests(pa.RecordBatch.from_pylist(rows, schema=stored_messages._OBSERVED))
    held = stored_messages._reduced(batch)
    for _ in range(3):
        held = stored_messages._reduced(pa.concat_batches([held, batch.slice(1)]))
        assert held.num_rows == 2
    assert held.column("deliveries").to_pylist() == [0, 200]
    assert held.column("data").to_pylist() == [b"x", b"x"]
