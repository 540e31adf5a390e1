"""A publisher's call as a table (specification, "Base Protocol" and "Error Handling")."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from wirehouse_codecs.hiero.profiles import NO_BLOCK
from wirehouse_codecs.hiero.session.steps import (
    ANSWER_NS,
    Broken,
    CallInput,
    Effect,
    Step,
    after,
    block_name,
    knowing,
    unknowing,
)
from wirehouse_codecs.tcp.endpoints import Direction

if TYPE_CHECKING:
    from wirehouse_codecs.hiero.session.session import Call

#: Skipped blocks of a call that wait for an acknowledgement; of more the oldest is not judged.
MOST_SKIPS: Final = 16
#: Headers of a call that wait for an answer, and blocks that answers asked for; of more the oldest is forgotten.
MOST_WAITING: Final = 16
_RESET: Final = "RESET"
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
    """Inputs of a publisher's call."""

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


# A publisher's call: effects


def _offer(call: Call, given: CallInput) -> Broken:
    memory = call.memory
    if given.number is not None:
        memory.waiting = [*memory.waiting, given.number][-MOST_WAITING:]
    memory.header, memory.header_end, memory.complete = given.number, given.byte_end, False
    memory.headers += 1
    return []


def _is_due(call: Call, given: CallInput) -> bool:
    """Whether the header may be older than the last answer's arrival: an earlier answer asked for it, or it is next."""
    memory, number = call.memory, given.number
    follows = memory.complete and memory.header is not None and number == memory.header + 1
    return call.in_flight(given) and (follows or memory.missed or number in memory.wanted)


def _offer_after_behind(call: Call, given: CallInput) -> Broken:
    memory, number = call.memory, given.number
    reported, is_due = memory.reported, _is_due(call, given)
    went_on = memory.went_on or unknowing(given, memory.reported_end)
    _offer(call, given)
    # 0 also means no number at all: the publisher doesn't know where to go on.
    if not reported or number is None or number == after(reported) or went_on or is_due:
        return []
    if memory.acknowledged is not None and memory.acknowledged >= after(reported):
        # The header after the reported block came, and was captured late or not at all.
        return []
    return [("resend_from_l1", f"after Behind({block_name(reported)}) comes the header of {number}")]


def _offer_after_duplicate(call: Call, given: CallInput) -> Broken:
    refused, number, is_due = call.memory.refused, given.number, _is_due(call, given)
    went_on = call.memory.went_on or unknowing(given, call.memory.reported_end)
    _offer(call, given)
    if refused is None or number is None or number > refused or went_on or is_due:
        return []
    return [("recheck", f"block {refused} was answered as a duplicate, and {number} is offered")]


def _offer_after_skip(call: Call, given: CallInput) -> Broken:
    memory = call.memory
    skipped, crossed = memory.refused, memory.went_on or call.in_flight(given)
    _offer(call, given)
    is_acknowledged = memory.acknowledged is not None and skipped is not None and memory.acknowledged >= skipped
    if crossed or is_acknowledged or skipped is None or given.number != skipped:
        return []
    return [("skip_pair", f"after SkipBlock({skipped}) its header comes again")]


def _offer_after_resend(call: Call, given: CallInput) -> Broken:
    memory, number = call.memory, given.number
    wanted, crossed = memory.reported, call.in_flight(given)
    _offer(call, given)
    if crossed or wanted is None or number in (None, wanted):
        return []
    if memory.acknowledged is not None and memory.acknowledged >= wanted:
        return []
    return [("skip_pair", f"after ResendBlock({wanted}) comes the header of {number}")]


def _want(call: Call, number: int) -> None:
    call.memory.wanted = [*call.memory.wanted, number][-MOST_WAITING:]


def _go_on(rule: str) -> Effect:
    """Items of the refused or skipped block, of which some may have been on their way."""

    def effect(call: Call, given: CallInput) -> Broken:
        if call.memory.went_on or call.in_flight(given) or call.memory.refused is None:
            return []
        call.memory.went_on = True
        return [(rule, f"items of block {call.memory.header} go on after the answer")]

    return effect


