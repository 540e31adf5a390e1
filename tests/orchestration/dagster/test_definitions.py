"""What Dagster knows of a lake, as a readable snapshot, and that knowing it costs nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from deltalake.exceptions import CommitFailedError

from wirehouse_codecs.cardinal.rules import RULES
from wirehouse_orchestration.dagster import asset_pages, factories
from wirehouse_orchestration.dagster.assembly import assemble
from wirehouse_orchestration.dagster.factories import asked_windows, partitions, retry_helps, table_value, window_tags
from wirehouse_orchestration.dagster.resources import RunSession
from wirehouse_orchestration.definitions import defs
from wirehouse_pipelines.delta import arrow_types
from wirehouse_pipelines.jobs import runner
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.landing.landing import NotLandedError
from wirehouse_pipelines.tables import all_tables

SNAPSHOT = Path(__file__).with_name("definitions.json")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    sources = tuple(Source(name, "cardinal", "messages", f"/inbox/{name}") for name in ("mainnet", "test-net"))
    return Lake(str(tmp_path / "lake"), Windows("day", "2026-11-01"), sources, owners=("team:network",))


def _deps(spec: dg.AssetSpec) -> list[str]:
    """Keys it depends on; of itself, the windows earlier."""
    return [
        f"{dep.asset_key.to_user_string()} one window earlier"
        if dep.partition_mapping
        else dep.asset_key.to_user_string()
        for dep in spec.deps
    ]


def _fresh(policy: Any) -> list[str] | None:
    """After how long there is a warning, and an error."""
    return policy and [str(window.to_timedelta()) for window in (policy.warn_window, policy.fail_window)]


def described(definitions: dg.Definitions) -> dict[str, Any]:
    """Everything an operator sees of the definitions, as plain data."""
    repository = definitions.get_repository_def()
    assets = {
        spec.key.to_user_string(): {
            "group": spec.group_name,
            "deps": sorted(_deps(spec)),
            "partitions": str(spec.partitions_def) if spec.partitions_def else None,
            "kinds": sorted(spec.kinds),
            "owners": spec.owners,
            "fresh": _fresh(spec.freshness_policy),
            "metadata": sorted(spec.metadata),
            "columns": len(columns.columns) if (columns := spec.metadata.get("dagster/column_schema")) else None,
        }
        for spec in definitions.resolve_all_asset_specs()
    }
    steps = {
        definition.op.name: {"pool": definition.op.pool, "single_run": str(definition.backfill_policy)}
        for definition in repository.assets_defs_by_key.values()
        if definition.is_executable
    }
    checks = {
        f"{key.asset_key.to_user_string()}: {key.name}": {
            "blocking": repository.asset_graph.get(key).blocking,
            "description": repository.asset_graph.get(key).description,
        }
        for key in repository.asset_graph.asset_check_keys
    }
    return {
        "assets": dict(sorted(assets.items())),
        "steps": dict(sorted(steps.items())),
        "checks": dict(sorted(checks.items())),
        "jobs": sorted(job.name for job in repository.get_all_jobs() if not job.name.startswith("__")),
        "sensors": {
            s.name: [s.default_status.value, s.job_name if s.targets else None] for s in repository.sensor_defs
        },
        "schedules": {s.name: [s.default_status.value, s.job_name, s.cron_schedule] for s in repository.schedule_defs},
    }


def test_the_definitions_are_those_of_the_snapshot(lake: Lake) -> None:
    found = json.dumps(described(assemble(lake)), indent=1) + "\n"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        SNAPSHOT.write_text(found)
    assert found == SNAPSHOT.read_text(), "what was meant to change: UPDATE_SNAPSHOTS=1 pytest tests/orchestration"


def test_every_shown_table_is_an_asset_with_its_columns(lake: Lake) -> None:
    from wirehouse_pipelines.tables import all_tables

    specs = {spec.key.to_user_string(): spec for spec in assemble(lake).resolve_all_asset_specs()}
    for table in all_tables().values():
        spec = specs.get(table.name.replace(".", "/"))
        if table.internal:
            assert spec is None, f"{table.name} is carried state"
            continue
        assert spec is not None, f"{table.name} has no asset"
        columns = spec.metadata["dagster/column_schema"].columns
        assert [(c.name, c.type, c.description) for c in columns] == [
            (c.name, c.type, c.comment) for c in table.columns
        ]


def test_docs_are_linked_where_they_are_served_else_named(lake: Lake) -> None:
    table = all_tables()["gold.cardinal_chain"]
    assert asset_pages.metadata(lake, table)["docs"].value == "docs/data-dictionary.md#goldcardinal_chain"
    served = replace(lake, docs="https://docs.example.org/wirehouse")
    url = "https://docs.example.org/wirehouse/data-dictionary.html#goldcardinal_chain"
    assert asset_pages.metadata(served, table)["docs"] == dg.MetadataValue.url(url)


def test_columns_of_a_view_name_those_that_they_come_from(lake: Lake) -> None:
    lineage = asset_pages.metadata(lake, all_tables()["gold.cardinal_chain"])["dagster/column_lineage"]
    (origin,) = lineage.deps_by_column["block_hash"]
    assert (origin.asset_key.path, origin.column_name) == (["gold", "cardinal_chain_history"], "block_hash")


def test_a_sample_row_has_the_command_that_leads_to_its_bytes() -> None:
    log, chain = all_tables()["silver.cardinal"], all_tables()["gold.cardinal_chain_history"]
    row = {"rule": "cardinal.key_length_wrong", "source": "main net", "capture_id": "ab", "record_number": 7}
    (sample,) = asset_pages.traced(log, [row])
    assert sample == row | {"bytes": "wirehouse trace silver.cardinal 'source=main net,capture_id=ab,record_number=7'"}
    (odd,) = asset_pages.traced(log, [row | {"source": "a,record_number=8"}])
    assert "'source=a\\,record_number=8,capture_id=ab,record_number=7'" in odd["bytes"]
    assert asset_pages.traced(chain, [{"source": "net", "window_start": "2026-11-14"}])[0].get("bytes") is None


def test_hour_windows_are_partitions_by_the_same_names() -> None:
    windows = Windows("hour", "2026-11-14T22")
    keys = partitions(windows).get_partition_keys(windows.parse("2026-11-15T01"))
    assert keys == ["2026-11-14T22", "2026-11-14T23", "2026-11-15T00", "2026-11-15T01"]


def test_the_newest_day_is_today() -> None:
    windows = Windows("day", "2026-11-14")
    assert partitions(windows).get_partition_keys(windows.parse("2026-11-20"))[-1] == "2026-11-20"


@pytest.mark.parametrize(("first", "last"), [("2026-11-14", "2026-11-14"), ("2026-11-14", "2026-11-16")])
def test_a_run_says_its_windows_by_its_tags(first: str, last: str) -> None:
    assert asked_windows(window_tags(first, last)) == (first, last)
    assert asked_windows({}) is None


def test_only_what_another_try_can_mend_is_tried_again() -> None:
    assert retry_helps(CommitFailedError("a concurrent transaction deleted the same data"))
    assert retry_helps(NotLandedError(source="mainnet", count=1, reason="it changed"))
    assert not retry_helps(RuntimeError("java.lang.OutOfMemoryError"))


def test_sample_rows_of_different_shapes_are_one_table() -> None:
    table = table_value([{"a": 1, "b": None}, {"c": "x"}])
    assert [column.name for column in table.schema.columns] == ["a", "b", "c"]
    assert [record.data for record in table.records] == [{"a": 1, "b": "", "c": ""}, {"a": "", "b": "", "c": "x"}]


LOAD = """
import socket, sys
def refuse(*args, **kwargs): raise AssertionError("a socket was opened")
socket.socket.connect = socket.socket.bind = refuse
from wirehouse_orchestration.definitions import defs
loaded = defs()
from pyspark import SparkContext
assert SparkContext._gateway is None, "a JVM was started"
assert "great_expectations" not in sys.modules
print(len(loaded.resolve_all_asset_specs()))
"""


@pytest.mark.property
def test_loading_starts_no_jvm_opens_no_socket_and_needs_no_secret(tmp_path: Path) -> None:
    config = tmp_path / "lake.toml"
    (tmp_path / "inbox").mkdir()
    config.write_text(
        '[lakehouse]\nroot = "lake"\n[[source]]\nname = "a"\nprotocol = "cardinal"\nkind = "messages"\npath = "inbox"\n'
    )
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "PYTHONPATH")}
    environment = kept | {"WIREHOUSE_CONFIG": str(config)}
    loaded = subprocess.run(
        [sys.executable, "-c", LOAD], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert loaded.returncode == 0, loaded.stderr
    assert int(loaded.stdout) > 10
    assert not (tmp_path / "lake").exists(), "loading wrote something"


def test_without_a_configuration_an_empty_lake_is_shown_and_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WIREHOUSE_CONFIG", raising=False)
    assert len(defs().resolve_all_asset_specs()) > 10
    assert f"There is no {tmp_path / 'wirehouse.toml'}" in caplog.text


def test_rows_and_findings_of_each_window_are_metadata_of_its_partition(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = ("2026-11-14", "2026-11-15")
    rule = next(rule for rule in RULES if rule.id == "cardinal.key_length_wrong")
    found = {"rule": rule.id, "severity": rule.severity, "message": "seven bytes"}
    rows: list[dict[str, Any]] = [
        {"source": "mainnet", "window_start": window, "row_kind": "message"} for window in (*windows, windows[1])
    ]
    rows += [rows[-1] | {"row_kind": "quarantine", "finding": found}]
    table = pa.Table.from_pylist(rows, schema=arrow_types.schema(all_tables()["silver.cardinal"]))
    write_deltalake(lake.table_path("silver.cardinal"), table, partition_by=["source", "window_start"])
    job = runner.all_jobs()["silver.cardinal"]
    report = runner.JobReport(job.name, windows, {"silver.cardinal": 4})
    monkeypatch.setattr(factories, "_run", lambda *arguments, **named: report)
    with dg.DagsterInstance.ephemeral() as instance:
        asset, session = (
            factories.job_assets(lake, job),
            {"session": RunSession(lambda line: None, runner.planner(lake))},
        )
        assert dg.materialize([asset], instance=instance, resources=session, tags=window_tags(*windows)).success
        stored = instance.fetch_materializations(asset_pages.asset_key("silver.cardinal"), limit=9).records
    plotted = {
        record.partition_key: [told.metadata[f"{what}_in_window"].value for what in ("rows", "violations", "notes")]
        for record in stored
        if (told := record.asset_materialization)
    }
    assert plotted == {"2026-11-14": [1, 0, 0], "2026-11-15": [3, 1, 0]}
