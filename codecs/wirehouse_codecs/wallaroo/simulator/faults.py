"""For every rule connections that break it: what simulator.py adds when it is asked for a fault.

A fault breaks its rule for certain and, where that can be, no other. It has a connector and a worker of its own, and
ends its connections in order with everything acked, unless that is the fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from wirehouse_codecs.simulate.script import Conversation, Ending
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.wallaroo.dialects import SEED, SEED_SID, SINK, SINK_V2B, V2A, V2B, V3, Dialect
from wirehouse_codecs.wallaroo.frames import (
    Ack,
    EosMessage,
    Error,
    Flag,
    Hello,
    Message,
    Nack,
    Notify,
    NotifyAck,
    Ok,
    StreamMessage,
)
from wirehouse_codecs.wallaroo.simulator.connector import Connector, Talk, hello_in, message_in, stream_id_of
from wirehouse_codecs.wallaroo.wire.dialect_detection import DEV_VERSION
from wirehouse_codecs.wallaroo.wire.messages import LENGTH_BYTES, encode_body

if TYPE_CHECKING:
    from wirehouse_codecs.wallaroo.simulator.simulator import SimulatorConfig

LEFT, RIGHT = b"/data/left.log", b"/data/right.log"
NS_PER_S: Final = 1_000_000_000
#: Longer than a side may leave open a connection after an ERROR, and than it may be without credits (options.py).
TOO_LONG_TO_CLOSE_NS: Final = 6 * NS_PER_S
TOO_LONG_WITHOUT_CREDITS_NS: Final = 11 * NS_PER_S
#: Of 5 connections, in nanoseconds: they shrink.
GAPS_NS: Final = (500_000_000, 400_000_000, 300_000_000, 200_000_000, 100_000_000)
UNUSED_TAG: Final = 99

_TEXT = (SEED, SEED_SID)
_V2 = (V2A, V2B)
_IMPLEMENTED = (V3, V2B, V2A)
_SOURCES = (*_IMPLEMENTED, SEED_SID, SEED)
_ALL = (*_SOURCES, SINK, SINK_V2B)


class Scene(Talk):
    """A connection on which a rule is broken."""

    def __init__(self, connector: Connector) -> None:
        super().__init__(connector.dialect, connector.opens_ns)
        self.greeting = hello_in(connector.dialect, connector.number)
        self.captured_from_ns = 0

    def open(self, *names: bytes, granted: int = 100) -> None:
        """HELLO, OK, and streams that are open."""
        self.connector(self.greeting)
        self.worker(Ok(granted))
        for name in names:
            self.notify(name)

    def notify(self, name: bytes, stream_id: int | None = None, reference: int = 0) -> None:
        """A NOTIFY and, where there is one, its answer."""
        self.connector(Notify(stream_id_of(name) if stream_id is None else stream_id, name, reference))
        self.answer(name, stream_id=stream_id)

    def answer(self, name: bytes, *, stream_id: int | None = None, success: int = 1) -> None:
        """A NOTIFY_ACK, where there is any."""
        if self.dialect.answers_notify:
            stream_id = stream_id_of(name) if stream_id is None else stream_id
            self.worker(NotifyAck(success, stream_id, self.dialect.nothing_seen or 0))

    def message(self, name: bytes, message_id: int, flags: int = 0, payload: bytes = b"payload") -> Message:
        """A message of a stream as the dialect writes it."""
        return message_in(self.dialect, stream_id_of(name), message_id, flags=flags, payload=payload)

    def send(self, name: bytes, *ids: int, flags: int = 0) -> None:
        """Messages of a stream."""
        self.connector(*(self.message(name, message_id, flags) for message_id in ids))

    def ack(self, name: bytes, message_id: int) -> None:
        """An ACK of one stream, with credits."""
        self.worker(Ack(10, (StreamMessage(stream_id_of(name), message_id),)))

    def end_stream(self, name: bytes, message_id: int) -> None:
        """EOS, by its own frame or by a flag."""
        if EosMessage in self.dialect.tags:
            self.connector(EosMessage(stream_id_of(name)))
        else:
            self.connector(self.message(name, message_id, Flag.EOS))

    def nack(self, name: bytes, reference: int) -> None:
        """A NACK of one stream."""
        self.worker(Nack(10, stream_id_of(name), reference))

    def give_up(self) -> None:
        """What a worker does after a violation: ERROR, and the end."""
        self.worker(Error(b"Protocol violation"))
        self.close(Direction.SERVER)

    def whole(self, body: bytes) -> bytes:
        """A frame around a body that `encode` wouldn't write."""
        return len(body).to_bytes(LENGTH_BYTES, self.dialect.byte_order) + body


