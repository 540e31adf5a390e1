"""Reading values of options from the configuration file: what several tables of options have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from wirehouse_codecs.errors import OptionError

NS_PER_S: Final = 1_000_000_000
#: Gives the value of an option, or raises OptionError with the key it was given.
Read = Callable[[Any, str], Any]


def read_options(mapping: Mapping[str, Any], readers: Mapping[str, Read]) -> dict[str, Any]:
    """What `mapping` has of the options that there are readers for. Raises OptionError, also for an unknown key."""
    refuse_unknown(mapping, readers)
    return {key: read(mapping[key], key) for key, read in readers.items() if key in mapping}


def refuse_unknown(mapping: Mapping[str, Any], known: Mapping[str, Any], within: str = "") -> None:
    """Raise OptionError for a key that isn't one of `known`."""
    for key in mapping:
        if key not in known:
            raise OptionError(key=f"{within}{key}", reason=f"unknown option, expected one of {', '.join(known)}")


def whole(most: int) -> Read:
    """A whole number from 1 to `most`."""

    def read(value: Any, key: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise OptionError(key=key, reason=f"must be a whole number, not {value!r}")
        if not 1 <= value <= most:
            raise OptionError(key=key, reason=f"must be at least 1 and at most {most}, not {value}")
        return value

    return read


def seconds(most: int) -> Read:
    """A number of seconds above 0, up to `most`."""

    def read(value: Any, key: str) -> int | float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise OptionError(key=key, reason=f"must be a number of seconds, not {value!r}")
        # Also refuses NaN, which is above nothing.
        if not 0 < value <= most:
            raise OptionError(key=key, reason=f"must be above 0 and at most {most} seconds, not {value}")
        return value

    return read


def plain(number: int | float) -> int | float:
    """5.0 and 5 are one time, so they are one text."""
    return int(number) if number == int(number) else number