def after_end(call: Call, given: CallInput) -> Broken:
    """The publisher sends something after the end. It is reported once."""
    memory = call.memory
    # It knows its own end.
    crossed = memory.ended_ns and not knowing(given, memory.ended_ns, call.options.in_flight_ns)
    if memory.went_on or memory.missed or crossed or unknowing(given, memory.ended_end):
        if given.input is Input.END_STREAM:
            # What follows on its own end it sends knowing that.
            memory.ended_ns = memory.ended_end = 0
        return []
    memory.went_on = True
    shown = f"{given.input} while the call is {call.state}"
    return [("end_last", shown, Direction.CLIENT) if call.state is State.PUBLISHER_ENDED else ("end_last", shown)]


def _without_header(call: Call, given: CallInput) -> Broken:
    return [("structure", f"{given.input} before any header")]


def _end_block(call: Call, given: CallInput) -> Broken:
    header = call.memory.header
    if given.number is None or header is None or given.number == header:
        return []
    return [("structure", f"BlockEnd names block {given.number}, the header {header}")]


def _end_unproven(call: Call, given: CallInput) -> Broken:
    return [("structure", f"BlockEnd of block {given.number} without a proof")]


def _end_stream(call: Call, given: CallInput) -> Broken:
    call.memory.went_on = False
    broken = [*_range(given)]
    # Nobody resets a stream within a block, unless the block is refused. Other ends may come at any time.
    reacts = given.code == _RESET and not call.memory.complete and not unknowing(given, call.memory.reported_end)
    if call.state is State.BEHIND and given.code != _TOO_FAR_BEHIND and (reacts or not call.in_flight(given)):
        broken.append(("too_far_code", f"after Behind the EndStream has the code {given.code}"))
    return broken


def _range(given: CallInput) -> Broken:
    """A range that is missing is judged in correlation: there L is known."""
    if given.code == "ERROR" or given.latest is None or given.earliest <= given.latest:
        return []
    shown = f"the earliest block {given.earliest} is above the latest {block_name(given.latest)}"
    return [("earliest", shown, Direction.CLIENT)]


def _may_be_offered_again(call: Call, given: CallInput, number: int) -> bool:
    """Whether a header of this block waits for an answer that the acknowledgement may be."""
    memory = call.memory
    if memory.missed or len(memory.waiting) == MOST_WAITING:
        return True
    unseen = number == memory.header and unknowing(given, memory.header_end)
    return memory.waiting.count(number) > unseen


def _acknowledge(call: Call, given: CallInput) -> Broken:
    memory, number = call.memory, given.number
    assert number is not None
    memory.skips = [skip for skip in memory.skips if skip[0] > number]
    offered_again = _may_be_offered_again(call, given, number)
    if not unknowing(given, memory.header_end):
        # Else it is about the block of another publisher, and the header has an answer of its own.
        memory.waiting = [waiting for waiting in memory.waiting if waiting > number]
    if memory.acknowledged is not None and number < memory.acknowledged:
        return [("ack_order", f"block {number} is acknowledged after {memory.acknowledged}", Direction.SERVER)]
    if number == memory.acknowledged:
        # A block that was offered again is judged in correlation: there L is known.
        return [] if offered_again else [("ack_order", f"block {number} is acknowledged again")]
    memory.acknowledged = number
    _want(call, number + 1)
    return []


def _refuse(call: Call, given: CallInput) -> None:
    memory = call.memory
    memory.reported, memory.reported_ns, memory.reported_end = given.number, given.at_ns, given.byte_end
    if given.number is not None:
        _want(call, after(given.number))
    # The publisher's going on before its next header is reported once.
    memory.went_on &= call.state in (State.DUPLICATE, State.BEHIND)


def _behind(call: Call, given: CallInput) -> Broken:
    _refuse(call, given)
    number, reported = call.memory.refused, given.number
    if number is None or reported is None:
        return []
    if number == after(reported):
        return [("next", f"the next block {number} is answered Behind({block_name(reported)})")]
    if number <= reported != NO_BLOCK and (number or reported):
        return [(call.otherwise("duplicate"), f"block {number} is answered Behind({reported})")]
    return []


def _duplicate(call: Call, given: CallInput) -> Broken:
    _refuse(call, given)
    number, reported = call.memory.refused, given.number
    if number is None or reported is None or number <= reported != NO_BLOCK:
        return []
    # Without a number the answer breaks another rule: see correlation.
    return [("next", f"block {number} is answered as a duplicate by {block_name(reported)}")] if reported else []


