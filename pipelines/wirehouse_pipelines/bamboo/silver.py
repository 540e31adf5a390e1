"""Silver of Bamboo: connections decoded and judged in one pass, and entries of files; all but signatures and links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.bamboo.log import file_rows
from wirehouse_codecs.bamboo.log.schema import SCHEMA, starter
from wirehouse_codecs.bamboo.options import BambooOptions
from wirehouse_codecs.logs.rows import Gather, Start
from wirehouse_pipelines.delta import arrow_types, spark_tables
from wirehouse_pipelines.jobs import connections, steps
from wirehouse_pipelines.jobs.job import Work
from wirehouse_pipelines.lake.lake import Source
from wirehouse_pipelines.stages import Input, Order, Stage
from wirehouse_pipelines.tables import all_tables

VERSION = "19"
FILES: Final = "bronze.files"
_TABLE: Final = "silver.bamboo"
_COLUMNS: Final = (*file_rows.RECORDS, "part")
#: The pieces of a record stand together.
_RECORD: Final = ("source", "window_start", "capture_id", "name", "first")


def _start(source: Source, key: bytes) -> Start | Gather:
    return starter(BambooOptions.from_mapping(source.options))


def _entries(work: Work) -> Stage:
    """The rows of entry files, one a record."""
    files = spark_tables.files(work.lake, FILES, work.spans)
    types = {field.name: field.type for field in arrow_types.schema(all_tables()[FILES])}
    schema = pa.schema([*((name, types[name]) for name in _COLUMNS), ("first", pa.int64())])
    return Stage(
        [Input(FILES, files, dict.fromkeys(_COLUMNS, ()), _with_first)],
        schema,
        Order(_RECORD, ("part",)),
        _fold,
        [_TABLE],
        steps.windows(work.spans),
    )


def _with_first(pieces: pa.RecordBatch) -> pa.RecordBatch:
    """With the number of the record's first piece."""
    return pieces.append_column("first", pc.subtract(pieces.column("record_number"), pieces.column("part")))


def _fold(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    waiting: list[dict[str, Any]] = []
    for batch in batches:
        records: list[dict[str, Any]] = []
        for piece in batch.to_pylist():
            if waiting and any(piece[name] != waiting[0][name] for name in _RECORD):
                records.append(_joined(waiting))
                waiting = []
            waiting.append(piece)
        yield _TABLE, _rows(records)
    if waiting:
        yield _TABLE, _rows([_joined(waiting)])


def _joined(pieces: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The record that these are pieces of, in their order."""
    record = dict(pieces[0])
    if len(pieces) > 1 or record["first"] != record["record_number"]:
        record["record_number"] = record["first"]
        record["damage"] = min((piece["damage"] for piece in pieces if piece["damage"] is not None), default=None)
        for name in ("arrived_at_ns", "capture_arrived_at_ns"):
            record[name] = min(piece[name] for piece in pieces)
        for name in ("data", "damaged"):
            record[name] = b"".join(piece[name] or b"" for piece in pieces)
    return record


def _rows(records: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    rows = [{**record, **file_rows.row_of(record)} for record in records]
    return pa.RecordBatch.from_pylist(rows, schema=file_rows.ROWS)


JOB = connections.job("bamboo", VERSION, SCHEMA, _start, more=_entries)
