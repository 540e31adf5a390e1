"""Windows cut anywhere, run in any way, with files that come late: the same rows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.running import assert_same_rows, land, run, select

from wirehouse_codecs.cardinal.simulator import SimulatorConfig, simulate, write_jsonl
from wirehouse_pipelines import jobs
from wirehouse_pipelines.lake import Lake, Source
from wirehouse_pipelines.windows import Windows

pytestmark = pytest.mark.spark

#: From 22:13 to 01:37 the next day: two day windows, five hour windows.
STREAMS = {
    "busy": SimulatorConfig(
        seed=2,
        blocks=64,
        messages_per_block=20,
        producers=2,
        shuffle=50,
        fork_every=9,
        large_reorg=True,
        block_interval_ms=180_000,
    ),
    "open": SimulatorConfig(
        seed=3, blocks=64, messages_per_block=16, fault="prefix_count_open", block_interval_ms=180_000
    ),
    "late": SimulatorConfig(seed=4, blocks=64, messages_per_block=16, fault="extra_message", block_interval_ms=180_000),
}
FIRST = {"day": "2023-11-14", "hour": "2023-11-14T22"}


def _options(config: SimulatorConfig) -> dict[str, Any]:
    options = json.loads(config.options.canonical())
    return {key: options[key] for key in options if key not in ("topics", "prefixes")}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("streams")
    for name, config in STREAMS.items():
        (folder / name).mkdir()
        write_jsonl(simulate(config), folder / name / "a.jsonl")
    _around_the_channel(folder / "busy" / "a.jsonl")
    return folder


def _around_the_channel(path: Path) -> None:
    """Add messages on the reorg's channel: on another partition hours before the Reorg, and after its end."""
    lines = path.read_text().splitlines(keepends=True)
    first, last = json.loads(lines[0]), json.loads(lines[-1])
    channel = next(topic for line in lines if "-re-" in (topic := json.loads(line)["topic"]))
    early = first | {"topic": channel, "partition": 1}
    late = [last | {"topic": channel, "timestamp_ms": last["timestamp_ms"] + ms} for ms in (1, 2, 3_600_000, 3_600_001)]
    path.write_text("".join([json.dumps(early) + "\n", *lines, *(json.dumps(row) + "\n" for row in late)]))


def _lake(root: Path, size: str, files: Path, names: Iterable[str] = STREAMS) -> Lake:
    sources = (Source(name, "cardinal", "messages", str(files / name), _options(STREAMS[name])) for name in names)
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
    """Hour windows; gold one window at a time."""
    lake = _lake(tmp_path_factory.mktemp("hours"), "hour", files)
    land(lake)
    windows = jobs.data_windows(lake)
    for name in ("bronze.captures", "bronze.messages", "silver.cardinal"):
        jobs.run_job(spark, lake, name, windows[0], windows[-1])
    with pytest.raises(jobs.PredecessorMissingError, match=f"--from {windows[0]} --to {windows[1]}"):
        jobs.run_job(spark, lake, "gold.cardinal", windows[1], windows[-1])
    for window in windows:
        jobs.run_job(spark, lake, "gold.cardinal", window, window)
    return lake


def test_the_streams_are_worth_comparing(at_once: Lake, hours: Lake) -> None:
    assert len(jobs.data_windows(at_once)) == 2
    assert len(jobs.data_windows(hours)) >= 4
    assert select(at_once, "select * from gold.cardinal_reorgs where announced and completed")
    assert select(at_once, "select * from gold.cardinal_reorgs where not announced")
    rules = {row["rule"] for row in select(at_once, "select rule from gold.violations")}
    assert {"cardinal.prefix_count_open", "cardinal.extra_message"} <= rules
    on_channels = {"cardinal.reorg_channel_shared", "cardinal.reorg_not_completed"}
    assert on_channels <= rules


def test_hours_one_by_one_are_days_at_once(at_once: Lake, hours: Lake) -> None:
    assert_same_rows(at_once, hours, without=["window_start"])


