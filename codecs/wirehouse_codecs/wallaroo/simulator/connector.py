"""Connectors and their worker in simulated traffic: their identities, their frames, and the state of the worker.

The worker behaves like the real one where its behaviour is known. It tops up credits when a frame finds them low. At
checkpoints it acks every active stream; ended streams get an ACK without credits. After a lost connection, streams
resume at the last acked id. It sends RESTART; in the dialects of the text it sends NACK. `fault_scripts.py` breaks
rules with the same parts.
"""

from __future__ import annotations

import hashlib
import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final

from wirehouse_codecs.simulate.script import ROUND_TRIP_NS, Close, Conversation, Ending, Event, Send
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.wallaroo.dialects import DIALECTS, Dialect
from wirehouse_codecs.wallaroo.frames import (
    Ack,
    EosMessage,
    Flag,
    Frame,
    Hello,
    Message,
    Nack,
    Notify,
    NotifyAck,
    Ok,
    Restart,
    Source,
    StreamMessage,
    StreamReference,
    VersionForm,
)
from wirehouse_codecs.wallaroo.wire.dialect_detection import SINK_VERSION, SOURCE_VERSION
from wirehouse_codecs.wallaroo.wire.messages import LENGTH_BYTES, encode, encode_body

if TYPE_CHECKING:
    from wirehouse_codecs.wallaroo.simulator.simulator import SimulatorConfig

PORT: Final = 7100
#: Maximum number of connections of a worker.
CONNECTORS_PER_WORKER: Final = 10
COOKIE: Final = b"Dragons-Love-Tacos"
PROGRAM: Final = b"celsius-connector"
#: A version in the dialects of the text, which leaves it open: 16 bytes, like those of a commit.
SEED_VERSION: Final = hashlib.sha256(b"seed").digest()[:16]
#: Time after which the other side answers.
LATENCY_NS: Final = 100_000
#: Time between the begins of connectors.
BEGIN_NS: Final = 1_370_000
#: Time after which a lost connection is tried again. It doubles with each loss, up to a limit.
BACKOFF_NS: Final = 100_000_000
BACKOFF_STEPS: Final = 6
#: Number of different contents of messages.
CONTENTS: Final = 1024
#: Distance between the first contents of one connector's messages and those of the next connector.
CONTENTS_APART: Final = 101
#: Number of contents of which one is a boundary, in dialects with flags.
BOUNDARY_EVERY: Final = 64
NS_PER_MS: Final = 1_000_000

#: First bytes of the messages of stream 0 between sinks and Wallaroo (two-phase commit).
LIST, LIST_REPLY, PHASE_1, PHASE_1_REPLY, PHASE_2 = 201, 202, 203, 204, 205
COMMIT_STREAM, DATA_STREAM = 0, 1


class Talk:
    """The events of one connection while they are made. Each side gets the other's frames before it goes on."""

    def __init__(self, dialect: Dialect, opened_ns: int) -> None:
        self.dialect = dialect
        self.opened_ns = opened_ns
        self.now_ns = opened_ns + 2 * ROUND_TRIP_NS
        self.events: list[Event] = []

    def connector(self, *frames: Frame | bytes) -> None:
        """The connector writes frames, or bytes that are none, at once."""
        self._say(Direction.CLIENT, frames)

    def worker(self, *frames: Frame | bytes) -> None:
        """The worker writes frames, or bytes that are none, at once."""
        self._say(Direction.SERVER, frames)

    def _say(self, direction: Direction, frames: tuple[Frame | bytes, ...]) -> None:
        self.now_ns += LATENCY_NS
        data = [frame if isinstance(frame, bytes) else encode(frame, self.dialect) for frame in frames]
        self.events.append(Send(self.now_ns, direction, b"".join(data)))

    def wait(self, ns: int) -> None:
        """Let `ns` pass without a frame."""
        self.now_ns += ns

    def close(self, direction: Direction = Direction.CLIENT, ending: Ending = Ending.FIN) -> None:
        """One side closes the connection."""
        self.now_ns += LATENCY_NS
        self.events.append(Close(self.now_ns, direction, ending))

    def take(self) -> list[Event]:
        """Return the events since the last call."""
        events, self.events = self.events, []
        return events


