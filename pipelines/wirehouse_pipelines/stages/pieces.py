"""Packs rows into pieces by bucket, and merges the pieces of a bucket into ordered rows.

- A *run* is what a map task has read so far, RUN_BYTES at most. It is sorted by (key, order).
- A *bucket* is a share of all keys: the hash of a key decides on its bucket. One task folds one bucket.
- A *piece* is a part of a run with rows of one bucket, about PIECE_BYTES, as one compressed binary value.

`pack` makes pieces of batches, `merge` ordered batches of pieces. The package's docstring explains why.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_pipelines.delta.batches import with_all
from wirehouse_pipelines.stages.declaration import Order

BUCKET: Final = "bucket"
ROWS: Final = "rows"
#: Size of a run, which is sorted at once; of a piece before compression; and of the rows that a merge waits for.
RUN_BYTES: Final = 64 << 20
PIECE_BYTES: Final = 8 << 20
MERGE_BYTES: Final = 16 << 20
#: Limits of a batch for the fold, which may turn it into Python objects of several times its size.
BATCH_BYTES: Final = 4 << 20
BATCH_ROWS: Final = 20_000
_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


def piece_schema(schema: pa.Schema, order: Order) -> pa.Schema:
    """The columns of pieces whose rows have `schema`."""
    first = [pa.field(name, schema.field(name).type) for name in order.names]
    return pa.schema([pa.field(BUCKET, pa.int32()), *first, pa.field(ROWS, pa.binary())])


def pack(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, order: Order, buckets: int, run_bytes: int = RUN_BYTES
) -> Iterator[pa.RecordBatch]:
    """Pack the rows of `batches` into pieces, one per returned batch. The key decides on the bucket of a row.

    Batches may lack columns of `schema`.
    """
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(with_all(batch, schema))
            size += batch.nbytes
        if size >= run_bytes:
            yield from _pack(waiting, order, buckets)
            waiting, size = [], 0
    if waiting:
        yield from _pack(waiting, order, buckets)


def merge(pieces: Iterable[pa.RecordBatch], schema: pa.Schema, order: Order) -> Iterator[pa.RecordBatch]:
    """Merge the pieces of a bucket, which come in the order of their first rows, into ordered rows in small batches."""
    waiting: list[pa.RecordBatch] = []
    size, enough = 0, MERGE_BYTES
    for batch in pieces:
        for at in range(batch.num_rows):
            if size >= enough:
                rows = _sorted(waiting, order)
                first = _place(batch, order, at)
                # No later piece has a row before the first row of this one, so all waiting rows before it are complete.
                end = bisect_left(range(rows.num_rows), first, key=lambda row: _place(rows, order, row))
                yield from cut(rows.slice(0, end), BATCH_BYTES, BATCH_ROWS)
                waiting = [rows.slice(end)] if end < rows.num_rows else []
                size = sum(each.nbytes for each in waiting)
                # If all runs overlap, no row is complete. Sorting for each piece would take quadratic time, so wait
                # until the rows have doubled.
                enough = max(MERGE_BYTES, 2 * size)
            for part in pa.ipc.open_stream(batch.column(ROWS)[at].as_buffer()):
                waiting.append(with_all(part, schema))
                size += part.nbytes
    if waiting:
        yield from cut(_sorted(waiting, order), BATCH_BYTES, BATCH_ROWS)


def in_order(pieces: Iterable[pa.RecordBatch], order: Order) -> list[pa.RecordBatch]:
    """Sort pieces, one per batch, by their first rows, as Spark does with the pieces of a bucket."""
    return sorted(pieces, key=lambda piece: _place(piece, order, 0))


def cut(rows: pa.RecordBatch, most_bytes: int, most_rows: int) -> Iterator[pa.RecordBatch]:
    """Cut `rows` into slices of at most `most_bytes` and `most_rows`; a larger row is a slice by itself."""
    ends = np.cumsum(_sizes(rows))
    begin = before = 0
    while begin < rows.num_rows:
        end = int(np.searchsorted(ends, before + most_bytes, "right"))
        end = min(max(end, begin + 1), begin + most_rows)
        yield rows.slice(begin, end - begin)
        begin, before = end, int(ends[end - 1])


def _sizes(rows: pa.RecordBatch) -> Any:
    """The approximate size of each row in bytes."""
    return reduce(np.add, map(_value_sizes, rows.columns))


def _value_sizes(values: pa.Array) -> Any:
    kind = values.type
    own = np.full(len(values), 8)
    if pa.types.is_struct(kind):
        return reduce(np.add, map(_value_sizes, values.flatten()), own)
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        ends = np.concatenate(([0], np.cumsum(_value_sizes(values.values))))
        return own + np.diff(ends[np.asarray(values.offsets)])
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        return own + np.asarray(pc.fill_null(pc.binary_length(values), 0))
    return own


def _place(rows: pa.RecordBatch, order: Order, row: int) -> tuple[tuple[bool, Any], ...]:
    """Key and order of a row as a tuple that compares as in Arrow and Spark: nulls first."""
    values = (rows.column(name)[row].as_py() for name in order.names)
    return tuple((value is not None, _bytes(value)) for value in values)


def _bytes(value: Any) -> Any:
    # Arrow and Spark compare texts by their UTF-8 bytes.
    return value.encode() if isinstance(value, str) else value


def _order(rows: pa.RecordBatch, order: Order) -> Any:
    return np.asarray(pc.sort_indices(rows, sort_keys=[(name, "ascending", "at_start") for name in order.names]))


def _sorted(waiting: Sequence[pa.RecordBatch], order: Order) -> pa.RecordBatch:
    rows = pa.concat_batches(waiting)
    at = _order(rows, order)
    # Pieces of a single key are mostly in order already.
    return rows if np.array_equal(at, np.arange(len(at))) else rows.take(pa.array(at))


def _pack(waiting: Sequence[pa.RecordBatch], order: Order, buckets: int) -> Iterator[pa.RecordBatch]:
    rows = pa.concat_batches(waiting)
    at = _order(rows, order)
    bucket = _buckets(rows.select(order.key).take(pa.array(at)), buckets)
    by_bucket = np.argsort(bucket, kind="stable")
    numbers, begins = np.unique(bucket[by_bucket], return_index=True)
    # Columns that are all null are left out.
    there = [name for name in rows.schema.names if rows.column(name).null_count < rows.num_rows]
    rows, first = rows.take(pa.array(at[by_bucket])), piece_schema(rows.schema, order)
    for number, begin, end in zip(numbers, begins, [*begins[1:], rows.num_rows], strict=True):
        for piece in cut(rows.slice(begin, end - begin), PIECE_BYTES, rows.num_rows):
            columns = [piece.column(name).slice(0, 1) for name in order.names]
            packed = [pa.array([number], pa.int32()), *columns, _value(_packed(piece.select(there)))]
            yield pa.RecordBatch.from_arrays(packed, schema=first)


def _buckets(keys: pa.RecordBatch, buckets: int) -> Any:
    """The bucket of each row of `keys`, which are sorted."""
    if buckets == 1:
        return np.zeros(keys.num_rows, np.int32)
    changes = (pc.fill_null(pc.not_equal(column[1:], column[:-1]), True) for column in keys.columns)
    begins = np.concatenate(([0], np.flatnonzero(np.asarray(reduce(pc.or_, changes))) + 1))
    those = zip(*(column.take(pa.array(begins)).to_pylist() for column in keys.columns), strict=True)
    numbers = np.fromiter((crc32(repr(key).encode()) % buckets for key in those), np.int32, len(begins))
    return np.repeat(numbers, np.diff([*begins, keys.num_rows]))


def _packed(rows: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_COMPRESSED) as writer:
        writer.write_batch(rows)
    return sink.getvalue()


def _value(data: pa.Buffer) -> pa.Array:
    """A binary column with `data` as its one value, without a copy."""
    return pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(np.array([0, data.size], np.int32)), data])