Play = Callable[[Connector], Iterator[Conversation]]
Act = Callable[[Scene], None]


@dataclass(frozen=True, slots=True)
class Fault:
    """A way to break one rule."""

    #: What is wrong with the connections, one sentence.
    sentence: str
    play: Play
    #: Dialects in which it can be.
    dialects: tuple[str, ...]
    #: Other rules that can't but be broken as well.
    also: frozenset[str]


class FaultyConnector(Connector):
    """A connector that does nothing but break a rule."""

    def __init__(self, config: SimulatorConfig, number: int, fault: Fault) -> None:
        super().__init__(config, number)
        self._fault = fault

    def conversations(self) -> Iterator[Conversation]:
        return self._fault.play(self)


def on_one_connection(act: Act) -> Play:
    """The fault is on a single connection."""

    def play(connector: Connector) -> Iterator[Conversation]:
        scene = Scene(connector)
        act(scene)
        yield connector.converse(scene, iter(scene.take()), scene.captured_from_ns)

    return play


def on_connections(*acts: Act, gaps_ns: tuple[int, ...] = (NS_PER_S,)) -> Play:
    """The fault is in several connections, with a gap after each."""

    def play(connector: Connector) -> Iterator[Conversation]:
        for n, act in enumerate(acts):
            scene = Scene(connector)
            act(scene)
            connector.opens_ns = scene.now_ns + gaps_ns[n % len(gaps_ns)]
            yield connector.converse(scene, iter(scene.take()))

    return play


# Frames


def dev_version(scene: Scene) -> None:
    """The connector speaks the version of a draft."""
    scene.connector(Hello(DEV_VERSION, b"", b"program", b"instance"))
    scene.worker(Ok(100))
    scene.close()


def no_tag(scene: Scene) -> None:
    """A frame of length 0, and others after it."""
    scene.open(LEFT)
    scene.connector(bytes(LENGTH_BYTES), scene.message(LEFT, 1))
    scene.give_up()


def too_long(scene: Scene) -> None:
    """A frame announces one byte more than is allowed; the worker closes without a word."""
    scene.open(LEFT)
    length = scene.dialect.max_frame_bytes + 1
    scene.connector(length.to_bytes(LENGTH_BYTES, scene.dialect.byte_order) + b"its first bytes")
    scene.close(Direction.SERVER)


def other_tag(scene: Scene) -> None:
    """A frame with a tag that no dialect has."""
    scene.open(LEFT)
    scene.connector(scene.whole(bytes([UNUSED_TAG])))
    scene.give_up()


def cut_notify(scene: Scene) -> None:
    """A NOTIFY that ends within its reference."""
    scene.open(LEFT)
    body = encode_body(Notify(stream_id_of(RIGHT), RIGHT), scene.dialect)
    scene.connector(scene.whole(body[:-3]))
    scene.give_up()


def long_notify(scene: Scene) -> None:
    """A NOTIFY with bytes after its reference."""
    scene.open()
    scene.connector(scene.whole(encode_body(Notify(stream_id_of(LEFT), LEFT), scene.dialect) + b"junk"))
    scene.answer(LEFT)
    scene.close()


def cut_frame(scene: Scene) -> None:
    """The connector closes within a NOTIFY."""
    scene.open(LEFT)
    scene.connector(scene.whole(encode_body(Notify(stream_id_of(RIGHT), RIGHT), scene.dialect))[:-3])
    scene.close()


# Handshake


def notify_first(scene: Scene) -> None:
    """A NOTIFY before HELLO."""
    scene.connector(Notify(stream_id_of(LEFT), LEFT))
    scene.give_up()


def hello_again(scene: Scene) -> None:
    """A second HELLO, at which the worker process stops."""
    scene.open(LEFT)
    scene.connector(scene.greeting)
    scene.close(Direction.SERVER, Ending.RESET)


def refused(reason: bytes) -> Act:
    """The worker answers HELLO by an ERROR with this text."""

    def act(scene: Scene) -> None:
        scene.connector(scene.greeting)
        scene.worker(Error(reason))
        scene.close(Direction.SERVER)

    return act


def unanswered_hello(scene: Scene) -> None:
    """The connector closes after HELLO, for no answer came."""
    scene.connector(scene.greeting)
    scene.wait(NS_PER_S)
    scene.close()


def notify_too_soon(scene: Scene) -> None:
    """A NOTIFY between HELLO and OK."""
    scene.connector(scene.greeting, Notify(stream_id_of(LEFT), LEFT))
    scene.worker(Ok(100))
    scene.answer(LEFT)
    scene.close()


