"""A whole source in memory: simulated streams, legal and with each fault, and the lives of blocks."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tests.support.searches import fast_first
from wirehouse_codecs.cardinal.correlation.consumer import Consumed, Consumer, Row, consume
from wirehouse_codecs.cardinal.correlation.events import Canonical, Closed, ReorgRow, Update
from wirehouse_codecs.cardinal.options import CardinalOptions, Start
from wirehouse_codecs.cardinal.rules import RULES
from wirehouse_codecs.cardinal.session.block import Block
from wirehouse_codecs.cardinal.simulator.simulator import FAULTS, Record, SimulatorConfig, simulate
from wirehouse_codecs.cardinal.wire.messages import (
    PING,
    Batch,
    BatchMsg,
    Message,
    Reorg,
    ReorgComplete,
    SubBatchHeader,
    encode,
)
from wirehouse_codecs.cardinal.wire.messages import Update as Entry
from wirehouse_codecs.core.horizon import HORIZON_NS
from wirehouse_codecs.core.rules import Place, Severity

STREAM = SimulatorConfig(blocks=48, messages_per_block=16)
FORKED = replace(STREAM, fork_every=4, large_reorg=True, producers=2, blocks=60)
LEGAL = {
    "plain": STREAM,
    "forks": replace(STREAM, fork_every=3),
    "two producers": replace(STREAM, producers=2),
    "large reorg": replace(STREAM, large_reorg=True),
    "all of it": FORKED,
    "all of it, another seed": replace(FORKED, seed=5, producers=3),
    "shuffled": replace(STREAM, shuffle=60, producers=2, fork_every=4),
    "all of it, shuffled": replace(FORKED, shuffle=50),
}


def consumed(config: SimulatorConfig) -> Consumed:
    records = (
        (Place(sent.timestamp_ms * 10**6, 0, b"", at, sent.topic, sent.partition, sent.offset), sent.key, sent.value)
        for at, sent in enumerate(simulate(config))
    )
    return consume(records, config.options)


def found(told: Consumed, *, notes: bool = False) -> set[str]:
    rules = [finding.finding.rule for finding in told.findings]
    return {rule.name for rule in rules if notes or rule.severity is not Severity.NOTE}


@pytest.mark.parametrize("name", LEGAL)
def test_a_legal_stream_breaks_no_rule_and_loses_no_block(name: str) -> None:
    told = consumed(LEGAL[name])
    assert found(told, notes=not LEGAL[name].shuffle) == set()
    assert all(block.complete for block in told.blocks)
    assert told.late == 0
    updates = [outcome for outcome in told.outcomes if isinstance(outcome, Update)]
    assert updates[-1].head_number == LEGAL[name].blocks


def test_shuffled_and_doubled_a_stream_gives_the_same_blocks_and_the_same_chain() -> None:
    plain, shuffled = consumed(FORKED), consumed(replace(FORKED, shuffle=50))
    assert {block.block_hash: content(block) for block in plain.blocks} == {
        block.block_hash: content(block) for block in shuffled.blocks
    }
    assert canonical(plain) == canonical(shuffled)


def read_apart(config: SimulatorConfig, random: Random) -> list[Record]:
    """The records of a stream, each partition in its order, of others so much at a time as comes: maybe all of it."""
    partitions: dict[tuple[str, int], list[Record]] = {}
    for record in simulate(config):
        partitions.setdefault((record.topic, record.partition), []).append(record)
    waiting = [records[::-1] for records in partitions.values()]
    most = random.choice([1, 200, 100_000])
    out = []
    while waiting := [records for records in waiting if records]:
        records = random.choice(waiting)
        out += [records.pop() for _ in range(min(random.randint(1, most), len(records)))]
    return out


@pytest.mark.parametrize("seed", fast_first(list(range(40)), 4))
def test_however_far_partitions_are_apart_nothing_is_lost(seed: int) -> None:
    random = Random(seed)
    blocks, threshold = random.choice([20, 60, 150]), random.choice([6, 8, 20])
    forks = 0 if seed % 2 else 7
    config = replace(STREAM, seed=seed, blocks=blocks, fork_every=forks, reorg_threshold=threshold)
    config = replace(config, producers=random.choice([1, 2]), partitions=random.choice([2, 4]))
    options = config.options if random.randrange(2) else replace(config.options, start=None)
    records = read_apart(config, random)
    told = consume(
        ((Place(0, 0, b"", at, s.topic, s.partition, s.offset), s.key, s.value) for at, s in enumerate(records)),
        options,
    )
    chain = canonical(told)
    replayed: set[bytes] = set()
    for update in told.outcomes:
        if isinstance(update, Update):
            replayed = (replayed - set(update.removed)) | set(update.added)
            head = update.head_number
    assert (len(chain), replayed) == (head, chain)
    assert found(told) == set()
    assert all(block.complete for block in told.blocks)
    assert forks or head == blocks


def content(block: Block) -> list[tuple[bytes, bytes | None]]:
    return [(update.key, update.value) for update in block.updates]


def canonical(told: Consumed) -> set[bytes]:
    rows = {(row.block_hash, row.valid_from_ns): row for row in told.outcomes if isinstance(row, Canonical)}
    return {row.block_hash for row in rows.values() if row.valid_to_ns is None}


def test_there_is_a_fault_for_every_rule() -> None:
    assert list(FAULTS) == [rule.name for rule in RULES]


@pytest.mark.parametrize("seed", fast_first([0, 1]))
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_by_name_and_nothing_else(fault: str, seed: int) -> None:
    told = consumed(replace(STREAM, fault=fault, seed=seed))
    assert found(told, notes=True) == {fault}


@pytest.mark.parametrize(
    "fault", ["no_batch_message", "reorg_not_completed", "key_two_values", "subbatch_items_missing"]
)
def test_a_fault_is_found_among_forks_reorgs_and_repeats_too(fault: str) -> None:
    told = consumed(replace(FORKED, blocks=90, fault=fault))
    assert found(told) == {fault}


def test_a_large_reorg_has_one_row_and_its_blocks_end_up_canonical() -> None:
    told = consumed(LEGAL["large reorg"])
    rows = [outcome for outcome in told.outcomes if isinstance(outcome, ReorgRow)]
    assert [(row.announced, row.completed, row.depth) for row in rows] == [
        (True, False, STREAM.reorg_depth),
        (True, True, STREAM.reorg_depth),
    ]
    assert rows[1].new_head in canonical(told)
    assert rows[1].old_head not in canonical(told)


# The smallest streams


START = CardinalOptions(start=Start(0, b"\0" * 32), reorg_threshold=2)


def block_hash(number: int, side: int = 0) -> bytes:
    return bytes([side, number]) * 16


def batch(number: int, *entries: Entry, side: int = 0, parent: int | None = None) -> Batch:
    parent = number - 1 if parent is None else parent
    return Batch(block_hash(number, side), number, number, block_hash(parent), entries)


class Source:
    """A consumer that is told of messages, and everything it has told."""

    def __init__(self, options: CardinalOptions = START) -> None:
        self.consumer = Consumer(options)
        self.told: list[object] = []
        self.records = 0
        self.now_ns = 0

    def send(self, *messages: Message, topic: str = "cardinal-1", partition: int = 0) -> list[object]:
        out: list[object] = []
        for message in messages:
            out += self.record(*encode(message), topic=topic, partition=partition)
        return out

    def record(self, key: bytes, value: bytes, topic: str = "cardinal-1", partition: int = 0) -> list[object]:
        place = Place(self.now_ns, 0, b"", self.records, topic, partition, self.records)
        self.records += 1
        self.now_ns += 1
        out: list[object] = list(self.consumer.receive(place, key, value))
        self.told += out
        return out

    @property
    def rules(self) -> list[str]:
        return [told.finding.rule.name for told in self.told if hasattr(told, "finding")]

    def of(self, kind: type) -> list[object]:
        return [told for told in self.told if type(told) is kind]


def test_what_is_decoded_comes_before_what_follows_from_it() -> None:
    source = Source()
    told = source.send(batch(1))
    assert [type(one) for one in told] == [Row, Update, Canonical]
    assert source.record(bytes([PING]), b"") == [source.told[-1]]


def test_messages_after_a_block_s_life_are_late_and_take_no_part() -> None:
    source = Source()
    source.send(batch(1, Entry(b"k", count=2), side=1), *map(batch, range(1, 5)))
    (block,) = (block for block in source.of(Block) if isinstance(block, Block) and not block.complete)
    assert source.rules == ["prefix_count_open"]
    (row,) = source.send(BatchMsg(block.block_hash, b"k", b"v"))
    assert isinstance(row, Row)
    assert (row.late, source.consumer.late) == (True, 1)
    source.now_ns += HORIZON_NS
    source.send(BatchMsg(block.block_hash, b"k", b"v"))
    assert source.consumer.late == 1
    assert {block.block_hash for block in source.consumer.finish()} >= {block.block_hash}


@pytest.mark.parametrize("is_sent", [True, False])
def test_what_a_block_lacks_is_waited_for_in_every_partition(is_sent: bool) -> None:
    source = Source()
    counted = Entry(b"k", count=1)
    source.send(batch(1, counted), batch(2, counted, side=1, parent=1))
    source.send(BatchMsg(block_hash(1), b"k", b"v"), partition=1)
    # The other partition is read no further than block 1.
    source.send(*map(batch, range(2, 8)), batch(8, counted))
    assert (source.rules, source.consumer.chain.head) == ([], (block_hash(7), 7))
    if is_sent:
        source.send(BatchMsg(block_hash(2, 1), b"k", b"v"), partition=1)
    source.send(BatchMsg(block_hash(8), b"k", b"v"), partition=1)
    assert source.consumer.chain.head == (block_hash(8), 8)
    assert source.rules == ([] if is_sent else ["prefix_count_open"])


def test_a_block_that_misses_several_things_is_judged_of_each() -> None:
    source = Source()
    entries = (Entry(b"k", count=2), Entry(b"s", subbatch=b"\1" * 32), Entry(b"r", subbatch=b"\2" * 32))
    side = batch(1, *entries, side=1)
    source.send(side, SubBatchHeader(side.block_hash, b"\1" * 32, 3), *map(batch, range(1, 5)))
    assert source.rules == ["prefix_count_open", "subbatch_header_missing", "subbatch_items_missing"]
    judged = [told for told in source.of(Closed) if isinstance(told, Closed) and told.block_hash == side.block_hash]
    assert [(closed.judged, closed.complete) for closed in judged] == [(True, False)]


def test_partitions_of_a_channel_and_messages_after_its_end_are_told_of() -> None:
    source = Source()
    source.send(*map(batch, range(1, 6)))
    ancestor, channel = block_hash(1), f"cardinal-1-re-{block_hash(1).hex()}"
    source.send(Reorg(ancestor, 1), topic=channel)
    blocks = [batch(2, side=1)] + [replace(batch(n, side=1), parent=block_hash(n - 1, 1)) for n in range(3, 7)]
    source.send(*blocks, topic=channel)
    source.send(ReorgComplete(ancestor, 1), ReorgComplete(ancestor, 1), topic=channel)
    assert source.rules == []
    assert source.consumer.chain.head == (block_hash(6, 1), 6)
    # Another producer is behind.
    source.send(Reorg(ancestor, 1), *blocks, ReorgComplete(ancestor, 1), *blocks, topic=channel)
    assert source.rules == []
    assert source.consumer.chain.head == (block_hash(6, 1), 6)
    source.send(BatchMsg(block_hash(7, 1), b"k", b"v"), topic=channel)
    assert source.rules == ["reorg_not_completed"]
    source.send(BatchMsg(block_hash(7, 1), b"k", b"v"), topic=channel, partition=1)
    assert source.rules == ["reorg_not_completed", "reorg_channel_shared"]


def test_a_removed_block_sent_again_on_the_channel_breaks_it() -> None:
    source = Source()
    source.send(*map(batch, range(1, 6)))
    ancestor, channel = block_hash(1), f"cardinal-1-re-{block_hash(1).hex()}"
    source.send(Reorg(ancestor, 1), batch(2), ReorgComplete(ancestor, 1), topic=channel)
    assert source.rules == ["reorg_chain_broken"]
