"""The SQL server as others meet it: through PyHive and beeline, with a password, and what they had better not do."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyhive import hive
from thrift.transport.TTransport import TTransportException

from infra.tools.generated_pages import FOLDER as DOCS
from tests.support import recipe_lake
from tests.support.processes import started
from wirehouse_orchestration.infra.server import java_program
from wirehouse_orchestration.query import sql_server
from wirehouse_orchestration.query.sql_server import PasswordsError
from wirehouse_orchestration.servers.ports import HOST, SQL, free_port, listens
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.query import sql
from wirehouse_pipelines.tables import all_tables

# Beeline takes what follows a space for its next argument.
NAME, PASSWORD = "ann", "summer:7"
START_SECONDS = 300
#: No statement takes as long, also on a machine that is busy.
MOST_SECONDS = 90
#: The limit of a server whose statements take too long.
FEW_SECONDS = 20
LAYERS = ("bronze", "silver", "gold")
LOGIN_SECONDS = 15
#: More clients than the server has threads for.
MOST_CLIENTS = 520
REFLECT = "reflect('java.lang.System', 'getProperty', 'user.home')"


@dataclass
class Served:
    """A server that runs."""

    lake: Lake
    port: int

    def connect(self, password: str = PASSWORD, name: str = NAME, **settings: str) -> Any:
        return hive.connect(HOST, self.port, username=name, auth="CUSTOM", password=password, configuration=settings)


@contextmanager
def server(folder: Path, most_seconds: int = MOST_SECONDS) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The command, over the lake in `folder`, and where it listens."""
    (folder / "wirehouse.toml").write_text('[lakehouse]\nroot = "lake"\n')
    sql_server.set_password(folder / "passwords", NAME, PASSWORD)
    port = free_port()
    program = f"""
from wirehouse_orchestration.cli import command as cli
from wirehouse_orchestration.query import sql_server
sql_server.LOOK_SECONDS, sql_server.LOGIN_SECONDS = 1, {LOGIN_SECONDS}
cli.main()"""
    command = [sys.executable, "-c", program, "sql-server", "--port", str(port), "--passwords", "passwords"]
    command += ["--most-seconds", str(most_seconds)]
    environment = os.environ | {"WIREHOUSE_CONFIG": "wirehouse.toml"}
    with started(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        end = time.monotonic() + START_SECONDS
        while not listens(port):
            assert process.poll() is None, "the server ended"
            assert time.monotonic() < end, "the server did not start"
            time.sleep(0.2)
        assert process.stdout
        said = "".join(process.stdout.readline() for _ in range(2))
        assert said.replace(str(port), str(SQL)).replace("of passwords", "of readers") in (DOCS / "sql.md").read_text()
        yield process, port


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    lake = Lake(str(folder / "lake"), Windows("day", "2015-01-01"))
    recipe_lake.write(lake)
    sql_server.set_password(folder / "passwords", "bob", "another")
    sql_server.set_password(folder / "passwords", NAME, "old")
    with server(folder) as (process, port):
        try:
            yield Served(lake, port)
        finally:
            process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
            # Who can't wait doesn't hurt.
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
            assert not listens(port)


@pytest.fixture(scope="module")
def cursor(served: Served) -> Any:
    return served.connect().cursor()


def rows(cursor: Any, statement: str) -> list[list[Any]]:
    cursor.execute(statement)
    return recipe_lake.shown(cursor.fetchall())


def refusal(cursor: Any, statement: str) -> str:
    """Why the server refused `statement`; empty if it didn't."""
    try:
        cursor.execute(statement)
    except hive.OperationalError as error:
        return str(error.args[0].status.errorMessage)
    return ""


@pytest.mark.servers
def test_tables_have_their_names_and_comments(cursor: Any) -> None:
    shown = {table.name for table in all_tables().values() if not table.internal}
    # Views may be made of internal tables and views, which must be there too.
    while read := {name for view in shown for name in all_tables()[view].reads} - shown:
        shown |= read
    listed = [
        f"{layer}.{row[1]}" for layer in ("bronze", "silver", "gold") for row in rows(cursor, f"SHOW TABLES IN {layer}")
    ]
    assert sorted(listed) == sorted(shown)
    for name in ("gold.cardinal_chain", "gold.cardinal_chain_history", "gold.cardinal_chain_updates"):
        described = {row[0]: row[2] for row in rows(cursor, f"DESCRIBE {name}")}
        assert described.items() >= {column.name: column.comment for column in all_tables()[name].columns}.items()


@pytest.mark.servers
def test_clients_are_told_columns_by_the_protocol_itself(served: Served) -> None:
    from TCLIService import ttypes

    connection = served.connect()
    session = connection.sessionHandle

    def asked(request: Any, call: str) -> list[tuple[Any, ...]]:
        answer = getattr(connection.client, call)(request)
        hive._check_status(answer)
        fetch = ttypes.TFetchResultsReq(answer.operationHandle, ttypes.TFetchOrientation.FETCH_NEXT, 1000)
        columns = connection.client.FetchResults(fetch).results.columns
        return list(zip(*map(hive._unwrap_column, columns), strict=True))

    assert {row[0] for row in asked(ttypes.TGetSchemasReq(session, None, "%"), "GetSchemas")} >= {
        "bronze",
        "silver",
        "gold",
    }
    for name in ("cardinal_chain", "cardinal_chain_history", "cardinal_chain_updates"):
        table = all_tables()[f"gold.{name}"]
        found = asked(ttypes.TGetColumnsReq(session, None, "gold", name, "%"), "GetColumns")
        assert [(row[3], row[11]) for row in found] == [(column.name, column.comment) for column in table.columns]
        (told,) = asked(ttypes.TGetTablesReq(session, None, "gold", name, None), "GetTables")
        assert told[4] == table.comment


@pytest.mark.servers
@pytest.mark.parametrize("name", ["cardinal-chain-stalls 2", "ockam-consumer-lags 1"])
def test_a_recipe_answers_the_same(cursor: Any, name: str) -> None:
    found = rows(cursor, recipe_lake.here(recipe_lake.recipes()[name]))
    # Nested values are text there.
    assert [row[:3] for row in found] == [row[:3] for row in recipe_lake.ANSWERS[name]]


@pytest.mark.servers
def test_every_recipe_is_understood(cursor: Any) -> None:
    refused = {name: refusal(cursor, f"EXPLAIN {text}") for name, text in recipe_lake.recipes().items()}
    assert {name: why for name, why in refused.items() if why} == {}


@pytest.mark.servers
def test_columns_that_are_grouped_compared_and_joined_answer_the_same(served: Served, cursor: Any) -> None:
    asked = [table for table in all_tables().values() if table.key and not table.internal]
    with_rows = 0
    for table in asked:
        for statement in recipe_lake.statements(table.name):
            here = recipe_lake.shown([row.values() for row in sql.rows(served.lake, statement).to_pylist()])
            assert sorted(rows(cursor, statement), key=str) == sorted(here, key=str), statement
            with_rows += len(here)
    assert with_rows > len(asked) + 20


@pytest.mark.servers
def test_what_is_written_later_is_found(served: Served, cursor: Any) -> None:
    name = "gold.ockam_streams_history"
    assert rows(cursor, f"SELECT COUNT(*) FROM {name}") == [[0]]
    assert rows(cursor, "SELECT COUNT(*) FROM gold.ockam_stream_indexes") == [[1]]
    recipe_lake.write_table(served.lake, name, [{"stream_address": "a"}])
    end = time.monotonic() + 12 * sql_server.LOOK_SECONDS
    while rows(cursor, f"SELECT COUNT(*) FROM {name}") != [[1]]:
        assert time.monotonic() < end
        time.sleep(1)
    recipe_lake.write_table(served.lake, "gold.ockam_stream_indexes_history", [{"client_id": "other"}])
    assert rows(cursor, "SELECT COUNT(*) FROM gold.ockam_stream_indexes") == [[2]]
    assert rows(cursor, "SELECT COUNT(*) FROM gold.ockam_stream_indexes_history VERSION AS OF 0") == [[1]]


@pytest.mark.servers
def test_beeline_reads(served: Served) -> None:
    classes = f"{Path(pyspark.__file__).parent}/jars/*"
    command = [java_program(), "-Xmx256m", "-cp", classes, "org.apache.hive.beeline.BeeLine", "--outputformat=csv2"]
    command += ["-u", f"jdbc:hive2://{HOST}:{served.port}/gold", "-n", NAME, "-p", PASSWORD]
    command += [
        "-e",
        "SELECT stream_name, lag FROM ockam_stream_indexes WHERE lag > 0; SELECT * FROM text.`/etc/passwd`;",
    ]
    answer = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"LC_ALL": "C.UTF-8"})
    assert "stream_name,lag\ns,70\n" in answer.stdout
    assert "root:" not in answer.stdout
    assert "there is no table text./etc/passwd" in answer.stderr


