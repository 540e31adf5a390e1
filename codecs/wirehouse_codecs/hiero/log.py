"""What the calls of a block node say, as rows of the log `silver.hiero`.

A row of kind `message` for each gRPC message (of a set above assembly.PART_BYTES one for each part, the last with its
place), `call` where a call begins and where it ends, `block` where a block that came in sets ends, `quarantine` for
bytes that are no message, `violation` for each broken rule. At the end of a window `skip` rows count the bytes of a
connection that frame its calls, from its begin on. `Conversation` reads a TCP connection, `EntryLog` a gRPC binary log;
`add_block_file` adds the row of a block file.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from wirehouse_codecs.errors import StateVersionError
from wirehouse_codecs.hiero import grpc, grpc_log
from wirehouse_codecs.hiero.assembly import Assembly, Cut, Part
from wirehouse_codecs.hiero.blocks import Block, BlockBuilder, BlockFile, is_old, split
from wirehouse_codecs.hiero.hashes import settle, signature_check
from wirehouse_codecs.hiero.items import ItemNumber, Items, cut, item_name
from wirehouse_codecs.hiero.messages import (
    KIND_OF,
    BlockEnd,
    BlockItems,
    Message,
    Unread,
    code_name,
    decode,
    shape_of,
)
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.pieces import Undecodable
from wirehouse_codecs.hiero.profiles import NEW_PACKAGE, OLD_PACKAGE, PROFILES, Profile, Service, method_of, profile_of
from wirehouse_codecs.hiero.rules import RULE, RULES
from wirehouse_codecs.hiero.session import (
    Call,
    Input,
    QueryInput,
    Said,
    SubscriptionInput,
    input_of,
    said_of,
)
from wirehouse_codecs.rules import Place
from wirehouse_codecs.stream_log import MESSAGE, QUARANTINE, Dialogue, Log, Start, Where, schema
from wirehouse_codecs.tcp import Closed, Connection, Data, Direction, Endpoint, Hole

CALL, BLOCK, SKIP = "call", "block", "skip"
#: What of a connection is in no message: frames of HTTP/2, header blocks, padding.
FRAMING: Final = "framing"
BLOCK_FILE: Final = "block_file"
OPENED, MISSED, CLOSED = "opened", "missed", "closed"
LOG_VERSION: Final = 1
#: Held of headers, footers and proofs of unfinished blocks, of all calls of a connection.
BODIES_BYTES: Final = 1 << 20
#: An item that is larger can't be held until it is whole.
MOST_ITEM_BYTES: Final = 6_500_000
#: Characters of a text that are kept, and entries of a call's metadata.
MOST_CHARACTERS: Final = 1024
MOST_METADATA: Final = 64
CORRELATION_ID: Final = "hiero-correlation-id"
#: A correlation id is a publisher's name and the number of its connection.
_ATTEMPT: Final = re.compile(r"(.+)-[A-Za-z]*[0-9]+")
_SET_TAGS: Final = {(Service.PUBLISH, Direction.CLIENT): 0x0A, (Service.SUBSCRIBE, Direction.SERVER): 0x12}
_ORDER: Final = {rule.name: number for number, rule in enumerate(RULES)}

UINT: Final = pa.decimal128(20, 0)
COUNTS_TYPE: Final = pa.map_(pa.string(), pa.int64())
MESSAGE_TYPE: Final = pa.struct(
    [
        ("kind", pa.string()),
        ("profile", pa.string()),
        ("part", pa.int32()),
        ("last", pa.bool_()),
        ("header", UINT),
        ("proof", UINT),
        ("proof_kind", pa.string()),
        ("item_counts", COUNTS_TYPE),
        ("items", pa.int64()),
        ("item_bytes", pa.int64()),
        ("code", pa.int32()),
        ("meaning", pa.string()),
        ("earliest_block_number", UINT),
        ("latest_block_number", UINT),
        ("proximate_block_number", UINT),
        ("start_block_number", UINT),
        ("end_block_number", UINT),
        ("allow_unverified", pa.bool_()),
        ("first_available_block", UINT),
        ("last_available_block", UINT),
        ("only_latest_state", pa.bool_()),
        ("next_expected_block", UINT),
        ("version", pa.binary()),
        ("block_already_exists", pa.bool_()),
        ("block_root_hash", pa.binary()),
        ("items_hash", pa.binary()),
        ("previous_hash", pa.binary()),
        ("block_root", pa.binary()),
        ("root_layout", pa.string()),
        ("message_bytes", pa.int64()),
        ("inflated_bytes", pa.int64()),
        ("encoding", pa.string()),
        ("unknown_fields", pa.int64()),
        ("ignored", pa.string()),
    ]
)
_COUNTED: Final = ("messages", "message_bytes", "headers", "proofs", "acknowledgements")
CALL_TYPE: Final = pa.struct(
    [
        ("event", pa.string()),
        ("profile", pa.string()),
        ("path_inferred", pa.bool_()),
        ("correlation_id", pa.string()),
        ("metadata", pa.map_(pa.string(), pa.string())),
        ("partial", pa.bool_()),
        ("opened_at_ns", pa.int64()),
        ("how", pa.string()),
        ("state", pa.string()),
        ("status", pa.int64()),
        ("status_message", pa.string()),
        ("reset_by", pa.string()),
        ("reset_code", pa.int64()),
        *((name, pa.int64()) for name in _COUNTED),
    ]
)
BLOCK_TYPE: Final = pa.struct(
    [
        ("ended_by", pa.string()),
        ("header", pa.bool_()),
        ("footer", pa.bool_()),
        ("proven", pa.bool_()),
        ("first_at_ns", pa.int64()),
        ("messages", pa.int64()),
        ("hapi_version", pa.string()),
        ("software_version", pa.string()),
        ("timestamp_seconds", pa.int64()),
        ("timestamp_nanos", pa.int32()),
        ("hash_algorithm", pa.int32()),
        ("item_counts", COUNTS_TYPE),
        ("items", pa.int64()),
        ("item_bytes", pa.int64()),
        ("unknown_fields", pa.int64()),
        ("previous_hash", pa.binary()),
        ("all_blocks_root", pa.binary()),
        ("start_state_root", pa.binary()),
        ("proof_kind", pa.string()),
        ("proof_block", UINT),
        ("signature_bytes", pa.int64()),
        ("signature_verified", pa.bool_()),
        ("signature_reason", pa.string()),
        ("roots", pa.list_(pa.struct([("layout", pa.string()), ("root", pa.binary())]))),
        ("roots_complete", pa.bool_()),
        ("root_layout", pa.string()),
        ("block_root", pa.binary()),
        ("root_reason", pa.string()),
        ("file_name", pa.string()),
        ("named_number", UINT),
        ("block_bytes", pa.int64()),
        ("damage", pa.string()),
    ]
)
SKIP_TYPE: Final = pa.struct([("name", pa.string()), ("bytes", pa.int64())])
#: Columns of the log, of which only the struct of the row's own kind is there.
SCHEMA: Final = schema(
    [
        ("call", pa.string()),
        ("service", pa.string()),
        ("path", pa.string()),
        ("node", pa.string()),
        ("client", pa.string()),
        ("publisher", pa.string()),
        ("block_number", UINT),
        ("message", MESSAGE_TYPE),
        ("call_event", CALL_TYPE),
        ("block", BLOCK_TYPE),
        ("skip", SKIP_TYPE),
    ]
)


def starter(options: HieroOptions) -> Start:
    """Dialogues of a source with these options."""

    def start(log: Log, connection: Connection, server: Endpoint, snapshot: str | None) -> Dialogue:
        return Conversation(log, connection, server, options, snapshot)

    return start


def publisher_of(metadata: Mapping[str, str], client: str | None) -> str | None:
    """Who publishes: the correlation id without the number of its connection, else the client's address."""
    told = metadata.get(CORRELATION_ID, "")[:MOST_CHARACTERS]
    if not told or told == "?":
        return client
    attempt = _ATTEMPT.fullmatch(told)
    return attempt[1] if attempt else told


