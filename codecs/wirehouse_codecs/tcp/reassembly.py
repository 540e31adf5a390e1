"""Reassembly: the segments of a TCP connection become the byte streams of its two sides (RFC 9293).

A `Flow` takes the segments of one pair of ports in order of arrival. It returns events: a connection opens or closes,
the next bytes of a direction are there, or bytes are missing (a hole). It knows no protocol and does no input or
output. Its memory is bounded, and its state is JSON (`snapshot`). Events depend on the segments alone, not on where
the flow was cut into snapshots.

How a passive reader can know
-----------------------------

A capture is what one observer saw. Packets are missing, come twice, come in another order, or come from two observers
with two clocks. The order of arrival alone can't tell a packet that is late from one that was lost. But each segment
says more than its bytes: its sequence number says where its sender's stream stands, and its acknowledgment says which
bytes of the other side its sender's host had received. Reassembly rests on these two facts:

- What a receiver acknowledged was sent. If the capture lacks it, it is missing, not unsaid.
- What a receiver did not acknowledge will be sent again. So it is worth waiting for.
- What a host acknowledges after an event, it received after it. So it was alive.

A single number may be garbled or forged. So a number far from what is expected counts only when a second one agrees.

Numbering
---------

- Bytes are numbered from the first after SYN. Two SYNs of one side may differ (a server may have lost its first
  answer). Then the other side's acknowledgment, or the first byte, selects the one that holds. If the SYN that holds
  wasn't captured, an acknowledgment near the first bytes, or a segment that goes on behind them, says so. Then these
  bytes, which were ignored as strays, are taken after all.
- If a side's SYN was not captured, the first acknowledgment of the other side numbers its bytes. That is an
  assumption: a SYN or the first bytes of the side itself override it.
- A side of which no packet was captured within `hole_wait_ns` is taken as not captured at all. What is acknowledged
  of it is a hole at once, before the bytes that acknowledge it. Until then it may come late, and is waited for.
- What a side had received is kept as the acknowledgment that said so. Its position is computed when it is needed, so
  that it holds also when the other side is numbered later, or otherwise.
- Where the capture begins in the middle, the first segments with bytes are held until the other side acknowledges: for
  `hole_wait_ns`, HELD_SEGMENTS and `max_waiting_bytes`, at most. If it has acknowledged less than where they begin, the
  stream begins at its acknowledgment, because the bytes between may be sent again. If they are not, they were sent
  before the capture began. That is no hole: the stream then begins with the first bytes that are there. What arrives
  from before its first byte is ignored.
- A SYN, or the answer to one, may arrive while such bytes are held. It numbers them. Then all of them count, and the
  connection does not begin in the middle: what is missing from its first byte on is a hole. Bytes that were held wait
  for what they acknowledge, like all others.
- A segment is credible within WINDOW_BYTES of the byte that is expected. Another one is a stray and ignored, unless
  it goes on where the last stray ended. Then both are believed, and what lies between is a hole (its length is known
  modulo 4 GiB). So one garbled segment costs nothing, and after a loss of gigabytes the stream is read on.

Gaps and holes
--------------

- A gap becomes a hole when nothing has moved its beginning for `hole_wait_ns`, when more waits behind it than the
  options allow, or when the connection ends. The first segment after that moment reports it, after its own bytes were
  taken. If the receiver acknowledges the beginning of the gap and no more, it lacks the bytes too. Then time makes no
  hole of the gap.
- Bytes that were acknowledged and never seen are a hole when the connection ends. The last of them may have been a
  FIN that wasn't seen, so it isn't counted. In a hole that is reported earlier it is: one byte of a hole of its own
  for each lost packet would be worse than a hole that is too long by a FIN.
- An acknowledgment of more than ACKNOWLEDGED_BYTES beyond what was seen is believed if another one of the same side
  says as much or more, and for no more than the smaller.

The order of the two directions
-------------------------------

- Data that acknowledges bytes which were not delivered waits for them, or for their hole: for `hole_wait_ns` at most,
  and among no more than the options allow. So an answer comes after its question. After the wait the gap is a hole,
  also if nothing waits behind it. It is none if the acknowledgment isn't believed. It isn't if it stands alone, and
  bytes before the acknowledged one have come in meanwhile and none from behind it: such an acknowledgment is garbled.
  At the end of the connection it is believed, as the bytes are missing in any case.
- Nobody waits for an acknowledgment that isn't credible, or for a side whose bytes aren't numbered. One byte after
  the last that was seen may be a FIN.
- Two taps have two clocks, and the packets of one side may all come before those of the other that they answer. So
  the first packet of a side numbers its bytes, if the other side acknowledges up to ACKNOWLEDGED_BYTES behind it. They
  are waited for.
- Bytes acknowledge no more than those behind them, because a retransmission says more than the first copy did. Where
  both sides wait for each other nevertheless, what arrived later goes first.

Copies
------

- The first copy of a byte to arrive counts. Repeated bytes are compared with what waits and with the last
  `compared_bytes` that were delivered. One byte right before the next is a keep-alive (RFC 9293 section 3.8.4) and is
  not compared.

The end
-------

- A connection closes when both FINs were reached. Where they were acknowledged and bytes before them are missing, it
  closes after `hole_wait_ns` of silence, and these bytes are a hole.
- A RST closes at once if it stands where its sender's stream does, or if it acknowledges the SYN that it answers
  (RFC 9293 section 3.10.7.3). The stream stands behind all that its sender is known to have sent, and behind the bytes
  that are there without a gap. Bytes that are held, or that wait for the other side only, are there: a RST before them
  is one that came late, or is forged.
- Anyone can send another RST (RFC 5961), and a garbled or late one looks alike. So it waits: time (`hole_wait_ns`) or
  a SYN confirms it. It is ignored if its alleged sender later acknowledges new data, or if the other side acknowledges
  new data of that sender. If nothing else of its alleged sender was captured, only silence or a SYN confirms it, and it
  is ignored if the connection still goes on after `hole_wait_ns`. Until it is believed it is no packet of that side,
  and it numbers no bytes.
- A SYN with another initial sequence number opens another connection. So does one with the same number after a reset
  (the connection was refused, and the client tries again), unless it arrived at the same moment as the first one, as
  a copy does. Otherwise it is a retransmission.
- Segments after the end belong to the connection that ended, until it has been silent for `idle_ns`. Their bytes are
  ignored, and reported unless they are copies of bytes that were seen. Data may be captured shortly before the SYN of
  its connection: then it moves to that connection.
- What is ignored is counted at once. `Side.take_ignored` says why and where it begins: of bytes that a SYN may still
  claim only when none came within `hole_wait_ns`. So no note is written that the next window would take back.
"""

from __future__ import annotations

import hashlib
import json
import struct
from base64 import b64decode, b64encode
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Literal, NamedTuple

from wirehouse_codecs.core.errors import StateVersionError
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_codecs.tcp.packets import ACK, FIN, RST, SYN

FLOW_VERSION: Final = 15
#: Sequence numbers so far from the one that is expected are not credible; senders have some MiB in flight at most.
WINDOW_BYTES: Final = 1 << 24
#: Where a capture begins in the middle, so many segments of a side are held until the other side has acknowledged.
HELD_SEGMENTS: Final = 64
#: So many segments that did not go on where their side ended are kept, as a SYN may say that they are of the next
#: connection; and so many bytes of them.
EARLY_SEGMENTS: Final = 16
EARLY_BYTES: Final = 1 << 16
#: An acknowledgment so far beyond what was seen is believed alone; as many bytes as an unscaled window.
ACKNOWLEDGED_BYTES: Final = 1 << 16

SEQUENCE_MASK: Final = 2**32 - 1
#: Flags that say what a segment is.
CONTROL: Final = SYN | FIN | RST | ACK
#: In place of a sequence number.
UNKNOWN: Final = -1

Opening = Literal["syn", "syn_ack", "middle"]
Ending = Literal["fin", "reset", "idle", "reuse"]


class TcpSegment(NamedTuple):
    """A segment as reassembly takes it."""

    place: Place
    direction: Direction
    sequence: int
    acknowledgment: int
    flags: int
    #: As sent, before scaling.
    window: int
    #: What was captured.
    payload: bytes
    #: Bytes that were sent; more than in `payload` if the snap length cut it.
    payload_bytes: int


class Opened(NamedTuple):
    """A connection began, or the capture of it."""

    connection: Connection


class Data(NamedTuple):
    """The next bytes of a direction."""

    direction: Direction
    byte_start: int
    data: bytes
    #: Of the segment that completed them, like all places of events.
    place: Place


class Hole(NamedTuple):
    """Bytes that are not in the capture; those behind them come next."""

    direction: Direction
    byte_start: int
    byte_end: int
    place: Place


