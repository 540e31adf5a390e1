"""Frames whose lengths lead over holes to each other, as a snap length leaves them: they show where frames begin."""

from __future__ import annotations

from typing import Any

import pytest

from tests.codecs.hiero.wire.test_cut_frames import read
from wirehouse_codecs.hiero.simulator.http2_peer import Peer
from wirehouse_codecs.hiero.wire.grpc import events as grpc
from wirehouse_codecs.hiero.wire.http2 import events as http2
from wirehouse_codecs.hiero.wire.http2.events import Headers
from wirehouse_codecs.hiero.wire.http2.frames import HEADER_BYTES, PREFACE
from wirehouse_codecs.hiero.wire.http2.reader import Reader
from wirehouse_codecs.hiero.wire.http2.resync import MOST_GAPS, Held, may_fill_opening
from wirehouse_codecs.hiero.wire.spans import Undecodable
from wirehouse_codecs.tcp.endpoints import Direction

C = Direction.CLIENT
PATH = "/org.hiero.block.api.BlockStreamPublishService/publishBlockStream"
SMALL = b"\x0a\x06" + b"s" * 6
LARGE = b"\x0a\x80\x02" + b"l" * 256


def snapped(wire: Any, size: int, *packets: bytes) -> Any:
    """A script of packets of the client, each with at most `size` bytes captured."""
    script = wire.script()
    for packet in packets:
        script.say(C, packet[:size])
        if len(packet) > size:
            script.miss(C, len(packet) - size)
    return script


def opened() -> tuple[Peer, tuple[bytes, bytes]]:
    """A client, and its first two packets: the second begins with an acknowledgment."""
    client = Peer(C)
    return client, (client.start({}), client.acknowledge_settings() + client.request(PATH, [("a", "1" * 60)])[1])


@pytest.mark.parametrize("size", [24, 26, 35, 60, 90])
def test_whole_frames_between_cut_ones_are_read(size: int, wire: Any) -> None:
    client, packets = opened()
    said = [SMALL if number % 3 == 1 else LARGE for number in range(7)]
    script = snapped(wire, size, *packets, *(client.messages(1, one) for one in said))
    told = wire.read_however_cut(script.said)
    assert wire.messages(told, 1, C) == [SMALL] * 2
    assert wire.whole(wire.stitched(wire.cut(script.said, 11))) == wire.whole(wire.read(script.said))
    wire.balance(script.said)


def test_what_stands_before_the_frames_that_show_it_is_one_row_a_stretch(wire: Any) -> None:
    client, packets = opened()
    script = snapped(wire, 30, *packets).miss(C, 50)
    at = script.at[C]
    script.say(C, b"\xff" * 20).miss(C, 7).say(C, b"\xff" * 5, *(client.messages(1, SMALL) for _ in range(3)))
    rows = [one for one in read(wire, script) if isinstance(one, Undecodable) and one.byte_start >= at]
    assert [(one.byte_start - at, one.byte_end - at) for one in rows] == [(0, 20), (27, 32)]
    assert wire.messages(wire.read(script.said), 1, C) == [SMALL] * 3


def test_two_headers_show_nothing_unless_the_opening_leads_to_them(wire: Any) -> None:
    client, packets = opened()
    frames = client.messages(1, SMALL)
    script = snapped(wire, 30, *packets).miss(C, 50).say(C, frames).miss(C, 5)
    script = script.say(C, frames, client.messages(1, LARGE)[:100]).miss(C, 500)
    # Each stretch by itself ends within a frame, or before a hole.
    assert wire.messages(wire.read(script.said), 1, C) == [SMALL]
    opening = packets[0][: len(PREFACE)]
    for missing, expected in ((28, [SMALL]), (27, [SMALL]), (29, [])):
        script = wire.script().say(C, opening).miss(C, missing)
        script.say(C, frames, client.messages(1, LARGE)[:100])
        assert wire.messages(wire.read(script.said), 1, C) == expected, missing


