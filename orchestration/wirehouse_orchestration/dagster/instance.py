"""The Dagster instance that every door to a lake shares: ROOT/.dagster, telemetry off.

Runs, schedules and events are kept in SQLite there, or in the PostgreSQL of WIREHOUSE_POSTGRES_URL; that one has a
folder of its own, so that each keeps its settings. Runs of the command line and of the UI stand side by side in it, and
its pools make writers of a table wait for one another. A run that was killed would hold its place in a pool for ever,
so each run holds a lock file, which the operating system lets go of with the process; whoever starts next on this
machine ends the runs whose lock is free.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO

from dagster import DagsterInstance, DagsterRunStatus
from dagster._core.instance.ref import InstanceRef
from dagster._core.instance.utils import RUNLESS_RUN_ID
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable, AssetKeyTable, SqlEventLogStorageTable
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from dagster_postgres.utils import DagsterPostgresException
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from wirehouse_codecs.core.errors import UsageError, WirehouseError
from wirehouse_pipelines.lake.lake import Lake

#: Where PostgreSQL is, if Dagster is to keep what it knows there.
POSTGRES_VARIABLE: Final = "WIREHOUSE_POSTGRES_URL"
#: Dagster's driver has to be named: of SQLAlchemy another one is the default.
_POSTGRES_DRIVER: Final = "postgresql+psycopg2"
#: The secret stays in the environment: of every process that opens the instance.
_POSTGRES: Final = f"""\
storage:
  postgres:
    postgres_url:
      env: {POSTGRES_VARIABLE}
"""
SETTINGS: Final = """\
# Written once by Wirehouse; yours to change (https://docs.dagster.io/deployment/oss/dagster-yaml).
telemetry:
  enabled: false
nux:
  # Asks for an address of mail, and sends it to Dagster's makers.
  enabled: false
concurrency:
  # One writer a table: a pool for landing, one for bronze and one for each protocol.
  pools:
    granularity: op
    default_limit: 1
  # The queue of the daemon, in which a run also waits while all that it could begin with waits for a pool.
  runs:
    # Each has a Spark driver of its own.
    max_concurrent_runs: 2
    # A backfill of many runs leaves room for another one.
    tag_concurrency_limits:
      - key: dagster/backfill
        value: {applyLimitPerUniqueValue: true}
        limit: 1
run_monitoring:
  enabled: true
  free_slots_after_run_end_seconds: 30
"""
#: Output of a run on the command line goes to its terminal, not to a file.
_OUTPUT_STAYS = {
    "compute_logs": {"module": "dagster._core.storage.noop_compute_log_manager", "class": "NoOpComputeLogManager"}
}
#: Under which a database keeps the root of its lake.
_ROOT: Final = "wirehouse/root"
UNFINISHED = (DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING)


class PostgresAddressError(UsageError):
    """The address of PostgreSQL can't be used."""

    template = "{variable} has to be {driver}://USER:PASSWORD@HOST:PORT/DATABASE"


class PostgresError(WirehouseError):
    """PostgreSQL doesn't answer, or refuses."""

    template = "the PostgreSQL of {variable} can't be used: {reason}"
    retry_helps = True


class OthersDatabaseError(UsageError):
    """PostgreSQL has what Dagster knows of another lake."""

    template = "the database of {variable} is that of the lake {root}: give each lake a database of its own"


class DatabaseError(WirehouseError):
    """A database of the lake's folder can't be read or written."""

    template = "Dagster's database in {folder} can't be used: {reason}; if its disk is full free some, then run again"
    retry_helps = True


def home(lake: Lake) -> Path:
    """The folder of the lake's instance, with its settings; made if missing. Raises PostgresAddressError."""
    folder, storage = Path(lake.home, ".dagster"), ""
    if address := os.environ.get(POSTGRES_VARIABLE):
        try:
            known = make_url(address).drivername == _POSTGRES_DRIVER
        except (ArgumentError, ValueError):
            known = False
        if not known:
            raise PostgresAddressError(variable=POSTGRES_VARIABLE, driver=_POSTGRES_DRIVER)
        folder, storage = folder / "postgres", _POSTGRES
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "dagster.yaml"
    with _alone(folder):
        if not settings.exists():
            settings.write_text(SETTINGS + storage)
    return folder


def output(lake: Lake) -> Path:
    """The folder for what the servers say that are started here; made if missing.

    It must not be called `logs`: Dagster sends all it finds there to its makers, telemetry or not (seen, 1.13.27).
    """
    folder = home(lake) / "output"
    folder.mkdir(exist_ok=True)
    return folder


