"""Runs from the command line: through Dagster, seen in the shared instance, checked, and failing where they should."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import dagster as dg
import pytest
from dagster import AssetCheckKey, DagsterRunStatus
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from wirehouse_orchestration.dagster import factories, instance, resources, runs
from wirehouse_orchestration.dagster.resources import RunSession
from wirehouse_orchestration.dagster.runs import BeforeStartError, materialize
from wirehouse_pipelines.delta import spark_tables
from wirehouse_pipelines.jobs import planning, runner
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.windows import WindowNameError
from wirehouse_pipelines.landing.landing import land
from wirehouse_pipelines.landing.manifests import manifests
from wirehouse_pipelines.query import sql

DAY = "2023-11-14"
STREAM = Path(__file__).parents[2] / "vectors" / "cardinal" / "h_malformed" / "19_short_keys" / "messages.jsonl"
MakeLake = Callable[..., Lake]


@pytest.fixture
def lake(make_lake: MakeLake) -> Lake:
    return make_lake({"mainnet": (STREAM, {})})


def _count(lake: Lake, table: str) -> int:
    return int(sql.rows(lake, f"SELECT COUNT(*) AS n FROM {table}")["n"][0].as_py())


def test_windows_are_checked_before_anything_starts(lake: Lake) -> None:
    with pytest.raises(WindowNameError, match="2023-11-14T22"):
        materialize(lake, ["bronze.messages"], "2023-11-14T22", DAY)
    with pytest.raises(BeforeStartError, match="2014-12-31"):
        materialize(lake, ["bronze.messages"], "2014-12-31", DAY)


def test_without_data_there_is_nothing_to_do(lake: Lake) -> None:
    assert materialize(lake, list(runner.all_jobs()), DAY, DAY)


@pytest.mark.spark
def test_a_run_fills_the_tables_checks_them_and_shows_in_dagster(lake: Lake, spark: Any) -> None:
    land(lake, lake.sources[0])
    said: list[str] = []
    assert materialize(lake, list(runner.all_jobs()), "2023-11-01", "2023-11-30", progress=said.append)
    assert "bronze.messages: 50 rows written" in said
    assert any("cardinal.key_length_wrong 3" in line for line in said)
    assert (_count(lake, "bronze.messages"), _count(lake, "silver.cardinal_quarantine")) == (50, 3)
    with instance.shared_instance(lake) as shared:
        # Of bronze, and of the protocol.
        assert [run.status for run in shared.get_runs()] == [DagsterRunStatus.SUCCESS] * 2
        key = dg.AssetKey(["silver", "cardinal"])
        assert shared.get_materialized_partitions(key) == {DAY}
        event = shared.get_latest_materialization_event(key)
        assert event is not None
        assert event.asset_materialization is not None
        assert event.asset_materialization.metadata["dagster/row_count"].value == 50
        _findings_are_shown(shared, AssetCheckKey(key, "violations"))


def _findings_are_shown(shared: dg.DagsterInstance, key: AssetCheckKey) -> None:
    record: Any = shared.event_log_storage.get_latest_asset_check_execution_by_key([key])[key]
    evaluation = record.event.dagster_event.event_specific_data
    assert evaluation.passed is False
    assert evaluation.severity is dg.AssetCheckSeverity.WARN
    samples = evaluation.metadata["samples"].records
    assert len(samples) == 3
    assert samples[0].data["rule"] == "cardinal.key_length_wrong"
    assert str(samples[0].data["bytes"]).startswith("wirehouse trace silver.cardinal source=mainnet,capture_id=")


@pytest.mark.spark
def test_what_is_up_to_date_is_not_computed_again_unless_forced(lake: Lake, spark: Any) -> None:
    land(lake, lake.sources[0])
    names = ["bronze.captures", "bronze.messages"]
    assert materialize(lake, names, DAY, DAY)
    versions = DeltaTable(lake.table_path("bronze.messages")).version()
    said: list[str] = []
    assert materialize(lake, names, DAY, DAY, progress=said.append)
    assert "bronze.messages: up to date" in said
    assert DeltaTable(lake.table_path("bronze.messages")).version() == versions
    assert materialize(lake, names, DAY, DAY, force=True)
    assert DeltaTable(lake.table_path("bronze.messages")).version() > versions


@pytest.mark.spark
def test_a_run_lists_captures_once(lake: Lake, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    land(lake, lake.sources[0])
    listed = Mock(wraps=manifests)
    monkeypatch.setattr(planning, "manifests", listed)
    assert materialize(lake, list(runner.all_jobs()), DAY, DAY)
    assert runner.due(lake) == {}
    # By the run, and to ask what is due after it.
    assert listed.call_count == 2


@pytest.mark.spark
def test_an_invariant_that_is_broken_fails_the_run_and_stops_what_follows(
    lake: Lake, spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    land(lake, lake.sources[0])
    assert materialize(lake, ["bronze.messages"], DAY, DAY)
    DeltaTable(lake.table_path("bronze.messages")).delete("record_number = 7")
    said: list[str] = []
    assert not materialize(lake, ["bronze.messages", "silver.cardinal"], DAY, DAY, progress=said.append)
    assert any("invariants" in line and "landed_records_are_rows 1" in line for line in said)
    (failed,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("failed: ")]
    assert failed.startswith(
        f"failed: bronze_messages_checks: bronze.messages breaks landed_records_are_rows (1 row) in {DAY}: "
        f"run `wirehouse backfill --from {DAY} --to {DAY} --table bronze.messages`; if it breaks again"
    )
    assert _count(lake, "silver.cardinal") == 0


@pytest.mark.spark
def test_what_failed_its_checks_is_due_until_it_passes(lake: Lake, spark: Any) -> None:
    land(lake, lake.sources[0])
    runner.run_job(spark, lake, "bronze.messages", DAY, DAY)
    DeltaTable(lake.table_path("bronze.messages")).delete("record_number = 7")
    for _ in range(2):
        assert "bronze.messages" not in runner.stale(lake)
        assert DAY in runner.due(lake)["bronze.messages"]
        assert not materialize(lake, ["bronze.messages"], DAY, DAY)
    assert materialize(lake, ["bronze.messages"], DAY, DAY, force=True)
    assert "bronze.messages" not in runner.due(lake)


def test_windows_whose_tables_were_half_written_are_stale(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if what they are computed from is again what it was before."""
    spark: Any = None
    land(lake, lake.sources[0])
    runner.run_job(spark, lake, "bronze.captures", DAY, DAY)
    assert "bronze.captures" not in runner.stale(lake)
    replaced = spark_tables.replace

    def killed(lake: Lake, name: str, *more: Any) -> None:
        if name == "bronze.findings":
            raise KeyboardInterrupt
        replaced(lake, name, *more)

    with monkeypatch.context() as patched:
        patched.setattr(spark_tables, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            runner.run_job(spark, lake, "bronze.captures", DAY, DAY, force=True)
    assert runner.stale(lake)["bronze.captures"] == {DAY}


@pytest.mark.spark
def test_damaged_captures_are_findings_and_no_fault_of_ours(make_lake: MakeLake, tmp_path: Path, spark: Any) -> None:
    (tmp_path / "in").mkdir()
    data = STREAM.read_bytes()
    (tmp_path / "in" / "a.jsonl").write_bytes(data + b"no message\n")
    (tmp_path / "in" / "b.jsonl.gz").write_bytes(gzip.compress(data)[:-200])
    lake = make_lake({"mainnet": (tmp_path / "in", {})})
    land(lake, lake.sources[0])
    assert materialize(lake, list(runner.all_jobs()), DAY, DAY)
    assert runner.due(lake) == {}
    found = sql.rows(lake, "SELECT record_number FROM gold.violations WHERE rule = 'capture.file_damaged'").to_pylist()
    assert len(found) >= 3
    assert any(row["record_number"] is None for row in found)


@pytest.mark.property
@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            runner.PredecessorMissingError(job="silver.cardinal", window=DAY, source="mainnet", missing="2023-11-13"),
            "silver.cardinal: window 2023-11-14 of source mainnet needs the state of 2023-11-13",
        ),
        (ValueError("first line\nsecond line"), "ValueError: first line"),
    ],
)
def test_a_job_that_fails_says_why_in_one_line(
    lake: Lake,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    line: str,
) -> None:
    def fail(*arguments: Any, **named: Any) -> None:
        raise error

    monkeypatch.setattr(runner, "run_job", fail)
    monkeypatch.setattr(RunSession, "spark", lambda session, records: None)
    land(lake, lake.sources[0])
    assert not materialize(lake, ["bronze.messages", "silver.cardinal"], DAY, DAY)
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"failed: bronze_messages: {line}")


