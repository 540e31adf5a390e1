"""Files of tables written from Arrow columns, without rows: to where they stay, for a commit that names them."""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
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
