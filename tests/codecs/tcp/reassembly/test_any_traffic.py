"""Any exchange, lossy, reordered and garbled, and real captures: all bytes come out, or the holes are named."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.dialogues import (
    ISN,
    OPTIONS,
    SECOND,
    VECTORS,
    C,
    Dialogue,
    S,
    Sent,
    answered,
    as_segments,
    assert_balances,
    assert_tiles,
    moment,
    states,
    told,
)
from wirehouse_codecs.captures.pcap import PacketCapture
from wirehouse_codecs.tcp import waiting
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_codecs.tcp.packets import ACK, FIN, PSH, RST, SYN, parse
from wirehouse_codecs.tcp.reassembly import (
    Data,
    Hole,
    OverlapDiffers,
    TcpSegment,
)

# Any traffic


@st.composite
def exchanges(draw: st.DrawFn, *, lossless: bool) -> tuple[dict[Direction, bytes], dict[Direction, int], list[Sent]]:
    """What both sides send, their initial sequence numbers, and segments of it as they arrive after the handshake."""
    texts = {direction: draw(st.binary(max_size=200)) for direction in Direction}
    numbers = st.sampled_from([0, 1, 2**31 - 3, 2**31, 2**32 - 1, 2**32 - 50, 2**32 - 150])
    order: list[tuple[int, int, Sent]] = []
    for direction, text in texts.items():
        size = len(text)
        cuts = sorted({0, size, *draw(st.lists(st.integers(0, size), max_size=8))})
        pieces = [Sent(direction, start, end) for start, end in itertools.pairwise(cuts)]
        pieces.append(Sent(direction, size, size, FIN | ACK))
        for _ in range(draw(st.integers(0, 5))):
            start = draw(st.integers(0, size))
            end = draw(st.integers(start, size))
            flags = FIN | ACK if end == size and draw(st.booleans()) else ACK | PSH
            pieces.insert(draw(st.integers(0, len(pieces))), Sent(direction, start, end, flags))
        if not lossless:
            pieces = [piece for piece in pieces if draw(st.integers(0, 4))]
            pieces = [piece._replace(cut=draw(st.integers(0, piece.end - piece.start))) for piece in pieces]
        other = len(texts[S if direction is C else C])
        pieces = [piece._replace(acknowledged=draw(st.sampled_from([0, 0, other // 2, other + 1]))) for piece in pieces]
        for at, piece in enumerate(pieces):
            order.append((at + draw(st.integers(0, 4)), draw(st.integers(0, 9)), piece))
    order.sort(key=lambda row: row[:2])
    return texts, {direction: draw(numbers) for direction in Direction}, [piece for *_, piece in order]


@given(exchanges(lossless=True))
@settings(max_examples=250)
def test_what_was_sent_comes_out_in_whatever_segments_and_order(
    exchange: tuple[dict[Direction, bytes], dict[Direction, int], list[Sent]],
) -> None:
    texts, numbers, pieces = exchange
    segments = as_segments(texts, numbers, pieces, [0] * len(pieces))
    result = told(segments)
    assert assert_tiles(result.events, texts) == texts
    (connection,) = result.connections.values()
    assert (connection.closed, connection.opened) == ("fin", "syn")
    assert not [event for event in result.events if isinstance(event, Hole | OverlapDiffers)]
    assert_balances(segments, result)


@given(exchanges(lossless=False), st.data())
@settings(max_examples=250)
def test_holes_and_bytes_make_up_the_stream_wherever_it_is_cut(
    exchange: tuple[dict[Direction, bytes], dict[Direction, int], list[Sent]], data: st.DataObject
) -> None:
    texts, numbers, pieces = exchange
    pauses = data.draw(st.lists(st.sampled_from([0, 0, 0, 4, 11]), min_size=len(pieces), max_size=len(pieces)))
    options = TcpOptions(max_waiting_bytes=data.draw(st.sampled_from([20, 1000])), max_waiting_segments=3)
    segments = as_segments(texts, numbers, pieces, pauses)
    result = told(segments, options)
    assert_tiles(result.events, texts)
    assert not [event for event in result.events if isinstance(event, OverlapDiffers)]
    assert_balances(segments, result)
    cut = told(segments, options, cut=True)
    assert cut.events == result.events
    assert states(cut) == states(result)
    long = told(segments, options, short=False)
    assert (long.events, states(long)) == (result.events, states(result))
    orders = [event.place.order for event in result.events if not isinstance(event, bytes)]
    assert orders == sorted(orders)


def assert_causal(segments: list[TcpSegment], events: list[Any]) -> None:
    """No byte is told before those that it acknowledges are, or are known to be missing."""
    acknowledged = {
        (each.direction, (each.sequence - ISN[each.direction] - 1) % 2**32): each.acknowledgment
        for each in segments
        if each.payload
    }
    at = dict.fromkeys(Direction, 0)
    for event in events:
        if isinstance(event, Data):
            other = S if event.direction is C else C
            needs = (acknowledged[event.direction, event.byte_start] - ISN[other] - 1) % 2**32
            assert needs <= at[other]
            at[event.direction] += len(event.data)
        elif isinstance(event, Hole):
            at[event.direction] = event.byte_end


@given(answered())
@settings(max_examples=200)
def test_a_lost_packet_is_a_hole_before_what_answers_it(
    script: tuple[dict[Direction, bytes], list[TcpSegment], int],
) -> None:
    texts, segments, lost = script
    missing = segments[lost]
    kept = segments[:lost] + segments[lost + 1 :]
    result = told(kept)
    assert_tiles(result.events, texts)
    assert_balances(kept, result)
    assert_causal(segments, result.events)
    (hole,) = [event for event in result.events if isinstance(event, Hole)]
    start = (missing.sequence - ISN[missing.direction] - 1) % 2**32
    assert (hole.direction, hole.byte_start, hole.byte_end) == (missing.direction, start, start + len(missing.payload))
    cut, long = told(kept, cut=True), told(kept, short=False)
    assert (cut.events, states(cut)) == (long.events, states(long)) == (result.events, states(result))


@given(answered(), st.integers(1, 6))
@settings(max_examples=100)
def test_a_packet_that_was_captured_late_is_told_before_what_answers_it(
    script: tuple[dict[Direction, bytes], list[TcpSegment], int], by: int
) -> None:
    texts, segments, late = script
    order = [*segments[:late], *segments[late + 1 : late + 1 + by], segments[late], *segments[late + 1 + by :]]
    segments = [each._replace(place=moment(at, at)) for at, each in enumerate(order)]
    result = told(segments)
    assert assert_tiles(result.events, texts) == texts
    assert_causal(segments, result.events)
    assert not [event for event in result.events if isinstance(event, Hole)]


@st.composite
def garbage(draw: st.DrawFn) -> list[TcpSegment]:
    """Segments of which nothing need fit, mostly of two neighbourhoods of sequence numbers."""
    near = st.builds(lambda base, by: (base + by) % 2**32, st.sampled_from([0, 2**31]), st.integers(-40, 40))
    number = st.one_of(near, near, near, st.integers(0, 2**32 - 1))
    flags = st.sampled_from([ACK, ACK, ACK, ACK | PSH, SYN, SYN | ACK, FIN | ACK, RST, RST | ACK, 0, 0x1FF, FIN | SYN])
    ns, segments = 0, []
    for record in range(draw(st.integers(1, 25))):
        ns += draw(st.sampled_from([1, 1, 1, 2, SECOND, 11 * SECOND, OPTIONS.idle_ns - 1, OPTIONS.idle_ns]))
        payload = draw(st.one_of(st.just(b""), st.binary(max_size=40)))
        size = len(payload) + draw(st.sampled_from([0, 0, 0, 1, 2**16]))
        segments.append(
            TcpSegment(
                moment(record, ns),
                draw(st.sampled_from(Direction)),
                draw(number),
                draw(number),
                draw(flags),
                draw(st.sampled_from([0, 9])),
                payload,
                size,
            )
        )
    return segments


@given(garbage())
@settings(max_examples=200)
def test_any_segments_are_taken_within_limits_and_alike_wherever_they_are_cut(segments: list[TcpSegment]) -> None:
    options = TcpOptions(max_waiting_bytes=50, max_waiting_segments=4)
    with patch.object(waiting, "COMPARED_BYTES", 30):
        result = told(segments, options)
        cut = told(segments, options, cut=True)
    assert_tiles(result.events)
    assert_balances(segments, result)
    assert cut.events == result.events
    assert states(cut) == states(result)


def test_what_waits_is_bounded_whatever_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "COMPARED_BYTES", 1000)
    options = TcpOptions(max_waiting_bytes=1000, max_waiting_segments=16)
    talk = Dialogue(options).open()
    for at in range(1, 200_000, 97):
        talk.send(C, at * 2, b"x" * (at % 90))
        side = talk.connection.client
        assert (side._waiting_bytes <= 1000, len(side._waiting) <= 16) == (True, True)
        # As a log does.
        side.forget_received(side.next_byte)
    assert len(talk.flow.snapshot()) < 8000


# Real captures


def segments_by_client(path: Path, port: int) -> dict[int, list[TcpSegment]]:
    """The segments of each client's port."""
    found: dict[int, list[TcpSegment]] = {}
    record = ns = 0
    for batch in PacketCapture(io.BytesIO(path.read_bytes())).batches():
        rows = zip(batch.column("ts_ns").to_pylist(), parse(batch).to_pylist(), strict=True)
        for ts_ns, row in rows:
            ns = max(ns, ts_ns)
            direction = S if row["source_port"] == port else C
            client = row["destination_port" if direction is S else "source_port"]
            fields = {name: row[name] for name in TcpSegment._fields if name in row}
            found.setdefault(client, []).append(TcpSegment(moment(record, ns), direction, **fields))
            record += 1
    return found


