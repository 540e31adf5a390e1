"""What is said under the address of a stream: its rules, its bounds, and where its clients stand."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

import pytest

from tests.support.ockam_talk import (
    ADDRESS,
    KEY,
    LARGEST,
    NEXT,
    PROCESSED,
    Answered,
    Pushed,
    Talk,
    bound,
    by_captures,
    of,
    told_of,
)
from wirehouse_codecs.core.errors import StateVersionError
from wirehouse_codecs.ockam.correlation import clients
from wirehouse_codecs.ockam.correlation.connections import CLOCKS_NS, HOLE_NS
from wirehouse_codecs.ockam.correlation.data_changes import Observation, data_changed
from wirehouse_codecs.ockam.correlation.events import (
    Closed,
    ConsumerRow,
    Delivered,
    Event,
    Found,
    Got,
    Hole,
    Moment,
    OpenPushes,
    Replied,
    Saved,
    Stored,
    StreamRow,
    Told,
    Where,
    address_key,
)
from wirehouse_codecs.ockam.correlation.streams import Fold, judge


def test_an_index_that_two_confirms_have() -> None:
    talk = Talk().store(0, 1, 2).store(1, connection="q")
    assert talk.found() == [("duplicate_index", talk.now_ns)]
    # Nor does it count as lower than those before it.
    assert of(StreamRow, talk.told())[0].confirmed == 4
    assert of(StreamRow, talk.told())[0].indexes == 3


def test_a_lower_index_than_one_that_was_confirmed_before_the_push() -> None:
    talk = Talk()
    early = talk.push("q")
    talk.store(7)
    late = talk.push("q")
    # Sent before 7 was confirmed: which of both was saved first isn't known.
    talk.confirm(early, 3)
    assert talk.found() == []
    talk.confirm(late, 5)
    assert talk.found() == [("index_decreases", talk.now_ns)]


def test_on_one_connection_the_session_tells_a_lower_index() -> None:
    assert Talk().store(7, 5).found() == []


def test_an_address_with_two_names() -> None:
    talk = Talk().init("orders").init("orders", 0).init("orders", None)
    assert talk.found() == []
    talk.init("orders", 1).init("orders", 1).init("other")
    assert talk.found() == [("address_shared", 4), ("address_shared", 6)]
    assert (of(StreamRow, talk.told())[0].stream_name, of(StreamRow, talk.told())[0].partition) == ("orders", None)


def test_an_index_without_a_confirm() -> None:
    assert Talk().store(0).pull(0, 0, 1, 5, 6).found() == [("index_never_confirmed", 3)] * 2
    # Once for each index.
    assert Talk().store(0).pull(0, 5).pull(0, 5).found() == [("index_never_confirmed", 3)]
    assert Talk().store(0).partial().pull(0, 5).found() == []
    # It may have been pushed before the capture began.
    assert Talk().pull(0, 5).store(1).pull(0, 0).found() == []


@pytest.mark.parametrize("cuts", [(), range(30)])
def test_an_index_that_a_hole_may_explain_that_is_told_later(cuts: Iterable[int]) -> None:
    talk = Talk().store(0).pull(0, 5).partial().pull(0, 6)
    assert of(Found, told_of(talk.steps, cuts)) == []
    # All connections had ended, or so much time had passed that it would have been told.
    talk = Talk().store(0).pull(0, 5).close("p").close("c").pull(0, 6, connection="d").partial()
    assert [one.where.arrived_at_ns for one in of(Found, told_of(talk.steps, cuts))] == [3]
    talk = Talk().store(0).pull(0, 5)
    talk.now_ns += HOLE_NS
    talk.pull(0, 6).partial()
    assert [one.where.arrived_at_ns for one in of(Found, told_of(talk.steps, cuts))] == [3]


def test_an_index_whose_confirm_is_still_to_come() -> None:
    talk = Talk().store(0)
    pushed = talk.push()
    talk.pull(0, 5)
    assert talk.found() == []
    assert of(Found, told_of(talk.steps, range(9))) == []
    talk.confirm(pushed, 5)
    assert talk.found() == []
    # Delivered before it was sent.
    assert Talk().store(0).pull(0, 5).store(5).found() == [("index_never_confirmed", 3)]


def test_a_push_that_stays_open_may_be_any_later_index() -> None:
    talk = Talk().store(0).pull(0, 3)
    talk.push()
    talk.pull(0, 5).close("p").pull(0, 6)
    assert talk.found() == [("index_never_confirmed", 3)]


def test_a_response_that_passes_over_what_a_later_one_returns() -> None:
    talk = Talk().store(*range(5)).pull(0, 0, 3, client="you").pull(3, 3, 4, client="you")
    assert talk.found() == []
    assert talk.pull(0, 1, 2).pull(0, 1, 2).found() == [("pull_skips", 13)]


def test_a_client_saves_beyond_a_message_that_never_came() -> None:
    talk = Talk().store(*range(45)).get(None).pull(0, *range(20)).save(20).pull(30, *range(30, 40)).save(40).save(40)
    assert talk.found() == [("consumer_hole", 95)]
    (hole,) = of(Hole, talk.told())
    assert (hole.kind, hole.client_id, hole.saved, hole.where.arrived_at_ns) == ("consumer_hole", "me", 40, 95)
    assert (hole.first_index, hole.last_index, hole.messages, hole.runs) == (20, 29, 10, ((20, 29),))
    assert talk.row().lag == 5


def test_what_a_response_passed_over_is_a_gap_of_the_server() -> None:
    talk = Talk().store(*range(10)).get(0).pull(0, 4, 5, 8, 9).save(10)
    assert talk.found() == []
    (hole,) = of(Hole, talk.told())
    assert (hole.kind, hole.messages, hole.runs) == ("server_gap", 6, ((0, 3), (6, 7)))


def test_what_a_client_resumed_from_is_known_by_its_first_sign() -> None:
    stored = list(range(50))
    assert Talk().store(*stored).get(20).pull(20, *range(20, 30)).save(30).found() == []
    assert Talk().store(*stored).pull(20, *range(20, 30)).save(30).found() == []
    assert Talk().store(*stored).save(30).save(30).found() == []
    assert Talk().store(*stored).get(None).pull(20, *range(20, 30)).save(30).found() == [("consumer_hole", 103)]
    # It was told more than it was seen to save: a part of its life is missing.
    assert Talk().store(*stored).save(3).get(20).pull(20, *range(20, 30)).save(30).found() == []


def test_what_came_for_an_unknown_client_is_not_judged() -> None:
    # Connected again, the client pulls before it names itself.
    talk = Talk().store(*range(30)).get(0).pull(0, *range(10)).save(10)
    talk.pull(10, *range(10, 20), client=None, connection="d").save(20, connection="d")
    assert talk.found() == []
    assert talk.pull(25, *range(25, 30), connection="d").save(30, connection="d").found() == [("consumer_hole", 67)]
    # It pulls where it is never named.
    assert Talk().store(*range(30)).save(3).pull(3, *range(3, 20), client=None, connection="d").save(20).found() == []


def named_late(asker: str = "h con", connection: str = "c") -> Talk:
    """A requester pulls ten messages, two of them twice, before it names its client by a SaveIndex."""
    talk = Talk().store(*range(20)).init("orders")
    for runs in (((0, 4),), ((3, 9),)):
        talk.steps.append(Delivered(talk.where("c"), runs[0][0], runs, None, asker="h con"))
    talk.steps.append(Saved(talk.where(connection), "me", "orders", None, 10, asker=asker))
    return talk


@pytest.mark.parametrize("cuts", [(), range(40)])
def test_what_was_pulled_before_its_client_was_named_counts_for_it(cuts: Iterable[int]) -> None:
    def row(talk: Talk) -> tuple[int | None, ...]:
        told = told_of(talk.steps, cuts)
        assert of(Found, told) == of(Hole, told) == []
        one: ConsumerRow = [row for row in of(ConsumerRow, told) if row.client_id == "me"][-1]
        return one.saved, one.delivered, one.delivered_messages, one.redelivered, one.lag

    assert row(named_late()) == (10, 9, 10, 2, 10)
    # Of another address or connection it isn't known who pulled.
    assert row(named_late(asker="h other")) == (10, None, 0, 0, 10)
    assert row(named_late(connection="d")) == (10, None, 0, 0, 10)
    # It counts once, for the first that is named.
    talk = named_late()
    talk.steps.append(Saved(talk.where("c"), "you", "orders", None, 5, asker="h con"))
    assert row(talk) == (10, 9, 10, 2, 10)
    assert talk.row("you").delivered is None
    # What it went through before isn't judged, what it does afterwards is.
    talk = named_late()
    talk.steps.append(Delivered(talk.where("c"), 12, ((12, 13),), "me", asker="h con"))
    talk.steps.append(Saved(talk.where("c"), "me", "orders", None, 14, asker="h con"))
    (hole,) = of(Hole, told_of(talk.steps, cuts))
    assert hole.runs == ((10, 11),)


def test_what_waits_for_a_name_is_bounded_and_ends_with_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = named_late()
    talk.steps.insert(-1, Closed(b"c"))
    assert talk.row().delivered is None
    bound(monkeypatch, MOST_UNCLAIMED=1)
    talk = named_late()
    talk.steps.insert(-1, Delivered(talk.where("d"), 0, ((0, 0),), None, asker="h more"))
    assert talk.row().delivered is None


def test_what_a_response_to_an_unknown_request_passed_over_is_not_judged() -> None:
    talk = Talk().store(*range(5)).get(0).pull(None, 3)
    assert talk.save(4).found() == []


def test_a_client_saves_ahead_of_what_came() -> None:
    talk = Talk().store(*range(5)).pull(0, 0, 1, 2).save(3)
    assert talk.found() == []
    # A message lies ahead that was confirmed: it is a hole, and nothing besides.
    assert talk.save(4).found() == [("consumer_hole", 13)]
    assert Talk().store(0, 1, 2).pull(0, 0, 1, 2).save(4).found() == [("save_ahead", 8)]
    assert Talk().get(0).save(100).found() == []


def test_a_saved_index_is_the_next_one_or_the_last_one_processed() -> None:
    talk = Talk().store(*range(5)).get(0).pull(0, 0, 1, 2).save(2)
    assert (talk.row().position, talk.row().lag) == (2, 3)
    row = talk.row(convention=PROCESSED)
    assert (row.saved, row.position, row.lag) == (2, 3, 2)
    talk.save(3)
    assert talk.found() == []
    assert [rule for rule, _ in talk.found(PROCESSED)] == ["consumer_hole"]
    # A first answer of 0 is a record that was made just now; later it is the message 0.
    assert Talk().get(0).row(convention=PROCESSED).position == 0
    assert Talk().save(0).get(0).row(convention=PROCESSED).position == 1


def test_a_restarted_client() -> None:
    talk = Talk().store(*range(9)).get(None).pull(0, 0, 1, 2).save(2).get(2, connection="d")
    row = talk.pull(2, 2, 3, connection="d").pull(None, 3, connection="d").save(4, connection="d").row()
    assert (row.delivered, row.delivered_messages, row.redelivered, row.connections) == (3, 4, 2, 2)
    assert (row.saved, row.position, row.latest, row.lag) == (4, 4, 8, 5)
    assert talk.found() == []


def test_rows_come_only_of_what_changed() -> None:
    fold = Fold(KEY)
    for step in Talk().init("orders").get(0).get(0, "you").steps:
        fold.take(step)  # type: ignore[arg-type]
    assert [type(row) for row in fold.end_window()] == [StreamRow, ConsumerRow, ConsumerRow]
    assert fold.end_window() == []
    fold.take(Talk().save(1).steps[0])  # type: ignore[arg-type]
    assert [getattr(row, "client_id", "") for row in fold.end_window()] == ["", "me"]
    # How far behind a client is depends on what is stored.
    fold.take(Stored(Talk().where("p"), 0, 0))
    assert [getattr(row, "lag", "") for row in fold.end_window()] == ["", 1, 0]


def test_the_largest_indexes() -> None:
    talk = Talk().store(0, LARGEST - 1, LARGEST).get(0).pull(0, 0, LARGEST - 1, LARGEST).save(LARGEST)
    for convention in (NEXT, PROCESSED):
        assert talk.found(convention) == []
    assert talk.row().lag == 1
    assert (talk.row(convention=PROCESSED).position, talk.row(convention=PROCESSED).lag) == (LARGEST + 1, 0)
    assert Talk().save(LARGEST).save(0).row().saved == LARGEST


def sparse(count: int) -> Iterable[tuple[str, Event]]:
    """`count` indexes far from each other, and as many clients of which each pulls and saves one."""
    where = Talk().where("p")
    for n in range(count):
        yield KEY, Stored(where, 3 * n, 0)
        yield KEY, Delivered(where, 3 * n, ((3 * n, 3 * n),), "busy")
        yield KEY, Delivered(where, 3 * n, ((3 * n, 3 * n), (2, 2)), f"client {n}")
        yield KEY, Saved(where, f"client {n}", "orders", None, 3 * n + 1)
        yield KEY, OpenPushes(n.to_bytes(16), [Moment(n, b"capture")])


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("MOST_RUNS", "MOST_CLIENT_RUNS", "MOST_CLIENTS", "MOST_RISES", "MOST_PENDING", "MOST_CONNECTIONS")
    bound(monkeypatch, **dict.fromkeys(names, 50))
    sizes = []
    for count in (200, 2_000):
        fold = Fold(KEY)
        for _, event in sparse(count):
            fold.take(event)
        assert len(fold.end_window()) <= 52
        sizes.append(len(fold.snapshot()))
    assert sizes[1] < 1.2 * sizes[0]


def test_a_name_that_is_too_long_is_not_followed() -> None:
    long = "x" * (clients.MOST_NAME + 1)
    talk = Talk().save(3, long).get(3, long).pull(0, 3, client=long)
    assert of(ConsumerRow, talk.told()) == []
    assert len(json.dumps(Talk().init(long).told()[0].stream_name)) < len(long) + 2  # type: ignore[union-attr]


def test_state_of_another_version_is_refused() -> None:
    state = json.loads(Fold(KEY).snapshot()) | {"version": 0}
    with pytest.raises(StateVersionError):
        Fold(KEY, snapshot=json.dumps(state))


def test_keys_are_judged_apart() -> None:
    where = Talk().where("p")
    told = judge([(address_key(name), Stored(where, 1, 0)) for name in ("a", "b", "a")])
    assert [(found.rule.name, found.stream_address) for found in of(Found, told)] == [("duplicate_index", "a")]
    assert [row.stream_address for row in of(StreamRow, told)] == ["a", "b"]


@pytest.mark.parametrize(
    ("told", "places"),
    [
        # p: a pushed message was confirmed, g: a pull returned one.
        ("pa ga ga", []),
        ("pa gb ga", [1]),
        ("ga ga gb ga", [2]),
        ("ga pb ga gb", [1, 2]),
        ("pa pb ga gb gc", [4]),
        ("ga gb pb gb", [2]),
        # Of two pushes that are confirmed with one index, the data of either may come before its confirm.
        ("pa gb pb ga gb", []),
        ("gb pa pb ga gb", []),
        ("pa gb pc gb", [1, 3]),
    ],
)
def test_the_data_at_an_index(told: str, places: list[int]) -> None:
    observations = [
        Observation(Where(b"", "server", at, at, b"", at, at), ADDRESS, 7, said[1:].encode(), said[0] == "p")
        for at, said in enumerate(told.split())
    ]
    # Another index and another stream have nothing to do with it.
    others = [Observation(Where(b"", "server", 99, 99, b"", 99, 99), name, 8, b"z", True) for name in (ADDRESS, "b")]
    found = data_changed(observations[:1] + others + observations[1:])
    assert [one.where.record_number for one in found] == places
    assert {(one.rule.name, one.stream_address) for one in found} <= {("data_changed", ADDRESS)}


def test_lag_is_what_can_still_be_read_and_the_rest_is_lost() -> None:
    talk = Talk().store(*range(20)).get(None).pull(0, 0, 1, 2).save(3)
    talk.get(None, "probe", "d").pull(0, *range(12, 20), client="probe", connection="d")
    assert (talk.row().lag, talk.row().lost) == (8, 9)
    # What is pushed after it counts; what comes back after all does too.
    assert (talk.store(20).row().lag, talk.row().lost) == (9, 9)
    assert talk.pull(3, 10, 11, client="probe", connection="d").row().lag == 11
    # What it went past stays lost.
    talk.pull(12, *range(12, 20)).save(20)
    assert (talk.row().lag, talk.row().lost, talk.row("probe").lost) == (1, 7, 10)


def test_what_came_to_the_client_before_it_was_deleted_is_not_lost() -> None:
    talk = Talk().store(*range(10)).get(None).pull(0, *range(6))
    talk.get(None, "probe", "d").pull(0, 8, 9, client="probe", connection="d")
    assert (talk.row().lag, talk.row().lost) == (2, 2)
    assert talk.save(8).row().lost == 2


def aged(*, cut: bool) -> list[float | None]:
    """How old the oldest message is that a client has yet to process, while messages come and some are deleted."""
    fold, talk, told = Fold(KEY), Talk(), []
    for at in range(6000):
        talk.now_ns = at * 10**9
        talk.steps.clear()
        talk.store(at)
        if at % 500 == 499:
            talk.get(0, "first").get(3000, "late").pull(at // 100, at // 100 + 5, client="probe")
        for step in talk.steps:
            if not isinstance(step, Pushed):
                fold.take(step.stored if isinstance(step, Answered) else step)
        if at == 5999 or (cut and not at % 7):
            told = fold.end_window()
            fold = Fold(KEY, snapshot=fold.snapshot())
    ages: dict[str, ConsumerRow] = {row.client_id: row for row in of(ConsumerRow, told)}
    return [ages[name].lag_seconds for name in ("first", "late")]


@pytest.mark.property
def test_the_age_of_what_is_to_be_processed() -> None:
    whole = aged(cut=False)
    assert whole == aged(cut=True)
    # Passed over are 59 to 63; of what is far behind the time is known within a few messages.
    assert whole[0] == pytest.approx(5999, abs=4)
    assert whole[1] == pytest.approx(2999, abs=2)
    talk = Talk().store(0, 1).get(None).pull(0, 0, 1).save(2)
    assert talk.row().lag_seconds == 0.0
    assert talk.store(2).row().lag_seconds == 0.0
    assert Talk().store(0).get(1, "other").row("other").lag_seconds == 0.0


def test_who_saves_from_a_place_is_who_pulls_there() -> None:
    talk, fold = Talk().store(*range(6)), Fold(KEY)
    rows: dict[str, ConsumerRow] = {}
    talk.steps += [
        Got(talk.where("d"), "me", "orders", None, 0, asker="host con"),
        Delivered(talk.where("c"), 0, [(0, 3)], None, asker="host con"),
        Delivered(talk.where("c"), 0, [(0, 2)], None, asker="other con"),
        # Its order with the pull isn't sure, so what it passed over isn't judged.
        Saved(talk.where("d"), "me", "orders", None, 6, asker="host con"),
    ]
    for step in talk.steps:
        if not isinstance(step, Pushed):
            assert not fold.take(step.stored if isinstance(step, Answered) else step)
        rows |= {row.client_id: row for row in of(ConsumerRow, fold.end_window())}
        fold = Fold(KEY, snapshot=fold.snapshot())
    assert (rows["me"].delivered_messages, rows["me"].saved, rows["me"].connections) == (4, 6, 2)


def test_a_save_under_a_guessed_address_is_not_judged() -> None:
    # What was pulled on its connection isn't known to be of this stream.
    talk = Talk().store(*range(30)).get(0).pull(0, *range(10)).save(10)
    talk.steps.append(Saved(talk.where("d"), "me", "orders", None, 20, guessed=True))
    assert talk.save(30).found() == []
    assert Talk().store(*range(30)).get(0).pull(0, *range(10)).save(20).found() != []


def test_nothing_is_ordered_by_pushes_of_another_clock() -> None:
    """Answers are captured before what they answer, or held back until it comes."""

    def found(ahead_ns: int) -> list[str]:
        fold, talk, told = Fold(KEY), Talk(now_ns=100), list[Told]()
        for connection, index in (("one", 1), ("two", 9), ("one", 5)):
            talk.now_ns += 9
            where = talk.where(connection)
            told += fold.take(Stored(where, index, where.arrived_at_ns - 1 + ahead_ns))
            told += fold.end_window()
            fold = Fold(KEY, snapshot=fold.snapshot())
        for ended in (b"one", b"two"):
            told += fold.take(Closed(ended))
        return [one.rule.name for one in of(Found, told)]

    assert found(0) == ["index_decreases"]
    assert found(1) == []
    assert found(9) == []


@pytest.mark.parametrize("cuts", [True, False])
def test_a_lower_index_is_found_unless_an_answer_shows_two_clocks_soon(*, cuts: bool) -> None:
    def found(*, after_ns: int = 9, closed: bool = False, early: bool = True) -> list[str]:
        fold, talk, told = Fold(KEY), Talk(), list[Told]()
        events: list[Event] = []
        for connection, index in (("one", 1), ("two", 9), ("one", 5)):
            talk.now_ns += 9
            where = talk.where(connection)
            events.append(Stored(where, index, where.arrived_at_ns - 1))
        events += [Closed(b"one"), Closed(b"two")] if closed else []
        talk.now_ns += after_ns - 1
        where = talk.where("three")
        events.append(Stored(where, 10, None if early else where.arrived_at_ns - 1, early=early))
        talk.now_ns += CLOCKS_NS
        events += [Delivered(talk.where("three"), 0, (), None), Closed(b"one"), Closed(b"two"), Closed(b"three")]
        for event in events:
            told += fold.take(event)
            if cuts:
                told += fold.end_window()
                fold = Fold(KEY, snapshot=fold.snapshot())
        return [one.rule.name for one in of(Found, [*told, *fold.end_window()])]

    assert found(early=False) == ["index_decreases"]
    assert found() == found(after_ns=CLOCKS_NS - 1) == []
    assert found(after_ns=CLOCKS_NS) == found(closed=True) == ["index_decreases"]


@pytest.mark.parametrize("cuts", [True, False])
def test_where_messages_were_missed_a_client_may_know_answers_of_its_other_connections(*, cuts: bool) -> None:
    def found(*, after_ns: int = 9, connection: str = "d", client: str = "me", asked_ns: int | None = 0) -> list[str]:
        talk = Talk()
        events: list[Event] = [Stored(talk.where("p"), index, None) for index in range(5)]
        talk.pull(0, 0, 1).save(1).pull(1, 1, 2).save(5)
        events += [replace(one, missed=1) for one in talk.steps if isinstance(one, Delivered | Saved)]
        fold, told = Fold(KEY), list[Told]()
        saved_ns, talk.now_ns = talk.now_ns, talk.now_ns + after_ns - 1
        asked_ns = None if asked_ns is None else saved_ns + asked_ns
        events.append(Delivered(talk.where(connection), 3, ((3, 4),), client, requested_at_ns=asked_ns))
        talk.now_ns += CLOCKS_NS
        events.append(Delivered(talk.where("e"), 0, (), None))
        for event in events:
            told += fold.take(event)
            if cuts:
                told += fold.end_window()
                fold = Fold(KEY, snapshot=fold.snapshot())
        told += fold.end_window()
        assert len(of(Hole, told)) == len(of(Found, told))
        return [one.rule.name for one in of(Found, told)]

    assert found() == found(asked_ns=None) == []
    hole = ["consumer_hole"]
    assert found(asked_ns=1) == found(connection="c") == found(client="you") == found(after_ns=CLOCKS_NS + 1) == hole


def test_a_push_that_came_late_may_have_been_sent_before_all_that_was_said() -> None:
    """Its time isn't known: neither is its index too low, nor its message delivered before it was sent."""

    def found(pushed_at_ns: int | None) -> list[str]:
        fold, talk = Fold(KEY), Talk()
        events: list[Event] = [Stored(talk.where(name), index, talk.now_ns - 1) for name, index in (("p", 1), ("q", 9))]
        events.append(Delivered(talk.where("c"), 0, ((1, 1), (5, 5)), "me"))
        talk.now_ns += 9
        events.append(Stored(talk.where("p"), 5, pushed_at_ns))
        events += [Closed(name) for name in (b"p", b"q", b"c")]
        told = [one for event in events for one in fold.take(event)]
        return sorted(one.rule.name for one in of(Found, [*told, *fold.end_window()]))

    assert found(9) == ["index_decreases", "index_never_confirmed"]
    assert found(None) == []


