"""Bytes that wait: behind a gap, or for bytes of the other side that they acknowledge."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from wirehouse_codecs.tcp.sequence_numbers import UNKNOWN, distance


class Needs(NamedTuple):
    """What bytes wait for: those of the other side that they acknowledge."""

    #: As sent, because the other side may be numbered later; -1 if there is nothing to wait for.
    acknowledgment: int = UNKNOWN
    #: How many bytes of the other side had been seen when the acknowledgment arrived.
    seen_bytes: int = 0

    def is_more(self, other: Needs) -> bool:
        """It waits for more than `other`."""
        known, least = self.acknowledgment, other.acknowledgment
        return known != UNKNOWN and (least == UNKNOWN or distance(known, least) > 0)


class Piece(NamedTuple):
    """Bytes that wait behind a gap, or for bytes of the other side."""

    start: int
    end: int
    data: bytes
    arrived_at_ns: int
    needs: Needs = Needs()
    #: The least that their sender had received of the other side, if its own acknowledgment says how much that was; -1
    #: if it doesn't.
    received: int = UNKNOWN


@dataclass(slots=True)
class Limits:
    """What waits up to some positions needs no more than what is given for them; both rise."""

    _each: list[tuple[int, Needs]] = field(default_factory=list)

    @classmethod
    def of(cls, pieces: Iterable[Piece]) -> Limits:
        """Those of all that waits."""
        limits = cls()
        for piece in pieces:
            limits.add(piece.start, piece.needs)
        return limits

    def at(self, start: int) -> Needs:
        """What the bytes from `start` on wait for, the first ones: no more than those behind them."""
        del self._each[: bisect_left(self._each, start, key=_limit_start)]
        return self._each[0][1]

    def add(self, start: int, needs: Needs) -> None:
        """What waits up to `start` needs no more than `needs`."""
        limits = self._each
        at = bisect_left(limits, start, key=_limit_start)
        if at < len(limits) and not limits[at][1].is_more(needs):
            return
        least = at
        while least and not needs.is_more(limits[least - 1][1]):
            least -= 1
        is_same = at < len(limits) and limits[at][0] == start
        limits[least : at + is_same] = [(start, needs)]


def _limit_start(limit: tuple[int, Needs]) -> int:
    return limit[0]
