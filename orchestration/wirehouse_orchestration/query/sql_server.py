"""`wirehouse sql-server`: Spark's Thrift server on loopback, with read-only access to all tables of the lake by name.

Statements are checked before they run, and settings that clients request when they connect are ignored: see
`ReadOnly.java` and `SqlServer.java` in wirehouse_pipelines/sql_server.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError

from wirehouse_codecs.core.errors import UsageError, WirehouseError
from wirehouse_orchestration.servers.foreground import until_stopped
from wirehouse_orchestration.servers.ports import HOST, PortTakenError, listens
from wirehouse_pipelines.delta import delta_tables
from wirehouse_pipelines.lake.kafka_options import KafkaOptions
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.spark import jars
from wirehouse_pipelines.storage.storage import write_private
from wirehouse_pipelines.tables import SPARK, Table, all_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Interval at which the server looks for tables that weren't written before.
LOOK_SECONDS: Final = 10
#: Spark's own limit on a statement, which gives no reason, comes this much later than ours.
GRACE_SECONDS: Final = 30
#: Clients that don't log in, or are idle, for this long are disconnected.
LOGIN_SECONDS: Final = 30
IDLE_SECONDS: Final = 3600
#: Number of PBKDF2 iterations for passwords.
ROUNDS: Final = 600_000
#: Keys of the store for this server alone, before those of the whole machine.
OWN_KEYS: Final = {
    "WIREHOUSE_SQL_ACCESS_KEY_ID": "AWS_ACCESS_KEY_ID",
    "WIREHOUSE_SQL_SECRET_ACCESS_KEY": "AWS_SECRET_ACCESS_KEY",
}
#: Variables that a server for readers doesn't need.
_NOT_ITS_OWN: Final = ("WIREHOUSE_HASH_KEY", "WIREHOUSE_POSTGRES_URL", "WIREHOUSE_WEBHOOK", *OWN_KEYS)
#: Exceptions raised by calls to a JVM that has ended.
_GONE: Final = (Py4JError, OSError)
_LAYERS: Final = {"bronze": "As landed", "silver": "What was sent", "gold": "What it means"}

Say = Callable[[str], None]


class PasswordsError(UsageError):
    """The password file can't be used."""

    template = "{file}: {reason}"


class SparkEndedError(WirehouseError):
    """The server's JVM, or Spark in it, is no more."""

    template = (
        "Spark has ended, as it does when its memory runs out: start again, WIREHOUSE_DRIVER_MEMORY gives it more (3g)"
    )


def set_password(file: Path, name: str, password: str) -> None:
    """Keep `password` of user `name` in `file`, as a salted key. Raises PasswordsError."""
    if not name or not name.isprintable() or ":" in name:
        raise PasswordsError(file=file, reason=f"{name!r} can't be a name: it must not be empty nor have a : in it")
    if not password:
        raise PasswordsError(file=file, reason="a password can't be empty")
    known = file.read_text().splitlines() if file.exists() else []
    salt = secrets.token_bytes(16)
    key = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, ROUNDS)
    others = [line for line in known if line.partition(":")[0] != name]
    write_private(file, "".join(f"{line}\n" for line in (*others, f"{name}:{ROUNDS}:{salt.hex()}:{key.hex()}")))


def take_own_keys(environment: MutableMapping[str, str], lake: Lake) -> None:
    """Remove from `environment`, which the JVM inherits, what a server for readers doesn't need."""
    for own, name in OWN_KEYS.items():
        if own in environment:
            environment[name] = environment[own]
    of_brokers = (KafkaOptions.from_mapping(source.kafka).variables for source in lake.sources)
    for name in (*_NOT_ITS_OWN, *chain.from_iterable(of_brokers)):
        environment.pop(name, None)


