"""Windows cut anywhere, run in any way, with files that come late: the same rows."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.running import assert_same_rows, land, run, select
from wirehouse_codecs.cardinal.options import CardinalOptions, Start
from wirehouse_codecs.cardinal.simulator.simulator import SimulatorConfig, simulate, write_jsonl
from wirehouse_codecs.cardinal.wire.messages import Batch, BatchMsg, Message, Reorg, ReorgComplete, Update, encode
from wirehouse_expectations.suites import invariants_check
from wirehouse_pipelines.jobs import runner
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows

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
    """Add messages on the reorg's channel: on another partition hours before the Reorg, and after its end.

    After its end come a repeat, and messages of another block.
    """
    lines = path.read_text().splitlines(keepends=True)
    first, last = json.loads(lines[0]), json.loads(lines[-1])
    channel = next(topic for line in lines if "-re-" in (topic := json.loads(line)["topic"]))
    early = first | {"topic": channel, "partition": 1}
    key = {"key_b64": base64.b64encode(b"\x03" + b"\xee" * 32 + b"k").decode()}
    late = [
        last | (key if ms > 1 else {}) | {"topic": channel, "timestamp_ms": last["timestamp_ms"] + ms}
        for ms in (1, 2, 3_600_000, 3_600_001)
    ]
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
    windows = runner.data_windows(lake)
    for name in ("bronze.captures", "bronze.messages", "silver.cardinal"):
        runner.run_job(spark, lake, name, windows[0], windows[-1])
    with pytest.raises(runner.PredecessorMissingError, match=f"--from {windows[0]} --to {windows[1]}"):
        runner.run_job(spark, lake, "gold.cardinal", windows[1], windows[-1])
    for window in windows:
        runner.run_job(spark, lake, "gold.cardinal", window, window)
    return lake


def test_the_streams_are_worth_comparing(at_once: Lake, hours: Lake) -> None:
    assert len(runner.data_windows(at_once)) == 2
    assert len(runner.data_windows(hours)) >= 4
    assert select(at_once, "select * from gold.cardinal_reorgs where announced and completed")
    assert select(at_once, "select * from gold.cardinal_reorgs where not announced")
    rules = {row["rule"] for row in select(at_once, "select rule from gold.violations")}
    assert {"cardinal.prefix_count_open", "cardinal.extra_message"} <= rules
    on_channels = {"cardinal.reorg_channel_shared", "cardinal.reorg_not_completed"}
    assert on_channels <= rules


def test_hours_one_by_one_are_days_at_once(at_once: Lake, hours: Lake) -> None:
    assert_same_rows(at_once, hours, without=["window_start", "window_begin"])


def test_a_range_again_gives_the_same_rows(spark: Any, at_once: Lake, hours: Lake) -> None:
    """A range at once over windows that were run one by one, its predecessor's state read back."""
    windows = runner.data_windows(hours)
    report = runner.run_job(spark, hours, "gold.cardinal", windows[1], windows[-1], force=True)
    assert set(report.windows) == set(windows[1:])
    assert_same_rows(at_once, hours, without=["window_start", "window_begin"])
    assert runner.stale(hours) == {}


def test_nothing_is_computed_twice(spark: Any, hours: Lake) -> None:
    windows = runner.data_windows(hours)
    for name in runner.all_jobs():
        assert runner.run_job(spark, hours, name, windows[0], windows[-1]).windows == ()


