"""Plain segments in one pass and each by itself: the same bytes at the same places, and the same connections."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.landed import SEGMENTS
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.logs import flow_log
from wirehouse_codecs.logs import rows as rows_of_logs
from wirehouse_codecs.logs.flow_log import FlowLog
from wirehouse_codecs.logs.null_dialogue import NullDialogue
from wirehouse_codecs.logs.rows import Gather, Log, Window
from wirehouse_codecs.logs.windows import GatheredFlows, SourceLog, addresses
from wirehouse_codecs.logs.windows import read as read_segments
from wirehouse_codecs.tcp import waiting
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_codecs.tcp.packets import ACK, FIN, PSH, RST, SYN
from wirehouse_codecs.tcp.reassembly import Closed, Connection, Data, Hole, TcpSegment
from wirehouse_codecs.tcp.sequence_numbers import WINDOW_BYTES

C, S = Direction.CLIENT, Direction.SERVER
FLOWS = (b"\n\0\0\1\0\1\n\0\0\2\0\2", b"\n\0\0\1\0\1\n\0\0\2\0\3")
OPTIONS = TcpOptions(max_waiting_bytes=200, max_waiting_segments=4)
SECOND = 10**9
Row = dict[str, Any]


@pytest.fixture(autouse=True, scope="module")
def _few_bytes_are_compared() -> Iterator[None]:
    with patch.object(waiting, "COMPARED_BYTES", 50):
        yield


def rarely(draw: st.DrawFn, usual: int, *others: int) -> int:
    return draw(st.sampled_from(others)) if draw(st.integers(0, 49)) == 17 else usual


@st.composite
def conversations(draw: st.DrawFn) -> list[Row]:
    """Rows of two port pairs: segments that go on where the last one ended, with now and then one that doesn't."""
    rows: list[Row] = []
    for flow in FLOWS:
        at = {C: draw(st.sampled_from([0, 2**32 - 60])), S: 7}
        ns = 0
        for number in range(draw(st.integers(1, 40))):
            side = draw(st.sampled_from(Direction))
            other = S if side is C else C
            ns += rarely(draw, 1, 11 * SECOND, OPTIONS.idle_ns - 1, OPTIONS.idle_ns)
            flags = rarely(draw, ACK | number % 3 // 2 * PSH, SYN, FIN | ACK, RST, 0)
            if number == 0 and draw(st.booleans()):
                flags = SYN
            payload = b"" if flags & SYN else draw(st.one_of(st.just(b""), st.binary(max_size=30)))
            sequence = at[side] + rarely(draw, 0, -5, 5, 1, 2**31)
            size = len(payload) + rarely(draw, 0, 1, 100)
            rows.append(
                {
                    "source": "a",
                    "flow": flow,
                    "window_start": "0" if ns < OPTIONS.idle_ns else "1",
                    "state": None,
                    "arrived_at_ns": ns,
                    "capture_arrived_at_ns": 3,
                    "capture_id": b"one" if number % 7 else b"other",
                    "record_number": number,
                    "direction": str(side),
                    "sequence": sequence % 2**32,
                    "acknowledgment": (at[other] + rarely(draw, 0, -3, 3, 70_000)) % 2**32,
                    "flags": flags,
                    "window": draw(st.sampled_from([9, 9, 9, 0])),
                    "payload": payload,
                    "payload_bytes": size,
                }
            )
            if rarely(draw, 1, 0):
                at[side] = (sequence + size + bool(flags & (SYN | FIN))) % 2**32
    return rows


class Heard(NullDialogue):
    """A dialogue that notes what it is given."""

    def __init__(self, told: list[Any], connection: Connection) -> None:
        self._told, self._connection, self._name = told, connection, connection.connection_id

    def receive(self, pieces: Sequence[Data]) -> None:
        assert list(pieces) == [pieces[at] for at in range(len(pieces))]
        for piece in pieces:
            ours, _ = self._connection.sides(piece.direction)
            self._told.append((piece, ours.peer_received(piece.byte_start + len(piece.data))))

    def hole(self, hole: Hole) -> None:
        self._told.append(hole)

    def close(self, closed: Closed) -> None:
        self._told.append((self._name, closed))


def read(rows: list[Row], size: int) -> tuple[list[Any], list[Row]]:
    """What dialogues are given, and the rows of the log, by batches of `size` segments."""
    told: list[Any] = []

    def start(log: Log, connection: Connection, server: Endpoint, snapshot: str | None) -> Heard:
        return Heard(told, connection)

    def batches() -> Iterator[pa.RecordBatch]:
        for at in range(0, len(rows), size):
            # A slice of a batch has offsets of its own.
            own = pa.RecordBatch.from_pylist([rows[0], *rows[at : at + size]], SEGMENTS)
            yield own.slice(1)

    windows = (Window("0", OPTIONS.idle_ns - 1), Window("1", 2**62))
    sources = {"a": SourceLog(start, OPTIONS, windows)}
    out = [row for batch in read_segments(batches(), sources, rows_of_logs.schema(())) for row in batch.to_pylist()]
    return told, out


@given(conversations(), st.sampled_from([1, 7, 1000]), st.sampled_from([1, 40, 1 << 20]))
@settings(max_examples=100)
def test_plain_segments_are_taken_as_each_by_itself(rows: list[Row], size: int, run_bytes: int) -> None:
    with patch.object(flow_log, "FEW_SEGMENTS", 1 << 40):
        expected = read(rows, 1000)
    with patch.object(flow_log, "RUN_BYTES", run_bytes), patch.object(flow_log, "FEW_SEGMENTS", 1):
        assert read(rows, size) == expected
    assert read(rows, size) == expected


def test_bytes_with_an_acknowledgment_that_is_far_away_are_no_plain_segment() -> None:
    header = {"source": "a", "flow": FLOWS[0], "window_start": "0", "state": None, "capture_arrived_at_ns": 3}
    header |= {"capture_id": b"one", "window": 9, "flags": ACK}
    heads = [(C, 100, 7, b"c"), (S, 7, 101, b"s"), *[(C, 101, 8, b"")] * 4]
    for far in (101 - WINDOW_BYTES, 101 + WINDOW_BYTES, 101 + 2**31):
        told = [*heads, (S, 8, far % 2**32, b"s"), (S, 9, 101, b"s")]
        rows = [
            header
            | {"arrived_at_ns": at, "record_number": at, "direction": str(side), "sequence": sequence}
            | {"acknowledgment": acknowledgment, "payload": payload, "payload_bytes": len(payload)}
            for at, (side, sequence, acknowledgment, payload) in enumerate(told)
        ]
        with patch.object(flow_log, "FEW_SEGMENTS", 1 << 40):
            expected = read(rows, 1000)
        with patch.object(flow_log, "FEW_SEGMENTS", 1):
            assert read(rows, 1000) == expected


class Together:
    """What gathered dialogues share: nothing."""

    def __init__(self, told: list[Any]) -> None:
        self._told = told

    def start(self, log: Log, connection: Connection, server: Endpoint, snapshot: str | None) -> Heard:
        return Heard(self._told, connection)

    def conclude(self) -> None:
        pass

    def snapshot(self) -> str | None:
        return None


def test_gathered_connections_end_in_order_without_a_look_at_all_of_them() -> None:
    flows = [FLOWS[0][:-2] + number.to_bytes(2, "big") for number in range(500)]
    told: list[Any] = []
    log = Log(rows_of_logs.schema(()))
    gathered = GatheredFlows(log, Gather(lambda *_: Together(told)), "a", addresses(flows[0]), OPTIONS, {})
    looks: list[FlowLog] = []

    def look(flow: FlowLog) -> int | None:
        looks.append(flow)
        return None if flow.connection is None else flow._flow.ends_ns

    with patch.object(FlowLog, "ends_ns", property(look)):
        for number, flow in enumerate(flows):
            place = Place(number + 1, 0, b"one", number)
            turn = gathered.turn_to(flow, place.arrived_at_ns)
            turn.receive(TcpSegment(place, C, 5, 0, SYN, 9, b"", 0))
        gathered.end_window(Window("0", 2**62))
        assert len(looks) < 10 * len(flows)
    ended = [closed.place.arrived_at_ns for _, closed in told]
    assert ended == [OPTIONS.idle_ns + number + 1 for number in range(500)]
