"""Segments to streams: whatever happens on the way, the bytes that were sent come out, or the holes are named."""

from __future__ import annotations

import io
import itertools
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wirehouse_codecs.captures.pcap import PacketCapture
from wirehouse_codecs.core.errors import StateVersionError
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.tcp.connection import EARLY_BYTES, HELD_SEGMENTS, connection_id
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.ignored import Why
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_codecs.tcp.packets import ACK, FIN, PSH, RST, SYN, parse
from wirehouse_codecs.tcp.reassembly import (
    Closed,
    Connection,
    Data,
    Event,
    Flow,
    Hole,
    Opened,
    OverlapDiffers,
    ResetIgnored,
    TcpSegment,
    Unordered,
)
from wirehouse_codecs.tcp.sequence_numbers import ACKNOWLEDGED_BYTES, WINDOW_BYTES

VECTORS = Path(__file__).parents[2] / "vectors" / "wallaroo"
C, S = Direction.CLIENT, Direction.SERVER
CLIENT, SERVER = Endpoint("10.0.0.1", 40_000), Endpoint("10.0.0.2", 5555)
OPTIONS = TcpOptions()
SECOND = 10**9
#: Initial sequence numbers of the dialogues; the client's wraps after 9 bytes.
ISN = {C: 2**32 - 10, S: 1000}


def new_flow(options: TcpOptions = OPTIONS, snapshot: str | None = None) -> Flow:
    return Flow("a source", CLIENT, SERVER, options, snapshot)


def moment(record: int, ns: int) -> Place:
    return Place(ns, 0, b"capture", record)


class Dialogue:
    """Segments go in by the position of their bytes; events come out. Each segment arrives a microsecond later."""

    def __init__(self, options: TcpOptions = OPTIONS) -> None:
        self.flow = new_flow(options)
        self.ns = 0
        self.records = 0
        self.sent: list[TcpSegment] = []

    def send(
        self,
        direction: Direction,
        start: int,
        payload: bytes = b"",
        flags: int = ACK,
        *,
        acknowledgment: int = 0,
        size: int | None = None,
        window: int = 100,
    ) -> list[Event]:
        """`start` and `acknowledgment` count from the first bytes after SYN."""
        self.ns += 1000
        self.records += 1
        other = S if direction is C else C
        segment = TcpSegment(
            moment(self.records, self.ns),
            direction,
            (ISN[direction] + 1 + start) % 2**32,
            (ISN[other] + 1 + acknowledgment) % 2**32 if flags & ACK else 0,
            flags,
            window,
            payload,
            len(payload) if size is None else size,
        )
        self.sent.append(segment)
        return self.flow.receive(segment)

    def open(self) -> Dialogue:
        assert plain(self.send(C, -1, flags=SYN)) == ["open syn"]
        assert self.send(S, -1, flags=SYN | ACK) == []
        assert self.send(C, 0) == []
        return self

    def wait(self, ns: int) -> Dialogue:
        self.ns += ns
        return self

    @property
    def connection(self) -> Connection:
        assert self.flow.connection is not None
        return self.flow.connection


def plain(events: Iterable[Event]) -> list[Any]:
    """Events without places, for reading."""
    found: list[Any] = []
    for event in events:
        match event:
            case Opened(connection):
                found.append(f"open {connection.opened}")
            case Data(direction, start, data, _):
                found.append((str(direction), start, data))
            case Hole(direction, start, end, _):
                found.append((str(direction), "hole", start, end))
            case Unordered(_):
                found.append("unordered")
            case OverlapDiffers(direction, start, end, _):
                found.append((str(direction), "differs", start, end))
            case ResetIgnored(direction, _):
                found.append(f"reset of {direction} ignored")
            case Closed(_, how, _):
                found.append(f"closed {how}")
    return found


def joined(events: Iterable[Event]) -> list[Any]:
    """`plain`, bytes that follow each other as one."""
    found: list[Any] = []
    for event in plain(events):
        before = found[-1] if found else None
        goes_on = before is not None and is_data(event) and is_data(before)
        if before is not None and goes_on and (before[0], before[1] + len(before[2])) == event[:2]:
            found[-1] = (*before[:2], before[2] + event[2])
        else:
            found.append(event)
    return found


def is_data(event: Any) -> bool:
    return isinstance(event, tuple) and isinstance(event[-1], bytes)


# Opening


def test_connections_of_one_moment_have_ids_of_their_own() -> None:
    """A coarse clock: other numbers and the same ones again, all at one time."""
    talk = Dialogue()
    ids = []
    for flags, start in ((SYN, 5), (SYN, 9), (SYN, 5), (RST, 5), (SYN, 7), (SYN, 5)):
        talk.ns = 0
        told = talk.send(C, start, flags=flags)
        ids += [event.connection.connection_id for event in told if isinstance(event, Opened)]
    assert len(ids) == len(set(ids)) == 5


def test_a_copy_of_a_syn_that_was_refused_opens_nothing() -> None:
    talk = Dialogue()
    for direction, flags in ((C, SYN), (S, RST | ACK), (C, SYN), (S, RST | ACK)):
        talk.ns = 0
        talk.send(direction, -1, flags=flags)
    assert (talk.connection.client.packets, talk.connection.server.packets) == (2, 2)
    assert plain(talk.send(C, -1, flags=SYN)) == ["open syn"]


def test_a_syn_with_data_is_answered_for_it_too() -> None:
    talk = Dialogue()
    assert plain(talk.send(C, -1, b"hello", SYN)) == ["open syn", ("client", 0, b"hello")]
    assert talk.send(S, -1, flags=SYN | ACK, acknowledgment=5) == []
    assert plain(talk.send(S, 0, b"hi", acknowledgment=5)) == [("server", 0, b"hi")]


def test_pieces_that_overlap_behind_a_gap_are_held_as_they_came() -> None:
    talk = Dialogue().open()
    for start in range(1, 19 * 2000, 19):
        talk.send(C, start, bytes(20))
    assert talk.connection.client._waiting_bytes == 19 * 2000 + 1
    assert len(talk.connection.client._waiting) == 2000
    assert len(joined(talk.send(C, 0, b"x"))) == 1


def test_fins_that_were_acknowledged_close_over_a_hole() -> None:
    talk = Dialogue().open()
    talk.send(C, 3, b"d", ACK | FIN)
    assert talk.send(S, 0, flags=ACK | FIN, acknowledgment=5) == []
    assert talk.send(C, 5, acknowledgment=1) == []
    assert talk.flow.expire(talk.ns + OPTIONS.hole_wait_ns - 1) == []
    told = plain(talk.flow.expire(talk.ns + OPTIONS.hole_wait_ns))
    assert told == [("client", "hole", 0, 3), ("client", 3, b"d"), "closed fin"]


def test_a_handshake_opens_once_whatever_is_sent_again() -> None:
    talk = Dialogue().open()
    assert talk.send(C, -1, flags=SYN) == talk.send(S, -1, flags=SYN | ACK) == []
    assert plain(talk.send(C, 0, b"hello")) == [("client", 0, b"hello")]
    assert plain(talk.send(S, 0, b"hi")) == [("server", 0, b"hi")]
    assert talk.send(C, -1, flags=SYN) == []
    assert (talk.connection.opened, talk.connection.client.packets, talk.connection.server.packets) == ("syn", 5, 3)
    assert (talk.connection.first.record_number, talk.connection.last.record_number) == (1, 8)


def test_with_the_answer_alone_bytes_are_numbered_from_the_handshake() -> None:
    talk = Dialogue()
    assert plain(talk.send(S, -1, flags=SYN | ACK)) == ["open syn_ack"]
    assert talk.send(C, -1, flags=SYN) == [], "a SYN that was captured after its answer"
    assert talk.send(C, 3, b"late") == []
    assert plain(talk.send(C, 0, b"not")) == [("client", 0, b"not"), ("client", 3, b"late")]
    opened = Dialogue().open()
    assert talk.connection.connection_id == opened.connection.connection_id


def test_both_sides_may_open_at_once() -> None:
    talk = Dialogue()
    assert plain(talk.send(S, -1, flags=SYN)) == ["open syn"]
    assert talk.send(C, -1, flags=SYN) == talk.send(C, -1, flags=SYN | ACK) == talk.send(S, -1, flags=SYN | ACK) == []
    assert plain(talk.send(S, 0, b"s") + talk.send(C, 0, b"c")) == [("server", 0, b"s"), ("client", 0, b"c")]


def test_a_late_answer_to_a_syn_with_data_opens_no_other_connection() -> None:
    talk = Dialogue()
    talk.send(C, -1, b"a", SYN)
    talk.send(C, 4, b"e", acknowledgment=1)
    talk.send(S, 1, b"x", acknowledgment=5)
    assert "open syn_ack" not in plain(talk.send(S, -1, flags=SYN | ACK, acknowledgment=1))


def test_a_syn_may_carry_data() -> None:
    talk = Dialogue()
    assert plain(talk.send(C, -1, b"early", SYN)) == ["open syn", ("client", 0, b"early")]
    assert talk.send(C, -1, b"early", SYN) == talk.send(S, -1, flags=SYN | ACK) == []
    assert plain(talk.send(C, 5, b" bird")) == [("client", 5, b" bird")]
    assert talk.connection.client.retransmitted_bytes == 5


def test_in_the_middle_bytes_are_numbered_from_the_first_that_arrives() -> None:
    talk = Dialogue()
    assert plain(talk.send(S, 90, flags=ACK)) == ["open middle"], "its own acknowledgment begins no numbering"
    assert talk.send(S, 100, b"second") == []
    assert plain(talk.send(C, 0, acknowledgment=106)) == [("server", 0, b"second")]
    assert talk.send(S, 95, b"first") == []
    assert plain(talk.send(S, 103, b"ond third")) == [("server", 6, b" third")]
    side = talk.connection.server
    assert (side.ignored_bytes, side.retransmitted_bytes, side.delivered_bytes) == (5, 3, 12)
    assert side.take_ignored() == [], "a SYN may follow"
    talk.wait(OPTIONS.hole_wait_ns).flow.expire(talk.ns)
    assert [(one.why, one.size, one.place.record_number) for one in side.take_ignored()] == [(Why.BEFORE, 5, 4)]
    talk.send(S, 90, b"again")
    talk.wait(OPTIONS.hole_wait_ns).flow.expire(talk.ns)
    assert side.take_ignored() == [], "it was said"


@pytest.mark.parametrize("is_first", [True, False])
def test_in_the_middle_a_stream_begins_where_its_receiver_waits(is_first: bool) -> None:
    talk = Dialogue()
    if is_first:
        assert plain(talk.send(S, 0, acknowledgment=100)) == ["open middle"]
        assert talk.send(C, 106, b"later") == []
    else:
        assert plain(talk.send(C, 106, b"later")) == ["open middle"]
    assert talk.send(S, 0, acknowledgment=100) == []
    assert plain(talk.send(C, 100, b"lost, ")) == [("client", 0, b"lost, "), ("client", 6, b"later")]
    assert talk.connection.client.missing_bytes == 0


@pytest.mark.parametrize("by_time", [True, False])
def test_bytes_of_before_the_capture_are_no_hole(by_time: bool) -> None:
    talk = Dialogue()
    talk.send(S, 0, acknowledgment=100)
    assert talk.send(C, 106, b"first") == []
    if by_time:
        events = talk.wait(OPTIONS.hole_wait_ns).send(C, 111)
    else:
        assert talk.send(S, 0, acknowledgment=103) == []
        events = talk.send(S, 0, b"answer", acknowledgment=106)
    assert plain(events) == [("client", 0, b"first"), *[("server", 0, b"answer")] * (not by_time)]
    assert plain(talk.send(C, 111, b"second")) == [("client", 5, b"second")]
    assert talk.connection.client.missing_bytes == 0


def test_in_the_middle_bytes_come_as_they_were_sent_once_they_are_answered() -> None:
    talk = Dialogue()
    assert plain(talk.send(C, 50, b"one", acknowledgment=80)) == ["open middle"]
    assert talk.send(C, 53, acknowledgment=80) == talk.send(C, 53, b"two", acknowledgment=80) == []
    events = talk.send(S, 80, b"answer", acknowledgment=56)
    assert plain(events) == [("client", 0, b"one"), ("client", 3, b"two"), ("server", 0, b"answer")]
    assert [event.place.record_number for event in events if isinstance(event, Data)] == [1, 3, 4]


@pytest.mark.parametrize("how", ["time", "segment", "many", "reset", "idle"])
def test_in_the_middle_bytes_that_nobody_answers_come_nevertheless(how: str) -> None:
    talk = Dialogue()
    talk.send(C, 50, b"one")
    end: list[Any] = []
    if how == "many":
        events = [event for at in range(HELD_SEGMENTS) for event in talk.send(C, 53 + at, b"x")]
        assert len(events) == HELD_SEGMENTS + 1
    elif how == "reset":
        events, end = talk.send(C, 53, flags=RST), ["closed reset"]
    elif how == "segment":
        events = talk.wait(OPTIONS.hole_wait_ns).send(C, 53)
    elif how == "time":
        assert talk.flow.ends_ns == talk.ns + OPTIONS.hole_wait_ns
        events = talk.flow.expire(talk.ns + OPTIONS.hole_wait_ns)
    else:
        events, end = talk.flow.expire(talk.ns + OPTIONS.idle_ns), ["closed idle"]
    assert plain(events)[: 1 + len(end)] == [("client", 0, b"one"), *end]
    assert isinstance(events[0], Data)
    assert events[0].place.record_number == 1


def test_in_the_middle_no_more_bytes_are_held_than_may_wait() -> None:
    talk = Dialogue(TcpOptions(max_waiting_bytes=5))
    assert plain(talk.send(C, 0, b"abc")) == ["open middle"]
    assert talk.send(C, 3, b"def") == []
    assert joined(talk.send(C, 6, b"ghi")) == [("client", 0, b"abcdefghi")]


def test_in_the_middle_what_was_acknowledged_before_the_first_byte_is_no_hole() -> None:
    talk = Dialogue()
    talk.send(S, 0, acknowledgment=10)
    talk.send(C, 20)
    assert plain(talk.send(S, 0, b"a", acknowledgment=20)) == [("server", 0, b"a")], "it waits for nothing"
    assert talk.send(S, 1, b"b", acknowledgment=30) == [], "what was sent later is waited for"
    assert plain(talk.send(C, 15, b"arrives late...")) == [("client", 0, b"arrives late..."), ("server", 1, b"b")]
    assert plain(talk.send(S, 2, flags=RST, acknowledgment=30)) == ["closed reset"]
    assert talk.connection.client.missing_bytes == 0