def ok_again(scene: Scene) -> None:
    """A second OK."""
    scene.open(LEFT)
    scene.worker(Ok(100))
    scene.close()


def ok_without_credits(scene: Scene) -> None:
    """An OK with 0 credits, and an ACK that grants some."""
    scene.open(granted=0)
    scene.worker(Ack(100))
    scene.notify(LEFT)
    scene.close()


def accepted_with(cookie: bytes) -> Act:
    """The worker accepts a cookie."""

    def act(scene: Scene) -> None:
        scene.greeting = replace(scene.greeting, cookie=cookie)
        scene.open(LEFT)
        scene.close()

    return act


# Directions, streams, flags, credits


def connector_acks(scene: Scene) -> None:
    """An ACK from the connector."""
    scene.open(LEFT)
    scene.connector(Ack(10))
    scene.give_up()


def unknown_stream(scene: Scene) -> None:
    """A MESSAGE, and no stream was notified."""
    scene.open()
    scene.send(LEFT, 1)
    scene.give_up()


def unanswered_stream(scene: Scene) -> None:
    """A MESSAGE right after the NOTIFY of its stream."""
    scene.open()
    scene.connector(Notify(stream_id_of(LEFT), LEFT), scene.message(LEFT, 1))
    scene.give_up()


def ended_stream(scene: Scene) -> None:
    """A MESSAGE of a stream that ended."""
    scene.open(LEFT)
    scene.send(LEFT, 1)
    scene.end_stream(LEFT, 2)
    scene.ack(LEFT, 1)
    scene.send(LEFT, 3)
    scene.give_up()


def end_of_unknown_stream(scene: Scene) -> None:
    """An EOS_MESSAGE of a stream that was never notified."""
    scene.open(LEFT)
    scene.end_stream(RIGHT, 1)
    scene.give_up()


def forbidden_flags(scene: Scene) -> None:
    """A MESSAGE that is a boundary and no stable reference."""
    scene.open(LEFT)
    scene.connector(scene.message(LEFT, 1, Flag.BOUNDARY | Flag.UNSTABLE_REFERENCE, b""))
    scene.give_up()


def reserved_flag(scene: Scene) -> None:
    """A MESSAGE with the lowest flag that is reserved."""
    scene.open(LEFT)
    scene.send(LEFT, 1)
    scene.send(LEFT, 2, flags=(scene.dialect.flags or 0) + 1 & ~(scene.dialect.flags or 0))
    scene.ack(LEFT, 2)
    scene.close()


def one_message_too_many(scene: Scene) -> None:
    """Two messages, and after NOTIFY one credit is left."""
    scene.open(LEFT, granted=2)
    scene.send(LEFT, 1, 2)
    scene.ack(LEFT, 2)
    scene.close()


def no_credits(scene: Scene) -> None:
    """NOTIFY takes the last credit, and none comes for long."""
    scene.open(LEFT, granted=1)
    scene.wait(TOO_LONG_WITHOUT_CREDITS_NS)
    scene.worker(Ack(10))
    scene.close()


# Errors and ends


def connector_fails(scene: Scene) -> None:
    """The connector sends an ERROR and closes."""
    scene.open(LEFT)
    scene.connector(Error(b"file not found"))
    scene.close()


def worker_fails(scene: Scene) -> None:
    """The worker sends an ERROR, and nothing was wrong."""
    scene.open(LEFT)
    scene.worker(Error(b"out of memory"))
    scene.close(Direction.SERVER)


def goes_on_after_error(scene: Scene) -> None:
    """The connector sends a MESSAGE after its ERROR."""
    scene.open(LEFT)
    scene.connector(Error(b"file not found"), scene.message(LEFT, 1))
    scene.close()


def stays_after_error(scene: Scene) -> None:
    """The connection stays open after an ERROR."""
    scene.open(LEFT)
    scene.connector(Error(b"file not found"))
    scene.wait(TOO_LONG_TO_CLOSE_NS)
    scene.close()


def violation_is_acked(scene: Scene) -> None:
    """The worker acks a MESSAGE of a stream that it doesn't know."""
    scene.open()
    scene.send(LEFT, 1)
    scene.ack(LEFT, 1)
    scene.close()


def left_open(scene: Scene) -> None:
    """The capture ends, the connection doesn't."""
    scene.open(LEFT)


def begun_before(scene: Scene) -> None:
    """The capture begins after the handshake."""
    scene.open(LEFT)
    scene.captured_from_ns = scene.now_ns + 1
    scene.send(LEFT, *range(1, 21))
    scene.ack(LEFT, 20)
    scene.close()


