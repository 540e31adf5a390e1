"""What the capture has of both sides of a connection, and what the sender of a frame could know.

A session may only find what no missing message could disprove. This module keeps account of that:

- Where messages were missed, or began before the capture, the connection is `partial` from then on.
- After undecodable bytes, or a hole, the next frame of a side is searched. Until it is found, what came before it is
  held back: when those frames were sent isn't known, nor whether they are answered already.
- A side knew at most what its host had received: `peer_received` is how much that was. Where it had received bytes
  that did not come here yet, they may be what its message answers. A response that answers nothing may be that of a
  request which was sent before its client received it, and comes later.
- When late bytes were first sent is unknown: they are retransmissions, or waited behind one (`late`). The same holds
  for a frame with such bytes, because the rest of it may have been sent again with them.

Each frame goes through `take` first, which returns what its sender knew, and then through `find_frame` or
`take_undecodable`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.ockam.wire.reader import Received
from wirehouse_codecs.tcp.endpoints import Direction, Late, PeerReceived, is_partly_within, other


class Sender(NamedTuple):
    """What the sender of a frame may have known when it sent it."""

    #: Whether the frame came with its packet: it did not wait for the beginning of its side to be found.
    is_fresh: bool
    #: Whether it had received more of the other side than was taken here.
    is_behind: bool
    #: Whether it had received the rest of a frame that is begun here. (One more byte may be a FIN; it doesn't count.)
    knows_frame: bool
    #: Whether a response may answer what comes after it, or what is begun.
    is_early: bool
    #: Whether the answer to a request may have come before it, and answered nothing then.
    may_be_answered: bool
    #: Whether the time when it was sent is unknown: some of its bytes, or some before them, came late.
    is_late: bool = False


@dataclass(slots=True)
class Coverage:
    """What of both sides has come."""

    #: The time since which messages are known to be missed, 0 = from the beginning; None = none were.
    partial_at_ns: int | None = None
    #: The same as `Outcome.missed`.
    missed: int = 0
    #: How far each side's bytes are here, how far they were taken, and up to where responses answer nothing.
    here: dict[Direction, int] = field(default_factory=lambda: dict.fromkeys(Direction, 0))
    taken: dict[Direction, int] = field(default_factory=lambda: dict.fromkeys(Direction, 0))
    unasked_end: int = 0
    #: Sides whose next frame is searched.
    searched: set[Direction] = field(default_factory=set)
    #: The last packet that showed a hole. What it released of the other side may come before what it answers.
    gap: Place | None = None
    #: None = a side had received what came before.
    peer_received_of: PeerReceived | None = field(default=None, init=False)
    #: None = nothing came late.
    late_of: Late | None = field(default=None, init=False)
    #: The place at which bytes of both sides came that each acknowledge the other's: nobody knows which came first.
    unordered: Place | None = field(default=None, init=False)
    #: The place with which the first frame of a side was found, from its begin on or after a search.
    found_at: dict[Direction, Place] = field(default_factory=dict, init=False)

    @classmethod
    def begin(cls, *, started_late: bool) -> Coverage:
        """Before the first byte."""
        if started_late:
            return cls(partial_at_ns=0, missed=1, searched=set(Direction))
        return cls()

    @property
    def partial(self) -> bool:
        """Whether messages from before were missed, or some since."""
        return self.partial_at_ns is not None

    @property
    def unasked(self) -> tuple[int, Place | None]:
        """By what a request may be answered already: up to where responses answer nothing, and the place of the first
        frame of the client, with which others may have waited."""
        return self.unasked_end, self.found_at.get(Direction.CLIENT)

    def peer_received(self, direction: Direction, byte_end: int) -> int:
        """How many bytes of the other side the sender of these had received, at most."""
        if self.peer_received_of is not None:
            return self.peer_received_of(direction, byte_end)
        return self.taken[other(direction)]

    def late(self, direction: Direction) -> Sequence[tuple[int, int]]:
        """Where bytes of a side stand of which nobody knows when they were sent."""
        return () if self.late_of is None else self.late_of(direction)

    def miss(self, since_ns: int) -> None:
        """Messages were missed; the first of them may have been sent at `since_ns`."""
        self.missed += 1
        if self.partial_at_ns is None:
            self.partial_at_ns = since_ns

    def take(self, received: Received) -> Sender:
        """The bytes up to the end of the next frame of a side are taken: what their sender knew."""
        direction, end = received.direction, received.byte_end
        peer = other(direction)
        if direction in self.searched or not self.taken[direction]:
            self.found_at[direction] = received.place
        # What waited for its beginning to be found came before this place.
        is_fresh = self.peer_received_of is None or self.found_at.get(direction) != received.place
        known = self.peer_received(direction, end) if self.peer_received_of is not None else 0
        is_behind = known > self.taken[peer]
        knows_frame = is_fresh and is_behind and known > self.here[peer] > self.taken[peer]
        # A response that waited so may answer what comes after it, or what is begun.
        may_answer = is_behind or self.here[peer] > self.taken[peer]
        is_early = may_answer and direction is Direction.SERVER and self.peer_received_of is not None
        may_be_answered = direction is Direction.CLIENT and bool(self.unasked_end)
        if may_be_answered and is_fresh:
            may_be_answered = self.peer_received(direction, end) < self.unasked_end
        self.taken[direction] = end
        is_late = is_partly_within(self.late(direction), received.byte_start, end)
        return Sender(is_fresh, is_fresh and is_behind, knows_frame, is_early, may_be_answered, is_late)

    def find_frame(self, received: Received, sender: Sender) -> bool:
        """A frame is found; whether it was held back: it may have been sent earlier than it came."""
        held_back = received.place == self.gap or received.direction in self.searched
        self.searched.discard(received.direction)
        # Frames that the other side sent before may still be searched.
        self.missed += len(self.searched)
        is_unordered = received.place == self.unordered
        if is_unordered or sender.knows_frame or (held_back and (sender.is_behind or not sender.is_fresh)):
            # What its sender had received may come later.
            self.missed += 1
        return held_back

    def take_undecodable(self, received: Received) -> None:
        """Bytes that are no message with a way to go, or that the capture lacks."""
        if received.direction in self.searched or (received.rule is None and not received.beyond_limit):
            # Frames that were held back come with it.
            self.gap = received.place
        if received.rule != "routed" and not received.beyond_limit:
            self.searched.add(received.direction)
