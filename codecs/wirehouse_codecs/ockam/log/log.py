"""Turns a connection with an Ockam stream service into rows of the log `silver.ockam`.

A row of kind `message` for each message, `quarantine` for bytes that are none, `violation` for each broken rule. Where
they changed, `session` and `skip` rows state at the end of a window how the connection stands, and which other traffic
it had, counted from its begin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.core.snapshots import SnapshotCodec
from wirehouse_codecs.logs.rows import MESSAGE, QUARANTINE, Dialogue, Log, Start, Where, place_columns, schema
from wirehouse_codecs.ockam.fast import runner
from wirehouse_codecs.ockam.options import OckamOptions
from wirehouse_codecs.ockam.session.outcome import Answers, Found, Outcome
from wirehouse_codecs.ockam.session.requests import Request, RequestKind
from wirehouse_codecs.ockam.session.session import Session, SessionState
from wirehouse_codecs.ockam.wire.messages import (
    CreatePartitionedRequest,
    CreatePartitionedResponse,
    CreateRequest,
    CreateResponse,
    Error,
    IndexGet,
    IndexResponse,
    IndexSave,
    Message,
    PullRequest,
    PullResponse,
    PushRequest,
    PushResponse,
)
from wirehouse_codecs.ockam.wire.reader import NOT_BARE, Reader, ReaderState, Received
from wirehouse_codecs.ockam.wire.routed import LOCAL, Routed
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.events import End
from wirehouse_codecs.tcp.reassembly import Closed, Connection, Data, Hole

SESSION, SKIP = "session", "skip"
SNAPSHOT_VERSION: Final = 8
#: Minimum size of a run that is read on the fast path: with fewer bytes its start costs more.
COMPILED_FROM_BYTES: Final = 8 << 10
#: Names under which a connection's other traffic is counted; that of further ones is OTHER.
MOST_SKIPS: Final = 64
#: Streams of open creates that a session's row names.
MOST_ABOUT: Final = 1_024
OTHER: Final = "other"
#: The name of unreadable traffic at addresses of secure channels, the maximum number of these addresses, and the
#: prefix of the names of listeners, at which channels begin.
SECURE_CHANNEL: Final = "secure channel"
MOST_CHANNELS: Final = 1_024
_CHANNEL: Final = "0#secure_channel"

#: The type of unsigned 64-bit numbers.
UINT: Final = pa.decimal128(20, 0)
ROUTE_TYPE: Final = pa.list_(pa.string())
MESSAGE_TYPE: Final = pa.struct(
    [
        ("kind", pa.string()),
        ("protocol_name", pa.string()),
        ("version", pa.int32()),
        ("onward_route", ROUTE_TYPE),
        ("return_route", ROUTE_TYPE),
        ("stream_name", pa.string()),
        ("partition", UINT),
        ("partitions", UINT),
        ("request_id", UINT),
        ("index", UINT),
        ("limit", UINT),
        ("status", pa.string()),
        ("client_id", pa.string()),
        ("data", pa.binary()),
        ("messages", pa.list_(pa.struct([("index", UINT), ("data", pa.binary())]))),
        ("reason", pa.string()),
        ("extra", pa.binary()),
        ("tracing_context", pa.string()),
        ("ignored", pa.string()),
    ]
)
ANSWERS_TYPE: Final = pa.struct(
    [
        ("requested_at_ns", pa.int64()),
        ("request_byte_start", pa.int64()),
        ("request_capture_id", pa.binary()),
        ("index", UINT),
        ("limit", UINT),
        ("anonymous", pa.bool_()),
        ("data", pa.binary()),
        ("data_bytes", pa.int64()),
        ("unsure", pa.bool_()),
        ("late", pa.bool_()),
    ]
)
SKIP_TYPE: Final = pa.struct([("name", pa.string()), ("frames", pa.int64()), ("bytes", pa.int64())])
_OPEN_PUSHES: Final = pa.struct(
    [("stream_address", pa.string()), ("pushed_at_ns", pa.int64()), ("capture_id", pa.binary()), ("count", pa.int64())]
)
#: `unplaced`: index messages were about the name while no Init of the connection had given its address.
_ABOUT: Final = pa.struct(
    [("stream_address", pa.string()), ("stream_name", pa.string()), ("partition", UINT), ("unplaced", pa.bool_())]
)
_COUNTS: Final = ("creates", "pushes", "confirmed", "pulls", "delivered")
SESSION_TYPE: Final = pa.struct(
    [
        ("envelope", pa.string()),
        ("names", pa.string()),
        ("partial", pa.bool_()),
        ("partial_at_ns", pa.int64()),
        *((name, pa.int64()) for name in _COUNTS),
        ("open_requests", pa.int64()),
        ("open_pushes", pa.list_(_OPEN_PUSHES)),
        ("closed", pa.bool_()),
        ("closed_at_ns", pa.int64()),
        ("about", pa.list_(_ABOUT)),
    ]
)
#: Columns of the log, of which only the struct of the row's own kind is there.
SCHEMA: Final = schema(
    [
        ("stream_address", pa.string()),
        ("requester", pa.string()),
        ("consumer", pa.string()),
        ("missed", pa.int64()),
        ("message", MESSAGE_TYPE),
        ("answers", ANSWERS_TYPE),
        ("skip", SKIP_TYPE),
        ("session", SESSION_TYPE),
    ]
)


def starter(options: OckamOptions) -> Start:
    """Dialogues of a source with these options."""

    def start(log: Log, connection: Connection, server: Endpoint, snapshot: str | None) -> Dialogue:
        return Conversation(log, connection, options, snapshot)

    return start


class Conversation:
    """One connection. A `Dialogue`."""

    def __init__(self, log: Log, connection: Connection, options: OckamOptions, snapshot: str | None) -> None:
        self._log, self._connection, self._options = log, connection, options
        late = connection.began_before_capture
        carried = None if snapshot is None else CODEC.read(snapshot)
        self._reader = Reader(options, started_late=late, state=None if carried is None else carried.reader)
        state = None if carried is None else carried.session
        self._session = Session(
            options, started_late=late, state=state, peer_received=connection.peer_received, late=connection.late
        )
        #: Frames and bytes of other traffic, by direction and name.
        self._skips: dict[tuple[Direction, str], tuple[int, int]] = {} if carried is None else carried.skips
        #: Addresses between which a secure channel is.
        self._channels: set[str] = set() if carried is None else carried.channels
        self._closed_at_ns: int | None = None
        self._fast = runner.Connection(self._reader, self._session, options)
        #: Rows as they were written last: a row that has not changed since is not written again.
        self._reported = {} if snapshot is None else self._rows()

    @property
    def dialect(self) -> tuple[str | None, str | None]:
        """Name and reason of the envelope, once they are known."""
        found = self._reader.detection
        return (None, None) if found is None else (found.name, found.reason)

    @property
    def partial_at_ns(self) -> int | None:
        """The time since which messages of the connection are known to be missing; None = none are."""
        at_ns = self._session.coverage.partial_at_ns
        return None if at_ns is None else max(at_ns, self._connection.first.arrived_at_ns)

    def unread_from(self, direction: Direction) -> int:
        """Where the first byte of `direction` stands that is in no row yet."""
        return self._reader.unread_from(direction)

    def receive(self, pieces: Sequence[Data]) -> None:
        """Bytes of both directions, in arrival order."""
        for direction in self._connection.guessed_sides:
            if not self._reader.has_begun(direction):
                self._session.lose(direction, pieces[0].place)
        begun = 0
        for at, piece in enumerate(pieces):
            if not piece.byte_start and self._connection.may_lack_beginning(piece.direction):
                self._read(pieces[begun:at])
                begun = at
                self._reader.begin_within(piece.direction)
                self._session.lose(piece.direction, piece.place)
        self._read(pieces[begun:] if begun else pieces)

    def _read(self, pieces: Sequence[Data]) -> None:
        if sum(len(piece.data) for piece in pieces) < COMPILED_FROM_BYTES:
            for piece in pieces:
                for outcome in self._fast.receive(piece):
                    self._add_outcome(outcome)
            return
        for taken in self._fast.run(pieces):
            self._take_run(taken, pieces)

    def hole(self, hole: Hole) -> None:
        """Bytes that never came."""
        self._session.hole(hole.place)
        self._take(self._reader.hole(hole.direction, hole.byte_end - hole.byte_start, hole.place))

    def doubt(self, place: Place) -> None:
        """Nobody knows which side sent first what comes next."""
        self._session.doubt(place)

    def close(self, closed: Closed) -> None:
        """The connection has ended."""
        end = End.of(closed)
        self._closed_at_ns = closed.place.arrived_at_ns
        # If the capture ends, messages that didn't come may exist. A reset is believed some time after it.
        last = closed.place if end is End.CLOSED else self._connection.last
        self._take(self._reader.finish(last, closed=end is not End.CAPTURE_END))
        for direction in Direction:
            rest = self._reader.rest(direction)
            if rest is not None:
                finding = {"rule": None, "severity": None, "message": "no frame is looked for from here on"}
                self._log.add(QUARANTINE, closed.place, Where(direction, *rest), finding=finding)
        for found in self._session.end(end, last):
            self._find(found)

    # Frames

    def _take(self, frames: Sequence[Received]) -> None:
        for received in frames:
            self._add_outcome(self._session.receive(received))

    def _take_run(self, taken: runner.Taken, pieces: Sequence[Data]) -> None:
        """The rows of plain messages, and between them those of the others."""
        messages = _messages(taken.plain, pieces) if taken.plain.num_rows else None
        done = 0
        for before, outcome in taken.read:
            self._add_messages(messages, done, before)
            done = before
            self._add_outcome(outcome)
        self._add_messages(messages, done, taken.plain.num_rows)

    def _add_messages(self, messages: pa.RecordBatch | None, begin: int, end: int) -> None:
        if messages is not None and end > begin:
            columns = messages.slice(begin, end - begin).columns
            self._log.add_batch(dict(zip(messages.schema.names, columns, strict=True)), end - begin)

    def _add_outcome(self, outcome: Outcome) -> None:
        """The rows of a frame, or of bytes that are none."""
        received = outcome.received
        where = Where(received.direction, received.byte_start, received.byte_end)
        if outcome.message is not None:
            self._message(outcome, outcome.message, where)
        elif outcome.skip is not None:
            self._skip(received, outcome.skip)
        elif where.byte_end > where.byte_start:
            # A finding about the frame itself comes last.
            own = outcome.findings[-1] if received.rule is not None or received.decoded is not None else None
            finding = {
                "rule": None if own is None else own.rule.id,
                "severity": None,
                "message": received.reason if own is None else own.message,
            }
            self._log.add(QUARANTINE, received.place, where, finding=finding, raw=received.undecoded)
        for found in outcome.findings:
            self._find(found)

    def _message(self, outcome: Outcome, message: Message, where: Where) -> None:
        received = outcome.received
        assert received.routed is not None
        assert received.decoded is not None
        envelope = _envelope(received.routed) | {"protocol_name": received.decoded.protocol_name}
        self._log.add(
            MESSAGE,
            received.place,
            where,
            stream_address=outcome.stream_address,
            requester=outcome.requester,
            consumer=outcome.consumer,
            missed=outcome.missed,
            message={"kind": message.kind.value, "ignored": outcome.ignored} | envelope | _content(message),
            answers=None if outcome.answers is None else _answers(outcome.answers),
        )

    def _skip(self, received: Received, name: str) -> None:
        if name == NOT_BARE and received.routed is not None and self._is_of_channel(received.routed):
            name = SECURE_CHANNEL
        key = (received.direction, name)
        if key not in self._skips and len(self._skips) >= MOST_SKIPS:
            key = (received.direction, OTHER)
        frames, size = self._skips.get(key, (0, 0))
        self._skips[key] = (frames + 1, size + received.byte_end - received.byte_start)

    def _is_of_channel(self, routed: Routed) -> bool:
        """Whether a message that can't be read is of a secure channel: to a listener, or between addresses of one."""
        local = [
            {hop.text for hop in route if hop.type == LOCAL} for route in (routed.onward_route, routed.return_route)
        ]
        known = any(text.startswith(_CHANNEL) or text in self._channels for text in local[0] | local[1])
        if known and len(self._channels) < MOST_CHANNELS:
            self._channels |= local[1]
        return known

    def _find(self, found: Found) -> None:
        where = found.where
        bytes_of = Where(where.direction, where.byte_start, where.byte_end)
        self._log.find(found.rule, found.message, where.place, bytes_of, stream_address=found.stream_address)

    # Entities

    def conclude(self) -> None:
        """A row of the session and of each kind of other traffic that changed since it was written last."""
        rows = self._rows()
        place: Place = self._connection.first
        for key, row in rows.items():
            if self._reported.get(key) == row:
                continue
            if key is None:
                self._log.add(SESSION, place, session=row)
            else:
                self._log.add(SKIP, place, direction=key[0], skip=row)
        self._reported = rows

    def _rows(self) -> dict[tuple[Direction, str] | None, dict[str, Any]]:
        rows: dict[tuple[Direction, str] | None, dict[str, Any]] = {None: self._session_row()}
        for (direction, name), (frames, size) in self._skips.items():
            rows[direction, name] = {"name": name, "frames": frames, "bytes": size}
        return rows

    def _session_row(self) -> dict[str, Any]:
        session, memory = self._session, self._session.memory
        names = sorted(memory.names)
        pushes = Counter(
            (request.target, self._sent_since_ns(request), request.where.place.capture_id)
            for request in memory.requests
            if request.kind is RequestKind.PUSH
        )
        return {
            "envelope": self.dialect[0],
            "names": "both" if len(names) > 1 else next(iter(names), None),
            "partial": session.coverage.partial,
            "partial_at_ns": self.partial_at_ns,
            **{name: getattr(memory.counts, name) for name in _COUNTS},
            "open_requests": sum(request.kind is not RequestKind.OTHER for request in memory.requests),
            "open_pushes": [
                {"stream_address": address, "pushed_at_ns": at_ns, "capture_id": capture_id, "count": count}
                for (address, at_ns, capture_id), count in pushes.items()
            ],
            "closed": session.ended is not None,
            "closed_at_ns": self._closed_at_ns,
            "about": self._about() if session.coverage.partial or session.ended is not None else [],
        }

    def _about(self) -> list[dict[str, Any]]:
        """The streams that it spoke of: those by their addresses, and then by their names."""
        memory = self._session.memory
        asked = ((request.name, at) for request in memory.requests for at in range(request.partitions or 1))
        names = dict.fromkeys([*memory.addresses, *((name, at or 0) for *_, name, at in memory.keys)])
        names |= dict.fromkeys((name, at) for name, at in islice(asked, MOST_ABOUT) if name is not None)
        names |= memory.named
        by_address = ((address, None, None, None) for address in memory.streams)
        by_name = ((None, *name, name in memory.unplaced) for name in names | memory.unplaced)
        return [dict(zip(_ABOUT.names, one, strict=True)) for one in (*by_address, *by_name)]

    def _sent_since_ns(self, request: Request) -> int:
        """When a request was sent; of one that came late, the earliest moment at which it can have been."""
        return (self._connection.first if request.is_late else request.where.place).arrived_at_ns

    # Carried state

    def snapshot(self) -> str:
        """The state as text. It holds bytes of the wire, so it is sealed where it is stored."""
        return CODEC.write(Carried(self._reader.state, self._session.state, self._skips, self._channels))


