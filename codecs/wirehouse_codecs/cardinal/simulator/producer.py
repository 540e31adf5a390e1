"""The producer of simulated traffic: an EVM chain's blocks as Cardinal messages.

Keys, topics and the sub-batch are those of the EVM application; the messages are the specification's ("Messages",
"Reorg Handling"). simulator.py decides which blocks are made and delivers their messages; faults.py breaks them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wirehouse_codecs.cardinal.wire import avro
from wirehouse_codecs.cardinal.wire.messages import (
    BATCH_DELETE_MSG,
    BATCH_MSG,
    HASH_BYTES,
    NO_SUBBATCH,
    SUBBATCH_HEADER,
    SUBBATCH_MSG,
    Batch,
    Message,
    Reorg,
    ReorgComplete,
    encode,
    update_record,
)

if TYPE_CHECKING:
    from wirehouse_codecs.cardinal.simulator.simulator import SimulatorConfig

#: Final difficulty of the chain: since the merge, a block's weight is this and its number.
FINAL_DIFFICULTY = 58_750_003_716_598_352_816_469
#: Blocks kept before and after those that a reorg removes.
QUIET_BLOCKS = 4
#: Messages of a block besides those that the shares divide: Batch, header, difficulty, number, sub-batch header.
FIXED_MESSAGES = 5
#: How the rest of a block's messages divides; accounts take what is left.
SHARES = {"t": 0.2, "r": 0.2, "l": 0.25, "c": 0.05}


def topics_of(config: SimulatorConfig) -> Iterator[tuple[str, str]]:
    """Prefixes as regular expressions, and the topic of each."""
    chain = f"c/{config.chain_id:x}"
    block = f"{chain}/b/[0-9a-f]{{64}}"
    for prefix, topic in (
        (f"{block}/[hduw]", "block"),
        (f"{chain}/n/", "block"),
        (f"{block}/t/", "tx"),
        (f"{block}/r/", "receipt"),
        (f"{block}/l/", "logs"),
        (f"{chain}/a/", "state"),
        (f"{chain}/s", "state"),
        (f"{chain}/c/", "code"),
    ):
        yield prefix, f"{config.topic}-{topic}"


class Block(NamedTuple):
    """A block's place in the chain."""

    number: int
    hash: bytes
    parent: bytes
    weight: int


class Sent(NamedTuple):
    """A message on its way to the broker."""

    topic: str
    key: bytes
    value: bytes


@dataclass(slots=True)
class Draft:
    """A block's messages before they are sent; a fault edits it."""

    block: Block
    chain: str
    topics: dict[str, str]
    #: Entries of Batch.updates: name and encoded record.
    entries: dict[bytes, bytes] = field(default_factory=dict)
    #: Everything but the Batch, in order.
    messages: list[Sent] = field(default_factory=list)
    batch_topic: str = ""
    #: Whether to send no Batch.
    without_batch: bool = False

    @property
    def batch_id(self) -> bytes:
        """The id of the sub-batch: the block's number, so it is unique only within the block."""
        return self.block.number.to_bytes(HASH_BYTES, "big")

    def key(self, kind: int, tail: bytes = b"") -> bytes:
        """The key of a message of this block."""
        return bytes([kind]) + self.block.hash + tail

    def batch(self, names: Sequence[bytes] | None = None) -> Sent:
        """The Batch with its entries in the order of `names`."""
        entries = [avro.byte_string(name) + self.entries[name] for name in names or self.entries]
        key, head = encode(Batch(self.block.hash, self.block.number, self.block.weight, self.block.parent))
        # The map is the record's last field, and empty it is one byte.
        return Sent(self.batch_topic, key, head[:-1] + avro.blocks(entries))

    def first(self, kind: int, contains: str = "") -> int:
        """Position of the first message of a type whose key contains a text."""
        part = contains.encode()
        return next(i for i, sent in enumerate(self.messages) if sent.key[0] == kind and part in sent.key)


class Burst(NamedTuple):
    """Messages that leave together."""

    messages: list[Sent]
    #: Whether the messages keep their order, also with those before and after them.
    in_order: bool = False
    #: How much later than usual they leave; only where order is kept.
    wait_ms: int = 0


Edit = Callable[[Draft], None]


