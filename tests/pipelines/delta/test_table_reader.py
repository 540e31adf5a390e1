"""Rows of tables read from their files: those that are asked for, and null what a file lacks."""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import parquet

from wirehouse_pipelines.delta import arrow_types, spark_tables, table_reader, table_writer
from wirehouse_pipelines.jobs.job import Span
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.storage.storage import LocalStorage
from wirehouse_pipelines.tables import all_tables

NAME = "silver.bamboo"
TABLE = all_tables()[NAME]
DAYS = ("2026-11-14", "2026-11-15", "2026-11-16")
COLUMNS = {"source": (), "window_start": (), "byte_start": (), "entry": ("seq", "sender", "omitted")}
KEYS = ("source", "window_start", "row_kind", "byte_start")


def test_rows_are_those_of_the_files_that_the_log_names(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path), Windows("day", DAYS[0]))
    placed = zip(product("ab", DAYS, ("entry", "message")), count())
    rows: list[dict[str, Any]] = [dict(zip(KEYS, (*place, number), strict=True)) for place, number in placed]
    folder, storage, written = lake.table_folder(NAME), LocalStorage(str(tmp_path)), []
    for row in rows:
        said = row | {"entry": {"seq": Decimal(row["byte_start"])}}
        batch = pa.RecordBatch.from_pylist([said], schema=arrow_types.schema(TABLE))
        written.append(table_writer.write(storage, folder, TABLE, {n: row[n] for n in TABLE.partition_by}, [batch]))
    spark_tables.replace(lake, NAME, [file for file in written if file], [Span("a", DAYS), Span("b", DAYS)])
    files = spark_tables.files(lake, NAME, [Span("a", DAYS[:2]), Span("b", DAYS[2:])], "entry")
    assert [file.rows for file in files] == [1, 1, 1]
    assert [file.size_bytes for file in files] == [(tmp_path / file.name).stat().st_size for file in files]
    batches = [batch for file in files for batch in table_reader.rows_of(lake, TABLE, file.name, COLUMNS)]
    found = [row for batch in batches for row in batch.to_pylist()]
    wanted = {("a", DAYS[0]), ("a", DAYS[1]), ("b", DAYS[2])}
    assert sorted(found, key=lambda row: row["byte_start"]) == [
        {name: row[name] for name in KEYS if name != "row_kind"}
        | {"entry": {"seq": Decimal(row["byte_start"]), "sender": None, "omitted": None}}
        for row in rows
        if row["row_kind"] == "entry" and (row["source"], row["window_start"]) in wanted
    ]


def test_a_struct_in_a_struct_is_read_in_part(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path), Windows("day", DAYS[0]))
    file = f"{lake.table_folder(NAME)}/source=a/window_start={DAYS[0]}/row_kind=message/part-0.parquet"
    (tmp_path / file).parent.mkdir(parents=True)
    payloads = [{"data": b"12", "packets": 1, "checked": True}, None]
    messages = [None, *({"kind": "raw", "seq": Decimal(7), "payload": payload} for payload in payloads)]
    schema = pa.schema([arrow_types.schema(TABLE).field("message")])
    parquet.write_table(pa.Table.from_pylist([{"message": one} for one in messages], schema=schema), tmp_path / file)
    columns = {"message": ("payload.rule", "kind", "payload.checked")}
    (read,) = table_reader.rows_of(lake, TABLE, file, columns)
    assert read.schema == table_reader.chosen(arrow_types.schema(TABLE), columns)
    assert [row["message"] for row in read.to_pylist()] == [
        None,
        {"payload": {"rule": None, "checked": True}, "kind": "raw"},
        {"payload": None, "kind": "raw"},
    ]


def test_what_a_file_of_before_lacks_is_null(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path), Windows("hour", "2026-11-14T00"))
    file = f"{lake.table_folder(NAME)}/source=a%3Ab/window_start={DAYS[0]}T05/row_kind=entry/part-0.parquet"
    (tmp_path / file).parent.mkdir(parents=True)
    parquet.write_table(pa.table({"entry": [{"seq": Decimal(7)}, None]}), tmp_path / file)
    (read,) = table_reader.rows_of(lake, TABLE, file, COLUMNS)
    place = {"source": "a:b", "window_start": f"{DAYS[0]}T05", "byte_start": None}
    assert read.to_pylist() == [
        place | {"entry": {"seq": Decimal(7), "sender": None, "omitted": None}},
        place | {"entry": None},
    ]
    assert read.schema.field("entry").type.field("seq").type == pa.decimal128(20, 0)


def test_rows_of_some_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_reader, "_BATCH_ROWS", 3)
    lake = Lake(str(tmp_path), Windows("day", DAYS[0]))
    file = f"{lake.table_folder(NAME)}/source=a/window_start={DAYS[0]}/row_kind=entry/part-0.parquet"
    (tmp_path / file).parent.mkdir(parents=True)
    starts = [100 + number for number in range(20)]
    parquet.write_table(pa.table({"byte_start": starts}), tmp_path / file, row_group_size=7)
    for at in ([], [0], [19], [2, 3, 7], [6, 7, 8, 13, 14], list(range(20))):
        batches = table_reader.rows_of(lake, TABLE, file, {"byte_start": ()}, np.array(at, np.int64))
        assert [row["byte_start"] for rows in batches for row in rows.to_pylist()] == [starts[place] for place in at]


def _begins(wanted: list[int], rows: pa.RecordBatch) -> pa.Array:
    return pc.is_in(rows.column("byte_start"), pa.array([100 + at for at in wanted], pa.int64()))


def test_rows_are_selected_by_few_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_reader, "_BATCH_ROWS", 3)
    lake = Lake(str(tmp_path), Windows("day", DAYS[0]))
    file = f"{lake.table_folder(NAME)}/source=a/window_start={DAYS[0]}/row_kind=entry/part-0.parquet"
    (tmp_path / file).parent.mkdir(parents=True)
    starts = [100 + number for number in range(20)]
    parquet.write_table(pa.table({"byte_start": starts}), tmp_path / file, row_group_size=7)
    for wanted in ([], [0], [2, 3, 7, 19], list(range(20))):
        at = table_reader.selected(lake, TABLE, file, {"byte_start": (), "source": ()}, partial(_begins, wanted))
        assert at.tolist() == wanted


def test_a_group_that_packs_well_is_read_in_small_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_reader, "_BATCH_BYTES", 10_000)
    lake = Lake(str(tmp_path), Windows("day", DAYS[0]))
    file = f"{lake.table_folder(NAME)}/source=a/window_start={DAYS[0]}/row_kind=entry/part-0.parquet"
    (tmp_path / file).parent.mkdir(parents=True)
    entries = [{"data": bytes([number]) * 1_000} for number in range(100)]
    parquet.write_table(pa.table({"entry": entries}), tmp_path / file, use_dictionary=False, compression="zstd")
    assert (tmp_path / file).stat().st_size < 10_000
    batches = list(table_reader.rows_of(lake, TABLE, file, {"entry": ("data",)}))
    assert max(rows.nbytes for rows in batches) < 20_000
    assert [row["entry"] for rows in batches for row in rows.to_pylist()] == entries