@dataclass(frozen=True, slots=True)
class Carried:
    """What a conversation carries from window to window."""

    reader: ReaderState
    session: SessionState
    skips: dict[tuple[Direction, str], tuple[int, int]]
    channels: set[str]


CODEC: Final = SnapshotCodec(Carried, what="ockam connection", version=SNAPSHOT_VERSION)


def _envelope(routed: Routed) -> dict[str, Any]:
    return {
        "version": routed.version,
        "onward_route": [address.text for address in routed.onward_route],
        "return_route": [address.text for address in routed.return_route],
        "tracing_context": routed.tracing_context,
    }


def _content(message: Message) -> dict[str, Any]:
    """The fields that `message` has."""
    match message:
        case CreateRequest():
            return {"stream_name": message.stream_name}
        case CreateResponse():
            return {"stream_name": message.stream_name, "extra": message.extra or None}
        case CreatePartitionedRequest():
            return {"stream_name": message.stream_name, "partitions": message.partitions}
        case CreatePartitionedResponse():
            fields = {"stream_name": message.stream_name, "partition": message.partition}
            return fields | {"extra": message.extra or None}
        case PushRequest():
            return {"request_id": message.request_id, "data": message.data}
        case PushResponse():
            return {"request_id": message.request_id, "status": message.status.value, "index": message.index}
        case PullRequest():
            return {"request_id": message.request_id, "index": message.index, "limit": message.limit}
        case PullResponse():
            pulled = [{"index": one.index, "data": one.data} for one in message.messages]
            return {"request_id": message.request_id, "messages": pulled}
        case IndexGet():
            return _index_key(message)
        case IndexSave() | IndexResponse():
            return _index_key(message) | {"index": message.index}
        case Error():
            return {"reason": message.reason}


