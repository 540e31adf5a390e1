"""Packets of bymux as values and as bytes (bymux specification).

A packet is a header byte, the id of a stream and an amount. The header gives the width of both. In a Write, `amount`
bytes of the stream follow. `Reader` cuts the bytes of one direction into packets. It passes the content of a Write on
as it comes, so it holds nothing but an unfinished header.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple


class Type(IntEnum):
    """The three most significant bits of a header."""

    CREDIT = 0
    WRITE = 1
    PING = 2
    PONG = 3
    CLOSE = 4
    STOP_READ = 5


@dataclass(frozen=True, slots=True)
class Packet:
    """A packet. A Write is without its content. Widths are in bytes, None: as narrow as the number allows."""

    type: Type
    #: None: a global packet, which is about stream creation or about the connection.
    stream_id: int | None = None
    #: The credit, or the number of bytes in a Write. In a global Write: the id of the new stream.
    amount: int | None = None
    id_width: int | None = None
    amount_width: int | None = None

    @property
    def creates(self) -> bool:
        """Whether it creates the stream `amount`."""
        return self.type is Type.WRITE and self.stream_id is None

    @property
    def content_bytes(self) -> int:
        """How many bytes of a stream follow the packet."""
        return self.amount or 0 if self.type is Type.WRITE and self.stream_id is not None else 0


_GLOBAL: Final = 0x10


_WITH_AMOUNT: Final = (Type.CREDIT, Type.WRITE)


def encode(packet: Packet, content: bytes = b"") -> bytes:
    """The bytes of `packet`; a Write takes `content`.

    ValueError: a number doesn't fit its width, a number is missing or superfluous, or the amount of a Write isn't the
    size of `content`.
    """
    if (packet.amount is not None) != (packet.type in _WITH_AMOUNT) or packet.content_bytes != len(content):
        raise ValueError(f"{packet.type.name} of amount {packet.amount} with {len(content)} bytes")
    id_code, stream_id = _integer(packet.stream_id, packet.id_width)
    amount_code, amount = _integer(packet.amount, packet.amount_width)
    whole = _GLOBAL if packet.stream_id is None else 0
    return bytes([packet.type << 5 | whole | id_code << 2 | amount_code]) + stream_id + amount + content


def write(stream_id: int, content: bytes) -> bytes:
    """A Write of `content`."""
    return encode(Packet(Type.WRITE, stream_id, len(content)), content)


def _integer(number: int | None, width: int | None) -> tuple[int, bytes]:
    if number is None:
        return 0, b""
    width = _narrowest(number) if width is None else width
    if width not in _WIDTHS or number < 0 or number >> 8 * width:
        raise ValueError(f"{number} can't be written in {width} bytes")
    return _WIDTHS.index(width), number.to_bytes(width, "big")


_WIDTHS: Final = (1, 2, 4, 8)


def _narrowest(number: int) -> int:
    return next((width for width in _WIDTHS if not number >> 8 * width), _WIDTHS[-1])


class Read(NamedTuple):
    """A packet cut from the bytes of one direction, or an invalid header."""

    #: Where it begins and ends in the bytes of the direction. A Write includes its content.
    byte_start: int
    byte_end: int
    #: None: its type is unassigned, so nothing after it can be read.
    packet: Packet | None
    #: Whether the id or the amount is wider than necessary.
    wide: bool = False


class Content(NamedTuple):
    """Bytes of a Write. A Write may be passed on in any number of pieces."""

    stream_id: int
    byte_start: int
    data: bytes


@dataclass(slots=True)
class Reader:
    """Cuts one direction into packets. Sans-IO."""

    #: Where the unfinished header begins, else the position of the next byte.
    at: int = 0
    #: The bytes of an incomplete header.
    pending: bytes = b""
    content_left: int = 0
    stream_id: int = 0
    #: Whether a header was invalid, so nothing after it is read.
    lost: bool = False
    #: Whether all packets from the first one on were read.
    is_whole: bool = True

    @property
    def unfinished(self) -> bool:
        """Whether the bytes end within a packet."""
        return bool(self.pending) or self.content_left > 0

    @property
    def place(self) -> tuple[int, bytes, int, int]:
        """Position and first bytes of the next header, how many bytes of a Write are missing, and its stream."""
        return self.at, self.pending, self.content_left, self.stream_id

    def go_on(self, size: int, header: bytes, content_left: int, stream_id: int | None) -> None:
        """Skip `size` bytes that the fast path has read. The rest is its `place`; no stream: it read no Write."""
        self.at, self.pending, self.content_left = self.at + size, header, content_left
        self.stream_id = self.stream_id if stream_id is None else stream_id

    def receive(self, data: bytes) -> list[Read | Content]:
        """The packets that `data` completes, and the contents that it brings, in order."""
        if self.pending:
            data, self.pending = self.pending + data, b""
        start, at = self.at, 0
        items: list[Read | Content] = []
        while at < len(data) and not self.lost:
            if self.content_left:
                piece = data[at : at + self.content_left]
                items.append(Content(self.stream_id, start + at, piece))
                self.content_left -= len(piece)
                at += len(piece)
                continue
            read = read_at(data, at, start)
            if read is None:
                self.pending = data[at:]
                break
            at = read.byte_end - start
            if read.packet is None:
                self.lost = True
            elif read.packet.content_bytes:
                self.content_left, self.stream_id = read.packet.content_bytes, read.packet.stream_id or 0
                read = read._replace(byte_end=read.byte_end + self.content_left)
            items.append(read)
        self.at = start + at
        return items

    def skip(self, size: int) -> bool:
        """Skip bytes that are missing. Returns False if not all of them belong to the current Write."""
        if self.lost or self.pending or not 0 < size <= self.content_left:
            return False
        self.at, self.content_left = self.at + size, self.content_left - size
        return True


def read_at(data: bytes | bytearray, at: int, start: int = 0) -> Read | None:
    """The packet at `at`, without content. None: it is incomplete. `start` is the position of `data`."""
    header = data[at]
    if header >> 5 >= len(Type):
        return Read(start + at, start + at + 1, None)
    kind = Type(header >> 5)
    stream_id = amount = id_width = amount_width = None
    wide = False
    end = at + 1
    if not header & _GLOBAL:
        id_width = _WIDTHS[header >> 2 & 3]
        end += id_width
        stream_id = int.from_bytes(data[end - id_width : end], "big")
        wide = id_width != _narrowest(stream_id)
    if kind in _WITH_AMOUNT:
        amount_width = _WIDTHS[header & 3]
        end += amount_width
        amount = int.from_bytes(data[end - amount_width : end], "big")
        wide = wide or amount_width != _narrowest(amount)
    if end > len(data):
        return None
    packet = Packet(kind, stream_id, amount, id_width, amount_width)
    return Read(start + at, start + end, packet, wide)