class OverlapDiffers(NamedTuple):
    """Bytes that a segment carried again with other content: from the first to the last that differs."""

    direction: Direction
    byte_start: int
    byte_end: int
    place: Place


class Why(StrEnum):
    """Why captured bytes are no part of a stream."""

    BEFORE = "they were sent before the first byte that was seen"
    AFTER = "they came after the end of the connection"
    FAR = "their sequence number is far from what was expected"
    RESET = "a RST carried them"


#: A bit for each.
_REASONS: Final = {why: 1 << at for at, why in enumerate(Why)}


class Ignored(NamedTuple):
    """Captured bytes of a direction that are no part of its stream, and where the first of them stand."""

    direction: Direction
    why: Why
    size: int
    place: Place


class ResetIgnored(NamedTuple):
    """A RST of `direction` that closed nothing: the connection went on."""

    direction: Direction
    place: Place


class Closed(NamedTuple):
    """No more events come of the connection."""

    place: Place
    how: Ending
    #: Who closed it: the sender of a FIN that the other side's FIN acknowledges, or of the RST. None: silence or a new
    #: connection did, or both sides did before they heard of each other.
    side: Direction | None = None


Event = Opened | Data | Hole | OverlapDiffers | ResetIgnored | Closed


class Needs(NamedTuple):
    """What bytes wait for: those of the other side that they acknowledge."""

    #: As sent, because the other side may be numbered later; -1 if there is nothing to wait for.
    acknowledgment: int = UNKNOWN
    #: How many bytes of the other side had been seen when the acknowledgment arrived.
    seen_bytes: int = 0


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
class Side:
    """What one side of a connection sent: the counters of a table row, and the reassembly of its stream.

    Of captured payload each byte is delivered, retransmitted, ignored or waiting.
    """

    direction: Direction
    options: TcpOptions = field(repr=False)
    packets: int = 0
    #: Bytes of holes.
    missing_bytes: int = 0
    #: Bytes of payload that had been seen, or passed over as a hole, before.
    retransmitted_bytes: int = 0
    #: Captured bytes that are no part of the stream: of strays and keep-alives, before its first byte, after its end.
    ignored_bytes: int = 0
    #: Segments with sequence numbers that are not credible.
    strays: int = 0
    #: Segments with new bytes from before the furthest that had been seen.
    out_of_order: int = 0
    zero_windows: int = 0
    #: Events OverlapDiffers.
    overlaps_differ: int = 0
    #: Position in the stream of the first byte that was neither delivered nor passed over.
    next_byte: int = 0
    #: The sequence number of that byte; -1 while none is numbered.
    expected: int = UNKNOWN
    #: The sequence number before the first byte.
    initial: int = UNKNOWN
    #: How far bytes are known to have been sent; below `next_byte` if no further.
    _reach: int = 0
    #: How far they were acknowledged, if that is further than what was seen; and the last acknowledgment that was too
    #: far to be believed alone.
    _acknowledged: int = 0
    _claimed: int = 0
    #: How far two segments acknowledged them.
    _confirmed: int = 0
    #: Where the FIN stands, and what it acknowledges.
    fin: int | None = None
    fin_acknowledges: int = UNKNOWN
    #: The last stray, and the sequence number after it.
    last_stray: Place | None = field(default=None, repr=False)
    _stray: int = UNKNOWN
    #: The other sequence number that its first byte may have, while two of them have been seen; and whether no SYN says
    #: so, only an acknowledgment or the first bytes.
    _other: int = UNKNOWN
    _other_assumed: bool = False
    #: The position that the receiver acknowledged last while a gap began there: it waits for these bytes, too.
    _wanted: int = UNKNOWN
    #: Its bytes are numbered by what the other side acknowledged; nothing of its own has said otherwise yet.
    assumed: bool = False
    #: It begins with a gap in which bytes may still come that were sent before the capture began.
    _opening: bool = False
    #: Where it stood when the first of its packets was captured, if the capture begins in the middle.
    _sent_from: int = UNKNOWN
    #: RSTs that may be forged, while nothing else of it was captured: no packets of its own until they are believed.
    unproven: int = 0
    #: What was ignored and isn't reported yet; and the reasons that were, as a sum of _REASONS.
    unreported: dict[Why, Ignored] = field(default_factory=dict, repr=False)
    _reported: int = 0
    #: Since when a gap begins at `next_byte`, and how far bytes were known to have been sent then.
    _gap_since_ns: int | None = None
    _gap_end: int = 0
    #: Behind a gap, or for bytes of the other side; in order, without overlaps.
    _waiting: list[Piece] = field(default_factory=list, repr=False)
    _waiting_bytes: int = 0
    #: What waits up to each of these positions needs no more than this; both rise.
    _limits: list[tuple[int, Needs]] = field(default_factory=list, repr=False)
    #: The other side.
    peer: Side = field(init=False, repr=False, compare=False)
    #: From which position on its sender had received how many bytes of the other side. Both rise, unless that is
    #: numbered anew.
    _receipts: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)], repr=False)
    #: The acknowledgment that was looked at last for this.
    noted_acknowledgment: int = field(default=UNKNOWN, repr=False)
    #: The last bytes that were delivered, without a hole up to `next_byte`.
    _recent: list[bytes | memoryview] = field(default_factory=list, repr=False)
    _recent_bytes: int = 0

    @property
    def delivered_bytes(self) -> int:
        """Bytes of Data events."""
        return self.next_byte - self.missing_bytes

    @property
    def is_guessed(self) -> bool:
        """Nothing of its own says where its bytes begin, so that those before the first to come may be missing."""
        return not self.packets or self.assumed or self.expected == UNKNOWN

    @property
    def answers_wait(self) -> bool:
        """The next bytes are there, and wait for bytes of the other side."""
        return bool(self._waiting) and self._waiting[0].start == self.next_byte

    @property
    def is_finished(self) -> bool:
        """Its FIN was reached, or acknowledged: the other side has all bytes before it."""
        return self.ended or (self.fin is not None and self._acknowledged > self.fin)

    @property
    def ended(self) -> bool:
        """Its FIN was reached."""
        return self.fin == self.next_byte

    def knew_end_of(self, theirs: Side) -> bool:
        """Its FIN acknowledges the other side's."""
        known = self.fin_acknowledges != UNKNOWN and theirs.fin is not None
        return known and theirs.position(self.fin_acknowledges - 1) == theirs.fin

    def received_at_end(self, theirs: Side) -> int | None:
        """How many bytes of the other side its host had received when it sent its FIN, at most; None: nobody knows."""
        return None if self.fin_acknowledges == UNKNOWN else theirs.position(self.fin_acknowledges)

    @property
    def regular(self) -> bool:
        """There is a numbering, and only one; there is no gap and no end."""
        is_numbered = self.expected != UNKNOWN and self._other == UNKNOWN
        return is_numbered and self._gap_since_ns is None and self.fin is None

    @property
    def incomplete(self) -> bool:
        """Bytes are known to have been sent that were neither delivered nor passed over."""
        return bool(self._waiting) or self._gap_since_ns is not None or self.lacks(self._acknowledged)

    def position(self, sequence: int) -> int | None:
        """Position in the stream of the byte with this sequence number, near what is expected; None before any is."""
        return None if self.expected == UNKNOWN else self.next_byte + distance(sequence, self.expected)

    def begin(self, sequence: int) -> None:
        """Number the bytes from that with `sequence` on, unless they are numbered by more than an assumption."""
        if self.expected == UNKNOWN or (self.assumed and self._is_untouched):
            if self.assumed:
                self._renumber(distance(sequence, self.expected))
            self.expected = sequence & SEQUENCE_MASK
            self.initial = (sequence - 1) & SEQUENCE_MASK
        self.assumed = False

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
            self.begin(start)

    def begin_to_send(self, sequence: int) -> None:
        """In the middle, its first packet that was captured: what stands before `sequence` was sent before."""
        if self._sent_from == UNKNOWN:
            self._sent_from = sequence

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
        """A SYN says that the bytes begin at `sequence`. If another said otherwise and no byte came, both may hold."""
        self.begin(sequence)
        ahead = distance(self.expected, sequence)
        if not self.next_byte and not self._is_untouched and 0 < ahead < WINDOW_BYTES:
            # What waits came before it, and was numbered by less.
            self._leave_out(-ahead)
            self.initial = (sequence - 1) & SEQUENCE_MASK
        if self._is_untouched and sequence != self.expected:
            self._other, self._other_assumed = sequence, False

    @property
    def _is_untouched(self) -> bool:
        """No byte and no end of it was seen or passed over."""
        return not self.next_byte and self._reach <= 0 and not self._waiting and self.fin is None

    def _renumber(self, ahead: int) -> None:
        """Position 0 becomes that of the byte `ahead`; if that isn't credible, what was acknowledged says nothing."""
        is_near = abs(ahead) < WINDOW_BYTES
        for name in ("_acknowledged", "_claimed", "_confirmed"):
            setattr(self, name, max(getattr(self, name) - ahead, 0) if is_near else 0)
        self._wanted = UNKNOWN
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
            self.assumed = self._other_assumed
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

    def may_have_begun_at(self, sequence: int) -> bool:
        """Its bytes are numbered from `sequence`, or from a little behind it."""
        first = self.expected - self.next_byte
        return self.expected != UNKNOWN and 0 <= distance(first, sequence) < WINDOW_BYTES

    def is_answered_by(self, acknowledgment: int) -> bool:
        """A SYN with this acknowledgment answers its own SYN, of which it may have taken data too (RFC 7413)."""
        taken = (acknowledgment - self.initial) & SEQUENCE_MASK
        return self.initial != UNKNOWN and 0 < taken <= max(self._reach, self.next_byte) + 1

    def begin_at_acknowledgment(self, acknowledgment: int) -> None:
        """If nothing else numbers the bytes, what the other side acknowledged does."""
        if self.expected == UNKNOWN:
            self.begin(acknowledgment)
            self.assumed = True

    def note_acknowledgment(self, acknowledgment: int) -> None:
        """The other side has everything before `acknowledgment`; if nothing else does, that numbers the bytes."""
        if self.expected == UNKNOWN and 1 < self._sent_since_first(acknowledgment) <= ACKNOWLEDGED_BYTES:
            # As in `begin_with_bytes`.
            self.begin(self._sent_from)
        if self.expected == UNKNOWN:
            self.begin_at_acknowledgment(acknowledgment)
            return
        ahead = (acknowledgment - self.expected) & SEQUENCE_MASK
        if ahead >= WINDOW_BYTES:
            if (
                self.assumed
                and self._is_untouched
                and self._sent_from == UNKNOWN
                and -ahead & SEQUENCE_MASK < WINDOW_BYTES
            ):
                # This one was sent before that which the numbering was taken from.
                self.begin(acknowledgment)
                self.assumed = True
            if self._is_untouched and abs(distance(acknowledgment, self.expected)) >= WINDOW_BYTES:
                # The answer to a SYN that counts may be one that wasn't captured.
                self._other, self._other_assumed = acknowledgment, True
            return
        if not ahead and self._gap_since_ns is not None and self._acknowledged <= self.next_byte:
            self._wanted = self.next_byte
        end = self.next_byte + ahead
        believed = end
        if end > max(self._reach, self.next_byte, self._acknowledged) + ACKNOWLEDGED_BYTES:
            believed, self._claimed = min(self._claimed, end), end
        self._confirmed = max(self._confirmed, min(self._acknowledged, believed))
        self._acknowledged = max(self._acknowledged, believed)

    def needs(self, acknowledgment: int) -> Needs | None:
        """What data of the other side with this acknowledgment wait for; None if it is far from what is expected."""
        is_near = self._other != UNKNOWN or self._opening or self.is_credible(acknowledgment)
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

    def lacks(self, end: int) -> bool:
        """Bytes before `end`, which was acknowledged, are neither delivered nor passed over."""
        if self.fin is not None:
            end = min(end, self.fin)
        elif end == max(self._reach, self.next_byte) + 1:
            end -= 1
        return self.next_byte < end

    def is_credible(self, sequence: int) -> bool:
        """`sequence` is near what is expected, or nothing is known to be."""
        return self.expected == UNKNOWN or self.assumed or self.is_near(sequence)

    def is_near(self, sequence: int) -> bool:
        """`sequence` is near what is expected."""
        return abs(distance(sequence, self.expected)) < WINDOW_BYTES

    def peer_received(self, byte_end: int) -> int:
        """So many bytes of the other side its host had received when it sent the byte before `byte_end`, at most.

        The application may have read fewer, and may have written its own bytes earlier. 0 if nothing is known. Answers
        for bytes since the last `forget_received`.
        """
        at = bisect_left(self._receipts, (byte_end,)) - 1
        return 0 if at < 0 else self._receipts[at][1]

    def note_received(self, start: int, received: int) -> None:
        """The bytes from `start` on were sent after `received` bytes of the other side came in."""
        if received > self._receipts[-1][1]:
            self._receipts.append((start, received))

    def note_acknowledged(self, start: int, acknowledgment: int, theirs: Side) -> None:
        """The bytes from `start` on acknowledge what was delivered of the other side, or less."""
        self.noted_acknowledgment = acknowledgment
        behind = (theirs.expected - acknowledgment) & SEQUENCE_MASK
        if theirs.next_byte - behind > self._receipts[-1][1]:
            self._receipts.append((start, theirs.next_byte - behind))

    def forget_received(self, byte_end: int) -> None:
        """Nobody asks what was known when the bytes before `byte_end` were sent."""
        del self._receipts[: max(bisect_left(self._receipts, (byte_end,)) - 1, 0)]

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
        follows = self.next_byte
        for piece in self._waiting:
            if piece.start == follows:
                # It waits for the other side only.
                follows = piece.end
        first = (self.expected + follows - self.next_byte) & SEQUENCE_MASK
        return sequence in (first, end, *[(end + 1) & SEQUENCE_MASK] * (self.fin is not None))

    def deliver(self, data: bytes, place: Place) -> Data:
        """The next bytes of the stream."""
        start = self.next_byte
        size = len(data)
        self.assumed = self._opening = False
        self.next_byte = start + size
        self.expected = (self.expected + size) & SEQUENCE_MASK
        self._recent.append(data)
        self._recent_bytes += size
        if self._recent_bytes > 2 * self.options.compared_bytes:
            self._kept()
        return Data(self.direction, start, data, place)

    def deliver_stretch(self, data: memoryview) -> None:
        """The next bytes of the stream, those of several segments. `keep_bytes` before `data` changes."""
        size = len(data)
        self.assumed = self._opening = False
        self.next_byte += size
        self.expected = (self.expected + size) & SEQUENCE_MASK
        self._recent.append(data)
        self._recent_bytes += size
        least, enough = 0, self.options.compared_bytes
        while least < len(self._recent) - 1 and self._recent_bytes - len(self._recent[least]) >= enough:
            self._recent_bytes -= len(self._recent[least])
            least += 1
        del self._recent[:least]

    def keep_bytes(self) -> None:
        """What is kept of stretches no longer needs them."""
        if any(isinstance(piece, memoryview) for piece in self._recent):
            self._kept()

    def take(
        self, sequence: int, payload: bytes, size: int, fin: bool, place: Place, needs: Needs | None, received: int
    ) -> list[Event]:
        """Take a segment with `size` bytes from `sequence` on, of which `payload` was captured.

        If `needs` is None, the bytes wait for what those before them wait for. `received` is as in a piece.
        """
        events: list[Event] = []
        if not self.is_credible(sequence):
            if sequence != self._stray or self.fin is not None:
                self._ignore_stray(sequence, payload, size + fin, place)
                return []
            self._reach = self.next_byte + ((sequence - self.expected) & SEQUENCE_MASK)
            events += self.tell_holes(place)
        start = self.next_byte + distance(sequence, self.expected)
        end = start + size
        if size == 1 and not fin and end == (self._waiting[-1].end if self._waiting else self.next_byte):
            self.ignored_bytes += len(payload)
            return events
        if fin and self.fin is None and end >= self.next_byte:
            self._end_at(end, place)
        if self.fin is not None and end > self.fin:
            kept = payload[: max(self.fin - start, 0)]
            self.ignored_bytes += len(payload) - len(kept)
            self.ignore(Why.AFTER, len(payload) - len(kept), place)
            payload = kept
            end = self.fin
        differ: list[OverlapDiffers] = []
        if start < self.next_byte:
            seen = self.next_byte - start
            differ += self._repeated(start, payload[:seen], place)
            start, payload = self.next_byte, payload[seen:]
        if payload:
            # What fills a gap was probably sent before, and then its sender knew less.
            differ += self._hold(start, payload, place, needs, received if start >= self._reach else UNKNOWN)
        if differ:
            self.overlaps_differ += 1
            events.append(differ[0]._replace(byte_end=differ[-1].byte_end))
        self._reach = max(self._reach, end)
        before = self.next_byte
        events += self._release(place)
        if self._reach <= self.next_byte:
            self._gap_since_ns = None
        elif self._gap_since_ns is None or self.next_byte > before:
            self._gap_since_ns, self._gap_end = place.arrived_at_ns, self._reach
        return events

    def pass_uncaptured(self, place: Place) -> list[Event]:
        """Nothing of it is captured: what the other side acknowledged is a hole at once."""
        if not self.lacks(self._acknowledged):
            return []
        self._reach = max(self._reach, self._acknowledged)
        return self.tell_holes(place)

    def settle_opening(self, place: Place) -> list[Event]:
        """The stream begins with the first bytes that are here, once the other side has all that were sent before."""
        if not self._opening or not self._waiting:
            return []
        before = self._sent_before(self._waiting[0].start)
        if self._acknowledged < before:
            return []
        self._leave_out(before)
        events = self._release(place)
        self._time_gap(place)
        return events

    def gives_away(self, apart: Apart, syn: TcpSegment) -> bool:
        """Part with a segment that was ignored or waits, if its bytes follow `syn` and it came shortly before."""
        segment = apart.segment
        is_recent = syn.place.arrived_at_ns - segment.place.arrived_at_ns < self.options.hole_wait_ns
        behind = distance(segment.sequence, syn.sequence)
        if segment.direction is not self.direction or not is_recent or not 0 < behind < WINDOW_BYTES:
            return False
        if apart.fate is not Fate.WAITS:
            self.strays -= apart.fate is Fate.STRAY
            self.ignored_bytes -= len(segment.payload)
            return True
        if not self.is_credible(segment.sequence):
            # It was delivered.
            return False
        start = self.next_byte + distance(segment.sequence, self.expected)
        inside = [
            piece for piece in self._waiting if start <= piece.start and piece.end <= start + len(segment.payload)
        ]
        if sum(len(piece.data) for piece in inside) < len(segment.payload):
            return False
        self._waiting = [piece for piece in self._waiting if piece not in inside]
        self._limit_all()
        self._waiting_bytes -= len(segment.payload)
        self._reach = max([self.next_byte, *(piece.end for piece in self._waiting)])
        self._time_gap(syn.place)
        return True

    def tell_due_holes(self, place: Place) -> list[Event]:
        """Give up gaps that are old, unless the receiver waits for their bytes too, or behind which too much waits."""
        events: list[Event] = []
        options = self.options
        while (
            self._gap_since_ns is not None
            and not self.answers_wait
            and (
                self._holds_too_much
                or (not self._is_wanted and place.arrived_at_ns - self._gap_since_ns >= options.hole_wait_ns)
            )
        ):
            events += self._tell_hole(place, self._gap_end, known=True)
        return events

    def answers_are_due(self, place: Place) -> bool:
        """The next bytes have waited long for the other side, or too much waits behind them."""
        waited_ns = place.arrived_at_ns - self._waiting[0].arrived_at_ns
        return waited_ns >= self.options.hole_wait_ns or self._holds_too_much

    def tell_answers(self, theirs: Side, place: Place) -> list[Event]:
        """Deliver the next bytes if they need not wait for the other side any more."""
        if not self.answers_wait or theirs.lacks(theirs.needed(self._needs_at(self.next_byte))):
            return []
        return self._release_answers(place)

    def give_up(self, theirs: Side, place: Place, *, ending: bool) -> list[Event]:
        """Deliver the next bytes, which have waited for the other side: pass over what it lacks."""
        needs = self._needs_at(self.next_byte)
        end = theirs.needed(needs)
        if theirs.fin is not None:
            end = min(end, theirs.fin)
        seen = end <= theirs._reach
        events: list[Event] = []
        # At the end what was acknowledged is missing in any case.
        is_believed = ending or end <= theirs._confirmed or theirs._seen_bytes == needs.seen_bytes
        if seen or (end <= theirs._acknowledged and is_believed):
            # What nobody sees any more may have been a FIN, if nothing behind it was acknowledged.
            end -= ending and not seen and end == theirs._acknowledged
            while theirs.next_byte < end and not theirs.answers_wait:
                events += theirs._tell_hole(place, end, known=not ending)
        return events + self._release_answers(place)

    def answers_before(self, theirs: Side, place: Place) -> list[Event]:
        """Both sides wait for each other: deliver the next bytes of that whose arrived later."""
        later = max(self, theirs, key=_waits_since_ns)
        return later._release_answers(place)

    def tell_next_hole(self, place: Place) -> list[Event]:
        """Give up the gap at the next byte, if there is one."""
        return self._tell_hole(place) if self._reach > self.next_byte and not self.answers_wait else []

    def tell_holes(self, place: Place) -> list[Event]:
        """Give up all gaps."""
        events: list[Event] = []
        while self._reach > self.next_byte:
            events += self._release_answers(place) if self.answers_wait else self._tell_hole(place)
        return events

    def finish(self, place: Place) -> list[Event]:
        """No more bytes are taken: give up all gaps, and what was only acknowledged."""
        if self.fin is None:
            self._reach = max(self._reach, self._acknowledged - 1)
        events = self.tell_holes(place)
        self._recent, self._recent_bytes = [], 0
        return events

    def ignore_late(self, sequence: int, payload: bytes) -> bool:
        """The connection has ended; of `payload` nothing is taken any more. Some of its bytes were not seen before."""
        self.ignored_bytes += len(payload)
        at = self.position(sequence)
        end = self.next_byte if self.fin is None else self.fin
        return at is None or at < 0 or at + len(payload) > end

    def take_ignored(self) -> list[Ignored]:
        """What is ignored for reasons that were not reported before."""
        ignored = [self.unreported[why] for why in Why if why in self.unreported]
        self._reported |= sum(_REASONS[why] for why in self.unreported)
        self.unreported = {}
        return ignored

    def ignore(self, why: Why, size: int, place: Place) -> None:
        """Note that bytes are ignored, unless bytes of this reason were reported."""
        if size and not self._reported & _REASONS[why]:
            known = self.unreported.get(why, Ignored(self.direction, why, 0, place))
            self.unreported[why] = known._replace(size=known.size + size)

    def _ignore_stray(self, sequence: int, payload: bytes, size: int, place: Place) -> None:
        self.strays += 1
        self.last_stray = place
        if size and self._is_untouched and self._other == UNKNOWN:
            # The SYN that counts may be one that wasn't captured.
            self._other, self._other_assumed = sequence, True
        self.ignored_bytes += len(payload)
        if size:
            self._stray = (sequence + size) & SEQUENCE_MASK

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
        self._limit_all()

    def _repeated(self, start: int, data: bytes, place: Place) -> list[OverlapDiffers]:
        """Bytes from before `next_byte`."""
        ignored = min(max(-start, 0), len(data))
        self.ignored_bytes += ignored
        self.ignore(Why.BEFORE, ignored, place)
        self.retransmitted_bytes += len(data) - ignored
        kept = self._kept()
        skipped = max(self.next_byte - len(kept) - start, 0)
        data, start = data[skipped:], start + skipped
        first = start - (self.next_byte - len(kept))
        return self._compare(start, kept[first : first + len(data)], data, place)

    def _kept(self) -> bytes:
        """The delivered bytes that are compared; earlier ones are forgotten."""
        joined = b"".join(self._recent)
        kept = joined[max(len(joined) - self.options.compared_bytes, 0) :]
        self._recent, self._recent_bytes = [kept], len(kept)
        return kept

    def _compare(self, start: int, earlier: bytes, later: bytes, place: Place) -> list[OverlapDiffers]:
        """What differs between two texts of the same bytes."""
        if earlier == later:
            return []
        bits = int.from_bytes(earlier, "big") ^ int.from_bytes(later, "big")
        end = start + len(later)
        first = end - (bits.bit_length() + 7) // 8
        last = end - ((bits & -bits).bit_length() - 1) // 8
        return [OverlapDiffers(self.direction, first, last, place)]

    @property
    def _seen_bytes(self) -> int:
        """Bytes that were delivered or wait."""
        return self.delivered_bytes + self._waiting_bytes

    @property
    def _is_wanted(self) -> bool:
        """The receiver has acknowledged no more than the bytes before the gap."""
        return self._wanted == self.next_byte >= self._acknowledged

    @property
    def _holds_too_much(self) -> bool:
        options = self.options
        return self._waiting_bytes > options.max_waiting_bytes or len(self._waiting) > options.max_waiting_segments

    def _hold(self, start: int, data: bytes, place: Place, needs: Needs | None, received: int) -> list[OverlapDiffers]:
        """Put bytes among those that wait; where some do already, these count."""
        end = start + len(data)
        first = bisect_right(self._waiting, start, key=_piece_end)
        last = bisect_left(self._waiting, end, key=_piece_start)
        events: list[OverlapDiffers] = []
        known = self._waiting[first:last]
        if needs is None:
            needs = self._waiting[first - 1].needs if first else Needs()
        fresh: list[Piece] = []
        at = start
        for piece in known:
            low, high = max(start, piece.start), min(end, piece.end)
            events += self._compare(
                low, piece.data[low - piece.start : high - piece.start], data[low - start : high - start], place
            )
            if at < low:
                fresh.append(Piece(at, low, data[at - start : low - start], place.arrived_at_ns, needs, received))
            at = high
        if at < end:
            fresh.append(Piece(at, end, data[at - start :], place.arrived_at_ns, needs, received))
        size = sum(len(piece.data) for piece in fresh)
        self.retransmitted_bytes += len(data) - size
        if not fresh:
            return events
        if start < self._reach:
            self.out_of_order += 1
        pieces = sorted(known + fresh)
        self._waiting[first:last] = pieces
        self._waiting_bytes += size
        for piece in fresh:
            self._limit(piece.start, needs)
        return events

    def _needs_at(self, start: int) -> Needs:
        """What the bytes from `start` on wait for, the first ones: no more than those behind them."""
        del self._limits[: bisect_left(self._limits, start, key=_limit_start)]
        return self._limits[0][1]

    def _limit(self, start: int, needs: Needs) -> None:
        """What waits up to `start` needs no more than `needs`."""
        limits = self._limits
        at = bisect_left(limits, start, key=_limit_start)
        if at < len(limits) and not _is_more(limits[at][1], needs):
            return
        least = at
        while least and not _is_more(needs, limits[least - 1][1]):
            least -= 1
        is_same = at < len(limits) and limits[at][0] == start
        limits[least : at + is_same] = [(start, needs)]

    def _limit_all(self) -> None:
        """As `_limit` with all that waits."""
        self._limits = []
        for piece in self._waiting:
            self._limit(piece.start, piece.needs)

    def _release(self, place: Place) -> list[Event]:
        """Deliver what waits no longer."""
        events: list[Event] = []
        peer = self.peer
        for piece in self._waiting:
            if piece.start != self.next_byte:
                break
            if piece.needs.acknowledgment != UNKNOWN and peer.lacks(peer.needed(self._needs_at(piece.start))):
                break
            events.append(self._deliver_piece(piece, place))
        del self._waiting[: len(events)]
        return events

    def _deliver_piece(self, piece: Piece, place: Place) -> Data:
        if piece.received != UNKNOWN:
            self.note_received(piece.start, max(self.peer.received(piece.needs.acknowledgment), piece.received))
        self._waiting_bytes -= len(piece.data)
        return self.deliver(piece.data, place)

    def _release_answers(self, place: Place) -> list[Event]:
        """Deliver the next bytes, although they waited for the other side."""
        first = self._deliver_piece(self._waiting.pop(0), place)
        events = [first, *self._release(place)]
        self._time_gap(place)
        return events

    def _tell_hole(self, place: Place, end: int = 0, *, known: bool = False) -> list[Event]:
        """Pass over the gap at `next_byte`: up to what waits, else up to `end` at least.

        Of a gap that is `known` up to `end`, up to there: what lies behind is missing only now, a gap of its own.
        """
        start, until = self.next_byte, end
        end = self._waiting[0].start if self._waiting else max(self._reach, end)
        if known and start < until:
            end = min(end, until)
        if self._opening:
            before = self._sent_before(end)
            self._leave_out(before)
            if before == end:
                events: list[Event] = self._release(place)
                self._time_gap(place)
                return events
            end -= before
        self.next_byte = end
        self.expected = (self.expected + end - start) & SEQUENCE_MASK
        self.missing_bytes += end - start
        self._recent, self._recent_bytes = [], 0
        events = [Hole(self.direction, start, end, place), *self._release(place)]
        self._time_gap(place)
        return events

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
        self._limit_all()

    def _time_gap(self, place: Place) -> None:
        """What was before the next gap is told; the gap is known since the bytes between them arrived."""
        if self._waiting:
            self._gap_since_ns, self._gap_end = self._waiting[0].arrived_at_ns, self._waiting[0].start
        else:
            self._gap_end = self._reach
            self._gap_since_ns = place.arrived_at_ns if self._reach > self.next_byte else None

    def to_json(self) -> dict[str, Any]:
        """The side as carried state writes it. Equal sides give equal texts."""
        self._reach, self._acknowledged = max(self._reach, self.next_byte), max(self._acknowledged, self.next_byte)
        self._confirmed = max(self._confirmed, self.next_byte)
        if self._gap_since_ns is None:
            self._gap_end = 0
        waiting = [
            [piece.start, piece.arrived_at_ns, *piece.needs, piece.received, b64encode(piece.data).decode()]
            for piece in self._waiting
        ]
        recent = b64encode(self._kept()).decode()
        numbers = [getattr(self, name) for name in _NUMBERS]
        ignored = [[one.why.name, one.size, one.place.to_json()] for _, one in sorted(self.unreported.items())]
        return {"numbers": numbers, "waiting": waiting, "recent": recent, "ignored": ignored, "heard": self._receipts}

    @classmethod
    def from_json(cls, direction: Direction, options: TcpOptions, state: dict[str, Any]) -> Side:
        """The side that `to_json` wrote."""
        side = cls(direction, options)
        for name, value in zip(_NUMBERS, state["numbers"], strict=True):
            setattr(side, name, value)
        side._receipts = [(start, received) for start, received in state["heard"]]
        for start, arrived_at_ns, acknowledgment, seen_bytes, received, text in state["waiting"]:
            data = b64decode(text)
            needs = Needs(acknowledgment, seen_bytes)
            side._waiting.append(Piece(start, start + len(data), data, arrived_at_ns, needs, received))
            side._waiting_bytes += len(data)
        side._limit_all()
        for name, size, place in state["ignored"]:
            side.ignore(Why[name], size, Place.from_json(place))
        side._recent = [b64decode(state["recent"])]
        side._recent_bytes = len(side._recent[0])
        return side


