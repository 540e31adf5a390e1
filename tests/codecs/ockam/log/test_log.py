"""The log of Ockam connections: the rows of a dialogue, other traffic, and the same rows wherever windows are cut."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.codecs.ockam.wire.framing import framed
from tests.support.landed import LATE_NS, cut, landed_file, landed_packets, read_log, segments
from tests.support.searches import fast_first
from wirehouse_codecs.core.errors import StateVersionError
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.logs import flow_log
from wirehouse_codecs.logs.rows import Log
from wirehouse_codecs.ockam.fast import judge
from wirehouse_codecs.ockam.log import log
from wirehouse_codecs.ockam.options import OckamOptions
from wirehouse_codecs.ockam.simulator.simulator import SimulatorConfig, simulate
from wirehouse_codecs.ockam.wire.messages import (
    CreatePartitionedRequest,
    CreatePartitionedResponse,
    CreateRequest,
    CreateResponse,
    Error,
    IndexGet,
    IndexResponse,
    IndexSave,
    Message,
    Names,
    PullRequest,
    PullResponse,
    PushRequest,
    PushResponse,
    Status,
    StreamMessage,
    base_payload,
)
from wirehouse_codecs.ockam.wire.routed import OPENING, Envelope, Routed, encode, frame, local
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket
from wirehouse_codecs.simulate.script import (
    PACKET_NS,
    ROUND_TRIP_NS,
    Close,
    Conversation,
    Disturbances,
    Event,
    Send,
    packets,
)
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_codecs.tcp.reassembly import Connection, Side

VECTORS = sorted((Path(__file__).parents[3] / "vectors" / "ockam" / "sessions").glob("*.pcap"))
SECOND = 1_000_000_000
C, S = Direction.CLIENT, Direction.SERVER
CLIENT, SERVER = Endpoint("10.0.0.1", 40_000), Endpoint("10.0.0.2", 4_000)
MOST = 2**64 - 1
#: Every kind of message, one answer that never comes, an error, and other traffic.
SAID: list[tuple[Direction, Message | bytes, str, str]] = [
    (C, CreateRequest("s"), "stream", "hop=>me"),
    (S, CreateResponse("s", b"extra"), "hop=>me", "s_1"),
    (C, CreatePartitionedRequest(None, MOST), "stream", "me"),
    (S, CreatePartitionedResponse("generated", 3), "me", "p_3"),
    (C, PushRequest(MOST, b"data"), "s_1", "me"),
    (S, PushResponse(MOST, Status.OK, 7), "me", "s_1"),
    (C, PullRequest(2, 7, 10), "s_1", "me"),
    (C, IndexGet("c", "s"), "stream_index", "me"),
    (S, IndexResponse("c", "s", 0), "me", "stream_index"),
    (S, PullResponse(2, (StreamMessage(7, b"data"), StreamMessage(MOST, b""))), "me", "s_1"),
    (C, IndexSave("c", "generated", MOST, 3), "stream_index", "me"),
    (C, PushRequest(3, b"refused"), "s_1", "me"),
    (S, Error("no"), "me", "s_1"),
    (C, base_payload("ping", b""), "pong", "me"),
    (C, base_payload("what", b""), "stream", "me"),
    (C, PushRequest(4, b"lost"), "s_1", "me"),
    (C, PushRequest(5, b"lost"), "s_1", "me"),
]
Row = dict[str, Any]


def events(
    said: Iterable[tuple[Direction, Message | bytes, str, str]],
    envelope: Envelope = Envelope.BARE16,
    gap_ns: int = SECOND,
) -> list[Event]:
    at_ns = 2 * SECOND
    sent: list[Event] = []
    if envelope is Envelope.CBOR32:
        sent = [Send(at_ns, C, OPENING), Send(at_ns, S, OPENING)]
    for direction, message, to, back in said:
        at_ns += gap_ns
        sent.append(Send(at_ns, direction, framed(message, to, back, envelope, Names.SPECIFICATION)))
    return sent


def captured(sent: list[Event], disturbances: Disturbances | None = None) -> list[CapturedPacket]:
    return list(packets(Conversation(CLIENT, SERVER, SECOND, sent), disturbances))


def of_packets(sent: Iterable[CapturedPacket]) -> list[Row]:
    return segments(landed_packets(sent), SERVER.port)


def told(rows: Iterable[Row]) -> list[Row]:
    """The rows of the log."""
    return read_log(rows, log.starter(OckamOptions()), log.SCHEMA)


def told_by_packet(rows: Iterable[Row]) -> list[Row]:
    """The same, if every packet is a window of its own."""
    return cut(rows, log.starter(OckamOptions()), log.SCHEMA)


def of_kind(rows: Iterable[Row], kind: str) -> list[Row]:
    return [row for row in rows if row["row_kind"] == kind]


def said(rows: Iterable[Row]) -> list[str]:
    """The rows of events, but for their window, in an order of their own."""
    entities = ("state", "session", "skip", "connection")
    return sorted(repr(row | {"window_start": None}) for row in rows if row["row_kind"] not in entities)


def newest(rows: Iterable[Row]) -> dict[tuple[Any, ...], Row]:
    """The newest row of each entity."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        if row["row_kind"] in ("session", "skip", "connection"):
            kept = row | {"window_start": None}
            if row["row_kind"] == "connection":
                kept["connection"] = row["connection"] | {"window_packets": None}
            name = None if row["skip"] is None else row["skip"]["name"]
            found[row["row_kind"], row["connection_id"], row["direction"], name] = kept
    return found


