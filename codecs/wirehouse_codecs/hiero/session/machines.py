"""The state machines of the protocol, as the docs draw them."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from wirehouse_codecs.core.machines import Machine
from wirehouse_codecs.hiero.session.publishing import OPEN_STATES, PUBLISHING, State, after_missing, publishing_rule
from wirehouse_codecs.hiero.session.querying import ASKING, Query
from wirehouse_codecs.hiero.session.subscribing import SUBSCRIBING, Subscription, subscribing_rule

MACHINES: Final = (
    Machine(
        "publisher's call",
        State.CONNECTED,
        PUBLISHING,
        unlisted=publishing_rule,
        besides=MappingProxyType(
            {
                (state, "messages are missing"): after_missing(state)
                for state in OPEN_STATES
                if state is not State.UNKNOWN
            }
        ),
        note="After missing messages, the next header makes the state certain again.",
    ),
    Machine(
        "subscriber's call",
        Subscription.CONNECTED,
        SUBSCRIBING,
        unlisted=subscribing_rule,
        besides=MappingProxyType({(Subscription.CONNECTED, "messages are missing"): Subscription.UNKNOWN}),
    ),
    Machine(
        "status call",
        Query.CONNECTED,
        ASKING,
        besides=MappingProxyType({(Query.CONNECTED, "messages are missing"): Query.UNKNOWN}),
    ),
)
