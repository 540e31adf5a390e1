"""Clients of a stream or a name, as the connections show them on which they pull, save their index and ask for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from wirehouse_codecs.core.intervals import Intervals, Run
from wirehouse_codecs.ockam.correlation.connections import MOST_CONNECTIONS
from wirehouse_codecs.ockam.correlation.events import Got, Moment, Saved, Where, request

#: Connections by which a client is recognised; services, and rises of the answers of each, that it remembers.
MOST_RECENT: Final = 16
#: Clients of a stream that are followed; of more, those that were silent longest are forgotten.
MOST_CLIENTS: Final = 4_096
#: Runs of what was delivered, of all clients of a stream together.
MOST_CLIENT_RUNS: Final = 131_072
#: Characters of a client's name; one that is longer is not followed.
MOST_NAME: Final = 1_024


@dataclass(slots=True)
class Client:
    """Where a client stands, and when it was seen."""

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
        """It speaks, or is spoken to. Whether something was missed there: then that is its first sign of life again."""
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
        """Its record stands at `saved` at least."""
        if saved is not None and (self.saved is None or saved > self.saved):
            self.saved = saved
        if self.position is None or position > self.position:
            self.position = position


@dataclass(slots=True)
class NameClient(Client):
    """A client of a name, and what the index service told it: that outlives the addresses of the name."""

    #: It was told its saved index before.
    answered: bool = False
    #: By who captured it and service, how its answers rose.
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    #: By connection, the highest index that was saved or answered there, which its session compares with later answers.
    own: dict[bytes, int] = field(default_factory=dict)

    def note_own(self, where: Where, index: int) -> None:
        """An index that the session of its connection compares with later answers."""
        key = where.connection_id
        self.own[key] = max(index, self.own.get(key, 0))
        if len(self.own) > MOST_RECENT:
            del self.own[next(iter(self.own))]

    def lowered(self, got: Got, clocks_ns: int) -> int | None:
        """A higher index that the service had answered elsewhere before this GetIndex was sent. On one connection its
        session compares them."""
        index, own = got.index or 0, self.own.get(got.where.connection_id, 0)
        risen = self.answers.setdefault(f"{got.seen_by} {got.service}", [])
        answered_ns, asked_ns = got.where.arrived_at_ns, got.requested_at_ns
        # Where an answer comes before its request, or was held back until then, two clocks tell the time.
        is_sure = asked_ns is not None and asked_ns < answered_ns
        before = None
        if is_sure and asked_ns is not None:
            asked = request(got.where, asked_ns, got.requested_in)
            for answer in reversed(risen):
                if answer.answered.is_before(asked, clocks_ns):
                    before = answer.index if answer.asked_ns < asked_ns else None
                    break
        # What a hole held back may have been answered before the service began anew.
        if index and asked_ns is not None and (not risen or index > risen[-1].index):
            risen.append(Answer(Moment(answered_ns, got.where.capture_id), index, asked_ns))
        del risen[:-MOST_RECENT]
        if len(self.answers) > MOST_RECENT:
            del self.answers[next(iter(self.answers))]
        self.note_own(got.where, index)
        return before if before is not None and before > index >= own else None


@dataclass(frozen=True, slots=True)
class Answer:
    """The index service answered a GetIndex with a higher index than before."""

    answered: Moment
    index: int
    asked_ns: int


@dataclass(slots=True)
class StreamClient(Client):
    """A client of a stream, and what came to it."""

    #: What it resumed from is known.
    resumed: bool = False
    #: It was known by its host and address alone when messages came to it, or the stream by its name alone when it
    #: saved: what it went through isn't judged, as the order of two connections isn't sure, or its pulls aren't known.
    split: bool = False
    #: The highest index that was delivered to it, and what brought messages last.
    last: int | None = None
    brought: Where | None = None
    #: Host and address to which that came; "" = not known.
    puller: str = ""
    delivered: Intervals = field(default_factory=Intervals)
    #: What responses to it went through, from the requested index to the last. Below its floor nothing is judged: that
    #: is what the client resumed from, and then what it saved.
    covered: Intervals = field(default_factory=Intervals)
    delivered_messages: int = 0
    redelivered: int = 0
    #: Messages that were passed over before it saved a higher index.
    lost: int = 0
    #: A row of lag was told of it.
    has_lag: bool = False

    @property
    def runs(self) -> int:
        """How many runs of indexes are held of it."""
        return len(self.delivered) + len(self.covered)

    def resume(self, index: int) -> None:
        """Its first sign of life: what came before isn't judged."""
        if not self.resumed:
            self.resumed = True
            self.covered.forget_below(index)

    def deliver(self, where: Where, requested: int | None, runs: Sequence[tuple[int, int]]) -> None:
        """Messages come to it."""
        self.brought = where
        first, highest = runs[0]
        if len(runs) > 1:
            first, highest = min(first for first, _ in runs), max(last for _, last in runs)
        begin = first if requested is None else requested
        if requested is None:
            # Nor is it known what the response passed over.
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

    def is_after(self, where: Where) -> bool:
        """What is said here came after what was delivered: on one connection, and by one clock. By two, what was held
        back until an answer came is reported with its packet."""
        one, other = self.brought, where
        if one is None or one.connection_id != other.connection_id:
            return False
        return (one.capture_id, one.record_number) != (other.capture_id, other.record_number)

    def saves_for(self, saved: Saved) -> bool:
        """Who saves has the host and the address to which messages came before, in one capture."""
        one, other = self.brought, saved.where
        if one is None or one.capture_id != other.capture_id or one.record_number == other.record_number:
            return False
        return self.puller == saved.asker != ""

    def undelivered(self, confirmed: Intervals, end: int) -> Iterator[Run]:
        """What was confirmed and not delivered, from what it resumed from or saved to before `end`."""
        begin = self.covered.floor
        if not self.delivered.holds(begin, end - 1):
            for run in confirmed.within(begin, end - 1):
                yield from self.delivered.missing(*run)


