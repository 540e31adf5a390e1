"""Order, repetition and gaps: what waits for what, and when missing bytes are a hole."""

from __future__ import annotations

import pytest

from tests.support.dialogues import (
    ISN,
    OPTIONS,
    SECOND,
    C,
    Dialogue,
    S,
    joined,
    moment,
    new_flow,
    plain,
)
from wirehouse_codecs.tcp import waiting
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.ignored import Why
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_codecs.tcp.packets import ACK, FIN, PSH, RST, SYN
from wirehouse_codecs.tcp.reassembly import (
    Closed,
    Data,
    Hole,
)
from wirehouse_codecs.tcp.sequence_numbers import ACKNOWLEDGED_BYTES, WINDOW_BYTES

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
    assert len(talk.flow.snapshot()) < 3 * waiting.COMPARED_BYTES


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


def test_a_difference_is_told_after_a_snapshot_too_and_within_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "COMPARED_BYTES", 4)
    talk = Dialogue().open()
    talk.send(C, 0, b"abcdefgh")
    talk.flow = new_flow(snapshot=talk.flow.snapshot())
    assert plain(talk.send(C, 0, b"ABCDEFGH")) == [("client", "differs", 4, 8)]


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
    assert talk.send(S, 0, acknowledgment=20) == [], "it may be captured before what it acknowledges"
    told = talk.wait(OPTIONS.hole_wait_ns).send(S, 0, acknowledgment=20)
    assert plain(told) == [("client", "hole", 14, 18), ("client", 18, b"ij")]


@pytest.mark.parametrize("apart_ns", [1, SECOND, 9 * SECOND])
@pytest.mark.parametrize("restored", [False, True])
def test_an_acknowledgment_may_be_captured_before_the_late_bytes_that_it_is_about(
    apart_ns: int, restored: bool
) -> None:
    talk = Dialogue().open()
    assert talk.send(C, 4, b"late") == talk.send(S, 0, acknowledgment=0) == []
    assert talk.wait(14 * SECOND).send(S, 0, acknowledgment=8) == []
    talk = talk.restore() if restored else talk
    assert joined(talk.wait(apart_ns).send(C, 0, b"very")) == [("client", 0, b"verylate")]
    assert talk.connection.client.missing_bytes == 0


def test_each_part_of_a_gap_is_waited_for_from_when_it_was_acknowledged() -> None:
    talk = Dialogue().open()
    assert talk.send(C, 4, b"late") == talk.send(S, 0, acknowledgment=0) == []
    assert talk.wait(14 * SECOND).send(S, 0, acknowledgment=2) == []
    assert talk.wait(9 * SECOND).send(S, 0, acknowledgment=8) == []
    assert plain(talk.wait(2 * SECOND).send(S, 0, acknowledgment=8)) == [("client", "hole", 0, 2)]
    assert joined(talk.send(C, 2, b"ry")) == [("client", 2, b"rylate")]


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
    assert talk.send(S, 0, acknowledgment=12) == []
    assert plain(talk.wait(11 * SECOND).send(S, 0, acknowledgment=12)) == [("client", "hole", 9, 12)]
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


def test_a_hole_reaches_no_further_than_the_next_answer_knew() -> None:
    """The server's bytes 2 to 4 may answer what the client says behind the hole before them."""
    talk = Dialogue().open()
    assert talk.send(C, 0, b"b", acknowledgment=2) == talk.send(S, 4, b"e", acknowledgment=1) == []
    in_turn = [
        ("server", "hole", 0, 2),
        ("client", 0, b"b"),
        ("server", "hole", 2, 4),
        ("server", 4, b"e"),
    ]
    late = new_flow(snapshot=talk.flow.snapshot())
    assert plain(talk.wait(10 * SECOND).send(C, 1, acknowledgment=5)) == in_turn
    assert plain(late.expire(talk.ns + OPTIONS.idle_ns)) == [*in_turn, "closed idle"]


def test_bytes_that_need_not_wait_any_more_come_before_a_hole() -> None:
    talk = Dialogue().open()
    assert talk.send(C, 1, b"cd", acknowledgment=2) == talk.send(S, 0, b"ab", acknowledgment=1) == []
    assert talk.send(S, 4, b"e", acknowledgment=3) == []
    assert plain(talk.wait(10 * SECOND).send(C, 3, acknowledgment=5)) == [
        ("client", "hole", 0, 1),
        ("server", 0, b"ab"),
        ("client", 1, b"cd"),
        ("server", "hole", 2, 4),
        ("server", 4, b"e"),
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
    assert talk.send(S, 0, b"well", acknowledgment=4) == [], "a byte, or a FIN that wasn't seen"
    one = new_flow(snapshot=talk.flow.snapshot())
    assert plain(talk.send(C, 3, b"!")) == [("client", 3, b"!"), ("server", 0, b"well")], "a byte"
    talk.flow = one
    assert plain(talk.wait(10 * SECOND).send(S, 4, acknowledgment=4)) == [("server", 0, b"well")], "a FIN"
    assert plain(talk.send(S, 4, b" done", acknowledgment=4)) == [("server", 4, b" done")], "nobody waits again"
    assert talk.connection.client.missing_bytes == 0
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
    assert talk.send(S, 1, b"b") == [], "one of the two is garbled"
    assert plain(talk.send(S, 2, b"c")) == [("server", at, one) for at, one in enumerate((b"a", b"b", b"c"))]
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


@pytest.mark.parametrize("low", [3, 0, -1, -1747, -(2**23)])
def test_a_garbled_low_acknowledgment_releases_nothing_that_came_before_it(low: int) -> None:
    talk = Dialogue().open()
    talk.send(C, 0, b"order")
    for at in range(4):
        assert talk.send(S, at, b"a", acknowledgment=9 + at) == []
    assert talk.send(S, 4, b"b", acknowledgment=low) == []
    talk.flow = new_flow(snapshot=talk.flow.snapshot())
    assert talk.send(S, 5, b"c", acknowledgment=12) == [], "two acknowledge more than it"
    expected = [("client", 5, b"question"), *[("server", at, b"a") for at in range(4)]]
    assert plain(talk.send(C, 5, b"question")) == [*expected, ("server", 4, b"b"), ("server", 5, b"c")]


def test_an_acknowledgment_before_the_first_byte_is_none() -> None:
    talk = Dialogue().open()
    assert talk.send(S, 0, b"a", acknowledgment=8) == talk.send(S, 1, b"b", acknowledgment=-1000) == []
    assert plain(talk.send(C, 0, b"question")) == [("client", 0, b"question"), ("server", 0, b"a"), ("server", 1, b"b")]
    assert talk.connection.server.is_late(2), "nobody knows what its sender knew"


def test_what_is_sent_again_waits_for_no_more_than_what_came_before_it_from_behind_it() -> None:
    talk = Dialogue().open()
    assert talk.send(S, 1, b"b", acknowledgment=0) == []
    assert plain(talk.send(S, 0, b"a", acknowledgment=8)) == [("server", 0, b"a"), ("server", 1, b"b")]


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
