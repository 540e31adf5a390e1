"""The calls of a block node as tables: what each message means, and which rules the order of one call decides.

A `Call` takes what both sides say on one call in arrival order, and goes on from its `snapshot()`. There is a table for
each method: a publisher's call (specification, "Base Protocol" and "Error Handling"), a subscription, a status query.

- What answers a header comes at its own time: the table follows the last thing that matters, whoever said it.
- A header is accepted by silence. What only other calls tell (L over all connections, blocks that others delivered)
  is judged in correlation.
- After messages were missed the call is `UNKNOWN` until the next header: nothing is found that they could disprove.
- What a publisher sends without having acknowledged an answer, or within the options' `in_flight_ms` of it, may have
  crossed it. A node can't answer a header that it hadn't received.
- A subscription is judged block by block: they follow each other, each whole, from the first to the last one asked
  for, and then comes the status.
- An unlisted pair is the rule that it breaks; where it breaks none, the message is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from wirehouse_codecs.core.errors import StateVersionError
from wirehouse_codecs.core.rules import Rule
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.profiles import (
    BEHIND_CODE,
    DUPLICATE_CODE,
    NO_BLOCK,
    OPEN,
    PUBLISHER_CODES,
    Profile,
    Service,
)
from wirehouse_codecs.hiero.rules import RULE
from wirehouse_codecs.hiero.wire.messages import (
    Acknowledgement,
    BlockEnd,
    BlockItems,
    EndOfStream,
    Message,
    NodeBehind,
    PublisherEndStream,
    ResendBlock,
    ServerStatus,
    ServerStatusRequest,
    SkipBlock,
    SubscribeRequest,
    SubscribeStatus,
)
from wirehouse_codecs.tcp.endpoints import Direction

SNAPSHOT_VERSION: Final = 3
#: Skipped blocks of a call that wait for an acknowledgement; of more the oldest is not judged.
MOST_SKIPS: Final = 16
#: Headers of a call that wait for an answer; of more the oldest is forgotten.
MOST_WAITING: Final = 16
_TOO_FAR_BEHIND: Final = "TOO_FAR_BEHIND"


class State(StrEnum):
    """Where a publisher's call stands."""

    CONNECTED = "connected"
    STREAMING = "streaming"
    PROVEN = "block proven"
    DUPLICATE = "answered duplicate"
    BEHIND = "answered behind"
    SKIPPED = "told to skip"
    RESEND = "asked to resend"
    PUBLISHER_ENDED = "ended by the publisher"
    NODE_ENDED = "ended by the node"
    OVER = "over"
    UNKNOWN = "unknown"


class Input(StrEnum):
    """What is said on a publisher's call."""

    HEADER = "header"
    ITEMS = "items"
    PROOF = "proof"
    BLOCK_END = "block end"
    END_STREAM = "EndStream"
    HALF_CLOSE = "half close"
    CANCEL = "cancel"
    ACKNOWLEDGEMENT = "acknowledgement"
    DUPLICATE = "duplicate"
    #: The answer that ends the call.
    DUPLICATE_END = "duplicate, and the end"
    BEHIND = "behind"
    BEHIND_END = "behind, and the end"
    SKIP = "skip"
    RESEND = "resend"
    END_OF_STREAM = "EndOfStream"
    TRAILERS = "trailers"
    RESET = "reset"
    DISCONNECT = "publisher closes the connection"
    NODE_DISCONNECT = "node closes the connection"


#: What the publisher sends.
OF_PUBLISHER: Final = frozenset({Input.HEADER, Input.ITEMS, Input.PROOF, Input.BLOCK_END, Input.END_STREAM})


class Said(NamedTuple):
    """One thing that is said."""

    input: StrEnum
    at_ns: int
    #: Of the header, the acknowledgement or the answer.
    number: int | None = None
    #: Of the publisher's EndStream, or the subscriber's status.
    code: str | None = None
    earliest: int = 0
    #: Of the publisher's EndStream, or the last block that a subscriber asks for; None = there is no end.
    latest: int | None = 0
    #: Position after its last byte, and how many bytes of the other side its sender had received, at most; None = that
    #: isn't known.
    byte_end: int = 0
    received: int | None = None
    #: It came late: its sender may have received more, and other messages may have come before it.
    late: bool = False


class Found(NamedTuple):
    """A rule that the call breaks by what was said last."""

    rule: Rule
    message: str
    #: The side whose bytes alone show it, and nothing that the other one says could excuse it.
    alone: Direction | None = None


