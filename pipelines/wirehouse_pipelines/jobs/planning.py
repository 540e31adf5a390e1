"""Planning: which windows of which jobs are stale, ready and due. Needs no JVM.

A window is stale if a digest of everything it is computed from isn't the one in the ledger. So planning needs the
manifests of all captures and the whole ledger. A `Planner` reads both once for a run, and then plans a job again only
after a commit that the job depends on. The time that a run plans is proportional to the number of captures and ledger
entries.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from deltalake import DeltaTable

from wirehouse_pipelines.delta import delta_tables, ledger
from wirehouse_pipelines.jobs.job import Job, Span
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.protocols import PROTOCOLS
from wirehouse_pipelines.landing.manifests import Manifest, manifests

#: The entries of a table that was never written.
_NONE: Final[ledger.Entries] = {}


def _digest(parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def units(lake: Lake, job: Job) -> dict[str, tuple[Source, ...]]:
    """The units of a job, each with its sources: a unit is a source, or for a joined job a service."""
    sources = [source for source in lake.sources if job.protocol in (None, source.protocol)]
    return lake.joined(sources) if job.joined else {source.name: (source,) for source in sources}


def names_of(sources: Iterable[Source]) -> list[str]:
    """The names of `sources`."""
    return [source.name for source in sources]


def checks_of(job: Job) -> str:
    """The table name under which the ledger records the windows of a job that passed their checks."""
    return f"checks of {job.name}"


def _as_written(entry: ledger.Entry) -> str:
    return f"{entry.digest}@{entry.committed_at_ns}"


@dataclass(frozen=True)
class Plan:
    """The digests of one job's inputs for each window that has data, and the ledger to compare them with."""

    job: Job
    #: The sources of each unit, see `units`.
    members: Mapping[str, Sequence[Source]]
    #: unit -> window -> digest of the inputs, without state. Windows are sorted.
    inputs: Mapping[str, Mapping[str, str]]
    #: The ledger's entries of the job's first output.
    entries: ledger.Entries
    #: The ledger's entries of the jobs that it reads.
    read: tuple[ledger.Entries, ...]

    @cached_property
    def _ordered(self) -> Mapping[str, Sequence[str]]:
        """The windows of `inputs` by unit."""
        return {unit: list(windows) for unit, windows in self.inputs.items()}

    def before(self, unit: str, window: str) -> str | None:
        """The last window with data before `window`."""
        ordered = self._ordered[unit]
        at = bisect_left(ordered, window)
        return ordered[at - 1] if at else None

    def entry(self, unit: str, window: str) -> ledger.Entry | None:
        """The ledger's entry of the window, if it was computed."""
        return self.entries.get(unit, {}).get(window)

    def digest(self, unit: str, window: str) -> str:
        """The digest of everything that `window` is computed from, including the state before it."""
        if not self.job.state_table:
            return self.inputs[unit][window]
        before = self.before(unit, window)
        entry = self.entry(unit, before) if before else None
        return self.with_state(unit, window, entry)

    def with_state(self, unit: str, window: str, before: ledger.Entry | None) -> str:
        """The digest of `window` of a job with state, if `before` is the entry of the window before."""
        return _digest([self.inputs[unit][window], before.state_digest if before else None])

    def stale(self, unit: str, window: str) -> bool:
        """Whether the window was never computed, or from something else than what is there now."""
        return window in self.stale_windows[unit]

    @cached_property
    def stale_windows(self) -> Mapping[str, Collection[str]]:
        """The stale windows by unit."""
        return {unit: {name for name in windows if self._stale(unit, name)} for unit, windows in self.inputs.items()}

    def _stale(self, unit: str, window: str) -> bool:
        entry = self.entry(unit, window)
        return entry is None or entry.digest != self.digest(unit, window)

    def committed(
        self,
        spans: Sequence[Span],
        state_rows: Mapping[tuple[str, str], tuple[str, str]],
        rows: Mapping[str, Mapping[tuple[str, str], int]],
    ) -> list[ledger.Entry]:
        """The ledger entries of all windows of `spans`. Each digest includes the state before the window.

        `state_rows` has a digest of each window's state rows, and the oldest window whose state is alive at its end.
        """
        now = time.time_ns()
        entries: list[ledger.Entry] = []
        for span in spans:
            before = self.before(span.source, span.first)
            carried = self.entry(span.source, before) if before else None
            known = self.entries.get(span.source, {})
            written = {name: known[name].state_rows_digest for name in self.inputs[span.source] if name in known}
            ordered = sorted({*written, *span.windows})
            for window in span.windows:
                digest, state, own, alive = self.inputs[span.source][window], None, None, None
                if self.job.state_table:
                    digest = self.with_state(span.source, window, carried)
                    own, alive = state_rows[span.source, window]
                    written[window] = own
                    parts = ordered[bisect_left(ordered, alive) : bisect_right(ordered, window)]
                    state = _digest([written[name] for name in parts])
                for table in self.job.outputs:
                    count = rows[table].get((span.source, window), 0)
                    carried = ledger.Entry(
                        table, span.source, window, digest, state, own, alive, count, self.job.version, now
                    )
                    entries.append(carried)
        return entries


