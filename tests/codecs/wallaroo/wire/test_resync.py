"""Where frames begin in the middle of a connection."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.carried import carry
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.wallaroo.dialects import DIALECTS, V2B, V3, Dialect
from wirehouse_codecs.wallaroo.frames import (
    Ack,
    Frame,
    Hello,
    Message,
    Notify,
    Ok,
    Restart,
    Source,
    StreamMessage,
    StreamReference,
    VersionForm,
    WorkersLeft,
)
from wirehouse_codecs.wallaroo.options import WallarooOptions
from wirehouse_codecs.wallaroo.rules import RULE
from wirehouse_codecs.wallaroo.wire.messages import LENGTH_BYTES, EncodeError, decode, encode
from wirehouse_codecs.wallaroo.wire.reader import PASSED_BYTES, TAKEN_BYTES, Reader
from wirehouse_codecs.wallaroo.wire.reader_state import ReaderState, Received
from wirehouse_codecs.wallaroo.wire.resync import (
    FRAMES_IN_A_ROW,
    FRAMES_OF,
    READINGS,
    RESYNC_LIMIT,
    Start,
    resynchronise,
)

C, S = Direction.CLIENT, Direction.SERVER
Message_ = Callable[..., Message]


def stream_of(name: str, count: int, msg: Message_) -> bytes:
    frames: list[Frame] = [Notify(1, b"one"), *(msg(name, 1, n + 1, payload=b"some payload") for n in range(count))]
    return b"".join(encode(frame, DIALECTS[name]) for frame in frames)


@pytest.mark.parametrize("name", ["seed", "seed_sid", "v2a", "v2b", "v3"])
def test_frames_are_found_behind_garbage(name: str, msg: Message_) -> None:
    garbage = random.Random(1).randbytes(300)
    data = garbage + stream_of(name, FRAMES_IN_A_ROW, msg)
    start = resynchronise(data, C)
    assert (start.found, start.offset, start.byte_order) == (True, 300, DIALECTS[name].byte_order)


def test_a_short_row_waits_and_is_taken_at_the_end(msg: Message_) -> None:
    data = b"\xff" * 7 + stream_of("v3", 2, msg)
    assert resynchronise(data, C)[:2] == (7, False)
    assert resynchronise(data, C, final=True)[:2] == (7, True)
    assert resynchronise(b"\xff" * 100, C)[:2] == (100 - 4, False)


def test_a_frame_that_is_contradicted_is_not_waited_for() -> None:
    assert resynchronise(bytes([0, 0, 0x40, 0, 5]) + bytes(20), C).offset == 0
    assert resynchronise(b"\0\0\x80\0\x08" + b"\xff" * 200, C).offset > 0
    assert resynchronise(b"\0\0\x20\0\x03" + b"\xff" * 9, C, (V3,)).offset == 0
    assert resynchronise(b"\0\0\x20\0\x03" + b"\xff" * 10, C, (V3,)).offset > 0


def test_a_start_tells_how_many_bytes_it_takes_to_look_again() -> None:
    data = encode(Notify(1, b"x" * 50), V3)
    for size in range(1, len(data)):
        needed = 5 if size < 5 else 15 if size < 15 else len(data)
        assert resynchronise(data[:size], C, (V3,)) == (0, False, "big", needed)
    assert resynchronise(data, C, (V3,)).needed == len(data) + 5


# Against the readable decoder


def row(data: bytes, at: int, direction: Direction, dialect: Dialect) -> tuple[int, bool]:
    """How many frames fit from `at` on, and whether the data ends before it is known that the next one doesn't."""
    frames = 0
    while frames < FRAMES_IN_A_ROW and len(data) - at > LENGTH_BYTES:
        length = int.from_bytes(data[at : at + LENGTH_BYTES], dialect.byte_order)
        body = data[at + LENGTH_BYTES : at + LENGTH_BYTES + length]
        if not 0 < length <= min(WallarooOptions().limit(dialect, direction), RESYNC_LIMIT):
            return frames, False
        if dialect.frame_of(body[0]) not in FRAMES_OF[direction]:
            return frames, False
        if len(body) < length:
            return frames, True
        decoded = decode(body, dialect)
        flags = (decoded.frame.flags or 0) if isinstance(decoded.frame, Message) else 0
        known = not flags & ~(dialect.flags or 0) and all(flags & pair != pair for pair in dialect.forbidden_flags)
        if decoded.rule is not None or not known:
            return frames, False
        frames, at = frames + 1, at + LENGTH_BYTES + length
    return frames, True


