"""Delta tables of a lake in Spark: created from their definition, read and replaced by source and window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa
from deltalake import Schema, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from wirehouse_pipelines import arrow_types, delta_tables
from wirehouse_pipelines.lake import Lake
from wirehouse_pipelines.tables import Table, all_tables

#: Whether Delta looks at each row for being in the spans that are replaced.
_CHECK_ROWS = "spark.databricks.delta.replaceWhere.constraintCheck.enabled"


class SourceWindows(Protocol):
    """Consecutive windows of a source."""

    @property
    def source(self) -> str: ...

    @property
    def first(self) -> str: ...

    @property
    def last(self) -> str: ...


def in_spans(spans: Sequence[SourceWindows]) -> str:
    """The SQL condition on the partition columns that `spans` stand for."""
    sources: dict[tuple[str, str], list[str]] = {}
    for span in spans:
        sources.setdefault((span.first, span.last), []).append(f"'{span.source}'")
    return " OR ".join(
        f"(source IN ({', '.join(names)}) AND window_start >= '{first}' AND window_start <= '{last}')"
        for (first, last), names in sources.items()
    )


def exists(lake: Lake, name: str) -> bool:
    """Whether the table was ever written."""
    return delta_tables.exists(lake.table_path(name))


def _create_or_widen(lake: Lake, table: Table) -> None:
    """Create the table, or add the columns that its definition gained. Needs no JVM."""
    comments = {column.name: column.comment for column in table.columns}
    fields = [field.with_metadata({"comment": comments[field.name]}) for field in arrow_types.schema(table)]
    known = delta_tables.opened(lake.table_path(table.name))
    if known is None:
        delta_tables.created(
            lake.table_path(table.name),
            pa.schema(fields),
            partition_by=list(table.partition_by),
            name=table.name,
            description=table.comment,
            configuration={"delta.dataSkippingStatsColumns": ",".join(table.stats)} if table.stats else None,
        )
        return
    present = {field.name for field in known.schema().fields}
    new = [field for field in fields if field.name not in present]
    if new:
        known.alter.add_columns(list(Schema.from_arrow(pa.schema(new)).fields))


def read(spark: SparkSession, lake: Lake, name: str, condition: str) -> DataFrame:
    """Rows of `name` that meet `condition`; an empty frame of its schema if it was never written."""
    if not exists(lake, name):
        return spark.createDataFrame([], all_tables()[name].ddl)
    return spark.read.format("delta").load(lake.table_path(name)).where(condition)


def replace(lake: Lake, name: str, frame: DataFrame | pa.Table, spans: Sequence[SourceWindows]) -> None:
    """Write `frame` in place of all rows of `spans`, in one commit. A pa.Table, for some rows, needs no Spark."""
    table = all_tables()[name]
    _create_or_widen(lake, table)
    if isinstance(frame, pa.Table):
        known = delta_tables.opened(lake.table_path(name))
        assert known is not None  # it was made above
        write_deltalake(known, frame, mode="overwrite", predicate=in_spans(spans))
        return
    ordered = frame.select(*(column.name for column in table.columns))
    if table.order:
        ordered = ordered.sortWithinPartitions(*table.partition_by, *table.order)
    # Rows of bronze are in the windows of the objects that they are read from: nothing is left to check of each.
    ordered.sparkSession.conf.set(_CHECK_ROWS, str(table.layer != "bronze").lower())
    writer = ordered.write.format("delta").mode("overwrite").option("replaceWhere", in_spans(spans))
    writer.save(lake.table_path(name))


def rows_by_window(lake: Lake, name: str) -> dict[tuple[str, str], int]:
    """Rows by (source, window), from the table's log alone."""
    known = delta_tables.opened(lake.table_path(name))
    if known is None:
        return {}
    actions = known.get_add_actions(flatten=True)
    rows: dict[tuple[str, str], int] = {}
    columns = (actions.column(key).to_pylist() for key in ("partition.source", "partition.window_start", "num_records"))
    for source, window, count in zip(*columns, strict=True):
        rows[source, window] = rows.get((source, window), 0) + count
    return rows
