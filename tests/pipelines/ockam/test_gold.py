"""Gold from a log that is judged here, in this process without a JVM."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.landed import landed_packets, read_log, segments
from tests.support.running import assert_same_rows, select
from wirehouse_codecs.ockam.correlation.log_events import EVENT_COLUMNS, Heard, events_in
from wirehouse_codecs.ockam.log.log import SCHEMA, starter
from wirehouse_codecs.ockam.options import OckamOptions
from wirehouse_codecs.ockam.simulator.service import PORT
from wirehouse_codecs.ockam.simulator.simulator import SimulatorConfig, simulate
from wirehouse_codecs.simulate.script import Disturbances
from wirehouse_pipelines import stages
from wirehouse_pipelines.delta import arrow_types, spark_tables
from wirehouse_pipelines.delta.ledger import Entry
from wirehouse_pipelines.jobs.job import Span, Work
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Size, Windows
from wirehouse_pipelines.ockam import gold
from wirehouse_pipelines.ockam.known import LOG, STATE, known
from wirehouse_pipelines.tables import all_tables

Row = dict[str, Any]
pytestmark = pytest.mark.usefixtures("stages_run_here")
CALM = SimulatorConfig(
    messages_per_publisher=40, index_gap_share=0.2, resend_share=0.2, restarts=2, service_restarts=1, retained=12
)
FAULTS = ("payload", "data_changed", "saved_index_lowered", "index_never_confirmed", "address_not_from_init")
#: By the source's name; what is lost leaves answers unsure and messages missed.
CAPTURES: dict[str, tuple[SimulatorConfig, Disturbances | None]] = {
    "calm": (CALM, None),
    "lossy": (replace(CALM, seed=1, dialect="cbor32"), Disturbances(1, lost=0.03, reordered=0.02, repeated=0.02)),
    "specified": (replace(CALM, seed=2, names="specification"), Disturbances(2, lost=0.01)),
    **{fault: (replace(CALM, fault=fault, messages_per_publisher=5), None) for fault in FAULTS},
}
#: What is said from hour to hour.
HOURS = {
    name: (replace(config, messages_per_publisher=80, interval_ms=10 * 60_000, poll_ms=13 * 60_000), disturbances)
    for name, (config, disturbances) in CAPTURES.items()
    if name in ("calm", "lossy", "data_changed")
}
TYPES = arrow_types.schema(all_tables()[LOG])


@pytest.fixture(scope="module")
def hours() -> list[Row]:
    """Rows of the log, in hour windows."""
    return _judged(HOURS, Windows("hour", "2023-11-14T22"))


def _judged(captures: Mapping[str, tuple[SimulatorConfig, Disturbances | None]], windows: Windows) -> list[Row]:
    """Rows of the log."""
    rows: list[Row] = []
    for name, (config, disturbances) in captures.items():
        landed = segments(landed_packets(simulate(config, disturbances)), PORT)
        placed = [
            row | {"capture_id": name.encode(), "window_start": windows.of(row["arrived_at_ns"])} for row in landed
        ]
        ends_ns = {window: windows.end_ns(window) for window in sorted({row["window_start"] for row in placed})}
        rows += [row | {"source": name} for row in read_log(placed, starter(OckamOptions()), SCHEMA, ends_ns)]
    return rows


def _written(folder: Path, rows: Sequence[Row], size: Size) -> tuple[Lake, tuple[str, ...]]:
    """A lake with the log, and its windows."""
    windows = tuple(sorted({row["window_start"] for row in rows}))
    names = dict.fromkeys(row["source"] for row in rows)
    sources = tuple(Source(name, "ockam", "pcap", "x", ports=(1,)) for name in names)
    lake = Lake(str(folder), Windows(size, windows[0]), sources)
    spans = [Span(name, windows) for name in names]
    spark_tables.replace(lake, LOG, pa.Table.from_pylist(rows, schema=TYPES), spans)
    return lake, windows


def _work(lake: Lake, windows: Sequence[str], before: str | None = None) -> Work:
    names = [source.name for source in lake.sources]
    first = lake.windows.start
    entries = {name: Entry(STATE, name, before, "", "", "", first, 0, "", 0) for name in names if before}
    return Work(None, lake, tuple(Span(name, tuple(windows)) for name in names), entries, ())  # type: ignore[arg-type]


def _run(lake: Lake, windows: Sequence[str], step: int) -> None:
    before = None
    for at in range(0, len(windows), step):
        work = _work(lake, windows[at : at + step], before)
        for table, made in gold.tables(work):
            spark_tables.replace(lake, table, made, work.spans)
        before = work.spans[0].last


def _order(row: Row) -> tuple[Any, ...]:
    """As events.ORDER: what one packet let go of stands by side and byte."""
    place = row["arrived_at_ns"], row["record_number"], row["direction"] == "client", row["byte_start"]
    return row["source"], *place


def test_events_are_those_of_the_readable_function(tmp_path: Path) -> None:
    rows = _judged(CAPTURES, Windows("day", "2023-11-14"))
    expected: dict[tuple[str, ...], list[str]] = defaultdict(list)
    heard: dict[str, Heard] = defaultdict(Heard)
    for row in sorted(rows, key=_order):
        heard[row["source"]].take(row)
    for source, each in heard.items():
        for _, _, key, event in each.placed():
            expected[source, *map(str, json.loads(key))].append(repr(event))

    lake, windows = _written(tmp_path, rows, "day")
    work = _work(lake, windows)
    stage = gold._streams(work, known(work, gold.VERSION))
    stage = replace(stage, fold=lambda rows: (("events", batch) for batch in rows), beside=(), returned=["events"])
    read = pa.RecordBatch.from_pylist(stages.run_here(lake, stage)["events"], schema=stage.schema)
    # How connections stand has no place.
    read = read.filter(read.column("capture_id").is_valid())
    blank = read.set_column(read.schema.get_field_index("seen_by"), "seen_by", pa.repeat("", read.num_rows))
    found: dict[tuple[str, ...], list[str]] = defaultdict(list)
    keys = zip(*(read.column(name).to_pylist() for name in ("source", "key")), strict=True)
    for (source, key), event in zip(keys, events_in(blank.select(EVENT_COLUMNS)), strict=True):
        found[source, *map(str, json.loads(key))].append(repr(event))

    assert sum(map(len, found.values())) > 1000
    assert {event.partition("(")[0] for events in found.values() for event in events} == {
        *("Created", "Init", "Stored", "Replied", "Asked", "Delivered", "Saved", "Got", "Partial")
    }
    for whose, events in expected.items():
        assert found[whose] == events, whose
    assert set(found) == set(expected)


@pytest.mark.property
def test_gold_is_the_same_however_windows_are_run(tmp_path: Path, hours: list[Row]) -> None:
    lakes = []
    for step in (1, 3, 100):
        lake, windows = _written(tmp_path / str(step), hours, "hour")
        _run(lake, windows, step)
        lakes.append(lake)
    assert len(windows) >= 4
    for lake in lakes[1:]:
        assert_same_rows(lakes[0], lake, of=("ockam",))
    for table in ("streams", "stream_messages", "stream_indexes", "lag", "found"):
        assert select(lakes[0], f"SELECT * FROM gold.ockam_{table}"), table
    found = select(lakes[0], "SELECT DISTINCT source, rule FROM gold.ockam_found")
    assert {"source": "data_changed", "rule": "ockam.data_changed"} in found
