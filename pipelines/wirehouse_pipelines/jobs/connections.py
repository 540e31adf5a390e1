"""The decoding jobs of protocols over TCP: from `bronze.segments` to the log `silver.PROTOCOL`, in one streaming pass.

`job` declares such a job as stages (see the package `stages`). Their key is the port pair (`flow`), their order is
arrival. A task reads one port pair after another and holds the state of one. At the end of a window, each port pair
that is still alive has a row of state (`row_kind = 'state'`), which the next window starts from.

If the dialogues of a source share something, the key is the pair of addresses, so that all port pairs between two hosts
are read together (`Gather`). If a protocol also has files, a second stage reads their pieces in `bronze.files`; its key
is the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.captures.rules import RULE
from wirehouse_codecs.core.errors import WirehouseError
from wirehouse_codecs.core.rules import Rule
from wirehouse_codecs.logs.files import FILE_COLUMNS, SourceFiles, file_id
from wirehouse_codecs.logs.files import Start as FileStart
from wirehouse_codecs.logs.files import read as read_files
from wirehouse_codecs.logs.rows import FINDING_TYPE, QUARANTINE, STATE, VIOLATION, Gather, Start, Window
from wirehouse_codecs.logs.windows import SEGMENT_COLUMNS, SourceLog, addresses
from wirehouse_codecs.logs.windows import read as read_segments
from wirehouse_pipelines.delta import arrow_types, spark_tables
from wirehouse_pipelines.jobs import steps
from wirehouse_pipelines.jobs.job import Job, Span, Work
from wirehouse_pipelines.lake import hash_key
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.protocols import FILE_KINDS
from wirehouse_pipelines.stages import Input, Order, Stage
from wirehouse_pipelines.tables import all_tables

#: The version of the code that all protocols over TCP share. A new version makes every window of each stale.
VERSION = "14"
_ARRIVAL = ("arrived_at_ns", "capture_arrived_at_ns", "capture_id", "record_number")
_PLACE: Final = ("source", "window_start", *_ARRIVAL)
#: Rows of a key are in order of arrival. States have no arrival, so they come first; of a flow the newest comes last.
_ORDER: Final = Order(("source", "key"), (*_ARRIVAL, "flow", "window_start"))
#: Columns of `bronze.segments` about packets that could not be read.
_SKIPPED: Final = ("skip", "damaged", "damage")


def job(
    protocol: str,
    version: str,
    schema: pa.Schema,
    starter: Callable[[Source, bytes], Start | Gather],
    files: Callable[[Source, bytes], FileStart] | None = None,
    more: Callable[[Work], Stage] | None = None,
) -> Job:
    """Declare the decoding job of a protocol over TCP, which writes the log `silver.PROTOCOL` with columns `schema`.

    `version` is that of the protocol's decoder. `starter` takes a source and the lake's key and returns what creates
    dialogues, or a Gather if they share something. `files` is the same for sources of files, if the protocol has such.
    `more` declares a further stage that makes rows of the log from files.
    """
    table, decoder = f"silver.{protocol}", f"{VERSION}.{version}"

    def build(work: Work) -> Iterator[tuple[str, spark_tables.Files]]:
        _check_columns(table, schema)
        key = hash_key.of(work.lake)
        declared = [_of_connections(work, table, schema, lambda source: starter(source, key))]
        if any(_has_files(work, span.source) for span in work.spans):
            if files is not None:
                declared.append(_of_files(work, table, schema, partial(_reading, files=files, key=key)))
            if more is not None:
                declared.append(more(work))
        yield from steps.files(steps.run(work, declared, decoder), [table])

    return Job(
        table,
        outputs=(table,),
        build=build,
        version=decoder,
        protocol=protocol,
        reads=("bronze.segments", "bronze.files") if files or more else ("bronze.segments",),
        state_table=table,
        also=_also,
    )


class ColumnsDifferError(WirehouseError):
    """The columns that a codec writes aren't those that the table's YAML declares."""

    template = "{table}: its YAML declares other types than the codec's SCHEMA: {columns}. Make both equal"


def _check_columns(table: str, schema: pa.Schema) -> None:
    """Raises ColumnsDifferError: a column or a field would be dropped, or cast."""
    declared = arrow_types.schema(all_tables()[table])
    differ = [
        f"{field.name} ({declared.field(field.name).type} in the YAML, {field.type} in SCHEMA)"
        if field.name in declared.names
        else f"{field.name} (not in the YAML)"
        for field in schema
        if field.name not in declared.names or declared.field(field.name).type != field.type
    ]
    if differ:
        raise ColumnsDifferError(table=table, columns="; ".join(differ))


def _also(lake: Lake, source: Source) -> str:
    """Further dependencies of rows, as text: the lake's key (sealed state, hashes of secrets), reassembly options."""
    return f"{hash_key.name_of(lake)} {source.tcp.canonical()}"


def _of_connections(work: Work, table: str, schema: pa.Schema, start: Callable[[Source], Start | Gather]) -> Stage:
    """The stage from segments to rows of log `table`; `start` returns what creates the dialogues of a source."""
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
        partial(_fold, table=table, read=partial(read_segments, sources=sources, schema=schema)),
        [table],
        steps.windows(work.spans),
        [(table, _clock(work))],
    )


def _reading(
    source: Source, windows: tuple[Window, ...], files: Callable[[Source, bytes], FileStart], key: bytes
) -> SourceFiles:
    return SourceFiles(files(source, key), source.tcp.idle_ns, windows, hash_key.StateSeal(key))


