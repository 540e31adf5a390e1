"""The tables of calls, state by state and input by input, and each rule of one call broken by what is really sent."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from tests.support.block_nodes import C, S, World, block
from tests.support.carried import as_text, carry
from wirehouse_codecs.core.rules import Severity
from wirehouse_codecs.hiero.correlation.rows import DecisionRow
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.profiles import NO_BLOCK, OPEN, PROFILES, Service
from wirehouse_codecs.hiero.rules import CALL_RULES, RULE
from wirehouse_codecs.hiero.session.machines import MACHINES
from wirehouse_codecs.hiero.session.publishing import OF_PUBLISHER, PUBLISHING, Input, State, publishing_rule
from wirehouse_codecs.hiero.session.querying import ASKING, Query, QueryInput
from wirehouse_codecs.hiero.session.session import Call, CallState, input_of
from wirehouse_codecs.hiero.session.steps import CallInput
from wirehouse_codecs.hiero.session.subscribing import SUBSCRIBING, Subscription, SubscriptionInput, subscribing_rule
from wirehouse_codecs.hiero.wire.items.kinds import encode_item
from wirehouse_codecs.hiero.wire.messages import BlockEnd, BlockItems, EndOfStream, PublisherEndStream, SubscribeRequest

OPTIONS = HieroOptions()


@pytest.mark.parametrize(("state", "said"), product(State, Input))
def test_every_input_in_every_state(state: State, said: Input) -> None:
    call = Call.begin(Service.PUBLISH, OPTIONS)
    call.state, call.memory.header, call.memory.headers = state, 7, 1
    ignored, found = call.receive(CallInput(said, 10**9, 8, "RESET", 1, 2))
    step = PUBLISHING.get((state, said))
    if step is None:
        rule = publishing_rule(state, said)
        assert (call.state, [one.rule.name for one in found]) == (state, [] if rule is None else [rule])
        assert ignored is not None
    else:
        assert call.state is step.state
        assert ignored is None
    assert all(RULE[one.rule.name] in CALL_RULES for one in found)


def _no_rule(state: Any, said: Any) -> str | None:
    return None


@pytest.mark.parametrize(
    ("service", "table", "states", "inputs", "unlisted"),
    [
        (Service.SUBSCRIBE, SUBSCRIBING, Subscription, SubscriptionInput, subscribing_rule),
        (Service.STATUS, ASKING, Query, QueryInput, _no_rule),
    ],
)
def test_other_calls_break_rules_in_their_order(
    service: Service, table: Any, states: Any, inputs: Any, unlisted: Callable[[Any, Any], str | None]
) -> None:
    open_states = (Subscription.SUBSCRIBED, Subscription.DELIVERING, Subscription.DELIVERED)
    for state, said in product(states, inputs):
        call = Call.begin(service, OPTIONS)
        call.state = state
        ignored, found = call.receive(CallInput(said, 1))
        rule = unlisted(state, said) if (state, said) not in table else None
        if said is SubscriptionInput.NODE_ENDS and state in open_states:
            rule = "subscriber_ended_without_status"
        assert [one.rule.name for one in found] == ([] if rule is None else [rule])
        assert call.state is (table[state, said].state if (state, said) in table else state)
        assert (ignored is None) == ((state, said) in table)


def test_what_is_unknown_breaks_nothing() -> None:
    for said in Input:
        call = Call.begin(Service.PUBLISH, OPTIONS, started_late=True)
        _, found = call.receive(CallInput(said, 1, 5, "RESET", 1, 2))
        assert found == ()


def test_the_machines_are_drawn() -> None:
    names = {machine.name: machine.edges() for machine in MACHINES}
    assert set(names) == {"publisher's call", "subscriber's call", "status call"}
    told = {(edge.state, edge.input, edge.becomes, edge.rule) for edge in names["publisher's call"]}
    assert ("connected", "header", "streaming", None) in told
    assert ("ended by the publisher", "header", None, "end_last") in told
    assert ("streaming", "messages are missing", "unknown", None) in told


@pytest.mark.parametrize("state", State)
def test_a_call_goes_on_from_its_snapshot(state: State) -> None:
    call = Call.begin(Service.PUBLISH, OPTIONS)
    call.state, call.memory.header, call.memory.skips = state, 5, [(5, 1)]
    again = Call(carry(call, CallState), OPTIONS)
    assert as_text(again, CallState) == as_text(call, CallState)


@pytest.mark.parametrize(
    ("profile", "code", "said"),
    [
        ("A", 5, Input.BEHIND),
        ("B0", 5, Input.BEHIND_END),
        ("B1", 3, Input.DUPLICATE_END),
        ("B2", 5, Input.DUPLICATE_END),
        ("B2", 7, Input.BEHIND_END),
        ("B", 5, Input.DUPLICATE_END),
        ("B", 7, Input.END_OF_STREAM),
        ("B", 99, Input.END_OF_STREAM),
    ],
)
def test_codes_mean_what_the_profile_says(profile: str, code: int, said: Input) -> None:
    assert input_of(EndOfStream(code, 3), Service.PUBLISH, PROFILES[profile]) is said


def test_delivered_items_are_no_publisher() -> None:
    assert input_of(BlockItems(b""), Service.SUBSCRIBE, PROFILES["B"]) is SubscriptionInput.ITEMS
    assert input_of(BlockEnd(1), Service.SUBSCRIBE, PROFILES["B"]) is SubscriptionInput.ITEMS
    assert input_of(BlockItems(b""), Service.PUBLISH, PROFILES["B"]) is Input.ITEMS
    assert OF_PUBLISHER.isdisjoint({Input.HALF_CLOSE, Input.ACKNOWLEDGEMENT})


# Each rule, broken by what is sent

Script = Callable[[World], object]


def _header_in_set(world: World) -> object:
    both = BlockItems(block(121).proof + block(122).header)
    return world.publisher().header(121).items(121).client(both)


def _went_on_after_node_end(world: World) -> object:
    call = world.publisher().header(121).end("SUCCESS", 120)
    world.wait(1000)
    return call.items(121).proof(121)


def _items_after_duplicate(world: World) -> object:
    call = world.publisher().header(121).exists(130)
    world.wait(1000)
    return call.items(121).proof(121)


def _items_after_behind(world: World) -> object:
    call = world.publisher().header(130).behind(120)
    world.wait(1000)
    return call.items(130)


def _skip_unanswered(world: World) -> object:
    call = world.publisher().header(121).skip(121)
    world.wait(2000)
    return call.end_stream().half_close().trailers()


def _goes_away(call: Any, side: Any, last_stream: int = 1, code: int = 0) -> Any:
    return call.say(side, call.peers[side].go_away(last_stream, code))


def _goes_on_after_go_away(world: World) -> object:
    """The node takes no further call; this one goes on for longer than messages cross."""
    call = _goes_away(world.publisher().block(121).ack(121), S)
    world.wait(50)
    return call.header(122).close()


def _items_after_skip(wait_ms: int) -> Script:
    """Items come so long after the node's answer arrived."""

    def script(world: World) -> object:
        call = world.publisher().header(121).items(121).skip(121)
        world.wait(wait_ms - 1)
        return call.items(121).ack(121).header(122)

    return script


