"""Segments that did not continue their side's stream.

They are kept for a while, because a later SYN may show that they belong to the next connection.

- Data may be captured shortly before the SYN of its connection, or before the answer to a SYN that wasn't captured.
  Then it moves to that connection, if the one before has not delivered it. What stands before the next byte there may
  be a retransmission. So it moves only if it can't be one, and lies near the SYN, or if it goes on from the SYN without
  a gap. A known copy stays.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from wirehouse_codecs.tcp.events import Event, TcpSegment
from wirehouse_codecs.tcp.ignored import Why


class Fate(StrEnum):
    """The outcome of a segment that did not go on where its side ended."""

    #: It waits behind a gap, or did.
    WAITS = "waits"
    #: All of its bytes stand before the next one, and are the same as those that were delivered there.
    COPY = "copy"
    #: They stand before the next one, and differ from what was delivered.
    DIFFERS = "differs"
    #: They stand before the next one, where nothing is known to compare all of them with.
    BEFORE = "before"
    #: They stand before the next one, some of them where a hole was reported.
    GIVEN_UP = "given_up"
    #: It was ignored, because its number is not credible.
    STRAY = "stray"
    #: It was ignored, because the connection or the side had ended; it brought new bytes, or repeated known ones.
    LATE = "late"
    REPEATED = "repeated"
    #: Its first bytes stand before the FIN of its side, and were taken; those behind it were ignored.
    BEYOND = "beyond"

    @property
    def why(self) -> Why | None:
        """The reason why its bytes are ignored; None if nothing is lost by that."""
        return _REASONS.get(self)


_REASONS = {
    Fate.DIFFERS: Why.BEFORE,
    Fate.BEFORE: Why.BEFORE,
    Fate.GIVEN_UP: Why.GIVEN_UP,
    Fate.STRAY: Why.FAR,
    Fate.LATE: Why.AFTER,
    Fate.BEYOND: Why.AFTER,
}


class Taken(NamedTuple):
    """What a segment led to when it was taken: events, and its fate if it did not go on where its side ended."""

    events: list[Event]
    fate: Fate = Fate.WAITS
    #: Number of its bytes that are no part of the stream. The others wait, count as repeated, or were delivered.
    ignored: int = 0


class Apart(NamedTuple):
    """A segment that did not go on where its side ended."""

    segment: TcpSegment
    fate: Fate
    #: `Taken.ignored` of the segment.
    ignored: int = 0
