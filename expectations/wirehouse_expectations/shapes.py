"""What a protocol's module states about its tables, as data: where findings stand, and what must never be broken."""

from __future__ import annotations

from dataclasses import dataclass

from wirehouse_codecs.core.rules import Rule, Severity


@dataclass(frozen=True, slots=True)
class Findings:
    """Where a table holds the rules that the data broke."""

    table: str
    #: Every rule that may stand there.
    rules: tuple[Rule, ...]
    #: SQL condition of the rows that are findings.
    condition: str = "rule IS NOT NULL"
    #: SQL expressions of the rule's id and of the message.
    rule: str = "rule"
    message: str = "message"

    def of(self, severity: Severity) -> tuple[Rule, ...]:
        """The rules of one severity."""
        return tuple(rule for rule in self.rules if rule.severity is severity)

    @property
    def severities(self) -> tuple[Severity, ...]:
        """The severities that have a rule, strongest first."""
        return tuple(severity for severity in Severity if self.of(severity))


@dataclass(frozen=True, slots=True)
class Invariant:
    """A sentence about our own table that holds whatever the wire said.

    `broken` is a SELECT of what breaks it, a row each, with `source` and `window_start` among its columns, in the SQL
    that Spark and DataFusion share. It is filled by `str.format` with `windows` (condition: in the range checked),
    `since` (condition: in the range or after it), `sources` (the names of the lake's sources of the table's protocol),
    `explode` (the engine's name of that function) and `landed` (a relation source, window_start, records: what the
    manifests of sources of `kinds` say of the range).
    """

    name: str
    table: str
    sentence: str
    broken: str
    kinds: tuple[str, ...] = ()


def changed_with(name: str, sentence: str, table: str, of: str, key: tuple[str, ...], where: str = "true") -> Invariant:
    """Each row of `table` with values in `key` is about a row of `of`, one `where` so, that has them in its window."""
    columns, there = ", ".join(key), " AND ".join(f"{column} IS NOT NULL" for column in key)
    same = " AND ".join(f"own.{column} = other.{column}" for column in ("source", "window_start", *key))
    return Invariant(
        name=name,
        table=table,
        sentence=sentence,
        broken=f"""
            SELECT {", ".join(f"own.{column} AS {column}" for column in ("source", "window_start", *key))}
            FROM (SELECT DISTINCT source, window_start, {columns} FROM {table} WHERE {{windows}} AND {there}) AS own
            LEFT JOIN (SELECT source, window_start, {columns} FROM {of} WHERE {{windows}} AND {where}) AS other
            ON {same}
            WHERE other.{key[0]} IS NULL
        """,
    )


@dataclass(frozen=True, slots=True)
class Statements:
    """Everything stated about the tables of a protocol, or of bronze."""

    findings: tuple[Findings, ...]
    invariants: tuple[Invariant, ...]
