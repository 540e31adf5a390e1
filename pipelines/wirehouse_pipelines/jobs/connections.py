"""The decoding pass of protocols over TCP: segments of bronze to the rows of a protocol's log, in one streaming pass.

Segments are brought together by port pair and sorted by arrival; each task reads one port pair after another and
keeps the state of one. What is carried to the next window is a `state` row of each port pair that is alive. Where the
dialogues of a source share something, all port pairs between two addresses are read at once. If the protocol has files
too, their pieces are brought together by file, and read likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from wirehouse_codecs.captures.rules import RULE
from wirehouse_codecs.core.rules import Rule
from wirehouse_codecs.logs import files as file_log
from wirehouse_codecs.logs import rows as stream_log
from wirehouse_codecs.logs import windows as source_log
from wirehouse_codecs.logs.files import FILE_COLUMNS, SourceFiles
from wirehouse_codecs.logs.rows import STATE, Gather, Start
from wirehouse_codecs.logs.windows import SEGMENT_COLUMNS, SourceLog
from wirehouse_pipelines import stages
from wirehouse_pipelines.delta import arrow_types, spark_tables
from wirehouse_pipelines.jobs.job import Job, Span, Work
from wirehouse_pipelines.lake import hash_key
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.protocols import FILE_KINDS
from wirehouse_pipelines.stages import Input, Order, Stage
from wirehouse_pipelines.tables import all_tables

#: Of what all protocols over TCP share: raise it and every window of each is stale.
VERSION = "5"
#: Condition of the rows of a log that carry state.
CARRIED = f"row_kind = '{STATE}'"
_ARRIVAL = ("arrived_at_ns", "capture_arrived_at_ns", "capture_id", "record_number")
_PLACE: Final = ("source", "window_start", *_ARRIVAL)
#: What is read together stands together, in order of arrival. States have no arrival: the newest of a flow is the last.
_ORDER: Final = Order(("source", "key"), (*_ARRIVAL, "flow", "window_start"))
#: Columns of `bronze.segments` that say what could not be read.
_SKIPPED: Final = ("skip", "damaged", "damage")


def job(
    protocol: str,
    version: str,
    schema: pa.Schema,
    starter: Callable[[Source, bytes], Start | Gather],
    files: Callable[[Source, bytes], file_log.Start] | None = None,
    more: Callable[[Work], Stage] | None = None,
) -> Job:
    """The decoding job of a protocol over TCP, which writes the log `silver.PROTOCOL` with the columns `schema`.

    `starter` makes the dialogues of a source, given the lake's key, or says how they are gathered; `files` makes the
    readings of a source of files, if the protocol has such; `more` is a stage that makes other rows of the log from
    files; `version` is that of the protocol's decoder.
    """
    table, decoder = f"silver.{protocol}", f"{VERSION}.{version}"

    def build(work: Work) -> Iterator[tuple[str, spark_tables.Files]]:
        key = hash_key.of(work.lake)
        steps = [_of_connections(work, table, schema, lambda source: starter(source, key))]
        if any(_has_files(work, span.source) for span in work.spans):
            if files is not None:
                steps.append(_of_files(work, table, schema, partial(_reading, files=files, key=key)))
            if more is not None:
                steps.append(more(work))
        files_of = (stages.run(work.spark, work.lake, _with_version(step, decoder))[table] for step in steps)
        yield table, spark_tables.Files([file for written in files_of for file in written], None)

    return Job(
        table,
        outputs=(table,),
        build=build,
        version=decoder,
        protocol=protocol,
        reads=("bronze.segments", "bronze.files") if files or more else ("bronze.segments",),
        state_table=table,
        carried=CARRIED,
        also=_also,
    )


def _also(lake: Lake, source: Source) -> str:
    """The key, under which state is sealed and the hashes of secrets are made, and how connections are put together."""
    return f"{hash_key.name_of(lake)} {source.tcp.canonical()}"


def heard_once(work: Work, table: str, row_kind: str | None = None) -> DataFrame:
    """The rows of log `table` of services, of connections that several of their sources saw those of one.

    All rows, or those of one `row_kind`.
    """
    log, again = work.read_members(table, row_kind), _heard_again(work, table)
    return log if again is None else log.join(again, ["window_start", "connection_id"], "left_anti")


def _heard_again(work: Work, table: str) -> DataFrame | None:
    """Connections that another source of the service saw as well: window_start and connection_id; None: it has one.

    Of two that have the same endpoints in overlapping times, seen by two sources, that stays which began first, then
    that of the first source by name.
    """
    if all(len(work.lake.sources_of(span.source)) == 1 for span in work.spans):
        return None
    connections = work.read_members(table, stream_log.CONNECTION)
    seen = connections.select("source", "window_start", "seen_by", "connection_id", "connection.*")
    ends = ("client_address", "client_port", "server_address", "server_port")
    first, second = seen.alias("first"), seen.alias("second")
    same = [F.col(f"first.{name}") == F.col(f"second.{name}") for name in ("source", "window_start", *ends)]
    by = ("started_at_ns", "seen_by")
    before = F.struct(*(f"first.{name}" for name in by)) < F.struct(*(f"second.{name}" for name in by))
    apart = F.col("first.seen_by") != F.col("second.seen_by")
    overlap = F.col("first.last_at_ns") >= F.col("second.started_at_ns")
    again = first.join(second, [*same, apart, before, overlap]).select(
        F.col("second.window_start").alias("window_start"), F.col("second.connection_id").alias("connection_id")
    )
    return again.distinct()


def _with_version(stage: Stage, decoder: str) -> Stage:
    """The stage, whose rows say which version of the decoder made them."""
    beside = list(_versioned(stage.beside, decoder))
    return replace(stage, fold=partial(_fold_with_version, fold=stage.fold, decoder=decoder), beside=beside)


def _fold_with_version(
    rows: Iterable[pa.RecordBatch], fold: stages.Fold, decoder: str
) -> Iterator[tuple[str, pa.RecordBatch]]:
    return _versioned(fold(rows), decoder)


def _versioned(made: Iterable[tuple[str, pa.RecordBatch]], decoder: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    for table, rows in made:
        yield table, rows.append_column("decoder_version", pa.repeat(decoder, rows.num_rows))


def within(spans: Iterable[Span]) -> frozenset[tuple[str, str]]:
    """Source and window of each row of the spans."""
    return frozenset((span.source, window) for span in spans for window in span.windows)


def _of_connections(work: Work, table: str, schema: pa.Schema, start: Callable[[Source], Start | Gather]) -> Stage:
    """The rows of log `table` that follow from segments; `start` makes the dialogues of a source."""
    seal = hash_key.StateSeal(hash_key.of(work.lake))
    sources = {
        span.source: SourceLog(
            start(work.source(span.source)), work.source(span.source).tcp, _windows(work, span), seal
        )
        for span in work.spans
    }
    gathered = frozenset(name for name, source in sources.items() if isinstance(source.start, Gather))
    new = Input(
        "bronze.segments",
        spark_tables.files(work.lake, "bronze.segments", work.spans),
        {name: () for name in (*SEGMENT_COLUMNS, *_SKIPPED) if name != "state"},
        partial(_segments, gathered=gathered),
    )
    return Stage(
        [new, *_carried(work, table, gathered, files=False)],
        _on_its_way("bronze.segments", (*SEGMENT_COLUMNS, *_SKIPPED)),
        _ORDER,
        partial(_fold, table=table, read=partial(source_log.read, sources=sources, schema=schema)),
        [table],
        within(work.spans),
        [(table, _clock(work))],
    )


def _reading(
    source: Source, windows: tuple[stream_log.Window, ...], files: Callable[[Source, bytes], file_log.Start], key: bytes
) -> SourceFiles:
    return SourceFiles(files(source, key), source.tcp.idle_ns, windows, hash_key.StateSeal(key))


def _of_files(
    work: Work,
    table: str,
    schema: pa.Schema,
    reading: Callable[[Source, tuple[stream_log.Window, ...]], SourceFiles],
) -> Stage:
    """The rows of log `table` of the sources of files."""
    sources = {
        span.source: reading(work.source(span.source), _windows(work, span))
        for span in work.spans
        if _has_files(work, span.source)
    }
    given = [name for name in FILE_COLUMNS if name not in ("flow", "state")]
    new = Input(
        "bronze.files", spark_tables.files(work.lake, "bronze.files", work.spans), dict.fromkeys(given, ()), _files
    )
    return Stage(
        [new, *_carried(work, table, frozenset(), files=True)],
        _on_its_way("bronze.files", FILE_COLUMNS),
        _ORDER,
        partial(_fold, table=table, read=partial(file_log.read, sources=sources, schema=schema)),
        [table],
        within(work.spans),
    )


def _has_files(work: Work, source: str) -> bool:
    return work.source(source).kind in FILE_KINDS


def _windows(work: Work, span: Span) -> tuple[stream_log.Window, ...]:
    windows = work.lake.windows
    return tuple(stream_log.Window(name, windows.end_ns(name)) for name in span.windows)


def _clock(work: Work) -> pa.RecordBatch:
    rows = [(*row, STATE) for row in work.clock_rows(lambda source: source.tcp.idle_ns)]
    names = ("source", "window_start", "carried_from", "row_kind")
    return pa.RecordBatch.from_arrays([pa.array(column, pa.string()) for column in zip(*rows, strict=True)], names)


def _on_its_way(table: str, columns: Sequence[str]) -> pa.Schema:
    """The columns of `table`, with what is added to them."""
    known = {field.name: field.type for field in arrow_types.schema(all_tables()[table])}
    known |= {"state": pa.string(), "flow": pa.binary()}
    return pa.schema([*((name, known[name]) for name in columns), ("key", pa.binary())])


def _carried(work: Work, table: str, gathered: frozenset[str], *, files: bool) -> list[Input]:
    """The states that reach the spans; of sources of files, or of packets."""
    alive = [span for span in work.alive() if _has_files(work, span.source) is files]
    found = spark_tables.files(work.lake, table, alive, STATE) if alive else []
    columns: dict[str, Sequence[str]] = dict.fromkeys(("source", "flow", "window_start", "state"), ())
    return [Input(table, found, columns, partial(_states, gathered=gathered))] if found else []


def _segments(rows: pa.RecordBatch, gathered: frozenset[str]) -> pa.RecordBatch:
    """Segments, and what bronze could not read and is to be told of: that has no flow."""
    segment = pc.is_null(rows.column("skip"))
    told = pc.or_(pc.fill_null(pc.equal(rows.column("skip"), "ip_fragment"), False), rows.column("damaged").is_valid())
    wanted = pc.or_(segment, told)
    if not pc.all(wanted).as_py():
        rows, segment = rows.filter(wanted), segment.filter(wanted)
    flow = pc.if_else(segment, rows.column("flow"), pa.scalar(None, pa.binary()))
    return _keyed(rows.set_column(rows.schema.get_field_index("flow"), "flow", flow), gathered)


def _states(rows: pa.RecordBatch, gathered: frozenset[str]) -> pa.RecordBatch:
    """The clock's rows have no flow."""
    return _keyed(rows.filter(rows.column("flow").is_valid()), gathered)


