"""Suites of Great Expectations, generated from the rule lists, the table definitions and each protocol's statements.

Two kinds of check, and what they mean when they fail:

- *findings*: rules that the captured traffic broke. There is a suite per table and severity, with an expectation per
  rule: "count of RULE in the range is 0". A failure is shown and counted and never blocks (WARN).
- *invariants*: what Wirehouse's own tables must satisfy whatever the traffic was: unique keys without nulls, closed
  balances, existing references. A failure is a defect of Wirehouse: it blocks downstream tables and fails the run
  (ERROR). Keys are checked within windows. That suffices, because the newest row of a key is its last by window.

Great Expectations runs one or more engine jobs per expectation, most of them full scans. Instead, one aggregate per
table returns a row per source and window and a column per expectation: the number of rows that break it. The suites run
on that small pandas frame. Nothing is lost: each expectation is an exact count that must be 0. Sample rows, which GX's
own uniqueness or row-condition expectations would add, are read only for expectations that failed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd
from pyspark.sql import SparkSession

from wirehouse_codecs.core.rules import Rule, Severity
from wirehouse_expectations.reading import Reader, reader
from wirehouse_expectations.shapes import Findings, Invariant, Statements
from wirehouse_pipelines.jobs import runner
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.protocols import PROTOCOLS
from wirehouse_pipelines.landing.manifests import Manifest
from wirehouse_pipelines.tables import Table, all_tables, shared_columns

if TYPE_CHECKING:
    import great_expectations as gx

#: How many sample rows are shown of a failed expectation.
SAMPLES = 20
#: Groups of shared columns that locate a finding; a table has some of them.
PLACE = ("stream_place", "broker", "record")
#: Groups of shared columns that don't locate a finding, or are in a sample anyway.
NO_PLACE = ("window", "finding", "arrival", "decoder")
#: Great Expectations' names of the severities.
FAILURE_SEVERITY: Mapping[Severity, str] = {
    Severity.VIOLATION: "warning",
    Severity.WARNING: "warning",
    Severity.NOTE: "info",
}
_one_at_a_time = threading.Lock()
# The library reads this when it is imported. That takes seconds, so it happens only when a suite is needed.
os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check of a range of windows."""

    passed: bool
    severity: Literal["WARN", "ERROR"]
    #: Rule id or name of an invariant -> how often it is broken.
    counts: Mapping[str, int]
    #: Up to SAMPLES rows of what broke it.
    samples: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    description: str = ""


@cache
def statements() -> dict[str, Statements]:
    """All statements by protocol; those about tables of no protocol are under `bronze`."""
    names = ("bronze", *PROTOCOLS)
    return {name: import_module(f"wirehouse_expectations.{name}").STATEMENTS for name in names}


@cache
def findings_of(table: str) -> Findings | None:
    """The declaration of findings in `table`; None if it has none."""
    listed = (findings for stated in statements().values() for findings in stated.findings)
    return {findings.table: findings for findings in listed}.get(table)


@cache
def invariants_of(table: str) -> tuple[Invariant, ...]:
    """All invariants of a physical table: those of its key, of its rule ids, and those stated for it."""
    definition = all_tables()[table]
    stated = (invariant for stated in statements().values() for invariant in stated.invariants)
    return (
        *(_key(definition) if definition.key else ()),
        *(_known_rules(findings) for findings in [findings_of(table)] if findings),
        *(invariant for invariant in stated if invariant.table == table),
    )


def _key(table: Table) -> tuple[Invariant, Invariant]:
    columns = list(dict.fromkeys(("source", "window_start", *table.key)))
    key = ", ".join(table.key)
    listed = ", ".join(columns)
    missing = " OR ".join(f"{column} IS NULL" for column in columns if column not in table.key_may_lack)
    return (
        Invariant(
            "key_is_unique",
            table.name,
            f"No two rows of a window have the same {key}.",
            f"SELECT {listed}, COUNT(*) AS times FROM {table.name} "
            f"WHERE {{windows}} GROUP BY {listed} HAVING COUNT(*) > 1",
        ),
        Invariant(
            "key_is_not_null",
            table.name,
            f"No row lacks one of {', '.join(name for name in table.key if name not in table.key_may_lack)}.",
            f"SELECT {listed} FROM {table.name} WHERE {{windows}} AND ({missing})",
        ),
    )


