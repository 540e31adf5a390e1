"""The types by which a protocol declares its checks as data: where its findings are, and invariants of its tables."""

from __future__ import annotations

from dataclasses import dataclass

from wirehouse_codecs.core.rules import Rule, Severity


@dataclass(frozen=True, slots=True)
class Findings:
    """The findings in a table: its rows about rules that captured traffic broke."""

    table: str
    #: Every rule that can be found there.
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
    """A statement about one of Wirehouse's own tables that must hold whatever the captured traffic was.

    `broken` is a SELECT of the violations, one per row, with `source` and `window_start` among its columns. Its SQL
    must work in Spark and DataFusion. `str.format` fills in `windows` (a condition: in the checked range), `since` (a
    condition: in the range or after it), `sources` (names of the lake's sources of the table's protocol), `explode`
    (the engine's name of that function) and `landed` (a relation with source, window_start and records: the manifests
    of sources of `kinds` in the range).
    """

    name: str
    table: str
    sentence: str
    broken: str
    kinds: tuple[str, ...] = ()


def changed_with(name: str, sentence: str, table: str, of: str, key: tuple[str, ...], where: str = "true") -> Invariant:
    """Each row of `table` with a non-null `key` has a row of `of` in the same window with the same key and `where`."""
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
    """All checks of the tables of a protocol, or of bronze."""

    findings: tuple[Findings, ...]
    invariants: tuple[Invariant, ...]