@dataclass(slots=True)
class StreamClients:
    """The clients of a stream, and to whom of them its messages came."""

    #: The one that was silent longest first.
    by_id: dict[str, StreamClient] = field(default_factory=dict)
    #: By connection, or by host and address, the index after all that came there for an unknown client: below, clients
    #: that are seen there aren't judged.
    unnamed: dict[str, int] = field(default_factory=dict)
    #: Likewise of what came for a client that is known by host and address alone: then others aren't judged. None =
    #: for several.
    guessed: dict[str, tuple[int, str | None]] = field(default_factory=dict)
    #: By host and address the client that saves from there; None = there are several.
    askers: dict[str, str | None] = field(default_factory=dict)
    #: Runs of indexes that are held of all of them.
    runs: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.runs = sum(client.runs for client in self.by_id.values())

    def find(
        self, client_id: str, where: Where, missed: int, stream_name: str | None = None, partition: int | None = None
    ) -> StreamClient | None:
        """The client that speaks, or is spoken to; None = it is not followed."""
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
        if said.asker:
            known = self.askers.get(said.asker, said.client_id)
            self.askers[said.asker] = said.client_id if known == said.client_id else None
            if len(self.askers) > MOST_CLIENTS:
                del self.askers[next(iter(self.askers))]
        return client

    def deliver(
        self, client: StreamClient, where: Where, requested: int | None, runs: Sequence[tuple[int, int]]
    ) -> None:
        """Messages come to a client."""
        held = client.runs
        client.deliver(where, requested, runs)
        self.runs += client.runs - held
        while self.runs > MOST_CLIENT_RUNS:
            self._halve(max(self.by_id.values(), key=attrgetter("runs")))

    def _halve(self, client: StreamClient) -> None:
        held = client.runs
        for intervals in (client.delivered, client.covered):
            intervals.keep(len(intervals) // 2)
        self.runs -= held - client.runs

    def forget(self, client: StreamClient, below: int) -> None:
        """What the client has below an index isn't judged any more."""
        held = client.runs
        client.covered.forget_below(below)
        self.runs += client.runs - held

    def note_unnamed(self, place: str, end: int, client_id: str | None) -> None:
        """Messages before `end` come to a place, and its connection doesn't tell to which client."""
        if client_id is None:
            self.unnamed[place] = max(end, self.unnamed.pop(place, 0))
        else:
            known, owner = self.guessed.pop(place, (0, client_id))
            self.guessed[place] = max(end, known), client_id if owner == client_id else None
        for kept in (self.unnamed, self.guessed):
            if len(kept) > MOST_CONNECTIONS:
                del kept[next(iter(kept))]

    def close(self, connection_id: bytes) -> None:
        """A connection has ended."""
        for kept in (self.unnamed, self.guessed):
            kept.pop(connection_id.hex(), None)
