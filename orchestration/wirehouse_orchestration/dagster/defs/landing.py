"""Landing: an asset for each source. Materialising it lands the captures at the source's path that are new."""

# Dagster reads the types of the functions below, so annotations are not put off here.
from collections.abc import Sequence
from typing import Any

import dagster as dg
from dagster import AssetExecutionContext

from wirehouse_orchestration.dagster.asset_pages import freshness
from wirehouse_orchestration.dagster.factories import landing_key, table_value, translated_errors
from wirehouse_orchestration.dagster.instance import shared_instance
from wirehouse_orchestration.dagster.resources import RunSession
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.landing.capture_files import SETTLE_SECONDS
from wirehouse_pipelines.landing.landing import land
from wirehouse_pipelines.landing.manifests import REJECTED, Manifest, manifests

POOL = "landing"


def landing_asset(lake: Lake, source: Source) -> dg.AssetsDefinition:
    """The landing asset of `source`."""

    @dg.asset(
        key=landing_key(source.name),
        # Names of sources may hold a dash, names of steps not.
        op_tags={"source": source.name},
        description=f"Captures of {source.protocol} landed from {source.path} (kind {source.kind}).",
        group_name=POOL,
        kinds={"avro"},
        pool=POOL,
        freshness_policy=freshness(lake),
        required_resource_keys={"session"},
    )
    def landed(context: AssetExecutionContext) -> dg.MaterializeResult[None]:
        session: RunSession = context.resources.session
        with translated_errors():
            new = land(lake, source, progress=session.say, settle_seconds=SETTLE_SECONDS)
        return dg.MaterializeResult(metadata=landed_metadata(lake, source, new))

    return landed


def landed_metadata(lake: Lake, source: Source, new: list[Manifest]) -> dict[str, Any]:
    """The metadata of a landing: the new captures, and the total number of records of the source."""
    captures = [
        {
            "path": manifest.path,
            "status": manifest.status,
            "records": manifest.records,
            "windows": ", ".join(manifest.windows),
            "reason": manifest.reason,
            "capture_id": manifest.capture_id,
        }
        for manifest in new
    ]
    return {
        "dagster/row_count": sum(manifest.records for manifest in manifests(lake, source.name)),
        "new_captures": len(new),
        "rejected": sum(manifest.status == REJECTED for manifest in new),
        **({"captures": table_value(captures)} if captures else {}),
    }


def report_landed(lake: Lake, new: Sequence[Manifest]) -> None:
    """Report to Dagster what was landed outside of its runs, as materialisations of the landing assets."""
    with shared_instance(lake) as instance:
        for source in lake.sources:
            mine = [manifest for manifest in new if manifest.source == source.name]
            if mine:
                metadata = landed_metadata(lake, source, mine)
                instance.report_runless_asset_event(
                    dg.AssetMaterialization(landing_key(source.name), metadata=metadata)
                )


def definitions(lake: Lake) -> dg.Definitions:
    """An asset for each of the lake's sources."""
    return dg.Definitions(assets=[landing_asset(lake, source) for source in lake.sources])
