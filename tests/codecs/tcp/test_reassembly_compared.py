"""Reassembly gives the bytes and holes that a plain reassembler finds, whatever networks and observers do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.support.compare_reassembly import connections, differences, differences_in_turn, forgotten
from tests.support.plain_reassembler import WAIT_NS, Packet, Run, distance, reassemble
from tests.support.searches import fast_first
from tests.support.tcp_networks import Disturbance, Simulated, simulate

VECTORS = Path(__file__).parents[2] / "vectors"
#: Connections of a test: of 34 tests one is fast.
MANY = 300


def several(first: int, many: int = MANY) -> Iterator[tuple[int, Simulated]]:
    return ((seed, simulate(seed)) for seed in range(first, first + many))


def assert_equal(simulated: Iterable[tuple[int, Simulated]]) -> None:
    found = {seed: differences(one.packets) for seed, one in simulated}
    wrong = {seed: difference for seed, difference in found.items() if difference}
    assert not wrong, "\n".join(f"seed {seed}: {one}" for seed, difference in wrong.items() for one in difference)


@pytest.mark.parametrize("disturbance", Disturbance)
def test_one_disturbance_alone(disturbance: Disturbance) -> None:
    assert_equal((seed, simulate(seed, frozenset({disturbance}))) for seed in range(50))


@pytest.mark.parametrize("disturbance", [Disturbance.MIDDLE, Disturbance.LOSS, Disturbance.REORDERING])
@pytest.mark.parametrize("first", fast_first(range(0, 1000, 100), most=3))
def test_what_nobody_had_acknowledged_is_delivered(first: int, disturbance: Disturbance) -> None:
    """Where a stream begins and which gaps are holes, from what both hosts knew."""
    for seed in range(first, first + 100):
        simulated = simulate(seed, frozenset({disturbance}))
        forgot = forgotten(simulated.packets, simulated.firsts)
        assert not any(forgot.values()), (seed, forgot)


@pytest.mark.parametrize("first", fast_first(range(0, 10_000, MANY), most=7))
def test_several_disturbances(first: int) -> None:
    assert_equal(several(first))


@pytest.mark.parametrize("pause_ms", [0, 1, 3_000, 60_000])
@pytest.mark.parametrize("disturbance", [None, Disturbance.ABORT, Disturbance.WRAP, Disturbance.OVERLAP])
def test_ports_are_used_again(disturbance: Disturbance | None, pause_ms: int) -> None:
    chosen = frozenset([disturbance] if disturbance else [])
    found = {}
    for seed in range(20):
        first, second = (simulate(one, chosen) for one in (seed, seed + 1000))
        late_ns = first.packets[-1].ns + pause_ms * 10**6 + 1 - second.packets[0].ns
        parts = [first.packets, [packet._replace(ns=packet.ns + late_ns) for packet in second.packets]]
        found[seed] = differences_in_turn(parts)
    assert not any(found.values()), found


@pytest.mark.parametrize("path", sorted(VECTORS.rglob("*.pcap")), ids=lambda path: path.name)
def test_captures(path: Path) -> None:
    found = {name: differences(packets) for name, packets in connections(path)}
    assert found
    assert not any(found.values())


# What the comparison rests on


@pytest.mark.parametrize("first", fast_first(range(0, 2000, MANY), most=3))
def test_plain_bytes_are_those_that_were_sent(first: int) -> None:
    """Also where only copies with other content were captured: then nothing is said."""
    seen: set[Disturbance] = set()
    for seed in range(first, first + MANY):
        simulated = simulate(seed)
        seen |= simulated.disturbances
        if Disturbance.OVERLAP in simulated.disturbances:
            continue
        for client, readings in reassemble(simulated.packets).items():
            for reading in readings:
                start = distance(reading.sequence or 0, simulated.firsts[client])
                for run in reading.runs:
                    sent = simulated.streams[client][start + run.start : start + run.end]
                    assert run.data in (None, sent), (seed, client)
    assert seen == set(Disturbance)


def said(ms: int, client: bool, at: int, acknowledged: int, data: bytes = b"", **flags: bool) -> Packet:
    """A packet by the positions of its bytes; the client's numbers wrap after three bytes."""
    numbers = {True: 2**32 - 3, False: 1000}
    sequence, acknowledgment = (numbers[client] + at) % 2**32, (numbers[not client] + acknowledged) % 2**32
    return Packet(ms * 10**6, client, sequence, acknowledgment, data, len(data), **flags)


