"""What calls say together: each rule broken by what is sent, and rows that don't depend on windows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.block_nodes import MS, NODE, OTHER_NODE, SECOND, C, Call, S, World, block, publisher_name
from wirehouse_codecs.core.errors import StateVersionError
from wirehouse_codecs.core.rules import Severity
from wirehouse_codecs.hiero.correlation import acknowledgements, decisions, publishers, subscribers
from wirehouse_codecs.hiero.correlation import known as across_known
from wirehouse_codecs.hiero.correlation.events import ANSWER_RULES, EVENT_KINDS, event_of, order_of
from wirehouse_codecs.hiero.correlation.fold import Fold
from wirehouse_codecs.hiero.correlation.known import Waits
from wirehouse_codecs.hiero.correlation.rows import (
    BlockRow,
    CatchUpRow,
    DecisionRow,
    Found,
    Outcome,
    SessionRow,
    SubscriptionRow,
)
from wirehouse_codecs.hiero.correlation.state import CODEC
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.profiles import NO_BLOCK, NODE_ERRORS, OPEN, PROFILES, Service
from wirehouse_codecs.hiero.rules import NODE_RULES, TOLERANT
from wirehouse_codecs.hiero.wire.messages import BlockItems, SubscribeRequest
from wirehouse_codecs.logs.rows import MESSAGE, VIOLATION
from wirehouse_codecs.tcp.options import TcpOptions

Script = Callable[[World], object]
HOUR_MS = 3_600_000
TOLERANT_OPTIONS = HieroOptions(reading="tolerant")


def known(world: World, number: int = 120) -> Call:
    """A publisher by which it is known that the node has `number`."""
    call = world.publisher("K").block(number).ack(number)
    world.wait(100)
    return call


# A header and its answer


def _acknowledged_again(world: World) -> object:
    known(world)
    return world.publisher().block(110).ack(110)


def _no_answer(world: World) -> object:
    known(world)
    call = world.publisher().block(110)
    world.wait(100)
    return call.block(121).ack(121)


def _old_block_skipped(world: World) -> object:
    known(world)
    return world.publisher().header(110).skip(110).end_stream().half_close()


def _behind_accepted(world: World) -> object:
    known(world)
    return world.publisher().block(130).ack(130)


def _later_header_accepted(world: World) -> object:
    known(world)
    return world.publisher().block(121).ack(121).block(130).ack(130)


def _nothing_reported(world: World) -> object:
    known(world)
    return world.publisher().header(126).behind(0)


def _old_reported(world: World) -> object:
    known(world)
    return world.publisher().header(126).behind(118)


def _none_reported(world: World) -> object:
    known(world)
    world.wait(2000)
    return world.publisher().header(126).end("SUCCESS", 118)


def _without_proof(world: World) -> Call:
    return world.publisher().header(121).items(121).ack(121)


def _dropped(world: World) -> object:
    world.publisher("A").header(121).items(121).end_stream("ERROR").half_close()
    return world.publisher("B").header(121).items(121).ack(121)


def _offered_again(world: World) -> object:
    known(world)
    world.publisher().header(110).duplicate(120).trailers()
    world.wait(2000)
    return world.publisher().header(110).duplicate(120).trailers()


def _never_answered(world: World) -> object:
    call = world.publisher().block(121)
    world.wait(2000)
    return call.end_stream().half_close().trailers()


def _left_open(world: World) -> object:
    """Neither side says anything any more. Other calls of the node go on."""
    call = world.publisher().block(121)
    _goes_on(world, 65)
    return call


def _goes_on(world: World, minutes: int) -> None:
    """The node is asked for its status every minute."""
    for _ in range(minutes):
        world.call(Service.STATUS, "10.3.0.1").server_status(120).trailers()
        world.wait(59_000)


def _no_range(world: World) -> object:
    known(world)
    world.wait(2000)
    return world.publisher().block(121).ack(121).end_stream(earliest=0, latest=0).half_close().trailers()


# Retries


def attempts(world: World, *gaps_ms: float, first: int = 128, reported: int = 120, step: int = 1) -> Call:
    """A publisher that is told Behind, ends, and comes back after each gap."""
    call = world.publisher()
    for number, gap in enumerate((*gaps_ms, 0)):
        at = reported + number * (step + 1) if step >= 0 else reported
        call.header(first + number).behind(at).end_stream("TOO_FAR_BEHIND", 1, 130).half_close().trailers()
        if gap:
            world.wait(gap)
            call = world.publisher()
    return call


def _constant_gaps(world: World) -> object:
    return attempts(world, 1000, 1000, 1000)


def _stalled(world: World) -> object:
    return attempts(world, 1000, 2000, step=-1)


def _retried_and_accepted(world: World) -> object:
    known(world)
    # The node's own calls are captured: it fetches nothing that would do.
    world.publisher().header(128).behind(120).end_stream("TOO_FAR_BEHIND", 1, 128).half_close().trailers()
    world.call(Service.STATUS, NODE.address, OTHER_NODE).server_status(140).trailers()
    fetch = world.call(Service.SUBSCRIBE, NODE.address, OTHER_NODE).client(SubscribeRequest(121, OPEN))
    fetch.deliver(121)
    return world.publisher().block(129).ack(129)


# Errors


def _another_goes_on(world: World) -> object:
    others = world.publisher("A").header(121)
    subscriber = world.subscriber()
    world.publisher("B").block(121).ack(121).end_stream("ERROR").half_close().trailers()
    subscriber.status("ERROR")
    world.wait(400)
    return others.rest(121).ack(121)


def _source_error_unsaid(world: World) -> object:
    subscriber = world.subscriber().deliver(120)
    world.publisher().header(121).end_stream("ERROR").half_close().trailers()
    world.wait(1000)
    return subscriber.deliver(121)


def _others_go_unanswered(world: World) -> object:
    call = world.publisher("A").block(121).ack(121)
    world.publisher("B").block(121).ack(121).header(122).end_stream("ERROR").half_close().trailers()
    call.block(122)
    world.wait(2000)
    return call.end_stream().half_close().trailers()


def _one_call_told(world: World) -> object:
    other = world.publisher("A").header(121)
    world.publisher("B").header(121).end("ERROR", 120).trailers()
    world.wait(400)
    other.rest(121).ack(121)
    return world.publisher("B").header(122)


def _acknowledged_once_more(world: World) -> object:
    known(world)
    return world.publisher().block(120).ack(120).block(121).ack(121)


def _never_offered(world: World) -> object:
    known(world)
    return world.publisher().block(121).ack(121, 125).end_stream(latest=121).half_close().trailers()


def _stale_at_once(world: World) -> object:
    """The node had acknowledged the block before the header came."""
    world.publisher("K").block(120).ack(120)
    return world.publisher().header(126).behind(119)


def _error_without_number(world: World) -> object:
    known(world)
    world.wait(2000)
    return world.publisher().header(121).end("TIMEOUT").trailers()


def _times_out_unanswered(world: World) -> object:
    """The publisher that waits in vain ends with an error of its own."""
    call = world.publisher("A").block(121).ack(121)
    world.publisher("B").header(122).end_stream("ERROR").half_close().trailers()
    call.block(122)
    world.wait(2000)
    return call.end_stream("TIMEOUT").half_close().trailers()


def _subscriber_untold(world: World) -> object:
    subscriber = world.subscriber().deliver(120)
    world.publisher("B").header(121).end("PERSISTENCE_FAILED", 120).trailers()
    world.wait(400)
    world.publisher("B").block(121).ack(121)
    return subscriber.deliver(121)


def _captured_later(world: World, script: Script) -> object:
    """The capture goes on after the time within which something was to come."""
    script(world)
    world.wait(1.5 * HOUR_MS)
    return world.call(Service.STATUS, "10.3.0.1", OTHER_NODE).server_status(120).trailers()


def _never_back(world: World) -> object:
    return world.publisher().header(121).end("ERROR", 120).trailers()


def _subscriber_never_back(world: World) -> object:
    return world.subscriber().deliver(120).status("ERROR").trailers()


# Chains and catching up


def _other_root(world: World) -> object:
    parts = block(122)
    items = BlockItems(parts.items + parts.items)
    call = world.publisher().block(121).ack(121)
    call.client(BlockItems(parts.header), items, BlockItems(parts.proof)).ack(122)
    return call.block(123).ack(123)


def _behind(world: World, offered: int = 128) -> None:
    world.publisher().header(offered).behind(120).end_stream("TOO_FAR_BEHIND", 1, offered).half_close().trailers()


def _fetch(world: World, start: int, end: int = OPEN, last: int | None = 140) -> Call:
    if last is not None:
        world.call(Service.STATUS, NODE.address, OTHER_NODE).server_status(last).trailers()
    return world.call(Service.SUBSCRIBE, NODE.address, OTHER_NODE).client(SubscribeRequest(start, end))


def _ends_early(world: World) -> object:
    _behind(world)
    return _fetch(world, 121, 124)


def _starts_late(world: World) -> object:
    _behind(world)
    return _fetch(world, 125)


def _gap_left(world: World) -> object:
    _behind(world)
    return _fetch(world, 121).deliver(121)


def _not_started(world: World) -> object:
    _behind(world, 122)
    _fetch(world, 121).deliver(121).cancel()
    world.publisher().block(122).ack(122).header(130).behind(122).end_stream("TOO_FAR_BEHIND", 1, 130).half_close()
    return None


def _overrun(world: World) -> object:
    _behind(world, 122)
    fetch = _fetch(world, 121).deliver(121)
    world.publisher().block(122).ack(122)
    world.wait(2000)
    world.publisher().block(123).ack(123)
    return fetch.deliver(122).deliver(123)


BROKEN: list[tuple[str, str, Script]] = [
    ("duplicate", "B", _acknowledged_again),
    ("duplicate", "A", _acknowledged_again),
    ("duplicate", "A", _no_answer),
    ("duplicate", "B", _old_block_skipped),
    ("behind", "B", _behind_accepted),
    ("reenter", "A", _later_header_accepted),
    ("last_known_set", "B", _nothing_reported),
    ("last_known", "B", _old_reported),
    ("last_known", "A", _old_reported),
    ("last_known", "B", _none_reported),
    ("last_known", "B", _stale_at_once),
    ("last_known", "A", _stale_at_once),
    ("last_known_set", "B", _error_without_number),
    ("last_known_set", "A", _error_without_number),
    ("last_block_again", "B", _acknowledged_once_more),
    ("last_block_again", "A", _acknowledged_once_more),
    ("ack_unoffered", "B", _never_offered),
    ("ack_unoffered", "A", _never_offered),
    ("ack_order", "B", _without_proof),
    ("drop_unproven", "B", _dropped),
    ("recheck", "B", _offered_again),
    ("block_not_acknowledged", "B", _never_answered),
    ("block_not_acknowledged", "A", _never_answered),
    ("block_not_acknowledged", "B", _left_open),
    ("block_not_acknowledged", "A", _left_open),
    ("earliest", "B", _no_range),
    ("earliest", "A", _no_range),
    ("backoff", "B", _constant_gaps),
    ("target_closer", "B", _stalled),
    ("behind_repeat", "B", _retried_and_accepted),
    ("source_error_only_if_last", "B", _another_goes_on),
    ("source_error_sent", "B", _source_error_unsaid),
    ("continue", "B", _others_go_unanswered),
    ("continue", "B", _times_out_unanswered),
    ("continue", "A", _times_out_unanswered),
    ("node_error_all", "B", _one_call_told),
    ("node_error_subscribers", "B", _subscriber_untold),
    ("retry_after_node_error", "B", lambda world: _captured_later(world, _never_back)),
    ("subscriber_not_resumed", "B", lambda world: _captured_later(world, _subscriber_never_back)),
    ("chain", "B", _other_root),
    ("recorded_target", "B", _ends_early),
    ("catchup_range", "B", _starts_late),
    ("gap_not_filled", "B", lambda world: _captured_later(world, _gap_left)),
    ("catch_up_not_started", "B", lambda world: _captured_later(world, _not_started)),
    ("catch_up_overrun", "B", _overrun),
]
#: Besides the rule, what never came after it.
ALSO = {
    "source_error_only_if_last": {"subscriber_not_resumed"},
    "recorded_target": {"gap_not_filled"},
    "catchup_range": {"gap_not_filled"},
}


@pytest.mark.parametrize(("rule", "profile", "script"), BROKEN)
def test_a_rule_is_broken_once(rule: str, profile: str, script: Script) -> None:
    world = World(profile=profile)
    script(world)
    assert world.broken == []
    found = world.found(until_ms=3 * HOUR_MS)
    assert [one for one in found if one not in ALSO.get(rule, ())] == [rule]


def test_every_rule_of_a_node_is_broken() -> None:
    assert {rule.name for rule in NODE_RULES} <= {rule for rule, _, _ in BROKEN}


def _all_told(world: World) -> object:
    subscriber = world.subscriber().deliver(120)
    calls = [world.publisher(name).header(121) for name in "AB"]
    for call in calls:
        call.end("ERROR", 120).trailers()
    subscriber.status("ERROR").trailers()
    world.wait(1000)
    for name in "AB":
        world.publisher(name).block(121).ack(121).end_stream(latest=121).half_close().trailers()
    return world.subscriber().deliver(121)


def _growing_gaps(world: World) -> object:
    return attempts(world, 1000, 2000, 4000, 8000)


def _caught_up(world: World) -> object:
    _behind(world)
    fetch = _fetch(world, 121, 127, last=127)
    for number in range(121, 128):
        fetch.deliver(number)
    fetch.status("SUCCESS").trailers()
    return world.publisher().block(128).ack(128)


def _two_publishers(world: World) -> object:
    first, second = world.publisher("A"), world.publisher("B")
    for number in range(121, 125):
        first.header(number)
        second.header(number).skip(number)
        first.rest(number).ack(number)
        second.ack(number)
    # One is a block ahead of what is acknowledged.
    first.header(125)
    second.block(126)
    first.rest(125)
    for call in (first, second):
        call.ack(125, 126)
    return None


def _reported_in_flight(world: World) -> object:
    second = world.publisher("B").header(126)
    world.publisher("A").block(121).ack(121)
    return second.behind(120)


def _whole_block_refused(world: World) -> object:
    """By Behind, or in the older API by a duplicate: it needs no acknowledgement."""
    known(world)
    call = world.publisher()
    call = call.block(130).behind(120) if world.profile == "B" else call.block(110).exists(120)
    return call.block(121).ack(121).end_stream(latest=121).half_close().trailers()


def _comes_back_between(world: World) -> object:
    """An attempt that didn't fail parts those that did."""
    attempts(world, 1000)
    world.wait(2000)
    world.publisher().end_stream().half_close().trailers()
    world.wait(1000)
    return attempts(world, 1000)


