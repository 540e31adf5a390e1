"""Commands that read a lake, or one capture: sql, trace, inspect, report, tables, rules."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click

from wirehouse_codecs.core.errors import WirehouseError
from wirehouse_orchestration.cli.context import (
    Context,
    complete_table,
    json_option,
    pass_context,
    print_json,
    protocol_option,
)
from wirehouse_pipelines.lake.protocols import PROTOCOLS, all_rules


@click.command()
@click.argument("statement", required=False)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json", "parquet"]),
    help="json is one object per line, binary is hex; parquet needs --out [table, or by the suffix of --out].",
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

    Without STATEMENT, standard input is read; a terminal gets a prompt with history and completion.
    """
    from wirehouse_pipelines.query.sql_process import query, start

    start()
    from wirehouse_orchestration.terminal import output

    if form is None and out and out.suffix not in output.ENDINGS:
        raise click.UsageError(f"--out {out} ends in none of {', '.join(output.ENDINGS)}: add --format")
    form = form or (output.ENDINGS[out.suffix] if out else "table")
    if form == output.PARQUET and not out:
        raise click.UsageError("parquet needs a file: name it with --out")
    lake, as_of = context.lake_to_read(), None
    if when is not None:
        from wirehouse_pipelines.query.sql import parse_as_of

        as_of = parse_as_of(when)
    if statement is None and out is None and sys.stdin.isatty():
        from wirehouse_orchestration.query.sql_shell import prompt

        prompt(lake, form, as_of)
        return
    statement = sys.stdin.read() if statement is None else statement
    match statement.replace("`", "").replace('"', "").rstrip("; \n").split():
        case [show, what] if out is None and [show.lower(), what.lower()] == ["show", "tables"]:
            click.get_current_context().invoke(tables, as_json=form == "json")
            return
        case [describe, *table, name] if (
            out is None
            and describe.lower() in ("describe", "desc")
            and [word.lower() for word in table] in ([], ["table"])
        ):
            click.get_current_context().invoke(tables, name=name.lower(), as_json=form == "json")
            return
    with query(lake, statement, as_of) as reader:
        output.answer(reader, form, out)


@click.command()
@click.argument("path", metavar="FILE", type=click.Path(exists=True, dir_okay=False))
@protocol_option
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="Port of the servers, in a capture of packets [default: from the handshakes, else the lower one].",
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
    """Decode one capture without a lake, Spark or configuration."""
    from wirehouse_orchestration.evidence.inspection import inspect as look

    look(path, protocol, as_json, sys.stdout, port, options)


@click.command()
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
    """Show the raw bytes behind rows. They are the landed records of the rows of TABLE with this KEY.

    KEY is a value of the table's key, binary as hex, or NAME=VALUE,NAME=VALUE with any of its columns. Write a comma in
    a VALUE as \\,. NAME= means that the column is null or empty.
    """
    from wirehouse_orchestration.evidence.trace import trace as follow

    follow(context.lake_to_read(), table, key, sys.stdout, pcap, as_json=as_json)


@click.command()
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
            print_json({"name": table.name, "kind": output.kind_of(table), "holds": table.comment} for table in listed)
        else:
            output.tables(listed)
    elif name in all_tables():
        table = all_tables()[name]
        if as_json:
            print_json({"column": one.name, "type": one.type, "holds": one.comment} for one in table.columns)
        else:
            output.columns(table)
    else:
        raise click.UsageError(f"there is no table {name}: `wirehouse tables --all` lists them")


@click.command()
@protocol_option
@json_option
def rules(protocol: str | None, as_json: bool) -> None:
    """List the rules that captured data is checked against."""
    from wirehouse_orchestration.terminal import output

    listed = PROTOCOLS[protocol].rules if protocol else all_rules().values()
    if as_json:
        print_json({"rule": rule.id, **asdict(rule)} for rule in listed)
    else:
        output.rules(listed)


@click.command()
@click.option("--from", "first", metavar="TIME", help="Begin, such as 2026-11-14T22:10 or -15m [the first window].")
@click.option("--to", "last", metavar="TIME", help="End, included, such as 2026-11-14 [the last window].")
@click.option("--source", metavar="NAME", help="Only this source.")
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
    """Write the dashboards as one HTML file. It covers a range of time, with findings and evidence."""
    from wirehouse_orchestration.dashboards.answers import Span
    from wirehouse_orchestration.dashboards.boards import boards
    from wirehouse_orchestration.dashboards.report import report as render_report
    from wirehouse_orchestration.terminal import output

    for name, value in {"--from": first, "--to": last, "--source": source}.items():
        if value == "":
            raise click.UsageError(f"{name} is empty")
    span = Span(first, last, source)
    lake = context.lake_to_read()
    with output.whole(out) as part, context.steps("report", len(boards()) + 1) as steps:
        span.check_data(lake)
        made = render_report(lake, span, steps.begin)
        part.write_text(made.page)
    if as_json:
        written = {"file": str(out), "from": first, "to": last, "source": source, "bytes": out.stat().st_size}
        print_json([written | {"failed": made.failed}])
    else:
        click.echo(f"{out}: {span}, {len(made.page) / 2**20:.1f} MiB")
    if made.failed:
        reasons = "; ".join(f"{chart}: {why}" for chart, why in made.failed.items())
        raise WirehouseError(reason=f"{out} lacks some charts: {reasons}")


COMMANDS: Final = (sql, inspect, trace, tables, rules, report)
