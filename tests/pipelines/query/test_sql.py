"""Queries without a JVM: tables and views by name, and that a statement can only read."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support import recipe_lake
from tests.support.searches import fast_first
from wirehouse_pipelines.delta import arrow_types, delta_tables
from wirehouse_pipelines.jobs import upkeep
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.query import sql
from wirehouse_pipelines.query.sql import (
    AsOfError,
    MemorySizeError,
    QueryError,
    StatementRefusedError,
    StatementTooLongError,
    TableDamagedError,
    UnknownTableError,
)
from wirehouse_pipelines.tables import all_tables

MOST = 2**64 - 1


def _layer(name: str) -> str:
    return name.split(".")[0]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path), Windows("day", "2015-01-01"))


def write(lake: Lake, name: str, *rows: Mapping[str, Any]) -> None:
    """Write `rows` to the Delta table `name`; columns left out are null."""
    schema = arrow_types.schema(all_tables()[name])
    table = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
    write_deltalake(lake.table_path(name), table, mode="append")


def block(window: str, status: str, number: int = MOST) -> dict[str, Any]:
    return {
        "source": "a",
        "window_start": window,
        "block_hash": b"\1" * 32,
        "number": Decimal(number),
        "status": status,
        "missing": [{"name": "state/", "messages": 2, "what": "messages"}],
    }


def test_a_table_is_read_by_its_name_with_its_types(lake: Lake) -> None:
    write(lake, "gold.cardinal_batches_history", block("2026-11-14", "complete"))
    (row,) = sql.rows(lake, "SELECT block_hash, number, missing FROM gold.cardinal_batches_history").to_pylist()
    assert row == {
        "block_hash": b"\1" * 32,
        "number": Decimal(MOST),
        "missing": [{"name": "state/", "messages": 2, "what": "messages"}],
    }


def test_a_view_of_an_entity_has_the_newest_row_of_each_key(lake: Lake) -> None:
    history = block("2026-11-14", "incomplete"), block("2026-11-15", "complete")
    write(lake, "gold.cardinal_batches_history", *history)
    rows = sql.rows(lake, "SELECT window_start, status FROM gold.cardinal_batches").to_pylist()
    assert rows == [{"window_start": "2026-11-15", "status": "complete"}]


def test_nulls_of_a_key_are_one_value_and_no_other(lake: Lake) -> None:
    names = {"a": (None, None), "b": ("", None), "c": (None, 0), "d": ("x", 1)}
    days = {"a": 3, "b": 1, "c": 2, "d": 2}
    written = [
        {"source": "s", "window_start": f"2026-11-{day + 1}", "client_id": "one", "saved": day}
        | {"stream_name": "n", "stream_address": address, "partition": partition}
        for key, (address, partition) in names.items()
        for day in range(10, 10 + days[key])
    ]
    write(lake, "gold.ockam_stream_indexes_history", *written)
    rows = sql.rows(lake, "SELECT stream_address, `partition`, saved FROM gold.ockam_stream_indexes").to_pylist()
    newest = {(row["stream_address"], row["partition"]): int(row["saved"]) for row in rows}
    assert newest == {names[key]: 9 + days[key] for key in names}
    assert len(rows) == len(names)


def test_views_of_views_are_made_from_their_definitions(lake: Lake) -> None:
    found = {"source": "a", "window_start": "2026-11-14", "rule": "capture.time_suspect", "severity": "note"}
    write(lake, "bronze.findings", found | {"capture_id": b"\2" * 32, "record_number": 7})
    rows = sql.rows(lake, "SELECT rule, record_number FROM gold.violations WHERE severity = 'note'").to_pylist()
    assert rows == [{"rule": "capture.time_suspect", "record_number": 7}]


def test_tables_are_read_as_they_were(lake: Lake) -> None:
    table = "gold.cardinal_batches_history"
    before = datetime.now(UTC)
    write(lake, table, block("2026-11-14", "incomplete"))
    first = DeltaTable(lake.table_path(table)).history(1)[0]["timestamp"]
    between = datetime.fromtimestamp(first / 1000, UTC)
    while datetime.now(UTC) - between < timedelta(milliseconds=2):
        pass
    write(lake, table, block("2026-11-15", "complete"))

    def statuses(as_of: sql.AsOf | None) -> list[str]:
        found = sql.rows(lake, "SELECT status FROM gold.cardinal_batches", as_of)
        return [row["status"] for row in found.to_pylist()]

    assert statuses(None) == statuses(1) == statuses(datetime.now(UTC)) == ["complete"]
    assert statuses(0) == statuses(between) == ["incomplete"]
    with pytest.raises(AsOfError, match=f"times of gold.cardinal_batches that are known are {between:%Y-%m-%dT%H:%M}"):
        statuses(before - timedelta(days=1))
    # A copy gives files other times; those of the commits stay.
    copy = Lake(f"{lake.root}/copy", lake.windows)
    shutil.copytree(lake.table_path(table), copy.table_path(table))
    for file in Path(copy.table_path(table), "_delta_log").iterdir():
        os.utime(file, (4_000_000_000, 4_000_000_000))
    asked = "SELECT status FROM gold.cardinal_batches"
    assert sql.rows(copy, asked, between).to_pylist() == [{"status": "incomplete"}]
    assert sql.rows(copy, asked, datetime.now(UTC)).to_pylist() == [{"status": "complete"}]
    upkeep.purge(lake, table)
    newest = delta_tables.opened(lake.table_path(table))
    assert newest is not None
    assert statuses(newest.version()) == statuses(datetime.now(UTC)) == ["complete"]
    for gone in (between, before):
        with pytest.raises(AsOfError, match=r"times (of \S+ that )?are known"):
            statuses(gone)


@pytest.mark.parametrize(
    ("statement", "as_of", "said"),
    [
        ("SELECT * FROM gold.cardinal_batches", 7, "has versions up to 0"),
        ("SELECT * FROM gold.cardinal_batches", 1 << 64, "has versions up to 0"),
        ("SELECT * FROM gold.violations", 0, "give a time instead"),
    ],
)
def test_a_version_that_there_is_not_is_said(lake: Lake, statement: str, as_of: int, said: str) -> None:
    write(lake, "gold.cardinal_batches_history", block("2026-11-14", "incomplete"))
    with pytest.raises(AsOfError, match=said):
        sql.rows(lake, statement, as_of)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", 3),
        ("2026-11-14", datetime(2026, 11, 14, tzinfo=UTC)),
        ("2026-11-14T22:00:00+01:00", datetime(2026, 11, 14, 21, tzinfo=UTC)),
    ],
)
def test_versions_and_times_are_told_apart(text: str, expected: sql.AsOf) -> None:
    assert sql.parse_as_of(text) == expected


@pytest.mark.parametrize("text", ["-1", "yesterday", "", "2026-13-01"])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(AsOfError, match="neither a version"):
        sql.parse_as_of(text)


def test_of_a_view_parts_may_begin_later(lake: Lake) -> None:
    found = {"source": "a", "window_start": "2026-11-14", "rule": "capture.time_suspect", "severity": "note"}
    write(lake, "bronze.findings", found)
    then = datetime.now(UTC)
    while datetime.now(UTC) - then < timedelta(milliseconds=2):
        pass
    write(lake, "gold.hiero_found", found | {"rule": "hiero.x"})
    assert sql.rows(lake, "SELECT rule FROM gold.violations", then).to_pylist() == [{"rule": "capture.time_suspect"}]
    with pytest.raises(AsOfError, match=r"times of gold\.hiero_violations that are known"):
        sql.rows(lake, "SELECT rule FROM gold.hiero_violations", then)


def _value(type_: pa.DataType) -> Any:
    """Some value of the type; of bytes those that are no text."""
    if pa.types.is_struct(type_):
        return {field.name: _value(field.type) for field in type_}
    if pa.types.is_map(type_):
        return [(_value(type_.key_type), _value(type_.item_type))]
    if pa.types.is_list(type_):
        return [_value(type_.value_type)]
    if pa.types.is_binary(type_):
        return b"\xff\xfe"
    if pa.types.is_string(type_):
        return "violation"
    if pa.types.is_boolean(type_):
        return True
    return Decimal(1) if pa.types.is_decimal(type_) else 1.0 if pa.types.is_floating(type_) else 1


#: The windows of the lake `full`, and so much memory as a statement may take there.
WINDOWS = [str(date(2026, 1, 1) + timedelta(days=day)) for day in range(200)]
FULL_MEMORY = "200m"


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """A row of each window in each table, whose columns have comments as in tables that jobs write.

    Of logs it is one of each kind. A statement has little memory.
    """
    lake = Lake(str(tmp_path_factory.mktemp("full")), Windows("day", "2015-01-01"))
    for table in all_tables().values():
        if table.view is None:
            row = {field.name: _value(field.type) for field in arrow_types.schema(table)}
            kinds = ("violation", "quarantine", "connection", "message") if "row_kind" in row else ("",)
            windows = [{"window_start": window} for window in (WINDOWS if "window_start" in row else WINDOWS[:1])]
            rows = [row | one | {"row_kind": kind} for one in windows for kind in kinds]
            # In two files.
            for part in (rows[::2], rows[1::2]):
                recipe_lake.write_table(lake, table.name, part)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(sql.MEMORY_VARIABLE, FULL_MEMORY)
        yield lake


@pytest.mark.parametrize("name", fast_first(all_tables(), 2, by=_layer, most=None))
def test_every_column_is_grouped_filtered_and_compared(full: Lake, name: str) -> None:
    total = sql.rows(full, f"SELECT COUNT(*) AS n FROM {name}")["n"][0].as_py()
    for column in all_tables()[name].columns:
        it = f"`{column.name}`"
        groups = sql.rows(full, f"SELECT {it}, COUNT(*) AS n FROM {name} GROUP BY {it}").to_pylist()
        assert sum(group["n"] for group in groups) == total
        there = sum(group["n"] for group in groups if group[column.name] is not None)
        if not column.type.startswith(("ARRAY", "MAP", "STRUCT")):
            asked = f"SELECT MIN({it}) AS least, MAX({it}) AS most, COUNT(*) AS n FROM {name} WHERE {it} IS NOT NULL"
            (row,) = sql.rows(full, asked).to_pylist()
            values = [group[column.name] for group in groups if group[column.name] is not None]
            assert row == {"least": min(values, default=None), "most": max(values, default=None), "n": there}
        if column.type == "BINARY":
            sizes = sql.rows(full, f"SELECT DISTINCT length({it}) AS a FROM {name} WHERE octet_length({it}) > 0")
            assert {row["a"] for row in sizes.to_pylist()} == ({2} if there else set())


@pytest.mark.parametrize(
    "name", fast_first([name for name, table in all_tables().items() if table.key], 2, by=_layer, most=None)
)
def test_every_table_is_joined_on_its_key_and_filtered_by_each_column(full: Lake, name: str) -> None:
    counted, joined = (sql.rows(full, each).num_rows for each in recipe_lake.statements(name))
    keyed = " AND ".join(f"`{key}` IS NOT NULL" for key in all_tables()[name].key)
    assert counted == 1
    assert (joined > 0) == (sql.rows(full, f"SELECT 1 AS n FROM {name} WHERE {keyed}").num_rows > 0)
    total = sql.rows(full, f"SELECT COUNT(*) AS n FROM {name}")["n"][0].as_py()
    for column in all_tables()[name].columns:
        if not column.type.startswith(("ARRAY", "MAP", "STRUCT")):
            it = f"`{column.name}`"
            most = f"(SELECT MAX({it}) FROM {name})"
            asked = f"SELECT COUNT(*) AS n FROM {name} WHERE {it} = {most} OR {it} < {most} OR {it} IS NULL"
            assert sql.rows(full, asked)["n"][0].as_py() == total


def test_the_size_of_bytes_is_counted_in_bytes(lake: Lake) -> None:
    row = {"source": "a", "stream_address": "\u00e4", "index": Decimal(1), "data": b"\xff\xfe\0"}
    write(lake, "gold.ockam_stream_messages_history", row)
    asked = "LENGTH(stream_address) AS b, octet_length(stream_address) AS c, 'length(data)' AS d"
    told = sql.rows(
        lake,
        f"SELECT length(m.data) AS a, {asked} FROM gold.ockam_stream_messages AS m WHERE octet_length( `data` ) > 2",
    )
    assert told.to_pylist() == [{"a": 3, "b": 1, "c": 2, "d": "length(data)"}]


def test_who_got_a_message_is_told_of_many_windows(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of an hour that tell of the same messages."""
    name = "gold.ockam_stream_messages_history"
    for begin in range(0, 200, 20):
        rows = [
            {"source": "a", "window_start": WINDOWS[window], "stream_address": "s", "deliveries": 1}
            | {"delivered_to": [f"c{window % 3}", "c0"], "index": Decimal(number)}
            for window in range(begin, begin + 20)
            for number in range(300)
        ]
        write(lake, name, *rows)
    monkeypatch.setenv(sql.MEMORY_VARIABLE, "60m")
    asked = "SELECT MIN(deliveries) AS n, MIN(delivered_to) AS least, MAX(delivered_to) AS most, COUNT(*) AS rows"
    told = sql.rows(lake, f"{asked} FROM gold.ockam_stream_messages")
    whom = ["c0", "c1", "c2"]
    assert told.to_pylist() == [{"n": 200, "least": whom, "most": whom, "rows": 300}]


