"""The message layer: one block put together from its messages (specification, "Messages", the Consumers parts).

`BlockAssembly` is the exact fold of a block's messages in arrival order, `assemble` the same in one call. It is a
machine of three states; `TRANSITIONS` says what each kind of message does in each of them.

- A message before its Batch is queued and handled when the Batch arrives; the first Batch of a hash wins.
- A keyed message counts for the entry of the Batch that is its whole key, else for the longest one that ends in `/`
  and begins the key: nearest first, the first that is still open. The text of a name is taken as it is; the reference
  cleans `//`, `.` and `..` from paths.
- The first value of a key wins, but a value that isn't empty replaces an empty one and does not count again.
- A BatchMsg whose key an item or an inline value has already set is "present in the batch's `Value` property", so the
  specification has it discarded: its counter is not decremented, and may never close. BatchDeleteMsg and the deletes
  of items and Batch likewise. Rule `key_by_two_ways` tells of it.
- Items wait for their header. An item overwrites what another item, a message or an inline value has set.
- An entry of the Batch that sets several fields breaks `update_ambiguous`, and all of them hold. A message of its own
  name counts, although the entry has a value.
- Entries that no tracked prefix matches are not waited for and give no content. The rules about what is on the wire
  (`extra_message`, `unexpected_key`, `key_two_values`, `key_by_two_ways`, `subbatch_*`) hold for them all the same.

A finding's place is the message that breaks the rule; `Block.found_at` is the message at which that became known: of
an unexpected key before its Batch, the Batch. A longer stream never changes the findings of a shorter one, it only adds
to them, so that blocks may be cut into windows anywhere.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from wirehouse_codecs.cardinal.options import CardinalOptions, NameMatcher
from wirehouse_codecs.cardinal.rules import RULE
from wirehouse_codecs.cardinal.session.channels import reorg_channel_name
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

MESSAGES = "messages"
SUBBATCH_HEADER = "sub-batch header"
BATCH_MESSAGE = "batch message"
#: `Missing.what` of items is this and their ranges.
ITEMS = "items"
#: So many ranges of missing items are written out.
SHOWN_RANGES = 32
MATCHERS = 8


@dataclass(frozen=True, slots=True)
class Received:
    """A decoded message and where it stands."""

    place: Place
    message: Message


@dataclass(frozen=True, slots=True)
class Count:
    """Messages of a tracked prefix, or items of a tracked sub-batch. None: its header hasn't arrived."""

    name: bytes
    messages: int | None


@dataclass(frozen=True, slots=True)
class Missing:
    """What a tracked entry of the Batch still waits for."""

    name: bytes
    messages: int
    #: "messages", "sub-batch header", "items 3-5,9" or "batch message".
    what: str
    batch_id: bytes | None = None
    #: So many of them came, and another finding says why they don't count.
    found: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class BlockUpdate:
    """A key of the block set, or deleted (`value` is None). A key both set and deleted gives both."""

    key: bytes
    value: bytes | None
    #: The message that says so.
    place: Place


@dataclass(frozen=True, slots=True)
class Block:
    """What is known of a block after a number of its messages."""

    block_hash: bytes
    #: The first Batch.
    batch: Batch | None
    batch_place: Place | None
    first_place: Place
    last_place: Place
    #: The message at which nothing was missing any more.
    completed_place: Place | None
    #: All messages, also those that took no part.
    messages: int
    #: Messages whose like had arrived before. Items out of range are quarantined, so none of them is one.
    duplicates: int
    #: Of each tracked prefix and sub-batch, by name.
    expected: tuple[Count, ...]
    received: tuple[Count, ...]
    missing: tuple[Missing, ...]
    #: The content at completion, by key, a set before a delete; empty until then.
    updates: tuple[BlockUpdate, ...]
    findings: tuple[Finding, ...]
    #: For each finding, the message at which the rule was known to be broken; never goes back.
    found_at: tuple[Place, ...]

    @property
    def complete(self) -> bool:
        """Nothing tracked is missing."""
        return self.completed_place is not None


