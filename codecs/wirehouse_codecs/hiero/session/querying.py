"""A call that asks for a node's status, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from wirehouse_codecs.hiero.session.steps import Step


class Query(StrEnum):
    """Where a call of the status stands."""

    CONNECTED = "connected"
    ASKED = "asked"
    ANSWERED = "answered"
    OVER = "over"
    UNKNOWN = "unknown"


class QueryInput(StrEnum):
    """Inputs of a call of the status."""

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
