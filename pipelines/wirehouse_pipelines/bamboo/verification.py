"""Verifies the Bamboo entries of a run, log by log, whatever connection they came over.

The entries of the windows come from silver.bamboo. Entries of the same logs that earlier windows verified come from the
history tables (`known_logs.py`). All entries of a log meet in one task. The task checks the signature and the payload
of each distinct new entry (`signature_checks.py`), updates the state of the log (`correlation/log_state.py`), and
writes the entries with their verdicts into files of `gold.bamboo_entries_history`. All other results are rows of
RESULTS.

A log is judged without the other logs, with one exception: a link may lead to an entry of another log
(`known_logs.py`). That hardly ever happens. If it does, all logs of the run are judged again with that entry.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from wirehouse_codecs.bamboo.log.rows import ENTRY as LOGGED
from wirehouse_pipelines.bamboo.known_logs import KNOWN_COLUMNS, entries_elsewhere, known_of_logs, known_rows
from wirehouse_pipelines.bamboo.log_results import fold
from wirehouse_pipelines.bamboo.signature_checks import check
from wirehouse_pipelines.bamboo.verification_input import COLUMNS, LOOKUP, lookup_rows, read_entries
from wirehouse_pipelines.bamboo.verification_rows import (
    ENTRIES_TABLE,
    FILE,
    MOVED,
    RESULTS,
    SILVER,
    Batches,
    Verified,
    with_all,
    with_following,
    with_key,
    without_following,
)
from wirehouse_pipelines.delta import spark_tables, table_reader, table_writer
from wirehouse_pipelines.jobs.job import Work
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.stages import buckets
from wirehouse_pipelines.storage.storage import open_storage
from wirehouse_pipelines.tables import all_tables

#: About how many entries a task has. To check them takes a few seconds.
_TASK_ROWS: Final = 20_000


def write_verified_entries(work: Work, version: str) -> Verified:
    """Verify the entries of a run and write them into files. What each window changed is the result.

    The files are complete when this returns, and in no table yet: the rows of kind FILE list them.
    """
    least = int(work.spark.conf.get("spark.sql.shuffle.partitions") or 1)
    verified = _write_entries(work, version, least, None)
    if (elsewhere := entries_elsewhere(work, verified)) is not None:
        # The files that were written before stay outside the table.
        verified = _write_entries(work, version, least, elsewhere)
    return verified


def _write_entries(work: Work, version: str, least: int, elsewhere: DataFrame | None) -> Verified:
    """Judge all logs and write their entries. `elsewhere`: entries that other logs link to, as rows of MOVED."""
    read = partial(read_entries, services=work.services)
    files = spark_tables.files(work.lake, SILVER, work.members(), LOGGED)
    tasks = buckets.number(sum(file.rows for file in files), _TASK_ROWS, least)
    of_log = partial(table_reader.mapped, work.spark, work.lake, SILVER, files, COLUMNS)
    packed = of_log(partial(_packed, entries=read, tasks=tasks), buckets.DDL)
    others = [] if elsewhere is None else [elsewhere]
    if work.before:
        seen = of_log(partial(lookup_rows, entries=read), from_arrow_schema(LOOKUP))
        if elsewhere is not None:
            linking = with_all(elsewhere.withColumn("key", F.col("linked_from")).select("source", "key"), LOOKUP)
            seen = seen.unionByName(linking.fillna(False))
        known, places = known_of_logs(work, work.settle(seen))
        others.append(known)
        of_known = partial(_packed, entries=known_rows, tasks=tasks)
        of_table = table_reader.picked(work.lake, ENTRIES_TABLE, places, KNOWN_COLUMNS, of_known, buckets.DDL, least)
        packed = packed.unionByName(of_table)
    for rows in others:
        packed = packed.unionByName(rows.mapInArrow(partial(_packed, entries=_cast, tasks=tasks), buckets.DDL))
    write = partial(_verify_and_write, lake=work.lake, version=version)
    # `settle` runs the tasks, once: they write the files.
    rows = work.settle(buckets.together(packed, tasks).mapInArrow(write, from_arrow_schema(RESULTS)))
    # Few rows are left, so fewer partitions are enough.
    rows = rows.coalesce(least)
    (kinds,) = rows.agg(F.collect_set("row_kind")).collect()[0]
    return Verified(rows, frozenset(kinds))


def _packed(batches: Batches, entries: Callable[[Batches], Batches], tasks: int) -> Iterator[pa.RecordBatch]:
    """Rows of MOVED, packed by the task of their log."""
    light = map(without_following, entries(batches))
    return buckets.pack(light, lambda rows: with_key(rows).column("key"), tasks)


def _cast(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Rows of MOVED from Spark, which names the items of lists differently."""
    return (batch.cast(MOVED) for batch in batches)


def _verify_and_write(batches: Batches, lake: Lake, version: str) -> Iterator[pa.RecordBatch]:
    """A task: verify packed entries, write them, and return all other results as rows of RESULTS."""
    others: list[pa.RecordBatch] = []

    def entries() -> Iterator[pa.RecordBatch]:
        rows = buckets.unpack(batches, MOVED)
        for results in fold(with_following(check(with_key(rows)))) if rows.num_rows else ():
            others.append(results.others)
            yield results.entries.append_column("decoder_version", pa.repeat(version, results.entries.num_rows))

    table, folder = all_tables()[ENTRIES_TABLE], lake.table_folder(ENTRIES_TABLE)
    for file in table_writer.write_all(open_storage(lake.root), folder, table, entries()):
        others.append(pa.RecordBatch.from_pylist([{"row_kind": FILE, "file": json.dumps(file)}], schema=RESULTS))
        yield pa.concat_batches(others)
        others.clear()
    if others:
        yield pa.concat_batches(others)