@pytest.mark.parametrize(
    ("event", "rule"), [(Stored, "index_decreases"), (Got, "saved_index_lowered"), (Replied, "address_changed")]
)
def test_two_captures_show_no_order_within_what_their_clocks_may_differ(
    event: type[Stored] | type[Got] | type[Replied], rule: str
) -> None:
    one, two, split = ("one", "one"), ("two", "two"), ("two", "one")
    # In one capture the order is sure, however short the time.
    assert by_captures(9, one, one, event=event) == [rule]
    assert by_captures(9, split, one, event=event) == [rule]
    assert by_captures(CLOCKS_NS + 1, one, one, event=event) == [rule]
    # Requests in one capture and answers in another one, or each connection in its own.
    assert by_captures(9, split, split, event=event) == []
    assert by_captures(9, one, two, event=event) == []
    assert by_captures(CLOCKS_NS, one, two, event=event) == []
    assert by_captures(CLOCKS_NS + 1, one, two, event=event) == [rule]


def test_what_was_delivered_just_before_its_push_in_another_capture_is_confirmed() -> None:
    def found(pulled_in: bytes, pushed_ns: int) -> list[str]:
        talk, fold = Talk(), Fold(KEY)
        first = Stored(talk.where("p"), 1, None)
        delivered = Delivered(talk.where("c")._replace(capture_id=pulled_in), 0, [(1, 2)], "me")
        talk.now_ns += pushed_ns
        pushed_at_ns = talk.now_ns
        stored = Stored(talk.where("p"), 2, pushed_at_ns, b"capture")
        events: list[Event] = [first, delivered, stored, Closed(b"p"), Closed(b"c")]
        told = [one for event in events for one in fold.take(event)]
        return [one.rule.name for one in of(Found, [*told, *fold.end_window()])]

    assert found(b"capture", 9) == ["index_never_confirmed"]
    assert found(b"another", 9) == []
    assert found(b"another", CLOCKS_NS + 1) == ["index_never_confirmed"]


