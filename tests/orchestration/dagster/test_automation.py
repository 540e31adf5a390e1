"""Sensors and the schedule, asked as the daemon asks them; no JVM."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterInstance, DagsterRunStatus, build_schedule_context, build_sensor_context
from dagster._core.test_utils import create_run_for_test

from wirehouse_orchestration.dagster.assembly import assemble
from wirehouse_orchestration.dagster.defs import automation
from wirehouse_orchestration.dagster.factories import asked_windows
from wirehouse_pipelines.delta import ledger
from wirehouse_pipelines.jobs import runner
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.landing import capture_files
from wirehouse_pipelines.landing.landing import land

STREAM = Path(__file__).parents[2] / "vectors" / "cardinal" / "d2_equal_weight" / "messages.jsonl"
DAY_NS = 24 * 3600 * 10**9


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    (tmp_path / "inbox").mkdir()
    return Lake(
        str(tmp_path / "lake"),
        Windows("day", "2015-01-01"),
        (Source("mainnet", "cardinal", "messages", str(tmp_path / "inbox"), {}),),
    )


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    with DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


def _put(lake: Lake, name: str, days: int = 0, age_seconds: float = 60) -> Path:
    """A capture in the source's place, its messages so many days later."""
    place = Path(lake.sources[0].path, name)
    lines = [json.loads(line) for line in STREAM.read_text().splitlines()]
    for line in lines:
        line["timestamp_ms"] += days * 24 * 3600 * 1000
    place.write_text("".join(json.dumps(line) + "\n" for line in lines))
    then = time.time() - age_seconds
    os.utime(place, (then, then))
    return place


def _asked(
    lake: Lake, instance: DagsterInstance, sensor: str, cursor: str | None = None
) -> tuple[list[dg.RunRequest], str, str | None]:
    """What a sensor asks for, why it doesn't, and its cursor afterwards."""
    definition = assemble(lake).resolve_sensor_def(sensor)
    result = definition.evaluate_tick(build_sensor_context(instance=instance, cursor=cursor))
    return list(result.run_requests or ()), result.skip_message or "", result.cursor


def _commit(lake: Lake) -> None:
    """As if every stale window had been computed and checked."""
    while stale := runner.stale(lake):
        _commit_once(lake, stale)
    for name in runner.all_jobs():
        runner.pass_checks(lake, name, "0", "9")


def _commit_once(lake: Lake, stale: dict[str, set[str]]) -> None:
    ahead = {name: job for name, job in runner.all_jobs().items() if name in stale}
    name = next(name for name, job in ahead.items() if not set(job.reads) & set(ahead))
    plans = runner.planner(lake).plan(ahead[name])
    entries = [
        ledger.Entry(table, source, window, plans.digest(source, window), "s", "s", window, 0, "1", time.time_ns())
        for source in plans.inputs
        for window in plans.inputs[source]
        for table in ahead[name].outputs
    ]
    ledger.commit(lake, entries)


def test_a_new_file_is_asked_to_be_landed_once(lake: Lake, instance: DagsterInstance) -> None:
    _put(lake, "a.jsonl")
    requests, _, cursor = _asked(lake, instance, "new_captures")
    assert [request.asset_selection for request in requests] == [[dg.AssetKey(["landing", "mainnet"])]]
    requests, skipped, _ = _asked(lake, instance, "new_captures", cursor)
    assert requests == []
    assert "new captures" in skipped


def test_a_second_file_is_another_request(lake: Lake, instance: DagsterInstance) -> None:
    _put(lake, "a.jsonl")
    (first,), _, cursor = _asked(lake, instance, "new_captures")
    _put(lake, "b.jsonl", days=1)
    (second,), _, _ = _asked(lake, instance, "new_captures", cursor)
    assert first.run_key != second.run_key


