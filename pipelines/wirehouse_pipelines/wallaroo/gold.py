"""Gold of the Wallaroo connector protocol: sessions, streams, credits, progress over sessions, and what these break."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from wirehouse_codecs.wallaroo.correlation.progress import Followed, StreamSession, follow
from wirehouse_codecs.wallaroo.correlation.sessions import HORIZON_NS, Fold
from wirehouse_codecs.wallaroo.log.rows import summary_of
from wirehouse_codecs.wallaroo.log.schema import CREDIT, SESSION, STREAM
from wirehouse_pipelines.jobs.job import Work
from wirehouse_pipelines.jobs.key_folds import KeyFold, by_key
from wirehouse_pipelines.lake.lake import Source

VERSION = "6"
STATE: Final = "gold.wallaroo_state"
OUTPUTS: Final = (
    "gold.wallaroo_sessions_history",
    "gold.wallaroo_streams_history",
    "gold.wallaroo_credits",
    "gold.wallaroo_stream_progress_history",
    "gold.wallaroo_found",
    STATE,
)
#: First part of the keys of a stream's progress in the state; the others are those of `across`.
PROGRESS: Final = "progress"
_IS_PROGRESS: Final = f"startswith(key, '[\"{PROGRESS}\"')"
_ENTITY: Final = ("source", "window_start", "connection_id")
_PLACE: Final = ("capture_id", "record_number", "arrived_at_ns")

_JUDGED: Final = pa.schema(
    [
        ("state", pa.string()),
        ("rule", pa.string()),
        ("severity", pa.string()),
        ("message", pa.string()),
        ("connection_id", pa.binary()),
        ("capture_id", pa.binary()),
        ("record_number", pa.int64()),
        ("arrived_at_ns", pa.int64()),
    ]
)
_FOLLOWED: Final = pa.schema(
    [
        ("connection_id", pa.binary()),
        ("previous_connection_id", pa.binary()),
        ("previous_last_sent", pa.decimal128(20, 0)),
        ("replayed_before", pa.int64()),
    ]
)
#: A stream's progress as the state holds it.
_PROGRESS_STATE: Final = (
    "hex(connection_id) AS connection_id, arrived_at_ns AS started_ns, CAST(last_sent AS STRING) AS last_sent, "
    "told_ns, hex(previous_connection_id) AS previous_connection_id, "
    "CAST(previous_last_sent AS STRING) AS previous_last_sent, replayed"
)


def _horizon(source: Source) -> int:
    return HORIZON_NS


class _Run:
    """What the tables of one run are made from."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.log = work.read("silver.wallaroo")

    @cached_property
    def sessions(self) -> DataFrame:
        """Sessions as they stand at the end of each window in which they changed, with their connection."""
        connections = self.log.where("row_kind = 'connection'").select(*_ENTITY, "connection")
        told = self.log.where(F.col("row_kind") == SESSION).select(*_ENTITY, *_PLACE, "session")
        return told.join(connections, list(_ENTITY))

    @cached_property
    def streams(self) -> DataFrame:
        """Streams as they stand at the end of each window in which they changed."""
        return self.log.where(F.col("row_kind") == STREAM).select(*_ENTITY, *_PLACE, "stream_id", "stream.*")

    @cached_property
    def judged(self) -> DataFrame:
        """What sessions break together, and the state of each key after each window in which it changed."""
        ended = self.sessions.where("session.ended IS NOT NULL")
        worker = F.to_json(F.array(F.lit("worker"), F.col("session.worker")))
        names = F.col("session.program_name"), F.col("session.instance_name")
        instance = F.when(names[0].isNotNull() & names[1].isNotNull(), F.to_json(F.array(F.lit("instance"), *names)))
        columns = (*_ENTITY, *_PLACE, "session")
        begun = self.sessions.select(
            *columns, F.col("session.started_at_ns").alias("at_ns"), F.lit(0).alias("ends"), instance.alias("key")
        ).where("key IS NOT NULL")
        told = begun.unionByName(
            ended.select(
                *columns,
                F.col("session.ended_at_ns").alias("at_ns"),
                F.lit(1).alias("ends"),
                F.explode(F.array_compact(F.array(worker, instance))).alias("key"),
            )
        )
        order = ("at_ns", "ends", "connection_id")
        return by_key(self.work, STATE, told, order, _Judged, _JUDGED, horizon_ns=_horizon, mine=f"NOT {_IS_PROGRESS}")

    @cached_property
    def progress(self) -> DataFrame:
        """Streams with a program and an instance, which session they follow, what was replayed, and `key`."""
        key = F.to_json(F.array(F.lit(PROGRESS), "program_name", "instance_name", F.col("stream_id").cast("string")))
        named = self.streams.where("program_name IS NOT NULL AND instance_name IS NOT NULL").withColumn("key", key)
        windows = self.work.lake.windows
        ends = [(name, windows.end_ns(name)) for name in sorted({n for s in self.work.spans for n in s.windows})]
        told_ns = self.work.spark.createDataFrame(ends, "window_start STRING, told_ns BIGINT")
        told = named.join(F.broadcast(told_ns), "window_start")
        columns = ("source", "window_start", "connection_id", "arrived_at_ns", "last_sent", "told_ns", "key")
        order = ("arrived_at_ns", "connection_id")
        streams = told.select(*columns)
        followed = by_key(
            self.work, STATE, streams, order, _Followed, _FOLLOWED, horizon_ns=_horizon, mine=_IS_PROGRESS
        )
        entity = ["source", "window_start", "connection_id", "key"]
        rows = told.join(followed, entity).join(self._replayed(told, followed), entity, "left")
        so_far = Window.partitionBy("source", "key").orderBy("window_start", "arrived_at_ns", "connection_id")
        replayed = F.sum(F.coalesce("replayed_here", F.lit(0))).over(so_far) + F.col("replayed_before")
        newest = Window.partitionBy("source", "window_start", "key").orderBy(
            F.desc("arrived_at_ns"), F.desc("connection_id")
        )
        return self.work.settle(
            rows.withColumn("replayed", replayed)
            .withColumn("rank", F.row_number().over(newest))
            .where("rank = 1")
            .drop("rank")
        )

    def _replayed(self, told: DataFrame, followed: DataFrame) -> DataFrame:
        """By window: messages with an id up to the last one of the sessions before."""
        after = followed.where("previous_last_sent IS NOT NULL").join(
            told.select("source", "window_start", "connection_id", "key", "stream_id"),
            ["source", "window_start", "connection_id", "key"],
        )
        messages = self.log.where("row_kind = 'message' AND message.kind = 'MESSAGE'").select(
            *_ENTITY, "stream_id", F.col("message.message_id").alias("message_id")
        )
        again = messages.join(F.broadcast(after), [*_ENTITY, "stream_id"]).where("message_id <= previous_last_sent")
        return again.groupBy("source", "window_start", "connection_id", "key").agg(F.count("*").alias("replayed_here"))


