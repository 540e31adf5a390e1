"""Which byte a sequence number is, and what acknowledgments say of it: `reassembly` has the theory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from wirehouse_codecs.tcp.endpoints import is_within
from wirehouse_codecs.tcp.pieces import Needs
from wirehouse_codecs.tcp.sequence_numbers import (
    ACKNOWLEDGED_BYTES,
    SEQUENCE_MASK,
    UNKNOWN,
    WINDOW_BYTES,
    distance,
)
from wirehouse_codecs.tcp.side_state import SideState

#: So many changes of what a side had received are kept, and so many stretches that came late.
MOST_RECEIPTS: Final = 4096


class Numbering(SideState):
    """The numbering of a side's bytes, what of them the other side has, and what of the other side it had."""

    __slots__ = ()

    # Where they begin

    def begin(self, sequence: int) -> None:
        """Number the bytes from that with `sequence` on, unless they are numbered by more than an assumption."""
        if self.expected == UNKNOWN or (self.assumed and self._is_untouched):
            if self.assumed:
                self._renumber(distance(sequence, self.expected))
            self.expected = sequence & SEQUENCE_MASK
            self.initial = (sequence - 1) & SEQUENCE_MASK
        self.assumed = False

    def begin_answered(self, acknowledgment: int) -> None:
        """An answer to its SYN acknowledges so much."""
        self.only_answered = self.only_answered or self.expected == UNKNOWN or (self.assumed and self._is_untouched)
        self.begin(acknowledgment)

    def begin_with_bytes(self, sequence: int, *, in_middle: bool) -> None:
        """The first bytes that were captured have `sequence`.

        Where the capture begins `in_middle`, bytes before them count if they are sent again, and they will be if the
        other side has acknowledged less. Otherwise bytes from the first one that it acknowledged are missing.
        """
        if in_middle and self.expected == UNKNOWN and 1 < self._sent_since_first(sequence) < WINDOW_BYTES:
            # A byte less may have been a keep-alive.
            self.begin(self._sent_from)
        if self.assumed and self._is_untouched:
            if in_middle:
                self.follow()
            ahead = distance(sequence, self.expected)
            self._opening = in_middle and 0 < ahead < WINDOW_BYTES
            self.assumed = not 0 <= ahead < WINDOW_BYTES
        self.may_lack_beginning = self.may_lack_beginning or self.expected == UNKNOWN or self.assumed
        self.begin(sequence)

    def begin_before(self, held: Sequence[tuple[int, int]], *, in_middle: bool) -> None:
        """Of the first bytes that were captured some lie before the others.

        Where the capture begins `in_middle`, those count that go on up to where the stream begins.
        """
        if self.expected != UNKNOWN and not self.assumed:
            return
        first = held[0][0] if self.expected == UNKNOWN else self.expected
        lowest = min(distance(held[0][0], first), 0)
        for start, size in sorted(((distance(sequence, first), size) for sequence, size in held), reverse=True):
            if start < lowest and (lowest <= start + size or (not in_middle and -start < WINDOW_BYTES)):
                lowest = start
        start = (first + lowest) & SEQUENCE_MASK
        if self.expected == UNKNOWN and 1 < self._sent_since_first(start) < WINDOW_BYTES:
            # As in `begin_with_bytes`.
            self.begin(self._sent_from)
        elif lowest < 0:
            self.may_lack_beginning = True
            self.begin(start)

    def begin_to_send(self, sequence: int) -> None:
        """In the middle, its first packet that was captured: what stands before `sequence` was sent before."""
        if self._sent_from == UNKNOWN:
            self._sent_from = sequence

    def begin_at_acknowledgment(self, acknowledgment: int) -> None:
        """If nothing else numbers the bytes, the least that the other side acknowledged does."""
        is_less = -WINDOW_BYTES < distance(acknowledgment, self.expected) < 0 and self._sent_from == UNKNOWN
        if self.expected == UNKNOWN or (is_less and self.assumed and self._is_untouched):
            self.begin(acknowledgment)
            self.assumed = True

    def follow(self) -> None:
        """What was sent and acknowledged before the first byte that was captured is no part of the stream."""
        if self.assumed and self._is_untouched:
            self._leave_out(min(self._acknowledged, self._sent_before(self._acknowledged)))

    def _sent_since_first(self, sequence: int) -> int:
        """How many bytes before `sequence` were sent after its first packet that was captured; 0 if there is none."""
        return 0 if self._sent_from == UNKNOWN else distance(sequence, self._sent_from)

    def _sent_before(self, most: int) -> int:
        """How many of the first `most` bytes were sent before its first packet was captured; all if none was."""
        if self._sent_from == UNKNOWN:
            return most
        return min(max(distance(self._sent_from, self.expected), 0), most)

    def announce(self, sequence: int) -> None:
        """A SYN says that the bytes begin at `sequence`. If another SYN differs and no byte came, both may hold.

        So may what the other side acknowledged, if it is none of the bytes that this SYN numbers.
        """
        is_counted = self.assumed and self._is_untouched and self._acknowledged
        if is_counted and not 0 <= distance(self.expected, sequence) < WINDOW_BYTES:
            self._other, self._other_assumed = sequence, False
            return
        self.begin(sequence)
        self.only_answered = False
        if self.has_begun and not self.may_lack_beginning:
            # It is an old one, or a copy.
            return
        self.may_lack_beginning = sequence != (self.initial + 1) & SEQUENCE_MASK
        ahead = distance(self.expected, sequence)
        if not self.next_byte and self.has_begun and 0 < ahead < WINDOW_BYTES:
            # What waits came before it, and was numbered by less.
            self._leave_out(-ahead)
            self.initial = (sequence - 1) & SEQUENCE_MASK
        if self._is_untouched and sequence != self.expected:
            self._other, self._other_assumed = sequence, False

    def _leave_out(self, size: int) -> None:
        """The first `size` bytes were sent before the capture began: those behind them are the first."""
        self._opening = False
        self.expected = (self.expected + size) & SEQUENCE_MASK
        self._renumber(size)
        self._reach -= size
        self._gap_end -= size
        if self.fin is not None:
            self.fin -= size
        self._waiting = [piece._replace(start=piece.start - size, end=piece.end - size) for piece in self._waiting]

    def _renumber(self, ahead: int) -> None:
        """Position 0 becomes that of the byte `ahead`; if that isn't credible, what was acknowledged says nothing."""
        is_near = abs(ahead) < WINDOW_BYTES
        for name in ("_acknowledged", "_claimed", "_confirmed", "_sent"):
            setattr(self, name, max(getattr(self, name) - ahead, 0) if is_near else 0)
        peer = self.peer
        if peer._receipts[-1][1]:
            # Of what was delivered nobody may have asked yet.
            peer._receipts.append((peer.next_byte, max(peer._receipts[-1][1] - ahead, 0) if is_near else 0))
        peer.noted_acknowledgment = UNKNOWN

    def select_numbering(self, sequence: int) -> bool:
        """Of two numberings the one nearer to `sequence`, of its bytes or acknowledged, holds, if that is credible.

        True if it isn't the one that held until now.
        """
        if self._other == UNKNOWN:
            return False
        nearer = min((self.expected, self._other), key=lambda first: abs(distance(sequence, first)))
        if abs(distance(sequence, nearer)) >= WINDOW_BYTES:
            return False
        is_other = nearer != self.expected
        if is_other:
            # What was acknowledged of the other numbers says nothing.
            self._renumber(WINDOW_BYTES)
            self.assumed = self.may_lack_beginning = self._other_assumed
        self.expected, self.initial, self._other = nearer, (nearer - 1) & SEQUENCE_MASK, UNKNOWN
        return is_other

    def select_by_own(self, sequence: int) -> bool:
        """As `select_numbering`. Bytes number a stream, too, if the next segment goes on behind them."""
        if self._is_untouched and sequence == self._stray:
            self._other, self._other_assumed = sequence, True
        return self.select_numbering(sequence)

    def began_after(self, sequence: int) -> bool:
        """`sequence` is the initial sequence number."""
        return self.initial == sequence & SEQUENCE_MASK

    def may_have_begun_at(self, sequence: int, *, within: int = WINDOW_BYTES) -> bool:
        """Its bytes are numbered from `sequence`, or from a little behind it; or its first packet stands there."""
        first = self._sent_from if self.expected == UNKNOWN else self.expected - self.next_byte
        return first != UNKNOWN and 0 <= distance(first, sequence) < within

    def is_answered_by(self, acknowledgment: int, *, may_have_data: bool = True) -> bool:
        """A SYN with this acknowledgment answers its own SYN, of which it may have taken data too (RFC 7413)."""
        taken = (acknowledgment - self.initial) & SEQUENCE_MASK
        most = max(self._reach, self.next_byte) * may_have_data + 1
        return self.initial != UNKNOWN and 0 < taken <= most

    # Where they stand

    def position(self, sequence: int) -> int | None:
        """Position in the stream of the byte with this sequence number, near what is expected; None before any is."""
        return None if self.expected == UNKNOWN else self.next_byte + distance(sequence, self.expected)

    def is_credible(self, sequence: int) -> bool:
        """`sequence` is near what is expected, or nothing is known to be."""
        return self.expected == UNKNOWN or self.assumed or self.is_near(sequence)

    def may_be_credible(self, sequence: int) -> bool:
        """`sequence` is credible by one of the numberings that its bytes may have."""
        is_by_other = self._other != UNKNOWN and abs(distance(sequence, self._other)) < WINDOW_BYTES
        return is_by_other or self.is_credible(sequence)

    def goes_on_from_stray(self, sequence: int) -> bool:
        """`sequence` stands where the last segment ended whose number wasn't credible."""
        return sequence == self._stray

    def is_near(self, sequence: int) -> bool:
        """`sequence` is near what is expected."""
        return abs(distance(sequence, self.expected)) < WINDOW_BYTES

    @property
    def sent(self) -> int:
        """The sequence number after the furthest that it is known to have sent; -1 while none is numbered."""
        if self.expected == UNKNOWN:
            return UNKNOWN
        return (self.expected + max(self._reach, self._acknowledged, self.next_byte) - self.next_byte) & SEQUENCE_MASK

    def may_end_at(self, sequence: int) -> bool:
        """A RST with `sequence` stands where its stream does: at the next byte, behind all of them, or behind its FIN.

        Where nothing was captured that says where that is, none does.
        """
        if self.expected == UNKNOWN:
            return self._sent_from == sequence
        end = self.sent
        if self.assumed:
            return sequence in (self.expected, end, self._sent_from)
        first = (self.expected + self._here_end - self.next_byte) & SEQUENCE_MASK
        return sequence in (first, end, *[(end + 1) & SEQUENCE_MASK] * (self.fin is not None))

    def lacks_before(self, sequence: int) -> bool:
        """Bytes before `sequence`, which is near, are neither delivered nor waiting."""
        if self.expected == UNKNOWN or not self.is_near(sequence):
            return False
        return self._here_end < self.next_byte + distance(sequence, self.expected)

    @property
    def _here_end(self) -> int:
        """The position behind the bytes that are there without a gap; some may wait for the other side only."""
        end = self.next_byte
        for piece in self._waiting:
            if piece.start == end:
                end = piece.end
        return end

    # What was acknowledged of them

    @property
    def fin_is_refuted(self) -> bool:
        """The other side acknowledged more than its bytes before the FIN and the FIN itself."""
        return self.fin is not None and self._acknowledged > self.fin + 1

    def has_acknowledged(self, sequence: int) -> bool:
        """The other side has more of it than the bytes before `sequence` and a FIN."""
        if self.expected == UNKNOWN or not self.is_near(sequence):
            return False
        return self.next_byte + distance(sequence, self.expected) < self._acknowledged - 1

    def note_acknowledgment(self, acknowledgment: int) -> None:
        """The other side has everything before `acknowledgment`; if nothing else does, that numbers the bytes."""
        if self.expected == UNKNOWN and 1 < self._sent_since_first(acknowledgment) <= ACKNOWLEDGED_BYTES:
            # As in `begin_with_bytes`.
            self.begin(self._sent_from)
        if self.expected == UNKNOWN:
            self.begin_at_acknowledgment(acknowledgment)
            return
        ahead = (acknowledgment - self.expected) & SEQUENCE_MASK
        is_old = -ahead & SEQUENCE_MASK < WINDOW_BYTES
        self._acknowledged_since_gap = self._gap_since_ns is not None and (
            self._acknowledged_since_gap or is_old or ahead < WINDOW_BYTES
        )
        if ahead >= WINDOW_BYTES:
            self.begin_at_acknowledgment(acknowledgment)
            is_less = is_old and acknowledgment != self.expected and not self.assumed
            if self._is_untouched and (is_less or abs(distance(acknowledgment, self.expected)) >= WINDOW_BYTES):
                # The answer to a SYN that counts may be one that wasn't captured.
                self._other, self._other_assumed = acknowledgment, True
            return
        end = self.next_byte + ahead
        believed = end
        if end > max(self._reach, self.next_byte, self._acknowledged) + ACKNOWLEDGED_BYTES:
            believed, self._claimed = min(self._claimed, end), end
            if self._is_untouched and not (self._is_acknowledged or self.assumed):
                # Its SYN may be an old one: nobody sends so much before the first acknowledgment.
                self._other, self._other_assumed = acknowledgment, True
        else:
            self._is_acknowledged = True
        self._confirmed = max(self._confirmed, min(self._acknowledged, believed))
        self._acknowledged = max(self._acknowledged, believed)

    def note_sent(self, sequence: int) -> None:
        """A segment without bytes has `sequence`: its sender had sent all bytes before it, captured or not."""
        at = self.position(sequence)
        if at is not None and at <= max(self._reach, self.next_byte, self._acknowledged) + ACKNOWLEDGED_BYTES:
            self._sent = max(self._sent, at)

    def note_reset(self, sequence: int) -> None:
        """A RST is believed: its side had sent all before `sequence`. The last byte may have been a FIN."""
        if self.fin is not None or UNKNOWN in (self.expected, sequence) or not self.is_near(sequence):
            return
        if self.assumed and self._is_untouched:
            # Some may have been sent before the capture began.
            self._opening = self._sent_from != UNKNOWN
        self._reach = max(self._reach, self.next_byte + distance(sequence, self.expected) - 1)

    def needs(self, acknowledgment: int) -> Needs | None:
        """What data of the other side with this acknowledgment wait for; None if nobody sends it.

        It is far from what is expected, or stands before the first byte, which is known.
        """
        at = self.position(acknowledgment)
        is_before = at is not None and at < 0 and not (self.assumed or self.may_lack_beginning)
        is_near = self._other != UNKNOWN or self._opening or (self.is_credible(acknowledgment) and not is_before)
        return Needs(acknowledgment, self._seen_bytes) if is_near else None

    def needed(self, needs: Needs) -> int:
        """The position after the bytes that are waited for; 0 if none are, or nobody knows which."""
        if needs.acknowledgment == UNKNOWN or self.expected == UNKNOWN:
            return 0
        ahead = distance(needs.acknowledgment, self.expected)
        return self.next_byte + ahead if abs(ahead) < WINDOW_BYTES else 0

    def received(self, acknowledgment: int) -> int:
        """How many of its bytes the other side had received that acknowledges this; -1 if it isn't credible."""
        at = self.position(acknowledgment)
        return UNKNOWN if at is None or at > max(self._reach, self.next_byte, self._acknowledged) + 1 else at

    # What their sender had received of the other side

    def peer_received(self, byte_end: int) -> int:
        """So many bytes of the other side its host had received when it sent the byte before `byte_end`.

        At most, unless the byte `is_late`: then it may have received more.

        The application may have read fewer, and may have written its own bytes earlier. 0 if nothing is known. Answers
        for bytes since the last `forget_received`.
        """
        at = bisect_left(self._receipts, (byte_end,)) - 1
        return 0 if at < 0 else self._receipts[at][1]

    def is_late(self, byte_end: int) -> bool:
        """Nobody knows when the byte before `byte_end` was sent first: it came late, or one before it did."""
        return is_within(self._late, byte_end)

    @property
    def late(self) -> Sequence[tuple[int, int]]:
        """Where the bytes stand that are late, since the last `forget_received`."""
        return self._late

    def note_stall(self, *, is_full: bool) -> None:
        """What follows may have waited: the other host takes no more (`is_full`), or bytes came again."""
        if (self.next_byte, is_full) not in self._stalls[-2:]:
            self._stalls.append((self.next_byte, is_full))

    def note_full(self, theirs: Numbering) -> None:
        """Its host takes no more of the other side's bytes. One that never had a window doesn't mean it."""
        self.zero_windows += 1
        if self.zero_windows < self.packets:
            theirs.note_stall(is_full=True)

    def has_stalled(self, byte_start: int, *, is_full: bool) -> bool:
        """The bytes from `byte_start` on may have waited for a window, or for bytes that came again. See `is_late`."""
        stall = (byte_start, is_full)
        at = bisect_left(self._stalls, stall)
        return self._stalls[at : at + 1] == [stall]

    def note_received(self, start: int, received: int) -> None:
        """The bytes from `start` on were sent after `received` bytes of the other side came in."""
        if received > self._receipts[-1][1]:
            self._receipts.append((start, received))

    def note_acknowledged(self, start: int, acknowledgment: int, theirs: Numbering) -> None:
        """The bytes from `start` on acknowledge what was delivered of the other side, or less."""
        self.noted_acknowledgment = acknowledgment
        behind = (theirs.expected - acknowledgment) & SEQUENCE_MASK
        if theirs.next_byte - behind > self._receipts[-1][1]:
            self._receipts.append((start, theirs.next_byte - behind))

    def forget_received(self, byte_end: int) -> None:
        """Nobody asks what was known when the bytes before `byte_end` were sent, only of those behind.

        Of these too no more than MOST_RECEIPTS are kept: a message may never end.
        """
        for kept in (self._receipts, self._late, self._stalls):
            del kept[: max(bisect_left(kept, (byte_end,)) - 1, len(kept) - MOST_RECEIPTS, 0)]

    def knew_end_of(self, theirs: Numbering) -> bool:
        """Its FIN acknowledges the other side's."""
        known = self.fin_acknowledges != UNKNOWN and theirs.fin is not None
        return known and theirs.position(self.fin_acknowledges - 1) == theirs.fin

    def received_at_end(self, theirs: Numbering) -> int | None:
        """How many bytes of the other side its host had received when it sent its FIN, at most; None: nobody knows."""
        return None if self.fin_acknowledges == UNKNOWN else theirs.position(self.fin_acknowledges)
