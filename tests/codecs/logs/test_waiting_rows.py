"""A run of bytes may have a row for each: those that wait take little memory, and come as they were told."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from tests.support.landed import LATE_NS, SEGMENTS, landed_packets
from wirehouse_codecs.logs import rows, tcp_inspection, windows
from wirehouse_codecs.logs.flow_log import RUN_BYTES
from wirehouse_codecs.logs.null_dialogue import NullDialogue
from wirehouse_codecs.logs.rows import BATCH_ROWS, MESSAGE, Log, Where, Window
from wirehouse_codecs.logs.windows import SourceLog
from wirehouse_codecs.simulate.script import Close, Conversation, Send, packets
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_codecs.tcp.packets import ACK, SYN
from wirehouse_codecs.tcp.reassembly import Data

FLOW = b"\n\0\0\1\0\1\n\0\0\2\0\2"
SIZE = 300_000
#: A row of these columns has some 150 bytes; without packing they are 50 MB.
MOST_BYTES = 20 << 20


class Talkative(NullDialogue):
    """A dialogue with a row for each byte."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def receive(self, pieces: Sequence[Data]) -> None:
        for piece in pieces:
            for at in range(piece.byte_start, piece.byte_start + len(piece.data)):
                self._log.add(MESSAGE, piece.place, Where(piece.direction, at, at + 1))


def segments(size: int) -> Iterator[dict[str, Any]]:
    """A connection whose client sends SIZE bytes, in segments of `size`."""
    about = {"source": "a", "flow": FLOW, "window_start": "0", "state": None, "capture_id": b"one", "window": 9}
    said = [(0, SYN, b""), *((1 + at, ACK, bytes(min(size, SIZE - at))) for at in range(0, SIZE, size))]
    for number, (sequence, flags, payload) in enumerate(said):
        place = {"arrived_at_ns": number, "capture_arrived_at_ns": 1, "record_number": number, "direction": "client"}
        numbers = {"sequence": sequence, "acknowledgment": 0, "flags": flags}
        yield about | place | numbers | {"payload": payload, "payload_bytes": len(payload)}


@pytest.mark.property
@pytest.mark.parametrize("size", [1_448, 60_000])
def test_rows_of_few_bytes_take_little_memory(size: int) -> None:
    assert RUN_BYTES > SIZE > 10 * BATCH_ROWS
    source = SourceLog(lambda log, *_: Talkative(log), TcpOptions(), (Window("0", LATE_NS),))
    batch = pa.RecordBatch.from_pylist(list(segments(size)), SEGMENTS)
    usual, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        starts: list[int] = []
        for out in windows.read([batch], {"a": source}, rows.schema(())):
            starts += out.column("byte_start").drop_null().to_pylist()
            del out
    finally:
        pa.set_memory_pool(usual)
    assert starts == list(range(SIZE))
    assert pool.max_memory() < MOST_BYTES


@pytest.mark.property
def test_looking_into_a_capture_holds_few_rows() -> None:
    size = SIZE // 3
    schema = rows.schema([("wide", pa.list_(pa.decimal128(20), 64))])
    said: list[Send | Close] = [Send(10**9, Direction.CLIENT, bytes(size)), Close(20 * 10**9, Direction.CLIENT)]
    conversation = Conversation(Endpoint("10.0.0.1", 40_000), Endpoint("10.0.0.2", 7_000), 0, said)
    batches = list(landed_packets(packets(conversation)))
    starts: list[int] = []
    usual, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        for row in tcp_inspection.read(batches, lambda log, *_: Talkative(log), schema, 7_000):
            starts += [row["byte_start"]] if row["row_kind"] == MESSAGE else []
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(usual)
    assert starts == list(range(size))
    # Of Arrow it has 1.3 kilobytes, and some batches of them wait until they are packed.
    assert pool.max_memory() < 5 * BATCH_ROWS * 1_300
    # A row has about one kilobyte, as the log holds those of a batch.
    assert most < 2 * BATCH_ROWS * 1_000
