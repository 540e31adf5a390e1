"""The compiled loops cut as the readable readers do."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from wirehouse_codecs.bamboo import bymux, yamf
from wirehouse_codecs.bamboo.bymux import Channel, Content, Packet, Read, Reader, Type, write
from wirehouse_codecs.bamboo.messages import (
    Apology,
    Cancelled,
    ChannelReader,
    CompressedPayload,
    DataPacket,
    Metadata,
    Notify,
    PointToPoint,
    RawPayload,
    SkipBytes,
    SkipPayload,
    SkipReason,
    Switch,
    encode,
)
from wirehouse_codecs.bamboo.scan import DataPackets, contents, cut_bymux, cut_data
from wirehouse_codecs.bamboo.varu64 import MAX_U64

numbers = st.integers(0, 300) | st.integers(0, MAX_U64)
widths = st.none() | st.sampled_from([1, 2, 4, 8])
PIECE_BYTES = 60


def _packet(kind: Type, stream: int | None, amount: int, width: int | None) -> bytes:
    if width is not None:
        stream, amount = None if stream is None else stream % 256, amount % 256
    has_amount = kind in (Type.CREDIT, Type.WRITE)
    content = bytes(amount % 7) if kind is Type.WRITE and stream is not None else b""
    told = len(content) if kind is Type.WRITE and stream is not None else amount
    return bymux.encode(
        Packet(kind, stream, told if has_amount else None, width, width if has_amount else None), content
    )


bymux_packets = st.builds(_packet, st.sampled_from(Type), st.none() | numbers, numbers, widths)
digests = st.binary(min_size=64, max_size=64)
hashes = digests.map(yamf.encode)
data_packets = st.one_of(
    st.builds(Switch, numbers),
    st.just(Notify()),
    st.builds(Notify, numbers, st.just(True)),
    st.builds(SkipPayload, st.sampled_from(SkipReason)),
    st.builds(SkipBytes, numbers),
    st.binary(max_size=80).map(lambda data: RawPayload(len(data), data)),
    st.builds(lambda size, data: CompressedPayload(size, len(data), data), numbers, st.binary(max_size=80)),
    st.just(Apology()),
    st.builds(Cancelled, numbers),
    st.builds(Metadata, st.booleans(), st.none() | hashes, numbers, hashes, digests),
)


@settings(deadline=None, max_examples=80)
@given(st.lists(bymux_packets, max_size=6), st.binary(max_size=9), st.integers(1, 9))
def test_bymux(sent: list[bytes], junk: bytes, most: int) -> None:
    data = b"".join(sent) + junk
    rows: list[Read] = []
    taken: list[Content] = []
    at = 0
    while True:
        cut = cut_bymux(data[at:], most)
        for i in range(len(cut.header)):
            kind, is_global = Type(cut.header[i] >> 5), bool(cut.header[i] & 0x10)
            amount = int(cut.amount[i]) if kind in (Type.CREDIT, Type.WRITE) else None
            id_width = None if is_global else 1 << (int(cut.header[i]) >> 2 & 3)
            amount_width = None if amount is None else 1 << (int(cut.header[i]) & 3)
            packet = Packet(kind, None if is_global else int(cut.stream_id[i]), amount, id_width, amount_width)
            rows.append(Read(at + int(cut.begin[i]), at + int(cut.end[i]), packet, bool(cut.wide[i])))
            content = data[at + int(cut.content[i]) : at + int(cut.end[i])]
            if content:
                taken.append(Content(int(cut.stream_id[i]), at + int(cut.content[i]), content))
        at += cut.used
        if len(cut.header) < most or not cut.used:
            break
    reader = Reader()
    readable = reader.receive(data)
    regular = [one for one in readable if isinstance(one, Read) and one.packet is not None]
    # A Write that ends beyond 2^62 is only told to end there.
    assert [(one.byte_start, one.packet, one.wide) for one in rows] == [
        (one.byte_start, one.packet, one.wide) for one in regular
    ]
    assert all(
        one.byte_end == other.byte_end for one, other in zip(rows, regular, strict=True) if other.byte_end < 1 << 62
    )
    assert taken == [one for one in readable if isinstance(one, Content)]


def packets_of(data: bytes, cut: DataPackets) -> list[tuple[int, int, PointToPoint]]:
    """The rows as the readable reader tells them."""
    told = []
    for i in range(len(cut.kind)):
        begin, end, content = int(cut.begin[i]), int(cut.end[i]), int(cut.content[i])
        (received,) = ChannelReader(Channel.DATA, piece_bytes=PIECE_BYTES).receive(data[begin:end])
        packet, number = received.packet, int(cut.number[i])
        assert received.noncanonical == ()
        match packet:
            case Switch(id=said) | Cancelled(id=said) | SkipBytes(count=said) | Notify(count=said):
                assert (number, content) == (said, end)
            case RawPayload() | CompressedPayload():
                assert (number, data[content:end]) == (packet.size, packet.data)
            case Metadata():
                assert (number, bool(cut.backlink[i])) == (packet.payload_size, packet.backlink is not None)
                assert data[content : content + 66] == packet.payload_hash
            case _:
                assert (number, content) == (0, end)
        assert packet is not None
        told.append((begin, end, packet))
    return told


@settings(deadline=None, max_examples=120)
@given(st.lists(data_packets, max_size=6), st.binary(max_size=9), st.integers(1, 9))
def test_the_data_channel(sent: list[DataPacket], junk: bytes, most: int) -> None:
    data = b"".join(map(encode, sent)) + junk
    cut = cut_data(data, PIECE_BYTES, most)
    told = packets_of(data, cut)
    assert cut.used == (told[-1][1] if told else 0)
    reader = ChannelReader(Channel.DATA, piece_bytes=PIECE_BYTES)
    readable = reader.receive(data)
    assert told == [one[:3] for one in readable[: len(told)]]
    # It only stops where the readable reader finds something odd or unfinished, or at so many packets.
    if len(told) < most and len(told) < len(readable):
        odd = readable[len(told)]
        in_pieces = isinstance(odd.packet, RawPayload | CompressedPayload)
        wrong_hash = isinstance(odd.packet, Metadata) and not odd.packet.payload_hash.startswith(yamf.PREFIX)
        assert odd.packet is None or odd.noncanonical or in_pieces or wrong_hash
    rest = ChannelReader(Channel.DATA, piece_bytes=PIECE_BYTES, byte_start=cut.used)
    assert rest.receive(data[cut.used :]) == readable[len(told) :]


@settings(deadline=None, max_examples=150)
@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    cut = cut_data(data, PIECE_BYTES)
    packets_of(data, cut)
    assert 0 <= cut.used <= len(data)
    assert 0 <= cut_bymux(data).used <= len(data)


def test_the_contents_of_a_stream() -> None:
    data = b"".join([write(1, b"ab"), write(0, b"x"), write(1, b""), write(1, b"cde"), write(1, b"fgh")])[:-1]
    cut = cut_bymux(data)
    out, starts, begin = contents(data, cut, 1)
    assert out.tobytes() == b"abcdefg"
    assert starts.tolist() == [0, 2, 2, 5]
    assert [data[at : at + 1] for at in begin.tolist()] == [b"a", b"\x20", b"c", b"f"]
    assert contents(np.frombuffer(data, np.uint8), cut, 7)[0].size == 0