class Planner:
    """The planning of one run. Its methods are safe to call from several threads.

    The planner lists the manifests and reads the ledger when it is first asked. It knows what it commits itself. If
    another process commits to the ledger, the planner reads everything again: that process may know newer captures.
    Otherwise captures that land meanwhile are left for the next run.
    """

    def __init__(self, lake: Lake, jobs: Mapping[str, Job]) -> None:
        self.lake, self._jobs = lake, jobs
        self._lock = threading.RLock()
        self._landed: dict[str, list[Manifest]] | None = None
        #: The ledger, kept open, and the version that was read.
        self._ledger: DeltaTable | None = None
        self._version: int | None = None
        self._tables: Mapping[str, ledger.Entries] = {}
        self._plans: dict[str, Plan] = {}

    def _read(self) -> dict[str, list[Manifest]]:
        """The captures by source; they and the ledger are read if they aren't known yet."""
        version = self._newest()
        if self._landed is None or version != self._version:
            self._version, self._landed = version, {}
            for manifest in manifests(self.lake):
                self._landed.setdefault(manifest.source, []).append(manifest)
            self._tables = ledger.tables(self.lake)
            self._plans.clear()
        return self._landed

    def _newest(self) -> int | None:
        """The number of the newest commit to the ledger; None if there is none."""
        address = ledger.path(self.lake)
        if self._ledger is None:
            self._ledger = delta_tables.opened(address)
        else:
            delta_tables.update(address, self._ledger)
        return self._ledger.version() if self._ledger else None

    def landed(self, sources: Iterable[Source] | None = None) -> list[Manifest]:
        """The captures of `sources`; of all that ever landed, if None."""
        with self._lock:
            landed = self._read()
            names = landed if sources is None else names_of(sources)
            return [manifest for name in names for manifest in landed.get(name, ())]

    def data_windows(self, protocol: str | None = None) -> list[str]:
        """The windows with landed records, of all protocols or of one, sorted."""
        sources = None if protocol is None else [one for one in self.lake.sources if one.protocol == protocol]
        return sorted({window for manifest in self.landed(sources) for window in manifest.windows})

    def plan(self, job: Job) -> Plan:
        """The plan of `job`."""
        with self._lock:
            return self._plan(job, self._read())

    def _plan(self, job: Job, landed: Mapping[str, Sequence[Manifest]]) -> Plan:
        entries = self._tables.get(job.outputs[0], _NONE)
        read = tuple(self._tables.get(self._jobs[name].outputs[0], _NONE) for name in job.reads)
        known = self._plans.get(job.name)
        if known is None or any(old is not new for old, new in zip(known.read, read, strict=True)):
            members = units(self.lake, job)
            inputs = {unit: self._inputs(job, unit, sources, read, landed) for unit, sources in members.items()}
            self._plans[job.name] = Plan(job, members, inputs, entries, read)
        elif known.entries is not entries:
            self._plans[job.name] = replace(known, entries=entries)
        return self._plans[job.name]

    def _inputs(
        self,
        job: Job,
        unit: str,
        sources: Sequence[Source],
        read: Sequence[ledger.Entries],
        landed: Mapping[str, Sequence[Manifest]],
    ) -> dict[str, str]:
        """By window: the digest of what the rows of a unit are computed from, without state."""
        if job.landed:
            facts = job.landed([one for source in sources for one in landed.get(source.name, ())], self.lake)
        else:
            facts = self._read_facts(job, unit, sources, read)
        options = None
        if job.protocol:
            of_mapping = PROTOCOLS[job.protocol].options.from_mapping
            options = [of_mapping(source.options).canonical() for source in sources]
        also = [job.also(self.lake, source) for source in sources] if job.also and facts else []
        return {window: _digest([job.version, options, *also, facts[window]]) for window in sorted(facts)}

    def _read_facts(
        self, job: Job, unit: str, sources: Sequence[Source], read: Sequence[ledger.Entries]
    ) -> dict[str, list[str | None]]:
        """For each window in which a job it reads has rows: the digests of all these jobs, None where one has none."""
        parts = [
            entries.get(name, {})
            for each, entries in zip(job.reads, read, strict=True)
            for name in ([unit] if self._jobs[each].joined else names_of(sources))
        ]
        found = {window: [part.get(window) for part in parts] for window in set().union(*parts)}
        return {window: [entry.digest if entry else None for entry in listed] for window, listed in found.items()}

    def stale(self) -> dict[str, set[str]]:
        """The stale windows by job, for jobs that have any.

        A window is stale if its captures, the source's options, the version of the job or the state before it changed,
        or if it is stale in a job that this one reads.
        """
        found: dict[str, set[tuple[str, str]]] = {}
        with self._lock:
            landed = self._read()
            for job in self._jobs.values():
                plan = self._plan(job, landed)
                own = {(unit, window) for unit, windows in plan.stale_windows.items() for window in windows}
                upstream = set().union(*(found[name] for name in job.reads))
                unit_of = {name: unit for unit, sources in plan.members.items() for name in (unit, *names_of(sources))}
                found[job.name] = own | {(unit_of[name], window) for name, window in upstream if name in unit_of}
        return {name: {window for _, window in pairs} for name, pairs in found.items() if pairs}

    def due(self) -> dict[str, set[str]]:
        """The windows with work for `run`, by job: stale ones, and those whose checks haven't passed since."""
        with self._lock:
            found, names = self.stale(), self.lake.names
            for name, job in self._jobs.items():
                passed = self._tables.get(checks_of(job), _NONE)
                unchecked = {
                    window
                    for source, entries in self._tables.get(job.outputs[0], _NONE).items()
                    if source in names
                    for window, entry in entries.items()
                    if (check := passed.get(source, {}).get(window)) is None or check.digest != _as_written(entry)
                }
                if unchecked:
                    found[name] = found.get(name, set()) | unchecked
        return {name: found[name] for name in self._jobs if name in found}

    def committed_at_ns(self, last: str) -> int:
        """The time of the newest entry of a window up to `last`; 0 if there is none."""
        with self._lock:
            self._read()
            tables = self._tables.values()
        entries = (entry for table in tables for windows in table.values() for entry in windows.values())
        return max((entry.committed_at_ns for entry in entries if entry.window_start <= last), default=0)

    def checked(self, job: Job, first: str, last: str, waiting: Collection[str]) -> list[ledger.Entry]:
        """The entries that record that `job` passed its checks in windows `first` to `last`, but not in `waiting`."""
        with self._lock:
            self._read()
            written = self._tables.get(job.outputs[0], _NONE).values()
        return [
            replace(entry, table_name=checks_of(job), digest=_as_written(entry))
            for entries in written
            for window, entry in entries.items()
            if first <= window <= last and window not in waiting
        ]

    def commit(self, entries: Iterable[ledger.Entry]) -> None:
        """Write these entries to the ledger."""
        with self._lock:
            self._follow(ledger.commit(self.lake, entries))

    def withdraw(self, keys: Iterable[ledger.Key]) -> None:
        """Remove the entries of these tables, units and windows from the ledger."""
        with self._lock:
            self._follow(ledger.withdraw(self.lake, keys))

    def _follow(self, committed: ledger.Committed | None) -> None:
        """Take the planner's own commit as known, unless another process committed before it."""
        if committed and committed.before == (self._version or 0) and committed.after == committed.before + 1:
            self._version, self._tables = committed.after, ledger.tables(self.lake)
