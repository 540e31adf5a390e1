"""Both state machines, every state and every frame, as the specification has them.

The grids are written from the text ("Protocol State Machine", "Stream State Machine") and, for what only the
implementations have, from what their worker does. The frames are written by no code that the codec has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import pytest

from tests.support.landed import landed_packets, read_log, segments
from tests.support.wallaroo_by_hand import (
    EOS,
    SECOND,
    C,
    Say,
    W,
    ack,
    answer,
    eos,
    error,
    flagged,
    frame,
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
    text,
    u32,
    u64,
    word,
)
from wirehouse_codecs.simulate.script import Conversation, Send, packets
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.wallaroo.log import log, schema
from wirehouse_codecs.wallaroo.options import WallarooOptions

PORT = 7100
Talk = tuple[Say, ...]
#: Rules and the state after them.
Verdict = tuple[list[str], str]


def of(side: Direction) -> Callable[[Say], Say]:
    return lambda said: said._replace(side=side)


def workers_left() -> Say:
    return Say(C, frame(9, u64(1), u32(0)))


def t_error(side: Direction) -> Say:
    return text(side, b"E", word(b"no"))


# How each connection state is reached, and what is said in it. Stream 1 is open in `streaming`; in the implementations
# stream 2 waits for its answer.

T_HEAD: Talk = (t_hello(), t_ok(), t_notify(), t_message(1))
HEAD: Talk = (hello(), ok(), notify(), answer(), message(1), notify(2, b"s2"))
TEXT_WAYS: Mapping[str, Talk] = {
    "connected": (),
    "handshake": (t_hello(),),
    "streaming": T_HEAD,
    "ended": (t_hello(), t_hello()),
    "error of C": (*T_HEAD, t_error(C)),
    "error of W": (*T_HEAD, t_error(W)),
}
TEXT_FRAMES: Mapping[str, Say] = {
    "HELLO": t_hello(),
    "OK": t_ok(),
    "ERROR": t_error(C),
    "NOTIFY": t_notify(2),
    "MESSAGE": t_message(2),
    "ACK": t_ack(1),
    "NACK": t_nack(1),
}
V3_WAYS: Mapping[str, Talk] = {
    "connected": (),
    "handshake": (hello(),),
    "streaming": HEAD,
    "restarted": (*HEAD, restart()),
    "ended": (hello(), hello()),
    "error of C": (*HEAD, error(C)),
    "error of W": (*HEAD, error(W)),
}
V3_FRAMES: Mapping[str, Say] = {
    "HELLO": hello(),
    "OK": ok(),
    "ERROR": error(C),
    "NOTIFY": notify(3, b"s3"),
    "NOTIFY_ACK": answer(2),
    "MESSAGE": message(2),
    "ACK": ack(1),
    "RESTART": restart(),
    "EOS_MESSAGE": eos(),
    "WORKERS_LEFT": workers_left(),
}

#: State, frame, and what it does from either side: the rules that it breaks, and where it leads.
#: "ended" is where the worker must close. In the error state what the other side sends is discarded.
OF_THE_TEXT = """
state       frame    | from the connector             | from the worker
connected   HELLO    | handshake                      | wrong_direction ended
connected   OK       | frame_before_hello ended       | frame_before_hello connected
connected   ERROR    | connector_error error          | worker_error error
connected   NOTIFY   | frame_before_hello ended       | wrong_direction ended
connected   MESSAGE  | frame_before_hello ended       | wrong_direction ended
connected   ACK      | frame_before_hello ended       | frame_before_hello connected
connected   NACK     | frame_before_hello ended       | frame_before_hello connected
handshake   HELLO    | duplicate_hello ended          | wrong_direction ended
handshake   OK       | wrong_direction ended          | streaming
handshake   ERROR    | connector_error error          | hello_refused error
handshake   NOTIFY   | frame_before_ok handshake      | wrong_direction ended
handshake   MESSAGE  | frame_before_ok message_unknown_stream ended | wrong_direction ended
handshake   ACK      | wrong_direction ended          | frame_before_ok handshake
handshake   NACK     | wrong_direction ended          | frame_before_ok nack_unknown_stream handshake
streaming   HELLO    | duplicate_hello ended          | wrong_direction ended
streaming   OK       | wrong_direction ended          | duplicate_ok streaming
streaming   ERROR    | connector_error error          | worker_error error
streaming   NOTIFY   | streaming                      | wrong_direction ended
streaming   MESSAGE  | streaming                      | wrong_direction ended
streaming   ACK      | wrong_direction ended          | streaming
streaming   NACK     | wrong_direction ended          | streaming
"""
OF_V3 = """
state       frame        | from the connector             | from the worker
connected   HELLO        | handshake                      | wrong_direction ended
connected   OK           | frame_before_hello ended       | frame_before_hello connected
connected   ERROR        | connector_error error          | worker_error error
connected   NOTIFY       | frame_before_hello ended       | wrong_direction ended
connected   NOTIFY_ACK   | frame_before_hello ended       | frame_before_hello connected
connected   MESSAGE      | frame_before_hello ended       | wrong_direction ended
connected   ACK          | frame_before_hello ended       | frame_before_hello connected
connected   RESTART      | frame_before_hello ended       | frame_before_hello connected
connected   EOS_MESSAGE  | frame_before_hello ended       | wrong_direction ended
connected   WORKERS_LEFT | frame_before_hello ended       | frame_before_hello connected
handshake   HELLO        | duplicate_hello ended          | wrong_direction ended
handshake   OK           | wrong_direction ended          | streaming
handshake   ERROR        | connector_error error          | hello_refused error
handshake   NOTIFY       | frame_before_ok handshake      | wrong_direction ended
handshake   NOTIFY_ACK   | wrong_direction ended          | frame_before_ok notify_ack_unasked handshake
handshake   MESSAGE      | frame_before_ok message_unknown_stream ended | wrong_direction ended
handshake   ACK          | wrong_direction ended          | frame_before_ok handshake
handshake   RESTART      | wrong_direction ended          | frame_before_ok handshake
handshake   EOS_MESSAGE  | frame_before_ok eos_unknown_stream ended | wrong_direction ended
handshake   WORKERS_LEFT | frame_before_ok handshake      | frame_before_ok handshake
streaming   HELLO        | duplicate_hello ended          | wrong_direction ended
streaming   OK           | wrong_direction ended          | duplicate_ok streaming
streaming   ERROR        | connector_error error          | worker_error error
streaming   NOTIFY       | streaming                      | wrong_direction ended
streaming   NOTIFY_ACK   | wrong_direction ended          | streaming
streaming   MESSAGE      | streaming                      | wrong_direction ended
streaming   ACK          | wrong_direction ended          | streaming
streaming   RESTART      | wrong_direction ended          | restarted
streaming   EOS_MESSAGE  | streaming                      | wrong_direction ended
streaming   WORKERS_LEFT | streaming                      | streaming
restarted   HELLO        | duplicate_hello ended          | wrong_direction ended
restarted   OK           | wrong_direction ended          | duplicate_ok restarted
restarted   ERROR        | connector_error error          | worker_error error
restarted   NOTIFY       | message_ignored restarted      | wrong_direction ended
restarted   NOTIFY_ACK   | wrong_direction ended          | restarted
restarted   MESSAGE      | message_ignored restarted      | wrong_direction ended
restarted   ACK          | wrong_direction ended          | restarted
restarted   RESTART      | wrong_direction ended          | restarted
restarted   EOS_MESSAGE  | message_ignored restarted      | wrong_direction ended
restarted   WORKERS_LEFT | restarted                      | restarted
"""


def rest_of(frames: Mapping[str, Say]) -> dict[tuple[str, str, Direction], Verdict]:
    """The states in which nothing is valid: after an ERROR, and after what the worker must close for."""
    found: dict[tuple[str, str, Direction], Verdict] = {}
    for name in frames:
        for side in Direction:
            found["ended", name, side] = [], "error" if name == "ERROR" else "ended"
            found["error of C", name, side] = ["frame_after_error" if side is C else "message_ignored"], "error"
            found["error of W", name, side] = ["frame_after_error" if side is W else "message_ignored"], "error"
    return found


def grid(told: str) -> dict[tuple[str, str, Direction], Verdict]:
    found: dict[tuple[str, str, Direction], Verdict] = {}
    for line in told.strip().splitlines()[1:]:
        pair, *verdicts = (cell.split() for cell in line.split("|"))
        for side, (*rules, state) in zip((C, W), verdicts, strict=True):
            found[pair[0], pair[1], side] = rules, state
    return found


def said(talk: Talk, dialect: str) -> tuple[Counter[str], str, dict[int, str]]:
    """Rules broken by a connection that the capture leaves open, its state, and those of its streams."""
    now, sent = 1000 * SECOND, list[Send]()
    for step in talk:
        now += step.after_ns
        sent.append(Send(now, step.side, step.data))
    conversation = Conversation(Endpoint("10.0.0.1", 40_000), Endpoint("10.0.0.2", PORT), 1000 * SECOND, list(sent))
    rows = segments(landed_packets(packets(conversation)), PORT)
    told = read_log(rows, log.starter(WallarooOptions(dialect=dialect), b"key"), schema.SCHEMA)
    rules = Counter(row["finding"]["rule"] for row in told if row["row_kind"] == "violation")
    states = [row["session"]["state"] for row in told if row["row_kind"] == "session"]
    streams = {int(row["stream_id"]): row["stream"]["state"] for row in told if row["row_kind"] == "stream"}
    return rules, (states or ["connected"])[0], streams


def added(talk: Talk, probe: Say, dialect: str) -> tuple[list[str], str, dict[int, str]]:
    """What a frame breaks that is said last, and the states after it."""
    before = said(talk, dialect)[0]
    rules, state, streams = said((*talk, probe), dialect)
    return sorted(rule.removeprefix("wallaroo.") for rule in (rules - before).elements()), state, streams


PAIRS = {
    dialect: (ways, frames, grid(told) | rest_of(frames))
    for dialect, ways, frames, told in (
        ("seed_sid", TEXT_WAYS, TEXT_FRAMES, OF_THE_TEXT),
        ("v3", V3_WAYS, V3_FRAMES, OF_V3),
    )
}


@pytest.mark.parametrize("dialect", PAIRS)
def test_the_grid_has_every_state_and_frame(dialect: str) -> None:
    ways, frames, expected = PAIRS[dialect]
    assert expected.keys() == {(state, name, side) for state in ways for name in frames for side in Direction}


@pytest.mark.parametrize(
    ("dialect", "state", "name", "side"),
    [
        pytest.param(dialect, *pair, id=f"{dialect} {' '.join(pair)}")
        for dialect, (_, _, told) in PAIRS.items()
        for pair in told
    ],
)
def test_a_frame_in_a_state_of_the_connection(dialect: str, state: str, name: str, side: Direction) -> None:
    ways, frames, expected = PAIRS[dialect]
    rules, after, _ = added(ways[state], of(side)(frames[name]), dialect)
    wanted, leads_to = expected[state, name, side]
    assert [rule for rule in rules if rule != "capture_ends_early"] == sorted(wanted)
    assert after == leads_to


# Streams. The probes are about stream 1; stream 7 is open, so that MESSAGE has a dialect.

T_BEGIN: Talk = (t_hello(), t_ok(), t_notify(7), t_message(1, stream=7))
T_OPEN: Talk = (*T_BEGIN, t_notify(), t_message(1))
TEXT_STREAMS: Mapping[str, Talk] = {
    "intro": T_BEGIN,
    "open": T_OPEN,
    "closed": (*T_OPEN, t_message(2, EOS)),
    "reset": (*T_OPEN, t_nack(0)),
    "reset twice": (*T_OPEN, t_nack(0), t_nack(0)),
    "intro reset": (*T_BEGIN, t_nack(0)),
    "intro reset twice": (*T_BEGIN, t_nack(0), t_nack(0)),
}
TEXT_ACTIONS: Mapping[str, Say] = {
    "NOTIFY": t_notify(),
    "MESSAGE": t_message(3),
    "MESSAGE EOS": t_message(3, EOS),
    "ACK": t_ack(1, (1, 1)),
    "NACK": t_nack(0),
}
BEGIN: Talk = (hello(), ok())
OPEN: Talk = (*BEGIN, notify(), answer(), message(1))
V3_STREAMS: Mapping[str, Talk] = {
    "intro": BEGIN,
    "pending": (*BEGIN, notify()),
    "pending twice": (*BEGIN, notify(), notify()),
    "refused": (*BEGIN, notify(), answer(success=0)),
    "open": OPEN,
    "open and asked": (*OPEN, notify()),
    "closed": (*OPEN, eos()),
    "closed and asked": (*OPEN, eos(), notify()),
}
V3_ACTIONS: Mapping[str, Say] = {
    "NOTIFY": notify(),
    "accepted": answer(),
    "refused": answer(success=0),
    "MESSAGE": message(3),
    "EOS_MESSAGE": eos(),
    "ACK": ack(1, (1, 2**64 - 1)),
}
V2_BEGIN: Talk = (hello(), ok2())
V2_OPEN: Talk = (*V2_BEGIN, notify(), answer(reference=0), flagged(1, 0, b"text"))
V2_STREAMS: Mapping[str, Talk] = {
    "intro": V2_BEGIN,
    "pending": (*V2_BEGIN, notify()),
    "refused": (*V2_BEGIN, notify(), answer(success=0, reference=0)),
    "open": V2_OPEN,
    "closed": (*V2_OPEN, flagged(2, EOS, b"text")),
}
V2_ACTIONS: Mapping[str, Say] = {
    "NOTIFY": notify(),
    "accepted": answer(reference=0),
    "refused": answer(success=0, reference=0),
    "MESSAGE": flagged(3, 0, b"text"),
    "MESSAGE EOS": flagged(3, EOS, b"text"),
    "ACK": ack(1),
}
STREAMS_OF_THE_TEXT = """
state             | NOTIFY                  | MESSAGE                      | MESSAGE EOS                  | ACK                      | NACK
intro             | open                    | message_unknown_stream intro | message_unknown_stream intro | ack_unknown_stream intro | nack_unknown_stream intro
open              | notify_open_stream open | open                         | closed                       | open                     | reset
closed            | open                    | message_closed_stream closed | message_closed_stream closed | closed                   | reset
reset             | open                    | message_ignored reset        | message_ignored reset        | reset                    | reset
reset twice       | reset                   | message_ignored reset        | message_ignored reset        | reset                    | reset
intro reset       | open                    | message_unknown_stream intro | message_unknown_stream intro | ack_unknown_stream intro | nack_unknown_stream intro
intro reset twice | reset                   | message_unknown_stream intro | message_unknown_stream intro | ack_unknown_stream intro | nack_unknown_stream intro
"""  # noqa: E501
STREAMS_OF_V3 = """
state            | NOTIFY  | accepted                   | refused                    | MESSAGE                           | EOS_MESSAGE                | ACK
intro            | pending | notify_ack_unasked intro   | notify_ack_unasked intro   | message_unknown_stream intro      | eos_unknown_stream intro   | ack_unknown_stream intro
pending          | pending | open                       | notify_refused refused     | message_before_notify_ack pending | eos_unknown_stream pending | pending
pending twice    | pending | open                       | notify_refused pending     | message_before_notify_ack pending | eos_unknown_stream pending | pending
refused          | pending | notify_ack_unasked refused | notify_ack_unasked refused | message_unknown_stream refused    | eos_unknown_stream refused | refused
open             | open    | notify_ack_unasked open    | notify_ack_unasked open    | open                              | closed                     | open
open and asked   | open    | open                       | notify_refused open        | open                              | closed                     | open
closed           | pending | notify_ack_unasked closed  | notify_ack_unasked closed  | message_closed_stream closed      | eos_unknown_stream closed  | closed
closed and asked | pending | open                       | notify_refused refused     | message_before_notify_ack pending | eos_unknown_stream pending | pending
"""  # noqa: E501
STREAMS_OF_V2 = """
state   | NOTIFY  | accepted                   | refused                    | MESSAGE                           | MESSAGE EOS
intro   | pending | notify_ack_unasked intro   | notify_ack_unasked intro   | message_unknown_stream intro      | message_unknown_stream intro
pending | pending | open                       | notify_refused refused     | message_before_notify_ack pending | message_before_notify_ack pending
refused | pending | notify_ack_unasked refused | notify_ack_unasked refused | message_unknown_stream refused    | message_unknown_stream refused
open    | open    | notify_ack_unasked open    | notify_ack_unasked open    | open                              | closed
closed  | pending | notify_ack_unasked closed  | notify_ack_unasked closed  | message_closed_stream closed      | message_closed_stream closed
"""  # noqa: E501
STREAMS = {
    "seed_sid": (TEXT_STREAMS, TEXT_ACTIONS, STREAMS_OF_THE_TEXT),
    "v3": (V3_STREAMS, V3_ACTIONS, STREAMS_OF_V3),
    "v2b": (V2_STREAMS, V2_ACTIONS, STREAMS_OF_V2),
}


def stream_grid(told: str) -> dict[tuple[str, str], Verdict]:
    head, *lines = ([cell.strip() for cell in line.split("|")] for line in told.strip().splitlines())
    return {
        (state, action): (cell.split()[:-1], cell.split()[-1])
        for state, *cells in lines
        for action, cell in zip(head[1:], cells, strict=True)
    }


@pytest.mark.parametrize(
    ("dialect", "state", "action"),
    [
        pytest.param(dialect, *pair, id=f"{dialect} {' '.join(pair)}")
        for dialect, (_, _, told) in STREAMS.items()
        for pair in stream_grid(told)
    ],
)
def test_an_action_in_a_state_of_a_stream(dialect: str, state: str, action: str) -> None:
    ways, actions, told = STREAMS[dialect]
    wanted, leads_to = stream_grid(told)[state, action]
    rules, _, streams = added(ways[state], actions[action], dialect)
    assert [rule for rule in rules if rule != "capture_ends_early"] == sorted(wanted)
    assert streams.get(1, "intro") == leads_to
