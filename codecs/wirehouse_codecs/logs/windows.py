"""Turns segments into the rows of logs through consecutive windows. Spark runs this for each port pair.

The input is the segments of one port pair after the other, in order of arrival. Each port pair has a
`logs.flow_log.FlowLog`. If a protocol shares state between connections, `GatheredFlows` reads all port pairs between
two addresses together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from operator import attrgetter
from typing import Final

import pyarrow as pa

from wirehouse_codecs.core.errors import StateDamagedError
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.core.snapshots import NO_STATE
from wirehouse_codecs.logs.flow_log import FlowLog
from wirehouse_codecs.logs.rows import STATE, Gather, Log, Seal, Start, Window
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_codecs.tcp.segments import SegmentRows

#: Columns of bronze.segments, and the carried state of a flow.
SEGMENT_COLUMNS: Final = (
    *("source", "flow", "window_start", "state"),
    *("arrived_at_ns", "capture_arrived_at_ns", "capture_id", "record_number", "direction"),
    *("sequence", "acknowledgment", "flags", "window", "payload", "payload_bytes"),
)


@dataclass(frozen=True, slots=True)
class SourceLog:
    """How to read the connections of a source, and the windows to fill."""

    start: Start | Gather
    options: TcpOptions
    windows: tuple[Window, ...]
    seal: Seal | None = None


def read(
    batches: Iterable[pa.RecordBatch], sources: Mapping[str, SourceLog], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows of the log for `batches` of SEGMENT_COLUMNS, which are sorted by source, flow and arrival.

    If the source gathers its dialogues, the batches are sorted by `addresses` in place of the flow. If a flow or its
    addresses have state from the previous window, the first rows carry it.
    """
    log = Log(schema)
    reading: _Reading | None = None
    for batch in batches:
        rows = SegmentRows(batch)
        for row, end, (source, flow, window, state) in rows.groups():
            if reading is None or not reading.is_of(source, flow):
                if reading is not None:
                    reading.finish()
                reading = _Reading(log, source, sources[source], flow)
            if state is not None:
                reading.carry(flow, state)
            while state is None and row < end:
                row = reading.receive(flow, window, rows, row, end)
                if log.full:
                    yield from log.take()
            if log.full:
                yield from log.take()
        if reading is not None:
            reading.release_batch()
    if reading is not None:
        reading.finish()
    yield from log.take()


class _Reading:
    """One flow, or the gathered flows between two addresses, through consecutive windows."""

    def __init__(self, log: Log, source: str, how: SourceLog, flow: bytes) -> None:
        self._log, self._source, self._how, self._windows = log, source, how, how.windows
        self._gathers = isinstance(how.start, Gather)
        self._key = addresses(flow) if self._gathers else flow
        self._states: dict[bytes, str] = {}
        self._at = 0
        self._flows: FlowLog | GatheredFlows | None = None
        log.source, log.window_start = source, how.windows[0].name

    def is_of(self, source: str, flow: bytes) -> bool:
        return (addresses(flow) if self._gathers else flow) == self._key and source == self._source

    def carry(self, flow: bytes, state: str) -> None:
        self._states[flow] = state

    def _begun(self) -> FlowLog | GatheredFlows:
        if self._flows is None:
            log, source, key, how, states = self._log, self._source, self._key, self._how, self._states
            if isinstance(how.start, Gather):
                self._flows = GatheredFlows(log, how.start, source, key, how.options, states, how.seal)
            else:
                self._flows = FlowLog(log, how.start, source, key, how.options, states.get(key), how.seal)
        return self._flows

    def receive(self, flow: bytes, window: str, rows: SegmentRows, row: int, end: int) -> int:
        """Like `FlowLog.receive_rows`."""
        flows = self._flows or self._begun()
        while window > self._windows[self._at].name:
            if flows.idle:
                self._go_to(bisect_left(self._windows, window, key=attrgetter("name")))
            else:
                self._next_window(flows)
        if isinstance(flows, GatheredFlows):
            # One segment at a time, because another connection may end between any two.
            return flows.turn_to(flow, rows.arrived_at_ns(row)).receive_rows(rows, row, row + 1)
        return flows.receive_rows(rows, row, end)

    def release_batch(self) -> None:
        """Like `FlowLog.release_batch`."""
        if self._flows is not None:
            self._flows.release_batch()

    def finish(self) -> None:
        flows = self._begun()
        while self._at < len(self._windows) and not flows.idle:
            self._next_window(flows)

    def _next_window(self, flows: FlowLog | GatheredFlows) -> None:
        flows.end_window(self._windows[self._at])
        self._go_to(self._at + 1)

    def _go_to(self, at: int) -> None:
        self._at = at
        if at < len(self._windows):
            self._log.window_start = self._windows[at].name


