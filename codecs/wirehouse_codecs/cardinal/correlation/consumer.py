"""The reference path of the whole protocol, in memory: decode, assemble, order.

`Consumer` reports what a live consumer with the options of a source would see. It keeps every living block, so it is
for captures that fit in memory (`wirehouse inspect`, tests). The pipeline computes the same rows with Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from wirehouse_codecs.cardinal.correlation.chain import Chain
from wirehouse_codecs.cardinal.correlation.events import (
    BatchArrived,
    ChannelMessage,
    Closed,
    Completed,
    Event,
    FirstMessage,
    LocatedFinding,
    Outcome,
    ReorgArrived,
    ReorgCompleteArrived,
)
from wirehouse_codecs.cardinal.options import CardinalOptions
from wirehouse_codecs.cardinal.session.assembly import BlockAssembly, State
from wirehouse_codecs.cardinal.session.block import Block, Received
from wirehouse_codecs.cardinal.session.judgement import judged_findings
from wirehouse_codecs.cardinal.wire.messages import Batch, Decoded, Message, Reorg, ReorgComplete, decode
from wirehouse_codecs.core.horizon import HORIZON_NS
from wirehouse_codecs.core.rules import Finding, Place


@dataclass(frozen=True, slots=True)
class Row:
    """A landed record, and its message."""

    place: Place
    key: bytes | None
    value: bytes | None
    decoded: Decoded
    #: Whether the block's life had ended before, so the message takes no part.
    late: bool = False


#: What a consumer reports: each record, each block at the end of its life, and the outcomes of the chain.
ConsumerOutcome = Row | Block | Outcome


@dataclass(slots=True)
class _Channel:
    """A topic that is a reorg channel: what it has carried so far."""

    partitions: set[int | None] = field(default_factory=set)
    completed: bool = False


class Consumer:
    """Give it the records in arrival order with `receive`, then call `finish`."""

    def __init__(self, options: CardinalOptions) -> None:
        self._options = options
        self.chain = Chain(options)
        #: Living blocks, in the order of their first messages.
        self._blocks: dict[bytes, BlockAssembly] = {}
        #: When the life of each hash ended, oldest first. The hash is remembered for the horizon.
        self._closed: dict[bytes, int] = {}
        self._channels: dict[str, _Channel] = {}
        #: Messages that came after their block's life.
        self.late = 0

    def receive(self, place: Place, key: bytes | None, value: bytes | None) -> Iterator[ConsumerOutcome]:
        """The next record: first what time alone ended before it, then its row, then what follows from it."""
        yield from self._follow(self.chain.expire(place.arrived_at_ns))
        decoded = decode(key, value, self._options)
        message = decoded.message
        late = message is not None and self._is_late(message.block_hash, place)
        yield Row(place, key, value, decoded, late)
        if decoded.rule is not None:
            about = None if message is None else message.block_hash
            yield LocatedFinding(Finding(decoded.rule, place, decoded.reason), about, None)
        if message is None:
            return
        if isinstance(message, Reorg):
            yield from self._apply(ReorgArrived(place, message.block_hash, message.number))
        elif isinstance(message, ReorgComplete):
            yield from self._apply(ReorgCompleteArrived(place, message.block_hash, message.number))
        yield from self._on_channel(place, message)
        if isinstance(message, Reorg | ReorgComplete):
            return
        if late:
            self.late += 1
        else:
            yield from self._assemble(place, message)

    def finish(self) -> Iterator[Block]:
        """The blocks that are still alive."""
        for assembly in self._blocks.values():
            yield assembly.block()

    def _is_late(self, block_hash: bytes, place: Place) -> bool:
        while self._closed:
            oldest = next(iter(self._closed))
            if place.arrived_at_ns - self._closed[oldest] <= HORIZON_NS:
                break
            del self._closed[oldest]
        return block_hash in self._closed

    def _on_channel(self, place: Place, message: Message) -> Iterator[ConsumerOutcome]:
        """Events of a channel: its partitions, messages after its ReorgComplete, and repeated Batches."""
        topic = place.topic
        if topic is None or not self.chain.is_channel(topic):
            return
        channel = self._channels.setdefault(topic, _Channel())
        if place.partition not in channel.partitions or channel.completed:
            channel.partitions.add(place.partition)
            block_hash = None if isinstance(message, Reorg | ReorgComplete) else message.block_hash
            yield from self._apply(ChannelMessage(place, block_hash))
        channel.completed = channel.completed or isinstance(message, ReorgComplete)
        if isinstance(message, Batch):
            assembly = self._blocks.get(message.block_hash)
            if message.block_hash in self._closed or (assembly is not None and assembly.batch is not None):
                yield from self._apply(_batch_arrived(place, message))

    def _assemble(self, place: Place, message: Message) -> Iterator[ConsumerOutcome]:
        block_hash = message.block_hash
        assembly = self._blocks.get(block_hash)
        if assembly is None:
            assembly = self._blocks[block_hash] = BlockAssembly(block_hash, self._options)
            yield from self._apply(FirstMessage(place, block_hash))
        before, known = assembly.state, len(assembly.findings)
        state = assembly.receive(Received(place, message))
        batch = assembly.batch
        number = None if batch is None else batch.number
        for finding in assembly.findings[known:]:
            yield LocatedFinding(finding, block_hash, number)
        if before is State.UNKNOWN and batch is not None:
            yield from self._apply(_batch_arrived(place, batch))
        if state is State.COMPLETE and before is not State.COMPLETE:
            yield from self._apply(Completed(place, block_hash))

    def _apply(self, event: Event) -> Iterator[ConsumerOutcome]:
        return self._follow(self.chain.apply(event))

    def _follow(self, outcomes: Iterable[Outcome]) -> Iterator[ConsumerOutcome]:
        for outcome in outcomes:
            yield outcome
            if isinstance(outcome, Closed):
                yield from self._close(outcome)

    def _close(self, closed: Closed) -> Iterator[ConsumerOutcome]:
        block = self._blocks.pop(closed.block_hash).block()
        self._closed[closed.block_hash] = closed.place.arrived_at_ns
        yield block
        if closed.judged and not block.complete:
            number = None if block.batch is None else block.batch.number
            for finding in judged_findings(block, closed.stall):
                yield LocatedFinding(finding, block.block_hash, number)


@dataclass(frozen=True, slots=True)
class Consumed:
    """All outcomes of a capture, each kind in the order in which it was reported."""

    rows: tuple[Row, ...]
    findings: tuple[LocatedFinding, ...]
    #: Blocks in the order in which their lives ended, then those that are still alive.
    blocks: tuple[Block, ...]
    #: The chain's outcomes without its findings.
    outcomes: tuple[Outcome, ...]
    late: int


def consume(records: Iterable[tuple[Place, bytes | None, bytes | None]], options: CardinalOptions) -> Consumed:
    """The outcomes of all records of a capture, which are in arrival order."""
    consumer = Consumer(options)
    rows: list[Row] = []
    findings: list[LocatedFinding] = []
    blocks: list[Block] = []
    outcomes: list[Outcome] = []
    for place, key, value in records:
        for outcome in consumer.receive(place, key, value):
            if isinstance(outcome, Row):
                rows.append(outcome)
            elif isinstance(outcome, LocatedFinding):
                findings.append(outcome)
            elif isinstance(outcome, Block):
                blocks.append(outcome)
            else:
                outcomes.append(outcome)
    blocks.extend(consumer.finish())
    return Consumed(tuple(rows), tuple(findings), tuple(blocks), tuple(outcomes), consumer.late)


def _batch_arrived(place: Place, batch: Batch) -> BatchArrived:
    return BatchArrived(place, batch.block_hash, batch.number, batch.parent, batch.weight)
