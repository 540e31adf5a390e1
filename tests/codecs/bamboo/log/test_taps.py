"""Taps of legal traffic: clocks differ, packets are lost or swapped, a side is missing, the capture begins anywhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import pytest

from tests.codecs.bamboo.log.test_one_sided import SHAPES, findings
from tests.support.landed import landed_packets
from tests.support.searches import fast_first
from tests.support.taps import Tap, any_tap, captured
from wirehouse_codecs.bamboo.inspection import inspect
from wirehouse_codecs.bamboo.options import BYMUX, TWO_CONNECTIONS, BambooOptions
from wirehouse_codecs.bamboo.simulator.faults import ALL_FAULTS
from wirehouse_codecs.bamboo.simulator.simulator import (
    GREEDY,
    MIXED,
    PORT,
    PORTS,
    SAFE,
    SimulatorConfig,
    connections,
    simulate,
    source_options,
)
from wirehouse_codecs.logs import inspection
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket
from wirehouse_codecs.simulate.script import merge, packets
from wirehouse_codecs.tcp.endpoints import Direction

#: In these, bytes of the other side are known to the sender, and come later.
LATE_SERVER = Tap(server_late_ns=50_000_000)
EARLY_SERVER = Tap(server_late_ns=-50_000_000, begin=53, seed=700)
#: Cancels show entries for proposals of which too little was captured.
FROM_WITHIN = Tap(server_late_ns=-50_000_000, begin=12, seed=2301)
TAPS = [(shape, any_tap(seed)) for shape in range(len(SHAPES)) for seed in range(shape, 120, len(SHAPES))]


@cache
def sent(config: SimulatorConfig) -> list[CapturedPacket]:
    return list(simulate(config))


def found(config: SimulatorConfig, tap: Tap) -> list[str]:
    options = BambooOptions.from_mapping(source_options(config))
    packets = captured(sent(config), {PORT, *PORTS.values()}, tap)
    return [row["rule"] for row in findings(landed_packets(packets), None if options.ports else PORT, options)]


@pytest.mark.parametrize(("shape", "tap"), fast_first(TAPS, by=lambda one: one[0], most=3), ids=str)
def test_what_a_tap_makes_of_legal_traffic_breaks_no_rule(shape: int, tap: Tap) -> None:
    assert found(SHAPES[shape], tap) == []


@pytest.mark.parametrize(("shape", "tap"), [(0, LATE_SERVER), (3, LATE_SERVER), (0, EARLY_SERVER), (1, FROM_WITHIN)])
def test_what_comes_later_or_was_never_captured_is_nobodys_violation(shape: int, tap: Tap) -> None:
    assert found(SHAPES[shape], tap) == []


@pytest.mark.parametrize("lost", [1, 2, 4])
def test_where_a_side_begins_is_not_known_without_its_syn(lost: int) -> None:
    config = replace(SHAPES[0], connections=1, logs=1)
    (conversation,) = connections(config)
    told, servers, clients = [], 0, 0
    for packet in packets(conversation):
        if packet.data[34:36] == PORT.to_bytes(2, "big"):
            servers += 1
            if servers > lost:
                told.append(packet)
        else:
            clients += 1
            # Of the client nothing but its SYN, up to the first packet of the server that is there.
            if clients == 1 or servers > lost:
                told.append(packet)
    rules = findings(landed_packets(told), PORT, BambooOptions.from_mapping(source_options(config)))
    assert [row["rule"] for row in rules] == []


def evidence(config: SimulatorConfig, packets: Iterable[CapturedPacket]) -> set[tuple[Any, ...]]:
    """Findings of the rule that the fault breaks: connection, place, and when their evidence arrived."""
    assert config.fault is not None
    rule = f"bamboo.{ALL_FAULTS[config.fault].rule or config.fault}"
    rows = inspect(landed_packets(packets), PORT, BambooOptions.from_mapping(source_options(config)))
    places = ("connection_id", "direction", "byte_start", "arrived_at_ns")
    told = [row for kind, row in rows if kind == inspection.VIOLATION and row["rule"] == rule]
    return {tuple(row.get(name) for name in places) for row in told}


@pytest.mark.parametrize("fault", [name for name, one in ALL_FAULTS.items() if one.act is not None])
def test_a_fault_is_found_whatever_is_missing_elsewhere_and_later(fault: str) -> None:
    config = SimulatorConfig(connections=1, logs=1, entries=4, ways=2, fault=fault)
    legal, faulty = (list(packets(one)) for one in connections(config))
    whole = evidence(config, faulty)
    assert whole
    half = Tap(client_lost=50, server_lost=50, seed=1)
    found = evidence(config, merge([captured(legal, {PORT}, half), faulty]))
    assert {one for one in found if one[0] in {connection_id for connection_id, *_ in whole}} == whole
    last = max(arrived_at_ns for *_, arrived_at_ns in whole)
    assert evidence(config, [packet for packet in faulty if packet.ts_ns <= last]) == whole


def any_network(seed: int) -> SimulatorConfig:
    """A few peers that speak by the protocol, in a way that `seed` selects."""
    random = Random(seed)
    return SimulatorConfig(
        seed=seed,
        transport=random.choice((BYMUX, BYMUX, TWO_CONNECTIONS)),
        mode=random.choice((MIXED, SAFE, GREEDY)),
        connections=random.randrange(1, 4),
        replicas=random.randrange(1, 3),
        logs=random.randrange(2),
        entries=random.randrange(1, 5),
        ended_share=random.choice((0, 0.5, 1)),
        payload_bytes=random.choice((0, 3, 40)),
        live_share=random.choice((0, 0.5)),
        interval_ms=random.choice((0, 50)),
        window_bytes=random.choice((0, 10, 1 << 15)),
        ways=random.randrange(1, 4),
        proactive=random.choice(tuple(Direction)).value,
    )


@pytest.mark.parametrize("seed", fast_first(range(1_000), count=20, most=20))
def test_a_legal_network_breaks_no_rule(seed: int) -> None:
    config = any_network(seed)
    options = BambooOptions.from_mapping(source_options(config))
    captures = captured(simulate(config), {PORT, *PORTS.values()}, any_tap(seed))
    assert findings(landed_packets(captures), None if options.ports else PORT, options) == []
