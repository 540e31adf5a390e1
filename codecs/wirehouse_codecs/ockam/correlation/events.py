"""Events of streams, findings and rows about them, and the keys under which events are folded.

An event is one thing that a connection shows about a stream. log_events.py makes events from the rows of the log, and
streams.py folds them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from wirehouse_codecs.core.intervals import Run
from wirehouse_codecs.core.rules import Rule

#: Maximum number of runs that a row of a hole shows; `messages` counts the messages of all.
MOST_SHOWN: Final = 64
#: Maximum number of names that share an address, each reported once, of addresses of a name, and of captures of a
#: service that show them.
MOST_SHARING: Final = 64


# Events. There are millions of them, and frozen ones take twice the time to create: so these aren't frozen.


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
    """The time at which something arrived, by the clock of its capture."""

    at_ns: int
    capture_id: bytes

    def is_before(self, other: Moment, clocks_ns: int) -> bool:
        """Whether it surely came first.

        The records of one capture are in order. Records of two captures have times of two clocks, which may differ.
        """
        return self.at_ns < other.at_ns - (0 if self.capture_id == other.capture_id else clocks_ns)


def arrival(where: Where) -> Moment:
    """The time at which the message arrived."""
    return Moment(where.arrived_at_ns, where.capture_id)


def request(where: Where, at_ns: int, requested_in: bytes | None) -> Moment:
    """The time at which the request arrived that was answered at `where`."""
    return Moment(at_ns, where.capture_id if requested_in is None else requested_in)


@dataclass(slots=True)
class Created:
    """A create asks for a name. Its connection may get the address in an Init that isn't captured."""

    where: Where


@dataclass(slots=True)
class Init:
    """A create is answered. `anonymous`: whether it asked for no name; None = no create is known."""

    where: Where
    stream_name: str
    partition: int | None
    anonymous: bool | None
    stream_address: str | None = None
    #: Who captured it: several have several clocks.
    seen_by: str = ""
    #: Whether the name had another address before.
    later: bool = False


@dataclass(slots=True)
class Stored:
    """A push is confirmed OK. `pushed_at_ns` is the arrival of the push; None = when it was sent isn't known."""

    where: Where
    index: int
    pushed_at_ns: int | None
    #: The capture of the push; None = that of its answer.
    requested_in: bytes | None = None
    #: Whether no push is known for it though nothing of its connection was missed: it was captured before its push.
    early: bool = False


@dataclass(slots=True)
class Replied:
    """A stream whose name has several addresses confirms a push or answers a pull. Its only key is the name's."""

    where: Where
    stream_address: str
    #: When the request arrived; None = it isn't known.
    requested_at_ns: int | None
    #: See `Init`.
    seen_by: str = ""
    #: See `Stored`.
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
    #: Host and address that pulled; "" = not known. The client that saves from there is the one that pulled.
    asker: str = ""
    #: When the pull arrived; None = it isn't known.
    requested_at_ns: int | None = None
    #: See `Stored`.
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
    #: See `Delivered`.
    missed: int = 0
    asker: str = ""
    #: Whether its connection doesn't show the stream's address: then the name's last address counts.
    guessed: bool = False
    #: Whether another connection of its host lacks bytes, with which messages may have come to it.
    lacks: bool = False


@dataclass(slots=True)
class Got:
    """A client gets the answer to its GetIndex: its saved index. None = the service has no record."""

    where: Where
    client_id: str
    stream_name: str
    partition: int | None
    index: int | None
    #: See `Delivered`.
    missed: int = 0
    #: When the GetIndex arrived; None = it isn't known.
    requested_at_ns: int | None = None
    #: The address that answered.
    service: str = ""
    #: See `Saved`.
    asker: str = ""
    guessed: bool = False
    #: See `Init`.
    seen_by: str = ""
    #: See `Stored`.
    requested_in: bytes | None = None
    #: Whether another connection of its host lacks bytes: an Init for its client, or a SaveIndex from it.
    lacks: bool = False


@dataclass(slots=True)
class OpenPushes:
    """Arrivals of the pushes of a connection to this stream that have no answer at a window's end.

    The event comes when they changed, and before `end_window`.
    """

    connection_id: bytes
    pushes: Sequence[Moment]


@dataclass(slots=True)
class Closed:
    """The connection ended, after all of its other events: pushes that are open at the window's end stay open."""

    connection_id: bytes


