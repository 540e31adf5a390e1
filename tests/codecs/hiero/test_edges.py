"""Each rule at its very edge: what keeps it by one breaks nothing, and what goes one further breaks that rule alone.

The captures come from an encoder of their own (tests/support/hiero_wire.py), which shares nothing with the codec.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.support.hiero_captures import judge_landed
from tests.support.hiero_wire import (
    HOUR_MS,
    MS,
    NODE,
    NONE,
    OTHER,
    PORT,
    Call,
    Network,
    block,
    held,
    made,
    put,
)
from tests.support.landed import landed_packets
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.rules import RULES

Script = Callable[[Network], object]


class Edge(NamedTuple):
    """What just keeps a rule, and what just breaks it."""

    rule: str
    good: Script
    bad: Script
    profile: str = "B"


def edge(rule: str, script: Callable[..., object], good: object, bad: object, profile: str = "B") -> Edge:
    """The two sides of one script that differ by its last argument."""
    return Edge(rule, lambda net: script(net, good), lambda net: script(net, bad), profile)


# Scripts


def known(net: Network, number: int = 120, name: str = "N9") -> None:
    """The node has verified `number`, and nobody publishes."""
    net.publisher(name).block(number).ack(number).leave(number)
    net.wait(100)


def message_of(net: Network, bytes_left: int) -> None:
    """The last field of a message says that it has three bytes."""
    call = net.publisher().client(held(1, block(121).opening) + varied(bytes_left))
    call.rest(121).ack(121).leave(121)


def varied(size: int) -> bytes:
    return b"\x7a\x03" + b"abc"[:size]


def item_number(net: Network, number: int) -> None:
    one = made(121, "B", bytes(48), [(4, b"\x08\x01"), (number, b"x")])
    whole_block(net, one.opening, one.middle, one.closing)


def item_fields(net: Network, fields: int) -> None:
    one = made(121, "B", bytes(48), [(4, b"\x08\x01")])
    item = b"".join(held(4 + number, b"\x08\x01") for number in range(fields))
    whole_block(net, one.opening, one.middle + held(1, item), one.closing)


def footers(net: Network, count: int) -> None:
    one = made(121, "B", bytes(48), [(4, b"\x08\x01")], count)
    whole_block(net, one.opening, one.middle, one.closing)


def whole_block(net: Network, *runs: bytes) -> None:
    call = net.publisher()
    for run in runs:
        call.set(run)
    call.client(held(3, put(1, 121))).ack(121).leave(121)


def publisher_code(net: Network, code: int) -> None:
    net.publisher().block(121).ack(121).end_stream(code, 1, 121).half_close().trailers()


def node_code(net: Network, code: int) -> None:
    net.publisher().block(121).ack(121).end(code, 121).trailers()


def subscription_code(net: Network, code: int) -> None:
    net.subscriber(121, 121).deliver(121).server(b"\x08" + bytes([code])).trailers()


def block_end(net: Network, number: int) -> None:
    net.publisher().header(121).items(121).proof(121, number).ack(121).leave(121)


def sets(net: Network, apart: bool) -> None:
    """Two blocks, in one set or in two."""
    first, second = block(121), block(122)
    call = net.publisher().header(121).items(121)
    runs = (first.closing, second.opening)
    for run in runs if apart else (b"".join(runs),):
        call.set(run)
    call.rest(122).ack(121, 122).leave(122)


def header_first(net: Network, first: bool) -> None:
    call = net.publisher()
    if first:
        call.header(121)
    call.items(121)
    if first:
        call.proof(121).ack(121)
    call.leave(121)


def refused_by_behind(net: Network, number: int) -> None:
    known(net)
    net.publisher().header(number).behind(120).wait(100).leave(120, "TOO_FAR_BEHIND")


def duplicate_names(net: Network, reported: int) -> None:
    known(net)
    net.publisher().header(123).duplicate(reported)


def skipped(net: Network, number: int) -> None:
    known(net)
    net.publisher().header(number).skip(number).wait(10).leave(120)


def acknowledged(net: Network, number: int) -> None:
    known(net)
    net.publisher().block(number).ack(number).leave(number)


def no_answer_before(net: Network, answered: bool) -> None:
    """An old header is passed over in silence; A answers it by an acknowledgement that it exists."""
    known(net)
    call = net.publisher().header(119)
    if answered:
        call.duplicate(120)
    call.wait(100).block(121).ack(121).leave(121)


def later_header(net: Network, number: int) -> None:
    known(net)
    net.publisher().block(121).ack(121).block(number).ack(number).leave(number)


def later_behind(net: Network, number: int) -> None:
    known(net)
    call = net.publisher().block(121).ack(121).wait(100).header(number)
    call.behind(121).wait(100).leave(121, "TOO_FAR_BEHIND")


def reported_without_number(net: Network, last: int) -> None:
    """0 is the number of block 0, and says nothing if there are more."""
    known(net, last)
    net.publisher().header(last + 2).behind(0).wait(100).leave(last, "TOO_FAR_BEHIND")


def reported_behind(net: Network, reported: int) -> None:
    known(net)
    net.publisher().header(125).behind(reported).wait(100).leave(120, "TOO_FAR_BEHIND")


def reported_by_end(net: Network, reported: int) -> None:
    known(net)
    net.publisher().header(121).wait(2000).end("TIMEOUT", reported).trailers()


def offered_again(net: Network, number: int) -> None:
    """After a duplicate answer, on another call."""
    known(net)
    net.publisher().header(110).duplicate(120).wait(2000).line.close()
    net.publisher().header(number).duplicate(120)


def offered_again_unaware(net: Network, unaware: bool) -> None:
    """Long after a duplicate answer, on another call of the connection: its host hadn't received the answer or had."""
    known(net)
    first = net.publisher().header(110).duplicate(120).wait(2000)
    first.line.round_trip_ns = 3000 * MS if unaware else 0
    net.publisher(line=first.line).header(110).duplicate(120)


