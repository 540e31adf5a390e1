"""The first stage of Cardinal's gold: blocks from their messages, each as far as its messages go.

The messages of a block come together by its hash, in the order of arrival. The fast assembler of the codec decides
regular blocks, many at once; the reference path, `session.assembly`, takes all others. The chain decides only later
when a block's life ended, and what came too late. So the stage writes blocks to an internal table. Only the updates of
complete blocks are written to their final place; hardly any of these has to be taken back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.cardinal.fast.assembly import UPDATES_BYTES, assemble_columns
from wirehouse_codecs.cardinal.session.assembly import assemble
from wirehouse_codecs.cardinal.session.block import Block
from wirehouse_codecs.cardinal.session.channels import reorg_channel_name
from wirehouse_codecs.core.horizon import HORIZON_NS
from wirehouse_pipelines.cardinal.rows import (
    BLOCK,
    BLOCKS,
    KEY,
    MESSAGE,
    OVER,
    REORG_KINDS,
    STATE,
    TYPES,
    UPDATES,
    Sources,
    as_states,
    block_row,
    finding_row,
    number,
    places,
    received,
    widened,
)
from wirehouse_pipelines.delta.batches import begins_of, whole_keys, with_all
from wirehouse_pipelines.lake.windows import Windows

Array = np.ndarray[Any, Any]
#: Rows of the stage: messages, and where the lives of their blocks ended before, which come first.
ENDED_NS: Final = "ended_ns"
SCHEMA: Final = pa.schema([*MESSAGE, (ENDED_NS, pa.int64())])
#: Rows that are returned: topics that are or may be reorg channels.
TOPICS: Final = "topics"
_NOT_ASSEMBLED: Final = ("window_start", "row_kind", "at", "judged", "stall", "decoder_version")
#: Columns of BLOCKS that assembly gives, with the number of the block in its batch.
ASSEMBLED: Final = pa.schema(
    [
        ("block", pa.int64()),
        *(field for field in TYPES[BLOCKS] if field.name not in _NOT_ASSEMBLED),
    ]
)
_NEVER: Final = np.iinfo(np.int64).min


def fold_blocks(
    batches: Iterable[pa.RecordBatch], sources: Sources, windows: Windows
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The fold of the stage: SCHEMA by block, in the order of arrival."""
    topics = _Topics(sources)
    for rows in whole_keys(map(widened, batches), KEY, 1):
        is_reorg = pc.is_in(rows.column("kind"), pa.array(REORG_KINDS))
        yield from topics.take(rows, is_reorg)
        reorgs = rows.filter(pc.and_(is_reorg, rows.column("window_start").is_valid()))
        for state in as_states(reorgs, "reorg", np.ones(reorgs.num_rows, bool)):
            yield STATE, state
        lives, bounds, is_over = _lives(_where(rows, ~np.asarray(is_reorg)), sources)
        del rows
        if lives.num_rows:
            blocks, updates = assembled(lives, bounds, sources, windows)
            yield BLOCKS, _placed(blocks, is_over, sources, windows)
            for some in updates:
                yield UPDATES, _new_updates(some, is_over, sources)


def _where(rows: pa.RecordBatch, kept: Array) -> pa.RecordBatch:
    """The rows for which `kept` is true, without a copy if that is all."""
    return rows if kept.all() else rows.filter(pa.array(kept))


class _Topics:
    """Finds topics that are named like reorg channels, or that carry a Reorg or ReorgComplete."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._is_named = {name: reorg_channel_name(source.options) for name, source in sources.items()}
        self._found: set[tuple[str, str | None]] = set()

    def take(self, rows: pa.RecordBatch, is_reorg: pa.Array) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The rows that are new."""
        columns = {"source": rows.column("source"), "topic": rows.column("topic"), "reorg": is_reorg}
        seen = pa.table(columns).group_by(["source", "topic"], use_threads=False).aggregate([("reorg", "any")])
        new = [
            (source, topic)
            for source, topic, reorg in zip(*(seen[name].to_pylist() for name in seen.column_names), strict=True)
            if reorg or (topic is not None and self._is_named[source](topic))
        ]
        new = [one for one in new if one not in self._found]
        self._found.update(new)
        if new:
            rows_of_topics = [
                {"source": source, "window_start": self._sources[source].windows[0], "topic": topic}
                for source, topic in new
            ]
            yield TOPICS, pa.RecordBatch.from_pylist(rows_of_topics)