# A block that comes


class _Block:
    """A block of a call."""

    __slots__ = ("builder", "first_ns", "judged", "messages", "told")

    def __init__(self, first_ns: int, *, judged: bool, snapshot: str | None = None) -> None:
        self.builder = BlockBuilder(snapshot=snapshot)
        self.first_ns = first_ns
        #: Its beginning was seen: what is missing there is the publisher's fault.
        self.judged = judged
        self.messages = 0
        #: How many of the builder's findings were told.
        self.told = 0

    def to_json(self) -> list[Any]:
        return [self.first_ns, self.judged, self.messages, self.told, self.builder.snapshot()]

    @classmethod
    def from_json(cls, state: Sequence[Any]) -> _Block:
        block = cls(state[0], judged=state[1], snapshot=state[4])
        block.messages, block.told = state[2:4]
        return block


@dataclass(slots=True)
class _Set:
    """What is known of the set of items that one message carries. All of it is as JSON has it."""

    counts: dict[int, int] = field(default_factory=dict)
    #: Of the part that comes.
    part_counts: dict[int, int] = field(default_factory=dict)
    part_bytes: int = 0
    header: int | None = None
    proof: int | None = None
    headers: int = 0
    unknown_fields: int = 0
    broken: list[list[str]] = field(default_factory=list)
    byte_start: int = 0
    inflated_bytes: int = 0


_SET: Final = tuple(_Set.__slots__)


