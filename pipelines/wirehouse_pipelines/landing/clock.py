"""Clock: assigns each record of a capture its arrival time, and reports odd times.

`ts_ns` is a record's own time, as captured. `arrived_at_ns` is the running maximum of `ts_ns` in the capture, and at
least the start of the lake. It never decreases, so it orders records even if clocks went back.

A time later than the moment of landing can't be right. It doesn't move the maximum, and is reported as
`capture.time_suspect`. A capture of packets whose times mostly decrease is reported as `capture.reversed`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wirehouse_codecs.captures.rules import RULE
from wirehouse_codecs.core.rules import Rule
from wirehouse_pipelines.lake.lake import PACKET_KINDS
from wirehouse_pipelines.lake.windows import NS_PER_SECOND
from wirehouse_pipelines.landing.manifests import (
    CaptureFinding,
)

#: The number of findings per rule that a manifest lists; the last one states how many more there are.
LISTED_FINDINGS: Final = 1_000
#: A capture is reversed if time decreases between packets at least this often, and increases at most a tenth as often.
LEAST_FALLS: Final = 3


class Clock:
    """Assigns arrival times to the records of one capture, in order, and collects findings about their times."""

    def __init__(self, start_ns: int, landed_at_ns: int) -> None:
        #: Arrival of the last record; `start_ns` before the first one.
        self.now = start_ns
        #: Arrival of the first record.
        self.first: int | None = None
        self.records = 0
        self._landed_at_ns = landed_at_ns
        self._suspects: list[CaptureFinding] = []
        self._suspect_count = 0
        #: How often `ts_ns` increased and decreased between records, and the last one.
        self._rises = self._falls = 0
        self._last: int | None = None

    def tick(self, ts_ns: pa.Array) -> npt.NDArray[np.int64]:
        """`arrived_at_ns` of the next records, whose own times are `ts_ns`."""
        self._compare(ts_ns)
        times = ts_ns.fill_null(np.iinfo(np.int64).min).to_numpy(zero_copy_only=False)
        suspect = times > self._landed_at_ns
        arrived = np.maximum.accumulate(np.maximum(np.where(suspect, np.iinfo(np.int64).min, times), self.now))
        found = np.flatnonzero(suspect)
        self._suspect_count += len(found)
        for i in found[: LISTED_FINDINGS - len(self._suspects)].tolist():
            self._suspects.append(self._suspicion(i, int(times[i]), int(arrived[i])))
        if len(arrived):
            self.first = int(arrived[0]) if self.first is None else self.first
            self.now = int(arrived[-1])
            self.records += len(arrived)
        return arrived

    def _compare(self, ts_ns: pa.Array) -> None:
        known = ts_ns.drop_null().to_numpy()
        if self._last is not None:
            known = np.concatenate([np.array([self._last], np.int64), known])
        self._rises += int(np.count_nonzero(known[1:] > known[:-1]))
        self._falls += int(np.count_nonzero(known[1:] < known[:-1]))
        self._last = int(known[-1]) if len(known) else None

    @property
    def reversed(self) -> CaptureFinding | None:
        """A finding if records are in reverse order of their times, else None."""
        if self._falls < LEAST_FALLS or self._rises * 10 > self._falls:
            return None
        message = (
            f"{self._falls:,} of {self.records:,} packets have an earlier time than the packet before them: the "
            f"capture is in reverse order, and its decoded messages are missing or wrong; land it in order of time"
        )
        return CaptureFinding(RULE["reversed"].id, None, self.now, message)

    def _suspicion(self, i: int, ts_ns: int, arrived_at_ns: int) -> CaptureFinding:
        rule: Rule = RULE["time_suspect"]
        ahead = (ts_ns - self._landed_at_ns) / NS_PER_SECOND
        message = f"time {ts_ns} ns is {ahead:.3f} s later than the landing at {self._landed_at_ns} ns"
        return CaptureFinding(rule.id, self.records + i, arrived_at_ns, message)

    def findings(self) -> tuple[CaptureFinding, ...]:
        """A finding for each suspect time, at most LISTED_FINDINGS."""
        more = self._suspect_count - len(self._suspects)
        if more:
            last = self._suspects[-1]
            message = f"{last.message}; {more} more later records are not listed"
            self._suspects[-1] = CaptureFinding(last.rule, last.record_number, last.arrived_at_ns, message)
        return tuple(self._suspects)


def capture_findings(clock: Clock, damage: str | None, landed_at_ns: int, kind: str) -> tuple[CaptureFinding, ...]:
    """The findings of a capture that was read to its end, or up to its `damage`."""
    found = clock.findings()
    if kind in PACKET_KINDS and clock.reversed:
        found = (*found, clock.reversed)
    if damage is None:
        return found
    arrived_at_ns = clock.now if clock.records else landed_at_ns
    return (*found, CaptureFinding(RULE["file_damaged"].id, None, arrived_at_ns, damage))
