"""gRPC binary logs: files of `grpc.binarylog.v1.GrpcLogEntry` (grpc-proto, grpc/binlog/v1/binarylog.proto).

`Framer` cuts a file into entries, `decode` reads one, and `Calls` tells what they say in the events of grpc.py. Files
have no magic. Before each entry stands its length: four bytes, big-endian, as Go's sink writes it, or a varint, as
Java's does; the first entry shows which.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

from wirehouse_codecs.errors import StateVersionError
from wirehouse_codecs.hiero import grpc
from wirehouse_codecs.hiero.peer import CANCEL
from wirehouse_codecs.hiero.pieces import UNDECODABLE_BYTES, Undecodable
from wirehouse_codecs.rules import Place
from wirehouse_codecs.tcp import Direction

CALLS_VERSION: Final = 1
#: A message of the largest size, and what else an entry has.
MAX_ENTRY_BYTES: Final = grpc.MAX_MESSAGE_BYTES + (1 << 20)
#: Calls that are known at once, ended ones too: what comes late of them opens no other.
MAX_CALLS: Final = 4096
FIXED_BYTES: Final = 4
_U64: Final = (1 << 64) - 1
_MAX_VARINT_BYTES: Final = 10
_NS: Final = 10**9


class Lengths(StrEnum):
    """How the length before an entry is written."""

    FIXED = "fixed"
    VARINT = "varint"


class EntryType(IntEnum):
    """What an entry tells."""

    UNKNOWN = 0
    CLIENT_HEADER = 1
    SERVER_HEADER = 2
    CLIENT_MESSAGE = 3
    SERVER_MESSAGE = 4
    CLIENT_HALF_CLOSE = 5
    SERVER_TRAILER = 6
    CANCEL = 7


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a log."""

    call_id: int
    type: int
    #: From 1 on within the call.
    sequence: int = 0
    timestamp_ns: int = 0
    #: 1 = the client wrote it, 2 = the server.
    logger: int = 0
    metadata: tuple[tuple[bytes, bytes], ...] = ()
    #: With the leading slash.
    method: str = ""
    authority: str = ""
    #: Of the message as it was sent, inflated; `data` may be less of it.
    length: int = 0
    data: bytes = b""
    status: int = 0
    status_message: str = ""
    #: Message or metadata are not whole.
    truncated: bool = False
    #: Address and port of the other side.
    peer_address: str = ""
    peer_port: int = 0


class Framed(NamedTuple):
    """An entry's bytes, without their length; or bytes that are none, and why."""

    #: In the file, with the length.
    byte_start: int
    byte_end: int
    data: bytes
    reason: str = ""


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
            yield Framed(first + at, first + begin + length, bytes(view[begin : begin + length]))
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
    varint, begin = _length(data, 0, Lengths.VARINT)
    if varint is None and not begin:
        return None
    if begin and varint is not None and begin < len(data) and data[begin] in _KEYS and varint > 1:
        return Lengths.VARINT
    fixed = int.from_bytes(data[:FIXED_BYTES], "big") <= limit and data[FIXED_BYTES] in _KEYS
    return Lengths.FIXED if fixed else Lengths.VARINT


def _length(data: bytearray, at: int, lengths: Lengths) -> tuple[int | None, int]:
    """A length and the position after it. No length: 0 if more bytes are needed, else where it is none."""
    if lengths is Lengths.FIXED:
        if len(data) < at + FIXED_BYTES:
            return None, 0
        return int.from_bytes(data[at : at + FIXED_BYTES], "big"), at + FIXED_BYTES
    head = bytes(data[at : at + _MAX_VARINT_BYTES])
    try:
        value, size = _varint(head, 0)
    except ValueError:
        return None, at + len(head) if len(head) == _MAX_VARINT_BYTES else 0
    return value, at + size


def frame(entry: bytes, lengths: Lengths = Lengths.FIXED) -> bytes:
    """An entry as a file has it."""
    length = len(entry).to_bytes(FIXED_BYTES, "big") if lengths is Lengths.FIXED else _encode_varint(len(entry))
    return length + entry


# Entries


def decode(data: bytes) -> Entry | str:
    """An entry, or why it is none. Of a field that comes again the last counts."""
    try:
        return _decode(data)
    except ValueError as error:
        return str(error)