class _Rpc:
    """One call: what it is, how its session stands, and the block that comes on it."""

    def __init__(self, number: int, place: Place, *, late: bool) -> None:
        self.number = number
        self.path: str | None = None
        self.path_inferred = False
        self.service: Service | None = None
        self.profile: Profile = PROFILES["B"]
        self.metadata: dict[str, str] = {}
        self.publisher: str | None = None
        self.late = late
        self.session: Call | None = None
        self.opened_ns = place.arrived_at_ns
        #: Of what both sides said last: parts of a message stand there.
        self.place = place
        self.block: _Block | None = None
        self.sets: dict[Direction, _Set] = {}
        self.status: int | None = None
        self.status_message: str | None = None
        self.reset_by: str | None = None
        self.reset_code: int | None = None
        self.counts = Counter[str]()
        #: Its end was told.
        self.ended = False
        #: When messages of it were missed last.
        self.missed_ns: int | None = None
        #: It is known which API is spoken.
        self.sure = False

    @property
    def partial(self) -> bool:
        return self.late if self.session is None else self.session.partial

    def begin(self, service: Service, options: HieroOptions) -> None:
        """It is known what the call does."""
        self.service = service
        if service in (Service.PUBLISH, Service.SUBSCRIBE, Service.STATUS):
            self.session = Call(service, options, started_late=self.late)


#: What of a call carried state holds as it is.
_PLAIN: Final = (
    *("number", "path", "path_inferred", "metadata", "publisher", "late", "opened_ns"),
    *("status", "status_message", "reset_by", "reset_code", "ended", "missed_ns", "sure"),
)


