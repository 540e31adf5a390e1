"""What several connections say together: the fold against a model that remembers everything, cut anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wirehouse_codecs.core.errors import StateVersionError
from wirehouse_codecs.core.intervals import runs_of
from wirehouse_codecs.ockam.correlation import clients, connections, contents, name_fold, stream_fold, unconfirmed
from wirehouse_codecs.ockam.correlation.connections import CLOCKS_NS, HOLE_NS
from wirehouse_codecs.ockam.correlation.data_changes import Observation, data_changed
from wirehouse_codecs.ockam.correlation.events import (
    Closed,
    ConsumerRow,
    Created,
    Delivered,
    Event,
    Found,
    Got,
    Hole,
    Init,
    LagRow,
    Moment,
    OpenPushes,
    Partial,
    Replied,
    Saved,
    Stored,
    StreamRow,
    Told,
    Where,
    address_key,
    name_key,
)
from wirehouse_codecs.ockam.correlation.streams import Fold, judge
from wirehouse_codecs.ockam.options import IndexConvention
from wirehouse_codecs.ockam.rules import SET_RULES

ADDRESS = "ST_S_1"
KEY = address_key(ADDRESS)
NAME_KEY = name_key("orders", None)
LARGEST = 2**64 - 1
MODELLED = SET_RULES - {"address_changed", "address_shared", "create_other_name", "data_changed", "saved_index_lowered"}
NEXT, PROCESSED = IndexConvention
MODULES = (clients, connections, contents, name_fold, stream_fold, unconfirmed)


@dataclass(slots=True)
class Pushed:
    """A push is sent: a fold isn't told, but for those that are open at a window's end."""

    connection_id: bytes
    at_ns: int


@dataclass(slots=True)
class Answered:
    """Its answer: what it was sent as, and the confirm."""

    pushed: Pushed
    stored: Stored


Step = Event | Pushed | Answered


@dataclass
class Talk:
    """A timeline in words close to the protocol's; each is a nanosecond after the one before."""

    steps: list[Step] = field(default_factory=list)
    now_ns: int = 0
    byte: int = 0

    def where(self, connection: str) -> Where:
        self.now_ns += 1
        return self.at(connection)

    def at(self, connection: str) -> Where:
        self.byte += 1
        return Where(connection.encode(), "server", self.byte, self.byte + 1, b"capture", self.byte, self.now_ns)

    def init(self, name: str, partition: int | None = None, anonymous: bool | None = False) -> Talk:
        self.steps.append(Init(self.where("p"), name, partition, anonymous))
        return self

    def push(self, connection: str = "p") -> Pushed:
        self.steps.append(Pushed(connection.encode(), self.where(connection).arrived_at_ns))
        return self.steps[-1]  # type: ignore[return-value]

    def confirm(self, pushed: Pushed, index: int) -> Talk:
        stored = Stored(self.where(pushed.connection_id.decode()), index, pushed.at_ns)
        self.steps.append(Answered(pushed, stored))
        return self

    def store(self, *indexes: int, connection: str = "p") -> Talk:
        for index in indexes:
            self.confirm(self.push(connection), index)
        return self

    def pull(self, requested: int | None, *indexes: int, client: str | None = "me", connection: str = "c") -> Talk:
        self.steps.append(Delivered(self.where(connection), requested, runs_of(indexes), client))
        return self

    def save(self, index: int, client: str = "me", connection: str = "c") -> Talk:
        self.steps.append(Saved(self.where(connection), client, "orders", None, index))
        return self

    def get(self, index: int | None, client: str = "me", connection: str = "c") -> Talk:
        self.steps.append(Got(self.where(connection), client, "orders", None, index))
        return self

    def close(self, connection: str) -> Talk:
        self.steps.append(Closed(connection.encode()))
        return self

    def partial(self) -> Talk:
        self.steps.append(Partial(b"c"))
        return self

    def told(self, convention: IndexConvention = NEXT, key: str = KEY) -> list[Told]:
        return told_of(self.steps, convention=convention, key=key)

    def found(self, convention: IndexConvention = NEXT, key: str = KEY) -> list[tuple[str, int]]:
        """Rules and the times at which they were found."""
        return [(one.rule.name, one.where.arrived_at_ns) for one in of(Found, self.told(convention, key))]

    def row(self, client: str = "me", convention: IndexConvention = NEXT) -> ConsumerRow:
        rows: list[ConsumerRow] = of(ConsumerRow, self.told(convention))
        return next(row for row in rows if row.client_id == client)


