"""Arrow batches by runs of rows that have equal values in some columns, such as the key and the window."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


class Piece(NamedTuple):
    """Consecutive rows with equal values in some columns; `place` has these values."""

    place: tuple[Any, ...]
    rows: pa.RecordBatch


def pieces_of(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[Piece]:
    """Cut `batch` wherever one of the columns `names` changes."""
    if not batch.num_rows:
        return
    begins = begins_of(batch, names)
    places = zip(*(batch.column(name).take(pa.array(begins)).to_pylist() for name in names), strict=True)
    for place, (begin, end) in zip(places, pairwise((*begins.tolist(), batch.num_rows)), strict=True):
        yield Piece(place, batch.slice(begin, end - begin))


def begins_of(batch: pa.RecordBatch, names: Sequence[str]) -> np.ndarray[Any, Any]:
    """The rows where one of the columns `names` changes, and the first one."""
    if not batch.num_rows:
        return np.zeros(0, np.int64)
    columns = [batch.column(name) for name in names]
    # Only the window can be null, in a row of state. Such a row never continues the row before it.
    changes = (pc.fill_null(pc.not_equal(column[1:], column[:-1]), True) for column in columns)
    return np.concatenate([[0], 1 + np.flatnonzero(np.asarray(reduce(pc.or_, changes)))])


def runs_of(batch: pa.RecordBatch, names: Sequence[str]) -> np.ndarray[Any, Any]:
    """For each row the number of its run: how often one of the columns `names` changed before."""
    begins = begins_of(batch, names)
    return np.repeat(np.arange(len(begins)), np.diff([*begins, batch.num_rows]))


def whole_keys(batches: Iterable[pa.RecordBatch], names: Sequence[str], least: int) -> Iterator[pa.RecordBatch]:
    """Cut and join `batches`, which are sorted by `names`, so that all rows of a key are in one batch.

    A batch has at least `least` rows, except the last one.
    """
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in filter(len, batches):
        # The last key of a batch may go on in the next one.
        last = int(begins_of(batch, names)[-1])
        if rows + last >= least and (last or not waiting or _place(waiting[-1], names, -1) != _place(batch, names, 0)):
            if rows + last:
                waiting.append(batch.slice(0, last))
                yield _joined(waiting)
            rows, batch = 0, batch.slice(last)
        waiting.append(batch)
        rows += batch.num_rows
    if waiting:
        yield _joined(waiting)


def _joined(waiting: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The batches as one. The list is empty then, so that large ones aren't in memory twice."""
    joined = pa.concat_batches(waiting)
    waiting.clear()
    return joined


def _place(batch: pa.RecordBatch, names: Sequence[str], row: int) -> list[Any]:
    return [batch.column(name)[row].as_py() for name in names]


def of_keys(batch: pa.RecordBatch, names: Sequence[str], *masks: pa.Array) -> pa.RecordBatch:
    """The rows of the keys for which each of `masks` is true in some row. `batch` is sorted by `names`, not empty."""
    begins = begins_of(batch, names)
    there = np.all([np.logical_or.reduceat(np.asarray(mask), begins) for mask in masks], axis=0)
    return batch.filter(pa.array(np.repeat(there, np.diff([*begins, batch.num_rows]))))


def with_all(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """`batch` with exactly the columns of `schema`; a column that it lacks is null."""
    there = set(batch.schema.names)
    columns = [batch.column(f.name) if f.name in there else pa.nulls(batch.num_rows, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
