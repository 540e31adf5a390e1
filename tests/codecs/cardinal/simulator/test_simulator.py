"""Simulated Cardinal traffic: legal streams are legal, and every fault breaks its rule and no other.

The rules are judged here by a small model of their own, over a whole stream in memory.
"""

import gzip
import json
import tracemalloc
from base64 import b64decode
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import fastavro
import pytest

from wirehouse_codecs.captures.messages import MessageCapture
from wirehouse_codecs.cardinal.options import CardinalOptions, NameMatcher
from wirehouse_codecs.cardinal.rules import RULES
from wirehouse_codecs.cardinal.simulator.simulator import (
    FAULTS,
    WRITERS,
    Record,
    SimulatorConfig,
    simulate,
    write_avro,
    write_jsonl,
)
from wirehouse_codecs.cardinal.wire.messages import (
    Batch,
    BatchDeleteMsg,
    BatchMsg,
    Reorg,
    ReorgComplete,
    SubBatchHeader,
    SubBatchMsg,
    content_digest,
    decode,
)
from wirehouse_codecs.core.errors import OptionError

#: The simulator is run at length.
pytestmark = pytest.mark.property

SMALL = SimulatorConfig(seed=3, blocks=40, messages_per_block=20)


@dataclass
class Told:
    """A message and where it came."""

    at: int
    topic: str
    message: Any


class Stream:
    """A whole stream, its messages by type and block."""

    def __init__(self, config: SimulatorConfig) -> None:
        self.options = config.options
        self.threshold = config.reorg_threshold
        self.start = config.start_number
        self.broken: list[str] = []
        self.told: dict[type, list[Told]] = defaultdict(list)
        for at, record in enumerate(simulate(config)):
            decoded = decode(record.key, record.value)
            if decoded.rule:
                self.broken.append(decoded.rule.name)
            if decoded.message:
                self.told[type(decoded.message)].append(Told(at, record.topic, decoded.message))
        self.batches: dict[bytes, Told] = {}
        for told in self.told[Batch]:
            self.batches.setdefault(told.message.block_hash, told)
        self.keyed = self._by_block(BatchMsg, BatchDeleteMsg)
        self.headers = self._by_block(SubBatchHeader)
        self.items = self._by_block(SubBatchMsg)

    def _by_block(self, *kinds: type) -> dict[bytes, list[Told]]:
        blocks = defaultdict(list)
        for kind in kinds:
            for told in self.told[kind]:
                blocks[told.message.block_hash].append(told)
        return blocks

    def blocks(self) -> Iterator[tuple[Told, Batch]]:
        return ((told, told.message) for told in self.batches.values())

    def parents(self) -> Iterator[tuple[Told, Told]]:
        """Blocks with their parent."""
        return ((told, self.batches[b.parent]) for told, b in self.blocks() if b.parent in self.batches)

    def counters(self) -> Iterator[tuple[bytes, int, set[bytes]]]:
        """Of each counted entry its name, count and the keys that belong to it."""
        for _, batch in self.blocks():
            keys = {told.message.key for told in self.keyed[batch.block_hash]}
            for update in batch.updates:
                if update.count is not None:
                    yield update.name, update.count, {key for key in keys if _belongs(key, update.name)}

    def subbatches(self) -> Iterator[tuple[Batch, bytes]]:
        return ((batch, update.subbatch) for _, batch in self.blocks() for update in batch.updates if update.subbatch)

    def named(self, told: Told) -> bool:
        """Whether a header or item belongs to a sub-batch of its Batch."""
        batch = self.batches.get(told.message.block_hash)
        return batch is None or told.message.batch_id in {update.subbatch for update in batch.message.updates}

    def on_channel(self, told: Told) -> bool:
        return "-re-" in told.topic

    def reorgs(self) -> list[Told]:
        return self.told[Reorg]


def _belongs(key: bytes, name: bytes) -> bool:
    return key == name or (name.endswith(b"/") and key.startswith(name))


def _distinct(rows: Iterable[tuple[object, object]]) -> bool:
    """Whether some key has two values."""
    values = defaultdict(set)
    for key, value in rows:
        values[key].add(value)
    return any(len(each) > 1 for each in values.values())


def no_batch_message(s: Stream) -> bool:
    return any(block not in s.batches for block in [*s.keyed, *s.headers, *s.items])


def batch_conflict(s: Stream) -> bool:
    return _distinct((told.message.block_hash, content_digest(told.message)) for told in s.told[Batch])


