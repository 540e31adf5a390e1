"""Windows cut anywhere give the rows of one window, whatever happened to the packets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

import pytest

from tests.support.compare_reassembly import as_segments
from tests.support.landed import LATE_NS, Row, carried, read_log
from tests.support.plain_reassembler import Packet
from tests.support.searches import fast_first
from tests.support.tcp_networks import Disturbance, simulate
from wirehouse_codecs.logs.null_dialogue import NullDialogue
from wirehouse_codecs.logs.rows import CONNECTION, STATE, Log, Where, schema
from wirehouse_codecs.tcp.endpoints import Endpoint
from wirehouse_codecs.tcp.reassembly import Closed, Connection, Data, Hole

FLOW = Endpoint("10.0.0.2", 5555).packed + (5555).to_bytes(2, "big") + Endpoint("10.0.0.1", 40_000).packed
FLOW += (40_000).to_bytes(2, "big")
MS = 10**6
SCHEMA = schema(())
#: Networks of a test.
MANY = 100


class Bytes(NullDialogue):
    """A dialogue that reads nothing: each piece is a row."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def receive(self, pieces: Sequence[Data]) -> None:
        for direction, start, data, place in pieces:
            self._log.add("bytes", place, Where(direction, start, start + len(data)), raw=bytes(data))

    def hole(self, hole: Hole) -> None:
        self._log.add("passed", hole.place, Where(hole.direction, hole.byte_start, hole.byte_end))

    def close(self, closed: Closed) -> None:
        self._log.add("closed", closed.place, raw=closed.how.encode())


def start(log: Log, connection: Connection, server: Endpoint, snapshot: str | None) -> Bytes:
    return Bytes(log)


def network(seed: int) -> list[Packet]:
    """Connections that use the same ports in turn. Some of their data is captured before their SYN."""
    random = Random(f"ports {seed}")
    packets: list[Packet] = []
    for _ in range(random.randint(2, 3)):
        chosen = frozenset(one for one in Disturbance if random.random() < 0.1)
        own = simulate(random.getrandbits(32), chosen).packets
        if not own:
            continue
        pause_ns = random.choice((0, 1, 20, 9_000, 10_000, 60_000)) * MS
        late_ns = (packets[-1].ns if packets else 1_700_000_000 * 10**9) + pause_ns - own[0].ns
        own = [packet._replace(ns=packet.ns + late_ns) for packet in own]
        if random.random() < 0.8:
            early_ns = random.choice((0, 1, 19, 5_000, 9_999, 10_000)) * MS
            own = [
                packet._replace(ns=own[0].ns - early_ns - random.randint(0, MS))
                if packet.payload and not packet.syn and random.random() < 0.5
                else packet
                for packet in own[:12]
            ] + own[12:]
        packets += own
    return sorted(packets, key=lambda packet: packet.ns)


def rows_of(packets: Iterable[Packet]) -> list[Row]:
    placed = ("arrived_at_ns", "capture_arrived_at_ns", "capture_id", "record_number")
    taken = ("sequence", "acknowledgment", "flags", "window", "payload", "payload_bytes")
    return [
        dict(zip(placed, one.place.order, strict=True))
        | {name: getattr(one, name) for name in taken}
        | {"source": "test", "flow": FLOW, "window_start": "0", "state": None, "direction": str(one.direction)}
        for one in as_segments(packets)
    ]


def in_windows(rows: Sequence[Row], ends: Sequence[int]) -> list[Row]:
    """The rows of the log, window by window, each from the state of the one before."""
    found: list[Row] = []
    state: str | None = None
    begin = 0
    for number, end_ns in enumerate([*ends, LATE_NS]):
        window = f"{number:06}"
        own = [row | {"window_start": window} for row in rows if begin <= row["arrived_at_ns"] <= end_ns]
        before = [] if state is None else [carried(FLOW, state, window)]
        out = read_log([*before, *own], start, SCHEMA, {window: end_ns}) if before or own else []
        states = [row["state"] for row in out if row["row_kind"] == STATE]
        state = states[-1] if states else state
        packets = sum(row["connection"]["window_packets"] for row in out if row["row_kind"] == CONNECTION)
        assert packets == len(own), "each segment is a packet of one connection"
        found += out
        begin = end_ns + 1
    return found


def lasting(rows: Iterable[Row]) -> tuple[Counter[str], dict[bytes, Any]]:
    """What doesn't depend on windows: the rows, and the last one of each connection."""
    said: Counter[str] = Counter()
    connections = {}
    for row in rows:
        if row["row_kind"] == CONNECTION:
            connections[row["connection_id"]] = row["connection"] | {"window_packets": None}
        elif row["row_kind"] != STATE:
            said[repr(row | {"window_start": None})] += 1
    return said, connections


@pytest.mark.parametrize("first", fast_first(range(0, 1000, MANY), most=4))
def test_windows_cut_anywhere_give_the_rows_of_one(first: int) -> None:
    for seed in range(first, first + MANY):
        rows = rows_of(network(seed))
        random = Random(f"cuts {seed}")
        moments = sorted({row["arrived_at_ns"] for row in rows})
        begin, end = moments[0], moments[-1]
        ends = {at - 1 for at in random.sample(moments, min(len(moments), 6))}
        ends |= {random.randint(begin, end + 20_000 * MS) for _ in range(4)}
        assert lasting(in_windows(rows, sorted(ends))) == lasting(in_windows(rows, [])), seed


@pytest.mark.parametrize("seed", [8, 12])
def test_a_window_tells_what_the_only_captured_side_of_an_open_connection_sent(seed: int) -> None:
    talk = simulate(seed, frozenset())
    rows = rows_of(packet for packet in talk.packets if packet.client and not packet.fin)
    end_ns = rows[0]["arrived_at_ns"] + 10_000 * MS
    told = read_log([row | {"window_start": "1"} for row in rows], start, SCHEMA, {"1": end_ns})
    assert b"".join(row["raw"] for row in told if row["row_kind"] == "bytes") == talk.streams[True]
    assert [row["connection"]["closed"] for row in told if row["row_kind"] == CONNECTION] == [None]
    again = [carried(FLOW, told[-1]["state"], "2")]
    assert {row["row_kind"] for row in read_log(again, start, SCHEMA, {"2": end_ns + MS})} <= {STATE}
