"""Bronze: assets and checks of the tables without a protocol, and the views over all protocols."""

from __future__ import annotations

import dagster as dg

from wirehouse_orchestration.dagster.factories import definitions_of
from wirehouse_pipelines.lake.lake import Lake


def definitions(lake: Lake) -> dg.Definitions:
    """Assets and checks of the lake's bronze tables."""
    return definitions_of(lake, None)