def offered_on(net: Network, number: int) -> None:
    known(net)
    net.publisher().header(110).duplicate(120).wait(100).header(number).duplicate(120).leave(120)


def items_after_duplicate(net: Network, after_ms: int) -> None:
    known(net)
    net.publisher().header(110).duplicate(120).wait(after_ms - 1).items(110).wait(100).leave(120)


def items_without_a_pause(net: Network, until_ms: int) -> None:
    """After a duplicate answer the publisher goes on for so long, and is never silent for a second."""
    known(net)
    call = net.publisher().header(110).duplicate(120)
    end_ns = net.now_ns + until_ms * MS
    while end_ns - net.now_ns > 999 * MS:
        call.wait(900).items(110)
    call.wait((end_ns - net.now_ns) / MS - 1).items(110).wait(100).leave(120)


def items_unaware(net: Network, unaware: bool, then: str = "duplicate") -> None:
    """Long after the answer, which the publisher's host hadn't received or had."""
    known(net)
    call = net.publisher().header(110 if then == "duplicate" else 125)
    getattr(call, then)(120).wait(1000)
    call.unaware = unaware
    call.items(110 if then == "duplicate" else 125)
    call.unaware = False
    call.wait(100).leave(120, "TOO_FAR_BEHIND" if then == "behind" else "RESET")


def header_after_behind(net: Network, number: int) -> None:
    known(net)
    call = net.publisher().header(125).behind(120).wait(100).header(number)
    if number == 121:
        call.rest(121).ack(121).leave(121)
    else:
        call.leave(120, "TOO_FAR_BEHIND")


def goes_on_unaware(net: Network, unaware: bool, then: str) -> None:
    """Long after an answer the publisher, whose host hadn't received it or had, offers another block, or ends."""
    known(net)
    offered = 110 if then == "duplicate" else 125
    call = net.publisher().header(offered)
    (call.duplicate if then == "duplicate" else call.behind)(120).wait(1000)
    call.unaware = unaware
    if then == "end":
        call.end_stream("RESET", 1, 120)
    else:
        call.header(126 if then == "behind" else 110)
    call.unaware = False
    if then == "end":
        call.half_close().trailers()
        return
    (call.duplicate if then == "duplicate" else call.behind)(120).wait(100)
    call.block(121).ack(121).leave(121)


