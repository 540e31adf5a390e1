"""The requests of one connection that wait for their answers.

A request is open until its answer, or an error, comes. `TRANSITIONS` has what becomes of it; all that depends on the
kind of request is in `UNANSWERED` and in how answers are matched: `Requests` finds the oldest request that fits.

What is held is bounded. Where requests had to be forgotten, an answer that fits none may be theirs.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain, islice
from types import MappingProxyType
from typing import Final, NamedTuple

from wirehouse_codecs.core.intervals import Intervals, Run
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.tcp.endpoints import Direction

#: Requests that are held, of which the oldest are forgotten first.
MOST_REQUESTS: Final = 16_384
#: Bytes of pushed data that are held; of what is beyond only a digest is.
MOST_DATA_BYTES: Final = 16 << 20
#: Requests that are looked at for one that fits, where several have one key.
MOST_CANDIDATES: Final = 64
#: Runs of answered partitions.
MOST_RUNS: Final = 1024
_DIGEST_BYTES: Final = 16


class RequestKind(StrEnum):
    """What is asked for."""

    CREATE = "create"
    PARTITIONED = "create_partitioned"
    PUSH = "push"
    PULL = "pull"
    GET = "index_get"
    #: Nothing that can be answered, but an error may report it.
    OTHER = "other"


class RequestState(StrEnum):
    """What is known of a request's answer."""

    OPEN = "open"
    #: It may be among bytes that the capture lacks.
    UNSURE = "unsure"
    #: It did not come in time, which was reported. It may still come.
    OVERDUE = "overdue"
    ANSWERED = "answered"
    REFUSED = "refused"
    UNANSWERED = "unanswered"


class Input(StrEnum):
    """What happens to a request."""

    ANSWER = "answer"
    #: An answer for one of several partitions.
    PART = "part"
    ERROR = "error"
    #: Bytes from the server are missing, or can't be decoded.
    GAP = "gap"
    TIMEOUT = "timeout"
    #: The connection is closed.
    CLOSE = "close"


class Step(NamedTuple):
    """The state after an input, and whether that is when the rule about the missing answer is found."""

    state: RequestState
    is_found: bool = False


_WAITING: Final = (RequestState.OPEN, RequestState.UNSURE, RequestState.OVERDUE)
#: Nothing more happens to a request in a state that isn't here.
TRANSITIONS: Mapping[tuple[RequestState, Input], Step] = MappingProxyType(
    {
        **{(state, Input.ANSWER): Step(RequestState.ANSWERED) for state in _WAITING},
        **{(state, Input.PART): Step(state) for state in _WAITING},
        **{(state, Input.ERROR): Step(RequestState.REFUSED) for state in _WAITING},
        (RequestState.OPEN, Input.GAP): Step(RequestState.UNSURE),
        (RequestState.OPEN, Input.TIMEOUT): Step(RequestState.OVERDUE, is_found=True),
        (RequestState.OPEN, Input.CLOSE): Step(RequestState.UNANSWERED, is_found=True),
        **{
            (state, given): Step(state)
            for state in (RequestState.UNSURE, RequestState.OVERDUE)
            for given in (Input.GAP, Input.TIMEOUT)
        },
        (RequestState.UNSURE, Input.CLOSE): Step(RequestState.UNANSWERED),
        (RequestState.OVERDUE, Input.CLOSE): Step(RequestState.UNANSWERED),
    }
)
#: The rule about a request without an answer.
UNANSWERED: Mapping[RequestKind, str | None] = MappingProxyType(
    {
        RequestKind.CREATE: "create_not_answered",
        RequestKind.PARTITIONED: "partition_not_answered",
        RequestKind.PUSH: "push_unanswered",
        RequestKind.PULL: "pull_not_answered",
        RequestKind.GET: "index_not_answered",
        RequestKind.OTHER: None,
    }
)


@dataclass(frozen=True, slots=True)
class Where:
    """The frame that something is about."""

    direction: Direction
    place: Place
    byte_start: int
    byte_end: int