@pytest.mark.parametrize("side", Direction)
def test_of_one_side_alone_nothing_is_found_that_the_other_may_explain(side: Direction) -> None:
    rows = [row for row in of_packets(captured(events(SAID[:12]))) if row["direction"] == side]
    for judged in (told(rows), told_by_packet(rows)):
        broken = [row["finding"] for row in of_kind(judged, "violation") if row["finding"]["severity"] != "note"]
        assert broken == []


def test_what_was_said_before_the_first_packet_of_the_other_side_is_judged_without_it() -> None:
    rows = of_packets(captured(events(SAID[:8], gap_ns=1000)))
    rows = [row for row in rows if row["direction"] == C or row["record_number"] > 12]
    assert said(told(rows)) == said(told_by_packet(rows))


@pytest.mark.parametrize("envelope", Envelope)
def test_a_row_for_each_message_with_its_fields(envelope: Envelope) -> None:
    rows = told(of_packets(captured(events(SAID, envelope))))
    messages = of_kind(rows, "message")
    shown = [
        {name: value for name, value in row["message"].items() if value is not None and not name.endswith("route")}
        for row in messages
    ]
    version = {"version": 1} if envelope is Envelope.BARE16 else {}
    uint = Decimal
    expected: list[Row] = [
        {"kind": "create_request", "protocol_name": "stream_create", "stream_name": "s"},
        {"kind": "create_response", "protocol_name": "stream_create", "stream_name": "s", "extra": b"extra"},
        {"kind": "create_partitioned_request", "protocol_name": "stream_create_partitions", "partitions": uint(MOST)},
        {
            "kind": "create_partitioned_response",
            "protocol_name": "stream_create_partitions",
            "stream_name": "generated",
            "partition": uint(3),
        },
        {"kind": "push_request", "protocol_name": "stream_push", "request_id": uint(MOST), "data": b"data"},
        {
            "kind": "push_response",
            "protocol_name": "stream_push",
            "request_id": uint(MOST),
            "status": "ok",
            "index": uint(7),
        },
        {
            "kind": "pull_request",
            "protocol_name": "stream_pull",
            "request_id": uint(2),
            "index": uint(7),
            "limit": uint(10),
        },
        {"kind": "index_get", "protocol_name": "stream_index", "client_id": "c", "stream_name": "s"},
        {
            "kind": "index_response",
            "protocol_name": "stream_index",
            "client_id": "c",
            "stream_name": "s",
            "index": uint(0),
        },
        {
            "kind": "pull_response",
            "protocol_name": "stream_pull",
            "request_id": uint(2),
            "messages": [{"index": uint(7), "data": b"data"}, {"index": uint(MOST), "data": b""}],
        },
        {
            "kind": "index_save",
            "protocol_name": "stream_index",
            "client_id": "c",
            "stream_name": "generated",
            "partition": uint(3),
            "index": uint(MOST),
        },
        {"kind": "push_request", "protocol_name": "stream_push", "request_id": uint(3), "data": b"refused"},
        {"kind": "error", "protocol_name": "error", "reason": "no"},
        {"kind": "push_request", "protocol_name": "stream_push", "request_id": uint(4), "data": b"lost"},
        {"kind": "push_request", "protocol_name": "stream_push", "request_id": uint(5), "data": b"lost"},
    ]
    assert shown == [row | version for row in expected]
    assert messages[0]["message"]["return_route"] == ["0#hop", "0#me"]
    assert [row["requester"] for row in messages[:3]] == ["0#hop=>0#me", "0#hop=>0#me", "0#me"]
    assert [row["stream_address"] for row in messages] == [
        *(None, "s_1", None, "p_3", "s_1", "s_1", "s_1", "s_1", "s_1", "s_1", "p_3", "s_1", None, "s_1", "s_1")
    ]
    assert [row["consumer"] for row in messages if row["consumer"]] == ["c"]