@dataclass(slots=True)
class _Memory:
    """What a publisher's call remembers. All of it is as JSON has it."""

    #: The last header, where it ends, and how many there were.
    header: int | None = None
    header_end: int = 0
    headers: int = 0
    #: Headers that have no answer, in the order in which they came.
    waiting: list[int] = field(default_factory=list)
    #: The last answer's number, time and end, and the header that it answered.
    reported: int | None = None
    reported_ns: int = 0
    reported_end: int = 0
    refused: int | None = None
    #: What was found about it already.
    went_on: bool = False
    #: The refused block is complete: the next header may have been on its way too.
    complete: bool = False
    #: The highest acknowledgement.
    acknowledged: int | None = None
    #: Skipped blocks, and when, that wait for an acknowledgement or ResendBlock.
    skips: list[list[int]] = field(default_factory=list)
    #: When and where the node ended the call.
    ended_ns: int = 0
    ended_end: int = 0
    #: When the publisher's host last hadn't received that, or the last answer.
    unaware_ns: int = 0
    #: Messages were missed: what was held back behind them comes late.
    missed: bool = False
    #: Of a subscription: the first and the last block that were asked for.
    first: int | None = None
    last: int | None = None


Broken = Sequence[tuple[str, str] | tuple[str, str, Direction]]
Effect = Callable[["Call", Said], Broken]


@dataclass(frozen=True, slots=True)
class Step:
    """What a table says: the state after it, what is to be done, and the rule that it breaks in any case."""

    state: StrEnum
    effect: Effect | None = None
    rule: str | None = None


# A publisher's call: effects


def _offer(call: Call, said: Said) -> Broken:
    memory = call.memory
    if said.number is not None:
        memory.waiting = [*memory.waiting, said.number][-MOST_WAITING:]
    memory.header, memory.header_end = said.number, said.byte_end
    memory.headers += 1
    return []


def _offer_after_behind(call: Call, said: Said) -> Broken:
    memory, number = call.memory, said.number
    reported, before, crossed = memory.reported, memory.header, call.in_flight(said)
    went_on = memory.went_on or _unknowing(said, memory.reported_end)
    _offer(call, said)
    # 0 is also what says no number at all: the publisher doesn't know where to go on.
    if not reported or number is None or number == after(reported) or went_on:
        return []
    if memory.acknowledged is not None and memory.acknowledged >= after(reported):
        # The header after the reported block came, and was captured late or not at all.
        return []
    if memory.complete and crossed and before is not None and number == before + 1:
        return []
    return [("resend_from_l1", f"after Behind({_shown(reported)}) comes the header of {number}")]


def _offer_after_duplicate(call: Call, said: Said) -> Broken:
    refused, number = call.memory.refused, said.number
    went_on = call.memory.went_on or _unknowing(said, call.memory.reported_end)
    _offer(call, said)
    if refused is None or number is None or number > refused or went_on:
        return []
    return [("recheck", f"block {refused} was answered as a duplicate, and {number} is offered")]


def _offer_after_resend(call: Call, said: Said) -> Broken:
    memory, number = call.memory, said.number
    wanted, crossed = memory.reported, call.in_flight(said)
    _offer(call, said)
    if crossed or wanted is None or number in (None, wanted):
        return []
    if memory.acknowledged is not None and memory.acknowledged >= wanted:
        return []
    return [("skip_pair", f"after ResendBlock({wanted}) comes the header of {number}")]


def _go_on(rule: str) -> Effect:
    """Items of the refused or skipped block, of which some may have been on their way."""

    def effect(call: Call, said: Said) -> Broken:
        call.memory.complete |= said.input is Input.PROOF
        if call.memory.went_on or call.in_flight(said) or call.memory.refused is None:
            return []
        call.memory.went_on = True
        return [(rule, f"items of block {call.memory.header} go on after the answer")]

    return effect


def _after_end(call: Call, said: Said) -> Broken:
    """Something of the publisher after the end. It is told once."""
    memory = call.memory
    in_time = said.at_ns - max(memory.ended_ns, memory.unaware_ns) <= call.options.in_flight_ns
    if memory.went_on or memory.missed or in_time or _unknowing(said, memory.ended_end):
        return []
    memory.went_on = True
    shown = f"{said.input} while the call is {call.state}"
    return [("end_last", shown, Direction.CLIENT) if call.state is State.PUBLISHER_ENDED else ("end_last", shown)]


def _without_header(call: Call, said: Said) -> Broken:
    return [("structure", f"{said.input} before any header")]