def _wins_elsewhere(world: World) -> object:
    """The next header is out when the block before it turns out to be there already."""
    known(world)
    first, second = world.publisher("A").block(121), world.publisher("B").block(121).header(122)
    first.ack(121)
    second.duplicate(121)
    return second.trailers() if world.profile == "B" else second.rest(122).ack(122)


def _told_of_what_others_sent(world: World) -> object:
    """Of a block all publishers are told, also one whose header is on its way, or comes later."""
    first, second, third = (world.publisher(name) for name in "ABC")
    first.block(121).ack(121)
    second.header(121).ack(121)
    third.ack(121)
    world.wait(1000)
    third.header(121).end("SUCCESS").trailers()
    return first.block(122).ack(122).end_stream(latest=122).half_close().trailers()


def _answered_in_the_packet_of_its_header(world: World) -> object:
    """The packet of a header came late, and released its answer."""
    known(world)
    call = world.publisher().header(110)
    world.now_ns -= MS
    call.exists(120)
    world.wait(100)
    return call.block(121).ack(121)


def _behind_in_the_packet_of_its_header(world: World) -> object:
    """Its node asks another one for what it lacks, and goes on from there."""
    known(world)
    call = world.publisher().header(123)
    world.now_ns -= MS
    call.behind(120).end_stream("TOO_FAR_BEHIND", 0, 130).half_close().trailers()
    world.call(Service.STATUS, NODE.address, OTHER_NODE).server_status(123).trailers()
    _fetch(world, 121, last=122).deliver(121).deliver(122)
    return world.publisher().block(123).ack(123)


