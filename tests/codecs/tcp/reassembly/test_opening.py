"""How connections begin: handshakes in any form, SYNs that repeat or contradict, and captures that begin later."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.dialogues import (
    OPTIONS,
    C,
    Dialogue,
    S,
    assert_balances,
    joined,
    plain,
    states,
    told,
)
from wirehouse_codecs.tcp.connection import HELD_SEGMENTS
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.ignored import Why
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_codecs.tcp.packets import ACK, FIN, RST, SYN
from wirehouse_codecs.tcp.reassembly import (
    Data,
    Opened,
)
from wirehouse_codecs.tcp.sequence_numbers import ACKNOWLEDGED_BYTES


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


@pytest.mark.parametrize("ahead", [2**10, 2**20, 2**30])
def test_acknowledged_bytes_of_a_side_outweigh_an_answer_to_a_syn_that_numbers_others(ahead: int) -> None:
    talk = Dialogue()
    told = [*talk.send(C, -1, flags=SYN), *talk.send(C, 0), *talk.send(C, 0, b"abc", acknowledgment=10)]
    told += [*talk.send(C, 3, b"def", acknowledgment=20), *talk.send(S, ahead, flags=SYN | ACK)]
    told += talk.wait(OPTIONS.hole_wait_ns).send(C, 6, b"ghi", acknowledgment=20)
    assert ("server", "hole", 0, 10) in plain(told)
    assert talk.connection.server.missing_bytes == 20
