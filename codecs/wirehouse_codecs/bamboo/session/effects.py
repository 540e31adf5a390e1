"""Values that a session returns: the effects of a packet, payloads, and findings at the end.

`Incoming` collects the effects while the packet is taken.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from wirehouse_codecs.bamboo.rules import ENDS, RULE
from wirehouse_codecs.bamboo.session.entry_rebuild import Rebuilt
from wirehouse_codecs.bamboo.session.proposals import (
    Proposal,
)
from wirehouse_codecs.bamboo.setup import Role
from wirehouse_codecs.bamboo.wire.bymux import Broken
from wirehouse_codecs.bamboo.wire.reader import Read
from wirehouse_codecs.core.rules import Place


class Payload(NamedTuple):
    """A payload that a packet completes."""

    seq: int
    #: None: bytes of it are missing, or it is too long to be held or reported.
    data: bytes | None
    #: The number of packets that it came in.
    packets: int
    #: The entry rule that it breaks. None, with `checked`: it is the payload of its entry.
    rule: str | None
    checked: bool


class Effects(NamedTuple):
    """The effects of a packet."""

    read: Read
    #: The rules that it breaks. A violation comes first.
    broken: tuple[Broken, ...]
    #: The proposal that the packet is about.
    proposal: Proposal | None = None
    #: The cursor of its sender before and after it, if it is data about the current proposal.
    cursor_before: str | None = None
    cursor_after: str | None = None
    #: The entry that a data packet is about.
    seq: int | None = None
    entry: Rebuilt | None = None
    payload: Payload | None = None
    #: Payload bytes of the packet, decompressed.
    data: bytes | None = None
    #: Compressed bytes that were not decompressed, or that would inflate to too many bytes.
    compressed: bytes | None = None
    #: Where the packet begins that completed the piece right before this one. An apology retracts that piece.
    follows: int | None = None
    #: Proposals that ended with this packet.
    ended: tuple[Proposal, ...] = ()

    @property
    def ends(self) -> bool:
        """Whether the packet breaks a rule that ends the session."""
        return bool(self.broken) and self.broken[0].rule.name in ENDS


class Doubt(NamedTuple):
    """A rule that a data packet breaks, unless a packet of the control channel is missing or late."""

    rule: str
    reason: str
    role: Role
    byte_start: int
    byte_end: int
    place: Place
    proposal_id: int
    #: None: no proposal with this id is known.
    proposal_number: int | None


class Ending(NamedTuple):
    """A rule that is broken because something never came, and the proposal that it is about."""

    broken: Broken
    proposal: Proposal


class Incoming:
    """The packet that is being taken, the rules that it breaks so far, and its effects so far."""

    __slots__ = ("at_ns", "broken", "byte_end", "byte_start", "effects", "place", "read", "role")

    def __init__(self, read: Read) -> None:
        self.read = read
        self.role = read.role
        self.place, self.at_ns = read.place, read.place.arrived_at_ns
        self.byte_start, self.byte_end = read.byte_start, read.byte_end
        self.broken = list(read.broken)
        #: Fields of `Effects`.
        self.effects: dict[str, Any] = {}

    def note(self, rule: str, reason: str) -> None:
        """The packet breaks a rule, whatever bytes are missing."""
        self.broken.append(Broken(RULE[rule], reason))

    def result(self) -> Effects:
        """All that the packet did."""
        return Effects(self.read, tuple(self.broken), **self.effects)
