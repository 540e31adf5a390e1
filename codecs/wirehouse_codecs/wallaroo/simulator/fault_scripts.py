"""Connections that break a rule: a script for each fault, which its docstring describes.

A `Script` is the dialogue of one connector with its worker. The functions below write it. faults.py has the rule
that each of them breaks, and the dialects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from wirehouse_codecs.simulate.script import Ending
from wirehouse_codecs.tcp.endpoints import Direction
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

LEFT, RIGHT = b"/data/left.log", b"/data/right.log"
NS_PER_S: Final = 1_000_000_000
#: Longer than a side may leave open a connection after an ERROR, and than it may be without credits (options.py).
TOO_LONG_TO_CLOSE_NS: Final = 6 * NS_PER_S
TOO_LONG_WITHOUT_CREDITS_NS: Final = 11 * NS_PER_S
UNUSED_TAG: Final = 99


class Script(Talk):
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
        """The worker's answer to a violation: ERROR, and the end."""
        self.worker(Error(b"Protocol violation"))
        self.close(Direction.SERVER)

    def whole(self, body: bytes) -> bytes:
        """A frame around a body that `encode` wouldn't write."""
        return len(body).to_bytes(LENGTH_BYTES, self.dialect.byte_order) + body


Act = Callable[[Script], None]

# Frames


def dev_version(script: Script) -> None:
    """The connector speaks the version of a draft."""
    script.connector(Hello(DEV_VERSION, b"", b"program", b"instance"))
    script.worker(Ok(100))
    script.close()


def no_tag(script: Script) -> None:
    """A frame of length 0, and others after it."""
    script.open(LEFT)
    script.connector(bytes(LENGTH_BYTES), script.message(LEFT, 1))
    script.give_up()


def too_long(script: Script) -> None:
    """A frame announces one byte more than is allowed; the worker closes without a word."""
    script.open(LEFT)
    length = script.dialect.max_frame_bytes + 1
    script.connector(length.to_bytes(LENGTH_BYTES, script.dialect.byte_order) + b"its first bytes")
    script.close(Direction.SERVER)


def other_tag(script: Script) -> None:
    """A frame with a tag that no dialect has."""
    script.open(LEFT)
    script.connector(script.whole(bytes([UNUSED_TAG])))
    script.give_up()


def cut_notify(script: Script) -> None:
    """A NOTIFY that ends within its reference."""
    script.open(LEFT)
    body = encode_body(Notify(stream_id_of(RIGHT), RIGHT), script.dialect)
    script.connector(script.whole(body[:-3]))
    script.give_up()


def long_notify(script: Script) -> None:
    """A NOTIFY with bytes after its reference."""
    script.open()
    script.connector(script.whole(encode_body(Notify(stream_id_of(LEFT), LEFT), script.dialect) + b"junk"))
    script.answer(LEFT)
    script.close()


def cut_frame(script: Script) -> None:
    """The connector closes within a NOTIFY."""
    script.open(LEFT)
    script.connector(script.whole(encode_body(Notify(stream_id_of(RIGHT), RIGHT), script.dialect))[:-3])
    script.close()


# Handshake


def notify_first(script: Script) -> None:
    """A NOTIFY before HELLO."""
    script.connector(Notify(stream_id_of(LEFT), LEFT))
    script.give_up()


def hello_again(script: Script) -> None:
    """A second HELLO, at which the worker process stops."""
    script.open(LEFT)
    script.connector(script.greeting)
    script.close(Direction.SERVER, Ending.RESET)


def refused(reason: bytes) -> Act:
    """The worker answers HELLO by an ERROR with this text."""

    def act(script: Script) -> None:
        script.connector(script.greeting)
        script.worker(Error(reason))
        script.close(Direction.SERVER)

    return act


def unanswered_hello(script: Script) -> None:
    """The connector closes after HELLO, for no answer came."""
    script.connector(script.greeting)
    script.wait(NS_PER_S)
    script.close()


def notify_too_soon(script: Script) -> None:
    """A NOTIFY between HELLO and OK."""
    script.connector(script.greeting, Notify(stream_id_of(LEFT), LEFT))
    script.worker(Ok(100))
    script.answer(LEFT)
    script.close()


