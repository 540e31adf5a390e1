"""Sessions, streams and turns of credits: each column against what the data dictionary says of it.

Gold has these columns as they are here. The frames are written by no code that the codec has.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.landed import landed_packets, read_log, segments
from tests.support.wallaroo_by_hand import (
    BOUNDARY,
    EOS,
    EPHEMERAL,
    NOTHING,
    SECOND,
    C,
    Say,
    W,
    ack,
    answer,
    eos,
    error,
    flagged,
    hello,
    message,
    notify,
    ok,
    ok2,
    restart,
    t_ack,
    t_hello,
    t_message,
    t_nack,
    t_notify,
    t_ok,
)
from wirehouse_codecs.simulate.script import Close, Conversation, Send, packets
from wirehouse_codecs.tcp.endpoints import Endpoint
from wirehouse_codecs.wallaroo.log import log, schema
from wirehouse_codecs.wallaroo.options import WallarooOptions

PORT = 7100
Talk = tuple[Say, ...]
Row = dict[str, Any]

OPEN: Talk = (hello(), ok(), notify(), answer())
V2: Talk = (hello(), ok2(), notify(), answer(reference=0))
TEXT: Talk = (t_hello(), t_ok(), t_notify())


def rows(talk: Talk, dialect: str, *, ends: bool = False) -> list[Row]:
    now, events = 1000 * SECOND, list[Send | Close]()
    for step in talk:
        now += SECOND
        events.append(Send(now, step.side, step.data))
    if ends:
        events.append(Close(now + SECOND, C))
    conversation = Conversation(Endpoint("10.0.0.1", 40_000), Endpoint("10.0.0.2", PORT), 1000 * SECOND, events)
    captured = segments(landed_packets(packets(conversation)), PORT)
    return read_log(captured, log.starter(WallarooOptions(dialect=dialect), b"key"), schema.SCHEMA)


def session(talk: Talk, dialect: str = "v3", *, ends: bool = False) -> Row:
    return next(row["session"] for row in rows(talk, dialect, ends=ends) if row["row_kind"] == "session")


def stream(talk: Talk, dialect: str = "v3") -> Row:
    told = next(row for row in rows(talk, dialect) if row["row_kind"] == "stream" and int(row["stream_id"]) == 1)
    return {
        name: int(one) if name.endswith(("id", "sent", "acked", "point")) and one is not None else one
        for name, one in told["stream"].items()
    }


def turns(talk: Talk, dialect: str = "v3", *, ends: bool = False) -> list[tuple[Any, ...]]:
    """Kind, granted, balance, spent, overdrawn."""
    told = [row["credit"] for row in rows(talk, dialect, ends=ends) if row["row_kind"] == "credit"]
    return [tuple(list(one.values())[:5]) for one in told]


def account(talk: Talk, dialect: str = "v3") -> tuple[int, int, int | None]:
    told = session(talk, dialect)
    return told["granted"], told["spent"], told["credits"]


@pytest.mark.parametrize(
    ("talk", "expected"),
    [
        ((hello(), ok(5)), (5, 0, 5)),
        ((hello(), ok(5), notify(), answer(), message(1), ack(3, (1, 1))), (8, 2, 6)),
        ((hello(), ok(2), notify(), answer(), message(1), message(2)), (2, 3, -1)),
        # No credit: EOS_MESSAGE, a second OK, what comes before OK.
        ((*OPEN, eos()), (100, 1, 99)),
        ((hello(), ok(5), ok(7)), (5, 0, 5)),
        ((hello(), notify(), ack(3), ok(5)), (5, 0, 5)),
        # Two OKs, of which the first comes before HELLO: the other one counts.
        ((ok(4), hello(), notify()), (4, 1, 3)),
        ((ok(4), hello(), ok(5), notify()), (5, 1, 4)),
        # What comes after RESTART still takes credits.
        ((*OPEN, restart(), message(1), ack(2)), (102, 2, 100)),
        # The frame that breaks a rule that ends the session takes one, those after it don't, nor after an ERROR.
        ((*OPEN, message(1, stream=2), message(1), ack(3)), (100, 2, 98)),
        ((*OPEN, error(C), message(1), ack(3)), (100, 1, 99)),
    ],
)
def test_credits(talk: Talk, expected: tuple[int, int, int]) -> None:
    assert account(talk) == expected
    assert expected[0] - expected[1] == expected[2]
    if sum(step.data == ok(4).data for step in talk) == 0:
        told = turns(talk, ends=True)
        assert sum(turn[1] for turn in told) == expected[0]
        assert (sum(turn[3] for turn in told), told[-1][2]) == expected[1:]


def test_a_nack_grants_credits() -> None:
    assert account((*TEXT, t_message(1), t_nack(0)), "seed_sid") == (101, 2, 99)


def test_turns_of_credits() -> None:
    talk = (hello(), ok(2), notify(), answer(), message(1), message(2), message(3), ack(0), ack(4), message(4))
    assert turns(talk, ends=True) == [("OK", 2, 2, 0, 0), ("ACK", 4, 2, 4, 2), (None, 0, 1, 1, 0)]
    # Before HELLO an OK is a turn, too.
    assert turns((ok(4), hello(), ok(5)))[:2] == [("OK", 4, 4, 0, 0), ("OK", 5, 5, 0, 0)]


@pytest.mark.parametrize(
    ("talk", "by"),
    [
        (OPEN, None),
        ((*OPEN, error(C)), "client"),
        ((*OPEN, error(W)), "server"),
        ((*OPEN, error(W), error(C)), "both"),
        ((*OPEN, error(C), error(C)), "client"),
        # Also after a rule that ends the session.
        ((*OPEN, hello(), error(W)), "server"),
        ((*OPEN, hello(), error(C)), "client"),
        ((error(C),), "client"),
    ],
)
def test_error_by(talk: Talk, by: str | None) -> None:
    assert session(talk)["error_by"] == by


def test_eos_messages_are_those_that_a_worker_takes() -> None:
    assert session((*OPEN, eos(), eos(), eos()))["eos_messages"] == 2
    assert session((*OPEN, restart(), eos()))["eos_messages"] == 1
    assert session((*OPEN, error(C), eos()))["eos_messages"] == 0


def test_accepted_and_failed() -> None:
    def both(*talk: Say) -> tuple[bool, bool]:
        told = session(talk, ends=True)
        return told["accepted"], told["failed"]

    assert both(*OPEN) == (True, False)
    assert both(hello(), error(W)) == (False, True)
    assert both(hello()) == (False, True)
    assert both(*OPEN, error(W)) == (True, True)
    assert both(*OPEN, hello()) == (True, True)
    assert both(*OPEN, restart()) == (True, False)


@pytest.mark.parametrize(
    ("talk", "dialect", "expected"),
    [
        # Those that are ignored, and those that break a rule.
        ((*OPEN, message(1), message(1), eos(), message(2), message(3)), "v3", 4),
        ((*OPEN, restart(), message(1)), "v3", 1),
        ((*OPEN, error(W), message(1)), "v3", 1),
        ((hello(), message(1), message(2)), "v3", 2),
        ((*V2, flagged(1, 0), flagged(2, EOS)), "v2b", 2),
        ((*TEXT, t_message(1), t_nack(0), t_message(2)), "seed_sid", 2),
        # What the worker says is none.
        ((*OPEN, message(1)._replace(side=W)), "v3", 0),
    ],
)
def test_messages(talk: Talk, dialect: str, expected: int) -> None:
    assert stream((*talk, *[notify()] * (not talk)), dialect)["messages"] == expected


@pytest.mark.parametrize(
    ("talk", "dialect", "expected"),
    [
        (OPEN, "v3", (None, None, None)),
        ((*OPEN, message(7), message(3), message(9)), "v3", (7, 9, 9)),
        # What breaks a rule of streams is none of it.
        ((*OPEN, message(7), eos(), message(8)), "v3", (7, 7, 7)),
        ((*TEXT, t_message(20), t_message(10)), "seed_sid", (20, 10, 20)),
        # What the worker drops because of a NACK was sent.
        ((*TEXT, t_message(1), t_nack(0), t_message(2)), "seed_sid", (1, 2, 2)),
        # In v3 2^64-1 names no message, so it is no greatest one; elsewhere it is an id like others.
        ((*OPEN, message(7), message(NOTHING), message(8)), "v3", (7, 8, 8)),
        ((*OPEN, message(NOTHING)), "v3", (NOTHING, NOTHING, None)),
        ((*V2, flagged(7, 0), flagged(NOTHING, 0)), "v2b", (7, NOTHING, NOTHING)),
        ((*TEXT, t_message(NOTHING)), "seed_sid", (NOTHING, NOTHING, NOTHING)),
    ],
)
def test_ids_that_were_sent(talk: Talk, dialect: str, expected: tuple[int | None, ...]) -> None:
    told = stream(talk, dialect)
    assert (told["first_id"], told["last_sent"], told["highest_sent"]) == expected


@pytest.mark.parametrize(
    ("talk", "dialect", "expected"),
    [
        (OPEN, "v3", None),
        ((*OPEN, message(1), message(2), ack(1, (1, 1))), "v3", 1),
        # One that goes back changes nothing, unless the stream was reset.
        ((*OPEN, message(1), message(2), ack(1, (1, 2)), ack(1, (1, 1))), "v3", 2),
        (
            (
                *TEXT,
                t_message(1),
                t_message(2),
                t_ack(1, (1, 2)),
                t_nack(0),
                t_notify(),
                t_message(1),
                t_ack(1, (1, 1)),
            ),
            "seed_sid",
            1,
        ),
        # The resume point, once it is acked; and what is sent after it.
        ((hello(), ok(), notify(), answer(reference=50)), "v3", None),
        ((hello(), ok(), notify(), answer(reference=50), ack(1, (1, 50))), "v3", 50),
        ((hello(), ok(), notify(), answer(reference=50), message(51), ack(1, (1, 51)), ack(1, (1, 50))), "v3", 51),
        ((t_hello(), t_ok((1, 5)), t_notify(reference=5), t_ack(1, (1, 5))), "seed_sid", 5),
        # "Nothing seen yet" of v3 is no id, elsewhere it is.
        ((*OPEN, message(1), ack(1, (1, NOTHING))), "v3", None),
        ((*OPEN, message(NOTHING), ack(1, (1, NOTHING))), "v3", None),
        ((*V2, flagged(NOTHING, 0), ack(1, (1, NOTHING))), "v2b", NOTHING),
        ((*TEXT, t_message(NOTHING), t_ack(1, (1, NOTHING))), "seed_sid", NOTHING),
        # 0 may be the id of a message.
        ((*OPEN, message(0), ack(1, (1, 0))), "v3", 0),
        ((*OPEN, ack(1, (1, 0))), "v3", None),
    ],
)
def test_last_acked(talk: Talk, dialect: str, expected: int | None) -> None:
    assert stream(talk, dialect)["last_acked"] == expected


@pytest.mark.parametrize(
    ("talk", "dialect", "expected"),
    [
        (OPEN, "v3", None),
        ((hello(), ok(), notify()), "v3", None),
        ((hello(), ok(), notify(), answer(reference=50)), "v3", 50),
        # A refusal repeats the reference of the NOTIFY.
        ((hello(), ok(), notify(), answer(success=0, reference=50)), "v3", None),
        ((hello(), ok(), notify(), answer(reference=0)), "v3", 0),
        ((hello(), ok2(), notify(), answer(reference=NOTHING)), "v2b", NOTHING),
        ((t_hello(), t_ok((1, 5))), "seed_sid", 5),
        ((t_hello(), t_ok((1, NOTHING)), t_notify()), "seed_sid", NOTHING),
        ((t_hello(), t_ok((1, 5)), t_notify(reference=5), t_message(6), t_ack(1, (1, 6))), "seed_sid", 5),
        ((t_hello(), t_ok((1, 5)), t_notify(reference=5), t_message(6), t_nack(3), t_nack(4)), "seed_sid", 4),
    ],
)
def test_resume_point(talk: Talk, dialect: str, expected: int | None) -> None:
    assert stream(talk, dialect)["resume_point"] == expected


@pytest.mark.parametrize(
    ("talk", "dialect", "expected"),
    [
        (OPEN, "v3", (0, None, None)),
        ((*OPEN, message(1), message(2), message(3), ack(1, (1, 2))), "v3", (1, 3, 7)),
        # The worker never acks what it skips, or what only marks a place.
        ((*OPEN, message(1), message(1), message(2)), "v3", (2, 1, 5)),
        ((*V2, flagged(1, BOUNDARY), flagged(2, 0), flagged(3, EOS)), "v2b", (1, 2, 6)),
        ((*TEXT, t_message(1), t_message(2, EPHEMERAL), t_message(3, BOUNDARY, b"")), "seed_sid", (3, 1, 4)),
        ((*TEXT, t_message(1), t_nack(0), t_message(2)), "seed_sid", (1, 1, 4)),
        # It is sent again.
        ((*TEXT, t_message(1), t_message(2), t_nack(0), t_notify(), t_message(1)), "seed_sid", (2, 2, 5)),
        # An earlier session had acked the same id, as far as can be known.
        ((t_hello(), t_ok((1, 9)), t_notify(reference=9), t_ack(1, (1, 9)), t_message(9)), "seed_sid", (1, None, None)),
        # A rule ended the session.
        ((*OPEN, message(1), hello()), "v3", (1, None, None)),
    ],
)
def test_unacked(talk: Talk, dialect: str, expected: tuple[int, int | None, int | None]) -> None:
    told = stream(talk, dialect)
    assert (told["unacked"], told["oldest_unacked_id"], _step(told["unacked_since_ns"])) == expected


def _step(at_ns: int | None) -> int | None:
    """Which step of a talk came then."""
    return None if at_ns is None else at_ns // SECOND - 1000


@pytest.mark.parametrize(
    ("talk", "dialect", "expected"),
    [
        (OPEN, "v3", (None, 0, True)),
        ((hello(), ok(), notify()), "v3", (None, 0, False)),
        ((hello(), ok(), notify(), answer(success=0), notify(), answer(success=0)), "v3", (4, 2, False)),
        ((hello(), ok(), notify(), answer(success=0), notify(), answer()), "v3", (None, 0, True)),
        ((*OPEN, eos(), notify(), answer(success=0)), "v3", (7, 1, True)),
        # A second NOTIFY of an open stream.
        ((*OPEN, notify(), answer(success=0)), "v3", (6, 1, True)),
        ((*OPEN, notify(), answer(success=0), eos()), "v3", (None, 0, True)),
        ((*V2, notify(), answer(success=0), flagged(1, EOS)), "v2b", (None, 0, True)),
        ((*V2, notify(), answer(success=0), flagged(1, 0)), "v2b", (6, 1, True)),
        # An answer after an ERROR doesn't count.
        ((hello(), ok(), notify(), notify(), answer(success=0), error(W), answer()), "v3", (5, 1, False)),
        ((*TEXT, t_nack(0)), "seed_sid", (None, 0, True)),
    ],
)
def test_refusals(talk: Talk, dialect: str, expected: tuple[int | None, int, bool]) -> None:
    told = stream(talk, dialect)
    assert (_step(told["refused_since_ns"]), told["refusals"], told["was_in_use"]) == expected


@pytest.mark.parametrize(
    ("talk", "expected"),
    [
        ((hello(), ok(), notify()), (None, None, None)),
        ((hello(), ok(), notify(), answer(success=0, reference=5)), (None, None, None)),
        ((hello(), ok(), notify(), answer(reference=5), notify(), answer(reference=6)), (5, 4, False)),
        ((hello(), ok(), notify(), answer(reference=0)), (0, 4, True)),
        ((hello(), ok(), notify(), answer(reference=NOTHING)), (None, 4, False)),
    ],
)
def test_accepted_point(talk: Talk, expected: tuple[int | None, int | None, bool | None]) -> None:
    told = stream(talk)
    assert (told["accepted_point"], _step(told["accepted_at_ns"]), told["accepted_echoes"]) == expected


def test_what_waits() -> None:
    def waiting(*talk: Say, dialect: str = "v3") -> tuple[int, int]:
        told = stream(talk, dialect)
        return told["nack_depth"], told["notifies_waiting"]

    assert waiting(*OPEN, notify(), notify(), answer(success=0)) == (0, 1)
    assert waiting(*TEXT, t_message(1), t_nack(0), t_nack(0), t_notify(), dialect="seed_sid") == (1, 0)
