"""One fault is one finding: what follows from it isn't found besides."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow.compute as pc
import pytest

from tests.codecs.hiero.test_knowledge import found
from tests.support.hiero_captures import judge_landed
from tests.support.hiero_wire import CLIENT, PORT, SERVER, Block, Call, Network, held, made, put
from tests.support.landed import landed_packets
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.logs.rows import VIOLATION
from wirehouse_codecs.tcp.packets import parse


def whole(call: Call, *blocks: Block) -> Call:
    """Blocks as they are."""
    for one in blocks:
        call.set(one.opening).set(one.middle).set(one.closing).client(held(3, put(1, one.number))).ack(one.number)
    return call


def chained(net: Network, first: Block) -> None:
    """The block that follows on a faulty one holds whatever its publisher took for the root."""
    whole(net.publisher(), first, made(122, "B", bytes(48), [(4, b"\x08\x01")])).leave(122)


def block_with(*middle: tuple[int, bytes]) -> Block:
    return made(121, "B", bytes(48), [(4, b"\x08\x01"), *middle])


_FOOTER = put(1, b"a" * 48) + put(2, b"b" * 48) + put(3, b"c" * 48)


@pytest.mark.parametrize(
    ("middle", "rules"),
    [
        ([], ["chain"]),
        ([(12, _FOOTER)], ["structure"]),
        ([(21, _FOOTER)], ["structure"]),
        ([(21, b"x")], ["item_refused"]),
        ([(9, put(1, 121) + held(2, put(1, b"s")))], ["structure"]),
    ],
)
def test_the_root_of_a_faulty_block_is_not_judged(middle: list[tuple[int, bytes]], rules: list[str]) -> None:
    net = Network()
    chained(net, block_with(*middle))
    assert found(net) == rules


def test_a_block_without_its_header_was_offered() -> None:
    net = Network()
    net.publisher().rest(121).ack(121).block(122).ack(122).leave(122)
    assert found(net) == ["structure"]


@pytest.mark.parametrize("profile", ["A", "B"])
@pytest.mark.parametrize(("number", "rule"), [(122, "ack_unoffered"), (120, "ack_order")])
def test_an_acknowledgement_of_another_block_breaks_one_rule(number: int, rule: str, profile: str) -> None:
    net = Network(profile)
    net.publisher().block(121).ack(121, number).leave(121)
    assert found(net) == [rule]


@pytest.mark.parametrize("profile", ["A", "B"])
@pytest.mark.parametrize(("numbers", "falls"), [((121, 121), False), ((121, 122, 121), True)])
def test_without_the_publisher_an_acknowledgement_that_comes_again_may_be_of_a_block_that_does(
    numbers: tuple[int, ...], falls: bool, profile: str
) -> None:
    net = Network(profile)
    net.publisher().block(121).block(122).ack(*numbers).leave(122)
    captured = list(landed_packets(net.close().packets))
    rules = judge_landed(captured, HieroOptions(profile=profile), PORT).found
    assert rules["ack_order"] == 1
    ports = [parse(batch).column("destination_port") for batch in captured]
    node = [batch.filter(pc.not_equal(port, PORT)) for batch, port in zip(captured, ports, strict=True)]
    assert judge_landed(node, HieroOptions(profile=profile), PORT).found["ack_order"] == falls


def test_a_wrong_skip_block_is_found_at_the_offered_header() -> None:
    net = Network()
    net.publisher().block(120).ack(120).header(121).skip(122).wait(1500).rest(121).ack(121).leave(121)
    rows = judge_landed(landed_packets(net.close().packets), HieroOptions(), PORT).rows[VIOLATION]
    assert [(row["finding"]["rule"], row["block_number"]) for row in rows] == [("hiero.skip_pair", 121)]


ENDS: list[tuple[Callable[[Call], object], list[str]]] = [
    (lambda call: call.line.close(SERVER), ["node_ended_without_status"]),
    (lambda call: call.line.close(SERVER, reset=True), ["node_ended_without_status"]),
    (lambda call: call.reset(), ["node_ended_without_status"]),
    (lambda call: call.line.close(CLIENT), ["block_not_acknowledged"]),
    (lambda call: call.leave(120), ["block_not_acknowledged"]),
]


@pytest.mark.parametrize(("end", "rules"), ENDS)
@pytest.mark.parametrize("profile", ["A", "B"])
def test_a_node_that_breaks_off_answers_no_more(end: Callable[[Call], object], rules: list[str], profile: str) -> None:
    net = Network(profile)
    end(net.publisher().block(121).wait(3000))
    assert found(net) == rules
