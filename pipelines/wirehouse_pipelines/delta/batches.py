"""Batches cut into pieces of one key and window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc


class Piece(NamedTuple):
    """Rows of one key and window, and what stands in these columns."""

    place: tuple[Any, ...]
    rows: pa.RecordBatch


def pieces_of(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[Piece]:
    """The rows of `batch`, cut where the columns `names` change."""
    if not batch.num_rows:
        return
    columns = [batch.column(name) for name in names]
    # The window alone may be null, in a state: what comes after it has another place.
    changes = (pc.fill_null(pc.not_equal(column[1:], column[:-1]), True) for column in columns)
    begins = [0, *pc.add(pc.indices_nonzero(reduce(pc.or_, changes)), 1).to_pylist()]
    places = zip(*(column.take(pa.array(begins)).to_pylist() for column in columns), strict=True)
    for place, (begin, end) in zip(places, pairwise((*begins, batch.num_rows)), strict=True):
        yield Piece(place, batch.slice(begin, end - begin))