def _header_after_resend(wait_ms: int, *, acknowledged: int | None = None, number: int = 123) -> Script:
    """What the publisher was sending when ResendBlock came is finished; then comes another header."""

    def script(world: World) -> object:
        call = world.publisher().header(121).skip(121).block(122).resend(121)
        if acknowledged is not None:
            call.ack(acknowledged)
        world.wait(wait_ms - 1 - (acknowledged is not None))
        return call.header(number)

    return script


def _delivered(world: World, *numbers: int, start: int = OPEN, end: int | None = None) -> Any:
    call = world.subscriber(start=start, end=end)
    for number in numbers:
        call.deliver(number)
    return call


def _part(call: Any, number: int) -> Any:
    """A block without its proof."""
    parts = block(number, call.profile.name)
    return call.server(BlockItems(parts.header), BlockItems(parts.items))


#: The rule, the profile, and what breaks it.
BROKEN: list[tuple[str, str, Script]] = [
    ("structure", "B", lambda world: world.publisher().items(121)),
    ("structure", "B", lambda world: world.publisher().header(121).client(BlockEnd(121))),
    ("structure", "B", lambda world: world.publisher().header(121).items(121).proof(121).client(BlockEnd(122))),
    ("structure", "B", lambda world: world.publisher().header(121).items(121).proof(121).items(121)),
    ("structure", "A", lambda world: world.publisher().header(121).proof(122)),
    ("structure", "B", _header_in_set),
    ("next", "B", lambda world: world.publisher().header(121).behind(120)),
    ("next", "A", lambda world: world.publisher().header(121).behind(120)),
    ("next", "B", lambda world: world.publisher().header(0).behind(NO_BLOCK)),
    ("next", "B", lambda world: world.publisher().header(121).duplicate(120)),
    ("next", "A", lambda world: world.publisher().header(121).exists(120)),
    ("duplicate", "B", lambda world: world.publisher().header(110).behind(120)),
    ("reenter", "B", lambda world: world.publisher().block(121).ack(121).header(110).behind(121)),
    ("recheck", "A", lambda world: world.publisher().header(110).exists(120).header(110)),
    ("recheck", "A", _items_after_duplicate),
    ("resend_from_l1", "B", lambda world: world.publisher().header(126).behind(120).header(123)),
    ("resend_from_l1", "A", lambda world: world.publisher().header(126).behind(120).header(127)),
    ("resend_from_l1", "B", _items_after_behind),
    ("earliest", "B", lambda world: world.publisher().block(121).ack(121).end_stream(earliest=122, latest=121)),
    ("too_far_code", "B", lambda world: world.publisher().header(126).behind(120).end_stream("RESET")),
    ("end_last", "B", lambda world: world.publisher().end_stream().header(121)),
    ("end_last", "B", lambda world: world.publisher().end_stream().end_stream()),
    ("end_last", "B", _went_on_after_node_end),
    ("ack_order", "B", lambda world: world.publisher().block(121).ack(121, 121)),
    ("ack_order", "B", lambda world: world.publisher().block(121).block(122).ack(122, 121)),
    ("skip_pair", "B", lambda world: world.publisher().header(121).skip(122)),
    ("skip_pair", "B", lambda world: world.publisher().skip(121)),
    ("skip_pair", "B", lambda world: world.publisher().block(121).ack(121).resend(121)),
    ("skip_pair", "B", _skip_unanswered),
    ("skip_pair", "B", _items_after_skip(1000)),
    ("skip_pair", "A'", _items_after_skip(1000)),
    ("skip_pair", "B", _header_after_resend(1000)),
    ("skip_pair", "A'", _header_after_resend(1000, number=120)),
    ("skip_pair", "B", _header_after_resend(1001, acknowledged=120)),
    ("ended_without_end_stream", "B", lambda world: world.publisher().header(121).half_close()),
    ("ended_without_end_stream", "B", lambda world: world.publisher().header(121).cancel()),
    ("ended_without_end_stream", "B", lambda world: world.publisher().header(121).close()),
    ("ended_without_end_stream", "B", lambda world: world.publisher().header(121).close("reset")),
    ("ended_without_end_stream", "B", lambda world: _goes_away(world.publisher().header(121), C).close(by=S)),
    ("ended_without_end_stream", "B", _goes_on_after_go_away),
    ("node_ended_without_status", "B", lambda world: world.publisher().header(121).close(by=S)),
    ("node_ended_without_status", "B", lambda world: world.publisher().header(121).close("reset", by=S)),
    ("node_ended_without_status", "B", lambda world: _goes_away(world.publisher().header(121), S).close()),
    ("node_ended_without_status", "B", lambda world: _goes_away(world.publisher(), S, 0).header(121).close()),
    ("node_ended_without_status", "B", lambda world: _goes_away(world.publisher(), S, 1, 2).header(121).close()),
    ("node_ended_without_status", "B", lambda world: world.publisher().header(121).trailers()),
    ("node_ended_without_status", "B", lambda world: world.publisher().block(121).ack(121).reset()),
    ("subscriber_order", "B", lambda world: _part(world.subscriber(), 121).deliver(121).deliver(122)),
    ("subscriber_order", "A", lambda world: _delivered(world, 121, 122, 122, 123)),
    ("subscriber_order", "B", lambda world: _delivered(world, 121, 122, 120, 121, 122, 123)),
    ("subscriber_order", "B", lambda world: _delivered(world, 121).status("SUCCESS").deliver(122).deliver(123)),
    ("subscriber_order", "B", lambda world: _delivered(world, 121).status("SUCCESS").status("SUCCESS")),
    ("subscriber_gap", "B", lambda world: _delivered(world, 121, 123, 124)),
    ("subscriber_gap", "A", lambda world: _delivered(world, 121, 123, 124)),
    ("subscriber_gap", "B", lambda world: _part(_delivered(world, 121), 122).deliver(123).deliver(124)),
    ("subscriber_range", "B", lambda world: _delivered(world, 122, 123, start=121)),
    ("subscriber_range", "A", lambda world: _delivered(world, 121, 122, start=122)),
    ("subscriber_range", "B", lambda world: _delivered(world, 121, 122, 123, start=121, end=121)),
    ("subscriber_range", "A", lambda world: _delivered(world, 121, 122, start=121, end=123).status("SUCCESS")),
    ("subscriber_range", "B", lambda world: _part(_delivered(world, start=121, end=121), 121).status("SUCCESS")),
    ("subscriber_range", "B", lambda world: _delivered(world, start=121, end=121).status("SUCCESS")),
    ("subscriber_ended_without_status", "B", lambda world: world.subscriber().trailers()),
    ("subscriber_ended_without_status", "B", lambda world: _delivered(world, 121).trailers(14)),
    ("subscriber_ended_without_status", "A", lambda world: _delivered(world, 121).half_close().reset()),
    ("subscriber_ended_without_status", "B", lambda world: _delivered(world, 121).close("reset", by=S)),
    ("subscriber_ended_without_status", "B", lambda world: _goes_away(_delivered(world, 121), S).close()),
    ("code_set", "B", lambda world: world.publisher().client(PublisherEndStream(0, 1, 2))),
    ("code_set", "B", lambda world: world.publisher().header(121).server(EndOfStream(0, 120))),
    ("malformed_message", "B", lambda world: world.publisher().client(b"\x0a\x05abc")),
    ("malformed_message", "B", lambda world: world.publisher().header(121).client(BlockItems(b"\x0a\x7fxx"))),
    ("item_refused", "B", lambda world: world.publisher().header(121).client(BlockItems(b"\x0a\x02\x6a\x00"))),
]


