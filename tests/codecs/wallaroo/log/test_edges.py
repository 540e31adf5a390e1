"""Every rule: what keeps it at its very edge, and what breaks it by one step.

The bytes are written from the specification, by no code that the codec or the simulator has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.support import taps
from tests.support.landed import landed_packets
from tests.support.wallaroo_by_hand import (
    BOUNDARY,
    EOS,
    EPHEMERAL,
    EVENT_TIME,
    NOTHING,
    RESERVED,
    SECOND,
    UNSTABLE,
    C,
    Say,
    W,
    ack,
    answer,
    eos,
    error,
    flagged,
    frame,
    hello,
    message,
    notify,
    number,
    ok,
    ok2,
    t_ack,
    t_hello,
    t_message,
    t_nack,
    t_notify,
    t_ok,
    u64,
)
from wirehouse_codecs.logs.inspection import VIOLATION
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket
from wirehouse_codecs.simulate.script import Close, Conversation, Ending, Event, Send, merge, packets
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.wallaroo.inspection import inspect
from wirehouse_codecs.wallaroo.rules import RULE

PORT = 7100


class End(NamedTuple):
    """How the connection ends; without one the capture ends."""

    ending: Ending = Ending.FIN
    after_ns: int = SECOND // 100
    by: Direction = C


Step = Say | End
Talk = tuple[Step, ...]
Talks = tuple[Talk, ...]


HEAD: Talk = (hello(), ok())
OPEN: Talk = (*HEAD, notify(), answer())
OPEN2: Talk = (hello(), ok2(), notify(), answer(reference=0), flagged(1, 0, b"text"))
#: The first message tells that MESSAGE has a stream id.
T_OPEN: Talk = (t_hello(), t_ok(), t_notify(), t_message(1))
BYE = End()
LIMIT = 16_384


def later(said: Say, seconds: float) -> Say:
    return said._replace(after_ns=round(seconds * SECOND))


def again(count: int, gap_s: float, last_gap_s: float, by: Direction = W) -> Talks:
    """Sessions that are reset, each so long after the one before."""
    gaps = [0.0] + [gap_s] * (count - 2) + [last_gap_s]
    return tuple((later(hello(), gap), ok(), End(Ending.RESET, by=by)) for gap in gaps)


def sized(length: int) -> Say:
    """A message whose frame has this length."""
    return message(1, payload=bytes(length - 1 - 8 - 8 - 8 - 5))


#: By rule what keeps it at its edge, and what breaks it: a talk, or several one after another.
CASES: dict[str, tuple[Talk | Talks, Talk | Talks]] = {
    "empty_frame": ((*OPEN, sized(30), BYE), (*OPEN, Say(C, bytes(4)), BYE)),
    "oversize_frame": ((*OPEN, sized(LIMIT), BYE), (*OPEN, sized(LIMIT + 1), BYE)),
    "unknown_frame_type": ((*OPEN, eos(), BYE), (*OPEN, Say(C, frame(10, u64(1))), BYE)),
    "malformed_frame": (
        (*OPEN, Say(C, frame(5, u64(1), u64(1), u64(7), b"\0\x03key")), BYE),
        (*OPEN, Say(C, frame(5, u64(1), u64(1), u64(7), b"\0\x04key")), BYE),
    ),
    "trailing_bytes": ((*OPEN, eos(), BYE), (*OPEN, Say(C, frame(8, u64(1), b"x")), BYE)),
    "frame_before_hello": ((hello(), ok(), notify(), BYE), (notify(), hello(), ok(), BYE)),
    "duplicate_hello": ((*HEAD, BYE), (*HEAD, hello(), BYE)),
    "cookie_refused": ((hello(), error(W, b"no cooki"), BYE), (hello(), error(W, b"no COOKIE"), BYE)),
    "version_refused": ((hello(), error(W, b"versio"), BYE), (hello(), error(W, b"Version"), BYE)),
    "wrong_direction": ((*OPEN, ack(1), BYE), (*OPEN, ack(1)._replace(side=C), BYE)),
    "message_unknown_stream": ((*OPEN, message(1), BYE), (*OPEN, message(1, stream=2), BYE)),
    "message_before_notify_ack": (
        (*HEAD, notify(), answer(), message(1), BYE),
        (*HEAD, notify(), message(1), answer(), BYE),
    ),
    "message_closed_stream": ((*OPEN, message(1), eos(), BYE), (*OPEN, eos(), message(1), BYE)),
    "eos_unknown_stream": ((*OPEN, eos(), BYE), (*OPEN, eos(), eos(), BYE)),
    "flags_not_allowed": (
        (*OPEN2, flagged(2, BOUNDARY | EOS), BYE),
        (*OPEN2, flagged(2, BOUNDARY | UNSTABLE), BYE),
    ),
    "reserved_flags_set": ((*T_OPEN, t_message(2, EVENT_TIME, number(7)), BYE), (*T_OPEN, t_message(2, RESERVED), BYE)),
    "credits_overdrawn": (
        (hello(), ok(2), notify(), answer(), message(1), BYE),
        (hello(), ok(2), notify(), answer(), message(1), message(2), BYE),
    ),
    "connector_error": ((*HEAD, BYE), (*HEAD, error(C), BYE)),
    "worker_error": ((*OPEN, message(1, stream=2), error(W), BYE), (*OPEN, message(1), error(W), BYE)),
    "truncated_frame": ((*OPEN, message(1), BYE), (*OPEN, Say(C, message(1).data[:-1]), BYE)),
    "capture_ends_early": ((*HEAD, BYE), HEAD),
    "no_handshake_seen": ((*HEAD, BYE), (*OPEN, message(1), BYE)),
    "dialect_unsupported": ((hello(b"0.0.1"), ok(), BYE), (hello(b"0.0001"), ok(), BYE)),
    "frame_before_ok": ((hello(), ok(), notify(), BYE), (hello(), notify(), ok(), BYE)),
    "duplicate_ok": ((*HEAD, BYE), (*HEAD, ok(), BYE)),
    "frame_after_error": ((*OPEN, message(1), error(C), BYE), (*OPEN, error(C), message(1), BYE)),
    "hello_refused": ((hello(), ok(), error(W), BYE), (hello(), error(W), BYE)),
    "hello_not_answered": ((hello(), End(Ending.RESET)), (hello(), BYE)),
    "handshake_inconsistent": (
        ((*HEAD, BYE), (hello(cookie=b"other"), error(W, b"bad cookie"), BYE)),
        ((*HEAD, BYE), (hello(cookie=b"other"), ok(), BYE)),
    ),
    "zero_initial_credits": ((hello(), ok(1), BYE), (hello(), ok(0), BYE)),
    "error_not_signalled": (
        (*OPEN, message(1, stream=2), later(message(1), 4.9), BYE),
        (*OPEN, message(1, stream=2), later(message(1), 5.1), BYE),
    ),
    "not_closed_after_error": (
        (*OPEN, error(C), End(after_ns=4_900_000_000)),
        (*OPEN, error(C), End(after_ns=5_100_000_000)),
    ),
    "notify_open_stream": ((*T_OPEN, t_message(2, EOS), t_notify(), BYE), (*T_OPEN, t_notify(), BYE)),
    "notify_reference_unexpected": (
        (t_hello(), t_ok((1, 9)), t_notify(reference=9), t_message(1), BYE),
        (t_hello(), t_ok((1, 9)), t_notify(reference=8), t_message(1), BYE),
    ),
    "stream_id_reused": (
        ((*OPEN, BYE), (*HEAD, notify(2, b"s2"), answer(2), BYE)),
        ((*OPEN, BYE), (*HEAD, notify(2, b"s1"), answer(2), BYE)),
    ),
    "ack_unknown_stream": ((*OPEN, message(1), ack(1, (1, 1)), BYE), (*OPEN, ack(1, (2, NOTHING)), BYE)),
    "ack_never_sent": ((*OPEN, message(4), ack(1, (1, 4)), BYE), (*OPEN, message(4), ack(1, (1, 5)), BYE)),
    "ack_goes_back": (
        (*OPEN, message(1), message(2), ack(1, (1, 2)), ack(1, (1, 2)), BYE),
        (*OPEN, message(1), message(2), ack(1, (1, 2)), ack(1, (1, 1)), BYE),
    ),
    "message_never_acked": (
        (*OPEN, message(1), message(2), ack(1, (1, 2)), BYE),
        (*OPEN, message(1), message(2), ack(1, (1, 1)), BYE),
    ),
    "reference_unstable": (
        (*T_OPEN, t_message(2, UNSTABLE), t_ack(1, (1, 1)), BYE),
        (*T_OPEN, t_message(2, UNSTABLE), t_ack(1, (1, 2)), BYE),
    ),
    "nack_unknown_stream": ((*T_OPEN, t_nack(1), t_notify(reference=1), BYE), (*T_OPEN, t_nack(1, stream=2), BYE)),
    "nack_not_answered": (
        (*T_OPEN, t_nack(1), t_nack(0), t_notify(reference=1), t_notify(), BYE),
        (*T_OPEN, t_nack(1), t_nack(0), t_notify(reference=1), BYE),
    ),
    "boundary_with_payload": (
        (*T_OPEN, t_message(2, BOUNDARY, b""), BYE),
        (*T_OPEN, t_message(2, BOUNDARY, b"x"), BYE),
    ),
    "ephemeral_id_repeated": (
        (*T_OPEN, t_message(2, EPHEMERAL), t_message(3, EPHEMERAL), BYE),
        (*T_OPEN, t_message(2, EPHEMERAL), t_message(2, EPHEMERAL), BYE),
    ),
    "message_ignored": ((*OPEN, message(1), message(2), BYE), (*OPEN, message(1), message(1), BYE)),
    "notify_ack_unasked": ((*OPEN, notify(), answer(success=0), BYE), (*OPEN, answer(), BYE)),
    "notify_refused": ((*HEAD, notify(), answer(success=1), BYE), (*HEAD, notify(), answer(success=0), BYE)),
    "notify_not_answered": ((*OPEN, BYE), (*OPEN, notify(2, b"s2"), BYE)),
    "credits_not_replenished": (
        (hello(), ok(1), notify(), answer(), later(ack(1), 9.9), BYE),
        (hello(), ok(1), notify(), answer(), later(ack(1), 10.1), BYE),
    ),
    "reconnect_without_backoff": (again(5, 2, 2.1), again(5, 2, 2)),
}
#: What besides a rule is broken of warnings and violations, as one more fault or as what excuses nothing.
BESIDES: dict[str, list[str]] = {
    "error_not_signalled": ["message_unknown_stream"],
    # The worker answers the HELLO that follows.
    "frame_before_hello": ["error_not_signalled"],
    "nack_unknown_stream": ["nack_not_answered"],
}
#: What is broken at the edge of one rule by its neighbour.
NEIGHBOURS: dict[str, list[str]] = {
    "cookie_refused": ["hello_refused"],
    "version_refused": ["hello_refused"],
    "worker_error": ["message_unknown_stream"],
    "handshake_inconsistent": ["cookie_refused"],
    "error_not_signalled": ["message_unknown_stream"],
}


def captured(talks: Talks, late: bool) -> list[CapturedPacket]:
    """Connections one after another; `late`: what comes before the last NOTIFY of a talk was not captured."""
    now = 1000 * SECOND
    made = []
    for place, talk in enumerate(talks):
        opened, events = now, list[Event]()
        for step in talk:
            now += step.after_ns
            if isinstance(step, End):
                events.append(Close(now, step.by, step.ending))
            else:
                events.append(Send(now, step.side, step.data))
        from_ns = opened + 3 * SECOND // 100 + 1 if late else 0
        ends = Endpoint("10.0.0.1", 40_000 + place), Endpoint("10.0.0.2", PORT)
        made.append(packets(Conversation(*ends, opened, events, captured_from_ns=from_ns)))
    return list(merge(made))


def broken(case: Talk | Talks, *, late: bool = False) -> Counter[tuple[str, str]]:
    """Severities and names of the rules that are broken."""
    talks = tuple(talk for talk in case if not isinstance(talk, Say | End))
    steps = tuple(step for step in case if isinstance(step, Say | End))
    rows = inspect(landed_packets(captured(talks or (steps,), late)), PORT)
    told = [(row["severity"], row["rule"].removeprefix("wallaroo.")) for kind, row in rows if kind == VIOLATION]
    return Counter(each for each in told if not each[1].startswith("capture."))


def severe(found: Counter[tuple[str, str]]) -> list[str]:
    return sorted(name for severity, name in found.elements() if severity != "note")


def test_each_rule_has_its_edge() -> None:
    assert CASES.keys() == RULE.keys()


@pytest.mark.parametrize("name", CASES)
def test_a_rule_is_kept_at_its_edge_and_broken_one_step_further(name: str) -> None:
    kept, wrong = CASES[name]
    at_edge = broken(kept)
    assert name not in {rule for _, rule in at_edge}
    assert severe(at_edge) == NEIGHBOURS.get(name, [])
    beyond = broken(wrong, late=name == "no_handshake_seen")
    assert beyond[RULE[name].severity.value, name] == 1
    assert [rule for rule in severe(beyond) if rule != name] == BESIDES.get(name, [])


def test_a_connector_that_resets_knew_what_its_last_bytes_acknowledge() -> None:
    asked, name = (*T_OPEN, t_nack(1)), "nack_not_answered"
    assert name in severe(broken((*asked, BYE)))
    assert name in severe(broken((*asked, t_message(2), End(Ending.RESET))))
    assert name not in severe(broken((*asked, End(Ending.RESET))))


#: Each sends ids of which the last one is not the highest, 20.
FALLING: dict[str, Talk] = {
    "ids in any order": (*T_OPEN, t_message(20), t_message(10), BYE),
    "a NACK": (*T_OPEN, *map(t_message, range(2, 21)), t_nack(1), t_notify(reference=1), t_message(2), BYE),
    "all at once": (*T_OPEN, Say(C, b"".join(t_message(n).data for n in [*range(2, 21), 10])), BYE),
}


@pytest.mark.parametrize("earlier", FALLING)
@pytest.mark.parametrize(("acked", "found"), [(20, []), (21, ["ack_never_sent"])])
def test_a_later_session_may_ack_up_to_the_highest_id_of_an_earlier_one(
    earlier: str, acked: int, found: list[str]
) -> None:
    opened = (t_hello(), t_ok((1, 1)), t_notify(reference=1), t_message(30))
    assert severe(broken((FALLING[earlier], (*opened, t_ack(1, (1, 30)), t_ack(1, (1, acked)), BYE)))) == found


#: Each side says something for longer than reassembly holds what the other seems not to have said.
LONG: list[Talk] = [
    (*OPEN, *(said for n in range(1, 80) for said in (message(n), ack(1, (1, n)))), BYE),
    (*T_OPEN, *(said for n in range(2, 80) for said in (t_message(n), t_ack(1, (1, n)))), BYE),
]


@pytest.mark.parametrize("begin", range(4))
@pytest.mark.parametrize("ahead_ns", [-3 * SECOND, -SECOND, SECOND, 3 * SECOND])
@pytest.mark.parametrize("talk", LONG)
def test_taps_of_two_clocks_that_begin_late_show_nobody_breaking_a_rule(talk: Talk, ahead_ns: int, begin: int) -> None:
    """A tap at each side; the worker's has another clock. They lack the first packets."""
    sent = captured((talk,), late=False)[begin:]
    rows = inspect(landed_packets(taps.captured(sent, {PORT}, taps.Tap(server_late_ns=-ahead_ns))), PORT)
    told = [row["rule"] for kind, row in rows if kind == VIOLATION and row["severity"] != "note"]
    assert [rule for rule in told if not rule.startswith("capture.")] == []