def _skip(call: Call, given: CallInput) -> Broken:
    memory = call.memory
    assert given.number is not None
    is_earlier = call.skips_earlier(given)
    memory.waiting = [waiting for waiting in memory.waiting if waiting != given.number]
    _want(call, given.number + 1)
    # The publisher may have gone on, or back, before it read this.
    gone_on = is_earlier and call.state is not State.SKIPPED
    if not is_earlier:
        memory.refused = given.number if given.number == memory.header else None
        memory.reported_ns, memory.reported_end, memory.went_on = given.at_ns, given.byte_end, False
    if memory.header is None or given.number == memory.header or gone_on:
        if memory.acknowledged is None or given.number > memory.acknowledged:
            memory.skips = [*memory.skips, (given.number, given.at_ns)][-MOST_SKIPS:]
        return []
    return [("skip_pair", f"SkipBlock({given.number}), the last header is {memory.header}")]


def _resend(call: Call, given: CallInput) -> Broken:
    memory, number = call.memory, given.number
    assert number is not None
    memory.skips = [skip for skip in memory.skips if skip[0] != number]
    memory.waiting = [waiting for waiting in memory.waiting if waiting != number]
    memory.reported, memory.reported_ns, memory.reported_end = number, given.at_ns, given.byte_end
    _want(call, number)
    if memory.acknowledged is not None and number <= memory.acknowledged:
        shown = f"ResendBlock({number}), blocks up to {memory.acknowledged} are acknowledged"
        return [("skip_pair", shown, Direction.SERVER)]
    return []


def _node_ends(call: Call, given: CallInput) -> Broken:
    call.memory.ended_ns, call.memory.ended_end, call.memory.went_on = given.at_ns, given.byte_end, False
    call.memory.skips.clear()
    call.memory.waiting.clear()
    return []


def _duplicate_ends(call: Call, given: CallInput) -> Broken:
    return [*_duplicate(call, given), *_node_ends(call, given)]


def _behind_ends(call: Call, given: CallInput) -> Broken:
    return [*_behind(call, given), *_node_ends(call, given)]


def _leave(call: Call, given: CallInput) -> Broken:
    """The publisher ends the call, or its connection does."""
    waited = [skip for skip in call.memory.skips if given.at_ns - skip[1] >= ANSWER_NS]
    call.memory.skips.clear()
    if waited:
        return [("skip_pair", f"neither an acknowledgement nor ResendBlock follows on SkipBlock({waited[0][0]})")]
    return []


def _leave_unproven(call: Call, given: CallInput) -> Broken:
    return [("ended_without_end_stream", f"{given.input} within block {call.memory.header}, which has no proof")]


def _over(call: Call, given: CallInput) -> Broken:
    memory = call.memory
    if not memory.ended_ns:
        memory.ended_ns, memory.ended_end = given.at_ns, given.byte_end
    return []


def _node_leaves(call: Call, given: CallInput) -> Broken:
    _over(call, given)
    if call.memory.missed:
        # It may be among what is missing.
        return []
    return [("node_ended_without_status", f"{given.input} without an EndOfStream")]


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
OPEN_STATES: Final = (*_ANSWERABLE, State.SKIPPED, State.RESEND)
ENDED: Final = (State.PUBLISHER_ENDED, State.NODE_ENDED)

