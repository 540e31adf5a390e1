"""Decompresses the compressed payloads of one side, packet by packet (Point-2-Point, Encodings, byte 9).

It limits how much is decompressed and how much is reported. The elements themselves are read by `lzfoo.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from wirehouse_codecs.bamboo.options import BambooOptions
from wirehouse_codecs.bamboo.wire import lzfoo
from wirehouse_codecs.bamboo.wire.lzfoo import Inflater
from wirehouse_codecs.bamboo.wire.messages import CompressedPayload, DataPacket

#: Decompression takes time. These bytes are free: a number for each packet, and a number for each compressed byte. The
#: option `max_inflated_bytes` limits the rest of all packets of a side.
FREELY_INFLATED: Final = (4_096, 1_024)
#: Few bytes can stand for very many. So the reported bytes are limited too: for each packet, and for each compressed
#: byte.
MOST_REPORTED: Final = (1_024, 32)
#: The limit for any packet.
MOST_REPORTED_BYTES: Final = 32 << 20


class Inflation(NamedTuple):
    """The result of decompressing a packet."""

    #: The rule that it breaks.
    rule: str | None = None
    #: The decompressed bytes. None: the packet is incomplete, or they are unknown.
    data: bytes | None = None
    #: The bytes to report. None: the compressed bytes are reported.
    shown: bytes | None = None
    compressed: bytes | None = None
    #: Why the decompressed bytes are unknown.
    unknown: str | None = None
    #: Whether an offset in it is longer than it needs to be.
    wide: bool = False


_MORE_TO_COME: Final = Inflation()


@dataclass(slots=True)
class Inflating:
    """The compressed payloads of a side: the bytes of an incomplete packet, and how much may still be decompressed."""

    #: The largest compressed size of a packet.
    max_compressed_bytes: int
    #: Bytes that payloads may still be decompressed to, beyond those that are free.
    left: int
    #: The bytes of an incomplete packet.
    held: bytearray = field(default_factory=bytearray)

    @classmethod
    def begin(cls, options: BambooOptions) -> Inflating:
        """Before the first packet."""
        return cls(options.max_compressed_bytes, options.max_inflated_bytes)

    def take(self, packet: CompressedPayload, inflater: Inflater) -> Inflation:
        """Take the next packet, or piece of one. `inflater` has the history."""
        if not packet.at:
            self.held.clear()
        beyond = max(packet.size - _freely(packet, FREELY_INFLATED), 0)
        if packet.compressed_size > self.max_compressed_bytes or beyond > self.left:
            if not is_whole(packet):
                return Inflation(compressed=packet.data)
            inflater.forget()
            reason = f"{packet.compressed_size} bytes, or the {packet.size} that they stand for, are too many"
            return Inflation(compressed=packet.data, unknown=reason)
        self.held += packet.data
        if not is_whole(packet):
            return _MORE_TO_COME
        compressed = bytes(self.held)
        inflated = inflater.inflate(compressed, packet.size)
        self.held.clear()
        self.left -= beyond
        if inflated.rule == lzfoo.HISTORY_UNKNOWN:
            return Inflation(compressed=compressed, unknown=not_read(packet))
        if inflated.rule is not None or packet.size > min(_freely(packet, MOST_REPORTED), MOST_REPORTED_BYTES):
            return Inflation(inflated.rule, inflated.data, None, compressed, wide=inflated.wide)
        return Inflation(None, inflated.data, inflated.data, wide=inflated.wide)


def not_read(packet: CompressedPayload) -> str:
    """A sentence: the packet is not decompressed."""
    return f"{packet.size} bytes of a payload are not decompressed"


def is_whole(packet: DataPacket) -> bool:
    """Whether it is a compressed payload, or the last piece of one."""
    return isinstance(packet, CompressedPayload) and packet.at + len(packet.data) == packet.compressed_size


def _freely(packet: CompressedPayload, most: tuple[int, int]) -> int:
    """Number of bytes that a payload may have in any case: a constant, and some for each compressed byte."""
    return most[0] + most[1] * packet.compressed_size