def of(kind: type[Any], told: Iterable[Told]) -> list[Any]:
    return [one for one in told if isinstance(one, kind)]


def speaks_on(step: Step) -> list[bytes]:
    """The connection of a message that a fold is told."""
    match step:
        case Answered(_, stored):
            return [stored.where.connection_id]
        case Created() | Init() | Stored() | Replied() | Delivered() | Saved() | Got():
            return [step.where.connection_id]
    return []


def time_of(steps: list[Step], otherwise: int) -> int:
    """When the first of `steps` that has a time came."""
    for step in steps:
        match step:
            case Pushed(_, at_ns):
                return at_ns
            case Answered(_, stored):
                return stored.where.arrived_at_ns
            case OpenPushes() | Closed() | Partial():
                continue
            case event:
                return event.where.arrived_at_ns
    return otherwise


def told_of(
    steps: Iterable[Step], cuts: Iterable[int] = (), convention: IndexConvention = NEXT, key: str = KEY
) -> list[Told]:
    """What a fold tells of `steps`, and of the end of all connections, carried on before each number of one in `cuts`.

    Windows are cut by time: not between steps that came at the same.
    """
    steps = list(steps)
    steps += [Closed(connection) for connection in sorted({one for step in steps for one in speaks_on(step)})]
    cuts = {at for at in cuts if at <= len(steps) and time_of(steps[:at][::-1], -1) < time_of(steps[at:], LARGEST)}
    fold = Fold(key, convention)
    told: list[Told] = []
    pushes: list[Pushed] = []
    known: dict[bytes, list[Moment]] = {}
    for at in range(len(steps) + 1):
        if at in cuts or at == len(steps):
            connections = {pushed.connection_id for pushed in pushes} | set(known)
            for connection in sorted(connections):
                times = [pushed.at_ns for pushed in pushes if pushed.connection_id == connection]
                opened = [Moment(at_ns, b"capture") for at_ns in sorted(set(times))]
                if known.get(connection, []) != opened:
                    told += fold.take(OpenPushes(connection, opened))
                known[connection] = opened
            told += fold.end_window()
            snapshot = fold.snapshot()
            fold = Fold(key, convention, snapshot)
            assert fold.snapshot() == snapshot
        if at == len(steps):
            return told
        match steps[at]:
            case Pushed() as pushed:
                pushes.append(pushed)
            case Answered(pushed, stored):
                pushes.remove(pushed)
                told += fold.take(stored)
            case event:
                told += fold.take(event)
    raise AssertionError


def rules_of(steps: list[Step], convention: IndexConvention = NEXT) -> set[tuple[str, Where]]:
    """What is found under the address and under the name, as far as the model knows it."""
    named = [step for step in steps if isinstance(step, Saved | Got | Partial | Closed)]
    told = told_of(steps, convention=convention) + told_of(named, convention=convention, key=NAME_KEY)
    return {(one.rule.name, one.where) for one in of(Found, told) if one.rule.name in MODELLED}


def newest(told: Iterable[Told]) -> dict[Any, Told]:
    rows: dict[Any, Told] = {}
    for row in of(StreamRow, told):
        rows["stream"] = row
    for row in of(ConsumerRow, told):
        rows[row.client_id] = row
    return rows