CAPTURES = sorted(VECTORS.rglob("*.pcap"))


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_real_captures_have_the_bytes_that_were_sent(path: Path) -> None:
    expected = json.loads(path.with_name("expected.json").read_text())
    (said,) = (row for row in expected["captures"] if row["capture"] == path.name)
    connections = segments_by_client(path, said["worker_port"])
    assert sorted(connections) == sorted(row["client_port"] for row in said["connections"])
    for row in said["connections"]:
        result = told(connections[row["client_port"]])
        found = assert_tiles(result.events)
        assert {C: len(found[C]), S: len(found[S])} == {C: row["c2w"]["bytes"], S: row["w2c"]["bytes"]}
        (connection,) = result.connections.values()
        assert (connection.opened, connection.closed in ("fin", "reset")) == ("syn", True)
        assert_balances(connections[row["client_port"]], result)


def test_a_real_connection_is_the_same_wherever_it_is_cut() -> None:
    path = VECTORS / "v3" / "c_restart.pcap"
    expected = json.loads(path.with_name("expected.json").read_text())
    (said,) = (row for row in expected["captures"] if row["capture"] == path.name)
    for segments in segments_by_client(path, said["worker_port"]).values():
        whole, cut = told(segments), told(segments, cut=True)
        assert cut.events == whole.events
        assert states(cut) == states(whole)
