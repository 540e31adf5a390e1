"""Silver of Bamboo: every connection decoded and judged in one pass, but for signatures and links between entries."""

from __future__ import annotations

from wirehouse_codecs.bamboo.log import SCHEMA, starter
from wirehouse_codecs.bamboo.options import BambooOptions
from wirehouse_codecs.stream_log import Start
from wirehouse_pipelines import connections
from wirehouse_pipelines.lake import Source

VERSION = "1"


def _start(source: Source, key: bytes) -> Start:
    return starter(BambooOptions.from_mapping(source.options))


JOB = connections.job("bamboo", VERSION, SCHEMA, _start)
