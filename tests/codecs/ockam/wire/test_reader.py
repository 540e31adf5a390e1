"""The reader: both framings however the bytes come, holes, starts in the middle, broken lengths, hostile bytes."""

from __future__ import annotations

import itertools
import time
import tracemalloc
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.carried import carry
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.ockam.options import EnvelopeChoice, OckamOptions
from wirehouse_codecs.ockam.wire import reader as reading
from wirehouse_codecs.ockam.wire.messages import (
    CreateRequest,
    CreateResponse,
    Message,
    PullRequest,
    PullResponse,
    PushRequest,
    PushResponse,
    Status,
    StreamMessage,
    base_payload,
    encode_payload,
)
from wirehouse_codecs.ockam.wire.reader import CUT, GIVE_UP_BYTES, NO_FRAME, PASSED_BYTES, Reader, Received
from wirehouse_codecs.ockam.wire.routed import OPENING, Address, Envelope, Routed, encode, frame, local
from wirehouse_codecs.tcp.endpoints import Direction

C, S = Direction
BARE, CBOR = Envelope
REQUESTS: list[Message] = [
    CreateRequest("orders"),
    PushRequest(1, bytes(range(256)) * 2),
    PushRequest(0, b""),
    PullRequest(2, 0, 10),
]
RESPONSES: list[Message] = [
    CreateResponse("orders"),
    PushResponse(1, Status.OK, 0),
    PushResponse(0, Status.OK, 1),
    PullResponse(2, (StreamMessage(0, bytes(range(256)) * 2), StreamMessage(1, b""))),
]
SAID = {C: REQUESTS, S: RESPONSES}


def place(at: int) -> Place:
    return Place(at, 0, b"", at)


def routed(payload: bytes, envelope: Envelope = BARE, to: str = "stream", **fields: Any) -> bytes:
    """A frame of a routed message."""
    version = fields.pop("version", 1) if envelope is BARE else None
    return frame(encode(Routed(version, local(to), local("me"), payload, **fields), envelope), envelope)


def said(message: Message, envelope: Envelope = BARE) -> bytes:
    return routed(encode_payload(message), envelope)


def opening(envelope: Envelope) -> bytes:
    return OPENING if envelope is CBOR else b""


def stream(direction: Direction, envelope: Envelope) -> bytes:
    return opening(envelope) + b"".join(said(message, envelope) for message in SAID[direction])


def heartbeat(envelope: Envelope) -> bytes:
    return frame(encode(Routed(1 if envelope is BARE else None, (), (), b""), envelope), envelope)