def test_a_second_hello_is_found_where_the_first_was_not_captured() -> None:
    assert severe(broken((*OPEN, message(1), hello(), BYE), late=True)) == ["duplicate_hello"]


#: Of a stream that was reset: what it sends again, and how that is acked.
BACK_TO_0: Talk = (*T_OPEN, t_message(2), t_nack(0), t_notify(), t_message(1))
ACKED: Talk = (t_ack(1, (1, 1)), t_ack(1, (1, 2)), BYE)


@pytest.mark.parametrize(
    ("before", "missed", "after", "rules"),
    [
        (BACK_TO_0, t_message(2, rest=b"again"), ACKED, []),
        (BACK_TO_0, None, ACKED, ["ack_goes_back"]),
        # What came after the hole was not sent again in it.
        (T_OPEN, t_message(9), (t_message(2), t_message(1), *ACKED), ["ack_goes_back"]),
    ],
)
def test_an_id_may_have_been_sent_again_where_the_capture_has_a_hole(
    before: Talk, missed: Say | None, after: Talk, rules: list[str]
) -> None:
    sent = captured(((*before, *([] if missed is None else [missed]), *after),), late=False)
    seen = [packet for packet in sent if missed is None or missed.data not in packet.data]
    assert len(sent) - len(seen) == (missed is not None)
    told = [row["rule"] for kind, row in inspect(landed_packets(seen), PORT) if kind == VIOLATION]
    assert [rule for rule in told if rule.startswith("wallaroo.ack")] == [f"wallaroo.{rule}" for rule in rules]


