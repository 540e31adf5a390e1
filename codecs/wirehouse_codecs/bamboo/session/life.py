"""The life of a proposal within a session: which inputs it allows, when it ends, and what its end breaks.

The tables of `proposals.py` list the allowed inputs. These functions apply them, with what the session knows besides:
lost bytes, entries of the log, and the order of two connections.
"""

from __future__ import annotations

from wirehouse_codecs.bamboo.rules import RULE
from wirehouse_codecs.bamboo.session.cursor import Cursor, Sent
from wirehouse_codecs.bamboo.session.effects import Incoming
from wirehouse_codecs.bamboo.session.proposals import (
    LIFE,
    SIDES,
    Input,
    Life,
    Outcome,
    Proposal,
    SideState,
    expected_seq,
    side_unlisted,
    unlisted,
    untrue_fork,
    untrue_hash,
)
from wirehouse_codecs.bamboo.session.state import MOST_PROPOSALS, SessionState
from wirehouse_codecs.bamboo.setup import Role
from wirehouse_codecs.bamboo.wire.bymux import Broken
from wirehouse_codecs.bamboo.wire.messages import (
    Cancel,
    CancelReason,
)
from wirehouse_codecs.bamboo.wire.varu64 import MAX_U64


def active(state: SessionState, incoming: Incoming, number: int, event: Input) -> Proposal | None:
    """The proposal with this id, if both tables list the input. None: the rule that the input breaks is noted."""
    role = incoming.role
    proposal = state.proposals.get(number)
    unsure = state.partial or state.apart
    if unsure and proposal is not None and proposal.life is Life.PROPOSED and event is Input.SWITCH:
        # The confirmation was lost, or it comes later over the other connection.
        proposal.life = Life.CONFIRMED
    life = Life.UNUSED if proposal is None else proposal.life
    if proposal is not None and event is Input.ADJUST:
        event = proposal.input_of(role)
    if proposal is None or (life, event) not in LIFE:
        rule = unlisted(life, event)
        crossed = proposal is None and state.not_received(incoming, state.dropped.get((role, number), 0))
        if rule is not None and not (state.untracked and proposal is None) and not crossed:
            state.find_unless_late(incoming, rule, f"{event} of {number}, which is {life}", number, proposal)
        state.displace(number)
        return None
    half = proposal.halves[role]
    if (half.state, event) not in SIDES:
        rule = side_unlisted(half.state, event)
        if rule is not None:
            reason = f"{event} of {number}, which the {role} side has cancelled"
            state.find_unless_late(incoming, rule, reason, number, proposal)
        state.displace(number)
        return None
    incoming.effects["proposal"] = proposal
    return proposal


def step(state: SessionState, incoming: Incoming, proposal: Proposal, event: Input) -> None:
    """Change the states of the proposal and of the sender's side by both tables."""
    half = proposal.halves[incoming.role]
    half.state = SIDES[half.state, event].state
    after = LIFE[proposal.life, event]
    proposal.life = after.settled if proposal.settled else after.state
    if proposal.life is Life.UNUSED:
        proposal.outcome, proposal.ended_at_ns = Outcome.CANCELLED, incoming.at_ns
        incoming.broken += judge_over(state, proposal, complete=True)
        del state.proposals[proposal.propose.id]
        incoming.effects["ended"] = (proposal,)


def drop(state: SessionState, incoming: Incoming, proposal: Proposal, rival: Proposal) -> None:
    """Drop a proposal by the overlap rule: once its proposer has received the rival, it was never sent."""
    state.dropped[proposal.proposer, proposal.propose.id] = rival.byte_end
    if len(state.dropped) > MOST_PROPOSALS:
        del state.dropped[next(iter(state.dropped))]
    proposal.outcome, proposal.ended_at_ns, proposal.life = Outcome.DROPPED, incoming.at_ns, Life.UNUSED
    state.credit[proposal.proposer] = min(state.credit[proposal.proposer] + 1, MAX_U64)
    state.proposals.pop(proposal.propose.id, None)
    incoming.effects["ended"] = (*incoming.effects.get("ended", ()), proposal)


