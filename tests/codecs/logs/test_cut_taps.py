"""Whatever a tap makes of traffic, its rows are the same wherever windows are cut and whenever bytes are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import groupby
from operator import itemgetter
from random import Random
from typing import NamedTuple

import pyarrow as pa
import pytest

from tests.codecs.bamboo.log.test_one_sided import LIVELY as BAMBOO
from tests.codecs.hiero.log.test_one_sided import LIVELY as HIERO
from tests.codecs.hiero.log.test_one_sided import PORTS as HIERO_PORTS
from tests.codecs.ockam.log.test_one_sided import LIVELY as OCKAM
from tests.support.landed import Row, cut, landed_packets, read_log, segments
from tests.support.searches import fast_first
from tests.support.taps import any_tap, captured
from wirehouse_codecs.bamboo.log import schema as bamboo_log
from wirehouse_codecs.bamboo.options import BambooOptions
from wirehouse_codecs.bamboo.simulator import simulator as bamboo
from wirehouse_codecs.hiero.log import log as hiero_log
from wirehouse_codecs.hiero.log import rows as hiero_rows
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.simulator import simulator as hiero
from wirehouse_codecs.logs.flow_log import FlowLog
from wirehouse_codecs.logs.rows import Gather, Start
from wirehouse_codecs.ockam.log import log as ockam_log
from wirehouse_codecs.ockam.options import OckamOptions
from wirehouse_codecs.ockam.simulator import simulator as ockam
from wirehouse_codecs.ockam.simulator.service import PORT as OCKAM_PORT
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.numbering import Numbering
from wirehouse_codecs.tcp.packets import ACK, SYN
from wirehouse_codecs.tcp.segments import SegmentRows
from wirehouse_codecs.wallaroo.log import log as wallaroo_log
from wirehouse_codecs.wallaroo.log import schema as wallaroo_schema
from wirehouse_codecs.wallaroo.options import WallarooOptions
from wirehouse_codecs.wallaroo.simulator import simulator as wallaroo
from wirehouse_codecs.wallaroo.simulator.connector import PORT as WALLAROO_PORT

WALLAROO = wallaroo.SimulatorConfig(
    connectors=2, messages_per_connector=40, burst_messages=4, credits=8, refill_at=4, reset_share=0.2, reopens=1
)
#: Rows of what a window has: of a connection and its entities, which change, and what is carried on.
ENTITIES = ("connection", "session", "stream", "proposal", "skip", "state")


class Read(NamedTuple):
    """How a protocol is read."""

    start: Start | Gather
    schema: pa.Schema
    ports: tuple[int, ...]


READS = {
    "bamboo": Read(bamboo_log.starter(BambooOptions()), bamboo_log.SCHEMA, (bamboo.PORT,)),
    "hiero": Read(hiero_log.starter(HieroOptions()), hiero_rows.SCHEMA, tuple(HIERO_PORTS)),
    "ockam": Read(ockam_log.starter(OckamOptions()), ockam_log.SCHEMA, (OCKAM_PORT,)),
    "wallaroo": Read(wallaroo_log.starter(WallarooOptions(), b"key"), wallaroo_schema.SCHEMA, (WALLAROO_PORT,)),
}

SENT: Mapping[str, Callable[[], Iterator[CapturedPacket]]] = {
    "bamboo": lambda: bamboo.simulate(replace(BAMBOO, connections=2)),
    "hiero": lambda: hiero.simulate(replace(HIERO, blocks=12, block_bytes=4_000)),
    "ockam": lambda: ockam.simulate(OCKAM),
    "wallaroo": lambda: wallaroo.simulate(WALLAROO),
}


@cache
def sent(protocol: str) -> list[CapturedPacket]:
    """Lively legal traffic."""
    return list(SENT[protocol]())


def comparable(rows: Iterable[Row]) -> Counter[str]:
    """The rows of events, but for their window."""
    return Counter(repr(row | {"window_start": None}) for row in rows if row["row_kind"] not in ENTITIES)


#: Connections of a case of odd handshakes.
TRIED = 8
CASES = [(name, seed) for seed in range(12) for name in READS]


def taken(protocol: str, seed: int) -> list[Row]:
    """The segments of what a tap has."""
    ports = READS[protocol].ports
    return segments(landed_packets(captured(sent(protocol), ports, any_tap(seed))), *ports)


@pytest.mark.parametrize(("protocol", "seed"), fast_first(CASES, by=lambda one: one[0], most=2))
def test_a_tap_of_traffic_gives_the_same_rows_wherever_windows_are_cut(protocol: str, seed: int) -> None:
    start, schema, _ = READS[protocol]
    rows = taken(protocol, seed)
    whole = comparable(read_log(rows, start, schema))
    for packets in (1, 7):
        assert comparable(cut(rows, start, schema, packets)) == whole


def with_odd_handshake(own: list[Row], random: Random) -> list[Row]:
    """A connection of whose first segments some are missing, some come later, and of whose SYNs one comes again."""
    if random.random() < 0.5:
        # Of two answers to its SYN only the old one was captured.
        _, answer, _, *rest = own
        old = answer | {"sequence": (answer["sequence"] + random.choice((1 << 29, 3 << 30))) % (1 << 32)}
        return [old, *([] if random.random() < 0.5 else own[2:3]), *rest]
    odd = [row for row in own[:9] if random.random() < 0.8] + own[9:]
    for at in random.sample(range(9), random.randint(0, 2)):
        odd.insert(at + random.randint(1, 4), odd.pop(at))
    if random.random() < 0.7:
        first = next((row for row in own if row["direction"] == random.choice(list(Direction))), own[0])
        said: Row = {"flags": SYN | random.choice((0, ACK)), "payload": b"", "payload_bytes": 0}
        for number in ("sequence", "acknowledgment"):
            said[number] = (first[number] + random.choice((0, 0, 1, -1, 40, -9_000, 1 << 29))) % (1 << 32)
        odd.insert(random.randint(1, 6), first | said)
    times = sorted(row["arrived_at_ns"] for row in odd)
    pause_ns = random.choice((0, 0, 0, 20 * 10**9))
    late = random.randint(1, 6)
    return [
        row
        | {
            "arrived_at_ns": at_ns + pause_ns * (number >= late),
            "capture_arrived_at_ns": at_ns,
            "record_number": number,
        }
        for number, (row, at_ns) in enumerate(zip(odd, times, strict=True))
    ]


@pytest.mark.parametrize(("protocol", "seed"), fast_first(CASES, by=lambda one: one[0], most=3))
def test_odd_handshakes_give_the_same_rows_whenever_bytes_are_read(
    protocol: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, schema, ports = READS[protocol]
    every = segments(landed_packets(sent(protocol)), *ports)
    random = Random(f"{protocol} {seed}")
    flows = [list(own)[:20] for _, own in groupby(every, itemgetter("flow"))]
    rows: list[Row] = []
    for number in range(TRIED):
        flow = random.choice([own for own in flows if len(own) == 20])
        port = (40_000 + number).to_bytes(2, "big")
        rows += [row | {"flow": row["flow"][:-2] + port} for row in with_odd_handshake(flow, random)]
    whole = comparable(read_log(rows, start, schema))
    assert comparable(cut(rows, start, schema)) == whole

    def flushing(flow: FlowLog, segments: SegmentRows, row: int, end: int) -> int:
        flow.receive(segments.segment(row))
        flow.flush()
        return row + 1

    monkeypatch.setattr(FlowLog, "receive_rows", flushing)
    assert comparable(read_log(rows, start, schema)) == whole


def test_an_acknowledgment_of_another_answer_to_the_syn_says_nothing_of_bytes_before_it() -> None:
    start, schema, ports = READS["wallaroo"]
    every = segments(landed_packets(sent("wallaroo")), *ports)
    own = [row for row in every if row["flow"] == every[0]["flow"]]
    _, answer, _, hello, *_ = own
    _, said = [row for row in own if row["direction"] == "server" and row["payload"]][:2]
    end = hello["sequence"] + hello["payload_bytes"]
    rows = [
        answer | {"sequence": answer["sequence"] ^ 1 << 29},
        hello,
        hello | {"sequence": end, "payload": b"", "payload_bytes": 0},
        said | {"sequence": hello["acknowledgment"], "acknowledgment": end},
    ]
    rows = [row | {"arrived_at_ns": 1_000_000 * at, "record_number": at} for at, row in enumerate(rows, 1)]
    assert comparable(cut(rows, start, schema)) == comparable(read_log(rows, start, schema))


@pytest.mark.parametrize(("protocol", "seed"), fast_first(CASES, by=lambda one: one[0], most=2))
def test_nobody_asks_for_what_was_forgotten(protocol: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: dict[int, tuple[Numbering, int]] = {}
    forget, known, is_late = Numbering.forget_received, Numbering.peer_received, Numbering.is_late

    def forgetting(side: Numbering, byte_end: int) -> None:
        forgotten[id(side)] = side, byte_end
        forget(side, byte_end)

    def of_kept(side: Numbering, byte_end: int) -> int:
        _, until = forgotten.get(id(side), (side, 0))
        assert byte_end >= until
        return byte_end

    monkeypatch.setattr(Numbering, "forget_received", forgetting)
    monkeypatch.setattr(Numbering, "peer_received", lambda side, byte_end: known(side, of_kept(side, byte_end)))
    monkeypatch.setattr(Numbering, "is_late", lambda side, byte_end: is_late(side, of_kept(side, byte_end)))
    start, schema, _ = READS[protocol]
    read_log(taken(protocol, seed), start, schema)
    assert forgotten
