"""A proposal and its life, until four messages have cancelled it (specification, "The Control Channel").

Two tables list the legal packets. `LIFE` is the state of the proposal: the first adjust of the side that did not
propose confirms it. `SIDES` is the state of each side: a side cancels once on the control channel, and once on the data
channel, in either order. An input that a table doesn't list breaks the rule that `unlisted` or `side_unlisted` names.

An adjust and the data that its sender is about to receive may cross each other. So a sender is judged by every version
of the settings that it may still go by (`Version`). Once it does what older settings forbid, it knows the newer ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from wirehouse_codecs.bamboo.session.cursor import Cursor, Plan, Settings
from wirehouse_codecs.bamboo.setup import Role
from wirehouse_codecs.bamboo.wire import entry_verification, yamf
from wirehouse_codecs.bamboo.wire.entries import decode, wrongly_signed
from wirehouse_codecs.bamboo.wire.lipmaa import SPINE, Broke, lipmaa, upper_pool
from wirehouse_codecs.bamboo.wire.messages import Adjust, CancelReason, Propose
from wirehouse_codecs.bamboo.wire.varu64 import MAX_U64
from wirehouse_codecs.compiled.blake2b import Digest

#: How many versions a sender may go by. Older ones are given up.
MOST_VERSIONS: Final = 8
#: Entries that a proposal remembers of each side, if later ones may not link to them.
MOST_HEARD: Final = 16


class Life(StrEnum):
    """The state of a proposal."""

    UNUSED = "unused"
    PROPOSED = "proposed"
    CONFIRMED = "confirmed"


class SideState(StrEnum):
    """How far a side has cancelled a proposal."""

    OPEN = "open"
    #: It cancelled on the control channel.
    CANCELLING = "cancelling"
    #: It sent cancelled on the data channel.
    SILENT = "silent"
    ENDED = "ended"


class Input(StrEnum):
    """What a side sends about a proposal."""

    PROPOSE = "propose"
    #: The first adjust of the side that did not propose.
    CONFIRM = "confirm"
    ADJUST = "adjust"
    CANCEL = "cancel"
    SWITCH = "switch"
    CANCELLED = "cancelled"
    #: Every other packet of the data channel.
    DATA = "data"


@dataclass(frozen=True, slots=True)
class Step:
    """The state after an input. `settled`: the state once all four messages of a cancel were sent."""

    state: Life
    settled: Life


def _step(state: Life, settled: Life | None = None) -> Step:
    return Step(state, state if settled is None else settled)


LIFE: Final[Mapping[tuple[Life, Input], Step]] = MappingProxyType(
    {
        (Life.UNUSED, Input.PROPOSE): _step(Life.PROPOSED),
        (Life.PROPOSED, Input.CONFIRM): _step(Life.CONFIRMED),
        (Life.PROPOSED, Input.ADJUST): _step(Life.PROPOSED),
        (Life.PROPOSED, Input.CANCEL): _step(Life.PROPOSED, Life.UNUSED),
        (Life.PROPOSED, Input.CANCELLED): _step(Life.PROPOSED, Life.UNUSED),
        # Over two connections, packets of the proposer may come before the confirmation.
        (Life.CONFIRMED, Input.CONFIRM): _step(Life.CONFIRMED),
        (Life.CONFIRMED, Input.ADJUST): _step(Life.CONFIRMED),
        (Life.CONFIRMED, Input.CANCEL): _step(Life.CONFIRMED, Life.UNUSED),
        (Life.CONFIRMED, Input.SWITCH): _step(Life.CONFIRMED),
        (Life.CONFIRMED, Input.DATA): _step(Life.CONFIRMED),
        (Life.CONFIRMED, Input.CANCELLED): _step(Life.CONFIRMED, Life.UNUSED),
    }
)


@dataclass(frozen=True, slots=True)
class SideStep:
    """The state of a side after an input."""

    state: SideState


def _stays(state: SideState, *inputs: Input) -> dict[tuple[SideState, Input], SideStep]:
    return {(state, event): SideStep(state) for event in inputs}


SIDES: Final[Mapping[tuple[SideState, Input], SideStep]] = MappingProxyType(
    {
        **_stays(SideState.OPEN, Input.PROPOSE, Input.CONFIRM, Input.ADJUST, Input.SWITCH, Input.DATA),
        (SideState.OPEN, Input.CANCEL): SideStep(SideState.CANCELLING),
        (SideState.OPEN, Input.CANCELLED): SideStep(SideState.SILENT),
        **_stays(SideState.CANCELLING, Input.SWITCH, Input.DATA),
        (SideState.CANCELLING, Input.CANCELLED): SideStep(SideState.ENDED),
        **_stays(SideState.SILENT, Input.CONFIRM, Input.ADJUST),
        (SideState.SILENT, Input.CANCEL): SideStep(SideState.ENDED),
    }
)

_INACTIVE: Final = {
    Input.PROPOSE: "id_in_use",
    Input.CONFIRM: "cancel_or_adjust_inactive",
    Input.ADJUST: "cancel_or_adjust_inactive",
    Input.CANCEL: "cancel_or_adjust_inactive",
    Input.SWITCH: "switch_inactive",
    Input.CANCELLED: "cancelled_inactive",
}


def unlisted(state: Life, event: Input) -> str | None:
    """The rule that an input breaks if LIFE doesn't list it. None: no rule."""
    return None if event is Input.DATA else _INACTIVE[event]


