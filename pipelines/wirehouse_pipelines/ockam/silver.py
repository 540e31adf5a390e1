"""Silver of the Ockam stream service: every connection decoded and judged in one pass."""

from __future__ import annotations

from wirehouse_codecs.ockam.log import SCHEMA, starter
from wirehouse_codecs.ockam.options import OckamOptions
from wirehouse_codecs.stream_log import Start
from wirehouse_pipelines import connections
from wirehouse_pipelines.lake import Source

VERSION = "6"


def _start(source: Source, key: bytes) -> Start:
    return starter(OckamOptions.from_mapping(source.options))


JOB = connections.job("ockam", VERSION, SCHEMA, _start)
