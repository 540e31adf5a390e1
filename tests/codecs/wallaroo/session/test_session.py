"""The session layer: both tables walked exhaustively, and every rule broken by a dialogue made for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.carried import as_text, carry
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.events import End
from wirehouse_codecs.wallaroo.dialects import DIALECTS, NOTHING_SEEN
from wirehouse_codecs.wallaroo.frames import (
    Ack,
    EosMessage,
    Error,
    Frame,
    Hello,
    Message,
    Nack,
    Notify,
    NotifyAck,
    Ok,
    Restart,
    StreamMessage,
    StreamReference,
    WorkersLeft,
)
from wirehouse_codecs.wallaroo.options import WallarooOptions
from wirehouse_codecs.wallaroo.rules import ALSO_OF_A_SESSION, ENDS, FRAME_RULES, JUDGED_AFTER_END, RULE, SET_RULES
from wirehouse_codecs.wallaroo.session.outcome import Found, Kind, Outcome, State
from wirehouse_codecs.wallaroo.session.session import Session
from wirehouse_codecs.wallaroo.session.streams import (
    KEPT_ASKED,
    STREAM_TRANSITIONS,
    AckVerdict,
    Action,
    Stream,
    StreamState,
)
from wirehouse_codecs.wallaroo.session.transitions import TRANSITIONS, unlisted
from wirehouse_codecs.wallaroo.wire.messages import Decoded, decode, encode_body
from wirehouse_codecs.wallaroo.wire.reader_state import Received

C, S = Direction.CLIENT, Direction.SERVER
Opens = Callable[..., Any]
Messages = Callable[..., Message]
Acks = Callable[..., Ack]
Greetings = Callable[..., Hello]


# The connection's table


FRAMES: dict[Kind, Frame] = {
    Kind.HELLO: Hello(b"0.0.1", b"c", b"p", b"i"),
    Kind.OK: Ok(10),
    Kind.ERROR: Error(b"no"),
    Kind.NOTIFY: Notify(9, b"nine"),
    Kind.NOTIFY_ACK: NotifyAck(1, 1, 0),
    Kind.MESSAGE: Message(1, 5, None, 0),
    Kind.ACK: Ack(1),
    Kind.NACK: Nack(1, 1, 0),
    Kind.RESTART: Restart(b""),
    Kind.EOS_MESSAGE: EosMessage(1),
    Kind.WORKERS_LEFT: WorkersLeft(1),
}
#: What leads to each state that a frame can arrive in.
WAYS: dict[State, list[tuple[Direction, Frame]]] = {
    State.CONNECTED: [],
    State.HANDSHAKE: [(C, FRAMES[Kind.HELLO])],
    State.STREAMING: [(C, FRAMES[Kind.HELLO]), (S, Ok(10)), (C, Notify(1, b"s")), (S, NotifyAck(1, 1, 0))],
    State.RESTARTED: [(C, FRAMES[Kind.HELLO]), (S, Ok(10)), (S, Restart(b""))],
    State.ENDED: [(C, FRAMES[Kind.HELLO]), (C, FRAMES[Kind.HELLO])],
    State.ERROR: [(C, FRAMES[Kind.HELLO]), (S, Error(b"no"))],
}


def session_in(state: State) -> Session:
    session = Session(DIALECTS["v3"], WallarooOptions())
    for at, (direction, frame) in enumerate(WAYS[state]):
        session.receive(received(direction, frame, at))
    assert session.memory.state is state
    return session


def received(direction: Direction, frame: Frame, at: int) -> Received:
    return Received(direction, Place(at, 0, b"", at), at, at + 1, Decoded(frame))


@pytest.mark.parametrize("kind", FRAMES, ids=lambda kind: kind.name)
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("state", WAYS, ids=lambda state: state.name)
def test_a_frame_leads_where_the_table_says_or_breaks_the_rule_of_its_pair(
    state: State, direction: Direction, kind: Kind
) -> None:
    session = session_in(state)
    outcome = session.receive(received(direction, FRAMES[kind], 90))
    found = [finding.rule.name for finding in outcome.findings]
    step = TRANSITIONS.get((state, direction, kind))
    refused = {"cookie_refused", "version_refused", None if step is None else step.rule}
    ended = any(name in ENDS for name in found if name not in refused)
    if step is None:
        rule = unlisted(state, direction, kind)
        assert rule is not None
        assert found == [rule]
        assert rule in ENDS
        assert outcome.state is State.ENDED
    elif ended:
        # A stream's rule: the connection's table allows the frame.
        assert state in (State.STREAMING, State.HANDSHAKE)
        assert outcome.state is State.ENDED
    else:
        assert outcome.state is step.state
        assert step.rule is None or step.rule in found


def test_only_the_disconnected_state_has_no_rule_for_an_unlisted_pair() -> None:
    for state, direction, kind in itertools.product(State, Direction, FRAMES):
        if (state, direction, kind) not in TRANSITIONS:
            assert (unlisted(state, direction, kind) is None) == (state is State.DISCONNECTED)
    assert {state for state, _, _ in TRANSITIONS} == set(State) - {State.DISCONNECTED}


# The stream's table


def stream_in(state: StreamState, nacks: int, waiting: int) -> Stream:
    return Stream(state=state, nacks=nacks, waiting=waiting, notified=state is not StreamState.INTRO)


def test_every_action_is_told_of_in_every_state() -> None:
    assert set(STREAM_TRANSITIONS) == set(itertools.product(StreamState, Action))


@pytest.mark.parametrize("action", Action)
@pytest.mark.parametrize("state", StreamState)
def test_an_action_leads_where_the_table_says_with_every_outcome_of_its_guard(
    state: StreamState, action: Action
) -> None:
    step = STREAM_TRANSITIONS[state, action]
    after = set()
    for nacks, waiting in itertools.product(range(3), range(3)):
        stream = stream_in(state, nacks, waiting)
        taken = stream.act(action)
        if action in (Action.ACCEPTED, Action.REFUSED) and not waiting:
            assert (taken.rule, stream.state) == ("notify_ack_unasked", state)
            continue
        assert taken == step
        owed = stream.waiting if state is StreamState.PENDING else stream.nacks
        assert stream.state is (step.state if owed else step.settled)
        after.add(stream.state)
        assert stream.nacks == {Action.NACK: nacks + 1, Action.NOTIFY: max(0, nacks - 1)}.get(action, nacks)
    assert after == {step.state, step.settled}


def test_rules_and_reasons_of_the_stream_table_are_of_the_list() -> None:
    assert {step.rule for step in STREAM_TRANSITIONS.values() if step.rule} <= set(RULE)


# Every rule, broken


RULES_BROKEN: dict[str, Callable[..., None]] = {}


def breaks(*rules: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def note(test: Callable[..., None]) -> Callable[..., None]:
        for rule in rules:
            RULES_BROKEN[rule] = test
        return test

    return note


SEEDS = ("seed", "seed_sid")
V2 = ("v2a", "v2b")
IMPLEMENTED = (*V2, "v3")
SOURCES = (*SEEDS, *IMPLEMENTED)


@breaks("empty_frame", "oversize_frame", "unknown_frame_type", "malformed_frame")
@pytest.mark.parametrize("rule", ["empty_frame", "oversize_frame", "unknown_frame_type", "malformed_frame"])
def test_bytes_that_are_no_frame_end_the_session(rule: str, dialogue: Opens, msg: Messages) -> None:
    told = dialogue("v3").opened(1).undecodable(C, rule).c(msg("v3", 77, 1))
    assert told.found == [rule]
    assert told.ignored[-1] == "after_violation"
    assert told.session.memory.ended_by == rule


@breaks("trailing_bytes")
def test_trailing_bytes_go_on(dialogue: Opens) -> None:
    told = dialogue("v3").opened(1).c(encode_body(Notify(2, b"two"), DIALECTS["v3"]) + b"\0").w(NotifyAck(1, 2, 0))
    assert told.found == ["trailing_bytes"]
    assert told.session.memory.streams[2].state is StreamState.OPEN


@breaks("dialect_unsupported")
def test_a_draft_is_noted(dialogue: Opens) -> None:
    assert dialogue("v3").undecodable(C, "dialect_unsupported").found == ["dialect_unsupported"]


@breaks("truncated_frame", "capture_ends_early")
def test_a_frame_cut_by_the_close_and_a_capture_that_stops(dialogue: Opens) -> None:
    told = dialogue("v3").opened(1).undecodable(C, "truncated_frame").end()
    assert told.found == ["truncated_frame"]
    # After an ERROR an unfinished frame is none that could be judged.
    cut = dialogue("v3").opened(1).c(Error(b"no")).undecodable(C, "truncated_frame").end()
    assert cut.found == ["connector_error"]
    assert dialogue("v3").opened(1).end(End.CAPTURE_END).found == ["capture_ends_early"]
    assert dialogue("v3").opened(1).end(End.RESET).found == []


@breaks("no_handshake_seen")
@pytest.mark.parametrize("name", SOURCES)
def test_a_late_start_is_noted_and_forgives_what_it_cannot_know(
    name: str, dialogue: Opens, msg: Messages, acked: Acks, greeting: Greetings
) -> None:
    told = dialogue(name, started_late=True).c(msg(name, 1, 5)).w(acked(3, (1, 4))).c(msg(name, 1, 6)).end()
    assert told.found == ["no_handshake_seen"]
    assert told.session.memory.credits is None
    late = dialogue(name, started_late=True)
    assert late.opened(1).c(msg(name, 1, 5)).end().found == []
    assert late.session.memory.credits == 98
    # The worker's first frames may have been passed over, as no row of them was long enough to be sure of a start.
    unanswered = dialogue(name, started_late=True).c(greeting(name), Notify(1, b"s"), msg(name, 1, 5))
    assert unanswered.found == []
    ok_first = dialogue(name, started_late=True).w(Ok(5))
    assert (ok_first.found, ok_first.session.memory.credits) == (["no_handshake_seen"], 5)


@breaks("frame_before_hello")
@pytest.mark.parametrize("name", SOURCES)
def test_frame_before_hello(name: str, dialogue: Opens, acked: Acks) -> None:
    assert dialogue(name).c(Notify(1, b"s")).w(Error(b"no")).end().found == ["frame_before_hello"]
    assert dialogue(name).c(acked(1)).found == ["frame_before_hello"]


@pytest.mark.parametrize("name", [*SOURCES, "sink"])
def test_what_a_worker_says_before_hello_is_found_and_breaks_nothing_else(
    name: str, dialogue: Opens, msg: Messages, acked: Acks, greeting: Greetings
) -> None:
    rule = ["frame_before_hello"]
    own: dict[str, list[Frame]] = {"v2a": [Restart()], "v2b": [Restart(b"")], "v3": [Restart(b""), WorkersLeft(1)]}
    own |= {key: [Nack(1, 1, 0)] for key in SEEDS}
    if name in IMPLEMENTED:
        own[name].append(NotifyAck(1, 1, 0))
    for early in (acked(5), *own.get(name, [])):
        told = dialogue(name).w(early)
        assert told.found == rule
        assert told.session.memory.state is State.CONNECTED
        told.opened(1).c(*[msg(name, 1, 1)] * (name != "sink")).wait(9).w(acked(1))
        assert told.found == rule
    # The ERROR is legal.
    assert dialogue(name).w(Error(b"no")).found == ["worker_error"]


@pytest.mark.parametrize("name", SOURCES)
def test_an_ok_before_hello_is_found_once(name: str, dialogue: Opens, msg: Messages, greeting: Greetings) -> None:
    told = dialogue(name).w(Ok(9)).c(greeting(name), Notify(1, b"s"))
    assert told.found == ["frame_before_hello"]
    assert (told.session.memory.state, told.session.memory.credits) == (State.STREAMING, 8)
    again = dialogue(name).w(Ok(9)).opened(1)
    assert again.found == ["frame_before_hello"]
    assert dialogue(name).c(greeting(name)).w(Ok(9), Ok(9)).found == ["duplicate_ok"]


def test_the_text_has_no_workers_left_in_the_handshake(dialogue: Opens, greeting: Greetings) -> None:
    assert dialogue("v3").c(greeting("v3"), WorkersLeft(1)).found == ["frame_before_ok"]
    assert dialogue("v3").c(greeting("v3")).w(WorkersLeft(1)).found == ["frame_before_ok"]
    assert dialogue("v3").opened(1).c(WorkersLeft(1)).w(WorkersLeft(1)).found == []


@breaks("duplicate_hello")
@pytest.mark.parametrize("name", [*SOURCES, "sink"])
def test_duplicate_hello(name: str, dialogue: Opens, greeting: Greetings) -> None:
    assert dialogue(name).c(greeting(name), greeting(name)).found == ["duplicate_hello"]
    assert dialogue(name).c(greeting(name)).w(Ok(1)).c(greeting(name)).end().found == ["duplicate_hello"]


@breaks("cookie_refused", "version_refused", "hello_refused")
@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (b"bad Cookie, wrong version", "cookie_refused"),
        (b"VERSION mismatch", "version_refused"),
        (b"go away", "hello_refused"),
    ],
)
def test_a_refused_hello_is_found_at_the_hello(text: bytes, rule: str, dialogue: Opens, greeting: Greetings) -> None:
    told = dialogue("v3").c(greeting("v3")).w(Error(text)).end()
    assert told.found == [rule]
    where = told.findings[0].where
    assert where is not None
    assert (where.direction, where.byte_start) == (C, 0)
    assert "monster" not in as_text(told.session.memory)
    assert told.session.memory.cookie_digest == b"hash"


@breaks("wrong_direction")
@pytest.mark.parametrize("name", SOURCES)
def test_wrong_direction(name: str, dialogue: Opens, msg: Messages, acked: Acks) -> None:
    assert dialogue(name).opened(1).c(acked(1)).found == ["wrong_direction"]
    assert dialogue(name).opened(1).c(Ok(1)).found == ["wrong_direction"]
    assert dialogue(name).opened(1).w(msg(name, 1, 1)).found == ["wrong_direction"]
    assert dialogue(name).opened(1).w(Notify(2, b"two")).found == ["wrong_direction"]


@breaks("message_unknown_stream")
@pytest.mark.parametrize("name", SOURCES)
def test_message_unknown_stream(name: str, dialogue: Opens, msg: Messages) -> None:
    told = dialogue(name).opened().c(msg(name, 1, 1)).w(Error(b"stream not open")).end()
    assert told.found == ["message_unknown_stream"]
    if name in IMPLEMENTED:
        refused = dialogue(name).opened().c(Notify(1, b"s")).w(NotifyAck(0, 1, 0)).c(msg(name, 1, 1))
        assert refused.found == ["notify_refused", "message_unknown_stream"]


@breaks("message_before_notify_ack")
@pytest.mark.parametrize("name", IMPLEMENTED)
def test_message_before_notify_ack(name: str, dialogue: Opens, msg: Messages) -> None:
    told = dialogue(name).opened().c(Notify(1, b"s"), msg(name, 1, 1))
    assert told.found == ["message_before_notify_ack"]
    assert told.end().found == ["message_before_notify_ack"]


@breaks("message_closed_stream")
@pytest.mark.parametrize("name", SOURCES)
def test_message_closed_stream(name: str, dialogue: Opens, msg: Messages) -> None:
    told = dialogue(name).opened(1)
    told.c(EosMessage(1) if name == "v3" else msg(name, 1, 1, 4))
    assert told.session.memory.streams[1].state is StreamState.CLOSED
    assert told.c(msg(name, 1, 2)).found == ["message_closed_stream"]


@breaks("eos_unknown_stream")
def test_eos_unknown_stream(dialogue: Opens) -> None:
    rule = ["eos_unknown_stream"]
    assert dialogue("v3").opened().c(EosMessage(1)).found == rule
    assert dialogue("v3").opened().c(Notify(1, b"s"), EosMessage(1)).found == rule
    assert dialogue("v3").opened(1).c(EosMessage(1), EosMessage(1)).found == rule
    assert dialogue("v3").opened().c(Notify(1, b"s")).w(NotifyAck(0, 1, 0)).c(EosMessage(1)).rules == rule


@breaks("flags_not_allowed", "reserved_flags_set")
@pytest.mark.parametrize("name", V2)
def test_all_flags_of_v2_as_the_reference_has_them(name: str, dialogue: Opens, msg: Messages) -> None:
    for flags in range(64):
        forbidden = any(flags & one and flags & other for one, other in [(1, 2), (1, 8), (2, 8), (2, 32)])
        told = dialogue(name).opened(1).c(msg(name, 1, 5, flags))
        assert told.found == ["flags_not_allowed"] * forbidden
    for flags in (64, 128, 192):
        told = dialogue(name).opened(1).c(msg(name, 1, 5, flags), msg(name, 1, 6))
        assert told.found == ["reserved_flags_set"]


@pytest.mark.parametrize("name", SEEDS)
def test_all_flags_of_the_text(name: str, dialogue: Opens, msg: Messages) -> None:
    for flags in range(32):
        assert dialogue(name).opened(1).c(msg(name, 1, 5, flags)).found == []
    for bit in range(5, 16):
        told = dialogue(name).opened(1).c(msg(name, 1, 5, 1 << bit), msg(name, 1, 6))
        assert told.found == ["reserved_flags_set"]


@breaks("credits_overdrawn")
@pytest.mark.parametrize("name", SOURCES)
def test_credits_overdrawn(name: str, dialogue: Opens, msg: Messages, acked: Acks) -> None:
    told = dialogue(name).opened(1, granted=3).c(*[msg(name, 1, n) for n in (1, 2)])
    assert (told.found, told.session.memory.credits) == ([], 0)
    told.c(msg(name, 1, 3), Notify(2, b"two"))
    assert (told.found, told.session.memory.credits) == (["credits_overdrawn"] * 2, -2)
    told.w(acked(3))
    assert told.session.memory.credits == 1
    assert told.c(Notify(3, b"three")).rules == []


def test_eos_messages_take_no_credit_of_the_connector(dialogue: Opens) -> None:
    told = dialogue("v3").opened(1, granted=1).c(EosMessage(1))
    assert (told.found, told.session.memory.credits, told.session.memory.eos_messages) == ([], 0, 1)


@breaks("connector_error", "worker_error")
@pytest.mark.parametrize("name", SOURCES)
def test_errors_at_any_time(name: str, dialogue: Opens, greeting: Greetings) -> None:
    assert dialogue(name).c(Error(b"no")).end().found == ["connector_error"]
    assert dialogue(name).w(Error(b"no")).end().found == ["worker_error"]
    assert dialogue(name).c(greeting(name), Error(b"cookie")).end().found == ["connector_error"]
    assert dialogue(name).opened(1).c(Error(b"no")).end().found == ["connector_error"]
    assert dialogue(name).opened(1).w(Error(b"the cookie")).end().found == ["worker_error"]


@breaks("frame_before_ok")
@pytest.mark.parametrize("name", SOURCES)
def test_frame_before_ok(name: str, dialogue: Opens, greeting: Greetings, acked: Acks) -> None:
    told = dialogue(name).c(greeting(name), Notify(1, b"s")).w(acked(1)).w(Ok(5))
    assert told.found == ["frame_before_ok"] * 2
    assert told.session.memory.state is State.STREAMING
    assert 1 in told.session.memory.streams


@breaks("duplicate_ok", "zero_initial_credits")
@pytest.mark.parametrize("name", [*SOURCES, "sink"])
def test_a_second_ok_grants_nothing_and_the_first_should(name: str, dialogue: Opens, greeting: Greetings) -> None:
    told = dialogue(name).c(greeting(name)).w(Ok(0)).w(Ok(5))
    assert told.found == ["zero_initial_credits", "duplicate_ok"]
    assert told.session.memory.credits == 0


@breaks("frame_after_error", "message_ignored")
def test_frames_after_an_error_are_kept_and_ignored(dialogue: Opens, msg: Messages, acked: Acks) -> None:
    told = dialogue("v3").opened(1).w(Error(b"no")).w(acked(1)).c(msg("v3", 1, 1), Error(b"yes"), msg("v3", 1, 2))
    assert told.found == [
        "worker_error",
        "frame_after_error",
        "message_ignored",
        "message_ignored",
        "frame_after_error",
    ]
    assert told.ignored[-4:] == ["after_error"] * 4
    assert told.end().rules == []


@breaks("hello_not_answered")
@pytest.mark.parametrize("name", [*SOURCES, "sink"])
def test_hello_not_answered(name: str, dialogue: Opens, greeting: Greetings) -> None:
    assert dialogue(name).c(greeting(name)).end().found == ["hello_not_answered"]
    assert dialogue(name).c(greeting(name)).end(End.RESET).found == []


@breaks("error_not_signalled")
def test_error_not_signalled(dialogue: Opens, msg: Messages, acked: Acks) -> None:
    broken = dialogue("v3").opened().c(msg("v3", 1, 5))
    assert broken.w(acked(5)).wait(4).c(msg("v3", 1, 6)).found == ["message_unknown_stream"]
    assert broken.wait(2).c(msg("v3", 1, 7)).rules == ["error_not_signalled"]
    assert broken.c(msg("v3", 1, 8)).rules == []
    asked = dialogue("v3").opened().c(msg("v3", 1, 5)).w(acked(5, (1, 5)))
    assert asked.rules == ["error_not_signalled"]
    told = dialogue("v3").opened().c(msg("v3", 1, 5)).w(Error(b"no")).wait(4).end()
    assert told.found == ["message_unknown_stream"]


def test_a_worker_that_acks_what_broke_a_rule_has_not_signalled_it(dialogue: Opens, msg: Messages, acked: Acks) -> None:
    # The text's MESSAGE names no stream, so the id alone tells.
    for name in SEEDS:
        told = dialogue(name).opened().c(msg(name, 1, 5))
        assert told.w(acked(1, (1, 4))).rules == []
        assert told.w(acked(1, (1, 5))).rules == ["error_not_signalled"]
    # An id that was sent before the rule was broken is acked for that.
    for name in SOURCES:
        told = dialogue(name).opened(1).c(msg(name, 1, 5))
        told.c(EosMessage(1) if name == "v3" else msg(name, 1, 6, 4)).c(msg(name, 1, 5))
        assert told.rules == ["message_closed_stream"]
        assert told.w(acked(1, (1, 5))).rules == []


@pytest.mark.parametrize("name", IMPLEMENTED)
def test_a_worker_that_answers_a_notify_before_hello_goes_on(
    name: str, dialogue: Opens, msg: Messages, acked: Acks
) -> None:
    told = dialogue(name).c(Notify(3, b"s3")).w(NotifyAck(1, 3, 0))
    assert told.found == ["frame_before_hello", "error_not_signalled"]
    # It is found once.
    assert told.c(msg(name, 3, 8)).w(acked(1, (3, 8))).wait(6).c(msg(name, 3, 9)).end().rules == []
    assert told.found == ["frame_before_hello", "error_not_signalled"]
    refused = dialogue(name).c(Notify(3, b"s3")).w(NotifyAck(0, 3, 0))
    assert refused.rules == ["error_not_signalled"]
    # An answer that was sent before the NOTIFY was there, or is about another stream, answers something else.
    assert dialogue(name).c(Notify(3, b"s3")).hears(S, 1).w(NotifyAck(1, 3, 0)).found == ["frame_before_hello"]
    assert dialogue(name).c(Notify(3, b"s3")).w(NotifyAck(1, 4, 0)).found == ["frame_before_hello"]


@pytest.mark.parametrize("name", IMPLEMENTED)
def test_the_answer_to_a_notify_from_before_a_broken_rule_is_owed(name: str, dialogue: Opens, msg: Messages) -> None:
    told = dialogue(name).opened(1).c(Notify(2, b"s2"), msg(name, 9, 5)).w(NotifyAck(1, 2, 0))
    assert told.found == ["message_unknown_stream"]
    again = dialogue(name).opened(1).c(msg(name, 9, 5), Notify(2, b"s2"))
    assert again.w(NotifyAck(1, 2, 0)).rules == ["error_not_signalled"]


@pytest.mark.parametrize("name", [*SOURCES, "sink"])
def test_a_worker_that_answers_a_second_hello_goes_on(name: str, dialogue: Opens, greeting: Greetings) -> None:
    hello = greeting(name)
    assert dialogue(name).c(hello).w(Ok(7)).c(hello).w(Ok(7)).found == ["duplicate_hello", "error_not_signalled"]
    # The first OK is that of the first HELLO.
    told = dialogue(name).c(hello, hello).w(Ok(7))
    assert told.found == ["duplicate_hello"]
    assert told.w(Ok(7)).rules == ["error_not_signalled"]
    crossing = dialogue(name).c(hello, hello).hears(S, 1).w(Ok(7)).hears(S, 0)
    assert crossing.w(Ok(7)).found == ["duplicate_hello", "error_not_signalled"]
    assert dialogue(name).c(hello).w(Ok(7)).c(hello).hears(S, 1).w(Ok(7)).found == ["duplicate_hello"]
    signalled = dialogue(name).c(hello).w(Ok(7)).c(hello).wait(1).w(Error(b"no")).end()
    assert signalled.found == ["duplicate_hello"]


@pytest.mark.parametrize("name", SOURCES)
def test_a_worker_that_answers_a_hello_after_a_broken_rule_goes_on(
    name: str, dialogue: Opens, greeting: Greetings, msg: Messages
) -> None:
    told = dialogue(name).c(msg(name, 1, 5))
    assert told.w(Ok(7)).found == ["frame_before_hello"]
    assert told.c(greeting(name)).w(Ok(7)).rules == ["error_not_signalled"]


@pytest.mark.parametrize("name", [*IMPLEMENTED, "seed_sid"])
def test_a_worker_that_acks_what_follows_a_broken_rule_goes_on(
    name: str, dialogue: Opens, msg: Messages, acked: Acks
) -> None:
    def told() -> Any:
        return dialogue(name).opened(1).c(msg(name, 1, 5), msg(name, 1, 6)).w(acked(1, (1, 5))).c(msg(name, 9, 1))

    told_later = told().c(msg(name, 1, 7)).w(acked(1, (1, 6)))
    assert told_later.found == ["message_unknown_stream"]
    assert told_later.w(acked(1, (1, 7))).rules == ["error_not_signalled"]
    # Credits alone, ids of before, and what the worker can't have received show nothing.
    assert told().c(msg(name, 1, 7)).w(acked(1), acked(1, (1, 8))).found == ["message_unknown_stream"]
    assert told().c(msg(name, 1, 6)).w(acked(1, (1, 6))).found == ["message_unknown_stream"]
    assert told().c(msg(name, 1, 7)).hears(S, 1).w(acked(1, (1, 7))).found == ["message_unknown_stream"]
    # What is missing may have had the message before.
    assert "error_not_signalled" not in told().hole(C).c(msg(name, 1, 7)).w(acked(1, (1, 7))).found


def test_an_ack_names_what_follows_a_broken_rule_by_its_id_alone_where_messages_have_no_stream(
    dialogue: Opens, greeting: Greetings, msg: Messages, acked: Acks
) -> None:
    def told(later: int) -> Any:
        first = dialogue("seed").opened(1).c(msg("seed", 1, 5), msg("seed", 1, 6)).w(acked(1, (1, 5)))
        return first.c(greeting("seed"), msg("seed", 1, later))

    assert told(7).w(acked(1, (1, 7))).found == ["duplicate_hello", "error_not_signalled"]
    assert told(6).w(acked(1, (1, 6))).found == ["duplicate_hello"]


def test_an_ack_after_a_broken_rule_may_be_about_an_earlier_session(
    dialogue: Opens, msg: Messages, acked: Acks
) -> None:
    given = dialogue("v3").opened().c(Notify(1, b"s1", 40)).w(NotifyAck(1, 1, 50)).c(msg("v3", 9, 1), msg("v3", 1, 50))
    assert given.w(acked(1, (1, 50))).found == ["message_unknown_stream"]
    # In the text a worker may go on acking what was sent before the reconnect.
    seed = dialogue("seed_sid").opened(1).c(msg("seed_sid", 9, 1), msg("seed_sid", 1, 50))
    assert seed.w(acked(1, (1, 50))).found == ["message_unknown_stream"]


def test_a_worker_that_acks_a_message_with_forbidden_flags_has_not_signalled_it(
    dialogue: Opens, msg: Messages, acked: Acks
) -> None:
    told = dialogue("v2b").opened(1).c(msg("v2b", 1, 5), msg("v2b", 1, 6, 2 | 32))
    assert told.w(acked(1, (1, 5))).found == ["flags_not_allowed"]
    assert told.w(acked(1, (1, 6))).rules == ["error_not_signalled"]


@breaks("not_closed_after_error")
def test_not_closed_after_error(dialogue: Opens) -> None:
    assert dialogue("v3").opened(1).w(Error(b"no")).wait(6).end().found == ["worker_error", "not_closed_after_error"]
    assert dialogue("v3").opened(1).w(Error(b"no")).wait(4).end().found == ["worker_error"]
    told = dialogue("v3", close_timeout_s=1).opened(1).c(Error(b"no")).pass_time(2)
    assert told.rules == ["not_closed_after_error"]
    assert told.pass_time(9).rules == []


@breaks("notify_open_stream")
@pytest.mark.parametrize("name", SEEDS)
def test_notify_open_stream(name: str, dialogue: Opens) -> None:
    assert dialogue(name).opened(1).c(Notify(1, b"s1")).found == ["notify_open_stream"]
    assert dialogue(name).opened(1).w(Nack(1, 1, 0)).c(Notify(1, b"s1")).found == []


@breaks("notify_reference_unexpected")
@pytest.mark.parametrize("name", SEEDS)
def test_notify_reference_unexpected(
    name: str, dialogue: Opens, msg: Messages, acked: Acks, greeting: Greetings
) -> None:
    rule = ["notify_reference_unexpected"]
    assert dialogue(name).opened().c(Notify(1, b"s", 5)).found == rule
    resumed = dialogue(name).c(greeting(name)).w(Ok(9, (StreamReference(1, 5),)))
    assert resumed.c(Notify(1, b"s", 5)).found == []
    told = dialogue(name).opened(1).c(*[msg(name, 1, n) for n in (3, 4, 5)]).w(acked(1, (1, 4))).w(Nack(1, 1, 3))
    assert told.c(Notify(1, b"s1", 3)).found == []
    told.w(Nack(1, 1, 3)).c(Notify(1, b"s1", 5))
    assert told.rules == rule


@pytest.mark.parametrize("name", SEEDS)
def test_a_notify_may_answer_any_nack_that_waits_for_one(name: str, dialogue: Opens, msg: Messages) -> None:
    rule = ["notify_reference_unexpected"]

    def asked(*references: int) -> Any:
        sent = dialogue(name).opened(1).c(*[msg(name, 1, n) for n in (2, 3, 4)])
        return sent.w(*[Nack(1, 1, reference) for reference in references])

    for order in itertools.permutations((2, 3, 4)):
        told = asked(2, 3, 4).c(*[Notify(1, b"s1", reference) for reference in order])
        assert told.found == []
        assert told.session.memory.streams[1].state is StreamState.OPEN
    # One that was answered waits no more, and neither do those of an earlier stack.
    assert asked(2, 3).c(Notify(1, b"s1", 2), Notify(1, b"s1", 2)).rules == rule
    assert asked(2).c(Notify(1, b"s1", 2)).w(Nack(1, 1, 3)).c(Notify(1, b"s1", 2)).rules == rule
    assert asked(2, 3).c(Notify(1, b"s1", 1)).rules == rule
    # Of more than are remembered any may be meant, until all are answered.
    many = asked(*[2] * 40).c(*[Notify(1, b"s1", 1)] * 40)
    assert many.found == []
    assert many.w(Nack(1, 1, 2)).c(Notify(1, b"s1", 1)).rules == rule


@breaks("stream_id_reused")
@pytest.mark.parametrize("name", SOURCES)
def test_stream_id_reused(name: str, dialogue: Opens) -> None:
    assert "stream_id_reused" in dialogue(name).opened(1).c(Notify(1, b"other")).found
    assert dialogue(name).opened(1).c(Notify(2, b"s1")).found == ["stream_id_reused"]


@pytest.mark.parametrize("name", V2)
def test_ok_and_notify_name_a_stream_alike(name: str, dialogue: Opens, greeting: Greetings) -> None:
    def resumed(*notifies: Notify) -> list[str]:
        told = dialogue(name).c(greeting(name)).w(Ok(9, (StreamReference(1, 5, b"one"), StreamReference(2, 0, b""))))
        return list(told.c(*notifies).found)

    assert resumed(Notify(1, b"one", 5), Notify(2, b"two"), Notify(3, b"three")) == []
    assert resumed(Notify(1, b"two", 5)) == ["stream_id_reused"]
    assert resumed(Notify(3, b"one", 5)) == ["stream_id_reused"]


@pytest.mark.parametrize("name", SEEDS)
def test_a_worker_of_the_text_may_ack_what_an_earlier_session_sent(
    name: str, dialogue: Opens, msg: Messages, acked: Acks
) -> None:
    told = dialogue(name).opened(1).w(acked(0, (1, 2))).c(msg(name, 1, 8)).w(acked(1, (1, 3)))
    assert told.found == []
    assert told.session.memory.streams[1].last_acked == 3
    # Not after it has acked what this one sent.
    assert told.w(acked(1, (1, 8)), acked(1, (1, 3))).rules == []
    assert [one.message_id for one in told.session.memory.unsent] == [3]


@breaks("ack_unknown_stream", "ack_goes_back")
@pytest.mark.parametrize("name", SOURCES)
def test_acks_of_what_was_not_sent(name: str, dialogue: Opens, msg: Messages, acked: Acks) -> None:
    told = dialogue(name).opened(1).c(*[msg(name, 1, n) for n in (3, 5, 7)])
    assert told.w(acked(1, (1, 5))).rules == []
    assert told.w(acked(1, (1, 3))).rules == ["ack_goes_back"]
    assert told.w(acked(1, (1, 6))).rules == []
    assert told.w(acked(1, (2, 6))).rules == ["ack_unknown_stream"]
    assert told.w(acked(1, (1, NOTHING_SEEN), (1, 7))).rules == []
    # Whether an earlier session sent them is judged when this one has ended.
    unsent = [6] if name == "v3" else [6, NOTHING_SEEN]
    restored = Session(told.session.memory.dialect, WallarooOptions(), state=carry(told.session.memory))
    for session in (told.session, restored):
        assert [(one.stream_id, one.message_id) for one in session.memory.unsent] == [(1, number) for number in unsent]


def test_acks_after_a_nack_or_of_a_resumed_stream_may_be_lower(dialogue: Opens, msg: Messages, acked: Acks) -> None:
    told = dialogue("seed_sid").opened(1).c(*[msg("seed_sid", 1, n) for n in (3, 5)]).w(acked(1, (1, 5)))
    told.w(Nack(1, 1, 3)).c(Notify(1, b"s1", 3)).w(acked(1, (1, 3)))
    assert told.found == []
    resumed = dialogue("v3").opened().c(Notify(1, b"s", 9)).w(NotifyAck(1, 1, 9)).w(acked(1, (1, 9), (1, 8)))
    assert resumed.found == []


@pytest.mark.parametrize("name", SOURCES)
def test_the_highest_number_is_an_id_like_others_but_in_v3(
    name: str, dialogue: Opens, msg: Messages, acked: Acks
) -> None:
    told = dialogue(name).opened(1).c(msg(name, 1, 1), msg(name, 1, NOTHING_SEEN)).w(acked(1, (1, NOTHING_SEEN)))
    assert told.found == []
    assert told.session.memory.streams[1].last_acked == (None if name == "v3" else NOTHING_SEEN)
    if name in SEEDS:
        assert dialogue(name).opened(1).w(Nack(1, 1, NOTHING_SEEN)).c(Notify(1, b"s1", 7)).rules != []


@pytest.mark.parametrize("name", SOURCES)
def test_an_ack_at_the_resume_point_is_the_last_one(
    name: str, dialogue: Opens, msg: Messages, acked: Acks, greeting: Greetings
) -> None:
    told = dialogue(name).c(greeting(name))
    told.w(Ok(9, (StreamReference(1, 50, b""),) if name in SEEDS else ())).c(Notify(1, b"s", 50))
    told.w(*[NotifyAck(1, 1, 50)] * (name in IMPLEMENTED)).w(acked(1, (1, 50)))
    assert told.found == []
    assert told.session.memory.streams[1].last_acked == 50
    assert told.c(msg(name, 1, 51)).w(acked(1, (1, 51)), acked(1, (1, 50))).session.memory.streams[1].last_acked == 51


def test_what_comes_before_ok_is_no_credit(dialogue: Opens, msg: Messages, acked: Acks, greeting: Greetings) -> None:
    told = dialogue("v3").c(greeting("v3"), Notify(1, b"s")).w(acked(7)).w(Ok(9)).c(Notify(2, b"t"))
    session = told.session
    assert (session.memory.granted, session.memory.spent, session.memory.credits) == (9, 1, 8)


def test_messages_count_also_if_they_are_ignored_or_break_a_rule(dialogue: Opens, msg: Messages) -> None:
    first, second = msg("v3", 1, 1), msg("v3", 1, 2)
    for last in (Restart(b""), Error(b"no")):
        told = dialogue("v3").opened(1).c(first).w(last).c(second, second)
        assert told.session.memory.streams[1].messages == 3
    closed = dialogue("v3").opened(1).c(first, EosMessage(1), second, second)
    assert closed.session.memory.streams[1].messages == 3
    assert closed.w(second).session.memory.streams[1].messages == 3


@breaks("message_never_acked")
@pytest.mark.parametrize("name", SOURCES)
def test_message_never_acked(name: str, dialogue: Opens, msg: Messages, acked: Acks) -> None:
    told = dialogue(name).opened(1).c(*[msg(name, 1, n) for n in (3, 5, 7)]).w(acked(1, (1, 3)))
    assert told.end().rules == ["message_never_acked"]
    assert "2 messages" in told.findings[-1].message
    assert "id 5" in told.findings[-1].message
    # A worker that keeps nothing for recovery never acks a stream.
    assert dialogue(name).opened(1).c(msg(name, 1, 3)).end().found == []


@pytest.mark.parametrize("name", SEEDS)
def test_what_was_acked_before_a_nack_stays_acked(name: str, dialogue: Opens, msg: Messages, acked: Acks) -> None:
    told = dialogue(name).opened(1).c(*[msg(name, 1, n) for n in (3, 5, 7)]).w(acked(1, (1, 5)), Nack(1, 1, 5))
    assert told.c(Notify(1, b"s1", 5)).end().found == ["message_never_acked"]
    assert "1 messages" in told.findings[-1].message
    told = dialogue(name).opened(1).c(*[msg(name, 1, n) for n in (3, 5)]).w(acked(1, (1, 5)), Nack(1, 1, 5))
    assert told.c(Notify(1, b"s1", 5)).end().found == []


@breaks("reference_unstable")
@pytest.mark.parametrize("name", SEEDS)
@pytest.mark.parametrize("flags", [1, 8])
def test_reference_unstable(name: str, flags: int, dialogue: Opens, msg: Messages, acked: Acks) -> None:
    sent = dialogue(name).opened(1).c(msg(name, 1, 3, flags))
    assert sent.w(acked(1, (1, 3))).found == ["reference_unstable"]
    assert dialogue(name).opened(1).c(msg(name, 1, 3, flags)).w(Nack(1, 1, 3)).found == ["reference_unstable"]
    v2 = dialogue("v2b").opened(1).c(msg("v2b", 1, 3, 8)).w(acked(1, (1, 3)))
    assert v2.found == []


@breaks("nack_unknown_stream", "nack_not_answered")
@pytest.mark.parametrize("name", SEEDS)
def test_nacks_are_stacked(name: str, dialogue: Opens, msg: Messages) -> None:
    told = dialogue(name).opened().w(Nack(1, 1, 0)).w(Nack(1, 1, 0))
    assert told.found == ["nack_unknown_stream"] * 2
    told.c(Notify(1, b"s"), msg(name, 1, 1))
    assert told.ignored[-1] == "stream_reset"
    assert told.rules == ["message_ignored"]
    told.c(Notify(1, b"s"), msg(name, 1, 2))
    assert told.ignored[-1] is None
    assert told.w(Nack(1, 1, 0)).end().rules == ["nack_not_answered"]
    assert dialogue(name).opened(1).w(Nack(1, 1, 0)).c(Error(b"no")).end().found == ["connector_error"]


@pytest.mark.parametrize(("granted", "found"), [(0, False), (1, True)])
@pytest.mark.parametrize("name", SEEDS)
def test_a_nack_is_owed_a_notify_only_with_a_credit(
    name: str, granted: int, found: bool, dialogue: Opens, greeting: Greetings, msg: Messages
) -> None:
    told = dialogue(name).c(greeting(name)).w(Ok(2)).c(Notify(1, b"s1"), msg(name, 1, 1))
    assert ("nack_not_answered" in told.w(Nack(granted, 1, 0)).end().rules) == found


@pytest.mark.parametrize("nacks", [3, KEPT_ASKED + 2])
def test_a_connector_owes_no_notify_for_nacks_that_it_does_not_know(nacks: int, dialogue: Opens, msg: Messages) -> None:
    """Also if they are too many to remember where each of them stands."""
    told = dialogue("seed_sid").opened(1).c(msg("seed_sid", 1, 1)).hears(C, 0).w(*[Nack(1, 1, 0)] * nacks)
    assert "nack_not_answered" not in told.end().rules
    known = dialogue("seed_sid").opened(1).c(msg("seed_sid", 1, 1)).w(*[Nack(1, 1, 0)] * nacks)
    assert "nack_not_answered" in known.end().rules


@pytest.mark.parametrize(("cut", "ignored", "found"), [(C, None, []), (S, "stream_reset", ["nack_not_answered"])])
def test_a_hole_in_what_the_connector_sent_may_hold_the_notify_that_is_owed(
    cut: Direction, ignored: str | None, found: list[str], dialogue: Opens, msg: Messages
) -> None:
    told = dialogue("seed_sid").opened(1).w(Nack(1, 1, 0))
    told.take(cut, Decoded(reason="cut by a hole"))
    told.c(msg("seed_sid", 1, 1))
    assert told.ignored[-1] == ignored
    assert [name for name in told.end().rules if name == "nack_not_answered"] == found
    again = dialogue("seed_sid").opened(1).w(Nack(1, 1, 0))
    again.take(cut, Decoded(reason="cut by a hole"))
    assert again.c(Notify(1, b"s1"), msg("seed_sid", 1, 1)).found == []


@breaks("boundary_with_payload")
@pytest.mark.parametrize("name", SEEDS)
def test_boundary_with_payload(name: str, dialogue: Opens, msg: Messages) -> None:
    assert dialogue(name).opened(1).c(msg(name, 1, 1, 2, b"y")).found == ["boundary_with_payload"]
    assert dialogue(name).opened(1).c(msg(name, 1, 1, 18, bytes(8))).found == ["boundary_with_payload"]


@breaks("ephemeral_id_repeated")
@pytest.mark.parametrize("name", SEEDS)
def test_ephemeral_id_repeated(name: str, dialogue: Opens, msg: Messages, acked: Acks) -> None:
    told = dialogue(name).opened(1).c(msg(name, 1, 1, 1), msg(name, 1, 2, 1)).w(acked(5))
    assert told.found == []
    assert told.c(msg(name, 1, 1, 1)).rules == ["ephemeral_id_repeated"]


@pytest.mark.parametrize("name", IMPLEMENTED)
def test_ids_not_above_the_last_seen_are_skipped(name: str, dialogue: Opens, msg: Messages) -> None:
    told = dialogue(name).opened().c(Notify(1, b"s")).w(NotifyAck(1, 1, 5))
    told.c(msg(name, 1, 5), msg(name, 1, 6), msg(name, 1, 6), msg(name, 1, NOTHING_SEEN), msg(name, 1, 2))
    skipped = "id_not_above_last_seen"
    # Where nothing is told by the highest id, it is an id like others.
    last = None if name == "v3" else skipped
    assert told.ignored[-5:] == [skipped, None, skipped, None, last]
    assert told.found == ["message_ignored"] * (2 if name == "v3" else 3)
    assert told.session.memory.spent == 6
    zero = dialogue(name).opened(1).c(msg(name, 1, 0), msg(name, 1, 0))
    assert zero.found == (["message_ignored"] if name == "v3" else [])


@breaks("notify_ack_unasked", "notify_refused", "notify_not_answered")
@pytest.mark.parametrize("name", IMPLEMENTED)
def test_answers_to_notify(name: str, dialogue: Opens, msg: Messages) -> None:
    assert dialogue(name).opened(1).w(NotifyAck(1, 1, 0)).found == ["notify_ack_unasked"]
    assert dialogue(name).opened().w(NotifyAck(1, 4, 0)).found == ["notify_ack_unasked"]
    refused = dialogue(name).opened(1).c(Notify(1, b"s1")).w(NotifyAck(0, 1, 0)).c(msg(name, 1, 1)).end()
    assert refused.found == ["notify_refused"]
    assert dialogue(name).opened().c(Notify(1, b"s")).end().found == ["notify_not_answered"]


@breaks("credits_not_replenished")
@pytest.mark.parametrize("name", SOURCES)
def test_credits_not_replenished(name: str, dialogue: Opens, msg: Messages, acked: Acks) -> None:
    told = dialogue(name).opened(1, granted=2).c(msg(name, 1, 1)).pass_time(9)
    assert told.rules == []
    assert told.pass_time(2).rules == ["credits_not_replenished"]
    assert told.pass_time(20).rules == []
    assert told.w(acked(1)).c(msg(name, 1, 2)).w(acked(0)).wait(11).end().rules == ["credits_not_replenished"]
    assert dialogue(name).opened(1, granted=1).wait(8).w(acked(1)).wait(11).end().found == []
    empty = dialogue(name, ack_timeout_s=1).opened(granted=0).pass_time(2)
    assert empty.found == ["zero_initial_credits", "credits_not_replenished"]


@pytest.mark.parametrize("name", IMPLEMENTED)
def test_after_restart_the_connector_is_not_heard(name: str, dialogue: Opens, msg: Messages, acked: Acks) -> None:
    told = dialogue(name).opened(1).c(msg(name, 1, 1)).w(Restart(None if name == "v2a" else b"h:1"))
    told.c(msg(name, 1, 2), msg(name, 99, 1)).w(acked(1, (1, 1))).end()
    assert told.found == ["message_ignored"] * 2
    assert told.ignored[-3:] == ["after_restart", "after_restart", None]


def test_in_the_text_a_message_of_several_open_streams_belongs_to_none(
    dialogue: Opens, msg: Messages, acked: Acks
) -> None:
    told = dialogue("seed").opened(1, 2).c(msg("seed", 1, 1))
    assert told.outcomes[-1].stream_id is None
    assert told.w(acked(1, (1, 1), (2, 9))).end().found == []
    reopened = dialogue("seed").opened(1, 2).c(msg("seed", 1, 1, 4), Notify(1, b"s1"))
    assert reopened.found == []
    assert reopened.c(Notify(1, b"s1")).found == ["notify_open_stream"]
    ended = dialogue("seed").opened(1).c(msg("seed", 1, 1, 4), Notify(2, b"two"), msg("seed", 2, 2))
    assert ended.outcomes[-1].stream_id == 2
    assert ended.c(msg("seed", 2, 3, 4), msg("seed", 1, 4)).found == ["message_closed_stream"]


@pytest.mark.parametrize("name", ["sink", "sink_v2b"])
def test_with_sinks_only_framing_and_handshake_are_judged(
    name: str, dialogue: Opens, msg: Messages, acked: Acks, greeting: Greetings
) -> None:
    told = dialogue(name).c(greeting(name)).w(Ok(1)).c(msg(name, 0, 1), msg(name, 1, 2), msg(name, 1, 2))
    told.w(acked(0, (1, 77))).w(msg(name, 0, 1)).pass_time(60).end()
    assert told.found == []
    assert dialogue(name).c(msg(name, 0, 1)).found == ["frame_before_hello"]


@pytest.mark.parametrize("name", SOURCES)
def test_behind_a_hole_what_was_missed_is_forgiven(name: str, dialogue: Opens, msg: Messages, acked: Acks) -> None:
    told = dialogue(name).opened(1, 2, granted=5)
    if name != "seed":
        told.c(EosMessage(1) if name == "v3" else msg(name, 1, 1, 4))
    told.take(C, Decoded(reason="no frame begins here"))
    assert told.session.memory.credits is None
    told.c(msg(name, 1, 5), msg(name, 9, 1)).w(acked(3, (1, 3), (7, 7))).c(Notify(2, b"s2")).pass_time(60)
    assert told.found == []


def test_an_error_that_comes_late_is_a_signal(dialogue: Opens, msg: Messages) -> None:
    told = dialogue("v3").opened().c(msg("v3", 1, 5)).wait(7).w(Error(b"no")).end()
    assert told.found == ["message_unknown_stream"]


def test_an_ack_without_credits_does_not_begin_the_time_anew(dialogue: Opens, acked: Acks) -> None:
    told = dialogue("v3").opened(1, granted=1).wait(8).w(acked(0)).wait(3).w(acked(0))
    assert told.rules == ["credits_not_replenished"]
    assert told.w(acked(0)).pass_time(30).rules == []


def test_names_are_bounded(monkeypatch: pytest.MonkeyPatch, dialogue: Opens) -> None:
    monkeypatch.setattr("wirehouse_codecs.wallaroo.session.memory.MAX_STREAMS", 3)
    told = dialogue("seed").opened(1).c(*[Notify(1, b"%d" % n) for n in range(20)])
    assert len(told.session.memory.names) == 3


def test_every_rule_of_a_session_is_broken_by_a_dialogue() -> None:
    assert set(RULES_BROKEN) == set(RULE) - SET_RULES | ALSO_OF_A_SESSION


# Bounds and carried state


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch, dialogue: Opens, msg: Messages, acked: Acks) -> None:
    monkeypatch.setattr("wirehouse_codecs.wallaroo.session.memory.MAX_IDS", 50)
    monkeypatch.setattr("wirehouse_codecs.wallaroo.session.memory.MAX_STREAMS", 3)
    told = dialogue("v3").opened(1, 2, 3, granted=1000).c(*[msg("v3", 1, n + 1) for n in range(200)])
    assert sum(stream.remembered for stream in told.session.memory.streams.values()) <= 51
    told.c(Notify(4, b"four")).w(NotifyAck(1, 4, 0)).c(msg("v3", 4, 1)).w(acked(1, (4, 1), (1, 3), (1, 200)))
    assert told.end().found == []
    assert len(told.session.memory.streams) == 3


def test_acked_ids_are_forgotten_but_for_the_last() -> None:
    stream = Stream()
    for n in range(500):
        stream.messages += 1
        stream.send(n, 1000 + n, awaits_ack=True)
    assert stream.ack(400) is AckVerdict.FORWARD
    assert stream.remembered == 99 + 64
    assert (stream.ack(5), stream.ack(380), stream.ack(1000)) == (
        AckVerdict.BACK,
        AckVerdict.BACK,
        AckVerdict.NEVER_SENT,
    )
    assert stream.was_acked(5)
    assert not stream.was_acked(401)
    assert stream.unacked() == [(n, 1000 + n) for n in range(401, 500)]


def test_a_connection_ends_once(dialogue: Opens) -> None:
    told = dialogue("v3").opened(1).end()
    with pytest.raises(ValueError, match="ended"):
        told.end()
    with pytest.raises(ValueError, match="ended"):
        told.c(Notify(1, b"s"))


streams = st.integers(1, 3)
ids = st.integers(0, 6) | st.just(NOTHING_SEEN)


def any_frame(name: str, msg: Messages, greeting: Greetings) -> st.SearchStrategy[Frame]:
    kinds: list[st.SearchStrategy[Frame]] = [
        st.builds(lambda s, i, f: msg(name, s, i, f), streams, ids, st.sampled_from([0, 1, 2, 4, 8, 16])),
        st.builds(Notify, streams, st.sampled_from([b"a", b"b"]), ids),
        st.builds(lambda c, e: Ack(c, tuple(e)), st.integers(0, 3), st.lists(st.builds(StreamMessage, streams, ids))),
        st.just(Error(b"the cookie")),
        st.just(greeting(name)),
        st.builds(Ok, st.integers(0, 5)),
    ]
    if DIALECTS[name].answers_notify:
        kinds += [
            st.builds(NotifyAck, st.integers(0, 1), streams, ids),
            st.just(Restart(None if name == "v2a" else b"")),
        ]
    else:
        kinds.append(st.builds(Nack, st.integers(0, 3), streams, ids))
    return st.one_of(kinds)


def judge(frames: list[Received], name: str, cuts: set[int], late: bool) -> tuple[list[Outcome], list[Found], str]:
    options = WallarooOptions()
    session = Session(DIALECTS[name], options, started_late=late)
    outcomes: list[Outcome] = []
    for at, frame in enumerate(frames):
        if at in cuts:
            session = Session(DIALECTS[name], options, state=carry(session.memory))
        outcomes.append(session.receive(frame))
    found = session.end(End.CLOSED, Place(10**12, 0, b"", 0))
    return outcomes, list(found), as_text(session.memory)


@pytest.mark.parametrize("name", SOURCES)
@settings(max_examples=60)
@given(data=st.data(), late=st.booleans())
def test_cut_anywhere_and_carried_on_gives_the_same_outcomes(
    name: str, data: st.DataObject, late: bool, msg: Messages, greeting: Greetings
) -> None:
    from_frames = any_frame(name, msg, greeting)
    said = data.draw(st.lists(st.tuples(st.sampled_from(Direction), from_frames, st.integers(0, 6)), max_size=25))
    frames: list[Received] = []
    now_ns = 0
    opening: list[tuple[Direction, Frame, int]] = [(C, greeting(name), 0), (S, Ok(4), 0), (C, Notify(1, b"a"), 0)]
    for at, (direction, frame, seconds) in enumerate(opening + said):
        now_ns += seconds * 10**9
        decoded = decode(encode_body(frame, DIALECTS[name]), DIALECTS[name])
        frames.append(Received(direction, Place(now_ns, 0, b"", at), at, at + 1, decoded))
    cuts = data.draw(st.sets(st.integers(0, len(frames))))
    whole = judge(frames, name, set(), late)
    assert judge(frames, name, cuts, late) == whole
    check_order(whole[0])
    assert findings_in_steps(frames, name, cuts, late) == sorted(
        map(repr, [finding for outcome in whole[0] for finding in outcome.findings] + whole[1])
    )


def findings_in_steps(frames: list[Received], name: str, stops: set[int], late: bool) -> list[str]:
    """All findings where time is also advanced at the stops, as a window's end does."""
    session = Session(DIALECTS[name], WallarooOptions(), started_late=late)
    found: list[Found] = []
    for at, frame in enumerate(frames):
        if at in stops:
            found += session.advance(frame.place.arrived_at_ns)
        found += session.receive(frame).findings
    return sorted(map(repr, found + list(session.end(End.CLOSED, Place(10**12, 0, b"", 0)))))


