"""The shared instance: begun by one process at a time, and runs of killed processes are ended."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster import DagsterRunStatus
from dagster._core.test_utils import create_run_for_test

from tests.support.processes import started
from wirehouse_orchestration.dagster import instance
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.windows import Windows

SECRET = "5ec2e7" * 8
BEGIN = """
import sys
from wirehouse_orchestration.dagster import instance
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.windows import Windows
with instance.shared_instance(Lake(sys.argv[1], Windows("day", "2026-11-01"))) as shared:
    print(shared.telemetry_enabled, shared.nux_enabled, shared.get_concurrency_config().pool_config.default_pool_limit)
"""
HOLD = """
import sys
from wirehouse_orchestration.dagster import instance
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.windows import Windows
with instance.shared_instance(Lake(sys.argv[1], Windows("day", "2026-11-01"))) as shared:
    with instance.held(shared, sys.argv[2]):
        shared.event_log_storage.initialize_concurrency_limit_to_default("bronze")
        claim = shared.event_log_storage.claim_concurrency_slot("bronze", sys.argv[2], "step")
        print(claim.is_claimed, flush=True)
        sys.stdin.read()
"""


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"), Windows("day", "2026-11-01"))


def _running(code: str, *arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return started([sys.executable, "-c", code, *arguments], **pipes)


@pytest.mark.property
def test_first_starts_at_once_do_not_collide(lake: Lake) -> None:
    with _running(BEGIN, lake.root) as one, _running(BEGIN, lake.root) as two:
        for process in (one, two):
            said, complained = process.communicate(timeout=120)
            assert said == "False False 1\n", complained


def test_settings_that_were_changed_are_kept(lake: Lake) -> None:
    settings = instance.home(lake) / "dagster.yaml"
    settings.write_text("telemetry: {enabled: false}\n")
    instance.home(lake)
    assert settings.read_text() == "telemetry: {enabled: false}\n"


def test_a_database_that_cannot_be_used_is_said(lake: Lake) -> None:
    def break_it() -> None:
        with instance.shared_instance(lake) as shared:
            Path(shared.root_directory, "history", "runs.db").write_bytes(b"not one" * 1000)
            shared.get_runs()

    with pytest.raises(instance.DatabaseError, match=r"\.dagster can't be used: .*; if its disk is full free some"):
        break_it()


@pytest.mark.property
@pytest.mark.parametrize("killed", [True, False], ids=["killed", "left"])
def test_a_run_whose_process_is_gone_is_ended_and_its_place_freed(lake: Lake, killed: bool) -> None:
    with instance.shared_instance(lake) as shared:
        run_id = create_run_for_test(shared, status=DagsterRunStatus.STARTED).run_id
        with _running(HOLD, lake.root, run_id) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "True\n"
            assert instance.end_abandoned_runs(shared) == [], "it lives"
            assert not shared.event_log_storage.claim_concurrency_slot("bronze", "another", "step").is_claimed
            if not killed:
                process.communicate()
        assert instance.end_abandoned_runs(shared) == [run_id]
        run = shared.get_run_by_id(run_id)
        assert run is not None
        assert run.status is DagsterRunStatus.FAILURE
        assert shared.event_log_storage.claim_concurrency_slot("bronze", "another", "step").is_claimed
        assert instance.end_abandoned_runs(shared) == []


@dg.asset_check(asset="table")
def rows() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=False, metadata={"samples": f"said by {SECRET}"})


@dg.asset
def table() -> dg.MaterializeResult[None]:
    return dg.MaterializeResult(metadata={"rows": 7, "captures": SECRET})


def _telling(lake: Lake) -> list[str]:
    history = Path(lake.root, ".dagster", "history")
    return [str(file) for file in history.rglob("*") if file.is_file() and SECRET.encode() in file.read_bytes()]


@pytest.mark.property
def test_what_the_history_tells_of_a_capture_is_erased(lake: Lake) -> None:
    with instance.shared_instance(lake) as shared:
        shared.report_runless_asset_event(dg.AssetMaterialization("landing", metadata={"captures": SECRET}))
        shared.report_runless_asset_event(dg.AssetMaterialization("other", metadata={"captures": "another"}))
        run = dg.materialize([table, rows], instance=shared).run_id
        assert len(_telling(lake)) > 2
        assert instance.erase(shared, SECRET) > 0
        assert instance.erase(shared, SECRET) == 0
        other = shared.get_latest_materialization_event(dg.AssetKey("other"))
        assert other is not None
        assert shared.has_run(run)
        assert any("STEP_SUCCESS" in str(entry.dagster_event) for entry in shared.all_logs(run))
    assert _telling(lake) == []
