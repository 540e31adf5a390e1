"""Assets, views and checks of each protocol's tables."""

from __future__ import annotations

import dagster as dg

from wirehouse_orchestration.dagster.factories import definitions_of
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.protocols import PROTOCOLS


def definitions(lake: Lake) -> dg.Definitions:
    """Assets and checks of the lake's tables, protocol by protocol."""
    return dg.Definitions.merge(*(definitions_of(lake, name) for name in PROTOCOLS))
