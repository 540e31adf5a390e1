"""Files of tables read as Arrow columns by Python tasks: what is made of them there was never a row of the JVM."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from wirehouse_pipelines import arrow_types, delta
from wirehouse_pipelines.lake import Lake
from wirehouse_pipelines.storage import open_storage
from wirehouse_pipelines.tables import Table, all_tables

#: Rows of a batch at most. Of large ones a group of rows has few, and no batch has rows of two groups.
_BATCH_ROWS: Final = 4_096
#: A task reads files of about so many bytes, or one that is larger.
_SHARE_BYTES: Final = 32 << 20

#: The columns that are read of a table, and of a struct the fields of it.
Columns = Mapping[str, Sequence[str]]
Make = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def mapped(
    spark: SparkSession,
    lake: Lake,
    name: str,
    files: Iterable[delta.File],
    columns: Columns,
    make: Make,
    made: StructType | str,
) -> DataFrame:
    """What `make` makes, task by task, of columns of the rows in these files of table `name`."""
    listed = [(json.dumps([file.name for file in share]),) for share in _shares(files)]
    read = partial(_read, lake=lake, name=name, columns=columns, make=make)
    return spark.createDataFrame(listed, "files STRING").repartition(max(1, len(listed))).mapInArrow(read, made)


def _shares(files: Iterable[delta.File]) -> Iterator[list[delta.File]]:
    share: list[delta.File] = []
    for file in files:
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


def rows_of(lake: Lake, table: Table, file: str, columns: Columns) -> Iterator[pa.RecordBatch]:
    """The rows of an object that is a file of `table`; what it lacks of `columns` is null."""
    schema = _chosen(arrow_types.schema(table), columns)
    pairs = (folder.split("=", 1) for folder in file.split("/") if "=" in folder)
    partition = {column: unquote(value) for column, value in pairs}
    stored = {column: fields for column, fields in columns.items() if column not in partition}
    wanted = [".".join(filter(None, (column, field))) for column, fields in stored.items() for field in fields or ("",)]
    with open_storage(lake.root).open(file) as stream, pq.ParquetFile(stream) as parquet:
        for group in range(parquet.num_row_groups):
            for rows in parquet.iter_batches(_BATCH_ROWS, row_groups=[group], columns=wanted):
                yield pa.RecordBatch.from_arrays([_column(rows, field, partition) for field in schema], schema=schema)


def _chosen(schema: pa.Schema, columns: Columns) -> pa.Schema:
    """The fields of `schema` that `columns` tell."""
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
