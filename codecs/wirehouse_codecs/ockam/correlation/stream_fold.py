"""The fold of a stream, under its address: its messages, which clients got them, and how far the clients are.

Here these rules are judged: `address_shared`, `address_not_from_init`, `duplicate_index`, `index_decreases`,
`pull_skips`, `index_never_confirmed`, `consumer_hole`, `save_ahead` (specification, "Stream creation",
"Pushing/pulling messages", "Reliable delivery").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, NamedTuple

from wirehouse_codecs.core.intervals import Intervals, Run
from wirehouse_codecs.core.snapshots import SnapshotCodec, carried_fields
from wirehouse_codecs.ockam.correlation.clients import MOST_NAME, StreamClient, StreamClients
from wirehouse_codecs.ockam.correlation.connections import Connections
from wirehouse_codecs.ockam.correlation.contents import Broken, Contents, lost_to, received
from wirehouse_codecs.ockam.correlation.events import (
    MOST_SHARING,
    MOST_SHOWN,
    Asked,
    Closed,
    ConsumerRow,
    Delivered,
    Event,
    Found,
    Got,
    Hole,
    Init,
    LagRow,
    OpenPushes,
    Partial,
    Saved,
    Stored,
    StreamRow,
    Told,
    Where,
    messages_in,
    quoted,
    runs_text,
    stream_text,
)
from wirehouse_codecs.ockam.correlation.reading import NOTHING, SNAPSHOT_VERSION, Reading
from wirehouse_codecs.ockam.correlation.skipped import Doubted, Skipped
from wirehouse_codecs.ockam.correlation.unconfirmed import Unconfirmed
from wirehouse_codecs.ockam.rules import RULE

#: Maximum number of findings of a rule that wait; further ones are not reported.
MOST_WAITING: Final = 16_384
#: Length of the span of time whose pushes have one LagRow.
BURST_NS: Final = 10**9
#: A time after everything that is ever captured.
_LATER: Final = 2**63 - 1


class Decreased(NamedTuple):
    """A finding of `index_decreases`."""

    where: Where
    message: str


@dataclass(slots=True)
class StreamState:
    """The carried state of a stream."""

    connections: Connections = field(default_factory=Connections)
    contents: Contents = field(default_factory=Contents)
    unconfirmed: Unconfirmed = field(default_factory=Unconfirmed)
    clients: StreamClients = field(default_factory=StreamClients)
    #: The first message.
    first: Where | None = None
    #: Name and partition of the first Init, and the others that were given.
    name: str | None = None
    partition: int | None = None
    sharing: list[tuple[str, int]] = field(default_factory=list)
    #: Whether the name had another address before.
    later: bool = False
    #: The first request to the address while no Init gave it, and whether that was reported.
    asked: Where | None = None
    blamed: bool = False
    #: Number of messages in responses to pulls.
    delivered: int = 0
    #: Findings of `index_decreases`, until no answer that comes can show two clocks any more.
    decreased: list[Decreased] = field(default_factory=list)
    #: Messages passed over by clients that pull and save on different connections, until nothing missing explains it.
    skipped: list[Skipped] = field(default_factory=list)
    #: Findings about clients that save where messages were missed, until no answer that is sent again can explain them.
    doubted: list[Doubted] = field(default_factory=list)


CODEC: Final = SnapshotCodec(StreamState, what="ockam stream", version=SNAPSHOT_VERSION)


class StreamFold(StreamState):
    """The fold of a stream. With `lags`, changes of lag are reported too."""

    def __init__(self, address: str, reading: Reading, snapshot: str | None, *, lags: bool) -> None:
        state = StreamState() if snapshot is None else CODEC.read(snapshot)
        super().__init__(**carried_fields(StreamState, state))
        self._address, self._reading = address, reading
        self.connections.hole_ns = reading.hole_ns
        #: Whether, since the last window's end, anything changed; and whether what the rows of all clients show did.
        self._changed = self._shared_changed = False
        #: The last confirm that lag rows don't show yet, all of one second, and the clients that have a row since.
        self._confirmed_at: Where | None = None
        self._shown: set[str] = set()
        #: Results of this window for `skipped` and `doubted`.
        self._judged: list[Told] = []
        self._steps: dict[type[Any], Callable[[Any], Sequence[Told]]] = {
            Init: self._init,
            Stored: self._store,
            Asked: self._ask,
            Delivered: self._deliver,
            Saved: self._save,
            Got: self._got,
            OpenPushes: self._note_open,
            Closed: self._close,
            Partial: self._note_partial,
        }
        #: The steps for events that may change a lag.
        self._moves: dict[type[Any], Callable[[Any], Iterable[Told]]] = {}
        if lags:
            self._moves = {
                Init: self._init,
                Stored: self._store_with_lag,
                Delivered: self._deliver_with_lag,
                Saved: self._index_with_lag,
                Got: self._index_with_lag,
            }

    def take(self, event: Event) -> Sequence[Told]:
        """Take the next event in the order of arrival. Events about the name alone have no effect on a stream."""
        move = self._moves.get(type(event))
        if move is not None:
            return [*self._lag_of_pushes(event.where.arrived_at_ns), *move(event)]  # type: ignore[union-attr]
        step = self._steps.get(type(event))
        return NOTHING if step is None else step(event)

    def snapshot(self) -> str:
        """The state as text."""
        return CODEC.write(self)

    def _see(self, where: Where) -> None:
        if self.first is None:
            self.first = where
        self._changed = True
        self.connections.note(where)
        if self.skipped:
            self._judge_skipped(where.arrived_at_ns - self._reading.hole_ns)
        if self.doubted:
            self._judge_doubted(where.arrived_at_ns - self._reading.clocks_ns)

    def _found(self, rule: str, where: Where, message: str) -> Found:
        return Found(RULE[rule], where, message, self._address)

    def _broken(self, broken: Broken | None, where: Where) -> Sequence[Told]:
        return NOTHING if broken is None else [self._found(broken.rule, where, broken.message)]

    # Its address

    def _init(self, init: Init) -> Sequence[Told]:
        self._see(init.where)
        told = self._not_given()
        self.asked = None
        if self.name is None:
            self.name, self.partition, self.later = init.stream_name[:MOST_NAME], init.partition, init.later
            self._shared_changed = True
            return told
        name = (init.stream_name[:MOST_NAME], init.partition or 0)
        if name == (self.name, self.partition or 0) or name in self.sharing or len(self.sharing) == MOST_SHARING:
            return NOTHING
        self.sharing.append(name)
        first = stream_text(self.name, self.partition)
        shown = f"{quoted(self._address)} is the address of {first}, and of {stream_text(*name)}"
        return [self._found("address_shared", init.where, shown)]

    def _ask(self, asked: Asked) -> Sequence[Told]:
        self.connections.note_asking(asked.where)
        # If the address was used before, it came from an Init that wasn't captured.
        known = self.name is not None or self.first is not None
        if not (known or self.connections.partial or self.blamed or self.asked):
            self.asked = asked.where
        return NOTHING

    def _not_given(self) -> list[Told]:
        """The finding about a request to an address that no Init gave, once no Init can come any more."""
        self.connections.settle()
        where = self.asked
        if where is None or not self.connections.is_settled(where):
            return []
        self.asked, self.blamed = None, True
        return [self._found("address_not_from_init", where, f"no Init gave {quoted(self._address)}")]

    # Its messages

    def _store(self, stored: Stored) -> Sequence[Told]:
        where, contents, unconfirmed = stored.where, self.contents, self.unconfirmed
        self._see(where)
        self._note_clocks(stored, stored.pushed_at_ns)
        if unconfirmed.pending:
            unconfirmed.excuse(stored, clocks=contents.clocks, clocks_ns=self._reading.clocks_ns)
        indexes = contents.indexes
        broken = contents.store(stored, self._reading.clocks_ns)
        if contents.indexes > indexes:
            self._shared_changed = True
        if broken is None or broken.rule != "index_decreases":
            return self._broken(broken, where)
        if len(self.decreased) < MOST_WAITING:
            self.decreased.append(Decreased(where, broken.message))
        return NOTHING

    def _note_clocks(self, answer: Stored | Delivered, requested_at_ns: int | None) -> None:
        """Note an answer. If it shows two clocks, the order of the messages just before isn't sure."""
        if self.contents.note_clocks(answer, requested_at_ns):
            since_ns = answer.where.arrived_at_ns - self._reading.clocks_ns
            self.unconfirmed.forget_since(since_ns)
            self.skipped.clear()
            self.decreased = [one for one in self.decreased if one.where.arrived_at_ns <= since_ns]

    def _decreases(self, until_ns: int) -> list[Told]:
        """The findings of `index_decreases` that came until then, in the order of one clock."""
        told = [self._found("index_decreases", *one) for one in self.decreased if one.where.arrived_at_ns <= until_ns]
        self.decreased = [one for one in self.decreased if one.where.arrived_at_ns > until_ns]
        return [*told]

    def _deliver(self, delivered: Delivered) -> Sequence[Told]:
        where, requested, runs, contents = delivered.where, delivered.requested, delivered.runs, self.contents
        self._see(where)
        self._note_clocks(delivered, delivered.requested_at_ns)
        if not runs:
            return NOTHING
        for first, last in runs:
            self.delivered += last - first + 1
        ordered = runs if len(runs) == 1 else sorted(runs)
        if contents.lowest is not None and not self.connections.partial:
            self.unconfirmed.deliver(contents, ordered, where)
        told = self._broken(contents.returned(ordered), where)
        contents.pass_over(requested, ordered)
        consumer = self._client_of(delivered)
        if delivered.consumer is None:
            for place in filter(None, (where.connection_id.hex(), delivered.asker)):
                self.clients.note_unnamed(place, ordered[-1][1] + 1, consumer)
            if consumer is None:
                self.clients.keep_unclaimed(where, delivered.asker, runs)
        if self.skipped:
            self.skipped = [one for one in self.skipped if one.remains(delivered, consumer)]
        if self.doubted:
            self.doubted = [one for one in self.doubted if one.remains(delivered, consumer)]
        if consumer is not None and (client := self.clients.find(consumer, where, delivered.missed)) is not None:
            client.split = client.split or delivered.consumer is None
            client.puller = delivered.asker
            self.clients.deliver(client, where, requested, runs)
        return told

    def _client_of(self, delivered: Delivered) -> str | None:
        return delivered.consumer or self.clients.askers.get(delivered.asker)

    # Its clients

    def _find_named(self, said: Saved | Got) -> StreamClient | None:
        client = self.clients.find_named(said)
        if self.skipped and self.clients.askers.get(said.asker, said.client_id) is None:
            # Several clients have the address: it isn't known to which of them messages came.
            self.skipped = [one for one in self.skipped if one.saved.asker != said.asker]
        return client

    def _save(self, saved: Saved) -> Sequence[Told]:
        self._see(saved.where)
        client = self._find_named(saved)
        if client is None:
            return NOTHING
        position = self._reading.position(saved.index)
        told: list[Told] = []
        if not client.resumed:
            client.resume(position)
        elif position > client.covered.floor:
            # Without a delivery that is known to be its own, it isn't known what came to it.
            if client.is_after(saved.where) and not (client.split or saved.lacks):
                never, passed = self._passed_over(client, position)
                ahead = self._ahead(saved, client, position, never)
                if saved.missed and (ahead or never):
                    if len(self.doubted) < MOST_WAITING:
                        self.doubted.append(Doubted(saved, ahead, Intervals(never), Intervals(passed)))
                else:
                    told += self._passes(saved, ahead, never, passed)
            elif client.saves_for(saved) and not (saved.lacks or self._is_unsure()):
                never, passed = self._passed_over(client, position)
                if never or passed:
                    self.skipped.append(Skipped(saved, Intervals(never), Intervals(passed)))
            self.clients.forget(client, position)
        if self.contents.passed and client.position is not None:
            client.lost += lost_to(client, self.contents.gone(client.position, position - 1))
        client.move(saved.index, position)
        return told

    def _ahead(self, saved: Saved, client: StreamClient, position: int, never: Sequence[Run]) -> str:
        """The message of `save_ahead`; "" = it isn't broken, or what lies ahead is reported as messages that `never`
        came."""
        assert client.last is not None
        expected = max(client.last + 1, client.covered.floor)
        if position <= expected or (never and never[-1].last >= expected):
            return ""
        return f"client {quoted(saved.client_id)} saves {saved.index}, what came to it ends before {expected}"

    def _passes(self, saved: Saved, ahead: str, never: Sequence[Run], passed: Sequence[Run]) -> Iterator[Told]:
        """The results for what a client passed over on the connection that brought it messages."""
        if ahead:
            yield self._found("save_ahead", saved.where, ahead)
        yield from self._holes(saved, never, passed)

    def _passed_over(self, client: StreamClient, position: int) -> tuple[list[Run], list[Run]]:
        """Messages before `position` that a client never got: no response went through them, or one left them out."""
        undelivered = list(client.undelivered(self.contents.confirmed, position))
        never = [part for run in undelivered for part in client.covered.missing(*run)]
        return never, [part for run in undelivered for part in client.covered.within(*run)]

    def _holes(self, saved: Saved, never: Sequence[Run], passed: Sequence[Run]) -> Iterator[Told]:
        if never:
            shown = f"client {quoted(saved.client_id)} saves {saved.index}, but {runs_text(never)} never came to it"
            yield self._found("consumer_hole", saved.where, shown)
        for kind, runs in (("consumer_hole", never), ("server_gap", passed)):
            if runs:
                yield Hole(
                    kind,
                    saved.where,
                    self._address,
                    saved.stream_name[:MOST_NAME],
                    saved.partition,
                    saved.client_id,
                    saved.index,
                    runs[0].first,
                    runs[-1].last,
                    messages_in(runs),
                    tuple((run.first, run.last) for run in runs[:MOST_SHOWN]),
                )

    def _judge_doubted(self, until_ns: int) -> None:
        """Judge the doubted findings until then: no answer that is sent again can explain them any more."""
        due = [one for one in self.doubted if one.saved.where.arrived_at_ns <= until_ns]
        if due:
            self.doubted = [one for one in self.doubted if one.saved.where.arrived_at_ns > until_ns]
            for one in due:
                self._judged += self._passes(one.saved, one.ahead, list(one.never), list(one.passed))

    def _is_unsure(self) -> bool:
        """Whether nothing can be concluded from the order of several connections."""
        return self.connections.partial or self.contents.clocks or len(self.skipped) == MOST_WAITING

    def _judge_skipped(self, until_ns: int) -> None:
        """Judge what was passed over until then: nothing that is missing can explain it any more."""
        due = [one for one in self.skipped if one.saved.where.arrived_at_ns <= until_ns]
        if due:
            self.skipped = [one for one in self.skipped if one.saved.where.arrived_at_ns > until_ns]
            for one in due:
                self._judged += self._holes(one.saved, list(one.never), list(one.passed))

    def _got(self, got: Got) -> Sequence[Told]:
        self._see(got.where)
        client = self._find_named(got)
        if client is None:
            return NOTHING
        position = self._reading.position_told(got.index, client.saved)
        client.resume(position)
        if got.index is not None and got.index > (client.saved or 0):
            # A part of its life wasn't captured.
            self.clients.forget(client, position)
            self.skipped = [one for one in self.skipped if one.saved.client_id != got.client_id]
        client.move(got.index, position)
        return NOTHING

    # Changes of lag

    def _store_with_lag(self, stored: Stored) -> Sequence[Told]:
        indexes = self.contents.indexes
        told = self._store(stored)
        if self.contents.indexes > indexes:
            self._confirmed_at = stored.where
            self._shown.clear()
        return told

    def _index_with_lag(self, said: Saved | Got) -> Iterator[Told]:
        before = self._stands(said.client_id)
        yield from self._steps[type(said)](said)
        if self._stands(said.client_id) != before:
            yield from self._lags("save", said.where, [said.client_id])

    def _deliver_with_lag(self, delivered: Delivered) -> Iterator[Told]:
        client_id, passed = self._client_of(delivered), self.contents.passed.count
        before = None if client_id is None else self._stands(client_id)
        yield from self._deliver(delivered)
        moved = [client_id] if client_id is not None and self._stands(client_id) != before else []
        cause = "pull"
        if self.contents.passed.count != passed:
            # Some messages that it passed over, or that came back, may lie ahead of these clients.
            end = max(last for _, last in delivered.runs)
            clients = self.clients.by_id.items()
            behind = [name for name, one in clients if one.position is not None and one.position <= end]
            cause = "delete" if self.contents.passed.count > passed else "pull"
            yield from self._lags(cause, delivered.where, behind)
            moved = [name for name in moved if name not in behind]
        yield from self._lags(cause, delivered.where, moved)

    def _stands(self, client_id: str) -> tuple[int | None, ...] | None:
        client = self.clients.by_id.get(client_id)
        return None if client is None else (client.saved, client.position, client.last)

    def _lag_of_pushes(self, now_ns: int) -> Iterable[LagRow]:
        """The changes of lag by the pushes of a second, once it is over."""
        where = self._confirmed_at
        if where is None or where.arrived_at_ns // BURST_NS >= now_ns // BURST_NS:
            return ()
        self._confirmed_at = None
        return self._lags("push", where, [name for name in self.clients.by_id if name not in self._shown])

    def _lags(self, cause: str, where: Where, client_ids: Iterable[str]) -> Iterator[LagRow]:
        contents = self.contents
        for client_id in client_ids:
            client = self.clients.by_id.get(client_id)
            if client is None:
                continue
            self._shown.add(client_id)
            position = client.position or 0
            gone = Intervals(contents.gone(position, contents.highest or 0))
            lag, lost = self._can_read(client, contents.confirmed.count_from(position), gone.count, gone)
            is_anew = self.later and not client.has_lag
            client.has_lag = True
            yield LagRow(
                "incarnation" if is_anew else cause,
                where,
                self._address,
                *self._named(client),
                client_id,
                client.saved,
                client.position,
                client.last,
                contents.highest,
                lag,
                lost,
                None if lag is None else contents.age(position, where.arrived_at_ns),
            )

    def _named(self, client: StreamClient) -> tuple[str | None, int | None]:
        """The stream's name and partition as the client gives them, else as the stream has them."""
        if client.stream_name is None:
            return self.name, self.partition
        return client.stream_name, client.partition

    def _can_read(self, client: StreamClient, held: int, passed: int, gone: Intervals) -> tuple[int | None, int | None]:
        """Lag and lost messages of a client, from whose position on `held` are confirmed and `passed` of them gone."""
        lag = self.contents.lag(client.position, held, passed)
        return lag, None if lag is None else client.lost + passed - received(client, gone)

    # Windows

    def _note_open(self, opened: OpenPushes) -> Sequence[Told]:
        self.unconfirmed.note_open(opened)
        return NOTHING

    def _close(self, closed: Closed) -> Sequence[Told]:
        self.contents.own.pop(closed.connection_id, None)
        self.clients.close(closed.connection_id)
        self.connections.close(closed.connection_id)
        if self.connections.alive:
            return NOTHING
        self._judge_skipped(_LATER)
        self._judge_doubted(_LATER)
        return self._decreases(_LATER)

    def _note_partial(self, partial: Partial) -> Sequence[Told]:
        self.asked = None
        self.connections.miss()
        self.unconfirmed.miss(self.connections)
        self._judge_skipped(self.connections.settled_ns)
        self.skipped.clear()
        return NOTHING

    def end_window(self) -> list[Told]:
        """End the window, and with it a second; returns what can be judged now, and the rows that changed."""
        clocks_ns = self._reading.clocks_ns
        self.unconfirmed.end_window(self.connections.closed)
        self.connections.closed.clear()
        told: list[Told] = [*self._lag_of_pushes(_LATER), *self._not_given()]
        never = self.unconfirmed.never_confirmed(self.connections, clocks=self.contents.clocks, clocks_ns=clocks_ns)
        told += [self._found("index_never_confirmed", *one) for one in never]
        told += self._decreases(self.connections.last_at_ns - clocks_ns)
        self._judge_skipped(self.connections.settled_ns)
        self._judge_doubted(self.connections.last_at_ns - clocks_ns)
        told += self._judged
        self._judged = []
        told += self._rows()
        self.contents.keep_rises(chain.from_iterable(self.unconfirmed.open.values()), clocks_ns)
        self._changed = self._shared_changed = False
        for client in self.clients.by_id.values():
            client.changed = False
        return told

    def _rows(self) -> Iterator[Told]:
        contents = self.contents
        if self._changed and self.first is not None:
            yield StreamRow(
                self.first,
                self._address,
                self.name,
                self.partition,
                contents.lowest,
                contents.highest,
                contents.confirms,
                contents.indexes,
                self.delivered,
                self.connections.last_at_ns,
            )
        clients = self.clients.by_id.items()
        changed = [(name, client) for name, client in clients if client.changed or self._shared_changed]
        if not changed:
            return
        positions = [client.position or 0 for _, client in changed]
        gone = Intervals(contents.gone(0, contents.highest or 0))
        held = contents.confirmed.counts_from(positions)
        for (client_id, client), ahead, passed in zip(changed, held, gone.counts_from(positions), strict=True):
            lag, lost = self._can_read(client, ahead, passed, gone)
            yield ConsumerRow(
                client.where,
                self._address,
                *self._named(client),
                client_id,
                client.saved,
                client.position,
                client.last,
                client.delivered_messages,
                client.redelivered,
                contents.highest,
                lag,
                lost,
                None if lag is None else contents.age(client.position or 0, client.where.arrived_at_ns),
                client.connections,
            )
