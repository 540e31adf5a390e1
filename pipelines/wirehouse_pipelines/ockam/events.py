"""Events of streams and names from rows of the log, in batches: those that `log_events` makes of one row after another.

An event has the key of its stream, or of a name. Columns are as in EVENT_COLUMNS, which `events_in` reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.ockam.correlation.events import Where
from wirehouse_codecs.ockam.correlation.log_events import EVENT, EVENT_COLUMNS, TELLING
from wirehouse_codecs.ockam.log.log import SESSION_TYPE, UINT
from wirehouse_codecs.ockam.session.memory import MOST_PARTITIONS
from wirehouse_codecs.ockam.session.outcome import NOT_GIVEN
from wirehouse_codecs.ockam.wire.messages import Kind, Status
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_pipelines.delta import table_reader
from wirehouse_pipelines.delta.batches import with_all
from wirehouse_pipelines.ockam.known import (
    CREATED,
    INDEX_KINDS,
    Known,
    Names,
    Standing,
    address_keys,
    name_keys,
    of,
    place_of,
)

_PLACE: Final = (*Where._fields, "capture_arrived_at_ns")
#: Columns of the log's messages that events are made from.
MESSAGE_COLUMNS: Final[table_reader.Columns] = {
    **dict.fromkeys(("source", "window_start", *_PLACE, "stream_address", "requester", "consumer", "missed"), ()),
    "message": ("kind", "ignored", "stream_name", "partition", "partitions", "client_id", "index", "status")
    + ("return_route", "messages"),
    "answers": ("requested_at_ns", "request_capture_id", "index", "anonymous", "unsure", "late"),
}
#: Columns of the log's sessions with pushes that have no answer.
SESSION_COLUMNS: Final[table_reader.Columns] = {
    **dict.fromkeys(("source", "window_start", "connection_id"), ()),
    "session": ("open_pushes", "about"),
}
_OPEN_PUSHES: Final = SESSION_TYPE.field("open_pushes").type
_TYPES: Final = {
    **dict.fromkeys(
        ("byte_start", "byte_end", "record_number", "arrived_at_ns", "requested_at_ns", "missed"), pa.int64()
    ),
    **dict.fromkeys(("connection_id", "capture_id", "requested_in"), pa.binary()),
    **dict.fromkeys(("partition", "index", "requested"), UINT),
    **dict.fromkeys(("anonymous", "later", "lacks", "early"), pa.bool_()),
    "indexes": pa.list_(UINT),
    "open_pushes": _OPEN_PUSHES,
}
#: `unplaced`: an index message under its name whose stream's address isn't known.
EVENTS: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("source", "window_start", "key")),
        *((name, _TYPES.get(name, pa.string())) for name in EVENT_COLUMNS),
        *(("capture_arrived_at_ns", pa.int64()), ("turn", pa.bool_()), ("step", pa.int32()), ("unplaced", pa.bool_())),
    ]
)
#: Arrival, the place in the packet, and what is known of the connection before its messages. Messages that a hole held
#: back have the place of one packet: the answers come before what the client sends after them.
ORDER: Final = (
    *("arrived_at_ns", "capture_arrived_at_ns", "capture_id", "record_number", "turn", "byte_start", "step"),
    "connection_id",
)
#: After all that a window has.
_AT_ITS_END: Final = 2**63 - 1
#: Events that messages that were missed before don't concern.
_WHOLE: Final = ("replied", "asked")


def of_messages(rows: pa.RecordBatch, known: Known) -> pa.RecordBatch:
    """Prepare messages: their events, and how their connections stand for each key that they speak of.

    That comes again with each batch, which changes nothing: it is the same at one place of the order.
    """
    place = place_of(rows)
    stood = known.connections.at(place)
    seen_by = rows.column("source")
    rows = known.members.once(rows.append_column("seen_by", seen_by))
    kind, ignored = of(rows, "message", "kind", "ignored")
    asks = pc.fill_null(pc.equal(ignored, NOT_GIVEN), False)
    rows = rows.filter(pc.or_(asks, pc.and_(ignored.is_null(), pc.is_in(kind, pa.array(TELLING)))))
    if not rows.num_rows:
        return pa.RecordBatch.from_pylist([], schema=EVENTS)
    events = pa.concat_batches(list(_said(rows, stood, known)))
    spoken = events.filter(pc.not_equal(events.column(EVENT), "replied"))
    return pa.concat_batches([events, *_standing(spoken, stood)])


def of_sessions(rows: pa.RecordBatch, known: Known) -> pa.RecordBatch:
    """Prepare sessions: how those stand that have pushes without an answer, or speak no more, for their streams."""
    stood = known.connections.at(place_of(rows))
    rows = known.members.once(rows)
    opened, about = of(rows, "session", "open_pushes", "about")
    spoken = [
        _spoken(rows, pc.list_parent_indices(listed), keys)
        for listed, keys in ((opened, _stream_keys(opened.flatten())), (about, _about_keys(about.flatten())))
    ]
    meant = _meant(rows, about, known)
    return pa.concat_batches(
        [
            pa.RecordBatch.from_pylist([], schema=EVENTS),
            *_standing(pa.concat_batches(spoken), stood),
            *_standing(meant, stood),
        ]
    )


def _spoken(rows: pa.RecordBatch, parents: pa.Array, keys: pa.Array) -> pa.RecordBatch:
    return rows.select(["source", "window_start", "connection_id"]).take(parents).append_column("key", keys)


def _meant(rows: pa.RecordBatch, about: pa.ListArray, known: Known) -> pa.RecordBatch:
    """The streams that connections may mean by a name, as they don't know its address: all that it was given.

    `given_at_ns` is when it was given the address: what befell a connection before has nothing to do with the stream.
    """
    listed = about.flatten()
    at = pc.indices_nonzero(pc.fill_null(pc.struct_field(listed, "unplaced"), False))
    times = known.names.get(rows.column("source")[0].as_py(), Names()).times if rows.num_rows else {}
    given = [times.get(key, {}) for key in _about_keys(listed).take(at).to_pylist()]
    each = np.repeat(np.arange(len(given)), [len(addresses) for addresses in given])
    keys = address_keys(pa.array([address for addresses in given for address in addresses], pa.string()))
    made = _spoken(rows, pc.list_parent_indices(about).take(at).take(pa.array(each, pa.int64())), keys)
    given_at_ns = pa.array([at_ns for addresses in given for at_ns in addresses.values()], pa.int64())
    return made.append_column("given_at_ns", given_at_ns)


def _stream_keys(listed: pa.StructArray) -> pa.Array:
    return address_keys(pc.struct_field(listed, "stream_address"))


def _about_keys(about: pa.StructArray) -> pa.Array:
    names = name_keys(*(pc.struct_field(about, name) for name in ("stream_name", "partition")))
    return pc.coalesce(_stream_keys(about), names)


# Messages


def _said(rows: pa.RecordBatch, stood: Standing, known: Known) -> Iterator[pa.RecordBatch]:
    """The events of messages."""
    service, window = place_of(rows)
    host = stood.of(rows.column("connection_id")).column("host")
    names = known.names.get(service, Names())
    kind, ignored, status, name, partition = of(
        rows, "message", "kind", "ignored", "status", "stream_name", "partition"
    )
    heard, is_index = ignored.is_null(), pc.is_in(kind, INDEX_KINDS)
    under_name = name_keys(name, partition)
    address = _addresses(rows, under_name, pc.and_(heard, is_index), names)
    under_address = address_keys(address)
    columns = _columns(rows, host) | {"unplaced": address.is_null(), "later": _later(address, under_name, names)}
    if (lacking := known.lacking.get((service, window))) is not None:
        columns["lacks"] = _lacks(rows, host, lacking)
    base = with_all(pa.RecordBatch.from_pydict(columns), EVENTS)

    def events(event: str, wanted: pa.Array, keys: pa.Array) -> Iterator[pa.RecordBatch]:
        at = pc.indices_nonzero(pc.fill_null(pc.and_(wanted, keys.is_valid()), False))
        yield from _events(base, event, at, keys.take(at))

    asks = pc.invert(heard)
    if service in known.lacking_hosts:
        # An Init may have come to them that wasn't captured.
        asks = pc.and_not(asks, pc.is_in(host, known.lacking_hosts[service]))
    yield from events("asked", asks, under_address)
    creates = pc.is_in(kind, pa.array([Kind.CREATE_REQUEST, Kind.CREATE_PARTITIONED_REQUEST]))
    yield from _created(base, rows, pc.indices_nonzero(pc.and_(pc.and_(heard, creates), name.is_valid())))
    is_init = pc.and_(heard, pc.is_in(kind, CREATED))
    yield from events("init", is_init, under_address)
    yield from events("init", pc.and_(is_init, address.is_valid()), under_name)
    stored = pc.and_(pc.and_(heard, pc.equal(kind, Kind.PUSH_RESPONSE)), pc.equal(status, Status.OK))
    delivered = pc.and_(heard, pc.equal(kind, Kind.PULL_RESPONSE))
    for event, those in (("stored", stored), ("delivered", delivered)):
        yield from events(event, those, under_address)
    yield from _replied(base, pc.or_(pc.fill_null(stored, False), delivered), names)
    for event, one in (("saved", Kind.INDEX_SAVE), ("got", Kind.INDEX_RESPONSE)):
        those = pc.and_(heard, pc.equal(kind, one))
        yield from events(event, those, under_address)
        yield from events(event, those, under_name)


def _columns(rows: pa.RecordBatch, host: pa.Array) -> dict[str, pa.Array]:
    """Columns that the events of a message have in common. An event reads those that it has."""
    message = dict(zip(names := ("stream_name", "partition", "index"), of(rows, "message", *names), strict=True))
    client_id, route, pulled = of(rows, "message", "client_id", "return_route", "messages")
    unsure, late = of(rows, "answers", "unsure", "late")
    # It isn't known which request an unsure answer answers.
    answered = {
        known: pc.if_else(pc.invert(unsure), of(rows, "answers", name)[0], None)
        for name, known in (
            *(("anonymous", "anonymous"), ("requested_at_ns", "requested_at_ns")),
            *(("request_capture_id", "requested_in"), ("index", "requested")),
        )
    }
    # When it was sent isn't known either of a request that came late.
    answered["requested_at_ns"] = pc.if_else(pc.fill_null(late, False), None, answered["requested_at_ns"])
    requester = pc.if_else(pc.equal(rows.column("requester"), ""), None, rows.column("requester"))
    return {
        **{
            name: rows.column(name)
            for name in ("source", "window_start", *_PLACE, "stream_address", "missed", "seen_by")
        },
        **message,
        **answered,
        "early": pc.and_(rows.column("answers").is_null(), pc.equal(rows.column("missed"), 0)),
        "turn": pc.equal(rows.column("direction"), Direction.CLIENT),
        "client_id": pc.coalesce(rows.column("consumer"), client_id),
        "asker": pc.binary_join_element_wise(pc.fill_null(host, ""), requester, " "),
        "service": pc.binary_join(route, "=>"),
        "indexes": _indexes(pulled),
    }


def _indexes(pulled: pa.ListArray) -> pa.ListArray:
    """The indexes of messages in responses."""
    ends = np.cumsum(np.asarray(pc.fill_null(pc.list_value_length(pulled), 0)))
    offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
    return pa.ListArray.from_arrays(offsets, pc.struct_field(pulled.flatten(), "index"))


def _addresses(rows: pa.RecordBatch, under_name: pa.Array, is_index: pa.Array, names: Names) -> pa.Array:
    """The stream's address of each message.

    For index messages whose connection doesn't show it, that is what was given to the name last, for the first time.
    """
    address = rows.column("stream_address")
    at = pc.indices_nonzero(pc.and_(is_index, address.is_null()))
    if not len(at):
        return address
    open_ = zip(under_name.take(at).to_pylist(), rows.column("arrived_at_ns").take(at).to_pylist(), strict=True)
    guessed = np.full(len(address), None)
    guessed[np.asarray(at)] = [names.address_at(key, at_ns) for key, at_ns in open_]
    return pc.coalesce(address, pa.array(guessed, pa.string()))


def _later(address: pa.Array, under_name: pa.Array, names: Names) -> pa.Array:
    """Whether the name of each message had another address before its stream's."""
    first = pa.array(names.first.values(), pa.string())
    first = first.take(pc.index_in(under_name, pa.array(names.first, pa.string())))
    return pc.fill_null(pc.not_equal(address, first), False)