def stream_id_of(name: bytes) -> int:
    """The id that the reference's connectors make of a name: the first 64 bits of SHA-256."""
    return int.from_bytes(hashlib.sha256(name).digest()[:8], "big")


def hello_in(dialect: Dialect, number: int) -> Hello:
    """The HELLO of connector `number`."""
    instance = b"instance-%d" % number
    if dialect.byte_order == "little":
        return Hello(SEED_VERSION, COOKIE, PROGRAM, instance, VersionForm.GUID16)
    return Hello(SINK_VERSION if dialect.sink else SOURCE_VERSION, COOKIE, PROGRAM, instance)


def message_in(
    dialect: Dialect,
    stream_id: int,
    message_id: int,
    *,
    flags: int = 0,
    event_time: int = 0,
    key: bytes = b"",
    payload: bytes = b"",
) -> Message:
    """A MESSAGE with as much of this as dialect and flags write."""
    names = {field.name for field in dialect.layouts[Message] if field.written(flags)}
    return Message(
        stream_id=stream_id if "stream_id" in names else None,
        message_id=message_id if "message_id" in names else None,
        flags=flags if "flags" in names else None,
        event_time=event_time if "event_time" in names else None,
        key=key if "key" in names else None,
        payload=payload if "payload" in names else None,
    )


class Contents:
    """The contents of all connectors' messages, written as `encode` writes it, and several times as fast.

    Contents are numbered, and the same number gives the same content: a replay repeats it.
    """

    def __init__(self, config: SimulatorConfig) -> None:
        random = Random(config.seed)
        self._dialect = dialect = DIALECTS[config.dialect]
        self._start_ns = config.start_time_ms * NS_PER_MS
        keyed = bool(config.keys) or dialect.flags is None
        self.flags = 0 if dialect.flags is None else dialect.flags & (Flag.EVENT_TIME | (Flag.KEY if keyed else 0))
        self._marks = dialect.flags is not None and not dialect.sink
        names = {field.name for field in dialect.layouts[Message] if field.written(self.flags)}
        self._key_bytes = 2 if "key" in names else 0
        self._pack = struct.Struct(("<" if dialect.byte_order == "little" else ">") + "QQ").pack
        size = config.payload_bytes
        least, most = size - size // 2, size + size // 2
        self._ends = [
            self._key(n, config.keys) + random.randbytes(random.randint(least, most)) for n in range(CONTENTS)
        ]
        head_bytes = len(self.head(0)) + 16
        self._lengths = [(head_bytes + len(end)).to_bytes(LENGTH_BYTES, dialect.byte_order) for end in self._ends]

    def _key(self, n: int, keys: int) -> bytes:
        if not self._key_bytes:
            return b""
        key = b"key-%d" % (n % keys) if keys else b""
        return len(key).to_bytes(self._key_bytes, self._dialect.byte_order) + key

    def head(self, stream_id: int) -> bytes:
        """The bytes of a stream's messages between their length and their id."""
        body = encode_body(message_in(self._dialect, stream_id, 0, flags=self.flags), self._dialect)
        return body[: -16 - self._key_bytes]

    def payload_bytes(self, n: int) -> int:
        """The size of the payload of content `n`."""
        end = self._ends[n % CONTENTS]
        key = int.from_bytes(end[: self._key_bytes], self._dialect.byte_order)
        return len(end) - self._key_bytes - key

    def write(self, stream_id: int, head: bytes, message_id: int, n: int) -> tuple[bytes, ...]:
        """A message with content `n` of a stream, in pieces; `head` is the stream's."""
        if self._marks and not n % BOUNDARY_EVERY:
            return (encode(message_in(self._dialect, stream_id, message_id, flags=Flag.BOUNDARY), self._dialect),)
        at = n % CONTENTS
        return self._lengths[at], head, self._pack(message_id, self._start_ns + n * NS_PER_MS), self._ends[at]


