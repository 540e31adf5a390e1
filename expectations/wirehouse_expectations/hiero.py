"""The Hiero block node: where its rules are found, and how its tables refer to one another."""

from __future__ import annotations

from wirehouse_codecs.captures.rules import REASSEMBLY_RULES
from wirehouse_codecs.hiero.log.rows import BLOCK, BLOCK_FILE, CALL, SKIP
from wirehouse_codecs.hiero.rules import ALSO_TOGETHER, CALL_RULES, MESSAGE_RULES, NODE_RULES
from wirehouse_expectations.shapes import Findings, Invariant, Statements, changed_with
from wirehouse_expectations.tcp import packets_balance, row_has_its_content

_SAME_RECORD = """
          ON files.source = logged.source AND files.window_start = logged.window_start
            AND files.capture_id = logged.capture_id AND files.record_number = logged.record_number
"""
FILE_IS_TOLD = Invariant(
    name="file_is_told",
    table="silver.hiero",
    sentence="Each landed block file is a row of its block, or quarantined, and each such row is of a landed file.",
    broken=f"""
        SELECT files.source AS source, files.window_start AS window_start, files.record_number AS record_number
        FROM (
          SELECT source, window_start, capture_id, record_number FROM bronze.files
          WHERE {{windows}} AND source IN ({{sources}}) AND last AND name LIKE '%.blk%'
        ) AS files
        LEFT JOIN (
          SELECT DISTINCT source, window_start, capture_id, record_number FROM silver.hiero
          WHERE {{windows}} AND row_kind IN ('message', 'quarantine')
        ) AS logged {_SAME_RECORD}
        WHERE logged.record_number IS NULL
        UNION ALL
        SELECT logged.source AS source, logged.window_start AS window_start, logged.record_number AS record_number
        FROM (
          SELECT source, window_start, capture_id, record_number FROM silver.hiero
          WHERE {{windows}} AND row_kind = 'message' AND message.kind = 'block_file'
        ) AS logged
        LEFT JOIN (
          SELECT source, window_start, capture_id, record_number FROM bronze.files WHERE {{windows}}
        ) AS files {_SAME_RECORD}
        WHERE files.record_number IS NULL
    """,
)

DECISION_IS_OF_A_SESSION = changed_with(
    "decision_is_of_a_session",
    "Each decision is about a header of a publisher's call that changed in that window.",
    "gold.hiero_decisions_history",
    of="gold.hiero_publisher_sessions_history",
    key=("call",),
)

OBEYED_WAS_TOLD = Invariant(
    name="obeyed_was_told",
    table="gold.hiero_decisions_history",
    sentence="skip_obeyed is set only after SkipBlock, and resend_obeyed only after SkipBlock or ResendBlock.",
    broken="""
        SELECT source, window_start, call, offered, actual, skip_obeyed, resend_obeyed FROM gold.hiero_decisions_history
        WHERE {windows} AND (
          (skip_obeyed IS NOT NULL AND COALESCE(actual, '') <> 'skip')
          OR (resend_obeyed IS NOT NULL AND COALESCE(actual, '') NOT IN ('skip', 'resend'))
        )
    """,
)

BLOCK_COMES_FIRST = Invariant(
    name="block_comes_first",
    table="gold.hiero_blocks_history",
    sentence="A block is seen before, or with, its proof and its acknowledgement.",
    broken="""
        SELECT source, window_start, block_number, first_at_ns, proof_at_ns, acknowledged_at_ns
        FROM gold.hiero_blocks_history
        WHERE {windows} AND (proof_at_ns < first_at_ns OR acknowledged_at_ns < first_at_ns)
    """,
)

SUBSCRIPTION_HAS_ITS_BLOCKS = Invariant(
    name="subscription_has_its_blocks",
    table="gold.hiero_subscriptions_history",
    sentence="A subscription that was delivered blocks has a first and a last one, any other none.",
    broken="""
        SELECT source, window_start, call, blocks, first_block, last_block FROM gold.hiero_subscriptions_history
        WHERE {windows} AND ((blocks > 0) <> (first_block IS NOT NULL) OR (blocks > 0) <> (last_block IS NOT NULL))
    """,
)

STATEMENTS = Statements(
    findings=(
        Findings(
            "silver.hiero",
            (
                *MESSAGE_RULES,
                *CALL_RULES,
                *REASSEMBLY_RULES,
            ),
            condition="row_kind = 'violation'",
            rule="finding.rule",
            message="finding.message",
        ),
        Findings("gold.hiero_found", (*(rule for rule in CALL_RULES if rule.name in ALSO_TOGETHER), *NODE_RULES)),
    ),
    invariants=(
        packets_balance("silver.hiero", damaged_files="damaged IS NOT NULL"),
        row_has_its_content("silver.hiero", BLOCK, SKIP, structs={CALL: "call_event"}, also={BLOCK_FILE: BLOCK}),
        FILE_IS_TOLD,
        DECISION_IS_OF_A_SESSION,
        OBEYED_WAS_TOLD,
        BLOCK_COMES_FIRST,
        SUBSCRIPTION_HAS_ITS_BLOCKS,
    ),
)
