"""Secrets stand in the environment alone: none in what commands say, in a file, in a command line or in Spark's UI."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from wirehouse_orchestration.infra import server
from wirehouse_orchestration.servers.ports import free_port
from wirehouse_pipelines.storage.storage import open_storage

pytestmark = pytest.mark.servers
VECTORS = Path(__file__).parents[1] / "vectors"
#: What every person on the machine may read of a server of ours: nothing.
PRIVATE = 0o077

_CONFIG = """
[lakehouse]
root = "unused"

[[source]]
name = "chain"
protocol = "cardinal"
kind = "messages"
path = "{captures}"

[[source]]
name = "live"
protocol = "cardinal"
kind = "kafka"
path = "topic"

[source.kafka.settings]
"bootstrap.servers" = "127.0.0.1:{port}"
"security.protocol" = "SASL_PLAINTEXT"
"sasl.mechanism" = "PLAIN"
"sasl.username" = "feed"
"sasl.password" = "env:FEED_PASSWORD"
"""


@dataclass
class Place:
    """A lake in a bucket, and the secrets that stand in its commands' environment."""

    folder: Path
    root: str
    secrets: dict[str, str]

    def run(self, *command: str) -> str:
        """What a command says, whatever becomes of it."""
        environment = {**os.environ, **self.secrets, "WIREHOUSE_ROOT": self.root}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=self.folder)
        return done.stdout + done.stderr

    def wirehouse(self, *arguments: str) -> str:
        program = "from wirehouse_orchestration.cli.command import main; main()"
        return self.run(sys.executable, "-c", program, "--verbose", *arguments)


@pytest.fixture
def place(tmp_path: Path, store: dict[str, str], in_bucket: str) -> Place:
    captures = VECTORS / "cardinal" / "a_linear" / "messages.jsonl"
    (tmp_path / "wirehouse.toml").write_text(_CONFIG.format(captures=captures, port=free_port()))
    secrets = {
        "AWS_SECRET_ACCESS_KEY": store["AWS_SECRET_ACCESS_KEY"],
        "WIREHOUSE_HASH_KEY": "the-key-of-hashes-4711",
        "FEED_PASSWORD": "the-password-of-the-feed-0815",
    }
    return Place(tmp_path, in_bucket, secrets)


def forms(secret: str) -> Iterator[bytes]:
    yield secret.encode()
    yield base64.b64encode(secret.encode()).rstrip(b"=")
    yield secret.encode().hex().encode()


def told(secrets: Iterable[str], where: Iterable[tuple[str, bytes]]) -> list[str]:
    """Where a secret stands, in any of its forms."""
    listed = [form for secret in secrets for form in forms(secret)]
    return [name for name, data in where if any(form in data for form in listed)]


def files(*folders: Path) -> Iterator[tuple[str, bytes]]:
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file():
                yield str(path), path.read_bytes()


def command_lines() -> Iterator[tuple[str, bytes]]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield str(path), path.read_bytes()
        except OSError:
            continue


def test_no_secret_is_said_or_written(place: Place) -> None:
    said = place.wirehouse("land") + place.wirehouse("doctor")
    assert "chain: messages.jsonl: landed" in said
    assert "source 'live'" in said
    storage = open_storage(place.root)
    objects = []
    for stored in storage.list(""):
        with storage.open(stored.name) as stream:
            objects.append((stored.name, stream.read()))
    assert objects
    run = server.run_folder()
    logs = [(path.name, path.read_bytes()) for path in run.glob("*.log")]
    assert told(place.secrets.values(), [("said", said.encode()), *objects, *logs, *command_lines()]) == []
    assert told(place.secrets.values(), files(place.folder)) == []
    # The servers' own keys lie in files that only their owner may read.
    own = [path for path in (run / "store").iterdir() if path.is_file()]
    kept = told(place.secrets.values(), ((str(path), path.read_bytes()) for path in [*own, run / "env"]))
    assert len(kept) > 2
    assert [name for name in kept if Path(name).stat().st_mode & PRIVATE] == []


_SHOWN = """
    import json, urllib.request
    from wirehouse_orchestration import config
    from wirehouse_pipelines.jobs import runner as jobs
    from wirehouse_pipelines.spark import session as spark
    from wirehouse_pipelines.landing.landing import land

    spark.SETTINGS |= {"spark.ui.enabled": "true", "spark.ui.port": "0", "spark.driver.host": "127.0.0.1"}
    lake = config.load("wirehouse.toml")
    land(lake, lake.source("chain"))
    session = spark.session()
    spark.lend_keys(session)
    windows = jobs.data_windows(lake)
    rows = jobs.run_job(session, lake, "bronze.messages", windows[0], windows[-1]).rows
    at, which = session.sparkContext.uiWebUrl, session.sparkContext.applicationId
    pages = ["environment/", "jobs/", "SQL/", "executors/", f"api/v1/applications/{which}/environment"]
    shown = {page: urllib.request.urlopen(f"{at}/{page}").read().decode() for page in pages}
    settings = {key: value for key, value in session.sparkContext.getConf().getAll()}
    print(json.dumps({"rows": rows, "shown": shown, "settings": settings}))
"""


@pytest.mark.spark
def test_no_secret_is_in_sparks_ui_or_settings(place: Place) -> None:
    said = place.run(sys.executable, "-c", textwrap.dedent(_SHOWN))
    answer = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    assert answer["rows"]["bronze.messages"] > 0
    assert "fs.s3a.endpoint" in answer["shown"]["environment/"]
    assert told(place.secrets.values(), [("said", said.encode())]) == []