class Producer:
    """The chain so far, and the making of its blocks."""

    def __init__(self, config: SimulatorConfig) -> None:
        self.config = config
        self.random = np.random.default_rng(config.seed)
        number = config.start_number
        self.chain = [Block(number, self.random.bytes(HASH_BYTES), bytes(HASH_BYTES), FINAL_DIFFICULTY + number)]
        self.topics = {name.rpartition("-")[2]: name for _, name in topics_of(config)}
        self.shape = _shape(config)

    @property
    def head(self) -> Block:
        return self.chain[-1]

    @property
    def height(self) -> int:
        return self.head.number - self.config.start_number

    def child(self, parent: Block) -> Block:
        """A new block on `parent`."""
        return Block(parent.number + 1, self.random.bytes(HASH_BYTES), parent.hash, parent.weight + 1)

    def grow(self) -> Block:
        """A new head."""
        self.switch(self.head, [self.child(self.head)])
        return self.head

    def branch(self, ancestor: Block, blocks: int) -> list[Block]:
        """A side chain on `ancestor`."""
        side = [ancestor]
        for _ in range(blocks):
            side.append(self.child(side[-1]))
        return side[1:]

    def switch(self, ancestor: Block, side: list[Block]) -> None:
        """Make a side chain the chain; blocks deeper than any reorg are forgotten."""
        self.chain[self.chain.index(ancestor) + 1 :] = side
        del self.chain[: -2 * (self.config.reorg_depth + QUIET_BLOCKS)]

    def send(self, block: Block, edit: Edit | None = None, channel: str | None = None) -> Burst:
        """The messages of `block` from every producer; on a reorg channel from one."""
        draft = self._draft(block)
        if edit:
            edit(draft)
        burst: list[Sent] = []
        for _ in range(1 if channel else self.config.producers):
            if not draft.without_batch:
                names = list(draft.entries)
                burst.append(draft.batch([names[i] for i in self.random.permutation(len(names))]))
            burst += draft.messages
        if channel:
            return Burst([Sent(channel, key, value) for _, key, value in burst], in_order=True)
        return Burst(burst)

    def announce(self, topic: str, message: Message) -> Burst:
        """One message, at its place."""
        return Burst([Sent(topic, *encode(message))], in_order=True)

    def channel_of(self, ancestor: Block) -> str:
        """The topic of the reorg to `ancestor`."""
        return f"{self.config.topic}-re-{ancestor.hash.hex()}"

    def _draft(self, block: Block) -> Draft:
        draft = Draft(block, f"c/{self.config.chain_id:x}", self.topics, batch_topic=self.config.topic)
        shape = self.shape
        hashes = _Hashes(self.random, sum(shape.values()) * 2 + 8)
        values = _Values(self.random, sum(shape.values()) + 8, self.config.value_bytes)
        _add_header(draft, values)
        _add_transactions(draft, shape, values)
        _add_state(draft, shape, hashes, values)
        if shape["s"]:
            _add_subbatch(draft, shape["s"], hashes, values)
        return draft


def _shape(config: SimulatorConfig) -> dict[str, int]:
    """Messages of a block by kind: t, r, l, c, a as in the keys, x deletes, s items of the sub-batch."""
    items = round(config.messages_per_block * config.subbatch_share)
    deletes = round(config.messages_per_block * config.delete_share)
    if config.fault or config.incident:  # whatever they change is there
        items, deletes = max(items, 3), max(deletes, 1)
    rest = max(config.messages_per_block - FIXED_MESSAGES - items - deletes, 5)
    shape = {kind: max(int(rest * share), 1) for kind, share in SHARES.items()}
    return {**shape, "a": max(rest - sum(shape.values()), 1), "x": deletes, "s": items}


class _Hashes:
    """Random hashes as hex, made at once."""

    def __init__(self, random: np.random.Generator, count: int) -> None:
        self._hex = random.bytes(count * HASH_BYTES).hex()
        self._at = 0

    def take(self, count: int) -> list[str]:
        text, at = self._hex, self._at
        self._at += 64 * count
        return [text[i : i + 64] for i in range(at, self._at, 64)]


