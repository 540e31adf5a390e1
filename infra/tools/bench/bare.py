"""A job without Spark: its tasks run one after the other in this process, and nothing is committed.

Its CPU seconds are those of reading, sorting, folding and writing. The rest of a job's time is Spark's.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

from pyspark.cloudpickle import dumps

from wirehouse_pipelines.jobs import runner
from wirehouse_pipelines.jobs.job import Span, Work
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.landing.manifests import manifests
from wirehouse_pipelines.stages import running


class _Tasks:
    """Stands for an RDD: its partitions are taken one after the other."""

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = items

    def map(self, call: Callable[[Any], Any]) -> _Tasks:
        # Pickled and read back, like a function that is sent to a worker.
        call = pickle.loads(dumps(call))  # type: ignore[no-untyped-call]
        return _Tasks([call(item) for item in self._items])

    def collect(self) -> Sequence[Any]:
        return self._items


class InProcess:
    """Stands for a Spark session and its context: tasks run in this process."""

    defaultParallelism = 1  # noqa: N815 - Spark's name

    @property
    def sparkContext(self) -> InProcess:  # noqa: N802 - Spark's name
        return self

    def parallelize(self, items: Sequence[Any], _partitions: int) -> _Tasks:
        return _Tasks(items)


def cpu_seconds_of(lake: Lake, name: str) -> float:
    """CPU seconds for all windows of job `name`. The files that it writes are left, and belong to no table."""
    windows = tuple(runner.data_windows(lake))
    spans = tuple(Span(source.name, windows) for source in lake.sources)
    begun = time.process_time()
    session: Any = InProcess()
    with patch.object(running, "ALONE_BYTES", 1 << 60):
        for _ in runner.all_jobs()[name].build(Work(session, lake, spans, {}, tuple(manifests(lake)))):
            pass
    return time.process_time() - begun