def _end_block(call: Call, said: Said) -> Broken:
    header = call.memory.header
    if said.number is None or header is None or said.number == header:
        return []
    return [("structure", f"BlockEnd names block {said.number}, the header {header}")]


def _end_unproven(call: Call, said: Said) -> Broken:
    return [("structure", f"BlockEnd of block {said.number} without a proof")]


def _end_stream(call: Call, said: Said) -> Broken:
    call.memory.went_on = False
    broken = [*_range(said)]
    if call.state is State.BEHIND and said.code != _TOO_FAR_BEHIND and not _unknowing(said, call.memory.reported_end):
        broken.append(("too_far_code", f"after Behind the EndStream has the code {said.code}"))
    return broken


def _range(said: Said) -> Broken:
    """A range that is missing is judged in correlation: there L is known."""
    if said.code == "ERROR" or said.latest is None or said.earliest <= said.latest:
        return []
    shown = f"the earliest block {said.earliest} is above the latest {_shown(said.latest)}"
    return [("earliest", shown, Direction.CLIENT)]


def _acknowledge(call: Call, said: Said) -> Broken:
    memory, number = call.memory, said.number
    assert number is not None
    memory.skips = [skip for skip in memory.skips if skip[0] > number]
    memory.waiting = [waiting for waiting in memory.waiting if waiting > number]
    if memory.acknowledged is not None and number <= memory.acknowledged:
        return [("ack_order", f"block {number} is acknowledged after {memory.acknowledged}", Direction.SERVER)]
    memory.acknowledged = number
    return []


def _refuse(call: Call, said: Said) -> None:
    memory = call.memory
    memory.reported, memory.reported_ns, memory.reported_end = said.number, said.at_ns, said.byte_end
    memory.complete = call.state is State.PROVEN
    # Before its next header the publisher is told once that it goes on.
    memory.went_on &= call.state in (State.DUPLICATE, State.BEHIND)


def _behind(call: Call, said: Said) -> Broken:
    _refuse(call, said)
    number, reported = call.memory.refused, said.number
    if number is None or reported is None:
        return []
    if number == after(reported):
        return [("next", f"the next block {number} is answered Behind({_shown(reported)})")]
    if number <= reported != NO_BLOCK and (number or reported):
        return [(call.otherwise("duplicate"), f"block {number} is answered Behind({reported})")]
    return []


def _duplicate(call: Call, said: Said) -> Broken:
    _refuse(call, said)
    number, reported = call.memory.refused, said.number
    if number is None or reported is None or number <= reported != NO_BLOCK:
        return []
    # Without a number the answer breaks another rule: see correlation.
    return [("next", f"block {number} is answered as a duplicate by {_shown(reported)}")] if reported else []


def _skip(call: Call, said: Said) -> Broken:
    memory = call.memory
    assert said.number is not None
    memory.waiting = [waiting for waiting in memory.waiting if waiting != said.number]
    # The publisher may have gone on before it read this.
    gone_on = memory.header is not None and said.number < memory.header and call.state is not State.SKIPPED
    if not call.skips_earlier(said):
        memory.refused = said.number if said.number == memory.header else None
        memory.reported_ns, memory.reported_end, memory.went_on = said.at_ns, said.byte_end, False
    if memory.header is None or said.number == memory.header or gone_on:
        if memory.acknowledged is None or said.number > memory.acknowledged:
            memory.skips = [*memory.skips, [said.number, said.at_ns]][-MOST_SKIPS:]
        return []
    return [("skip_pair", f"SkipBlock({said.number}), the last header is {memory.header}")]


def _resend(call: Call, said: Said) -> Broken:
    memory, number = call.memory, said.number
    assert number is not None
    memory.skips = [skip for skip in memory.skips if skip[0] != number]
    memory.waiting = [waiting for waiting in memory.waiting if waiting != number]
    memory.reported, memory.reported_ns, memory.reported_end = number, said.at_ns, said.byte_end
    if memory.acknowledged is not None and number <= memory.acknowledged:
        shown = f"ResendBlock({number}), blocks up to {memory.acknowledged} are acknowledged"
        return [("skip_pair", shown, Direction.SERVER)]
    return []


def _node_ends(call: Call, said: Said) -> Broken:
    call.memory.ended_ns, call.memory.ended_end, call.memory.went_on = said.at_ns, said.byte_end, False
    call.memory.skips.clear()
    call.memory.waiting.clear()
    return []