@pytest.mark.servers
@pytest.mark.parametrize(
    ("name", "password"),
    [(NAME, "wrong"), (NAME, "old"), ("nobody", PASSWORD), ("", PASSWORD), ("ann:600000", PASSWORD), ("bob", PASSWORD)],
)
def test_who_has_no_password_is_not_let_in(served: Served, name: str, password: str) -> None:
    with pytest.raises(Exception, match=r"Error validating the login"):
        served.connect(password, name)


ESCAPES = [
    # Java by its name.
    f"SELECT {REFLECT}",
    "SELECT java_method('java.lang.System', 'getenv', 'PATH')",
    f"SELECT try_{REFLECT}",
    f"SELECT system.builtin.{REFLECT}",
    "SELECT IDENTIFIER('ref' || 'lect')('java.lang.System', 'getProperty', 'user.home')",
    f"SELECT (SELECT MAX({REFLECT}) FROM gold.cardinal_chain)",
    f"WITH a AS (SELECT {REFLECT}) SELECT * FROM a",
    f"SELECT 1 WHERE EXISTS (SELECT {REFLECT})",
    f"SELECT transform(array(1), x -> {REFLECT})",
    f"SELECT 1 FROM range(1) ORDER BY {REFLECT}",
    f"SELECT * FROM VALUES ({REFLECT})",
    f"SELECT * FROM gold.cardinal_chain_history TIMESTAMP AS OF {REFLECT}",
    f"FROM range(1) |> SELECT {REFLECT}",
    f"EXPLAIN SELECT {REFLECT}",
    f"DESCRIBE QUERY SELECT {REFLECT}",
    f'EXECUTE IMMEDIATE "SELECT {REFLECT}"',
    f"BEGIN SELECT {REFLECT}; END",
    "CREATE TEMPORARY FUNCTION f AS 'java.lang.Runtime'",
    f"CREATE TEMPORARY FUNCTION f() RETURNS STRING RETURN {REFLECT}",
    # Programs.
    "SELECT TRANSFORM(1) USING 'id' AS (x STRING)",
    "FROM (SELECT 1 AS a) MAP a USING 'sh' AS b",
    "FROM range(1) REDUCE id USING '/bin/cat'",
    # Files and other places.
    "SELECT * FROM text.`/etc/passwd`",
    "SELECT * FROM spark_catalog.text.`/etc/passwd`",
    "SELECT * FROM IDENTIFIER('text.`/etc/passwd`')",
    "SELECT * FROM delta.`{lake}/gold/cardinal_chain_history`",
    "SELECT * FROM gold.`/etc/passwd`",
    "SELECT * FROM gold.cardinal_state",
    "SELECT * FROM gold.cardinal_chain_history WITH (path = '/etc/passwd')",
    "SELECT * FROM table_changes_by_path('{lake}/gold/cardinal_chain_history', 0)",
    "SELECT * FROM read_files('/etc/passwd')",
    "SELECT * FROM python_worker_logs()",
    "SELECT * FROM /*x*/ TEXT/**/./**/`file:///etc/passwd`",
    "WITH text AS (SELECT 1) SELECT * FROM text.`/etc/passwd`",
    "SELECT 1 WHERE 'a' IN (SELECT value FROM text.`/etc/passwd`)",
    "TABLE binaryFile.`/etc/passwd`",
    "FROM csv.`/etc/passwd`",
    "SELECT * FROM jdbc.`jdbc:derby:memory:x;create=true`",
    "SELECT * FROM delta.`{lake}/gold/cardinal_state@v0`",
    "SELECT * FROM other.gold.x",
    "DESCRIBE text.`/etc/passwd`",
    "DESCRIBE DETAIL '{lake}/gold/cardinal_chain_history'",
    "DESCRIBE HISTORY delta.`{lake}/gold/cardinal_chain_history`",
    "SHOW CREATE TABLE parquet.`/tmp`",
    "SHOW COLUMNS IN text.`/etc/passwd`",
    "SHOW PARTITIONS text.`/etc/passwd`",
    "SHOW TBLPROPERTIES text.`/etc/passwd`",
    "EXPLAIN CODEGEN SELECT * FROM csv.`/etc/passwd`",
    "EXPLAIN INSERT INTO gold.cardinal_chain_history SELECT * FROM gold.cardinal_chain_history",
    "SELECT from_avro(X'00', '{{\"type\":\"int\"}}', map('avroSchemaUrl', 'file:///etc/passwd'))",
    "SELECT from_xml('<a>1</a>', 'a INT', map('rowValidationXSDPath', '/etc/passwd'))",
    "SELECT from_protobuf(X'00', 'A', '/etc/passwd')",
    # The library behind it fetches what a document names as its DTD.
    "SELECT xpath_string('<!DOCTYPE a SYSTEM \"http://127.0.0.1:9/\"><a/>', 'a')",
    "SELECT system.builtin.xpath('<!DOCTYPE a SYSTEM \"file:///etc/passwd\"><a/>', 'a')",
    "CREATE TEMPORARY VIEW v USING text OPTIONS (path '/etc/passwd')",
    "ADD JAR '/tmp/x.jar'",
    "ADD FILE '/etc/passwd'",
    "ADD ARCHIVE '/tmp/x.zip'",
    "LIST FILES",
    "REFRESH '/etc'",
    "USE other",
    # Settings.
    "SET spark.sql.runSQLOnFiles=true",
    "SET -v",
    "SET TIME ZONE 'UTC'",
    "SET CATALOG other",
    "SET spark.hadoop.fs.s3a.secret.key",
    "SET hivevar:y=${{env:HOME}}",
    "RESET",
    "DECLARE VARIABLE x STRING DEFAULT 'a'",
    # Writing.
    "CREATE TABLE gold.x (a INT)",
    "CREATE TABLE gold.x USING csv LOCATION '/etc'",
    "CREATE TABLE gold.x SHALLOW CLONE gold.cardinal_chain_history",
    "CREATE OR REPLACE VIEW gold.violations AS SELECT 1",
    "CREATE TEMPORARY VIEW violations AS SELECT 1",
    "CREATE DATABASE x LOCATION '/tmp'",
    "DROP TABLE gold.cardinal_chain_history",
    "DROP VIEW gold.violations",
    "TRUNCATE TABLE gold.cardinal_chain_history",
    "ALTER TABLE gold.cardinal_chain_history SET LOCATION '/etc'",
    "ALTER TABLE gold.cardinal_chain_history ADD COLUMNS (x INT)",
    "COMMENT ON TABLE gold.cardinal_chain_history IS 'x'",
    "INSERT INTO gold.cardinal_chain_history SELECT * FROM gold.cardinal_chain_history",
    "WITH a AS (SELECT 1) INSERT INTO gold.cardinal_chain_history SELECT * FROM gold.cardinal_chain_history",
    "FROM gold.cardinal_chain_history INSERT INTO gold.cardinal_chain_history SELECT *",
    "INSERT OVERWRITE DIRECTORY '{lake}/out' USING csv SELECT 1",
    "DELETE FROM gold.cardinal_chain_history",
    "UPDATE gold.cardinal_chain_history SET number = 0",
    "MERGE INTO gold.cardinal_chain_history USING gold.cardinal_chain_history AS s ON false WHEN MATCHED THEN DELETE",
    "OPTIMIZE gold.cardinal_chain_history",
    "VACUUM gold.cardinal_chain_history RETAIN 0 HOURS",
    "RESTORE TABLE gold.cardinal_chain_history TO VERSION AS OF 0",
    "CONVERT TO DELTA parquet.`/tmp`",
    "LOAD DATA LOCAL INPATH '/etc/passwd' INTO TABLE gold.cardinal_chain_history",
    "CACHE TABLE gold.violations",
    "CACHE LAZY TABLE x AS SELECT * FROM text.`/etc/passwd`",
    "UNCACHE TABLE gold.violations",
    "CLEAR CACHE",
    "ANALYZE TABLE gold.cardinal_chain_history COMPUTE STATISTICS",
    "MSCK REPAIR TABLE gold.cardinal_chain_history",
    "CALL system.x()",
]