def aware_later(net: Network, after_ms: int, then: str) -> None:
    """The publisher goes on so long after the node spoke again: its host hadn't received the answer, or the end."""
    known(net)
    call = net.publisher().header(125 if then == "behind" else 121)
    (call.behind(120) if then == "behind" else call.end("TIMEOUT", 120)).wait(1000)
    call.unaware = True
    call.items(125)
    call.unaware = False
    call.ping().wait(after_ms - 1).items(125)
    if then == "behind":
        call.wait(100).leave(120, "TOO_FAR_BEHIND")
    else:
        call.trailers()


def range_of_end(net: Network, earliest: int) -> None:
    net.publisher().block(121).ack(121).end_stream("RESET", earliest, 121).half_close().trailers()


def no_range(net: Network, latest: int) -> None:
    """Without an earliest block there has to be a latest one."""
    net.publisher().block(121).ack(121).wait(2000).end_stream("RESET", 0, latest).half_close().trailers()


def code_after_behind(net: Network, code: str) -> None:
    known(net)
    net.publisher().header(125).behind(120).wait(1000).leave(120, code)


def after_node_end(net: Network, after_ms: int) -> None:
    call = net.publisher().header(121).end("TIMEOUT", 120)
    call.wait(after_ms - 1).items(121).trailers()


def after_own_end(net: Network, after: bool) -> None:
    call = net.publisher().block(121).ack(121)
    if not after:
        call.header(122)
    call.end_stream("RESET", 1, 121)
    call.wait(100)
    if after:
        call.header(122)
    call.half_close().trailers()


def acknowledged_twice(net: Network, second: int) -> None:
    net.publisher().block(121).block(122).ack(121, second, *(() if second == 122 else (122,))).leave(122)


def acknowledged_before_proof(net: Network, early: bool) -> None:
    call = net.publisher().header(121).items(121)
    if early:
        call.ack(121).proof(121)
    else:
        call.proof(121).ack(121)
    call.leave(121)


def skip_names(net: Network, number: int) -> None:
    other = net.publisher("N2").header(121)
    call = net.publisher().header(121).skip(number)
    other.rest(121).ack(121).leave(121)
    call.ack(121).leave(121)


def skip_followed(net: Network, followed: bool) -> None:
    other = net.publisher("N2").header(121)
    call = net.publisher().header(121).skip(121).wait(2000)
    other.rest(121).ack(121)
    if followed:
        call.ack(121)
    call.leave(121)
    other.leave(121)


def skip_acknowledged(net: Network, number: int) -> None:
    """The call was told of a block before: of the skipped one, or of the one below it."""
    other = net.publisher("N2").block(number)
    call = net.publisher()
    other.ack(number)
    call.ack(number).header(121).skip(121).wait(2000).leave(number)
    other.leave(number)


def items_after_skip(net: Network, after_ms: int) -> None:
    other = net.publisher("N2").header(121)
    call = net.publisher().header(121).skip(121).wait(after_ms - 1).items(121)
    other.rest(121).ack(121).leave(121)
    call.ack(121).leave(121)


def header_after_resend(net: Network, number: int) -> None:
    other = net.publisher("N2").header(121)
    call = net.publisher().header(121).skip(121)
    other.leave(120, "RESET")
    call.resend(121).wait(1000).header(number)
    if number == 121:
        call.rest(121).ack(121).leave(121)
    else:
        call.leave(120)


def resent(net: Network, number: int) -> None:
    call = net.publisher().block(121).ack(121).header(122).resend(number).wait(100).header(number)
    if number == 122:
        call.rest(122).ack(122).leave(122)
    else:
        call.leave(121)