def test_only_settings_and_an_update_may_fill_the_opening() -> None:
    assert [size for size in range(35) if may_fill_opening(size)] == [9, 15, 21, 22, 27, 28, 33, 34]


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_length_that_leads_elsewhere_is_no_proof(shift: int, wire: Any) -> None:
    client, packets = opened()
    script = snapped(wire, 30, *packets).miss(C, 50)
    large = client.messages(1, LARGE)
    for _ in range(5):
        script.say(C, large[:40]).miss(C, len(large) - 40 + shift)
    events = read(wire, script)
    assert not [one for one in events if isinstance(one, http2.Placed | http2.Body | http2.Missing)]


def test_a_header_that_a_hole_cuts_ends_a_chain() -> None:
    frame = b"\0\0\4\0\0\0\0\0\1abcd"
    held = Held.of(bytearray(frame * 2 + frame[:5]), 7, [(7 + 31, 90)])
    assert held.chain(0, 100) == (False, 90)
    held = Held.of(bytearray(frame * 2), 7, [(7 + 26, 90)])
    assert held.chain(0, 100) == (True, 90)
    held = Held.of(bytearray(frame[:9] * 3), 7, [(16, 20), (29, 33)])
    assert [held.chain(at, 100).believed for at in (0, 9, 18)] == [True, None, None]
    assert held.position_of(9) == 20
    assert [held.first(at) for at in (0, 1, 10)] == [0, 9, 18]


def test_a_chance_header_does_not_hide_the_frames_behind_it(wire: Any) -> None:
    client, packets = opened()
    chance = b"\x00\xf0\x00\x00\x00\x01\x88\x5f\x8b"
    script = snapped(wire, 30, *packets).miss(C, 50).say(C, chance).miss(C, 9)
    for one in (SMALL, LARGE, SMALL, LARGE, SMALL):
        frame = client.messages(1, one)
        script.say(C, frame[:40])
        if len(frame) > 40:
            script.miss(C, len(frame) - 40)
    assert wire.messages(wire.read_however_cut(script.said), 1, C) == [SMALL] * 3


def test_fields_behind_a_cut_header_block_are_unknown_and_not_wrong(wire: Any) -> None:
    client, packets = opened()
    first = client.messages(1, SMALL)
    second = client.request(PATH, [("a", "2" * 60)])[1]
    third = client.request(PATH, [("a", "1" * 60)])[1]
    script = snapped(wire, 40, *packets, first, second, first, first).say(C, third)
    blocks = [one for one in read(wire, script) if isinstance(one, Headers)]
    assert [(one.stream_id, one.complete) for one in blocks] == [(1, False), (3, False), (5, False)]
    known = {(b"a", b"1" * 60), (b":path", PATH.encode())}
    assert not [field for one in blocks for field in one.fields if field in known]
    opening = [one for one in wire.read(script.said) if isinstance(one, grpc.Opened)]
    assert [one.path for one in opening] == [None, None, None]


def test_many_holes_and_chance_headers_are_bounded(wire: Any) -> None:
    _, packets = opened()
    script = snapped(wire, 30, *packets).miss(C, 50)
    for _ in range(3 * MOST_GAPS):
        script.say(C, b"\x00\xf0\x00\x00\x00\0\0\0\1").miss(C, 3)
    reader = Reader()
    for one in script.said:
        reader.hole(one) if isinstance(one, wire.Hole) else reader.receive([one])
        assert len(reader.state.sides[C].gaps) <= MOST_GAPS
    wire.balance(script.said)


def test_frames_that_are_lost_again_and_again_need_no_recursion(wire: Any) -> None:
    _, packets = opened()
    script = snapped(wire, 30, *packets).miss(C, 50)
    begin, rows = script.at[C], 1500
    acknowledged, refused = b"\0\0\0\4\1\0\0\0\0" * 3, b"\0\0\1\xff\xff\0\0\0\0"
    size = len(acknowledged + refused) + HEADER_BYTES
    end = begin + rows * size
    for number in range(rows):
        left = end - (begin + (number + 1) * size)
        script.say(C, left.to_bytes(3, "big") + b"\0\0\0\0\0\1" + acknowledged + refused)
    script.miss(C, 9)
    assert read(wire, script)