class Connector(ABC):
    """A connector with all its connections, one after the other."""

    def __init__(self, config: SimulatorConfig, number: int) -> None:
        self.config = config
        self.dialect = DIALECTS[config.dialect]
        self.number = number
        self.random = Random(f"{config.seed} {number}")
        #: Time at which the next connection is opened.
        self.opens_ns = config.start_time_ms * NS_PER_MS + number * BEGIN_NS
        self._address = f"10.0.{number // 250}.{number % 250 + 1}"
        worker = number // CONNECTORS_PER_WORKER
        self.server = Endpoint(f"10.1.{worker // 250}.{worker % 250 + 1}", PORT)
        self._connections = 0
        #: The connector that an incident affects, by the names of the tables' columns, and since when; None = none.
        self.affected: dict[str, Any] | None = None

    @abstractmethod
    def conversations(self) -> Iterator[Conversation]:
        """Its connections. Each decides on the next one, so it has to be read to its end first."""

    def converse(self, talk: Talk, events: Iterator[Event], captured_from_ns: int = 0) -> Conversation:
        """The connection on which `talk` is, with a port and sequence numbers of its own."""
        self._connections += 1
        return Conversation(
            Endpoint(self._address, 40_000 + self._connections % 20_000),
            self.server,
            talk.opened_ns,
            events,
            self.random.getrandbits(32),
            self.random.getrandbits(32),
            captured_from_ns=captured_from_ns,
        )


class _Streaming(Connector):
    """A connector that streams its messages, loses its connection at times, and replays."""

    def __init__(self, config: SimulatorConfig, number: int, contents: Contents) -> None:
        super().__init__(config, number)
        self._contents = contents
        #: The content of message 0.
        self._first = number * CONTENTS_APART
        self._losses = _spread(config.messages_per_connector, config.reconnects)
        self._lost = 0
        self._finished = False
        #: Checkpoints go by the clock, whoever is connected.
        self._checkpoint_ns = self.opens_ns + config.checkpoint_ms * NS_PER_MS

    def conversations(self) -> Iterator[Conversation]:
        while not self._finished:
            talk = Talk(self.dialect, self.opens_ns)
            events = self._session(talk)
            yield self.converse(talk, events)
            # The caller may have left the conversation early.
            deque(events, maxlen=0)
            self.opens_ns = talk.now_ns + (BACKOFF_NS << self._lost % BACKOFF_STEPS)

    def _session(self, talk: Talk) -> Iterator[Event]:
        self._greet(talk)
        while self._sent < self.config.messages_per_connector:
            if self._losses and self._sent >= self._losses[0]:
                del self._losses[0]
                self._lose(talk)
                yield from talk.take()
                return
            if self._interrupted(talk):
                yield from talk.take()
                return
            yield from talk.take()
            talk.wait(self.config.interval_ms * NS_PER_MS)
            self._burst(talk, min(self.config.burst_messages, self.config.messages_per_connector - self._sent))
            if talk.now_ns >= self._checkpoint_ns:
                self._checkpoint_ns = talk.now_ns + self.config.checkpoint_ms * NS_PER_MS
                self._checkpoint(talk)
        self._finish(talk)
        self._finished = True
        talk.close()
        yield from talk.take()

    def _lose(self, talk: Talk) -> None:
        self._lost += 1
        talk.close(self.random.choice(list(Direction)), Ending.RESET)
        self._rewind()

    @property
    @abstractmethod
    def _sent(self) -> int:
        """Messages that were sent, replayed ones counted once."""

    @abstractmethod
    def _greet(self, talk: Talk) -> None:
        """Handshake, and the first NOTIFYs."""

    @abstractmethod
    def _burst(self, talk: Talk, count: int) -> None:
        """Send `count` messages."""

    @abstractmethod
    def _checkpoint(self, talk: Talk) -> None:
        """The worker makes safe what it has seen."""

    @abstractmethod
    def _interrupted(self, talk: Talk) -> bool:
        """The events between bursts; True if the connection ends by them."""

    @abstractmethod
    def _finish(self, talk: Talk) -> None:
        """All was sent, and becomes safe."""

    @abstractmethod
    def _rewind(self) -> None:
        """Go back to what is safe."""