class State(Enum):
    """What a block waits for."""

    #: Messages, but no Batch yet.
    UNKNOWN = "unknown"
    #: The Batch is there, not all that it announces.
    PENDING = "pending"
    COMPLETE = "complete"


class Kind(Enum):
    """The messages that belong to a block."""

    BATCH = Batch
    SUBBATCH_HEADER = SubBatchHeader
    SUBBATCH_MSG = SubBatchMsg
    BATCH_MSG = BatchMsg
    BATCH_DELETE_MSG = BatchDeleteMsg


class Way(Enum):
    """How a key of a block is set or deleted."""

    BATCH_MSG = "set by the BatchMsg"
    ITEM = "set by the item"
    INLINE = "set in the Batch"
    BATCH_DELETE_MSG = "deleted by the BatchDeleteMsg"
    ITEM_DELETE = "deleted by the item"
    INLINE_DELETE = "deleted in the Batch"


_SETS = frozenset({Way.BATCH_MSG, Way.ITEM, Way.INLINE})


@dataclass(slots=True)
class _Counter:
    """An entry of the Batch with a count."""

    name: bytes
    count: int
    tracked: bool
    topic: str | None
    received: int = 0
    #: Keys that came and don't count, by a finding of their own.
    found: int = 0


class _SubBatch:
    """An entry of the Batch that names a sub-batch, and what has arrived of it."""

    __slots__ = ("batch_id", "conflicts", "header", "items", "name", "topic", "tracked", "waiting")

    def __init__(self, batch_id: bytes, name: bytes, tracked: bool, topic: str | None) -> None:
        self.batch_id = batch_id
        self.name = name
        self.tracked = tracked
        self.topic = topic
        self.header: Received | None = None
        #: The first item of each index, once the header is there.
        self.items: dict[int, Received] = {}
        #: Items that wait for the header.
        self.waiting: list[Received] = []
        #: Headers and items that differ from the first, each once.
        self.conflicts: set[tuple[int | None, object]] = set()


class _Key:
    """An application key of the block: what BatchMsg and BatchDeleteMsg said of it, and by which ways it is written."""

    __slots__ = ("deleted", "first", "further", "others", "place", "set_counter", "unset_counter", "way")

    def __init__(self) -> None:
        #: The first BatchMsg, and further values.
        self.first: Received | None = None
        self.others: list[bytes] | None = None
        self.set_counter: _Counter | None = None
        self.deleted = False
        self.unset_counter: _Counter | None = None
        #: The first way and its message, and further ones; hardly a key has any.
        self.way: Way | None = None
        self.place: Place | None = None
        self.further: list[tuple[Way, Place]] | None = None

    def ways(self) -> list[tuple[Way, Place]]:
        """How it is written, each way once, by its first message."""
        first = [] if self.way is None or self.place is None else [(self.way, self.place)]
        return first + (self.further or [])


