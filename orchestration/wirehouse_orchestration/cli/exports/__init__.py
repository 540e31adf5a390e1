"""`wirehouse export PROTOCOL`: what a lake knows, as files of the protocol's own form. One module for each protocol."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import click


class Exports(click.Group):
    """One command for each protocol that has such files. They are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Protocols."""
        return sorted(module.name for module in iter_modules(__path__))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of protocol `cmd_name`, or None."""
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = import_module(f"{__name__}.{cmd_name}").export
        return command
