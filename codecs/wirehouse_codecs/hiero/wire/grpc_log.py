"""gRPC binary logs: files of `grpc.binarylog.v1.GrpcLogEntry` (grpc-proto, grpc/binlog/v1/binarylog.proto).

`Framer` cuts a file into entries, `decode` reads one, and `Calls` reports their contents in the events of
grpc/events.py. Files have no magic. Before each entry stands its length: four bytes, big-endian, as Go's sink writes
it, or a varint, as Java's does; the first entry shows which.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.hiero.options import MOST_MESSAGE_BYTES
from wirehouse_codecs.hiero.wire import protobuf
from wirehouse_codecs.hiero.wire.grpc import events as grpc
from wirehouse_codecs.hiero.wire.http2.events import CANCEL
from wirehouse_codecs.hiero.wire.items.decoded import Timestamp
from wirehouse_codecs.hiero.wire.protobuf import Field, Form, Layout, Malformed
from wirehouse_codecs.hiero.wire.spans import UNDECODABLE_BYTES, Undecodable
from wirehouse_codecs.tcp.endpoints import Direction

#: A message of the largest size, and what else an entry has.
MAX_ENTRY_BYTES: Final = MOST_MESSAGE_BYTES + (1 << 20)
#: Calls that are known at once, ended ones too: what comes late of them opens no other.
MAX_CALLS: Final = 4096
FIXED_BYTES: Final = 4


class Lengths(StrEnum):
    """How the length before an entry is written."""

    FIXED = "fixed"
    VARINT = "varint"


class EntryType(IntEnum):
    """What an entry reports."""

    UNKNOWN = 0
    CLIENT_HEADER = 1
    SERVER_HEADER = 2
    CLIENT_MESSAGE = 3
    SERVER_MESSAGE = 4
    CLIENT_HALF_CLOSE = 5
    SERVER_TRAILER = 6
    CANCEL = 7


class MetadataEntry(NamedTuple):
    """A header field."""

    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Metadata:
    """Header fields."""

    entry: tuple[MetadataEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class ClientHeader:
    """What opens a call."""

    metadata: Metadata = Metadata()
    #: With the leading slash.
    method_name: str = ""
    authority: str = ""


@dataclass(frozen=True, slots=True)
class ServerHeader:
    """The server's answer to it."""

    metadata: Metadata = Metadata()


@dataclass(frozen=True, slots=True)
class Message:
    """A message, inflated; `data` may be less of it than its length."""

    length: int = 0
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Trailer:
    """What ends a call."""

    metadata: Metadata = Metadata()
    status_code: int = 0
    status_message: str = ""
    status_details: bytes = b""


