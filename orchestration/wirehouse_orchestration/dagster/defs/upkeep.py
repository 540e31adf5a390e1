"""Upkeep: an asset for the tables of each pool, one for the ledger and one for landing; a schedule materialises them.

Upkeep of tables runs in the pool of their writers; upkeep of landing runs in the pool of bronze, which reads it.
"""

# Dagster reads the types of the functions below, so annotations are not put off here.
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import dagster as dg
from dagster import AssetExecutionContext

from wirehouse_orchestration.dagster.factories import table_value, translated_errors
from wirehouse_orchestration.dagster.resources import RunSession
from wirehouse_pipelines.jobs.job import BRONZE
from wirehouse_pipelines.lake.lake import Lake

UPKEEP = "upkeep"
#: The metadata of a part: a row for each table or source.
FREED = "freed"
_KEPT = "Small files compacted, old files and log entries removed: {tables}."
_RELEASED = "Landed records expired beyond the age and size limits of `[upkeep]`, once bronze holds them."
Keep = Callable[[Callable[[str], None]], Sequence[Any]]


def key(part: str) -> dg.AssetKey:
    """The key of a part of the upkeep."""
    return dg.AssetKey([UPKEEP, part])


def _asset(part: str, pool: str, description: str, keep: Keep) -> dg.AssetsDefinition:
    @dg.asset(
        key=key(part),
        description=description,
        group_name=UPKEEP,
        pool=pool,
        required_resource_keys={"session"},
    )
    def kept(context: AssetExecutionContext) -> dg.MaterializeResult[None]:
        session: RunSession = context.resources.session
        with translated_errors():
            freed = keep(session.say)
        return dg.MaterializeResult(metadata=_metadata([asdict(one) for one in freed]))

    return kept


def _metadata(freed: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The freed files and bytes, in total and by table or source."""
    names = [name for name in (freed[0] if freed else ()) if name != "name"]
    return {name: sum(one[name] for one in freed) for name in names} | ({FREED: table_value(freed)} if freed else {})


def definitions(lake: Lake) -> dg.Definitions:
    """The assets, the job of all of them, and its schedule."""
    from wirehouse_pipelines.jobs import upkeep

    assets = [
        _asset(
            part,
            part,
            _KEPT.format(tables=", ".join(tables)),
            lambda say, tables=tables: upkeep.keep_tables(lake, tables, say),  # type: ignore[misc]
        )
        for part, tables in upkeep.parts(lake).items()
    ]
    assets.append(_asset(upkeep.LANDING, BRONZE, _RELEASED, lambda say: upkeep.release(lake, say)))
    job = dg.define_asset_job(UPKEEP, dg.AssetSelection.assets(*(asset.key for asset in assets)))
    nightly = dg.ScheduleDefinition(
        name=UPKEEP,
        job=job,
        cron_schedule=lake.upkeep.schedule,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Compacts, removes and expires data as `[upkeep]` of the configuration defines.",
    )
    return dg.Definitions(assets=assets, jobs=[job], schedules=[nightly])