def test_in_the_middle_what_was_sent_after_its_first_packet_is_missing() -> None:
    talk = Dialogue()
    talk.send(C, 0)
    assert plain(talk.send(S, 0, b"a")) == [("server", 0, b"a")]
    assert talk.send(S, 1, b"b", acknowledgment=1022) == []
    events = talk.wait(OPTIONS.hole_wait_ns).send(C, 1022, b"c", acknowledgment=2)
    assert plain(events) == [("client", "hole", 0, 1022), ("server", 1, b"b"), ("client", 1022, b"c")]


def test_in_the_middle_a_packet_behind_held_bytes_is_not_the_first() -> None:
    """What stands between both was sent before the capture began, and is no hole."""
    talk = Dialogue()
    talk.send(C, 30, b"first", acknowledgment=5)
    talk.send(C, 10, acknowledgment=5)
    talk.send(C, 35, acknowledgment=6)
    events = talk.flow.expire(talk.ns + OPTIONS.hole_wait_ns)
    assert joined(events)[-1:] == [("client", 0, b"first")]


def test_of_held_segments_the_stream_begins_with_the_lowest_that_goes_on() -> None:
    talk = Dialogue()
    for start in (50, 2, 8, 14):
        talk.send(C, start, b"sixty "[:6])
    assert [one[:2] for one in plain(talk.send(S, 0, acknowledgment=20))] == [
        ("client", 0),
        ("client", 6),
        ("client", 12),
    ]


def test_data_of_the_server_captured_before_the_syn_are_of_the_connection() -> None:
    talk = Dialogue()
    assert plain(talk.send(S, 0, b"abc")) == ["open middle"]
    assert talk.send(C, -1, flags=SYN) == talk.send(S, -1, flags=SYN | ACK)[1:] == []
    assert plain(talk.send(C, 0, b"ask", acknowledgment=3)) == [("client", 0, b"ask")]
    talk = Dialogue()
    talk.send(S, 0, b"abc")
    assert plain(talk.send(C, 0, b"as")) == [("server", 0, b"abc"), ("client", 0, b"as")]
    assert talk.send(C, -1, flags=SYN) == talk.send(S, -1, flags=SYN | ACK) == []


def test_without_the_answer_to_a_syn_the_bytes_before_the_first_are_missing() -> None:
    talk = Dialogue()
    talk.send(C, -1, flags=SYN)
    talk.send(C, 0)
    assert talk.send(S, 7, b"hi") == []
    assert plain(talk.send(S, 2, b"01234")) == []
    assert plain(talk.send(S, 0, b"--")) == [("server", 0, b"--"), ("server", 2, b"01234"), ("server", 7, b"hi")]


def test_the_second_answer_to_a_syn_may_be_missing() -> None:
    talk = Dialogue()
    talk.send(C, -1, flags=SYN)
    talk.send(S, -1, flags=SYN | ACK)
    assert talk.send(C, 0, acknowledgment=2**27) == []
    assert plain(talk.send(S, 2**27, b"hello")) == [("server", 0, b"hello")]
    assert talk.connection.server.missing_bytes == 0
    talk = Dialogue().open()
    talk.send(C, 0, acknowledgment=2**27)
    assert plain(talk.send(S, 0, b"hello")) == [("server", 0, b"hello")], "it was garbled"


@pytest.mark.parametrize("payload", [b"more", b""])
def test_bytes_that_go_on_number_a_stream_whose_syn_was_not_captured(payload: bytes) -> None:
    talk = Dialogue()
    talk.send(C, -1, flags=SYN)
    talk.send(S, 2**30, flags=SYN | ACK)
    assert talk.send(S, 0, b"some") == []
    assert joined(talk.send(S, 4, payload)) == [("server", 0, b"some" + payload)]
    server = talk.connection.server
    assert (server.strays, server.ignored_bytes, server.missing_bytes, server.take_ignored()) == (0, 0, 0, [])


@pytest.mark.parametrize(("ahead", "wait_ns"), [(-(2**30), 10**10), (2**20, 0), (2**30, 10**10)])
def test_bytes_are_kept_until_it_is_known_which_answer_to_a_syn_numbers_them(ahead: int, wait_ns: int) -> None:
    """The first answer is `ahead` of the second, whose bytes come before it."""
    talk = Dialogue()
    talk.send(S, ahead - 1, flags=SYN | ACK)
    talk.send(S, 0, b"wel")
    events = talk.wait(wait_ns).send(S, -1, flags=SYN | ACK)
    events += talk.send(S, 3, b"co") + talk.send(S, 5, b"me", FIN | ACK) + talk.flow.expire(2**62)
    assert joined(events) == [("server", 0, b"welcome"), "closed idle"]
    assert_balances(talk.sent, told(talk.sent, cut=True))
    assert states(told(talk.sent, cut=True)) == states(told(talk.sent))


def test_an_acknowledgment_numbers_bytes_whose_syn_was_not_captured() -> None:
    talk = Dialogue()
    talk.send(C, -1, flags=SYN)
    talk.send(S, 2**30, flags=SYN | ACK)
    talk.send(S, 4, b"more")
    assert talk.send(C, 0, acknowledgment=0) == []
    assert joined(talk.send(S, 0, b"some")) == [("server", 0, b"somemore")]


def test_a_syn_that_is_captured_late_numbers_what_waits() -> None:
    talk = Dialogue()
    talk.send(C, -1, flags=SYN)
    talk.send(S, 2**30, flags=SYN | ACK)
    talk.send(C, 0, acknowledgment=2)
    assert talk.send(S, 4, b"more") == []
    assert talk.send(S, -1, flags=SYN | ACK) == []
    assert joined(talk.send(S, 0, b"some")) == [("server", 0, b"somemore")]


def test_a_garbled_reset_does_not_begin_a_stream() -> None:
    talk = Dialogue()
    talk.send(C, 5, b"5")
    talk.send(C, 3, b"34")
    assert talk.send(C, 9999, flags=RST) == []
    assert talk.send(C, 0, b"012") == []
    assert joined(talk.send(S, 0, acknowledgment=0)) == [("client", 0, b"012345")]


def test_held_bytes_behind_a_syn_all_count() -> None:
    talk = Dialogue()
    talk.send(C, -1, flags=SYN)
    assert talk.send(S, 8, b"more") == talk.send(S, 0, b"some") == []
    assert joined(talk.send(C, 0, acknowledgment=4)) == [("server", 0, b"some")]


def test_a_reset_where_bytes_wait_for_the_other_side_closes_nothing() -> None:
    talk = Dialogue().open()
    talk.send(S, 0, b"answer", acknowledgment=5)
    assert talk.send(S, 0, flags=RST) == []
    assert talk.send(C, 5, acknowledgment=6) == []
    assert joined(talk.send(C, 0, b"asked")) == [("client", 0, b"asked"), ("server", 0, b"answer")]


def test_bytes_held_before_a_late_answer_to_their_syn_wait_for_what_they_acknowledge() -> None:
    talk = Dialogue()
    talk.send(C, 0, acknowledgment=0)
    for at, acknowledged in ((0, 0), (3, 9), (6, 12)):
        assert talk.send(C, at, b"ask", acknowledgment=acknowledged) == []
    assert joined(talk.send(S, -1, flags=SYN | ACK)) == [("client", 0, b"ask")]
    assert joined(talk.send(S, 0, b"answered!", acknowledgment=3)) == [
        ("server", 0, b"answered!"),
        ("client", 3, b"ask"),
    ]


@pytest.mark.parametrize("answered", ["never", "late", "first"])
def test_the_first_bytes_of_a_server_count_whatever_order_the_capture_has(answered: str) -> None:
    talk = Dialogue()
    told = [*talk.send(C, -1, flags=SYN)]
    if answered == "first":
        told += talk.send(S, -1, flags=SYN | ACK)
    told += talk.send(C, 3, b"def", acknowledgment=3)
    told += talk.send(S, 3, b"DEF", acknowledgment=6)
    told += talk.send(C, 0, b"abc")
    told += talk.send(S, 0, b"ABC", acknowledgment=3)
    if answered == "late":
        told += talk.send(S, -1, flags=SYN | ACK)
    told += talk.send(C, 6, b"ghi", acknowledgment=6)
    assert joined(told) == [
        "open syn",
        ("client", 0, b"abc"),
        ("server", 0, b"ABC"),
        ("client", 3, b"def"),
        ("server", 3, b"DEF"),
        ("client", 6, b"ghi"),
    ]


@pytest.mark.parametrize("ahead", [500, 60_000, 2**23, 2**28])
def test_an_answer_to_a_syn_above_what_the_client_acknowledges_is_not_the_one_that_holds(ahead: int) -> None:
    talk = Dialogue()
    told = [*talk.send(C, -1, flags=SYN), *talk.send(S, ahead - 1, flags=SYN | ACK), *talk.send(C, 0)]
    told += [*talk.send(C, 0, b"abc"), *talk.send(S, 0, b"ABC", acknowledgment=3), *talk.send(C, 3, acknowledgment=3)]
    assert joined(told) == ["open syn", ("client", 0, b"abc"), ("server", 0, b"ABC")]
    assert talk.connection.server.ignored_bytes == 0


@pytest.mark.parametrize("ahead", [ACKNOWLEDGED_BYTES + 1, 2**20, 2**23])
def test_an_answer_to_a_syn_far_below_what_the_client_acknowledges_first_is_not_the_one_that_holds(ahead: int) -> None:
    talk = Dialogue()
    told = [*talk.send(C, -1, flags=SYN), *talk.send(S, -1 - ahead, flags=SYN | ACK), *talk.send(C, 0)]
    told += [*talk.send(C, 0, b"abc"), *talk.send(S, 0, b"ABC", acknowledgment=3), *talk.send(C, 3, acknowledgment=3)]
    assert joined(told) == ["open syn", ("client", 0, b"abc"), ("server", 0, b"ABC")]


def test_many_bytes_that_are_acknowledged_after_the_answer_to_a_syn_are_missing() -> None:
    """The client acknowledged the answer itself: so it holds."""
    talk = Dialogue().open()
    size = 2 * ACKNOWLEDGED_BYTES
    talk.send(C, 0, acknowledgment=size)
    told = [*talk.send(S, size, b"ABC"), *talk.send(C, 0, b"abc", acknowledgment=size + 3)]
    told += talk.wait(OPTIONS.hole_wait_ns).send(S, size + 3)
    assert joined(told)[0] == ("server", "hole", 0, size)


@pytest.mark.parametrize("ahead", [500, 2**20])
def test_an_old_answer_to_a_syn_that_is_captured_late_changes_nothing(ahead: int) -> None:
    talk = Dialogue().open()
    told = [*talk.send(S, 0, b"ABC", acknowledgment=3), *talk.send(S, -1 - ahead, flags=SYN | ACK)]
    told += talk.send(C, 0, b"abc")
    assert joined(told) == [("client", 0, b"abc"), ("server", 0, b"ABC")]
    assert not talk.connection.server.may_lack_beginning


def test_the_first_bytes_of_a_server_wait_while_its_client_lacks_its_own() -> None:
    talk = Dialogue()
    told = [*talk.send(C, -1, flags=SYN), *talk.send(C, 3, b"def", acknowledgment=3)]
    told += [*talk.send(S, 3, b"DEF", acknowledgment=6), *talk.send(C, 6, b"ghi", acknowledgment=6)]
    told += [*talk.send(C, 0, b"abc"), *talk.send(S, 0, b"ABC", acknowledgment=3)]
    sides: dict[str, bytes] = {}
    for event in joined(told)[1:]:
        sides[event[0]] = sides.get(event[0], b"") + event[2]
    assert sides == {"client": b"abcdefghi", "server": b"ABCDEF"}


@pytest.mark.parametrize(("captured", "lacks"), [("SYN", True), ("SYN, ACK", False), ("SYN, SYN-ACK", False)])
def test_bytes_that_alone_say_where_they_begin_may_not_be_the_first(captured: str, lacks: bool) -> None:
    talk = Dialogue()
    talk.send(C, -1, flags=SYN)
    if captured == "SYN, ACK":
        talk.send(C, 0)
    elif captured == "SYN, SYN-ACK":
        talk.send(S, -1, flags=SYN | ACK)
    talk.send(S, 0, b"ABC")
    talk.send(C, 0, b"abc", acknowledgment=3)
    assert (talk.connection.client.may_lack_beginning, talk.connection.server.may_lack_beginning) == (False, lacks)


def test_an_answer_to_a_syn_that_comes_after_its_first_bytes_says_that_they_are_the_first() -> None:
    talk = Dialogue()
    talk.send(C, -1, flags=SYN)
    talk.send(S, 0, b"ABC")
    talk.send(C, 0, b"abc", acknowledgment=3)
    assert talk.connection.server.may_lack_beginning
    talk.send(S, -1, flags=SYN | ACK)
    assert not talk.connection.server.may_lack_beginning


@pytest.mark.parametrize("first", [C, S])
def test_an_acknowledgment_just_before_its_syn_opens_no_connection_of_its_own(first: Direction) -> None:
    talk = Dialogue()
    told = [*talk.send(first, 0, acknowledgment=0), *talk.send(C, -1, flags=SYN), *talk.send(S, -1, flags=SYN | ACK)]
    told += [*talk.send(C, 0, b"abc"), *talk.send(S, 0, b"ABC", acknowledgment=3)]
    assert joined(told) == ["open middle", ("client", 0, b"abc"), ("server", 0, b"ABC")]


def test_an_acknowledgment_before_its_syn_is_no_beginning_in_the_middle() -> None:
    talk = Dialogue()
    talk.send(C, 0, acknowledgment=0)
    assert talk.send(C, 0, b"ask", acknowledgment=0) == []
    assert joined(talk.send(C, -1, flags=SYN)) == [("client", 0, b"ask")]
    assert talk.send(C, 3, b"more", acknowledgment=6) == []
    assert talk.send(S, -1, flags=SYN | ACK) == []
    assert joined(talk.send(S, 0, b"answer", acknowledgment=3)) == [("server", 0, b"answer"), ("client", 3, b"more")]


@pytest.mark.parametrize("direction", [C, S])
@pytest.mark.parametrize("ahead", [500, 2**23])
def test_a_syn_behind_bytes_that_are_held_is_of_another_connection(direction: Direction, ahead: int) -> None:
    """All bytes of a connection stand behind its SYN."""
    talk = Dialogue()
    old = talk.send(direction, 0, b"old", acknowledgment=0)
    old += talk.send(C, ahead - 1, flags=SYN)
    assert joined(old) == ["open middle", (str(direction), 0, b"old"), "closed reuse", "open syn"]
    talk.send(S, 2**29 - 1, flags=SYN | ACK, acknowledgment=ahead)
    assert joined(talk.send(C, ahead, b"new", acknowledgment=2**29)) == [("client", 0, b"new")]


def test_a_reset_behind_bytes_that_are_held_closes() -> None:
    talk = Dialogue()
    assert plain(talk.send(C, 0, b"abc")) == ["open middle"]
    assert plain(talk.send(C, 3, flags=RST)) == [("client", 0, b"abc"), "closed reset"]