def _source_fails_by_another_clock(ends: str) -> Script:
    """The subscriber's packets are captured a second before those of publishers."""

    def script(world: World) -> object:
        known(world).end_stream().half_close().trailers()
        subscriber, source = world.subscriber(), world.publisher("A").header(121)
        subscriber.status("ERROR")
        world.wait(500)
        source.rest(121)
        world.wait(500)
        return source.end(ends, 120).trailers() if ends == "ERROR" else source.end_stream(ends, 1, 121)

    return script


def _sources_come_back_by_another_clock(world: World) -> object:
    """The last one has failed, and another one comes, before the subscriber's packets are captured."""
    subscriber = world.subscriber()
    known(world).header(121).end_stream("ERROR", 1, 121).half_close().trailers()
    other = world.publisher("A").block(121).ack(121)
    world.wait(800)
    subscriber.status("ERROR")
    world.wait(400)
    return other.block(122).ack(122)


LEGAL: list[tuple[str, Script]] = [
    ("A", _answered_in_the_packet_of_its_header),
    ("B", _source_fails_by_another_clock("ERROR")),
    ("B", _source_fails_by_another_clock("TIMEOUT")),
    ("B", _sources_come_back_by_another_clock),
    ("A", _told_of_what_others_sent),
    ("B", _told_of_what_others_sent),
    ("A", _whole_block_refused),
    ("B", _whole_block_refused),
    ("A", _comes_back_between),
    ("A", _wins_elsewhere),
    ("B", _wins_elsewhere),
    # Nothing is known to be verified.
    ("B", lambda world: world.publisher().end_stream("TIMEOUT", 0, 0).half_close().trailers()),
    ("B", _all_told),
    ("B", _growing_gaps),
    ("A", _growing_gaps),
    ("B", _caught_up),
    ("A", _two_publishers),
    ("B", _two_publishers),
    ("B", _reported_in_flight),
    ("B", lambda world: world.publisher().header(5).behind(NO_BLOCK).block(0).ack(0)),
    ("B", lambda world: (known(world), world.publisher().header(118).skip(118).end_stream().half_close().trailers())),
    ("A", lambda world: (known(world), world.publisher().header(110).exists(120).block(121).ack(121))),
    # Before the capture there may have been anything.
    ("B", lambda world: world.publisher(opened="middle").items(130).proof(130).ack(130).block(131).ack(131).close()),
]


@pytest.mark.parametrize(("profile", "script"), LEGAL)
def test_nothing_is_broken(profile: str, script: Script) -> None:
    world = World(profile=profile)
    script(world)
    assert (world.broken, world.found(until_ms=10)) == ([], [])


def test_a_node_that_is_behind_by_an_answer_in_the_packet_of_its_header_catches_up() -> None:
    world = World()
    _behind_in_the_packet_of_its_header(world)
    assert (world.broken, world.found(until_ms=3 * HOUR_MS)) == ([], [])


@pytest.mark.parametrize("script", [_never_back, _subscriber_never_back, _gap_left, _not_started])
def test_what_would_come_after_the_capture_is_not_missing(script: Script) -> None:
    world = World()
    script(world)
    assert world.found(until_ms=3 * HOUR_MS) == []


@pytest.mark.parametrize("late_ms", [0, 2 * HOUR_MS])
def test_who_is_the_first_to_be_heard_again_has_come_back(late_ms: int) -> None:
    world = World()
    _never_back(world)
    world.wait(late_ms)
    world.publisher(node=OTHER_NODE)
    assert world.found(until_ms=3 * HOUR_MS) == []


@pytest.mark.parametrize(("client", "found"), [("10.1.0.80", []), ("10.1.0.99", ["retry_after_node_error"])])
def test_a_publisher_may_be_back_on_a_connection_whose_beginning_is_missing(client: str, found: list[str]) -> None:
    def script(world: World) -> object:
        _never_back(world)
        call = world.call(Service.PUBLISH, client, OTHER_NODE, opened="middle")
        return call.items(121).proof(121).ack(121).block(122)

    world = World()
    _captured_later(world, script)
    assert world.found(until_ms=3 * HOUR_MS) == found


@pytest.mark.parametrize(("client", "found"), [("10.2.0.1", []), ("10.2.0.2", ["subscriber_not_resumed"])])
def test_a_subscriber_may_be_back_on_a_connection_whose_beginning_is_missing(client: str, found: list[str]) -> None:
    def script(world: World) -> object:
        _subscriber_never_back(world)
        return world.call(Service.SUBSCRIBE, client, OTHER_NODE, opened="middle").deliver(121)

    world = World()
    _captured_later(world, script)
    assert world.found(until_ms=3 * HOUR_MS) == found


@pytest.mark.parametrize("profile", ["A", "B"])
@pytest.mark.parametrize(("answered_ms", "found"), [(-1, []), (1999, []), (2000, ["recheck"])])
def test_a_publisher_may_have_begun_anew_before_it_read_the_answer(
    answered_ms: int, found: list[str], profile: str
) -> None:
    """On another connection: its round trip may be long."""
    world = World(profile=profile)
    known(world)
    first = world.publisher().header(110)
    if answered_ms < 0:
        again = world.publisher()
        first.duplicate(120)
    else:
        first.duplicate(120)
        world.now_ns += (answered_ms - 1) * MS
        again = world.publisher()
    again.header(110).duplicate(120)
    assert world.found() == found