@pytest.mark.parametrize("envelope", Envelope)
def test_the_other_rows(envelope: Envelope) -> None:
    sent = events(SAID, envelope)
    rows = told(of_packets(captured([*sent, Close(99 * SECOND, C)])))
    assert Counter(row["finding"]["rule"] for row in of_kind(rows, "violation")) == {
        "ockam.init_extra_bytes": 1,
        "ockam.payload": 1,
        "ockam.partition_not_answered": 1,
        "ockam.push_unanswered": 2,
    }
    (quarantined,) = of_kind(rows, "quarantine")
    raw = [event.data for event in sent if isinstance(event, Send)][-3]
    assert (quarantined["finding"]["rule"], quarantined["raw"]) == ("ockam.payload", raw)
    skips = {(row["direction"], row["skip"]["name"]): row["skip"] for row in of_kind(rows, "skip")}
    ping = next(event.data for event in sent if isinstance(event, Send) and b"ping" in event.data)
    assert skips[C, "ping"] == {"name": "ping", "frames": 1, "bytes": len(ping)}
    assert set(skips) == {(C, "ping")} | (
        {(C, "opening byte"), (S, "opening byte")} if envelope is Envelope.CBOR32 else set()
    )
    (session,) = of_kind(rows, "session")
    pushed = [(row["arrived_at_ns"], row["capture_id"]) for row in of_kind(rows, "message")][-2:]
    about = session["session"].pop("about")
    assert {one["stream_address"] for one in about} >= {"s_1", "p_3"}
    assert {"stream_address": None, "stream_name": "s", "partition": 0, "unplaced": False} in about
    assert session["session"] == {
        "envelope": envelope.value,
        "names": "specification",
        "partial": False,
        "partial_at_ns": None,
        "creates": 2,
        "pushes": 4,
        "confirmed": 1,
        "pulls": 1,
        "delivered": 2,
        "open_requests": 3,
        "open_pushes": [
            {"stream_address": "s_1", "pushed_at_ns": at_ns, "capture_id": capture_id, "count": 1}
            for at_ns, capture_id in pushed
        ],
        "closed": True,
        "closed_at_ns": 99 * SECOND + ROUND_TRIP_NS + PACKET_NS,
    }
    (connection,) = of_kind(rows, "connection")
    assert connection["connection"]["dialect"] == envelope.value


