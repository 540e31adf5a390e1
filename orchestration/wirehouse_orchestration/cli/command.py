"""The `wirehouse` command: land captures, keep the tables up to date, query them, look inside.

Exit codes: 0 done (also when what was captured broke rules), 1 a job or a check of our own tables failed,
2 wrong configuration or usage. What takes long to import (Spark, Dagster) is imported by the commands that need it.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from wirehouse_codecs.core.errors import UsageError, WirehouseError
from wirehouse_orchestration import config
from wirehouse_orchestration.cli.simulate import Simulators
from wirehouse_orchestration.servers import ports
from wirehouse_orchestration.terminal import render
from wirehouse_orchestration.terminal.progress import Steps
from wirehouse_pipelines.lake import lake_json
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.protocols import PROTOCOLS, all_rules

if TYPE_CHECKING:
    from wirehouse_pipelines.landing.manifests import Manifest

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
OWN_FAULT = "a job or a check of our own tables failed: the lines above, or `wirehouse ui`, say which"

protocol_option = click.option("--protocol", type=click.Choice(list(PROTOCOLS)), help="Only this protocol.")
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")


class Context:
    """What all commands share: the configuration's place. The lake is read when a command asks for it."""

    def __init__(self, file: str | None, *, verbose: bool, quiet: bool) -> None:
        self.file = file
        self.verbose = verbose
        self.quiet = quiet

    def steps(self, title: str, total: int) -> Steps:
        """Progress over `total` steps, unless nobody wants it."""
        return Steps(title, total, quiet=self.quiet)

    def lake(self) -> Lake:
        """The configured lake; ConfigError if it can't be used."""
        lake = config.load(self.file)
        lake_json.check(lake)
        return lake

    def lake_to_read(self) -> Lake:
        """The same for what only reads: where nothing is configured the demo's lake, if that is there."""
        lake = config.load(self.file_or_demo())
        if not lake_json.begun(lake) and not self.quiet:
            click.echo(f"nothing has landed in {lake.root} yet: `{config.command()} land` begins it", err=True)
        return lake

    def file_or_demo(self) -> Path:
        """The configuration's file; where there is none, the demo's if that is there."""
        file, demo_file = config.place(self.file), Path(config.DEMO, config.DEFAULT)
        if file == Path(config.DEFAULT) and not file.exists() and demo_file.exists():
            click.echo(f"there is no {file}: this is the demo's lake, {demo_file}", err=True)
            return demo_file
        return file


pass_context = click.make_pass_decorator(Context)


def complete_table(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Names of tables for the shell."""
    from wirehouse_pipelines.tables import all_tables

    return [name for name in all_tables() if name.startswith(begun)]


class _ReaderGone(Exception):
    """Who read our output has enough."""


class _Commands(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        """The command; click would end with 1 when a reader goes away (`| head`)."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _ReaderGone from None


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="wirehouse", message="%(prog)s %(version)s")
@click.option("--config", "file", metavar="FILE", help=f"Configuration [{config.VARIABLE}, else ./{config.DEFAULT}].")
@click.option("--verbose", is_flag=True, help="Show where an error comes from.")
@click.option("--quiet", is_flag=True, help="Show no progress: results and errors alone.")
@click.pass_context
def cli(ctx: click.Context, file: str | None, verbose: bool, quiet: bool) -> None:
    """A lakehouse for wire protocols.

    What was said, was it legal, what is the resulting state, and which bytes prove it.
    """
    ctx.obj = Context(file, verbose=verbose, quiet=quiet)
    # For what runs below us in this process, and for a Dagster that we start.
    if file:
        os.environ[config.VARIABLE] = str(Path(file).absolute())


@cli.command()
@click.option(
    "--into",
    "folder",
    default=config.DEMO,
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the demo's lake; that of an earlier demo is replaced.",
)
@pass_context
def demo(context: Context, folder: Path) -> None:
    """Take real captures through the whole pipeline. The lake is a fresh one; the end shows what came of them."""
    from wirehouse_orchestration.demo.run import demo as show_off

    if not show_off(folder, quiet=context.quiet):
        raise WirehouseError(reason=OWN_FAULT)


