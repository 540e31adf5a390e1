"""Which dialect is told from which frames, where frames begin in the middle, and the reader of a connection."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.support.carried import carry
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.wallaroo.dialects import DIALECTS, Dialect
from wirehouse_codecs.wallaroo.frames import Ack, EosMessage, Frame, Hello, Message, Notify, Ok, Restart
from wirehouse_codecs.wallaroo.options import WallarooOptions
from wirehouse_codecs.wallaroo.rules import RULE
from wirehouse_codecs.wallaroo.wire.dialect_detection import Detection, Detector, byte_order_of, detect
from wirehouse_codecs.wallaroo.wire.held_frames import HELD_FRAMES
from wirehouse_codecs.wallaroo.wire.messages import encode, encode_body
from wirehouse_codecs.wallaroo.wire.reader import Reader
from wirehouse_codecs.wallaroo.wire.reader_state import ReaderState, Received

C, S = Direction.CLIENT, Direction.SERVER
AUTO = WallarooOptions()
Say = tuple[Direction, Frame]
Message_ = Callable[..., Message]
Greeting = Callable[..., Hello]


def at(record: int) -> Place:
    return Place(record, 0, b"", record)


def bodies(dialect: Dialect, frames: list[Say]) -> list[tuple[Direction, bytes]]:
    return [(direction, encode_body(frame, dialect)) for direction, frame in frames]


def told(name: str, *frames: Say) -> Detection:
    """What is detected, also by a detector that is carried over after each frame."""
    dialect = DIALECTS[name]
    said = bodies(dialect, list(frames))
    found = detect(said, dialect.byte_order)
    carried = Detector(dialect.byte_order)
    for direction, body in said:
        detection = carried.offer(direction, body)
        if detection is not None:
            assert detection == found
            break
        carried = carry(carried)
    else:
        assert carried.conclude() == found
    assert found.reason
    return found


@pytest.mark.parametrize(
    ("head", "order"),
    [
        ("30000000 48", "little"),
        ("00000030 00", "big"),
        ("00000030 48", "big"),
        ("16000000 4e", "little"),
        ("16000000 03", "big"),
        ("00000000 48", None),
        ("30303030 48", None),
        # The text's longest HELLO, and one more; so long a length needs the tag.
        ("05000400 48", "little"),
        ("06000400 48", None),
        ("05000400 4e", None),
        ("00000030", None),
    ],
)
def test_the_byte_order_of_the_first_length(head: str, order: str | None) -> None:
    assert byte_order_of(bytes.fromhex(head)) == order


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("v3", "OK has no list"),
        ("v2a", "one list"),
        ("v2b", "two lists"),
        ("sink", "v0.0.1"),
        ("sink_v2b", "two lists"),
    ],
)
def test_the_ok_frame_tells_implemented_dialects(name: str, reason: str, greeting: Greeting) -> None:
    found = told(name, (C, greeting(name)), (S, Ok(10)))
    assert found.dialect is DIALECTS[name]
    assert found.name == name.removesuffix("_v2b")
    assert reason in found.reason


def test_drafts_that_nobody_spoke_are_named(greeting: Greeting) -> None:
    dev = told("v3", (C, greeting("v3", version=b"0.0001")))
    assert (dev.dialect, dev.name) == (None, "dev")
    t1 = detect([(C, b"H" + encode_body(greeting("v3"), DIALECTS["v3"])[1:])], "big")
    assert (t1.dialect, t1.name) == (None, "t1")


def test_without_ok_a_frame_that_one_dialect_has_tells() -> None:
    assert told("v3", (C, EosMessage(1))).name == "v3"
    assert told("v2a", (S, Restart())).name == "v2a"
    assert told("v2b", (S, Restart(b"h:1")), (C, Message(1, 1, 0))).name == "v2b"


@pytest.mark.parametrize("name", ["v2b", "v3"])
@pytest.mark.parametrize("size", [0, 5, 100])
def test_without_ok_messages_are_scored(name: str, size: int, msg: Message_) -> None:
    payload = random.Random(size).randbytes(size)
    said = [(C, msg(name, 1 + n % 2, 10 * n + 1, payload=payload)) for n in range(20)]
    assert told(name, *said).name == name


def test_v3_messages_of_fifteen_and_more_are_enough_and_one_is_not(msg: Message_) -> None:
    detector = Detector("big")
    body = encode_body(msg("v3", 1, 1), DIALECTS["v3"])
    offers = [detector.offer(C, body) for _ in range(16)]
    assert offers[:15] == [None] * 15
    assert offers[15] is not None


@pytest.mark.parametrize("name", ["seed", "seed_sid"])
@pytest.mark.parametrize("notified", [True, False])
@pytest.mark.parametrize("flags", [0, 1, 2, 4, 6, 16])
def test_the_text_with_and_without_stream_id(
    name: str, notified: bool, flags: int, msg: Message_, greeting: Greeting
) -> None:
    frames: list[Say] = [(C, greeting(name)), (S, Ok(10))]
    if notified:
        frames.append((C, Notify(5, b"five")))
    payload = b"x" if flags & 2 else b"text that is long"
    found = told(name, *frames, *[(C, msg(name, 5, n + 1, flags, payload)) for n in range(3)])
    assert found.name == name


def test_an_ephemeral_message_of_id_0_on_stream_1_is_told_by_what_follows(msg: Message_) -> None:
    said: list[Say] = [
        (C, Notify(1, b"one")),
        (C, msg("seed", 1, 0, 1, b"long enough for an id")),
        (C, msg("seed", 1, 9)),
    ]
    assert told("seed", *said).name == "seed"


def test_nothing_told_is_the_last_dialect(greeting: Greeting) -> None:
    assert "no frame tells" in told("v3", (C, greeting("v3"))).reason
    assert told("seed", (C, greeting("seed"))).name == "seed"


@pytest.mark.parametrize("name", ["v2a", "seed_sid", "sink"])
def test_a_forced_dialect_is_taken_at_once(name: str, greeting: Greeting) -> None:
    found = Detector("big", name).offer(C, encode_body(greeting("v3"), DIALECTS["v3"]))
    assert found is not None
    assert (found.dialect, found.reason) == (DIALECTS[name], "forced by the configuration")
    assert Detector("big", name).conclude() == found


# The reader


def stream_of(name: str, count: int, msg: Message_) -> bytes:
    frames: list[Frame] = [Notify(1, b"one"), *(msg(name, 1, n + 1, payload=b"some payload") for n in range(count))]
    return b"".join(encode(frame, DIALECTS[name]) for frame in frames)


def connection(name: str, msg: Message_, greeting: Greeting) -> list[tuple[Direction, bytes]]:
    dialect = DIALECTS[name]
    frames: list[Say] = [(C, greeting(name)), (S, Ok(10)), (C, Notify(1, b"one"))]
    frames += [(C, msg(name, 1, n + 1, payload=b"some payload")) for n in range(12)] + [(S, Ack(3))]
    return [(direction, encode(frame, dialect)) for direction, frame in frames]


def read(reader: Reader, parts: list[tuple[Direction, bytes]], first: int = 0) -> list[Received]:
    found: list[Received] = []
    for n, (direction, data) in enumerate(parts):
        found += reader.receive(direction, data, at(first + n))
    return found


@pytest.mark.parametrize("name", DIALECTS)
def test_frames_held_back_keep_their_order_and_place(name: str, msg: Message_, greeting: Greeting) -> None:
    parts = connection(name, msg, greeting)
    reader = Reader(AUTO)
    found = read(reader, parts) + reader.finish(at(99))
    assert reader.dialect is DIALECTS[name]
    assert [received.place.record_number for received in found] == list(range(len(parts)))
    assert all(received.decoded.frame is not None and not received.undecoded for received in found)
    assert {received.direction for received in found} == {C, S}


@pytest.mark.parametrize("name", DIALECTS)
def test_a_connection_cut_anywhere_and_carried_on_gives_the_same_frames(
    name: str, msg: Message_, greeting: Greeting
) -> None:
    parts = connection(name, msg, greeting)
    whole = Reader(AUTO)
    at_once = read(whole, parts) + whole.finish(at(99))
    carried = Reader(AUTO)
    found: list[Received] = []
    for n, (direction, data) in enumerate(parts):
        for one in (data[:3], data[3:7], data[7:]):
            found += carried.receive(direction, one, at(n))
            carried = Reader(AUTO, state=carry(carried, ReaderState))
    assert found + carried.finish(at(99)) == at_once


def test_a_draft_is_one_row(greeting: Greeting) -> None:
    reader = Reader(AUTO)
    found = read(reader, [(C, encode(greeting("v3", version=b"0.0001"), DIALECTS["v3"])), (S, b"abc"), (C, b"\0" * 50)])
    assert [one.decoded.rule and one.decoded.rule.name for one in found] == ["dialect_unsupported"]
    assert found[0].undecoded
    assert reader.finish(at(9)) == []
    size = found[0].byte_end
    rule = RULE["dialect_unsupported"]
    assert (reader.rest(C), reader.rest(S)) == ((0, size + 50, rule), (0, 3, rule))
    assert reader.hole(S, 7, at(10)) == []
    assert reader.rest(S) == (0, 10, rule)
    assert Reader(AUTO, state=carry(reader, ReaderState)).rest(C) == (0, size + 50, rule)


def test_not_more_than_a_bound_is_held_back(greeting: Greeting) -> None:
    dialect = DIALECTS["v3"]
    parts = [(C, encode(greeting("v3"), dialect))] + [(C, encode(Notify(n, b"n"), dialect)) for n in range(HELD_FRAMES)]
    reader = Reader(AUTO)
    assert len(read(reader, parts[: HELD_FRAMES - 1])) == 0
    assert len(read(reader, parts[HELD_FRAMES - 1 :])) == HELD_FRAMES + 1


@pytest.mark.parametrize("name", ["seed", "seed_sid"])
def test_many_streams_are_notified_before_a_message_tells_the_dialect(
    name: str, msg: Message_, greeting: Greeting
) -> None:
    dialect = DIALECTS[name]
    frames: list[Frame] = [
        greeting(name),
        *(Notify(n << 48, b"s%d" % n) for n in range(1, 1000)),
        msg(name, 1 << 48, 7),
    ]
    reader = Reader(AUTO)
    found = read(reader, [(C, encode(frame, dialect)) for frame in frames])
    assert reader.dialect is dialect
    assert [received.decoded.frame for received in found] == frames


def test_an_unfinished_frame_is_told_at_the_end(greeting: Greeting) -> None:
    data = encode(greeting("v3"), DIALECTS["v3"])
    reader = Reader(AUTO)
    reader.receive(C, data + b"\0\0\0\x10abc", at(0))
    reader.receive(S, b"\0\0", at(1))
    found = reader.finish(at(2))
    assert [one.decoded.rule and one.decoded.rule.name for one in found] == [None, "truncated_frame", "truncated_frame"]
    assert [one.undecoded for one in found[1:]] == [b"\0\0\0\x10abc", b"\0\0"]
    assert found[1].byte_start == len(data)
    again = Reader(AUTO)
    again.receive(C, data + b"\0\0", at(0))
    assert [one.decoded.rule for one in again.finish(at(1), closed=False)] == [None, None]


def test_a_capture_that_begins_late_and_one_with_a_hole(msg: Message_) -> None:
    data = stream_of("v3", 30, msg)
    reader = Reader(AUTO, started_late=True)
    found = reader.receive(C, data[10:], at(0))
    found += reader.hole(C, 33, at(1))
    found += reader.receive(C, data[5:], at(2)) + reader.finish(at(3))
    assert reader.detection is not None
    assert reader.detection.name == "v3"
    decoded = [one for one in found if one.decoded.frame is not None]
    assert len(decoded) == 30 + 30
    assert next((one.byte_start, len(one.undecoded)) for one in found if one.undecoded) == (0, 16)
    spans = [(one.byte_start, one.byte_end) for one in found]
    covered = sum(end - start for start, end in spans)
    assert covered == len(data) - 10 + len(data) - 5


def test_after_lost_framing_nothing_is_told(greeting: Greeting) -> None:
    dialect = DIALECTS["v3"]
    reader = Reader(AUTO)
    reader.receive(C, encode(greeting("v3"), dialect), at(0))
    reader.receive(S, encode(Ok(5), dialect), at(1))
    found = reader.receive(C, bytes(4) + encode(Notify(1, b"n"), dialect), at(2))
    assert [one.decoded.rule and one.decoded.rule.name for one in found] == ["empty_frame"]
    assert reader.receive(C, encode(Notify(1, b"n"), dialect), at(3)) == []
    assert reader.hole(C, 10, at(4)) == []
    start = found[0].byte_start
    assert found[0].undecoded == bytes(4)
    assert reader.rest(C) == (start, start + 4 + 2 * 24 + 10, RULE["empty_frame"])
    assert reader.rest(S) is None
    assert Reader(AUTO, state=carry(reader, ReaderState)).rest(C) == reader.rest(C)
    assert len(reader.receive(S, encode(Ack(1), dialect), at(5))) == 1
