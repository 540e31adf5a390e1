"""The ledger: for each computed window of a table, a digest of everything that it was computed from.

The ledger is a Delta table with a row per (table, source, window); it needs no JVM. A row's `digest` covers captures,
options, the version of the code, and the state carried in. A window is **stale** if it has no row, or if its digest
would be different now.

A job follows this protocol for the windows that it computes:

1. `withdraw` the windows' rows from the ledger before the first table changes. If the job is killed from here on, its
   tables may contradict each other, but the windows are stale and will be computed again.
2. Replace the windows' rows in each table, in one commit per table.
3. `commit` the windows' new rows to the ledger. This is the commit of the job.

The ledger also records which windows passed their checks (`runner.checks_of`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Schema, write_deltalake

from wirehouse_pipelines.delta import delta_tables
from wirehouse_pipelines.lake.lake import Lake

SCHEMA = pa.schema(
    [
        ("table_name", pa.string()),
        ("source", pa.string()),
        ("window_start", pa.string()),
        ("digest", pa.string()),
        ("state_digest", pa.string()),
        ("state_rows_digest", pa.string()),
        ("carried_from", pa.string()),
        ("rows", pa.int64()),
        ("decoder_version", pa.string()),
        ("committed_at_ns", pa.int64()),
    ]
)


#: The table's folder in the lake.
NAME = "ledger"

#: Table, source and window.
Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Entry:
    """A committed window of a table."""

    table_name: str
    source: str
    window_start: str
    #: Digest of everything that the window was computed from.
    digest: str
    #: Digest of the state at the window's end, which the next window starts from; None for a table without state.
    state_digest: str | None
    #: Digest of only those state rows that were written in this window.
    state_rows_digest: str | None
    #: The oldest window with state rows that are still part of the state at this window's end.
    carried_from: str | None
    rows: int
    decoder_version: str
    committed_at_ns: int


def path(lake: Lake) -> str:
    """The address of the ledger."""
    return lake.address(NAME)


def read(lake: Lake) -> dict[Key, Entry]:
    """All entries by (table, source, window)."""
    known = delta_tables.opened(path(lake))
    return _entries(known) if known else {}


@dataclass(frozen=True, slots=True)
class _OfTable:
    """The ledger's entries for one table."""

    #: The files that hold them. A file never changes, so equal names mean equal entries.
    files: frozenset[str]
    entries: Mapping[Key, Entry]


#: A cache: address and content of the ledger that was read last.
_last: tuple[str, Mapping[str, _OfTable]] = ("", {})


def _entries(known: DeltaTable) -> dict[Key, Entry]:
    """All entries. Only tables whose files changed since the last call are read."""
    global _last
    address, before = known.table_uri, _last[1] if _last[0] == known.table_uri else {}
    files: dict[str, set[str]] = {}
    for file in pa.table(known.get_add_actions(flatten=True)).select(["path", "partition.table_name"]).to_pylist():
        files.setdefault(file["partition.table_name"], set()).add(file["path"])
    now = {table: before[table] for table in files if table in before and before[table].files == files[table]}
    found: dict[str, dict[Key, Entry]] = {table: {} for table in files if table not in now}
    for row in _rows(known, list(found)) if found else ():
        entry = Entry(**row)
        found[entry.table_name][_key(entry)] = entry
    now |= {table: _OfTable(frozenset(files[table]), entries) for table, entries in found.items()}
    _last = address, now
    return {key: entry for table in now.values() for key, entry in table.entries.items()}


def _rows(known: DeltaTable, tables: Sequence[str]) -> list[dict[str, Any]]:
    names = [field.name for field in fields(Entry)]
    those = known.to_pyarrow_table(columns=names, filters=[("table_name", "in", tables)])
    rows: list[dict[str, Any]] = those.to_pylist()
    return rows


def commit(lake: Lake, entries: Iterable[Entry]) -> None:
    """Write `entries` in one commit. They replace entries with the same table, source and window."""
    listed = list(entries)
    _replace(lake, {_key(entry) for entry in listed}, listed)


def withdraw(lake: Lake, keys: Iterable[Key]) -> None:
    """Remove the entries of these tables, sources and windows, because their rows are about to be replaced."""
    known = read(lake)
    _replace(lake, {key for key in keys if key in known}, [])


def _key(entry: Entry) -> Key:
    return entry.table_name, entry.source, entry.window_start


def _replace(lake: Lake, keys: set[Key], entries: Sequence[Entry]) -> None:
    if not keys:
        return
    known = delta_tables.created(path(lake), Schema.from_arrow(SCHEMA), partition_by=["table_name"])
    tables = {table for table, _, _ in keys}
    kept = [entry for key, entry in _entries(known).items() if key[0] in tables and key not in keys]
    rows = pa.Table.from_pylist([asdict(entry) for entry in (*kept, *entries)], schema=SCHEMA)
    names = ", ".join(f"'{name}'" for name in sorted(tables))
    # The write is based on the version that was read, so a commit in between causes a conflict and isn't lost.
    write_deltalake(known, rows, mode="overwrite", predicate=f"table_name IN ({names})")
