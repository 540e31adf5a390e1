"""The state of a session as JSON, and back."""

from __future__ import annotations

import json
from typing import Any, Final

from wirehouse_codecs.bamboo.session.effects import Doubt
from wirehouse_codecs.bamboo.session.entry_rebuild import Known
from wirehouse_codecs.bamboo.session.proposals import (
    Proposal,
)
from wirehouse_codecs.bamboo.session.state import Begun, SessionState
from wirehouse_codecs.bamboo.setup import Role, Setup
from wirehouse_codecs.bamboo.wire.lzfoo import Inflater
from wirehouse_codecs.bamboo.wire.varu64 import MAX_U64
from wirehouse_codecs.core.errors import StateVersionError

SNAPSHOT_VERSION: Final = 8


def snapshot(session: SessionState) -> str:
    """The state as JSON, with all entries that are known."""
    row = {
        "version": SNAPSHOT_VERSION,
        "setups": {role.value: _setup_row(setup) for role, setup in session.setups.items()},
        "balances": [[one[role] for one in (session.credit, session.granted, session.proposed)] for role in Role],
        "proposals": [proposal.to_json() for proposal in session.proposals.values()],
        "current": [session.current[role] for role in Role],
        "dropped": [[role, number, byte_end] for (role, number), byte_end in session.dropped.items()],
        "flags": [session.partial, session.untracked],
        "unheard": [role for role in Role if role in session.unheard],
        "unplaced": sorted(session.unplaced),
        "doubted": None if session.doubted is None else session.doubted.to_json(),
        "ended_by": session.ended_by,
        "numbers": session.numbers,
        "known": session.known.to_json(),
        "inflaters": {role.value: inflater.snapshot() for role, inflater in session.inflaters.items()},
        "compressed": [session.inflating[role].held.hex() for role in Role],
        "inflatable": [session.inflating[role].left for role in Role],
        "ends": [[author.hex(), log_id, role, seq] for (author, log_id, role), seq in session.ends.items()],
        "begun": [
            [author.hex(), log_id, seq, role, begun.payload_hash.hex(), begun.data.hex()]
            for (author, log_id, seq, role), begun in session.begun.items()
        ],
    }
    return json.dumps(row, separators=(",", ":"))


def restore(session: SessionState, snapshot: str) -> None:
    """Fill a new state from what `snapshot` wrote."""
    saved = json.loads(snapshot)
    if saved.get("version") != SNAPSHOT_VERSION:
        raise StateVersionError(what="bamboo session", found=saved.get("version"), expected=SNAPSHOT_VERSION)
    session.setups = {Role(role): Setup(*row) for role, row in saved["setups"].items()}
    for role, row in zip(Role, saved["balances"], strict=True):
        session.credit[role], session.granted[role], session.proposed[role] = row
    proposals = [Proposal.from_json(row) for row in saved["proposals"]]
    session.proposals = {proposal.propose.id: proposal for proposal in proposals}
    session.current = {
        role: None if row is None else (row[0], row[1]) for role, row in zip(Role, saved["current"], strict=True)
    }
    session.partial, session.untracked = saved["flags"]
    session.unheard, session.unplaced = set(map(Role, saved["unheard"])), set(saved["unplaced"])
    session.doubted = None if saved["doubted"] is None else Doubt.from_json(saved["doubted"])
    session.dropped = {(Role(role), number): byte_end for role, number, byte_end in saved["dropped"]}
    session.ended_by, session.numbers = saved["ended_by"], saved["numbers"]
    session.known = Known(saved["known"])
    session.held = session.held_bytes()
    for role in map(Role, saved["inflaters"]):
        most = session.options.max_inflated_bytes
        window = MAX_U64 if (mode := session.mode(role)) is None else mode.window
        session.inflaters[role] = Inflater(window, max_bytes=most, snapshot=saved["inflaters"][role.value])
    for role, held, left in zip(Role, saved["compressed"], saved["inflatable"], strict=True):
        session.inflating[role].held, session.inflating[role].left = bytearray.fromhex(held), left
    session.ends = {(bytes.fromhex(author), log_id, Role(role)): seq for author, log_id, role, seq in saved["ends"]}
    for author, log_id, seq, role, hashed, data in saved["begun"]:
        key = (bytes.fromhex(author), log_id, seq, Role(role))
        session.begun[key] = Begun(bytes.fromhex(hashed), bytes.fromhex(data))


def _setup_row(setup: Setup) -> list[Any]:
    return [getattr(setup, name) for name in Setup.__slots__]