#: What tools ask, and kinds of query.
HARMLESS = [
    "SHOW SCHEMAS",
    "SHOW VIEWS IN gold",
    "SHOW TABLE EXTENDED IN gold LIKE '*chain*'",
    "SHOW COLUMNS IN gold.cardinal_chain_updates",
    "SHOW TBLPROPERTIES gold.cardinal_chain_history",
    "SHOW FUNCTIONS LIKE 'abs'",
    "SHOW CATALOGS",
    "SHOW CURRENT NAMESPACE",
    "DESCRIBE EXTENDED gold.cardinal_chain",
    "DESCRIBE FUNCTION abs",
    "DESCRIBE SCHEMA gold",
    "USE gold",
    "USE spark_catalog.gold",
    "SELECT current_database(), current_user()",
    "VALUES (1)",
    "SELECT * FROM VALUES (1, 2), (3, 4) AS t(a, b) WHERE a IN (1, 2) ORDER BY b DESC LIMIT 1 OFFSET 0",
    "SELECT x, COUNT(*) FROM range(3) AS t(x) GROUP BY GROUPING SETS ((x), ()) HAVING COUNT(*) > 0",
    "SELECT x FROM (SELECT 1 AS x UNION SELECT 2 EXCEPT SELECT 3 INTERSECT SELECT 4) NATURAL JOIN (SELECT 1 AS x)",
    "SELECT * FROM range(2) LATERAL VIEW explode(array(1)) e AS f",
    "SELECT * FROM range(2) AS a, LATERAL (SELECT a.id + 1)",
    "SELECT /*+ BROADCAST(a) */ SUM(id) OVER (w) FROM range(2) AS a WINDOW w AS (PARTITION BY id ORDER BY id)",
    "SELECT * FROM (SELECT 1 AS k, 2 AS v) PIVOT (MAX(v) FOR k IN (1, 2))",
    "SELECT * FROM (SELECT 1 AS k, 2 AS v) UNPIVOT (x FOR n IN (k, v))",
    "SELECT * FROM (SELECT * FROM range(9)) TABLESAMPLE (1 ROWS)",
    "SELECT DISTINCT id FROM range(3) DISTRIBUTE BY id SORT BY id",
    "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t WHERE n < 4) SELECT * FROM t",
    "FROM range(3) |> WHERE id > 0 |> SELECT id |> LIMIT 1",
]


