"""Bronze: landed records as Delta, typed, nothing judged."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial, reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from wirehouse_codecs.capture_rules import RULES
from wirehouse_codecs.errors import WirehouseError
from wirehouse_codecs.option_values import NAME_CHARACTERS
from wirehouse_codecs.rules import by_name
from wirehouse_pipelines import arrow_types, delta
from wirehouse_pipelines import segments as tcp_segments
from wirehouse_pipelines.lake import FILE_KINDS, MESSAGE_KINDS, PACKET_KINDS, Lake
from wirehouse_pipelines.manifests import FORGOTTEN, Manifest
from wirehouse_pipelines.tables import all_tables
from wirehouse_pipelines.work import Job, Work

#: CAPTURE_ID-NNNN.avro
OBJECT_NAME_CHARACTERS = 64 + 1 + 4 + 5
Build = Callable[[Work], Iterator[tuple[str, DataFrame]]]


class LandingGoneError(WirehouseError):
    """Rows can't be computed: landing let go of the records, and the table doesn't have their rows any more."""

    template = (
        "{table}: window {window} of source {source} can't be computed anew: landing let go of the records of {count} "
        "of its captures, and their rows are gone: land the files again with `wirehouse land FILE --source {source}`"
    )


def capture_window(manifest: Manifest, lake: Lake) -> str:
    """A capture belongs to the window of its first record, or of its landing if it has none."""
    moment = manifest.first_arrived_at_ns if manifest.records else manifest.landed_at_ns
    return lake.windows.of(moment if moment is not None else manifest.landed_at_ns)


def _captures_by_window(landed: Sequence[Manifest], lake: Lake) -> Mapping[str, Any]:
    facts: dict[str, list[str]] = {}
    for manifest in landed:
        if manifest.status == FORGOTTEN:
            continue
        facts.setdefault(capture_window(manifest, lake), []).append(
            json.dumps(asdict(manifest), sort_keys=True, default=str)
        )
        for finding in manifest.findings:
            facts.setdefault(lake.windows.of(finding.arrived_at_ns), []).append(manifest.capture_id)
    return {window: sorted(listed) for window, listed in facts.items()}


def captures(work: Work) -> Iterator[tuple[str, pa.Table]]:
    """`bronze.captures` and `bronze.findings`: the manifests of the windows, and what landing found."""
    severity = {rule.id: rule.severity.value for rule in by_name(RULES).values()}
    wanted = {(span.source, window) for span in work.spans for window in span.windows}
    rows: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for manifest in work.landed:
        window = capture_window(manifest, work.lake)
        if manifest.status != FORGOTTEN and (manifest.source, window) in wanted:
            rows.append(asdict(manifest) | {"capture_id": bytes.fromhex(manifest.capture_id), "window_start": window})
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
    for name, listed in (("bronze.captures", rows), ("bronze.findings", found)):
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
    """Captures, and the ports that say which packets are the source's."""
    ports = {source.name: source.ports for source in lake.sources}
    claimed = sorted({port for manifest in landed for port in ports.get(manifest.source, ())})
    return {window: [claimed, listed] for window, listed in _captures_of(landed, PACKET_KINDS).items()}


def _files_by_window(landed: Sequence[Manifest], lake: Lake) -> Mapping[str, Any]:
    return _captures_of(landed, FILE_KINDS)


def _whose(work: Work) -> tuple[Column, Column]:
    """Source and window from the object's path, .../SOURCE/WINDOW/CAPTURE_ID-NNNN.avro: the tail has a fixed length.

    Cut as bytes: in text the characters of the whole path would be counted for each row.
    """
    path = F.col("_metadata.file_path").cast("binary")
    window = len(work.spans[0].first)
    tail = 1 + OBJECT_NAME_CHARACTERS
    before = F.substring(path, -(NAME_CHARACTERS + 1 + window + tail), NAME_CHARACTERS)
    return (
        F.substring_index(before.cast("string"), "/", -1).alias("source"),
        F.substring(path, -(window + tail), window).cast("string").alias("window_start"),
    )


def released(work: Work, kinds: tuple[str, ...]) -> dict[tuple[str, str], list[str]]:
    """Captures of `kinds` that landing let go of, by source and window of the spans."""
    wanted = {(span.source, window) for span in work.spans for window in span.windows}
    found: dict[tuple[str, str], list[str]] = {}
    for manifest in work.landed:
        if manifest.kind in kinds and manifest.released_at_ns is not None:
            for window in manifest.windows:
                if (manifest.source, window) in wanted:
                    found.setdefault((manifest.source, window), []).append(manifest.capture_id)
    return found


def _landed(work: Work, kinds: tuple[str, ...]) -> DataFrame | None:
    """Landed records of sources of `kinds`; source and window stand in the object's path. None if there are none."""
    wanted = {(span.source, window) for span in work.spans for window in span.windows}
    objects = [
        work.lake.address(name)
        for manifest in work.landed
        if manifest.kind in kinds and manifest.released_at_ns is None
        for window, listed in manifest.windows.items()
        if (manifest.source, window) in wanted
        for name in listed.objects
    ]
    return work.spark.read.format("avro").load(objects).select("*", *_whose(work)) if objects else None


def _read(table: str, kinds: tuple[str, ...], rows: Callable[[Work, DataFrame], DataFrame]) -> Build:
    """The job's rows: those that `rows` makes of landed records, and as they are those of captures let go of."""

    def build(work: Work) -> Iterator[tuple[str, DataFrame]]:
        landed, kept = _landed(work, kinds), _kept(work, table, kinds)
        found = [frame for frame in (None if landed is None else rows(work, landed), kept) if frame is not None]
        # A window has captures of one sort or the other: there is at least one frame.
        yield table, reduce(partial(DataFrame.unionByName, allowMissingColumns=True), found)

    return build


def _kept(work: Work, table: str, kinds: tuple[str, ...]) -> DataFrame | None:
    """Rows of captures that landing let go of. Raises LandingGoneError."""
    gone = released(work, kinds)
    if not gone:
        return None
    held = delta.rows_by_window(work.lake, table)
    for (source, window), captures in gone.items():
        if not held.get((source, window)):
            raise LandingGoneError(table=table, window=window, source=source, count=len(captures))
    named = sorted({(source, bytes.fromhex(capture)) for (source, _), captures in gone.items() for capture in captures})
    those = work.spark.createDataFrame(named, "source STRING, capture_id BINARY")
    return work.read(table).join(F.broadcast(those), ["source", "capture_id"], "left_semi")


def _as_landed(work: Work, landed: DataFrame) -> DataFrame:
    return landed


def _segments(work: Work, landed: DataFrame) -> DataFrame:
    """Landed packets, read up to the payload of TCP."""
    ports = {source.name: source.ports for source in work.lake.sources}
    return tcp_segments.read(landed, ports)


def _of_kinds(
    table: str,
    kinds: tuple[str, ...],
    facts: Callable[[Sequence[Manifest], Lake], Mapping[str, Any]],
    rows: Callable[[Work, DataFrame], DataFrame] = _as_landed,
) -> Job:
    return Job(table, (table,), _read(table, kinds, rows), version="1", landed=facts, kinds=kinds)


JOBS = (
    Job("bronze.captures", ("bronze.captures", "bronze.findings"), captures, version="1", landed=_captures_by_window),
    _of_kinds("bronze.messages", MESSAGE_KINDS, _messages_by_window),
    _of_kinds("bronze.segments", PACKET_KINDS, _packets_by_window, _segments),
    _of_kinds("bronze.files", FILE_KINDS, _files_by_window),
)