def ok_again(script: Script) -> None:
    """A second OK."""
    script.open(LEFT)
    script.worker(Ok(100))
    script.close()


def ok_without_credits(script: Script) -> None:
    """An OK with 0 credits, and an ACK that grants some."""
    script.open(granted=0)
    script.worker(Ack(100))
    script.notify(LEFT)
    script.close()


def accepted_with(cookie: bytes) -> Act:
    """The worker accepts a cookie."""

    def act(script: Script) -> None:
        script.greeting = replace(script.greeting, cookie=cookie)
        script.open(LEFT)
        script.close()

    return act


# Directions, streams, flags, credits


def connector_acks(script: Script) -> None:
    """An ACK from the connector."""
    script.open(LEFT)
    script.connector(Ack(10))
    script.give_up()


def unknown_stream(script: Script) -> None:
    """A MESSAGE, and no stream was notified."""
    script.open()
    script.send(LEFT, 1)
    script.give_up()


def unanswered_stream(script: Script) -> None:
    """A MESSAGE right after the NOTIFY of its stream."""
    script.open()
    script.connector(Notify(stream_id_of(LEFT), LEFT), script.message(LEFT, 1))
    script.give_up()


def ended_stream(script: Script) -> None:
    """A MESSAGE of a stream that ended."""
    script.open(LEFT)
    script.send(LEFT, 1)
    script.end_stream(LEFT, 2)
    script.ack(LEFT, 1)
    script.send(LEFT, 3)
    script.give_up()


def end_of_unknown_stream(script: Script) -> None:
    """An EOS_MESSAGE of a stream that was never notified."""
    script.open(LEFT)
    script.end_stream(RIGHT, 1)
    script.give_up()


def forbidden_flags(script: Script) -> None:
    """A MESSAGE that is a boundary and no stable reference."""
    script.open(LEFT)
    script.connector(script.message(LEFT, 1, Flag.BOUNDARY | Flag.UNSTABLE_REFERENCE, b""))
    script.give_up()


def reserved_flag(script: Script) -> None:
    """A MESSAGE with the lowest flag that is reserved."""
    script.open(LEFT)
    script.send(LEFT, 1)
    script.send(LEFT, 2, flags=(script.dialect.flags or 0) + 1 & ~(script.dialect.flags or 0))
    script.ack(LEFT, 2)
    script.close()


def one_message_too_many(script: Script) -> None:
    """Two messages, and after NOTIFY one credit is left."""
    script.open(LEFT, granted=2)
    script.send(LEFT, 1, 2)
    script.ack(LEFT, 2)
    script.close()


def no_credits(script: Script) -> None:
    """NOTIFY takes the last credit, and none comes for long."""
    script.open(LEFT, granted=1)
    script.wait(TOO_LONG_WITHOUT_CREDITS_NS)
    script.worker(Ack(10))
    script.close()


# Errors and ends


def connector_fails(script: Script) -> None:
    """The connector sends an ERROR and closes."""
    script.open(LEFT)
    script.connector(Error(b"file not found"))
    script.close()


def worker_fails(script: Script) -> None:
    """The worker sends an ERROR, and nothing was wrong."""
    script.open(LEFT)
    script.worker(Error(b"out of memory"))
    script.close(Direction.SERVER)


def goes_on_after_error(script: Script) -> None:
    """The connector sends a MESSAGE after its ERROR."""
    script.open(LEFT)
    script.connector(Error(b"file not found"), script.message(LEFT, 1))
    script.close()


def stays_after_error(script: Script) -> None:
    """The connection stays open after an ERROR."""
    script.open(LEFT)
    script.connector(Error(b"file not found"))
    script.wait(TOO_LONG_TO_CLOSE_NS)
    script.close()


def violation_is_acked(script: Script) -> None:
    """The worker acks a MESSAGE of a stream that it doesn't know."""
    script.open()
    script.send(LEFT, 1)
    script.ack(LEFT, 1)
    script.close()


def left_open(script: Script) -> None:
    """The capture ends, the connection doesn't."""
    script.open(LEFT)


def begun_before(script: Script) -> None:
    """The capture begins after the handshake."""
    script.open(LEFT)
    script.captured_from_ns = script.now_ns + 1
    script.send(LEFT, *range(1, 21))
    script.ack(LEFT, 20)
    script.close()


