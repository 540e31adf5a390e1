"""An object store that speaks S3: S3Proxy over a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from wirehouse_orchestration.infra.server import Command, Server, Settings, java_program, new_secret
from wirehouse_orchestration.servers.ports import HOST, free_port
from wirehouse_pipelines.spark.jars import Jars
from wirehouse_pipelines.storage.storage import write_private

JARS: Final = Jars(("org.gaul:s3proxy:4.1.0",))
BUCKET: Final = "wirehouse"
#: Without it, each request logs many lines.
_LOGBACK: Final = """\
<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %p %m%n</pattern></encoder>
  </appender>
  <root level="warn"><appender-ref ref="out"/></root>
</configuration>
"""


def _install(where: Path) -> None:
    JARS.resolve(where)


def choose() -> Settings:
    """Where a store listens, and its keys."""
    return {
        "WIREHOUSE_ROOT": f"s3://{BUCKET}/lake",
        "AWS_ENDPOINT_URL": f"http://{HOST}:{free_port()}",
        "AWS_ACCESS_KEY_ID": new_secret(),
        "AWS_SECRET_ACCESS_KEY": new_secret(),
        "AWS_REGION": "us-east-1",
    }


def _commands(installed: Path, folder: Path, settings: Settings) -> list[Command]:
    objects = folder / "objects"
    (objects / BUCKET).mkdir(parents=True, exist_ok=True)
    properties = {
        "s3proxy.endpoint": settings["AWS_ENDPOINT_URL"],
        "s3proxy.authorization": "aws-v2-or-v4",
        "s3proxy.identity": settings["AWS_ACCESS_KEY_ID"],
        "s3proxy.credential": settings["AWS_SECRET_ACCESS_KEY"],
        "jclouds.provider": "filesystem",
        "jclouds.filesystem.basedir": str(objects),
    }
    file = folder / "s3proxy.properties"
    write_private(file, "".join(f"{key}={value}\n" for key, value in properties.items()))
    (folder / "logback.xml").write_text(_LOGBACK)
    options = ["-Xmx512m", f"-Dlogback.configurationFile={folder / 'logback.xml'}", "-cp", f"{installed}/*"]
    return [Command([java_program(), *options, "org.gaul.s3proxy.Main", "--properties", str(file)])]


def answers(settings: Settings) -> bool:
    """Whether a store has the bucket."""
    client = boto3.session.Session().client(
        "s3",
        endpoint_url=settings["AWS_ENDPOINT_URL"],
        aws_access_key_id=settings["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=settings["AWS_SECRET_ACCESS_KEY"],
        region_name=settings["AWS_REGION"],
        config=Config(retries={"max_attempts": 1}, connect_timeout=2, read_timeout=5),
    )
    try:
        client.head_bucket(Bucket=urlsplit(settings["WIREHOUSE_ROOT"]).netloc)
    except (BotoCoreError, ClientError):
        return False
    return True


SERVER: Final = Server("store", "object store, S3Proxy 4.1.0 (S3)", _install, choose, _commands, answers)
