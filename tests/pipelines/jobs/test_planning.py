"""How often planning reads and computes what it needs, whatever the number of sources; no JVM."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from wirehouse_pipelines.delta import ledger
from wirehouse_pipelines.jobs import planning, runner
from wirehouse_pipelines.jobs.job import Span
from wirehouse_pipelines.jobs.planning import Planner
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.landing import manifests as known_manifests
from wirehouse_pipelines.landing.manifests import Manifest, WindowObjects, write_manifest
from wirehouse_pipelines.storage.storage import open_storage

WINDOWS = ("2023-11-14", "2023-11-15", "2023-11-16")
KINDS = {"cardinal": "messages", "wallaroo": "pcap", "hiero": "pcap"}


def _lake(root: Path, sources: int) -> Lake:
    """A lake in which each source landed a capture per window."""
    protocols = [list(KINDS)[number % len(KINDS)] for number in range(sources)]
    listed = [Source(f"s{n}", protocol, KINDS[protocol], "/none") for n, protocol in enumerate(protocols)]
    lake = Lake(str(root), Windows("day", WINDOWS[0]), tuple(listed))
    for source in listed:
        for window in WINDOWS:
            _land(lake, source, window)
    return lake


def _land(lake: Lake, source: Source, window: str, name: str = "a") -> None:
    capture_id = hashlib.sha256(f"{source.name} {window} {name}".encode()).hexdigest()
    at, parts = lake.windows.start_ns(window), {window: WindowObjects((f"{capture_id}.avro",), 1)}
    told = (source.name, source.protocol, source.kind, capture_id, name, "landed", None, 1, 1, 0, at, at, at, parts)
    write_manifest(open_storage(lake.root), Manifest(*told))


def _compute(known: Planner) -> None:
    """As if all jobs had computed their stale windows, one after the other."""
    for job in runner.all_jobs().values():
        while stale := {unit: windows for unit, windows in known.plan(job).stale_windows.items() if windows}:
            spans = [Span(unit, (min(windows),)) for unit, windows in stale.items()]
            states = {(span.source, span.first): (f"{span.first} of {span.source}", span.first) for span in spans}
            known.commit(known.plan(job).committed(spans, states, {table: {} for table in job.outputs}))
        known.commit(known.checked(job, WINDOWS[0], WINDOWS[-1], ()))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often captures were listed, a manifest and the ledger's rows read, and a unit's inputs computed."""
    counted: Counter[str] = Counter()

    def count(what: str, owner: Any, name: str) -> None:
        wrapped = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            counted[what] += 1
            return wrapped(*arguments, **named)

        monkeypatch.setattr(owner, name, call)

    count("listings", planning, "manifests")
    count("manifests", known_manifests, "_read")
    count("ledger", ledger, "_rows")
    count("inputs", Planner, "_inputs")
    return counted


def test_a_run_reads_everything_once_and_plans_a_job_again_only_after_its_input(
    tmp_path: Path, reads: Counter[str]
) -> None:
    per_source = set()
    for sources in (3, 12):
        reads.clear()
        known = runner.planner(_lake(tmp_path / str(sources), sources))
        assert known.due() == known.stale()
        _compute(known)
        for _ in range(5):
            assert known.due() == known.stale() == {}
        assert (reads["listings"], reads["manifests"], reads["ledger"]) == (1, sources * len(WINDOWS), 0)
        per_source.add(reads["inputs"] / sources)
    (inputs,) = per_source
    jobs = [job for job in runner.all_jobs().values() if job.protocol in (None, *KINDS)]
    # Before anything was computed, and for each commit of a window that is read.
    assert inputs <= len(jobs) * (1 + len(WINDOWS))


def test_a_run_on_a_computed_lake_reads_each_table_of_the_ledger_once(
    tmp_path: Path, reads: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = _lake(tmp_path, 3)
    _compute(runner.planner(lake))
    monkeypatch.setattr(ledger, "_last", ("", {}))
    reads.clear()
    known = runner.planner(lake)
    for _ in range(3):
        assert known.due() == {}
    assert (reads["ledger"], reads["listings"], reads["inputs"]) == (1, 1, sum(map(len, _units(lake))))


def _units(lake: Lake) -> Iterator[dict[str, Any]]:
    return (planning.units(lake, job) for job in runner.all_jobs().values())


def test_captures_that_land_during_a_run_are_left_for_the_next(tmp_path: Path) -> None:
    lake = _lake(tmp_path, 3)
    known = runner.planner(lake)
    _compute(known)
    _land(lake, lake.sources[0], WINDOWS[1], "b")
    assert known.stale() == {}
    assert runner.stale(lake)["silver.cardinal"] == {WINDOWS[1]}


def test_what_another_process_committed_is_known_with_its_captures(tmp_path: Path) -> None:
    lake = _lake(tmp_path, 3)
    known = runner.planner(lake)
    _compute(known)
    _land(lake, lake.sources[0], WINDOWS[1], "b")
    _compute(other := runner.planner(lake))
    assert known.due() == other.due() == {}
    assert len(known.landed()) == len(other.landed()) == 3 * len(WINDOWS) + 1


def test_a_commit_of_another_process_between_two_of_its_own_is_noticed(tmp_path: Path) -> None:
    lake = _lake(tmp_path, 3)
    known = runner.planner(lake)
    _compute(known)
    job = runner.all_jobs()["bronze.captures"]
    source, entry = lake.sources[0], known.plan(job).entry(lake.sources[0].name, WINDOWS[0])
    assert entry
    _land(lake, source, WINDOWS[1], "b")
    ledger.withdraw(lake, [(job.outputs[0], source.name, WINDOWS[2])])
    known.commit([entry])
    assert known.stale()["bronze.captures"] == {WINDOWS[1], WINDOWS[2]}


def test_a_job_without_stale_windows_starts_no_engine(tmp_path: Path) -> None:
    from wirehouse_orchestration.dagster import factories

    lake = _lake(tmp_path, 3)
    known = runner.planner(lake)
    _compute(known)
    session = Mock(known=known)
    session.spark.side_effect = AssertionError
    for job in runner.all_jobs().values():
        assert factories._run(session, lake, job, WINDOWS[0], WINDOWS[-1], force=False).windows == ()
