"""Commands that serve on this machine: ui, dashboard, sql-server, infra."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from wirehouse_orchestration import config
from wirehouse_orchestration.cli.context import (
    Context,
    json_option,
    pass_context,
    print_json,
)
from wirehouse_orchestration.servers import ports

if TYPE_CHECKING:
    pass


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), help=f"Port on this machine [{ports.UI}, else a free one].")
@click.option(
    "--metrics-port",
    type=click.IntRange(1, 65535),
    help=f"Port of /metrics for Prometheus [{ports.METRICS}, else a free one].",
)
@pass_context
def ui(context: Context, port: int | None, metrics_port: int | None) -> None:
    """Serve Dagster's UI and /metrics on this machine. Schedules and sensors are on until Ctrl-C."""
    from wirehouse_orchestration.dagster.ui import serve
    from wirehouse_orchestration.dashboards import metrics

    file = context.file_or_demo()
    lake = config.load(file)
    with metrics.serving(lake, metrics_port, click.echo):
        serve(lake, file, port, click.echo)


@click.command()
@click.option(
    "--port", type=click.IntRange(1, 65535), help=f"Port on this machine [{ports.DASHBOARD}, else a free one]."
)
@pass_context
def dashboard(context: Context, port: int | None) -> None:
    """Serve the dashboards on this machine. Charts link to their SQL, rows and bytes."""
    from wirehouse_orchestration.dashboards.serving import serve

    serve(context.lake_to_read(), port, click.echo)


@click.command("sql-server")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=ports.SQL, show_default=True, help="Port on this machine."
)
@click.option(
    "--passwords",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Admit only the names in FILE [anyone who can reach the port].",
)
@click.option("--set-password", "name", metavar="NAME", help="Set the password of NAME in FILE and exit.")
@click.option(
    "--most-seconds",
    type=click.IntRange(0),
    default=600,
    show_default=True,
    help="Stop a statement after this time; 0 for never.",
)
@pass_context
def sql_server(context: Context, port: int, passwords: Path | None, name: str | None, most_seconds: int) -> None:
    """Serve the tables to JDBC, PyHive and BI tools. They are read-only. Ctrl-C ends it."""
    from wirehouse_orchestration.query import sql_server as server

    if name is not None:
        if passwords is None:
            raise click.UsageError("--set-password needs --passwords FILE")
        server.set_password(passwords, name, click.prompt("password", hide_input=True, confirmation_prompt=True))
        return
    server.serve(context.lake_to_read(), port, passwords, most_seconds, click.echo)


@click.group()
def infra() -> None:
    """Run real servers on this machine.

    SERVER is store (or versitygw), kafka, postgres or spark.
    """


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
    """List the servers and show which are running."""
    from wirehouse_orchestration.infra import server as servers

    for server in servers.status(names):
        if as_json:
            print_json([server])
            continue
        processes = " ".join(map(str, server["processes"]))
        state = f"{server['state']}, process {processes}" if processes else server["state"]
        click.echo(f"{server['name']:<10} {state:<24} {server['title']}")


COMMANDS: Final = (ui, dashboard, sql_server, infra)