@cli.command()
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
        raise click.UsageError("say with --source which source the files are landed into")
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
            from wirehouse_orchestration.dagster.defs.landing import tell

            tell(lake, landed)
    if as_json:
        _print_json(map(_landed_fields, landed))
    else:
        _report_landed(landed)
        _report_gone(lake)
    for other in failed[1:]:
        click.echo(f"wirehouse: {render.terminal(str(other))}", err=True)
    if failed:
        raise failed[0]


@cli.command()
@click.argument("what", metavar="CAPTURE|SOURCE")
@click.option("--yes", is_flag=True, help="Erase without asking.")
@json_option
@pass_context
def forget(context: Context, what: str, yes: bool, as_json: bool) -> None:
    """Erase one capture and prove it; or all of a source. Old versions of tables are erased, too.

    CAPTURE is its id, 64 hex digits as bronze.captures shows them. SOURCE is one that the configuration no longer has.
    """
    from wirehouse_orchestration.dagster.runs import check_alone, erase_told
    from wirehouse_pipelines.jobs import forgetting
    from wirehouse_pipelines.jobs import runner as jobs

    lake = context.lake()
    forgetting.check(lake, what)
    if not yes:
        click.confirm("This erases landed captures and what was computed from them. Go on?", abort=True, err=True)
    if not forgetting.is_capture(what):
        deleted = forgetting.forget(lake, what, partial(click.echo, err=True))
        if as_json:
            _print_json([asdict(deleted)])
        else:
            click.echo(f"no row and no capture of {what} is left; Delta keeps the files of deleted rows until VACUUM")
        return
    check_alone(lake)
    erased = forgetting.erase_landed(lake, what)
    if due := jobs.due(lake):
        _bring_up_to_date(context, lake, due, tell=not as_json)
    # A sensor may have begun a run meanwhile, whose files nobody must take away.
    check_alone(lake)
    with jobs.writing(lake, say=partial(click.echo, err=True)) as held:
        purged = forgetting.purge(lake, held)
        told = erase_told(lake, what)
        proof = forgetting.proof(lake, what)
    if as_json:
        landed = [_landed_fields(manifest) for manifest in erased]
        computed = {name: sorted(windows) for name, windows in due.items()}
        tables = [asdict(freed) for freed in purged]
        told_of = {"landed": landed, "computed": computed, "tables": tables, "history_entries": told}
        _print_json([{"capture_id": what} | told_of | {"proof": asdict(proof)}])
        return
    for line in proof.lines():
        click.echo(f"  {line}")
    click.echo(f"  runs: {told:,} entries of their history told of it, and are removed")
    click.echo(f"nothing of capture {what} is left")


@cli.command()
@json_option
@pass_context
def upkeep(context: Context, as_json: bool) -> None:
    """Join small files, remove old ones: what [upkeep] says. It also lets go of landed records."""
    from wirehouse_pipelines.jobs.upkeep import parts

    lake = context.lake()
    # Tables and sources, of each of which it is said what was done.
    total = sum(map(len, parts(lake).values())) + len(lake.sources)
    with context.steps("upkeep", total) as steps:
        steps.say("starting Dagster")
        from wirehouse_orchestration.dagster.runs import keep_up

        kept = keep_up(lake, progress=steps.say, verbose=context.verbose)
    if as_json:
        _print_json(kept.freed)
    if not kept.done:
        raise WirehouseError(reason=OWN_FAULT)


def _print_json(rows: Iterable[Mapping[str, Any]]) -> None:
    for row in rows:
        click.echo(render.json_line(row))


def _report_gone(lake: Lake) -> None:
    from wirehouse_pipelines.jobs import forgetting

    for name in forgetting.gone(lake):
        click.echo(f"  source {name} is no longer configured: its rows stay until `wirehouse forget {name}`")