def chunks(data: bytes, size: int) -> Iterable[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def told(
    data: bytes, size: int = 1 << 30, direction: Direction = C, *, late: bool = False, **options: Any
) -> list[Received]:
    """All that `data` says, which comes `size` bytes at a time; every byte is in one row."""
    reader = Reader(OckamOptions(**options), started_late=late)
    found = [one for part in chunks(data, size) for one in reader.receive(direction, part, place(1))]
    found += reader.finish(place(1))
    assert_whole(found, direction, data)
    return found


def assert_whole(found: Sequence[Received], direction: Direction, data: bytes) -> None:
    spans = [(one.byte_start, one.byte_end) for one in found if one.direction is direction]
    assert [begin for begin, _ in spans] + [len(data)] == [0] + [end for _, end in spans]
    for one in found:
        if one.undecoded:
            assert one.undecoded == data[one.byte_start : one.byte_end]


def messages(found: Iterable[Received]) -> list[Message]:
    return [one.decoded.message for one in found if one.decoded and one.decoded.message]


def others(found: Iterable[Received]) -> list[tuple[str | None, str | None, int]]:
    """Skip, rule and size of what is no message."""
    rest = [one for one in found if one.decoded is None or one.decoded.message is None]
    return [(one.skip, one.rule, one.byte_end - one.byte_start) for one in rest]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("envelope", Envelope)
@pytest.mark.parametrize("direction", Direction)
def test_both_framings_tell_themselves(direction: Direction, envelope: Envelope, late: bool) -> None:
    data = stream(direction, envelope)
    whole = told(data, direction=direction, late=late)
    assert messages(whole) == SAID[direction]
    for size in (1, 2, 3, 7, 100):
        assert told(data, size, direction, late=late) == whole


@pytest.mark.parametrize("envelope", Envelope)
def test_a_message_cut_anywhere_is_unfinished(envelope: Envelope) -> None:
    data = stream(C, envelope)
    bounds = [one.byte_end for one in told(data)]
    for end in range(len(data)):
        found = told(data[:end])
        whole = sum(bound <= end for bound in bounds)
        cut = end not in (0, *bounds)
        assert len(found) == whole + cut or end < 7
        if cut:
            assert found[-1].rule is None
            assert "within a frame" in found[-1].reason


@pytest.mark.parametrize("closed", [True, False])
def test_an_unfinished_frame_breaks_no_rule(closed: bool) -> None:
    reader = Reader(OckamOptions())
    assert not reader.receive(C, said(REQUESTS[0])[:-1], place(1))
    (left,) = reader.finish(place(2), closed=closed)
    assert (left.rule, left.skip, left.undecoded) == (None, None, said(REQUESTS[0])[:-1])
    assert left.reason == ("the connection closed" if closed else "the capture ends") + " within a frame"


@pytest.mark.parametrize("envelope", Envelope)
def test_a_reader_goes_on_from_its_snapshot(envelope: Envelope) -> None:
    data = {direction: b"junk" * 9 + stream(direction, envelope) for direction in Direction}
    options = OckamOptions()
    one, other = Reader(options, started_late=True), Reader(options, started_late=True)
    for at in range(0, len(data[S]), 5):
        for direction in Direction:
            part = data[direction][at : at + 5]
            assert one.receive(direction, part, place(at)) == other.receive(direction, part, place(at))
            other = Reader(options, state=carry(other.state))
            assert other.state == one.state
    assert one.hole(C, 3, place(9)) == other.hole(C, 3, place(9))
    assert one.finish(place(10)) == Reader(options, state=carry(other.state)).finish(place(10))


# The envelope


@pytest.mark.parametrize("envelope", Envelope)
def test_the_envelope_is_told_once_for_both_sides(envelope: Envelope) -> None:
    reader = Reader(OckamOptions())
    reader.receive(C, stream(C, envelope), place(1))
    assert reader.detection is not None
    assert reader.detection.name == envelope.value
    assert messages(reader.receive(S, stream(S, envelope), place(2))) == RESPONSES


def test_a_frame_of_bare_may_begin_like_an_opening() -> None:
    """A length of 256 begins with 01 00, and the address that follows may be as long as the head of an array."""
    for hop in (b"x" * 0x83, b"x" * 0x84, b"x"):
        bare = Routed(1, (Address(0, hop),), (), b"")
        padded = Routed(1, bare.onward_route, (), b"\0" * (256 - len(encode(bare, BARE)) - (len(hop) == 1)))
        data = frame(encode(padded, BARE), BARE)
        assert data[:2] == b"\x01\x00"
        (one,) = told(data, 1)
        assert one.routed == padded


def test_a_forced_envelope_is_taken_at_its_word() -> None:
    assert messages(told(stream(C, CBOR), envelope=EnvelopeChoice.CBOR)) == REQUESTS
    assert messages(told(stream(C, CBOR)[1:], envelope=EnvelopeChoice.CBOR)) == REQUESTS
    assert messages(told(stream(C, BARE), envelope=EnvelopeChoice.BARE)) == REQUESTS
    assert not messages(told(stream(C, CBOR), envelope=EnvelopeChoice.BARE))


def test_version_2_and_arrays_of_three_are_read() -> None:
    traced = routed(encode_payload(REQUESTS[0]), version=2, tracing_context="trace")
    (one,) = told(traced)
    assert one.routed is not None
    assert one.routed.tracing_context == "trace"
    body = said(REQUESTS[0], CBOR)[4:]
    three = frame(b"\x83" + body[1:-1], CBOR)
    assert messages(told(OPENING + three + three)) == [REQUESTS[0]] * 2


# Other traffic


@pytest.mark.parametrize("envelope", Envelope)
def test_other_traffic_is_passed_by_its_name(envelope: Envelope) -> None:
    parts = [
        (heartbeat(envelope), "heartbeat"),
        (bytes(envelope.length_bytes), "empty frame"),
        (routed(base_payload("ockam_ping", b"x"), envelope), "ockam_ping"),
        (routed(base_payload("error", b"x"), envelope), "error"),
        (routed(base_payload("a\nb", b"x"), envelope), "not BARE"),
        (routed(base_payload("x" * 65, b"x"), envelope), "not BARE"),
        (routed(base_payload("", b"x"), envelope), "not BARE"),
        (routed(b"\xff" * 40, envelope), "not BARE"),
        (routed(b"", envelope), "not BARE"),
    ]
    first = said(REQUESTS[0], envelope)
    found = told(opening(envelope) + first + b"".join(data for data, _ in parts) + first)[len(opening(envelope)) :]
    assert messages(found) == [REQUESTS[0]] * 2
    assert others(found) == [(name, None, len(data)) for data, name in parts]
    # Whether it is a broken rule says its address, so the bytes are there.
    assert [one.undecoded for one in found[3:-1]] == [data for data, _ in parts[2:]]


def test_a_heartbeat_may_come_first() -> None:
    assert messages(told(heartbeat(BARE) + stream(C, BARE), 1)) == REQUESTS
    assert messages(told(b"\0\0" + stream(C, BARE), 1)) == REQUESTS


@pytest.mark.parametrize("envelope", Envelope)
def test_a_malformed_message_of_a_known_protocol_breaks_a_rule(envelope: Envelope) -> None:
    bad = routed(base_payload("stream_push", b""), envelope)
    found = told(opening(envelope) + bad + said(REQUESTS[0], envelope))[len(opening(envelope)) :]
    assert (found[0].rule, found[0].undecoded) == ("payload", bad)
    assert found[0].reason == "request_id at byte 13: the uint is cut"
    assert found[0].routed is not None
    assert messages(found) == [REQUESTS[0]]


# Broken frames


@pytest.mark.parametrize("size", [1, 1 << 30])
@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("envelope", Envelope)
def test_a_frame_that_is_no_message_breaks_a_rule_alone(envelope: Envelope, at: int, size: int) -> None:
    bad = frame(b"\x03\0\0\0" if envelope is BARE else b"\x84\x80\x80\x40", envelope)
    frames = [said(message, envelope) for message in REQUESTS]
    found = told(opening(envelope) + b"".join([*frames[:at], bad, *frames[at:]]), size)[len(opening(envelope)) :]
    assert messages(found) == REQUESTS
    assert (found[at].rule, found[at].undecoded) == ("routed", bad)


@pytest.mark.parametrize("envelope", Envelope)
def test_a_last_frame_that_is_no_message_breaks_a_rule(envelope: Envelope) -> None:
    bad = frame(b"\x03\0\0\0" if envelope is BARE else b"\x84\x80\x80\x40", envelope)
    found = told(stream(C, envelope) + bad, 1)
    assert found[-1].rule == "routed"


@pytest.mark.parametrize("size", [1, 11, 1 << 30])
@pytest.mark.parametrize("envelope", Envelope)
def test_after_a_wrong_length_the_next_row_is_found(envelope: Envelope, size: int) -> None:
    """As Rust's node did it, which cut the length of large frames to 16 bits; or a length that swallows frames."""
    width = envelope.length_bytes
    first = said(REQUESTS[1], envelope)
    for wrong in (3, len(first) + 20, len(first) - 1):
        broken = wrong.to_bytes(width, "big") + first[width:]
        found = told(stream(C, envelope) + broken + stream(C, envelope)[len(opening(envelope)) :], size)
        assert messages(found) == REQUESTS * 2
        rest = [one for one in others(found) if one[0] is None]
        assert rest == [(None, "frame", len(broken))]


def test_a_length_above_the_limit_is_no_frame() -> None:
    data = b"".join([stream(C, CBOR), b"\x02\0\0\0", stream(C, CBOR)[1:]])
    found = told(data)
    assert messages(found) == REQUESTS * 2
    assert [one.reason for one in found if one.rule] == ["length 33554432, the limit is 16777216"]
    small = told(stream(C, BARE), max_frame_bytes=100)
    assert [one.rule for one in small if one.rule] == ["frame"]
    assert messages(small) == [REQUESTS[0], *REQUESTS[2:]]


@pytest.mark.parametrize(
    "junk", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 9, bytes(900), b"\x16\x03\x01" * 300, b"\xff" * 300]
)
@pytest.mark.parametrize("size", [1, 1 << 30])
def test_frames_behind_junk_are_found(junk: bytes, size: int) -> None:
    for envelope in Envelope:
        found = told(junk + stream(C, envelope) * 3, size)
        assert messages(found)[-8:] == REQUESTS * 2
        assert {one.rule for one in found} <= {None, "frame"}