_NUMBERS: Final = (
    "packets",
    "missing_bytes",
    "retransmitted_bytes",
    "ignored_bytes",
    "strays",
    "out_of_order",
    "zero_windows",
    "overlaps_differ",
    "next_byte",
    "expected",
    "initial",
    "_reach",
    "_acknowledged",
    "_claimed",
    "_confirmed",
    "fin",
    "fin_acknowledges",
    "_stray",
    "_other",
    "_other_assumed",
    "_wanted",
    "assumed",
    "_opening",
    "_sent_from",
    "unproven",
    "_reported",
    "_gap_since_ns",
    "_gap_end",
)


def _piece_start(piece: Piece) -> int:
    return piece.start


def _piece_end(piece: Piece) -> int:
    return piece.end


def _limit_start(limit: tuple[int, Needs]) -> int:
    return limit[0]


def _is_more(needs: Needs, other: Needs) -> bool:
    """`needs` waits for more than `other`."""
    known, least = needs.acknowledgment, other.acknowledgment
    return known != UNKNOWN and (least == UNKNOWN or distance(known, least) > 0)


def _waits_since_ns(side: Side) -> int:
    return side._waiting[0].arrived_at_ns


def distance(sequence: int, expected: int) -> int:
    """How far `sequence` is ahead, by the shorter way round; negative if it is behind."""
    return ((sequence - expected + 2**31) & SEQUENCE_MASK) - 2**31


