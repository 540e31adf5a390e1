"""A lake in a bucket of a real object store: the same rows as in a folder, and no commit lost."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.support import small_lake
from tests.support.running import assert_same_rows, land, run, select
from wirehouse_orchestration import config
from wirehouse_pipelines.jobs import forgetting, runner, upkeep
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.protocols import PROTOCOLS
from wirehouse_pipelines.landing.manifests import manifests
from wirehouse_pipelines.storage.storage import open_storage

pytestmark = [pytest.mark.spark, pytest.mark.servers]

MESSAGES = "bronze.messages"
#: Versions of a table's log that two drivers want to write.
VERSIONS = 60
#: Commits of each of two drivers to one table.
COMMITS = 6


@pytest.fixture
def on_store(spark: Any, store: dict[str, str]) -> Iterator[Any]:
    """The session, told of the store: it was started before there was one."""
    settings = spark._jsc.hadoopConfiguration()
    for name, value in {
        "endpoint": store["AWS_ENDPOINT_URL"],
        "endpoint.region": store["AWS_REGION"],
        "path.style.access": "true",
        "access.key": store["AWS_ACCESS_KEY_ID"],
        "secret.key": store["AWS_SECRET_ACCESS_KEY"],
    }.items():
        settings.set(f"fs.s3a.{name}", value)
    # And its workers, which were started likewise.
    with patch.dict(spark.sparkContext.environment, {name: store[name] for name in store if name.startswith("AWS_")}):
        yield spark


@pytest.mark.parametrize("root", ["{folder}/a b#c+d;é=ü&'~@,!$:x", "{bucket}/a b+c;é=ü&'~@,!$:x"])
def test_roots_may_have_any_letters_that_are_not_refused(
    local_lake: Lake, on_store: Any, in_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str
) -> None:
    monkeypatch.setenv("WIREHOUSE_HASH_KEY", small_lake.HASH_KEY)
    monkeypatch.setenv(config.ROOT_VARIABLE, root.format(folder=tmp_path, bucket=in_bucket))
    lake = config.load(small_lake.configure(tmp_path, "cardinal"))
    land(lake)
    run(on_store, lake)
    assert_same_rows(local_lake, lake, of=["cardinal"])
    layers = {stored.name.partition("/")[0] for stored in open_storage(lake.root).list("")}
    assert layers >= {"landing", "bronze", "silver", "gold", "ledger"}


def test_a_bucket_holds_the_rows_of_a_folder_for_every_protocol(
    local_lake: Lake, on_store: Any, in_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WIREHOUSE_HASH_KEY", small_lake.HASH_KEY)
    monkeypatch.setenv(config.ROOT_VARIABLE, in_bucket)
    bucket = config.load(small_lake.configure(tmp_path))
    assert bucket.root == in_bucket
    land(bucket)
    run(on_store, bucket)
    assert len(manifests(bucket)) == len(manifests(local_lake)) == len(PROTOCOLS)
    assert_same_rows(local_lake, bucket)
    for name in PROTOCOLS:
        assert select(bucket, f"SELECT COUNT(*) AS n FROM silver.{name}_messages")[0]["n"] > 0
    # Again nothing is due, and what is computed once more is the same.
    run(on_store, bucket)
    windows = runner.data_windows(bucket)
    runner.run_job(on_store, bucket, MESSAGES, windows[0], windows[-1], force=True)
    # Upkeep changes no row; of what was replaced nothing stays.
    assert [freed.name for freed in upkeep.keep_tables(bucket, (MESSAGES,), lambda line: None)] == [MESSAGES]
    freed = upkeep.purge(bucket, MESSAGES)
    assert freed is not None
    assert freed.freed_bytes > 0
    assert_same_rows(local_lake, bucket)
    last = bucket.sources[-1].name
    without = Lake(bucket.root, bucket.windows, bucket.sources[:-1])
    assert forgetting.gone(without) == [last]
    forgetting.forget(without, last)
    assert forgetting.gone(without) == []


_DRIVER = f"""
    import json, sys
    from pyspark.sql import functions as F
    from wirehouse_pipelines.spark import session as embedded

    me, place = sys.argv[1:]
    session = embedded.session(me)
    jvm, settings = session._jvm, session._jsc.hadoopConfiguration()
    log = jvm.wirehouse.ConditionalLogStore(settings)
    print("ready", flush=True)
    sys.stdin.readline()
    won = []
    for version in range({VERSIONS}):
        path = jvm.org.apache.hadoop.fs.Path(f"{{place}}/race/_delta_log/{{version:020d}}.json")
        lines = jvm.java.util.ArrayList()
        lines.add(me)
        try:
            log.write(path, lines.iterator(), False, settings)
            won.append(version)
        except Exception as error:
            assert "FileAlreadyExistsException" in str(error), error
    for number in range({COMMITS}):
        rows = session.range(10).select(F.lit(me).alias("who"), F.lit(number).alias("number"), "id")
        rows.write.format("delta").mode("append").save(f"{{place}}/appended")
    print(json.dumps(won), flush=True)
"""


def test_of_two_drivers_no_commit_is_lost(on_store: Any, in_bucket: str) -> None:
    place = in_bucket.replace("s3://", "s3a://")
    begun = on_store.sql("SELECT '' AS who, 0 AS number, CAST(0 AS BIGINT) AS id").limit(0)
    begun.write.format("delta").save(f"{place}/appended")
    command = [sys.executable, "-c", textwrap.dedent(_DRIVER)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    drivers = [subprocess.Popen([*command, name, place], **pipes) for name in ("one", "two")]
    for driver in drivers:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "ready\n"
    for driver in drivers:
        assert driver.stdin is not None
        driver.stdin.write("\n")
        driver.stdin.flush()
    won = [json.loads(driver.communicate()[0]) for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0, 0]
    assert Counter(won[0] + won[1]) == dict.fromkeys(range(VERSIONS), 1)
    written = on_store.read.format("delta").load(f"{place}/appended").groupBy("who", "number").count()
    assert {tuple(row) for row in written.collect()} == {
        (name, number, 10) for name in ("one", "two") for number in range(COMMITS)
    }
