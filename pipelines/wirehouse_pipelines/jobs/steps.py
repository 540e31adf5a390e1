"""What jobs made of stages share: running them, the version of the decoder in their rows, and their files by table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from wirehouse_pipelines import stages
from wirehouse_pipelines.delta.spark_tables import File, Files
from wirehouse_pipelines.jobs.job import Span, Work
from wirehouse_pipelines.stages import Fold, Stage, Written


def windows(spans: Iterable[Span]) -> frozenset[tuple[str, str]]:
    """All pairs of source and window in the spans."""
    return frozenset((span.source, window) for span in spans for window in span.windows)


def run(work: Work, declared: Iterable[Stage], version: str) -> Written:
    """Run stages one after another, with the column `decoder_version` added to their rows. See `stages.run`."""
    found = Written()
    for stage in declared:
        for name, made in stages.run(work.spark, work.lake, _with_version(stage, version)).items():
            found.setdefault(name, []).extend(made)
    return found


def files(written: Written, tables: Sequence[str]) -> Iterator[tuple[str, Files]]:
    """What a job yields: each of its tables with the files that its stages wrote."""
    for table in tables:
        yield table, written[table]


def passed(work: Work, table: str, written: Sequence[Mapping[str, Any]]) -> list[File]:
    """Files that a stage wrote into the folder of `table`, as input of a next stage."""
    folder = work.lake.table_folder(table)
    return [File(f"{folder}/{file['path']}", file["size"], file["stats"]["numRecords"]) for file in written]


def _with_version(stage: Stage, version: str) -> Stage:
    beside = list(_versioned(stage.beside, version))
    return replace(stage, fold=partial(_fold_with_version, fold=stage.fold, version=version), beside=beside)


def _fold_with_version(
    rows: Iterable[pa.RecordBatch], fold: Fold, version: str
) -> Iterator[tuple[str, pa.RecordBatch]]:
    return _versioned(fold(rows), version)


def _versioned(made: Iterable[tuple[str, pa.RecordBatch]], version: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    for table, rows in made:
        yield table, rows.append_column("decoder_version", pa.repeat(version, rows.num_rows))