@dataclass(slots=True)
class Stream:
    """A stream of a source. Ids count from 1, so 0 is before the first."""

    stream_id: int
    name: bytes
    head: bytes
    #: The last id that was sent, and seen.
    position: int = 0
    #: The last id that is safe.
    acked: int = 0


class SourceConnector(_Streaming):
    """A connector that feeds a source: streams, credits, checkpoints, resets and ends of streams."""

    def __init__(self, config: SimulatorConfig, number: int, contents: Contents) -> None:
        super().__init__(config, number, contents)
        names = [b"/data/%d/part-%d.log" % (number, n) for n in range(config.streams_per_connector)]
        ids = [stream_id_of(name) for name in names]
        self._streams = [Stream(sid, name, self._contents.head(sid)) for sid, name in zip(ids, names, strict=True)]
        #: Credits as the worker counts them.
        self._balance = 0
        self._reopens = _spread(config.messages_per_connector, config.reopens)

    @property
    def _sent(self) -> int:
        return sum(stream.position for stream in self._streams)

    def _greet(self, talk: Talk) -> None:
        talk.connector(hello_in(self.dialect, self.number))
        talk.worker(self._ok())
        self._balance = self.config.credits
        for stream in self._streams:
            self._notify(talk, stream)

    def _ok(self) -> Ok:
        """OK with the lists that the dialect has."""
        lists = {field.name for field in self.dialect.layouts[Ok]}
        named = any(part.name == "stream_name" for field in self.dialect.layouts[Ok] for part in field.entry)
        known = [stream for stream in self._streams if stream.acked and "streams" in lists]
        address = f"{self.server.address}:{self.server.port}".encode()
        return Ok(
            self.config.credits,
            tuple(StreamReference(each.stream_id, each.acked, each.name if named else b"") for each in known),
            (Source(b"celsius", address),) if "sources" in lists else (),
        )

    def _notify(self, talk: Talk, stream: Stream) -> None:
        """A stream is opened, and goes on after what is safe."""
        talk.connector(Notify(stream.stream_id, stream.name, stream.acked))
        self._charge(talk, 1)
        if self.dialect.answers_notify:
            # Workers with flags gave back the connector's reference; later ones report that nothing was seen.
            talk.worker(NotifyAck(1, stream.stream_id, stream.acked or self.dialect.nothing_seen or 0))
        stream.position = stream.acked

    def _burst(self, talk: Talk, count: int) -> None:
        write = self._contents.write
        while count:
            # The frame that finds credits at the mark makes the worker answer, so the connector writes up to there.
            taken = min(count, self._balance - self.config.refill_at + 1)
            pieces: list[bytes] = []
            for stream in self.random.choices(self._streams, k=taken):
                stream.position += 1
                pieces += write(stream.stream_id, stream.head, stream.position, self._first + stream.position)
            talk.connector(b"".join(pieces))
            self._charge(talk, taken)
            count -= taken

    def _charge(self, talk: Talk, frames: int) -> None:
        """The worker takes a credit for each frame. One that finds them at the mark makes it top them up before."""
        self._balance -= frames
        if self._balance < self.config.refill_at:
            talk.worker(Ack(self.config.credits - (self._balance + 1)))
            self._balance = self.config.credits - 1

    def _top_up(self) -> int:
        granted, self._balance = self.config.credits - self._balance, self.config.credits
        return granted

    def _checkpoint(self, talk: Talk, closing: Collection[Stream] = ()) -> None:
        active = self._made_safe([stream for stream in self._streams if stream not in closing])
        if active:
            talk.worker(Ack(self._top_up(), active))
        closed = self._made_safe(closing)
        if closed:
            talk.worker(Ack(0, closed))

    def _made_safe(self, streams: Collection[Stream]) -> tuple[StreamMessage, ...]:
        """The streams in an ACK: all if NOTIFY is answered, else those that moved."""
        said = [stream for stream in streams if self.dialect.answers_notify or stream.position > stream.acked]
        for stream in streams:
            stream.acked = stream.position
        nothing = self.dialect.nothing_seen or 0
        return tuple(StreamMessage(stream.stream_id, stream.acked or nothing) for stream in said)

    def _interrupted(self, talk: Talk) -> bool:
        if self._reopens and self._sent >= self._reopens[0]:
            del self._reopens[0]
            stream = self.random.choice(self._streams)
            self._end_stream(talk, stream)
            self._checkpoint(talk, (stream,))
            self._notify(talk, stream)
        if self.random.random() >= self.config.reset_share:
            return False
        if Restart not in self.dialect.tags:
            stream = self.random.choice(self._streams)
            talk.worker(Nack(self._top_up(), stream.stream_id, stream.acked))
            self._notify(talk, stream)
            return False
        address = f"{self.server.address}:{self.server.port}".encode()
        talk.worker(Restart(address if self.dialect.layouts[Restart] else None))
        talk.close()
        self._rewind()
        return True

    def _end_stream(self, talk: Talk, stream: Stream) -> None:
        if EosMessage in self.dialect.tags:
            talk.connector(EosMessage(stream.stream_id))
        else:
            flags = Flag.BOUNDARY | Flag.EOS
            talk.connector(message_in(self.dialect, stream.stream_id, stream.position + 1, flags=flags))
            # Where it was implemented, the worker drops the message that ends a stream: its id is not seen.
            stream.position += not self.dialect.answers_notify
        self._charge(talk, 1)

    def _finish(self, talk: Talk) -> None:
        for stream in self._streams:
            self._end_stream(talk, stream)
        self._checkpoint(talk, self._streams)

    def _rewind(self) -> None:
        for stream in self._streams:
            stream.position = stream.acked