@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize(("rule", "profile", "script"), BROKEN)
def test_a_rule_is_broken_once(rule: str, profile: str, script: Script, restored: bool) -> None:
    world = World(profile=profile, restored=restored)
    script(world)
    assert world.broken == [rule]


def test_every_rule_of_a_call_is_broken_here_or_by_several_calls() -> None:
    across = {"behind", "last_known_set", "block_not_acknowledged"}
    assert {rule.name for rule in CALL_RULES} - across <= {rule for rule, _, _ in BROKEN}


def _offered_at_once(call: Any, *numbers: int) -> Any:
    for number in numbers:
        call.block(number)
    return call


def _skipped_late(world: World) -> object:
    call = _offered_at_once(world.publisher(), 121, 122).header(123).skip(121).skip(122)
    world.wait(100)
    return call.rest(123).ack(121, 122, 123)


#: Nothing is broken.
LEGAL: list[tuple[str, Script]] = [
    ("B", lambda world: world.publisher().block(121).ack(121).block(122).ack(122).end_stream().half_close().trailers()),
    ("A", lambda world: world.publisher().block(121).ack(121).block(122).ack(122).end_stream().half_close().trailers()),
    ("B", lambda world: world.publisher().header(126).behind(120).block(121).ack(121)),
    # The header of the acknowledged block was captured late, or not at all.
    ("B", lambda world: world.publisher().header(126).behind(120).ack(121).header(122)),
    ("B", lambda world: world.publisher().header(126).behind(120).end_stream("TOO_FAR_BEHIND", 0, 126).half_close()),
    ("A", lambda world: world.publisher().header(126).behind(120).end_stream("TOO_FAR_BEHIND", 5, 126).half_close()),
    ("B", lambda world: world.publisher().header(5).behind(NO_BLOCK).block(0).ack(0)),
    # What the publisher had sent before it read the answer.
    ("B", lambda world: world.publisher().header(126).behind(120).items(126).block(121).ack(121)),
    ("B", lambda world: world.publisher().block(126).behind(120).header(127).behind(120).block(121).ack(121)),
    ("A", lambda world: world.publisher().header(110).exists(120).items(110).block(121).ack(121)),
    ("B", lambda world: world.publisher().header(110).duplicate(120).items(110).trailers().cancel()),
    # Headers were on their way when an earlier one was answered.
    ("B", lambda world: _offered_at_once(world.publisher(), *range(115, 121)).duplicate(118).trailers().header(121)),
    ("A", lambda world: _offered_at_once(world.publisher(), *range(115, 121)).exists(118).exists(118).ack(119, 120)),
    ("A", lambda world: _offered_at_once(world.publisher(), 125, 121).behind(120).header(122)),
    ("B", lambda world: _offered_at_once(world.publisher(), 125, 121).behind(120).header(122)),
    # What crossed the end.
    ("B", lambda world: world.publisher().header(110).duplicate(120).trailers().rest(110)),
    ("B", lambda world: world.publisher().block(121).ack(121).end("SUCCESS", 121).trailers().block(122)),
    # Another publisher's block is taken; this one's is needed after all.
    ("B", lambda world: world.publisher().header(121).skip(121).items(121).ack(121).block(122).ack(122)),
    ("B", lambda world: world.publisher().header(121).skip(121).header(122).resend(121).block(121).ack(121)),
    ("B", _items_after_skip(999)),
    ("B", _header_after_resend(999)),
    ("B", _header_after_resend(1000, number=121)),
    ("B", _header_after_resend(1001, acknowledged=121)),
    # SkipBlock crossed the next header; the items that follow are of that.
    ("B", _skipped_late),
    # The block was acknowledged from elsewhere.
    ("B", lambda world: world.publisher().header(121).ack(121).header(122).rest(122).ack(122)),
    ("B", lambda world: world.publisher().header(121).end("ERROR", 120).cancel()),
    ("B", lambda world: world.publisher().header(121).end("TIMEOUT", 120).trailers().close()),
    ("B", lambda world: world.publisher().block(121).ack(121).end_stream("ERROR", 0, 0).half_close()),
    ("B", lambda world: world.publisher().block(121).ack(121).close()),
    ("B", lambda world: world.publisher().close("reset")),
    # Both sides closed it before they heard of each other.
    ("B", lambda world: world.publisher().header(121).close(by=None)),
    ("B", lambda world: world.publisher().header(121).end_stream().close(by=S)),
    ("B", lambda world: world.publisher().header(121).end("SUCCESS", 120).close(by=S)),
    # The status may be among what is missing.
    ("B", lambda world: world.publisher().header(121).miss(S).header(122).close(by=S)),
    ("B", lambda world: world.subscriber().deliver(121).deliver(122).status("SUCCESS").trailers()),
    ("A", lambda world: world.subscriber(start=121).deliver(121).status("NOT_AVAILABLE").trailers()),
    ("B", lambda world: _delivered(world, 121, 122, 123, start=121, end=123).status("SUCCESS").trailers()),
    ("A", lambda world: _delivered(world, 121, start=121, end=121).half_close().status("SUCCESS").trailers()),
    ("B", lambda world: _delivered(world, 0, 1, start=0, end=1).status("SUCCESS").trailers()),
    ("B", lambda world: _part(_delivered(world, 121, start=121, end=122), 122).status("ERROR").trailers()),
    ("B", lambda world: _delivered(world, start=122, end=121).status("INVALID_START_BLOCK_NUMBER").trailers()),
    ("B", lambda world: _delivered(world, 121).status("SUCCESS").trailers()),
    # Who is refused by something else.
    ("B", lambda world: world.subscriber().trailers(12)),
    # The subscriber ends its call, and both sides do.
    ("B", lambda world: _part(world.subscriber(), 121).cancel()),
    ("B", lambda world: _part(world.subscriber(), 121).close()),
    ("B", lambda world: _delivered(world, 121).cancel().deliver(122).trailers()),
    ("B", lambda world: _delivered(world, 121).close(by=None)),
    # A block, a status, or the first blocks may be among what is missing.
    ("B", lambda world: _part(world.subscriber(), 121).miss(S).deliver(123).deliver(124)),
    ("B", lambda world: _delivered(world, 121, start=121, end=122).miss(S).status("SUCCESS").trailers()),
    ("B", lambda world: _delivered(world, 121).miss(S).trailers()),
    ("B", lambda world: _delivered(world, start=121).miss(S).deliver(122).deliver(123)),
    ("B", lambda world: _delivered(world, 121).status("SUCCESS").miss(S).deliver(122)),
    ("B", lambda world: world.call(Service.STATUS, "10.3.0.1").server_status(120).trailers()),
]


