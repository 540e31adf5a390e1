"""Gold of the Wallaroo connector protocol: sessions, streams, credits, progress over sessions, and what these break.

Three stages read the log `silver.wallaroo`. The first writes sessions, streams and credits as they stand there. The
second compares the sessions of each worker and instance, and finds streams that an earlier session sent messages of.
The third follows each stream of an instance over its sessions; only of the streams found before, it reads messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.core.horizon import HORIZON_NS
from wirehouse_codecs.core.snapshots import SnapshotCodec
from wirehouse_codecs.logs.rows import CONNECTION, MESSAGE
from wirehouse_codecs.wallaroo.correlation.progress import Followed, StreamSession, follow
from wirehouse_codecs.wallaroo.correlation.sessions import Fold
from wirehouse_codecs.wallaroo.log.rows import summary_of
from wirehouse_codecs.wallaroo.log.schema import CREDIT, SESSION, STREAM
from wirehouse_pipelines.delta import arrow_types, spark_tables, table_reader
from wirehouse_pipelines.delta.spark_tables import Files
from wirehouse_pipelines.jobs import key_folds, steps
from wirehouse_pipelines.jobs.job import Span, Work
from wirehouse_pipelines.jobs.key_folds import TABLE, KeyFold
from wirehouse_pipelines.lake.lake import Source
from wirehouse_pipelines.stages import Input, Order, Prepare, Stage
from wirehouse_pipelines.tables import all_tables

VERSION = "12"
LOG: Final = "silver.wallaroo"
SESSIONS: Final = "gold.wallaroo_sessions_history"
STREAMS: Final = "gold.wallaroo_streams_history"
CREDITS: Final = "gold.wallaroo_credits"
PROGRESS: Final = "gold.wallaroo_stream_progress_history"
FOUND: Final = "gold.wallaroo_found"
STATE: Final = "gold.wallaroo_state"
OUTPUTS: Final = (SESSIONS, STREAMS, CREDITS, PROGRESS, FOUND, STATE)
#: Rows of `_Resumes`, which the third stage is made from.
RESUMED: Final = "resumed"

_ENTITY: Final = ("source", "window_start", "connection_id")
_PLACE: Final = ("capture_id", "record_number", "arrived_at_ns")
_ENDPOINTS: Final = ("community_id", "client_address", "client_port", "server_address", "server_port", "dialect")
_TYPES: Final = {name: arrow_types.given(all_tables()[name]) for name in (LOG, *OUTPUTS)}
#: First part of the keys of an instance's streams; the others are those of `correlation.sessions`.
_STREAM_KEY: Final = "progress"

_Columns = Mapping[str, Sequence[str]]
#: Columns of the log's rows that the first stage reads, by their kind.
_KINDS: Final[Mapping[str, _Columns]] = {
    CONNECTION: {"connection": _ENDPOINTS},
    SESSION: dict.fromkeys(_PLACE, ())
    | {"session": [one.name for one in _TYPES[LOG].field("session").type if one.name in _TYPES[SESSIONS].names]},
    STREAM: dict.fromkeys((*_PLACE, "stream_id"), ())
    | {"stream": [one.name for one in _TYPES[LOG].field("stream").type if one.name in _TYPES[STREAMS].names]},
    CREDIT: dict.fromkeys((*_PLACE, "credit"), ()),
}
_TABLE_OF: Final = {SESSION: SESSIONS, STREAM: STREAMS, CREDIT: CREDITS}
_WHOLE_SESSION: Final = dict.fromkeys((*_ENTITY, *_PLACE, "session"), ())
_WHOLE_STREAM: Final = dict.fromkeys((*_ENTITY, *_PLACE, "stream_id", "stream"), ())


def _schema(*columns: _Columns, more: Mapping[str, pa.DataType] | None = None) -> pa.Schema:
    """The schema of rows with these columns of the log, and `more`."""
    known: dict[str, pa.DataType] = {}
    for one in columns:
        known |= {field.name: field.type for field in table_reader.chosen(_TYPES[LOG], one)}
    return pa.schema([*known.items(), *(more or {}).items()])


def _own(table: str) -> list[tuple[str, pa.DataType]]:
    """The columns that a table's fold returns: without those that every row gets."""
    given = ("source", "window_start", "decoder_version")
    return [(field.name, field.type) for field in _TYPES[table] if field.name not in given]


def _input(work: Work, kind: str, columns: _Columns, prepare: Prepare, spans: Sequence[Span] | None = None) -> Input:
    """The log's rows of a kind, in `spans` or in those of the job."""
    return Input(LOG, spark_tables.files(work.lake, LOG, spans or work.spans, kind), columns, prepare)


def _horizon(source: Source) -> int:
    """Time after its last session at which a worker or an instance starts again with empty state."""
    return HORIZON_NS