class Reset(NamedTuple):
    """A RST of `direction` that isn't where its sender's stream stands: time, or its sender, says what it was."""

    direction: Direction
    place: Place
    #: Its own, if it has one.
    acknowledgment: int | None
    #: The sequence number after all that the other side had sent, and the first that its sender acknowledged later.
    sent: int
    #: Likewise after all of its alleged sender, or where the RST stands if that is further.
    own: int
    acknowledged: int = UNKNOWN

    def to_json(self) -> list[Any]:
        return [self.direction, self.place.to_json(), *self[2:]]

    @classmethod
    def from_json(cls, state: list[Any]) -> Reset:
        direction, place, *numbers = state
        return cls(Direction(direction), Place.from_json(place), *numbers)


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


@dataclass(slots=True)
class Connection:
    """A connection as a table row has it. It changes with every segment, also after the end."""

    connection_id: bytes
    opened: Opening
    first: Place
    last: Place
    client: Side
    server: Side
    closed: Ending | None = None
    #: How many of its ports' connections before it began at the same moment.
    ordinal: int = 0
    reset: Reset | None = None
    #: The first segments with bytes of a side that nothing has numbered.
    held: list[TcpSegment] = field(default_factory=list, repr=False)
    #: The last segments with bytes that did not go on where their side ended: ignored, or waiting behind a gap. A SYN
    #: may still say that they are of the next connection.
    _apart: list[Apart] = field(default_factory=list, repr=False)
    #: It is open, without gaps and FINs: the next segment can be a plain one.
    is_regular: bool = False
    #: A SYN of it was captured.
    has_syn: bool = False
    #: The next connection took segments that were counted here.
    _gave: bool = False

    def __post_init__(self) -> None:
        self.client.peer, self.server.peer = self.server, self.client

    def sides(self, direction: Direction) -> tuple[Side, Side]:
        """The side that sends in `direction`, and the other."""
        return (self.client, self.server) if direction is Direction.CLIENT else (self.server, self.client)

    def is_left_by(self, segment: TcpSegment) -> bool:
        """A segment with SYN begins another connection."""
        ours, theirs = self.sides(segment.direction)
        if self.held and self.numbers_held(segment):
            return False
        answers = bool(segment.flags & ACK)
        if ours.began_after(segment.sequence):
            is_copy = segment.place.arrived_at_ns == self.first.arrived_at_ns
            return self.closed == "reset" and not answers and not is_copy
        if self.closed is not None:
            return True
        if answers and (self.opened != "middle" or not ours.may_have_begun_at(segment.sequence + 1)):
            return not theirs.is_answered_by(segment.acknowledgment)
        if self.opened != "syn" and ours.may_have_begun_at(segment.sequence + 1):
            age_ns = segment.place.arrived_at_ns - self.first.arrived_at_ns
            return age_ns >= ours.options.hole_wait_ns
        # Both sides may open at once (RFC 9293 section 3.5, figure 8).
        return self.opened != "syn" or ours.initial != UNKNOWN

    @property
    def in_middle(self) -> bool:
        """The capture begins in its middle: its first packets are none that a late SYN explains."""
        return self.opened == "middle" and not self.has_syn

    @property
    def holds_enough(self) -> bool:
        """No more segments may be held."""
        size = sum(len(one.payload) for one in self.held)
        return len(self.held) >= HELD_SEGMENTS or size > self.client.options.max_waiting_bytes

    def sent_by(self, side: Side) -> int:
        """As `Side.sent`; while nothing numbers the side, as the segments that are held have it."""
        if side.expected != UNKNOWN or not self.held:
            return side.sent
        if self.held[0].direction is side.direction:
            ends = [(one.sequence + one.payload_bytes + bool(one.flags & FIN)) & SEQUENCE_MASK for one in self.held]
        else:
            ends = [one.acknowledgment for one in self.held if one.flags & ACK]
        return max(ends, key=lambda end: distance(end, ends[0]), default=UNKNOWN)

    def numbers_held(self, segment: TcpSegment) -> bool:
        """It belongs to the connection of the bytes that are held: it acknowledges some of them, or is a SYN of it."""
        first = self.held[0]
        if segment.direction is first.direction:
            near = (segment.sequence, first.sequence) if segment.flags & SYN else None
        elif segment.flags & ACK:
            near = (segment.acknowledgment, first.sequence)
        else:
            near = (segment.sequence, first.acknowledgment) if segment.flags & SYN and first.flags & ACK else None
        return near is not None and abs(distance(*near)) < WINDOW_BYTES

    def keep_apart(self, segment: TcpSegment, fate: Fate) -> None:
        """Remember a segment with bytes: it may be of the next connection, captured before its SYN."""
        if segment.flags & (SYN | RST):
            self._ignore(segment, fate)
            return
        self._apart.append(Apart(segment, fate))
        many, size = len(self._apart), sum(len(one.segment.payload) for one in self._apart)
        while many > EARLY_SEGMENTS or size > EARLY_BYTES:
            many, size = many - 1, size - len(self._apart[0].segment.payload)
            self._keep_first()

    def give_away(self, syn: TcpSegment) -> list[TcpSegment]:
        """The segments of the connection which `syn` opens; they no longer count here."""
        ours, _ = self.sides(syn.direction)
        given = [one for one in self._apart if ours.gives_away(one, syn)]
        self._apart = [one for one in self._apart if one not in given]
        ours.packets -= len(given)
        self._gave = bool(given)
        return [one.segment for one in given]

    def take_back(self, side: Side) -> list[TcpSegment]:
        """The segments of a side that were ignored, and are credible now."""
        back = [
            one
            for one in self._apart
            if one.fate is Fate.STRAY and one.segment.direction is side.direction and side.is_near(one.segment.sequence)
        ]
        self._apart = [one for one in self._apart if one not in back]
        side.last_stray = None
        side.strays -= len(back)
        side.ignored_bytes -= sum(len(one.segment.payload) for one in back)
        return [one.segment for one in back]

    def keep_early(self, until_ns: int | None = None) -> None:
        """No SYN came in time for the segments that arrived until then, or for all: they are of this connection."""
        while self._apart and (until_ns is None or self._apart[0].segment.place.arrived_at_ns <= until_ns):
            self._keep_first()

    def _keep_first(self) -> None:
        self._ignore(*self._apart.pop(0))

    def _ignore(self, segment: TcpSegment, fate: Fate) -> None:
        if fate.why is not None:
            self.sides(segment.direction)[0].ignore(fate.why, len(segment.payload), segment.place)

    @property
    def has_news(self) -> bool:
        """Its row is no longer right, or notes are to be written, without a segment of its own."""
        return self._gave or bool(self.client.unreported or self.server.unreported)

    @property
    def reset_waits_since(self) -> Place:
        """From when on a RST that waits is confirmed by time: of a side that was not captured only by silence."""
        assert self.reset is not None
        ours, _ = self.sides(self.reset.direction)
        return self.reset.place if ours.packets else self.last

    def judge_regular(self) -> None:
        """See whether the next segment can be a plain one."""
        is_settled = self.closed is None and self.reset is None
        self.is_regular = is_settled and self.client.regular and self.server.regular

    def to_json(self) -> dict[str, Any]:
        """The connection as carried state writes it."""
        self.keep_early(self.last.arrived_at_ns - self.client.options.hole_wait_ns)
        return {
            "connection_id": self.connection_id.hex(),
            "opened": self.opened,
            "closed": self.closed,
            "ordinal": self.ordinal,
            "has_syn": self.has_syn,
            "reset": self.reset and self.reset.to_json(),
            "held": [_segment_to_json(segment) for segment in self.held],
            "apart": [[_segment_to_json(segment), fate] for segment, fate in self._apart],
            "first": self.first.to_json(),
            "last": self.last.to_json(),
            "client": self.client.to_json(),
            "server": self.server.to_json(),
        }

    @classmethod
    def from_json(cls, options: TcpOptions, state: dict[str, Any]) -> Connection:
        """The connection that `to_json` wrote."""
        connection = cls(
            bytes.fromhex(state["connection_id"]),
            state["opened"],
            Place.from_json(state["first"]),
            Place.from_json(state["last"]),
            Side.from_json(Direction.CLIENT, options, state["client"]),
            Side.from_json(Direction.SERVER, options, state["server"]),
            state["closed"],
            state["ordinal"],
            state["reset"] and Reset.from_json(state["reset"]),
            [_segment_from_json(segment) for segment in state["held"]],
            [Apart(_segment_from_json(segment), Fate(fate)) for segment, fate in state["apart"]],
        )
        connection.has_syn = state["has_syn"]
        connection.judge_regular()
        return connection


