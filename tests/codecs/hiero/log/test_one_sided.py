"""Captures that lack one side, or half of its packets: what may have been said in the missing bytes breaks no rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from tests.support.hiero_captures import judge_landed
from tests.support.landed import cut, landed_file, landed_packets, read_log, segments
from tests.support.searches import fast_first
from wirehouse_codecs.core.rules import Severity
from wirehouse_codecs.hiero.log.log import starter
from wirehouse_codecs.hiero.log.rows import SCHEMA
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.profiles import DEFAULT_PORT, PROFILES
from wirehouse_codecs.hiero.rules import RULE
from wirehouse_codecs.hiero.simulator.faults import FAULTS_OF
from wirehouse_codecs.hiero.simulator.simulator import SimulatorConfig, simulate
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.packets import parse

#: The simulator is run at length.
pytestmark = pytest.mark.property

C, S = Direction.CLIENT, Direction.SERVER
PORTS = DEFAULT_PORT, 40841
CALM = SimulatorConfig(blocks=12, block_bytes=1500, set_bytes=600, incident_rounds=0)
LIVELY = replace(CALM, blocks=30, incident_rounds=1, publishers=4, subscribers=3)
GOOD = [
    path
    for path in sorted((Path(__file__).parents[3] / "vectors" / "hiero").rglob("*.pcap"))
    if not path.name.startswith("v")
]
#: Nodes of legal traffic; scenes of faults have others.
LEGAL_NODES = bytes((10, 0, 0))
FAULT_NODES = bytes((10, 0, 200))
#: Without one side, or without half of one side's packets.
ONE_SIDED = [pytest.param(side, 0.0, 0, id=f"without-{side}") for side in Direction]
HALVES = [
    pytest.param(side, 0.5, seed, id=f"half-{side}-{seed}", marks=[pytest.mark.long] if seed >= 1 else [])
    for side in Direction
    for seed in range(20)
]


@cache
def legal(profile: str, lively: bool) -> list[pa.RecordBatch]:
    """Legal traffic as it was landed."""
    config = replace(LIVELY if lively else CALM, profile=profile, seed=len(profile))
    return list(landed_packets(simulate(config)))


def part_of(
    batches: Iterable[pa.RecordBatch],
    side: Direction,
    share: float,
    seed: int = 0,
    nodes: bytes = b"",
    after_ns: int = 0,
) -> Iterator[pa.RecordBatch]:
    """Packets, of one side and of nodes with such addresses a share of those that came later.

    Connections that begin later are whole.
    """
    random = Random(f"{side} {seed}")
    end, client = ("source", "destination") if side is S else ("destination", "source")
    begun = set()
    for batch in batches:
        parsed = parse(batch)
        ports, addresses = (parsed.column(f"{end}_{what}").to_pylist() for what in ("port", "address"))
        arrived = batch.column("arrived_at_ns").to_pylist()
        clients = list(
            zip(*(parsed.column(f"{client}_{what}").to_pylist() for what in ("port", "address")), strict=True)
        )
        begun |= {one for one, ns in zip(clients, arrived, strict=True) if ns <= after_ns}
        kept = [
            not (port in PORTS and address.startswith(nodes) and ns > after_ns and (not after_ns or one in begun))
            or random.random() < share
            for port, address, one, ns in zip(ports, addresses, clients, arrived, strict=True)
        ]
        yield batch.filter(pa.array(kept))


def severe(batches: Iterable[pa.RecordBatch], options: HieroOptions) -> list[str]:
    """The rules that are broken, without notes and what captures lack."""
    found = judge_landed(batches, options, *PORTS).found
    return [name for name in found if name in RULE and RULE[name].severity is not Severity.NOTE]


@pytest.mark.parametrize(("side", "share", "seed"), [*ONE_SIDED, *HALVES])
@pytest.mark.parametrize("lively", [False, True], ids=["calm", "lively"])
@pytest.mark.parametrize("profile", PROFILES)
def test_what_is_missing_of_legal_traffic_breaks_no_rule(
    profile: str, lively: bool, side: Direction, share: float, seed: int
) -> None:
    assert severe(part_of(legal(profile, lively), side, share, seed), HieroOptions(profile=profile)) == []


@pytest.mark.parametrize(("side", "share", "seed"), [*ONE_SIDED, *HALVES])
@pytest.mark.parametrize("path", GOOD, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_is_missing_of_real_traffic_breaks_no_rule(path: Path, side: Direction, share: float, seed: int) -> None:
    assert severe(part_of(landed_file(path), side, share, seed), HieroOptions()) == []


@pytest.mark.parametrize("lost", fast_first(range(3, 12), count=3, by=lambda at: at != 7))
@pytest.mark.parametrize("profile", ["A0", "B"])
def test_a_packet_that_each_connection_lacks_breaks_no_rule(profile: str, lost: int) -> None:
    """The eighth has the path of a subscriber's status call, whose subscription follows on the same connection."""
    config = replace(CALM, profile=profile, publishers=1, subscribers=2)
    sent: Counter[frozenset[tuple[Any, ...]]] = Counter()
    kept = []
    for batch in landed_packets(simulate(config)):
        parsed = parse(batch)
        source, destination = (
            zip(*(parsed.column(f"{end}_{what}").to_pylist() for what in ("address", "port")), strict=True)
            for end in ("source", "destination")
        )
        is_there = []
        for connection in map(frozenset, zip(source, destination, strict=True)):
            is_there.append(sent[connection] != lost)
            sent[connection] += 1
        kept.append(batch.filter(pa.array(is_there)))
    assert severe(kept, HieroOptions(profile=profile)) == []


