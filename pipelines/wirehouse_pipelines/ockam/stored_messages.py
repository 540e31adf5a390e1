"""The stage of stored messages: what each window shows of a message, and rule `data_changed`.

The rows that a task folds are observations: a push that was confirmed, or a message in a response. They come by message
and window, in the order of arrival. The observations of earlier windows come first, as carried state: digests of
its data. A stream may be large, so its messages are divided over tasks by their indexes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.logs.rows import MESSAGE
from wirehouse_codecs.ockam.correlation.data_changes import Compared, Observation
from wirehouse_codecs.ockam.correlation.events import Where
from wirehouse_codecs.ockam.log.log import UINT
from wirehouse_codecs.ockam.wire.messages import Kind, Status
from wirehouse_pipelines.delta import arrow_types, spark_tables, table_reader
from wirehouse_pipelines.delta.batches import begins_of, runs_of, with_all
from wirehouse_pipelines.jobs import services, steps
from wirehouse_pipelines.jobs.job import Work
from wirehouse_pipelines.ockam.known import LOG, STATE, of
from wirehouse_pipelines.stages import Input, Order, Stage
from wirehouse_pipelines.tables import all_tables

STORED: Final = "gold.ockam_stream_messages_history"
FOUND: Final = "gold.ockam_found"

_WHERE: Final = Where._fields
_COLUMNS: Final[table_reader.Columns] = {
    **dict.fromkeys(("source", "window_start", *_WHERE, "capture_arrived_at_ns"), ()),
    **dict.fromkeys(("stream_address", "requester", "consumer"), ()),
    "message": ("kind", "ignored", "status", "index", "messages"),
    "answers": ("data", "data_bytes", "requested_at_ns", "unsure"),
}
_CARRIED: Final = dict.fromkeys(("source", "window_start", "key", "index", "saved", "pulled"), ())
_TYPES: Final = arrow_types.schema(all_tables()[LOG])
#: Rows of a message. `part` divides a stream. `pulled`: it came in a response; else a push was confirmed. `unsure`: it
#: isn't known which push was. `digest` is of the data, and null if these aren't compared.
_OBSERVED: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("source", "stream_address", "window_start", "state_window")),
        *(("part", pa.int64()), ("index", UINT), ("pulled", pa.bool_())),
        *((name, _TYPES.field(name).type) for name in (*_WHERE, "capture_arrived_at_ns")),
        *(("data", pa.binary()), ("data_bytes", pa.int64()), ("unsure", pa.bool_()), ("digest", pa.int64())),
        *(("publisher", pa.string()), ("pushed_at_ns", pa.int64())),
        *(("consumer", pa.string()), ("deliveries", pa.int64())),
    ]
)
_MESSAGE: Final = ("source", "stream_address", "index")
#: Carried state comes first, because its window is null; what was pushed comes before what was pulled then.
_ORDER: Final = Order(
    ("source", "stream_address", "part"),
    ("index", "window_start", "state_window", "arrived_at_ns", "capture_arrived_at_ns", "capture_id")
    + ("record_number", "byte_start", "pulled"),
)
#: Number of low bits in which the indexes of messages of a part differ.
_PART_BITS: Final = 12
_FOUND: Final = pa.schema(
    [field for field in arrow_types.given(all_tables()[FOUND]) if field.name != "decoder_version"]
)


def stage(work: Work, members: services.Members, alive: Mapping[tuple[str, str], str]) -> Stage:
    """The stage of stored messages. `alive` is as `Work.alive_before`."""
    files = spark_tables.files(work.lake, LOG, work.members(), MESSAGE)
    inputs = [Input(LOG, files, _COLUMNS, partial(_observed, members=members))]
    if before := work.alive():
        inputs.append(Input(STATE, spark_tables.files(work.lake, STATE, before), _CARRIED, _before))
    fold = partial(_fold, alive=alive)
    return Stage(inputs, _OBSERVED, _ORDER, fold, (STORED, FOUND, STATE), steps.windows(work.spans))


# Observations


def _observed(rows: pa.RecordBatch, members: services.Members) -> pa.RecordBatch:
    """Prepare messages: confirmed pushes, and the messages in responses."""
    rows = members.once(rows)
    kind, ignored, status = of(rows, "message", "kind", "ignored", "status")
    heard = pc.and_(ignored.is_null(), rows.column("stream_address").is_valid())
    saves = pc.and_(pc.equal(kind, Kind.PUSH_RESPONSE), pc.fill_null(pc.equal(status, Status.OK), False))
    pushed, responses = (rows.filter(pc.and_(heard, those)) for those in (saves, pc.equal(kind, Kind.PULL_RESPONSE)))
    return pa.concat_batches([_of_pushes(pushed), _of_responses(responses)])


def _of_pushes(rows: pa.RecordBatch) -> pa.RecordBatch:
    data, data_bytes, pushed_at_ns, unsure = of(rows, "answers", "data", "data_bytes", "requested_at_ns", "unsure")
    columns = {"index": of(rows, "message", "index")[0], "publisher": rows.column("requester")}
    columns |= {"data": data, "data_bytes": data_bytes, "pushed_at_ns": pushed_at_ns, "unsure": unsure}
    return _placed(rows, columns, pulled=False)


def _of_responses(rows: pa.RecordBatch) -> pa.RecordBatch:
    messages = of(rows, "message", "messages")[0]
    consumer = pc.coalesce(rows.column("consumer"), rows.column("requester"))
    each, pulled = pc.list_parent_indices(messages), messages.flatten()
    data = pc.struct_field(pulled, "data")
    columns = {"index": pc.struct_field(pulled, "index"), "consumer": consumer.take(each)}
    columns |= {"data": data, "data_bytes": pc.binary_length(data).cast(pa.int64())}
    return _placed(rows.drop_columns(["message", "answers"]).take(each), columns, pulled=True)


def _placed(rows: pa.RecordBatch, columns: dict[str, pa.Array], *, pulled: bool) -> pa.RecordBatch:
    """Observations with these columns, at the places of `rows`."""
    count = rows.num_rows
    there = ("source", "window_start", *_WHERE, "capture_arrived_at_ns", "stream_address")
    made = {name: rows.column(name) for name in there} | columns
    made |= {"pulled": pa.repeat(pulled, count), "deliveries": pa.repeat(int(pulled), count)}
    return with_all(pa.RecordBatch.from_pydict(made | {"part": _part(columns["index"])}), _OBSERVED)


def _part(indexes: pa.Array) -> pa.Array:
    return pc.shift_right(indexes.cast(pa.uint64()), pa.scalar(_PART_BITS, pa.uint64())).cast(pa.int64())


def _before(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Prepare rows of state: digests of messages, each one as an observation without a place."""
    rows = rows.filter(rows.column("index").is_valid())
    saved, pulled = rows.column("saved"), rows.column("pulled")
    each, there = pc.list_parent_indices(saved), pc.indices_nonzero(pulled.is_valid())
    made = []
    for at, digest, came in ((each, saved.flatten(), False), (there, pulled.take(there), True)):
        of_state = rows.take(at)
        columns = {name: of_state.column(name) for name in ("source", "index")}
        columns |= {"stream_address": of_state.column("key"), "state_window": of_state.column("window_start")}
        columns |= {"digest": digest, "pulled": pa.repeat(came, len(at)), "part": _part(of_state.column("index"))}
        made.append(with_all(pa.RecordBatch.from_pydict(columns), _OBSERVED))
    return pa.concat_batches(made)


