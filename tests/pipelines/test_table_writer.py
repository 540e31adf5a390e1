"""Files of tables with rows of any partitions."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from wirehouse_pipelines import arrow_types, delta, sql, table_writer
from wirehouse_pipelines.lake import Lake
from wirehouse_pipelines.storage import LocalStorage
from wirehouse_pipelines.tables import all_tables
from wirehouse_pipelines.windows import Windows
from wirehouse_pipelines.work import Span

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
    written = list(table_writer.write_all(LocalStorage(str(tmp_path)), lake.table_folder(NAME), TABLE, batches))
    assert len(written) == files
    assert sum(file["stats"]["numRecords"] for file in written) == len(ROWS)
    for file in written:
        stored = parquet.read_table(tmp_path / lake.table_folder(NAME) / file["path"]).to_pylist()
        assert stored == sorted(stored, key=lambda one: (one["author"], one["seq"]))
        assert file["stats"]["minValues"]["seq"] == min(int(one["seq"]) for one in stored)
        assert file["stats"]["maxValues"]["seq"] == max(int(one["seq"]) for one in stored)
    delta.replace(lake, NAME, delta.Files(written, None), [Span("a", DAYS)])
    found = sql.rows(lake, f"SELECT window_start, author, seq FROM {NAME}").to_pylist()
    counted = Counter((one["window_start"], one["author"], int(one["seq"])) for one in found)
    assert counted == Counter((one["window_start"], one["author"], int(one["seq"])) for one in ROWS)
