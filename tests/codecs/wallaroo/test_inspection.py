"""What `inspect` says of captures of Wallaroo connections: vectors, every fault, and what networks do to packets."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.support.landed import landed, landed_file, landed_packets
from tests.support.searches import fast_first
from wirehouse_codecs.captures.pcap import Packet, to_batch
from wirehouse_codecs.logs import tcp_inspection
from wirehouse_codecs.logs.inspection import Inspected
from wirehouse_codecs.logs.rows import Window
from wirehouse_codecs.logs.windows import SEGMENT_COLUMNS, SourceLog, read
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket, tcp_packet
from wirehouse_codecs.simulate.script import Close, Conversation, Disturbances, Ending, Send, packets, segments
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.link_types import ETHERNET
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_codecs.tcp.packets import parse
from wirehouse_codecs.tcp.port_pairs import sides
from wirehouse_codecs.wallaroo.correlation.sessions import Folds
from wirehouse_codecs.wallaroo.dialects import DIALECTS, V3
from wirehouse_codecs.wallaroo.frames import Ack, Error, Flag, Hello, Message, VersionForm
from wirehouse_codecs.wallaroo.inspection import inspect, recognises
from wirehouse_codecs.wallaroo.log.log import starter
from wirehouse_codecs.wallaroo.log.rows import summary_of
from wirehouse_codecs.wallaroo.log.schema import SCHEMA
from wirehouse_codecs.wallaroo.options import WallarooOptions
from wirehouse_codecs.wallaroo.rules import RULE
from wirehouse_codecs.wallaroo.simulator.connector import PORT
from wirehouse_codecs.wallaroo.simulator.simulator import FAULTS, SimulatorConfig, connections, simulate
from wirehouse_codecs.wallaroo.wire.messages import encode

VECTORS = Path(__file__).parents[2] / "vectors" / "wallaroo"
CAPTURES = sorted(path.relative_to(VECTORS).as_posix() for path in VECTORS.rglob("*.pcap"))
SIDES = {"c2w": "client", "w2c": "server"}
SMALL = SimulatorConfig(connectors=2, messages_per_connector=20, burst_messages=5, credits=50, refill_at=20)
#: Notes in sessions whose verdict is ok: frames that the worker dropped, as the vectors say in words.
DROPPED = {"c_nack", "c_restart"}
#: Columns that say in which packet something stands.
PLACE = ("connection_id", "capture_id", "record_number", "arrived_at_ns")
SECOND = 10**9
CLIENT, SERVER = Endpoint("10.0.0.1", 40_000), Endpoint("10.0.0.2", 7_000)
HELLO = encode(Hello(b"0.0.1", b"secret", b"program", b"one"), V3)
Row = dict[str, Any]


def of_packets(captured: Iterable[CapturedPacket], port: int | None = None) -> list[Inspected]:
    return list(inspect(landed_packets(captured), port))


def of_kind(rows: Iterable[Inspected], kind: str) -> list[Row]:
    return [row for told, row in rows if told == kind]


def rules(rows: Iterable[Inspected]) -> Counter[str]:
    return Counter(row["rule"].partition(".")[2] for row in of_kind(rows, "violation"))


def in_vector(capture: str) -> tuple[Row, list[Inspected]]:
    """What is expected of a capture of the vectors, and what is told."""
    expected = json.loads((VECTORS / capture).with_name("expected.json").read_text())
    said = next(row for row in expected["captures"] if row["capture"] == Path(capture).name)
    return said, list(inspect(landed_file(VECTORS / capture)))


def by_client(rows: list[Inspected]) -> dict[int, bytes]:
    """Connections by the client's port."""
    return {row["client_port"]: row["connection_id"] for row in of_kind(rows, "connection")}


def as_expected(row: Row) -> Row:
    """A message row as the vectors write a frame."""
    told = {name: None if isinstance(row[name], bytes) else row[name] for name in row}
    told |= {name: row[name].hex() for name in ("key", "payload") if row[name] is not None}
    streams = row["streams"] or []
    pairs = [[int(entry["stream_id"]), int(entry["point_of_ref"])] for entry in streams]
    size = row["byte_end"] - row["byte_start"] - 4
    return told | {"off": row["byte_start"], "len": size, "type": row["kind"], "streams": pairs, "acks": pairs}