@pytest.mark.parametrize(("profile", "script"), LEGAL)
def test_nothing_is_broken(profile: str, script: Script) -> None:
    world = World(profile=profile, restored=True)
    script(world)
    assert world.broken == []
    assert [row for row in world.rows if row["row_kind"] == "quarantine"] == []


@pytest.mark.parametrize("reading", ["strict", "tolerant"])
@pytest.mark.parametrize("number", [121, 122])
def test_a_header_within_a_block_drops_that_one(number: int, reading: str) -> None:
    world = World(HieroOptions(reading=reading))
    world.publisher("K").block(120).ack(120)
    call = world.publisher().header(121).items(121)
    if number == 122:
        call.block(122).behind(120).block(121).ack(121)
    call.block(number).ack(number).end_stream().half_close()
    assert world.all_broken() == []


def test_what_is_missing_breaks_nothing() -> None:
    world = World(restored=True)
    world.publisher().header(121).miss(C).say(C, b"").items(121).proof(121).cancel()
    # What stands behind a hole was held back.
    call = world.publisher().block(121).ack(121).end("SUCCESS", 121).trailers()
    world.wait(10_000)
    call.miss(C).block(122)
    assert world.broken == []


#: What a publisher goes on with long after the node's answer, and the rule that it breaks if it knew the answer.
GOES_ON: list[tuple[str, str, Callable[[Any], Any], Callable[[Any], Any]]] = [
    ("skip_pair", "B", lambda call: call.header(121).skip(121), lambda call: call.items(121).ack(121)),
    ("skip_pair", "B", lambda call: call.header(121).skip(121).resend(121), lambda call: call.header(122)),
    ("recheck", "A", lambda call: call.header(110).exists(120), lambda call: call.items(110)),
    ("resend_from_l1", "B", lambda call: call.header(126).behind(120), lambda call: call.items(126)),
    ("end_last", "B", lambda call: call.block(121).end("SUCCESS", 121), lambda call: call.header(122)),
    ("end_last", "B", lambda call: call.block(121).end("SUCCESS", 121).trailers(), lambda call: call.header(122)),
]