def test_answers_point_at_their_requests() -> None:
    rows = of_kind(told(of_packets(captured(events(SAID)))), "message")
    requests = {row["byte_start"]: row for row in rows if row["direction"] == C}
    answered = [row for row in rows if row["answers"] is not None]
    assert [row["message"]["kind"] for row in answered] == [
        *("create_response", "create_partitioned_response", "push_response", "index_response", "pull_response", "error")
    ]
    for row in answered:
        request = requests[row["answers"]["request_byte_start"]]
        assert request["arrived_at_ns"] == row["answers"]["requested_at_ns"]
        assert request["capture_id"] == row["answers"]["request_capture_id"]
        assert (
            row["message"]["kind"] == "error"
            or request["message"]["kind"].split("_")[0] == (row["message"]["kind"].split("_")[0])
        )
    push, pull = answered[2]["answers"], answered[4]["answers"]
    assert (push["data"], push["data_bytes"]) == (b"data", 4)
    assert (pull["index"], pull["limit"]) == (7, 10)
    assert [row["answers"]["anonymous"] for row in answered[:3]] == [False, True, None]


@pytest.mark.property
@pytest.mark.parametrize("path", VECTORS[1:3], ids=lambda path: path.stem)
def test_a_capture_cut_at_every_packet_tells_the_same(path: Path) -> None:
    rows = segments(landed_file(path))
    whole, pieces = told(rows), told_by_packet(rows)
    assert said(pieces) == said(whole)
    assert newest(pieces) == newest(whole)


