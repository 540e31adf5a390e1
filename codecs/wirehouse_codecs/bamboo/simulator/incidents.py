"""Incidents of logs: on which connection they happen, and when."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from wirehouse_codecs.bamboo.simulator.scenarios import Scenario, forked, payloads_missing
from wirehouse_codecs.simulate.incidents import Incident, choices

if TYPE_CHECKING:
    from wirehouse_codecs.bamboo.simulator.simulator import SimulatorConfig

#: Half a minute, in which logs are only replicated.
_SETTINGS: Final = {"connections": 3, "entries": 100, "live_share": 0.5, "interval_ms": 500, "ways": 0}
_SCENARIOS: Mapping[str, Scenario] = MappingProxyType({"log-forked": forked, "payloads-missing": payloads_missing})


class Moment(NamedTuple):
    """What happens on which connection, after how many steps of its replication."""

    scenario: Scenario
    connection: int
    step: int


def moment(config: SimulatorConfig) -> Moment | None:
    """The incident of a configuration; None = it has none."""
    if config.incident is None:
        return None
    random = choices(config)
    live = round(config.entries * config.live_share)
    return Moment(
        _SCENARIOS[config.incident], random.randrange(config.connections), random.randint(live // 4, live // 2)
    )


def _truth(config: SimulatorConfig) -> Mapping[str, Any]:
    from wirehouse_codecs.bamboo.simulator.simulator import affected

    return affected(config)


INCIDENTS: Mapping[str, Incident] = MappingProxyType(
    {
        "log-forked": Incident("A peer proves that an author forked a log.", _SETTINGS, _truth),
        "payloads-missing": Incident("A peer lacks payloads of the log that it sends.", _SETTINGS, _truth),
    }
)