def _settings(scratch: str, port: int, passwords: Path | None, most_seconds: int) -> Mapping[str, str]:
    from wirehouse_pipelines.spark.session import SETTINGS

    hive = {
        "thrift.bind.host": HOST,
        "thrift.port": str(port),
        # All read as the server does.
        "enable.doAs": "false",
        "allow.user.substitution": "false",
        "authentication": "CUSTOM" if passwords else "NONE",
        "logging.operation.enabled": "false",
    }
    # Rights are not Hive's. Its usual manager of them looks into a database whenever a client asks for schemas.
    rights = "org.apache.hadoop.hive.ql.security.authorization.StorageBasedAuthorizationProvider"
    return {
        "spark.sql.extensions": f"{SETTINGS['spark.sql.extensions']},wirehouse.ReadOnly",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
        # Clients that ask for columns get those of the catalog.
        "spark.databricks.delta.catalog.update.enabled": "true",
        "spark.sql.runSQLOnFiles": "false",
        # ${env:NAME} in a statement would be a variable of this process.
        "spark.sql.variable.substitute": "false",
        "spark.sql.thriftServer.incrementalCollect": "true",
        # Stops statements that run no job. Later than our own limit of each job, which gives the reason.
        "spark.sql.thriftServer.queryTimeout": f"{most_seconds + GRACE_SECONDS if most_seconds else 0}s",
        "spark.scheduler.mode": "FAIR",
        # A statement that needs more memory than there is fails by itself; Spark would end the process.
        "spark.executor.killOnFatalError.depth": "0",
        "spark.hadoop.hive.security.authorization.manager": rights,
        **{f"spark.hadoop.hive.server2.{name}": value for name, value in hive.items()},
    }


def _properties(passwords: Path | None) -> Mapping[str, str]:
    """What the server takes from properties of its JVM alone."""
    if not passwords:
        return {}
    return {
        "hive.server2.custom.authentication.class": "wirehouse.PasswordFile",
        "wirehouse.passwords": str(passwords.absolute()),
    }


@contextmanager
def serving(lake: Lake, port: int, passwords: Path | None, most_seconds: int, say: Say) -> Iterator[Callable[[], None]]:
    """The server of `lake`, ready to answer; gives what to call now and then, for tables that are new.

    `passwords` as `set_password` writes them; without, whoever reaches the port may read. A statement is stopped after
    `most_seconds`, 0 for never. Raises PortTakenError, PasswordsError and
    JarsMissingError.
    """
    if listens(port):
        raise PortTakenError(port=port)
    if passwords and not passwords.is_file():
        raise PasswordsError(file=passwords, reason="there is no such file: `wirehouse sql-server --set-password NAME`")
    from wirehouse_pipelines.spark import session as embedded

    if not (jars.folder() / jars.OUR_JAR).exists():
        raise embedded.JarsMissingError(folder=jars.folder())
    take_own_keys(os.environ, lake)
    say("starting Spark")
    with tempfile.TemporaryDirectory(prefix="wirehouse-sql-server-") as scratch:
        interrupt = signal.getsignal(signal.SIGINT)
        session = embedded.session(
            "wirehouse sql-server", lake.spark, _settings(scratch, port, passwords, most_seconds)
        )
        # PySpark's own interrupts again what is stopping already.
        signal.signal(signal.SIGINT, interrupt)
        jvm: Any = session._jvm
        try:
            for name, value in _properties(passwords).items():
                jvm.java.lang.System.setProperty(name, value)
            missing = _register(session, lake, scratch)
            server = jvm.wirehouse.SqlServer.start(session._jsparkSession, LOGIN_SECONDS, IDLE_SECONDS)
            try:
                since: dict[int, float] = {}
                yield lambda: _look(session, lake, missing, since, most_seconds)
            finally:
                with suppress(*_GONE):
                    server.stop()
        finally:
            with suppress(*_GONE):
                session.stop()


