"""Captures that lack a side, or much of it: what wasn't captured is blamed on nobody."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.landed import LATE_NS, landed_file, landed_packets, read_log, segments
from tests.support.searches import fast_first
from wirehouse_codecs.core.rules import Severity
from wirehouse_codecs.ockam.correlation.events import Found
from wirehouse_codecs.ockam.correlation.log_events import Heard
from wirehouse_codecs.ockam.log import log
from wirehouse_codecs.ockam.options import OckamOptions
from wirehouse_codecs.ockam.rules import PROTOCOL, RULE
from wirehouse_codecs.ockam.simulator.service import PORT
from wirehouse_codecs.ockam.simulator.simulator import FAULTS, SimulatorConfig, simulate
from wirehouse_codecs.ockam.wire.routed import Envelope
from wirehouse_codecs.tcp.endpoints import Direction

VECTORS = Path(__file__).parents[3] / "vectors" / "ockam" / "sessions"
#: Vectors of which no connection breaks a rule.
GOOD = ["ref_elixir_bare", "spec_gaps"]
SEEDS = fast_first([range(2), range(2, 6), range(6, 20)], most=2)
CALM = SimulatorConfig(seed=1, messages_per_publisher=20)
#: All that may happen to legal traffic.
LIVELY = replace(
    CALM,
    consumers=5,
    messages_per_publisher=24,
    partitions=1,
    index_gap_share=0.2,
    resend_share=0.3,
    restarts=2,
    service_restarts=1,
    retained=12,
)
Row = dict[str, Any]


def broken(rows: Iterable[Row], until_ns: int = LATE_NS) -> set[str]:
    """Rules that are broken by then, also by connections together, but for what the capture lacks."""
    heard, rules = Heard(), set[str]()
    for row in read_log(rows, log.starter(OckamOptions()), log.SCHEMA, {"0": until_ns}):
        heard.take(row)
        if row["row_kind"] == "violation":
            protocol, name = row["finding"]["rule"].split(".")
            rules |= {name} if protocol == PROTOCOL else set()
    return rules | {each.rule.name for each in heard.told() if isinstance(each, Found)}


def severe(rows: Iterable[Row]) -> set[str]:
    """Of these, violations and warnings."""
    return {name for name in broken(rows) if RULE[name].severity is not Severity.NOTE}


def parts(rows: list[Row], seeds: Iterable[int]) -> Iterable[tuple[str, list[Row]]]:
    """Without a side, and without half of the packets of a side."""
    for side in Direction:
        yield f"no {side}", [row for row in rows if row["direction"] != side]
        for seed in seeds:
            random = Random(seed)
            yield f"{side} {seed}", [row for row in rows if row["direction"] != side or random.random() < 0.5]


@cache
def simulated(config: SimulatorConfig) -> list[Row]:
    return segments(landed_packets(simulate(config)), PORT)


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("dialect", [envelope.value for envelope in Envelope])
@pytest.mark.parametrize("config", [CALM, LIVELY], ids=["calm", "lively"])
def test_a_legal_capture_without_a_side_or_half_of_it_breaks_no_rule(
    config: SimulatorConfig, dialect: str, seeds: range
) -> None:
    for name, rows in parts(simulated(replace(config, dialect=dialect)), seeds):
        assert (name, severe(rows)) == (name, set())


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("stem", GOOD)
def test_a_good_vector_without_a_side_or_half_of_it_breaks_no_rule(stem: str, seeds: range) -> None:
    for name, rows in parts(segments(landed_file(VECTORS / f"{stem}.pcap"), 4000), seeds):
        assert (name, severe(rows)) == (name, set())


# Faults


def apart(name: str) -> tuple[list[Row], list[Row]]:
    """The packets of a fault's connections and those of the others, as they were captured."""
    legal = SimulatorConfig(seed=1, messages_per_publisher=4, consumers=1)
    rows = sorted(simulated(replace(legal, fault=name)), key=itemgetter("record_number"))
    others = {row["flow"] for row in simulated(legal)}
    return [row for row in rows if row["flow"] not in others], [row for row in rows if row["flow"] in others]


def is_found(name: str, rows: Iterable[Row], until_ns: int = LATE_NS) -> bool:
    return name in broken(sorted(rows, key=itemgetter("flow", "record_number")), until_ns)


def evidence_of(name: str, rows: list[Row]) -> int:
    """How many packets show the fault, and that nothing excuses it, without more time."""
    counts = range(1, len(rows))
    return next((n for n in counts if is_found(name, rows[:n], rows[n - 1]["arrived_at_ns"] + 1)), len(rows))


@pytest.mark.parametrize("name", fast_first(FAULTS, count=8))
def test_a_fault_is_found_whatever_is_missing_elsewhere_or_after_its_evidence(name: str) -> None:
    own, others = apart(name)
    for missing, left in parts(others, range(2)):
        assert is_found(name, [*own, *left]), missing
    known = evidence_of(name, own)
    for missing, left in parts(own[known:], range(3)):
        assert is_found(name, [*own[:known], *left]), missing
