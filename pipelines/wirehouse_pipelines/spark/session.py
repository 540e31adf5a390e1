"""The Spark session: embedded by default, jars from a folder that set-up filled, nothing fetched at run time."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final

from pyspark.sql import SparkSession

from wirehouse_codecs.core.errors import WirehouseError
from wirehouse_pipelines.lake.spark_options import EMBEDDED, OURS, SparkOptions
from wirehouse_pipelines.spark import jars, worker_archive
from wirehouse_pipelines.storage import retry_policy
from wirehouse_pipelines.storage.storage import store_endpoint

JAVA_OPTIONS: Final = "WIREHOUSE_JAVA_OPTIONS"
#: The name of the pod that this process runs in, if it is one of Kubernetes.
POD_VARIABLE: Final = "WIREHOUSE_POD_NAME"
#: Java options for short runs: the optimising compiler costs more than it saves in a minute.
#: Without it Java keeps 48 MB for code, which a run of many plans fills; then nothing is compiled any more.
SHORT_RUN = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC"

SETTINGS = OURS | {
    "spark.sql.shuffle.partitions": "4",
    # One size for all: small frames are coalesced, large ones split by the adaptive planner.
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    # A megabyte of a shuffle may be 20,000 rows for Python.
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "4m",
    "spark.sql.files.maxPartitionBytes": "64m",
    "spark.sql.parquet.compression.codec": "zstd",
    # A batch is held decoded by each task: of pieces of 4 MiB no more. Of small rows it takes no longer.
    "spark.sql.parquet.columnarReaderBatchSize": "32",
    # What jobs keep on disk between their tables.
    "spark.rdd.compress": "true",
    "spark.sql.maxConcurrentOutputFileWriters": "32",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    # Of large messages fewer: a batch is held as Python objects where order matters, and the JVM copies it twice.
    "spark.sql.execution.arrow.maxBytesPerBatch": "4194304",
    "spark.python.daemon.module": "wirehouse_pipelines.spark.workers",
    # Some kinds of task know nothing of it, and had a daemon of their own.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    # The writer would sort all rows by their partition, though it can keep a file of each open.
    "spark.sql.optimizer.plannedWrite.enabled": "false",
}
#: The JVM, and workers with Arrow in them, keep what they free: the next batch needs as much, and what the system gives
#: it clears first. A worker that has nothing to do for a minute is stopped.
MEMORY: Final = {
    "MIMALLOC_PURGE_DELAY": "-1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}
#: Of a session that is one process nobody else is to reach it: whoever does can make it run what they like.
ALONE = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}

#: The variables with a store's keys, and what S3A calls them.
KEYS: Final = {
    "AWS_ACCESS_KEY_ID": "fs.s3a.access.key",
    "AWS_SECRET_ACCESS_KEY": "fs.s3a.secret.key",
    "AWS_SESSION_TOKEN": "fs.s3a.session.token",
}


class JarsMissingError(WirehouseError):
    """The jars that Spark needs besides its own are not where they should be."""

    template = "no Spark jars in {folder}: run `make setup`"


class StartError(WirehouseError):
    """The JVM did not come up."""

    template = "Spark did not start ({reason}): `wirehouse doctor` says what is missing on this machine"
    retry_helps = True


@contextmanager
def _quiet_start() -> Iterator[None]:
    """What the JVM itself prints to stderr goes nowhere; if it doesn't come up, its last line is the reason.

    The JVM inherits the descriptor, so this holds for its whole life: what goes wrong later comes as exceptions.
    """
    with tempfile.TemporaryFile() as printed:
        ours = os.dup(2)
        sys.stderr.flush()
        os.dup2(printed.fileno(), 2)
        try:
            yield
        except Exception as error:
            printed.seek(0)
            lines = printed.read().decode(errors="replace").splitlines()
            raise StartError(reason=next((line for line in reversed(lines) if line.strip()), str(error))) from error
        finally:
            os.dup2(ours, 2)
            os.close(ours)


def _in_pod(master: str) -> dict[str, str]:
    """On Kubernetes executors belong to the pod of their driver: they end with it, however it ends."""
    pod = os.environ.get(POD_VARIABLE)
    return {"spark.kubernetes.driver.pod.name": pod} if pod and master.startswith("k8s://") else {}


def _object_store() -> dict[str, str]:
    """How S3A and boto3 in workers reach the store: as boto3 does here. Keys are none of it: see `lend_keys`."""
    settings = {f"spark.hadoop.{name}": value for name, value in retry_policy.of_s3a().items()}
    if endpoint := store_endpoint():
        settings |= {"spark.hadoop.fs.s3a.endpoint": endpoint, "spark.hadoop.fs.s3a.path.style.access": "true"}
        settings["spark.executorEnv.AWS_ENDPOINT_URL"] = endpoint
    if region := os.environ.get("AWS_REGION", os.environ.get("AWS_DEFAULT_REGION")):
        settings["spark.hadoop.fs.s3a.endpoint.region"] = settings["spark.executorEnv.AWS_REGION"] = region
    return settings


def lend_keys(session: SparkSession) -> None:
    """Let tasks have the store's keys of this process, whatever their worker was started with.

    They go along with tasks: settings of a session are shown by Spark's UI and written to its logs.
    """
    context = session.sparkContext
    keys = {name: os.environ[name] for name in KEYS if os.environ.get(name)}
    context.environment |= keys
    for name, value in keys.items():
        context._jsc.hadoopConfiguration().set(KEYS[name], value)


def _class_archive() -> str:
    """The options by which the JVM takes its classes from an archive; one that it can't use is left alone silently."""
    archive = jars.class_archive()
    return f'"-XX:SharedArchiveFile={archive}" -Xlog:disable' if archive.exists() else ""


