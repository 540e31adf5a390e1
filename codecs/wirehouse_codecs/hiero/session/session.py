"""The calls of a block node as tables: what each message means, and which rules the order of one call decides.

A `Call` takes the messages of both sides of one call in arrival order, and goes on from its `snapshot()`. Each method
has a table: a publisher's call (specification, "Base Protocol" and "Error Handling"), a subscription, a status query.

- An answer may come many messages after its header. So the state is that of the last message that mattered, from
  either side.
- A header is accepted by silence. What only other calls show (L over all connections, blocks that others delivered)
  is judged in correlation.
- After messages were missed the call is `UNKNOWN` until the next header: nothing is found that they could disprove.
- What a publisher sends without having acknowledged an answer, or within the options' `in_flight_ms` of it, may have
  crossed it. A node can't answer a header that it hadn't received.
- A subscription is judged block by block: they follow each other, each whole, from the first to the last one asked
  for, and then comes the status.
- An unlisted pair is the rule that it breaks; where it breaks none, the message is passed over.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.profiles import BEHIND_CODE, DUPLICATE_CODE, OPEN, PUBLISHER_CODES, Profile, Service
from wirehouse_codecs.hiero.session.publishing import (
    ANSWERS,
    PUBLISHING,
    Input,
    State,
    after_end,
    after_missing,
    publishing_rule,
)
from wirehouse_codecs.hiero.session.querying import ASKING, Query, QueryInput
from wirehouse_codecs.hiero.session.steps import CallInput, Found, Memory, Step, fits, found_of, knowing, unknowing
from wirehouse_codecs.hiero.session.subscribing import SUBSCRIBING, Subscription, SubscriptionInput, subscribing_rule
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

_TABLES: Final[Mapping[Service, tuple[type[StrEnum], Mapping[Any, Step]]]] = MappingProxyType(
    {
        Service.PUBLISH: (State, PUBLISHING),
        Service.SUBSCRIBE: (Subscription, SUBSCRIBING),
        Service.STATUS: (Query, ASKING),
    }
)


@dataclass
class CallState:
    """What a call carries from window to window."""

    service: Service
    #: A state of the service's table.
    state: str
    #: Whether messages were missed, before the capture or within it.
    partial: bool
    memory: Memory = field(default_factory=Memory)


class Call(CallState):
    """One call. `receive` its inputs in arrival order. `carried` is its state at the end of an earlier window."""

    state: StrEnum

    def __init__(self, carried: CallState, options: HieroOptions) -> None:
        states, self._table = _TABLES[carried.service]
        super().__init__(carried.service, states(carried.state), carried.partial, carried.memory)
        self.options = options

    @classmethod
    def begin(cls, service: Service, options: HieroOptions, *, started_late: bool = False) -> Call:
        """Before the first message. `started_late`: the capture began after the call did."""
        return cls(CallState(service, "unknown" if started_late else "connected", started_late), options)

    def receive(self, given: CallInput) -> tuple[str | None, tuple[Found, ...]]:
        """Why it is passed over, and what it breaks."""
        step = self._table.get((self.state, given.input))
        if step is None:
            return f"the call is {self.state}", self._unlisted(given)
        if self._goes_on(given):
            if given.input in (Input.DUPLICATE, Input.BEHIND):
                return None, ()
            step = self._table[self.state, Input.END_OF_STREAM]
        is_earlier = self.skips_earlier(given)
        broken = step.effect(self, given) if step.effect else []
        if given.input is Input.PROOF:
            self.memory.complete = True
            if self.memory.header is None:
                # Its header was missed.
                self.memory.header = given.number
        if not is_earlier:
            self.state = step.state
        return None, found_of(broken)

    def _unlisted(self, given: CallInput) -> tuple[Found, ...]:
        rule = None
        shown = f"{given.input} while the call is {self.state}"
        if isinstance(self.state, State) and isinstance(given.input, Input):
            rule = publishing_rule(self.state, given.input)
        elif isinstance(self.state, Subscription) and isinstance(given.input, SubscriptionInput):
            rule = subscribing_rule(self.state, given.input)
        if rule == "subscriber_order":
            if self.memory.went_on or self.memory.missed:
                return ()
            self.memory.went_on = True
        if rule is None:
            return ()
        if rule == "end_last":
            return found_of(after_end(self, given))
        return found_of([(rule, shown, Direction.SERVER) if rule == "subscriber_order" else (rule, shown)])

    def _goes_on(self, given: CallInput) -> bool:
        """Whether the answer is to an earlier header than the last, so that the call has gone on to another since.

        An answer is to the first header that waits for such an answer.
        """
        memory = self.memory
        answer = ANSWERS.get(given.input)
        if answer is None or given.number is None:
            return False
        # A node that hadn't received the last header answers another one.
        unseen = memory.header if unknowing(given, memory.header_end) and not given.late else None
        fitting = [number for number in memory.waiting if number != unseen and fits(answer, given.number, number)]
        answered = fitting[0] if fitting else memory.header
        if unseen is not None and not fitting:
            return True
        if answered in memory.waiting:
            memory.waiting.remove(answered)
        if fitting and memory.header not in fitting:
            return True
        memory.refused = answered
        return False

    def skips_earlier(self, given: CallInput) -> bool:
        """Whether SkipBlock answers a header before the last one: the publisher had moved on before it read this."""
        number, header = given.number, self.memory.header
        if given.input is not Input.SKIP or number is None or header in (None, number):
            return False
        return number < header or number in self.memory.waiting

    def miss(self, sides: Collection[Direction] = tuple(Direction)) -> None:
        """Messages of the call are missing, of these sides."""
        self.partial = True
        if self.service is Service.PUBLISH:
            assert isinstance(self.state, State)
            self.state = after_missing(self.state)
            known = self.memory
            self.memory = Memory(
                acknowledged=known.acknowledged, headers=max(known.headers, 1), ended_ns=known.ended_ns, missed=True
            )
            if Direction.CLIENT not in sides:
                # What the publisher sends after its own end is in order.
                self.memory.missed, self.memory.went_on = known.missed, known.went_on
            return
        if self.service is Service.SUBSCRIBE and Direction.SERVER in sides:
            self.memory = Memory(first=self.memory.first, last=self.memory.last, headers=1, missed=True)
        if self.state in (Subscription.CONNECTED, Query.CONNECTED):
            self.state = type(self.state)("unknown")

    def in_flight(self, given: CallInput) -> bool:
        """Whether its sender may not have read the last answer."""
        memory = self.memory
        known = knowing(given, memory.reported_ns, self.options.in_flight_ns)
        return not known or unknowing(given, memory.reported_end)

    def otherwise(self, rule: str) -> str:
        """A wrong decision about a header that isn't the call's first has a rule of its own."""
        return "reenter" if self.memory.headers > 1 else rule


# The inputs that messages are


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
    """The input that a message is on a call of `service`; None = none that its table knows."""
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


def call_input(given: StrEnum, message: Message, at_ns: int, profile: Profile) -> CallInput:
    """A message as its call takes it."""
    number = getattr(message, "block_number", None)
    if isinstance(message, SubscribeRequest):
        endless = message.end_block_number == (OPEN if profile.new else 0)
        first = None if message.start_block_number == OPEN else message.start_block_number
        return CallInput(given, at_ns, first, latest=None if endless else message.end_block_number)
    if isinstance(message, SubscribeStatus):
        return CallInput(given, at_ns, None, profile.subscribe_codes.get(message.code))
    if isinstance(message, PublisherEndStream):
        code = PUBLISHER_CODES.get(message.code)
        return CallInput(given, at_ns, None, code, message.earliest_block_number, message.latest_block_number)
    return CallInput(given, at_ns, number)