def test_what_the_command_landed_is_not_asked_for(
    lake: Lake, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if it had stood still before it was landed.
    monkeypatch.setattr(capture_files, "_RACY_SECONDS", -1)
    _put(lake, "a.jsonl")
    land(lake, lake.sources[0])
    assert _asked(lake, instance, "new_captures")[0] == []
    _put(lake, "a.jsonl", days=1)
    assert len(_asked(lake, instance, "new_captures")[0]) == 1


@pytest.mark.property
@pytest.mark.parametrize("name", [".hidden.jsonl", "a.jsonl.part", "a.tmp"])
def test_files_being_written_by_name_are_left(lake: Lake, instance: DagsterInstance, name: str) -> None:
    _put(lake, name)
    assert _asked(lake, instance, "new_captures")[0] == []


def test_a_file_that_changed_just_now_is_left(lake: Lake, instance: DagsterInstance) -> None:
    _put(lake, "a.jsonl", age_seconds=3)
    assert _asked(lake, instance, "new_captures")[0] == []


def test_a_place_that_is_gone_is_said_so_and_stops_nothing(lake: Lake, instance: DagsterInstance) -> None:
    shutil.rmtree(lake.sources[0].path)
    requests, skipped, _ = _asked(lake, instance, "new_captures")
    assert requests == []
    assert "does not exist" in skipped


def test_the_windows_that_landing_touched_are_asked_for(lake: Lake, instance: DagsterInstance) -> None:
    _put(lake, "a.jsonl")
    _put(lake, "b.jsonl", days=2)
    land(lake, lake.sources[0])
    (request,), _, _ = _asked(lake, instance, "stale_windows")
    assert asked_windows(request.tags) == ("2023-11-14", "2023-11-16")
    assert dg.AssetKey(["bronze", "messages"]) in (request.asset_selection or ())
    assert dg.AssetKey(["gold", "cardinal_batches_history"]) in (request.asset_selection or ())
    assert request.tags[automation.COMPUTES_TAG] == lake.root


def test_windows_far_apart_are_asked_for_one_after_the_other(lake: Lake, instance: DagsterInstance) -> None:
    _put(lake, "a.jsonl")
    _put(lake, "b.jsonl", days=300)
    land(lake, lake.sources[0])
    requests, _, _ = _asked(lake, instance, "stale_windows")
    assert [asked_windows(request.tags) for request in requests] == [
        ("2023-11-14", "2023-11-14"),
        ("2024-09-09", "2024-09-09"),
    ]


@pytest.mark.property
def test_what_is_up_to_date_is_not_asked_for(lake: Lake, instance: DagsterInstance) -> None:
    _put(lake, "a.jsonl")
    land(lake, lake.sources[0])
    _commit(lake)
    requests, skipped, _ = _asked(lake, instance, "stale_windows")
    assert requests == []
    assert skipped == "All windows are up to date"


@pytest.mark.property
def test_a_late_file_asks_for_its_window_again(lake: Lake, instance: DagsterInstance) -> None:
    _put(lake, "a.jsonl")
    _put(lake, "c.jsonl", days=2)
    land(lake, lake.sources[0])
    _commit(lake)
    _put(lake, "late.jsonl", days=1)
    land(lake, lake.sources[0])
    (request,), _, _ = _asked(lake, instance, "stale_windows")
    assert (asked_windows(request.tags) or ("", ""))[0] == "2023-11-15"


@pytest.mark.property
def test_the_same_cause_has_the_same_key_and_another_cause_another(lake: Lake, instance: DagsterInstance) -> None:
    _put(lake, "a.jsonl")
    land(lake, lake.sources[0])
    keys = [_asked(lake, instance, "stale_windows")[0][0].run_key for _ in range(2)]
    _put(lake, "b.jsonl")
    Path(lake.sources[0].path, "b.jsonl").write_text(STREAM.read_text().splitlines()[0] + "\n")
    land(lake, lake.sources[0])
    keys.append(_asked(lake, instance, "stale_windows")[0][0].run_key)
    assert keys[0] == keys[1] != keys[2]


def test_nothing_is_asked_for_while_windows_are_computed(lake: Lake, instance: DagsterInstance) -> None:
    _put(lake, "a.jsonl")
    land(lake, lake.sources[0])
    run = create_run_for_test(instance, status=DagsterRunStatus.STARTED, tags={automation.COMPUTES_TAG: lake.root})
    requests, skipped, _ = _asked(lake, instance, "stale_windows")
    assert requests == []
    assert run.run_id in skipped


def _scheduled(lake: Lake, hour: int) -> list[dg.RunRequest]:
    at = datetime(2026, 11, 14, hour, 7, tzinfo=UTC)
    schedule = assemble(lake).resolve_schedule_def("newest_window")
    # The context of a schedule takes no instance that lives in memory alone.
    with DagsterInstance.local_temp(lake.root) as instance:
        result = schedule.evaluate_tick(build_schedule_context(instance=instance, scheduled_execution_time=at))
    return list(result.run_requests or ())


@pytest.mark.property
def test_the_schedule_asks_for_the_newest_window_and_the_stale_ones_before(lake: Lake) -> None:
    _put(lake, "a.jsonl")
    _put(lake, "b.jsonl", days=1)
    land(lake, lake.sources[0])
    (request,) = _scheduled(lake, 1)
    assert asked_windows(request.tags) == ("2023-11-14", "2023-11-15")


@pytest.mark.property
def test_the_schedule_asks_again_for_what_failed(lake: Lake) -> None:
    _put(lake, "a.jsonl")
    land(lake, lake.sources[0])
    (first,), (second,) = _scheduled(lake, 1), _scheduled(lake, 2)
    assert first.run_key != second.run_key


def test_spans_join_what_is_near() -> None:
    lake = Lake("", Windows("hour", "2026-11-01T00"))
    windows = ["2026-11-01T00", "2026-11-01T01", "2026-11-01T15", "2026-11-03T00"]
    assert automation.spans(lake, reversed(windows)) == [
        ("2026-11-01T00", "2026-11-01T15"),
        ("2026-11-03T00", "2026-11-03T00"),
    ]
    assert automation.spans(lake, []) == []
