"""Every fault breaks its rule and no other, in every version of the API that has words for it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from tests.support.hiero_captures import judge
from wirehouse_codecs.core.errors import OptionError
from wirehouse_codecs.hiero.correlation.rows import Found
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.profiles import PROFILES
from wirehouse_codecs.hiero.rules import RULES, TOLERANT
from wirehouse_codecs.hiero.simulator.faults import FAULTS_OF
from wirehouse_codecs.hiero.simulator.simulator import FAULTS, SimulatorConfig, simulate
from wirehouse_codecs.logs.rows import VIOLATION
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket
from wirehouse_expectations.suites import findings_of

#: The simulator is run at length.
pytestmark = pytest.mark.property

#: Between the specification's version and the newest one no rule is judged otherwise; few are in the tolerant reading.
CASES = [
    pytest.param(profile, name, reading, id=f"{profile}-{name}-{reading}", marks=() if fast else pytest.mark.property)
    for profile, reading in product(PROFILES, ("strict", "tolerant"))
    for name in FAULTS_OF[profile]
    for long in [profile not in ("A", "B")]
    for fast in [not long and (reading == "strict" or name in TOLERANT)]
    if not long or reading == "strict"
]


def of_fault(name: str, profile: str) -> Iterator[CapturedPacket]:
    """What one fault adds."""
    return FAULTS[name].stage(SimulatorConfig(profile=profile, fault=name)).captured()


@pytest.mark.parametrize(("profile", "name", "reading"), CASES)
def test_a_fault_breaks_its_rule_and_no_other(profile: str, name: str, reading: str) -> None:
    judged = judge(of_fault(name, profile), HieroOptions(profile=profile, reading=reading))
    assert judged.found == {name: 1}
    alone, together = findings_of("silver.hiero"), findings_of("gold.hiero_found")
    assert alone is not None
    assert together is not None
    assert {row["finding"]["rule"] for row in judged.rows[VIOLATION]} <= {rule.id for rule in alone.rules}
    assert {one.rule.name for one in judged.of(Found)} <= {rule.name for rule in together.rules}


def test_every_rule_has_a_fault() -> None:
    assert list(FAULTS) == [rule.name for rule in RULES]
    assert all(fault.sentence.endswith(".") for fault in FAULTS.values())
    assert set(FAULTS_OF["B"]) == set(FAULTS)
    # A publisher that was not captured may have proven the block, which the older API does not say.
    assert set(FAULTS_OF["A"]) == {*FAULTS} - {"drop_unproven"}


@pytest.mark.parametrize(("name", "profile"), [("chain", "B"), ("backoff", "A"), ("node_error_all", "B2")])
def test_a_fault_is_in_the_capture_beside_legal_traffic(name: str, profile: str) -> None:
    config = SimulatorConfig(profile=profile, blocks=20, block_bytes=1000, incident_rounds=2, fault=name)
    judged = judge(simulate(config), HieroOptions(profile=profile))
    assert judged.found == {name: 1}


def test_what_a_version_has_no_words_for_is_refused() -> None:
    with pytest.raises(OptionError, match="earliest can't be broken in A0"):
        SimulatorConfig(profile="A0", fault="earliest")