def _files(rows: pa.RecordBatch) -> pa.RecordBatch:
    whose = zip(*(rows.column(name).to_pylist() for name in ("source", "capture_id", "name")), strict=True)
    return _keyed(rows.append_column("flow", pa.array([file_log.file_id(*file) for file in whose], pa.binary())))


def _keyed(rows: pa.RecordBatch, gathered: frozenset[str] = frozenset()) -> pa.RecordBatch:
    """With the column `key`: of sources that gather their dialogues the addresses, else the flow."""
    key = rows.column("flow")
    # A file has rows of one source.
    if rows.num_rows and rows.column("source")[0].as_py() in gathered:
        flows = key.dictionary_encode()
        key = pa.array(map(source_log.addresses, flows.dictionary.to_pylist()), pa.binary()).take(flows.indices)
    return rows.append_column("key", key)


def _fold(
    rows: Iterable[pa.RecordBatch], table: str, read: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of the log."""
    skipped: list[pa.RecordBatch] = []
    for made in read(_newest_states(_readable(rows, skipped))):
        yield table, made
    for batch in skipped:
        yield table, batch


def _readable(rows: Iterable[pa.RecordBatch], skipped: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """`rows` that have a flow; what is to be told of the others goes to `skipped`."""
    for batch in rows:
        flow = batch.column("flow")
        if not flow.null_count:
            yield batch
            continue
        skipped.append(_of_skipped(batch.filter(flow.is_null())))
        if flow.null_count < batch.num_rows:
            yield batch.filter(flow.is_valid())


def _newest_states(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """`rows` without the states that newer ones of the same flow replace, and without those that say: it ended."""
    held: pa.RecordBatch | None = None
    for batch in rows:
        whole = batch if held is None else pa.concat_batches([held, batch])
        state = np.asarray(whole.column("arrived_at_ns").is_null())
        # Whether a newer one follows the last row is seen when there is a next one.
        end = whole.num_rows - int(state[-1])
        held = whole.slice(end) if state[-1] else None
        if state.any():
            gone = state & np.asarray(whole.column("state").is_null())
            replaced = state[:-1] & state[1:]
            for name in ("source", "flow"):
                column = whole.column(name)
                replaced &= np.asarray(pc.equal(column[1:], column[:-1]))
            gone[:-1] |= replaced
            whole = whole.slice(0, end).filter(pa.array(~gone[:end]))
        if whole.num_rows:
            yield whole
    if held is not None and held.column("state").null_count == 0:
        yield held


def _of_skipped(rows: pa.RecordBatch) -> pa.RecordBatch:
    """What bronze could not read: fragments are said, and damaged records are quarantined; landing has told of them.

    Their bytes stay in bronze: they may be those of any packet, also of one with a secret.
    """
    damaged = np.asarray(rows.column("damaged").is_valid())
    kinds = np.where(damaged, stream_log.QUARANTINE, stream_log.VIOLATION)
    findings = [
        _finding(RULE["file_damaged"], damage) if one else _finding(RULE["ip_fragment"], "not put together")
        for one, damage in zip(damaged, rows.column("damage").to_pylist(), strict=True)
    ]
    columns = {name: rows.column(name) for name in _PLACE}
    columns["row_kind"] = pa.array(kinds.tolist(), pa.string())
    columns["finding"] = pa.array(findings, stream_log.FINDING_TYPE)
    return pa.RecordBatch.from_pydict(columns)


def _finding(rule: Rule, message: str) -> dict[str, Any]:
    return {"rule": rule.id, "severity": rule.severity.value, "message": message}
