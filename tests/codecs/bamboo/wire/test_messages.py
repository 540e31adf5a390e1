"""Point-2-Point packets: each form, cut everywhere, odd and hostile bytes, and the sessions of the vectors."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.carried import as_text, carry
from wirehouse_codecs.bamboo.setup import Channel, Setup
from wirehouse_codecs.bamboo.wire import yamf
from wirehouse_codecs.bamboo.wire.channel_reader import ChannelReader
from wirehouse_codecs.bamboo.wire.encoding import Received, decode_setup, encode
from wirehouse_codecs.bamboo.wire.messages import (
    KINDS,
    Adjust,
    Apology,
    Cancel,
    CancelEntry,
    Cancelled,
    CancelReason,
    CompressedPayload,
    Eagerness,
    Metadata,
    Notify,
    PointToPoint,
    ProposalCredit,
    Propose,
    RawPayload,
    SendMode,
    SkipBytes,
    SkipPayload,
    SkipReason,
    Switch,
    kind_of,
    send_mode,
)
from wirehouse_codecs.bamboo.wire.varu64 import MAX_U64

CONTROL, DATA = Channel.CONTROL, Channel.DATA
numbers = st.integers(0, 300) | st.integers(0, MAX_U64)
seqnums = st.integers(1, 300) | st.integers(1, MAX_U64)
digests = st.binary(min_size=64, max_size=64)
hashes = digests.map(yamf.encode)


@st.composite
def adjusts(draw: st.DrawFn) -> Adjust:
    eagerness = draw(st.none() | st.sampled_from(Eagerness))
    adjust = Adjust(
        id=draw(numbers),
        eagerness=eagerness,
        size_limit=draw(numbers) if eagerness is Eagerness.LIMITED else None,
        may_skip=draw(st.booleans()),
        end=draw(st.none() | seqnums),
        upper_info=draw(st.none() | seqnums),
        min_payload=draw(st.none() | numbers),
        max_payload=draw(st.none() | numbers),
    )
    return adjust if adjust != Adjust(adjust.id) else replace(adjust, may_skip=True)


@st.composite
def proposals(draw: st.DrawFn) -> Propose:
    eagerness = draw(st.sampled_from(Eagerness))
    offset = draw(st.none() | numbers)
    lower = draw(seqnums) if offset is None else None
    end = draw(st.none() | seqnums)
    return Propose(
        id=draw(numbers),
        author=draw(st.binary(min_size=32, max_size=32)),
        log_id=draw(numbers),
        start=draw(seqnums),
        lower_info=lower,
        min_payload=draw(numbers),
        max_payload=draw(numbers),
        eagerness=eagerness,
        expected_hash=None if lower == 1 else draw(digests),
        size_limit=draw(numbers) if eagerness is Eagerness.LIMITED else None,
        end=end,
        upper_info=None if end is None else draw(seqnums),
        offset=offset,
        payload_only=draw(st.booleans()),
        sparse=draw(st.booleans()),
        mandatory=draw(st.booleans()),
    )


control_packets = st.one_of(
    st.builds(ProposalCredit, numbers),
    adjusts(),
    proposals(),
    st.builds(Cancel, st.sampled_from(list(CancelReason)[:5]), numbers),
    st.builds(Cancel, st.just(CancelReason.END_OF_LOG), numbers, seqnums),
)
data_packets = st.one_of(
    st.builds(Switch, numbers),
    st.just(Notify()),
    st.builds(Notify, numbers, st.just(True)),
    st.builds(SkipPayload, st.sampled_from(SkipReason)),
    st.builds(SkipBytes, numbers),
    st.binary(max_size=300).map(lambda data: RawPayload(len(data), data)),
    st.builds(lambda size, data: CompressedPayload(size, len(data), data), numbers, st.binary(max_size=300)),
    st.just(Apology()),
    st.builds(Cancelled, numbers),
    st.builds(Metadata, st.booleans(), st.none() | hashes, numbers, hashes, digests),
)


def read(channel: Channel, data: bytes) -> list[Received]:
    return ChannelReader(channel).receive(data)


def one(channel: Channel, data: bytes) -> Received:
    (received,) = read(channel, data)
    assert received.byte_end == len(data)
    return received


@pytest.mark.parametrize(("channel", "packets"), [(CONTROL, control_packets), (DATA, data_packets)])
def test_packets_come_back(channel: Channel, packets: st.SearchStrategy[PointToPoint]) -> None:
    @settings(max_examples=100)
    @given(st.lists(packets, max_size=5))
    def check(sent: list[PointToPoint]) -> None:
        received = read(channel, b"".join(map(encode, sent)))
        assert [one.packet for one in received] == sent
        assert all(one.rule is None and one.noncanonical == () for one in received)
        assert all(before.byte_end == after.byte_start for before, after in itertools.pairwise(received))
        assert {kind_of(packet) for packet in sent} <= set(KINDS)

    check()


@pytest.mark.parametrize(("channel", "packets"), [(CONTROL, control_packets), (DATA, data_packets)])
def test_packets_are_cut_anywhere(channel: Channel, packets: st.SearchStrategy[PointToPoint]) -> None:
    @settings(max_examples=40)
    @given(st.lists(packets, min_size=1, max_size=3), st.binary(max_size=2), st.integers(1, 70))
    def check(sent: list[PointToPoint], junk: bytes, piece_bytes: int) -> None:
        data = b"".join(map(encode, sent)) + junk
        reader = ChannelReader(channel, piece_bytes=piece_bytes)
        whole = reader.receive(data)
        single = ChannelReader(channel, piece_bytes=piece_bytes)
        received = []
        for at in range(len(data)):
            if at % 7 == 0:
                single = carry(single)
            received += single.receive(data[at : at + 1])
        assert received == whole
        assert (single.byte_end, single.unfinished, single.pending) == (
            reader.byte_end,
            reader.unfinished,
            reader.pending,
        )

    check()


@pytest.mark.parametrize("channel", Channel)
@settings(max_examples=200)
@given(data=st.binary(max_size=400), size=st.integers(1, 50))
def test_any_bytes(channel: Channel, data: bytes, size: int) -> None:
    reader = ChannelReader(channel, piece_bytes=64)
    received = []
    for at in range(0, len(data), size):
        received += reader.receive(data[at : at + size])
    assert received == ChannelReader(channel, piece_bytes=64).receive(data)
    # No byte is lost: every packet, or piece of one, begins where the one before it ended.
    assert [one.byte_start for one in received] == [0, *(one.byte_end for one in received)][: len(received)]
    assert len(reader.pending) < 1000
    assert reader.byte_end == len(data)


# Forms, byte by byte

NINE = b"\xff" * 9


def test_setup() -> None:
    data = bytes.fromhex("a8f91000fa010000")
    received = decode_setup(data + b"more")
    assert received is not None
    assert received.byte_end == len(data)
    assert received.packet == Setup(False, False, 4096, 65536, ignored_bits=0xA8)
    assert encode(received.packet) == data
    assert all(decode_setup(data[:cut]) is None for cut in range(len(data)))
    long = decode_setup(b"\3\xf8\0\0")
    assert long is not None
    assert (long.packet, long.noncanonical) == (Setup(True, True, 0, 0), ("send_window",))
    with pytest.raises(ValueError, match="not ignored"):
        encode(Setup(False, False, 0, 0, ignored_bits=1))


def test_the_mode_of_a_side() -> None:
    proactive = Setup(True, False, 4096, 65536)
    reactive = Setup(True, True, 1024, 2048)
    assert send_mode(proactive, reactive) == SendMode(True, 2048)
    assert send_mode(reactive, proactive) == SendMode(False, 1024)


def test_control_packets_byte_by_byte() -> None:
    assert encode(ProposalCredit(300)).hex() == "00f9012c"
    assert encode(Adjust(2, Eagerness.ALL, may_skip=True, min_payload=5)).hex() == "720205"
    assert encode(Adjust(2, end=7, min_payload=50, max_payload=500)).hex() == "0b020732f901f4"
    assert encode(Adjust(0, Eagerness.LIMITED, 9, end=8)).hex() == "48000908"
    assert encode(Cancel(CancelReason.END_OF_LOG, 3, 7)).hex() == "860307"
    endless = Propose(1, bytes(32), 0, 5, 1, 0, MAX_U64, Eagerness.NOTIFY)
    assert encode(endless) == b"\xa0\1" + bytes(32) + b"\0\5\1\0" + NINE
    inside = replace(endless, lower_info=None, offset=3, expected_hash=bytes(64), end=9, upper_info=13, sparse=True)
    assert encode(inside) == b"\xba\1" + bytes(32) + b"\0\5\0" + NINE + b"\0\x40" + bytes(64) + b"\x09\x0d\3"


def test_data_packets_byte_by_byte() -> None:
    assert encode(Notify()).hex() == "02"
    assert encode(Notify(1, True)).hex() == "0301"
    assert encode(RawPayload(2, b"hi")).hex() == "08026869"
    assert encode(CompressedPayload(5, 3, b"\2hi")).hex() == "0905030268" + "69"
    assert [encode(SkipPayload(reason)).hex() for reason in SkipReason] == ["04", "05", "06"]
    assert encode(Apology()) + encode(Cancelled(7)) + encode(SkipBytes(2)) == b"\x10\x20\7\7\2"


@pytest.mark.parametrize("first", range(256))
def test_every_first_byte(first: int) -> None:
    unused_control = 136 <= first <= 159
    received = next(iter(read(CONTROL, bytes([first]) + b"\1" * 200)), None)
    if unused_control:
        assert received is not None
        assert (received.packet, received.rule and received.rule.name) == (None, "unused_control_byte")
        assert (received.byte_start, received.byte_end) == (0, 1)
    else:
        assert received is None or received.rule is None or received.rule.name != "unused_control_byte"
    used_data = first in (0, *range(2, 10), 16, 32, 128, 129)
    (data,) = read(DATA, bytes([first]) + b"\1" * 200)[:1]
    assert (data.packet is not None) == used_data
    assert (data.rule is None) == used_data


def test_nothing_is_read_after_an_unused_byte() -> None:
    reader = ChannelReader(DATA)
    assert [one.packet for one in reader.receive(b"\2\xff\2")] == [Notify(), None]
    assert reader.lost
    assert reader.receive(b"\2") == []
    assert (reader.byte_end, reader.pending, reader.unfinished) == (4, b"", False)
    assert carry(reader).receive(b"\2") == []


def test_long_numbers_are_read_and_named() -> None:
    assert one(CONTROL, b"\0\xf8\5") == Received(0, 3, ProposalCredit(5), noncanonical=("amount",))
    received = one(DATA, b"\x08\xf9\0\2hi")
    assert (received.packet, received.noncanonical) == (RawPayload(2, b"hi"), ("size",))
    metadata = Metadata(False, None, 5, yamf.encode(bytes(64)), bytes(64))
    data = encode(metadata)
    received = one(DATA, data[:1] + b"\xf8\5" + data[2:])
    assert (received.packet, received.noncanonical) == (metadata, ("payload_size",))


@pytest.mark.parametrize(
    "packet",
    [
        Adjust(0, end=0),
        Adjust(0, upper_info=0),
        Propose(0, bytes(32), 0, 0, 1, 0, 0, Eagerness.ALL),
        Propose(0, bytes(32), 0, 1, 1, 0, 0, Eagerness.ALL, end=0, upper_info=1),
        Propose(0, bytes(32), 0, 1, 1, 0, 0, Eagerness.ALL, end=1, upper_info=0),
        Cancel(CancelReason.END_OF_LOG, 0, 0),
    ],
)
def test_sequence_numbers_are_not_zero(packet: PointToPoint) -> None:
    received = one(CONTROL, encode(packet))
    assert received.packet == packet
    assert received.rule is not None
    assert received.rule.name == "seqnum_zero"


def test_a_proposal_without_a_lower_entry_expects_no_hash() -> None:
    propose = Propose(0, bytes(32), 0, 4, 0, 0, 9, Eagerness.ALL)
    received = one(CONTROL, encode(propose))
    assert (received.packet, received.rule and received.rule.name) == (propose, "seqnum_zero")


def test_an_expected_hash_that_is_none_is_kept_as_written() -> None:
    odd = b"\1\x40" + bytes(64)
    packet = Propose(0, bytes(32), 0, 4, 4, 0, 9, Eagerness.ALL, expected_hash=odd)
    assert one(CONTROL, encode(packet)).packet == packet


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (Adjust(0), "changes something"),
        (Adjust(0, Eagerness.ALL, 5), "size limit"),
        (Adjust(0, Eagerness.LIMITED), "size limit"),
        (Cancel(CancelReason.END_OF_LOG, 0), "sequence number"),
        (Cancel(CancelReason.FORKED, 0), "entries"),
        (Propose(0, b"", 0, 1, 1, 0, 0, Eagerness.ALL), "32 bytes"),
        (Propose(0, bytes(32), 0, 1, None, 0, 0, Eagerness.ALL), "lower info"),
        (Propose(0, bytes(32), 0, 1, 1, 0, 0, Eagerness.ALL, end=5), "upper info"),
        (Propose(0, bytes(32), 0, 1, 4, 0, 0, Eagerness.ALL), "hash"),
        (Propose(0, bytes(32), 0, 1, 1, 0, 0, Eagerness.LIMITED), "size limit"),
        (RawPayload(5, b"hi"), "piece"),
        (CompressedPayload(5, 2, b"hi", 1), "piece"),
        (Metadata(False, None, 0, b"short", bytes(64)), "66 bytes"),
        (Switch(1 << 64), "64-bit"),
    ],
)
def test_packets_that_cant_be_written(packet: PointToPoint, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        encode(packet)


# Entries in cancels


def test_cancels_show_entries(make_log: Callable[..., Any]) -> None:
    log = make_log(8)
    for packet in [
        Cancel(CancelReason.STARTING_HASH, 3, entries=(CancelEntry(log.encoded(8)[0]),)),
        Cancel(CancelReason.FORKED, 3, entries=tuple(map(CancelEntry, log.encoded(4, 1)))),
    ]:
        data = encode(packet)
        received = read(CONTROL, data + encode(ProposalCredit(1)))
        assert [one.packet for one in received] == [packet, ProposalCredit(1)]
        assert all(read(CONTROL, data[:cut]) == [] for cut in range(len(data)))


def test_author_and_log_id_may_be_left_out(make_log: Callable[..., Any]) -> None:
    log = make_log(5, log_id=300)
    shown = []
    for whole in log.encoded(1, 2, 4, 5):
        short = CancelEntry(whole[:1] + whole[36:], whole=False)
        assert short.in_log(log.entries[1].author, 300) == whole
        assert CancelEntry(whole).in_log(bytes(32), 9) == whole
        shown.append(short)
        data = encode(Cancel(CancelReason.FORKED, 0, entries=(short, CancelEntry(whole))))
        assert one(CONTROL, data).packet == Cancel(CancelReason.FORKED, 0, entries=(short, CancelEntry(whole)))
        assert all(read(CONTROL, data[:cut]) == [] for cut in range(len(data)))


@pytest.mark.parametrize(
    ("at", "byte", "rule"),
    [
        (0, 7, "bad_tag"),
        (33, 0xF8, "seq_zero"),
        (34, 0, "seq_zero"),
        (35, 1, "bad_yamf_id"),
        (36, 3, "bad_yamf_length"),
    ],
)
def test_an_entry_that_is_none_is_named_and_kept(make_log: Callable[..., Any], at: int, byte: int, rule: str) -> None:
    damaged = bytearray(make_log(2).encoded(2)[0])
    damaged[at] = byte
    data = encode(Cancel(CancelReason.STARTING_HASH, 3, entries=(CancelEntry(bytes(damaged)),)))
    received = read(CONTROL, data + bytes(100))[0]
    assert received.rule is not None
    assert received.rule.name == rule
    assert isinstance(received.packet, Cancel)
    kept = received.packet.entries[0].data
    assert kept == (data + bytes(100))[2 : 2 + len(kept)]


def test_what_follows_an_entry_that_is_none_is_read_all_the_same(make_log: Callable[..., Any]) -> None:
    whole, other = make_log(3).encoded(2, 3)
    for damaged, right in ((b"\2" + whole[1:], other), (other, b"\2" + whole[1:])):
        shown = (CancelEntry(damaged), CancelEntry(right))
        first, second = read(CONTROL, encode(Cancel(CancelReason.FORKED, 3, entries=shown)) + encode(ProposalCredit(1)))
        assert (first.packet, second.packet) == (Cancel(CancelReason.FORKED, 3, entries=shown), ProposalCredit(1))
        assert first.rule is not None
        assert first.rule.name == "bad_tag"


# Metadata and payloads


@pytest.mark.parametrize("size", [0, 5, 63, 64, 65, 247, 248, 65_536, MAX_U64])
@pytest.mark.parametrize("with_backlink", [True, False])
def test_metadata_says_itself_whether_it_has_a_backlink(size: int, with_backlink: bool) -> None:
    backlink = yamf.encode(b"\x11" * 64) if with_backlink else None
    metadata = Metadata(True, backlink, size, yamf.encode(b"\x22" * 64), b"\x33" * 64)
    assert one(DATA, encode(metadata)).packet == metadata
    # A backlink of a wrong type is still told by the payload's hash.
    if with_backlink:
        odd = replace(metadata, backlink=b"\1\x40" + b"\x11" * 64)
        assert one(DATA, encode(odd)).packet == odd
    wrong = replace(metadata, payload_hash=b"\0\x3f" + b"\x22" * 64)
    assert one(DATA, encode(wrong)).packet == wrong


def test_large_payloads_come_in_pieces() -> None:
    reader = ChannelReader(DATA, piece_bytes=4)
    assert [one[:3] for one in reader.receive(b"\x08\x0aabcdefghij\x08\0\2")] == [
        (0, 6, RawPayload(10, b"abcd")),
        (6, 10, RawPayload(10, b"efgh", 4)),
        (10, 12, RawPayload(10, b"ij", 8)),
        (12, 14, RawPayload(0, b"")),
        (14, 15, Notify()),
    ]
    claims = ChannelReader(DATA)
    assert claims.receive(b"\x09" + NINE + NINE + b"begin") == []
    assert claims.unfinished
    assert len(as_text(claims)) < 200


def test_many_small_segments_of_a_large_payload() -> None:
    reader = ChannelReader(DATA)
    size = 3 << 20
    received = reader.receive(b"\x08\xfa" + size.to_bytes(3, "big"))
    for _ in range(size >> 10):
        received += reader.receive(bytes(1024))
    assert [one.packet.at for one in received if isinstance(one.packet, RawPayload)] == [0, 1 << 20, 2 << 20]
    assert not reader.unfinished
