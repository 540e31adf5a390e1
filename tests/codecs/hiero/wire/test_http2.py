"""HTTP/2 as a third party reads it: frames, header blocks, settings, and what isn't as RFC 9113 has it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

import hpack
import pytest
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    HeadersFrame,
    PingFrame,
    PushPromiseFrame,
    SettingsFrame,
)

from tests.support.carried import as_text, carry
from wirehouse_codecs.hiero.simulator.http2_peer import Peer
from wirehouse_codecs.hiero.wire.http2 import events as http2
from wirehouse_codecs.hiero.wire.http2.events import Block, Bodies, Body, Gone, Headers
from wirehouse_codecs.hiero.wire.http2.reader import Reader
from wirehouse_codecs.hiero.wire.http2.streams import MAX_RESET, MAX_STREAMS
from wirehouse_codecs.hiero.wire.spans import UNDECODABLE_BYTES, Undecodable
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.reassembly import Data, Hole

C, S = Direction.CLIENT, Direction.SERVER
REQUEST = [(":method", "POST"), (":path", "/a/b"), ("x", "y" * 30)]


def feed(reader: Reader, said: Sequence[Data | Hole]) -> list[http2.Event]:
    return [event for one in said for event in (reader.hole(one) if isinstance(one, Hole) else reader.receive([one]))]


def read(wire: Any, script: Any, *, late: bool = False) -> list[http2.Event]:
    reader = Reader(started_late=late)
    return each(feed(reader, script.said) + reader.finish(wire.LAST))


def each(events: Sequence[http2.Event]) -> list[http2.Event]:
    """Bodies that were found together, one by one."""
    return [part for one in events for part in (one.each() if isinstance(one, Bodies) else (one,))]


def content(events: Sequence[http2.Event], stream_id: int = 1) -> bytes:
    bodies = (one for one in events if isinstance(one, Body) and one.stream_id == stream_id)
    return b"".join(one.run.data[one.start : one.end] for one in bodies)


def fields(events: Sequence[http2.Event]) -> list[dict[bytes, bytes]]:
    return [dict(one.fields) for one in events if isinstance(one, Headers)]


def reasons(events: Sequence[http2.Event]) -> list[str]:
    return [one.reason for one in events if isinstance(one, Undecodable)]


def header_frame(stream_id: int, block: bytes, *flags: str) -> bytes:
    return HeadersFrame(stream_id, block, flags=["END_HEADERS", *flags]).serialize()


def ended(*frames: Frame) -> bytes:
    frames[-1].flags.add("END_HEADERS")
    return b"".join(frame.serialize() for frame in frames)


# Frames


@pytest.mark.parametrize("padding", [None, 0, 1, 255])
@pytest.mark.parametrize("priority", [False, True])
@pytest.mark.parametrize("block_bytes", [1, 20, 16384])
def test_frames_with_all_their_trimmings(padding: int | None, priority: bool, block_bytes: int, wire: Any) -> None:
    peer = Peer(C, padding=padding, priority=priority, block_bytes=block_bytes, data_bytes=7)
    stream_id, request = peer.request("/a/b", [("x", "y")])
    script = wire.script().say(C, peer.start({}), request, peer.ping(), peer.window_update(0, 9))
    script.say(C, peer.data(stream_id, b"0123456789" * 3), peer.data(stream_id, b"", end=True))
    events = read(wire, script)
    (headers,) = (one for one in events if isinstance(one, Headers))
    assert (headers.block, headers.complete, headers.end_stream) == (Block.REQUEST, True, False)
    assert dict(headers.fields)[b":path"] == b"/a/b"
    assert content(events) == b"0123456789" * 3
    bodies = [one for one in events if isinstance(one, Body)]
    assert [one.end_stream for one in bodies] == [False] * (len(bodies) - 1) + [True]
    assert not reasons(events)


def test_frames_of_unknown_type_are_ignored(wire: Any) -> None:
    peer = Peer(C)
    script = wire.script().say(C, peer.start(), b"\0\0\3\x10\0\0\0\0\0u=1", peer.request("/a/b")[1])
    reader = Reader()
    events = feed(reader, script.said)
    assert len(events) == 1
    assert reader.framing_bytes(C) == script.at[C]


def test_a_stream_ends_by_both_sides(wire: Any) -> None:
    client, server = Peer(C), Peer(S)
    script = wire.script().say(C, client.start(), client.request("/a/b")[1], client.data(1, b"x", end=True))
    script.say(S, server.start(), server.response(1), server.data(1, b"y"), server.trailers(1))
    events = read(wire, script)
    blocks = [one.block for one in events if isinstance(one, Headers)]
    assert blocks == [Block.REQUEST, Block.RESPONSE, Block.TRAILERS]
    assert isinstance(events[-1], Gone)
    assert events[-1].ended
    late = wire.script()
    late.at = script.at
    late.say(S, server.data(1, b"z"))
    reader = Reader()
    assert reasons(feed(reader, script.said + late.said)) == ["stream 1 is not open"]


def test_an_error_ends_a_stream_or_the_connection(wire: Any) -> None:
    client, server = Peer(C), Peer(S)
    script = wire.script().say(C, client.start(), client.request("/a/b")[1], client.reset(1, 8), client.reset(7))
    script.say(S, server.start(), server.go_away(1, 2, b"why"))
    events = read(wire, script)
    resets = [(one.stream_id, one.code) for one in events if isinstance(one, http2.Reset)]
    assert resets == [(1, 8)]
    (away,) = (one for one in events if isinstance(one, http2.GoAway))
    assert (away.last_stream_id, away.code, away.debug_data) == (1, 2, b"why")


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"\0\0\5\6\0\0\0\0\0" + bytes(5), "PING"),
        (b"\0\0\6\4\0\0\0\0\1" + bytes(6), "Stream ID must be zero"),
        (b"\0\0\1\4\1\0\0\0\0\0", "SETTINGS"),
        (b"\0\0\0\1\4\0\0\0\0", "Stream ID must be non-zero"),
        (b"\0\0\3\1\x0c\0\0\0\1\x09ab", "Padding"),
        (b"\0\0\3\0\x08\0\0\0\1\x09ab", "more padding than bytes"),
        (b"\0\0\0\0\x08\0\0\0\1", "a padded frame without padding"),
        (b"\0\0\1\0\0\0\0\0\5a", "stream 5 is not open"),
        (b"\0\0\1\0\0\0\0\0\0a", "stream 0 is not open"),
        (b"\0\0\1\x09\4\0\0\0\1a", "CONTINUATION without a header block"),
    ],
)
def test_a_frame_that_can_not_be_costs_itself_alone(frame: bytes, reason: str, wire: Any) -> None:
    peer = Peer(C)
    script = wire.script().say(C, peer.start(), peer.request("/a/b")[1], frame, peer.data(1, b"abc"))
    events = read(wire, script)
    assert [reason.lower() in told.lower() for told in reasons(events)] == [True]
    assert content(events) == b"abc"


# Settings


def test_frames_are_as_large_as_the_other_side_allows(wire: Any) -> None:
    peer = Peer(C)
    frame = DataFrame(1, bytes(20_000)).serialize()
    script = wire.script().say(C, peer.start(), peer.request("/a/b")[1])
    assert content(read(wire, wire.Script(script.said[:], dict(script.at)).say(C, frame))) == b""
    script.say(S, SettingsFrame(0, settings={SettingsFrame.MAX_FRAME_SIZE: 20_000}).serialize()).say(C, frame)
    assert content(read(wire, script)) == bytes(20_000)


@pytest.mark.parametrize("size", [0, 100, 8192])
def test_header_tables_are_as_large_as_settings_allow(size: int, wire: Any) -> None:
    client, server = Peer(C), Peer(S)
    script = wire.script().say(C, client.start(), client.request("/a/b", [("m", "n")])[1])
    script.say(S, server.start({SettingsFrame.HEADER_TABLE_SIZE: size})).say(C, client.acknowledge_settings(size))
    for number in range(120):
        script.say(C, client.request("/a/b", [(f"name-{number % 70}", "v" * 40)])[1])
    told = fields(read(wire, script))
    assert len(told) == 121
    assert all(one[b":path"] == b"/a/b" for one in told)
    assert [one[f"name-{number % 70}".encode()] for number, one in enumerate(told[1:])] == [b"v" * 40] * 120


# Header blocks


def test_a_promise_counts_for_the_header_table(wire: Any) -> None:
    encoder = hpack.Encoder()
    client, server = Peer(C), Peer(S)
    promise = PushPromiseFrame(1, 2, encoder.encode([("a", "b")]), flags=["END_HEADERS"])
    script = wire.script().say(C, client.start(), client.request("/a/b")[1])
    script.say(S, server.start(), promise.serialize(), header_frame(1, encoder.encode([("a", "b")])))
    assert fields(read(wire, script))[1] == {b"a": b"b"}


@pytest.mark.parametrize(
    "block", [b"\xfe", b"\x40\x01", b"\x7f\xff\xff\xff\xff\xff\xff\xff", b"\x00\x81\xff\x01a", b"\x3f\xff\xff\x7f"]
)
def test_a_block_that_can_not_be_read_is_told_and_the_next_one_read(block: bytes, wire: Any) -> None:
    encoder = hpack.Encoder()
    script = wire.script().say(C, Peer(C).start(), header_frame(1, encoder.encode(REQUEST)))
    script.say(C, header_frame(3, block), header_frame(5, encoder.encode([*REQUEST, ("new", "value")])))
    events = read(wire, script)
    assert len(reasons(events)) == 1
    before, broken, after = (one for one in events if isinstance(one, Headers))
    assert (before.complete, broken.complete, broken.fields) == (True, False, ())
    assert not after.complete
    assert dict(after.fields)[b"new"] == b"value"


def test_a_block_that_another_frame_interrupts_is_lost(wire: Any) -> None:
    encoder = hpack.Encoder()
    first = HeadersFrame(1, encoder.encode(REQUEST)).serialize()
    script = wire.script().say(C, Peer(C).start(), first, PingFrame(0, bytes(8)).serialize())
    script.say(C, header_frame(3, encoder.encode([("x", "y")])))
    events = read(wire, script)
    assert reasons(events) == ["a header block without end"]
    assert fields(events) == [{b"?": b"y"}]


def test_blocks_are_bounded(wire: Any) -> None:
    """Neither CONTINUATION without end nor few bytes for many fields take memory or time."""
    script = wire.script().say(C, Peer(C).start(), HeadersFrame(1, b"").serialize())
    script.say(C, *[ContinuationFrame(1, bytes(16000)).serialize()] * 10)
    bomb = hpack.Encoder().encode([("a", "b" * 3000)]) + b"\xbe" * 10_000
    script.say(C, header_frame(3, bomb), header_frame(5, b"\x83"))
    reader = Reader()
    events = feed(reader, script.said)
    assert len(reader.state.sides[C].pending) < 100
    assert reasons(events)[0] == "a header block without end"
    assert reasons(events)[-1].endswith("OversizedHeaderListError")
    assert fields(events)[-1] == {b":method": b"POST"}


def test_a_capture_that_begins_later_finds_later_entries(wire: Any) -> None:
    """wire.md section 8: `:path` of the second call stands in the table from before, what is new is read."""
    peer = Peer(C)
    missed = peer.start() + peer.request("/a/b", [("hiero-correlation-id", "A-1")])[1]
    script = wire.script()
    script.at[C] = len(missed)
    script.say(C, peer.ping(), peer.ping(), peer.request("/a/b", [("hiero-correlation-id", "A-2")])[1])
    script.say(C, peer.request("/a/c", [("hiero-correlation-id", "A-2")])[1])
    second, third = (one for one in read(wire, script, late=True) if isinstance(one, Headers))
    assert (second.complete, third.complete) == (False, False)
    assert second.fields.count((b"?", b"")) >= 1
    assert (b":method", b"POST") in second.fields
    assert b"A-2" in dict(second.fields).values() or b"A-2" in [value for _, value in second.fields]
    assert b"/a/c" in [value for _, value in third.fields]


# Places that are lost


def test_the_next_frames_are_found_behind_garbage(wire: Any) -> None:
    peer = Peer(C)
    start = wire.script().say(C, peer.start(), peer.request("/a/b")[1])
    frames = [peer.data(1, b"abc"), peer.window_update(0, 1), peer.ping(), peer.data(1, b"def", end=True)]
    for garbage in (b"\xff" * 9, b"\xff" * 1000, bytes(range(255, -1, -1)) * 5, b"\xff" * 9 + bytes(1000)):
        script = wire.Script(start.said[:], dict(start.at)).say(C, garbage, *frames)
        events = read(wire, script)
        assert content(events) == b"abcdef"
        (lost,) = (one for one in events if isinstance(one, Undecodable))
        assert lost.data == garbage


@pytest.mark.property
def test_looking_for_frames_costs_little_for_every_byte(wire: Any) -> None:
    """Garbage is told in rows of one size, and what looks like frames doesn't make it slower."""
    near = b"\x00\x3f\xff\x00\x00\x00\x00\x00\x01"
    for garbage in (bytes(1 << 19), near * (1 << 16), b"PRI * HTT" * (1 << 16), b"\0\0\0\4\1\0\0\0\0\xff" * (1 << 16)):
        script = wire.script().say(C, *(garbage[at : at + 5000] for at in range(0, len(garbage), 5000)))
        begun = time.process_time()
        reader = Reader(started_late=True)
        events = feed(reader, script.said)
        assert time.process_time() - begun < 3
        assert len(as_text(reader.state)) < 600_000
        told = events + reader.finish(wire.LAST)
        sizes = [len(one.data) for one in told if isinstance(one, Undecodable)]
        assert sum(sizes) + reader.framing_bytes(C) + len(content(told)) == len(garbage)


