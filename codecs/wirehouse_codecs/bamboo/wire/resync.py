"""Finds the next packet of bymux after missing bytes.

A position counts as a packet if two Writes in a row from there, among packets for the streams of the channels, contain
whole packets of these channels. So peers that split packets into several Writes are not found again. If bytes are
missing within a Write, all later Writes are known. Then `Writes` searches only the packets of its channel.

Any bytes may look like overlapping Writes with the same content. So each position is read only once, and positions that
lead to each other are one `_Run`, which is followed only once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from wirehouse_codecs.bamboo.setup import Channel
from wirehouse_codecs.bamboo.wire import bymux_packets
from wirehouse_codecs.bamboo.wire.encoding import Received, packet_at
from wirehouse_codecs.bamboo.wire.lipmaa import broken_range
from wirehouse_codecs.bamboo.wire.messages import Propose

#: Bytes of a Write in which packets are looked for.
MOST_CONTENT_BYTES: Final = 1 << 14
#: Writes that hold whole packets, after which a place is believed.
_BELIEVED: Final = 2
#: Packets among which they have to be.
_MOST_PACKETS: Final = 16
#: Number of bytes in which nothing begins after which they, and what is known of them, are dropped.
_MOST_PASSED_BYTES: Final = 1 << 15
#: The header of a Write to a stream.
_WRITE: Final = re.compile(rb"[\x20-\x2f]")


class Search:
    """Looks for packets in bytes of one direction, which come piece by piece. Sans-IO."""

    def __init__(self) -> None:
        self._data = bytearray()
        #: The first place where packets may begin.
        self._at = 0
        self._forget()

    def _forget(self) -> None:
        self._headers: dict[int, bymux_packets.Read] = {}
        self._contents = {channel: _Contents(channel) for channel in Channel}

    @property
    def state(self) -> bytes:
        """The last bytes, in which packets may begin."""
        return bytes(self._data[self._at :])

    @classmethod
    def from_state(cls, held: bytes) -> Search:
        """What goes on looking for packets in `held`."""
        search = cls()
        search._data += held
        return search

    def take(self, data: bytes, channels: Mapping[int, Channel]) -> bytes | None:
        """All bytes from the first place on where packets surely begin; None: none is found yet."""
        self._data += data
        while (write := _WRITE.search(self._data, self._at)) is not None:
            self._at = write.start()
            believed = self._believed(self._at, channels)
            if believed is not False:
                break
            self._at += 1
        else:
            self._at = len(self._data)
            believed = None
        if believed:
            return self.state
        if self._at > _MOST_PASSED_BYTES:
            del self._data[: self._at]
            self._at = 0
            self._forget()
        return None

    def _believed(self, at: int, channels: Mapping[int, Channel]) -> bool | None:
        """Whether packets begin at `at`; None: more bytes are needed."""
        writes = 0
        for _ in range(_MOST_PACKETS):
            read = self._header(at)
            if read is None:
                return None
            packet, at = read.packet, read.byte_end
            if packet is None or read.wide or packet.stream_id is None or packet.stream_id not in channels:
                return False
            if packet.type is not bymux_packets.Type.WRITE:
                continue
            if not 0 < packet.content_bytes <= MOST_CONTENT_BYTES:
                return False
            content, at = at, at + packet.content_bytes
            filled = self._contents[channels[packet.stream_id]].fill(self._data, content, at)
            if not filled:
                return filled
            writes += 1
            if writes == _BELIEVED:
                return True
        return False

    def _header(self, at: int) -> bymux_packets.Read | None:
        read = self._headers.get(at)
        if read is None and at < len(self._data):
            read = bymux_packets.read_at(self._data, at)
            if read is not None:
                self._headers[at] = read
        return read


class Held(NamedTuple):
    """The content of a Write, as far as it came."""

    byte_start: int
    byte_end: int
    data: bytearray


@dataclass(slots=True)
class Writes:
    """Looks for packets of a channel where Writes are known but not which packets they begin with. Sans-IO.

    Believed are two Writes of it in a row that hold whole packets.
    """

    channel: Channel
    #: Whole ones that hold whole packets, and the one that is under way.
    held: list[Held] = field(default_factory=list)

    def begin(self, byte_start: int, byte_end: int) -> list[Held]:
        """The content of a Write follows; those that are passed over by it."""
        if byte_end - byte_start > MOST_CONTENT_BYTES:
            return [*self.drop(), Held(byte_start, byte_end, bytearray())]
        if byte_end > byte_start:
            self.held.append(Held(byte_start, byte_end, bytearray()))
        return []

    def take(self, data: bytes) -> tuple[list[Held], bool]:
        """Bytes of a Write: Writes that are given back, and whether they are believed or passed over."""
        if not self.held or self.held[-1].byte_start + len(self.held[-1].data) == self.held[-1].byte_end:
            return [], False
        last = self.held[-1]
        last.data.extend(data)
        if last.byte_start + len(last.data) < last.byte_end:
            return [], False
        if not _Contents(self.channel).fill(last.data, 0, len(last.data)):
            return self.drop(), False
        return (self.drop(), True) if len(self.held) == _BELIEVED else ([], False)

    def drop(self) -> list[Held]:
        """No packets are looked for in those that are held."""
        dropped, self.held = self.held, []
        return dropped


class _Contents:
    """Packets of a channel by the places where they begin, if they do there.

    A run is the places that follow one another, until one of another run or where no packet begins.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        #: The run of a place; and by run: where it goes on, which is in a run too, or None if it doesn't.
        self._runs: dict[int, int] = {}
        self._next: list[int | None] = []

    def fill(self, data: bytearray, at: int, end: int) -> bool | None:
        """Whether whole packets fill the bytes from `at` to `end`; None: more bytes are needed."""
        while at <= end:
            run = self._runs.setdefault(at, len(self._next))
            if run == len(self._next):
                self._next.append(at)
            if self._runs.get(end) == run:
                return True if end <= len(data) else None
            last = self._next[run]
            if last is None:
                return False
            at = last
            if at < end and self._runs[at] == run:
                received = packet_at(self._channel, data, at) if at < len(data) else None
                if received is None:
                    return None if end > len(data) else False
                if _is_none(received):
                    self._next[run] = None
                    return False
                at = self._next[run] = received.byte_end
                self._runs.setdefault(at, run)
        return False


def _is_none(received: Received) -> bool:
    """Whether bytes that are read as a packet are rather something else."""
    packet = received.packet
    numbers = isinstance(packet, Propose) and (packet.start, packet.lower_info, packet.end, packet.upper_info)
    return received.rule is not None or bool(numbers and broken_range(*numbers))