def starts_of(rows: pa.RecordBatch, sources: Sources) -> Array:
    """For each row the begin of its source's windows."""
    names = rows.column("source").dictionary_encode()
    starts = np.array([sources[name].start_ns for name in names.dictionary.to_pylist()], np.int64)
    found: Array = starts[np.asarray(names.indices)]
    return found


def _lives(rows: pa.RecordBatch, sources: Sources) -> tuple[pa.RecordBatch, Array, Array]:
    """Messages of blocks that live, the bounds of the blocks, and whether each is over.

    Messages up to the horizon after the end of a life are too late; after it the hash may live again. A carried block
    is over if time alone ended its life before the windows.
    """
    begins = begins_of(rows, KEY)
    arrived, ended = (np.asarray(pc.fill_null(rows.column(name), _NEVER)) for name in ("arrived_at_ns", ENDED_NS))
    sizes = np.diff([*begins, rows.num_rows])
    is_message = ended == _NEVER
    until = np.repeat(np.maximum.reduceat(ended, begins), sizes) if len(begins) else ended
    kept = is_message & ((until == _NEVER) | (arrived > until + HORIZON_NS))
    rows, arrived = _where(rows, kept), arrived[kept]
    begins = begins_of(rows, KEY)
    sizes = np.diff([*begins, rows.num_rows])
    carried = np.asarray(rows.column("window_start").is_null())
    ended_ns = np.repeat(arrived[begins], sizes) + HORIZON_NS + 1
    over = np.repeat(carried[begins], sizes) & (ended_ns < starts_of(rows, sources))
    kept = ~over | carried | (arrived > ended_ns + HORIZON_NS)
    rows, is_over = _where(rows, kept), (over & carried)[kept]
    begins = begins_of(rows.append_column("over", pa.array(is_over)), (*KEY, "over"))
    return rows, np.append(begins, rows.num_rows), is_over[begins]


def assembled(
    rows: pa.RecordBatch, bounds: Array, sources: Sources, windows: Windows
) -> tuple[pa.RecordBatch, Iterator[pa.RecordBatch]]:
    """Blocks as ASSEMBLED, and the updates of those that are complete. Block i has the rows from bounds[i] on."""
    found = assemble_columns(rows, bounds)
    begins, ends = bounds[:-1], bounds[1:] - 1
    # Only the reference path judges rules about topics.
    judged = [name for name, source in sources.items() if source.options.topics or source.options.prefixes]
    of_block = rows.column("source").take(pa.array(begins))
    regular = found.regular & ~np.asarray(pc.is_in(of_block, pa.array(judged, pa.string())))
    at = np.flatnonzero(regular)
    batch, completed = found.batch[at], found.completed[at]
    head = {name: rows.column(name).take(pa.array(batch)) for name in ("number", "weight", "parent")}
    struct = ASSEMBLED.field("batch").type
    counts = found.counts.take(pa.array(at)).cast(ASSEMBLED.field("expected").type)
    columns = {
        "block": pa.array(at),
        **{name: rows.column(name).take(pa.array(batch)) for name in KEY},
        "batch": pa.StructArray.from_arrays([head[field.name] for field in struct], fields=list(struct)),
        "first_at": places(rows, begins[at]),
        "batch_at": places(rows, batch),
        "last_at": places(rows, ends[at]),
        "completed_at": places(rows, completed),
        "expected": counts,
        "received": counts,
        "missing": _no_lists(len(at), ASSEMBLED.field("missing").type),
        "messages": pa.array(bounds[1:][at] - begins[at]),
        "duplicates": pa.array(found.duplicates[at]),
        "findings": _no_lists(len(at), ASSEMBLED.field("findings").type),
    }
    blocks = [with_all(pa.RecordBatch.from_pydict(columns), ASSEMBLED)]
    of_odd: list[Iterator[pa.RecordBatch]] = []
    for odd in np.flatnonzero(~regular).tolist():
        mine = rows.slice(bounds[odd], bounds[odd + 1] - bounds[odd])
        source = mine.column("source")[0].as_py()
        block = assemble(mine.column("block_hash")[0].as_py(), received(mine), sources[source].options)
        blocks.append(_odd(block, odd, source, windows))
        of_odd.append(_odd_updates(block, odd, source, windows))
    of_regular = (
        _updates(rows, _where(some, regular[np.asarray(some["block"])]), found, windows) for some in found.updates
    )
    return pa.concat_batches(blocks), chain(of_regular, *of_odd)