@pytest.mark.servers
def test_what_tools_ask_is_answered(served: Served) -> None:
    cursor = served.connect().cursor()
    refused = {text: refusal(cursor, text) for text in HARMLESS}
    assert {text: why for text, why in refused.items() if why} == {}


@pytest.mark.servers
def test_there_is_no_way_out_and_nothing_is_written(served: Served, cursor: Any) -> None:
    before = sorted(Path(served.lake.root).rglob("*"))
    answers = {text: refusal(cursor, text.format(lake=served.lake.root)) for text in ESCAPES}
    assert [text for text, why in answers.items() if not why] == []
    # Each for that reason, but for what Spark doesn't know by itself.
    unknown = [text for text, why in answers.items() if "this server only reads" not in why]
    assert unknown == ["SELECT * FROM gold.`/etc/passwd`", "SELECT * FROM gold.cardinal_state", "USE other"]
    assert sorted(Path(served.lake.root).rglob("*")) == before


@pytest.mark.servers
def test_what_needs_more_memory_than_there_is_fails_alone(served: Served, cursor: Any) -> None:
    with pytest.raises(hive.OperationalError, match="OutOfMemoryError"):
        rows(cursor, "SELECT format_string('%2000000000d', id) FROM range(4)")
    assert rows(served.connect().cursor(), "SELECT 1") == [[1]]