@pytest.mark.parametrize("capture", CAPTURES)
def test_vectors_frames_of_each_direction_with_their_fields(capture: str) -> None:
    said, rows = in_vector(capture)
    names = by_client(rows)
    assert sorted(names) == sorted(row["client_port"] for row in said["connections"])
    for expected in said["connections"]:
        for side, direction in SIDES.items():
            mine = [
                as_expected(row)
                for row in of_kind(rows, "message")
                if (row["connection_id"], row["direction"]) == (names[expected["client_port"]], direction)
            ]
            assert len(mine) == len(expected[side]["frames"])
            for row, frame in zip(mine, expected[side]["frames"], strict=True):
                # Texts of ERROR are `text`; a cookie is never told. Where the frame doesn't name its stream the row
                # does if only one is open.
                wanted = {("text" if name == "reason" else name): value for name, value in frame.items()}
                if "stream_id" in wanted and wanted["stream_id"] is None:
                    del wanted["stream_id"]
                compared = {name: wanted[name] for name in wanted if name in row}
                assert {name: row[name] for name in compared} == compared
                assert set(wanted) - set(row) <= {"i", "tag", "version_form", "cookie"}
    assert b"monster" not in repr(rows).encode()
    assert all(row["cookie_hash"] is None for row in of_kind(rows, "message"))


@pytest.mark.parametrize("capture", CAPTURES)
def test_vectors_exactly_the_rules_of_the_verdicts(capture: str) -> None:
    said, rows = in_vector(capture)
    names = by_client(rows)
    for expected in said["connections"]:
        verdict, name = expected["verdict"], names[expected["client_port"]]
        found = [row for row in of_kind(rows, "violation") if row["connection_id"] == name]
        if verdict["verdict"] == "ok":
            dropped = {RULE["message_ignored"].id} if Path(capture).stem in DROPPED else set()
            assert {row["rule"] for row in found} <= dropped
            continue
        assert {row["rule"] for row in found} == {RULE[verdict["rule"]].id}
        assert {row["direction"] for row in found} == {SIDES[verdict["direction"]]}
        frame = expected[verdict["direction"]]["frames"][verdict["frame"]]
        assert found[0]["byte_start"] == frame["off"]
    assert of_kind(rows, "quarantine") == []
    assert of_kind(rows, "skip") == []


CASES = [(name, dialect) for name, fault in FAULTS.items() for dialect in fault.dialects]


@pytest.mark.parametrize(("name", "dialect"), fast_first(CASES, by=itemgetter(0)))
def test_a_fault_gives_its_findings(name: str, dialect: str) -> None:
    rows = of_packets(simulate(replace(SMALL, dialect=dialect, fault=name)))
    assert set(rules(rows)) == {name, *FAULTS[name].also}


@pytest.mark.parametrize("dialect", ["v3", "seed", "sink"])
def test_a_disturbed_capture_says_the_same(dialect: str) -> None:
    config = replace(SMALL, dialect=dialect, messages_per_connector=200, reconnects=2)
    disturbed = Disturbances(seed=7, reordered=0.2, repeated=0.2, contradicted=0.1, kept_alive=0.1)
    told = [of_packets(simulate(config)), of_packets(simulate(config, disturbed))]
    calm, lively = (
        sorted(
            json.dumps({name: str(row[name]) for name in row if name not in PLACE}) for row in of_kind(rows, "message")
        )
        for rows in told
    )
    assert lively == calm
    assert rules(told[0]) == Counter()
    assert set(rules(told[1])) == {"overlap_differs"}
    assert len(of_kind(told[1], "connection")) == len(list(connections(config)))


def script(events: Iterable[Send | Close], client: Endpoint = CLIENT, server: Endpoint = SERVER) -> Conversation:
    return Conversation(client, server, SECOND, list(events))


def greeting(direction: Direction = Direction.CLIENT) -> Send:
    return Send(2 * SECOND, direction, HELLO)


def ends(rows: Iterable[Inspected]) -> list[tuple[int, int, str, str]]:
    return [
        (row["client_port"], row["server_port"], row["opened"], row["closed"]) for row in of_kind(rows, "connection")
    ]


