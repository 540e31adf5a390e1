"""Simulates captures of TCP connections: turns what both sides send into packets. All simulators share it.

A `Conversation` is the script of one connection. Its packets are those of an undisturbed connection between two nearby
hosts (RFC 9293): handshake, segments, delayed ACKs (RFC 5681 section 4.2), timestamps (RFC 7323), FIN or RST.
`disturb` then adds the effects of networks and of capturing, such as reordering and loss. Everything is an iterator:
no connection is held in memory.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import count, takewhile
from operator import attrgetter
from random import Random
from typing import Final, NamedTuple

from wirehouse_codecs.core.errors import OptionError
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket, tcp_packet
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint, other
from wirehouse_codecs.tcp.packets import ACK, FIN, PSH, RST, SYN

#: Payload of a full segment: an Ethernet frame less the headers of IPv4 and TCP and the timestamps option.
SEGMENT_BYTES: Final = 1448
#: Duration of a full segment on a link of 1 Gb/s, the minimum interval between packets of a connection.
PACKET_NS: Final = 12_000
#: Time until the other host answers a SYN or FIN.
ROUND_TRIP_NS: Final = 200_000
#: Data is acknowledged after this time, or with every second segment.
DELAYED_ACK_NS: Final = 40_000_000
SEGMENTS_PER_ACK: Final = 2
FIRST_WINDOW: Final = 64_240
#: The window of later segments, in units of 128 bytes, as the SYN announces.
WINDOW: Final = 502
_WINDOW_SHIFT = 7
_TIMESTAMPS_BYTES = 12
_NS_PER_MS = 1_000_000


class Ending(StrEnum):
    """How a side closes a connection."""

    FIN = "fin"
    RESET = "reset"


class Send(NamedTuple):
    """One side writes `data` to its socket."""

    ts_ns: int
    direction: Direction
    data: bytes


class Close(NamedTuple):
    """One side closes the connection, and the other one too."""

    ts_ns: int
    direction: Direction
    ending: Ending = Ending.FIN


Event = Send | Close


@dataclass(frozen=True, slots=True)
class Conversation:
    """The script of one TCP connection."""

    client: Endpoint
    server: Endpoint
    #: When the client sends its SYN, in nanoseconds since 1970 UTC.
    opened_ns: int
    #: In order of time. An event too early for the connection happens as soon as possible. Nothing follows a Close;
    #: without a Close, the capture ends before the connection.
    events: Iterable[Event]
    #: Initial sequence numbers.
    client_sequence: int = 0
    server_sequence: int = 0
    segment_bytes: int = SEGMENT_BYTES
    #: Packets before this time are not captured.
    captured_from_ns: int = 0
    #: Nor are packets in this time.
    uncaptured_ns: range = range(0)

    def captures(self, ts_ns: int) -> bool:
        """Whether a packet of this time is captured."""
        return ts_ns >= self.captured_from_ns and ts_ns not in self.uncaptured_ns


class Segment(NamedTuple):
    """A TCP segment on the network."""

    ts_ns: int
    direction: Direction
    sequence: int
    acknowledgment: int
    flags: int
    options: bytes
    payload: bytes = b""


def packets(conversation: Conversation, disturbances: Disturbances | None = None) -> Iterator[CapturedPacket]:
    """The captured packets of a conversation, in order of time."""
    sent = segments(conversation)
    if disturbances is not None:
        sent = disturb(sent, disturbances, Random(f"{disturbances.seed} {conversation.client_sequence}"))
    ends = {
        Direction.CLIENT: (conversation.client, conversation.server),
        Direction.SERVER: (conversation.server, conversation.client),
    }
    for segment in sent:
        if not conversation.captures(segment.ts_ns):
            continue
        source, destination = ends[segment.direction]
        data = tcp_packet(
            source,
            destination,
            sequence=segment.sequence,
            acknowledgment=segment.acknowledgment,
            flags=segment.flags,
            window=FIRST_WINDOW if segment.flags & SYN else WINDOW,
            options=segment.options,
            payload=segment.payload,
        )
        yield CapturedPacket(segment.ts_ns, data)


def merge(captures: Iterable[Iterable[CapturedPacket]]) -> Iterator[CapturedPacket]:
    """Merge several captures by time. Each must be in order of time."""
    return heapq.merge(*captures, key=attrgetter("ts_ns"))


def between(captured: Iterable[CapturedPacket], begins_ns: int, ends_ns: int) -> Iterator[CapturedPacket]:
    """The part of a capture from `begins_ns` until before `ends_ns`. Connections may reach beyond it."""
    in_time = takewhile(lambda packet: packet.ts_ns < ends_ns, captured)
    return (packet for packet in in_time if packet.ts_ns >= begins_ns)


def written(conversation: Conversation) -> dict[Direction, bytes]:
    """All captured bytes that each side writes, held in memory."""
    streams = {direction: bytearray() for direction in Direction}
    for event in conversation.events:
        if isinstance(event, Send) and conversation.captures(event.ts_ns):
            streams[event.direction] += event.data
    return {direction: bytes(stream) for direction, stream in streams.items()}


def segments(conversation: Conversation) -> Iterator[Segment]:
    """The segments of both sides in order of time."""
    return _Connection(conversation).segments()


class _Connection:
    """Both ends of a connection: sequence numbers, pending acknowledgments, and data that waits to be sent."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._now_ns = conversation.opened_ns
        #: The sequence number of the next byte of each side.
        self._next = {Direction.CLIENT: conversation.client_sequence, Direction.SERVER: conversation.server_sequence}
        #: Number of segments of each side that aren't acknowledged, and the latest time of their acknowledgment.
        self._unacknowledged = dict.fromkeys(Direction, 0)
        self._due_ns = dict.fromkeys(Direction, 0)
        #: The last timestamp that each side sent.
        self._clock = dict.fromkeys(Direction, 0)
        #: The end of a write, shorter than a segment, which the next write may fill up.
        self._tail: Send | None = None

    def segments(self) -> Iterator[Segment]:
        yield from self._open()
        for event in self._conversation.events:
            yield from self._pass_time(event)
            if isinstance(event, Close):
                yield from self._close(event)
                return
            yield from self._send(event)
        yield from self._flush()
        yield from self._acknowledge(None)

    def _open(self) -> Iterator[Segment]:
        opened_ns = self._now_ns
        yield self._segment(opened_ns, Direction.CLIENT, SYN)
        yield self._segment(opened_ns + ROUND_TRIP_NS, Direction.SERVER, SYN | ACK)
        yield self._segment(self._now_ns, Direction.CLIENT, ACK)

    def _close(self, close: Close) -> Iterator[Segment]:
        if close.ending is Ending.RESET:
            yield self._segment(close.ts_ns, close.direction, RST | ACK)
            return
        yield self._segment(close.ts_ns, close.direction, FIN | ACK)
        yield self._segment(self._now_ns + ROUND_TRIP_NS, other(close.direction), FIN | ACK)
        yield self._segment(self._now_ns, close.direction, ACK)

    def _pass_time(self, event: Event) -> Iterator[Segment]:
        """The segments sent before `event`. A write at the same time, or to a busy link, fills the last segment up."""
        tail = self._tail
        if tail is not None:
            busy_ns = max(self._now_ns, tail.ts_ns)
            if isinstance(event, Close) or event.direction is not tail.direction or event.ts_ns > busy_ns:
                yield from self._flush()
        yield from self._acknowledge(event.ts_ns)

    def _send(self, send: Send) -> Iterator[Segment]:
        tail, size = self._tail, self._conversation.segment_bytes
        data = send.data if tail is None else tail.data + send.data
        whole = len(data) - len(data) % size
        for at in range(0, whole, size):
            yield from self._data(send.ts_ns, send.direction, ACK, data[at : at + size])
        self._tail = send._replace(data=data[whole:]) if whole < len(data) else None

    def _flush(self) -> Iterator[Segment]:
        tail, self._tail = self._tail, None
        if tail is not None:
            yield from self._data(tail.ts_ns, tail.direction, ACK | PSH, tail.data)

    def _data(self, ts_ns: int, direction: Direction, flags: int, payload: bytes) -> Iterator[Segment]:
        yield self._segment(ts_ns, direction, flags, payload)
        self._unacknowledged[direction] += 1
        self._due_ns[direction] = self._now_ns + DELAYED_ACK_NS
        if self._unacknowledged[direction] == SEGMENTS_PER_ACK:
            yield self._segment(self._now_ns, other(direction), ACK)

    def _acknowledge(self, before_ns: int | None) -> Iterator[Segment]:
        """The delayed ACKs due before `before_ns`; all of them if it is None."""
        for direction in sorted(Direction, key=self._due_ns.__getitem__):
            due_ns = self._due_ns[direction]
            if self._unacknowledged[direction] and (before_ns is None or due_ns < before_ns):
                yield self._segment(due_ns, other(direction), ACK)

    def _segment(self, ts_ns: int, direction: Direction, flags: int, payload: bytes = b"") -> Segment:
        peer = other(direction)
        ts_ns = max(self._now_ns, ts_ns)
        self._now_ns = ts_ns + PACKET_NS
        sequence = self._next[direction]
        self._next[direction] = (sequence + len(payload) + bool(flags & (SYN | FIN))) % 2**32
        self._unacknowledged[peer] = 0
        self._clock[direction] = ts_ns // _NS_PER_MS % 2**32
        acknowledgment = self._next[peer] if flags & ACK else 0
        return Segment(ts_ns, direction, sequence, acknowledgment, flags, self._options(direction, flags), payload)

    def _options(self, direction: Direction, flags: int) -> bytes:
        """TCP options: timestamps; with SYN also maximum segment size, SACK permitted and window scale."""
        clock, echo = self._clock[direction], self._clock[other(direction)]
        if not flags & SYN:
            return struct.pack(">BBBBII", 1, 1, 8, 10, clock, echo)
        largest = self._conversation.segment_bytes + _TIMESTAMPS_BYTES
        return struct.pack(">BBHBBBBIIBBBB", 2, 4, largest, 4, 2, 8, 10, clock, echo, 1, 3, 3, _WINDOW_SHIFT)