def archive_classes(run: Callable[[SparkSession], None]) -> None:
    """Make the archive of classes: those which `run` loads in a session of its own. The process has none before it.

    A Java that has no archive of its own classes can't make one: then there is none.
    """
    archive = jars.class_archive()
    archive.unlink(missing_ok=True)
    new = archive.with_suffix(".new")
    os.environ[JAVA_OPTIONS] = f'{SHORT_RUN} "-XX:ArchiveClassesAtExit={new}" -Xlog:disable'
    spark = session()
    run(spark)
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    if new.exists():
        new.rename(archive)


def running() -> SparkSession | None:
    """The session of this process, if it has one; `SparkSession.getActiveSession` knows that of its own thread."""
    return SparkSession._instantiatedSession


def session(
    name: str = "wirehouse", options: SparkOptions = EMBEDDED, more: Mapping[str, str] = MappingProxyType({})
) -> SparkSession:
    """The session of this process, started on first use with SETTINGS, those of `options` and `more`.

    WIREHOUSE_JARS names another folder of jars, WIREHOUSE_SPARK_MASTER or SPARK_MASTER another master than `options`,
    WIREHOUSE_DRIVER_MEMORY another size of the JVM (default 3g), WIREHOUSE_JAVA_OPTIONS further options of it,
    WIREHOUSE_POD_NAME the pod on Kubernetes that executors end with.
    """
    folder = jars.folder()
    if not any(folder.glob("*.jar")):
        raise JarsMissingError(folder=folder)
    master = options.asked_master
    ship = options.ship and not master.startswith("local")
    # Workers are the PATH's python3 otherwise, which knows none of our packages.
    os.environ["PYSPARK_PYTHON"] = worker_archive.python() if ship else sys.executable
    for setting, value in MEMORY.items():
        os.environ.setdefault(setting, value)
    builder = SparkSession.Builder().appName(name).master(master)
    settings = SETTINGS | {
        **(ALONE if master.startswith("local") else {}),
        "spark.driver.memory": os.environ.get("WIREHOUSE_DRIVER_MEMORY", "3g"),
        "spark.driver.extraJavaOptions": f"{_class_archive()} {os.environ.get(JAVA_OPTIONS, '')}",
        "spark.driver.extraClassPath": f"{folder}/*",
        **{f"spark.executorEnv.{name}": os.environ[name] for name in MEMORY},
        **(worker_archive.settings() if ship else {"spark.executor.extraClassPath": f"{folder}/*"}),
        **_object_store(),
        **_in_pod(master),
        **options.settings,
        **more,
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    if running() is not None:
        return builder.getOrCreate()
    with _quiet_start():
        started = builder.getOrCreate()
    if not master.startswith("local"):
        lend_keys(started)
    return started
