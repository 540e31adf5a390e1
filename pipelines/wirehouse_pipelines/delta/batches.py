"""Cuts Arrow batches into runs of rows that have equal values in some columns, such as the key and the window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any, NamedTuple

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
    columns = [batch.column(name) for name in names]
    # Only the window can be null, in a row of state. Such a row never continues the row before it.
    changes = (pc.fill_null(pc.not_equal(column[1:], column[:-1]), True) for column in columns)
    begins = [0, *pc.add(pc.indices_nonzero(reduce(pc.or_, changes)), 1).to_pylist()]
    places = zip(*(column.take(pa.array(begins)).to_pylist() for column in columns), strict=True)
    for place, (begin, end) in zip(places, pairwise((*begins, batch.num_rows)), strict=True):
        yield Piece(place, batch.slice(begin, end - begin))