def _decode(data: bytes) -> Entry:
    known: dict[str, object] = {}
    fields = _fields(data)
    for number, value in fields.items():
        if number in _NUMBERS:
            known[_NUMBERS[number]] = _number(value)
    if 1 in fields:
        known["timestamp_ns"] = _timestamp(_bytes(fields[1]))
    for payload in _HEADERS_AND_TRAILER:
        if payload in fields:
            known |= _payload(payload, _fields(_bytes(fields[payload])))
    if 8 in fields:
        message = _fields(_bytes(fields[8]))
        known |= {"length": _number(message.get(1, 0)) & 0xFFFFFFFF, "data": _bytes(message.get(2, b""))}
    known["truncated"] = bool(_number(fields.get(10, 0)))
    if 11 in fields:
        peer = _fields(_bytes(fields[11]))
        known |= {"peer_address": _text(peer.get(2, b"")), "peer_port": _number(peer.get(3, 0)) & 0xFFFF}
    return Entry(**{"call_id": 0, "type": 0} | known)  # type: ignore[arg-type]


def _payload(number: int, fields: dict[int, int | bytes]) -> dict[str, object]:
    """Client header, server header or trailer."""
    told: dict[str, object] = {}
    if 1 in fields:
        entries = (_fields(_bytes(entry)) for entry in _repeated(_bytes(fields[1])))
        told["metadata"] = tuple((_bytes(entry.get(1, b"")), _bytes(entry.get(2, b""))) for entry in entries)
    if number == _CLIENT_HEADER:
        told |= {"method": _text(fields.get(2, b"")), "authority": _text(fields.get(3, b""))}
    if number == _TRAILER:
        told |= {"status": _number(fields.get(2, 0)) & 0xFFFFFFFF, "status_message": _text(fields.get(3, b""))}
    return told


def encode(entry: Entry) -> bytes:
    """The entry as a logger writes it, without its length."""
    seconds, nanos = divmod(entry.timestamp_ns, _NS)
    metadata = b"".join(_field(1, _field(1, name) + _field(2, value)) for name, value in entry.metadata)
    payloads = {
        EntryType.CLIENT_HEADER: (
            _CLIENT_HEADER,
            _field(1, metadata) + _field(2, entry.method.encode()) + _field(3, entry.authority.encode()),
        ),
        EntryType.SERVER_HEADER: (7, _field(1, metadata)),
        EntryType.CLIENT_MESSAGE: (8, _field(1, entry.length) + _field(2, entry.data)),
        EntryType.SERVER_MESSAGE: (8, _field(1, entry.length) + _field(2, entry.data)),
        EntryType.SERVER_TRAILER: (
            _TRAILER,
            _field(1, metadata) + _field(2, entry.status) + _field(3, entry.status_message.encode()),
        ),
    }
    parts = [_field(1, _field(1, seconds & _U64) + _field(2, nanos)), _field(2, entry.call_id)]
    parts += [_field(3, entry.sequence), _field(4, int(entry.type)), _field(5, entry.logger)]
    if entry.type in payloads:
        parts.append(_field(*payloads[EntryType(entry.type)]))
    parts.append(_field(10, int(entry.truncated)))
    if entry.peer_address:
        peer_type = 2 if ":" in entry.peer_address else 1
        peer = _field(1, peer_type) + _field(2, entry.peer_address.encode()) + _field(3, entry.peer_port)
        parts.append(_field(11, peer))
    return b"".join(parts)


# Calls


