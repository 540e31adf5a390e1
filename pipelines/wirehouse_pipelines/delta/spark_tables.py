"""The lake's Delta tables in Spark: created from their definitions, read and replaced by source and window.

Tasks write files to their final place with `table_writer`; `replace` then commits them without a JVM. What no commit
names isn't part of the table, so a killed job leaves unused files and never partial rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame, SparkSession

from wirehouse_pipelines.delta import arrow_types, delta_tables
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.storage.storage import Held
from wirehouse_pipelines.tables import Table, all_tables


class SourceWindows(Protocol):
    """Consecutive windows of a source."""

    @property
    def source(self) -> str: ...

    @property
    def first(self) -> str: ...

    @property
    def last(self) -> str: ...


def in_spans(spans: Sequence[SourceWindows]) -> str:
    """A SQL condition on the partition columns that selects the rows of `spans`."""
    sources: dict[tuple[str, str], list[str]] = {}
    for span in spans:
        sources.setdefault((span.first, span.last), []).append(f"'{span.source}'")
    return " OR ".join(
        f"(source IN ({', '.join(names)}) AND window_start >= '{first}' AND window_start <= '{last}')"
        for (first, last), names in sources.items()
    )


def exists(lake: Lake, name: str) -> bool:
    """Whether the table was ever written. An existing folder is no proof: files come before the commit."""
    return delta_tables.exists(lake.table_path(name))


def _create(lake: Lake, table: Table) -> DeltaTable:
    """Open the table; create it if there is none, and add columns that are new in its definition. Needs no JVM."""
    known = delta_tables.opened(lake.table_path(table.name))
    if known is None:
        known = delta_tables.created(
            lake.table_path(table.name),
            _schema(table),
            partition_by=list(table.partition_by),
            name=table.name,
            description=table.comment,
            configuration=_configuration(table),
        )
    _widen(known, table)
    wanted = _configuration(table)
    if any(known.metadata().configuration.get(name) != value for name, value in wanted.items()):
        known.alter.set_table_properties(wanted)
    return known


def _widen(known: DeltaTable, table: Table) -> None:
    """Add the columns that are new in the table's definition. Needs no JVM."""
    present = {field.name for field in known.schema().fields}
    new = [field for field in _schema(table).fields if field.name not in present]
    if new:
        known.alter.add_columns(new)


def _schema(table: Table) -> Schema:
    comments = {column.name: column.comment for column in table.columns}
    fields = [field.with_metadata({"comment": comments[field.name]}) for field in arrow_types.schema(table)]
    return Schema.from_arrow(pa.schema(fields))


def _configuration(table: Table) -> dict[str, str]:
    """Which columns have bounds, also in files that deltalake writes or compacts."""
    if not table.stats:
        return {"delta.dataSkippingNumIndexedCols": "0"}
    return {"delta.dataSkippingStatsColumns": ",".join(table.stats)}


def read(spark: SparkSession, lake: Lake, name: str, spans: Sequence[SourceWindows] | None = None) -> DataFrame:
    """Rows of table `name` in `spans` (default: all); an empty frame with its schema if there are none.

    The Delta log is read here, and Spark is given the names of files. If Spark read the log, it would run several jobs
    before the first row.
    """
    table = all_tables()[name]
    known = delta_tables.opened(lake.table_path(name))
    files = [f"{lake.table_path(name)}/{unquote(file)}" for file in _files(known, spans)] if known else []
    if not files:
        return spark.createDataFrame([], table.ddl)
    rows = spark.read.schema(table.ddl).option("basePath", lake.table_path(name)).parquet(*files)
    return rows.select(*(column.name for column in table.columns))


def _files(known: DeltaTable, spans: Sequence[SourceWindows] | None, row_kind: str | None = None) -> list[str]:
    """Paths of the table's files with rows of `spans` (default: all), and of `row_kind` if given, as in the log."""
    actions = pa.table(known.get_add_actions(flatten=True))
    if row_kind is not None:
        actions = actions.filter(pc.equal(actions.column("partition.row_kind"), row_kind))
    wanted: dict[str, list[SourceWindows]] = {}
    for span in spans or ():
        wanted.setdefault(span.source, []).append(span)
    columns = (actions.column(key).to_pylist() for key in ("path", "partition.source", "partition.window_start"))
    return [
        file
        for file, source, window in zip(*columns, strict=True)
        if spans is None or any(span.first <= window <= span.last for span in wanted.get(source, ()))
    ]


class File(NamedTuple):
    """A file of a table, as an object of the lake's storage."""

    name: str
    size_bytes: int
    rows: int


def files(lake: Lake, name: str, spans: Sequence[SourceWindows], row_kind: str | None = None) -> list[File]:
    """The files of table `name` with rows of `spans`, and of `row_kind` if given. Reads only the table's log."""
    known = delta_tables.opened(lake.table_path(name))
    if known is None:
        return []
    actions = pa.table(known.get_add_actions(flatten=True))
    columns = (actions.column(key).to_pylist() for key in ("path", "size_bytes", "num_records"))
    statistics = {path: numbers for path, *numbers in zip(*columns, strict=True)}
    folder = lake.table_folder(name)
    return [File(f"{folder}/{unquote(path)}", *statistics[path]) for path in _files(known, spans, row_kind)]


#: Descriptions of files that `table_writer` has written.
Files = Sequence[Mapping[str, Any]]


def replace(
    lake: Lake, name: str, rows: Files | pa.Table, spans: Sequence[SourceWindows], held: Held = lambda: None
) -> None:
    """Replace all rows of `spans` in table `name` by `rows`, in one commit.

    Small results are a pa.Table, others are in files already. The commit needs no JVM: Delta's own replacement runs
    several Spark jobs even for a few rows. `held` checks the writer's lock before each attempt to commit.
    """
    table, path = all_tables()[name], lake.table_path(name)
    known = _create(lake, table)
    if isinstance(rows, pa.Table):
        held()
        write_deltalake(known, rows, mode="overwrite", predicate=in_spans(spans))
        return
    delta_tables.swap(path, [_added(table, file) for file in rows], partial(_files, spans=spans), held)


def _added(table: Table, file: Mapping[str, Any]) -> AddAction:
    """The log entry that adds a file of `table_writer`, with the statistics the table wants."""
    stats = {"numRecords": file["stats"]["numRecords"]}
    for kind in ("minValues", "maxValues", "nullCount"):
        stats[kind] = {name: value for name, value in file["stats"][kind].items() if name in table.stats}
    partition = delta_tables.partition_of(file["path"])
    return AddAction(file["path"], file["size"], partition, file["modified"], True, json.dumps(stats))


def delete(lake: Lake, name: str, condition: str) -> None:
    """Delete the rows of table `name` that meet a SQL condition, if the table was ever written. Needs no JVM."""
    if known := delta_tables.opened(lake.table_path(name)):
        known.delete(condition)


def rows_by_window(lake: Lake, name: str) -> dict[tuple[str, str], int]:
    """The number of rows by (source, window). Reads only the table's log."""
    known = delta_tables.opened(lake.table_path(name))
    if known is None:
        return {}
    actions = known.get_add_actions(flatten=True)
    rows: dict[tuple[str, str], int] = {}
    columns = (actions.column(key).to_pylist() for key in ("partition.source", "partition.window_start", "num_records"))
    for source, window, count in zip(*columns, strict=True):
        rows[source, window] = rows.get((source, window), 0) + count
    return rows