def test_the_syn_says_who_the_server_is() -> None:
    captured = list(packets(script([greeting()], client=SERVER, server=CLIENT)))
    assert ends(of_packets(captured)) == [(7_000, 40_000, "syn", "idle")]
    assert ends(of_packets(captured[1:])) == [(7_000, 40_000, "syn_ack", "idle")]
    # The HELLO says it too.
    assert ends(of_packets(captured[2:])) == [(7_000, 40_000, "middle", "idle")]
    assert ends(of_packets(captured, port=7_000)) == [(40_000, 7_000, "syn", "idle")]


def test_a_syn_that_comes_later_turns_the_sides() -> None:
    first = list(packets(script([greeting()], client=SERVER, server=CLIENT)))[2:3]
    later = [
        packet._replace(ts_ns=packet.ts_ns + 9 * SECOND) for packet in packets(script([greeting()], SERVER, CLIENT))
    ]
    batches = [
        to_batch([Packet(one.ts_ns, ETHERNET, len(one.data), one.data) for one in part]) for part in (first, later)
    ]
    rows = list(inspect(landed(batches)))
    assert ends(rows) == [(40_000, 7_000, "middle", "idle"), (7_000, 40_000, "syn", "idle")]
    assert [row["direction"] for row in of_kind(rows, "message")][-1] == "client"


def test_between_equal_ports_the_lower_address_is_the_server() -> None:
    one, two = Endpoint("10.0.0.9", 5_000), Endpoint("10.0.0.10", 5_000)
    middle = list(packets(script([greeting()], client=one, server=two)))[2:]
    (row,) = of_kind(of_packets(middle), "connection")
    assert (row["server_address"], row["client_address"]) == ("10.0.0.9", "10.0.0.10")


def test_packets_that_are_no_segments_are_named_in_their_place() -> None:
    said = list(packets(script([greeting()])))
    fragment = bytearray(said[-1].data)
    fragment[20] = 0x20
    others = [
        CapturedPacket(SECOND, b"short"),
        CapturedPacket(SECOND, bytes(fragment)),
        CapturedPacket(SECOND, tcp_packet(CLIENT, Endpoint("10.0.0.2", 80), sequence=1)),
    ]
    rows = of_packets([*others, *said], port=7_000)
    assert [(row["record_number"], row["skip"]) for row in of_kind(rows, "skip")] == [
        (0, "truncated"),
        (1, "ip_fragment"),
        (2, "port_not_claimed"),
    ]
    found = next(row for row in of_kind(rows, "violation") if row["rule"] == "capture.ip_fragment")
    assert (found["protocol"], found["severity"], found["record_number"]) == ("capture", "note", 1)
    assert [row["skip"] for row in of_kind(of_packets(others), "skip")] == ["truncated", "ip_fragment"]
    told = [row["record_number"] for kind, row in rows if kind != "connection" and row["record_number"] is not None]
    assert told == sorted(told)


def test_what_is_no_packet_is_quarantined() -> None:
    batch = to_batch([Packet(damaged=b"\x00\x01", damage="cut off")])
    (quarantined,) = inspect(landed([batch]))
    assert quarantined == (
        "quarantine",
        {
            "protocol": "wallaroo",
            "rule": "capture.file_damaged",
            "reason": "cut off",
            **dict.fromkeys(("connection_id", "direction", "byte_start", "byte_end")),
            "capture_id": b"capture",
            "record_number": 0,
            "arrived_at_ns": 0,
            # They may be those of any packet, also of one with a secret.
            "value": None,
        },
    )


def test_a_cookie_is_neither_told_nor_in_a_text() -> None:
    answer = Send(3 * SECOND, Direction.SERVER, encode(Error(b"the cookie secret is wrong"), V3))
    rows = of_packets(packets(script([greeting(), answer])))
    assert "secret" not in repr(rows)
    assert b"secret".hex() not in repr(rows)


def test_rows_come_while_the_capture_is_read() -> None:
    captured = [
        Packet(packet.ts_ns, ETHERNET, len(packet.data), packet.data)
        for packet in simulate(replace(SMALL, messages_per_connector=500))
    ]
    read = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal read
        for at in range(0, len(captured), 50):
            read += 1
            yield to_batch(captured[at : at + 50])

    first = next(iter(inspect(landed(batches()))))
    assert first[0] == "message"
    assert read == 1


