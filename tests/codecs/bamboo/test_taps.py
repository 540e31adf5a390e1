"""Taps of legal traffic: clocks differ, packets are lost or swapped, a side is missing, the capture begins anywhere."""

from __future__ import annotations

from functools import cache

import pytest
from tests.codecs.bamboo.test_one_sided import SHAPES, findings
from tests.landed import landed_packets
from tests.searches import fast_first
from tests.taps import Tap, any_tap, captured

from wirehouse_codecs.bamboo.options import BambooOptions
from wirehouse_codecs.bamboo.simulator import PORT, PORTS, SimulatorConfig, simulate, source_options
from wirehouse_codecs.packet_writer import CapturedPacket

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


@pytest.mark.parametrize(("shape", "tap"), fast_first(TAPS, by=lambda one: one[0]), ids=str)
def test_what_a_tap_makes_of_legal_traffic_breaks_no_rule(shape: int, tap: Tap) -> None:
    assert found(SHAPES[shape], tap) == []


@pytest.mark.parametrize(("shape", "tap"), [(0, LATE_SERVER), (3, LATE_SERVER), (0, EARLY_SERVER), (1, FROM_WITHIN)])
def test_what_comes_later_or_was_never_captured_is_nobodys_violation(shape: int, tap: Tap) -> None:
    assert found(SHAPES[shape], tap) == []
