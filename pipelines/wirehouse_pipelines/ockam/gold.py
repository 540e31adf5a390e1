"""Gold of the Ockam stream service: streams, stored messages, how far clients are, holes, and what these break.

Two stages read the log of a service. One folds the events of each stream, and of each name of streams: these are few
for each message, and their order counts. The other one joins the observations of each stored message. Two small stages
find out before what both need to know, such as the addresses of names (`known`).
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
from wirehouse_codecs.logs.rows import MESSAGE
from wirehouse_codecs.ockam.correlation.events import ConsumerRow, Found, Hole, LagRow, StreamRow, Told, Where
from wirehouse_codecs.ockam.correlation.log_events import events_in, unsigned
from wirehouse_codecs.ockam.correlation.streams import Fold
from wirehouse_codecs.ockam.log.log import SESSION
from wirehouse_codecs.ockam.options import IndexConvention, OckamOptions
from wirehouse_codecs.ockam.session.addresses import node_of
from wirehouse_pipelines.delta import arrow_types, spark_tables
from wirehouse_pipelines.delta.batches import with_all
from wirehouse_pipelines.delta.spark_tables import Files
from wirehouse_pipelines.jobs import key_folds, steps
from wirehouse_pipelines.jobs.job import Work
from wirehouse_pipelines.jobs.key_folds import TABLE, KeyFold
from wirehouse_pipelines.lake.lake import Source
from wirehouse_pipelines.ockam import events, stored_messages
from wirehouse_pipelines.ockam.known import LOG, STATE, Known, known
from wirehouse_pipelines.stages import Fold as StageFold
from wirehouse_pipelines.stages import Input, Stage
from wirehouse_pipelines.tables import all_tables

VERSION = "15"
#: The tables of the fold's rows.
_TABLE_OF: Final[Mapping[type[Told], str]] = {
    StreamRow: "gold.ockam_streams_history",
    ConsumerRow: "gold.ockam_stream_indexes_history",
    Hole: "gold.ockam_delivery_holes",
    LagRow: "gold.ockam_lag",
    Found: stored_messages.FOUND,
}
OUTPUTS: Final = (*_TABLE_OF.values(), stored_messages.STORED, STATE)

#: Columns that every row gets, whatever its table.
_GIVEN: Final = ("source", "window_start", "protocol", "decoder_version")
#: By kind the columns that the fold's rows have.
_NAMES: Final = {
    kind: [field.name for field in arrow_types.given(all_tables()[name]) if field.name not in _GIVEN]
    for kind, name in _TABLE_OF.items()
}
#: The columns of all tables. Of a name that some have as another type, the last one's takes the values of all.
_MADE: Final = pa.schema(
    {TABLE: pa.string(), "state": pa.string(), "protocol": pa.string()}
    | {
        field.name: field.type
        for kind, name in _TABLE_OF.items()
        for field in arrow_types.given(all_tables()[name])
        if field.name in _NAMES[kind]
    }
)
_PLACE: Final = {name: f"where.{name}" for name in Where._fields}
#: By kind the columns that have another name in the fold's rows.
_PATHS: Final[Mapping[type[Told], dict[str, str]]] = {
    StreamRow: {"first_at_ns": "where.arrived_at_ns"},
    ConsumerRow: {"last_at_ns": "where.arrived_at_ns"},
    LagRow: {"node": "stream_address"},
    Found: {"rule": "rule.id", "severity": "rule.severity.value"},
}


def _after(index: int | None) -> int | None:
    return None if index is None else index + 1


#: By kind and column what is made of the fold's value.
_CHANGED: Final[Mapping[tuple[type[Told], str], Callable[[Any], Any]]] = {
    (ConsumerRow, "delivered"): _after,
    (LagRow, "delivered"): _after,
    (LagRow, "node"): lambda address: node_of(address) or None,
}
_VALUES: Final = {
    kind: attrgetter(*((_PLACE | _PATHS.get(kind, {})).get(name, name) for name in names))
    for kind, names in _NAMES.items()
}


def _horizon(source: Source) -> int:
    """Time without any row after which a stream, a client or a message starts again with empty state."""
    return HORIZON_NS


def _streams(work: Work, knows: Known) -> Stage:
    """The stage that folds the events of each stream and each name."""
    inputs = [
        Input(LOG, spark_tables.files(work.lake, LOG, work.members(), kind), columns, partial(prepare, known=knows))
        for kind, columns, prepare in (
            (MESSAGE, events.MESSAGE_COLUMNS, events.of_messages),
            (SESSION, events.SESSION_COLUMNS, events.of_sessions),
        )
    ]
    reading = {span.source: _reading(work.lake.sources_of(span.source)) for span in work.spans}
    start = partial(_Stream, reading)
    tables = [*_TABLE_OF.values(), STATE]
    made = key_folds.stage(
        work, STATE, inputs, events.EVENTS, events.ORDER, start, tables, horizon_ns=_horizon, mine=_is_of_stream
    )
    return replace(made, fold=partial(_fold, fold=made.fold), beside=[(STATE, work.clock(_horizon))])


def _fold(rows: Iterable[pa.RecordBatch], fold: StageFold) -> Iterator[tuple[str, pa.RecordBatch]]:
    for table, made in fold(rows):
        # What clients saved is no column of states: these have digests of messages there.
        yield table, made.drop_columns(["saved"]) if table == STATE else made


def _is_of_stream(states: pa.RecordBatch) -> pa.Array:
    return states.column("state").is_valid()


def _reading(sources: Sequence[Source]) -> tuple[IndexConvention, int, int]:
    """The meaning of a saved index in a service, the longest time until a hole in one of its captures is reported, and
    the greatest difference between the clocks of these captures."""
    convention = OckamOptions.from_mapping(sources[0].options).index_convention
    hole_ns = max(source.tcp.idle_ns + source.tcp.hole_wait_ns for source in sources)
    return convention, hole_ns, max(source.tcp.hole_wait_ns for source in sources)


#: A client of a stream: its name, the stream's, and the partition.
_Client = tuple[str, str, int]


class _Stream(KeyFold):
    """A stream, or a name of streams."""

    def __init__(
        self, reading: Mapping[str, tuple[IndexConvention, int, int]], whose: Mapping[str, Any], state: str | None
    ) -> None:
        convention, hole_ns, clocks_ns = reading[whose["source"]]
        self._fold = Fold(whose["key"], convention, state, hole_ns, clocks_ns, lags=True)
        #: Clients in the window whose stream's address isn't known.
        self._unplaced: set[_Client] = set()

    def take(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        self._unplaced |= _unplaced(rows)
        outcomes = [one for event in events_in(rows) for one in self._fold.take(event)]
        return _rows(outcomes) if outcomes else None

    def end_window(self) -> pa.RecordBatch:
        outcomes = [one for one in self._fold.end_window() if self._is_shown(one)]
        self._unplaced = set()
        state = pa.RecordBatch.from_pylist([{TABLE: STATE, "state": self._fold.snapshot()}], schema=_MADE)
        return pa.concat_batches([_rows(outcomes), state])

    def _is_shown(self, outcome: Told) -> bool:
        """Whether a row is written: a client has one under its stream's address, under its name if that isn't known."""
        if not isinstance(outcome, ConsumerRow) or outcome.stream_address is not None:
            return True
        return (outcome.client_id, outcome.stream_name, outcome.partition or 0) in self._unplaced


def _unplaced(rows: pa.RecordBatch) -> set[_Client]:
    rows = rows.filter(pc.fill_null(rows.column("unplaced"), False))
    partitions = (number or 0 for number in unsigned(rows.column("partition")))
    names = (rows.column(name).to_pylist() for name in ("client_id", "stream_name"))
    return set(zip(*names, partitions, strict=True))


def _rows(outcomes: Sequence[Told]) -> pa.RecordBatch:
    """Rows of the fold, with the columns of all tables."""
    made = [pa.RecordBatch.from_pylist([], schema=_MADE)]
    for kind, names in _NAMES.items():
        if of_kind := [_VALUES[kind](one) for one in outcomes if type(one) is kind]:
            columns = dict(zip(names, zip(*of_kind, strict=True), strict=True))
            columns |= {
                name: tuple(map(change, columns[name])) for (whose, name), change in _CHANGED.items() if whose is kind
            }
            columns |= {name: pa.array(values, _MADE.field(name).type) for name, values in columns.items()}
            count = len(of_kind)
            columns |= {TABLE: pa.repeat(_TABLE_OF[kind], count), "protocol": pa.repeat("ockam", count)}
            made.append(with_all(pa.RecordBatch.from_pydict(columns), _MADE))
    return pa.concat_batches(made)


def tables(work: Work) -> Iterator[tuple[str, Files]]:
    """The job of gold.ockam: its tables, each with its files."""
    knows = known(work, VERSION)
    stored = stored_messages.stage(work, knows.members, work.alive_before(_horizon))
    yield from steps.files(steps.run(work, [_streams(work, knows), stored], VERSION), OUTPUTS)
