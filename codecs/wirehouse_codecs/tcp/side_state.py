"""The state of one side of a connection: its counters, and where its stream stands.

`numbering`, `waiting` and `holes` change it, and `side` has all of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.ignored import Ignored, Why
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_codecs.tcp.sequence_numbers import UNKNOWN
from wirehouse_codecs.tcp.waiting_pieces import Piece

if TYPE_CHECKING:
    from wirehouse_codecs.tcp.side import Side


@dataclass(slots=True)
class CarriedSide:
    """The state of a side for the next window: the counters of a table row, and where its stream stands.

    Each byte of captured payload is delivered, retransmitted, ignored or waiting. Behind each field are the modules
    that change it.
    """

    direction: Direction
    packets: int = 0  # reassembly, resets, connection, logs.flow_log
    #: Bytes of holes.
    missing_bytes: int = 0  # holes
    #: Bytes of payload that had been seen before.
    retransmitted_bytes: int = 0  # waiting, side
    #: Captured bytes that are no part of the stream: of strays, keep-alives and RSTs, from before its first byte, from
    #: where a hole was reported, and from after its end.
    ignored_bytes: int = 0  # side, resets, connection
    #: Segments with sequence numbers that are not credible.
    strays: int = 0  # side, resets, connection
    #: Segments with new bytes from before the furthest that had been seen.
    out_of_order: int = 0  # waiting
    zero_windows: int = 0  # numbering
    #: Events OverlapDiffers.
    overlaps_differ: int = 0  # side
    #: Position in the stream of the first byte that was neither delivered nor passed over.
    next_byte: int = 0  # waiting, holes
    #: The sequence number of that byte; -1 while none is numbered.
    expected: int = UNKNOWN  # numbering, waiting, holes
    #: The sequence number before the first byte.
    initial: int = UNKNOWN  # numbering
    #: How far bytes are known to have been sent; below `next_byte` if no further.
    _reach: int = 0  # numbering, holes, side
    #: How far they were acknowledged, if that is further than what was seen; and the last acknowledgment that was too
    #: far to be believed alone.
    _acknowledged: int = 0  # numbering, side
    _claimed: int = 0  # numbering
    #: How far at least two segments acknowledged them.
    _confirmed: int = 0  # numbering, side
    #: How far it had sent, as its segments without bytes show.
    _sent: int = 0  # numbering, side
    #: The position of the FIN, and its acknowledgment.
    fin: int | None = None  # side, numbering
    fin_acknowledges: int = UNKNOWN  # reassembly, side
    #: The position behind a last byte that did not come, and counts as a FIN.
    _assumed_end: int = UNKNOWN  # holes
    #: The sequence number after the last stray.
    _stray: int = UNKNOWN  # side
    #: The other sequence number that its first byte may have, while two of them have been seen; and whether no SYN says
    #: so, only an acknowledgment or the first bytes.
    _other: int = UNKNOWN  # numbering, side
    _other_assumed: bool = False  # numbering, side
    #: Whether the other side has acknowledged its SYN, or bytes near it.
    _is_acknowledged: bool = False  # numbering
    #: Whether the receiver has acknowledged something since there is a gap: it lacks what it doesn't acknowledge, too.
    _acknowledged_since_gap: bool = False  # numbering, waiting, side
    #: Whether only the peer's acknowledgments number its bytes. Its own SYN or first bytes override that.
    assumed: bool = False  # numbering, waiting
    #: Whether there may be bytes before the first captured ones: neither its SYN, nor what the other side acknowledged
    #: before its own first byte, shows where its bytes begin.
    may_lack_beginning: bool = True  # numbering, reassembly
    #: Whether only an answer to its SYN numbers its bytes: the SYN was not captured, and may have carried some.
    only_answered: bool = False  # numbering
    #: Whether it begins with a gap in which bytes may still come that were sent before the capture began.
    _opening: bool = False  # numbering, waiting, holes
    #: The sequence number of its first captured packet, if the capture begins in the middle.
    _sent_from: int = UNKNOWN  # numbering
    #: Number of RSTs that may be forged, while nothing else of it was captured. They count in `packets` once believed.
    unproven: int = 0  # resets, reassembly
    #: Ignored bytes that aren't reported yet; and the reported reasons, as a sum of REASONS.
    unreported: dict[Why, Ignored] = field(default_factory=dict, repr=False)  # side
    _reported: int = 0  # side
    #: Ranges of late bytes, see `numbering`.
    _late: list[tuple[int, int]] = field(default_factory=list, repr=False)  # waiting, numbering
    #: Ranges of the last holes.
    _holes: list[tuple[int, int]] = field(default_factory=list, repr=False)  # holes
    #: Since when there is a gap at `next_byte`, and how far bytes were known to have been sent then.
    _gap_since_ns: int | None = None  # side, waiting, holes
    _gap_end: int = 0  # side, waiting, numbering
    #: Whether the receiver showed that it lacks the gap, too (-1); or how far it acknowledged the gap at last, when its
    #: time began again. 0: neither.
    _gap_acknowledged: int = 0  # side, waiting, numbering, holes
    #: Pieces that wait behind a gap, or for bytes of the other side; in order, without overlaps.
    _waiting: list[Piece] = field(default_factory=list, repr=False)  # waiting, numbering, side
    #: Positions, and how many bytes of the other side its sender had received from there on. Both rise, unless the
    #: other side is numbered again.
    _receipts: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)], repr=False)  # numbering
    #: Positions of its next byte when the other host took no more (true), or when bytes were sent again: the bytes that
    #: follow may have waited for that.
    _stalls: list[tuple[int, bool]] = field(default_factory=list, repr=False)  # numbering
    #: The last bytes that were delivered, without a hole up to `next_byte`.
    _recent: list[bytes | memoryview] = field(default_factory=list, repr=False)  # waiting, holes, side


@dataclass(slots=True)
class SideState(CarriedSide):
    """The state of a side: what is carried, and what follows from that."""

    options: TcpOptions = field(kw_only=True, repr=False)
    _waiting_bytes: int = 0  # waiting, side
    #: The other side.
    peer: Side = field(init=False, repr=False, compare=False)  # connection
    #: The last acknowledgment that `note_acknowledged` took.
    noted_acknowledgment: int = field(default=UNKNOWN, repr=False)  # numbering
    _recent_bytes: int = 0  # waiting, holes, side

    @property
    def delivered_bytes(self) -> int:
        """Bytes of Data events."""
        return self.next_byte - self.missing_bytes

    @property
    def kept_bytes(self) -> int:
        """Bytes of the pieces that wait."""
        return self._waiting_bytes

    @property
    def is_guessed(self) -> bool:
        """Whether nothing of its own shows where its bytes begin, so that the first ones may be missing."""
        return not self.packets or self.assumed or self.only_answered or self.expected == UNKNOWN

    @property
    def reach(self) -> int:
        """How far bytes are known to have been sent; below `next_byte` if no further."""
        return self._reach

    @property
    def confirmed_bytes(self) -> int:
        """How far at least two segments of the other side acknowledged them."""
        return self._confirmed

    @property
    def next_piece(self) -> Piece:
        """The first piece that waits; only if one does."""
        return self._waiting[0]

    @property
    def answers_wait(self) -> bool:
        """Whether the next bytes are here, and wait for bytes of the other side."""
        return bool(self._waiting) and self._waiting[0].start == self.next_byte

    @property
    def is_finished(self) -> bool:
        """Whether its FIN was reached, or acknowledged: then the other side has all bytes before it."""
        return self.ended or (self.fin is not None and self._acknowledged > self.fin)

    @property
    def ended(self) -> bool:
        """Whether its FIN was reached."""
        return self.fin == self.next_byte

    @property
    def regular(self) -> bool:
        """Whether it has one numbering, no gap and no end, and nothing more was acknowledged or sent."""
        if self._gap_since_ns is not None or self.fin is not None:
            return False
        is_agreed = self.assumed or self._is_acknowledged or self.next_byte > 0
        is_numbered = self.expected != UNKNOWN and self._other == UNKNOWN and is_agreed
        return is_numbered and max(self._acknowledged, self._sent) <= self.next_byte

    @property
    def is_in_order(self) -> bool:
        """Whether no bytes wait, and there is no gap."""
        return not self._waiting and self._gap_since_ns is None

    @property
    def incomplete(self) -> bool:
        """Whether bytes are known to have been sent that were neither delivered nor passed over."""
        return bool(self._waiting) or self._gap_since_ns is not None or self.lacks(self._acknowledged)

    @property
    def acknowledged_bytes(self) -> int:
        """How far the other side has acknowledged them, as far as that is believed."""
        return self._acknowledged

    def lacks(self, end: int) -> bool:
        """Whether bytes before `end`, which was acknowledged, are neither delivered nor passed over."""
        if self.fin is not None:
            end = min(end, self.fin)
        elif end == max(self._reach, self.next_byte) + 1:
            end -= 1
        return self.next_byte < end

    def is_awaited(self, end: int) -> bool:
        """Whether bytes before `end` are waited for: see `lacks`.

        The last byte, which may be a FIN, is waited for too, if its side was captured, until nobody expects it.
        """
        may_come = self.packets and self.fin is None and end != self._assumed_end
        return self.next_byte < end if may_come else self.lacks(end)

    @property
    def is_only_acknowledged(self) -> bool:
        """Whether no packet of it was captured, and the other side acknowledged bytes."""
        return not self.packets and self.lacks(self._acknowledged)

    @property
    def lacks_beginning(self) -> bool:
        """Whether its first bytes are neither here nor passed over, and later ones are known."""
        return not self.next_byte and self._gap_since_ns is not None

    @property
    def has_two_numberings(self) -> bool:
        """Whether nothing shows yet which of two sequence numbers its first byte has."""
        return self._other != UNKNOWN

    @property
    def has_begun(self) -> bool:
        """Whether bytes of it, or its end, were seen or passed over."""
        return not self._is_untouched

    @property
    def _is_untouched(self) -> bool:
        """Whether no byte and no end of it was seen or passed over."""
        return not self.next_byte and self._reach <= 0 and not self._waiting and self.fin is None

    @property
    def seen_bytes(self) -> int:
        """Bytes that were delivered or wait."""
        return self.delivered_bytes + self._waiting_bytes
