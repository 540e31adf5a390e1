"""The second stage of Cardinal's gold: the chain of a source, from events of its blocks in the order of arrival.

The codec's `Chain` decides everything. This module makes events of the blocks of the first stage and of messages on
reorg channels, and rows of what follows from them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.cardinal.correlation import events
from wirehouse_codecs.cardinal.correlation.chain import Chain
from wirehouse_codecs.core.horizon import HORIZON_NS
from wirehouse_pipelines.cardinal.rows import (
    BLOCK,
    BLOCKS,
    CHAIN,
    CHAIN_UPDATES,
    CLOSED,
    FOUND,
    MESSAGE,
    PLACE,
    REFUSED,
    REORG_KINDS,
    REORGS,
    STATE,
    Sources,
    Whose,
    batch_of,
    finding_row,
    found_row,
    messages_of,
    number,
    place,
    place_row,
)
from wirehouse_pipelines.delta.batches import pieces_of, with_all
from wirehouse_pipelines.lake.windows import Windows

#: Events at one place, in the order in which the chain takes them. CHANNEL_BATCH is a Batch where a Reorg came too.
#: LAST is where the last message of a block came; the chain doesn't take it.
REORG, REORG_COMPLETE, CHANNEL_MESSAGE, FIRST_MESSAGE, BATCH, CHANNEL_BATCH, COMPLETED, LAST = range(8)
_BLOCK_EVENTS: Final = {FIRST_MESSAGE: "first_at", BATCH: "batch_at", COMPLETED: "completed_at", LAST: "last_at"}
_OF_CHANNEL: Final = (CHANNEL_MESSAGE, CHANNEL_BATCH)
#: Events by source. The row of a carried snapshot has no location, so it comes first.
SCHEMA: Final = pa.schema(
    [
        *(MESSAGE.field(name) for name in ("source", *PLACE, "block_hash", "number", "weight", "parent")),
        ("event", pa.int8()),
        ("snapshot", pa.string()),
    ]
)
#: Rows that are returned: by window the hashes, one behind another, of blocks that live at its end, and of blocks of
#: which a message came after their end.
ENDS: Final = "ends"
#: Number of rows of a table in a batch that is written.
_ROWS: Final = 5_000


# Events


def of_blocks(rows: pa.RecordBatch, sources: Sources) -> pa.RecordBatch:
    """Prepare rows of BLOCKS: the events of each block in the windows."""
    rows = rows.filter(pc.equal(rows.column("row_kind"), BLOCK))
    return pa.concat_batches(_of_kind(rows, event, name, sources) for event, name in _BLOCK_EVENTS.items())


def _of_kind(rows: pa.RecordBatch, event: int, name: str, sources: Sources) -> pa.RecordBatch:
    at = {field: pc.struct_field(rows.column(name), field) for field in PLACE}
    made = rows.select(["source", "block_hash"])
    for field, column in at.items():
        made = made.append_column(field, column)
    if event == BATCH:
        for field in ("number", "weight", "parent"):
            made = made.append_column(field, pc.struct_field(rows.column("batch"), field))
    made = made.append_column("event", pa.repeat(pa.scalar(event, pa.int8()), made.num_rows))
    # A file of the table has rows of one source.
    since = sources[rows.column("source")[0].as_py()].start_ns if rows.num_rows else 0
    return with_all(made.filter(pc.fill_null(pc.greater_equal(at["arrived_at_ns"], since), False)), SCHEMA)


def of_channels(rows: pa.RecordBatch, topics: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Prepare messages: Reorgs and ReorgCompletes, and messages on `topics`, which are given by source."""
    rows = messages_of(rows)
    kind = rows.column("kind")
    is_reorg = pc.is_in(kind, pa.array(REORG_KINDS))
    of_source = topics[rows.column("source")[0].as_py()] if rows.num_rows else pa.array([], pa.string())
    on_channel = pc.and_(rows.column("topic").is_valid(), pc.is_in(rows.column("topic"), of_source))
    reorgs, messages = rows.filter(is_reorg), rows.filter(on_channel)
    is_complete = pc.equal(reorgs.column("kind"), REORG_KINDS[1])
    parts = [
        _with_event(reorgs, pc.if_else(is_complete, REORG_COMPLETE, REORG)),
        _with_event(_without_hash_of_reorg(messages), pa.repeat(CHANNEL_MESSAGE, messages.num_rows)),
    ]
    batches = messages.filter(pc.equal(messages.column("kind"), "batch"))
    return pa.concat_batches([*parts, _with_event(batches, pa.repeat(CHANNEL_BATCH, batches.num_rows))])


