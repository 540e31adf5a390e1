"""Bamboo Point-2-Point: where its rules are found, and how its tables refer to one another."""

from __future__ import annotations

from wirehouse_codecs.bamboo.log.rows import ENTRY, PROPOSAL, SESSION
from wirehouse_codecs.bamboo.rules import (
    BYMUX_RULES,
    CONTROL_RULES,
    DATA_RULES,
    ENTRY_RULES,
    FOLLOWED_RULES,
    RULE,
    SHOWN_RULES,
)
from wirehouse_codecs.captures.rules import REASSEMBLY_RULES
from wirehouse_expectations.shapes import Findings, Invariant, Statements, changed_with
from wirehouse_expectations.tcp import packets_balance, row_has_its_content

RECORDS_OF_FILES = Invariant(
    name="every_record_accounted_for",
    table="silver.bamboo",
    sentence="Every undamaged record of an entry file is an entry in the log.",
    broken="""
        SELECT source, window_start, SUM(landed) AS landed, SUM(logged) AS logged
        FROM (
          SELECT source, window_start, COUNT(*) AS landed, 0 AS logged FROM bronze.files
          WHERE {windows} AND source IN ({sources}) AND last AND damage IS NULL
          GROUP BY source, window_start
          UNION ALL
          SELECT source, window_start, 0 AS landed, COUNT(*) AS logged FROM silver.bamboo
          WHERE {windows} AND entry.origin = 'file'
          GROUP BY source, window_start
        ) AS both_sides
        GROUP BY source, window_start HAVING SUM(landed) <> SUM(logged)
    """,
)

VERDICT_HAS_A_REASON = Invariant(
    name="verdict_has_a_reason",
    table="gold.bamboo_entries_history",
    sentence="A valid entry breaks no rule; any other one names the rule, or that a link isn't known.",
    broken="""
        SELECT source, window_start, entry_id, verdict, reason FROM gold.bamboo_entries_history
        WHERE {windows} AND NOT (
          (verdict = 'valid' AND reason IS NULL) OR (verdict = 'invalid' AND reason IS NOT NULL)
          OR (verdict = 'unknown' AND reason = 'link_unknown')
        )
    """,
)

ENTRY_OF_A_LOG = changed_with(
    "entry_of_a_log",
    "Each entry whose log can be read is one of a log that changed in that window.",
    "gold.bamboo_entries_history",
    of="gold.bamboo_logs_history",
    key=("author", "log_id"),
)

LOG_ADDS_UP = Invariant(
    name="log_adds_up",
    table="gold.bamboo_logs_history",
    sentence="A log's entries are the sum of its verdicts. It is verified up to a signed entry, and not beyond a fork.",
    broken="""
        SELECT source, window_start, author, log_id, entries, valid, invalid, unknown, verified_up_to, length, forked_at
        FROM gold.bamboo_logs_history
        WHERE {windows} AND (
          entries <> valid + invalid + unknown OR verified_up_to > length OR verified_up_to >= forked_at
          OR (valid > 0 AND verified_up_to IS NULL AND forked_at IS NULL) OR missing_entries >= length
        )
    """,
)

FORK_IS_OF_TWO = Invariant(
    name="fork_is_of_two",
    table="gold.bamboo_forks_history",
    sentence="A fork is proven by two different entries.",
    broken="""
        SELECT source, window_start, author, log_id, position, proof FROM gold.bamboo_forks_history
        WHERE {windows} AND (first_hash = second_hash OR first_hash IS NULL OR second_hash IS NULL)
    """,
)

LIFE_IS_TOLD = Invariant(
    name="life_is_told",
    table="gold.bamboo_proposals_history",
    sentence="A proposal that has ended has an outcome and a time, and it ends after it begins.",
    broken="""
        SELECT source, window_start, connection_id, proposal_number, state, outcome FROM gold.bamboo_proposals_history
        WHERE {windows} AND ((outcome IS NULL) <> (ended_at_ns IS NULL) OR ended_at_ns < proposed_at_ns)
    """,
)

SIDE_IS_PROACTIVE = Invariant(
    name="side_is_proactive",
    table="gold.bamboo_sessions_history",
    sentence="Exactly one side is proactive.",
    broken="""
        SELECT source, window_start, connection_id, proactive FROM gold.bamboo_sessions_history
        WHERE {windows} AND (proactive IS NULL OR proactive NOT IN ('client', 'server'))
    """,
)

STATEMENTS = Statements(
    findings=(
        Findings(
            "silver.bamboo",
            (
                *BYMUX_RULES,
                *CONTROL_RULES,
                *DATA_RULES,
                *SHOWN_RULES,
                *REASSEMBLY_RULES,
            ),
            condition="row_kind = 'violation'",
            rule="finding.rule",
            message="finding.message",
        ),
        Findings("gold.bamboo_found", (*ENTRY_RULES, *(RULE[name] for name in FOLLOWED_RULES))),
    ),
    invariants=(
        packets_balance("silver.bamboo", damaged_files="last AND damage IS NOT NULL"),
        RECORDS_OF_FILES,
        row_has_its_content("silver.bamboo", SESSION, PROPOSAL, ENTRY),
        VERDICT_HAS_A_REASON,
        ENTRY_OF_A_LOG,
        LOG_ADDS_UP,
        FORK_IS_OF_TWO,
        LIFE_IS_TOLD,
        SIDE_IS_PROACTIVE,
    ),
)