FRAMES: list[Frame] = [
    Hello(b"0.0.1", b"c", b"program", b"i"),
    Hello(bytes(16), b"", b"p", b"i", VersionForm.GUID16),
    Hello(bytes(4), b"", b"p", b"i", VersionForm.U32),
    Notify(1, b"name"),
    Ok(3),
    Ok(3, (StreamReference(1, 5, b"one"), StreamReference(2, 5, b""))),
    Ok(3, (StreamReference(1, 5), StreamReference(2, 5))),
    Ok(3, (), (Source(b"a", b"b:1"),)),
    Ack(1),
    Ack(1, (StreamMessage(1, 2), StreamMessage(2, 2))),
    Restart(),
    Restart(b"h:1"),
    WorkersLeft(1, (b"one", b"")),
    Message(1, 1, None, 0, b"", b"p"),
    Message(1, 1, None, 0, b"key", b"p"),
    Message(1, 1, 0, None, None, b"pay"),
    Message(1, 1, 16, 9, None, b"pay"),
    Message(1, 1, 32, None, b"k", b"pay"),
    Message(1, 1, 2, None, None, None),
    Message(None, 1, 0, None, None, b"pay"),
]


def encoded(frame: Frame, dialect: Dialect) -> bytes:
    try:
        return encode(frame, dialect)
    except (EncodeError, TypeError, ValueError, KeyError):
        return b""


@st.composite
def garbled(draw: st.DrawFn) -> bytes:
    """Frames of one dialect, some of them changed, between bytes that are none."""
    dialect = draw(st.sampled_from(READINGS))
    frames = [data for data in (encoded(frame, dialect) for frame in FRAMES) if data]
    parts = draw(st.lists(st.sampled_from(frames) | st.binary(max_size=6), max_size=14))
    data = bytearray(b"".join(parts))
    for at, value in draw(st.lists(st.tuples(st.floats(0, 1), st.sampled_from([0, 1, 2, 5, 16, 255])), max_size=4)):
        if data:
            data[int(at * (len(data) - 1))] = value
    return bytes(data)


@settings(max_examples=150)
@given(garbled(), st.sampled_from(Direction), st.sampled_from([READINGS, *((each,) for each in READINGS)]))
def test_a_start_is_where_the_readable_decoder_finds_a_row(
    data: bytes, direction: Direction, dialects: tuple[Dialect, ...]
) -> None:
    rows = [[row(data, at, direction, dialect) for dialect in dialects] for at in range(len(data))]
    whole = [any(frames >= FRAMES_IN_A_ROW for frames, _ in each) for each in rows]
    start = resynchronise(data, direction, dialects)
    if start.found:
        assert whole[start.offset]
        assert not any(whole[: start.offset])
    else:
        assert not any(whole[: start.offset + 1])
        assert start.offset == len(data) or any(waits for _, waits in rows[start.offset])
    last = resynchronise(data, direction, dialects, final=True)
    ends = [any(frames >= FRAMES_IN_A_ROW or (frames and waits) for frames, waits in each) for each in rows]
    if last.found:
        assert ends[last.offset]
    # A frame of which fields already contradict each other ends no row, though the readable decoder would wait for it.
    passed = [at for at in range(last.offset) if ends[at]]
    assert all(not whole[at] for at in passed)


@settings(max_examples=60)
@given(garbled(), st.sampled_from(Direction), st.sampled_from([READINGS, *((each,) for each in READINGS)]))
def test_nothing_is_looked_at_again_before_it_says_more(
    data: bytes, direction: Direction, dialects: tuple[Dialect, ...]
) -> None:
    before: Start | None = None
    for size in range(len(data) + 1):
        start = resynchronise(data[:size], direction, dialects)
        if before is not None and size < before.offset + before.needed:
            assert start == before
        if before is not None:
            assert start.offset >= before.offset
        before = start


# The reader


