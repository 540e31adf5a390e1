"""Calls, logs and files over windows cut anywhere, run in any way, rotated or late: the same rows."""

from __future__ import annotations

import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tests.hiero_files import grpc_log_of
from tests.running import assert_same_rows, land, run, select

from wirehouse_codecs.conversations import Disturbances
from wirehouse_codecs.hiero.profiles import DEFAULT_PORT
from wirehouse_codecs.hiero.simulator import SimulatorConfig, simulate
from wirehouse_codecs.packet_captures import PacketCapture
from wirehouse_codecs.packet_writer import CapturedPacket, write_pcap
from wirehouse_pipelines import jobs, landing
from wirehouse_pipelines.lake import Lake, Source
from wirehouse_pipelines.windows import Windows

pytestmark = pytest.mark.spark

VECTORS = Path(__file__).parents[2] / "vectors" / "hiero"
_MINUTE_MS = 60_000
_HOUR_NS = 3_600 * 10**9
#: From 22:13 on, over midnight.
NETWORKS = {
    "busy": SimulatorConfig(seed=1, blocks=16, block_bytes=1_500, interval_ms=12 * _MINUTE_MS, incident_rounds=2),
    "lossy": SimulatorConfig(seed=2, profile="A", blocks=12, block_bytes=1_500, interval_ms=15 * _MINUTE_MS),
}
FIRST = {"day": "2023-11-14", "hour": "2023-11-14T22"}


def _later(after_ns: int) -> list[CapturedPacket]:
    """Calls at another node, long after: by then what was left open has ended, in windows of any size."""
    with (VECTORS / "new" / "behind_resend.pcap").open("rb") as stream:
        told = [row for batch in PacketCapture(stream).batches() for row in batch.to_pylist()]
    shift = after_ns + 5 * _HOUR_NS - told[0]["ts_ns"]
    return [CapturedPacket(row["ts_ns"] + shift, row["data"]) for row in told]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each source's packets in three files, as a capture that was rotated; a gRPC log; and block files."""
    folder = tmp_path_factory.mktemp("captures")
    for name, config in NETWORKS.items():
        (folder / name).mkdir()
        lost = Disturbances(seed=1, lost=0.02, reordered=0.02, contradicted=0.01) if name == "lossy" else None
        packets = list(simulate(config, lost))
        packets += _later(packets[-1].ts_ns)
        rest = iter(packets)
        for number in range(3):
            with (folder / name / f"{number}.pcap").open("wb") as stream:
                count = len(packets) if number == 2 else len(packets) // 3
                write_pcap(islice(rest, count), stream, resolution="ns")
    whole = folder / "whole.pcap"
    with whole.open("wb") as stream:
        write_pcap(simulate(NETWORKS["busy"]), stream, resolution="ns")
    (folder / "log").mkdir()
    (folder / "log" / "0.binlog").write_bytes(grpc_log_of(whole, DEFAULT_PORT))
    (folder / "blocks").mkdir()
    for path in (VECTORS / "blocks").glob("cn073_tss_*"):
        shutil.copy(path, folder / "blocks")
    return folder


def _lake(root: Path, size: str, files: Path) -> Lake:
    sources = [Source(name, "hiero", "pcap", str(files / name), ports=(DEFAULT_PORT,)) for name in NETWORKS]
    sources.append(Source("log", "hiero", "grpc_log", str(files / "log")))
    sources.append(Source("blocks", "hiero", "blocks", str(files / "blocks")))
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
    for name in ("bronze.captures", "bronze.segments", "bronze.files"):
        jobs.run_job(spark, lake, name, windows[0], windows[-1])
    for begin in range(0, len(windows), 3):
        step = windows[begin : begin + 3]
        for name in ("silver.hiero", "gold.hiero"):
            jobs.run_job(spark, lake, name, step[0], step[-1])
    return lake


def test_the_captures_are_worth_comparing(at_once: Lake, hours: Lake) -> None:
    assert len(jobs.data_windows(at_once)) >= 2
    assert len(jobs.data_windows(hours)) >= 6
    assert {row["state"] for row in select(at_once, "SELECT state FROM gold.hiero_catch_ups")} >= {"done"}
    assert select(at_once, "SELECT * FROM gold.hiero_publisher_sessions WHERE next_call IS NOT NULL")
    assert {"capture.hole"} <= {row["rule"] for row in select(at_once, "SELECT rule FROM gold.violations")}
    assert select(hours, "SELECT * FROM silver.hiero WHERE row_kind = 'state' AND source = 'log' AND state IS NOT NULL")


def test_legal_traffic_breaks_no_rule(at_once: Lake) -> None:
    """Nor does a packet that the capture lost."""
    told = "SELECT source, rule, message FROM gold.hiero_violations WHERE rule LIKE 'hiero.%'"
    assert select(at_once, told) == []


def test_hours_step_by_step_are_days_at_once(at_once: Lake, hours: Lake) -> None:
    assert_same_rows(at_once, hours, without=["window_start"])


def test_a_range_again_gives_the_same_rows(spark: Any, at_once: Lake, hours: Lake) -> None:
    windows = jobs.data_windows(hours)
    for name in ("silver.hiero", "gold.hiero"):
        report = jobs.run_job(spark, hours, name, windows[2], windows[-1], force=True)
        assert set(report.windows) == set(windows[2:])
    assert_same_rows(at_once, hours, without=["window_start"])
    assert jobs.stale(hours) == {}


def test_a_late_file_gives_the_rows_of_one_in_time(spark: Any, files: Path, at_once: Lake, tmp_path: Path) -> None:
    """The second file of each source comes after the rest was run."""
    lake = _lake(tmp_path / "apart", "day", files)
    for source in lake.sources:
        paths = sorted(Path(source.path).iterdir())
        landing.land(lake, source, [str(path) for path in paths[:1] + paths[2:]])
    run(spark, lake)
    land(lake)
    assert jobs.stale(lake)
    run(spark, lake)
    assert_same_rows(at_once, lake)