def _segment_to_json(segment: TcpSegment) -> list[Any]:
    place, *header, payload, payload_bytes = segment
    return [place.to_json(), *header, b64encode(payload).decode(), payload_bytes]


def _segment_from_json(state: list[Any]) -> TcpSegment:
    place, direction, sequence, acknowledgment, flags, window, payload, size = state
    header = (sequence, acknowledgment, flags, window)
    return TcpSegment(Place.from_json(place), Direction(direction), *header, b64decode(payload), size)


def connection_id(
    source: str, client: Endpoint, server: Endpoint, sequence: int, arrived_at_ns: int, ordinal: int = 0
) -> bytes:
    """16 bytes that name a connection.

    `sequence` is the client's initial sequence number, or the first that was seen; the time is the first packet's.
    `ordinal` tells connections of the same ports apart that began at one moment, as a coarse clock has it.
    """
    name = source.encode()
    digest = hashlib.sha256(struct.pack(">I", len(name)) + name)
    for endpoint in (client, server):
        digest.update(struct.pack(">B", len(endpoint.packed)) + endpoint.packed + struct.pack(">H", endpoint.port))
    digest.update(struct.pack(">Iq", sequence & SEQUENCE_MASK, arrived_at_ns))
    if ordinal:
        digest.update(struct.pack(">Q", ordinal))
    return digest.digest()[:16]


