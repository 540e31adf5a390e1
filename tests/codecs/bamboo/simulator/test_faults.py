"""Every fault of simulated Bamboo traffic breaks its rule, and no other but those that follow from it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.codecs.bamboo.simulator.simulated import judge
from tests.support.inspecting import inspected
from tests.support.searches import fast_first
from wirehouse_codecs.bamboo.options import TWO_CONNECTIONS
from wirehouse_codecs.bamboo.rules import ENTRY_RULES, RULES
from wirehouse_codecs.bamboo.simulator.faults import OF_BYMUX, SIGNATURE_FAULTS
from wirehouse_codecs.bamboo.simulator.simulator import FAULTS, SimulatorConfig, connections, entries
from wirehouse_codecs.bamboo.wire.entry_files import write_lines
from wirehouse_codecs.bamboo.wire.entry_verification import verify
from wirehouse_codecs.core.errors import OptionError
from wirehouse_codecs.logs.inspection import MESSAGE, QUARANTINE
from wirehouse_codecs.logs.inspection import VIOLATION as FINDING
from wirehouse_codecs.logs.rows import CONNECTION, VIOLATION
from wirehouse_expectations.suites import findings_of

#: The simulator is run at length.
pytestmark = pytest.mark.property


@pytest.mark.parametrize("proactive", fast_first(["client", "server"]))
@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.act is not None])
def test_a_fault_breaks_its_rule_and_no_other(name: str, proactive: str) -> None:
    config = SimulatorConfig(connections=1, logs=0, ways=0, fault=name, proactive=proactive)
    judged, listed = judge(config), findings_of("silver.bamboo")
    assert judged.found == Counter([name, *FAULTS[name].also])
    assert listed is not None
    assert {row["finding"]["rule"] for row in judged.rows[VIOLATION]} <= {rule.id for rule in listed.rules}


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.act and name not in OF_BYMUX])
def test_over_two_connections_a_fault_breaks_its_rule_and_no_other(name: str) -> None:
    config = SimulatorConfig(connections=1, logs=0, ways=0, fault=name, transport=TWO_CONNECTIONS)
    assert judge(config).found == Counter([name, *FAULTS[name].also])


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.entries is not None])
def test_a_faulty_entry_of_a_file_breaks_its_rule_and_no_other(name: str, tmp_path: Path) -> None:
    written = list(entries(SimulatorConfig(connections=1, logs=1, entries=5, fault=name)))
    verified = verify([one.data for one in written], [one.payload for one in written])
    invalid = [rule for rule in verified.entries["rule"].to_pylist() if rule is not None]
    assert invalid == [name]
    assert ("fork" in (name, *FAULTS[name].also)) == bool(verified.forks)
    # What knows of each log its own entries says the same.
    write_lines(written, tmp_path / "faulty.jsonl")
    told = list(inspected(str(tmp_path / "faulty.jsonl"), "bamboo"))
    shown = [row["reason"] for kind, row in told if kind == MESSAGE]
    undecoded = [row["rule"] for kind, row in told if kind == QUARANTINE]
    assert [reason for reason in (*shown, *undecoded) if reason is not None] == [name]
    found = {row["rule"] for kind, row in told if kind == FINDING}
    assert found == {f"bamboo.{rule}" for rule in (name, *FAULTS[name].also)}


@pytest.mark.parametrize("name", SIGNATURE_FAULTS)
def test_what_signatures_tell_is_right_for_all_others(name: str) -> None:
    fault = SIGNATURE_FAULTS[name]
    judged = judge(SimulatorConfig(connections=1, logs=0, ways=0, fault=name))
    assert fault.rule in FAULTS
    assert not judged.found
    invalid = [(rule, row["greedy"], judged.apologised(row)) for row, rule in judged.invalid]
    apologies = [row for row in judged.entries if judged.apologised(row)]
    if fault.rule == "apology_for_valid_data":
        assert (invalid, len(apologies)) == ([], 1)
    else:
        assert invalid == [("bad_signature", fault.greedy, False)]


def test_every_rule_has_a_fault() -> None:
    assert list(FAULTS) == [rule.name for rule in RULES]
    assert {rule.name for rule in ENTRY_RULES} == {name for name, fault in FAULTS.items() if fault.entries is not None}
    for fault in FAULTS.values():
        assert fault.sentence.endswith(".")
        assert fault.act is not None or fault.entries is not None
        assert set(fault.also) <= set(FAULTS)


def test_a_fault_is_in_the_capture_beside_legal_traffic() -> None:
    judged = judge(SimulatorConfig(connections=2, entries=20, ways=2, fault="past_end"))
    assert judged.found == {"past_end": 1}
    assert len(judged.rows[CONNECTION]) == 3


def test_what_follows_a_violation_is_not_judged() -> None:
    judged = judge(SimulatorConfig(connections=1, logs=0, ways=0, fault="out_of_turn"))
    assert judged.found == {"out_of_turn": 1}
    assert judged.rows["session"][-1]["session"]["ended_by"] == "out_of_turn"


@pytest.mark.parametrize("name", sorted(OF_BYMUX))
def test_rules_of_bymux_are_not_broken_without_it(name: str) -> None:
    with pytest.raises(OptionError, match=name):
        SimulatorConfig(transport=TWO_CONNECTIONS, fault=name)


def test_without_bymux_a_fault_has_two_connections() -> None:
    clean = SimulatorConfig(connections=1, logs=1, entries=1, ways=0, transport=TWO_CONNECTIONS)
    faulty = SimulatorConfig(connections=1, logs=1, entries=1, ways=0, transport=TWO_CONNECTIONS, fault="past_end")
    assert len(list(connections(faulty))) == len(list(connections(clean))) + 2
