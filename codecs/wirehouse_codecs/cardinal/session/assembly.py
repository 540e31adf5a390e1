"""The message layer: one block assembled from its messages (specification, "Messages", the Consumers parts).

How a block is assembled
------------------------
A producer cuts a block into messages, which all carry the block's hash. The *Batch* is the table of contents: besides
number, weight and parent it has entries, each with a name. An entry sets or deletes a key inline, or it counts the
messages whose keys begin with its name (a prefix), or it names a sub-batch. The counted messages are *BatchMsg*, which
sets a key, and *BatchDeleteMsg*, which deletes one. A sub-batch is a *SubBatchHeader* with the number of items, and the
items, *SubBatchMsg*. Each item sets and deletes several keys.

Messages come in any order, and redundant producers send each several times. `BlockAssembly` takes them in arrival
order. It is a machine of three states. A block is UNKNOWN until its Batch arrives, then PENDING until all tracked
entries have what they wait for, then COMPLETE. `TRANSITIONS` is the table of states and kinds of messages. `assemble`
does the same in one call.

The cases
---------
- A message before its Batch waits, and is processed when the Batch arrives. The first Batch of a hash wins.
- A keyed message counts for the entry of the Batch that is its whole key. Without one it counts for the longest entry
  that ends in `/` and begins the key, the first that is still open. Names are compared as they are; the reference
  cleans `//`, `.` and `..` from paths.
- The first value of a key wins. An empty value is replaced by a later one that isn't empty, which doesn't count again.
- If an item or an inline value has already set the key of a BatchMsg, the key is "present in the batch's `Value`
  property", and the specification discards the message: it doesn't count, so its counter may never close. The same
  holds for BatchDeleteMsg and the deletes of items and Batch. Rule `key_by_two_ways` reports it.
- Items wait for their header. An item overwrites what another item, a message or an inline value has set.
- An entry of the Batch with several fields breaks `update_ambiguous`, and all its fields apply. A message with its name
  counts, although the entry has a value.
- Entries that no tracked prefix matches are not waited for, and give no content. The rules about what was sent
  (`extra_message`, `unexpected_key`, `key_two_values`, `key_by_two_ways`, `subbatch_*`) apply to them, too.

A finding is located at the message that breaks the rule. `Block.known_at` is the message at which that became known.
For an unexpected key before its Batch, it is the Batch. A longer stream never changes the findings of a shorter one and
only adds to them, so blocks may be cut into windows anywhere.

Beside this module: `block` is the result, `counters`, `subbatches` and `keys` are the parts of a block, and `judgement`
has the rules about what never came.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

from wirehouse_codecs.cardinal.options import CardinalOptions, NameMatcher
from wirehouse_codecs.cardinal.rules import RULE
from wirehouse_codecs.cardinal.session.block import BATCH_MESSAGE, Block, Count, Missing, Received
from wirehouse_codecs.cardinal.session.channels import reorg_channel_name
from wirehouse_codecs.cardinal.session.counters import Counter, Counters
from wirehouse_codecs.cardinal.session.keys import Content, Key, Way
from wirehouse_codecs.cardinal.session.subbatches import SubBatch, item_content, item_count
from wirehouse_codecs.cardinal.session.texts import location, shown
from wirehouse_codecs.cardinal.wire.messages import (
    Batch,
    BatchDeleteMsg,
    BatchMsg,
    Message,
    SubBatchHeader,
    SubBatchMsg,
    Update,
)
from wirehouse_codecs.core.rules import Finding, Place

#: Matchers of names that are remembered, one for each options object.
_MATCHERS_KEPT: Final = 8


class State(Enum):
    """What a block waits for."""

    #: Messages, but no Batch yet.
    UNKNOWN = "unknown"
    #: The Batch has arrived, but not all that it announces.
    PENDING = "pending"
    COMPLETE = "complete"


class Kind(Enum):
    """The messages that belong to a block."""

    BATCH = Batch
    SUBBATCH_HEADER = SubBatchHeader
    SUBBATCH_MSG = SubBatchMsg
    BATCH_MSG = BatchMsg
    BATCH_DELETE_MSG = BatchDeleteMsg


class BlockAssembly:
    """A block while its messages arrive. Give them to `receive` in arrival order; call `block()` at any time."""

    __slots__ = (
        "_ambiguous",
        "_batches",
        "_channel",
        "_completed_place",
        "_content",
        "_counters",
        "_duplicates",
        "_early",
        "_first",
        "_keys",
        "_known_at",
        "_last",
        "_matcher",
        "_messages",
        "_open",
        "_steps",
        "_subbatches",
        "_unknown",
        "block_hash",
        "findings",
        "state",
    )

    def __init__(self, block_hash: bytes, options: CardinalOptions) -> None:
        self.block_hash = block_hash
        self.state = State.UNKNOWN
        self._steps = _STEPS[State.UNKNOWN]
        self._matcher = _matcher(options)
        self._channel = reorg_channel_name(options)
        self._early: list[Received] = []
        #: The Batches that differ, the first one first.
        self._batches: list[Received] = []
        self._first: Place | None = None
        self._last: Place | None = None
        self._completed_place: Place | None = None
        self._messages = 0
        self._duplicates = 0
        self._counters = Counters()
        #: Names of entries that set several fields.
        self._ambiguous: set[bytes] = set()
        self._subbatches: dict[bytes, SubBatch] = {}
        #: Headers and items of sub-batches that the Batch doesn't name.
        self._unknown: set[object] = set()
        self._keys: dict[bytes, Key] = {}
        self._content = Content()
        #: Messages, headers and items that tracked entries wait for.
        self._open = 0
        #: Rules broken so far; it only grows.
        self.findings: list[Finding] = []
        self._known_at: list[Place] = []

    def receive(self, received: Received) -> State:
        """Take the next message of the block, and return the state after it. ValueError: it isn't one of this block."""
        step = self._steps.get(type(received.message))
        if step is None or received.message.block_hash != self.block_hash:
            raise ValueError(f"{type(received.message).__name__} isn't a message of block {self.block_hash.hex()}")
        if self._first is None:
            self._first = received.place
        self._last = received.place
        self._messages += 1
        step.effect(self, received)
        state = step.state if self._open else step.settled
        if state is not self.state:
            self._enter(state, received.place)
        return state

    def _enter(self, state: State, place: Place) -> None:
        self.state = state
        self._steps = _STEPS[state]
        if state is State.COMPLETE:
            self._completed_place = place

    @property
    def batch(self) -> Batch | None:
        """The first Batch."""
        return _batch(self._batches[0]) if self._batches else None

    def block(self) -> Block:
        """What is known of the block now. ValueError before the first message."""
        if self._first is None or self._last is None:
            raise ValueError(f"no message of block {self.block_hash.hex()}")
        expected, received, missing = self._counts()
        return Block(
            block_hash=self.block_hash,
            batch=self.batch,
            batch_place=self._batches[0].place if self._batches else None,
            first_place=self._first,
            last_place=self._last,
            completed_place=self._completed_place,
            messages=self._messages,
            duplicates=self._duplicates + sum(map(_repeats, self._waiting())),
            expected=expected,
            received=received,
            missing=missing,
            updates=self._content.updates() if self.state is State.COMPLETE else (),
            findings=tuple(self.findings),
            known_at=tuple(self._known_at),
        )

    def _waiting(self) -> list[list[Received]]:
        """Messages that wait for the Batch, or for a header."""
        return [self._early, *(subbatch.waiting for subbatch in self._subbatches.values())]

    def _counts(self) -> tuple[tuple[Count, ...], tuple[Count, ...], tuple[Missing, ...]]:
        if not self._batches:
            return (), (), (Missing(b"", 1, BATCH_MESSAGE),)
        rows = [counter.row() for counter in self._counters.by_name.values() if counter.tracked]
        rows += [subbatch.row() for subbatch in self._subbatches.values() if subbatch.tracked]
        rows.sort(key=lambda row: row[0].name)
        missing = tuple(row[2] for row in rows if row[2] is not None)
        return tuple(row[0] for row in rows), tuple(row[1] for row in rows), missing

    def _find(self, rule: str, received: Received, message: str) -> None:
        """`received` breaks `rule`, and the message that is being taken shows it."""
        assert self._last is not None
        self.findings.append(Finding(RULE[rule], received.place, message))
        self._known_at.append(self._last)

    def _queue(self, received: Received) -> None:
        self._early.append(received)

    # Batch

    def _open_block(self, received: Received) -> None:
        """The first Batch: wait for what it announces, and process the messages that came before it."""
        self._batches.append(received)
        batch = _batch(received)
        for update in {update.name: update for update in batch.updates}.values():
            self._announce(update, received)
        self._counters.sort()
        early, self._early = self._early, []
        steps = _STEPS[State.PENDING]
        for message in early:
            steps[type(message.message)].effect(self, message)

    def _announce(self, update: Update, received: Received) -> None:
        name = update.name
        verdict = self._matcher.judge(name)
        given = (update.value is not None, update.delete, update.count is not None, update.subbatch is not None)
        if sum(given) > 1:
            self._ambiguous.add(name)
        if update.value is not None:
            if verdict.tracked:
                self._content.set(name, update.value, received.place)
            self._write(name, Way.INLINE, received)
        if update.delete:
            if verdict.tracked:
                self._content.deletes[name] = received.place
            self._write(name, Way.INLINE_DELETE, received)
        if update.count is not None:
            self._counters.by_name[name] = Counter(name, update.count, verdict.tracked, verdict.topic)
            self._open += update.count if verdict.tracked else 0
        if update.subbatch is not None:
            self._announce_subbatch(update.subbatch, name, verdict.tracked, verdict.topic)
        if not verdict.declared and (update.count is not None or update.subbatch is not None):
            self._find("topic_wrong", received, f"no declared prefix begins the entry {shown(name)} of the Batch")

    def _announce_subbatch(self, batch_id: bytes, name: bytes, tracked: bool, topic: str | None) -> None:
        """One sub-batch under two names is one sub-batch, of the tracked name that sorts first."""
        known = self._subbatches.get(batch_id)
        if known is not None and (known.tracked, name) > (tracked, known.name):
            return
        self._open += tracked and not (known is not None and known.tracked)
        self._subbatches[batch_id] = SubBatch(batch_id, name, tracked, topic)

    def _compare_batch(self, received: Received) -> None:
        """A further Batch repeats an earlier one, or breaks rule `batch_conflict`. Entries may be in any order."""
        batch = _batch(received)
        if any(_same_batch(_batch(known), batch) for known in self._batches):
            self._duplicates += 1
            return
        first = self._batches[0]
        self._batches.append(received)
        differing = ", ".join(_batch_differences(_batch(first), batch))
        self._find(
            "batch_conflict", received, f"differs from the first Batch at {location(first.place)} in {differing}"
        )

    # BatchMsg and BatchDeleteMsg

    def _take_set(self, received: Received) -> None:
        message = received.message
        assert isinstance(message, BatchMsg)
        name, value = message.key, message.value
        key = self._keys.get(name)
        if key is None:
            key = self._keys[name] = Key()
        elif key.first is not None:
            self._take_set_again(key, received, message)
            return
        key.first = received
        counter = key.set_counter = self._counter_of(name, received)
        if counter is None:
            return
        known = counter.tracked and name in self._content.values
        if (not known or name in self._ambiguous) and not self._count(counter, received, name):
            return
        if known:
            counter.uncounted += name not in self._ambiguous
            self._replace_empty(name, value, received.place)
        elif counter.tracked:
            self._content.set(name, value, received.place)
        self._write(name, Way.BATCH_MSG, received)

    def _take_set_again(self, key: Key, received: Received, message: BatchMsg) -> None:
        """A further BatchMsg of a key: a repeat, or another value."""
        assert key.first is not None
        first = key.first.message
        assert isinstance(first, BatchMsg)
        self._check_topic(key.set_counter, received)
        if message.value == first.value or (key.others is not None and message.value in key.others):
            self._duplicates += 1
            return
        if key.others is None:
            key.others = []
        key.others.append(message.value)
        if key.set_counter is None:
            self._counter_of(message.key, received)
            return
        if any(way is Way.BATCH_MSG for way, _ in key.ways()):
            self._replace_empty(message.key, message.value, received.place)
        self._find(
            "key_two_values",
            received,
            f"key {shown(message.key)} has {len(message.value)} bytes here that differ from the {len(first.value)} "
            f"bytes at {location(key.first.place)}",
        )

    def _take_delete(self, received: Received) -> None:
        message = received.message
        assert isinstance(message, BatchDeleteMsg)
        name = message.key
        key = self._keys.get(name)
        if key is None:
            key = self._keys[name] = Key()
        elif key.deleted:
            self._duplicates += 1
            self._check_topic(key.unset_counter, received)
            return
        key.deleted = True
        counter = key.unset_counter = self._counter_of(name, received)
        if counter is None:
            return
        known = counter.tracked and name in self._content.deletes
        if (not known or name in self._ambiguous) and not self._count(counter, received, name):
            return
        if counter.tracked and not known:
            self._content.deletes[name] = received.place
        self._write(name, Way.BATCH_DELETE_MSG, received)

    def _replace_empty(self, name: bytes, value: bytes, place: Place) -> None:
        """A value that isn't empty replaces an empty one, unless the block is complete."""
        if value and self._content.values.get(name) == b"" and self.state is not State.COMPLETE:
            self._content.set(name, value, place)

    def _count(self, counter: Counter, received: Received, name: bytes) -> bool:
        """Count a key that is new under `counter`. Returns False if the counter is closed: rule `extra_message`."""
        if counter.received < counter.count:
            counter.received += 1
            self._open -= counter.tracked
            return True
        self._find(
            "extra_message",
            received,
            f"key {shown(name)} is beyond the {counter.count} messages of prefix {shown(counter.name)}",
        )
        return False

    def _counter_of(self, name: bytes, received: Received) -> Counter | None:
        """The counter of a key: the nearest open one, tracked ones first; a closed one if none is open.

        None, and the rule that is broken, if the key belongs to none.
        """
        beyond = self._counters.not_at_boundary(name)
        if beyond is not None:
            beyond.uncounted += 1
            self._find("prefix_not_at_boundary", received, f"{shown(beyond.name)} begins key {shown(name)}")
        counter = self._counters.nearest(name) if name else None
        if counter is not None:
            self._check_topic(counter, received)
        elif beyond is None:
            self._find("unexpected_key", received, f"key {shown(name)} belongs to no counted prefix of its Batch")
        return counter

    def _write(self, name: bytes, way: Way, received: Received) -> None:
        """`name` is set or deleted by `way`. Rule `key_by_two_ways` if an earlier way doesn't go with that."""
        key = self._keys.get(name)
        if key is None:
            key = self._keys[name] = Key()
        clashing = key.add_way(way, received.place)
        # For an ambiguous entry, `update_ambiguous` is the finding.
        if clashing and name not in self._ambiguous:
            others = " and ".join(f"{known.value} at {location(place)}" for known, place in clashing)
            self._find("key_by_two_ways", received, f"key {shown(name)} is {way.value} here, and {others}")

    def _check_topic(self, entry: Counter | SubBatch | None, received: Received) -> None:
        """Rule `topic_wrong`. A reorg channel carries the messages of all prefixes."""
        topic = received.place.topic
        if entry is None or entry.topic is None or topic is None or topic == entry.topic or self._channel(topic):
            return
        self._find(
            "topic_wrong", received, f"prefix {shown(entry.name)} belongs on topic {entry.topic!r}, not on {topic!r}"
        )

    # Sub-batches

    def _take_header(self, received: Received) -> None:
        header = received.message
        assert isinstance(header, SubBatchHeader)
        subbatch = self._subbatch_of(header.batch_id, (header.batch_id, header.item_count), "header", received)
        if subbatch is None:
            return
        self._check_topic(subbatch, received)
        if subbatch.header is None:
            subbatch.header = received
            if subbatch.tracked:
                self._open += header.item_count - 1
            waiting, subbatch.waiting = subbatch.waiting, []
            for item in waiting:
                self._take_item_of(subbatch, header.item_count, item)
        elif item_count(subbatch.header) == header.item_count or (None, header.item_count) in subbatch.conflicts:
            self._duplicates += 1
        else:
            subbatch.conflicts.add((None, header.item_count))
            self._find(
                "subbatch_conflict",
                received,
                f"{header.item_count} items of sub-batch {shown(subbatch.name)}, "
                f"but {item_count(subbatch.header)} in the header at {location(subbatch.header.place)}",
            )

    def _take_item(self, received: Received) -> None:
        item = received.message
        assert isinstance(item, SubBatchMsg)
        subbatch = self._subbatches.get(item.batch_id)
        if subbatch is None:
            self._subbatch_of(item.batch_id, (item.batch_id, item.index, item_content(item)), "item", received)
            return
        self._check_topic(subbatch, received)
        if subbatch.header is None:
            subbatch.waiting.append(received)
        else:
            self._take_item_of(subbatch, item_count(subbatch.header), received)

    def _subbatch_of(self, batch_id: bytes, identity: object, what: str, received: Received) -> SubBatch | None:
        """The sub-batch of an id. Returns None if the Batch names none: rule `subbatch_unknown`."""
        subbatch = self._subbatches.get(batch_id)
        if subbatch is None:
            if identity in self._unknown:
                self._duplicates += 1
            else:
                self._unknown.add(identity)
                self._find(
                    "subbatch_unknown", received, f"the Batch names no sub-batch {batch_id.hex()} for this {what}"
                )
        return subbatch

    def _take_item_of(self, subbatch: SubBatch, item_count: int, received: Received) -> None:
        item = received.message
        assert isinstance(item, SubBatchMsg)
        if not 0 <= item.index < item_count:
            named = f"index {item.index} of sub-batch {shown(subbatch.name)}, which has {item_count} items"
            self._find("item_index_out_of_range", received, named)
            return
        first = subbatch.items.get(item.index)
        if first is not None:
            self._compare_item(subbatch, first, received, item)
            return
        subbatch.items[item.index] = received
        self._open -= subbatch.tracked
        for name in item.deletes:
            if subbatch.tracked:
                self._content.deletes[name] = received.place
            self._write(name, Way.ITEM_DELETE, received)
        for name, value in item.updates:
            if subbatch.tracked:
                self._content.set(name, value, received.place)
            self._write(name, Way.ITEM, received)

    def _compare_item(self, subbatch: SubBatch, first: Received, received: Received, item: SubBatchMsg) -> None:
        if item == first.message:
            self._duplicates += 1
            return
        assert isinstance(first.message, SubBatchMsg)
        content = item_content(item)
        if content == item_content(first.message) or (item.index, content) in subbatch.conflicts:
            self._duplicates += 1
            return
        subbatch.conflicts.add((item.index, content))
        self._find(
            "subbatch_conflict",
            received,
            f"item {item.index} of sub-batch {shown(subbatch.name)} differs from the one at {location(first.place)}",
        )


