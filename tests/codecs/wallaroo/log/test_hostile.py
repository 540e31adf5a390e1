"""Hostile captures through the whole log: every byte has its row, the twins agree, and nothing raises."""

from __future__ import annotations

import functools
import io
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import itemgetter
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.landed import landed, landed_packets, read_log, segments
from tests.support.searches import fast_first
from wirehouse_codecs.captures.pcap import PacketCapture
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket, write_pcap
from wirehouse_codecs.simulate.script import Close, Conversation, Disturbances, Send, packets
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.wallaroo import inspection
from wirehouse_codecs.wallaroo.dialects import DIALECTS, V3
from wirehouse_codecs.wallaroo.frames import Error, Hello, Notify, Ok
from wirehouse_codecs.wallaroo.log import log, schema
from wirehouse_codecs.wallaroo.options import AUTO, WallarooOptions
from wirehouse_codecs.wallaroo.rules import RULE
from wirehouse_codecs.wallaroo.simulator.connector import PORT
from wirehouse_codecs.wallaroo.simulator.simulator import FAULTS, SimulatorConfig, simulate
from wirehouse_codecs.wallaroo.wire.dialect_detection import DEV_VERSION
from wirehouse_codecs.wallaroo.wire.messages import LENGTH_BYTES, encode
from wirehouse_codecs.wallaroo.wire.reader import Reader

Row = dict[str, Any]
SMALL = SimulatorConfig(connectors=1, messages_per_connector=60, reconnects=1, reopens=1, reset_share=0.1)
TOUGH = Disturbances(seed=3, reordered=0.1, repeated=0.1, lost=0.1, contradicted=0.05, kept_alive=0.1)
#: Why bytes stand in one row with holes among them.
REST = "no frame can be told from here on"


def of_packets(captured: Iterable[CapturedPacket]) -> list[Row]:
    return segments(landed_packets(captured), PORT)


def told(rows: Iterable[Row], **options: Any) -> list[Row]:
    """Rows of the log, once all connections have ended."""
    return read_log(rows, log.starter(WallarooOptions(**options), b"key"), schema.SCHEMA)