@pytest.mark.property
def test_a_conflict_with_another_writer_is_tried_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[str] = []

    def conflict_once(spark: Any, lake: Lake, name: str, *windows: str, **named: Any) -> runner.JobReport:
        tries.append(name)
        if len(tries) == 1:
            raise CommitFailedError("a concurrent transaction deleted the same data")
        return runner.JobReport(name, (), {})

    monkeypatch.setattr(runner, "run_job", conflict_once)
    monkeypatch.setattr(factories, "CONFLICT_WAIT_SECONDS", 0)
    monkeypatch.setattr(RunSession, "spark", lambda session, records: None)
    land(lake, lake.sources[0])
    materialize(lake, ["bronze.messages"], DAY, DAY)
    assert tries == ["bronze.messages", "bronze.messages"]


@pytest.mark.spark
def test_what_spark_does_is_stopped_whichever_thread_has_it(spark: Any) -> None:
    """Spark itself knows of a session in the thread alone that began it."""
    begun, ended = threading.Event(), threading.Event()

    def stop() -> None:
        begun.wait(10)
        while not ended.wait(0.1):
            resources.stop_jobs()

    stopping = threading.Thread(target=stop)
    stopping.start()
    begun.set()
    try:
        with pytest.raises(Exception, match="cancelled"):
            spark.range(2).selectExpr("reflect('java.lang.Thread', 'sleep', 60000L)").collect()
    finally:
        ended.set()
        stopping.join()


def test_an_interrupt_stops_what_goes_on_beside_it() -> None:
    stopped, begun = threading.Event(), threading.Event()

    def interrupted() -> bool:
        assert begun.wait(10)
        raise KeyboardInterrupt

    def goes_on() -> bool:
        begun.set()
        return stopped.wait(10)

    with pytest.raises(KeyboardInterrupt):
        runs._beside([interrupted, goes_on], stopped)
    assert stopped.is_set()
