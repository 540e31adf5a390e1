"""Ranges of offsets of a broker's partitions: what a capture of a topic is.

An id is a pure function of cluster, topic, partition and offsets, so that a landing that was killed reads the same
records again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

#: So many ranges of missing offsets are named.
MOST_GAPS: Final = 32


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


class Gaps:
    """The offsets of a range that come without a record, up to its last record."""

    def __init__(self, wanted: OffsetRange) -> None:
        self._next = wanted.begin
        self._ranges: list[tuple[int, int]] = []
        #: How many ranges.
        self.count = 0

    def watch(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """`batches` of MESSAGE_SCHEMA as they are."""
        for batch in batches:
            offsets = batch.column("offset").to_numpy()
            before = np.concatenate([[self._next - 1], offsets[:-1]])
            at = np.flatnonzero(offsets > before + 1)
            self.count += len(at)
            for index in at[: MOST_GAPS - len(self._ranges)].tolist():
                self._ranges.append((int(before[index]) + 1, int(offsets[index]) - 1))
            if len(offsets):
                self._next = int(offsets[-1]) + 1
            yield batch

    def __str__(self) -> str:
        shown = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in self._ranges)
        more = self.count - len(self._ranges)
        return f"{shown} and {more} more ranges" if more else shown


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
