"""The runner: finds stale windows, runs jobs for them and commits the results.

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

import hashlib
import json
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from wirehouse_codecs.core.errors import WirehouseError
from wirehouse_pipelines.delta import ledger, spark_tables
from wirehouse_pipelines.delta.spark_tables import in_spans
from wirehouse_pipelines.jobs import bronze
from wirehouse_pipelines.jobs.job import Cut, Job, Span, Work
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.protocols import PROTOCOLS
from wirehouse_pipelines.landing.manifests import Manifest, manifests
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


def _digest(parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@dataclass
class _Plan:
    """The digests of one job's inputs for each window that has data, and the ledger to compare them with."""

    job: Job
    #: The sources of each unit, see `units`.
    members: Mapping[str, Sequence[Source]]
    #: unit -> window -> digest of the inputs, without state.
    inputs: dict[str, dict[str, str]]
    entries: Mapping[tuple[str, str, str], ledger.Entry]
    #: A cache: the sorted windows of `inputs` by unit.
    _ordered: dict[str, list[str]] = field(init=False, default_factory=dict)

    def before(self, source: str, window: str) -> str | None:
        """The last window with data before `window`."""
        ordered = self._ordered.setdefault(source, sorted(self.inputs[source]))
        at = bisect_left(ordered, window)
        return ordered[at - 1] if at else None

    def entry(self, source: str, window: str) -> ledger.Entry | None:
        return self.entries.get((self.job.outputs[0], source, window))

    def digest(self, source: str, window: str) -> str:
        """The digest of everything that `window` is computed from, including the state before it."""
        if not self.job.state_table:
            return self.inputs[source][window]
        before = self.before(source, window)
        entry = self.entry(source, before) if before else None
        return _digest([self.inputs[source][window], entry.state_digest if entry else None])

    def stale(self, source: str, window: str) -> bool:
        entry = self.entry(source, window)
        return entry is None or entry.digest != self.digest(source, window)


def units(lake: Lake, job: Job) -> dict[str, tuple[Source, ...]]:
    """The units of a job, each with its sources: a unit is a source, or for a joined job a service."""
    sources = [source for source in lake.sources if job.protocol in (None, source.protocol)]
    return lake.joined(sources) if job.joined else {source.name: (source,) for source in sources}


def _names(sources: Iterable[Source]) -> list[str]:
    return [source.name for source in sources]


class _Known:
    """The input of planning: manifests and ledger, grouped once, and a cache of the plans.

    So the time of planning is proportional to captures and ledger entries, and independent of the number of sources.
    """

    def __init__(self, lake: Lake, landed: Sequence[Manifest], entries: Mapping[ledger.Key, ledger.Entry]) -> None:
        self.lake, self.entries = lake, entries
        self._landed: dict[str, list[Manifest]] = {}
        for manifest in landed:
            self._landed.setdefault(manifest.source, []).append(manifest)
        #: table and unit -> window -> entry.
        self._written: dict[tuple[str, str], dict[str, ledger.Entry]] = {}
        for (table, unit, window), entry in entries.items():
            self._written.setdefault((table, unit), {})[window] = entry
        self._plans: dict[str, _Plan] = {}

    def landed(self, sources: Iterable[Source]) -> list[Manifest]:
        """The captures of `sources`."""
        return [manifest for source in sources for manifest in self._landed.get(source.name, ())]

    def plan(self, job: Job) -> _Plan:
        """The plan of `job`."""
        if job.name not in self._plans:
            members = units(self.lake, job)
            inputs = {unit: self._inputs(job, unit, sources) for unit, sources in members.items()}
            self._plans[job.name] = _Plan(job, members, inputs, self.entries)
        return self._plans[job.name]

    def _inputs(self, job: Job, unit: str, sources: Sequence[Source]) -> dict[str, str]:
        """By window: the digest of what the rows of a unit are computed from, without state."""
        facts = job.landed(self.landed(sources), self.lake) if job.landed else self._read_facts(job, unit, sources)
        options = None
        if job.protocol:
            read = PROTOCOLS[job.protocol].options.from_mapping
            options = [read(source.options).canonical() for source in sources]
        also = [job.also(self.lake, source) for source in sources] if job.also and facts else []
        return {window: _digest([job.version, options, *also, fact]) for window, fact in facts.items()}

    def _read_facts(self, job: Job, unit: str, sources: Sequence[Source]) -> dict[str, list[str | None]]:
        """For each window in which a job it reads has rows: the digests of all these jobs, None where one has none."""
        read = [all_jobs()[name] for name in job.reads]
        parts = [
            self._written.get((each.outputs[0], name), {})
            for each in read
            for name in ([unit] if each.joined else _names(sources))
        ]
        found = {window: [part.get(window) for part in parts] for window in set().union(*parts)}
        return {window: [entry.digest if entry else None for entry in listed] for window, listed in found.items()}