def test_a_connection_that_begins_behind_garbage_begins(wire: Any) -> None:
    peer = Peer(C)
    head = b"GET / HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"
    script = wire.script().say(C, head)
    script.say(S, b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", Peer(S).start())
    script.say(C, peer.start(), peer.request("/a/b")[1], peer.data(1, b"abc"))
    events = read(wire, script)
    assert [one.data for one in events if isinstance(one, Undecodable) and one.direction is C] == [head]
    (headers,) = (one for one in events if isinstance(one, Headers))
    assert headers.complete
    assert content(events) == b"abc"


def test_tls_is_said_once_a_side(wire: Any) -> None:
    script = wire.script().say(C, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500))
    script.say(S, b"\x16\x03\x03\x00\x7a\x02\x00\x00\x76\x03\x03" + bytes(200)).say(C, b"\x17\x03\x03" + bytes(90_000))
    events = read(wire, script)
    spans = [(one.direction, one.byte_start, one.byte_end, one.reason) for one in events]  # type: ignore[union-attr]
    assert spans == [(C, 0, script.at[C], "TLS"), (S, 0, script.at[S], "TLS")]


def test_another_protocol_is_kept_as_bytes(wire: Any) -> None:
    script = wire.script().say(C, b"GET / HTTP/1.1\r\n\r\n" * 10_000).say(S, b"HTTP/1.1 200 OK\r\n\r\n")
    events = read(wire, script)
    told = [one for one in events if isinstance(one, Undecodable)]
    assert next(len(one.data) for one in told if one.direction is C) == UNDECODABLE_BYTES
    assert sum(len(one.data) for one in told) == sum(script.at.values())


