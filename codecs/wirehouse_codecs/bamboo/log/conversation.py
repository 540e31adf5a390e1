"""The rows of a session over bymux, in one connection: packets, entries, proposals, and the session itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from wirehouse_codecs.bamboo.fast.judge import Plain, Spoken
from wirehouse_codecs.bamboo.log.fast_rows import add_rows
from wirehouse_codecs.bamboo.log.rows import (
    ENTRY,
    PROPOSAL,
    SESSION,
    SETUP,
    SHARED,
    SIDES,
    bymux_fields,
    half_row,
    packet_fields,
    payload_row,
    rebuilt_row,
    shown_row,
)
from wirehouse_codecs.bamboo.options import BambooOptions
from wirehouse_codecs.bamboo.rules import RULE
from wirehouse_codecs.bamboo.session.effects import Effects
from wirehouse_codecs.bamboo.session.proposals import Proposal
from wirehouse_codecs.bamboo.session.session import Session
from wirehouse_codecs.bamboo.session.state import Memory
from wirehouse_codecs.bamboo.setup import Channel, Role
from wirehouse_codecs.bamboo.wire import bymux_packets, varu64
from wirehouse_codecs.bamboo.wire.bymux import Broken
from wirehouse_codecs.bamboo.wire.entries import wrongly_signed
from wirehouse_codecs.bamboo.wire.messages import Cancel, CompressedPayload, RawPayload, kind_of
from wirehouse_codecs.bamboo.wire.reader import Layer, Read, Reader, ReaderState
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.core.snapshots import SnapshotCodec
from wirehouse_codecs.logs.rows import MESSAGE, QUARANTINE, Log, Where
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.reassembly import Closed, Connection, Data, Hole

SNAPSHOT_VERSION: Final = 5
#: After a piece that doesn't fit the fast path, the reference path takes this many before the fast path is tried again.
#: The number doubles each time that the try didn't pay. The fast path gets four times as many pieces as it took last.
_FEWEST_READ: Final = 4
_MOST_READ: Final = 256
#: A byte and two numbers.
_MOST_SETUP_BYTES: Final = 1 + 2 * varu64.MAX_BYTES


#: Address and port of each side.
Senders = Mapping[Role, str]


def senders_of(options: BambooOptions, client: Endpoint | None, server: Endpoint) -> Senders:
    """Who the sides of a connection are."""
    assert client is not None
    ends = {Direction.CLIENT: client, Direction.SERVER: server}
    return {options.role_of(side): f"{end.address}:{end.port}" for side, end in ends.items()}


def knows_more(connection: Connection, piece: Data) -> bool:
    """Whether the piece's sender had received bytes of the other side; what they were isn't known before delivery."""
    return received(connection, piece) > 0


def received(connection: Connection, piece: Data) -> int:
    """Bytes of the other side, and its FIN, that the host of the piece's sender had received, at most."""
    return connection.peer_received(piece.direction, piece.byte_start + len(piece.data))


def peer_received(connection: Connection, options: BambooOptions) -> Callable[[Role, int], int]:
    """`Connection.peer_received` by role."""
    sides = {options.role_of(side): side for side in Direction}
    return lambda role, byte_end: connection.peer_received(sides[role], byte_end)


def begins_late(connection: Connection, reader: Reader, role: Role, piece: Data) -> bool:
    """Whether the piece has the first bytes of its side, and others may stand before them."""
    return reader.is_silent(role) and connection.may_lack_beginning(piece.direction)