def _lacks(rows: pa.RecordBatch, host: pa.Array, lacking: pa.Table) -> pa.Array:
    """Whether another connection of the host lacks bytes that came before."""
    those = lacking.take(pc.index_in(host, lacking["host"].combine_chunks())).combine_chunks().to_batches()[0]
    found = pa.repeat(False, rows.num_rows)
    for first in ("", "other_"):
        is_another = pc.not_equal(those.column(f"{first}connection_id"), rows.column("connection_id"))
        before = pc.less_equal(those.column(f"{first}since_ns"), rows.column("arrived_at_ns"))
        found = pc.or_(found, pc.fill_null(pc.and_(is_another, before), False))
    return found


def _events(base: pa.RecordBatch, event: str, at: pa.Array, keys: pa.Array) -> Iterator[pa.RecordBatch]:
    """Events `at` these rows of `base`. Where messages were missed before it, its key is reported first."""
    made = _with(base.take(at), key=keys, event=pa.repeat(event, len(at)), step=pa.repeat(1, len(at)))
    yield made
    if event not in _WHOLE:
        missing = made.filter(pc.greater(made.column("missed"), 0))
        rows = missing.num_rows
        yield _with(missing, event=pa.repeat("partial", rows), step=pa.repeat(0, rows))


def _created(base: pa.RecordBatch, rows: pa.RecordBatch, at: pa.Array) -> Iterator[pa.RecordBatch]:
    """Events of creates: one for each partition that they ask for."""
    name, asked_for = (column.take(at) for column in of(rows, "message", "stream_name", "partitions"))
    counts = [min(count, MOST_PARTITIONS) for count in map(int, pc.fill_null(asked_for, 1).to_pylist())]
    each = pa.array(np.repeat(np.arange(len(at)), counts))
    partitions = pa.array([number for count in counts for number in range(count)], pa.int64())
    yield from _events(base, "created", at.take(each), name_keys(name.take(each), partitions))


