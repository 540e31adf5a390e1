"""Combines all Dagster definitions of a lake, and applies policies common to all of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import dagster as dg

from wirehouse_orchestration.dagster import resources
from wirehouse_orchestration.dagster.defs import alerts, automation, bronze, landing, protocols, upkeep
from wirehouse_pipelines.jobs.planning import Planner
from wirehouse_pipelines.lake.lake import Lake

PARTS: tuple[Any, ...] = (landing, bronze, protocols, automation, upkeep, alerts)


def _tagged(lake: Lake, spec: dg.AssetSpec) -> dg.AssetSpec:
    """The spec with the lake's owners, and with layer and protocol as tags to filter the catalogue by."""
    layer, _, protocol = (spec.group_name or "").partition("_")
    tags = {"layer": layer} | ({"protocol": protocol} if protocol else {})
    return spec.merge_attributes(tags=tags, owners=list(lake.owners))


def assemble(lake: Lake, progress: resources.Progress | None = None, known: Planner | None = None) -> dg.Definitions:
    """All Dagster definitions of `lake`. `progress` receives the progress lines of a run, in place of its log.

    `known` is the planning that all runs share, in place of one for each.
    """
    own = resources.definitions(lake, progress, known)
    merged = dg.Definitions.merge(*(part.definitions(lake) for part in PARTS), own)
    assets: list[Any] = [*(merged.assets or ())]
    return dg.Definitions(
        assets=dg.map_asset_specs(partial(_tagged, lake), assets),
        asset_checks=merged.asset_checks,
        jobs=merged.jobs,
        schedules=merged.schedules,
        sensors=merged.sensors,
        resources=merged.resources,
        executor=dg.in_process_executor,
    )
