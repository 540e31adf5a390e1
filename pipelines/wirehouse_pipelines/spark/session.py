"""The Spark session: embedded in this process by default, on a cluster if configured.

`session()` starts it. Jars come from the folder that set-up has filled; nothing is downloaded at run time.
"""

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
#: The variable with the name of the Kubernetes pod that this process runs in, if any.
POD_VARIABLE: Final = "WIREHOUSE_POD_NAME"
#: Java options for short runs. The optimising compiler is off: in a minute it costs more than it saves. Then Java would
#: reserve only 48 MB for compiled code, which a run of many plans fills, and compilation would stop.
SHORT_RUN = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC"

SETTINGS = OURS | {
    "spark.sql.shuffle.partitions": "4",
    # Partitions get one size: the adaptive planner coalesces small ones and splits large ones.
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    # One megabyte of a shuffle may be 20,000 rows for Python.
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "4m",
    "spark.sql.files.maxPartitionBytes": "64m",
    "spark.sql.parquet.compression.codec": "zstd",
    # Each task holds a decoded batch, and a row may have 4 MiB, so batches have few rows. Small rows are read as fast.
    "spark.sql.parquet.columnarReaderBatchSize": "32",
    # For frames that jobs keep on disk between their tables.
    "spark.rdd.compress": "true",
    "spark.sql.maxConcurrentOutputFileWriters": "32",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    # Fewer rows if messages are large: folds hold a batch as Python objects, and the JVM copies it twice.
    "spark.sql.execution.arrow.maxBytesPerBatch": "4194304",
    "spark.python.daemon.module": "wirehouse_pipelines.spark.workers",
    # Some kinds of task ignore this setting and would otherwise start a second daemon.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    # Otherwise the writer sorts all rows by partition, although it can keep one file per partition open.
    "spark.sql.optimizer.plannedWrite.enabled": "false",
}
#: The JVM and the workers keep memory that they free: the next batch needs as much, and the system would clear new
#: memory first. A worker that is idle for a minute is stopped anyway.
MEMORY: Final = {
    "MIMALLOC_PURGE_DELAY": "-1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}
#: A session in one process must not be reachable from other machines: whoever reaches it can run any code in it.
ALONE = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}

#: The environment variables with a store's keys, and S3A's names for them.
KEYS: Final = {
    "AWS_ACCESS_KEY_ID": "fs.s3a.access.key",
    "AWS_SECRET_ACCESS_KEY": "fs.s3a.secret.key",
    "AWS_SESSION_TOKEN": "fs.s3a.session.token",
}


class JarsMissingError(WirehouseError):
    """The folder of Spark's additional jars is empty."""

    template = "no Spark jars in {folder}: run `make setup`"


class StartError(WirehouseError):
    """The JVM did not start."""

    template = "Spark did not start ({reason}): `wirehouse doctor` reports what is missing on this machine"
    retry_helps = True


@contextmanager
def _quiet_start() -> Iterator[None]:
    """Discard what the JVM prints to stderr; if it doesn't start, raise StartError with the last line of it.

    The JVM inherits the file descriptor, so this holds for its whole life. Later errors are raised as exceptions.
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
    """On Kubernetes: settings that make the driver's pod own the executors, so that they end with it in any case."""
    pod = os.environ.get(POD_VARIABLE)
    return {"spark.kubernetes.driver.pod.name": pod} if pod and master.startswith("k8s://") else {}


def _object_store() -> dict[str, str]:
    """Settings by which S3A, and boto3 in workers, reach the store as boto3 does here. For keys see `lend_keys`."""
    settings = {f"spark.hadoop.{name}": value for name, value in retry_policy.of_s3a().items()}
    if endpoint := store_endpoint():
        settings |= {"spark.hadoop.fs.s3a.endpoint": endpoint, "spark.hadoop.fs.s3a.path.style.access": "true"}
        settings["spark.executorEnv.AWS_ENDPOINT_URL"] = endpoint
    if region := os.environ.get("AWS_REGION", os.environ.get("AWS_DEFAULT_REGION")):
        settings["spark.hadoop.fs.s3a.endpoint.region"] = settings["spark.executorEnv.AWS_REGION"] = region
    return settings


def lend_keys(session: SparkSession) -> None:
    """Give tasks this process's keys of the store, whatever environment their worker was started with.

    The keys are sent with tasks and aren't settings, because Spark's UI and logs show a session's settings.
    """
    context = session.sparkContext
    keys = {name: os.environ[name] for name in KEYS if os.environ.get(name)}
    context.environment |= keys
    for name, value in keys.items():
        context._jsc.hadoopConfiguration().set(KEYS[name], value)


def _class_archive() -> str:
    """JVM options to load classes from the archive. An archive that the JVM can't use is silently ignored."""
    archive = jars.class_archive()
    return f'"-XX:SharedArchiveFile={archive}" -Xlog:disable' if archive.exists() else ""


def archive_classes(run: Callable[[SparkSession], None]) -> None:
    """Create the class data archive with the classes that `run` loads, in a new session of this process.

    The process must not have a session yet. A Java without an archive of its own classes can't create one; then none is
    created.
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
    """The session of this process, if it has one. `SparkSession.getActiveSession` is per thread, so it isn't used."""
    return SparkSession._instantiatedSession


def session(
    name: str = "wirehouse", options: SparkOptions = EMBEDDED, more: Mapping[str, str] = MappingProxyType({})
) -> SparkSession:
    """The session of this process, started on first use with SETTINGS and the settings of `options` and `more`.

    Environment variables: WIREHOUSE_JARS is the folder of jars; WIREHOUSE_SPARK_MASTER or SPARK_MASTER override the
    master of `options`; WIREHOUSE_DRIVER_MEMORY is the memory of the JVM (default 3g); WIREHOUSE_JAVA_OPTIONS are
    further options for it; WIREHOUSE_POD_NAME is the Kubernetes pod of the driver.
    """
    folder = jars.folder()
    if not any(folder.glob("*.jar")):
        raise JarsMissingError(folder=folder)
    master = options.asked_master
    ship = options.ship and not master.startswith("local")
    # Otherwise workers use python3 from the PATH, which doesn't have our packages.
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