@pytest.mark.parametrize(("lacks", "found"), [(1, []), (0, ["recheck"])])
@pytest.mark.parametrize("restored", [False, True])
def test_a_publisher_whose_host_lacks_a_byte_of_the_answer_may_offer_its_block_again(
    lacks: int, found: list[str], restored: bool
) -> None:
    """On another call of the same connection."""
    world = World()
    known(world)
    world.publisher().header(110).duplicate(120)
    world.wait(2000)
    world.publisher().header(110)
    rows = sorted((row for row in world.rows if row["row_kind"] in EVENT_KINDS), key=order_of)
    answer = next(row for row in rows if row["message"] and row["message"]["meaning"] == "DUPLICATE_BLOCK")
    rows[-1]["message"]["peer_received"] = answer["byte_end"] - lacks
    rows[-1]["connection_id"] = answer["connection_id"]
    fold, told = Fold(HieroOptions()), []
    for event in filter(None, map(event_of, rows)):
        if restored:
            told += fold.end_window(event.at_ns - 1)
            fold = Fold(HieroOptions(), fold.snapshot())
        told += fold.take(event)
    assert [one.rule.name for one in told if isinstance(one, Found)] == found


@pytest.mark.parametrize(("elsewhere", "found"), [(True, []), (False, ["recheck"])])
def test_a_publisher_that_was_at_another_node_goes_on_from_there(elsewhere: bool, found: list[str]) -> None:
    world = World()
    known(world)
    world.publisher().header(110).duplicate(120).trailers()
    if elsewhere:
        world.publisher(node=OTHER_NODE).header(111).behind(108).end_stream().half_close().trailers()
    world.wait(2000)
    world.publisher().header(109).duplicate(120).trailers()
    assert world.found() == found


@pytest.mark.parametrize(("minutes", "found"), [(0, []), (30, []), (65, ["block_not_acknowledged"])])
def test_an_answer_is_missing_only_if_the_capture_goes_on(minutes: int, found: list[str]) -> None:
    world = World()
    world.publisher().block(121)
    _goes_on(world, minutes)
    assert world.found(until_ms=3 * HOUR_MS) == found


def test_an_answer_may_have_come_in_a_gap_of_the_capture() -> None:
    world = World()
    world.publisher().block(121)
    _goes_on(world, 5)
    world.wait(120_000)
    _goes_on(world, 65)
    assert world.found(until_ms=3 * HOUR_MS) == []


@pytest.mark.parametrize("script", [_constant_gaps, _starts_late, _ends_early])
def test_what_a_hole_may_explain_is_found_once_it_would_be_known(script: Script) -> None:
    world = World()
    script(world)
    world.wait(5_000)
    world.publisher("Q").miss(C)
    assert world.found(until_ms=60_000) == []


def test_the_node_may_have_fetched_what_was_not_captured() -> None:
    world = World()
    known(world)
    world.publisher().header(128).behind(120).end_stream("TOO_FAR_BEHIND", 1, 128).half_close().trailers()
    world.publisher().block(129).ack(129)
    assert world.found() == []


@pytest.mark.parametrize("profile", PROFILES)
def test_an_error_of_the_node_that_one_call_is_told_of(profile: str) -> None:
    for code in sorted(set(PROFILES[profile].end_codes.values()) & NODE_ERRORS):
        for behind in (False, True) if profile in ("A", "A'", "B") else (False,):
            world = World(HieroOptions(profile=profile), profile=profile)
            other = world.publisher("A").header(121)
            world.publisher("B").header(121).end(code, 118).trailers()
            world.wait(2400)
            _ = other.behind(119) if behind else other.rest(121).ack(121)
            assert "node_error_all" in world.found()


def test_an_acknowledgement_that_is_repeated_on_its_call_is_one_finding() -> None:
    world = World()
    world.publisher().block(120).ack(120).block(121).ack(121).block(120).ack(120)
    assert world.all_broken() == ["ack_order"]
    assert decided(world)[-1] == (120, "accepted", False, "hiero.ack_order")
    world = World()
    world.publisher().block(121).ack(121, 121)
    assert world.all_broken() == ["ack_order"]


def decided(world: World) -> list[tuple[int, str | None, bool | None, str | None]]:
    """Of each decision the block, the answer, if it is legal, and the rule that it breaks."""
    rows = [one for one in world.told() if isinstance(one, DecisionRow)]
    return [(one.offered, one.actual, one.legal, one.rule) for one in rows]


@pytest.mark.parametrize("profile", ["A", "B"])
@pytest.mark.parametrize("other", [False, True])
def test_the_last_block_that_is_offered_and_acknowledged_again_is_a_note(other: bool, profile: str) -> None:
    world = World(profile=profile)
    call = world.publisher().block(140).ack(140)
    world.wait(100)
    (world.publisher("Q") if other else call).block(140).ack(140)
    assert world.all_broken() == ["last_block_again"]
    assert decided(world)[-1] == (140, "accepted", False, "hiero.last_block_again")


def test_a_block_below_the_last_one_of_another_call_is_acknowledged_again() -> None:
    world = World()
    call = world.publisher().block(140).ack(140)
    world.publisher("Q").block(141).ack(141)
    world.wait(100)
    call.block(140).ack(140)
    assert world.all_broken() == ["reenter"]
    assert decided(world)[-1] == (140, "accepted", False, "hiero.reenter")


def test_an_acknowledgement_that_is_sent_before_the_block_comes_again_repeats_the_first_one() -> None:
    world = World()
    call = world.publisher().block(140).ack(140)
    call.block(140)
    # The node's packet doesn't acknowledge the header.
    call.acknowledges = False
    call.ack(140)
    assert world.all_broken() == ["ack_order"]


def test_a_block_may_have_been_offered_again_in_what_is_missing() -> None:
    world = World()
    world.publisher().block(140).ack(140).miss(C).ack(140)
    assert world.all_broken() == []


def random_calls(seed: int) -> World:
    """Publishers and nodes that answer anything."""
    random = Random(seed)
    world = World(profile=random.choice("AB"), restored=random.random() < 0.1)
    calls = [world.publisher(name) for name in random.choice(["P", "PP", "PQ", "PQR"])]
    for _ in range(random.randrange(4, 40)):
        call, number = random.choice(calls), random.choice([0, *[120, 121, 122, 123] * 2, 130])
        call.acknowledges = random.random() < 0.8
        said = [*["header", "block", "ack"] * 2, "behind", "duplicate"]
        said += ["skip", "resend"] if call.profile.new else []
        getattr(call, random.choice(said))(number)
        if random.random() < 0.2:
            world.wait(random.choice([30, 60, 3000]))
        if random.random() < 0.03:
            call.miss(random.choice([C, S]))
        if random.random() < 0.05:
            calls.append(world.publisher(random.choice("PQR")))
    return world


@pytest.mark.parametrize("seeds", [range(at, at + 25) for at in range(0, 100, 25)])
def test_the_rule_of_a_decision_is_that_of_a_finding(seeds: range) -> None:
    for seed in seeds:
        world = random_calls(seed)
        told = world.told(until_ms=3 * HOUR_MS)
        rows = [(row["finding"]["rule"], row["call"], row["block_number"], row) for row in world.of(VIOLATION)]
        found = [(rule, call, number) for rule, call, number, _ in rows]
        found += [(one.rule.id, one.call, one.block_number) for one in told if isinstance(one, Found)]
        decisions = [one for one in told if isinstance(one, DecisionRow)]
        for one in decisions:
            assert one.rule is None or ((one.rule, one.call, one.offered) in found and one.legal is False), (seed, one)
        # An answer that breaks a rule isn't legal. After a hole several answers may come at once.
        answers = Counter((row["call"], row["arrived_at_ns"]) for row in world.of(MESSAGE) if row["direction"] == S)
        for rule, call, number, row in rows:
            if rule in ANSWER_RULES and answers[call, row["arrived_at_ns"]] == 1:
                about = (call, number, row["arrived_at_ns"])
                assert not any(one.legal and (one.call, one.offered, one.answered_at_ns) == about for one in decisions)