@pytest.mark.parametrize("captured", [False, True])
def test_a_syn_that_was_not_captured_may_have_carried_the_first_bytes(captured: bool) -> None:
    talk = Dialogue()
    talk.send(S, -1, flags=SYN | ACK, acknowledgment=5)
    if captured:
        talk.send(C, -1, b"early", SYN)
    told = [*talk.send(C, 5), *talk.send(S, 0, acknowledgment=5), *talk.send(C, 5, b"more")]
    assert joined(told) == [("client", 5 * captured, b"more")]
    client = talk.connection.client
    assert (client.may_lack_beginning, client.is_guessed) == (not captured, not captured)


def test_a_fast_open_may_be_captured_after_its_answer() -> None:
    talk = Dialogue()
    talk.send(S, -1, flags=SYN | ACK, acknowledgment=5)
    assert plain(talk.send(C, -1, b"early", SYN)) == [("client", 0, b"early")]
    assert plain(talk.send(C, 5, b"!")) == [("client", 5, b"!")]


def test_a_hole_ends_where_the_fin_stands() -> None:
    talk = Dialogue().open()
    talk.send(S, 5, flags=FIN | ACK)
    assert talk.send(C, 0, b"next", acknowledgment=6) == []
    events = talk.wait(OPTIONS.hole_wait_ns).send(C, 4, flags=FIN | ACK, acknowledgment=6)
    assert plain(events) == [("server", "hole", 0, 5), ("client", 0, b"next"), "closed fin"]


def test_a_garbled_acknowledgment_numbers_nothing() -> None:
    for garbled in (2**30, -(2**30)):
        talk = Dialogue()
        talk.send(C, -1, flags=SYN)
        talk.send(C, 0, acknowledgment=garbled)
        assert plain(talk.send(S, 0, b"hi")) == [("server", 0, b"hi")]
        assert talk.connection.server.strays == 0


# One side


def test_a_side_that_was_not_captured_is_numbered_by_acknowledgments() -> None:
    talk = Dialogue()
    talk.send(C, -1, flags=SYN)
    talk.send(C, 0)
    assert plain(talk.send(C, 0, b"a")) == [("client", 0, b"a")]
    assert talk.send(C, 1, b"b", acknowledgment=7) == [], "the other side may come late"
    events = talk.wait(OPTIONS.hole_wait_ns).send(C, 2, b"c", acknowledgment=9)
    assert plain(events) == [
        *[("server", "hole", 0, 7), ("client", 1, b"b")],
        *[("server", "hole", 7, 9), ("client", 2, b"c")],
    ]
    assert plain(talk.send(C, 3, b"d", acknowledgment=12)) == [("server", "hole", 9, 12), ("client", 3, b"d")]
    assert plain(talk.send(C, 4, flags=RST | ACK, acknowledgment=14)) == [("server", "hole", 12, 13), "closed reset"]
    assert (talk.connection.server.packets, talk.connection.server.missing_bytes) == (0, 13)


def test_time_alone_says_that_a_side_is_not_captured() -> None:
    talk = Dialogue()
    talk.send(C, -1, flags=SYN)
    talk.send(C, 0)
    assert talk.send(C, 0, b"a", acknowledgment=7) == []
    due_ns = talk.connection.first.arrived_at_ns + OPTIONS.hole_wait_ns
    assert talk.flow.ends_ns == due_ns
    assert talk.flow.expire(due_ns - 1) == []
    talk.flow = new_flow(snapshot=talk.flow.snapshot())
    events = talk.flow.expire(due_ns)
    assert plain(events) == [("server", "hole", 0, 7), ("client", 0, b"a")]
    places = {event.place for event in events if isinstance(event, (Data, Hole))}
    assert places == {replace(talk.sent[-1].place, arrived_at_ns=due_ns)}
    assert talk.flow.expire(due_ns) == []


@pytest.mark.parametrize("acknowledged", [0, 2, 3])
def test_time_makes_no_hole_of_what_the_receiver_lacks_too(acknowledged: int) -> None:
    talk = Dialogue().open()
    assert plain(talk.send(C, 0, b"abc")) == [("client", 0, b"abc")]
    assert talk.send(C, 6, b"ghi") == []
    assert talk.send(S, 0, acknowledgment=acknowledged) == [], "also what was captured may have been lost behind"
    assert talk.wait(11 * SECOND).send(C, 9, b"jkl") == []
    assert plain(talk.send(C, 3, b"def")) == [("client", 3, b"def"), ("client", 6, b"ghi"), ("client", 9, b"jkl")]


def test_time_makes_a_hole_of_what_the_receiver_has_of_a_gap() -> None:
    talk = Dialogue().open()
    talk.send(C, 6, b"ghi")
    talk.send(S, 0, acknowledgment=2)
    assert plain(talk.wait(11 * SECOND).send(S, 0, acknowledgment=2)) == [("client", "hole", 0, 2)]
    assert plain(talk.send(C, 2, b"cdef")) == [("client", 2, b"cdef"), ("client", 6, b"ghi")]


def test_time_makes_a_hole_where_the_receiver_is_not_heard() -> None:
    talk = Dialogue().open()
    talk.send(C, 3, b"def")
    assert plain(talk.wait(11 * SECOND).send(C, 6, b"ghi")) == [
        ("client", "hole", 0, 3),
        ("client", 3, b"def"),
        ("client", 6, b"ghi"),
    ]


@pytest.mark.parametrize("apart", [False, True])
def test_the_fin_of_a_side_that_was_not_captured_is_not_missing(apart: bool) -> None:
    talk = Dialogue()
    told = [*talk.send(C, -1, flags=SYN), *talk.send(C, 0), *talk.send(C, 0, b"ask")]
    told += talk.send(C, 3, flags=FIN | ACK, acknowledgment=6)
    told += talk.send(C, 4, acknowledgment=7)
    ends = [talk.ns + OPTIONS.hole_wait_ns, talk.ns + OPTIONS.idle_ns][1 - apart :]
    told += [event for end in ends for event in talk.flow.expire(end)]
    missing = [one for one in joined(told) if "hole" in one]
    assert missing == [("server", "hole", 0, 6)]


@pytest.mark.parametrize("short", [True, False])
def test_what_a_side_without_bytes_acknowledges_of_one_not_captured_is_a_hole_at_once(short: bool) -> None:
    talk = Dialogue()
    talk.send(C, -1, flags=SYN)
    talk.send(C, 0, acknowledgment=0)
    talk.wait(OPTIONS.hole_wait_ns).send(C, 0, acknowledgment=5)
    talk.send(C, 0, acknowledgment=9)
    found = told(talk.sent, short=short).events
    assert [(one.byte_start, one.byte_end, one.place.record_number) for one in found if isinstance(one, Hole)] == [
        (0, 5, 3),
        (5, 9, 4),
    ]


def test_a_side_that_is_heard_late_keeps_its_bytes() -> None:
    talk = Dialogue()
    talk.send(C, -1, flags=SYN)
    talk.send(C, 0)
    talk.send(C, 0, b"a", acknowledgment=7)
    assert talk.send(S, -1, flags=SYN | ACK) == []
    assert plain(talk.send(S, 0, b"welcome")) == [("server", 0, b"welcome"), ("client", 0, b"a")]
    talk = Dialogue()
    talk.send(C, -1, flags=SYN)
    talk.send(C, 0, b"a", acknowledgment=7)
    assert plain(talk.send(S, 0, b"welcome")) == [("server", 0, b"welcome")], "the handshake was lost"
    assert plain(talk.send(S, 9, b"!")) == []
    assert plain(talk.wait(OPTIONS.hole_wait_ns).send(C, 1, acknowledgment=10)) == [
        ("server", "hole", 7, 9),
        ("server", 9, b"!"),
    ]


def swapped(talk: Dialogue, *order: int) -> list[Any]:
    """What comes if the segments of `talk` arrive in another order, in moments of the same distance."""
    flow = new_flow()
    places = [segment.place for segment in talk.sent]
    arriving = [talk.sent[at]._replace(place=place) for at, place in zip(order, places, strict=True)]
    return [event for segment in arriving for event in plain(flow.receive(segment))]


def test_bytes_that_are_captured_before_the_other_side_is_numbered_wait_for_what_they_answer() -> None:
    talk = Dialogue()
    talk.send(C, -1, flags=SYN)
    talk.send(S, -1, flags=SYN | ACK)
    talk.send(C, 0)
    talk.send(C, 0, b"hello")
    talk.send(S, 0, b"ok", acknowledgment=5)
    talk.send(C, 5, b"notify", acknowledgment=2)
    expected = [("client", 0, b"hello"), ("server", 0, b"ok"), ("client", 5, b"notify")]
    for order in ((0, 5, 1, 2, 3, 4), (0, 5, 4, 3, 2, 1), (0, 3, 5, 1, 4, 2), (0, 3, 5, 4, 1, 2)):
        assert swapped(talk, *order) == ["open syn", *expected], order


def test_who_is_captured_later_is_waited_for() -> None:
    """Two taps have two clocks: one side comes as a whole before the other."""
    talk = Dialogue()
    talk.send(C, 0, b"hello")
    talk.send(S, 0, b"ok", acknowledgment=5)
    talk.send(C, 5, b"notify", acknowledgment=2)
    talk.send(S, 2, b"ack", acknowledgment=11)
    talk.send(C, 11, b"message", acknowledgment=5)
    expected = [
        *[("client", 0, b"hello"), ("server", 0, b"ok"), ("client", 5, b"notify")],
        *[("server", 2, b"ack"), ("client", 11, b"message")],
    ]
    assert swapped(talk, 1, 3, 0, 2, 4) == ["open middle", *expected]
    assert swapped(talk, 1, 0, 3, 2, 4) == ["open middle", *expected]
    talk.sent.insert(0, talk.sent[0]._replace(sequence=ISN[C], flags=SYN, payload=b"", payload_bytes=0))
    assert swapped(talk, 0, 1, 3, 5, 2, 4) == ["open syn", *expected]


def test_what_was_acknowledged_is_a_hole_before_its_answer_although_bytes_before_it_came() -> None:
    talk = Dialogue()
    talk.send(S, -1, flags=SYN | ACK)
    talk.send(S, 0, b"ok", acknowledgment=5)
    talk.send(S, 2, b"ack", acknowledgment=11)
    talk.send(C, -1, flags=SYN)
    assert plain(talk.send(C, 0, b"hello")) == [("client", 0, b"hello"), ("server", 0, b"ok")]
    events = new_flow(snapshot=talk.flow.snapshot()).expire(talk.ns + OPTIONS.idle_ns)
    assert plain(events) == [("client", "hole", 5, 10), ("server", 2, b"ack"), "closed idle"], "or a FIN"
    assert talk.send(S, 5, acknowledgment=11) == []
    events = talk.wait(OPTIONS.hole_wait_ns).send(S, 5, acknowledgment=11)
    assert plain(events) == [("client", "hole", 5, 11), ("server", 2, b"ack")]


def test_first_bytes_that_were_lost_with_the_handshake_are_a_hole() -> None:
    talk = Dialogue()
    talk.send(C, -1, flags=SYN)
    talk.send(C, 0)
    assert plain(talk.send(S, 12, b"later")) == []
    events = talk.wait(OPTIONS.hole_wait_ns).send(C, 0, acknowledgment=17)
    assert plain(events) == [("server", "hole", 0, 12), ("server", 12, b"later")]


def test_a_side_captured_from_the_middle_alone_has_holes() -> None:
    talk = Dialogue()
    assert plain(talk.send(C, 50, b"a", acknowledgment=7)) == ["open middle"]
    assert talk.send(C, 51, b"b", acknowledgment=9) == []
    events = talk.wait(OPTIONS.hole_wait_ns).send(C, 52, b"c", acknowledgment=12)
    assert plain(events) == [("client", 0, b"a"), ("client", 1, b"b"), ("server", "hole", 0, 3), ("client", 2, b"c")]


@pytest.mark.parametrize("starts", [(0,), (5, 0)])
def test_what_arrived_before_a_late_syn_is_of_its_connection(starts: tuple[int, ...]) -> None:
    talk = Dialogue()
    for start in starts:
        talk.send(C, start, b"first"[:5])
    expected = [("client", start, b"first") for start in sorted(starts)]
    assert plain(talk.send(C, -1, flags=SYN)) == expected
    assert talk.send(S, -1, flags=SYN | ACK) == []
    assert talk.connection.client.missing_bytes == talk.connection.client.ignored_bytes == 0


def test_what_arrived_before_the_answer_to_its_syn_is_of_its_connection() -> None:
    talk = Dialogue()
    talk.send(C, 0, b"first")
    assert plain(talk.send(S, -1, flags=SYN | ACK)) == [("client", 0, b"first")]
    assert talk.send(C, -1, flags=SYN) == []


# What a sender knew


def test_a_sender_knew_what_it_acknowledged() -> None:
    talk = Dialogue().open()
    talk.send(S, 0, b"question")
    talk.send(C, 0, b"early")
    talk.send(C, 5, b"answer", acknowledgment=8)
    talk.send(S, 8, b"?")
    talk.send(C, 11, b"more", acknowledgment=8)
    talk.send(C, 15, b"late", acknowledgment=9)
    client = talk.connection.client
    assert [client.peer_received(end) for end in (1, 5, 6, 11, 15, 16, 19)] == [0, 0, 8, 8, 8, 9, 9]
    client.forget_received(19)
    assert client.peer_received(19) == 9
    assert new_flow(snapshot=talk.flow.snapshot()).connection.client.peer_received(20) == 9  # type: ignore[union-attr]


def test_what_is_numbered_anew_says_nothing_of_who_had_acknowledged_none_of_it() -> None:
    talk = Dialogue()
    assert plain(talk.send(S, 0, b"answer", acknowledgment=5)) == ["open middle"]
    assert talk.send(S, 6, acknowledgment=90) == []
    assert plain(talk.send(C, 0, b"hello")) == [("client", 0, b"hello"), ("server", 0, b"answer")]
    assert talk.connection.server.peer_received(6) == 5


def test_what_fills_a_gap_is_late_and_so_is_what_waited_for_it() -> None:
    talk = Dialogue().open()
    talk.send(C, 0, b"abc")
    talk.send(C, 6, b"ghi")
    talk.send(C, 3, b"def")
    talk.send(C, 9, b"jkl")
    client = new_flow(snapshot=talk.flow.snapshot()).connection.client  # type: ignore[union-attr]
    assert [client.is_late(end) for end in (3, 4, 6, 9, 10, 12)] == [False, True, True, True, False, False]
    client.forget_received(12)
    assert client.is_late(12) is False


