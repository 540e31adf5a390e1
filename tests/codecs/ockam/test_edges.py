"""Each rule at its very edge: what just keeps it breaks nothing, and one step further breaks it alone.

The bytes are written here from the specification, by no code that the codec or the simulator has.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.support.landed import landed_packets
from wirehouse_codecs.logs.inspection import VIOLATION
from wirehouse_codecs.ockam.inspection import inspect
from wirehouse_codecs.ockam.rules import RULE
from wirehouse_codecs.simulate.script import Close, Conversation, Send, packets
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint

PORT, MS = 4000, 10**6
#: Who writes what.
Step = tuple[Direction, bytes]
ME, STREAM = "me", "s-1"

# Bytes


def uint(number: int) -> bytes:
    """Seven bits in each byte, the lowest first."""
    more = number >> 7
    return bytes([number & 0x7F | 0x80]) + uint(more) if more else bytes([number])


def data(content: bytes) -> bytes:
    return uint(len(content)) + content


def text(content: str) -> bytes:
    return data(content.encode())


def route(*addresses: str) -> bytes:
    return uint(len(addresses)) + b"".join(b"\0" + text(one) for one in addresses)


def frame(message: bytes, more: int = 0) -> bytes:
    """Its length says `more` than there is."""
    return (len(message) + more).to_bytes(2, "big") + message


def routed(to: bytes, back: bytes, protocol: str, content: bytes) -> bytes:
    return b"\1" + to + back + data(text(protocol) + data(content))


def asks(to: str, protocol: str, content: bytes, back: str = ME) -> Step:
    return Direction.CLIENT, frame(routed(route(to), route(back), protocol, content))


def answers(at: str, protocol: str, content: bytes, to: str = ME) -> Step:
    return Direction.SERVER, frame(routed(route(to), route(at) if at else route(), protocol, content))


# Messages


def create(name: str = "s", back: str = ME) -> Step:
    return asks("stream", "stream_create", b"\1" + text(name), back)


def init(name: str = "s", at: str = STREAM, to: str = ME, more: bytes = b"") -> Step:
    return answers(at, "stream_create", text(name) + more, to)


def created(name: str = "s", at: str = STREAM) -> list[Step]:
    return [create(name), init(name, at)]


def partitioned(*answered: int, asked: int = 2) -> list[Step]:
    request = asks("stream", "stream_create_partitions", b"\1" + text("s") + uint(asked))
    return [request, *(answers(f"s-{at}", "stream_create_partitions", text("s") + uint(at)) for at in answered)]


def push(number: int, content: bytes = b"a", to: str = STREAM) -> Step:
    return asks(to, "stream_push", uint(number) + data(content))


def confirm(number: int, index: int) -> Step:
    return answers(STREAM, "stream_push", uint(number) + b"\0" + uint(index))


def stored(*indexes: int) -> list[Step]:
    """What is pushed under the number of its index is saved with it."""
    return [step for one in indexes for step in (push(one), confirm(one, one))]


def pull(index: int = 0, limit: int = 9, to: str = STREAM, number: bytes = b"\1") -> Step:
    return asks(to, "stream_pull", number + uint(index) + uint(limit))


def pulled(*indexes: int, content: bytes = b"a", at: str = STREAM) -> Step:
    messages = b"".join(uint(one) + data(content) for one in indexes)
    return answers(at, "stream_pull", b"\1" + uint(len(indexes)) + messages)


def get(to: str = "stream_index") -> Step:
    return asks(to, "stream_index", b"\0" + text("c") + text("s"))


def index(value: int | None, client: str = "c") -> Step:
    known = b"\0" if value is None else b"\1" + uint(value)
    return answers("stream_index", "stream_index", text(client) + text("s") + known)


def save(value: int, partition: int | None = None) -> Step:
    where = b"" if partition is None else uint(partition)
    return asks("stream_index", "stream_index", b"\1" + text("c") + text("s") + where + uint(value))


def error(at: str) -> Step:
    return answers(at, "error", text("Invalid request"))


# Edges

OPEN = created()
KNOWN = [*OPEN, *stored(0, 1, 2), get(), index(0)]
TAKEN = [*OPEN, *stored(0, 1), get(), index(0), pull(), pulled(0, 1)]
ASKED = routed(route("stream"), route(ME), "stream_create", b"\1" + text("s"))
PULL = routed(route(STREAM), route(ME), "stream_pull", b"\1\0\x09")

#: By rule what keeps it and what breaks it.
EDGES: dict[str, tuple[list[Step], list[Step]]] = {
    "frame": (
        [*OPEN, (Direction.CLIENT, frame(PULL) + frame(PULL)), pulled(), pulled()],
        [*OPEN, (Direction.CLIENT, frame(PULL) + frame(PULL, 1) + frame(PULL) * 3)],
    ),
    "routed": (
        [(Direction.CLIENT, frame(ASKED)), init(), pull(), pulled()],
        [(Direction.CLIENT, frame(ASKED + b"\0")), init(), pull(), pulled()],
    ),
    "payload": (
        [*OPEN, asks(STREAM, "stream_pull", b"\1\0\x09"), pulled()],
        [*OPEN, asks(STREAM, "stream_pull", b"\1\0\x09\0"), pulled()],
    ),
    "reply_to_unknown_address": ([*OPEN, create(back="mf"), init(to="mf")], [*OPEN, init(to="mf")]),
    "address_not_from_init": (
        [*OPEN, pull(to=STREAM), pulled(at=STREAM)],
        [*OPEN, pull(to="s-2"), pulled(at="s-2")],
    ),
    "create_not_answered": (OPEN, [create()]),
    "create_other_name": ([create(), init("s")], [create(), init("t")]),
    "address_changed": (
        [*OPEN, pull(), pulled(), *created(at="s-2")],
        [*OPEN, *created(at="s-2"), pull(), pulled()],
    ),
    "address_shared": (
        [*created("s", "st-1"), *created("t", "st-2")],
        [*created("s", "st-1"), *created("t", "st-1")],
    ),
    "partition_not_answered": (partitioned(0, 1), partitioned(0)),
    "unknown_request_id": (
        [*OPEN, push(1), push(2), confirm(1, 0), confirm(2, 1)],
        [*OPEN, push(1), confirm(1, 0), confirm(2, 1)],
    ),
    "duplicate_index": (
        [*OPEN, push(1), confirm(1, 0), push(2), confirm(2, 1)],
        [*OPEN, push(1), confirm(1, 0), push(2), confirm(2, 0)],
    ),
    "index_decreases": (
        [*OPEN, push(1), confirm(1, 1), push(2), confirm(2, 2)],
        [*OPEN, push(1), confirm(1, 1), push(2), confirm(2, 0)],
    ),
    "request_id_reused": (
        [*OPEN, push(1), confirm(1, 0), push(1, b"a"), confirm(1, 1)],
        [*OPEN, push(1), confirm(1, 0), push(1, b"b"), confirm(1, 1)],
    ),
    "push_unanswered": ([*OPEN, push(1), confirm(1, 0)], [*OPEN, push(1)]),
    "pull_not_answered": ([*OPEN, pull(), pulled()], [*OPEN, pull()]),
    "too_many_messages": (
        [*OPEN, *stored(0, 1, 2), pull(limit=2), pulled(0, 1)],
        [*OPEN, *stored(0, 1, 2), pull(limit=2), pulled(0, 1, 2)],
    ),
    "below_requested_index": (
        [*OPEN, *stored(0, 1), pull(1), pulled(1)],
        [*OPEN, *stored(0, 1), pull(1), pulled(0)],
    ),
    "data_changed": (
        [*OPEN, *stored(0), pull(), pulled(0, content=b"a")],
        [*OPEN, *stored(0), pull(), pulled(0, content=b"b")],
    ),
    "index_never_confirmed": (
        [*OPEN, *stored(0, 1), pull(), pulled(0, 1)],
        [*OPEN, *stored(0, 1), pull(), pulled(0, 1, 2)],
    ),
    "response_order": (
        [*OPEN, *stored(0, 1), pull(), pulled(0, 1)],
        [*OPEN, *stored(0, 1), pull(), pulled(1, 0)],
    ),
    "pull_skips": (
        [*OPEN, *stored(0, 1), pull(), pulled(1), pull(), pulled(1)],
        [*OPEN, *stored(0, 1), pull(), pulled(1), pull(), pulled(0, 1)],
    ),
    "index_for_other_key": ([*OPEN, get(), index(0, "c")], [*OPEN, get(), index(0, "d")]),
    "index_missing_record": ([*OPEN, get(), index(0)], [*OPEN, get(), index(None)]),
    "saved_index_lowered": (
        [*OPEN, get(), index(0), save(2), get(), index(2)],
        [*OPEN, get(), index(0), save(2), get(), index(1)],
    ),
    "index_never_saved": (
        [*OPEN, get(), index(0), save(2), get(), index(2)],
        [*OPEN, get(), index(0), save(2), get(), index(3)],
    ),
    "consumer_hole": (
        [*KNOWN, pull(0), pulled(0), pull(1), pulled(1, 2), save(3)],
        [*KNOWN, pull(0), pulled(0), pull(2), pulled(2), save(3)],
    ),
    "save_ahead": ([*TAKEN, save(2)], [*TAKEN, save(3)]),
    "non_canonical": ([*OPEN, pull(number=b"\1"), pulled()], [*OPEN, pull(number=b"\x81\0"), pulled()]),
    "init_extra_bytes": ([create(), init()], [create(), init(more=b"\0")]),
    "init_without_address": ([create(), init(at=STREAM)], [create(), init(at="")]),
    "init_unasked": ([*OPEN, create(), init()], [*OPEN, init()]),
    "address_not_from_name": (created("s", "s-1"), created("s", "t-1")),
    "index_not_answered": ([*OPEN, get(), index(0)], [*OPEN, get()]),
    "wrong_service": (
        [*OPEN, get("stream_index"), index(0)],
        [*OPEN, get("stream"), error("stream")],
    ),
    "partition_route_mixed": (
        [*partitioned(0, 1), pull(to="s-0"), pulled(at="s-0"), save(1, partition=0)],
        [*partitioned(0, 1), pull(to="s-0"), pulled(at="s-0"), save(1, partition=1)],
    ),
}


def told(steps: Iterable[Step]) -> set[str]:
    """The rules that are found in one connection, which is closed at its end."""
    events: list[Send | Close] = [Send(1000 * MS + 10 * MS * at, *step) for at, step in enumerate(steps)]
    events.append(Close(events[-1].ts_ns + 10 * MS, Direction.CLIENT))
    talk = Conversation(Endpoint("10.0.0.1", 40_000), Endpoint("10.0.0.2", PORT), 900 * MS, events)
    rows = inspect(landed_packets(packets(talk)), PORT)
    return {row["rule"].removeprefix("ockam.") for kind, row in rows if kind == VIOLATION}


@pytest.mark.parametrize("rule", EDGES)
def test_a_rule_is_kept_at_its_edge_and_broken_one_step_beyond(rule: str) -> None:
    good, bad = EDGES[rule]
    assert told(good) == set()
    assert told(bad) == {rule}


def test_every_rule_has_an_edge() -> None:
    assert set(EDGES) == set(RULE)
