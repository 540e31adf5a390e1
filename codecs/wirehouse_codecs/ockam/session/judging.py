"""One frame while it is judged, and what the judges of all kinds of message share.

A judge is a function `(memory, frame, message)`: it looks at what the session remembers, changes it, and writes down in
`frame` what is decided. A message breaks at most one rule: of those that judges name, the first in the order of
rules.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from wirehouse_codecs.ockam.rules import RULE, RULES
from wirehouse_codecs.ockam.session.coverage import Sender
from wirehouse_codecs.ockam.session.memory import SERVICES, Memory, Role
from wirehouse_codecs.ockam.session.outcome import WRONG_SERVICE, Answers, Found
from wirehouse_codecs.ockam.session.requests import Request, RequestKind, RequestState, Where
from wirehouse_codecs.ockam.wire.messages import IndexResponse, Message

_ORDER: Final[Mapping[str, int]] = {rule.name: number for number, rule in enumerate(RULES)}


@dataclass(slots=True)
class Frame:
    """A frame that has a route, and what is decided about it."""

    where: Where
    #: What its sender knew, and whether it may have been sent earlier than it came.
    sender: Sender
    held_back: bool
    #: Whether messages of the connection were missed.
    partial: bool
    #: The address of the client.
    requester: str
    #: The address at the service as text, its last hop as sent, and what is there. "" = the route is empty.
    at: str
    role: Role
    is_routed: bool
    address_sent: bytes
    #: In the reading that is right here, and the other one that its bytes have.
    message: Message | None = None
    also: IndexResponse | None = None

    broken: list[tuple[str, str]] = field(default_factory=list)
    ignored: str | None = None
    stream_address: str | None = None
    consumer: str | None = None
    answers: Answers | None = None
    #: Whether it is a response, and no request is known for it.
    answers_nothing: bool = False

    @property
    def stream(self) -> str | None:
        """The address that it goes to or comes from, if a stream may be there."""
        return None if self.role in SERVICES or not self.is_routed else self.at

    def break_rule(self, rule: str, message: str) -> None:
        """It breaks a rule."""
        self.broken.append((rule, message))

    def check_role(self, what: str, role: Role) -> bool:
        """Whether a request may go where it goes; an address that isn't known is not judged."""
        if self.role in (role, Role.UNKNOWN):
            return True
        self.ignored = WRONG_SERVICE
        self.break_rule("wrong_service", f"{what} to the {self.role} {self.at}")
        return False

    def found(self) -> tuple[Found, ...]:
        """The first of the rules that it breaks."""
        if not self.broken:
            return ()
        name, message = min(self.broken, key=lambda broken: _ORDER[broken[0]])
        return (Found(RULE[name], self.where, message, self.stream_address),)


def is_complete(memory: Memory, frame: Frame, known: Mapping[Any, Any] | None = None) -> bool:
    """Whether nothing was missed or forgotten that would be in the table `known`; None = among open requests."""
    return memory.has_room(known) and not frame.partial and not frame.sender.is_early


def open_request(memory: Memory, frame: Frame, kind: RequestKind, is_right: bool, **asked: Any) -> None:
    """A request waits for its answer from here on, if there is a route for one; a wrong one for an error."""
    if not frame.requester:
        return
    if not is_right:
        memory.requests.add(Request(RequestKind.OTHER, frame.where, frame.requester, frame.at))
        return
    request = Request(kind, frame.where, frame.requester, frame.at, is_late=frame.sender.is_late, **asked)
    if frame.sender.may_be_answered or (frame.partial and _may_be_answered(memory, frame, request)):
        request.state = RequestState.UNSURE
    memory.requests.add(request)


def _may_be_answered(memory: Memory, frame: Frame, request: Request) -> bool:
    """Whether it was held back, or its answer counts as that of an earlier request, whose own was missed."""
    earlier = memory.requests.like(request)
    shadowed = earlier is not None and earlier.state is RequestState.UNSURE
    return frame.held_back or shadowed
