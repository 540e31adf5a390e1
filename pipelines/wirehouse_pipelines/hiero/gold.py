"""Gold of the Hiero block node: blocks, their races and latencies, publishers, subscribers, decisions, catch-ups, and
findings that need several calls.

It has one stage. The stage reads rows of silver.hiero: the calls of a service, its gRPC logs and its block files, in
the order of arrival. A fold of each service turns them into rows of these tables. Its state is carried from window to
window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.core.horizon import HORIZON_NS
from wirehouse_codecs.hiero.correlation.events import (
    ANSWER_RULES,
    EVENT_COLUMNS,
    EVENT_KINDS,
    LAST_BYTE,
    MESSAGE_RANK,
    RANKS,
    Where,
    event_of,
)
from wirehouse_codecs.hiero.correlation.fold import Fold
from wirehouse_codecs.hiero.correlation.known import Waits
from wirehouse_codecs.hiero.correlation.rows import (
    BlockRow,
    CatchUpRow,
    DecisionRow,
    Found,
    LatencyRow,
    Outcome,
    RaceRow,
    SessionRow,
    SubscriptionRow,
)
from wirehouse_codecs.hiero.log.rows import CALL, MISSED
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.logs.rows import MESSAGE, VIOLATION
from wirehouse_pipelines.delta import arrow_types, spark_tables, table_reader
from wirehouse_pipelines.delta.batches import with_all
from wirehouse_pipelines.delta.spark_tables import Files
from wirehouse_pipelines.jobs import key_folds, services, steps
from wirehouse_pipelines.jobs.job import Work
from wirehouse_pipelines.jobs.key_folds import TABLE, KeyFold
from wirehouse_pipelines.lake.lake import Source
from wirehouse_pipelines.stages import Input, Stage
from wirehouse_pipelines.tables import all_tables

VERSION = "16"
LOG: Final = "silver.hiero"
STATE: Final = "gold.hiero_state"
#: The tables of the fold's rows.
_TABLE_OF: Final[Mapping[type[Outcome], str]] = {
    BlockRow: "gold.hiero_blocks_history",
    SessionRow: "gold.hiero_publisher_sessions_history",
    SubscriptionRow: "gold.hiero_subscriptions_history",
    DecisionRow: "gold.hiero_decisions_history",
    RaceRow: "gold.hiero_races_history",
    LatencyRow: "gold.hiero_latencies_history",
    CatchUpRow: "gold.hiero_catch_ups_history",
    Found: "gold.hiero_found",
}
OUTPUTS: Final = (*_TABLE_OF.values(), STATE)

_READ: Final = {**dict.fromkeys(("source", "window_start"), ()), **EVENT_COLUMNS}
#: Rows between reading and the fold. A service is one key, which is empty.
_EVENTS: Final = pa.schema(
    [
        *table_reader.chosen(arrow_types.schema(all_tables()[LOG]), _READ),
        ("key", pa.string()),
        ("order_byte", pa.int64()),
        ("order_rank", pa.int64()),
    ]
)
#: The order of events, the same as events.order_of.
_ORDER: Final = (
    *("arrived_at_ns", "capture_arrived_at_ns", "capture_id", "record_number", "connection_id"),
    *("order_byte", "order_rank", "call"),
)

#: Columns that every row gets, whatever its table.
_GIVEN: Final = ("source", "window_start", "protocol", "decoder_version")
#: By kind the columns that the fold's rows have.
_SCHEMAS: Final = {
    kind: pa.schema([field for field in arrow_types.given(all_tables()[name]) if field.name not in _GIVEN])
    for kind, name in _TABLE_OF.items()
}
#: The columns of all tables.
_MADE: Final = pa.schema(
    {TABLE: pa.string(), "state": pa.string(), "protocol": pa.string()}
    | {field.name: field.type for schema in _SCHEMAS.values() for field in schema}
)


def _values(kind: type[Outcome], columns: Sequence[str]) -> Callable[[Any], Any]:
    """What returns the values of these columns of a row of the fold."""
    paths = {name: f"where.{name}" for name in Where._fields}
    if kind is Found:
        paths |= {"rule": "rule.id", "severity": "severity.value"}
    return attrgetter(*(paths.get(name, name) for name in columns))


#: A rule is reported once, and so is a decision in a window: when it is made, or at the window's end if it isn't.
_ONCE: Final = (Found, DecisionRow)
_VALUES: Final = {kind: _values(kind, schema.names) for kind, schema in _SCHEMAS.items()}
#: Among rows of the other kinds with equal values here, the window's last one counts.
_ENTITY: Final = {
    kind: _values(kind, [column for column in all_tables()[name].key if column != "source"])
    for kind, name in _TABLE_OF.items()
    if kind not in _ONCE
}


def _horizon(source: Source) -> int:
    """Time without any row after which a service starts again with empty state: longer than anything it waits for."""
    patience_ns = HieroOptions.from_mapping(source.options).patience_ns
    return max(HORIZON_NS, patience_ns, Waits.of(source.tcp).silent_ns)


def _options(sources: Sequence[Source]) -> tuple[HieroOptions, Waits]:
    """The options of a service, which its sources have in common, and how long their connections hold back."""
    return HieroOptions.from_mapping(sources[0].options), Waits.of(*(source.tcp for source in sources))


def _service(work: Work) -> Stage:
    """The stage that folds the events of each service."""
    prepare = partial(_events, members=services.members(work, LOG))
    inputs = [
        Input(LOG, spark_tables.files(work.lake, LOG, work.members(), kind), _READ, prepare) for kind in EVENT_KINDS
    ]
    options = {span.source: _options(work.lake.sources_of(span.source)) for span in work.spans}
    ends_ns = {name: work.lake.windows.end_ns(name) for span in work.spans for name in span.windows}
    start = partial(_Service, options, ends_ns)
    made = key_folds.stage(work, STATE, inputs, _EVENTS, _ORDER, start, OUTPUTS, horizon_ns=_horizon)
    return replace(made, beside=[(STATE, work.clock(_horizon))])


def _events(rows: pa.RecordBatch, members: services.Members) -> pa.RecordBatch:
    """Keep the rows of the log that are events, and add columns that break ties of arrival, as `events.order_of`."""
    rows = members.once(rows)
    ignored, last = (pc.struct_field(rows.column("message"), name) for name in ("ignored", "last"))
    spoken = pc.and_(ignored.is_null(), pc.fill_null(last, False))
    broken = pc.is_in(pc.struct_field(rows.column("finding"), "rule"), pa.array(sorted(ANSWER_RULES)))
    kind = rows.column("row_kind")
    is_event = pc.case_when(
        pc.make_struct(pc.equal(kind, MESSAGE), pc.equal(kind, VIOLATION)), spoken, broken, pa.scalar(True)
    )
    rows = rows.filter(is_event)
    kind = rows.column("row_kind")
    event = pc.if_else(pc.equal(kind, CALL), pc.struct_field(rows.column("call_event"), "event"), kind)
    nowhere = pc.if_else(pc.equal(event, MISSED), -1, LAST_BYTE)
    at = pc.index_in(event, pa.array(RANKS))
    rank = pc.fill_null(pa.array(RANKS.values(), pa.int64()).take(at), MESSAGE_RANK)
    rows = rows.append_column("order_byte", pc.coalesce(rows.column("byte_end"), nowhere))
    return rows.append_column("order_rank", rank).append_column("key", pa.repeat("", rows.num_rows))


class _Service(KeyFold):
    """A service: its calls and blocks."""

    def __init__(
        self,
        options: Mapping[str, tuple[HieroOptions, Waits]],
        ends_ns: Mapping[str, int],
        whose: Mapping[str, Any],
        state: str | None,
    ) -> None:
        own, waits = options[whose["source"]]
        self._fold = Fold(own, state, waits)
        self._ends_ns = ends_ns
        self._end_ns = 0
        #: The newest rows of entities in the window.
        self._newest: dict[tuple[Any, ...], Outcome] = {}

    def take(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        self._end_ns = self._ends_ns[rows.column("window_start")[0].as_py()]
        events = filter(None, map(event_of, rows.select(EVENT_COLUMNS).to_pylist()))
        outcomes = self._final(one for event in events for one in self._fold.take(event))
        return _rows(outcomes) if outcomes else None

    def end_window(self) -> pa.RecordBatch:
        outcomes = [*self._final(self._fold.end_window(self._end_ns)), *self._newest.values()]
        self._newest = {}
        state = pa.RecordBatch.from_pylist([{TABLE: STATE, "state": self._fold.snapshot()}], schema=_MADE)
        return pa.concat_batches([_rows(outcomes), state])

    def _final(self, outcomes: Iterable[Outcome]) -> list[Outcome]:
        """The rows that are final at once. Of the others, the window's last one counts."""
        final = []
        for one in outcomes:
            if type(one) in _ONCE:
                final.append(one)
            else:
                self._newest[type(one), _ENTITY[type(one)](one)] = one
        return final


def _rows(outcomes: Sequence[Outcome]) -> pa.RecordBatch:
    """Rows of the fold, with the columns of all tables."""
    made = [pa.RecordBatch.from_pylist([], schema=_MADE)]
    for kind, schema in _SCHEMAS.items():
        if of_kind := [_VALUES[kind](one) for one in outcomes if type(one) is kind]:
            columns = map(pa.array, zip(*of_kind, strict=True), schema.types)
            rows = pa.RecordBatch.from_arrays(list(columns), schema=schema)
            rows = rows.append_column(TABLE, pa.repeat(_TABLE_OF[kind], rows.num_rows))
            made.append(with_all(rows.append_column("protocol", pa.repeat("hiero", rows.num_rows)), _MADE))
    return pa.concat_batches(made)


def tables(work: Work) -> Iterator[tuple[str, Files]]:
    """The job of gold.hiero: its tables, each with its files."""
    yield from steps.files(steps.run(work, [_service(work)], VERSION), OUTPUTS)
