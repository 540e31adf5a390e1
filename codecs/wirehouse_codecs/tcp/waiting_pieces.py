"""Bytes that wait: behind a gap, or for bytes of the other side that they acknowledge."""

from __future__ import annotations

from typing import NamedTuple

from wirehouse_codecs.tcp.sequence_numbers import UNKNOWN, distance


class Needs(NamedTuple):
    """The bytes of the other side that bytes wait for, because they acknowledge them."""

    #: The acknowledgment as sent, because the other side may be numbered later; -1 if there is nothing to wait for.
    acknowledgment: int = UNKNOWN
    #: Number of bytes of the other side that had been seen when the acknowledgment arrived.
    seen_bytes: int = 0

    def is_more(self, other: Needs) -> bool:
        """Whether both acknowledge something, and this waits for more than `other`."""
        known, least = self.acknowledgment, other.acknowledgment
        return UNKNOWN not in (known, least) and distance(known, least) > 0

    def at_most(self, behind: Needs) -> Needs:
        """These needs, or those of the bytes `behind` if those wait for less."""
        return behind if self.is_more(behind) else self


class Piece(NamedTuple):
    """Bytes that wait behind a gap, or for bytes of the other side."""

    start: int
    end: int
    data: bytes
    arrived_at_ns: int
    needs: Needs = Needs()
    #: Lower bound of the peer's bytes that the sender had received; -1 if the segment's acknowledgment can't be used
    #: (late or repeated bytes).
    received: int = UNKNOWN
