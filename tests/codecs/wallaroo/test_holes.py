"""Holes in a capture: what may have stood in them is blamed on nobody."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from wirehouse_codecs.rules import Place, Severity
from wirehouse_codecs.tcp import Direction
from wirehouse_codecs.wallaroo.connection import Connection, Read
from wirehouse_codecs.wallaroo.messages import DIALECTS, Ack, Frame, Hello, Message, Notify, NotifyAck, Ok, encode
from wirehouse_codecs.wallaroo.options import AUTO, WallarooOptions
from wirehouse_codecs.wallaroo.reader import HELD_FRAMES, Reader
from wirehouse_codecs.wallaroo.session import Session

C, S = Direction.CLIENT, Direction.SERVER
SOURCES = [name for name, dialect in DIALECTS.items() if not dialect.sink]
Said = list[tuple[Direction, Frame]]


def place(at: int) -> Place:
    return Place(at, 0, b"", at)


def connection(dialect: str) -> Connection:
    options = WallarooOptions(dialect=dialect)
    return Connection(Reader(options), options, lambda known: Session(known, options))


def said(
    name: str, greeting: Callable[..., Hello], msg: Callable[..., Message], acked: Callable[..., Ack]
) -> tuple[Said, Said]:
    """The frames that may be missing, and so many after them that their place is found again in both directions."""
    opening: Said = [(C, greeting(name)), (S, Ok(50)), (C, Notify(1, b"one"))]
    if DIALECTS[name].answers_notify:
        opening.append((S, NotifyAck(1, 1, 0)))
    opening += [(C, msg(name, 1, 1)), (C, msg(name, 1, 2)), (S, acked(50, (1, 2)))]
    rest = [(C, msg(name, 1, number)) for number in range(3, 14)]
    return opening, [*rest, *((S, acked(1, (1, number))) for number in range(3, 12))]


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("name", SOURCES)
def test_a_frame_that_is_missing_breaks_no_rule(
    name: str,
    forced: bool,
    greeting: Callable[..., Hello],
    msg: Callable[..., Message],
    acked: Callable[..., Ack],
) -> None:
    opening, rest = said(name, greeting, msg, acked)
    for missing in range(len(opening)):
        taken = connection(name if forced else AUTO)
        read: list[Read] = []
        for number, (direction, frame) in enumerate([*opening, *rest]):
            data = encode(frame, DIALECTS[name])
            if number == missing:
                read += taken.hole(direction, len(data), place(number))
            else:
                read += taken.receive(direction, data, place(number))
        read += taken.finish(place(99))
        assert taken.session is not None
        assert taken.session.partial
        told = [found for one in read if one.outcome is not None for found in one.outcome.findings]
        assert [found.rule.name for found in told if found.rule.severity is not Severity.NOTE] == []
        frames = [one for one in read if one.received.decoded.frame is not None]
        assert len(frames) == len(opening) + len(rest) - 1


def test_holes_alone_are_held_once() -> None:
    reader = Reader(WallarooOptions())
    for number in range(2 * HELD_FRAMES):
        assert reader.hole(C, 10, place(number)) == []
    assert len(reader._held) == 1
    assert reader.finish(place(0)) == []


def test_a_length_that_no_frame_has_is_not_read_as_a_tag() -> None:
    taken = connection(AUTO)
    read = taken.receive(C, b"HTTP/1.1 200 OK\r\n", place(1))
    read += taken.finish(place(2))
    assert [one.received.decoded.rule and one.received.decoded.rule.name for one in read] == ["oversize_frame"]
