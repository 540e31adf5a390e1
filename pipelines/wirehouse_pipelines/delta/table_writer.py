"""Files of tables written from Arrow columns, without rows: to where they stay, for a commit that names them."""

from __future__ import annotations

import io
import sys
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from decimal import Decimal
from functools import cache
from itertools import chain
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wirehouse_pipelines.delta import arrow_types
from wirehouse_pipelines.delta.batches import pieces_of
from wirehouse_pipelines.storage.storage import Storage
from wirehouse_pipelines.tables import Table

#: As the files that Spark writes.
_COMPRESSION: Final = "zstd"
#: Of a column of bytes so many pieces of so many bytes are compressed to see if it is worth it: to less than that part.
_PIECES, _PIECE_BYTES, _WORTH = 16, 4096, 0.95
#: A group of rows has at least so many bytes, but for the last one of a file; nulls don't count.
GROUP_BYTES: Final = 64 << 20
#: Of rows of any partitions so many bytes wait at most; nulls don't count.
WAITING_BYTES: Final = 128 << 20
#: Files that are open at once at most.
OPEN_FILES: Final = 32


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


def _as_defined(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of `schema`; those that `rows` lack are null."""
    there = set(rows.schema.names)
    columns = [
        rows.column(field.name).cast(field.type) if field.name in there else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class _File:
    """A file that is being written, of rows of one partition."""

    def __init__(
        self, storage: Storage, folder: str, table: Table, partition: Mapping[str, str], first: pa.RecordBatch
    ) -> None:
        self._schema = pa.schema([field for field in arrow_types.schema(table) if field.name not in partition])
        self._path = "/".join(
            [*(f"{name}={value}" for name, value in partition.items()), f"part-{uuid.uuid4()}.parquet"]
        )
        with ExitStack() as opening:
            self._stream = opening.enter_context(storage.writer(f"{folder}/{self._path}"))
            how = {
                **_encoding(_as_defined(first, self._schema)),
                "write_statistics": list(table.stats),
                "store_schema": False,
            }
            self._writer = opening.enter_context(pq.ParquetWriter(self._stream, self._schema, **how))
            self._open = opening.pop_all()

    def add(self, group: pa.RecordBatch | pa.Table) -> None:
        """Write a group of rows; the columns of a Table are those of the file."""
        rows = group if isinstance(group, pa.Table) else pa.Table.from_batches([_as_defined(group, self._schema)])
        self._writer.write_table(rows.select(self._schema.names), row_group_size=max(rows.num_rows, 1))

    def close(self) -> dict[str, Any]:
        """What is said of the file, which is there from now on."""
        with self._open:
            self._writer.close()
            size, footer = self._stream.tell(), pq.read_metadata(self._stream)
        return {"path": self._path, "size": size, "modified": time.time_ns() // 1_000_000, "stats": _stats(footer)}

    def give_up(self, *error: Any) -> None:
        """Leave no file, because of an error."""
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
    """Files of a table with rows of any partitions; used in a `with` block, which leaves none that isn't told of.

    Rows wait until they are a group, of a table with an order until all that wait are many: its files are sorted as a
    whole. Of others each partition keeps its file open.
    """

    def __init__(self, storage: Storage, folder: str, table: Table) -> None:
        self._storage, self._folder, self._table = storage, folder, table
        self._schema = arrow_types.schema(table)
        self._waiting: defaultdict[tuple[str, ...], list[pa.RecordBatch]] = defaultdict(list)
        self._sizes: Counter[tuple[str, ...]] = Counter()
        self._open: dict[tuple[str, ...], _File] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        for file in self._open.values():
            file.give_up(*error)

    def add(self, rows: pa.RecordBatch) -> Iterator[dict[str, Any]]:
        """More rows; of each file that is complete what `write` tells."""
        for piece in pieces_of(_as_defined(rows, self._schema), self._table.partition_by):
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
        """The files that weren't complete before."""
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
        # Mostly they came in order.
        rows = rows if np.array_equal(order, np.arange(len(order))) else rows.take(order)
        return _write(self._storage, self._folder, self._table, self._partition(place), rows.to_batches())

    def _add_group(self, place: tuple[str, ...]) -> Iterator[dict[str, Any]]:
        waiting = self._taken(place)
        if place not in self._open:
            if len(self._open) == OPEN_FILES:
                # The one that was opened first is the likeliest to get no more rows.
                yield self._open.pop(next(iter(self._open))).close()
            self._open[place] = _File(self._storage, self._folder, self._table, self._partition(place), waiting[0])
        self._open[place].add(pa.Table.from_batches(waiting))


def write_all(
    storage: Storage, folder: str, table: Table, batches: Iterable[pa.RecordBatch]
) -> Iterator[dict[str, Any]]:
    """Write files of `table` with rows of any partitions; of each what `write` tells. See TableFiles."""
    with TableFiles(storage, folder, table) as files:
        for batch in batches:
            yield from files.add(batch)
        yield from files.finish()


def _lean(rows: pa.RecordBatch) -> pa.RecordBatch:
    """`rows`, in which parts without any value share one piece of memory with those of other batches."""
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
    """Bytes of a column, but of those parts that have a value: nulls take room in memory, and none in a file."""
    if column.null_count == len(column):
        return 0
    if pa.types.is_struct(column.type):
        return sum(_filled_bytes(column.field(at)) for at in range(column.type.num_fields))
    return int(column.nbytes)


def _encoding(group: pa.RecordBatch) -> dict[str, Any]:
    """How columns are written. Whole numbers mostly rise or stay: as their differences they take half of the bytes.

    Hashes, signatures and the like get no smaller by compression and are written as they are.
    """
    paths = _paths(group.schema)
    whole = {field.name for field in group.schema if pa.types.is_int64(field.type)}
    binary = (field.name for field in group.schema if pa.types.is_binary(field.type))
    plain = {name for name in binary if not _is_worth_it(group.column(name))}
    return {
        "compression": {path: "NONE" if path in plain else _COMPRESSION for path in paths},
        "use_dictionary": [path for path in paths if path not in plain | whole],
        "column_encoding": dict.fromkeys(whole, "DELTA_BINARY_PACKED"),
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
