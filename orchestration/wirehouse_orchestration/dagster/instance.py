"""The Dagster instance of a lake, in ROOT/.dagster with telemetry off. The CLI, the UI and the daemon share it.

Runs, schedules and events are stored in SQLite there, or in PostgreSQL if WIREHOUSE_POSTGRES_URL is set. Each of the
two has its own folder with its own settings. Concurrency pools of the instance allow one writer per table.

A killed run would keep its slot in a pool for ever. Therefore each run holds a lock on a file, which the operating
system releases when the process ends. Before new runs start on this machine, `end_abandoned_runs` marks runs whose lock
is free as failed and frees their slots.
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

#: The address of PostgreSQL, if Dagster's data is to be stored there.
POSTGRES_VARIABLE: Final = "WIREHOUSE_POSTGRES_URL"
#: Dagster's driver must be named, because SQLAlchemy's default is another one.
_POSTGRES_DRIVER: Final = "postgresql+psycopg2"
#: The secret stays in the environment, which each process that opens the instance needs.
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
#: The output of a run goes to the terminal, not to a file.
_OUTPUT_STAYS = {
    "compute_logs": {"module": "dagster._core.storage.noop_compute_log_manager", "class": "NoOpComputeLogManager"}
}
#: The key under which a database stores the root of its lake.
_ROOT: Final = "wirehouse/root"
UNFINISHED = (DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING)


class PostgresAddressError(UsageError):
    """The address of PostgreSQL is invalid."""

    template = "{variable} has to be {driver}://USER:PASSWORD@HOST:PORT/DATABASE"


class PostgresError(WirehouseError):
    """PostgreSQL doesn't answer, or refuses the request."""

    template = "the PostgreSQL of {variable} can't be used: {reason}"
    retry_helps = True


class OthersDatabaseError(UsageError):
    """The PostgreSQL database belongs to another lake."""

    template = "the database of {variable} is that of the lake {root}: give each lake a database of its own"


class DatabaseError(WirehouseError):
    """A database of the lake's folder can't be read or written."""

    template = "Dagster's database in {folder} can't be used: {reason}; if its disk is full free some, then run again"
    retry_helps = True


def home(lake: Lake) -> Path:
    """The folder of the lake's instance with its settings, created if missing. Raises PostgresAddressError."""
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
    """The folder for the output of servers, created if missing.

    It must not be called `logs`: Dagster uploads what it finds there even without telemetry (seen in 1.13.27).
    """
    folder = home(lake) / "output"
    folder.mkdir(exist_ok=True)
    return folder


@contextmanager
def shared_instance(lake: Lake) -> Iterator[DagsterInstance]:
    """The lake's instance. Its databases are created if missing, by one process at a time.

    Raises OthersDatabaseError; and PostgresError or DatabaseError, also for errors inside the block.
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
    """Record in PostgreSQL which lake the database belongs to. Raises OthersDatabaseError if it is another one."""
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
        # There are none, and looking for them would reconfigure logging, which other runs of the process are using.
        instance.get_yaml_python_handlers = list  # type: ignore[method-assign]
        # The first access to each of the three databases creates it.
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


#: The locks of this process by run. They are released when the process ends.
_locks: dict[str, TextIO] = {}


@contextmanager
def held(instance: DagsterInstance, run_id: str) -> Iterator[None]:
    """Hold the run's lock, which shows that its process is alive.

    The lock is kept after the block until the run is recorded as ended, which never happens if the disk is full.
    """
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
    """Mark runs whose process is gone as failed, and free their slots in the pools. Returns their ids."""
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
    """Remove events, check results and materialisations that contain `text`. Returns the number of rows changed."""
    storage = instance.event_log_storage
    assert isinstance(storage, SqlEventLogStorage)
    events, checks, assets = SqlEventLogStorageTable, AssetCheckExecutionsTable, AssetKeyTable
    of_runs = [events.delete().where(events.c.event.contains(text))]
    of_all = [
        *of_runs,
        checks.delete().where(checks.c.evaluation_event.contains(text)),
        assets.update().where(assets.c.last_materialization.contains(text)).values(last_materialization=None),
    ]
    # Landing outside of Dagster reports events without a run.
    runs = (*instance.get_run_ids(), RUNLESS_RUN_ID)
    erased = sum(_executed(partial(storage.run_connection, run), of_runs) for run in runs)
    return erased + _executed(storage.index_connection, of_all)


def _executed(connect: Callable[[], AbstractContextManager[Connection]], statements: Sequence[Any]) -> int:
    """Execute `statements`, and make sure that removed data isn't left in the file. Returns the number of rows."""
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