def _of_files(
    work: Work,
    table: str,
    schema: pa.Schema,
    reading: Callable[[Source, tuple[Window, ...]], SourceFiles],
) -> Stage:
    """The stage from pieces of files to rows of log `table`, for the sources of files."""
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
        partial(_fold, table=table, read=partial(read_files, sources=sources, schema=schema)),
        [table],
        steps.windows(work.spans),
    )


def _has_files(work: Work, source: str) -> bool:
    return work.source(source).kind in FILE_KINDS


def _windows(work: Work, span: Span) -> tuple[Window, ...]:
    windows = work.lake.windows
    return tuple(Window(name, windows.end_ns(name)) for name in span.windows)


def _clock(work: Work) -> pa.RecordBatch:
    rows = work.clock(lambda source: source.tcp.idle_ns)
    return rows.append_column("row_kind", pa.repeat(STATE, rows.num_rows))


def _on_its_way(table: str, columns: Sequence[str]) -> pa.Schema:
    """The schema of rows between preparation and fold: these columns of `table`, with state, flow and key."""
    known = {field.name: field.type for field in arrow_types.schema(all_tables()[table])}
    known |= {"state": pa.string(), "flow": pa.binary()}
    return pa.schema([*((name, known[name]) for name in columns), ("key", pa.binary())])


def _carried(work: Work, table: str, gathered: frozenset[str], *, files: bool) -> list[Input]:
    """The rows of state before the spans as an input, if there are any; for sources of files or of packets."""
    alive = [span for span in work.alive() if _has_files(work, span.source) is files]
    found = spark_tables.files(work.lake, table, alive, STATE) if alive else []
    columns: dict[str, Sequence[str]] = dict.fromkeys(("source", "flow", "window_start", "state"), ())
    return [Input(table, found, columns, partial(_states, gathered=gathered))] if found else []


def _segments(rows: pa.RecordBatch, gathered: frozenset[str]) -> pa.RecordBatch:
    """Prepare rows of bronze.segments: keep segments, and packets whose problem has to be reported (without a flow)."""
    segment = pc.is_null(rows.column("skip"))
    reported = pc.or_(
        pc.fill_null(pc.equal(rows.column("skip"), "ip_fragment"), False), rows.column("damaged").is_valid()
    )
    wanted = pc.or_(segment, reported)
    if not pc.all(wanted).as_py():
        rows, segment = rows.filter(wanted), segment.filter(wanted)
    flow = pc.if_else(segment, rows.column("flow"), pa.scalar(None, pa.binary()))
    return _keyed(rows.set_column(rows.schema.get_field_index("flow"), "flow", flow), gathered)


def _states(rows: pa.RecordBatch, gathered: frozenset[str]) -> pa.RecordBatch:
    """Prepare rows of state: keep those of flows; the clock's rows have no flow."""
    return _keyed(rows.filter(rows.column("flow").is_valid()), gathered)


def _files(rows: pa.RecordBatch) -> pa.RecordBatch:
    whose = zip(*(rows.column(name).to_pylist() for name in ("source", "capture_id", "name")), strict=True)
    return _keyed(rows.append_column("flow", pa.array([file_id(*file) for file in whose], pa.binary())))


def _keyed(rows: pa.RecordBatch, gathered: frozenset[str] = frozenset()) -> pa.RecordBatch:
    """Add the column `key`: the pair of addresses for sources that gather their dialogues, else the flow."""
    key = rows.column("flow")
    # A file of the table has rows of one source.
    if rows.num_rows and rows.column("source")[0].as_py() in gathered:
        flows = key.dictionary_encode()
        key = pa.array(map(addresses, flows.dictionary.to_pylist()), pa.binary()).take(flows.indices)
    return rows.append_column("key", key)


def _fold(
    rows: Iterable[pa.RecordBatch], table: str, read: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The fold: decode ordered rows with `read`; rows of the log."""
    skipped: list[pa.RecordBatch] = []
    for made in read(_newest_states(_readable(rows, skipped))):
        yield table, made
    for batch in skipped:
        yield table, batch


def _readable(rows: Iterable[pa.RecordBatch], skipped: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows that have a flow; log rows about the others are appended to `skipped`."""
    for batch in rows:
        flow = batch.column("flow")
        if not flow.null_count:
            yield batch
            continue
        skipped.append(_of_skipped(batch.filter(flow.is_null())))
        if flow.null_count < batch.num_rows:
            yield batch.filter(flow.is_valid())


def _newest_states(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Drop states that a newer one of the same flow replaces, and null states, which mean that the flow has ended."""
    held: pa.RecordBatch | None = None
    for batch in rows:
        whole = batch if held is None else pa.concat_batches([held, batch])
        state = np.asarray(whole.column("arrived_at_ns").is_null())
        # Whether a newer state follows the last row is known only with the next batch.
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
    """Log rows about packets that bronze could not read.

    An IP fragment is a violation. A damaged record is quarantined; landing has already reported the damage. The bytes
    stay in bronze, because they may be of any packet, including one with a secret.
    """
    damaged = np.asarray(rows.column("damaged").is_valid())
    kinds = np.where(damaged, QUARANTINE, VIOLATION)
    findings = [
        _finding(RULE["file_damaged"], damage) if one else _finding(RULE["ip_fragment"], "not reassembled")
        for one, damage in zip(damaged, rows.column("damage").to_pylist(), strict=True)
    ]
    columns = {name: rows.column(name) for name in _PLACE}
    columns["row_kind"] = pa.array(kinds.tolist(), pa.string())
    columns["finding"] = pa.array(findings, FINDING_TYPE)
    return pa.RecordBatch.from_pydict(columns)


def _finding(rule: Rule, message: str) -> dict[str, Any]:
    return {"rule": rule.id, "severity": rule.severity.value, "message": message}