@pytest.mark.parametrize("received", [True, False])
@pytest.mark.parametrize(("rule", "profile", "answer", "goes_on"), GOES_ON)
def test_who_had_not_received_the_last_byte_of_an_answer_did_not_know_it(
    rule: str, profile: str, answer: Callable[[Any], Any], goes_on: Callable[[Any], Any], received: bool
) -> None:
    world = World(profile=profile, restored=True)
    call = answer(world.publisher())
    world.wait(10_000)
    call.acknowledges = False
    end = next(row["byte_end"] for row in reversed(world.of("message")) if row["direction"] == S)
    call.connection.client.note_received(call.at[C], call.at[S] if received else end - 1)
    goes_on(call)
    assert world.broken == ([rule] if received else [])


@pytest.mark.parametrize("received", [True, False])
def test_a_node_does_not_answer_what_it_had_not_received(received: bool) -> None:
    world = World(restored=True)
    call = world.publisher().header(126).behind(120).header(121)
    call.acknowledges = False
    call.connection.server.note_received(call.at[S], call.at[C] - (not received))
    call.behind(120).rest(121)
    world.wait(10_000)
    call.ack(121)
    assert world.broken == (["next"] if received else [])


@pytest.mark.parametrize("received", [True, False])
def test_an_acknowledgement_that_crossed_a_header_does_not_answer_it(received: bool) -> None:
    world = World(restored=True)
    call = world.publisher().header(120)
    call.acknowledges = False
    server = call.connection.server
    server.note_received(call.at[S], call.at[C] - (not received))
    call.ack(120).rest(120).header(121)
    server.note_received(call.at[S], call.at[C])
    call.duplicate(120).trailers()
    assert world.broken == (["next"] if received else [])


