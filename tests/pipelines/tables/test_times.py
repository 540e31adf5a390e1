"""Moments as times: stored in tables of gold, computed in views, the same in both engines."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from wirehouse_pipelines import tables
from wirehouse_pipelines.delta import arrow_types, table_writer
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.query import sql
from wirehouse_pipelines.storage.storage import open_storage
from wirehouse_pipelines.tables import SPARK, Column, all_tables

LEAST, GREATEST = -(2**63), 2**63 - 1
#: Nanoseconds since 1970, and the same in microseconds, without the part of a microsecond.
MOMENTS = {
    0: 0,
    1_700_000_000_123_456_789: 1_700_000_000_123_456,
    GREATEST: GREATEST // 1000,
    -1_999: -1,
    LEAST: -(2**63 // 1000),
    None: None,
}
FOUND, VIOLATIONS = "gold.wallaroo_found", "gold.wallaroo_violations"
LOG, MESSAGES = "silver.wallaroo", "silver.wallaroo_messages"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path), Windows("day", "2015-01-01"))


def _write(lake: Lake, name: str, window: str = "2026-11-14", **given: Any) -> None:
    rows = [{"source": "a", "window_start": window, "arrived_at_ns": moment} | given for moment in MOMENTS]
    table = pa.Table.from_pylist(rows, schema=arrow_types.schema(all_tables()[name]))
    write_deltalake(lake.table_path(name), table)


def _micros(times: pa.ChunkedArray) -> list[int | None]:
    assert times.type == pa.timestamp("us", "UTC")
    return list(times.cast(pa.int64()).to_pylist())


def _times(name: str) -> list[str]:
    return [column.name for column in all_tables()[name].columns if column.time_of]


def test_each_moment_has_a_time_and_durations_have_none() -> None:
    assert _times("gold.ockam_streams_history") == ["first_at", "last_at"]
    assert _times("gold.ockam_streams") == ["window_begin", "first_at", "last_at"]
    assert _times("gold.cardinal_values_history") == ["window_begin", "valid_from_at", "valid_to_at"]
    assert _times("gold.wallaroo_stuck")[:3] == ["window_begin", "refused_since_at", "unacked_since_at"]
    assert _times("gold.hiero_latencies")[-1] == "arrived_at"
    assert not any(_times(name) for name in (LOG, "bronze.captures", "gold.ockam_state"))
    assert {one.time_of for table in all_tables().values() for one in table.columns} >= {"ts_ns", "valid_to_ns"}


def test_a_time_that_is_declared_is_not_computed_again() -> None:
    given = [Column("arrived_at_ns", "BIGINT", ""), Column("arrived_at", "TIMESTAMP", "")]
    assert list(tables._with_times(given, view=False)) == given


def test_tables_of_gold_store_times(lake: Lake, tmp_path: Path) -> None:
    """Also if who writes gives others: they follow from the moments."""
    table = all_tables()[FOUND]
    given = {"source": "a", "window_start": "2026-11-14", "arrived_at": datetime(2000, 1, 1, tzinfo=UTC)}
    rows = [given | {"arrived_at_ns": moment} for moment in MOMENTS]
    batch = pa.RecordBatch.from_pylist(rows, schema=arrow_types.schema(table))
    with table_writer.TableFiles(open_storage(lake.root), lake.table_folder(FOUND), table) as files:
        (file,) = [*files.add(batch), *files.finish()]
    (path,) = tmp_path.rglob("*.parquet")
    assert path.as_posix().endswith(file["path"])
    written = pq.ParquetFile(path).read()
    assert dict(zip(written["arrived_at_ns"].to_pylist(), _micros(written["arrived_at"]), strict=True)) == MOMENTS


@pytest.mark.parametrize(
    ("window", "begin"),
    [
        ("2026-11-14", datetime(2026, 11, 14, tzinfo=UTC)),
        ("2026-11-14T22", datetime(2026, 11, 14, 22, tzinfo=UTC)),
        ("no window", None),
    ],
)
def test_views_compute_times(lake: Lake, window: str, begin: datetime | None) -> None:
    _write(lake, LOG, window, row_kind="message")
    told = sql.rows(lake, f"SELECT arrived_at_ns, arrived_at, window_begin FROM {MESSAGES}")
    assert dict(zip(told["arrived_at_ns"].to_pylist(), _micros(told["arrived_at"]), strict=True)) == MOMENTS
    assert told["window_begin"].type == pa.timestamp("us", "UTC")
    assert set(told["window_begin"].to_pylist()) == {begin}


@pytest.mark.spark
def test_spark_computes_the_same(spark: Any) -> None:
    moments = spark.createDataFrame([(moment,) for moment in MOMENTS], "ns BIGINT")
    told = moments.selectExpr("ns", f"unix_micros({SPARK.of_moment.format('ns')}) AS us").collect()
    assert {row.ns: row.us for row in told} == MOMENTS
    windows = spark.createDataFrame([("2026-11-14",), ("2026-11-14T22",), ("no window",)], "window_start STRING")
    begins = windows.selectExpr("window_start", f"unix_seconds({SPARK.of_window}) AS at").collect()
    day = 1_794_614_400
    assert {row.window_start: row.at for row in begins} == {
        "2026-11-14": day,
        "2026-11-14T22": day + 22 * 3600,
        "no window": None,
    }
