"""Events for the folds of `streams`, made from the rows of the log; and what one capture shows by them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from hashlib import blake2b
from itertools import pairwise, starmap
from math import inf
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa

from wirehouse_codecs.core.intervals import runs_of
from wirehouse_codecs.logs.rows import CONNECTION, MESSAGE
from wirehouse_codecs.ockam.correlation.data_changes import Observation, data_changed
from wirehouse_codecs.ockam.correlation.events import (
    Asked,
    Closed,
    Created,
    Delivered,
    Event,
    Got,
    Init,
    Moment,
    OpenPushes,
    Partial,
    Replied,
    Saved,
    Stored,
    Told,
    Where,
    address_key,
    name_key,
)
from wirehouse_codecs.ockam.correlation.streams import judge
from wirehouse_codecs.ockam.log.log import SESSION
from wirehouse_codecs.ockam.options import IndexConvention
from wirehouse_codecs.ockam.session.memory import MOST_PARTITIONS
from wirehouse_codecs.ockam.session.outcome import NOT_GIVEN
from wirehouse_codecs.ockam.wire.messages import Kind, Status

Row = dict[str, Any]

_WHERE = itemgetter(*Where._fields)
#: Events in columns: EVENT names the kind; then a place, and the fields of the events.
EVENT: Final = "event"
EVENT_COLUMNS: Final = (
    *(EVENT, *Where._fields),
    *("stream_name", "partition", "client_id", "index", "anonymous"),
    *(
        "requested_at_ns",
        "requested_in",
        "requested",
        "missed",
        "stream_address",
        "service",
        "asker",
        "seen_by",
        "later",
        "lacks",
        "early",
        "indexes",
        "open_pushes",
    ),
)


#: The kinds of messages of which events or observations are made, unless the session ignores them.
TELLING: Final = (
    *(Kind.CREATE_REQUEST, Kind.CREATE_PARTITIONED_REQUEST),
    *(Kind.CREATE_RESPONSE, Kind.CREATE_PARTITIONED_RESPONSE, Kind.PUSH_RESPONSE, Kind.PULL_RESPONSE),
    *(Kind.INDEX_SAVE, Kind.INDEX_RESPONSE),
)


def events_of(row: Row) -> Iterator[tuple[str, Event]]:
    """The events of a row of kind `message`, each with its key; none if its session ignores the message.

    If messages were missed before it, a Partial with the same key comes before each event, except before an Asked.
    """
    for key, event in _said_in(row):
        if row["missed"] and not isinstance(event, Asked):
            yield key, Partial(row["connection_id"])
        yield key, event


def _said_in(row: Row) -> Iterator[tuple[str, Event]]:
    message, address = row["message"], row["stream_address"]
    if message["ignored"] == NOT_GIVEN:
        yield address_key(address), Asked(Where(*_WHERE(row)))
    if message["ignored"] is not None:
        return
    where, answers, missed = Where(*_WHERE(row)), _known(row["answers"] or {}), row["missed"]
    name, partition, client_id = message["stream_name"], _integer(message["partition"]), message["client_id"]
    asker, guessed = row["requester"] or "", address is None
    asked_at_ns, asked_in = answers.get("requested_at_ns"), answers.get("request_capture_id")
    early = row["answers"] is None and not missed
    named: Event | None = None
    match message["kind"]:
        case Kind.CREATE_REQUEST | Kind.CREATE_PARTITIONED_REQUEST if name is not None:
            yield from ((name_key(name, at), Created(where)) for at in range(_partitions(message)))
        case Kind.CREATE_RESPONSE | Kind.CREATE_PARTITIONED_RESPONSE if address is not None:
            named = Init(where, name, partition, answers.get("anonymous"), address)
        case Kind.PUSH_RESPONSE if address is not None and message["status"] == Status.OK:
            yield address_key(address), Stored(where, int(message["index"]), asked_at_ns, asked_in, early)
        case Kind.PULL_RESPONSE if address is not None:
            runs = runs_of([int(pulled["index"]) for pulled in message["messages"]])
            index = _integer(answers.get("index"))
            asked = (asked_at_ns, asked_in, early)
            yield address_key(address), Delivered(where, index, runs, row["consumer"], missed, asker, *asked)
        case Kind.INDEX_SAVE:
            named = Saved(where, client_id, name, partition, int(message["index"]), missed, asker, guessed)
        case Kind.INDEX_RESPONSE:
            index, service = _integer(message["index"]), "=>".join(message["return_route"])
            about = (client_id, name, partition, index, missed, asked_at_ns, service, asker, guessed)
            named = Got(where, *about, requested_in=asked_in)
    if named is not None:
        yield name_key(name, partition), named
        if address is not None:
            yield address_key(address), named


def _known(answers: Row) -> Row:
    """The known facts about the request that is answered."""
    if answers.get("unsure"):
        return {}
    return answers | {"requested_at_ns": None} if answers.get("late") else answers


def _partitions(create: Row) -> int:
    """Number of partitions that a create asks for, at most MOST_PARTITIONS."""
    asked_for = _integer(create["partitions"])
    return 1 if asked_for is None else min(asked_for, MOST_PARTITIONS)


def events_in(batch: pa.RecordBatch) -> Iterator[Event]:
    """The events of rows with EVENT_COLUMNS: about messages, as from `events_of`, and about states of connections."""
    columns = {name: batch.column(name) for name in EVENT_COLUMNS}
    lists = {name: unsigned(columns[name]) for name in ("partition", "index", "requested")}
    lists["runs"] = _runs(columns.pop("indexes"))
    plain = (name for name in columns if name not in (*lists, *Where._fields))
    lists |= {name: columns[name].to_pylist() for name in plain}
    wheres = starmap(Where, zip(*(columns[name].to_pylist() for name in Where._fields), strict=True))
    names = tuple(lists)
    for where, *values in zip(wheres, *lists.values(), strict=True):
        row = dict(zip(names, values, strict=True))
        yield _MADE[row[EVENT]](where, row)


def _open_pushes(where: Where, row: Mapping[str, Any]) -> Event:
    return OpenPushes(where.connection_id, list(map(_pushed, row["open_pushes"])))


def _pushed(opened: Mapping[str, Any]) -> Moment:
    return Moment(opened["pushed_at_ns"], opened["capture_id"])


def _saved(where: Where, row: Mapping[str, Any]) -> Event:
    client_id, name, partition, index, missed = _named(row)
    guessed, lacks = row["stream_address"] is None, bool(row["lacks"])
    return Saved(where, client_id, name, partition, index, missed, row["asker"] or "", guessed, lacks)


def _got(where: Where, row: Mapping[str, Any]) -> Event:
    client_id, name, partition, index, missed = _named(row)
    asked_at_ns, service, asker = row["requested_at_ns"], row["service"] or "", row["asker"] or ""
    guessed, seen_by = row["stream_address"] is None, row["seen_by"]
    about = (client_id, name, partition, index, missed, asked_at_ns, service, asker, guessed, seen_by)
    return Got(where, *about, row["requested_in"], bool(row["lacks"]))


def _delivered(where: Where, row: Mapping[str, Any]) -> Event:
    requested, runs, consumer, missed = row["requested"], row["runs"], row["client_id"], row["missed"]
    asked = (row["requested_at_ns"], row["requested_in"], bool(row["early"]))
    return Delivered(where, requested, runs, consumer, missed, row["asker"] or "", *asked)


_named = itemgetter("client_id", "stream_name", "partition", "index", "missed")
#: Constructors of events, by the name of the event.
_MADE: Final[Mapping[str, Callable[[Where, Mapping[str, Any]], Event]]] = {
    "created": lambda where, row: Created(where),
    "init": lambda where, row: Init(
        *(where, row["stream_name"], row["partition"], row["anonymous"], row["stream_address"], row["seen_by"]),
        bool(row["later"]),
    ),
    "stored": lambda where, row: Stored(
        where, row["index"], row["requested_at_ns"], row["requested_in"], bool(row["early"])
    ),
    "replied": lambda where, row: Replied(
        where, row["stream_address"], row["requested_at_ns"], row["seen_by"], row["requested_in"]
    ),
    "asked": lambda where, row: Asked(where),
    "delivered": _delivered,
    "saved": _saved,
    "got": _got,
    "partial": lambda where, row: Partial(where.connection_id),
    "open_pushes": _open_pushes,
    "closed": lambda where, row: Closed(where.connection_id),
}


def unsigned(column: pa.Array) -> list[Any]:
    """Whole numbers below 2^64 from a column of decimals; None for null. Decimal objects would be ten times slower."""
    if column.null_count == len(column):
        return [None] * len(column)
    numbers: list[Any] = _low_words(column).tolist()
    if column.null_count:
        valid = column.is_valid().to_pylist()
        return [number if there else None for number, there in zip(numbers, valid, strict=True)]
    return numbers


def _low_words(column: pa.Array) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The lower 64 bits of each decimal: the whole of a number below 2^64."""
    words = np.frombuffer(column.buffers()[1], "<u8").reshape(-1, 2)
    return words[column.offset : column.offset + len(column), 0]


