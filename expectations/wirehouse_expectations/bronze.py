"""Statements about bronze: its rows are exactly the records in landing's manifests; and the rules `capture.*`."""

from __future__ import annotations

from wirehouse_codecs.captures.rules import RULES
from wirehouse_expectations.shapes import Findings, Invariant, Statements
from wirehouse_pipelines.lake.lake import MESSAGE_KINDS, PACKET_KINDS
from wirehouse_pipelines.lake.protocols import FILE_KINDS


def landed_is_in(table: str, kinds: tuple[str, ...]) -> Invariant:
    """Per source and window, `table` has as many rows as the manifests of `kinds` have records."""
    return Invariant(
        name="landed_records_are_rows",
        table=table,
        sentence="Every landed record is a row, and every row a landed record.",
        broken=f"""
            SELECT source, window_start, SUM(landed) AS landed, SUM(present) AS present
            FROM (
              SELECT source, window_start, records AS landed, 0 AS present FROM {{landed}}
              UNION ALL
              SELECT source, window_start, 0 AS landed, COUNT(*) AS present FROM {table}
              WHERE {{windows}} GROUP BY source, window_start
            ) AS both_sides
            GROUP BY source, window_start HAVING SUM(landed) <> SUM(present)
        """,
        kinds=kinds,
    )


STATEMENTS = Statements(
    findings=(Findings("bronze.findings", RULES),),
    invariants=(
        landed_is_in("bronze.messages", MESSAGE_KINDS),
        landed_is_in("bronze.segments", PACKET_KINDS),
        landed_is_in("bronze.files", FILE_KINDS),
    ),
)