def place(at: int) -> Place:
    return Place(at, 0, b"", at)


def told(data: bytes, sizes: list[int], *, cut: bool = False) -> list[Received]:
    """What is told of `data` after a hole, in pieces of these sizes and then a byte each; all at one place."""
    options = WallarooOptions(dialect="v3")
    reader = Reader(options)
    found = reader.hole(C, 7, place(1))
    at = 0
    for size in [*sizes, *[1] * len(data)]:
        if at < len(data):
            found += reader.receive(C, data[at : at + size], place(1))
            found += reader.receive(S, encode(Ack(1), V3), place(1)) if at % 2 else []
        at += size
        if cut:
            reader = Reader(options, state=carry(reader, ReaderState))
    return found + reader.finish(place(2))


@settings(max_examples=25)
@given(garbled(), st.lists(st.integers(1, 60), max_size=20))
def test_a_start_is_found_alike_in_whatever_pieces_and_windows(data: bytes, sizes: list[int]) -> None:
    assert told(data, sizes, cut=True) == told(data, sizes)
    at_once, pieces = ([one for one in told(data, each) if one.direction is C] for each in ([len(data)], sizes))
    assert pieces == at_once


def between_holes(*rows: bytes, known: tuple[int, ...] = (1,)) -> list[list[tuple[int, int]]]:
    """Where the frames are that are read of each row of bytes, between holes of 100 bytes in what the client says."""
    reader = Reader(WallarooOptions(dialect="v3"))
    reader.knows_stream = known.__contains__
    read: list[list[tuple[int, int]]] = []
    at = 0
    for row in rows:
        found = reader.hole(C, 100, place(1)) + reader.receive(C, row, place(2)) + reader.hole(C, 50, place(3))
        found += reader.finish(place(4)) if row is rows[-1] else []
        start, at = at + 100, at + 100 + len(row) + 50
        read.append([(one.byte_start - start, one.byte_end - start) for one in found if one.decoded.frame is not None])
    return read


def test_between_holes_a_frame_of_a_known_stream_that_reaches_the_next_one_is_read(msg: Message_) -> None:
    whole = encode(msg("v3", 1, 7, payload=b"some payload"), V3)
    size = len(whole)
    row = b"end of another" + whole
    assert between_holes(row) == between_holes(row + whole[:9]) == [[(14, 14 + size)]]
    assert between_holes(row, row) == 2 * [[(14, 14 + size)]]
    assert between_holes(row, known=(2,)) == between_holes(row + b"\0\0\0\0\0") == [[]]
    assert between_holes(whole + whole[:9], known=()) == [[(0, size)]], "nothing comes before it"


def test_between_holes_what_a_payload_holds_is_no_frame(msg: Message_) -> None:
    real = encode(msg("v3", 1, 7), V3)
    decoys = [encode(msg("v3", 5, 7), V3), encode(Hello(b"0.0.1", b"", b"p", b"i"), V3), encode(Notify(6, b"n"), V3)]
    for decoy in decoys:
        row = b"end of a payload" + decoy
        assert between_holes(row + real) == [[(len(row), len(row) + len(real))]]
        assert between_holes(row + b" ends here", row) == [[], []]


def test_between_holes_frames_that_name_no_stream_come_in_twos(msg: Message_) -> None:
    reader, one = Reader(WallarooOptions(dialect="v3")), encode(Ack(1), V3)
    reader.hole(S, 100, place(1))
    for count in (1, 2):
        reader.receive(S, b"end" + count * one, place(2))
        frames = [each for each in reader.hole(S, 100, place(3)) if each.decoded.frame is not None]
        assert len(frames) == count // 2 * 2


def test_bytes_that_are_no_frames_are_told_in_rows_of_one_size(msg: Message_) -> None:
    data = b"\xff" * (2 * PASSED_BYTES + 100) + stream_of("v3", 9, msg)
    for size in (len(data), 1448, 7777):
        reader = Reader(WallarooOptions(dialect="v3"))
        found = reader.hole(C, 5, place(1))
        for at in range(0, len(data), size):
            found += reader.receive(C, data[at : at + size], place(1))
        spans = [(one.byte_start - 5, one.byte_end - 5) for one in found if one.undecoded]
        assert spans == [(0, 1 << 16), (1 << 16, 2 << 16), (2 << 16, (2 << 16) + 100)]
        assert len(found) == 1 + 3 + 10


