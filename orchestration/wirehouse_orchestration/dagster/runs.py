"""Runs started from the command line: executed in this process, through Dagster, and seen in its UI like any other.

Bronze is a run of its own; behind it each protocol has one, and several go on at once in one Spark session: what takes
the time of small windows is planning, which one core does.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any

import dagster as dg
import sqlalchemy.orm  # noqa: F401  (Dagster and Great Expectations would each import it in a thread of their own)
from dagster._core.execution.execute_in_process_result import ExecuteInProcessResult

from wirehouse_codecs.core.errors import UsageError
from wirehouse_expectations.suites import load_library
from wirehouse_orchestration.dagster import instance as instances
from wirehouse_orchestration.dagster.assembly import assemble
from wirehouse_orchestration.dagster.asset_pages import asset_key
from wirehouse_orchestration.dagster.defs.automation import COMPUTES_TAG, GOING_ON, spans
from wirehouse_orchestration.dagster.defs.upkeep import FREED, UPKEEP
from wirehouse_orchestration.dagster.factories import checks_name, shown_outputs, step_name, window_tags
from wirehouse_orchestration.dagster.resources import stop_jobs
from wirehouse_orchestration.terminal.render import terminal
from wirehouse_pipelines.jobs import runner
from wirehouse_pipelines.jobs.job import BRONZE, Job
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.windows import WindowNameError

Progress = Callable[[str], None]
#: After an interrupt Spark's jobs are stopped so often, until the runs that wait for them have ended.
STOP_SECONDS = 0.5


class BeforeStartError(WindowNameError):
    """A window before the lake's first one was asked for."""

    template = "window {window} lies before the lake's first window {start}: ask for a later one"


def materialize(
    lake: Lake,
    names: Sequence[str],
    first: str,
    last: str,
    *,
    force: bool = False,
    progress: Progress | None = None,
    verbose: bool = False,
) -> bool:
    """Bring windows `first` to `last` of jobs `names` up to date and check their tables; False if a job or an
    invariant failed.

    Windows near one another are one run, of bronze and then of each protocol that has data there. `force` computes
    windows that are not stale too. `progress` takes a line a step, standard error one for each step that failed;
    `verbose` shows Dagster's own log as well. Raises WindowNameError or BeforeStartError.
    """
    for window in (first, last):
        if lake.windows.parse(window) < lake.windows.parse(lake.windows.start):
            raise BeforeStartError(window=window, start=lake.windows.start)
    say = progress or logging.getLogger("wirehouse").info
    chosen: dict[str, list[Job]] = {}
    for name, job in runner.all_jobs().items():
        if name in names:
            chosen.setdefault(job.pool, []).append(job)
    with instances.shared_instance(lake) as instance:
        for run_id in instances.end_abandoned_runs(instance):
            say(f"run {run_id} had been killed: marked as failed")
        definitions = assemble(lake, say)
        threading.Thread(target=load_library, daemon=True).start()
        run = _Run(instance, definitions, lake, force, say, verbose)
        bronze = chosen.pop(BRONZE, [])
        # All of them: what failed in some windows says nothing against the next.
        before = runner.stale(lake) if bronze else {}
        failed = [(span, run(bronze, *span)) for span in _spans(lake, bronze, first, last, before)]
        stopped = threading.Event()

        def follow(those: Sequence[Job], spans: Sequence[_Span]) -> bool:
            done = [
                not stopped.is_set() and not _waits(those, span, failed) and not run(those, *span) for span in spans
            ]
            return all(done)

        # Once for all: no protocol makes windows of another stale.
        stale = runner.stale(lake) if chosen else {}
        following = [(those, _spans(lake, those, first, last, stale)) for those in chosen.values()]
        done = _beside([partial(follow, those, spans) for those, spans in following], stopped)
        return all(done) and not any(names for _, names in failed)


class OthersRunError(UsageError):
    """What has to be alone with the lake isn't."""

    template = "run {run_id} works on this lake: wait until it is done, or stop it in `wirehouse ui`"


def check_alone(lake: Lake) -> None:
    """Raise OthersRunError if a run is going on."""
    with instances.shared_instance(lake) as instance:
        instances.end_abandoned_runs(instance)
        for run in instance.get_runs(dg.RunsFilter(statuses=list(GOING_ON)), limit=1):
            raise OthersRunError(run_id=run.run_id)


def erase_told(lake: Lake, text: str) -> int:
    """Remove from Dagster's history what tells of `text`; how many rows of it that were."""
    with instances.shared_instance(lake) as instance:
        return instances.erase(instance, text)


@dataclass(frozen=True, slots=True)
class Kept:
    """What an upkeep did."""

    #: No part of it failed.
    done: bool
    #: By table or source its part, and what was freed, as `upkeep.Freed` has it.
    freed: list[dict[str, Any]]


