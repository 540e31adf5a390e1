"""The gold tables of Bamboo: entries with their verdicts, logs, forks, proposals, sessions, and findings.

Input: rows of silver.bamboo and the verified entries (`verification.py`). Each function below computes one table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from wirehouse_codecs.bamboo.correlation.entry_rows import PLACE
from wirehouse_codecs.bamboo.log.rows import ENTRY, PROPOSAL, SESSION
from wirehouse_codecs.bamboo.rules import ENTRY_RULE, RULE
from wirehouse_codecs.core.rules import Rule
from wirehouse_codecs.logs.rows import CONNECTION, MESSAGE
from wirehouse_pipelines.bamboo import payloads, verification, verification_rows
from wirehouse_pipelines.bamboo.verification_rows import few
from wirehouse_pipelines.delta import spark_tables
from wirehouse_pipelines.jobs import services
from wirehouse_pipelines.jobs.job import Work
from wirehouse_pipelines.lake.lake import Source
from wirehouse_pipelines.tables import all_tables

VERSION = "8"
OUTPUTS: Final = (
    verification_rows.ENTRIES_TABLE,
    verification_rows.LOGS_TABLE,
    verification_rows.FORKS_TABLE,
    "gold.bamboo_proposals_history",
    "gold.bamboo_sessions_history",
    "gold.bamboo_found",
    verification_rows.STATE_TABLE,
)

_WINDOW: Final = ("source", "window_start")
_PLACE: Final = tuple(name for name, _ in PLACE)
#: A side of a proposal, and a packet.
_SIDE: Final = ("source", "connection_id", "direction", "proposal_number")
_PACKET: Final = ("source", "connection_id", "direction", "byte_start")
_UNSURE: Final = "unknown"


def _horizon(source: Source) -> int:
    """Logs grow for years and entries link far back, so the state of a log never expires."""
    return 2**62


class _Run:
    """The rows that the tables of one run are computed from."""

    def __init__(self, work: Work, verified: verification_rows.Verified) -> None:
        self.work = work
        self.verified = verified

    def of_kind(self, kind: str) -> DataFrame:
        return services.heard_once(self.work, verification_rows.SILVER, self._duplicates, kind)

    @cached_property
    def _duplicates(self) -> services.Duplicates:
        return services.duplicates(self.work, verification_rows.SILVER)

    @cached_property
    def _any_bad(self) -> bool:
        """Whether a signature is wrong, or can't be checked."""
        return not self.verified.kinds.isdisjoint((verification_rows.BAD, verification_rows.UNSURE))

    @cached_property
    def _sent(self) -> DataFrame:
        """Metadata packets. `unsure`: not all links of the entry are known."""
        sent = self.of_kind(ENTRY).where("entry.origin = 'metadata'")
        # An entry with an unknown link has the rule link_unknown.
        unsure = F.col("entry.rule").isNotNull() | F.coalesce("entry.assumed_links", F.lit(False))
        about = ("proposal_id", "proposal_number", F.lit("data").alias("channel"), "entry.greedy")
        return sent.select(*_WINDOW, *_PLACE, *about, unsure.alias("unsure"))

    @cached_property
    def _bad(self) -> DataFrame:
        """Metadata packets with a wrong signature (and the rule that it breaks), or with one that can't be checked."""
        bad = self.verified.of(verification_rows.BAD, verification_rows.UNSURE)
        unsure = F.col("row_kind") == verification_rows.UNSURE
        bad = bad.select(*_PACKET, F.when(unsure, _UNSURE).otherwise(F.col("signature_rule")).alias("piece_rule"))
        return few(bad) if self._any_bad else bad

    @cached_property
    def _sent_bad(self) -> DataFrame:
        return self._sent.join(self._bad, [*_PACKET])

    @cached_property
    def last_pieces(self) -> DataFrame:
        """The last metadata packet of each side of a proposal, in each window."""
        # As one number: Spark aggregates numbers by hash, but would sort structs.
        last = F.max(F.expr("byte_start * 4 + IF(unsure, 2, 0) + IF(greedy, 1, 0)")).alias("last")
        of_side = self._sent.groupBy("window_start", *_SIDE).agg(last).withColumn("byte_start", F.expr("last DIV 4"))
        judged = of_side.join(self._bad, [*_PACKET], "left")
        right, greedy = F.expr("piece_rule IS NULL AND last & 2 = 0"), F.expr("last & 1 = 1")
        unsure = F.when(~right, F.lit(_UNSURE))
        rule = F.coalesce(F.when(greedy, F.col("piece_rule")), unsure)
        return judged.select("window_start", *_SIDE, "byte_start", rule.alias("piece_rule"))

    @cached_property
    def invalid_data(self) -> DataFrame:
        """Metadata with a wrong signature from a side that may send only valid data."""
        findings = self._sent_bad.where(f"NOT greedy AND piece_rule <> '{_UNSURE}'").drop("unsure")
        return findings.withColumns(_finding(RULE["invalid_data_in_safe_mode"], F.col("piece_rule")))

    @cached_property
    def followed(self) -> DataFrame:
        """Packets right after a piece: missing apologies, and apologies without a reason."""
        piece = [*_SIDE, "byte_start"]
        right = self._sent.where("NOT unsure").join(self._bad, [*_PACKET], "left_anti").select(*piece)
        bad = self._sent_bad.where(f"greedy AND piece_rule <> '{_UNSURE}'").select(*piece, "piece_rule")
        if self.work.before:
            newest = Window.partitionBy(*_SIDE).orderBy(F.desc("window_start"))
            carried = self.work.read_state(verification_rows.STATE_TABLE).where("connection_id IS NOT NULL")
            carried = carried.withColumn("rank", F.row_number().over(newest)).where("rank = 1")
            right = right.unionByName(carried.where("piece_rule IS NULL").select(*piece))
            bad = bad.unionByName(carried.where(f"piece_rule <> '{_UNSURE}'").select(*piece, "piece_rule"))
        right, bad = (pieces.withColumnRenamed("byte_start", "follows") for pieces in (right, bad))
        on = [*_SIDE, "follows"]
        after = self.of_kind(MESSAGE).withColumn("follows", F.col("message.follows_byte_start"))
        after = after.where("follows IS NOT NULL").select(
            *_WINDOW, *_PLACE, "channel", "proposal_id", "proposal_number", "follows", "message.kind"
        )
        apologies = few(self.work.settle(after.where("kind = 'apology'"))).join(right, on)
        apologies = apologies.withColumns(
            _finding(RULE["apology_for_valid_data"], F.lit("the entry's signature is right"))
        )
        if not self._any_bad and not self.work.before:
            return apologies
        first = Window.partitionBy(*on).orderBy("byte_start")
        others = after.join(few(self.work.settle(bad)), on).withColumn("rank", F.row_number().over(first))
        others = others.where("rank = 1 AND kind <> 'apology'").drop("rank")
        of_bad = _finding(RULE["invalid_data_not_apologised"], F.col("piece_rule"))
        return apologies.unionByName(others.withColumns(of_bad).drop("piece_rule"))