OPENED = [said(0, True, -1, 0, syn=True)._replace(acknowledgment=None), said(1, False, -1, 0, syn=True)]


@pytest.mark.parametrize(
    ("packets", "runs"),
    [
        ([said(2, True, 3, 0, b"def"), said(3, True, 0, 0, b"abc")], [(0, 6, b"abcdef")]),
        ([said(2, True, 0, 0, b"abc"), said(3, True, 1, 0, b"XYZ")], [(0, 4, b"abcZ")]),
        ([said(2, True, 0, 0, b"ab"), said(3, True, 4, 0, b"ef")], [(0, 2, b"ab"), (2, 4, None), (4, 6, b"ef")]),
        ([said(2, True, 0, 0, b"a"), said(3, False, 0, 9)], [(0, 1, b"a"), (1, 9, None)]),
        ([said(2, True, 0, 0, b"a"), said(3, True, 4, 0, fin=True)], [(0, 1, b"a"), (1, 4, None)]),
        ([said(2, True, 0, 0, b"a"), said(3, True, 1, 0, rst=True), said(4, True, 1, 0, b"b")], [(0, 1, b"a")]),
        (
            [said(2, True, 0, 0, b"a"), said(3, True, 99, 0, rst=True), said(4, True, 1, 0, b"b")],
            [(0, 2, b"ab"), (2, 99, None)],
        ),
        (
            [said(2, True, 0, 0, b"a"), said(3, True, 99, 0, rst=True), said(10_003, True, 1, 0, b"b")],
            [(0, 2, b"ab")],
        ),
        (
            [
                *(said(2, True, 0, 0, b"a"), said(3, True, 99, 0, rst=True), said(4, False, 0, 1, b"?")),
                said(10_004, False, 1, 1, b"?"),
            ],
            [(0, 1, b"a"), (1, 99, None)],
        ),
        (
            [said(2, True, 0, 0, b"a"), said(3, True, 9, 0), said(4, True, 9, 0, rst=True), said(5, True, 1, 0, b"b")],
            [(0, 2, b"ab"), (2, 9, None)],
        ),
        (
            [
                said(2, True, 0, 0, b"a"),
                said(3, True, 99, 0, rst=True),
                said(4, False, 0, 1, b"?"),
                said(5, True, 1, 1),
                said(10_003, True, 1, 1, b"b"),
            ],
            [(0, 2, b"ab")],
        ),
    ],
)
def test_what_plain_reassembly_reads(packets: list[Packet], runs: list[tuple[int, int, bytes | None]]) -> None:
    (reading,) = reassemble([*OPENED, *packets])[True]
    assert list(reading.runs) == [Run(*run) for run in runs]
    assert differences([*OPENED, *packets]) == []


def test_bytes_that_come_after_the_wait_may_be_read_or_not() -> None:
    packets = [
        *OPENED,
        said(2, True, 3, 0, b"def"),
        said(3, False, 0, 6),
        said(4 + WAIT_NS // 10**6, True, 0, 0, b"abc"),
    ]
    (reading,) = reassemble(packets)[True]
    assert (reading.runs, reading.late) == ((Run(0, 6, b"abcdef"),), ((0, 3),))
    assert differences(packets) == []


def test_a_difference_is_found() -> None:
    packets = [*OPENED, said(2, True, 0, 0, b"a"), said(3, True, 4, 0, b"e")]
    behind = packets[-1]._replace(payload=b"E")
    assert differences([*packets, behind]) == []
    (found,) = differences([*packets[:-1], behind], packets)
    assert str(found) == (
        "client: the product reads bytes 0-1, hole 1-4, bytes 4-5\n  plain reads bytes 0-1, hole 1-4, bytes 4-5"
    )
