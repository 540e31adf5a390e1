"""Packets of the control channel: set-up, credit, propose, adjust and cancel.

Each function takes one packet, changes the state of the session, and notes the rules that the packet breaks.
"""

from __future__ import annotations

from wirehouse_codecs.bamboo.session.effects import Incoming
from wirehouse_codecs.bamboo.session.life import active, compare_start, drop, step, untrue, untrue_cancel
from wirehouse_codecs.bamboo.session.proposals import (
    AFTER_OTHERS,
    Input,
    Life,
    Outcome,
    Proposal,
    broken_adjust,
    raced_by,
)
from wirehouse_codecs.bamboo.session.state import MOST_PROPOSALS, SessionState
from wirehouse_codecs.bamboo.setup import Setup
from wirehouse_codecs.bamboo.wire.lipmaa import broken_range
from wirehouse_codecs.bamboo.wire.messages import (
    Adjust,
    Cancel,
    CancelReason,
    ProposalCredit,
    Propose,
)
from wirehouse_codecs.bamboo.wire.varu64 import MAX_U64


def take_setup(state: SessionState, incoming: Incoming, setup: Setup) -> None:
    """Remember the set-up of a side."""
    state.setups[incoming.role] = setup


def take_credit(state: SessionState, incoming: Incoming, credit: ProposalCredit) -> None:
    """Add credit for proposals of the other side."""
    role = incoming.role
    had = state.credit[role.peer]
    if had + credit.amount > MAX_U64:
        state.find(incoming, "proposal_credit_overflow", f"{credit.amount} on top of {had}")
        return
    state.credit[role.peer] = had + credit.amount
    state.granted[role.peer] += credit.amount


def take_propose(state: SessionState, incoming: Incoming, propose: Propose) -> None:
    """Take a new proposal, and apply the overlap rule to it and to proposals of the other side."""
    role = incoming.role
    state.may_excuse(propose.id)
    if _refuses(state, incoming, propose):
        return
    before = state.proposals.pop(propose.id, None)
    if before is not None:
        before.outcome, before.ended_at_ns = Outcome.UNSEEN, incoming.at_ns
        incoming.effects["ended"] = (before,)
        for each, current in state.current.items():
            # After a resync a packet may be older than it seems from the packets of the other side.
            if current == (before.propose.id, before.number):
                state.current[each] = None
    state.dropped.pop((role, propose.id), None)
    proposal = Proposal.new(state.numbers, role, propose, incoming.at_ns, incoming.byte_end)
    proposal.partial = bool(state.unheard) or propose.id in state.unplaced or (before is not None and state.partial)
    state.unplaced.discard(propose.id)
    state.numbers += 1
    state.proposed[role] += 1
    state.credit[role] = max(state.credit[role] - 1, 0)
    incoming.effects["proposal"] = proposal
    rivals = [
        other
        for other in state.proposals.values()
        if other.proposer is not role
        and other.life is Life.PROPOSED
        and not other.cancelled
        and other.overlaps(proposal)
    ]
    before = next((other for other in rivals if proposal.yields_to(other)), None)
    if before is not None:
        drop(state, incoming, proposal, before)
        return
    for other in rivals:
        drop(state, incoming, other, proposal)
    if len(state.proposals) >= MOST_PROPOSALS:
        state.untracked = True
        return
    state.proposals[propose.id] = proposal
    compare_start(state, proposal)


def _refuses(state: SessionState, incoming: Incoming, propose: Propose) -> bool:
    """Whether a proposal breaks a rule, so that it has no effect."""
    role = incoming.role
    if not state.credit[role] and state.find(incoming, "proposal_without_credit", f"proposal {propose.id}"):
        return True
    if not role.may_take(propose.id):
        return state.find(incoming, "id_parity", f"the {role} side proposes {propose.id}")
    before = state.proposals.get(propose.id)
    # The connection of the data channel may be behind, so that the end of the earlier proposal comes later.
    is_over = state.apart and before is not None and all(half.reason for half in before.halves.values())
    if before is not None and not is_over and state.find(incoming, "id_in_use", f"proposal {propose.id}"):
        return True
    broken = broken_range(propose.start, propose.lower_info, propose.end, propose.upper_info)
    return broken is not None and state.find(incoming, *broken)


def take_adjust(state: SessionState, incoming: Incoming, adjust: Adjust) -> None:
    """Change the settings of a proposal, or confirm it."""
    role = incoming.role
    state.may_excuse(adjust.id)
    proposal = active(state, incoming, adjust.id, Input.ADJUST)
    if proposal is None:
        return
    event = proposal.input_of(role)
    broken = broken_adjust(proposal, role, adjust, confirms=event is Input.CONFIRM)
    if broken is not None and not (proposal.partial and broken[0] in AFTER_OTHERS):
        if not proposal.partial:
            # If bytes are missing, it may be about a later proposal with this id.
            state.find(incoming, *broken)
        return
    raced = None if proposal.partial else raced_by(proposal, role, adjust)
    if raced is not None and not state.not_received(incoming, proposal.halves[role].versions[-1].adjusted_at):
        incoming.note("settings_suspect", raced)
    if event is Input.CONFIRM:
        proposal.confirm(role, adjust, incoming.at_ns)
    else:
        proposal.adjust(role, adjust, incoming.byte_end)
    step(state, incoming, proposal, event)


def take_cancel(state: SessionState, incoming: Incoming, cancel: Cancel) -> None:
    """Take a cancel, and check whether its reason is true."""
    proposal = active(state, incoming, cancel.id, Input.CANCEL)
    if proposal is None:
        return
    # Over two connections, data that was sent earlier may come later. Then the end of the proposal decides.
    if not proposal.partial and not (state.apart and cancel.reason is CancelReason.END_REACHED):
        incoming.broken += untrue_cancel(cancel.reason, untrue(state, proposal, incoming.role, cancel))
    proposal.halves[incoming.role].reason = cancel.reason
    step(state, incoming, proposal, Input.CANCEL)
