"""Folds by key in gold: the rows of each key in order, behind the state that its windows before left.

Rows come together by key and stand in order; a task reads one key after another as a stream of Arrow batches and holds
what one fold keeps and some rows that were made, never all rows of a key.
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

#: By which rows come together, unless others are told.
KEYS: Final = ("source", "key")
#: Rows made of many keys go on together, about so many.
BATCH_ROWS: Final = 4_096


class KeyFold(ABC):
    """What is known of one key. Rows that it makes have the fold's own columns: key and window are put before them."""

    @abstractmethod
    def take(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        """The key's next rows, all of one window, whose rows may come in several batches; the rows made of them."""

    def end_window(self) -> pa.RecordBatch | None:
        """The rows that a window ends with in which the key had any, such as its state."""
        return None


#: Makes the fold of a key, given its columns, and its state where it has one.
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
    """Rows that folds make of `told` (`keys`, window_start, and what the fold reads, but no `state`), computed once.

    They have `keys`, window_start and the columns of `schema`, which are those of the folds' rows. Rows of a key are
    taken by window and `order`, whose last columns decide between equals. The columns of `keys` are never null; source
    is one of them. State is the column `state` of the newest row of `keys` in `state_table` that is alive; `mine` is
    the condition of this fold's rows there. Rows with `carried_from` are the table's own clock, which is that of
    `horizon_ns`: a key that was silent for longer begins anew.
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
    # The state comes first: it has no window.
    ordered = told.repartition(*keys).sortWithinPartitions(*keys, "window_start", *order)
    placed = [told.schema[name] for name in (*keys, "window_start")]
    fold = partial(fold_batches, keys=tuple(keys), start=start, alive=work.alive_before(horizon_ns))
    return work.settle(ordered.mapInArrow(fold, StructType([*placed, *from_arrow_schema(schema).fields])))


def fold_batches(
    batches: Iterable[pa.RecordBatch], keys: Sequence[str], start: Start, alive: Mapping[tuple[str, str], str]
) -> Iterator[pa.RecordBatch]:
    """Rows that folds make of `batches`, which stand by key, and of each key by window, its state first.

    `alive`: by source and window, the oldest window of which state reaches it.
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
    """What the folds make, each with the piece that it was made at."""
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
    """All rows of `made` as one, behind the columns of `schema`, in which `places` has the values of each."""
    rows = pa.concat_batches(made)
    whose = pa.array(np.repeat(np.arange(len(made)), [batch.num_rows for batch in made]))
    columns = [
        pa.array(values, type_).take(whose)
        for values, type_ in zip(zip(*places, strict=True), schema.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays([*columns, *rows.columns], [*schema.names, *rows.schema.names])
