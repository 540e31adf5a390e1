"""Jobs on a real Spark cluster over a lake in a bucket; workers are sent all that they need: one machine's rows."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import small_lake
from tests.support.running import assert_same_rows, land
from wirehouse_orchestration import config
from wirehouse_orchestration.infra import server
from wirehouse_orchestration.infra import spark as infra_spark
from wirehouse_pipelines.lake import spark_options
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.spark import worker_archive

pytestmark = [pytest.mark.spark, pytest.mark.servers]

RUN = "from wirehouse_orchestration.cli import command as cli; cli.main()"
WORKED = f"work/*/*/{worker_archive.ENVIRONMENT}/bin/python"


@pytest.fixture
def cluster(store: dict[str, str]) -> Iterator[dict[str, str]]:
    """A master and two workers that know no store; the variables by which they are used."""
    with pytest.MonkeyPatch.context() as patch:
        for name in store:
            patch.delenv(name, raising=False)
        server.up(("spark",), lambda text: None)
    yield server.environment()
    server.down(("spark",), lambda text: None)


def test_a_cluster_gives_the_rows_of_one_machine(
    local_lake: Lake, cluster: dict[str, str], in_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = f'[spark]\nmaster = "{cluster["SPARK_MASTER"]}"\n[spark.settings]\n"spark.executor.memory" = "1200m"'
    file = small_lake.configure(tmp_path, further=named)
    monkeypatch.setenv(config.ROOT_VARIABLE, in_bucket)
    lake = config.load(file)
    assert lake.root == in_bucket
    land(lake)
    known = set((server.run_folder() / "spark").glob(WORKED))
    environment = {name: value for name, value in os.environ.items() if name not in spark_options.MASTER_VARIABLES}
    environment |= {"SPARK_LOCAL_IP": cluster["SPARK_LOCAL_IP"], "WIREHOUSE_HASH_KEY": small_lake.HASH_KEY}
    command = [sys.executable, "-c", RUN, "--config", str(file), "run"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    executors = {place.parts[-4:-3] for place in set((server.run_folder() / "spark").glob(WORKED)) - known}
    assert len(executors) >= infra_spark.WORKERS, "not by both workers"
    assert_same_rows(local_lake, lake)
