"""Ranges of offsets of a broker's partitions: what a capture of a topic is.

An id is a pure function of cluster, topic, partition and offsets, so that a landing that was killed reads the same
records again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets `begin` up to `end` of a partition."""

    cluster_id: str
    topic: str
    topic_id: str
    partition: int
    begin: int
    end: int

    @property
    def partition_key(self) -> tuple[str, str, int]:
        """Of equal ones the offsets go on from one another: a topic that was made anew is another."""
        return self.cluster_id, self.topic_id, self.partition

    def to_json(self) -> str:
        """The range as text."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def capture_id(self) -> str:
        """A pure function of cluster, topic, partition and offsets."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @property
    def name(self) -> str:
        """As people read it."""
        return f"{self.topic}/{self.partition}/{self.begin}-{self.end}"


@dataclass(frozen=True, slots=True)
class Due:
    """A range to be landed, and where it should have begun."""

    range: OffsetRange
    expected: int

    @property
    def lost(self) -> int:
        """Offsets that the broker had let go of before they were landed."""
        return max(0, self.range.begin - self.expected)

    def as_begun(self, begun: OffsetRange | None) -> Iterator[Due]:
        """It, cut where a landing that wasn't ended would have: if that commits yet, it is the same capture."""
        if begun and begun.begin == self.range.begin and begun.end < self.range.end:
            yield Due(begun, self.expected)
            yield Due(replace(self.range, begin=begun.end), begun.end)
        else:
            yield self