class Account:
    """A session as rows of the log."""

    def __init__(self, log: Log, options: BambooOptions, session: Session) -> None:
        self._log, self._options, self.session = log, options, session
        #: The connection that its own rows stand with, and its first place; and, of two, that of the data channel.
        self.connection_id: bytes | None = None
        self.first: Place | None = None
        self.data_connection_id: bytes | None = None
        self.closed: str | None = None
        #: The streams that the channels are carried by.
        self.streams: Mapping[Channel, int] = {}
        #: The rows that were emitted last. Unchanged rows are not emitted again.
        self._emitted: dict[int | None, dict[str, Any]] = {}

    def settle(self) -> None:
        """The current rows count as emitted."""
        self._emitted = self._rows()

    # Packets

    def end(self, place: Place, *, in_order: bool) -> None:
        """No packet comes any more: what never came."""
        for ending in self.session.end(in_order=in_order):
            self._find(ending.broken, place, None, None, ending.proposal)

    def end_doubt(self) -> None:
        """The control channel lacks nothing: what only a message of it could have kept is broken."""
        doubt = self.session.state.doubted
        if doubt is not None and self.session.state.ended_by is None:
            self.session.state.ended_by = doubt.rule
            about = {"proposal_id": doubt.proposal_id, "proposal_number": doubt.proposal_number}
            where = Where(SIDES[doubt.role], doubt.byte_start, doubt.byte_end)
            here = {"connection_id": self.data_connection_id, "channel": Layer.DATA} | about
            self._log.find(RULE[doubt.rule], doubt.reason, doubt.place, where, **here)

    def add(self, effects: Effects, senders: Senders) -> None:
        """The rows of a packet, or of bytes that are none; `senders` are those of its connection."""
        read = effects.read
        where = Where(SIDES[read.role], read.byte_start, read.byte_end)
        about = effects.proposal
        if read.packet is not None:
            self._add_message(effects, where, senders)
        elif where.byte_end > where.byte_start:
            first = effects.broken[0] if effects.broken else None
            finding = {
                "rule": None if first is None else first.rule.id,
                "severity": None,
                "message": read.reason if first is None else first.reason,
            }
            self._log.add(QUARANTINE, read.place, where, finding=finding, raw=read.undecoded or None)
        for broken in effects.broken:
            self._find(broken, read.place, where, read.layer, about)
        for proposal in effects.ended:
            self._emitted.pop(proposal.number, None)
            self._add_proposal(proposal, self._proposal_row(proposal))

    def add_fast(self, spoken: Spoken, senders: Senders) -> None:
        """The rows of pieces that compiled loops have read."""
        modes = {side: self.session.state.mode(role) for side, role in enumerate(Role)}
        greedy = {side: None if mode is None else mode.greedy for side, mode in modes.items()}
        add_rows(self._log, spoken, greedy, tuple(senders[role] for role in Role))

    def _find(
        self, broken: Broken, place: Place, where: Where | None, layer: Layer | None, proposal: Proposal | None
    ) -> None:
        self._log.find(
            broken.rule,
            broken.reason,
            place,
            where,
            channel=layer,
            proposal_id=None if proposal is None else proposal.propose.id,
            proposal_number=None if proposal is None else proposal.number,
        )

    def _add_message(self, effects: Effects, where: Where, senders: Senders) -> None:
        read, packet, proposal = effects.read, effects.read.packet, effects.proposal
        assert packet is not None
        about: dict[str, Any] = {
            "channel": read.layer.value,
            "proposal_id": getattr(packet, "id", None) if proposal is None else proposal.propose.id,
            "proposal_number": None if proposal is None else proposal.number,
        }
        if isinstance(packet, bymux_packets.Packet):
            self._log.add(MESSAGE, read.place, where, message=bymux_fields(packet, read), **about)
            return
        message = packet_fields(packet) | {
            "kind": kind_of(packet),
            "cursor_before": effects.cursor_before,
            "cursor_after": effects.cursor_after,
            "seq": effects.seq,
            "follows_byte_start": effects.follows,
            "entry_hash": None if effects.entry is None else effects.entry.entry_hash,
            "payload": None if effects.payload is None else payload_row(effects.payload),
        }
        if isinstance(packet, RawPayload | CompressedPayload):
            message |= {"data": effects.data, "compressed": effects.compressed}
        self._log.add(MESSAGE, read.place, where, message=message, **about)
        if effects.entry is not None:
            mode = self.session.state.mode(read.role)
            sent = {"greedy": None if mode is None else mode.greedy, "sender": senders[read.role]}
            self._log.add(ENTRY, read.place, where, entry=rebuilt_row(effects.entry) | sent, **about)
        if isinstance(packet, Cancel) and proposal is not None:
            for shown in packet.entries:
                whole = shown.in_log(*proposal.log)
                if proposal.partial and not shown.whole and wrongly_signed(whole):
                    # The cancel may be about an earlier proposal with that id, of another log.
                    continue
                entry = shown_row(whole, "cancel", senders[read.role])
                self._log.add(ENTRY, read.place, where, entry=entry, **about)

    # Entities

    def conclude(self) -> None:
        """Emit a row of the session and of each proposal that changed since its last row."""
        rows = self._rows()
        for key, row in rows.items():
            if key is None and self._emitted.get(key) != row:
                self._add_entity(SESSION, session=row)
        for proposal in self.session.state.proposals.values():
            row = rows[proposal.number]
            if self._emitted.get(proposal.number) != row:
                self._add_proposal(proposal, row)
        self._emitted = rows

    def _add_proposal(self, proposal: Proposal, row: dict[str, Any]) -> None:
        about = {"proposal_id": proposal.propose.id, "proposal_number": proposal.number}
        self._add_entity(PROPOSAL, proposal=row, **about)

    def _add_entity(self, kind: str, **content: Any) -> None:
        assert self.first is not None
        self._log.add(kind, self.first, connection_id=self.connection_id, **content)

    def _rows(self) -> dict[int | None, dict[str, Any]]:
        proposals = self.session.state.proposals.values()
        return {None: self._session_row(), **{one.number: self._proposal_row(one) for one in proposals}}

    def _session_row(self) -> dict[str, Any]:
        session, options = self.session, self._options
        return {
            "proactive": options.proactive.value,
            "transport": options.transport,
            "control_stream": self.streams.get(Channel.CONTROL),
            "data_stream": self.streams.get(Channel.DATA),
            "data_connection_id": self.data_connection_id,
            **{SIDES[role].value: self._side_row(role) for role in Role},
            "open_proposals": len(session.state.proposals),
            "partial": session.state.partial,
            "ended_by": session.state.ended_by,
            "closed": self.closed,
        }

    def _side_row(self, role: Role) -> dict[str, Any]:
        session, setup = self.session, self.session.state.setups.get(role)
        sends, receives = session.state.mode(role), session.state.mode(role.peer)
        return {
            **({} if setup is None else {name: getattr(setup, name) for name in SETUP}),
            "send_mode": None if sends is None else sends.name,
            "receive_mode": None if receives is None else receives.name,
            "compression_window": None if sends is None else sends.window,
            "decompression_window": None if receives is None else receives.window,
            "credit_granted": min(session.state.granted[role], varu64.MAX_U64),
            "credit": session.state.credit[role],
            "proposals": session.state.proposed[role],
        }

    def _proposal_row(self, proposal: Proposal) -> dict[str, Any]:
        propose = proposal.propose
        return {
            "proposer": SIDES[proposal.proposer].value,
            **{name: getattr(propose, name) for name in SHARED},
            "end": proposal.plan.end,
            "upper_info": proposal.plan.upper_info,
            "state": proposal.life.value,
            "outcome": None if proposal.outcome is None else proposal.outcome.value,
            "proposed_at_ns": proposal.proposed_at_ns,
            "confirmed_at_ns": proposal.confirmed_at_ns,
            "ended_at_ns": proposal.ended_at_ns,
            "partial": proposal.partial,
            **{SIDES[role].value: half_row(proposal, role) for role in Role},
        }


