"""Random legal traffic of Cardinal Streams and what it says: a chain that forks, producers, a broker, a reader.

Nothing here uses the codec or its simulator: the messages are written by hand, and what they amount to is known from
what was meant.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from random import Random
from typing import Any
from zlib import crc32

from tests.support.cardinal_by_hand import (
    TOPIC,
    Entry,
    Sent,
    batch,
    channel,
    delete_key,
    header,
    item,
    reorg,
    reorg_complete,
    set_key,
)

BLOCK_NS = 10**9
#: Prefixes of the application, and the topic of each.
PREFIXES = {b"p/": "p", b"p/x/": "p", b"q/": "q", b"whole": "q", b"s": "state", b"t": "state", b"in": "feed"}

#: What a consumer may be interested in: its option, and the names that it means.
TRACKED: tuple[tuple[list[str], set[bytes]], ...] = (
    ([".*"], set(PREFIXES)),
    (["^p/", "^s$"], {b"p/", b"p/x/", b"s"}),
    (["^whole$", "in", "t"], {b"whole", b"in", b"t"}),
    ([], set()),
)


@dataclass
class Block:
    """A block as it is meant."""

    hash: bytes
    number: int
    parent: bytes
    weight: int
    entries: dict[bytes, Entry] = field(default_factory=dict)
    #: Topic, and what makes the message anew; a Batch is told in a new order each time.
    messages: list[tuple[str, Sent]] = field(default_factory=list)
    #: Key -> value; None: deleted. By the name of the entry that brings it.
    content: dict[bytes, dict[bytes, bytes | None]] = field(default_factory=dict)

    def batch(self, random: Random) -> Sent:
        """The Batch, as some producer writes it."""
        weight = self.weight.to_bytes(32, "big").lstrip(random.choice([b"", b"\0"]))
        return batch(self.hash, self.number, self.parent, self.entries, weight=weight, random=random)


@dataclass
class Network:
    """Traffic in the order in which it is read, and what it says."""

    options: dict[str, Any]
    #: With `offset`: where it stands in its partition.
    records: list[Sent]
    blocks: dict[bytes, Block]
    #: The canonical blocks, lowest first.
    chain: list[bytes]
    #: Names of entries that are kept.
    tracked: set[bytes]
    #: Each partition of ordinary topics is read on its own, without times.
    apart: bool
    #: The reader went back once or twice.
    read_again: bool

    def content(self, block_hash: bytes) -> dict[bytes, bytes | None]:
        """What a consumer with the tracked prefixes keeps of a block."""
        kept = [said for name, said in self.blocks[block_hash].content.items() if name in self.tracked]
        return {key: value for said in kept for key, value in said.items()}


class _Maker:
    """Makes one network."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.threshold = random.choice([6, 8, 12])
        self.base = random.choice([0, 1, 17_000_000, 2**40])
        self.blocks: dict[bytes, Block] = {}
        self.start = random.randbytes(32)
        self.tip = Block(self.start, self.base, random.randbytes(32), random.randrange(10**6) * 1000)
        self.weights: set[int] = {self.tip.weight}
        self.partitions = {topic: random.choice([1, 1, 2, 4]) for topic in dict.fromkeys([TOPIC, *PREFIXES.values()])}
        self.producers = [random.randint(0, 2) * BLOCK_NS for _ in range(random.choice([1, 1, 2, 3]))]
        self.jitter_ns = random.choice([0, BLOCK_NS // 10, 2 * BLOCK_NS])
        self.now = 0
        #: Messages of all producers.
        self.sent: list[Sent] = []
        #: Ancestors of large reorgs.
        self.ancestors: list[Block] = []

    def parent_of(self, block: Block, depth: int) -> Block | None:
        """The block `depth` below, if it was sent."""
        below: Block | None = block
        for _ in range(depth):
            below = self.blocks.get(below.parent) if below is not None else None
        return below

    def new(self, parent: Block, least: int = 0) -> Block:
        weight = max(parent.weight, least) + self.random.choice([1, 2, 1000, 10**30])
        while weight in self.weights:
            weight += 1
        self.weights.add(weight)
        block = Block(self.random.randbytes(32), parent.number + 1, parent.hash, weight)
        self.fill(block)
        self.blocks[block.hash] = block
        return block

    def fill(self, block: Block) -> None:
        random = self.random
        for name, topic in PREFIXES.items():
            if random.randrange(2):
                continue
            content = block.content[name] = {}
            if name in (b"s", b"t"):
                self.add_sub_batch(block, name, topic)
            elif name == b"in":
                inline = random.choice([None, random.randbytes(5)])
                block.entries[name] = Entry(delete=True) if inline is None else Entry(value=inline)
                content[name] = inline
            else:
                keys = (
                    [name]
                    if name == b"whole"
                    else [name + random.randbytes(3).hex().encode() for _ in range(random.randint(0, 4))]
                )
                for key in dict.fromkeys(keys):
                    content[key] = random.choice([None, b"", random.randbytes(4), random.randbytes(200)])
                    value = content[key]
                    message = delete_key(block.hash, key) if value is None else set_key(block.hash, key, value)
                    block.messages.append((topic, message))
                if content:
                    block.entries[name] = Entry(count=len(content))
        random.shuffle(block.messages)

    def add_sub_batch(self, block: Block, name: bytes, topic: str) -> None:
        random, content = self.random, block.content[name]
        batch_id = random.randbytes(32)
        block.entries[name] = Entry(subbatch=batch_id)
        items = random.choice([0, 1, 3, 70])
        block.messages.append((topic, header(block.hash, batch_id, items)))
        for index in range(items):
            updates = {
                b"%s/%d/%d" % (name, index, at): random.randbytes(random.randint(0, 4))
                for at in range(random.randint(0, 3))
            }
            deletes = [b"%s/%d/gone%d" % (name, index, at) for at in range(random.randint(0, 2))]
            content |= updates | dict.fromkeys(deletes)
            block.messages.append((topic, item(block.hash, batch_id, index, updates, deletes, random)))

    def send(self, block: Block) -> None:
        """By each producer that sees the block; one of them may stop halfway."""
        random = self.random
        producers = random.sample(self.producers, random.randint(1, len(self.producers)))
        for at, lag_ns in enumerate(producers):
            messages = [(TOPIC, block.batch(random)), *block.messages]
            if at and not random.randrange(4):
                messages = random.sample(messages, random.randint(0, len(messages)))
            for topic, message in messages:
                for _ in range(random.choice([1, 1, 1, 1, 1, 2])):
                    at_ns = self.now + lag_ns + random.randint(0, self.jitter_ns)
                    self.sent.append(message._replace(topic=topic, at_ns=at_ns))

    def one_block(self) -> None:
        self.now += BLOCK_NS
        self.tip = self.new(self.tip)
        self.send(self.tip)

    def fork(self) -> None:
        """A branch beside the newest blocks, which may become the chain."""
        depth = self.random.randint(1, 3)
        ancestor = self.parent_of(self.tip, depth)
        if ancestor is None:
            return
        overtakes = self.random.randrange(2)
        branch = ancestor
        for _ in range(depth + self.random.choice([-1, 0, 1])):
            branch = self.new(branch)
            # A branch that doesn't overtake stays lighter than what is there.
            if not overtakes and branch.weight > self.tip.weight:
                del self.blocks[branch.hash]
                break
            self.send(branch)
        if branch.weight > self.tip.weight and branch.hash in self.blocks:
            self.tip = branch

    def depth_above(self, block: Block) -> int:
        """Blocks of the chain above `block`; 0 if it isn't on the chain."""
        depth, above = 0, self.tip
        while above.hash != block.hash:
            below = self.blocks.get(above.parent)
            if below is None:
                return 0
            depth, above = depth + 1, below
        return depth

    def large_reorg(self, *, announced: bool) -> None:
        """Deeper than the threshold, on a channel. All before has arrived, and nothing else comes meanwhile."""
        again = [block for block in self.ancestors if self.depth_above(block) > self.threshold]
        ancestor = self.parent_of(self.tip, self.threshold + self.random.randint(1, 3))
        if again and self.random.randrange(2):
            ancestor = self.random.choice(again)
        if ancestor is None or (ancestor in self.ancestors and ancestor not in again):
            return
        depth = self.depth_above(ancestor)
        self.ancestors.append(ancestor)
        self.now += 10 * BLOCK_NS
        heaviest, branch, topic = self.tip.weight, ancestor, channel(ancestor.hash)
        if announced and self.random.randrange(2):
            self.sent.append(reorg(ancestor.hash, ancestor.number)._replace(at_ns=self.now))
        new: list[Block] = []
        while branch.weight <= heaviest:
            branch = self.new(branch, heaviest if len(new) >= depth else 0)
            new.append(branch)
        told = [reorg(ancestor.hash, ancestor.number, topic)]
        for block in new:
            messages = [block.batch(self.random), *(message for _, message in block.messages)]
            self.random.shuffle(messages)
            told += [message._replace(topic=topic) for message in messages]
        told.append(reorg_complete(ancestor.hash, ancestor.number, topic))
        # A second producer repeats all of it.
        for _ in range(self.random.choice([1, 2])):
            for message in told:
                self.now += 10**6
                self.sent.append(message._replace(at_ns=self.now))
        self.now += 10 * BLOCK_NS
        self.tip = branch

    def log(self) -> dict[tuple[str, int], list[Sent]]:
        """What the broker keeps, by partition; compaction may have removed repeated messages."""
        partitions: dict[tuple[str, int], list[Sent]] = defaultdict(list)
        for message in sorted(self.sent, key=lambda message: message.at_ns):
            count = self.partitions.get(message.topic, 1)
            at = message.topic, crc32(message.key) % count
            partitions[at].append(message._replace(partition=at[1], offset=len(partitions[at])))
        if self.random.randrange(2):
            for at, messages in partitions.items():
                # A channel's order counts.
                if at[0] in self.partitions:
                    last = {message.key: message.offset for message in messages}
                    partitions[at] = [
                        message
                        for message in messages
                        if last[message.key] == message.offset or self.random.randrange(2)
                    ]
        return partitions

    def read(self, *, apart: bool) -> list[Sent]:
        """In the order of time, each partition with a lag of its own; or each partition for itself."""
        random, partitions = self.random, self.log()
        if not apart:
            most = random.choice([0, self.threshold // 2]) * BLOCK_NS
            # A channel is read after what came before it, or ahead of it.
            ahead = self.random.choice([0, 0, 5, 10, 20, 100]) * BLOCK_NS
            lags = {
                at: random.randint(0, most) if at[0] in self.partitions else most // 2 - random.choice([0, ahead])
                for at in partitions
            }
            everything = [message for messages in partitions.values() for message in messages]
            return sorted(everything, key=lambda message: message.at_ns + lags[message.topic, message.partition])
        waiting = [messages[::-1] for messages in partitions.values()]
        most_at_once = random.choice([1, 50, 100_000])
        out: list[Sent] = []
        while waiting := [messages for messages in waiting if messages]:
            messages = random.choice(waiting)
            # A channel is one file.
            whole = messages[0].topic not in self.partitions
            many = len(messages) if whole else min(random.randint(1, most_at_once), len(messages))
            out += [messages.pop() for _ in range(many)]
        return out


def network(seed: int) -> Network:
    """The network of a seed."""
    maker = _Maker(seed)
    random = maker.random
    apart = not random.randrange(3)
    large = not random.randrange(3)
    # A large reorg that removes what stands above a gap forgets the gap.
    start = random.randrange(4) > 0 or (apart and large)
    root = maker.start
    for _ in range(random.choice([12, 24, 48])):
        maker.one_block()
        if not random.randrange(4):
            maker.fork()
        if large and not random.randrange(20):
            maker.large_reorg(announced=not apart)
    records = maker.read(apart=apart)
    read_again = not random.randrange(3)
    for _ in range(random.randint(1, 2) if read_again else 0):
        back, at = sorted((random.randrange(len(records)), random.randrange(len(records))))
        records = records[:at] + records[back:]
    chain, above = [], maker.tip
    while True:
        chain.append(above.hash)
        if above.parent == root:
            break
        above = maker.blocks[above.parent]
    prefixes, tracked = random.choice(TRACKED)
    options: dict[str, Any] = {"reorg_threshold": maker.threshold, "tracked_prefixes": prefixes}
    if start:
        lowest = maker.blocks[chain[-1]]
        options["start"] = {"number": lowest.number - 1, "hash": root.hex(), "weight": 0}
    return Network(options, records, maker.blocks, chain[::-1], tracked, apart, read_again)
