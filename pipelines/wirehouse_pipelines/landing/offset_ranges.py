"""OffsetRange: a range of offsets of one partition of a broker's topic, which is a capture.

The id of the capture is a pure function of cluster, topic, partition and offsets. So a landing that was killed can be
repeated and reads the same records under the same id.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

#: How many ranges of missing offsets a message lists.
MOST_GAPS: Final = 32


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of a partition from `begin` up to, not including, `end`."""

    cluster_id: str
    topic: str
    topic_id: str
    partition: int
    begin: int
    end: int

    @property
    def partition_key(self) -> tuple[str, str, int]:
        """Identifies the partition. A recreated topic has another id, as its offsets start again."""
        return self.cluster_id, self.topic_id, self.partition

    def to_json(self) -> str:
        """The range as JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def capture_id(self) -> str:
        """The id of the capture: SHA-256 of the range as JSON."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @property
    def name(self) -> str:
        """The range in a form for people."""
        return f"{self.topic}/{self.partition}/{self.begin}-{self.end}"


class Gaps:
    """Collects the offsets of a range that have no record, up to its last record."""

    def __init__(self, wanted: OffsetRange) -> None:
        self._next = wanted.begin
        self._ranges: list[tuple[int, int]] = []
        #: How many ranges of offsets have no record.
        self.count = 0

    def watch(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass through `batches` (MESSAGE_SCHEMA) and note gaps between their offsets."""
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
    """A range to land, and the offset at which it should have begun."""

    range: OffsetRange
    expected: int

    @property
    def lost(self) -> int:
        """The number of offsets that the broker deleted before they were landed."""
        return max(0, self.range.begin - self.expected)

    def as_begun(self, begun: OffsetRange | None) -> Iterator[Due]:
        """The range; if a landing of its beginning (`begun`) was interrupted, that part and the rest separately.

        So the repeated landing has the same capture id, even if the interrupted one still commits.
        """
        if begun and begun.begin == self.range.begin and begun.end < self.range.end:
            yield Due(begun, self.expected)
            yield Due(replace(self.range, begin=begun.end), begun.end)
        else:
            yield self