def _runs(column: pa.ListArray) -> list[Any]:
    """`intervals.runs_of` of each list."""
    ends = np.concatenate([[0], np.cumsum(column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False))])
    values = column.flatten()
    if not len(values):
        return [()] * len(column)
    numbers = _low_words(values)
    follows = (numbers[1:] - numbers[:-1] == 1) & (numbers[1:] > numbers[:-1])
    begins = np.union1d(ends[:-1][ends[:-1] < ends[-1]], np.flatnonzero(~follows) + 1)
    runs = list(zip(numbers[begins].tolist(), numbers[np.append(begins[1:], len(numbers)) - 1].tolist(), strict=True))
    bounds = np.searchsorted(begins, ends).tolist()
    return [tuple(runs[begin:end]) for begin, end in pairwise(bounds)]


def _integer(number: Decimal | None) -> int | None:
    """Unsigned 64-bit numbers are decimals in the log."""
    return None if number is None else int(number)


def observations_of(row: Row) -> Iterator[Observation]:
    """The data in a row of kind `message`, by digest."""
    message, address = row["message"], row["stream_address"]
    if message["ignored"] is not None or address is None:
        return
    where = Where(*_WHERE(row))
    if message["kind"] == Kind.PULL_RESPONSE:
        for pulled in message["messages"]:
            yield Observation(where, address, int(pulled["index"]), _digest(pulled["data"]), False)
    elif message["kind"] == Kind.PUSH_RESPONSE and message["status"] == Status.OK:
        answers = row["answers"] or {}
        data = answers.get("data")
        if data is not None and not answers["unsure"]:
            yield Observation(where, address, int(message["index"]), _digest(data), True)


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