def test_what_comes_in_order_or_twice_is_not_late() -> None:
    talk = Dialogue().open()
    for start in (0, 3, 0, 3):
        talk.send(C, start, b"abc")
    talk.send(S, 0, b"answer", acknowledgment=6)
    assert not talk.connection.client.is_late(1)
    assert not talk.connection.server.is_late(1)


def test_what_waited_for_the_other_side_is_late() -> None:
    talk = Dialogue().open()
    talk.send(S, 0, b"answer", acknowledgment=6)
    talk.send(C, 0, b"abcdef")
    assert talk.connection.server.is_late(6)


@pytest.mark.parametrize(("acknowledged", "late", "knew"), [(0, False, 6), (3, True, 0), (6, True, 0)])
def test_bytes_that_were_acknowledged_before_they_came_were_sent_before(
    acknowledged: int, late: bool, knew: int
) -> None:
    """They are sent again, by someone who knows more: their first sending wasn't captured."""
    talk = Dialogue().open()
    talk.send(S, 0, b"answer")
    talk.send(S, 6, acknowledgment=acknowledged)
    talk.send(C, 0, b"abcdef", acknowledgment=6)
    talk.send(C, 6, b"ghi", acknowledgment=6)
    client = new_flow(snapshot=talk.flow.snapshot()).connection.client  # type: ignore[union-attr]
    assert (client.is_late(6), client.peer_received(6)) == (late, knew)
    assert (client.is_late(9), client.peer_received(9)) == (False, 6)


def test_bytes_before_a_segment_without_any_were_sent_before() -> None:
    """The segment was sent behind them, by someone who didn't know the answer yet. Nobody captured them then."""
    talk = Dialogue().open()
    talk.send(C, 0, b"abc")
    talk.send(S, 0, b"answer", acknowledgment=3)
    talk.send(C, 6, acknowledgment=0)
    talk.send(C, 3, b"def", acknowledgment=6)
    talk.send(C, 6, b"ghi", acknowledgment=6)
    client = new_flow(snapshot=talk.flow.snapshot()).connection.client  # type: ignore[union-attr]
    assert [client.is_late(end) for end in (3, 6, 9)] == [False, True, False]
    assert [client.peer_received(end) for end in (3, 6, 9)] == [0, 0, 6]
    assert client.missing_bytes == 0


def test_who_is_heard_first_with_an_answer_knew_more() -> None:
    for payload, knew in ((b"", 0), (b"answer", 1)):
        talk = Dialogue()
        talk.send(C, -1, flags=SYN)
        talk.send(C, 0, payload, acknowledgment=8)
        talk.send(C, len(payload), b"more", acknowledgment=8)
        assert talk.connection.client.peer_received(len(payload) + 4) == knew


def test_what_fills_a_gap_was_sent_before_what_stands_behind_it() -> None:
    talk = Dialogue().open()
    talk.send(S, 0, b"question")
    talk.send(C, 0, b"early")
    talk.send(C, 6, b"x", acknowledgment=2)
    talk.send(C, 5, b"?", acknowledgment=8)
    talk.send(C, 7, b"x", acknowledgment=2**28)
    talk.send(C, 8, b"x", acknowledgment=8)
    client = talk.connection.client
    assert [client.peer_received(end) for end in (5, 6, 7, 8, 9)] == [0, 0, 2, 2, 8]


# Order, repetition, wrap


def test_bytes_wait_for_those_before_them() -> None:
    talk = Dialogue().open()
    assert talk.send(C, 6, b"67") == talk.send(C, 3, b"34") == []
    assert plain(talk.send(S, 0, b"x")) == [("server", 0, b"x")]
    events = talk.send(C, 0, b"012")
    assert plain(events) == [("client", 0, b"012"), ("client", 3, b"34")]
    assert {event.place.record_number for event in events if isinstance(event, Data)} == {7}
    assert plain(talk.send(C, 5, b"5")) == [("client", 5, b"5"), ("client", 6, b"67")]
    side = talk.connection.client
    assert (side.out_of_order, side.retransmitted_bytes, side.delivered_bytes) == (3, 0, 8)


@pytest.mark.property
def test_streams_are_longer_than_sequence_numbers() -> None:
    talk = Dialogue().open()
    piece = bytes(65_535)
    for at in range(0, 2**32 + 2**20, len(piece)):
        (event,) = talk.send(C, at, piece)
        assert isinstance(event, Data)
        assert event.byte_start == at
    assert talk.connection.client.delivered_bytes > 2**32
    assert len(talk.flow.snapshot()) < 3 * OPTIONS.compared_bytes


def test_the_first_bytes_count_and_a_difference_is_told() -> None:
    talk = Dialogue().open()
    talk.send(C, 0, b"0123456789")
    assert plain(talk.send(C, 5, b"5x7y9abc")) == [("client", "differs", 6, 9), ("client", 10, b"abc")]
    assert talk.send(C, 0, b"0123456789abc") == []
    assert talk.send(C, 20, b"KLMN") == []
    assert plain(talk.send(C, 18, b"ijkLMNOP")) == [("client", "differs", 20, 21)]
    assert joined(talk.send(C, 13, b"defgh")) == [("client", 13, b"defghijKLMNOP")]
    side = talk.connection.client
    assert (side.overlaps_differ, side.retransmitted_bytes, side.out_of_order) == (2, 5 + 13 + 4, 2)


def test_a_difference_is_told_after_a_snapshot_too_and_within_limits() -> None:
    talk = Dialogue(TcpOptions(compared_bytes=4)).open()
    talk.send(C, 0, b"abcdefgh")
    talk.flow = new_flow(TcpOptions(compared_bytes=4), talk.flow.snapshot())
    assert plain(talk.send(C, 0, b"ABCDEFGH")) == [("client", "differs", 4, 8)]
    assert plain(Dialogue(TcpOptions(compared_bytes=0)).open().send(C, 0, b"a")) == [("client", 0, b"a")]


def test_one_segment_may_lie_over_many_that_wait() -> None:
    talk = Dialogue().open()
    for start in (2, 6, 10):
        assert talk.send(C, start, bytes([65 + start])) == []
    assert talk.send(C, 1, bytes(range(66, 76))) == []
    assert joined(talk.send(C, 0, b"A")) == [("client", 0, bytes(range(65, 76)))]


def test_of_a_segment_that_differs_from_many_that_wait_one_difference_is_said() -> None:
    talk = Dialogue().open()
    for start in range(1, 40, 2):
        assert talk.send(C, start, b"a") == []
    assert plain(talk.send(C, 0, b"b" * 40)) == [
        ("client", "differs", 1, 40),
        *[("client", at, b"a" if at % 2 else b"b") for at in range(40)],
    ]
    assert talk.connection.client.overlaps_differ == 1


def test_keep_alives_are_no_data() -> None:
    talk = Dialogue().open()
    talk.send(C, 0, b"abc")
    assert talk.send(C, 2, b"\0") == talk.send(C, 2) == talk.send(C, 2, b"c") == []
    talk.send(C, 5, b"fg")
    assert talk.send(C, 6, b"\0") == [], "one byte before the furthest"
    side = talk.connection.client
    assert (side.ignored_bytes, side.retransmitted_bytes, side.overlaps_differ) == (3, 0, 0)


def test_zero_windows_are_counted_but_not_those_of_resets() -> None:
    talk = Dialogue().open()
    talk.send(S, 0, window=0)
    talk.send(S, 0, b"stop", window=0)
    talk.send(S, 4, flags=RST, window=0)
    assert (talk.connection.server.zero_windows, talk.connection.client.zero_windows) == (2, 0)


# Holes


@pytest.mark.parametrize("direction", Direction)
def test_a_hole_is_told_by_the_first_segment_after_the_wait(direction: Direction) -> None:
    talk = Dialogue().open()
    assert talk.send(C, 4, b"late") == []
    talk.wait(OPTIONS.hole_wait_ns - 2000)
    acknowledged = 0 if direction is C else 8
    assert talk.send(direction, 0, acknowledgment=acknowledged) == []
    events = talk.send(direction, 0, acknowledgment=acknowledged)
    assert plain(events) == [("client", "hole", 0, 4), ("client", 4, b"late")]
    assert {event.place.record_number for event in events if isinstance(event, Data | Hole)} == {6}
    assert (talk.connection.client.missing_bytes, talk.connection.client.delivered_bytes) == (4, 4)
    assert talk.send(C, 0, b"gone") == []
    assert (talk.connection.client.ignored_bytes, talk.connection.client.retransmitted_bytes) == (4, 0)


@pytest.mark.parametrize("is_open", [True, False])
def test_bytes_that_come_after_their_gap_was_given_up_are_said(is_open: bool) -> None:
    talk = Dialogue().open()
    told = [*talk.send(C, 0, b"ab"), *talk.send(C, 6, b"gh"), *talk.send(S, 0, acknowledgment=8)]
    told += talk.wait(OPTIONS.hole_wait_ns).send(S, 0, acknowledgment=8)
    assert joined(told) == [("client", 0, b"ab"), ("client", "hole", 2, 6), ("client", 6, b"gh")]
    if not is_open:
        talk.send(C, 8, flags=RST)
    talk.flow = new_flow(snapshot=talk.flow.snapshot())
    talk.send(C, 0, b"abcd")
    talk.send(C, 6, b"gh")
    client = talk.connection.client
    counted = (2, 4) if is_open else (6, 0)
    assert (client.ignored_bytes, client.retransmitted_bytes) == counted
    talk.flow.expire(talk.ns + OPTIONS.hole_wait_ns)
    why, size = (Why.GIVEN_UP, 2) if is_open else (Why.AFTER, 4)
    assert [(one.why, one.size) for one in client.take_ignored()] == [(why, size)]


def test_bytes_after_the_wait_still_fill_their_gap() -> None:
    talk = Dialogue().open()
    talk.send(C, 4, b"late")
    talk.wait(60 * SECOND)
    assert plain(talk.send(C, 0, b"slow")) == [("client", 0, b"slow"), ("client", 4, b"late")]


def test_each_gap_waits_since_it_was_known() -> None:
    talk = Dialogue().open()
    talk.send(C, 1, b"b")
    talk.wait(9 * SECOND).send(C, 3, b"d")
    assert plain(talk.wait(2 * SECOND).send(C, 5, b"f")) == [("client", "hole", 0, 1), ("client", 1, b"b")]
    acknowledged = talk.wait(9 * SECOND).send(S, 0, acknowledgment=6)
    assert plain(acknowledged) == [("client", "hole", 2, 3), ("client", 3, b"d")]
    talk = Dialogue().open()
    talk.send(C, 1, b"b")
    talk.send(C, 3, b"d")
    talk.wait(9 * SECOND).send(C, 3, b"de")
    acknowledged = talk.wait(2 * SECOND).send(S, 0, acknowledgment=5)
    assert joined(acknowledged)[2:] == [("client", "hole", 2, 3), ("client", 3, b"de")]


def test_bytes_that_the_receiver_lacks_too_are_waited_for() -> None:
    talk = Dialogue().open()
    assert talk.send(C, 0, b"0123") != []
    assert talk.send(C, 8, b"89ab") == []
    assert talk.send(S, 0, acknowledgment=4) == []
    assert talk.wait(60 * SECOND).send(S, 0, acknowledgment=4) == talk.send(C, 12, b"cd") == []
    restored = new_flow(snapshot=talk.flow.snapshot())
    assert restored.snapshot() == talk.flow.snapshot()
    assert joined(talk.send(C, 4, b"4567")) == [("client", 4, b"456789abcd")]
    assert talk.connection.client.missing_bytes == 0
    # Another gap, of which the receiver has the bytes after all.
    assert talk.send(C, 18, b"ij") == talk.send(S, 0, acknowledgment=14) == []
    assert talk.wait(11 * SECOND).send(S, 0, acknowledgment=14) == []
    told = talk.send(S, 0, acknowledgment=20)
    assert plain(told) == [("client", "hole", 14, 18), ("client", 18, b"ij")]


def test_bytes_that_the_receiver_lacks_are_waited_for_within_limits_and_until_the_end() -> None:
    talk = Dialogue(TcpOptions(max_waiting_bytes=10)).open()
    assert talk.send(C, 1, b"12345") == talk.send(S, 0) == talk.wait(60 * SECOND).send(C, 6, b"67890") == []
    assert joined(talk.send(C, 11, b"x")) == [("client", "hole", 0, 1), ("client", 1, b"1234567890x")]
    assert talk.send(C, 13, b"late") == talk.send(S, 0, acknowledgment=12) == []
    told = plain(talk.send(S, 0, flags=RST | ACK, acknowledgment=12))
    assert told == [("client", "hole", 12, 13), ("client", 13, b"late"), "closed reset"]


@pytest.mark.parametrize("chosen", [0, 5000])
@pytest.mark.parametrize("by_acknowledgment", [True, False])
def test_of_two_answers_to_a_syn_one_is_selected(chosen: int, by_acknowledgment: bool) -> None:
    talk = Dialogue()
    talk.send(C, -1, flags=SYN)
    for offset in (0, 5000, 5000):
        assert talk.send(S, offset - 1, flags=SYN | ACK) == []
    if by_acknowledgment:
        assert talk.send(C, 0, acknowledgment=chosen) == []
        assert talk.send(S, 5000 - chosen - 1, flags=SYN | ACK) == [], "the other answer, late"
        assert plain(talk.send(C, 0, b"hello", acknowledgment=chosen)) == [("client", 0, b"hello")]
    told = talk.send(S, chosen, b"world")
    assert plain(told) == [("server", 0, b"world")]
    assert talk.connection.is_regular
    assert (talk.connection.server.strays, talk.connection.server.missing_bytes) == (0, 0)


def test_a_hole_is_told_when_too_much_waits() -> None:
    talk = Dialogue(TcpOptions(max_waiting_bytes=10)).open()
    assert talk.send(C, 1, b"12345") == talk.send(C, 7, b"78901") == []
    assert plain(talk.send(C, 20, b"x")) == [("client", "hole", 0, 1), ("client", 1, b"12345")]
    talk = Dialogue(TcpOptions(max_waiting_segments=2)).open()
    assert talk.send(C, 1, b"1") == talk.send(C, 3, b"3") == []
    assert plain(talk.send(C, 5, b"5")) == [("client", "hole", 0, 1), ("client", 1, b"1")]


def test_what_the_snap_length_cut_off_is_a_gap_that_may_be_filled() -> None:
    talk = Dialogue().open()
    assert plain(talk.send(C, 0, b"abc", size=6)) == [("client", 0, b"abc")]
    assert talk.send(C, 6, b"ghi", size=6) == []
    assert plain(talk.send(C, 2, b"cdef")) == [("client", 3, b"def"), ("client", 6, b"ghi")]
    assert talk.wait(11 * SECOND).send(S, 0, acknowledgment=9) == [], "the receiver lacks the rest, too"
    assert plain(talk.send(S, 0, acknowledgment=12)) == [("client", "hole", 9, 12)]
    assert talk.connection.client.out_of_order == 1


