"""Routed messages of Ockam: addresses, routes, and the two envelopes in which they travel over TCP.

Until June 2024 a frame was a 16-bit length and a routed message in BARE, of version 1, or 2 with a tracing context.
Since July 2024 each side sends one byte 01 first, and a frame is a 32-bit length and a CBOR array. The payload in
both is a `BasePayload` in BARE.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from wirehouse_codecs.core.errors import WirehouseError
from wirehouse_codecs.ockam.wire import bare
from wirehouse_codecs.ockam.wire.bare import (
    DATA,
    STRING,
    UINT,
    BeyondLimit,
    Cursor,
    Data,
    List,
    Malformed,
    Optional,
    Struct,
)

#: What each side sends before its first frame of CBOR.
OPENING: Final = b"\x01"
#: Hops of one route that are read; real routes have a few.
MOST_HOPS: Final = 64
MOST_ADDRESS_BYTES: Final = 4096
#: Address types (Ockam's register).
LOCAL: Final = 0
TCP: Final = 1


class Address(NamedTuple):
    """One hop of a route."""

    type: int
    value: bytes

    @property
    def name(self) -> str:
        """The value as text, as a name of the same bytes reads: it stands as it was sent if it is UTF-8.

        Bytes that aren't are escapes (`\\xff`). Two addresses never read alike: in a text with such bytes, or that
        reads like one with escapes, backslashes are doubled.
        """
        if b"\\x" not in self.value and b"\\\\" not in self.value:
            try:
                return self.value.decode()
            except UnicodeDecodeError:
                pass
        return self.value.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")

    @property
    def text(self) -> str:
        """Type and value: `0#stream`."""
        return f"{self.type}#{self.name}"


Route = tuple[Address, ...]


def local(*names: str) -> Route:
    """A route of local addresses."""
    return tuple(Address(LOCAL, name.encode()) for name in names)


def route_text(route: Route) -> str:
    """The hops joined: `0#hop=>0#stream`."""
    return "=>".join(address.text for address in route)


@dataclass(frozen=True, slots=True)
class Routed:
    """A routed message."""

    #: None: CBOR, which has none.
    version: int | None
    onward_route: Route
    return_route: Route
    payload: bytes
    tracing_context: str | None = None
    #: Whether every uint, tag and length is as short as can be.
    canonical: bool = field(default=True, compare=False)


class Envelope(Enum):
    """How routed messages are framed and written on a connection; the value is the dialect's name."""

    BARE16 = "bare16"
    CBOR32 = "cbor32"

    @property
    def length_bytes(self) -> int:
        """The width of the big-endian length before each message."""
        return 2 if self is Envelope.BARE16 else 4

    @property
    def max_message_bytes(self) -> int:
        """The largest length that may be announced."""
        return (1 << 16) - 1 if self is Envelope.BARE16 else 16 << 20


class EncodeError(WirehouseError):
    """A routed message that can't be written: our own misuse, nothing that a capture can cause."""

    template = "routed message in {envelope}: {reason}"


class _Header(NamedTuple):
    """A routed message up to its payload."""

    version: int | None
    onward_route: Route
    return_route: Route
    payload_bytes: int
    #: Whether a tracing context follows the payload.
    has_context: bool


# BARE

_ADDRESS = Struct(Address, (("type", UINT), ("value", Data(MOST_ADDRESS_BYTES))))
_ROUTE = List(_ADDRESS, MOST_HOPS)
_CONTEXT = Optional(STRING)
_VERSION_1 = (("version", UINT), ("onward_route", _ROUTE), ("return_route", _ROUTE), ("payload", DATA))
_VERSIONS = {1: Struct(Routed, _VERSION_1), 2: Struct(Routed, (*_VERSION_1, ("tracing_context", _CONTEXT)))}


def _encode_bare(routed: Routed) -> bytes:
    schema = _VERSIONS.get(routed.version or 0)
    if schema is None:
        raise ValueError(f"there is no version {routed.version}")
    if routed.version == 1 and routed.tracing_context is not None:
        raise ValueError("version 1 has no tracing context")
    return bare.encode(schema, routed)


def _bare_header(cursor: Cursor) -> _Header:
    begin = cursor.at
    version = cursor.uint("version")
    if version not in _VERSIONS:
        raise Malformed("version", begin, f"there is no version {version}")
    onward, back = _ROUTE.read(cursor, "onward_route"), _ROUTE.read(cursor, "return_route")
    return _Header(version, onward, back, cursor.uint("payload"), version > 1)


# CBOR (RFC 8949): only what the envelope is made of, of definite length

_UNSIGNED, _BYTES, _TEXT, _ARRAY = 0, 2, 3, 4
_NULL: Final = 0xF6
_MAJOR_NAMES = {_UNSIGNED: "an unsigned number", _BYTES: "bytes", _TEXT: "text", _ARRAY: "an array"}


def _put_head(out: bytearray, major: int, argument: int) -> None:
    if 0 <= argument < 24:
        out.append(major << 5 | argument)
        return
    width = next((width for width in range(4) if 0 <= argument < 1 << (8 << width)), None)
    if width is None:
        raise ValueError(f"{argument} is no unsigned number of 64 bits")
    out.append(major << 5 | 24 + width)
    out += argument.to_bytes(1 << width, "big")


