"""The session of two peers: what each packet of the control and the data channel does, and which rules it breaks.

A `Session` takes the packets of one connection in their order and gives an `Outcome` for each. The life of proposals is
the tables of proposals.py, who may send what where is cursor.py, and entries come back together in rebuilding.py; here
stand credit, ids, the overlap rule, the current proposals, payloads and their compression, and the order of rules.

- A rule of `ENDS` ends the session: nothing is received after it.
- What needs a signature isn't judged here. A packet says which piece it `follows`, so that a verdict on that piece
  tells all the same whether it was to be apologised for.
- Bytes that the capture lacks may have been anything. From then on what only they could have allowed breaks no rule.
- A session holds a bounded number of proposals, of entries for each, and of bytes of unfinished payloads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np

from wirehouse_codecs.bamboo.options import BYMUX, BambooOptions
from wirehouse_codecs.bamboo.rules import CONTROL_RULES, DATA_RULES, ENDS, RULE
from wirehouse_codecs.bamboo.session import cursor as places
from wirehouse_codecs.bamboo.session.cursor import Cursor, Piece, Sent, Turn
from wirehouse_codecs.bamboo.session.entry_rebuild import Known, Rebuilt, rebuild
from wirehouse_codecs.bamboo.session.proposals import (
    AFTER_OTHERS,
    LIFE,
    SIDES,
    Assembly,
    Half,
    Heard,
    Input,
    LastPiece,
    Life,
    Outcome,
    Proposal,
    SideState,
    Version,
    broken_adjust,
    expected_seq,
    raced_by,
    side_unlisted,
    unlisted,
    untrue_fork,
    untrue_hash,
)
from wirehouse_codecs.bamboo.setup import Role, Setup
from wirehouse_codecs.bamboo.wire import bymux_packets, entry_verification, lzfoo, yamf
from wirehouse_codecs.bamboo.wire.bymux import Broken
from wirehouse_codecs.bamboo.wire.decompression import Inflating, Inflation, is_whole, not_read
from wirehouse_codecs.bamboo.wire.entries import SIGNATURE_BYTES, signature_rule
from wirehouse_codecs.bamboo.wire.lipmaa import broken_range
from wirehouse_codecs.bamboo.wire.lzfoo import Inflater
from wirehouse_codecs.bamboo.wire.messages import (
    Adjust,
    Apology,
    Cancel,
    Cancelled,
    CancelReason,
    CompressedPayload,
    DataPacket,
    Metadata,
    Notify,
    PointToPoint,
    ProposalCredit,
    Propose,
    RawPayload,
    SendMode,
    SkipBytes,
    SkipPayload,
    Switch,
    send_mode,
)
from wirehouse_codecs.bamboo.wire.reader import CUT, CUT_WRITE, UNKNOWN_STREAM, Layer, Read
from wirehouse_codecs.bamboo.wire.varu64 import MAX_U64
from wirehouse_codecs.compiled.blake2b import Digest
from wirehouse_codecs.core.errors import StateVersionError
from wirehouse_codecs.core.rules import Place

Array = np.ndarray[Any, Any]

SNAPSHOT_VERSION: Final = 8
#: Proposals that a session follows; packets of further ones aren't judged.
MOST_PROPOSALS: Final = 2_048
#: Bytes of all payloads that are being put together; of one that would be beyond only a digest is kept.
MOST_HELD_BYTES: Final = 2 << 20
#: Payloads that were begun in proposals which are over; of each at most so many bytes.
MOST_BEGUN: Final = 16
MOST_BEGUN_BYTES: Final = 64 << 10
_ORDER: Final = {rule.name: place for place, rule in enumerate((*CONTROL_RULES, *DATA_RULES))}
#: Rules that bytes missing from the capture may have kept.
_NEED_ALL: Final = frozenset(
    {
        *("proposal_credit_overflow", "proposal_without_credit", "id_in_use", "cancel_or_adjust_inactive"),
        *("cancel_or_adjust_after_cancel", "switch_inactive", "cancelled_inactive", "data_without_switch"),
    }
)
#: Of the data channel: rules that a message of the control channel may have kept which has not arrived.
_BY_CONTROL: Final = frozenset({"switch_inactive", "cancelled_inactive"})


class Payload(NamedTuple):
    """A payload that is complete by a packet."""

    seq: int
    #: None: it could not be put together, or is too long to be held, or for what was sent of it.
    data: bytes | None
    #: In how many packets it came.
    packets: int
    #: The entry's rule that it breaks; None with `checked`: it is right.
    rule: str | None
    checked: bool


class Begun(NamedTuple):
    """The first bytes of a payload that a side sent, and the hash of all."""

    payload_hash: bytes
    data: bytes


class Told(NamedTuple):
    """What a packet did."""

    read: Read
    #: A violation, if there is one, is the first.
    broken: tuple[Broken, ...]
    #: The proposal that it is about.
    proposal: Proposal | None = None
    #: Where its sender stood before it and stands after it, if it is about the current proposal.
    cursor_before: str | None = None
    cursor_after: str | None = None
    #: Of a data packet: the entry that it is about.
    seq: int | None = None
    entry: Rebuilt | None = None
    payload: Payload | None = None
    #: Bytes of a payload, decompressed.
    data: bytes | None = None
    #: Bytes that are not decompressed, or stand for too many.
    compressed: bytes | None = None
    #: Where the packet begins and ends that completed the piece right before this one; an apology retracts it.
    follows: int | None = None
    #: Proposals whose life is over.
    ended: tuple[Proposal, ...] = ()

    @property
    def ends(self) -> bool:
        """It breaks a rule that ends the session."""
        return bool(self.broken) and self.broken[0].rule.name in ENDS


class Doubt(NamedTuple):
    """A rule that a packet of the data channel breaks, if no message of the control channel is missing or late."""

    rule: str
    reason: str
    role: Role
    byte_start: int
    byte_end: int
    place: Place
    proposal_id: int
    #: None: no proposal of that id is known.
    proposal_number: int | None

    def to_json(self) -> list[Any]:
        """As carried state writes it."""
        return [*self[:5], self.place.to_json(), *self[6:]]

    @classmethod
    def from_json(cls, row: list[Any]) -> Doubt:
        """What `to_json` wrote."""
        rule, reason, role, byte_start, byte_end, place, *about = row
        return cls(rule, reason, Role(role), byte_start, byte_end, Place.from_json(place), *about)


class Ending(NamedTuple):
    """A rule about what never came, and the proposal that it is about."""

    broken: Broken
    proposal: Proposal


class Session:
    """Both peers of a connection. `receive` their packets in their order, `end` it once.

    `known` are entries that are known from elsewhere.
    """

    def __init__(
        self,
        options: BambooOptions,
        *,
        started_late: bool = False,
        known: Known | None = None,
        snapshot: str | None = None,
    ) -> None:
        self._options = options
        #: Each channel has a connection of its own: between them there is no order.
        self._apart = options.transport != BYMUX
        self.setups: dict[Role, Setup] = {}
        #: How many proposals each side may still send, and what it was given and sent.
        self.credit = dict.fromkeys(Role, 0)
        self.granted = dict.fromkeys(Role, 0)
        self.proposed = dict.fromkeys(Role, 0)
        self.proposals: dict[int, Proposal] = {}
        #: The current proposal of each side: its id and its number.
        self.current: dict[Role, tuple[int, int] | None] = dict.fromkeys(Role)
        #: Bytes are missing, and those of these sides aren't read again yet; of two connections they never all are.
        self.partial = started_late
        self._unheard: set[Role] = set(Role) if started_late else set()
        #: There was no room for a proposal.
        self.untracked = False
        self.ended_by: str | None = None
        #: How many proposals there were.
        self.numbers = 0
        #: Bytes of the payloads that are being put together.
        self.held = 0
        self._known = Known() if known is None else known
        self._inflaters: dict[Role, Inflater] = {}
        self._inflating = {role: Inflating(options) for role in Role}
        #: By log and side: the least sequence number of an end-of-log entry that it sent.
        self._ends: dict[tuple[bytes, int, Role], int] = {}
        #: By log, entry and side: payloads that a later proposal may go on with, at its offset.
        self._begun: dict[tuple[bytes, int, int, Role], Begun] = {}
        #: By proposer and id: where the proposal of the other side ends for which one was dropped.
        self._dropped: dict[tuple[Role, int], int] = {}
        #: Ids about which a side said more than the capture explains: it may have meant the next proposal with that id.
        self._unplaced: set[int] = set()
        #: Over two connections: the rule that is broken if the control channel lacks nothing.
        self.doubted: Doubt | None = None
        #: How many bytes of its peer a side's host had received, at most, when it sent the byte before a place.
        self.peer_received: Callable[[Role, int], int] | None = None
        self._clear()
        if snapshot is not None:
            self._restore(snapshot)

    def _clear(self) -> None:
        """What holds for the packet that is taken."""
        self._broken: list[Broken] = []
        self._told: dict[str, Any] = {}
        self._place = Place.before(0)
        self._at_ns = 0
        self._byte_start = 0
        self._byte_end = 0

    def _not_received(self, role: Role, byte_end: int) -> bool:
        """The packet that is taken was sent before its host had received the other side's bytes up to `byte_end`."""
        return self.peer_received is not None and self.peer_received(role, self._byte_end) < byte_end

    # Input

    def receive(self, read: Read) -> Told:
        """Take the next packet. ValueError: a violation has ended the session."""
        if self.ended_by is not None:
            raise ValueError("the session has ended")
        self._clear()
        if read.reason in (UNKNOWN_STREAM, CUT, CUT_WRITE):
            # Which proposal is the current one is said on the data channel, in packets of their own.
            knows_current = read.reason == CUT or read.layer is Layer.CONTROL
            current = self.current[read.role] if knows_current else None
            self.miss(read.role)
            self.current[read.role] = current
        if read.packet is not None and not read.late and self._options.transport == BYMUX:
            self._unheard.discard(read.role)
        self._place, self._at_ns = read.place, read.place.arrived_at_ns
        self._byte_start, self._byte_end = read.byte_start, read.byte_end
        self._broken = list(read.broken)
        first = self._broken[0].rule.name if self._broken else None
        if first not in ENDS and read.layer is not Layer.BYMUX and read.packet is not None:
            assert not isinstance(read.packet, bymux_packets.Packet)
            _TAKE[type(read.packet)](self, read.role, read.packet)
        self._broken.sort(key=lambda broken: broken.rule.name not in ENDS)
        if self._broken and self._broken[0].rule.name in ENDS:
            self.ended_by = self._broken[0].rule.name
        return Told(read, tuple(self._broken), **self._told)

    def miss(self, role: Role) -> None:
        """Bytes of `role` that the capture lacks."""
        self.partial = True
        self._unheard.add(role)
        self.current[role] = None
        self._inflating[role].held.clear()
        self._inflater(role).forget()
        for proposal in self.proposals.values():
            proposal.partial = True
            self._lose_half(proposal.halves[role])

    def doubt(self, role: Role) -> None:
        """The other side has received bytes of `role` that come later: what these do to proposals isn't known yet."""
        self.partial = True
        self._unheard.add(role)
        for proposal in self.proposals.values():
            proposal.partial = True

    def _lose_half(self, half: Half) -> None:
        """Where a side stands isn't known any more."""
        self._release(half)
        half.last = None
        for version in half.versions:
            version.cursor.lost = True

    def _release(self, half: Half) -> None:
        """The payload that a side is sending isn't put together any more."""
        assembly, half.assembly = half.assembly, None
        if assembly is not None and assembly.data is not None:
            self.held -= len(assembly.data)

    @property
    def known(self) -> Known:
        """The entries that were seen last."""
        return self._known

    def ends_log(self, author: bytes, log_id: int, role: Role) -> bool:
        """Whether a side sent an end-of-log entry."""
        return (author, log_id, role) in self._ends

    def inflater(self, role: Role) -> Inflater:
        """What decompresses the next payload of a side."""
        if role in self._inflaters:
            return self._inflaters[role]
        mode = self.mode(role)
        window = MAX_U64 if mode is None else mode.window
        return Inflater(window, max_bytes=self._options.max_inflated_bytes, from_start=not self.partial)

    def inflate_on(self, role: Role, data: Array) -> None:
        """Payloads of a side were decompressed elsewhere."""
        self._inflating[role].held.clear()
        self._inflater(role).add(data)

    def mode(self, role: Role) -> SendMode | None:
        """How `role` sends; None: a set-up wasn't seen."""
        mine, peers = self.setups.get(role), self.setups.get(role.peer)
        return None if mine is None or peers is None else send_mode(mine, peers)

    def end(self, *, in_order: bool) -> list[Ending]:
        """The connection has ended: what never came."""
        found: list[Ending] = []
        for proposal in self.proposals.values():
            found += [Ending(broken, proposal) for broken in self._judge_over(proposal, all_said=in_order)]
            if self.ended_by is not None or proposal.partial:
                continue
            if proposal.cancelled and in_order:
                said = ", ".join(f"{role}: {half.state}" for role, half in proposal.halves.items())
                found.append(Ending(Broken(RULE["cancel_not_confirmed"], said), proposal))
            elif proposal.life is Life.PROPOSED and not proposal.cancelled:
                reason = f"the {proposal.proposer} side proposed {proposal.propose.id}"
                found.append(Ending(Broken(RULE["proposal_not_answered"], reason), proposal))
        return found

    # Findings

    def _find(self, rule: str, reason: str) -> bool:
        """The packet breaks a rule. False: bytes that are missing may have kept it."""
        if self.partial and rule in _NEED_ALL:
            return False
        if rule in ENDS and any(broken.rule.name in ENDS for broken in self._broken):
            return False
        self._broken.append(Broken(RULE[rule], reason))
        return True

    def _find_unless_late(self, rule: str, reason: str, role: Role, number: int, proposal: Proposal | None) -> None:
        """A packet of the data channel breaks a rule, unless a message of the control channel is late or missing."""
        if not self._apart or rule not in _BY_CONTROL | _BY_SETTINGS | _BY_PLAN:
            self._find(rule, reason)
        elif not self.partial:
            at = None if proposal is None else proposal.number
            self.doubted = Doubt(rule, reason, role, self._byte_start, self._byte_end, self._place, number, at)
            for one in Role:
                self.miss(one)

    def _may_excuse(self, number: int) -> None:
        """A message about a proposal came after what was sent about it over the other connection."""
        if self.doubted is not None and self.doubted.proposal_id == number:
            self.doubted = None

    def _note(self, rule: str, reason: str) -> None:
        self._broken.append(Broken(RULE[rule], reason))

    # Set-up and credit

    def _take_setup(self, role: Role, setup: Setup) -> None:
        self.setups[role] = setup

    def _take_credit(self, role: Role, credit: ProposalCredit) -> None:
        had = self.credit[role.peer]
        if had + credit.amount > MAX_U64:
            self._find("proposal_credit_overflow", f"{credit.amount} on top of {had}")
            return
        self.credit[role.peer] = had + credit.amount
        self.granted[role.peer] += credit.amount

    # Proposals

    def _take_propose(self, role: Role, propose: Propose) -> None:
        self._may_excuse(propose.id)
        if self._refuses(role, propose):
            return
        before = self.proposals.pop(propose.id, None)
        if before is not None:
            before.outcome, before.ended_at_ns = Outcome.UNSEEN, self._at_ns
            self._told["ended"] = (before,)
            for each, current in self.current.items():
                # A packet that was found by a search may be older than what the other side's were taken for.
                if current == (before.propose.id, before.number):
                    self.current[each] = None
        self._dropped.pop((role, propose.id), None)
        proposal = Proposal.new(self.numbers, role, propose, self._at_ns, self._byte_end)
        proposal.partial = bool(self._unheard) or propose.id in self._unplaced or (before is not None and self.partial)
        self._unplaced.discard(propose.id)
        self.numbers += 1
        self.proposed[role] += 1
        self.credit[role] = max(self.credit[role] - 1, 0)
        self._told["proposal"] = proposal
        rivals = [
            other
            for other in self.proposals.values()
            if other.proposer is not role
            and other.life is Life.PROPOSED
            and not other.cancelled
            and other.overlaps(proposal)
        ]
        before = next((other for other in rivals if proposal.yields_to(other)), None)
        if before is not None:
            self._drop(proposal, before)
            return
        for other in rivals:
            self._drop(other, proposal)
        if len(self.proposals) >= MOST_PROPOSALS:
            self.untracked = True
            return
        self.proposals[propose.id] = proposal
        self._compare_start(proposal)

    def _refuses(self, role: Role, propose: Propose) -> bool:
        """Whether a proposal breaks a rule."""
        if not self.credit[role] and self._find("proposal_without_credit", f"proposal {propose.id}"):
            return True
        if not role.may_take(propose.id):
            return self._find("id_parity", f"the {role} side proposes {propose.id}")
        before = self.proposals.get(propose.id)
        # Of two connections, that of the data channel may be behind.
        is_over = self._apart and before is not None and all(half.reason for half in before.halves.values())
        if before is not None and not is_over and self._find("id_in_use", f"proposal {propose.id}"):
            return True
        broken = broken_range(propose.start, propose.lower_info, propose.end, propose.upper_info)
        return broken is not None and self._find(*broken)

    def _drop(self, proposal: Proposal, rival: Proposal) -> None:
        """It is as if it had never been sent, once its proposer has received the other one."""
        self._dropped[proposal.proposer, proposal.propose.id] = rival.byte_end
        if len(self._dropped) > MOST_PROPOSALS:
            del self._dropped[next(iter(self._dropped))]
        proposal.outcome, proposal.ended_at_ns, proposal.life = Outcome.DROPPED, self._at_ns, Life.UNUSED
        self.credit[proposal.proposer] = min(self.credit[proposal.proposer] + 1, MAX_U64)
        self.proposals.pop(proposal.propose.id, None)
        self._told["ended"] = (*self._told.get("ended", ()), proposal)

    def _compare_start(self, proposal: Proposal) -> None:
        """Hold the expected starting hash against the entry, if that is known."""
        expected, seq = proposal.propose.expected_hash, expected_seq(proposal.propose)
        known = None if seq is None else self._known.get(*proposal.log, seq)
        if known is not None and known.entry_hash is not None and expected is not None:
            proposal.hash_differs |= known.entry_hash != expected

    def _judge_over(self, proposal: Proposal, *, all_said: bool) -> list[Broken]:
        """What is told of a proposal when it is over; `all_said`: no data about it is missing."""
        found: list[Broken] = []
        # The entry may have become known only now.
        self._compare_start(proposal)
        reasons = {half.reason for half in proposal.halves.values()}
        if proposal.hash_differs and not reasons & {CancelReason.STARTING_HASH, CancelReason.FORKED}:
            reason = f"proposal {proposal.propose.id} expects another entry {expected_seq(proposal.propose)}"
            found.append(Broken(RULE["starting_hash_differs"], reason))
        if self._apart and CancelReason.END_REACHED in reasons and all_said and not proposal.partial:
            found += self._untrue_cancel(CancelReason.END_REACHED, self._untrue_end(proposal))
        return found

    def _active(self, role: Role, number: int, event: Input) -> Proposal | None:
        """The proposal with that id, if both tables list the input; else the rule is found."""
        proposal = self.proposals.get(number)
        unsure = self.partial or self._apart
        if unsure and proposal is not None and proposal.life is Life.PROPOSED and event is Input.SWITCH:
            # The other side has confirmed it, which isn't in the capture, or comes later over another connection.
            proposal.life = Life.CONFIRMED
        life = Life.UNUSED if proposal is None else proposal.life
        if proposal is not None and event is Input.ADJUST:
            event = proposal.input_of(role)
        if proposal is None or (life, event) not in LIFE:
            rule = unlisted(life, event)
            crossed = proposal is None and self._not_received(role, self._dropped.get((role, number), 0))
            if rule is not None and not (self.untracked and proposal is None) and not crossed:
                self._find_unless_late(rule, f"{event} of {number}, which is {life}", role, number, proposal)
            self._displace(number)
            return None
        half = proposal.halves[role]
        if (half.state, event) not in SIDES:
            rule = side_unlisted(half.state, event)
            if rule is not None:
                reason = f"{event} of {number}, which the {role} side has cancelled"
                self._find_unless_late(rule, reason, role, number, proposal)
            self._displace(number)
            return None
        self._told["proposal"] = proposal
        return proposal

    def _displace(self, number: int) -> None:
        """An input that fits no proposal. If bytes are missing, it may be about one that is proposed in later bytes."""
        if self.partial and len(self._unplaced) < MOST_PROPOSALS:
            self._unplaced.add(number)

    def _step(self, proposal: Proposal, role: Role, event: Input) -> None:
        """Take a step of both tables."""
        half = proposal.halves[role]
        half.state = SIDES[half.state, event].state
        step = LIFE[proposal.life, event]
        proposal.life = step.settled if proposal.settled else step.state
        if proposal.life is Life.UNUSED:
            proposal.outcome, proposal.ended_at_ns = Outcome.CANCELLED, self._at_ns
            self._broken += self._judge_over(proposal, all_said=True)
            del self.proposals[proposal.propose.id]
            self._told["ended"] = (proposal,)

    def _take_adjust(self, role: Role, adjust: Adjust) -> None:
        self._may_excuse(adjust.id)
        proposal = self._active(role, adjust.id, Input.ADJUST)
        if proposal is None:
            return
        event = proposal.input_of(role)
        broken = broken_adjust(proposal, role, adjust, confirms=event is Input.CONFIRM)
        if broken is not None and not (proposal.partial and broken[0] in AFTER_OTHERS):
            if not proposal.partial:
                # Else it may be about a later proposal with that id.
                self._find(*broken)
            return
        raced = None if proposal.partial else raced_by(proposal, role, adjust)
        if raced is not None and not self._not_received(role, proposal.halves[role].versions[-1].adjusted_at):
            self._note("settings_suspect", raced)
        if event is Input.CONFIRM:
            proposal.confirm(role, adjust, self._at_ns)
        else:
            proposal.adjust(role, adjust, self._byte_end)
        self._step(proposal, role, event)

    def _take_cancel(self, role: Role, cancel: Cancel) -> None:
        proposal = self._active(role, cancel.id, Input.CANCEL)
        if proposal is None:
            return
        # Over two connections the data that was sent before may come later.
        if not proposal.partial and not (self._apart and cancel.reason is CancelReason.END_REACHED):
            self._broken += self._untrue_cancel(cancel.reason, self._untrue(proposal, role, cancel))
        proposal.halves[role].reason = cancel.reason
        self._step(proposal, role, Input.CANCEL)

    @staticmethod
    def _untrue_cancel(reason: CancelReason, untrue: str | None) -> list[Broken]:
        return [] if untrue is None else [Broken(RULE["cancel_reason_untrue"], f"{reason.value}: {untrue}")]

    def _untrue_end(self, proposal: Proposal) -> str | None:
        if proposal.plan.end is None and not self._log_ends(proposal):
            return "the range has no end"
        return None if any(self._at_end(proposal, one) for one in Role) else "no side is at the end"

    def _untrue(self, proposal: Proposal, role: Role, cancel: Cancel) -> str | None:
        """Why the reason of a cancel isn't true."""
        peers = proposal.halves[role.peer]
        match cancel.reason:
            case CancelReason.END_REACHED:
                return self._untrue_end(proposal)
            case CancelReason.CONFIRMING:
                return "the other side did not cancel" if peers.state is SideState.OPEN else None
            case CancelReason.MANDATORY_PAYLOAD:
                return None if peers.ever_mandatory else "payloads were never mandatory"
            case CancelReason.END_OF_LOG:
                seqnum = cancel.seqnum or 0
                sent = self._known.get(*proposal.log, seqnum)
                if sent is not None and role in sent.senders and not sent.end_of_log and not sent.is_forged:
                    return f"the same side sent entry {seqnum} as a regular one"
                return None if seqnum < proposal.first else f"entry {seqnum} isn't before entry {proposal.first}"
            case CancelReason.STARTING_HASH:
                return untrue_hash(proposal, cancel.entries[0].in_log(*proposal.log))
            case CancelReason.FORKED:
                return untrue_fork(proposal, [entry.in_log(*proposal.log) for entry in cancel.entries])
        return None

    def _log_ends(self, proposal: Proposal) -> bool:
        return any((*proposal.log, role) in self._ends for role in Role)

    def _at_end(self, proposal: Proposal, role: Role) -> bool:
        """Whether a side is past the last piece by any settings that it may go by; or its place isn't known."""
        ends = [self._ends.get((*proposal.log, one), MAX_U64) for one in Role]
        cursors = [version.cursor for version in proposal.halves[role].versions]
        return any(
            one.lost or one.piece is None or one.piece.seq > min(ends) or (one.last is Sent.PREFIX and _is_last(one))
            for one in cursors
        )

    # Data

    def _take_switch(self, role: Role, switch: Switch) -> None:
        proposal = self._active(role, switch.id, Input.SWITCH)
        if proposal is not None:
            self.current[role] = (switch.id, proposal.number)
        elif self.partial or self.untracked:
            self.current[role] = None

    def _take_cancelled(self, role: Role, cancelled: Cancelled) -> None:
        proposal = self._active(role, cancelled.id, Input.CANCELLED)
        if proposal is not None:
            half = proposal.halves[role]
            self._keep_begun(proposal, role)
            self._release(half)
            half.last = None
            self._step(proposal, role, Input.CANCELLED)

    def _keep_begun(self, proposal: Proposal, role: Role) -> None:
        """The payload that a side has begun may be gone on with in another proposal."""
        assembly = proposal.halves[role].assembly
        if assembly is None or assembly.begins_at or not assembly.data or len(assembly.data) > MOST_BEGUN_BYTES:
            return
        heard = _Taking(self, proposal, role).known_of(assembly.seq)
        if heard is not None and heard.payload_hash:
            key = (*proposal.log, assembly.seq, role)
            self._begun.pop(key, None)
            self._begun[key] = Begun(heard.payload_hash, bytes(assembly.data))
            if len(self._begun) > MOST_BEGUN:
                del self._begun[next(iter(self._begun))]

    def _take_data(self, role: Role, packet: DataPacket) -> None:
        """A packet about the current proposal."""
        current = self.current[role]
        if current is None:
            found = not self.untracked and self._find("data_without_switch", "no proposal is the current one")
            if self.partial:
                # It may be about any of them.
                for one in self.proposals.values():
                    one.partial = True
                    self._lose_half(one.halves[role])
            self._keep_payload(role, packet, unknown=not found)
            return
        proposal = self.proposals.get(current[0])
        if proposal is None or proposal.number != current[1] or proposal.halves[role].state in _SILENT:
            self._find("data_after_cancel", f"the {role} side has cancelled {current[0]}")
            self._keep_payload(role, packet, unknown=False)
            return
        self._told["proposal"] = proposal
        _Taking(self, proposal, role).take(packet)

    def _keep_payload(self, role: Role, packet: DataPacket, *, unknown: bool) -> None:
        """The bytes of a payload of no known proposal. What it may break is not judged."""
        if isinstance(packet, RawPayload):
            self._told["data"] = packet.data
        elif isinstance(packet, CompressedPayload):
            if not unknown:
                self._told["compressed"] = packet.data
                self._inflater(role).forget()
                return
            read = self._decompress(role, packet)
            self._told["data"] = read.shown
            if read.rule is not None:
                self._inflater(role).forget()
                self._note(lzfoo.HISTORY_UNKNOWN, not_read(packet))

    def _decompress(self, role: Role, packet: CompressedPayload) -> Inflation:
        """Decompress a packet that is complete. What isn't decompressed, or not shown so, is told as it came."""
        mode = self.mode(role)
        if mode is not None and not mode.window:
            read = Inflation("compression_without_window", compressed=packet.data)
        else:
            read = self._inflating[role].take(packet, self._inflater(role))
        if read.compressed is not None:
            self._told["compressed"] = read.compressed
        if read.unknown is not None:
            self._note(lzfoo.HISTORY_UNKNOWN, read.unknown)
        if read.wide:
            self._note("noncanonical_varu64", "the offset of a copy is longer than it needs to be")
        return read

    def _inflater(self, role: Role) -> Inflater:
        return self._inflaters.setdefault(role, self.inflater(role))

    def _note_end(self, author: bytes, log_id: int, role: Role, seq: int) -> None:
        """A side sent an end-of-log entry."""
        key = (author, log_id, role)
        self._ends[key] = min(seq, self._ends.pop(key, seq))
        if len(self._ends) > MOST_PROPOSALS:
            del self._ends[next(iter(self._ends))]

    def _held_bytes(self) -> int:
        assemblies = (half.assembly for one in self.proposals.values() for half in one.halves.values())
        return sum(len(one.data) for one in assemblies if one is not None and one.data is not None)

    # Carried state

    def snapshot(self) -> str:
        """The state as JSON; what is known from elsewhere is in it."""
        state = {
            "version": SNAPSHOT_VERSION,
            "setups": {role.value: _setup_row(setup) for role, setup in self.setups.items()},
            "balances": [[one[role] for one in (self.credit, self.granted, self.proposed)] for role in Role],
            "proposals": [proposal.to_json() for proposal in self.proposals.values()],
            "current": [self.current[role] for role in Role],
            "dropped": [[role, number, byte_end] for (role, number), byte_end in self._dropped.items()],
            "flags": [self.partial, self.untracked],
            "unheard": [role for role in Role if role in self._unheard],
            "unplaced": sorted(self._unplaced),
            "doubted": None if self.doubted is None else self.doubted.to_json(),
            "ended_by": self.ended_by,
            "numbers": self.numbers,
            "known": self._known.to_json(),
            "inflaters": {role.value: inflater.snapshot() for role, inflater in self._inflaters.items()},
            "compressed": [self._inflating[role].held.hex() for role in Role],
            "inflatable": [self._inflating[role].left for role in Role],
            "ends": [[author.hex(), log_id, role, seq] for (author, log_id, role), seq in self._ends.items()],
            "begun": [
                [author.hex(), log_id, seq, role, begun.payload_hash.hex(), begun.data.hex()]
                for (author, log_id, seq, role), begun in self._begun.items()
            ],
        }
        return json.dumps(state, separators=(",", ":"))

    def _restore(self, snapshot: str) -> None:
        state = json.loads(snapshot)
        if state.get("version") != SNAPSHOT_VERSION:
            raise StateVersionError(what="bamboo session", found=state.get("version"), expected=SNAPSHOT_VERSION)
        self.setups = {Role(role): Setup(*row) for role, row in state["setups"].items()}
        for role, row in zip(Role, state["balances"], strict=True):
            self.credit[role], self.granted[role], self.proposed[role] = row
        proposals = [Proposal.from_json(row) for row in state["proposals"]]
        self.proposals = {proposal.propose.id: proposal for proposal in proposals}
        self.current = {
            role: None if row is None else (row[0], row[1]) for role, row in zip(Role, state["current"], strict=True)
        }
        self.partial, self.untracked = state["flags"]
        self._unheard, self._unplaced = set(map(Role, state["unheard"])), set(state["unplaced"])
        self.doubted = None if state["doubted"] is None else Doubt.from_json(state["doubted"])
        self._dropped = {(Role(role), number): byte_end for role, number, byte_end in state["dropped"]}
        self.ended_by, self.numbers = state["ended_by"], state["numbers"]
        self._known = Known(state["known"])
        self.held = self._held_bytes()
        for role in map(Role, state["inflaters"]):
            most = self._options.max_inflated_bytes
            window = MAX_U64 if (mode := self.mode(role)) is None else mode.window
            self._inflaters[role] = Inflater(window, max_bytes=most, snapshot=state["inflaters"][role.value])
        for role, held, left in zip(Role, state["compressed"], state["inflatable"], strict=True):
            self._inflating[role].held, self._inflating[role].left = bytearray.fromhex(held), left
        self._ends = {(bytes.fromhex(author), log_id, Role(role)): seq for author, log_id, role, seq in state["ends"]}
        for author, log_id, seq, role, hashed, data in state["begun"]:
            key = (bytes.fromhex(author), log_id, seq, Role(role))
            self._begun[key] = Begun(bytes.fromhex(hashed), bytes.fromhex(data))


