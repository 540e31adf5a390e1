"""What a session remembers: open requests, who asks, streams and their addresses, pushes, saved indexes.

All that is held is bounded. Of each table the oldest entry is forgotten when there are more than `MOST_KNOWN`; texts
longer than `MOST_CHARACTERS` are known by their hash (`short`). A rule that rests on something having been absent asks
first whether the table could have forgotten it.

`Memory` is a set of plain tables, without rules: the modules beside it (creates, push_pull, indexes, errors,
undecoded) judge messages by them, and the fast path reads and writes them as arrays.
"""

from __future__ import annotations

import hashlib
from collections import Counter
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
    #: Another address was given for the same name and partition since.
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


class Memory:
    """What one session remembers. `stream_services`, `index_services`: the addresses of the services."""

    def __init__(self, stream_services: Iterable[str], index_services: Iterable[str]) -> None:
        self.roles = {
            **dict.fromkeys(stream_services, Role.STREAM_SERVICE),
            **dict.fromkeys(index_services, Role.INDEX_SERVICE),
        }
        #: How many there were: `creates`, `pushes`, `confirmed`, `pulls`, and messages that were `delivered`.
        self.counts = Counter[str]()
        #: Whose names were used for protocols that have two.
        self.names: set[Names] = set()
        self.requests = Requests()
        self.requesters: dict[str, None] = {}
        self.streams: dict[str, Stream] = {}
        self.addresses: dict[tuple[str, int], str] = {}
        #: By requester and name: how many partitions were asked for, and have all answered.
        self.whole: dict[tuple[str, str], int] = {}
        #: By requester and stream: ids that were saved, and the data's digest of those that were not.
        self.saved: dict[tuple[str, str], SavedPushes] = {}
        self.unsaved: dict[tuple[str, str, int], bytes] = {}
        #: By the address of the index service, client, stream and partition.
        self.keys: dict[tuple[str, str, str, int | None], SavedIndex] = {}
        self.clients: dict[tuple[str, str, int], str] = {}
        #: By stream: its only client; None = it has several.
        self.only_clients: dict[tuple[str, int], str | None] = {}
        self.pulled: dict[str, Intervals] = {}
        #: Requests that an error closed while others were open to its address: by requester, kind and name or id the
        #: address.
        self.refused: dict[tuple[str, str, str | None], str] = {}
        #: How many requests could not be decoded, by requester and what they ask for; "" = not known.
        self.undecoded: dict[tuple[str, str], int] = {}

    def has_room(self, known: Mapping[Any, Any] | None = None) -> bool:
        """Nothing was forgotten of the table `known`; None = of the open requests."""
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

    # Carried state

    def to_json(self) -> dict[str, Any]:
        """What `restore` takes."""
        return {
            "counts": {name: count for name, count in sorted(self.counts.items()) if count},
            "names": sorted(self.names),
            "requests": self.requests.to_json(),
            "requesters": list(self.requesters),
            "streams": [
                [address, stream.name, stream.partition, stream.replaced, stream.highest, stream.confirmed.to_json()]
                for address, stream in self.streams.items()
            ],
            "keys": [
                [*key, known.least, None if known.saved_at is None else known.saved_at.to_json()]
                for key, known in self.keys.items()
            ],
            "saved": [
                [*key, saved.ids.to_json(), None if saved.last is None else [saved.last[0], saved.last[1].hex()]]
                for key, saved in self.saved.items()
            ],
            "unsaved": [[*key, pushed.hex()] for key, pushed in self.unsaved.items()],
            "pulled": [[name, partitions.to_json()] for name, partitions in self.pulled.items()],
            **{name: [[*key, value] for key, value in getattr(self, name).items()] for name in _PLAIN},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `to_json` wrote."""
        self.counts = Counter(state["counts"])
        self.names = {Names(name) for name in state["names"]}
        self.requests = Requests.from_json(state["requests"])
        self.requesters = dict.fromkeys(state["requesters"])
        for address, name, partition, replaced, highest, confirmed in state["streams"]:
            known = Intervals.from_json(confirmed)
            self.streams[address] = Stream(name, partition, replaced, highest, known)
        for target, client, name, partition, least, saved_at in state["keys"]:
            where = None if saved_at is None else Where.from_json(saved_at)
            self.keys[target, client, name, partition] = SavedIndex(least, where)
        for requester, target, ids, last in state["saved"]:
            pushed = None if last is None else (last[0], bytes.fromhex(last[1]))
            self.saved[requester, target] = SavedPushes(Intervals.from_json(ids), pushed)
        for requester, target, number, unsaved in state["unsaved"]:
            self.unsaved[requester, target, number] = bytes.fromhex(unsaved)
        for name, partitions in state["pulled"]:
            self.pulled[name] = Intervals.from_json(partitions)
        for table in _PLAIN:
            getattr(self, table).update({tuple(key): value for *key, value in state[table]})


#: Tables that are carried as they are, with keys of several parts.
_PLAIN: Final = ("addresses", "whole", "clients", "only_clients", "refused", "undecoded")


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
