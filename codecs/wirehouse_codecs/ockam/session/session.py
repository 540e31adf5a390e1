"""The session layer of the Ockam stream service: what each message of a connection means, and which rules it breaks.

Requests wait for their answers as requests.py says; `JUDGES` has what is judged of each kind of message. A `Session`
takes the messages of one connection in arrival order, gives one `Outcome` for each, and goes on from its `snapshot()`.

- A message breaks at most one rule, the first in the order of rules.py. A rule about what never came is found
  besides, at the request: when the connection is closed, or when a later message or `advance` is past its time.
- Where messages were missed (`partial`) no rule is found that one of them could disprove. A response that can't be
  decoded counts as missed.
- A hole, and the search for a frame, hold messages back: when these were sent isn't known, nor whether they are
  answered already.
- A side knew at most what its host had received: `peer_received` says how much that was. Where it had received bytes
  that did not come here yet, they may be what its message answers. A response that answers nothing may be that of a
  request which was sent before its client received it, and comes later.
- A stream is known by the Init that gave its address, and by the node before it in the route.
  A stream without partitions is partition 0 of its name.
- An index response answers the oldest GetIndex of its requester that it can be about. Where its bytes have two
  readings, the one that fits that request is taken.
- A request that can't be decoded may be taken by the service. So one answer that fits no other request is its own.
- A push or pull to an address that no Init of the connection gave is marked: another connection may have had the Init.
- What a reset cut off may have been answered in its last second.
- An error answers the oldest request to its address. If that request is answered after all, the error was for the next.
- Of pulls with one id that are open together, a response answers the one that it fits best.
- A push that is sent again once, directly after its confirm, may have crossed it: that is no reuse of its id.
- After another address was given for a stream it is a new incarnation; that the old one answers again is the rule.
- All that is held is bounded; texts longer than `MOST_CHARACTERS` are known by their hash.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final, TypeVar

from wirehouse_codecs.core.errors import StateVersionError
from wirehouse_codecs.core.intervals import Intervals
from wirehouse_codecs.core.rules import Place, Rule
from wirehouse_codecs.ockam.options import OckamOptions
from wirehouse_codecs.ockam.rules import RULE, RULES
from wirehouse_codecs.ockam.session.requests import (
    UNANSWERED,
    Input,
    Request,
    RequestKind,
    Requests,
    RequestState,
    Where,
    digest,
)
from wirehouse_codecs.ockam.wire.messages import (
    CreatePartitionedRequest,
    CreatePartitionedResponse,
    CreateRequest,
    CreateResponse,
    Error,
    IndexGet,
    IndexResponse,
    IndexSave,
    Kind,
    Message,
    Names,
    PullRequest,
    PullResponse,
    PushRequest,
    PushResponse,
    Status,
)
from wirehouse_codecs.ockam.wire.reader import Received
from wirehouse_codecs.ockam.wire.routed import LOCAL, Address, Route, route_text
from wirehouse_codecs.tcp.endpoints import Direction

SNAPSHOT_VERSION: Final = 4
#: Requesters, streams, keys of indexes and the like that a session remembers, of each.
MOST_KNOWN: Final = 4096
#: Runs of indexes, request ids and partitions.
MOST_RUNS: Final = 64
#: An answer may be so long on its way when its connection is reset.
IN_FLIGHT_NS: Final = 10**9
#: Characters of a text that is remembered.
MOST_CHARACTERS: Final = 255
_ORDER: Mapping[str, int] = {rule.name: number for number, rule in enumerate(RULES)}

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class End(StrEnum):
    """How a connection ends."""

    CLOSED = "closed"
    RESET = "reset"
    CAPTURE_END = "capture_end"


class Role(StrEnum):
    """What is at an address."""

    STREAM_SERVICE = "stream service"
    INDEX_SERVICE = "index service"
    STREAM = "stream"
    UNKNOWN = "unknown"


#: Why a message is no account of what the service has: its request was answered before, or never sent; it is an Init
#: with another name, or an index for another key than was asked for; it is a request that its address can't take, or
#: whose address no Init of its connection gave.
ANSWERS_NOTHING: Final = "answers_nothing"
OTHER_NAME: Final = "other_name"
OTHER_KEY: Final = "other_key"
WRONG_SERVICE: Final = "wrong_service"
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
    #: Of a pull.
    index: int | None
    limit: int | None
    #: Of a create: it had no name.
    anonymous: bool | None
    #: Of a push that was saved: its data; None = too much was open to hold it.
    data: bytes | None
    data_bytes: int | None
    #: Messages were missed while it was open, or held it back: it may have been sent earlier, and its answer may be
    #: that of another request.
    unsure: bool


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


@dataclass(slots=True)
class _Stream:
    """A stream at its address."""

    name: str | None
    partition: int
    #: Another address was given for the same name and partition since.
    replaced: bool = False
    #: Indexes that were confirmed on this connection.
    highest: int | None = None
    confirmed: Intervals = field(default_factory=lambda: Intervals(most=MOST_RUNS))


@dataclass(slots=True)
class _Key:
    """What a client has at the index service for a stream."""

    #: The answer to a GetIndex that is sent now is at least this; None = nothing was saved or answered.
    least: int | None = None
    saved_at: Where | None = None


@dataclass(slots=True)
class _Saved:
    """Pushes of a requester to a stream that were saved."""

    ids: Intervals = field(default_factory=lambda: Intervals(most=MOST_RUNS))
    #: Id and digest of the last one, which may be sent again until its confirm has come: until another push.
    last: tuple[int, bytes] | None = None


class Session:
    """One connection. `receive` its frames in arrival order, `advance` the time, `end` it once.

    `started_late`: the capture began after the connection did.
    """

    def __init__(
        self,
        options: OckamOptions,
        *,
        started_late: bool = False,
        snapshot: str | None = None,
        peer_received: Callable[[Direction, int], int] | None = None,
    ) -> None:
        self._options = options
        #: As `Connection.peer_received`; None = a side had received what came before.
        self._peer_received = peer_received
        #: How far each side's bytes are here, how far they were taken, and up to where responses answer nothing.
        self.here = dict.fromkeys(Direction, 0)
        self.taken = dict.fromkeys(Direction, 0)
        self.unasked_end = 0
        #: The place with which the first frame of a side was found, from its begin on or after a search.
        self._found_at: dict[Direction, Place] = {}
        self.roles = {
            **dict.fromkeys(options.stream_services, Role.STREAM_SERVICE),
            **dict.fromkeys(options.index_services, Role.INDEX_SERVICE),
        }
        #: From when on it is known that messages were missed, 0 = from the beginning; None = none were.
        self.partial_at_ns = 0 if started_late else None
        #: As `Outcome.missed`.
        self.missed = int(started_late)
        #: Sides whose next frame was looked for.
        self.searched = set(Direction) if started_late else set()
        self.ended: End | None = None
        #: How many there were: `creates`, `pushes`, `confirmed`, `pulls`, and messages that were `delivered`.
        self.counts = Counter[str]()
        #: Whose names were used for protocols that have two.
        self.names: set[Names] = set()
        self.requests = Requests()
        #: The last packet that showed a hole. What it released of the other side may come before what it answers.
        self.gap: Place | None = None
        self.now_ns = 0
        self.requesters: dict[str, None] = {}
        self.streams: dict[str, _Stream] = {}
        self.addresses: dict[tuple[str, int], str] = {}
        #: By requester and name: how many partitions were asked for, and have all answered.
        self.whole: dict[tuple[str, str], int] = {}
        #: By requester and stream: ids that were saved, and the data's digest of those that were not.
        self.saved: dict[tuple[str, str], _Saved] = {}
        self.unsaved: dict[tuple[str, str, int], bytes] = {}
        self.keys: dict[tuple[str, str, str, int | None], _Key] = {}
        self.clients: dict[tuple[str, str, int], str] = {}
        #: By stream: its only client; None = it has several.
        self.only_clients: dict[tuple[str, int], str | None] = {}
        self.pulled: dict[str, Intervals] = {}
        #: Requests that an error closed while others were open to its address: by requester, kind and name or id the
        #: address.
        self.refused: dict[tuple[str, str, str | None], str] = {}
        #: How many requests could not be decoded, by requester and what they ask for; "" = not known.
        self.undecoded: dict[tuple[str, str], int] = {}
        self._clear()
        if snapshot is not None:
            self._restore(json.loads(snapshot))

    def _clear(self) -> None:
        """What holds for the frame that is being taken."""
        self._also: IndexResponse | None = None
        self._broken: list[tuple[str, str]] = []
        self._message: Message | None = None
        self._ignored: str | None = None
        self._stream_address: str | None = None
        self._consumer: str | None = None
        self._answers: Answers | None = None

    @property
    def partial(self) -> bool:
        """Messages from before were missed, or some since."""
        return self.partial_at_ns is not None

    # Input

    def hole(self, place: Place) -> None:
        """Bytes that never came are told at `place`, and with it what waited for them, also of the other side.

        What was begun before them comes to `receive`, as all else does, afterwards.
        """
        self.gap = place
        self.requests.miss()
        # They may have been sent since the last that came.
        self._miss(min(place.arrived_at_ns, self.now_ns + 1))

    def lose(self, direction: Direction, place: Place) -> None:
        """By what came at `place` it isn't known where the next frame of `direction` begins: until one comes, those
        that were sent may be held back. Called for each piece while that is so."""
        if direction not in self.searched:
            self.searched.add(direction)
            self.requests.miss()
            self._miss(min(place.arrived_at_ns, self.now_ns + 1))

    def receive(self, received: Received) -> Outcome:
        """Take the next frame, or undecodable bytes. ValueError: the connection has ended."""
        if self.ended is not None:
            raise ValueError("the connection has ended")
        found = list(self.advance(received.place.arrived_at_ns))
        self._clear()
        direction, end = received.direction, received.byte_end
        other = Direction.SERVER if direction is Direction.CLIENT else Direction.CLIENT
        if direction in self.searched or not self.taken[direction]:
            self._found_at[direction] = received.place
        # What waited for its beginning to be found came before this place.
        is_fresh = self._peer_received is None or self._found_at.get(direction) != received.place
        known = self.peer_received(direction, end) if self._peer_received is not None else 0
        is_behind = known > self.taken[other]
        self._is_behind = is_fresh and is_behind
        # Its sender had the rest of a frame, which comes here later: one byte may be a FIN, for which nobody waits.
        self._knows_frame = self._is_behind and known > self.here[other] > self.taken[other]
        # An answer that waited so may answer what comes after it, or what is begun.
        may_answer = is_behind or self.here[other] > self.taken[other]
        self._is_early = may_answer and direction is Direction.SERVER and self._peer_received is not None
        self._may_be_told = direction is Direction.CLIENT and bool(self.unasked_end)
        if self._may_be_told and is_fresh:
            self._may_be_told = self.peer_received(direction, end) < self.unasked_end
        self.taken[direction] = end
        routed, decoded = received.routed, received.decoded
        if routed is None or decoded is None:
            return self._take_undecodable(received, found)
        self._where = Where(received.direction, received.place, received.byte_start, received.byte_end)
        self._held_back = received.place == self.gap or received.direction in self.searched
        self.searched.discard(received.direction)
        # What the other side said before may still be looked for.
        self.missed += len(self.searched)
        if self._knows_frame or (self._held_back and (self._is_behind or not is_fresh)):
            # What its sender had received may come later.
            self.missed += 1
        is_request = received.direction is Direction.CLIENT
        back, onward = routed.return_route, routed.onward_route
        requester = route_text(back if is_request else onward)
        self._requester = short(requester)
        address = onward if is_request else back
        is_init = decoded.message is not None and decoded.message.kind in _INITS
        self._at, self._role = self._place_of(address, is_init)
        self._address_sent = address[-1].value if address else b""
        self._routed_at = bool(address)
        if is_request:
            _remember(self.requesters, self._requester, None)
        if decoded.message is None:
            return self._take_no_message(received, found)
        if not decoded.canonical or not routed.canonical:
            self._break("non_canonical", "a number, tag or length is longer than needed")
        self._message = decoded.message
        self._also = decoded.also
        self._note_names(decoded.protocol_name, decoded.message)
        is_known = is_request or self._requester in self.requesters or ("", "") in self.undecoded
        if not is_known and self._is_complete(self.requesters):
            self._break("reply_to_unknown_address", f"the response goes to {self._requester or 'no address'}")
        JUDGES[decoded.message.kind](self, decoded.message)
        if self._broken:
            name, message = min(self._broken, key=lambda broken: _ORDER[broken[0]])
            found.append(Found(RULE[name], self._where, message, self._stream_address))
        return Outcome(
            received=received,
            message=self._message,
            skip=None,
            findings=tuple(found),
            missed=self.missed,
            ignored=self._ignored,
            stream_address=self._stream_address,
            requester=requester,
            consumer=self._consumer,
            answers=self._answers,
        )

    def peer_received(self, direction: Direction, byte_end: int) -> int:
        """How many bytes of the other side the sender of these had received, at most."""
        if self._peer_received is not None:
            return self._peer_received(direction, byte_end)
        return self.taken[Direction.SERVER if direction is Direction.CLIENT else Direction.CLIENT]

    def advance(self, now_ns: int) -> tuple[Found, ...]:
        """Time goes on to `now_ns`; what has not come by now."""
        self.now_ns = max(self.now_ns, now_ns)
        if Direction.SERVER in self.searched:
            # What it said is still looked for, or was missed before its first byte.
            self.requests.miss()
        timeout = self._options.answer_timeout_ns
        waited = f"no answer for more than {self._options.answer_timeout_s} s"
        return tuple(
            found
            for request in self.requests.overdue(self.now_ns - timeout)
            if (found := self._unanswered(request, waited)) is not None
        )

    def end(self, how: End, place: Place) -> tuple[Found, ...]:
        """The connection ends at `place`; the rules about what never came. ValueError: it has ended before."""
        if self.ended is not None:
            raise ValueError("the connection has ended")
        found = list(self.advance(place.arrived_at_ns))
        self.ended = how
        if how is End.CAPTURE_END:
            return tuple(found)
        for request in self.requests.close():
            waited_ns = place.arrived_at_ns - request.where.place.arrived_at_ns
            if how is End.RESET and waited_ns < IN_FLIGHT_NS:
                continue
            unanswered = self._unanswered(request, "no answer before the connection was closed")
            if unanswered is not None:
                found.append(unanswered)
        return tuple(found + self._mixed_routes())

    def _unanswered(self, request: Request, why: str) -> Found | None:
        rule = UNANSWERED[request.kind]
        if rule is None:
            return None
        if request.kind is RequestKind.PARTITIONED and request.answered.count:
            missing = next(request.missing, None)
            first = "" if missing is None else f", the first missing is {missing.first}"
            why = f"{request.answered.count} of {request.partitions} partitions answered{first}: {why}"
        stream = request.target if request.kind in (RequestKind.PUSH, RequestKind.PULL) else None
        return Found(RULE[rule], request.where, why, stream)

    def _mixed_routes(self) -> list[Found]:
        """Clients that saved for a partition while only others of the stream were pulled from."""
        found: list[Found] = []
        if self.partial:
            return found
        for (_, client, name, partition), key in self.keys.items():
            pulled = self.pulled.get(name)
            if key.saved_at is None or partition is None or pulled is None:
                continue
            if partition >= pulled.floor and partition not in pulled:
                message = f"{client} saves for partition {partition} of {name} and pulls only from others"
                found.append(Found(RULE["partition_route_mixed"], key.saved_at, message))
        return found

    # What is no message

    def _take_undecodable(self, received: Received, found: list[Found]) -> Outcome:
        """Bytes that are no message with a way to go, or that the capture lacks. What is no request does nothing."""
        if received.skip is not None:
            self.searched.discard(received.direction)
            return Outcome(received, None, received.skip, tuple(found), self.missed)
        if received.direction in self.searched or (received.rule is None and not received.beyond_limit):
            # What was held back comes with it.
            self.gap = received.place
        if received.rule != "routed" and not received.beyond_limit:
            self.searched.add(received.direction)
        if received.rule is not None:
            where = Where(received.direction, received.place, received.byte_start, received.byte_end)
            found.append(Found(RULE[received.rule], where, received.reason))
        if received.direction is Direction.SERVER:
            self.requests.miss()
        if received.direction is Direction.SERVER or received.rule != "routed":
            self._miss(received.place.arrived_at_ns)
        else:
            self._note_undecoded("", "")
        return Outcome(received, None, None, tuple(found), self.missed)

    def _note_undecoded(self, requester: str, asks: str) -> None:
        """A request that the service may have understood."""
        self.missed += 1
        key = (requester, asks)
        _remember(self.undecoded, key, self.undecoded.get(key, 0) + 1)

    def _miss(self, since_ns: int) -> None:
        self.missed += 1
        if self.partial_at_ns is None:
            self.partial_at_ns = since_ns

    def _take_no_message(self, received: Received, found: list[Found]) -> Outcome:
        """A payload that is no message of the stream service: a rule where one is expected, else other traffic."""
        decoded = received.decoded
        assert decoded is not None
        if received.skip is not None and self._role is Role.UNKNOWN:
            return Outcome(received, None, received.skip, tuple(found), self.missed)
        if received.direction is Direction.SERVER:
            self.requests.miss()
            self._miss(received.place.arrived_at_ns)
        elif self._requester:
            # It may be refused by an error, which then answers no other request.
            self.requests.add(Request(RequestKind.OTHER, self._where, self._requester, self._at))
            self._note_undecoded(self._requester, _ASKS.get(decoded.protocol_name or "", ""))
        found.append(Found(RULE["payload"], self._where, received.reason or decoded.reason, self._stream_of()))
        return Outcome(received, None, None, tuple(found), self.missed)

    # Creates

    def _judge_create(self, create: CreateRequest) -> None:
        self.counts["creates"] += 1
        is_right = self._check_role(RequestKind.CREATE, Role.STREAM_SERVICE)
        self._open(RequestKind.CREATE, is_right, name=short(create.stream_name))

    def _judge_create_partitioned(self, create: CreatePartitionedRequest) -> None:
        self.counts["creates"] += 1
        is_right = self._check_role(RequestKind.PARTITIONED, Role.STREAM_SERVICE)
        if create.partitions:
            name = short(create.stream_name)
            self._open(RequestKind.PARTITIONED, is_right, name=name, partitions=create.partitions)

    def _judge_init(self, init: CreateResponse) -> None:
        name = short(init.stream_name)
        requests, key = self.requests, (RequestKind.CREATE, self._requester)
        request = requests.oldest(*key, "name", name)
        excused = request is None and self._was_refused(RequestKind.CREATE, name)
        if request is None and not excused:
            request = requests.oldest(*key, "name", None)
        if request is None and not excused and self._is_complete():
            excused = self._was_refused(RequestKind.CREATE, None) or self._was_undecoded(_CREATE)
            request = None if excused else requests.oldest(*key)
        self._take_init(init, name, 0, request, excused)
        if request is not None:
            request.take(Input.ANSWER)
            requests.remove(request)

    def _judge_init_of_partition(self, init: CreatePartitionedResponse) -> None:
        name = short(init.stream_name)
        known = self.addresses.get((name, init.partition))
        request = self._partitioned_request(name, init.partition)
        if request is None:
            asked_for = self.whole.get((self._requester, name), 0)
            excused = self._may_be_undecoded(_CREATE) or self._may_be_refused(name)
            if excused:
                pass
            elif known == self._at and init.partition < asked_for:
                self._break("partition_not_answered", f"partition {init.partition} is answered again")
            elif 0 < asked_for <= init.partition and self._is_complete():
                asked = f"partition {init.partition} answers a create of {asked_for}"
                self._break("partition_not_answered", asked)
            self._take_init(init, name, init.partition, None, excused)
            return
        assert request.partitions is not None
        stream = self.streams.get(self._at)
        shared = stream is not None and stream.name == name and stream.partition != init.partition
        if init.partition >= request.partitions:
            asked = f"partition {init.partition} answers a create of {request.partitions}"
            self._break("partition_not_answered", asked)
        elif init.partition in request.answered:
            self._break("partition_not_answered", f"partition {init.partition} is answered again")
        elif shared:
            self._break("partition_not_answered", f"partition {init.partition} has the address of another")
        self._take_init(init, name, init.partition, request)
        request.given = request.given or name
        if init.partition < request.partitions:
            request.answered.add(init.partition, init.partition)
        is_whole = next(request.missing, None) is None
        request.take(Input.ANSWER if is_whole else Input.PART)
        if is_whole:
            self.requests.remove(request)
            _remember(self.whole, (self._requester, name), request.partitions)

    def _partitioned_request(self, name: str, partition: int) -> Request | None:
        """The create that an answer is for: the closest in name, and where the partition still waits."""
        key = (RequestKind.PARTITIONED, self._requester)
        named = list(self.requests.all(*key, "name", name))
        anonymous = list(self.requests.all(*key, "name", None))
        nearest = [
            *named,
            *(request for request in anonymous if request.given == name),
            *(request for request in anonymous if request.given is None),
        ]
        waiting = (
            request
            for request in nearest
            if partition < (request.partitions or 0) and partition not in request.answered
        )
        request = next(waiting, None)
        excused = self._may_be_undecoded(_CREATE) or self._may_be_refused(name)
        if request is None and self._is_complete() and not excused:
            request = next(iter(nearest), None) or self.requests.oldest(*key)
        return request

    def _take_init(
        self,
        init: CreateResponse | CreatePartitionedResponse,
        name: str,
        partition: int,
        request: Request | None,
        excused: bool = False,
    ) -> None:
        if request is None:
            self.unasked_end = self._where.byte_end
        if init.extra:
            self._break("init_extra_bytes", f"{len(init.extra)} bytes")
        if request is None:
            if self._is_complete() and not excused:
                self._break("init_unasked", f"no create of {self._requester} is open")
        else:
            self._answers = _answers(request)
            self._check_name(name, request)
        if not self._routed_at or self._role in _SERVICES:
            self._break("init_without_address", f"the return route is {self._at or 'empty'}")
            return
        self._stream_address = self._at
        asked = None if request is None else request.name
        # Names and addresses are compared as they are sent: texts of addresses have escapes, long texts are hashes.
        sent = init.stream_name if asked == name else asked
        if sent and sent.encode() not in self._address_sent:
            self._break("address_not_from_name", f"{self._at} for {asked}")
        # Its client knows the stream by the name that it asked for.
        self._learn(asked or name, partition)

    def _check_name(self, name: str, request: Request) -> None:
        expected = request.name if request.name is not None else request.given
        if expected is not None and name != expected:
            self._ignored = OTHER_NAME
            self._break("create_other_name", f"{name!r} answers a create of {expected!r}")
        elif not name:
            self._ignored = OTHER_NAME
            self._break("create_other_name", "the name is empty")

    def _learn(self, name: str, partition: int) -> None:
        """The address of a stream."""
        known = self.addresses.get((name, partition))
        former = None if known is None or known == self._at else self.streams.get(known)
        # Without a name it was forgotten since, and seen again.
        if former is not None and former.name is not None and _node_of(known) == _node_of(self._at):
            former.replaced = True
        stream = self.streams.get(self._at)
        if stream is None:
            stream = _Stream(name, partition)
            _remember(self.streams, self._at, stream)
        elif stream.name is None:
            stream.name, stream.partition = name, partition
        self._check_address(stream)
        _remember(self.addresses, (name, partition), self._at)

    def _check_address(self, stream: _Stream) -> None:
        """An answer from the address of `stream`."""
        if not stream.replaced:
            return
        stream.replaced = False
        assert stream.name is not None
        now = self.addresses.get((stream.name, stream.partition))
        self._break("address_changed", f"{self._at} still answers, {now} is the address since")

    # Push and pull

    def _judge_push(self, push: PushRequest) -> None:
        self.counts["pushes"] += 1
        is_right = self._check_stream(RequestKind.PUSH)
        if is_right:
            self._check_reuse(push)
        self._open(RequestKind.PUSH, is_right, request_id=push.request_id, data=push.data)

    def _check_reuse(self, push: PushRequest) -> None:
        number, key = push.request_id, (RequestKind.PUSH, self._requester, self._at, push.request_id)
        saved = self.saved.get((self._requester, self._at))
        if saved is not None:
            last, saved.last = saved.last, None
            if number in saved.ids:
                if last != (number, digest(push.data)):
                    self._break("request_id_reused", f"{number} was saved before")
                return
        earlier = self.requests.oldest(*key)
        told = self.unsaved.get((self._requester, self._at, number)) if earlier is None else earlier.digest
        if told is not None and told != digest(push.data):
            self._break("request_id_reused", f"{number} was pushed with other data before")

    def _judge_confirm(self, confirm: PushResponse) -> None:
        request = self._take_answer(RequestKind.PUSH, confirm.request_id)
        is_saved = confirm.status is Status.OK
        if request is not None and request.target:
            self._note_saved(request, confirm.request_id, is_saved)
        if request is not None and is_saved:
            self._answers = _answers(request)
        elif request is not None:
            self._answers = _answers(request, with_data=False)
        stream = self._answering_stream()
        if is_saved and self._ignored is None:
            self.counts["confirmed"] += 1
            if stream is not None:
                self._check_rising(stream, confirm.index)

    def _note_saved(self, request: Request, number: int, is_saved: bool) -> None:
        pusher = (request.requester, request.target)
        if not is_saved:
            _remember(self.unsaved, (*pusher, number), request.digest)
            return
        self.unsaved.pop((*pusher, number), None)
        saved = self.saved.get(pusher)
        if saved is None:
            saved = _Saved()
            _remember(self.saved, pusher, saved)
        saved.last = None if number in saved.ids else (number, request.digest)
        saved.ids.add(number, number)

    def _check_rising(self, stream: _Stream, index: int) -> None:
        """Confirmed indexes rise; one that is known to be confirmed before is another rule, over all connections."""
        highest, confirmed = stream.highest, stream.confirmed
        if highest is not None and index < highest and index not in confirmed:
            self._break("index_decreases", f"{index} is confirmed after {highest}")
        stream.highest = index if highest is None else max(highest, index)
        confirmed.add(index, index)

    def _judge_pull(self, pull: PullRequest) -> None:
        self.counts["pulls"] += 1
        is_right = self._check_stream(RequestKind.PULL)
        stream = self.streams.get(self._at)
        if stream is not None and stream.name is not None:
            pulled = self.pulled.get(stream.name)
            if pulled is None:
                pulled = Intervals(most=MOST_RUNS)
                _remember(self.pulled, stream.name, pulled)
            pulled.add(stream.partition, stream.partition)
        self._open(RequestKind.PULL, is_right, request_id=pull.request_id, index=pull.index, limit=pull.limit)

    def _judge_pulled(self, pulled: PullResponse) -> None:
        indexes = [message.index for message in pulled.messages]
        request = self._take_answer(RequestKind.PULL, pulled.request_id, indexes)
        stream = self._answering_stream()
        if self._ignored is None:
            self.counts["delivered"] += len(indexes)
        if any(one >= following for one, following in pairwise(indexes)):
            self._break("response_order", "the indexes do not rise")
        if stream is not None and stream.name is not None:
            of = (stream.name, stream.partition)
            self._consumer = self.clients.get((self._requester, *of)) or self.only_clients.get(of)
        if request is None:
            return
        assert request.index is not None
        assert request.limit is not None
        self._answers = _answers(request)
        if self._answers.unsure:
            return
        if len(indexes) > request.limit:
            self._break("too_many_messages", f"{len(indexes)} messages, the limit is {request.limit}")
        lowest = min(indexes, default=request.index)
        if lowest < request.index:
            self._break("below_requested_index", f"index {lowest}, requested from {request.index}")

    def _take_answer(self, kind: RequestKind, request_id: int, indexes: Sequence[int] = ()) -> Request | None:
        """The request that a PushConfirm or PullResponse answers. Without one it counts for nothing."""
        if self._role in _SERVICES:
            self._break("wrong_service", f"a response to a {kind} from the {self._role}")
        narrow = (self._at, request_id) if self._stream_of() else (request_id,)
        request = self.requests.oldest(kind, self._requester, *narrow)
        if request is None and len(narrow) > 1:
            request = self._sent_behind_a_node(kind, self._requester, request_id)
        elif request is not None and kind is RequestKind.PULL:
            request = _pull_of(list(self.requests.all(kind, self._requester, *narrow)), indexes)
        if request is not None:
            request.take(Input.ANSWER)
            self.requests.remove(request)
            self._stream_address = request.target
            return request
        self._stream_address = self._stream_of()
        self.unasked_end = self._where.byte_end
        if not self._is_complete() or self._was_refused(kind, f"{self._at} {request_id}"):
            return None
        if not self._was_undecoded(kind):
            self._ignored = ANSWERS_NOTHING
            self._break("unknown_request_id", f"no {kind} of {self._requester} with id {request_id} is open")
        return None

    def _answering_stream(self) -> _Stream | None:
        stream = None if self._stream_address is None else self.streams.get(self._stream_address)
        if stream is not None:
            self._check_address(stream)
        return stream

    def _check_stream(self, kind: RequestKind) -> bool:
        """Whether a push or pull goes to a stream, and to one that an Init gave."""
        if not self._check_role(kind, Role.STREAM):
            return False
        self._stream_address = self._stream_of()
        if self._role is Role.UNKNOWN:
            if not self._at:
                if self._is_complete(self.streams):
                    self._break("address_not_from_init", "no Init gave the empty address")
                return True
            if self._is_complete(self.streams):
                # An Init on another connection may have given it.
                self._ignored = NOT_GIVEN
            _remember(self.streams, self._at, _Stream(None, 0))
        return True

    # Index

    def _judge_get(self, get: IndexGet) -> None:
        key = self._index_key(get)
        known = self.keys.get((self._at, *key))
        least = None if known is None else known.least
        self._open(RequestKind.GET, self._check_role(RequestKind.GET, Role.INDEX_SERVICE), key=key, least=least)

    def _judge_save(self, save: IndexSave) -> None:
        key = self._index_key(save)
        if not self._check_role(Kind.INDEX_SAVE, Role.INDEX_SERVICE):
            return
        known = self._key(self._at, key)
        known.least = save.index if known.least is None else max(known.least, save.index)
        known.saved_at = known.saved_at or self._where

    def _judge_index(self, response: IndexResponse) -> None:
        if self._role in (Role.STREAM_SERVICE, Role.STREAM):
            self._break("wrong_service", f"an index from the {self._role}")
        request = self._get_of(response)
        assert isinstance(self._message, IndexResponse)
        key = self._index_key(self._message)
        if request is None:
            self.unasked_end = self._where.byte_end
            if self._is_complete() and not self._is_saved(key) and not self._was_undecoded(_INDEX):
                self._ignored = ANSWERS_NOTHING
                self._break("index_for_other_key", f"no GetIndex of {self._requester} is open")
            return
        request.take(Input.ANSWER)
        self.requests.remove(request)
        self._answers = _answers(request)
        if request.key != key:
            self._ignored = OTHER_KEY
            self._break("index_for_other_key", f"{_key_text(key)} answers {_key_text(request.key)}")
            return
        self._check_index(request, key, self._message.index)

    def _get_of(self, response: IndexResponse) -> Request | None:
        """The GetIndex that is answered, and in `_message` the reading that fits it."""
        readings = [response] if self._also is None else [response, self._also]
        oldest = self.requests.oldest(RequestKind.GET, self._requester)
        if oldest is None:
            return None
        for reading in readings:
            if oldest.key == _key_of(reading):
                self._message = reading
                return oldest
        for reading in readings:
            request = self.requests.oldest(RequestKind.GET, self._requester, _key_of(reading))
            if request is not None:
                self._message = reading
                return request
        for reading in readings:
            if self._is_saved(_key_of(reading)):
                self._message = reading
                return None
        return oldest if self._is_complete() and not self._may_be_undecoded(_INDEX) else None

    def _is_saved(self, key: tuple[str, str, int | None]) -> bool:
        """A SaveIndex was sent that the service may answer too."""
        known = self.keys.get((self._at, *key))
        return known is not None and known.saved_at is not None

    def _check_index(self, request: Request, key: tuple[str, str, int | None], index: int | None) -> None:
        is_sure = self._answers is not None and not self._answers.unsure
        if request.least is not None and (index or 0) < request.least and is_sure:
            self._break("saved_index_lowered", f"{index}, after {request.least}")
        elif index is None:
            self._break("index_missing_record", f"no index for {_key_text(key)}")
        known = self._key(request.target, key)
        if index is not None:
            known.least = index if known.least is None else max(known.least, index)

    def _index_key(self, message: IndexGet | IndexSave | IndexResponse) -> tuple[str, str, int | None]:
        """Client, stream and partition; who the client of the requester is, and the stream's address."""
        key = _key_of(message)
        client, name, partition = key
        stream = (name, partition or 0)
        self._stream_address = self.addresses.get(stream)
        if message.kind is not Kind.INDEX_RESPONSE:
            _remember(self.clients, (self._requester, *stream), client)
            only = self.only_clients.get(stream, client)
            _remember(self.only_clients, stream, client if only == client else None)
        return key

    def _key(self, target: str, key: tuple[str, str, int | None]) -> _Key:
        known = self.keys.get((target, *key))
        if known is None:
            known = _Key()
            _remember(self.keys, (target, *key), known)
        return known

    # Errors

    def _judge_error(self, _: Error) -> None:
        if self._role is Role.INDEX_SERVICE:
            self._break("wrong_service", "an error from the index service")
        key = ("to", self._requester, self._at) if self._routed_at else ("from", self._requester)
        request = self.requests.oldest(*key)
        if request is None and self._routed_at:
            request = self._sent_behind_a_node("from", self._requester)
        if request is None:
            self.unasked_end = self._where.byte_end
            self._ignored = ANSWERS_NOTHING if self._is_complete() else None
            return
        others = any(other is not request for other in self.requests.all(*key))
        if request.state is RequestState.UNSURE or (others and request.kind is RequestKind.OTHER):
            # It may be the error of a later one.
            for later in self.requests.all(*key):
                later.take(Input.GAP)
        self._refuse(request, others)
        self._answers = _answers(request, with_data=False)

    def _refuse(self, request: Request, others: bool) -> None:
        """An error closes a request; if `others` were open too, it may be about one of them."""
        request.take(Input.ERROR)
        self.requests.remove(request)
        if request.kind is RequestKind.PUSH and request.request_id is not None:
            self._note_saved(request, request.request_id, is_saved=False)
        if others:
            what = request.name if request.request_id is None else f"{request.target} {request.request_id}"
            _remember(self.refused, (request.requester, request.kind, what), request.target)

    def _was_refused(self, kind: RequestKind, what: str | None) -> bool:
        """An answer fits a request that an error closed: the error was for the next one to the same address."""
        target = self.refused.pop((self._requester, kind, what), None)
        if target is None:
            return False
        to = list(self.requests.all("to", self._requester, target))
        if to:
            self._refuse(to[0], len(to) > 1)
        return True

    def _may_be_refused(self, name: str) -> bool:
        """A partitioned create that an error closed may be what is answered."""
        key = (self._requester, RequestKind.PARTITIONED)
        return (*key, name) in self.refused or (*key, None) in self.refused

    def _may_be_undecoded(self, asks: str) -> bool:
        return any(key in self.undecoded for key in self._undecoded_keys(asks))

    def _was_undecoded(self, asks: str) -> bool:
        """The answer is that of a request that could not be decoded. Each is answered once."""
        key = next((key for key in self._undecoded_keys(asks) if key in self.undecoded), None)
        if key is None:
            return False
        self.undecoded[key] -= 1
        if not self.undecoded[key]:
            del self.undecoded[key]
        other = self.requests.oldest(RequestKind.OTHER, self._requester)
        if key[0] and other is not None:
            other.take(Input.ANSWER)
            self.requests.remove(other)
        return True

    def _undecoded_keys(self, asks: str) -> tuple[tuple[str, str], ...]:
        return (self._requester, asks), (self._requester, ""), ("", "")

    # What all kinds share

    def _note_names(self, protocol: str | None, message: Message) -> None:
        """Whose names the client uses, where they differ."""
        whose = _WHOSE.get(protocol or "")
        if protocol == "stream_index" and getattr(message, "partition", None) is not None:
            whose = Names.SPECIFICATION
        if whose is not None:
            self.names.add(whose)

    def _break(self, rule: str, message: str) -> None:
        self._broken.append((rule, message))

    def _open(self, kind: RequestKind, is_right: bool, **asked: Any) -> None:
        """A request waits for its answer from here on, if there is a route for one; a wrong one for an error."""
        if not self._requester:
            return
        if is_right:
            request = Request(kind, self._where, self._requester, self._at, **asked)
            if self._may_be_told or (self.partial and self._may_be_answered(request)):
                request.state = RequestState.UNSURE
            self.requests.add(request)
        else:
            self.requests.add(Request(RequestKind.OTHER, self._where, self._requester, self._at))

    def _may_be_answered(self, request: Request) -> bool:
        """It was held back, or its answer is taken for that of an earlier request, whose own was missed."""
        earlier = self.requests.like(request)
        shadowed = earlier is not None and earlier.state is RequestState.UNSURE
        return self._held_back or shadowed

    def _check_role(self, what: str, role: Role) -> bool:
        """Whether a request may go where it goes; of an address that isn't known nothing is said."""
        if self._role in (role, Role.UNKNOWN):
            return True
        self._ignored = WRONG_SERVICE
        self._break("wrong_service", f"{what} to the {self._role} {self._at}")
        return False

    def _place_of(self, address: Route, is_init: bool) -> tuple[str, Role]:
        """What a route leads to as text, and what is there. Equal addresses behind different nodes are different, but
        a node that no Init named may be left out."""
        if not address:
            return "", Role.UNKNOWN
        last = short(address_text(address[-1]))
        text = last
        node = next((hop for hop in reversed(address[:-1]) if hop.type != LOCAL), None)
        if node is not None:
            behind = short(f"{node.text}{_BEHIND}{last}")
            if is_init or behind in self.streams or last not in self.streams:
                text = behind
        known = Role.STREAM if text in self.streams else Role.UNKNOWN
        return text, self.roles.get(last, known)

    def _sent_behind_a_node(self, *key: Hashable) -> Request | None:
        """The oldest request whose route named a node that its response leaves out."""
        ending = _BEHIND + self._at
        return next((one for one in self.requests.all(*key) if one.target.endswith(ending)), None)

    def _stream_of(self) -> str | None:
        return None if self._role in _SERVICES or not self._routed_at else self._at

    def _is_complete(self, known: Mapping[Any, Any] | None = None) -> bool:
        """Nothing was missed, nor forgotten, that would be `known`, or an open request."""
        room = not self.requests.forgotten if known is None else len(known) < MOST_KNOWN
        return room and not self.partial and not self._is_early

    # Carried state

    def snapshot(self) -> str:
        """The state as JSON: a session that is given it goes on as this one. ValueError: the connection has ended."""
        if self.ended is not None:
            raise ValueError("the connection has ended")
        state = {
            "version": SNAPSHOT_VERSION,
            "partial_at_ns": self.partial_at_ns,
            "missed": self.missed,
            "here": self.here,
            "taken": self.taken,
            "unasked_end": self.unasked_end,
            "searched": sorted(self.searched),
            "gap": None if self.gap is None else self.gap.to_json(),
            "counts": {name: count for name, count in sorted(self.counts.items()) if count},
            "names": sorted(self.names),
            "now_ns": self.now_ns,
            "requests": self.requests.to_json(),
            "requesters": list(self.requesters),
            "streams": [
                [address, stream.name, stream.partition, stream.replaced, stream.highest, stream.confirmed.to_json()]
                for address, stream in self.streams.items()
            ],
            "keys": [
                [*key, known.least, None if known.saved_at is None else known.saved_at.to_json()]
                for key, known in self.keys.items()
            ],
            "saved": [
                [*key, saved.ids.to_json(), None if saved.last is None else [saved.last[0], saved.last[1].hex()]]
                for key, saved in self.saved.items()
            ],
            "unsaved": [[*key, told.hex()] for key, told in self.unsaved.items()],
            "pulled": [[name, partitions.to_json()] for name, partitions in self.pulled.items()],
            **{name: [[*key, value] for key, value in getattr(self, name).items()] for name in _PLAIN},
        }
        return json.dumps(state, separators=(",", ":"))

    def _restore(self, state: dict[str, Any]) -> None:
        if state.get("version") != SNAPSHOT_VERSION:
            raise StateVersionError(what="ockam session", found=state.get("version"), expected=SNAPSHOT_VERSION)
        self.partial_at_ns, self.now_ns = state["partial_at_ns"], state["now_ns"]
        self.here = {Direction(side): end for side, end in state["here"].items()}
        self.taken = {Direction(side): end for side, end in state["taken"].items()}
        self.unasked_end = state["unasked_end"]
        self.missed, self.searched = state["missed"], {Direction(side) for side in state["searched"]}
        self.gap = None if state["gap"] is None else Place.from_json(state["gap"])
        self.counts = Counter(state["counts"])
        self.names = {Names(name) for name in state["names"]}
        self.requests = Requests.from_json(state["requests"])
        self.requesters = dict.fromkeys(state["requesters"])
        for address, name, partition, replaced, highest, confirmed in state["streams"]:
            known = Intervals.from_json(confirmed)
            self.streams[address] = _Stream(name, partition, replaced, highest, known)
        for target, client, name, partition, least, saved_at in state["keys"]:
            where = None if saved_at is None else Where.from_json(saved_at)
            self.keys[target, client, name, partition] = _Key(least, where)
        for requester, target, ids, last in state["saved"]:
            told = None if last is None else (last[0], bytes.fromhex(last[1]))
            self.saved[requester, target] = _Saved(Intervals.from_json(ids), told)
        for requester, target, number, pushed in state["unsaved"]:
            self.unsaved[requester, target, number] = bytes.fromhex(pushed)
        for name, partitions in state["pulled"]:
            self.pulled[name] = Intervals.from_json(partitions)
        for table in _PLAIN:
            getattr(self, table).update({tuple(key): value for *key, value in state[table]})


