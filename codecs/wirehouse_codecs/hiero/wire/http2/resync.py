"""Finds where frames of HTTP/2 begin where that isn't known: behind a hole, or in the middle of a connection.

A frame has no mark by which it is recognised. Three credible headers that lead to each other are believed (`CHAIN`).
Between the headers may be holes: the length of a frame that a snap length cut leads over what is missing, to where the
next header was captured. So bytes are held together with the holes between them (`Held`) while a chain in them is
undecided. A header that a hole cuts is none, and a length that leads into a hole leads nowhere.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.hiero.wire.http2.frames import (
    CREDIBLE,
    HEADER_BYTES,
    PREFACE,
    UPDATE_BYTES,
)
from wirehouse_codecs.hiero.wire.spans import Run, run_of
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.reassembly import Hole

#: Number of credible frame headers in a row that are believed. Frames between them are not longer than this.
CHAIN: Final = 3
CHAIN_FRAME_BYTES: Final = 1 << 16
#: Maximum number of holes between bytes that are held. A chain spans no more packets than that.
MOST_GAPS: Final = 256
#: Maximum number of bytes at which a chain is tried again at each hole.
MOST_TRIED: Final = 256
#: One of the SETTINGS.
_SETTING_BYTES: Final = 6


class Verdict(NamedTuple):
    """Whether frames begin somewhere."""

    #: None = more bytes have to be seen.
    believed: bool | None
    #: Position after the last byte that had to be looked at.
    seen: int


class Held(NamedTuple):
    """Bytes of one side, which holes part into stretches."""

    data: bytearray
    #: Where each stretch begins: in `data`, and in the stream.
    offsets: Sequence[int]
    positions: Sequence[int]

    @classmethod
    def of(cls, data: bytearray, start: int, gaps: Sequence[tuple[int, int]]) -> Held:
        """`data` begins at position `start`; `gaps` are the positions of the holes in it."""
        offsets, positions = [0], [start]
        for begin, end in gaps:
            offsets.append(offsets[-1] + begin - positions[-1])
            positions.append(end)
        return cls(data, offsets, positions)

    @property
    def end(self) -> int:
        """Position after the last byte, or the last hole."""
        return self.positions[-1] + len(self.data) - self.offsets[-1]

    def position_of(self, offset: int) -> int:
        """Position of the byte at `offset`."""
        stretch = self.stretch_of(offset)
        return self.positions[stretch] + offset - self.offsets[stretch]

    def stretch_of(self, offset: int) -> int:
        """Number of the stretch with the byte at `offset`."""
        return bisect_right(self.offsets, offset) - 1

    def end_of(self, stretch: int) -> int:
        """Where in `data` a stretch ends."""
        return self.offsets[stretch + 1] if stretch + 1 < len(self.offsets) else len(self.data)

    def first(self, begin: int) -> int | None:
        """The first byte of `data` from `begin` on at which a header is credible."""
        for stretch in range(self.stretch_of(begin), len(self.offsets)):
            found = CREDIBLE.search(self.data, max(begin, self.offsets[stretch]), self.end_of(stretch))
            if found is not None:
                return found.start()
        return None

    def parts(self, direction: Direction, begin: int, until: int, place: Place) -> Iterator[Run | Hole]:
        """The bytes from `begin` in `data` up to position `until`, and the holes between them."""
        for stretch in range(self.stretch_of(begin), len(self.offsets)):
            offset, position = self.offsets[stretch], self.positions[stretch]
            at = max(begin, offset)
            end = min(self.end_of(stretch), offset + until - position)
            if at < end:
                yield run_of(direction, position + at - offset, bytes(self.data[at:end]), place)
            if stretch + 1 < len(self.offsets):
                yield Hole(direction, position + end - offset, self.positions[stretch + 1], place)

    def chain(self, at: int, limit: int, *, final: bool = False, led_to: int = -1) -> Verdict:
        """Whether frames begin at byte `at` of `data`.

        A chain that ends with the bytes before a hole may be shorter. So may one that ends with all bytes, if it is
        `final` that no more come. To position `led_to` leads another frame.
        """
        stretch = self.stretch_of(at)
        end = self.end_of(stretch)
        is_last = stretch + 1 == len(self.offsets)
        ahead = self.positions[stretch] - self.offsets[stretch]
        if self.data.startswith(PREFACE[:HEADER_BYTES], at):
            needed = at + len(PREFACE)
            if end < needed:
                return Verdict(None, needed + ahead) if is_last else Verdict(False, self.positions[stretch + 1])
            return Verdict(self.data.startswith(PREFACE, at), needed + ahead)
        for number in range(at + ahead == led_to, CHAIN):
            needed = at + HEADER_BYTES
            if end < needed:
                ends_here = number > 0 and at == end
                if is_last:
                    return Verdict(True if final and ends_here else None, needed + ahead)
                return Verdict(ends_here, self.positions[stretch + 1])
            length = int.from_bytes(self.data[at : at + 3], "big")
            if length > limit or not CREDIBLE.match(self.data, at, end):
                return Verdict(False, needed + ahead)
            at = needed + length
            while at > end and not is_last:
                missing = self.positions[stretch + 1] - (end + ahead)
                if at < end + missing:
                    return Verdict(False, self.positions[stretch + 1])
                stretch, at, ahead = stretch + 1, at - missing, ahead + missing
                end, is_last = self.end_of(stretch), stretch + 1 == len(self.offsets)
        return Verdict(True, needed + ahead)


def may_fill_opening(missing: int) -> bool:
    """Whether SETTINGS, which a client must send first, and at most a WINDOW_UPDATE fill `missing` bytes."""
    settings = missing - HEADER_BYTES
    return any(left >= 0 and not left % _SETTING_BYTES for left in (settings, settings - UPDATE_BYTES))
