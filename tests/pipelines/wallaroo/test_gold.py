"""Gold from a log of a few rows, in this process without a JVM."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.running import select
from wirehouse_pipelines.delta import spark_tables
from wirehouse_pipelines.delta.ledger import Entry
from wirehouse_pipelines.jobs.job import Span, Work
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.wallaroo import gold

DAYS = ("2026-11-14", "2026-11-15", "2026-11-16")
NAMES = {"program_name": "program", "instance_name": "instance"}
TYPES = gold._TYPES[gold.LOG]


@pytest.fixture
def lake(tmp_path: Path, stages_run_here: None) -> Lake:
    """A lake whose stages run here."""
    return Lake(str(tmp_path), Windows("day", DAYS[0]), (Source("a", "wallaroo", "pcap", "x", ports=(1,)),))


def rows(day: int, connection: bytes, ids: tuple[int, ...], last: int) -> list[dict[str, Any]]:
    """What a session says on a day: its own rows, one stream that has come to `last`, and messages with these ids."""
    common = {"source": "a", "window_start": DAYS[day], "connection_id": connection, "arrived_at_ns": connection[0]}
    stream = {"stream_id": Decimal(1)}
    return [
        common | {"row_kind": "connection", "connection": {"client_port": connection[0]}},
        common | {"row_kind": "session", "session": {"worker": "w", "started_at_ns": connection[0], **NAMES}},
        common
        | stream
        | {
            "row_kind": "stream",
            "stream": {"state": "open", "last_sent": Decimal(last), "highest_sent": Decimal(last), **NAMES},
        },
        *(
            common | stream | {"row_kind": "message", "message": {"kind": "MESSAGE", "message_id": Decimal(number)}}
            for number in ids
        ),
    ]


LOG = [
    *rows(0, b"\1", (1, 2, 3), 3),
    *rows(0, b"\2", (2, 3, 4), 4),
    *rows(1, b"\3", (3, 4, 5), 5),
    # An older session still sends.
    *rows(2, b"\2", (4,), 4),
    *rows(2, b"\3", (4, 6), 6),
]


def _write(lake: Lake) -> None:
    written = pa.Table.from_pylist(LOG, schema=TYPES)
    spark_tables.replace(lake, gold.LOG, written, [Span("a", DAYS)])


def _run(lake: Lake, windows: tuple[str, ...], before: str | None) -> None:
    known = {"a": Entry(gold.STATE, "a", before, "", "", "", DAYS[0], 0, "", 0)} if before else {}
    work = Work(None, lake, (Span("a", windows),), known, ())  # type: ignore[arg-type]  # no stage asks for it
    for table, made in gold.tables(work):
        spark_tables.replace(lake, table, made, work.spans)


PROGRESS = """SELECT window_start, connection_id, last_sent, previous_last_sent, replayed
    FROM gold.wallaroo_stream_progress_history ORDER BY window_start"""
WANTED = [(0, b"\2", 4, 3, 2), (1, b"\3", 5, 4, 4), (2, b"\3", 6, 4, 5)]


@pytest.mark.parametrize("steps", [[DAYS], [DAYS[:1], DAYS[1:]], [(day,) for day in DAYS]])
def test_what_was_sent_again_is_counted_however_windows_are_run(lake: Lake, steps: list[tuple[str, ...]]) -> None:
    _write(lake)
    before = None
    for windows in steps:
        _run(lake, windows, before)
        before = windows[-1]
    found = [tuple(row.values()) for row in select(lake, PROGRESS)]
    assert found == [
        (DAYS[day], connection, *map(Decimal, (last, previous)), n) for day, connection, last, previous, n in WANTED
    ]


def test_what_was_sent_before_is_the_greatest_id_not_the_last_one(lake: Lake) -> None:
    """Ids of the text may come in any order."""
    first, second = rows(0, b"\1", (20, 10), 10), rows(1, b"\2", (15, 25), 25)
    first[2]["stream"]["highest_sent"] = Decimal(20)
    spark_tables.replace(lake, gold.LOG, pa.Table.from_pylist([*first, *second], schema=TYPES), [Span("a", DAYS)])
    _run(lake, DAYS, None)
    told = select(lake, "SELECT last_sent, previous_last_sent, replayed FROM gold.wallaroo_stream_progress")
    assert [tuple(row.values()) for row in told] == [(25, 20, 1)]


def test_sessions_have_the_endpoints_of_their_connection(lake: Lake) -> None:
    _write(lake)
    _run(lake, DAYS, None)
    found = select(lake, "SELECT connection_id, client_port FROM gold.wallaroo_sessions_history")
    assert sorted((row["connection_id"][0], row["client_port"]) for row in found) == [
        (1, 1),
        (2, 2),
        (2, 2),
        (3, 3),
        (3, 3),
    ]
