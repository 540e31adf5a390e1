"""The ledger: for each computed window of a table, a digest of everything that it was computed from.

The ledger is a Delta table with a row per (table, source, window); it needs no JVM. A row's `digest` covers captures,
options, the version of the code, and the state carried in. A window is **stale** if it has no row, or if its digest
would be different now.

A job follows this protocol for the windows that it computes:

1. `withdraw` the windows' rows from the ledger before the first table changes. If the job is killed from here on, its
   tables may contradict each other, but the windows are stale and will be computed again.
2. Replace the windows' rows in each table, in one commit per table.
3. `commit` the windows' new rows to the ledger. This is the commit of the job.

The ledger also records which windows passed their checks (`planning.checks_of`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

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


#: The entries of a table, by source and window.
Entries = Mapping[str, Mapping[str, Entry]]


class Committed(NamedTuple):
    """A commit to the ledger: the version that it is based on, and the version that it made."""

    before: int
    after: int


def path(lake: Lake) -> str:
    """The address of the ledger."""
    return lake.address(NAME)


def read(lake: Lake) -> dict[Key, Entry]:
    """All entries by (table, source, window)."""
    return {_key(entry): entry for entries in tables(lake).values() for entry in _listed(entries)}


def tables(lake: Lake) -> Mapping[str, Entries]:
    """The entries of each table. A table that didn't change since the last call has the same object."""
    known = delta_tables.opened(path(lake))
    return {name: table.entries for name, table in _known(known).items()} if known else {}


@dataclass(frozen=True, slots=True)
class _OfTable:
    """The ledger's entries for one table."""

    #: The files that hold them. A file never changes, so equal names mean equal entries.
    files: frozenset[str]
    entries: Entries


#: A cache: address and content of the ledger that was read last.
_last: tuple[str, Mapping[str, _OfTable]] = ("", {})


def _known(known: DeltaTable) -> Mapping[str, _OfTable]:
    """The entries of each table. Only tables whose files changed since the last call are read."""
    global _last
    before = _last[1] if _last[0] == known.table_uri else {}
    files = _files(known)
    now = {table: before[table] for table in files if table in before and before[table].files == files[table]}
    changed = [table for table in files if table not in now]
    found: dict[str, list[Entry]] = {table: [] for table in changed}
    for entry in _rows(known, changed) if changed else ():
        found[entry.table_name].append(entry)
    now |= {table: _OfTable(files[table], _grouped(entries)) for table, entries in found.items()}
    _last = known.table_uri, now
    return now


def _files(known: DeltaTable) -> dict[str, frozenset[str]]:
    """The names of the files of each table's entries."""
    files: dict[str, set[str]] = {}
    for file in pa.table(known.get_add_actions(flatten=True)).select(["path", "partition.table_name"]).to_pylist():
        files.setdefault(file["partition.table_name"], set()).add(file["path"])
    return {table: frozenset(names) for table, names in files.items()}


def _rows(known: DeltaTable, tables: Sequence[str]) -> Iterator[Entry]:
    names = [field.name for field in fields(Entry)]
    those = known.to_pyarrow_table(columns=names, filters=[("table_name", "in", tables)])
    return map(Entry, *(those.column(name).to_pylist() for name in names))


def _grouped(entries: Iterable[Entry]) -> Entries:
    found: dict[str, dict[str, Entry]] = {}
    for entry in entries:
        found.setdefault(entry.source, {})[entry.window_start] = entry
    return found


def _listed(entries: Entries) -> Iterator[Entry]:
    return (entry for windows in entries.values() for entry in windows.values())


def commit(lake: Lake, entries: Iterable[Entry]) -> Committed | None:
    """Write `entries` in one commit. They replace entries with the same table, source and window."""
    listed = list(entries)
    return _replace(lake, {_key(entry) for entry in listed}, listed)


def withdraw(lake: Lake, keys: Iterable[Key]) -> Committed | None:
    """Remove the entries of these tables, sources and windows, because their rows are about to be replaced."""
    known = tables(lake)
    there = {(table, source, window) for table, source, window in keys if window in _of(known, table, source)}
    return _replace(lake, there, [])


def _of(known: Mapping[str, Entries], table: str, source: str) -> Mapping[str, Entry]:
    return known.get(table, {}).get(source, {})


def _key(entry: Entry) -> Key:
    return entry.table_name, entry.source, entry.window_start


def _replace(lake: Lake, keys: set[Key], entries: Sequence[Entry]) -> Committed | None:
    """Replace the entries of `keys` by `entries`; None if there is nothing to do."""
    global _last
    if not keys:
        return None
    known = delta_tables.created(path(lake), Schema.from_arrow(SCHEMA), partition_by=["table_name"])
    before, of_tables = known.version(), _known(known)
    changed = {table for table, _, _ in keys}
    kept = (entry for table in changed & of_tables.keys() for entry in _listed(of_tables[table].entries))
    now = [*(entry for entry in kept if _key(entry) not in keys), *entries]
    rows = pa.table({name: [getattr(entry, name) for entry in now] for name in SCHEMA.names}, SCHEMA)
    names = ", ".join(f"'{name}'" for name in sorted(changed))
    # The write is based on the version that was read, so a commit in between causes a conflict and isn't lost.
    write_deltalake(known, rows, mode="overwrite", predicate=f"table_name IN ({names})")
    if known.version() == before + 1:
        # The entries that were just written needn't be read.
        written: dict[str, list[Entry]] = {}
        for entry in now:
            written.setdefault(entry.table_name, []).append(entry)
        files = _files(known)
        ours = {table: _OfTable(files[table], _grouped(listed)) for table, listed in written.items()}
        _last = known.table_uri, {name: of for name, of in of_tables.items() if name not in changed} | ours
    return Committed(before, known.version())
