"""Executes runs of the command line in this process, through Dagster. The UI shows them like any other run.

Bronze is a run of its own. After it each protocol has a run, and several of them execute at once in one Spark session:
small windows spend most of their time on query planning, which uses only one core.
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
from wirehouse_pipelines.jobs.planning import Planner
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.windows import WindowNameError

Progress = Callable[[str], None]
#: After an interrupt, Spark's jobs are cancelled at this interval until the runs that wait for them have ended.
STOP_SECONDS = 0.5


class BeforeStartError(WindowNameError):
    """A window before the lake's first one was requested."""

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
    known: Planner | None = None,
) -> bool:
    """Bring windows `first` to `last` of jobs `names` up to date and check their tables.

    Nearby windows share a run: first of bronze, then of each protocol that has data there. `force` also computes
    windows that aren't stale. `progress` receives a line per step; each failed step is reported on standard error, and
    `verbose` adds Dagster's log. `known` is the planning, if the caller planned. Returns False if a job or an invariant
    failed. Raises WindowNameError or BeforeStartError.
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
        known = known or runner.planner(lake)
        definitions = assemble(lake, say, known)
        threading.Thread(target=load_library, daemon=True).start()
        run = _Run(instance, definitions, lake, force, say, verbose)
        bronze = chosen.pop(BRONZE, [])
        # All windows are run: a failure in one doesn't affect the next.
        before = known.stale() if bronze else {}
        failed = [(span, run(bronze, *span)) for span in _spans(known, bronze, first, last, before)]
        stopped = threading.Event()

        def follow(those: Sequence[Job], spans: Sequence[_Span]) -> bool:
            done = [
                not stopped.is_set() and not _waits(those, span, failed) and not run(those, *span) for span in spans
            ]
            return all(done)

        # Computed once for all protocols, because none makes windows of another stale.
        stale = known.stale() if chosen else {}
        following = [(those, _spans(known, those, first, last, stale)) for those in chosen.values()]
        done = _beside([partial(follow, those, spans) for those, spans in following], stopped)
        return all(done) and not any(names for _, names in failed)


class OthersRunError(UsageError):
    """A run is in progress, and the request must be alone with the lake."""

    template = "run {run_id} works on this lake: wait until it is done, or stop it in `wirehouse ui`"


def check_alone(lake: Lake) -> None:
    """Raise OthersRunError if a run is in progress."""
    with instances.shared_instance(lake) as instance:
        instances.end_abandoned_runs(instance)
        for run in instance.get_runs(dg.RunsFilter(statuses=list(GOING_ON)), limit=1):
            raise OthersRunError(run_id=run.run_id)


def erase_mentions(lake: Lake, text: str) -> int:
    """Remove everything that contains `text` from Dagster's history. Returns the number of rows changed."""
    with instances.shared_instance(lake) as instance:
        return instances.erase(instance, text)


@dataclass(frozen=True, slots=True)
class Kept:
    """The result of an upkeep."""

    #: Whether all parts succeeded.
    done: bool
    #: For each table or source, the part it belongs to and the fields of `upkeep.Freed`.
    freed: list[dict[str, Any]]


def keep_up(lake: Lake, *, progress: Progress, verbose: bool = False) -> Kept:
    """Do the upkeep of the lake, in the concurrency pools of its tables."""
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
        freed = event.materialization.metadata.get(FREED)
        if event.asset_key and isinstance(freed, dg.TableMetadataValue):
            yield from ({"part": event.asset_key.path[-1], **record.data} for record in freed.records)


def _quiet(verbose: bool) -> dict[str, Any]:
    """Run configuration that shows Dagster's own log only if `verbose`."""
    return {"loggers": {"console": {"config": {"log_level": "DEBUG" if verbose else "CRITICAL"}}}}


def _beside(calls: Sequence[Callable[[], bool]], stopped: threading.Event) -> list[bool]:
    """The results of the calls, run in a thread per core. An interrupt sets `stopped` and cancels Spark's jobs."""
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
    known: Planner, chosen: Sequence[Job], first: str, last: str, stale: Mapping[str, Collection[str]]
) -> list[_Span]:
    """The windows of `chosen`, jobs of one pool, that have data or are `stale`."""
    if not chosen:
        return []
    windows = set(known.data_windows(chosen[0].protocol)).union(*(stale.get(job.name, ()) for job in chosen))
    return spans(known.lake, (window for window in windows if first <= window <= last))


def _waits(chosen: Sequence[Job], span: _Span, failed: Sequence[tuple[_Span, set[str]]]) -> bool:
    """Whether a failed job should have provided the input of these jobs."""
    reads = {name for job in chosen for name in job.reads}
    return any(names & reads and begin <= span[1] and span[0] <= end for (begin, end), names in failed)


@dataclass(frozen=True, slots=True)
class _Run:
    """Executes jobs for a range of windows."""

    instance: dg.DagsterInstance
    definitions: dg.Definitions
    lake: Lake
    force: bool
    say: Progress
    verbose: bool

    def __call__(self, chosen: Sequence[Job], first: str, last: str) -> set[str]:
        """Run the jobs and their checks. Returns the names of the jobs that failed, or whose checks did."""
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
    """A line for each failed step, with a cause that a person can act on."""
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
