"""What a gRPC reader reports of the calls of a connection, or of a log: events, their header fields as text.

`message` is the other direction: a message as a call sends it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.hiero.wire import compression
from wirehouse_codecs.hiero.wire.http2 import events as http2
from wirehouse_codecs.hiero.wire.spans import Undecodable
from wirehouse_codecs.tcp.endpoints import Direction

#: The prefix of a message: a flag, which shows whether it is compressed, and its length.
PREFIX_BYTES: Final = 5
#: Values of these don't leave here.
SECRET_NAMES: Final = frozenset(("authorization", "proxy-authorization", "cookie", "set-cookie"))
WITHHELD: Final = "(withheld)"

#: Names and values of header fields.
Metadata = tuple[tuple[str, str], ...]


class How(StrEnum):
    """How a call is no longer known."""

    ENDED = "ended"
    #: There were too many others.
    FORGOTTEN = "forgotten"
    #: Its connection ended.
    CLOSED = "closed"
    #: The capture did.
    CAPTURE_END = "capture_end"


class Opened(NamedTuple):
    """A call begins, or its capture does; in that case it comes again if its headers come after data of the server."""

    direction: Direction
    place: Place
    byte_start: int
    byte_end: int
    call: int
    path: str | None
    #: Whether the path is that of other calls.
    path_inferred: bool
    metadata: Metadata


class Answered(NamedTuple):
    """The server's headers."""

    direction: Direction
    place: Place
    byte_start: int
    byte_end: int
    call: int
    metadata: Metadata


class MessagePart(NamedTuple):
    """The next bytes of a message."""

    direction: Direction
    #: The place of the last of these bytes.
    place: Place
    #: Positions in the direction, from the first byte of the prefix to the last of these: frame headers and
    #: bytes of other calls may lie between.
    byte_start: int
    byte_end: int
    call: int
    #: The announced length, before inflating.
    length: int
    #: How it was compressed; None = it wasn't.
    encoding: str | None
    #: Inflated, unless there is a fault.
    data: bytes | memoryview
    first: bool
    last: bool
    #: Why the message isn't whole. Of a compressed one `data` is then what was sent.
    fault: str | None = None
    #: When its prefix had arrived; 0: with the rest.
    begun_ns: int = 0


class HalfClosed(NamedTuple):
    """One side has sent its last message."""

    direction: Direction
    place: Place
    byte_end: int
    call: int


class Trailers(NamedTuple):
    """The status that ends a call."""

    direction: Direction
    place: Place
    byte_start: int
    byte_end: int
    call: int
    #: None = there is none, or it wasn't read.
    status: int | None
    message: str
    metadata: Metadata


class Reset(NamedTuple):
    """One side ends the call at once; `code` is an error code of HTTP/2, 8 = cancelled, None = it wasn't captured."""

    direction: Direction
    place: Place
    byte_start: int
    byte_end: int
    call: int
    code: int | None


class Closed(NamedTuple):
    """Nothing more is reported of a call."""

    place: Place
    call: int
    how: How
    #: Who closed the connection, where that is known.
    by: Direction | None = None


class Missed(NamedTuple):
    """Messages of a call are missing, as a log shows."""

    place: Place
    call: int


Event = (
    Opened
    | Answered
    | MessagePart
    | HalfClosed
    | Trailers
    | Reset
    | Closed
    | Missed
    | http2.GoAway
    | http2.Lost
    | http2.Placed
    | Undecodable
)


def message(data: bytes, encoding: str | None = None) -> bytes:
    """A message as a call sends it. KeyError for an encoding that isn't known."""
    if encoding is not None:
        data = compression.compress(data, encoding)
    return bytes([encoding is not None]) + len(data).to_bytes(4, "big") + data


def metadata_of(fields: Iterable[tuple[bytes, bytes]]) -> Metadata:
    """Header fields as text; what is no UTF-8 stands as escapes."""
    return tuple(_text_of(name, value) for name, value in fields)


@lru_cache(256)
def _text_of(name: bytes, value: bytes) -> tuple[str, str]:
    """A field as text. A byte on the wire may stand for one of the dynamic table: all that it names share one text."""
    known = name.decode("utf-8", "backslashreplace")
    return known, WITHHELD if known.lower() in SECRET_NAMES else value.decode("utf-8", "backslashreplace")
