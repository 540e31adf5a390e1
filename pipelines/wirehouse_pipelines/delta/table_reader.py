"""Reads files of tables as Arrow columns in Spark's Python tasks. The rows never pass through the JVM.

`mapped` applies a function to all rows of some files, `picked` to some rows that were located before, and `rows_of`
reads one file in this process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from wirehouse_pipelines.delta import arrow_types, spark_tables
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.storage.storage import open_storage
from wirehouse_pipelines.tables import Table, all_tables

#: A batch has at most this many rows and about this many bytes. The second limit is for row groups that compress well
#: and are large in memory. A batch never has rows of two row groups.
_BATCH_ROWS: Final = 4_096
_BATCH_BYTES: Final = 32 << 20
#: A task reads files of about this size in all, or one larger file.
_SHARE_BYTES: Final = 32 << 20

#: Columns to read and, for a struct, which of its fields (none listed: all).
Columns = Mapping[str, Sequence[str]]
Make = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def mapped(
    spark: SparkSession,
    lake: Lake,
    name: str,
    files: Iterable[spark_tables.File],
    columns: Columns,
    make: Make,
    made: StructType | str,
) -> DataFrame:
    """Apply `make` in Spark tasks to `columns` of the rows in these files of table `name`. `made` is its schema."""
    listed = [(number, json.dumps([file.name for file in share])) for number, share in enumerate(_shares(files))]
    read = partial(_read, lake=lake, name=name, columns=columns, make=make)
    shares = spark.createDataFrame(listed, "share INT, files STRING")
    return shares.repartitionById(max(1, len(listed)), F.col("share")).mapInArrow(read, made)


def picked(
    lake: Lake, name: str, places: DataFrame, columns: Columns, make: Make, made: StructType | str, tasks: int
) -> DataFrame:
    """Apply `make` in `tasks` Spark tasks to `columns` of the rows of table `name` that are located at `places`.

    `places` has the columns FILE and ROW of `spark_tables.read`. To find a few rows by a key, Spark reads only the key
    and these two columns; the other columns are read here, for the rows that were found.
    """
    of_file = places.groupBy(spark_tables.FILE).agg(F.collect_list(spark_tables.ROW).alias("rows"))
    read = partial(_pick, lake=lake, name=name, columns=columns, make=make)
    return of_file.repartition(tasks, spark_tables.FILE).mapInArrow(read, made)


def _shares(files: Iterable[spark_tables.File]) -> Iterator[list[spark_tables.File]]:
    share: list[spark_tables.File] = []
    # Large files first: a large one that starts last would delay the end.
    for file in sorted(files, key=lambda file: file.size_bytes, reverse=True):
        if share and sum(one.size_bytes for one in [*share, file]) > _SHARE_BYTES:
            yield share
            share = []
        share.append(file)
    if share:
        yield share


def _read(
    batches: Iterable[pa.RecordBatch], lake: Lake, name: str, columns: Columns, make: Make
) -> Iterator[pa.RecordBatch]:
    files = (file for batch in batches for listed in batch.column("files").to_pylist() for file in json.loads(listed))
    yield from make(rows for file in files for rows in rows_of(lake, all_tables()[name], file, columns))


def _pick(
    batches: Iterable[pa.RecordBatch], lake: Lake, name: str, columns: Columns, make: Make
) -> Iterator[pa.RecordBatch]:
    table, folder = all_tables()[name], lake.table_folder(name)
    places = (
        # Spark escapes addresses of files.
        (folder + unquote(address).rpartition(folder)[2], np.sort(rows.values.to_numpy()))
        for batch in batches
        for address, rows in zip(batch.column(spark_tables.FILE).to_pylist(), batch.column("rows"), strict=True)
    )
    yield from make(rows for file, at in places for rows in rows_of(lake, table, file, columns, at))


def rows_of(
    lake: Lake, table: Table, file: str, columns: Columns, at: np.ndarray[Any, Any] | None = None
) -> Iterator[pa.RecordBatch]:
    """Read `columns` of `file`, an object that is a file of `table`. A column that the file lacks is null.

    `at` selects rows by their numbers in the file (from 0, ascending). Row groups without a selected row are not read.
    """
    schema = chosen(arrow_types.schema(table), columns)
    pairs = (folder.split("=", 1) for folder in file.split("/") if "=" in folder)
    partition = {column: unquote(value) for column, value in pairs}
    stored = {column: fields for column, fields in columns.items() if column not in partition}
    wanted = [".".join(filter(None, (column, field))) for column, fields in stored.items() for field in fields or ("",)]
    with open_storage(lake.root).open(file) as stream, pq.ParquetFile(stream) as parquet:
        for rows in _stored(parquet, wanted, at):
            yield pa.RecordBatch.from_arrays([_column(rows, field, partition) for field in schema], schema=schema)


def selected(
    lake: Lake, table: Table, file: str, columns: Columns, mask: Callable[[pa.RecordBatch], pa.Array]
) -> np.ndarray[Any, Any]:
    """The numbers of the rows of `file` that `mask` selects by `columns`, for `rows_of`."""
    found, begin = [np.empty(0, np.int64)], 0
    for rows in rows_of(lake, table, file, columns):
        found.append(begin + np.flatnonzero(np.asarray(mask(rows))))
        begin += rows.num_rows
    return np.concatenate(found)


def _stored(
    parquet: pq.ParquetFile, columns: Sequence[str], at: np.ndarray[Any, Any] | None
) -> Iterator[pa.RecordBatch]:
    begin = 0
    for group in range(parquet.num_row_groups):
        told = parquet.metadata.row_group(group)
        end, fit = begin + told.num_rows, told.num_rows * _BATCH_BYTES // max(told.total_byte_size, 1)
        if at is None or _between(at, begin, end).size:
            for rows in parquet.iter_batches(min(max(fit, 1), _BATCH_ROWS), row_groups=[group], columns=columns):
                here = None if at is None else _between(at, begin, begin + rows.num_rows)
                if here is None:
                    yield rows
                elif here.size:
                    yield rows.take(pa.array(here - begin))
                begin += rows.num_rows
        begin = end


def _between(at: np.ndarray[Any, Any], first: int, end: int) -> np.ndarray[Any, Any]:
    """The row numbers in `at` (ascending) from `first` on and before `end`."""
    found: np.ndarray[Any, Any] = at[slice(*np.searchsorted(at, (first, end)))]
    return found


def chosen(schema: pa.Schema, columns: Columns) -> pa.Schema:
    """The part of `schema` that `columns` selects."""
    types = {
        column: pa.struct([schema.field(column).type.field(field) for field in fields])
        if fields
        else schema.field(column).type
        for column, fields in columns.items()
    }
    return pa.schema(types.items())


def _column(rows: pa.RecordBatch, field: pa.Field, partition: Mapping[str, str]) -> pa.Array:
    if field.name in partition:
        return pa.repeat(pa.scalar(partition[field.name], field.type), rows.num_rows)
    if field.name not in rows.schema.names:
        return pa.nulls(rows.num_rows, field.type)
    column = rows.column(field.name)
    if not pa.types.is_struct(field.type):
        return column.cast(field.type)
    there = {one.name for one in column.type}
    fields = [
        pc.struct_field(column, one.name).cast(one.type) if one.name in there else pa.nulls(len(column), one.type)
        for one in field.type
    ]
    return pa.StructArray.from_arrays(fields, fields=list(field.type))