def _no_lists(count: int, kind: pa.ListType) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(np.zeros(count + 1, np.int32)), pa.nulls(0, kind.value_type))


def _odd(block: Block, at: int, source: str, windows: Windows) -> pa.RecordBatch:
    findings = [
        finding_row(finding) | {"window_start": windows.of(known_at.arrived_at_ns)}
        for finding, known_at in zip(block.findings, block.known_at, strict=True)
    ]
    row = block_row(block) | {"block": at, "source": source, "findings": findings}
    return pa.RecordBatch.from_pylist([row], schema=ASSEMBLED)


#: Rows of UPDATES, with the number of the block in its batch and when it was complete.
_UPDATE: Final = pa.schema(
    [
        ("block", pa.int64()),
        ("completed_at_ns", pa.int64()),
        *(
            (name, kind)
            for name, kind in (
                *((name, pa.string()) for name in ("source", "window_start", "operation")),
                *((name, pa.binary()) for name in ("block_hash", "key", "value", "capture_id")),
                ("number", ASSEMBLED.field("batch").type.field("number").type),
                ("record_number", pa.int64()),
            )
        ),
    ]
)


def _updates(rows: pa.RecordBatch, updates: pa.RecordBatch, found: Any, windows: Windows) -> pa.RecordBatch:
    """The updates of regular blocks."""
    whose, at = np.asarray(updates["block"]), updates["row"]
    batch, completed = pa.array(found.batch[whose]), pa.array(found.completed[whose])
    completed_ns = rows.column("arrived_at_ns").take(completed)
    moments = completed_ns.dictionary_encode()
    names = pa.array([windows.of(ns) for ns in moments.dictionary.to_pylist()], pa.string())
    columns = {
        "block": updates["block"],
        "completed_at_ns": completed_ns,
        "source": rows.column("source").take(batch),
        "window_start": names.take(moments.indices),
        "operation": pc.if_else(updates["value"].is_valid(), "set", "delete"),
        "block_hash": rows.column("block_hash").take(batch),
        "key": updates["key"],
        "value": updates["value"],
        "capture_id": rows.column("capture_id").take(at),
        "number": rows.column("number").take(batch),
        "record_number": rows.column("record_number").take(at),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in _UPDATE.names], schema=_UPDATE)


def _odd_updates(block: Block, at: int, source: str, windows: Windows) -> Iterator[pa.RecordBatch]:
    if block.completed_place is None or block.batch is None:
        return
    completed_ns = block.completed_place.arrived_at_ns
    whole = {
        "block": at,
        "completed_at_ns": completed_ns,
        "source": source,
        "window_start": windows.of(completed_ns),
        "block_hash": block.block_hash,
        "number": number(block.batch.number),
    }
    rows, size = [], 0
    for update in block.updates:
        rows.append(
            whole
            | {"operation": "delete" if update.value is None else "set", "key": update.key, "value": update.value}
            | {"capture_id": update.place.capture_id, "record_number": update.place.record_number}
        )
        size += len(update.key) + len(update.value or b"")
        if size >= UPDATES_BYTES:
            yield pa.RecordBatch.from_pylist(rows, schema=_UPDATE)
            rows, size = [], 0
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=_UPDATE)


def _placed(blocks: pa.RecordBatch, is_over: Array, sources: Sources, windows: Windows) -> pa.RecordBatch:
    """Rows of BLOCKS. A block whose messages are all carried is in the first window."""
    last_ns = pc.struct_field(blocks.column("last_at"), "arrived_at_ns").to_pylist()
    names = blocks.column("source").to_pylist()
    placed = [max(windows.of(ns), sources[name].windows[0]) for ns, name in zip(last_ns, names, strict=True)]
    kinds = np.where(is_over[np.asarray(blocks.column("block"))], OVER, BLOCK)
    rows = blocks.append_column("window_start", pa.array(placed, pa.string()))
    return rows.append_column("row_kind", pa.array(kinds, pa.string()))


def _new_updates(updates: pa.RecordBatch, is_over: Array, sources: Sources) -> pa.RecordBatch:
    """The updates of blocks that were completed in the windows."""
    is_new = np.asarray(updates["completed_at_ns"]) >= starts_of(updates, sources)
    return updates.filter(pa.array(is_new & ~is_over[np.asarray(updates["block"])]))