# References, acks, habits


def notify_again(scene: Scene) -> None:
    """A NOTIFY of a stream that is open."""
    scene.open(LEFT)
    scene.notify(LEFT)
    scene.close()


def unknown_reference(scene: Scene) -> None:
    """A NOTIFY with a reference that the worker never gave."""
    scene.open()
    scene.notify(LEFT, reference=99)
    scene.close()


def stream_named(name: bytes) -> Act:
    """The one id is that of a stream with this name."""

    def act(scene: Scene) -> None:
        scene.open()
        scene.notify(name, stream_id_of(LEFT))
        scene.close()

    return act


def ack_of_unknown_stream(scene: Scene) -> None:
    """An ACK of a stream that was never notified."""
    scene.open(LEFT)
    scene.ack(RIGHT, 1)
    scene.close()


def ack_ahead(scene: Scene) -> None:
    """An ACK of an id that was not sent."""
    scene.open(LEFT)
    scene.send(LEFT, 1, 2)
    scene.ack(LEFT, 2)
    scene.ack(LEFT, 3)
    scene.close()


def ack_back(scene: Scene) -> None:
    """An ACK of an id before one that was acked."""
    scene.open(LEFT)
    scene.send(LEFT, 1, 2)
    scene.ack(LEFT, 2)
    scene.ack(LEFT, 1)
    scene.close()


def ack_missing(scene: Scene) -> None:
    """The last message is not acked."""
    scene.open(LEFT)
    scene.send(LEFT, 1, 2)
    scene.ack(LEFT, 1)
    scene.close()


def unstable_ack(scene: Scene) -> None:
    """An ACK of a message that is no stable reference."""
    scene.open(LEFT)
    scene.send(LEFT, 1, flags=Flag.UNSTABLE_REFERENCE)
    scene.ack(LEFT, 1)
    scene.close()


def nack_of_unknown_stream(scene: Scene) -> None:
    """A NACK of a stream before its NOTIFY."""
    scene.open()
    scene.nack(LEFT, 0)
    scene.notify(LEFT)
    scene.close()


def unanswered_nack(scene: Scene) -> None:
    """A NACK, and no NOTIFY after it."""
    scene.open(LEFT)
    scene.send(LEFT, 1)
    scene.ack(LEFT, 1)
    scene.nack(LEFT, 1)
    scene.close()


def full_boundary(scene: Scene) -> None:
    """A boundary with a payload."""
    scene.open(LEFT)
    scene.send(LEFT, 1)
    scene.send(LEFT, 2, flags=Flag.BOUNDARY)
    scene.ack(LEFT, 2)
    scene.close()


def ephemeral_twice(scene: Scene) -> None:
    """Two ephemeral messages with one id, and a message that can be acked."""
    scene.open(LEFT)
    scene.send(LEFT, 1, 1, flags=Flag.EPHEMERAL)
    scene.send(LEFT, 2)
    scene.ack(LEFT, 2)
    scene.close()


def dropped(scene: Scene) -> None:
    """A message that the worker drops: of a stream it has reset, or with an id that it has seen."""
    scene.open(LEFT)
    scene.send(LEFT, 1, 2)
    scene.ack(LEFT, 2)
    if scene.dialect.skips_repeats:
        scene.send(LEFT, 2)
    else:
        scene.nack(LEFT, 2)
        scene.send(LEFT, 3)
        scene.notify(LEFT, reference=2)
        scene.send(LEFT, 3)
        scene.ack(LEFT, 3)
    scene.close()


def unasked_answer(scene: Scene) -> None:
    """A second NOTIFY_ACK."""
    scene.open(LEFT)
    scene.answer(LEFT)
    scene.close()


def refused_stream(scene: Scene) -> None:
    """A NOTIFY_ACK without success."""
    scene.open(LEFT)
    scene.connector(Notify(stream_id_of(RIGHT), RIGHT))
    scene.answer(RIGHT, success=0)
    scene.close()


def unanswered_notify(scene: Scene) -> None:
    """A NOTIFY without a NOTIFY_ACK."""
    scene.open(LEFT)
    scene.connector(Notify(stream_id_of(RIGHT), RIGHT))
    scene.close()


def lost(scene: Scene) -> None:
    """The connection is reset."""
    scene.open(LEFT)
    scene.close(Direction.SERVER, Ending.RESET)


def _fault(act: Act, dialects: tuple[Dialect, ...], *also: str) -> Fault:
    return _played(act.__doc__ or "", on_one_connection(act), dialects, *also)


