"""Delta tables without a JVM, on a folder or in a bucket."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from wirehouse_pipelines.storage import is_local

#: Of a commit, each of which another writer was faster with.
_ATTEMPTS: Final = 20


def _options(path: str) -> dict[str, str]:
    """What the reader doesn't take from the environment by itself: plain HTTP is refused unless it is asked for."""
    plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
    return {} if is_local(path) or not plain else {"AWS_ALLOW_HTTP": "true"}


def exists(path: str) -> bool:
    """There is a table at `path`."""
    return DeltaTable.is_deltatable(path, _options(path))


def opened(path: str) -> DeltaTable | None:
    """The table at `path`; None if there is none."""
    return DeltaTable(path, storage_options=_options(path)) if exists(path) else None


def as_of(table: DeltaTable, when: int | datetime) -> DeltaTable | None:
    """`table` as it was at a version or a time (with its zone); None if there was none yet.

    Raises DeltaError for a version that there isn't, and a time before the oldest that is left.
    """
    table.load_as_version(when)
    if isinstance(when, datetime) and _is_oldest(table):
        # Of a time before all others the reader gives the oldest version that is left.
        begun = datetime.fromtimestamp(table.history()[-1]["timestamp"] / 1000, UTC)
        if begun > when and table.version() > 0:
            raise DeltaError(f"versions before {table.version()} are gone")
        return table if begun <= when else None
    return table


def _is_oldest(table: DeltaTable) -> bool:
    """No version before it is left."""
    try:
        DeltaTable(table.table_uri, table.version() - 1, _options(table.table_uri))
    except (DeltaError, OverflowError):
        return True
    return False


def created(path: str, schema: Schema, **how: Any) -> DeltaTable:
    """The table at `path`, made with the columns `schema` and what `DeltaTable.create` takes if there is none."""
    return DeltaTable.create(path, schema, mode="ignore", storage_options=_options(path), **how)


def swap(path: str, added: Sequence[AddAction], replaced: Callable[[DeltaTable], Sequence[str]]) -> None:
    """Put files in place of those that `replaced` names, in one commit to the table at `path`.

    It is the commit after the version that was asked, or none: if another writer was faster, the table is asked anew.
    """
    for attempt in range(_ATTEMPTS):
        table = DeltaTable(path, storage_options=_options(path))
        now_ms = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = [*added]
        actions += [RemoveAction(file, True, now_ms) for file in replaced(table)]
        if not actions:
            return
        try:
            table.create_write_transaction(
                actions,
                "append",
                table.schema(),
                table.metadata().partition_columns,
                commit_properties=CommitProperties(max_commit_retries=0),
            )
            return
        except CommitFailedError:
            if attempt == _ATTEMPTS - 1:
                raise
