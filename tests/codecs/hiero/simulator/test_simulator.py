"""Simulated traffic of block nodes: legal whatever happens in it, in all versions of the API, and as real bytes."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import pytest

from tests.support.hiero_captures import Judged, judge
from tests.support.simulators import assert_in_order_of_time, assert_never_held, assert_the_same_again
from wirehouse_codecs.core.errors import OptionError
from wirehouse_codecs.core.rules import Severity
from wirehouse_codecs.hiero.correlation.rows import BlockRow, CatchUpRow, DecisionRow, SessionRow, SubscriptionRow
from wirehouse_codecs.hiero.inspection import recognises
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.profiles import NO_BLOCK, PROFILES
from wirehouse_codecs.hiero.rules import RULE
from wirehouse_codecs.hiero.simulator.happenings import HAPPENINGS
from wirehouse_codecs.hiero.simulator.ledger import Ledger
from wirehouse_codecs.hiero.simulator.simulator import SimulatorConfig, connections, simulate
from wirehouse_codecs.hiero.wire.blocks import BlockBuilder
from wirehouse_codecs.hiero.wire.hashes import EMPTY_TREE, AllBlocks, RootLayout, signature_check
from wirehouse_codecs.hiero.wire.http2.frames import PREFACE
from wirehouse_codecs.hiero.wire.items.cutting import cut
from wirehouse_codecs.logs.rows import CONNECTION, QUARANTINE
from wirehouse_codecs.simulate.script import Disturbances, written
from wirehouse_codecs.tcp.endpoints import Direction

#: The simulator is run at length.
pytestmark = pytest.mark.property

SMALL = SimulatorConfig(blocks=12, block_bytes=1500, set_bytes=600, incident_rounds=0)
#: All that may happen to legal traffic.
LIVELY = replace(SMALL, blocks=40, incident_rounds=2, publishers=4, subscribers=3)


#: The versions between the specification's and the newest are for the long run.
CASES = [
    pytest.param(profile, config, id=f"{profile}-{name}", marks=() if profile in ("A", "B") else pytest.mark.property)
    for profile in PROFILES
    for name, config in (("calm", SMALL), ("lively", LIVELY))
]


@pytest.mark.parametrize(("profile", "config"), CASES)
def test_legal_traffic_breaks_no_rule(profile: str, config: SimulatorConfig) -> None:
    judged = judge(simulate(replace(config, profile=profile, seed=len(profile))), HieroOptions(profile=profile))
    assert not judged.found
    assert not judged.rows[QUARANTINE]
    last = config.blocks - 1
    blocks = {row.block_number: row for row in judged.of(BlockRow)}
    assert {number for number, row in blocks.items() if row.acknowledged_at_ns} == set(range(last + 1))
    assert {row.chains for number, row in blocks.items() if number < last} == {True}


@pytest.mark.parametrize(
    "changes",
    [
        {"nodes": 1, "publishers": 1, "subscribers": 0},
        {"nodes": 1, "publishers": 1, "incident_rounds": 1},
        {"nodes": 1, "publishers": 5, "subscribers": 4, "profile": "A'"},
        {"nodes": 5, "publishers": 3, "incident_rounds": 1},
        {"nodes": 3, "publishers": 7, "profile": "A", "incident_rounds": 3},
        {"interval_ms": 0, "encoding": "gzip"},
        {"interval_ms": 60_000, "encoding": "identity"},
        {"blocks": 2},
        {"blocks": 3, "incident_rounds": 1},
        {"block_bytes": 1, "set_bytes": 1},
        {"item_bytes_least": 138, "item_bytes_most": 16_000, "block_bytes": 50_000, "blocks": 8},
        {"profile": "A0", "interval_ms": 1, "incident_rounds": 1},
    ],
    ids=str,
)
def test_legal_traffic_of_any_shape_breaks_no_rule(changes: dict[str, Any]) -> None:
    config = replace(LIVELY, **{"seed": 11, "blocks": 25} | changes)
    judged = judge(simulate(config), HieroOptions(profile=config.profile))
    assert not judged.found
    assert not judged.rows[QUARANTINE]


def test_all_that_may_happen_does() -> None:
    config = replace(LIVELY, blocks=60, incident_rounds=1)
    judged = judge(simulate(config), HieroOptions())
    ends = Counter(row["meaning"] for row in judged.messages("end_stream"))
    assert ends.keys() - {"ERROR", "PERSISTENCE_FAILED"} == {"DUPLICATE_BLOCK", "TIMEOUT"}
    assert len(ends) > 2
    codes = Counter(row["meaning"] for row in judged.messages("publisher_end_stream"))
    assert set(codes) == {"RESET", "ERROR", "TOO_FAR_BEHIND"}
    assert {"skip_block", "resend_block", "node_behind", "server_status"} <= {
        row["message"]["kind"] for row in judged.rows["message"]
    }
    assert {row["meaning"] for row in judged.messages("subscribe_status")} == {
        "SUCCESS",
        "ERROR",
        "INVALID_START_BLOCK_NUMBER",
    }
    assert NO_BLOCK in {int(row["block_number"]) for row in judged.messages("node_behind")}
    assert {row.actual for row in judged.of(DecisionRow)} >= {"accepted", "duplicate", "behind", "skip", "ended"}
    catch_ups = judged.of(CatchUpRow)
    assert any(len(row.attempts) == 3 and row.fetched and len(row.gaps_ns) == 3 for row in catch_ups)
    assert all(row.state == "done" for row in {row.where: row for row in catch_ups}.values())
    assert any(row.next_node not in (None, row.node) for row in judged.of(SubscriptionRow))
    assert len(HAPPENINGS) == 8


def test_calls_share_connections_and_are_compressed_in_all_ways() -> None:
    judged = judge(simulate(replace(LIVELY, publishers=5, nodes=1, block_bytes=5000, set_bytes=4000)), HieroOptions())
    calls = defaultdict(set)
    for row in judged.rows["call"]:
        calls[row["connection_id"]].add(row["call"])
    assert len(judged.rows[CONNECTION]) == len(calls)
    assert max(map(len, calls.values())) > 3
    encodings = {row["message"]["encoding"] for row in judged.rows["message"]}
    assert encodings == {None, "gzip", "zstd", "snappy", "deflate"}


def test_publishers_of_the_older_api_all_send_a_block() -> None:
    sent = {}
    for profile in ("A", "B"):
        judged = judge(simulate(replace(SMALL, profile=profile)), HieroOptions(profile=profile))
        sent[profile] = {row.proven for row in judged.of(SessionRow)}
    assert min(sent["A"]) > SMALL.blocks // 2 > min(sent["B"])


@pytest.mark.parametrize("profile", PROFILES)
def test_blocks_are_those_of_the_profiles_time(profile: str) -> None:
    ledger, all_blocks, roots = Ledger(SMALL, PROFILES[profile]), AllBlocks(), [EMPTY_TREE]
    for number in range(10):
        made = ledger.block(number)
        sets = (*made.opening, *made.middle, *made.closing)
        builder = BlockBuilder()
        for items in cut(b"".join(sets)):
            builder.add(items)
        block = builder.finish()
        assert not block.broken
        assert (block.number, block.previous_hash) == (number, roots[-1])
        assert block.roots.layout is not None
        assert block.roots.by_layout[block.roots.layout] == made.root
        if block.roots.layout is RootLayout.TWO_SUBTREES:
            assert signature_check(block.proof, made.root).verified
        else:
            assert block.footer is not None
            assert block.footer.root_hash_of_all_block_hashes_tree == all_blocks.root()
        sizes = [len(one) for items in cut(b"".join(made.middle)) for one in map(items.body, range(len(items)))]
        assert SMALL.item_bytes_least - 3 <= min(sizes) <= max(sizes) <= SMALL.item_bytes_most
        roots.append(made.root)
        all_blocks.add(made.root)
        if PROFILES[profile].one_item:
            assert all(sum(map(len, cut(one))) == 1 for one in sets)


def test_old_blocks_are_made_again() -> None:
    ledger = Ledger(SMALL, PROFILES["B"])
    first = [ledger.block(number) for number in range(20)]
    assert [ledger.block(number) for number in range(19, -1, -1)] == first[::-1]


def test_connections_are_recognised_by_their_beginning() -> None:
    for conversation in connections(SMALL):
        streams = written(conversation)
        assert streams[Direction.CLIENT].startswith(PREFACE)
        why = recognises(streams[Direction.CLIENT][:4096], streams[Direction.SERVER][:4096])
        assert why is not None
        assert why.startswith("a call of /org.hiero.block.api.")


def test_what_is_said_is_in_order_of_time_and_ends_with_a_close() -> None:
    assert_in_order_of_time(connections(LIVELY))


@pytest.mark.parametrize("profile", ["A", "B"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.property) for seed in (1, 2))])
def test_packets_out_of_order_break_no_rule(profile: str, seed: int) -> None:
    mixed = Disturbances(seed, reordered=0.1, repeated=0.1)
    judged = judge(simulate(replace(LIVELY, seed=seed, profile=profile), mixed), HieroOptions(profile=profile))
    assert not judged.found


def severe(judged: Judged) -> list[str]:
    """Rules that are broken, without notes and what captures lack."""
    return [name for name in judged.found if name in RULE and RULE[name].severity is not Severity.NOTE]


@pytest.mark.parametrize("profile", ["A", "B"])
def test_a_packet_that_is_missing_breaks_no_rule(profile: str) -> None:
    config = replace(LIVELY, profile=profile, blocks=14, block_bytes=400, incident_rounds=1, publishers=2, seed=4)
    captured = list(simulate(config))
    for missing in range(0, len(captured), 100):
        judged = judge(captured[:missing] + captured[missing + 1 :], HieroOptions(profile=profile))
        assert severe(judged) == [], missing


@pytest.mark.parametrize("profile", ["A", "B"])
@pytest.mark.parametrize("seed", range(3))
def test_packets_that_are_missing_break_no_rule(profile: str, seed: int) -> None:
    lossy = Disturbances(seed, lost=0.01, reordered=0.03, repeated=0.03)
    captured = list(simulate(replace(LIVELY, profile=profile, seed=seed), lossy))
    # The capture begins and ends within connections.
    begins = seed * len(captured) // 7
    assert severe(judge(captured[begins : len(captured) - begins], HieroOptions(profile=profile))) == []


def test_a_capture_is_never_held_in_memory() -> None:
    assert_never_held(simulate(replace(LIVELY, blocks=10**9)), 1000, 3_000)


def test_the_same_configuration_gives_the_same_packets() -> None:
    assert_the_same_again(simulate, LIVELY)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"profile": "C"}, "profile"),
        ({"encoding": "lz4"}, "encoding"),
        ({"publishers": 0}, "publishers"),
        ({"item_bytes_least": 100}, "item_bytes_least"),
        ({"item_bytes_least": 500, "item_bytes_most": 400}, "item_bytes_most"),
        ({"blocks": 1}, "blocks"),
        ({"fault": "no_such_rule"}, "fault"),
    ],
)
def test_what_can_not_be_simulated_is_refused(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(OptionError) as refused:
        SimulatorConfig(**changes)
    assert refused.value.fields["key"] == key
