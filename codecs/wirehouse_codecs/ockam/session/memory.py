"""What a session remembers: open requests, who asks, streams and their addresses, pushes, saved indexes.

All that is held is bounded. Of each table the oldest entry is forgotten when there are more than `MOST_KNOWN`; texts
longer than `MOST_CHARACTERS` are known by their hash (`short`). A rule that says that
something never happened first asks whether the table may have dropped it.

`Memory` is a set of plain tables, without rules: the modules beside it (creates, push_pull, indexes, errors,
undecoded) judge messages by them, and the fast path reads and writes them as arrays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeVar

from wirehouse_codecs.core.intervals import Intervals
from wirehouse_codecs.ockam.session.requests import Request, Requests, Where
from wirehouse_codecs.ockam.wire.messages import Names

#: Requesters, streams, keys of indexes and the like that a session remembers, of each.
MOST_KNOWN: Final = 4096
#: Runs of indexes, request ids and partitions.
MOST_RUNS: Final = 64
#: Partitions of a create that events are made of: its first ones.
MOST_PARTITIONS: Final = 64
#: Characters of a text that is remembered.
MOST_CHARACTERS: Final = 255

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
#: Client, stream and partition.
IndexKey = tuple[str, str, int | None]


class Role(StrEnum):
    """What is at an address."""

    STREAM_SERVICE = "stream service"
    INDEX_SERVICE = "index service"
    STREAM = "stream"
    UNKNOWN = "unknown"


SERVICES: Final = (Role.STREAM_SERVICE, Role.INDEX_SERVICE)


@dataclass(slots=True)
class Stream:
    """A stream at its address."""

    name: str | None
    partition: int
    #: Whether another address was given for the same name and partition since.
    replaced: bool = False
    #: Indexes that were confirmed on this connection.
    highest: int | None = None
    confirmed: Intervals = field(default_factory=lambda: Intervals(most=MOST_RUNS))


@dataclass(slots=True)
class SavedIndex:
    """What a client has at the index service for a stream."""

    #: The answer to a GetIndex that is sent now is at least this; None = nothing was saved or answered.
    least: int | None = None
    saved_at: Where | None = None

    def raise_to(self, index: int) -> None:
        """The service has at least `index`."""
        self.least = index if self.least is None else max(self.least, index)


@dataclass(slots=True)
class SavedPushes:
    """Pushes of a requester to a stream that were saved."""

    ids: Intervals = field(default_factory=lambda: Intervals(most=MOST_RUNS))
    #: Id and digest of the last one, which may be sent again until its confirm has come: until another push.
    last: tuple[int, bytes] | None = None


@dataclass(slots=True)
class Counts:
    """How many there were of each on a connection."""

    creates: int = 0
    pushes: int = 0
    confirmed: int = 0
    pulls: int = 0
    #: Messages.
    delivered: int = 0


@dataclass(slots=True)
class Memory:
    """What one session remembers, and carries from window to window."""

    counts: Counts = field(default_factory=Counts)
    #: Whose names were used for protocols that have two.
    names: set[Names] = field(default_factory=set)
    requests: Requests = field(default_factory=Requests)
    requesters: dict[str, None] = field(default_factory=dict)
    streams: dict[str, Stream] = field(default_factory=dict)
    addresses: dict[tuple[str, int], str] = field(default_factory=dict)
    #: Names and partitions that creates asked for, whatever the answer, and that indexes without a request are about;
    #: and those that index messages were about while no Init of the connection had given an address.
    named: dict[tuple[str, int], None] = field(default_factory=dict)
    unplaced: dict[tuple[str, int], None] = field(default_factory=dict)
    #: By requester and name: how many partitions were asked for, and have all answered.
    whole: dict[tuple[str, str], int] = field(default_factory=dict)
    #: By requester and stream: ids that were saved, and the data's digest of those that were not.
    saved: dict[tuple[str, str], SavedPushes] = field(default_factory=dict)
    unsaved: dict[tuple[str, str, int], bytes] = field(default_factory=dict)
    #: By the address of the index service, client, stream and partition.
    keys: dict[tuple[str, str, str, int | None], SavedIndex] = field(default_factory=dict)
    clients: dict[tuple[str, str, int], str] = field(default_factory=dict)
    #: By stream: its only client; None = it has several.
    only_clients: dict[tuple[str, int], str | None] = field(default_factory=dict)
    pulled: dict[str, Intervals] = field(default_factory=dict)
    #: Requests that an error closed while others were open to its address: by requester, kind and name or id the
    #: address.
    refused: dict[tuple[str, str, str | None], str] = field(default_factory=dict)
    #: How many requests could not be decoded, by requester and what they ask for; "" = not known.
    undecoded: dict[tuple[str, str], int] = field(default_factory=dict)
    #: What is at the addresses that the options name.
    roles: dict[str, Role] = field(default_factory=dict, init=False)

    def serve(self, stream_services: Iterable[str], index_services: Iterable[str]) -> None:
        """The addresses of the services."""
        self.roles |= dict.fromkeys(stream_services, Role.STREAM_SERVICE)
        self.roles |= dict.fromkeys(index_services, Role.INDEX_SERVICE)

    def has_room(self, known: Mapping[Any, Any] | None = None) -> bool:
        """Whether nothing was forgotten of the table `known`; None = of the open requests."""
        return not self.requests.forgotten if known is None else len(known) < MOST_KNOWN

    def saved_index(self, target: str, key: IndexKey) -> SavedIndex:
        """What the index service at `target` has for `key`, made where it isn't known."""
        known = self.keys.get((target, *key))
        if known is None:
            known = SavedIndex()
            remember(self.keys, (target, *key), known)
        return known

    def note_pulled(self, stream: Stream) -> None:
        """Its partition was pulled from."""
        if stream.name is None:
            return
        pulled = self.pulled.get(stream.name)
        if pulled is None:
            pulled = Intervals(most=MOST_RUNS)
            remember(self.pulled, stream.name, pulled)
        pulled.add(stream.partition, stream.partition)

    def note_saved(self, request: Request, number: int, *, is_saved: bool) -> None:
        """The push with id `number` was saved, or was not."""
        pusher = (request.requester, request.target)
        if not is_saved:
            remember(self.unsaved, (*pusher, number), request.digest)
            return
        self.unsaved.pop((*pusher, number), None)
        saved = self.saved.get(pusher)
        if saved is None:
            saved = SavedPushes()
            remember(self.saved, pusher, saved)
        saved.last = None if number in saved.ids else (number, request.digest)
        saved.ids.add(number, number)


def remember(known: dict[K, V], key: K, value: V) -> None:
    """Put something in; of more than MOST_KNOWN the oldest is forgotten."""
    known[key] = value
    if len(known) > MOST_KNOWN:
        del known[next(iter(known))]


def short(text: str | None) -> Any:
    """A text as it is remembered and compared."""
    if text is None or len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[:64]}… {hashlib.sha256(text.encode()).hexdigest()}"
