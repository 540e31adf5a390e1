"""Writes Arrow batches into Parquet files of tables, in their final place, for a later commit.

`write` writes one file for one partition. TableFiles accepts rows of any partitions. Each returns a **description** per
file: `path` (relative to the table's folder), `size` in bytes, `modified` in milliseconds since 1970, and `stats`,
Delta's statistics. That of a file with carried state has `state`: the digest of its rows, and the greatest value of
`carried_from`. `spark_tables.replace` commits files by their descriptions.
"""

from __future__ import annotations

import io
import sys
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import cache
from itertools import chain
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wirehouse_pipelines.delta import arrow_types, row_digests
from wirehouse_pipelines.delta.batches import pieces_of
from wirehouse_pipelines.storage.storage import Storage
from wirehouse_pipelines.tables import Table

_COMPRESSION: Final = "zstd"
#: A binary column is compressed if a sample of 16 pieces of 4096 bytes shrinks below 95 % of its size.
_PIECES, _PIECE_BYTES, _WORTH = 16, 4096, 0.95
#: Minimum size of a row group, except for the last one of a file; nulls don't count.
GROUP_BYTES: Final = 64 << 20
#: Limit for rows of all partitions that wait to be written; nulls don't count.
WAITING_BYTES: Final = 128 << 20
#: Longer texts are no bounds of a column: every reader of the table's log would read them.
LONGEST_BOUND: Final = 128
#: Limit for files that are open at once.
OPEN_FILES: Final = 32


def write(
    storage: Storage, folder: str, table: Table, partition: Mapping[str, str], batches: Iterable[pa.RecordBatch]
) -> dict[str, Any] | None:
    """Write one file of `table` with rows of one partition; its description, or None if there is no batch.

    `folder` is the table's folder. Batches have the table's columns except those of the partition; columns that the
    table doesn't have are ignored.
    """
    batches = iter(batches)
    first = next(batches, None)
    return None if first is None else _write(storage, folder, table, partition, chain((first,), batches))


def _as_defined(rows: pa.RecordBatch, schema: pa.Schema, times: Mapping[str, str]) -> pa.RecordBatch:
    """`rows` with the columns of `schema`; a column that they lack is null.

    `times` names columns that are computed, each with the column that has it in nanoseconds.
    """
    there = set(rows.schema.names)

    def column(field: pa.Field) -> pa.Array:
        of = times.get(field.name, field.name)
        if of not in there:
            return pa.nulls(rows.num_rows, field.type)
        given = rows.column(of)
        return given.cast(field.type) if of == field.name else pc.divide(given, 1000).cast(field.type)

    return pa.RecordBatch.from_arrays(list(map(column, schema)), schema=schema)


def _times(table: Table) -> dict[str, str]:
    return {column.name: column.time_of for column in table.columns if column.time_of}


