"""Silver of the Ockam stream service: every connection decoded and judged in one pass."""

from __future__ import annotations

from wirehouse_codecs.logs.rows import Start
from wirehouse_codecs.ockam.log.log import SCHEMA, starter
from wirehouse_codecs.ockam.options import OckamOptions
from wirehouse_pipelines.jobs import connections
from wirehouse_pipelines.lake.lake import Source

VERSION = "18"


def _start(source: Source, key: bytes) -> Start:
    return starter(OckamOptions.from_mapping(source.options))


JOB = connections.job("ockam", VERSION, SCHEMA, _start)
