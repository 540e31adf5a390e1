"""Packs many rows into one binary value (Arrow IPC), so that Spark can shuffle them by bucket without reading them.

A shuffle of single rows would convert each one on its way from Python to the JVM and back. Of packed rows it only moves
bytes. A bucket is what one task holds in memory at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final
from zlib import crc32

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

_PACKED: Final = pa.schema([("bucket", pa.int32()), ("rows", pa.binary())])
#: A third of a log's rows is repetition, and the JVM copies what it shuffles several times, so compression pays.
_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="lz4")
DDL: Final = "bucket INT, rows BINARY"
#: Rows are packed once they have this many bytes.
_PACK_BYTES: Final = 32 << 20
#: Limit for the number of buckets: with more, each packed value would have only a few rows.
_MOST: Final = 512


def number(rows: int, each: int, least: int) -> int:
    """The number of buckets for `rows` rows with about `each` rows per bucket, but at least `least`."""
    return max(least, min(rows // each, _MOST))


def together(rows: DataFrame, buckets: int) -> DataFrame:
    """Repartition packed rows so that each bucket is in its own task."""
    return rows.repartitionById(buckets, F.col("bucket"))


#: A text for each row.
Texts = Callable[[pa.RecordBatch], pa.Array]


def pack(batches: Iterable[pa.RecordBatch], by: Texts, buckets: int) -> Iterator[pa.RecordBatch]:
    """Pack the rows of `batches` into buckets. `by` returns a text per row; equal texts are in the same bucket."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= _PACK_BYTES:
            yield from _pack(waiting, by, buckets)
            waiting, size = [], 0
    if waiting:
        yield from _pack(waiting, by, buckets)


def _pack(batches: Sequence[pa.RecordBatch], by: Texts, buckets: int) -> Iterator[pa.RecordBatch]:
    keys = pa.chunked_array(map(by, batches)).combine_chunks().dictionary_encode()
    # Columns without a value take no room.
    there = [name for name in batches[0].schema.names if any(b.column(name).null_count < b.num_rows for b in batches)]
    rows = pa.concat_batches([batch.select(there) for batch in batches])
    of_key = np.array([crc32(key.encode()) % buckets for key in keys.dictionary.to_pylist()], np.int32)
    bucket = of_key[np.asarray(keys.indices)]
    order = np.argsort(bucket, kind="stable")
    numbers, begins = np.unique(bucket[order], return_index=True)
    rows = rows.take(pa.array(order))
    for one, begin, end in zip(numbers, begins, [*begins[1:], rows.num_rows], strict=True):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema, options=_COMPRESSED) as writer:
            writer.write_batch(rows.slice(begin, end - begin))
        data = sink.getvalue()
        value = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(np.array([0, data.size], np.int32)), data])
        yield pa.RecordBatch.from_arrays([pa.array([one], pa.int32()), value], schema=_PACKED)


def unpack(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Unpack `batches` of one bucket into one batch with the columns of `schema`."""
    packed = (data for batch in batches for data in batch.column("rows"))
    pieces = (piece for data in packed for piece in pa.ipc.open_stream(data.as_buffer()))
    nothing = pa.RecordBatch.from_pylist([], schema=schema)
    return pa.concat_batches([nothing, *(with_all(piece, schema) for piece in pieces)])


def with_all(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """`rows` with exactly the columns of `schema`; a column that they lack is null."""
    there = set(rows.schema.names)
    columns = [rows.column(f.name) if f.name in there else pa.nulls(rows.num_rows, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