#: Tables that are carried as they are, with keys of several parts.
_PLAIN: Final = ("addresses", "whole", "clients", "only_clients", "refused", "undecoded")
#: What the requests of a protocol ask for.
_CREATE: Final = "create"
_INDEX: Final = "index"
_ASKS: Mapping[str, str] = {
    "stream_create": _CREATE,
    "stream_create_partitions": _CREATE,
    "stream_create_partitioned": _CREATE,
    "stream_push": RequestKind.PUSH.value,
    "stream_pull": RequestKind.PULL.value,
    "stream_index": _INDEX,
    "stream_index_partitioned": _INDEX,
}
_WHOSE: Mapping[str, Names] = {
    "stream_create_partitions": Names.SPECIFICATION,
    "stream_create_partitioned": Names.IMPLEMENTATION,
    "stream_index_partitioned": Names.IMPLEMENTATION,
}
_INITS: Final = (Kind.CREATE_RESPONSE, Kind.CREATE_PARTITIONED_RESPONSE)
#: Between a node and an address there.
_BEHIND: Final = "=>"
_SERVICES: Final = (Role.STREAM_SERVICE, Role.INDEX_SERVICE)

#: What is judged of a message; its kind says which direction it comes from.
JUDGES: Mapping[Kind, Callable[[Session, Any], None]] = MappingProxyType(
    {
        Kind.CREATE_REQUEST: Session._judge_create,
        Kind.CREATE_RESPONSE: Session._judge_init,
        Kind.PUSH_REQUEST: Session._judge_push,
        Kind.PUSH_RESPONSE: Session._judge_confirm,
        Kind.PULL_REQUEST: Session._judge_pull,
        Kind.PULL_RESPONSE: Session._judge_pulled,
        Kind.INDEX_GET: Session._judge_get,
        Kind.INDEX_SAVE: Session._judge_save,
        Kind.INDEX_RESPONSE: Session._judge_index,
        Kind.CREATE_PARTITIONED_REQUEST: Session._judge_create_partitioned,
        Kind.CREATE_PARTITIONED_RESPONSE: Session._judge_init_of_partition,
        Kind.ERROR: Session._judge_error,
    }
)


