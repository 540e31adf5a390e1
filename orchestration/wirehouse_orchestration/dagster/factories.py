"""Creates Dagster assets and checks from jobs and table definitions, in the same way for every protocol.

A job becomes one multi-asset, with an asset for each of its physical tables, and one multi-check. For each table, the
latter has a check per rule severity (rules broken by the data, WARN) and one of our own invariants (ERROR, blocking).
A view becomes an asset without a job: it is never materialised, but the graph shows it with its columns and lineage.
"""

# Dagster reads the types of the functions below, so annotations are not put off here.
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import dagster as dg
from dagster import AssetCheckExecutionContext, AssetExecutionContext
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    PARTITION_NAME_TAG,
)
from py4j.protocol import Py4JJavaError

from wirehouse_codecs.core.errors import WirehouseError
from wirehouse_expectations.suites import CheckResult, findings_check, findings_of, invariants_check, invariants_of
from wirehouse_orchestration.dagster import asset_pages
from wirehouse_orchestration.dagster.asset_pages import FINDINGS, asset_key
from wirehouse_orchestration.dagster.resources import RunSession
from wirehouse_orchestration.terminal.output import counted
from wirehouse_pipelines.delta import spark_tables
from wirehouse_pipelines.jobs import runner
from wirehouse_pipelines.jobs.job import Job
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.landing.manifests import Manifest
from wirehouse_pipelines.storage.storage import unreached
from wirehouse_pipelines.tables import Table, all_tables

#: How often a job is retried after a conflict with another writer's commit, and the delay in seconds.
CONFLICT_RETRIES = 3
CONFLICT_WAIT_SECONDS = 5
INVARIANTS = "invariants"
_ONE_WINDOW_EARLIER = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)
#: The message of S3A, which has already retried.
_STORE_UNREACHED = re.compile(r"java\.net\.\w+Exception: [\w ]+ on s3a://.*")
_CONFLICT = "CommitFailedError"


def landing_key(source: str) -> dg.AssetKey:
    """The key of a source's landing asset."""
    return dg.AssetKey(["landing", source])


def group(table: Table) -> str:
    """Layer and protocol: the group in Dagster's graph."""
    return f"{table.layer}_{table.protocol}" if table.protocol else table.layer


def partitions(windows: Windows) -> dg.TimeWindowPartitionsDefinition:
    """The lake's windows as partitions. The last one contains the present."""
    if windows.size == "day":
        return dg.DailyPartitionsDefinition(start_date=windows.start, end_offset=1)
    return dg.HourlyPartitionsDefinition(start_date=windows.start, fmt="%Y-%m-%dT%H", end_offset=1)


def asked_windows(tags: Mapping[str, str]) -> tuple[str, str] | None:
    """First and last window requested by a run with these tags; None if it requests no particular windows."""
    if PARTITION_NAME_TAG in tags:
        return tags[PARTITION_NAME_TAG], tags[PARTITION_NAME_TAG]
    if ASSET_PARTITION_RANGE_START_TAG in tags:
        return tags[ASSET_PARTITION_RANGE_START_TAG], tags[ASSET_PARTITION_RANGE_END_TAG]
    return None


def window_tags(first: str, last: str) -> dict[str, str]:
    """Tags of a run for windows `first` to `last`."""
    if first == last:
        return {PARTITION_NAME_TAG: first}
    return {ASSET_PARTITION_RANGE_START_TAG: first, ASSET_PARTITION_RANGE_END_TAG: last}


def step_name(job: Job) -> str:
    """The name of the job's step: the job's name without dots."""
    return job.name.replace(".", "_")


def checks_name(job: Job) -> str:
    """The name of the step that checks the job's tables."""
    return f"{step_name(job)}_checks"


def shown_outputs(job: Job) -> list[Table]:
    """The job's tables that people see, which excludes carried state."""
    return [table for table in (all_tables()[name] for name in job.outputs) if not table.internal]


def _inputs(lake: Lake, job: Job) -> list[dg.AssetKey]:
    if not job.reads:
        return [landing_key(source.name) for source in lake.sources if job.protocol in (None, source.protocol)]
    return [asset_key(table.name) for name in job.reads for table in shown_outputs(runner.all_jobs()[name])]


def _spec(lake: Lake, job: Job, table: Table) -> dg.AssetSpec:
    deps = [dg.AssetDep(key) for key in _inputs(lake, job)]
    if job.state_table:
        deps.append(dg.AssetDep(asset_key(table.name), partition_mapping=_ONE_WINDOW_EARLIER))
    return dg.AssetSpec(
        asset_key(table.name),
        deps=deps,
        description=table.comment,
        metadata=asset_pages.metadata(lake, table),
        group_name=group(table),
        partitions_def=partitions(lake.windows),
        freshness_policy=asset_pages.freshness(lake),
        kinds={"delta", "spark"},
        code_version=job.version,
    )