@pytest.mark.parametrize("name", all_tables())
def test_a_table_never_written_is_empty_and_has_its_columns(lake: Lake, name: str) -> None:
    table = sql.rows(lake, f"SELECT * FROM {name}")
    assert table.num_rows == 0
    assert table.schema.names == [column.name for column in all_tables()[name].columns]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1 AS n",
        "  select 1 as n ;",
        "-- a comment\nSELECT 1 AS n -- another; DROP TABLE x",
        "/* COPY /* nested */ ; */ WITH t AS (SELECT 1 AS n) SELECT n FROM t",
        "SELECT 1 AS n FROM (SELECT 'drop; copy ''insert''' AS \"delete\") AS t",
        "(SELECT 1 AS n)",
    ],
)
def test_statements_that_read_pass(lake: Lake, statement: str) -> None:
    assert sql.rows(lake, statement).to_pylist() == [{"n": 1}]


def test_explain_shows_the_plan_of_a_query(lake: Lake) -> None:
    assert "plan" in sql.rows(lake, "EXPLAIN SELECT * FROM bronze.messages").schema.names


@pytest.mark.parametrize(
    "statement",
    [
        "",
        " -- nothing",
        "DROP TABLE gold.cardinal_chain",
        "/* SELECT */ DELETE FROM gold.cardinal_chain",
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP TABLE x",
        "SELECT 1 /* ; */ ; COPY (SELECT 1) TO 'x.csv'",
        "COPY (SELECT 1) TO 'x.csv'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO 'x.csv'",
        "EXPLAIN ANALYZE INSERT INTO gold.cardinal_chain SELECT 1",
        "WITH t AS (SELECT 1) INSERT INTO gold.cardinal_chain SELECT * FROM t",
        "WITH t AS (DELETE FROM gold.cardinal_chain) SELECT 1",
        "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '/etc/passwd'",
        "SET datafusion.catalog.information_schema = true",
        "SELECT E'\\'' ; DROP TABLE x --'",
        "SELECT 'open",
        "SELECT 1 /* open",
        "SELECT '\udcff'",
        "x",
    ],
)
def test_anything_else_is_refused(lake: Lake, statement: str) -> None:
    with pytest.raises(StatementRefusedError, match="only one SELECT, WITH or EXPLAIN"):
        sql.rows(lake, statement)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT " + "+".join(["n"] * 1002) + " AS n FROM (SELECT 1 AS n)",
        " UNION ALL ".join(["SELECT 1 AS n"] * 1002),
        "SELECT 1 FROM " + ", ".join(f"(SELECT 1 FROM gold.violations) AS t{number}" for number in range(501)),
        "SELECT 1 WHERE " + " OR ".join(["1 = 2"] * 501),
    ],
    ids=["terms", "unions", "tables", "conditions"],
)
def test_a_statement_that_would_overflow_the_stack_is_refused(lake: Lake, statement: str) -> None:
    with pytest.raises(StatementTooLongError, match="operators and joins, and the engine takes 1,000"):
        sql.rows(lake, statement)