def test_a_range_again_gives_the_same_rows(spark: Any, at_once: Lake, hours: Lake) -> None:
    """A range at once over windows that were run one by one, its predecessor's state read back."""
    windows = jobs.data_windows(hours)
    report = jobs.run_job(spark, hours, "gold.cardinal", windows[1], windows[-1], force=True)
    assert set(report.windows) == set(windows[1:])
    assert_same_rows(at_once, hours, without=["window_start"])
    assert jobs.stale(hours) == {}


def test_nothing_is_computed_twice(spark: Any, hours: Lake) -> None:
    windows = jobs.data_windows(hours)
    for name in jobs.all_jobs():
        assert jobs.run_job(spark, hours, name, windows[0], windows[-1]).windows == ()


def test_another_version_makes_windows_stale(hours: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    known = jobs.all_jobs()
    raised = {name: replace(job, version="x") if name == "gold.cardinal" else job for name, job in known.items()}
    monkeypatch.setattr(jobs, "all_jobs", lambda: raised)
    assert jobs.stale(hours) == {"gold.cardinal": set(jobs.data_windows(hours))}


def test_other_options_make_a_source_stale(hours: Lake) -> None:
    other = [replace(s, options={**s.options, "reorg_threshold": 9}) if s.name == "busy" else s for s in hours.sources]
    assert set(jobs.stale(replace(hours, sources=tuple(other)))) == {"silver.cardinal", "gold.cardinal"}


def test_a_late_file_gives_the_rows_of_one_in_time(spark: Any, files: Path, tmp_path: Path) -> None:
    """Some blocks' messages come in a file of their own, after the rest was run."""
    names, split = ("busy", "open"), tmp_path / "split"
    for name in names:
        (split / name).mkdir(parents=True)
        lines = (files / name / "a.jsonl").read_text().splitlines(keepends=True)
        late = range(len(lines) // 3, len(lines) // 3 + 60)
        (split / name / "in-time.jsonl").write_text("".join(line for i, line in enumerate(lines) if i not in late))
        (split / name / "late.jsonl").write_text("".join(line for i, line in enumerate(lines) if i in late))
    together = _lake(tmp_path / "together", "hour", split, names)
    land(together)
    run(spark, together)
    (split / "held").mkdir()
    for name in names:
        (split / name / "late.jsonl").rename(split / "held" / f"{name}.jsonl")
    apart = _lake(tmp_path / "apart", "hour", split, names)
    land(apart)
    run(spark, apart)
    before = select(apart, "select * from gold.cardinal_chain_updates")
    for name in names:
        (split / "held" / f"{name}.jsonl").rename(split / name / "late.jsonl")
    land(apart)
    assert jobs.stale(apart)
    run(spark, apart)
    assert select(apart, "select * from gold.cardinal_chain_updates") != before
    assert_same_rows(together, apart)


def test_a_hash_that_lives_again_is_new_in_a_range_too(spark: Any, tmp_path: Path) -> None:
    """Ten days later messages come again, of blocks that were judged and of blocks that time alone ended."""
    config = replace(STREAMS["open"], block_interval_ms=60_000)
    path = tmp_path / "again.jsonl"
    write_jsonl(simulate(config), path)
    lines = path.read_text().splitlines(keepends=True)
    rows = [json.loads(line) for line in (*lines[:100], *lines[-100:])]
    later = [row | {"timestamp_ms": row["timestamp_ms"] + 10 * 86_400_000} for row in rows]
    path.write_text("".join([*lines, *(json.dumps(row) + "\n" for row in later)]))
    source = Source("again", "cardinal", "messages", str(path), _options(config))
    at_once, one_by_one = (
        Lake(str(tmp_path / name), Windows("day", FIRST["day"]), (source,)) for name in ("once", "each")
    )
    for lake in (at_once, one_by_one):
        land(lake)
    run(spark, at_once)
    for window in jobs.data_windows(one_by_one):
        for name in jobs.all_jobs():
            jobs.run_job(spark, one_by_one, name, window, window)
    assert len(jobs.data_windows(at_once)) == 2
    again = select(at_once, "select window_start from gold.cardinal_batches where window_start > '2023-11-20'")
    assert again
    assert_same_rows(at_once, one_by_one)
    assert jobs.stale(at_once) == {}