# Disturbances


@dataclass(frozen=True, slots=True)
class Disturbances:
    """Disturbances of a connection, as shares of its segments with data. The same seed gives the same result.

    No segment is delayed beyond the next data of the other side, because that may be the response to it.
    """

    seed: int = 0
    #: Share of segments that arrive up to `distance` segments later.
    reordered: float = 0.0
    #: Share of segments that are repeated up to `distance` segments later, wholly or only their end.
    repeated: float = 0.0
    #: Share of segments that are missing from the capture, which leaves a hole.
    lost: float = 0.0
    #: Share of segments followed by another one with the same sequence number and different bytes.
    contradicted: float = 0.0
    #: Share of segments followed by a keep-alive (RFC 9293 section 3.8.4), half of which have a byte of garbage, and by
    #: the response to it.
    kept_alive: float = 0.0
    distance: int = 3

    def __post_init__(self) -> None:
        """Raises OptionError for a share or distance out of range."""
        for key in ("reordered", "repeated", "lost", "contradicted", "kept_alive"):
            if not 0 <= getattr(self, key) <= 1:
                raise OptionError(key=key, reason=f"must be from 0 to 1, not {getattr(self, key)}")
        if self.distance < 1:
            raise OptionError(key="distance", reason=f"must be at least 1, not {self.distance}")