def test_what_was_acknowledged_and_not_seen_is_a_hole_at_the_end() -> None:
    talk = Dialogue().open()
    talk.send(C, 0, b"ab")
    assert talk.send(S, 0, acknowledgment=8) == []
    assert talk.send(S, 0, flags=RST) == [], "what its sender had received may be captured late"
    assert plain(talk.flow.expire(talk.ns + OPTIONS.hole_wait_ns)) == [("client", "hole", 2, 7), "closed reset"]


def test_at_the_end_a_hole_comes_as_a_whole_before_the_answer_to_it() -> None:
    talk = Dialogue().open()
    assert talk.send(S, 0, b"answer", acknowledgment=9) == []
    assert talk.send(S, 6, acknowledgment=10) == [], "the FIN, too"
    told = plain(talk.flow.expire(talk.ns + OPTIONS.idle_ns))
    assert told == [("client", "hole", 0, 9), ("server", 0, b"answer"), "closed idle"]


def test_open_holes_are_told_before_the_end() -> None:
    talk = Dialogue().open()
    talk.send(C, 2, b"c")
    talk.send(S, 1, b"b")
    (*holes, closed, _) = talk.send(C, 5000, flags=SYN)
    assert plain(holes) == [
        ("client", "hole", 0, 2),
        ("client", 2, b"c"),
        ("server", "hole", 0, 1),
        ("server", 1, b"b"),
    ]
    assert closed == Closed(moment(6, talk.ns), "reuse")


@pytest.mark.parametrize(
    ("ends", "side"),
    [
        ([(C, 0, FIN | ACK, 0), (S, 0, FIN | ACK, 1)], C),
        ([(S, 0, FIN | ACK, 0), (C, 0, FIN | ACK, 1)], S),
        # The second FIN was captured first; and both were sent before the other came.
        ([(C, 0, FIN | ACK, 1), (S, 0, FIN | ACK, 0)], S),
        ([(C, 0, FIN | ACK, 0), (S, 0, FIN | ACK, 0)], None),
        # Bytes that were on their way follow on the other side's FIN.
        ([(S, 0, FIN | ACK, 0), (C, 0, PSH | ACK, 0), (C, 1, FIN | ACK, 1)], S),
        ([(S, 0, RST, 0)], S),
        ([(C, 0, RST | ACK, 0)], C),
        ([(S, 0, FIN | ACK, 0), (C, 0, RST, 0)], S),
        ([(C, 0, FIN | ACK, 0), (C, 1, RST | ACK, 0)], C),
    ],
)
def test_who_closed_is_who_did_not_know_of_the_others_end(
    ends: list[tuple[Direction, int, int, int]], side: Direction | None
) -> None:
    talk = Dialogue().open()
    for direction, start, flags, acknowledgment in ends:
        told = talk.send(direction, start, b"x" if flags & PSH else b"", flags, acknowledgment=acknowledgment)
        talk.flow = new_flow(snapshot=talk.flow.snapshot())
    (closed,) = told
    assert isinstance(closed, Closed)
    assert closed.side is side


def test_nobody_closed_what_fell_silent() -> None:
    talk = Dialogue().open()
    talk.send(S, 0, flags=FIN | ACK)
    (closed,) = talk.flow.expire(talk.ns + OPTIONS.idle_ns)
    assert closed == Closed(moment(4, talk.ns + OPTIONS.idle_ns), "idle")


def test_a_stray_segment_costs_nothing() -> None:
    talk = Dialogue().open()
    for distance in (WINDOW_BYTES, -WINDOW_BYTES, 2**30, 2**31, -(2**30)):
        assert talk.send(C, distance, b"junk") == []
    assert talk.send(C, 2**30, flags=FIN | ACK) == talk.send(C, 2**30, flags=FIN | ACK) == []
    assert talk.wait(60 * SECOND).send(S, 0) == []
    assert plain(talk.send(C, 0, b"fine")) == [("client", 0, b"fine")]
    assert (talk.connection.client.strays, talk.connection.client.ignored_bytes) == (7, 20)


def test_two_strays_of_a_kind_are_believed() -> None:
    talk = Dialogue().open()
    talk.send(C, 1, b"waits")
    assert talk.send(C, 3 * 2**30, b"after the loss") == []
    assert plain(talk.send(C, 3 * 2**30 + 14, b" it goes on")) == [
        ("client", "hole", 0, 1),
        ("client", 1, b"waits"),
        ("client", "hole", 6, 3 * 2**30 + 14),
        ("client", 3 * 2**30 + 14, b" it goes on"),
    ]


def test_a_credible_jump_waits_while_the_stream_goes_on() -> None:
    talk = Dialogue().open()
    talk.send(C, WINDOW_BYTES - 1, b"junk")
    for at in range(10):
        assert plain(talk.wait(3 * SECOND).send(C, at, b"x")) == [("client", at, b"x")]


# Answers


def test_an_answer_waits_for_what_it_answers() -> None:
    talk = Dialogue().open()
    assert talk.send(S, 0, b"yes", acknowledgment=3) == talk.send(S, 3, b"!", acknowledgment=3) == []
    assert (talk.connection.server._waiting_bytes, talk.connection.server.packets) == (4, 3)
    events = talk.send(C, 0, b"how")
    assert plain(events) == [("client", 0, b"how")] + [("server", 0, b"yes"), ("server", 3, b"!")]
    assert {event.place.record_number for event in events if isinstance(event, Data)} == {6}
    assert plain(talk.send(S, 4, b"?", acknowledgment=3)) == [("server", 4, b"?")]
    assert (talk.connection.server.out_of_order, talk.connection.client.out_of_order) == (0, 0)


@pytest.mark.parametrize("direction", Direction)
def test_a_hole_is_told_before_its_answer(direction: Direction) -> None:
    talk = Dialogue().open()
    other = S if direction is C else C
    assert talk.send(other, 0, b"answer", acknowledgment=5) == []
    assert talk.wait(OPTIONS.hole_wait_ns - 2000).send(other, 6, acknowledgment=5) == []
    events = talk.send(other, 6, acknowledgment=5)
    assert plain(events) == [(str(direction), "hole", 0, 5), (str(other), 0, b"answer")]
    assert plain(talk.send(direction, 5, b"next", acknowledgment=6)) == [(str(direction), 5, b"next")]


def test_requests_and_answers_behind_a_hole_come_in_turn() -> None:
    talk = Dialogue().open()
    assert talk.send(S, 0, b"a", acknowledgment=5) == talk.send(C, 5, b"b", acknowledgment=1) == []
    assert talk.send(S, 1, b"c", acknowledgment=6) == talk.send(C, 6, b"d", acknowledgment=2) == []
    told = [("server", 0, b"a"), ("client", 5, b"b"), ("server", 1, b"c"), ("client", 6, b"d")]
    late = new_flow(snapshot=talk.flow.snapshot())
    repeated = talk.sent[-1]._replace(sequence=(ISN[C] + 1) % 2**32, payload=b"first", payload_bytes=5)
    assert plain(late.receive(repeated)) == ["unordered", ("client", 0, b"first"), *told]
    assert plain(talk.wait(10 * SECOND).send(C, 7)) == [("client", "hole", 0, 5), *told]


def test_each_of_several_holes_comes_before_its_answer() -> None:
    talk = Dialogue().open()
    talk.send(C, 2, b"c")
    talk.send(C, 5, b"f")
    talk.send(S, 0, b"answer", acknowledgment=9)
    assert plain(talk.wait(10 * SECOND).send(S, 6)) == [
        ("client", "hole", 0, 2),
        ("client", 2, b"c"),
        ("client", "hole", 3, 5),
        ("client", 5, b"f"),
        ("client", "hole", 6, 9),
        ("server", 0, b"answer"),
    ]


def test_what_waits_for_the_other_side_is_bounded() -> None:
    for options in (TcpOptions(max_waiting_bytes=3), TcpOptions(max_waiting_segments=3)):
        talk = Dialogue(options).open()
        for at in range(3):
            assert talk.send(S, at, b"x", acknowledgment=8) == []
        events = talk.send(S, 3, b"x", acknowledgment=8)
        assert plain(events) == [("client", "hole", 0, 8), *(("server", at, b"x") for at in range(4))]


def test_an_acknowledged_fin_is_no_byte() -> None:
    talk = Dialogue().open()
    talk.send(C, 0, b"bye", FIN | ACK)
    assert plain(talk.send(S, 0, b"well", acknowledgment=4)) == [("server", 0, b"well")]
    talk = Dialogue().open()
    talk.send(C, 0, b"bye")
    assert plain(talk.send(S, 0, b"well", acknowledgment=4)) == [("server", 0, b"well")], "a FIN that wasn't seen"
    talk = Dialogue().open()
    assert talk.send(S, 0, b"well", acknowledgment=4) == talk.send(C, 3, b"", FIN | ACK) == []
    assert plain(talk.send(C, 0, b"bye")) == [("client", 0, b"bye"), ("server", 0, b"well")]


def test_nobody_waits_for_bytes_that_have_no_number_or_are_far_away() -> None:
    talk = Dialogue()
    talk.send(C, 0)
    assert plain(talk.send(S, 0, b"a", acknowledgment=1)) == [("server", 0, b"a")], "it may have been a keep-alive"
    talk = Dialogue().open()
    for at, distance in enumerate((WINDOW_BYTES, 2**31, -1, -WINDOW_BYTES)):
        assert plain(talk.send(S, at, b"a", acknowledgment=distance)) == [("server", at, b"a")]


def test_a_garbled_acknowledgment_makes_no_hole_in_a_stream_that_goes_on() -> None:
    talk = Dialogue().open()
    assert talk.send(S, 0, b"a", acknowledgment=10_000) == []
    assert plain(talk.send(S, 1, b"b")) == [("server", 0, b"a"), ("server", 1, b"b")], "later bytes know better"
    talk = Dialogue().open()
    assert talk.send(S, 0, b"c", acknowledgment=10_000) == []
    assert plain(talk.wait(9 * SECOND).send(C, 0, b"d")) == [("client", 0, b"d")]
    again = new_flow(snapshot=talk.flow.snapshot())
    assert plain(talk.wait(SECOND).send(C, 1, b"e")) == [("client", 1, b"e"), ("server", 0, b"c")]
    assert talk.connection.client.missing_bytes == 0
    talk.flow = again
    events = talk.send(S, 1, acknowledgment=10_000)
    assert plain(events) == [("client", "hole", 1, 10_000), ("server", 0, b"c")], "two agree"


@pytest.mark.parametrize("payload", [b"", b"a"])
def test_a_far_acknowledgment_is_believed_when_another_one_says_as_much(payload: bytes) -> None:
    far = ACKNOWLEDGED_BYTES + 2
    talk = Dialogue().open()
    talk.send(C, 0, b"d")
    talk.send(S, 0, payload, acknowledgment=far)
    lone = new_flow(snapshot=talk.flow.snapshot())
    silent = talk.sent[-1]._replace(place=moment(9, talk.ns + 20 * SECOND), direction=C, payload=b"", payload_bytes=0)
    silent = silent._replace(sequence=(ISN[C] + 2) % 2**32, acknowledgment=ISN[S] + 1)
    events = [*lone.receive(silent), *lone.expire(silent.place.arrived_at_ns + OPTIONS.idle_ns)]
    assert plain(events) == [("server", 0, payload)] * len(payload) + ["closed idle"]
    talk.send(S, len(payload), acknowledgment=far + 5)
    events = [*talk.wait(20 * SECOND).send(C, 1), *talk.flow.expire(talk.ns + OPTIONS.idle_ns)]
    hole = ("client", "hole", 1, far - (not payload))
    assert plain(events) == [hole, *[("server", 0, payload)] * len(payload), "closed idle"]


def test_acknowledgments_near_what_was_seen_are_believed_alone() -> None:
    talk = Dialogue().open()
    talk.send(C, 0, b"d")
    talk.send(S, 0, b"a", acknowledgment=ACKNOWLEDGED_BYTES + 1)
    assert plain(talk.wait(20 * SECOND).send(C, 1))[0] == ("client", "hole", 1, ACKNOWLEDGED_BYTES + 1)


def test_where_both_wait_for_each_other_the_later_goes_first() -> None:
    talk = Dialogue().open()
    assert talk.send(S, 0, b"answer", acknowledgment=8) == []
    events = talk.send(C, 0, b"question", acknowledgment=6)
    assert plain(events) == ["unordered", ("client", 0, b"question"), ("server", 0, b"answer")]


@pytest.mark.parametrize("first", [C, S])
def test_at_the_beginning_the_client_goes_first_and_later_who_arrived_last(first: Direction) -> None:
    talk = Dialogue().open()
    talk.send(first, 0, b"12345678", acknowledgment=8)
    second = S if first is C else C
    events = talk.send(second, 0, b"12345678", acknowledgment=8)
    assert plain(events) == ["unordered", ("client", 0, b"12345678"), ("server", 0, b"12345678")]
    talk.send(first, 8, b"abcd", acknowledgment=12)
    events = talk.send(second, 8, b"abcd", acknowledgment=12)
    assert plain(events) == ["unordered", (str(second), 8, b"abcd"), (str(first), 8, b"abcd")]


@pytest.mark.parametrize("how", ["reset", "reuse", "idle"])
def test_what_waits_for_the_other_side_is_told_before_the_end(how: str) -> None:
    talk = Dialogue().open()
    talk.send(C, 0, b"waits", acknowledgment=2)
    talk.send(S, 2, b"so", acknowledgment=5)
    if how == "idle":
        events = talk.flow.expire(talk.ns + OPTIONS.idle_ns)
    else:
        events = talk.send(C, 500, flags=SYN) if how == "reuse" else talk.send(S, 4, flags=RST)
        events += talk.flow.expire(talk.ns + OPTIONS.hole_wait_ns)
    told = [("server", "hole", 0, 2), ("client", 0, b"waits"), ("server", 2, b"so"), f"closed {how}"]
    assert plain(events)[:4] == told


# Closing


@pytest.mark.parametrize("first", Direction)
def test_both_fins_close_and_what_follows_belongs_to_the_connection(first: Direction) -> None:
    talk = Dialogue().open()
    second = S if first is C else C
    assert plain(talk.send(first, 0, b"bye", FIN | ACK)) == [(str(first), 0, b"bye")]
    assert plain(talk.send(second, 0, b"one more")) == [(str(second), 0, b"one more")]
    assert plain(talk.send(second, 8, b"", FIN | ACK)) == ["closed fin"]
    assert talk.send(first, 4) == talk.send(first, 0, b"bye", FIN | ACK) == talk.send(first, 4, flags=RST) == []
    assert talk.send(first, -1, flags=SYN) == [], "an old SYN"
    ours, theirs = talk.connection.sides(first)
    assert (talk.connection.closed, ours.ended, theirs.ended) == ("fin", True, True)
    assert (ours.packets + theirs.packets, ours.ignored_bytes) == (10, 3)


