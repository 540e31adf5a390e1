"""What a job is and what it is given: the shape that bronze and every protocol share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any, Final

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from wirehouse_pipelines.delta import spark_tables
from wirehouse_pipelines.delta.ledger import Entry
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import NS_PER_SECOND, SPARK_FORMAT
from wirehouse_pipelines.landing.manifests import Manifest

#: The pool of the jobs that are of no protocol.
BRONZE: Final = "bronze"


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive windows of one source that have data, in order."""

    source: str
    windows: tuple[str, ...]

    @property
    def first(self) -> str:
        return self.windows[0]

    @property
    def last(self) -> str:
        return self.windows[-1]

    def extended(self, window: str) -> Span:
        """This span and `window` after it."""
        return Span(self.source, (*self.windows, window))


class Cut(Exception):
    """A job can't compute its spans at once: of these sources, what lies from the window on needs the state before it.

    Raised by `Job.build` before it yields a table; the runner then computes what lies before, and after it the rest.
    """

    def __init__(self, windows: Mapping[str, str]) -> None:
        super().__init__(windows)
        self.windows = windows

    def apply(self, spans: Sequence[Span]) -> tuple[list[Span], list[Span]]:
        """What lies before the cuts, and the rest."""
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
    """One run of a job: its windows, what came before them, and access to tables."""

    spark: SparkSession
    lake: Lake
    spans: tuple[Span, ...]
    #: Ledger entry of the window before the span, by source; absent where nothing came before.
    before: Mapping[str, Entry]
    #: Captures of the sources, for the jobs that read landing.
    landed: tuple[Manifest, ...]
    _settled: list[DataFrame] = field(init=False, default_factory=list)

    def source(self, name: str) -> Source:
        return self.lake.source(name)

    def read(self, table: str) -> DataFrame:
        """The rows of `table` in the spans."""
        return spark_tables.read(self.spark, self.lake, table, self.spans)

    def read_members(self, table: str, row_kind: str | None = None) -> DataFrame:
        """The rows of `table` in the spans, which are those of services, with the service as their source.

        The column `seen_by` is the source that captured them.
        """
        services = self.services
        rows = spark_tables.read(self.spark, self.lake, table, self.members(), row_kind).withColumn(
            "seen_by", F.col("source")
        )
        if all(name == service for name, service in services.items()):
            return rows
        named = F.create_map(*(F.lit(text) for pair in services.items() for text in pair))
        return rows.withColumn("source", named[F.col("source")])

    @property
    def services(self) -> dict[str, str]:
        """By source, the service that the spans have of it."""
        return {span.source: self.source(span.source).service for span in self.members()}

    def members(self) -> list[Span]:
        """The spans, which are those of services, of their sources."""
        members = self.lake.joined(self.lake.sources)
        return [Span(source.name, span.windows) for span in self.spans for source in members[span.source]]

    def read_state(self, table: str, *, places: bool = False) -> DataFrame:
        """The rows of state table `table` that are alive at the end of the windows before the spans; maybe with places.

        Places are the columns FILE and ROW of `delta`.
        """
        return spark_tables.read(self.spark, self.lake, table, self.alive(), places=places)

    def alive(self) -> list[Span]:
        """Where the state lies that reaches the spans: of each source from the first to the last of such windows."""
        return [
            Span(source, (entry.carried_from, entry.window_start))
            for source, entry in self.before.items()
            if entry.carried_from is not None
        ]

    def clock(self, horizon_ns: Callable[[Source], int]) -> DataFrame:
        """The rows of `clock_rows`, with the columns source, window_start, carried_from."""
        schema = "source STRING, window_start STRING, carried_from STRING"
        return self.spark.createDataFrame(self.clock_rows(horizon_ns), schema)

    def clock_rows(self, horizon_ns: Callable[[Source], int]) -> list[tuple[str, str, str]]:
        """A row of state for each window, also one that changed none: since which window what is alive was told.

        Source, window, and that; what was silent for `horizon_ns` of its sources is not alive.
        """
        return [
            (span.source, name, self._alive_after(span.source, name, horizon_ns))
            for span in self.spans
            for name in span.windows
        ]

    def alive_before(self, horizon_ns: Callable[[Source], int]) -> dict[tuple[str, str], str]:
        """By source and window of the spans: the oldest window of which state reaches it, by the clock above."""
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

    def window_of(self, ns: str) -> Column:
        """The window of an arrival time (landing keeps those between the lake's start and the landing time)."""
        seconds = F.timestamp_seconds(F.expr(f"{ns} div {NS_PER_SECOND}"))
        return F.date_format(seconds, SPARK_FORMAT[self.lake.windows.size])

    def is_new(self, ns: str) -> Column:
        """The arrival time lies in the spans, not in the state carried into them."""
        return self._since(lambda first: F.col(ns) >= self.lake.windows.start_ns(first))

    def in_new_window(self) -> Column:
        """`window_start` lies in the spans, not in the state carried into them."""
        return self._since(lambda first: F.col("window_start") >= first)

    def _since(self, after: Callable[[str], Column]) -> Column:
        """Rows of each source that are `after` the first window of its span."""
        sources: dict[str, list[str]] = {}
        for span in self.spans:
            sources.setdefault(span.first, []).append(span.source)
        return reduce(or_, (F.col("source").isin(*names) & after(first) for first, names in sources.items()))

    def settle(self, frame: DataFrame, *, eager: bool = True) -> DataFrame:
        """`frame` computed once, now or when first used, and kept on disk until the job ends.

        Its plan is forgotten: Spark plans each table anew from all that leads to it otherwise.
        """
        settled = frame.localCheckpoint(eager=eager, storageLevel=StorageLevel.DISK_ONLY)
        self._settled.append(settled)
        return settled

    def release(self) -> None:
        """Drop what was kept on disk."""
        for frame in self._settled:
            # What a checkpoint keeps is known to the JVM alone.
            frame._jdf.queryExecution().logical().rdd().unpersist(False)
        self._settled.clear()


@dataclass(frozen=True, slots=True)
class Job:
    """A job that writes tables. `build` yields (table, rows) in the order in which they are written."""

    name: str
    #: Physical tables, all written by this job alone.
    outputs: tuple[str, ...]
    build: Callable[[Work], Any]
    #: Part of every digest: raise it and every window is stale.
    version: str
    protocol: str | None = None
    #: Jobs whose rows it reads.
    reads: tuple[str, ...] = ()
    #: For a job that reads landing: what it is computed from, by window.
    landed: Callable[[Sequence[Manifest], Lake], Mapping[str, Any]] | None = None
    #: Kinds of source whose landed records it reads.
    kinds: tuple[str, ...] = ()
    #: The output that carries state from window to window, if any, and which of its rows do.
    state_table: str | None = None
    carried: str = "true"
    #: What its rows depend on besides: part of every digest.
    also: Callable[[Lake, Source], str] | None = None
    #: Sources that see one service are one to it: its rows have the service's name as their source.
    joined: bool = False

    @property
    def pool(self) -> str:
        """One writer at a time: jobs of a pool never run together."""
        return self.protocol or BRONZE


def gold_job(
    protocol: str, outputs: tuple[str, ...], build: Callable[[Work], Any], version: str, *, joined: bool = False
) -> Job:
    """The job of a protocol's tables of gold: what follows from its log, and from state that windows hand on."""
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