def serve(lake: Lake, port: int, passwords: Path | None, most_seconds: int, say: Say) -> None:
    """Serve until interrupted. Raises what `serving` does."""
    with until_stopped(say), serving(lake, port, passwords, most_seconds, say) as look:
        who = f"with a name and a password of {passwords}" if passwords else "without a password"
        say(f"tables are at jdbc:hive2://{HOST}:{port}, to read, {who} (stop with Ctrl-C)")
        while True:
            time.sleep(LOOK_SECONDS)
            look()


def _register(session: SparkSession, lake: Lake, scratch: str) -> set[str]:
    """Make all tables known by name; those that were never written are empty, and named in what is returned."""
    for layer, comment in _LAYERS.items():
        session.sql(f"CREATE DATABASE {layer} COMMENT '{comment}'")
    known: set[str] = set()
    missing: set[str] = set()
    for table in all_tables().values():
        if not table.internal:
            _make(session, lake, table, scratch, known, missing)
    return missing


def _make(session: SparkSession, lake: Lake, table: Table, scratch: str, known: set[str], missing: set[str]) -> None:
    """Make `table` known, a view after the tables it is made of."""
    if table.name in known:
        return
    known.add(table.name)
    if table.view is not None:
        for name in table.reads:
            _make(session, lake, all_tables()[name], scratch, known, missing)
        columns = ", ".join(f"`{column.name}` COMMENT {_text(column.comment)}" for column in table.columns)
        what = f"({columns}) COMMENT {_text(table.comment)} AS {table.statement(SPARK)}"
        session.sql(f"CREATE VIEW {table.name} {what}")
    elif delta_tables.exists(lake.table_path(table.name)):
        _open(session, lake, table, table.name)
    else:
        missing.add(table.name)
        place = _text(f"{scratch}/{table.name}")
        what = f"({table.ddl}) USING parquet COMMENT {_text(table.comment)} LOCATION {place}"
        session.sql(f"CREATE TABLE {table.name} {what}")


def _open(session: SparkSession, lake: Lake, table: Table, name: str) -> None:
    place = _text(lake.table_path(table.name))
    session.sql(f"CREATE TABLE {name} USING delta COMMENT {_text(table.comment)} LOCATION {place}")


def _look(session: SparkSession, lake: Lake, missing: set[str], since: dict[int, float], most_seconds: int) -> None:
    """Open tables that have been written since, and stop jobs that take too long. Raises SparkEndedError."""
    if _has_ended(session):
        raise SparkEndedError
    for name in sorted(missing):
        if delta_tables.exists(lake.table_path(name)):
            _replace(session, lake, name)
            missing.remove(name)
    if most_seconds:
        _stop_long(session, since, most_seconds)


def _stop_long(session: SparkSession, since: dict[int, float], most_seconds: int) -> None:
    """Stop jobs that were seen first `most_seconds` ago, by `since`.

    Spark's own limit ends before the first row, and most work may be done for it and those after, even if nobody waits.
    """
    now = time.monotonic()
    running = set(session.sparkContext.statusTracker().getActiveJobsIds())
    for job in set(since) - running:
        del since[job]
    for job in running:
        if now - since.setdefault(job, now) >= most_seconds:
            reason = f"as it takes longer than the {most_seconds} s of --most-seconds"
            session._jsparkSession.sparkContext().cancelJob(job, reason)


def _has_ended(session: SparkSession) -> bool:
    try:
        return bool(session._jsparkSession.sparkContext().isStopped())
    except _GONE:
        return True


def _replace(session: SparkSession, lake: Lake, name: str) -> None:
    """Open `name` instead of the empty table of that name, which nobody finds missing meanwhile."""
    layer, _, table = name.partition(".")
    _open(session, lake, all_tables()[name], f"default.{table}")
    catalog = session._jsparkSession.sharedState().externalCatalog()
    found = catalog.getTable("default", table)
    others = (found.productElement(i) for i in range(1, found.productArity()))
    catalog.alterTable(found.copy(catalog.getTable(layer, table).identifier(), *others))
    session.sql(f"DROP TABLE default.{table}")


def _text(value: str) -> str:
    """A literal of Spark SQL."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