def test_a_long_list_of_values_is_taken(lake: Lake) -> None:
    values = ", ".join(map(str, range(20_000)))
    assert sql.rows(lake, f"SELECT 1 AS n WHERE 19999 IN ({values})").num_rows == 1


def test_the_longest_statement_is_taken(lake: Lake) -> None:
    assert sql.rows(lake, "SELECT " + " + ".join(["1"] * 1001) + " AS n").to_pylist() == [{"n": 1001}]


def test_a_statement_has_so_much_memory(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    many = "SELECT value FROM generate_series(1, 3000000)"
    monkeypatch.setenv(sql.MEMORY_VARIABLE, "20m")
    with pytest.raises(QueryError, match=r"more than the 20m of memory .* or give it more by WIREHOUSE_SQL_MEMORY"):
        sql.rows(lake, f"{many} ORDER BY value DESC LIMIT 2900000")
    # What can go on in files does.
    counted = sql.rows(lake, f"SELECT COUNT(*) AS n FROM (SELECT DISTINCT value FROM ({many}))")
    assert counted.to_pylist() == [{"n": 3_000_000}]
    monkeypatch.setenv(sql.MEMORY_VARIABLE, "much")
    with pytest.raises(MemorySizeError, match="must be a size such as 512m or 4g, not 'much'"):
        sql.rows(lake, "SELECT 1")


def test_nothing_is_written_by_what_was_refused(lake: Lake, tmp_path: Path) -> None:
    target = tmp_path / "stolen.csv"
    with pytest.raises(StatementRefusedError):
        sql.rows(lake, f"EXPLAIN ANALYZE COPY (SELECT 1) TO '{target}'")
    assert not target.exists()


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("gold.cardinal_batch", "Did you mean gold.cardinal_batches?"),
        ("cardinal_batches", "Did you mean gold.cardinal_batches?"),
        ("nowhere.t", "`wirehouse tables` lists them"),
        ("'/etc/passwd'", "`wirehouse tables` lists them"),
    ],
)
def test_an_unknown_table_is_told_with_the_one_that_may_be_meant(lake: Lake, name: str, advice: str) -> None:
    with pytest.raises(UnknownTableError, match=rf"there is no table .*\. {re.escape(advice)}$"):
        sql.rows(lake, f"SELECT * FROM {name}")


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        ("SELECT nothing FROM bronze.messages", "nothing"),
        ("SELECT 1 +", "ParserError"),
        ("SELECT topic, offset, key FROM bronze.messages", '"offset"'),
        ("SELECT 1 / (n - 1) FROM (SELECT 1 AS n)", "zero"),
    ],
)
def test_what_the_engine_refuses_is_one_line(lake: Lake, statement: str, word: str) -> None:
    with pytest.raises(QueryError, match=word) as caught:
        sql.rows(lake, statement)
    assert "\n" not in str(caught.value)