@pytest.mark.parametrize("late", [True, False])
def test_an_answer_that_came_late_may_be_to_the_last_header(late: bool) -> None:
    world = World(restored=True)
    call = world.publisher().header(126)
    call.acknowledges = False
    server = call.connection.server
    server.note_received(call.at[S], call.at[C] - 1)
    if late:
        server._late.append((call.at[S], call.at[S] + 1_000))
    call.behind(120).cancel()
    assert world.broken == ([] if late else ["ended_without_end_stream"])


@pytest.mark.parametrize("side", [C, S])
def test_a_side_that_was_not_captured_may_have_said_anything(side: Any) -> None:
    world = World(restored=True)
    call = world.publisher(opened="none")
    (call.connection.client if side is C else call.connection.server).packets = 0
    call.connection.known = call.connection.known_now
    other = S if side is C else C
    call.say(other, call.opening[other])
    if side is S:
        call.header(121).header(122).rest(122).cancel()
    else:
        call.ack(122, 121).behind(130).trailers()
    assert world.all_broken(3 * 3_600_000) == []
    assert all(row["call_event"]["partial"] for row in world.of("call"))


@pytest.mark.parametrize(
    ("said", "broken"),
    [
        (lambda call: call.end_stream().header(121), ["end_last"]),
        (lambda call: call.end_stream().header(121).items(121).proof(121), ["end_last"]),
        (lambda call: call.end_stream(earliest=5, latest=4), ["earliest"]),
        (lambda call: call.block(121).items(122), ["structure"]),
        # The node may have ended it.
        (lambda call: call.header(121).cancel(), []),
        (lambda call: call.header(121).header(121), []),
    ],
)
def test_what_a_publisher_breaks_whatever_the_node_said_is_found_without_the_node(
    said: Callable[[Any], object], broken: list[str]
) -> None:
    world = World(restored=True)
    call = world.publisher(opened="none")
    call.connection.server.packets = 0
    call.connection.known = call.connection.known_now
    call.say(C, call.opening[C])
    said(call)
    assert world.broken == broken


