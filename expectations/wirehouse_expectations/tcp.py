"""Invariants for the log of every protocol over TCP."""

from __future__ import annotations

from collections.abc import Mapping

from wirehouse_expectations.shapes import Invariant, changed_with


def packets_balance(log: str, *, damaged_files: str | None = None) -> Invariant:
    """Per source and window, the number of segments in bronze equals the number of packets of connections in `log`.

    If the protocol has files too, `damaged_files` is a SQL condition: the rows of bronze.files that it quarantines.
    """
    files = f"""
              UNION ALL
              SELECT source, window_start, COUNT(*) AS landed, 0 AS logged FROM bronze.files
              WHERE {{windows}} AND source IN ({{sources}}) AND {damaged_files}
              GROUP BY source, window_start"""
    return Invariant(
        name="every_packet_accounted_for",
        table=log,
        sentence="Every landed packet is a segment of a connection, damaged and quarantined, or skipped by name.",
        broken=f"""
            SELECT source, window_start, SUM(landed) AS landed, SUM(logged) AS logged
            FROM (
              SELECT source, window_start, COUNT(*) AS landed, 0 AS logged FROM bronze.segments
              WHERE {{windows}} AND source IN ({{sources}}) AND (skip IS NULL OR damaged IS NOT NULL)
              GROUP BY source, window_start{"" if damaged_files is None else files}
              UNION ALL
              SELECT source, window_start, 0 AS landed, SUM(connection.window_packets) AS logged FROM {log}
              WHERE {{windows}} AND row_kind = 'connection' GROUP BY source, window_start
              UNION ALL
              SELECT source, window_start, 0 AS landed, COUNT(*) AS logged FROM {log}
              WHERE {{windows}} AND row_kind = 'quarantine' AND finding.rule = 'capture.file_damaged'
              GROUP BY source, window_start
            ) AS both_sides
            GROUP BY source, window_start HAVING SUM(landed) <> SUM(logged)
        """,
    )


def connection_is_told(table: str, log: str) -> Invariant:
    """Each connection in `table` is also in `log`, in the same window."""
    return changed_with(
        "connection_is_told",
        "Each row belongs to a connection with a row in the log in the same window.",
        table,
        of=log,
        key=("connection_id",),
        where="row_kind = 'connection'",
    )


def row_has_its_content(
    log: str, *kinds: str, structs: Mapping[str, str] | None = None, also: Mapping[str, str] | None = None
) -> Invariant:
    """A row of `log` of one of these kinds has the struct named like the kind, and no other struct.

    `structs` has the names of structs that differ from the kind; `also` the second struct that some messages have.
    """
    struct_of = {kind: kind for kind in ("connection", "message", *kinds)} | dict(structs or {})
    extra = [
        f"message.kind = '{kind}' AND message IS NOT NULL AND {struct} IS NOT NULL AND "
        + " AND ".join(f"{other} IS NULL" for other in struct_of.values() if other not in ("message", struct))
        for kind, struct in (also or {}).items()
    ]
    whole = " OR ".join(
        f"(row_kind = '{kind}' AND {condition})"
        for kind, condition in (
            *(
                (kind, " AND ".join(f"{name} IS {'NOT ' if name == own else ''}NULL" for name in struct_of.values()))
                for kind, own in struct_of.items()
            ),
            *(("message", condition) for condition in extra),
        )
    )
    others = ", ".join(f"'{kind}'" for kind in ("quarantine", "violation", "state"))
    return Invariant(
        name="row_has_its_content",
        table=log,
        sentence="A row has the content of its kind, and nothing else.",
        broken=f"""
            SELECT source, window_start, connection_id, row_kind FROM {log}
            WHERE {{windows}} AND NOT ({whole} OR row_kind IN ({others}))
        """,
    )
