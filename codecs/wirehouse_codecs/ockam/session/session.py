"""The session layer of the Ockam stream service: what each message of a connection means, and which rules it breaks.

A `Session` takes the messages of one connection in arrival order, and returns one `Outcome` for each. A message goes
through these modules:

1. coverage.py: what of both sides was captured, and what the sender could know.
2. addresses.py: where the route leads.
3. The judge of its kind (`JUDGES`): creates.py, push_pull.py, indexes.py or errors.py. A judge looks at what the
   session remembers (memory.py), finds the request that the message answers (requests.py), and decides.
4. outcome.py: what is reported.

How it judges:

- A message breaks at most one rule, the first in the order of rules.py. A rule about what never came is found
  besides, at the request: when the connection is closed, or when a later message or `advance` is past its time.
- Where messages were missed (`Coverage.partial`) no rule is found that one of them could disprove. A response that
  can't be decoded counts as missed. A request that can't be decoded may be understood by the service (undecoded.py).
- What a reset cut off may have been answered in its last second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.ockam.options import OckamOptions
from wirehouse_codecs.ockam.rules import RULE
from wirehouse_codecs.ockam.session.addresses import locate
from wirehouse_codecs.ockam.session.coverage import Coverage, Sender
from wirehouse_codecs.ockam.session.creates import (
    judge_create,
    judge_create_partitioned,
    judge_init,
    judge_init_of_partition,
)
from wirehouse_codecs.ockam.session.errors import judge_error
from wirehouse_codecs.ockam.session.indexes import judge_get, judge_index, judge_save, mixed_routes
from wirehouse_codecs.ockam.session.judging import Frame, is_complete
from wirehouse_codecs.ockam.session.memory import Memory, Role, remember, short
from wirehouse_codecs.ockam.session.outcome import Found, Outcome
from wirehouse_codecs.ockam.session.push_pull import judge_confirm, judge_pull, judge_pull_response, judge_push
from wirehouse_codecs.ockam.session.requests import UNANSWERED, Request, RequestKind, Where
from wirehouse_codecs.ockam.session.undecoded import ASKS, note_undecoded
from wirehouse_codecs.ockam.wire.messages import Kind, Message, Names
from wirehouse_codecs.ockam.wire.reader import Received
from wirehouse_codecs.ockam.wire.routed import route_text
from wirehouse_codecs.tcp.endpoints import Direction, Late, PeerReceived
from wirehouse_codecs.tcp.events import End

#: How long an answer may be on its way when its connection is reset.
IN_FLIGHT_NS: Final = 10**9

#: The function that judges a message, by its kind; the kind decides which direction it comes from.
JUDGES: Final[Mapping[Kind, Callable[[Memory, Frame, Any], None]]] = MappingProxyType(
    {
        Kind.CREATE_REQUEST: judge_create,
        Kind.CREATE_RESPONSE: judge_init,
        Kind.PUSH_REQUEST: judge_push,
        Kind.PUSH_RESPONSE: judge_confirm,
        Kind.PULL_REQUEST: judge_pull,
        Kind.PULL_RESPONSE: judge_pull_response,
        Kind.INDEX_GET: judge_get,
        Kind.INDEX_SAVE: judge_save,
        Kind.INDEX_RESPONSE: judge_index,
        Kind.CREATE_PARTITIONED_REQUEST: judge_create_partitioned,
        Kind.CREATE_PARTITIONED_RESPONSE: judge_init_of_partition,
        Kind.ERROR: judge_error,
    }
)
_INITS: Final = (Kind.CREATE_RESPONSE, Kind.CREATE_PARTITIONED_RESPONSE)
#: Whose names of protocols only one of the specification and the implementation has.
_WHOSE: Final[Mapping[str, Names]] = {
    "stream_create_partitions": Names.SPECIFICATION,
    "stream_create_partitioned": Names.IMPLEMENTATION,
    "stream_index_partitioned": Names.IMPLEMENTATION,
}


class SessionState(NamedTuple):
    """What a session carries from window to window."""

    coverage: Coverage
    memory: Memory
    now_ns: int


class Session:
    """One connection. `receive` its frames in arrival order, `advance` the time, `end` it once.

    `started_late`: the capture began after the connection did. `state` is that of an earlier window, to continue from.
    """

    def __init__(
        self,
        options: OckamOptions,
        *,
        started_late: bool = False,
        state: SessionState | None = None,
        peer_received: PeerReceived | None = None,
        late: Late | None = None,
    ) -> None:
        self._options = options
        state = state or SessionState(Coverage.begin(started_late=started_late), Memory(), 0)
        self.coverage, self.memory, self.now_ns = state
        self.coverage.peer_received_of = peer_received
        self.coverage.late_of = late
        self.memory.serve(options.stream_services, options.index_services)
        self.ended: End | None = None

    # Input

    def hole(self, place: Place) -> None:
        """Bytes are missing. `place` is the record that showed it; it also releases what waited behind them.

        Both sides may have waited. The released bytes, and the rest of the frames that were begun, come to `receive`.
        """
        self.coverage.gap = place
        self.memory.requests.miss()
        # They may have been sent since the last that came.
        self.coverage.miss(min(place.arrived_at_ns, self.now_ns + 1))

    def doubt(self, place: Place) -> None:
        """Nobody knows which side sent first what comes at `place`: as a hole, and each frame may know later ones."""
        self.hole(place)
        self.coverage.unordered = place

    def lose(self, direction: Direction, place: Place) -> None:
        """By what came at `place` it isn't known where the next frame of `direction` begins: until one comes, those
        that were sent may be held back. Called for each piece while that is so."""
        if direction not in self.coverage.searched:
            self.coverage.searched.add(direction)
            self.memory.requests.miss()
            self.coverage.miss(min(place.arrived_at_ns, self.now_ns + 1))

    def receive(self, received: Received) -> Outcome:
        """Take the next frame, or undecodable bytes. ValueError: the connection has ended."""
        if self.ended is not None:
            raise ValueError("the connection has ended")
        found = self.advance(received.place.arrived_at_ns)
        sender = self.coverage.take(received)
        if received.routed is None or received.decoded is None:
            return self._take_undecodable(received, found)
        requester, frame = self._frame(received, sender)
        if frame.message is None:
            return self._take_no_message(received, frame, found)
        self._judge(received, frame, frame.message)
        if frame.answers_nothing:
            self.coverage.unasked_end = received.byte_end
        return Outcome(
            received=received,
            message=frame.message,
            skip=None,
            findings=found + frame.found(),
            missed=self.coverage.missed,
            ignored=frame.ignored,
            stream_address=frame.stream_address,
            requester=requester,
            consumer=frame.consumer,
            answers=frame.answers,
        )

    def advance(self, now_ns: int) -> tuple[Found, ...]:
        """Time goes on to `now_ns`; what has not come by now."""
        self.now_ns = max(self.now_ns, now_ns)
        requests = self.memory.requests
        if Direction.SERVER in self.coverage.searched:
            # Its frames are still searched, or were missed before its first byte.
            requests.miss()
        overdue = requests.overdue(self.now_ns - self._options.answer_timeout_ns)
        return _unanswered(overdue, f"no answer for more than {self._options.answer_timeout_s} s") if overdue else ()

    def end(self, how: End, place: Place) -> tuple[Found, ...]:
        """The connection ends at `place`; the rules about what never came. ValueError: it has ended before."""
        if self.ended is not None:
            raise ValueError("the connection has ended")
        found = self.advance(place.arrived_at_ns)
        self.ended = how
        if how is End.CAPTURE_END:
            return found
        unanswered = self.memory.requests.close()
        if how is End.RESET:
            since_ns = place.arrived_at_ns - IN_FLIGHT_NS
            unanswered = [request for request in unanswered if request.where.place.arrived_at_ns <= since_ns]
        found += _unanswered(unanswered, "no answer before the connection was closed")
        return found if self.coverage.partial else (*found, *mixed_routes(self.memory))

    # A frame

    def _frame(self, received: Received, sender: Sender) -> tuple[str, Frame]:
        """A frame as it is judged, and its requester as it was sent."""
        routed, decoded = received.routed, received.decoded
        assert routed is not None
        assert decoded is not None
        held_back = self.coverage.find_frame(received, sender)
        is_request = received.direction is Direction.CLIENT
        back, onward = routed.return_route, routed.onward_route
        requester = route_text(back if is_request else onward)
        address = onward if is_request else back
        is_init = decoded.message is not None and decoded.message.kind in _INITS
        at, role = locate(self.memory, address, is_init=is_init)
        frame = Frame(
            where=Where(received.direction, received.place, received.byte_start, received.byte_end),
            sender=sender,
            held_back=held_back,
            partial=self.coverage.partial,
            requester=short(requester),
            at=at,
            role=role,
            is_routed=bool(address),
            address_sent=address[-1].value if address else b"",
            message=decoded.message,
            also=decoded.also,
        )
        if is_request:
            remember(self.memory.requesters, frame.requester, None)
        return requester, frame

    def _judge(self, received: Received, frame: Frame, message: Message) -> None:
        """What is checked of each message, and then what its kind has."""
        routed, decoded, memory = received.routed, received.decoded, self.memory
        assert routed is not None
        assert decoded is not None
        if not decoded.canonical or not routed.canonical:
            frame.break_rule("non_canonical", "a number, tag or length is longer than needed")
        self._note_names(decoded.protocol_name, message)
        is_request = received.direction is Direction.CLIENT
        is_known = is_request or frame.requester in memory.requesters or ("", "") in memory.undecoded
        if not is_known and is_complete(memory, frame, memory.requesters):
            frame.break_rule("reply_to_unknown_address", f"the response goes to {frame.requester or 'no address'}")
        JUDGES[message.kind](memory, frame, message)

    def _note_names(self, protocol: str | None, message: Message) -> None:
        """Whose names the client uses, where they differ."""
        whose = _WHOSE.get(protocol or "")
        if protocol == "stream_index" and getattr(message, "partition", None) is not None:
            whose = Names.SPECIFICATION
        if whose is not None:
            self.memory.names.add(whose)

    # What is no message

    def _take_undecodable(self, received: Received, found: tuple[Found, ...]) -> Outcome:
        """Bytes that are no message with a way to go, or that the capture lacks. What is no request does nothing."""
        coverage = self.coverage
        if received.skip is not None:
            coverage.searched.discard(received.direction)
            return Outcome(received, None, received.skip, found, coverage.missed)
        coverage.take_undecodable(received)
        if received.rule is not None:
            where = Where(received.direction, received.place, received.byte_start, received.byte_end)
            found += (Found(RULE[received.rule], where, received.reason),)
        if received.direction is Direction.SERVER:
            self.memory.requests.miss()
        if received.direction is Direction.SERVER or received.rule != "routed":
            coverage.miss(received.place.arrived_at_ns)
        else:
            coverage.missed += 1
            note_undecoded(self.memory, "", "")
        return Outcome(received, None, None, found, coverage.missed)

    def _take_no_message(self, received: Received, frame: Frame, found: tuple[Found, ...]) -> Outcome:
        """A payload that is no message of the stream service: a rule where one is expected, else other traffic."""
        decoded, coverage = received.decoded, self.coverage
        assert decoded is not None
        if received.skip is not None and frame.role is Role.UNKNOWN:
            return Outcome(received, None, received.skip, found, coverage.missed)
        if received.direction is Direction.SERVER:
            self.memory.requests.miss()
            coverage.miss(received.place.arrived_at_ns)
        elif frame.requester:
            # It may be refused by an error, which then answers no other request.
            self.memory.requests.add(Request(RequestKind.OTHER, frame.where, frame.requester, frame.at))
            coverage.missed += 1
            note_undecoded(self.memory, frame.requester, ASKS.get(decoded.protocol_name or "", ""))
        found += (Found(RULE["payload"], frame.where, received.reason or decoded.reason, frame.stream),)
        return Outcome(received, None, None, found, coverage.missed)

    # Carried state

    @property
    def state(self) -> SessionState:
        """What a later session continues from. ValueError: the connection has ended."""
        if self.ended is not None:
            raise ValueError("the connection has ended")
        return SessionState(self.coverage, self.memory, self.now_ns)


def _unanswered(requests: list[Request], why: str) -> tuple[Found, ...]:
    """The rules about requests without an answer."""
    return tuple(found for request in requests if (found := _unanswered_one(request, why)) is not None)


def _unanswered_one(request: Request, why: str) -> Found | None:
    rule = UNANSWERED[request.kind]
    if rule is None:
        return None
    if request.kind is RequestKind.PARTITIONED and request.answered.count:
        missing = next(request.missing, None)
        first = "" if missing is None else f", the first missing is {missing.first}"
        why = f"{request.answered.count} of {request.partitions} partitions answered{first}: {why}"
    stream = request.target if request.kind in (RequestKind.PUSH, RequestKind.PULL) else None
    return Found(RULE[rule], request.where, why, stream)
