"""Seeded, realistic Cardinal Streams traffic: the producer of an EVM chain, with forks, reorgs and named faults.

Blocks, keys, topics and the sub-batch are those of the EVM application; the messages are the specification's
("Messages", "Reorg Handling"). A stream without a fault breaks no rule, and without shuffling gives no note. Records
are generated when they are needed, and memory does not grow with the stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from zlib import crc32

import numpy as np

from wirehouse_codecs.captures.compressed_output import endings
from wirehouse_codecs.cardinal.options import CardinalOptions, Start
from wirehouse_codecs.cardinal.simulator import incidents
from wirehouse_codecs.cardinal.simulator.faults import FAULTS, Fault
from wirehouse_codecs.cardinal.simulator.incidents import INCIDENTS
from wirehouse_codecs.cardinal.simulator.producer import (
    FINAL_DIFFICULTY,
    QUIET_BLOCKS,
    Burst,
    Producer,
    Sent,
    large_reorg,
    topics_of,
)
from wirehouse_codecs.cardinal.simulator.record_files import Record, write_avro, write_jsonl
from wirehouse_codecs.cardinal.wire.messages import HASH_BYTES, PING
from wirehouse_codecs.simulate.config import Bounds, check

__all__ = [
    "FAULTS",
    "INCIDENTS",
    "RECORDS",
    "WRITERS",
    "Fault",
    "Record",
    "SimulatorConfig",
    "simulate",
    "write_avro",
    "write_jsonl",
]

#: What `simulate` generates, and the writer for each ending of a file's name.
RECORDS: Final = "messages"
WRITERS: Final = endings(".jsonl", write_jsonl) | endings(".avro", write_avro)
PING_INTERVAL_MS = 30_000
#: Go's binary form of a time has 15 bytes, the first is its version.
PING_VALUE = bytes([1]) + bytes(14)
#: Blocks of a side chain that the ordering layer meets by itself.
FORK_DEPTHS = (1, 2, 3)
LEAST_MESSAGES = 16


@dataclass(frozen=True, slots=True)
class SimulatorConfig:
    """What to simulate. The same configuration gives the same records."""

    seed: int = 0
    #: Height of the chain. Side chains and reorgs send more blocks.
    blocks: int = 64
    messages_per_block: int = 100
    #: Mean size of an application value; sizes are from half to one and a half of it.
    value_bytes: int = 100
    #: Redundant producers: each sends every block, its Batch in another map order.
    producers: int = 1
    #: Each message is shuffled among this many neighbours; 0 = in order. If that spans more blocks than the reorg
    #: threshold, messages come too late.
    shuffle: int = 0
    #: Partitions of each topic; a reorg channel has one.
    partitions: int = 4
    #: Share of a block's messages that are items of its sub-batch.
    subbatch_share: float = 0.3
    #: Share that are BatchDeleteMsg.
    delete_share: float = 0.02
    #: Every this many blocks, two chains of up to four blocks compete, and either may win; 0 = never.
    fork_every: int = 0
    #: Whether to simulate a reorg deeper than the threshold, on its own channel, in the middle of the stream.
    large_reorg: bool = False
    reorg_threshold: int = 8
    chain_id: int = 1
    #: Number of the block before the first.
    start_number: int = 0
    start_time_ms: int = 1_700_000_000_000
    block_interval_ms: int = 12_000
    #: Whether every producer sends a sign of life every 30 s.
    pings: bool = True
    #: Name of a rule that the stream breaks; see FAULTS.
    fault: str | None = None
    #: Name of an incident that begins in the stream; see INCIDENTS.
    incident: str | None = None

    def __post_init__(self) -> None:
        """Raises OptionError for a value out of range, and for a stream that is too short for its events."""
        check(self, {"blocks": (self._least_blocks, None), **_BOUNDS}, FAULTS, INCIDENTS)

    @property
    def reorg_depth(self) -> int:
        """Blocks that a large reorg removes."""
        return self.reorg_threshold + 2

    @property
    def _event_blocks(self) -> int:
        """Blocks before a large reorg or a fault, so that a reorg there has an ancestor."""
        return self.reorg_depth + QUIET_BLOCKS

    @property
    def _least_blocks(self) -> int:
        """Blocks for the events, and enough after the last one for the rules about what never came to be judged."""
        events = (self.fault is not None) + self.large_reorg
        return events * (self._event_blocks + max(FORK_DEPTHS)) + self.reorg_threshold + QUIET_BLOCKS if events else 1

    @property
    def large_reorg_at(self) -> int | None:
        """Height at which the large reorg comes."""
        if not self.large_reorg:
            return None
        return self._event_blocks if self.fault else max(self._event_blocks, self.blocks // 2)

    @property
    def fault_at(self) -> int | None:
        """Height at which the fault comes."""
        if self.fault is None:
            return None
        return (self.large_reorg_at or 0) + self._event_blocks

    @property
    def topic(self) -> str:
        """The default topic."""
        return f"cardinal-{self.chain_id}"

    @property
    def options(self) -> CardinalOptions:
        """The options that a consumer of this stream should have."""
        topics = dict(topics_of(self))
        return CardinalOptions(
            reorg_threshold=self.reorg_threshold,
            start=Start(self.start_number, Producer(self).head.hash, FINAL_DIFFICULTY + self.start_number),
            prefixes=tuple(topics),
            topics=topics,
            reorg_topic=f"{self.topic}-re-{{hash}}",
        )


_BOUNDS: Final[Bounds] = {
    "messages_per_block": (LEAST_MESSAGES, None),
    "producers": (1, None),
    "partitions": (1, None),
    **dict.fromkeys(
        ("value_bytes", "shuffle", "fork_every", "start_number", "start_time_ms", "block_interval_ms", "chain_id"),
        (0, None),
    ),
    "reorg_threshold": (4, None),
    "subbatch_share": (0, 0.4),
    "delete_share": (0, 0.4),
}


def simulate(config: SimulatorConfig) -> Iterator[Record]:
    """The records of the stream in the order of delivery."""
    return _delivered(config, _with_pings(config, _bursts(Producer(config))))


def _bursts(producer: Producer) -> Iterator[Burst]:
    config = producer.config
    reorg_at, fault_at = config.large_reorg_at, config.fault_at
    incident_at = None if config.incident is None else incidents.height(config)
    forked_at = 0
    while producer.height < config.blocks:
        height = producer.height
        if reorg_at is not None and height >= reorg_at:
            reorg_at = None
            yield from large_reorg(producer)
        elif config.incident and incident_at is not None and height >= incident_at:
            incident_at = None
            yield from incidents.PLAYS[config.incident](producer)
        elif config.fault and fault_at is not None and height >= fault_at:
            fault_at = None
            yield from FAULTS[config.fault].play(producer)
        elif config.fork_every and height - forked_at >= config.fork_every:
            forked_at = height
            yield from _fork(producer)
        else:
            yield producer.send(producer.grow())


def _fork(producer: Producer) -> Iterator[Burst]:
    """Two chains from the head, the second one block longer or one shorter: the ordering layer keeps the heavier."""
    depths = [depth for depth in FORK_DEPTHS if depth < producer.config.reorg_threshold]
    ancestor, depth = producer.head, int(producer.random.choice(depths))
    wins = bool(producer.random.integers(2))
    first = producer.branch(ancestor, depth if wins else depth + 1)
    second = producer.branch(ancestor, depth + 1 if wins else depth)
    producer.switch(ancestor, second if wins else first)
    yield from map(producer.send, first)
    yield from map(producer.send, second)


def _with_pings(config: SimulatorConfig, bursts: Iterator[Burst]) -> Iterator[Burst]:
    """Add each producer's signs of life, on the default topic. `bursts` are one block interval apart."""
    ids = [np.random.default_rng((config.seed, p)).bytes(HASH_BYTES) for p in range(config.producers)]
    pings = [Sent(config.topic, bytes([PING]) + producer, PING_VALUE) for producer in ids]
    due = 0
    for i, burst in enumerate(bursts):
        if config.pings and i * config.block_interval_ms >= due:
            due = i * config.block_interval_ms + PING_INTERVAL_MS
            yield burst._replace(messages=pings + burst.messages)
        else:
            yield burst


