"""Folds of streams and of names against a model that remembers everything, cut anywhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.ockam_talk import (
    KEY,
    LARGEST,
    NAME_KEY,
    NEXT,
    Answered,
    Pushed,
    Step,
    Talk,
    bound,
    newest,
    of,
    rules_of,
    speaks_on,
    time_of,
    told_of,
)
from wirehouse_codecs.core.intervals import runs_of
from wirehouse_codecs.ockam.correlation import clients, stream_fold
from wirehouse_codecs.ockam.correlation.connections import HOLE_NS
from wirehouse_codecs.ockam.correlation.events import (
    Closed,
    ConsumerRow,
    Delivered,
    Found,
    Got,
    Hole,
    Init,
    LagRow,
    Partial,
    Saved,
    Stored,
    StreamRow,
    Where,
)
from wirehouse_codecs.ockam.correlation.streams import Fold
from wirehouse_codecs.ockam.options import IndexConvention


@dataclass
class ModelClient:
    saved: int | None = None
    position: int | None = None
    answered: bool = False
    floor: int | None = None
    unjudged: int = 0
    delivered: list[int] = field(default_factory=list)
    #: Of what was delivered last.
    brought: Where | None = None
    covered: set[int] = field(default_factory=set)
    lost: int = 0
    connections: set[bytes] = field(default_factory=set)
    #: Those that the index service was spoken to on: what is under the name knows of no others.
    saving: set[bytes] = field(default_factory=set)


class Model:
    """All that was said, in sets."""

    def __init__(self, steps: list[Step], convention: IndexConvention) -> None:
        self.ahead = 0 if convention is NEXT else 1
        self.confirms: list[Stored] = []
        self.delivered = 0
        self.passed: set[int] = set()
        self.unconfirmed: dict[int, Where] = {}
        self.clients: dict[str, ModelClient] = {}
        self.found: set[tuple[str, Where]] = set()
        self.holes: set[tuple[str, Where, int]] = set()
        self.partial = False
        self.settled_ns = self.now_ns = -1
        self.unnamed: dict[bytes, int] = {}
        self.clocks, self.by_clocks = False, set[int]()
        self.decreased: list[Where] = []
        self.alive = alive = set[bytes]()
        pushes: list[Pushed] = []
        for step in steps:
            if speaks_on(step):
                alive.update(speaks_on(step))
                self.now_ns = time_of([step], 0)
            match step:
                case Closed(connection_id) if alive:
                    alive.discard(connection_id)
                    self.settled_ns = self.settled_ns if alive else self.now_ns
                    self.find_decreased(judged=not alive)
                case Pushed():
                    pushes.append(step)
                case Answered():
                    pushes.remove(step.pushed)
                    self.store(step.stored)
                case Delivered():
                    self.deliver(step)
                case Saved():
                    self.save(step)
                case Got():
                    self.get(step)
                case Partial():
                    self.partial = True
                    self.settled_ns = max(self.settled_ns, self.now_ns - HOLE_NS)
                    judged = self.unconfirmed.items()
                    self.unconfirmed = {at: where for at, where in judged if where.arrived_at_ns <= self.settled_ns}
        for index, where in self.unconfirmed.items():
            sent = [stored.pushed_at_ns for stored in self.confirms if stored.index == index]
            sent += [pushed.at_ns for pushed in pushes]
            # By two clocks nothing shows that a push which is open was sent later.
            excused = index in self.by_clocks or (self.clocks and pushes)
            if not excused and all(at_ns is not None and at_ns > where.arrived_at_ns for at_ns in sent):
                self.found.add(("index_never_confirmed", where))

    def find_decreased(self, *, judged: bool) -> None:
        """No connection is open: nothing shows two clocks any more."""
        if judged:
            self.found |= {("index_decreases", where) for where in self.decreased}
            self.decreased.clear()

    @property
    def confirmed(self) -> set[int]:
        return {stored.index for stored in self.confirms}

    def store(self, stored: Stored) -> None:
        own = [one.index for one in self.confirms if one.where.connection_id == stored.where.connection_id]
        before = [
            one.index
            for one in self.confirms
            if stored.pushed_at_ns is not None and one.where.arrived_at_ns < stored.pushed_at_ns
        ]
        # An answer that comes no later than its request shows that two clocks tell the time.
        pushed_ns = stored.pushed_at_ns
        if not self.clocks and pushed_ns is not None and pushed_ns >= stored.where.arrived_at_ns:
            self.clocks = True
            # All is said within what clocks may differ by.
            self.decreased.clear()
            self.unconfirmed.clear()
        if self.clocks and pushed_ns is not None:
            self.by_clocks.add(stored.index)
        if stored.index in self.confirmed:
            self.found.add(("duplicate_index", stored.where))
        elif self.clocks:
            pass
        elif max(before, default=0) > stored.index and max(own, default=0) <= stored.index:
            self.decreased.append(stored.where)
        self.confirms.append(stored)

    def deliver(self, event: Delivered) -> None:
        indexes = [index for first, last in event.runs for index in range(first, last + 1)]
        self.delivered += len(indexes)
        if not indexes:
            return
        for index in set(indexes) - self.confirmed:
            if not self.partial and index > min(self.confirmed, default=LARGEST):
                self.unconfirmed.setdefault(index, event.where)
        if self.passed & set(indexes):
            self.found.add(("pull_skips", event.where))
        begin = min(indexes) if event.requested is None else event.requested
        through = set(range(begin, max(indexes) + 1))
        self.passed = (self.passed - set(indexes)) | ((self.confirmed & through) - set(indexes))
        if event.consumer is not None:
            client = self.client(event.consumer, event.where)
            client.delivered += indexes
            client.brought = event.where
            client.covered |= through | set(indexes)
            if client.floor is None or event.requested is None:
                client.floor = max(begin, client.unjudged, client.floor or 0)
        else:
            end = max(self.unnamed.get(event.where.connection_id, 0), max(indexes) + 1)
            self.unnamed[event.where.connection_id] = end

    def client(self, client_id: str, where: Where) -> ModelClient:
        client = self.clients.setdefault(client_id, ModelClient())
        client.connections.add(where.connection_id)
        return client

    def named(self, event: Saved | Got) -> ModelClient:
        client = self.client(event.client_id, event.where)
        client.saving.add(event.where.connection_id)
        client.unjudged = max(client.unjudged, self.unnamed.get(event.where.connection_id, 0))
        if client.floor is not None:
            client.floor = max(client.floor, client.unjudged)
        return client

    def save(self, event: Saved) -> None:
        client, position = self.named(event), event.index + self.ahead
        if client.floor is None:
            client.floor = max(position, client.unjudged)
        # Only after a delivery on the same connection, in an earlier packet, is the order of both sure.
        brought = client.brought
        is_after = brought is not None and brought.connection_id == event.where.connection_id
        is_after = is_after and brought != event.where
        expected = max([client.floor, *(index + 1 for index in client.delivered)])
        below = {index for index in self.confirmed if client.floor <= index < position} - set(client.delivered)
        if not is_after:
            below = set()
        if is_after and position > expected > max(below - client.covered, default=-1):
            self.found.add(("save_ahead", event.where))
        if below - client.covered:
            self.found.add(("consumer_hole", event.where))
            self.holes.add(("consumer_hole", event.where, len(below - client.covered)))
        if below & client.covered:
            self.holes.add(("server_gap", event.where, len(below & client.covered)))
        client.floor = max(client.floor, position)
        if client.position is not None:
            client.lost += len([index for index in self.gone_for(client) if index < position])
        self.move(client, event.index, position)

    def gone_for(self, client: ModelClient) -> set[int]:
        """What it has yet to process, can't be read any more, and never came to it."""
        assert client.position is not None
        return {index for index in self.passed - set(client.delivered) if index >= client.position}

    def get(self, event: Got) -> None:
        client = self.named(event)
        index, known = event.index or 0, client.saved or 0
        beside = client.saving & self.alive - {event.where.connection_id}
        if index > known and client.answered and not self.partial and not beside:
            self.found.add(("index_never_saved", event.where))
        nothing = event.index is None or (index == 0 and client.saved is None)
        position = 0 if nothing else index + self.ahead
        if client.floor is None or index > known:
            client.floor = max(client.floor or 0, position, client.unjudged)
        client.answered = True
        self.move(client, event.index, position)

    def move(self, client: ModelClient, saved: int | None, position: int) -> None:
        told = [one for one in (client.saved, saved) if one is not None]
        client.saved = max(told) if told else None
        client.position = max(client.position or 0, position)

    def row(self, client: ModelClient) -> tuple[Any, ...]:
        at = client.position
        lag = None if at is None else sum(index >= at for index in self.confirmed - self.passed)
        lost = None if at is None else client.lost + len(self.gone_for(client))
        distinct = len(set(client.delivered))
        return (
            client.saved,
            client.position,
            max(client.delivered, default=None),
            distinct,
            len(client.delivered) - distinct,
            max(self.confirmed, default=None),
            lag,
            lost,
            len(client.connections),
        )