def test_a_block_that_is_offered_after_all_was_acknowledged_early() -> None:
    world = World()
    known(world)
    world.publisher("A").ack(121)
    assert "ack_unoffered" in world.found(until_ms=3 * HOUR_MS)
    world.publisher("B").header(121)
    assert "ack_unoffered" not in world.found(until_ms=3 * HOUR_MS)


@pytest.mark.parametrize("skipped", [True, False])
def test_a_block_that_nobody_sends_any_more_came_from_a_publisher_that_was_not_captured(skipped: bool) -> None:
    world = World()
    call = world.publisher("A").block(120).ack(120).header(121)
    if skipped:
        call.skip(121)
    call.ack(121)
    assert [name for name in world.found(until_ms=3 * HOUR_MS) if name == "ack_order"] == (
        [] if skipped else ["ack_order"]
    )


def test_in_the_older_api_another_publisher_may_have_proven_a_block_that_one_still_sends() -> None:
    world = World(profile="A")
    known(world)
    world.publisher().header(121).items(121).ack(121).proof(121)
    assert world.all_broken(until_ms=3 * HOUR_MS) == []


@pytest.mark.parametrize(("after_ms", "found"), [(0, []), (1, ["ack_order"])])
def test_a_proof_of_the_packet_that_acknowledges_it_is_not_late(after_ms: int, found: list[str]) -> None:
    """Bytes that the node had received are delivered before its answer, or with it if their packet came late."""
    world = World()
    call = world.publisher().header(121).items(121).ack(121)
    world.now_ns += (after_ms - 1) * MS
    call.proof(121).block_end(121)
    assert world.found(until_ms=3 * HOUR_MS) == found


@pytest.mark.parametrize(("after_ms", "found"), [(50, []), (51, ["ack_order"])])
def test_packets_of_two_connections_may_have_changed_places(after_ms: int, found: list[str]) -> None:
    world = World()
    sender, told = world.publisher("A").header(121).items(121), world.publisher("B")
    told.ack(121)
    world.now_ns += (after_ms - 1) * MS
    sender.proof(121).block_end(121)
    assert world.found(until_ms=3 * HOUR_MS) == found


@pytest.mark.parametrize(("late", "found"), [(True, []), (None, ["ack_order"]), (False, ["ack_order"])])
def test_when_a_proof_was_sent_that_came_late_is_not_known(late: bool | None, found: list[str]) -> None:
    """The node may have had it when it acknowledged the block on another connection."""
    world = World()
    sender, told = world.publisher("A").header(121).items(121), world.publisher("B")
    told.ack(121)
    world.now_ns += 300 * MS
    sender.proof(121).block_end(121)
    for row in world.rows:
        if row["message"] and row["message"]["proof"] is not None:
            row["message"]["late"] = late
    assert world.found(until_ms=3 * HOUR_MS) == found


@pytest.mark.parametrize(("hole_wait_s", "found"), [(10, ["ack_order"]), (30, [])])
def test_a_source_may_hold_back_bytes_for_longer(hole_wait_s: int, found: list[str]) -> None:
    """A hole that may hold the proof in time is reported 25 s after the proof of another publisher."""
    world = World()
    world.waits = Waits.of(TcpOptions(), TcpOptions(hole_wait_ns=hole_wait_s * SECOND))
    lacking, sender = (world.publisher(name).header(121).items(121) for name in "BA")
    world.wait(1000)
    sender.ack(121)
    world.wait(500)
    sender.proof(121)
    for passed in range(8):
        world.wait(5000)
        world.call(Service.STATUS, "10.3.0.1").server_status(121).trailers()
        if passed == 4:
            lacking.miss(C)
    assert world.found() == found


@pytest.mark.parametrize(("lacks", "found"), [(0, []), (1, ["ack_order"])])
def test_the_acknowledgment_says_whether_the_node_had_the_proof(lacks: int, found: list[str]) -> None:
    """Its first sending wasn't captured. It comes again, when nobody waits for it any more."""
    world = World()
    call = world.publisher().header(121).items(121).ack(121)
    world.now_ns += 300 * MS
    call.proof(121).block_end(121)
    proof = next(row for row in world.rows if row["message"] and row["message"]["proof"] is not None)
    answer = next(row for row in world.rows if row["message"] and row["message"]["kind"] == "acknowledgement")
    answer["message"]["peer_received"] = proof["byte_end"] - lacks
    assert world.found(until_ms=3 * HOUR_MS) == found


@pytest.mark.parametrize(
    ("rule", "profile", "script"),
    [
        one
        for one in BROKEN
        if one[0]
        in (
            *("duplicate", "behind", "reenter", "last_known", "last_known_set", "last_block_again", "recheck"),
            *("backoff", "behind_repeat", "source_error_only_if_last", "node_error_all", "node_error_subscribers"),
            *("recorded_target", "catchup_range", "earliest"),
        )
        and one[2] is not _no_range
    ],
)
def test_what_came_late_breaks_no_rule_about_when_it_was_sent(rule: str, profile: str, script: Script) -> None:
    world = World(profile=profile)
    script(world)
    for row in world.rows:
        for told in filter(None, (row["message"], row["call_event"])):
            told["late"] = True
    assert rule not in world.found(until_ms=3 * HOUR_MS)


@pytest.mark.parametrize(("lacks", "found"), [(0, ["duplicate"]), (1, [])])
def test_an_acknowledgement_that_crossed_a_header_is_no_answer_to_it(lacks: int, found: list[str]) -> None:
    """It is about the block of another publisher."""
    world = World()
    known(world)
    world.publisher().block(110).ack(110)
    header = next(row for row in world.rows if row["message"] and row["message"]["header"] == 110)
    answers = [row for row in world.rows if row["message"] and row["message"]["kind"] == "acknowledgement"]
    answers[-1]["message"]["peer_received"] = header["byte_end"] - lacks
    assert world.found(until_ms=3 * HOUR_MS) == found


@pytest.mark.parametrize("code", ["RESET", "TIMEOUT", "ERROR"])
@pytest.mark.parametrize(("again", "found"), [(True, True), (False, False)])
def test_a_block_that_no_captured_call_sends_any_more_may_come_from_another_publisher(
    code: str, again: bool, found: bool
) -> None:
    world = World()
    known(world)
    other = world.publisher("B")
    world.publisher("A").header(121).items(121).end_stream(code).half_close().trailers()
    world.wait(100)
    if again:
        other.header(121).items(121)
    other.ack(121)
    rules = {"ack_order", "drop_unproven"} & set(world.found(until_ms=3 * HOUR_MS))
    assert bool(rules) == found


@pytest.mark.parametrize(("lacks", "decided"), [(0, "accepted"), (1, "duplicate")])
def test_a_header_that_crossed_an_acknowledgement_waits_for_its_own_answer(lacks: int, decided: str) -> None:
    world = World()
    known(world)
    world.publisher().header(121).ack(121).rest(121).duplicate(121).trailers()
    header = next(row for row in world.rows if row["message"] and row["message"]["header"] == 121)
    answer = next(row for row in reversed(world.rows) if row["message"] and row["message"]["kind"] == "acknowledgement")
    answer["message"]["peer_received"] = header["byte_end"] - lacks
    decisions = [one for one in world.told() if isinstance(one, DecisionRow) and one.offered == 121]
    assert decisions[0].actual == decided