@dataclass(slots=True)
class Partial:
    """A connection with the stream lacks bytes. The event comes before whatever the missing bytes may explain.

    It comes after the last message before the hole. If the connection began before the capture, it comes before the
    first message.
    """

    connection_id: bytes


Event = Created | Init | Stored | Replied | Asked | Delivered | Saved | Got | OpenPushes | Closed | Partial


# Results


@dataclass(frozen=True, slots=True)
class Found:
    """A rule that messages break together, at the one that completes it."""

    rule: Rule
    where: Where
    message: str
    #: The stream's address; None = the finding is about a name.
    stream_address: str | None


@dataclass(frozen=True, slots=True)
class Hole:
    """Confirmed messages that a client never received, below the index that it saved. Judged once, when it saves."""

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
    """The state of a stream at a window's end, if it changed in the window."""

    #: Its first message.
    where: Where
    stream_address: str
    #: Name and partition of the first Init; None = none was seen.
    stream_name: str | None
    partition: int | None
    #: The lowest and the highest index that was confirmed.
    first_index: int | None
    last_index: int | None
    #: Number of confirmed pushes, and of their different indexes.
    confirmed: int
    indexes: int
    #: Number of messages in responses to pulls, including repeated ones.
    delivered: int
    last_at_ns: int


@dataclass(frozen=True, slots=True)
class ConsumerRow:
    """The state of a client of a stream at a window's end, if the client or the stream changed in the window."""

    #: The client's last message or answer.
    where: Where
    stream_address: str | None
    stream_name: str | None
    partition: int | None
    client_id: str
    #: The highest index that it saved, or that the index service answered.
    saved: int | None
    #: The next index that it needs by that (wire: 0 and none both mean the beginning); None = not known.
    position: int | None
    #: The highest index that was delivered to it; the number of different ones; the number of repeated messages.
    delivered: int | None
    delivered_messages: int
    redelivered: int
    #: The stream's highest confirmed index.
    latest: int | None
    #: Number of confirmed indexes from `position` on that no pull passed over; None = not known, or not any more.
    lag: int | None
    #: Number of confirmed indexes that a pull passed over before the client processed them, and that never came to it.
    lost: int | None
    #: At the client's last message, the age of the oldest message that `lag` counts; None = not known.
    lag_seconds: float | None
    #: Number of connections on which it was seen.
    connections: int


@dataclass(frozen=True, slots=True)
class LagRow:
    """A change of a client's position in a stream, or of the number of messages that wait for it."""

    #: The cause: `push`, `save`, `pull` or `delete`. The first row of a client under a later address of the stream's
    #: name has `incarnation`.
    cause: str
    #: The message that changed it.
    where: Where
    stream_address: str
    stream_name: str | None
    partition: int | None
    client_id: str
    #: These fields are as in ConsumerRow, after that message.
    saved: int | None
    position: int | None
    delivered: int | None
    latest: int | None
    lag: int | None
    lost: int | None
    lag_seconds: float | None


Told = Found | Hole | StreamRow | ConsumerRow | LagRow


def address_key(stream_address: str) -> str:
    """The key of a stream: the key of all events whose address is known."""
    return json.dumps(["address", stream_address])


def name_key(stream_name: str, partition: int | None) -> str:
    """The key of a name: the key of every Created, Init, Saved, Got and Replied with it, whatever the address.

    All of them except Created and Replied also have the stream's key. Names, and the records of the index service,
    outlive addresses: `create_other_name` and `index_never_saved` are judged here. Rows of clients have no address
    here: if the stream's address isn't known, they are all that is known of a client. A stream without partitions is
    partition 0 of its name.
    """
    return json.dumps(["name", stream_name, partition or 0])


def quoted(text: str) -> str:
    """A name or an address as messages show it."""
    return repr(text if len(text) <= 64 else text[:63] + "…")


def stream_text(name: str, partition: int | None) -> str:
    """A stream as messages show it."""
    return quoted(name) + (f" partition {partition}" if partition else "")


def messages_in(runs: Iterable[Run]) -> int:
    """Number of messages in these runs of indexes."""
    return sum(run.last - run.first + 1 for run in runs)


def runs_text(runs: Sequence[Run]) -> str:
    """The number of messages, and the first and the last of their indexes, as text."""
    count, first, last = messages_in(runs), runs[0].first, runs[-1].last
    return f"index {first}" if count == 1 else f"{count} messages from index {first} to {last}"
