"""Clients of a stream or a name, as shown by connections on which they pull, save their index and ask for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from wirehouse_codecs.core.intervals import Intervals, Run
from wirehouse_codecs.ockam.correlation.connections import MOST_CONNECTIONS
from wirehouse_codecs.ockam.correlation.events import Got, Moment, Saved, Where, request

#: Maximum number of connections, of services, and of rises per service that are kept for a client.
MOST_RECENT: Final = 16
#: Maximum number of clients of a stream that are followed; beyond it, those that were silent longest are forgotten.
MOST_CLIENTS: Final = 4_096
#: Maximum number of runs of indexes that are held of all clients of a stream together.
MOST_CLIENT_RUNS: Final = 131_072
#: Maximum number of requesters whose messages wait until they name a client, and of runs of indexes of each.
MOST_UNCLAIMED: Final = 4_096
MOST_UNCLAIMED_RUNS: Final = 32
#: Maximum number of characters of a client's name; a client with a longer one is not followed.
MOST_NAME: Final = 1_024


@dataclass(slots=True)
class Client:
    """A client: its position, and when it was seen."""

    where: Where
    stream_name: str | None = None
    partition: int | None = None
    saved: int | None = None
    position: int | None = None
    connections: int = 0
    #: Connections on which it was seen last, and how often messages had been missed there.
    recent: dict[bytes, int] = field(default_factory=dict)
    changed: bool = field(default=False, init=False)

    def seen(self, where: Where, missed: int) -> bool:
        """Note a message from or to the client. Returns whether messages were missed there since the last one.

        If so, this message is its first sign of life again.
        """
        self.where, self.changed = where, True
        known = self.recent.get(where.connection_id)
        if known is None:
            self.connections += 1
        if missed != known:
            self.recent[where.connection_id] = missed
            if len(self.recent) > MOST_RECENT:
                del self.recent[next(iter(self.recent))]
        return missed > (known or 0)

    def move(self, saved: int | None, position: int) -> None:
        """Raise its saved index to `saved`, and its position to `position`, if they are higher."""
        if saved is not None and (self.saved is None or saved > self.saved):
            self.saved = saved
        if self.position is None or position > self.position:
            self.position = position


@dataclass(slots=True)
class NameClient(Client):
    """A client of a name, and the index service's answers to it: both outlive the addresses of the name."""

    #: Whether the index service answered it before.
    answered: bool = False
    #: How the answers to it rose, by who captured them and service.
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    #: By connection, the highest index that was saved or answered there, which its session compares with later answers.
    own: dict[bytes, int] = field(default_factory=dict)

    def note_own(self, where: Where, index: int) -> None:
        """Note an index that the session of its connection compares with later answers."""
        key = where.connection_id
        self.own[key] = max(index, self.own.get(key, 0))
        if len(self.own) > MOST_RECENT:
            del self.own[next(iter(self.own))]

    def lowered(self, got: Got, clocks_ns: int) -> int | None:
        """A higher index that the service had answered elsewhere before this GetIndex was sent; None = there is none.

        Answers on one connection are compared by its session.
        """
        index, own = got.index or 0, self.own.get(got.where.connection_id, 0)
        risen = self.answers.setdefault(f"{got.seen_by} {got.service}", [])
        answered_ns, asked_ns = got.where.arrived_at_ns, got.requested_at_ns
        # If an answer comes before its request, or was held back until then, the times are of two clocks.
        is_sure = asked_ns is not None and asked_ns < answered_ns
        before = None
        if is_sure and asked_ns is not None:
            asked = request(got.where, asked_ns, got.requested_in)
            for answer in reversed(risen):
                if answer.answered.is_before(asked, clocks_ns):
                    before = answer.index if answer.asked_ns < asked_ns else None
                    break
        # An answer that a hole held back may be from before the service started over.
        if index and asked_ns is not None and (not risen or index > risen[-1].index):
            risen.append(Answer(Moment(answered_ns, got.where.capture_id), index, asked_ns))
        del risen[:-MOST_RECENT]
        if len(self.answers) > MOST_RECENT:
            del self.answers[next(iter(self.answers))]
        self.note_own(got.where, index)
        return before if before is not None and before > index >= own else None


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the index service to a GetIndex, with a higher index than before."""

    answered: Moment
    index: int
    asked_ns: int


@dataclass(slots=True)
class Unclaimed:
    """Messages that came to a requester of a connection that has not named its client yet."""

    delivered: Intervals = field(default_factory=lambda: Intervals(most=MOST_UNCLAIMED_RUNS))
    #: Number of different messages, of repeated ones, and the highest index.
    messages: int = 0
    redelivered: int = 0
    last: int = 0

    def deliver(self, runs: Sequence[tuple[int, int]]) -> None:
        """Note messages that come to it."""
        for first, last in runs:
            new = self.delivered.add(first, last)
            self.messages += new
            self.redelivered += last - first + 1 - new
            self.last = max(self.last, last)


@dataclass(slots=True)
class StreamClient(Client):
    """A client of a stream, and the messages that came to it."""

    #: Whether it is known from which index it resumed.
    resumed: bool = False
    #: Whether it was known by its host and address alone when messages came to it, or the stream by its name alone when
    #: it saved. Then what it went through isn't judged: the order of two connections isn't sure, or its pulls aren't
    #: known.
    split: bool = False
    #: The highest index that was delivered to it, and the place of the response that last brought messages.
    last: int | None = None
    brought: Where | None = None
    #: Host and address to which that response came; "" = not known.
    puller: str = ""
    delivered: Intervals = field(default_factory=Intervals)
    #: Ranges that responses to it went through, each from the requested index to the last. Below its floor nothing is
    #: judged: the floor is what the client resumed from, and then what it saved.
    covered: Intervals = field(default_factory=Intervals)
    delivered_messages: int = 0
    redelivered: int = 0
    #: Messages that were passed over before it saved a higher index.
    lost: int = 0
    #: Whether a row of lag was emitted for it.
    has_lag: bool = False

    @property
    def runs(self) -> int:
        """Number of runs of indexes that are held of it."""
        return len(self.delivered) + len(self.covered)

    def resume(self, index: int) -> None:
        """Note its first sign of life: what came before isn't judged."""
        if not self.resumed:
            self.resumed = True
            self.covered.forget_below(index)

    def deliver(self, where: Where, requested: int | None, runs: Sequence[tuple[int, int]]) -> None:
        """Note messages that come to it."""
        self.brought = where
        first, highest = runs[0]
        if len(runs) > 1:
            first, highest = min(first for first, _ in runs), max(last for _, last in runs)
        begin = first if requested is None else requested
        if requested is None:
            # It isn't known what the response passed over.
            self.resumed = False
        self.resume(begin)
        for first, last in runs:
            new = self.delivered.add(first, last)
            self.delivered_messages += new
            self.redelivered += last - first + 1 - new
            if first < begin:
                self.covered.add(first, last)
        self.covered.add(begin, highest)
        if self.last is None or highest > self.last:
            self.last = highest

    def claim(self, pulled: Unclaimed) -> None:
        """Count messages that came to its requester before that named it. What they went through isn't judged."""
        new = sum(self.delivered.add(first, last) for first, last in pulled.delivered)
        # Messages beyond the bound of runs count as different ones, as they did.
        held = pulled.delivered.count
        self.delivered_messages += pulled.messages - held + new
        self.redelivered += pulled.redelivered + held - new
        if self.last is None or pulled.last > self.last:
            self.last = pulled.last

    def is_after(self, where: Where) -> bool:
        """Whether a message at `where` came after the last delivered ones: on one connection, and by one clock.

        With two clocks, messages that were held back until an answer came have the answer's packet.
        """
        one, other = self.brought, where
        if one is None or one.connection_id != other.connection_id:
            return False
        return (one.capture_id, one.record_number) != (other.capture_id, other.record_number)

    def saves_for(self, saved: Saved) -> bool:
        """Whether the client that saves has the host and address to which messages came before, in one capture."""
        one, other = self.brought, saved.where
        if one is None or one.capture_id != other.capture_id or one.record_number == other.record_number:
            return False
        return self.puller == saved.asker != ""

    def undelivered(self, confirmed: Intervals, end: int) -> Iterator[Run]:
        """Runs that were confirmed and not delivered: from the index that it resumed from or saved, up to `end`."""
        begin = self.covered.floor
        if not self.delivered.holds(begin, end - 1):
            for run in confirmed.within(begin, end - 1):
                yield from self.delivered.missing(*run)