class GatheredFlows:
    """The port pairs between two addresses, whose dialogues share state, through consecutive windows.

    Bytes reach the dialogues in the order in which the segments arrived, across all port pairs. `states` maps each port
    pair to its state, and `addresses` to the shared state. Raises the errors of FlowLog.
    """

    def __init__(
        self,
        log: Log,
        gather: Gather,
        source: str,
        addresses: bytes,
        options: TcpOptions,
        states: Mapping[bytes, str],
        seal: Seal | None = None,
    ) -> None:
        self._log, self._source, self._key, self._options, self._seal = log, source, addresses, options, seal
        self._state = states.get(addresses)
        state = self._state if self._state is None or seal is None else seal.open(self._state, addresses)
        try:
            self._gathering = gather.begin(log, state)
        except NO_STATE as error:
            shown = f"{type(error).__name__}: {error}"
            raise StateDamagedError(what=f"the addresses {addresses.hex()}", reason=shown) from error
        self._flows: dict[bytes, FlowLog] = {}
        for flow in sorted(set(states) - {addresses}):
            self.add(flow, states[flow])
        #: The port pair of the last segment.
        self._last: FlowLog | None = None
        #: The time at which each port pair needs attention if no segment arrives: a heap, and by port pair.
        self._due: list[tuple[int, bytes]] = []
        self._due_by: dict[bytes, int] = {}
        for one in self._flows.values():
            self._note_due(one)

    @property
    def idle(self) -> bool:
        """Whether there is no port pair: windows stay empty until one is added."""
        return not self._flows

    def add(self, flow: bytes, state: str | None = None) -> FlowLog:
        """Add a port pair."""
        start = self._gathering.start
        log = FlowLog(self._log, start, self._source, flow, self._options, state, self._seal)
        self._flows[flow] = log
        return log

    def remove(self, flow: FlowLog) -> None:
        """Drop a port pair, after flushing the segments that arrived before."""
        if self._last is not None:
            self._last.flush()
        if flow is self._last:
            self._last = None
        del self._flows[flow.key]

    def turn_to(self, flow: bytes, ns: int) -> FlowLog:
        """The port pair of the next segment, which arrives at `ns`. Segments of other pairs are flushed before it."""
        log = self._flows.get(flow) or self.add(flow)
        is_due = bool(self._due) and ns >= self._due[0][0]
        if self._last is not None and (log is not self._last or is_due):
            self._last.flush()
        if self._last is not None and log is not self._last:
            self._note_due(self._last)
        self._last = log
        if self._due and ns >= self._due[0][0]:
            self._expire(ns, besides=log)
        return log

    def _note_due(self, log: FlowLog) -> None:
        ends_ns = log.ends_ns
        if ends_ns is not None and ends_ns < self._due_by.get(log.key, ends_ns + 1):
            self._due_by[log.key] = ends_ns
            heappush(self._due, (ends_ns, log.key))

    def release_batch(self) -> None:
        """Like `FlowLog.release_batch`."""
        if self._last is not None:
            self._last.flush()
        for log in self._flows.values():
            log.release_batch()

    def _expire(self, ns: int, besides: FlowLog | None = None) -> None:
        """Expire whatever timeouts end by `ns`, in the order of time."""
        while self._due and self._due[0][0] <= ns:
            ends_ns, flow = heappop(self._due)
            if self._due_by.get(flow) != ends_ns:
                continue
            del self._due_by[flow]
            log = self._flows.get(flow)
            if log is not None and log is not besides:
                if log.ends_ns == ends_ns:
                    log.expire(ends_ns)
                self._note_due(log)

    def end_window(self, window: Window) -> None:
        """Like `FlowLog.end_window`."""
        if self._last is not None:
            self._last.flush()
            self._note_due(self._last)
        self._expire(window.end_ns)
        for log in list(self._flows.values()):
            log.end_window(window)
            if log.idle:
                self.remove(log)
        self._gathering.conclude()
        text = self._gathering.snapshot()
        state = text if text is None or self._seal is None else self._seal.close(text, self._key)
        if state != self._state:
            self._state, self._log.connection_id = state, None
            self._log.add(STATE, Place.before(window.end_ns), flow=self._key, state=state)


def addresses(flow: bytes) -> bytes:
    """The addresses of server and client of a flow, 4 or 16 bytes each. Addresses are returned unchanged."""
    if len(flow) in (8, 32):
        return flow
    half = len(flow) // 2
    return flow[: half - 2] + flow[half:-2]
