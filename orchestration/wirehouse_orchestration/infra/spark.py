"""A Spark cluster: a master and two workers, from the wheel that is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyspark

from wirehouse_orchestration.infra.server import Command, Server, Settings, java_program
from wirehouse_orchestration.servers.ports import HOST, free_port, listens

WORKERS: Final = 2
_DEPLOY: Final = "org.apache.spark.deploy"
#: The Scala version of Spark's wheel; without it workers look for the folder in which Spark was built.
_SCALA: Final = "2.13"
#: Files that drivers sent are deleted an hour after their end.
_CLEAN_UP: Final = ("enabled=true", "interval=300", "appDataTtl=3600")


def _install(where: Path) -> None:
    where.mkdir(parents=True, exist_ok=True)


def _choose() -> Settings:
    # A driver listens there as well.
    return {"SPARK_MASTER": f"spark://{HOST}:{free_port()}", "SPARK_LOCAL_IP": HOST}


def _commands(installed: Path, folder: Path, settings: Settings) -> list[Command]:
    home = Path(pyspark.__file__).parent
    java = [java_program(), "-Xmx512m", "-cp", f"{home}/jars/*"]
    java += [f"-Dspark.worker.cleanup.{setting}" for setting in _CLEAN_UP]
    environment = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": HOST, "SPARK_SCALA_VERSION": _SCALA}
    address = settings["SPARK_MASTER"].removeprefix("spark://")
    host, _, port = address.partition(":")
    master = [f"{_DEPLOY}.master.Master", "--host", host, "--port", port, "--webui-port", "0"]
    worker = [f"{_DEPLOY}.worker.Worker", settings["SPARK_MASTER"], "--host", host, "--webui-port", "0"]
    worker += ["--cores", "1", "--memory", "1500m", "--work-dir", str(folder / "work")]
    return [Command([*java, *arguments], environment) for arguments in (master, *[worker] * WORKERS)]


def _answers(settings: Settings) -> bool:
    return listens(int(settings["SPARK_MASTER"].rpartition(":")[2]))


SERVER: Final = Server("spark", "Spark cluster, a master and two workers", _install, _choose, _commands, _answers)