@dataclass(slots=True)
class StreamClients:
    """The clients of a stream, and to which of them its messages came."""

    #: Clients by their ids; the one that was silent longest comes first.
    by_id: dict[str, StreamClient] = field(default_factory=dict)
    #: By connection, or by host and address, the index after all that came there for an unknown client. Below it,
    #: clients that are seen there aren't judged.
    unnamed: dict[str, int] = field(default_factory=dict)
    #: The same for messages to a client that is known by host and address alone. Below the index, other clients aren't
    #: judged. None = the messages were for several clients.
    guessed: dict[str, tuple[int, str | None]] = field(default_factory=dict)
    #: By connection, and host and address, what came there before any client was named from that address.
    unclaimed: dict[tuple[bytes, str], Unclaimed] = field(default_factory=dict)
    #: By host and address, the client that saves from there; None = there are several.
    askers: dict[str, str | None] = field(default_factory=dict)
    #: Number of runs of indexes that are held of all of them.
    runs: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.runs = sum(client.runs for client in self.by_id.values())

    def find(
        self, client_id: str, where: Where, missed: int, stream_name: str | None = None, partition: int | None = None
    ) -> StreamClient | None:
        """The client that sends or gets a message; None = it is not followed."""
        client = self.by_id.pop(client_id, None)
        if client is None:
            if len(client_id) > MOST_NAME:
                return None
            client = StreamClient(where)
        self.by_id[client_id] = client
        if len(self.by_id) > MOST_CLIENTS:
            self.runs -= self.by_id.pop(next(iter(self.by_id))).runs
        if client.stream_name is None and stream_name is not None:
            client.stream_name, client.partition = stream_name[:MOST_NAME], partition
        if client.seen(where, missed):
            client.resumed = False
        return client

    def find_named(self, said: Saved | Got) -> StreamClient | None:
        """The client that an index message names; None = it is not followed."""
        client = self.find(said.client_id, said.where, said.missed, said.stream_name, said.partition)
        if client is None:
            return None
        if self.unnamed or self.guessed:
            for place in (said.where.connection_id.hex(), said.asker):
                self.forget(client, self.unnamed.get(place, 0))
                end, owner = self.guessed.get(place, (0, None))
                if owner != said.client_id:
                    self.forget(client, end)
        client.split = client.split or said.guessed
        if self.unclaimed:
            self._claim(client, said)
        if said.asker:
            known = self.askers.get(said.asker, said.client_id)
            self.askers[said.asker] = said.client_id if known == said.client_id else None
            if len(self.askers) > MOST_CLIENTS:
                del self.askers[next(iter(self.askers))]
        return client

    def deliver(
        self, client: StreamClient, where: Where, requested: int | None, runs: Sequence[tuple[int, int]]
    ) -> None:
        """Note messages that come to a client."""
        held = client.runs
        client.deliver(where, requested, runs)
        self.runs += client.runs - held
        self._bound_runs()

    def _bound_runs(self) -> None:
        while self.runs > MOST_CLIENT_RUNS:
            self._halve(max(self.by_id.values(), key=attrgetter("runs")))

    def keep_unclaimed(self, where: Where, asker: str, runs: Sequence[tuple[int, int]]) -> None:
        """Note messages to a requester from whose host and address no client was named yet.

        If there are too many such requesters, the first is dropped.
        """
        if not asker or asker in self.askers:
            return
        self.unclaimed.setdefault((where.connection_id, asker), Unclaimed()).deliver(runs)
        if len(self.unclaimed) > MOST_UNCLAIMED:
            del self.unclaimed[next(iter(self.unclaimed))]

    def _claim(self, client: StreamClient, said: Saved | Got) -> None:
        """Count what came to this requester of the connection before for the client that it names now."""
        pulled = self.unclaimed.pop((said.where.connection_id, said.asker), None)
        if pulled is None:
            return
        held = client.runs
        client.claim(pulled)
        self.runs += client.runs - held
        self._bound_runs()

    def _halve(self, client: StreamClient) -> None:
        held = client.runs
        for intervals in (client.delivered, client.covered):
            intervals.keep(len(intervals) // 2)
        self.runs -= held - client.runs

    def forget(self, client: StreamClient, below: int) -> None:
        """Stop judging what the client has below an index."""
        held = client.runs
        client.covered.forget_below(below)
        self.runs += client.runs - held

    def note_unnamed(self, place: str, end: int, client_id: str | None) -> None:
        """Note messages before `end` that come to `place`: their connection doesn't show to which client.

        `client_id` is the client that is known by host and address alone; None = not known.
        """
        if client_id is None:
            self.unnamed[place] = max(end, self.unnamed.pop(place, 0))
        else:
            known, owner = self.guessed.pop(place, (0, client_id))
            self.guessed[place] = max(end, known), client_id if owner == client_id else None
        for kept in (self.unnamed, self.guessed):
            if len(kept) > MOST_CONNECTIONS:
                del kept[next(iter(kept))]

    def close(self, connection_id: bytes) -> None:
        """Forget a connection that has ended."""
        for key in [key for key in self.unclaimed if key[0] == connection_id]:
            del self.unclaimed[key]
        for kept in (self.unnamed, self.guessed):
            kept.pop(connection_id.hex(), None)
