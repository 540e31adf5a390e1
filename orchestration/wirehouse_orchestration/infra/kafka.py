"""A Kafka broker: one node, broker and controller in one."""

from __future__ import annotations

import base64
import subprocess
import uuid
from pathlib import Path
from typing import Final

import pyspark

from wirehouse_orchestration.infra.server import Command, InfraError, Server, Settings, java_program
from wirehouse_orchestration.servers.ports import HOST, free_port, listens
from wirehouse_pipelines.spark.jars import Jars

JARS: Final = Jars(("org.apache.kafka:kafka_2.13:4.1.0", "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3"))
#: One node has no other to copy to.
_ALONE: Final = {
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
}


def _install(where: Path) -> None:
    JARS.resolve(where)


def _choose() -> Settings:
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    broker, controller = f"{HOST}:{free_port()}", f"{HOST}:{free_port()}"
    return {"KAFKA_BOOTSTRAP_SERVERS": broker, "_CONTROLLER": controller, "_CLUSTER": cluster}


def _commands(installed: Path, folder: Path, settings: Settings) -> list[Command]:
    broker, controller = settings["KAFKA_BOOTSTRAP_SERVERS"], settings["_CONTROLLER"]
    properties = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{controller}",
        "listeners": f"PLAINTEXT://{broker},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{broker}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": folder / "topics",
        **_ALONE,
    }
    file = folder / "server.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    # What Spark's wheel has, Ivy leaves out.
    scala = next((Path(pyspark.__file__).parent / "jars").glob("scala-library-*.jar"))
    java = [java_program(), "-Xmx512m", "-cp", f"{installed}/*:{scala}"]
    formatting = [*java, "kafka.tools.StorageTool", "format", "--ignore-formatted"]
    # One argument, as an id may begin with a hyphen.
    formatting += [f"--cluster-id={settings['_CLUSTER']}", "--config", str(file)]
    formatted = subprocess.run(formatting, capture_output=True, text=True)
    if formatted.returncode:
        raise InfraError(name="kafka", reason=f"its folder could not be formatted: {formatted.stderr.strip()}")
    return [Command([*java, "kafka.Kafka", str(file)])]


def _answers(settings: Settings) -> bool:
    return listens(int(settings["KAFKA_BOOTSTRAP_SERVERS"].rpartition(":")[2]))


SERVER: Final = Server("kafka", "message broker, Kafka 4.1.0", _install, _choose, _commands, _answers)
