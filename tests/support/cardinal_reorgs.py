"""Random legal feeds of Cardinal Streams with large reorgs, read with a lag for each partition.

Nothing here uses the codec or its simulator. A feed is written as its producer means it: a chain, siblings beside it,
and large reorgs on channels. Then each partition is read late by a time of its own, so that a Reorg may be read before
the branch that it removes, and a channel before or after everything else.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any
from zlib import crc32

from tests.support.cardinal_by_hand import TOPIC, Entry, Sent, batch, channel, reorg, reorg_complete, set_key

#: Topic of the only key that some blocks set.
VALUES = "values"
#: Between two blocks of the chain. Messages of a channel follow each other more closely.
BLOCK_NS, CHANNEL_NS = 10**9, 10**6


@dataclass(frozen=True)
class Block:
    """A block as it is meant."""

    hash: bytes
    number: int
    parent: bytes
    weight: int
    has_key: bool


@dataclass(frozen=True)
class Feed:
    """Messages in the order in which they are read, and what they say."""

    options: dict[str, Any]
    records: list[Sent]
    #: The same messages in the order in which they were sent.
    sent: list[Sent]
    blocks: set[bytes]
    #: The canonical blocks, lowest first.
    chain: list[bytes]
    #: Ancestors of the large reorgs, in the order in which they were made.
    ancestors: list[bytes]


class _Producer:
    """Sends one feed."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.threshold = random.choice([3, 4, 6])
        self.partitions = {TOPIC: random.choice([1, 2, 2, 3, 4]), VALUES: random.choice([1, 2])}
        self.keys = random.choice([0, 0, 1, 3])
        self.now = 0
        self.sent: list[Sent] = []
        self.root = Block(random.randbytes(32), random.choice([0, 10**6]), random.randbytes(32), 0, False)
        #: The canonical blocks, without the root.
        self.chain: list[Block] = []
        #: Branches that aren't canonical, by the hash of the block that they hang on.
        self.siblings: dict[bytes, list[Block]] = {}
        self.blocks: set[bytes] = set()
        self.ancestors: list[Block] = []
        self.weights = {0}

    @property
    def tip(self) -> Block:
        return self.chain[-1] if self.chain else self.root

    def block(self, parent: Block, *, below: int | None = None, above: int = 0) -> Block | None:
        """A child of `parent`, heavier than `above`, or lighter than `below`."""
        weight = max(parent.weight, above) + self.random.choice([1, 10, 10, 10, 35])
        while weight in self.weights:
            weight += 1
        if below is not None and weight >= below:
            return None
        self.weights.add(weight)
        has_key = bool(self.keys) and not self.random.randrange(self.keys)
        made = Block(self.random.randbytes(32), parent.number + 1, parent.hash, weight, has_key)
        self.blocks.add(made.hash)
        return made

    def messages(self, block: Block) -> list[Sent]:
        entries = {b"k": Entry(count=1)} if block.has_key else {}
        made = [batch(block.hash, block.number, block.parent, entries, weight=block.weight)]
        if block.has_key:
            made.append(set_key(block.hash, b"k")._replace(topic=VALUES))
        return made

    def send(self, message: Sent, pause_ns: int) -> None:
        self.now += pause_ns
        self.sent.append(message._replace(at_ns=self.now))

    def on_ordinary_topics(self, block: Block) -> None:
        for message in self.messages(block):
            self.send(message, BLOCK_NS // (1 + block.has_key))

    def grow(self) -> None:
        """The next block of the chain."""
        block = self.block(self.tip)
        assert block is not None
        self.chain.append(block)
        self.on_ordinary_topics(block)

    def fork(self, ancestor: Block) -> None:
        """A branch beside the chain that stays lighter, no longer than the threshold."""
        branch: list[Block] = []
        for _ in range(self.random.randint(1, self.threshold)):
            block = self.block(branch[-1] if branch else ancestor, below=self.tip.weight)
            if block is None:
                break
            branch.append(block)
            self.on_ordinary_topics(block)
        if branch:
            self.siblings[ancestor.hash] = branch

    def overtake(self) -> None:
        """A branch that displaces a few blocks by weight."""
        depth = self.random.randint(1, self.threshold - 1)
        if len(self.chain) <= depth:
            return
        removed, self.chain = self.chain[-depth:], self.chain[:-depth]
        for _ in range(depth + 1):
            above = removed[-1].weight if len(self.chain) and self.random.randrange(2) else 0
            block = self.block(self.tip, above=above)
            assert block is not None
            self.chain.append(block)
            self.on_ordinary_topics(block)
        while self.tip.weight <= removed[-1].weight:
            self.grow()

    def reorg(self) -> None:
        """A large reorg: it removes more blocks than the threshold."""
        random = self.random
        depth = self.threshold + random.randint(1, 4)
        if len(self.chain) <= depth:
            return
        ancestor = self.chain[-1 - depth]
        if ancestor in self.ancestors:
            return
        self.ancestors.append(ancestor)
        topic = channel(ancestor.hash)
        new = self.new_branch(ancestor, depth)
        told = [
            reorg(ancestor.hash, ancestor.number, topic),
            *(message._replace(topic=topic) for block in new for message in self.messages(block)),
            reorg_complete(ancestor.hash, ancestor.number, topic),
        ]
        announced = random.choice(["before", "before", "after", "never"])
        if announced == "before":
            self.send(reorg(ancestor.hash, ancestor.number), BLOCK_NS // 2)
        for _ in range(random.choice([1, 1, 2])):
            for message in told:
                self.send(message, CHANNEL_NS)
        if announced == "after":
            self.send(reorg(ancestor.hash, ancestor.number), BLOCK_NS // 2)
        self.chain = [*self.chain[:-depth], *new]

    def new_branch(self, ancestor: Block, depth: int) -> list[Block]:
        """Up to the first block that is heavier than the head. It may begin with a branch that was sent before."""
        heaviest, known = self.tip.weight, self.siblings.get(ancestor.hash, [])
        new = list(known) if self.random.randrange(2) else []
        while not new or new[-1].weight <= heaviest:
            above = heaviest if len(new) >= depth else 0
            block = self.block(new[-1] if new else ancestor, above=above)
            assert block is not None
            new.append(block)
        return new

    def play(self) -> None:
        """A chain with one to three large reorgs."""
        random = self.random
        for _ in range(random.choice([1, 1, 2, 3])):
            for _ in range(self.threshold + random.randint(5, 10)):
                self.grow()
                if not random.randrange(4):
                    self.fork(random.choice([self.root, *self.chain][-self.threshold :]))
                if not random.randrange(8):
                    self.overtake()
            self.reorg()
        for _ in range(random.randint(1, 2 * self.threshold)):
            self.grow()
            if not random.randrange(4):
                self.fork(random.choice(self.chain[-self.threshold :]))

    def placed(self) -> list[Sent]:
        """The messages with their partitions and offsets. A key is always in one partition."""
        offsets: dict[tuple[str, int], int] = defaultdict(int)
        partitions: dict[bytes, int] = {}
        # A producer may choose partitions by the key, or stay with one for a while.
        stays, current, out = self.random.choice([1, 4, 12]), 0, []
        for message in self.sent:
            count = self.partitions.get(message.topic, 1)
            if stays > 1 and message.topic == TOPIC:
                current = current if self.random.randrange(stays) else self.random.randrange(count)
                partition = partitions.setdefault(message.key, current)
            else:
                partition = crc32(message.key) % count
            at = message.topic, partition
            out.append(message._replace(partition=partition, offset=offsets[at]))
            offsets[at] += 1
        return out

    def read(self, sent: list[Sent]) -> list[Sent]:
        """Each partition late by a time of its own, and channels by another."""
        random = self.random
        ordinary, channels = random.choice([0, 4, 10, 30]), random.choice([0, 0, 4, 10, 30])
        begin = {message.topic: message.at_ns for message in reversed(sent)}
        lags: dict[tuple[str, int], int] = {}
        for message in sent:
            at = message.topic, message.partition
            if at not in lags:
                most = ordinary if at[0] in self.partitions else channels
                lags[at] = random.choice([0, most, random.randint(0, most)]) * BLOCK_NS + random.randrange(BLOCK_NS)
        # A reader knows all partitions from their first message on.
        first = {(message.topic, message.partition): message.offset for message in reversed(sent)}
        # A channel may also be read slowly, so that what lags comes between its messages.
        slow = random.choice([0, 0, 1, 5]) * BLOCK_NS // CHANNEL_NS

        def read_at(message: Sent) -> int:
            at = message.topic, message.partition
            if at[0] in self.partitions:
                return message.at_ns + (lags[at] if message.offset != first[at] else 0)
            return message.at_ns + lags[at] + (message.at_ns - begin[at[0]]) * slow // 2

        return sorted(sent, key=read_at)


def feed(seed: int) -> Feed:
    """The feed of a seed."""
    producer = _Producer(Random(seed))
    producer.play()
    sent = producer.placed()
    root, chain = producer.root, producer.chain
    assert all(child.parent == parent.hash for parent, child in pairwise([root, *chain]))
    options: dict[str, Any] = {"reorg_threshold": producer.threshold}
    options["start"] = {"number": root.number, "hash": root.hash.hex(), "weight": root.weight}
    ancestors = [ancestor.hash for ancestor in producer.ancestors]
    return Feed(options, producer.read(sent), sent, producer.blocks, [block.hash for block in chain], ancestors)
