"""Delta tables without a JVM, on a folder or in a bucket."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from wirehouse_pipelines.storage import retry_policy
from wirehouse_pipelines.storage.storage import Held, StorageError, is_local, store_endpoint, unreached

#: Of a commit, each of which another writer was faster with.
_ATTEMPTS: Final = 20
#: What the reader says of a store that doesn't answer, and the signs with which it draws its reasons as a tree.
_UNREACHED: Final = re.compile("error sending request|operation timed out")
_DRAWN: Final = re.compile(r"( ?(\x1b\[[0-9;]*m|↳) ?)+")


def _options(path: str) -> dict[str, str]:
    """How the store is reached; plain HTTP is refused unless it is asked for."""
    if is_local(path):
        return {}
    options = retry_policy.of_delta()
    if endpoint := store_endpoint():
        options |= {"AWS_ENDPOINT_URL": endpoint}
        options |= {"AWS_ALLOW_HTTP": "true"} if endpoint.startswith("http://") else {}
    return options


@contextmanager
def _in_words(path: str) -> Iterator[None]:
    """That a store doesn't answer as a StorageError that says what to do."""
    try:
        yield
    except OSError as error:
        text = " ".join(str(error).split())
        if is_local(path) or not _UNREACHED.search(text):
            raise
        raise StorageError(name=path, reason=unreached(_DRAWN.sub(" ", text))) from None


def exists(path: str) -> bool:
    """There is a table at `path`. Raises StorageError if the store doesn't answer."""
    with _in_words(path):
        return DeltaTable.is_deltatable(path, _options(path))


def opened(path: str) -> DeltaTable | None:
    """The table at `path`; None if there is none. Raises StorageError if the store doesn't answer."""
    with _in_words(path):
        return DeltaTable(path, storage_options=_options(path)) if exists(path) else None


class Commit(NamedTuple):
    """A version of a table, and when it was committed."""

    version: int
    at: datetime


def commits(table: DeltaTable) -> list[Commit]:
    """The versions of `table` that its log has, the oldest first, at the times that the commits themselves say.

    No time is before that of an older version, whatever the clocks of writers said.
    """
    told: list[Commit] = []
    for entry in sorted(table.history(), key=lambda entry: int(entry["version"])):
        at = datetime.fromtimestamp(entry.get("timestamp", 0) / 1000, UTC)
        told.append(Commit(int(entry["version"]), max(at, told[-1].at) if told else at))
    return told


def as_of(table: DeltaTable, when: int | datetime) -> DeltaTable | None:
    """`table` as it was at a version or a time (with its zone); None if there was none yet.

    Raises DeltaError for a version that there isn't, and a time before the oldest that is left.
    """
    if isinstance(when, datetime):
        known = commits(table)
        then = [commit.version for commit in known if commit.at <= when]
        if not then and known and known[0].version == 0:
            return None
        if not then:
            raise DeltaError(f"versions before {known[0].version if known else table.version()} are gone")
        when = then[-1]
    table.load_as_version(when)
    return table


def created(path: str, schema: Schema, **how: Any) -> DeltaTable:
    """The table at `path`, made with the columns `schema` and what `DeltaTable.create` takes if there is none."""
    with _in_words(path):
        return DeltaTable.create(path, schema, mode="ignore", storage_options=_options(path), **how)


def swap(
    path: str,
    added: Sequence[AddAction],
    replaced: Callable[[DeltaTable], Sequence[str]],
    held: Held = lambda: None,
) -> None:
    """Put files in place of those that `replaced` names, in one commit to the table at `path`.

    It is the commit after the version that was asked, or none: if another writer was faster, the table is asked anew.
    `replaced` also names files of `added`, if the table has them. `held` is asked before each attempt.
    """
    paths = {file.path for file in added}
    for attempt in range(_ATTEMPTS):
        with _in_words(path):
            table = DeltaTable(path, storage_options=_options(path))
        now_ms, gone = time.time_ns() // 1_000_000, replaced(table)
        # The answer to a commit may be lost: asked again, the store says that there is such a version.
        if not (paths or gone) or (paths and paths.issubset(gone)):
            return
        actions: list[AddAction | RemoveAction] = [*added]
        actions += [RemoveAction(file, True, now_ms) for file in gone]
        held()
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
