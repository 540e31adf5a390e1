"""The ledger: which windows of which table were computed from what.

One row a (table, source, window), written last: it is the commit. A window is stale when the digest of what it is
computed from differs from the one in its row. A Delta table read and written without a JVM.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields

import pyarrow as pa
from deltalake import DeltaTable, Schema, write_deltalake

from wirehouse_pipelines import delta_tables
from wirehouse_pipelines.lake import Lake

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


def _entries(known: DeltaTable) -> dict[Key, Entry]:
    names = [field.name for field in fields(Entry)]
    rows = known.to_pyarrow_table(columns=names).to_pylist()
    return {(row["table_name"], row["source"], row["window_start"]): Entry(**row) for row in rows}


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