def half_closed(net: Network, whole: bool) -> None:
    call = net.publisher().header(121).items(121)
    if whole:
        call.proof(121).ack(121)
    call.half_close().trailers()


def ended_by_node(net: Network, status: bool) -> None:
    call = net.publisher().block(121).ack(121)
    if status:
        call.end("SUCCESS", 121)
    call.trailers()


def delivered(net: Network, second: int) -> None:
    net.subscriber(121, 122).deliver(121, second).cancel()


def delivered_after_status(net: Network, after: bool) -> None:
    call = net.subscriber(121, NONE)
    if not after:
        call.deliver(121)
    call.server(put(1, 1))
    if after:
        call.deliver(121)
    call.trailers()


def delivered_partly(net: Network, whole: bool) -> None:
    call = net.subscriber(121).opening(121)
    if whole:
        call.ending(121)
    call.deliver(122).cancel()


def delivered_first(net: Network, number: int) -> None:
    net.subscriber(121).deliver(number).cancel()


def delivered_last(net: Network, end: int) -> None:
    net.subscriber(121, end).deliver(121, 122).end_subscription("SUCCESS")


def succeeded_early(net: Network, end: int) -> None:
    net.subscriber(121, end).deliver(121, 122).end_subscription("SUCCESS")


def subscription_ended(net: Network, status: bool) -> None:
    call = net.subscriber(121, 121).deliver(121)
    if status:
        call.server(put(1, 1))
    call.trailers()


def proof_unanswered(net: Network, answered: bool) -> None:
    call = net.publisher().block(121)
    if answered:
        call.ack(121)
    call.wait(2000).leave(120)


def ended_after_proof(net: Network, after_ms: int) -> None:
    """The publisher ends its call so long after a proof that has no answer."""
    call = net.publisher().header(121).items(121)
    proof_ns = net.now_ns + MS
    call.proof(121).wait(after_ms - (net.now_ns - proof_ns) / MS - 1).leave(120)


def other_ended_after_proof(net: Network, after_ms: int) -> None:
    """The same, after another publisher's error."""
    net.publisher("N2").block(120).ack(120).header(121).leave(120, "ERROR")
    ended_after_proof(net, after_ms)


def attempts(net: Network, *gaps_us: int) -> None:
    """Failed attempts, and the gaps from the end of each to the begin of the next."""
    ended_ns = None
    for number, gap in enumerate((0, *gaps_us)):
        line = net.line("10.1.0.1")
        if ended_ns is not None:
            net.now_ns = ended_ns + gap * 1000 - MS
        call = net.publisher(line=line).header(128 + number).behind(120 + 2 * number)
        call.end_stream("TOO_FAR_BEHIND", 1, 128)
        ended_ns = net.now_ns
        call.half_close().trailers()
        line.close()


def third_gap(net: Network, gap_us: int) -> None:
    attempts(net, 1_000_000, 1_300_000, gap_us)


def capped_gap(net: Network, gap_us: int) -> None:
    attempts(net, 30_000_000, 30_000_000, gap_us)


def distances(net: Network, last: int) -> None:
    """How far ahead of the node a publisher is."""
    for wait, offered in ((1000, 128), (2000, 128), (0, 120 + last)):
        net.publisher().header(offered).behind(120).leave(120, "TOO_FAR_BEHIND")
        net.wait(wait)


def behind_once(net: Network, offered: int = 128) -> None:
    known(net)
    net.publisher().header(offered).behind(120).leave(120, "TOO_FAR_BEHIND")


def fetch(net: Network, start: int, end: int | None, last: int) -> Call:
    """The node asks another one for its status, and for blocks."""
    line = net.line(NODE, OTHER)
    net.status(last, line=line)
    return net.subscriber(start, end, line=line)


def fetched_before_retry(net: Network, last: int) -> None:
    behind_once(net)
    fetch(net, 121, None, 140).deliver(*range(121, last + 1)).cancel()
    net.wait(1000)
    net.publisher().block(128).ack(128).leave(128)


