"""The session of two peers: what each packet does, and which rules it breaks.

Two peers replicate logs over a connection with two channels. This is the theory behind the modules of this package.

**What they negotiate.** Each peer first sends a set-up: how it sends and receives (greedily or safely), and how far
back compressed data may refer. Then each peer gives the other one credit for proposals on the control channel. A
*proposal* names a log and a range of its entries: "let us bring each other up to date here". The other side confirms it
with its first adjust. From then on both sides may send data about it, adjust what they want to be sent (eagerness,
sizes, end), or cancel it. A proposal ends with four packets: each side sends a cancel on the control channel and a
cancelled on the data channel. Then its id is free again. If two proposals for the same entries cross each other, the
overlap rule drops one of them, as if it had never been sent.

**What a proposal and its cursor are.** A proposal is a *plan*: a sequence of pieces, each the metadata or the payload
of an entry. It goes from the lower certificate pool through the range to the upper certificate pool. Each side has a
*cursor* into the plan: the next piece that it is going to send or skip. Data packets don't name their piece. A switch
makes a proposal the current one of its sender, and the sender's cursor has the rest: sequence number, links that were
left out, and how far a payload has come. So a wrong cursor makes all later packets unreadable.

**Who must wait for whom.** Nobody may send data before the proposal is confirmed, nor propose without credit. A side
may skip bytes only if the other side has sent them already. After invalid data, a greedy sender must apologise before
it sends anything else. No side has to wait for an adjust: it may cross the data that it is about. So a sender is judged
by every version of the settings that it may still go by. It breaks a rule only if it breaks one by each of them. Once
it does what only newer settings allow, it has shown that it knows them. If the channels have connections of their own,
their order is unknown. Then a data packet that breaks a rule is only a *doubt* until the control channel has caught up.

**What lost bytes do to verdicts.** Bytes that the capture lacks may have contained anything that is legal. From then on
the session is partial. Rules that the missing bytes may have satisfied are not judged, and the cursors of the side that
sent them are lost. A lost cursor breaks no rule and moves no more. Proposals that are sent after the gap are judged in
full again, once both sides have been read again.

The cases are in these modules, each of which uses only those after it:

- `control.py`: packets of the control channel. `data.py`: packets of the data channel.
- `turns.py`: data about the current proposal, judged by each version. `pieces.py`: its effects.
- `life.py`: the steps of a proposal through its states.
- `state.py`: the state, and what losing bytes does to it. `effects.py`: the results.
- `entry_rebuild.py`: entries from metadata. `proposals.py`: proposals and their tables. `cursor.py`: plans and cursors.

A rule of `ENDS` ends the session, and nothing is received after it. Signatures are checked elsewhere: a packet names
the piece that it `follows`, so that a later verdict on this piece can show whether an apology was due. Memory is
bounded: there are limits for proposals, for entries of each, and for bytes of unfinished payloads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from wirehouse_codecs.bamboo.options import BYMUX, BambooOptions
from wirehouse_codecs.bamboo.rules import ENDS, RULE
from wirehouse_codecs.bamboo.session import control, data
from wirehouse_codecs.bamboo.session.effects import Effects, Ending, Incoming
from wirehouse_codecs.bamboo.session.entry_rebuild import Known
from wirehouse_codecs.bamboo.session.life import judge_over
from wirehouse_codecs.bamboo.session.proposals import Life
from wirehouse_codecs.bamboo.session.state import Memory, SessionState
from wirehouse_codecs.bamboo.setup import Role, Setup
from wirehouse_codecs.bamboo.wire import bymux_packets
from wirehouse_codecs.bamboo.wire.bymux import Broken
from wirehouse_codecs.bamboo.wire.messages import (
    Adjust,
    Apology,
    Cancel,
    Cancelled,
    CompressedPayload,
    Metadata,
    Notify,
    PointToPoint,
    ProposalCredit,
    Propose,
    RawPayload,
    SkipBytes,
    SkipPayload,
    Switch,
)
from wirehouse_codecs.bamboo.wire.reader import CUT, CUT_WRITE, UNKNOWN_STREAM, Layer, Read


class Session:
    """Both peers of a connection. `receive` takes their packets in order; call `end` once.

    `known` are entries that are known from elsewhere. `state` is the memory of an earlier session, to continue from.
    """

    def __init__(
        self,
        options: BambooOptions,
        *,
        started_late: bool = False,
        known: Known | None = None,
        state: Memory | None = None,
    ) -> None:
        if state is None:
            self.state = SessionState.begin(options, started_late=started_late, known=known)
        else:
            self.state = SessionState(options, state)

    def receive(self, read: Read) -> Effects:
        """Take the next packet. ValueError: a violation has ended the session."""
        state = self.state
        if state.ended_by is not None:
            raise ValueError("the session has ended: it receives no more packets")
        if read.reason in (UNKNOWN_STREAM, CUT, CUT_WRITE):
            self._miss_read(read)
        if read.packet is not None and not read.late and state.options.transport == BYMUX:
            state.unheard.discard(read.role)
        incoming = Incoming(read)
        first = incoming.broken[0].rule.name if incoming.broken else None
        if first not in ENDS and read.layer is not Layer.BYMUX and read.packet is not None:
            assert not isinstance(read.packet, bymux_packets.Packet)
            _TAKE[type(read.packet)](state, incoming, read.packet)
        incoming.broken.sort(key=lambda broken: broken.rule.name not in ENDS)
        if incoming.broken and incoming.broken[0].rule.name in ENDS:
            state.ended_by = incoming.broken[0].rule.name
        return incoming.result()

    def _miss_read(self, read: Read) -> None:
        """Bytes of a packet are missing. Only packets of the data channel change the current proposal."""
        knows_current = read.reason == CUT or read.layer is Layer.CONTROL
        current = self.state.current[read.role] if knows_current else None
        self.state.miss(read.role)
        self.state.current[read.role] = current

    def miss(self, role: Role) -> None:
        """Bytes of `role` are missing from the capture."""
        self.state.miss(role)

    def doubt(self, role: Role) -> None:
        """The other side has received bytes of `role` that come later."""
        self.state.doubt(role)

    def end(self, *, in_order: bool) -> list[Ending]:
        """The connection has ended. The result are rules that are broken by what never came."""
        endings: list[Ending] = []
        for proposal in self.state.proposals.values():
            endings += [Ending(broken, proposal) for broken in judge_over(self.state, proposal, complete=in_order)]
            if self.state.ended_by is not None or proposal.partial:
                continue
            if proposal.cancelled and in_order:
                states = ", ".join(f"{role}: {half.state}" for role, half in proposal.halves.items())
                endings.append(Ending(Broken(RULE["cancel_not_confirmed"], states), proposal))
            elif proposal.life is Life.PROPOSED and not proposal.cancelled:
                reason = f"the {proposal.proposer} side proposed {proposal.propose.id}"
                endings.append(Ending(Broken(RULE["proposal_not_answered"], reason), proposal))
        return endings


_TAKE: Final[Mapping[type[PointToPoint], Callable[[SessionState, Incoming, Any], None]]] = MappingProxyType(
    {
        Setup: control.take_setup,
        ProposalCredit: control.take_credit,
        Propose: control.take_propose,
        Adjust: control.take_adjust,
        Cancel: control.take_cancel,
        Switch: data.take_switch,
        Cancelled: data.take_cancelled,
        Notify: data.take_data,
        SkipPayload: data.take_data,
        SkipBytes: data.take_data,
        RawPayload: data.take_data,
        CompressedPayload: data.take_data,
        Apology: data.take_data,
        Metadata: data.take_data,
    }
)
