"""Dagster on a real PostgreSQL: its three servers, the queue, and two backfills at once on the pools' terms."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy
import yaml
from dagster import DagsterEventType, DagsterInstance
from dagster._core.execution.backfill import BulkActionStatus
from dagster._core.storage.tags import BACKFILL_ID_TAG

from tests.support import small_lake
from tests.support.running import assert_same_rows, land
from wirehouse_orchestration import config
from wirehouse_orchestration.dagster import asset_pages, factories, instance, ui
from wirehouse_orchestration.infra import server as infra
from wirehouse_pipelines.jobs import runner
from wirehouse_pipelines.lake.lake import Lake

#: Each with the table of bronze that its jobs read.
BACKFILLS = {"cardinal": "bronze.messages", "ockam": "bronze.segments"}
WAIT_SECONDS = 1200
BACKFILL = "... on LaunchBackfillSuccess { backfillId } ... on PythonError { message }"
REPOSITORY = '{repositoryLocationName: "wirehouse", repositoryName: "__repository__"}'
SENSORS = f"{{ sensorsOrError(repositorySelector: {REPOSITORY}) {{ ... on Sensors {{ results {{ id name }} }} }} }}"


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A database of the test's own, which WIREHOUSE_POSTGRES_URL names."""
    infra.up(("postgres",), lambda text: None)
    address = infra.environment()[instance.POSTGRES_VARIABLE]
    name = f"test_{uuid4().hex}"
    server = sqlalchemy.create_engine(address, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(sqlalchemy.text(f"CREATE DATABASE {name}"))
        monkeypatch.setenv(instance.POSTGRES_VARIABLE, f"{address.rpartition('/')[0]}/{name}")
        yield name
        connection.execute(sqlalchemy.text(f"DROP DATABASE {name} WITH (FORCE)"))
    server.dispose()
    infra.down(("postgres",), lambda text: None)


@pytest.mark.parametrize(
    "address", ["postgresql://me:secret@db/dagster", "postgresql+psycopg2://me:secret@db:port/dagster", "secret"]
)
def test_an_address_that_is_none_is_refused(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(instance.POSTGRES_VARIABLE, address)
    lake = config.load(small_lake.configure(tmp_path, "cardinal"))
    with pytest.raises(instance.PostgresAddressError, match=r"has to be postgresql\+psycopg2://USER:[A-Z:@/]*$"):
        instance.home(lake)


def test_each_storage_has_its_settings_and_none_holds_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(instance.POSTGRES_VARIABLE, raising=False)
    lake = config.load(small_lake.configure(tmp_path, "cardinal"))
    embedded = instance.home(lake) / "dagster.yaml"
    monkeypatch.setenv(instance.POSTGRES_VARIABLE, "postgresql+psycopg2://me:secret@db/dagster")
    shared = instance.home(lake) / "dagster.yaml"
    assert shared != embedded
    assert "postgres" not in embedded.read_text()
    assert yaml.safe_load(shared.read_text())["storage"] == {
        "postgres": {"postgres_url": {"env": instance.POSTGRES_VARIABLE}}
    }


@pytest.mark.servers
@pytest.mark.usefixtures("database")
def test_the_database_of_another_lake_is_refused(tmp_path: Path) -> None:
    lake, other = (config.load(small_lake.configure(tmp_path / name, "cardinal")) for name in ("lake", "other"))
    for _ in range(2):
        with instance.shared_instance(lake) as shared:
            assert shared.get_runs_count() == 0
    taken = pytest.raises(instance.OthersDatabaseError, match=f"is that of the lake {lake.root}")
    with taken, instance.shared_instance(other):
        pass


@pytest.mark.spark
@pytest.mark.servers
@pytest.mark.usefixtures("database")
def test_two_backfills_of_different_protocols_go_on_at_once(
    local_lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WIREHOUSE_HASH_KEY", small_lake.HASH_KEY)
    inbox = tmp_path / "inbox"
    file = small_lake.configure(tmp_path, *BACKFILLS, inbox=inbox)
    lake = config.load(file)
    with ui.serving(lake, file) as servers, instance.shared_instance(lake) as shared:
        # What goes on is what is asked for here.
        for sensor in ui.ask(servers.url, SENSORS)["sensorsOrError"]["results"]:
            ui.ask(servers.url, f'mutation {{ stopSensor(id: "{sensor["id"]}") {{ __typename }} }}')
        small_lake.deliver(inbox, *BACKFILLS)
        land(lake)
        ids = [_backfill(servers.url, lake, protocol, table) for protocol, table in BACKFILLS.items()]
        _wait(servers, shared, ids)
        # A sensor may have asked for a run before it was stopped.
        runs = [run for run in shared.get_run_records() if BACKFILL_ID_TAG in run.dagster_run.tags]
        assert {run.dagster_run.tags[BACKFILL_ID_TAG] for run in runs} == set(ids)
        steps = _steps(shared, [run.dagster_run.run_id for run in runs])
    # Of a pool one step at a time, also of different backfills, which both write bronze.
    assert {pool for pool, _ in steps} == {"bronze", *BACKFILLS}
    for (pool, (_, end)), (other, (begin, _)) in pairwise(steps):
        assert pool != other or end <= begin, f"two steps of {pool} at once"
    of_each = [[run for run in runs if run.dagster_run.tags[BACKFILL_ID_TAG] == backfill] for backfill in ids]
    begun = [min(run.start_time or 0 for run in mine) for mine in of_each]
    ended = [max(run.end_time or 0 for run in mine) for mine in of_each]
    assert max(begun) < min(ended), "one began when the other had ended"
    assert_same_rows(local_lake, lake, of=BACKFILLS)


def _backfill(url: str, lake: Lake, protocol: str, table: str) -> str:
    """Ask for the windows of `protocol` in its tables and in `table`, as the UI does; its id."""
    named = [job for job in runner.all_jobs().values() if job.protocol == protocol]
    keys = [asset_pages.asset_key(name.name) for job in named for name in factories.shown_outputs(job)]
    assets = [{"path": list(key.path)} for key in (asset_pages.asset_key(table), *keys)]
    windows = runner.data_windows(lake, protocol)
    selected = re.sub(r'"(\w+)":', r"\1:", json.dumps({"assetSelection": assets, "partitionNames": windows}))
    asked = f"mutation {{ launchPartitionBackfill(backfillParams: {selected}) {{ __typename {BACKFILL} }} }}"
    answer = ui.ask(url, asked)["launchPartitionBackfill"]
    assert "backfillId" in answer, answer
    return str(answer["backfillId"])


def _wait(servers: ui.Servers, shared: DagsterInstance, ids: list[str]) -> None:
    """Until the backfills succeeded."""
    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end:
        servers.check()
        found = {known.backfill_id: known.status for known in map(shared.get_backfill, ids) if known}
        if set(found.values()) == {BulkActionStatus.COMPLETED_SUCCESS}:
            return
        assert set(found.values()) <= {BulkActionStatus.REQUESTED, BulkActionStatus.COMPLETED_SUCCESS}, found
        time.sleep(1)
    raise AssertionError(f"after {WAIT_SECONDS} s the backfills are {found}")


def _steps(shared: DagsterInstance, runs: list[str]) -> list[tuple[str, tuple[float, float]]]:
    """Pool, begin and end of each step of the runs, by pool and begin."""
    pools = {factories.step_name(job): job.pool for job in runner.all_jobs().values()}
    pools |= {factories.checks_name(job): job.pool for job in runner.all_jobs().values()}
    times: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        for event in shared.all_logs(run, of_type={DagsterEventType.STEP_START, DagsterEventType.STEP_SUCCESS}):
            assert event.step_key is not None
            times.setdefault((pools[event.step_key], f"{run} {event.step_key}"), []).append(event.timestamp)
    return sorted((pool, (min(moments), max(moments))) for (pool, _), moments in times.items())