def _landed_fields(manifest: Manifest) -> dict[str, Any]:
    """What became of a capture, by the names of bronze.captures."""
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
            kept = "the bytes are kept; `wirehouse inspect` says why"
            click.echo(f"  {place}: {unreadable} of {manifest.records:,} could not be read, {kept}")
        if manifest.cut_packets:
            cut = f"{manifest.cut_packets:,} of {counted(manifest.records, 'packet')}"
            click.echo(f"  {place}: {cut} were cut by the snap length: what lacks of them was never captured")
        for finding in manifest.findings:
            if finding.rule == "capture.reversed":
                click.echo(f"  {place}: {finding.message}")


@cli.command()
@json_option
@pass_context
def run(context: Context, as_json: bool) -> None:
    """Bring every table up to date with what has landed."""
    from wirehouse_pipelines.jobs import runner as jobs

    lake = context.lake()
    due = jobs.due(lake)
    if not as_json:
        _report_gone(lake)
    if not due:
        if as_json:
            _report_json(lake, [], None, None)
            return
        click.echo(
            "everything is up to date" if jobs.data_windows(lake) else "nothing has landed yet: `wirehouse land`"
        )
        return
    _bring_up_to_date(context, lake, due, as_json=as_json)


def _bring_up_to_date(
    context: Context, lake: Lake, due: Mapping[str, set[str]], *, as_json: bool = False, tell: bool = True
) -> None:
    from wirehouse_pipelines.jobs import runner as jobs

    windows = set().union(*due.values())
    # To the end: a window that ends in another state than before makes the ones after it stale.
    last = max(windows.union(jobs.data_windows(lake)))
    _materialize(context, lake, list(due), min(windows), last, force=False, as_json=as_json, tell=tell)


@cli.command()
@click.option(
    "--from", "first", required=True, metavar="WINDOW", help="First window, e.g. 2026-11-14 or 2026-11-14T22."
)
@click.option("--to", "last", required=True, metavar="WINDOW", help="Last window, included.")
@protocol_option
@click.option(
    "--table",
    metavar="NAME",
    help="Only what writes this table, or what this view is made of.",
    shell_complete=complete_table,
)
@json_option
@pass_context
def backfill(context: Context, first: str, last: str, protocol: str | None, table: str | None, as_json: bool) -> None:
    """Compute a range of windows again, in one go."""
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
    if not any(first <= window <= last for window in jobs.data_windows(lake)):
        if as_json:
            _report_json(lake, [], first, last)
        else:
            click.echo(f"nothing has landed in {first} to {last}")
        return
    _materialize(context, lake, chosen, first, last, force=True, as_json=as_json)


def _materialize(
    context: Context,
    lake: Lake,
    jobs: Sequence[str],
    first: str,
    last: str,
    *,
    force: bool,
    as_json: bool,
    tell: bool = True,
) -> None:
    """Run `jobs` through Dagster, and `tell` what the lake says now; exits 1 if a job or a check failed."""
    with context.steps("tables", len(jobs)) as steps:
        steps.say("starting Dagster")
        from wirehouse_orchestration.dagster.runs import materialize

        done = materialize(lake, jobs, first, last, force=force, progress=steps.say, verbose=context.verbose)
    if not done:
        raise WirehouseError(reason=OWN_FAULT)
    if not tell:
        return
    if as_json:
        _report_json(lake, jobs, first, last)
        return
    span = first if first == last else f"{first} to {last}"
    click.echo(f"{', '.join(jobs)}: {span} done")
    _report_rules(lake)
    _report_silent(lake)


def _broken(lake: Lake) -> dict[str, Mapping[str, Any]]:
    """By severity how many findings there are (`findings`), and of how many rules (`rules`)."""
    from wirehouse_pipelines.query import sql

    count = "SELECT severity, COUNT(*) AS n, COUNT(DISTINCT rule) AS rules FROM gold.violations GROUP BY severity"
    rows = sql.rows(lake, count).to_pylist()
    return {row["severity"]: {"findings": row["n"], "rules": row["rules"]} for row in rows}


