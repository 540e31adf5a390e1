"""Bronze: the jobs that turn landed records into rows of Delta tables, typed and not judged.

`bronze.messages`, `bronze.segments` and `bronze.files` have the records of the three kinds. `bronze.captures`,
`bronze.windows` and `bronze.findings` have the manifests. A task reads a share of landed Avro objects as Arrow columns
and writes these into files of the table.

Landed records may expire once bronze has their rows. When such a window is recomputed, the rows of expired captures are
copied from the table as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import groupby
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.captures.rules import RULES
from wirehouse_codecs.core.errors import WirehouseError
from wirehouse_codecs.core.rules import by_name
from wirehouse_pipelines import stages
from wirehouse_pipelines.delta import arrow_types, spark_tables, table_writer
from wirehouse_pipelines.jobs import segments
from wirehouse_pipelines.jobs.job import Job, Span, Work
from wirehouse_pipelines.lake.lake import MESSAGE_KINDS, PACKET_KINDS, Lake, Source
from wirehouse_pipelines.lake.protocols import FILE_KINDS
from wirehouse_pipelines.landing import object_reader
from wirehouse_pipelines.landing.manifests import FORGOTTEN, Manifest, WindowObjects
from wirehouse_pipelines.landing.object_reader import DamagedObjectError
from wirehouse_pipelines.stages import Input, Stage, Where
from wirehouse_pipelines.storage.storage import Storage, open_storage
from wirehouse_pipelines.tables import all_tables

#: The most bytes of landed objects that a task reads, and the least if there are as many.
SHARE_BYTES: Final = 64 << 20
LEAST_BYTES: Final = 4 << 20
Build = Callable[[Work], Iterator[tuple[str, Any]]]


class LandingGoneError(WirehouseError):
    """Rows can't be computed: the landed records have expired, and the table has lost their rows."""

    template = (
        "{table}: window {window} of source {source} can't be recomputed: the landed records of {count} of its "
        "captures have expired, and their rows are gone: land the files again with "
        "`wirehouse land FILE --source {source}`"
    )


def capture_window(manifest: Manifest, lake: Lake) -> str:
    """The window of a capture's row: that of its first record, or of its landing if it has no records."""
    moment = manifest.first_arrived_at_ns if manifest.records else manifest.landed_at_ns
    return lake.windows.of(moment if moment is not None else manifest.landed_at_ns)


def _captures_by_window(landed: Sequence[Manifest], lake: Lake) -> Mapping[str, Any]:
    facts: dict[str, list[str]] = {}
    for manifest in landed:
        if manifest.status == FORGOTTEN:
            continue
        facts.setdefault(capture_window(manifest, lake), []).append(manifest.digest)
        for window, has in manifest.windows.items():
            facts.setdefault(window, []).append(f"{manifest.capture_id}: {has.records}")
        for finding in manifest.findings:
            facts.setdefault(lake.windows.of(finding.arrived_at_ns), []).append(manifest.capture_id)
    return {window: sorted(listed) for window, listed in facts.items()}


def captures(work: Work) -> Iterator[tuple[str, pa.Table]]:
    """The rows of captures, of the number of records per capture and window, and of landing's findings."""
    severity = {rule.id: rule.severity.value for rule in by_name(RULES).values()}
    wanted = {(span.source, window) for span in work.spans for window in span.windows}
    rows: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for manifest in work.landed:
        window = capture_window(manifest, work.lake)
        fields = asdict(manifest) | {"capture_id": bytes.fromhex(manifest.capture_id)}
        if manifest.status != FORGOTTEN and (manifest.source, window) in wanted:
            rows.append(fields | {"window_start": window})
        for window, has in manifest.windows.items():
            if (manifest.source, window) in wanted:
                parts.append(fields | {"window_start": window, "records": has.records})
        for finding in manifest.findings:
            window = work.lake.windows.of(finding.arrived_at_ns)
            if (manifest.source, window) in wanted:
                place = {
                    "source": manifest.source,
                    "window_start": window,
                    "capture_id": bytes.fromhex(manifest.capture_id),
                }
                rule = {"protocol": "capture", "severity": severity[finding.rule]}
                found.append(asdict(finding) | place | rule)
    for name, listed in (("bronze.captures", rows), ("bronze.windows", parts), ("bronze.findings", found)):
        yield name, pa.Table.from_pylist(listed, schema=arrow_types.schema(all_tables()[name]))