def _delivered(config: SimulatorConfig, bursts: Iterator[Burst]) -> Iterator[Record]:
    """Partitions, offsets and times for what arrives."""
    offsets: dict[str, list[int]] = {}
    partitions = dict.fromkeys([config.topic, *dict(topics_of(config)).values()], config.partitions)
    time_ms = config.start_time_ms
    for span_ms, arriving in _shuffled(config, bursts):
        count = len(arriving)
        for i, (topic, key, value) in enumerate(arriving):
            if topic not in offsets:
                offsets[topic] = [0] * partitions.get(topic, 1)
            heads = offsets[topic]
            partition = crc32(key) % len(heads)
            offset = heads[partition]
            heads[partition] = offset + 1
            yield Record(topic, partition, offset, time_ms + i * span_ms // count, key, value)
        time_ms += span_ms


def _shuffled(config: SimulatorConfig, bursts: Iterator[Burst]) -> Iterator[tuple[int, list[Sent]]]:
    """Messages in the order of arrival with the time they take; each window is shuffled for itself."""
    random = np.random.default_rng((config.seed, config.shuffle))
    held: list[Sent] = []
    span_ms = 0
    for burst in bursts:
        if burst.in_order and held:
            yield span_ms, _permuted(random, held)
            held, span_ms = [], 0
        if burst.wait_ms:
            yield burst.wait_ms, []
        span_ms += config.block_interval_ms
        if burst.in_order or not config.shuffle:
            yield span_ms, burst.messages
            span_ms = 0
            continue
        held += burst.messages
        whole = len(held) - len(held) % config.shuffle
        for start in range(0, whole, config.shuffle):
            window_ms = span_ms * config.shuffle // len(held)
            yield window_ms, _permuted(random, held[start : start + config.shuffle])
            span_ms -= window_ms
        held = held[whole:]
    if held:
        yield span_ms, _permuted(random, held)


def _permuted(random: np.random.Generator, messages: list[Sent]) -> list[Sent]:
    return [messages[i] for i in random.permutation(len(messages)).tolist()]
