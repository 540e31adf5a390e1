"""Running a lake in tests: land, run every job, read rows back."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from wirehouse_pipelines.jobs import runner
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.landing import landing
from wirehouse_pipelines.query import sql
from wirehouse_pipelines.tables import Table, all_tables


def land(lake: Lake) -> None:
    """Land what lies at every source's place."""
    for source in lake.sources:
        landing.land(lake, source)


def run(spark: Any, lake: Lake, first: str | None = None, last: str | None = None, **how: Any) -> None:
    """Bring the windows from `first` to `last` (all that have data by default) up to date."""
    windows = runner.data_windows(lake)
    for name in runner.all_jobs():
        runner.run_job(spark, lake, name, first or windows[0], last or windows[-1], **how)


def select(lake: Lake, statement: str) -> list[dict[str, Any]]:
    """Rows of a statement."""
    rows: list[dict[str, Any]] = sql.rows(lake, statement).to_pylist()
    return rows


#: Where a row comes from: rows of tables without a key are compared in this order, then by all that they hold.
_PLACE = ("source", "rule", "capture_id", "record_number", "connection_id", "direction", "byte_start", "byte_end")


def promised(of: Collection[str] = ()) -> list[Table]:
    """The tables whose rows are promised to be the same however windows are cut and run (`of` these protocols).

    They are event tables, and views: of a table beneath a view, a log or a history, what the view shows.
    """
    known = [table for table in all_tables().values() if table.layer != "bronze" and not table.internal]
    shown = {name for table in known for name in table.reads}
    return [table for table in known if (table.view or table.name not in shown) and (not of or table.protocol in of)]


def promised_rows(
    lake: Lake, *, without: Sequence[str] = (), of: Collection[str] = ()
) -> dict[str, list[dict[str, Any]]]:
    """All promised rows (`of` these protocols), without these columns (say window_start, where windows differ)."""
    rows = {}
    for table in promised(of):
        names = [column.name for column in table.columns if column.name not in without]
        first = [name for name in (*table.key, *_PLACE) if name in names]
        found = select(lake, f"SELECT {', '.join(f'`{name}`' for name in names)} FROM {table.name}")
        rows[table.name] = sorted(found, key=lambda row: ([_sortable(row[name]) for name in first], repr(row)))
    return rows


def _sortable(value: Any) -> tuple[bool, Any]:
    return value is not None, value


def assert_same_rows(left: Lake, right: Lake, *, without: Sequence[str] = (), of: Collection[str] = ()) -> None:
    """Both lakes hold the same promised rows (of the protocols `of`); else say which table differs where."""
    ours, theirs = promised_rows(left, without=without, of=of), promised_rows(right, without=without, of=of)
    for table, rows in ours.items():
        others = theirs[table]
        for index, (row, other) in enumerate(zip(rows, others, strict=False)):
            differing = {name: (row[name], other[name]) for name in row if row[name] != other[name]}
            assert not differing, f"{table} row {index}: {differing} in {row}"
        assert len(rows) == len(others), f"{table}: {len(rows)} rows, not {len(others)}"
