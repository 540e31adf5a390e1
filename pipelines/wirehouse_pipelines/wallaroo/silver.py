"""Silver of the Wallaroo connector protocol: every connection decoded and judged in one pass."""

from __future__ import annotations

from wirehouse_codecs.logs.rows import Start
from wirehouse_codecs.wallaroo.log.log import starter
from wirehouse_codecs.wallaroo.log.schema import SCHEMA
from wirehouse_codecs.wallaroo.options import WallarooOptions
from wirehouse_pipelines.jobs import connections
from wirehouse_pipelines.lake.lake import Source

VERSION = "19"


def _start(source: Source, key: bytes) -> Start:
    return starter(WallarooOptions.from_mapping(source.options), key)


JOB = connections.job("wallaroo", VERSION, SCHEMA, _start)
