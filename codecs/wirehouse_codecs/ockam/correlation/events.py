"""Events of streams, findings and rows about them, and the keys under which events are folded.

An event is one thing that a connection said of a stream. log_events.py makes events from the rows of the log, and
streams.py folds them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from wirehouse_codecs.core.intervals import Run
from wirehouse_codecs.core.rules import Rule

#: Runs that a row of a hole shows; `messages` counts all.
MOST_SHOWN: Final = 64
#: Names that shared an address, each reported once; addresses of a name, and captures of a service that show them.
MOST_SHARING: Final = 64


# What is taken: by the million, so what is frozen elsewhere is not here, where it takes twice the time to make


class Where(NamedTuple):
    """The place of a message, in the names and the order of the log's columns."""

    connection_id: bytes
    direction: str
    byte_start: int
    byte_end: int
    capture_id: bytes
    record_number: int
    arrived_at_ns: int


class Moment(NamedTuple):
    """When something arrived, by the clock of its capture."""

    at_ns: int
    capture_id: bytes

    def is_before(self, other: Moment, clocks_ns: int) -> bool:
        """It surely came first: the records of one capture are in order, those of two by clocks that may differ."""
        return self.at_ns < other.at_ns - (0 if self.capture_id == other.capture_id else clocks_ns)


def arrival(where: Where) -> Moment:
    """When the message came."""
    return Moment(where.arrived_at_ns, where.capture_id)


def request(where: Where, at_ns: int, requested_in: bytes | None) -> Moment:
    """When the request came that was answered at `where`."""
    return Moment(at_ns, where.capture_id if requested_in is None else requested_in)


@dataclass(slots=True)
class Created:
    """A create asks for a name: its connection may be given the address, in an Init that isn't captured."""

    where: Where


@dataclass(slots=True)
class Init:
    """A create is answered. `anonymous`: it asked for no name; None = no create is known."""

    where: Where
    stream_name: str
    partition: int | None
    anonymous: bool | None
    stream_address: str | None = None
    #: Who captured it: several have several clocks.
    seen_by: str = ""
    #: The name had another address before.
    later: bool = False


@dataclass(slots=True)
class Stored:
    """A push is confirmed OK. `pushed_at_ns` is the arrival of the push; None = when it was sent isn't known."""

    where: Where
    index: int
    pushed_at_ns: int | None
    #: The capture of the push; None = that of its answer.
    requested_in: bytes | None = None
    #: Nothing of its connection was missed, and yet no push is known for it: it was captured before.
    early: bool = False


@dataclass(slots=True)
class Replied:
    """A stream whose name has several addresses confirms a push or answers a pull: it is said under that name alone."""

    where: Where
    stream_address: str
    #: When the request arrived; None = it isn't known.
    requested_at_ns: int | None
    #: As of Init.
    seen_by: str = ""
    #: As of Stored.
    requested_in: bytes | None = None


@dataclass(slots=True)
class Asked:
    """A push or pull goes to an address that no Init of its connection gave, the first one there."""

    where: Where


@dataclass(slots=True)
class Delivered:
    """A pull is answered with messages (intervals.runs_of, in their order)."""

    where: Where
    #: The requested index; None = the request wasn't seen.
    requested: int | None
    runs: Sequence[tuple[int, int]]
    #: The client that pulled; None = not known: then what it went through isn't judged when a client saves there.
    consumer: str | None
    #: How often messages of the connection were missed until then. Where it rose, what came to the client isn't known.
    missed: int = 0
    #: Host and address of the one who pulled; "" = not known. Who saves from there is its client.
    asker: str = ""
    #: When the pull arrived; None = it isn't known.
    requested_at_ns: int | None = None
    #: As of Stored.
    requested_in: bytes | None = None
    early: bool = False


@dataclass(slots=True)
class Saved:
    """A client saves an index."""

    where: Where
    client_id: str
    stream_name: str
    partition: int | None
    index: int
    #: As of Delivered.
    missed: int = 0
    asker: str = ""
    #: Its connection doesn't tell the stream's address: that which was given to the name last is taken for it.
    guessed: bool = False
    #: Another connection of its host lacks bytes, with which messages may have come to it.
    lacks: bool = False


@dataclass(slots=True)
class Got:
    """A client is told its saved index; None = no record."""

    where: Where
    client_id: str
    stream_name: str
    partition: int | None
    index: int | None
    #: As of Delivered.
    missed: int = 0
    #: When the GetIndex arrived; None = it isn't known.
    requested_at_ns: int | None = None
    #: The address that answered.
    service: str = ""
    #: As of Saved.
    asker: str = ""
    guessed: bool = False
    #: As of Init.
    seen_by: str = ""
    #: As of Stored.
    requested_in: bytes | None = None
    #: As of Saved: an Init may have come to its client, or a SaveIndex from it.
    lacks: bool = False


