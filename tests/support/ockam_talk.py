"""What is said of one stream or one name, in words close to the protocol's, and what a fold makes of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from wirehouse_codecs.core.intervals import runs_of
from wirehouse_codecs.ockam.correlation import clients, connections, contents, name_fold, stream_fold, unconfirmed
from wirehouse_codecs.ockam.correlation.connections import CLOCKS_NS
from wirehouse_codecs.ockam.correlation.events import (
    Closed,
    ConsumerRow,
    Created,
    Delivered,
    Event,
    Found,
    Got,
    Init,
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
from wirehouse_codecs.ockam.correlation.streams import Fold
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


def bound(monkeypatch: pytest.MonkeyPatch, **bounds: int) -> None:
    """The modules of folds have these bounds."""
    for name, most in bounds.items():
        having = [module for module in MODULES if hasattr(module, name)]
        assert having
        for module in having:
            monkeypatch.setattr(module, name, most)


SECOND_ADDRESS = "ST_S_2"


#: Clocks may not differ by so much.
APART_NS = 2 * CLOCKS_NS


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
