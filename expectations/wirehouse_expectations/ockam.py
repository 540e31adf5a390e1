"""The Ockam stream service: where its rules are found, and how its tables refer to one another."""

from __future__ import annotations

from wirehouse_codecs.captures.rules import REASSEMBLY_RULES
from wirehouse_codecs.ockam.log.log import SESSION, SKIP
from wirehouse_codecs.ockam.rules import ALSO_OF_A_MESSAGE, RULES, SET_RULES
from wirehouse_expectations.shapes import Findings, Invariant, Statements, changed_with
from wirehouse_expectations.tcp import packets_balance, row_has_its_content

LAG_WITHIN_STREAM = Invariant(
    name="lag_within_stream",
    table="gold.ockam_stream_indexes_history",
    sentence="No client lags by more messages than its stream has, and no position is below the saved index.",
    broken="""
        SELECT clients.source AS source, clients.window_start AS window_start, clients.client_id AS client_id,
          clients.stream_address AS stream_address, clients.lag AS lag, streams.indexes AS indexes
        FROM (SELECT * FROM gold.ockam_stream_indexes_history WHERE {windows}) AS clients
        LEFT JOIN (
          SELECT source, window_start, stream_address, indexes FROM gold.ockam_streams_history WHERE {windows}
        ) AS streams
        ON clients.source = streams.source AND clients.window_start = streams.window_start
          AND clients.stream_address = streams.stream_address
        WHERE clients.lag > streams.indexes OR clients.position < clients.saved
    """,
)

MESSAGE_OF_A_STREAM = changed_with(
    "message_of_a_stream",
    "Each message that was confirmed or delivered is one of a stream that changed in that window.",
    "gold.ockam_stream_messages_history",
    of="gold.ockam_streams_history",
    key=("stream_address",),
)

HOLE_IS_OF_A_CLIENT = Invariant(
    name="hole_is_of_a_client",
    table="gold.ockam_delivery_holes",
    sentence="A hole has at least one message, at most one for each of its indexes, and none above the saved index.",
    broken="""
        SELECT source, window_start, client_id, stream_address, first_index, last_index, messages, saved
        FROM gold.ockam_delivery_holes
        WHERE {windows} AND (messages < 1 OR messages > last_index - first_index + 1 OR last_index > saved)
    """,
)

LAG_WITHIN_INDEXES = Invariant(
    name="lag_within_indexes",
    table="gold.ockam_lag",
    sentence="A client lags by at most as many messages as there are indexes from its position on, which is no lower "
    "than what it saved.",
    broken="""
        SELECT source, window_start, client_id, stream_address, cause, saved, position, latest, lag
        FROM gold.ockam_lag
        WHERE {windows} AND (position < saved OR lag < 0 OR lost < 0 OR (lag > 0 AND lag > latest - position + 1))
    """,
)

STATEMENTS = Statements(
    findings=(
        Findings(
            "silver.ockam",
            (
                *(rule for rule in RULES if rule.name not in SET_RULES or rule.name in ALSO_OF_A_MESSAGE),
                *REASSEMBLY_RULES,
            ),
            condition="row_kind = 'violation'",
            rule="finding.rule",
            message="finding.message",
        ),
        Findings("gold.ockam_found", tuple(rule for rule in RULES if rule.name in SET_RULES)),
    ),
    invariants=(
        packets_balance("silver.ockam"),
        row_has_its_content("silver.ockam", SESSION, SKIP),
        MESSAGE_OF_A_STREAM,
        LAG_WITHIN_STREAM,
        HOLE_IS_OF_A_CLIENT,
        LAG_WITHIN_INDEXES,
    ),
)