def keep_up(lake: Lake, *, progress: Progress, verbose: bool = False) -> Kept:
    """Do the upkeep of the lake, in the pools of those who write its tables."""
    with instances.shared_instance(lake) as instance:
        instances.end_abandoned_runs(instance)
        result = (
            assemble(lake, progress)
            .resolve_job_def(UPKEEP)
            .execute_in_process(instance=instance, run_config=_quiet(verbose), raise_on_error=False)
        )
    for line in _failures(result):
        print(f"failed: {terminal(line)}", file=sys.stderr)
    return Kept(result.success, list(_freed(result)))


def _freed(result: ExecuteInProcessResult) -> Iterator[dict[str, Any]]:
    for event in result.filter_events(lambda event: event.is_step_materialization):
        told = event.materialization.metadata.get(FREED)
        if event.asset_key and isinstance(told, dg.TableMetadataValue):
            yield from ({"part": event.asset_key.path[-1], **record.data} for record in told.records)


def _quiet(verbose: bool) -> dict[str, Any]:
    """Dagster's own log is shown to who wants it."""
    return {"loggers": {"console": {"config": {"log_level": "DEBUG" if verbose else "CRITICAL"}}}}


def _beside(calls: Sequence[Callable[[], bool]], stopped: threading.Event) -> list[bool]:
    """What the calls give, as many at once as there are cores. An interrupt sets `stopped`, and stops Spark's jobs."""
    with ThreadPoolExecutor(os.cpu_count()) as together:
        futures = [together.submit(call) for call in calls]
        try:
            return [future.result() for future in futures]
        except BaseException:
            stopped.set()
            together.shutdown(wait=False, cancel_futures=True)
            while wait(futures, timeout=STOP_SECONDS).not_done:
                stop_jobs()
            raise


_Span = tuple[str, str]


def _spans(
    lake: Lake, chosen: Sequence[Job], first: str, last: str, stale: Mapping[str, Collection[str]]
) -> list[_Span]:
    """The windows of `chosen`, jobs of one pool, that have data or are `stale`."""
    if not chosen:
        return []
    windows = set(runner.data_windows(lake, chosen[0].protocol)).union(*(stale.get(job.name, ()) for job in chosen))
    return spans(lake, (window for window in windows if first <= window <= last))


def _waits(chosen: Sequence[Job], span: _Span, failed: Sequence[tuple[_Span, set[str]]]) -> bool:
    """Whether what failed was to give these jobs their rows."""
    reads = {name for job in chosen for name in job.reads}
    return any(names & reads and begin <= span[1] and span[0] <= end for (begin, end), names in failed)


@dataclass(frozen=True, slots=True)
class _Run:
    """Executes jobs for a span of windows."""

    instance: dg.DagsterInstance
    definitions: dg.Definitions
    lake: Lake
    force: bool
    say: Progress
    verbose: bool

    def __call__(self, chosen: Sequence[Job], first: str, last: str) -> set[str]:
        """Run the jobs and their checks; the names of those of which something failed."""
        keys = [asset_key(table.name) for job in chosen for table in shown_outputs(job)]
        whole = self.definitions.get_repository_def().get_implicit_job_def_for_assets(keys)
        assert whole is not None, f"no one job has all assets of {chosen}"
        self._say_if_others_write({job.pool for job in chosen})
        result = whole.execute_in_process(
            instance=self.instance,
            asset_selection=keys,
            tags=window_tags(first, last) | {COMPUTES_TAG: self.lake.root},
            run_config={
                "ops": {step_name(job): {"config": {"force": self.force}} for job in chosen},
                **_quiet(self.verbose),
            },
            raise_on_error=False,
        )
        for line in _failures(result):
            print(f"failed: {terminal(line)}", file=sys.stderr)
        if result.success:
            return set()
        steps = {event.step_key for event in result.filter_events(lambda event: event.is_step_failure)}
        named = {job.name for job in chosen if {step_name(job), checks_name(job)} & steps}
        return named or {job.name for job in chosen}

    def _say_if_others_write(self, pools: set[str]) -> None:
        for pool, info in self.instance.event_log_storage.get_concurrency_infos(sorted(pools)).items():
            for run_id in info.active_run_ids:
                self.say(f"run {run_id} is writing tables of {pool}: waiting until it is done")


def _failures(result: ExecuteInProcessResult) -> list[str]:
    """A line for each step that failed, with the cause that a person can act on."""
    lines = []
    for event in result.filter_events(lambda event: event.is_step_failure):
        failure = event.step_failure_data
        if failure.user_failure_data and failure.user_failure_data.description:
            text = failure.user_failure_data.description
        else:
            error = failure.error
            while error and error.cause:
                error = error.cause
            text = error.message.strip().splitlines()[0] if error else "failed"
        lines.append(f"{event.step_key}: {text}")
    return lines
