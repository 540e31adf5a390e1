"""What a connection of Bamboo Point-2-Point says, as rows of the log `silver.bamboo`.

A row of kind `message` for each packet: the set-ups, those of bymux, those of both channels. An `entry` for each entry
that a packet holds, put together as far as that can be; its signature and its place in the log are judged where all
entries come together. `quarantine` for bytes that are no packet, `violation` for each broken rule. `proposal` and
`session` rows tell where these stand at the end of each window in which they changed; a proposal whose life is over has
its last one at once. In all of them the client is the proactive side.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from wirehouse_codecs.bamboo import bymux, varu64, yamf
from wirehouse_codecs.bamboo.bymux import Broken, Role
from wirehouse_codecs.bamboo.cursor import Cursor, Settings
from wirehouse_codecs.bamboo.entries import Entry, decode
from wirehouse_codecs.bamboo.messages import (
    Adjust,
    Cancel,
    CompressedPayload,
    Metadata,
    Notify,
    PointToPoint,
    ProposalCredit,
    Propose,
    RawPayload,
    Setup,
    SkipBytes,
    kind_of,
)
from wirehouse_codecs.bamboo.options import BambooOptions
from wirehouse_codecs.bamboo.proposals import COUNTS, Proposal
from wirehouse_codecs.bamboo.reader import Layer, Read, Reader
from wirehouse_codecs.bamboo.rebuilding import Rebuilt
from wirehouse_codecs.bamboo.rules import RULE
from wirehouse_codecs.bamboo.session import Payload, Session, Told
from wirehouse_codecs.errors import StateVersionError
from wirehouse_codecs.rules import Place
from wirehouse_codecs.stream_log import MESSAGE, QUARANTINE, Dialogue, Log, Start, Where, schema
from wirehouse_codecs.tcp import Closed, Connection, Data, Direction, Endpoint, Hole

SESSION, PROPOSAL, ENTRY = "session", "proposal", "entry"
LOG_VERSION: Final = 1

#: Of unsigned 64-bit numbers.
UINT: Final = pa.decimal128(20, 0)
#: Fields that no other packet has are null. Sizes and windows are in bytes. Hashes are digests, or, where they aren't
#: rightly written, the 66 bytes that stand there.
MESSAGE_TYPE: Final = pa.struct(
    [
        ("kind", pa.string()),
        ("cursor_before", pa.string()),
        ("cursor_after", pa.string()),
        ("seq", UINT),
        ("follows_byte_start", pa.int64()),
        # Set-up.
        ("sends_greedily", pa.bool_()),
        ("receives_greedily", pa.bool_()),
        ("send_window", UINT),
        ("receive_window", UINT),
        # bymux.
        ("is_global", pa.bool_()),
        ("stream_id", UINT),
        ("amount", UINT),
        ("credit", UINT),
        ("about", pa.string()),
        # Proposals and adjusts.
        ("author", pa.binary()),
        ("log_id", UINT),
        ("start", UINT),
        ("lower_info", UINT),
        ("end", UINT),
        ("upper_info", UINT),
        ("offset", UINT),
        ("min_payload", UINT),
        ("max_payload", UINT),
        ("eagerness", pa.string()),
        ("size_limit", UINT),
        ("payload_only", pa.bool_()),
        ("sparse", pa.bool_()),
        ("mandatory", pa.bool_()),
        ("may_skip", pa.bool_()),
        ("expected_hash", pa.binary()),
        # Cancels.
        ("code", pa.int32()),
        ("reason", pa.string()),
        ("seqnum", UINT),
        ("entries", pa.list_(pa.binary())),
        # Data.
        ("count", UINT),
        ("size", UINT),
        ("compressed_size", UINT),
        ("at", UINT),
        ("data", pa.binary()),
        ("compressed", pa.binary()),
        ("end_of_log", pa.bool_()),
        ("backlink", pa.binary()),
        ("payload_size", UINT),
        ("payload_hash", pa.binary()),
        ("signature", pa.binary()),
        ("entry_hash", pa.binary()),
        (
            "payload",
            pa.struct([("data", pa.binary()), ("packets", pa.int64()), ("checked", pa.bool_()), ("rule", pa.string())]),
        ),
    ]
)
ENTRY_TYPE: Final = pa.struct(
    [
        # The kind of the packet that holds it: metadata or cancel.
        ("origin", pa.string()),
        ("author", pa.binary()),
        ("log_id", UINT),
        ("seq", UINT),
        ("end_of_log", pa.bool_()),
        ("lipmaalink", pa.binary()),
        ("backlink", pa.binary()),
        ("payload_size", UINT),
        ("payload_hash", pa.binary()),
        ("signature", pa.binary()),
        ("data", pa.binary()),
        ("entry_hash", pa.binary()),
        ("omitted", pa.list_(pa.string())),
        ("unknown_links", pa.list_(UINT)),
        ("assumed_links", pa.bool_()),
        # The entry's rule that it breaks by itself; the signature isn't looked at.
        ("rule", pa.string()),
        ("reason", pa.string()),
        # How its sender sends; null where that isn't known.
        ("greedy", pa.bool_()),
    ]
)
_COUNT_TYPE: Final = pa.struct([(name, UINT) for name in COUNTS])
_HALF_TYPE: Final = pa.struct(
    [
        ("state", pa.string()),
        ("cursor", pa.string()),
        ("eagerness", pa.string()),
        ("size_limit", UINT),
        ("min_payload", UINT),
        ("max_payload", UINT),
        ("mandatory", pa.bool_()),
        ("code", pa.int32()),
        ("reason", pa.string()),
        ("sent", _COUNT_TYPE),
    ]
)
PROPOSAL_TYPE: Final = pa.struct(
    [
        ("proposer", pa.string()),
        ("author", pa.binary()),
        ("log_id", UINT),
        ("start", UINT),
        ("lower_info", UINT),
        ("end", UINT),
        ("upper_info", UINT),
        ("offset", UINT),
        ("payload_only", pa.bool_()),
        ("sparse", pa.bool_()),
        ("expected_hash", pa.binary()),
        ("state", pa.string()),
        ("outcome", pa.string()),
        ("proposed_at_ns", pa.int64()),
        ("confirmed_at_ns", pa.int64()),
        ("ended_at_ns", pa.int64()),
        ("partial", pa.bool_()),
        ("client", _HALF_TYPE),
        ("server", _HALF_TYPE),
    ]
)
_SIDE_TYPE: Final = pa.struct(
    [
        ("sends_greedily", pa.bool_()),
        ("receives_greedily", pa.bool_()),
        ("send_window", UINT),
        ("receive_window", UINT),
        ("send_mode", pa.string()),
        ("compression_window", UINT),
        ("credit_granted", UINT),
        ("credit", UINT),
        ("proposals", pa.int64()),
    ]
)
SESSION_TYPE: Final = pa.struct(
    [
        ("proactive", pa.string()),
        ("transport", pa.string()),
        ("control_stream", UINT),
        ("data_stream", UINT),
        ("client", _SIDE_TYPE),
        ("server", _SIDE_TYPE),
        ("open_proposals", pa.int64()),
        ("partial", pa.bool_()),
        ("ended_by", pa.string()),
        ("closed", pa.string()),
    ]
)
#: Columns of the log, of which only the struct of the row's own kind is there. `proposal_number` counts the proposals
#: of a connection, for ids are used again.
SCHEMA: Final = schema(
    [
        ("channel", pa.string()),
        ("proposal_id", UINT),
        ("proposal_number", pa.int64()),
        ("message", MESSAGE_TYPE),
        ("entry", ENTRY_TYPE),
        ("proposal", PROPOSAL_TYPE),
        ("session", SESSION_TYPE),
    ]
)

_SIDES: Final = {Role.PROACTIVE: Direction.CLIENT, Role.REACTIVE: Direction.SERVER}


def starter(options: BambooOptions) -> Start:
    """Dialogues of a source with these options."""

    def start(log: Log, connection: Connection, server: Endpoint, snapshot: str | None) -> Dialogue:
        return Conversation(log, connection, options, options.channel_at(server.port), snapshot)

    return start


class Conversation:
    """One connection. A `Dialogue`.

    That of one channel alone is only cut into packets: what they mean takes both connections of a pair.
    """

    dialect = None, None

    def __init__(
        self,
        log: Log,
        connection: Connection,
        options: BambooOptions,
        channel: bymux.Channel | None,
        snapshot: str | None,
    ) -> None:
        self._log, self._connection, self._options, self._channel = log, connection, options, channel
        late = connection.opened == "middle"
        self._reader = Reader(options, channel, started_late=late)
        self._session = Session(options, started_late=late)
        self._begun = False
        self._closed: str | None = None
        #: Rows as they were told last: what has not changed since is not told again.
        self._told: dict[int | None, dict[str, Any]] = {}
        if snapshot is not None:
            self._restore(json.loads(snapshot))
            self._told = self._rows()

    def receive(self, pieces: Sequence[Data]) -> None:
        """Bytes of both directions, in arrival order."""
        if pieces and not self._begun:
            self._begun = True
            if self._session.partial and self._channel is None:
                self._no_setup(pieces[0].place, "the capture begins within the connection")
        for piece in pieces:
            self._take(self._reader.receive(piece.direction, piece.data, piece.place))

    def hole(self, hole: Hole) -> None:
        """Bytes that never came."""
        role = self._options.role_of(hole.direction)
        if self._reader.missed(hole.direction, hole.byte_end - hole.byte_start):
            self._session.miss(role)
            setup_is_due = self._channel is None and role not in self._session.setups
            if setup_is_due and hole.byte_start < _MOST_SETUP_BYTES:
                self._no_setup(hole.place, f"the set-up of the {role} side is missing")

    def close(self, closed: Closed) -> None:
        """The connection has ended."""
        self._closed = closed.how
        in_order = closed.how == "fin"
        self._take(self._reader.finish(closed.place, in_order=in_order))
        for ending in self._session.end(in_order=in_order):
            self._find(ending.broken, closed.place, None, None, ending.proposal)
        for role in Role:
            rest = self._reader.rest(role)
            if rest is not None:
                finding = {"rule": None, "severity": None, "message": rest.reason}
                where = Where(_SIDES[role], rest.byte_start, rest.byte_end)
                self._log.add(QUARANTINE, closed.place, where, finding=finding)

    def _no_setup(self, place: Place, reason: str) -> None:
        self._log.find(RULE["no_setup_seen"], reason, place)

    # Packets

    def _take(self, reads: Sequence[Read]) -> None:
        for read in reads:
            told = self._session.receive(read) if self._channel is None else _alone(read)
            self._tell(told)
            if told.ends:
                self._reader.stop(read.role, read.byte_end)
                break

    def _tell(self, told: Told) -> None:
        """The rows of a packet, or of bytes that are none."""
        read = told.read
        where = Where(_SIDES[read.role], read.byte_start, read.byte_end)
        about = told.proposal
        if read.packet is not None:
            self._message(told, where)
        elif where.byte_end > where.byte_start:
            first = told.broken[0] if told.broken else None
            finding = {
                "rule": None if first is None else first.rule.id,
                "severity": None,
                "message": read.reason if first is None else first.reason,
            }
            self._log.add(QUARANTINE, read.place, where, finding=finding, raw=read.undecoded or None)
        for broken in told.broken:
            self._find(broken, read.place, where, read.layer, about)
        for proposal in told.ended:
            self._told.pop(proposal.number, None)
            self._add_proposal(proposal, self._proposal_row(proposal))

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

    def _message(self, told: Told, where: Where) -> None:
        read, packet, proposal = told.read, told.read.packet, told.proposal
        assert packet is not None
        about: dict[str, Any] = {
            "channel": read.layer.value,
            "proposal_id": getattr(packet, "id", None) if proposal is None else proposal.propose.id,
            "proposal_number": None if proposal is None else proposal.number,
        }
        if isinstance(packet, bymux.Packet):
            self._log.add(MESSAGE, read.place, where, message=_bymux(packet, read), **about)
            return
        message = _content(packet) | {
            "kind": kind_of(packet),
            "cursor_before": told.cursor_before,
            "cursor_after": told.cursor_after,
            "seq": told.seq,
            "follows_byte_start": told.follows,
            "entry_hash": None if told.entry is None else told.entry.entry_hash,
            "payload": None if told.payload is None else _payload(told.payload),
        }
        if isinstance(packet, RawPayload | CompressedPayload):
            message |= {"data": told.data, "compressed": told.compressed}
        self._log.add(MESSAGE, read.place, where, message=message, **about)
        if told.entry is not None:
            mode = self._session.mode(read.role)
            entry = _rebuilt(told.entry) | {"greedy": None if mode is None else mode.greedy}
            self._log.add(ENTRY, read.place, where, entry=entry, **about)
        if isinstance(packet, Cancel) and proposal is not None:
            for shown in packet.entries:
                self._log.add(ENTRY, read.place, where, entry=_shown(shown.in_log(*proposal.log)), **about)

    # Entities

    def conclude(self) -> None:
        """A row of the session and of each proposal that changed since it was told last."""
        rows = self._rows()
        for key, row in rows.items():
            if self._told.get(key) == row:
                continue
            if key is None:
                self._log.add(SESSION, self._connection.first, session=row)
        for proposal in self._session.proposals.values():
            row = rows[proposal.number]
            if self._told.get(proposal.number) != row:
                self._add_proposal(proposal, row)
        self._told = rows

    def _add_proposal(self, proposal: Proposal, row: dict[str, Any]) -> None:
        self._log.add(
            PROPOSAL,
            self._connection.first,
            proposal_id=proposal.propose.id,
            proposal_number=proposal.number,
            proposal=row,
        )

    def _rows(self) -> dict[int | None, dict[str, Any]]:
        if self._channel is not None:
            return {}
        rows: dict[int | None, dict[str, Any]] = {None: self._session_row()}
        return rows | {one.number: self._proposal_row(one) for one in self._session.proposals.values()}

    def _session_row(self) -> dict[str, Any]:
        session, options = self._session, self._options
        return {
            "proactive": options.proactive.value,
            "transport": options.transport,
            "control_stream": self._reader.streams.get(bymux.Channel.CONTROL),
            "data_stream": self._reader.streams.get(bymux.Channel.DATA),
            **{_SIDES[role].value: self._side_row(role) for role in Role},
            "open_proposals": len(session.proposals),
            "partial": session.partial,
            "ended_by": session.ended_by,
            "closed": self._closed,
        }

    def _side_row(self, role: Role) -> dict[str, Any]:
        session, setup, mode = self._session, self._session.setups.get(role), self._session.mode(role)
        return {
            **({} if setup is None else {name: getattr(setup, name) for name in _SETUP}),
            "send_mode": None if mode is None else "greedy" if mode.greedy else "safe",
            "compression_window": None if mode is None else mode.window,
            "credit_granted": min(session.granted[role], varu64.MAX_U64),
            "credit": session.credit[role],
            "proposals": session.proposed[role],
        }

    def _proposal_row(self, proposal: Proposal) -> dict[str, Any]:
        propose = proposal.propose
        return {
            "proposer": _SIDES[proposal.proposer].value,
            **{name: getattr(propose, name) for name in _SHARED},
            "end": proposal.plan.end,
            "upper_info": proposal.plan.upper_info,
            "state": proposal.life.value,
            "outcome": None if proposal.outcome is None else proposal.outcome.value,
            "proposed_at_ns": proposal.proposed_at_ns,
            "confirmed_at_ns": proposal.confirmed_at_ns,
            "ended_at_ns": proposal.ended_at_ns,
            "partial": proposal.partial,
            **{_SIDES[role].value: _half_row(proposal, role) for role in Role},
        }

    # Carried state

    def snapshot(self) -> str:
        """The state as JSON. It holds bytes of the wire, so it is sealed where it is stored."""
        state = {
            "version": LOG_VERSION,
            "reader": self._reader.snapshot(),
            "session": self._session.snapshot(),
            "begun": self._begun,
        }
        return json.dumps(state, separators=(",", ":"))

    def _restore(self, state: dict[str, Any]) -> None:
        if state.get("version") != LOG_VERSION:
            raise StateVersionError(what="bamboo log", found=state.get("version"), expected=LOG_VERSION)
        self._reader = Reader(self._options, self._channel, snapshot=state["reader"])
        self._session = Session(self._options, snapshot=state["session"])
        self._begun = state["begun"]


def _alone(read: Read) -> Told:
    """A packet of which nothing but itself is known."""
    packet = read.packet
    return Told(
        read,
        read.broken,
        data=packet.data if isinstance(packet, RawPayload) else None,
        compressed=packet.data if isinstance(packet, CompressedPayload) else None,
    )


#: A byte and two numbers.
_MOST_SETUP_BYTES: Final = 1 + 2 * varu64.MAX_BYTES
_SETUP: Final = ("sends_greedily", "receives_greedily", "send_window", "receive_window")
_SHARED: Final = ("author", "log_id", "start", "lower_info", "offset", "payload_only", "sparse", "expected_hash")


def _half_row(proposal: Proposal, role: Role) -> dict[str, Any]:
    half = proposal.halves[role]
    wants: Settings = half.wants
    cursor: Cursor = half.cursor
    return {
        "state": half.state.value,
        "cursor": str(cursor),
        "eagerness": None if wants.eagerness is None else wants.eagerness.name.lower(),
        "size_limit": wants.size_limit,
        "min_payload": wants.min_payload,
        "max_payload": wants.max_payload,
        "mandatory": wants.mandatory,
        "code": half.reason,
        "reason": None if half.reason is None else half.reason.name.lower(),
        "sent": {name: min(getattr(half.count, name), varu64.MAX_U64) for name in COUNTS},
    }


def _bymux(packet: bymux.Packet, read: Read) -> dict[str, Any]:
    return {
        "kind": packet.type.name.lower(),
        "is_global": packet.stream_id is None,
        "stream_id": packet.amount if packet.creates else packet.stream_id,
        "amount": None if packet.creates else packet.amount,
        "credit": read.credit,
        "about": None if read.channel is None else read.channel.value,
    }


def _digest(written: bytes | None) -> bytes | None:
    """The digest of a hash, if it is one."""
    return written if written is None or yamf.broken(written) is not None else written[len(yamf.PREFIX) :]


def _content(packet: PointToPoint) -> dict[str, Any]:
    """The fields of a packet."""
    match packet:
        case Setup():
            return {name: getattr(packet, name) for name in _SETUP}
        case ProposalCredit():
            return {"amount": packet.amount}
        case Propose():
            fields = {name: getattr(packet, name) for name in _PROPOSE}
            return fields | {"eagerness": packet.eagerness.name.lower()}
        case Adjust():
            fields = {name: getattr(packet, name) for name in _ADJUST}
            return fields | {"eagerness": None if packet.eagerness is None else packet.eagerness.name.lower()}
        case Cancel():
            entries = [entry.data for entry in packet.entries] if packet.entries else None
            told = {"code": packet.reason.value, "reason": packet.reason.name.lower(), "seqnum": packet.seqnum}
            return told | {"entries": entries}
        case Notify() | SkipBytes():
            return {"count": packet.count}
        case RawPayload():
            return {"size": packet.size, "at": packet.at}
        case CompressedPayload():
            return {"size": packet.size, "compressed_size": packet.compressed_size, "at": packet.at}
        case Metadata():
            return {
                "end_of_log": packet.end_of_log,
                "backlink": _digest(packet.backlink),
                "payload_size": packet.payload_size,
                "payload_hash": _digest(packet.payload_hash),
                "signature": packet.signature,
            }
    return {}


_PROPOSE: Final = (
    *("author", "log_id", "start", "lower_info", "end", "upper_info", "offset", "min_payload", "max_payload"),
    *("size_limit", "payload_only", "sparse", "mandatory", "expected_hash"),
)
_ADJUST: Final = ("size_limit", "may_skip", "end", "upper_info", "min_payload", "max_payload")


def _payload(payload: Payload) -> dict[str, Any]:
    # The bytes of a payload that came in one packet are those of the packet.
    data = payload.data if payload.packets > 1 else None
    return {"data": data, "packets": payload.packets, "checked": payload.checked, "rule": payload.rule}


def _rebuilt(entry: Rebuilt) -> dict[str, Any]:
    link_rule = "link_unknown" if entry.unknown else None
    link_reason = f"the hash of {' and '.join(map(str, entry.unknown))} isn't known" if entry.unknown else None
    return {
        "origin": "metadata",
        "author": entry.author,
        "log_id": entry.log_id,
        "seq": entry.seq,
        "end_of_log": entry.end_of_log,
        "lipmaalink": _digest(entry.lipmaalink),
        "backlink": _digest(entry.backlink),
        "payload_size": entry.payload_size,
        "payload_hash": _digest(entry.payload_hash),
        "signature": entry.signature,
        "data": entry.data,
        "entry_hash": entry.entry_hash,
        "omitted": list(entry.omitted),
        "unknown_links": list(entry.unknown),
        "assumed_links": entry.assumed,
        "rule": entry.rule or link_rule,
        "reason": entry.reason or link_reason,
    }


def _shown(data: bytes) -> dict[str, Any]:
    """An entry that a cancel shows."""
    decoded = decode(data)
    place = {"author": decoded.author, "log_id": decoded.log_id, "seq": decoded.seq}
    told = {"origin": "cancel", "data": data, "entry_hash": yamf.digest(data)} | place
    entry: Entry | None = decoded.entry
    if entry is None:
        return told | {"rule": None if decoded.rule is None else decoded.rule.name, "reason": decoded.reason}
    names = ("end_of_log", "lipmaalink", "backlink", "payload_size", "payload_hash", "signature")
    return told | {name: getattr(entry, name) for name in names}
