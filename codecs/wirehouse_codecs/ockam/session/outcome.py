"""The result of a session for each frame: an `Outcome` with the findings, and the request that the frame answers.

The names of why a message is ignored are values of the log's column `ignored`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from wirehouse_codecs.core.rules import Rule
from wirehouse_codecs.ockam.session.requests import Request, RequestKind, RequestState, Where
from wirehouse_codecs.ockam.wire.messages import Message
from wirehouse_codecs.ockam.wire.reader import Received

# Reasons why a message doesn't show what the service has:
#: Its request was already answered, or never sent.
ANSWERS_NOTHING: Final = "answers_nothing"
#: It is an Init with another name than was asked for.
OTHER_NAME: Final = "other_name"
#: It is an index for another key than was asked for.
OTHER_KEY: Final = "other_key"
#: It is a request that its address can't take.
WRONG_SERVICE: Final = "wrong_service"
#: It is a request to an address that no Init of its connection gave.
NOT_GIVEN: Final = "address_not_given"


@dataclass(frozen=True, slots=True)
class Found:
    """A rule broken by the frame at `where`."""

    rule: Rule
    where: Where
    message: str
    stream_address: str | None = None


@dataclass(frozen=True, slots=True)
class Answers:
    """The request that a response answers."""

    requested_at_ns: int
    request_byte_start: int
    request_capture_id: bytes
    #: The index and limit of a pull.
    index: int | None
    limit: int | None
    #: Whether a create had no name.
    anonymous: bool | None
    #: The data of a push that was saved; None = too much was open to hold it.
    data: bytes | None
    data_bytes: int | None
    #: Whether messages were missed while it was open, or held it back: it may have been sent earlier, and its answer
    #: may be that of another request. Also for a push after messages were missed: an earlier one may have its id.
    unsure: bool
    #: Whether it is unknown when the request was sent: it arrived late, or something that was sent before it did.
    late: bool

    @classmethod
    def of(cls, request: Request, *, with_data: bool = True) -> Answers:
        """What the log has of `request`; `with_data`: also the data that it pushed."""
        is_create = request.kind in (RequestKind.CREATE, RequestKind.PARTITIONED)
        return cls(
            requested_at_ns=request.where.place.arrived_at_ns,
            request_byte_start=request.where.byte_start,
            request_capture_id=request.where.place.capture_id,
            index=request.index,
            limit=request.limit,
            anonymous=request.name is None if is_create else None,
            data=request.data if with_data else None,
            data_bytes=request.data_bytes,
            unsure=request.was_unsure or request.state is RequestState.UNSURE or request.shares_id,
            late=request.is_late,
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one frame did."""

    received: Received
    #: In the reading that is right here; None = the frame has none.
    message: Message | None
    #: The frame is counted under this name and passed over.
    skip: str | None
    findings: tuple[Found, ...]
    #: How often messages were missed up to here: it rises with every hole. One that began late begins with 1.
    missed: int
    ignored: str | None = None
    stream_address: str | None = None
    requester: str | None = None
    consumer: str | None = None
    answers: Answers | None = None
