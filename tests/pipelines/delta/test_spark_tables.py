"""Tables of a lake: begun, added to and replaced with Spark or without, and read by windows."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction
from pyarrow import parquet

from wirehouse_pipelines.delta import arrow_types, delta_tables, spark_tables, table_writer
from wirehouse_pipelines.jobs.job import Span
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.query import sql
from wirehouse_pipelines.storage.storage import Held, open_storage
from wirehouse_pipelines.tables import all_tables

NAME = "gold.ockam_streams_history"
TABLE = all_tables()[NAME]
FIRST, SECOND, THIRD = "2026-11-14", "2026-11-15", "2026-11-16"
#: Source, window and how often something was confirmed.
Row = tuple[str, str, int]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"), Windows("day", FIRST))


def put(lake: Lake, rows: Sequence[Row], *spans: Span, by_files: bool = False) -> None:
    """Rows in place of `spans`; what they don't say is null."""
    listed = [{"source": source, "window_start": window, "confirmed": n} for source, window, n in rows]
    made = pa.Table.from_pylist(listed, schema=arrow_types.schema(TABLE))
    spark_tables.replace(lake, NAME, files_of(lake, NAME, made) if by_files else made, spans)


def files_of(lake: Lake, name: str, rows: pa.Table) -> list[dict[str, Any]]:
    """Write `rows` into files of a table; their descriptions."""
    with table_writer.TableFiles(open_storage(lake.root), lake.table_folder(name), all_tables()[name]) as files:
        return [*(file for batch in rows.to_batches() for file in files.add(batch)), *files.finish()]


def held(lake: Lake) -> list[Row]:
    rows = sql.rows(lake, f"SELECT source, window_start, confirmed FROM {NAME}").to_pylist()
    return sorted((row["source"], row["window_start"], row["confirmed"]) for row in rows)


class Lost(Exception):
    """A lock is another's."""


def test_who_lost_the_lock_replaces_nothing(lake: Lake) -> None:
    def lost() -> None:
        raise Lost

    put(lake, [("a", FIRST, 1)], Span("a", (FIRST,)))
    for rows in (pa.Table.from_pylist([], schema=arrow_types.schema(TABLE)), ()):
        with pytest.raises(Lost):
            spark_tables.replace(lake, NAME, rows, [Span("a", (FIRST,))], lost)
    assert held(lake) == [("a", FIRST, 1)]


@pytest.mark.parametrize("by_files", [False, True])
def test_a_commit_has_the_rows_of_its_spans_alone(lake: Lake, by_files: bool) -> None:
    put(lake, [("a", FIRST, 1), ("b", FIRST, 2)], Span("a", (FIRST,)), Span("b", (FIRST,)), by_files=by_files)
    put(lake, [("a", SECOND, 3)], Span("a", (SECOND, THIRD)), by_files=by_files)
    assert held(lake) == [("a", FIRST, 1), ("a", SECOND, 3), ("b", FIRST, 2)]
    put(lake, [("a", THIRD, 4)], Span("a", (FIRST, SECOND, THIRD)), by_files=by_files)
    assert held(lake) == [("a", THIRD, 4), ("b", FIRST, 2)]
    known = DeltaTable(lake.table_path(NAME))
    assert (known.metadata().name, known.metadata().description) == (NAME, TABLE.comment)
    assert known.metadata().partition_columns == list(TABLE.partition_by)
    told = [(field.name, field.type, field.metadata.get("comment")) for field in known.schema().fields]
    assert told == [
        (field.name, field.type, field.metadata["comment"])
        for field in Schema.from_arrow(spark_tables._schema(TABLE)).fields
    ]
    assert known.metadata().configuration == spark_tables._configuration(TABLE)


@pytest.mark.spark
def test_spark_reads_the_rows_of_spans(spark: Any, lake: Lake) -> None:
    put(lake, [("a", THIRD, 4), ("b", FIRST, 2)], Span("a", (THIRD,)), Span("b", (FIRST,)), by_files=True)
    read = spark_tables.read(spark, lake, NAME, [Span("a", (FIRST, THIRD))])
    assert read.columns == [column.name for column in TABLE.columns]
    assert read.select("source", "window_start", "confirmed").collect() == [("a", THIRD, 4)]
    assert spark_tables.read(spark, lake, NAME).count() == 2
    assert spark_tables.read(spark, lake, NAME, []).count() == 0
    assert spark_tables.read(spark, lake, "gold.ockam_found", [Span("a", (FIRST,))]).collect() == []


def test_a_row_of_another_window_is_refused(lake: Lake) -> None:
    """Where rows are added, and where some are replaced. Stages check it for rows in files."""
    for before in ([("a", FIRST, 1)], [("a", FIRST, 1), ("a", SECOND, 2)]):
        put(lake, before, Span("a", (FIRST, SECOND)))
        with pytest.raises(Exception, match="failed validation check"):
            put(lake, [("a", SECOND, 3), ("a", THIRD, 4)], Span("a", (SECOND,)))
        assert held(lake) == before