def _duplicate_ends(call: Call, said: Said) -> Broken:
    return [*_duplicate(call, said), *_node_ends(call, said)]


def _behind_ends(call: Call, said: Said) -> Broken:
    return [*_behind(call, said), *_node_ends(call, said)]


def _leave(call: Call, said: Said) -> Broken:
    """The publisher ends the call, or its connection does."""
    waited = [skip for skip in call.memory.skips if said.at_ns - skip[1] > call.options.in_flight_ns]
    call.memory.skips.clear()
    if waited:
        return [("skip_pair", f"neither an acknowledgement nor ResendBlock follows on SkipBlock({waited[0][0]})")]
    return []


def _leave_unproven(call: Call, said: Said) -> Broken:
    return [("ended_without_end_stream", f"{said.input} within block {call.memory.header}, which has no proof")]


def _over(call: Call, said: Said) -> Broken:
    memory = call.memory
    if not memory.ended_ns:
        memory.ended_ns, memory.ended_end = said.at_ns, said.byte_end
    return []


def _node_leaves(call: Call, said: Said) -> Broken:
    _over(call, said)
    if call.memory.missed:
        # It may be among what is missing.
        return []
    return [("node_ended_without_status", f"{said.input} without an EndOfStream")]


# A publisher's call: the table

_ANSWERABLE: Final = (State.CONNECTED, State.STREAMING, State.PROVEN, State.DUPLICATE, State.BEHIND)
#: Answers to a header, and whether it is one by `duplicate` or `behind`.
ANSWERS: Final[Mapping[StrEnum, str]] = MappingProxyType(
    {
        Input.DUPLICATE: "duplicate",
        Input.DUPLICATE_END: "duplicate",
        Input.BEHIND: "behind",
        Input.BEHIND_END: "behind",
    }
)
_OPEN: Final = (*_ANSWERABLE, State.SKIPPED, State.RESEND)
_ENDED: Final = (State.PUBLISHER_ENDED, State.NODE_ENDED)