class SinkConnector(_Streaming):
    """Wallaroo as the connector of a sink: one stream of data, its ids the bytes so far, and two-phase commit."""

    def __init__(self, config: SimulatorConfig, number: int, contents: Contents) -> None:
        super().__init__(config, number, contents)
        self._head = self._contents.head(DATA_STREAM)
        #: Messages and bytes that were sent, and those that are committed.
        self._position = self._committed = (0, 0)
        self._transactions = 0

    @property
    def _sent(self) -> int:
        return self._position[0]

    def _greet(self, talk: Talk) -> None:
        talk.connector(hello_in(self.dialect, self.number))
        talk.worker(Ok(self.config.credits))
        talk.connector(self._commit(LIST))
        talk.worker(self._commit(LIST_REPLY))
        _, committed = self._committed
        talk.connector(Notify(DATA_STREAM, b"sink-%d" % self.number, committed))
        talk.worker(NotifyAck(1, DATA_STREAM, committed))

    def _commit(self, kind: int) -> Message:
        transaction = b"" if kind in (LIST, LIST_REPLY) else b"txn-%d" % self._transactions
        return message_in(self.dialect, COMMIT_STREAM, 0, payload=bytes([kind]) + transaction)

    def _burst(self, talk: Talk, count: int) -> None:
        pieces: list[bytes] = []
        n, offset = self._position
        for _ in range(count):
            n += 1
            offset += self._contents.payload_bytes(self._first + n)
            pieces += self._contents.write(DATA_STREAM, self._head, offset, self._first + n)
        self._position = n, offset
        talk.connector(b"".join(pieces))

    def _checkpoint(self, talk: Talk) -> None:
        self._transactions += 1
        talk.connector(self._commit(PHASE_1))
        talk.worker(self._commit(PHASE_1_REPLY))
        talk.connector(self._commit(PHASE_2))
        self._committed = self._position

    def _interrupted(self, talk: Talk) -> bool:
        return False

    def _finish(self, talk: Talk) -> None:
        self._checkpoint(talk)

    def _rewind(self) -> None:
        self._position = self._committed


def _spread(total: int, times: int) -> list[int]:
    """The numbers of messages, of `total`, after which an event happens that happens `times` times."""
    return [total * (n + 1) // (times + 1) for n in range(times)]