def shown(row: ConsumerRow) -> tuple[Any, ...]:
    told = row.saved, row.position, row.delivered, row.delivered_messages, row.redelivered
    return (*told, row.latest, row.lag, row.lost, row.connections)


INDEXES = st.integers(0, 12)


CONNECTIONS = st.sampled_from("abc")


CLIENTS = st.sampled_from(["me", "you"])


WORDS = st.one_of(
    st.tuples(st.just("push"), CONNECTIONS),
    st.tuples(st.just("confirm"), st.integers(0, 9), INDEXES),
    st.tuples(st.just("store"), CONNECTIONS, INDEXES),
    st.tuples(
        st.just("pull"),
        CONNECTIONS,
        st.none() | INDEXES,
        st.lists(INDEXES, max_size=5) | st.builds(lambda at, n: list(range(at, at + n)), INDEXES, st.integers(0, 5)),
        st.none() | CLIENTS,
    ),
    st.tuples(st.just("save"), CONNECTIONS, CLIENTS, INDEXES),
    st.tuples(st.just("get"), CONNECTIONS, CLIENTS, st.none() | INDEXES),
    st.tuples(st.just("close"), CONNECTIONS),
    st.tuples(st.just("partial")),
    st.tuples(st.just("init"), st.sampled_from(["orders", "other"]), st.sampled_from([None, 0, 1])),
)


