"""The Wallaroo connector protocol: where its rules are found, and how its tables refer to one another."""

from __future__ import annotations

from wirehouse_codecs.captures.rules import REASSEMBLY_RULES
from wirehouse_codecs.wallaroo.log.schema import CREDIT, SESSION, STREAM
from wirehouse_codecs.wallaroo.rules import ALSO_OF_A_SESSION, RULES, SET_RULES
from wirehouse_expectations.shapes import Findings, Statements
from wirehouse_expectations.tcp import connection_is_told, packets_balance, row_has_its_content

STATEMENTS = Statements(
    findings=(
        Findings(
            "silver.wallaroo",
            (
                *(rule for rule in RULES if rule.name not in SET_RULES or rule.name in ALSO_OF_A_SESSION),
                *REASSEMBLY_RULES,
            ),
            condition="row_kind = 'violation'",
            rule="finding.rule",
            message="finding.message",
        ),
        Findings("gold.wallaroo_found", tuple(rule for rule in RULES if rule.name in SET_RULES)),
    ),
    invariants=(
        packets_balance("silver.wallaroo"),
        row_has_its_content("silver.wallaroo", SESSION, STREAM, CREDIT),
        connection_is_told("gold.wallaroo_sessions_history", "silver.wallaroo"),
        connection_is_told("gold.wallaroo_streams_history", "silver.wallaroo"),
        connection_is_told("gold.wallaroo_credits", "silver.wallaroo"),
    ),
)