def _is_nothing(packet: DataPacket) -> bool:
    """A notify of 0 is harmless: it is no piece, and moves nothing."""
    return isinstance(packet, Notify) and not packet.count


def _is_last(cursor: Cursor) -> bool:
    return cursor.index + 1 == cursor.plan.size


_SILENT: Final = (SideState.SILENT, SideState.ENDED)


def _setup_row(setup: Setup) -> list[Any]:
    return [getattr(setup, name) for name in Setup.__slots__]


# Data channel


class _Taking:
    """A packet about the current proposal of a side, while it is taken."""

    def __init__(self, session: Session, proposal: Proposal, role: Role) -> None:
        self._session, self._proposal, self._role = session, proposal, role
        self._half, self._peers = proposal.halves[role], proposal.halves[role.peer]
        self._mode = session.mode(role)
        #: The bytes of a payload packet, decompressed: those that are told, and all.
        self._data: bytes | None = None
        self._all: bytes | None = None

    def take(self, packet: DataPacket) -> None:
        """Judge the packet by every version that its sender may go by, and do what it does."""
        half, session = self._half, self._session
        compressed = None
        if isinstance(packet, CompressedPayload):
            read = session._decompress(self._role, packet)
            compressed, self._all, self._data = read.rule, read.data, read.shown
        elif isinstance(packet, RawPayload):
            self._data = self._all = packet.data
        self._leave(packet)
        turns = [Turn(one.cursor, self._peers.cursor, one.settings, self._size_of) for one in half.versions]
        rules = [self._rule(packet, turn, compressed) for turn in turns]
        if isinstance(packet, Metadata):
            self._tell_apart(packet, turns, rules)
        if None not in rules and session._not_received(self._role, self._peers.apologised_at):
            # What the other side has retracted was still there for it.
            rules = [None if self._rests_on_peer(packet, rule) else rule for rule in rules]
        # The settings that it went by are over: it has already done what only newer ones allow.
        by_newer = None not in rules and session._not_received(self._role, half.versions[0].adjusted_at)
        if by_newer:
            rules = [None if rule in _BY_SETTINGS else rule for rule in rules]
        if None not in rules:
            is_moved = by_newer and rules[0] in _BY_PLAN
            unsure = self._proposal.partial or is_moved or self._follows_forged(turns[0].sender)
            if rules[0] not in _LZFOO and unsure:
                self._lose()
                return
            assert rules[0] is not None
            self._break(packet, rules[0], turns[0])
            return
        if rules[-1] is not None and (suspect := rules[self._newest_received()]) is not None:
            session._note("settings_suspect", f"{suspect}, if it knew what the other side has adjusted")
        chosen = max(index for index, rule in enumerate(rules) if rule is None)
        before = turns[chosen].sender
        if self._proposal.partial and isinstance(packet, Metadata) and self._is_signed(packet, before) is False:
            self._lose()
            return
        piece, retracted = before.piece, before.sent
        session._told["cursor_before"] = str(before)
        self._warn_of_size(packet, [turn for turn, rule in zip(turns, rules, strict=True) if rule is None])
        after = self._move(packet, turns, rules, chosen)
        session._told["cursor_after"] = str(after)
        if half.last is not None and not _is_nothing(packet):
            session._told["follows"] = half.last.byte_start
            half.last = None
        session._told["data"] = self._data
        self._do(packet, piece, retracted, after)

    def _break(self, packet: DataPacket, rule: str, turn: Turn) -> None:
        """The packet breaks a rule by all that its sender may go by."""
        session, proposal = self._session, self._proposal
        shown = f"the {self._role} side is at {turn.sender} of proposal {proposal.propose.id}"
        session._told["cursor_before"] = str(turn.sender)
        is_doubted = self._rests_on_adjusts(packet, rule, turn.sender)
        if rule in _FITS:
            places.move(packet, turn)
        session._told["cursor_after"] = str(turn.sender)
        # A packet breaks the first rule of the list alone.
        session._broken = [one for one in session._broken if one.rule.name != lzfoo.HISTORY_UNKNOWN]
        session._told["data"] = self._data
        if is_doubted:
            session._find_unless_late(rule, shown, self._role, proposal.propose.id, proposal)
        else:
            session._find(rule, shown)

    def _newest_received(self) -> int:
        """The index of the newest version whose adjust the sender's host may have received."""
        versions = self._half.versions
        newest = len(versions) - 1
        while newest and self._session._not_received(self._role, versions[newest].adjusted_at):
            newest -= 1
        return newest

    @staticmethod
    def _rests_on_peer(packet: DataPacket, rule: str | None) -> bool:
        """The rule says how far a side may go by what the other side has sent."""
        return rule == "skip_beyond_peer" or (rule == "eagerness_ignored" and isinstance(packet, Notify))

    @staticmethod
    def _rests_on_adjusts(packet: DataPacket, rule: str, sender: Cursor) -> bool:
        """Whether other settings, or an earlier end, would make the packet right: behind the end there is metadata."""
        is_behind = sender.piece is not None and sender.piece.seq > sender.plan.start
        return rule in _BY_SETTINGS or (rule == "out_of_turn" and isinstance(packet, Metadata) and is_behind)

    def _leave(self, packet: DataPacket) -> None:
        """Metadata ends a payload of unknown size. Whether a notify begins with its rest can't be told."""
        if _is_nothing(packet):
            return
        for version in self._half.versions:
            cursor = version.cursor
            cursor.lost |= cursor.leaves and not isinstance(packet, Apology)
            if cursor.piece is not None and cursor.ends_unknown(self._size_of(cursor.piece.seq)):
                if isinstance(packet, Metadata):
                    cursor.pass_over(1)
                    self._session._release(self._half)
                elif isinstance(packet, Notify):
                    cursor.lost = True

    def _rule(self, packet: DataPacket, turn: Turn, compressed: str | None) -> str | None:
        """The first rule that the packet breaks by one version."""
        broken = [places.judge(packet, turn), compressed]
        if self._is_after_end(packet, turn.sender):
            broken.append("data_after_end_of_log")
        last = self._half.last
        if last is not None and isinstance(packet, Apology):
            broken.append("apology_for_valid_data" if last.right and not self._follows_forged(turn.sender) else None)
        elif last is not None and last.rule is not None and self._is_greedy and not _is_nothing(packet):
            broken.append("invalid_data_not_apologised")
        return min((rule for rule in broken if rule is not None), key=_ORDER.__getitem__, default=None)

    def _is_after_end(self, packet: DataPacket, cursor: Cursor) -> bool:
        end = self._session._ends.get((*self._proposal.log, self._role))
        if end is None or isinstance(packet, Apology) or cursor.lost or cursor.piece is None:
            return False
        count = packet.count if isinstance(packet, Notify) else 1
        furthest = cursor.plan.piece(cursor.index + count - 1) if count else cursor.piece
        return furthest is not None and furthest.seq > end and not self._is_forged(end)

    def _tell_apart(self, packet: Metadata, turns: list[Turn], rules: list[str | None]) -> None:
        """Of versions that take metadata for that of different entries, those are out of turn that are wrong in it."""
        right = [index for index, rule in enumerate(rules) if rule is None]
        if len({turns[index].sender.piece for index in right}) < 2:
            return
        signed = [index for index in right if self._is_signed(packet, turns[index].sender)]
        linked = [i for i in right if turns[i].sender.has_backlink() == (packet.backlink is not None)]
        for index in right:
            if index not in (signed or linked or right):
                rules[index] = "out_of_turn"

    def _is_signed(self, metadata: Metadata, cursor: Cursor) -> bool | None:
        """Whether the signature is right if the cursor is; None: that can't be told."""
        if cursor.lost or cursor.piece is None:
            return None
        entry = rebuild(metadata, *self._proposal.log, cursor.piece.seq, self._hash_of)
        if entry.data is None:
            return None
        return signature_rule(entry.author, entry.data[:-SIGNATURE_BYTES], entry.signature) is None

    def _move(self, packet: DataPacket, turns: list[Turn], rules: list[str | None], chosen: int) -> Cursor:
        """Move the cursors of all versions that the sender may still go by; where the chosen one stands then."""
        moved: list[Version] = []
        for version, turn, rule in zip(self._half.versions, turns, rules, strict=True):
            if rule is None:
                places.move(packet, turn)
                moved.append(version)
            elif moved:
                moved.append(moved[-1].copy())
                moved[-1].settings, moved[-1].adjusted_at = version.settings, version.adjusted_at
                moved[-1].cursor.adjust(version.cursor.plan)
        self._half.versions = moved
        return turns[chosen].sender

    def _lose(self) -> None:
        """Something that isn't in the capture made this right, so where the side stands isn't known any more."""
        for version in self._half.versions:
            version.cursor.lost = True
        self._session._told["cursor_before"] = self._session._told["cursor_after"] = str(self._half.cursor)
        self._session._told["data"] = self._data
        self._session._release(self._half)
        self._half.last = None

    @property
    def _is_greedy(self) -> bool:
        return self._mode is not None and self._mode.greedy

    def _do(self, packet: DataPacket, piece: Piece | None, retracted: Piece | None, after: Cursor) -> None:
        session, count = self._session, self._half.count
        if piece is not None and not after.lost:
            session._told["seq"] = piece.seq
        match packet:
            case Metadata():
                count.metadata += 1
                if piece is not None and not after.lost:
                    self._rebuild(packet, piece.seq)
            case RawPayload() | CompressedPayload():
                self._count_bytes(packet)
                self._assemble(packet, piece, after)
            case SkipBytes():
                count.skipped += 1
                self._assemble(packet, piece, after)
            case Notify():
                count.notified += packet.count
                if packet.count:
                    self._session._release(self._half)
            case SkipPayload():
                count.skipped += 1
                self._session._release(self._half)
            case Apology():
                count.apologies += 1
                self._half.apologised_at = session._byte_end
                self._retract(retracted)

    # Entries

    def _is_forged(self, seq: int) -> bool:
        """What is known of an entry has a wrong signature."""
        heard = self._heard(seq)
        return heard is not None and heard.is_forged

    def _follows_forged(self, cursor: Cursor) -> bool:
        """Where a side stands may come from metadata with a wrong signature, which is a finding of its own."""
        return any(piece is not None and self._is_forged(piece.seq) for piece in (cursor.piece, cursor.sent))

    def _size_of(self, seq: int) -> int | None:
        heard = self._heard(seq)
        return None if heard is None else heard.payload_size

    def _heard(self, seq: int) -> Heard | None:
        own = self._half.heard.get(seq) or self._peers.heard.get(seq)
        return own or self._session._known.get(*self._proposal.log, seq)

    def _hash_of(self, seq: int) -> tuple[bytes | None, bool]:
        own, propose = self._half.heard.get(seq), self._proposal.propose
        if own is not None and own.entry_hash is not None:
            return own.entry_hash, False
        expected = propose.expected_hash
        if own is None and expected is not None and len(expected) == yamf.DIGEST_BYTES and seq == expected_seq(propose):
            return expected, False
        known = self._session._known.get(*self._proposal.log, seq)
        return (None if known is None or own is not None else known.entry_hash), True

    def _rebuild(self, metadata: Metadata, seq: int) -> None:
        session, proposal = self._session, self._proposal
        noncanonical = any(broken.rule.name == "noncanonical_varu64" for broken in session._broken)
        entry = rebuild(metadata, *proposal.log, seq, self._hash_of, noncanonical=noncanonical)
        said = (entry.payload_size, entry.payload_hash, entry.end_of_log, entry.entry_hash)
        heard = Heard(*said, (self._role,), None if entry.rule is not None else entry.data)
        self._half.hear(seq, heard)
        session._known.add(*proposal.log, seq, heard)
        if entry.end_of_log:
            session._note_end(*proposal.log, self._role, seq)
        session._told["entry"] = entry
        if entry.unknown:
            session._note("link_unknown", f"entry {seq} links to {' and '.join(map(str, entry.unknown))}")
        self._finish_piece(entry.rule, right=False)

    def _finish_piece(self, rule: str | None, *, right: bool) -> None:
        self._half.last = LastPiece(self._session._byte_start, rule, right)
        if rule is not None and self._mode is not None and not self._mode.greedy:
            self._session._find("invalid_data_in_safe_mode", rule)

    def _retract(self, piece: Piece | None) -> None:
        """It is as if the whole piece had never been sent; None: a part of one."""
        self._session._release(self._half)
        if piece is None:
            return
        self._session._told["seq"] = piece.seq
        if not piece.is_payload:
            heard = self._half.heard.pop(piece.seq, None)
            if heard is not None:
                self._session._known.forget(*self._proposal.log, piece.seq, heard)
                if heard.end_of_log:
                    self._session._ends.pop((*self._proposal.log, self._role), None)

    # Payloads

    def _warn_of_size(self, packet: DataPacket, turns: list[Turn]) -> None:
        """Payload bytes of a size that is not wanted, told at the first of them."""
        if not isinstance(packet, RawPayload | CompressedPayload) or packet.at:
            return
        sizes = [turn.size for turn in turns if turn.sender.last is not Sent.PREFIX]
        if (
            sizes
            and not self._proposal.partial
            and all(size is not None and turn.settings.unwanted(size) for turn, size in zip(turns, sizes, strict=False))
        ):
            wants = turns[-1].settings
            reason = f"{sizes[-1]} bytes, wanted are {wants.min_payload} to {wants.max_payload}"
            self._session._note("unwanted_payload_size", reason)

    def _count_bytes(self, packet: RawPayload | CompressedPayload) -> None:
        count = self._half.count
        if isinstance(packet, RawPayload):
            count.raw_bytes += len(packet.data)
            return
        count.compressed_bytes += len(packet.data)
        if packet.at + len(packet.data) == packet.compressed_size:
            count.inflated_bytes += packet.size

    def _assemble(self, packet: DataPacket, piece: Piece | None, after: Cursor) -> None:
        """Add the bytes that a packet sends or skips to its payload, and judge that when it is complete."""
        half = self._half
        if piece is None or after.lost:
            self._session._release(self._half)
            return
        assembly = half.assembly
        if assembly is None or assembly.seq != piece.seq:
            self._session._release(self._half)
            at_start = self._proposal.propose.offset or 0 if piece.seq == self._proposal.plan.start else 0
            assembly = half.assembly = self._begin_assembly(piece.seq, at_start)
        complete = after.piece != piece
        if isinstance(packet, SkipBytes):
            self._add(assembly, self._peers_bytes(assembly, packet.count), complete)
        elif isinstance(packet, RawPayload) or is_whole(packet):
            self._add(assembly, self._all, complete)
        assembly.packets += 0 if getattr(packet, "at", 0) else 1
        if complete:
            half.count.payloads += 1
            self._judge_payload(assembly)
            self._session._release(self._half)

    def _begin_assembly(self, seq: int, at_start: int) -> Assembly:
        """A payload that begins at an offset: with what its sender sent of it before, if that is known."""
        begun = self._session._begun.get((*self._proposal.log, seq, self._role)) if at_start else None
        heard = self.known_of(seq)
        is_same = begun is not None and heard is not None and heard.payload_hash == begun.payload_hash
        if begun is None or not is_same or len(begun.data) < at_start:
            return Assembly(seq, at_start)
        self._session.held += at_start
        return Assembly(seq, 0, bytearray(begun.data[:at_start]), packets=1, size=at_start)

    def _add(self, assembly: Assembly, data: bytes | None, complete: bool) -> None:
        session = self._session
        if assembly.data is None and assembly.digest is None:
            return
        is_held = self._data is self._all and (complete or session.held + len(data or b"") <= MOST_HELD_BYTES)
        if assembly.data is not None and not (is_held and data is not None):
            assembly.digest = Digest()
            assembly.digest.update(assembly.data)
            session.held -= len(assembly.data)
            assembly.data = None
        if data is None:
            assembly.digest = None
            return
        assembly.size += len(data)
        if assembly.data is not None:
            assembly.data += data
            session.held += len(data)
        elif assembly.digest is not None:
            assembly.digest.update(data)

    def _peers_bytes(self, assembly: Assembly, count: int) -> bytes | None:
        """The bytes that a side skips: those that the other side sent there."""
        theirs = self._peers.assembly
        if theirs is None or theirs.data is None or theirs.seq != assembly.seq:
            return None
        at = assembly.begins_at + assembly.size - theirs.begins_at
        return bytes(theirs.data[at : at + count]) if at >= 0 and at + count <= len(theirs.data) else None

    def _own(self, seq: int) -> Heard | None:
        """What the side said of an entry in the proposal, if its payload can still be asked for."""
        own = self._half.heard.get(seq)
        return None if own is None or not own.payload_hash else own

    def known_of(self, seq: int) -> Heard | None:
        """What payload an entry has, as the side said in the proposal, or as is known otherwise."""
        return self._own(seq) or self._session._known.get(*self._proposal.log, seq)

    def _judge_payload(self, assembly: Assembly) -> None:
        own = self._own(assembly.seq)
        heard = self.known_of(assembly.seq)
        data = None if assembly.data is None else bytes(assembly.data)
        digest = None if assembly.digest is None else assembly.digest.value
        if data is not None:
            digest = yamf.digest(data)
        whole, rule = False, None
        if digest is not None and heard is not None and not assembly.begins_at:
            expected = heard.payload_size, heard.payload_hash[len(yamf.PREFIX) :]
            whole, rule = True, entry_verification.digest_rule(assembly.size, digest, *expected)
        self._session._told["payload"] = Payload(assembly.seq, data, assembly.packets, rule, whole)
        # What another side said of the entry need not be what this one means. And if bytes of the proposal are missing,
        # only metadata right before says which entry the payload is of.
        is_known = heard is not None and not self._proposal.partial and self._means(heard, assembly.seq)
        is_meant = own is not None or is_known
        is_wrong = rule is not None and is_meant and heard is not None and not heard.is_forged
        self._finish_piece(rule if is_wrong else None, right=whole and rule is None)

    def _means(self, known: Heard, seq: int) -> bool:
        """Whether a side sent the entry that is known, in whichever proposal, or its hash is the expected one."""
        propose = self._proposal.propose
        is_expected = seq == expected_seq(propose) and known.entry_hash == propose.expected_hash
        return self._role in known.senders or (is_expected and known.entry_hash is not None)


