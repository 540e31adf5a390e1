"""What the commands share: where the configuration is, options that several have, JSON output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import click

from wirehouse_orchestration import config
from wirehouse_orchestration.terminal import render
from wirehouse_orchestration.terminal.progress import Steps
from wirehouse_pipelines.lake import lake_json
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.protocols import PROTOCOLS

#: Exit code 1 without another reason.
OWN_FAULT: Final = "a job or a check of our own tables failed: the lines above, or `wirehouse ui`, show which"

protocol_option = click.option("--protocol", type=click.Choice(list(PROTOCOLS)), help="Only this protocol.")
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")


class Context:
    """Options of the command itself. A command that needs the lake asks for it here."""

    def __init__(self, file: str | None, *, verbose: bool, quiet: bool) -> None:
        self.file = file
        self.verbose = verbose
        self.quiet = quiet

    def steps(self, title: str, total: int) -> Steps:
        """Progress over `total` steps; silent with --quiet."""
        return Steps(title, total, quiet=self.quiet)

    def lake(self) -> Lake:
        """The configured lake; ConfigError if it can't be used."""
        lake = config.load(self.file)
        lake_json.check(lake)
        return lake

    def lake_to_read(self) -> Lake:
        """The lake of a command that only reads: without a configuration, the demo's lake if there is one."""
        lake = config.load(self.file_or_demo())
        if not lake_json.begun(lake) and not self.quiet:
            click.echo(f"nothing has landed in {lake.root} yet: `{config.command()} land` begins it", err=True)
        return lake

    def file_or_demo(self) -> Path:
        """The configuration file; if it does not exist, the demo's if there is one."""
        file, demo_file = config.place(self.file), Path(config.DEMO, config.DEFAULT)
        if file == Path(config.DEFAULT) and not file.exists() and demo_file.exists():
            click.echo(f"there is no {file}: this is the demo's lake, {demo_file}", err=True)
            return demo_file
        return file


pass_context = click.make_pass_decorator(Context)


def complete_table(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Names of tables that begin with `begun`, for completion in the shell."""
    from wirehouse_pipelines.tables import all_tables

    return [name for name in all_tables() if name.startswith(begun)]


def print_json(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print each row as a JSON object on a line of its own."""
    for row in rows:
        click.echo(render.json_line(row))
