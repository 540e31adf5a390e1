"""Seeded, realistic traffic of an Ockam stream service as a capture of packets, in both envelopes, with named faults.

A capture without a fault breaks no rule and gives no note. Packets are made as they are asked for; what is kept does
not grow with the number of messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from wirehouse_codecs.core.errors import OptionError
from wirehouse_codecs.ockam.simulator.faults import FAULTS, Fault, FaultyClient
from wirehouse_codecs.ockam.simulator.incidents import INCIDENTS
from wirehouse_codecs.ockam.simulator.service import MANNERS, NUMBER_BYTES, Client, Consumer, Contents, Publisher
from wirehouse_codecs.ockam.wire.messages import Names
from wirehouse_codecs.ockam.wire.routed import Envelope
from wirehouse_codecs.simulate import pcap_writer
from wirehouse_codecs.simulate.config import Bounds, check
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket, write_pcap
from wirehouse_codecs.simulate.script import Conversation, Disturbances, merge, packets
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

#: What `simulate` gives, and what writes it by the end of the name: a file, or a folder of what each side sent.
RECORDS: Final = "packets"
WRITERS: Final = pcap_writer.WRITERS | {".streams": write_streams}


@dataclass(frozen=True, slots=True)
class SimulatorConfig:
    """What to simulate. The same configuration gives the same packets."""

    seed: int = 0
    #: The envelope.
    dialect: str = Envelope.BARE16.value
    #: Whose names protocols have, where the specification's and the implementations' differ.
    names: str = Names.IMPLEMENTATION.value
    publishers: int = 2
    consumers: int = 3
    #: Streams without partitions, and partitions of one more; 0 = there is none.
    streams: int = 2
    partitions: int = 2
    #: Each goes to every stream and partition.
    messages_per_publisher: int = 1000
    #: Mean size of the data; sizes are from about half to one and a half of it.
    data_bytes: int = 100
    pull_limit: int = 10
    #: Messages for one stream that a publisher writes at once.
    burst_messages: int = 5
    #: Between bursts of a publisher, at least.
    interval_ms: int = 20
    #: A consumer that has all there is pulls again after this.
    poll_ms: int = 50
    #: Messages that a stream keeps at least, older ones are deleted; 0 = all.
    retained: int = 0
    #: Share of indexes that are left out.
    index_gap_share: float = 0.0
    #: Share of messages that are the one before in their burst again, under the same request id.
    resend_share: float = 0.0
    #: How often each consumer fails, and goes on from its saved index.
    restarts: int = 0
    #: How often the service restarts, empty and under other addresses.
    service_restarts: int = 0
    start_time_ms: int = 1_700_000_000_000
    #: Name of a rule that one more client breaks; see FAULTS.
    fault: str | None = None
    #: Name of an incident that begins in the stream; see INCIDENTS.
    incident: str | None = None

    def __post_init__(self) -> None:
        """Raises OptionError for a value out of range, and for a fault or incident that there isn't."""
        check(self, _BOUNDS, FAULTS, INCIDENTS, _CHOICES)
        if not self.streams and not self.partitions:
            raise OptionError(key="streams", reason="must be at least 1 without partitions, not 0")


_CHOICES: Final = {"dialect": [envelope.value for envelope in Envelope], "names": [names.value for names in Names]}
_BOUNDS: Final[Bounds] = {
    "publishers": (1, 1000),
    "consumers": (0, 1000),
    # At most as many pushes of a connection are open as are followed.
    "streams": (0, 32),
    "partitions": (0, 32),
    "burst_messages": (1, 250),
    "messages_per_publisher": (1, 2**40),
    # A push is below the limit on frames.
    "data_bytes": (NUMBER_BYTES, 10_000),
    "pull_limit": (1, 10_000),
    "interval_ms": (0, 86_400_000),
    "poll_ms": (1, 86_400_000),
    "retained": (0, 2**40),
    "index_gap_share": (0, 1),
    "resend_share": (0, 0.5),
    "restarts": (0, 1000),
    "service_restarts": (0, 1000),
    # Times of pcap end in 2106.
    "start_time_ms": (0, 4_000_000_000_000),
}


def simulate(config: SimulatorConfig, disturbances: Disturbances | None = None) -> Iterator[CapturedPacket]:
    """The packets of all connections in order of time, for `write_pcap`."""
    return merge(_captured(client, disturbances) for client in _clients(config))


def connections(config: SimulatorConfig) -> Iterator[Conversation]:
    """The same connections before they are packets, client by client; read each before the next."""
    for client in _clients(config):
        yield from client.conversations()


def _captured(client: Client, disturbances: Disturbances | None) -> Iterator[CapturedPacket]:
    for conversation in client.conversations():
        yield from packets(conversation, disturbances)


def _clients(config: SimulatorConfig) -> Iterator[Client]:
    contents = Contents(config)
    for number in range(config.publishers):
        yield Publisher(config, contents, number)
    for number in range(config.consumers):
        yield Consumer(config, contents, number)
    if config.fault is not None:
        # It speaks in the plainest way.
        clients = -(-(config.publishers + config.consumers) // MANNERS) * MANNERS
        yield FaultyClient(config, clients, FAULTS[config.fault])