@dataclass(frozen=True, slots=True)
class Address:
    """The other side."""

    type: int = 0
    address: str = ""
    ip_port: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a log."""

    timestamp: Timestamp = field(default_factory=Timestamp)
    call_id: int = 0
    #: Its number within the call, from 1 on.
    sequence_id_within_call: int = 0
    type: int = EntryType.UNKNOWN
    #: 1 = the client wrote it, 2 = the server.
    logger: int = 0
    #: One of these at most.
    client_header: ClientHeader | None = None
    server_header: ServerHeader | None = None
    message: Message | None = None
    trailer: Trailer | None = None
    #: Whether message or metadata are not whole.
    payload_truncated: bool = False
    peer: Address | None = None


_TIMESTAMP: Final = Layout(Timestamp, (Field(1, "seconds", Form.I64), Field(2, "nanos", Form.I32)))
_METADATA_ENTRY: Final = Layout(
    lambda key="", value=b"": MetadataEntry(key, value), (Field(1, "key", Form.TEXT), Field(2, "value", Form.BYTES))
)
_METADATA: Final = Field(
    1, "metadata", Form.MESSAGE, Layout(Metadata, (Field(1, "entry", Form.MESSAGE, _METADATA_ENTRY, repeated=True),))
)
_PAYLOADS: Final = (
    Field(
        6,
        "client_header",
        Form.MESSAGE,
        Layout(ClientHeader, (_METADATA, Field(2, "method_name", Form.TEXT), Field(3, "authority", Form.TEXT))),
    ),
    Field(7, "server_header", Form.MESSAGE, Layout(ServerHeader, (_METADATA,))),
    Field(8, "message", Form.MESSAGE, Layout(Message, (Field(1, "length", Form.U32), Field(2, "data", Form.BYTES)))),
    Field(
        9,
        "trailer",
        Form.MESSAGE,
        Layout(
            Trailer,
            (
                _METADATA,
                Field(2, "status_code", Form.U32),
                Field(3, "status_message", Form.TEXT),
                Field(4, "status_details", Form.BYTES),
            ),
        ),
    ),
)
_ADDRESS: Final = Layout(
    Address, (Field(1, "type", Form.I32), Field(2, "address", Form.TEXT), Field(3, "ip_port", Form.U32))
)
_ENTRY: Final = Layout(
    Entry,
    (
        Field(1, "timestamp", Form.MESSAGE, _TIMESTAMP),
        Field(2, "call_id", Form.U64),
        Field(3, "sequence_id_within_call", Form.U64),
        Field(4, "type", Form.I32),
        Field(5, "logger", Form.I32),
        *_PAYLOADS,
        Field(10, "payload_truncated", Form.BOOL),
        Field(11, "peer", Form.MESSAGE, _ADDRESS),
    ),
    oneof=frozenset(payload.name for payload in _PAYLOADS),
)
#: First bytes that an entry may have.
_TAGS: Final = frozenset(known.number << 3 | known.form.wire_type for known in _ENTRY.fields)


def decode(data: bytes) -> Entry | str:
    """An entry, or why it is none."""
    try:
        entry: Entry = protobuf.read(data, _ENTRY).value
    except Malformed as malformed:
        return f"{malformed.reason} at byte {malformed.at}"
    return entry


def encode(entry: Entry) -> bytes:
    """The entry as a logger writes it, without its length."""
    return protobuf.write(entry, _ENTRY)


# Files


class Framed(NamedTuple):
    """An entry's bytes, without their length; or bytes that are none, and why."""

    #: In the file, with the length.
    byte_start: int
    byte_end: int
    data: bytes
    reason: str = ""
    #: The length before the entry, as it came.
    length: bytes = b""


class Framer:
    """The entries of one file. `receive` its bytes, `finish` at its end. What is held is never more than was given."""

    def __init__(self, lengths: Lengths | None = None, *, limit: int = MAX_ENTRY_BYTES) -> None:
        self.lengths = lengths
        self._limit = limit
        self._pending = bytearray()
        self._start = 0
        self._lost = ""

    def receive(self, data: bytes) -> list[Framed]:
        """The entries that are whole now."""
        self._pending += data
        found = list(self._cut())
        while self._lost and len(self._pending) >= UNDECODABLE_BYTES:
            found.append(self._give(UNDECODABLE_BYTES))
        return found

    def finish(self) -> list[Framed]:
        """The file has ended: what is left is no entry."""
        self.lengths = self.lengths or Lengths.VARINT
        found = self.receive(b"")
        self._lost = self._lost or "an entry that is cut off"
        while self._pending:
            found.append(self._give(min(len(self._pending), UNDECODABLE_BYTES)))
        return found

    def _cut(self) -> Iterator[Framed]:
        """Whole entries, taken off together with their lengths."""
        at, first, view = 0, self._start, self._pending
        if self.lengths is None and not self._lost:
            self.lengths = _lengths_of(view, self._limit)
        while self.lengths is not None and not self._lost:
            length, begin = _length(view, at, self.lengths)
            if length is None:
                self._lost = "a length that is none" if begin else ""
                break
            if length > self._limit:
                self._lost = f"an entry of {length} bytes, more than {self._limit}"
                break
            if len(view) < begin + length:
                break
            with memoryview(view) as held:
                entry = bytes(held[begin : begin + length])
            yield Framed(first + at, first + begin + length, entry, length=bytes(view[at:begin]))
            at = begin + length
        del self._pending[:at]
        self._start = first + at

    def _give(self, size: int) -> Framed:
        """Bytes that are no entry."""
        data = bytes(self._pending[:size])
        del self._pending[:size]
        self._start += size
        return Framed(self._start - size, self._start, data, self._lost)