def parent_never_sent(s: Stream) -> bool:
    return any(batch.parent not in s.batches and batch.number > s.start + 1 for _, batch in s.blocks())


def parent_after_child(s: Stream) -> bool:
    return any(parent.at > child.at for child, parent in s.parents())


def number_repeated_in_chain(s: Stream) -> bool:
    return any(child.message.number <= parent.message.number for child, parent in s.parents())


def prefix_count_open(s: Stream) -> bool:
    return any(len(keys) < count for _, count, keys in s.counters())


def extra_message(s: Stream) -> bool:
    return any(len(keys) > count for _, count, keys in s.counters())


def unexpected_key(s: Stream) -> bool:
    counted = {batch.block_hash: [u.name for u in batch.updates if u.count is not None] for _, batch in s.blocks()}
    return any(
        not any(_belongs(told.message.key, name) for name in counted[block])
        for block in counted
        for told in s.keyed[block]
    )


def key_two_values(s: Stream) -> bool:
    return _distinct(((m.block_hash, m.key), m.value) for m in (told.message for told in s.told[BatchMsg]))


def key_by_two_ways(s: Stream) -> bool:
    ways: list[tuple[object, object]] = [
        ((told.message.block_hash, told.message.key), type(told.message)) for told in _all(s.keyed)
    ]
    for told in s.told[SubBatchMsg]:
        item = told.message
        ways += [((item.block_hash, key), "deleted by item") for key in item.deletes]
        ways += [((item.block_hash, key), "set by item") for key, _ in item.updates]
    for _, batch in s.blocks():
        ways += [((batch.block_hash, u.name), "inline") for u in batch.updates if u.value is not None or u.delete]
    return _distinct(ways)


def prefix_not_at_boundary(s: Stream) -> bool:
    return any(
        key != update.name and key.startswith(update.name)
        for _, batch in s.blocks()
        for update in batch.updates
        if update.count is not None and not update.name.endswith(b"/")
        for key in (told.message.key for told in s.keyed[batch.block_hash])
    )


def topic_wrong(s: Stream) -> bool:
    matcher = NameMatcher(s.options)
    entries = [update.name for _, batch in s.blocks() for update in batch.updates if update.count or update.subbatch]
    return not all(matcher.judge(name).declared for name in entries) or any(
        matcher.judge(told.message.key).topic != told.topic for told in _all(s.keyed) if not s.on_channel(told)
    )


def subbatch_header_missing(s: Stream) -> bool:
    return any(batch_id not in _ids(s.headers[batch.block_hash]) for batch, batch_id in s.subbatches())


def subbatch_unknown(s: Stream) -> bool:
    return not all(s.named(told) for told in s.told[SubBatchHeader] + s.told[SubBatchMsg])


def subbatch_items_missing(s: Stream) -> bool:
    return any(
        {told.message.index for told in s.items[header.block_hash] if told.message.batch_id == header.batch_id}
        < set(range(header.item_count))
        for header in (told.message for told in s.told[SubBatchHeader] if s.named(told))
    )


def item_index_out_of_range(s: Stream) -> bool:
    counts = {(m.block_hash, m.batch_id): m.item_count for m in (told.message for told in s.told[SubBatchHeader])}
    items = (told.message for told in s.told[SubBatchMsg])
    return any(item.index >= counts.get((item.block_hash, item.batch_id), 2**63) for item in items)


def subbatch_conflict(s: Stream) -> bool:
    headers = [((m.block_hash, m.batch_id), m.item_count) for m in (told.message for told in s.told[SubBatchHeader])]
    items = (told.message for told in s.told[SubBatchMsg])
    contents = (((item.block_hash, item.batch_id, item.index), content_digest(item)) for item in items)
    return _distinct(headers) or _distinct(contents)


def reorg_unannounced(s: Stream) -> bool:
    """A block far below the highest one, on no ancestor that a Reorg names."""
    announced = {told.message.block_hash for told in s.reorgs()}
    return any(
        parent.message.number < _highest(s, child.at).number - s.threshold
        and announced.isdisjoint(_ancestors(s, child.message))
        for child, parent in s.parents()
    )


def reorg_ancestor_wrong(s: Stream) -> bool:
    return any(
        told.message.block_hash not in s.batches
        or s.batches[told.message.block_hash].message.number != told.message.number
        for told in s.reorgs() + s.told[ReorgComplete]
    )