_CONTROL: Final = (Input.CONFIRM, Input.ADJUST, Input.CANCEL)


def side_unlisted(state: SideState, event: Input) -> str | None:
    """The rule that an input breaks if SIDES doesn't list it."""
    if event in _CONTROL:
        return "cancel_or_adjust_after_cancel"
    return "data_after_cancel" if event is Input.DATA else _INACTIVE[event]


@dataclass(slots=True)
class Version:
    """Settings of the other side that a sender may go by, and its cursor by these settings."""

    settings: Settings
    cursor: Cursor
    #: Where the adjust that made these settings ends, in the bytes of the other side.
    adjusted_at: int = field(default=0, compare=False)

    def copy(self) -> Version:
        """A copy with a cursor of its own."""
        return Version(self.settings, replace(self.cursor), self.adjusted_at)


class Heard(NamedTuple):
    """The known metadata of an entry. The payload hash is as on the wire."""

    payload_size: int
    #: Empty once the payload can no longer come.
    payload_hash: bytes
    end_of_log: bool
    #: The digest of the entry. None: a link is unknown.
    entry_hash: bytes | None
    #: The sides that sent it on the connection.
    senders: tuple[Role, ...] = ()
    #: The entry in full, as long as its payload hash; None: it isn't known.
    data: bytes | None = None

    @property
    def is_forged(self) -> bool:
        """Whether its signature is wrong, so that no rule is judged by its metadata. This checks a signature."""
        return self.data is not None and wrongly_signed(self.data)

    def sent_as(self, other: Heard) -> bool:
        """Whether the metadata of both has the same size and hash of the payload."""
        return (self.payload_size, self.payload_hash) == (other.payload_size, other.payload_hash)

    def with_senders(self, other: Heard | None) -> Heard:
        """The same, also sent by the sides that sent `other`, if that has the same size and hash of the payload."""
        if other is None or other.senders == self.senders or not self.sent_as(other):
            return self
        return self._replace(senders=tuple(role for role in Role if role in (*self.senders, *other.senders)))

    def without_payload(self) -> Heard:
        """The same, once nobody can ask for its payload."""
        return self._replace(payload_hash=b"", data=None)


@dataclass(slots=True)
class LastPiece:
    """A whole piece, while it may still be retracted."""

    #: The first byte of the packet that completed it.
    byte_start: int
    #: The entry rule that the piece breaks, judged without the signature.
    rule: str | None = None
    #: Whether a payload has the hash and the size of its entry.
    right: bool = False


@dataclass(slots=True)
class Assembly:
    """A payload that is being reassembled."""

    seq: int
    #: Bytes of it that came before; they aren't here.
    begins_at: int
    #: None: bytes are unknown, or there are too many to hold or to report.
    data: bytearray | None = field(default_factory=bytearray)
    packets: int = 0
    #: The digest of bytes that aren't held; and how many came.
    digest: Digest | None = None
    size: int = 0


@dataclass(slots=True)
class Count:
    """What a side did for a proposal."""

    metadata: int = 0
    payloads: int = 0
    raw_bytes: int = 0
    #: For compressed payloads: bytes on the wire, and decompressed bytes.
    compressed_bytes: int = 0
    inflated_bytes: int = 0
    notified: int = 0
    skipped: int = 0
    apologies: int = 0


COUNTS: Final = tuple(one.name for one in fields(Count))