def test_junk_alone_is_a_broken_frame() -> None:
    found = told(b"\xff" * (PASSED_BYTES + 10))
    assert [(one.rule, one.byte_end - one.byte_start) for one in found] == [("frame", PASSED_BYTES), (None, 10)]
    assert found[1].reason == NO_FRAME


def test_where_no_frame_ever_begins_none_is_looked_for_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "GIVE_UP_BYTES", 2 * PASSED_BYTES)
    reader = Reader(OckamOptions(), started_late=True)
    for _ in range(40):
        reader.receive(C, b"\xff" * 10_000, place(1))
    assert not reader.hole(C, 5, place(2))
    assert not reader.receive(C, stream(C, BARE), place(3))
    assert reader.rest(C) == (2 * PASSED_BYTES, 400_005 + len(stream(C, BARE)))
    assert reader.rest(S) is None
    restored = Reader(OckamOptions(), state=carry(reader.state))
    assert restored.rest(C) == reader.rest(C)
    assert not restored.finish(place(4))
    assert 2 * CBOR.max_message_bytes <= GIVE_UP_BYTES


# Holes, and starts in the middle


@pytest.mark.parametrize("envelope", Envelope)
def test_after_a_hole_anywhere_the_frames_go_on(envelope: Envelope) -> None:
    data = stream(C, envelope)
    # What is pushed has no frames in it, so each is found that is whole behind the hole.
    bounds = [one.byte_start for one in told(data)]
    for begin in range(0, len(data), 7):
        reader = Reader(OckamOptions())
        end = min(begin + 31, len(data))
        found = reader.receive(C, data[:begin], place(1))
        found += reader.hole(C, end - begin, place(2))
        found += reader.receive(C, data[end:] + data[len(opening(envelope)) :], place(3))
        found += reader.finish(place(4))
        assert [one.rule for one in found if one.rule] == []
        assert any(one.reason == CUT for one in found)
        behind = sum(bound >= end for bound in bounds)
        assert messages(found)[-behind - 4 :] == [*REQUESTS[4 - behind :], *REQUESTS]


