"""A simulated stream service with its publishers and consumers: who they are, and the messages that they send.

What the service holds is a function of the configuration and the time: clients share no state, so each of their
connections is made by itself. faults.py uses the same parts to break rules.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING, Final

from wirehouse_codecs.ockam.simulator import incidents
from wirehouse_codecs.ockam.wire import routed
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
    base_payload,
    encode_payload,
)
from wirehouse_codecs.ockam.wire.routed import OPENING, TCP, Address, Envelope, Route, Routed, local
from wirehouse_codecs.simulate.script import (
    PACKET_NS,
    ROUND_TRIP_NS,
    SEGMENT_BYTES,
    Close,
    Conversation,
    Ending,
    Event,
    Send,
)
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint

if TYPE_CHECKING:
    from wirehouse_codecs.ockam.simulator.simulator import SimulatorConfig

PORT: Final = 4000
STREAM_SERVICE: Final = "stream"
INDEX_SERVICE: Final = "stream_index"
TRACING_CONTEXT: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000
#: Time until the other side answers.
LATENCY_NS: Final = 100_000
#: The time between the beginnings of two clients, and the number of ways in which they speak, one after the other.
BEGIN_NS: Final = 1_370_000
MANNERS: Final = 4
#: A consumer that failed comes back after this.
BACK_NS: Final = 500 * NS_PER_MS
#: How long after the last confirmed push the service goes, and how long it stays away.
DOWN_NS: Final = NS_PER_S
#: Old messages are deleted once in this time. Shortly before nothing is answered, so that all see the same order.
DELETES_NS: Final = NS_PER_S
QUIET_NS: Final = 5 * NS_PER_MS
#: Maximum time for which a segment and its share of an ACK are on the link.
_SEGMENT_NS: Final = 2 * PACKET_NS
#: More than all of a push but its data.
_AROUND_BYTES: Final = 300
#: Number of different contents of messages, before their number.
CONTENTS: Final = 1024
NUMBER_BYTES: Final = 8
#: Number of bytes of messages in a response, in the envelope that has the least room.
RESPONSE_BYTES: Final = 60_000
#: The ids of a consumer's requests repeat, as those of real ones.
PULL_IDS: Final = 1000
_SCATTER: Final = 0x9E37_79B9_7F4A_7C15
_WORD: Final = (1 << 64) - 1


# Messages


@dataclass(frozen=True, slots=True, eq=False)
class Speech:
    """How messages of one client are written."""

    envelope: Envelope = Envelope.BARE16
    names: Names = Names.IMPLEMENTATION
    tracing_context: str | None = None

    def write(self, message: Message | bytes, onward: Route, back: Route) -> bytes:
        """The frame of a message, or of another payload that isn't empty."""
        payload = message if isinstance(message, bytes) else encode_payload(message, self.names)
        head, tail = _around(self, onward, back, len(payload))
        return b"".join((head, payload, tail))

    def write_routed(self, onward: Route, back: Route, payload: bytes) -> bytes:
        """The frame of a payload, as `routed` writes it."""
        bare = self.envelope is Envelope.BARE16
        version = (1 if self.tracing_context is None else 2) if bare else None
        message = Routed(version, onward, back, payload, self.tracing_context)
        return routed.frame(routed.encode(message, self.envelope), self.envelope)


@lru_cache(4096)
def _around(speech: Speech, onward: Route, back: Route, size: int) -> tuple[bytes, bytes]:
    """What stands before and after a payload of `size` bytes: most frames of a connection share it."""
    # Text has no such bytes, so the last of them are the payload.
    payload = b"\xff" * size
    whole = speech.write_routed(onward, back, payload)
    at = whole.rindex(payload)
    return whole[:at], whole[at + size :]


_local = lru_cache(4096)(local)