def _report_rules(lake: Lake) -> None:
    """What the captures broke: counted, never a failure."""
    from wirehouse_orchestration.terminal.output import counted

    for severity, found in sorted(_broken(lake).items(), reverse=True):
        what = counted(found["findings"], "finding"), counted(found["rules"], "rule")
        click.echo("  {} of severity {severity}, {} broken".format(*what, severity=severity))


def _report_silent(lake: Lake) -> None:
    """Sources whose packets are there, and none of them of a connection to one of their ports."""
    from wirehouse_pipelines.query import sql

    named = "SELECT DISTINCT source FROM"
    landed, heard = (
        {row["source"] for row in sql.rows(lake, f"{named} {table}").to_pylist()}
        for table in ("bronze.captures WHERE records > 0", "silver.connections")
    )
    for source in lake.sources:
        if source.ports and source.name in landed - heard:
            ports = ", ".join(map(str, source.ports))
            click.echo(
                f"  source {source.name}: no packet of its ports ({ports}); `wirehouse inspect FILE` shows others"
            )


def _report_json(lake: Lake, jobs: Sequence[str], first: str | None, last: str | None) -> None:
    _print_json([{"jobs": jobs, "from": first, "to": last, "broken": _broken(lake)}])


@cli.command()
@click.argument("statement", required=False)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json", "parquet"]),
    help="json is one object a line, binary is hex; parquet needs --out [table, or by the ending of --out].",
)
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the rows to FILE: .csv, .json, .parquet.",
)
@click.option("--as-of", "when", metavar="WHEN", help="The tables as they were at this time, or version of one table.")
@pass_context
def sql(context: Context, statement: str | None, form: str | None, out: Path | None, when: str | None) -> None:
    """Query the tables by name. STATEMENT is one SELECT, WITH or EXPLAIN; `wirehouse tables` lists the tables.

    Without STATEMENT there is a prompt with history and completion; where standard input is no terminal the statement
    is read from there.
    """
    from wirehouse_pipelines.query.sql_process import query, start

    start()
    from wirehouse_orchestration.terminal import output

    if form is None and out and out.suffix not in output.ENDINGS:
        raise click.UsageError(f"--out {out} ends in none of {', '.join(output.ENDINGS)}: say with --format what it is")
    form = form or (output.ENDINGS[out.suffix] if out else "table")
    if form == output.PARQUET and not out:
        raise click.UsageError("parquet goes to a file: say with --out to which")
    lake, as_of = context.lake_to_read(), None
    if when is not None:
        from wirehouse_pipelines.query.sql import parse_as_of

        as_of = parse_as_of(when)
    if statement is None and out is None and sys.stdin.isatty():
        from wirehouse_orchestration.query.sql_shell import prompt

        prompt(lake, form, as_of)
        return
    statement = sys.stdin.read() if statement is None else statement
    with query(lake, statement, as_of) as reader:
        output.answer(reader, form, out)


@cli.command("sql-server")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=ports.SQL, show_default=True, help="Port on this machine."
)
@click.option(
    "--passwords",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Let in who is in FILE [everybody who reaches the port].",
)
@click.option("--set-password", "name", metavar="NAME", help="Set the password of NAME in FILE, and do nothing else.")
@click.option(
    "--most-seconds",
    type=click.IntRange(0),
    default=600,
    show_default=True,
    help="Stop a statement after so long; 0 for never.",
)
@pass_context
def sql_server(context: Context, port: int, passwords: Path | None, name: str | None, most_seconds: int) -> None:
    """Serve the tables to JDBC, PyHive and BI tools. They can read, until Ctrl-C."""
    from wirehouse_orchestration.query import sql_server as server

    if name is not None:
        if passwords is None:
            raise click.UsageError("say with --passwords in which file")
        server.set_password(passwords, name, click.prompt("password", hide_input=True, confirmation_prompt=True))
        return
    server.serve(context.lake_to_read(), port, passwords, most_seconds, click.echo)


@cli.command()
@click.argument("path", metavar="FILE", type=click.Path(exists=True, dir_okay=False))
@protocol_option
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="Port of the servers, in a capture of packets [told from handshakes, else the lower one].",
)
@click.option(
    "--option",
    "options",
    metavar="NAME=VALUE",
    multiple=True,
    help="Option of the protocol, as in [source.options] of the configuration; can be given several times.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, with the columns of the tables.")