#: Of an instance that sent ids up to 20 on an earlier connection, and a session in which the worker acks the last one.
SENT_20: Talk = (*T_OPEN, t_message(20))
ACKS_20: Talk = (
    *(t_hello(), t_ok((1, 1)), t_notify(reference=1), t_message(30)),
    *(t_ack(1, (1, 30)), t_ack(1, (1, 20)), BYE),
)


def test_the_earlier_session_may_go_on_when_the_later_one_ends() -> None:
    """The connector's host died: nothing closed its connection."""
    assert severe(broken((SENT_20, ACKS_20))) == []
    assert severe(broken(((*T_OPEN, BYE), ACKS_20))) == ["ack_never_sent"]
    # Also for other sessions it isn't known what came of it.
    assert severe(broken((SENT_20, (*T_OPEN, BYE), ACKS_20))) == []
    assert severe(broken((T_OPEN, (*T_OPEN, BYE), ACKS_20))) == []


#: What an instance sent on an earlier connection; the last id is no stable reference.
FLAGGED: Talk = (*T_OPEN, t_message(2, UNSTABLE), t_ack(1, (1, 1)))
#: How the worker points at an id in a later session of it.
POINTS: dict[str, Callable[[int], Talk]] = {
    "OK": lambda at: (t_hello(), t_ok((1, at)), t_notify(reference=at)),
    "ACK": lambda at: (t_hello(), t_ok((1, 1)), t_notify(reference=1), t_ack(1, (1, at))),
    "NACK": lambda at: (t_hello(), t_ok((1, 1)), t_notify(reference=1), t_nack(at)),
}
UNSTABLE_FOUND = ("note", "reference_unstable")


