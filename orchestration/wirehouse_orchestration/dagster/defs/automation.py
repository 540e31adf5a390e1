"""Sensors and the schedule, which land and compute automatically while the daemon runs.

- `new_captures` lands files that appear at a source's path, once they no longer change, and new records of brokers.
- `stale_windows` requests runs for stale windows, the first ones first. Landing makes windows stale; so do changed
  options, a new release, or a recomputed earlier window.
- `newest_window` does the same every hour, also for windows whose last run failed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import dagster as dg
from dagster import DagsterRunStatus, RunsFilter

from wirehouse_codecs.core.errors import WirehouseError
from wirehouse_orchestration.dagster.asset_pages import asset_key
from wirehouse_orchestration.dagster.factories import landing_key, shown_outputs, window_tags
from wirehouse_pipelines.jobs import runner
from wirehouse_pipelines.jobs.planning import Planner
from wirehouse_pipelines.lake.lake import KAFKA, Lake, Source
from wirehouse_pipelines.landing import landing
from wirehouse_pipelines.landing.capture_files import SETTLE_SECONDS, captures_at
from wirehouse_pipelines.landing.manifests import manifests

LAND, COMPUTE = "land_captures", "compute_windows"
#: Marks every run that computes windows, whoever started it; its value is the lake's root.
COMPUTES_TAG = "wirehouse/computes"
#: Maximum number of windows without data inside a run. Each costs an event per table; another run costs seconds.
LARGEST_GAP = 14
SENSOR_SECONDS = 15
HOURLY = "7 * * * *"
GOING_ON = (
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
)


def spans(lake: Lake, windows: Iterable[str]) -> list[tuple[str, str]]:
    """The runs for `windows`, as first and last window, in order. Nearby windows share a run."""
    found: list[tuple[str, str]] = []
    for window in sorted(windows):
        if found and window <= lake.windows.after(found[-1][1], LARGEST_GAP):
            found[-1] = (found[-1][0], window)
        else:
            found.append((window, window))
    return found


def settled_files(lake: Lake, source: Source) -> list[tuple[str, tuple[int | str, ...]]]:
    """Name and identity of what can be landed: files unchanged for SETTLE_SECONDS, and ranges of new records."""
    if source.kind == KAFKA:
        known = [manifest.offsets for manifest in manifests(lake, source.name) if manifest.offsets]
        new = landing.source_broker(source).new(known, landing.starts(lake, source))
        # The start of a partition must be stored before it has records. Landing reports errors of the broker too.
        ranges = [*(due.range for due in new.due), *new.starts]
        if new.failures and not ranges:
            raise new.failures[0]
        return [(one.name, (one.capture_id,)) for one in ranges]
    found, unseen = [], landing.unseen(lake, source)
    for file in captures_at(source, source.path, lake.root):
        try:
            facts = file.facts()
            if file.settled(SETTLE_SECONDS) and unseen(file, facts):
                found.append((file.name, facts.identity))
        except FileNotFoundError:
            continue
    return found


def _digest(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _new_captures(lake: Lake) -> dg.SensorDefinition:
    """The sensor that lands new captures. Its cursor has, for each source, a digest of the files last requested.

    Files landed by the command line aren't requested again when the daemon starts, because landing remembers them.
    """

    @dg.sensor(
        job_name=LAND,
        minimum_interval_seconds=SENSOR_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Lands what appears in a source's place, once its size and time stood still for 10 s.",
    )
    def new_captures(context: dg.SensorEvaluationContext) -> list[dg.RunRequest] | dg.SkipReason:
        seen: dict[str, str] = json.loads(context.cursor or "{}")
        requests, trouble = [], []
        for source in lake.sources:
            try:
                files = settled_files(lake, source)
            except (WirehouseError, OSError) as error:
                trouble.append(str(error))
                continue
            digest = _digest(files)
            if files and seen.get(source.name) != digest:
                seen[source.name] = digest
                key = landing_key(source.name)
                requests.append(dg.RunRequest(f"{source.name}:{digest}", asset_selection=[key]))
        for line in trouble if requests else ():
            context.log.warning(line)
        context.update_cursor(json.dumps(seen, sort_keys=True))
        return requests or dg.SkipReason("; ".join(["No source has new captures", *trouble]))

    return new_captures


def _selection(names: Iterable[str]) -> list[dg.AssetKey]:
    return [asset_key(table.name) for name in names for table in shown_outputs(runner.all_jobs()[name])]


def _requests(lake: Lake, run_key: str | None = None) -> list[dg.RunRequest] | dg.SkipReason:
    """A run request for each range of windows that are due, the first ones first. A failed run doesn't stop others."""
    known = runner.planner(lake)
    due = known.due()
    found = spans(lake, set().union(*due.values()))
    if not found:
        return dg.SkipReason("All windows are up to date")
    return [_request(known, due, first, last, run_key) for first, last in found]


def _request(known: Planner, due: Mapping[str, set[str]], first: str, last: str, run_key: str | None) -> dg.RunRequest:
    names = [name for name, windows in due.items() if any(first <= window <= last for window in windows)]
    if run_key is None:
        captures = [m.capture_id for m in known.landed() if any(first <= window <= last for window in m.windows)]
        committed = known.committed_at_ns(last)
        run_key = _digest([first, last, names, sorted(captures), committed])
    return dg.RunRequest(
        f"{first}:{last}:{run_key}",
        asset_selection=_selection(names),
        tags=window_tags(first, last) | {COMPUTES_TAG: known.lake.root},
    )


def _going_on(instance: dg.DagsterInstance) -> dg.SkipReason | None:
    runs = instance.get_runs(RunsFilter(statuses=list(GOING_ON)), limit=50)
    ids = [run.run_id for run in runs if COMPUTES_TAG in run.tags]
    return dg.SkipReason(f"Run {ids[0]} is computing windows") if ids else None


def _stale_windows(lake: Lake) -> dg.SensorDefinition:
    @dg.sensor(
        job_name=COMPUTE,
        minimum_interval_seconds=SENSOR_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Asks for the windows that landing touched or that are stale for another reason, first ones first. "
        "What it asked for and failed is asked for again when something changed.",
    )
    def stale_windows(context: dg.SensorEvaluationContext) -> list[dg.RunRequest] | dg.SkipReason:
        return _going_on(context.instance) or _requests(lake)

    return stale_windows


def _newest_window(lake: Lake) -> dg.ScheduleDefinition:
    @dg.schedule(
        job_name=COMPUTE,
        cron_schedule=HOURLY,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Every hour: what is stale, up to the newest window, also what failed before.",
    )
    def newest_window(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest] | dg.SkipReason:
        return _going_on(context.instance) or _requests(lake, context.scheduled_execution_time.isoformat())

    return newest_window


def definitions(lake: Lake) -> dg.Definitions:
    """Jobs, sensors and the schedule; without sources there is nothing to watch."""
    compute = dg.define_asset_job(
        COMPUTE, dg.AssetSelection.assets(*_selection(runner.all_jobs())), tags={COMPUTES_TAG: lake.root}
    )
    if not lake.sources:
        return dg.Definitions(jobs=[compute])
    land = dg.define_asset_job(LAND, dg.AssetSelection.assets(*(landing_key(source.name) for source in lake.sources)))
    return dg.Definitions(
        jobs=[land, compute], sensors=[_new_captures(lake), _stale_windows(lake)], schedules=[_newest_window(lake)]
    )
