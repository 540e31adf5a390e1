"""Calls and messages from the bytes of a connection: the vectors, compression, and what is not as it should be."""

from __future__ import annotations

import gzip
import itertools
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.carried import as_text
from tests.support.searches import fast_first
from wirehouse_codecs.hiero.simulator.http2_peer import Peer
from wirehouse_codecs.hiero.wire import compression, spans
from wirehouse_codecs.hiero.wire.grpc import events as grpc
from wirehouse_codecs.hiero.wire.grpc import reader as grpc_reader
from wirehouse_codecs.hiero.wire.grpc.reader import Reader as GrpcReader
from wirehouse_codecs.hiero.wire.http2 import header_blocks, reader, streams
from wirehouse_codecs.hiero.wire.http2 import side as http2_side
from wirehouse_codecs.hiero.wire.http2.frames import HEADER_BYTES
from wirehouse_codecs.hiero.wire.spans import Undecodable
from wirehouse_codecs.simulate.script import Conversation, Disturbances, Send, disturb, segments
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.reassembly import Data, TcpSegment

C, S = Direction.CLIENT, Direction.SERVER
VECTORS = Path(__file__).parents[3] / "vectors" / "hiero"
CAPTURES = sorted(path.relative_to(VECTORS).as_posix() for path in VECTORS.rglob("*.pcap"))
SMALL = [name for name in CAPTURES if "happy" not in name]
PATH = "/org.hiero.block.api.BlockStreamPublishService/publishBlockStream"
#: Messages as the block stream has them: one field that fills them.
ONE, TWO, THREE = (b"\x0a" + bytes([size]) + bytes(range(1, size + 1)) for size in (20, 40, 60))


def capture(name: str, wire: Any) -> tuple[dict[str, Any], dict[int, Any]]:
    expected = json.loads((VECTORS / name).with_suffix(".expected.json").read_text())
    ports = {call["server_port"] for call in expected["rpcs"]}
    return expected, {port: wire.delivered(own) for port, own in wire.segments(VECTORS / name, *ports).items()}


def opening(wire: Any, **options: Any) -> tuple[Peer, Peer, Any]:
    """A connection with a call that was opened and answered."""
    client, server = Peer(C, **options), Peer(S, **options)
    said = wire.script().say(C, client.start()).say(S, server.start())
    said.say(C, client.acknowledge_settings(), client.request(PATH, [("hiero-correlation-id", "A-1")])[1])
    return client, server, said.say(S, server.acknowledge_settings(), server.response(1))


# Vectors


@pytest.mark.parametrize("name", CAPTURES)
def test_the_calls_of_a_capture(name: str, wire: Any) -> None:
    expected, connections = capture(name, wire)
    told = {port: wire.read(said) for port, said in connections.items()}
    for call in expected["rpcs"]:
        events, number = told[call["client_port"]], call["h2_stream"]
        opened = [one for one in events if isinstance(one, grpc.Opened) and one.call == number]
        assert [(one.path, one.path_inferred) for one in opened] == [(call["path"], False)]
        if call["role"] == "publisher":
            assert dict(opened[0].metadata)["hiero-correlation-id"] == call["id"]
            requests = wire.messages(events, number, C)
            assert len(requests) == len(call["requests"])
            sizes = [
                one["bytes"] if "bytes" in one else len(data)
                for one, data in zip(call["requests"], requests, strict=True)
            ]
            assert sizes == [len(data) for data in requests]
        assert len(wire.messages(events, number, S)) == len(call["responses"])
        statuses = [one.status for one in events if isinstance(one, grpc.Trailers) and one.call == number]
        assert statuses == [call["grpc_status"]]
    assert not any(wire.undecodable(events) for events in told.values())


@pytest.mark.parametrize("name", [*SMALL, *fast_first((name for name in CAPTURES if name not in SMALL), count=0)])
def test_every_byte_is_told_and_cuts_change_nothing(name: str, wire: Any) -> None:
    for said in capture(name, wire)[1].values():
        wire.read_however_cut(said)
        wire.balance(said)


def test_reading_goes_on_from_a_snapshot_at_every_byte(wire: Any) -> None:
    for name in ("new/duplicate_block.pcap", "old/behind_endstream_backoff.pcap"):
        said = next(iter(capture(name, wire)[1].values()))
        assert wire.whole(wire.stitched(wire.cut(said, 3))) == wire.whole(wire.read(said))


