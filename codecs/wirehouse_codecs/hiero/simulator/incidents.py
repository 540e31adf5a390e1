"""Incidents of block nodes: which node is affected, and after which round."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from wirehouse_codecs.hiero.simulator.happenings import HAPPENINGS, Happening
from wirehouse_codecs.simulate.incidents import Incident, choices

if TYPE_CHECKING:
    from wirehouse_codecs.hiero.simulator.network import Network, Node, Steps
    from wirehouse_codecs.hiero.simulator.simulator import SimulatorConfig

#: Number of later blocks that are verified before a late block reaches its subscribers.
LATE_BLOCKS: Final = 4
#: Half a minute, in which nothing else happens.
_SETTINGS: Final = {"publishers": 4, "blocks": 60, "block_bytes": 2_000, "incident_rounds": 0}


class Trouble(NamedTuple):
    """What happens to which node, after how many rounds."""

    what: Happening
    node: int
    round: int


def trouble(config: SimulatorConfig) -> Trouble | None:
    """The incident of a configuration; None = it has none."""
    if config.incident is None:
        return None
    random = choices(config)
    node = random.randrange(min(config.nodes, config.publishers))
    return Trouble(_PLAYS[config.incident], node, random.randint(config.blocks // 4, config.blocks // 2))


def _delay_blocks(network: Network, node: Node) -> Steps:
    network.affects(node=node.name)
    node.late_blocks = LATE_BLOCKS
    yield


_PLAYS: Mapping[str, Happening] = MappingProxyType(
    {
        "publisher-backoff": HAPPENINGS["node fails"],
        "node-behind": HAPPENINGS["node catches up"],
        "blocks-late": Happening(_delay_blocks, lambda _, node: bool(node.subscribers)),
    }
)


def _truth(config: SimulatorConfig) -> Mapping[str, Any]:
    from wirehouse_codecs.hiero.simulator.network import Network

    network = Network(config)
    while network.affected is None and network.advance():
        pass
    return network.affected or {}


INCIDENTS: Mapping[str, Incident] = MappingProxyType(
    {
        "publisher-backoff": Incident("A node fails, and a publisher backs off from it.", _SETTINGS, _truth),
        "node-behind": Incident("A node misses blocks, and catches up while a publisher waits.", _SETTINGS, _truth),
        "blocks-late": Incident("A node delivers blocks late to its subscribers.", _SETTINGS, _truth),
    }
)