def fetch_ends(net: Network, end: int) -> None:
    behind_once(net)
    fetch(net, 121, end, 127).deliver(*range(121, end + 1)).end_subscription("SUCCESS")


def fetch_starts(net: Network, start: int) -> None:
    behind_once(net)
    fetch(net, start, 127, 127).deliver(*range(start, 128)).end_subscription("SUCCESS")


def fetch_gap(net: Network, last: int) -> None:
    behind_once(net)
    fetch(net, 121, None, 140).deliver(*range(121, last + 1)).cancel()
    later(net)


def later(net: Network) -> None:
    """The capture goes on after all patience."""
    net.wait(HOUR_MS)
    net.status(140, node=OTHER)


def asks_nobody(net: Network, asks: bool) -> None:
    behind_once(net, 122)
    fetch(net, 121, 121, 121).deliver(121).end_subscription("SUCCESS")
    net.publisher().block(122).ack(122).header(124).behind(122).leave(122, "TOO_FAR_BEHIND")
    if asks:
        fetch(net, 123, 123, 123).deliver(123).end_subscription("SUCCESS")
    later(net)


def fetches_on(net: Network, after_ms: int) -> None:
    """A block is fetched that was proven so long after the node had caught up."""
    behind_once(net, 122)
    call = fetch(net, 121, None, 140).deliver(121)
    net.publisher().block(122).ack(122)
    proven_ns = net.now_ns + after_ms * MS
    other = net.publisher("N2").header(123).items(123)
    net.now_ns = proven_ns - MS
    other.proof(123).ack(123)
    call.deliver(122, 123).cancel()
    other.leave(123)


def dropped(net: Network, whole: bool) -> None:
    """A block whose publisher fails, acknowledged to the one that sends it to its end, or only begins it."""
    net.publisher("N2").header(121).items(121).leave(120, "ERROR")
    call = net.publisher().header(121).items(121)
    if whole:
        call.proof(121)
    call.ack(121).leave(121)


def source_error(net: Network, after_ms: int) -> None:
    """Another publisher goes on so long after a subscriber was told."""
    other = net.publisher("N2").header(121)
    subscriber = net.subscriber()
    net.publisher().block(121).ack(121).end_stream("ERROR", 1, 121).half_close().trailers()
    subscriber.server(put(1, 3)).wait(after_ms - 1)
    other.items(121).wait(5000).end_stream("RESET", 1, 121).half_close().trailers()


def subscriber_untold(net: Network, after_ms: int) -> None:
    """A block is delivered that was proven so long after the last publisher failed."""
    subscriber = net.subscriber(121)
    call = net.publisher().header(121).end_stream("ERROR", 1, 120)
    proven_ns = net.now_ns + after_ms * MS
    other = net.publisher("N2").header(121).items(121)
    net.now_ns = proven_ns - MS
    other.proof(121).ack(121)
    subscriber.deliver(121).cancel()
    call.half_close().trailers()
    other.leave(121)


def others_answered(net: Network, answered: bool) -> None:
    call = net.publisher("N2").block(121).ack(121)
    net.publisher().block(121).ack(121).header(122).leave(121, "ERROR")
    call.block(122)
    if answered:
        call.ack(122)
    call.wait(2000).leave(121)


def other_call_told(net: Network, after_ms: int) -> None:
    """After an error of the node another call is acknowledged so much later."""
    other = net.publisher("N2").block(121).answer()
    call = net.publisher().header(121).end("ERROR", 120)
    other.wait(after_ms - 1).ack(121).end("ERROR", 121).trailers()
    call.trailers()


def other_subscriber_told(net: Network, after_ms: int) -> None:
    """A block is delivered that was proven so long after the node's error."""
    subscriber = net.subscriber(121)
    other = net.publisher("N2").header(121).items(121).answer()
    call = net.publisher().header(121).end("ERROR", 120)
    proven_ns = net.now_ns + after_ms * MS
    other.end("ERROR", 120)
    net.now_ns = proven_ns - MS
    other.proof(121).trailers()
    subscriber.deliver(121).end_subscription("ERROR")
    call.trailers()