@dataclass(slots=True)
class OpenPushes:
    """When the pushes of a connection to this stream arrived that have no answer at a window's end.

    It comes when they changed, and before `end_window`.
    """

    connection_id: bytes
    pushes: Sequence[Moment]


@dataclass(slots=True)
class Closed:
    """The connection ended, after all that was told of it: pushes that are open at the window's end stay so."""

    connection_id: bytes


@dataclass(slots=True)
class Partial:
    """A connection with the stream lacks bytes: it comes before what it may explain.

    That is after the last message before the hole, or, if the connection began before the capture, before its first
    message.
    """

    connection_id: bytes


Event = Created | Init | Stored | Replied | Asked | Delivered | Saved | Got | OpenPushes | Closed | Partial


# What is told


@dataclass(frozen=True, slots=True)
class Found:
    """A rule that messages break together, at the one that completes it."""

    rule: Rule
    where: Where
    message: str
    #: None = it is found under a name.
    stream_address: str | None


@dataclass(frozen=True, slots=True)
class Hole:
    """Confirmed messages below what a client saved that it never received. Judged once, when it saves."""

    #: `consumer_hole`: no response to it passed over them; `server_gap`: one did, as if they were deleted.
    kind: str
    #: The save.
    where: Where
    stream_address: str | None
    stream_name: str | None
    partition: int | None
    client_id: str
    saved: int
    first_index: int
    last_index: int
    messages: int
    #: The first `MOST_SHOWN` of them.
    runs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class StreamRow:
    """A stream as it stands at a window's end, if it changed there."""

    #: Its first message.
    where: Where
    stream_address: str
    #: Of the first Init; None = none was seen.
    stream_name: str | None
    partition: int | None
    #: The lowest and the highest index that was confirmed.
    first_index: int | None
    last_index: int | None
    #: Pushes that were confirmed, and their different indexes.
    confirmed: int
    indexes: int
    #: Messages in responses to pulls, also those that came again.
    delivered: int
    last_at_ns: int


@dataclass(frozen=True, slots=True)
class ConsumerRow:
    """A client of a stream as both stand at a window's end, if either changed there."""

    #: The client's last message or answer.
    where: Where
    stream_address: str | None
    stream_name: str | None
    partition: int | None
    client_id: str
    #: The highest index that it saved, or was told that it had.
    saved: int | None
    #: The next index that it needs by that (wire: 0 and none both mean the beginning); None = not known.
    position: int | None
    #: The highest index that was delivered to it; how many different ones; how many messages came again.
    delivered: int | None
    delivered_messages: int
    redelivered: int
    #: The stream's highest confirmed index.
    latest: int | None
    #: Confirmed indexes from `position` on that no pull passed over; None = not known, or not any more.
    lag: int | None
    #: Confirmed indexes that a pull passed over before the client processed them, and that were not delivered to it.
    lost: int | None
    #: At the client's last message, the age of the oldest message that `lag` counts; None = not known.
    lag_seconds: float | None
    #: Connections on which it was seen.
    connections: int


@dataclass(frozen=True, slots=True)
class LagRow:
    """A change of where a client of a stream stands, or of how much waits for it."""

    #: What changed it: `push`, `save`, `pull` or `delete`; of the first row of a client under a later address of the
    #: stream's name `incarnation`.
    cause: str
    #: The message that did.
    where: Where
    stream_address: str
    stream_name: str | None
    partition: int | None
    client_id: str
    #: The others as in ConsumerRow, after that message.
    saved: int | None
    position: int | None
    delivered: int | None
    latest: int | None
    lag: int | None
    lost: int | None
    lag_seconds: float | None


Told = Found | Hole | StreamRow | ConsumerRow | LagRow


def address_key(stream_address: str) -> str:
    """The key of a stream: of all that is said of it where its address is known."""
    return json.dumps(["address", stream_address])


def name_key(stream_name: str, partition: int | None) -> str:
    """The key of a name: of every Created, Init, Saved, Got and Replied with it, whatever the address.

    All but Created and Replied have the stream's key beside it. Names, and what the index service has, outlive
    addresses: `create_other_name` and `index_never_saved` are judged here. Rows of clients have no address here; they
    are all that is known of one whose stream's address isn't. A stream without partitions is partition 0 of its name.
    """
    return json.dumps(["name", stream_name, partition or 0])


def quoted(text: str) -> str:
    """A name or an address as messages show it."""
    return repr(text if len(text) <= 64 else text[:63] + "…")


def stream_text(name: str, partition: int | None) -> str:
    """A stream as messages show it."""
    return quoted(name) + (f" partition {partition}" if partition else "")


def messages_in(runs: Iterable[Run]) -> int:
    """How many messages these runs of indexes have."""
    return sum(run.last - run.first + 1 for run in runs)


def runs_text(runs: Sequence[Run]) -> str:
    """How many messages, and the first and the last of their indexes."""
    count, first, last = messages_in(runs), runs[0].first, runs[-1].last
    return f"index {first}" if count == 1 else f"{count} messages from index {first} to {last}"
