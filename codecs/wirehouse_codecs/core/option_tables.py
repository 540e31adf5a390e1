"""Protocol options from the configuration file: the base class of all option tables, and readers of values.

The options of a protocol are a frozen dataclass derived from OptionTable. Its READERS map the name of each option to
the function that checks and converts its value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar, Final, Protocol, Self

from wirehouse_codecs.core.errors import OptionError

NS_PER_S: Final = 1_000_000_000
NS_PER_MS: Final = 1_000_000
MOST_PORT: Final = 65_535
#: Maximum length of the name of a source or service.
NAME_CHARACTERS: Final = 64
#: Messages write larger limits as powers of two.
_MOST_WRITTEN: Final = 1 << 31
_NAME: Final = re.compile(rf"[a-z0-9_-]{{1,{NAME_CHARACTERS}}}")
#: Converts (value, key) to the value of an option, or raises OptionError with that key.
Read = Callable[[Any, str], Any]


class Options(Protocol):
    """Any class that can be read from a table of the configuration file."""

    #: The reader of each option, by name.
    READERS: ClassVar[Mapping[str, Read]]

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """Options from a table of the configuration file. Raises OptionError."""
        ...


class OptionTable:
    """Options read from a table of the configuration file; equal options have the same canonical text."""

    __slots__ = ()
    #: The reader of each option, by name, in the order of the canonical text.
    READERS: ClassVar[Mapping[str, Read]]

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """Options from a table of the configuration file.

        Raises OptionError for an unknown key, a value that its reader refuses, or options that contradict one another.
        """
        options = cls(**read_options(mapping, cls.READERS))
        options.check(mapping)
        return options

    def check(self, mapping: Mapping[str, Any]) -> None:
        """Raise OptionError if these options contradict one another. `mapping` has those that were configured."""

    @property
    def turned(self) -> bool:
        """Whether the side that accepted the connection is called the client in rows, and the other side the server."""
        return False

    @property
    def ports(self) -> tuple[int, ...]:
        """The servers' ports, if these options define the purpose of each port; else empty."""
        return ()

    def written(self) -> Mapping[str, Any]:
        """The options as they are written in the configuration file; None for one that isn't written."""
        return {name: plain(getattr(self, name)) for name in self.READERS}

    def canonical(self) -> str:
        """The options as JSON, the same text for equal options. Used in digests; `from_canonical` reads it."""
        set_ones = {key: value for key, value in self.written().items() if value is not None}
        return json.dumps(set_ones, separators=(",", ":"))

    @classmethod
    def from_canonical(cls, text: str) -> Self:
        """The options whose `canonical()` is `text`."""
        return cls.from_mapping(json.loads(text))


def read_options(mapping: Mapping[str, Any], readers: Mapping[str, Read]) -> dict[str, Any]:
    """The values of the options that are in `mapping`. Raises OptionError, also for a key without a reader."""
    options: dict[str, Any] = record(readers)(mapping, "")
    return options


def plain(value: Any) -> Any:
    """`value`, with 5.0 as 5, so that equal times have the same text."""
    return int(value) if isinstance(value, float) and value == int(value) else value


# Readers


def flag(value: Any, key: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise OptionError(key=key, reason=f"must be true or false, not {value!r}")
    return value


def text(value: Any, key: str) -> str:
    """A non-empty string."""
    if not isinstance(value, str) or not value:
        raise OptionError(key=key, reason=f"must be a text that isn't empty, not {value!r}")
    return value


def source_name(value: Any, key: str) -> str:
    """The name of a source, or of a service, which several sources share and whose traffic is judged together."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise OptionError(key=key, reason=f"must be of a-z, 0-9, _ and - ({NAME_CHARACTERS} at most), not {value!r}")
    return value


def one_of(names: Iterable[str]) -> Read:
    """One of `names`. For a StrEnum the value is its member."""
    known = {str(name): name for name in names}

    def read(value: Any, key: str) -> str:
        if not isinstance(value, str) or value not in known:
            raise OptionError(key=key, reason=f"must be one of {', '.join(known)}, not {value!r}")
        return known[value]

    return read


def whole(most: int, least: int = 1) -> Read:
    """A whole number from `least` to `most`."""
    bound = f"at most {most}" if most <= _MOST_WRITTEN else f"below 2^{most.bit_length()}"

    def read(value: Any, key: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise OptionError(key=key, reason=f"must be a whole number, not {value!r}")
        if not least <= value <= most:
            raise OptionError(key=key, reason=f"must be at least {least} and {bound}, not {value}")
        return value

    return read


def unsigned(bits: int) -> Read:
    """An unsigned whole number of `bits` bits."""
    return whole((1 << bits) - 1, 0)


port: Final = whole(MOST_PORT)


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


def list_of(read: Read) -> Read:
    """A list whose items `read` converts. The value is a tuple."""

    def read_all(value: Any, key: str) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise OptionError(key=key, reason=f"must be a list, not {value!r}")
        return tuple(read(item, f"{key}[{number}]") for number, item in enumerate(value))

    return read_all


def table(value: Any, key: str) -> Mapping[str, Any]:
    """A table with any keys."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise OptionError(key=key, reason=f"must be a table, not {value!r}")
    return value


def record(readers: Mapping[str, Read], needed: Collection[str] = ()) -> Read:
    """A table that has only keys of `readers` and all keys of `needed`. The value is a dict."""

    def read(value: Any, key: str) -> dict[str, Any]:
        within, found = f"{key}." if key else "", table(value, key)
        for name in found:
            if name not in readers:
                raise OptionError(key=f"{within}{name}", reason=f"unknown option, expected one of {', '.join(readers)}")
        for name in needed:
            if name not in found:
                raise OptionError(key=f"{within}{name}", reason="is missing")
        return {name: read(found[name], f"{within}{name}") for name, read in readers.items() if name in found}

    return read