@pytest.mark.parametrize("profile", ["A", "B"])
@pytest.mark.parametrize(("numbers", "broken"), [(range(118, 121), []), (range(119, 122), ["next"])])
def test_an_answer_is_to_the_first_header_that_may_be_answered_so(
    profile: str, numbers: range, broken: list[str]
) -> None:
    world = World(profile=profile)
    call = _offered_at_once(world.publisher(), *numbers)
    world.wait(100)
    call.duplicate(118)
    assert world.broken == broken


@pytest.mark.parametrize("wait_ms", [0, 100, 10_000])
@pytest.mark.parametrize("restored", [False, True])
def test_each_refused_header_has_an_answer_of_its_own(wait_ms: int, restored: bool) -> None:
    world = World(restored=restored)
    world.publisher("K").block(120).ack(120)
    call = world.publisher().block(123).header(124)
    world.wait(wait_ms)
    call.behind(120).header(121)
    world.wait(wait_ms)
    call.behind(120).rest(121).ack(121).block(122).ack(122).block(123).ack(123).end_stream()
    assert world.all_broken() == []
    told = [one for one in world.told() if isinstance(one, DecisionRow) and one.actual is not None]
    shown = [(one.offered, one.expected, one.actual, one.reported, one.legal) for one in told]
    assert shown[1:3] == [(123, "behind", "behind", 120, True), (124, "behind", "behind", 120, True)]
    assert [row[0] for row in shown[3:]] == [121, 122, 123]
    assert all(row[2] == "accepted" and row[4] for row in shown[3:])


def test_after_behind_for_two_headers_the_publisher_goes_back() -> None:
    world = World()
    call = world.publisher().header(125).header(126).behind(120)
    world.wait(100)
    call.behind(120).header(127)
    assert world.broken == ["resend_from_l1"]


def test_what_goes_on_after_two_answers_is_found_once() -> None:
    world = World()
    call = world.publisher().block(125).header(126).behind(120)
    world.wait(1000)
    call.items(126).behind(120)
    world.wait(1000)
    call.items(126)
    assert world.broken == ["resend_from_l1"]


def _known(world: World) -> World:
    world.publisher("K").block(120).ack(120)
    world.wait(100)
    return world


def _two_blocks_in_a_set(world: World) -> None:
    first, second = block(121), block(122)
    data = b"".join((first.header, first.items, first.proof, second.header, second.items, second.proof))
    world.publisher().client(BlockItems(data)).block_end(122).ack(121, 122).end_stream(latest=122).half_close()


#: What breaks one rule, whatever follows from it.
ONE_FAULT: list[tuple[str, Script]] = [
    ("structure", _two_blocks_in_a_set),
    ("structure", lambda world: world.publisher().rest(121).block(122).ack(122)),
    (
        "structure",
        lambda world: world.publisher().header(121).proof(121).items(121).client(BlockItems(encode_item(7, b""))),
    ),
    ("last_known_set", lambda world: _known(world).publisher().header(123).behind(0).block(121).ack(121)),
    ("last_known_set", lambda world: _known(world).publisher().header(123).behind(0).header(124).behind(120)),
    ("code_set", lambda world: _known(world).publisher().client(PublisherEndStream(0, 0, 0)).half_close().trailers()),
    ("code_set", lambda world: _known(world).publisher().server(EndOfStream(0, 0)).trailers()),
    ("skip_pair", lambda world: world.publisher().header(121).skip(125).rest(121).ack(121).end_stream().half_close()),
]


@pytest.mark.parametrize(("rule", "script"), ONE_FAULT)
def test_one_fault_is_one_finding(rule: str, script: Script) -> None:
    world = World()
    script(world)
    world.wait(1000)
    assert [name for name in world.all_broken() if RULE[name].severity != Severity.NOTE] == [rule]