def check_order(outcomes: list[Outcome]) -> None:
    """At most one rule of frames is broken by a frame; after the end only few rules judge."""
    of_frames = {rule.name for rule in FRAME_RULES} - {"no_handshake_seen"}
    ended = False
    per_frame: dict[tuple[Direction, int], int] = {}
    for outcome in outcomes:
        for finding in outcome.findings:
            assert not ended or finding.rule.name in JUDGED_AFTER_END
            if finding.rule.name in of_frames and finding.where is not None:
                where = (finding.where.direction, finding.where.byte_start)
                per_frame[where] = per_frame.get(where, 0) + 1
        ended = ended or any(finding.rule.name in ENDS for finding in outcome.findings)
    assert set(per_frame.values()) <= {1}


def test_where_the_capture_ends_nobody_has_waited_in_vain(dialogue: Callable[..., Any]) -> None:
    def dry(how: End) -> list[str]:
        found: list[str] = dialogue("v3").opened(1, granted=1).wait(7200).end(how).found
        return found

    assert dry(End.CLOSED) == ["credits_not_replenished"]
    assert dry(End.CAPTURE_END) == ["capture_ends_early"]


def test_a_connection_that_the_capture_leaves_open_after_an_error_is_not_blamed(dialogue: Callable[..., Any]) -> None:
    told = dialogue("v3").opened(1).c(Error(b"no")).wait(7200).end(End.CAPTURE_END)
    assert told.found == ["connector_error", "capture_ends_early"]
