"""Frames of the Wallaroo connector protocol, written from its text by no code that the codec or the simulator has."""

from __future__ import annotations

from typing import NamedTuple

from wirehouse_codecs.tcp.endpoints import Direction

SECOND = 10**9
C, W = Direction.CLIENT, Direction.SERVER
#: "Nothing seen yet" of v3.
NOTHING = 2**64 - 1


class Say(NamedTuple):
    """A side writes `data`, so many nanoseconds after what came before."""

    side: Direction
    data: bytes
    after_ns: int = SECOND // 100


# Frames of the implementations: big endian, numbers for tags


def frame(tag: int, *body: bytes) -> bytes:
    data = bytes([tag]) + b"".join(body)
    return len(data).to_bytes(4, "big") + data


def u32(number: int) -> bytes:
    return number.to_bytes(4, "big")


def u64(number: int) -> bytes:
    return number.to_bytes(8, "big")


def short(text: bytes) -> bytes:
    return len(text).to_bytes(2, "big") + text


def hello(version: bytes = b"0.0.1", cookie: bytes = b"monster", instance: bytes = b"i") -> Say:
    return Say(C, frame(0, short(version), short(cookie), short(b"program"), short(instance)))


def ok(granted: int = 100) -> Say:
    return Say(W, frame(1, u32(granted)))


def ok2(granted: int = 100) -> Say:
    """Of v2b, with two lists."""
    return Say(W, frame(1, u32(granted), u32(0), u32(0)))


def error(side: Direction, text: bytes = b"no") -> Say:
    return Say(side, frame(2, short(text)))


def notify(stream: int = 1, name: bytes = b"s1") -> Say:
    return Say(C, frame(3, u64(stream), short(name), u64(0)))


def answer(stream: int = 1, success: int = 1, reference: int = NOTHING) -> Say:
    return Say(W, frame(4, bytes([success]), u64(stream), u64(reference)))


def message(number: int, stream: int = 1, payload: bytes = b"text") -> Say:
    return Say(C, frame(5, u64(stream), u64(number), u64(7), short(b"key"), payload))


def flagged(number: int, flags: int, *rest: bytes, stream: int = 1) -> Say:
    """Of v2."""
    return Say(C, frame(5, u64(stream), bytes([flags]), u64(number), *rest))


def ack(granted: int, *pairs: tuple[int, int]) -> Say:
    listed = b"".join(u64(stream) + u64(number) for stream, number in pairs)
    return Say(W, frame(6, u32(granted), u32(len(pairs)), listed))


def restart() -> Say:
    return Say(W, frame(7, u32(0)))


def eos(stream: int = 1) -> Say:
    return Say(C, frame(8, u64(stream)))


# Frames of the text: little endian, letters for tags; MESSAGE with a stream id


def text(side: Direction, tag: bytes, *body: bytes) -> Say:
    data = tag + b"".join(body)
    return Say(side, len(data).to_bytes(4, "little") + data)


def number(value: int, size: int = 8) -> bytes:
    return value.to_bytes(size, "little")


def word(value: bytes) -> bytes:
    return number(len(value), 2) + value


def t_notify(stream: int = 1, reference: int = 0) -> Say:
    return t_named(stream, b"s%d" % stream, reference)


def t_named(stream: int, name: bytes, reference: int) -> Say:
    return text(C, b"N", number(stream), word(name), number(reference))


def t_message(identity: int, flags: int = 0, rest: bytes = b"text", stream: int = 1) -> Say:
    return text(C, b"M", number(stream), number(flags, 2), number(identity), rest)


def t_ack(granted: int, *pairs: tuple[int, int]) -> Say:
    return text(W, b"A", number(granted, 4), *(number(value) for pair in pairs for value in pair))


def t_nack(reference: int, stream: int = 1) -> Say:
    return text(W, b"!", number(1, 4), number(stream), number(reference))


def t_ok(*pairs: tuple[int, int], granted: int = 100) -> Say:
    return text(W, b"O", number(granted, 4), *(number(value) for pair in pairs for value in pair))


def t_hello(instance: bytes = b"i") -> Say:
    return text(C, b"H", bytes(range(16)), word(b"monster"), word(b"program"), word(instance))


EPHEMERAL, BOUNDARY, EOS, UNSTABLE, EVENT_TIME, RESERVED = 1, 2, 4, 8, 16, 32
