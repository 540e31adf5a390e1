"""Validation shared by the configurations of all simulators: choices, ranges, names of a fault and an incident."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf
from typing import Any

from wirehouse_codecs.core.errors import OptionError

#: The minimum and maximum of each option, by name; a maximum of None means no limit.
Bounds = Mapping[str, tuple[float, float | None]]


def check(
    config: Any,
    bounds: Bounds,
    faults: Collection[str],
    incidents: Collection[str],
    choices: Mapping[str, Collection[str]] | None = None,
) -> None:
    """Raise OptionError for an option of `config` out of range, and for an unknown `fault` or `incident`."""
    for key, names in (choices or {}).items():
        if getattr(config, key) not in names:
            raise OptionError(key=key, reason=f"must be one of {', '.join(names)}, not {getattr(config, key)!r}")
    for key, (least, most) in bounds.items():
        value = getattr(config, key)
        # Written this way round to refuse NaN too.
        if not least <= value <= (inf if most is None else most):
            allowed = f"at least {least}" if most is None else f"from {least} to {most}"
            raise OptionError(key=key, reason=f"must be {allowed}, not {value}")
    for key, names in (("fault", faults), ("incident", incidents)):
        name = getattr(config, key)
        if name is not None and name not in names:
            raise OptionError(key=key, reason=f"no {key} {name!r}, there are {', '.join(names)}")
