"""Options of a Wallaroo source: which dialect is spoken, how large frames may be, how long credits may stay out.

The specification leaves the limit on frames to the configuration ([B1]) and says no time for anything; the times here
are those after which a reader of the wire takes what never came for missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from wirehouse_codecs.errors import OptionError
from wirehouse_codecs.option_values import NS_PER_S, Read, plain, read_options, seconds, whole
from wirehouse_codecs.wallaroo.messages import DIALECTS, Dialect, VersionForm

AUTO: Final = "auto"
#: The largest frame that may be configured, in bytes: of each side one may be unfinished, and is carried on.
MOST_FRAME_BYTES: Final = 4 << 20
#: The longest time that may be configured.
MOST_SECONDS: Final = 86_400


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
        return cls(**read_options(mapping, _READERS))

    def canonical(self) -> str:
        """One JSON text for equal options: for digests, and read back by `from_canonical`."""
        table = {
            "dialect": self.dialect,
            "max_frame_bytes": self.max_frame_bytes,
            "ack_timeout_s": plain(self.ack_timeout_s),
            "close_timeout_s": plain(self.close_timeout_s),
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


def _one_of(names: list[str]) -> Read:
    def read(value: Any, key: str) -> str:
        if not isinstance(value, str) or value not in names:
            raise OptionError(key=key, reason=f"must be one of {', '.join(names)}, not {value!r}")
        return value

    return read


_READERS: Mapping[str, Read] = {
    "dialect": _one_of([AUTO, *(name for name in DIALECTS)]),
    "max_frame_bytes": whole(MOST_FRAME_BYTES),
    "ack_timeout_s": seconds(MOST_SECONDS),
    "close_timeout_s": seconds(MOST_SECONDS),
    "seed_version": _one_of([AUTO, *(form.value for form in VersionForm)]),
}