class _File:
    """A file of one partition that is being written."""

    def __init__(
        self, storage: Storage, folder: str, table: Table, partition: Mapping[str, str], first: pa.RecordBatch
    ) -> None:
        self._schema = pa.schema([field for field in arrow_types.schema(table) if field.name not in partition])
        self._times = _times(table)
        is_state = table.carried is not None and {*table.carried} <= {*partition.items()}
        self._state: dict[str, Any] | None = {"digest": 0, "carried_from": None} if is_state else None
        self._path = "/".join(
            [*(f"{name}={value}" for name, value in partition.items()), f"part-{uuid.uuid4()}.parquet"]
        )
        with ExitStack() as opening:
            self._stream = opening.enter_context(storage.writer(f"{folder}/{self._path}"))
            how = {
                **_encoding(_as_defined(first, self._schema, self._times)),
                "write_statistics": list(table.stats),
                "store_schema": False,
            }
            self._writer = opening.enter_context(pq.ParquetWriter(self._stream, self._schema, **how))
            self._open = opening.pop_all()

    def add(self, group: pa.RecordBatch | pa.Table) -> None:
        """Write a row group. A Table must have the file's columns already; a batch is converted to them."""
        rows = (
            group
            if isinstance(group, pa.Table)
            else pa.Table.from_batches([_as_defined(group, self._schema, self._times)])
        )
        rows = rows.select(self._schema.names)
        if self._state is not None:
            self._state["digest"] += row_digests.digest_of(rows)
            known = (self._state["carried_from"], pc.max(rows.column("carried_from")).as_py())
            self._state["carried_from"] = max(filter(None, known), default=None)
        self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))

    def close(self) -> dict[str, Any]:
        """Complete the file, which becomes visible; its description."""
        with self._open:
            self._writer.close()
            size, footer = self._stream.tell(), pq.read_metadata(self._stream)
        described = {"path": self._path, "size": size, "modified": time.time_ns() // 1_000_000, "stats": _stats(footer)}
        return described if self._state is None else described | {"state": self._state}

    def give_up(self, *error: Any) -> None:
        """Discard the file because of an error, which is given as the arguments of `__exit__`."""
        self._open.__exit__(*error)


def _write(
    storage: Storage, folder: str, table: Table, partition: Mapping[str, str], batches: Iterable[pa.RecordBatch]
) -> dict[str, Any]:
    groups = _groups(batches)
    first = next(groups)
    file = _File(storage, folder, table, partition, first)
    try:
        for group in chain((first,), groups):
            file.add(group)
        return file.close()
    except BaseException:
        file.give_up(*sys.exc_info())
        raise


class TableFiles:
    """Writes rows of any partitions into files of a table. If its `with` block fails, open files are discarded.

    Rows wait in memory per partition. For a table with an order, each file is sorted as a whole: the rows of a
    partition are written once the waiting rows exceed WAITING_BYTES. For other tables, rows are written as soon as they
    fill a row group, and each partition keeps its file open.
    """

    def __init__(self, storage: Storage, folder: str, table: Table) -> None:
        self._storage, self._folder, self._table = storage, folder, table
        self._schema = arrow_types.schema(table)
        self._times = _times(table)
        self._waiting: defaultdict[tuple[str, ...], list[pa.RecordBatch]] = defaultdict(list)
        self._sizes: Counter[tuple[str, ...]] = Counter()
        self._open: dict[tuple[str, ...], _File] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        for file in self._open.values():
            file.give_up(*error)

    def add(self, rows: pa.RecordBatch) -> Iterator[dict[str, Any]]:
        """Add rows; descriptions of the files that became complete."""
        for piece in pieces_of(_as_defined(rows, self._schema, self._times), self._table.partition_by):
            self._waiting[piece.place].append(_lean(piece.rows))
            self._sizes[piece.place] += _filled_bytes(piece.rows.to_struct_array())
            if not self._table.order and self._sizes[piece.place] >= GROUP_BYTES:
                yield from self._add_group(piece.place)
        while self._sizes.total() > WAITING_BYTES:
            most = max(self._sizes, key=self._sizes.__getitem__)
            if self._table.order:
                yield self._sorted(most)
            else:
                yield from self._add_group(most)

    def finish(self) -> Iterator[dict[str, Any]]:
        """Write all waiting rows and complete the open files; their descriptions."""
        for place in list(self._sizes):
            if self._table.order:
                yield self._sorted(place)
            else:
                yield from self._add_group(place)
        for place in list(self._open):
            yield self._open.pop(place).close()

    def _taken(self, place: tuple[str, ...]) -> list[pa.RecordBatch]:
        del self._sizes[place]
        return self._waiting.pop(place)

    def _partition(self, place: tuple[str, ...]) -> dict[str, str]:
        return dict(zip(self._table.partition_by, place, strict=True))

    def _sorted(self, place: tuple[str, ...]) -> dict[str, Any]:
        rows = pa.Table.from_batches(self._taken(place))
        order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in self._table.order])
        # Usually the rows came in order already.
        rows = rows if np.array_equal(order, np.arange(len(order))) else rows.take(order)
        return _write(self._storage, self._folder, self._table, self._partition(place), rows.to_batches())

    def _add_group(self, place: tuple[str, ...]) -> Iterator[dict[str, Any]]:
        waiting = self._taken(place)
        if place not in self._open:
            if len(self._open) == OPEN_FILES:
                # The file that was opened first is the least likely to get more rows.
                yield self._open.pop(next(iter(self._open))).close()
            self._open[place] = _File(self._storage, self._folder, self._table, self._partition(place), waiting[0])
        self._open[place].add(pa.Table.from_batches(waiting))


