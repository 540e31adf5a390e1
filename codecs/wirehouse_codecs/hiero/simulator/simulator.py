"""Seeded, realistic traffic of block nodes as a capture of packets, in all versions of their API, with named faults.

A capture without a fault breaks no rule. Packets are made as they are asked for; of each block but the last few only
hashes are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from wirehouse_codecs.core.errors import OptionError
from wirehouse_codecs.hiero.options import MOST_MESSAGE_BYTES
from wirehouse_codecs.hiero.profiles import PROFILES
from wirehouse_codecs.hiero.simulator.dialogue import ENCODINGS, MIXED, Stage
from wirehouse_codecs.hiero.simulator.faults import FAULTS, FAULTS_OF, Fault
from wirehouse_codecs.hiero.simulator.file_writers import write_archive, write_blocks, write_log
from wirehouse_codecs.hiero.simulator.incidents import INCIDENTS
from wirehouse_codecs.hiero.simulator.ledger import LEAST_ITEM_BYTES, MOST_ITEM_BYTES
from wirehouse_codecs.hiero.simulator.network import Network
from wirehouse_codecs.simulate import pcap_writer
from wirehouse_codecs.simulate.config import Bounds, check
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket, write_pcap
from wirehouse_codecs.simulate.script import Conversation, Disturbances, merge
from wirehouse_codecs.simulate.streams import write_streams

__all__ = [
    "FAULTS",
    "INCIDENTS",
    "RECORDS",
    "WRITERS",
    "Fault",
    "SimulatorConfig",
    "connections",
    "simulate",
    "write_pcap",
]

#: What `simulate` gives, and what writes it by the end of the name.
RECORDS: Final = "packets"
WRITERS: Final = pcap_writer.WRITERS | {
    ".streams": write_streams,
    ".blocks": write_blocks,
    ".tar": write_archive,
    ".grpclog": write_log,
}


@dataclass(frozen=True, slots=True)
class SimulatorConfig:
    """What to simulate. The same configuration gives the same packets."""

    seed: int = 0
    #: The version of the API.
    profile: str = "B"
    #: How messages are compressed; `mixed`: each client in its own way.
    encoding: str = MIXED
    #: Publishers and subscribers are shared out among them.
    nodes: int = 2
    publishers: int = 3
    subscribers: int = 2
    blocks: int = 100
    #: Items of a block, without header and proof, in bytes; and each of them, and the sets in which they are sent.
    block_bytes: int = 20_000
    item_bytes_least: int = 200
    item_bytes_most: int = 1000
    set_bytes: int = 8_000
    #: Between blocks, at least.
    interval_ms: int = 500
    #: Number of rounds after which something happens to a node, its publishers or subscribers; 0 = never.
    incident_rounds: int = 4
    start_time_ms: int = 1_700_000_000_000
    #: Name of a rule that one more node, publisher or subscriber breaks; see FAULTS.
    fault: str | None = None
    #: Name of an incident that begins in the stream; see INCIDENTS.
    incident: str | None = None

    def __post_init__(self) -> None:
        """Raises OptionError for a value out of range, and for a fault or incident that there isn't."""
        check(self, _BOUNDS, FAULTS, INCIDENTS, _CHOICES)
        if self.item_bytes_most < self.item_bytes_least:
            least, most = self.item_bytes_least, self.item_bytes_most
            raise OptionError(key="item_bytes_most", reason=f"must be at least {least}, not {most}")
        if self.fault is not None and self.fault not in FAULTS_OF[self.profile]:
            raise OptionError(key="fault", reason=f"{self.fault} can't be broken in {self.profile}")


_CHOICES: Final = {"profile": tuple(PROFILES), "encoding": (*ENCODINGS, MIXED)}
_BOUNDS: Final[Bounds] = {
    "nodes": (1, 100),
    "publishers": (1, 1000),
    "subscribers": (0, 1000),
    # An EndStream can't state that the last block is 0.
    "blocks": (2, 2**40),
    "block_bytes": (1, MOST_MESSAGE_BYTES),
    "item_bytes_least": (LEAST_ITEM_BYTES, MOST_ITEM_BYTES),
    "item_bytes_most": (LEAST_ITEM_BYTES, MOST_ITEM_BYTES),
    "set_bytes": (1, MOST_MESSAGE_BYTES // 2),
    "interval_ms": (0, 86_400_000),
    "incident_rounds": (0, 2**40),
    # Times of pcap end in 2106.
    "start_time_ms": (0, 4_000_000_000_000),
}


def simulate(config: SimulatorConfig, disturbances: Disturbances | None = None) -> Iterator[CapturedPacket]:
    """The packets of all connections in order of time, for `write_pcap`."""
    return merge(stage.captured(disturbances) for stage in _stages(config))


def connections(config: SimulatorConfig) -> Iterator[Conversation]:
    """The same connections before they are packets, as they were opened; read each before the next."""
    for stage in _stages(config):
        yield from stage.conversations()


def _stages(config: SimulatorConfig) -> list[Stage]:
    return [Network(config), *([] if config.fault is None else [FAULTS[config.fault].stage(config)])]