#: Each word with how much later than the one before it comes.
TALKS = st.lists(st.tuples(st.integers(0, 1), WORDS), max_size=30)


def spoken(words: list[tuple[int, tuple[Any, ...]]]) -> list[Step]:
    """A timeline of `words`; a connection that was closed is another one afterwards, and a confirm has its push."""
    talk, lives = Talk(), dict.fromkeys("abc", 0)
    waiting: list[Pushed] = []
    for later, (word, *rest) in words:
        talk.now_ns += later
        at = talk.at(f"{rest[0]}{lives[rest[0]]}") if rest and rest[0] in lives else talk.at("z")
        match word, rest:
            case "push", _:
                waiting.append(Pushed(at.connection_id, at.arrived_at_ns))
                talk.steps.append(waiting[-1])
            case "confirm", [number, index] if waiting:
                pushed = waiting.pop(number % len(waiting))
                stored = Stored(at._replace(connection_id=pushed.connection_id), index, pushed.at_ns)
                talk.steps.append(Answered(pushed, stored))
            case "store", [_, index]:
                pushed = Pushed(at.connection_id, at.arrived_at_ns)
                talk.steps += [pushed, Answered(pushed, Stored(at, index, pushed.at_ns))]
            case "pull", [_, requested, indexes, client]:
                talk.steps.append(Delivered(at, requested, runs_of(indexes), client))
            case "save", [_, client, index]:
                talk.steps.append(Saved(at, client, "orders", None, index))
            case "get", [_, client, index]:
                talk.steps.append(Got(at, client, "orders", None, index))
            case "close", [connection]:
                talk.steps.append(Closed(at.connection_id))
                waiting = [pushed for pushed in waiting if pushed.connection_id != at.connection_id]
                lives[connection] += 1
            case "partial", _:
                talk.steps.append(Partial(b"z"))
            case "init", [name, partition]:
                talk.steps.append(Init(at, name, partition, False))
    return talk.steps


@settings(max_examples=60)
@given(TALKS, st.sampled_from(IndexConvention))
def test_the_fold_tells_what_the_model_tells(words: list[Any], convention: IndexConvention) -> None:
    steps = spoken(words)
    model, told = Model(steps, convention), told_of(steps, convention=convention)
    assert rules_of(steps, convention) == model.found
    assert {(hole.kind, hole.where, hole.messages) for hole in of(Hole, told)} == model.holes
    rows = newest(told)
    stream = rows.pop("stream", None)
    assert {name: shown(row) for name, row in rows.items() if isinstance(row, ConsumerRow)} == {
        name: model.row(client) for name, client in model.clients.items()
    }
    if isinstance(stream, StreamRow):
        bounds = min(model.confirmed, default=None), max(model.confirmed, default=None)
        assert (stream.first_index, stream.last_index) == bounds
        assert (stream.confirmed, stream.indexes) == (len(model.confirms), len(model.confirmed))
        assert stream.delivered == model.delivered


def lags_of(steps: list[Step], convention: IndexConvention, cuts: set[int]) -> list[tuple[int, LagRow]]:
    """Rows of lag, each with how many of `steps` it is told after; pushes are told before the step that follows them.

    Windows end with a burst.
    """
    fold, told = Fold(KEY, convention, lags=True), list[tuple[int, LagRow]]()
    for at, step in enumerate(steps):
        before, now = time_of(steps[:at][::-1], 0), time_of(steps[at:], LARGEST)
        if at in cuts and before // stream_fold.BURST_NS < now // stream_fold.BURST_NS:
            told += [(at, row) for row in of(LagRow, fold.end_window())]
            fold = Fold(KEY, convention, fold.snapshot(), lags=True)
        if not isinstance(step, Pushed):
            event = step.stored if isinstance(step, Answered) else step
            told += [(at + (row.cause != "push"), row) for row in of(LagRow, fold.take(event))]
    return told + [(len(steps), row) for row in of(LagRow, fold.end_window())]


