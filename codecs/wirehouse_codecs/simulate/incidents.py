"""Incidents: trouble that an operator meets, which begins at some moment of otherwise normal traffic.

Each simulator declares its INCIDENTS, a table of what is here. The seed decides who is affected and since when.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any


@dataclass(frozen=True, slots=True)
class Incident:
    """What one incident is."""

    #: One sentence for operators.
    what: str
    #: Options of the simulator whose defaults it replaces.
    settings: Mapping[str, Any]
    #: The truth about a configuration with this incident: who is affected, by the names of the tables' columns, and
    #: `since_ns`; nothing if it does not begin.
    #: nothing if it does not begin.
    truth: Callable[[Any], Mapping[str, Any]]


def choices(config: Any) -> Random:
    """What decides who is affected and since when: the same at each call."""
    return Random(f"{config.seed} {config.incident}")
