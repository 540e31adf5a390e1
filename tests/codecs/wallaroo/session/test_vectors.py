"""The vectors: frames of each direction with their fields, and exactly the rule that the verdict names.

The captures are read by a tiny reader of the test's own: Ethernet, IPv4 and TCP of a loopback, without loss.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.carried import carry
from wirehouse_codecs.core.rules import Place, Severity
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.events import End
from wirehouse_codecs.wallaroo.frames import (
    KIND_OF,
    Ack,
    EosMessage,
    Error,
    Hello,
    Message,
    Nack,
    Notify,
    NotifyAck,
    Ok,
    Restart,
)
from wirehouse_codecs.wallaroo.options import WallarooOptions
from wirehouse_codecs.wallaroo.session.outcome import Found, Outcome
from wirehouse_codecs.wallaroo.session.session import Session
from wirehouse_codecs.wallaroo.wire.messages import Decoded
from wirehouse_codecs.wallaroo.wire.reader import Reader
from wirehouse_codecs.wallaroo.wire.reader_state import ReaderState, Received

VECTORS = Path(__file__).parents[3] / "vectors" / "wallaroo"
CAPTURES = sorted(path.relative_to(VECTORS).as_posix() for path in VECTORS.rglob("*.pcap"))
SIDES = {"c2w": Direction.CLIENT, "w2c": Direction.SERVER}
SYN, RST, FIN = 2, 4, 1
#: Notes in sessions whose verdict is ok: frames that the worker dropped, as the vectors say in words.
DROPPED = {"c_nack", "c_restart"}


@dataclass
class Connection:
    """What a capture holds of one connection, in arrival order."""

    segments: list[tuple[Direction, int, bytes]] = field(default_factory=list)
    next_sequence: dict[Direction, int] = field(default_factory=dict)
    ended_ns: int = 0
    flags: int = 0


def connections(path: Path, port: int) -> dict[int, Connection]:
    """The connections of a capture, by the client's port."""
    data = path.read_bytes()
    magic = struct.unpack("<I", data[:4])[0]
    assert magic in (0xA1B2C3D4, 0xA1B23C4D), hex(magic)
    tick = 1 if magic == 0xA1B23C4D else 1000
    found: dict[int, Connection] = {}
    at = 24
    while at < len(data):
        seconds, fraction, size, _ = struct.unpack("<IIII", data[at : at + 16])
        packet = data[at + 16 : at + 16 + size]
        at += 16 + size
        ip = packet[14:]
        tcp = ip[(ip[0] & 15) * 4 : struct.unpack(">H", ip[2:4])[0]]
        source, target, sequence = struct.unpack(">HHI", tcp[:8])
        direction = Direction.SERVER if source == port else Direction.CLIENT
        connection = found.setdefault(target if direction is Direction.SERVER else source, Connection())
        payload = tcp[(tcp[12] >> 4) * 4 :]
        connection.flags |= tcp[13] & (RST | FIN)
        connection.ended_ns = seconds * 10**9 + fraction * tick
        if tcp[13] & SYN:
            connection.next_sequence[direction] = sequence + 1
        elif payload:
            fresh = connection.next_sequence[direction] - sequence
            assert fresh >= 0, "a hole in the capture"
            if fresh < len(payload):
                connection.segments.append((direction, connection.ended_ns, payload[fresh:]))
                connection.next_sequence[direction] += len(payload) - fresh
    return found


@dataclass
class Told:
    """A connection decoded and judged."""

    reader: Reader
    received: list[Received]
    outcomes: list[Outcome]
    findings: list[Found]


def tell(connection: Connection) -> Told:
    options = WallarooOptions()
    reader = Reader(options)
    received: list[Received] = []
    for at, (direction, when_ns, data) in enumerate(connection.segments):
        received += reader.receive(direction, data, Place(when_ns, 0, b"", at))
    last = Place(connection.ended_ns, 0, b"", len(connection.segments))
    received += reader.finish(last)
    assert reader.dialect is not None
    session = Session(reader.dialect, options)
    outcomes = [session.receive(frame) for frame in received]
    findings = [finding for outcome in outcomes for finding in outcome.findings]
    findings += session.end(End.RESET if connection.flags & RST else End.CLOSED, last)
    return Told(reader, received, outcomes, findings)


@cache
def told(capture: str) -> list[tuple[dict[str, Any], Told]]:
    expected = json.loads((VECTORS / capture).with_name("expected.json").read_text())
    said = next(row for row in expected["captures"] if row["capture"] == Path(capture).name)
    found = connections(VECTORS / capture, said["worker_port"])
    assert sorted(found) == sorted(row["client_port"] for row in said["connections"])
    return [(row, tell(found[row["client_port"]])) for row in said["connections"]]


def as_expected(received: Received) -> dict[str, Any]:
    """A frame as the vectors write it, but for its tag and number."""
    frame = received.decoded.frame
    assert frame is not None, received.decoded
    size = received.byte_end - received.byte_start - 4
    return {"off": received.byte_start, "len": size, "type": KIND_OF[type(frame)], **fields_of(frame)}