def test_a_hole_within_content_costs_no_header(wire: Any) -> None:
    peer = Peer(C)
    script = wire.script().say(C, peer.start(), peer.request("/a/b", [("x", "y")])[1], peer.data(1, b"x" * 100)[:50])
    script.miss(C, 20).say(C, b"x" * 39, peer.request("/a/b", [("x", "y")])[1])
    events = read(wire, script)
    (missing,) = (one for one in events if isinstance(one, http2.Missing))
    assert (missing.byte_end - missing.byte_start, missing.stream_id) == (20, 1)
    assert [one.complete for one in events if isinstance(one, Headers)] == [True, True]
    assert not [one for one in events if isinstance(one, http2.Lost)]


# Bounds


def test_streams_are_bounded(wire: Any) -> None:
    """Of too many the one that was silent for longest is forgotten, and what comes of it is kept as bytes."""
    peer = Peer(C)
    script = wire.script().say(C, peer.start(), peer.request("/a/b")[1], peer.request("/a/b")[1])
    for _ in range(MAX_STREAMS - 1):
        script.say(C, peer.data(1, b"x"), peer.request("/a/b")[1])
    script.say(C, peer.data(3, b"x"), peer.data(1, b"x"))
    reader = Reader()
    events = feed(reader, script.said)
    assert [(one.stream_id, one.ended) for one in events if isinstance(one, Gone)] == [(3, False)]
    assert reasons(events) == ["stream 3 is not open"]
    assert len(reader.state.streams.known) == MAX_STREAMS


