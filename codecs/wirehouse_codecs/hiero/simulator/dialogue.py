"""Simulated connections with a block node, and the messages of both sides on their calls.

A `Stage` is where all of it happens, one thing after the other; a `Line` is a connection and a `Talk` a `Call` on one.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Final, Protocol, Self

from wirehouse_codecs.hiero.log.call_rows import CORRELATION_ID
from wirehouse_codecs.hiero.profiles import (
    BEHIND_CODE,
    DUPLICATE_CODE,
    OPEN,
    PROFILES,
    PUBLISHER_CODES,
    Profile,
    Service,
)
from wirehouse_codecs.hiero.simulator.http2_peer import Peer
from wirehouse_codecs.hiero.simulator.ledger import Block
from wirehouse_codecs.hiero.wire.http2.frames import FRAME_BYTES
from wirehouse_codecs.hiero.wire.messages import (
    Acknowledgement,
    BlockEnd,
    BlockItems,
    EndOfStream,
    Message,
    NodeBehind,
    PublisherEndStream,
    ResendBlock,
    ServerStatus,
    ServerStatusRequest,
    SkipBlock,
    SubscribeRequest,
    SubscribeStatus,
    encode,
)
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket
from wirehouse_codecs.simulate.script import (
    PACKET_NS,
    ROUND_TRIP_NS,
    SEGMENT_BYTES,
    Close,
    Conversation,
    Disturbances,
    Ending,
    Event,
    Send,
    packets,
)
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint, other

if TYPE_CHECKING:
    from wirehouse_codecs.hiero.simulator.simulator import SimulatorConfig

NS_PER_MS: Final = 1_000_000
#: Time between two messages.
LATENCY_NS: Final = 100_000
C, S = Direction.CLIENT, Direction.SERVER
#: Clients' ports are above those of nodes, so that the sides are known also in a capture without handshakes.
FIRST_PORT: Final = 49_152
LAST_PORT: Final = 65_535
MIXED: Final = "mixed"
IDENTITY: Final = "identity"
ENCODINGS: Final = (IDENTITY, "gzip", "zstd", "snappy", "deflate")
#: The window that each side gives the other at the start, and the number of received bytes after which it gives more.
_WINDOW: Final = 1 << 30
_ROOM_BYTES: Final = 1 << 16
_INITIAL_WINDOW_SIZE: Final = 4
_MAX_CONCURRENT_STREAMS: Final = 3


@dataclass(frozen=True, slots=True)
class Manner:
    """How a client and its node write HTTP/2."""

    user_agent: str
    data_bytes: int = FRAME_BYTES
    block_bytes: int = FRAME_BYTES
    padding: int | None = None
    priority: bool = False
    ping: bool = False


MANNERS: Final = (
    Manner("pbj-grpc-client"),
    Manner("grpc-java-netty/1.70", padding=7, data_bytes=4096),
    Manner("grpc-go/1.71", block_bytes=40, priority=True, ping=True),
    Manner("grpc-python/1.85", data_bytes=1000),
)


class Wire(Protocol):
    """What a talk is carried by."""

    peers: dict[Direction, Peer]
    profile: Profile

    def say(self, side: Direction, data: bytes) -> object:
        """One side writes `data`."""


class Call:
    """One call. Each method sends one message, and returns the call."""

    def __init__(self, wire: Wire, service: Service, stream: int) -> None:
        self.wire, self.service, self.profile, self.stream = wire, service, wire.profile, stream
        self._answered = False

    def client(self, *messages: Message | bytes) -> Self:
        """The client sends messages."""
        return self._send(C, messages)

    def server(self, *messages: Message | bytes) -> Self:
        """The server sends messages, behind its headers."""
        self.answer()
        return self._send(S, messages)

    def answer(self) -> Self:
        """The server's headers, once."""
        if not self._answered:
            self._answered = True
            self.wire.say(S, self.wire.peers[S].response(self.stream))
        return self

    def _send(self, side: Direction, messages: Iterable[Message | bytes]) -> Self:
        for message in messages:
            data = message if isinstance(message, bytes) else encode(message, self.service, side, self.profile)
            self.wire.say(side, self.wire.peers[side].messages(self.stream, data))
        return self

    # Publishers

    def block_end(self, number: int) -> Self:
        """BlockEnd, in versions that have it."""
        return self.client(BlockEnd(number)) if self.profile.block_end else self

    def end_stream(self, code: str, earliest: int, latest: int) -> Self:
        """The publisher's EndStream, which the oldest version lacks."""
        if self.profile.one_item:
            return self
        codes = {name: number for number, name in PUBLISHER_CODES.items()}
        return self.client(PublisherEndStream(codes[code], earliest, latest))

    def half_close(self) -> Self:
        """The client has sent its last message."""
        self.wire.say(C, self.wire.peers[C].data(self.stream, b"", end=True))
        return self

    def cancel(self) -> Self:
        """The client ends the call at once."""
        self.wire.say(C, self.wire.peers[C].reset(self.stream))
        return self

    # Nodes

    def ack(self, *numbers: int, root: bytes = b"") -> Self:
        """Blocks are verified and stored."""
        fields = self.profile.acknowledgement_fields
        root_sent, exists = None if fields < 2 else root, None if fields < 3 else False
        return self.server(*(Acknowledgement(number, root_sent, exists) for number in numbers))

    def exists(self, number: int) -> Self:
        """The duplicate answer of the older API."""
        return self.server(Acknowledgement(number, b"", True))

    def behind(self, number: int) -> Self:
        """Behind, in the profile's layout."""
        return self.server(NodeBehind(number)) if self.profile.name == "B" else self.end(BEHIND_CODE, number)

    def duplicate(self, number: int) -> Self:
        """The duplicate answer, in the profile's layout."""
        ends = DUPLICATE_CODE in self.profile.end_codes.values()
        return self.end(DUPLICATE_CODE, number) if ends else self.exists(number)

    def skip(self, number: int) -> Self:
        """SkipBlock."""
        return self.server(SkipBlock(number))

    def resend(self, number: int) -> Self:
        """ResendBlock."""
        return self.server(ResendBlock(number))

    def end(self, code: str, number: int = 0) -> Self:
        """The node's EndOfStream."""
        codes = {name: code for code, name in self.profile.end_codes.items()}
        return self.server(EndOfStream(codes[code], number))

    def trailers(self, status: int = 0) -> Self:
        """The status that ends the call."""
        self.answer()
        self.wire.say(S, self.wire.peers[S].trailers(self.stream, status))
        return self

    def reset(self) -> Self:
        """The node ends the call at once."""
        self.wire.say(S, self.wire.peers[S].reset(self.stream))
        return self

    # Subscribers

    def subscribe(self, start: int, end: int | None = None) -> Self:
        """Blocks from `start` on are asked for; without an end, all that come."""
        new = self.profile.new
        last = (OPEN if new else 0) if end is None else end
        return self.client(SubscribeRequest(start, last, None if new else False))

    def delivered(self, number: int) -> Self:
        """Send a subscriber BlockEnd: a block is complete."""
        return self.server(BlockEnd(number)) if self.profile.block_end else self

    def status(self, code: str) -> Self:
        """The end of a subscription."""
        codes = {name: code for code, name in self.profile.subscribe_codes.items()}
        return self.server(SubscribeStatus(codes[code]))


