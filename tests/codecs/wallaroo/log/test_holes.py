"""Holes in a capture: what may have stood in them is blamed on nobody."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.support.carried import carry
from tests.support.searches import fast_first
from wirehouse_codecs.captures.pcap import PacketCapture
from wirehouse_codecs.core.rules import Place, Severity
from wirehouse_codecs.logs import flow_log
from wirehouse_codecs.logs import rows as log_rows
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_codecs.tcp.packets import SYN, parse
from wirehouse_codecs.tcp.reassembly import TcpSegment
from wirehouse_codecs.wallaroo.dialects import DIALECTS
from wirehouse_codecs.wallaroo.fast.runner import Connection, Read
from wirehouse_codecs.wallaroo.frames import (
    Ack,
    Error,
    Frame,
    Hello,
    Message,
    Notify,
    NotifyAck,
    Ok,
    Restart,
    StreamMessage,
)
from wirehouse_codecs.wallaroo.log import log, schema
from wirehouse_codecs.wallaroo.options import AUTO, WallarooOptions
from wirehouse_codecs.wallaroo.rules import RULE
from wirehouse_codecs.wallaroo.session.session import Session
from wirehouse_codecs.wallaroo.simulator.connector import PORT
from wirehouse_codecs.wallaroo.simulator.simulator import SimulatorConfig, simulate, write_pcap
from wirehouse_codecs.wallaroo.wire.held_frames import HELD_FRAMES
from wirehouse_codecs.wallaroo.wire.messages import encode
from wirehouse_codecs.wallaroo.wire.reader import Reader
from wirehouse_codecs.wallaroo.wire.reader_state import ReaderState, Received

C, S = Direction.CLIENT, Direction.SERVER
SOURCES = [name for name, dialect in DIALECTS.items() if not dialect.sink]
Said = list[tuple[Direction, Frame]]


def place(at: int) -> Place:
    return Place(at, 0, b"", at)


def connection(dialect: str) -> Connection:
    options = WallarooOptions(dialect=dialect)
    return Connection(Reader(options), options, lambda known: Session(known, options))


def said(
    name: str, greeting: Callable[..., Hello], msg: Callable[..., Message], acked: Callable[..., Ack]
) -> tuple[Said, Said]:
    """The frames that may be missing, and so many after them that their place is found again in both directions."""
    opening: Said = [(C, greeting(name)), (S, Ok(50)), (C, Notify(1, b"one"))]
    if DIALECTS[name].answers_notify:
        opening.append((S, NotifyAck(1, 1, 0)))
    opening += [(C, msg(name, 1, 1)), (C, msg(name, 1, 2)), (S, acked(50, (1, 2)))]
    rest = [(C, msg(name, 1, number)) for number in range(3, 14)]
    return opening, [*rest, *((S, acked(1, (1, number))) for number in range(3, 12))]


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("name", SOURCES)
def test_a_frame_that_is_missing_breaks_no_rule(
    name: str,
    forced: bool,
    greeting: Callable[..., Hello],
    msg: Callable[..., Message],
    acked: Callable[..., Ack],
) -> None:
    opening, rest = said(name, greeting, msg, acked)
    for missing in range(len(opening)):
        taken = connection(name if forced else AUTO)
        read: list[Read] = []
        for number, (direction, frame) in enumerate([*opening, *rest]):
            data = encode(frame, DIALECTS[name])
            if number == missing:
                read += taken.hole(direction, len(data), place(number))
            else:
                read += taken.receive(direction, data, place(number))
        read += taken.finish(place(99))
        assert taken.session is not None
        assert taken.session.memory.partial
        told = [found for one in read if one.outcome is not None for found in one.outcome.findings]
        assert [found.rule.name for found in told if found.rule.severity is not Severity.NOTE] == []
        frames = [one for one in read if one.received.decoded.frame is not None]
        assert len(frames) == len(opening) + len(rest) - 1


def test_holes_alone_are_held_once() -> None:
    reader = Reader(WallarooOptions())
    for number in range(2 * HELD_FRAMES):
        assert reader.hole(C, 10, place(number)) == []
    assert len(reader.held) == 1
    assert reader.finish(place(0)) == []


def test_a_length_that_no_frame_has_is_not_read_as_a_tag() -> None:
    taken = connection(AUTO)
    read = taken.receive(C, b"HTTP/1.1 200 OK\r\n", place(1))
    read += taken.finish(place(2))
    assert [one.received.decoded.rule and one.received.decoded.rule.name for one in read] == ["oversize_frame"]


def test_a_lost_notify_changes_no_dialect(greeting: Callable[..., Hello], msg: Callable[..., Message]) -> None:
    for lost, messages in itertools.product((1, 2), ((1, 2), (2, 1), (1, 1), (2, 2))):
        said: list[Frame] = [greeting("seed_sid"), Notify(1, b"one"), Notify(2, b"two")]
        said += [msg("seed_sid", stream, number, 2) for number, stream in enumerate(messages * 9, 1)]
        taken = connection(AUTO)
        read: list[Read] = []
        for number, frame in enumerate(said):
            data = encode(frame, DIALECTS["seed_sid"])
            if number == lost:
                read += taken.hole(C, len(data), place(number))
            else:
                read += taken.receive(C, data, place(number))
            if number == 0:
                read += taken.receive(S, encode(Ok(50), DIALECTS["seed_sid"]), place(number))
        read += taken.finish(place(99))
        assert taken.reader.dialect is DIALECTS["seed_sid"]
        severe = [found.rule for one in read if one.outcome is not None for found in one.outcome.findings]
        assert not [rule for rule in severe if rule.severity is not Severity.NOTE]


# Frames that a hole cuts


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("name", SOURCES)
def test_a_hole_within_a_frame_costs_that_frame_alone(
    name: str, forced: bool, greeting: Callable[..., Hello], msg: Callable[..., Message]
) -> None:
    dialect = DIALECTS[name]
    before: list[Frame] = [msg(name, 1, number, payload=b"p" * 50) for number in (1, 2, 3)]
    data = [encode(frame, dialect) for frame in [greeting(name), Notify(1, b"one"), *before]]
    last = encode(msg(name, 1, 4, payload=b"q" * 50), dialect)
    options = WallarooOptions(dialect=name if forced else AUTO)
    for cut, back in itertools.product((4, 5, 30), (0, 1, 9)):
        reader, found = Reader(options), list[Received]()
        found += reader.receive(S, encode(Ok(50), dialect), place(0))
        found += reader.receive(C, b"".join(data[:-1]) + data[-1][:cut], place(1))
        missing = len(data[-1]) - cut - back
        found += reader.hole(C, missing, place(2))
        reader = Reader(options, state=carry(reader, ReaderState))
        rest = data[-1][len(data[-1]) - back :] + last
        for at in range(len(rest)):
            reader = Reader(options, state=carry(reader, ReaderState))
            found += reader.receive(C, rest[at : at + 1], place(3))
        found += reader.finish(place(4))
        frames = [one for one in found if one.decoded.frame is not None]
        assert len(frames) == 1 + len(data)
        assert frames[-1].byte_end == len(b"".join(data) + last)
        assert not [one for one in found if one.decoded.rule is not None]
        cuts = sorted((one.byte_start, one.byte_end) for one in found if one.decoded.frame is None)
        assert sum(end - start for start, end in cuts) == cut + back


def test_a_hole_beyond_a_frame_or_before_its_length_loses_the_place(msg: Callable[..., Message]) -> None:
    whole = encode(msg("v3", 1, 1), DIALECTS["v3"])
    for here, missing in ((3, 5), (0, 5), (9, len(whole) - 8)):
        reader = Reader(WallarooOptions(dialect="v3"))
        reader.receive(C, whole[:here], place(0))
        reader.hole(C, missing, place(1))
        assert reader.framer(C) is None
        assert [one for one in reader.receive(C, whole * 7, place(2)) if one.decoded.frame] == []
        assert len([one for one in reader.receive(C, whole, place(2)) if one.decoded.frame]) == 8


def test_two_holes_in_one_frame(msg: Callable[..., Message]) -> None:
    whole = encode(msg("v3", 1, 1, payload=b"p" * 90), DIALECTS["v3"])
    reader = Reader(WallarooOptions(dialect="v3"))
    reader.receive(C, whole[:20], place(0))
    reader.hole(C, 20, place(1))
    reader.receive(C, whole[40:60], place(2))
    reader.hole(C, len(whole) - 60, place(3))
    assert [one.decoded.frame is not None for one in reader.receive(C, whole, place(4))] == [True]


@pytest.mark.parametrize("snaplen", [60, 96, 128])
def test_packets_cut_by_their_snap_length_cost_the_frames_in_which_they_end(
    snaplen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = SimulatorConfig(seed=2, connectors=1, messages_per_connector=400, burst_messages=4)
    cut_short = [segment._replace(payload=segment.payload[:snaplen]) for segment in simulated(config)]
    readable = found(cut_short)
    assert {severity for rule, severity in readable if rule and not rule.startswith("capture.")} <= {Severity.NOTE}
    monkeypatch.setattr(log, "COMPILED_FROM_BYTES", 0)
    assert found(cut_short) == readable


def test_a_worker_may_send_more_than_it_takes(greeting: Callable[..., Hello]) -> None:
    streams = range(1100)
    large = Ack(1, tuple(StreamMessage(stream, 1) for stream in streams))
    taken = connection("v3")
    taken.receive(C, encode(greeting("v3"), DIALECTS["v3"]), place(0))
    taken.receive(S, encode(Ok(9), DIALECTS["v3"]), place(1))
    (read,) = taken.receive(S, encode(large, DIALECTS["v3"]), place(2))
    assert read.received.decoded.frame == large
    (lost,) = taken.receive(C, (16_385).to_bytes(4, "big"), place(3))
    assert lost.received.decoded.rule is RULE["oversize_frame"]


def test_holes_of_both_sides_before_the_dialect_is_known_are_both_told(msg: Callable[..., Message]) -> None:
    for sides in ((C, S), (S, C)):
        taken = connection(AUTO)
        read = [*taken.hole(sides[0], 63, place(0)), *taken.hole(sides[1], 63, place(1))]
        frames: list[Frame] = [Notify(1, b"one"), *(msg("v3", 1, number) for number in range(1, 20))]
        for frame in frames:
            read += taken.receive(C, encode(frame, DIALECTS["v3"]), place(2))
        read += taken.finish(place(3))
        told = [found.rule.name for one in read if one.outcome is not None for found in one.outcome.findings]
        assert told == ["no_handshake_seen"]


def test_a_restart_without_a_body_is_read_where_nothing_told_v2a_from_v2b(msg: Callable[..., Message]) -> None:
    taken = connection(AUTO)
    taken.hole(C, 63, place(0))
    for number in range(1, 30):
        taken.receive(C, encode(msg("v2a", 1, number, 48), DIALECTS["v2a"]), place(number))
    assert taken.reader.dialect is DIALECTS["v2b"]
    (read,) = taken.receive(S, encode(Restart(), DIALECTS["v2a"]), place(99))
    assert read.received.decoded.frame == Restart()
    (other,) = taken.receive(S, encode(Restart(b"host:1"), DIALECTS["v2b"]), place(99))
    assert other.received.decoded.frame == Restart(b"host:1")


# What a hole excuses, and what it doesn't


def test_what_waits_may_have_come_in_a_hole(
    dialogue: Callable[..., Any], msg: Callable[..., Message], acked: Callable[..., Ack]
) -> None:
    def dry() -> Any:
        return dialogue("v3").opened(1, granted=2).c(msg("v3", 1, 1))

    # The hole may hold the grant, although it is told only later.
    assert dry().wait(20).hole(S).c(msg("v3", 1, 2)).wait(20).c(msg("v3", 1, 3)).end().found == []
    assert dry().wait(20).c(msg("v3", 1, 2)).found == ["credits_not_replenished", "credits_overdrawn"]
    # An answer that was due before the hole is not missing, one that is due after it is.
    asked = dialogue("v3").opened(1).c(Notify(2, b"two"))
    assert asked.hole(S).end().found == []
    assert dialogue("v3").opened(1).hole(S).c(Notify(2, b"two")).end().found == ["notify_not_answered"]
    late = dialogue("v3").opened(1).c(Notify(2, b"two")).hole(S).c(Notify(2, b"two"))
    assert late.w(NotifyAck(0, 2, 0), NotifyAck(1, 2, 0)).c(msg("v3", 2, 1)).end().found == ["notify_refused"]
    assert dialogue("v3").opened(1).c(msg("v3", 9, 1)).hole(S).wait(9).c(msg("v3", 9, 2)).found == [
        "message_unknown_stream"
    ]
    # The ERROR that refuses a HELLO comes right after it.
    refused = dialogue("v3").c(Hello(b"0.0.1", b"c", b"p", b"i"))
    assert refused.hole(S).w(Error(b"bad cookie")).found == ["worker_error"]
    unsaid = dialogue("v3").c(Hello(b"0.0.1", b"c", b"p", b"i"))
    assert unsaid.hole(S).end().found == []
    # Nothing of the worker was captured, and its bytes were passed over before the connector asked.
    alone = dialogue("v3").c(Hello(b"0.0.1", b"c", b"p", b"i")).hole(S).c(Notify(1, b"one"))
    assert alone.end().found == []


def test_an_answer_may_be_that_of_a_notify_in_a_hole(dialogue: Callable[..., Any], msg: Callable[..., Message]) -> None:
    told = dialogue("v3").opened(1).hole(C).c(Notify(2, b"two"))
    told.w(NotifyAck(0, 2, 0), NotifyAck(1, 2, 0)).c(msg("v3", 2, 1)).end()
    assert told.found == ["notify_refused"]
    # A hole of the worker hides no NOTIFY.
    unasked = dialogue("v3").opened(1).hole(S)
    unasked.w(NotifyAck(1, 2, 0)).c(msg("v3", 3, 1))
    assert unasked.found == ["notify_ack_unasked", "message_unknown_stream"]


@pytest.mark.parametrize("name", ["seed", "seed_sid"])
def test_a_nack_may_stand_in_a_hole(
    name: str, dialogue: Callable[..., Any], msg: Callable[..., Message], acked: Callable[..., Ack]
) -> None:
    told = dialogue(name).opened(1).c(*[msg(name, 1, n) for n in (1, 2, 3)]).w(acked(1, (1, 3))).hole(S)
    told.c(Notify(1, b"s1", 2), Notify(1, b"s1", 1)).w(acked(1, (1, 1))).end()
    assert told.found == []


@pytest.mark.parametrize("kind", [Ack(1), Ok(5)])
def test_a_worker_that_is_heard_first_breaks_no_rule_if_hello_may_be_missing(
    kind: Frame, dialogue: Callable[..., Any]
) -> None:
    assert dialogue("v3").hole(C).w(kind).c(Notify(1, b"s")).end().found == ["no_handshake_seen", "notify_not_answered"]
    assert dialogue("v3").hole(S).w(kind).found == ["frame_before_hello"]


# Packets that are missing in a capture

FLOW = b"\x0a\0\0\1\x1b\x58\x0a\0\0\2\x9c\x40"


def simulated(config: SimulatorConfig) -> list[TcpSegment]:
    """The segments of the only connection."""
    stream = io.BytesIO()
    write_pcap(simulate(config), stream, resolution="ns")
    stream.seek(0)
    segments: list[TcpSegment] = []
    for batch in PacketCapture(stream).batches():
        for at_ns, packet in zip(batch.column("ts_ns").to_pylist(), parse(batch).to_pylist(), strict=True):
            direction = S if packet["source_port"] == PORT else C
            fields = {name: packet[name] for name in TcpSegment._fields if name in packet}
            segments.append(TcpSegment(Place(at_ns, 0, b"capture", len(segments)), direction, **fields))
    return segments


def found(segments: list[TcpSegment]) -> list[tuple[str, str]]:
    """Rules and severities of the log's findings."""
    rows = log_rows.Log(schema.SCHEMA)
    flow = flow_log.FlowLog(rows, log.starter(WallarooOptions(), b"key"), "test", FLOW, TcpOptions())
    for segment in segments:
        flow.receive(segment)
    flow.finish()
    told = pa.Table.from_batches(rows.take()).column("finding").to_pylist()
    return [(finding["rule"], finding["severity"]) for finding in told if finding is not None]


