"""Packets of the data channel: switch, cancelled, and data about the current proposal.

Data about a proposal is judged in `turns.py`. Here is which proposal it is about, and what happens if there is none.
"""

from __future__ import annotations

from typing import Final

from wirehouse_codecs.bamboo.session.effects import Incoming
from wirehouse_codecs.bamboo.session.life import active, step
from wirehouse_codecs.bamboo.session.pieces import SideEntries
from wirehouse_codecs.bamboo.session.proposals import (
    Input,
    Proposal,
    SideState,
)
from wirehouse_codecs.bamboo.session.state import Begun, SessionState
from wirehouse_codecs.bamboo.session.turns import DataTurn, decompress
from wirehouse_codecs.bamboo.setup import Role
from wirehouse_codecs.bamboo.wire import lzfoo
from wirehouse_codecs.bamboo.wire.decompression import not_read
from wirehouse_codecs.bamboo.wire.messages import (
    Cancelled,
    CompressedPayload,
    DataPacket,
    RawPayload,
    Switch,
)

#: How many unfinished payloads of ended proposals are kept, and of how many bytes each.
MOST_BEGUN: Final = 16
MOST_BEGUN_BYTES: Final = 64 << 10
_SILENT: Final = (SideState.SILENT, SideState.ENDED)


def take_switch(state: SessionState, incoming: Incoming, switch: Switch) -> None:
    """Make a proposal the current one of its sender."""
    proposal = active(state, incoming, switch.id, Input.SWITCH)
    if proposal is not None:
        state.current[incoming.role] = (switch.id, proposal.number)
    elif state.partial or state.untracked:
        state.current[incoming.role] = None


def take_cancelled(state: SessionState, incoming: Incoming, cancelled: Cancelled) -> None:
    """The sender sends no more data about a proposal."""
    proposal = active(state, incoming, cancelled.id, Input.CANCELLED)
    if proposal is not None:
        half = proposal.halves[incoming.role]
        _keep_begun(state, proposal, incoming.role)
        state.release(half)
        half.last = None
        step(state, incoming, proposal, Input.CANCELLED)


def _keep_begun(state: SessionState, proposal: Proposal, role: Role) -> None:
    """Keep the unfinished payload of a side: a later proposal may continue it at its offset."""
    assembly = proposal.halves[role].assembly
    if assembly is None or assembly.begins_at or not assembly.data or len(assembly.data) > MOST_BEGUN_BYTES:
        return
    heard = SideEntries(state, proposal, role).known_of(assembly.seq)
    if heard is not None and heard.payload_hash:
        key = (*proposal.log, assembly.seq, role)
        state.begun.pop(key, None)
        state.begun[key] = Begun(heard.payload_hash, bytes(assembly.data))
        if len(state.begun) > MOST_BEGUN:
            del state.begun[next(iter(state.begun))]


def take_data(state: SessionState, incoming: Incoming, packet: DataPacket) -> None:
    """Take a packet about the current proposal."""
    role = incoming.role
    current = state.current[role]
    if current is None:
        is_found = not state.untracked and state.find(incoming, "data_without_switch", "no proposal is the current one")
        if state.partial:
            # It may be about any proposal.
            for one in state.proposals.values():
                one.partial = True
                state.lose_half(one.halves[role])
        _keep_payload(state, incoming, packet, unknown=not is_found)
        return
    proposal = state.proposals.get(current[0])
    if proposal is None or proposal.number != current[1] or proposal.halves[role].state in _SILENT:
        state.find(incoming, "data_after_cancel", f"the {role} side has cancelled {current[0]}")
        _keep_payload(state, incoming, packet, unknown=False)
        return
    incoming.effects["proposal"] = proposal
    DataTurn(state, incoming, proposal).take(packet)


def _keep_payload(state: SessionState, incoming: Incoming, packet: DataPacket, *, unknown: bool) -> None:
    """Report the bytes of a payload whose proposal is unknown. Its rules are not judged."""
    if isinstance(packet, RawPayload):
        incoming.effects["data"] = packet.data
    elif isinstance(packet, CompressedPayload):
        if not unknown:
            incoming.effects["compressed"] = packet.data
            state.kept_inflater(incoming.role).forget()
            return
        read = decompress(state, incoming, packet)
        incoming.effects["data"] = read.shown
        if read.rule is not None:
            state.kept_inflater(incoming.role).forget()
            incoming.note(lzfoo.HISTORY_UNKNOWN, not_read(packet))
