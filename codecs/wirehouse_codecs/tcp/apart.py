"""Segments that did not go on where their side ended: a SYN may say that they are of the next connection."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from wirehouse_codecs.tcp.events import TcpSegment
from wirehouse_codecs.tcp.ignored import Why


class Fate(StrEnum):
    """What became of a segment that did not go on where its side ended."""

    #: It waits behind a gap, or did.
    WAITS = "waits"
    #: It was ignored, as its number is not credible.
    STRAY = "stray"
    #: It was ignored, as the connection had ended; it brought new bytes, or repeated what was known.
    LATE = "late"
    REPEATED = "repeated"

    @property
    def why(self) -> Why | None:
        """For what reason its bytes are ignored; None if nothing is lost by that."""
        return {Fate.STRAY: Why.FAR, Fate.LATE: Why.AFTER}.get(self)


class Apart(NamedTuple):
    """A segment that did not go on where its side ended."""

    segment: TcpSegment
    fate: Fate