PUBLISHING: Final[Mapping[tuple[State, Input], Step]] = MappingProxyType(
    {
        (State.CONNECTED, Input.HEADER): Step(State.STREAMING, _offer),
        # The block before it is dropped.
        (State.STREAMING, Input.HEADER): Step(State.STREAMING, _offer),
        (State.PROVEN, Input.HEADER): Step(State.STREAMING, _offer),
        (State.DUPLICATE, Input.HEADER): Step(State.STREAMING, _offer_after_duplicate),
        (State.BEHIND, Input.HEADER): Step(State.STREAMING, _offer_after_behind),
        (State.SKIPPED, Input.HEADER): Step(State.STREAMING, _offer_after_skip),
        (State.RESEND, Input.HEADER): Step(State.STREAMING, _offer_after_resend),
        (State.UNKNOWN, Input.HEADER): Step(State.STREAMING, _offer),
        # It is found once.
        **{
            (State.CONNECTED, given): Step(State.UNKNOWN, _without_header)
            for given in (Input.ITEMS, Input.PROOF, Input.BLOCK_END)
        },
        (State.STREAMING, Input.ITEMS): Step(State.STREAMING),
        (State.STREAMING, Input.PROOF): Step(State.PROVEN),
        (State.STREAMING, Input.BLOCK_END): Step(State.PROVEN, _end_unproven),
        # What stands behind a proof is judged with the block.
        (State.PROVEN, Input.ITEMS): Step(State.PROVEN),
        (State.PROVEN, Input.PROOF): Step(State.PROVEN),
        (State.PROVEN, Input.BLOCK_END): Step(State.PROVEN, _end_block),
        **{
            (state, given): Step(state, _go_on(rule))
            for state, rule in (
                (State.DUPLICATE, "recheck"),
                (State.BEHIND, "resend_from_l1"),
                (State.SKIPPED, "skip_pair"),
            )
            for given in (Input.ITEMS, Input.PROOF, Input.BLOCK_END)
        },
        **{
            (state, given): Step(state)
            for state in (State.RESEND, State.UNKNOWN)
            for given in (Input.ITEMS, Input.PROOF, Input.BLOCK_END)
        },
        **{
            (state, Input.END_STREAM): Step(State.PUBLISHER_ENDED, _end_stream)
            for state in (*OPEN_STATES, State.UNKNOWN)
        },
        **{(State.NODE_ENDED, given): Step(State.NODE_ENDED, after_end) for given in Input if given in OF_PUBLISHER},
        # The node
        **{
            (state, Input.ACKNOWLEDGEMENT): Step(state, _acknowledge) for state in (*OPEN_STATES, *ENDED, State.UNKNOWN)
        },
        **{(state, Input.DUPLICATE): Step(State.DUPLICATE, _duplicate) for state in (*OPEN_STATES, State.UNKNOWN)},
        **{
            (state, Input.DUPLICATE_END): Step(State.NODE_ENDED, _duplicate_ends)
            for state in (*OPEN_STATES, State.UNKNOWN)
        },
        **{(state, Input.BEHIND): Step(State.BEHIND, _behind) for state in (*OPEN_STATES, State.UNKNOWN)},
        **{(state, Input.BEHIND_END): Step(State.NODE_ENDED, _behind_ends) for state in (*OPEN_STATES, State.UNKNOWN)},
        **{(state, Input.SKIP): Step(State.SKIPPED, _skip) for state in (*OPEN_STATES[1:], State.UNKNOWN)},
        **{(state, Input.RESEND): Step(State.RESEND, _resend) for state in (*OPEN_STATES, State.UNKNOWN)},
        **{(state, Input.END_OF_STREAM): Step(State.NODE_ENDED, _node_ends) for state in (*OPEN_STATES, State.UNKNOWN)},
        # After the publisher has ended, all that counts of what the node sends is that it ends too.
        (State.PUBLISHER_ENDED, Input.END_OF_STREAM): Step(State.PUBLISHER_ENDED),
        # The end
        **{
            (state, given): Step(State.PUBLISHER_ENDED, _leave_unproven if state is State.STREAMING else _leave)
            for state in OPEN_STATES
            for given in (Input.HALF_CLOSE, Input.CANCEL, Input.DISCONNECT)
        },
        **{
            (state, given): Step(state)
            for state in (*ENDED, State.OVER, State.UNKNOWN)
            for given in (Input.HALF_CLOSE, Input.CANCEL, Input.DISCONNECT)
        },
        (State.PUBLISHER_ENDED, Input.DISCONNECT): Step(State.PUBLISHER_ENDED, _leave),
        (State.PUBLISHER_ENDED, Input.TRAILERS): Step(State.OVER, _leave),
        **{
            (state, given): Step(State.OVER, _node_leaves)
            for state in OPEN_STATES
            for given in (Input.TRAILERS, Input.RESET, Input.NODE_DISCONNECT)
        },
        **{
            (state, given): Step(State.OVER, _over)
            for state in (State.NODE_ENDED, State.UNKNOWN, State.OVER)
            for given in (Input.TRAILERS, Input.RESET, Input.NODE_DISCONNECT)
        },
        **{(State.PUBLISHER_ENDED, given): Step(State.OVER) for given in (Input.RESET, Input.NODE_DISCONNECT)},
    }
)


def publishing_rule(state: State, given: Input) -> str | None:
    """The rule that an unlisted pair breaks; None = it is passed over."""
    if state in (State.PUBLISHER_ENDED, State.OVER) and given in OF_PUBLISHER:
        return "end_last"
    if state is State.CONNECTED:
        return {Input.SKIP: "skip_pair"}.get(given)
    return None


def after_missing(state: State) -> State:
    """Where a publisher's call stands when messages were missed."""
    return state if state in (*ENDED, State.OVER) else State.UNKNOWN