class Talk:
    """The messages of both sides on one connection. Each side receives the other's messages before it goes on."""

    def __init__(self, speech: Speech, requester: Route, opened_ns: int) -> None:
        self.speech = speech
        #: The return route of the client's requests.
        self.requester = requester
        self.opened_ns = opened_ns
        self.now_ns = opened_ns + 2 * ROUND_TRIP_NS
        self.events: list[Event] = []
        if speech.envelope is Envelope.CBOR32:
            self.client(OPENING)
            self.server(OPENING)

    def request(self, message: Message | bytes, to: str, back: Route | None = None) -> bytes:
        """The frame of a request to a local address."""
        return self.speech.write(message, _local(to), self.requester if back is None else back)

    def response(self, message: Message | bytes, sender: str, onward: Route | None = None) -> bytes:
        """The frame of a response from a local address."""
        return self.speech.write(message, self.requester if onward is None else onward, _local(sender))

    def ask(self, message: Message | bytes, to: str) -> None:
        """The client sends one request."""
        self.client(self.request(message, to))

    def answer(self, message: Message | bytes, sender: str) -> None:
        """The server sends one response."""
        self.server(self.response(message, sender))

    def client(self, *frames: bytes) -> None:
        """The client writes frames at once."""
        self._say(Direction.CLIENT, frames)

    def server(self, *frames: bytes) -> None:
        """The server writes frames at once."""
        self._say(Direction.SERVER, frames)

    def _say(self, direction: Direction, frames: tuple[bytes, ...]) -> None:
        self.now_ns += LATENCY_NS
        self.events.append(Send(self.now_ns, direction, b"".join(frames)))

    def wait(self, ns: int) -> None:
        """Send nothing for a time."""
        self.now_ns += ns

    def wait_until(self, ns: int) -> None:
        """Send the next message at `ns` at the earliest."""
        self.now_ns = max(self.now_ns, ns - LATENCY_NS)

    def close(self, direction: Direction = Direction.CLIENT, ending: Ending = Ending.FIN) -> None:
        """One side closes the connection."""
        self.now_ns += LATENCY_NS
        self.events.append(Close(self.now_ns, direction, ending))

    def take(self) -> list[Event]:
        """The events since the last call."""
        events, self.events = self.events, []
        return events