def reorg_channel_shared(s: Stream) -> bool:
    """The ancestor of a Reorg gets a child on an ordinary topic after it."""
    return any(
        told.at > reorg.at and told.message.parent == reorg.message.block_hash and not s.on_channel(told)
        for reorg in s.reorgs()
        for told in s.told[Batch]
    )


def reorg_chain_broken(s: Stream) -> bool:
    channel = [told.message for told in s.told[Batch] if s.on_channel(told)]
    if not channel:
        return False
    reorg = s.reorgs()[0]
    linked = [batch.parent for batch in channel] == [
        reorg.message.block_hash,
        *(batch.block_hash for batch in channel[:-1]),
    ]
    return not linked or channel[-1].weight <= _highest(s, reorg.at).weight


def reorg_not_completed(s: Stream) -> bool:
    open_channels = {told.topic for told in s.reorgs() if s.on_channel(told)}
    return bool(open_channels - {told.topic for told in s.told[ReorgComplete]})


def reorg_complete_unasked(s: Stream) -> bool:
    return any(
        not any(reorg.at < told.at and reorg.topic == told.topic for reorg in s.reorgs())
        for told in s.told[ReorgComplete]
    )


def _all(blocks: dict[bytes, list[Told]]) -> Iterator[Told]:
    return (told for messages in blocks.values() for told in messages)


def _ids(messages: list[Told]) -> set[bytes]:
    return {told.message.batch_id for told in messages}


def _ancestors(s: Stream, batch: Batch) -> Iterator[bytes]:
    while batch.parent in s.batches:
        yield batch.parent
        batch = s.batches[batch.parent].message


def _highest(s: Stream, before: int) -> Batch:
    """The highest block that was sent before a place."""
    return max((batch for told, batch in s.blocks() if told.at < before), key=lambda batch: batch.number)


JUDGES: dict[str, Callable[[Stream], bool]] = {
    judge.__name__: judge
    for judge in (
        no_batch_message,
        batch_conflict,
        parent_never_sent,
        parent_after_child,
        number_repeated_in_chain,
        prefix_count_open,
        extra_message,
        unexpected_key,
        key_two_values,
        key_by_two_ways,
        prefix_not_at_boundary,
        topic_wrong,
        subbatch_header_missing,
        subbatch_unknown,
        subbatch_items_missing,
        item_index_out_of_range,
        subbatch_conflict,
        reorg_unannounced,
        reorg_ancestor_wrong,
        reorg_channel_shared,
        reorg_chain_broken,
        reorg_not_completed,
        reorg_complete_unasked,
    )
}
#: Rules that are found by decoding alone.
DECODING = {rule.name for rule in RULES[:7]} | {"delete_with_value"}


def found(config: SimulatorConfig) -> set[str]:
    stream = Stream(config)
    return set(stream.broken) | {name for name, judge in JUDGES.items() if judge(stream)}


def test_every_rule_has_a_fault_and_a_judge() -> None:
    assert list(FAULTS) == [rule.name for rule in RULES]
    assert set(JUDGES) | DECODING == set(FAULTS)
    assert all(fault.sentence.endswith(".") for fault in FAULTS.values())


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_breaks_its_rule_and_no_other(fault: str) -> None:
    assert found(replace(SMALL, fault=fault)) == {fault}


@pytest.mark.parametrize("fault", ["no_batch_message", "subbatch_conflict", "reorg_chain_broken"])
def test_a_fault_is_found_in_a_busy_stream_too(fault: str) -> None:
    config = replace(SMALL, blocks=60, producers=2, fork_every=6, fault=fault)
    assert found(config) == {fault}


@pytest.mark.parametrize(
    "config",
    [
        SMALL,
        replace(SMALL, subbatch_share=0.0, delete_share=0.0, value_bytes=0, pings=False),
        replace(SMALL, producers=3, fork_every=3, partitions=1),
        replace(SMALL, large_reorg=True, fork_every=7, start_number=2**64 - 200, chain_id=137),
    ],
    ids=["plain", "least", "redundant forks", "large reorg"],
)
def test_a_legal_stream_breaks_nothing(config: SimulatorConfig) -> None:
    assert found(config) == set()


def test_a_shuffled_stream_gives_notes_at_most() -> None:
    assert found(replace(SMALL, shuffle=70, producers=2)) == {"parent_after_child"}


@pytest.mark.parametrize("config", [SMALL, replace(SMALL, shuffle=30, large_reorg=True, fork_every=4)])
def test_the_same_configuration_gives_the_same_records(config: SimulatorConfig) -> None:
    assert list(simulate(config)) == list(simulate(config))