Effect = Callable[[BlockAssembly, Received], None]


@dataclass(frozen=True, slots=True)
class Step:
    """The effect of a message in a state, and the next state."""

    effect: Effect
    #: While something tracked is missing.
    state: State
    #: When nothing is.
    settled: State


def _step(effect: Effect, state: State, settled: State | None = None) -> Step:
    return Step(effect, state, settled or state)


#: Every state with every kind. No message of a block is forbidden; it can only be too late.
TRANSITIONS: Mapping[tuple[State, Kind], Step] = MappingProxyType(
    {
        (State.UNKNOWN, Kind.BATCH): _step(BlockAssembly._open_block, State.PENDING, State.COMPLETE),
        (State.UNKNOWN, Kind.SUBBATCH_HEADER): _step(BlockAssembly._queue, State.UNKNOWN),
        (State.UNKNOWN, Kind.SUBBATCH_MSG): _step(BlockAssembly._queue, State.UNKNOWN),
        (State.UNKNOWN, Kind.BATCH_MSG): _step(BlockAssembly._queue, State.UNKNOWN),
        (State.UNKNOWN, Kind.BATCH_DELETE_MSG): _step(BlockAssembly._queue, State.UNKNOWN),
        (State.PENDING, Kind.BATCH): _step(BlockAssembly._compare_batch, State.PENDING),
        (State.PENDING, Kind.SUBBATCH_HEADER): _step(BlockAssembly._take_header, State.PENDING, State.COMPLETE),
        (State.PENDING, Kind.SUBBATCH_MSG): _step(BlockAssembly._take_item, State.PENDING, State.COMPLETE),
        (State.PENDING, Kind.BATCH_MSG): _step(BlockAssembly._take_set, State.PENDING, State.COMPLETE),
        (State.PENDING, Kind.BATCH_DELETE_MSG): _step(BlockAssembly._take_delete, State.PENDING, State.COMPLETE),
        (State.COMPLETE, Kind.BATCH): _step(BlockAssembly._compare_batch, State.COMPLETE),
        (State.COMPLETE, Kind.SUBBATCH_HEADER): _step(BlockAssembly._take_header, State.COMPLETE),
        (State.COMPLETE, Kind.SUBBATCH_MSG): _step(BlockAssembly._take_item, State.COMPLETE),
        (State.COMPLETE, Kind.BATCH_MSG): _step(BlockAssembly._take_set, State.COMPLETE),
        (State.COMPLETE, Kind.BATCH_DELETE_MSG): _step(BlockAssembly._take_delete, State.COMPLETE),
    }
)


