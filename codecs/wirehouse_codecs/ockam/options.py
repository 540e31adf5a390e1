"""Options of an Ockam source: which service it captures, under which addresses, and how it is spoken to.

The specification names no address ("assume it's stream_service") and no time; the defaults are the addresses that its
text and the implementations use, and the time after which a reader of the wire takes what never came for missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Final

from wirehouse_codecs.core.errors import OptionError
from wirehouse_codecs.core.option_tables import (
    NS_PER_S,
    OptionTable,
    Read,
    list_of,
    one_of,
    seconds,
    source_name,
    whole,
)

#: The largest frame that may be configured, in bytes: of each side one may be unfinished, and is carried on.
MOST_FRAME_BYTES: Final = 16 << 20
#: Addresses that may be configured, and characters of one.
MOST_ADDRESSES: Final = 64
MOST_ADDRESS_CHARACTERS: Final = 255
MOST_SECONDS: Final = 86_400


class EnvelopeChoice(StrEnum):
    """How routed messages are written: 16-bit lengths and BARE, 32-bit lengths and CBOR, or known from the bytes."""

    AUTO = "auto"
    BARE = "bare"
    CBOR = "cbor"


class IndexConvention(StrEnum):
    """What a saved index is: that of the next message to pull, or of the last one processed."""

    NEXT = "next"
    PROCESSED = "processed"


def _address(value: Any, key: str) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= MOST_ADDRESS_CHARACTERS:
        reason = f"must be a text of 1 to {MOST_ADDRESS_CHARACTERS} characters, not {value!r}"
        raise OptionError(key=key, reason=reason)
    return value


def _addresses(value: Any, key: str) -> tuple[str, ...]:
    addresses = tuple(dict.fromkeys(list_of(_address)(value, key)))
    if not 1 <= len(addresses) <= MOST_ADDRESSES:
        raise OptionError(key=key, reason=f"must be 1 to {MOST_ADDRESSES} addresses, not {len(addresses)}")
    return addresses


@dataclass(frozen=True, slots=True)
class OckamOptions(OptionTable):
    """What a source of Ockam captures sets."""

    READERS: ClassVar[Mapping[str, Read]] = {
        "service": source_name,
        "envelope": one_of(EnvelopeChoice),
        "index_convention": one_of(IndexConvention),
        "answer_timeout_s": seconds(MOST_SECONDS),
        "stream_services": _addresses,
        "index_services": _addresses,
        "max_frame_bytes": whole(MOST_FRAME_BYTES),
    }

    #: The service that is captured: sources with one service are judged together; None = this source alone.
    service: str | None = None
    envelope: EnvelopeChoice = EnvelopeChoice.AUTO
    index_convention: IndexConvention = IndexConvention.NEXT
    #: How long a request may be open, in seconds of arrival.
    answer_timeout_s: int | float = 3600
    #: Local addresses of stream services and of index services.
    stream_services: tuple[str, ...] = ("stream", "stream_kafka", "stream_service")
    index_services: tuple[str, ...] = ("stream_index", "stream_kafka_index", "stream_index_service")
    #: The largest length of a frame; None = the envelope's own limit.
    max_frame_bytes: int | None = None

    def check(self, mapping: Mapping[str, Any]) -> None:
        """No address is both a stream's and an index's service."""
        both = sorted(set(self.stream_services) & set(self.index_services))
        if both:
            raise OptionError(key="index_services", reason=f"{both[0]!r} is one of stream_services as well")

    def written(self) -> Mapping[str, Any]:
        """The order of addresses means nothing."""
        services = {name: sorted(getattr(self, name)) for name in ("stream_services", "index_services")}
        return {**OptionTable.written(self), **services}

    @property
    def answer_timeout_ns(self) -> int:
        """`answer_timeout_s` in nanoseconds."""
        return round(self.answer_timeout_s * NS_PER_S)