def test_a_connection_that_is_silent_for_long_is_told_before_the_end() -> None:
    idle = TcpOptions().idle_ns
    said = list(packets(script([greeting()])))
    late = [packet._replace(ts_ns=packet.ts_ns + 2 * idle) for packet in packets(script([], Endpoint("10.0.0.3", 1)))]
    told: list[str] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for piece in (said, late[:1], late[1:]):
            told.append("read")
            yield to_batch([Packet(packet.ts_ns, ETHERNET, len(packet.data), packet.data) for packet in piece])

    for kind, _ in inspect(landed(batches())):
        told.append(kind)
    assert told.index("connection") < len(told) - told[::-1].index("read") - 1


def refused(number: int, at_ns: int, end: Ending | None, lasts_ns: int = SECOND) -> list[Packet]:
    """A connection of one instance that fails, so that the next one is a reconnect."""
    said = [Send(at_ns, Direction.CLIENT, HELLO), Send(at_ns + SECOND, Direction.SERVER, encode(Error(b"no"), V3))]
    close = [] if end is None else [Close(at_ns + SECOND + lasts_ns, Direction.SERVER, end)]
    told = Conversation(Endpoint("10.0.0.1", 10_000 + number), SERVER, at_ns - SECOND, [*said, *close])
    return [Packet(packet.ts_ns, ETHERNET, len(packet.data), packet.data) for packet in packets(told)]


def test_what_sessions_break_together_is_told_as_soon_as_no_other_can_have_ended_before() -> None:
    idle = TcpOptions().idle_ns
    # The first ends after the third, the second falls silent.
    ends = [Ending.RESET, None, *[Ending.RESET] * 5, Ending.FIN]
    starts = [(10 + 60 * number) * SECOND for number in range(len(ends))]
    early = [refused(number, at, end) for number, (at, end) in enumerate(zip(starts, ends, strict=True))]
    early[0] = refused(0, starts[0], Ending.RESET, 150 * SECOND)
    late = [refused(90 + number, (number + 2) * 2 * idle, Ending.RESET) for number in range(3)]
    pieces = [sorted((packet for said in early for packet in said), key=attrgetter("ts_ns")), *late]
    told: list[str] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for piece in pieces:
            told.append("read")
            yield to_batch(piece)

    rows: list[Inspected] = []
    for kind, row in inspect(landed(batches())):
        rows.append((kind, row))
        told.append(row.get("rule") or kind)
    rule = "wallaroo.reconnect_without_backoff"
    assert told.index(rule) < len(told) - told[::-1].index("read") - 1
    sessions = []
    for row in tcp_inspection.read(landed(map(to_batch, pieces)), starter(WallarooOptions(), b"key"), SCHEMA):
        if row["row_kind"] == "session":
            sessions.append(summary_of(row["connection_id"], row["session"]))
    assert len(sessions) == len(early) + len(late)
    folds = Folds()
    ordered = sorted(sessions, key=lambda summary: (summary.ended_ns, summary.connection_id))
    assert [each.connection_id for each in ordered] != [each.connection_id for each in sessions]
    expected = [(found.rule.id, found.connection_id) for each in ordered for found in folds.take(each)]
    set_rules = {rule for rule, _ in expected}
    assert [
        (row["rule"], row["connection_id"]) for row in of_kind(rows, "violation") if row["rule"] in set_rules
    ] == expected


def test_of_connections_that_ended_only_the_last_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_inspection, "MOST_ENDED", 5)
    made: list[CapturedPacket] = []
    for number in range(40):
        close = Close(2 * SECOND, Direction.CLIENT, Ending.RESET)
        made += packets(script([close], client=Endpoint("10.0.0.1", 10_000 + number)))
    rows = [Packet(SECOND + at, ETHERNET, 60, packet.data) for at, packet in enumerate(made)]
    told: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for at in range(0, len(rows), 4):
            yield to_batch(rows[at : at + 4])

    pairs = []
    original = tcp_inspection._Connections._forget

    def forget(self: Any, now_ns: int) -> None:
        original(self, now_ns)
        pairs.append(len(self._pairs))

    monkeypatch.setattr(tcp_inspection._Connections, "_forget", forget)
    told = [row["client_port"] for row in of_kind(inspect(landed(batches())), "connection")]
    assert sorted(told) == list(range(10_000, 10_040))
    assert max(pairs) == 5