def assert_balances(rows: Sequence[Row]) -> None:
    """Of each connection and direction, messages, quarantine and holes are all bytes, and none twice."""
    spans: dict[tuple[bytes, str], list[tuple[int, int]]] = defaultdict(list)
    holes: dict[tuple[bytes, str], list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        side, span = (row["connection_id"], row["direction"]), (row["byte_start"], row["byte_end"])
        if row["row_kind"] in ("message", "quarantine"):
            spans[side].append(span)
        elif row["row_kind"] == "violation" and row["finding"]["rule"] == "capture.hole":
            holes[side].append(span)
    for row in rows:
        if row["row_kind"] != "connection":
            continue
        for direction in Direction:
            side = row["connection_id"], str(direction)
            rest = [
                each["byte_start"]
                for each in rows
                if each["row_kind"] == "quarantine"
                and (each["connection_id"], each["direction"]) == side
                and each["finding"]["message"] == REST
            ]
            assert len(rest) <= 1
            kept = [hole for hole in holes[side] if not rest or hole[0] < rest[0]]
            total = row["connection"][f"{direction}_delivered_bytes"] + row["connection"][f"{direction}_missing_bytes"]
            bounds = [(0, 0), *sorted(spans[side] + kept), (total, total)]
            assert all(one[1] == other[0] for one, other in pairwise(bounds)), (direction, bounds)


def without_places(rows: Sequence[Row]) -> list[str]:
    return sorted(repr(row) for row in rows if row["row_kind"] != "state")


def assert_twins_agree(rows: Sequence[Row], **options: Any) -> list[Row]:
    with patch.object(log, "COMPILED_FROM_BYTES", 0):
        compiled = told(rows, **options)
    with patch.object(log, "COMPILED_FROM_BYTES", 1 << 40):
        readable = told(rows, **options)
    assert without_places(compiled) == without_places(readable)
    return compiled


CASES = [(name, dialect) for name, fault in FAULTS.items() for dialect in fault.dialects]


@pytest.mark.parametrize(("name", "dialect"), fast_first(CASES, by=itemgetter(0)))
def test_every_byte_of_every_fault_has_its_row(name: str, dialect: str) -> None:
    for disturbed in (None, TOUGH):
        config = SimulatorConfig(dialect=dialect, connectors=1, messages_per_connector=20, fault=name)
        assert_balances(told(of_packets(simulate(config, disturbed))))


@functools.cache
def capture_of(dialect: str, seed: int, disturbed: bool) -> list[CapturedPacket]:
    return list(simulate(replace(SMALL, dialect=dialect, seed=seed), TOUGH if disturbed else None))


@st.composite
def mutated(draw: st.DrawFn) -> list[CapturedPacket]:
    """One capture or two spliced, with bytes flipped, segments dropped, repeated, swapped and cut short."""
    names = st.sampled_from(list(DIALECTS))
    captured = capture_of(draw(names), 0, draw(st.booleans()))
    if draw(st.booleans()):
        other = capture_of(draw(names), draw(st.integers(0, 1)), False)
        at, until = draw(st.integers(0, len(captured))), draw(st.integers(0, len(other)))
        captured = [*captured[:at], *other[until:]]
    captured = captured[draw(st.integers(0, len(captured) // 2)) :]
    random = Random(draw(st.integers(0, 2**32)))
    share = draw(st.sampled_from([0.0, 0.01, 0.1]))
    made: list[CapturedPacket] = []
    for packet in captured:
        if random.random() >= share:
            made.append(packet)
            continue
        data = bytearray(packet.data)
        match random.randrange(5):
            case 0:
                data[random.randrange(54, len(data)) if len(data) > 54 else 0] = random.randrange(256)
                made.append(packet._replace(data=bytes(data)))
            case 1:
                data[random.randrange(len(data))] ^= 1 << random.randrange(8)
                made.append(packet._replace(data=bytes(data)))
            case 2:
                made += [packet, packet]
            case 3:
                made.append(packet._replace(data=packet.data[: random.randrange(len(data))], original_length=len(data)))
    return made


@settings(max_examples=12)
@given(mutated(), st.sampled_from([AUTO, AUTO, *DIALECTS]))
def test_mutated_captures_balance_and_the_twins_agree(captured: list[CapturedPacket], dialect: str) -> None:
    assert_balances(assert_twins_agree(of_packets(captured), dialect=dialect))


CLIENT, SERVER = Endpoint("10.0.0.1", 40_000), Endpoint("10.0.0.2", PORT)
SECOND = 10**9
MOMENT = Place(1, 1, b"capture", 0)
HELLO = encode(Hello(b"0.0.1", b"secret", b"p", b"i"), V3)
DRAFT = b"\0\0\0\x20H" + bytes(31)
DEV = encode(Hello(DEV_VERSION, b"secret", b"p", b"i"), V3)
lengths = st.sampled_from([0, 1, 2, 20, 16_384, 16_385, 2**31 - 1, 2**31, 2**32 - 1])


@st.composite
def garbage(draw: st.DrawFn) -> bytes:
    """Frames of v3, bytes that are none, lengths of all sizes."""
    tagged = st.binary(max_size=30).map(lambda body: len(body).to_bytes(LENGTH_BYTES, "big") + body)
    frames = st.sampled_from(
        [HELLO, DEV, DRAFT, *(encode(frame, V3) for frame in (Ok(3), Notify(1, b"n"), Error(b"e")))]
    )
    announced = lengths.map(lambda length: length.to_bytes(LENGTH_BYTES, "big") + b"\5")
    parts = st.one_of(frames, frames, st.binary(max_size=12), tagged, announced)
    return b"".join(draw(st.lists(parts, max_size=12)))


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from(list(Direction)), garbage()), max_size=6),
    st.sampled_from([b"", HELLO, DEV, DRAFT, b"HTTP/1.1 200 OK\r\n\r\n"]),
    st.sampled_from([1, 7, 1448]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, TOUGH]),
)
def test_garbage_anywhere_balances_and_the_twins_agree(
    said: list[tuple[Direction, bytes]],
    first: bytes,
    segment_bytes: int,
    late: bool,
    ends: bool,
    disturbed: Disturbances | None,
) -> None:
    opened = [(Direction.CLIENT, first), *said]
    events: list[Send | Close] = [
        Send(number * 4 * SECOND, direction, data) for number, (direction, data) in enumerate(opened, 1) if data
    ]
    if ends:
        events.append(Close(99 * SECOND, Direction.CLIENT))
    from_ns = 5 * SECOND if late else 0
    conversation = Conversation(CLIENT, SERVER, SECOND, events, segment_bytes=segment_bytes, captured_from_ns=from_ns)
    assert_balances(assert_twins_agree(of_packets(packets(conversation, disturbed))))


