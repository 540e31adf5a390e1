"""The jars that Spark sessions need. `python -m wirehouse_pipelines.spark.jars` downloads them into a folder (set-up).

With `spark.jars.packages`, a session would query registries at every start. Instead, set-up resolves the coordinates
below once, with the Ivy that pyspark includes, and sessions put the folder in front of the class path. Jars that
pyspark already has are excluded: older copies in front of them would break the session.

Wirehouse's few Java classes (Delta's log store for S3, the secured Thrift server) are compiled
with the Janino that Spark includes, so a Java runtime without a compiler is enough.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from wirehouse_codecs.core.errors import WirehouseError
from wirehouse_pipelines.spark import java

#: spark-avro must have pyspark's version; it is for users who read landed objects, and for benchmarks. The awssdk
#: modules are those that S3A needs from the 686 MB bundle.
_COORDINATES: Final = (
    "io.delta:delta-spark_4.1_2.13:4.4.0",
    "org.apache.spark:spark-avro_2.13:4.1.1",
    "org.apache.hadoop:hadoop-aws:3.4.2",
    *(f"software.amazon.awssdk:{module}:2.29.52" for module in ("s3", "s3-transfer-manager", "sts")),
    *(f"software.amazon.awssdk:{module}:2.29.52" for module in ("apache-client", "netty-nio-client")),
)
#: GROUP:MODULE, `*` for all of a group.
_EXCLUDES: Final = (
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
STAMP: Final = "resolved"
#: The sources of Wirehouse's own classes.
_OURS: Final = tuple(sorted(Path(__file__).parent.glob("*/*.java")))
#: The jar that they are compiled into.
OUR_JAR: Final = "wirehouse.jar"


class JarsError(WirehouseError):
    """The jars are missing or could not be resolved."""

    template = "Java jars: {reason}"
    retry_helps = True


@dataclass(frozen=True, slots=True)
class Jars:
    """A set of jars for one folder."""

    coordinates: tuple[str, ...]
    #: GROUP:MODULE, `*` for all of a group.
    excludes: tuple[str, ...] = ()
    #: Sources of classes to compile against them.
    sources: tuple[Path, ...] = ()

    def digest(self) -> str:
        """A digest of all that this set declares."""
        sources = (source.read_text() for source in self.sources)
        text = "\n".join((*self.coordinates, "", *self.excludes, "", *sources))
        return hashlib.sha256(text.encode()).hexdigest()

    def up_to_date(self, where: Path) -> bool:
        """Whether the folder `where` has this set."""
        stamp = where / STAMP
        return stamp.exists() and stamp.read_text() == self.digest()

    def resolve(self, where: Path) -> int:
        """Download the jars into the folder `where`, if they aren't up to date; the number of jars there.

        Raises JarsError if Java is missing or a coordinate can't be resolved.
        """
        if not self.up_to_date(where):
            where.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix="ivy-", dir=where.parent) as ivy:
                self._run_ivy(Path(ivy))
                if self.sources:
                    _compile(self.sources, Path(ivy) / "jars" / OUR_JAR)
                shutil.rmtree(where, ignore_errors=True)
                (Path(ivy) / "jars").rename(where)
            (where / STAMP).write_text(self.digest())
        return len(list(where.glob("*.jar")))

    def _run_ivy(self, ivy: Path) -> None:
        """Run Ivy through spark-submit, which resolves packages before it runs a program (here an empty one)."""
        import pyspark

        found = java.find()
        if found is None or not found.supported:
            raise JarsError(reason=java.trouble(found))
        program = ivy / "nothing.py"
        program.touch()
        answer = subprocess.run(
            [Path(pyspark.__file__).parent / "bin" / "spark-submit"]
            + ["--master", "local[1]", "--conf", f"spark.jars.ivy={ivy}", "--packages", ",".join(self.coordinates)]
            + (["--exclude-packages", ",".join(self.excludes)] if self.excludes else [])
            + [str(program)],
            env={**os.environ, "JAVA_HOME": str(found.home), "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
        )
        if answer.returncode:
            log = ivy.parent / "resolve.log"
            log.write_text(answer.stdout + answer.stderr)
            raise JarsError(reason=f"could not be resolved: see {log} (no network? a mirror is set in ivysettings)")


SPARK: Final = Jars(_COORDINATES, _EXCLUDES, _OURS)


def folder() -> Path:
    """The folder of Spark's jars: WIREHOUSE_JARS, else `.jars/jars` beside the four source roots."""
    return Path(os.environ.get("WIREHOUSE_JARS") or Path(__file__).resolve().parents[3] / ".jars" / "jars")


def class_archive() -> Path:
    """The JVM's class data archive, if set-up could create it: a JVM starts in half the time with it."""
    return folder() / "classes.jsa"


def _compile(sources: Sequence[Path], jar: Path) -> None:
    """Compile classes into `jar`, against the jars beside it and Spark's own. Starts a JVM, but no Spark session."""
    import pyspark
    from pyspark.java_gateway import launch_gateway

    found = java.find()
    settings = {"PYSPARK_SUBMIT_ARGS": "--driver-memory 256m pyspark-shell"} | (
        {"JAVA_HOME": str(found.home)} if found else {}
    )
    with tempfile.TemporaryDirectory() as classes, _environment(settings):
        gateway = launch_gateway()  # type: ignore[no-untyped-call]
        try:
            jvm = gateway.jvm
            known = [*jar.parent.glob("*.jar"), *(Path(pyspark.__file__).parent / "jars").glob("*.jar")]
            compiler = jvm.org.codehaus.janino.Compiler()
            compiler.setClassPath(_files(gateway, known))
            compiler.setDestinationDirectory(jvm.java.io.File(classes), False)
            compiler.compile(_files(gateway, sources))
        finally:
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait()
        with zipfile.ZipFile(jar, "w") as archive:
            for compiled in Path(classes).rglob("*.class"):
                archive.write(compiled, compiled.relative_to(classes))


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within the block: pyspark takes options for its JVM only from there."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _files(gateway: Any, paths: Sequence[Path]) -> Any:
    array = gateway.new_array(gateway.jvm.java.io.File, len(paths))
    for i, path in enumerate(paths):
        array[i] = gateway.jvm.java.io.File(str(path))
    return array


if __name__ == "__main__":
    try:
        print(f"{SPARK.resolve(folder())} jars in {folder()}")
    except JarsError as error:
        sys.exit(str(error))