def test_of_a_flood_of_connections_the_longest_silent_are_told_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_inspection, "MOST_PAIRS", 5)
    opened = [next(packets(script([], client=Endpoint("10.0.0.1", 10_000 + number)))) for number in range(40)]
    rows = [Packet(SECOND + at, ETHERNET, 60, packet.data) for at, packet in enumerate(opened)]
    read = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal read
        for at in range(0, len(rows), 4):
            read += 1
            yield to_batch(rows[at : at + 4])

    told = inspect(landed(batches()))
    first = next(told)
    assert (first[0], read) == ("connection", 2)
    all_ = of_kind([first, *told], "connection")
    assert [row["client_port"] for row in all_] == list(range(10_000, 10_040))
    assert {row["closed"] for row in all_} == {"idle"}


def test_what_comes_after_the_end_belongs_to_the_connection() -> None:
    close = Close(2 * SECOND, Direction.CLIENT)
    captured = list(packets(script([greeting(), close])))
    again = captured[3]._replace(ts_ns=captured[-1].ts_ns + SECOND)
    (row,) = of_kind(of_packets([*captured, again]), "connection")
    assert (row["closed"], row["client_packets"] + row["server_packets"]) == ("fin", len(captured) + 1)


def in_one_pass(batches: list[pa.RecordBatch], port: int) -> list[Row]:
    """Rows as the pipeline makes them: segments of all captures sorted by port pair, in one window."""
    tables = []
    for batch in batches:
        parsed = parse(batch)
        ports = parsed.column("destination_port"), parsed.column("source_port")
        told = sides(parsed, *(pc.equal(each.fill_null(-1), port) for each in ports))
        columns = {name: batch.column(name) for name in ("arrived_at_ns", "capture_arrived_at_ns", "capture_id")}
        columns |= {"record_number": batch.column("record_number"), "flow": told.flow, "direction": told.direction}
        columns |= {name: parsed.column(name) for name in parsed.schema.names if name in SEGMENT_COLUMNS}
        columns |= dict.fromkeys(("source", "window_start"), pa.array([""] * batch.num_rows))
        columns["state"] = pa.nulls(batch.num_rows, pa.string())
        tables.append(pa.table(columns).filter(told.claimed))
    table = pa.concat_tables(tables)
    ordered = table.sort_by([("flow", "ascending"), ("arrived_at_ns", "ascending"), ("record_number", "ascending")])
    window = Window("", 2**62)
    log = SourceLog(starter(WallarooOptions(), b"key"), TcpOptions(), (window,))
    rows = read(ordered.select(SEGMENT_COLUMNS).to_batches(), {"": log}, SCHEMA)
    return [row for batch in rows for row in batch.to_pylist()]


def compared(rows: Iterable[Row]) -> list[str]:
    """Rows of the kinds that are told, as texts."""
    kinds = ("message", "quarantine", "violation", "connection", "session")
    hashes = {"cookie_hash": None}
    return sorted(
        repr({name: row[name] | hashes if name in ("message", "session") and row[name] else row[name] for name in row})
        for row in rows
        if row["row_kind"] in kinds
    )


@pytest.mark.property
@pytest.mark.parametrize(
    "fault", ["ack_goes_back", "oversize_frame", "unknown_frame_type", "reconnect_without_backoff"]
)
def test_the_log_has_the_rows_of_a_pass_over_sorted_segments(fault: str) -> None:
    disturbed = Disturbances(seed=5, reordered=0.1, repeated=0.1, lost=0.05, contradicted=0.1, kept_alive=0.1)
    config = replace(SMALL, messages_per_connector=200, reconnects=3, fault=fault)
    captured = [Packet(each.ts_ns, ETHERNET, len(each.data), each.data) for each in simulate(config, disturbed)]
    batches = list(landed([to_batch(captured[:300]), to_batch(captured[300:])]))
    start = starter(WallarooOptions(), b"key")
    told = list(tcp_inspection.read(batches, start, SCHEMA, PORT))
    assert compared(told) == compared(in_one_pass(batches, PORT))
    assert {row["row_kind"] for row in told} >= {"message", "violation", "connection", "session"}


