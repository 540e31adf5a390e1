"""The `wirehouse` command: land captures, keep the tables up to date, query them, look inside.

Exit codes: 0 success, even if the captured traffic broke rules; 1 a job or a check of our own tables failed; 2 wrong
configuration or usage. The commands are in `change`, `read` and `serve`. Each imports Spark or Dagster, which take
seconds, only when it needs them.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from wirehouse_codecs.core.errors import UsageError, WirehouseError
from wirehouse_orchestration import config
from wirehouse_orchestration.cli import change, read, serve
from wirehouse_orchestration.cli.context import Context, json_option, pass_context
from wirehouse_orchestration.cli.exports import Exports
from wirehouse_orchestration.cli.simulate import Simulators
from wirehouse_orchestration.terminal import render

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


class _ReaderGone(Exception):
    """The process that read our output ended (`| head`)."""


class _Commands(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; click would exit with 1 when a reader goes away."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _ReaderGone from None


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="wirehouse", message="%(prog)s %(version)s")
@click.option("--config", "file", metavar="FILE", help=f"Configuration [{config.VARIABLE}, else ./{config.DEFAULT}].")
@click.option("--verbose", is_flag=True, help="Show where an error comes from.")
@click.option("--quiet", is_flag=True, help="Show no progress, only results and errors.")
@click.pass_context
def cli(ctx: click.Context, file: str | None, verbose: bool, quiet: bool) -> None:
    """A lakehouse for wire protocols.

    What was sent, was it legal, what state resulted, and which bytes prove it.
    """
    ctx.obj = Context(file, verbose=verbose, quiet=quiet)
    # Dagster, which we may start, reads it there.
    if file:
        os.environ[config.VARIABLE] = str(Path(file).absolute())


@cli.command(cls=Simulators)
def simulate() -> None:
    """Write a simulated stream: legal, with a fault, or an incident."""


@cli.command(cls=Exports)
def export() -> None:
    """Write what the lake knows in a protocol's own form of file."""


@cli.command()
@json_option
@pass_context
def doctor(context: Context, as_json: bool) -> None:
    """Report what is missing on this machine and how to mend it."""
    from wirehouse_orchestration.cli.doctor import examine

    if not examine(context.file, as_json=as_json):
        raise SystemExit(FAILED)


for _module in (change, read, serve):
    for _command in _module.COMMANDS:
        cli.add_command(_command)


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
        for line in _lines(error, verbose):
            _say(line)
        return USAGE if isinstance(error, UsageError) else FAILED


def _lines(error: Exception, verbose: bool) -> list[str]:
    """What went wrong: a line for each mistake of a user, else one line."""
    if isinstance(error, UsageError):
        return [" ".join(line.split()) for line in str(error).splitlines()]
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, WirehouseError):
        return [text]
    more = "" if verbose else " (`wirehouse --verbose ...` shows where)"
    return [f"{type(error).__name__}: {text[:500]}{more}"]


def _say(text: str) -> None:
    Console(stderr=True, soft_wrap=True).print(Text.assemble(("wirehouse: ", "bold red"), render.terminal(text)))


def _flush() -> None:
    """Flush the output. If its reader went away, discard the rest, so that Python does not complain at its end."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
