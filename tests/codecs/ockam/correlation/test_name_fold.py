"""What is said under a name: its addresses, and what the index service has for its clients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.support.ockam_talk import (
    ADDRESS,
    APART_NS,
    KEY,
    NAME_KEY,
    SECOND_ADDRESS,
    Step,
    Talk,
    of,
    told_of,
)
from wirehouse_codecs.ockam.correlation.connections import CLOCKS_NS, HOLE_NS
from wirehouse_codecs.ockam.correlation.events import (
    Closed,
    ConsumerRow,
    Created,
    Delivered,
    Event,
    Found,
    Got,
    Init,
    Partial,
    Replied,
    Saved,
    Told,
    Where,
    name_key,
)
from wirehouse_codecs.ockam.correlation.streams import Fold


def test_a_stream_without_a_name_is_given_one_in_use() -> None:
    assert NAME_KEY == name_key("orders", 0) != name_key("orders", 1)
    named = Talk().init("orders").init("orders")
    assert named.found(key=NAME_KEY) == []
    assert Talk().init("orders", anonymous=True).found(key=NAME_KEY) == []
    assert named.init("orders", anonymous=True).found(key=NAME_KEY) == [("create_other_name", 3)]
    # Under the address nothing is told of it: one place says it.
    assert named.found() == []


def test_an_answer_above_all_that_was_saved() -> None:
    talk = Talk().get(4).save(6).get(6).get(6)
    assert talk.found(key=NAME_KEY) == []
    assert talk.get(9).get(9).found(key=NAME_KEY) == [("index_never_saved", 5)]
    # A save may come where the stream's address isn't known: only by its name all are together.
    assert talk.found() == []
    # The first answer may tell of what was saved before the capture.
    assert Talk().save(3).get(8).found(key=NAME_KEY) == []
    assert Talk().get(4).partial().get(8).found(key=NAME_KEY) == []


@pytest.mark.parametrize("cuts", [(), range(30)])
def test_what_came_to_a_client_while_messages_were_missed_is_not_judged(cuts: Iterable[int]) -> None:
    talk = Talk().store(*range(9)).get(0).pull(0, 0)
    talk.steps.append(Saved(talk.where("c"), "me", "orders", None, 3, missed=1))
    talk.steps.append(Delivered(talk.where("c"), 3, ((3, 3),), "me", missed=1))
    assert of(Found, told_of(talk.steps, cuts)) == []
    # Nothing more was missed since.
    saved = Saved(talk.where("c"), "me", "orders", None, 6, missed=1)
    talk.steps.append(saved)
    found = [(one.rule.name, one.where) for one in of(Found, told_of(talk.steps, cuts))]
    assert found == [("consumer_hole", saved.where)]
    talk = Talk().get(0).save(3)
    talk.steps.append(Got(talk.where("c"), "me", "orders", None, 5, missed=1))
    assert of(Found, told_of(talk.steps, cuts, key=NAME_KEY)) == []


def test_where_the_address_is_not_known_there_is_no_lag() -> None:
    (row,) = Talk().get(3).save(5).told(key=NAME_KEY)
    assert isinstance(row, ConsumerRow)
    assert (row.stream_address, row.stream_name, row.saved, row.lag, row.latest) == (None, "orders", 5, None, None)


def test_a_name_knows_its_addresses_in_their_order_also_in_a_later_window() -> None:
    fold, talk = Fold(NAME_KEY), Talk()
    for address in ("b", "a", "b"):
        fold.take(Init(talk.where("p"), "orders", None, False, address))
    assert list(fold.addresses) == list(Fold(NAME_KEY, snapshot=fold.snapshot()).addresses) == ["b", "a"]
    assert not Fold(KEY).addresses


def lowered(*gets: tuple[str, int | None, int | None, str]) -> list[str]:
    """GetIndexes of one client as connection, index, how many answers ago it was sent, and service."""
    talk = Talk()
    for connection, index, since, service in gets:
        talk.now_ns += 9
        at = talk.where(connection)
        sent_at_ns = None if since is None else at.arrived_at_ns - (10 * since or 1)
        talk.steps.append(Got(at, "me", "orders", None, index, requested_at_ns=sent_at_ns, service=service))
    events = [step for step in talk.steps if isinstance(step, Got)]
    fold = Fold(NAME_KEY)
    told: list[Told] = []
    for event in events:
        told += fold.take(event)
        told += fold.end_window()
        fold = Fold(NAME_KEY, snapshot=fold.snapshot())
    for connection in ("one", "two"):
        told += fold.take(Closed(connection.encode()))
    told += fold.end_window()
    return [one.rule.name for one in told if isinstance(one, Found) and one.rule.name == "saved_index_lowered"]


def test_a_saved_index_is_lowered_on_whatever_connection() -> None:
    assert lowered(("one", 10, 0, "i"), ("two", 3, 0, "i")) == ["saved_index_lowered"]
    assert lowered(("one", 10, 0, "i"), ("two", None, 0, "i")) == ["saved_index_lowered"]
    assert lowered(("one", 10, 0, "i"), ("two", 10, 0, "i"), ("one", 11, 0, "i")) == []


def test_an_index_is_not_lowered_where_order_or_service_may_explain_it() -> None:
    assert lowered(("one", 10, 0, "i"), ("two", 3, 1, "i")) == []
    assert lowered(("one", 10, 0, "i"), ("two", 3, None, "i")) == []
    assert lowered(("one", 10, 0, "i"), ("two", 3, 0, "other")) == []
    # What a hole held back may have been answered earlier than it shows.
    assert lowered(("one", 10, None, "i"), ("two", 3, 0, "i")) == []
    # A session finds it on its own connection.
    assert lowered(("one", 10, 0, "i"), ("one", 3, 0, "i")) == []


def test_a_service_that_began_anew_may_answer_less() -> None:
    fold, talk = Fold(NAME_KEY), Talk()
    told: list[Told] = []
    for address, index in (("old", 10), ("new", 3)):
        init = Init(talk.where(address), "orders", None, False, address)
        at = talk.where(address)
        got = Got(at, "me", "orders", None, index, requested_at_ns=at.arrived_at_ns - 1, service="i")
        told += [one for event in (init, got, Closed(address.encode())) for one in fold.take(event)]
    told += fold.end_window()
    assert [one for one in told if isinstance(one, Found) and one.rule.name == "saved_index_lowered"] == []


def told_less(talk: Talk, **about: Any) -> Talk:
    """A client is told 10, then 3 on another connection."""
    for connection, index in (("one", 10), ("two", 3)):
        talk.now_ns += 9
        at = talk.where(connection)
        asked_at_ns = at.arrived_at_ns - 1
        talk.steps.append(Got(at, "me", "orders", None, index, requested_at_ns=asked_at_ns, service="i", **about))
    return talk


CLOSED = [Closed(b"one"), Closed(b"two")]


@pytest.mark.parametrize("cuts", [(), range(30)])
def test_a_lower_answer_is_found_once_no_hole_can_be_told_that_hid_a_new_address(cuts: Iterable[int]) -> None:
    def found(*steps: Step, talk: Talk | None = None, **about: Any) -> list[str]:
        talk = told_less(talk or Talk(), **about)
        return [one.rule.name for one in of(Found, told_of([*talk.steps, *steps], cuts, key=NAME_KEY))]

    late = Where(b"late", "server", 90, 91, b"capture", 90, 100)
    much_later = late._replace(arrived_at_ns=100 + HOLE_NS)
    assert found() == ["saved_index_lowered"]
    # The hole is noticed while a connection is open, on whichever the Init was to come.
    assert found(Partial(b"two")) == []
    assert found(*CLOSED, Partial(b"late")) == ["saved_index_lowered"]
    assert found(Created(late), Partial(b"late"), Closed(b"late")) == []
    assert found(Created(late), *CLOSED, Partial(b"late"), Closed(b"late")) == []
    assert found(Saved(much_later, "you", "orders", None, 1), Partial(b"late")) == ["saved_index_lowered"]
    # It was noticed before, or is one of the client's host.
    talk = Talk()
    talk.steps.append(Partial(b"before"))
    assert found(talk=talk) == []
    assert found(lacks=True) == []
    # The client asks before it creates.
    assert found(Init(late, "orders", None, False, "new")) == []
    assert found(*CLOSED, Init(late, "orders", None, False, "new")) == ["saved_index_lowered"]
    assert found(Init(much_later, "orders", None, False, "new")) == ["saved_index_lowered"]


def test_the_first_address_of_a_name_that_is_captured_may_be_a_new_one() -> None:
    talk = told_less(Talk())
    init = Init(talk.at("new"), "orders", None, False, "new")
    found = of(Found, told_of([talk.steps[0], init, *talk.steps[1:]], key=NAME_KEY))
    assert found == []


def test_a_save_may_have_been_missed_on_another_connection_of_the_host() -> None:
    talk = Talk().get(4)
    talk.steps.append(Got(talk.where("c"), "me", "orders", None, 9, lacks=True))
    assert talk.found(key=NAME_KEY) == []


def replied(
    *said: tuple[str, str, int | None], seen_by: dict[str, str] | None = None, partial: bool = False
) -> list[tuple[str, str | None]]:
    """Replies under a name with two addresses, as connection, address and how many answers ago they were asked for.

    A connection is given the addresses that its name has; `seen_by` says who captured it. `partial`: after a hole.
    """
    fold, talk, captures = Fold(NAME_KEY), Talk(), seen_by or {}
    events: list[Event] = [Partial(b"hole")] if partial else []
    # The first address is given everywhere before the second one is given anywhere.
    given = [(address, name) for address in "12" for name in sorted({one for one, *_ in said}) if address in name]
    for address, name in given:
        talk.now_ns += APART_NS
        init = Init(talk.where(name), "orders", None, False, f"ST_S_{address}", captures.get(name, ""))
        events.append(init)
    for name, address, since in said:
        talk.now_ns += APART_NS - 1
        where = talk.where(name)
        sent_ns = None if since is None else where.arrived_at_ns - (APART_NS * since or 1)
        events.append(Replied(where, address, sent_ns, captures.get(name, "")))
    told: list[Told] = []
    for event in events:
        told += [*fold.take(event), *fold.end_window()]
        fold = Fold(NAME_KEY, snapshot=fold.snapshot())
    return [(one.rule.name, one.stream_address) for one in of(Found, told)]


def test_an_address_that_answers_on_is_found_once_whatever_the_connections() -> None:
    old, new = ("a1", ADDRESS, 0), ("b2", SECOND_ADDRESS, 0)
    assert replied(old, new, old, new, old) == [("address_changed", ADDRESS)]
    # A capture that began later knows of no answer before.
    assert replied(new, old) == [("address_changed", ADDRESS)]
    # The new one alone answers from then on.
    assert replied(old, new, new) == []
    assert replied(old, old, new) == []


def test_an_old_address_may_still_answer_what_was_sent_before_the_new_one_did() -> None:
    old, new = ("a1", ADDRESS, 0), ("b2", SECOND_ADDRESS, 0)
    assert replied(old, new, ("a1", ADDRESS, 1)) == []
    assert replied(old, new, ("a1", ADDRESS, None)) == []
    # An answer that is captured before its request is of another clock.
    assert replied(old, new, ("a1", ADDRESS, -1)) == []
    # Two captures have two clocks.
    assert replied(old, new, old, seen_by={"a1": "one", "b2": "two"}) == []
    # What a hole held back is captured later than it was sent.
    assert replied(old, new, old, partial=True) == []
    # A session finds it on a connection that was given both.
    assert replied(new, ("a12", ADDRESS, 0), ("a1", ADDRESS, 0)) == []


def test_an_index_is_not_lowered_between_clocks() -> None:
    # The lower answer was asked for first, or comes before its request.
    assert lowered(("one", 10, 0, "i"), ("two", 3, -1, "i")) == []
    fold, talk = Fold(NAME_KEY), Talk()
    told: list[Told] = []
    for index, capture in ((10, "one"), (3, "two")):
        talk.now_ns += 9
        at = talk.where(capture)
        got = Got(at, "me", "orders", None, index, requested_at_ns=at.arrived_at_ns - 1, service="i", seen_by=capture)
        told += fold.take(got)
    assert told == []


@pytest.mark.parametrize(("ahead_ns", "found"), [(-1, ["index_never_saved"]), (0, [])])
@pytest.mark.parametrize("first", [True, False])
def test_an_index_may_have_been_saved_by_another_clock(ahead_ns: int, found: list[str], *, first: bool) -> None:
    fold, talk = Fold(NAME_KEY), Talk(now_ns=100)
    told = list[Told]()
    for client, index in [("you", 1), ("me", 3), ("me", 9), ("you", 1)]:
        at = talk.where("b")
        shows = client == "you" and first is (len(told) == 0 and talk.byte == 1)
        asked_at_ns = at.arrived_at_ns + ahead_ns if shows else at.arrived_at_ns - 1
        told += fold.take(Got(at, client, "orders", None, index, requested_at_ns=asked_at_ns))
    told += [*fold.take(Closed(b"b")), *fold.end_window()]
    assert [one.rule.name for one in of(Found, told)] == found


def test_two_captures_show_no_order_of_inits_within_what_their_clocks_may_differ() -> None:
    def found(apart_ns: int, second: bytes) -> list[str]:
        fold, talk, told = Fold(NAME_KEY), Talk(), list[Told]()
        said: list[Event] = [Init(talk.where("a"), "orders", None, False, "old")]
        talk.now_ns += apart_ns
        said.append(Init(talk.where("b")._replace(capture_id=second), "orders", None, True, "new"))
        for address in ("old", "new", "old"):
            talk.now_ns += 2 * CLOCKS_NS
            said.append(Replied(talk.where(address), address, talk.now_ns - 1))
        for one in said:
            told += fold.take(one)
        return [one.rule.name for one in of(Found, told)]

    both = ["create_other_name", "address_changed"]
    assert found(9, b"capture") == both
    assert found(9, b"another") == []
    assert found(CLOCKS_NS + 9, b"another") == both


@pytest.mark.parametrize("cuts", [True, False])
def test_an_index_may_be_saved_in_another_capture_with_a_later_clock(*, cuts: bool) -> None:
    def found(apart_ns: int, saved_in: bytes, index: int = 9, client: str = "me") -> list[str]:
        fold, talk, told = Fold(NAME_KEY), Talk(), list[Told]()
        said: list[Event] = [Got(talk.where("b"), "me", "orders", None, one) for one in (3, 9)]
        said.append(Closed(b"b"))
        talk.now_ns += apart_ns
        said.append(Saved(talk.where("a")._replace(capture_id=saved_in), client, "orders", None, index))
        said.append(Got(talk.where("a")._replace(capture_id=saved_in), "other", "orders", None, None))
        for one in [Created(Where(b"open", "client", 0, 1, b"capture", 0, 0)), *said, Closed(b"open"), Closed(b"a")]:
            told += fold.take(one)
            if cuts:
                told += fold.end_window()
                fold = Fold(NAME_KEY, snapshot=fold.snapshot())
        return [one.rule.name for one in of(Found, [*told, *fold.end_window()])]

    assert found(9, b"another") == []
    assert found(CLOCKS_NS - 1, b"another") == []
    assert found(CLOCKS_NS, b"another") == ["index_never_saved"]
    assert found(9, b"capture") == ["index_never_saved"]
    assert found(9, b"another", index=8) == ["index_never_saved"]
    assert found(9, b"another", client="you") == ["index_never_saved"]
