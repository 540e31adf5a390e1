"""A node that is behind and asks two others: for a part each, in any order, or for the same blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.codecs.hiero.test_knowledge import found
from tests.support.hiero_wire import NODE, OTHER, Call, Line, Network

THIRD = "10.0.0.3"


def behind(net: Network, last: tuple[int | None, int | None] = (127, 127)) -> tuple[Line, Line]:
    """A node that lacks 121 to 127 has asked two others for their last block."""
    net.publisher("N9").block(120).ack(120).leave(120)
    net.wait(100)
    net.publisher().header(128).behind(120).leave(120, "TOO_FAR_BEHIND")
    lines = net.line(NODE, OTHER), net.line(NODE, THIRD)
    for line, number in zip(lines, last, strict=True):
        if number is not None:
            net.status(number, line=line)
    return lines


def parts(net: Network, asked: Sequence[tuple[Line, int, int]], pause_ms: int, ends_at_once: bool = True) -> None:
    """Ranges that are asked for one after another; they are delivered at once, or in the end."""
    calls = []
    for line, first, last in asked:
        calls.append((net.subscriber(first, last, line=line), range(first, last + 1)))
        if ends_at_once:
            deliver(*calls.pop())
        net.wait(pause_ms)
    for one in calls:
        deliver(*one)
    net.wait(500)
    net.publisher().block(128).ack(128).leave(128)


def deliver(call: Call, numbers: range) -> None:
    call.deliver(*numbers).end_subscription("SUCCESS")


def second_first(net: Network, last: int) -> None:
    first, second = behind(net, (124, 127))
    parts(net, [(second, 125, 127), (first, 121, last)], 3000, ends_at_once=False)


def overlapping(net: Network, start: int) -> None:
    first, second = behind(net, (125, 127))
    parts(net, [(first, 121, 125), (second, start, 127)], 10)


def in_turn(net: Network, pause_ms: int) -> None:
    """The next part is asked for so long after the one before has come."""
    first, second = behind(net)
    parts(net, [(first, 121, 124), (second, 125, 127)], pause_ms)


def unreported(net: Network, last: int) -> None:
    """Nobody saw what the second one has."""
    first, second = behind(net, (124, None))
    parts(net, [(first, 121, 124), (second, 125, last)], 3000)


CASES: list[tuple[str, Callable[..., None], object, object]] = [
    ("catchup_range", second_first, 124, 123),
    ("catchup_range", overlapping, 121, 120),
    ("catchup_range", overlapping, 126, 127),
    ("recorded_target", in_turn, 1990, 2010),
]


@pytest.mark.parametrize(("rule", "script", "good", "bad"), CASES)
@pytest.mark.parametrize("profile", ["A", "B"])
def test_parts_of_two_others(rule: str, script: Callable[..., None], good: object, bad: object, profile: str) -> None:
    for value, broken in ((good, False), (bad, True)):
        net = Network(profile)
        script(net, value)
        assert (rule in found(net)) is broken


def test_the_last_block_of_a_node_that_reported_none_is_unknown() -> None:
    net = Network()
    unreported(net, 127)
    assert found(net) == []


def test_a_node_that_has_what_it_needs_may_ask_for_anything() -> None:
    net = Network()
    first, second = behind(net)
    for start, end, line in ((121, 127, first), (131, 132, second)):
        deliver(net.subscriber(start, end, line=line), range(start, end + 1))
        net.wait(3000)
    assert found(net) == []