# Sessions, streams and credits


def _entities(work: Work) -> Stage:
    """The stage that selects entities, and adds its connection to each session."""
    common = dict.fromkeys((*_ENTITY, "row_kind"), ())
    return Stage(
        [_input(work, kind, {**common, **columns}, _as_it_is) for kind, columns in _KINDS.items()],
        _schema(common, *_KINDS.values()),
        # A connection comes before its session.
        Order(("source", "connection_id"), ("window_start", "row_kind")),
        _select,
        tuple(_TABLE_OF.values()),
        steps.windows(work.spans),
    )


def _as_it_is(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows


def _select(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    held: pa.RecordBatch | None = None
    for batch in batches:
        rows = batch if held is None else pa.concat_batches([held, batch])
        kind = rows.column("row_kind")
        connections = np.flatnonzero(np.asarray(pc.equal(kind, CONNECTION)))
        held = rows.slice(connections[-1], 1) if len(connections) else None
        for name, table in _TABLE_OF.items():
            at = np.flatnonzero(np.asarray(pc.equal(kind, name)))
            if name == SESSION:
                yield table, _with_connection(rows, at, connections)
            else:
                yield table, _unfolded(rows.take(pa.array(at)), name)


def _with_connection(rows: pa.RecordBatch, at: Any, connections: Any) -> pa.RecordBatch:
    """The sessions `at` these rows, with columns of their connection, which is the last one before them."""
    before = np.searchsorted(connections, at) - 1
    sessions, whose = rows.take(pa.array(at[before >= 0])), rows.take(pa.array(connections[before[before >= 0]]))
    same = np.ones(sessions.num_rows, bool)
    for name in _ENTITY:
        same &= np.asarray(pc.equal(sessions.column(name), whose.column(name)))
    made = _unfolded(sessions, SESSION)
    for name in _ENDPOINTS:
        made = made.append_column(name, pc.struct_field(whose.column("connection"), name))
    return made.filter(pa.array(same))


def _unfolded(rows: pa.RecordBatch, struct: str) -> pa.RecordBatch:
    """`rows` with the fields of a struct as columns."""
    names = [name for name in (*_ENTITY, *_PLACE, "stream_id") if name != struct]
    made = rows.select(names)
    for field in rows.schema.field(struct).type:
        made = made.append_column(field.name, pc.struct_field(rows.column(struct), field.name))
    return made


# What sessions break together, and where streams were resumed

#: Rows of `_Judged` are rules that were broken, and states. Those of `_Resumes` are sessions of a stream that follow
#: another one, and how far the sessions before had sent.
_COMPARED: Final = pa.schema(
    [
        (TABLE, pa.string()),
        ("state", pa.string()),
        *_own(FOUND),
        ("stream_id", _TYPES[PROGRESS].field("stream_id").type),
        ("previous_last_sent", _TYPES[PROGRESS].field("previous_last_sent").type),
    ]
)
_ORDER: Final = ("at_ns", "ends", "connection_id")
_KEYED: Final = {"key": pa.string(), "at_ns": pa.int64(), "ends": pa.int32()}


def _compared(work: Work) -> Stage:
    """The stage that compares the sessions of each worker and instance, and finds the streams that were resumed."""
    inputs = [_input(work, SESSION, _WHOLE_SESSION, _by_session), _input(work, STREAM, _WHOLE_STREAM, _by_stream)]
    return key_folds.stage(
        work,
        STATE,
        inputs,
        _schema(_WHOLE_SESSION, _WHOLE_STREAM, more=_KEYED),
        _ORDER,
        partial(_comparing, ends_ns=_ends_ns(work)),
        [FOUND, STATE],
        horizon_ns=_horizon,
        returned=[RESUMED],
    )


def _comparing(whose: Mapping[str, Any], state: str | None, ends_ns: Mapping[str, int]) -> KeyFold:
    is_stream = json.loads(whose["key"])[0] == _STREAM_KEY
    return _Resumes(state, ends_ns) if is_stream else _Judged(whose["key"], state)


def _ends_ns(work: Work) -> dict[str, int]:
    return {name: work.lake.windows.end_ns(name) for span in work.spans for name in span.windows}


def _keys(kind: str, *columns: pa.Array) -> pa.Array:
    """The key of each row; null where one of `columns` is."""
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return pa.array([None if None in row else json.dumps([kind, *row]) for row in rows], pa.string())


def _by_session(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Prepare sessions: their begin for their instance, and their end for it and for their worker."""
    worker = _keys("worker", *_of(rows, "session", "worker"))
    instance = _keys("instance", *_of(rows, "session", "program_name", "instance_name"))
    end, started_at_ns, ended_at_ns = _of(rows, "session", "ended", "started_at_ns", "ended_at_ns")
    ended, named = end.is_valid(), instance.is_valid()
    parts = [
        (named, instance, started_at_ns, 0),
        (ended, worker, ended_at_ns, 1),
        (pc.and_(ended, named), instance, ended_at_ns, 1),
    ]
    return pa.concat_batches(_keyed(rows, *part) for part in parts)


def _by_stream(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Prepare the streams of instances."""
    names = _of(rows, "stream", "program_name", "instance_name")
    key = _keys(_STREAM_KEY, *names, rows.column("stream_id").cast(pa.string()))
    return _keyed(rows, key.is_valid(), key, rows.column("arrived_at_ns"), 0)


def _keyed(rows: pa.RecordBatch, wanted: pa.Array, key: pa.Array, at_ns: pa.Array, ends: int) -> pa.RecordBatch:
    made = rows.append_column("key", key).append_column("at_ns", at_ns).filter(wanted)
    return made.append_column("ends", pa.repeat(pa.scalar(ends, pa.int32()), made.num_rows))


def _of(rows: pa.RecordBatch, struct: str, *names: str) -> list[pa.Array]:
    """These fields of a struct, as columns."""
    return [pc.struct_field(rows.column(struct), name) for name in names]


class _Judged(KeyFold):
    """The sessions of a worker or an instance: rules that they break together."""

    def __init__(self, key: str, state: str | None) -> None:
        self._fold = Fold(key, state)

    def take(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        out = []
        for row in rows.to_pylist():
            if not row["ends"]:
                self._fold.begin(row["connection_id"])
                continue
            out += [
                {TABLE: FOUND, "protocol": "wallaroo", "connection_id": row["connection_id"]}
                | {name: getattr(found.where.place, name) if found.where else row[name] for name in _PLACE}
                | {"rule": found.rule.id, "severity": found.rule.severity.value, "message": found.message}
                for found in self._fold.take(summary_of(row["connection_id"], row["session"]))
            ]
        return pa.RecordBatch.from_pylist(out, schema=_COMPARED)

    def end_window(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([{TABLE: STATE, "state": self._fold.snapshot()}], schema=_COMPARED)


SNAPSHOT_VERSION: Final = 2
#: Where a stream stood, and how many of its messages were sent again.
_STREAM_CODEC: Final = SnapshotCodec(tuple[Followed, int], what="stream of an instance", version=SNAPSHOT_VERSION)


class _Stream:
    """A stream of an instance: its newest session, and how many of its messages were sent again."""

    def __init__(self, state: str | None, ends_ns: Mapping[str, int]) -> None:
        self._ends_ns = ends_ns
        self.now: Followed | None = None
        self.replayed = 0
        if state is not None:
            self.now, self.replayed = _STREAM_CODEC.read(state)

    def follow(self, row: Mapping[str, Any]) -> bool:
        """Take a session of the stream as it stands at the end of a window; whether it is the newest one."""
        sent = row["stream"]["highest_sent"]
        fields = StreamSession(
            row["connection_id"],
            row["arrived_at_ns"],
            None if sent is None else int(sent),
            self._ends_ns[row["window_start"]],
        )
        after = follow(self.now, fields)
        self.now = after or self.now
        return after is not None

    @property
    def before(self) -> dict[str, Any]:
        """What came before the newest session, as columns of the history."""
        assert self.now is not None
        return {
            "previous_connection_id": self.now.previous_connection_id,
            "previous_last_sent": self.now.previous_last_sent,
        }

    def snapshot(self) -> str:
        """The state as text."""
        assert self.now is not None
        return _STREAM_CODEC.write((self.now, self.replayed))


class _Resumes(KeyFold):
    """Sessions of a stream that may repeat messages of the sessions before."""

    def __init__(self, state: str | None, ends_ns: Mapping[str, int]) -> None:
        self._stream = _Stream(state, ends_ns)

    def take(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        found = [
            {TABLE: RESUMED, **{name: row[name] for name in ("connection_id", "stream_id", "arrived_at_ns")}, **before}
            for row in rows.to_pylist()
            if self._stream.follow(row) and (before := self._stream.before)["previous_last_sent"] is not None
        ]
        return pa.RecordBatch.from_pylist(found, schema=_COMPARED) if found else None


# How far streams got

_ALL_SENT: Final = {**dict.fromkeys((*_ENTITY, "stream_id"), ()), "message": ("kind", "message_id")}
_PROGRESS: Final = pa.schema([(TABLE, pa.string()), ("state", pa.string()), *_own(PROGRESS)])
#: Columns of `_again`'s rows of a stream, and what these are joined by.
_AGAIN: Final = pa.schema(
    [
        ("key", pa.string()),
        ("connection_id", pa.binary()),
        ("stream_id", _TYPES[PROGRESS].field("stream_id").type),
        ("at_ns", pa.int64()),
        ("previous_last_sent", _TYPES[PROGRESS].field("previous_last_sent").type),
    ]
)


def _progress(work: Work, resumed: Sequence[Mapping[str, Any]]) -> Stage:
    """The stage that follows each stream of an instance. It counts messages only for the streams of `resumed`."""
    by_window: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in resumed:
        by_window.setdefault((row["source"], row["window_start"]), []).append({**row, "at_ns": row["arrived_at_ns"]})
    after = {place: pa.Table.from_pylist(rows, schema=_AGAIN) for place, rows in by_window.items()}
    inputs = [_input(work, STREAM, _WHOLE_STREAM, _by_stream)]
    if after:
        spans = [Span(source, (window,)) for source, window in after]
        inputs.append(_input(work, MESSAGE, _ALL_SENT, partial(_again, after=after), spans))
    return key_folds.stage(
        work,
        STATE,
        inputs,
        _schema(_WHOLE_STREAM, more=_KEYED | {"replayed": pa.int64()}),
        # The messages of a stream come after its session.
        (*_ORDER, "replayed"),
        partial(_progressing, ends_ns=_ends_ns(work)),
        [PROGRESS, STATE],
        horizon_ns=_horizon,
        mine=_is_of_stream,
    )


def _is_of_stream(states: pa.RecordBatch) -> pa.Array:
    return pc.starts_with(states.column("key"), json.dumps([_STREAM_KEY])[:-1])


def _again(rows: pa.RecordBatch, after: Mapping[tuple[str, str], pa.Table]) -> pa.RecordBatch:
    """Prepare messages: by stream, how many have an id up to the greatest of the sessions before."""
    # A file of the table has rows of one source and window.
    place = {name: rows.column(name)[0] for name in ("source", "window_start")}
    columns = {name: rows.column(name) for name in ("connection_id", "stream_id")}
    columns["kind"], columns["message_id"] = _of(rows, "message", "kind", "message_id")
    sent = pa.table(columns).filter(pc.field("kind") == "MESSAGE")
    whose = after[place["source"].as_py(), place["window_start"].as_py()]
    whose = whose.filter(pc.is_in(whose["connection_id"], pc.unique(columns["connection_id"])))
    both = sent.join(whose, ["connection_id", "stream_id"], join_type="inner", use_threads=False)
    again = both.filter(pc.less_equal(both["message_id"], both["previous_last_sent"]))
    counts = again.group_by(["key", "connection_id", "at_ns"], use_threads=False).aggregate([([], "count_all")])
    made = {name: counts[name].combine_chunks() for name in ("key", "connection_id", "at_ns")}
    made |= {name: pa.repeat(value, counts.num_rows) for name, value in place.items()}
    made |= {"ends": pa.repeat(pa.scalar(0, pa.int32()), counts.num_rows)}
    return pa.RecordBatch.from_pydict(made | {"replayed": counts["count_all"].combine_chunks()})


def _progressing(whose: Mapping[str, Any], state: str | None, ends_ns: Mapping[str, int]) -> KeyFold:
    return _Progress(state, ends_ns)


class _Progress(KeyFold):
    """A stream of an instance: how far it got, in its newest session at the end of a window."""

    def __init__(self, state: str | None, ends_ns: Mapping[str, int]) -> None:
        self._stream = _Stream(state, ends_ns)
        #: The row of the newest session, if that was in this window.
        self._newest: dict[str, Any] | None = None

    def take(self, rows: pa.RecordBatch) -> None:
        for row in rows.to_pylist():
            if row["replayed"] is not None:
                self._stream.replayed += row["replayed"]
            elif self._stream.follow(row):
                self._newest = row

    def end_window(self) -> pa.RecordBatch | None:
        row, self._newest = self._newest, None
        if row is None:
            return None
        fields = row | row["stream"] | self._stream.before
        # Not the state of the stream's machine, nor the carried one.
        fields |= {TABLE: PROGRESS, "state": None, "replayed": self._stream.replayed}
        return pa.RecordBatch.from_pylist([fields, {TABLE: STATE, "state": self._stream.snapshot()}], schema=_PROGRESS)


def tables(work: Work) -> Iterator[tuple[str, Files]]:
    """The job of gold.wallaroo: its tables, each with its files."""
    compared = replace(_compared(work), beside=[(STATE, work.clock(_horizon))])
    written = steps.run(work, [_entities(work), compared], VERSION)
    progress = steps.run(work, [_progress(work, written.pop(RESUMED))], VERSION)
    for name, made in progress.items():
        written.setdefault(name, []).extend(made)
    yield from steps.files(written, OUTPUTS)