PUBLISHING: Final[Mapping[tuple[State, Input], Step]] = MappingProxyType(
    {
        (State.CONNECTED, Input.HEADER): Step(State.STREAMING, _offer),
        # The block before it is dropped.
        (State.STREAMING, Input.HEADER): Step(State.STREAMING, _offer),
        (State.PROVEN, Input.HEADER): Step(State.STREAMING, _offer),
        (State.DUPLICATE, Input.HEADER): Step(State.STREAMING, _offer_after_duplicate),
        (State.BEHIND, Input.HEADER): Step(State.STREAMING, _offer_after_behind),
        (State.SKIPPED, Input.HEADER): Step(State.STREAMING, _offer),
        (State.RESEND, Input.HEADER): Step(State.STREAMING, _offer_after_resend),
        (State.UNKNOWN, Input.HEADER): Step(State.STREAMING, _offer),
        # It is found once.
        **{
            (State.CONNECTED, said): Step(State.UNKNOWN, _without_header)
            for said in (Input.ITEMS, Input.PROOF, Input.BLOCK_END)
        },
        (State.STREAMING, Input.ITEMS): Step(State.STREAMING),
        (State.STREAMING, Input.PROOF): Step(State.PROVEN),
        (State.STREAMING, Input.BLOCK_END): Step(State.PROVEN, _end_unproven),
        # What stands behind a proof is judged with the block.
        (State.PROVEN, Input.ITEMS): Step(State.PROVEN),
        (State.PROVEN, Input.PROOF): Step(State.PROVEN),
        (State.PROVEN, Input.BLOCK_END): Step(State.PROVEN, _end_block),
        **{
            (state, said): Step(state, _go_on(rule))
            for state, rule in (
                (State.DUPLICATE, "recheck"),
                (State.BEHIND, "resend_from_l1"),
                (State.SKIPPED, "skip_pair"),
            )
            for said in (Input.ITEMS, Input.PROOF, Input.BLOCK_END)
        },
        **{
            (state, said): Step(state)
            for state in (State.RESEND, State.UNKNOWN)
            for said in (Input.ITEMS, Input.PROOF, Input.BLOCK_END)
        },
        **{(state, Input.END_STREAM): Step(State.PUBLISHER_ENDED, _end_stream) for state in (*_OPEN, State.UNKNOWN)},
        **{(State.NODE_ENDED, said): Step(State.NODE_ENDED, _after_end) for said in Input if said in OF_PUBLISHER},
        # The node
        **{(state, Input.ACKNOWLEDGEMENT): Step(state, _acknowledge) for state in (*_OPEN, *_ENDED, State.UNKNOWN)},
        **{(state, Input.DUPLICATE): Step(State.DUPLICATE, _duplicate) for state in (*_OPEN, State.UNKNOWN)},
        **{(state, Input.DUPLICATE_END): Step(State.NODE_ENDED, _duplicate_ends) for state in (*_OPEN, State.UNKNOWN)},
        **{(state, Input.BEHIND): Step(State.BEHIND, _behind) for state in (*_OPEN, State.UNKNOWN)},
        **{(state, Input.BEHIND_END): Step(State.NODE_ENDED, _behind_ends) for state in (*_OPEN, State.UNKNOWN)},
        **{(state, Input.SKIP): Step(State.SKIPPED, _skip) for state in (*_OPEN[1:], State.UNKNOWN)},
        **{(state, Input.RESEND): Step(State.RESEND, _resend) for state in (*_OPEN, State.UNKNOWN)},
        **{(state, Input.END_OF_STREAM): Step(State.NODE_ENDED, _node_ends) for state in (*_OPEN, State.UNKNOWN)},
        # Of what the node says to a publisher that has ended, only that it ends too counts.
        (State.PUBLISHER_ENDED, Input.END_OF_STREAM): Step(State.PUBLISHER_ENDED),
        # The end
        **{
            (state, said): Step(State.PUBLISHER_ENDED, _leave_unproven if state is State.STREAMING else _leave)
            for state in _OPEN
            for said in (Input.HALF_CLOSE, Input.CANCEL, Input.DISCONNECT)
        },
        **{
            (state, said): Step(state)
            for state in (*_ENDED, State.OVER, State.UNKNOWN)
            for said in (Input.HALF_CLOSE, Input.CANCEL, Input.DISCONNECT)
        },
        (State.PUBLISHER_ENDED, Input.DISCONNECT): Step(State.PUBLISHER_ENDED, _leave),
        (State.PUBLISHER_ENDED, Input.TRAILERS): Step(State.OVER, _leave),
        **{
            (state, said): Step(State.OVER, _node_leaves)
            for state in _OPEN
            for said in (Input.TRAILERS, Input.RESET, Input.NODE_DISCONNECT)
        },
        **{
            (state, said): Step(State.OVER, _over)
            for state in (State.NODE_ENDED, State.UNKNOWN, State.OVER)
            for said in (Input.TRAILERS, Input.RESET, Input.NODE_DISCONNECT)
        },
        **{(State.PUBLISHER_ENDED, said): Step(State.OVER) for said in (Input.RESET, Input.NODE_DISCONNECT)},
    }
)


def publishing_rule(state: State, said: Input) -> str | None:
    """The rule that an unlisted pair breaks; None = it is passed over."""
    if state in (State.PUBLISHER_ENDED, State.OVER) and said in OF_PUBLISHER:
        return "end_last"
    if state is State.CONNECTED:
        return {Input.SKIP: "skip_pair"}.get(said)
    return None


# A subscription and a status query


class Subscription(StrEnum):
    """Where a subscriber's call stands."""

    CONNECTED = "connected"
    SUBSCRIBED = "subscribed"
    #: Within a block.
    DELIVERING = "delivering"
    DELIVERED = "block delivered"
    ENDED = "ended by a status"
    OVER = "over"
    UNKNOWN = "unknown"


class SubscriptionInput(StrEnum):
    """What is said on a subscriber's call."""

    REQUEST = "request"
    HEADER = "header"
    ITEMS = "items"
    PROOF = "proof"
    STATUS = "status"
    SUBSCRIBER_ENDS = "subscriber ends the call"
    NODE_ENDS = "node ends the call"
    END = "end"


def _subscribe(call: Call, said: Said) -> Broken:
    call.memory.first, call.memory.last = said.number, said.latest
    return []


def _begin_within(call: Call, said: Said) -> Broken:
    """The first items have no header: which block they are of isn't known."""
    call.memory.headers = max(call.memory.headers, 1)
    return []


