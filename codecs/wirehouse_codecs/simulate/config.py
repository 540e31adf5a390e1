"""Validation shared by the configurations of all simulators: choices, ranges, and the name of a fault."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf
from typing import Any

from wirehouse_codecs.core.errors import OptionError

#: The minimum and maximum of each option, by name; a maximum of None means no limit.
Bounds = Mapping[str, tuple[float, float | None]]


def check(
    config: Any, bounds: Bounds, faults: Collection[str], choices: Mapping[str, Collection[str]] | None = None
) -> None:
    """Raise OptionError for an option of `config` that is out of range, and for an unknown `fault`."""
    for key, names in (choices or {}).items():
        if getattr(config, key) not in names:
            raise OptionError(key=key, reason=f"must be one of {', '.join(names)}, not {getattr(config, key)!r}")
    for key, (least, most) in bounds.items():
        value = getattr(config, key)
        # Written this way round to refuse NaN too.
        if not least <= value <= (inf if most is None else most):
            allowed = f"at least {least}" if most is None else f"from {least} to {most}"
            raise OptionError(key=key, reason=f"must be {allowed}, not {value}")
    if config.fault is not None and config.fault not in faults:
        raise OptionError(key="fault", reason=f"no fault {config.fault!r}, there are {', '.join(faults)}")