# References, acks, habits


def notify_again(script: Script) -> None:
    """A NOTIFY of a stream that is open."""
    script.open(LEFT)
    script.notify(LEFT)
    script.close()


def unknown_reference(script: Script) -> None:
    """A NOTIFY with a reference that the worker never gave."""
    script.open()
    script.notify(LEFT, reference=99)
    script.close()


def stream_named(name: bytes) -> Act:
    """The one id is that of a stream with this name."""

    def act(script: Script) -> None:
        script.open()
        script.notify(name, stream_id_of(LEFT))
        script.close()

    return act


def ack_of_unknown_stream(script: Script) -> None:
    """An ACK of a stream that was never notified."""
    script.open(LEFT)
    script.ack(RIGHT, 1)
    script.close()


def ack_ahead(script: Script) -> None:
    """An ACK of an id that was not sent."""
    script.open(LEFT)
    script.send(LEFT, 1, 2)
    script.ack(LEFT, 2)
    script.ack(LEFT, 3)
    script.close()


def ack_back(script: Script) -> None:
    """An ACK of an id before one that was acked."""
    script.open(LEFT)
    script.send(LEFT, 1, 2)
    script.ack(LEFT, 2)
    script.ack(LEFT, 1)
    script.close()


def ack_missing(script: Script) -> None:
    """The last message is not acked."""
    script.open(LEFT)
    script.send(LEFT, 1, 2)
    script.ack(LEFT, 1)
    script.close()


def unstable_ack(script: Script) -> None:
    """An ACK of a message that is no stable reference."""
    script.open(LEFT)
    script.send(LEFT, 1, flags=Flag.UNSTABLE_REFERENCE)
    script.ack(LEFT, 1)
    script.close()


def nack_of_unknown_stream(script: Script) -> None:
    """A NACK of a stream before its NOTIFY."""
    script.open()
    script.nack(LEFT, 0)
    script.notify(LEFT)
    script.close()


def unanswered_nack(script: Script) -> None:
    """A NACK, and no NOTIFY after it."""
    script.open(LEFT)
    script.send(LEFT, 1)
    script.ack(LEFT, 1)
    script.nack(LEFT, 1)
    script.close()


def full_boundary(script: Script) -> None:
    """A boundary with a payload."""
    script.open(LEFT)
    script.send(LEFT, 1)
    script.send(LEFT, 2, flags=Flag.BOUNDARY)
    script.ack(LEFT, 2)
    script.close()


def ephemeral_twice(script: Script) -> None:
    """Two ephemeral messages with one id, and a message that can be acked."""
    script.open(LEFT)
    script.send(LEFT, 1, 1, flags=Flag.EPHEMERAL)
    script.send(LEFT, 2)
    script.ack(LEFT, 2)
    script.close()


def dropped(script: Script) -> None:
    """A message that the worker drops: of a stream it has reset, or with an id that it has seen."""
    script.open(LEFT)
    script.send(LEFT, 1, 2)
    script.ack(LEFT, 2)
    if script.dialect.skips_repeats:
        script.send(LEFT, 2)
    else:
        script.nack(LEFT, 2)
        script.send(LEFT, 3)
        script.notify(LEFT, reference=2)
        script.send(LEFT, 3)
        script.ack(LEFT, 3)
    script.close()


def unasked_answer(script: Script) -> None:
    """A second NOTIFY_ACK."""
    script.open(LEFT)
    script.answer(LEFT)
    script.close()


def refused_stream(script: Script) -> None:
    """A NOTIFY_ACK without success."""
    script.open(LEFT)
    script.connector(Notify(stream_id_of(RIGHT), RIGHT))
    script.answer(RIGHT, success=0)
    script.close()


def unanswered_notify(script: Script) -> None:
    """A NOTIFY without a NOTIFY_ACK."""
    script.open(LEFT)
    script.connector(Notify(stream_id_of(RIGHT), RIGHT))
    script.close()


def lost(script: Script) -> None:
    """The connection is reset."""
    script.open(LEFT)
    script.close(Direction.SERVER, Ending.RESET)
