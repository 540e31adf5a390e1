"""Upkeep through Dagster: in the pools of the writers, and what it freed told by the assets."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pyarrow as pa
from deltalake import write_deltalake

from wirehouse_orchestration.dagster.assembly import assemble
from wirehouse_orchestration.dagster.defs.upkeep import UPKEEP, key
from wirehouse_orchestration.dagster.instance import shared_instance
from wirehouse_orchestration.dagster.runs import check_alone, keep_up
from wirehouse_pipelines.delta import arrow_types
from wirehouse_pipelines.jobs import upkeep
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.upkeep_options import UpkeepOptions
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.tables import all_tables

TABLE = "bronze.messages"


def a_lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"), Windows("day", "2015-01-01"), upkeep=UpkeepOptions(schedule="1 2 * * *"))


def test_every_table_is_kept_by_one_asset_in_the_pool_of_its_writer(tmp_path: Path) -> None:
    lake = a_lake(tmp_path)
    kept = [name for names in upkeep.parts(lake).values() for name in names]
    physical = {table.name for table in all_tables().values() if table.view is None}
    assert sorted(kept) == sorted(physical | {upkeep.LEDGER})
    repository = assemble(lake).get_repository_def()
    for part in upkeep.parts(lake):
        asset = repository.assets_defs_by_key[key(part)]
        assert asset.op.pool == part
    assert next(one for one in repository.schedule_defs if one.name == UPKEEP).cron_schedule == "1 2 * * *"


def test_what_was_freed_is_told(tmp_path: Path) -> None:
    lake = a_lake(tmp_path)
    schema = arrow_types.schema(all_tables()[TABLE])
    for _ in range(3):
        rows = pa.Table.from_pylist([{"source": "a", "window_start": "2023-11-14"}], schema=schema)
        write_deltalake(lake.table_path(TABLE), rows, mode="append", partition_by=["source", "window_start"])
    said: list[str] = []
    kept = keep_up(lake, progress=said.append)
    assert kept.done
    freed_bytes = {"freed_bytes": 0, "removed_files": 0, "removed_log_files": 0, "released_captures": 0}
    assert kept.freed == [{"part": "bronze", "name": TABLE, "joined_files": 3} | freed_bytes]
    assert any(line.startswith(f"{TABLE}: 3 files joined") for line in said)
    check_alone(lake)
    with shared_instance(lake) as instance:
        event = instance.get_latest_materialization_event(key("bronze"))
        assert event is not None
        assert event.asset_materialization is not None
        told = event.asset_materialization.metadata
        assert told["joined_files"] == dg.MetadataValue.int(3)
        assert told["removed_files"] == dg.MetadataValue.int(0)
        freed = told["freed"]
        assert isinstance(freed, dg.TableMetadataValue)
        assert [record.data["name"] for record in freed.records] == [TABLE]