def unstable(*talks: Talk) -> int:
    return broken(talks)[UNSTABLE_FOUND]


@pytest.mark.parametrize("frame", POINTS)
def test_a_reference_may_be_to_what_an_earlier_session_flagged(frame: str) -> None:
    points = POINTS[frame]
    assert unstable((*FLAGGED, BYE), (*points(2), t_message(3), BYE)) == 1
    # Sessions between that send nothing of the stream change nothing.
    assert unstable((*FLAGGED, BYE), (t_hello(), t_ok(), BYE), (*points(2), BYE)) == 1
    # Ids that weren't flagged, of no stream, of another stream and of another instance.
    assert unstable((*FLAGGED, BYE), (*points(1), BYE)) == 0
    assert unstable((*T_OPEN, t_notify(2), t_message(2, UNSTABLE, stream=2), BYE), (*points(2), BYE)) == 0
    assert unstable((t_hello(b"other"), *FLAGGED[1:], BYE), (*points(2), BYE)) == 0
    # The earlier session may have sent it again after all that is known.
    assert unstable(FLAGGED, (*points(2), BYE)) == 0
    # A session since then has sent it again as a stable one, or only others.
    again = (t_hello(), t_ok((1, 1)), t_notify(reference=1))
    assert unstable((*FLAGGED, BYE), (*again, t_message(2), BYE), (*points(2), BYE)) == 0
    assert unstable((*FLAGGED, BYE), (*again, t_message(2, UNSTABLE), BYE), (*points(2), BYE)) == 1


