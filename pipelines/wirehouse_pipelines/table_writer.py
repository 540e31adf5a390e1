"""Files of tables written from Arrow columns, without rows: to where they stay, for a commit that names them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from wirehouse_pipelines import arrow_types
from wirehouse_pipelines.storage import Storage
from wirehouse_pipelines.tables import Table

#: As the files that Spark writes.
_COMPRESSION: Final = "zstd"


def write(
    storage: Storage, folder: str, table: Table, partition: Mapping[str, str], batches: Iterable[pa.RecordBatch]
) -> dict[str, Any] | None:
    """Write a file of `table`, whose folder that is, with rows of one partition; what TableFiles.java tells of one.

    Each batch is a group of rows; it has the columns of the table but those of the partition, maybe others, which are
    left out. None if there is no batch.
    """
    batches = iter(batches)
    first = next(batches, None)
    if first is None:
        return None
    schema = pa.schema([field for field in arrow_types.schema(table) if field.name not in partition])
    path = "/".join([*(f"{name}={value}" for name, value in partition.items()), f"part-{uuid.uuid4()}.parquet"])
    footers: list[pq.FileMetaData] = []
    with storage.writer(f"{folder}/{path}") as stream:
        with pq.ParquetWriter(
            stream,
            schema,
            compression=_COMPRESSION,
            write_statistics=list(table.stats),
            store_schema=False,
            metadata_collector=footers,
        ) as writer:
            for batch in chain((first,), batches):
                columns = [batch.column(field.name).cast(field.type) for field in schema]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
        size = stream.tell()
    return {"path": path, "size": size, "modified": time.time_ns() // 1_000_000, "stats": _stats(footers[0])}


def _stats(footer: pq.FileMetaData) -> dict[str, Any]:
    """Statistics as Delta keeps them, of the columns that have any."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    for column in (group.column(place) for group in groups for place in range(group.num_columns)):
        name, found = column.path_in_schema, column.statistics
        if found is None:
            continue
        nulls[name] = nulls.get(name, 0) + found.null_count
        if found.has_min_max:
            least[name] = min(found.min, least.get(name, found.min))
            most[name] = max(found.max, most.get(name, found.max))
    return {"numRecords": footer.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}