def test_a_hole_between_frames_is_a_row_without_bytes() -> None:
    reader = Reader(OckamOptions())
    reader.receive(C, stream(C, BARE), place(1))
    (cut,) = reader.hole(C, 9, place(2))
    assert (cut.byte_start, cut.byte_end, cut.reason, cut.place) == (len(stream(C, BARE)),) * 2 + (CUT, place(2))
    behind = reader.receive(C, stream(C, BARE), place(3))
    assert behind[0].byte_start == len(stream(C, BARE)) + 9


def cut_off(sizes: Sequence[int], envelope: Envelope, kept: int) -> list[Received]:
    """A connection of pushes with so much data, of each of which no more than `kept` bytes were captured."""
    pushes = [said(PushRequest(number, bytes(size)), envelope) for number, size in enumerate(sizes)]
    reader = Reader(OckamOptions())
    found = reader.receive(C, opening(envelope) + said(REQUESTS[0], envelope), place(0))
    for number, push in enumerate(pushes):
        found += reader.receive(C, push[:kept], place(number))
        if len(push) > kept:
            found += reader.hole(C, len(push) - kept, place(number))
        reader = Reader(OckamOptions(), state=carry(reader.state))
    return found + reader.finish(place(len(sizes)))


@pytest.mark.parametrize("envelope", Envelope)
def test_a_frame_that_was_cut_off_is_passed_over_by_its_length(envelope: Envelope) -> None:
    # Between frames that were cut one alone is read, which no search for two in a row would find.
    found = cut_off([10, 900, 10, 900, 900, 10, 900], envelope, 128)
    assert [one.request_id for one in messages(found)[1:] if isinstance(one, PushRequest)] == [0, 2, 5]
    assert not [one for one in found if one.rule]
    assert sum(one.reason == CUT for one in found) == 4


@pytest.mark.parametrize("envelope", Envelope)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_the_rest_of_a_frame_behind_a_hole_is_passed_over(envelope: Envelope, size: int) -> None:
    """Also of one with two holes, in whatever pieces it comes; where no frame begins behind it one is looked for."""
    push, request = said(PushRequest(1, bytes(2000)), envelope), said(REQUESTS[0], envelope)
    for garbage in (b"", b"\xff" * 9):
        reader = Reader(OckamOptions())
        found = reader.receive(C, opening(envelope) + request + push[:300], place(0)) + reader.hole(C, 50, place(1))
        found += reader.receive(C, push[350:500], place(2)) + reader.hole(C, 100, place(3))
        behind = push[600:] + garbage + request * (3 if garbage else 1)
        for at in range(0, len(behind), size):
            found += reader.receive(C, behind[at : at + size], place(4))
        found += reader.finish(place(5))
        assert messages(found) == [REQUESTS[0]] * (4 if garbage else 2)
        assert not [one for one in found if one.rule]
        captured = len(opening(envelope) + request + behind) + 300 + 150
        assert sum(one.byte_end - one.byte_start for one in found) == captured