@dataclass(slots=True)
class Request:
    """A request; fields that its kind doesn't have are None."""

    kind: RequestKind
    where: Where
    #: The return route, and the last hop of the onward route, as texts.
    requester: str
    target: str
    #: The fields of a push or pull.
    request_id: int | None = None
    index: int | None = None
    limit: int | None = None
    #: The name of a create; None = anonymous, and then the name that the first answer gave.
    name: str | None = None
    given: str | None = None
    partitions: int | None = None
    answered: Intervals = field(default_factory=lambda: Intervals(most=MOST_RUNS))
    #: The data of a push; None = not held.
    data: bytes | None = None
    data_bytes: int | None = None
    digest: bytes = b""
    #: Whether a push may share its id with a missed one, whose confirm may then be the one that was captured.
    shares_id: bool = False
    #: The client, stream and partition of a GetIndex; and the least index of its answer.
    key: tuple[str, str, int | None] | None = None
    least: int | None = None
    #: Whether it is unknown when it was sent: it came late.
    is_late: bool = False
    state: RequestState = RequestState.OPEN
    #: Its place among those that were added.
    number: int = field(default=-1, init=False)
    #: Whether it was unsure until its last input.
    was_unsure: bool = field(default=False, init=False)

    def take(self, given: Input) -> bool:
        """Move to the state after `given`. True: the rule about the missing answer is found. KeyError: it has ended."""
        step = TRANSITIONS[self.state, given]
        self.was_unsure = self.state is RequestState.UNSURE
        self.state = step.state
        return step.is_found

    @property
    def missing(self) -> Iterator[Run]:
        """The partitions that have not answered."""
        return self.answered.missing(0, (self.partitions or 0) - 1)

    @property
    def keys(self) -> tuple[Hashable, ...]:
        """What it is looked up by, the closest first."""
        narrow: tuple[Hashable, ...]
        match self.kind:
            case RequestKind.PUSH | RequestKind.PULL:
                narrow = ((self.kind, self.requester, self.target, self.request_id),)
                # A response without a return route doesn't show which stream it comes from.
                narrow += ((self.kind, self.requester, self.request_id),)
            case RequestKind.CREATE | RequestKind.PARTITIONED:
                narrow = ((self.kind, self.requester, "name", self.name),)
            case RequestKind.GET:
                narrow = ((self.kind, self.requester, self.key),)
            case RequestKind.OTHER:
                narrow = ()
        return (*narrow, (self.kind, self.requester), ("to", self.requester, self.target), ("from", self.requester))


def digest(data: bytes) -> bytes:
    """What is kept of data for comparing it."""
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


class Requests:
    """Open requests, by what their answers contain."""

    def __init__(self) -> None:
        #: By number, oldest first: those that are overdue, which all came before the others.
        self._overdue: OrderedDict[int, Request] = OrderedDict()
        self._waiting: OrderedDict[int, Request] = OrderedDict()
        self._by_key: dict[Hashable, dict[int, Request]] = {}
        self._next = 0
        #: All before this number are known to be unsure.
        self._sure_from = 0
        #: How much of the data of pushes is held.
        self.data_bytes = 0
        #: Requests were forgotten for want of room.
        self.forgotten = False

    def __len__(self) -> int:
        return len(self._overdue) + len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        """Oldest first."""
        return chain(self._overdue.values(), self._waiting.values())

    @property
    def passed(self) -> int:
        """How many of the oldest are past their time."""
        return len(self._overdue)

    def add(self, request: Request) -> None:
        """A new request; where there is no room the oldest is forgotten."""
        if request.data is not None:
            request.data_bytes = len(request.data)
            request.digest = digest(request.data)
            if self.data_bytes + len(request.data) > MOST_DATA_BYTES:
                request.data = None
        self.put(request)
        if len(self) > MOST_REQUESTS:
            self.remove(next(iter(self)))
            self.forgotten = True

    def put(self, request: Request) -> None:
        """A new request for which there is room, whose data is held if it is there."""
        number = request.number = self._next
        self._next += 1
        self._waiting[number] = request
        self.data_bytes += len(request.data or b"")
        for key in request.keys:
            self._by_key.setdefault(key, {})[number] = request

    def remove(self, request: Request) -> None:
        """It has ended."""
        number = request.number
        (self._overdue if number in self._overdue else self._waiting).pop(number)
        self.data_bytes -= len(request.data or b"")
        for key in request.keys:
            same = self._by_key[key]
            del same[number]
            if not same:
                del self._by_key[key]

    def oldest(self, *key: Hashable) -> Request | None:
        """The oldest request with one of `Request.keys`."""
        return next(self.all(*key), None)

    def all(self, *key: Hashable) -> Iterator[Request]:
        """The oldest requests with one of `Request.keys`."""
        return islice(self._by_key.get(key, {}).values(), MOST_CANDIDATES)

    def like(self, request: Request) -> Request | None:
        """The oldest that the same answer fits."""
        return next(iter(self._by_key.get(request.keys[0], {}).values()), None)

    def overdue(self, since_ns: int) -> list[Request]:
        """Requests that wait since before `since_ns` and are found unanswered now, oldest first."""
        found = []
        while self._waiting:
            number, request = next(iter(self._waiting.items()))
            if request.where.place.arrived_at_ns >= since_ns:
                break
            if request.take(Input.TIMEOUT):
                found.append(request)
            self._overdue[number] = self._waiting.pop(number)
        return found

    def miss(self) -> None:
        """Any answer may have been lost."""
        for number, request in reversed(self._waiting.items()):
            if number < self._sure_from:
                break
            request.take(Input.GAP)
        self._sure_from = self._next

    def close(self) -> list[Request]:
        """No answer comes any more: those that are found unanswered, oldest first."""
        return [request for request in self if request.take(Input.CLOSE)]

    # Carried state

    @property
    def state(self) -> tuple[bool, list[Request]]:
        """Whether requests were forgotten, and those that wait."""
        return self.forgotten, list(self)

    @classmethod
    def from_state(cls, state: tuple[bool, list[Request]]) -> Requests:
        """The requests that wait by `state`."""
        requests = cls()
        requests.forgotten = state[0]
        for request in state[1]:
            requests.put(request)
        return requests