@contextmanager
def shared_instance(lake: Lake) -> Iterator[DagsterInstance]:
    """The lake's instance; its databases are made if missing, by one process at a time.

    Raises OthersDatabaseError, and PostgresError or DatabaseError, also of what the block does.
    """
    folder = home(lake)
    try:
        with _instance(folder) as instance:
            _check_own(instance, lake)
            yield instance
    except DBAPIError as error:
        reason = str(error.orig).splitlines()[0]
        if POSTGRES_VARIABLE in os.environ:
            raise PostgresError(reason=reason, variable=POSTGRES_VARIABLE) from error
        raise DatabaseError(folder=folder, reason=reason) from error


def _check_own(instance: DagsterInstance, lake: Lake) -> None:
    """Note in a database of several machines whose it is. Raises OthersDatabaseError."""
    if POSTGRES_VARIABLE not in os.environ:
        return
    notes = instance.daemon_cursor_storage
    root = notes.get_cursor_values({_ROOT}).get(_ROOT)
    if root is None:
        notes.set_cursor_values({_ROOT: lake.root})
    elif root != lake.root:
        raise OthersDatabaseError(variable=POSTGRES_VARIABLE, root=root)


@contextmanager
def _instance(folder: Path) -> Iterator[DagsterInstance]:
    with _alone(folder):
        try:
            instance = DagsterInstance.from_ref(InstanceRef.from_dir(str(folder), overrides=_OUTPUT_STAYS))
        except DagsterPostgresException as error:
            reason = str(error.__cause__ or error).splitlines()[0]
            raise PostgresError(reason=reason, variable=POSTGRES_VARIABLE) from error
        # There are none, and looking for them configures the process's logging anew, which other runs are using.
        instance.get_yaml_python_handlers = list  # type: ignore[method-assign]
        # The first look at each of the three databases makes it.
        instance.get_runs_count()
        instance.all_instigator_state()
        instance.get_concurrency_config()
    with instance:
        yield instance


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _locks_folder(instance: DagsterInstance) -> Path:
    return Path(instance.root_directory, "runs")


#: Run -> its lock, of the runs of this process. Its end lets go of them.
_locks: dict[str, TextIO] = {}


@contextmanager
def held(instance: DagsterInstance, run_id: str) -> Iterator[None]:
    """Show from now on that the run's process lives, until the run is recorded as ended: on a full disk it never is."""
    lock = _locks_folder(instance) / f"{run_id}.lock"
    with _alone(Path(instance.root_directory)):
        for known in [known for known in _locks if _has_ended(instance, known)]:
            _locks.pop(known).close()
        lock.parent.mkdir(exist_ok=True)
        _locks[run_id] = stream = lock.open("w")
        fcntl.flock(stream, fcntl.LOCK_EX)
    yield


def _has_ended(instance: DagsterInstance, run_id: str) -> bool:
    run = instance.get_run_by_id(run_id)
    return run is None or run.is_finished


def end_abandoned_runs(instance: DagsterInstance) -> list[str]:
    """Mark runs whose process is gone as failed and free their places in the pools; their ids."""
    ended = []
    with _alone(Path(instance.root_directory)):
        for lock in filter(_is_free, _locks_folder(instance).glob("*.lock")):
            run = instance.get_run_by_id(lock.stem)
            if run is not None and run.status in UNFINISHED:
                instance.report_run_failed(run, "The process of this run ended before the run did.")
                ended.append(run.run_id)
            instance.event_log_storage.free_concurrency_slots_for_run(lock.stem)
            lock.unlink()
    return ended


def erase(instance: DagsterInstance, text: str) -> int:
    """Remove what events, results of checks with their samples, and assets tell of with `text`; how many it were."""
    storage = instance.event_log_storage
    assert isinstance(storage, SqlEventLogStorage)
    events, checks, assets = SqlEventLogStorageTable, AssetCheckExecutionsTable, AssetKeyTable
    of_runs = [events.delete().where(events.c.event.contains(text))]
    of_all = [
        *of_runs,
        checks.delete().where(checks.c.evaluation_event.contains(text)),
        assets.update().where(assets.c.last_materialization.contains(text)).values(last_materialization=None),
    ]
    # What landing tells is of no run.
    runs = (*instance.get_run_ids(), RUNLESS_RUN_ID)
    erased = sum(_executed(partial(storage.run_connection, run), of_runs) for run in runs)
    return erased + _executed(storage.index_connection, of_all)


def _executed(connect: Callable[[], AbstractContextManager[Connection]], statements: Sequence[Any]) -> int:
    """Execute `statements` and leave nothing of what they removed in the file; how many rows it were."""
    with connect() as connection:
        if in_file := connection.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA secure_delete = ON")
        removed = sum(connection.execute(statement).rowcount for statement in statements)
    if in_file and removed:
        with connect() as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    return removed


def _is_free(lock: Path) -> bool:
    with lock.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
