"""Calls of a block node as rows of the log, from the events of a gRPC reader (grpc/events.py).

`Calls` follows each call from where it opens to where it ends: which method it is, what its messages mean to its
session, and what is missing of it. call_blocks.py has the blocks that come in sets, call_rows.py how rows are made.

A row of kind `message` for each gRPC message (of a set above `reassembly.PART_BYTES` one for each part, the last with
its place), `call` where a call begins and where it ends, `block` where a block that came in sets ends, `quarantine` for
bytes that are no message, `violation` for each broken rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.hiero.log.call_blocks import CallBlocks, hashes_of, number_of
from wirehouse_codecs.hiero.log.call_rows import CORRELATION_ID, CallRows
from wirehouse_codecs.hiero.log.pauses import DELIVERED_NS, Pauses
from wirehouse_codecs.hiero.log.rows import (
    CLOSED,
    COUNTED,
    MISSED,
    MOST_CHARACTERS,
    OPENED,
    message_content,
)
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.profiles import NEW_PACKAGE, OLD_PACKAGE, Service, method_of, profile_of
from wirehouse_codecs.hiero.rules import RULE
from wirehouse_codecs.hiero.session.call_state import ComingSet, GoesAway, Rpc, RpcState
from wirehouse_codecs.hiero.session.publishing import ANSWERS, Input
from wirehouse_codecs.hiero.session.querying import QueryInput
from wirehouse_codecs.hiero.session.session import call_input, input_of
from wirehouse_codecs.hiero.session.steps import CallInput, Found
from wirehouse_codecs.hiero.session.subscribing import Subscription, SubscriptionInput
from wirehouse_codecs.hiero.wire.grpc import events as grpc
from wirehouse_codecs.hiero.wire.http2 import events as http2
from wirehouse_codecs.hiero.wire.items.cutting import Items, cut
from wirehouse_codecs.hiero.wire.items.kinds import ItemNumber
from wirehouse_codecs.hiero.wire.messages import (
    KIND_OF,
    BlockEnd,
    BlockItems,
    Message,
    Unread,
    code_name,
    decode,
    shape_of,
)
from wirehouse_codecs.hiero.wire.reassembly import Assembly, Cut, Key, Part, PartialMessage
from wirehouse_codecs.hiero.wire.spans import Undecodable
from wirehouse_codecs.logs.rows import Log, Where
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.reassembly import Connection

#: An item that is larger isn't held until it is whole: only its number and size are reported.
MOST_ITEM_BYTES: Final = 6_500_000
MOST_METADATA: Final = 64
#: A correlation id of consensus nodes is that of the node and the number of its stream. All others are names.
_ATTEMPT: Final = re.compile(r"(N[0-9]+)-STR[0-9]+")
_SET_TAGS: Final = {(Service.PUBLISH, Direction.CLIENT): 0x0A, (Service.SUBSCRIBE, Direction.SERVER): 0x12}
#: Why a message that began before its call's request isn't read.
_MISREAD: Final = "the request shows that the message is of another kind of call"
_PACKAGES: Final = (OLD_PACKAGE, NEW_PACKAGE)
#: What ends a side of a call, or all of it.
_Ending = grpc.HalfClosed | grpc.Trailers | grpc.Reset | grpc.Closed
_SUBSCRIPTION_ENDS: Final = {
    **dict.fromkeys((Input.CANCEL, Input.DISCONNECT), SubscriptionInput.SUBSCRIBER_ENDS),
    **dict.fromkeys((Input.TRAILERS, Input.RESET, Input.NODE_DISCONNECT), SubscriptionInput.NODE_ENDS),
}


def publisher_of(metadata: Mapping[str, str], client: str | None) -> str | None:
    """Who publishes: the correlation id without the number of its stream, else the client's address."""
    text = metadata.get(CORRELATION_ID, "")[:MOST_CHARACTERS]
    if not text or text == "?":
        return client
    attempt = _ATTEMPT.fullmatch(text)
    return attempt[1] if attempt else text


