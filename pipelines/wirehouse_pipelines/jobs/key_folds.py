"""Key folds in gold: logic that goes through the rows of each key in order of time and keeps state.

A KeyFold is created per key, from the key's state at the end of the window before. It takes the rows of one window
after another, returns rows of gold, and at the end of each window its new state. `by_key` runs such folds in Spark:
rows are partitioned by key and sorted, and a task reads one key after another as a stream of Arrow batches. It holds
one fold and some of the rows made, never all rows of a key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from wirehouse_pipelines.delta.batches import Piece, pieces_of
from wirehouse_pipelines.jobs.job import Work
from wirehouse_pipelines.lake.lake import Source

#: The default columns of the key.
KEYS: Final = ("source", "key")
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


def by_key(
    work: Work,
    state_table: str,
    told: DataFrame,
    order: Sequence[str],
    start: Start,
    schema: pa.Schema,
    *,
    horizon_ns: Callable[[Source], int],
    keys: Sequence[str] = KEYS,
    mine: str = "true",
) -> DataFrame:
    """Fold the rows of `told` by key; the rows that folds return, computed once.

    `told` has the columns `keys`, window_start and those that the fold reads, but no `state`. The columns of `keys` are
    never null and include source. Rows of a key are folded by window and `order`, whose last columns break ties. The
    result has the columns `keys`, window_start and `schema`.

    The state of a key is in the column `state` of its newest living row in `state_table`; `mine` is a SQL condition
    that selects this fold's rows there. The rows with `carried_from` are the table's clock, for `horizon_ns`: a key
    that was silent for longer starts without state.
    """
    newest = Window.partitionBy(*keys).orderBy(F.desc("window_start"))
    if work.before:
        carried = (
            work.read_state(state_table)
            .where(f"carried_from IS NULL AND ({mine})")
            .withColumn("rank", F.row_number().over(newest))
            .where("rank = 1 AND state IS NOT NULL")
            .select(*keys, "state", F.col("window_start").alias("told_in"))
        )
        told = told.unionByName(carried, allowMissingColumns=True)
    else:
        told = told.withColumns({name: F.lit(None).cast("string") for name in ("state", "told_in")})
    # The state of a key comes first, because its window is null.
    ordered = told.repartition(*keys).sortWithinPartitions(*keys, "window_start", *order)
    placed = [told.schema[name] for name in (*keys, "window_start")]
    fold = partial(fold_batches, keys=tuple(keys), start=start, alive=work.alive_before(horizon_ns))
    return work.settle(ordered.mapInArrow(fold, StructType([*placed, *from_arrow_schema(schema).fields])))


def fold_batches(
    batches: Iterable[pa.RecordBatch], keys: Sequence[str], start: Start, alive: Mapping[tuple[str, str], str]
) -> Iterator[pa.RecordBatch]:
    """Fold `batches`, which are sorted by key and window, with the state first; the rows that folds return.

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
        told_in: str | None = None
        for (*_, window), of_window in groupby(of_key, lambda piece: piece.place):
            if told_in is not None and told_in < alive.get((named["source"], window), ""):
                fold = None
            for piece in of_window:
                if fold is None:
                    fold = start(named, piece.rows.column("state")[0].as_py())
                if window is not None:
                    yield piece, fold.take(piece.rows)
            told_in = piece.rows.column("told_in")[0].as_py() if window is None else window
            if fold is not None and window is not None:
                yield piece, fold.end_window()


def _placed(schema: pa.Schema, places: Sequence[tuple[Any, ...]], made: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Concatenate `made`, with the columns of `schema` in front: their values for each batch are in `places`."""
    rows = pa.concat_batches(made)
    whose = pa.array(np.repeat(np.arange(len(made)), [batch.num_rows for batch in made]))
    columns = [
        pa.array(values, type_).take(whose)
        for values, type_ in zip(zip(*places, strict=True), schema.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays([*columns, *rows.columns], [*schema.names, *rows.schema.names])