def _captures_of(landed: Sequence[Manifest], kinds: tuple[str, ...]) -> dict[str, list[str]]:
    facts: dict[str, list[str]] = {}
    for manifest in landed:
        if manifest.kind in kinds:
            for window in manifest.windows:
                facts.setdefault(window, []).append(manifest.capture_id)
    return {window: sorted(listed) for window, listed in facts.items()}


def _messages_by_window(landed: Sequence[Manifest], lake: Lake) -> Mapping[str, Any]:
    return _captures_of(landed, MESSAGE_KINDS)


def _packets_by_window(landed: Sequence[Manifest], lake: Lake) -> Mapping[str, Any]:
    """The captures of each window, and the ports that decide which packets belong to the source."""
    claimed = sorted({port for name in {manifest.source for manifest in landed} for port in lake.source(name).ports})
    return {window: [claimed, listed] for window, listed in _captures_of(landed, PACKET_KINDS).items()}


def _files_by_window(landed: Sequence[Manifest], lake: Lake) -> Mapping[str, Any]:
    return _captures_of(landed, FILE_KINDS)


def _released(work: Work, kinds: tuple[str, ...]) -> dict[tuple[str, str], list[str]]:
    """Captures of `kinds` whose landed records have expired, by source and window of the spans."""
    wanted = {(span.source, window) for span in work.spans for window in span.windows}
    found: dict[tuple[str, str], list[str]] = {}
    for manifest in work.landed:
        if manifest.kind in kinds and manifest.released_at_ns is not None:
            for window in manifest.windows:
                if (manifest.source, window) in wanted:
                    found.setdefault((manifest.source, window), []).append(manifest.capture_id)
    return found


class Piece(NamedTuple):
    """A range of bytes of a landed object. The object's records have one source and window."""

    source: str
    window: str
    name: str
    begin: int
    end: int


#: Turns landed records of a source into columns of a table.
Columns = Callable[[pa.RecordBatch, Source], pa.RecordBatch]


def _as_landed(records: pa.RecordBatch, source: Source) -> pa.RecordBatch:
    return records


def _segments(records: pa.RecordBatch, source: Source) -> pa.RecordBatch:
    """Landed packets with their headers parsed, up to the TCP payload."""
    return segments.read(records, source.ports)


def _windows(work: Work, kinds: tuple[str, ...]) -> Iterator[WindowObjects]:
    """The landed objects in windows of the spans, of captures whose records haven't expired."""
    wanted = {(span.source, window) for span in work.spans for window in span.windows}
    for manifest in work.landed:
        if manifest.kind in kinds and manifest.released_at_ns is None:
            yield from (has for window, has in manifest.windows.items() if (manifest.source, window) in wanted)


def _pieces(work: Work, kinds: tuple[str, ...]) -> Iterator[Piece]:
    """The landed objects with records of the spans, each as one piece. Raises DamagedObjectError if one is missing."""
    storage, sizes = open_storage(work.lake.root), dict[str, dict[str, int]]()
    for name in (name for has in _windows(work, kinds) for name in has.objects):
        folder = name.rpartition("/")[0]
        if folder not in sizes:
            sizes[folder] = {stored.name: stored.size_bytes for stored in storage.list(folder)}
        if name not in sizes[folder]:
            raise DamagedObjectError(name=name, reason="it is missing")
        *_, source, window = folder.split("/")
        yield Piece(source, window, name, 0, sizes[folder][name])


