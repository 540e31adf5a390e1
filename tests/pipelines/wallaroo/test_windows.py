"""Connections over windows cut anywhere, run in any way, in files that were rotated or come late: the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tests.running import assert_same_rows, land, run, select

from wirehouse_codecs.conversations import Disturbances
from wirehouse_codecs.packet_writer import write_pcap
from wirehouse_codecs.tcp_options import TcpOptions
from wirehouse_codecs.wallaroo.connector import PORT
from wirehouse_codecs.wallaroo.simulator import SimulatorConfig, simulate
from wirehouse_pipelines import hash_key, jobs, landing
from wirehouse_pipelines.lake import Lake, Source
from wirehouse_pipelines.windows import Windows

pytestmark = pytest.mark.spark

_MINUTE_MS = 60_000
#: From 22:13 on, over midnight. The connections of `slow` are silent for longer than one may be idle.
STREAMS = {
    "busy": SimulatorConfig(
        seed=1,
        messages_per_connector=600,
        burst_messages=30,
        interval_ms=10 * _MINUTE_MS,
        checkpoint_ms=15 * _MINUTE_MS,
        reset_share=0.1,
        reconnects=2,
        reopens=1,
    ),
    "text": SimulatorConfig(
        seed=2,
        dialect="seed_sid",
        connectors=1,
        messages_per_connector=200,
        burst_messages=20,
        interval_ms=20 * _MINUTE_MS,
        reset_share=0.2,
    ),
    "slow": SimulatorConfig(
        seed=3, connectors=1, messages_per_connector=120, burst_messages=20, interval_ms=150 * _MINUTE_MS
    ),
    "unruly": SimulatorConfig(seed=4, connectors=1, messages_per_connector=40, fault="reconnect_without_backoff"),
    "lossy": SimulatorConfig(seed=5, connectors=2, messages_per_connector=200, interval_ms=15 * _MINUTE_MS),
}
#: Of a source that reads the captures of `slow`: silence that ends no connection.
PATIENT = TcpOptions(idle_ns=4 * 3600 * 10**9)
FIRST = {"day": "2023-11-14", "hour": "2023-11-14T22"}


@pytest.fixture(scope="module", autouse=True)
def _one_hash_key() -> Iterator[None]:
    """Cookies of all lakes have the same hashes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(hash_key.VARIABLE, "key of the tests")
        yield


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each source's packets in three files, as a capture that was rotated."""
    folder = tmp_path_factory.mktemp("captures")
    for name, config in STREAMS.items():
        (folder / name).mkdir()
        lost = Disturbances(seed=1, lost=0.02, reordered=0.02, contradicted=0.01) if name == "lossy" else None
        packets = list(simulate(config, lost))
        # Long after, another connection: by then what was left open has ended, in windows of any size.
        begins_ms = packets[-1].ts_ns // 1_000_000 + 5 * 60 * _MINUTE_MS
        packets += simulate(SimulatorConfig(connectors=1, messages_per_connector=20, start_time_ms=begins_ms))
        rest = iter(packets)
        for number in range(3):
            with (folder / name / f"{number}.pcap").open("wb") as stream:
                count = len(packets) if number == 2 else len(packets) // 3
                write_pcap(islice(rest, count), stream, resolution="ns")
    return folder


def _lake(root: Path, size: str, files: Path) -> Lake:
    sources = [Source(name, "wallaroo", "pcap", str(files / name), ports=(PORT,)) for name in STREAMS]
    patient = Source("patient", "wallaroo", "pcap", str(files / "slow"), ports=(PORT,), tcp=PATIENT)
    return Lake(str(root), Windows(size, FIRST[size]), (*sources, patient))  # type: ignore[arg-type]


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
        for name in ("silver.wallaroo", "gold.wallaroo"):
            jobs.run_job(spark, lake, name, step[0], step[-1])
    return lake


def test_the_captures_are_worth_comparing(at_once: Lake, hours: Lake) -> None:
    assert len(jobs.data_windows(at_once)) >= 2
    assert len(jobs.data_windows(hours)) >= 6
    rules = {row["rule"] for row in select(at_once, "select rule from gold.violations")}
    assert {"wallaroo.reconnect_without_backoff", "capture.hole"} <= rules
    closed = {
        (row["source"], row["closed"]) for row in select(at_once, "select source, closed from silver.connections")
    }
    assert {("busy", "fin"), ("slow", "idle"), ("patient", "fin")} <= closed
    assert ("patient", "idle") not in closed
    assert select(at_once, "select * from gold.wallaroo_stream_progress where replayed > 0")
    assert select(at_once, "select * from silver.quarantine")


def test_hours_step_by_step_are_days_at_once(at_once: Lake, hours: Lake) -> None:
    assert_same_rows(at_once, hours, without=["window_start"])


def test_a_range_again_gives_the_same_rows(spark: Any, at_once: Lake, hours: Lake) -> None:
    windows = jobs.data_windows(hours)
    for name in ("silver.wallaroo", "gold.wallaroo"):
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
