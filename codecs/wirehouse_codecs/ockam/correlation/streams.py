"""What only several connections say together: the messages of a stream, how far its consumers are, and the set rules.

A fold takes what was said of one stream in the order of arrival, and can be carried on: where windows are cut changes
neither what is found nor how the newest rows stand. Streams are told apart by their address: under a new address a
name begins anew (specification, "Stream creation", "Pushing/pulling messages", "Reliable delivery", "Addition: index
management").

What a fold keeps is bounded. Beyond a bound the lowest indexes, or the clients that were silent longest, are
forgotten, and what would need them isn't judged.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from operator import attrgetter
from typing import Any, Final, NamedTuple

from wirehouse_codecs.core.errors import StateVersionError
from wirehouse_codecs.core.intervals import Intervals, Run
from wirehouse_codecs.ockam.correlation.clients import Client
from wirehouse_codecs.ockam.correlation.events import (
    MOST_SHOWN,
    Asked,
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
    arrival,
    quoted,
    request,
)
from wirehouse_codecs.ockam.options import IndexConvention
from wirehouse_codecs.ockam.rules import RULE
from wirehouse_codecs.ockam.session.addresses import node_of
from wirehouse_codecs.tcp.options import TcpOptions

SNAPSHOT_VERSION: Final = 8
#: Runs of confirmed indexes that are held of a stream; of what was delivered, of all its clients together.
MOST_RUNS: Final = 65_536
MOST_CLIENT_RUNS: Final = 131_072
#: Clients of a stream that are followed; of more, those that were silent longest are forgotten.
MOST_CLIENTS: Final = 4_096
#: A push is compared with the highest index at its time if that rose at most so often until its confirm.
MOST_RISES: Final = 65_536
#: The times of so many last rises are kept; of those before, half as many for each doubling of their distance.
MOST_AGED: Final = 2_048
#: Delivered runs that wait for a push to be confirmed with them; further ones are not judged.
MOST_PENDING: Final = 16_384
#: Connections whose open pushes are known, or whose highest index.
MOST_CONNECTIONS: Final = 4_096
#: So long after a packet that wasn't captured the hole is told at the latest: its connection says more, or is closed.
HOLE_NS: Final = TcpOptions().idle_ns + TcpOptions().hole_wait_ns
#: Captures may have clocks that differ by so much: what two of them show is in a sure order if it is further apart.
CLOCKS_NS: Final = TcpOptions().hole_wait_ns
#: Characters of a client's name; one that is longer is not followed.
MOST_NAME: Final = 1_024
#: Names that shared an address, each told once; addresses of a name, and captures of a service that tell them.
MOST_SHARING: Final = 64
#: Pushes of so long have one LagRow.
BURST_NS: Final = 10**9
#: After all that is ever captured.
_LATER: Final = 2**63 - 1
_NOTHING: Final[tuple[Told, ...]] = ()


class _Rise(NamedTuple):
    """The highest confirmed index rose to `highest`, for the `number`th time."""

    at_ns: int
    number: int
    highest: int
    capture_id: bytes

    @property
    def moment(self) -> Moment:
        return Moment(self.at_ns, self.capture_id)


class _Pending(NamedTuple):
    """Indexes that were delivered, though no push had been confirmed with them."""

    first: int
    last: int
    where: Where


class _Lowered(NamedTuple):
    """A finding of `saved_index_lowered`, until no lost Init can excuse it any more."""

    where: Where
    message: str


class Fold:
    """What is said under one key, in the order of arrival.

    `take` gives findings and holes as they are complete, `end_window` findings and the rows that changed. `snapshot`
    comes after `end_window`; a fold that is given it goes on as this one would.
    """

    def __init__(
        self,
        key: str,
        convention: IndexConvention = IndexConvention.NEXT,
        snapshot: str | None = None,
        hole_ns: int = HOLE_NS,
        clocks_ns: int = CLOCKS_NS,
        *,
        lags: bool = False,
    ) -> None:
        kind, name, *_ = json.loads(key)
        self._address: str | None = name if kind == "address" else None
        #: Changes of lag are told. The last confirm that they don't show yet, of one second, and the clients that have
        #: a row since.
        self._tells_lag = lags and self._address is not None
        self._confirmed_at: Where | None = None
        self._shown: set[str] = set()
        self._next = convention is IndexConvention.NEXT
        #: What a capture lost is told after so long at most.
        self._hole_ns = hole_ns
        #: As CLOCKS_NS.
        self._clocks_ns = clocks_ns
        self._first: Where | None = None
        self._last_at_ns = 0
        self._partial = False
        #: Name and partition of the first Init, and the others that were told.
        self._name: str | None = None
        self._partition: int | None = None
        self._sharing: list[tuple[str, int | None]] = []
        #: Of a name: the address that was given last.
        self._current: str | None = None
        self._confirmed = Intervals(most=MOST_RUNS)
        self._confirms = self._indexes = self._delivered = 0
        self._lowest: int | None = None
        self._highest: int | None = None
        self._rises: list[_Rise] = []
        self._rise_count = 0
        #: By connection the highest index that was confirmed there, which its session compares.
        self._own: OrderedDict[bytes, int] = OrderedDict()
        #: When the pushes arrived that were open at the end of the last window, by connection.
        self._open: dict[bytes, list[Moment]] = {}
        self._closed: set[bytes] = set()
        #: Connections with the stream that have not ended; b"" stands for those beyond the bound.
        self._alive: dict[bytes, None] = {}
        #: An answer was captured before its request, or held back until that came: two clocks tell the time.
        self._clocks = False
        #: What was delivered until then is judged, whatever is missed later.
        self._settled_ns = -1
        #: When the first pushes arrived that stay open, as `_firsts` has them.
        self._lost: list[Moment] = []
        #: Delivered indexes that no push had been confirmed with, each told or waiting; and those that wait, rising.
        self._unconfirmed = Intervals(most=MOST_RUNS)
        self._pending: list[_Pending] = []
        #: Of a name: lower answers to a client that are not settled.
        self._lowered: list[_Lowered] = []
        #: Ranges with confirmed indexes that a response passed over.
        self._passed = Intervals(most=MOST_RUNS)
        #: By connection, the index after all that came to it for an unknown client: below, its clients aren't judged.
        self._unnamed: OrderedDict[str, int] = OrderedDict()
        #: By host and address the client that saves from there; None = there are several.
        self._askers: OrderedDict[str, str | None] = OrderedDict()
        #: Of a name: its addresses, in the order in which they were given first.
        self._addresses: list[str] = []
        #: The first request to the address while no Init gave it, and whether that was told.
        self._asked: Where | None = None
        self._blamed = False
        #: By who captured it, those that were given there, with the moments of each one's first Init, and of its first
        #: reply since there are several; by connection, those that were given there.
        self._given: dict[str, dict[str, tuple[tuple[int, str], tuple[int, str] | None]]] = {}
        self._inits: dict[str, list[str]] = {}
        #: Addresses that replied after a later one had, each told once.
        self._resumed: list[str] = []
        #: The one that was silent longest first.
        self._clients: OrderedDict[str, Client] = OrderedDict()
        self._client_runs = 0
        #: Since the last window's end: anything, and what the rows of all clients show.
        self._changed = self._shared_changed = False
        self._steps: dict[type[Any], Callable[[Any], Sequence[Told]]] = {
            Created: self._create,
            Init: self._init,
            Stored: self._store,
            Replied: self._reply,
            Asked: self._ask,
            Delivered: self._deliver,
            Saved: self._save,
            Got: self._got,
            OpenPushes: self._note_open,
            Closed: self._close,
            Partial: self._note_partial,
        }
        if snapshot is not None:
            self._restore(json.loads(snapshot))

    @property
    def addresses(self) -> Sequence[str]:
        """Of a name: its addresses, in the order in which they were given first."""
        return self._addresses

    def take(self, event: Event) -> Sequence[Told]:
        """The next event in the order of arrival; what it completes (Found, Hole), and changes of lag (LagRow)."""
        if not self._tells_lag or not isinstance(event, Init | Stored | Delivered | Saved | Got):
            return self._steps[type(event)](event)
        told: list[Told] = list(self._lag_of_pushes(event.where.arrived_at_ns))
        if isinstance(event, Init):
            return [*told, *self._steps[Init](event)]
        indexes, passed = self._indexes, self._passed.count
        client_id = self._client_of(event)
        before = None if client_id is None else self._stands(client_id)
        told += self._steps[type(event)](event)
        if self._indexes > indexes:
            self._confirmed_at = event.where
            self._shown.clear()
        moved = [client_id] if client_id is not None and self._stands(client_id) != before else []
        cause = "pull" if isinstance(event, Delivered) else "save"
        if isinstance(event, Delivered) and self._passed.count != passed:
            # Of all that it passed over, or that came back, something may lie ahead of these.
            end = max(last for _, last in event.runs)
            behind = [name for name, one in self._clients.items() if one.position is not None and one.position <= end]
            cause = "delete" if self._passed.count > passed else "pull"
            told += self._lags(cause, event.where, behind)
            moved = [name for name in moved if name not in behind]
        told += self._lags(cause, event.where, moved)
        return told

    def _client_of(self, event: Stored | Delivered | Saved | Got) -> str | None:
        """The client that it is about."""
        if isinstance(event, Delivered):
            return event.consumer or self._askers.get(event.asker)
        return None if isinstance(event, Stored) else event.client_id

    def _stands(self, client_id: str) -> tuple[int | None, ...] | None:
        client = self._clients.get(client_id)
        return None if client is None else (client.saved, client.position, client.last)

    def _lag_of_pushes(self, now_ns: int) -> Iterator[LagRow]:
        """What the pushes of a second changed, once it is over."""
        where = self._confirmed_at
        if where is not None and where.arrived_at_ns // BURST_NS < now_ns // BURST_NS:
            self._confirmed_at = None
            yield from self._lags("push", where, [name for name in self._clients if name not in self._shown])

    def _lags(self, cause: str, where: Where, client_ids: Iterable[str]) -> Iterator[LagRow]:
        assert self._address is not None
        for client_id in client_ids:
            client = self._clients.get(client_id)
            if client is None:
                continue
            self._shown.add(client_id)
            position = client.position or 0
            gone = Intervals(self._gone(position, self._highest or 0))
            lag = self._lag(client.position, self._confirmed.count_from(position), gone.count)
            named = client.stream_name is not None
            yield LagRow(
                cause,
                where,
                self._address,
                client.stream_name if named else self._name,
                client.partition if named else self._partition,
                client_id,
                client.saved,
                client.position,
                client.last,
                self._highest,
                lag,
                None if lag is None else client.lost + gone.count - self._received(client, gone),
                None if lag is None else self._age(client, where.arrived_at_ns),
            )

    def _see(self, where: Where) -> None:
        if self._first is None:
            self._first = where
        self._last_at_ns = where.arrived_at_ns
        self._changed = True
        self._note_alive(where.connection_id)

    def _note_alive(self, connection_id: bytes) -> None:
        if connection_id not in self._alive and connection_id not in self._closed:
            self._alive[connection_id if len(self._alive) < MOST_CONNECTIONS else b""] = None

    def _note_asking(self, where: Where) -> None:
        """Its connection hears of the stream or the name, or may, and shows nothing of it."""
        self._note_alive(where.connection_id)
        self._last_at_ns = max(self._last_at_ns, where.arrived_at_ns)

    def _found(self, rule: str, where: Where, message: str) -> Found:
        return Found(RULE[rule], where, message, self._address)

    # Streams

    def _create(self, created: Created) -> Sequence[Told]:
        self._note_asking(created.where)
        return _NOTHING

    def _init(self, init: Init) -> Sequence[Told]:
        self._see(init.where)
        if self._address is None:
            return self._name_used(init)
        told = self._not_given()
        self._asked = None
        if self._name is None:
            self._name, self._partition = init.stream_name[:MOST_NAME], init.partition
            self._shared_changed = True
            return told
        name = (init.stream_name[:MOST_NAME], init.partition or 0)
        if name == (self._name, self._partition or 0) or name in self._sharing or len(self._sharing) == MOST_SHARING:
            return _NOTHING
        self._sharing.append(name)
        first = _stream(self._name, self._partition)
        shown = f"{quoted(self._address)} is the address of {first}, and of {_stream(*name)}"
        return [self._found("address_shared", init.where, shown)]

    def _name_used(self, init: Init) -> Sequence[Told]:
        used, self._name = self._name is not None, init.stream_name[:MOST_NAME]
        if init.stream_address is not None and init.stream_address not in self._addresses:
            self._addresses = [*self._addresses, init.stream_address][-MOST_SHARING:]
        if init.stream_address not in (None, self._current):
            # The service may have begun anew, and its indexes with it.
            for client in self._clients.values():
                client.answers.clear()
            self._settle()
            self._drop_lowered()
            self._current = init.stream_address
        if init.stream_address is not None:
            self._note_given(init, init.stream_address)
        assert self._first is not None
        if not (used and init.anonymous and arrival(self._first).is_before(arrival(init.where), self._clocks_ns)):
            return _NOTHING
        shown = f"a stream without a name is given {quoted(init.stream_name)}, which was in use"
        return [self._found("create_other_name", init.where, shown)]

    def _note_given(self, init: Init, address: str) -> None:
        given = self._given.setdefault(init.seen_by, {})
        given.setdefault(address, (_moment_to_json(arrival(init.where)), None))
        inits = self._inits.setdefault(init.where.connection_id.hex(), [])
        if address not in inits:
            inits.append(address)
            del inits[:-MOST_SHARING]
        for known, most in ((given, MOST_SHARING), (self._given, MOST_SHARING), (self._inits, MOST_CONNECTIONS)):
            if len(known) > most:
                del known[next(iter(known))]

    def _reply(self, replied: Replied) -> Sequence[Told]:
        """An address replies although a later one has. On a connection that was given both its session tells it."""
        address, sent_ns = replied.stream_address, replied.requested_at_ns
        given = self._given.get(replied.seen_by, {})
        if address not in given or len(given) == 1:
            return _NOTHING
        given_at, first_reply = given[address]
        if first_reply is None:
            given[address] = (given_at, _moment_to_json(arrival(replied.where)))
        # An Init that a hole held back shows in no order with the others.
        if self._partial:
            return _NOTHING
        # Where an answer comes before its request, or was held back until then, two clocks tell the time.
        if sent_ns is None or sent_ns >= replied.where.arrived_at_ns or address in self._resumed:
            return _NOTHING
        later = islice(given.items(), list(given).index(address) + 1, None)
        sent = request(replied.where, sent_ns, replied.requested_in)
        before = (
            one
            for one, (init_at, first) in later
            if first is not None and _moment_from_json(first).is_before(sent, self._clocks_ns)
            if _moment_from_json(given_at).is_before(_moment_from_json(init_at), self._clocks_ns)
        )
        other = next((one for one in before if node_of(one) == node_of(address)), None)
        if other is None:
            return _NOTHING
        self._resumed = [*self._resumed, address][-MOST_SHARING:]
        if {address, other} <= set(self._inits.get(replied.where.connection_id.hex(), ())):
            return _NOTHING
        shown = f"{quoted(address)} still answers, {quoted(other)} is the address since, and answered before"
        return [Found(RULE["address_changed"], replied.where, shown, address)]

    def _ask(self, asked: Asked) -> Sequence[Told]:
        where = asked.where
        self._note_asking(where)
        # Who spoke of it before had it from an Init that wasn't captured.
        known = self._name is not None or self._first is not None
        if not (known or self._partial or self._blamed or self._asked):
            self._asked = where
        return _NOTHING

    def _not_given(self) -> list[Told]:
        """The request to an address that no Init gave, once none can come any more."""
        self._settle()
        where = self._asked
        if where is None or where.arrived_at_ns > self._settled_ns:
            return []
        self._asked, self._blamed = None, True
        return [self._found("address_not_from_init", where, f"no Init gave {quoted(self._address or '')}")]

    def _store(self, stored: Stored) -> Sequence[Told]:
        where, index = stored.where, stored.index
        self._see(where)
        self._confirms += 1
        self._note_clocks(where, stored.pushed_at_ns)
        own = self._own.get(where.connection_id)
        if own is None or index > own:
            self._own[where.connection_id] = index
            if own is None and len(self._own) > MOST_CONNECTIONS:
                self._own.popitem(last=False)
        if self._pending:
            self._excuse(stored)
        if not self._confirmed.add(index, index):
            if index < self._confirmed.floor:
                return _NOTHING
            return [self._found("duplicate_index", where, f"index {index} was confirmed before")]
        self._indexes += 1
        self._shared_changed = True
        if self._lowest is None or index < self._lowest:
            self._lowest = index
        if self._passed:
            # It can't have been passed over as a confirmed one.
            self._passed.remove(index, index)
        if self._highest is None or index > self._highest:
            self._rise(where, index)
            return _NOTHING
        return self._decreases(stored, own)

    def _note_clocks(self, where: Where, requested_at_ns: int | None) -> None:
        if requested_at_ns is not None and requested_at_ns >= where.arrived_at_ns:
            self._clocks = True

    def _rise(self, where: Where, index: int) -> None:
        self._highest = index
        self._rise_count += 1
        self._rises.append(_Rise(where.arrived_at_ns, self._rise_count, index, where.capture_id))
        if len(self._rises) > 2 * MOST_RISES:
            del self._rises[:-MOST_RISES]

    def _decreases(self, stored: Stored, own: int | None) -> Sequence[Told]:
        """Another connection had a higher index before the push was sent. On one connection its session tells it."""
        if self._clocks or stored.pushed_at_ns is None or (own is not None and own > stored.index):
            return _NOTHING
        pushed = request(stored.where, stored.pushed_at_ns, stored.requested_in)
        at = bisect_left(self._rises, (stored.pushed_at_ns,)) - 1
        while at >= 0 and not self._rises[at].moment.is_before(pushed, self._clocks_ns):
            if self._rises[at].highest <= stored.index:
                return _NOTHING
            at -= 1
        if at < 0 or self._rises[at].number <= self._rise_count - MOST_RISES:
            return _NOTHING
        before = self._rises[at].highest
        if before <= stored.index:
            return _NOTHING
        shown = f"index {stored.index}, but {before} was confirmed before the message was pushed"
        return [self._found("index_decreases", stored.where, shown)]

    def _excuse(self, stored: Stored) -> None:
        """It was delivered before its push was confirmed, but not before it was sent."""
        at = bisect_right(self._pending, stored.index, key=attrgetter("first")) - 1
        if at < 0:
            return
        first, last, where = self._pending[at]
        if stored.pushed_at_ns is None:
            return
        pushed = request(stored.where, stored.pushed_at_ns, stored.requested_in)
        if stored.index <= last and (self._clocks or not arrival(where).is_before(pushed, self._clocks_ns)):
            rest = (_Pending(first, stored.index - 1, where), _Pending(stored.index + 1, last, where))
            self._pending[at : at + 1] = [pending for pending in rest if pending.first <= pending.last]

    # Deliveries

    def _deliver(self, delivered: Delivered) -> Sequence[Told]:
        where, requested, runs, consumer = delivered.where, delivered.requested, delivered.runs, delivered.consumer
        self._see(where)
        self._note_clocks(where, delivered.requested_at_ns)
        if not runs:
            return _NOTHING
        for first, last in runs:
            self._delivered += last - first + 1
        told: list[Told] = []
        ordered = runs if len(runs) == 1 else sorted(runs)
        # What is below the first confirmed index may have been pushed before the capture began.
        if self._lowest is not None and not self._partial:
            floor = max(self._lowest, self._confirmed.floor)
            for first, last in ordered:
                if last >= floor and not self._confirmed.holds(first, last):
                    self._wait(max(first, floor), last, where)
        if self._passed:
            told += self._returned(ordered, where)
        self._pass_over(requested, ordered)
        known, consumer = consumer is not None, consumer or self._askers.get(delivered.asker)
        if not known:
            for place in filter(None, (where.connection_id.hex(), delivered.asker)):
                self._note_unnamed(place, ordered[-1][1] + 1)
        if consumer is not None and (client := self._client(consumer, where, delivered.missed)) is not None:
            held = client.runs
            client.split = client.split or not known
            client.deliver(where, requested, runs)
            self._bound_runs(client.runs - held)
        return told

    def _note_unnamed(self, place: str, end: int) -> None:
        self._unnamed[place] = max(end, self._unnamed.get(place, 0))
        self._unnamed.move_to_end(place)
        if len(self._unnamed) > MOST_CONNECTIONS:
            self._unnamed.popitem(last=False)

    def _wait(self, first: int, last: int, where: Where) -> None:
        """Indexes that aren't confirmed, from their first delivery on."""
        for run in self._confirmed.missing(first, last):
            for new in list(self._unconfirmed.missing(*run)):
                if len(self._pending) < MOST_PENDING:
                    at = bisect_left(self._pending, new.first, key=attrgetter("first"))
                    self._pending.insert(at, _Pending(*new, where))
            self._unconfirmed.add(*run)

    def _returned(self, ordered: Sequence[tuple[int, int]], where: Where) -> list[Told]:
        """An earlier response passed over what this one returns."""
        back = [
            confirmed
            for run in ordered
            for passed in self._passed.within(*run)
            for confirmed in self._confirmed.within(*passed)
        ]
        for run in ordered:
            self._passed.remove(*run)
        if not back:
            return []
        shown = f"an earlier response passed over {_shown(back)}, confirmed before it and returned here"
        return [self._found("pull_skips", where, shown)]

    def _pass_over(self, requested: int | None, ordered: Sequence[tuple[int, int]]) -> None:
        expected = ordered[0][0] if requested is None else requested
        for first, last in ordered:
            if expected < first and self._confirmed.overlaps(expected, first - 1):
                self._passed.add(expected, first - 1)
            expected = max(expected, last + 1)

    # Clients

    def _named(self, said: Saved | Got) -> Client | None:
        """The client that an index message names."""
        client = self._client(said.client_id, said.where, said.missed, said.stream_name, said.partition)
        if self._unnamed and client is not None:
            for place in (said.where.connection_id.hex(), said.asker):
                self._forget(client, self._unnamed.get(place, 0))
        if client is not None:
            client.split = client.split or said.guessed
        if self._address is not None and said.asker and client is not None:
            known = self._askers.get(said.asker, said.client_id)
            self._askers[said.asker] = said.client_id if known == said.client_id else None
            if len(self._askers) > MOST_CLIENTS:
                self._askers.popitem(last=False)
        return client

    def _forget(self, client: Client, below: int) -> None:
        """What the client has below an index isn't judged any more."""
        held = client.runs
        client.covered.forget_below(below)
        self._client_runs += client.runs - held

    def _client(
        self, client_id: str, where: Where, missed: int, stream_name: str | None = None, partition: int | None = None
    ) -> Client | None:
        client = self._clients.get(client_id)
        if client is None:
            if len(client_id) > MOST_NAME:
                return None
            client = self._clients[client_id] = Client(where)
            if len(self._clients) > MOST_CLIENTS:
                _, forgotten = self._clients.popitem(last=False)
                self._client_runs -= forgotten.runs
        else:
            self._clients.move_to_end(client_id)
        if client.stream_name is None and stream_name is not None:
            client.stream_name, client.partition = stream_name[:MOST_NAME], partition
        client.seen(where, missed)
        return client

    def _bound_runs(self, more: int) -> None:
        """The client with most runs gives half of them up when there are too many together."""
        self._client_runs += more
        while self._client_runs > MOST_CLIENT_RUNS:
            largest = max(self._clients.values(), key=attrgetter("runs"))
            held = largest.runs
            for intervals in (largest.delivered, largest.covered):
                intervals.keep(len(intervals) // 2)
            self._client_runs -= held - largest.runs

    def _save(self, saved: Saved) -> Sequence[Told]:
        where, index = saved.where, saved.index
        self._see(where)
        client = self._named(saved)
        if client is None:
            return _NOTHING
        position = index if self._next else index + 1
        told: list[Told] = []
        if self._address is None:
            client.note_own(where, index)
        if not client.resumed:
            client.resume(position)
        elif position > client.covered.floor:
            # Without a delivery that is known to be its own, what came to it can't be told.
            if client.is_after(where) and not (client.split or saved.lacks):
                assert client.last is not None
                told += self._ahead(saved, position, max(client.last + 1, client.covered.floor))
                told += self._holes(saved, client, position)
            self._forget(client, position)
        if self._passed and client.position is not None:
            client.lost += self._lost_to(client, self._gone(client.position, position - 1))
        client.move(index, position)
        return told

    def _gone(self, first: int, last: int) -> Iterator[Run]:
        """Confirmed indexes from `first` to `last` that a pull passed over, so that they can't be read any more."""
        for run in self._passed.within(first, last):
            yield from self._confirmed.within(*run)

    def _lost_to(self, client: Client, gone: Iterable[Run]) -> int:
        """How many of these were not delivered to the client."""
        return sum(_count(client.delivered.missing(*run)) for run in gone)

    def _ahead(self, saved: Saved, position: int, expected: int) -> list[Told]:
        if position <= expected:
            return []
        shown = f"client {quoted(saved.client_id)} saves {saved.index}, what came to it ends before {expected}"
        return [self._found("save_ahead", saved.where, shown)]

    def _holes(self, saved: Saved, client: Client, position: int) -> Iterator[Told]:
        undelivered = list(client.undelivered(self._confirmed, position))
        if not undelivered:
            return
        never = [part for run in undelivered for part in client.covered.missing(*run)]
        passed = [part for run in undelivered for part in client.covered.within(*run)]
        if never:
            shown = f"client {quoted(saved.client_id)} saves {saved.index}, but {_shown(never)} never came to it"
            yield self._found("consumer_hole", saved.where, shown)
        for kind, runs in (("consumer_hole", never), ("server_gap", passed)):
            if runs:
                yield Hole(
                    kind,
                    saved.where,
                    self._address,
                    client.stream_name,
                    client.partition,
                    saved.client_id,
                    saved.index,
                    runs[0].first,
                    runs[-1].last,
                    _count(runs),
                    tuple((run.first, run.last) for run in runs[:MOST_SHOWN]),
                )

    def _speaks_elsewhere(self, client: Client, connection_id: bytes) -> bool:
        """Another connection of the client may be open; connections that were forgotten may be its."""
        forgotten = client.connections > len(client.recent)
        return any(one in client.recent or forgotten or not one for one in self._alive if one != connection_id)

    def _got(self, got: Got) -> Sequence[Told]:
        where, client_id, index = got.where, got.client_id, got.index
        self._see(where)
        client = self._named(got)
        if client is None:
            return _NOTHING
        told: list[Told] = []
        known = client.saved or 0
        # A lost Init may have told that the service began anew, a lost SaveIndex may have raised the index.
        judged = self._address is None and not (self._partial or got.lacks)
        if self._address is None:
            before = client.lowered(got, self._clocks_ns)
            if before is not None and judged and len(self._lowered) < MOST_PENDING:
                shown = f"client {quoted(client_id)} is told {index}, after {before} on another connection"
                self._lowered.append(_Lowered(where, shown))
        judged = judged and client.answered
        # What a capture lost of a connection that may still be open would be told later.
        judged = judged and not self._speaks_elsewhere(client, where.connection_id)
        if index is not None and index > known and judged:
            shown = f"client {quoted(client_id)} is told {index}, saved was only {known}"
            told.append(self._found("index_never_saved", where, shown))
        recorded = index is not None and (index > 0 or client.saved is not None)
        position = index + (not self._next) if index is not None and recorded else 0
        client.resume(position)
        if index is not None and index > known:
            # A part of its life wasn't captured.
            self._forget(client, position)
        client.answered = True
        client.move(index, position)
        return told

    # Windows

    def _note_open(self, opened: OpenPushes) -> Sequence[Told]:
        if opened.pushes:
            self._open[opened.connection_id] = list(opened.pushes)
        else:
            self._open.pop(opened.connection_id, None)
        return _NOTHING

    def _close(self, closed: Closed) -> Sequence[Told]:
        self._own.pop(closed.connection_id, None)
        self._unnamed.pop(closed.connection_id.hex(), None)
        self._closed.add(closed.connection_id)
        self._alive.pop(closed.connection_id, None)
        if not self._alive:
            self._settle()
        return _NOTHING

    def _note_partial(self, partial: Partial) -> Sequence[Told]:
        self._partial, self._asked = True, None
        self._settle()
        self._pending = [pending for pending in self._pending if pending.where.arrived_at_ns <= self._settled_ns]
        self._drop_lowered()
        return _NOTHING

    def _drop_lowered(self) -> None:
        """The service may have begun anew before what is not settled."""
        self._lowered = [lowered for lowered in self._lowered if lowered.where.arrived_at_ns <= self._settled_ns]

    def _settle(self) -> None:
        """No hole will be told that might explain what was delivered by then."""
        waits_ns = self._hole_ns if self._alive else 0
        self._settled_ns = max(self._settled_ns, self._last_at_ns - waits_ns)

    def end_window(self) -> list[Told]:
        """The window ends: what can be judged now, and the rows that changed (Found, StreamRow, ConsumerRow, LagRow).

        It ends with a second.
        """
        for connection_id in self._closed:
            self._lose(self._open.pop(connection_id, []))
        self._closed.clear()
        while len(self._open) > MOST_CONNECTIONS:
            self._lose(self._open.pop(next(iter(self._open))))
        told: list[Told] = [*self._lag_of_pushes(_LATER), *self._not_given(), *self._never_confirmed()]
        told += [*self._settled_lowered(), *self._rows()]
        self._keep_rises()
        self._changed = self._shared_changed = False
        for client in self._clients.values():
            client.changed = False
        return told

    def _lose(self, pushed: Iterable[Moment]) -> None:
        self._lost = _firsts([*self._lost, *pushed])

    def _keep_rises(self) -> None:
        """Keep the highest index at the times of the pushes that are open, and now."""
        by_capture: dict[bytes, list[int]] = {}
        for at, rise in enumerate(self._rises):
            by_capture.setdefault(rise.capture_id, []).append(at)
        needed = {len(self._rises) - 1}
        for pushed in set(chain.from_iterable(self._open.values())):
            # The last one before it, of its own capture and of all others.
            own = by_capture.get(pushed.capture_id, [])
            before = bisect_left(own, bisect_left(self._rises, (pushed.at_ns,)))
            needed.update(own[before - 1 : before] if before else [])
            needed.add(bisect_left(self._rises, (pushed.at_ns - self._clocks_ns,)) - 1)
        if self._address is not None:
            needed.update(at for at, rise in enumerate(self._rises) if self._is_aged(rise))
        self._rises = [self._rises[at] for at in sorted(needed) if at >= 0]

    def _is_aged(self, rise: _Rise) -> bool:
        """Ages are counted from this rise. It depends on nothing but how many came behind it."""
        behind = self._rise_count - rise.number
        return behind < MOST_RISES and not rise.number % self._step(behind)

    @staticmethod
    def _step(behind: int) -> int:
        """Of the rises so far back one in so many is kept."""
        return 1 << (behind // MOST_AGED).bit_length()

    def _age(self, client: Client, now_ns: int) -> float | None:
        """The age of the oldest message that the client can still read, at `now_ns`."""
        assert client.position is not None
        index = client.position
        highest = self._highest or 0
        while (run := next(self._confirmed.within(index, highest), None)) is not None:
            passed = next(self._passed.within(run.first, highest), None)
            if passed is None or passed.first > run.first:
                break
            index = passed.last + 1
        if run is None:
            return 0.0
        begin = bisect_left(self._rises, run.first, key=attrgetter("highest"))
        rises = map(self._rises.__getitem__, range(begin, len(self._rises)))
        rise = next(filter(self._is_aged, rises), None)
        if rise is None:
            return None
        before = rise.number - self._step(self._rise_count - rise.number)
        if before > 0 and self._rise_count - before >= MOST_RISES:
            # It may have come before those that are known.
            return None
        return max(0.0, (now_ns - rise.at_ns) / 1e9)

    def _never_confirmed(self) -> list[Told]:
        """What is settled, from before the first push that is open now; what came after one that stays so is let go."""
        if not self._pending:
            return []
        opened = _firsts([*chain.from_iterable(self._open.values()), *self._lost])
        told: list[Told] = []
        waiting = []
        for pending in self._pending:
            at = arrival(pending.where)
            if at.at_ns > self._settled_ns:
                waiting.append(pending)
            elif self._is_before_all(at, opened):
                shown = f"{_shown([Run(pending.first, pending.last)])} delivered, but no push was confirmed with it"
                told.append(self._found("index_never_confirmed", pending.where, shown))
            elif self._is_before_all(at, self._lost):
                waiting.append(pending)
        self._pending = waiting
        return told

    def _settled_lowered(self) -> list[Told]:
        """What no lost Init excuses any more."""
        settled = [one for one in self._lowered if one.where.arrived_at_ns <= self._settled_ns]
        self._lowered = [one for one in self._lowered if one.where.arrived_at_ns > self._settled_ns]
        return [self._found("saved_index_lowered", *one) for one in settled]

    def _is_before_all(self, moment: Moment, others: Iterable[Moment]) -> bool:
        return all(moment.is_before(other, self._clocks_ns) for other in others)

    def _rows(self) -> Iterator[Told]:
        if self._address is not None and self._changed and self._first is not None:
            yield StreamRow(
                self._first,
                self._address,
                self._name,
                self._partition,
                self._lowest,
                self._highest,
                self._confirms,
                self._indexes,
                self._delivered,
                self._last_at_ns,
            )
        changed = [(name, client) for name, client in self._clients.items() if client.changed or self._shared_changed]
        if not changed:
            return
        positions = [client.position or 0 for _, client in changed]
        gone = Intervals(self._gone(0, self._highest or 0))
        held = self._confirmed.counts_from(positions)
        for (client_id, client), lag, passed in zip(changed, held, gone.counts_from(positions), strict=True):
            named = client.stream_name is not None
            can_read = self._lag(client.position, lag, passed)
            lost = None if can_read is None else client.lost + passed - self._received(client, gone)
            yield ConsumerRow(
                client.where,
                self._address,
                client.stream_name if named else self._name,
                client.partition if named else self._partition,
                client_id,
                client.saved,
                client.position,
                client.last,
                client.delivered_messages,
                client.redelivered,
                self._highest,
                can_read,
                lost,
                None if can_read is None else self._age(client, client.where.arrived_at_ns),
                client.connections,
            )

    def _lag(self, position: int | None, held: int, passed: int) -> int | None:
        if self._address is None or position is None:
            return None
        if position >= max(self._confirmed.floor, self._passed.floor):
            return held - passed
        return self._indexes if not self._passed and self._lowest is not None and position <= self._lowest else None

    @staticmethod
    def _received(client: Client, gone: Intervals) -> int:
        """How many of these were delivered to the client, from its position on."""
        if client.last is None or not gone:
            return 0
        ahead = list(gone.within(client.position or 0, client.last))
        return _count(ahead) - sum(_count(client.delivered.missing(*run)) for run in ahead)

    # Carried state

    def snapshot(self) -> str:
        """The state as JSON, after `end_window`."""
        told = {
            "version": SNAPSHOT_VERSION,
            "first": None if self._first is None else self._first.to_json(),
            "asked": None if self._asked is None else self._asked.to_json(),
            "alive": [connection_id.hex() for connection_id in self._alive],
            "open": [[connection_id.hex(), _moments_to_json(opened)] for connection_id, opened in self._open.items()],
            "lost": _moments_to_json(self._lost),
            "own": [[connection_id.hex(), index] for connection_id, index in self._own.items()],
            "unnamed": list(self._unnamed.items()),
            "askers": list(self._askers.items()),
            "pending": [[first, last, where.to_json()] for first, last, where in self._pending],
            "lowered": [[where.to_json(), message] for where, message in self._lowered],
            "rises": [[*rise[:3], rise.capture_id.hex()] for rise in self._rises],
            "clients": [[client_id, client.to_json()] for client_id, client in self._clients.items()],
            **{name: getattr(self, "_" + name) for name in _PLAIN},
            **{name: getattr(self, "_" + name).state for name in _INTERVALS},
        }
        return json.dumps(told, separators=(",", ":"))

    def _restore(self, told: dict[str, Any]) -> None:
        if told.get("version") != SNAPSHOT_VERSION:
            raise StateVersionError(what="ockam streams", found=told.get("version"), expected=SNAPSHOT_VERSION)
        for name in _PLAIN:
            setattr(self, "_" + name, told[name])
        for name in _INTERVALS:
            setattr(self, "_" + name, Intervals.from_state(told[name]))
        self._first = None if told["first"] is None else Where.from_json(told["first"])
        self._asked = None if told["asked"] is None else Where.from_json(told["asked"])
        self._sharing = [(name, partition) for name, partition in told["sharing"]]
        self._alive = {bytes.fromhex(connection): None for connection in told["alive"]}
        self._open = {bytes.fromhex(connection): _moments_from_json(opened) for connection, opened in told["open"]}
        self._lost = _moments_from_json(told["lost"])
        self._own = OrderedDict((bytes.fromhex(connection), index) for connection, index in told["own"])
        self._unnamed, self._askers = OrderedDict(told["unnamed"]), OrderedDict(told["askers"])
        self._pending = [_Pending(first, last, Where.from_json(where)) for first, last, where in told["pending"]]
        self._lowered = [_Lowered(Where.from_json(where), message) for where, message in told["lowered"]]
        self._rises = [
            _Rise(at_ns, number, top, bytes.fromhex(capture)) for at_ns, number, top, capture in told["rises"]
        ]
        self._clients = OrderedDict((client_id, Client.from_json(row)) for client_id, row in told["clients"])
        self._client_runs = sum(client.runs for client in self._clients.values())


#: What carried state holds as it is, and as intervals.
_PLAIN: Final = (
    "last_at_ns",
    "settled_ns",
    "partial",
    "clocks",
    "blamed",
    "name",
    "partition",
    "current",
    "addresses",
    "given",
    "inits",
    "resumed",
    "sharing",
    "confirms",
    "indexes",
    "delivered",
    "lowest",
    "highest",
    "rise_count",
)
_INTERVALS: Final = ("confirmed", "unconfirmed", "passed")


def _firsts(moments: Iterable[Moment]) -> list[Moment]:
    """The first one, and the first of another capture: what surely came before both came before all."""
    in_order = sorted(moments)
    return in_order[:1] + [one for one in in_order if one.capture_id != in_order[0].capture_id][:1]


def _moments_to_json(moments: Iterable[Moment]) -> list[tuple[int, str]]:
    return list(map(_moment_to_json, moments))


def _moments_from_json(rows: Iterable[tuple[int, str]]) -> list[Moment]:
    return list(map(_moment_from_json, rows))


def _moment_to_json(moment: Moment) -> tuple[int, str]:
    return moment.at_ns, moment.capture_id.hex()


def _moment_from_json(row: tuple[int, str]) -> Moment:
    return Moment(row[0], bytes.fromhex(row[1]))


def _stream(name: str, partition: int | None) -> str:
    return quoted(name) + (f" partition {partition}" if partition else "")


def _count(runs: Iterable[Run]) -> int:
    return sum(run.last - run.first + 1 for run in runs)


def _shown(runs: Sequence[Run]) -> str:
    """How many messages, and the first and the last of their indexes."""
    count, first, last = _count(runs), runs[0].first, runs[-1].last
    return f"index {first}" if count == 1 else f"{count} messages from index {first} to {last}"


def judge(events: Iterable[tuple[str, Event]], convention: IndexConvention = IndexConvention.NEXT) -> list[Told]:
    """All that events, each with its key and in the order of arrival, tell if nothing follows them."""
    folds: dict[str, Fold] = {}
    told: list[Told] = []
    for key, event in events:
        fold = folds.get(key)
        if fold is None:
            fold = folds[key] = Fold(key, convention)
        told += fold.take(event)
    for fold in folds.values():
        told += fold.end_window()
    return told