def _finding(rule: Rule, message: Column) -> dict[str, Column]:
    return {"rule": F.lit(rule.id), "severity": F.lit(rule.severity.value), "message": message}


def _entries(run: _Run) -> spark_tables.Files:
    files = run.verified.of(verification_rows.FILE).select("file").collect()
    return spark_tables.Files([json.loads(row.file) for row in files], None)


def _logs(run: _Run) -> DataFrame:
    rows = run.verified.of(verification_rows.LOG).drop("end_of_log")
    return rows.withColumnRenamed("ends_at", "end_of_log")


def _forks(run: _Run) -> DataFrame:
    return run.verified.of(verification_rows.FORK)


def _proposals(run: _Run) -> DataFrame:
    counted = {name: F.expr(f"try_add(proposal.client.sent.{name}, proposal.server.sent.{name})") for name in _COUNTED}
    return run.of_kind(PROPOSAL).select(
        *_WINDOW,
        "connection_id",
        "proposal_number",
        "proposal_id",
        "proposal.*",
        F.when(F.col("proposal.outcome") == "dropped", 0).otherwise(1).alias("credit_spent"),
        *(total.cast("decimal(20,0)").alias(name) for name, total in counted.items()),
        "capture_id",
        "record_number",
        "arrived_at_ns",
    )


_COUNTED: Final = ("metadata", "payloads", "raw_bytes", "compressed_bytes", "inflated_bytes")


def _sessions(run: _Run) -> DataFrame:
    ends = run.of_kind(CONNECTION).select(*_WINDOW, "connection_id", *(f"connection.{name}" for name in _ENDS))
    sessions = run.of_kind(SESSION).select(
        *_WINDOW, "connection_id", "session.*", "capture_id", "record_number", "arrived_at_ns"
    )
    return sessions.join(ends, [*_WINDOW, "connection_id"], "left")


_ENDS: Final = ("community_id", "client_address", "client_port", "server_address", "server_port")


def _findings(run: _Run) -> DataFrame:
    """Findings: rules that entries of files and cancels break, forks, and what the signatures of metadata imply."""
    severities = F.create_map(
        *(F.lit(text) for rule in ENTRY_RULE.values() for text in (rule.name, rule.severity.value))
    )
    reported = run.verified.of(verification_rows.FINDING)
    channel = F.when(F.col("origin") == "cancel", "control").when(F.col("connection_id").isNotNull(), "data")
    shown = reported.select(
        *_WINDOW,
        *_PLACE,
        channel.alias("channel"),
        F.concat(F.lit("bamboo."), "reason").alias("rule"),
        severities[F.col("reason")].alias("severity"),
        "message",
    )
    findings = shown.unionByName(run.invalid_data, allowMissingColumns=True)
    findings = findings.unionByName(run.followed, allowMissingColumns=True)
    replayed = payloads.findings(run.work, run.verified, run.of_kind)
    if replayed is not None:
        findings = findings.unionByName(replayed, allowMissingColumns=True)
    return findings.withColumn("protocol", F.lit("bamboo"))


def _state(run: _Run) -> DataFrame:
    """The state for later windows: a digest of the changes of each log, loose links, last pieces, and the clock."""
    logs = run.verified.of(verification_rows.STATE).select(*_WINDOW, "key", "state")
    loose = run.verified.of(verification_rows.LOOSE, verification_rows.ELSEWHERE)
    links = loose.select(*_WINDOW, "key", F.col("entry_hash").alias("link"), "author", "log_id")
    rows = logs.unionByName(links, allowMissingColumns=True).unionByName(run.last_pieces, allowMissingColumns=True)
    return rows.unionByName(run.work.clock(_horizon), allowMissingColumns=True)


_TABLES: Final = dict(zip(OUTPUTS[1:], (_logs, _forks, _proposals, _sessions, _findings, _state), strict=True))


def tables(work: Work) -> Iterator[tuple[str, DataFrame | spark_tables.Files]]:
    """The job of gold.bamboo: its tables, one after the other. The files of verified entries are written first."""
    run = _Run(work, verification.write_verified_entries(work, VERSION))
    yield verification_rows.ENTRIES_TABLE, _entries(run)
    for name, build in _TABLES.items():
        columns = [column.name for column in all_tables()[name].columns]
        rows = build(run).withColumn("decoder_version", F.lit(VERSION))
        lacking = {column: F.lit(None) for column in columns if column not in rows.columns}
        yield name, rows.withColumns(lacking)