def test_lag_is_told_whenever_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_fold, "BURST_NS", 4)

    @settings(max_examples=60)
    @given(TALKS, st.sampled_from(IndexConvention), st.sets(st.integers(0, 60), max_size=8))
    def compare(words: list[Any], convention: IndexConvention, cuts: set[int]) -> None:
        steps = spoken(words)
        last: dict[str, tuple[Any, ...]] = {}
        told = lags_of(steps, convention, set())
        for at, row in told:
            model = Model(steps[:at], convention)
            last[row.client_id] = row.saved, row.position, row.delivered, row.latest, row.lag, row.lost
            of_model = model.row(model.clients[row.client_id])
            assert last[row.client_id] == (*of_model[:3], *of_model[5:8]), (at, row)
            assert row.lag_seconds is None or (row.lag_seconds > 0) <= bool(row.lag)
        clients = Model(steps, convention).clients
        rows = {name: Model(steps, convention).row(client) for name, client in clients.items()}
        assert last == {name: (*row[:3], *row[5:8]) for name, row in rows.items()}
        assert [row for _, row in lags_of(steps, convention, cuts)] == [row for _, row in told]

    compare()


def test_of_a_burst_of_pushes_one_row_is_told_and_a_pull_past_deleted_messages_tells_all_clients() -> None:
    talk = Talk().init("orders").save(0).save(0, client="you", connection="d").store(0, 1, 2)
    talk.now_ns += stream_fold.BURST_NS
    talk.store(3).pull(0, 2, 3).save(4)
    told = [row for _, row in lags_of(talk.steps, NEXT, set())]
    assert [(row.cause, row.client_id, row.lag, row.lost) for row in (*told[:4], told[5], told[4], *told[6:])] == [
        ("save", "me", 0, 0),
        ("save", "you", 0, 0),
        ("push", "me", 3, 0),
        ("push", "you", 3, 0),
        ("delete", "me", 2, 2),
        ("delete", "you", 2, 2),
        ("save", "me", 0, 2),
    ]
    assert told[3].lag_seconds == 4e-9
    assert told[4].stream_name == "orders"


def test_a_row_of_pushes_has_the_name_that_the_stream_had_then() -> None:
    talk = Talk().pull(0, 0).store(1)
    talk.now_ns += stream_fold.BURST_NS
    talk.init("orders")
    whole, cut = lags_of(talk.steps, NEXT, set()), lags_of(talk.steps, NEXT, {len(talk.steps) - 1})
    assert [(row.cause, row.stream_name) for _, row in whole][-1] == ("push", None)
    assert whole == cut


def assert_cut_anywhere(words: list[Any], cuts: set[int], convention: IndexConvention, key: str = KEY) -> None:
    steps = spoken(words)
    whole, parts = told_of(steps, (), convention, key), told_of(steps, cuts, convention, key)
    for kind in (Found, Hole):
        assert sorted(map(repr, of(kind, whole))) == sorted(map(repr, of(kind, parts)))
    # Of a client that was forgotten the row of an earlier window stands.
    assert newest(whole).items() <= newest(parts).items()
    if clients.MOST_CLIENTS > 1:
        assert newest(whole) == newest(parts)


@settings(max_examples=40)
@given(TALKS, st.sets(st.integers(0, 60), max_size=8), st.sampled_from(IndexConvention))
def test_where_windows_are_cut_changes_nothing(words: list[Any], cuts: set[int], convention: IndexConvention) -> None:
    assert_cut_anywhere(words, cuts, convention)
    words = [(later, word) for later, word in words if word[0] in {"init", "save", "get", "partial"}]
    assert_cut_anywhere(words, cuts, convention, NAME_KEY)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for very little."""
    bounds = {"MOST_RUNS": 3, "MOST_CLIENT_RUNS": 4, "MOST_CLIENTS": 1, "MOST_RISES": 3}
    bound(monkeypatch, **bounds, MOST_RECENT=1)


@pytest.mark.usefixtures("narrow")
def test_nor_does_it_where_room_is_short() -> None:
    @settings(max_examples=40)
    @given(TALKS, st.sets(st.integers(0, 60), max_size=8))
    def cut(words: list[Any], cuts: set[int]) -> None:
        assert_cut_anywhere(words, cuts, NEXT)

    cut()


@pytest.mark.usefixtures("narrow")
def test_where_room_for_indexes_is_short_less_is_found_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    # A client that was forgotten is another one.
    bound(monkeypatch, MOST_CLIENTS=2)

    @settings(max_examples=40)
    @given(TALKS)
    def compare(words: list[Any]) -> None:
        steps = spoken(words)
        model = Model(steps, NEXT)
        # What waits in the model for the end of all connections, the fold may have judged by time.
        assert rules_of(steps) <= model.found | {("index_decreases", where) for where in model.decreased}

    compare()
