"""Whatever a tap makes of legal traffic, no rule is broken by it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from tests.codecs.hiero.log.test_one_sided import CALM, LIVELY, PORTS, severe
from tests.support.landed import landed_packets
from tests.support.searches import fast_first
from tests.support.taps import any_tap, captured
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.profiles import PROFILES
from wirehouse_codecs.hiero.simulator.simulator import simulate
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket

#: Taps of each network.
SEEDS = 150


@cache
def legal(profile: str, lively: bool, seed: int) -> list[CapturedPacket]:
    """Legal traffic as it was sent."""
    config = LIVELY if lively else CALM
    return list(simulate(replace(config, profile=profile, seed=seed)))


@pytest.mark.parametrize("seed", fast_first(range(SEEDS), most=10))
@pytest.mark.parametrize("lively", [False, True], ids=["calm", "lively"])
@pytest.mark.parametrize("profile", PROFILES)
def test_what_a_tap_makes_of_legal_traffic_breaks_no_rule(profile: str, lively: bool, seed: int) -> None:
    packets = captured(legal(profile, lively, seed % 5), PORTS, any_tap(seed))
    assert severe(landed_packets(packets), HieroOptions(profile=profile)) == []
