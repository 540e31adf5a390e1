"""The ledger: which windows of which table were computed from what.

One row a (table, source, window), written last: it is the commit. A window is stale when the digest of what it is
computed from differs from the one in its row. A Delta table read and written without a JVM.
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


#: Where it lies.
NAME = "ledger"

#: Table, source and window.
Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Entry:
    """A committed window of a table."""

    table_name: str
    source: str
    window_start: str
    #: Of everything the window was computed from.
    digest: str
    #: Of the state carried out of the window; None for a table without state.
    state_digest: str | None
    #: Of the state rows written in this window alone.
    state_rows_digest: str | None
    #: Oldest window whose state rows are still alive at this window's end.
    carried_from: str | None
    rows: int
    decoder_version: str
    committed_at_ns: int


def path(lake: Lake) -> str:
    """Where it lies."""
    return lake.address(NAME)


def read(lake: Lake) -> dict[Key, Entry]:
    """All entries by (table, source, window)."""
    known = delta_tables.opened(path(lake))
    return _entries(known) if known else {}


@dataclass(frozen=True, slots=True)
class _OfTable:
    """What the ledger says of a table."""

    #: Which hold it; files are never written twice.
    files: frozenset[str]
    entries: Mapping[Key, Entry]


#: Address and tables of the ledger that was read last.
_last: tuple[str, Mapping[str, _OfTable]] = ("", {})


def _entries(known: DeltaTable) -> dict[Key, Entry]:
    """All entries; read are those of tables whose files are other ones than last time."""
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
    """Write `entries` in one commit, in place of those with the same table, source and window."""
    listed = list(entries)
    _replace(lake, {_key(entry) for entry in listed}, listed)


def withdraw(lake: Lake, keys: Iterable[Key]) -> None:
    """Take back the entries of these tables, sources and windows: they are about to be written."""
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
    # Written to the version that was read: a commit in between is a conflict, not lost.
    write_deltalake(known, rows, mode="overwrite", predicate=f"table_name IN ({names})")
