"""Gold of Bamboo: entries with their verdicts, logs and forks, proposals and sessions, and what these break."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from wirehouse_codecs.bamboo.correlation.log_state import PLACE
from wirehouse_codecs.bamboo.log.rows import ENTRY, PROPOSAL, SESSION
from wirehouse_codecs.bamboo.rules import ENTRY_RULE, RULE
from wirehouse_codecs.core.rules import Rule
from wirehouse_codecs.logs.rows import CONNECTION, MESSAGE
from wirehouse_pipelines.bamboo import payloads, verification
from wirehouse_pipelines.bamboo.verification import few
from wirehouse_pipelines.delta import spark_tables
from wirehouse_pipelines.jobs.connections import heard_once
from wirehouse_pipelines.jobs.job import Work
from wirehouse_pipelines.lake.lake import Source
from wirehouse_pipelines.tables import all_tables

VERSION = "8"
OUTPUTS: Final = (
    verification.ENTRIES_TABLE,
    verification.LOGS_TABLE,
    verification.FORKS_TABLE,
    "gold.bamboo_proposals_history",
    "gold.bamboo_sessions_history",
    "gold.bamboo_found",
    verification.STATE_TABLE,
)

_WINDOW: Final = ("source", "window_start")
_PLACE: Final = tuple(name for name, _ in PLACE)
#: A side of a proposal, and a packet.
_SIDE: Final = ("source", "connection_id", "direction", "proposal_number")
_PACKET: Final = ("source", "connection_id", "direction", "byte_start")
_UNSURE: Final = "unknown"


def _horizon(source: Source) -> int:
    """Logs are added to for years, and an entry links far back: what is known of them always counts."""
    return 2**62


class _Run:
    """What the tables of one run are made from."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def of_kind(self, kind: str) -> DataFrame:
        return heard_once(self.work, verification.SILVER, kind)

    @cached_property
    def verified(self) -> verification.Verified:
        """What verification tells of each window."""
        return verification.verified(self.work, VERSION)

    @cached_property
    def _any_bad(self) -> bool:
        """Whether a signature is wrong, or can't be checked."""
        return not self.verified.kinds.isdisjoint((verification.BAD, verification.UNSURE))

    @cached_property
    def _sent(self) -> DataFrame:
        """Metadata packets; of those that are `unsure` the entry isn't known to its last link."""
        sent = self.of_kind(ENTRY).where("entry.origin = 'metadata'")
        # These have a rule: link_unknown.
        unsure = F.col("entry.rule").isNotNull() | F.coalesce("entry.assumed_links", F.lit(False))
        about = ("proposal_id", "proposal_number", F.lit("data").alias("channel"), "entry.greedy")
        return sent.select(*_WINDOW, *_PLACE, *about, unsure.alias("unsure"))

    @cached_property
    def _bad(self) -> DataFrame:
        """Metadata packets with a wrong signature, and the rule that it breaks; or with one that can't be checked."""
        bad = self.verified.of(verification.BAD, verification.UNSURE)
        unsure = F.col("told") == verification.UNSURE
        bad = bad.select(*_PACKET, F.when(unsure, _UNSURE).otherwise(F.col("signature_rule")).alias("piece_rule"))
        return few(bad) if self._any_bad else bad

    @cached_property
    def _sent_bad(self) -> DataFrame:
        return self._sent.join(self._bad, [*_PACKET])

    @cached_property
    def last_pieces(self) -> DataFrame:
        """Of each side of a proposal and window the last metadata packet."""
        # Spark brings numbers together by hashes, and would sort structs.
        last = F.max(F.expr("byte_start * 4 + IF(unsure, 2, 0) + IF(greedy, 1, 0)")).alias("last")
        of_side = self._sent.groupBy("window_start", *_SIDE).agg(last).withColumn("byte_start", F.expr("last DIV 4"))
        told = of_side.join(self._bad, [*_PACKET], "left")
        right, greedy = F.expr("piece_rule IS NULL AND last & 2 = 0"), F.expr("last & 1 = 1")
        unsure = F.when(~right, F.lit(_UNSURE))
        rule = F.coalesce(F.when(greedy, F.col("piece_rule")), unsure)
        return told.select("window_start", *_SIDE, "byte_start", rule.alias("piece_rule"))

    @cached_property
    def invalid_data(self) -> DataFrame:
        """Metadata whose signature is not right, sent by who must send valid data only."""
        found = self._sent_bad.where(f"NOT greedy AND piece_rule <> '{_UNSURE}'").drop("unsure")
        return found.withColumns(_finding(RULE["invalid_data_in_safe_mode"], F.col("piece_rule")))

    @cached_property
    def followed(self) -> DataFrame:
        """What came right after a piece, and should have been an apology, or should not."""
        piece = [*_SIDE, "byte_start"]
        right = self._sent.where("NOT unsure").join(self._bad, [*_PACKET], "left_anti").select(*piece)
        bad = self._sent_bad.where(f"greedy AND piece_rule <> '{_UNSURE}'").select(*piece, "piece_rule")
        if self.work.before:
            newest = Window.partitionBy(*_SIDE).orderBy(F.desc("window_start"))
            carried = self.work.read_state(verification.STATE_TABLE).where("connection_id IS NOT NULL")
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
    files = run.verified.of(verification.FILE).select("file").collect()
    return spark_tables.Files([json.loads(told.file) for told in files], None)