@dataclass(slots=True)
class Half:
    """One side of a proposal."""

    wants: Settings
    #: What it may go by as a sender, the newest last.
    versions: list[Version]
    state: SideState = SideState.OPEN
    #: Why it cancelled, on the control channel.
    reason: CancelReason | None = None
    ever_mandatory: bool = True
    heard: dict[int, Heard] = field(default_factory=dict)
    last: LastPiece | None = None
    assembly: Assembly | None = None
    count: Count = field(default_factory=Count)
    #: Where its last apology ends.
    apologised_at: int = 0

    @property
    def cursor(self) -> Cursor:
        """The cursor by the newest settings."""
        return self.versions[-1].cursor

    def hear(self, seq: int, heard: Heard) -> None:
        """Remember the metadata of an entry that was sent, and forget what no later one can link to."""
        before = max((one for one in self.heard if one < seq), default=None)
        if before is not None:
            # Its payload was sent, or never will be.
            self.heard[before] = self.heard[before].without_payload()
        self.heard[seq] = heard
        if before is None or before // MOST_HEARD != seq // MOST_HEARD:
            self.forget(seq)

    def forget(self, seq: int) -> None:
        """Forget what no entry after `seq` can link to, except the last ones: at every `MOST_HEARD`th entry."""
        kept = open_targets(seq).union(sorted(self.heard)[-MOST_HEARD:])
        self.heard = {one: known for one, known in self.heard.items() if one in kept}


def open_targets(seq: int) -> set[int]:
    """All entries up to `seq` that later ones link to; links never cross, so they are few."""
    above = upper_pool(min(seq + 1, MAX_U64))
    spine = max(one for one in SPINE if one <= seq)
    return {seq, spine} | {lipmaa(one) for one in (*upper_pool(seq), *above) if one > 1 and lipmaa(one) <= seq}


class Outcome(StrEnum):
    """How the life of a proposal came to its end."""

    #: The overlap rule: it is as if it had never been sent.
    DROPPED = "dropped"
    CANCELLED = "cancelled"
    #: Its id is used again; how it ended is not in the capture.
    UNSEEN = "unseen"


@dataclass(slots=True)
class Proposal:
    """A proposal of one side, and what both did about it."""

    #: How many proposals of the connection came before it.
    number: int
    proposer: Role
    propose: Propose
    proposed_at_ns: int
    #: Where it ends among what its proposer sent.
    byte_end: int
    halves: dict[Role, Half]
    plan: Plan
    life: Life = Life.PROPOSED
    confirmed_at_ns: int | None = None
    ended_at_ns: int | None = None
    outcome: Outcome | None = None
    #: Whether the hash that its author expects was compared, and the entry has another one.
    hash_differs: bool = False
    #: Whether bytes of the capture are missing, so its cursors are unknown.
    partial: bool = False

    @classmethod
    def new(cls, number: int, proposer: Role, propose: Propose, at_ns: int, byte_end: int = 0) -> Proposal:
        """A proposal whose numbers break no rule."""
        plan = Plan.of(propose)
        wants = {proposer: Settings.of(propose), proposer.peer: Settings()}
        halves = {
            role: Half(
                wants[role], [Version(wants[role.peer], Cursor.begin(plan))], ever_mandatory=wants[role].mandatory
            )
            for role in Role
        }
        return cls(number, proposer, propose, at_ns, byte_end, halves, plan)

    @property
    def log(self) -> tuple[bytes, int]:
        """Author and log id."""
        return self.propose.author, self.propose.log_id

    @property
    def first(self) -> int:
        """What a fork or an end-of-log entry has to be before, to be a reason for a cancel."""
        return self.propose.start if self.propose.lower_info is None else self.propose.lower_info

    @property
    def settled(self) -> bool:
        """Whether all four messages of a cancel were sent."""
        return all(half.state is SideState.ENDED for half in self.halves.values())

    @property
    def cancelled(self) -> bool:
        """Whether some message of a cancel was sent."""
        return any(half.state is not SideState.OPEN for half in self.halves.values())

    def input_of(self, role: Role) -> Input:
        """What an adjust of `role` is."""
        confirmed = self.confirmed_at_ns is not None or (self.partial and self.life is Life.CONFIRMED)
        return Input.ADJUST if confirmed or role is self.proposer else Input.CONFIRM

    def overlaps(self, other: Proposal) -> bool:
        """Whether the ranges, without pools, have entries in common."""
        if self.log != other.log:
            return False
        ends = [MAX_U64 if one.plan.end is None else one.plan.end for one in (self, other)]
        return self.plan.start <= ends[1] and other.plan.start <= ends[0]

    def yields_to(self, other: Proposal) -> bool:
        """Whether this proposal is dropped when the two overlap."""
        mine, others = self.plan.start, other.plan.start
        return mine > others or (mine == others and self.proposer is Role.REACTIVE)

    def adjust(self, role: Role, adjust: Adjust, byte_end: int = 0) -> None:
        """`role` adjusts the proposal, with bytes up to `byte_end`: it knows that at once, its peer may not yet."""
        mine, peers = self.halves[role], self.halves[role.peer]
        mine.wants = mine.wants.adjusted(adjust)
        self.plan = self.plan.adjusted(adjust)
        for version in mine.versions:
            _go_by(version.cursor, version.cursor.plan.adjusted(adjust))
        newest = peers.versions[-1].copy()
        newest.settings, newest.adjusted_at = mine.wants, byte_end
        _go_by(newest.cursor, newest.cursor.plan.adjusted(adjust))
        if newest != peers.versions[-1]:
            peers.versions = [*peers.versions[1 - MOST_VERSIONS :], newest]

    def confirm(self, role: Role, adjust: Adjust, at_ns: int) -> None:
        """`role` confirms: nobody has sent data before it knew that."""
        self.adjust(role, adjust)
        peers = self.halves[role.peer]
        peers.versions = peers.versions[-1:]
        self.confirmed_at_ns = at_ns