class _Judged(KeyFold):
    """Rows of _JUDGED of the sessions of a worker or an instance that ended."""

    def __init__(self, whose: Mapping[str, Any], state: str | None) -> None:
        self._fold = Fold(whose["key"], state)

    def take(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        out = []
        for row in rows.to_pylist():
            if not row["ends"]:
                self._fold.begin(row["connection_id"])
                continue
            out += [
                {"connection_id": row["connection_id"]}
                | {name: getattr(found.where.place, name) if found.where else row[name] for name in _PLACE}
                | {"rule": found.rule.id, "severity": found.rule.severity.value, "message": found.message}
                for found in self._fold.take(summary_of(row["connection_id"], row["session"]))
            ]
        return pa.RecordBatch.from_pylist(out, schema=_JUDGED)

    def end_window(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([{"state": self._fold.snapshot()}], schema=_JUDGED)


class _Followed(KeyFold):
    """Rows of _FOLLOWED: of each stream and window the sessions that were its newest."""

    def __init__(self, whose: Mapping[str, Any], state: str | None) -> None:
        self._now: Followed | None = None
        self._replayed = 0
        if state is not None:
            self._now, self._replayed = _carried(json.loads(state))

    def take(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        out = [row for told in rows.to_pylist() if (row := self._follow(told)) is not None]
        return pa.RecordBatch.from_pylist(out, schema=_FOLLOWED)

    def _follow(self, row: Mapping[str, Any]) -> dict[str, Any] | None:
        sent = row["last_sent"]
        told = StreamSession(
            row["connection_id"], row["arrived_at_ns"], None if sent is None else int(sent), row["told_ns"]
        )
        if (after := follow(self._now, told)) is None:
            return None
        self._now = after
        return {
            "connection_id": told.connection_id,
            "previous_connection_id": after.previous_connection_id,
            "previous_last_sent": after.previous_last_sent,
            "replayed_before": self._replayed,
        }


def _carried(state: dict[str, Any]) -> tuple[Followed, int]:
    """Where a stream stood, and how many of its messages were replayed."""

    def number(name: str) -> int | None:
        return None if state.get(name) is None else int(state[name])

    previous = state.get("previous_connection_id")
    newest = StreamSession(
        bytes.fromhex(state["connection_id"]), state["started_ns"], number("last_sent"), state["told_ns"]
    )
    followed = Followed(newest, None if previous is None else bytes.fromhex(previous), number("previous_last_sent"))
    return followed, state["replayed"]


def _sessions(run: _Run) -> DataFrame:
    endpoints = ("community_id", "client_address", "client_port", "server_address", "server_port", "dialect")
    return run.sessions.select(*_ENTITY, *_PLACE, "session.*", *(f"connection.{name}" for name in endpoints))


def _streams(run: _Run) -> DataFrame:
    return run.streams


def _credits(run: _Run) -> DataFrame:
    return run.log.where(F.col("row_kind") == CREDIT).select(*_ENTITY, *_PLACE, "credit.*")


def _progress(run: _Run) -> DataFrame:
    return run.progress


def _found(run: _Run) -> DataFrame:
    return run.judged.where("rule IS NOT NULL").withColumn("protocol", F.lit("wallaroo"))


def _state(run: _Run) -> DataFrame:
    """The states, and of each window a row of its own that says since which window states still count."""
    progress = run.progress.withColumn("state", F.to_json(F.expr(f"struct({_PROGRESS_STATE})")))
    judged = run.judged.where("state IS NOT NULL")
    columns = ("source", "window_start", "key", "state")
    states = judged.select(*columns).unionByName(progress.select(*columns))
    return states.unionByName(run.work.clock(_horizon), allowMissingColumns=True)


_TABLES: Final = dict(zip(OUTPUTS, (_sessions, _streams, _credits, _progress, _found, _state), strict=True))


def tables(work: Work) -> Iterator[tuple[str, DataFrame]]:
    """The job of gold.wallaroo: its tables, each as it is written."""
    run = _Run(work)
    for name, rows in _TABLES.items():
        yield name, rows(run).withColumn("decoder_version", F.lit(VERSION))