class BlockAssembly:
    """A block while its messages arrive: `receive` them in arrival order, ask for `block()` at any time."""

    __slots__ = (
        "_ambiguous",
        "_at_boundary",
        "_batches",
        "_channel",
        "_completed_place",
        "_counters",
        "_deletes",
        "_duplicates",
        "_early",
        "_first",
        "_found_at",
        "_keys",
        "_last",
        "_matcher",
        "_messages",
        "_not_at_boundary",
        "_open",
        "_set_at",
        "_steps",
        "_subbatches",
        "_unknown",
        "_values",
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
        self._counters: dict[bytes, _Counter] = {}
        #: Names of entries that set several fields.
        self._ambiguous: set[bytes] = set()
        #: Lengths of the counted names that end in a slash, and of those that don't, longest first.
        self._at_boundary: list[int] = []
        self._not_at_boundary: list[int] = []
        self._subbatches: dict[bytes, _SubBatch] = {}
        #: Headers and items of sub-batches that the Batch doesn't name.
        self._unknown: set[object] = set()
        self._keys: dict[bytes, _Key] = {}
        #: The content so far, and which message each part of it comes from.
        self._values: dict[bytes, bytes] = {}
        self._set_at: dict[bytes, Place] = {}
        self._deletes: dict[bytes, Place] = {}
        #: Messages, headers and items that tracked entries wait for.
        self._open = 0
        #: Rules broken so far; it only grows.
        self.findings: list[Finding] = []
        self._found_at: list[Place] = []

    def receive(self, received: Received) -> State:
        """Take the next message of the block; its state after it. ValueError: a message that belongs to no block."""
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
            updates=self._updates() if self.state is State.COMPLETE else (),
            findings=tuple(self.findings),
            found_at=tuple(self._found_at),
        )

    def _waiting(self) -> list[list[Received]]:
        """Messages that wait for the Batch, or for a header."""
        return [self._early, *(subbatch.waiting for subbatch in self._subbatches.values())]

    def _counts(self) -> tuple[tuple[Count, ...], tuple[Count, ...], tuple[Missing, ...]]:
        if not self._batches:
            return (), (), (Missing(b"", 1, BATCH_MESSAGE),)
        rows = [_counter_row(counter) for counter in self._counters.values() if counter.tracked]
        rows += [_subbatch_row(subbatch) for subbatch in self._subbatches.values() if subbatch.tracked]
        rows.sort(key=lambda row: row[0].name)
        missing = tuple(row[2] for row in rows if row[2] is not None)
        return tuple(row[0] for row in rows), tuple(row[1] for row in rows), missing

    def _updates(self) -> tuple[BlockUpdate, ...]:
        rows = [BlockUpdate(key, value, self._set_at[key]) for key, value in self._values.items()]
        rows += [BlockUpdate(key, None, place) for key, place in self._deletes.items()]
        rows.sort(key=lambda update: (update.key, update.value is None))
        return tuple(rows)

    def _find(self, rule: str, received: Received, message: str) -> None:
        """`received` breaks `rule`, as is known at the message that is being taken."""
        assert self._last is not None
        self.findings.append(Finding(RULE[rule], received.place, message))
        self._found_at.append(self._last)

    def _queue(self, received: Received) -> None:
        self._early.append(received)

    # Batch

    def _open_block(self, received: Received) -> None:
        """The first Batch: what it announces is waited for, and what came before it is handled now."""
        self._batches.append(received)
        batch = _batch(received)
        for update in {update.name: update for update in batch.updates}.values():
            self._announce(update, received)
        ends_in_slash = {len(name) for name in self._counters if name.endswith(b"/")}
        others = {len(name) for name in self._counters if not name.endswith(b"/")}
        self._at_boundary = sorted(ends_in_slash, reverse=True)
        self._not_at_boundary = sorted(others, reverse=True)
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
                self._set(name, update.value, received.place)
            self._write(name, Way.INLINE, received)
        if update.delete:
            if verdict.tracked:
                self._deletes[name] = received.place
            self._write(name, Way.INLINE_DELETE, received)
        if update.count is not None:
            self._counters[name] = _Counter(name, update.count, verdict.tracked, verdict.topic)
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
        self._subbatches[batch_id] = _SubBatch(batch_id, name, tracked, topic)

    def _compare_batch(self, received: Received) -> None:
        """A further Batch: the same as one before, or rule `batch_conflict`. As maps: map order differs on the wire."""
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
            key = self._keys[name] = _Key()
        elif key.first is not None:
            self._take_set_again(key, received, message)
            return
        key.first = received
        counter = key.set_counter = self._counter_of(name, received)
        if counter is None:
            return
        known = counter.tracked and name in self._values
        if (not known or name in self._ambiguous) and not self._count(counter, received, name):
            return
        if known:
            counter.found += name not in self._ambiguous
            self._replace_empty(name, value, received.place)
        elif counter.tracked:
            self._set(name, value, received.place)
        self._write(name, Way.BATCH_MSG, received)

    def _take_set_again(self, key: _Key, received: Received, message: BatchMsg) -> None:
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
            key = self._keys[name] = _Key()
        elif key.deleted:
            self._duplicates += 1
            self._check_topic(key.unset_counter, received)
            return
        key.deleted = True
        counter = key.unset_counter = self._counter_of(name, received)
        if counter is None:
            return
        known = counter.tracked and name in self._deletes
        if (not known or name in self._ambiguous) and not self._count(counter, received, name):
            return
        if counter.tracked and not known:
            self._deletes[name] = received.place
        self._write(name, Way.BATCH_DELETE_MSG, received)

    def _set(self, name: bytes, value: bytes, place: Place) -> None:
        self._values[name] = value
        self._set_at[name] = place

    def _replace_empty(self, name: bytes, value: bytes, place: Place) -> None:
        """A value that isn't empty stands in for an empty one; a complete block stays as it is."""
        if value and self._values.get(name) == b"" and self.state is not State.COMPLETE:
            self._set(name, value, place)

    def _count(self, counter: _Counter, received: Received, name: bytes) -> bool:
        """Count a key that is new under `counter`; False and rule `extra_message` if it was already closed."""
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

    def _counter_of(self, name: bytes, received: Received) -> _Counter | None:
        """The counter of a key: the nearest open one, tracked ones first; a closed one if none is open.

        None, and the rule that is broken, if the key belongs to none.
        """
        beyond = self._cut_prefix(name)
        if beyond is not None:
            beyond.found += 1
            self._find("prefix_not_at_boundary", received, f"{shown(beyond.name)} begins key {shown(name)}")
        counter = self._nearest(name) if name else None
        if counter is not None:
            self._check_topic(counter, received)
        elif beyond is None:
            self._find("unexpected_key", received, f"key {shown(name)} belongs to no counted prefix of its Batch")
        return counter

    def _nearest(self, name: bytes) -> _Counter | None:
        counters = self._counters
        untracked = closed = None
        candidate = counters.get(name)
        lengths = iter(self._at_boundary)
        while True:
            if candidate is not None:
                if candidate.received < candidate.count:
                    if candidate.tracked:
                        return candidate
                    untracked = untracked or candidate
                closed = closed or candidate
            for length in lengths:
                candidate = counters.get(name[:length]) if length < len(name) else None
                if candidate is not None:
                    break
            else:
                return untracked or closed

    def _cut_prefix(self, name: bytes) -> _Counter | None:
        """The longest counted name without a slash at its end that begins a longer key."""
        for length in self._not_at_boundary:
            counter = self._counters.get(name[:length]) if length < len(name) else None
            if counter is not None and not counter.name.endswith(b"/"):
                return counter
        return None

    def _write(self, name: bytes, way: Way, received: Received) -> None:
        """`name` is set or deleted by `way`; rule `key_by_two_ways` if that doesn't go with the ways before."""
        key = self._keys.get(name)
        if key is None:
            key = self._keys[name] = _Key()
        if key.way is None:
            key.way, key.place = way, received.place
            return
        ways = key.ways()
        if any(known is way for known, _ in ways):
            return
        if key.further is None:
            key.further = []
        key.further.append((way, received.place))
        # Of an ambiguous entry `update_ambiguous` is the finding.
        clear = name not in self._ambiguous
        clashing = [known for known in ways if clear and (way in _SETS or known[0] in _SETS)]
        if clashing:
            others = " and ".join(f"{known.value} at {location(place)}" for known, place in clashing)
            self._find("key_by_two_ways", received, f"key {shown(name)} is {way.value} here, and {others}")

    def _check_topic(self, entry: _Counter | _SubBatch | None, received: Received) -> None:
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
        elif _item_count(subbatch.header) == header.item_count or (None, header.item_count) in subbatch.conflicts:
            self._duplicates += 1
        else:
            subbatch.conflicts.add((None, header.item_count))
            self._find(
                "subbatch_conflict",
                received,
                f"{header.item_count} items of sub-batch {shown(subbatch.name)}, "
                f"but {_item_count(subbatch.header)} in the header at {location(subbatch.header.place)}",
            )

    def _take_item(self, received: Received) -> None:
        item = received.message
        assert isinstance(item, SubBatchMsg)
        subbatch = self._subbatches.get(item.batch_id)
        if subbatch is None:
            self._subbatch_of(item.batch_id, (item.batch_id, item.index, _content(item)), "item", received)
            return
        self._check_topic(subbatch, received)
        if subbatch.header is None:
            subbatch.waiting.append(received)
        else:
            self._take_item_of(subbatch, _item_count(subbatch.header), received)

    def _subbatch_of(self, batch_id: bytes, identity: object, what: str, received: Received) -> _SubBatch | None:
        """The sub-batch of an id; None and rule `subbatch_unknown` if the Batch names none."""
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

    def _take_item_of(self, subbatch: _SubBatch, item_count: int, received: Received) -> None:
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
                self._deletes[name] = received.place
            self._write(name, Way.ITEM_DELETE, received)
        for name, value in item.updates:
            if subbatch.tracked:
                self._set(name, value, received.place)
            self._write(name, Way.ITEM, received)

    def _compare_item(self, subbatch: _SubBatch, first: Received, received: Received, item: SubBatchMsg) -> None:
        if item == first.message:
            self._duplicates += 1
            return
        assert isinstance(first.message, SubBatchMsg)
        content = _content(item)
        if content == _content(first.message) or (item.index, content) in subbatch.conflicts:
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
    """What a message does in a state, and the state after it."""

    effect: Effect
    #: While something tracked is missing.
    state: State
    #: When nothing is.
    settled: State


