"""How connections end: FINs, RSTs that may be forged, silence, and ports that are used again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.dialogues import (
    CLIENT,
    ISN,
    OPTIONS,
    SECOND,
    SERVER,
    C,
    Dialogue,
    S,
    assert_balances,
    assert_tiles,
    is_data,
    joined,
    new_flow,
    plain,
    told,
)
from wirehouse_codecs.core.errors import StateVersionError
from wirehouse_codecs.tcp.connection import EARLY_BYTES, connection_id
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.ignored import Why
from wirehouse_codecs.tcp.packets import ACK, FIN, RST, SYN
from wirehouse_codecs.tcp.reassembly import (
    Closed,
    Event,
    Hole,
    ResetIgnored,
)
from wirehouse_codecs.tcp.sequence_numbers import WINDOW_BYTES


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


def test_a_stray_that_shows_that_a_fin_is_none_is_said() -> None:
    talk = Dialogue()
    talk.send(C, -1, flags=SYN)
    talk.send(C, 5, b"fgh", FIN | ACK)
    talk.send(S, 20, b"?", acknowledgment=31)
    talk.send(C, 31, b"behind the FIN", acknowledgment=21)
    talk.send(C, 2**26, b"stray", acknowledgment=21)
    assert talk.connection.client.fin is None
    talk.flow.expire(talk.ns + OPTIONS.hole_wait_ns)
    assert [(one.why, one.size) for one in talk.connection.client.take_ignored()] == [(Why.FAR, 5)]


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


def test_a_second_reset_that_stands_elsewhere_is_counted() -> None:
    talk = Dialogue().open()
    for direction, start in ((S, 1_000), (S, 1_000), (S, 2_000), (C, 3_000)):
        assert talk.send(direction, start, flags=RST) == []
    assert (talk.connection.server.strays, talk.connection.client.strays) == (1, 1), "one is a copy"
    talk.send(C, 0, b"goes on")
    assert plain(talk.send(S, 0, b"me too", acknowledgment=7)) == ["reset of server ignored", ("server", 0, b"me too")]
    assert (talk.connection.server.strays, talk.connection.client.strays) == (2, 1)


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