def test_an_ephemeral_id_says_nothing_in_another_session() -> None:
    sent = (*T_OPEN, t_message(2, EPHEMERAL), BYE)
    assert unstable(sent, (*POINTS["OK"](2), BYE)) == 0
    assert unstable((*T_OPEN, t_message(2, EPHEMERAL), t_ack(1, (1, 2)), BYE)) == 1


def test_an_id_that_was_also_sent_as_a_stable_one_is_stable() -> None:
    """The ACK may be about either."""
    for flags in ((0, UNSTABLE), (UNSTABLE, 0)):
        twice = (*T_OPEN, t_message(2, flags[0]), t_nack(1), t_notify(reference=1), t_message(2, flags[1]))
        assert unstable((*twice, t_ack(1, (1, 2)), BYE)) == 0
        assert unstable((*twice, BYE), (*POINTS["OK"](2), BYE)) == 0
    again = (t_message(2, UNSTABLE), t_nack(1), t_notify(reference=1), t_message(2, UNSTABLE))
    assert unstable((*T_OPEN, *again, t_ack(1, (1, 2)), BYE)) == 1


def test_reference_0_may_be_none() -> None:
    sent = (t_hello(), t_ok(), t_notify(), t_message(0, UNSTABLE))
    assert unstable((*sent, t_nack(0), t_notify(), BYE)) == 0
    assert unstable((*sent, BYE), (*POINTS["OK"](0), BYE)) == 0
    assert unstable((*sent, t_ack(1, (1, 0)), BYE)) == 1


def test_a_later_message_may_have_been_sent_again_in_a_hole() -> None:
    missed = t_message(2, rest=b"again")
    for seen, found in ((True, 1), (False, 0)):
        again = [] if seen else [missed]
        talk = (*T_OPEN, t_message(2, UNSTABLE), *again, t_message(3), t_ack(1, (1, 2)), BYE)
        left = [packet for packet in captured((talk,), late=False) if missed.data not in packet.data]
        rows = inspect(landed_packets(left), PORT)
        told = [row["rule"] for kind, row in rows if kind == VIOLATION]
        assert told.count("wallaroo.reference_unstable") == found