def inspect(path: str, protocol: str | None, port: int | None, options: Sequence[str], as_json: bool) -> None:
    """Decode one capture, without a lake, Spark or configuration."""
    from wirehouse_orchestration.evidence.inspection import inspect as look

    look(path, protocol, as_json, sys.stdout, port, options)


@cli.command()
@click.argument("table", shell_complete=complete_table)
@click.argument("key")
@click.option(
    "--pcap",
    metavar="OUT",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the row's packets to this file: those that carried its bytes, else all of its connection, "
    "else the one that it points to.",
)
@json_option
@pass_context
def trace(context: Context, table: str, key: str, pcap: Path | None, as_json: bool) -> None:
    """Go from rows back to their bytes. Of the rows of TABLE with this KEY the landed records are shown.

    KEY is a value of the table's key, binary as hex; or NAME=VALUE,NAME=VALUE with any of its columns, a comma in a
    VALUE as \\,; without a VALUE the column is null or empty.
    """
    from wirehouse_orchestration.evidence.trace import trace as follow

    follow(context.lake_to_read(), table, key, sys.stdout, pcap, as_json=as_json)


@cli.command()
@click.argument("name", required=False, shell_complete=complete_table)
@click.option("--all", "internal", is_flag=True, help="Also carried state and histories.")
@json_option
def tables(name: str | None, internal: bool, as_json: bool) -> None:
    """List the tables and views, or the columns of one."""
    from wirehouse_orchestration.terminal import output
    from wirehouse_pipelines.tables import all_tables

    if name is None:
        listed = [table for table in all_tables().values() if internal or table.listed]
        if as_json:
            _print_json({"name": table.name, "kind": output.kind_of(table), "holds": table.comment} for table in listed)
        else:
            output.tables(listed)
    elif name in all_tables():
        table = all_tables()[name]
        if as_json:
            _print_json({"column": one.name, "type": one.type, "holds": one.comment} for one in table.columns)
        else:
            output.columns(table)
    else:
        raise click.UsageError(f"there is no table {name}: `wirehouse tables --all` lists them")


@cli.command()
@protocol_option
@json_option
def rules(protocol: str | None, as_json: bool) -> None:
    """List the rules that captured data is held against."""
    from wirehouse_orchestration.terminal import output

    listed = PROTOCOLS[protocol].rules if protocol else all_rules().values()
    if as_json:
        _print_json({"rule": rule.id, **asdict(rule)} for rule in listed)
    else:
        output.rules(listed)


@cli.command(cls=Simulators)
def simulate() -> None:
    """Write a simulated stream, legal or with a named fault."""


@cli.command()
@click.option("--port", type=click.IntRange(1, 65535), help=f"Port on this machine [{ports.UI}, else a free one].")
@pass_context
def ui(context: Context, port: int | None) -> None:
    """Serve Dagster's UI on this machine. Schedules and sensors are on until Ctrl-C."""
    from wirehouse_orchestration.dagster.ui import serve

    file = context.file_or_demo()
    serve(config.load(file), file, port, click.echo)


@cli.command()
@click.option(
    "--port", type=click.IntRange(1, 65535), help=f"Port on this machine [{ports.DASHBOARD}, else a free one]."
)
@pass_context
def dashboard(context: Context, port: int | None) -> None:
    """Serve the dashboards on this machine. Charts lead to the SQL behind them, their rows and bytes."""
    from wirehouse_orchestration.dashboards.serving import serve

    serve(context.lake_to_read(), port, click.echo)