class Flow:
    """The connections of a pair of ports, one after the other. `receive` segments in arrival order.

    Raises StateVersionError if `snapshot` was written by another version. Who needs the last state of a connection that
    is left for another looks at `connection` before `receive` and `expire`.
    """

    def __init__(
        self, source: str, client: Endpoint, server: Endpoint, options: TcpOptions, snapshot: str | None = None
    ) -> None:
        self._source = source
        self._client = client
        self._server = server
        self._options = options
        #: The connection that segments belong to: open, or closed and not yet silent for `idle_ns`.
        self.connection: Connection | None = None
        if snapshot:
            self._restore(snapshot)

    def receive(self, segment: TcpSegment) -> list[Event]:
        """Take the next segment; what it brought about."""
        place, direction, sequence, acknowledgment, flags, window, payload, payload_bytes = segment
        connection = self.connection
        if (
            connection is None
            or not connection.is_regular
            or flags & CONTROL != ACK
            or place.arrived_at_ns - connection.last.arrived_at_ns >= self._options.idle_ns
        ):
            return self._receive_any(segment)
        ours, theirs = connection.sides(direction)
        if not ours.packets:
            return self._receive_any(segment)
        ahead = acknowledgment - theirs.expected & SEQUENCE_MASK
        if ahead >= WINDOW_BYTES:
            if not theirs.next_byte:
                return self._receive_any(segment)
            ahead = 0
        if ahead and (theirs.assumed or not theirs.packets):
            return self._receive_any(segment)
        if payload_bytes and (ahead or sequence != ours.expected or len(payload) != payload_bytes):
            return self._receive_any(segment)
        connection.last = place
        ours.packets += 1
        if not window:
            ours.zero_windows += 1
        if ahead:
            theirs.note_acknowledgment(acknowledgment)
        if not payload_bytes:
            return []
        if acknowledgment != ours.noted_acknowledgment:
            ours.note_acknowledged(ours.next_byte, acknowledgment, theirs)
        return [ours.deliver(payload, place)]

    @property
    def ends_ns(self) -> int | None:
        """When silence alone does something to the connection; None = there is no connection."""
        connection = self.connection
        if connection is None:
            return None
        options, last_ns = self._options, connection.last.arrived_at_ns
        if connection.closed is not None:
            return last_ns + options.idle_ns
        finished = connection.client.is_finished and connection.server.is_finished
        ends_ns = last_ns + (options.hole_wait_ns if finished else options.idle_ns)
        waiting = [segment.place for segment in connection.held[:1]]
        if connection.reset is not None:
            waiting.append(connection.reset_waits_since)
        return min([ends_ns, *(place.arrived_at_ns + options.hole_wait_ns for place in waiting)])

    def expire(self, ns: int) -> list[Event]:
        """Let go of a connection that was silent for long enough at `ns`; its last segment is the evidence."""
        connection = self.connection
        if connection is None:
            return []
        events: list[Event] = []
        last, options = connection.last, self._options
        connection.keep_early(ns - options.hole_wait_ns)
        if connection.held and connection.held[0].place.arrived_at_ns + options.hole_wait_ns <= ns:
            events += _release_held(connection)
            connection.judge_regular()
        finished = connection.client.is_finished and connection.server.is_finished
        ways: list[tuple[Ending, Place, int]] = [("idle", last, options.idle_ns)]
        if finished:
            ways.append(("fin", last, options.hole_wait_ns))
        if connection.reset is not None:
            ways.append(("reset", connection.reset_waits_since, options.hole_wait_ns))
        if connection.closed is None:
            how, evidence, waits_ns = min(ways, key=lambda way: way[1].arrived_at_ns + way[2])
            ends_ns = evidence.arrived_at_ns + waits_ns
            if ends_ns <= ns:
                events += _close(connection, how, replace(evidence, arrived_at_ns=ends_ns))
        if last.arrived_at_ns + options.idle_ns <= ns:
            self.connection = None
        return events

    def _receive_any(self, segment: TcpSegment) -> list[Event]:
        place, flags = segment.place, segment.flags
        events = self.expire(place.arrived_at_ns)
        ordinal, early = 0, []
        connection = self.connection
        if connection is not None and connection.reset is not None:
            events += _doubt_reset(connection, connection.reset, segment)
        if connection is not None and flags & SYN and connection.is_left_by(segment):
            early = [] if flags & RST else connection.give_away(segment)
            connection.keep_early()
            if connection.closed is None:
                events += _close(connection, "reset" if connection.reset else "reuse", place)
            if connection.first.arrived_at_ns == place.arrived_at_ns:
                ordinal = connection.ordinal + 1
            connection = None
        if connection is None:
            connection = self.connection = self._open(segment, ordinal)
            events.append(Opened(connection))
        connection.last = place
        events += _receive_in(connection, segment, early)
        connection.judge_regular()
        return events

    def _open(self, segment: TcpSegment, ordinal: int) -> Connection:
        opened: Opening = "middle"
        sequence = segment.sequence
        if segment.flags & SYN:
            opened = "syn_ack" if segment.flags & ACK else "syn"
            if opened == "syn_ack" and segment.direction is Direction.SERVER:
                sequence = segment.acknowledgment - 1
        arrived_at_ns = segment.place.arrived_at_ns
        name = connection_id(self._source, self._client, self._server, sequence, arrived_at_ns, ordinal)
        client, server = Side(Direction.CLIENT, self._options), Side(Direction.SERVER, self._options)
        return Connection(name, opened, segment.place, segment.place, client, server, ordinal=ordinal)

    def snapshot(self) -> str:
        """The state as JSON, empty if there is no connection; source, endpoints and options are given again."""
        if self.connection is None:
            return ""
        return json.dumps({"version": FLOW_VERSION, "connection": self.connection.to_json()}, separators=(",", ":"))

    def _restore(self, snapshot: str) -> None:
        state = json.loads(snapshot)
        if state.get("version") != FLOW_VERSION:
            raise StateVersionError(what="TCP flow", found=state.get("version"), expected=FLOW_VERSION)
        self.connection = Connection.from_json(self._options, state["connection"])


