"""Random legal networks: no rule is broken, whatever a tap has of them, and tables say what is true of them."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.support.hiero_captures import Judged, judge_landed
from tests.support.hiero_networks import Simulation
from tests.support.hiero_slow_links import SlowLink
from tests.support.hiero_wire import MS, PORT
from tests.support.landed import landed_packets
from tests.support.searches import fast_first
from tests.support.taps import Tap, any_tap, captured
from wirehouse_codecs.core.rules import Severity
from wirehouse_codecs.hiero.correlation import offers
from wirehouse_codecs.hiero.correlation.events import EVENT_KINDS, event_of, order_of
from wirehouse_codecs.hiero.correlation.fold import Fold
from wirehouse_codecs.hiero.correlation.known import WAITS
from wirehouse_codecs.hiero.correlation.rows import (
    BlockRow,
    DecisionRow,
    Found,
    LatencyRow,
    Outcome,
    RaceRow,
    SessionRow,
    SubscriptionRow,
)
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.rules import RULE
from wirehouse_codecs.logs.rows import MESSAGE

OPTIONS = HieroOptions()
PUBLISH, SUBSCRIBE = "publishBlockStream", "subscribeBlockStream"


def in_windows(judged: Judged, random: Random) -> list[Outcome]:
    """What calls say together if windows are cut anywhere, each from the state of the one before."""
    rows = sorted((row for kind in EVENT_KINDS for row in judged.rows[kind]), key=order_of)
    fold, told = Fold(OPTIONS), []
    for row in rows:
        event = event_of(row)
        if event is not None:
            told += fold.take(event)
            if not random.randrange(40):
                told += fold.end_window(event.at_ns)
                fold = Fold(OPTIONS, fold.snapshot())
    return told + fold.end_window(rows[-1]["arrived_at_ns"] + WAITS.silent_ns + 1)


def last_of(told: list[Outcome], kind: type[Any], *key: str) -> list[Any]:
    """The row that was told last of each."""
    rows = {tuple(getattr(one, name) for name in key): one for one in told if isinstance(one, kind)}
    return list(rows.values())


def node(address: str) -> str:
    return f"{address} {PORT}"


def sessions_told(told: list[Outcome]) -> list[tuple[Any, ...]]:
    decisions: dict[str | None, list[tuple[int, str | None]]] = {}
    for one in sorted(last_of(told, DecisionRow, "call", "where"), key=lambda one: one.where.byte_end):
        decisions.setdefault(one.call, []).append((one.offered, one.actual))
    rows = sorted(last_of(told, SessionRow, "call"), key=lambda one: one.opened_at_ns)
    return [
        (
            *(one.publisher, one.node, one.headers, one.first_header, one.proven, one.acknowledged),
            *(one.publisher_code, one.node_code, decisions.get(one.call, [])),
        )
        for one in rows
    ]


def sessions_true(network: Simulation) -> list[tuple[Any, ...]]:
    return [
        (
            *(one.publisher, node(one.node), len(one.headers), next(iter(one.headers), None), one.proven),
            *(one.acknowledged, one.publisher_code, one.node_code),
            [(number, answer or "none") for number, answer in one.answers],
        )
        for one in sorted(network.truth.sessions, key=lambda one: one.opened_ns)
    ]


def subscriptions_told(told: list[Outcome]) -> list[tuple[Any, ...]]:
    rows = sorted(last_of(told, SubscriptionRow, "call"), key=lambda one: one.opened_at_ns)
    return [(one.client, one.node, one.blocks, one.first_block, one.last_block, one.code) for one in rows]


def subscriptions_true(network: Simulation) -> list[tuple[Any, ...]]:
    return [
        (
            *(one.client, node(one.node), len(one.blocks)),
            *(one.blocks[at] if one.blocks else None for at in (0, -1)),
            one.code,
        )
        for one in network.truth.subscriptions
    ]


def severe(found: Any) -> list[str]:
    return [name for name in found if name in RULE and RULE[name].severity is not Severity.NOTE]


def disobeyed(one: Outcome) -> bool:
    """A publisher isn't said to have done what it was told."""
    return isinstance(one, DecisionRow) and False in (one.skip_obeyed, one.resend_obeyed)


@pytest.mark.parametrize("seed", fast_first(range(1_000), count=15, most=20))
def test_tables_say_what_is_true_of_a_legal_network(seed: int) -> None:
    network = Simulation(seed)
    judged = judge_landed(landed_packets(network.net.packets), OPTIONS, PORT)
    assert dict(judged.found) == {}
    told = in_windows(judged, Random(seed))
    assert not any(isinstance(one, Found) for one in told)
    assert sessions_told(told) == sessions_true(network)
    assert subscriptions_told(told) == subscriptions_true(network)
    blocks = {one.block_number: one for one in last_of(told, BlockRow, "block_number")}
    assert {number for number, one in blocks.items() if one.acknowledged_at_ns} == network.truth.acknowledged
    assert all(one.chains is not False for one in blocks.values())
    assert not any(disobeyed(one) for one in told)


#: The node's clock is ahead, and it acknowledges a block before the header that it answers without a number.
AHEAD = 700_050


