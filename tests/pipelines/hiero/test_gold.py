"""Gold from a log that is judged here, in this process without a JVM."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.hiero_captures import judge
from tests.support.running import assert_same_rows, select
from wirehouse_codecs.hiero.correlation import known
from wirehouse_codecs.hiero.correlation.events import EVENT_COLUMNS, EVENT_KINDS, event_of, order_of
from wirehouse_codecs.hiero.correlation.known import Waits
from wirehouse_codecs.hiero.correlation.rows import BlockRow, DecisionRow
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.simulator.simulator import SimulatorConfig, simulate
from wirehouse_codecs.simulate.script import Disturbances
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_pipelines import stages
from wirehouse_pipelines.delta import arrow_types, spark_tables
from wirehouse_pipelines.delta.ledger import Entry
from wirehouse_pipelines.hiero import gold
from wirehouse_pipelines.jobs.job import Span, Work
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.tables import all_tables

Row = dict[str, Any]
pytestmark = pytest.mark.usefixtures("stages_run_here")
PROFILES = ("A", "B")
SCHEMA = arrow_types.schema(all_tables()[gold.LOG])


@pytest.fixture(scope="module")
def log() -> dict[str, list[Row]]:
    """Rows of the log by source, each of a profile: some hours, with packets that were lost."""
    lossy = Disturbances(1, lost=0.02, reordered=0.05, repeated=0.05)
    return {profile: _judged(profile, lossy) for profile in PROFILES}


def _judged(profile: str, lossy: Disturbances) -> list[Row]:
    config = SimulatorConfig(
        profile=profile, blocks=12, block_bytes=1500, set_bytes=600, incident_rounds=2, interval_ms=20 * 60_000
    )
    rows = judge(simulate(config, lossy), HieroOptions(profile=profile)).rows
    return [
        {**row, "source": profile, "window_start": _window(row["arrived_at_ns"])}
        for kind in EVENT_KINDS
        for row in rows[kind]
    ]


def _window(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns // 10**9, UTC).strftime("%Y-%m-%dT%H")


def _written(folder: Path, log: dict[str, list[Row]]) -> tuple[Lake, tuple[str, ...]]:
    """A lake with the log, and its windows."""
    rows = [row for listed in log.values() for row in listed]
    windows = tuple(sorted({row["window_start"] for row in rows}))
    sources = (Source(name, "hiero", "pcap", "x", {"profile": name}, ports=(1,)) for name in log)
    lake = Lake(str(folder), Windows("hour", windows[0]), tuple(sources))
    spans = [Span(name, windows) for name in log]
    spark_tables.replace(lake, gold.LOG, pa.Table.from_pylist(rows, schema=SCHEMA), spans)
    return lake, windows


def _work(lake: Lake, windows: Sequence[str], before: str | None = None) -> Work:
    names = [source.name for source in lake.sources]
    first = lake.windows.start
    entries = {name: Entry(gold.STATE, name, before, "", "", "", first, 0, "", 0) for name in names if before}
    return Work(None, lake, tuple(Span(name, tuple(windows)) for name in names), entries, ())  # type: ignore[arg-type]


def _run(lake: Lake, windows: Sequence[str], step: int) -> None:
    before = None
    for at in range(0, len(windows), step):
        work = _work(lake, windows[at : at + step], before)
        for table, made in gold.tables(work):
            spark_tables.replace(lake, table, made, work.spans)
        before = work.spans[0].last


def test_events_are_read_in_the_order_of_the_readable_function(tmp_path: Path, log: dict[str, list[Row]]) -> None:
    lake, windows = _written(tmp_path, log)
    stage = gold._service(_work(lake, windows))
    stage = replace(stage, fold=lambda rows: (("events", batch) for batch in rows), beside=(), returned=["events"])
    read = stages.run_here(lake, stage)["events"]
    events = [(row["source"], event_of({name: row[name] for name in EVENT_COLUMNS})) for row in read]

    expected = [(profile, event_of(row)) for profile in PROFILES for row in sorted(log[profile], key=order_of)]
    places = [(source, *event.where, event.kind, event.call) for source, event in expected if event]
    assert [(source, *event.where, event.kind, event.call) for source, event in events if event] == places
    assert all(event is not None for _, event in events)
    assert {kind for *_, kind, _ in places} >= {"opened", "closed", "missed", "block", "block_items", "block_end"}


def test_gold_is_the_same_however_windows_are_run(tmp_path: Path, log: dict[str, list[Row]]) -> None:
    lakes = []
    for step in (1, 2, 100):
        lake, windows = _written(tmp_path / str(step), log)
        _run(lake, windows, step)
        lakes.append(lake)
    assert len(windows) > 3
    for lake in lakes[1:]:
        assert_same_rows(lakes[0], lake, of=("hiero",))
    assert {row["source"] for row in select(lakes[0], "SELECT source FROM gold.hiero_decisions")} == set(PROFILES)


@pytest.mark.parametrize("fault", ["reenter", "ack_order"])
def test_a_decision_names_the_rule_that_the_log_found(tmp_path: Path, fault: str) -> None:
    rows = judge(simulate(SimulatorConfig(blocks=3, fault=fault)), HieroOptions(profile="B")).rows
    broken = [row for kind in EVENT_KINDS for row in rows[kind]]
    log = {"B": [{**row, "source": "B", "window_start": _window(row["arrived_at_ns"])} for row in broken]}
    lake, windows = _written(tmp_path, log)
    _run(lake, windows, 1)
    found = select(lake, "SELECT DISTINCT rule FROM gold.hiero_decisions WHERE rule IS NOT NULL")
    # The acknowledgement that comes again has no header of its own.
    assert [row["rule"] for row in found] == ([] if fault == "ack_order" else [f"hiero.{fault}"])


def test_a_service_waits_as_long_as_the_most_patient_of_its_sources() -> None:
    patient = Source("b", "hiero", "pcap", "x", tcp=TcpOptions(idle_ns=9_000 * 10**9, hole_wait_ns=30 * 10**9))
    sources = [Source("a", "hiero", "pcap", "x", {"profile": "A"}), patient]
    options, waits = gold._options(sources)
    assert (options.profile, waits) == ("A", Waits(60 * 10**9, 9_060 * 10**9))


def test_of_an_entity_the_last_row_of_a_window_is_written(
    tmp_path: Path, log: dict[str, list[Row]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is forgotten and comes again is told twice in a window."""
    monkeypatch.setattr(known, "MOST_BLOCKS", 2)
    monkeypatch.setattr(known, "MOST_CALLS", 2)
    lake, windows = _written(tmp_path, log)
    made: list[Any] = []
    final = gold._Service._final

    def spied(self: Any, told: Iterable[Any]) -> list[Any]:
        told = list(told)
        made.extend(told)
        return final(self, told)

    monkeypatch.setattr(gold._Service, "_final", spied)
    _run(lake, windows, 100)
    for table, kind, key in (
        ("blocks", BlockRow, "block_number"),
        ("decisions", DecisionRow, "call, byte_end"),
    ):
        name = f"gold.hiero_{table}_history"
        rows = select(lake, f"SELECT COUNT(*) AS n FROM {name} GROUP BY source, window_start, {key}")
        assert {row["n"] for row in rows} == {1}
        assert (sum(type(one) is kind for one in made) > len(rows)) is (kind is BlockRow)