def _played(sentence: str, play: Play, dialects: tuple[Dialect, ...], *also: str) -> Fault:
    return Fault(sentence, play, tuple(dialect.name for dialect in dialects), frozenset(also))


def _refusal(reason: bytes) -> Fault:
    return _played(
        f"The worker answers HELLO by an ERROR: {reason.decode()}.", on_one_connection(refused(reason)), _ALL
    )


#: A fault for each rule, by the rule's name.
FAULTS: Mapping[str, Fault] = {
    "dialect_unsupported": _fault(dev_version, _IMPLEMENTED),
    "empty_frame": _fault(no_tag, _ALL),
    "oversize_frame": _fault(too_long, _ALL),
    "unknown_frame_type": _fault(other_tag, _ALL),
    "malformed_frame": _fault(cut_notify, _ALL),
    "trailing_bytes": _fault(long_notify, _ALL),
    "frame_before_hello": _fault(notify_first, _SOURCES),
    "duplicate_hello": _fault(hello_again, _ALL),
    "cookie_refused": _refusal(b"Cookie does not match"),
    "version_refused": _refusal(b"Version does not match"),
    "wrong_direction": _fault(connector_acks, _SOURCES),
    "message_unknown_stream": _fault(unknown_stream, _SOURCES),
    "message_before_notify_ack": _fault(unanswered_stream, _IMPLEMENTED),
    "message_closed_stream": _fault(ended_stream, _SOURCES),
    "eos_unknown_stream": _fault(end_of_unknown_stream, (V3,)),
    "flags_not_allowed": _fault(forbidden_flags, _V2),
    "reserved_flags_set": _fault(reserved_flag, (*_V2, *_TEXT)),
    "credits_overdrawn": _fault(one_message_too_many, _SOURCES),
    "connector_error": _fault(connector_fails, _ALL),
    "worker_error": _fault(worker_fails, _ALL),
    "truncated_frame": _fault(cut_frame, _ALL),
    "capture_ends_early": _fault(left_open, _ALL),
    "no_handshake_seen": _fault(begun_before, _SOURCES),
    "frame_before_ok": _fault(notify_too_soon, _ALL),
    "duplicate_ok": _fault(ok_again, _ALL),
    "frame_after_error": _fault(goes_on_after_error, _ALL, "connector_error"),
    "hello_refused": _refusal(b"Too many connections"),
    "hello_not_answered": _fault(unanswered_hello, _ALL),
    "handshake_inconsistent": _played(
        "One worker accepts a cookie, and then none.",
        on_connections(accepted_with(b"cookie"), accepted_with(b"")),
        _ALL,
    ),
    "zero_initial_credits": _fault(ok_without_credits, _SOURCES),
    "error_not_signalled": _fault(violation_is_acked, (*_IMPLEMENTED, SEED_SID), "message_unknown_stream"),
    "not_closed_after_error": _fault(stays_after_error, _ALL, "connector_error"),
    "notify_open_stream": _fault(notify_again, _TEXT),
    "notify_reference_unexpected": _fault(unknown_reference, _TEXT),
    "stream_id_reused": _played(
        "A stream's id has another name in the next session.",
        on_connections(stream_named(LEFT), stream_named(RIGHT)),
        _SOURCES,
    ),
    "ack_unknown_stream": _fault(ack_of_unknown_stream, _SOURCES),
    "ack_never_sent": _fault(ack_ahead, _SOURCES),
    "ack_goes_back": _fault(ack_back, _SOURCES),
    "message_never_acked": _fault(ack_missing, _SOURCES),
    "reference_unstable": _fault(unstable_ack, _TEXT),
    "nack_unknown_stream": _fault(nack_of_unknown_stream, _TEXT),
    "nack_not_answered": _fault(unanswered_nack, _TEXT),
    "boundary_with_payload": _fault(full_boundary, _TEXT),
    "ephemeral_id_repeated": _fault(ephemeral_twice, _TEXT),
    "message_ignored": _fault(dropped, _SOURCES),
    "notify_ack_unasked": _fault(unasked_answer, _IMPLEMENTED),
    "notify_refused": _fault(refused_stream, _IMPLEMENTED),
    "notify_not_answered": _fault(unanswered_notify, _IMPLEMENTED),
    "credits_not_replenished": _fault(no_credits, _SOURCES),
    "reconnect_without_backoff": _played(
        "A connection is lost five times, and each reconnect comes sooner.",
        on_connections(*[lost] * len(GAPS_NS), gaps_ns=GAPS_NS),
        _ALL,
    ),
}
