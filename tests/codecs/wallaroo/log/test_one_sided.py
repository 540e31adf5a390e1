"""Captures that lack a side, or much of it: what wasn't captured is blamed on nobody."""

from __future__ import annotations

import json
from collections.abc import Iterable
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.landed import LATE_NS, landed_file, landed_packets, read_log, segments
from tests.support.searches import fast_first
from tests.support.wallaroo_by_hand import C, W, answer, hello, message, notify, ok
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket, tcp_packet
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint, other
from wirehouse_codecs.tcp.packets import ACK, SYN
from wirehouse_codecs.wallaroo.correlation.sessions import Folds, keys
from wirehouse_codecs.wallaroo.dialects import DIALECTS
from wirehouse_codecs.wallaroo.log import log, schema
from wirehouse_codecs.wallaroo.log.rows import summary_of
from wirehouse_codecs.wallaroo.options import AUTO, WallarooOptions
from wirehouse_codecs.wallaroo.rules import RULE
from wirehouse_codecs.wallaroo.simulator.connector import PORT
from wirehouse_codecs.wallaroo.simulator.simulator import FAULTS, SimulatorConfig, simulate

VECTORS = Path(__file__).parents[3] / "vectors" / "wallaroo"
#: Vectors of which no connection breaks a rule.
GOOD = [
    (expected.with_name(Path(said["capture"]).name), said["worker_port"])
    for expected in sorted(VECTORS.rglob("expected.json"))
    for said in json.loads(expected.read_text())["captures"]
    if {one["verdict"]["verdict"] for one in said["connections"]} == {"ok"}
]
SEEDS = fast_first([range(2), range(2, 6), range(6, 20)], most=2)
#: A fault and a dialect that it can be in.
FAULTY = [(name, dialect) for name, fault in FAULTS.items() for dialect in fault.dialects]
Row = dict[str, Any]


def found(rows: Iterable[Row], dialect: str = AUTO) -> set[str]:
    """Rules that are violations or warnings, also those that sessions break together."""
    return {rule for rule, severity in judged(rows, dialect) if severity != "note"}


def judged(rows: Iterable[Row], dialect: str = AUTO, until_ns: int = LATE_NS) -> set[tuple[str, str]]:
    """Rules that are broken by then, and their severities, but for what the capture lacks."""
    start = log.starter(WallarooOptions(dialect=dialect), b"key")
    told = read_log(rows, start, schema.SCHEMA, {"0": until_ns})
    findings = [row["finding"] for row in told if row["row_kind"] == "violation"]
    rules = {(each["rule"], each["severity"]) for each in findings if not each["rule"].startswith("capture.")}
    folds = Folds()
    ended = [row for row in told if row["row_kind"] == "session" and row["session"]["ended"] is not None]
    summaries = [summary_of(row["connection_id"], row["session"]) for row in ended]
    for summary in sorted(summaries, key=lambda summary: summary.ended_ns):
        for begun in summaries:
            # Those that ended before are begun no more.
            if begun.started_ns <= summary.ended_ns <= begun.ended_ns:
                for key in keys(begun):
                    folds.begin(key, begun.connection_id)
        rules |= {(each.rule.id, each.rule.severity.value) for each in folds.take(summary)}
    return rules


def parts(rows: list[Row], seeds: Iterable[int]) -> Iterable[tuple[str, list[Row]]]:
    """Without a side, and without half of the packets of a side."""
    for side in Direction:
        yield f"no {side}", [row for row in rows if row["direction"] != side]
        for seed in seeds:
            random = Random(seed)
            yield f"{side} {seed}", [row for row in rows if row["direction"] != side or random.random() < 0.5]