def test_another_seed_gives_other_blocks() -> None:
    first = {told.message.block_hash for told in Stream(SMALL).told[Batch]}
    assert first.isdisjoint(told.message.block_hash for told in Stream(replace(SMALL, seed=4)).told[Batch])


def test_offsets_count_in_each_partition_and_time_does_not_go_back() -> None:
    heads: Counter[tuple[str, int]] = Counter()
    times = []
    for record in simulate(replace(SMALL, shuffle=45, large_reorg=True, producers=2)):
        assert record.offset == heads[record.topic, record.partition]
        heads[record.topic, record.partition] += 1
        times.append(record.timestamp_ms)
    assert times == sorted(times)
    assert times[0] == SMALL.start_time_ms
    assert {partition for topic, partition in heads if "-re-" not in topic} == set(range(SMALL.partitions))
    assert {partition for topic, partition in heads if "-re-" in topic} == {0}


def test_messages_of_a_block_are_as_many_and_as_large_as_asked() -> None:
    config = SimulatorConfig(blocks=10, messages_per_block=500, value_bytes=300, subbatch_share=0.25, delete_share=0.1)
    stream = Stream(config)
    kinds = Counter({kind: len(told) for kind, told in stream.told.items()})
    assert kinds.total() == 5000
    assert (kinds[SubBatchMsg], kinds[BatchDeleteMsg], kinds[Batch]) == (1250, 500, 10)
    sizes = [len(told.message.value) for told in stream.told[BatchMsg] if told.topic.endswith("-tx")]
    assert 290 < sum(sizes) / len(sizes) < 310
    assert (min(sizes), max(sizes)) != (300, 300)


def test_topics_are_those_of_the_application() -> None:
    topics = {told.topic for messages in Stream(SMALL).told.values() for told in messages}
    names = ("block", "tx", "receipt", "logs", "state", "code")
    assert topics == {"cardinal-1", *(f"cardinal-1-{name}" for name in names)}


def test_redundant_producers_send_one_batch_in_different_bytes() -> None:
    values = defaultdict(list)
    for record in simulate(replace(SMALL, producers=2)):
        if record.key and record.key[0] == 0:
            values[record.key].append((record.value, decode(record.key, record.value).message))
    assert all(len(copies) == 2 for copies in values.values())
    assert any(first[0] != second[0] for first, second in values.values())
    for (_, first), (_, second) in values.values():
        assert isinstance(first, Batch)
        assert isinstance(second, Batch)
        assert content_digest(first) == content_digest(second)


def test_shuffling_moves_messages_no_further_than_its_window() -> None:
    straight = [(r.topic, r.key, r.value) for r in simulate(SMALL)]
    shuffled = [(r.topic, r.key, r.value) for r in simulate(replace(SMALL, shuffle=25))]
    assert sorted(straight) == sorted(shuffled)
    places = {sent: at for at, sent in enumerate(straight)}
    moved = [abs(places[sent] - at) for at, sent in enumerate(shuffled) if sent[1] and sent[1][0] != 0xFF]
    assert 0 < max(moved) < 25


def test_a_large_reorg_has_its_own_channel() -> None:
    stream = Stream(replace(SMALL, large_reorg=True))
    (announced, reorg), (complete,) = stream.reorgs(), stream.told[ReorgComplete]
    assert announced.topic == "cardinal-1"
    assert reorg.topic == complete.topic == f"cardinal-1-re-{reorg.message.block_hash.hex()}"
    assert stream.options.reorg_topic == "cardinal-1-re-{hash}"
    removed = _highest(stream, reorg.at).number - reorg.message.number
    assert removed > SMALL.reorg_threshold
    blocks = [told for told in stream.told[Batch] if told.topic == reorg.topic]
    assert len(blocks) == removed + 1
    assert all(reorg.at < told.at < complete.at for told in blocks)


def test_forks_are_shorter_than_the_threshold_and_go_both_ways() -> None:
    stream = Stream(replace(SMALL, blocks=120, fork_every=4))
    children = defaultdict(list)
    for child, parent in stream.parents():
        children[parent.message.block_hash].append(child)
    forks = [sides for sides in children.values() if len(sides) > 1]
    assert len(forks) > 15
    tip = max((batch for _, batch in stream.blocks()), key=lambda batch: batch.weight)
    canonical = set(_ancestors(stream, tip))
    assert {first.message.block_hash in canonical for first, _ in forks} == {True, False}
    depths = [_highest(stream, second.at).number - second.message.number + 1 for _, second in forks]
    assert set(depths) == {1, 2, 3, 4}