def test_streams_that_were_reset_wait_for_a_while(wire: Any) -> None:
    peer = Peer(C)
    script = wire.script().say(C, peer.start())
    for _ in range(MAX_RESET + 1):
        stream_id, request = peer.request("/a/b")
        script.say(C, request, peer.reset(stream_id))
    events = read(wire, script)
    assert [(one.stream_id, one.ended) for one in events if isinstance(one, Gone)] == [(1, True)]


def test_snapshots_hold_everything(wire: Any) -> None:
    """At every byte of a connection with all kinds of frames, and of one that begins late."""
    client, server = Peer(C, padding=2, block_bytes=30, priority=True), Peer(S)
    script = wire.script().say(C, client.start(), client.request("/a/b", REQUEST)[1]).say(S, server.start())
    script.say(S, server.response(1)).say(
        C, client.data(1, b"abcdef"), b"\xff" * 12, client.request("/a/b", REQUEST)[1]
    )
    script.say(C, client.data(3, b"x" * 20), client.ping(), client.ping(), client.data(3, b"y", end=True))
    script.say(S, server.trailers(1), server.reset(1, 0), server.response(3), server.go_away(3))
    for late in (False, True):
        expected = feed(Reader(started_late=late), wire.cut(script.said, 1))
        state = Reader(started_late=late).state
        told: list[http2.Event] = []
        for one in wire.cut(script.said, 1):
            reader = Reader(state=carry(state))
            told += reader.receive([one])
            state = reader.state
        assert told == expected
        assert not list(itertools.filterfalse(lambda one: isinstance(one, tuple), told))


