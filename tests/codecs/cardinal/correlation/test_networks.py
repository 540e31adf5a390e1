"""Random legal networks: producers and partitions lag, the chain forks, and a consumer reads some of it again.

Those of the simulator are told as its plain stream is. Those written by hand say what they mean.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random

import pytest

from tests.codecs.cardinal.correlation.test_consumer import canonical, content, found
from tests.support.cardinal_networks import Network
from tests.support.cardinal_networks import network as by_hand
from tests.support.searches import fast_first
from wirehouse_codecs.cardinal.correlation.chain import Chain
from wirehouse_codecs.cardinal.correlation.consumer import Consumed, Consumer, ConsumerOutcome, consume
from wirehouse_codecs.cardinal.correlation.events import LocatedFinding, Update
from wirehouse_codecs.cardinal.options import CardinalOptions
from wirehouse_codecs.cardinal.session.block import Block
from wirehouse_codecs.cardinal.simulator.simulator import Record, SimulatorConfig, simulate
from wirehouse_codecs.core.rules import Place, Severity


def network(random: Random) -> SimulatorConfig:
    """Several producers of a chain that forks; its topics have several partitions."""
    return SimulatorConfig(
        seed=random.randrange(10**6),
        blocks=random.choice([12, 20, 32]),
        messages_per_block=16,
        producers=random.choice([1, 2, 3]),
        partitions=random.choice([1, 2, 4]),
        fork_every=random.choice([0, 3, 7]),
        reorg_threshold=random.choice([6, 8]),
        start_number=random.choice([0, 10**6]),
    )


def lagging(config: SimulatorConfig, random: Random) -> list[Record]:
    """Each partition in its order, and none so late that its blocks lie below the threshold."""
    # A fork sends up to seven blocks that raise the head by three, so a block of time is at most a block of height.
    most_ms = random.choice([0, config.reorg_threshold // 2]) * config.block_interval_ms
    lags: dict[tuple[str, int], int] = defaultdict(lambda: random.randint(0, most_ms))
    return sorted(simulate(config), key=lambda sent: sent.timestamp_ms + lags[sent.topic, sent.partition])


def read_again(records: list[Record], random: Random) -> list[Record]:
    """A consumer that goes back, once or twice, and takes up again from there."""
    for _ in range(random.choice([0, 1, 2])):
        back, at = sorted((random.randrange(len(records)), random.randrange(len(records))))
        records = records[:at] + records[back:]
    return records


def told_of(records: list[Record], config: SimulatorConfig) -> Consumed:
    placed = [
        (Place(at * 10**6, 0, b"", at, sent.topic, sent.partition, sent.offset), sent.key, sent.value)
        for at, sent in enumerate(records)
    ]
    return consume(placed, config.options)


def replayed(told: Consumed) -> set[bytes]:
    """The chain that the updates make."""
    chain: set[bytes] = set()
    for update in told.outcomes:
        if isinstance(update, Update):
            assert chain >= set(update.removed)
            assert chain.isdisjoint(update.added)
            chain = (chain - set(update.removed)) | set(update.added)
    return chain


@pytest.mark.parametrize("seed", fast_first(range(240), 5, most=12))
def test_a_legal_network_breaks_no_rule_and_gives_the_chain_as_it_was_sent(seed: int) -> None:
    random = Random(seed)
    config = network(random)
    plain = told_of(list(simulate(config)), config)
    told = told_of(read_again(lagging(config, random), random), config)
    assert found(told) == set()
    assert canonical(told) == canonical(plain) == replayed(told)
    assert all(block.complete for block in told.blocks)
    contents = {block.block_hash: content(block) for block in plain.blocks}
    assert {block.block_hash: content(block) for block in told.blocks} == contents


def read(sent: Network, cuts: int, random: Random) -> list[ConsumerOutcome]:
    """All that is told of a network; the chain is carried so many times as windows carry it."""
    options = CardinalOptions.from_mapping(sent.options)
    consumer, told = Consumer(options), list[ConsumerOutcome]()
    carried = set(random.sample(range(len(sent.records)), cuts))
    for at, message in enumerate(sent.records):
        if at in carried:
            consumer.chain = Chain(options, consumer.chain.snapshot())
        arrived_ns = 0 if sent.apart else at * 10**6
        place = Place(arrived_ns, 0, b"", at, message.topic, message.partition, message.offset)
        told += consumer.receive(place, message.key, message.value)
    return [*told, *consumer.finish()]


@pytest.mark.parametrize("seed", fast_first(range(1_000), 12, most=20))
def test_a_network_written_by_hand_breaks_no_rule_and_gives_what_it_means(seed: int) -> None:
    random, sent = Random(seed), by_hand(seed)
    told = read(sent, 0, random)
    assert read(sent, 3, random) == told
    rules = [one.finding.rule for one in told if isinstance(one, LocatedFinding)]
    assert [rule.name for rule in rules if rule.severity is not Severity.NOTE] == []
    chain: set[bytes] = set()
    for update in told:
        if isinstance(update, Update):
            assert chain >= set(update.removed)
            assert chain.isdisjoint(update.added)
            chain = (chain - set(update.removed)) | set(update.added)
            head = update.head_hash
    assert (chain, head) == (set(sent.chain), sent.chain[-1])
    blocks = {block.block_hash: block for block in told if isinstance(block, Block)}
    assert blocks.keys() == sent.blocks.keys()
    for block_hash, block in blocks.items():
        assert block.complete
        assert {update.key: update.value for update in block.updates} == sent.content(block_hash)


def test_blocks_that_end_together_end_in_one_order_wherever_windows_end() -> None:
    # Here a block lacks its parent, and lower ones wait for a gap to close: at one change of the head all of them end.
    random, sent = Random(1), by_hand(651)
    assert all(read(sent, 3, random) == read(sent, 0, random) for _ in range(3))
