"""What makes windows stale: of a job that reads several others, and of options; no JVM."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import VECTORS
from tests.support.running import land
from wirehouse_codecs.core.errors import OptionError
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_pipelines.delta import ledger
from wirehouse_pipelines.jobs import bronze, forgetting, runner, upkeep
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.protocols import PROTOCOLS, Protocol
from wirehouse_pipelines.lake.windows import Windows

STREAM = VECTORS / "cardinal" / "d2_equal_weight" / "messages.jsonl"
#: The capture begins in the first: one of the tables that are read has rows there alone, bronze.messages in both.
WINDOWS = ("2023-11-14", "2023-11-15")


@pytest.fixture
def lake(make_lake: Callable[..., Lake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A lake with a capture of two windows, in which silver.cardinal reads two tables of bronze."""
    known = dict(runner.all_jobs())
    job = known["bronze.captures"]
    assert job.landed
    facts = job.landed
    known[job.name] = replace(job, landed=lambda landed, lake: {WINDOWS[0]: facts(landed, lake)[WINDOWS[0]]})
    both = replace(known["silver.cardinal"], reads=("bronze.messages", "bronze.captures"))
    monkeypatch.setattr(runner, "all_jobs", lambda: known | {both.name: both})
    rows = [json.loads(line) for line in STREAM.read_text().splitlines()]
    later = [row | {"timestamp_ms": row["timestamp_ms"] + 86_400_000} for row in rows]
    path = tmp_path / "two-days.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (*rows, *later)))
    lake = make_lake({"mainnet": (path, {})})
    land(lake)
    return lake


def _plan(lake: Lake, name: str) -> Any:
    return runner.planner(lake).plan(runner.all_jobs()[name])


def _commit(lake: Lake, name: str, digest: str | None = None) -> None:
    """As if the job had computed all its windows."""
    plan = _plan(lake, name)
    ledger.commit(
        lake,
        [
            ledger.Entry(table, "mainnet", w, digest or plan.digest("mainnet", w), None, None, None, 0, "1", 0)
            for w in plan.inputs["mainnet"]
            for table in runner.all_jobs()[name].outputs
        ],
    )


def test_a_window_is_computed_from_every_table_that_is_read(lake: Lake) -> None:
    _commit(lake, "bronze.messages")
    assert sorted(_plan(lake, "silver.cardinal").inputs["mainnet"]) == list(WINDOWS)
    _commit(lake, "bronze.captures")
    _commit(lake, "silver.cardinal")
    assert "silver.cardinal" not in runner.stale(lake)
    for read, windows in (("bronze.captures", WINDOWS[:1]), ("bronze.messages", WINDOWS)):
        _commit(lake, read, digest="another")
        assert {name for name in windows if _plan(lake, "silver.cardinal").stale("mainnet", name)} == set(windows)
        _commit(lake, read)
        assert not any(_plan(lake, "silver.cardinal").stale("mainnet", name) for name in WINDOWS)


def test_a_window_that_first_lacked_one_table_is_stale_when_it_comes(lake: Lake) -> None:
    _commit(lake, "bronze.messages")
    _commit(lake, "silver.cardinal")
    _commit(lake, "bronze.captures")
    assert runner.stale(lake)["silver.cardinal"] == {WINDOWS[0]}


def test_what_is_stale_in_any_table_is_stale_behind_it(lake: Lake) -> None:
    for name in ("bronze.messages", "bronze.captures", "silver.cardinal"):
        _commit(lake, name)
    _commit(lake, "bronze.captures", digest="another")
    _commit(lake, "silver.cardinal")
    assert runner.stale(lake)["silver.cardinal"] == {WINDOWS[0]}


@pytest.mark.parametrize("missing", ["bronze.messages", "bronze.captures"])
def test_no_table_that_is_read_may_be_missing(lake: Lake, missing: str) -> None:
    for name in {"bronze.messages", "bronze.captures"} - {missing}:
        _commit(lake, name)
    no_spark: Any = None
    with pytest.raises(runner.InputMissingError, match=f"needs {missing}"):
        runner.run_job(no_spark, lake, "silver.cardinal", *WINDOWS)


def test_who_writes_a_pools_tables_keeps_out_others_of_any_machine(lake: Lake) -> None:
    entered: list[str] = []
    said: list[str] = []
    # Of windows without data a run needs none.
    no_spark: Any = None

    def enter(name: str, write: Callable[[], object]) -> threading.Thread:
        def wait() -> None:
            write()
            entered.append(name)

        thread = threading.Thread(target=wait)
        thread.start()
        return thread

    _commit(lake, "bronze.messages")
    gone = lake.sources[0].name
    job = runner.all_jobs()["silver.cardinal"]
    with runner.writing(lake, [job.pool]):
        with runner.writing(lake, [bronze.JOBS[0].pool]):
            entered.append("another pool")
        waiting = [
            enter("a run", lambda: runner.run_job(no_spark, lake, job.name, "2000", "2000", progress=said.append)),
            enter("upkeep", lambda: upkeep.keep_tables(lake, job.outputs, said.append)),
            enter("checks", lambda: runner.pass_checks(lake, job.name, *WINDOWS)),
            enter("emptied", lambda: runner.clear_emptied(lake)),
            enter("upkeep of the ledger", lambda: upkeep.keep_tables(lake, (ledger.NAME,), lambda line: None)),
            enter("forgetting", lambda: forgetting.forget(replace(lake, sources=()), gone)),
        ]
        for thread in waiting:
            thread.join(0.3)
        assert entered == ["another pool"]
        assert set(said) == {f"another run or upkeep is writing tables of {job.pool}: waiting until it is done"}
    for thread in waiting:
        thread.join(60)
    assert sorted(entered) == [
        *("a run", "another pool", "checks", "emptied", "forgetting", "upkeep", "upkeep of the ledger")
    ]


def test_how_connections_are_put_together_makes_their_log_stale(tmp_path: Path) -> None:
    path = VECTORS / "wallaroo" / "v3" / "e_no_notify.pcap"
    source = Source("mainnet", "wallaroo", "pcap", str(path), ports=(27103,))
    lake = Lake(str(tmp_path), Windows("day", "2015-01-01"), (source,))
    land(lake)
    for name in ("bronze.captures", "bronze.segments", "silver.wallaroo"):
        _commit(lake, name)
    assert set(runner.stale(lake)) == {"gold.wallaroo"}
    other = replace(lake, sources=(replace(source, tcp=TcpOptions(max_waiting_bytes=1)),))
    assert set(runner.stale(other)) == {"silver.wallaroo", "gold.wallaroo"}


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=lambda protocol: protocol.name)
def test_sources_of_a_protocol_with_joined_jobs_may_name_a_service(protocol: Protocol) -> None:
    if any(job.joined for job in protocol.jobs):
        protocol.options.from_mapping({"service": "node-0"})
        with pytest.raises(OptionError, match="must be of a-z, 0-9"):
            protocol.options.from_mapping({"service": "Node 0"})