def view_spec(lake: Lake, view: Table) -> dg.AssetSpec:
    """A view: an asset that is never materialised."""
    return dg.AssetSpec(
        asset_key(view.name),
        deps=[asset_key(name) for name in sorted(set(_read(view)))],
        description=f"{view.comment} A view.",
        metadata=asset_pages.metadata(lake, view),
        group_name=group(view),
        kinds={"view"},
    )


def _read(view: Table) -> Iterator[str]:
    """What a view reads that is an asset; in place of an internal view, what that reads."""
    for name in view.reads:
        read = all_tables()[name]
        if not read.internal:
            yield name
        elif read.view:
            yield from _read(read)


def views(lake: Lake, protocol: str | None) -> list[dg.AssetSpec]:
    """All shown views of a protocol; for None those over all protocols."""
    shown = (table for table in all_tables().values() if table.view and not table.internal)
    return [view_spec(lake, table) for table in shown if table.protocol == protocol]


def job_assets(lake: Lake, job: Job) -> dg.AssetsDefinition:
    """The job as one multi-asset. It computes the requested windows that are stale, or with `force` all of them."""
    specs = [_spec(lake, job, table) for table in shown_outputs(job)]

    @dg.multi_asset(
        name=step_name(job),
        specs=specs,
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=job.pool,
        config_schema={
            "force": dg.Field(bool, default_value=False, description="Also compute windows that are not stale")
        },
        required_resource_keys={"session"},
    )
    def compute(context: AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
        session: RunSession = context.resources.session
        first, last = asked_windows(context.run.tags) or _all_windows(session, lake)
        report = _run(session, lake, job, first, last, force=context.op_execution_context.op_config["force"])
        for table in shown_outputs(job):
            written = report.rows.get(table.name, 0)
            session.say(
                f"{table.name}: {counted(written, 'row')} written" if report.windows else f"{table.name}: up to date"
            )
            rows = _rows(lake, table)
            if asked_windows(context.run.tags):
                # The UI plots these values over the partitions.
                asked = [window for window in report.windows if first <= window <= last]
                findings = asset_pages.findings_in_windows(lake, table, asked)
                for window in asked:
                    plotted = {"rows_in_window": rows[window], **findings.get(window, {})}
                    context.add_asset_metadata(plotted, asset_key(table.name), window)
            yield dg.MaterializeResult(
                asset_key=asset_key(table.name),
                metadata={
                    "dagster/row_count": rows.total(),
                    "rows_written": written,
                    "windows_computed": len(report.windows),
                    **({"captures_not_computed_anew": report.kept} if report.kept else {}),
                },
            )

    return compute


def _rows(lake: Lake, table: Table) -> Counter[str]:
    """The number of rows of the table, by window."""
    found: Counter[str] = Counter()
    for (_, window), rows in spark_tables.rows_by_window(lake, table.name).items():
        found[window] += rows
    return found


def _all_windows(session: RunSession, lake: Lake) -> tuple[str, str]:
    windows = session.known.data_windows() or [lake.windows.start]
    return windows[0], windows[-1]


def _run(session: RunSession, lake: Lake, job: Job, first: str, last: str, *, force: bool) -> runner.JobReport:
    """Run the job. If nothing is stale, return an empty report without starting a JVM."""
    wanted = session.known.stale().get(job.name, set())
    if not force and not any(first <= window <= last for window in wanted):
        return runner.JobReport(job.name, (), {})
    with translated_errors():
        spark = session.spark(_landed_records(session.known.landed(), first, last))
        return runner.run_job(
            spark, lake, job.name, first, last, force=force, progress=session.say, known=session.known
        )


def _landed_records(captures: Sequence[Manifest], first: str, last: str) -> int:
    landed = (manifest.windows.items() for manifest in captures)
    return sum(part.records for windows in landed for window, part in windows if first <= window <= last)


@contextmanager
def translated_errors() -> Iterator[None]:
    """Translate errors in a step for Dagster: retry where that helps, else fail with the message of our errors."""
    try:
        yield
    except Exception as error:
        if retry_helps(error):
            raise dg.RetryRequested(CONFLICT_RETRIES, CONFLICT_WAIT_SECONDS) from error
        if isinstance(error, WirehouseError):
            raise dg.Failure(str(error), allow_retries=False) from error
        if isinstance(error, Py4JJavaError) and (found := _STORE_UNREACHED.search(str(error))):
            raise dg.Failure(unreached(found[0]), allow_retries=False) from error
        raise


def retry_helps(error: Exception) -> bool:
    """Whether a retry may help: after a conflict with another writer's commit, or if our error has `retry_helps`."""
    if isinstance(error, WirehouseError):
        return error.retry_helps
    return _CONFLICT in f"{type(error).__name__} {error}"


def _check_specs(table: Table) -> list[dg.AssetCheckSpec]:
    found = findings_of(table.name)
    rules = {severity: len(found.of(severity)) for severity in found.severities} if found else {}
    specs = [
        dg.AssetCheckSpec(
            FINDINGS[severity],
            asset=asset_key(table.name),
            description=f"The data broke none of the {count} rules of severity {severity}.",
        )
        for severity, count in rules.items()
    ]
    invariants = "\n".join(f"- {item.name}: {item.sentence}" for item in invariants_of(table.name))
    own = dg.AssetCheckSpec(
        INVARIANTS,
        asset=asset_key(table.name),
        blocking=True,
        description=f"Invariants that hold whatever the traffic was:\n{invariants}",
    )
    return [*specs, own] if invariants else specs


def job_checks(lake: Lake, job: Job) -> dg.AssetChecksDefinition:
    """The checks of the job's tables, for the requested windows or for all."""
    specs = [spec for table in shown_outputs(job) for spec in _check_specs(table)]

    @dg.multi_asset_check(
        name=checks_name(job),
        specs=specs,
        can_subset=True,
        pool=job.pool,
        required_resource_keys={"session"},
    )
    def check(context: AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        session: RunSession = context.resources.session
        first, last = asked_windows(context.run.tags) or _all_windows(session, lake)
        stale, landed = session.known.stale(), session.known.landed()
        passed = set()
        broken: dict[str, CheckResult] = {}
        for spec in specs:
            if spec.key in context.selected_asset_check_keys:
                result = _checked(session, lake, spec, first, last, stale, landed)
                if not result.passed:
                    session.say(f"{_dotted(spec.asset_key)}: {spec.name}: {result.description}")
                    if spec.blocking:
                        broken[_dotted(spec.asset_key)] = result
                else:
                    passed.add(spec.key)
                yield _check_result(spec, result)
        if broken:
            # Dagster would fail the step anyway, but only report how many checks failed.
            raise dg.Failure(_advice(broken, first, last), allow_retries=False)
        if passed >= {spec.key for spec in specs if spec.name == INVARIANTS}:
            runner.pass_checks(lake, job.name, first, last, stale.get(job.name, ()), session.known)

    return check


def _advice(broken: Mapping[str, CheckResult], first: str, last: str) -> str:
    """One line that names the broken invariants and their tables, and what to do."""
    found = [
        f"{table} breaks {name} ({count:,} row{'' if count == 1 else 's'})"
        for table, result in broken.items()
        for name, count in result.counts.items()
    ]
    when = first if first == last else f"{first} to {last}"
    again = f"`wirehouse backfill --from {first} --to {last} --table {next(iter(broken))}`"
    report = "keep the lake and report it with the check's sample rows, which `wirehouse ui` shows"
    return f"{', '.join(found)} in {when}: run {again}; if it breaks again, {report}"


def _dotted(key: dg.AssetKey) -> str:
    return ".".join(key.path)


def _checked(
    session: RunSession,
    lake: Lake,
    spec: dg.AssetCheckSpec,
    first: str,
    last: str,
    stale: Mapping[str, Collection[str]],
    landed: Sequence[Manifest],
) -> CheckResult:
    table = _dotted(spec.asset_key)
    if spec.name == INVARIANTS:
        return invariants_check(lake, session.started, table, first, last, stale, landed)
    severity = next(severity for severity, name in FINDINGS.items() if name == spec.name)
    return findings_check(lake, session.started, table, severity, first, last)


def _check_result(spec: dg.AssetCheckSpec, result: CheckResult) -> dg.AssetCheckResult:
    counts = [{"what": name, "rows": count} for name, count in result.counts.items()]
    samples = asset_pages.traced(all_tables()[_dotted(spec.asset_key)], result.samples)
    metadata = {"broken": table_value(counts), "samples": table_value(samples)} if counts else {}
    return dg.AssetCheckResult(
        passed=result.passed,
        asset_key=spec.asset_key,
        check_name=spec.name,
        severity=dg.AssetCheckSeverity[result.severity],
        description=result.description,
        metadata=metadata,
    )


def table_value(rows: Sequence[Mapping[str, Any]]) -> dg.TableMetadataValue:
    """Rows as a table for the UI. Missing and null values are empty."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    records = [dg.TableRecord({name: "" if row.get(name) is None else row[name] for name in names}) for row in rows]
    return dg.MetadataValue.table(records, dg.TableSchema([dg.TableColumn(name, "any") for name in names]))


def definitions_of(lake: Lake, protocol: str | None) -> dg.Definitions:
    """Assets, views and checks of a protocol; for None bronze and the views over all protocols."""
    mine = [job for job in runner.all_jobs().values() if job.protocol == protocol]
    return dg.Definitions(
        assets=[*(job_assets(lake, job) for job in mine), *views(lake, protocol)],
        asset_checks=[job_checks(lake, job) for job in mine],
    )
