"""What a side had not received it did not know: acknowledgments say how much that was, to the byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.logs import flow_log
from wirehouse_codecs.logs import rows as log_rows
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_codecs.tcp.packets import ACK, FIN, SYN
from wirehouse_codecs.tcp.reassembly import TcpSegment
from wirehouse_codecs.wallaroo.dialects import DIALECTS
from wirehouse_codecs.wallaroo.frames import (
    Ack,
    Error,
    Flag,
    Frame,
    Hello,
    Message,
    Nack,
    Notify,
    NotifyAck,
    Ok,
    Restart,
    StreamReference,
)
from wirehouse_codecs.wallaroo.log import log, schema
from wirehouse_codecs.wallaroo.options import WallarooOptions
from wirehouse_codecs.wallaroo.wire.messages import encode

C, S = Direction.CLIENT, Direction.SERVER
SEEDS = ["seed", "seed_sid"]
SOURCES = [name for name, dialect in DIALECTS.items() if not dialect.sink]
SECOND = 1_000_000_000
FLOW = b"\x0a\0\0\1\x1b\x58\x0a\0\0\2\x9c\x40"
Opens = Callable[..., Any]
Messages = Callable[..., Message]
Acks = Callable[..., Ack]
Greetings = Callable[..., Hello]

# Received: all of what the other side said, or all but its last byte.
EDGE = pytest.mark.parametrize("missing", [0, 1])


@EDGE
@pytest.mark.parametrize("name", SEEDS)
def test_a_reference_from_before_a_nack_that_was_not_received_is_given(
    name: str, missing: int, dialogue: Opens, greeting: Greetings, msg: Messages, acked: Acks
) -> None:
    rule = [] if missing else ["notify_reference_unexpected"]
    listed = dialogue(name).c(greeting(name)).w(Ok(9, (StreamReference(1, 50),)))
    listed.w(Nack(1, 1, 40)).wait(60).hears(C, missing).c(Notify(1, b"s1", 50))
    assert listed.rules == rule
    safe = dialogue(name).opened(1).c(*[msg(name, 1, n) for n in (3, 4, 5)]).w(acked(1, (1, 4)), acked(1, (1, 5)))
    safe.w(Nack(1, 1, 3)).wait(60).hears(C, missing).c(Notify(1, b"s1", 4))
    assert safe.rules == rule
    # One that the worker never gave is as wrong.
    never = dialogue(name).c(greeting(name)).w(Ok(9, (StreamReference(1, 50),)))
    never.w(Nack(1, 1, 40)).hears(C, missing).c(Notify(1, b"s1", 51))
    assert never.rules == ["notify_reference_unexpected"]
    # Of two NACKs the second one alone was not received.
    second = dialogue(name).c(greeting(name)).w(Ok(9, (StreamReference(1, 50),))).w(Nack(1, 1, 40))
    second.hears(C, 0).w(Nack(1, 1, 30)).c(Notify(1, b"s1", 50))
    assert second.rules == ["notify_reference_unexpected"]


@EDGE
@pytest.mark.parametrize("name", SEEDS)
def test_a_notify_that_crossed_a_nack_is_not_its_answer(
    name: str, missing: int, dialogue: Opens, msg: Messages
) -> None:
    rule = [] if missing else ["notify_open_stream"]
    told = dialogue(name).opened(1).c(msg(name, 1, 1, Flag.EOS)).w(Nack(1, 1, 1)).wait(60)
    told.hears(C, missing).c(Notify(1, b"s1"), msg(name, 1, 2))
    assert told.rules == []
    told.hears(C, 0).c(Notify(1, b"s1", 1))
    assert told.rules == rule
    # One NOTIFY is due, and no more; and none before the NACK is known.
    assert told.c(Notify(1, b"s1", 1)).rules == ["notify_open_stream"]
    again = dialogue(name).opened(1).c(msg(name, 1, 1, Flag.EOS)).w(Nack(1, 1, 1)).hears(C, 1)
    assert again.c(Notify(1, b"s1"), Notify(1, b"s1")).rules == ["notify_open_stream"]


@pytest.mark.parametrize("name", SEEDS)
def test_notifys_that_cross_nacks_one_by_one(name: str, dialogue: Opens, msg: Messages) -> None:
    def told() -> Any:
        crossed = dialogue(name).opened(1).c(msg(name, 1, 1, Flag.EOS)).w(Nack(1, 1, 5)).hears(C, 1)
        return crossed.c(Notify(1, b"s1")).hears(C, 0).w(Nack(1, 1, 4))

    # Its answer to the first crosses the second one.
    late = told().c(Notify(1, b"s1", 5)).hears(C, 0).c(Notify(1, b"s1", 4))
    assert late.rules == []
    assert late.c(Notify(1, b"s1", 4)).found == ["notify_open_stream"]
    # It answers both when it knows both.
    both = told().hears(C, 0).c(Notify(1, b"s1", 4)).c(Notify(1, b"s1", 5))
    assert both.rules == []
    assert both.c(Notify(1, b"s1", 4)).found == ["notify_open_stream"]


@EDGE
@pytest.mark.parametrize("name", SEEDS)
def test_a_connector_that_closed_without_having_received_a_nack_owes_no_notify(
    name: str, missing: int, dialogue: Opens
) -> None:
    told = dialogue(name).opened(1).w(Nack(1, 1, 0)).hears(C, missing)
    assert told.end().found == ([] if missing else ["nack_not_answered"])
    two = dialogue(name).opened(1).w(Nack(1, 1, 0)).hears(C, 0).w(Nack(1, 1, 0)).end()
    assert [finding.message for finding in two.findings] == ["1 NACK without a NOTIFY"]


@EDGE
def test_a_worker_that_has_not_received_a_fault_can_not_signal_it(
    missing: int, dialogue: Opens, msg: Messages, acked: Acks
) -> None:
    told = dialogue("v3").opened(1).c(msg("v3", 9, 5)).hears(S, missing).wait(4).w(acked(5))
    assert told.found == ["message_unknown_stream"]
    told.wait(2).c(msg("v3", 1, 6))
    assert told.rules == ([] if missing else ["error_not_signalled"])
    # Its time begins when it may have received it.
    told.hears(S, 0).wait(2).w(acked(5))
    assert told.rules == []
    told.wait(2).w(acked(5))
    assert told.rules == (["error_not_signalled"] if missing else [])
    named = dialogue("v3").opened(1).c(msg("v3", 9, 5)).hears(S, missing).w(acked(5, (9, 5)))
    assert named.rules == ([] if missing else ["error_not_signalled"])


@EDGE
@pytest.mark.parametrize(
    ("name", "frame"), [("v3", Restart(b"host:1")), ("v3", Error(b"no")), ("seed_sid", Nack(1, 1, 0))]
)
def test_what_a_worker_drops_breaks_no_rule_however_late(
    name: str, frame: Frame, missing: int, dialogue: Opens, msg: Messages
) -> None:
    told = dialogue(name).opened(1, granted=3).w(frame).hears(C, missing).wait(600)
    told.c(*[msg(name, 1, n) for n in (1, 2)])
    assert {found.rule.name for found in told.findings if found.rule.severity != "note"} == set()


# Packets


def segments(name: str, *said: tuple[Direction, list[Frame | bytes], int]) -> list[TcpSegment]:
    """A connection that the connector closes: who says what, and how many bytes of the other it had not received."""
    sent = {C: 0, S: 0}
    made: list[TcpSegment] = []

    def add(side: Direction, flags: int, data: bytes = b"", missing: int = 0, ahead: int = 1) -> None:
        other = S if side is C else C
        place = Place(SECOND * (1 + len(made)), 0, b"capture", len(made))
        acknowledgment = sent[other] + 1 - missing if flags & ACK else 0
        made.append(TcpSegment(place, side, sent[side] + ahead, acknowledgment, flags, 500, data, len(data)))
        sent[side] += len(data)

    add(C, SYN, ahead=0)
    add(S, SYN | ACK, ahead=0)
    add(C, ACK)
    missing = 0
    for side, frames, missing in said:
        data = [frame if isinstance(frame, bytes) else encode(frame, DIALECTS[name]) for frame in frames]
        add(side, ACK, b"".join(data), missing)
    add(C, ACK | FIN, missing=missing if said[-1][0] is C else 0)
    add(S, ACK | FIN, ahead=1)
    return made


def rules(name: str, made: list[TcpSegment]) -> list[str]:
    """The rules that the log says are broken, but for notes; and the same in windows of one packet each."""
    told: list[list[str]] = []
    for cut in (False, True):
        rows = log_rows.Log(schema.SCHEMA)
        start = log.starter(WallarooOptions(dialect=name), b"key")
        flow = flow_log.FlowLog(rows, start, "test", FLOW, TcpOptions())
        for segment in made:
            flow.receive(segment)
            if cut:
                flow.flush()
        flow.finish()
        findings = pa.Table.from_batches(rows.take()).column("finding").to_pylist()
        told.append([each["rule"] for each in findings if each is not None and each["severity"] != "note"])
    assert told[0] == told[1]
    return [rule.removeprefix("wallaroo.") for rule in told[0]]


@pytest.fixture(params=["readable", "compiled"])
def twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "COMPILED_FROM_BYTES", 0 if request.param == "compiled" else 1 << 40)


@EDGE
@pytest.mark.usefixtures("twin")
@pytest.mark.parametrize("name", SEEDS)
def test_acknowledgments_say_what_a_connector_knew(name: str, missing: int, greeting: Greetings, msg: Messages) -> None:
    opened: list[tuple[Direction, list[Frame | bytes], int]] = [
        (C, [greeting(name)], 0),
        (S, [Ok(500, (StreamReference(1, 50),))], 0),
        (C, [Notify(1, b"s1", 50), *(msg(name, 1, n) for n in range(51, 90)), msg(name, 1, 90, Flag.EOS)], 0),
    ]
    nack: tuple[Direction, list[Frame | bytes], int] = (S, [Nack(1, 1, 60)], 0)
    crossing = segments(name, *opened, nack, (C, [Notify(1, b"s1", 50)], missing), (C, [Notify(1, b"s1", 60)], 0))
    assert rules(name, crossing) == ([] if missing else ["notify_reference_unexpected", "notify_open_stream"])
    # A NOTIFY in two segments, of which the last one counts.
    whole = encode(Notify(1, b"s1", 50), DIALECTS[name])
    halves = segments(name, *opened, nack, (C, [whole[:9]], 1), (C, [whole[9:]], missing))
    assert rules(name, halves) == ([] if missing else ["notify_reference_unexpected"])
    unanswered = segments(name, *opened, nack)
    end = next(at for at, segment in enumerate(unanswered) if segment.flags & FIN)
    unanswered[end] = unanswered[end]._replace(acknowledgment=unanswered[end].acknowledgment - missing)
    assert rules(name, unanswered) == ([] if missing else ["nack_not_answered"])


@EDGE
@pytest.mark.usefixtures("twin")
def test_acknowledgments_say_what_a_worker_knew(missing: int, greeting: Greetings, msg: Messages, acked: Acks) -> None:
    ids = range(1, 40)
    made = segments(
        "v3",
        (C, [greeting("v3")], 0),
        (S, [Ok(500)], 0),
        (C, [Notify(1, b"s1")], 0),
        (S, [NotifyAck(1, 1, 0)], 0),
        (C, [*(msg("v3", 1, n) for n in ids), msg("v3", 9, 77)], 0),
        (S, [acked(5, (9, 77))], missing),
        (S, [Error(b"no")], 0),
    )
    assert rules("v3", made) == ["message_unknown_stream", *([] if missing else ["error_not_signalled"])]


@pytest.mark.parametrize("received", [True, False])
@pytest.mark.usefixtures("twin")
@pytest.mark.parametrize("name", SOURCES)
def test_credits_are_those_that_the_connector_had_received(
    name: str, received: bool, greeting: Greetings, msg: Messages
) -> None:
    opened: list[tuple[Direction, list[Frame | bytes], int]] = [
        (C, [greeting(name)], 0),
        (S, [Ok(40)], 0),
        (C, [Notify(1, b"s1")], 0),
    ]
    if DIALECTS[name].answers_notify:
        opened.append((S, [NotifyAck(1, 1, 0)], 0))
    spends: tuple[Direction, list[Frame | bytes], int] = (C, [msg(name, 1, n) for n in range(1, 40)], 0)
    missing = 0 if received else len(encode(Ack(9), DIALECTS[name]))
    made = segments(name, *opened, spends, (S, [Ack(9)], 0), (C, [msg(name, 1, 40)], missing))
    assert rules(name, made) == []
    # The capture has the grant behind the message that it allows.
    grant = next(at for at in reversed(range(len(made))) if made[at].direction is S and made[at].payload)
    made[grant : grant + 2] = [
        made[grant + 1]._replace(place=made[grant].place),
        made[grant]._replace(place=made[grant + 1].place),
    ]
    assert rules(name, made) == ([] if received else ["credits_overdrawn"])