# The fold


def _fold(
    batches: Iterable[pa.RecordBatch], alive: Mapping[tuple[str, str], str]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    held: pa.RecordBatch | None = None
    for batch in batches:
        rows = _with_digests(batch)
        rows = rows if held is None else pa.concat_batches([held, rows])
        # More may follow of the last message.
        last = int(begins_of(rows, _MESSAGE)[-1])
        yield from _judged(rows.slice(0, last), alive)
        held = _reduced(rows.slice(last))
    if held is not None:
        yield from _judged(held, alive)


def _with_digests(rows: pa.RecordBatch) -> pa.RecordBatch:
    """`rows` with the digests of their data. Equal data of neighbours are looked at once."""
    # The data of an unsure answer are shown, and not compared.
    data = pc.if_else(pc.fill_null(rows.column("unsure"), False), None, rows.column("data")).dictionary_encode()
    # The first 60 bits of a hash that a sender can't collide.
    digests = [int.from_bytes(sha256(one).digest()[:8]) >> 4 for one in data.dictionary.to_pylist()]
    found = pc.coalesce(rows.column("digest"), pa.array(digests, pa.int64()).take(data.indices))
    return rows.set_column(rows.schema.get_field_index("digest"), _OBSERVED.field("digest"), found)


def _judged(rows: pa.RecordBatch, alive: Mapping[tuple[str, str], str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Rows of the tables about whole messages."""
    if not rows.num_rows:
        return
    yield from _stored(rows.filter(rows.column("window_start").is_valid()))
    begins = begins_of(rows, _MESSAGE)
    digest = rows.column("digest")
    least = np.minimum.reduceat(np.asarray(pc.fill_null(digest, 2**63 - 1)), begins)
    greatest = np.maximum.reduceat(np.asarray(pc.fill_null(digest, -1)), begins)
    ends = np.append(begins[1:], rows.num_rows)
    # If the data of a message differ, its observations are judged one after another.
    differ = [rows.slice(begins[at], ends[at] - begins[at]) for at in np.flatnonzero(least < greatest)]
    if found := [one for message in differ for one in _changed(message, alive)]:
        yield FOUND, pa.RecordBatch.from_pylist(found, schema=_FOUND)


def _stored(rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """A row of each window and message; `saved` and `pulled` are digests of its data."""
    if not rows.num_rows:
        return
    begins = begins_of(rows, (*_MESSAGE, "window_start"))
    pulled = np.asarray(rows.column("pulled"))
    push, pull = (_first(rows, those, begins) for those in (~pulled, pulled))
    group = runs_of(rows, (*_MESSAGE, "window_start"))
    whose = rows.select([*_MESSAGE, "window_start"]).take(pa.array(begins))
    saved = _sets(group, pc.if_else(rows.column("pulled"), None, rows.column("digest")))
    made = {
        **{name: whose.column(name) for name in whose.schema.names},
        **{name: pc.coalesce(push.column(name), pull.column(name)) for name in (*_WHERE, "data", "data_bytes")},
        **{name: push.column(name) for name in ("publisher", "pushed_at_ns")},
        "confirmed_at_ns": push.column("arrived_at_ns"),
        "deliveries": pa.array(np.add.reduceat(np.asarray(rows.column("deliveries")), begins)),
        "delivered_to": _sets(group, rows.column("consumer")),
        "first_delivered_at_ns": pull.column("arrived_at_ns"),
    }
    yield STORED, pa.RecordBatch.from_pydict(made)
    state = {name: whose.column(name) for name in ("source", "window_start", "index")}
    state |= {"key": whose.column("stream_address"), "saved": saved, "pulled": pull.column("digest")}
    yield STATE, pa.RecordBatch.from_pydict(state)


def _first(rows: pa.RecordBatch, those: Any, begins: Any) -> pa.RecordBatch:
    """The first of `those` rows in each group; nulls if it has none."""
    first = np.minimum.reduceat(np.where(those, np.arange(rows.num_rows), rows.num_rows), begins)
    ends = np.append(begins[1:], rows.num_rows)
    return rows.take(pa.array(first, mask=first >= ends))


def _sets(group: Any, values: pa.Array) -> pa.ListArray:
    """The different values in each group, in order."""
    there = pa.table({"group": group, "value": values}).filter(pc.is_valid(pc.field("value")))
    sets = there.group_by(["group", "value"], use_threads=False).aggregate([])
    sets = sets.sort_by([("group", "ascending"), ("value", "ascending")]).combine_chunks()
    offsets = np.searchsorted(np.asarray(sets["group"]), np.arange(group[-1] + 2))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), sets["value"].combine_chunks())


def _reduced(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of one message without those that add nothing: their deliveries are added to a row before."""
    if pc.count_distinct(rows.column("digest")).as_py() > 1:
        # Its data differ: each of them may be a finding.
        return rows
    # An observation has one of the two.
    windows = pc.coalesce(rows.column("window_start"), rows.column("state_window"))
    window = np.asarray(windows.dictionary_encode().indices)
    pulled, compared = (np.asarray(each) for each in (rows.column("pulled"), rows.column("digest").is_valid()))
    consumer = np.asarray(pc.fill_null(rows.column("consumer").dictionary_encode().indices, -1))
    # Each client in a window, and what is compared, counts once.
    at = np.sort(np.unique(np.stack([window, pulled, compared, consumer]), axis=1, return_index=True)[1])
    deliveries = np.add.reduceat(np.asarray(pc.fill_null(rows.column("deliveries"), 0)), at)
    # Data are shown of the first push and the first delivery.
    first = np.unique(np.stack([window, pulled]), axis=1, return_index=True)[1]
    shown = pc.if_else(pa.array(np.isin(at, first)), rows.column("data").take(pa.array(at)), None)
    rows = rows.take(pa.array(at))
    for name, column in (("deliveries", pa.array(deliveries, pa.int64())), ("data", shown)):
        rows = rows.set_column(rows.schema.get_field_index(name), _OBSERVED.field(name), column)
    return rows


def _changed(rows: pa.RecordBatch, alive: Mapping[tuple[str, str], str]) -> Iterator[dict[str, Any]]:
    """Findings of `data_changed` in observations of one message, rows of `_FOUND`. Carried ones have none."""
    compared, state_window = Compared(), ""
    rows = rows.filter(rows.column("digest").is_valid())
    for window, of_window in groupby(rows.to_pylist(), lambda row: row["state_window"] or row["window_start"]):
        observed = list(of_window)
        source = observed[0]["source"]
        if state_window < alive.get((source, window), ""):
            compared = Compared()
        state_window = window
        for found in compared.take(list(map(_observation, observed))):
            if found.where.capture_id is not None:
                yield {
                    "source": source,
                    "window_start": window,
                    "protocol": "ockam",
                    "message": found.message,
                    "rule": found.rule.id,
                    "severity": found.rule.severity.value,
                    **found.where._asdict(),
                    "stream_address": found.stream_address,
                }


def _observation(row: Mapping[str, Any]) -> Observation:
    where, digest = Where(*(row[name] for name in _WHERE)), row["digest"].to_bytes(8)
    return Observation(where, row["stream_address"], int(row["index"]), digest, not row["pulled"])
