"""The sessions of the vectors, step by step: every packet, its sender's cursor, the entries, and what is broken."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.carried import carry
from tests.support.searches import fast_first
from wirehouse_codecs.bamboo.options import BambooOptions
from wirehouse_codecs.bamboo.session.effects import Effects
from wirehouse_codecs.bamboo.session.entry_rebuild import Known
from wirehouse_codecs.bamboo.session.proposals import Heard
from wirehouse_codecs.bamboo.session.session import Session
from wirehouse_codecs.bamboo.session.state import Memory
from wirehouse_codecs.bamboo.setup import Role
from wirehouse_codecs.bamboo.wire import yamf
from wirehouse_codecs.bamboo.wire.entries import decode
from wirehouse_codecs.bamboo.wire.messages import kind_of
from wirehouse_codecs.bamboo.wire.reader import Layer, Reader
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.tcp.endpoints import Direction

SESSIONS = sorted((Path(__file__).parents[3] / "vectors" / "bamboo" / "sessions").glob("*.json"))
PLACE = Place(1, 1, b"c", 0)
ROLES = {"a": Role.PROACTIVE, "b": Role.REACTIVE}
SIDES = {"a": Direction.CLIENT, "b": Direction.SERVER}


def told(vector: dict[str, Any], size: int | None = None) -> tuple[Session, Reader, list[Effects]]:
    """What a session makes of the vector's bytes, given in its segments, or, in these, `size` bytes at a time."""
    known = Known()
    for log, entries in vector["prior_store"].items():
        for stored in entries:
            data = bytes.fromhex(stored["entry_hex"])
            entry = decode(data).entry
            assert entry is not None
            assert log.startswith(entry.author.hex())
            heard = Heard(entry.payload_size, yamf.encode(entry.payload_hash), entry.end_of_log, yamf.digest(data))
            known.add(entry.author, entry.log_id, entry.seq, heard)
    options = BambooOptions()
    reader, session = Reader(options), Session(options, known=known)
    streams = {side: base64.b64decode(stream["b64"]) for side, stream in vector["stream"].items()}
    at = dict.fromkeys(streams, 0)
    found: list[Effects] = []
    for _, side, length in vector["segments"]:
        data = streams[side][at[side] : at[side] + length]
        at[side] += length
        for begin in range(0, length, size or length):
            for read in reader.receive(SIDES[side], data[begin : begin + (size or length)], PLACE):
                found.append(session.receive(read))
                if found[-1].ends:
                    return session, reader, found
            reader = Reader(options, state=carry(reader.state))
            session = Session(options, state=carry(session.state, Memory))
    return session, reader, found


@pytest.mark.parametrize("size", fast_first([None, 1]))
@pytest.mark.parametrize("path", SESSIONS, ids=lambda path: path.stem)
def test_every_step_is_as_expected(path: Path, size: int | None) -> None:
    vector = json.loads(path.read_text())
    expected = vector["expected"]
    _, _, found = told(vector, size)
    steps = [one for one in found if one.read.layer is not Layer.BYMUX]
    assert [shown(step, one) for step, one in zip(expected["steps"], steps, strict=True)] == [
        wanted(step) for step in expected["steps"]
    ]
    violation = expected["violation"]
    rules = [
        broken.rule.name for one in found for broken in one.broken if one.ends or broken.rule.name != "wide_integer"
    ]
    assert rules == ([] if violation is None else [violation["invariant"]])
    bymux = [(ROLES[one["dir"]], one["type"], one["end_offset"]) for one in expected["bymux_packets"]]
    got = [
        (one.read.role, one.read.packet.type.name.lower().replace("_", ""), one.read.byte_end)  # type: ignore[union-attr]
        for one in found
        if one.read.layer is Layer.BYMUX
    ]
    assert sorted(got) == sorted(bymux)


def shown(step: dict[str, Any], one: Effects) -> dict[str, Any]:
    """What `one` says about what the step tells."""
    packet = one.read.packet
    assert packet is not None
    seen: dict[str, Any] = {
        "dir": one.read.role,
        "chan": one.read.layer,
        "kind": kind_of(packet),  # type: ignore[arg-type]
        "end_offset": one.read.byte_end,
    }
    if "id" in step:
        proposal = one.proposal
        seen["id"] = getattr(packet, "id", None) if proposal is None else proposal.propose.id
    if "before" in step:
        seen |= {"before": one.cursor_before, "after": one.cursor_after}
    if "seq" in step:
        seen["seq"] = one.seq
    if "entry_hash" in step:
        assert one.entry is not None
        seen |= {"entry_hash": (one.entry.entry_hash or b"").hex(), "omitted": list(one.entry.omitted)}
    if "sha256" in step:
        seen["sha256"] = hashlib.sha256(one.data or b"").hexdigest()
    return seen


def wanted(step: dict[str, Any]) -> dict[str, Any]:
    names = ("id", "before", "after", "seq", "entry_hash", "omitted", "sha256", "chan", "kind", "end_offset")
    return {"dir": ROLES[step["dir"]]} | {name: step[name] for name in names if name in step}


@pytest.mark.parametrize("path", SESSIONS, ids=lambda path: path.stem)
def test_what_each_side_received(path: Path) -> None:
    vector = json.loads(path.read_text())
    _, _, found = told(vector)
    received: dict[str, dict[str, list[dict[str, Any]]]] = {"a": {}, "b": {}}
    for one in found:
        side = "b" if one.read.role is Role.PROACTIVE else "a"
        if one.entry is not None:
            entry = one.entry
            assert entry.data is not None
            log = received[side].setdefault(f"{entry.author.hex()}/{entry.log_id}", [])
            log.append({"seq": entry.seq, "entry_hex": entry.data.hex(), "payload_hex": None})
        if one.payload is not None and one.proposal is not None:
            author, log_id = one.proposal.log
            assert one.payload.checked
            assert one.payload.rule is None
            assert one.payload.data is not None
            for row in received[side][f"{author.hex()}/{log_id}"]:
                if row["seq"] == one.payload.seq:
                    row["payload_hex"] = one.payload.data.hex()
    assert received == vector["expected"]["received"]
