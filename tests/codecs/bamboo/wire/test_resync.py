"""Looking for packets: found is what a plain search finds, and no bytes cost much."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.carried import carry
from wirehouse_codecs.bamboo.setup import Channel
from wirehouse_codecs.bamboo.wire import bymux_packets, resync
from wirehouse_codecs.bamboo.wire.bymux_packets import Packet, Type
from wirehouse_codecs.bamboo.wire.channel_reader import ChannelReader
from wirehouse_codecs.bamboo.wire.encoding import Received, packet_at
from wirehouse_codecs.bamboo.wire.messages import Propose
from wirehouse_codecs.bamboo.wire.resync import MOST_CONTENT_BYTES, Search

CHANNELS = {0: Channel.CONTROL, 1: Channel.DATA}


def begins(data: bytes, at: int, channels: Mapping[int, Channel] = CHANNELS) -> bool | None:
    """Whether packets begin at a place, told without knowing anything of other places."""
    writes = 0
    for _ in range(16):
        read = bymux_packets.read_at(data, at) if at < len(data) else None
        if read is None:
            return None
        packet, at = read.packet, read.byte_end
        if packet is None or read.wide or packet.stream_id is None or packet.stream_id not in channels:
            return False
        if packet.type is not Type.WRITE:
            continue
        if not 0 < packet.content_bytes <= MOST_CONTENT_BYTES:
            return False
        content, at = data[at : at + packet.content_bytes], at + packet.content_bytes
        reader = ChannelReader(channels[packet.stream_id])
        if any(map(is_none, reader.receive(content))) or (at <= len(data) and reader.unfinished):
            return False
        if at > len(data):
            return None
        writes += 1
        if writes == 2:
            return True
    return False


def is_none(received: Received) -> bool:
    assert not isinstance(received.packet, Propose)
    return received.rule is not None


PACKETS = [b"\x02", b"\x08\x02ab", b"\x08\x00", b"\x09\x05\x02ab", b"\x03\x05", b"\x00\x05", b"\x07\x20"]
WRITES = st.builds(
    bymux_packets.write,
    st.sampled_from([0, 1, 1, 2]),
    st.lists(st.sampled_from(PACKETS), min_size=1, max_size=20).map(b"".join),
)
PINGS = st.sampled_from([Packet(Type.PING, 1), Packet(Type.CREDIT, 0, 32)]).map(bymux_packets.encode)
JUNK = st.lists(st.sampled_from([0x20, 0x21, 0, 1, 2, 8, 3]), max_size=60).map(bytes)


@settings(max_examples=300)
@given(data=st.data(), parts=st.lists(WRITES | PINGS | JUNK | st.binary(max_size=20), min_size=1, max_size=12))
def test_found_is_what_is_found_without_remembering(data: st.DataObject, parts: list[bytes]) -> None:
    said = b"".join(parts).translate(bytes(range(160)) + bytes(96))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(said)), max_size=5)) | {len(said)})
    search, passed, begin = Search(), 0, 0
    for end in cuts:
        # As carried to the next window.
        search = carry(search) if data.draw(st.booleans()) else search
        found = search.take(said[begin:end], CHANNELS)
        while passed < end and (said[passed] >> 5 != Type.WRITE or begins(said[:end], passed) is False):
            passed += 1
        sure = passed < end and begins(said[:end], passed) is True
        assert found == (said[passed:end] if sure else None)
        if found is not None:
            break
        begin = end


@pytest.mark.parametrize("size", [1, 100, 1_400])
@pytest.mark.parametrize(
    "pattern", [b"\x21\x00", b"\x20\x00\x00", b"\x20", b"\x20\x00\xbf", b"\x21\x00\x20\x00", b"\x20\x01\x08"]
)
def test_what_begins_at_a_place_is_read_few_times(pattern: bytes, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0

    def counted(channel: Channel, data: bytes, at: int) -> Received | None:
        nonlocal read
        read += 1
        return packet_at(channel, data, at)

    monkeypatch.setattr(resync, "packet_at", counted)
    hostile = pattern * (20_000 // len(pattern))
    search = Search()
    for at in range(0, len(hostile), size):
        assert search.take(hostile[at : at + size], CHANNELS) is None
    assert read < 3 * len(hostile)
    assert len(search.state) < 3 * MOST_CONTENT_BYTES


def test_what_was_passed_is_let_go() -> None:
    search = Search()
    for _ in range(100):
        search.take(b"\x21\x00" * 1_000, CHANNELS)
    assert len(search._data) < 6 * MOST_CONTENT_BYTES
