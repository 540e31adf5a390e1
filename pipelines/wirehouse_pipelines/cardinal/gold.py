"""Gold of Cardinal Streams: blocks, the keys that they change, the chain, and the rules that need whole blocks.

Three stages, each a module beside this one:

1. `blocks` assembles each block from its messages: those of the windows, and those of blocks that were still alive.
2. `chain` orders the blocks of each source in the order of arrival. This decides when a block's life ends.
3. `settling` writes each block as it is at the end of its windows, and judges what never came.

State from window to window: the messages of blocks whose life hasn't ended, Reorgs, blocks whose life ended lately,
refused blocks, and the chain itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa

from wirehouse_pipelines.cardinal import blocks, chain, settling
from wirehouse_pipelines.cardinal.rows import (
    ARRIVAL,
    BATCHES,
    BLOCKS,
    CHAIN,
    CHAIN_UPDATES,
    FOUND,
    KEY,
    PLACE,
    READ,
    REORGS,
    SILVER,
    STATE,
    TYPES,
    UPDATES,
    Sources,
    Whose,
    messages_of,
)
from wirehouse_pipelines.delta import delta_tables, spark_tables
from wirehouse_pipelines.delta.spark_tables import Files
from wirehouse_pipelines.jobs import steps
from wirehouse_pipelines.jobs.job import Cut, Span, Work
from wirehouse_pipelines.stages import Input, Order, Prepare, Stage, Written

VERSION = "8"
OUTPUTS: Final = (BATCHES, UPDATES, CHAIN_UPDATES, CHAIN, REORGS, FOUND, STATE, BLOCKS)
_PLACED: Final = dict.fromkeys(("source", "block_hash", *PLACE), ())
_Row = Mapping[str, Any]


def _new(work: Work, prepare: Prepare, spans: Sequence[Span] | None = None) -> Input:
    """Messages of the windows."""
    files = spark_tables.files(work.lake, SILVER, work.spans if spans is None else spans, "message")
    return Input(SILVER, files, READ, prepare)


def _carried(work: Work, kind: str, columns: Mapping[str, Sequence[str]], prepare: Prepare) -> Input:
    """State of a kind."""
    alive = work.alive()
    return Input(STATE, spark_tables.files(work.lake, STATE, alive, kind) if alive else [], columns, prepare)


def _made(work: Work, table: str, written: Written, prepare: Prepare) -> Input:
    """All columns of what an earlier stage has written into a table."""
    return Input(table, steps.passed(work, table, written[table]), dict.fromkeys(TYPES[table].names, ()), prepare)


# Blocks


def _blocks(work: Work, sources: Sources) -> Stage:
    """The stage that assembles blocks."""
    inputs = [
        _new(work, messages_of),
        _carried(work, "message", READ, _without_window),
        _carried(work, "reorg", READ, _without_window),
        _carried(work, "closed", _PLACED, _ended),
    ]
    fold = partial(blocks.fold_blocks, sources=sources, windows=work.lake.windows)
    tables = (BLOCKS, UPDATES, STATE)
    windows = steps.windows(work.spans)
    return Stage(inputs, blocks.SCHEMA, Order(KEY, ARRIVAL), fold, tables, windows, returned=[blocks.TOPICS])


def _without_window(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Prepare carried messages: they have no window."""
    rows = messages_of(rows)
    at = rows.schema.get_field_index("window_start")
    return rows.set_column(at, "window_start", pa.nulls(rows.num_rows, pa.string()))


