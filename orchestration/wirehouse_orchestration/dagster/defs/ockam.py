"""The Ockam stream service: assets and checks of its tables."""

from __future__ import annotations

import dagster as dg

from wirehouse_orchestration.dagster.factories import definitions_of
from wirehouse_pipelines.lake.lake import Lake


def definitions(lake: Lake) -> dg.Definitions:
    """Assets and checks of the lake's Ockam tables."""
    return definitions_of(lake, "ockam")
