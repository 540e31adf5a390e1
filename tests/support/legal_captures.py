"""Legal traffic of every simulator over TCP, in small configurations that together use each of their settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any

import pyarrow as pa

from wirehouse_codecs.bamboo.options import BYMUX, TWO_CONNECTIONS, BambooOptions
from wirehouse_codecs.bamboo.simulator import simulator as bamboo
from wirehouse_codecs.bamboo.simulator.scenarios import SCENARIOS
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.profiles import DEFAULT_PORT, PROFILES
from wirehouse_codecs.hiero.simulator import simulator as hiero
from wirehouse_codecs.hiero.simulator.dialogue import ENCODINGS, MIXED
from wirehouse_codecs.logs.inspection import VIOLATION, Inspect
from wirehouse_codecs.ockam.options import OckamOptions
from wirehouse_codecs.ockam.simulator import service
from wirehouse_codecs.ockam.simulator import simulator as ockam
from wirehouse_codecs.ockam.wire.messages import Names
from wirehouse_codecs.ockam.wire.routed import Envelope
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.wallaroo.dialects import DIALECTS
from wirehouse_codecs.wallaroo.options import WallarooOptions
from wirehouse_codecs.wallaroo.simulator import connector
from wirehouse_codecs.wallaroo.simulator import simulator as wallaroo
from wirehouse_pipelines.lake.protocols import PROTOCOLS

#: How packets of each protocol over TCP are read.
INSPECT: Mapping[str, Inspect] = {
    protocol.name: import_module(f"wirehouse_codecs.{protocol.name}.inspection").INSPECT["pcap"]
    for protocol in PROTOCOLS.values()
    if "pcap" in protocol.kinds
}
#: Settings that differ from the smallest configuration of a protocol.
WALLAROO: tuple[Mapping[str, Any], ...] = (
    {},
    {"reset_share": 0.2, "reopens": 1, "reconnects": 1},
    {"reset_share": 0.5},
    {"reopens": 3},
    {"reconnects": 3},
    {"connectors": 5, "streams_per_connector": 5, "messages_per_connector": 15},
    {"streams_per_connector": 1, "credits": 2, "refill_at": 1, "burst_messages": 1, "messages_per_connector": 20},
    {"payload_bytes": 0, "keys": 0},
    {"payload_bytes": 3000, "messages_per_connector": 20},
    {"burst_messages": 20, "interval_ms": 0, "checkpoint_ms": 1, "reset_share": 0.3, "reconnects": 1},
    {"credits": 500, "refill_at": 250, "burst_messages": 50, "messages_per_connector": 150, "reset_share": 0.3},
    {"keys": 1, "interval_ms": 2000, "messages_per_connector": 20, "reconnects": 1},
)
OCKAM: tuple[Mapping[str, Any], ...] = (
    {},
    {"consumers": 5, "index_gap_share": 0.2, "resend_share": 0.3, "restarts": 2, "service_restarts": 1, "retained": 6},
    {"index_gap_share": 0.5},
    {"resend_share": 0.5},
    {"restarts": 4},
    {"service_restarts": 3},
    {"retained": 3, "poll_ms": 500},
    {"partitions": 0, "streams": 1, "consumers": 1},
    {"streams": 0, "partitions": 3},
    {"consumers": 0},
    {"data_bytes": 3000, "messages_per_publisher": 5},
    {"pull_limit": 1, "burst_messages": 20, "interval_ms": 0, "poll_ms": 1},
)
HIERO: tuple[Mapping[str, Any], ...] = (
    {},
    {"blocks": 30, "incident_rounds": 1, "publishers": 4, "subscribers": 3},
    {"nodes": 1, "incident_rounds": 2, "blocks": 20},
    {"subscribers": 0, "publishers": 5, "incident_rounds": 2},
    {"set_bytes": 1, "block_bytes": 600},
    {"block_bytes": 40_000, "set_bytes": 20_000, "blocks": 6},
    {"interval_ms": 0, "incident_rounds": 3, "blocks": 20},
)
BAMBOO: tuple[Mapping[str, Any], ...] = (
    {},
    {"live_share": 1, "interval_ms": 0, "window_bytes": 0, "ended_share": 1},
    {"window_bytes": 10, "compressed_share": 1},
    {"logs": 0, "connections": 2, "ways": 40},
    {"forks": 2, "ways": 0},
    {"replicas": 3, "first_entry": 5},
    {"payload_bytes": 3000, "entries": 6, "ways": 3},
    {"payload_bytes": 0, "live_share": 0, "compressed_share": 0},
)


@dataclass(frozen=True)
class Legal:
    """Traffic in which nobody breaks a rule, and how it is read."""

    protocol: str
    config: Any
    ports: tuple[int, ...]
    options: Any

    def __str__(self) -> str:
        """Names a test."""
        return self.protocol

    def packets(self) -> Iterator[CapturedPacket]:
        """What is sent."""
        simulator = import_module(f"wirehouse_codecs.{self.protocol}.simulator.simulator")
        packets: Iterator[CapturedPacket] = simulator.simulate(self.config)
        return packets

    def severe(self, batches: Iterable[pa.RecordBatch]) -> set[str]:
        """The violations and warnings among what `inspect` finds in captured packets."""
        inspect = partial(INSPECT[self.protocol], options=self.options)
        # Options that name ports name them alone.
        return severe(inspect(batches, None if getattr(self.options, "ports", ()) else self.ports))


def severe(rows: Iterable[tuple[str, dict[str, Any]]]) -> set[str]:
    """The broken rules in rows of `inspect`, without notes."""
    return {row["rule"] for kind, row in rows if kind == VIOLATION and row["severity"] != "note"}


def _wallaroo() -> Iterator[Legal]:
    small = wallaroo.SimulatorConfig(messages_per_connector=40, burst_messages=4, credits=8, refill_at=4)
    for dialect, settings, forced in product(DIALECTS, WALLAROO, (False, True)):
        options = WallarooOptions(dialect=dialect) if forced else WallarooOptions()
        config = replace(small, dialect=dialect, **{"streams_per_connector": 2, **settings})
        yield Legal("wallaroo", config, (connector.PORT,), options)


def _ockam() -> Iterator[Legal]:
    for envelope, names, settings in product(Envelope, Names, OCKAM):
        choices = {"dialect": envelope.value, "names": names.value}
        config = ockam.SimulatorConfig(**{"messages_per_publisher": 15, **choices, **settings})
        yield Legal("ockam", config, (service.PORT,), OckamOptions())


def _hiero() -> Iterator[Legal]:
    calm = hiero.SimulatorConfig(blocks=12, block_bytes=1500, set_bytes=600, incident_rounds=0)
    for profile, settings in product(PROFILES, HIERO):
        for encoding in (MIXED, *ENCODINGS) if settings in HIERO[:2] else (MIXED,):
            config = replace(calm, profile=profile, encoding=encoding, **settings)
            yield Legal("hiero", config, (DEFAULT_PORT,), HieroOptions(profile=profile))


def _bamboo() -> Iterator[Legal]:
    modes = bamboo.MIXED, bamboo.SAFE, bamboo.GREEDY
    for transport, mode, side, settings in product((BYMUX, TWO_CONNECTIONS), modes, Direction, BAMBOO):
        choices = {"transport": transport, "mode": mode, "proactive": side.value}
        config = bamboo.SimulatorConfig(**{"entries": 10, "ways": len(SCENARIOS), **choices, **settings})
        options = BambooOptions.from_mapping(bamboo.source_options(config))
        yield Legal("bamboo", config, options.ports or (bamboo.PORT,), options)


_LEGAL: Mapping[str, Callable[[], Iterator[Legal]]] = {
    "bamboo": _bamboo,
    "hiero": _hiero,
    "ockam": _ockam,
    "wallaroo": _wallaroo,
}


def legal_traffic() -> Iterator[Legal]:
    """Every choice of each simulator with every row of settings. A KeyError names a protocol without settings here."""
    for name in INSPECT:
        yield from _LEGAL[name]()