@pytest.mark.parametrize("dialect", ["seed", "seed_sid"])
def test_a_hole_that_is_told_before_the_dialect_is_known_excuses_the_frames_before_it(dialect: str) -> None:
    """The worker alone was captured: its OK shows no dialect, and what it acknowledges later is a hole."""
    whole = simulated(SimulatorConfig(dialect=dialect, connectors=1))
    worker = [one for one in whole if one.direction is S and (one.flags & SYN or one.payload_bytes)][:2]
    answer, ok = worker
    assert (answer.flags & SYN, ok.payload_bytes) == (SYN, len(ok.payload))
    later = ok._replace(
        place=Place(ok.place.arrived_at_ns + 1000, 0, b"capture", len(whole)),
        sequence=ok.sequence + len(ok.payload),
        acknowledgment=ok.acknowledgment + 546,
        payload=b"",
        payload_bytes=0,
    )
    # As if SYN had carried HELLO.
    answer = answer._replace(acknowledgment=ok.acknowledgment)
    assert [rule for rule, severity in found([answer, ok, later]) if severity != Severity.NOTE.value] == []


@pytest.mark.parametrize("seed", fast_first(range(3)))
@pytest.mark.parametrize("lively", [False, True])
@pytest.mark.parametrize("dialect", ["v3", "seed_sid"])
def test_a_packet_that_is_missing_breaks_no_rule(dialect: str, lively: bool, seed: int) -> None:
    config = SimulatorConfig(
        seed=seed,
        dialect=dialect,
        connectors=1,
        streams_per_connector=2,
        messages_per_connector=20,
        burst_messages=4,
        credits=8,
        refill_at=4,
        reset_share=0.2 if lively else 0,
        reopens=int(lively),
    )
    segments = simulated(config)
    lost = [at for at, segment in enumerate(segments) if segment.payload]
    assert len(lost) > 10
    for at in lost:
        told = found(segments[:at] + segments[at + 1 :])
        assert "capture.hole" in {rule for rule, _ in told}
        severe = {rule for rule, severity in told if severity != Severity.NOTE and not rule.startswith("capture.")}
        assert severe == set(), at