def _receive_in(connection: Connection, segment: TcpSegment, early: Sequence[TcpSegment]) -> list[Event]:
    """Take a segment of the connection, and behind it those that came before the connection was known."""
    place, flags = segment.place, segment.flags
    ours, theirs = connection.sides(segment.direction)
    was_captured = ours.packets > 0
    ours.packets += 1 + ours.unproven
    ours.unproven = 0
    before = ours.expected if connection.closed is None else UNKNOWN
    fate = Fate.WAITS
    events: list[Event] = []
    if connection.closed is not None:
        sequence = (segment.sequence + bool(flags & SYN)) & SEQUENCE_MASK
        fate = Fate.LATE if ours.ignore_late(sequence, segment.payload) else Fate.REPEATED
    elif flags & RST:
        events += _take_reset(connection, segment, was_captured=was_captured)
    elif not _hold_back(connection, segment):
        events += _take_turn(connection, segment)
        events += _advance(connection, place)
        for one in early:
            ours.packets += 1
            events += _take_again(connection, one, place)
        if ours.ended and theirs.ended:
            events += _close(connection, "fin", place)
    if ours.last_stray is place:
        fate = Fate.STRAY
    if segment.payload and segment.sequence != before:
        connection.keep_apart(segment, fate)
    return events


def _hold_back(connection: Connection, segment: TcpSegment) -> bool:
    """Hold the segment until the other side says where its bytes stand, if nothing has said so."""
    ours, _ = connection.sides(segment.direction)
    has_bytes = segment.payload_bytes or segment.flags & FIN
    if ours.expected != UNKNOWN or segment.flags & SYN or not has_bytes:
        return False
    held = connection.held
    if held and (segment.direction is not held[0].direction or connection.holds_enough):
        return False
    held.append(segment)
    return True


def _take_turn(connection: Connection, segment: TcpSegment) -> list[Event]:
    """Take a segment, and before it those that were held for it, or for as long as may be."""
    held = connection.held
    if not held:
        return _take(connection, segment)
    is_answer = segment.direction is not held[0].direction
    ours, theirs = connection.sides(segment.direction)
    is_near, flags = connection.numbers_held(segment), segment.flags
    if is_near and not is_answer:
        ours.announce((segment.sequence + 1) & SEQUENCE_MASK)
        if flags & ACK:
            theirs.begin(segment.acknowledgment)
    elif is_near and flags & ACK:
        ahead = distance(held[0].acknowledgment, segment.sequence)
        if flags & SYN:
            ours.announce((segment.sequence + 1) & SEQUENCE_MASK)
        elif 1 < ahead <= ACKNOWLEDGED_BYTES and held[0].flags & ACK:
            # What is held answers bytes of this side that are captured late. One byte less is a keep-alive.
            ours.begin(segment.sequence)
        theirs.begin_at_acknowledgment(segment.acknowledgment)
    elif is_near or (not is_answer and not connection.holds_enough):
        return _take(connection, segment)
    return [*_release_held(connection), *_take(connection, segment)]


