"""The two passes of Cardinal's gold that depend on order, as Arrow functions over sorted partitions.

`fold_blocks` assembles single blocks message by message. `order_chain` orders the blocks of a source. Both only carry
rows into the codec and out of it; the codec makes all decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import chain as concatenated
from itertools import groupby
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from wirehouse_codecs.cardinal.correlation import events
from wirehouse_codecs.cardinal.correlation.chain import Chain
from wirehouse_codecs.cardinal.correlation.endings import HORIZON_NS
from wirehouse_codecs.cardinal.fast.columns import message_of
from wirehouse_codecs.cardinal.options import CardinalOptions
from wirehouse_codecs.cardinal.session.assembly import assemble
from wirehouse_codecs.cardinal.session.block import Block, Received
from wirehouse_codecs.cardinal.session.judgement import judged_findings
from wirehouse_codecs.cardinal.wire.messages import KINDS, BatchDeleteMsg, BatchMsg, Message
from wirehouse_codecs.core.rules import Finding, Place
from wirehouse_pipelines.cardinal.blocks import BLOCK, PLACE
from wirehouse_pipelines.lake.windows import Windows

#: Rows in an Arrow batch that a pass returns.
ROWS = 5_000
TYPE_BYTES = {name: byte for byte, name in KINDS.items()}

PLACE_TYPE = pa.struct(
    [
        ("arrived_at_ns", pa.int64()),
        ("capture_arrived_at_ns", pa.int64()),
        ("capture_id", pa.binary()),
        ("record_number", pa.int64()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
    ]
)
NUMBER = pa.decimal128(20, 0)
COUNTS = pa.list_(pa.struct([("name", pa.string()), ("messages", pa.int64())]))
FINDING_TYPE = pa.struct(
    [("rule", pa.string()), ("severity", pa.string()), ("message", pa.string()), ("at", PLACE_TYPE), ("number", NUMBER)]
)
BATCH_TYPE = pa.struct([("number", NUMBER), ("weight", pa.binary()), ("parent", pa.binary())])
BLOCK_TYPE = pa.struct(
    [
        ("batch", BATCH_TYPE),
        ("batch_at", PLACE_TYPE),
        ("first_at", PLACE_TYPE),
        ("last_at", PLACE_TYPE),
        ("completed_at", PLACE_TYPE),
        ("messages", pa.int64()),
        ("duplicates", pa.int64()),
        ("expected", COUNTS),
        ("received", COUNTS),
        ("missing", pa.list_(pa.struct([("name", pa.string()), ("messages", pa.int64()), ("what", pa.string())]))),
    ]
)
UPDATE_TYPE = pa.struct(
    [("number", NUMBER), ("key", pa.binary()), ("value", pa.binary()), ("is_delete", pa.bool_()), ("at", PLACE_TYPE)]
)
#: A row of `fold_blocks`, of kind block, update or finding. `window_start` of a finding is where it became known.
FOLDED = pa.schema(
    [
        ("block_hash", pa.binary()),
        ("source", pa.string()),
        ("row_kind", pa.string()),
        ("window_start", pa.string()),
        ("block", BLOCK_TYPE),
        ("update", UPDATE_TYPE),
        ("finding", FINDING_TYPE),
    ]
)


def _place(row: Mapping[str, Any]) -> Place:
    return Place(**row)


def _place_row(place: Place | None) -> dict[str, Any] | None:
    return None if place is None else {name: getattr(place, name) for name in PLACE}


def _finding_row(finding: Finding, number: int | None) -> dict[str, Any]:
    return {
        "rule": finding.rule.id,
        "severity": finding.rule.severity.value,
        "message": finding.message,
        "at": _place_row(finding.place),
        "number": None if number is None else Decimal(number),
    }


def _weight(weight: int) -> bytes:
    return weight.to_bytes(32, "big")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def _message(row: Mapping[str, Any]) -> Message:
    kind = row["kind"]
    if kind in ("batch_msg", "batch_delete_msg"):
        return (BatchMsg if kind == "batch_msg" else BatchDeleteMsg)(row["block_hash"], row["key"], row["value"])
    message = message_of(TYPE_BYTES[kind], {"rule": None, "reason": None} | dict(row)).message
    assert message is not None
    return message


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from batch.to_pylist()


def _batches(rows: Iterator[dict[str, Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    waiting: list[dict[str, Any]] = []
    for row in rows:
        waiting.append(row)
        if len(waiting) == ROWS:
            yield pa.RecordBatch.from_pylist(waiting, schema=schema)
            waiting = []
    if waiting:
        yield pa.RecordBatch.from_pylist(waiting, schema=schema)


# Blocks

#: How a block's life ended: where, the window in which that became known, whether it is judged, words for findings.
ENDED = pa.struct(
    [("closed_at", PLACE_TYPE), ("ended_in", pa.string()), ("judged", pa.bool_()), ("stall", pa.string())]
)


def _block_row(block: Block) -> dict[str, Any]:
    batch = block.batch
    return {
        "batch": batch and {"number": Decimal(batch.number), "weight": _weight(batch.weight), "parent": batch.parent},
        "batch_at": _place_row(block.batch_place),
        "first_at": _place_row(block.first_place),
        "last_at": _place_row(block.last_place),
        "completed_at": _place_row(block.completed_place),
        "messages": block.messages,
        "duplicates": block.duplicates,
        "expected": [{"name": _text(count.name), "messages": count.messages} for count in block.expected],
        "received": [{"name": _text(count.name), "messages": count.messages} for count in block.received],
        "missing": [
            {"name": _text(missing.name), "messages": missing.messages, "what": missing.what}
            for missing in block.missing
        ],
    }


def _folded(block: Block, ended: Mapping[str, Any], windows: Windows) -> Iterator[dict[str, Any]]:
    """The rows of one block: itself, its updates if it is complete, its findings. `ended` has the fields of ENDED."""
    number = block.batch.number if block.batch else None
    yield {"row_kind": "block", "block": _block_row(block)}
    for update in block.updates:
        yield {
            "row_kind": "update",
            "update": {
                "number": number if number is None else Decimal(number),
                "key": update.key,
                "value": update.value,
                "is_delete": update.value is None,
                "at": _place_row(update.place),
            },
        }
    findings = [
        (finding, windows.of(known_at.arrived_at_ns))
        for finding, known_at in zip(block.findings, block.known_at, strict=True)
    ]
    if ended["judged"] and not block.complete:
        findings += [(finding, ended["ended_in"]) for finding in judged_findings(block, ended["stall"] or "")]
    for finding, window in findings:
        yield {"row_kind": "finding", "window_start": window, "finding": _finding_row(finding, number)}


def fold_blocks(messages: DataFrame, options: Mapping[str, CardinalOptions], windows: Windows) -> DataFrame:
    """FOLDED of the blocks of `messages` (block_hash, source, at, kind, the message's fields, `ENDED`).

    `closed_at` is where the block's life ended, null if it is alive: later messages take no part. `ended_in` is the
    window in which that became known. It is a later one if no message came for some windows.
    """

    def fold(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        def rows() -> Iterator[dict[str, Any]]:
            for (block_hash, source), group in groupby(_rows(batches), lambda row: (row["block_hash"], row["source"])):
                first = next(group)
                closed = _place(first["closed_at"]) if first["closed_at"] else None
                received = (Received(_place(row["at"]), _message(row)) for row in concatenated((first,), group))
                block = assemble(block_hash, received, options[source], until=closed.order if closed else None)
                for row in _folded(block, first, windows):
                    yield {"block_hash": block_hash, "source": source} | row

        return _batches(rows(), FOLDED)

    by_block = messages.repartition(*BLOCK).sortWithinPartitions(*BLOCK, "at")
    return by_block.mapInArrow(fold, from_arrow_schema(FOLDED))


# Chain

#: Events at one place, in the order in which the chain takes them. CHANNEL_BATCH is a Batch where a Reorg came too.
REORG, REORG_COMPLETE, CHANNEL_MESSAGE, FIRST_MESSAGE, BATCH, CHANNEL_BATCH, COMPLETED = range(7)
OF_CHANNEL = (CHANNEL_MESSAGE, CHANNEL_BATCH)
#: Before all events of a source: the chain as it was.
SNAPSHOT = -1

UPDATE_ROW = pa.struct(
    [
        ("sequence", pa.int64()),
        ("added", pa.list_(pa.binary())),
        ("removed", pa.list_(pa.binary())),
        ("head_hash", pa.binary()),
        ("head_number", NUMBER),
        ("at", PLACE_TYPE),
    ]
)
CANONICAL_ROW = pa.struct(
    [
        ("number", NUMBER),
        ("block_hash", pa.binary()),
        ("canonical", pa.bool_()),
        ("valid_from_ns", pa.int64()),
        ("valid_to_ns", pa.int64()),
        ("at", PLACE_TYPE),
    ]
)
REORG_ROW = pa.struct(
    [
        ("ancestor_hash", pa.binary()),
        ("ancestor_number", NUMBER),
        ("depth", pa.int64()),
        ("old_head", pa.binary()),
        ("new_head", pa.binary()),
        ("announced", pa.bool_()),
        ("channel", pa.string()),
        ("completed", pa.bool_()),
        ("at", PLACE_TYPE),
    ]
)
_CLOSED = ("judged", "complete", "stall")
CLOSED_ROW = pa.struct(
    [("closed_at", PLACE_TYPE), ("judged", pa.bool_()), ("complete", pa.bool_()), ("stall", pa.string())]
)
#: A row of `order_chain`. `step` numbers the rows of a source; of two rows with one key the later one counts.
ORDERED = pa.schema(
    [
        ("source", pa.string()),
        ("window_start", pa.string()),
        ("row_kind", pa.string()),
        ("step", pa.int64()),
        ("block_hash", pa.binary()),
        ("update", UPDATE_ROW),
        ("canonical", CANONICAL_ROW),
        ("reorg", REORG_ROW),
        ("finding", FINDING_TYPE),
        ("refused_at", PLACE_TYPE),
        ("closed", CLOSED_ROW),
        ("snapshot", pa.string()),
        ("carried_from", pa.string()),
    ]
)


def _event(row: Mapping[str, Any]) -> events.Event:
    place, kind, block_hash = _place(row["at"]), row["event"], row["block_hash"]
    if kind in (BATCH, CHANNEL_BATCH):
        batch = row["batch"]
        weight = int.from_bytes(batch["weight"], "big")
        return events.BatchArrived(place, block_hash, int(batch["number"]), batch["parent"], weight)
    if kind in (REORG, REORG_COMPLETE):
        made = events.ReorgArrived if kind == REORG else events.ReorgCompleteArrived
        return made(place, block_hash, int(row["batch"]["number"]))
    if kind == CHANNEL_MESSAGE:
        return events.ChannelMessage(place, block_hash)
    return (events.FirstMessage if kind == FIRST_MESSAGE else events.Completed)(place, block_hash)


def _update(outcome: events.Update) -> dict[str, Any]:
    row = {name: getattr(outcome, name) for name in ("sequence", "added", "removed", "head_hash")}
    return {"update": row | {"head_number": Decimal(outcome.head_number), "at": _place_row(outcome.place)}}


def _canonical(outcome: events.Canonical) -> dict[str, Any]:
    row = {name: getattr(outcome, name) for name in ("block_hash", "valid_from_ns", "valid_to_ns")}
    own = {"number": Decimal(outcome.number), "canonical": outcome.valid_to_ns is None}
    return {"canonical": row | own | {"at": _place_row(outcome.place)}}


def _reorg(outcome: events.ReorgRow) -> dict[str, Any]:
    names = ("ancestor_hash", "depth", "old_head", "new_head", "announced", "channel", "completed")
    row = {name: getattr(outcome, name) for name in names}
    return {"reorg": row | {"ancestor_number": Decimal(outcome.ancestor_number), "at": _place_row(outcome.place)}}


def _located_finding(outcome: events.LocatedFinding) -> dict[str, Any]:
    return {"block_hash": outcome.block_hash, "finding": _finding_row(outcome.finding, outcome.number)}


def _refused(outcome: events.Refused) -> dict[str, Any]:
    return {"block_hash": outcome.block_hash, "refused_at": _place_row(outcome.place)}


def _closed(outcome: events.Closed) -> dict[str, Any]:
    row = {"closed_at": _place_row(outcome.place)} | {name: getattr(outcome, name) for name in _CLOSED}
    return {"block_hash": outcome.block_hash, "closed": row}


#: Type of outcome -> kind of row, and the function that writes it.
_OUTCOMES: dict[type, tuple[str, Callable[[Any], dict[str, Any]]]] = {
    events.Update: ("update", _update),
    events.Canonical: ("canonical", _canonical),
    events.ReorgRow: ("reorg", _reorg),
    events.LocatedFinding: ("finding", _located_finding),
    events.Refused: ("refused", _refused),
    events.Closed: ("closed", _closed),
}


class _Ordering:
    """One source's chain while its events are processed, window by window."""

    def __init__(self, options: CardinalOptions, windows: Windows, names: Sequence[str]) -> None:
        self._options, self._windows, self._ahead = options, windows, list(names)
        self._chain = Chain(options)
        self._step = 0

    def restore(self, snapshot: str | None) -> None:
        if snapshot:
            self._chain = Chain(self._options, snapshot)

    def is_channel(self, topic: str) -> bool:
        """The topic is a reorg channel. A Reorg on an ordinary topic doesn't make it one."""
        return self._chain.is_channel(topic)

    def apply(self, event: events.Event) -> Iterator[dict[str, Any]]:
        """The state at the end of the windows before `event`, then the rows that follow from it."""
        window = self._windows.of(event.place.arrived_at_ns)
        yield from self.end_windows(window)
        yield from self._rows(window, self._chain.apply(event))

    def _rows(self, window: str, outcomes: Iterable[events.Outcome]) -> Iterator[dict[str, Any]]:
        for outcome in outcomes:
            kind, write = _OUTCOMES[type(outcome)]
            self._step += 1
            yield {"window_start": window, "row_kind": kind, "step": self._step} | write(outcome)

    def end_windows(self, window: str | None) -> Iterator[dict[str, Any]]:
        """The state at the end of every window before `window`, of all if None."""
        while self._ahead and (window is None or self._ahead[0] < window):
            name = self._ahead.pop(0)
            # Time ends lives, whether or not a message follows in the window.
            yield from self._rows(name, self._chain.expire(self._windows.end_ns(name)))
            for block_hash in self._chain.living():
                yield {"window_start": name, "row_kind": "living", "block_hash": block_hash}
            self._step += 1
            yield {
                "window_start": name,
                "row_kind": "chain",
                "step": self._step,
                "snapshot": self._chain.snapshot(),
                "carried_from": self._carried_from(name),
            }

    def _carried_from(self, window: str) -> str:
        """The window of the oldest living block, or the horizon's if that is older."""
        horizon = self._windows.start_ns(window) - HORIZON_NS
        first = self._windows.of(max(0, min(horizon, self._chain.oldest_ns or horizon)))
        return max(first, self._windows.start)


def order_chain(
    events: DataFrame, options: Mapping[str, CardinalOptions], windows: Windows, spans: Mapping[str, Sequence[str]]
) -> DataFrame:
    """ORDERED of `events` (source, at, event, block_hash, batch, snapshot), one task for each source.

    `spans` are the windows of each source in order; each gets a row with the state at its end.
    """

    def order(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        def rows() -> Iterator[dict[str, Any]]:
            for source, group in groupby(_rows(batches), lambda row: row["source"]):
                ordering = _Ordering(options[source], windows, spans[source])
                last = None
                for row in group:
                    if row["event"] == SNAPSHOT:
                        ordering.restore(row["snapshot"])
                        continue
                    event = _event(row)
                    # The first Batch of a block on a reorg channel is an event of the block and of the channel.
                    if event == last or (row["event"] in OF_CHANNEL and not ordering.is_channel(row["at"]["topic"])):
                        continue
                    last = event
                    for out in ordering.apply(event):
                        yield {"source": source} | out
                for out in ordering.end_windows(None):
                    yield {"source": source} | out

        return _batches(rows(), ORDERED)

    by_source = events.repartition("source").sortWithinPartitions("source", F.col("event") != SNAPSHOT, "at", "event")
    return by_source.mapInArrow(order, from_arrow_schema(ORDERED))