def data_windows(lake: Lake, protocol: str | None = None) -> list[str]:
    """The windows with landed records, of all protocols or of one, sorted."""
    sources = {source.name for source in lake.sources if source.protocol == protocol}
    found = (manifest for manifest in manifests(lake) if protocol is None or manifest.source in sources)
    return sorted({window for manifest in found for window in manifest.windows})


def stale(lake: Lake) -> dict[str, set[str]]:
    """The stale windows by job, for jobs that have any. Needs no JVM.

    A window is stale if its captures, the source's options, the version of the job or the state before it changed, or
    if it is stale in a job that this one reads.
    """
    return _stale(lake, ledger.read(lake))


def _stale(lake: Lake, entries: Mapping[ledger.Key, ledger.Entry]) -> dict[str, set[str]]:
    known = _Known(lake, manifests(lake), entries)
    found: dict[str, set[tuple[str, str]]] = {}
    for job in all_jobs().values():
        plan = known.plan(job)
        own = {
            (source, window) for source in plan.inputs for window in plan.inputs[source] if plan.stale(source, window)
        }
        upstream = set().union(*(found[name] for name in job.reads))
        unit_of = {name: unit for unit, sources in plan.members.items() for name in (unit, *_names(sources))}
        found[job.name] = own | {(unit_of[name], window) for name, window in upstream if name in unit_of}
    return {name: {window for _, window in pairs} for name, pairs in found.items() if pairs}


def due(lake: Lake) -> dict[str, set[str]]:
    """The windows with work for `run`, by job: stale ones, and those whose checks haven't passed since."""
    entries = ledger.read(lake)
    found = _stale(lake, entries)
    names, first_of = lake.names, {job.outputs[0]: name for name, job in all_jobs().items()}
    for (table, source, window), entry in entries.items():
        if table in first_of and source in names and not _is_passed(entries, first_of[table], entry):
            found.setdefault(first_of[table], set()).add(window)
    return {name: found[name] for name in all_jobs() if name in found}


def pass_checks(lake: Lake, name: str, first: str, last: str, waiting: Collection[str] = ()) -> None:
    """Record that the invariants of job `name` hold in windows `first` to `last`, except for the windows `waiting`.

    Those were stale when the checks began, so the checks skipped them.
    """
    job = all_jobs()[name]
    with writing(lake, [job.pool]) as held:
        written = (entry for entry in ledger.read(lake).values() if entry.table_name == job.outputs[0])
        asked = (entry for entry in written if first <= entry.window_start <= last)
        passed = [entry for entry in asked if entry.window_start not in waiting]
        held()
        ledger.commit(lake, [replace(entry, table_name=checks_of(job), digest=_as_written(entry)) for entry in passed])


def checks_of(job: Job) -> str:
    """The table name under which the ledger records the windows of a job that passed their checks."""
    return f"checks of {job.name}"


def _as_written(entry: ledger.Entry) -> str:
    return f"{entry.digest}@{entry.committed_at_ns}"


def _is_passed(entries: Mapping[ledger.Key, ledger.Entry], name: str, entry: ledger.Entry) -> bool:
    check = entries.get((checks_of(all_jobs()[name]), entry.source, entry.window_start))
    return check is not None and check.digest == _as_written(entry)


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
) -> JobReport:
    """Bring windows `first` to `last` of job `name` up to date; with `force`, compute all of them that have data.

    If the state at the end of a window changed, the next windows follow, twice as many each time, until a state is
    unchanged or `last` is done. Waits for other writers of the job's pool.
    """
    job = all_jobs()[name]
    with writing(lake, [job.pool], progress) as held:
        return _run(spark, lake, job, first, last, held, force=force, progress=progress)


def _run(
    spark: SparkSession,
    lake: Lake,
    job: Job,
    first: str,
    last: str,
    held: Held,
    *,
    force: bool,
    progress: Progress | None,
) -> JobReport:
    landed = manifests(lake)
    done: set[str] = set()
    rows: dict[str, int] = dict.fromkeys(job.outputs, 0)
    length: int | None = None
    kept = 0
    while True:
        known = _Known(lake, landed, ledger.read(lake))
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
        for table, count in _compute(spark, lake, plan, spans, landed, held).items():
            rows[table] += count
        done.update(window for span in spans for window in span.windows)
        length = 1 if length is None else 2 * length


def _kept(known: _Known, plan: _Plan, spans: Iterable[Span]) -> Iterator[tuple[str, int]]:
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
    landed = manifests(lake)
    with writing(lake) as held:
        for job in all_jobs().values():
            entries = ledger.read(lake)
            inputs = _Known(lake, landed, entries).plan(job).inputs
            emptied = [
                Span(unit, (window,))
                for table, unit, window in entries
                if table == job.outputs[0] and unit in inputs and window not in inputs[unit]
            ]
            if emptied:
                for table in job.outputs:
                    held()
                    spark_tables.delete(lake, table, in_spans(emptied))
                ledger.withdraw(lake, [*_keys(job, emptied), *((checks_of(job), s.source, s.first) for s in emptied)])