class Calls:
    """The calls of one connection, or of one gRPC log, as rows. It takes the events of grpc.py in their order."""

    def __init__(
        self, log: Log, options: HieroOptions, node: str | None, port: int | None, client: str | None, *, late: bool
    ) -> None:
        self._log, self._options = log, options
        self._node, self._port, self._client, self._late = node, port, client, late
        self._rpcs: dict[int, _Rpc] = {}
        self._assembly = Assembly(min(options.max_message_bytes, MOST_ITEM_BYTES))

    def take(self, events: Iterable[grpc.Event]) -> None:
        """What a reader tells."""
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
                case Undecodable():
                    self._undecodable(event)

    # Calls

    def _open(self, event: grpc.Opened) -> None:
        metadata = dict(event.metadata[:MOST_METADATA])
        # Without any header fields the call began before the capture, or they are lost.
        rpc = _Rpc(event.call, event.place, late=not metadata)
        self._rpcs[event.call] = rpc
        rpc.path, rpc.path_inferred = None if event.path is None else event.path[:MOST_CHARACTERS], event.path_inferred
        rpc.metadata = {name[:MOST_CHARACTERS]: value[:MOST_CHARACTERS] for name, value in metadata.items()}
        rpc.publisher = publisher_of(metadata, self._client)
        method = None if rpc.path is None else method_of(rpc.path)
        if method is not None:
            rpc.profile, rpc.sure = profile_of(method.package, self._options.forced), True
            rpc.begin(method.service, self._options)
        elif rpc.path is None:
            rpc.profile = profile_of(None, self._options.forced)
            if self._port in self._options.publish_ports:
                rpc.begin(Service.PUBLISH, self._options)
            elif self._port in self._options.subscribe_ports:
                rpc.begin(Service.SUBSCRIBE, self._options)
        where = Where(event.direction, event.byte_start, event.byte_end)
        self._call_row(rpc, event.place, where, {"event": OPENED, "metadata": list(rpc.metadata.items())})

    def _call_row(self, rpc: _Rpc, place: Place, where: Where | None, told: dict[str, Any]) -> None:
        known = {
            "profile": rpc.profile.name,
            "path_inferred": rpc.path_inferred,
            "correlation_id": rpc.metadata.get(CORRELATION_ID),
            "partial": rpc.partial,
            "opened_at_ns": rpc.opened_ns,
        }
        self._log.add(CALL, place, where, **self._about(rpc), call_event=known | told)

    def _about(self, rpc: _Rpc) -> dict[str, Any]:
        return {
            "call": f"{(self._log.connection_id or b'').hex()}/{rpc.number}",
            "service": None if rpc.service is None else rpc.service.value,
            "path": rpc.path,
            "node": self._node or rpc.metadata.get(":authority"),
            "client": self._client,
            "publisher": rpc.publisher if rpc.service in (None, Service.PUBLISH) else None,
        }

    def _infer(self, rpc: _Rpc, event: grpc.MessagePart) -> None:
        """What a call does whose path can't be read, by its first message that tells."""
        shape = shape_of(event.data, event.direction) if event.last else shape_of(b"", event.direction)
        service = shape.service
        if not event.last and event.data:
            # A large message is one of items.
            service = next(
                (known for (known, side), tag in _SET_TAGS.items() if side is event.direction and event.data[0] == tag),
                None,
            )
        if shape.new is not None and rpc.service in (None, service):
            rpc.profile = profile_of(NEW_PACKAGE if shape.new else OLD_PACKAGE, self._options.forced)
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
            self._end_call(rpc, event.place, "trailers")

    def _reset(self, event: grpc.Reset) -> None:
        rpc = self._rpcs.get(event.call)
        if rpc is not None and not rpc.ended:
            rpc.reset_by, rpc.reset_code = event.direction.value, event.code
        said = Input.CANCEL if event.direction is Direction.CLIENT else Input.RESET
        self._signal(event.call, said, event.place, event)
        if rpc is not None:
            self._end_call(rpc, event.place, "reset")

    def _signal(
        self, number: int, said: Input, place: Place, event: grpc.HalfClosed | grpc.Trailers | grpc.Reset | grpc.Closed
    ) -> None:
        """What ends a side of the call, or all of it."""
        rpc = self._rpcs.get(number)
        if rpc is None:
            return
        rpc.place = place
        if rpc.service is Service.PUBLISH:
            if said in (Input.CANCEL, Input.TRAILERS, Input.RESET) or not isinstance(event, grpc.HalfClosed):
                self._end_block(rpc, place, "call")
            assert rpc.session is not None
            _, found = rpc.session.receive(Said(said, place.arrived_at_ns))
            where = None
            if not isinstance(event, grpc.Closed):
                where = Where(event.direction, getattr(event, "byte_start", event.byte_end), event.byte_end)
            for one in found:
                self._find(one.rule.name, one.message, place, where, rpc)

    def _close(self, event: grpc.Closed) -> None:
        if event.how is grpc.How.CLOSED:
            self._signal(event.call, Input.DISCONNECT, event.place, event)
        rpc = self._rpcs.pop(event.call, None)
        if rpc is None:
            return
        for direction in Direction:
            self._drop(rpc, direction, event.place, "the call ends within it")
        self._end_block(rpc, event.place, "call")
        self._end_call(rpc, event.place, event.how.value)

    def _end_call(self, rpc: _Rpc, place: Place, how: str) -> None:
        """Tell how the call ended, once: by the first thing that ends it."""
        if rpc.ended:
            return
        rpc.ended = True
        if rpc.session is not None and rpc.service is not Service.PUBLISH:
            end = SubscriptionInput.END if rpc.service is Service.SUBSCRIBE else QueryInput.END
            rpc.session.receive(Said(end, place.arrived_at_ns))
        told = {
            "event": CLOSED,
            "how": how,
            "state": None if rpc.session is None else rpc.session.state.value,
            "status": rpc.status,
            "status_message": rpc.status_message,
            "reset_by": rpc.reset_by,
            "reset_code": rpc.reset_code,
        } | {name: rpc.counts[name] for name in _COUNTED}
        self._call_row(rpc, place, None, told)

    # Bytes that are no message

    def _undecodable(self, event: Undecodable) -> None:
        where = Where(event.direction, event.byte_start, event.byte_end)
        finding = {"rule": None, "severity": None, "message": event.reason}
        rpc = None if event.call is None else self._rpcs.get(event.call)
        about = {} if rpc is None else self._about(rpc)
        # Without a call they may hold header fields, and with them secrets.
        raw = event.data if event.call is not None else None
        self._log.add(QUARANTINE, event.place, where, finding=finding, raw=raw, **about)
        if rpc is not None:
            self._miss(rpc, event.place)

    def miss(self, place: Place) -> None:
        """Bytes of the connection are missing, which may have been of any call."""
        for rpc in self._rpcs.values():
            self._miss(rpc, place)

    def _miss(self, rpc: _Rpc, place: Place) -> None:
        """Messages of the call are missing: also its block isn't whole."""
        rpc.late = True
        if rpc.missed_ns != place.arrived_at_ns:
            rpc.missed_ns = place.arrived_at_ns
            self._call_row(rpc, place, None, {"event": MISSED, "partial": True})
        if rpc.session is not None:
            rpc.session.miss()
        if rpc.block is not None:
            rpc.block.judged = False

    def _drop(self, rpc: _Rpc, direction: Direction, place: Place, reason: str, data: bytes = b"") -> None:
        """A message won't be whole."""
        key = (rpc.number, direction)
        held = self._assembly.drop(key)
        carried = rpc.sets.pop(direction, None)
        if held is None and not data:
            return
        start = None if carried is None else carried.byte_start
        raw = (b"" if held is None else held.whole or held.raw) + data
        where = None if start is None else Where(direction, start, start)
        finding = {"rule": None, "severity": None, "message": reason}
        self._log.add(QUARANTINE, place, where, finding=finding, raw=raw, **self._about(rpc))

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
        tag = None
        if rpc.service is not None and not rpc.profile.one_item:
            tag = _SET_TAGS.get((rpc.service, direction))
        if event.first:
            rpc.sets.pop(direction, None)
        if not event.last:
            carried = rpc.sets.setdefault(direction, _Set(byte_start=event.byte_start))
            carried.inflated_bytes += len(event.data)
        for told in self._assembly.receive((event.call, direction), event.data, event.last, tag):
            self._assembled(event, told, where)
        if event.last:
            rpc.sets.pop(direction, None)
            rpc.place = place

    def _assembled(self, event: grpc.MessagePart, told: Part | Cut, where: Where) -> None:
        # To make room, parts of other calls may be given.
        rpc = self._rpcs.get(told.key[0])
        if rpc is None:
            return
        if isinstance(told, Cut):
            self._add_items(rpc, told.key[1], told.items, event.place)
        elif told.whole is not None:
            self._whole(rpc, event, told.whole, where)
        elif told.last:
            self._last_part(rpc, event, told, where)
        else:
            self._early_part(rpc, told)

    def _fault(self, rpc: _Rpc, event: grpc.MessagePart, where: Where) -> None:
        held = self._assembly.drop((event.call, event.direction))
        rpc.sets.pop(event.direction, None)
        raw = (b"" if held is None else held.raw) + event.data
        finding = {"rule": None, "severity": None, "message": f"a message isn't whole: {event.fault}"}
        self._log.add(QUARANTINE, event.place, where, finding=finding, raw=raw, **self._about(rpc))
        self._miss(rpc, event.place)

    def _whole(self, rpc: _Rpc, event: grpc.MessagePart, data: bytes, where: Where) -> None:
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
            finding = {"rule": RULE[rule].id, "severity": None, "message": reason}
            self._log.add(QUARANTINE, place, where, finding=finding, raw=data, **self._about(rpc))
            self._find(rule, reason, place, where, rpc)
            self._miss(rpc, place)
            return
        if isinstance(message, BlockItems):
            carried = rpc.sets.setdefault(direction, _Set(byte_start=event.byte_start))
            for items in cut(message.raw):
                self._add_items(rpc, direction, items, place)
            self._tell_set(rpc, event, where, carried, message.raw, content)
            return
        content |= _content(message, rpc.profile)
        said = None if rpc.service is None else input_of(message, rpc.service, rpc.profile)
        ignored = None
        if isinstance(message, BlockEnd):
            broken += self._end_block(rpc, place, "block_end")
        if said is not None and rpc.session is not None:
            ignored, found = rpc.session.receive(said_of(said, message, place.arrived_at_ns))
            broken += [(one.rule.name, one.message) for one in found]
            rpc.counts["acknowledgements"] += said is Input.ACKNOWLEDGEMENT
        number = getattr(message, "block_number", None)
        raw = data if isinstance(message, Unread) else None
        self._row(rpc, event, where, content | {"kind": KIND_OF[type(message)], "ignored": ignored}, raw, number)
        self._find_first(broken, place, where, rpc, number)

    def _row(
        self,
        rpc: _Rpc,
        event: grpc.MessagePart,
        where: Where,
        content: dict[str, Any],
        raw: bytes | None,
        number: int | None,
    ) -> None:
        """The row of a message, or of the last part of one."""
        rpc.counts["messages"] += 1
        rpc.counts["message_bytes"] += event.length
        told = {"profile": rpc.profile.name, "part": 0, "last": True} | content
        told |= {"message_bytes": event.length, "encoding": event.encoding}
        about = self._about(rpc)
        self._log.add(MESSAGE, event.place, where, **about, block_number=number, message=told, raw=raw)

    def _early_part(self, rpc: _Rpc, part: Part) -> None:
        """A part of a message that goes on: it stands where the message before it ended."""
        direction = part.key[1]
        carried = rpc.sets.setdefault(direction, _Set())
        told = {"kind": "block_items" if part.is_set else "unread", "profile": rpc.profile.name}
        told |= self._part_content(rpc, carried, part.number, last=False)
        where = Where(direction, carried.byte_start, carried.byte_start)
        number = _number(rpc)
        self._log.add(MESSAGE, rpc.place, where, **self._about(rpc), block_number=number, message=told, raw=part.raw)

    def _last_part(self, rpc: _Rpc, event: grpc.MessagePart, part: Part, where: Where) -> None:
        carried = rpc.sets.setdefault(event.direction, _Set(byte_start=event.byte_start))
        content = {"part": part.number, "inflated_bytes": carried.inflated_bytes + len(event.data)}
        if part.is_set:
            if part.reason:
                carried.broken.append(["malformed_message", part.reason])
            self._tell_set(rpc, event, where, carried, part.raw, content)
            return
        self._row(rpc, event, where, content | {"kind": "unread"}, part.raw, None)

    def _part_content(self, rpc: _Rpc, carried: _Set, number: int, *, last: bool) -> dict[str, Any]:
        old = rpc.block is not None and is_old(rpc.block.builder.header)
        counts = {item_name(kind, old=old): count for kind, count in sorted(carried.part_counts.items())}
        told = {"part": number, "last": last, "item_counts": sorted(counts.items())}
        told |= {"items": sum(carried.part_counts.values()), "item_bytes": carried.part_bytes}
        carried.part_counts, carried.part_bytes = {}, 0
        return told

    def _tell_set(
        self, rpc: _Rpc, event: grpc.MessagePart, where: Where, carried: _Set, raw: bytes, content: dict[str, Any]
    ) -> None:
        """The row of a set of items, and what it means to its call."""
        place, block = event.place, rpc.block
        content = {"kind": "block_items"} | content
        content |= self._part_content(rpc, carried, content.get("part", 0), last=True)
        content |= {"header": carried.header, "proof": carried.proof}
        content["unknown_fields"] = (content.get("unknown_fields") or 0) + carried.unknown_fields or None
        number = _number(rpc)
        broken = [(rule, reason) for rule, reason in carried.broken]
        if block is not None:
            block.messages += 1
            content |= _hashes(block.builder, carried)
        ignored = None
        rpc.counts["headers"] += carried.headers
        rpc.counts["proofs"] += carried.proof is not None
        if rpc.session is not None:
            for said, said_number in _set_inputs(rpc, carried):
                reason, found = rpc.session.receive(Said(said, place.arrived_at_ns, said_number))
                ignored = ignored or reason
                broken += [(one.rule.name, one.message) for one in found]
        if carried.proof is not None and not rpc.profile.new:
            broken += self._end_block(rpc, place, "proof")
        self._row(rpc, event, where, content | {"ignored": ignored}, raw, number)
        self._find_first(broken, place, where, rpc, number)
        rpc.sets.pop(event.direction, None)

    def _add_items(self, rpc: _Rpc, direction: Direction, items: Items, place: Place) -> None:
        """Items of a set, in chunks as they come."""
        carried = rpc.sets.setdefault(direction, _Set())
        for block_items in split(items) if len(items) else [items]:
            begins = bool(len(block_items)) and int(block_items.numbers[0]) == ItemNumber.BLOCK_HEADER
            if begins and carried.counts:
                carried.broken.append(["structure", "a set holds items of two blocks"])
            if begins or rpc.block is None:
                if rpc.block is not None:
                    carried.broken += map(list, self._end_block(rpc, rpc.place, "header"))
                rpc.block = _Block(place.arrived_at_ns, judged=begins or not rpc.partial)
            self._count(carried, block_items, begins)
            block = rpc.block
            block.builder.add(block_items)
            if begins and carried.header is None:
                header = block.builder.header
                carried.header = None if header is None else header.number
            if ItemNumber.BLOCK_PROOF in block_items.counts and carried.proof is None:
                proof = block.builder.proof
                carried.proof = None if proof is None else proof.block
            if block.judged:
                fresh = block.builder.broken[block.told :]
                carried.broken += [[one.rule.name, one.reason] for one in fresh]
            block.told = len(block.builder.broken)
            if begins or carried.proof is not None:
                self._bound_bodies()

    def _count(self, carried: _Set, items: Items, begins: bool) -> None:
        for kind, count in items.counts.items():
            for counts in (carried.counts, carried.part_counts):
                key = kind if kind in counts or len(counts) < MOST_METADATA else -1
                counts[key] = counts.get(key, 0) + count
        carried.part_bytes += int((items.ends - items.starts).sum(dtype="int64"))
        carried.headers += begins
        carried.unknown_fields += items.unknown_fields

    def _bound_bodies(self) -> None:
        """Let go of the block that holds most, if all hold too much."""
        while True:
            held = [(rpc.block.builder.held_bytes, rpc) for rpc in self._rpcs.values() if rpc.block is not None]
            if sum(size for size, _ in held) <= BODIES_BYTES:
                return
            largest = max(held, key=lambda entry: (entry[0], entry[1].number))[1]
            largest.block = _Block(largest.opened_ns, judged=False)

    # Blocks

    def _end_block(self, rpc: _Rpc, place: Place, ended_by: str) -> list[tuple[str, str]]:
        """The block is over: its row, and what it breaks as a whole."""
        block, rpc.block = rpc.block, None
        if block is None:
            return []
        built = block.builder.finish()
        if not built.counts:
            return []
        told = block_content(built) | {
            "ended_by": ended_by,
            "first_at_ns": block.first_ns,
            "messages": block.messages,
        }
        if not block.judged:
            told |= {"roots_complete": False}
        sender = Direction.SERVER if rpc.service is Service.SUBSCRIBE else Direction.CLIENT
        self._log.add(BLOCK, place, direction=sender.value, **self._about(rpc), block_number=built.number, block=told)
        if not block.judged:
            return []
        return [(one.rule.name, one.reason) for one in built.broken[block.told :]]

    # Findings

    def _find_first(
        self, broken: Sequence[tuple[str, str]], place: Place, where: Where, rpc: _Rpc, number: int | None
    ) -> None:
        """Of the rules that a message breaks the first counts."""
        if broken:
            rule, message = min(broken, key=lambda one: _ORDER[one[0]])
            self._find(rule, message, place, where, rpc, number)

    def _find(
        self, rule: str, message: str, place: Place, where: Where | None, rpc: _Rpc, number: int | None = None
    ) -> None:
        self._log.find(RULE[rule], message, place, where, **self._about(rpc), block_number=number)

    # Carried state

    def to_json(self) -> dict[str, Any]:
        """The state, as JSON has it."""
        return {"assembly": self._assembly.to_json(), "rpcs": [_rpc_to_json(rpc) for rpc in self._rpcs.values()]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `to_json` gave."""
        limit = min(self._options.max_message_bytes, MOST_ITEM_BYTES)
        self._assembly = Assembly(limit, state["assembly"])
        for told in state["rpcs"]:
            rpc = _rpc_from_json(told, self._options)
            self._rpcs[rpc.number] = rpc


def _number(rpc: _Rpc) -> int | None:
    header = None if rpc.block is None else rpc.block.builder.header
    return None if header is None else header.number


def _set_inputs(rpc: _Rpc, carried: _Set) -> Iterator[tuple[Input | SubscriptionInput, int | None]]:
    """What a set says to its call: its header, its proof, or that items go on."""
    if rpc.service is not Service.PUBLISH:
        yield SubscriptionInput.ITEMS, None
        return
    proven = ItemNumber.BLOCK_PROOF in carried.counts
    if carried.headers:
        yield Input.HEADER, carried.header
    if proven:
        yield Input.PROOF, carried.proof
    if not carried.headers and not proven:
        yield Input.ITEMS, None


def _hashes(builder: BlockBuilder, carried: _Set) -> dict[str, Any]:
    """What a set tells of the chain: hashes of its header, footer or proof, and the root once the block is proven."""
    if not carried.headers and carried.proof is None and ItemNumber.BLOCK_FOOTER not in carried.counts:
        return {}
    if carried.proof is None:
        header, footer = builder.header, builder.footer
        previous = footer.previous_block_root_hash if footer is not None else None
        return {"previous_hash": previous or (None if header is None else header.previous_block_hash)}
    built = builder.finish()
    root = settle(built.roots, None)
    kind = None if built.proof is None or built.proof.kind is None else built.proof.kind.value
    layout = None if root.layout is None else root.layout.value
    hashes = {"previous_hash": built.previous_hash, "block_root": root.root, "root_layout": layout}
    return hashes | {"proof_kind": kind}


def _content(message: Message, profile: Profile) -> dict[str, Any]:
    """The fields that `message` has, by the columns' names."""
    told = {name: getattr(message, name) for name in type(message).__dataclass_fields__ if name in _FIELDS}
    if "code" in told:
        told["meaning"] = code_name(message, profile)
    return told


_FIELDS: Final = frozenset(field.name for field in MESSAGE_TYPE)


def block_content(block: Block) -> dict[str, Any]:
    """What a block says of itself, in the names of BLOCK_TYPE."""
    header, footer, proof = block.header, block.footer, block.proof
    root = settle(block.roots, None)
    checked = signature_check(proof, root.root)
    told: dict[str, Any] = {
        "header": header is not None,
        "footer": footer is not None,
        "proven": proof is not None,
        "item_counts": list(block.item_counts.items()),
        "items": block.items_total,
        "item_bytes": block.item_bytes,
        "unknown_fields": block.unknown_fields or None,
        "previous_hash": block.previous_hash,
        "proof_kind": None if proof is None or proof.kind is None else proof.kind.value,
        "proof_block": None if proof is None else proof.block,
        "signature_bytes": None if proof is None else len(proof.block_signature),
        "signature_verified": checked.verified,
        "signature_reason": checked.reason,
        "roots": [{"layout": layout.value, "root": value} for layout, value in block.roots.by_layout.items()],
        "roots_complete": block.roots.complete,
        "root_layout": None if root.layout is None else root.layout.value,
        "block_root": root.root,
        "root_reason": root.unverified or block.roots.reason or None,
    }
    if header is not None:
        versions = (header.hapi_proto_version, header.software_version)
        hapi, software = (None if version is None else str(version)[:MOST_CHARACTERS] for version in versions)
        told |= {"hapi_version": hapi, "software_version": software, "hash_algorithm": header.hash_algorithm}
        if header.timestamp is not None:
            told |= {"timestamp_seconds": header.timestamp.seconds, "timestamp_nanos": header.timestamp.nanos}
    if footer is not None:
        told["all_blocks_root"] = footer.root_hash_of_all_block_hashes_tree
        told["start_state_root"] = footer.start_of_block_state_root_hash
    elif proof is not None:
        told["start_state_root"] = proof.start_of_block_state_root_hash
    return told


def add_block_file(log: Log, file: BlockFile, place: Place) -> None:
    """The rows of a block file: a message row with its block, what it breaks, and what of it can't be read."""
    block = file.block
    told = block_content(block) | {
        "ended_by": BLOCK_FILE,
        "file_name": file.name[-MOST_CHARACTERS:],
        "named_number": file.named_number,
        "block_bytes": file.block_bytes,
        "damage": file.damage,
    }
    names = ("item_counts", "items", "item_bytes", "previous_hash", "block_root", "root_layout", "proof_kind")
    message = {name: told[name] for name in names} | {"kind": BLOCK_FILE, "proof": told["proof_block"]}
    message |= {"header": block.number, "message_bytes": file.block_bytes, "part": 0, "last": True}
    number = block.number
    if block.counts:
        log.add(MESSAGE, place, block_number=number, message=message, block=told)
    if file.damage is not None:
        finding = {"rule": None, "severity": None, "message": file.damage}
        log.add(QUARANTINE, place, block_number=number, finding=finding)
    for broken in block.broken:
        log.find(broken.rule, broken.reason, place, block_number=number)


# Connections and logs


class Conversation:
    """One TCP connection. A `Dialogue`."""

    def __init__(
        self, log: Log, connection: Connection, server: Endpoint, options: HieroOptions, snapshot: str | None
    ) -> None:
        self._log, self._connection = log, connection
        late = connection.opened == "middle"
        ports = (*options.publish_ports, *options.subscribe_ports)
        # Where services are parted by port, they are still those of one node.
        node = server.address if server.port in ports else f"{server.address} {server.port}"
        client = None if log.client is None else log.client.address
        self._calls = Calls(log, options, node, server.port, client, late=late)
        limit = options.max_message_bytes
        if snapshot is None:
            self._reader = grpc.Reader(started_late=late, max_message_bytes=limit)
            self._told = dict.fromkeys(Direction, 0)
            return
        state = json.loads(snapshot)
        if state.get("version") != LOG_VERSION:
            raise StateVersionError(what="hiero log", found=state.get("version"), expected=LOG_VERSION)
        self._reader = grpc.Reader(max_message_bytes=limit, snapshot=state["reader"])
        self._told = self._framing()
        self._calls.restore(state["calls"])

    @property
    def dialect(self) -> tuple[str | None, str | None]:
        """Calls have profiles, not their connection."""
        return None, None

    def receive(self, pieces: Sequence[Data]) -> None:
        """Bytes of both directions, in arrival order."""
        self._calls.take(self._reader.receive(pieces))

    def hole(self, hole: Hole) -> None:
        """Bytes that never came."""
        self._calls.take(self._reader.hole(hole))
        self._calls.miss(hole.place)

    def close(self, closed: Closed) -> None:
        """The connection has ended."""
        self._calls.take(self._reader.finish(closed.place, closed=closed.how in ("fin", "reset")))

    def conclude(self) -> None:
        """A row for each side whose framing grew."""
        counted = self._framing()
        for side, size in counted.items():
            if size != self._told[side]:
                skip = {"name": FRAMING, "bytes": size}
                self._log.add(SKIP, self._connection.first, direction=side.value, skip=skip)
        self._told = counted

    def _framing(self) -> dict[Direction, int]:
        return {side: self._reader.framing_bytes(side) for side in Direction}

    def snapshot(self) -> str:
        """The state as JSON. It holds bytes of the wire, so it is sealed where it is stored."""
        state = {"version": LOG_VERSION, "reader": self._reader.snapshot(), "calls": self._calls.to_json()}
        return json.dumps(state, separators=(",", ":"))


class EntryLog:
    """The entries of one gRPC binary log, in their order. The log's `connection_id` names the file."""

    def __init__(self, log: Log, options: HieroOptions, snapshot: str | None = None) -> None:
        self._log = log
        self._rows = Calls(log, options, None, None, None, late=False)
        self._calls = grpc_log.Calls()
        if snapshot is not None:
            state = json.loads(snapshot)
            if state.get("version") != LOG_VERSION:
                raise StateVersionError(what="hiero entries", found=state.get("version"), expected=LOG_VERSION)
            self._calls = grpc_log.Calls(state["entries"])
            self._rows.restore(state["calls"])

    def receive(self, framed: grpc_log.Framed, entry: grpc_log.Entry | str, place: Place) -> None:
        """The next bytes that the file is cut into: an entry, or why they are none."""
        if isinstance(entry, str):
            where = Where(Direction.CLIENT, framed.byte_start, framed.byte_end)
            finding = {"rule": None, "severity": None, "message": entry}
            self._log.add(QUARANTINE, place, where, finding=finding, raw=framed.data)
            return
        self._rows.take(self._calls.receive(entry, place, framed.byte_start, framed.byte_end))

    def finish(self, place: Place) -> None:
        """The file has ended."""
        self._rows.take(self._calls.finish(place))

    def snapshot(self) -> str:
        """The state as JSON."""
        state = {"version": LOG_VERSION, "entries": self._calls.snapshot(), "calls": self._rows.to_json()}
        return json.dumps(state, separators=(",", ":"))


# Carried state


def _rpc_to_json(rpc: _Rpc) -> dict[str, Any]:
    return {name: getattr(rpc, name) for name in _PLAIN} | {
        "service": rpc.service,
        "profile": rpc.profile.name,
        "session": None if rpc.session is None else rpc.session.snapshot(),
        "place": rpc.place.to_json(),
        "block": None if rpc.block is None else rpc.block.to_json(),
        "sets": {side: {name: _pairs(getattr(held, name)) for name in _SET} for side, held in rpc.sets.items()},
        "counts": rpc.counts,
    }


def _rpc_from_json(state: Mapping[str, Any], options: HieroOptions) -> _Rpc:
    rpc = _Rpc(state["number"], Place.from_json(state["place"]), late=state["late"])
    for name in _PLAIN:
        setattr(rpc, name, state[name])
    rpc.service = None if state["service"] is None else Service(state["service"])
    rpc.profile = PROFILES[state["profile"]]
    if state["session"] is not None:
        assert rpc.service is not None
        rpc.session = Call(rpc.service, options, snapshot=state["session"])
    rpc.block = None if state["block"] is None else _Block.from_json(state["block"])
    for side, held in state["sets"].items():
        held |= {name: dict(held[name]) for name in ("counts", "part_counts")}
        rpc.sets[Direction(side)] = _Set(**held)
    rpc.counts.update(state["counts"])
    return rpc


def _pairs(value: Any) -> Any:
    """Keys of JSON are text: tables of numbers are written as pairs."""
    return list(value.items()) if isinstance(value, dict) else value
