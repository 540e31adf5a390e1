"""Silver of the Wallaroo connector protocol: every connection decoded and judged in one pass."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from wirehouse_codecs.stream_log import Start
from wirehouse_codecs.wallaroo.log import SCHEMA, starter
from wirehouse_codecs.wallaroo.options import WallarooOptions
from wirehouse_pipelines import connections, hash_key
from wirehouse_pipelines.lake import Source
from wirehouse_pipelines.work import Work

VERSION = "1"


def log(work: Work) -> Iterator[tuple[str, DataFrame]]:
    """The job of silver.wallaroo."""
    key = hash_key.of(work.lake)

    def start(source: Source) -> Start:
        return starter(WallarooOptions.from_mapping(source.options), key)

    rows = connections.log(work, "silver.wallaroo", SCHEMA, start)
    yield "silver.wallaroo", rows.withColumn("decoder_version", F.lit(VERSION))
