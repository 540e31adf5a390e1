"""Whatever a tap makes of legal traffic, no rule is broken by it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from tests.codecs.hiero.log.test_one_sided import CALM, LIVELY, PORTS, severe
from tests.support.hiero_captures import judge_log
from tests.support.landed import landed_packets, read_log, segments
from tests.support.searches import fast_first
from tests.support.taps import STRETCHES, any_tap, captured, joined, sent_again
from wirehouse_codecs.core.rules import Severity
from wirehouse_codecs.hiero.log.log import starter
from wirehouse_codecs.hiero.log.rows import SCHEMA
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.profiles import PROFILES
from wirehouse_codecs.hiero.rules import RULE
from wirehouse_codecs.hiero.simulator.simulator import simulate
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket

#: Taps of each network.
SEEDS = 150


@cache
def legal(profile: str, lively: bool, seed: int) -> list[CapturedPacket]:
    """Legal traffic as it was sent."""
    config = LIVELY if lively else CALM
    return list(simulate(replace(config, profile=profile, seed=seed)))


@pytest.mark.parametrize("seed", fast_first(range(SEEDS), most=2))
@pytest.mark.parametrize("lively", [False, True], ids=["calm", "lively"])
@pytest.mark.parametrize("profile", PROFILES)
def test_what_a_tap_makes_of_legal_traffic_breaks_no_rule(profile: str, lively: bool, seed: int) -> None:
    packets = captured(legal(profile, lively, seed % 5), PORTS, any_tap(seed))
    assert severe(landed_packets(packets), HieroOptions(profile=profile)) == []


@pytest.mark.parametrize(("first", "last"), STRETCHES)
@pytest.mark.parametrize("profile", fast_first(PROFILES))
def test_who_said_first_what_comes_again_at_once_is_not_known(profile: str, first: int, last: int) -> None:
    rows = joined(segments(landed_packets(legal(profile, False, 0)), *PORTS), first, last)
    found = [
        row["finding"]["rule"]
        for row in read_log(rows, starter(HieroOptions(profile=profile)), SCHEMA)
        if row["finding"]
    ]
    rules = [RULE[name.removeprefix("hiero.")] for name in found if name and name.startswith("hiero.")]
    assert [rule.name for rule in rules if rule.severity is not Severity.NOTE] == []


@pytest.mark.parametrize("seed", fast_first(range(20), most=2))
@pytest.mark.parametrize("share", [1, 5, 20])
@pytest.mark.parametrize("lively", [False, True], ids=["calm", "lively"])
@pytest.mark.parametrize("profile", ["A", "B"])
def test_when_what_comes_again_was_sent_first_is_not_known(profile: str, lively: bool, share: int, seed: int) -> None:
    rows = sent_again(segments(landed_packets(legal(profile, lively, seed % 5)), *PORTS), share, seed)
    options = HieroOptions(profile=profile)
    found = judge_log(read_log(rows, starter(options), SCHEMA), options).found
    assert [name for name in found if name in RULE and RULE[name].severity is not Severity.NOTE] == []