def test_a_fin_counts_when_the_bytes_before_it_are_there() -> None:
    talk = Dialogue().open()
    assert talk.send(C, 3, b"", FIN | ACK) == talk.send(S, 0, b"", FIN | ACK) == []
    assert plain(talk.send(C, 0, b"abc")) == [("client", 0, b"abc"), "closed fin"]


def test_bytes_past_a_fin_are_ignored() -> None:
    talk = Dialogue().open()
    talk.send(C, 2, b"cdefgh")
    assert talk.send(C, 4, b"", FIN | ACK) == talk.send(C, 3, b"defg") == talk.send(C, 9, b"more") == []
    assert talk.send(C, 6, b"", FIN | ACK) == [], "the first FIN counts"
    assert plain(talk.send(C, 0, b"ab")) == [("client", 0, b"ab"), ("client", 2, b"cd")]
    assert talk.send(C, 2**30, b"two") == talk.send(C, 2**30 + 3, b"strays") == []
    assert talk.wait(60 * SECOND).send(S, 0) == []
    assert (talk.connection.client.ignored_bytes, talk.connection.client.ended) == (4 + 3 + 4 + 9, True)


def test_a_fin_may_come_with_a_byte_that_was_seen() -> None:
    talk = Dialogue().open()
    talk.send(C, 0, b"abc")
    assert talk.send(C, 2, b"c", FIN | ACK) == []
    assert talk.connection.client.ended


def test_a_fin_before_bytes_that_were_delivered_is_none() -> None:
    talk = Dialogue().open()
    talk.send(C, 0, b"abc")
    assert talk.send(C, 1, b"", FIN | ACK) == []
    assert talk.connection.client.regular


@pytest.mark.parametrize("fin", [9, 10, 14, 17, 3000])
@pytest.mark.parametrize("order", ["acknowledged later", "acknowledged first"])
def test_a_fin_is_none_if_bytes_behind_it_come_and_are_acknowledged(fin: int, order: str) -> None:
    talk = Dialogue().open()
    talk.send(C, 0, b"abcdefghi")
    talk.send(S, 0, b"!", acknowledgment=9)
    talk.send(C, fin, b"", FIN | ACK, acknowledgment=1)
    parts = [bytes([97 + at]) * 500 for at in range(10)]
    for at, part in enumerate(parts):
        sent = [(C, 9 + 500 * at, part, 1), (S, 1, b"", 9 + 500 * (at + 1))]
        for direction, start, payload, acknowledgment in sent if order == "acknowledged later" else sent[::-1]:
            talk.send(direction, start, payload, acknowledgment=acknowledgment)
    talk.send(S, 1, b"", FIN | ACK, acknowledgment=9 + 5000)
    talk.send(C, 9 + 5000, b"", FIN | ACK, acknowledgment=2)
    for cut in (False, True):
        result = told(talk.sent, cut=cut)
        assert assert_tiles(result.events) == {C: b"abcdefghi" + b"".join(parts), S: b"!"}
        assert not [event for event in result.events if isinstance(event, Hole)]
        assert_balances(talk.sent, result)
    assert (talk.connection.closed, talk.connection.client.take_ignored()) == ("fin", [])


def test_what_stands_behind_a_fin_and_is_not_acknowledged_is_said() -> None:
    talk = Dialogue().open()
    talk.send(C, 0, b"abc", FIN | ACK)
    talk.send(C, 3, b"more")
    talk.send(S, 0, b"", FIN | ACK, acknowledgment=4)
    talk.flow.expire(talk.ns + OPTIONS.hole_wait_ns)
    assert [(one.why, one.size) for one in talk.connection.client.take_ignored()] == [(Why.AFTER, 4)]


@pytest.mark.parametrize("start", [0, 5, 9])
def test_a_reset_closes_where_its_senders_stream_stands(start: int) -> None:
    talk = Dialogue().open()
    for at, data in ((0, b"hello"), (8, b"!"))[: (start > 0) + (start > 5)]:
        talk.send(S, at, data)
    events = talk.send(S, start, b"why", RST)
    if start > 5:
        # Its own bytes before it may be captured late.
        events += talk.flow.expire(talk.ns + OPTIONS.hole_wait_ns)
    assert plain(events)[-1:] == ["closed reset"]
    assert talk.connection.server.ignored_bytes == 3
    assert [(one.why, one.size) for one in talk.connection.server.take_ignored()] == [(Why.RESET, 3)]


def test_a_reset_behind_a_fin_closes() -> None:
    talk = Dialogue().open()
    talk.send(S, 0, flags=FIN | ACK)
    assert plain(talk.send(S, 1, flags=RST)) == ["closed reset"]


#: A RST that stands elsewhere: far away, in the window, with no number at all.
ELSEWHERE = (
    (2**31, RST),
    (WINDOW_BYTES, RST),
    (100, RST | ACK),
    (-50, RST),
    (-ISN[S] - 1, RST),
    (-ISN[S] - 1, RST | ACK),
)


@pytest.mark.parametrize(("start", "flags"), ELSEWHERE)
def test_a_reset_that_stands_elsewhere_is_ignored_if_its_sender_goes_on(start: int, flags: int) -> None:
    talk = Dialogue().open()
    assert talk.send(S, start, b"why", flags) == []
    assert plain(talk.send(C, 0, b"goes on")) == [("client", 0, b"goes on")]
    events = talk.send(S, 0, b"me too", acknowledgment=7)
    assert plain(events) == ["reset of server ignored", ("server", 0, b"me too")]
    assert isinstance(events[0], ResetIgnored)
    assert (events[0].place.record_number, events[0].place.arrived_at_ns) == (4, talk.ns)
    assert plain(talk.wait(OPTIONS.hole_wait_ns).send(C, 7, b"!")) == [("client", 7, b"!")]
    side = talk.connection.server
    assert (side.strays, side.ignored_bytes) == (1, 3)


@pytest.mark.parametrize(("start", "flags"), ELSEWHERE)
@pytest.mark.parametrize("confirmed", ["time", "segment", "syn"])
def test_a_reset_that_stands_elsewhere_closes_if_its_sender_is_silent(start: int, flags: int, confirmed: str) -> None:
    talk = Dialogue().open()
    talk.send(S, start, b"", flags)
    assert plain(talk.send(C, 0, b"on its way")) == [("client", 0, b"on its way")]
    assert talk.send(S, 0) == [], "an acknowledgment that was on its way too"
    silent_ns = talk.ns
    assert talk.send(C, -1, flags=SYN) == [], "a copy of the first SYN"
    assert talk.flow.ends_ns == silent_ns + OPTIONS.hole_wait_ns
    missing = [("server", "hole", 0, start - 1)] * (0 < start < WINDOW_BYTES)
    if confirmed == "syn":
        assert plain(talk.send(C, 5000, flags=SYN)) == [*missing, "closed reset", "open syn"]
        return
    if confirmed == "time":
        events = talk.flow.expire(silent_ns + OPTIONS.hole_wait_ns)
    else:
        talk.ns = silent_ns - 1000
        events = talk.wait(OPTIONS.hole_wait_ns).send(S, 0, b"late", acknowledgment=10)
    assert plain(events) == [*missing, "closed reset"]
    closed = events[-1]
    assert isinstance(closed, Closed)
    assert (closed.place.record_number, closed.place.arrived_at_ns) == (4, silent_ns + OPTIONS.hole_wait_ns)


def test_a_reset_that_stands_elsewhere_is_none_while_its_sender_speaks() -> None:
    talk = Dialogue().open()
    talk.send(S, 1_000, flags=RST)
    for second in range(30):
        talk.wait(SECOND)
        assert plain(talk.send(S, 10 * second, b"0123456789")) == [("server", 10 * second, b"0123456789")]
        assert talk.send(C, 0, acknowledgment=10 * second + 10) == []
    assert plain(talk.send(C, 0, b"?", acknowledgment=300)) == [("client", 0, b"?")]
    assert plain(talk.send(S, 300, b"!", acknowledgment=1)) == ["reset of server ignored", ("server", 300, b"!")]


@pytest.mark.parametrize("acknowledges", [True, False])
def test_bytes_captured_just_after_their_reset_count(acknowledges: bool) -> None:
    talk = Dialogue().open()
    flags, acknowledgment = (RST | ACK, 3) if acknowledges else (RST, 0)
    told = [*talk.send(C, 0, b"one"), *talk.send(S, 3, b"def", acknowledgment=3)]
    told += talk.send(S, 6, flags=flags, acknowledgment=acknowledgment)
    told += talk.send(S, 0, b"abc", acknowledgment=3)
    assert joined(told) == [("client", 0, b"one"), ("server", 0, b"abcdef"), "closed reset"]


def test_what_a_resetting_side_had_acknowledged_may_be_captured_after_it() -> None:
    talk = Dialogue().open()
    told = [*talk.send(C, 0, b"one"), *talk.send(C, 3, acknowledgment=4), *talk.send(C, 3, flags=RST)]
    told += talk.send(S, 0, b"four", acknowledgment=3)
    assert joined(told) == [("client", 0, b"one"), ("server", 0, b"four"), "closed reset"]


def test_data_that_a_reset_acknowledges_itself_do_not_refute_it() -> None:
    talk = Dialogue().open()
    assert talk.send(S, 1_000, flags=RST | ACK, acknowledgment=3) == []
    assert plain(talk.send(C, 0, b"one")) == [("client", 0, b"one")]
    assert talk.send(S, 0, acknowledgment=3) == [], "it was sent before the RST"
    told = talk.flow.expire(talk.ns + OPTIONS.hole_wait_ns)
    assert plain(told) == [("server", "hole", 0, 999), "closed reset"]


def test_whose_new_data_are_acknowledged_after_a_reset_did_not_send_it() -> None:
    talk = Dialogue().open()
    talk.send(S, 0, b"one")
    talk.send(S, 2**27, flags=RST)
    assert plain(talk.send(S, 3, b"two")) == [("server", 3, b"two")]
    assert talk.send(C, 0, acknowledgment=3) == []
    assert plain(talk.send(C, 0, acknowledgment=6)) == ["reset of server ignored"]
    talk = Dialogue().open()
    talk.send(S, 6, flags=RST)
    talk.send(S, 0, b"onetwo")
    assert talk.send(C, 0, acknowledgment=6) == [], "the RST overtook these"
    assert plain(talk.flow.expire(talk.ns + OPTIONS.hole_wait_ns)) == ["closed reset"]


def test_who_takes_the_second_answer_to_its_syn_did_not_reset_the_connection() -> None:
    talk = Dialogue()
    talk.send(C, -1, flags=SYN)
    assert talk.send(C, 2**27, flags=RST) == []
    assert talk.send(S, -(2**26), flags=SYN | ACK) == []
    assert talk.send(S, -1, flags=SYN | ACK) == []
    assert talk.send(C, 0) == []
    assert plain(talk.send(S, 0, b"one")) == [("server", 0, b"one")]
    assert plain(talk.send(C, 0, acknowledgment=3)) == ["reset of client ignored"]
    assert plain(talk.wait(15 * SECOND).send(S, 3, b"two")) == [("server", 3, b"two")]


def test_a_hole_that_is_due_leaves_what_is_missing_only_now() -> None:
    talk = Dialogue().open()
    assert talk.send(S, 0, b"answer", acknowledgment=63) == []
    talk.wait(15 * SECOND)
    assert plain(talk.send(C, 163, b"c")) == [("client", "hole", 0, 63), ("server", 0, b"answer")]
    assert plain(talk.send(C, 63, bytes(100))) == [("client", 63, bytes(100)), ("client", 163, b"c")]
    talk = Dialogue().open()
    talk.send(C, 0, b"cut", size=10)
    talk.wait(15 * SECOND)
    assert plain(talk.send(C, 12, b"c")) == [("client", "hole", 3, 10)]
    assert plain(talk.send(C, 10, b"__")) == [("client", 10, b"__"), ("client", 12, b"c")]


def test_who_acknowledges_more_after_a_reset_did_not_send_it() -> None:
    talk = Dialogue().open()
    talk.send(C, 0, b"all of it")
    talk.send(S, 1000, flags=RST)
    assert talk.send(S, 0, acknowledgment=4) == []
    assert plain(talk.send(S, 0, acknowledgment=9)) == ["reset of server ignored"]


def test_a_reset_acknowledges() -> None:
    talk = Dialogue().open()
    assert talk.send(S, 0, flags=RST | ACK, acknowledgment=9) == [], "what it acknowledges may be captured late"
    again = new_flow(snapshot=talk.flow.snapshot())
    assert plain(talk.send(C, 0, b"question")) == [("client", 0, b"question")]
    # A second one changes nothing.
    assert talk.send(S, 0, flags=RST) == []
    assert plain(talk.send(C, 8, b"!")) == [("client", 8, b"!"), "closed reset"]
    assert (talk.connection.client.missing_bytes, talk.connection.client.ignored_bytes) == (0, 0)
    # The last of them may be a FIN.
    due_ns = talk.ns - 3000 + OPTIONS.hole_wait_ns
    assert again.expire(due_ns - 1) == []
    assert plain(again.expire(due_ns)) == [("client", "hole", 0, 8), "closed reset"]


def test_a_refused_connection_may_be_tried_again_with_the_same_number() -> None:
    talk = Dialogue()
    talk.send(C, -1, flags=SYN)
    assert plain(talk.send(S, -1001, flags=RST | ACK)) == ["closed reset"]
    assert plain(talk.send(C, -1, flags=SYN)) == ["open syn"]
    assert talk.send(S, -1, flags=SYN | ACK) == []
    assert plain(talk.send(C, 0, flags=RST)) == ["closed reset"]
    assert talk.send(S, -1, flags=SYN | ACK) == [], "an answer that is sent again"
    assert plain(talk.send(C, -1, flags=SYN)) == ["open syn"]
    assert plain(talk.send(C, 0, b"at last")) == [("client", 0, b"at last")]


def test_a_second_tap_repeats_a_connection_after_its_reset() -> None:
    def send(talk: Dialogue) -> list[object]:
        sent = [talk.send(C, -1, flags=SYN), talk.send(S, -1, flags=SYN | ACK), talk.send(C, 0, b"question")]
        sent += [talk.send(S, 0, b"answer", acknowledgment=8), talk.send(C, 8, flags=RST)]
        return plain([event for events in sent for event in events])

    talk = Dialogue()
    assert send(talk) == ["open syn", ("client", 0, b"question"), ("server", 0, b"answer"), "closed reset"]
    talk.ns += 3 * 10**9
    assert send(talk) == []
    assert talk.connection.client.ignored_bytes == 8