def _deliver(call: Call, said: Said) -> Broken:
    """The next block. What follows on a wrong one is judged by that one."""
    memory, number = call.memory, said.number
    first, before, last = memory.first, memory.header, memory.last
    is_first = not memory.headers and not memory.missed
    memory.header, memory.headers = number, memory.headers + 1
    if number is None:
        return []
    if before is None:
        if is_first and first is not None and number != first:
            return [("subscriber_range", f"block {number} comes first, {first} was asked for")]
    elif number <= before:
        return [("subscriber_order", f"block {number} begins after block {before}", Direction.SERVER)]
    elif number > before + 1:
        return [("subscriber_gap", f"block {number} follows on block {before}", Direction.SERVER)]
    elif call.state is Subscription.DELIVERING:
        return [("subscriber_gap", f"block {number} begins before the proof of block {before}", Direction.SERVER)]
    if last is None or number <= last or memory.went_on:
        return []
    memory.went_on = True
    return [("subscriber_range", f"block {number} comes, the last one asked for is {last}")]


def _end_subscription(call: Call, said: Said) -> Broken:
    """SUCCESS comes when the last requested block was delivered."""
    memory = call.memory
    first, last, block = memory.first, memory.last, memory.header
    unknown = block is None and bool(memory.missed or memory.headers)
    if said.code != "SUCCESS" or last is None or unknown or (first is not None and first > last):
        return []
    if block is not None and (block > last or (block == last and call.state is Subscription.DELIVERED)):
        return []
    shown = "any block" if block is None else f"block {last}, the last header is {block}"
    return [("subscriber_range", f"SUCCESS comes before {shown}")]


def _leave_subscriber(call: Call, said: Said) -> Broken:
    # The status may be among what is missing.
    return [] if call.memory.missed else [("subscriber_ended_without_status", f"{said.input} without a status")]


_SUBSCRIBED: Final = (Subscription.SUBSCRIBED, Subscription.DELIVERING, Subscription.DELIVERED, Subscription.UNKNOWN)

SUBSCRIBING: Final[Mapping[tuple[Subscription, SubscriptionInput], Step]] = MappingProxyType(
    {
        (Subscription.CONNECTED, SubscriptionInput.REQUEST): Step(Subscription.SUBSCRIBED, _subscribe),
        (Subscription.UNKNOWN, SubscriptionInput.REQUEST): Step(Subscription.SUBSCRIBED, _subscribe),
        **{(state, SubscriptionInput.HEADER): Step(Subscription.DELIVERING, _deliver) for state in _SUBSCRIBED},
        **{
            (state, SubscriptionInput.ITEMS): Step(Subscription.DELIVERING, _begin_within)
            for state in (Subscription.SUBSCRIBED, Subscription.UNKNOWN)
        },
        (Subscription.DELIVERING, SubscriptionInput.ITEMS): Step(Subscription.DELIVERING),
        # What stands behind a proof is judged with the block.
        (Subscription.DELIVERED, SubscriptionInput.ITEMS): Step(Subscription.DELIVERED),
        **{(state, SubscriptionInput.PROOF): Step(Subscription.DELIVERED, _begin_within) for state in _SUBSCRIBED},
        **{(state, SubscriptionInput.STATUS): Step(Subscription.ENDED, _end_subscription) for state in _SUBSCRIBED},
        **{
            (state, said): Step(Subscription.OVER)
            for state in Subscription
            for said in (SubscriptionInput.SUBSCRIBER_ENDS, SubscriptionInput.NODE_ENDS, SubscriptionInput.END)
        },
        **{
            (state, SubscriptionInput.NODE_ENDS): Step(Subscription.OVER, _leave_subscriber)
            for state in _SUBSCRIBED
            if state is not Subscription.UNKNOWN
        },
    }
)


def subscribing_rule(state: Subscription, said: SubscriptionInput) -> str | None:
    """The rule that an unlisted pair breaks; None = it is passed over."""
    return "subscriber_order" if state is Subscription.ENDED and said is not SubscriptionInput.REQUEST else None


class Query(StrEnum):
    """Where a call of the status stands."""

    CONNECTED = "connected"
    ASKED = "asked"
    ANSWERED = "answered"
    OVER = "over"
    UNKNOWN = "unknown"


class QueryInput(StrEnum):
    """What is said on a call of the status."""

    REQUEST = "request"
    ANSWER = "answer"
    END = "end"


ASKING: Final[Mapping[tuple[Query, QueryInput], Step]] = MappingProxyType(
    {
        (Query.CONNECTED, QueryInput.REQUEST): Step(Query.ASKED),
        # An empty request need not be seen.
        (Query.CONNECTED, QueryInput.ANSWER): Step(Query.ANSWERED),
        (Query.ASKED, QueryInput.ANSWER): Step(Query.ANSWERED),
        (Query.UNKNOWN, QueryInput.REQUEST): Step(Query.ASKED),
        (Query.UNKNOWN, QueryInput.ANSWER): Step(Query.ANSWERED),
        **{(state, QueryInput.END): Step(Query.OVER) for state in Query},
    }
)


