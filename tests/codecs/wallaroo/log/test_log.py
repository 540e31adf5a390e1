"""The log of Wallaroo connections: the same rows by the compiled twin and by the readable one, cut anywhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.landed import cut, landed_file, landed_packets, read_log, segments
from tests.support.searches import fast_first
from tests.support.wallaroo_by_hand import (
    SECOND,
    C,
    Say,
    ack,
    answer,
    hello,
    message,
    notify,
    ok,
    restart,
    t_ack,
    t_hello,
    t_message,
    t_nack,
    t_notify,
    t_ok,
)
from wirehouse_codecs.simulate.script import Close, Conversation, Disturbances, Send, packets
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.wallaroo.dialects import DIALECTS
from wirehouse_codecs.wallaroo.frames import Error, Hello
from wirehouse_codecs.wallaroo.log import log, schema
from wirehouse_codecs.wallaroo.options import WallarooOptions
from wirehouse_codecs.wallaroo.simulator.connector import PORT
from wirehouse_codecs.wallaroo.simulator.simulator import FAULTS, SimulatorConfig, connections, simulate
from wirehouse_codecs.wallaroo.wire.messages import decode, encode

VECTORS = sorted((Path(__file__).parents[3] / "vectors" / "wallaroo").rglob("*.pcap"))
KEY = b"key of a test"
#: Of the connectors in the vectors.
COOKIE = b"monster"
SMALL = SimulatorConfig(connectors=2, messages_per_connector=300)

Row = dict[str, Any]


def simulated(config: SimulatorConfig, disturbances: Disturbances | None = None) -> list[Row]:
    return segments(landed_packets(simulate(config, disturbances)), PORT)


def read(path: Path) -> list[Row]:
    """The segments of a capture, of which the first is sent to the server."""
    return segments(landed_file(path))


def told(rows: Iterable[Row]) -> list[Row]:
    """The rows of the log."""
    return read_log(rows, log.starter(WallarooOptions(), KEY), schema.SCHEMA)


def said(rows: Iterable[Row]) -> list[str]:
    """The rows but for their window and the states, in an order of their own."""
    return sorted(repr(row | {"window_start": None}) for row in rows if row["row_kind"] != "state")


#: A fault and a dialect that it can be in.
CASES = [(dialect, name) for name, fault in FAULTS.items() for dialect in fault.dialects]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_twins_tell_the_same(dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(SMALL, dialect=dialect, reset_share=0.1, reconnects=1, reopens=1)
    rows = simulated(config)
    monkeypatch.setattr(log, "COMPILED_FROM_BYTES", 1 << 40)
    readable = told(rows)
    monkeypatch.setattr(log, "COMPILED_FROM_BYTES", 0)
    assert said(told(rows)) == said(readable)
    kinds = {row["row_kind"] for row in readable}
    streams = set() if DIALECTS[dialect].sink else {"stream"}
    assert kinds == {"message", "session", "connection", "credit", "state"} | streams


@pytest.mark.parametrize(("dialect", "fault"), fast_first(CASES, by=itemgetter(1)))
def test_the_twins_find_the_same(dialect: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = simulated(SimulatorConfig(dialect=dialect, connectors=1, messages_per_connector=20, fault=fault))
    monkeypatch.setattr(log, "COMPILED_FROM_BYTES", 0)
    compiled = told(rows)
    monkeypatch.undo()
    assert said(told(rows)) == said(compiled)


@pytest.mark.property
@pytest.mark.parametrize(
    "path", fast_first(VECTORS, by=lambda path: path.stem), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_a_capture_cut_at_every_packet_tells_the_same(path: Path) -> None:
    rows = read(path)
    whole = told(rows)
    found = cut(rows, log.starter(WallarooOptions(), KEY), schema.SCHEMA)
    assert events(found) == events(whole)
    assert newest_rows(found) == newest_rows(whole)


ENTITIES = ("connection", "session", "stream")


def events(rows: Iterable[Row]) -> list[str]:
    return said(row for row in rows if row["row_kind"] not in ENTITIES)


def newest_rows(rows: Iterable[Row]) -> dict[Any, str]:
    """By kind, connection and stream the row of the last window, but for what counts within it."""
    found = {}
    for row in sorted(rows, key=lambda row: row["window_start"]):
        if row["row_kind"] in ENTITIES:
            content = dict(row[row["row_kind"]])
            content.pop("window_packets", None)
            found[row["row_kind"], row["connection_id"], row["stream_id"]] = repr(content)
    return found


def test_disturbed_packets_say_the_same() -> None:
    plain = told(simulated(SMALL))
    disturbed = told(simulated(SMALL, Disturbances(seed=1, reordered=0.1, repeated=0.1, kept_alive=0.1)))
    place = ("capture_id", "record_number", "arrived_at_ns", "capture_arrived_at_ns", "connection_id")

    def messages(rows: Iterable[Row]) -> list[str]:
        kept = [row | dict.fromkeys(place) for row in rows if row["row_kind"] == "message"]
        return sorted(map(repr, kept))

    assert messages(disturbed) == messages(plain)
    assert not [row for row in disturbed if row["row_kind"] in ("violation", "quarantine")]


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_cookie_stays_secret(path: Path) -> None:
    rows = told(read(path))
    assert COOKIE in path.read_bytes()
    assert COOKIE.decode() not in repr(rows)
    hashes = {row["message"]["cookie_hash"] for row in rows if row["message"] and row["message"]["kind"] == "HELLO"}
    assert {len(each) for each in hashes - {None}} == {log.HASH_BYTES}


@pytest.mark.parametrize("cookie", [b"stream", b"MESSAGE", b"1", b"e"])
def test_a_cookie_that_is_a_word_of_a_finding_leaves_it_whole(cookie: bytes) -> None:
    config = SimulatorConfig(connectors=1, messages_per_connector=20, fault="message_closed_stream")
    scripts = [
        replace(script, events=[_with_cookie(event, cookie) for event in script.events])
        for script in connections(config)
    ]
    plain, changed = (
        [row["finding"]["message"] for script in each for row in told(segments(landed_packets(packets(script)), PORT))
         if row["row_kind"] == "violation"]
        for each in (connections(config), scripts)
    )  # fmt: skip
    assert changed == plain != []


def _with_cookie(event: Any, cookie: bytes) -> Any:
    """A HELLO that says another cookie; any other event as it is."""
    if not isinstance(event, Send) or event.direction is not Direction.CLIENT or event.data[4] != 0:
        return event
    hello = decode(event.data[4:], DIALECTS["v3"]).frame
    assert isinstance(hello, Hello)
    return event._replace(data=encode(replace(hello, cookie=cookie), DIALECTS["v3"]))


@pytest.mark.parametrize("fault", ["truncated_frame", "malformed_frame"])
def test_quarantined_bytes_that_hold_no_cookie_are_kept(fault: str) -> None:
    rows = told(simulated(SimulatorConfig(connectors=1, messages_per_connector=20, fault=fault)))
    (quarantined,) = (row for row in rows if row["row_kind"] == "quarantine")
    assert quarantined["raw"]


@pytest.mark.parametrize("fault", ["empty_frame", "oversize_frame"])
def test_the_rest_of_a_connection_has_the_rule_that_lost_its_frames(fault: str) -> None:
    rows = told(simulated(SimulatorConfig(connectors=1, messages_per_connector=20, fault=fault)))
    (quarantined,) = (row for row in rows if row["row_kind"] == "quarantine")
    assert quarantined["finding"]["rule"] == f"wallaroo.{fault}"
    assert quarantined["raw"] is None


@pytest.mark.parametrize("frame", [Hello(b"0.0.1", b"other", b"p", b"i"), Error(b"other is no cookie")])
def test_quarantined_bytes_of_hello_and_error_stay_in_bronze(frame: Hello | Error) -> None:
    whole = encode(frame, DIALECTS["v3"])
    short = (len(whole) - 5).to_bytes(4, "big") + whole[4:-1]
    side = Direction.CLIENT if isinstance(frame, Hello) else Direction.SERVER
    plain = next(connections(SimulatorConfig(connectors=1, messages_per_connector=20)))
    *events, close = plain.events
    script = replace(plain, events=[*events, Send(close.ts_ns, side, short), close])
    rows = told(segments(landed_packets(packets(script)), PORT))
    assert [row["raw"] for row in rows if row["row_kind"] == "quarantine"] == [None]
    assert "wallaroo.malformed_frame" in {row["finding"]["rule"] for row in rows if row["row_kind"] == "violation"}


def test_frames_that_are_told_at_the_end_have_the_place_of_their_packets() -> None:
    """A capture that begins late has too few frames to be sure of a start before the end."""
    plain = next(
        connections(SimulatorConfig(connectors=1, messages_per_connector=5, burst_messages=1, interval_ms=100))
    )
    events = [event for event in plain.events if isinstance(event, Send)]
    script = replace(plain, events=events, captured_from_ns=events[-4].ts_ns)
    rows = segments(landed_packets(packets(script)), PORT)
    arrived = {row["record_number"]: row["arrived_at_ns"] for row in rows}
    messages = [row for row in told(rows) if row["row_kind"] == "message"]
    assert messages
    assert {row["record_number"]: row["arrived_at_ns"] for row in messages}.items() <= arrived.items()


# Since when a connector has no credit


def dry_spans(steps: Iterable[Say], *, ends: bool = False) -> tuple[list[tuple[Any, ...]], list[int | None]]:
    """Of a connection in which a side says something every second: spans, and since when one goes on.

    Times are numbers of steps.
    """
    opened_ns, now_ns = 1000 * SECOND, 1000 * SECOND
    events: list[Send | Close] = []
    for step in steps:
        now_ns += SECOND
        events.append(Send(now_ns, step.side, step.data))
    if ends:
        events.append(Close(now_ns + SECOND, C))
    script = Conversation(Endpoint("10.0.0.1", 40_000), Endpoint("10.0.0.2", PORT), opened_ns, events)
    captured = segments(landed_packets(packets(script)), PORT)
    # Before the connection would count as idle.
    rows = read_log(captured, log.starter(WallarooOptions(), KEY), schema.SCHEMA, {"0": now_ns + 9 * SECOND})

    def step_at(at_ns: int | None) -> int | None:
        return None if at_ns is None else (at_ns - opened_ns) // SECOND - 1

    turns = [row for row in rows if row["row_kind"] == "credit" and row["credit"]["zero_at_ns"] is not None]
    spans = [
        (step_at(row["credit"]["zero_at_ns"]), step_at(row["arrived_at_ns"]), row["credit"]["kind"]) for row in turns
    ]
    return spans, [step_at(row["session"]["zero_at_ns"]) for row in rows if row["row_kind"] == "session"]


@pytest.mark.parametrize("compiled_from_bytes", [0, 1 << 40])
def test_a_connector_has_no_credit_until_a_grant_and_while_its_session_streams(
    compiled_from_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "COMPILED_FROM_BYTES", compiled_from_bytes)
    dry = [hello(), ok(2), notify(), answer(), message(1)]
    assert dry_spans(dry[:-1]) == ([], [None])
    assert dry_spans(dry) == ([], [4])
    assert dry_spans([*dry, message(2)]) == ([], [4])
    assert dry_spans([*dry, ack(0, (1, 1))]) == ([], [4])
    assert dry_spans([*dry, message(2), ack(5)]) == ([(4, 6, "ACK")], [None])
    assert dry_spans(dry, ends=True) == ([(4, 5, None)], [None])
    # It is asked to leave: it needs none.
    assert dry_spans([*dry[:-1], restart(), message(1)], ends=True) == ([], [None])
    assert dry_spans([*dry, restart()]) == ([], [None])


@pytest.mark.property
@pytest.mark.parametrize("compiled_from_bytes", [0, 1 << 40])
def test_spans_without_credit_are_those_of_a_plain_model(
    compiled_from_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "COMPILED_FROM_BYTES", compiled_from_bytes)
    random, kinds, goes_on = Random(3), list[str | None](), 0
    for _ in range(80):
        balance, expected = random.randint(2, 9), list[tuple[Any, ...]]()
        steps: list[Say] = [t_hello(), t_ok(granted=balance), t_notify(), t_message(1)]
        balance -= 2
        since = None if balance else 3
        for number in range(2, random.randint(3, 30)):
            match random.choice(["message"] * 4 + ["ack", "nack"]):
                case "message":
                    steps.append(t_message(number))
                    balance -= 1
                    since = len(steps) - 1 if not balance else since
                case kind if kind == "ack" or balance < 0:
                    granted = random.randint(1, 4) - min(balance, 0)
                    steps.append(t_ack(granted))
                    expected += [] if since is None else [(since, len(steps) - 1, "ACK")]
                    balance, since = balance + granted, None
                case _:
                    steps.append(t_nack(0))
                    expected += [] if since is None else [(since, len(steps) - 1, "NACK")]
                    steps.append(t_notify())
                    since = None if balance else len(steps) - 1
        ends = random.random() < 0.5
        if ends and since is not None:
            expected.append((since, len(steps), None))
        assert dry_spans(steps, ends=ends) == (expected, [None if ends else since])
        kinds += [kind for _, _, kind in expected]
        goes_on += not ends and since is not None
    assert min(*(kinds.count(kind) for kind in ("ACK", "NACK", None)), goes_on) > 5
