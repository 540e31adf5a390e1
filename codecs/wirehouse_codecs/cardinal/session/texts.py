"""How messages of findings show locations, names and bytes from the wire."""

from __future__ import annotations

from typing import Final

from wirehouse_codecs.core.rules import Place

SHOWN_NAME_BYTES: Final = 120


def location(place: Place) -> str:
    """Topic, partition and offset of a record, or its number if it has no topic."""
    if place.topic is None:
        return f"record {place.record_number}"
    return f"{place.topic}:{place.partition}@{place.offset}"


def shown(name: bytes) -> str:
    """A name from the wire, printable and not too long."""
    if len(name) <= SHOWN_NAME_BYTES:
        return ascii(name)[1:]
    return f"{ascii(name[:SHOWN_NAME_BYTES])[1:]}… ({len(name)} bytes)"