def test_a_table_whose_log_is_damaged_is_named(lake: Lake) -> None:
    name = "gold.cardinal_batches_history"
    write(lake, name, block("2026-11-14", "incomplete"))
    Path(lake.table_path(name), "_delta_log", "00000000000000000000.json").write_text("{")
    with pytest.raises(TableDamagedError, match=f"{name} can't be opened: ") as caught:
        sql.rows(lake, "SELECT status FROM gold.cardinal_batches")
    assert "\n" not in str(caught.value)


def test_an_exception_of_the_caller_is_its_own(lake: Lake) -> None:
    def read_and_fail() -> None:
        with sql.query(lake, "SELECT 1 AS n") as reader:
            next(iter(reader))
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        read_and_fail()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("BIGINT", pa.int64()),
        ("DECIMAL(20,0)", pa.decimal128(20, 0)),
        ("ARRAY<BINARY>", pa.list_(pa.binary())),
        ("MAP<STRING, ARRAY<INT>>", pa.map_(pa.string(), pa.list_(pa.int32()))),
        (
            "STRUCT<a: STRING, b: ARRAY<STRUCT<c: DECIMAL(20, 0)>>>",
            pa.struct({"a": pa.string(), "b": pa.list_(pa.struct({"c": pa.decimal128(20, 0)}))}),
        ),
    ],
)
def test_spark_types_in_arrow(text: str, expected: pa.DataType) -> None:
    assert arrow_types.parse(text) == expected


@pytest.mark.parametrize("text", ["NUMBER", "", "BIGINT BIGINT"])
def test_what_is_no_type_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="type"):
        arrow_types.parse(text)
