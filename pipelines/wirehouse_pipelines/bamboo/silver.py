"""Silver of Bamboo: connections decoded and judged in one pass, and entries of files; all but signatures and links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from wirehouse_codecs.bamboo import file_rows
from wirehouse_codecs.bamboo.log import SCHEMA, starter
from wirehouse_codecs.bamboo.options import BambooOptions
from wirehouse_codecs.stream_log import Gather, Start
from wirehouse_pipelines import connections
from wirehouse_pipelines.lake import Source
from wirehouse_pipelines.work import Work

VERSION = "9"
FILES: Final = "bronze.files"


def _start(source: Source, key: bytes) -> Start | Gather:
    return starter(BambooOptions.from_mapping(source.options))


_OF_CONNECTIONS: Final = connections.job("bamboo", VERSION, SCHEMA, _start)


def _log(work: Work) -> Iterator[tuple[str, DataFrame]]:
    entries = whole_records(work.read(FILES)).mapInArrow(file_rows.read, from_arrow_schema(file_rows.ROWS))
    for table, rows in _OF_CONNECTIONS.build(work):
        version = F.lit(_OF_CONNECTIONS.version)
        yield table, rows.unionByName(entries.withColumn("decoder_version", version), allowMissingColumns=True)


def whole_records(files: DataFrame) -> DataFrame:
    """The records of entry files, with those in one that stand in several pieces."""
    record = ("source", "window_start", "capture_id", "name", F.expr("record_number - part").alias("record_number"))
    columns = ("arrived_at_ns", "capture_arrived_at_ns", "damage")
    in_pieces = (
        files.where("part > 0 OR NOT last")
        .groupBy(*record)
        .agg(*(F.min(name).alias(name) for name in columns), *(_joined(name) for name in ("data", "damaged")))
    )
    whole = files.where("part = 0 AND last").select(*file_rows.RECORDS)
    return whole.unionByName(in_pieces.select(*file_rows.RECORDS))


def _joined(name: str) -> Column:
    """Pieces of bytes in their order, as one."""
    pieces, nothing = F.array_sort(F.collect_list(F.struct("part", name))), F.lit(b"")
    return F.aggregate(pieces, nothing, lambda told, one: F.concat(told, F.coalesce(one[name], nothing))).alias(name)


JOB = replace(_OF_CONNECTIONS, build=_log, reads=(*_OF_CONNECTIONS.reads, FILES))