def publisher_returns(net: Network, returns: bool) -> None:
    net.publisher().header(121).end("ERROR", 120).trailers()
    net.wait(HOUR_MS - 1000)
    if returns:
        net.publisher(node=OTHER).block(121).ack(121).leave(121)
    later(net)


def subscriber_returns(net: Network, returns: bool) -> None:
    net.subscriber(121).deliver(121).end_subscription("ERROR")
    net.wait(HOUR_MS - 1000)
    if returns:
        net.subscriber(122, node=OTHER).deliver(122).cancel()
    later(net)


def chained(net: Network, flipped: int) -> None:
    """One bit of the previous hash."""
    net.publisher().block(121).ack(121).leave(121)
    second = block(122, net.profile, flipped)
    call = net.publisher("N2").set(second.opening).set(second.middle).set(second.closing)
    if net.profile == "B":
        call.client(held(3, put(1, 122)))
    call.ack(122).leave(122)


def unoffered(net: Network, number: int) -> None:
    net.publisher().block(121).ack(number).leave(121)


EDGES = [
    edge("malformed_message", message_of, 3, 2),
    *(edge("item_refused", item_number, good, bad) for good, bad in ((20, 21), (35, 36), (39, 38), (43, 42), (19, 18))),
    edge("item_refused", item_fields, 1, 2),
    edge("code_set", publisher_code, 1, 0),
    edge("code_set", node_code, 1, 0),
    edge("code_set", subscription_code, 1, 0),
    edge("structure", block_end, 121, 122),
    edge("structure", sets, True, False),
    edge("structure", header_first, True, False),
    edge("structure", footers, 1, 2),
    edge("structure", footers, 1, 0),
    edge("next", refused_by_behind, 122, 121),
    edge("next", refused_by_behind, 122, 121, "A"),
    edge("next", duplicate_names, 123, 122),
    edge("next", later_behind, 123, 122),
    edge("duplicate", skipped, 115, 114),
    edge("duplicate", refused_by_behind, 122, 120),
    edge("duplicate", acknowledged, 121, 119),
    edge("duplicate", acknowledged, 121, 119, "A"),
    edge("duplicate", no_answer_before, True, False, "A"),
    edge("behind", acknowledged, 121, 122),
    edge("behind", acknowledged, 121, 122, "A"),
    edge("last_known_set", reported_without_number, 0, 1),
    edge("recheck", offered_again, 111, 110),
    edge("recheck", offered_again_unaware, True, False),
    edge("recheck", offered_on, 111, 110, "A"),
    edge("recheck", items_after_duplicate, 999, 1000, "A"),
    edge("recheck", items_unaware, True, False, "A"),
    edge("recheck", items_without_a_pause, 600_050, 600_051, "A"),
    edge("resend_from_l1", header_after_behind, 121, 122),
    edge("resend_from_l1", header_after_behind, 121, 120),
    edge("resend_from_l1", header_after_behind, 121, 122, "A"),
    edge("resend_from_l1", lambda net, unaware: items_unaware(net, unaware, "behind"), True, False),
    edge("recheck", lambda net, unaware: goes_on_unaware(net, unaware, "duplicate"), True, False, "A"),
    edge("resend_from_l1", lambda net, unaware: goes_on_unaware(net, unaware, "behind"), True, False),
    edge("too_far_code", lambda net, unaware: goes_on_unaware(net, unaware, "end"), True, False),
    edge("resend_from_l1", lambda net, after_ms: aware_later(net, after_ms, "behind"), 999, 1000),
    edge("end_last", lambda net, after_ms: aware_later(net, after_ms, "end"), 999, 1000),
    edge("earliest", range_of_end, 121, 122),
    edge("earliest", no_range, 121, 0),
    edge("too_far_code", code_after_behind, "TOO_FAR_BEHIND", "ERROR"),
    edge("reenter", later_header, 122, 123),
    edge("reenter", later_header, 122, 123, "A"),
    edge("reenter", later_behind, 123, 121),
    edge("end_last", after_node_end, 999, 1000),
    edge("end_last", after_own_end, False, True),
    edge("ack_order", acknowledged_twice, 122, 121),
    edge("ack_order", acknowledged_before_proof, False, True),
    edge("skip_pair", skip_names, 121, 122),
    edge("skip_pair", skip_followed, True, False),
    edge("skip_pair", skip_acknowledged, 121, 120),
    edge("skip_pair", items_after_skip, 999, 1000),
    edge("skip_pair", header_after_resend, 121, 122),
    edge("skip_pair", resent, 122, 121),
    edge("ended_without_end_stream", half_closed, True, False),
    edge("node_ended_without_status", ended_by_node, True, False),
    edge("subscriber_order", delivered, 122, 121),
    edge("subscriber_order", delivered_after_status, False, True),
    edge("subscriber_gap", delivered, 122, 123),
    edge("subscriber_gap", delivered_partly, True, False),
    edge("subscriber_range", delivered_first, 121, 122),
    edge("subscriber_range", delivered_last, 122, 121),
    edge("subscriber_range", succeeded_early, 122, 123),
    edge("subscriber_ended_without_status", subscription_ended, True, False),
    edge("block_not_acknowledged", proof_unanswered, True, False),
    edge("block_not_acknowledged", ended_after_proof, 1999, 2000),
    edge("block_not_acknowledged", ended_after_proof, 1999, 2000, "A"),
    edge("last_known", reported_behind, 120, 119),
    edge("last_known", reported_behind, 120, 119, "A"),
    edge("last_known", reported_by_end, 120, 119),
    edge("backoff", third_gap, 1_690_000, 1_689_999),
    edge("backoff", capped_gap, 30_000_000, 29_999_999),
    edge("behind_repeat", fetched_before_retry, 127, 126),
    edge("target_closer", distances, 7, 8),
    edge("recorded_target", fetch_ends, 127, 126),
    edge("catchup_range", fetch_starts, 121, 122),
    edge("drop_unproven", dropped, True, False),
    edge("source_error_only_if_last", source_error, 50, 51),
    edge("source_error_sent", subscriber_untold, 50, 51),
    edge("continue", others_answered, True, False),
    edge("continue", other_ended_after_proof, 1999, 2000),
    edge("node_error_all", other_call_told, 2300, 2301),
    edge("node_error_subscribers", other_subscriber_told, 300, 301),
    edge("retry_after_node_error", publisher_returns, True, False),
    edge("chain", chained, 0, 1),
    edge("chain", chained, 0, 1, "A"),
    edge("gap_not_filled", fetch_gap, 127, 126),
    edge("catch_up_not_started", asks_nobody, True, False),
    edge("catch_up_overrun", fetches_on, 2000, 2001),
    edge("last_block_again", acknowledged, 121, 120),
    edge("ack_unoffered", unoffered, 121, 122),
    edge("subscriber_not_resumed", subscriber_returns, True, False),
]
_NAMES = [f"{number}-{one.rule}-{one.profile}" for number, one in enumerate(EDGES)]


def found(script: Script, profile: str) -> list[str]:
    """The rules that a capture breaks, notes among them."""
    net = Network(profile)
    script(net)
    net.close()
    rules = judge_landed(landed_packets(net.packets), HieroOptions(), PORT).found
    return sorted(rules.elements())


@pytest.mark.parametrize("case", EDGES, ids=_NAMES)
def test_what_keeps_a_rule_at_its_edge_breaks_none(case: Edge) -> None:
    assert found(case.good, case.profile) == []


@pytest.mark.parametrize("case", EDGES, ids=_NAMES)
def test_what_goes_one_further_breaks_that_rule_alone(case: Edge) -> None:
    assert found(case.bad, case.profile) == [case.rule]


def test_every_rule_has_an_edge() -> None:
    assert {case.rule for case in EDGES} == {rule.name for rule in RULES}
