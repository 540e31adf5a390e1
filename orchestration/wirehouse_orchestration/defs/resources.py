"""What a run holds while it lasts: its place among the living runs, and one Spark session."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import dagster as dg
from pyspark.sql import SparkSession

from wirehouse_orchestration import instance

Progress = Callable[[str], None]


class RunSession:
    """The Spark session of a run, started when a step first needs it, and where the run tells how it goes.

    It is not stopped with the run: a run's process ends with it, and a process with several runs keeps it warm.
    """

    def __init__(self, say: Progress) -> None:
        self.say = say
        self._spark: SparkSession | None = None

    @property
    def spark(self) -> SparkSession:
        """The session; starts a JVM on first use."""
        if self._spark is None:
            from wirehouse_pipelines.spark import session

            if SparkSession.getActiveSession() is None:
                self.say("starting Spark")
            self._spark = session()
        return self._spark

    @property
    def started(self) -> SparkSession | None:
        """The session, if one was needed."""
        return self._spark


@dg.resource(description="One Spark session per run")
def run_session(context: dg.InitResourceContext) -> Iterator[RunSession]:
    """The session of a run that says how it goes in its log."""
    yield from _session(context, None)


def _session(context: dg.InitResourceContext, progress: Progress | None) -> Iterator[RunSession]:
    say = progress or (context.log or logging.getLogger("wirehouse")).info
    if context.instance is None or context.run_id is None or context.instance.is_ephemeral:
        yield RunSession(say)
        return
    with instance.held(context.instance, context.run_id):
        yield RunSession(say)


def definitions(progress: Progress | None = None) -> dg.Definitions:
    """The resource `session`, one per run. `progress` takes what a run says, else its log does."""
    if progress is None:
        return dg.Definitions(resources={"session": run_session})

    @dg.resource(description="One Spark session per run")
    def session(context: dg.InitResourceContext) -> Iterator[RunSession]:
        yield from _session(context, progress)

    return dg.Definitions(resources={"session": session})
