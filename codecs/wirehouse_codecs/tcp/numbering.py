"""The numbering of a side's bytes: which byte of its stream a sequence number means.

Where SYNs, acknowledgments and first bytes disagree, it chooses between two numberings. It keeps how far the other side
acknowledged the bytes. It also keeps how much of the other side the sender had received when it sent them. The theory
is in `reassembly`.

Where the first byte is
-----------------------

- Bytes are numbered from the first after SYN. Two SYNs of one side may differ (a server may have lost its first
  answer). Then the other side's acknowledgment, or the first byte, selects the one that holds. If the SYN that holds
  wasn't captured, an acknowledgment near the first bytes, or a segment that goes on behind them, says so. Then these
  bytes, which were ignored as strays, are taken after all. A SYN that is captured behind bytes of its side is an old
  one. So is an answer more than ACKNOWLEDGED_BYTES below what the client acknowledges first.
- An answer to a SYN that was not captured numbers the bytes from what it acknowledges. That SYN may have carried bytes
  (RFC 7413), so its side may lack its beginning.
- If a side's SYN was not captured, the first acknowledgment of the other side numbers its bytes. That is an
  assumption: a SYN or the first bytes of the side itself override it.
- A side of which no packet was captured within `hole_wait_ns` is taken as not captured at all. What is acknowledged
  of it is a hole at once, before the bytes that acknowledge it. Until then it may come late, and is waited for. Time
  alone ends this wait, without another segment.
- What waits keeps the acknowledgment that it came with, and its position is computed when it is needed: the other side
  may be numbered later, or otherwise. For delivered bytes the positions are kept, and numbered again with that side.
- Where the capture begins in the middle, the first segments with bytes are held until the other side acknowledges: for
  `hole_wait_ns`, HELD_SEGMENTS and `max_waiting_bytes`, at most. If it has acknowledged less than where they begin, the
  stream begins at its acknowledgment, because the bytes between may be sent again. If they are not, they were sent
  before the capture began. That is no hole: the stream then begins with the first bytes that are there. What arrives
  from before its first byte is ignored.
- A SYN, or the answer to one, may arrive while such bytes are held. It numbers them, unless they stand before it. Then
  all of them count, and nothing was sent before the capture began: what is missing from the first byte on is a hole.
  `opened` stays `middle`, as it names the first packet. Bytes that were held wait for what they acknowledge, like all
  others.
- A segment is credible within WINDOW_BYTES of the byte that is expected. Another one is a stray and ignored, unless
  it goes on where the last stray ended. Then reading continues with this one, and all before it is a hole (its length
  is known modulo 4 GiB). So one garbled segment costs nothing, and after a loss of gigabytes the stream is read on.

What shows it
-------------

| evidence | overrides, before any byte came | sets |
|---|---|---|
| an acknowledgment (`begin_at_acknowledgment`) | a higher acknowledgment | `assumed` |
| the answer to its SYN (`begin_answered`) | an acknowledgment | `only_answered` |
| held bytes from before the first one (`begin_before`) | an acknowledgment behind them | `may_lack_beginning` |
| its first bytes (`begin_with_bytes`) | an acknowledgment that isn't near before them | `may_lack_beginning` |
| its first bytes, near behind an acknowledgment | nothing | `_opening`, in the middle |
| its SYN (`announce`) | an acknowledgment; also waiting bytes behind it | clears `only_answered` |

All but the first clear `assumed`. A SYN clears `may_lack_beginning` if it stands right before the first byte. If it is
far from what was acknowledged, or differs from another SYN, its number becomes `_other`. So does an acknowledgment, or
a stray, that disagrees before any byte came. `_other` lasts until an acknowledgment or bytes select one of both;
`_other_assumed` is what `assumed` becomes if it is selected. `_is_acknowledged` says that the other side confirmed the
number. `_sent_from` is its first captured packet, if the capture begins in the middle.

What a sender knew
------------------

- `peer_received` is how many bytes of the other side a host had received when it sent its bytes up to a position. The
  acknowledgment of the segment says so. It is an upper bound, except where `is_late`.
- Bytes are late if they waited for their place in the stream, or if nobody knows when they were sent first: they fill
  a gap, they were acknowledged before they were captured, or a segment without bytes stood behind them (its sequence
  number says that its side had sent everything before it). Bytes of the second kind keep the `peer_received` of the
  bytes before them, because a retransmission acknowledges more than the first sending.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from wirehouse_codecs.tcp.endpoints import is_within
from wirehouse_codecs.tcp.sequence_numbers import (
    ACKNOWLEDGED_BYTES,
    SEQUENCE_MASK,
    UNKNOWN,
    WINDOW_BYTES,
    distance,
)
from wirehouse_codecs.tcp.side_state import SideState
from wirehouse_codecs.tcp.waiting_pieces import Needs

#: Maximum number of entries that are kept of each: changes of what a side had received, late stretches, and stalls.
MOST_RECEIPTS: Final = 4096


class Numbering(SideState):
    """Numbers a side's bytes.

    Also knows what the peer acknowledged of them, and what the sender had received from the peer when it sent them.
    """

    __slots__ = ()

    # Where they begin

    def begin(self, sequence: int) -> None:
        """Give the first byte the number `sequence`, unless the bytes are numbered by more than an assumption."""
        if self.expected == UNKNOWN or (self.assumed and self._is_untouched):
            if self.assumed:
                self._renumber(distance(sequence, self.expected))
            self.expected = sequence & SEQUENCE_MASK
            self.initial = (sequence - 1) & SEQUENCE_MASK
        self.assumed = False

    def begin_answered(self, acknowledgment: int) -> None:
        """Number the bytes by the acknowledgment of an answer to the side's SYN."""
        self.only_answered = self.only_answered or self.expected == UNKNOWN or (self.assumed and self._is_untouched)
        self.begin(acknowledgment)

    def begin_with_bytes(self, sequence: int, *, in_middle: bool) -> None:
        """Number the bytes by the first ones that were captured: these have `sequence`.

        Where the capture begins `in_middle`, bytes before them count if they are sent again. They will be sent again if
        the other side has acknowledged less. Otherwise bytes from the first one that it acknowledged are missing.
        """
        if in_middle and self.expected == UNKNOWN and 1 < self._sent_since_first(sequence) < WINDOW_BYTES:
            # A difference of one byte may come from a keep-alive.
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
        """Number the bytes by `held`, the first ones that were captured: some may lie before the others.

        Where the capture begins `in_middle`, only those count that lead without a gap to where the stream begins.
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
            # `begin_with_bytes` does the same.
            self.begin(self._sent_from)
        elif lowest < 0:
            self.may_lack_beginning = True
            self.begin(start)

    def begin_to_send(self, sequence: int) -> None:
        """Note the first captured packet, where the capture begins in the middle: bytes before it were sent earlier."""
        if self._sent_from == UNKNOWN:
            self._sent_from = sequence

    def begin_at_acknowledgment(self, acknowledgment: int) -> None:
        """Number the bytes by the lowest acknowledgment of the other side, if nothing else numbers them."""
        is_less = -WINDOW_BYTES < distance(acknowledgment, self.expected) < 0 and self._sent_from == UNKNOWN
        if self.expected == UNKNOWN or (is_less and self.assumed and self._is_untouched):
            self.begin(acknowledgment)
            self.assumed = True

    def follow(self) -> None:
        """Leave out of the stream what was sent and acknowledged before the first byte that was captured."""
        if self.assumed and self._is_untouched:
            self._leave_out(min(self._acknowledged, self._sent_before(self._acknowledged)))

    def _sent_since_first(self, sequence: int) -> int:
        """Number of bytes before `sequence` that were sent since its first captured packet; 0 if there is no packet."""
        return 0 if self._sent_from == UNKNOWN else distance(sequence, self._sent_from)

    def _sent_before(self, most: int) -> int:
        """Number of the first `most` bytes that were sent before its first captured packet; all if there is none."""
        if self._sent_from == UNKNOWN:
            return most
        return min(max(distance(self._sent_from, self.expected), 0), most)

    def announce(self, sequence: int) -> None:
        """Number the bytes by a SYN: the first has `sequence`. If another SYN differs and no byte came, both may hold.

        The other side's acknowledgment may hold as well, if it is outside the bytes that this SYN numbers.
        """
        is_counted = self.assumed and self._is_untouched and self._acknowledged
        if is_counted and not 0 <= distance(self.expected, sequence) < WINDOW_BYTES:
            self._other, self._other_assumed = sequence, False
            return
        self.begin(sequence)
        self.only_answered = False
        if self.has_begun and not self.may_lack_beginning:
            # The SYN is an old one, or a copy.
            return
        self.may_lack_beginning = sequence != (self.initial + 1) & SEQUENCE_MASK
        ahead = distance(self.expected, sequence)
        if not ahead:
            self.begin_whole()
        if not self.next_byte and self.has_begun and 0 < ahead < WINDOW_BYTES:
            # The waiting bytes came before the SYN, and were numbered by weaker evidence.
            self._leave_out(-ahead)
            self.initial = (sequence - 1) & SEQUENCE_MASK
        if self._is_untouched and sequence != self.expected:
            self._other, self._other_assumed = sequence, False

    def begin_whole(self) -> None:
        """Note that nothing was sent before the capture began: what is missing of the first bytes is a gap."""
        if not self.next_byte:
            self._opening = False

    def _leave_out(self, size: int) -> None:
        """Begin the stream `size` bytes further on (earlier, if negative): bytes before that are no part of it."""
        self._opening = False
        self.expected = (self.expected + size) & SEQUENCE_MASK
        self._renumber(size)
        self._reach -= size
        self._gap_end -= size
        self._gap_acknowledged -= size if self._gap_acknowledged > 0 else 0
        if self.fin is not None:
            self.fin -= size
        self._waiting = [piece._replace(start=piece.start - size, end=piece.end - size) for piece in self._waiting]

    def _renumber(self, ahead: int) -> None:
        """Make the byte at `ahead` position 0. If it is too far to be credible, forget what was acknowledged."""
        is_near = abs(ahead) < WINDOW_BYTES
        for name in ("_acknowledged", "_claimed", "_confirmed", "_sent"):
            setattr(self, name, max(getattr(self, name) - ahead, 0) if is_near else 0)
        self.peer.renumber_received(ahead, is_near=is_near)

    def select_numbering(self, sequence: int) -> bool:
        """Choose between two numberings: the one nearer to `sequence` holds, if that is credible.

        `sequence` is a number of the side's bytes, or an acknowledgment of them. Returns whether the numbering changed.
        """
        if self._other == UNKNOWN:
            return False
        nearer = min((self.expected, self._other), key=lambda first: abs(distance(sequence, first)))
        if abs(distance(sequence, nearer)) >= WINDOW_BYTES:
            return False
        is_other = nearer != self.expected
        if is_other:
            # Acknowledgments of the other numbering mean nothing now.
            self._renumber(WINDOW_BYTES)
            self.assumed = self.may_lack_beginning = self._other_assumed
        self.expected, self.initial, self._other = nearer, (nearer - 1) & SEQUENCE_MASK, UNKNOWN
        return is_other

    def select_by_own(self, sequence: int) -> bool:
        """Choose between two numberings by a number of the side's own bytes: see `select_numbering`.

        If `sequence` goes on where the last stray ended, it is one of the two.
        """
        if self._is_untouched and sequence == self._stray:
            self._other, self._other_assumed = sequence, True
        return self.select_numbering(sequence)

    def began_after(self, sequence: int) -> bool:
        """Whether `sequence` is the initial sequence number."""
        return self.initial == sequence & SEQUENCE_MASK

    def may_have_begun_at(self, sequence: int, *, within: int = WINDOW_BYTES) -> bool:
        """Whether its bytes are numbered from `sequence`, or from less than `within` bytes behind it.

        While its bytes aren't numbered, its first captured packet counts, if the capture begins in the middle.
        """
        first = self._sent_from if self.expected == UNKNOWN else self.expected - self.next_byte
        return first != UNKNOWN and 0 <= distance(first, sequence) < within

    def is_answered_by(self, acknowledgment: int, *, may_have_data: bool = True) -> bool:
        """Whether a SYN with this acknowledgment answers its own SYN, whose data it may have taken too (RFC 7413)."""
        taken = (acknowledgment - self.initial) & SEQUENCE_MASK
        most = max(self._reach, self.next_byte) * may_have_data + 1
        return self.initial != UNKNOWN and 0 < taken <= most

    # Where they stand

    def position(self, sequence: int) -> int | None:
        """Position in the stream of the byte with this sequence number; None while no byte is numbered.

        Of all bytes with this number, the one nearest to the expected byte is meant.
        """
        return None if self.expected == UNKNOWN else self.next_byte + distance(sequence, self.expected)

    def is_credible(self, sequence: int) -> bool:
        """Whether `sequence` is near the expected number; true as well while that is unknown or assumed."""
        return self.expected == UNKNOWN or self.assumed or self.is_near(sequence)

    def may_be_credible(self, sequence: int) -> bool:
        """Whether `sequence` is credible by one of the numberings that its bytes may have."""
        is_by_other = self._other != UNKNOWN and abs(distance(sequence, self._other)) < WINDOW_BYTES
        return is_by_other or self.is_credible(sequence)

    def goes_on_from_stray(self, sequence: int) -> bool:
        """Whether `sequence` is where the last stray ended, a segment whose number wasn't credible."""
        return sequence == self._stray

    def is_near(self, sequence: int) -> bool:
        """Whether `sequence` is near the expected number."""
        return abs(distance(sequence, self.expected)) < WINDOW_BYTES

    @property
    def sent(self) -> int:
        """The sequence number after the last byte that it is known to have sent; -1 while none is numbered."""
        if self.expected == UNKNOWN:
            return UNKNOWN
        return (self.expected + max(self._reach, self._acknowledged, self.next_byte) - self.next_byte) & SEQUENCE_MASK

    def may_end_at(self, sequence: int) -> bool:
        """Whether a RST at `sequence` is at the sender's position.

        That is the next expected byte, the end of all that it sent, or right after its FIN.
        While its bytes aren't numbered, only its first captured packet counts, if the capture begins in the middle.
        """
        if self.expected == UNKNOWN:
            return self._sent_from == sequence
        end = self.sent
        if self.assumed:
            return sequence in (self.expected, end, self._sent_from)
        first = (self.expected + self._here_end - self.next_byte) & SEQUENCE_MASK
        return sequence in (first, end, *[(end + 1) & SEQUENCE_MASK] * (self.fin is not None))

    def lacks_before(self, sequence: int) -> bool:
        """Whether bytes before `sequence` are neither delivered nor waiting; false if `sequence` isn't near."""
        if self.expected == UNKNOWN or not self.is_near(sequence):
            return False
        return self._here_end < self.next_byte + distance(sequence, self.expected)

    @property
    def _here_end(self) -> int:
        """The position behind the bytes that are here without a gap; some of them may wait for the other side."""
        end = self.next_byte
        for piece in self._waiting:
            if piece.start == end:
                end = piece.end
        return end

    # Acknowledgments of them

    @property
    def fin_is_refuted(self) -> bool:
        """Whether the other side acknowledged more than its bytes before the FIN and the FIN itself."""
        return self.fin is not None and self._acknowledged > self.fin + 1

    def has_acknowledged(self, sequence: int, *, was_captured: bool) -> bool:
        """Whether the other side has more of it than the bytes before `sequence`, which is near, and a FIN.

        If packets of it were captured, only acknowledgments that came with bytes count: others aren't kept.
        """
        if self.expected == UNKNOWN or not self.is_near(sequence):
            return False
        acknowledged = self.peer._receipts[-1][1] if was_captured else self._acknowledged
        return self.next_byte + distance(sequence, self.expected) < acknowledged - 1

    def note_acknowledgment(self, acknowledgment: int) -> None:
        """Note that the other side has all before `acknowledgment`. It numbers the bytes if nothing else does."""
        if self.expected == UNKNOWN and 1 < self._sent_since_first(acknowledgment) <= ACKNOWLEDGED_BYTES:
            # `begin_with_bytes` does the same.
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
        """Note a segment without bytes: its sender had sent all bytes before `sequence`, captured or not."""
        at = self.position(sequence)
        if at is not None and at <= max(self._reach, self.next_byte, self._acknowledged) + ACKNOWLEDGED_BYTES:
            self._sent = max(self._sent, at)

    def note_reset(self, sequence: int) -> None:
        """Note a RST that is believed: its side had sent all before `sequence`. The last byte may have been a FIN."""
        if self.fin is not None or UNKNOWN in (self.expected, sequence) or not self.is_near(sequence):
            return
        if self.assumed and self._is_untouched:
            # Some may have been sent before the capture began.
            self._opening = self._sent_from != UNKNOWN
        self._reach = max(self._reach, self.next_byte + distance(sequence, self.expected) - 1)

    def needs(self, acknowledgment: int) -> Needs | None:
        """The bytes that the other side's data with this acknowledgment waits for; None if nobody sends such a number.

        Nobody sends a number that is far from the expected one, or that is before the first byte if that is known.
        """
        at = self.position(acknowledgment)
        is_before = at is not None and at < 0 and not (self.assumed or self.may_lack_beginning)
        is_near = self._other != UNKNOWN or self._opening or (self.is_credible(acknowledgment) and not is_before)
        return Needs(acknowledgment, self.seen_bytes) if is_near else None

    def needed(self, needs: Needs) -> int:
        """The position after the bytes that are waited for; 0 if none are, or nobody knows which."""
        if needs.acknowledgment == UNKNOWN or self.expected == UNKNOWN:
            return 0
        ahead = distance(needs.acknowledgment, self.expected)
        return self.next_byte + ahead if abs(ahead) < WINDOW_BYTES else 0

    def received(self, acknowledgment: int) -> int:
        """Number of its bytes that the other side had received when it acknowledged this; -1 if that isn't credible."""
        at = self.position(acknowledgment)
        return UNKNOWN if at is None or at > max(self._reach, self.next_byte, self._acknowledged) + 1 else at

    # What their sender had received of the other side

    def peer_received(self, byte_end: int) -> int:
        """Maximum number of the other side's bytes that its host had received when it sent the byte before `byte_end`.

        If the byte `is_late`, the host may have received more. The application may have read fewer, and may have
        written its own bytes earlier. 0 if nothing is known. Only for bytes since the last `forget_received`.
        """
        at = bisect_left(self._receipts, (byte_end,)) - 1
        return 0 if at < 0 else self._receipts[at][1]

    def is_late(self, byte_end: int) -> bool:
        """Whether nobody knows when the byte before `byte_end` was first sent: it came late, or one before it did."""
        return is_within(self._late, byte_end)

    @property
    def late(self) -> Sequence[tuple[int, int]]:
        """The ranges of late bytes since the last `forget_received`."""
        return self._late

    def note_stall(self, *, is_full: bool) -> None:
        """Note that the next bytes may have waited: the other host takes no more (`is_full`), or bytes came again."""
        if (self.next_byte, is_full) not in self._stalls[-2:]:
            self._stalls.append((self.next_byte, is_full))

    def note_full(self, theirs: Numbering) -> None:
        """Note that its host takes no more of the other side's bytes. A host that never had a window doesn't count."""
        self.zero_windows += 1
        if self.zero_windows < self.packets:
            theirs.note_stall(is_full=True)

    def has_stalled(self, byte_start: int, *, is_full: bool) -> bool:
        """Whether the bytes from `byte_start` on may have waited: for a window (`is_full`), or for repeated bytes.

        See `is_late`.
        """
        stall = (byte_start, is_full)
        at = bisect_left(self._stalls, stall)
        return self._stalls[at : at + 1] == [stall]

    def note_received(self, start: int, received: int) -> None:
        """Note that the bytes from `start` on were sent after `received` bytes of the other side came in."""
        if received > self._receipts[-1][1]:
            self._receipts.append((start, received))

    def note_acknowledged(self, start: int, acknowledgment: int, theirs: Numbering) -> None:
        """Note that the bytes from `start` on acknowledge what was delivered of the other side, or less."""
        self.noted_acknowledgment = acknowledgment
        behind = (theirs.expected - acknowledgment) & SEQUENCE_MASK
        if theirs.next_byte - behind > self._receipts[-1][1]:
            self._receipts.append((start, theirs.next_byte - behind))

    def renumber_received(self, ahead: int, *, is_near: bool) -> None:
        """Follow the other side, whose byte at `ahead` becomes position 0; if that isn't near, nothing is known."""
        received = self._receipts[-1][1]
        if received:
            # Nobody may have asked yet about the bytes that were delivered.
            self._receipts.append((self.next_byte, max(received - ahead, 0) if is_near else 0))
        self.noted_acknowledgment = UNKNOWN

    def forget_received(self, byte_end: int) -> None:
        """Drop what was known when the bytes before `byte_end` were sent: nobody asks for it any more.

        At most MOST_RECEIPTS entries are kept for the bytes behind: a message may never end.
        """
        for kept in (self._receipts, self._late, self._stalls):
            del kept[: max(bisect_left(kept, (byte_end,)) - 1, len(kept) - MOST_RECEIPTS, 0)]

    def knew_end_of(self, theirs: Numbering) -> bool:
        """Whether its FIN acknowledges the other side's."""
        known = self.fin_acknowledges != UNKNOWN and theirs.fin is not None
        return known and theirs.position(self.fin_acknowledges - 1) == theirs.fin

    def received_at_end(self, theirs: Numbering) -> int | None:
        """Maximum number of the other side's bytes that its host had when it sent its FIN; None: nobody knows."""
        return None if self.fin_acknowledges == UNKNOWN else theirs.position(self.fin_acknowledges)
