"""Options of a Wallaroo source: which dialect is spoken, how large frames may be, how long credits may stay out.

The specification leaves the limit on frames to the configuration ([B1]) and says no time for anything; the times here
are those after which a reader of the wire takes what never came for missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from wirehouse_codecs.errors import OptionError
from wirehouse_codecs.wallaroo.messages import DIALECTS, Dialect, VersionForm

AUTO: Final = "auto"
NS_PER_S: Final = 1_000_000_000
#: The largest frame that may be configured, in bytes: of each side one may be unfinished, and is carried on.
MOST_FRAME_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class WallarooOptions:
    """What a source of Wallaroo captures sets."""

    #: The name of a dialect, or `auto`: told from the first frames.
    dialect: str = AUTO
    #: The largest length of a frame; None = the dialect's own limit.
    max_frame_bytes: int | None = None
    #: So long the connector may be without credit, in seconds.
    ack_timeout_s: int | float = 10
    #: So long a side may leave a connection open after an ERROR, or go on after a violation, in seconds.
    close_timeout_s: int | float = 5
    #: How a HELLO of the specification's text writes its version, or `auto`: as it fits.
    seed_version: str = AUTO

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> WallarooOptions:
        """Options from a table of the configuration file.

        Raises OptionError for an unknown key, a wrong type, an unknown name or a number out of range.
        """
        for key in mapping:
            if key not in _READERS:
                raise OptionError(key=key, reason=f"unknown option, expected one of {', '.join(_READERS)}")
        return cls(**{key: read(mapping[key], key) for key, read in _READERS.items() if key in mapping})

    def canonical(self) -> str:
        """One JSON text for equal options: for digests, and read back by `from_canonical`."""
        table = {
            "dialect": self.dialect,
            "max_frame_bytes": self.max_frame_bytes,
            "ack_timeout_s": _plain(self.ack_timeout_s),
            "close_timeout_s": _plain(self.close_timeout_s),
            "seed_version": self.seed_version,
        }
        return json.dumps({key: value for key, value in table.items() if value is not None}, separators=(",", ":"))

    @classmethod
    def from_canonical(cls, text: str) -> WallarooOptions:
        """The options whose `canonical()` is `text`."""
        return cls.from_mapping(json.loads(text))

    @property
    def forced(self) -> str | None:
        """The dialect's name; None = it is told from the frames."""
        return None if self.dialect == AUTO else self.dialect

    @property
    def version_form(self) -> VersionForm | None:
        """How a HELLO of the text writes its version; None = as it fits."""
        return None if self.seed_version == AUTO else VersionForm(self.seed_version)

    @property
    def ack_timeout_ns(self) -> int:
        """`ack_timeout_s` in nanoseconds."""
        return round(self.ack_timeout_s * NS_PER_S)

    @property
    def close_timeout_ns(self) -> int:
        """`close_timeout_s` in nanoseconds."""
        return round(self.close_timeout_s * NS_PER_S)

    def limit(self, dialect: Dialect) -> int:
        """The largest length of a frame in `dialect`."""
        return dialect.max_frame_bytes if self.max_frame_bytes is None else self.max_frame_bytes


def _plain(seconds: int | float) -> int | float:
    """5.0 and 5 are one time, so they are one text."""
    return int(seconds) if seconds == int(seconds) else seconds


def _one_of(names: list[str]) -> Callable[[Any, str], str]:
    def read(value: Any, key: str) -> str:
        if not isinstance(value, str) or value not in names:
            raise OptionError(key=key, reason=f"must be one of {', '.join(names)}, not {value!r}")
        return value

    return read


def _frame_bytes(value: Any, key: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise OptionError(key=key, reason=f"must be a whole number, not {value!r}")
    if not 1 <= value <= MOST_FRAME_BYTES:
        raise OptionError(key=key, reason=f"must be at least 1 and at most {MOST_FRAME_BYTES}, not {value}")
    return value


def _seconds(value: Any, key: str) -> int | float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise OptionError(key=key, reason=f"must be a number of seconds, not {value!r}")
    # Also refuses NaN, which is above nothing.
    if not 0 < value <= 86_400:
        raise OptionError(key=key, reason=f"must be above 0 and at most 86400 seconds, not {value}")
    return value


_READERS: Mapping[str, Callable[[Any, str], Any]] = {
    "dialect": _one_of([AUTO, *(name for name in DIALECTS)]),
    "max_frame_bytes": _frame_bytes,
    "ack_timeout_s": _seconds,
    "close_timeout_s": _seconds,
    "seed_version": _one_of([AUTO, *(form.value for form in VersionForm)]),
}