def test_a_side_waits_while_a_start_of_the_other_is_looked_for(msg: Message_) -> None:
    reader = Reader(WallarooOptions(dialect="v3"))
    ack = encode(Ack(1), V3)
    assert len(reader.receive(S, ack, place(1))) == 1
    assert len(reader.hole(C, 5, place(2))) == 1
    assert len(reader.receive(S, ack, place(3))) == 1, "nothing is held that it would pass"
    found: list[Received] = []
    for number in range(12):
        found += reader.receive(C, encode(msg("v3", 1, number + 1), V3), place(10 + 2 * number))
        found += reader.receive(S, ack, place(11 + 2 * number))
        reader = Reader(WallarooOptions(dialect="v3"), state=carry(reader, ReaderState))
    assert [one.place.record_number for one in found] == list(range(10, 34))


@pytest.mark.property
def test_no_more_than_a_bound_waits(msg: Message_) -> None:
    reader = Reader(WallarooOptions(dialect="v3"))
    reader.hole(C, 5, place(2))
    reader.receive(C, encode(msg("v3", 1, 1), V3), place(3))
    big = encode(Ack(1, tuple(StreamMessage(n, n) for n in range(1000))), V3)
    found = [one for number in range(90) for one in reader.receive(S, big, place(number))]
    assert [one.place.record_number for one in found] == list(range(90 - (1 << 20) // len(big)))
    small = [one for number in range(5000) for one in reader.receive(S, encode(Ack(1), V3), place(number))]
    assert 4900 > len(small) > 2000
    left = reader.finish(place(9))
    assert len(found) + len(small) + len(left) == 90 + 5000 + 1


def test_holes_of_both_sides_keep_their_order(msg: Message_) -> None:
    """Each side is looked for, waits, and is cut again."""
    rng = random.Random(3)
    for _ in range(25):
        options = WallarooOptions(dialect="v2b")
        whole, carried = Reader(options), Reader(options)
        rows: list[list[Received]] = [[], []]
        for number in range(120):
            direction = rng.choice([C, S])
            frame = msg("v2b", 1, number + 1) if direction is C else Ack(1)
            data = encode(frame, V2B)
            missing = rng.choice([0] * 12 + [3, 9])
            for reader, out in ((whole, rows[0]), (carried, rows[1])):
                out += (
                    reader.hole(direction, missing, place(number))
                    if missing
                    else reader.receive(direction, data, place(number))
                )
            carried = Reader(options, state=carry(carried, ReaderState))
        rows[0] += whole.finish(place(120))
        rows[1] += carried.finish(place(120))
        assert rows[0] == rows[1]
        places = [one.place.record_number for one in rows[0]]
        assert places == sorted(places)
        for direction in (C, S):
            spans = [(one.byte_start, one.byte_end) for one in rows[0] if one.direction is direction]
            assert all(one[1] <= after[0] for one, after in pairwise(spans))


def test_a_search_in_small_segments_costs_about_as_much_as_reading_them(msg: Message_) -> None:
    def spent(data: bytes, *, searching: bool) -> float:
        reader = Reader(WallarooOptions(dialect="v3"))
        if searching:
            reader.hole(C, 5, place(1))
        begin = time.process_time()
        for at in range(0, len(data), 5):
            reader.receive(C, data[at : at + 5], place(1))
        return time.process_time() - begin

    # Each begins as a frame of 24 KiB that the next ones contradict late.
    frame = encode(msg("v3", 1, 1, payload=bytes(11)), V3)
    decoy = (16_000).to_bytes(4, "big") + frame[4:]
    assert len(decoy) == len(frame)
    data = decoy * (120_000 // len(decoy))
    spent(data[:5000], searching=True)
    assert spent(data, searching=True) < 12 * spent(frame * (len(data) // len(frame)), searching=False)


V3_FRAMES = [encode(frame, V3) for frame in (Notify(1, b"n"), Message(1, 1, None, 0, b"", b"p"), Ack(1), Ok(2))]
DRAFT = encode(Hello(b"0.0.1", b"c", b"p", b"i"), V3)
DRAFTS = [encode(Hello(b"0.0001", b"c", b"p", b"i"), V3), DRAFT[:4] + b"H" + DRAFT[5:]]
INPUTS = st.tuples(
    st.sampled_from(Direction),
    st.sampled_from([*V3_FRAMES, *(9 * data for data in V3_FRAMES), *DRAFTS, bytes(5)])
    | st.binary(min_size=1, max_size=9)
    | st.integers(1, 20),
)


@settings(max_examples=120)
@given(st.lists(INPUTS, max_size=30), st.booleans(), st.sampled_from(["auto", "v3"]))
def test_each_byte_is_told_once_whatever_waits_and_is_missing(
    inputs: list[tuple[Direction, bytes | int]], late: bool, dialect: str
) -> None:
    options = WallarooOptions(dialect=dialect)
    whole, carried = Reader(options, started_late=late), Reader(options, started_late=late)
    found: list[Received] = []
    again: list[Received] = []
    total = {C: 0, S: 0}
    spans: dict[Direction, list[tuple[int, int]]] = {C: [], S: []}
    for number, (direction, said) in enumerate(inputs):
        for reader, out in ((whole, found), (carried, again)):
            if isinstance(said, int):
                out += reader.hole(direction, said, place(number))
            else:
                out += reader.receive(direction, said, place(number))
        carried = Reader(options, started_late=late, state=carry(carried, ReaderState))
        size = said if isinstance(said, int) else len(said)
        if isinstance(said, int):
            spans[direction].append((total[direction], total[direction] + size))
        total[direction] += size
    found += whole.finish(place(99))
    again += carried.finish(place(99))
    assert found == again
    assert whole._waiting_bytes == len(whole.waiting) == 0
    for direction in Direction:
        rest = whole.rest(direction)
        assert rest == carried.rest(direction)
        kept = [span for span in spans[direction] if rest is None or span[0] < rest.byte_start]
        kept += [
            (one.byte_start, one.byte_end)
            for one in found
            if one.direction is direction
            and (rest is None or one.byte_start < rest.byte_start)
            # Says that the bytes of other rows are not decoded.
            and one.decoded.rule is not RULE["dialect_unsupported"]
        ]
        bounds = sorted([span for span in kept if span[1] > span[0]] + ([rest[:2]] if rest is not None else []))
        assert [0, *(end for _, end in bounds)] == [*(start for start, _ in bounds), total[direction]]


# Rows that are shorter before the dialect is known


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("name", ["seed_sid", "v2b", "v3"])
def test_short_rows_between_holes_are_read_once_a_later_one_tells_the_dialect(
    name: str, late: bool, msg: Message_
) -> None:
    rows = [
        b"".join(encode(msg(name, 1, first + n, payload=b"some payload"), DIALECTS[name]) for n in range(count))
        for first, count in ((10, 3), (20, 2), (30, 40))
    ]
    reader, found = Reader(WallarooOptions(), started_late=late), list[Received]()
    if not late:
        found += reader.hole(C, 100, place(0))
    for number, row in enumerate(rows):
        found += reader.receive(C, row, place(2 * number + 1)) + reader.hole(C, 50, place(2 * number + 2))
        if number < 2:
            assert not found
            assert reader.unread_from(C) == 0
    ids = [each.decoded.frame.message_id for each in found if isinstance(each.decoded.frame, Message)]
    assert ids == [10, 11, 12, 20, 21, *range(30, 70)]
    assert not any(each.undecoded for each in found)
    places = [each.place.record_number for each in found if each.decoded.frame is not None]
    assert places == [1] * 3 + [3] * 2 + [5] * 40


def test_no_more_than_a_bound_is_read_again() -> None:
    reader, found = Reader(WallarooOptions(), started_late=True), list[Received]()
    garbage = random.Random(1).randbytes(PASSED_BYTES)
    for number in range(TAKEN_BYTES // PASSED_BYTES + 1):
        found += reader.receive(C, garbage, place(number)) + reader.hole(C, 1, place(number))
    assert reader.taken is None
    assert sum(len(each.undecoded) for each in found) >= TAKEN_BYTES
