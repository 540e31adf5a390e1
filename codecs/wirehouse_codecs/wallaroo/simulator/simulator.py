"""Seeded, realistic traffic of Wallaroo connectors as a capture of packets, in every dialect, with named faults.

A capture without a fault breaks no rule and gives no note. Packets are made as they are asked for; what is kept does
not grow with the number of messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from wirehouse_codecs.core.errors import OptionError
from wirehouse_codecs.simulate import pcap_writer
from wirehouse_codecs.simulate.config import Bounds, check
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket, write_pcap
from wirehouse_codecs.simulate.script import Conversation, Disturbances, merge, packets
from wirehouse_codecs.simulate.streams import write_streams
from wirehouse_codecs.wallaroo.dialects import DIALECTS
from wirehouse_codecs.wallaroo.simulator.connector import (
    CONNECTORS_PER_WORKER,
    CONTENTS,
    Connector,
    Contents,
    SinkConnector,
    SourceConnector,
)
from wirehouse_codecs.wallaroo.simulator.faults import FAULTS, Fault, FaultyConnector
from wirehouse_codecs.wallaroo.simulator.incidents import INCIDENTS, affected

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

#: The functions that write simulated traffic, by the end of the name: a file, or a folder with the bytes of each side.
RECORDS: Final = "packets"
WRITERS: Final = pcap_writer.WRITERS | {".streams": write_streams}

#: Bounds that keep a message, an OK and an ACK below the limit on frames.
MOST_PAYLOAD_BYTES = 10_000
MOST_STREAMS = 256


@dataclass(frozen=True, slots=True)
class SimulatorConfig:
    """The traffic to simulate. The same configuration gives the same packets.

    Sinks have one stream, and neither streams, credits nor resets of their own.
    """

    seed: int = 0
    dialect: str = "v3"
    connectors: int = 2
    streams_per_connector: int = 3
    #: Messages and boundaries; resets and reconnects send some of them again.
    messages_per_connector: int = 1000
    #: Mean size of a payload; sizes are from half to one and a half of it.
    payload_bytes: int = 80
    #: Different keys; 0 = none. Only implemented dialects have any.
    keys: int = 100
    #: Messages that a connector writes at once, so that their frames share segments.
    burst_messages: int = 50
    #: Between bursts.
    interval_ms: int = 20
    #: Credits of an OK, and those that the worker tops up to ...
    credits: int = 500
    #: ... when a frame finds no more than this number.
    refill_at: int = 250
    #: Between checkpoints: messages are acked at these.
    checkpoint_ms: int = 200
    #: Share of bursts after which the worker resets: a stream by NACK in the text, else all by RESTART.
    reset_share: float = 0.0
    #: Number of times that each connector loses its connection.
    reconnects: int = 0
    #: Number of times that each connector ends a stream and opens it again.
    reopens: int = 0
    start_time_ms: int = 1_700_000_000_000
    #: Name of a rule that one more connector breaks; see FAULTS.
    fault: str | None = None
    #: Name of an incident that begins in the stream; see INCIDENTS.
    incident: str | None = None

    def __post_init__(self) -> None:
        """Raises OptionError for a value out of range, and for a fault or incident that the dialect can't have."""
        check(self, _BOUNDS, FAULTS, INCIDENTS, {"dialect": DIALECTS})
        if self.refill_at >= self.credits:
            raise OptionError(key="refill_at", reason=f"must be below the {self.credits} credits, not {self.refill_at}")
        if self.fault is not None and self.dialect not in FAULTS[self.fault].dialects:
            able = ", ".join(FAULTS[self.fault].dialects)
            raise OptionError(key="fault", reason=f"{self.fault} can't be broken in {self.dialect}, but in {able}")
        dialect = DIALECTS[self.dialect]
        if self.incident is not None and (dialect.sink or not dialect.answers_notify):
            able = ", ".join(name for name, one in DIALECTS.items() if one.answers_notify and not one.sink)
            raise OptionError(key="incident", reason=f"there is no {self.incident} in {self.dialect}, but in {able}")


_BOUNDS: Final[Bounds] = {
    "connectors": (1, 10_000),
    "streams_per_connector": (1, MOST_STREAMS),
    "messages_per_connector": (1, 2**40),
    "payload_bytes": (0, MOST_PAYLOAD_BYTES),
    "keys": (0, CONTENTS),
    "burst_messages": (1, 10_000),
    "interval_ms": (0, 86_400_000),
    "credits": (2, 2**31),
    "refill_at": (1, 2**31),
    "checkpoint_ms": (1, 86_400_000),
    "reset_share": (0, 0.5),
    "reconnects": (0, 1000),
    "reopens": (0, 1000),
    # Times of pcap end in 2106.
    "start_time_ms": (0, 4_000_000_000_000),
}


def simulate(config: SimulatorConfig, disturbances: Disturbances | None = None) -> Iterator[CapturedPacket]:
    """The packets of all connections in order of time, for `write_pcap`."""
    return merge(_captured(connector, disturbances) for connector in _connectors(config))


def connections(config: SimulatorConfig) -> Iterator[Conversation]:
    """The same connections before they are packets, connector by connector; read each before the next."""
    for connector in _connectors(config):
        yield from connector.conversations()


def _captured(connector: Connector, disturbances: Disturbances | None) -> Iterator[CapturedPacket]:
    for conversation in connector.conversations():
        yield from packets(conversation, disturbances)


def _connectors(config: SimulatorConfig) -> Iterator[Connector]:
    kind = SinkConnector if DIALECTS[config.dialect].sink else SourceConnector
    contents = Contents(config)
    for number in range(config.connectors):
        yield affected(config, number, contents) or kind(config, number, contents)
    if config.fault is not None:
        # A worker of its own: rules over several connections compare those of one worker.
        workers = -(-config.connectors // CONNECTORS_PER_WORKER)
        yield FaultyConnector(config, workers * CONNECTORS_PER_WORKER, FAULTS[config.fault])
