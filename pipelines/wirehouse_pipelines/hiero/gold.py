"""Gold of the Hiero block node: blocks, publishers, subscribers, decisions, catch-ups, and what calls break together.

All calls of a service, its gRPC logs and its block files are one fold, in the order of arrival.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cached_property, partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from wirehouse_codecs.hiero.correlation.events import EVENT_COLUMNS, LAST_BYTE, MESSAGE_RANK, RANKS, event_of
from wirehouse_codecs.hiero.correlation.fold import Fold
from wirehouse_codecs.hiero.correlation.rows import (
    BlockRow,
    CatchUpRow,
    DecisionRow,
    Found,
    SessionRow,
    SubscriptionRow,
    Told,
)
from wirehouse_codecs.hiero.log.rows import BLOCK, CALL, MISSED
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.logs.rows import MESSAGE
from wirehouse_pipelines.delta import arrow_types
from wirehouse_pipelines.jobs.connections import heard_once
from wirehouse_pipelines.jobs.job import Work
from wirehouse_pipelines.jobs.key_folds import KeyFold, by_key
from wirehouse_pipelines.lake.lake import Source
from wirehouse_pipelines.tables import all_tables

VERSION = "10"
STATE: Final = "gold.hiero_state"
_FOUND: Final = "gold.hiero_found"
#: The table of what the fold tells.
_TABLE_OF: Final[Mapping[type[Any], str]] = {
    BlockRow: "gold.hiero_blocks_history",
    SessionRow: "gold.hiero_publisher_sessions_history",
    SubscriptionRow: "gold.hiero_subscriptions_history",
    DecisionRow: "gold.hiero_decisions_history",
    CatchUpRow: "gold.hiero_catch_ups_history",
    Found: _FOUND,
}
OUTPUTS: Final = (*_TABLE_OF.values(), STATE)
#: A service of which nothing was heard for so long begins anew; at least its patience.
HORIZON_NS: Final = 7 * 86_400 * 10**9
#: A service is one key.
_KEY: Final = ""


def _schema() -> pa.Schema:
    """Columns of what the fold tells: which table's row it is, the how manieth, and the columns of all tables."""
    columns = {"told": pa.string(), "number": pa.int64(), "state": pa.string()}
    for name in _TABLE_OF.values():
        columns |= {field.name: field.type for field in arrow_types.schema(all_tables()[name])}
    for name in ("source", "window_start", "protocol", "decoder_version"):
        columns.pop(name, None)
    return pa.schema(list(columns.items()))


def _horizon(source: Source) -> int:
    return max(HORIZON_NS, HieroOptions.from_mapping(source.options).patience_ns)


class _Run:
    """What the tables of one run are made from."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.log = heard_once(work, "silver.hiero")

    @cached_property
    def told(self) -> DataFrame:
        """What the fold of each service tells of each window."""
        lake = self.work.lake
        options = {
            span.source: HieroOptions.from_mapping(lake.sources_of(span.source)[0].options) for span in self.work.spans
        }
        ends = {name: lake.windows.end_ns(name) for span in self.work.spans for name in span.windows}
        schema = _schema()
        start = partial(_Service, options, ends, schema)
        return by_key(self.work, STATE, self._events, _ORDER, start, schema, horizon_ns=_horizon)

    @property
    def _events(self) -> DataFrame:
        """Rows of the log that are events, with what orders them besides arrival: see events.order_of."""
        event = F.col("call_event.event")
        byte = F.coalesce("byte_end", F.when(event == MISSED, F.lit(-1)).otherwise(F.lit(LAST_BYTE)))
        told = F.when(F.col("row_kind") == CALL, event).otherwise(F.col("row_kind"))
        rank = F.lit(MESSAGE_RANK)
        for name, number in RANKS.items():
            rank = F.when(told == name, number).otherwise(rank)
        spoken = (F.col("row_kind") == MESSAGE) & F.col("message.ignored").isNull() & F.col("message.last")
        return self.log.where(spoken | F.col("row_kind").isin(CALL, BLOCK)).select(
            "source",
            "window_start",
            F.lit(_KEY).alias("key"),
            *EVENT_COLUMNS,
            byte.alias("order_byte"),
            rank.alias("order_rank"),
        )


#: As events.order_of.
_ORDER: Final = (
    *("arrived_at_ns", "capture_arrived_at_ns", "capture_id", "record_number", "connection_id"),
    *("order_byte", "order_rank", "call"),
)


class _Service(KeyFold):
    """A service as across.Fold keeps it."""

    def __init__(
        self,
        options: Mapping[str, HieroOptions],
        ends: Mapping[str, int],
        schema: pa.Schema,
        key: Mapping[str, Any],
        state: str | None,
    ) -> None:
        self._fold = Fold(options[key["source"]], state)
        self._ends, self._schema = ends, schema
        self._end_ns = 0
        #: How many rows were told.
        self._told = 0

    def take(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        self._end_ns = self._ends[rows.column("window_start")[0].as_py()]
        events = filter(None, map(event_of, rows.select(EVENT_COLUMNS).to_pylist()))
        told = [self._row(one) for event in events for one in self._fold.take(event)]
        return pa.RecordBatch.from_pylist(told, schema=self._schema) if told else None

    def end_window(self) -> pa.RecordBatch:
        rows = [self._row(one) for one in self._fold.end_window(self._end_ns)]
        return pa.RecordBatch.from_pylist([*rows, {"told": STATE, "state": self._fold.snapshot()}], schema=self._schema)

    def _row(self, told: Told) -> dict[str, Any]:
        """A row of `_schema`."""
        self._told += 1
        row: dict[str, Any] = {name: getattr(told, name) for name in _FIELDS[type(told)]}
        row |= told.where._asdict() | {"told": _TABLE_OF[type(told)], "number": self._told}
        if isinstance(told, Found):
            row |= {"rule": told.rule.id, "severity": told.severity.value}
        elif isinstance(told, BlockRow) and told.items is None:
            row["item_counts"] = None
        elif isinstance(told, CatchUpRow):
            row["gaps_ns"] = row.pop("gaps")
            row["attempts"] = [dict(zip(_ATTEMPT, one, strict=True)) for one in told.attempts]
            row["asked"] = [dict(zip(_ASKED, one, strict=True)) for one in told.asked]
        return row


_FIELDS: Final = {kind: tuple(each.name for each in fields(kind) if each.name != "where") for kind in _TABLE_OF}
_ATTEMPT: Final = ("at_ns", "publisher", "offered", "reported")
_ASKED: Final = ("at_ns", "node", "start_block_number", "end_block_number")


def _rows(run: _Run, name: str) -> DataFrame:
    """The rows of a table; of an entity what its window told last."""
    rows = run.told.where(F.col("told") == name)
    if name == _FOUND:
        return rows.withColumn("protocol", F.lit("hiero"))
    if name == STATE:
        return rows.unionByName(run.work.clock(_horizon), allowMissingColumns=True)
    of_entity = Window.partitionBy("window_start", *all_tables()[name].key).orderBy(F.desc("number"))
    return rows.withColumn("rank", F.row_number().over(of_entity)).where("rank = 1")


def tables(work: Work) -> Iterator[tuple[str, DataFrame]]:
    """The job of gold.hiero: its tables, each as it is written."""
    run = _Run(work)
    for name in OUTPUTS:
        yield name, _rows(run, name).withColumn("decoder_version", F.lit(VERSION))
