"""Cardinal Streams: where its rules are found, and how its tables refer to one another."""

from __future__ import annotations

from wirehouse_codecs.captures.rules import RULE as CAPTURE_RULE
from wirehouse_codecs.cardinal.rules import RULES
from wirehouse_expectations.shapes import Findings, Invariant, Statements

MESSAGES_BALANCE = Invariant(
    name="every_message_accounted_for",
    table="silver.cardinal",
    sentence="Every landed message is one row: a message, quarantined, or a named skip.",
    broken="""
        SELECT COALESCE(bronze.source, silver.source) AS source,
          COALESCE(bronze.window_start, silver.window_start) AS window_start,
          COALESCE(landed, 0) AS landed, COALESCE(logged, 0) AS logged
        FROM (
          SELECT source, window_start, COUNT(*) AS landed FROM bronze.messages
          WHERE {windows} AND source IN ({sources}) GROUP BY source, window_start
        ) AS bronze
        FULL JOIN (
          SELECT source, window_start, COUNT(*) AS logged FROM silver.cardinal
          WHERE {windows} GROUP BY source, window_start
        ) AS silver ON bronze.source = silver.source AND bronze.window_start = silver.window_start
        WHERE COALESCE(landed, 0) <> COALESCE(logged, 0)
    """,
)

ROW_KINDS = Invariant(
    name="row_kind_matches_content",
    table="silver.cardinal",
    sentence="A message row has its message, a quarantine row its rule and bytes, a skip its name.",
    broken="""
        SELECT source, window_start, capture_id, record_number, row_kind FROM silver.cardinal
        WHERE {windows} AND NOT (
          (row_kind = 'message' AND message IS NOT NULL AND raw IS NULL AND skip IS NULL)
          OR (row_kind = 'quarantine' AND message IS NULL AND raw IS NOT NULL AND finding IS NOT NULL AND skip IS NULL)
          OR (row_kind = 'skip' AND message IS NULL AND raw IS NULL AND skip IS NOT NULL)
        )
    """,
)

UPDATES_OF_COMPLETE_BLOCKS = Invariant(
    name="block_is_complete",
    table="gold.cardinal_batch_updates",
    sentence="A block with updates is complete, by a row of its window or of a later one in which it changed again.",
    broken="""
        SELECT updates.source AS source, updates.window_start AS window_start, updates.block_hash AS block_hash
        FROM (
          SELECT DISTINCT source, window_start, block_hash FROM gold.cardinal_batch_updates WHERE {windows}
        ) AS updates
        LEFT JOIN (
          SELECT source, block_hash FROM gold.cardinal_batches_history
          WHERE {since} AND completed_at_ns IS NOT NULL
        ) AS blocks
        ON updates.source = blocks.source AND updates.block_hash = blocks.block_hash
        WHERE blocks.block_hash IS NULL
    """,
)

STATUS_MATCHES_COMPLETION = Invariant(
    name="status_matches_completion",
    table="gold.cardinal_batches_history",
    sentence="A complete block has the time of its completion, an incomplete one has none.",
    broken="""
        SELECT source, window_start, block_hash, status, completed_at_ns FROM gold.cardinal_batches_history
        WHERE {windows} AND (
          (status = 'complete' AND completed_at_ns IS NULL) OR (status = 'incomplete' AND completed_at_ns IS NOT NULL)
          OR status NOT IN ('complete', 'incomplete', 'refused')
        )
    """,
)

ADDED_BLOCKS_EXIST = Invariant(
    name="added_is_a_complete_block",
    table="gold.cardinal_chain_updates",
    sentence="Each added hash is a block that is complete.",
    broken="""
        SELECT updates.source AS source, updates.window_start AS window_start, updates.sequence AS sequence,
          updates.block_hash AS block_hash
        FROM (
          SELECT source, window_start, sequence, {explode}(added) AS block_hash
          FROM gold.cardinal_chain_updates WHERE {windows}
        ) AS updates
        LEFT JOIN (
          SELECT source, block_hash FROM gold.cardinal_batches_history WHERE completed_at_ns IS NOT NULL
        ) AS blocks
        ON updates.source = blocks.source AND updates.block_hash = blocks.block_hash
        WHERE blocks.block_hash IS NULL
    """,
)


#: The first update that adds a block.
_FIRST_ADDED = """
    JOIN (
      SELECT source, block_hash, MIN(sequence) AS first FROM (
        SELECT source, sequence, {explode}(added) AS block_hash FROM gold.cardinal_chain_updates
      ) AS added GROUP BY source, block_hash
    ) AS first_added
    ON updates.source = first_added.source AND updates.block_hash = first_added.block_hash
      AND first_added.first < updates.sequence
"""


