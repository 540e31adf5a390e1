"""The state of a session: what both peers have agreed on and sent so far, and what is unknown after lost bytes.

The functions of `control.py`, `data.py`, `life.py`, `turns.py` and `pieces.py` read and change it, packet by packet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from wirehouse_codecs.bamboo.options import BYMUX, BambooOptions
from wirehouse_codecs.bamboo.rules import ENDS
from wirehouse_codecs.bamboo.session.effects import Doubt, Incoming
from wirehouse_codecs.bamboo.session.entry_rebuild import Known
from wirehouse_codecs.bamboo.session.proposals import (
    Half,
    Proposal,
)
from wirehouse_codecs.bamboo.setup import Role, Setup
from wirehouse_codecs.bamboo.wire import yamf
from wirehouse_codecs.bamboo.wire.decompression import Inflating
from wirehouse_codecs.bamboo.wire.lzfoo import Inflater
from wirehouse_codecs.bamboo.wire.messages import (
    SendMode,
    send_mode,
)
from wirehouse_codecs.bamboo.wire.reader import Layer
from wirehouse_codecs.bamboo.wire.varu64 import MAX_U64
from wirehouse_codecs.core.snapshots import carried_fields

Array = np.ndarray[Any, Any]
#: How many proposals a session follows. Packets about further ones aren't judged.
MOST_PROPOSALS: Final = 2_048
#: How many whole payloads of each side are kept, and the most bytes of each. Later proposals may begin within them.
MOST_WHOLE: Final = 16
MOST_WHOLE_BYTES: Final = 4 << 10
#: Rules that aren't judged if bytes are missing: the missing bytes may have made the packet legal.
_NEED_ALL: Final = frozenset(
    {
        *("proposal_credit_overflow", "proposal_without_credit", "id_in_use", "cancel_or_adjust_inactive"),
        *("cancel_or_adjust_after_cancel", "switch_inactive", "cancelled_inactive", "data_without_switch"),
    }
)
#: Rules of the data channel that a packet of the control channel, still under way, may make legal.
_BY_CONTROL: Final = frozenset({"switch_inactive", "cancelled_inactive"})
#: Rules that depend on the settings of the other side, and rules that depend on the end that it adjusted.
BY_SETTINGS: Final = frozenset({"eagerness_ignored", "skip_size_untrue", "skip_of_mandatory_payload"})
BY_PLAN: Final = frozenset({"out_of_turn", "past_end"})


class Begun(NamedTuple):
    """The first bytes of a payload that a side sent, or all, and the hash of the whole payload."""

    payload_hash: bytes
    data: bytes


@dataclass
class Memory:
    """What a session carries from window to window."""

    #: How the payloads of each side are decompressed.
    inflating: dict[Role, Inflating]
    inflaters: dict[Role, Inflater] = field(default_factory=dict)
    setups: dict[Role, Setup] = field(default_factory=dict)
    #: How many proposals each side may still send, how many it was allowed, and how many it has sent.
    credit: dict[Role, int] = field(default_factory=lambda: dict.fromkeys(Role, 0))
    granted: dict[Role, int] = field(default_factory=lambda: dict.fromkeys(Role, 0))
    proposed: dict[Role, int] = field(default_factory=lambda: dict.fromkeys(Role, 0))
    proposals: dict[int, Proposal] = field(default_factory=dict)
    #: The current proposal of each side: its id and its number.
    current: dict[Role, tuple[int, int] | None] = field(default_factory=lambda: dict.fromkeys(Role))
    #: Whether bytes are missing. The sides whose packets have not been read again since then are in `unheard`. Over two
    #: connections they stay there.
    partial: bool = False
    unheard: set[Role] = field(default_factory=set)
    #: Whether MOST_PROPOSALS was reached, so some proposals aren't followed.
    untracked: bool = False
    ended_by: str | None = None
    #: The number of proposals so far.
    numbers: int = 0
    known: Known = field(default_factory=Known)
    #: By log and side: the lowest sequence number of an end-of-log entry that the side sent.
    ends: dict[tuple[bytes, int, Role], int] = field(default_factory=dict)
    #: By log, entry and side: unfinished payloads that a later proposal may continue.
    begun: dict[tuple[bytes, int, int, Role], Begun] = field(default_factory=dict)
    #: By side, and by log and entry: the last right payloads that it sent, those that are small.
    whole: dict[Role, dict[tuple[bytes, int, int], Begun]] = field(default_factory=lambda: {role: {} for role in Role})
    #: By proposer and id of a dropped proposal: where its rival ends in the bytes of the other side.
    dropped: dict[tuple[Role, int], int] = field(default_factory=dict)
    #: Ids with packets that fit no known proposal. They may be about the next proposal with this id.
    unplaced: set[int] = field(default_factory=set)
    #: Only over two connections: a rule that is broken unless the control channel is late.
    doubted: Doubt | None = None


class SessionState(Memory):
    """The state of a connection between two peers. `memory` is that of an earlier window, to continue from."""

    def __init__(self, options: BambooOptions, memory: Memory) -> None:
        super().__init__(**carried_fields(Memory, memory))
        self.options = options
        #: Each channel has its own connection, so the order between the channels is unknown.
        self.apart = options.transport != BYMUX
        #: How many bytes of unfinished payloads are held.
        self.held = self._held_bytes()
        #: How many bytes of its peer a host had received at most, when it sent its bytes up to a position.
        self.peer_received: Callable[[Role, int], int] | None = None

    @classmethod
    def begin(cls, options: BambooOptions, *, started_late: bool, known: Known | None) -> SessionState:
        """Before the first packet, or where the capture begins. `known` are entries that are known from elsewhere."""
        return cls(
            options,
            Memory(
                {role: Inflating.begin(options) for role in Role},
                partial=started_late,
                unheard=set(Role) if started_late else set(),
                known=known or Known(),
            ),
        )

    def miss(self, role: Role) -> None:
        """Bytes of `role` are missing: its cursors and its current proposal are unknown from here on."""
        self.partial = True
        self.unheard.add(role)
        self.current[role] = None
        self.inflating[role].held.clear()
        self.kept_inflater(role).forget()
        for proposal in self.proposals.values():
            proposal.partial = True
            self.lose_half(proposal.halves[role])

    def doubt(self, role: Role) -> None:
        """The other side has received bytes of `role` that come later, so their effects are unknown so far."""
        self.partial = True
        self.unheard.add(role)
        for proposal in self.proposals.values():
            proposal.partial = True

    def lose_half(self, half: Half) -> None:
        """The cursor of a side is unknown from here on."""
        self.release(half)
        half.last = None
        for version in half.versions:
            version.cursor.lost = True

    def release(self, half: Half) -> None:
        """Drop the unfinished payload of a side."""
        assembly, half.assembly = half.assembly, None
        if assembly is not None and assembly.data is not None:
            self.held -= len(assembly.data)

    def keep_whole(self, log: tuple[bytes, int], seq: int, role: Role, data: bytes) -> None:
        """Keep a right payload that a side sent, if it is small: a later proposal may begin within it."""
        if len(data) > MOST_WHOLE_BYTES:
            return
        kept, key = self.whole[role], (*log, seq)
        kept.pop(key, None)
        kept[key] = Begun(yamf.encode(yamf.digest(data)), data)
        if len(kept) > MOST_WHOLE:
            del kept[next(iter(kept))]

    def sent_before(self, log: tuple[bytes, int], seq: int, role: Role) -> list[Begun]:
        """What is kept of a payload: what the side began to send, and what either side sent whole."""
        found = [self.begun.get((*log, seq, role)), *(self.whole[one].get((*log, seq)) for one in Role)]
        return [one for one in found if one is not None]

    def not_received(self, incoming: Incoming, byte_end: int) -> bool:
        """Whether the packet was sent before its host had received the bytes of the other side up to `byte_end`."""
        if self.peer_received is None or (self.apart and incoming.read.layer is Layer.DATA):
            return False
        return self.peer_received(incoming.role, incoming.byte_end) < byte_end

    def ends_log(self, author: bytes, log_id: int, role: Role) -> bool:
        """Whether a side sent an end-of-log entry."""
        return (author, log_id, role) in self.ends

    def note_end(self, author: bytes, log_id: int, role: Role, seq: int) -> None:
        """Remember that a side sent an end-of-log entry."""
        key = (author, log_id, role)
        self.ends[key] = min(seq, self.ends.pop(key, seq))
        if len(self.ends) > MOST_PROPOSALS:
            del self.ends[next(iter(self.ends))]

    def mode(self, role: Role) -> SendMode | None:
        """How `role` sends. None: a set-up is missing."""
        mine, peers = self.setups.get(role), self.setups.get(role.peer)
        return None if mine is None or peers is None else send_mode(mine, peers)

    def inflater(self, role: Role) -> Inflater:
        """A decompressor for the next payload of a side. It is a new one if none is kept."""
        if role in self.inflaters:
            return self.inflaters[role]
        mode = self.mode(role)
        window = MAX_U64 if mode is None else mode.window
        return Inflater(window, max_bytes=self.options.max_inflated_bytes, from_start=not self.partial)

    def kept_inflater(self, role: Role) -> Inflater:
        """The decompressor of a side, which is kept from now on."""
        return self.inflaters.setdefault(role, self.inflater(role))

    def inflate_on(self, role: Role, data: Array) -> None:
        """Payloads of a side were decompressed by the fast path."""
        self.inflating[role].held.clear()
        self.kept_inflater(role).add(data)

    def _held_bytes(self) -> int:
        """How many bytes of unfinished payloads there are, counted again."""
        assemblies = (half.assembly for one in self.proposals.values() for half in one.halves.values())
        return sum(len(one.data) for one in assemblies if one is not None and one.data is not None)

    def find(self, incoming: Incoming, rule: str, reason: str) -> bool:
        """Note that the packet breaks a rule. Returns False if missing bytes may excuse it."""
        if self.partial and rule in _NEED_ALL:
            return False
        if rule in ENDS and any(broken.rule.name in ENDS for broken in incoming.broken):
            return False
        incoming.note(rule, reason)
        return True

    def find_unless_late(
        self, incoming: Incoming, rule: str, reason: str, number: int, proposal: Proposal | None
    ) -> None:
        """Note that a data packet breaks a rule, unless a packet of the control channel may be late or missing."""
        if not self.apart or rule not in _BY_CONTROL | BY_SETTINGS | BY_PLAN:
            self.find(incoming, rule, reason)
        elif not self.partial:
            at = incoming.role, incoming.byte_start, incoming.byte_end, incoming.place
            self.doubted = Doubt(rule, reason, *at, number, None if proposal is None else proposal.number)
            for one in Role:
                self.miss(one)

    def may_excuse(self, number: int) -> None:
        """A packet about a proposal came later than the data about it on the other connection: drop the doubt."""
        if self.doubted is not None and self.doubted.proposal_id == number:
            self.doubted = None

    def displace(self, number: int) -> None:
        """An input fits no proposal. If bytes are missing, it may be about one whose packet comes later."""
        if self.partial and len(self.unplaced) < MOST_PROPOSALS:
            self.unplaced.add(number)
