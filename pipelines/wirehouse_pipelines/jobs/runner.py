"""The runner: runs jobs for stale windows (planning.py) and commits the results.

A job is a pure function

    (records of windows [first, last], state at the end of the window before)
        -> (rows of those windows, state at the end of each)

The runner replaces all rows of the windows and then writes the ledger, which has a digest per window of everything the
rows were computed from. A window is **stale** if that digest would be different now.

State makes staleness spread: the digest of a window includes the digest of the state before it. After a window was
recomputed, the next one is stale only if the state has changed. `run_job` therefore computes stale windows, then looks
at the ledger again and continues with the windows that became stale: one, two, four … at a time, until the state at the
end of a window is the same as before. So a late file recomputes only as many windows as it affects.

The **unit** of a job, in the code below, is what its windows belong to: a source, or a service for a joined job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial

import pyarrow as pa
from pyspark.sql import SparkSession

from wirehouse_codecs.core.errors import WirehouseError
from wirehouse_pipelines.delta import ledger, spark_tables
from wirehouse_pipelines.delta.delta_tables import partition_of
from wirehouse_pipelines.delta.spark_tables import in_spans
from wirehouse_pipelines.jobs import bronze
from wirehouse_pipelines.jobs.job import Cut, Job, Span, Work
from wirehouse_pipelines.jobs.planning import Plan, Planner, checks_of, names_of
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.protocols import PROTOCOLS
from wirehouse_pipelines.storage.storage import Held, open_storage

Progress = Callable[[str], None]


class PredecessorMissingError(WirehouseError):
    """A window can't be computed because the window before it, which has its state, was never computed."""

    template = (
        "{job}: window {window} of source {source} needs the state of {missing}, which was never materialised: "
        "run `wirehouse backfill --from {missing} --to {window}`"
    )


class InputMissingError(WirehouseError):
    """A window can't be computed because a job that it reads from is not up to date."""

    template = "{job}: window {window} of source {source} needs {reads}, which is not up to date: run `wirehouse run`"


@dataclass(frozen=True, slots=True)
class JobReport:
    """What a run of a job did."""

    job: str
    #: The windows that were computed.
    windows: tuple[str, ...]
    #: Number of rows written, by table.
    rows: Mapping[str, int]
    #: Number of captures whose rows were kept and not recomputed, because their landed records have expired.
    kept: int = 0


@cache
def all_jobs() -> dict[str, Job]:
    """All jobs by name; a job comes after the jobs that it reads."""
    listed = [*bronze.JOBS, *(job for protocol in PROTOCOLS.values() for job in protocol.jobs)]
    return {job.name: job for job in listed}


def planner(lake: Lake) -> Planner:
    """The planning of a run of all jobs."""
    return Planner(lake, all_jobs())


def data_windows(lake: Lake, protocol: str | None = None) -> list[str]:
    """The windows with landed records, of all protocols or of one, sorted."""
    return planner(lake).data_windows(protocol)


def stale(lake: Lake) -> dict[str, set[str]]:
    """The stale windows by job, see `Planner.stale`."""
    return planner(lake).stale()


def due(lake: Lake) -> dict[str, set[str]]:
    """The windows with work for `run`, by job, see `Planner.due`."""
    return planner(lake).due()


def pass_checks(
    lake: Lake, name: str, first: str, last: str, waiting: Collection[str] = (), known: Planner | None = None
) -> None:
    """Record that the invariants of job `name` hold in windows `first` to `last`, except for the windows `waiting`.

    Those were stale when the checks began, so the checks skipped them. `known` is the planning of the run.
    """
    job, known = all_jobs()[name], known or planner(lake)
    with writing(lake, [job.pool]) as held:
        passed = known.checked(job, first, last, waiting)
        held()
        known.commit(passed)