def _replied(base: pa.RecordBatch, replies: pa.Array, names: Names) -> Iterator[pa.RecordBatch]:
    """Events of confirms and responses under the names of their stream that have several addresses."""
    if names.sharing:
        listed = pa.array(list(names.sharing.values()), pa.list_(pa.string()))
        at = pc.index_in(base.column("stream_address"), pa.array(names.sharing, pa.string()))
        keys = listed.take(pc.if_else(replies, at, None))
        yield from _events(base, "replied", pc.list_parent_indices(keys), keys.flatten())


# How connections stand


def _standing(rows: pa.RecordBatch, stood: Standing) -> Iterator[pa.RecordBatch]:
    """Events of how connections stand at the end of the window, for each connection and key of `rows`.

    Where `rows` have `given_at_ns`, nothing that happened before is an event.
    """
    names = ["source", "window_start", "connection_id", "key"]
    names += ["given_at_ns"] if "given_at_ns" in rows.schema.names else []
    spoken = pa.table(rows.select(names)).group_by(names, use_threads=False).aggregate([])
    if not spoken.num_rows:
        return
    spoken = spoken.combine_chunks().to_batches()[0]
    stands = stood.of(spoken.column("connection_id"))
    at = pc.indices_nonzero(pc.fill_null(stands.column("stands"), False))
    spoken, stands = spoken.take(at), stands.take(at)
    pairs = zip(spoken.column("connection_id").to_pylist(), spoken.column("key").to_pylist(), strict=True)
    opened = pa.array([stood.open_pushes.get(pair, []) for pair in pairs], _OPEN_PUSHES)
    since_ns = spoken.column("given_at_ns") if "given_at_ns" in names else pa.nulls(spoken.num_rows, pa.int64())
    spoken = spoken.select(names[:4])
    made = with_all(spoken.append_column("open_pushes", opened), EVENTS)
    # A connection is partial before the messages of that moment, and closed after them.
    last = pa.repeat(_AT_ITS_END, made.num_rows)
    yield _with(made, event=pa.repeat("open_pushes", made.num_rows), arrived_at_ns=last, capture_arrived_at_ns=last)
    partial_at_ns, closed_at_ns, closed = (stands.column(name) for name in ("partial_at_ns", "closed_at_ns", "closed"))
    partial = _with(made, event=pa.repeat("partial", made.num_rows), arrived_at_ns=partial_at_ns)
    yield partial.filter(pc.and_(partial_at_ns.is_valid(), _is_since(partial_at_ns, since_ns)))
    ended = _with(
        made, event=pa.repeat("closed", made.num_rows), arrived_at_ns=closed_at_ns, capture_arrived_at_ns=last
    )
    yield ended.filter(pc.and_(pc.fill_null(closed, False), _is_since(closed_at_ns, since_ns)))


def _is_since(at_ns: pa.Array, since_ns: pa.Array) -> pa.Array:
    return pc.fill_null(pc.greater_equal(at_ns, since_ns), True)


def _with(rows: pa.RecordBatch, **columns: pa.Array) -> pa.RecordBatch:
    """`rows` with these columns in the place of their own."""
    for name, column in columns.items():
        rows = rows.set_column(
            rows.schema.get_field_index(name), EVENTS.field(name), column.cast(EVENTS.field(name).type)
        )
    return rows
