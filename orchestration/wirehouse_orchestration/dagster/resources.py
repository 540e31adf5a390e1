"""The resources of a run: its lock, which shows that it is alive, and one Spark session."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import dagster as dg
from pyspark.sql import SparkSession

from wirehouse_orchestration.dagster import instance
from wirehouse_pipelines.jobs import runner
from wirehouse_pipelines.jobs.planning import Planner
from wirehouse_pipelines.lake.lake import Lake

Progress = Callable[[str], None]
#: Runs with at most this many landed records are small. They end before whole-stage code generation pays off (seen:
#: gold of 85,000 messages took 124 s of CPU time, 70 of them compiling).
SMALL_RECORDS = 500_000
_WHOLE_STAGE = "spark.sql.codegen.wholeStage"
#: Runs of one process share a session.
_one_at_a_time = threading.Lock()


class RunSession:
    """The Spark session of a run, started when a step first needs it; and `say`, which reports the run's progress.

    The session isn't stopped with the run. Usually the process ends too, and a process with several runs reuses it.
    """

    def __init__(self, say: Progress, known: Planner) -> None:
        self.say = say
        #: The planning of the run.
        self.known = known
        self._options = known.lake.spark
        self._spark: SparkSession | None = None

    def spark(self, records: int) -> SparkSession:
        """The session, configured for work on `records` landed records. Starts a JVM on first use."""
        small = records <= SMALL_RECORDS
        with _one_at_a_time:
            if self._spark is None:
                self._spark = _running() or self._start(small)
        self._spark.conf.set(_WHOLE_STAGE, str(not small).lower())
        return self._spark

    def _start(self, small: bool) -> SparkSession:
        from wirehouse_pipelines.spark import session as spark

        self.say("starting Spark")
        with _default(spark.JAVA_OPTIONS, spark.SHORT_RUN) if small else nullcontext():
            return spark.session(options=self._options)

    @property
    def started(self) -> SparkSession | None:
        """The session; None if no step needed one."""
        return self._spark


def _running() -> SparkSession | None:
    from wirehouse_pipelines.spark import session as spark

    return spark.running()


def stop_jobs() -> None:
    """Cancel all Spark jobs of this process, if Spark was started."""
    session = _running()
    if session is not None:
        session.sparkContext.cancelAllJobs()


@contextmanager
def _default(variable: str, value: str) -> Iterator[None]:
    """Set environment variable `variable` to `value` inside the block, unless it is set already."""
    if variable in os.environ:
        yield
        return
    os.environ[variable] = value
    try:
        yield
    finally:
        del os.environ[variable]


def definitions(lake: Lake, progress: Progress | None = None, known: Planner | None = None) -> dg.Definitions:
    """The resource `session`, one per run. `progress` receives its progress lines; by default the run's log does.

    `known` is the planning that several runs of this process share.
    """

    @dg.resource(description="One Spark session per run")
    def session(context: dg.InitResourceContext) -> Iterator[RunSession]:
        say = progress or (context.log or logging.getLogger("wirehouse")).info
        own = RunSession(say, known or runner.planner(lake))
        if context.instance is None or context.run_id is None or context.instance.is_ephemeral:
            yield own
            return
        with instance.held(context.instance, context.run_id):
            yield own

    return dg.Definitions(resources={"session": session})