@contextmanager
def writing(lake: Lake, pools: Collection[str] = (), say: Progress | None = None) -> Iterator[Held]:
    """Hold the locks of these pools (default: all), so that no other process or machine writes their tables.

    Waits for other holders. Yields a function that raises LockLostError if a lock was lost: call it before each commit.
    """
    storage = open_storage(lake.root)
    with ExitStack() as locks:
        checks: list[Held] = []
        for pool in sorted(pools or {job.pool for job in all_jobs().values()}):
            line = f"another run or upkeep is writing tables of {pool}: waiting until it is done"
            checks.append(locks.enter_context(storage.lock(f"writing/{pool}", partial(say or str, line))))

        def held() -> None:
            for check in checks:
                check()

        yield held


def run_job(
    spark: SparkSession,
    lake: Lake,
    name: str,
    first: str,
    last: str,
    *,
    force: bool = False,
    progress: Progress | None = None,
    known: Planner | None = None,
) -> JobReport:
    """Bring windows `first` to `last` of job `name` up to date; with `force`, compute all of them that have data.

    If the state at the end of a window changed, the next windows follow, twice as many each time, until a state is
    unchanged or `last` is done. Waits for other writers of the job's pool. `known` is the planning of the run.
    """
    job = all_jobs()[name]
    with writing(lake, [job.pool], progress) as held:
        return _run(spark, known or planner(lake), job, first, last, held, force=force, progress=progress)


def _run(
    spark: SparkSession,
    known: Planner,
    job: Job,
    first: str,
    last: str,
    held: Held,
    *,
    force: bool,
    progress: Progress | None,
) -> JobReport:
    done: set[str] = set()
    rows: dict[str, int] = dict.fromkeys(job.outputs, 0)
    length: int | None = None
    kept = 0
    while True:
        plan = known.plan(job)
        spans = [
            span
            for source in plan.inputs
            for span in _spans(plan, source, first, last, force=force and length is None, length=length)
        ]
        if not spans:
            return JobReport(job.name, tuple(sorted(done)), rows, kept)
        for span in spans:
            _check_ready(known, plan, span)
        if progress:
            progress(f"{job.name}: {_describe(spans)}")
        for line, count in _kept(known, plan, spans):
            kept += count
            if progress:
                progress(line)
        for table, count in _compute(spark, known, plan, spans, held).items():
            rows[table] += count
        done.update(window for span in spans for window in span.windows)
        length = 1 if length is None else 2 * length


def _kept(known: Planner, plan: Plan, spans: Iterable[Span]) -> Iterator[tuple[str, int]]:
    """A message per source about captures in `spans` that can't be recomputed, and the number of these captures."""
    job = plan.job
    for span in spans:
        gone = [
            manifest
            for manifest in known.landed(plan.members[span.source])
            if manifest.kind in job.kinds
            and manifest.source == span.source
            and manifest.released_at_ns is not None
            and not manifest.windows.keys().isdisjoint(span.windows)
        ]
        if gone:
            yield (
                f"{job.name}: {_describe([span])} of {span.source}: the rows of {len(gone):,} captures are kept and "
                "not recomputed, because their landed records have expired (to get them back: "
                f"`wirehouse land FILE --source {span.source}`)",
                len(gone),
            )


def clear_emptied(lake: Lake) -> None:
    """Delete the rows and ledger entries of windows without landed records. Needs no JVM."""
    known = planner(lake)
    with writing(lake) as held:
        for job in all_jobs().values():
            plan = known.plan(job)
            emptied = [
                Span(unit, (window,))
                for unit, inputs in plan.inputs.items()
                for window in plan.entries.get(unit, ())
                if window not in inputs
            ]
            if emptied:
                for table in job.outputs:
                    held()
                    spark_tables.delete(lake, table, in_spans(emptied))
                known.withdraw([*_keys(job, emptied), *((checks_of(job), span.source, span.first) for span in emptied)])


def _describe(spans: Iterable[Span]) -> str:
    windows = sorted({window for span in spans for window in span.windows})
    return windows[0] if len(windows) == 1 else f"{windows[0]} to {windows[-1]} ({len(windows)} windows)"


