"""Incidents of a chain, and what its producer sends in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from wirehouse_codecs.cardinal.simulator import faults
from wirehouse_codecs.cardinal.simulator.producer import QUIET_BLOCKS, Burst, Draft, Edit, Producer, large_reorg
from wirehouse_codecs.simulate.incidents import Incident, choices

if TYPE_CHECKING:
    from wirehouse_codecs.cardinal.simulator.simulator import SimulatorConfig

_NS_PER_MS: Final = 1_000_000


def _without_batch(draft: Draft) -> None:
    draft.without_batch = True


#: How a block can be incomplete.
_EDITS: tuple[Edit, ...] = (faults.missing_message, faults.missing_item, faults.no_header, _without_batch)


def height(config: SimulatorConfig) -> int:
    """The height of the chain when the incident begins."""
    least = config.reorg_depth + QUIET_BLOCKS
    return choices(config).randint(least, max(least, config.blocks - least))


def _stall(producer: Producer) -> Iterator[Burst]:
    edit = choices(producer.config).choice(_EDITS)
    yield producer.send(producer.grow(), edit)


#: What is sent when the incident begins.
PLAYS: Mapping[str, Callable[[Producer], Iterator[Burst]]] = MappingProxyType(
    {"chain-stall": _stall, "chain-reorg": large_reorg}
)


def _since(config: SimulatorConfig, **who: int) -> Mapping[str, Any]:
    begins = height(config)
    if begins >= config.blocks:
        return {}
    return {**who, "since_ns": (config.start_time_ms + begins * config.block_interval_ms) * _NS_PER_MS}


def _of_stall(config: SimulatorConfig) -> Mapping[str, Any]:
    head = config.start_number + height(config)
    return _since(config, head_number=head, blocking_number=head + 1)


def _of_reorg(config: SimulatorConfig) -> Mapping[str, Any]:
    ancestor = config.start_number + height(config) - config.reorg_depth
    return _since(config, ancestor_number=ancestor, depth=config.reorg_depth)


#: A minute.
_MINUTE: Final = {"blocks": 60, "block_interval_ms": 1_000, "messages_per_block": 40}

INCIDENTS: Mapping[str, Incident] = MappingProxyType(
    {
        "chain-stall": Incident("A message of a block never comes, and the chain stalls.", _MINUTE, _of_stall),
        "chain-reorg": Incident("A heavier chain replaces many blocks.", _MINUTE, _of_reorg),
    }
)