def _lengths_of(data: bytearray, limit: int) -> Lengths | None:
    """How lengths are written; None = more bytes are needed."""
    if len(data) <= FIXED_BYTES:
        return None
    if not data[0]:
        return Lengths.FIXED
    length, begin = _length(data, 0, Lengths.VARINT)
    if length is not None and (begin >= len(data) or data[begin] in _TAGS) and length > 1:
        return Lengths.VARINT
    fixed = int.from_bytes(data[:FIXED_BYTES], "big") <= limit and data[FIXED_BYTES] in _TAGS
    return Lengths.FIXED if fixed else Lengths.VARINT


def _length(data: bytearray, at: int, lengths: Lengths) -> tuple[int | None, int]:
    """A length and the position after it. No length: 0 if more bytes are needed, else where it is none."""
    if lengths is Lengths.FIXED:
        end = at + FIXED_BYTES
        return (int.from_bytes(data[at:end], "big"), end) if len(data) >= end else (None, 0)
    head = bytes(data[at : at + protobuf.MOST_VARINT_BYTES])
    try:
        length, size = protobuf.read_varint(head, 0, len(head))
    except Malformed:
        return None, at + len(head) if len(head) == protobuf.MOST_VARINT_BYTES else 0
    return length, at + size


def begins_log(start: bytes) -> bool:
    """Whether the first bytes of a file may be entries: the first one is right, as far as it is there."""
    head = bytearray(start)
    lengths = _lengths_of(head, MAX_ENTRY_BYTES)
    length, begin = (None, 0) if lengths is None else _length(head, 0, lengths)
    if length is None or not 0 < length <= MAX_ENTRY_BYTES:
        return False
    if len(head) < begin + length:
        return len(head) > begin and head[begin] in _TAGS
    first = decode(bytes(head[begin : begin + length]))
    # Much that isn't an entry can be read as one without any content.
    return isinstance(first, Entry) and EntryType.UNKNOWN < first.type <= EntryType.CANCEL


def unframe(record: bytes) -> bytes:
    """The entry of what a file has: without its length, which is written in either way."""
    length = int.from_bytes(record[:FIXED_BYTES], "big")
    if length + FIXED_BYTES == len(record):
        return record[FIXED_BYTES:]
    return record[_length(bytearray(record[: protobuf.MOST_VARINT_BYTES]), 0, Lengths.VARINT)[1] :]


def frame(entry: bytes, lengths: Lengths = Lengths.FIXED) -> bytes:
    """An entry as a file has it."""
    length = len(entry).to_bytes(FIXED_BYTES, "big") if lengths is Lengths.FIXED else protobuf.varint(len(entry))
    return length + entry


# Calls


class KnownCall(NamedTuple):
    """What is known of a call."""

    ended: bool
    #: The highest sequence_id_within_call.
    sequence: int