class CallsState(NamedTuple):
    """What the calls of a connection carry from window to window."""

    assembly: dict[Key, PartialMessage]
    rpcs: list[RpcState]
    lost: set[Direction]
    goes_away: dict[Direction, GoesAway]
    pauses: Pauses


class Calls:
    """The calls of one connection, or of one gRPC log, as rows. It takes events in their order."""

    def __init__(
        self,
        log: Log,
        options: HieroOptions,
        node: str | None,
        port: int | None,
        client: str | None,
        connection: Connection | None = None,
    ) -> None:
        self._options, self._connection, self._port = options, connection, port
        self._rows = CallRows(log, node, client, connection)
        #: Sides whose frames aren't known: any messages of theirs may be missing, or come too late.
        late = connection is not None and connection.began_before_capture
        self._lost = set(Direction) if late else set()
        #: Sides that sent GOAWAY, in the order of the first ones.
        self._goes_away: dict[Direction, GoesAway] = {}
        self._rpcs: dict[int, Rpc] = {}
        self.pauses = Pauses()
        self._blocks = CallBlocks(self._rows, self._rpcs)
        #: Where nobody knows which side sent first what came.
        self._doubted: Place | None = None
        self._assembly = Assembly(options.max_message_bytes, MOST_ITEM_BYTES)

    def take(self, events: Iterable[grpc.Event]) -> None:
        """What a reader reports."""
        for event in events:
            match event:
                case grpc.MessagePart():
                    self._part(event)
                case grpc.Opened():
                    self._open(event)
                case grpc.HalfClosed():
                    if event.direction is Direction.CLIENT:
                        self._signal(event.call, Input.HALF_CLOSE, event.place, event)
                case grpc.Trailers():
                    self._end_status(event)
                case grpc.Reset():
                    self._reset(event)
                case grpc.Closed():
                    self._close(event)
                case http2.GoAway():
                    self._go_away(event)
                case Undecodable():
                    self._undecodable(event)
                case http2.Lost() | http2.Placed() | grpc.Missed():
                    self._note_missing(event)

    # Calls

    def _open(self, event: grpc.Opened) -> None:
        metadata = dict(event.metadata[:MOST_METADATA])
        # Without any header fields the call began before the capture, or they are lost. If the node was heard before
        # the request, messages of it may be missing.
        before = self._rpcs.get(event.call)
        late = not metadata or before is not None or bool(self._rows.uncaptured) or event.place == self._doubted
        rpc = Rpc(event.call, event.place, late, event.place.arrived_at_ns)
        self._rpcs[event.call] = rpc
        rpc.path, rpc.path_inferred = None if event.path is None else event.path[:MOST_CHARACTERS], event.path_inferred
        rpc.metadata = {name[:MOST_CHARACTERS]: value[:MOST_CHARACTERS] for name, value in metadata.items()}
        rpc.publisher = publisher_of(metadata, self._rows.client)
        method = None if rpc.path is None else method_of(rpc.path)
        if method is not None:
            rpc.profile, rpc.sure = profile_of(method.package, self._options.forced), True
            if not event.path_inferred:
                # Else a message must confirm it: the call may be of another service.
                rpc.begin(method.service, self._options)
        elif rpc.path is None:
            rpc.profile = profile_of(None, self._options.forced)
            if self._port in self._options.publish_ports:
                rpc.begin(Service.PUBLISH, self._options)
            elif self._port in self._options.subscribe_ports:
                rpc.begin(Service.SUBSCRIBE, self._options)
        if before is not None:
            self._go_on(rpc, before, event.place)
        where = Where(event.direction, event.byte_start, event.byte_end)
        fields = {"event": OPENED, "metadata": list(rpc.metadata.items()), "late": self._rows.is_late(where)}
        self._rows.call(rpc, event.place, where, fields)

    def _go_on(self, rpc: Rpc, before: Rpc, place: Place) -> None:
        """The request comes after messages of the node: these and its block go on, unless it was misread."""
        rpc.counts, rpc.missed_ns = before.counts, before.missed_ns
        if before.sets or before.counts["messages"]:
            # It isn't known how much it had sent before.
            rpc.missed_ns = place.arrived_at_ns
            if rpc.session is not None:
                rpc.session.miss()
        if before.service in (None, rpc.service):
            rpc.sets, rpc.block = before.sets, before.block
            return
        for direction in Direction:
            self._drop(before, direction, place, _MISREAD)
        self._blocks.end(before, place, "call")

    def _infer(self, rpc: Rpc, event: grpc.MessagePart) -> None:
        """The service of a call whose path can't be read, by its first message that shows it."""
        shape = shape_of(bytes(event.data), event.direction) if event.last else shape_of(b"", event.direction)
        service = shape.service
        if not event.last and event.data:
            # A large message is one of items.
            service = next(
                (known for (known, side), tag in _SET_TAGS.items() if side is event.direction and event.data[0] == tag),
                None,
            )
        if shape.new is not None and rpc.service in (None, service):
            package = NEW_PACKAGE if shape.new else OLD_PACKAGE
            rpc.profile = profile_of(None if self._options.forced else package, self._options.forced)
            rpc.sure = True
        if service is not None and rpc.service is None:
            rpc.path_inferred = True
            rpc.begin(service, self._options)

    def _end_status(self, event: grpc.Trailers) -> None:
        rpc = self._rpcs.get(event.call)
        if rpc is not None:
            rpc.status, rpc.status_message = event.status, event.message[:MOST_CHARACTERS] or None
        self._signal(event.call, Input.TRAILERS, event.place, event)
        if rpc is not None:
            self._end_call(rpc, event, "trailers")

    def _reset(self, event: grpc.Reset) -> None:
        rpc = self._rpcs.get(event.call)
        if rpc is not None and not rpc.ended:
            rpc.reset_by, rpc.reset_code = event.direction.value, event.code
        given = Input.CANCEL if event.direction is Direction.CLIENT else Input.RESET
        self._signal(event.call, given, event.place, event)
        if rpc is not None:
            self._end_call(rpc, event, "reset")

    def _signal(self, number: int, given: Input, place: Place, event: _Ending) -> None:
        """What ends a side of the call, or all of it."""
        rpc = self._rpcs.get(number)
        if rpc is None:
            return
        rpc.place = place
        if rpc.service is Service.SUBSCRIBE:
            self._end_subscription(rpc, given, place, event)
        elif rpc.service is Service.PUBLISH:
            if given in (Input.CANCEL, Input.TRAILERS, Input.RESET) or not isinstance(event, grpc.HalfClosed):
                self._blocks.end(rpc, place, "call")
            assert rpc.session is not None
            _, found = self._hear(rpc, CallInput(given, place.arrived_at_ns), _where_of(event))
            for one in found:
                self._rows.find(one.rule.name, one.message, place, _where_of(event), rpc, rpc.session.memory.header)

    def _end_subscription(self, rpc: Rpc, given: Input, place: Place, event: _Ending) -> None:
        ends = _SUBSCRIPTION_ENDS.get(given)
        # Who is refused before anything is delivered may not have reached a block node.
        refused = isinstance(event, grpc.Trailers) and event.status and not rpc.counts["headers"]
        if ends is not None and not refused:
            _, found = self._hear(rpc, CallInput(ends, place.arrived_at_ns))
            for one in found:
                self._rows.find(one.rule.name, one.message, place, _where_of(event), rpc)

    def _close(self, event: grpc.Closed) -> None:
        rpc = self._rpcs.get(event.call)
        if rpc is None:
            return
        if event.how is grpc.How.CLOSED and not rpc.ended:
            by = rpc.reset_by = self._closed_by(rpc, event)
            if by is not None:
                given = Input.DISCONNECT if by is Direction.CLIENT else Input.NODE_DISCONNECT
                self._signal(event.call, given, event.place, event)
        del self._rpcs[event.call]
        for direction in Direction:
            self._drop(rpc, direction, event.place, "the call ends within it")
        self._blocks.end(rpc, event.place, "call")
        self._end_call(rpc, event, event.how.value)

    def _go_away(self, event: http2.GoAway) -> None:
        last = (event.last_stream_id, event.code)
        first = self._goes_away.setdefault(event.direction, GoesAway(event.place.arrived_at_ns, *last))
        self._goes_away[event.direction] = GoesAway(first.began_ns, *last)

    def _closed_by(self, rpc: Rpc, event: grpc.Closed) -> Direction | None:
        """Who ended a call by closing its connection: who ended all calls by GOAWAY, or took this one no further."""
        in_flight_ns = self._options.in_flight_ns
        ended = (side for side, away in self._goes_away.items() if away.ends(rpc, side, in_flight_ns))
        return next(ended, event.by)

    def _end_call(self, rpc: Rpc, event: grpc.Trailers | grpc.Reset | grpc.Closed, how: str) -> None:
        """Report how the call ended, once: by the first event that ends it."""
        if rpc.ended:
            return
        rpc.ended, place = True, event.place
        if rpc.session is not None and rpc.service is not Service.PUBLISH:
            end = SubscriptionInput.END if rpc.service is Service.SUBSCRIBE else QueryInput.END
            rpc.session.receive(CallInput(end, place.arrived_at_ns))
        fields = {
            "event": CLOSED,
            "how": how,
            "state": None if rpc.session is None else rpc.session.state.value,
            "status": rpc.status,
            "status_message": rpc.status_message,
            "reset_by": rpc.reset_by,
            "reset_code": rpc.reset_code,
            "late": self._rows.is_late(_where_of(event)),
        } | {name: rpc.counts[name] for name in COUNTED}
        self._rows.call(rpc, place, None, fields)

    # Bytes that are no message

    def _undecodable(self, event: Undecodable) -> None:
        where = Where(event.direction, event.byte_start, event.byte_end)
        rpc = None if event.call is None else self._rpcs.get(event.call)
        # Without a call they may hold header fields, and with them secrets.
        raw = event.data if event.call is not None else None
        self._rows.quarantine(event.place, where, event.reason, raw, rpc)
        if rpc is not None:
            self._miss(rpc, event.place)

    def _note_missing(self, event: http2.Lost | http2.Placed | grpc.Missed) -> None:
        if isinstance(event, grpc.Missed):
            if event.call in self._rpcs:
                self._miss(self._rpcs[event.call], event.place)
            return
        if isinstance(event, http2.Lost):
            self._lost.add(event.direction)
        else:
            self._lost.discard(event.direction)
        self.miss(event.place)

    def doubt(self, place: Place) -> None:
        """Nobody knows which side sent first what comes at `place`."""
        self._doubted = place
        self.miss(place)

    def miss(self, place: Place) -> None:
        """Bytes of the connection are missing, which may have been of any call."""
        for rpc in self._rpcs.values():
            self._miss(rpc, place)

    def _miss(self, rpc: Rpc, place: Place) -> None:
        """Messages of the call are missing: also its block isn't whole."""
        rpc.late = True
        if rpc.missed_ns != place.arrived_at_ns:
            rpc.missed_ns = place.arrived_at_ns
            self._rows.call(rpc, place, None, {"event": MISSED, "partial": True})
        if rpc.session is not None:
            rpc.session.miss()
        if rpc.block is not None:
            rpc.block.judged = False

    def _drop(self, rpc: Rpc, direction: Direction, place: Place, reason: str, data: bytes = b"") -> None:
        """A message won't be whole."""
        key = (rpc.number, direction)
        held = self._assembly.drop(key)
        carried = rpc.sets.pop(direction, None)
        if held is None and not data:
            return
        start = None if carried is None else carried.byte_start
        raw = (b"" if held is None else held.whole or held.raw) + data
        where = None if start is None else Where(direction, start, start)
        self._rows.quarantine(place, where, reason, raw, rpc)

    # Messages

    def _part(self, event: grpc.MessagePart) -> None:
        rpc = self._rpcs.get(event.call)
        if rpc is None:
            return
        direction, place = event.direction, event.place
        where = Where(direction, event.byte_start, event.byte_end)
        if event.fault is not None:
            self._fault(rpc, event, where)
            return
        if rpc.path is None and not rpc.sure and event.first:
            self._infer(rpc, event)
        if direction is Direction.SERVER and rpc.session is not None and rpc.session.state is Subscription.CONNECTED:
            # Blocks before the request: the sides' messages aren't in order.
            self._miss(rpc, place)
        tag = None
        if rpc.service is not None and not rpc.profile.one_item:
            tag = _SET_TAGS.get((rpc.service, direction))
        if event.first:
            begun_ns = event.begun_ns or place.arrived_at_ns
            rpc.sets[direction] = ComingSet(byte_start=event.byte_start, begun_ns=begun_ns)
        elif direction not in rpc.sets:
            self._rows.quarantine(place, where, _MISREAD, bytes(event.data), rpc)
            return
        if not event.last:
            rpc.sets[direction].inflated_bytes += len(event.data)
        for assembled in self._assembly.receive((event.call, direction), event.data, event.last, tag):
            self._assembled(event, assembled, where)
        if event.last:
            rpc.sets.pop(direction, None)
            rpc.place = place

    def _assembled(self, event: grpc.MessagePart, assembled: Part | Cut, where: Where) -> None:
        # To make room, parts of other calls may be given.
        rpc = self._rpcs.get(assembled.key[0])
        if rpc is None:
            return
        if isinstance(assembled, Cut):
            self._add_items(rpc, assembled.key[1], assembled.items, rpc.sets[assembled.key[1]].begun_ns)
        elif assembled.whole is not None:
            self._whole(rpc, event, assembled.whole, where)
        elif assembled.last:
            self._last_part(rpc, event, assembled, where)
        else:
            self._early_part(rpc, assembled)

    def _fault(self, rpc: Rpc, event: grpc.MessagePart, where: Where) -> None:
        held = self._assembly.drop((event.call, event.direction))
        rpc.sets.pop(event.direction, None)
        raw = (b"" if held is None else held.raw) + bytes(event.data)
        self._rows.quarantine(event.place, where, f"a message isn't whole: {event.fault}", raw, rpc)
        self._miss(rpc, event.place)

    def _whole(self, rpc: Rpc, event: grpc.MessagePart, data: bytes, where: Where) -> None:
        """A message that isn't large."""
        direction, place = event.direction, event.place
        message: Message | None = Unread(data)
        broken: list[tuple[str, str]] = []
        content: dict[str, Any] = {"inflated_bytes": len(data)}
        if rpc.service is not None:
            decoded = decode(data, rpc.service, direction, rpc.profile)
            message = decoded.message
            content["unknown_fields"] = decoded.unknown_fields or None
            if decoded.rule is not None:
                broken.append((decoded.rule.name, decoded.reason))
        if message is None:
            rule, reason = broken[0]
            # After missing bytes a message may have been taken to begin where none does.
            is_framed = self._is_framed(rpc, direction)
            self._rows.quarantine(place, where, reason, data, rpc, RULE[rule].id if is_framed else None)
            if is_framed:
                self._rows.find(rule, reason, place, where, rpc)
            self._miss(rpc, place)
            return
        if isinstance(message, BlockItems):
            carried = rpc.sets[direction]
            for items in cut(message.raw):
                self._add_items(rpc, direction, items, place.arrived_at_ns)
            self._report_set(rpc, event, where, carried, message.raw, content)
            return
        content |= message_content(message, rpc.profile)
        given = None if rpc.service is None else input_of(message, rpc.service, rpc.profile)
        # A finding about an answer, or an end, names the offered block.
        ignored, number, about = None, getattr(message, "block_number", None), None
        if not (rpc.sure or self._options.forced) and _is_ambiguous(message):
            content["meaning"], ignored, given = None, "the version of the API isn't known", None
            self._miss(rpc, place)
        if isinstance(message, BlockEnd):
            broken += self._blocks.end(rpc, place, "block_end")
        if given is not None and rpc.session is not None:
            heard = call_input(given, message, place.arrived_at_ns, rpc.profile)
            ignored, found = self._hear(rpc, heard, where, event.begun_ns)
            broken += [(one.rule.name, one.message) for one in found]
            if given in ANSWERS:
                about = rpc.session.memory.refused
            elif given in (Input.END_STREAM, Input.SKIP):
                about = rpc.session.memory.header
            rpc.counts["acknowledgements"] += given is Input.ACKNOWLEDGEMENT
        raw = data if isinstance(message, Unread) else None
        self._rows.message(
            rpc, event, where, content | {"kind": KIND_OF[type(message)], "ignored": ignored}, raw, number
        )
        self._rows.find_first(broken, place, where, rpc, number if about is None else about)

    def _early_part(self, rpc: Rpc, part: Part) -> None:
        """A part of a message that goes on: it stands where the message before it ended."""
        direction = part.key[1]
        carried = rpc.sets[direction]
        fields = {"kind": "block_items" if part.is_set else "unread", "profile": rpc.profile.name}
        fields |= self._blocks.part_content(rpc, carried, part.number, last=False)
        where = Where(direction, carried.byte_start, carried.byte_start)
        number = number_of(rpc)
        self._rows.part(rpc, where, fields, part.raw, number)

    def _last_part(self, rpc: Rpc, event: grpc.MessagePart, part: Part, where: Where) -> None:
        carried = rpc.sets[event.direction]
        content = {"part": part.number, "inflated_bytes": carried.inflated_bytes + len(event.data)}
        if part.is_set:
            if part.reason:
                carried.broken.append(["malformed_message", part.reason])
            self._report_set(rpc, event, where, carried, part.raw, content)
            return
        self._rows.message(rpc, event, where, content | {"kind": "unread"}, part.raw, None)

    def _report_set(
        self,
        rpc: Rpc,
        event: grpc.MessagePart,
        where: Where,
        carried: ComingSet,
        raw: bytes | bytearray,
        content: dict[str, Any],
    ) -> None:
        """The row of a set of items, and what it means to its call."""
        place, block = event.place, rpc.block
        content = {"kind": "block_items"} | content
        content |= self._blocks.part_content(rpc, carried, content.get("part", 0), last=True)
        content |= {"header": carried.header, "proof": carried.proof}
        content["unknown_fields"] = (content.get("unknown_fields") or 0) + carried.unknown_fields or None
        number = number_of(rpc)
        broken = [(rule, reason) for rule, reason in carried.broken]
        if block is not None:
            block.messages += 1
            content |= hashes_of(block.builder, carried)
        ignored = None
        rpc.counts["headers"] += carried.headers
        rpc.counts["proofs"] += carried.proof is not None
        if rpc.session is not None:
            for given, number_given in _set_inputs(rpc, carried):
                heard = CallInput(given, place.arrived_at_ns, number_given)
                reason, found = self._hear(rpc, heard, where, carried.begun_ns)
                ignored = ignored or reason
                broken += [(one.rule.name, one.message) for one in found]
        if carried.proof is not None and not rpc.profile.block_end:
            broken += self._blocks.end(rpc, place, "proof")
        self._rows.message(rpc, event, where, content | {"ignored": ignored}, raw, number)
        self._rows.find_first(broken, place, where, rpc, number)
        rpc.sets.pop(event.direction, None)
        if any(rule == "malformed_message" for rule, _ in broken):
            # What couldn't be read is missing.
            self._miss(rpc, place)

    def _add_items(self, rpc: Rpc, direction: Direction, items: Items, at_ns: int) -> None:
        """Items of a set, in chunks as they come."""
        is_known = self._is_framed(rpc, direction) and not rpc.ended
        self._blocks.add_items(rpc, rpc.sets[direction], items, at_ns, is_known=is_known)

    # Sessions

    def _hear(
        self, rpc: Rpc, given: CallInput, where: Where | None = None, begun_ns: int | None = None
    ) -> tuple[str | None, tuple[Found, ...]]:
        """Pass an input to the call's session: why it is ignored, and what it breaks.

        `begun_ns` is when its first byte came; None if it came with the others.
        """
        assert rpc.session is not None
        if rpc.service is Service.PUBLISH and where is not None and self._connection is not None:
            received, late = self._rows.received(where), bool(self._rows.is_late(where))
            delivered_ns = 0 if late else (begun_ns or given.at_ns) - DELIVERED_NS
            written_ns = max(self.pauses.written_ns(where.byte_start), delivered_ns)
            given = given._replace(byte_end=where.byte_end, received=received, late=late, written_ns=written_ns)
        ignored, found = rpc.session.receive(given)
        missing = self._lost | self._rows.uncaptured
        if self._doubted is not None and given.at_ns == self._doubted.arrived_at_ns:
            # Each side's own messages are in order.
            rpc.session.miss()
        elif missing:
            rpc.session.miss(missing)
        elif not given.late:
            return ignored, found
        return ignored, tuple(one for one in found if one.alone is not None and one.alone not in missing)

    def _is_framed(self, rpc: Rpc, direction: Direction) -> bool:
        """Whether a side's messages on the call begin where they seem to: no bytes are missing since it began."""
        return bool(rpc.metadata) and rpc.missed_ns is None and direction not in self._lost

    # Carried state

    @property
    def state(self) -> CallsState:
        """What later calls continue from."""
        return CallsState(self._assembly.state, list(self._rpcs.values()), self._lost, self._goes_away, self.pauses)

    def resume(self, state: CallsState) -> None:
        """Continue from the state of an earlier window."""
        self._assembly = Assembly(self._options.max_message_bytes, MOST_ITEM_BYTES, state=state.assembly)
        self._rpcs.update((rpc.number, Rpc.resumed(rpc, self._options)) for rpc in state.rpcs)
        self._lost, self._goes_away, self.pauses = state.lost, state.goes_away, state.pauses


def _is_ambiguous(message: Message) -> bool:
    """Whether its code has another meaning in the other package."""
    return hasattr(message, "code") and len({code_name(message, profile_of(name)) for name in _PACKAGES}) > 1


def _where_of(event: _Ending) -> Where | None:
    if isinstance(event, grpc.Closed):
        return None
    return Where(event.direction, getattr(event, "byte_start", event.byte_end), event.byte_end)


def _set_inputs(rpc: Rpc, carried: ComingSet) -> Iterator[tuple[Input | SubscriptionInput, int | None]]:
    """The inputs of a set to its call: its header, its proof, or that items go on."""
    kinds = Input if rpc.service is Service.PUBLISH else SubscriptionInput
    proven = ItemNumber.BLOCK_PROOF in carried.counts
    if carried.headers:
        yield kinds.HEADER, carried.header
        if carried.headers > 1:
            yield kinds.HEADER, carried.last_header
    if proven:
        yield kinds.PROOF, carried.proof
    if not carried.headers and not proven:
        yield kinds.ITEMS, None
