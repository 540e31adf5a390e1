"""Our own misuse and refused configuration: exceptions that carry their fields, pickle, and say what to do.

Trouble in captured data is never one of these: malformed bytes become quarantine rows and broken rules
become violation rows.
"""

from __future__ import annotations

from typing import Any


class WirehouseError(Exception):
    """Base of every exception Wirehouse raises on purpose.

    Subclasses set `template`; it is filled from the keyword arguments, which stay readable as `fields`.
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
    """What the caller asked for can't be, and nothing was begun: the command line ends with another code for it."""


class OptionError(WirehouseError):
    """A protocol option is unknown, missing or of the wrong type. `key` is relative to the options table."""

    template = "{key}: {reason}"


class StateVersionError(WirehouseError):
    """Carried state was written by a version that this decoder can't read."""

    template = (
        "carried state of {what} has version {found}, this release reads {expected}: backfill from the first window"
    )


class StateDamagedError(WirehouseError):
    """Carried state isn't what any version of the decoder wrote."""

    template = "carried state of {what} can't be read ({reason}): run the window before it again"