@pytest.mark.property
@pytest.mark.parametrize("envelope", Envelope)
def test_a_start_in_the_middle_is_found_from_any_byte(envelope: Envelope) -> None:
    data = stream(S, envelope)
    bounds = [one.byte_start for one in told(data, direction=S)][len(opening(envelope)) :]
    for begin in range(0, len(data), 3):
        whole = sum(bound >= begin for bound in bounds)
        found = told(data[begin:], 13, S, late=True)
        assert messages(found) == RESPONSES[4 - whole :]
        assert found == told(data[begin:], 1, S, late=True)


# Hostile bytes


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Frames of either envelope, with bytes changed, cut out and put in."""
    envelope = draw(st.sampled_from(Envelope))
    parts = draw(st.lists(st.sampled_from([*(said(m, envelope) for m in REQUESTS), heartbeat(envelope)]), max_size=6))
    data = bytearray(opening(envelope) + b"".join(parts))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 4))] = draw(st.binary(max_size=4))
    return bytes(data)


@settings(max_examples=150)
@given(
    data=damaged() | st.binary(max_size=300),
    size=st.integers(1, 60),
    late=st.booleans(),
    choice=st.sampled_from(EnvelopeChoice),
)
def test_every_byte_is_told_once_however_it_comes(data: bytes, size: int, late: bool, choice: EnvelopeChoice) -> None:
    assert told(data, size, late=late, envelope=choice) == told(data, late=late, envelope=choice)


@settings(max_examples=60)
@given(parts=st.lists(st.tuples(st.sampled_from(Direction), damaged(), st.integers(0, 40)), max_size=5))
def test_holes_in_damaged_connections(parts: list[tuple[Direction, bytes, int]]) -> None:
    reader = Reader(OckamOptions())
    found: list[Received] = []
    for direction, data, missing in parts:
        found += reader.receive(direction, data, place(1))
        if missing:
            found += reader.hole(direction, missing, place(1))
        reader = Reader(OckamOptions(), state=carry(reader.state))
    found += reader.finish(place(2))
    for direction in Direction:
        mine = [one for one in found if one.direction is direction]
        assert all(one.byte_end <= other.byte_start for one, other in itertools.pairwise(mine))
        total = sum(len(data) for side, data, _ in parts if side is direction)
        assert sum(one.byte_end - one.byte_start for one in mine) == total


HOSTILE = {
    "ones": b"\x01" * 20_000,
    "twos": b"\x02" * 20_000,
    "zeros": bytes(100_000),
    "headers": b"\xff\xff\x01\x01\x00\x01a\x00\xf0\xff\x03" * 3_000,
    "frames that fit and end in a frame that doesn't": (heartbeat(BARE) * 2 + b"\x10\0\x01\x40" + b"\x01" * 40) * 300,
    "arrays": b"\0\0\0\x84\x84\x80\x80\x58" * 12_000,
    "large payloads": (b"\0\x01\0\0\x84\x80\x80\x59\xff\xf8" + b"\0\0\0\x05\x83\x80\x80\x40\x00") * 5_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_cost_grows_with_the_bytes_alone(name: str) -> None:
    data = HOSTILE[name]
    began = time.perf_counter()
    whole = told(data, late=True)
    middle = time.perf_counter()
    assert told(data, 100, late=True) == whole
    ended = time.perf_counter()
    assert middle - began < 3
    assert ended - middle < 3 * (middle - began) + 1


@pytest.mark.parametrize("length", [2**16 - 1, 2**24 - 1])
def test_an_announced_length_holds_no_memory(length: int) -> None:
    envelope = BARE if length < 2**16 else CBOR
    reader = Reader(OckamOptions())
    reader.receive(C, stream(C, envelope), place(1))
    tracemalloc.start()
    for _ in range(1_000):
        reader.receive(C, b"", place(1))
    reader.receive(C, length.to_bytes(envelope.length_bytes, "big") + bytes(100), place(1))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000