def fields_of(frame: Any) -> dict[str, Any]:
    match frame:
        case Hello():
            return {
                "version": frame.version_text(),
                "cookie": frame.cookie.decode(),
                "program_name": frame.program_name.decode(),
                "instance_name": frame.instance_name.decode(),
            }
        case Ok():
            return {"credits": frame.credits, "streams": [[s.stream_id, s.point_of_ref] for s in frame.streams]}
        case Error():
            return {"reason": frame.reason.decode()}
        case Notify():
            return {
                "stream_id": frame.stream_id,
                "stream_name": frame.stream_name.decode(),
                "point_of_ref": frame.point_of_ref,
            }
        case NotifyAck():
            return {"success": frame.accepted, "stream_id": frame.stream_id, "point_of_ref": frame.point_of_ref}
        case Message():
            return {
                "stream_id": frame.stream_id,
                "message_id": frame.message_id,
                "flags": frame.flags,
                "event_time": frame.event_time,
                "key": None if frame.key is None else frame.key.hex(),
                "payload": None if frame.payload is None else frame.payload.hex(),
            }
        case Ack():
            return {"credits": frame.credits, "acks": [list(entry) for entry in frame.acks]}
        case Nack():
            return {"credits": frame.credits, "stream_id": frame.stream_id, "point_of_ref": frame.point_of_ref}
        case Restart():
            return {"address": (frame.address or b"").decode()}
        case EosMessage():
            return {"stream_id": frame.stream_id}
    raise AssertionError(frame)


def of_side(rows: list[Received], direction: Direction) -> list[Received]:
    return [row for row in rows if row.direction is direction]


@pytest.mark.parametrize("capture", CAPTURES)
def test_frames_of_each_direction_with_their_fields(capture: str) -> None:
    for expected, connection in told(capture):
        for side, direction in SIDES.items():
            frames = of_side(connection.received, direction)
            assert len(frames) == len(expected[side]["frames"])
            for frame, said in zip(frames, expected[side]["frames"], strict=True):
                shown = as_expected(frame)
                compared = {name: value for name, value in said.items() if name in shown}
                assert {name: shown[name] for name in compared} == compared
                assert {"type", "off", "len"} <= set(compared)
                assert set(said) - set(shown) <= {"i", "tag", "version_form", "sources"}


@pytest.mark.parametrize("capture", CAPTURES)
def test_exactly_the_rule_of_the_verdict(capture: str) -> None:
    for expected, connection in told(capture):
        verdict = expected["verdict"]
        found = list(connection.findings)
        if verdict["verdict"] == "ok":
            dropped = {"message_ignored"} if Path(capture).stem in DROPPED else set()
            assert {finding.rule.name for finding in found} <= dropped
            continue
        assert {finding.rule.name for finding in found} == {verdict["rule"]}
        where = found[0].where
        assert where is not None
        frames = of_side(connection.received, SIDES[verdict["direction"]])
        assert where.direction is SIDES[verdict["direction"]]
        assert where.byte_start == frames[verdict["frame"]].byte_start
        at = [frame.byte_start for frame in frames]
        if "overdrawn_frames" in verdict:
            assert [at.index(f.where.byte_start) for f in found if f.where] == verdict["overdrawn_frames"]
        else:
            assert len(found) == 1
            severity = Severity.VIOLATION if verdict["verdict"] == "violation" else Severity.NOTE
            assert found[0].rule.severity is severity


@pytest.mark.parametrize("capture", CAPTURES)
def test_ignored_frames_credits_and_streams(capture: str) -> None:
    for expected, connection in told(capture):
        verdict, summary = expected["verdict"], expected["summary"]
        clients = [outcome for outcome in connection.outcomes if outcome.received.direction is Direction.CLIENT]
        if "ignored_frames" in verdict:
            assert [at for at, outcome in enumerate(clients) if outcome.ignored] == verdict["ignored_frames"]
        if verdict["verdict"] == "ok":
            assert sum(outcome.granted for outcome in connection.outcomes) == summary["credits_granted"]
            assert sum(outcome.spent for outcome in connection.outcomes) == summary["credits_used_notify_and_message"]


@pytest.mark.parametrize("capture", CAPTURES)
def test_the_dialect_is_told_with_its_reason(capture: str) -> None:
    expected = json.loads((VECTORS / capture).with_name("expected.json").read_text())
    said = next(row for row in expected["captures"] if row["capture"] == Path(capture).name)
    dialect = "seed_sid" if said.get("message_form") == "with_stream_id" else expected["dialect"]
    for _, connection in told(capture):
        detection = connection.reader.detection
        assert detection is not None
        assert detection.reason
        assert detection.name == dialect


@pytest.mark.parametrize("capture", CAPTURES)
def test_carried_over_between_packets_gives_the_same(capture: str) -> None:
    """Reader and session are restored between any two packets; of the long captures between every fiftieth."""
    expected = json.loads((VECTORS / capture).with_name("expected.json").read_text())
    said = next(row for row in expected["captures"] if row["capture"] == Path(capture).name)
    for port, connection in connections(VECTORS / capture, said["worker_port"]).items():
        options = WallarooOptions()
        whole = next(told for row, told in told(capture) if row["client_port"] == port)
        assert whole.reader.dialect is not None
        reader, session = Reader(options), Session(whole.reader.dialect, options)
        outcomes: list[Outcome] = []
        every = 1 + len(connection.segments) // 50
        for at, (direction, when_ns, data) in enumerate(connection.segments):
            frames = reader.receive(direction, data, Place(when_ns, 0, b"", at))
            outcomes += [session.receive(frame) for frame in frames]
            if at % every == 0:
                reader = Reader(options, state=carry(reader, ReaderState))
                session = Session(whole.reader.dialect, options, state=carry(session.memory))
        last = Place(connection.ended_ns, 0, b"", len(connection.segments))
        outcomes += [session.receive(frame) for frame in reader.finish(last)]
        assert outcomes == whole.outcomes


def test_every_vector_is_read() -> None:
    assert len(CAPTURES) == 12
    assert all(isinstance(frame.decoded, Decoded) for _, one in told(CAPTURES[0]) for frame in one.received)