def disturb(sent: Iterable[Segment], disturbances: Disturbances, random: Random) -> Iterator[Segment]:
    """`sent` with disturbances, in order of time: a delayed segment gets the time of its new position."""
    now_ns = 0
    for segment in _disturbed(sent, disturbances, random):
        now_ns = max(now_ns, segment.ts_ns)
        yield segment._replace(ts_ns=now_ns)


def _disturbed(sent: Iterable[Segment], disturbances: Disturbances, random: Random) -> Iterator[Segment]:
    #: Segments that wait for their position: at most a few for each of the next `distance` positions.
    waiting: list[tuple[int, int, Segment]] = []
    order = count()
    talking: Direction | None = None
    for position, segment in enumerate(sent):
        turns = bool(segment.payload) and segment.direction is not talking
        if turns or segment.flags & (SYN | FIN | RST):
            yield from _released(waiting)
        if segment.payload:
            talking = segment.direction
            for delay, copy in _copies(segment, disturbances, random):
                heapq.heappush(waiting, (position + delay, next(order), copy))
        else:
            heapq.heappush(waiting, (position, next(order), segment))
        yield from _released(waiting, position)
    yield from _released(waiting)


def _released(waiting: list[tuple[int, int, Segment]], position: int | None = None) -> Iterator[Segment]:
    while waiting and (position is None or waiting[0][0] <= position):
        yield heapq.heappop(waiting)[2]


def _copies(segment: Segment, disturbances: Disturbances, random: Random) -> Iterator[tuple[int, Segment]]:
    """The captured copies of a segment with data, each with the number of positions by which it is delayed."""
    if random.random() < disturbances.lost:
        return
    delay = random.randint(1, disturbances.distance) if random.random() < disturbances.reordered else 0
    yield delay, segment
    if random.random() < disturbances.repeated:
        yield delay + random.randint(1, disturbances.distance), _end_of(segment, random)
    if random.random() < disturbances.contradicted:
        yield delay, segment._replace(payload=bytes(byte ^ 0xFF for byte in segment.payload))
    if random.random() < disturbances.kept_alive:
        for copy in _kept_alive(segment, random):
            yield delay, copy


def _end_of(segment: Segment, random: Random) -> Segment:
    """A retransmission of the whole segment, or of its end."""
    at = random.choice((0, random.randrange(len(segment.payload))))
    return segment._replace(sequence=(segment.sequence + at) % 2**32, payload=segment.payload[at:])


def _kept_alive(segment: Segment, random: Random) -> Iterator[Segment]:
    """A keep-alive, with the sequence number of the last byte sent, and its response, which acknowledges that byte."""
    following = (segment.sequence + len(segment.payload)) % 2**32
    garbage = random.choice((b"", b"\0"))
    yield segment._replace(sequence=(following - 1) % 2**32, flags=ACK, payload=garbage)
    yield segment._replace(
        direction=other(segment.direction),
        sequence=segment.acknowledgment,
        acknowledgment=following,
        flags=ACK,
        payload=b"",
    )
