"""Connections over windows cut anywhere, run in any way, in files that were rotated or come late: the same rows."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tests.running import assert_same_rows, land, run, select

from wirehouse_codecs.bamboo.simulator import PORT, SimulatorConfig, simulate
from wirehouse_codecs.conversations import Disturbances
from wirehouse_codecs.packet_writer import write_pcap
from wirehouse_pipelines import jobs, landing
from wirehouse_pipelines.lake import Lake, Source
from wirehouse_pipelines.windows import Windows

pytestmark = pytest.mark.spark

_MINUTE_MS = 60_000
#: From 22:13 on, over midnight. Two peers replicate the same logs.
STREAMS = {
    "busy": SimulatorConfig(
        seed=1,
        connections=2,
        replicas=2,
        entries=40,
        live_share=0.8,
        interval_ms=10 * _MINUTE_MS,
        ways=12,
        forks=2,
    ),
    "lossy": SimulatorConfig(seed=3, connections=1, entries=40, live_share=0.5, interval_ms=16 * _MINUTE_MS, ways=4),
}
FIRST = {"day": "2023-11-14", "hour": "2023-11-14T22"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each source's packets in three files, as a capture that was rotated."""
    folder = tmp_path_factory.mktemp("captures")
    for name, config in STREAMS.items():
        (folder / name).mkdir()
        lost = Disturbances(seed=1, lost=0.02, reordered=0.02) if name == "lossy" else None
        packets = list(simulate(config, lost))
        rest = iter(packets)
        for number in range(3):
            with (folder / name / f"{number}.pcap").open("wb") as stream:
                count = len(packets) if number == 2 else len(packets) // 3
                write_pcap(islice(rest, count), stream, resolution="ns")
    return folder


def _lake(root: Path, size: str, files: Path) -> Lake:
    sources = [Source(name, "bamboo", "pcap", str(files / name), ports=(PORT,)) for name in STREAMS]
    return Lake(str(root), Windows(size, FIRST[size]), tuple(sources))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def at_once(spark: Any, files: Path, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Day windows in one range."""
    lake = _lake(tmp_path_factory.mktemp("days"), "day", files)
    land(lake)
    run(spark, lake)
    return lake


@pytest.fixture(scope="module")
def hours(spark: Any, files: Path, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Hour windows; silver and gold in steps of three."""
    lake = _lake(tmp_path_factory.mktemp("hours"), "hour", files)
    land(lake)
    windows = jobs.data_windows(lake)
    for name in ("bronze.captures", "bronze.segments"):
        jobs.run_job(spark, lake, name, windows[0], windows[-1])
    for begin in range(0, len(windows), 3):
        step = windows[begin : begin + 3]
        for name in ("silver.bamboo", "gold.bamboo"):
            jobs.run_job(spark, lake, name, step[0], step[-1])
    return lake


def test_the_captures_are_worth_comparing(at_once: Lake, hours: Lake) -> None:
    assert len(jobs.data_windows(at_once)) >= 2
    assert len(jobs.data_windows(hours)) >= 5
    assert select(at_once, "SELECT * FROM gold.bamboo_entries WHERE cardinality(seen_from) > 1 AND verdict = 'valid'")
    assert select(at_once, "SELECT * FROM gold.bamboo_forks")
    assert select(hours, "SELECT * FROM gold.bamboo_entries_history WHERE superseded") or select(
        at_once, "SELECT * FROM gold.bamboo_entries WHERE verdict = 'unknown'"
    )
    assert {"capture.hole"} <= {row["rule"] for row in select(at_once, "SELECT rule FROM gold.violations")}


def test_legal_traffic_breaks_no_rule(at_once: Lake) -> None:
    """Nor does a packet that the capture lost. A peer that shows a fork tells of somebody else's."""
    told = "SELECT source, rule, message FROM gold.bamboo_violations WHERE rule LIKE 'bamboo.%' AND severity <> 'note'"
    assert [row for row in select(at_once, told) if row["rule"] != "bamboo.fork"] == []


def test_hours_step_by_step_are_days_at_once(at_once: Lake, hours: Lake) -> None:
    assert_same_rows(at_once, hours, without=["window_start"])


def test_a_range_again_gives_the_same_rows(spark: Any, at_once: Lake, hours: Lake) -> None:
    windows = jobs.data_windows(hours)
    for name in ("silver.bamboo", "gold.bamboo"):
        report = jobs.run_job(spark, hours, name, windows[2], windows[-1], force=True)
        assert set(report.windows) == set(windows[2:])
    assert_same_rows(at_once, hours, without=["window_start"])
    assert jobs.stale(hours) == {}


def test_a_late_file_gives_the_rows_of_one_in_time(spark: Any, files: Path, at_once: Lake, tmp_path: Path) -> None:
    """The middle file of each source comes after the rest was run."""
    lake = _lake(tmp_path / "apart", "day", files)
    for source in lake.sources:
        landing.land(lake, source, [f"{source.path}/{number}.pcap" for number in (0, 2)])
    run(spark, lake)
    land(lake)
    assert jobs.stale(lake)
    run(spark, lake)
    assert_same_rows(at_once, lake)
