"""Frames that a hole cuts behind their header: each costs itself alone, and what stands behind it is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hyperframe.frame import HeadersFrame, PushPromiseFrame, SettingsFrame
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.carried import carry
from tests.support.hiero_captures import judge_landed
from tests.support.landed import landed_packets
from tests.support.searches import fast_first
from wirehouse_codecs.core.rules import Severity
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.profiles import DEFAULT_PORT
from wirehouse_codecs.hiero.rules import RULE
from wirehouse_codecs.hiero.simulator.http2_peer import Peer
from wirehouse_codecs.hiero.simulator.simulator import SimulatorConfig, simulate
from wirehouse_codecs.hiero.wire.grpc import events as grpc
from wirehouse_codecs.hiero.wire.http2 import events as http2
from wirehouse_codecs.hiero.wire.http2.events import Block, Headers, Missing
from wirehouse_codecs.hiero.wire.http2.frames import CUT, HEADER_BYTES, PREFACE
from wirehouse_codecs.hiero.wire.http2.reader import Reader
from wirehouse_codecs.hiero.wire.spans import Undecodable
from wirehouse_codecs.tcp.endpoints import Direction

C, S = Direction.CLIENT, Direction.SERVER
PATH = "/org.hiero.block.api.BlockStreamPublishService/publishBlockStream"
#: The headers of Ethernet, IPv4 and TCP without options.
HEADERS_BYTES = 54
Frames = list[tuple[Direction, bytes]]
Script = list[tuple[Direction, bytes, tuple[int, int] | None]]


def frames_of(side: Direction, *sent: bytes) -> Frames:
    """Each frame by itself; the preface is one too."""
    found: Frames = []
    for data in sent:
        at = len(PREFACE) if data.startswith(PREFACE) else 0
        if at:
            found.append((side, data[:at]))
        while at < len(data):
            end = at + HEADER_BYTES + int.from_bytes(data[at : at + 3], "big")
            found.append((side, data[at:end]))
            at = end
    return found


def said(wire: Any, frames: Iterable[tuple[Direction, bytes, tuple[int, int] | None]]) -> Any:
    """The script of frames, each without the bytes of its hole."""
    script = wire.script()
    for side, frame, hole in frames:
        if hole is None:
            script.say(side, frame)
            continue
        begin, end = hole
        script.say(side, frame[:begin]).miss(side, end - begin)
        if end < len(frame):
            script.say(side, frame[end:])
    return script


def whole(frames: Frames) -> Script:
    return [(side, frame, None) for side, frame in frames]


def read(wire: Any, script: Any) -> list[http2.Event]:
    reader = Reader()
    events: list[http2.Event] = []
    for one in script.said:
        events += reader.hole(one) if isinstance(one, wire.Hole) else reader.receive([one])
    return events + reader.finish(wire.LAST)


def opened(**options: Any) -> tuple[Peer, Peer, Frames]:
    """A call that was opened and answered."""
    client, server = Peer(C, **options), Peer(S, **options)
    frames = frames_of(C, client.start({})) + frames_of(S, server.start({}))
    frames += frames_of(C, client.acknowledge_settings(), client.request(PATH, [("a", "1" * 30)])[1])
    return client, server, frames + frames_of(S, server.response(1, [("b", "2" * 30)]))


def content(number: int) -> bytes:
    """A message as the block stream has them: one field that fills it."""
    return b"\x0a\x14" + bytes([number + 1] * 20)


@st.composite
def talks(draw: st.DrawFn) -> tuple[Frames, dict[int, tuple[int, Direction, bytes]]]:
    """The frames of a legal connection, and which of them hold a message: its call, its side and what it says."""
    options = {
        "padding": draw(st.sampled_from([None, 0, 7])),
        "priority": draw(st.booleans()),
        "block_bytes": draw(st.sampled_from([20, 16384])),
    }
    client, server, frames = opened(**options)
    frames += frames_of(C, client.request(PATH, [("a", "3" * 30)])[1])
    frames += frames_of(S, server.response(3, [("b", "2" * 30)]))
    messages = {}
    for number in range(draw(st.integers(2, 12))):
        side, call = draw(st.sampled_from([(C, client), (S, server)])), draw(st.sampled_from([1, 3]))
        other = draw(st.sampled_from([None, side[1].ping(), side[1].window_update(0, 9), side[1].settings({4: 99999})]))
        frames += [] if other is None else frames_of(side[0], other)
        messages[len(frames)] = call, side[0], content(number)
        frames += frames_of(side[0], side[1].messages(call, content(number)))
    frames += frames_of(S, server.trailers(1, 0, "fine", [("c", "4" * 30)]))
    frames += frames_of(C, client.reset(3), client.go_away(0, 0, b"over"), client.ping())
    return frames, messages


@st.composite
def cut_talks(draw: st.DrawFn) -> tuple[Frames, Script, dict[int, tuple[int, Direction, bytes]]]:
    """Such a connection, and the same with holes in the content of frames."""
    frames, messages = draw(talks())
    cut = whole(frames)
    with_content = [at for at, (_, frame) in enumerate(frames) if len(frame) > HEADER_BYTES and frame != PREFACE]
    for at in draw(st.lists(st.sampled_from(with_content), min_size=1, max_size=4, unique=True)):
        side, frame = frames[at]
        begin = draw(st.integers(HEADER_BYTES, len(frame) - 1))
        cut[at] = side, frame, (begin, draw(st.integers(begin + 1, len(frame))))
    return frames, cut, messages


@given(talk=cut_talks())
@settings(max_examples=150)
def test_a_cut_frame_costs_itself_alone(
    wire: Any, talk: tuple[Frames, Script, dict[int, tuple[int, Direction, bytes]]]
) -> None:
    frames, cut, messages = talk
    script = said(wire, cut)
    events, full = read(wire, script), read(wire, said(wire, whole(frames)))
    assert not [one for one in events if isinstance(one, http2.Lost)]
    assert {one.reason for one in events if isinstance(one, Undecodable)} <= {CUT}
    blocks, all_blocks = (
        [(one.direction, one.stream_id, one.block, one.end_stream) for one in found if isinstance(one, Headers)]
        for found in (events, full)
    )
    assert blocks == all_blocks
    resets, all_resets = (
        [(one.direction, one.stream_id) for one in found if isinstance(one, http2.Reset)] for found in (events, full)
    )
    assert resets == all_resets
    told = wire.read_however_cut(script.said)
    wire.balance(script.said)
    assert wire.whole(wire.stitched(wire.cut(script.said, 11))) == wire.whole(wire.read(script.said))
    for call, side in ((call, side) for call in (1, 3) for side in Direction):
        own = [(at, data) for at, (of, by, data) in messages.items() if (of, by) == (call, side)]
        found = wire.messages(told, call, side)
        # A hole in the padding costs no message.
        assert [data for at, data in own if cut[at][2] is None or data in found] == found


@pytest.mark.parametrize("end_headers", [True, False])
@pytest.mark.parametrize("cut", [(9, 12), (15, 40)])
def test_a_cut_header_block_has_no_fields_and_its_table_is_lost(
    end_headers: bool, cut: tuple[int, int], wire: Any
) -> None:
    client, _, frames = opened(block_bytes=16384 if end_headers else 45)
    request = next(at for at, (side, frame) in enumerate(frames) if side is C and frame[3] == HeadersFrame.type)
    script = whole([*frames, *frames_of(C, client.request(PATH, [("a", "1" * 30)])[1])])
    script[request] = C, frames[request][1], cut
    first, answer, second = (one for one in read(wire, said(wire, script)) if isinstance(one, Headers))
    assert (first.block, first.fields, first.complete) == (Block.REQUEST, (), False)
    assert answer.complete
    assert (second.block, second.stream_id, second.complete) == (Block.REQUEST, 3, False)
    assert (b"?", b"") in second.fields
    opening = [one for one in wire.read(said(wire, script).said) if isinstance(one, grpc.Opened)]
    assert [one.path for one in opening] == [None, None]


def test_a_hole_over_the_length_of_the_padding_costs_the_frame(wire: Any) -> None:
    client, _, frames = opened(padding=200)
    padded = client.messages(1, content(0))
    ends = frames_of(C, client.data(1, grpc.message(content(1)), end=True))
    script = said(wire, [*whole(frames), (C, padded, (9, 12)), *whole(ends)])
    (missing,) = (one for one in read(wire, script) if isinstance(one, Missing))
    assert (missing.byte_end - missing.byte_start, missing.frame_ends, missing.sized) == (3, True, False)
    assert wire.messages(wire.read(script.said), 1, C) == [content(1)]


def test_a_hole_may_reach_into_padding_or_to_the_end_of_a_frame(wire: Any) -> None:
    client, _, frames = opened(padding=50)
    first = client.messages(1, content(0))
    second = client.messages(1, content(1))
    for hole in ((20, 60), (20, len(first)), (30, 31), (10, len(first) - 1)):
        script = said(wire, [*whole(frames), (C, first, hole), (C, second, None)]).said
        assert wire.messages(wire.read(script), 1, C) == [content(1)], hole
        wire.balance(script)


def test_a_hole_beyond_the_frame_or_in_its_header_loses_the_place(wire: Any) -> None:
    client, _, frames = opened()
    data = client.ping() + client.messages(1, content(0))
    for begin, end in ((12, 18), (12, 20), (5, 10), (5, 17)):
        script = wire.script()
        for side, frame in frames:
            script.say(side, frame)
        script.say(C, data[:begin]).miss(C, end - begin).say(C, data[end:])
        assert [type(one) for one in read(wire, script) if isinstance(one, http2.Lost)] == (
            [] if end <= HEADER_BYTES + 8 and begin >= HEADER_BYTES else [http2.Lost]
        )


def test_settings_that_were_cut_may_have_allowed_anything(wire: Any) -> None:
    client, server, frames = opened()
    told = server.settings({SettingsFrame.MAX_FRAME_SIZE: 60_000})
    client.data_bytes = 60_000
    large = b"\x0a\x80\xea\x01" + bytes(30_000)
    script = said(wire, [*whole(frames), (S, told, (10, 12)), *whole(frames_of(C, client.messages(1, large)))]).said
    assert wire.messages(wire.read(script), 1, C) == [large]


def test_a_promise_that_was_cut_is_none(wire: Any) -> None:
    _, server, frames = opened()
    promise = PushPromiseFrame(1, 2, b"\x82" * 20, flags=["END_HEADERS"]).serialize()
    rest = whole(frames_of(S, server.messages(1, content(0))))
    script = said(wire, [*whole(frames), (S, promise, (20, 25)), *rest])
    assert [one.stream_id for one in read(wire, script) if isinstance(one, Headers)] == [1, 1]
    assert wire.messages(wire.read(script.said), 1, S) == [content(0)]


def test_what_a_cut_frame_leaves_is_in_the_snapshot(wire: Any) -> None:
    client, _, frames = opened(block_bytes=45)
    script = whole([*frames, *frames_of(C, client.request(PATH, [("z", "9" * 60)])[1])])
    at = next(at for at, (side, frame, _) in enumerate(script) if at >= len(frames))
    script[at] = C, script[at][1], (20, 30)
    told = said(wire, script).said
    expected = read(wire, said(wire, script))
    state = Reader().state
    events: list[http2.Event] = []
    for one in told:
        reader = Reader(state=carry(state))
        events += reader.hole(one) if isinstance(one, wire.Hole) else reader.receive([one])
        state = reader.state
    assert events + Reader(state=carry(state)).finish(wire.LAST) == expected


# Captures


@cache
def legal(profile: str) -> list[pa.RecordBatch]:
    """Legal traffic as it was landed."""
    config = SimulatorConfig(blocks=30, block_bytes=1500, set_bytes=600, incident_rounds=1, publishers=4, subscribers=3)
    return list(landed_packets(simulate(replace(config, profile=profile, seed=5))))


def shortened(batches: Iterable[pa.RecordBatch], share: float, seed: int) -> Iterator[pa.RecordBatch]:
    """A share of the packets without their last bytes."""
    random = Random(seed)
    for batch in batches:
        at = batch.schema.names.index("data")
        data = [
            packet[: random.randint(HEADERS_BYTES, len(packet))] if random.random() < share else packet
            for packet in batch.column(at).to_pylist()
        ]
        yield batch.set_column(at, batch.schema.field(at), pa.array(data, batch.schema.field(at).type))


def snapped(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Packets of at most so many bytes."""
    for batch in batches:
        at = batch.schema.names.index("data")
        data = pc.binary_slice(batch.column(at), 0, size)
        yield batch.set_column(at, batch.schema.field(at), data)


def severe(batches: Iterable[pa.RecordBatch], profile: str) -> list[str]:
    found = judge_landed(batches, HieroOptions(profile=profile), DEFAULT_PORT, 40841).found
    return [name for name in found if name in RULE and RULE[name].severity is not Severity.NOTE]


@pytest.mark.property
@pytest.mark.parametrize("size", [60, 68, 80, 96, 128, 200, 256, 400, 1000])
@pytest.mark.parametrize("profile", ["A", "B"])
def test_what_the_snap_length_cuts_breaks_no_rule(profile: str, size: int) -> None:
    assert severe(snapped(legal(profile), size), profile) == []


@pytest.mark.property
@pytest.mark.parametrize("seed", fast_first(range(20), most=4))
@pytest.mark.parametrize("share", [0.02, 0.3])
@pytest.mark.parametrize("profile", ["A", "B"])
def test_packets_that_were_cut_break_no_rule(profile: str, share: float, seed: int) -> None:
    assert severe(shortened(legal(profile), share, seed), profile) == []
