"""What a publisher knew when it wrote its bytes: an answer that crossed them, full windows, bytes that came again.

Whatever may have waited in a send buffer breaks no rule; what can't have waited does.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.hiero_captures import judge_landed
from tests.support.hiero_wire import CLIENT, PORT, SERVER, Call, Network
from tests.support.landed import landed_packets
from wirehouse_codecs.hiero.options import HieroOptions

#: An answer, the block that is refused by it, the block that it names, and the rule that going on breaks.
ANSWERS = [
    ("behind", 125, 120, "resend_from_l1", "A"),
    ("behind", 125, 120, "resend_from_l1", "B"),
    ("duplicate", 110, 120, "recheck", "A"),
    ("skip", 121, 121, "skip_pair", "B"),
]


def found(net: Network) -> list[str]:
    return sorted(judge_landed(landed_packets(net.close().packets), HieroOptions(), PORT).found.elements())


def refused(net: Network, answer: str, offered: int, number: int) -> Call:
    """A header, and items that cross the answer to it."""
    net.publisher("N9").block(120).ack(120).leave(120)
    net.wait(100)
    call = net.publisher().header(offered)
    getattr(call, answer)(number)
    call.unaware = True
    call.items(offered)
    call.unaware = False
    return call


def leave(call: Call, answer: str) -> None:
    if answer == "skip":
        call.ack(121)
    call.wait(100).leave(120, "TOO_FAR_BEHIND" if answer == "behind" else "RESET")


@pytest.mark.parametrize("acknowledges", [True, False])
@pytest.mark.parametrize(("after_ms", "breaks"), [(999, False), (1000, True)])
@pytest.mark.parametrize(("answer", "offered", "number", "rule", "profile"), ANSWERS)
def test_an_answer_that_crossed_items_is_known_after_a_pause(
    answer: str, offered: int, number: int, rule: str, profile: str, after_ms: int, breaks: bool, acknowledges: bool
) -> None:
    net = Network(profile)
    call = refused(net, answer, offered, number)
    since_ns = net.now_ns
    if acknowledges:
        call.line.acknowledge(SERVER)
        call.line.acknowledge(CLIENT)
    net.now_ns = since_ns + (after_ms - 1) * 10**6
    call.items(offered)
    leave(call, answer)
    assert found(net) == ([rule] if breaks else [])


def _full(call: Call, size: int) -> None:
    """The node's host takes `size` bytes for three seconds."""
    call.line.windows[SERVER] = size
    call.line.acknowledge(SERVER)
    call.wait(3000).line.windows[SERVER] = 65_535
    call.line.acknowledge(SERVER)


def _again(call: Call, again: bool) -> None:
    """The last items were lost behind the tap, and are sent again before what waited for them."""
    call.wait(3000)
    if again:
        call.line.again(CLIENT)


@pytest.mark.parametrize(
    ("wait", "waits", "goes_on"), [(_full, 0, 1), (_again, True, False)], ids=["full window", "sent again"]
)
@pytest.mark.parametrize(("answer", "offered", "number", "rule", "profile"), ANSWERS)
def test_what_may_have_waited_breaks_no_rule(
    answer: str,
    offered: int,
    number: int,
    rule: str,
    profile: str,
    wait: Callable[[Call, int], None],
    waits: int,
    goes_on: int,
) -> None:
    for how, rules in ((waits, []), (goes_on, [rule])):
        net = Network(profile)
        call = refused(net, answer, offered, number)
        wait(call, how)
        call.items(offered)
        leave(call, answer)
        assert found(net) == rules


@pytest.mark.parametrize("profile", ["A", "B"])
@pytest.mark.parametrize(("end_first", "rules"), [(True, ["end_last"]), (False, [])])
def test_what_follows_on_its_own_end_a_publisher_sends_knowingly(
    end_first: bool, rules: list[str], profile: str
) -> None:
    """Both sides end the call at once."""
    net = Network(profile)
    call = net.publisher().block(121).ack(121).header(122).end("TIMEOUT", 121)
    call.unaware = True
    if not end_first:
        call.items(122)
    call.end_stream("RESET", 1, 121)
    if end_first:
        call.items(122)
    call.trailers()
    assert found(net) == rules


@pytest.mark.parametrize("profile", ["A", "B"])
def test_a_block_that_is_complete_stays_so_after_a_second_answer(profile: str) -> None:
    """The header after it may have been written before the first answer was read."""
    net = Network(profile)
    net.publisher("N9").block(120).ack(120).leave(120)
    net.wait(100)
    call = net.publisher().block(125).header(126).behind(120).rest(126).behind(120).header(127).behind(120)
    call.block(121).ack(121).leave(121)
    assert found(net) == []