@pytest.mark.parametrize("answered", ["later", "never"])
def test_what_was_delivered_just_before_an_open_push_in_another_capture_may_be_its_message(answered: str) -> None:
    def found(pulled_in: str, apart_ns: int, *pushed_in: str) -> list[str]:
        talk, fold = Talk(), Fold(KEY)
        told = [*fold.take(Stored(talk.where("p"), 1, None))]
        delivered = Delivered(talk.where("c")._replace(capture_id=pulled_in.encode()), 0, [(1, 2)], "me")
        pushed = [Moment(talk.now_ns + apart_ns, capture_id.encode()) for capture_id in pushed_in]
        told += [*fold.take(delivered), *fold.take(Closed(b"c"))]
        for number, moment in enumerate(pushed):
            told += fold.take(OpenPushes(b"open %d" % number, [moment]))
        if answered == "never":
            for number, _ in enumerate(pushed):
                told += fold.take(Closed(b"open %d" % number))
        told += [*fold.take(Closed(b"p")), *fold.end_window()]
        fold = Fold(KEY, snapshot=fold.snapshot())
        if answered == "later":
            for number, moment in enumerate(pushed):
                told += fold.take(OpenPushes(b"open %d" % number, []))
                stored = Stored(talk.where(f"open {number}"), 2 + number, moment.at_ns, moment.capture_id)
                told += fold.take(stored)
        told += fold.end_window()
        return [one.rule.name for one in of(Found, told)]

    assert found("one", 1, "one") == ["index_never_confirmed"]
    assert found("one", 1, "two") == []
    assert found("two", 1, "one", "two") == []
    assert found("two", 1, "two", "one") == []
    assert found("one", CLOCKS_NS, "two") == []
    assert found("one", CLOCKS_NS + 1, "two", "three") == ["index_never_confirmed"]


def test_what_was_delivered_before_an_open_push_may_be_its_message_where_two_clocks_tell_the_time() -> None:
    def found(ahead_ns: int) -> list[str]:
        talk, fold = Talk(now_ns=100), Fold(KEY)
        where = talk.where("p")
        told = [*fold.take(Stored(where, 1, where.arrived_at_ns - 1 + ahead_ns))]
        told += fold.take(Delivered(talk.where("c"), 0, [(1, 2)], "me"))
        told += fold.take(OpenPushes(b"open", [Moment(talk.now_ns + 9, b"capture")]))
        for connection in (b"c", b"p", b"open"):
            told += fold.take(Closed(connection))
        return [one.rule.name for one in of(Found, [*told, *fold.end_window()])]

    assert found(0) == ["index_never_confirmed"]
    assert found(1) == []