# First bytes that are missing


def test_a_server_whose_settings_are_missing_is_read_from_its_first_frames_on(wire: Any) -> None:
    """What it answers before the request came is of the request's stream."""
    client, server = Peer(C), Peer(S)
    stream_id, request = client.request("/a/b", [])
    script = wire.script().say(C, client.start({}))
    script.say(S, server.response(stream_id), server.data(stream_id, b"one"), server.ping())
    script.say(C, request).say(S, server.trailers(stream_id))
    events = read(wire, script)
    assert [one.direction for one in events if isinstance(one, http2.Lost | http2.Placed)] == [S, S]
    assert content(events, stream_id) == b"one"
    kinds = [(one.direction, one.block) for one in events if isinstance(one, Headers)]
    assert kinds == [(S, Block.RESPONSE), (C, Block.REQUEST), (S, Block.TRAILERS)]
    assert reasons(events) == []


def test_a_stream_that_only_the_server_named_closes_no_lower_ones(wire: Any) -> None:
    client, server = Peer(C), Peer(S)
    stream_id, request = client.request("/a/b", [])
    script = wire.script().say(C, client.start({}))
    script.say(S, server.data(stream_id + 8, b"one") * 3).say(C, request)
    assert [one.stream_id for one in read(wire, script) if isinstance(one, Headers)] == [stream_id]