#: The same table for fast look-up: by state, then by the message's class.
_STEPS: dict[State, dict[type, Step]] = {
    state: {kind.value: TRANSITIONS[state, kind] for kind in Kind if (state, kind) in TRANSITIONS} for state in State
}


def assemble(
    block_hash: bytes,
    received: Iterable[Received],
    options: CardinalOptions,
    *,
    until: tuple[int, int, bytes, int] | None = None,
) -> Block:
    """The block of `block_hash` from its messages in arrival order.

    `until` is the `Place.order` at which the block was closed: later messages take no part.
    Raises ValueError if no message is left, or one belongs to no block or to another one.
    """
    assembly = BlockAssembly(block_hash, options)
    for message in received:
        if until is None or message.place.order <= until:
            assembly.receive(message)
    return assembly.block()


def _matcher(options: CardinalOptions) -> NameMatcher:
    """One matcher for all blocks of the same options object: it compiles expressions and remembers names."""
    known = _MATCHERS.get(id(options))
    if known is None:
        # Keeping the options keeps their id from being given to others.
        known = _MATCHERS[id(options)] = (options, NameMatcher(options))
        if len(_MATCHERS) > _MATCHERS_KEPT:
            _MATCHERS.popitem(last=False)
    return known[1]


_MATCHERS: OrderedDict[int, tuple[CardinalOptions, NameMatcher]] = OrderedDict()


def _batch(received: Received) -> Batch:
    assert isinstance(received.message, Batch)
    return received.message


def _same_batch(a: Batch, b: Batch) -> bool:
    return a == b or not any(_batch_differences(a, b))


def _batch_differences(a: Batch, b: Batch) -> list[str]:
    """The parts in which two Batches differ. Entries are compared as a map."""
    parts = [part for part in ("number", "weight", "parent") if getattr(a, part) != getattr(b, part)]
    if {update.name: update for update in a.updates} != {update.name: update for update in b.updates}:
        parts.append("entries")
    return parts


def _repeats(waiting: list[Received]) -> int:
    """How many waiting messages repeat an earlier one."""
    return len(waiting) - len({_identity(received.message) for received in waiting})


def _identity(message: Message) -> object:
    if isinstance(message, SubBatchMsg):
        return SubBatchMsg, message.batch_id, message.index, item_content(message)
    # A value that a BatchDeleteMsg carries by mistake is no difference.
    return (BatchDeleteMsg, message.key) if isinstance(message, BatchDeleteMsg) else message
