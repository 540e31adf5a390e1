"""Silver of the Hiero block node: every connection, gRPC log and block file decoded and judged in one pass."""

from __future__ import annotations

from wirehouse_codecs.hiero.log import files
from wirehouse_codecs.hiero.log.log import starter
from wirehouse_codecs.hiero.log.rows import SCHEMA
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.logs.files import Start as FileStart
from wirehouse_codecs.logs.rows import Start
from wirehouse_pipelines.jobs import connections
from wirehouse_pipelines.lake.lake import Source

VERSION = "19"


def _start(source: Source, key: bytes) -> Start:
    return starter(HieroOptions.from_mapping(source.options))


def _files(source: Source, key: bytes) -> FileStart:
    of_files = files.of_blocks if source.kind == "blocks" else files.of_entries
    return of_files(HieroOptions.from_mapping(source.options))


JOB = connections.job("hiero", VERSION, SCHEMA, _start, _files)
