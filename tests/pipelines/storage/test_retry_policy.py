"""A store that takes connections and never answers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from wirehouse_orchestration.servers.ports import HOST
from wirehouse_pipelines.delta import delta_tables
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.landing.landing import land
from wirehouse_pipelines.storage import object_storage, retry_policy
from wirehouse_pipelines.storage.storage import StorageError

#: By itself, with these times, all is over in a few seconds.
PROCESS_SECONDS = 600


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The store of the environment is one that never answers: the connections that it took."""
    accepted: list[Any] = []
    with socket.create_server((HOST, 0), backlog=100) as server:

        def accept() -> None:
            while True:
                try:
                    accepted.append(server.accept())
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{HOST}:{server.getsockname()[1]}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
            monkeypatch.setenv(name, "none")
        monkeypatch.setattr(retry_policy, "ANSWER_SECONDS", 1)
        monkeypatch.setattr(retry_policy, "ATTEMPTS", 2)
        yield accepted
        server.shutdown(socket.SHUT_RDWR)
    assert accepted
    for connection, _ in accepted:
        connection.close()


@pytest.mark.usefixtures("silent")
def test_landing_ends_and_says_so() -> None:
    with pytest.raises(StorageError, match=r"can't be reached .* check the network and AWS_ENDPOINT_URL"):
        land(Lake("s3://bucket/lake", Windows("day", "2015-01-01")), Source("net", "cardinal", "messages", __file__))


@pytest.mark.usefixtures("silent")
def test_tables_end_and_say_so() -> None:
    with pytest.raises(StorageError, match=r"^s3a://bucket/t: the store can't be reached .*AWS_ENDPOINT_URL$") as said:
        delta_tables.opened("s3a://bucket/t")
    assert str(said.value).isprintable()
    assert "↳" not in str(said.value)


def test_an_object_that_stops_in_the_middle_is_not_asked_for_again_and_again_by_two(
    silent: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = object_storage.S3Storage("s3://bucket/lake")
    monkeypatch.setattr(object_storage, "_PAUSES", (0, 0, 0))
    with pytest.raises(StorageError, match="can't be reached"):
        storage.read_range("a", 0, 10)
    # Each of the pauses would have as many again.
    assert len(silent) < 2 * retry_policy.ATTEMPTS


_SPARK = """
    import json
    from py4j.protocol import Py4JJavaError
    from wirehouse_orchestration.dagster import factories
    from wirehouse_pipelines.storage import retry_policy as patience
    from wirehouse_pipelines.spark import session as spark

    patience.ANSWER_SECONDS = patience._LEAST_OF_S3A = patience.S3A_RETRIES = 1
    session = spark.session()
    jvm = session._jvm
    jvm.org.apache.hadoop.fs.s3a.impl.AWSClientConfig.setMinimumOperationDuration(jvm.java.time.Duration.ofSeconds(1))
    try:
        with factories.translated_errors():
            session.read.parquet("s3a://bucket/t").count()
    except Exception as error:
        print(json.dumps({"said": str(error.description)}))
"""


@pytest.mark.spark
@pytest.mark.usefixtures("silent")
def test_spark_ends_and_says_so() -> None:
    command = [sys.executable, "-c", textwrap.dedent(_SPARK)]
    done = subprocess.run(command, env={**os.environ}, capture_output=True, text=True, timeout=PROCESS_SECONDS)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert (
        "the store can't be reached (java.net.SocketTimeoutException: getFileStatus on s3a://bucket" in answer["said"]
    )