# What the service holds


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream, or a partition of one, under its address."""

    name: str
    partition: int | None
    address: str


class Contents:
    """The data of all messages, by their number: no two are equal."""

    def __init__(self, config: SimulatorConfig) -> None:
        random = Random(config.seed)
        size = config.data_bytes - NUMBER_BYTES
        sizes = (random.randint(size - size // 2, size + size // 2) for _ in range(CONTENTS))
        self._beginnings = list(map(random.randbytes, sizes))
        self.most_bytes = max(map(len, self._beginnings)) + NUMBER_BYTES

    def data(self, number: int) -> bytes:
        """The data of message `number`."""
        return self._beginnings[number % CONTENTS] + number.to_bytes(NUMBER_BYTES, "big")


class Run:
    """The service from a start to its end, when all is lost: its streams, and what each of them holds at which time.

    Publishers push to all streams alike, burst after burst, one publisher after the other. Messages of a stream are
    numbered in this order, in which they are stored; their indexes rise with their numbers.
    """

    def __init__(self, config: SimulatorConfig, contents: Contents, number: int, begins_ns: int) -> None:
        self.config = config
        self.begins_ns = begins_ns
        self._contents = contents
        self.streams = _streams(config, Random(f"{config.seed} {number}"))
        runs = config.service_restarts + 1
        every, more = divmod(config.messages_per_publisher, runs)
        #: Number of messages of each publisher.
        self.messages = every + (number < more)
        self.total = self.messages * config.publishers
        #: What the messages of all runs before were numbered.
        self.first = (every * number + min(number, more)) * config.publishers
        self.bursts = -(-self.messages // config.burst_messages)
        burst_bytes = config.burst_messages * (contents.most_bytes + _AROUND_BYTES)
        self._stored_after_ns = len(self.streams) * (LATENCY_NS + _SEGMENT_NS * (2 + burst_bytes // SEGMENT_BYTES))
        self._period_ns = max(config.interval_ms * NS_PER_MS, 3 * self._stored_after_ns)
        clients = config.publishers + config.consumers
        self._pushes_ns = begins_ns + clients * BEGIN_NS + (config.streams + config.partitions + 10) * NS_PER_MS
        ends_ns = self._pushes_ns + self.bursts * self._period_ns + DOWN_NS
        #: When the service goes; None: it stays.
        self.ends_ns = ends_ns if number + 1 < runs else None
        self.next_begins_ns = ends_ns + DOWN_NS
        self._gap_every = round(1 / config.index_gap_share) if config.index_gap_share else 0

    def pushed_ns(self, burst: int, publisher: int) -> int:
        """When a publisher pushes a burst."""
        return self._pushes_ns + burst * self._period_ns + publisher * (self._period_ns // self.config.publishers)

    def stored_ns(self, burst: int, publisher: int) -> int:
        """When all streams have stored the burst."""
        return self.pushed_ns(burst, publisher) + self._stored_after_ns

    def burst(self, burst: int, publisher: int) -> range:
        """The messages that a publisher pushes to each stream in a burst."""
        size = self._burst_size(burst)
        first = burst * self.config.burst_messages * self.config.publishers + publisher * size
        return range(first, first + size)

    def _burst_size(self, burst: int) -> int:
        """All are as large but the last."""
        return min(self.config.burst_messages, self.messages - burst * self.config.burst_messages)

    def stored(self, now_ns: int) -> int:
        """How many messages each stream has stored by now."""
        since_ns = now_ns - self.stored_ns(0, 0)
        if since_ns < 0:
            return 0
        burst, within_ns = divmod(since_ns, self._period_ns)
        if burst >= self.bursts:
            return self.total
        publishers = self.config.publishers
        publisher = min(within_ns // (self._period_ns // publishers), publishers - 1)
        return self.burst(burst, publisher).stop

    def oldest(self, now_ns: int) -> int:
        """The number of the first message that isn't deleted."""
        if not self.config.retained:
            return 0
        return max(0, self.stored(now_ns - now_ns % DELETES_NS) - self.config.retained)

    def answers_ns(self, now_ns: int) -> int:
        """When the service answers what comes now."""
        left_ns = DELETES_NS - now_ns % DELETES_NS
        return now_ns + left_ns if self.config.retained and left_ns <= QUIET_NS else now_ns

    def index(self, number: int) -> int:
        """The index of a message: one in `_gap_every` is left out."""
        if not self._gap_every:
            return number
        gaps, at = divmod(number, self._gap_every)
        return number + gaps + (at >= _scattered(self.config.seed, gaps) % self._gap_every)

    def sent(self, number: int) -> int:
        """Which message is pushed as message `number`: another one if it is sent again."""
        most = self.config.resend_share * _WORD
        first = self._first_of_burst(number) if most else number
        while number > first and _scattered(self.config.seed + 1, number) < most:
            number -= 1
        return number

    def _first_of_burst(self, number: int) -> int:
        """The number of the first message that was pushed together with this one."""
        together = self.config.burst_messages * self.config.publishers
        burst = number // together
        return number - (number - burst * together) % self._burst_size(burst)

    def data(self, number: int) -> bytes:
        """The data of a message that a stream holds."""
        return self._contents.data(self.first + self.sent(number))

    def pull(self, first: int, now_ns: int) -> range:
        """The messages that answer a pull from message `first` on."""
        first = max(first, self.oldest(now_ns))
        fit = max(1, RESPONSE_BYTES // (self._contents.most_bytes + _AROUND_BYTES))
        return range(first, min(self.stored(now_ns), first + min(self.config.pull_limit, fit)))


def _streams(config: SimulatorConfig, random: Random) -> list[Stream]:
    named: list[tuple[str, int | None]] = [(f"stream-{n}", None) for n in range(config.streams)]
    named += [("partitioned", n) for n in range(config.partitions)]
    return [Stream(name, partition, f"ST_S_{name}_{random.randbytes(8).hex()}") for name, partition in named]


def _scattered(seed: int, number: int) -> int:
    """64 bits that look random."""
    mixed = (number + seed + 1) * _SCATTER & _WORD
    return (mixed ^ mixed >> 29) * _SCATTER & _WORD


# Who talks


class Client(ABC):
    """A client with all its connections, one after the other. Some speak in ways that others don't."""

    def __init__(self, config: SimulatorConfig, number: int, name: str, service: int = 0) -> None:
        self.config = config
        self.number = number
        self.random = Random(f"{config.seed} {number}")
        me = local(name)
        manner = number % MANNERS
        # A hop between, or another node.
        hops = {1: local("hop-x"), 2: (Address(TCP, b"192.0.2.7:4000"),)}
        self.requester: Route = (*hops.get(manner, ()), *me)
        self._pings = manner == 0
        self._beats = manner == 2
        context = TRACING_CONTEXT if manner == 3 else None
        self.speech = Speech(Envelope(config.dialect), Names(config.names), context)
        self._address = f"10.0.{number // 250}.{number % 250 + 1}"
        self._server = Endpoint(f"10.1.0.{service + 1}", PORT)
        self._connections = 0

    @abstractmethod
    def conversations(self) -> Iterator[Conversation]:
        """Its connections. What happens on one decides on the next, so each is read to its end before."""

    def converse(self, talk: Talk, events: Iterator[Event]) -> Conversation:
        """The connection on which `talk` is, with a port and sequence numbers of its own."""
        self._connections += 1
        return Conversation(
            Endpoint(self._address, 40_000 + self._connections % 20_000),
            self._server,
            talk.opened_ns,
            events,
            self.random.getrandbits(32),
            self.random.getrandbits(32),
        )

    def greet(self, talk: Talk) -> None:
        """What takes no part in the protocol."""
        if self._beats:
            heartbeat = self.speech.write_routed((), (), b"")
            talk.client(heartbeat)
            talk.server(heartbeat)
        if self._pings:
            ping = base_payload("ping", b"\x01")
            talk.ask(ping, "echo")
            talk.answer(ping, "echo")


def create(talk: Talk, run: Run, name: str, random: Random) -> None:
    """A stream is asked for, and answers; partitions in any order."""
    streams = [stream for stream in run.streams if stream.name == name]
    if streams[0].partition is None:
        talk.ask(CreateRequest(name), STREAM_SERVICE)
        talk.answer(CreateResponse(name), streams[0].address)
        return
    talk.ask(CreatePartitionedRequest(name, len(streams)), STREAM_SERVICE)
    random.shuffle(streams)
    responses = ((CreatePartitionedResponse(name, stream.partition or 0), stream.address) for stream in streams)
    talk.server(*(talk.response(message, address) for message, address in responses))


class Publisher(Client):
    """Pushes its messages to all streams, on one connection for each run of the service."""

    def __init__(self, config: SimulatorConfig, contents: Contents, number: int) -> None:
        super().__init__(config, number, f"publisher-{number}")
        self._contents = contents

    def conversations(self) -> Iterator[Conversation]:
        for run in runs(self.config, self._contents):
            talk = Talk(self.speech, self.requester, run.begins_ns + self.number * BEGIN_NS)
            yield self.converse(talk, self._publish(talk, run))

    def _publish(self, talk: Talk, run: Run) -> Iterator[Event]:
        self.greet(talk)
        for name in dict.fromkeys(stream.name for stream in run.streams):
            create(talk, run, name, self.random)
        yield from talk.take()
        for burst in range(run.bursts):
            yield from self._push(talk, run, burst)
        if run.ends_ns is None:
            talk.close()
        else:
            talk.wait_until(run.ends_ns)
            talk.close(Direction.SERVER, Ending.RESET)
        yield from talk.take()

    def _push(self, talk: Talk, run: Run, burst: int) -> Iterator[Event]:
        """A burst, and its confirms."""
        numbers = run.burst(burst, self.number)
        begin = burst * self.config.burst_messages + 1 - numbers.start
        sent = [(number, begin + run.sent(number)) for number in numbers]
        pushes = [encode_payload(PushRequest(request_id, run.data(number))) for number, request_id in sent]
        talk.wait_until(run.pushed_ns(burst, self.number))
        for stream in run.streams:
            talk.client(*(talk.request(push, stream.address) for push in pushes))
            yield from talk.take()
        confirms = [encode_payload(PushResponse(request_id, Status.OK, run.index(at))) for at, request_id in sent]
        talk.wait_until(run.stored_ns(burst, self.number))
        for stream in run.streams:
            talk.server(*(talk.response(confirm, stream.address) for confirm in confirms))
            yield from talk.take()


class Consumer(Client):
    """Pulls all messages of one stream, and saves how far it is."""

    def __init__(self, config: SimulatorConfig, contents: Contents, number: int) -> None:
        self._number = number
        self._id = f"consumer-{number}"
        super().__init__(config, config.publishers + number, self._id)
        self._contents = contents
        slow = incidents.slow(config)
        #: It is slow from this burst on; None: never.
        self._slow_from = slow.burst if slow is not None and slow.consumer == number else None
        #: When messages were deleted before it pulled them, first; None: never.
        self.lost_ns: int | None = None
        total = config.messages_per_publisher * config.publishers
        #: The number of received messages at which it fails.
        self._fails = [total * (n + 1) // (config.restarts + 1) for n in range(config.restarts)]
        #: The first message that it needs by what it saved, and the index that it saved.
        self._next = self._saved = 0
        self._is_done = False

    def conversations(self) -> Iterator[Conversation]:
        for run in runs(self.config, self._contents):
            self._next = self._saved = 0
            self._is_done = False
            opens_ns = run.begins_ns + self.number * BEGIN_NS
            while not self._is_done:
                talk = Talk(self.speech, self.requester, opens_ns)
                events = self._consume(talk, run)
                yield self.converse(talk, events)
                # Whoever took the conversation may have left it early.
                for _ in events:
                    pass
                opens_ns = talk.now_ns + BACK_NS
                self._is_done |= run.ends_ns is not None and opens_ns + BACK_NS > run.ends_ns

    def _consume(self, talk: Talk, run: Run) -> Iterator[Event]:
        stream = run.streams[self._number % len(run.streams)]
        self.greet(talk)
        create(talk, run, stream.name, self.random)
        key = (self._id, stream.name)
        talk.ask(IndexGet(*key, stream.partition), INDEX_SERVICE)
        talk.answer(IndexResponse(*key, self._saved, stream.partition), INDEX_SERVICE)
        save: list[bytes] = []
        while not self._ends(talk, run, save):
            pulled = self._pull(talk, run, stream, save)
            save.clear()
            if pulled and self._fails and run.first + pulled.stop >= self._fails[0]:
                # What came is not saved, so it comes again.
                del self._fails[0]
                talk.close(Direction.CLIENT, Ending.RESET)
                yield from talk.take()
                return
            if pulled:
                self._next, self._saved = pulled.stop, run.index(pulled.stop - 1) + 1
                save.append(talk.request(IndexSave(*key, self._saved, stream.partition), INDEX_SERVICE))
            if not pulled or pulled.stop == run.stored(talk.now_ns):
                _write_all(talk, save)
                talk.wait(self.config.poll_ms * NS_PER_MS)
            if self._slow_from is not None and talk.now_ns >= run.pushed_ns(self._slow_from, 0):
                talk.wait(incidents.SLOW_NS)
            yield from talk.take()
        self._is_done = True
        yield from talk.take()

    def _ends(self, talk: Talk, run: Run, save: list[bytes]) -> bool:
        """Whether all was pulled, or the service goes."""
        if run.ends_ns is not None and talk.now_ns + QUIET_NS + 4 * LATENCY_NS > run.ends_ns:
            _write_all(talk, save)
            talk.wait_until(run.ends_ns)
            talk.close(Direction.SERVER, Ending.RESET)
            return True
        if self._slow_from is not None and talk.now_ns > run.stored_ns(run.bursts - 1, self.config.publishers - 1):
            # The capture ends while it still lags.
            _write_all(talk, save)
            return True
        if run.ends_ns is None and self._next == run.total:
            _write_all(talk, save)
            talk.close()
            return True
        return False

    def _pull(self, talk: Talk, run: Run, stream: Stream, save: list[bytes]) -> range:
        """One pull, right after what is still to be saved."""
        request_id = self.random.randint(1, PULL_IDS)
        pull = PullRequest(request_id, self._saved, self.config.pull_limit)
        talk.client(*save, talk.request(pull, stream.address))
        talk.wait_until(run.answers_ns(talk.now_ns + LATENCY_NS))
        pulled = run.pull(self._next, talk.now_ns + LATENCY_NS)
        if pulled.start > self._next and self.lost_ns is None:
            self.lost_ns = talk.now_ns + LATENCY_NS
        messages = tuple(StreamMessage(run.index(number), run.data(number)) for number in pulled)
        talk.answer(PullResponse(request_id, messages), stream.address)
        return pulled


def _write_all(talk: Talk, frames: list[bytes]) -> None:
    if frames:
        talk.client(*frames)
        frames.clear()


def runs(config: SimulatorConfig, contents: Contents) -> Iterator[Run]:
    """The service from start to start."""
    begins_ns = config.start_time_ms * NS_PER_MS
    for number in range(config.service_restarts + 1):
        run = Run(config, contents, number, begins_ns)
        yield run
        begins_ns = run.next_begins_ns
