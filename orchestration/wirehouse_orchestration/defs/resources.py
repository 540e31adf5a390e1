"""What a run holds while it lasts: its place among the living runs, and one Spark session."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import dagster as dg
from pyspark.sql import SparkSession

from wirehouse_codecs.errors import WirehouseError
from wirehouse_orchestration import instance

Progress = Callable[[str], None]
#: Landed records up to which a run is small.
SMALL_RECORDS = 500_000
#: A small run is over before optimised code pays: compiling it took most of the time of two cores (seen: gold of
#: 85,000 messages 124 s of CPU time, with these settings 56 s).
_SMALL_JVM = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC"
_WHOLE_STAGE = "spark.sql.codegen.wholeStage"
_JVM_OPTIONS = "JAVA_TOOL_OPTIONS"
_STANDARD_ERROR = 2


class SparkStartError(WirehouseError):
    """The JVM did not come up."""

    template = "Spark did not start: {reason}. What it said is in {log}; `wirehouse doctor` says what is missing"


class RunSession:
    """The Spark session of a run, started when a step first needs it, and where the run tells how it goes.

    It is not stopped with the run: a run's process ends with it, and a process with several runs keeps it warm.
    """

    def __init__(self, say: Progress, log: Path | None = None) -> None:
        self.say = say
        self._log = log
        self._spark: SparkSession | None = None

    def spark(self, records: int) -> SparkSession:
        """The session, set for work on so many landed records.

        Starts a JVM on first use, whose own words go to the log if there is one.
        """
        small = records <= SMALL_RECORDS
        if self._spark is None:
            self._spark = SparkSession.getActiveSession() or self._start(small)
        self._spark.conf.set(_WHOLE_STAGE, str(not small).lower())
        return self._spark

    def _start(self, small: bool) -> SparkSession:
        from wirehouse_pipelines.spark import session

        self.say("starting Spark")
        try:
            with _errors_to(self._log) if self._log else nullcontext(), _jvm_options(_SMALL_JVM if small else ""):
                return session()
        except RuntimeError as error:
            raise SparkStartError(reason=error, log=self._log or "the run's output") from error

    @property
    def started(self) -> SparkSession | None:
        """The session, if one was needed."""
        return self._spark


@contextmanager
def _jvm_options(options: str) -> Iterator[None]:
    """A JVM started inside takes `options`, but rather those that the environment has for it."""
    before = os.environ.get(_JVM_OPTIONS)
    os.environ[_JVM_OPTIONS] = f"{options} {before or ''}".strip()
    try:
        yield
    finally:
        del os.environ[_JVM_OPTIONS]
        if before is not None:
            os.environ[_JVM_OPTIONS] = before


@contextmanager
def _errors_to(log: Path) -> Iterator[None]:
    """A process started inside writes its standard error to `log`, for as long as it lives."""
    kept = os.dup(_STANDARD_ERROR)
    try:
        with log.open("ab") as stream:
            os.dup2(stream.fileno(), _STANDARD_ERROR)
        yield
    finally:
        os.dup2(kept, _STANDARD_ERROR)
        os.close(kept)


@dg.resource(description="One Spark session per run")
def run_session(context: dg.InitResourceContext) -> Iterator[RunSession]:
    """The session of a run that says in its own log how it goes."""
    yield from _session(context, (context.log or logging.getLogger("wirehouse")).info, None)


def _session(context: dg.InitResourceContext, say: Progress, log: Path | None) -> Iterator[RunSession]:
    if context.instance is None or context.run_id is None or context.instance.is_ephemeral:
        yield RunSession(say, log)
        return
    with instance.held(context.instance, context.run_id):
        yield RunSession(say, log)


def definitions(progress: Progress | None = None, log: Path | None = None) -> dg.Definitions:
    """The resource `session`, one per run. `progress` takes what a run says, `log` what Spark says."""
    if progress is None:
        return dg.Definitions(resources={"session": run_session})

    @dg.resource(description="One Spark session per run")
    def session(context: dg.InitResourceContext) -> Iterator[RunSession]:
        yield from _session(context, progress, log)

    return dg.Definitions(resources={"session": session})