class _Values:
    """Random application values, made at once."""

    def __init__(self, random: np.random.Generator, count: int, size: int) -> None:
        ends = np.cumsum(random.integers(size - size // 2, size + size // 2 + 1, count)).tolist()
        self._data = random.bytes(ends[-1])
        self._ends = [0, *ends]
        self._at = 0

    def take(self, count: int) -> list[bytes]:
        data, ends, at = self._data, self._ends, self._at
        self._at += count
        return [data[ends[i] : ends[i + 1]] for i in range(at, at + count)]


def _add_counted(draft: Draft, name: str, kind: int, topic: str, keys: list[str], values: list[bytes]) -> None:
    """Messages under one counted prefix, and its entry in the Batch."""
    head, topic = draft.key(kind), draft.topics[topic]
    draft.entries[name.encode()] = update_record(b"", len(keys), False, NO_SUBBATCH)
    draft.messages += [Sent(topic, head + key.encode(), value) for key, value in zip(keys, values, strict=True)]


def _add_header(draft: Draft, values: _Values) -> None:
    block = f"{draft.chain}/b/{draft.block.hash.hex()}"
    number = f"{draft.chain}/n/"
    header, difficulty = values.take(2)
    _add_counted(draft, f"{block}/h", BATCH_MSG, "block", [f"{block}/h"], [header])
    _add_counted(draft, f"{block}/d", BATCH_MSG, "block", [f"{block}/d"], [difficulty])
    _add_counted(draft, number, BATCH_MSG, "block", [f"{number}{draft.block.number:x}"], [draft.block.hash])
    if draft.block.number % 8 == 0:  # a key under no prefix travels in the Batch itself
        draft.entries[f"{draft.chain}/version".encode()] = update_record(b"\x01", 0, False, NO_SUBBATCH)


def _add_transactions(draft: Draft, shape: dict[str, int], values: _Values) -> None:
    block = f"{draft.chain}/b/{draft.block.hash.hex()}"
    for kind, topic in (("t", "tx"), ("r", "receipt")):
        keys = [f"{block}/{kind}/{i:x}" for i in range(shape[kind])]
        _add_counted(draft, f"{block}/{kind}/", BATCH_MSG, topic, keys, values.take(len(keys)))
    logs = [f"{block}/l/{i % shape['t']:x}/{i:x}" for i in range(shape["l"])]
    _add_counted(draft, f"{block}/l/", BATCH_MSG, "logs", logs, values.take(len(logs)))


def _add_state(draft: Draft, shape: dict[str, int], hashes: _Hashes, values: _Values) -> None:
    accounts, codes = f"{draft.chain}/a/", f"{draft.chain}/c/"
    keys = [f"{codes}{code}" for code in hashes.take(shape["c"])]
    _add_counted(draft, codes, BATCH_MSG, "code", keys, values.take(len(keys)))
    keys = [f"{accounts}{account}/d" for account in hashes.take(shape["a"])]
    _add_counted(draft, accounts, BATCH_MSG, "state", keys, values.take(len(keys)))
    destructed = [f"{accounts}{account}" for account in hashes.take(shape["x"])]
    if destructed:
        _add_counted(draft, accounts, BATCH_DELETE_MSG, "state", destructed, [b""] * len(destructed))
        draft.entries[accounts.encode()] = update_record(b"", len(keys) + len(destructed), False, NO_SUBBATCH)


def _add_subbatch(draft: Draft, items: int, hashes: _Hashes, values: _Values) -> None:
    """The sub-batch of storage: first an item with all deletes, then one item for each slot, by key."""
    topic = draft.topics["state"]
    draft.entries[f"{draft.chain}/s".encode()] = update_record(b"", 0, False, draft.batch_id)
    draft.messages.append(Sent(topic, draft.key(SUBBATCH_HEADER, draft.batch_id), avro.varint(items)))
    chain, accounts, slots = draft.chain, hashes.take(items), hashes.take(items)
    names = [f"{chain}/a/{a}/s/{s}".encode() for a, s in zip(accounts, slots, strict=True)]
    head = draft.key(SUBBATCH_MSG, draft.batch_id)
    deletes = avro.blocks([avro.byte_string(names.pop())])
    draft.messages.append(Sent(topic, head + avro.varint(0), deletes + b"\0"))
    names.sort()
    name_length = avro.varint(len(names[0])) if names else b""
    for index, (name, value) in enumerate(zip(names, values.take(len(names)), strict=True), 1):
        entry = b"".join((name_length, name, avro.varint(len(value)), value))
        body = b"".join((b"\0\x01", avro.varint(len(entry)), entry, b"\0"))
        draft.messages.append(Sent(topic, head + avro.varint(index), body))


def large_reorg(
    producer: Producer,
    *,
    blocks_short: int = 0,
    completed: bool = True,
    channel: bool = True,
) -> Iterator[Burst]:
    """A reorg deeper than the threshold (specification, "Reorg", Producers).

    The keywords break it: blocks missing at its end, no ReorgComplete, or no channel of its own.
    """
    config = producer.config
    ancestor = producer.chain[-1 - config.reorg_depth]
    side = producer.branch(ancestor, config.reorg_depth + 1 - blocks_short)
    producer.switch(ancestor, side)
    topic = producer.channel_of(ancestor) if channel else None
    notice = Reorg(ancestor.hash, ancestor.number)
    yield producer.announce(config.topic, notice)
    if topic:
        yield producer.announce(topic, notice)
    for block in side:
        yield producer.send(block, channel=topic)._replace(in_order=True)
    if completed:
        yield producer.announce(topic or config.topic, ReorgComplete(ancestor.hash, ancestor.number))