def test_what_a_hole_leaves_of_a_frame_of_a_draft_has_a_row() -> None:
    said = [encode(Hello(version, b"secret", b"p", b"i"), V3) for version in (b"0.0.1", b"0.0001")]
    events: list[Send | Close] = [Send(4 * at * SECOND, Direction.CLIENT, data) for at, data in enumerate(said, 1)]
    rows = of_packets(packets(Conversation(CLIENT, SERVER, SECOND, events, segment_bytes=7)))
    # The second segment is not captured: the rest of its frame is known to be one's.
    rows.remove([row for row in rows if row["payload"]][1])
    told_rows = told(rows)
    assert_balances(told_rows)
    kept = [(row["byte_start"], row["byte_end"]) for row in told_rows if row["row_kind"] == "quarantine"]
    assert kept == [(0, 7), (14, len(said[0]) + len(said[1]))]


@settings(max_examples=30)
@given(mutated(), st.sampled_from([None, PORT]), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=8))
def test_inspect_never_raises(captured: list[CapturedPacket], port: int | None, flips: list[tuple[float, int]]) -> None:
    stream = io.BytesIO()
    write_pcap(captured, stream)
    data = bytearray(stream.getvalue())
    for at, value in flips:
        data[int(at * (len(data) - 1))] = value
    told = list(inspection.inspect(landed(PacketCapture(io.BytesIO(bytes(data))).batches()), port))
    assert b"monster" not in repr([row for kind, row in told if kind == "message"]).encode() or flips


@pytest.mark.parametrize("first", [DRAFT, DEV], ids=["t1", "dev"])
def test_all_bytes_of_a_draft_stand_in_one_row_a_direction(first: bytes) -> None:
    events = [Send(number * SECOND, direction, first) for number, direction in enumerate([*Direction] * 3, 2)]
    events.sort()
    rows = told(of_packets(packets(Conversation(CLIENT, SERVER, SECOND, events))))
    assert_balances(rows)
    kept = [(row["direction"], row["byte_start"], row["byte_end"]) for row in rows if row["row_kind"] == "quarantine"]
    assert kept == [("client", 0, 3 * len(first)), ("server", 0, 3 * len(first))]
    why = {row["finding"]["rule"] for row in rows if row["row_kind"] == "quarantine"}
    assert why == {"wallaroo.dialect_unsupported"}


def test_a_draft_that_is_told_by_the_end_has_each_byte_once() -> None:
    events = [Send(4 * SECOND, Direction.CLIENT, b"x"), Send(8 * SECOND, Direction.CLIENT, DEV)]
    events.append(Send(12 * SECOND, Direction.SERVER, encode(Hello(b"0.0.1", b"secret", b"p", b"i"), V3)))
    said = Conversation(CLIENT, SERVER, SECOND, events, segment_bytes=1, captured_from_ns=5 * SECOND)
    rows = told(of_packets(packets(said)))
    assert_balances(rows)
    assert {row["connection"]["dialect"] for row in rows if row["row_kind"] == "connection"} == {"dev"}


def test_a_draft_behind_a_hole_has_each_byte_once() -> None:
    notify = encode(Notify(1, b"n"), V3)
    reader = Reader(WallarooOptions())
    told = reader.receive(Direction.CLIENT, notify + b"\0\0", MOMENT)
    told += reader.hole(Direction.CLIENT, 10, MOMENT)
    told += reader.receive(Direction.CLIENT, 8 * notify, MOMENT)
    told += reader.receive(Direction.CLIENT, DEV, MOMENT)
    size = len(notify)
    rows = [(one.byte_start, one.byte_end) for one in told if one.decoded.rule is None]
    assert rows == [(size, size + 2), (0, size)]
    assert [one.decoded.rule.name for one in told if one.decoded.rule is not None] == ["dialect_unsupported"]
    assert reader.rest(Direction.CLIENT) == (size + 12, 9 * size + 12 + len(DEV), RULE["dialect_unsupported"])