def _node_of(address: str | None) -> str:
    return (address or "").rpartition(_BEHIND)[0]


def address_text(address: Address) -> str:
    """An address as stream addresses are written: a local one without its type."""
    return address.name if address.type == LOCAL else address.text


def short(text: str | None) -> Any:
    """A text as it is remembered and compared."""
    if text is None or len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[:64]}… {hashlib.sha256(text.encode()).hexdigest()}"


def _remember(known: dict[K, V], key: K, value: V) -> None:
    """Put something in; of more than MOST_KNOWN the oldest is forgotten."""
    known[key] = value
    if len(known) > MOST_KNOWN:
        del known[next(iter(known))]


def _answers(request: Request, *, with_data: bool = True) -> Answers:
    is_create = request.kind in (RequestKind.CREATE, RequestKind.PARTITIONED)
    return Answers(
        requested_at_ns=request.where.place.arrived_at_ns,
        request_byte_start=request.where.byte_start,
        request_capture_id=request.where.place.capture_id,
        index=request.index,
        limit=request.limit,
        anonymous=request.name is None if is_create else None,
        data=request.data if with_data else None,
        data_bytes=request.data_bytes,
        unsure=request.was_unsure or request.state is RequestState.UNSURE,
    )


def _pull_of(requests: Sequence[Request], indexes: Sequence[int]) -> Request:
    """Of pulls with one id, the one that a response with these indexes answers: the closest that it fits."""
    asked = {(request.index or 0, request.limit or 0) for request in requests}
    if len(asked) == 1:
        return requests[0]

    def fits(request: Request) -> bool:
        index = request.index or 0
        return len(indexes) <= (request.limit or 0) and min(indexes, default=index) >= index

    fitting = list(filter(fits, requests))
    if not fitting:
        return requests[0]
    if len({(request.index, request.limit) for request in fitting}) > 1:
        # It may be that of another.
        for request in fitting:
            request.take(Input.GAP)
    return max(fitting, key=lambda request: request.index or 0)


def _key_of(message: IndexGet | IndexSave | IndexResponse) -> tuple[str, str, int | None]:
    return short(message.client_id), short(message.stream_name), message.partition


def _key_text(key: tuple[str, str, int | None] | None) -> str:
    assert key is not None
    client, name, partition = key
    return f"{client!r} on {name!r}" + ("" if partition is None else f", partition {partition}")