def _spans(plan: Plan, source: str, first: str, last: str, *, force: bool, length: int | None) -> list[Span]:
    """The runs of consecutive windows to compute. For a job with state: only the first run, of at most `length`."""
    windows = [window for window in plan.inputs[source] if first <= window <= last]
    wanted = [force or plan.stale(source, window) for window in windows]
    if plan.job.state_table and length and any(wanted):
        start = wanted.index(True)
        wanted = [start <= index < start + length for index in range(len(windows))]
    spans: list[Span] = []
    for index, window in enumerate(windows):
        if not wanted[index]:
            continue
        if spans and index and wanted[index - 1]:
            spans[-1] = spans[-1].extended(window)
        else:
            spans.append(Span(source, (window,)))
    return spans[:1] if plan.job.state_table else spans


def _check_ready(known: Planner, plan: Plan, span: Span) -> None:
    """Raise InputMissingError or PredecessorMissingError if a job that the span reads, or its state, is missing."""
    job = plan.job
    members = plan.members[span.source]
    for name in job.reads:
        read = known.plan(all_jobs()[name])
        for unit in {span.source, *names_of(members)} & read.inputs.keys():
            for window in span.windows:
                if window in read.inputs[unit] and read.stale(unit, window):
                    raise InputMissingError(job=job.name, window=window, source=unit, reads=name)
    if not job.state_table:
        return
    mine = (manifest.windows for manifest in known.landed(members))
    missing = None
    for window in sorted({window for windows in mine for window in windows if window < span.first}, reverse=True):
        if plan.entry(span.source, window) is not None:
            break
        missing = window
    if missing is not None:
        raise PredecessorMissingError(job=job.name, window=span.first, source=span.source, missing=missing)


def _compute(spark: SparkSession, known: Planner, plan: Plan, spans: Sequence[Span], held: Held) -> dict[str, int]:
    """Compute and write the rows of `spans`, then commit them to the ledger; the number of rows by table."""
    try:
        written = _write(spark, known, plan, spans, held)
    except Cut as cut:
        first, rest = cut.apply(spans)
        written = _compute(spark, known, plan, first, held)
        for table, count in _compute(spark, known, known.plan(plan.job), rest, held).items():
            written[table] += count
    return written


def _write(spark: SparkSession, known: Planner, plan: Plan, spans: Sequence[Span], held: Held) -> dict[str, int]:
    job, lake = plan.job, known.lake
    before = {}
    for span in spans:
        window = plan.before(span.source, span.first)
        entry = plan.entry(span.source, window) if window and job.state_table else None
        if entry:
            before[span.source] = entry
    work = Work(spark, lake, tuple(spans), before, tuple(known.landed()))
    states: dict[tuple[str, str], tuple[str, str]] = {}
    for index, (table, made) in enumerate(job.build(work)):
        if index == 0:
            # After this, tables may have rows of different runs. If the job is killed, the windows must be stale.
            held()
            known.withdraw(_keys(job, spans))
        spark_tables.replace(lake, table, made, spans, held)
        if table == job.state_table:
            assert not isinstance(made, pa.Table), "state is written as files, which have its digest"
            states = _state_rows(made)
    rows_of = {table: spark_tables.rows_by_window(lake, table) for table in job.outputs}
    entries = plan.committed(spans, states, rows_of)
    held()
    known.commit(entries)
    rows = dict.fromkeys(job.outputs, 0)
    for entry in entries:
        rows[entry.table_name] += entry.rows
    return rows


def _keys(job: Job, spans: Sequence[Span]) -> Iterator[ledger.Key]:
    return ((table, span.source, window) for table in job.outputs for span in spans for window in span.windows)


def _state_rows(written: spark_tables.Files) -> dict[tuple[str, str], tuple[str, str]]:
    """By (source, window): a digest of its state rows, and the oldest window whose state is alive at its end."""
    digests: Counter[tuple[str, str]] = Counter()
    alive: dict[tuple[str, str], str] = {}
    for file in written:
        if state := file.get("state"):
            partition = partition_of(file["path"])
            window = partition["source"], partition["window_start"]
            digests[window] += state["digest"]
            # The window's own row, which has it, may be in another file.
            alive[window] = max(alive.get(window, ""), state["carried_from"] or "")
    return {window: (str(digest % 2**64), alive[window]) for window, digest in digests.items()}