def _release_held(connection: Connection) -> list[Event]:
    """Take the segments that were held, as they came."""
    events: list[Event] = []
    held, connection.held = connection.held, []
    if held:
        ours, _ = connection.sides(held[0].direction)
        sent = [(segment.sequence, segment.payload_bytes) for segment in held]
        ours.begin_before(sent, in_middle=connection.opened == "middle")
    for segment in held:
        events += _take_again(connection, segment, segment.place)
    return events


def _take_again(connection: Connection, segment: TcpSegment, place: Place) -> list[Event]:
    """Take a segment that came before, when nobody knew where it belongs."""
    events = [*_take(connection, segment), *_advance(connection, place)]
    ours, _ = connection.sides(segment.direction)
    if ours.last_stray is segment.place:
        ours.ignore(Why.FAR, len(segment.payload), segment.place)
    return events


def _take(connection: Connection, segment: TcpSegment) -> list[Event]:
    """Take a segment of an open connection that isn't reset by it."""
    place, flags, sequence, size = segment.place, segment.flags, segment.sequence, segment.payload_bytes
    ours, theirs = connection.sides(segment.direction)
    events: list[Event] = []
    if not segment.window:
        ours.zero_windows += 1
    if connection.opened == "middle":
        ours.begin_to_send(sequence)
    if flags & SYN:
        sequence = (sequence + 1) & SEQUENCE_MASK
        ours.announce(sequence)
        connection.has_syn = True
        if flags & ACK:
            theirs.begin(segment.acknowledgment)
    is_numbered_by_this = theirs.expected == UNKNOWN and not flags & SYN
    if flags & ACK:
        events += _take_acknowledgment(connection, ours, theirs, segment)
    if (size or not flags & SYN) and ours.select_by_own(sequence):
        events += _take_back(connection, ours, place, sequence)
    if not size and not flags & FIN:
        return events
    ours.begin_with_bytes(sequence, in_middle=connection.in_middle)
    needs, received = None, UNKNOWN
    if flags & ACK:
        needs = theirs.needs(segment.acknowledgment)
        if needs is not None:
            # Bytes may have come before, without an acknowledgment of their own in the capture.
            received = int(bool(size) and is_numbered_by_this)
    had_end = ours.fin is not None
    events += ours.take(sequence, segment.payload[:size], size, bool(flags & FIN), place, needs, received)
    if ours.fin is not None and not had_end and flags & ACK:
        ours.fin_acknowledges = segment.acknowledgment
    return events


def _take_acknowledgment(connection: Connection, ours: Side, theirs: Side, segment: TcpSegment) -> list[Event]:
    """What the acknowledgment of our segment says of the other side's bytes."""
    place, acknowledgment = segment.place, segment.acknowledgment
    events: list[Event] = []
    is_other = theirs.select_numbering(acknowledgment)
    theirs.note_acknowledgment(acknowledgment)
    if is_other:
        events += _take_back(connection, theirs, place)
    events += theirs.settle_opening(place)
    age_ns = place.arrived_at_ns - connection.first.arrived_at_ns
    if not theirs.packets and age_ns >= ours.options.hole_wait_ns:
        events += theirs.pass_uncaptured(place)
    elif connection.in_middle:
        theirs.follow()
    return events


def _take_back(connection: Connection, side: Side, place: Place, *sequences: int) -> list[Event]:
    """Take what was ignored of a side because another SYN had numbered its bytes; those of `sequences` come next."""
    again = connection.take_back(side)
    if not again:
        return []
    firsts = [*(one.sequence for one in again), *sequences]
    lowest = min(firsts, key=lambda first: distance(first, firsts[0]))
    side.begin_with_bytes(lowest, in_middle=False)
    return [event for segment in again for event in _take_again(connection, segment, place)]


def _advance(connection: Connection, place: Place, *, ending: bool = False) -> list[Event]:
    """Tell what waits no longer, and the holes that are due; all of them if the connection is `ending`."""
    events: list[Event] = []
    client, server = connection.client, connection.server
    while True:
        told = [*client.tell_answers(server, place), *server.tell_answers(client, place)]
        told += [*client.tell_due_holes(place), *server.tell_due_holes(place)]
        told = told or _resolve(client, server, place, ending=ending)
        if not told:
            return events
        events += told


def _resolve(client: Side, server: Side, place: Place, *, ending: bool) -> list[Event]:
    """What comes next where sides wait for each other."""
    if client.answers_wait and server.answers_wait:
        return client.answers_before(server, place)
    for ours, theirs in ((client, server), (server, client)):
        if ours.answers_wait and (ending or ours.answers_are_due(place)):
            return ours.give_up(theirs, place, ending=ending)
    return client.tell_next_hole(place) or server.tell_next_hole(place) if ending else []


def _take_reset(connection: Connection, segment: TcpSegment, *, was_captured: bool) -> list[Event]:
    """Take a RST. What it carries is no part of the stream (RFC 9293 section 3.5.3)."""
    ours, theirs = connection.sides(segment.direction)
    ours.ignored_bytes += len(segment.payload)
    ours.ignore(Why.RESET, len(segment.payload), segment.place)
    acknowledgment = segment.acknowledgment if segment.flags & ACK else None
    own = end = connection.sent_by(ours)
    if own != UNKNOWN and 0 < distance(segment.sequence, own) < WINDOW_BYTES:
        own = segment.sequence
    reset = Reset(segment.direction, segment.place, acknowledgment, connection.sent_by(theirs), own)
    is_asked = connection.opened == "syn" and not was_captured and ours.expected == UNKNOWN
    is_refusal = is_asked and acknowledgment is not None and theirs.is_answered_by(acknowledgment)
    if ours.may_end_at(segment.sequence) or segment.sequence == end or is_refusal:
        connection.reset = reset
        return _close(connection, "reset", segment.place)
    if not was_captured:
        ours.unproven, ours.packets = ours.packets, 0
    connection.reset = connection.reset or reset
    return []


def _doubt_reset(connection: Connection, reset: Reset, segment: TcpSegment) -> list[Event]:
    """What `segment` says of a RST that waits.

    Who acknowledges new data didn't send it; and whose new data are acknowledged neither. If its alleged sender was
    not captured, a connection that still goes on after the wait wasn't reset.
    """
    place, flags = segment.place, segment.flags
    if flags & (SYN | RST):
        return []
    ours, theirs = connection.sides(reset.direction)
    acknowledgment, is_sender = segment.acknowledgment, segment.direction is reset.direction
    goes_on = not ours.packets and place.arrived_at_ns - reset.place.arrived_at_ns >= ours.options.hole_wait_ns
    if flags & ACK and not goes_on and (theirs if is_sender else ours).is_credible(acknowledgment):
        known = [one for one in ((reset.sent, reset.acknowledged) if is_sender else (reset.own,)) if one != UNKNOWN]
        # Who asked to open the connection acknowledges nothing before it is open.
        is_open = not known and not is_sender and connection.opened == "syn"
        goes_on = is_open or any(distance(acknowledgment, one) > 0 for one in known)
        if is_sender and reset.acknowledged == UNKNOWN:
            connection.reset = reset._replace(acknowledged=acknowledgment)
        elif not is_sender and reset.own == UNKNOWN:
            connection.reset = reset._replace(own=acknowledgment)
    if not goes_on:
        return []
    connection.reset = None
    ours.strays += 1
    return [ResetIgnored(reset.direction, replace(reset.place, arrived_at_ns=place.arrived_at_ns))]


def _closed_by(connection: Connection, how: Ending) -> Direction | None:
    """Who sent the first FIN, if only the other one's acknowledges it; else, who sent the RST."""
    client, server = connection.client, connection.server
    if how == "reset" and connection.reset is not None:
        ours, theirs = connection.sides(connection.reset.direction)
        # It may be the answer to the other side's FIN.
        return ours.direction if theirs.fin is None else theirs.direction
    if how != "fin" or client.knew_end_of(server) == server.knew_end_of(client):
        return None
    return server.direction if client.knew_end_of(server) else client.direction


def _close(connection: Connection, how: Ending, place: Place) -> list[Event]:
    events = _release_held(connection)
    connection.closed = how
    side = _closed_by(connection, how)
    if how == "reset" and connection.reset is not None:
        ours, theirs = connection.sides(connection.reset.direction)
        ours.packets, ours.unproven = ours.packets + ours.unproven, 0
        if connection.reset.acknowledgment is not None:
            theirs.note_acknowledgment(connection.reset.acknowledgment)
    connection.reset = None
    connection._apart = [one for one in connection._apart if one.fate is not Fate.WAITS]
    events += _advance(connection, place, ending=True)
    return [*events, *connection.client.finish(place), *connection.server.finish(place), Closed(place, how, side)]
