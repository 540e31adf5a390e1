"""The rules by which a gap becomes a hole: nobody waits for its bytes any more, and they are passed over.

Gaps and holes
--------------

- A gap becomes a hole when nothing has moved its beginning for `hole_wait_ns`, when more waits behind it than the
  options allow, or when the connection ends. The first segment after that moment reports it, after its own bytes were
  taken. Once the receiver has acknowledged anything while there is a gap, time makes a hole only of what it
  acknowledged: what it doesn't acknowledge it lacks too. Of what it lacked first, the time begins when it acknowledges
  it: two taps may deliver the acknowledgment before the bytes.
- Bytes that were acknowledged and never seen are a hole when the connection ends. The last of them may have been a
  FIN that wasn't seen, so it isn't counted. If a side was not captured and the other side has sent its FIN, the last
  byte isn't counted either. In any other hole that is reported earlier it is counted, though the hole may be too long
  by a FIN. Otherwise each lost packet would leave a second hole of one byte.
- An acknowledgment of more than ACKNOWLEDGED_BYTES beyond what was seen is believed if another one of the same side
  acknowledges as much or more, and for no more than the smaller.

The order of the two directions
-------------------------------

- Data that acknowledges bytes which were not delivered waits for them, or for their hole: for `hole_wait_ns` at most,
  and among no more than the options allow. So an answer comes after its question. After the wait the gap is a hole,
  also if nothing waits behind it. An acknowledgment that stands alone is not believed if bytes before its end have
  come meanwhile, and none behind it: it is garbled, and no gap is a hole by it. At the end of the connection it is
  believed, as the bytes are missing in any case.
- Nobody waits for an acknowledgment that isn't credible, or for a side whose bytes aren't numbered. One byte after
  the last that was seen may be a FIN. It is waited for like others, once. If it doesn't come, it is no hole. Nobody
  waits for it if its side was not captured.
- Two taps have two clocks, and the packets of one side may all come before those of the other that they answer. So
  the first packet of a side numbers its bytes, if the other side acknowledges up to ACKNOWLEDGED_BYTES behind it. They
  are waited for.
- A host's acknowledgments rise, and a retransmission acknowledges more than the first copy did. So bytes that fill a
  gap wait for no more than those behind it. If bytes arrive in order, one acknowledgment that is less than those
  before it is garbled or late, and releases nothing. If two consecutive segments both acknowledge less than the one
  before them, that one waits only for the larger of these two acknowledgments. An acknowledgment that lies before the
  first byte is ignored, if a SYN or the other side says which byte is the first: then the bytes wait for what those
  before them wait for.
- Where both sides wait for each other nevertheless, what arrived later goes first (at the beginning, the client), and
  `Unordered` reports that nobody knows the order.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.events import Event, Hole, Unordered
from wirehouse_codecs.tcp.sequence_numbers import SEQUENCE_MASK, UNKNOWN
from wirehouse_codecs.tcp.waiting import Waiting

#: Maximum number of holes that are kept: bytes that come where one was reported count as ignored, not as repeated.
MOST_HOLES: Final = 64


class Holes(Waiting):
    """The holes of a side: when a gap is given up, and when bytes no longer wait for the other side."""

    __slots__ = ()

    def pass_acknowledged(self, place: Place) -> list[Event]:
        """Report what the other side acknowledged as a hole at once, because nothing of this side is captured.

        If the other side has sent its FIN, the last byte may be a FIN too and is left out.
        """
        self._reach = max(self._reach, self._acknowledged - (self.peer.fin is not None))
        return self.report_holes(place)

    def settle_opening(self, place: Place) -> list[Event]:
        """Begin the stream with the first bytes that are here, once the other side has all that were sent before."""
        if not self._opening or not self._waiting:
            return []
        before = self._sent_before(self._waiting[0].start)
        if self._acknowledged < before:
            return []
        self._leave_out(before)
        events = self._release(place)
        self._time_gap(place)
        return events

    def report_due_holes(self, place: Place) -> list[Event]:
        """Give up gaps that are old, except what the receiver lacks too, and gaps behind which too much waits."""
        events: list[Event] = []
        if self._gap_since_ns is None:
            return events
        self._time_acknowledged(place)
        while not self.answers_wait and (end := self._due_end(place)) > self.next_byte:
            known = self._before_answers(end)
            if known > self.next_byte:
                events += self._report_hole(place, known, known=True, over_limit=self._holds_too_much)
            if known < end:
                break
            self._time_acknowledged(place)
        return events

    def _time_acknowledged(self, place: Place) -> None:
        """Begin the time of the gap again when its receiver, which lacked it, acknowledges some of it."""
        if not self._acknowledged_since_gap or self._gap_acknowledged > 0:
            return
        if self._acknowledged <= self.next_byte:
            self._gap_acknowledged = UNKNOWN
        elif self._gap_acknowledged == UNKNOWN:
            self._gap_since_ns, self._gap_acknowledged = place.arrived_at_ns, self._acknowledged

    def _before_answers(self, end: int) -> int:
        """The position up to which the other side's next bytes acknowledge a gap that ends at `end`.

        These bytes come before the rest of the gap. If no such bytes wait, the position is `end`.
        """
        peer = self.peer
        if not peer.answers_wait:
            return end
        needed = self.needed(peer.next_piece.needs)
        return min(needed, end) if self.lacks(needed) else self.next_byte

    def _due_end(self, place: Place) -> int:
        """The position up to which the gap is given up now; 0 if it isn't."""
        if self._gap_since_ns is None:
            return 0
        if self._holds_too_much:
            return self._gap_end
        if place.arrived_at_ns - self._gap_since_ns < self.options.hole_wait_ns:
            return 0
        if not self._acknowledged_since_gap:
            return self._gap_end
        return min(self._gap_end, self._gap_acknowledged or self._acknowledged)

    def answers_are_due(self, place: Place) -> bool:
        """Whether the next bytes have waited long for the other side, or too much waits behind them."""
        waited_ns = place.arrived_at_ns - self._waiting[0].arrived_at_ns
        return waited_ns >= self.options.hole_wait_ns or self._holds_too_much

    def deliver_answers(self, theirs: Holes, place: Place) -> list[Event]:
        """Deliver the next bytes if they need not wait for the other side any more."""
        if not self.answers_wait or theirs.is_awaited(theirs.needed(self._waiting[0].needs)):
            return []
        return self.release_answers(place)

    def give_up(self, theirs: Holes, place: Place, *, ending: bool) -> list[Event]:
        """Deliver the next bytes, which have waited for the other side: pass over what it lacks."""
        needs = self._waiting[0].needs
        end = theirs.needed(needs)
        if theirs.fin is not None:
            end = min(end, theirs.fin)
        seen = end <= theirs.reach
        events: list[Event] = []
        # At the end of the connection, acknowledged bytes are missing in any case.
        is_believed = ending or end <= theirs.confirmed_bytes or theirs.seen_bytes == needs.seen_bytes
        if seen or (end <= theirs.acknowledged_bytes and is_believed):
            # The last byte, which nobody will see any more, may have been a FIN if nothing behind it was acknowledged.
            end -= ending and not seen and end == theirs.acknowledged_bytes
            events += theirs.pass_until(end, place, ending=ending)
        return events + self.release_answers(place)

    def pass_until(self, end: int, place: Place, *, ending: bool) -> list[Event]:
        """Pass over what is missing before `end`; if that is only the last byte, nobody waits for it any more."""
        if not (ending or self.lacks(end)):
            self._assumed_end = end
        events: list[Event] = []
        while self.next_byte < end != self._assumed_end and not self.answers_wait:
            events += self._report_hole(place, end, known=True)
        return events

    def answers_before(self, theirs: Holes, place: Place) -> list[Event]:
        """Deliver next bytes where both sides wait for each other: those of the side whose bytes arrived later.

        At the beginning the client's come first: it opened the connection to ask.
        """
        first = max(self, theirs, key=_waits_since_ns)
        if not (self.next_byte or theirs.next_byte):
            first = self if self.direction is Direction.CLIENT else theirs
        return [Unordered(place), *first.release_answers(place)]

    def report_next_hole(self, place: Place) -> list[Event]:
        """Give up the gap at the next byte, if there is one."""
        return self._report_hole(place) if self._reach > self.next_byte and not self.answers_wait else []

    def report_holes(self, place: Place) -> list[Event]:
        """Give up all gaps."""
        events: list[Event] = []
        while self._reach > self.next_byte:
            events += self.release_answers(place) if self.answers_wait else self._report_hole(place)
        return events

    def _given_up(self, start: int, end: int) -> int:
        """Number of these bytes that lie where a hole was reported."""
        first = bisect_left(self._holes, (start,))
        return sum(max(min(end, high) - max(start, low), 0) for low, high in self._holes[max(first - 1, 0) :])

    def _report_hole(self, place: Place, end: int = 0, *, known: bool = False, over_limit: bool = False) -> list[Event]:
        """Give up the gap at `next_byte`. It ends at the first waiting byte; if none waits, at `end` or further.

        A gap that is `known` up to `end` is passed over up to there: what lies behind is missing only now, and is a gap
        of its own.
        """
        start, until = self.next_byte, end
        end = self._waiting[0].start if self._waiting else max(self._reach, end)
        if known and start < until:
            end = min(end, until)
        if self._opening:
            before = self._sent_before(end)
            self._leave_out(before)
            if before == end:
                # Bytes of the rest of the gap may still come.
                self._opening = bool(self._waiting) and self._waiting[0].start > self.next_byte
                events: list[Event] = self._release(place)
                self._time_gap(place)
                return events
            end -= before
        self.next_byte = end
        self.expected = (self.expected + end - start) & SEQUENCE_MASK
        self.missing_bytes += end - start
        self._recent, self._recent_bytes = [], 0
        self._holes.append((start, end))
        del self._holes[:-MOST_HOLES]
        events = [Hole(self.direction, start, end, place, over_limit), *self._release(place)]
        self._time_gap(place)
        return events


def _waits_since_ns(side: Waiting) -> int:
    return side.next_piece.arrived_at_ns
