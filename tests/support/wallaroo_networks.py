"""Random networks of Wallaroo connectors and a worker that keep to the protocol, as one tap sees them, and the truth.

Connectors have several streams, come back and go on where the worker says. The worker grants credits late, resets
streams, restarts, refuses streams. Packets are late, lost on their way and sent again. Each host acknowledges what it
had received when it sent a packet. `said` remembers what each session said. No code of the codec writes the frames.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from tests.support import wallaroo_by_hand as frames
from tests.support.wallaroo_by_hand import NOTHING, C, Say, W
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket, tcp_packet
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.packets import ACK, FIN, PSH, RST, SYN

PORT = 7100
MS = 10**6
START_NS = 1_700_000_000 * 10**9
EOS = 4


@dataclass
class StreamSaid:
    """What was said of a stream in one session."""

    messages: int = 0
    last_sent: int | None = None
    highest_sent: int = -1
    last_acked: int | None = None


@dataclass
class Said:
    """What was said in one session."""

    instance: str
    started_ns: int
    initial: int = 0
    granted: int = 0
    spent: int = 0
    streams: dict[int, StreamSaid] = field(default_factory=dict)


class Connection:
    """A TCP connection, as the tap sees its packets."""

    def __init__(self, network: Network, connector: Connector) -> None:
        network.ports += 1
        self.network, self.connector, random = network, connector, network.random
        self.client, self.server = Endpoint(connector.host, network.ports), Endpoint("10.9.0.9", PORT)
        #: How long packets take to the tap, and from there to the worker.
        self.near_ns, self.far_ns = (random.choice((0, 1, 5, 20)) * MS // 2 for _ in range(2))
        self.sequence = {side: random.randrange(2**32) for side in (C, W)}
        self.sent = dict.fromkeys((C, W), 1)
        self.received = dict.fromkeys((C, W), 1)
        self.last_ns = dict.fromkeys((C, W), 0)
        self.open = True
        self.closing = False
        #: The connector wants to close it, so the worker resets no more.
        self.ends = False
        one_way_ns = self.near_ns + self.far_ns
        self._put(C, SYN, network.now_ns, b"", 0)
        self._put(W, SYN | ACK, network.now_ns + one_way_ns, b"", 0)
        self._put(C, ACK, network.now_ns + 2 * one_way_ns, b"", 1)
        self.ready_ns = network.now_ns + 2 * one_way_ns
        self.said = network.said[network.ports] = Said(connector.instance, network.now_ns + self.near_ns)

    def _put(self, side: Direction, flags: int, at_ns: int, payload: bytes, sequence: int, acked: int = 1) -> None:
        """A packet leaves at `at_ns`."""
        source, to = (self.client, self.server) if side is C else (self.server, self.client)
        other = W if side is C else C
        acknowledgment = 0 if flags == SYN else (self.sequence[other] + acked) % 2**32
        number = (self.sequence[side] + sequence) % 2**32
        data = tcp_packet(
            source, to, sequence=number, acknowledgment=acknowledgment, flags=flags, window=65_000, payload=payload
        )
        self.network.packets.append(CapturedPacket(at_ns + (self.near_ns if side is C else self.far_ns), data))

    def say(self, said: Say, then: Callable[[], None]) -> None:
        """A side sends a frame; `then` is what the other does when it has come, in the order of sending."""
        side, data, _ = said
        if not self.open or (side is C and self.closing):
            return
        network, random = self.network, self.network.random
        now_ns = max(network.now_ns, self.ready_ns)
        arrives_ns = self.last_ns[side]
        while data:
            size = max(2, random.choice((len(data), len(data), 1 + random.randrange(len(data)))))
            # An acknowledgment of one byte that wasn't captured may be that of a FIN.
            size = len(data) if len(data) - size == 1 else size
            part, data = data[:size], data[size:]
            lost = network.lost and random.random() < network.lost
            at_ns = now_ns + (random.choice((20, 200)) * MS if lost else 0)
            self._put(side, ACK | PSH, at_ns, part, self.sent[side], self.received[side])
            self.sent[side] += len(part)
            arrives_ns = max(arrives_ns, at_ns + self.near_ns + self.far_ns)
        self.last_ns[side] = arrives_ns
        end = self.sent[side]
        network.at(arrives_ns, lambda: self._come(side, end, then))

    def _come(self, side: Direction, end: int, then: Callable[[], None]) -> None:
        if not self.open:
            return
        other = W if side is C else C
        self.received[other] = max(self.received[other], end)
        if self.network.random.random() < 0.3:
            self._put(other, ACK, self.network.now_ns, b"", self.sent[other], self.received[other])
        then()

    def close(self, *, reset: bool) -> None:
        """The connector ends the connection."""
        if not self.open or self.closing:
            return
        self.closing = True
        network = self.network
        now_ns = max(network.now_ns, self.ready_ns, self.last_ns[C])
        self._put(C, (RST if reset else FIN) | ACK, now_ns, b"", self.sent[C], self.received[C])
        if reset:
            self.open = False
        network.at(now_ns + self.near_ns + self.far_ns + MS, self._end)

    def _end(self) -> None:
        self.network.worker.leave(self)
        if not self.open:
            return
        self.open = False
        now_ns = max(self.network.now_ns, self.last_ns[W])
        self._put(W, FIN | ACK, now_ns, b"", self.sent[W], self.sent[C] + 1)
        later_ns = now_ns + self.near_ns + self.far_ns
        self._put(C, ACK, later_ns, b"", self.sent[C] + 1, self.sent[W] + 1)


@dataclass
class Served:
    """A connection as the worker knows it."""

    balance: int
    seen: dict[int, int | None] = field(default_factory=dict)
    #: Streams that have ended, and are acked once more.
    ended: dict[int, int | None] = field(default_factory=dict)
    #: NACKs that wait for their NOTIFY.
    nacked: dict[int, int] = field(default_factory=dict)
    restarted: bool = False


class Worker:
    """It remembers how far each stream is, acks at checkpoints, and tops credits up when a frame finds few."""

    def __init__(self, network: Network) -> None:
        self.network, random = network, network.random
        self.most = random.choice((2, 3, 5, 20, 200))
        self.refill_at = random.randint(1, self.most - 1)
        self.checkpoint_ms = random.choice((30, 100, 400))
        self.acked: dict[int, int] = {}
        self.owner: dict[int, Connection] = {}
        self.served: dict[Connection, Served] = {}

    def say(self, to: Connection, said: Say, then: Callable[[], None]) -> None:
        to.say(said, then)

    def leave(self, connection: Connection) -> None:
        """The connection is gone; its streams are free again."""
        self.served.pop(connection, None)
        self.owner = {stream: owner for stream, owner in self.owner.items() if owner is not connection}

    def greet(self, connection: Connection) -> None:
        self.served[connection] = Served(self.most)
        connection.said.initial = self.most
        connection.said.granted += self.most
        listed = sorted(self.acked.items()) if self.network.is_text else []
        ok = {"v3": frames.ok, "v2b": frames.ok2}.get(self.network.dialect)
        said = frames.t_ok(*listed, granted=self.most) if ok is None else ok(self.most)
        connector = connection.connector
        connection.say(said, lambda: connector.accepted(connection, self.most, dict(listed)))
        self._tick(connection)

    def _tick(self, connection: Connection) -> None:
        if connection in self.served:
            self.network.later(self.checkpoint_ms, lambda: self._checkpoint(connection))

    def _checkpoint(self, connection: Connection) -> None:
        served = self.served.get(connection)
        if served is None or served.restarted:
            return
        network, random = self.network, self.network.random
        safe = {stream: at for stream, at in served.seen.items() if not served.nacked.get(stream)}
        safe |= served.ended
        self.acked |= {stream: at for stream, at in safe.items() if at is not None}
        for stream in served.ended:
            self.owner.pop(stream, None)
        served.ended.clear()
        if network.dialect == "v3":
            self._ack(connection, 0, {stream: NOTHING if at is None else at for stream, at in safe.items()})
        else:
            self._ack(connection, 0, {stream: at for stream, at in safe.items() if at is not None})
        if random.random() < network.resets and not connection.ends:
            self._reset(connection, served)
        self._tick(connection)

    def _reset(self, connection: Connection, served: Served) -> None:
        connector, random = connection.connector, self.network.random
        if not self.network.is_text:
            served.restarted = True
            for stream in served.seen:
                self.owner.pop(stream, None)
            connection.say(frames.restart(), lambda: connector.restart(connection))
            return
        for stream in random.sample(sorted(served.seen), min(len(served.seen), random.choice((1, 1, 2)))):
            for _ in range(random.choice((1, 1, 2))):
                back_to = self.acked.get(stream, 0)
                served.nacked[stream] = served.nacked.get(stream, 0) + 1
                served.seen[stream] = back_to or None
                served.balance += 1
                connection.said.granted += 1
                said = frames.t_nack(back_to, stream)
                connection.say(said, partial(connector.nacked, connection, stream, back_to))

    def _ack(self, connection: Connection, granted: int, pairs: dict[int, int]) -> None:
        served, said, connector = self.served[connection], connection.said, connection.connector
        served.balance += granted
        said.granted += granted
        for stream, at in pairs.items():
            if at != NOTHING:
                said.streams[stream].last_acked = at
        made = frames.t_ack if self.network.is_text else frames.ack
        connection.say(made(granted, *pairs.items()), lambda: connector.granted(connection, granted))

    def take(self, connection: Connection, *, costs: bool = True) -> Served | None:
        """A frame comes in."""
        served = self.served.get(connection)
        if served is None or served.restarted:
            return None
        if costs and served.balance <= self.refill_at:
            self._ack(connection, self.most - served.balance, {})
        served.balance -= costs
        return served

    def notified(self, connection: Connection, stream: int, reference: int) -> None:
        served = self.take(connection)
        if served is None:
            return
        if self.network.is_text:
            owed = served.nacked.get(stream, 0)
            served.nacked[stream] = max(0, owed - 1)
            if owed == 1:
                served.seen[stream] = reference or None
            elif not owed:
                served.seen[stream] = max(reference, served.seen.get(stream) or 0, self.acked.get(stream, 0)) or None
            served.ended.pop(stream, None)
            return
        random, connector = self.network.random, connection.connector
        free = self.owner.get(stream, connection) is connection and stream not in served.ended
        accepts = free and random.random() >= self.network.refuses
        nothing = NOTHING if self.network.dialect == "v3" else 0
        known = self.acked.get(stream, nothing)
        if accepts:
            self.owner[stream] = connection
            served.seen[stream] = self.acked.get(stream)
        said = frames.answer(stream, int(accepts), known)
        after = 0 if known == NOTHING else known
        connection.say(said, lambda: connector.answered(connection, stream, after if accepts else None))

    def heard(self, connection: Connection, stream: int, number: int | None, *, last: bool) -> None:
        """A message, or an end of a stream."""
        served = self.take(connection)
        if served is None or served.nacked.get(stream):
            return
        if number is not None and (not last or self.network.is_text):
            served.seen[stream] = max(number, served.seen.get(stream) or 0)
        if last:
            served.ended[stream] = served.seen.pop(stream, None)


@dataclass
class Source:
    """A stream of a connector: how far it is on this connection."""

    stream: int
    name: bytes
    total: int
    next: int = 1
    #: It is to be notified (with these references, one after another), waits for its answer, is open, or has ended.
    asks: list[int] = field(default_factory=list)
    state: str = "new"
    #: NACKs that it owes a NOTIFY.
    nacked: int = 0
    reopens: int = 0


class Connector:
    """An instance on a host."""

    def __init__(self, network: Network, number: int) -> None:
        self.network, random = network, network.random
        self.instance, self.host = f"instance-{number}", f"10.0.0.{number + 1}"
        self.sources = [
            Source(100 * number + n + 1, b"%d/%d" % (number, n), random.randrange(60))
            for n in range(random.choice((1, 2, 5)))
        ]
        self.sessions = random.choice((1, 2, 4))
        self.gap_ms = 100
        self.connection: Connection | None = None
        self.credits = 0
        network.later(1000, self.connect)

    def connect(self) -> None:
        network = self.network
        if not self.sessions:
            return
        self.sessions -= 1
        self.credits = 0
        for source in self.sources:
            source.state, source.asks, source.next, source.nacked = "new", [], 1, 0
        connection = self.connection = Connection(network, self)
        instance = self.instance.encode()
        said = frames.t_hello(instance) if network.is_text else frames.hello(instance=instance)
        connection.say(said, lambda: network.worker.greet(connection))
        network.later(4000, lambda: self.stop(connection))

    def stop(self, connection: Connection) -> None:
        """It ends the connection, and comes back after a time that grows."""
        if self.connection is not connection:
            return
        if self.network.is_text and any(source.nacked for source in self.sources):
            # It owes a NOTIFY.
            connection.ends = True
            self._pump(connection)
            self.network.later(100, lambda: self.stop(connection))
            return
        self.connection = None
        connection.close(reset=self.network.aborts and self.network.random.random() < 0.5)
        self.gap_ms *= 2
        self.network.at(self.network.now_ns + self.gap_ms * MS, self.connect)

    def accepted(self, connection: Connection, granted: int, listed: dict[int, int]) -> None:
        for source in self.sources:
            resumes = listed.get(source.stream, 0) if self.network.random.random() < 0.8 else 0
            source.asks, source.next = [resumes], resumes + 1
        self.granted(connection, granted)
        self._work(connection)

    def _work(self, connection: Connection) -> None:
        if self.connection is not connection:
            return
        self._pump(connection)
        self.network.later(self.network.pause_ms, lambda: self._work(connection))

    def granted(self, connection: Connection, granted: int) -> None:
        if self.connection is not connection:
            return
        self.credits += granted
        for source in self.sources:
            if source.state == "refused":
                source.state, source.asks = "new", [0]
        if self.network.random.random() < 0.5:
            self._pump(connection)

    def restart(self, connection: Connection) -> None:
        self.network.later(50, lambda: self.stop(connection))

    def nacked(self, connection: Connection, stream: int, back_to: int) -> None:
        if self.connection is not connection:
            return
        self.credits += 1
        source = next(source for source in self.sources if source.stream == stream)
        if source.state == "ended":
            source.reopens = 0
        # A NOTIFY that it owes opens the stream, so it needs no other.
        source.asks = [*source.asks, back_to] if source.nacked else [back_to]
        source.nacked += 1
        source.state, source.next = "new", back_to + 1

    def answered(self, connection: Connection, stream: int, after: int | None) -> None:
        if self.connection is not connection:
            return
        source = next(source for source in self.sources if source.stream == stream)
        if after is None:
            source.state = "refused"
        else:
            source.state, source.next = "open", after + 1

    def _pump(self, connection: Connection) -> None:
        """It says what it has, as its credits allow."""
        random = self.network.random
        for _ in range(random.choice((1, 3, 10, 50))):
            ready = [source for source in self.sources if self._has_more(source)]
            if not ready:
                return
            source = random.choice(ready)
            if source.state == "open" and source.next > source.total and self.network.dialect == "v3":
                self._end(connection, source)
            elif self.credits:
                self._say(connection, source)

    def _has_more(self, source: Source) -> bool:
        if source.asks and source.state == "new":
            return True
        return source.state == "open"

    def _say(self, connection: Connection, source: Source) -> None:
        network, worker, stream = self.network, self.network.worker, source.stream
        said = connection.said.streams.setdefault(stream, StreamSaid())
        self.credits -= 1
        connection.said.spent += 1
        if source.state == "new":
            reference = source.asks.pop(0)
            source.nacked = min(source.nacked, len(source.asks))
            made = frames.t_named(stream, source.name, reference) if network.is_text else None
            connection.say(
                made or frames.notify(stream, source.name), lambda: worker.notified(connection, stream, reference)
            )
            source.state = ("new" if source.asks else "open") if network.is_text else "asked"
            return
        number, last = source.next, source.next > source.total
        source.next += 1
        said.messages += 1
        said.last_sent = number
        said.highest_sent = max(number, said.highest_sent)
        payload = b"x" * network.random.choice((0, 5, 60, 400))
        flags = EOS if last else 0
        match network.dialect:
            case "v3":
                made = frames.message(number, stream, payload)
            case "v2b":
                made = frames.flagged(number, flags, payload, stream=stream)
            case _:
                made = frames.t_message(number, flags, payload, stream)
        connection.say(made, lambda: worker.heard(connection, stream, number, last=last))
        if last:
            self._ended(source)

    def _end(self, connection: Connection, source: Source) -> None:
        worker, stream = self.network.worker, source.stream
        connection.say(frames.eos(stream), lambda: worker.heard(connection, stream, None, last=True))
        self._ended(source)

    def _ended(self, source: Source) -> None:
        source.state = "ended"
        if source.reopens:
            return
        source.reopens += 1
        source.total += 5
        source.state, source.asks = "new", [0]


class Network:
    """Connectors and a worker; `packets` has what the tap saw, in order of time."""

    def __init__(self, seed: int, *, aborts: bool = True, restarts: bool = True) -> None:
        self.random = random = Random(seed)
        self.aborts = aborts
        self.dialect = random.choice(("v3", "v2b", "seed_sid"))
        self.is_text = self.dialect == "seed_sid"
        self.lost = random.choice((0, 0, 0.05, 0.2))
        self.resets = random.choice((0, 0, 0.1, 0.5)) if restarts or self.is_text else 0
        self.refuses = random.choice((0, 0, 0.3))
        self.pause_ms = random.choice((5, 50, 300))
        self.now_ns = START_NS
        self.ports = 40_000
        self.packets: list[CapturedPacket] = []
        self.said: dict[int, Said] = {}
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self.worker = Worker(self)
        self.connectors = [Connector(self, number) for number in range(random.choice((1, 2, 4)))]
        while self._events:
            self.now_ns, _, do = heapq.heappop(self._events)
            do()
        self.packets.sort(key=lambda packet: packet.ts_ns)

    def at(self, at_ns: int, do: Callable[[], None]) -> None:
        """Something happens at `at_ns`."""
        self._count += 1
        heapq.heappush(self._events, (max(at_ns, self.now_ns), self._count, do))

    def later(self, ms: int, do: Callable[[], None]) -> None:
        """Something happens within so many milliseconds."""
        self.at(self.now_ns + self.random.randint(1, ms) * MS, do)
