"""Commands that change a lake: demo, land, run, backfill, upkeep, forget."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from wirehouse_codecs.core.errors import WirehouseError
from wirehouse_orchestration import config
from wirehouse_orchestration.cli.context import (
    OWN_FAULT,
    Context,
    complete_table,
    json_option,
    pass_context,
    print_json,
    protocol_option,
)
from wirehouse_orchestration.terminal import render
from wirehouse_pipelines.lake.lake import Lake

if TYPE_CHECKING:
    from wirehouse_pipelines.jobs.planning import Planner
    from wirehouse_pipelines.landing.manifests import Manifest


@click.command()
@click.option(
    "--into",
    "folder",
    default=config.DEMO,
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the demo's lake; replaces an earlier demo.",
)
@pass_context
def demo(context: Context, folder: Path) -> None:
    """Run the whole pipeline on real captures. The lake is new; the last page shows what they contain."""
    from wirehouse_orchestration.demo.run import demo as show_off

    if not show_off(folder, quiet=context.quiet):
        raise WirehouseError(reason=OWN_FAULT)


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(exists=True))
@click.option("--source", "name", metavar="NAME", help="Only this source; PATHS are landed into it.")
@json_option
@pass_context
def land(context: Context, paths: Sequence[str], name: str | None, as_json: bool) -> None:
    """Land new captures of all sources, or these PATHS into one."""
    from wirehouse_pipelines.landing import landing
    from wirehouse_pipelines.storage.storage import StorageError

    lake = context.lake()
    sources = [source for source in lake.sources if name in (None, source.name)]
    if name and not sources:
        known = ", ".join(source.name for source in lake.sources)
        raise click.BadParameter(f"there is no source {name!r}, only {known}", param_hint="--source")
    if paths and len(sources) != 1:
        raise click.UsageError("--source is missing: it names the source that the files belong to")
    if not sources:
        raise click.UsageError(f"{config.place(context.file)} has no [[source]] to land from")
    landed: list[Manifest] = []
    failed: list[WirehouseError] = []
    try:
        with context.steps("landing", len(sources)) as steps:
            for source in sources:
                steps.begin(source.name)
                files = [os.path.abspath(path) for path in paths] or None
                try:
                    landed += landing.land(lake, source, files, progress=steps.say)
                except StorageError:
                    # The lake's own.
                    raise
                except WirehouseError as error:
                    failed.append(error)
    finally:
        if landed:
            from wirehouse_orchestration.dagster.defs.landing import report_landed

            report_landed(lake, landed)
    if as_json:
        print_json(map(_landed_fields, landed))
    else:
        _report_landed(landed)
        _report_gone(lake)
    for other in failed[1:]:
        click.echo(f"wirehouse: {render.terminal(str(other))}", err=True)
    if failed:
        raise failed[0]


def _landed_fields(manifest: Manifest) -> dict[str, Any]:
    """The result of landing a capture, in columns of bronze.captures."""
    names = (
        "source",
        "path",
        "capture_id",
        "status",
        "reason",
        "size_bytes",
        "records",
        "unreadable_records",
        "cut_packets",
    )
    return {name: getattr(manifest, name) for name in names} | {"windows": sorted(manifest.windows)}


def _report_landed(landed: Sequence[Manifest]) -> None:
    from wirehouse_orchestration.terminal.output import counted

    windows = {window for manifest in landed for window in manifest.windows}
    records = sum(manifest.records for manifest in landed)
    what = counted(len(landed), "new capture"), counted(records, "record"), counted(len(windows), "window")
    click.echo("{}, {} in {}".format(*what))
    for manifest in landed:
        place = render.terminal(f"{manifest.source}: {manifest.path}")
        if manifest.reason:
            click.echo(f"  {manifest.status}: {place}: {render.terminal(manifest.reason)}")
        if manifest.unreadable_records:
            unreadable = counted(manifest.unreadable_records, "record")
            kept = "the bytes are kept; `wirehouse inspect` shows why"
            click.echo(f"  {place}: {unreadable} of {manifest.records:,} could not be read, {kept}")
        if manifest.cut_packets:
            cut = f"{manifest.cut_packets:,} of {counted(manifest.records, 'packet')}"
            click.echo(f"  {place}: {cut} were cut by the snap length: what lacks of them was never captured")
        for finding in manifest.findings:
            if finding.rule == "capture.reversed":
                click.echo(f"  {place}: {finding.message}")


def _report_gone(lake: Lake) -> None:
    from wirehouse_pipelines.jobs import forgetting

    for name in forgetting.gone(lake):
        click.echo(f"  source {name} is no longer configured: its rows stay until `wirehouse forget {name}`")


@click.command()
@json_option
@pass_context
def run(context: Context, as_json: bool) -> None:
    """Bring every table up to date with what has landed."""
    from wirehouse_pipelines.jobs import runner as jobs

    lake = context.lake()
    known = jobs.planner(lake)
    due = known.due()
    if not as_json:
        _report_gone(lake)
    if not due:
        if as_json:
            _report_json(lake, [], None, None)
            return
        click.echo("everything is up to date" if known.data_windows() else "nothing has landed yet: `wirehouse land`")
        return
    _bring_up_to_date(context, known, due, as_json=as_json)


@click.command()
@click.option(
    "--from", "first", required=True, metavar="WINDOW", help="First window, e.g. 2026-11-14 or 2026-11-14T22."
)
@click.option("--to", "last", required=True, metavar="WINDOW", help="Last window, included.")
@protocol_option
@click.option(
    "--table",
    metavar="NAME",
    help="Only the jobs that write this table, or the tables of this view.",
    shell_complete=complete_table,
)
@json_option
@pass_context
def backfill(context: Context, first: str, last: str, protocol: str | None, table: str | None, as_json: bool) -> None:
    """Recompute a range of windows."""
    from wirehouse_pipelines.jobs import runner as jobs
    from wirehouse_pipelines.tables import all_tables, beneath

    lake = context.lake()
    if lake.windows.parse(first) > lake.windows.parse(last):
        raise click.UsageError(f"--from {first} is after --to {last}")
    written = beneath(table) if table in all_tables() else set()
    chosen = [
        job.name
        for job in jobs.all_jobs().values()
        if protocol in (None, job.protocol) and (table is None or written.intersection(job.outputs))
    ]
    if not chosen:
        raise click.UsageError(f"no job writes {table or protocol}: `wirehouse tables` lists the tables")
    known = jobs.planner(lake)
    if not any(first <= window <= last for window in known.data_windows()):
        if as_json:
            _report_json(lake, [], first, last)
        else:
            click.echo(f"nothing has landed in {first} to {last}")
        return
    _materialize(context, known, chosen, first, last, force=True, as_json=as_json)


def _bring_up_to_date(
    context: Context, known: Planner, due: Mapping[str, set[str]], *, as_json: bool = False, report: bool = True
) -> None:
    windows = set().union(*due.values())
    # Up to the last window: a window that ends in another state makes the later ones stale.
    last = max(windows.union(known.data_windows()))
    _materialize(context, known, list(due), min(windows), last, force=False, as_json=as_json, report=report)


def _materialize(
    context: Context,
    known: Planner,
    jobs: Sequence[str],
    first: str,
    last: str,
    *,
    force: bool,
    as_json: bool,
    report: bool = True,
) -> None:
    """Run `jobs` through Dagster and, if `report`, report the findings; WirehouseError if a job or a check failed."""
    lake = known.lake
    with context.steps("tables", len(jobs)) as steps:
        steps.say("starting Dagster")
        from wirehouse_orchestration.dagster.runs import materialize

        done = materialize(
            lake, jobs, first, last, force=force, progress=steps.say, verbose=context.verbose, known=known
        )
    if not done:
        raise WirehouseError(reason=OWN_FAULT)
    if not report:
        return
    if as_json:
        _report_json(lake, jobs, first, last)
        return
    span = first if first == last else f"{first} to {last}"
    click.echo(f"{', '.join(jobs)}: {span} done")
    _report_rules(lake, first, last)
    _report_silent(known, first, last)


def _broken(lake: Lake, first: str, last: str) -> dict[str, Mapping[str, Any]]:
    """For each severity the number of findings (`findings`) and of broken rules (`rules`) in these windows."""
    from wirehouse_pipelines.query import sql

    count = (
        "SELECT severity, COUNT(*) AS n, COUNT(DISTINCT rule) AS rules FROM gold.violations "
        f"WHERE window_start >= '{first}' AND window_start <= '{last}' GROUP BY severity"
    )
    rows = sql.rows(lake, count).to_pylist()
    return {row["severity"]: {"findings": row["n"], "rules": row["rules"]} for row in rows}


def _report_rules(lake: Lake, first: str, last: str) -> None:
    """Print how many rules the captures of these windows broke. That is no failure of the command."""
    from wirehouse_orchestration.terminal.output import counted

    for severity, found in sorted(_broken(lake, first, last).items(), reverse=True):
        what = counted(found["findings"], "finding"), counted(found["rules"], "rule")
        click.echo("  {} of severity {severity}, {} broken".format(*what, severity=severity))


def _report_silent(known: Planner, first: str, last: str) -> None:
    """Name the sources that landed packets in these windows and never had a connection to one of their ports."""
    windows = f"window_start >= '{first}' AND window_start <= '{last}'"
    landed = {
        manifest.source for manifest in known.landed() if any(first <= window <= last for window in manifest.windows)
    }
    silent = {source.name for source in known.lake.sources if source.ports and source.name in landed}
    # Most sources have connections in these windows. The history is asked only about the others.
    silent -= _connected(known.lake, silent, windows)
    silent -= _connected(known.lake, silent)
    for source in known.lake.sources:
        if source.name in silent:
            ports = ", ".join(map(str, source.ports))
            click.echo(
                f"  source {source.name}: no packet of its ports ({ports}); `wirehouse inspect FILE` shows others"
            )


def _connected(lake: Lake, sources: set[str], condition: str = "true") -> set[str]:
    """The sources with connections that meet the condition."""
    from wirehouse_pipelines.query import sql

    if not sources:
        return set()
    names = ", ".join(f"'{name}'" for name in sorted(sources))
    named = f"SELECT DISTINCT source FROM silver.connections WHERE source IN ({names}) AND {condition}"
    return {row["source"] for row in sql.rows(lake, named).to_pylist()}


def _report_json(lake: Lake, jobs: Sequence[str], first: str | None, last: str | None) -> None:
    broken = _broken(lake, first, last) if first and last else {}
    print_json([{"jobs": jobs, "from": first, "to": last, "broken": broken}])


@click.command()
@json_option
@pass_context
def upkeep(context: Context, as_json: bool) -> None:
    """Compact small files, vacuum old ones, expire records. [upkeep] configures all three."""
    from wirehouse_pipelines.jobs.upkeep import parts

    lake = context.lake()
    # One step per table and source.
    total = sum(map(len, parts(lake).values())) + len(lake.sources)
    with context.steps("upkeep", total) as steps:
        steps.say("starting Dagster")
        from wirehouse_orchestration.dagster.runs import keep_up

        kept = keep_up(lake, progress=steps.say, verbose=context.verbose)
    if as_json:
        print_json(kept.freed)
    if not kept.done:
        raise WirehouseError(reason=OWN_FAULT)


@click.command()
@click.argument("what", metavar="CAPTURE|SOURCE")
@click.option("--yes", is_flag=True, help="Erase without asking.")
@json_option
@pass_context
def forget(context: Context, what: str, yes: bool, as_json: bool) -> None:
    """Erase one capture and prove it, or erase a source. Old versions of tables are erased too.

    CAPTURE is an id of bronze.captures, 64 hex digits. SOURCE is one that is no longer configured.
    """
    from wirehouse_orchestration.dagster.runs import check_alone, erase_mentions
    from wirehouse_pipelines.jobs import forgetting
    from wirehouse_pipelines.jobs import runner as jobs

    lake = context.lake()
    forgetting.check(lake, what)
    if not yes:
        click.confirm("This erases landed captures and what was computed from them. Continue?", abort=True, err=True)
    if not forgetting.is_capture(what):
        deleted = forgetting.forget(lake, what, partial(click.echo, err=True))
        if as_json:
            print_json([asdict(deleted)])
        else:
            click.echo(f"no row and no capture of {what} is left; Delta keeps the files of deleted rows until VACUUM")
        return
    check_alone(lake)
    erased = forgetting.erase_landed(lake, what)
    known = jobs.planner(lake)
    if due := known.due():
        _bring_up_to_date(context, known, due, report=not as_json)
    # A sensor may have started a run meanwhile; its files must stay.
    check_alone(lake)
    with jobs.writing(lake, say=partial(click.echo, err=True)) as held:
        purged = forgetting.purge(lake, held)
        erased_entries = erase_mentions(lake, what)
        proof = forgetting.proof(lake, what)
    if as_json:
        landed = [_landed_fields(manifest) for manifest in erased]
        computed = {name: sorted(windows) for name, windows in due.items()}
        tables = [asdict(freed) for freed in purged]
        done = {"landed": landed, "computed": computed, "tables": tables, "history_entries": erased_entries}
        print_json([{"capture_id": what} | done | {"proof": asdict(proof)}])
        return
    for line in proof.lines():
        click.echo(f"  {line}")
    click.echo(f"  runs: {erased_entries:,} entries of their history named it, and are removed")
    click.echo(f"nothing of capture {what} is left")


COMMANDS: Final = (demo, land, run, backfill, upkeep, forget)
