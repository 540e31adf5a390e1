"""Packets, entries and sides of proposals as the structs of the log `silver.bamboo`."""

from __future__ import annotations

from typing import Any, Final

from wirehouse_codecs.bamboo.session.cursor import Cursor, Settings
from wirehouse_codecs.bamboo.session.effects import Payload
from wirehouse_codecs.bamboo.session.entry_rebuild import Rebuilt
from wirehouse_codecs.bamboo.session.proposals import COUNTS, Proposal
from wirehouse_codecs.bamboo.setup import Role, Setup
from wirehouse_codecs.bamboo.wire import bymux_packets, varu64, yamf
from wirehouse_codecs.bamboo.wire.entries import Entry, decode
from wirehouse_codecs.bamboo.wire.messages import (
    Adjust,
    Cancel,
    CompressedPayload,
    Metadata,
    Notify,
    PointToPoint,
    ProposalCredit,
    Propose,
    RawPayload,
    SkipBytes,
)
from wirehouse_codecs.bamboo.wire.reader import Read
from wirehouse_codecs.tcp.endpoints import Direction

#: Kinds of rows that only this log has.
SESSION, PROPOSAL, ENTRY = "session", "proposal", "entry"
#: In all rows the client is the proactive side.
SIDES: Final = {Role.PROACTIVE: Direction.CLIENT, Role.REACTIVE: Direction.SERVER}
#: Fields of a set-up, and those of a proposal that never change.
SETUP: Final = ("sends_greedily", "receives_greedily", "send_window", "receive_window")
SHARED: Final = ("author", "log_id", "start", "lower_info", "offset", "payload_only", "sparse", "expected_hash")


def half_row(proposal: Proposal, role: Role) -> dict[str, Any]:
    """The state of a side of a proposal."""
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


def bymux_fields(packet: bymux_packets.Packet, read: Read) -> dict[str, Any]:
    """The fields of a packet of bymux."""
    return {
        "kind": packet.type.name.lower(),
        "is_global": packet.stream_id is None,
        "stream_id": packet.amount if packet.creates else packet.stream_id,
        "amount": None if packet.creates else packet.amount,
        "credit": read.credit,
        "about": None if read.channel is None else read.channel.value,
    }


def digest(written: bytes | None) -> bytes | None:
    """The digest of a hash, if it is one."""
    return written if written is None or yamf.broken(written) is not None else written[len(yamf.PREFIX) :]


def packet_fields(packet: PointToPoint) -> dict[str, Any]:
    """The fields of a packet."""
    match packet:
        case Setup():
            return {name: getattr(packet, name) for name in SETUP}
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
            fields = {"code": packet.reason.value, "reason": packet.reason.name.lower(), "seqnum": packet.seqnum}
            return fields | {"entries": entries}
        case Notify() | SkipBytes():
            return {"count": packet.count}
        case RawPayload():
            return {"size": packet.size, "at": packet.at}
        case CompressedPayload():
            return {"size": packet.size, "compressed_size": packet.compressed_size, "at": packet.at}
        case Metadata():
            return {
                "end_of_log": packet.end_of_log,
                "backlink": digest(packet.backlink),
                "payload_size": packet.payload_size,
                "payload_hash": digest(packet.payload_hash),
                "signature": packet.signature,
            }
    return {}


_PROPOSE: Final = (
    *("author", "log_id", "start", "lower_info", "end", "upper_info", "offset", "min_payload", "max_payload"),
    *("size_limit", "payload_only", "sparse", "mandatory", "expected_hash"),
)
_ADJUST: Final = ("size_limit", "may_skip", "end", "upper_info", "min_payload", "max_payload")


def payload_row(payload: Payload) -> dict[str, Any]:
    """A payload that is complete."""
    # The bytes of a payload that came in one packet are those of the packet.
    data = payload.data if payload.packets > 1 else None
    return {"data": data, "packets": payload.packets, "checked": payload.checked, "rule": payload.rule}


def rebuilt_row(entry: Rebuilt) -> dict[str, Any]:
    """An entry that was rebuilt from metadata."""
    link_rule = "link_unknown" if entry.unknown else None
    link_reason = f"the hash of {' and '.join(map(str, entry.unknown))} isn't known" if entry.unknown else None
    return {
        "origin": "metadata",
        "author": entry.author,
        "log_id": entry.log_id,
        "seq": entry.seq,
        "end_of_log": entry.end_of_log,
        "lipmaalink": digest(entry.lipmaalink),
        "backlink": digest(entry.backlink),
        "payload_size": entry.payload_size,
        "payload_hash": digest(entry.payload_hash),
        "signature": entry.signature,
        "data": entry.data,
        "entry_hash": entry.entry_hash,
        "omitted": list(entry.omitted),
        "unknown_links": list(entry.unknown),
        "assumed_links": entry.assumed,
        "rule": entry.rule or link_rule,
        "reason": entry.reason or link_reason,
    }


def shown_row(data: bytes, origin: str, sender: str) -> dict[str, Any]:
    """An entry that a cancel or a file shows in full."""
    decoded = decode(data)
    place = {"author": decoded.author, "log_id": decoded.log_id, "seq": decoded.seq}
    fields = {"origin": origin, "sender": sender, "data": data, "entry_hash": yamf.digest(data)} | place
    entry: Entry | None = decoded.entry
    if entry is None:
        return fields | {"rule": None if decoded.rule is None else decoded.rule.name, "reason": decoded.reason}
    names = ("end_of_log", "lipmaalink", "backlink", "payload_size", "payload_hash", "signature")
    return fields | {name: getattr(entry, name) for name in names}
