"""The fold of a name: the addresses that it is given, and the answers of the index service to its clients.

Names outlive addresses, and so do the saved indexes of clients. Here these rules are judged: `create_other_name`,
`address_changed` on several connections, `saved_index_lowered` on several connections, `index_never_saved`
(specification, "Stream creation" and "Addition: index management").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

from wirehouse_codecs.core.snapshots import SnapshotCodec, carried_fields
from wirehouse_codecs.ockam.correlation.clients import MOST_CLIENTS, MOST_NAME, NameClient
from wirehouse_codecs.ockam.correlation.connections import MOST_CONNECTIONS, Connections
from wirehouse_codecs.ockam.correlation.events import (
    MOST_SHARING,
    Closed,
    ConsumerRow,
    Created,
    Event,
    Found,
    Got,
    Init,
    Moment,
    Partial,
    Replied,
    Saved,
    Told,
    Where,
    arrival,
    quoted,
    request,
)
from wirehouse_codecs.ockam.correlation.reading import NOTHING, SNAPSHOT_VERSION, Reading
from wirehouse_codecs.ockam.rules import RULE
from wirehouse_codecs.ockam.session.addresses import node_of

Key = TypeVar("Key")
#: Maximum number of findings of a rule that wait; further ones are not reported.
MOST_WAITING: Final = 16_384


class Lowered(NamedTuple):
    """A finding of `saved_index_lowered`, until no lost Init can excuse it any more."""

    where: Where
    message: str


class Raised(NamedTuple):
    """A finding of `index_never_saved`, until no SaveIndex that another capture has later can excuse it any more."""

    where: Where
    message: str
    client_id: str
    told: int


class Given(NamedTuple):
    """An address that was given to the name."""

    #: When its first Init came.
    given: Moment
    #: When its first reply came since the name has several addresses.
    replied: Moment | None


@dataclass(slots=True)
class NameState:
    """The carried state of a name."""

    connections: Connections = field(default_factory=Connections)
    #: The first Init.
    first: Moment | None = None
    #: The address that was given last, and all of them with the time at which each was given first, in that order.
    current: str | None = None
    addresses: dict[str, int] = field(default_factory=dict)
    #: The addresses that were given, by who captured them; and those that were given on each connection.
    given: dict[str, dict[str, Given]] = field(default_factory=dict)
    inits: dict[bytes, list[str]] = field(default_factory=dict)
    #: Addresses that replied after a later one had, each reported once.
    resumed: list[str] = field(default_factory=list)
    #: Lower answers to a client that are not settled.
    lowered: list[Lowered] = field(default_factory=list)
    #: Higher answers to a client than it saved, that may still be excused.
    raised: list[Raised] = field(default_factory=list)
    #: Whether an answer was captured before its request, or was held back until that came: then the times are of two
    #: clocks or two paths.
    clocks: bool = False
    #: Clients by their ids; the one that was silent longest comes first.
    clients: dict[str, NameClient] = field(default_factory=dict)


CODEC: Final = SnapshotCodec(NameState, what="ockam name", version=SNAPSHOT_VERSION)


class NameFold(NameState):
    """The fold of a name."""

    def __init__(self, reading: Reading, snapshot: str | None) -> None:
        state = NameState() if snapshot is None else CODEC.read(snapshot)
        super().__init__(**carried_fields(NameState, state))
        self._reading = reading
        self.connections.hole_ns = reading.hole_ns
        self._steps: dict[type[Any], Callable[[Any], Sequence[Told]]] = {
            Created: self._create,
            Init: self._init,
            Replied: self._reply,
            Saved: self._save,
            Got: self._got,
            Closed: self._close,
            Partial: self._note_partial,
        }

    def take(self, event: Event) -> Sequence[Told]:
        """Take the next event in the order of arrival. Events about a stream's messages have no effect on its name."""
        step = self._steps.get(type(event))
        return NOTHING if step is None else step(event)

    def snapshot(self) -> str:
        """The state as text."""
        return CODEC.write(self)

    # Addresses

    def _create(self, created: Created) -> Sequence[Told]:
        self.connections.note_asking(created.where)
        return NOTHING

    def _init(self, init: Init) -> Sequence[Told]:
        self.connections.note(init.where)
        used = self.first
        self.first = used or arrival(init.where)
        if init.stream_address is not None:
            self._note_given(init, init.stream_address)
        if not (used and init.anonymous and used.is_before(arrival(init.where), self._reading.clocks_ns)):
            return NOTHING
        shown = f"a stream without a name is given {quoted(init.stream_name)}, which was in use"
        return [Found(RULE["create_other_name"], init.where, shown, None)]

    def _note_given(self, init: Init, address: str) -> None:
        self.addresses.setdefault(address, init.where.arrived_at_ns)
        _bound(self.addresses, MOST_SHARING)
        if address != self.current:
            # The service may have started over, and its indexes with it.
            for client in self.clients.values():
                client.answers.clear()
            self.connections.settle()
            self._drop_lowered()
            self.current = address
        given = self.given.setdefault(init.seen_by, {})
        given.setdefault(address, Given(arrival(init.where), None))
        inits = self.inits.setdefault(init.where.connection_id, [])
        if address not in inits:
            inits.append(address)
            del inits[:-MOST_SHARING]
        _bound(given, MOST_SHARING)
        _bound(self.given, MOST_SHARING)
        _bound(self.inits, MOST_CONNECTIONS)

    def _reply(self, replied: Replied) -> Sequence[Told]:
        """Judge `address_changed`: an address replies although a later one has replied.

        If one connection was given both addresses, its session reports it.
        """
        self._note_clocks(replied)
        address, sent_ns = replied.stream_address, replied.requested_at_ns
        given = self.given.get(replied.seen_by, {})
        if address not in given or len(given) == 1:
            return NOTHING
        if given[address].replied is None:
            given[address] = given[address]._replace(replied=arrival(replied.where))
        # If bytes are missing, a hole may have held back an Init, and the order of the Inits isn't known.
        if self.connections.partial:
            return NOTHING
        # If an answer comes before its request, or was held back until then, the times are of two clocks.
        if sent_ns is None or self.clocks or address in self.resumed:
            return NOTHING
        later = islice(given.items(), list(given).index(address) + 1, None)
        sent, clocks_ns = request(replied.where, sent_ns, replied.requested_in), self._reading.clocks_ns
        before = (
            name
            for name, one in later
            if one.replied is not None and one.replied.is_before(sent, clocks_ns)
            if given[address].given.is_before(one.given, clocks_ns)
        )
        other = next((name for name in before if node_of(name) == node_of(address)), None)
        if other is None:
            return NOTHING
        self.resumed = [*self.resumed, address][-MOST_SHARING:]
        if {address, other} <= set(self.inits.get(replied.where.connection_id, ())):
            return NOTHING
        shown = f"{quoted(address)} still answers, {quoted(other)} is the address since, and answered before"
        return [Found(RULE["address_changed"], replied.where, shown, address)]

    # Saved indexes

    def _client(self, said: Saved | Got) -> NameClient | None:
        self.connections.note(said.where)
        client = self.clients.pop(said.client_id, None)
        if client is None:
            if len(said.client_id) > MOST_NAME:
                return None
            client = NameClient(said.where, said.stream_name[:MOST_NAME], said.partition)
        self.clients[said.client_id] = client
        if len(self.clients) > MOST_CLIENTS:
            del self.clients[next(iter(self.clients))]
        if client.seen(said.where, said.missed):
            client.answered = False
        return client

    def _save(self, saved: Saved) -> Sequence[Told]:
        client = self._client(saved)
        if client is not None:
            client.note_own(saved.where, saved.index)
            client.move(saved.index, self._reading.position(saved.index))
            self.raised = [one for one in self.raised if not self._excuses(saved, one)]
        return NOTHING

    def _excuses(self, saved: Saved, raised: Raised) -> bool:
        """Whether this SaveIndex raised the index far enough, and may have come before the answer by its own clock."""
        is_enough = saved.client_id == raised.client_id and saved.index >= raised.told
        return is_enough and not arrival(raised.where).is_before(arrival(saved.where), self._reading.clocks_ns)

    def _got(self, got: Got) -> Sequence[Told]:
        client = self._client(got)
        self._note_clocks(got)
        if client is None:
            return NOTHING
        index, known = got.index, client.saved or 0
        # A lost Init may have shown that the service started over; a lost SaveIndex may have raised the index.
        judged = not (self.connections.partial or got.lacks or self.clocks)
        before = client.lowered(got, self._reading.clocks_ns)
        if before is not None and judged and len(self.lowered) < MOST_WAITING:
            shown = f"client {quoted(got.client_id)} is told {index}, after {before} on another connection"
            self.lowered.append(Lowered(got.where, shown))
        # If a capture lost bytes of a connection that may still be open, the hole would be reported later.
        judged = judged and client.answered and not self._speaks_elsewhere(client, got.where.connection_id)
        if index is not None and index > known and judged and len(self.raised) < MOST_WAITING:
            shown = f"client {quoted(got.client_id)} is told {index}, saved was only {known}"
            self.raised.append(Raised(got.where, shown, got.client_id, index))
        client.answered = True
        client.move(index, self._reading.position_told(index, client.saved))
        return NOTHING

    def _note_clocks(self, answer: Replied | Got) -> None:
        """Note an answer. If it shows two clocks, the order of the messages just before isn't sure."""
        asked_ns, answered_ns = answer.requested_at_ns, answer.where.arrived_at_ns
        if self.clocks or asked_ns is None or asked_ns < answered_ns:
            return
        self.clocks = True
        since_ns = answered_ns - self._reading.clocks_ns
        self.lowered = [one for one in self.lowered if one.where.arrived_at_ns <= since_ns]
        self.raised = [one for one in self.raised if one.where.arrived_at_ns <= since_ns]

    def _speaks_elsewhere(self, client: NameClient, connection_id: bytes) -> bool:
        """Whether another connection of the client may be open. Forgotten connections may be the client's."""
        forgotten = client.connections > len(client.recent)
        alive = self.connections.alive
        return any(one in client.recent or forgotten or not one for one in alive if one != connection_id)

    # Windows

    def _close(self, closed: Closed) -> Sequence[Told]:
        self.connections.close(closed.connection_id)
        return NOTHING

    def _note_partial(self, partial: Partial) -> Sequence[Told]:
        self.connections.miss()
        self._drop_lowered()
        return NOTHING

    def _drop_lowered(self) -> None:
        """Drop findings that are not settled: the service may have started over before them."""
        self.lowered = [one for one in self.lowered if self.connections.is_settled(one.where)]

    def end_window(self) -> list[Told]:
        """End the window; returns what can be judged now, and the rows that changed."""
        self.connections.closed.clear()
        self.connections.settle()
        settled = [one for one in self.lowered if self.connections.is_settled(one.where)]
        self.lowered = [one for one in self.lowered if not self.connections.is_settled(one.where)]
        told = [Found(RULE["saved_index_lowered"], *one, None) for one in settled]
        return [*told, *self._never_saved(), *self._rows()]

    def _never_saved(self) -> list[Told]:
        """The findings that no SaveIndex of another capture can excuse any more."""
        since_ns = self.connections.last_at_ns - (self._reading.clocks_ns if self.connections.alive else 0)
        told = [one for one in self.raised if one.where.arrived_at_ns <= since_ns]
        self.raised = [one for one in self.raised if one.where.arrived_at_ns > since_ns]
        return [Found(RULE["index_never_saved"], one.where, one.message, None) for one in told]

    def _rows(self) -> Iterator[ConsumerRow]:
        for client_id, client in self.clients.items():
            if client.changed:
                client.changed = False
                yield ConsumerRow(
                    client.where,
                    stream_address=None,
                    stream_name=client.stream_name,
                    partition=client.partition,
                    client_id=client_id,
                    saved=client.saved,
                    position=client.position,
                    delivered=None,
                    delivered_messages=0,
                    redelivered=0,
                    latest=None,
                    lag=None,
                    lost=None,
                    lag_seconds=None,
                    connections=client.connections,
                )


def _bound(known: dict[Key, Any], most: int) -> None:
    """Forget the oldest entry if there are more than `most`."""
    if len(known) > most:
        del known[next(iter(known))]