class Talk(Call):
    """A call on which blocks are sent as they are made."""

    def __init__(self, wire: Wire, service: Service, metadata: Iterable[tuple[str, str]] = ()) -> None:
        stream, request = wire.peers[C].request(wire.profile.path(service), metadata)
        super().__init__(wire, service, stream)
        wire.say(C, request)

    def sets(self, sets: Iterable[bytes]) -> Talk:
        """Items of a block."""
        return self.client(*map(BlockItems, sets))

    def header(self, block: Block) -> Talk:
        """A block is offered."""
        return self.sets(block.opening)

    def items(self, block: Block) -> Talk:
        """All between the header and the proof."""
        return self.sets(block.middle)

    def proof(self, block: Block) -> Talk:
        """The end of a block."""
        return self.sets(block.closing)

    def rest(self, block: Block) -> Talk:
        """All but the header."""
        return self.items(block).proof(block).block_end(block.number)

    def block(self, block: Block) -> Talk:
        """A whole block."""
        return self.header(block).rest(block)

    def deliver(self, block: Block) -> Talk:
        """A subscriber gets a block."""
        return self.forward((*block.opening, *block.middle, *block.closing)).delivered(block.number)

    def forward(self, sets: Iterable[bytes]) -> Talk:
        """A subscriber gets items."""
        return self.server(*map(BlockItems, sets))

    def server_status(self, first: int, last: int) -> Talk:
        """A question for the node's status, and the answer."""
        self.client(ServerStatusRequest()).half_close()
        if self.profile.new:
            return self.server(ServerStatus(first, last, next_expected_block=last + 1))
        return self.server(ServerStatus(first, last, version=b""))


