"""Key folds in gold: logic that goes through the rows of each key in order of time and keeps state.

A KeyFold is created per key, from the key's state at the end of the window before. It takes the rows of one window
after another, returns rows of gold, and at the end of each window its new state. `stage` declares a stage of such
folds: a task reads one key after another as a stream of Arrow batches. It holds one fold and some of the rows made,
never all rows of a key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_pipelines.delta import spark_tables
from wirehouse_pipelines.delta.batches import Piece, pieces_of
from wirehouse_pipelines.jobs import steps
from wirehouse_pipelines.jobs.job import Work
from wirehouse_pipelines.lake.lake import Source
from wirehouse_pipelines.stages import Input, Order, Stage

#: The default columns of the key.
KEYS: Final = ("source", "key")
#: The column of a fold's rows that names their table.
TABLE: Final = "table"
#: Columns of carried state.
_CARRIED: Final = ("state", "state_window")
#: Rows made for many keys are returned in batches of about this many.
BATCH_ROWS: Final = 4_096


class KeyFold(ABC):
    """The fold of one key. The rows that it returns have its own columns; key and window are added to them."""

    @abstractmethod
    def take(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        """Take the key's next rows; the rows made of them. The rows are of one window, which may have several calls."""

    def end_window(self) -> pa.RecordBatch | None:
        """End a window in which the key had rows; further rows for it, such as the state."""
        return None


#: Creates the fold of a key from the values of the key's columns and its state, if it has one.
Start = Callable[[Mapping[str, Any], str | None], KeyFold]
#: Which of the rows of state a stage reads: a mask.
Mine = Callable[[pa.RecordBatch], pa.Array]


def stage(
    work: Work,
    state_table: str,
    inputs: Sequence[Input],
    columns: pa.Schema,
    order: Sequence[str],
    start: Start,
    tables: Sequence[str],
    *,
    horizon_ns: Callable[[Source], int],
    keys: Sequence[str] = KEYS,
    mine: Mine | None = None,
    returned: Sequence[str] = (),
) -> Stage:
    """Declare the stage that folds the rows of `inputs` by key, each key with its carried state.

    Prepared rows have `columns`, which include `keys` and window_start. The columns of `keys` are never null and
    include source. Rows of a key are folded by window and `order`, whose last columns break ties. Each row that a fold
    returns names its table in the column TABLE; it is one of `tables` or of `returned`.

    The state of a key is in the column `state` of its newest living row in `state_table`; `mine` selects this stage's
    rows there. A key that was silent for longer than `horizon_ns` starts without state.
    """
    schema = pa.schema([*columns, *((name, pa.string()) for name in _CARRIED)])
    alive = work.alive()
    found = spark_tables.files(work.lake, state_table, alive) if alive else []
    state = dict.fromkeys((*keys, "window_start", "state"), ())
    carried = [Input(state_table, found, state, partial(_states, key=keys[-1], mine=mine))] if found else []
    fold = partial(_fold, keys=tuple(keys), start=start, alive=work.alive_before(horizon_ns))
    # The state of a key comes first, because its window is null; the newest state comes last.
    by = ("window_start", "state_window", *order)
    windows = steps.windows(work.spans)
    return Stage([*inputs, *carried], schema, Order(tuple(keys), by), fold, tables, windows, returned=returned)


def _states(rows: pa.RecordBatch, key: str, mine: Mine | None) -> pa.RecordBatch:
    """Prepare rows of state: without those of the clock, which have no key."""
    rows = rows.filter(rows.column(key).is_valid())
    rows = rows if mine is None else rows.filter(mine(rows))
    at = rows.schema.get_field_index("window_start")
    state_window = rows.column(at)
    return rows.set_column(at, "window_start", pa.nulls(rows.num_rows, pa.string())).append_column(
        "state_window", state_window
    )


def _fold(
    rows: Iterable[pa.RecordBatch], keys: Sequence[str], start: Start, alive: Mapping[tuple[str, str], str]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    for made in fold_batches(rows, keys, start, alive):
        for table in pc.unique(made.column(TABLE)).to_pylist():
            yield table, made.filter(pc.equal(made.column(TABLE), table))


def fold_batches(
    batches: Iterable[pa.RecordBatch], keys: Sequence[str], start: Start, alive: Mapping[tuple[str, str], str]
) -> Iterator[pa.RecordBatch]:
    """Fold `batches`, which are sorted by key and window, with states first, the newest last; the rows of the folds.

    `alive` has, by source and window, the oldest window whose state is alive when the window begins.
    """
    names = (*keys, "window_start")
    places: list[tuple[Any, ...]] = []
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for piece, made in _folded(batches, names, start, alive):
        if made is None or not made.num_rows:
            continue
        places.append(piece.place)
        waiting.append(made)
        rows += made.num_rows
        if rows >= BATCH_ROWS:
            yield _placed(piece.rows.select(names).schema, places, waiting)
            places, waiting, rows = [], [], 0
    if waiting:
        yield _placed(piece.rows.select(names).schema, places, waiting)


def _folded(
    batches: Iterable[pa.RecordBatch], names: Sequence[str], start: Start, alive: Mapping[tuple[str, str], str]
) -> Iterator[tuple[Piece, pa.RecordBatch | None]]:
    """Yield the batches that folds return, each with the piece of rows that it was made from."""
    pieces = (piece for batch in batches for piece in pieces_of(batch, names))
    for key, of_key in groupby(pieces, lambda piece: piece.place[:-1]):
        named = dict(zip(names, key, strict=False))
        fold: KeyFold | None = None
        state: str | None = None
        state_window: str | None = None
        for (*_, window), of_window in groupby(of_key, lambda piece: piece.place):
            if window is None:
                *_, newest = of_window
                state, state_window = (newest.rows.column(name)[-1].as_py() for name in _CARRIED)
                continue
            if state_window is not None and state_window < alive.get((named["source"], window), ""):
                fold = state = None
            for piece in of_window:
                fold = fold or start(named, state)
                yield piece, fold.take(piece.rows)
            if fold is not None:
                yield piece, fold.end_window()
            state_window = window


def _placed(schema: pa.Schema, places: Sequence[tuple[Any, ...]], made: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Concatenate `made`, with the columns of `schema` in front: their values for each batch are in `places`."""
    rows = pa.concat_batches(made)
    whose = pa.array(np.repeat(np.arange(len(made)), [batch.num_rows for batch in made]))
    columns = [
        pa.array(values, type_).take(whose)
        for values, type_ in zip(zip(*places, strict=True), schema.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays([*columns, *rows.columns], [*schema.names, *rows.schema.names])
