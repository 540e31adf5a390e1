"""The session layer: the table walked exhaustively, and every rule broken, and nearly broken, by a dialogue."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.carried import as_text, carry
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.ockam.options import OckamOptions
from wirehouse_codecs.ockam.rules import ALSO_OF_A_MESSAGE, RULE, SET_RULES
from wirehouse_codecs.ockam.session import memory
from wirehouse_codecs.ockam.session import requests as waiting
from wirehouse_codecs.ockam.session.memory import Counts
from wirehouse_codecs.ockam.session.outcome import ANSWERS_NOTHING, Found, Outcome
from wirehouse_codecs.ockam.session.requests import (
    TRANSITIONS,
    UNANSWERED,
    Input,
    Request,
    RequestKind,
    RequestState,
    Where,
)
from wirehouse_codecs.ockam.session.session import JUDGES, Session
from wirehouse_codecs.ockam.wire.messages import (
    CreatePartitionedRequest,
    CreatePartitionedResponse,
    CreateRequest,
    CreateResponse,
    Decoded,
    Error,
    IndexGet,
    IndexResponse,
    IndexSave,
    Kind,
    Message,
    Names,
    PullRequest,
    PullResponse,
    PushRequest,
    PushResponse,
    Status,
    StreamMessage,
    base_payload,
    decode_payload,
    encode_payload,
)
from wirehouse_codecs.ockam.wire.reader import Received
from wirehouse_codecs.ockam.wire.routed import TCP, Address, Route, Routed, local
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.events import End

SECOND = 1_000_000_000
MOST = 2**64 - 1
A, B = "ST_orders", "ST_orders_or_other"


def route(to: str | Route) -> Route:
    return local(*to.split()) if isinstance(to, str) else to


class Dialogue:
    """A session that is told what both sides send. Before each frame it is restored from its snapshot as well.

    `c` sends a request to an address, `s` a response from one. `found` are the rules so far, `last` those of the last
    step.
    """

    def __init__(
        self,
        *,
        started_late: bool = False,
        peer_received: Callable[[Direction, int], int] | None = None,
        **options: Any,
    ) -> None:
        self.options = replace(OckamOptions(), **options)
        self.peer_received = peer_received
        self.session = Session(self.options, started_late=started_late, peer_received=peer_received)
        self.outcomes: list[Outcome] = []
        self.findings: list[Found] = []
        self.last: list[str] = []
        self.now_ns = SECOND
        self._at = {Direction.CLIENT: 0, Direction.SERVER: 0}

    def c(self, message: Message | bytes, to: str | Route = A, back: str | Route = "me", **how: Any) -> Dialogue:
        return self.send(Direction.CLIENT, route(to), route(back), message, **how)

    def s(self, message: Message | bytes, by: str | Route = A, to: str | Route = "me", **how: Any) -> Dialogue:
        return self.send(Direction.SERVER, route(to), route(by), message, **how)

    def send(
        self,
        direction: Direction,
        onward: Route,
        back: Route,
        message: Message | bytes,
        names: Names = Names.SPECIFICATION,
        canonical: bool = True,
    ) -> Dialogue:
        payload = message if isinstance(message, bytes) else encode_payload(message, names)
        decoded = decode_payload(payload, direction)
        skip = None if decoded.message is not None else decoded.protocol_name or "not BARE"
        routed = Routed(1, onward, back, payload, canonical=canonical)
        return self.take(direction, routed=routed, decoded=decoded, skip=skip)

    def take(self, direction: Direction, size: int = 5, **told: Any) -> Dialogue:
        self.now_ns += 1
        start = self._at[direction]
        self._at[direction] += size
        received = Received(direction, Place(self.now_ns, 0, b"", self.now_ns), start, start + size, **told)
        restored = Session(self.options, state=carry(self.session.state), peer_received=self.peer_received)
        outcome = self.session.receive(received)
        assert restored.receive(received) == outcome
        assert as_text(restored.state) == as_text(self.session.state)
        self.outcomes.append(outcome)
        return self._find(outcome.findings)

    def wait(self, seconds: float) -> Dialogue:
        self.now_ns += int(seconds * SECOND)
        return self

    def end(self, how: End = End.CLOSED) -> Dialogue:
        self.now_ns += 1
        return self._find(self.session.end(how, Place(self.now_ns, 0, b"", self.now_ns)))

    def _find(self, findings: Iterable[Found]) -> Dialogue:
        self.last = [found.rule.name for found in findings]
        self.findings += findings
        return self

    @property
    def found(self) -> list[str]:
        return [found.rule.name for found in self.findings]

    @property
    def out(self) -> Outcome:
        return self.outcomes[-1]

    # What is mostly said

    def create(self, name: str = "orders", address: str | Route = A) -> Dialogue:
        return self.c(CreateRequest(name), "stream").s(CreateResponse(name), address)

    def push(self, number: int, index: int, data: bytes = b"x", to: str = A) -> Dialogue:
        return self.c(PushRequest(number, data), to).s(PushResponse(number, Status.OK, index), to)

    def pull(self, number: int, index: int, limit: int, *indexes: int, to: str = A) -> Dialogue:
        return self.c(PullRequest(number, index, limit), to).s(pulled(number, *indexes), to)


def pulled(number: int, *indexes: int) -> PullResponse:
    return PullResponse(number, tuple(StreamMessage(index, b"x") for index in indexes))


def opened(**options: Any) -> Dialogue:
    return Dialogue(**options).create()


def partitioned(count: int, *answered: int) -> Dialogue:
    dialogue = Dialogue().c(CreatePartitionedRequest("telemetry", count), "stream")
    for partition in answered:
        dialogue.s(CreatePartitionedResponse("telemetry", partition), f"telemetry_{partition}")
    return dialogue


GET, KEY = IndexGet("c", "orders"), ("c", "orders")
UNDECODABLE: dict[str, Any] = {"rule": "routed", "reason": "told so", "undecoded": b"12345"}


# What a sender knew


@pytest.mark.parametrize(("received", "found"), [(4, []), (5, ["saved_index_lowered"])])
def test_an_index_is_lowered_only_after_all_of_the_answer_before_it_was_received(
    received: int, found: list[str]
) -> None:
    """One byte decides whether the first answer, which nobody asked for, may be that to the GetIndex."""
    known = {(Direction.CLIENT, 10): received, (Direction.SERVER, 5): 5, (Direction.SERVER, 10): 5}
    dialogue = Dialogue(peer_received=lambda side, byte_end: known.get((side, byte_end), 0))
    dialogue.c(IndexSave(*KEY, 7), "stream_index").s(IndexResponse(*KEY, 7), "stream_index")
    dialogue.c(GET, "stream_index").s(IndexResponse(*KEY, 3), "stream_index")
    assert dialogue.found == found


@pytest.mark.parametrize(("received", "found"), [(4, []), (5, ["index_not_answered"])])
def test_a_request_is_unanswered_only_if_no_answer_was_on_its_way(received: int, found: list[str]) -> None:
    known = {(Direction.CLIENT, 10): received, (Direction.SERVER, 5): 5}
    dialogue = Dialogue(peer_received=lambda side, byte_end: known.get((side, byte_end), 0))
    dialogue.c(IndexSave(*KEY, 7), "stream_index").s(IndexResponse(*KEY, 7), "stream_index")
    assert dialogue.c(GET, "stream_index").end().found == found


# The table of requests


def request(kind: RequestKind, state: RequestState) -> Request:
    where = Where(Direction.CLIENT, Place(1, 0, b"", 1), 0, 1)
    return Request(kind, where, "0#me", A, state=state)


@pytest.mark.parametrize("given_", Input)
@pytest.mark.parametrize("state", RequestState)
def test_a_request_goes_where_the_table_says_and_nowhere_once_it_has_ended(state: RequestState, given_: Input) -> None:
    for kind in RequestKind:
        asked = request(kind, state)
        step = TRANSITIONS.get((state, given_))
        assert (step is None) == (state in (RequestState.ANSWERED, RequestState.REFUSED, RequestState.UNANSWERED))
        if step is None:
            with pytest.raises(KeyError):
                asked.take(given_)
            assert asked.state is state
        else:
            assert asked.take(given_) is step.is_found
            assert asked.state is step.state
            # Each missing answer is told once.
            assert not step.is_found or state is RequestState.OPEN


#: How each kind of request is asked for, and answered in part or as a whole.
ASKED: dict[RequestKind, Callable[[Dialogue], Dialogue]] = {
    RequestKind.CREATE: lambda d: d.c(CreateRequest("n"), "stream"),
    RequestKind.PARTITIONED: lambda d: d.c(CreatePartitionedRequest("n", 2), "stream"),
    RequestKind.PUSH: lambda d: d.c(PushRequest(9, b"y")),
    RequestKind.PULL: lambda d: d.c(PullRequest(9, 0, 5)),
    RequestKind.GET: lambda d: d.c(GET, "stream_index"),
    RequestKind.OTHER: lambda d: d.c(b"nothing", "stream"),
}
ANSWERED: dict[RequestKind, Callable[[Dialogue], Dialogue]] = {
    RequestKind.CREATE: lambda d: d.s(CreateResponse("n"), "n_address"),
    RequestKind.PARTITIONED: lambda d: d.s(CreatePartitionedResponse("n", 0), "n_0").s(
        CreatePartitionedResponse("n", 1), "n_1"
    ),
    RequestKind.PUSH: lambda d: d.s(PushResponse(9, Status.OK, 7)),
    RequestKind.PULL: lambda d: d.s(pulled(9, 3)),
    RequestKind.GET: lambda d: d.s(IndexResponse(*KEY, 0), "stream_index"),
}
TARGET = dict.fromkeys(RequestKind, "stream") | {
    RequestKind.PUSH: A,
    RequestKind.PULL: A,
    RequestKind.GET: "stream_index",
}
#: What brings a request that is open into a state in which it still waits.
BROUGHT: dict[RequestState, Callable[[Dialogue], Dialogue]] = {
    RequestState.OPEN: lambda d: d,
    RequestState.UNSURE: lambda d: d.take(Direction.SERVER, **UNDECODABLE),
    RequestState.OVERDUE: lambda d: d.wait(3601).take(Direction.CLIENT, skip="heartbeat"),
}


@pytest.mark.parametrize("kind", RequestKind)
@pytest.mark.parametrize("state", BROUGHT)
def test_each_kind_of_request_in_each_state_takes_each_input(state: RequestState, kind: RequestKind) -> None:
    def brought() -> Dialogue:
        dialogue = BROUGHT[state](ASKED[kind](opened()))
        assert [one.state for one in dialogue.session.memory.requests] == [state]
        assert dialogue.found.count(UNANSWERED[kind] or "") == (state is RequestState.OVERDUE and kind in ANSWERED)
        dialogue.findings.clear()
        return dialogue

    if kind in ANSWERED:
        answered = ANSWERED[kind](brought())
        assert not len(answered.session.memory.requests)
        assert set(answered.found) <= {"index_missing_record"}
        assert answered.out.answers is not None
    refused = brought().s(Error("no"), TARGET[kind])
    assert not len(refused.session.memory.requests)
    assert set(refused.found) <= {"wrong_service"}
    missed = brought().take(Direction.SERVER)
    assert {one.state for one in missed.session.memory.requests} <= {RequestState.UNSURE, RequestState.OVERDUE}
    closed = brought().end()
    is_told = state is RequestState.OPEN and kind in ANSWERED
    assert closed.found == ([UNANSWERED[kind]] if is_told else [])
    assert brought().end(End.CAPTURE_END).found == []
    late = brought().wait(3601).take(Direction.CLIENT, skip="heartbeat")
    assert late.found == ([UNANSWERED[kind]] if is_told else [])
    assert late.end().found == late.found


def test_every_kind_of_message_is_judged() -> None:
    assert set(JUDGES) == set(Kind)


# Every rule

BROKEN: dict[str, Callable[[], Dialogue]] = {
    "frame": lambda: opened().take(Direction.CLIENT, rule="frame", reason="told so", undecoded=b"12345"),
    "routed": lambda: opened().take(Direction.CLIENT, **UNDECODABLE),
    "payload": lambda: opened().c(base_payload("no_protocol", b"")),
    "reply_to_unknown_address": lambda: opened().s(CreateResponse("orders"), A, "you"),
    "address_not_from_init": lambda: opened().c(PushRequest(1, b""), ()),
    "create_not_answered": lambda: opened().c(CreateRequest("more"), "stream").end(),
    "create_other_name": lambda: Dialogue().c(CreateRequest("orders"), "stream").s(CreateResponse("others")),
    "address_changed": lambda: opened().create("orders", B).c(PullRequest(1, 0, 1)).s(pulled(1)),
    "partition_not_answered": lambda: partitioned(3, 0, 2).end(),
    "unknown_request_id": lambda: opened().push(1, 0).s(PushResponse(1, Status.OK, 1)),
    "index_decreases": lambda: opened().push(1, 5).push(2, 4),
    "request_id_reused": lambda: opened().push(1, 0, b"one").push(1, 1, b"two"),
    "push_unanswered": lambda: opened().c(PushRequest(1, b"")).end(),
    "pull_not_answered": lambda: opened().c(PullRequest(1, 0, 1)).end(),
    "too_many_messages": lambda: opened().pull(1, 0, 2, 0, 1, 2),
    "below_requested_index": lambda: opened().pull(1, 5, 2, 4, 5),
    "response_order": lambda: opened().pull(1, 0, 2, 1, 0),
    "index_for_other_key": lambda: opened().c(GET, "stream_index").s(IndexResponse("d", "orders", 0), "stream_index"),
    "index_missing_record": lambda: opened().c(GET, "stream_index").s(IndexResponse(*KEY, None), "stream_index"),
    "saved_index_lowered": lambda: (
        opened().c(IndexSave(*KEY, 5), "stream_index").c(GET, "stream_index").s(IndexResponse(*KEY, 4), "stream_index")
    ),
    "non_canonical": lambda: opened().c(PushRequest(1, b""), canonical=False),
    "init_extra_bytes": lambda: Dialogue().c(CreateRequest("orders"), "stream").s(CreateResponse("orders", b"more")),
    "init_without_address": lambda: Dialogue().c(CreateRequest("orders"), "stream").s(CreateResponse("orders"), ()),
    "init_unasked": lambda: opened().s(CreateResponse("orders"), B),
    "address_not_from_name": lambda: opened().create("orders", "MAILBOX_1"),
    "index_not_answered": lambda: opened().c(GET, "stream_index").end(),
    "wrong_service": lambda: opened().c(PushRequest(1, b""), "stream"),
    "partition_route_mixed": lambda: (
        partitioned(2, 0, 1)
        .c(IndexSave("c", "telemetry", 5, 1), "stream_index")
        .pull(1, 0, 9, 0, to="telemetry_0")
        .end()
    ),
}
#: What comes near: the same without the fault.
KEPT: dict[str, Callable[[], Dialogue]] = {
    "frame": lambda: opened().take(Direction.CLIENT, skip="empty frame"),
    "routed": lambda: opened().take(Direction.CLIENT, reason="cut by a hole", undecoded=b"12345"),
    "payload": lambda: opened().c(base_payload("no_protocol", b""), "ping"),
    "reply_to_unknown_address": lambda: (
        opened().c(CreateRequest("o"), "stream", "you").s(CreateResponse("o"), A, "you")
    ),
    "address_not_from_init": lambda: opened().create("other", B).push(1, 0, to=B),
    "create_not_answered": lambda: opened().c(CreateRequest(""), "stream").s(Error("Invalid request"), "stream").end(),
    "create_other_name": lambda: (
        Dialogue()
        .c(CreateRequest(None), "stream")
        .c(CreateRequest("orders"), "stream")
        .s(CreateResponse("orders"))
        .s(CreateResponse("generated"), B)
    ),
    "address_changed": lambda: opened().create("orders", B).push(1, 0, to=B),
    "partition_not_answered": lambda: (
        partitioned(3, 2, 0, 1).c(CreatePartitionedRequest("telemetry", 0), "stream").end()
    ),
    "unknown_request_id": lambda: (
        opened()
        .c(PushRequest(1, b"x"))
        .c(PushRequest(1, b"x"))
        .s(PushResponse(1, Status.OK, 0))
        .s(PushResponse(1, Status.OK, 1))
    ),
    "index_decreases": lambda: opened().create("other", B).push(1, 5).push(2, 4, to=B).push(3, 9).push(4, 5),
    "request_id_reused": lambda: (
        opened()
        .c(PushRequest(1, b"one"))
        .c(PushRequest(1, b"one"))
        .s(PushResponse(1, Status.ERROR, 0))
        .s(PushResponse(1, Status.ERROR, 0))
        .push(1, 0, b"one")
        .push(1, 1, b"one")
    ),
    "push_unanswered": lambda: opened().push(1, 0).end(),
    "pull_not_answered": lambda: opened().pull(1, 0, 1).pull(1, 0, 1).end(),
    "too_many_messages": lambda: opened().pull(1, 0, 2, 0, 1).pull(2, 0, 0).pull(3, 0, MOST, 1, 2, MOST),
    "below_requested_index": lambda: opened().pull(1, 5, 2, 5, 9).pull(2, MOST, 1, MOST),
    "response_order": lambda: opened().pull(1, 0, 3, 1, 2, 4),
    "index_for_other_key": lambda: (
        opened()
        .c(GET, "stream_index")
        .c(IndexGet("d", "orders"), "stream_index")
        .s(IndexResponse("d", "orders", 0), "stream_index")
        .s(IndexResponse(*KEY, 0), "stream_index")
    ),
    "index_missing_record": lambda: opened().c(GET, "stream_index").s(IndexResponse(*KEY, 0), "stream_index"),
    "saved_index_lowered": lambda: (
        opened()
        .c(IndexSave(*KEY, 5), "stream_index")
        .c(GET, "stream_index")
        .c(IndexSave(*KEY, 7), "stream_index")
        .c(IndexSave(*KEY, 3), "stream_index")
        .s(IndexResponse(*KEY, 5), "stream_index")
    ),
    "non_canonical": lambda: opened().c(PushRequest(1, b"")),
    "init_extra_bytes": lambda: opened(),
    "init_without_address": lambda: Dialogue().c(CreateRequest("o"), "stream").s(CreateResponse("o"), "hop node_o"),
    "init_unasked": lambda: opened().create("orders", A),
    "address_not_from_name": lambda: Dialogue().c(CreateRequest(None), "stream").s(CreateResponse("generated"), A),
    "index_not_answered": lambda: opened().c(GET, "stream_index").s(IndexResponse(*KEY, 9), "stream_index").end(),
    "wrong_service": lambda: opened().c(GET, "my_index").s(IndexResponse(*KEY, 0), "worker"),
    "partition_route_mixed": lambda: (
        partitioned(2, 0, 1)
        .c(IndexSave("c", "telemetry", 5, 1), "stream_index")
        .c(IndexSave("c", "elsewhere", 5, 1), "stream_index")
        .pull(1, 0, 9, 0, to="telemetry_0")
        .pull(2, 0, 9, 0, to="telemetry_1")
        .end()
    ),
}
#: Rules that a single connection can't break.
ACROSS = SET_RULES - ALSO_OF_A_MESSAGE


def test_every_rule_of_the_list_has_its_dialogues() -> None:
    assert set(BROKEN) == set(KEPT) == set(RULE) - ACROSS


@pytest.mark.parametrize("rule", BROKEN)
def test_breaks_the_rule_and_no_other(rule: str) -> None:
    assert set(BROKEN[rule]().found) == {rule}


@pytest.mark.parametrize("rule", KEPT)
def test_keeps_the_rule_and_all_others(rule: str) -> None:
    assert KEPT[rule]().found == []


MORE: dict[str, tuple[str, Callable[[], Dialogue]]] = {
    "a response without a request": ("reply_to_unknown_address", lambda: Dialogue().s(Error("no"), "stream")),
    "a malformed create at the service": (
        "payload",
        lambda: opened().c(base_payload("stream_create", b"\2"), "stream"),
    ),
    "a malformed answer of a stream": ("payload", lambda: opened().s(base_payload("stream_push", b"\1"), A)),
    "an anonymous stream with an empty name": (
        "create_other_name",
        lambda: Dialogue().c(CreateRequest(None), "stream").s(CreateResponse("")),
    ),
    "two names for one anonymous create": (
        "create_other_name",
        lambda: (
            Dialogue()
            .c(CreatePartitionedRequest(None, 2), "stream")
            .s(CreatePartitionedResponse("one", 0), "one_0")
            .s(CreatePartitionedResponse("two", 1), "two_1")
        ),
    ),
    "a partition too high": (
        "partition_not_answered",
        lambda: partitioned(2, 0).s(CreatePartitionedResponse("telemetry", 2), "telemetry_2"),
    ),
    "a partition twice": ("partition_not_answered", lambda: partitioned(2, 0, 0)),
    "a partition twice, when all have answered": ("partition_not_answered", lambda: partitioned(2, 0, 1, 0)),
    "a partition too many, when all have answered": ("partition_not_answered", lambda: partitioned(2, 0, 1, 5)),
    "a partition at the address of another": (
        "partition_not_answered",
        lambda: partitioned(2, 0).s(CreatePartitionedResponse("telemetry", 1), "telemetry_0"),
    ),
    "a confirm from another stream": (
        "unknown_request_id",
        lambda: opened().create("other", B).c(PushRequest(1, b"")).s(PushResponse(1, Status.OK, 0), B),
    ),
    "a pull answered twice": ("unknown_request_id", lambda: opened().pull(1, 0, 1).s(pulled(1))),
    "saved, and pushed again later": ("request_id_reused", lambda: opened().push(1, 0).push(2, 1).push(1, 2)),
    "saved, and pushed again twice": ("request_id_reused", lambda: opened().push(1, 0).push(1, 1).push(1, 2)),
    "other data while the first is open": (
        "request_id_reused",
        lambda: opened().c(PushRequest(1, b"one")).c(PushRequest(1, b"two")),
    ),
    "other data after an error": (
        "request_id_reused",
        lambda: opened().c(PushRequest(1, b"one")).s(Error("no"), A).c(PushRequest(1, b"two")),
    ),
    "an index twice in a response": ("response_order", lambda: opened().pull(1, 0, 2, 1, 1)),
    "an index that nobody asked for": ("index_for_other_key", lambda: opened().s(IndexResponse(*KEY, 0), "x")),
    "no index after one was saved": (
        "saved_index_lowered",
        lambda: (
            opened()
            .c(IndexSave(*KEY, 1), "stream_index")
            .c(GET, "stream_index")
            .s(IndexResponse(*KEY, None), "stream_index")
        ),
    ),
    "an index below an earlier answer": (
        "saved_index_lowered",
        lambda: (
            opened()
            .c(GET, "stream_index")
            .s(IndexResponse(*KEY, 9), "stream_index")
            .c(GET, "stream_index")
            .s(IndexResponse(*KEY, 8), "stream_index")
        ),
    ),
    "an Init from the service": (
        "init_without_address",
        lambda: Dialogue().c(CreateRequest("stream"), "stream").s(CreateResponse("stream"), "stream"),
    ),
    "a create to a stream": ("wrong_service", lambda: opened().c(CreateRequest("more"), A).end()),
    "a pull to the index service": ("wrong_service", lambda: opened().c(PullRequest(1, 0, 1), "stream_index").end()),
    "a GetIndex to a stream": ("wrong_service", lambda: opened().c(GET, A).end()),
    "a SaveIndex to the stream service": ("wrong_service", lambda: opened().c(IndexSave(*KEY, 1), "stream")),
    "an index from a stream": (
        "wrong_service",
        lambda: opened().c(GET, "stream_index").s(IndexResponse(*KEY, 0), A),
    ),
    "an error from the index service": (
        "wrong_service",
        lambda: opened().c(GET, "stream_index").s(Error("no"), "stream_index").end(),
    ),
    "a confirm from the service": (
        "wrong_service",
        lambda: opened().c(PushRequest(1, b"")).s(PushResponse(1, Status.OK, 0), "stream").end(),
    ),
}


@pytest.mark.parametrize("case", MORE)
def test_breaks_the_rule_in_another_way_and_no_other(case: str) -> None:
    rule, told = MORE[case]
    assert told().found == [rule]


SPOILT: dict[str, tuple[Message, str, Message, str, str | None]] = {
    "push": (PushRequest(1, b"x"), A, PushResponse(1, Status.OK, 0), A, "unknown_request_id"),
    "pull": (PullRequest(1, 0, 1), A, PullResponse(1, ()), A, "unknown_request_id"),
    "create": (CreateRequest("more"), "stream", CreateResponse("more"), "ST_more", "init_unasked"),
    "get": (IndexGet("c", "orders"), "stream_index", IndexResponse("c", "orders", 0), "stream_index", None),
}


@pytest.mark.parametrize("case", SPOILT)
def test_a_request_that_cannot_be_decoded_excuses_one_answer(case: str) -> None:
    request, to, answer, by, rule = SPOILT[case]
    spoilt = encode_payload(request, Names.SPECIFICATION)
    protocol, data = spoilt[1 : 1 + spoilt[0]].decode(), spoilt[2 + spoilt[0] :]
    talk = opened().c(base_payload(protocol, data + b"\x80"), to).s(answer, by)
    assert talk.found == ["payload"]
    assert talk.outcomes[-1].ignored is None
    assert talk.s(answer, by).last == [rule or "index_for_other_key"]
    assert opened().c(base_payload("stream_create", b"\2"), "stream").s(PushResponse(1, Status.OK, 0)).found == [
        "payload",
        "unknown_request_id",
    ]


def test_a_request_of_an_unknown_requester_excuses_one_answer() -> None:
    talk = opened().take(Direction.CLIENT, **UNDECODABLE).s(PushResponse(1, Status.OK, 0), A, "you")
    assert talk.found == ["routed"]
    assert talk.s(PushResponse(1, Status.OK, 1), A, "you").last == ["reply_to_unknown_address"]


def test_an_early_error_may_be_for_a_later_request() -> None:
    creates = (
        opened().c(CreateRequest("one"), "stream").c(CreateRequest(""), "stream").c(CreateRequest("two"), "stream")
    )
    talk = creates.s(Error("Invalid request"), "stream").s(CreateResponse("one"), "one").s(CreateResponse("two"), "two")
    assert talk.end().found == []
    pushes = opened().c(PushRequest(1, b"x")).c(PushRequest(2, b"y")).s(Error("no")).s(PushResponse(1, Status.OK, 0))
    assert pushes.end().found == []
    none_left = opened().c(PushRequest(1, b"x")).c(PushRequest(2, b"y")).s(Error("no"))
    assert none_left.end().found == ["push_unanswered"]
    pushed = opened().c(PushRequest(1, b"x")).s(Error("no")).s(PushResponse(1, Status.OK, 0))
    assert pushed.found == ["unknown_request_id"]


def test_pulls_of_one_id_are_answered_in_any_order() -> None:
    def pulls() -> Dialogue:
        return opened().c(PullRequest(1, 0, 2)).c(PullRequest(1, 5, 3))

    assert pulls().s(pulled(1, 5, 6, 7)).s(pulled(1, 0, 1)).end().found == []
    assert pulls().s(pulled(1, 5, 6)).s(pulled(1, 0, 1)).end().found == []
    assert pulls().s(pulled(1, 0, 1)).s(pulled(1, 5, 6, 7)).end().found == []
    assert pulls().s(pulled(1, 1, 2, 3, 4)).found == ["too_many_messages"]


def test_a_response_may_answer_a_pull_that_was_missed_with_the_same_id() -> None:
    late, undecoded = Dialogue(started_late=True).create(), opened().take(Direction.CLIENT, **UNDECODABLE)
    for dialogue in (late, undecoded):
        known = len(dialogue.found)
        dialogue.c(PullRequest(7, 100, 2)).s(pulled(7, 50))
        assert dialogue.out.answers is not None
        assert dialogue.out.answers.unsure
        assert dialogue.pull(7, 100, 2, 100, 101, 102).pull(8, 100, 2, 100).end().found[known:] == []
        assert dialogue.outcomes[-1].answers is not None
        assert not dialogue.outcomes[-1].answers.unsure
    assert opened().pull(7, 100, 2, 50).found == ["below_requested_index"]
    assert opened().pull(7, 100, 2, 100, 101, 102).found == ["too_many_messages"]


def test_names_and_addresses_are_compared_as_they_are_sent() -> None:
    name = "DOM\\orders"
    assert Dialogue().create(name, name).found == []
    assert Dialogue().create("n" * 300, "n" * 300).found == []
    assert Dialogue().create("DOM\\\\orders", name).found == ["address_not_from_name"]


def test_a_service_may_answer_a_save() -> None:
    saved = opened().c(IndexSave(*KEY, 5), "stream_index").c(IndexGet("d", "orders"), "stream_index")
    assert (
        saved.s(IndexResponse(*KEY, 5), "stream_index").s(IndexResponse("d", "orders", 0), "stream_index").found == []
    )


def behind(node: str, name: str) -> Route:
    return (Address(TCP, node.encode()), *local(name))


def test_equal_addresses_behind_different_nodes_are_different_streams() -> None:
    talk = Dialogue()
    for node in ("10.0.0.1:4000", "10.0.0.2:4000"):
        stream = behind(node, "orders")
        talk.c(CreateRequest("orders"), behind(node, "stream")).s(CreateResponse("orders"), stream)
        talk.c(PushRequest(1, node.encode()), stream).s(PushResponse(1, Status.OK, 0), stream)
    assert talk.end().found == []
    assert len({outcome.stream_address for outcome in talk.outcomes[1::2]}) == 2
    again = opened().create("orders", B).c(PullRequest(1, 0, 1)).s(pulled(1))
    assert again.found == ["address_changed"]


def test_a_route_may_leave_out_the_node() -> None:
    node = "10.0.0.1:4000"
    to_node = Dialogue().c(CreateRequest("orders"), behind(node, "stream")).s(CreateResponse("orders"), "orders")
    to_node.c(PushRequest(1, b"x"), behind(node, "orders")).s(PushResponse(1, Status.OK, 0), "orders")
    to_node.c(CreateRequest(""), behind(node, "stream")).s(Error("Invalid request"), "stream")
    assert to_node.end().found == []
    short_answer = Dialogue().create("orders", behind(node, "orders"))
    short_answer.c(PushRequest(1, b"x"), behind(node, "orders")).s(PushResponse(1, Status.OK, 0), "orders")
    assert short_answer.end().found == []
    assert {outcome.stream_address for outcome in short_answer.outcomes[1:]} == {f"1#{node}=>orders"}


def test_a_message_breaks_only_the_first_of_its_rules() -> None:
    asked = Dialogue().c(CreateRequest("orders"), "stream")
    assert asked.s(CreateResponse("others", b"more"), "M", canonical=False).last == ["create_other_name"]


#: What a message that was missed can't disprove.
SHOWN_ANYWAY = {
    *("frame", "routed", "payload", "create_not_answered", "address_changed", "index_decreases"),
    *("request_id_reused", "push_unanswered", "pull_not_answered"),
    *("response_order", "index_missing_record"),
    *("non_canonical", "init_extra_bytes", "init_without_address", "address_not_from_name", "index_not_answered"),
    "wrong_service",
}


@pytest.mark.parametrize("rule", BROKEN)
def test_nothing_is_found_that_a_missed_message_would_explain(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    late = Dialogue.__init__
    monkeypatch.setattr(Dialogue, "__init__", lambda self, **options: late(self, started_late=True, **options))
    assert set(BROKEN[rule]().found) == {rule} & SHOWN_ANYWAY


@pytest.mark.parametrize(("second", "unsure"), [(3, True), (2, True), (4, False)])
def test_a_confirm_may_be_that_of_a_missed_push_with_the_same_id(second: int, unsure: bool) -> None:
    whole = opened().push(3, 0).push(second, 1)
    assert whole.out.answers is not None
    assert not whole.out.answers.unsure
    dialogue = opened().push(3, 0).take(Direction.CLIENT, 0).push(9, 1, to=B).push(second, 2)
    assert dialogue.out.answers is not None
    assert dialogue.out.answers.unsure is unsure
    # That none came is found, whichever was confirmed.
    assert dialogue.c(PushRequest(second, b"x")).end().found.count("push_unanswered") == 1


def test_a_confirm_may_be_that_of_an_undecodable_push_with_the_same_id() -> None:
    dialogue = opened().push(1, 0).take(Direction.CLIENT, **UNDECODABLE).push(1, 1)
    assert dialogue.out.answers is not None
    assert dialogue.out.answers.unsure


def test_an_index_may_be_that_of_a_missed_get() -> None:
    dialogue = opened().take(Direction.CLIENT, 0).c(IndexSave(*KEY, 4), "stream_index").c(GET, "stream_index")
    assert dialogue.s(IndexResponse(*KEY, 3), "stream_index").found == []


@pytest.mark.parametrize("direction", Direction)
def test_a_hole_makes_the_connection_partial(direction: Direction) -> None:
    dialogue = opened().take(direction, 0, reason="cut by a hole")
    assert dialogue.session.coverage.partial
    answers = dialogue.s(PushResponse(1, Status.OK, 3)).push(2, 1, to=B).s(IndexResponse(*KEY, 3), "stream_index")
    assert answers.s(CreateResponse("new"), "you", "new").found == []
    assert all(outcome.ignored is None for outcome in answers.outcomes)


def test_a_request_that_a_hole_held_back_may_have_been_answered() -> None:
    dialogue = opened().take(Direction.CLIENT, 0)
    dialogue.now_ns -= 1
    assert dialogue.c(PullRequest(1, 0, 1)).end().found == []


def test_what_a_hole_holds_back_comes_before_what_is_too_late() -> None:
    dialogue = opened(answer_timeout_s=1).c(PullRequest(1, 0, 1))
    dialogue.now_ns += 5 * SECOND
    dialogue.session.hole(Place(dialogue.now_ns, 0, b"", 0))
    assert dialogue.s(PullResponse(1, ())).found == []
    (answers,) = [outcome.answers for outcome in dialogue.outcomes[-1:]]
    assert answers is not None
    assert answers.unsure


def test_how_often_messages_were_missed() -> None:
    dialogue = opened()
    assert {outcome.missed for outcome in dialogue.outcomes} == {0}
    dialogue.session.hole(Place(dialogue.now_ns, 0, b"", 0))
    dialogue.take(Direction.SERVER, 0, reason="cut by a hole")
    seen = [dialogue.c(IndexSave(*KEY, 1), "stream_index").outcomes[-1].missed]
    seen.append(dialogue.c(IndexSave(*KEY, 2), "stream_index").outcomes[-1].missed)
    # A message of the server is found: nothing it said is looked for any more.
    seen.append(dialogue.s(PullResponse(9, ())).outcomes[-1].missed)
    seen.append(dialogue.c(IndexSave(*KEY, 3), "stream_index").outcomes[-1].missed)
    assert seen == [3, 4, 4, 4]


def test_the_answer_to_a_request_may_be_missed_before_the_server_was_heard() -> None:
    def late() -> Dialogue:
        return Dialogue(started_late=True, answer_timeout_s=1).c(PullRequest(1, 0, 1)).c(PullRequest(2, 0, 1))

    assert late().wait(2).c(PullRequest(3, 0, 1)).end().found == []
    heard = late().s(PullResponse(1, ())).c(PullRequest(4, 0, 1)).end()
    assert [(found.rule.name, found.where.byte_start) for found in heard.findings] == [("pull_not_answered", 10)]


def test_an_id_that_an_unsure_request_has_is_unsure_too() -> None:
    dialogue = opened().c(PullRequest(1, 0, 1)).take(Direction.SERVER, 0).s(PullResponse(9, ()))
    assert dialogue.c(PullRequest(1, 5, 1)).s(PullResponse(1, (StreamMessage(5, b""),))).end().found == []


def test_an_answer_that_may_be_lost_is_not_missing_but_later_ones_are() -> None:
    dialogue = opened().c(PullRequest(1, 0, 1)).take(Direction.SERVER, 0).s(PullResponse(9, ()))
    dialogue.c(PullRequest(2, 0, 1)).end()
    assert [(found.rule.name, found.where.byte_start) for found in dialogue.findings] == [("pull_not_answered", 10)]


# What is told of a message


def test_answers_say_what_was_asked() -> None:
    dialogue = opened().c(PushRequest(7, b"data")).wait(2).s(PushResponse(7, Status.OK, 3))
    answers = dialogue.out.answers
    assert answers is not None
    assert (answers.data, answers.data_bytes, answers.request_byte_start) == (b"data", 4, 5)
    assert dialogue.out.received.place.arrived_at_ns - answers.requested_at_ns == 2 * SECOND + 1
    assert dialogue.out.stream_address == A
    dialogue.pull(7, 3, 5, 3)
    assert dialogue.out.answers is not None
    assert (dialogue.out.answers.index, dialogue.out.answers.limit) == (3, 5)
    refused = dialogue.c(PushRequest(8, b"no")).s(PushResponse(8, Status.ERROR, 0)).out.answers
    assert refused is not None
    assert (refused.data, refused.data_bytes) == (None, 2)
    named = opened().out.answers
    anonymous = Dialogue().c(CreateRequest(None), "stream").s(CreateResponse("g")).out.answers
    assert named is not None
    assert anonymous is not None
    assert (named.anonymous, anonymous.anonymous) == (False, True)


def test_routes_of_several_hops() -> None:
    dialogue = opened().c(PushRequest(1, b""), "hop ST_orders", "far near")
    assert (dialogue.out.stream_address, dialogue.out.requester) == (A, "0#far=>0#near")
    answer = dialogue.s(PushResponse(1, Status.OK, 0), "gate ST_orders", "far near").out
    assert (answer.stream_address, answer.requester, answer.findings) == (A, "0#far=>0#near", ())
    assert answer.answers is not None


def test_a_response_without_a_return_route_answers_by_its_id() -> None:
    dialogue = opened().c(PushRequest(1, b"")).s(PushResponse(1, Status.OK, 0), ())
    assert (dialogue.found, dialogue.out.stream_address) == ([], A)


def test_a_request_without_a_return_route_waits_for_nothing() -> None:
    assert opened().c(PullRequest(1, 0, 1), A, ()).end().found == []


@pytest.mark.parametrize("partition", [None, 3])
def test_the_consumer_is_the_client_of_the_requester_or_the_only_one(partition: int | None) -> None:
    dialogue = Dialogue()
    if partition is None:
        dialogue.create("s", "s_a")
    else:
        dialogue.c(CreatePartitionedRequest("s", 4), "stream").s(CreatePartitionedResponse("s", 3), "s_a")

    def consumer(back: str) -> str | None:
        return dialogue.c(PullRequest(1, 0, 1), "s_a", back).s(pulled(1), "s_a", back).out.consumer

    assert consumer("me") is None
    dialogue.c(IndexGet("one", "s", partition), "stream_index", "saver")
    assert dialogue.out.stream_address == "s_a"
    assert consumer("me") == "one"
    dialogue.c(IndexSave("two", "s", 1, partition), "stream_index", "me")
    assert (consumer("me"), consumer("saver"), consumer("you")) == ("two", "one", None)
    dialogue.c(IndexGet("other", "else", partition), "stream_index", "me")
    assert consumer("me") == "two"
    assert dialogue.out.stream_address == "s_a"


def test_an_answer_to_nothing_is_ignored() -> None:
    dialogue = opened().push(1, 4).s(PushResponse(1, Status.OK, 2))
    assert (dialogue.out.ignored, dialogue.session.memory.counts.confirmed) == (ANSWERS_NOTHING, 1)
    # Its index counts for nothing.
    assert dialogue.push(2, 5).last == []
    assert dialogue.s(Error("no")).out.ignored == ANSWERS_NOTHING


def test_bytes_with_two_readings_are_what_was_asked_for() -> None:
    readings = []
    for first, second in [(None, 1), (1, None)]:
        dialogue = opened()
        for partition in (first, second):
            dialogue.c(IndexGet("c", "orders", partition), "stream_index")
        for partition in (first, second):
            index = 0 if partition is None else None
            dialogue.s(IndexResponse("c", "orders", index, partition), "stream_index")
            readings.append(dialogue.out.message)
        assert set(dialogue.found) == {"index_missing_record"}
    plain, partitioned_ = IndexResponse("c", "orders", 0), IndexResponse("c", "orders", None, 1)
    assert readings == [plain, partitioned_, partitioned_, plain]


def test_a_stream_that_comes_back_elsewhere_is_a_new_one() -> None:
    dialogue = opened().push(1, 9).s(CreateResponse("orders"), B)
    assert dialogue.push(2, 0, to=B).found == ["init_unasked"]
    # Both answer.
    assert dialogue.pull(3, 0, 1).last == ["address_changed"]
    assert dialogue.pull(4, 0, 1).pull(5, 0, 1, to=B).last == []


def test_the_other_payload_of_an_unknown_address_is_counted_by_name() -> None:
    dialogue = opened().c(base_payload("ping", b""), "pong").s(b"?", "pong")
    assert [outcome.skip for outcome in dialogue.outcomes[-2:]] == ["ping", "not BARE"]
    assert [outcome.message for outcome in dialogue.outcomes[-2:]] == [None, None]
    assert not dialogue.session.coverage.partial


def test_whose_names_are_used() -> None:
    dialogue = opened()
    assert dialogue.session.memory.names == set()
    dialogue.c(IndexGet("c", "s", 1), "stream_index", names=Names.SPECIFICATION)
    assert dialogue.session.memory.names == {Names.SPECIFICATION}
    dialogue.c(CreatePartitionedRequest("s", 1), "stream", names=Names.IMPLEMENTATION)
    assert dialogue.session.memory.names == set(Names)


def test_counts() -> None:
    dialogue = opened().push(1, 0).push(2, 1).c(PushRequest(3, b"")).pull(1, 0, 9, 0, 1)
    assert dialogue.session.memory.counts == Counts(creates=1, pushes=3, confirmed=2, pulls=1, delivered=2)


# Time


def test_what_does_not_come_is_found_at_its_request_whenever_that_is_noticed() -> None:
    ways = []
    for late in (3601, 7200, 100_000):
        dialogue = opened().c(PullRequest(1, 0, 1)).wait(late).take(Direction.CLIENT, skip="heartbeat")
        ways.append([replace_place(found) for found in dialogue.findings])
    assert ways[0] == ways[1] == ways[2]
    assert [found.rule.name for found in ways[0]] == ["pull_not_answered"]
    assert opened().c(PullRequest(1, 0, 1)).wait(3599).end(End.CAPTURE_END).found == []
    assert opened(answer_timeout_s=1).c(PullRequest(1, 0, 1)).wait(2).end(End.CAPTURE_END).found == [
        "pull_not_answered"
    ]


def replace_place(found: Found) -> Found:
    return replace(found, where=replace(found.where, place=Place.before(0)))


def test_after_the_end_nothing_is_taken() -> None:
    dialogue = opened().end()
    with pytest.raises(ValueError, match="has ended"):
        dialogue.session.receive(dialogue.out.received)
    with pytest.raises(ValueError, match="has ended"):
        _ = dialogue.session.state
    with pytest.raises(ValueError, match="has ended"):
        dialogue.end()


# Bounds


def test_a_create_of_all_partitions_there_can_be() -> None:
    dialogue = Dialogue().c(CreatePartitionedRequest("telemetry", MOST), "stream")
    for partition in (0, MOST - 1, 5, 4, 6):
        dialogue.s(CreatePartitionedResponse("telemetry", partition), f"telemetry_{partition}")
    assert dialogue.found == []
    assert dialogue.s(CreatePartitionedResponse("telemetry", MOST), "telemetry_").last == ["partition_not_answered"]
    dialogue.end()
    assert f"5 of {MOST} partitions answered, the first missing is 1" in dialogue.findings[-1].message


def quick(session: Session, direction: Direction, message: Message, to: str, back: str, at_ns: int) -> Outcome:
    payload = encode_payload(message)
    routed = Routed(1, route(to), route(back), payload)
    decoded = decode_payload(payload, direction)
    return session.receive(Received(direction, Place(at_ns, 0, b"", at_ns), at_ns, at_ns + 1, routed, decoded))


def test_requests_beyond_the_limit_are_forgotten_and_their_answers_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MOST_REQUESTS", 10)
    dialogue = opened()
    for number in range(20):
        dialogue.c(PullRequest(number, 0, 1))
    assert len(dialogue.session.memory.requests) == 10
    for number in range(20):
        dialogue.s(pulled(number, 7))
    assert dialogue.found == []
    assert [outcome.answers is not None for outcome in dialogue.outcomes[-20:]] == [False] * 10 + [True] * 10


def test_answers_to_forgotten_requests_are_not_taken_for_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MOST_REQUESTS", 2)
    dialogue = opened()
    for client in "abc":
        dialogue.c(IndexGet(client, "orders"), "stream_index")
    for client in "abc":
        dialogue.s(IndexResponse(client, "orders", 0), "stream_index")
    assert dialogue.found == []
    assert [outcome.answers is not None for outcome in dialogue.outcomes[-3:]] == [False, True, True]


def test_a_decrease_is_found_however_far_it_goes_back() -> None:
    dialogue = opened()
    for number in range(2 * memory.MOST_RUNS):
        dialogue.push(number, 10 + 2 * number)
    assert dialogue.push(1000, 5).last == ["index_decreases"]
    assert dialogue.push(1001, 10 + 2 * number).last == []


def test_of_pushes_beyond_the_limit_no_data_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MOST_DATA_BYTES", 10)
    dialogue = opened().c(PushRequest(1, b"12345678")).c(PushRequest(2, b"123")).c(PushRequest(3, b"12"))
    held = []
    for number in (2, 1, 3):
        answers = dialogue.s(PushResponse(number, Status.OK, number)).out.answers
        assert answers is not None
        held.append((answers.data, answers.data_bytes))
    assert held == [(None, 3), (b"12345678", 8), (b"12", 2)]
    # What was answered makes room, and other data under one id is noticed without the data.
    assert dialogue.c(PushRequest(4, b"1234567890")).c(PushRequest(5, b"1")).c(PushRequest(5, b"2")).last == [
        "request_id_reused"
    ]


def test_what_is_known_of_a_connection_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MOST_KNOWN", 50)
    session = Session(OckamOptions())
    sizes = []
    for at in range(301):
        name, back, address = f"stream {at}", f"me {at}", f"address of stream {at}".replace(" ", "_")
        talk: list[tuple[Direction, Message, str, str]] = [
            (Direction.CLIENT, CreateRequest(name), "stream", back),
            (Direction.SERVER, CreateResponse(name), back, address),
            (Direction.CLIENT, PushRequest(at * 7, b"x"), address, back),
            (Direction.SERVER, PushResponse(at * 7, Status.OK if at % 2 else Status.ERROR, at), back, address),
            (Direction.CLIENT, IndexSave(f"client {at}", name, at), "stream_index", back),
            (Direction.CLIENT, PullRequest(at, 0, 1), address, back),
            (Direction.SERVER, pulled(at, 0), back, address),
            (Direction.CLIENT, CreatePartitionedRequest(name, 1), "stream", back),
            (Direction.SERVER, CreatePartitionedResponse(name, 0), back, address),
        ]
        for direction, message, to, from_ in talk:
            rules = [found.rule.name for found in quick(session, direction, message, to, from_, at + 1).findings]
            assert set(rules) <= {"address_not_from_name"}
        if at % 50 == 0:
            sizes.append(len(as_text(session.state)))
    assert max(sizes[2:]) < sizes[2] * 1.1


def test_long_texts_are_known_by_their_hash() -> None:
    long = "n" * 100_000
    dialogue = Dialogue().c(CreateRequest(long), "stream", "me " + "b" * 2000)
    assert dialogue.s(CreateResponse(long), A, "me " + "b" * 2000).found == ["address_not_from_name"]
    dialogue.c(IndexSave(long, long, 3), "stream_index")
    assert dialogue.out.stream_address == A
    assert len(as_text(dialogue.session.state)) < 10_000
    assert all(len(found.message) < 1000 for found in dialogue.findings)


# Anything

texts = st.sampled_from(["", "orders", "a"])
numbers = st.sampled_from([0, 1, 2, MOST])
messages = st.one_of(
    st.builds(CreateRequest, st.none() | texts),
    st.builds(CreatePartitionedRequest, st.none() | texts, numbers),
    st.builds(PushRequest, numbers, st.sampled_from([b"", b"x"])),
    st.builds(PullRequest, numbers, numbers, numbers),
    st.builds(IndexGet, texts, texts, st.none() | numbers),
    st.builds(IndexSave, texts, texts, numbers, st.none() | numbers),
    st.builds(CreateResponse, texts, st.sampled_from([b"", b"x"])),
    st.builds(CreatePartitionedResponse, texts, numbers),
    st.builds(PushResponse, numbers, st.sampled_from(Status), numbers),
    st.builds(pulled, numbers, numbers, numbers),
    st.builds(IndexResponse, texts, texts, st.none() | numbers, st.none() | numbers),
    st.builds(Error, texts),
    st.binary(max_size=5),
)
addresses = st.sampled_from(["stream", "stream_index", "orders_1", "a", "", "me"])
steps = st.tuples(st.booleans(), messages, addresses, addresses, st.sampled_from([0, 1, 4000]), st.integers(0, 20))


@settings(max_examples=40)
@given(st.booleans(), st.lists(steps, max_size=25), st.sampled_from(End))
def test_whatever_is_said_is_told_and_a_snapshot_goes_on_as_the_session(
    late: bool, said: list[tuple[bool, Message | bytes, str, str, int, int]], how: End
) -> None:
    dialogue = Dialogue(started_late=late)
    for is_request, message, to, back, pause, odd in said:
        dialogue.wait(pause)
        if odd == 0:
            dialogue.take(Direction.CLIENT if is_request else Direction.SERVER, **UNDECODABLE)
        requests = (CreateRequest, CreatePartitionedRequest, PushRequest, PullRequest, IndexGet, IndexSave)
        is_request = is_request if isinstance(message, bytes) else isinstance(message, requests)
        direction = Direction.CLIENT if is_request else Direction.SERVER
        dialogue.send(direction, route(to), route(back), message)
        own = [found for found in dialogue.out.findings if found.where.byte_start == dialogue.out.received.byte_start]
        assert sum(found.where.direction is direction for found in own) <= 1
    assert not set(dialogue.end(how).found) & ACROSS


def test_a_decoded_of_no_message_has_its_reason_in_the_finding() -> None:
    dialogue = opened().take(
        Direction.CLIENT,
        routed=Routed(1, route("ping"), route("me"), b"?"),
        decoded=Decoded(protocol_name="stream_push", reason="request_id: byte 3"),
        rule="payload",
        reason="request_id: byte 3",
    )
    assert [(found.rule.name, found.message) for found in dialogue.findings] == [("payload", "request_id: byte 3")]