def _go_by(cursor: Cursor, plan: Plan) -> None:
    if plan != cursor.plan:
        cursor.adjust(plan)


# Rules of the control channel


#: Rules that an adjust keeps or breaks by the adjusts before it.
AFTER_OTHERS: Final = ("confirmation_without_eagerness", "upper_info_before_end", "upper_info_not_in_pool")


def broken_adjust(proposal: Proposal, role: Role, adjust: Adjust, *, confirms: bool) -> Broke | None:
    """The first rule that an adjust breaks by every plan that its sender may go by, and why."""
    if confirms and adjust.eagerness is None:
        return "confirmation_without_eagerness", f"adjust of {adjust.id}"
    if adjust.end is not None and adjust.end < proposal.plan.start:
        return "end_before_start", f"end {adjust.end}, start {proposal.plan.start}"
    by_plan = [_broken_plan(version.cursor.plan, adjust) for version in proposal.halves[role].versions]
    if None not in by_plan:
        return by_plan[-1]
    wants = proposal.halves[role].wants
    if adjust.min_payload is not None and adjust.min_payload < wants.min_payload:
        return "min_payload_lowered", f"from {wants.min_payload} to {adjust.min_payload}"
    if adjust.max_payload is not None and adjust.max_payload > wants.max_payload:
        return "max_payload_raised", f"from {wants.max_payload} to {adjust.max_payload}"
    return None


def _broken_plan(plan: Plan, adjust: Adjust) -> Broke | None:
    """The rule that the end and upper info of an adjust break by a plan."""
    new = plan.adjusted(adjust)
    if new.end is None or new.upper_info is None or new == plan:
        return None
    if new.upper_info < new.end:
        return "upper_info_before_end", f"upper info {new.upper_info}, end {new.end}"
    if new.upper_info not in upper_pool(new.end):
        return "upper_info_not_in_pool", f"upper info {new.upper_info}, end {new.end}"
    return None


def raced_by(proposal: Proposal, role: Role, adjust: Adjust) -> str | None:
    """The rule that an adjust breaks only if its sender knew what the other side has adjusted, and why."""
    broken = _broken_plan(proposal.halves[role].versions[-1].cursor.plan, adjust)
    return None if broken is None else f"{broken[0]}: {broken[1]}"


def expected_seq(propose: Propose) -> int | None:
    """The entry whose hash a proposal expects."""
    if propose.offset is not None:
        return propose.start
    return lipmaa(propose.lower_info) or None if propose.lower_info is not None else None


def untrue_hash(proposal: Proposal, data: bytes) -> str | None:
    """Why the entry of a cancel 133 isn't one that hashes to something else than was expected."""
    entry, expected = decode(data).entry, expected_seq(proposal.propose)
    if entry is None:
        return None
    if (entry.author, entry.log_id) != proposal.log:
        return "the entry is of another log"
    if entry.seq != expected:
        return f"it shows entry {entry.seq}, the hash is that of {expected}"
    return "the entry has the expected hash" if yamf.digest(data) == proposal.propose.expected_hash else None


def untrue_fork(proposal: Proposal, entries: list[bytes]) -> str | None:
    """Why the entries of a cancel 135 prove no fork before the proposal."""
    if any(decode(data).entry is None for data in entries):
        return None
    forks = entry_verification.verify(entries).forks
    if not any((fork.author, fork.log_id) == proposal.log for fork in forks):
        return "the entries prove no fork of the log"
    if min(fork.position for fork in forks) >= proposal.first:
        return f"the fork is not before entry {proposal.first}"
    return None