def _known_rules(findings: Findings) -> Invariant:
    known = ", ".join(f"'{rule.id}'" for rule in findings.rules)
    return Invariant(
        "rule_is_listed",
        findings.table,
        "Every finding names a rule of the list.",
        f"SELECT source, window_start, {findings.rule} AS rule FROM {findings.table} "
        f"WHERE {{windows}} AND {findings.condition} AND {findings.rule} NOT IN ({known})",
    )


def findings_suite(table: str, severity: Severity) -> gx.ExpectationSuite:
    """The suite for rules of `severity` in the findings of `table`: an expectation per rule."""
    stated = findings_of(table)
    rules = stated.of(severity) if stated else ()
    return _suite(f"{table} {severity}", {rule.id: _sentence(rule) for rule in rules}, FAILURE_SEVERITY[severity])


def _sentence(rule: Rule) -> str:
    return f"Never: {rule.sentence} ({rule.place})"


def invariants_suite(table: str) -> gx.ExpectationSuite:
    """The suite for the invariants of `table`: an expectation for each."""
    return _suite(f"{table} invariants", {item.name: item.sentence for item in invariants_of(table)}, "critical")


def _suite(name: str, columns: Mapping[str, str], severity: str) -> gx.ExpectationSuite:
    """A suite: each of `columns`, named with its sentence, is a count that must be 0."""
    import great_expectations as gx
    from great_expectations.expectations.core.expect_column_sum_to_be_between import ExpectColumnSumToBeBetween
    from great_expectations.expectations.metadata_types import FailureSeverity

    level = FailureSeverity(severity)
    return gx.ExpectationSuite(
        name=name,
        expectations=[
            ExpectColumnSumToBeBetween(column=column, min_value=0, max_value=0, severity=level, description=sentence)
            for column, sentence in columns.items()
        ],
    )


def place_columns(table: Table) -> list[str]:
    """Columns that locate a finding in `table`: those of PLACE and of its key, or all of a table of findings."""
    names = [column.name for column in table.declared]
    place = {*names} if _grouped(("finding",)) <= {*names} else _grouped(PLACE) | {*table.key}
    return [name for name in names if name in place - _grouped(NO_PLACE)]


def _grouped(groups: Iterable[str]) -> set[str]:
    return {column.name for group in groups for column in shared_columns()[group]}


def findings_check(
    lake: Lake, spark: SparkSession | None, table: str, severity: Severity, first: str, last: str
) -> CheckResult:
    """Check findings: which rules of `severity` are broken in windows `first` to `last`, according to `table`."""
    stated = findings_of(table)
    assert stated is not None, table
    rules = stated.of(severity)
    read = reader(lake, spark, table, first, last)
    found = f"{_within(first, last)} AND {stated.condition}"
    frame = read.frame(
        f"SELECT source, window_start, {stated.rule} AS name, COUNT(*) AS broken FROM {table} "
        f"WHERE {found} GROUP BY source, window_start, {stated.rule}"
    )
    failed = _failed(findings_suite(table, severity), counts := _counts(frame, [rule.id for rule in rules]))
    broken = {name: int(counts[name].sum()) for name in failed}
    place = ", ".join(f"`{name}`" for name in place_columns(all_tables()[table]))
    listed = ", ".join(f"'{name}'" for name in failed)
    samples = (
        read.rows(
            f"SELECT {stated.rule} AS rule, {stated.message} AS message, source, window_start, {place} FROM {table} "
            f"WHERE {found} AND {stated.rule} IN ({listed})",
            SAMPLES,
        )
        if failed
        else []
    )
    return CheckResult(not failed, "WARN", broken, samples, _describe(len(rules), "rule", broken, first, last))


def invariants_check(
    lake: Lake,
    spark: SparkSession | None,
    table: str,
    first: str,
    last: str,
    stale: Mapping[str, Collection[str]] | None = None,
    landed: Sequence[Manifest] | None = None,
) -> CheckResult:
    """Check whether `table` satisfies its invariants in windows `first` to `last`.

    Windows that wait for their job (new captures, other options) are left out: their rows are only late. They are
    `stale`, and `landed` are the captures, as the run's planner knows them (None: they are looked up here).
    """
    read = reader(lake, spark, table, first, last)
    known = runner.planner(lake)
    stale = known.stale() if stale is None else stale
    waiting = sorted(name for name in _waiting(stale, table) if first <= name <= last)
    landed = known.landed() if landed is None else landed
    broken_rows = {item.name: _filled(item, read, first, last, waiting, landed) for item in invariants_of(table)}
    parts = [
        f"SELECT source, window_start, '{name}' AS name, COUNT(*) AS broken FROM ({select}) AS rows_of_{name} "
        "GROUP BY source, window_start"
        for name, select in broken_rows.items()
    ]
    counts = _counts(read.frame(" UNION ALL ".join(parts)) if parts else pd.DataFrame(), list(broken_rows))
    failed = _failed(invariants_suite(table), counts)
    broken = {name: int(counts[name].sum()) for name in failed}
    samples = [{"invariant": name} | row for name in failed for row in read.rows(broken_rows[name], SAMPLES)]
    described = _describe(len(broken_rows), "invariant", broken, first, last)
    return CheckResult(not failed, "ERROR", broken, samples[:SAMPLES], described)