def _logs(run: _Run) -> DataFrame:
    rows = run.verified.of(verification.LOG).drop("end_of_log")
    return rows.withColumnRenamed("ends_at", "end_of_log")


def _forks(run: _Run) -> DataFrame:
    return run.verified.of(verification.FORK)


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


def _found(run: _Run) -> DataFrame:
    """Rules of entries that files and cancels show, forks, and what was said with an invalid signature."""
    severities = F.create_map(
        *(F.lit(text) for rule in ENTRY_RULE.values() for text in (rule.name, rule.severity.value))
    )
    told = run.verified.of(verification.FOUND)
    channel = F.when(F.col("origin") == "cancel", "control").when(F.col("connection_id").isNotNull(), "data")
    shown = told.select(
        *_WINDOW,
        *_PLACE,
        channel.alias("channel"),
        F.concat(F.lit("bamboo."), "reason").alias("rule"),
        severities[F.col("reason")].alias("severity"),
        "message",
    )
    found = shown.unionByName(run.invalid_data, allowMissingColumns=True)
    found = found.unionByName(run.followed, allowMissingColumns=True)
    replayed = payloads.found(run.work, run.verified, run.of_kind)
    if replayed is not None:
        found = found.unionByName(replayed, allowMissingColumns=True)
    return found.withColumn("protocol", F.lit("bamboo"))


def _state(run: _Run) -> DataFrame:
    """A digest of what changed in each log, loose links, last pieces, and of each window since when states count."""
    logs = run.verified.of(verification.STATE).select(*_WINDOW, "key", "state")
    loose = run.verified.of(verification.LOOSE, verification.ELSEWHERE)
    links = loose.select(*_WINDOW, "key", F.col("entry_hash").alias("link"), "author", "log_id")
    rows = logs.unionByName(links, allowMissingColumns=True).unionByName(run.last_pieces, allowMissingColumns=True)
    return rows.unionByName(run.work.clock(_horizon), allowMissingColumns=True)


_TABLES: Final = dict(zip(OUTPUTS[1:], (_logs, _forks, _proposals, _sessions, _found, _state), strict=True))


def tables(work: Work) -> Iterator[tuple[str, DataFrame | spark_tables.Files]]:
    """The job of gold.bamboo: its tables, each as it is written."""
    run = _Run(work)
    yield verification.ENTRIES_TABLE, _entries(run)
    for name, build in _TABLES.items():
        columns = [column.name for column in all_tables()[name].columns]
        rows = build(run).withColumn("decoder_version", F.lit(VERSION))
        lacking = {column: F.lit(None) for column in columns if column not in rows.columns}
        yield name, rows.withColumns(lacking)
