"""Links that lead to entries of other logs, whichever of both comes first, in one run or window by window.

The stages run in this process, without a JVM.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.running import select
from wirehouse_codecs.bamboo.log.rows import ENTRY, shown_row
from wirehouse_codecs.bamboo.simulator.faulty_entries import made_log
from wirehouse_codecs.bamboo.simulator.logs import Log, Published
from wirehouse_codecs.bamboo.wire import yamf
from wirehouse_pipelines.bamboo import gold
from wirehouse_pipelines.delta import arrow_types, batches, spark_tables
from wirehouse_pipelines.delta.ledger import Entry
from wirehouse_pipelines.jobs.job import Span, Work
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.tables import all_tables

DAYS = ("2024-01-01", "2024-01-02", "2024-01-03")
HOUR_NS = 3_600 * 10**9

#: Both lack entry 4, to which the links of entry 5 should lead.
LOGS = (made_log(1, 6), made_log(1, 6, log_id=2))
OTHER_LOG, OTHER_AUTHOR = made_log(1, 4, log_id=1), made_log(2, 4, log_id=2)
BEGIN = [log.entries[seq].data for log in LOGS for seq in (1, 2, 3)]


def linking(log: Log, to: Published) -> bytes:
    """Entry 5 of a log, whose backlink leads elsewhere."""
    return log.make(5, b"5", backlink=to.hash).data


Day = Sequence[bytes]


def write(lake: Lake, days: Sequence[Day]) -> None:
    """Entries of each day to the log of silver."""
    rows = [
        {
            "source": "s",
            "window_start": window,
            "row_kind": ENTRY,
            "capture_id": b"c",
            "record_number": number,
            "arrived_at_ns": lake.windows.start_ns(window) + number * HOUR_NS,
            "entry": shown_row(data, "file", "a.jsonl"),
        }
        for window, entries in zip(DAYS, days, strict=False)
        for number, data in enumerate(entries)
    ]
    table = all_tables()["silver.bamboo"]
    schema = arrow_types.schema(table)
    names = [name for name in schema.names if name in rows[0]]
    told = pa.RecordBatch.from_pylist(rows, schema=pa.schema([schema.field(name) for name in names]))
    spark_tables.replace(lake, table.name, pa.table(batches.with_all(told, schema)), [Span("s", DAYS)])


def run(lake: Lake, *runs: Sequence[str], after: str | None = None) -> None:
    """Compute gold, these windows at once each time; `after` is the last window that was computed before."""
    for windows in runs:
        spans = (Span("s", tuple(windows)),)
        before = {} if after is None else {"s": Entry("", "s", after, "", None, None, DAYS[0], 0, "", 0)}
        work = Work(None, lake, spans, before, ())  # type: ignore[arg-type]  # no stage asks for it
        for name, rows in gold.tables(work):
            spark_tables.replace(lake, name, rows, spans)
        after = windows[-1]


def of_five(lake: Lake) -> dict[int, tuple[str, str | None]]:
    """What is said of entry 5 of each log, by log id."""
    rows = select(lake, "SELECT log_id, verdict, reason FROM gold.bamboo_entries WHERE seq = 5")
    return {int(row["log_id"]): (row["verdict"], row["reason"]) for row in rows}


def history(lake: Lake) -> list[tuple[Any, ...]]:
    """What each window told of entries."""
    names = "window_start, author, log_id, seq, entry_id, verdict, reason"
    told = select(lake, f"SELECT {names} FROM gold.bamboo_entries_history")
    state = select(lake, "SELECT window_start, key, link, author, log_id FROM gold.bamboo_state WHERE link IS NOT NULL")
    return sorted((tuple(row.values()) for row in (*told, *state)), key=repr)


@pytest.fixture
def make_lake(tmp_path: Path, stages_run_here: None) -> Any:

    def make(name: str) -> Lake:
        return Lake(str(tmp_path / name), Windows("day", DAYS[0]), (Source("s", "bamboo", "entries", "nowhere"),))

    return make


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 2, 0)], ids=str)
def test_it_is_found_whichever_comes_first(make_lake: Any, order: tuple[int, ...]) -> None:
    targets = [OTHER_LOG.entries[4], OTHER_AUTHOR.entries[4]]
    pieces: list[Day] = [BEGIN, list(map(linking, LOGS, targets)), [one.data for one in targets]]
    days = [pieces[i] for i in order]
    at_once, by_days = make_lake("once"), make_lake("days")
    write(at_once, days)
    run(at_once, DAYS)
    assert of_five(at_once) == {0: ("invalid", "log_id_mismatch"), 2: ("invalid", "author_mismatch")}
    write(by_days, days)
    run(by_days, *((day,) for day in DAYS))
    assert history(by_days) == history(at_once)


def test_what_was_found_stays_until_the_entry_comes_that_belongs_there(make_lake: Any) -> None:
    target = OTHER_LOG.entries[4]
    days: list[Day] = [
        [*BEGIN, linking(LOGS[0], target), target.data],
        [LOGS[0].make(6, b"6", backlink=b"6" * 64).data],
    ]
    days.append([LOGS[0].entries[4].data])
    lake, at_once = make_lake("lake"), make_lake("once")
    write(lake, days)
    run(lake, DAYS[:1], DAYS[1:2])
    assert of_five(lake)[0] == ("invalid", "log_id_mismatch")
    run(lake, DAYS[2:], after=DAYS[1])
    assert of_five(lake)[0] == ("invalid", "backlink_mismatch")
    write(at_once, days)
    run(at_once, DAYS)
    assert history(at_once) == history(lake)


def test_a_fork_that_turns_out_to_begin_earlier_is_one_row(make_lake: Any) -> None:
    log, branch = made_log(3, 8), made_log(3, 4)
    other = [branch.append(b"another %d" % seq).data for seq in range(5, 9)]
    days: list[Day] = [[log.entries[seq].data for seq in range(1, 9)], other[2:], other[:2]]
    lake, at_once = make_lake("lake"), make_lake("once")
    write(lake, days)
    positions = "SELECT position FROM gold.bamboo_forks"
    run(lake, DAYS[:1], DAYS[1:2])
    assert [int(row["position"]) for row in select(lake, positions)] == [6]
    run(lake, DAYS[2:], after=DAYS[1])
    assert [int(row["position"]) for row in select(lake, positions)] == [5]
    write(at_once, days)
    run(at_once, DAYS)
    branches = "first_length, first_head, first_served_by, second_length, second_head, second_served_by"
    proofs = f"SELECT position, proof, first_hash, second_hash, {branches} FROM gold.bamboo_forks"
    assert select(at_once, proofs) == select(lake, proofs)
    (row,) = select(lake, proofs)
    assert (row["first_length"], row["first_head"]) == (8, log.entries[8].hash)
    assert (row["second_length"], row["second_head"]) == (8, yamf.digest(other[-1]))
    assert row["first_served_by"] == row["second_served_by"] == ["a.jsonl"]
    assert len(select(lake, "SELECT rule FROM gold.bamboo_found WHERE rule = 'bamboo.fork'")) == 1