class Conversation:
    """One connection of bymux. A `Dialogue`."""

    dialect = None, None

    def __init__(
        self, log: Log, connection: Connection, server: Endpoint, options: BambooOptions, snapshot: str | None
    ) -> None:
        self._log, self._options, self._connection = log, options, connection
        self._senders = senders_of(options, log.client, server)
        late = connection.began_before_capture
        carried = None if snapshot is None else CODEC.read(snapshot)
        self._reader = Reader(options, started_late=late, state=None if carried is None else carried.reader)
        memory = None if carried is None else carried.memory
        self._account = Account(log, options, Session(options, started_late=late, state=memory))
        self._begun = carried is not None and carried.begun
        self._account.session.state.peer_received = peer_received(connection, options)
        self._plain = Plain(self._reader, self._account.session, options)
        #: How many pieces the fast path gets, and how many the reference path takes after one that doesn't fit.
        self._share, self._patience = _MOST_READ, _FEWEST_READ
        account = self._account
        account.connection_id, account.first = connection.connection_id, connection.first
        account.streams = self._reader.streams
        if snapshot is not None:
            account.settle()

    def unread_from(self, direction: Direction) -> int:
        """Where the first byte of `direction` stands that is in no row yet."""
        return self._reader.unread_from(self._options.role_of(direction))

    def receive(self, pieces: Sequence[Data]) -> None:
        """Bytes of both directions, in arrival order."""
        if pieces and not self._begun:
            self._begun = True
            if self._account.session.state.partial:
                self._no_setup(pieces[0].place, "the capture begins within the connection")
        at = 0
        while at < len(pieces):
            spoken = self._plain.take(pieces[at : at + self._share]) if len(pieces) - at >= _FEWEST_READ else None
            if spoken is not None:
                self._account.add_fast(spoken, self._senders)
                at += len(spoken.pieces)
                self._patience, self._share = _FEWEST_READ, max(4 * len(spoken.pieces), _FEWEST_READ)
                continue
            self._share = max(self._share // 4, _FEWEST_READ)
            for piece in pieces[at : at + self._patience]:
                self._excuse(piece)
                self._take(self._reader.receive(piece.direction, piece.data, piece.place))
            at += self._patience
            self._patience = min(2 * self._patience, _MOST_READ)

    def _excuse(self, piece: Data) -> None:
        """Who sent the piece may have been given leave by bytes that aren't here yet, or never come."""
        role, session = self._options.role_of(piece.direction), self._account.session
        if begins_late(self._connection, self._reader, role, piece):
            self._miss(piece.direction, 0, 0, piece.place)
        if not session.state.partial and self._reader.is_silent(role.peer) and knows_more(self._connection, piece):
            session.miss(role.peer)
            self._reader.excuse()
            return
        # The last of them may be the FIN.
        if received(self._connection, piece) > self._reader.received_bytes(role.peer) + 1:
            session.doubt(role.peer)
            self._reader.excuse()

    def hole(self, hole: Hole) -> None:
        """Bytes that never came."""
        self._miss(hole.direction, hole.byte_start, hole.byte_end, hole.place)

    def doubt(self, place: Place) -> None:
        """Nobody knows which side sent first what comes next."""
        for role in Role:
            self._account.session.doubt(role)
        self._reader.excuse()

    def _miss(self, direction: Direction, byte_start: int, byte_end: int, place: Place) -> None:
        """Bytes that the capture lacks."""
        role, session = self._options.role_of(direction), self._account.session
        cut = self._reader.cut(direction, byte_end - byte_start, place)
        if cut is not None:
            self._take(cut)
            return
        if session.state.ended_by is None:
            self._take(self._reader.give_up(role, place))
        if self._reader.missed(direction, byte_end - byte_start):
            session.miss(role)
            if role not in session.state.setups and byte_start < _MOST_SETUP_BYTES:
                self._no_setup(place, f"the set-up of the {role} side is missing")

    def close(self, closed: Closed) -> None:
        """The connection has ended."""
        self._account.closed = closed.how
        in_order = closed.how == "fin"
        self._take(self._reader.finish(closed.place, in_order=in_order))
        session = self._account.session
        if self._begun and not session.state.partial and session.state.ended_by is None:
            for role in filter(self._reader.is_silent, Role):
                self._no_setup(closed.place, f"the {role} side said nothing")
        self._account.end(closed.place, in_order=in_order)
        add_rest(self._log, self._reader, closed.place)

    def _no_setup(self, place: Place, reason: str) -> None:
        self._log.find(RULE["no_setup_seen"], reason, place)

    def _take(self, reads: Sequence[Read]) -> None:
        for read in reads:
            effects = self._account.session.receive(read)
            self._account.add(effects, self._senders)
            if effects.ends:
                self._reader.stop(read.role, read.byte_end)
                break

    def conclude(self) -> None:
        """Emit a row of the session and of each proposal that changed since its last row."""
        self._account.conclude()

    def snapshot(self) -> str:
        """The state as text. It holds bytes of the wire, so it is sealed where it is stored."""
        return CODEC.write(Carried(self._reader.state, self._account.session.state, self._begun))


@dataclass(frozen=True, slots=True)
class Carried:
    """What a conversation carries from window to window."""

    reader: ReaderState
    memory: Memory
    begun: bool


CODEC: Final = SnapshotCodec(Carried, what="bamboo connection", version=SNAPSHOT_VERSION)


def add_rest(log: Log, reader: Reader, place: Place) -> None:
    """The bytes of a connection that has ended which were not read."""
    for role in Role:
        rest = reader.rest(role)
        if rest is not None:
            finding = {"rule": None, "severity": None, "message": rest.reason}
            log.add(QUARANTINE, place, Where(SIDES[role], rest.byte_start, rest.byte_end), finding=finding)
