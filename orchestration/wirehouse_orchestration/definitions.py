"""The Dagster code location: the definitions for the configured lake.

Loading it starts no JVM, opens no socket and needs no secret.
"""

from __future__ import annotations

import logging

import dagster as dg

from wirehouse_orchestration import config
from wirehouse_orchestration.dagster.assembly import assemble
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.windows import Windows


def configured_lake() -> Lake:
    """The configured lake; a lake without sources if there is no configuration."""
    place = config.place(None)
    if place.exists():
        return config.load(place)
    logging.getLogger("wirehouse").warning(
        "There is no %s: showing an empty lake. Name a configuration with %s.", place.absolute(), config.VARIABLE
    )
    return Lake(str(place.absolute().parent / "lake"), Windows("day", config.FIRST_DAY))


@dg.definitions
def defs() -> dg.Definitions:
    """The definitions. The configuration is read at each load, so a reload shows changes."""
    return assemble(configured_lake())