class Line:
    """A connection. `events` takes what is sent on it, while more is sent."""

    def __init__(self, stage: Stage, client: Endpoint, node: Endpoint, manner: int) -> None:
        self.stage, self.client, self.node, self.profile = stage, client, node, stage.profile
        self.opened_ns = stage.now_ns
        self.queue: deque[Event] = deque()
        self.closed = False
        chosen = MANNERS[manner % len(MANNERS)]
        encoding = ENCODINGS[manner % len(ENCODINGS)] if stage.config.encoding == MIXED else stage.config.encoding
        self.peers = {
            side: Peer(
                side,
                authority=f"{node.address}:{node.port}",
                user_agent=chosen.user_agent,
                encoding=None if encoding == IDENTITY else encoding,
                data_bytes=chosen.data_bytes,
                block_bytes=chosen.block_bytes,
                padding=chosen.padding,
                priority=chosen.priority and side is C,
            )
            for side in Direction
        }
        self._ping = chosen.ping
        self._room = dict.fromkeys(Direction, 0)
        stage.pass_time(3 * ROUND_TRIP_NS)
        for side in Direction:
            settings = {_INITIAL_WINDOW_SIZE: _WINDOW} | ({_MAX_CONCURRENT_STREAMS: 100} if side is S else {})
            self._write(side, self.peers[side].start(settings) + self.peers[side].window_update(0, _WINDOW))
        for side in Direction:
            self._write(side, self.peers[side].acknowledge_settings())

    def say(self, side: Direction, data: bytes) -> None:
        """One side writes `data`; the other gives it more room when much came."""
        self._write(side, data)
        self._room[side] += len(data)
        if self._room[side] >= _ROOM_BYTES:
            came, self._room[side] = self._room[side], 0
            listener = other(side)
            self._write(listener, self.peers[listener].window_update(0, came))
            if self._ping:
                self._write(listener, self.peers[listener].ping())
                self._write(side, self.peers[side].ping(answer=True))

    def call(self, service: Service, metadata: Iterable[tuple[str, str]] = ()) -> Talk:
        """A call on the connection."""
        return Talk(self, service, metadata)

    def publish(self, name: str, attempt: int) -> Talk:
        """A publisher's call."""
        return self.call(Service.PUBLISH, [(CORRELATION_ID, f"{name}-STR{attempt}")])

    def go_away(self) -> None:
        """The node takes no further call."""
        self._write(S, self.peers[S].go_away(1))

    def close(self, side: Direction = C, ending: Ending = Ending.FIN) -> None:
        """One side closes the connection."""
        if not self.closed:
            self.closed = True
            self.stage.pass_time(LATENCY_NS)
            self.queue.append(Close(self.stage.now_ns, side, ending))
            self.stage.pass_time(2 * ROUND_TRIP_NS)

    def _write(self, side: Direction, data: bytes) -> None:
        self.stage.pass_time(LATENCY_NS)
        self.queue.append(Send(self.stage.now_ns, side, data))
        # Until it is on the link, with its ACKs.
        self.stage.pass_time(2 * PACKET_NS * -(-len(data) // SEGMENT_BYTES))

    def conversation(self) -> Conversation:
        """The connection as it is captured."""
        random = Random(f"{self.stage.config.seed} {self.client} {self.opened_ns}")
        sequences = random.getrandbits(32), random.getrandbits(32)
        return Conversation(self.client, self.node, self.opened_ns, self._events(), *sequences)

    def _events(self) -> Iterator[Event]:
        while True:
            while self.queue:
                yield self.queue.popleft()
            if self.closed or not (self.stage.advance() or self.queue):
                return


class Client:
    """A host that calls nodes."""

    def __init__(self, stage: Stage, address: str, manner: int) -> None:
        self.stage, self.address, self.manner = stage, address, manner
        self._port = FIRST_PORT + manner * 7 % 10_000

    def connect(self, node: Endpoint) -> Line:
        """A new connection."""
        self._port = self._port + 1 if self._port < LAST_PORT else FIRST_PORT
        line = Line(self.stage, Endpoint(self.address, self._port), node, self.manner)
        self.stage.opened.append(line)
        return line


class Stage:
    """Where clients and nodes talk. Messages are sent one after the other, each when the one before is on the link."""

    def __init__(self, config: SimulatorConfig) -> None:
        self.config, self.profile = config, PROFILES[config.profile]
        self.now_ns = config.start_time_ms * NS_PER_MS
        #: Connections that nobody has taken yet.
        self.opened: deque[Line] = deque()

    def advance(self) -> bool:
        """Send the next thing; False = all was sent."""
        return False

    def pass_time(self, ns: int) -> None:
        """Send nothing for a time."""
        self.now_ns += ns

    def conversations(self) -> Iterator[Conversation]:
        """All connections as they were opened; what the others send is held while one is read."""
        while self.opened or self.advance() or self.opened:
            while self.opened:
                yield self.opened.popleft().conversation()

    def captured(self, disturbances: Disturbances | None = None) -> Iterator[CapturedPacket]:
        """The packets of all connections in order of time. What is held is what was sent while one was silent."""
        heads: list[tuple[int, int, CapturedPacket, Iterator[CapturedPacket]]] = []
        order = count()

        def take(source: Iterator[CapturedPacket]) -> None:
            packet = next(source, None)
            if packet is not None:
                heapq.heappush(heads, (packet.ts_ns, next(order), packet, source))

        while True:
            while self.opened:
                take(packets(self.opened.popleft().conversation(), disturbances))
            # A connection that isn't open yet begins now at the earliest.
            if (not heads or heads[0][0] > self.now_ns) and (self.advance() or self.opened):
                continue
            if not heads:
                return
            _, _, packet, source = heapq.heappop(heads)
            yield packet
            take(source)