def compare_start(state: SessionState, proposal: Proposal) -> None:
    """Compare the expected starting hash with the entry, if the entry is known."""
    expected, seq = proposal.propose.expected_hash, expected_seq(proposal.propose)
    known = None if seq is None else state.known.get(*proposal.log, seq)
    if known is not None and known.entry_hash is not None and expected is not None:
        proposal.hash_differs |= known.entry_hash != expected


def judge_over(state: SessionState, proposal: Proposal, *, complete: bool) -> list[Broken]:
    """The rules that a proposal breaks at its end. `complete`: all data about it has come."""
    findings: list[Broken] = []
    # The entry may have become known since the proposal was sent.
    compare_start(state, proposal)
    reasons = {half.reason for half in proposal.halves.values()}
    if proposal.hash_differs and not reasons & {CancelReason.STARTING_HASH, CancelReason.FORKED}:
        reason = f"proposal {proposal.propose.id} expects another entry {expected_seq(proposal.propose)}"
        findings.append(Broken(RULE["starting_hash_differs"], reason))
    if state.apart and CancelReason.END_REACHED in reasons and complete and not proposal.partial:
        findings += untrue_cancel(CancelReason.END_REACHED, _untrue_end(state, proposal))
    return findings


def untrue_cancel(reason: CancelReason, untrue: str | None) -> list[Broken]:
    """The rule that a cancel breaks if its reason is untrue."""
    return [] if untrue is None else [Broken(RULE["cancel_reason_untrue"], f"{reason.value}: {untrue}")]


def untrue(state: SessionState, proposal: Proposal, role: Role, cancel: Cancel) -> str | None:
    """Why the reason of a cancel is untrue. None: it is true, or may be."""
    peers = proposal.halves[role.peer]
    match cancel.reason:
        case CancelReason.END_REACHED:
            return _untrue_end(state, proposal)
        case CancelReason.CONFIRMING:
            return "the other side did not cancel" if peers.state is SideState.OPEN else None
        case CancelReason.MANDATORY_PAYLOAD:
            return None if peers.ever_mandatory else "payloads were never mandatory"
        case CancelReason.END_OF_LOG:
            seqnum = cancel.seqnum or 0
            sent = state.known.get(*proposal.log, seqnum)
            if sent is not None and role in sent.senders and not sent.end_of_log and not sent.is_forged:
                return f"the same side sent entry {seqnum} as a regular one"
            return None if seqnum < proposal.first else f"entry {seqnum} isn't before entry {proposal.first}"
        case CancelReason.STARTING_HASH:
            return untrue_hash(proposal, cancel.entries[0].in_log(*proposal.log))
        case CancelReason.FORKED:
            return untrue_fork(proposal, [entry.in_log(*proposal.log) for entry in cancel.entries])
    return None


def _untrue_end(state: SessionState, proposal: Proposal) -> str | None:
    if proposal.plan.end is None and not _log_ends(state, proposal):
        return "the range has no end"
    return None if any(_at_end(state, proposal, one) for one in Role) else "no side is at the end"


def _log_ends(state: SessionState, proposal: Proposal) -> bool:
    return any((*proposal.log, role) in state.ends for role in Role)


def _at_end(state: SessionState, proposal: Proposal, role: Role) -> bool:
    """Whether a side has sent the last piece, by any version of the settings, or may have: its cursor is unknown."""
    ends = [state.ends.get((*proposal.log, one), MAX_U64) for one in Role]
    cursors = [version.cursor for version in proposal.halves[role].versions]
    return any(
        one.lost or one.piece is None or one.piece.seq > min(ends) or (one.last is Sent.PREFIX and _is_last(one))
        for one in cursors
    )


def _is_last(cursor: Cursor) -> bool:
    return cursor.index + 1 == cursor.plan.size
