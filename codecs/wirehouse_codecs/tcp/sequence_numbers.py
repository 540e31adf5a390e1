"""Sequence numbers of TCP: 32 bits, after the last comes the first."""

from __future__ import annotations

from typing import Final

#: Sequence numbers this far from the expected one are not credible; senders have some MiB in flight at most.
WINDOW_BYTES: Final = 1 << 24
#: An acknowledgment up to this far beyond what was seen is believed alone; as many bytes as an unscaled window.
ACKNOWLEDGED_BYTES: Final = 1 << 16
SEQUENCE_MASK: Final = 2**32 - 1
#: The value in place of a sequence number that isn't known.
UNKNOWN: Final = -1


def distance(sequence: int, expected: int) -> int:
    """How far `sequence` is ahead, by the shorter way round; negative if it is behind."""
    return ((sequence - expected + 2**31) & SEQUENCE_MASK) - 2**31