def test_another_version_makes_windows_stale(hours: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    known = runner.all_jobs()
    raised = {name: replace(job, version="x") if name == "gold.cardinal" else job for name, job in known.items()}
    monkeypatch.setattr(runner, "all_jobs", lambda: raised)
    assert runner.stale(hours) == {"gold.cardinal": set(runner.data_windows(hours))}


def test_other_options_make_a_source_stale(hours: Lake) -> None:
    other = [replace(s, options={**s.options, "reorg_threshold": 9}) if s.name == "busy" else s for s in hours.sources]
    assert set(runner.stale(replace(hours, sources=tuple(other)))) == {"silver.cardinal", "gold.cardinal"}


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
    assert runner.stale(apart)
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
    for window in runner.data_windows(one_by_one):
        for name in runner.all_jobs():
            runner.run_job(spark, one_by_one, name, window, window)
    assert len(runner.data_windows(at_once)) == 2
    again = select(at_once, "select window_start from gold.cardinal_batches where window_start > '2023-11-20'")
    assert again
    assert_same_rows(at_once, one_by_one)
    assert runner.stale(at_once) == {}


FROM_ZERO = CardinalOptions(start=Start(0, bytes(32)), reorg_threshold=4)


def _line(message: Message, at_ms: int, partition: int = 0) -> str:
    key, value = (base64.b64encode(data).decode() for data in encode(message))
    place = {"topic": "cardinal-1", "partition": partition, "timestamp_ms": at_ms}
    return json.dumps({**place, "key_b64": key, "value_b64": value}) + "\n"


def _blocks(last: int) -> list[tuple[Batch, BatchMsg]]:
    """A chain of blocks with one key each."""
    hashes = [bytes([number]) * 32 for number in range(last + 1)]
    return [
        (Batch(hashes[n], n, n, hashes[n - 1], (Update(b"k/", count=1),)), BatchMsg(hashes[n], b"k/%d" % n, b"v"))
        for n in range(1, last + 1)
    ]


def test_a_chain_that_stalls_is_reported_when_the_next_message_comes(spark: Any, tmp_path: Path) -> None:
    """One message is missing, one Batch on a side chain too, and for nine days no window has data."""
    first_ms, day_ms = 1_700_000_000_000, 86_400_000
    lines = []
    for at, (batch, message) in enumerate(_blocks(12)):
        lines.append(_line(batch, first_ms + at))
        lines += [_line(message, first_ms + at)] if batch.number != 4 else []
    lines.append(_line(BatchMsg(b"\xee" * 32, b"k/1", b"v"), first_ms + 20))
    lines.append(_line(BatchMsg(b"\xdd" * 32, b"k/1", b"v"), first_ms + 9 * day_ms))
    path = tmp_path / "stalled.jsonl"
    path.write_text("".join(lines))
    source = Source("stalled", "cardinal", "messages", str(path), json.loads(FROM_ZERO.canonical()))
    at_once, one_by_one = (
        Lake(str(tmp_path / name), Windows("day", FIRST["day"]), (source,)) for name in ("once", "each")
    )
    for lake in (at_once, one_by_one):
        land(lake)
    run(spark, at_once)
    for window in runner.data_windows(one_by_one):
        for name in runner.all_jobs():
            runner.run_job(spark, one_by_one, name, window, window)
    found = select(at_once, "select rule, number, record_number, message from gold.cardinal_violations order by rule")
    assert [(row["rule"], row["number"], row["record_number"]) for row in found] == [
        ("cardinal.no_batch_message", None, 23),
        ("cardinal.prefix_count_open", 4, 6),
    ]
    assert "the head stays at 3" in found[1]["message"]
    (judged,) = select(at_once, "select judged from gold.cardinal_batches where number = 4")
    assert judged["judged"]
    assert_same_rows(at_once, one_by_one)


def test_partitions_in_files_of_their_own_lose_nothing(spark: Any, tmp_path: Path) -> None:
    """All records have one time, and those of one partition come after all of another."""
    folder = tmp_path / "parts"
    folder.mkdir()
    sent: list[Message] = [message for pair in _blocks(40) for message in pair]
    for partition in (0, 1):
        mine = [
            _line(message, 1_700_000_000_000, partition)
            for at, message in enumerate(sent)
            if at * 7 % 5 % 2 == partition
        ]
        (folder / f"{partition}.jsonl").write_text("".join(mine))
    for name, start in (("start", FROM_ZERO), ("none", replace(FROM_ZERO, start=None))):
        source = Source("parts", "cardinal", "messages", str(folder), json.loads(start.canonical()))
        lake = Lake(str(tmp_path / name), Windows("day", FIRST["day"]), (source,))
        land(lake)
        run(spark, lake)
        rows = select(lake, "select status, count(*) as blocks from gold.cardinal_batches group by status")
        assert rows == [{"status": "complete", "blocks": 40}]
        assert select(lake, "select count(*) as n from gold.cardinal_chain where canonical") == [{"n": 40}]
        assert select(lake, "select * from gold.cardinal_violations where severity <> 'note'") == []
        for table in ("gold.cardinal_chain_updates", "gold.cardinal_chain_history"):
            for engine in (None, spark):
                checked = invariants_check(lake, engine, table, FIRST["day"], FIRST["day"])
                assert checked.passed, checked.description


def test_what_producers_repeat_on_a_channel_is_no_finding_in_any_window(spark: Any, tmp_path: Path) -> None:
    """Hours after its end a reorg's channel is repeated, by then in part of blocks whose life has ended."""
    blocks = [batch for batch, _ in _blocks(9)]
    side = [Batch(bytes([0x80 + n]) * 32, n, n + 1, blocks[0].block_hash, ()) for n in range(2, 12)]
    side = [side[0], *(replace(batch, parent=side[at].block_hash) for at, batch in enumerate(side[1:]))]
    sent: list[Message] = [replace(batch, updates=()) for batch in blocks]
    channel: list[Message] = [Reorg(blocks[0].block_hash, 1), *side, ReorgComplete(blocks[0].block_hash, 2)]
    topic = f"cardinal-1-re-{blocks[0].block_hash.hex()}"
    hour_ms = 3_600_000
    lines = [_line(message, 1_700_000_000_000) for message in sent]
    for hours in (1, 2, 4):
        told = (json.loads(_line(message, 1_700_000_000_000 + hours * hour_ms)) for message in channel)
        lines += [json.dumps(row | {"topic": topic}) + "\n" for row in told]
    path = tmp_path / "repeated.jsonl"
    path.write_text("".join(lines))
    source = Source("repeated", "cardinal", "messages", str(path), json.loads(FROM_ZERO.canonical()))
    lake = Lake(str(tmp_path / "lake"), Windows("hour", FIRST["hour"]), (source,))
    land(lake)
    run(spark, lake, lake.windows.start, runner.data_windows(lake)[0])
    run(spark, lake)
    found = select(lake, "select rule, record_number from gold.cardinal_violations")
    assert found == [{"rule": "cardinal.reorg_ancestor_wrong", "record_number": 20}]
    assert select(lake, "select depth, completed from gold.cardinal_reorgs") == [{"depth": 8, "completed": True}]