def _without_hash_of_reorg(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The hash of a Reorg is that of another block."""
    at = rows.schema.get_field_index("block_hash")
    is_reorg = pc.is_in(rows.column("kind"), pa.array(REORG_KINDS))
    return rows.set_column(at, "block_hash", pc.if_else(is_reorg, pa.scalar(None, pa.binary()), rows.column(at)))


def _with_event(rows: pa.RecordBatch, event: pa.Array) -> pa.RecordBatch:
    return with_all(rows.append_column("event", event.cast(pa.int8())), SCHEMA)


def of_state(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Prepare the carried snapshot of a chain."""
    return with_all(rows, SCHEMA)


def _event(row: Mapping[str, Any]) -> events.Event:
    at, kind, block_hash = place(row), row["event"], row["block_hash"]
    if kind in (BATCH, CHANNEL_BATCH):
        weight = int.from_bytes(row["weight"], "big")
        return events.BatchArrived(at, block_hash, int(row["number"]), row["parent"], weight)
    if kind in (REORG, REORG_COMPLETE):
        made = events.ReorgArrived if kind == REORG else events.ReorgCompleteArrived
        return made(at, block_hash, int(row["number"]))
    if kind == CHANNEL_MESSAGE:
        return events.ChannelMessage(at, block_hash)
    return (events.FirstMessage if kind == FIRST_MESSAGE else events.Completed)(at, block_hash)


# Rows


def _update(outcome: events.Update) -> dict[str, Any]:
    row = {name: getattr(outcome, name) for name in ("sequence", "added", "removed", "head_hash")}
    return row | {"head_number": number(outcome.head_number)} | place_row(outcome.place)


def _canonical(outcome: events.Canonical) -> dict[str, Any]:
    row = {name: getattr(outcome, name) for name in ("block_hash", "valid_from_ns", "valid_to_ns")}
    own = {"number": number(outcome.number), "canonical": outcome.valid_to_ns is None}
    return row | own | place_row(outcome.place)


def _reorg(outcome: events.ReorgRow) -> dict[str, Any]:
    names = ("ancestor_hash", "depth", "old_head", "new_head", "announced", "channel", "completed")
    row = {name: getattr(outcome, name) for name in names}
    return row | {"ancestor_number": number(outcome.ancestor_number)} | place_row(outcome.place)


def _found(outcome: events.LocatedFinding) -> dict[str, Any]:
    about = {"block_hash": outcome.block_hash, "number": number(outcome.number)}
    return found_row(finding_row(outcome.finding), about)


#: Type of outcome -> table, and the function that makes a row of it.
_TABLES: Final[Mapping[type, tuple[str, Callable[[Any], dict[str, Any]]]]] = {
    events.Update: (CHAIN_UPDATES, _update),
    events.Canonical: (CHAIN, _canonical),
    events.ReorgRow: (REORGS, _reorg),
    events.LocatedFinding: (FOUND, _found),
}
#: Among rows of a table with equal values here, the window's last one counts.
_ENTITY: Final = {CHAIN: ("block_hash", "valid_from_ns"), REORGS: ("capture_id", "record_number")}

_Row = tuple[str, dict[str, Any]]


class _Ordering:
    """One source's chain while its events are processed, window by window."""

    def __init__(self, name: str, source: Whose, windows: Windows) -> None:
        self._name, self._source, self._windows = name, source, windows
        self._ahead = list(source.windows)
        self._chain = Chain(source.options)
        #: The newest rows of entities in the window.
        self._newest: dict[tuple[Any, ...], _Row] = {}
        #: Blocks of which a message came after their end.
        self._late: list[bytes] = []

    def restore(self, snapshot: str | None) -> None:
        if snapshot:
            self._chain = Chain(self._source.options, snapshot)

    def is_channel(self, topic: str) -> bool:
        """Whether the topic is a reorg channel. A Reorg on an ordinary topic doesn't make it one."""
        return self._chain.is_channel(topic)

    def apply(self, event: events.Event) -> Iterator[_Row]:
        """The state at the end of the windows before `event`, then the rows that follow from it."""
        window = self._windows.of(event.place.arrived_at_ns)
        yield from self.end_windows(window)
        yield from self._rows(window, self._chain.apply(event))

    def last_message(self, block_hash: bytes, at_ns: int) -> Iterator[_Row]:
        """The last message of a block came."""
        window = self._windows.of(at_ns)
        yield from self.end_windows(window)
        yield from self._rows(window, self._chain.expire(at_ns))
        if not self._chain.lives(block_hash):
            self._late.append(block_hash)

    def _rows(self, window: str, outcomes: Iterable[events.Outcome]) -> Iterator[_Row]:
        whose = {"source": self._name, "window_start": window}
        for outcome in outcomes:
            if isinstance(outcome, events.Closed | events.Refused):
                yield from _ends(outcome, whose)
                continue
            table, row_of = _TABLES[type(outcome)]
            row = whose | row_of(outcome)
            if table in _ENTITY:
                self._newest[table, *(row[name] for name in _ENTITY[table])] = table, row
            else:
                yield table, row

    def end_windows(self, window: str | None) -> Iterator[_Row]:
        """The state at the end of every window before `window`, of all if None."""
        while self._ahead and (window is None or self._ahead[0] < window):
            name = self._ahead.pop(0)
            # Time ends lives, whether or not a message follows in the window.
            yield from self._rows(name, self._chain.expire(self._windows.end_ns(name)))
            yield from self._newest.values()
            whose = {"source": self._name, "window_start": name}
            yield ENDS, whose | {"living": b"".join(self._chain.living()), "late": b"".join(self._late)}
            state = {"snapshot": self._chain.snapshot(), "carried_from": self._carried_from(name)}
            yield STATE, whose | {"row_kind": "chain"} | state
            self._newest, self._late = {}, []

    def _carried_from(self, window: str) -> str:
        """The window of the oldest living block, or the horizon's if that is older."""
        horizon = self._windows.start_ns(window) - HORIZON_NS
        first = self._windows.of(max(0, min(horizon, self._chain.oldest_ns or horizon)))
        return max(first, self._windows.start)


def _ends(outcome: events.Closed | events.Refused, whose: Mapping[str, str]) -> Iterator[_Row]:
    """The end of a block's life, or its refusal: for the next stage, and as state."""
    kind = CLOSED if isinstance(outcome, events.Closed) else REFUSED
    row = {**whose, "row_kind": kind, "block_hash": outcome.block_hash}
    own = {"judged": outcome.judged, "stall": outcome.stall} if isinstance(outcome, events.Closed) else {}
    yield BLOCKS, row | own | {"at": place_row(outcome.place)}
    yield STATE, row | place_row(outcome.place)


# The fold


def fold_chain(
    batches: Iterable[pa.RecordBatch], sources: Sources, windows: Windows
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The fold of the stage: SCHEMA by source, in the order of arrival."""
    pieces = (piece for batch in batches for piece in pieces_of(batch, ("source",)))
    for (name,), of_source in groupby(pieces, lambda piece: piece.place):
        yield from _in_batches(_ordered(name, (piece.rows for piece in of_source), sources[name], windows))


def silent(names: Iterable[str], sources: Sources, windows: Windows) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of sources without any event."""
    for name in names:
        yield from _in_batches(_ordered(name, (), sources[name], windows))


def _ordered(name: str, batches: Iterable[pa.RecordBatch], source: Whose, windows: Windows) -> Iterator[_Row]:
    ordering = _Ordering(name, source, windows)
    last = None
    completes: Counter[str | None] = Counter()
    seen: set[tuple[Any, ...]] = set()
    for batch in batches:
        for row in _without_ordinary(batch, ordering).to_pylist():
            if row["event"] is None:
                ordering.restore(row["snapshot"])
                continue
            if row["event"] == LAST:
                yield from ordering.last_message(row["block_hash"], row["arrived_at_ns"])
                continue
            event = _event(row)
            # The first Batch of a block on a reorg channel is an event of the block and of the channel.
            if event == last or (row["event"] in _OF_CHANNEL and not ordering.is_channel(row["topic"])):
                continue
            last = event
            completes[row["topic"]] += row["event"] == REORG_COMPLETE
            if row["event"] == CHANNEL_MESSAGE:
                key = row["topic"], row["partition"], row["block_hash"], completes[row["topic"]]
                if key in seen:
                    continue
                seen.add(key)
            yield from ordering.apply(event)
    yield from ordering.end_windows(None)


def _without_ordinary(rows: pa.RecordBatch, ordering: _Ordering) -> pa.RecordBatch:
    """Without messages on topics that were no channel before these rows and carry no Reorg in them.

    Of a channel's other messages, the first of each block on each partition, before and after each ReorgComplete.
    """
    event, topic = rows.column("event"), rows.column("topic")
    of_channel = pc.fill_null(pc.is_in(event, pa.array(_OF_CHANNEL, pa.int8())), False)
    if not pc.any(of_channel).as_py():
        return rows
    is_reorg = pc.equal(event, REORG)
    names = pc.unique(topic.filter(of_channel)).to_pylist()
    channels = {*filter(ordering.is_channel, names), *pc.unique(topic.filter(is_reorg)).to_pylist()} & {*names}
    kept = pc.or_(pc.invert(of_channel), pc.is_in(topic, pa.array([*channels], pa.string())))
    rows = rows.filter(kept)
    return rows.take(pa.array(_first_on_channels(rows)))


def _first_on_channels(rows: pa.RecordBatch) -> Any:
    event = np.asarray(pc.fill_null(rows.column("event"), -1))
    columns = {name: rows.column(name) for name in ("topic", "partition", "block_hash")}
    columns["completes"] = pa.array(np.cumsum(event == REORG_COMPLETE))
    columns["at"] = pa.array(np.arange(rows.num_rows))
    messages = pa.table(columns).filter(pa.array(event == CHANNEL_MESSAGE))
    keys = ["topic", "partition", "block_hash", "completes"]
    first = messages.group_by(keys, use_threads=False).aggregate([("at", "min")])["at_min"]
    return np.union1d(np.flatnonzero(event != CHANNEL_MESSAGE), np.asarray(first))


def _in_batches(rows: Iterable[_Row]) -> Iterator[tuple[str, pa.RecordBatch]]:
    waiting: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for table, row in rows:
        waiting[table].append(row)
        if len(waiting[table]) == _ROWS:
            yield table, _batch(table, waiting.pop(table))
    for table, listed in waiting.items():
        yield table, _batch(table, listed)


def _batch(table: str, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows) if table == ENDS else batch_of(table, rows)