@cli.command()
@click.option("--from", "first", metavar="WINDOW", help="First window [the first].")
@click.option("--to", "last", metavar="WINDOW", help="Last window, included [the last].")
@click.option("--source", metavar="NAME", help="Only what this source saw.")
@click.option(
    "--out",
    default="report.html",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write.",
)
@json_option
@pass_context
def report(context: Context, first: str | None, last: str | None, source: str | None, out: Path, as_json: bool) -> None:
    """Write the dashboards of a range of windows as one file. It is HTML, with findings and their evidence."""
    from wirehouse_orchestration.dashboards.answers import Span
    from wirehouse_orchestration.dashboards.boards import boards
    from wirehouse_orchestration.dashboards.report import report as written
    from wirehouse_orchestration.terminal import output

    for name, value in {"--from": first, "--to": last, "--source": source}.items():
        if value == "":
            raise click.UsageError(f"{name} is empty")
    span = Span(first, last, source)
    lake = context.lake_to_read()
    with output.whole(out) as part, context.steps("report", len(boards()) + 1) as steps:
        span.check_data(lake)
        made = written(lake, span, steps.begin)
        part.write_text(made.page)
    if as_json:
        told = {"file": str(out), "from": first, "to": last, "source": source, "bytes": out.stat().st_size}
        _print_json([told | {"failed": made.failed}])
    else:
        click.echo(f"{out}: {span}, {len(made.page) / 2**20:.1f} MiB")
    if made.failed:
        reasons = "; ".join(f"{chart}: {why}" for chart, why in made.failed.items())
        raise WirehouseError(reason=f"{out} says that not all could be asked: {reasons}")


@cli.group()
def infra() -> None:
    """Real servers on this machine. NAMES are store (or versitygw), kafka, postgres and spark."""


server_names = click.argument("names", nargs=-1, metavar="[SERVER]...")


@infra.command()
@server_names
def up(names: tuple[str, ...]) -> None:
    """Install servers on first use and start them."""
    from wirehouse_orchestration.infra import server as servers

    servers.up(names, click.echo)
    click.echo(f"to use them: set -a; . {servers.run_folder() / 'env'}; set +a")


@infra.command()
@server_names
def down(names: tuple[str, ...]) -> None:
    """Stop servers; their data stays."""
    from wirehouse_orchestration.infra import server as servers

    servers.down(names, click.echo)


@infra.command()
@server_names
@json_option
def status(names: tuple[str, ...], as_json: bool) -> None:
    """Show which servers there are and which run."""
    from wirehouse_orchestration.infra import server as servers

    for server in servers.status(names):
        if as_json:
            _print_json([server])
            continue
        processes = " ".join(map(str, server["processes"]))
        state = f"{server['state']}, process {processes}" if processes else server["state"]
        click.echo(f"{server['name']:<10} {state:<24} {server['title']}")


@cli.command()
@json_option
@pass_context
def doctor(context: Context, as_json: bool) -> None:
    """Say what is missing on this machine and how to mend it."""
    from wirehouse_orchestration.cli.doctor import examine

    if not examine(context.file, as_json=as_json):
        raise SystemExit(FAILED)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    try:
        sys.exit(_outcome(arguments))
    finally:
        _flush()


def _outcome(arguments: Sequence[str] | None) -> int:
    verbose = "--verbose" in (sys.argv[1:] if arguments is None else arguments)
    try:
        code = cli.main(arguments, prog_name="wirehouse", standalone_mode=False)
        return code if isinstance(code, int) else DONE
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return USAGE
    except click.ClickException as error:
        _say(error.format_message())
        return USAGE
    except (click.Abort, KeyboardInterrupt):
        _say("interrupted")
        return INTERRUPTED
    except _ReaderGone:
        return DONE
    except Exception as error:
        if verbose:
            traceback.print_exc()
        _say(_one_line(error, verbose))
        return USAGE if isinstance(error, UsageError) else FAILED


def _one_line(error: Exception, verbose: bool) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, WirehouseError):
        return text
    more = "" if verbose else " (`wirehouse --verbose ...` shows where)"
    return f"{type(error).__name__}: {text[:500]}{more}"


def _say(text: str) -> None:
    Console(stderr=True, soft_wrap=True).print(Text.assemble(("wirehouse: ", "bold red"), render.terminal(text)))


def _flush() -> None:
    """A reader that went away (`| head`) is no trouble: nothing more is written, also not by Python at its end."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