class Calls:
    """The calls of a log, from its entries in their order. Raises StateVersionError for another version's snapshot."""

    def __init__(self, snapshot: str | None = None) -> None:
        #: Whether they have ended.
        self._calls: OrderedDict[int, bool] = OrderedDict()
        if snapshot is not None:
            state = json.loads(snapshot)
            if state.get("version") != CALLS_VERSION:
                raise StateVersionError(what="gRPC log", found=state.get("version"), expected=CALLS_VERSION)
            self._calls.update(state["calls"])

    def receive(self, entry: Entry, place: Place, byte_start: int, byte_end: int) -> list[grpc.Event]:
        """What an entry says, which stands at these bytes of its file."""
        direction = _DIRECTIONS.get(entry.type)
        if direction is None:
            told = (byte_start, byte_end, entry.call_id, b"", f"an entry of type {entry.type}")
            return [Undecodable(Direction.CLIENT, place, *told)]
        events: list[grpc.Event] = []
        where = (direction, place, byte_start, byte_end, entry.call_id)
        metadata = grpc.metadata_of(entry.metadata)
        known = entry.call_id in self._calls
        if entry.type == EntryType.CLIENT_HEADER:
            authority = ((":authority", entry.authority),) if entry.authority else ()
            events.append(grpc.Opened(*where, entry.method or None, False, (*authority, *metadata)))
        elif not known:
            events.append(grpc.Opened(*where, None, False, ()))
        self._note(entry.call_id, place, events)
        match entry.type:
            case EntryType.SERVER_HEADER:
                events.append(grpc.Answered(*where, metadata))
            case EntryType.CLIENT_MESSAGE | EntryType.SERVER_MESSAGE:
                events.append(grpc.MessagePart(*where, entry.length, None, entry.data, True, True, _fault_of(entry)))
            case EntryType.CLIENT_HALF_CLOSE:
                events.append(grpc.HalfClosed(direction, place, byte_end, entry.call_id))
            case EntryType.SERVER_TRAILER:
                events.append(grpc.Trailers(*where, entry.status, entry.status_message, metadata))
                self._end(entry.call_id, place, events)
            case EntryType.CANCEL:
                events.append(grpc.Reset(*where, CANCEL))
                self._end(entry.call_id, place, events)
        return events

    def finish(self, place: Place) -> list[grpc.Event]:
        """The log has ended: calls that have not."""
        left = [number for number, ended in self._calls.items() if not ended]
        self._calls.clear()
        return [grpc.Closed(place, number, grpc.How.CAPTURE_END) for number in left]

    def _note(self, call_id: int, place: Place, events: list[grpc.Event]) -> None:
        self._calls[call_id] = self._calls.pop(call_id, False)
        if len(self._calls) > MAX_CALLS:
            oldest, ended = self._calls.popitem(last=False)
            if not ended:
                events.append(grpc.Closed(place, oldest, grpc.How.FORGOTTEN))

    def _end(self, call_id: int, place: Place, events: list[grpc.Event]) -> None:
        if not self._calls[call_id]:
            self._calls[call_id] = True
            events.append(grpc.Closed(place, call_id, grpc.How.ENDED))

    def snapshot(self) -> str:
        """The state as JSON: calls that are given it go on as these."""
        return json.dumps({"version": CALLS_VERSION, "calls": list(self._calls.items())}, separators=(",", ":"))


def _fault_of(entry: Entry) -> str | None:
    if entry.truncated or entry.length != len(entry.data):
        return f"the log has {len(entry.data)} of {entry.length} bytes"
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

# Protocol Buffers

_NUMBERS: Final = {2: "call_id", 3: "sequence", 4: "type", 5: "logger"}
_CLIENT_HEADER, _TRAILER = 6, 9
_HEADERS_AND_TRAILER: Final = (_CLIENT_HEADER, 7, _TRAILER)
#: First bytes that an entry may have.
_KEYS: Final = frozenset((0x0A, 0x10, 0x18, 0x20, 0x28, 0x32, 0x3A, 0x42, 0x4A, 0x50, 0x5A))
_FIXED_SIZES: Final = {1: 8, 5: 4}
_VARINT, _LENGTH_DELIMITED = 0, 2


def _pairs(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of every field. ValueError for what is none."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire_type = key & 7
        if wire_type == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if wire_type == _LENGTH_DELIMITED:
            size, at = _varint(data, at)
        elif wire_type in _FIXED_SIZES:
            size = _FIXED_SIZES[wire_type]
        else:
            raise ValueError(f"a field of wire type {wire_type} at byte {at}")
        if at + size > len(data):
            raise ValueError(f"a field of {size} bytes reaches beyond the end at byte {at}")
        yield key >> 3, data[at : at + size]
        at += size


def _fields(data: bytes) -> dict[int, int | bytes]:
    return dict(_pairs(data))


def _repeated(data: bytes) -> list[int | bytes]:
    return [value for number, value in _pairs(data) if number == 1]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for number, byte in enumerate(data[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            return value & _U64, at + number + 1
    raise ValueError(f"no varint ends after byte {at}")


def _number(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("bytes in place of a number")
    return value


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number in place of bytes")
    return value


def _text(value: int | bytes) -> str:
    return _bytes(value).decode("utf-8", "backslashreplace")


def _timestamp(data: bytes) -> int:
    fields = _fields(data)
    seconds = _number(fields.get(1, 0))
    return (seconds - (1 << 64) if seconds >> 63 else seconds) * _NS + (_number(fields.get(2, 0)) & 0x7FFFFFFF)


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _field(number: int, value: int | bytes) -> bytes:
    """A field, unless it has the default value."""
    if not value:
        return b""
    if isinstance(value, int):
        return _encode_varint(number << 3 | _VARINT) + _encode_varint(value)
    return _encode_varint(number << 3 | _LENGTH_DELIMITED) + _encode_varint(len(value)) + value
