"""The state machines of the protocol, as the docs draw them."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from wirehouse_codecs.core.machines import Machine
from wirehouse_codecs.hiero.session.session import (
    _OPEN,
    ASKING,
    PUBLISHING,
    SUBSCRIBING,
    Query,
    State,
    Subscription,
    _after_missing,
    publishing_rule,
    subscribing_rule,
)

MACHINES: Final = (
    Machine(
        "publisher's call",
        State.CONNECTED,
        PUBLISHING,
        unlisted=publishing_rule,
        besides=MappingProxyType(
            {(state, "messages are missing"): _after_missing(state) for state in _OPEN if state is not State.UNKNOWN}
        ),
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
