"""One side of a connection: what it sent is taken, ignored or kept for later, and carried to the next window.

- A FIN is none if bytes behind it were captured, and the other side acknowledges more than it: then they are taken.
- What is ignored is counted at once. `Side.take_ignored` returns why and where it begins: for bytes that a SYN may
  still claim only when none came within `hole_wait_ns`. So no note is written that the next window would take back.
"""

from __future__ import annotations

from typing import NamedTuple

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.core.snapshots import carried_fields
from wirehouse_codecs.tcp.apart import Apart, Fate, Taken
from wirehouse_codecs.tcp.events import Event, OverlapDiffers
from wirehouse_codecs.tcp.holes import Holes
from wirehouse_codecs.tcp.ignored import REASONS, Ignored, Why
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_codecs.tcp.sequence_numbers import SEQUENCE_MASK, UNKNOWN, distance
from wirehouse_codecs.tcp.side_state import CarriedSide
from wirehouse_codecs.tcp.waiting_pieces import Needs


class _Repeated(NamedTuple):
    """Bytes from before the next one."""

    differ: list[OverlapDiffers]
    #: The fate of their segment, and how many of them are ignored; None if the segment has other bytes too.
    fate: Fate | None = None
    ignored: int = 0


class Side(Holes):
    """One side of a connection: the counters of a table row, and the reassembly of the stream that it sends."""

    __slots__ = ()

    def take(
        self, sequence: int, payload: bytes, size: int, fin: bool, place: Place, needs: Needs | None, received: int
    ) -> Taken:
        """Take a segment with `size` bytes from `sequence` on, of which `payload` was captured.

        If `needs` is None, the bytes wait for what those before them wait for. `received` is that of `Piece`.
        """
        events: list[Event] = []
        if not self.is_credible(sequence):
            if sequence != self._stray or self.fin is not None:
                self._ignore_stray(sequence, len(payload), size + fin)
                return Taken([], Fate.STRAY, len(payload))
            self._reach = self.next_byte + ((sequence - self.expected) & SEQUENCE_MASK)
            events += self.report_holes(place)
        start = self.next_byte + distance(sequence, self.expected)
        end = start + size
        if size == 1 and not fin and end == (self._waiting[-1].end if self._waiting else self.next_byte):
            self.ignored_bytes += len(payload)
            return Taken(events)
        if fin and self.fin is None and end >= self.next_byte:
            self._end_at(end, place)
        fate, ignored = Fate.WAITS, 0
        if self.fin is not None and end > self.fin:
            payload, fate, ignored = self._cut(payload, self.fin - start, place)
            end = self.fin
        differ: list[OverlapDiffers] = []
        if start < self.next_byte:
            seen = self.next_byte - start
            repeated = self._repeated(start, payload[:seen], place, is_all=end <= self.next_byte)
            differ += repeated.differ
            if repeated.fate is not None:
                fate, ignored = repeated.fate, repeated.ignored + ignored
            start, payload = self.next_byte, payload[seen:]
        if payload:
            # Bytes that fill a gap or were acknowledged were probably sent before, when their sender knew less.
            is_first = start >= max(self._reach, self._acknowledged, self._sent)
            differ += self._hold(start, payload, place, needs, received if is_first else UNKNOWN)
        if differ:
            self.overlaps_differ += 1
            events.append(differ[0]._replace(byte_end=differ[-1].byte_end))
        # The snap length may have cut the payload: the rest is a gap.
        self._reach = max(self._reach, end)
        before = self.next_byte
        events += self._release(place)
        if self._reach <= self.next_byte:
            self._gap_since_ns, self._acknowledged_since_gap, self._gap_acknowledged = None, False, 0
        elif self._gap_since_ns is None or self.next_byte > before:
            self._gap_since_ns, self._gap_end = place.arrived_at_ns, self._reach
            self._gap_acknowledged = UNKNOWN if self._gap_acknowledged else 0
        return Taken(events, fate, ignored)

    def drop_fin(self) -> None:
        """Drop the FIN, which was garbled or is none of this connection: the stream goes on behind it."""
        self.fin, self.fin_acknowledges = None, UNKNOWN

    def _end_at(self, fin: int, place: Place) -> None:
        """Note the FIN; what waits behind it is ignored."""
        self.fin = fin
        self._reach, self._gap_end = min(self._reach, fin), min(self._gap_end, fin)
        while self._waiting and self._waiting[-1].end > fin:
            piece = self._waiting.pop()
            data = piece.data[: max(fin - piece.start, 0)]
            self.ignored_bytes += len(piece.data) - len(data)
            self.ignore(Why.AFTER, len(piece.data) - len(data), place)
            self._waiting_bytes -= len(piece.data) - len(data)
            if data:
                self._waiting.append(piece._replace(end=fin, data=data))

    def _cut(self, payload: bytes, size: int, place: Place) -> tuple[bytes, Fate, int]:
        """The first `size` bytes of a segment that goes beyond the FIN, its fate, and how many bytes are ignored."""
        kept = payload[: max(size, 0)]
        ignored = len(payload) - len(kept)
        self.ignored_bytes += ignored
        if kept and self.ended:
            # The fate will be that of the kept bytes, which repeat others.
            self.ignore(Why.AFTER, ignored, place)
        return kept, Fate.BEYOND if kept else Fate.LATE, ignored

    def _repeated(self, start: int, data: bytes, place: Place, *, is_all: bool) -> _Repeated:
        """Take bytes from before `next_byte`; `is_all` if their segment has no others, except ignored ones."""
        self.note_stall(is_full=False)
        before, given_up = min(max(-start, 0), len(data)), self._given_up(start, start + len(data))
        ignored = before + given_up
        self.ignored_bytes += ignored
        self.retransmitted_bytes += len(data) - ignored
        kept = self._kept()
        skipped = max(self.next_byte - len(kept) - start, 0)
        data, start = data[skipped:], start + skipped
        first = start - (self.next_byte - len(kept))
        differ = self._compare(start, kept[first : first + len(data)], data, place)
        if is_all:
            fate = Fate.DIFFERS if differ else Fate.BEFORE if skipped else Fate.COPY
            return _Repeated(differ, Fate.GIVEN_UP if given_up > before else fate, ignored)
        self.ignore(Why.BEFORE, before, place)
        self.ignore(Why.GIVEN_UP, given_up, place)
        return _Repeated(differ)

    def gives_away(self, apart: Apart, place: Place) -> bool:
        """Give a segment to the connection that begins at `place`, unless its bytes count here. True if it did."""
        segment = apart.segment
        if apart.fate is Fate.BEYOND:
            return False
        if apart.fate is not Fate.WAITS:
            self.strays -= apart.fate is Fate.STRAY
            self.ignored_bytes -= apart.ignored
            self.retransmitted_bytes -= len(segment.payload) - apart.ignored
            return True
        if not self.is_credible(segment.sequence):
            # Its bytes were delivered.
            return False
        start = self.next_byte + distance(segment.sequence, self.expected)
        inside = [
            piece for piece in self._waiting if start <= piece.start and piece.end <= start + len(segment.payload)
        ]
        if sum(len(piece.data) for piece in inside) < len(segment.payload):
            return False
        self._waiting = [piece for piece in self._waiting if piece not in inside]
        self._waiting_bytes -= len(segment.payload)
        self._reach = max([self.next_byte, *(piece.end for piece in self._waiting)])
        self._time_gap(place)
        return True

    def finish(self, place: Place) -> list[Event]:
        """Give up all gaps, and what was only acknowledged: no more bytes are taken."""
        if self.fin is None:
            self._reach = max(self._reach, self._acknowledged - 1)
        events = self.report_holes(place)
        self._recent, self._recent_bytes = [], 0
        return events

    # Ignored bytes

    def ignore(self, why: Why, size: int, place: Place) -> None:
        """Note that bytes are ignored, unless bytes of this reason were reported."""
        if size and not self._reported & REASONS[why]:
            known = self.unreported.get(why, Ignored(self.direction, why, 0, place))
            self.unreported[why] = known._replace(size=known.size + size)

    def take_ignored(self) -> list[Ignored]:
        """Take the ignored bytes whose reasons were not reported before."""
        ignored = [self.unreported[why] for why in Why if why in self.unreported]
        self._reported |= sum(REASONS[why] for why in self.unreported)
        self.unreported = {}
        return ignored

    def ignore_late(self, sequence: int, payload: bytes) -> bool:
        """Ignore `payload`: the connection has ended. Returns whether some of its bytes were not seen before."""
        self.ignored_bytes += len(payload)
        if payload and not self.is_near(sequence):
            self._stray = (sequence + len(payload)) & SEQUENCE_MASK
        at = self.position(sequence)
        end = self.next_byte if self.fin is None else self.fin
        if at is None or at < 0 or at + len(payload) > end:
            return True
        return self._given_up(at, at + len(payload)) > 0

    def _ignore_stray(self, sequence: int, captured: int, size: int) -> None:
        self.strays += 1
        if size and self._is_untouched and self._other == UNKNOWN:
            # The SYN that counts may be one that wasn't captured.
            self._other, self._other_assumed = sequence, True
        self.ignored_bytes += captured
        if size:
            self._stray = (sequence + size) & SEQUENCE_MASK

    # Carried state

    def settle(self) -> None:
        """Prepare what is carried: equal sides give equal texts."""
        self._reach, self._acknowledged = max(self._reach, self.next_byte), max(self._acknowledged, self.next_byte)
        self._confirmed, self._sent = max(self._confirmed, self.next_byte), max(self._sent, self.next_byte)
        if self._gap_since_ns is None:
            self._gap_end = 0
        self._kept()
        self.unreported = dict(sorted(self.unreported.items()))

    @classmethod
    def restored(cls, state: CarriedSide, options: TcpOptions) -> Side:
        """The side that was carried as `state`."""
        side = cls(**carried_fields(CarriedSide, state), options=options)
        side._waiting_bytes = sum(len(piece.data) for piece in side._waiting)
        side._recent_bytes = sum(map(len, side._recent))
        return side
