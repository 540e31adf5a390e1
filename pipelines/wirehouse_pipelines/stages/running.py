"""Runs a stage: in one task, in map tasks alone, or in Spark's map and fold tasks with a shuffle between them.

The result is a description of each file that was written (see `table_writer`), for the driver to commit.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from wirehouse_codecs.core.errors import WirehouseError
from wirehouse_pipelines.delta import table_reader
from wirehouse_pipelines.delta.table_writer import TableFiles
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.stages import pieces
from wirehouse_pipelines.stages.declaration import Order, Stage
from wirehouse_pipelines.storage.storage import open_storage
from wirehouse_pipelines.tables import all_tables

#: Sizes of input files: the most for one task without a shuffle, the most per bucket, and the share of a map task.
ALONE_BYTES: Final = 32 << 20
BUCKET_BYTES: Final = 128 << 20
SHARE_BYTES: Final = 32 << 20
#: The size of runs grows with the input, or the number of pieces would grow with its square.
_RUNS: Final = 64
_MOST_RUN_BYTES: Final = 256 << 20
_MADE: Final = "made"

#: By table the descriptions of the written files, and by name the rows that are returned.
Written = dict[str, list[dict[str, Any]]]
#: Files to read, each with the number of its input.
_Share = list[tuple[int, str]]


class OtherWindowError(WirehouseError):
    """A fold returned a row outside of the stage's windows: the next run wouldn't replace it, but duplicate it."""

    template = "{table}: a row of another window"


def run(spark: SparkSession, lake: Lake, stage: Stage) -> Written:
    """Write the rows of `stage` into files of its tables, in Spark's tasks. Raises the error of a task that failed."""
    size = sum(file.size_bytes for each in stage.inputs for file in each.files)
    if size <= ALONE_BYTES:
        alone = partial(_answered, lake=lake, stage=stage)
        return _together(stage, spark.sparkContext.parallelize([_everything(stage)], 1).map(alone).collect())
    answers = (
        _apart(spark, lake, stage, size) if stage.order is None else _exchanged(spark, lake, stage, stage.order, size)
    )
    beside = _guarded(lambda: _write(lake, stage, stage.beside))
    return _together(stage, [beside, *answers])