#: Rules that a packet breaks which is about the piece that is due.
_FITS: Final = frozenset(
    {"eagerness_ignored", "skip_size_untrue", "skip_of_mandatory_payload", "skip_beyond_peer", "apology_for_valid_data"}
)
#: Rules that rest on what the other side wants; and those on the end that it has adjusted.
_BY_SETTINGS: Final = frozenset({"eagerness_ignored", "skip_size_untrue", "skip_of_mandatory_payload"})
_BY_PLAN: Final = frozenset({"out_of_turn", "past_end"})
_LZFOO: Final = frozenset(
    {
        *("compression_without_window", lzfoo.WINDOW_EXCEEDED, lzfoo.OFFSET_ZERO, lzfoo.OFFSET_BEFORE_START),
        *(lzfoo.TRUNCATED, lzfoo.LENGTH_MISMATCH),
    }
)


_TAKE: Final[Mapping[type[PointToPoint], Callable[[Session, Role, Any], None]]] = MappingProxyType(
    {
        Setup: Session._take_setup,
        ProposalCredit: Session._take_credit,
        Propose: Session._take_propose,
        Adjust: Session._take_adjust,
        Cancel: Session._take_cancel,
        Switch: Session._take_switch,
        Cancelled: Session._take_cancelled,
        Notify: Session._take_data,
        SkipPayload: Session._take_data,
        SkipBytes: Session._take_data,
        RawPayload: Session._take_data,
        CompressedPayload: Session._take_data,
        Apology: Session._take_data,
        Metadata: Session._take_data,
    }
)