class Heard:
    """The events and the data of all rows of one capture, in memory, whatever their order."""

    def __init__(self) -> None:
        self._events: list[tuple[int, int, str, Event]] = []
        self._observations: list[Observation] = []
        #: The keys of the events of each connection.
        self._keys: dict[bytes, dict[str, None]] = {}
        #: The host of each connection's client.
        self._hosts: dict[bytes, str] = {}
        #: By key of a name its addresses, each with the time at which it was given first, in that order.
        self._given: dict[str, dict[str, int]] = {}
        #: The last reported state of each connection.
        self._sessions: dict[bytes, Row] = {}

    def take(self, row: Row) -> None:
        """Take a row of the log."""
        if row["row_kind"] == SESSION:
            self._sessions[row["connection_id"]] = row["session"]
        elif row["row_kind"] == CONNECTION:
            self._hosts[row["connection_id"]] = row["connection"]["client_address"]
        elif row["row_kind"] == MESSAGE:
            for key, event in events_of(row):
                self._events.append((row["arrived_at_ns"], row["record_number"], key, event))
                self._keys.setdefault(row["connection_id"], {})[key] = None
            self._observations += observations_of(row)

    def told(self, convention: IndexConvention = IndexConvention.NEXT) -> list[Told]:
        """The results of all rows together: findings, holes, and the states of streams and their clients at the end."""
        events = list(self.placed())
        partial: list[tuple[float, float, str, Event]] = []
        ended: list[tuple[float, float, str, Event]] = []
        for connection_id, session in self._sessions.items():
            opened: dict[str, list[Moment]] = {}
            for pushes in session["open_pushes"]:
                opened.setdefault(address_key(pushes["stream_address"]), []).append(_pushed(pushes))
            spoken = dict.fromkeys(self._keys.get(connection_id, {}) | dict.fromkeys(opened), -1)
            for key, given_ns in (self._may_know(session) | spoken).items():
                if session["partial_at_ns"] is not None and given_ns <= session["partial_at_ns"]:
                    partial.append((session["partial_at_ns"], -1, key, Partial(connection_id)))
                ended.append((inf, inf, key, OpenPushes(connection_id, opened.get(key, []))))
                if session["closed"] and given_ns <= session["closed_at_ns"]:
                    ended.append((session["closed_at_ns"], inf, key, Closed(connection_id)))
        in_order = sorted([*partial, *events, *ended], key=itemgetter(0, 1))
        told = judge([(key, event) for _, _, key, event in in_order], convention)
        observed = sorted(self._observations, key=lambda one: (one.where.arrived_at_ns, one.where.record_number))
        return [*told, *data_changed(observed)]

    def placed(self) -> Iterator[tuple[int, int, str, Event]]:
        """The events, each with the host of its client. Saved and Got under a name are also under the stream's address.

        That is the address which was new to the name last.
        """
        given = self._given
        names, lacking = self._names_of_several(), self._lacking()
        for at_ns, number, key, event in sorted(self._events, key=itemgetter(0, 1)):
            if isinstance(event, Delivered | Saved | Got) and event.asker:
                event = replace(event, asker=f"{self._hosts.get(event.where.connection_id, '')} {event.asker}")
            if isinstance(event, Asked | Saved | Got):
                connection_id = event.where.connection_id
                lack = lacking.get(self._hosts.get(connection_id), {})
                if not isinstance(event, Asked):
                    others = (since_ns for one, since_ns in lack.items() if one != connection_id)
                    event = replace(event, lacks=min(others, default=at_ns + 1) <= at_ns)
                elif lack:
                    continue
            event = _placed_init(event, given) if isinstance(event, Init) else event
            address = list(given[key])[-1] if key in given else None
            if isinstance(event, Saved | Got) and event.guessed and address is not None:
                own = address_key(address)
                self._keys[event.where.connection_id][own] = None
                if event.missed:
                    yield at_ns, number, own, Partial(event.where.connection_id)
                yield at_ns, number, own, event
            yield at_ns, number, key, event
            if isinstance(event, Stored | Delivered):
                asked_at_ns = event.pushed_at_ns if isinstance(event, Stored) else event.requested_at_ns
                for address, name in names.get(key, ()):
                    yield at_ns, number, name, Replied(event.where, address, asked_at_ns, "", event.requested_in)

    def _may_know(self, session: Row) -> dict[str, int]:
        """By key of a stream that a connection may mean by its name, when it got its address."""
        names = (
            name_key(one["stream_name"], _integer(one["partition"])) for one in session["about"] if one["unplaced"]
        )
        given = (one for name in names for one in self._given.get(name, {}).items())
        return {address_key(address): at_ns for address, at_ns in given}

    def _lacking(self) -> dict[str | None, dict[bytes, int]]:
        """By host of clients, its connections that lack bytes, and since when: more messages may have come on these."""
        lacking: dict[str | None, dict[bytes, int]] = {}
        for connection_id, session in self._sessions.items():
            if session["partial"]:
                lacking.setdefault(self._hosts.get(connection_id), {})[connection_id] = session["partial_at_ns"]
        return lacking

    def _names_of_several(self) -> dict[str, list[tuple[str, str]]]:
        """By key of a stream: its address, with each key of a name that has others too."""
        addresses: dict[str, dict[str, None]] = {}
        for *_, event in self._events:
            if isinstance(event, Init) and event.stream_address is not None:
                addresses.setdefault(name_key(event.stream_name, event.partition), {})[event.stream_address] = None
        named: dict[str, list[tuple[str, str]]] = {}
        for name, several in addresses.items():
            for address in several if len(several) > 1 else ():
                named.setdefault(address_key(address), []).append((address, name))
        return named


def _placed_init(init: Init, given: dict[str, dict[str, int]]) -> Init:
    """An Init, and whether its name had another address before: `given` has them by the key of the name."""
    if init.stream_address is None:
        return init
    addresses = given.setdefault(name_key(init.stream_name, init.partition), {})
    addresses.setdefault(init.stream_address, init.where.arrived_at_ns)
    return replace(init, later=init.stream_address != next(iter(addresses)))