def swap_in(
    lake: Lake, confirmed: int, overtaken: Callable[[], None] = lambda: None, held: Held = lambda: None
) -> list[list[str]]:
    """Put a row of FIRST in place of all; the files that it was to replace, each time that it asked."""
    path = lake.table_path(NAME)
    written = Path(path, "source=a", f"window_start={FIRST}", "new.parquet")
    columns = [field for field in arrow_types.schema(TABLE) if field.name not in TABLE.partition_by]
    parquet.write_table(pa.Table.from_pylist([{"confirmed": confirmed}], pa.schema(columns)), written)
    partition = {"source": "a", "window_start": FIRST}
    file = str(written.relative_to(path))
    added = AddAction(file, written.stat().st_size, partition, 0, True, json.dumps({"numRecords": 1}))
    asked: list[list[str]] = []

    def all_files(now: DeltaTable) -> list[str]:
        asked.append([str(file) for file in now.get_add_actions().column("path").to_pylist()])
        if len(asked) == 1:
            overtaken()
        return asked[-1]

    delta_tables.swap(path, [added], all_files, held)
    return asked


def test_a_commit_that_another_overtook_replaces_its_rows_too(lake: Lake) -> None:
    put(lake, [("a", FIRST, 1)], Span("a", (FIRST,)))
    asked = swap_in(lake, 3, lambda: put(lake, [("a", FIRST, 2)], Span("a", (FIRST,))))
    assert held(lake) == [("a", FIRST, 3)]
    assert [len(files) for files in asked] == [1, 1]
    path = lake.table_path(NAME)
    version = DeltaTable(path).version()
    delta_tables.swap(path, [], lambda now: [])
    assert DeltaTable(path).version() == version, "nothing to do is no commit"


def test_a_lock_that_is_lost_between_two_attempts_ends_them(lake: Lake) -> None:
    put(lake, [("a", FIRST, 1)], Span("a", (FIRST,)))
    answers = iter([None, Lost])

    def held_once() -> None:
        if error := next(answers):
            raise error

    with pytest.raises(Lost):
        swap_in(lake, 3, lambda: put(lake, [("a", FIRST, 2)], Span("a", (FIRST,))), held_once)
    assert held(lake) == [("a", FIRST, 2)]


def test_a_commit_that_came_through_though_told_to_have_failed_is_not_made_again(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(lake, [("a", FIRST, 1)], Span("a", (FIRST,)))
    commit = DeltaTable.create_write_transaction

    def unheard(self: DeltaTable, *args: Any, **more: Any) -> None:
        commit(self, *args, **more)
        raise CommitFailedError("there is such a version")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", unheard)
    swap_in(lake, 3)
    assert held(lake) == [("a", FIRST, 3)]


def test_files_are_committed_with_what_is_known_of_their_columns(lake: Lake) -> None:
    rows = [("a", FIRST, "stream", 5, None), ("a", FIRST, "x" * 500, 2**64 - 1, 7), ("a", SECOND, None, None, None)]
    names = ("source", "window_start", "stream_address", "index", "pushed_at_ns")
    name = "gold.ockam_stream_messages_history"
    listed = [dict(zip(names, row, strict=True)) for row in rows]
    made = pa.Table.from_pylist(listed, schema=arrow_types.schema(all_tables()[name]))
    spark_tables.replace(lake, name, files_of(lake, name, made), [Span("a", (FIRST, SECOND))])
    known = pa.table(DeltaTable(lake.table_path(name)).get_add_actions(flatten=True)).to_pylist()
    told = {row["partition.window_start"]: row for row in known}
    assert {window: row["num_records"] for window, row in told.items()} == {FIRST: 2, SECOND: 1}
    assert told[FIRST].get("max.stream_address") is None, "a bound that is too long to be repeated"
    assert sql.rows(lake, f'SELECT count(*) AS n FROM {name} WHERE "index" > 5').to_pylist() == [{"n": 1}]


@pytest.mark.parametrize("number", [2**53 + 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("name", ["gold.bamboo_entries_history", "gold.bamboo_forks_history"])
def test_rows_are_found_by_large_numbers_also_in_compacted_files(lake: Lake, name: str, number: int) -> None:
    """deltalake reads bounds of decimals as floats, so there must be none, whoever writes the file."""
    asked = f"SELECT log_id FROM {name} WHERE log_id = CAST('{number}' AS DECIMAL(20,0))"
    for window in (FIRST, SECOND):
        rows = [{"source": "a", "window_start": window, "log_id": Decimal(number)} for _ in range(2)]
        made = pa.Table.from_pylist(rows, schema=arrow_types.schema(all_tables()[name]))
        spark_tables.replace(
            lake, name, files_of(lake, name, made) if window == FIRST else made, [Span("a", (window,))]
        )
    assert len(sql.rows(lake, asked)) == 4
    path = lake.table_path(name)
    spark_tables.replace(lake, name, [*files_of(lake, name, made), *files_of(lake, name, made)], [Span("a", (SECOND,))])
    assert DeltaTable(path).optimize.compact()["numFilesRemoved"] == 2
    assert len(sql.rows(lake, asked)) == 6


def test_no_decimal_has_bounds() -> None:
    for table in all_tables().values():
        types = {column.name: column.type for column in table.columns}
        assert not [name for name in table.stats if types[name].startswith("DECIMAL")]