def _lean(rows: pa.RecordBatch) -> pa.RecordBatch:
    """`rows` with less memory: columns and fields that are all null share one buffer across batches."""
    columns = [_lean_column(column) for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _lean_column(column: pa.Array) -> pa.Array:
    if column.null_count == len(column):
        return _nulls(column.type, len(column))
    if not pa.types.is_struct(column.type):
        return column
    fields = [column.type.field(at) for at in range(column.type.num_fields)]
    parts = [_lean_column(column.field(at)) for at in range(len(fields))]
    return pa.StructArray.from_arrays(parts, fields=fields, mask=column.is_null())


def _nulls(kind: pa.DataType, count: int) -> pa.Array:
    return _most_nulls(kind, 1 << max(count - 1, 0).bit_length())[:count]


@cache
def _most_nulls(kind: pa.DataType, count: int) -> pa.Array:
    return pa.nulls(count, kind)


def _filled_bytes(column: pa.Array) -> int:
    """Bytes of a column without parts that are all null: these take memory, but no space in a file."""
    if column.null_count == len(column):
        return 0
    if pa.types.is_struct(column.type):
        return sum(_filled_bytes(column.field(at)) for at in range(column.type.num_fields))
    return int(column.nbytes)


def _encoding(group: pa.RecordBatch) -> dict[str, Any]:
    """Encoding options for ParquetWriter, chosen from the first row group.

    64-bit integers and times mostly increase or repeat; stored as differences they take half the space. Binary columns
    that don't compress, such as hashes and signatures, are stored uncompressed.
    """
    paths = _paths(group.schema)
    whole = {field.name for field in group.schema if pa.types.is_int64(field.type) or pa.types.is_timestamp(field.type)}
    binary = (field.name for field in group.schema if pa.types.is_binary(field.type))
    plain = {name for name in binary if not _is_worth_it(group.column(name))}
    return {
        "compression": {path: "NONE" if path in plain else _COMPRESSION for path in paths},
        "use_dictionary": [path for path in paths if path not in plain | whole],
        "column_encoding": dict.fromkeys(whole, "DELTA_BINARY_PACKED"),
    }


def _is_worth_it(column: pa.Array) -> bool:
    """Whether a sample of a binary column shrinks by compression; True if the column is empty."""
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
    """Paths of the Parquet columns of a file with `schema`; structs and lists have one or more each."""
    written = io.BytesIO()
    pq.ParquetWriter(written, schema).close()
    columns = pq.read_metadata(written).schema
    return [columns.column(at).path for at in range(len(columns))]


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Concatenate `batches` into row groups of at least GROUP_BYTES."""
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
    """Delta's statistics from a file's footer.

    A column has bounds only if every row group with values has them, and none is a long text.
    """
    found: defaultdict[str, list[pq.Statistics]] = defaultdict(list)
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            if column.statistics is not None:
                found[column.path_in_schema].append(column.statistics)
    there = {name: [one for one in groups if one.num_values] for name, groups in found.items()}
    bound = {name: groups for name, groups in there.items() if groups and all(map(_is_bound, groups))}
    return {
        "numRecords": footer.num_rows,
        "minValues": {name: min(one.min for one in groups) for name, groups in bound.items()},
        "maxValues": {name: max(one.max for one in groups) for name, groups in bound.items()},
        "nullCount": {name: sum(one.null_count for one in groups) for name, groups in found.items()},
    }


def _is_bound(one: pq.Statistics) -> bool:
    return one.has_min_max and not (isinstance(one.max, str) and max(len(one.min), len(one.max)) > LONGEST_BOUND)