def simulated(dialect: str, lively: bool, fault: str | None = None) -> list[Row]:
    config = SimulatorConfig(
        seed=1,
        dialect=dialect,
        connectors=2,
        streams_per_connector=2,
        messages_per_connector=40,
        burst_messages=4,
        credits=8,
        refill_at=4,
        reset_share=0.2 if lively else 0,
        reopens=int(lively),
        reconnects=int(lively),
        fault=fault,
    )
    return segments(landed_packets(simulate(config)), PORT)


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("lively", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_legal_capture_without_a_side_or_half_of_it_breaks_no_rule(
    dialect: str, lively: bool, forced: bool, seeds: range
) -> None:
    for name, rows in parts(simulated(dialect, lively), seeds):
        assert (name, found(rows, dialect if forced else AUTO)) == (name, set())


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize(("path", "port"), GOOD, ids=lambda value: getattr(value, "stem", value))
def test_a_good_vector_without_a_side_or_half_of_it_breaks_no_rule(path: Path, port: int, seeds: range) -> None:
    for name, rows in parts(segments(landed_file(path), port), seeds):
        assert (name, found(rows)) == (name, set())


@pytest.mark.parametrize("dialect", [AUTO, "v3"])
@pytest.mark.parametrize("answered", [True, False])
def test_a_side_is_unseen_until_it_is_known_where_its_bytes_begin(dialect: str, answered: bool) -> None:
    """HELLO comes on the SYN (RFC 7413), and NOTIFY before OK: a violation, if nothing of the worker is missing."""
    client, server = Endpoint("10.0.0.1", 40_000), Endpoint("10.0.0.2", PORT)
    first, second = hello().data, notify().data
    acknowledges = 500 if answered else 500 + len(ok().data)
    sent = [
        tcp_packet(client, server, sequence=99, acknowledgment=0, flags=SYN, payload=first),
        tcp_packet(server, client, sequence=499, acknowledgment=100 + len(first), flags=SYN | ACK),
        tcp_packet(client, server, sequence=100 + len(first), acknowledgment=acknowledges, flags=ACK, payload=second),
        tcp_packet(server, client, sequence=500, acknowledgment=100 + len(first), flags=ACK, payload=ok().data),
    ]
    captured = [CapturedPacket(10**18 + at * 10**7, packet) for at, packet in enumerate(sent)]
    rows = segments(landed_packets(captured[: 1 + answered] + captured[2 : 3 + answered]), PORT)
    assert found(rows, dialect) == ({RULE["frame_before_ok"].id} if answered else set())


@pytest.mark.parametrize("size", fast_first(range(1, len(hello().data)), 3))
@pytest.mark.parametrize("dialect", [AUTO, "v3"])
def test_bytes_of_a_syn_that_was_not_captured_may_end_within_a_frame(dialect: str, size: int) -> None:
    """The SYN has the first bytes of HELLO (RFC 7413), the next segment the others."""
    ends = {C: Endpoint("10.0.0.1", 40_000), W: Endpoint("10.0.0.2", PORT)}
    at = {C: 100 + size, W: 500}
    sent = [tcp_packet(ends[W], ends[C], sequence=499, acknowledgment=at[C], flags=SYN | ACK)]
    rest = hello()._replace(data=hello().data[size:])
    for side, data, _ in (rest, ok(), notify(), answer(), *(message(number) for number in range(1, 12))):
        there = other(side)
        sent.append(
            tcp_packet(ends[side], ends[there], sequence=at[side], acknowledgment=at[there], flags=ACK, payload=data)
        )
        at[side] += len(data)
    rows = segments(landed_packets(CapturedPacket(10**18 + each * 10**7, one) for each, one in enumerate(sent)), PORT)
    assert found(rows, dialect) == set()
    read = read_log(rows, log.starter(WallarooOptions(dialect=dialect), b"key"), schema.SCHEMA)
    assert sum(row["row_kind"] == "message" for row in read) == 14


# Faults


def apart(name: str, dialect: str) -> tuple[list[Row], list[Row]]:
    """The packets of a fault's connections and those of the others, as they were captured."""
    rows = sorted(simulated(dialect, False, fault=name), key=itemgetter("record_number"))
    others = {row["flow"] for row in simulated(dialect, False)}
    return [row for row in rows if row["flow"] not in others], [row for row in rows if row["flow"] in others]


def is_found(name: str, rows: Iterable[Row], until_ns: int = LATE_NS) -> bool:
    in_flows = sorted(rows, key=itemgetter("flow", "record_number"))
    return RULE[name].id in {rule for rule, _ in judged(in_flows, until_ns=until_ns)}


def evidence_of(name: str, rows: list[Row]) -> int:
    """How many packets show the fault, and that nothing excuses it, without more time."""
    counts = range(1, len(rows))
    return next((n for n in counts if is_found(name, rows[:n], rows[n - 1]["arrived_at_ns"] + 1)), len(rows))


@pytest.mark.parametrize(("name", "dialect"), fast_first(FAULTY, by=itemgetter(0), most=2))
def test_a_fault_is_found_whatever_is_missing_elsewhere_or_after_its_evidence(name: str, dialect: str) -> None:
    own, others = apart(name, dialect)
    for missing, left in parts(others, range(1)):
        assert is_found(name, [*own, *left]), missing
    known = evidence_of(name, own)
    for missing, left in parts(own[known:], range(3)):
        assert is_found(name, [*own[:known], *left]), missing