@pytest.mark.parametrize(("after_ms", "found"), [(1999, []), (2000, ["last_known_set"])])
def test_the_first_block_of_a_node_may_have_crossed_an_answer_on_another_call(after_ms: int, found: list[str]) -> None:
    world = World()
    other = world.publisher().header(126)
    world.publisher("K").block(120).ack(120)
    world.now_ns += (after_ms - 1) * MS
    other.end("TIMEOUT")
    assert world.found() == found


def test_a_connection_that_fell_silent_may_hold_a_proof_back_until_it_ends() -> None:
    world = World()
    call = world.publisher().header(121).items(121).ack(121)
    assert world.found(until_ms=2 * HOUR_MS) == []
    assert world.found(until_ms=3 * HOUR_MS) == ["ack_order"]
    world.wait(2 * HOUR_MS)
    call.miss(C)
    assert world.found(until_ms=3 * HOUR_MS) == []


@pytest.mark.parametrize(("misses", "found"), [(True, []), (False, ["ack_order"])])
def test_what_was_missed_counts_however_late_the_rule_is_judged(misses: bool, found: list[str]) -> None:
    world = World()
    world.publisher().header(121).items(121).ack(121)
    other = world.publisher("B")
    if misses:
        # It may hold the block as a whole.
        other.miss(C)
    world.wait(1.5 * HOUR_MS)
    world.publisher("C", node=OTHER_NODE)
    assert world.found(until_ms=3 * HOUR_MS) == found


@pytest.mark.parametrize(("ends_first", "found"), [(True, []), (False, ["source_error_sent"])])
def test_what_a_subscriber_is_told_after_its_capture_ended_is_not_known(ends_first: bool, found: list[str]) -> None:
    world = World()
    known(world).half_close().trailers()
    subscriber = world.subscriber()
    world.publisher().header(121).end_stream("ERROR").half_close()
    if not ends_first:
        world.wait(2.5 * HOUR_MS)
    subscriber.close("capture_end", None)
    kinds = {"source_error_sent"}
    assert [name for name in world.found(until_ms=3 * HOUR_MS) if name in kinds] == found


def _unproven_before_a_silence(world: World) -> int:
    """A block is acknowledged without its proof, all calls end, and nothing is said until then."""
    _without_proof(world).half_close().trailers()
    world.wait(1.9 * HOUR_MS)
    return world.now_ns


@pytest.mark.parametrize(("held_back", "found"), [(True, []), (False, ["ack_order"])])
def test_what_missing_bytes_held_back_comes_after_a_silence(held_back: bool, found: list[str]) -> None:
    """A connection that is silent reports its hole when it goes on, perhaps after another one."""
    world = World()
    _unproven_before_a_silence(world)
    world.publisher("B", node=OTHER_NODE)
    world.wait(15_000)
    if held_back:
        world.publisher("C", opened="middle").rest(121)
    assert world.found(until_ms=3 * HOUR_MS) == found


def test_a_window_that_ends_within_a_silence_judges_nothing() -> None:
    world = World()
    after_ns = _unproven_before_a_silence(world)
    world.publisher("C", opened="middle").rest(121)
    assert [one for one in world.told(ends=[after_ns], until_ms=3 * HOUR_MS) if isinstance(one, Found)] == []


def test_what_is_heard_rarely_is_judged_once_all_silent_connections_have_ended() -> None:
    world = World()
    _without_proof(world).half_close().trailers()
    _goes_on(world, 3 * 60)
    assert world.found() == ["ack_order"]


def test_a_finding_names_the_block_that_was_offered() -> None:
    world = World()
    known(world)
    world.publisher().header(126).behind(118)
    world.publisher("B").header(127).behind(0)
    numbers = {one.rule.name: one.block_number for one in world.told() if isinstance(one, Found)}
    assert numbers == {"last_known": 126, "last_known_set": 127}
    world.publisher("C").header(110).behind(120)
    assert [row["block_number"] for row in world.of(VIOLATION)] == [110]


def test_real_nodes_are_read_more_mildly() -> None:
    world = World(TOLERANT_OPTIONS)
    _one_call_told(world)
    told = [one for one in world.told() if isinstance(one, Found)]
    assert [(one.rule.name, one.severity) for one in told] == [("node_error_all", Severity.WARNING)]
    assert set(TOLERANT) == {"node_error_all"}


@pytest.mark.parametrize(
    ("gaps", "broken"),
    [
        ((1000, 1000, 1000), True),
        ((1000, 1200, 2500), False),
        ((30_000, 30_000, 30_000), False),
        ((4000, 2000, 1000), True),
    ],
)
def test_gaps_of_real_publishers(gaps: tuple[int, ...], broken: bool) -> None:
    world = World(TOLERANT_OPTIONS)
    attempts(world, *gaps)
    assert world.found(until_ms=3 * HOUR_MS) == ["backoff"] * broken


@pytest.mark.parametrize("profile", ["A", "B"])
def test_the_answer_settles_the_header_that_it_is_to(profile: str) -> None:
    world = World(profile=profile)
    _wins_elsewhere(world)
    decisions = [one for one in world.told() if isinstance(one, DecisionRow) and one.publisher == publisher_name("B")]
    told = [(one.offered, one.actual, one.reported, one.legal) for one in decisions]
    assert told[0] == (121, "duplicate", 121, True)
    assert [(offered, actual) for offered, actual, *_ in told[1:]] == [(122, "none" if profile == "B" else "accepted")]


# Rows


def newest(told: list[Outcome]) -> dict[Any, Outcome]:
    """The newest row of each key, and every finding."""
    rows: dict[Any, Outcome] = {}
    for number, one in enumerate(told):
        match one:
            case Found():
                rows["found", one.rule.name, one.where, one.message] = one
            case DecisionRow():
                rows["decision", one.call, one.where] = one
            case SessionRow() | SubscriptionRow():
                rows["call", one.call] = one
            case CatchUpRow():
                rows["catch-up", one.node, one.where] = one
            case BlockRow():
                rows["block", one.block_number] = one
        assert number >= 0
    return rows


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("profile", "script"), [*((profile, script) for _, profile, script in BROKEN), *LEGAL])
def test_windows_cut_anywhere_tell_the_same(profile: str, script: Script, seed: int) -> None:
    world = World(profile=profile)
    script(world)
    random = Random(seed)
    times = sorted({row["arrived_at_ns"] for row in world.rows})
    ends = sorted(random.choices(times, k=4)) if seed else times
    once, cut = world.told(until_ms=2 * HOUR_MS), world.told(ends, until_ms=2 * HOUR_MS)
    assert newest(cut) == newest(once)
    assert sum(isinstance(one, Found) for one in cut) == sum(isinstance(one, Found) for one in once)


_NUMBERS = [0, 1, 2, 120, 121, 122, 123, 130, 2**63, 2**64 - 1]
_NO_NUMBER: list[tuple[str, Callable[[Call], object]]] = [
    ("publish", lambda call: call.half_close()),
    ("publish", lambda call: call.cancel()),
    ("any", lambda call: call.trailers()),
    ("any", lambda call: call.close()),
    ("any", lambda call: call.miss(C)),
]
_NUMBERED: list[tuple[str, Callable[[Call, int], object]]] = [
    *(("publish", action) for action in (Call.block, Call.header, Call.proof, Call.ack, Call.behind, Call.duplicate)),
    *(("publish", action) for action in (Call.skip, Call.resend)),
    ("publish", lambda call, number: call.end_stream("ERROR", number, number)),
    ("publish", lambda call, number: call.end("PERSISTENCE_FAILED" if call.profile.new else "INTERNAL_ERROR", number)),
    ("subscribe", Call.deliver),
    ("subscribe", lambda call, number: call.client(SubscribeRequest(number, number))),
    ("subscribe", lambda call, number: call.status("NOT_AVAILABLE" if number % 2 else "SUCCESS")),
    ("status", lambda call, number: call.server_status(min(number, 2**64 - 2))),
]


