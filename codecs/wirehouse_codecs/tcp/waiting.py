"""The order of a side's bytes: they are held until their turn, delivered, and compared with copies.

Copies
------

- The first copy of a byte to arrive counts. Repeated bytes are compared with what waits and with the last
  COMPARED_BYTES that were delivered. One byte right before the next is a keep-alive (RFC 9293 section 3.8.4) and is
  not compared.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.tcp.events import Data, Event, OverlapDiffers
from wirehouse_codecs.tcp.numbering import Numbering
from wirehouse_codecs.tcp.sequence_numbers import SEQUENCE_MASK, UNKNOWN
from wirehouse_codecs.tcp.waiting_pieces import Needs, Piece

#: Delivered bytes that are kept to compare repeated ones with, per direction; as many as an unscaled window.
COMPARED_BYTES: Final = 1 << 16


class Waiting(Numbering):
    """The waiting bytes of a side, and how they are delivered."""

    __slots__ = ()

    # Delivery

    def deliver(self, data: bytes, place: Place) -> Data:
        """Deliver the next bytes of the stream."""
        start = self.next_byte
        size = len(data)
        self.assumed = self._opening = False
        self.next_byte = start + size
        self.expected = (self.expected + size) & SEQUENCE_MASK
        self._recent.append(data)
        self._recent_bytes += size
        if self._recent_bytes > 2 * COMPARED_BYTES:
            self._kept()
        return Data(self.direction, start, data, place)

    def deliver_stretch(self, data: memoryview) -> None:
        """Deliver the next bytes of the stream, those of several segments. Call `keep_bytes` before `data` changes."""
        size = len(data)
        self.assumed = self._opening = False
        self.next_byte += size
        self.expected = (self.expected + size) & SEQUENCE_MASK
        self._recent.append(data)
        self._recent_bytes += size
        least, enough = 0, COMPARED_BYTES
        while least < len(self._recent) - 1 and self._recent_bytes - len(self._recent[least]) >= enough:
            self._recent_bytes -= len(self._recent[least])
            least += 1
        del self._recent[:least]

    def keep_bytes(self) -> None:
        """Copy what is kept of stretches, so that it no longer needs them."""
        if any(isinstance(piece, memoryview) for piece in self._recent):
            self._kept()

    def _release(self, place: Place) -> list[Event]:
        """Deliver the bytes that need not wait any longer."""
        events: list[Event] = []
        peer = self.peer
        for piece in self._waiting:
            if piece.start != self.next_byte:
                break
            if piece.needs.acknowledgment != UNKNOWN and peer.is_awaited(peer.needed(piece.needs)):
                break
            events.append(self._deliver_piece(piece, place))
        del self._waiting[: len(events)]
        return events

    def _deliver_piece(self, piece: Piece, place: Place) -> Data:
        if piece.received != UNKNOWN:
            self.note_received(piece.start, max(self.peer.received(piece.needs.acknowledgment), piece.received))
        if piece.received == UNKNOWN or piece.arrived_at_ns < place.arrived_at_ns:
            goes_on = bool(self._late) and self._late[-1][1] == piece.start
            self._late.append((self._late.pop()[0] if goes_on else piece.start, piece.end))
        self._waiting_bytes -= len(piece.data)
        return self.deliver(piece.data, place)

    def release_answers(self, place: Place) -> list[Event]:
        """Deliver the next bytes, although they waited for the other side."""
        first = self._deliver_piece(self._waiting.pop(0), place)
        events = [first, *self._release(place)]
        self._time_gap(place)
        return events

    def _time_gap(self, place: Place) -> None:
        """Note since when the next gap is known: since the bytes behind it arrived, or since `place` if none wait."""
        self._gap_acknowledged = UNKNOWN if self._gap_acknowledged else 0
        if self._waiting:
            self._gap_since_ns, self._gap_end = self._waiting[0].arrived_at_ns, self._waiting[0].start
        else:
            self._gap_end = self._reach
            self._gap_since_ns = place.arrived_at_ns if self._reach > self.next_byte else None
            self._acknowledged_since_gap = self._acknowledged_since_gap and self._gap_since_ns is not None

    # Waiting bytes

    def _hold(self, start: int, data: bytes, place: Place, needs: Needs | None, received: int) -> list[OverlapDiffers]:
        """Add bytes to those that wait. Where some wait already, the earlier ones count."""
        end = start + len(data)
        first = bisect_right(self._waiting, start, key=_piece_end)
        last = bisect_left(self._waiting, end, key=_piece_start)
        events: list[OverlapDiffers] = []
        known = self._waiting[first:last]
        if needs is None:
            needs = self._waiting[first - 1].needs if first else Needs()
        fresh: list[Piece] = []
        at = start
        behind = self._waiting[last].needs if last < len(self._waiting) else Needs()
        for piece in known:
            low, high = max(start, piece.start), min(end, piece.end)
            events += self._compare(
                low, piece.data[low - piece.start : high - piece.start], data[low - start : high - start], place
            )
            if at < low:
                text, least = data[at - start : low - start], needs.at_most(piece.needs)
                fresh.append(Piece(at, low, text, place.arrived_at_ns, least, received))
            at = high
        if at < end:
            fresh.append(Piece(at, end, data[at - start :], place.arrived_at_ns, needs.at_most(behind), received))
        size = sum(len(piece.data) for piece in fresh)
        self.retransmitted_bytes += len(data) - size
        if not fresh:
            return events
        if start < self._reach:
            self.out_of_order += 1
        pieces = sorted(known + fresh)
        self._waiting[first:last] = pieces
        self._waiting_bytes += size
        self._agree(first - 2, first + len(pieces) - 2)
        return events

    def _agree(self, first: int, last: int) -> None:
        """Let no piece from `first` to `last` wait for more than both of the two pieces behind it."""
        waiting = self._waiting
        for at in range(min(last, len(waiting) - 3), max(first, 0) - 1, -1):
            piece, one, other = waiting[at : at + 3]
            most = one.needs if one.needs.is_more(other.needs) else other.needs
            if piece.needs.is_more(most):
                waiting[at] = piece._replace(needs=most)

    @property
    def _holds_too_much(self) -> bool:
        options = self.options
        return self._waiting_bytes > options.max_waiting_bytes or len(self._waiting) > options.max_waiting_segments

    # Copies

    def _kept(self) -> bytes:
        """The last delivered bytes, which are compared with copies; earlier ones are forgotten."""
        joined = b"".join(self._recent)
        kept = joined[max(len(joined) - COMPARED_BYTES, 0) :]
        self._recent, self._recent_bytes = [kept], len(kept)
        return kept

    def _compare(self, start: int, earlier: bytes, later: bytes, place: Place) -> list[OverlapDiffers]:
        """The differing range of two copies of the same bytes."""
        if earlier == later:
            return []
        bits = int.from_bytes(earlier, "big") ^ int.from_bytes(later, "big")
        end = start + len(later)
        first = end - (bits.bit_length() + 7) // 8
        last = end - ((bits & -bits).bit_length() - 1) // 8
        return [OverlapDiffers(self.direction, first, last, place)]


def _piece_start(piece: Piece) -> int:
    return piece.start


def _piece_end(piece: Piece) -> int:
    return piece.end
