"""Captures of TCP connections that never were: packets of real connections, and what networks do to them."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirehouse_codecs.captures import pcap
from wirehouse_codecs.captures.pcap import Packet, PacketCapture
from wirehouse_codecs.core.errors import OptionError
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket, write_pcap
from wirehouse_codecs.simulate.script import (
    Close,
    Conversation,
    Disturbances,
    Ending,
    Event,
    Send,
    between,
    merge,
    packets,
    segments,
    written,
)
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.packets import ACK, FIN, PSH, RST, SYN, parse

C, S = Direction.CLIENT, Direction.SERVER
CLIENT, SERVER = Endpoint("10.0.0.1", 40_000), Endpoint("10.1.0.1", 7100)
START = 1_700_000_000_000_000_000
MS = 1_000_000
#: A question, an answer of three segments, a goodbye; sequence numbers go past 2^32.
EVENTS: tuple[Event, ...] = (
    Send(START + MS, C, b"question"),
    Send(START + 2 * MS, S, bytes(range(256)) * 15),
    Send(START + 100 * MS, C, b"goodbye"),
    Close(START + 101 * MS, C),
)


def conversation(events: Iterable[Event] = EVENTS, **changes: Any) -> Conversation:
    return Conversation(
        CLIENT, SERVER, START, events, **{"client_sequence": 2**32 - 3, "server_sequence": 2**32 - 2000} | changes
    )


def parsed(captured: Iterable[CapturedPacket]) -> list[dict[str, Any]]:
    """Rows of SEGMENT_SCHEMA with times and senders, by way of a pcap file."""
    file = io.BytesIO()
    write_pcap(captured, file, resolution="ns")
    capture = PacketCapture(io.BytesIO(file.getvalue()))
    rows = []
    for batch in capture.batches():
        for ts_ns, row in zip(batch.column("ts_ns").to_pylist(), parse(batch).to_pylist(), strict=True):
            side = C if row["source_port"] == CLIENT.port else S
            rows.append({**row, "ts_ns": ts_ns, "side": side})
    assert capture.damage is None
    return rows


def streams(rows: Iterable[dict[str, Any]], first: dict[Direction, int]) -> dict[Direction, bytes]:
    """A model of reassembly: the first bytes seen of each position count; a hole is zeros."""
    seen: dict[Direction, dict[int, int]] = {C: {}, S: {}}
    for row in rows:
        at = (row["sequence"] - first[row["side"]] - 1) % 2**32
        for place, byte in enumerate(row["payload"], at):
            seen[row["side"]].setdefault(place, byte)
    return {side: bytes(got.get(at, 0) for at in range(max(got, default=-1) + 1)) for side, got in seen.items()}


FIRST = {C: 2**32 - 3, S: 2**32 - 2000}


def test_a_conversation_is_a_handshake_data_acks_and_fins() -> None:
    rows = parsed(packets(conversation()))
    assert all(row["skip"] is None for row in rows)
    told = [(row["side"], row["flags"], row["payload_bytes"]) for row in rows]
    assert told == [
        (C, SYN, 0),
        (S, SYN | ACK, 0),
        (C, ACK, 0),
        (C, ACK | PSH, 8),
        (S, ACK, 1448),
        (S, ACK, 1448),
        (C, ACK, 0),
        (S, ACK | PSH, 944),
        (C, ACK, 0),
        (C, ACK | PSH, 7),
        (C, FIN | ACK, 0),
        (S, FIN | ACK, 0),
        (C, ACK, 0),
    ]
    assert streams(rows, FIRST) == written(conversation()) == {C: b"questiongoodbye", S: bytes(range(256)) * 15}
    assert all(a["ts_ns"] < b["ts_ns"] for a, b in pairwise(rows))
    assert [row["ts_ns"] for row in rows if row["payload"][:1] in (b"q", b"g")] == [START + MS, START + 100 * MS]
    # The third segment of the answer is acknowledged late, and every byte and FIN in the end.
    assert rows[8]["ts_ns"] - rows[7]["ts_ns"] > 40 * MS - 1
    assert rows[-1]["acknowledgment"] == (FIRST[S] + 2 + len(EVENTS[1].data)) % 2**32  # type: ignore[union-attr]
    assert rows[-2]["acknowledgment"] == (FIRST[C] + 2 + 15) % 2**32


def test_every_ack_is_of_what_was_sent_before() -> None:
    following = dict(FIRST)
    for row in parsed(packets(conversation())):
        side, peer = row["side"], S if row["side"] is C else C
        assert row["sequence"] == following[side]
        following[side] = (row["sequence"] + row["payload_bytes"] + bool(row["flags"] & (SYN | FIN))) % 2**32
        assert row["acknowledgment"] == (following[peer] if row["flags"] & ACK else 0)


def test_a_connection_is_reset_or_left_open() -> None:
    reset = parsed(packets(conversation([*EVENTS[:3], Close(START + 101 * MS, S, Ending.RESET)])))
    assert (reset[-1]["side"], reset[-1]["flags"]) == (S, RST | ACK)
    assert not any(row["flags"] & FIN for row in reset)
    left = parsed(packets(conversation(EVENTS[:3])))
    assert not any(row["flags"] & (FIN | RST) for row in left)
    # The last delayed ACK still comes.
    assert (left[-1]["side"], left[-1]["payload_bytes"]) == (S, 0)
    assert streams(left, FIRST) == streams(reset, FIRST) == written(conversation())


def test_writes_share_segments_while_the_link_is_busy() -> None:
    at_once = [Send(START + MS, C, bytes(100))] * 100
    sizes = [len(segment.payload) for segment in segments(conversation(at_once)) if segment.payload]
    assert sizes[0] == 1448
    assert sum(sizes) == 10_000
    assert len(sizes) <= 10
    spaced = [Send(START + n * MS, C, bytes(100)) for n in range(1, 101)]
    assert [len(segment.payload) for segment in segments(conversation(spaced)) if segment.payload] == [100] * 100


def test_segments_are_as_large_as_asked_for_and_addresses_may_be_ipv6() -> None:
    asked = Conversation(Endpoint("2001:db8::1", 40_000), Endpoint("2001:db8::2", 7100), START, EVENTS, segment_bytes=9)
    rows = parsed(packets(asked))
    assert max(row["payload_bytes"] for row in rows) == 9
    assert {len(row["source_address"]) for row in rows} == {16}
    assert streams(rows, {C: 0, S: 0}) == written(conversation())


def test_a_capture_begins_and_ends_in_the_middle() -> None:
    whole = list(packets(conversation()))
    begins, ends = START + 2 * MS, START + 100 * MS
    assert list(between(packets(conversation()), begins, ends)) == [p for p in whole if begins <= p.ts_ns < ends]
    late = conversation(captured_from_ns=begins)
    assert list(packets(late)) == [packet for packet in whole if packet.ts_ns >= begins]
    assert written(late) == {C: b"goodbye", S: bytes(range(256)) * 15}


def test_conversations_merge_by_time() -> None:
    both = [conversation(), Conversation(SERVER, CLIENT, START + 1, EVENTS)]
    merged = list(merge(map(packets, both)))
    assert sorted(merged) == sorted(packet for each in both for packet in packets(each))
    assert all(a.ts_ns <= b.ts_ns for a, b in pairwise(merged))


SHARES: dict[str, Any] = {"reordered": 0.5, "repeated": 0.4, "kept_alive": 0.3}
LONG: tuple[Event, ...] = (
    Send(START + MS, C, bytes(n % 251 for n in range(30_000))),
    Send(START + 2 * MS, S, bytes(n % 241 for n in range(20_000))),
    Close(START + 3 * MS, C),
)


def data_of(rows: Iterable[dict[str, Any]]) -> list[tuple[Direction, int, bytes]]:
    return [(row["side"], row["sequence"], row["payload"]) for row in rows if row["payload"]]


@given(seed=st.integers(0, 2**32), distance=st.integers(1, 8))
def test_disturbances_change_neither_content_nor_the_order_of_the_sides(seed: int, distance: int) -> None:
    disturbed = parsed(packets(conversation(LONG), Disturbances(seed, **SHARES, distance=distance)))
    kept = [row for row in disturbed if row["payload"] != b"\0"]
    assert streams(kept, FIRST) == written(conversation(LONG))
    assert all(a["ts_ns"] <= b["ts_ns"] for a, b in pairwise(disturbed))
    turns = [a["side"] for a, b in pairwise(kept) if a["payload"] and b["payload"] and a["side"] is not b["side"]]
    assert len(turns) <= 1
    assert parsed(packets(conversation(LONG), Disturbances(seed, **SHARES, distance=distance))) == disturbed


def test_reordered_segments_come_a_bounded_number_of_places_later() -> None:
    plain = data_of(parsed(packets(conversation(LONG))))
    reordered = data_of(parsed(packets(conversation(LONG), Disturbances(1, reordered=0.4, distance=2))))
    assert reordered != plain
    assert sorted(reordered) == sorted(plain)
    # Two positions are at most two segments with data.
    assert max(reordered.index(each) - place for place, each in enumerate(plain)) in (1, 2)


def test_repeated_segments_are_whole_or_an_end() -> None:
    plain = data_of(parsed(packets(conversation(LONG))))
    repeated = data_of(parsed(packets(conversation(LONG), Disturbances(2, repeated=1.0))))
    assert len(repeated) == 2 * len(plain)
    assert 0 < len(set(repeated) - set(plain)) < len(plain)


def test_lost_segments_leave_holes() -> None:
    plain = data_of(parsed(packets(conversation(LONG))))
    left = data_of(parsed(packets(conversation(LONG), Disturbances(3, lost=0.3))))
    assert 0 < len(left) < len(plain)
    assert [each for each in plain if each in left] == left


def test_contradictions_come_after_what_they_contradict() -> None:
    rows = parsed(packets(conversation(LONG), Disturbances(4, contradicted=1.0, reordered=0.5)))
    assert streams(rows, FIRST) == written(conversation(LONG))
    told = data_of(rows)
    assert len({(side, sequence) for side, sequence, _ in told}) == len(told) // 2 == len(set(told)) // 2


def test_keep_alives_name_the_byte_before_the_next_one() -> None:
    rows = parsed(packets(conversation(LONG[:1]), Disturbances(5, kept_alive=1.0)))
    ends = {(row["sequence"] + row["payload_bytes"] - 1) % 2**32 for row in rows if row["payload_bytes"] > 1}
    kept = [row for row in rows if row["side"] is C and row["sequence"] in ends and row["payload_bytes"] < 2]
    assert len(kept) == len(ends)
    assert {row["payload"] for row in kept} == {b"", b"\0"}
    acknowledged = [row["acknowledgment"] for row in rows if row["side"] is S and not row["flags"] & SYN]
    assert all((row["sequence"] + 1) % 2**32 in acknowledged for row in kept)


@pytest.mark.parametrize("wrong", [{"lost": 1.5}, {"reordered": -0.1}, {"distance": 0}])
def test_disturbances_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(wrong))):
        Disturbances(**wrong)


@pytest.mark.property
def test_a_conversation_is_never_held_in_memory() -> None:
    def endless() -> Iterator[Event]:
        n = 0
        while True:
            n += 1
            yield Send(START + n * MS, C if n % 3 else S, bytes(4000))

    disturbances = Disturbances(6, **SHARES, lost=0.1)
    captured = packets(conversation(endless()), disturbances)
    for _ in islice(captured, 1000):
        pass
    tracemalloc.start()
    for _ in islice(captured, 10_000):
        pass
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 20


def test_packets_are_read_without_a_file() -> None:
    batch = pcap.to_batch([Packet(p.ts_ns, 1, len(p.data), p.data) for p in packets(conversation())])
    assert isinstance(batch, pa.RecordBatch)
    assert parse(batch).column("skip").null_count == batch.num_rows