def test_the_longest_hello_of_the_text_is_recognised_by_its_first_bytes() -> None:
    long = Hello(b"v" * 0xFFFF, b"c" * 0xFFFF, b"p" * 0xFFFF, b"i" * 0xFFFF)
    uneven = Hello(bytes(16), b"c", b"p" * 0xFFFF, b"i", VersionForm.GUID16)
    for hello in (long, uneven):
        data = encode(hello, DIALECTS["seed"])
        assert recognises(data, b"") == recognises(data[:4096], b"") == "the client begins with a HELLO, little endian"
    assert recognises((5000).to_bytes(4, "little") + b"H".ljust(4092, b"\xff"), b"") is None
    implemented = encode(Hello(b"0.0.1", b"c" * 5000, b"p", b"i"), DIALECTS["v3"])
    assert recognises(implemented[:4096], b"") == "the client begins with a HELLO, big endian"


def test_a_few_bytes_are_no_beginning_of_a_long_hello() -> None:
    long = encode(Hello(b"0.0.1", b"c" * 5000, b"p", b"i"), DIALECTS["v3"])
    assert recognises(long[:40], b"") is None


@pytest.mark.parametrize(
    ("dialect", "said"),
    [("v3", Message(7, 1, None, 2, b"k", b"p" * 90)), ("v2b", Message(7, 1, Flag.KEY, None, b"k", b"p" * 90))]
    + [("seed", Message(None, 1, 0, None, None, b"p" * 90)), ("seed_sid", Message(7, 1, 0, None, None, b"p" * 90))],
)
def test_frames_in_the_middle_of_a_connection_are_recognised(dialect: str, said: Message) -> None:
    spoken = DIALECTS[dialect]
    message = encode(said, spoken)
    ack = encode(Ack(3, ()), spoken)
    told = f"frames of a connector in a row, {spoken.byte_order} endian"
    for client, server in ((message * 3, ack), (b"cut" + message * 3, ack[2:] + ack), (message * 9, b"")):
        assert recognises(client, server) == told
    # One frame may fit by chance, and a server that sends something else speaks something else.
    for client, server in ((message, ack), (message * 3, b""), (message * 9, b"HTTP/1.1 200 OK"), (b"", ack * 9)):
        assert recognises(client, server) is None


#: Bytes of the packets of simulated connections before their payload.
HEADER_BYTES = 66


def whole_frames(conversation: Conversation, dialect: str, snap_length: int) -> set[tuple[str, int, int]]:
    """The frames of which a capture with this snap length has every byte: side, first byte, end."""
    sent, lost = {side: bytearray() for side in Direction}, {side: bytearray() for side in Direction}
    for segment in segments(conversation):
        seen = min(len(segment.payload), snap_length - HEADER_BYTES)
        sent[segment.direction] += segment.payload
        lost[segment.direction] += bytes(seen) + b"x" * (len(segment.payload) - seen)
    whole = set()
    for side, data in sent.items():
        at = 0
        while at < len(data):
            end = at + 4 + int.from_bytes(data[at : at + 4], DIALECTS[dialect].byte_order)
            if not any(lost[side][at:end]):
                whole.add((side.value, at, end))
            at = end
    return whole


@pytest.mark.parametrize(
    ("dialect", "snap_length"), [("v3", 700), ("v3", 300), ("v3", 150), ("v2b", 150), ("seed_sid", 300)]
)
def test_each_frame_that_a_snap_length_left_whole_is_read(dialect: str, snap_length: int) -> None:
    config = SimulatorConfig(dialect=dialect, connectors=1, messages_per_connector=200, payload_bytes=60)
    conversation = next(connections(config))
    conversation = replace(conversation, events=list(conversation.events))
    captured = [Packet(each.ts_ns, ETHERNET, len(each.data), each.data[:snap_length]) for each in packets(conversation)]
    rows = list(inspect(landed([to_batch(captured)])))
    read_ = {(row["direction"], row["byte_start"], row["byte_end"]) for row in of_kind(rows, "message")}
    assert read_ == whole_frames(conversation, dialect, snap_length)
    assert {row["rule"] for row in of_kind(rows, "violation")} == {"capture.hole"}