def exchange_without_end() -> list[tuple[Direction, int, bytes, int, int]]:
    """A short connection: direction, position, bytes, flags and acknowledgment."""
    sent = [(C, -1, b"", SYN, 0), (S, -1, b"", SYN | ACK, 0), (C, 0, b"", ACK, 0)]
    for at in range(0, 9, 3):
        sent += [(C, at, b"ask", ACK, at), (S, at, b"ans", ACK, at + 3)]
    return sent


@pytest.mark.parametrize("end", ["fin", "reset"])
@pytest.mark.parametrize("captured", [range(3, 9), range(4, 9), range(5, 9), (2, 4, 5, 6, 7, 8), (3, 5, 7)])
def test_a_second_tap_repeats_a_connection_whose_beginning_the_first_one_lacks(
    captured: Iterable[int], end: str
) -> None:
    sent = exchange_without_end()
    ending = [(C, 9, b"", FIN | ACK, 9), (S, 9, b"", FIN | ACK, 10)] if end == "fin" else [(C, 9, b"", RST | ACK, 9)]
    talk, told = Dialogue(), list[Event]()
    for part in ([*(sent[at] for at in captured), *ending], [*sent, *ending]):
        for direction, start, payload, flags, acknowledgment in part:
            told += talk.send(direction, start, payload, flags, acknowledgment=acknowledgment)
        talk.wait(SECOND)
    assert [event for event in plain(told) if isinstance(event, str)] == ["open middle", f"closed {end}"]


@pytest.mark.parametrize("how", ["late", "little", "far"])
def test_ports_may_be_used_again_soon_after_a_connection_that_began_in_the_middle(how: str) -> None:
    talk = Dialogue()
    talk.send(C, 500, b"the end" if how == "little" else b"many" * 200, acknowledgment=0)
    talk.send(S, 0, flags=RST)
    talk.wait(OPTIONS.hole_wait_ns * (how == "late"))
    assert plain(talk.send(C, -1 - (2**20) * (how == "far"), flags=SYN))[-1:] == ["open syn"]


def test_what_goes_beyond_a_fin_and_moves_to_the_next_connection_counts_there_alone() -> None:
    talk = Dialogue()
    talk.send(C, 7, flags=FIN | ACK, acknowledgment=4)
    talk.ns += 10 * 10**9
    talk.send(C, 3, bytes(6), acknowledgment=3)
    before = talk.connection.client
    given = [("client", 0, bytes(3)), ("client", 3, bytes(5))]
    assert plain(talk.send(C, 0, bytes(3), SYN)) == ["closed reuse", "open syn", *given]
    assert (before.ignored_bytes, before.retransmitted_bytes) == (0, 0)


def test_a_reset_far_from_where_its_sender_acknowledged_waits() -> None:
    for numbered in (True, False):
        talk = Dialogue()
        talk.send(C, 59)
        if numbered:
            talk.send(S, 0, b"a", acknowledgment=59)
        assert talk.send(C, 2**27, flags=RST) == []
        assert plain(talk.send(C, 59, flags=RST)) == ["closed reset"]


def test_a_lone_reset_is_a_connection() -> None:
    talk = Dialogue()
    assert plain(talk.send(C, 5, flags=RST)) == ["open middle"]
    assert talk.connection.client.packets == 0
    before = talk.connection
    assert plain(talk.flow.expire(talk.ns + OPTIONS.hole_wait_ns)) == ["closed reset"]
    assert before.client.packets == 1


@pytest.mark.parametrize("start", [0, 77])
def test_a_reset_as_the_first_packet_closes_nothing_that_goes_on(start: int) -> None:
    talk = Dialogue()
    talk.send(S, start, flags=RST)
    talk.send(S, 0, b"one")
    assert plain(talk.send(C, 0, acknowledgment=3)) == [("server", 0, b"one")]
    talk.send(S, 3, b"two")
    assert plain(talk.send(C, 0, acknowledgment=6)) == ["reset of server ignored"]
    assert talk.connection.server.packets == 3


@pytest.mark.parametrize("flags", [RST, RST | ACK])
def test_a_reset_that_does_not_acknowledge_the_syn_refuses_nothing(flags: int) -> None:
    talk = Dialogue()
    talk.send(C, -1, flags=SYN)
    assert talk.send(S, -ISN[S] - 1, flags=flags, acknowledgment=-1) == []
    assert talk.send(S, -1, flags=SYN | ACK) == []
    assert plain(talk.send(C, 0, b"hello")) == ["reset of server ignored", ("client", 0, b"hello")]


@pytest.mark.parametrize("start", [-ISN[S] - 1, 500])
def test_a_reset_of_a_side_that_was_not_captured_closes_nothing_that_goes_on(start: int) -> None:
    talk = Dialogue()
    talk.send(C, -1, flags=SYN)
    talk.send(C, 0)
    events = plain(talk.send(S, start, flags=RST))
    for at in range(6):
        events += plain(talk.wait(3 * SECOND).send(C, at, b"x"))
    assert [event for event in events if "reset" in event] == ["reset of server ignored"]
    assert "".join(event[2].decode() for event in events if is_data(event)) == "xxxxxx"
    assert (talk.connection.server.packets, talk.connection.server.strays) == (0, 1)


@pytest.mark.parametrize("start", [-ISN[S] - 1, 0, 18])
def test_a_reset_of_a_side_that_was_not_captured_is_ignored_before_bytes_that_were_acknowledged(start: int) -> None:
    """No host accepts it. The capture may end before the connection is seen to go on."""
    talk = Dialogue()
    talk.send(C, -1, flags=SYN)
    talk.send(C, 0, b"ask", acknowledgment=0)
    talk.send(C, 3, acknowledgment=20)
    assert plain(talk.send(S, start, flags=RST)) == ["reset of server ignored"]
    assert (talk.connection.server.packets, talk.connection.server.strays) == (0, 1)
    assert joined(talk.flow.expire(2**62))[-1] == "closed idle"


@pytest.mark.parametrize("how", ["silence", "syn"])
def test_a_reset_of_a_side_that_was_not_captured_closes_what_is_silent_then(how: str) -> None:
    talk = Dialogue()
    talk.send(C, -1, flags=SYN)
    talk.send(C, 0)
    talk.send(S, 500, flags=RST)
    assert plain(talk.wait(2 * SECOND).send(C, 0, b"on its way")) == [("client", 0, b"on its way")]
    before = talk.connection
    if how == "silence":
        assert talk.flow.ends_ns == talk.ns + OPTIONS.hole_wait_ns
        told = talk.flow.expire(talk.ns + OPTIONS.hole_wait_ns)
    else:
        told = talk.send(C, 5000, flags=SYN)
    assert plain(told) == [("server", "hole", 0, 499), "closed reset", "open syn"][: 2 + (how == "syn")]
    assert before.server.packets == 1


@pytest.mark.parametrize("again", [False, True])
def test_what_was_not_captured_before_a_reset_is_a_hole(again: bool) -> None:
    """Also if its sender answers what comes later with a RST that stands where the other side acknowledged."""
    talk = Dialogue().open()
    told = [*talk.send(C, 0, b"ask"), *talk.send(S, 0, b"answer", acknowledgment=3)]
    told += talk.send(S, 76, flags=RST | ACK, acknowledgment=3)
    if again:
        told += [*talk.send(C, 3, acknowledgment=6), *talk.send(S, 6, flags=RST)]
    told += talk.flow.expire(talk.ns + OPTIONS.hole_wait_ns)
    assert joined(told) == [("client", 0, b"ask"), ("server", 0, b"answer"), ("server", "hole", 6, 75), "closed reset"]
    assert talk.connection.server.missing_bytes == 69, "the last byte may have been a FIN"


def test_bytes_that_stand_behind_a_fin_are_not_missing_before_a_reset() -> None:
    talk = Dialogue().open()
    told = [*talk.send(S, 0, b"abc", FIN | ACK), *talk.send(S, 50, flags=RST)]
    told += talk.flow.expire(talk.ns + OPTIONS.hole_wait_ns)
    assert joined(told) == [("server", 0, b"abc"), "closed reset"]


@pytest.mark.parametrize("end", ["fin", "reset", "reuse"])
@pytest.mark.parametrize("ahead", [500, 2**30])
def test_data_captured_before_their_syn_are_of_its_connection(end: str, ahead: int) -> None:
    talk = Dialogue().open()
    talk.send(C, 0, b"old")
    if end == "fin":
        talk.send(S, 0, flags=FIN | ACK)
        talk.send(C, 3, flags=FIN | ACK)
    elif end == "reset":
        talk.send(C, 3, flags=RST)
    before = talk.connection
    assert talk.send(C, ahead + 1, b"hello") == talk.send(C, ahead + 8, b"?") == []
    events = talk.send(C, ahead, flags=SYN)
    assert plain(events) == [*["closed reuse"] * (end == "reuse"), "open syn", ("client", 0, b"hello")]
    assert before.closed == end
    assert (before.client.ignored_bytes, before.client.strays, before.client.missing_bytes) == (0, 0, 0)
    assert before.client.take_ignored() == []
    assert plain(talk.send(C, ahead + 6, b", ")) == [("client", 5, b", "), ("client", 7, b"?")]
    assert talk.connection.client.packets == 4


