"""Compressed payloads of one side, packet by packet (Point-2-Point, Encodings, byte 9): what they stand for, and how
much of that is read and shown. The elements themselves are lzfoo.py."""

from __future__ import annotations

from typing import Final, NamedTuple

from wirehouse_codecs.bamboo.options import BambooOptions
from wirehouse_codecs.bamboo.wire import lzfoo
from wirehouse_codecs.bamboo.wire.lzfoo import Inflater
from wirehouse_codecs.bamboo.wire.messages import CompressedPayload, DataPacket

#: What a compressed packet stands for takes time: so many bytes of it, and so many for each of its own, are free. What
#: is more is limited for each side, in all its packets together, by the option `max_inflated_bytes`.
FREELY_INFLATED: Final = (4_096, 1_024)
#: Few bytes can stand for very many, so less is told: so many bytes, and so many for each of the packet's own.
MOST_TOLD: Final = (1_024, 32)
#: However many these are.
MOST_TOLD_BYTES: Final = 32 << 20


class Inflation(NamedTuple):
    """What comes of a packet of a compressed payload."""

    #: The rule that it breaks.
    rule: str | None = None
    #: The bytes that it stands for; None: not complete, or not known.
    data: bytes | None = None
    #: Those that are shown; else it is shown as it came.
    shown: bytes | None = None
    compressed: bytes | None = None
    #: Why it is not known what it stands for.
    unknown: str | None = None
    #: An offset in it is longer than it needs to be.
    wide: bool = False


_MORE_TO_COME: Final = Inflation()


class Inflating:
    """The compressed payloads of a side, in their order: what came of one that isn't complete, and what is free yet."""

    def __init__(self, options: BambooOptions) -> None:
        self._most = options.max_compressed_bytes
        #: The bytes of a packet that isn't complete.
        self.held = bytearray()
        #: Bytes that payloads may still be decompressed to, beyond those that are free.
        self.left = options.max_inflated_bytes

    def take(self, packet: CompressedPayload, inflater: Inflater) -> Inflation:
        """The next packet, or piece of one, whose history is that of `inflater`."""
        if not packet.at:
            self.held.clear()
        beyond = max(packet.size - _freely(packet, FREELY_INFLATED), 0)
        if packet.compressed_size > self._most or beyond > self.left:
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
        if inflated.rule is not None or packet.size > min(_freely(packet, MOST_TOLD), MOST_TOLD_BYTES):
            return Inflation(inflated.rule, inflated.data, None, compressed, wide=inflated.wide)
        return Inflation(None, inflated.data, inflated.data, wide=inflated.wide)


def not_read(packet: CompressedPayload) -> str:
    """That a packet isn't decompressed, in words."""
    return f"{packet.size} bytes of a payload are not decompressed"


def is_whole(packet: DataPacket) -> bool:
    """Whether it is a compressed payload, or the last piece of one."""
    return isinstance(packet, CompressedPayload) and packet.at + len(packet.data) == packet.compressed_size


def _freely(packet: CompressedPayload, most: tuple[int, int]) -> int:
    """So many bytes, and so many for each of the packet's own."""
    return most[0] + most[1] * packet.compressed_size