# The model


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
            if not excused and all(at_ns is None or at_ns > where.arrived_at_ns for at_ns in sent):
                self.found.add(("index_never_confirmed", where))

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
        self.clocks |= pushed_ns is not None and pushed_ns >= stored.where.arrived_at_ns
        if self.clocks and pushed_ns is not None:
            self.by_clocks.add(stored.index)
        if stored.index in self.confirmed:
            self.found.add(("duplicate_index", stored.where))
        elif self.clocks:
            pass
        elif max(before, default=0) > stored.index and max(own, default=0) <= stored.index:
            self.found.add(("index_decreases", stored.where))
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
        if is_after and position > max(max(client.delivered) + 1, client.floor):
            self.found.add(("save_ahead", event.where))
        below = {index for index in self.confirmed if client.floor <= index < position} - set(client.delivered)
        if not is_after:
            below = set()
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


def bound(monkeypatch: pytest.MonkeyPatch, **bounds: int) -> None:
    """The modules of folds have these bounds."""
    for name, most in bounds.items():
        having = [module for module in MODULES if hasattr(module, name)]
        assert having
        for module in having:
            monkeypatch.setattr(module, name, most)


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
        assert rules_of(steps) <= Model(steps, NEXT).found

    compare()


# Rules


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


def test_a_stream_without_a_name_is_given_one_in_use() -> None:
    assert NAME_KEY == name_key("orders", 0) != name_key("orders", 1)
    named = Talk().init("orders").init("orders")
    assert named.found(key=NAME_KEY) == []
    assert Talk().init("orders", anonymous=True).found(key=NAME_KEY) == []
    assert named.init("orders", anonymous=True).found(key=NAME_KEY) == [("create_other_name", 3)]
    # Under the address nothing is told of it: one place says it.
    assert named.found() == []


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


def test_an_answer_above_all_that_was_saved() -> None:
    talk = Talk().get(4).save(6).get(6).get(6)
    assert talk.found(key=NAME_KEY) == []
    assert talk.get(9).get(9).found(key=NAME_KEY) == [("index_never_saved", 5)]
    # A save may come where the stream's address isn't known: only by its name all are together.
    assert talk.found() == []
    # The first answer may tell of what was saved before the capture.
    assert Talk().save(3).get(8).found(key=NAME_KEY) == []
    assert Talk().get(4).partial().get(8).found(key=NAME_KEY) == []
    # So may a connection of the client that is still open.


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
    assert found == [("save_ahead", saved.where), ("consumer_hole", saved.where)]
    talk = Talk().get(0).save(3)
    talk.steps.append(Got(talk.where("c"), "me", "orders", None, 5, missed=1))
    assert of(Found, told_of(talk.steps, cuts, key=NAME_KEY)) == []


def test_what_a_response_to_an_unknown_request_passed_over_is_not_judged() -> None:
    talk = Talk().store(*range(5)).get(0).pull(None, 3)
    assert talk.save(4).found() == []


def test_a_client_saves_ahead_of_what_came() -> None:
    talk = Talk().store(*range(5)).pull(0, 0, 1, 2).save(3)
    assert talk.found() == []
    # The message that it can't have seen is a hole besides.
    assert talk.save(4).found() == [("save_ahead", 13), ("consumer_hole", 13)]
    assert Talk().get(0).save(100).found() == []


def test_a_saved_index_is_the_next_one_or_the_last_one_processed() -> None:
    talk = Talk().store(*range(5)).get(0).pull(0, 0, 1, 2).save(2)
    assert (talk.row().position, talk.row().lag) == (2, 3)
    row = talk.row(convention=PROCESSED)
    assert (row.saved, row.position, row.lag) == (2, 3, 2)
    talk.save(3)
    assert talk.found() == []
    assert [rule for rule, _ in talk.found(PROCESSED)] == ["save_ahead", "consumer_hole"]
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


def test_where_the_address_is_not_known_there_is_no_lag() -> None:
    (row,) = Talk().get(3).save(5).told(key=NAME_KEY)
    assert isinstance(row, ConsumerRow)
    assert (row.stream_address, row.stream_name, row.saved, row.lag, row.latest) == (None, "orders", 5, None, None)


# Bounds


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