def _filled(
    invariant: Invariant, read: Reader, first: str, last: str, waiting: Sequence[str], landed: Sequence[Manifest]
) -> str:
    protocol = all_tables()[invariant.table].protocol
    sources = [source.name for source in read.lake.sources if source.protocol == protocol]
    listed = ", ".join(f"'{name}'" for name in waiting)
    return invariant.broken.format(
        windows=_within(first, last) + (f" AND window_start NOT IN ({listed})" if waiting else ""),
        since=f"window_start >= '{first}'",
        sources=", ".join(f"'{name}'" for name in sources) or "''",
        explode=read.explode,
        landed=_landed(landed, invariant.kinds, first, last, waiting) if invariant.kinds else "",
    )


def _waiting(stale: Mapping[str, Collection[str]], table: str) -> set[str]:
    """Stale windows of the job that writes `table`."""
    writers = {name for name, job in runner.all_jobs().items() if table in job.outputs}
    return set().union(*(windows for name, windows in stale.items() if name in writers))


def _within(first: str, last: str) -> str:
    return f"window_start >= '{first}' AND window_start <= '{last}'"


def _landed(landed: Sequence[Manifest], kinds: Sequence[str], first: str, last: str, without: Sequence[str]) -> str:
    """The numbers of landed records in the range, from the manifests, as a SQL relation."""
    records: dict[tuple[str, str], int] = {}
    for manifest in landed:
        for window, objects in manifest.windows.items() if manifest.kind in kinds else ():
            if first <= window <= last and window not in without:
                records[manifest.source, window] = records.get((manifest.source, window), 0) + objects.records
    rows = ", ".join(f"('{source}', '{window}', {count})" for (source, window), count in records.items())
    # An empty VALUES isn't valid SQL. Without captures, it gets one row that matches no window.
    return f"(VALUES {rows or _NOTHING_LANDED}) AS manifest(source, window_start, records)"


_NOTHING_LANDED = "('', '', 0)"


def _counts(found: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """A row per source and window and a column per name, from rows (source, window_start, name, broken)."""
    if found.empty:
        return pd.DataFrame({name: [0] for name in names})
    wide = found.pivot_table(index=["source", "window_start"], columns="name", values="broken", aggfunc="sum")
    return wide.reindex(columns=list(names)).fillna(0).astype("int64").reset_index()


def _failed(suite: gx.ExpectationSuite, counts: pd.DataFrame) -> list[str]:
    """The columns whose expectation failed. An expectation that could not be evaluated counts as failed."""
    with _one_at_a_time:
        result = _whole_frame().get_batch({"dataframe": counts}).validate(suite, result_format="BOOLEAN_ONLY")
    return [str(item.expectation_config.kwargs["column"]) for item in result.results if not item.success]


def load_library() -> None:
    """Import Great Expectations, which takes seconds. Call it while a JVM starts."""
    with _one_at_a_time:
        _whole_frame()


@cache
def _whole_frame() -> Any:
    """The batch definition that every validation of this process uses."""
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False, metric_calculations=False)
    frames = context.data_sources.add_pandas("frames").add_dataframe_asset("counts")
    return frames.add_batch_definition_whole_dataframe("all")


def _describe(count: int, noun: str, broken: Mapping[str, int], first: str, last: str) -> str:
    what = f"{count} {noun}{'' if count == 1 else 's'}"
    when = first if first == last else f"{first} to {last}"
    if not broken:
        return f"{what}, none broken in {when}"
    listed = ", ".join(f"{name} {times:,}" for name, times in sorted(broken.items(), key=lambda item: -item[1]))
    return f"{what}, {len(broken)} broken in {when}: {listed}"