def _step(effect: Effect, state: State, settled: State | None = None) -> Step:
    return Step(effect, state, settled or state)


#: Every state and every kind: a block has no message that isn't allowed, only messages that come too late.
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


#: The same table as it is walked: by state, then by the message's class.
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

    `until` is the `Place.order` of the place at which the block was closed: later messages take no part.
    Raises ValueError if no message is left, or one belongs to no block or to another one.
    """
    assembly = BlockAssembly(block_hash, options)
    for message in received:
        if until is None or message.place.order <= until:
            assembly.receive(message)
    return assembly.block()


def judged_findings(block: Block, stall: str = "") -> tuple[Finding, ...]:
    """The rules about what never came (13, 21 and 23), for a block that is judged incomplete: its Batch breaks them.

    `stall` says what of the chain waits for the block. What came and doesn't count was found before.
    """
    return tuple(
        Finding(RULE[rule], block.batch_place or block.first_place, f"block {block.block_hash.hex()}, {text}{stall}")
        for one, counted in zip(block.missing, _counted(block), strict=True)
        for rule, text in (_never_came(one, counted),)
        if rule and (stall or one.found < one.messages)
    )


def _counted(block: Block) -> list[str]:
    """For each of `block.missing`, what was received of what was expected."""
    expected = {count.name: count.messages for count in block.expected}
    received = {count.name: count.messages for count in block.received}
    return [f"{received.get(missing.name)} of {expected.get(missing.name)} received" for missing in block.missing]


def _never_came(missing: Missing, counted: str) -> tuple[str, str]:
    name = shown(missing.name)
    if missing.what == MESSAGES:
        return "prefix_count_open", f"prefix {name}: {counted}"
    if missing.what == SUBBATCH_HEADER:
        return "subbatch_header_missing", f"no header of sub-batch {name}, {_hex(missing.batch_id)}"
    if missing.what.startswith(ITEMS):
        return "subbatch_items_missing", f"sub-batch {name}, {_hex(missing.batch_id)}: {missing.what}, {counted}"
    return "", ""


def _matcher(options: CardinalOptions) -> NameMatcher:
    """One matcher for all blocks of the same options object: it compiles expressions and remembers names."""
    known = _MATCHERS.get(id(options))
    if known is None:
        # Keeping the options keeps their id from being given to others.
        known = _MATCHERS[id(options)] = (options, NameMatcher(options))
        if len(_MATCHERS) > MATCHERS:
            _MATCHERS.popitem(last=False)
    return known[1]


_MATCHERS: OrderedDict[int, tuple[CardinalOptions, NameMatcher]] = OrderedDict()


def _batch(received: Received) -> Batch:
    assert isinstance(received.message, Batch)
    return received.message


def _item_count(received: Received) -> int:
    assert isinstance(received.message, SubBatchHeader)
    return received.message.item_count


def _same_batch(a: Batch, b: Batch) -> bool:
    return a == b or not any(_batch_differences(a, b))


def _batch_differences(a: Batch, b: Batch) -> list[str]:
    """In which parts two Batches differ, entries compared as a map."""
    found = [part for part in ("number", "weight", "parent") if getattr(a, part) != getattr(b, part)]
    if {update.name: update for update in a.updates} != {update.name: update for update in b.updates}:
        found.append("entries")
    return found


def _content(item: SubBatchMsg) -> object:
    """What two items of an index are compared by: the set of deletes and the map of updates."""
    return frozenset(item.deletes), frozenset(dict(item.updates).items())


def _repeats(waiting: list[Received]) -> int:
    """How many messages that wait repeat one before."""
    return len(waiting) - len({_identity(received.message) for received in waiting})


def _identity(message: Message) -> object:
    if isinstance(message, SubBatchMsg):
        return SubBatchMsg, message.batch_id, message.index, _content(message)
    # What a BatchDeleteMsg carries by mistake says nothing.
    return (BatchDeleteMsg, message.key) if isinstance(message, BatchDeleteMsg) else message


def _counter_row(counter: _Counter) -> tuple[Count, Count, Missing | None]:
    left = counter.count - counter.received
    missing = Missing(counter.name, left, MESSAGES, found=counter.found) if left else None
    return Count(counter.name, counter.count), Count(counter.name, counter.received), missing


def _subbatch_row(subbatch: _SubBatch) -> tuple[Count, Count, Missing | None]:
    name, batch_id = subbatch.name, subbatch.batch_id
    if subbatch.header is None:
        indexes = {item.message.index for item in subbatch.waiting if isinstance(item.message, SubBatchMsg)}
        return Count(name, None), Count(name, len(indexes)), Missing(name, 1, SUBBATCH_HEADER, batch_id)
    item_count, received = _item_count(subbatch.header), len(subbatch.items)
    missing = None
    if received < item_count:
        ranges = _missing_ranges(sorted(subbatch.items), item_count)
        missing = Missing(name, item_count - received, f"{ITEMS} {ranges}", batch_id)
    return Count(name, item_count), Count(name, received), missing


def _missing_ranges(indexes: list[int], item_count: int) -> str:
    """The indexes of [0, item_count) that aren't in the sorted `indexes`, as ranges."""
    ranges = []
    following = 0
    for index in [*indexes, item_count]:
        if index > following:
            ranges.append(f"{following}-{index - 1}" if index - 1 > following else f"{following}")
        following = index + 1
    more = f" and {len(ranges) - SHOWN_RANGES} more ranges" if len(ranges) > SHOWN_RANGES else ""
    return ",".join(ranges[:SHOWN_RANGES]) + more


def _hex(data: bytes | None) -> str:
    return data.hex() if data is not None else ""
