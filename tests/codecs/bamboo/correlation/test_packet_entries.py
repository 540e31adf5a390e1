"""Entries that packets hold, verified by `inspect`: each rule that a signature tells, forks, verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.codecs.bamboo.log.test_paired_connections import captured, dialogue, options, replicated
from tests.codecs.bamboo.session.peers import GREEDY, SAFE, metadata
from tests.codecs.bamboo.simulator.simulated import judge
from tests.support.landed import landed_packets
from wirehouse_codecs.bamboo.inspection import inspect
from wirehouse_codecs.bamboo.options import BambooOptions
from wirehouse_codecs.bamboo.simulator.faults import SIGNATURE_FAULTS
from wirehouse_codecs.bamboo.simulator.simulator import SimulatorConfig, simulate, source_options
from wirehouse_codecs.logs.inspection import ENTRY, MESSAGE, VIOLATION

Row = dict[str, Any]


def looked(config: SimulatorConfig) -> dict[str, list[Row]]:
    rows: dict[str, list[Row]] = {ENTRY: [], VIOLATION: [], MESSAGE: []}
    options = BambooOptions.from_mapping(source_options(config))
    for kind, row in inspect(landed_packets(simulate(config)), options=options):
        rows.setdefault(kind, []).append(row)
    return rows


@pytest.mark.parametrize("name", SIGNATURE_FAULTS)
@pytest.mark.parametrize("transport", ["bymux", "two_connections"])
def test_what_a_signature_tells_is_found(name: str, transport: str) -> None:
    rows = looked(SimulatorConfig(connections=1, logs=0, ways=0, fault=name, transport=transport))
    found = [row["rule"] for row in rows[VIOLATION]]
    assert found == [f"bamboo.{SIGNATURE_FAULTS[name].rule}"]
    (bad,) = rows[VIOLATION]
    assert (bad["channel"], bad["direction"]) == ("data", rows[ENTRY][-1]["direction"])
    at = [row for row in rows[MESSAGE] if row["byte_start"] == bad["byte_start"] and row["channel"] == "data"]
    assert [row["proposal"] for row in at] == [bad["proposal_id"]]


@pytest.mark.property
def test_each_distinct_entry_is_a_row_with_its_verdict_and_senders() -> None:
    config = SimulatorConfig(seed=5, connections=2, replicas=2, logs=2, entries=1_200, ways=0)
    rows = looked(config)
    assert not rows[VIOLATION]
    assert len({row["entry_id"] for row in rows[ENTRY]}) == len(rows[ENTRY]) == 2_400
    assert {row["verdict"] for row in rows[ENTRY]} == {"valid"}
    # Two clients sent those of one log, the one server those of the other.
    assert Counter(len(row["seen_from"]) for row in rows[ENTRY]) == {1: 1_200, 2: 1_200}


@pytest.mark.parametrize("fault", ["fork", "backlink_mismatch", "bad_signature", "after_end_of_log"])
def test_what_cancels_show_is_verified(fault: str) -> None:
    config = SimulatorConfig(connections=1, logs=0, ways=0, fault=fault)
    rows = [row | {"rule": row["rule"].removeprefix("bamboo.")} for row in looked(config)[VIOLATION]]
    found = Counter(row["rule"] for row in rows)
    assert found == judge(config).found
    assert fault in found
    assert {row["channel"] for row in rows if row["rule"] == fault} == {"control"}


def test_a_capture_without_entries_has_none() -> None:
    assert looked(SimulatorConfig(connections=1, logs=0, ways=0))[ENTRY] == []


def test_an_entry_whose_link_is_not_known_is_unknown() -> None:
    rows = looked(SimulatorConfig(connections=1, logs=0, ways=0, fault="link_unknown"))
    assert [(row["verdict"], row["reason"]) for row in rows[ENTRY] if row["data"] is None] == [
        ("unknown", "link_unknown")
    ]


@pytest.mark.parametrize(
    ("greedy", "rule"), [(False, "invalid_data_in_safe_mode"), (True, "invalid_data_not_apologised")]
)
@pytest.mark.parametrize("forged", [{"signature": bytes(64)}, {"end_of_log": True}])
def test_what_links_to_forged_metadata_is_no_finding_of_its_own(
    make_log: Callable[..., Any], forged: dict[str, Any], greedy: bool, rule: str
) -> None:
    """Each later entry leaves out a link, which is that of the entry before: its signature can't be checked."""
    log, setup = make_log(9), GREEDY if greedy else SAFE
    wrong = metadata(log.entries[3], **forged)
    said = [(side, wrong if packet == metadata(log.entries[3]) else packet) for side, packet in replicated(log, 9)]
    rows = list(
        inspect(landed_packets(captured(dialogue(said))), options=options(client_setup=setup, server_setup=setup))
    )
    assert [row["rule"] for kind, row in rows if kind == VIOLATION] == [f"bamboo.{rule}"]
    verdicts = {int(row["seq"]): row["verdict"] for kind, row in rows if kind == ENTRY}
    assert (verdicts[2], verdicts[3], verdicts[4]) == ("valid", "invalid", "unknown")