@pytest.mark.parametrize("seed", range(4))
def test_a_disturbed_dialogue_cut_at_every_packet_tells_the_same(seed: int) -> None:
    disturbed = Disturbances(seed=seed, reordered=0.2, repeated=0.2, lost=0.1)
    rows = of_packets(captured(events(SAID, gap_ns=SECOND // 100), disturbed))
    whole, pieces = told(rows), told_by_packet(rows)
    assert said(pieces) == said(whole)
    assert newest(pieces) == newest(whole)


@pytest.mark.parametrize("seed", range(3))
def test_a_garbled_dialogue_cut_at_every_packet_tells_the_same(seed: int) -> None:
    rows = of_packets(garbled(seed, Envelope.BARE16))
    whole, pieces = told(rows), told_by_packet(rows)
    assert said(pieces) == said(whole)
    assert newest(pieces) == newest(whole)


def compiled(rows: list[Row], from_bytes: int) -> list[Row]:
    """What is told if runs of so many bytes are read by the compiled twin, and runs are short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flow_log, "RUN_BYTES", 4000)
        patch.setattr(log, "COMPILED_FROM_BYTES", from_bytes)
        patch.setattr(judge.Plain, "cost", lambda *_: 1)
        return told(rows)


@pytest.mark.property
@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_either_twin_tells_the_same_of_a_capture(path: Path) -> None:
    rows = segments(landed_file(path))
    assert compiled(rows, 0) == compiled(rows, LATE_NS)


@pytest.mark.parametrize("envelope", Envelope)
@pytest.mark.parametrize("lost", [0.0, 0.02])
def test_either_twin_tells_the_same_of_simulated_clients(envelope: Envelope, lost: float) -> None:
    config = SimulatorConfig(dialect=envelope.value, consumers=2, streams=1, messages_per_publisher=25)
    rows = of_packets(simulate(config, Disturbances(reordered=5 * lost, repeated=5 * lost, lost=lost)))
    assert compiled(rows, 0) == compiled(rows, LATE_NS)


def test_an_entity_is_told_when_it_changed() -> None:
    rows = of_packets(captured(events(SAID)))
    found = told_by_packet(rows)
    for kind in ("session", "skip"):
        changes = [row[kind] for row in of_kind(found, kind)]
        assert len(changes) > (kind == "session")
        assert all(one != following for one, following in pairwise(changes))


@pytest.mark.parametrize("lost", range(3, 16))
def test_a_lost_packet_breaks_no_rule_of_a_clean_dialogue(lost: int) -> None:
    clean = [one for one in SAID if not isinstance(one[1], bytes)]
    sent = captured([*events(clean), Close(99 * SECOND, C)])
    del sent[lost]
    rows = told(of_packets(sent))
    found = {row["finding"]["rule"] for row in of_kind(rows, "violation")}
    assert found <= {
        *("ockam.init_extra_bytes", "ockam.push_unanswered", "ockam.partition_not_answered", "capture.hole"),
    }
    assert of_kind(rows, "session")[-1]["session"]["partial"] is ("capture.hole" in found)


def test_a_capture_that_begins_in_the_middle_is_partial() -> None:
    clean = [one for one in SAID if not isinstance(one[1], bytes)]
    sent = captured(events(clean))
    rows = told(of_packets(sent[6:]))
    session = of_kind(rows, "session")[-1]["session"]
    assert (session["partial"], session["partial_at_ns"]) == (True, sent[6].ts_ns)
    assert {row["finding"]["rule"] for row in of_kind(rows, "violation")} <= {
        *("ockam.push_unanswered", "ockam.partition_not_answered"),
    }


def test_traffic_of_many_names_is_counted_under_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MOST_SKIPS", 3)
    traffic = [(C, base_payload(f"p{at}", b""), "pong", "me") for at in (0, 1, 2, 3, 4, 0)]
    rows = told(of_packets(captured(events([SAID[0], SAID[1], *traffic]))))
    frames = {row["skip"]["name"]: row["skip"]["frames"] for row in of_kind(rows, "skip")}
    assert frames == {"p0": 2, "p1": 1, "p2": 1, log.OTHER: 2}


def test_a_secure_channel_is_counted_from_its_listener_on() -> None:
    channel = [
        (C, b"\xff" * 40, "secure_channel_listener", "alice"),
        (S, b"\xee" * 30, "alice", "bob"),
        (C, b"\xdd" * 50, "bob", "alice"),
        (C, b"\xcc" * 20, "elsewhere", "me"),
    ]
    rows = told(of_packets(captured(events([SAID[0], SAID[1], *channel]))))
    frames = {(row["direction"], row["skip"]["name"]): row["skip"]["frames"] for row in of_kind(rows, "skip")}
    assert frames == {(C, log.SECURE_CHANNEL): 2, (S, log.SECURE_CHANNEL): 1, (C, "not BARE"): 1}


def garbled(seed: int, envelope: Envelope) -> list[CapturedPacket]:
    """The dialogue with some bytes of some frames changed, left out, or put in."""
    random = Random(seed)
    sent = []
    for event in events(SAID * 2, envelope, SECOND // 100):
        assert isinstance(event, Send)
        data = bytearray(event.data)
        if random.random() < 0.3:
            at = random.randrange(len(data))
            data[at : at + random.randrange(3)] = random.randbytes(random.randrange(4))
        sent.append(event._replace(data=bytes(data)))
    return captured([*sent, Close(99 * SECOND, C)], Disturbances(seed=seed, lost=0.03))


@pytest.mark.parametrize("envelope", Envelope)
@pytest.mark.parametrize("seed", range(8))
def test_of_garbled_dialogues_every_byte_is_told_of_once(seed: int, envelope: Envelope) -> None:
    rows = told(of_packets(garbled(seed, envelope)))
    skipped = Counter[str]()
    for row in newest(rows).values():
        if row["row_kind"] == "skip":
            skipped[row["direction"]] += row["skip"]["bytes"]
    (connection,) = [row["connection"] for row in newest(rows).values() if row["row_kind"] == "connection"]
    assert of_kind(rows, "message")
    for direction in Direction:
        spans = sorted(
            (row["byte_start"], row["byte_end"])
            for row in rows
            if row["row_kind"] in ("message", "quarantine") and row["direction"] == direction
        )
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        told_bytes = sum(end - start for start, end in spans) + skipped[direction]
        assert told_bytes == connection[f"{direction}_delivered_bytes"]


def test_refuses_the_state_of_another_version() -> None:
    place = Place(1, 1, b"capture", 0)
    connection = Connection(b"id", "syn", place, place, Side(C, options=TcpOptions()), Side(S, options=TcpOptions()))
    start = log.starter(OckamOptions())
    state = json.loads(start(Log(log.SCHEMA), connection, SERVER, None).snapshot())
    with pytest.raises(StateVersionError):
        start(Log(log.SCHEMA), connection, SERVER, json.dumps(state | {"version": 0}))


# Stray bytes

#: What can't be a frame, whatever its length would say: the largest, one that swallows the next frames, a short one.
STRAY = (b"\xff\xffjunkjunk", b"\x00\xff\xff\xffjunk", b"\x00\x0ajunk", b"HELLO, no frame\r\n", b"\x00\x01\x00\x50garb")


def strayed(side: Direction, junk: bytes, envelope: Envelope, segment: int, count: int = 12) -> list[Row]:
    """Packets of pushes and pulls, a round trip each, with `junk` from one side among them."""
    traffic: list[tuple[Direction, Message | bytes, str, str]] = [
        (C, CreateRequest("s"), "stream", "me"),
        (S, CreateResponse("s"), "me", "s_1"),
    ]
    for number in range(count):
        traffic += [
            (C, PushRequest(number, b"data"), "s_1", "me"),
            (S, PushResponse(number, Status.OK, number), "me", "s_1"),
            (C, PullRequest(number, number, 1), "s_1", "me"),
            (S, PullResponse(number, (StreamMessage(number, b"data"),)), "me", "s_1"),
            (C, CreateRequest(f"s{number}"), "stream", "me"),
            (S, CreateResponse(f"s{number}"), "me", f"s{number}"),
        ]
    sent = events(traffic, envelope)
    middle = len(sent) // 2 | 1
    at_ns = sent[middle].ts_ns + SECOND // 2
    sent.insert(middle + 1, Send(at_ns, side, junk))
    sent.append(Close(sent[-1].ts_ns + SECOND, C))
    return of_packets(packets(Conversation(CLIENT, SERVER, SECOND, sent, segment_bytes=segment)))


@pytest.mark.property
@pytest.mark.parametrize("segment", fast_first([1400, 1]))
@pytest.mark.parametrize("junk", fast_first(STRAY))
@pytest.mark.parametrize("side", Direction)
@pytest.mark.parametrize("envelope", Envelope)
def test_stray_bytes_are_one_broken_frame(envelope: Envelope, side: Direction, junk: bytes, segment: int) -> None:
    count = 2 if segment == 1 else 12
    packets_of = strayed(side, junk, envelope, segment, count)
    rows = told(packets_of)
    assert [row["finding"]["rule"] for row in of_kind(rows, "violation")] == ["ockam.frame"]
    kept = of_kind(rows, "quarantine")
    assert [row["raw"] for row in kept] == [junk]
    messages = of_kind(rows, "message")
    assert len(messages) == 2 + 6 * count
    assert all(row["message"]["ignored"] is None for row in messages)
    confirms = [row for row in messages if row["message"]["kind"] == "push_response"]
    # One whose request comes out of the search only after it has none to answer.
    assert sum(row["answers"] is not None for row in confirms) >= count - 1
    assert of_kind(rows, "session")[-1]["session"]["partial"]
    if segment > 1:
        assert said(told_by_packet(packets_of)) == said(rows)


@pytest.mark.parametrize("side", Direction)
@pytest.mark.parametrize("envelope", Envelope)
def test_a_frame_of_its_length_that_is_no_message_hides_no_other(envelope: Envelope, side: Direction) -> None:
    rows = told(strayed(side, frame(b"junk!", envelope), envelope, 1400))
    assert [row["finding"]["rule"] for row in of_kind(rows, "violation")] == ["ockam.routed"]
    assert len(of_kind(rows, "message")) == 74
    assert of_kind(rows, "session")[-1]["session"]["partial"] is (side is S)


@pytest.mark.parametrize("side", Direction)
@pytest.mark.parametrize("envelope", Envelope)
def test_what_is_above_a_bound_of_our_own_is_kept_and_breaks_no_rule(envelope: Envelope, side: Direction) -> None:
    version = 1 if envelope is Envelope.BARE16 else None
    for route in (local("a" * 4_097), local(*["a"] * 65)):
        large = frame(encode(Routed(version, route, local("me"), b""), envelope), envelope)
        rows = told(strayed(side, large, envelope, 1400))
        assert not of_kind(rows, "violation")
        (kept,) = of_kind(rows, "quarantine")
        assert (kept["raw"], kept["finding"]["rule"]) == (large, None)
        messages = of_kind(rows, "message")
        assert len(messages) == 74
        assert all(row["answers"] and not row["answers"]["unsure"] for row in messages if row["direction"] == "server")