@pytest.mark.servers
def test_what_takes_too_long_is_stopped_before_its_rows_and_at_them(tmp_path: Path) -> None:
    why = f"longer than the {FEW_SECONDS} s"
    with server(tmp_path, FEW_SECONDS) as (_, port):
        slow = Served(Lake(str(tmp_path / "lake"), Windows("day", "2015-01-01")), port)
        counting = slow.connect().cursor()
        counting.execute(f"SELECT COUNT(*) FROM range({10**15})", async_=True)
        with pytest.raises(hive.OperationalError, match=why):
            rows(slow.connect().cursor(), f"SELECT * FROM range({10**15}) WHERE id < 0")
        end = time.monotonic() + START_SECONDS
        while (stopped := counting.poll().errorMessage) is None:
            assert time.monotonic() < end
            time.sleep(0.2)
        assert why in stopped
        assert rows(slow.connect().cursor(), "SELECT COUNT(*) FROM range(9)") == [[9]]


@pytest.mark.servers
def test_a_server_whose_spark_ends_says_so_and_ends(tmp_path: Path) -> None:
    with server(tmp_path) as (process, _):
        (spark,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(spark), signal.SIGKILL)
        assert process.wait(60) == 1
        assert process.stderr is not None
        assert "Spark has ended" in process.stderr.read()


