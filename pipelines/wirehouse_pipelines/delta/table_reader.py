"""Reads files of tables as Arrow columns: `rows_of` all or some rows, `selected` finds out which."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wirehouse_pipelines.delta import arrow_types, delta_tables
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.storage.storage import open_storage
from wirehouse_pipelines.tables import Table

#: A batch has at most this many rows and about this many bytes. The second limit is for row groups that compress well
#: and are large in memory. A batch never has rows of two row groups.
_BATCH_ROWS: Final = 4_096
_BATCH_BYTES: Final = 32 << 20

#: Columns to read and, for a struct, which of its fields (none listed: all). A field of a field is `payload.rule`.
Columns = Mapping[str, Sequence[str]]


def rows_of(
    lake: Lake, table: Table, file: str, columns: Columns, at: np.ndarray[Any, Any] | None = None
) -> Iterator[pa.RecordBatch]:
    """Read `columns` of `file`, an object that is a file of `table`. A column that the file lacks is null.

    `at` selects rows by their numbers in the file (from 0, ascending). Row groups without a selected row are not read.
    """
    schema = chosen(arrow_types.schema(table), columns)
    partition = delta_tables.partition_of(file)
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
        row_group = parquet.metadata.row_group(group)
        end, fit = begin + row_group.num_rows, row_group.num_rows * _BATCH_BYTES // max(row_group.total_byte_size, 1)
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
    return pa.schema((column, _part(schema.field(column).type, fields)) for column, fields in columns.items())


def _part(kind: pa.DataType, fields: Sequence[str]) -> pa.DataType:
    if not fields:
        return kind
    inner: dict[str, list[str]] = {}
    for field in fields:
        name, _, rest = field.partition(".")
        inner.setdefault(name, []).extend([rest] if rest else [])
    return pa.struct([(name, _part(kind.field(name).type, rest)) for name, rest in inner.items()])


def _column(rows: pa.RecordBatch, field: pa.Field, partition: Mapping[str, str]) -> pa.Array:
    if field.name in partition:
        return pa.repeat(pa.scalar(partition[field.name], field.type), rows.num_rows)
    if field.name not in rows.schema.names:
        return pa.nulls(rows.num_rows, field.type)
    return _as(rows.column(field.name), field.type)


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column with this type. A field of a struct that it lacks is null."""
    if not pa.types.is_struct(kind):
        return column.cast(kind)
    there = {one.name for one in column.type}
    fields = [
        _as(pc.struct_field(column, one.name), one.type) if one.name in there else pa.nulls(len(column), one.type)
        for one in kind
    ]
    return pa.StructArray.from_arrays(fields, fields=list(kind), mask=column.is_null())
