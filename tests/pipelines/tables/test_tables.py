"""What tables are made of: structs of columns, views that unfold a log, and unions over the protocols."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from wirehouse_codecs.bamboo.log import schema as bamboo_log
from wirehouse_codecs.hiero.log import rows as hiero_rows
from wirehouse_codecs.ockam.log import log as ockam_log
from wirehouse_codecs.wallaroo.log import schema
from wirehouse_pipelines import tables
from wirehouse_pipelines.delta import arrow_types
from wirehouse_pipelines.jobs import connections
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.query import sql
from wirehouse_pipelines.tables import TableMissingError, all_tables, beneath, shared_columns

#: Columns of a log that the jobs add to what the codec writes.
OF_JOBS = {"decoder_version", "carried_from"}
#: Arrow types that are the same to a reader.
PLAIN = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
PLACE = {"connection_id": b"c", "direction": "client", "byte_start": 3, "byte_end": 9}
NOWHERE = dict.fromkeys(PLACE)
RECORD = {"capture_id": b"\2" * 32, "record_number": 7}
BROKER = {"topic": "t", "partition": 1, "offset": 2}
NO_BROKER = dict.fromkeys(BROKER)
FINDING = {"rule": "capture.hole", "severity": "note", "message": "6 bytes"}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path), Windows("day", "2015-01-01"))


def write(lake: Lake, name: str, *rows: Mapping[str, Any]) -> None:
    """Write `rows` to the Delta table `name`; columns left out are null."""
    schema, given = arrow_types.schema(all_tables()[name]), {"source": "a", "window_start": "2026-11-14"}
    table = pa.Table.from_pylist([given | dict(row) for row in rows], schema=schema)
    write_deltalake(lake.table_path(name), table)


@pytest.mark.parametrize(
    ("table", "schema"),
    [
        ("silver.bamboo", bamboo_log.SCHEMA),
        ("silver.hiero", hiero_rows.SCHEMA),
        ("silver.ockam", ockam_log.SCHEMA),
        ("silver.wallaroo", schema.SCHEMA),
    ],
)
def test_a_log_has_the_columns_that_its_codec_writes(table: str, schema: pa.Schema) -> None:
    columns = {field.name: field.type for field in arrow_types.schema(all_tables()[table])}
    assert {name: columns[name] for name in columns if name not in OF_JOBS} == dict(
        zip(schema.names, schema.types, strict=True)
    )


def test_a_job_refuses_columns_that_its_table_does_not_have() -> None:
    fields = [field for field in schema.SCHEMA if field.name != "session"]
    other = pa.schema([*fields, ("session", pa.struct([("version", pa.int64())])), ("new", pa.int8())])
    with pytest.raises(connections.ColumnsDifferError, match=r"session \(struct<.*; new \(not in the YAML\)"):
        connections._check_columns("silver.wallaroo", other)


def test_a_table_without_a_yaml_is_named() -> None:
    with pytest.raises(TableMissingError, match=r"no YAML declares gold\.nothing: .*gold\.nothing\.yaml is missing"):
        all_tables()["gold.nothing"]


def test_every_yaml_lies_in_a_folder() -> None:
    folder = Path(tables.__file__).parent
    assert [path.name for path in folder.glob("*.yaml")] == []


@pytest.mark.parametrize("name", [table.name for table in all_tables().values() if table.view])
def test_a_view_gives_the_types_that_it_tells(lake: Lake, name: str) -> None:
    expected = arrow_types.schema(all_tables()[name])
    found = sql.rows(lake, f"SELECT * FROM {name}").schema
    for field in expected:
        if not pa.types.is_nested(field.type):
            given = found.field(field.name).type
            assert PLAIN.get(given, given) == field.type, field.name


def test_a_view_of_a_log_has_the_comments_of_the_struct() -> None:
    logged = next(column for column in all_tables()["silver.wallaroo"].columns if column.name == "message")
    shown = {column.name: column.comment for column in all_tables()["silver.wallaroo_messages"].columns}
    assert {field.name: field.comment for field in logged.fields}.items() <= shown.items()


@pytest.mark.parametrize(("table", "struct"), [("sessions_history", "session"), ("streams_history", "stream")])
def test_a_table_of_gold_has_types_and_comments_of_the_struct(table: str, struct: str) -> None:
    logged = next(column for column in all_tables()["silver.wallaroo"].columns if column.name == struct)
    columns = all_tables()[f"gold.wallaroo_{table}"].columns
    shown = [column for column in columns if column in logged.fields]
    assert shown == [field for field in logged.fields if field.name in {column.name for column in columns}]
    assert len(shown) >= 10


def test_what_a_use_leaves_out_has_to_be_there() -> None:
    groups = {"place": tables._columns([{"name": name, "type": "INT", "comment": ""} for name in "ab"], {})}
    assert [column.name for column in tables._columns([{"use": "place", "without": ["a"]}], groups)] == ["b"]
    with pytest.raises(KeyError):
        tables._columns([{"use": "place", "without": ["c"]}], groups)


def test_connections_are_told_by_their_newest_row(lake: Lake) -> None:
    connection = {"row_kind": "connection", "connection_id": b"c"} | RECORD
    rows = [
        connection | {"window_start": f"2026-11-1{day}", "connection": {"client_port": 9, "client_packets": day}}
        for day in (4, 5)
    ]
    write(lake, "silver.wallaroo", *rows, {"row_kind": "violation", "connection_id": b"c", "finding": FINDING})
    names = "protocol, window_start, connection_id, client_port, client_packets, record_number"
    (row,) = sql.rows(lake, f"SELECT {names} FROM silver.connections").to_pylist()
    assert tuple(row.values()) == ("wallaroo", "2026-11-15", b"c", 9, 5, 7)


def test_violations_of_all_protocols_say_where_they_stand(lake: Lake) -> None:
    write(lake, "silver.wallaroo", {"row_kind": "violation", "finding": FINDING} | PLACE | RECORD)
    write(lake, "gold.wallaroo_found", {"connection_id": b"d", "rule": "r"} | RECORD)
    write(lake, "silver.cardinal", {"row_kind": "quarantine", "finding": FINDING} | RECORD | BROKER)
    write(lake, "bronze.findings", {"rule": "s"} | RECORD)
    names = ", ".join(f'"{name}"' for name in ("rule", *PLACE, *RECORD, *BROKER))
    rows = sql.rows(lake, f"SELECT {names} FROM gold.violations").to_pylist()
    expected = [
        {"rule": "capture.hole"} | PLACE | RECORD | NO_BROKER,
        {"rule": "r"} | NOWHERE | {"connection_id": b"d"} | RECORD | NO_BROKER,
        {"rule": "capture.hole"} | NOWHERE | RECORD | BROKER,
        {"rule": "s"} | NOWHERE | RECORD | NO_BROKER,
    ]
    assert sorted(map(repr, rows)) == sorted(map(repr, expected))


def test_quarantined_bytes_of_all_protocols_say_where_they_stand(lake: Lake) -> None:
    found = {"row_kind": "quarantine", "finding": FINDING} | RECORD
    write(lake, "silver.wallaroo", found | PLACE | {"raw": b"x"})
    write(lake, "silver.cardinal", found | BROKER | {"raw": {"key": b"k", "value": b"v"}})
    names = ", ".join(f'"{name}"' for name in ("protocol", *PLACE, *BROKER, "key", "value"))
    rows = sql.rows(lake, f"SELECT {names} FROM silver.quarantine").to_pylist()
    expected = [
        {"protocol": "wallaroo"} | PLACE | NO_BROKER | {"key": None, "value": b"x"},
        {"protocol": "cardinal"} | NOWHERE | BROKER | {"key": b"k", "value": b"v"},
    ]
    assert sorted(map(repr, rows)) == sorted(map(repr, expected))


def test_views_of_one_protocol_have_no_columns_of_other_kinds_of_capture() -> None:
    broker = {column.name for column in shared_columns()["broker"]}
    for name in ("silver.wallaroo_quarantine", "gold.wallaroo_violations"):
        assert not broker & {column.name for column in all_tables()[name].columns}


def test_least_and_greatest_values_are_kept_of_what_delta_orders() -> None:
    types = {(table.name, column.name): column.type for table in all_tables().values() for column in table.columns}
    kept = {types[table.name, name] for table in all_tables().values() for name in table.stats}
    assert kept <= {"BIGINT", "STRING", "DECIMAL(20,0)"}


def test_a_history_names_the_view_of_its_newest_rows_which_is_made_of_it() -> None:
    tables = (table for table in all_tables().values() if table.view is None)
    histories = {table.name: table for table in tables if table.name.endswith("_history")}
    assert {table.name for table in all_tables().values() if table.entity} == histories.keys()
    for table in histories.values():
        assert table.entity
        # What became of a client's stream is in the streams, and when a block was delivered in the blocks.
        others = {
            "gold.ockam_stream_indexes": {"gold.ockam_streams_history"},
            "gold.hiero_latencies": {"gold.hiero_blocks_history"},
        }
        assert beneath(table.entity) == {table.name} | others.get(table.entity, set())
        assert all_tables()[table.entity].listed
        assert not table.listed
    assert "superseded" in (all_tables()["gold.bamboo_entries"].view or "")


def test_a_view_is_made_of_the_tables_that_its_statement_names() -> None:
    for view in (table for table in all_tables().values() if table.view):
        assert view.reads == sql.tables_named(list(sql.tokens(view.view or "")))
    assert beneath("silver.ockam") == {"silver.ockam"}
    assert beneath("gold.violations") >= {"bronze.findings", "gold.ockam_found", "silver.ockam"}


def test_clients_of_a_stream_that_another_took_the_name_of_are_superseded(lake: Lake) -> None:
    stream = {"stream_name": "orders", "first_at_ns": 1}
    write(
        lake,
        "gold.ockam_streams_history",
        stream | {"stream_address": "old", "last_index": 99},
        stream | {"stream_address": "new", "last_index": 3, "first_at_ns": 2, "partition": 0},
        stream | {"stream_address": "other", "stream_name": "bills"},
    )
    client = {"client_id": "c", "stream_name": "orders", "saved": 50, "position": 50}
    write(
        lake,
        "gold.ockam_stream_indexes_history",
        client | {"stream_address": "old", "latest": 99},
        client | {"stream_address": "new", "latest": 3},
        client | {"client_id": "d", "stream_address": "new", "latest": 3, "position": 4},
        client | {"client_id": "e", "stream_address": "new"},
        client | {"client_id": "f", "stream_address": "new", "latest": 3, "delivered": 50},
        client | {"client_id": "g", "stream_name": "bills", "stream_address": "other"},
        client | {"client_id": "h"},
    )
    columns = "client_id, stream_address, beyond_stream"
    rows = sql.rows(lake, f"SELECT {columns}, superseded FROM gold.ockam_stream_indexes ORDER BY client_id, superseded")
    assert [tuple(row.values()) for row in rows.to_pylist()] == [
        ("c", "new", True, False),
        ("c", "old", False, True),
        ("d", "new", False, False),
        ("e", "new", None, False),
        ("f", "new", False, False),
        ("g", "other", False, False),
        ("h", None, None, None),
    ]
    current = sql.rows(lake, "SELECT client_id FROM gold.ockam_current_indexes ORDER BY client_id")
    assert current.column("client_id").to_pylist() == ["c", "d", "e", "f", "g", "h"]