def test_pings_come_every_thirty_seconds_from_every_producer() -> None:
    config = replace(SMALL, producers=2, block_interval_ms=10_000)
    pings = [record for record in simulate(config) if record.key and record.key[0] == 0xFF]
    assert len({ping.key for ping in pings}) == 2
    times = [ping.timestamp_ms for ping in pings[::2]]
    assert {later - earlier for earlier, later in pairwise(times)} == {30_000}
    assert all(decode(ping.key, ping.value).skip == "ping" for ping in pings)


def test_options_of_a_stream_start_at_its_first_block() -> None:
    config = replace(SMALL, start_number=100, reorg_threshold=9, fault="no_batch_message", blocks=60)
    first = Stream(config).told[Batch][0].message
    options = config.options
    assert options.start is not None
    assert (first.number, first.parent, first.weight) == (
        101,
        options.start.hash,
        options.start.weight + 1,
    )
    assert options.reorg_threshold == 9
    assert CardinalOptions.from_canonical(options.canonical()) == options


def test_memory_does_not_grow_with_the_stream() -> None:
    def peak(blocks: int) -> int:
        tracemalloc.start()
        for _ in simulate(SimulatorConfig(blocks=blocks, messages_per_block=40, shuffle=100, fork_every=1)):
            pass
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(10)
    assert peak(160) < 1.3 * peak(40)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"fault": "nonsense"}, "fault"),
        ({"fault": "unknown_type", "blocks": 10}, "blocks"),
        ({"large_reorg": True, "blocks": 20}, "blocks"),
        ({"producers": 0}, "producers"),
        ({"partitions": 0}, "partitions"),
        ({"messages_per_block": 3}, "messages_per_block"),
        ({"shuffle": -1}, "shuffle"),
        ({"subbatch_share": 1.5}, "subbatch_share"),
        ({"delete_share": float("nan")}, "delete_share"),
        ({"reorg_threshold": 1}, "reorg_threshold"),
    ],
)
def test_a_configuration_that_makes_no_stream_is_refused(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(OptionError) as refused:
        SimulatorConfig(**changes)
    assert refused.value.fields["key"] == key


ODD = [Record('t\n"ö', 1, 2**40, 5, None, b"\x00"), Record("t", 0, 0, 0, b"", None), Record("t", 0, 1, 1, b"k", b"")]


def read_jsonl(data: bytes) -> list[Record]:
    return [
        Record(
            row["topic"],
            row["partition"],
            row["offset"],
            row["timestamp_ms"],
            None if row["key_b64"] is None else b64decode(row["key_b64"]),
            None if row["value_b64"] is None else b64decode(row["value_b64"]),
        )
        for row in map(json.loads, data.splitlines())
    ]


def read_avro(data: bytes) -> list[Record]:
    rows = [dict(row) for row in fastavro.reader(BytesIO(data)) if isinstance(row, dict)]
    assert all(row.pop("headers") is None for row in rows)
    return [Record(**row) for row in rows]


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize(
    ("suffix", "write", "read"), [("jsonl", write_jsonl, read_jsonl), ("avro", write_avro, read_avro)]
)
def test_files_hold_the_records(
    tmp_path: Path, suffix: str, write: Callable[..., int], read: Callable[[bytes], list[Record]], packed: bool
) -> None:
    records = [*islice(simulate(SMALL), 200), *ODD]
    path = tmp_path / (f"messages.{suffix}" + (".gz" if packed else ""))
    assert write(iter(records), path) == len(records)
    data = path.read_bytes()
    assert read(gzip.decompress(data) if packed else data) == records


def test_json_lines_have_the_shape_of_the_vectors() -> None:
    out = BytesIO()
    write_jsonl([Record("cardinal-1", 0, 3, 7, b"\x00\xff", b"")], out)
    assert out.getvalue() == (
        b'{"topic":"cardinal-1","partition":0,"offset":3,"timestamp_ms":7,"key_b64":"AP8=","value_b64":""}\n'
    )
    assert not out.closed


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".avro.zst"])
def test_the_same_records_give_the_same_packed_file(tmp_path: Path, suffix: str) -> None:
    paths = [tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"]
    for path in paths:
        WRITERS[suffix](islice(simulate(SMALL), 50), path)
    assert paths[0].read_bytes() == paths[1].read_bytes() or suffix.startswith(".avro")
    with paths[0].open("rb") as stream:
        assert len(list(MessageCapture(stream).rows())) == 50