def _after_missing(state: State) -> State:
    """Where a publisher's call stands when messages were missed."""
    return state if state in (*_ENDED, State.OVER) else State.UNKNOWN


_TABLES: Final[Mapping[Service, tuple[type[StrEnum], Mapping[Any, Step]]]] = MappingProxyType(
    {
        Service.PUBLISH: (State, PUBLISHING),
        Service.SUBSCRIBE: (Subscription, SUBSCRIBING),
        Service.STATUS: (Query, ASKING),
    }
)


# A call


class Call:
    """One call. `receive` what is said in arrival order. `started_late`: the capture began after the call did."""

    def __init__(
        self,
        service: Service,
        options: HieroOptions,
        *,
        started_late: bool = False,
        snapshot: Mapping[str, Any] | None = None,
    ) -> None:
        self.service, self.options = service, options
        states, self._table = _TABLES[service]
        self.state: StrEnum = states("unknown" if started_late else "connected")
        self.memory = _Memory()
        #: Messages were missed, before the capture or within it.
        self.partial = started_late
        if snapshot is not None:
            if snapshot.get("version") != SNAPSHOT_VERSION:
                raise StateVersionError(what="hiero call", found=snapshot.get("version"), expected=SNAPSHOT_VERSION)
            self.state, self.partial = states(snapshot["state"]), snapshot["partial"]
            self.memory = _Memory(**snapshot["memory"])

    def receive(self, said: Said) -> tuple[str | None, tuple[Found, ...]]:
        """Why it is passed over, and what it breaks."""
        memory = self.memory
        if said.input in OF_PUBLISHER and _unknowing(said, max(memory.reported_end, memory.ended_end)):
            memory.unaware_ns = said.at_ns
        step = self._table.get((self.state, said.input))
        if step is None:
            return f"the call is {self.state}", self._unlisted(said)
        if self._goes_on(said):
            if said.input in (Input.DUPLICATE, Input.BEHIND):
                return None, ()
            step = self._table[self.state, Input.END_OF_STREAM]
        broken = step.effect(self, said) if step.effect else []
        if not self.skips_earlier(said):
            self.state = step.state
        return None, _found(broken)

    def _unlisted(self, said: Said) -> tuple[Found, ...]:
        rule = None
        shown = f"{said.input} while the call is {self.state}"
        if isinstance(self.state, State) and isinstance(said.input, Input):
            rule = publishing_rule(self.state, said.input)
        elif isinstance(self.state, Subscription) and isinstance(said.input, SubscriptionInput):
            rule = subscribing_rule(self.state, said.input)
        if rule == "subscriber_order":
            if self.memory.went_on or self.memory.missed:
                return ()
            self.memory.went_on = True
        if rule is None:
            return ()
        if rule == "end_last":
            return _found(_after_end(self, said))
        return _found([(rule, shown, Direction.SERVER) if rule == "subscriber_order" else (rule, shown)])

    def _goes_on(self, said: Said) -> bool:
        """An answer is to the first header that waits for such a one. The call may have gone on to another since."""
        memory = self.memory
        answer = ANSWERS.get(said.input)
        if answer is None or said.number is None:
            return False
        # A node that hadn't received the last header answers another one.
        unseen = memory.header if _unknowing(said, memory.header_end) and not said.late else None
        fitting = [number for number in memory.waiting if number != unseen and fits(answer, said.number, number)]
        answered = fitting[0] if fitting else memory.header
        if unseen is not None and not fitting:
            return True
        if answered in memory.waiting:
            memory.waiting.remove(answered)
        if fitting and memory.header not in fitting:
            return True
        memory.refused = answered
        return False

    def skips_earlier(self, said: Said) -> bool:
        """SkipBlock names a block before the last header: the publisher had gone on before it read this."""
        number, header = said.number, self.memory.header
        return said.input is Input.SKIP and number is not None and header is not None and number < header

    def miss(self, sides: Collection[Direction] = tuple(Direction)) -> None:
        """Messages of the call are missing, of these sides."""
        self.partial = True
        if self.service is Service.PUBLISH:
            assert isinstance(self.state, State)
            self.state = _after_missing(self.state)
            known = self.memory
            self.memory = _Memory(
                acknowledged=known.acknowledged, headers=max(known.headers, 1), ended_ns=known.ended_ns, missed=True
            )
            if Direction.CLIENT not in sides:
                # What the publisher says after its own end is in order.
                self.memory.missed, self.memory.went_on = known.missed, known.went_on
            return
        if self.service is Service.SUBSCRIBE and Direction.SERVER in sides:
            self.memory = _Memory(first=self.memory.first, last=self.memory.last, headers=1, missed=True)
        if self.state in (Subscription.CONNECTED, Query.CONNECTED):
            self.state = type(self.state)("unknown")

    def in_flight(self, said: Said) -> bool:
        """It may have crossed the last answer."""
        memory = self.memory
        in_time = said.at_ns - max(memory.reported_ns, memory.unaware_ns) <= self.options.in_flight_ns
        return in_time or _unknowing(said, memory.reported_end)

    def otherwise(self, rule: str) -> str:
        """A wrong decision about a header that isn't the call's first has a rule of its own."""
        return "reenter" if self.memory.headers > 1 else rule

    def snapshot(self) -> dict[str, Any]:
        """The state, as JSON has it."""
        memory = {name: getattr(self.memory, name) for name in _Memory.__slots__}
        return {"version": SNAPSHOT_VERSION, "state": self.state, "partial": self.partial, "memory": memory}


