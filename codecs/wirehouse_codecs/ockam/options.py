"""Options of an Ockam source: which service it captures, under which addresses, and how it is spoken to.

The specification names no address ("assume it's stream_service") and no time; the defaults are the addresses that its
text and the implementations use, and the time after which a reader of the wire takes what never came for missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from wirehouse_codecs.errors import OptionError

NS_PER_S: Final = 1_000_000_000
#: The largest frame that may be configured, in bytes: of each side one may be unfinished, and is carried on.
MOST_FRAME_BYTES: Final = 16 << 20
#: Addresses that may be configured, and characters of one.
MOST_ADDRESSES: Final = 64
MOST_ADDRESS_CHARACTERS: Final = 255
_SERVICE: Final = re.compile(r"[a-z0-9_-]{1,100}")


class EnvelopeChoice(StrEnum):
    """How routed messages are written: 16-bit lengths and BARE, 32-bit lengths and CBOR, or told from the bytes."""

    AUTO = "auto"
    BARE = "bare"
    CBOR = "cbor"


class IndexConvention(StrEnum):
    """What a saved index is: that of the next message to pull, or of the last one processed."""

    NEXT = "next"
    PROCESSED = "processed"


@dataclass(frozen=True, slots=True)
class OckamOptions:
    """What a source of Ockam captures sets."""

    #: The service that is captured: sources with one service are judged together; None = this source alone.
    service: str | None = None
    envelope: EnvelopeChoice = EnvelopeChoice.AUTO
    index_convention: IndexConvention = IndexConvention.NEXT
    #: So long a request may be open, in seconds of arrival.
    answer_timeout_s: int | float = 3600
    #: Local addresses of stream services and of index services.
    stream_services: tuple[str, ...] = ("stream", "stream_kafka", "stream_service")
    index_services: tuple[str, ...] = ("stream_index", "stream_kafka_index", "stream_index_service")
    #: The largest length of a frame; None = the envelope's own limit.
    max_frame_bytes: int | None = None

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> OckamOptions:
        """Options from a table of the configuration file.

        Raises OptionError for an unknown key, a wrong type, an unknown name, a number out of range, or an address that
        is both a stream's and an index's service.
        """
        for key in mapping:
            if key not in _READERS:
                raise OptionError(key=key, reason=f"unknown option, expected one of {', '.join(_READERS)}")
        options = cls(**{key: read(mapping[key], key) for key, read in _READERS.items() if key in mapping})
        both = sorted(set(options.stream_services) & set(options.index_services))
        if both:
            raise OptionError(key="index_services", reason=f"{both[0]!r} is one of stream_services as well")
        return options

    def canonical(self) -> str:
        """One JSON text for equal options: for digests, and read back by `from_canonical`."""
        table = {
            "service": self.service,
            "envelope": self.envelope,
            "index_convention": self.index_convention,
            "answer_timeout_s": _plain(self.answer_timeout_s),
            "stream_services": sorted(self.stream_services),
            "index_services": sorted(self.index_services),
            "max_frame_bytes": self.max_frame_bytes,
        }
        return json.dumps({key: value for key, value in table.items() if value is not None}, separators=(",", ":"))

    @classmethod
    def from_canonical(cls, text: str) -> OckamOptions:
        """The options whose `canonical()` is `text`; the order of addresses, which means nothing, may differ."""
        return cls.from_mapping(json.loads(text))

    @property
    def answer_timeout_ns(self) -> int:
        """`answer_timeout_s` in nanoseconds."""
        return round(self.answer_timeout_s * NS_PER_S)


def _plain(seconds: int | float) -> int | float:
    """5.0 and 5 are one time, so they are one text."""
    return int(seconds) if seconds == int(seconds) else seconds


def _one_of(names: type[StrEnum]) -> Callable[[Any, str], StrEnum]:
    def read(value: Any, key: str) -> StrEnum:
        if not isinstance(value, str) or value not in list(names):
            raise OptionError(key=key, reason=f"must be one of {', '.join(names)}, not {value!r}")
        return names(value)

    return read


def _service(value: Any, key: str) -> str:
    if not isinstance(value, str) or not _SERVICE.fullmatch(value):
        raise OptionError(key=key, reason=f"must be 1 to 100 of a-z, 0-9, _ and -, not {value!r}")
    return value


def _addresses(value: Any, key: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MOST_ADDRESSES:
        raise OptionError(key=key, reason=f"must be a list of 1 to {MOST_ADDRESSES} addresses, not {value!r}")
    for number, address in enumerate(value):
        if not isinstance(address, str) or not 1 <= len(address) <= MOST_ADDRESS_CHARACTERS:
            reason = f"must be a text of 1 to {MOST_ADDRESS_CHARACTERS} characters, not {address!r}"
            raise OptionError(key=f"{key}[{number}]", reason=reason)
    return tuple(dict.fromkeys(value))


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
    "service": _service,
    "envelope": _one_of(EnvelopeChoice),
    "index_convention": _one_of(IndexConvention),
    "answer_timeout_s": _seconds,
    "stream_services": _addresses,
    "index_services": _addresses,
    "max_frame_bytes": _frame_bytes,
}
