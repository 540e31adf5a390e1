"""What several sources capture of one service, as one log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from wirehouse_pipelines.delta import arrow_types, spark_tables
from wirehouse_pipelines.jobs import services
from wirehouse_pipelines.jobs.job import Span, Work
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.tables import all_tables

LOG = "silver.hiero"
DAYS = ("2026-11-14", "2026-11-15")
SOURCES = {"a": "nodes", "b": "nodes", "c": "nodes", "alone": "alone"}
ENDS = {"client_address": "::1", "client_port": 1, "server_address": "::2", "server_port": 2}


@pytest.fixture
def work(tmp_path: Path, stages_run_here: None) -> Work:
    """A run whose stages run here."""
    sources = [
        Source(name, "hiero", "pcap", "x", {"service": service}, ports=(1,)) for name, service in SOURCES.items()
    ]
    lake = Lake(str(tmp_path), Windows("day", DAYS[0]), tuple(sources))
    spans = tuple(Span(service, DAYS) for service in ("nodes", "alone"))
    return Work(None, lake, spans, {}, ())  # type: ignore[arg-type]  # no stage asks for it


def _heard(source: str, connection: bytes, first: int, last: int, day: int = 0, **other: Any) -> dict[str, Any]:
    times = {"started_at_ns": first, "last_at_ns": last}
    return {
        "source": source,
        "window_start": DAYS[day],
        "connection_id": connection,
        "row_kind": "connection",
        "connection": ENDS | times | other,
    }


def _duplicates(work: Work, *rows: dict[str, Any]) -> dict[str, list[bytes]]:
    written = pa.Table.from_pylist(list(rows), schema=arrow_types.schema(all_tables()[LOG]))
    spark_tables.replace(work.lake, LOG, written, [Span(name, DAYS) for name in SOURCES])
    return {window: sorted(ids.to_pylist()) for window, ids in services.duplicates(work, LOG).items()}


def test_of_overlapping_connections_the_first_is_kept(work: Work) -> None:
    rows = [_heard("a", b"a", 5, 20), _heard("b", b"b", 0, 10), _heard("c", b"c", 10, 11)]
    assert _duplicates(work, *rows) == {DAYS[0]: [b"a", b"c"]}


def test_of_connections_that_begin_at_once_that_of_the_first_source_is_kept(work: Work) -> None:
    assert _duplicates(work, _heard("b", b"b", 0, 10), _heard("a", b"a", 0, 10)) == {DAYS[0]: [b"b"]}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_heard("a", b"1", 0, 10), _heard("b", b"2", 11, 20)),
        (_heard("a", b"1", 0, 10), _heard("a", b"2", 5, 20)),
        (_heard("a", b"1", 0, 10), _heard("b", b"2", 5, 20, day=1)),
        (_heard("a", b"1", 0, 10), _heard("b", b"2", 5, 20, client_port=3)),
        (_heard("a", b"1", 0, 10), _heard("alone", b"2", 5, 20)),
        (_heard("a", b"1", 0, 10, client_address=None), _heard("b", b"2", 5, 20, client_address=None)),
    ],
    ids=["one after the other", "one source", "two windows", "two ports", "two services", "no addresses"],
)
def test_other_connections_are_two(work: Work, one: dict[str, Any], other: dict[str, Any]) -> None:
    assert _duplicates(work, one, other) == {}


def test_an_earlier_connection_that_lasts_longest_counts(work: Work) -> None:
    rows = [_heard("a", b"1", 0, 100), _heard("a", b"2", 1, 2), _heard("b", b"3", 50, 60)]
    assert _duplicates(work, *rows) == {DAYS[0]: [b"3"]}


def test_rows_of_duplicates_are_left_out(work: Work) -> None:
    members = services.Members(work.services, {DAYS[0]: pa.array([b"2"], pa.binary())})
    rows = {"window_start": [DAYS[0]] * 3, "source": ["b"] * 3, "connection_id": [b"1", b"2", None]}
    kept = members.once(pa.RecordBatch.from_pydict(rows))
    assert (kept["source"].to_pylist(), kept["connection_id"].to_pylist()) == (["nodes"] * 2, [b"1", None])
    rows["window_start"] = [DAYS[1]] * 3
    assert members.once(pa.RecordBatch.from_pydict(rows)).num_rows == 3
