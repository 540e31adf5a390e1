"""Delta tables without a JVM, in a folder or a bucket: open, create, time travel, and commit files.

`swap` is the commit of all large writes: it adds files that were written before, and removes those they replace.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from wirehouse_pipelines.storage import retry_policy
from wirehouse_pipelines.storage.storage import Held, StorageError, is_local, store_endpoint, unreached

#: Attempts of a commit, if another writer commits first each time.
_ATTEMPTS: Final = 20
#: How deltalake reports a store that doesn't answer, and the characters with which it draws the causes as a tree.
_UNREACHED: Final = re.compile("error sending request|operation timed out")
_DRAWN: Final = re.compile(r"( ?(\x1b\[[0-9;]*m|↳) ?)+")


def partition_of(file: str) -> dict[str, str]:
    """The columns of the partition that a file of a table is in, by the file's path."""
    return {name: unquote(value) for name, equals, value in (part.partition("=") for part in file.split("/")) if equals}


def _options(path: str) -> dict[str, str]:
    """Options to reach the store. deltalake refuses plain HTTP unless an option allows it."""
    if is_local(path):
        return {}
    options = retry_policy.of_delta()
    if endpoint := store_endpoint():
        options |= {"AWS_ENDPOINT_URL": endpoint}
        options |= {"AWS_ALLOW_HTTP": "true"} if endpoint.startswith("http://") else {}
    return options


@contextmanager
def _in_words(path: str) -> Iterator[None]:
    """Turn the error for a store that doesn't answer into a StorageError that states what to do."""
    try:
        yield
    except OSError as error:
        text = " ".join(str(error).split())
        if is_local(path) or not _UNREACHED.search(text):
            raise
        raise StorageError(name=path, reason=unreached(_DRAWN.sub(" ", text))) from None


def exists(path: str) -> bool:
    """Whether there is a table at `path`. Raises StorageError if the store doesn't answer."""
    with _in_words(path):
        return DeltaTable.is_deltatable(path, _options(path))


def opened(path: str) -> DeltaTable | None:
    """The table at `path`; None if there is none. Raises StorageError if the store doesn't answer."""
    with _in_words(path):
        return DeltaTable(path, storage_options=_options(path)) if exists(path) else None


def update(path: str, table: DeltaTable) -> None:
    """Bring `table`, opened at `path`, to its newest version. Takes a tenth of the time of opening it again."""
    with _in_words(path):
        table.update_incremental()


class Commit(NamedTuple):
    """A version of a table, and when it was committed."""

    version: int
    at: datetime


def commits(table: DeltaTable) -> list[Commit]:
    """The versions in the log of `table`, the oldest first, with the times that their writers recorded.

    Times never decrease: where a writer's clock was behind, a version gets the time of the one before.
    """
    found: list[Commit] = []
    for entry in sorted(table.history(), key=lambda entry: int(entry["version"])):
        at = datetime.fromtimestamp(entry.get("timestamp", 0) / 1000, UTC)
        found.append(Commit(int(entry["version"]), max(at, found[-1].at) if found else at))
    return found


def as_of(table: DeltaTable, when: int | datetime) -> DeltaTable | None:
    """Load `table` as it was at a version or a time (with its zone); None if it didn't exist yet.

    Raises DeltaError for an unknown version, and for a time before the oldest version that is kept.
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
    """The table at `path`; if there is none, create it with `schema` and further arguments of `DeltaTable.create`."""
    with _in_words(path):
        return DeltaTable.create(path, schema, mode="ignore", storage_options=_options(path), **how)


def swap(
    path: str,
    added: Sequence[AddAction],
    replaced: Callable[[DeltaTable], Sequence[str]],
    held: Held = lambda: None,
) -> None:
    """Add the files `added` to the table at `path` and remove those that `replaced` names, in one commit.

    `replaced` is a function of the table's newest version. The commit succeeds only as the next version after that one.
    If another writer commits first, the newest version is loaded and `replaced` called again. `held` checks the lock
    before each attempt.

    If the table has files of `added` already, `replaced` must name them too: an earlier attempt succeeded and its
    answer was lost.
    """
    paths = {file.path for file in added}
    for attempt in range(_ATTEMPTS):
        with _in_words(path):
            table = DeltaTable(path, storage_options=_options(path))
        now_ms, gone = time.time_ns() // 1_000_000, replaced(table)
        # If the answer to a commit is lost and the commit is retried, the store reports that the version exists. So
        # the table is checked for the files.
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
