"""Files of tables written from Arrow columns, without rows: to where they stay, for a commit that names them."""

from __future__ import annotations

import io
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from functools import cache
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wirehouse_pipelines import arrow_types
from wirehouse_pipelines.keyed_folds import pieces_of
from wirehouse_pipelines.storage import Storage
from wirehouse_pipelines.tables import Table

#: As the files that Spark writes.
_COMPRESSION: Final = "zstd"
#: Of a column of bytes so many pieces of so many bytes are compressed to see if it is worth it: to less than that part.
_PIECES, _PIECE_BYTES, _WORTH = 16, 4096, 0.95
#: A group of rows has at least so many bytes, but for the last one of a file.
GROUP_BYTES: Final = 16 << 20
#: Of rows of any partitions so many bytes wait at most.
WAITING_BYTES: Final = 64 << 20


def write(
    storage: Storage, folder: str, table: Table, partition: Mapping[str, str], batches: Iterable[pa.RecordBatch]
) -> dict[str, Any] | None:
    """Write a file of `table`, whose folder that is, with rows of one partition; what TableFiles.java tells of one.

    Batches have the columns of the table but those of the partition, maybe others, which are left out. None if there is
    no batch.
    """
    batches = iter(batches)
    first = next(batches, None)
    return None if first is None else _write(storage, folder, table, partition, chain((first,), batches))


def _write(
    storage: Storage, folder: str, table: Table, partition: Mapping[str, str], batches: Iterable[pa.RecordBatch]
) -> dict[str, Any]:
    schema = pa.schema([field for field in arrow_types.schema(table) if field.name not in partition])
    path = "/".join([*(f"{name}={value}" for name, value in partition.items()), f"part-{uuid.uuid4()}.parquet"])
    groups = (
        pa.RecordBatch.from_arrays([group.column(field.name).cast(field.type) for field in schema], schema=schema)
        for group in _groups(batches)
    )
    first = next(groups)
    with storage.writer(f"{folder}/{path}") as stream:
        how = {**_compression(first), "write_statistics": list(table.stats), "store_schema": False}
        with pq.ParquetWriter(stream, schema, **how) as writer:
            for group in chain((first,), groups):
                writer.write_batch(group)
        size = stream.tell()
        footer = pq.read_metadata(stream)
    return {"path": path, "size": size, "modified": time.time_ns() // 1_000_000, "stats": _stats(footer)}


def write_all(
    storage: Storage, folder: str, table: Table, batches: Iterable[pa.RecordBatch]
) -> Iterator[dict[str, Any]]:
    """Write files of `table` with rows of any partitions, each in the table's order; of each what `write` tells.

    Rows wait until there are many bytes of them; then those of the partition that has most become a file.
    """
    waiting: defaultdict[tuple[str, ...], list[pa.RecordBatch]] = defaultdict(list)
    sizes: Counter[tuple[str, ...]] = Counter()

    def written(place: tuple[str, ...]) -> dict[str, Any]:
        rows = pa.Table.from_batches(waiting.pop(place))
        del sizes[place]
        order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in table.order])
        # Mostly they came in order.
        rows = rows if np.array_equal(order, np.arange(len(order))) else rows.take(order)
        partition = dict(zip(table.partition_by, place, strict=True))
        return _write(storage, folder, table, partition, rows.to_batches())

    for batch in batches:
        for piece in pieces_of(batch, table.partition_by):
            waiting[piece.place].append(piece.rows)
            sizes[piece.place] += piece.rows.nbytes
        while sizes.total() > WAITING_BYTES:
            yield written(max(sizes, key=sizes.__getitem__))
    for place in list(sizes):
        yield written(place)


def _compression(group: pa.RecordBatch) -> dict[str, Any]:
    """How columns are compressed. Hashes, signatures and the like are written as they are: they get no smaller."""
    binary = (field.name for field in group.schema if pa.types.is_binary(field.type))
    plain = {name for name in binary if not _is_worth_it(group.column(name))}
    if not plain:
        return {"compression": _COMPRESSION}
    paths = _paths(group.schema)
    return {
        "compression": {path: "NONE" if path in plain else _COMPRESSION for path in paths},
        "use_dictionary": [path for path in paths if path not in plain],
    }


def _is_worth_it(column: pa.Array) -> bool:
    """Whether bytes get smaller; without any it doesn't matter."""
    if not len(column):
        return True
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset :][: len(column) + 1]
    first, last = int(ends[0]), int(ends[-1])
    pieces = {int(at) for at in np.linspace(first, max(last - _PIECE_BYTES, first), _PIECES)}
    sample = b"".join(data[at : min(at + _PIECE_BYTES, last)] for at in sorted(pieces)) if last > first else b""
    return not sample or len(pa.compress(sample, _COMPRESSION, asbytes=True)) < _WORTH * len(sample)


@cache
def _paths(schema: pa.Schema) -> list[str]:
    """The columns of a file, those of structs and lists by their paths."""
    written = io.BytesIO()
    pq.ParquetWriter(written, schema).close()
    columns = pq.read_metadata(written).schema
    return [columns.column(at).path for at in range(len(columns))]


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """`batches`, small ones put together."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= GROUP_BYTES:
            yield pa.concat_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.concat_batches(waiting)


def _stats(footer: pq.FileMetaData) -> dict[str, Any]:
    """Statistics as Delta keeps them, of the columns that have any; bounds of those of which each group has them."""
    found: defaultdict[str, list[pq.Statistics]] = defaultdict(list)
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            if column.statistics is not None:
                found[column.path_in_schema].append(column.statistics)
    there = {name: [one for one in groups if one.num_values] for name, groups in found.items()}
    bound = {name: groups for name, groups in there.items() if groups and all(one.has_min_max for one in groups)}
    return {
        "numRecords": footer.num_rows,
        "minValues": {name: _as_json(min(one.min for one in groups)) for name, groups in bound.items()},
        "maxValues": {name: _as_json(max(one.max for one in groups)) for name, groups in bound.items()},
        "nullCount": {name: sum(one.null_count for one in groups) for name, groups in found.items()},
    }


def _as_json(bound: Any) -> Any:
    """Of decimals tables have whole numbers alone."""
    return int(bound) if isinstance(bound, Decimal) else bound