def test_a_name_knows_its_addresses_in_their_order_also_in_a_later_window() -> None:
    fold, talk = Fold(NAME_KEY), Talk()
    for address in ("b", "a", "b"):
        fold.take(Init(talk.where("p"), "orders", None, False, address))
    assert list(fold.addresses) == list(Fold(NAME_KEY, snapshot=fold.snapshot()).addresses) == ["b", "a"]
    assert not Fold(KEY).addresses


def test_keys_are_judged_apart() -> None:
    where = Talk().where("p")
    told = judge([(address_key(name), Stored(where, 1, 0)) for name in ("a", "b", "a")])
    assert [(found.rule.name, found.stream_address) for found in of(Found, told)] == [("duplicate_index", "a")]
    assert [row.stream_address for row in of(StreamRow, told)] == ["a", "b"]


# Data


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


SECOND_ADDRESS = "ST_S_2"
#: Clocks may not differ by so much.
APART_NS = 2 * CLOCKS_NS


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
        return [one.rule.name for one in of(Found, told)]

    assert found(0) == ["index_decreases"]
    assert found(1) == []
    assert found(9) == []


def by_captures(
    apart_ns: int, *captures: tuple[str, str], event: type[Stored] | type[Got] | type[Replied]
) -> list[str]:
    """What is found where the second of two requests is answered with less, `apart_ns` after the first answer.

    Each was captured with its answer, or both in captures of their own, named first.
    """
    key = KEY if event is Stored else NAME_KEY
    fold, talk, told = Fold(key), Talk(), list[Told]()
    said: list[Event] = []
    if event is Replied:
        for address in ("old", "new"):
            talk.now_ns += APART_NS
            said.append(Init(talk.where(address), "orders", None, False, address))
        where = talk.where("old")
        said.append(Replied(where, "old", where.arrived_at_ns - 1))
    for number, (asked_in, answered_in) in enumerate(captures):
        talk.now_ns += apart_ns
        sent_ns = talk.now_ns
        where = talk.where(f"connection {number}")._replace(capture_id=answered_in.encode())
        requested_in = asked_in.encode()
        if event is Stored:
            said.append(Stored(where, 9 - number, sent_ns, requested_in))
        elif event is Got:
            got = Got(where, "me", "orders", None, 9 - number, requested_at_ns=sent_ns, service="i")
            said.append(replace(got, requested_in=requested_in))
        else:
            said.append(Replied(where, ("new", "old")[number], sent_ns, requested_in=requested_in))
    for one in said:
        told += fold.take(one)
        if isinstance(one, Stored | Got):
            told += fold.take(OpenPushes(b"open", [Moment(talk.now_ns - 1, b"three")]))
        told += fold.end_window()
        fold = Fold(key, snapshot=fold.snapshot())
    for number, _ in enumerate(captures):
        told += fold.take(Closed(f"connection {number}".encode()))
    told += fold.end_window()
    return [one.rule.name for one in of(Found, told)]


@pytest.mark.parametrize(
    ("event", "rule"), [(Stored, "index_decreases"), (Got, "saved_index_lowered"), (Replied, "address_changed")]
)
def test_two_captures_show_no_order_within_what_their_clocks_may_differ(
    event: type[Stored] | type[Got] | type[Replied], rule: str
) -> None:
    one, two, split = ("one", "one"), ("two", "two"), ("two", "one")
    # In one capture the order is sure, however short the time. It may be merged of two: then addresses have no order.
    exact = [] if event is Replied else [rule]
    assert by_captures(9, one, one, event=event) == exact
    assert by_captures(9, split, one, event=event) == exact
    assert by_captures(CLOCKS_NS + 1, one, one, event=event) == [rule]
    # Requests in one capture and answers in another one, or each connection in its own.
    assert by_captures(9, split, split, event=event) == []
    assert by_captures(9, one, two, event=event) == []
    assert by_captures(CLOCKS_NS, one, two, event=event) == []
    assert by_captures(CLOCKS_NS + 1, one, two, event=event) == [rule]


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
    assert found(9, b"capture") == ["create_other_name"]
    assert found(9, b"another") == []
    assert found(CLOCKS_NS + 9, b"another") == both


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
