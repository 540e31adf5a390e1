"""Random networks of Ockam clients and a service that keep to the protocol, as one tap sees them, and what is true.

Clients use one connection for everything, one for each service, or any of several. They crash and come back; the
service restarts, deletes messages, leaves indexes out and refuses pushes. Packets are late, lost on their way and sent
again. Each host acknowledges what it had received when it sent a packet. `true` remembers all that was said.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from tests.codecs.ockam.wire.framing import framed
from wirehouse_codecs.ockam.wire.messages import (
    CreatePartitionedRequest,
    CreatePartitionedResponse,
    CreateRequest,
    CreateResponse,
    IndexGet,
    IndexResponse,
    IndexSave,
    Message,
    Names,
    PullRequest,
    PullResponse,
    PushRequest,
    PushResponse,
    Status,
    StreamMessage,
)
from wirehouse_codecs.ockam.wire.routed import Envelope
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket, tcp_packet
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.packets import ACK, FIN, PSH, RST, SYN

PORT = 4000
MS = 10**6
START_NS = 1_700_000_000 * 10**9
C, S = Direction.CLIENT, Direction.SERVER
STREAMS, INDEXES = "stream", "stream_index"


@dataclass
class Said:
    """What was said of one stream: an incarnation of a name and partition."""

    confirms: list[int] = field(default_factory=list)
    #: By client: what came to it, and what it saved or was told.
    came: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    saved: dict[str, int] = field(default_factory=dict)


@dataclass
class Stream:
    """A stream at the service."""

    address: str
    stored: list[StreamMessage] = field(default_factory=list)
    next: int = 0


class Connection:
    """A TCP connection, as the tap sees its packets: each message is sent as soon as it can be."""

    def __init__(self, network: Network, host: str, asks: Client) -> None:
        network.ports += 1
        self.network, self.asks = network, asks
        self.client, self.server = Endpoint(host, network.ports), Endpoint("10.9.0.9", PORT)
        random = network.random
        #: How long packets take to the tap and from there to the service.
        self.near_ns, self.far_ns = (random.choice((0, 1, 5, 20)) * MS // 2 for _ in range(2))
        self.sequence = {side: random.randrange(2**32) for side in (C, S)}
        self.sent = dict.fromkeys((C, S), 1)
        self.received = dict.fromkeys((C, S), 1)
        self.last_ns = dict.fromkeys((C, S), 0)
        self.open = True
        self.first = True
        self._put(C, SYN, network.now_ns, b"", 0)
        round_trip_ns = 2 * (self.near_ns + self.far_ns)
        self._put(S, SYN | ACK, network.now_ns + round_trip_ns // 2, b"", 0)
        self._put(C, ACK, network.now_ns + round_trip_ns, b"", 1)
        self.ready_ns = network.now_ns + round_trip_ns

    def _put(self, side: Direction, flags: int, at_ns: int, payload: bytes, sequence: int, acked: int = 1) -> None:
        """A packet leaves at `at_ns`."""
        source, to = (self.client, self.server) if side is C else (self.server, self.client)
        other = S if side is C else C
        acknowledgment = 0 if flags == SYN else (self.sequence[other] + acked) % 2**32
        number = (self.sequence[side] + sequence) % 2**32
        data = tcp_packet(
            source, to, sequence=number, acknowledgment=acknowledgment, flags=flags, window=65_000, payload=payload
        )
        self.network.packets.append(CapturedPacket(at_ns + (self.near_ns if side is C else self.far_ns), data))

    def say(self, side: Direction, message: Message, to: str, back: str) -> None:
        """A side sends a message; it comes to the other in the order in which they were sent."""
        if not self.open:
            return
        network, random = self.network, self.network.random
        self._note(message, back)
        data = framed(message, to, back, network.envelope, network.names)
        if self.first and network.envelope is Envelope.CBOR32 and side is C:
            data = b"\1" + data
        if self.sent[S] == 1 and network.envelope is Envelope.CBOR32 and side is S:
            data = b"\1" + data
        self.first = self.first and side is S
        now_ns = max(network.now_ns, self.ready_ns)
        arrives_ns = self.last_ns[side]
        while data:
            size = random.choice((len(data), len(data), 1 + random.randrange(len(data))))
            part, data = data[:size], data[size:]
            lost = network.lost and random.random() < network.lost
            at_ns = now_ns + (random.choice((20, 200)) * MS if lost else 0)
            self._put(side, ACK | PSH, at_ns, part, self.sent[side], self.received[side])
            self.sent[side] += len(part)
            arrives_ns = max(arrives_ns, at_ns + self.near_ns + self.far_ns)
        self.last_ns[side] = arrives_ns
        end = self.sent[side]
        network.at(arrives_ns, lambda: self._come(side, end, message, to, back))

    def _note(self, message: Message, back: str) -> None:
        said, name = self.network.said, self.asks.name
        match message:
            case PushResponse(status=Status.OK, index=index):
                said[back].confirms.append(index)
            case PullResponse(messages=messages):
                said[back].came[name] += [one.index for one in messages]
            case IndexSave(index=index) | IndexResponse(index=int(index)):
                saved = said[self.asks.address].saved
                saved[name] = max(index, saved.get(name, 0))

    def _come(self, side: Direction, end: int, message: Message, to: str, back: str) -> None:
        if not self.open:
            return
        other = S if side is C else C
        self.received[other] = max(self.received[other], end)
        if self.network.random.random() < 0.3:
            self._put(other, ACK, self.network.now_ns, b"", self.sent[other], self.received[other])
        if side is C:
            self.network.service.take(self, message, to, back)
        else:
            self.asks.hear(self, message, back)

    def close(self, side: Direction, *, reset: bool) -> None:
        """A side ends the connection; what is on its way comes to nobody."""
        if not self.open:
            return
        network = self.network
        now_ns = max(network.now_ns, self.ready_ns, self.last_ns[side])
        self._put(side, (RST if reset else FIN) | ACK, now_ns, b"", self.sent[side], self.received[side])
        if reset:
            self.open = False
            return
        # The service answers what it was asked, and then closes too.
        arrives_ns = now_ns + self.near_ns + self.far_ns
        network.at(max(arrives_ns, *network.service.free_ns.values(), 0) + 50 * MS, self._end)

    def _end(self) -> None:
        if not self.open:
            return
        self.open = False
        now_ns = max(self.network.now_ns, self.last_ns[S])
        self._put(S, FIN | ACK, now_ns, b"", self.sent[S], self.sent[C] + 1)
        later_ns = now_ns + self.near_ns + self.far_ns
        self._put(C, ACK, later_ns, b"", self.sent[C] + 1, self.sent[S] + 1)


class Service:
    """Streams and saved indexes. A worker answers one request after another."""

    def __init__(self, network: Network) -> None:
        self.network, self.incarnation = network, 0
        self.streams: dict[tuple[str, int], Stream] = {}
        self.by_address: dict[str, Stream] = {}
        self.indexes: dict[tuple[str, str, int], int] = {}
        self.free_ns: dict[str, int] = defaultdict(int)

    def restart(self) -> None:
        """All begins anew; maybe the saved indexes too."""
        self.incarnation += 1
        self.streams.clear()
        self.by_address.clear()
        if self.network.random.random() < 0.5:
            self.indexes.clear()

    def take(self, connection: Connection, message: Message, to: str, back: str) -> None:
        network = self.network
        takes_ns = network.random.choice((0, 0, 1, 10)) * MS // 4
        self.free_ns[to] = max(network.now_ns, self.free_ns[to]) + takes_ns
        incarnation = self.incarnation

        def work() -> None:
            if incarnation == self.incarnation:
                self._work(connection, message, to, back)

        network.at(self.free_ns[to], work)

    def _work(self, connection: Connection, message: Message, to: str, back: str) -> None:
        match message:
            case CreateRequest(stream_name=str(name)):
                stream = self._stream(name, None)
                connection.say(S, CreateResponse(name), back, stream.address)
            case CreatePartitionedRequest(stream_name=str(name), partitions=count):
                for at in self.network.random.sample(range(count), count):
                    stream = self._stream(name, at)
                    connection.say(S, CreatePartitionedResponse(name, at), back, stream.address)
            case PushRequest(request_id=number, data=data):
                self._push(connection, self.by_address[to], number, data, back)
            case PullRequest(request_id=number, index=index, limit=limit):
                stream = self.by_address[to]
                found = [one for one in stream.stored if one.index >= index][:limit]
                connection.say(S, PullResponse(number, tuple(found)), back, to)
            case IndexGet(client_id=client, stream_name=name, partition=partition):
                known = self.indexes.get((client, name, partition or 0), 0 if self.network.creates else None)
                connection.say(S, IndexResponse(client, name, known, partition), back, to)
            case IndexSave(client_id=client, stream_name=name, partition=partition, index=index):
                key = (client, name, partition or 0)
                self.indexes[key] = max(index, self.indexes.get(key, 0))

    def _stream(self, name: str, partition: int | None) -> Stream:
        key = (name, partition or 0)
        if key not in self.streams:
            address = f"{name}-{partition or 0}-{self.incarnation}"
            self.network.said[address] = Said()
            self.streams[key] = self.by_address[address] = Stream(address)
        return self.streams[key]

    def _push(self, connection: Connection, stream: Stream, number: int, data: bytes, back: str) -> None:
        network = self.network
        if network.random.random() < network.refuses:
            connection.say(S, PushResponse(number, Status.ERROR, 0), back, stream.address)
            return
        stream.next += network.random.randint(1, network.gap)
        index = stream.next - 1
        stream.stored.append(StreamMessage(index, data))
        if network.retained:
            del stream.stored[: -network.retained]
        connection.say(S, PushResponse(number, Status.OK, index), back, stream.address)


class Client:
    """A publisher or a consumer on a host, with its connections."""

    def __init__(self, network: Network, host: str, name: str, stream: tuple[str, int | None, int]) -> None:
        self.network, self.host, self.name = network, host, name
        self.stream, self.partition, self.partitions = stream
        self.back = f"{name}_{network.random.randrange(1000)}"
        self.how = network.random.choice(("one", "split", "any"))
        self.life = 0
        self.connections: list[Connection] = []
        self.address, self.alive = "", False

    def start(self) -> None:
        """It connects, with nothing in memory."""
        self.life += 1
        self.alive = True
        count = {"one": 1, "split": 2, "any": 3}[self.how]
        self.connections = [Connection(self.network, self.host, self) for _ in range(count)]
        self.address = ""
        if self.partition is None:
            self.ask(CreateRequest(self.stream), STREAMS)
        else:
            self.ask(CreatePartitionedRequest(self.stream, self.partitions), STREAMS)

    def stop(self) -> None:
        """It ends, whatever it waits for."""
        reset = self.network.aborts and self.network.random.random() < 0.5
        for connection in self.connections:
            connection.close(C, reset=reset)
        self.life += 1
        self.alive = False

    def connection(self, to: str) -> Connection:
        if self.how == "split":
            return self.connections[to == INDEXES]
        return self.network.random.choice(self.connections)

    def ask(self, message: Message, to: str) -> None:
        self.connection(to).say(C, message, to, self.back)

    def later(self, ms: int, then: Callable[[], None]) -> None:
        """Some time later, if it lives on."""
        life = self.life

        def do() -> None:
            if life == self.life:
                then()

        self.network.at(self.network.now_ns + self.network.random.randint(0, ms) * MS, do)

    def hear(self, connection: Connection, message: Message, back: str) -> None:
        if not self.alive or connection not in self.connections:
            return
        match message:
            case CreateResponse():
                self.address = back
                self.ready()
            case CreatePartitionedResponse(partition=partition) if partition == self.partition:
                self.address = back
                self.ready()
            case PushResponse():
                self.confirmed(message)
            case PullResponse(messages=messages):
                self.pulled([one.index for one in messages])
            case IndexResponse(index=index):
                self.told(index)

    def ready(self) -> None:
        """It has the address of its stream."""

    def confirmed(self, confirm: PushResponse) -> None:
        """Its push is answered."""

    def pulled(self, indexes: list[int]) -> None:
        """Its pull is answered."""

    def told(self, index: int | None) -> None:
        """It has its saved index."""


class Publisher(Client):
    """It pushes, some at once, and again what was refused."""

    number = 0

    def ready(self) -> None:
        self.waits: dict[int, bytes] = {}
        self.push()

    def push(self) -> None:
        for _ in range(self.network.random.randint(1, 4)):
            self.number += 1
            self.waits[self.number] = f"{self.name} {self.number}".encode()
            self.ask(PushRequest(self.number, self.waits[self.number]), self.address)

    def confirmed(self, confirm: PushResponse) -> None:
        if confirm.status is Status.ERROR:
            self.ask(PushRequest(confirm.request_id, self.waits[confirm.request_id]), self.address)
            return
        del self.waits[confirm.request_id]
        if not self.waits:
            self.later(200, self.push)


class Consumer(Client):
    """It asks for its index, pulls and saves what it processed."""

    number = 0
    position = 0

    def ready(self) -> None:
        self.ask(IndexGet(self.name, self.stream, self.partition), INDEXES)

    def told(self, index: int | None) -> None:
        self.position = index or 0
        self.pull()

    def pull(self) -> None:
        self.number += 1
        self.ask(PullRequest(self.number, self.position, self.network.random.randint(1, 8)), self.address)

    def pulled(self, indexes: list[int]) -> None:
        if indexes:
            self.position = indexes[-1] + 1
            if self.network.random.random() < 0.7:
                self.ask(IndexSave(self.name, self.stream, self.position, self.partition), INDEXES)
        self.later(150, self.pull)


class Network:
    """All of them, for some seconds. `aborts`: connections are reset too, and the service restarts."""

    def __init__(self, seed: int, *, aborts: bool = True) -> None:
        self.random = random = Random(seed)
        self.aborts = aborts
        self.now_ns, self.ports = START_NS, 40_000
        self.packets: list[CapturedPacket] = []
        self.said: dict[str, Said] = {}
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self.envelope, self.names = random.choice(list(Envelope)), random.choice(list(Names))
        self.lost = random.choice((0.0, 0.0, 0.02, 0.1))
        self.refuses, self.creates = random.choice((0.0, 0.1)), random.random() < 0.5
        self.gap, self.retained = random.choice((1, 1, 4)), random.choice((0, 0, 12))
        self.service = Service(self)
        self.clients: list[Client] = []
        self.ended = False
        shapes = [(f"s{at}", *random.choice(((None, 0), (0, 2), (1, 2)))) for at in range(random.randint(1, 2))]
        for at in range(random.randint(1, 3)):
            self.clients.append(Publisher(self, self._host(), f"p{at}", random.choice(shapes)))
        for at in range(random.randint(1, 4)):
            self.clients.append(Consumer(self, self._host(), f"c{at}", random.choice(shapes)))
        for client in self.clients:
            self.at(START_NS + random.randint(1, 500) * MS, client.start)
        self._plan(random)
        while self._agenda:
            self.now_ns, _, do = heapq.heappop(self._agenda)
            do()
        self.packets.sort(key=lambda packet: packet.ts_ns)

    def _host(self) -> str:
        return f"10.0.0.{self.random.randint(1, 3)}"

    def at(self, at_ns: int, do: Callable[[], None]) -> None:
        """Something happens at a time, after what happens at the same."""
        self._count += 1
        heapq.heappush(self._agenda, (at_ns, self._count, do))

    def _plan(self, random: Random) -> None:
        """Clients crash and come back, and so does the service, until all end."""
        end_ns = START_NS + 3_000 * MS
        for client in self.clients:
            for _ in range(random.choice((0, 0, 1, 2))):
                at_ns = START_NS + random.randint(600, 2_500) * MS
                self.at(at_ns, client.stop)
                self.at(at_ns + random.randint(0, 300) * MS, partial(self._again, client))
        if self.aborts and random.random() < 0.3:
            self.at(START_NS + random.randint(800, 2_000) * MS, self._restart)
        self.at(end_ns, self._end)

    def _again(self, client: Client) -> None:
        if not client.alive and not self.ended:
            client.start()

    def _restart(self) -> None:
        self.service.restart()
        for client in self.clients:
            for connection in client.connections:
                connection.close(S, reset=True)
            client.life += 1
            client.alive = False
            self.at(self.now_ns + self.random.randint(1, 300) * MS, partial(self._again, client))

    def _end(self) -> None:
        self.ended = True
        for client in self.clients:
            client.stop()
