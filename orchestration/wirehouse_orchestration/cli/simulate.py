"""`wirehouse simulate PROTOCOL`: every protocol's simulator as a command, its configuration as options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, fields
from datetime import UTC, datetime
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from wirehouse_codecs.core.errors import OptionError
from wirehouse_orchestration.terminal.render import plain
from wirehouse_pipelines.lake.protocols import PROTOCOLS

#: Field types of a SimulatorConfig (as annotations are written) that an option can give.
TYPES: dict[str, click.ParamType[Any]] = {
    "int": click.INT,
    "float": click.FLOAT,
    "str | None": click.STRING,
    "str": click.STRING,
}


class Simulators(click.Group):
    """One command a protocol, made when it is asked for: simulators take a moment to import."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Protocols."""
        return list(PROTOCOLS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of protocol `cmd_name`, or None."""
        return _command(cmd_name) if cmd_name in PROTOCOLS else None


def _command(protocol: str) -> click.Command:
    simulator = import_module(f"wirehouse_codecs.{protocol}.simulator.simulator")
    options: list[click.Parameter] = [_option(each, simulator) for each in fields(simulator.SimulatorConfig)]
    records, suffixes = simulator.RECORDS, " or ".join(simulator.WRITERS)
    title = PROTOCOLS[protocol].title
    article = "an" if title[0] in "AEIO" else "a"
    return click.Command(
        protocol,
        callback=_callback(simulator),
        params=[
            click.Option(
                ["--out"],
                required=True,
                type=click.Path(path_type=Path),
                help=f"What to write: {suffixes}.",
            ),
            click.Option([f"--{records}", "most"], type=click.IntRange(min=0), help=f"Stop after this many {records}."),
            *options,
        ],
        help=f"Write a simulated {title} stream. The same options give the same file.\n\n\b\nIncidents:\n"
        + "\n".join(f"  {name}: {incident.what}" for name, incident in simulator.INCIDENTS.items()),
        short_help=f"{article.capitalize()} {title} stream.",
    )


def _option(field: Field[Any], simulator: Any) -> click.Option:
    name = _flag(field.name).removeprefix("--")
    if str(field.type) == "bool":
        return click.Option([f"--{name}/--no-{name}"], default=field.default, show_default=True)
    named = {"fault": simulator.FAULTS, "incident": simulator.INCIDENTS}
    kind = click.Choice(list(named[field.name])) if field.name in named else TYPES[str(field.type)]
    return click.Option([f"--{name}"], type=kind, default=field.default, show_default=field.default is not None)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _callback(simulator: Any) -> Callable[..., None]:
    def write(out: Path, most: int | None, **options: Any) -> None:
        if options["incident"] is not None:
            context = click.get_current_context()
            settings = simulator.INCIDENTS[options["incident"]].settings
            given = {name for name in options if context.get_parameter_source(name) is not ParameterSource.DEFAULT}
            options |= {name: value for name, value in settings.items() if name not in given}
        try:
            config = simulator.SimulatorConfig(**options)
        except OptionError as error:
            raise click.BadParameter(str(error.fields["reason"]), param_hint=_flag(error.fields["key"])) from None
        truth = None if config.incident is None else _truth(simulator, config)
        suffixes = simulator.WRITERS
        suffix = next((suffix for suffix in suffixes if out.name.endswith(suffix)), None)
        if suffix is None:
            raise click.BadParameter(f"must end in {' or '.join(suffixes)}", param_hint="--out")
        # Some simulators write other things than what `simulate` gives, too.
        others = getattr(simulator, "OTHER_RECORDS", {})
        records, make = others.get(suffix, (simulator.RECORDS, simulator.simulate))
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            written = suffixes[suffix](islice(make(config), most), out)
        except OSError as error:
            raise click.BadParameter(f"{out}: {error.strerror}", param_hint="--out") from None
        size = sum(path.stat().st_size for path in (out.iterdir() if out.is_dir() else [out]))
        click.echo(f"{written:,} {records}, {size:,} bytes in {out}")
        if truth is not None:
            click.echo(truth)

    return write


def _truth(simulator: Any, config: Any) -> str:
    """The truth about an incident, to compare with the tables. Raises BadParameter if it does not begin."""
    truth = dict(simulator.INCIDENTS[config.incident].truth(config))
    if not truth:
        reason = f"{config.incident} does not begin: the stream is too short, or nobody is there whom it affects"
        raise click.BadParameter(reason, param_hint="--incident")
    since = datetime.fromtimestamp(truth.pop("since_ns") / 1e9, UTC).isoformat(timespec="milliseconds")
    affected = ", ".join(f"{name} {plain(value)}" for name, value in truth.items() if value is not None)
    return f"{config.incident} since {since.removesuffix('+00:00')}: {affected}"