def _put_route(out: bytearray, route: Route) -> None:
    _put_head(out, _ARRAY, len(route))
    for address in route:
        _put_head(out, _ARRAY, 2)
        _put_head(out, _UNSIGNED, address.type)
        _put_head(out, _BYTES, len(address.value))
        out += address.value


def _encode_cbor(routed: Routed) -> bytes:
    if routed.version is not None:
        raise ValueError("CBOR has no version")
    out = bytearray()
    _put_head(out, _ARRAY, 4)
    _put_route(out, routed.onward_route)
    _put_route(out, routed.return_route)
    _put_head(out, _BYTES, len(routed.payload))
    out += routed.payload
    if routed.tracing_context is None:
        out.append(_NULL)
    else:
        text = routed.tracing_context.encode()
        _put_head(out, _TEXT, len(text))
        out += text
    return bytes(out)


def _head(cursor: Cursor, major: int, name: str) -> int:
    """The argument of the next item, which must be of `major`."""
    begin = cursor.at
    first = cursor.take(1, name)[0]
    if first >> 5 != major:
        raise Malformed(name, begin, f"{first:02x} doesn't begin {_MAJOR_NAMES[major]}")
    low = first & 31
    if low < 24:
        return low
    if low > 27:
        raise Malformed(name, begin, f"{first:02x} has no definite length")
    width = low - 24
    argument = int.from_bytes(cursor.take(1 << width, name), "big")
    if argument < (24 if width == 0 else 1 << (4 << width)):
        cursor.canonical = False
    return argument


def _cbor_route(cursor: Cursor, name: str) -> Route:
    begin = cursor.at
    count = _head(cursor, _ARRAY, name)
    if count > MOST_HOPS:
        raise BeyondLimit(name, begin, f"{count} of them, the limit is {MOST_HOPS}")
    return tuple([_cbor_address(cursor, name) for _ in range(count)])


def _cbor_address(cursor: Cursor, name: str) -> Address:
    begin = cursor.at
    parts = _head(cursor, _ARRAY, name)
    if parts != 2:
        raise Malformed(name, begin, f"an address of {parts} parts")
    kind = _head(cursor, _UNSIGNED, "type")
    begin = cursor.at
    size = _head(cursor, _BYTES, "value")
    if size > MOST_ADDRESS_BYTES:
        raise BeyondLimit("value", begin, f"{size} bytes, the limit is {MOST_ADDRESS_BYTES}")
    return Address(kind, cursor.take(size, "value"))


def _cbor_header(cursor: Cursor) -> _Header:
    begin = cursor.at
    parts = _head(cursor, _ARRAY, "message")
    if parts not in (3, 4):
        raise Malformed("message", begin, f"an array of {parts}")
    onward, back = _cbor_route(cursor, "onward_route"), _cbor_route(cursor, "return_route")
    return _Header(None, onward, back, _head(cursor, _BYTES, "payload"), parts == 4)


def _cbor_context(cursor: Cursor) -> str | None:
    if cursor.at < cursor.end and cursor.data[cursor.at] == _NULL:
        cursor.at += 1
        return None
    return cursor.text(_head(cursor, _TEXT, "tracing_context"), "tracing_context")


def _bare_context(cursor: Cursor) -> str | None:
    context: str | None = _CONTEXT.read(cursor, "tracing_context")
    return context


# Both

_ENCODERS: dict[Envelope, Callable[[Routed], bytes]] = {Envelope.BARE16: _encode_bare, Envelope.CBOR32: _encode_cbor}
_HEADERS: dict[Envelope, Callable[[Cursor], _Header]] = {Envelope.BARE16: _bare_header, Envelope.CBOR32: _cbor_header}
_CONTEXTS: dict[Envelope, Callable[[Cursor], str | None]] = {
    Envelope.BARE16: _bare_context,
    Envelope.CBOR32: _cbor_context,
}


def encode(routed: Routed, envelope: Envelope) -> bytes:
    """The message without its length. Raises EncodeError for a value that its field or the envelope can't have."""
    try:
        return _ENCODERS[envelope](routed)
    except (TypeError, ValueError, OverflowError) as error:
        raise EncodeError(envelope=envelope.value, reason=str(error)) from None


def frame(message: bytes, envelope: Envelope) -> bytes:
    """The message behind its length. Raises EncodeError when it is too long for the envelope."""
    if len(message) > envelope.max_message_bytes:
        reason = f"{len(message)} bytes, the limit is {envelope.max_message_bytes}"
        raise EncodeError(envelope=envelope.value, reason=reason)
    return len(message).to_bytes(envelope.length_bytes, "big") + message


def decode(data: bytes | bytearray, envelope: Envelope, begin: int = 0, end: int | None = None) -> Routed:
    """The routed message that all of `data` from `begin` to `end` is, without its length.

    Raises Malformed, whose offset counts from `begin`. The payload is copied only when all else is read, so that bytes
    that are none cost no more than their routes.
    """
    cursor = Cursor(data, begin, end)
    try:
        version, onward, back, payload_bytes, has_context = _HEADERS[envelope](cursor)
        payload_at = cursor.skip(payload_bytes, "payload")
        context = _CONTEXTS[envelope](cursor) if has_context else None
        cursor.finish()
    except Malformed as malformed:
        raise type(malformed)(malformed.name, malformed.offset - begin, malformed.reason) from None
    with memoryview(data) as view:
        payload = bytes(view[payload_at : payload_at + payload_bytes])
    return Routed(version, onward, back, payload, context, cursor.canonical)