@pytest.mark.servers
def test_who_connects_and_says_nothing_keeps_nobody_out_for_long(served: Served) -> None:
    cursor = served.connect().cursor()
    with ExitStack() as silent:
        for _ in range(MOST_CLIENTS):
            silent.enter_context(socket.create_connection((HOST, served.port)))
        with pytest.raises(TTransportException):
            served.connect()
        end = time.monotonic() + 4 * LOGIN_SECONDS
        while (connection := connected(served)) is None:
            assert time.monotonic() < end
            time.sleep(1)
        assert rows(connection.cursor(), "SELECT 1") == [[1]]
    # Who has logged in may think.
    assert rows(cursor, "SELECT 1") == [[1]]


def connected(served: Served) -> Any:
    """A connection, if the server takes one."""
    with suppress(TTransportException):
        return served.connect()
    return None


@pytest.mark.servers
def test_who_connects_chooses_no_settings(served: Served) -> None:
    settings = {
        "set:system:wirehouse.passwords": "/dev/null",
        "set:hivevar:x": "${env:HOME}",
        "set:hiveconf:spark.sql.variable.substitute": "true",
        "spark.sql.variable.substitute": "true",
        "spark.sql.runSQLOnFiles": "true",
    }
    cursor = served.connect(**settings).cursor()
    assert rows(cursor, "SELECT '${env:HOME} ${x} ${system:user.home}'") == [["${env:HOME} ${x} ${system:user.home}"]]
    assert rows(served.connect().cursor(), "SELECT 1") == [[1]]


@pytest.mark.servers
def test_who_leaves_has_no_metastore_made(served: Served) -> None:
    connection = served.connect()
    assert rows(connection.cursor(), "SHOW TABLES IN default") == []
    connection.close()
    # Derby's would have its log there.
    assert {path.name for path in Path(served.lake.root).parent.iterdir()} == {"lake", "passwords", "wirehouse.toml"}


@pytest.mark.parametrize(("name", "password"), [("", "x"), ("a:b", "x"), ("a\nb", "x"), ("a", "")])
def test_names_and_passwords_that_are_none(tmp_path: Path, name: str, password: str) -> None:
    with pytest.raises(PasswordsError, match="be"):
        sql_server.set_password(tmp_path / "passwords", name, password)


def test_passwords_are_kept_as_keys_for_the_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "passwords"
    sql_server.set_password(file, "ann", "secret")
    file.chmod(0o644)
    sql_server.set_password(file, "ann", "other")
    (line,) = file.read_text().splitlines()
    name, rounds, salt, key = line.split(":")
    assert (name, int(rounds), len(salt), len(key)) == ("ann", sql_server.ROUNDS, 32, 64)
    assert file.stat().st_mode & 0o777 == 0o600


def test_the_server_takes_its_own_keys_and_leaves_what_is_not_its_own() -> None:
    environment = {"AWS_ACCESS_KEY_ID": "writer", "WIREHOUSE_SQL_ACCESS_KEY_ID": "reader", "WIREHOUSE_HASH_KEY": "k"}
    environment |= {"WIREHOUSE_POSTGRES_URL": "p", "WIREHOUSE_WEBHOOK": "w", "FEED_PASSWORD": "f"}
    settings = {"security.protocol": "SASL_SSL", "sasl.password": "env:FEED_PASSWORD"}
    live = Source("live", "cardinal", "kafka", "topic", kafka={"settings": settings})
    sql_server.take_own_keys(environment, Lake("lake", Windows("day", "2015-01-01"), (live,)))
    assert environment == {"AWS_ACCESS_KEY_ID": "reader"}
