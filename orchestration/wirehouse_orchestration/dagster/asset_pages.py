"""Metadata for the page of an asset in Dagster: columns and their lineage, and commands to query and trace rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any, Final

import dagster as dg

from wirehouse_codecs.core.rules import Severity
from wirehouse_expectations.suites import findings_of
from wirehouse_orchestration import config
from wirehouse_orchestration.evidence.trace import key_of, row_key
from wirehouse_orchestration.terminal.render import shell_word
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.query import lineage, sql
from wirehouse_pipelines.tables import Table

#: By severity, the name of the check of such findings and of their plot over the windows.
FINDINGS: Final = {Severity.VIOLATION: "violations", Severity.WARNING: "warnings", Severity.NOTE: "notes"}
#: The column that refers to a row's landed record.
_RECORD: Final = "capture_id"
#: While the daemon runs, a window is computed at most this long after it ended.
_RUN: Final = timedelta(hours=1)


def asset_key(table: str) -> dg.AssetKey:
    """`layer.name` as a key."""
    return dg.AssetKey(table.split("."))


def metadata(lake: Lake, table: Table) -> dict[str, Any]:
    """The metadata of a table or view: columns, key, docs, the SQL of a view, and commands to explore it."""
    columns = [dg.TableColumn(column.name, column.type, column.comment) for column in table.columns]
    page = f"data-dictionary.{'html' if lake.docs else 'md'}#{table.name.replace('.', '')}"
    fields: dict[str, Any] = {
        "dagster/column_schema": dg.TableSchema(columns),
        "dagster/table_name": table.name,
        "docs": dg.MetadataValue.url(f"{lake.docs}/{page}") if lake.docs else dg.MetadataValue.path(f"docs/{page}"),
        "rows": f'{config.command()} sql "SELECT * FROM {table.name} LIMIT 20"',
    }
    if table.key:
        fields["key"] = ", ".join(table.key)
    if _leads_to_bytes(table):
        key = ",".join(f"{name}=…" for name in row_key(table))
        fields["bytes"] = f"{config.command()} trace {table.name} {key}"
    if table.view is None:
        return fields | {"dagster/uri": lake.table_path(table.name)}
    return fields | {
        "sql": dg.MetadataValue.md(f"```sql\n{table.view}\n```"),
        "dagster/column_lineage": _lineage(table),
    }


def _lineage(view: Table) -> dg.TableColumnLineage:
    return dg.TableColumnLineage(
        {
            name: [dg.TableColumnDep(asset_key(table), column) for table, column in sorted(made_of)]
            for name, made_of in lineage.origins(view).items()
        }
    )


def freshness(lake: Lake) -> dg.FreshnessPolicy:
    """Warns if nothing was written for one window, fails after two: no data arrived, or nothing was computed."""
    window = timedelta(days=1) if lake.windows.size == "day" else timedelta(hours=1)
    return dg.FreshnessPolicy.time_window(warn_window=window + _RUN, fail_window=2 * window + _RUN)


def findings_in_windows(lake: Lake, table: Table, windows: Collection[str]) -> Mapping[str, Mapping[str, int]]:
    """The number of findings of each severity in the table, by window; empty for tables without findings."""
    stated = findings_of(table.name)
    if stated is None or not windows:
        return {}
    plots = {rule.id: f"{FINDINGS[rule.severity]}_in_window" for rule in stated.rules}
    found = {window: dict.fromkeys(plots.values(), 0) for window in windows}
    listed = ", ".join(f"'{window}'" for window in windows)
    counts = sql.rows(
        lake,
        f"SELECT window_start, {stated.rule} AS rule, COUNT(*) AS findings FROM {table.name} "
        f"WHERE window_start IN ({listed}) AND {stated.condition} GROUP BY window_start, {stated.rule}",
    )
    for row in counts.to_pylist():
        # An invariant reports rules that aren't listed.
        if plot := plots.get(row["rule"]):
            found[row["window_start"]][plot] += row["findings"]
    return found


def traced(table: Table, samples: Collection[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Sample rows, each with the command that shows its bytes, if it has the columns for that."""
    if not _leads_to_bytes(table):
        return list(samples)
    return [_beside(row, command) if (command := _trace(table, row)) else row for row in map(dict, samples)]


def _beside(row: Mapping[str, Any], command: str) -> Mapping[str, Any]:
    """`row` with the command right after its message: later columns may be off the screen."""
    columns = list(row.items())
    columns.insert(list(row).index("message") + 1 if "message" in row else len(row), ("bytes", command))
    return dict(columns)


def _trace(table: Table, row: Mapping[str, Any]) -> str | None:
    known = {name: row[name] for name in row_key(table) if row.get(name) is not None}
    if known.keys() <= {"source", "window_start"}:
        return None
    return f"{config.command()} trace {table.name} {shell_word(key_of(known))}"


def _leads_to_bytes(table: Table) -> bool:
    return _RECORD in {column.name for column in table.columns}
