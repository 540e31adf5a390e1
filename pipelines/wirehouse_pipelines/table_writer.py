"""Files of tables written from Arrow columns, without rows: to where they stay, for a commit that names them."""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from wirehouse_pipelines import arrow_types
from wirehouse_pipelines.storage import Storage
from wirehouse_pipelines.tables import Table

#: As the files that Spark writes.
_COMPRESSION: Final = "zstd"
#: A group of rows has at least so many bytes, but for the last one of a file.
GROUP_BYTES: Final = 16 << 20


def write(
    storage: Storage, folder: str, table: Table, partition: Mapping[str, str], batches: Iterable[pa.RecordBatch]
) -> dict[str, Any] | None:
    """Write a file of `table`, whose folder that is, with rows of one partition; what TableFiles.java tells of one.

    Batches have the columns of the table but those of the partition, maybe others, which are left out. None if there is
    no batch.
    """
    batches = iter(batches)
    first = next(batches, None)
    if first is None:
        return None
    schema = pa.schema([field for field in arrow_types.schema(table) if field.name not in partition])
    path = "/".join([*(f"{name}={value}" for name, value in partition.items()), f"part-{uuid.uuid4()}.parquet"])
    with storage.writer(f"{folder}/{path}") as stream:
        how = {"compression": _COMPRESSION, "write_statistics": list(table.stats), "store_schema": False}
        with pq.ParquetWriter(stream, schema, **how) as writer:
            for group in _groups(chain((first,), batches)):
                columns = [group.column(field.name).cast(field.type) for field in schema]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
        size = stream.tell()
        footer = pq.read_metadata(stream)
    return {"path": path, "size": size, "modified": time.time_ns() // 1_000_000, "stats": _stats(footer)}


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
        "minValues": {name: min(one.min for one in groups) for name, groups in bound.items()},
        "maxValues": {name: max(one.max for one in groups) for name, groups in bound.items()},
        "nullCount": {name: sum(one.null_count for one in groups) for name, groups in found.items()},
    }
