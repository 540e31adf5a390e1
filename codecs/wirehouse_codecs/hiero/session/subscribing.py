"""A subscriber's call as a table: block by block, from the first to the last one asked for, and then the status."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from wirehouse_codecs.hiero.session.steps import Broken, CallInput, Step
from wirehouse_codecs.tcp.endpoints import Direction

if TYPE_CHECKING:
    from wirehouse_codecs.hiero.session.session import Call


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
    """Inputs of a subscriber's call."""

    REQUEST = "request"
    HEADER = "header"
    ITEMS = "items"
    PROOF = "proof"
    STATUS = "status"
    SUBSCRIBER_ENDS = "subscriber ends the call"
    NODE_ENDS = "node ends the call"
    END = "end"


def _subscribe(call: Call, given: CallInput) -> Broken:
    call.memory.first, call.memory.last = given.number, given.latest
    return []


def _begin_within(call: Call, given: CallInput) -> Broken:
    """The first items have no header: which block they are of isn't known."""
    call.memory.headers = max(call.memory.headers, 1)
    return []


def _deliver(call: Call, given: CallInput) -> Broken:
    """The next block. What follows on a wrong one is judged by the highest one, which the subscriber has already."""
    memory, number = call.memory, given.number
    first, before, last = memory.first, memory.header, memory.last
    highest = before if before is None or memory.highest is None else max(before, memory.highest)
    is_first = not memory.headers and not memory.missed
    memory.header, memory.headers = number, memory.headers + 1
    memory.highest = number if number is None or highest is None else max(number, highest)
    if number is None:
        return []
    if before is None or highest is None:
        if is_first and first is not None and number != first:
            return [("subscriber_range", f"block {number} comes first, {first} was asked for")]
    elif number <= before:
        return [("subscriber_order", f"block {number} begins after block {before}", Direction.SERVER)]
    elif number > max(highest + 1, first or 0):
        return [("subscriber_gap", f"block {number} follows on block {highest}", Direction.SERVER)]
    elif before == highest and call.state is Subscription.DELIVERING:
        return [("subscriber_gap", f"block {number} begins before the proof of block {before}", Direction.SERVER)]
    if last is None or number <= last or memory.went_on:
        return []
    memory.went_on = True
    return [("subscriber_range", f"block {number} comes, the last one asked for is {last}")]


def _end_subscription(call: Call, given: CallInput) -> Broken:
    """SUCCESS comes when the last requested block was delivered."""
    memory = call.memory
    first, last, block = memory.first, memory.last, memory.header
    unknown = block is None and bool(memory.missed or memory.headers)
    if given.code != "SUCCESS" or last is None or unknown or (first is not None and first > last):
        return []
    highest = block if block is None or memory.highest is None else max(block, memory.highest)
    if highest is not None and (highest > last or (highest == last and call.state is Subscription.DELIVERED)):
        return []
    if highest == last and block != last:
        # Blocks were sent again since.
        return []
    shown = "any block" if highest is None else f"block {last}, the highest header is {highest}"
    return [("subscriber_range", f"SUCCESS comes before {shown}")]


def _leave_subscriber(call: Call, given: CallInput) -> Broken:
    # The status may be among what is missing.
    return [] if call.memory.missed else [("subscriber_ended_without_status", f"{given.input} without a status")]


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
            (state, given): Step(Subscription.OVER)
            for state in Subscription
            for given in (SubscriptionInput.SUBSCRIBER_ENDS, SubscriptionInput.NODE_ENDS, SubscriptionInput.END)
        },
        **{
            (state, SubscriptionInput.NODE_ENDS): Step(Subscription.OVER, _leave_subscriber)
            for state in _SUBSCRIBED
            if state is not Subscription.UNKNOWN
        },
    }
)


def subscribing_rule(state: Subscription, given: SubscriptionInput) -> str | None:
    """The rule that an unlisted pair breaks; None = it is passed over."""
    return "subscriber_order" if state is Subscription.ENDED and given is not SubscriptionInput.REQUEST else None
