"""Files of tables with rows of any partitions."""

from __future__ import annotations

import random
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from wirehouse_pipelines.delta import arrow_types, spark_tables, table_writer
from wirehouse_pipelines.jobs.job import Span
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.query import sql
from wirehouse_pipelines.storage.storage import LocalStorage
from wirehouse_pipelines.tables import all_tables

NAME = "gold.bamboo_entries_history"
TABLE = all_tables()[NAME]
DAYS = ("2026-11-14", "2026-11-15")


def row(window: str, author: bytes, seq: int) -> dict[str, Any]:
    return {"source": "a", "window_start": window, "author": author, "log_id": Decimal(1), "seq": Decimal(seq)}


ROWS = [row(DAYS[seq % 2], author, seq) for author in (b"b", b"a") for seq in (2**64 - 1, 3, 2, 1)]


@pytest.mark.parametrize(("waiting", "files"), [(1 << 20, 2), (0, 5)])
def test_rows_of_several_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: int, files: int) -> None:
    monkeypatch.setattr(table_writer, "WAITING_BYTES", waiting)
    lake = Lake(str(tmp_path), Windows("day", DAYS[0]))
    batches = pa.Table.from_pylist(ROWS, schema=arrow_types.schema(TABLE)).to_batches(max_chunksize=3)
    with table_writer.TableFiles(LocalStorage(str(tmp_path)), lake.table_folder(NAME), TABLE) as open_files:
        written = [file for batch in batches for file in open_files.add(batch)]
        written += open_files.finish()
    assert len(written) == files
    assert sum(file["stats"]["numRecords"] for file in written) == len(ROWS)
    for file in written:
        stored = parquet.read_table(tmp_path / lake.table_folder(NAME) / file["path"]).to_pylist()
        assert stored == sorted(stored, key=lambda one: (one["author"], one["seq"]))
        assert "seq" not in file["stats"]["minValues"] | file["stats"]["maxValues"], "a DECIMAL has no bounds"
    spark_tables.replace(lake, NAME, written, [Span("a", DAYS)])
    found = sql.rows(lake, f"SELECT window_start, author, seq FROM {NAME}").to_pylist()
    counted = Counter((one["window_start"], one["author"], int(one["seq"])) for one in found)
    assert counted == Counter((one["window_start"], one["author"], int(one["seq"])) for one in ROWS)


def test_bytes_that_get_no_smaller_are_written_as_they_are(tmp_path: Path) -> None:
    """The same rows come out; of the columns that are hashes the file has nothing but their bytes."""
    lake, chance = Lake(str(tmp_path), Windows("day", DAYS[0])), random.Random(1)
    partition = {"source": "a", "window_start": DAYS[0]}
    rows = [
        row(DAYS[0], b"a" * 32, seq)
        | {"entry_hash": chance.randbytes(64), "data": b"entry %d of a log" % seq, "seen_from": ["a", "b"]}
        | {"signature": chance.randbytes(64) if seq > 3 else None, "payload_hash": None}
        for seq in range(4000)
    ]
    batches = pa.Table.from_pylist(rows, schema=arrow_types.schema(TABLE)).to_batches(max_chunksize=1500)
    storage = LocalStorage(str(tmp_path))
    file = table_writer.write(storage, lake.table_folder(NAME), TABLE, partition, batches)
    assert file is not None
    path = tmp_path / lake.table_folder(NAME) / file["path"]
    group = parquet.read_metadata(path).row_group(0)
    columns = {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}
    plain = {name for name, column in columns.items() if column.compression == "UNCOMPRESSED"}
    assert plain == {"entry_hash", "signature"}
    assert not any(columns[name].has_dictionary_page for name in plain)
    assert 64 * len(rows) < columns["entry_hash"].total_compressed_size < 70 * len(rows)
    spark_tables.replace(lake, NAME, [file], [Span("a", DAYS[:1])])
    found = sql.rows(lake, f"SELECT * FROM {NAME} ORDER BY seq")
    wanted = pa.Table.from_pylist(rows, schema=arrow_types.schema(TABLE))
    for name in ("entry_hash", "data", "signature", "seen_from", "author"):
        assert found[name].to_pylist() == wanted[name].to_pylist(), name


def test_columns_without_bytes_are_written_as_others(tmp_path: Path) -> None:
    storage, partition = LocalStorage(str(tmp_path)), {"source": "a", "window_start": DAYS[0]}
    for rows in ([], ROWS[:1]):
        batch = pa.RecordBatch.from_pylist(rows, schema=arrow_types.schema(TABLE))
        file = table_writer.write(storage, "x", TABLE, partition, [batch])
        assert file is not None
        assert file["stats"]["numRecords"] == len(rows)


def test_nulls_make_no_group_of_rows_large() -> None:
    """They take room in memory and none in a file: of a log most of a row is null."""
    empty = pa.StructArray.from_arrays([pa.nulls(1000, pa.binary()), pa.nulls(1000, pa.int64())], ["data", "seq"])
    rows = pa.StructArray.from_arrays([empty, pa.array(range(1000), pa.int64())], ["never", "seq"])
    assert table_writer._filled_bytes(rows) == 8000
    assert table_writer._filled_bytes(empty) == 0
