"""Options of a Hiero source: which API is spoken, how strictly it is read, how large things may be, and how long.

The specification gives no numbers for times; the windows here are those within which a reader of the wire takes a
message to have been under way, or an answer to belong to its cause.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from wirehouse_codecs.errors import OptionError
from wirehouse_codecs.hiero.profiles import AUTO, PROFILES

STRICT: Final = "strict"
TOLERANT: Final = "tolerant"
NS_PER_MS: Final = 1_000_000
#: The largest message that a block node takes, in bytes.
MOST_MESSAGE_BYTES: Final = 131_072_000
#: A block node answers SkipBlock at most so many blocks below its last one.
MOST_SKIPPED_BLOCKS: Final = 10
_DAY_MS: Final = 86_400_000
_MOST_PORT: Final = 65_535
_MOST_SERVICE: Final = 200


@dataclass(frozen=True, slots=True)
class HieroOptions:
    """What a source of Hiero captures or block files sets."""

    #: The name of a profile, or `auto`: the newest of the package in `:path`.
    profile: str = AUTO
    #: `strict`: the specification; `tolerant`: what real nodes do besides.
    reading: str = STRICT
    #: The largest message and the largest item of a block file, in bytes, inflated.
    max_message_bytes: int = MOST_MESSAGE_BYTES
    #: So long messages that crossed on the wire may still arrive, in milliseconds.
    in_flight_ms: int = 50
    #: So long a node has for telling all calls of its own error, in milliseconds.
    node_error_ms: int = 300
    #: After so long something that never came is missing, in milliseconds.
    patience_ms: int = 3_600_000
    #: So many blocks below L a node may answer SkipBlock in place of a duplicate.
    skipped_blocks: int = 5
    #: Ports of servers that only publish or only subscribe; they tell calls whose path can't be read.
    publish_ports: tuple[int, ...] = (40984,)
    subscribe_ports: tuple[int, ...] = (40980,)
    #: Sources of one block node have one name; None = the source stands alone.
    service: str | None = None

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> HieroOptions:
        """Options from a table of the configuration file.

        Raises OptionError for an unknown key, a wrong type, an unknown name or a number out of range.
        """
        for key in mapping:
            if key not in _READERS:
                raise OptionError(key=key, reason=f"unknown option, expected one of {', '.join(_READERS)}")
        return cls(**{key: read(mapping[key], key) for key, read in _READERS.items() if key in mapping})

    def canonical(self) -> str:
        """One JSON text for equal options: for digests, and read back by `from_canonical`."""
        table = {field.name: getattr(self, field.name) for field in fields(self)}
        return json.dumps({key: value for key, value in table.items() if value is not None}, separators=(",", ":"))

    @classmethod
    def from_canonical(cls, text: str) -> HieroOptions:
        """The options whose `canonical()` is `text`."""
        return cls.from_mapping(json.loads(text))

    @property
    def forced(self) -> str | None:
        """The profile's name; None = it is told from the path."""
        return None if self.profile == AUTO else self.profile

    @property
    def tolerant(self) -> bool:
        """What real nodes do besides the specification is no violation."""
        return self.reading == TOLERANT

    @property
    def in_flight_ns(self) -> int:
        """`in_flight_ms` in nanoseconds."""
        return self.in_flight_ms * NS_PER_MS

    @property
    def node_error_ns(self) -> int:
        """`node_error_ms` in nanoseconds."""
        return self.node_error_ms * NS_PER_MS

    @property
    def patience_ns(self) -> int:
        """`patience_ms` in nanoseconds."""
        return self.patience_ms * NS_PER_MS


def _one_of(names: tuple[str, ...]) -> Callable[[Any, str], str]:
    def read(value: Any, key: str) -> str:
        if not isinstance(value, str) or value not in names:
            raise OptionError(key=key, reason=f"must be one of {', '.join(names)}, not {value!r}")
        return value

    return read


def _whole(least: int, most: int) -> Callable[[Any, str], int]:
    def read(value: Any, key: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise OptionError(key=key, reason=f"must be a whole number, not {value!r}")
        if not least <= value <= most:
            raise OptionError(key=key, reason=f"must be at least {least} and at most {most}, not {value}")
        return value

    return read


def _ports(value: Any, key: str) -> tuple[int, ...]:
    if not isinstance(value, list | tuple):
        raise OptionError(key=key, reason=f"must be a list of TCP ports, not {value!r}")
    return tuple(_whole(1, _MOST_PORT)(port, key) for port in value)


def _name(value: Any, key: str) -> str:
    if not isinstance(value, str) or not value or len(value) > _MOST_SERVICE:
        raise OptionError(key=key, reason=f"must be a name of 1 to {_MOST_SERVICE} characters, not {value!r}")
    return value


_READERS: Mapping[str, Callable[[Any, str], Any]] = {
    "profile": _one_of((AUTO, *PROFILES)),
    "reading": _one_of((STRICT, TOLERANT)),
    "max_message_bytes": _whole(1, MOST_MESSAGE_BYTES),
    "in_flight_ms": _whole(0, _DAY_MS),
    "node_error_ms": _whole(0, _DAY_MS),
    "patience_ms": _whole(1, 30 * _DAY_MS),
    "skipped_blocks": _whole(1, MOST_SKIPPED_BLOCKS),
    "publish_ports": _ports,
    "subscribe_ports": _ports,
    "service": _name,
}
