"""Exceptions for misuse of Wirehouse and for invalid configuration.

Each exception keeps the values it was raised with, can be pickled, and states what to do. Captured data never raises
one of them: malformed bytes become quarantine rows, and broken rules become violation rows.
"""

from __future__ import annotations

from typing import Any


class WirehouseError(Exception):
    """Base of every exception Wirehouse raises on purpose.

    A subclass sets `template`. The message is the template filled with the keyword arguments, which are kept in
    `fields`.
    """

    template = "{reason}"
    retry_helps = False

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        super().__init__(self.template.format(**fields))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.fields)


def _rebuild(kind: type[WirehouseError], fields: dict[str, Any]) -> WirehouseError:
    return kind(**fields)


class UsageError(WirehouseError):
    """The request is impossible, and nothing was started. The command line has an exit code of its own for it."""


class OptionError(WirehouseError):
    """A protocol option is unknown, missing or of the wrong type. `key` is relative to the options table."""

    template = "{key}: {reason}"


class StateVersionError(WirehouseError):
    """Carried state was written by a version that this decoder can't read."""

    template = (
        "carried state of {what} has version {found}, this release reads {expected}: backfill from the first window"
    )


class StateDamagedError(WirehouseError):
    """No version of the decoder can have written this carried state."""

    template = "carried state of {what} can't be read ({reason}): run the window before it again"
