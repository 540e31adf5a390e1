"""The Spark jars: which ones, and resolving them once into a folder (`python -m wirehouse_pipelines.jars`).

A session that names `spark.jars.packages` asks registries at every start. Instead the Ivy that pyspark carries
resolves the coordinates below at set-up, and sessions put the folder in front of the class path. What Spark's own
wheel already has is left out: an older copy in front of it breaks the session.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from wirehouse_codecs.errors import WirehouseError
from wirehouse_pipelines import java

#: spark-avro follows pyspark's version; the awssdk modules are the ones S3A needs of the 686 MB bundle.
COORDINATES = (
    "io.delta:delta-spark_4.1_2.13:4.4.0",
    "org.apache.spark:spark-avro_2.13:4.1.1",
    "org.apache.hadoop:hadoop-aws:3.4.2",
    *(f"software.amazon.awssdk:{module}:2.29.52" for module in ("s3", "s3-transfer-manager", "sts")),
    *(f"software.amazon.awssdk:{module}:2.29.52" for module in ("apache-client", "netty-nio-client")),
)
#: GROUP:MODULE, `*` for all of a group.
EXCLUDES = (
    "software.amazon.awssdk:bundle",
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "io.netty:*",
    "org.slf4j:*",
    "org.apache.logging.log4j:*",
    "commons-logging:*",
    "commons-codec:*",
    "org.apache.commons:*",
    "org.checkerframework:*",
    "org.apache.parquet:*",
    "com.fasterxml.jackson.core:*",
    "com.fasterxml.jackson.module:*",
    "com.fasterxml.jackson.datatype:*",
    "org.antlr:*",
    "org.scala-lang:*",
    "com.google.code.findbugs:*",
    "org.xerial.snappy:*",
    "org.tukaani:*",
    "org.apache.spark:spark-tags_2.13",
)
STAMP = "resolved"


class JarsError(WirehouseError):
    """The jars are missing or could not be resolved."""

    template = "Spark's jars: {reason}"
    retry_helps = True


def folder() -> Path:
    """Where the jars lie: WIREHOUSE_JARS, else `.jars/jars` beside the four source roots."""
    return Path(os.environ.get("WIREHOUSE_JARS") or Path(__file__).resolve().parents[2] / ".jars" / "jars")


def digest() -> str:
    """Identifies what should be resolved."""
    return hashlib.sha256("\n".join((*COORDINATES, "", *EXCLUDES)).encode()).hexdigest()


def up_to_date(where: Path) -> bool:
    """Whether `where` holds what the lists above ask for."""
    stamp = where / STAMP
    return stamp.exists() and stamp.read_text() == digest()


def resolve(where: Path) -> int:
    """Bring the jars into the folder `where` and return how many there are; does nothing if they are up to date.

    Raises JarsError if Java is missing or a coordinate can't be had.
    """
    if not up_to_date(where):
        where.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="ivy-", dir=where.parent) as ivy:
            _run_ivy(Path(ivy))
            shutil.rmtree(where, ignore_errors=True)
            (Path(ivy) / "jars").rename(where)
        (where / STAMP).write_text(digest())
    return len(list(where.glob("*.jar")))


def _run_ivy(ivy: Path) -> None:
    """Ivy runs inside spark-submit before the program does, so the program is an empty one and no session starts."""
    import pyspark

    found = java.find()
    if found is None or not found.supported:
        raise JarsError(reason=java.trouble())
    program = ivy / "nothing.py"
    program.touch()
    answer = subprocess.run(
        [Path(pyspark.__file__).parent / "bin" / "spark-submit"]
        + ["--master", "local[1]", "--conf", f"spark.jars.ivy={ivy}", "--packages", ",".join(COORDINATES)]
        + ["--exclude-packages", ",".join(EXCLUDES), str(program)],
        env={**os.environ, "JAVA_HOME": str(found.home), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    if answer.returncode:
        log = ivy.parent / "resolve.log"
        log.write_text(answer.stdout + answer.stderr)
        raise JarsError(reason=f"could not be resolved: {log} says why (no network? a mirror is set in ivysettings)")


if __name__ == "__main__":
    try:
        print(f"{resolve(folder())} jars in {folder()}")
    except JarsError as error:
        sys.exit(str(error))