def _apart(spark: SparkSession, lake: Lake, stage: Stage, size: int) -> list[bytes]:
    """Map tasks read, fold and write."""
    context = spark.sparkContext
    shares = list(_shares(stage, min(max(SHARE_BYTES, -(-size // context.defaultParallelism)), BUCKET_BYTES)))
    fold = partial(_answered, lake=lake, stage=replace(stage, beside=()))
    return context.parallelize(shares, len(shares)).map(fold).collect()


def _exchanged(spark: SparkSession, lake: Lake, stage: Stage, order: Order, size: int) -> list[bytes]:
    """Map tasks pack rows into pieces, and fold tasks get the pieces of their buckets."""
    buckets = max(spark.sparkContext.defaultParallelism, -(-size // BUCKET_BYTES))
    run_bytes = min(max(pieces.RUN_BYTES, size // _RUNS), _MOST_RUN_BYTES)
    shares = [(number, json.dumps(share)) for number, share in enumerate(_shares(stage, SHARE_BYTES))]
    schema = from_arrow_schema(pieces.piece_schema(stage.schema, order))
    packed = (
        spark.createDataFrame(shares, "share INT, files STRING")
        .repartitionById(len(shares), F.col("share"))
        .mapInArrow(partial(_map, lake=lake, stage=stage, order=order, buckets=buckets, run_bytes=run_bytes), schema)
    )
    bucket = packed.repartitionById(buckets, F.col(pieces.BUCKET))
    ordered = bucket.sortWithinPartitions(pieces.BUCKET, *order.names)
    # This runs the job: the fold's tasks write the files and return their descriptions.
    answers = ordered.mapInArrow(partial(_reduce, lake=lake, stage=stage, order=order), f"{_MADE} BINARY").collect()
    return [bytes(row[_MADE]) for row in answers]


def run_here(lake: Lake, stage: Stage) -> Written:
    """Write the rows of `stage` into files of its tables, in this process, without Spark."""
    return _fold_share(_everything(stage), lake, stage)


def _everything(stage: Stage) -> _Share:
    return [(number, file.name) for number, each in enumerate(stage.inputs) for file in each.files]


def _fold_share(share: _Share, lake: Lake, stage: Stage) -> Written:
    made = folded(stage, _read(lake, stage, share))
    return _write(lake, stage, (rows for part in (stage.beside, made) for rows in part))


def folded(stage: Stage, rows: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Sort prepared rows if the stage has an order, and fold them, in this process."""
    if stage.order is None:
        return stage.fold(rows)
    packed = pieces.in_order(pieces.pack(rows, stage.schema, stage.order, 1), stage.order)
    return stage.fold(pieces.merge(packed, stage.schema, stage.order))


def _shares(stage: Stage, most: int) -> Iterator[_Share]:
    """Divide the input's files into shares of at most `most` bytes, or one larger file. Large files come first."""
    files = [(file.size_bytes, number, file.name) for number, each in enumerate(stage.inputs) for file in each.files]
    share: _Share = []
    left = most
    for size, number, name in sorted(files, reverse=True):
        if share and size > left:
            yield share
            share, left = [], most
        share.append((number, name))
        left -= size
    if share:
        yield share


def _read(lake: Lake, stage: Stage, share: Iterable[tuple[int, str]]) -> Iterator[pa.RecordBatch]:
    for number, file in share:
        each = stage.inputs[number]
        table = all_tables()[each.table]
        at = None if each.where is None else table_reader.selected(lake, table, file, *each.where)
        if at is not None and not len(at):
            continue
        for rows in table_reader.rows_of(lake, table, file, each.columns, at):
            yield each.prepare(rows)


def _map(
    batches: Iterable[pa.RecordBatch], lake: Lake, stage: Stage, order: Order, buckets: int, run_bytes: int
) -> Iterator[pa.RecordBatch]:
    """A map task: read shares of files and pack the rows into pieces."""
    shares = (json.loads(share) for batch in batches for share in batch.column("files").to_pylist())
    rows = (rows for share in shares for rows in _read(lake, stage, share))
    yield from pieces.pack(rows, stage.schema, order, buckets, run_bytes)


def _reduce(batches: Iterable[pa.RecordBatch], lake: Lake, stage: Stage, order: Order) -> Iterator[pa.RecordBatch]:
    """A fold task: merge the pieces of a bucket, fold the rows and write the result; one row with the answer."""
    made = stage.fold(pieces.merge(batches, stage.schema, order))
    answer = _guarded(lambda: _write(lake, stage, made))
    yield pa.RecordBatch.from_arrays([pa.array([answer], pa.binary())], [_MADE])


def _write(lake: Lake, stage: Stage, made: Iterable[tuple[str, pa.RecordBatch]]) -> Written:
    storage = open_storage(lake.root)
    tables = _tables(stage)
    written = _nothing(stage)
    with ExitStack() as opened:
        files = {
            name: opened.enter_context(TableFiles(storage, lake.table_folder(table), all_tables()[table]))
            for name, table in tables.items()
        }
        for name, rows in made:
            _check(name, rows, stage)
            written[name].extend(rows.to_pylist() if name in stage.returned else files[name].add(rows))
        for name, opened_files in files.items():
            written[name].extend(opened_files.finish())
    return written


def _tables(stage: Stage) -> dict[str, str]:
    """The table of each name that files are written for."""
    return {name: name for name in stage.tables} | dict(stage.passed)


def _nothing(stage: Stage) -> Written:
    return {name: [] for name in (*_tables(stage), *stage.returned)}


def _check(table: str, rows: pa.RecordBatch, stage: Stage) -> None:
    places = pa.table(rows.select(["source", "window_start"])).group_by(["source", "window_start"]).aggregate([])
    if not {(one["source"], one["window_start"]) for one in places.to_pylist()} <= stage.windows:
        raise OtherWindowError(table=table)


def _answered(share: _Share, lake: Lake, stage: Stage) -> bytes:
    return _guarded(lambda: _fold_share(share, lake, stage))


def _guarded(write: Callable[[], Written]) -> bytes:
    """Call `write`; its result or its error, pickled. A raised error would reach the driver wrapped in Spark's own."""
    try:
        return pickle.dumps(write())
    except (WirehouseError, OSError) as error:
        return pickle.dumps(error)


def _together(stage: Stage, answers: Sequence[bytes]) -> Written:
    found = _nothing(stage)
    for answer in map(pickle.loads, answers):
        if isinstance(answer, Exception):
            raise answer
        for name, files in answer.items():
            found[name] += files
    return found
