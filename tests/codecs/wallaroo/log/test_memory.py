"""What is held stays bounded, whoever speaks: names, cookies, findings, rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.support.landed import SEGMENTS
from wirehouse_codecs.core.errors import StateDamagedError, StateVersionError
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.logs import flow_log
from wirehouse_codecs.logs import rows as log_rows
from wirehouse_codecs.logs.rows import Log, Window
from wirehouse_codecs.logs.windows import SourceLog
from wirehouse_codecs.logs.windows import read as read_segments
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_codecs.tcp.packets import ACK, FIN, SYN
from wirehouse_codecs.tcp.reassembly import Connection, Data, Side
from wirehouse_codecs.wallaroo.dialects import V3
from wirehouse_codecs.wallaroo.frames import Ack, Error, Frame, Hello, Message, Notify, NotifyAck, Ok, StreamMessage
from wirehouse_codecs.wallaroo.log import log, schema
from wirehouse_codecs.wallaroo.options import WallarooOptions
from wirehouse_codecs.wallaroo.session import judging, memory
from wirehouse_codecs.wallaroo.wire.dialect_detection import SOURCE_VERSION
from wirehouse_codecs.wallaroo.wire.messages import encode

C, S = Direction.CLIENT, Direction.SERVER
HELLO = Hello(SOURCE_VERSION, b"secret", b"program", b"instance")
Row = dict[str, Any]


class Taken:
    """A conversation that is told frames, or bytes that are none, and the rows that come of them."""

    def __init__(self, **options: Any) -> None:
        self.log = Log(schema.SCHEMA)
        ours, theirs = (Side(direction, options=TcpOptions(), expected=1, packets=1) for direction in (C, S))
        connection = Connection(b"c" * 16, "syn", place(0), place(0), ours, theirs)
        server = Endpoint("10.0.0.1", 7000)
        self.start = log.starter(WallarooOptions(**options), b"key")
        self.dialogue = self.start(self.log, connection, server, None)
        self._at = dict.fromkeys(Direction, 0)

    def say(self, direction: Direction, *frames: Frame | bytes) -> Taken:
        data = b"".join(frame if isinstance(frame, bytes) else encode(frame, V3) for frame in frames)
        self.dialogue.receive([Data(direction, self._at[direction], data, place(1))])
        self._at[direction] += len(data)
        return self

    def rows(self) -> list[Row]:
        return [row for batch in self.log.take() for row in batch.to_pylist()]


def place(at: int) -> Place:
    return Place(at, 0, b"", at)


def test_names_of_streams_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MOST_NAME_CHARACTERS", 1000)
    taken = Taken().say(C, HELLO).say(S, Ok(100))
    for number in range(4):
        taken.say(C, Notify(number, b"\xff" * 100))
    taken.dialogue.conclude()
    rows = taken.rows()
    named = [len(row["message"]["stream_name"]) for row in rows if row["message"] and row["stream_id"] is not None]
    assert named == [400] * 4
    assert [row["stream"]["stream_name"] is None for row in rows if row["stream"]] == [False, False, True, True]
    assert len(taken.dialogue.snapshot()) < 20_000
    # Room is given back, and counted anew.
    taken.say(C, Notify(0, b"short"), Notify(3, b"\xff" * 100))
    taken.dialogue.conclude()
    assert [len(row["stream"]["stream_name"]) for row in taken.rows() if row["stream"]] == [5, 400]


def test_cookies_of_a_flood_are_not_kept() -> None:
    taken = Taken().say(C, HELLO).say(S, Ok(1))
    for number in range(10 * log.MOST_COOKIES):
        taken.say(C, Hello(SOURCE_VERSION, b"secret%d" % number, b"p", b"i"))
    taken.say(S, Error(b"not secret159"))
    rows = taken.rows()
    assert "secret" not in repr(rows)
    assert rows[-1]["message"]["kind"] == "ERROR"
    assert isinstance(taken.dialogue, log.Conversation)
    assert len(taken.dialogue._cookies) == log.MOST_COOKIES + 1


@pytest.mark.property
@pytest.mark.parametrize("pairs", [judging.MAX_FINDINGS // 2, 20_000])
def test_a_frame_has_a_bounded_number_of_findings(pairs: int) -> None:
    taken = Taken(max_frame_bytes=4 << 20).say(C, HELLO).say(S, Ok(100))
    taken.say(S, Ack(1, tuple(StreamMessage(number, 1) for number in range(pairs))))
    found = [row for row in taken.rows() if row["row_kind"] == "violation"]
    assert len(found) == min(pairs, judging.MAX_FINDINGS)


def test_rows_of_one_run_become_batches_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_rows, "BATCH_ROWS", 1000)
    taken = Taken().say(C, HELLO).say(S, Ok(1))
    taken.say(C, *(b"\0\0\0\1\xff" for _ in range(2 * log_rows.BATCH_ROWS)))
    assert len(taken.log._rows) < log_rows.BATCH_ROWS
    assert [batch.num_rows for batch in taken.log.take()][:2] == [log_rows.BATCH_ROWS] * 2


# Many connections, and a long one


def segment(flow: int, at_ns: int, direction: Direction, sequence: int, flags: int, payload: bytes = b"") -> list[Any]:
    key = b"\x0a\0\0\1\x1b\x58" + flow.to_bytes(6, "big")
    where = [at_ns, 1, b"capture", at_ns]
    return ["test", key, "0", None, *where, str(direction), sequence, 1, flags, 100, payload, len(payload)]


def batches(segments: Iterable[list[Any]], rows: int = 20_000) -> Iterator[pa.RecordBatch]:
    """SEGMENT_COLUMNS, made as they are asked for."""
    held: list[list[Any]] = []

    def batch() -> pa.RecordBatch:
        columns = zip(*held, strict=True)
        return pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, SEGMENTS, strict=True)], schema=SEGMENTS
        )

    for each in segments:
        held.append(each)
        if len(held) == rows:
            yield batch()
            held.clear()
    if held:
        yield batch()


def read(segments: Iterable[list[Any]], end_ns: int) -> Iterator[pa.RecordBatch]:
    source = SourceLog(log.starter(WallarooOptions(), b"key"), TcpOptions(), (Window("0", end_ns),))
    return read_segments(batches(segments), {"test": source}, schema.SCHEMA)


def tiny(count: int) -> Iterator[list[Any]]:
    """SYN, HELLO and both FINs; every tenth is left open, every third has but a SYN."""
    hello = encode(HELLO, V3)
    for flow in range(count):
        yield segment(flow, 1, C, 0, SYN)
        if flow % 3 == 0:
            continue
        yield segment(flow, 2, C, 1, ACK, hello)
        if flow % 10:
            yield segment(flow, 3, C, 1 + len(hello), ACK | FIN)
            yield segment(flow, 4, S, 1, ACK | FIN)


@pytest.mark.property
def test_of_many_tiny_connections_only_live_ones_are_carried() -> None:
    count = 600
    states: list[str | None] = []
    for batch in read(tiny(count), 10):
        assert batch.num_rows <= log_rows.BATCH_ROWS
        rows = [row for row in batch.to_pylist() if row["row_kind"] == "state"]
        states += [row["state"] for row in rows]
    # Closed ones are held until they were silent for long; what is carried of each is small.
    assert len(states) == count
    assert max(len(state) for state in states if state is not None) < 4000
    gone = [
        row["state"] for batch in read(tiny(count), 2**62) for row in batch.to_pylist() if row["row_kind"] == "state"
    ]
    assert gone == [None] * count


def long(frames: int) -> Iterator[list[Any]]:
    """One connection of v3 with messages of 115 bytes in full segments, acked now and then."""
    yield segment(0, 1, C, 2**32 - 1, SYN)
    at, answered, now = 0, 1, 1
    for question, answer in ((HELLO, Ok(1 << 31)), (Notify(1, b"one"), NotifyAck(1, 1, 0))):
        asked, told = encode(question, V3), encode(answer, V3)
        yield segment(0, now + 1, C, at, ACK, asked)
        yield segment(0, now + 2, S, answered, ACK, told)
        at, answered, now = at + len(asked), answered + len(told), now + 2
    stream = bytearray()
    for number in range(1, frames + 1):
        stream += encode(Message(1, number, None, 7, b"key", b"x" * 80), V3)
        while len(stream) >= 1448 or (number == frames and stream):
            now += 1
            yield segment(0, now, C, at % 2**32, ACK, bytes(stream[:1448]))
            at += len(stream[:1448])
            del stream[:1448]
        if number % 1000 == 0:
            now += 1
            data = encode(Ack(0, (StreamMessage(1, number - 20),)), V3)
            yield segment(0, now, S, answered % 2**32, ACK, data)
            answered += len(data)


@pytest.mark.property
def test_of_a_long_connection_little_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = 40_000
    seen = messages = 0
    largest = 0
    taken = flow_log.FlowLog.flush

    def flush(self: flow_log.FlowLog) -> None:
        nonlocal largest
        largest = max(largest, self._pieces.size)
        taken(self)

    monkeypatch.setattr(flow_log.FlowLog, "flush", flush)
    state = None
    for batch in read(long(frames), 10**9):
        assert batch.num_rows < 2 * log_rows.BATCH_ROWS
        for row in batch.select(["row_kind", "state"]).to_pylist():
            messages += row["row_kind"] == "message"
            seen += row["row_kind"] == "violation"
            state = row["state"] or state
    assert messages == frames + 4 + frames // 1000
    assert seen == 0
    assert largest < flow_log.RUN_BYTES + 1500
    # The acked ids are let go of, and of the bytes only the last are kept to be compared.
    assert state is not None
    assert len(state) < 200_000


def test_windows_without_a_segment_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    original = flow_log.FlowLog.end_window

    def end_window(self: flow_log.FlowLog, window: Window) -> None:
        ended.append(window.name)
        original(self, window)

    monkeypatch.setattr(flow_log.FlowLog, "end_window", end_window)
    idle = TcpOptions().idle_ns
    windows = tuple(Window(f"{number:05}", (number + 1) * idle) for number in range(10_000))
    source = SourceLog(log.starter(WallarooOptions(), b"key"), TcpOptions(), windows)
    early, late = segment(0, 1000 * idle + 1, C, 0, SYN), segment(0, 5000 * idle + 1, C, 9, SYN)
    early[2], late[2] = windows[1000].name, windows[5000].name
    rows = [
        row
        for batch in read_segments(batches([early, late]), {"test": source}, schema.SCHEMA)
        for row in batch.to_pylist()
    ]
    assert ended == [windows[number].name for number in (1000, 1001, 5000, 5001)]
    told = [row["window_start"] for row in rows if row["row_kind"] == "connection"]
    assert told == ended


# Carried state


def state_of_a_flow() -> str:
    rows = [row for batch in read(long(50), 10**9) for row in batch.to_pylist()]
    (state,) = [row["state"] for row in rows if row["row_kind"] == "state"]
    assert isinstance(state, str)
    return state


def go_on(state: str) -> None:
    log_ = Log(schema.SCHEMA)
    flow = segment(0, 1, C, 0, 0)[1]
    flow_log.FlowLog(log_, log.starter(WallarooOptions(), b"key"), "test", flow, TcpOptions(), state)


def test_carried_state_that_was_cut_or_garbled_says_so() -> None:
    state = state_of_a_flow()
    go_on(state)
    for size in range(0, len(state), len(state) // 50):
        with pytest.raises(StateDamagedError, match="run the window before it again"):
            go_on(state[:size])
    with pytest.raises(StateDamagedError):
        go_on(state.replace('"state"', '"stat"', 1))
    for old, new in (('\\"state\\"', '\\"stat\\"'), ('\\"version\\"', '\\"vers\\"'), ('"version":2', '"version":9')):
        assert old in state
        with pytest.raises((StateDamagedError, StateVersionError)):
            go_on(state.replace(old, new, 1))


@pytest.mark.property
def test_carried_state_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MAX_STREAMS", 300)
    monkeypatch.setattr(memory, "MAX_IDS", 3000)
    taken = Taken().say(C, HELLO).say(S, Ok(1 << 31))
    for number in range(500):
        taken.say(C, Notify(number, b"stream %d" % number)).say(S, NotifyAck(1, number, 0))
    for number in range(1, 30):
        taken.say(C, *(Message(stream, number, None, 1, None, b"x") for stream in range(300)))
    # An unfinished frame on each side, too.
    for direction in Direction:
        taken.say(direction, (16_384).to_bytes(4, "big") + b"\5" + bytes(16_000))
    # Of a stream some 400 bytes, of an id some 30, of a byte that waits two.
    assert len(taken.dialogue.snapshot()) < 300 * 700 + 3000 * 40 + 4 * 17_000