def _index_key(message: IndexGet | IndexSave | IndexResponse) -> dict[str, Any]:
    return {"client_id": message.client_id, "stream_name": message.stream_name, "partition": message.partition}


def _answers(answers: Answers) -> dict[str, Any]:
    return {name: getattr(answers, name) for name in ANSWERS_TYPE.names}


def _messages(plain: pa.RecordBatch, pieces: Sequence[Data]) -> pa.RecordBatch:
    """Columns of the log for plain messages, whose places are in `pieces`."""
    rows, names, piece = plain.num_rows, plain.schema.names, plain.column("piece")
    first = piece[0].as_py()
    places = place_columns(piece.place for piece in pieces[first : piece[-1].as_py() + 1])

    def struct(kind: pa.StructType, prefix: str = "", has: pa.Array | None = None) -> pa.StructArray:
        fields = [
            plain.column(prefix + field.name).cast(field.type)
            if prefix + field.name in names
            else pa.nulls(rows, field.type)
            for field in kind
        ]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=has)

    columns = {
        "row_kind": pa.repeat(pa.scalar(MESSAGE), rows),
        **{name: column.take(pc.subtract(piece, first)) for name, column in places.items()},
        "direction": plain.column("direction").cast(pa.string()),
        **{name: plain.column(name) for name in _SAME},
        "message": struct(MESSAGE_TYPE),
        "answers": struct(ANSWERS_TYPE, "answers_", pc.invert(plain.column("answers"))),
    }
    return pa.RecordBatch.from_pydict(columns)


#: Columns that plain messages and the log have in common.
_SAME: Final = ("byte_start", "byte_end", "stream_address", "requester", "consumer", "missed")