def _say_anything(world: World, random: Random) -> None:
    calls = [("publish", world.publisher("A")), ("publish", world.publisher("B"))]
    calls.append(("subscribe", world.call(Service.SUBSCRIBE, NODE.address, OTHER_NODE)))
    calls.append(("status", world.call(Service.STATUS, NODE.address, OTHER_NODE)))
    calls.append(("subscribe", world.subscriber()))
    for _ in range(random.randint(1, 30)):
        world.wait(random.choice([0, 0, 0, 100, 1000, 4 * HOUR_MS]))
        at = random.randrange(len(calls))
        kind, call = calls[at]
        if kind == "publish" and not random.randrange(8):
            calls[at] = (kind, world.publisher("AB"[at]))
        elif random.randrange(6):
            number = random.choice(_NUMBERS)
            random.choice([action for own, action in _NUMBERED if own == kind])(call, number)
        else:
            random.choice([action for own, action in _NO_NUMBER if own in (kind, "any")])(call)


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.sampled_from(["A", "B", "B2"]))
def test_anything_that_is_said_tells_the_same_through_windows(seed: int, profile: str) -> None:
    world, random = World(profile=profile), Random(seed)
    _say_anything(world, random)
    times = sorted({row["arrived_at_ns"] for row in world.rows})
    ends = sorted(random.choices(times, k=3))
    once, cut = world.told(until_ms=2 * HOUR_MS), world.told(ends, until_ms=2 * HOUR_MS)
    assert newest(cut) == newest(once)


@pytest.mark.parametrize(
    ("end", "by", "cause"),
    [
        (lambda call: call.cancel(), "publisher", "subscriber"),
        (lambda call: call.close(), "publisher", "subscriber"),
        (lambda call: call.reset(), "node", "lost"),
        (lambda call: call.close("reset", by=S), "node", "lost"),
        (lambda call: call.close(by=None), "closed", "lost"),
        (lambda call: call.trailers(), "node", "lost"),
    ],
)
def test_who_ended_a_call_is_who_closed_it(end: Callable[[Call], object], by: str, cause: str) -> None:
    world = World()
    end(world.publisher().block(121))
    end(world.subscriber().deliver(121))
    told = newest(world.told()).values()
    assert [one.ended_by for one in told if isinstance(one, SessionRow)] == [by]
    assert [one.cause for one in told if isinstance(one, SubscriptionRow)] == [cause]


def test_a_decision_says_what_was_known_and_answered() -> None:
    world = World()
    known(world)
    world.publisher().header(126).behind(120).block(121).ack(121)
    world.publisher("Q").header(110).duplicate(121).trailers()
    world.publisher("R").header(122)
    rows = [one for one in newest(world.told()).values() if isinstance(one, DecisionRow)]
    told = [(one.offered, one.last_known, one.expected, one.actual, one.reported, one.legal) for one in rows]
    assert told == [
        (120, None, None, "accepted", None, None),
        (126, 120, "behind", "behind", 120, True),
        (121, 120, "next", "accepted", None, True),
        (110, 121, "duplicate", "duplicate", 121, True),
        (122, 121, "next", None, None, None),
    ]


def test_a_session_says_where_its_publisher_went_next() -> None:
    world = World()
    first = world.publisher().header(121).end("ERROR", 120).trailers()
    second = world.publisher(node=OTHER_NODE).block(121).ack(121)
    rows = {one.call: one for one in newest(world.told()).values() if isinstance(one, SessionRow)}
    session = rows[f"{first.connection.connection_id.hex()}/1"]
    assert (session.node_code, session.ended_by, session.failed) == ("ERROR", "node", True)
    assert session.next_call == f"{second.connection.connection_id.hex()}/1"
    assert session.next_node == "10.0.0.2 40840"


def test_a_subscription_says_what_was_delivered_and_where_it_was_resumed() -> None:
    world = World()
    world.subscriber(start=121).deliver(121).deliver(122).status("ERROR").trailers()
    world.subscriber(node=OTHER_NODE, start=123, end=123).deliver(123).status("SUCCESS").trailers()
    first, second = (one for one in newest(world.told()).values() if isinstance(one, SubscriptionRow))
    assert (first.start_block_number, first.end_block_number, first.blocks) == (121, None, 2)
    assert (first.first_block, first.last_block, first.code, first.next_node) == (121, 122, "ERROR", "10.0.0.2 40840")
    assert (second.end_block_number, second.cause) == (123, "done")


def test_a_subscription_out_of_order_has_its_lowest_and_its_highest_block() -> None:
    world = World()
    world.subscriber(start=122).deliver(122).deliver(121).deliver(123).deliver(122)
    (row,) = (one for one in newest(world.told()).values() if isinstance(one, SubscriptionRow))
    assert (row.blocks, row.first_block, row.last_block) == (4, 121, 123)


def test_a_subscription_that_is_cut_within_blocks_counts_whole_ones_alone() -> None:
    world = World()
    call = world.subscriber(start=121)
    parts = [block(number, call.profile.name) for number in (121, 122, 123)]
    # What came before the capture ends a block; the last one has no proof.
    call.server(*map(BlockItems, (parts[0].items, parts[0].proof))).deliver(122)
    call.server(*map(BlockItems, (parts[2].header, parts[2].items)))
    (row,) = (one for one in newest(world.told()).values() if isinstance(one, SubscriptionRow))
    assert (row.blocks, row.first_block, row.last_block) == (1, 122, 122)


def ranges_of(world: World) -> list[str]:
    """Broken rules about what a node asks another one for, and whether it does."""
    asks = ("recorded_target", "catchup_range", "catch_up_not_started")
    return [rule for rule in world.found(3 * HOUR_MS) if rule in asks]


@pytest.mark.parametrize(("late_ms", "found"), [(20, []), (1900, []), (2001, ["recorded_target"])])
def test_a_status_captured_after_the_request_that_follows_it(late_ms: int, found: list[str]) -> None:
    world = World()
    _behind(world)
    status = world.call(Service.STATUS, NODE.address, OTHER_NODE)
    _fetch(world, 121, 124, None).deliver(121)
    world.wait(late_ms)
    status.server_status(124).trailers()
    assert ranges_of(world) == found


@pytest.mark.parametrize(("late_ms", "found"), [(20, []), (2001, ["catchup_range"])])
def test_a_second_status_captured_after_the_request_that_follows_it(late_ms: int, found: list[str]) -> None:
    world = World()
    _behind(world)
    first = _fetch(world, 121, 122, 122).deliver(121)
    first.deliver(122).status("SUCCESS").trailers()
    status = world.call(Service.STATUS, NODE.address, OTHER_NODE)
    _fetch(world, 123, 127, None)
    world.wait(late_ms)
    status.server_status(127).trailers()
    assert ranges_of(world) == found