def test_a_finding_about_an_end_names_the_block_that_was_offered() -> None:
    world = World()
    world.publisher("A").header(125).behind(120).end_stream()
    world.publisher("B").header(121).cancel()
    world.publisher("C").header(122).trailers()
    numbers = {row["finding"]["rule"]: row["block_number"] for row in world.of("violation")}
    assert numbers == {
        "hiero.too_far_code": 125,
        "hiero.ended_without_end_stream": 121,
        "hiero.node_ended_without_status": 122,
    }


@pytest.mark.parametrize("end", [lambda call: call.end_stream(), lambda call: call.end("SUCCESS", 121).trailers()])
def test_what_comes_after_the_end_is_told_once(end: Callable[[Any], Any]) -> None:
    world = World()
    call = world.publisher().block(121).ack(121)
    end(call)
    world.wait(1000)
    call.block(122).block(123)
    assert world.broken == ["end_last"]


def test_messages_after_a_subscription_are_passed_over() -> None:
    world = World()
    world.subscriber().status("SUCCESS").deliver(121).client(SubscribeRequest(1, 2))
    assert [row["message"]["ignored"] is None for row in world.of("message")] == [True, True, *[False] * 5]
    assert world.broken == ["subscriber_order"]


def testafter_missing_bytes_a_subscription_is_judged_from_the_next_block_on() -> None:
    world = World()
    call = _delivered(world, 121, start=121, end=130).miss(S)
    # The first frames are needed for finding the place.
    call.deliver(123).deliver(124).deliver(126).status("SUCCESS")
    assert world.broken == ["subscriber_gap", "subscriber_range"]


@pytest.mark.parametrize(
    ("numbers", "rules"),
    [
        # A step back: what follows on its highest block isn't missing.
        ((7, 8, 9, 7, 10), ["subscriber_order"]),
        ((7, 8, 9, 7, 8, 9, 10, 11), ["subscriber_order"]),
        ((7, 8, 9, 7, 9, 10), ["subscriber_order"]),
        # Two blocks in the wrong order, in the middle, at the beginning and at the end.
        ((7, 9, 8, 10, 11), ["subscriber_gap", "subscriber_order"]),
        ((8, 7, 9, 10), ["subscriber_range", "subscriber_order"]),
        ((7, 8, 9, 10, 12, 11), ["subscriber_gap", "subscriber_order"]),
        # A block from before the request, and then what was asked for.
        ((3, 7, 8), ["subscriber_range"]),
        # A gap after the step back is one.
        ((7, 8, 9, 7, 11), ["subscriber_order", "subscriber_gap"]),
        ((7, 8, 9, 7, 6, 10), ["subscriber_order", "subscriber_order"]),
    ],
)
def test_blocks_out_of_order_are_judged_by_the_highest_one(numbers: tuple[int, ...], rules: list[str]) -> None:
    for restored in (False, True):
        world = World(restored=restored)
        _delivered(world, *numbers, start=7)
        assert world.broken == rules


@pytest.mark.parametrize(
    ("numbers", "is_success"), [((7, 8, 9, 7), True), ((7, 9, 8), True), ((7, 8, 7), False), ((7, 8), False)]
)
def test_a_subscription_is_done_when_its_last_block_came(numbers: tuple[int, ...], is_success: bool) -> None:
    world = World()
    _delivered(world, *numbers, start=7, end=9).status("SUCCESS")
    assert ("subscriber_range" not in world.broken) is is_success


def test_a_block_that_breaks_off_before_a_step_back_is_no_gap() -> None:
    world = World()
    _part(_part(_delivered(world, 7, 8, start=7), 9), 7).deliver(9).deliver(10)
    assert world.broken == ["subscriber_order"]


def test_what_follows_on_a_set_of_two_blocks_is_its_fault() -> None:
    world = World()
    first, second = block(121), block(122)
    both = BlockItems(first.header + first.items + first.proof + second.header + second.items + second.proof)
    _delivered(world, 120).server(both).delivered(122).deliver(123).deliver(124)
    assert world.broken == ["structure"]


@pytest.mark.parametrize(("by_silence", "found"), [(False, ["ended_without_end_stream"]), (True, [])])
def test_a_reset_that_only_silence_confirms_blames_nobody(by_silence: bool, found: list[str]) -> None:
    world = World()
    world.publisher().header(121).close("reset", by_silence=by_silence)
    assert world.broken == found
    assert world.of("call")[-1]["call_event"]["partial"] is by_silence
