"""Judges the payloads of proposals that carry no metadata, by entries that the service knows from elsewhere (gold).

Silver decodes each connection on its own, so it can't judge these payloads. Here the messages of such proposals are
joined with the signed entries of their log, from earlier windows and this one (`correlation/payload_replay.py`). Most
runs have no such proposal. Then nothing else is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from wirehouse_codecs.bamboo.correlation.payload_replay import (
    FIELDS,
    KINDS,
    PLACED,
    SIDES,
    Found,
    Payloads,
    is_signed,
    replay,
    sides_of,
)
from wirehouse_codecs.bamboo.log.rows import PROPOSAL, SESSION
from wirehouse_codecs.bamboo.log.schema import SCHEMA, UINT
from wirehouse_codecs.bamboo.rules import FOLLOWED_RULES, RULE
from wirehouse_codecs.logs.rows import MESSAGE
from wirehouse_pipelines.bamboo import verification_rows
from wirehouse_pipelines.bamboo.verification_rows import few
from wirehouse_pipelines.delta import spark_tables, table_reader
from wirehouse_pipelines.jobs.job import Work
from wirehouse_pipelines.stages import buckets

_KEY: Final = ("source", "author", "log_id")
_PROPOSAL: Final = ("source", "window_start", "connection_id", "proposal_number")
_WANTS: Final = ("min_payload", "max_payload")
#: A known entry of the log of a proposal.
_ENTRY: Final = pa.schema(
    [
        *(("source", pa.string()), ("window_start", pa.string()), ("author", pa.binary()), ("log_id", UINT)),
        *(("seq", UINT), ("entry_hash", pa.binary()), ("payload_size", UINT), ("payload_hash", pa.binary())),
    ]
)
#: More columns that are read from written entries.
_READ: Final = ("data", "own_rule", "signature_rule")
_FINDING: Final = pa.schema(
    [
        *(("source", pa.string()), ("window_start", pa.string())),
        *(SCHEMA.field(name) for name in PLACED),
        *((name, pa.string()) for name in ("rule", "severity", "message")),
    ]
)


def findings(work: Work, verified: verification_rows.Verified, of_kind: Callable[[str], DataFrame]) -> DataFrame | None:
    """Findings about payloads. None: the run has no such proposal."""
    asked = work.settle(_asked(work, of_kind))
    if asked.isEmpty():
        return None
    logs = asked.select(*_KEY).distinct()
    messages = of_kind(MESSAGE).where(F.col("message.kind").isin(*KINDS)).join(few(asked), [*_PROPOSAL])
    placed = messages.select(
        *_KEY,
        "window_start",
        *PLACED,
        *(f"message.{name}" for name in FIELDS),
        "wants",
        "modes",
        F.lit(1).alias("what"),
    )
    entries = _entries(work, verified).join(few(work.settle(logs)), [*_KEY], "left_semi").withColumn("what", F.lit(0))
    rows = entries.unionByName(placed, allowMissingColumns=True).repartition(*_KEY)
    order = ("window_start", "what", "connection_id", "proposal_number")
    ordered = rows.sortWithinPartitions(*_KEY, *order)
    return ordered.mapInArrow(_replayed, from_arrow_schema(_FINDING))


def _asked(work: Work, of_kind: Callable[[str], DataFrame]) -> DataFrame:
    """Proposals without metadata that began in the window, with the settings and the send modes of both sides."""
    is_without = "(proposal.payload_only OR proposal.offset IS NOT NULL) AND NOT proposal.partial"
    began = work.window_of("proposal.proposed_at_ns") == F.col("window_start")
    wants = [F.struct(*(f"proposal.{side}.{name}" for name in _WANTS)).alias(side) for side in SIDES]
    modes = [F.struct(f"session.{side}.send_mode").alias(side) for side in SIDES]
    proposals = of_kind(PROPOSAL).where(is_without).where(began)
    proposals = proposals.select(*_PROPOSAL, "proposal.author", "proposal.log_id", F.struct(*wants).alias("wants"))
    judged = F.coalesce(F.col("session.ended_by").isin(*FOLLOWED_RULES), F.lit(False))
    sessions = of_kind(SESSION).where(~judged).select(*_PROPOSAL[:3], F.struct(*modes).alias("modes"))
    return proposals.join(sessions, [*_PROPOSAL[:3]])


def _entries(work: Work, verified: verification_rows.Verified) -> DataFrame:
    """Rows of _ENTRY: the correctly signed entries of this run and of earlier windows."""
    written = [json.loads(row.file) for row in verified.of(verification_rows.FILE).select("file").collect()]
    folder = work.lake.table_folder(verification_rows.ENTRIES_TABLE)
    files = [spark_tables.File(f"{folder}/{file['path']}", file["size"], 0) for file in written]
    columns: table_reader.Columns = dict.fromkeys((*_ENTRY.names, *_READ), ())
    made = from_arrow_schema(_ENTRY)
    new = table_reader.mapped(work.spark, work.lake, verification_rows.ENTRIES_TABLE, files, columns, _signed, made)
    if not work.before:
        return new
    signed = "data IS NOT NULL AND own_rule IS NULL AND signature_rule IS NULL"
    return new.unionByName(work.read_state(verification_rows.ENTRIES_TABLE).where(signed).select(*_ENTRY.names))


def _signed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        kept = batch.filter(pa.array([is_signed(row) for row in batch.select(list(_READ)).to_pylist()], pa.bool_()))
        yield buckets.with_all(kept, _ENTRY)


def _replayed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of _FINDING from rows ordered by log and window: entries first, then messages by proposal."""
    listed = (row for batch in batches for row in batch.to_pylist())
    for _, of_log in groupby(listed, itemgetter(*_KEY)):
        payloads = Payloads()
        for (is_message, *_), group in groupby(of_log, itemgetter("what", *_PROPOSAL)):
            if not is_message:
                for entry in group:
                    payloads.add(entry)
                continue
            messages = list(group)
            rows = [
                _row(one) for one in replay(messages, sides_of(messages[0]["modes"], messages[0]["wants"]), payloads)
            ]
            if rows:
                yield pa.RecordBatch.from_pylist(rows, schema=_FINDING)


def _row(one: Found) -> dict[str, Any]:
    rule = RULE[one.rule]
    return {**one.row, "rule": rule.id, "severity": rule.severity.value, "message": one.message}
