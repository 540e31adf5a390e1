"""Connections of which one side was captured, and what a sender knew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.dialogues import (
    ISN,
    OPTIONS,
    SECOND,
    C,
    Dialogue,
    S,
    joined,
    new_flow,
    plain,
    told,
)
from wirehouse_codecs.tcp.packets import ACK, FIN, RST, SYN
from wirehouse_codecs.tcp.reassembly import (
    Data,
    Hole,
)

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


@pytest.mark.parametrize(("window", "before"), [(0, 1000), (1, 1000), (0, 0)])
def test_what_follows_may_have_waited_for_a_window_or_for_bytes_sent_again(window: int, before: int) -> None:
    """A host that never had a window doesn't mean it."""
    talk = Dialogue().open(window=before)
    talk.send(C, 0, b"abc")
    talk.send(S, 0, acknowledgment=3, window=window)
    talk.send(C, 3, b"def")
    talk.send(C, 3, b"def")
    talk.send(C, 6, b"ghi")
    client = new_flow(snapshot=talk.flow.snapshot()).connection.client  # type: ignore[union-attr]
    full, again = ([end for end in range(9) if client.has_stalled(end, is_full=full)] for full in (True, False))
    assert (full, again) == ([3] if before and not window else [], [6])


@pytest.mark.parametrize(("acknowledged", "late"), [(0, False), (3, True), (6, True)])
def test_bytes_that_a_reset_acknowledges_before_they_come_may_have_been_sent_before(
    acknowledged: int, late: bool
) -> None:
    talk = Dialogue().open()
    talk.send(S, 0, b"answer")
    # It stands behind bytes that were not captured, so it closes nothing yet.
    talk.send(S, 9, flags=RST | ACK, acknowledgment=acknowledged)
    talk.send(C, 0, b"abcdef", acknowledgment=6)
    client = new_flow(snapshot=talk.flow.snapshot()).connection.client  # type: ignore[union-attr]
    assert client.is_late(6) is late


@pytest.mark.parametrize(("stands_at", "late"), [(0, False), (3, True), (6, True)])
def test_bytes_before_a_reset_of_their_side_may_have_been_sent_before(stands_at: int, late: bool) -> None:
    talk = Dialogue().open()
    talk.send(S, 0, b"answer")
    # What its side acknowledged was not captured, so it closes nothing yet.
    talk.send(C, stands_at, flags=RST | ACK, acknowledgment=9)
    talk.send(C, 0, b"abcdef", acknowledgment=6)
    client = new_flow(snapshot=talk.flow.snapshot()).connection.client  # type: ignore[union-attr]
    assert client.is_late(6) is late


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
