"""What a job is and what it is given: the shape that bronze and every protocol share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from wirehouse_pipelines import delta
from wirehouse_pipelines.lake import Lake, Source
from wirehouse_pipelines.landing import Manifest
from wirehouse_pipelines.ledger import Entry


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
    _persisted: list[DataFrame] = field(default_factory=list)

    def source(self, name: str) -> Source:
        return self.lake.source(name)

    def read(self, table: str) -> DataFrame:
        """The rows of `table` in the spans."""
        return delta.read(self.spark, self.lake, table, delta.in_spans(self.spans))

    def read_state(self, table: str) -> DataFrame:
        """The rows of state table `table` that are alive at the end of the windows before the spans."""
        alive = [
            f"(source = '{source}' AND window_start BETWEEN '{entry.carried_from}' AND '{entry.window_start}')"
            for source, entry in self.before.items()
        ]
        return delta.read(self.spark, self.lake, table, " OR ".join(alive) or "false")

    def keep(self, frame: DataFrame) -> DataFrame:
        """`frame`, computed when first used and kept on disk in columns until the job ends: for wide rows."""
        self._persisted.append(frame.persist(StorageLevel.DISK_ONLY))
        return frame

    def settle(self, frame: DataFrame) -> DataFrame:
        """`frame` computed now, its plan forgotten: Spark plans each table anew from all that leads to it otherwise."""
        return frame.localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY)

    def release(self) -> None:
        """Drop what `keep` kept."""
        for frame in self._persisted:
            frame.unpersist()
        self._persisted.clear()


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
    #: The output that carries state from window to window, if any.
    state_table: str | None = None

    @property
    def pool(self) -> str:
        """One writer at a time: jobs of a pool never run together."""
        return self.protocol or "bronze"