class Calls:
    """The calls of a log, from its entries in their order. `state` is that of earlier calls, to continue from."""

    def __init__(
        self, state: dict[int, KnownCall] | None = None, *, max_message_bytes: int = MOST_MESSAGE_BYTES
    ) -> None:
        self._limit = max_message_bytes
        self._calls: OrderedDict[int, KnownCall] = OrderedDict(state or {})

    def receive(self, entry: Entry, place: Place, byte_start: int, byte_end: int) -> list[grpc.Event]:
        """The events of an entry, which stands at these bytes of its file."""
        direction = _DIRECTIONS.get(entry.type)
        if direction is None:
            fields = (byte_start, byte_end, entry.call_id, b"", f"an entry of type {entry.type}")
            return [Undecodable(Direction.CLIENT, place, *fields)]
        events: list[grpc.Event] = []
        where = (direction, place, byte_start, byte_end, entry.call_id)
        if entry.client_header is not None:
            header = entry.client_header
            authority = ((":authority", header.authority),) if header.authority else ()
            metadata = (*authority, *_metadata_of(header.metadata))
            events.append(grpc.Opened(*where, header.method_name or None, False, metadata))
        elif entry.call_id not in self._calls:
            events.append(grpc.Opened(*where, None, False, ()))
        if self._note(entry, place, events):
            events.append(grpc.Missed(place, entry.call_id))
        match entry.type:
            case EntryType.SERVER_HEADER:
                answer = entry.server_header or ServerHeader()
                events.append(grpc.Answered(*where, _metadata_of(answer.metadata)))
            case EntryType.CLIENT_MESSAGE | EntryType.SERVER_MESSAGE:
                message = entry.message or Message()
                fault = _fault_of(entry, message, self._limit)
                events.append(grpc.MessagePart(*where, message.length, None, message.data, True, True, fault))
            case EntryType.CLIENT_HALF_CLOSE:
                events.append(grpc.HalfClosed(direction, place, byte_end, entry.call_id))
            case EntryType.SERVER_TRAILER:
                trailer = entry.trailer or Trailer()
                metadata = _metadata_of(trailer.metadata)
                events.append(grpc.Trailers(*where, trailer.status_code, trailer.status_message, metadata))
                self._end(entry.call_id, place, events)
            case EntryType.CANCEL:
                events.append(grpc.Reset(*where, CANCEL))
                self._end(entry.call_id, place, events)
        return events

    def finish(self, place: Place) -> list[grpc.Event]:
        """The log has ended: calls that have not."""
        left = [number for number, known in self._calls.items() if not known.ended]
        self._calls.clear()
        return [grpc.Closed(place, number, grpc.How.CAPTURE_END) for number in left]

    def _note(self, entry: Entry, place: Place, events: list[grpc.Event]) -> bool:
        """The entry is the newest of its call; whether some before it are missing."""
        number = entry.sequence_id_within_call
        known = self._calls.pop(entry.call_id, None)
        before = 0 if known is None else known.sequence
        self._calls[entry.call_id] = KnownCall(known is not None and known.ended, max(before, number))
        if len(self._calls) > MAX_CALLS:
            oldest, forgotten = self._calls.popitem(last=False)
            if not forgotten.ended:
                events.append(grpc.Closed(place, oldest, grpc.How.FORGOTTEN))
        # A log that doesn't number its entries has only zeros.
        return bool(number and before) and number != before + 1

    def _end(self, call_id: int, place: Place, events: list[grpc.Event]) -> None:
        known = self._calls[call_id]
        if not known.ended:
            self._calls[call_id] = known._replace(ended=True)
            events.append(grpc.Closed(place, call_id, grpc.How.ENDED))

    @property
    def state(self) -> dict[int, KnownCall]:
        """What later calls continue from."""
        return self._calls


def _metadata_of(metadata: Metadata) -> grpc.Metadata:
    return grpc.metadata_of((entry.key.encode(), entry.value) for entry in metadata.entry)


def _fault_of(entry: Entry, message: Message, limit: int) -> str | None:
    if message.length > limit:
        return f"a message of {message.length} bytes, more than {limit}"
    if entry.payload_truncated or message.length != len(message.data):
        return f"the log has {len(message.data)} of {message.length} bytes"
    return None


_DIRECTIONS: Final[Mapping[int, Direction]] = {
    EntryType.CLIENT_HEADER: Direction.CLIENT,
    EntryType.SERVER_HEADER: Direction.SERVER,
    EntryType.CLIENT_MESSAGE: Direction.CLIENT,
    EntryType.SERVER_MESSAGE: Direction.SERVER,
    EntryType.CLIENT_HALF_CLOSE: Direction.CLIENT,
    EntryType.SERVER_TRAILER: Direction.SERVER,
    EntryType.CANCEL: Direction.CLIENT,
}