def _found(broken: Broken) -> tuple[Found, ...]:
    return tuple(Found(RULE[one[0]], one[1], one[2] if len(one) == 3 else None) for one in broken)


def _unknowing(said: Said, end: int) -> bool:
    """Its sender can't have read all bytes of the other side before `end`: its host hadn't received them."""
    return said.received is not None and said.received < end


def after(number: int) -> int:
    """The block after the reported one; a node without blocks reports all ones."""
    return 0 if number == NO_BLOCK else number + 1


def fits(answer: str, reported: int, number: int) -> bool:
    """The header of block `number` may be answered so, by `duplicate` or `behind`."""
    if answer == "behind":
        return number > after(reported)
    return number <= reported != NO_BLOCK


def _shown(number: int) -> str:
    return "none" if number == NO_BLOCK else str(number)


# What a message says


_INPUTS: Final[Mapping[type[Message], StrEnum]] = MappingProxyType(
    {
        BlockItems: Input.ITEMS,
        PublisherEndStream: Input.END_STREAM,
        BlockEnd: Input.BLOCK_END,
        NodeBehind: Input.BEHIND,
        SkipBlock: Input.SKIP,
        ResendBlock: Input.RESEND,
        SubscribeRequest: SubscriptionInput.REQUEST,
        SubscribeStatus: SubscriptionInput.STATUS,
        ServerStatusRequest: QueryInput.REQUEST,
        ServerStatus: QueryInput.ANSWER,
    }
)
_DELIVERED: Final = frozenset({BlockItems, BlockEnd})


def input_of(message: Message, service: Service, profile: Profile) -> StrEnum | None:
    """What a message says on a call of `service`; None = nothing that its table knows."""
    if service is Service.SUBSCRIBE and type(message) in _DELIVERED:
        return SubscriptionInput.ITEMS
    if isinstance(message, Acknowledgement):
        return Input.DUPLICATE if message.block_already_exists else Input.ACKNOWLEDGEMENT
    if isinstance(message, EndOfStream):
        return _end_input(message, profile)
    return _INPUTS.get(type(message))


def _end_input(message: EndOfStream, profile: Profile) -> Input:
    """By its code, an answer to the header. In the older API the call goes on after Behind."""
    code = profile.end_codes.get(message.code)
    if code == BEHIND_CODE:
        return Input.BEHIND_END if profile.new else Input.BEHIND
    return Input.DUPLICATE_END if code == DUPLICATE_CODE else Input.END_OF_STREAM


def said_of(said: StrEnum, message: Message, at_ns: int, profile: Profile) -> Said:
    """A message as its call takes it."""
    number = getattr(message, "block_number", None)
    if isinstance(message, SubscribeRequest):
        endless = message.end_block_number == (OPEN if profile.new else 0)
        first = None if message.start_block_number == OPEN else message.start_block_number
        return Said(said, at_ns, first, latest=None if endless else message.end_block_number)
    if isinstance(message, SubscribeStatus):
        return Said(said, at_ns, None, profile.subscribe_codes.get(message.code))
    if isinstance(message, PublisherEndStream):
        code = PUBLISHER_CODES.get(message.code)
        return Said(said, at_ns, None, code, message.earliest_block_number, message.latest_block_number)
    return Said(said, at_ns, number)