@pytest.mark.parametrize(("last", "found"), [(121, []), (122, ["catchup_range"])])
def test_a_block_captured_after_the_request_for_the_next_one(last: int, found: list[str]) -> None:
    world = World()
    _behind(world)
    first = _fetch(world, 121, last, last)
    world.call(Service.STATUS, NODE.address, OTHER_NODE).server_status(127).trailers()
    _fetch(world, 122, 127, None)
    world.wait(10)
    if not found:
        first.deliver(121)
    assert [rule for rule in ranges_of(world) if rule == "catchup_range"] == found


@pytest.mark.parametrize(("early_ms", "found"), [(20, []), (60, ["recorded_target"])])
def test_a_higher_offer_captured_shortly_before_a_request(early_ms: int, found: list[str]) -> None:
    world = World()
    _behind(world, 125)
    _fetch(world, 121, 124).deliver(121).cancel()
    world.publisher("Q").header(128).behind(120)
    world.wait(early_ms)
    _fetch(world, 122, 124, None)
    assert [rule for rule in ranges_of(world) if rule == "recorded_target"] == found


def test_a_node_asks_before_the_answer_is_captured_that_says_it_is_behind() -> None:
    world = World()
    known(world)
    publisher = world.publisher("Q").header(128)
    fetch = _fetch(world, 121, 123, 123).deliver(121)
    publisher.behind(120)
    fetch.deliver(122).deliver(123).status("SUCCESS").trailers()
    _fetch(world, 124, 127, 127)
    world.wait(HOUR_MS)
    world.call(Service.STATUS, "10.3.0.1", OTHER_NODE).server_status(127).trailers()
    assert ranges_of(world) == []
    (row,) = (one for one in newest(world.told()).values() if isinstance(one, CatchUpRow))
    assert (row.last_available, row.fetched) == (127, 3)


def test_a_catch_up_says_what_was_asked_and_reached() -> None:
    world = World()
    _caught_up(world)
    (row,) = (one for one in newest(world.told()).values() if isinstance(one, CatchUpRow))
    assert (row.offered, row.reported, row.recorded_target, row.state, row.fetched) == (128, 120, 128, "done", 7)
    assert [asked[1:] for asked in row.asked] == [("10.0.0.2 40840", 121, 127)]


def test_a_node_without_blocks_reports_none() -> None:
    world = World()
    world.publisher().header(5).behind(NO_BLOCK)
    rows = newest(world.told()).values()
    (row,) = (one for one in rows if isinstance(one, CatchUpRow))
    assert (row.offered, row.reported, [one[3] for one in row.attempts]) == (5, None, [None])
    (decision,) = (one for one in rows if isinstance(one, DecisionRow))
    assert (decision.actual, decision.reported, decision.last_known) == ("behind", None, None)


def test_a_finding_about_no_block_names_none() -> None:
    world = World()
    known(world)
    world.publisher().header(126).behind(NO_BLOCK)
    found = [one for one in world.told() if isinstance(one, Found)]
    assert [one.rule.name for one in found] == ["last_known"]
    assert all(one.block_number != NO_BLOCK for one in found)


def test_a_block_says_who_sent_it_and_that_it_chains() -> None:
    world = World()
    first, second = world.publisher("A").header(121), world.publisher("B").header(121).skip(121)
    first.rest(121).ack(121).block(122)
    second.ack(121)
    rows = [one for one in newest(world.told()).values() if isinstance(one, BlockRow)]
    assert [(one.block_number, one.publishers, one.chains) for one in rows] == [
        (121, (publisher_name("A"), publisher_name("B")), True),
        (122, (publisher_name("A"),), None),
    ]
    assert rows[0].block_root == block(121).root == rows[1].previous_hash
    assert dict(rows[0].item_counts or ())["event_header"] == 1
    assert (rows[0].acknowledged_at_ns is None, rows[1].acknowledged_at_ns) == (False, None)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MOST_CALLS", "MOST_BLOCKS", "MOST_NODES", "MOST_PUBLISHERS", "MOST_PENDING", "MOST_WAITING"):
        for module in (across_known, acknowledgements, decisions, publishers, subscribers):
            monkeypatch.setattr(module, name, 8, raising=False)
    world = World()
    for number in range(101, 131):
        world.publisher(f"P{number}").header(number).end("ERROR", number - 1).trailers()
        world.subscriber(f"10.2.0.{number}").deliver(number)
    told = world.told(ends=[world.now_ns])
    rows = newest(told)
    assert sum(isinstance(one, BlockRow) for one in rows.values()) == 30
    assert sum(isinstance(one, SessionRow) for one in rows.values()) == 30


def test_of_too_many_calls_several_are_forgotten_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(across_known, "MOST_CALLS", 64)
    world = World()
    for number in range(101, 101 + 65):
        world.publisher(f"P{number}").header(number)
    fold = Fold(HieroOptions())
    rows = (row for row in world.rows if row["row_kind"] in EVENT_KINDS)
    events = (event_of(row) for row in sorted(rows, key=order_of))
    for event in filter(None, events):
        fold.take(event)
    assert len(CODEC.read(fold.snapshot()).calls) == 65 - 64 // 16


def test_state_of_another_version_is_refused() -> None:
    state = json.loads(Fold(HieroOptions()).snapshot())
    with pytest.raises(StateVersionError):
        Fold(HieroOptions(), json.dumps(state | {"version": 0}))


def test_times_are_those_of_the_options() -> None:
    world = World(replace(HieroOptions(), in_flight_ms=10_000))
    known(world)
    world.publisher().header(126).end("SUCCESS", 118)
    assert world.found() == []
    assert SECOND == 1000 * MS


def _obeyed(world: World) -> list[tuple[int, bool | None, bool | None]]:
    """Of each header of a call, in their order."""
    decisions = {one.where: one for one in world.told() if isinstance(one, DecisionRow)}
    by_place = sorted(decisions.values(), key=lambda one: one.where.byte_end or 0)
    return [(one.offered, one.skip_obeyed, one.resend_obeyed) for one in by_place]


@pytest.mark.parametrize(
    ("wait_ms", "then", "obeyed"),
    [
        (0, lambda call: call.header(122), True),
        # It may have been under way.
        (0, lambda call: call.rest(121).header(122), None),
        (999, lambda call: call.items(121), None),
        (1000, lambda call: call.items(121), False),
        (0, lambda call: call.items(121).header(122), True),
        (0, lambda call: call.ack(121).header(122), True),
        (0, lambda call: call.ack(121), None),
    ],
)
def test_who_is_told_to_skip_a_block_stops_with_it(
    wait_ms: int, then: Callable[[Any], Any], obeyed: bool | None
) -> None:
    world = World()
    call = world.publisher().header(121).skip(121)
    world.wait(wait_ms - 1)
    then(call)
    assert _obeyed(world)[0] == (121, obeyed, None)


@pytest.mark.parametrize(
    ("wait_ms", "then", "obeyed"),
    [
        (0, lambda call: call.header(121), True),
        (0, lambda call: call.header(123).header(121), True),
        (999, lambda call: call.header(123), None),
        (1000, lambda call: call.header(123), False),
        (0, lambda call: call.end_stream(), None),
    ],
)
@pytest.mark.parametrize("skipped", [True, False])
def test_who_is_asked_for_a_block_offers_it_again(
    wait_ms: int, then: Callable[[Any], Any], obeyed: bool | None, skipped: bool
) -> None:
    world = World()
    call = world.publisher().header(121)
    call = call.skip(121).header(122).resend(121) if skipped else call.resend(121)
    world.wait(wait_ms - 1)
    then(call)
    assert _obeyed(world)[0] == (121, True if skipped else None, obeyed)