def _describe(spans: Iterable[Span]) -> str:
    windows = sorted({window for span in spans for window in span.windows})
    return windows[0] if len(windows) == 1 else f"{windows[0]} to {windows[-1]} ({len(windows)} windows)"


def _spans(plan: _Plan, source: str, first: str, last: str, *, force: bool, length: int | None) -> list[Span]:
    """The runs of consecutive windows to compute. For a job with state: only the first run, of at most `length`."""
    windows = sorted(window for window in plan.inputs[source] if first <= window <= last)
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


def _check_ready(known: _Known, plan: _Plan, span: Span) -> None:
    """Raise InputMissingError or PredecessorMissingError if a job that the span reads, or its state, is missing."""
    job = plan.job
    members = plan.members[span.source]
    for name in job.reads:
        read = known.plan(all_jobs()[name])
        for unit in {span.source, *_names(members)} & read.inputs.keys():
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


def _compute(
    spark: SparkSession, lake: Lake, plan: _Plan, spans: Sequence[Span], landed: Sequence[Manifest], held: Held
) -> dict[str, int]:
    """Compute and write the rows of `spans`, then commit them to the ledger; the number of rows by table."""
    job = plan.job
    try:
        written = _write(spark, lake, plan, spans, landed, held)
    except Cut as cut:
        first, rest = cut.apply(spans)
        written = _compute(spark, lake, plan, first, landed, held)
        after = _Known(lake, landed, ledger.read(lake)).plan(job)
        for table, count in _compute(spark, lake, after, rest, landed, held).items():
            written[table] += count
    return written


def _write(
    spark: SparkSession, lake: Lake, plan: _Plan, spans: Sequence[Span], landed: Sequence[Manifest], held: Held
) -> dict[str, int]:
    job = plan.job
    before = {}
    for span in spans:
        window = plan.before(span.source, span.first)
        entry = plan.entry(span.source, window) if window and job.state_table else None
        if entry:
            before[span.source] = entry
    work = Work(spark, lake, tuple(spans), before, tuple(landed))
    try:
        for index, (table, frame) in enumerate(job.build(work)):
            if index == 0:
                # From here on, tables may have rows of different runs. If the job is killed, the windows must be stale.
                held()
                ledger.withdraw(lake, _keys(job, spans))
            spark_tables.replace(lake, table, frame, spans, held)
    finally:
        work.release()
    entries = _entries(
        plan, spans, _state_rows(work, job), {table: spark_tables.rows_by_window(lake, table) for table in job.outputs}
    )
    held()
    ledger.commit(lake, entries)
    rows = dict.fromkeys(job.outputs, 0)
    for entry in entries:
        rows[entry.table_name] += entry.rows
    return rows


def _keys(job: Job, spans: Sequence[Span]) -> Iterator[ledger.Key]:
    return ((table, span.source, window) for table in job.outputs for span in spans for window in span.windows)


def _state_rows(work: Work, job: Job) -> dict[tuple[str, str], tuple[str, str]]:
    """By (source, window): a digest of its state rows, and the oldest window whose state is alive at its end."""
    if not job.state_table:
        return {}
    frame = work.read(job.state_table).where(job.carried)
    # Spark can't hash maps. No column with maps is part of the state.
    plain = [field.name for field in frame.schema if "map<" not in field.dataType.simpleString()]
    hashed = F.xxhash64(*plain).cast("decimal(20,0)")
    found = frame.groupBy("source", "window_start").agg(
        F.sum(hashed).alias("digest"), F.max("carried_from").alias("carried_from")
    )
    return {(row.source, row.window_start): (str(row.digest), row.carried_from) for row in found.collect()}


def _entries(
    plan: _Plan,
    spans: Sequence[Span],
    state_rows: Mapping[tuple[str, str], tuple[str, str]],
    rows: Mapping[str, Mapping[tuple[str, str], int]],
) -> list[ledger.Entry]:
    """The ledger entries of all windows of `spans`. Each digest includes the state before the window."""
    now = time.time_ns()
    entries: list[ledger.Entry] = []
    for span in spans:
        known = {window: plan.entry(span.source, window) for window in plan.inputs[span.source]}
        before = plan.before(span.source, span.first)
        carried = known[before] if before else None
        written = {window: entry.state_rows_digest for window, entry in known.items() if entry}
        for window in span.windows:
            digest, state, own, alive = plan.inputs[span.source][window], None, None, None
            if plan.job.state_table:
                digest = _digest([digest, carried.state_digest if carried else None])
                own, alive = state_rows[span.source, window]
                written[window] = own
                state = _digest([written[name] for name in sorted(written) if alive <= name <= window])
            for table in plan.job.outputs:
                count = rows[table].get((span.source, window), 0)
                carried = ledger.Entry(
                    table, span.source, window, digest, state, own, alive, count, plan.job.version, now
                )
                entries.append(carried)
    return entries
