"""Runs the SQL of checks over tables of the lake, with the faster engine.

Violations are searched by an aggregate or an anti-join with a small result. Up to `SMALL_ROWS` rows, DataFusion
(deltalake's QueryBuilder) takes a fraction of a second, while a Spark job takes a second or two before it reads
anything. For more rows, Spark is used: it spills to disk where DataFusion would need memory. Both run the same SQL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pandas as pd
from pyspark.sql import SparkSession

from wirehouse_pipelines.delta import ledger, spark_tables
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.query import sql
from wirehouse_pipelines.tables import all_tables

#: With more rows in the range, Spark is used, if there is a session.
SMALL_ROWS = 2_000_000
#: Characters shown of a value in a sample row.
MOST_TEXT = 300
_NAMES = re.compile(r"\b[a-z]+\.[a-z_]+\b")


@dataclass(frozen=True, slots=True)
class Reader:
    """Runs SELECTs, in Spark if `spark` is given, else in DataFusion."""

    lake: Lake
    spark: SparkSession | None = None

    @property
    def explode(self) -> str:
        """The engine's name of the function that returns a row per element of an array."""
        return "explode" if self.spark else "unnest"

    def frame(self, statement: str) -> pd.DataFrame:
        """The rows of `statement`, which must be few; physical tables only."""
        if self.spark is None:
            return sql.rows(self.lake, statement).to_pandas(integer_object_nulls=True)
        for name in set(_NAMES.findall(statement)) & set(all_tables()):
            view = name.replace(".", "__")
            spark_tables.read(self.spark, self.lake, name).createOrReplaceTempView(view)
            statement = re.sub(rf"\b{re.escape(name)}\b", view, statement)
        return self.spark.sql(statement).toPandas()

    def rows(self, statement: str, limit: int) -> list[dict[str, Any]]:
        """The first `limit` rows of `statement`, binary as lower-case hex."""
        frame = self.frame(f"SELECT * FROM ({statement}) AS picked LIMIT {limit}").astype(object)
        return [{str(name): _plain(value) for name, value in row.items()} for row in frame.to_dict("records")]


def reader(lake: Lake, spark: SparkSession | None, table: str, first: str, last: str) -> Reader:
    """The engine for windows `first` to `last` of `table`: Spark only if there is a session and the range is large."""
    entries = ledger.read(lake).values() if spark else ()
    rows = sum(e.rows for e in entries if e.table_name == table and first <= e.window_start <= last)
    return Reader(lake, spark if rows > SMALL_ROWS else None)


def _plain(value: Any) -> Any:
    if isinstance(value, int | float) or value is None:
        # pandas represents null as NaN, which doesn't equal itself.
        return value if value == value else None
    text = value.hex() if isinstance(value, bytes | bytearray) else str(value)
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}…"