@pytest.mark.parametrize(
    "order", ["0123456", "3012456", "1230456", "4012356", "4013256", "3d40156", "123456", "312456"]
)
@pytest.mark.parametrize("first", [-(2**28), -(2**23), -100_000, -500, 7000, 16_000, 20_500, 2**23, 2**28])
def test_data_captured_before_their_syn_are_kept_wherever_that_numbers_them(first: int, order: str) -> None:
    """The order of SYN, its answer, an ACK and four segments; d is a segment of the old connection again."""
    talk = Dialogue().open()
    for at in range(0, 20_000, 1000):
        talk.send(C, at, bytes([97 + at // 1000]) * 1000)
    talk.send(S, 0, b"old", acknowledgment=20_000)
    before = talk.connection
    if abs(first) == 2**28:
        # Two far segments of which one goes on from the other are believed.
        order = order.replace("d4", "d") + "4" * ("d" in order)
    texts = [bytes([65 + number]) * 300 for number in range(4)]
    sent: dict[str, tuple[Any, ...]] = {
        "0": (C, first - 1, b"", SYN, 0),
        "1": (S, 2**29 - 1, b"", SYN | ACK, first),
        "2": (C, first, b"", ACK, 2**29),
        **{str(3 + number): (C, first + 300 * number, text, ACK, 2**29) for number, text in enumerate(texts)},
        "d": (C, 19_000, b"t" * 1000, ACK, 0),
    }
    for one in order:
        direction, start, payload, flags, acknowledgment = sent[one]
        talk.send(direction, start, payload, flags, acknowledgment=acknowledgment)
    for cut in (False, True):
        result = told(talk.sent, cut=cut)
        assert assert_tiles(result.events)[C] == b"".join(
            text for number, text in enumerate(texts) if str(3 + number) in order
        )
        assert before.client.delivered_bytes == 20_000
        assert_balances(talk.sent, result)
    assert before.client.take_ignored() == []
    assert before.client.packets == 22 + ("d" in order)


@pytest.mark.parametrize("is_open", [True, False])
def test_what_a_connection_sent_again_is_not_of_the_next_one(is_open: bool) -> None:
    talk = Dialogue().open()
    talk.send(C, 0, b"abcdefgh")
    if not is_open:
        talk.send(C, 8, flags=RST)
    talk.send(C, 2, b"cdef")
    assert plain(talk.send(C, is_open, flags=SYN))[-1:] == ["open syn"]
    # With the copy the first bytes would be there.
    assert plain(talk.send(C, 6, b"news")) == []


def test_the_answer_to_a_syn_that_was_not_captured_takes_the_data_of_both_sides() -> None:
    talk = Dialogue().open()
    talk.send(C, 0, b"old", FIN | ACK)
    talk.send(S, 0, flags=FIN | ACK, acknowledgment=4)
    talk.send(S, 2**20, b"answer", acknowledgment=2**28 + 8)
    talk.send(C, 2**28, b"question", acknowledgment=2**20)
    events = talk.send(S, 2**20 - 1, flags=SYN | ACK, acknowledgment=2**28)
    assert joined(events) == ["open syn_ack", ("client", 0, b"question"), ("server", 0, b"answer")]
    assert (talk.connection.client.packets, talk.connection.server.packets) == (1, 2)


def test_data_captured_before_the_end_of_another_connection_are_of_their_own() -> None:
    talk = Dialogue().open()
    talk.send(C, 0, b"old", FIN | ACK)
    assert talk.send(C, 2**30, b"new") == []
    assert plain(talk.send(S, 0, flags=FIN | ACK, acknowledgment=4)) == ["closed fin"]
    before = talk.connection
    assert plain(talk.send(C, 2**30 - 1, flags=SYN)) == ["open syn", ("client", 0, b"new")]
    assert (before.client.strays, before.client.ignored_bytes, before.client.take_ignored()) == (0, 0, [])


def test_a_new_connection_takes_nothing_that_was_delivered() -> None:
    talk = Dialogue().open()
    talk.send(C, 3, b"def")
    talk.send(C, 0, b"abc")
    size = WINDOW_BYTES // 4
    for at in range(5):
        talk.send(C, 6 + at * size, bytes(size))
    before = talk.connection
    assert plain(talk.send(C, 2, flags=SYN, acknowledgment=0))[-2:] == ["closed reuse", "open syn"]
    client = before.client
    assert (client.strays, client.ignored_bytes, client.delivered_bytes, client.packets) == (0, 0, 6 + 5 * size, 9)
    assert talk.connection.client.packets == 1


def test_early_segments_are_kept_within_limits() -> None:
    talk = Dialogue().open()
    for size in (EARLY_BYTES - 100, *[1000] * 10):
        talk.send(C, 2**30, bytes(size))
        talk.send(C, 0, acknowledgment=0)
    kept = sum(len(one.segment.payload) for one in talk.connection._apart)
    assert kept == 10_000


@pytest.mark.parametrize(("at", "why"), [(2**30, Why.FAR), (20, Why.AFTER)])
def test_what_is_ignored_is_said(at: int, why: Why) -> None:
    talk = Dialogue().open()
    talk.send(C, 0, b"old")
    if why is Why.AFTER:
        talk.send(S, 0, flags=RST)
    talk.send(C, at, b"more")
    talk.send(C, at - 10, b"and more")
    assert talk.connection.client.take_ignored() == [], "a SYN may follow"
    talk.flow.expire(talk.ns + OPTIONS.hole_wait_ns)
    assert talk.connection.client.take_ignored() == [(C, why, 12, talk.sent[-2].place)]


def test_what_is_sent_again_after_the_end_is_not_said() -> None:
    talk = Dialogue().open()
    talk.send(C, 0, b"all", FIN | ACK)
    talk.send(S, 0, flags=FIN | ACK, acknowledgment=4)
    assert talk.connection.closed == "fin"
    talk.send(C, 0, b"all", FIN | ACK)
    assert talk.connection.client.take_ignored() == []
    assert talk.connection.client.ignored_bytes == 3


def test_in_reverse_order_what_was_ignored_is_said() -> None:
    talk = Dialogue()
    talk.send(C, 7, flags=ACK, acknowledgment=5)
    talk.send(S, 4, flags=FIN | ACK, acknowledgment=7)
    talk.send(C, 6, flags=FIN | ACK, acknowledgment=4)
    assert talk.connection.closed == "fin"
    talk.send(S, 0, b"that", acknowledgment=6)
    talk.send(C, 3, b"it?")
    talk.send(C, 0, b"Is ")
    talk.flow.expire(talk.ns + OPTIONS.hole_wait_ns)
    assert talk.connection.client.take_ignored() == [(C, Why.AFTER, 6, talk.sent[4].place)]
    assert talk.connection.server.take_ignored() == [(S, Why.AFTER, 4, talk.sent[3].place)]


def test_a_syn_with_data_that_comes_again_after_the_end_is_not_said() -> None:
    talk = Dialogue()
    talk.send(C, -1, b"all", SYN, size=3)
    talk.send(S, -1, flags=SYN | ACK, acknowledgment=3)
    talk.send(C, 3, flags=FIN | ACK)
    talk.send(S, 0, flags=FIN | ACK, acknowledgment=4)
    assert talk.connection.closed == "fin"
    talk.send(C, -1, b"all", SYN)
    assert talk.connection.client.ignored_bytes == 3
    assert talk.connection.client.take_ignored() == []


def test_data_long_before_a_syn_are_not_of_its_connection() -> None:
    talk = Dialogue().open()
    talk.send(C, 0, flags=RST)
    talk.send(C, 501, b"old")
    assert plain(talk.wait(OPTIONS.hole_wait_ns).send(C, 500, flags=SYN)) == ["open syn"]
    assert plain(talk.send(C, 501, b"new")) == [("client", 0, b"new")]


@pytest.mark.parametrize("end", ["open", "half", "fin", "reset"])
def test_bytes_far_from_both_sides_are_of_another_connection_whose_syn_is_missing(end: str) -> None:
    talk = Dialogue().open()
    talk.send(C, 0, b"old")
    talk.send(S, 0, b"OLD", acknowledgment=3)
    if end == "reset":
        talk.send(S, 3, flags=RST)
    elif end != "open":
        talk.send(S, 3, flags=FIN | ACK, acknowledgment=3)
        talk.send(C, 3, flags=ACK if end == "half" else FIN | ACK, acknowledgment=4)
    talk.wait(60 * SECOND)
    far = 2**28
    told = [*talk.send(C, far, b"one", acknowledgment=far), *talk.send(S, far, acknowledgment=far + 3)]
    told += talk.send(C, far + 3, b"two", acknowledgment=far)
    told += [*talk.send(S, far, b"ONE", acknowledgment=far + 6), *talk.send(C, far + 6, b"?", acknowledgment=far + 3)]
    read = [] if end in ("fin", "reset") else ["closed reuse"]
    assert joined(told) == [*read, "open middle", ("client", 0, b"onetwo"), ("server", 0, b"ONE"), ("client", 6, b"?")]
    assert (talk.connection.client.packets, talk.connection.client.strays) == (3, 0)


@pytest.mark.parametrize("end", ["fin", "reset", "reuse"])
def test_a_syn_with_another_number_begins_another_connection(end: str) -> None:
    talk = Dialogue().open()
    talk.send(C, 0, b"old")
    talk.send(S, 1, b"waits")
    before = talk.connection
    if end == "fin":
        talk.send(S, 0, b"_")
        talk.send(C, 3, flags=FIN | ACK)
        talk.send(S, 6, flags=FIN | ACK)
    elif end == "reset":
        talk.send(C, 3, flags=RST)
    events = talk.send(C, 500, flags=SYN)
    left = [("server", "hole", 0, 1), ("server", 1, b"waits"), "closed reuse"] if end == "reuse" else []
    assert plain(events) == [*left, "open syn"]
    assert before.closed == end
    assert talk.connection.connection_id != before.connection_id
    assert talk.send(S, 700, flags=SYN | ACK, acknowledgment=501) == []
    assert plain(talk.send(C, 501, b"new")) == [("client", 0, b"new")]
    assert plain(talk.send(S, 701, b"new")) == [("server", 0, b"new")]


def test_an_answer_to_a_syn_that_was_not_captured_begins_another_connection() -> None:
    talk = Dialogue().open()
    assert talk.send(S, 60, flags=SYN | ACK) == [], "it answers the known SYN"
    assert plain(talk.send(S, 60, flags=SYN | ACK, acknowledgment=50)) == ["closed reuse", "open syn_ack"]


def test_an_idle_connection_is_closed_the_same_by_time_and_by_the_next_segment() -> None:
    by_time, by_segment = Dialogue().open(), Dialogue().open()
    last = by_time.connection.last.arrived_at_ns
    for talk in (by_time, by_segment):
        talk.send(C, 2, b"waits")
        talk.ns = last + 1000 + OPTIONS.idle_ns
    assert by_time.flow.expire(by_time.ns - 1) == []
    evidence = replace(by_time.connection.last, arrived_at_ns=by_time.ns)
    told = by_time.flow.expire(by_time.ns)
    assert by_time.flow.connection is None
    assert plain(told) == [("client", "hole", 0, 2), ("client", 2, b"waits"), "closed idle"]
    # The last packet is its evidence.
    assert told[-1] == Closed(evidence, "idle")
    by_time.ns -= 1000
    by_segment.ns -= 1000
    told += by_time.send(C, 7, b"back")
    assert plain(by_segment.send(C, 7, b"back")) == plain(told)
    assert plain(told)[-1:] == ["open middle"]
    assert by_time.flow.snapshot() == by_segment.flow.snapshot()


@pytest.mark.parametrize(("pause_ns", "idle"), [(OPTIONS.idle_ns - 1, False), (OPTIONS.idle_ns, True)])
def test_silence_ends_a_connection_to_the_nanosecond(pause_ns: int, idle: bool) -> None:
    talk = Dialogue().open()
    talk.send(C, 0, b"a")
    ended = ["closed idle", "open middle"]
    assert plain(talk.wait(pause_ns - 1000).send(C, 1, b"b")) == (ended if idle else [("client", 1, b"b")])


def test_a_closed_connection_keeps_no_bytes_and_is_let_go_of_in_silence() -> None:
    talk = Dialogue().open()
    talk.send(C, 0, bytes(10_000))
    talk.send(C, 10_000, flags=RST)
    assert len(talk.flow.snapshot()) < 1000
    assert talk.flow.expire(talk.ns + OPTIONS.idle_ns) == []
    assert talk.flow.snapshot() == ""
    assert new_flow(snapshot="").connection is None


def test_state_of_another_version_is_refused() -> None:
    state = json.loads(Dialogue().open().flow.snapshot()) | {"version": 0}
    with pytest.raises(StateVersionError, match="TCP flow has version 0"):
        new_flow(snapshot=json.dumps(state))


def test_a_connection_is_named_by_source_endpoints_number_and_time() -> None:
    about: dict[str, Any] = {
        "source": "a",
        "client": CLIENT,
        "server": SERVER,
        "sequence": 1,
        "arrived_at_ns": 5,
    }
    others: dict[str, Any] = {
        "source": "b",
        "client": SERVER,
        "server": Endpoint("10.0.0.2", 5556),
        "sequence": 2,
        "arrived_at_ns": 6,
    }
    names = [
        connection_id(**about),
        *(connection_id(**about | {key: others[key]}) for key in others),
    ]
    assert {len(name) for name in names} == {16}
    assert len(set(names)) == 6
    assert connection_id(**about).hex() == "9ddb374c8049a069a22dd4c30f7b3513"


# Any traffic


class Sent(NamedTuple):
    """A segment of the properties, by the position of its bytes."""

    direction: Direction
    start: int
    end: int
    flags: int = ACK
    #: Bytes that were not captured.
    cut: int = 0
    #: Position of the first byte of the other side that is not acknowledged.
    acknowledged: int = 0


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


def as_segments(
    texts: dict[Direction, bytes], numbers: dict[Direction, int], pieces: list[Sent], pauses: list[int]
) -> list[TcpSegment]:
    """Handshake and `pieces`; before each of these its pause in seconds."""
    opening = [(C, numbers[C], SYN, b"", 0, 0), (S, numbers[S], SYN | ACK, b"", 0, 0)]
    rows = opening + [
        (
            piece.direction,
            (numbers[piece.direction] + 1 + piece.start) % 2**32,
            piece.flags,
            texts[piece.direction][piece.start : piece.end - piece.cut],
            piece.end - piece.start,
            piece.acknowledged,
        )
        for piece in pieces
    ]
    ns, segments = 0, []
    for record, (direction, sequence, flags, payload, size, acknowledged) in enumerate(rows):
        ns += pauses[record - 2] * SECOND if record > 1 else 1
        acknowledgment = (numbers[S if direction is C else C] + 1 + acknowledged) % 2**32
        place = moment(record, ns)
        segments.append(TcpSegment(place, direction, sequence, acknowledgment, flags, 9, payload, size))
    return segments


class Told(NamedTuple):
    """What a flow told of segments: events, by connection too, and the last state of each connection."""

    events: list[Any]
    connections: dict[bytes, Connection]


def told(segments: list[TcpSegment], options: TcpOptions = OPTIONS, *, cut: bool = False, short: bool = True) -> Told:
    """Everything up to the end of all idleness.

    If `cut`, each segment is taken by another flow; if not `short`, none by the short way of plain segments.
    """
    flow = new_flow(options)
    events: list[Any] = []
    connections: dict[bytes, Connection] = {}

    def note(found: list[Event]) -> None:
        for event in found:
            events.append(event.connection.connection_id if isinstance(event, Opened) else event)

    for segment in segments:
        if cut:
            note(flow.expire(segment.place.arrived_at_ns))
            snapshot = flow.snapshot()
            flow = new_flow(options, snapshot)
            assert flow.snapshot() == snapshot
            if flow.connection is not None:
                connections[flow.connection.connection_id] = flow.connection
        note(flow.receive(segment) if short else flow._receive_any(segment))
        assert flow.connection is not None
        connections[flow.connection.connection_id] = flow.connection
        for side in (flow.connection.client, flow.connection.server):
            assert side._waiting_bytes <= options.max_waiting_bytes
    note(flow.expire(2**62))
    assert flow.snapshot() == ""
    return Told(events, connections)


def assert_tiles(events: list[Any], texts: dict[Direction, bytes] | None = None) -> dict[Direction, bytes]:
    """Bytes and holes of each connection follow each other, and bytes are those sent. Gives those of the last one."""
    at: dict[Direction, int] = {}
    found: dict[Direction, bytearray] = {}
    for event in events:
        if isinstance(event, bytes):
            at, found = dict.fromkeys(Direction, 0), {direction: bytearray() for direction in Direction}
        elif isinstance(event, Data):
            assert event.byte_start == at[event.direction]
            assert event.data
            at[event.direction] += len(event.data)
            found[event.direction] += event.data
            if texts is not None:
                assert event.data == texts[event.direction][event.byte_start : at[event.direction]]
        elif isinstance(event, Hole):
            assert event.byte_start == at[event.direction] < event.byte_end
            at[event.direction] = event.byte_end
    return {direction: bytes(text) for direction, text in found.items()}


def assert_balances(segments: list[TcpSegment], result: Told) -> None:
    """Every captured byte and every packet is in one counter."""
    counted: Counter[Direction] = Counter()
    packets: Counter[Direction] = Counter()
    for connection in result.connections.values():
        for side in (connection.client, connection.server):
            assert side._waiting_bytes == 0
            counted[side.direction] += side.delivered_bytes + side.retransmitted_bytes + side.ignored_bytes
            packets[side.direction] += side.packets + side.unproven
    for direction in Direction:
        assert counted[direction] == sum(len(s.payload) for s in segments if s.direction is direction)
        assert packets[direction] == sum(s.direction is direction for s in segments)
    sides = [side for connection in result.connections.values() for side in (connection.client, connection.server)]
    events = result.events
    assert sum(side.delivered_bytes for side in sides) == sum(len(e.data) for e in events if isinstance(e, Data))
    missing = sum(e.byte_end - e.byte_start for e in events if isinstance(e, Hole))
    assert sum(side.missing_bytes for side in sides) == missing
    assert sum(side.overlaps_differ for side in sides) == sum(isinstance(e, OverlapDiffers) for e in events)


def states(result: Told) -> list[Any]:
    return [connection.to_json() for connection in result.connections.values()]


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


@st.composite
def answered(draw: st.DrawFn) -> tuple[dict[Direction, bytes], list[TcpSegment], int]:
    """What two sides say when each acknowledges all that came before, the segments, and which of them has data."""
    said = draw(
        st.lists(st.tuples(st.sampled_from(Direction), st.integers(2, 20), st.booleans()), min_size=2, max_size=15)
    )
    at = dict.fromkeys(Direction, 0)
    pieces: list[Sent] = []
    for direction, size, confirmed in said:
        other = S if direction is C else C
        pieces.append(Sent(direction, at[direction], at[direction] + size, acknowledged=at[other]))
        at[direction] += size
        if confirmed:
            pieces.append(Sent(other, at[other], at[other], acknowledged=at[direction]))
    texts = {direction: draw(st.binary(min_size=size, max_size=size)) for direction, size in at.items()}
    pieces += [Sent(C, at[C], at[C], FIN | ACK, 0, at[S]), Sent(S, at[S], at[S], FIN | ACK, 0, at[C] + 1)]
    pauses = draw(st.lists(st.sampled_from([0, 0, 0, 4, 11]), min_size=len(pieces), max_size=len(pieces)))
    segments = as_segments(texts, ISN, pieces, pauses)
    return texts, segments, draw(st.sampled_from([at for at, each in enumerate(segments) if each.payload]))


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
    options = TcpOptions(max_waiting_bytes=50, max_waiting_segments=4, compared_bytes=30)
    result = told(segments, options)
    assert_tiles(result.events)
    assert_balances(segments, result)
    cut = told(segments, options, cut=True)
    assert cut.events == result.events
    assert states(cut) == states(result)


def test_what_waits_is_bounded_whatever_is_sent() -> None:
    options = TcpOptions(max_waiting_bytes=1000, max_waiting_segments=16, compared_bytes=1000)
    talk = Dialogue(options).open()
    for at in range(1, 200_000, 97):
        talk.send(C, at * 2, b"x" * (at % 90))
        side = talk.connection.client
        assert (side._waiting_bytes <= 1000, len(side._waiting) <= 16) == (True, True)
        # As a log does.
        side.forget_received(side.next_byte)
    assert len(talk.flow.snapshot()) < 6000


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