@pytest.mark.parametrize("seed", [AHEAD, *fast_first(range(1_000), count=15, most=20)])
def test_what_a_tap_has_of_a_legal_network_breaks_no_rule(seed: int) -> None:
    """A part of it, one side or half of one, a few packets in another order, the sides by two clocks."""
    packets = captured(Simulation(seed).net.packets, {PORT}, any_tap(seed))
    assert severe(judge_landed(landed_packets(packets), OPTIONS, PORT).found) == []


#: Slow links whose answers are captured with what they answer, or long before or after it.
SKEWED = ((125, 50), (129, 50), (134, -50), (206, -50), (206, -1000), (252, -50), (756, 50))


@pytest.mark.parametrize(("seed", "late_ms"), SKEWED)
def test_two_clocks_on_a_slow_link_break_no_rule(seed: int, late_ms: int) -> None:
    packets = captured(SlowLink(seed).net.packets, {PORT}, Tap(server_late_ns=late_ms * MS))
    assert severe(judge_landed(landed_packets(packets), OPTIONS, PORT).found) == []


#: The next block follows on one that was refused, and whose header stands in no order with the answer.
NEXT_UNAWARE = 720_140


@pytest.mark.parametrize("seed", [NEXT_UNAWARE, *fast_first(range(1_000), count=10, most=20)])
def test_what_a_tap_has_of_a_slow_link_breaks_no_rule(seed: int) -> None:
    packets = captured(SlowLink(seed).net.packets, {PORT}, any_tap(seed))
    assert severe(judge_landed(landed_packets(packets), OPTIONS, PORT).found) == []


@pytest.mark.parametrize("seed", fast_first(range(400), count=20, most=20))
def test_what_waited_in_a_send_buffer_breaks_no_rule(seed: int) -> None:
    judged = judge_landed(landed_packets(SlowLink(seed).net.packets), OPTIONS, PORT)
    assert severe(judged.found) == []
    assert not any(disobeyed(one) for one in judged.told)


def races_of(decisions: list[DecisionRow]) -> list[tuple[Any, ...]]:
    """The blocks that several publishers offered, from all decisions."""
    blocks: dict[tuple[str | None, int], list[DecisionRow]] = {}
    for one in sorted(decisions, key=lambda one: one.where.arrived_at_ns):
        blocks.setdefault((one.node, one.offered), []).append(one)
    return [
        (
            *(at, number, len({one.publisher for one in offers}), [one.actual for one in offers]),
            next((one.publisher for one in offers if one.actual == "accepted"), None),
            all(one.skip_obeyed is not False for one in offers),
        )
        for (at, number), offers in sorted(blocks.items(), key=repr)
        if len({one.publisher for one in offers}) > 1
    ]


def latencies_of(judged: Judged, decisions: list[DecisionRow]) -> list[tuple[Any, ...]]:
    """How long accepted blocks took, from decisions and the messages of all calls."""
    came: dict[tuple[Any, ...], list[int]] = {}
    for row in sorted(judged.rows[MESSAGE], key=order_of):
        for what, who in (("proof", "call"), ("header", "node")):
            if row["message"][what] is not None:
                place = (row["service"], row[who], int(row["message"][what]))
                came.setdefault(place, []).append(row["arrived_at_ns"])
    return [
        (
            *(one.call, one.offered, one.where.arrived_at_ns, one.answered_at_ns),
            # The header may have been sent, and proven, before: then it was asked for again.
            next((ns for ns in came.get((PUBLISH, one.call, one.offered), ()) if ns >= one.where.arrived_at_ns), None),
            next(iter(came.get((SUBSCRIBE, one.node, one.offered), ())), None),
        )
        for one in sorted(decisions, key=lambda one: (one.call, one.where.byte_end))
        if one.actual == "accepted"
    ]


@pytest.mark.parametrize("seed", fast_first(range(1_000), count=15, most=50))
def test_races_and_latencies_follow_from_decisions_and_messages_wherever_windows_are_cut(seed: int) -> None:
    judged = judge_landed(landed_packets(Simulation(seed).net.packets), OPTIONS, PORT)
    told = in_windows(judged, Random(seed))
    decisions = last_of(told, DecisionRow, "call", "where")
    races = [
        (
            *(one.node, one.block_number, one.publisher_count, [answer for _, _, answer in one.offered_by]),
            one.won_by,
            one.skip_obeyed is not False,
        )
        for one in sorted(
            last_of(told, RaceRow, "node", "block_number"), key=lambda one: repr((one.node, one.block_number))
        )
    ]
    assert races == races_of(decisions)
    latencies = [
        (
            *(one.call, one.block_number, one.header_at_ns, one.acknowledged_at_ns),
            *(one.proof_at_ns, one.delivered_at_ns),
        )
        for one in sorted(last_of(told, LatencyRow, "call", "where"), key=lambda one: (one.call, one.where.byte_end))
    ]
    assert latencies == latencies_of(judged, decisions)


def test_a_fold_forgets_the_blocks_that_were_offered_first_and_tells_them(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = judge_landed(landed_packets(Simulation(3).net.packets), OPTIONS, PORT)
    kept = in_windows(judged, Random(1))
    monkeypatch.setattr(offers, "MOST_OFFERED", 8)
    told = in_windows(judged, Random(1))
    key = ("node", "block_number")
    assert {(one.node, one.block_number) for one in last_of(told, RaceRow, *key)} == {
        (one.node, one.block_number) for one in last_of(kept, RaceRow, *key)
    }