def _comparable(rows: Iterable[dict[str, Any]]) -> Counter[str]:
    kept = (row for row in rows if row["row_kind"] not in ("connection", "state", "skip"))
    return Counter(repr({name: row[name] for name in row if name != "window_start"}) for row in kept)


@pytest.mark.parametrize(("side", "share", "seed"), [*ONE_SIDED, *HALVES[:3], *HALVES[20:23]])
def test_every_packet_may_be_a_window_where_packets_are_missing(side: Direction, share: float, seed: int) -> None:
    config = replace(CALM, blocks=6, block_bytes=600, publishers=2, subscribers=1, nodes=1)
    rows = segments(part_of(landed_packets(simulate(config)), side, share, seed), *PORTS)
    start = starter(HieroOptions())
    assert _comparable(cut(rows, start, SCHEMA)) == _comparable(read_log(rows, start, SCHEMA))


#: Of each fault the newest profile that has it comes first.
FAULTS = fast_first(
    [(profile, name) for profile in ("B", "A") for name in FAULTS_OF[profile]], by=itemgetter(1), most=1
)


@cache
def faulty(profile: str, name: str) -> tuple[list[pa.RecordBatch], int]:
    """Traffic with a fault, and when it is found."""
    captured = list(landed_packets(simulate(replace(CALM, profile=profile, fault=name))))
    return captured, judge_landed(captured, HieroOptions(profile=profile), *PORTS).found_ns[name]


@pytest.mark.parametrize(("side", "share", "seed"), [*ONE_SIDED, HALVES[0], HALVES[20]])
@pytest.mark.parametrize(("profile", "name"), FAULTS)
def test_a_fault_is_found_beside_connections_of_which_packets_are_missing(
    profile: str, name: str, side: Direction, share: float, seed: int
) -> None:
    captured = part_of(faulty(profile, name)[0], side, share, seed, nodes=LEGAL_NODES)
    found = judge_landed(captured, HieroOptions(profile=profile), *PORTS).found
    assert {rule: count for rule, count in found.items() if rule in RULE} == {name: 1}


@pytest.mark.parametrize(("side", "share", "seed"), [*ONE_SIDED, HALVES[0], HALVES[20]])
@pytest.mark.parametrize(("profile", "name"), FAULTS)
def test_a_fault_is_found_although_packets_behind_it_are_missing(
    profile: str, name: str, side: Direction, share: float, seed: int
) -> None:
    """Behind what breaks the rule, and what could have excused it."""
    packets, found_ns = faulty(profile, name)
    captured = part_of(packets, side, share, seed, nodes=FAULT_NODES, after_ns=found_ns)
    found = judge_landed(captured, HieroOptions(profile=profile), *PORTS).found
    assert {rule: count for rule, count in found.items() if rule in RULE} == {name: 1}


#: Faults that the bytes of one side show, whatever the other one said.
SHOWN_BY = {
    C: ("malformed_message", "item_refused", "structure", "chain", "earliest"),
    S: ("code_set", "ack_order", "skip_pair", "subscriber_order", "subscriber_gap"),
}


@pytest.mark.parametrize("missing", Direction)
@pytest.mark.parametrize(("profile", "name"), FAULTS)
def test_without_a_side_a_fault_is_found_if_the_other_one_shows_it(profile: str, name: str, missing: Direction) -> None:
    packets, _ = faulty(profile, name)
    found = judge_landed(part_of(packets, missing, 0.0, nodes=FAULT_NODES), HieroOptions(profile=profile), *PORTS).found
    is_shown = name in SHOWN_BY[S if missing is C else C]
    assert {rule: count for rule, count in found.items() if rule in RULE} == ({name: 1} if is_shown else {})