def _ended(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Prepare ends of lives. They have no location, so they come first."""
    return rows.select(KEY).append_column(blocks.ENDED_NS, rows.column("arrived_at_ns"))


# The chain


def _chain(work: Work, sources: Sources, assembled: Written) -> Stage:
    """The stage that orders blocks."""
    topics: dict[str, list[str | None]] = {}
    for row in assembled[blocks.TOPICS]:
        topics.setdefault(row["source"], []).append(row["topic"])
    on_channels = partial(chain.of_channels, topics={name: pa.array(of, pa.string()) for name, of in topics.items()})
    last = [Span(name, (entry.window_start,)) for name, entry in work.before.items()]
    snapshots = spark_tables.files(work.lake, STATE, last, "chain") if last else []
    inputs = [
        _made(work, BLOCKS, assembled, partial(chain.of_blocks, sources=sources)),
        _new(work, on_channels, [span for span in work.spans if span.source in topics]),
        Input(STATE, snapshots, dict.fromkeys(("source", "snapshot"), ()), chain.of_state),
    ]
    fold = partial(chain.fold_chain, sources=sources, windows=work.lake.windows)
    heard = {*topics, *work.before, *(_place_of(file)[0] for file in assembled[BLOCKS])}
    return Stage(
        inputs,
        chain.SCHEMA,
        Order(("source",), (*ARRIVAL, "event")),
        fold,
        (CHAIN_UPDATES, CHAIN, REORGS, FOUND, STATE, BLOCKS),
        steps.windows(work.spans),
        beside=[*chain.silent(sources.keys() - heard, sources, work.lake.windows)],
        returned=[chain.ENDS],
    )


def _place_of(file: _Row) -> tuple[str, str]:
    """Source and window of a file of a table."""
    partition = delta_tables.partition_of(file["path"])
    return partition["source"], partition["window_start"]


# Blocks as they are settled


def _settled(work: Work, sources: Sources, written: Written, ends: Sequence[_Row]) -> Stage:
    """The stage that settles blocks."""
    hashes = settling.Hashes.of(ends)
    new, old = (partial(settling.of_messages, hashes=hashes, carried=carried) for carried in (False, True))
    wanted = [
        Span(span.source, (window,))
        for span in work.spans
        for window in span.windows
        if hashes.has(span.source, window)
    ]
    inputs = [
        _made(work, BLOCKS, written, settling.of_blocks),
        _carried(work, "refused", _PLACED | dict.fromkeys(("window_start", "row_kind"), ()), settling.of_refused),
        _new(work, new, wanted),
        *([_carried(work, "message", READ, old)] if hashes.late else []),
    ]
    fold = partial(settling.settle, sources=sources, windows=work.lake.windows)
    return Stage(
        inputs,
        settling.SCHEMA,
        Order(KEY, settling.BY),
        fold,
        (BATCHES, FOUND, STATE),
        steps.windows(work.spans),
        returned=[settling.REVIVED, settling.INVALID],
    )


def _check_lives(revived: Sequence[_Row]) -> None:
    """Raise Cut if a hash lives again in the windows: its second life needs the state of the window before."""
    first: dict[str, str] = {}
    for row in revived:
        first[row["source"]] = min(row["window_start"], first.get(row["source"], row["window_start"]))
    if first:
        raise Cut(first)


def _valid_updates(work: Work, updates: Sequence[dict[str, Any]], invalid: Sequence[_Row]) -> Written:
    """The files `updates` without the rows of blocks that were complete only after their end."""
    places = {(row["source"], row["window_start"]) for row in invalid}
    affected = [file for file in updates if _place_of(file) in places]
    hashes = pa.array([row["block_hash"] for row in invalid], pa.binary())
    stage = Stage(
        [_made(work, UPDATES, {UPDATES: affected}, partial(settling.of_updates, invalid=hashes))],
        TYPES[UPDATES].remove(TYPES[UPDATES].get_field_index("decoder_version")),
        Order(KEY, ("key",)),
        _as_they_are,
        (UPDATES,),
        steps.windows(work.spans),
    )
    made = steps.run(work, [stage], VERSION) if affected else {UPDATES: []}
    return {UPDATES: [*(file for file in updates if file not in affected), *made[UPDATES]]}


def _as_they_are(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    return ((UPDATES, rows) for rows in batches)


def tables(work: Work) -> Iterator[tuple[str, Files]]:
    """The job of gold.cardinal: its tables, each with its files."""
    sources = Whose.of(work)
    assembled = steps.run(work, [_blocks(work, sources)], VERSION)
    ordered = steps.run(work, [_chain(work, sources, assembled)], VERSION)
    passed_on = {BLOCKS: [*assembled[BLOCKS], *ordered[BLOCKS]]}
    settled = steps.run(work, [_settled(work, sources, passed_on, ordered[chain.ENDS])], VERSION)
    _check_lives(settled[settling.REVIVED])
    valid = _valid_updates(work, assembled[UPDATES], settled[settling.INVALID])
    written = Written()
    for made in (assembled | valid, ordered, settled):
        for name in OUTPUTS:
            written.setdefault(name, []).extend(made.get(name, []))
    yield from steps.files(written, OUTPUTS)
