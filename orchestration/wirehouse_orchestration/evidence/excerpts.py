"""Finds the bytes that a row is about in the packets of its connection, and writes these packets as a pcap file.

A `ByteRange` takes the landed packets of a connection (`landed_packets`) in order, and collects the bytes between
`byte_start` and `byte_end` of one direction and the packets that carried them. `write` makes a pcap file of packets.
Both are used by `wirehouse trace`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from wirehouse_codecs.core.errors import UsageError
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket, write_file
from wirehouse_orchestration.evidence.landed_packets import Carried, LandedPacket

#: Maximum number of packets that are listed.
MOST_LISTED: Final = 20
#: Times of pcap are 32 bits of seconds.
_PCAP_END_NS: Final = 2**32 * 10**9


class NoExcerptError(UsageError):
    """The packets of a row can't be written as a capture."""

    template = "no capture is written: {reason}"


class Span(NamedTuple):
    """Bytes of a direction's stream in a packet."""

    packet: LandedPacket
    byte_start: int
    byte_end: int
    #: Whether all of them had been read before.
    again: bool


@dataclass(slots=True)
class ByteRange:
    """A range of bytes in one direction of a connection. Iterating over `spans` fills the other attributes."""

    direction: str
    byte_start: int
    byte_end: int
    most_shown: int
    #: The first of the bytes, at most `most_shown`.
    shown: bytearray = field(default_factory=bytearray)
    #: How many of the bytes were captured.
    there: int = 0
    #: How many packets carried some.
    packets: int = 0
    #: The first of the spans.
    listed: list[Span] = field(default_factory=list)

    def read(self, spans: Iterable[Span]) -> None:
        """Iterate over the spans."""
        for _ in spans:
            pass

    def spans(
        self, carried: Iterable[Carried], reported_by: tuple[bytes | None, int | None], reported_at_ns: int
    ) -> Iterator[Span]:
        """The packets that carry some of the bytes, up to the record that caused the row.

        `told_by` are the capture and number of that record, or None if only the time `told_at_ns` caused the row.
        """
        reached, caused = 0, False
        for packet, start, pieces, next_bytes in carried:
            caused = (
                caused
                or packet.name == reported_by
                or (reported_by[0] is None and packet.place.arrived_at_ns > reported_at_ns)
            )
            for piece in pieces:
                if piece.direction == self.direction:
                    self._take(piece.byte_start, piece.data)
            mine = packet.segment.direction == self.direction
            span = self._span(packet, start, reached) if mine and start is not None else None
            if span is not None:
                yield span
            reached = next_bytes[self.direction]
            if caused and reached >= self.byte_end:
                return

    def _span(self, packet: LandedPacket, start: int, reached: int) -> Span | None:
        first = max(start, self.byte_start)
        last = min(start + len(packet.segment.payload), self.byte_end)
        if first >= last:
            return None
        span = Span(packet, first, last, again=last <= reached)
        self.packets += 1
        if len(self.listed) < MOST_LISTED:
            self.listed.append(span)
        return span

    def _take(self, start: int, data: bytes) -> None:
        """Record that bytes became readable."""
        piece = data[max(self.byte_start - start, 0) : max(self.byte_end - start, 0)]
        self.there += len(piece)
        self.shown += piece[: self.most_shown - len(self.shown)]


def write(packets: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write landed packets to a pcap file, which is complete or absent afterwards. Raises NoExcerptError."""
    packets = iter(packets)
    first = next(packets, None)
    if first is None:
        raise NoExcerptError(reason="the row has no packets")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}")
    try:
        captured = _captured(chain([first], packets), first["link_type"])
        write_file(captured, part, link_type=first["link_type"])
        os.replace(part, path)
    finally:
        with suppress(FileNotFoundError):
            part.unlink()


def _captured(packets: Iterable[Mapping[str, Any]], link_type: int) -> Iterator[CapturedPacket]:
    for packet in packets:
        if packet["data"] is None:
            raise NoExcerptError(reason="the record could not be read as a packet")
        if packet["link_type"] != link_type:
            kinds = f"{link_type} and {packet['link_type']}"
            raise NoExcerptError(reason=f"the packets have link types {kinds}, and a pcap file is of one")
        ts_ns = packet["ts_ns"]
        if ts_ns is None or not 0 <= ts_ns < _PCAP_END_NS:
            ts_ns = packet["arrived_at_ns"]
        yield CapturedPacket(ts_ns, packet["data"], packet["original_length"])