@pytest.mark.parametrize("name", fast_first(SMALL, count=3))
def test_a_capture_that_begins_later_tells_what_is_left(name: str, wire: Any) -> None:
    """In these captures every segment begins with a frame, and every message with one."""
    for said in capture(name, wire)[1].values():
        full = wire.whole(wire.read(said))
        for first in range(0, len(said), max(1, len(said) // 10)):
            rest = said[first:]
            events = wire.read_however_cut(rest, (3,), late=True)
            wire.balance(rest, late=True)
            for side, number in itertools.product(Direction, (1, 3)):
                begins = next((one.byte_start for one in rest if one.direction is side), 1 << 40)
                left = [one for one in full if isinstance(one, grpc.MessagePart) and one.byte_start >= begins]
                own = [one.data for one in left if (one.direction, one.call) == (side, number)]
                assert wire.messages(events, number, side) == own, (first, side)


@pytest.mark.parametrize("name", fast_first(SMALL, count=3))
def test_a_segment_that_is_missing_costs_its_own_messages(name: str, wire: Any) -> None:
    def placed(events: Any) -> list[Any]:
        ours = (one for one in wire.whole(events) if isinstance(one, grpc.MessagePart) and not one.fault)
        return [(one.call, one.direction, one.byte_start, one.byte_end, one.data) for one in ours]

    for said in capture(name, wire)[1].values():
        full = placed(wire.read(said))
        for lost in range(0, len(said), max(1, len(said) // 10)):
            direction, start, data, place = said[lost]
            holed = [*said[:lost], wire.Hole(direction, start, start + len(data), place), *said[lost + 1 :]]
            events = wire.read_however_cut(holed, (6,))
            wire.balance(holed)
            spared = [one for one in full if one[1] is not direction or one[3] <= start or one[2] >= start + len(data)]
            # Where frames are looked for, those of the other side may pass them.
            assert sorted(placed(events)) == sorted(spared)


# Messages


@pytest.mark.parametrize("encoding", [None, *compression.ENCODINGS])
@pytest.mark.parametrize("data_bytes", [1, 7, 16384])
def test_messages_in_frames_of_any_size(encoding: str | None, data_bytes: int, wire: Any) -> None:
    client, _, said = opening(wire, encoding=encoding, data_bytes=data_bytes, padding=3 if data_bytes == 7 else None)
    contents = [b"", ONE, b"\x0a\x80\x08" + bytes(1024), TWO * 3, b"x"]
    said.say(C, client.messages(1, *contents, end=True))
    events = wire.read_however_cut(said.said)
    assert wire.messages(events, 1, C) == contents
    assert {one.encoding for one in events if isinstance(one, grpc.MessagePart)} == {None, encoding}
    assert sum(isinstance(one, grpc.HalfClosed) for one in events) == 1
    wire.balance(said.said)


@given(st.data())
@settings(max_examples=60)
def test_frames_that_are_found_together_are_read_as_each_by_itself(wire: Any, data: st.DataObject) -> None:
    """Of two calls and of any size; with padding, broken prefixes, compression, other frames between, and gaps."""
    client, _, said = opening(wire)
    said.say(C, client.request(PATH)[1])
    good = st.sampled_from([b"", ONE, TWO * 3, b"\x0a\x80\x08" + bytes(1024)]).map(grpc.message)
    bad = st.sampled_from([b"\7\0\0\0\1x", b"\0\xff\0\0\0", b"\1\0\0\0\5abcde", b"\0\0\0"])
    for _ in range(data.draw(st.integers(1, 8))):
        client.data_bytes = data.draw(st.sampled_from([1, 5, 30, 300, 16384]))
        client.padding = data.draw(st.sampled_from([None, None, None, 3]))
        stream_id = data.draw(st.sampled_from([1, 1, 1, 3]))
        contents = data.draw(st.lists(st.one_of(good, good, good, bad), max_size=5))
        ends = data.draw(st.integers(0, 19)) == 7
        frames = client.data(stream_id, b"".join(contents), end=ends)
        said.say(C, frames, *([client.ping()] if data.draw(st.booleans()) else []))
    late = data.draw(st.integers(0, 9)) == 7
    script = said.said[3 * late :]
    if data.draw(st.integers(0, 4)) == 3:
        lost = data.draw(st.integers(0, len(script) - 1))
        direction, start, text, at = script[lost]
        script[lost] = wire.Hole(direction, start, start + len(text), at)
    script = wire.cut(script, data.draw(st.sampled_from([50, 4000, 1 << 20])))
    with patch.object(reader, "BULK_BYTES", 1 << 40):
        expected = wire.whole(wire.read(script, late=late))
    with patch.object(reader, "BULK_BYTES", HEADER_BYTES), patch.object(reader, "MOST_SPANS", 3):
        assert wire.whole(wire.read(script, late=late)) == expected
    assert wire.whole(wire.read(script, late=late)) == expected


def test_where_a_message_stands(wire: Any) -> None:
    client, _, said = opening(wire, data_bytes=10)
    start = said.at[C]
    said.say(C, client.messages(1, b"abcdefg", b"hij"))
    # 12 and 8 bytes in frames of 10: 9 bytes of header, 10, 9, 10.
    parts = [one for one in wire.read(said.said) if isinstance(one, grpc.MessagePart)]
    assert [(one.byte_start - start, one.byte_end - start, one.last) for one in parts] == [
        (9, 19, False),
        (9, 30, True),
        (30, 38, True),
    ]


def test_a_large_message_passes_through(wire: Any) -> None:
    client, _, said = opening(wire)
    reader = GrpcReader()
    events = wire.feed(reader, said.said)
    piece, size = bytes(1 << 20), 40 << 20
    frames = client.data(1, b"\x00" + size.to_bytes(4, "big"))
    sent, given = len(frames), 0
    reader.receive([Data(C, said.at[C], frames, wire.place(50))])
    for number in range(size // len(piece)):
        frames = client.data(1, piece)
        events = reader.receive([Data(C, said.at[C] + sent, frames, wire.place(51 + number))])
        assert sum(len(one.data) for one in events if isinstance(one, grpc.MessagePart)) == len(piece)
        assert len(as_text(reader.state)) < 4096
        sent, given = sent + len(frames), given + len(piece)
    assert events[-1].last
    assert given == size


@pytest.mark.parametrize("encoding", compression.ENCODINGS)
def test_what_can_not_be_inflated(encoding: str, wire: Any) -> None:
    client, _, said = opening(wire, encoding=encoding)
    damaged = bytearray(compression.compress(TWO * 50, encoding))
    damaged[0] ^= 0xFF
    cut_off = compression.compress(TWO * 50, encoding)[:-5]
    for data in (bytes(damaged), cut_off, b"garbage"):
        said.say(C, client.data(1, b"\x01" + len(data).to_bytes(4, "big") + data))
    said.say(C, client.messages(1, ONE))
    events = wire.whole(wire.read(said.said))
    parts = [one for one in events if isinstance(one, grpc.MessagePart)]
    assert [bool(one.fault) for one in parts] == [True, True, True, False]
    assert [one.data for one in parts] == [bytes(damaged), cut_off, b"garbage", ONE]
    wire.balance(said.said)


BOMBS = {
    "gzip": zlib.compress(bytes(1 << 24), 9, 31),
    "deflate": zlib.compress(bytes(1 << 24), 9),
    "zstd": bytes(cramjam.zstd.compress(bytes(1 << 24), 19)),
    "snappy": bytes(cramjam.snappy.compress(bytes(1 << 24))),
}


@pytest.mark.parametrize("encoding", compression.ENCODINGS)
def test_bombs_are_not_inflated(encoding: str) -> None:
    told = compression.inflate(BOMBS[encoding], encoding, 1 << 22)
    assert told.pieces == ()
    assert "inflates to more than" in str(told.fault)


def test_raw_snappy_is_believed_within_limits() -> None:
    assert compression.inflate(bytes(cramjam.snappy.compress_raw(ONE)), "snappy", 100) == ((ONE,), None)
    assert compression.inflate(b"\xff\xff\xff\xff\x0f", "snappy", 1 << 40).fault
    assert compression.inflate(b"", "br", 100).fault == "compressed by 'br', which is not known"


def test_a_compressed_flag_without_encoding(wire: Any) -> None:
    client, _, said = opening(wire)
    data = compression.compress(TWO, "gzip")
    said.say(C, client.data(1, b"\x01" + len(data).to_bytes(4, "big") + data), client.messages(1, ONE))
    parts = [one for one in wire.read(said.said) if isinstance(one, grpc.MessagePart)]
    assert [(one.data, one.fault) for one in parts] == [(data, "compressed, and no header says how"), (ONE, None)]


@pytest.mark.parametrize("level", [1, 5, 6, 9])
@pytest.mark.parametrize("window", [9, 12, 15])
def test_deflate_is_told_from_the_first_bytes(level: int, window: int, wire: Any) -> None:
    client = opening(wire)[0]
    packer = zlib.compressobj(level, wbits=window)
    data = packer.compress(TWO * 50) + packer.flush()
    for start in (b"", b"\1\0\0\0\x08\x78\x9c\xff\xff"):
        late = wire.script().say(C, client.data(1, start + b"\1" + len(data).to_bytes(4, "big") + data))
        parts = [one for one in wire.read(late.said, late=True) if isinstance(one, grpc.MessagePart)]
        assert [(one.encoding, one.data) for one in parts] == [("deflate", TWO * 50)]


def test_compressed_bytes_that_are_held_are_bounded(wire: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_reader, "HELD_BYTES", 1000)
    client, _, said = opening(wire, encoding="gzip", data_bytes=100)
    said.say(C, client.data(1, b"\x01" + (5000).to_bytes(4, "big") + bytes(5000)), client.messages(1, ONE))
    events = wire.read_however_cut(said.said, (33,))
    told = [one for one in events if isinstance(one, grpc.MessagePart)]
    assert [(len(one.data), bool(one.fault)) for one in told] == [(1000, True), (len(ONE), False)]
    wire.balance(said.said)


def test_a_prefix_that_is_none_costs_its_frame(wire: Any) -> None:
    client, _, said = opening(wire)
    said.say(C, client.messages(1, ONE), client.data(1, b"\x07\0\0\0\1ab"), client.messages(1, TWO))
    said.say(C, client.data(1, b"\0\xff\xff\xff\xffab"), client.messages(1, THREE))
    events = wire.read(said.said)
    assert wire.messages(events, 1, C) == [ONE, TWO, THREE]
    reasons = [one.reason for one in wire.undecodable(events)]
    assert reasons[0] == "no message has the flag 7"
    assert reasons[2] == "a message of 4294967295 bytes is too long"
    wire.balance(said.said)


def test_a_call_that_ends_within_a_message(wire: Any) -> None:
    client, server, said = opening(wire)
    said.say(C, client.data(1, grpc.message(THREE)[:30], end=True))
    said.say(S, server.data(1, grpc.message(ONE) + b"\0\0"), server.trailers(1, 3, "not%20so"))
    events = wire.read(said.said)
    faults = [one.fault for one in events if isinstance(one, grpc.MessagePart) and one.fault]
    assert faults == ["the call ends within it"]
    assert [one.data for one in wire.undecodable(events)] == [b"\0\0"]
    trailers = [one for one in events if isinstance(one, grpc.Trailers)]
    assert [(one.status, one.message) for one in trailers] == [(3, "not so")]
    assert [one.how for one in events if isinstance(one, grpc.Closed)] == [grpc.How.ENDED]
    wire.balance(said.said)


def test_what_is_on_its_way_after_a_reset_is_read(wire: Any) -> None:
    client, server, said = opening(wire)
    said.say(C, client.messages(1, ONE), client.reset(1)).say(S, server.messages(1, TWO), server.trailers(1))
    events = wire.read(said.said)
    assert [type(one).__name__ for one in events[2:]] == ["MessagePart", "Reset", "MessagePart", "Trailers", "Closed"]
    assert wire.messages(events, 1, S) == [TWO]


def test_an_unfinished_call_ends_with_connection_or_capture(wire: Any) -> None:
    client, _, said = opening(wire)
    said.say(C, client.data(1, grpc.message(THREE)[:30]))
    for closed, how in ((True, grpc.How.CLOSED), (False, grpc.How.CAPTURE_END)):
        part, end = wire.read(said.said, closed=closed)[-2:]
        assert "ends within it" in part.fault
        assert end == grpc.Closed(wire.LAST, 1, how)


def test_secrets_do_not_leave(wire: Any) -> None:
    client = Peer(C)
    said = wire.script().say(C, client.start(), client.request(PATH, [("authorization", "Bearer hidden")])[1])
    (opened,) = (one for one in wire.read(said.said) if isinstance(one, grpc.Opened))
    assert dict(opened.metadata)["authorization"] == grpc.WITHHELD
    assert grpc.metadata_of([(b"Authorization", b"Bearer hidden")]) == (("Authorization", grpc.WITHHELD),)


def test_a_field_that_is_named_again_is_not_held_again() -> None:
    first, second = (grpc.metadata_of([(b"name", b"v" * 4_000)] * 2) for _ in range(2))
    assert {id(value) for _, value in (*first, *second)} == {id(first[0][1])}


def test_the_path_of_a_call_that_began_earlier(wire: Any) -> None:
    """It is that of the other calls, as long as they have the same."""
    client = Peer(C)
    missed = client.start() + client.request(PATH)[1]
    script = wire.script()
    script.at[C] = len(missed)
    # The table of the second call is unknown; the third writes its path anew.
    script.say(C, client.ping(), client.request(PATH)[1], client.acknowledge_settings(0), client.request(PATH)[1])
    script.say(C, client.messages(1, ONE), client.request("/x/serverStatus")[1], client.messages(5, TWO))
    script.at[S] = 1000
    server = Peer(S)
    script.say(S, server.messages(9, ONE), server.ping(), server.ping())
    events = wire.read_however_cut(script.said, late=True)
    opened = [(one.call, one.path, one.path_inferred) for one in events if isinstance(one, grpc.Opened)]
    assert opened == [
        (3, None, False),
        (5, PATH, False),
        (1, PATH, True),
        (7, "/x/serverStatus", False),
        (9, None, False),
    ]


def test_calls_are_bounded(wire: Any) -> None:
    client, _, said = opening(wire)
    said.say(C, client.data(1, grpc.message(ONE)[:9]))
    for _ in range(streams.MAX_STREAMS):
        said.say(C, client.request(PATH)[1])
    events = wire.read(said.said)
    ends = [(one.call, one.how) for one in events if isinstance(one, grpc.Closed)]
    assert ends[0] == (1, grpc.How.FORGOTTEN)
    faults = [one.fault for one in events if isinstance(one, grpc.MessagePart)]
    assert faults == [None, "the call is forgotten within it"]
    assert len(ends) == 1 + streams.MAX_STREAMS


@pytest.mark.property
def test_what_networks_and_captures_do_to_a_connection(wire: Any) -> None:
    """Segments that come late, twice or not at all, through reassembly."""
    client, server, said = opening(wire, data_bytes=900)
    contents = [b"\x0a\xc8\x01" + bytes([number]) * 200 for number in range(100)]
    for number, one in enumerate(contents):
        said.say(C, client.messages(1, one))
        if number % 10 == 9:
            said.say(S, server.messages(1, ONE), server.ping())
    sends = [Send(one.place.record_number * 1_000_000, one.direction, one.data) for one in said.said]
    ends = (Endpoint("10.0.0.1", 5000), Endpoint("10.0.0.2", wire.PORT))
    conversation = Conversation(*ends, 0, sends, segment_bytes=150)
    for seed, lost in itertools.product(range(2), (0.0, 0.02)):
        disturbances = Disturbances(seed=seed, reordered=0.1, repeated=0.1, lost=lost)
        sent = disturb(segments(conversation), disturbances, Random(seed))
        captured = [
            TcpSegment(wire.place(at), *one[1:5], 500, one.payload, len(one.payload)) for at, one in enumerate(sent)
        ]
        delivered = wire.delivered(captured)
        assert any(isinstance(one, wire.Hole) for one in delivered) == bool(lost)
        wire.balance(delivered)
        kept = wire.messages(wire.read_however_cut(delivered, (7,)), 1, C)
        assert kept == contents if not lost else set(kept) < set(contents)
        assert len(kept) > 70


# Holes


def test_a_hole_within_a_message_costs_that_one_alone(wire: Any) -> None:
    client, _, said = opening(wire)
    frame = client.messages(1, ONE, THREE, TWO)
    at = 9 + 5 + len(ONE) + 5 + 10
    said.say(C, frame[:at]).miss(C, 20).say(C, frame[at + 20 :])
    events = wire.read(said.said)
    assert wire.messages(events, 1, C) == [ONE, TWO]
    assert [one.fault for one in events if isinstance(one, grpc.MessagePart)] == [
        None,
        None,
        "20 bytes are missing",
        None,
    ]
    assert [one.data for one in wire.undecodable(events)] == [THREE[30:]]
    wire.balance(said.said)


def test_a_hole_over_a_prefix_is_found_again_in_the_frame(wire: Any) -> None:
    client, _, said = opening(wire)
    frame = client.messages(1, ONE, THREE, TWO)
    at = 9 + 5 + 10
    said.say(C, frame[:at]).miss(C, 30).say(C, frame[at + 30 :])
    assert wire.messages(wire.read(said.said), 1, C) == [TWO]
    wire.balance(said.said)


def test_nothing_in_real_blocks_looks_like_frames_or_messages(wire: Any) -> None:
    for path in sorted((VECTORS / "blocks").glob("*.blk.gz")):
        content = gzip.decompress(path.read_bytes())
        client = Peer(C)
        garbage = wire.script().say(C, content[:200_000])
        assert {type(one) for one in wire.read(garbage.said, late=True)} == {Undecodable}
        script = wire.script()
        script.at[C] = 1000
        # The middle of a message in frames, after which another one is found.
        script.say(C, client.ping(), client.data(1, content[:200_000] + grpc.message(ONE) + grpc.message(TWO)))
        events = wire.read(script.said, late=True)
        assert wire.messages(events, 1, C) == [ONE, TWO]
        assert b"".join(one.data for one in wire.undecodable(events)) == content[:200_000]


# Anything


@pytest.fixture(scope="module", params=["limits", "small_limits"])
def limits(request: pytest.FixtureRequest) -> Iterator[None]:
    """Those that are reached by little connections, too."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "small_limits":
            for module in (spans, reader, grpc_reader):
                patch.setattr(module, "UNDECODABLE_BYTES", 40)
            patch.setattr(grpc_reader, "HELD_BYTES", 60)
            patch.setattr(streams, "MAX_STREAMS", 1)
            patch.setattr(streams, "MAX_RESET", 0)
            patch.setattr(reader, "MAX_BLOCK_BYTES", 100)
            patch.setattr(header_blocks, "MAX_BLOCK_BYTES", 100)
            patch.setattr(http2_side, "MAX_BLOCK_BYTES", 100)
        yield


@pytest.mark.usefixtures("limits")
@settings(max_examples=40)
@given(data=st.data())
def test_damaged_connections(data: st.DataObject, wire: Any) -> None:
    """No crash, no byte is lost, and neither cuts nor snapshots change what is told."""
    encoding = data.draw(st.sampled_from([None, *compression.ENCODINGS]))
    late = data.draw(st.booleans())
    client, server, said = opening(wire, encoding=encoding, data_bytes=data.draw(st.sampled_from([5, 30, 16384])))
    said.say(C, client.messages(1, ONE, TWO * 4)).say(S, server.messages(1, TWO), server.trailers(1))
    said.say(C, client.request(PATH)[1], client.messages(3, THREE, ONE, end=True))
    sent = []
    for one in said.said:
        changed = bytearray(one.data)
        for at in data.draw(st.lists(st.integers(0, len(changed) - 1), max_size=2)):
            changed[at] = data.draw(st.integers(0, 255))
        what = data.draw(st.sampled_from("kkkkkh"))
        if what == "h":
            sent.append(wire.Hole(one.direction, one.byte_start, one.byte_start + len(changed), one.place))
        else:
            sent.append(one._replace(data=bytes(changed)))
    junk = data.draw(st.binary(max_size=60))
    if junk:
        sent.append(Data(C, said.at[C], junk, wire.place(90)))
    if late:
        sent = [one for one in sent if one.direction is S] + [one for one in sent if one.direction is C][1:]
    events = wire.read_however_cut(sent, (data.draw(st.integers(1, 20)),), late=late)
    wire.balance(sent, late=late)
    if data.draw(st.booleans()):
        assert wire.whole(wire.stitched(wire.cut(sent, 40), started_late=late)) == events


@settings(max_examples=60)
@given(client=st.binary(max_size=300), server=st.binary(max_size=300), late=st.booleans())
def test_bytes_of_anything(client: bytes, server: bytes, late: bool, wire: Any) -> None:
    said = wire.script().say(C, client or b"x").say(S, server or b"x").said
    wire.balance(said, late=late)
    wire.read_however_cut(said, late=late)