def _chain_reference(side: str, edges: str, sentence: str, of: str = "") -> Invariant:
    """Each hash of the updates' array `side` has a span in the chain with an edge at the update's time."""
    return Invariant(
        name=f"{side}_is_in_chain",
        table="gold.cardinal_chain_updates",
        sentence=sentence,
        broken=f"""
            SELECT updates.source AS source, updates.window_start AS window_start, updates.sequence AS sequence,
              updates.block_hash AS block_hash
            FROM (
              SELECT source, window_start, sequence, arrived_at_ns, {{explode}}({side}) AS block_hash
              FROM gold.cardinal_chain_updates WHERE {{windows}}
            ) AS updates
            {of}
            LEFT JOIN (
              SELECT source, window_start, block_hash, {edges} AS edge FROM gold.cardinal_chain_history
              WHERE {{windows}}
            ) AS spans
            ON updates.source = spans.source AND updates.window_start = spans.window_start
              AND updates.block_hash = spans.block_hash AND updates.arrived_at_ns = spans.edge
            WHERE spans.block_hash IS NULL
        """,
    )


ADDED_IS_IN_CHAIN = _chain_reference(
    "added", "valid_from_ns", "Each added hash has a span in the chain that began at the update's time."
)
# What is removed and added again at one time has one span, which goes on. A start and its ancestors have none.
REMOVED_IS_IN_CHAIN = _chain_reference(
    "removed",
    "COALESCE(valid_to_ns, valid_from_ns)",
    "Each removed hash that an update had added has a span in the chain that ended at the update's time.",
    _FIRST_ADDED,
)

# With the two before: to replay the updates gives exactly the canonical chain.
CHAIN_IS_TOLD = Invariant(
    name="chain_is_told",
    table="gold.cardinal_chain_history",
    sentence="An update added the block of each span when the span began, and one removed it when the span ended.",
    broken="""
        SELECT spans.source AS source, spans.window_start AS window_start, spans.block_hash AS block_hash,
          spans.valid_from_ns AS valid_from_ns, spans.valid_to_ns AS valid_to_ns
        FROM (
          SELECT source, window_start, block_hash, valid_from_ns, valid_to_ns FROM gold.cardinal_chain_history
          WHERE {windows}
        ) AS spans
        LEFT JOIN (
          SELECT source, arrived_at_ns, {explode}(added) AS block_hash FROM gold.cardinal_chain_updates
        ) AS added
        ON spans.source = added.source AND spans.block_hash = added.block_hash
          AND spans.valid_from_ns = added.arrived_at_ns
        LEFT JOIN (
          SELECT source, arrived_at_ns, {explode}(removed) AS block_hash FROM gold.cardinal_chain_updates
          WHERE {windows}
        ) AS removed
        ON spans.source = removed.source AND spans.block_hash = removed.block_hash
          AND spans.valid_to_ns = removed.arrived_at_ns
        WHERE added.block_hash IS NULL OR (spans.valid_to_ns IS NOT NULL AND removed.block_hash IS NULL)
    """,
)

SEQUENCE_HAS_NO_GAP = Invariant(
    name="sequence_has_no_gap",
    table="gold.cardinal_chain_updates",
    sentence="The updates of a window are numbered one after the other.",
    broken="""
        SELECT source, window_start, MIN(sequence) AS first, MAX(sequence) AS last, COUNT(*) AS present
        FROM gold.cardinal_chain_updates WHERE {windows}
        GROUP BY source, window_start HAVING MAX(sequence) - MIN(sequence) + 1 <> COUNT(*)
    """,
)

SPANS_END_AFTER_THEY_BEGIN = Invariant(
    name="span_ends_after_it_begins",
    table="gold.cardinal_chain_history",
    sentence="A span is canonical exactly while it has no end, and never ends before it begins.",
    broken="""
        SELECT source, window_start, block_hash, canonical, valid_from_ns, valid_to_ns FROM gold.cardinal_chain_history
        WHERE {windows} AND (canonical <> (valid_to_ns IS NULL) OR valid_to_ns < valid_from_ns)
    """,
)

STATEMENTS = Statements(
    findings=(
        Findings(
            "silver.cardinal",
            # A record that could not be read as a message is found at landing, and quarantined here.
            (*RULES, CAPTURE_RULE["file_damaged"]),
            condition="finding IS NOT NULL",
            rule="finding.rule",
            message="finding.message",
        ),
        Findings("gold.cardinal_found", RULES),
    ),
    invariants=(
        MESSAGES_BALANCE,
        ROW_KINDS,
        STATUS_MATCHES_COMPLETION,
        UPDATES_OF_COMPLETE_BLOCKS,
        ADDED_BLOCKS_EXIST,
        ADDED_IS_IN_CHAIN,
        REMOVED_IS_IN_CHAIN,
        CHAIN_IS_TOLD,
        SEQUENCE_HAS_NO_GAP,
        SPANS_END_AFTER_THEY_BEGIN,
    ),
)