def shares(pieces: Iterable[Piece], cores: int) -> list[list[Piece]]:
    """Divide `pieces` into shares for tasks, so that all cores have work and no share is large.

    Large pieces are cut. A share has its pieces in order of source and window.
    """
    listed = sorted(pieces)
    most = min(SHARE_BYTES, max(LEAST_BYTES, -(-sum(piece.end for piece in listed) // cores)))
    found: list[list[Piece]] = []
    left = 0
    for piece in listed:
        begin = piece.begin
        while begin < piece.end:
            if left <= 0:
                found.append([])
                left = most
            end = min(piece.end, begin + left)
            found[-1].append(piece._replace(begin=begin, end=end))
            left -= end - begin
            begin = end
    return found


class Written(NamedTuple):
    """The result of a task."""

    #: Descriptions of the files that it wrote, see `table_writer`.
    files: list[dict[str, Any]]
    #: Number of records that it read, by the name of the object.
    records: Counter[str]


def write_share(share: Sequence[Piece], lake: Lake, table: str, columns: Columns) -> Written | WirehouseError | OSError:
    """Write the rows of a share into files of the table, one per source and window.

    Errors are returned: a raised one would reach the driver wrapped in Spark's own.
    """
    storage, written = open_storage(lake.root), Written([], Counter())
    try:
        for (source, window), pieces in groupby(share, lambda piece: (piece.source, piece.window)):
            records = (batch for piece in pieces for batch in _records(storage, piece, written.records))
            rows = (columns(batch, lake.source(source)) for batch in records)
            partition = {"source": source, "window_start": window}
            file = table_writer.write(storage, lake.table_folder(table), all_tables()[table], partition, rows)
            written.files.extend([file] if file else [])
    except (WirehouseError, OSError) as error:
        return error
    return written


def _records(storage: Storage, piece: Piece, counts: Counter[str]) -> Iterator[pa.RecordBatch]:
    with storage.open(piece.name) as stream:
        for records in object_reader.read(stream, piece.name, piece.begin, piece.end):
            counts[piece.name] += records.num_rows
            yield records


def _read(table: str, kinds: tuple[str, ...], columns: Columns) -> Build:
    """The `build` of a job: rows that `columns` makes of landed records, and unchanged rows of expired captures."""

    def build(work: Work) -> Iterator[tuple[str, spark_tables.Files]]:
        files = [*_kept(work, table, kinds)]
        context = work.spark.sparkContext
        parts = shares(_pieces(work, kinds), context.defaultParallelism)
        write = partial(write_share, lake=work.lake, table=table, columns=columns)
        records: Counter[str] = Counter()
        for written in context.parallelize(parts, len(parts)).map(write).collect() if parts else ():
            if not isinstance(written, Written):
                raise written
            files += written.files
            records += written.records
        for window in _windows(work, kinds):
            found = sum(records[name] for name in window.objects)
            if found != window.records:
                reason = f"of {window.records:,} records there are only {found:,}"
                raise DamagedObjectError(name=" and ".join(window.objects), reason=reason)
        yield table, files

    return build


def _kept(work: Work, table: str, kinds: tuple[str, ...]) -> spark_tables.Files:
    """Files with the table's rows of captures whose landed records have expired. Raises LandingGoneError."""
    gone = _released(work, kinds)
    held = spark_tables.rows_by_window(work.lake, table) if gone else {}
    for (source, window), captures in gone.items():
        if not held.get((source, window)):
            raise LandingGoneError(table=table, window=window, source=source, count=len(captures))
    schema = arrow_types.given(all_tables()[table])
    stage = Stage(
        inputs=[
            Input(
                table,
                spark_tables.files(work.lake, table, [Span(source, (window,))]),
                dict.fromkeys(schema.names, ()),
                where=Where({"capture_id": ()}, partial(_is_of, captures=[*map(bytes.fromhex, captures)])),
            )
            for (source, window), captures in gone.items()
        ],
        schema=schema,
        order=None,
        fold=partial(_same, table=table),
        tables=(table,),
        windows=frozenset(gone),
    )
    return stages.run(work.spark, work.lake, stage)[table] if gone else []


def _is_of(rows: pa.RecordBatch, captures: Sequence[bytes]) -> pa.Array:
    return pc.is_in(rows.column("capture_id"), pa.array(captures, pa.binary()))


def _same(batches: Iterable[pa.RecordBatch], table: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    return ((table, rows) for rows in batches)


def _of_kinds(
    table: str,
    kinds: tuple[str, ...],
    facts: Callable[[Sequence[Manifest], Lake], Mapping[str, Any]],
    columns: Columns = _as_landed,
) -> Job:
    return Job(table, (table,), _read(table, kinds, columns), version="1", landed=facts, kinds=kinds)


JOBS = (
    Job(
        "bronze.captures",
        ("bronze.captures", "bronze.windows", "bronze.findings"),
        captures,
        version="3",
        landed=_captures_by_window,
    ),
    _of_kinds("bronze.messages", MESSAGE_KINDS, _messages_by_window),
    _of_kinds("bronze.segments", PACKET_KINDS, _packets_by_window, _segments),
    _of_kinds("bronze.files", FILE_KINDS, _files_by_window),
)
