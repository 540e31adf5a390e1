"""Job and Work: how bronze and the protocols declare jobs, and what the runner passes to a job.

A job computes the rows of some tables for consecutive windows, from rows of other tables and from the **state** at the
end of the window before. State is stored as rows too. A row of state is written in the window where something changed,
and counts in later windows until a newer one replaces it or it expires.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession

from wirehouse_pipelines.delta.ledger import Entry
from wirehouse_pipelines.delta.spark_tables import Files
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.landing.manifests import Manifest

#: The concurrency pool of jobs that belong to no protocol.
BRONZE: Final = "bronze"


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive windows of one source (or service) that have data, in order."""

    source: str
    windows: tuple[str, ...]

    @property
    def first(self) -> str:
        return self.windows[0]

    @property
    def last(self) -> str:
        return self.windows[-1]

    def extended(self, window: str) -> Span:
        """This span with `window` appended."""
        return Span(self.source, (*self.windows, window))


class Range(NamedTuple):
    """The windows of one source (or service) from `first` to `last`."""

    source: str
    first: str
    last: str


class Cut(Exception):
    """Raised by `Job.build`, before it yields a table, if it can't compute its spans at once.

    `windows` has, by source, the first window that needs the state of the window before. The runner computes the
    windows before these first, and then the rest.
    """

    def __init__(self, windows: Mapping[str, str]) -> None:
        super().__init__(windows)
        self.windows = windows

    def apply(self, spans: Sequence[Span]) -> tuple[list[Span], list[Span]]:
        """Divide `spans` into the windows before the cuts, and the rest."""
        sides: tuple[list[Span], list[Span]] = [], []
        for span in spans:
            cut = self.windows.get(span.source)
            before = tuple(window for window in span.windows if cut is None or window < cut)
            for side, windows in zip(sides, (before, span.windows[len(before) :]), strict=True):
                if windows:
                    side.append(Span(span.source, windows))
        return sides


@dataclass
class Work:
    """One run of a job: its windows, and the ledger entries of the windows before."""

    spark: SparkSession
    lake: Lake
    spans: tuple[Span, ...]
    #: Ledger entry of the window before the span, by source; a source without earlier windows has none.
    before: Mapping[str, Entry]
    #: The manifests of all captures, for jobs that read landing.
    landed: tuple[Manifest, ...]

    def source(self, name: str) -> Source:
        return self.lake.source(name)

    @property
    def services(self) -> dict[str, str]:
        """For a joined job: the service of each source in the spans."""
        return {span.source: self.source(span.source).service for span in self.members()}

    def members(self) -> list[Span]:
        """For a joined job: the spans of services as spans of their sources."""
        members = self.lake.joined(self.lake.sources)
        return [Span(source.name, span.windows) for span in self.spans for source in members[span.source]]

    def alive(self) -> list[Range]:
        """The windows that the state before the spans is in: from the oldest with living rows to the one before."""
        return [
            Range(source, entry.carried_from, entry.window_start)
            for source, entry in self.before.items()
            if entry.carried_from is not None
        ]

    def clock(self, horizon_ns: Callable[[Source], int]) -> pa.RecordBatch:
        """A row of state per window: source, window_start, and carried_from, the oldest window with living state then.

        State that was silent for `horizon_ns` of its source has expired. Windows without changes have such a row too.
        """
        listed = [
            (span.source, name, self._alive_after(span.source, name, horizon_ns))
            for span in self.spans
            for name in span.windows
        ]
        columns = [pa.array(column, pa.string()) for column in zip(*listed, strict=True)]
        return pa.RecordBatch.from_arrays(columns, ["source", "window_start", "carried_from"])

    def alive_before(self, horizon_ns: Callable[[Source], int]) -> dict[tuple[str, str], str]:
        """By source and window of the spans: the oldest window whose rows of state are alive when the window begins."""
        found: dict[tuple[str, str], str] = {}
        for span in self.spans:
            known = self.before.get(span.source)
            before = known.window_start if known else None
            for name in span.windows:
                if before is not None:
                    found[span.source, name] = self._alive_after(span.source, before, horizon_ns)
                before = name
        return found

    def _alive_after(self, source: str, window: str, horizon_ns: Callable[[Source], int]) -> str:
        windows = self.lake.windows
        longest = max(map(horizon_ns, self.lake.sources_of(source)))
        return windows.of(max(windows.start_ns(windows.start), windows.end_ns(window) - longest))


#: Computes the tables of a job, each with its rows: written as files, or few enough for a pa.Table.
Build = Callable[[Work], Iterator[tuple[str, Files | pa.Table]]]


@dataclass(frozen=True, slots=True)
class Job:
    """The declaration of a job."""

    name: str
    #: The physical tables that it writes; no other job writes them.
    outputs: tuple[str, ...]
    #: Yields (table, rows) in the order in which the tables are written.
    build: Build
    #: Part of every digest: a new version makes every window stale.
    version: str
    protocol: str | None = None
    #: Jobs whose rows it reads.
    reads: tuple[str, ...] = ()
    #: For a job that reads landing: a function that returns, by window, the facts about captures that rows depend on.
    landed: Callable[[Sequence[Manifest], Lake], Mapping[str, Any]] | None = None
    #: For a job that reads landing: the kinds of source whose records it reads.
    kinds: tuple[str, ...] = ()
    #: The output that has the state, if the job has one: its definition says which of the rows are state.
    state_table: str | None = None
    #: Returns what else the rows depend on; part of every digest.
    also: Callable[[Lake, Source], str] | None = None
    #: Whether the job reads all sources of a service together, and its rows have the service's name as their source.
    joined: bool = False

    @property
    def pool(self) -> str:
        """The concurrency pool: of the jobs in a pool, one runs at a time."""
        return self.protocol or BRONZE


def gold_job(protocol: str, outputs: tuple[str, ...], build: Build, version: str, *, joined: bool = False) -> Job:
    """Declare the job for a protocol's gold tables, which reads the protocol's log and has state."""
    return Job(
        f"gold.{protocol}",
        outputs,
        build,
        version,
        protocol,
        reads=(f"silver.{protocol}",),
        state_table=f"gold.{protocol}_state",
        joined=joined,
    )
