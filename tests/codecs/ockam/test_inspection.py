"""What `inspect` says of captures of Ockam connections: the vectors' messages and verdicts, and what comes besides."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.landed import landed_file, landed_packets
from wirehouse_codecs.core.rules import Severity
from wirehouse_codecs.logs.detection import HEAD_BYTES
from wirehouse_codecs.logs.inspection import Inspected
from wirehouse_codecs.ockam.inspection import inspect, recognises
from wirehouse_codecs.ockam.rules import RULE
from wirehouse_codecs.ockam.wire.messages import (
    CreateRequest,
    CreateResponse,
    Message,
    PullRequest,
    PullResponse,
    PushRequest,
    PushResponse,
    Status,
    StreamMessage,
    base_payload,
    encode_payload,
)
from wirehouse_codecs.ockam.wire.routed import OPENING, Envelope, Routed, encode, frame, local
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket
from wirehouse_codecs.simulate.script import Close, Conversation, Send, packets
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint

VECTORS = Path(__file__).parents[2] / "vectors" / "ockam" / "sessions"
CAPTURES = sorted(path.stem for path in VECTORS.glob("*.pcap"))
SECOND = 10**9
SIDES = {"c2s": "client", "s2c": "server"}
#: The vectors' names of kinds, and the fields that they list.
KINDS = {
    "create_req": ("create_request", ("stream_name",)),
    "create_rsp": ("create_response", ("stream_name",)),
    "pcreate_req": ("create_partitioned_request", ("stream_name", "partitions")),
    "pcreate_rsp": ("create_partitioned_response", ("stream_name", "partition")),
    "push_req": ("push_request", ("request_id", "data")),
    "push_rsp": ("push_response", ("request_id", "status", "index")),
    "pull_req": ("pull_request", ("request_id", "index", "limit")),
    "pull_rsp": ("pull_response", ("request_id", "messages")),
    "index_get": ("index_get", ("client_id", "stream_name")),
    "index_save": ("index_save", ("client_id", "stream_name", "index")),
    "index_rsp": ("index_response", ("client_id", "stream_name", "index")),
    "pindex_get": ("index_get", ("client_id", "stream_name", "partition")),
    "pindex_save": ("index_save", ("client_id", "stream_name", "partition", "index")),
    "pindex_rsp": ("index_response", ("client_id", "stream_name", "partition", "index")),
    "error_rsp": ("error", ("reason",)),
}
FIELDS = {name for _, names in KINDS.values() for name in names}
Row = dict[str, Any]


@cache
def in_vector(name: str) -> tuple[Row, list[Inspected]]:
    """What is expected of a capture of the vectors, and what is told."""
    expected = json.loads((VECTORS / f"{name}.expected.json").read_text())
    return expected, list(inspect(landed_file(VECTORS / f"{name}.pcap")))


def of_packets(captured: Iterable[CapturedPacket]) -> list[Inspected]:
    return list(inspect(landed_packets(captured)))


def of_kind(rows: Iterable[Inspected], kind: str) -> list[Row]:
    return [row for told, row in rows if told == kind]


def as_listed(data: bytes, listed: str) -> str:
    """Data as the vectors list it: in hex, or if it is long its hash and length."""
    if listed.startswith("sha256:"):
        return f"sha256:{hashlib.sha256(data).hexdigest()}:{len(data)}"
    return data.hex()


def assert_as_expected(row: Row, expected: list[Any]) -> None:
    name, protocol, route, values = expected
    kind, fields = KINDS[name]
    assert (row["kind"], row["protocol_name"]) == (kind, protocol)
    assert route == (row["onward_route"] if row["direction"] == "client" else row["return_route"])
    for field, value in zip(fields, values, strict=True):
        if field == "data":
            assert as_listed(row["data"], value) == value
        elif field == "messages":
            told = [(one["index"], one["data"]) for one in row["messages"]]
            assert [
                [int(at), as_listed(data, listed)] for (at, data), (_, listed) in zip(told, value, strict=True)
            ] == (value)
        else:
            assert row[field] == value
    assert all(row[field] is None for field in FIELDS - set(fields))


@pytest.mark.property
@pytest.mark.parametrize("name", CAPTURES)
def test_vectors_messages_of_each_direction_with_their_fields(name: str) -> None:
    expected, rows = in_vector(name)
    clients = {row["client_port"]: row["connection_id"] for row in of_kind(rows, "connection")}
    assert sorted(clients) == sorted(one["client_port"] for one in expected["connections"])
    for connection in expected["connections"]:
        for side, direction in SIDES.items():
            mine = [
                row
                for row in of_kind(rows, "message")
                if (row["connection_id"], row["direction"]) == (clients[connection["client_port"]], direction)
            ]
            assert len(mine) == len(connection[side])
            for row, message in zip(mine, connection[side], strict=True):
                assert_as_expected(row, message)
    assert of_kind(rows, "quarantine") == []
    assert of_kind(rows, "skip") == []
    assert {row["dialect"] for row in of_kind(rows, "connection")} == {expected["framing"]}


@pytest.mark.parametrize("name", CAPTURES)
def test_vectors_break_the_rule_of_their_verdict_and_else_give_notes(name: str) -> None:
    expected, rows = in_vector(name)
    found = Counter(row["rule"] for row in of_kind(rows, "violation") if row["severity"] != Severity.NOTE)
    assert found == ({RULE[expected["violation"]].id: 1} if expected["violation"] else {})


@pytest.mark.parametrize("name", ["ref_elixir_bare", "spec_gaps"])
def test_vectors_who_pulls_is_known(name: str) -> None:
    expected, rows = in_vector(name)
    pulls = [row for row in of_kind(rows, "message") if row["kind"] == "pull_response"]
    delivered = Counter[tuple[str, str]]()
    for row in pulls:
        delivered[row["consumer"], row["stream_address"]] += len(row["messages"])
    assert delivered == {
        (key.split("|")[0], told["stream_address"]): told["delivered_distinct"] + told["redelivered"]
        for key, told in expected["saved_indexes_and_lag"].items()
    }


Said = tuple[Direction, Message | bytes, str, str]
C, S = Direction.CLIENT, Direction.SERVER
OPENED: list[Said] = [(C, CreateRequest("s"), "stream", "me"), (S, CreateResponse("s"), "me", "s_1")]


def conversation(port: int, said: list[Said], begins_ns: int) -> Conversation:
    events: list[Send | Close] = []
    for at, (direction, message, to, back) in enumerate(said, 1):
        payload = message if isinstance(message, bytes) else encode_payload(message)
        data = frame(encode(Routed(1, local(to), local(back), payload), Envelope.BARE16), Envelope.BARE16)
        events.append(Send(begins_ns + at * SECOND, direction, data))
    events.append(Close(begins_ns + 60 * SECOND, C))
    return Conversation(Endpoint("10.0.0.1", port), Endpoint("10.0.0.2", 4_000), begins_ns, events)


def rules(rows: Iterable[Inspected]) -> list[tuple[str, Any]]:
    return [(row["rule"], row["connection_id"]) for row in of_kind(rows, "violation")]


def test_what_connections_break_together_stands_at_the_message_that_completes_it() -> None:
    talks: list[list[Said]] = [
        [
            *OPENED,
            (C, PushRequest(1, data), "s_1", "me"),
            (S, PushResponse(1, Status.OK, 7), "me", "s_1"),
            (C, PullRequest(1, 0, 1), "s_1", "me"),
            (S, PullResponse(1, (StreamMessage(7, b"one"),)), "me", "s_1"),
        ]
        for data in (b"one", b"one", b"two")
    ]
    scripts = [conversation(40_000 + at, said, (1 + 100 * at) * SECOND) for at, said in enumerate(talks)]
    rows = of_packets(packet for script in scripts for packet in packets(script))
    ids = [row["connection_id"] for row in sorted(of_kind(rows, "connection"), key=lambda row: row["client_port"])]
    assert rules(rows) == [("ockam.duplicate_index", ids[1]), ("ockam.duplicate_index", ids[2])]
    responses = [row for row in of_kind(rows, "message") if row["kind"] == "push_response"]
    places = [(row["connection_id"], row["byte_start"], row["record_number"]) for row in responses]
    told = [(row["connection_id"], row["byte_start"], row["record_number"]) for row in of_kind(rows, "violation")]
    assert told == places[1:]
    assert {row["stream_address"] for row in of_kind(rows, "violation")} == {"s_1"}


def test_other_traffic_is_counted_and_what_is_no_message_is_kept() -> None:
    said: list[Said] = [
        *OPENED,
        (C, base_payload("ping", b"1"), "pong", "me"),
        (C, base_payload("ping", b"2"), "pong", "me"),
        (C, base_payload("ping", b"3"), "stream", "me"),
    ]
    rows = of_packets(packets(conversation(40_000, said, SECOND)))
    (skip,) = of_kind(rows, "skip")
    size = (said_bytes := of_kind(rows, "quarantine")[0])["byte_end"] - said_bytes["byte_start"]
    assert (skip["name"], skip["direction"], skip["frames"]) == ("ping", "client", 2)
    assert skip["bytes"] == 2 * (size - len("stream") + len("pong"))
    assert [row["rule"] for row in of_kind(rows, "quarantine")] == ["ockam.payload"]
    assert [rule for rule, _ in rules(rows)] == ["ockam.payload"]


def test_a_capture_that_begins_in_the_middle_explains_what_it_lacks() -> None:
    said: list[Said] = [
        *OPENED,
        (C, PushRequest(1, b"x"), "s_1", "me"),
        (S, PushResponse(1, Status.OK, 7), "me", "s_1"),
        (C, PullRequest(2, 0, 9), "s_1", "me"),
        (S, PullResponse(2, (StreamMessage(7, b"x"), StreamMessage(8, b"x"))), "me", "s_1"),
    ]
    captured = list(packets(conversation(40_000, said, SECOND)))
    assert [rule for rule, _ in rules(of_packets(captured))] == ["ockam.index_never_confirmed"]
    assert rules(of_packets(captured[6:])) == []


@pytest.mark.parametrize("envelope", Envelope)
def test_a_client_is_known_by_a_first_frame_that_is_longer_than_what_is_seen(envelope: Envelope) -> None:
    version = 1 if envelope is Envelope.BARE16 else None
    payload = encode_payload(PushRequest(1, bytes(2 * HEAD_BYTES)))
    large = frame(encode(Routed(version, local("stream"), local("me"), payload), envelope), envelope)
    begin = OPENING if envelope is Envelope.CBOR32 else b""
    for head in (begin + large, begin + frame(encode(Routed(version, (), (), b""), envelope), envelope) + large):
        assert recognises(head[:HEAD_BYTES], b"") is not None
    assert recognises(begin + large[: envelope.length_bytes] + bytes(HEAD_BYTES), b"") is None


@pytest.mark.parametrize("envelope", Envelope)
def test_requests_in_the_middle_of_a_connection_are_recognised(envelope: Envelope) -> None:
    version = 1 if envelope is Envelope.BARE16 else None
    one, other = (
        frame(encode(Routed(version, local("s_1"), local("me"), encode_payload(asked)), envelope), envelope)
        for asked in (PushRequest(1, b"x"), PullRequest(2, 0, 9))
    )
    for cut in range(1, len(one) + 1):
        assert recognises(one[cut:] + one + other, b"") is not None
    assert recognises(one[9:] + other, b"") is None
