"""The decoding pass of protocols over TCP: segments of bronze to the rows of a protocol's log, in one streaming pass.

Segments are brought together by port pair and sorted by arrival; each task reads one port pair after another and
keeps the state of one. What is carried to the next window is a `state` row of each port pair that is alive. Where the
dialogues of a source share something, all port pairs between two addresses are read at once. If the protocol has files
too, their pieces are brought together by file, and read likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from wirehouse_codecs import file_log, source_log, stream_log
from wirehouse_codecs.capture_rules import RULE
from wirehouse_codecs.file_log import FILE_COLUMNS, SourceFiles
from wirehouse_codecs.rules import Rule
from wirehouse_codecs.source_log import SEGMENT_COLUMNS, SourceLog
from wirehouse_codecs.stream_log import STATE, Gather, Start
from wirehouse_pipelines import hash_key
from wirehouse_pipelines.lake import Lake, Source
from wirehouse_pipelines.protocols import FILE_KINDS
from wirehouse_pipelines.tables import all_tables
from wirehouse_pipelines.work import Job, Span, Work

#: Of what all protocols over TCP share: raise it and every window of each is stale.
VERSION = "4"
#: Condition of the rows of a log that carry state.
CARRIED = f"row_kind = '{STATE}'"
_ARRIVAL = ("arrived_at_ns", "capture_arrived_at_ns", "capture_id", "record_number")
_PLACE = ("source", "window_start", *_ARRIVAL)
#: What `source_log.addresses` gives.
_ADDRESSES = """CASE length(flow) WHEN 12 THEN concat(substring(flow, 1, 4), substring(flow, 7, 4))
    WHEN 36 THEN concat(substring(flow, 1, 16), substring(flow, 19, 16)) ELSE flow END"""


def job(
    protocol: str,
    version: str,
    schema: pa.Schema,
    starter: Callable[[Source, bytes], Start | Gather],
    files: Callable[[Source, bytes], file_log.Start] | None = None,
) -> Job:
    """The decoding job of a protocol over TCP, which writes the log `silver.PROTOCOL` with the columns `schema`.

    `starter` makes the dialogues of a source, given the lake's key, or says how they are gathered; `files` makes the
    readings of a source of files, if the protocol has such; `version` is that of the protocol's decoder.
    """
    table, decoder = f"silver.{protocol}", f"{VERSION}.{version}"

    def build(work: Work) -> Iterator[tuple[str, DataFrame]]:
        key = hash_key.of(work.lake)
        rows = _log(work, table, schema, lambda source: starter(source, key))
        if files is not None and any(_has_files(work, span.source) for span in work.spans):
            readings = partial(_reading, files=files, key=key)
            rows = rows.unionByName(_file_log(work, table, schema, readings), allowMissingColumns=True)
        yield table, rows.withColumn("decoder_version", F.lit(decoder))

    return Job(
        table,
        outputs=(table,),
        build=build,
        version=decoder,
        protocol=protocol,
        reads=("bronze.segments",) if files is None else ("bronze.segments", "bronze.files"),
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


def _log(work: Work, table: str, schema: pa.Schema, start: Callable[[Source], Start | Gather]) -> DataFrame:
    """The rows of log `table` without `decoder_version`; `start` makes the dialogues of a source."""
    seal = hash_key.StateSeal(hash_key.of(work.lake))
    sources = {
        span.source: SourceLog(
            start(work.source(span.source)), work.source(span.source).tcp, _windows(work, span), seal
        )
        for span in work.spans
    }
    read = partial(source_log.read, sources=sources, schema=schema)
    segments = work.read("bronze.segments")
    gathered = [name for name, source in sources.items() if isinstance(source.start, Gather)]
    key = F.when(F.col("source").isin(gathered), F.expr(_ADDRESSES)).otherwise(F.col("flow")) if gathered else "flow"
    rows = _with_state(work, table, segments.where("skip IS NULL"), SEGMENT_COLUMNS, key).mapInArrow(
        read, _ddl(table, schema)
    )
    clock = work.clock(lambda source: source.tcp.idle_ns).withColumn("row_kind", F.lit(STATE))
    for other in (clock, _skipped(segments)):
        rows = rows.unionByName(other, allowMissingColumns=True)
    return rows


def _reading(
    source: Source, windows: tuple[stream_log.Window, ...], files: Callable[[Source, bytes], file_log.Start], key: bytes
) -> SourceFiles:
    return SourceFiles(files(source, key), source.tcp.idle_ns, windows, hash_key.StateSeal(key))


def _file_log(
    work: Work,
    table: str,
    schema: pa.Schema,
    reading: Callable[[Source, tuple[stream_log.Window, ...]], SourceFiles],
) -> DataFrame:
    """The rows of log `table` of the sources of files, without `decoder_version`."""
    sources = {
        span.source: reading(work.source(span.source), _windows(work, span))
        for span in work.spans
        if _has_files(work, span.source)
    }
    files = work.read("bronze.files")
    # As file_log.file_id makes it.
    text = F.concat_ws("\n", "source", F.lower(F.hex("capture_id")), "name")
    key = F.unhex(F.substring(F.sha2(text, 256), 1, 2 * file_log.ID_BYTES))
    read = partial(file_log.read, sources=sources, schema=schema)
    ordered = _with_state(work, table, files.withColumn("flow", key), FILE_COLUMNS, files=True)
    return ordered.mapInArrow(read, _ddl(table, schema))


def _has_files(work: Work, source: str) -> bool:
    return work.source(source).kind in FILE_KINDS


def _windows(work: Work, span: Span) -> tuple[stream_log.Window, ...]:
    windows = work.lake.windows
    return tuple(stream_log.Window(name, windows.end_ns(name)) for name in span.windows)


def _ddl(table: str, schema: pa.Schema) -> str:
    columns = {column.name: column.ddl for column in all_tables()[table].columns}
    return ", ".join(columns[name] for name in schema.names)


def _with_state(
    work: Work, table: str, new: DataFrame, columns: Sequence[str], key: Column | str = "flow", *, files: bool = False
) -> DataFrame:
    """`columns` of all rows and carried states, one `key` after another; of sources of files, or of packets."""
    newest = Window.partitionBy("source", "flow").orderBy(F.desc("window_start"))
    rows = new.withColumn("state", F.lit(None).cast("string")).select(*columns)
    whose = [source for source in work.before if _has_files(work, source) is files]
    if whose:
        carried = (
            work.read_state(table)
            .where(f"{CARRIED} AND flow IS NOT NULL")
            .where(F.col("source").isin(whose))
            .withColumn("rank", F.row_number().over(newest))
            .where("rank = 1 AND state IS NOT NULL")
            .select("source", "flow", "window_start", "state")
        )
        rows = rows.unionByName(carried, allowMissingColumns=True)
    # The state comes first: it has no arrival.
    return rows.repartition("source", key).sortWithinPartitions("source", key, *_ARRIVAL)


def _skipped(segments: DataFrame) -> DataFrame:
    """What bronze could not read: fragments are said, and damaged records are quarantined; landing has told of them.

    Their bytes stay in bronze: they may be those of any packet, also of one with a secret.
    """
    fragments = segments.where("skip = 'ip_fragment'").select(
        *_PLACE, F.lit(stream_log.VIOLATION).alias("row_kind"), _finding(RULE["ip_fragment"], F.lit("not put together"))
    )
    damaged = segments.where("damaged IS NOT NULL")
    found = _finding(RULE["file_damaged"], F.col("damage"))
    quarantined = damaged.select(*_PLACE, F.lit(stream_log.QUARANTINE).alias("row_kind"), found)
    return fragments.unionByName(quarantined, allowMissingColumns=True)


def _finding(rule: Rule, message: Column) -> Column:
    return F.struct(
        F.lit(rule.id).alias("rule"), F.lit(rule.severity.value).alias("severity"), message.alias("message")
    ).alias("finding")
