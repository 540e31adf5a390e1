"""Messages of the block node's calls: typed values, encode and decode, for all versions of the API.

The method and the sender decide which message a call carries; the profile decides its layout. Codes are kept as
numbers, because a number has different meanings in different versions: see `Profile.end_codes`. Sets of block items
are kept as bytes; the package `items` cuts them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from wirehouse_codecs.core.errors import WirehouseError
from wirehouse_codecs.core.rules import Rule
from wirehouse_codecs.hiero.profiles import PUBLISHER_CODES, B, Profile, Service
from wirehouse_codecs.hiero.rules import RULE
from wirehouse_codecs.hiero.wire import protobuf
from wirehouse_codecs.hiero.wire.protobuf import Field, Form, Layout, Malformed, WireType
from wirehouse_codecs.tcp.endpoints import Direction


@dataclass(frozen=True, slots=True)
class BlockItems:
    """A set of block items, of a publisher or to a subscriber."""

    #: BlockItemSet: a run of items, each with tag 0A and its length.
    raw: bytes


@dataclass(frozen=True, slots=True)
class PublisherEndStream:
    """The publisher ends its stream. Zeros aren't written, so a range of 0 to 0 may be none."""

    code: int = 0
    earliest_block_number: int = 0
    #: The last acknowledged block, not the last produced one.
    latest_block_number: int = 0


@dataclass(frozen=True, slots=True)
class BlockEnd:
    """A block is complete (since B 0.20)."""

    block_number: int = 0


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """A block is verified and stored. None: the profile has no such field."""

    block_number: int = 0
    block_root_hash: bytes | None = None
    #: The answer to a duplicate in A.
    block_already_exists: bool | None = None


@dataclass(frozen=True, slots=True)
class ItemAcknowledgement:
    """Items arrived (optional, A)."""

    items_hash: bytes = b""


@dataclass(frozen=True, slots=True)
class EndOfStream:
    """The node ends a publisher's stream, or answers a header by a code."""

    code: int = 0
    #: The last verified block.
    block_number: int = 0
    proximate_block_number: int | None = None


@dataclass(frozen=True, slots=True)
class SkipBlock:
    """Another publisher is sending this block."""

    block_number: int = 0


@dataclass(frozen=True, slots=True)
class ResendBlock:
    """The node needs this block after all."""

    block_number: int = 0


@dataclass(frozen=True, slots=True)
class NodeBehind:
    """The offered header is above the next block; the number is the last verified one.

    Only nodes of the newest version send it, so under another profile it shows that the option is wrong.
    """

    block_number: int = 0


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """A subscriber asks for a range. No end: 0 in A, all ones in B."""

    start_block_number: int = 0
    end_block_number: int = 0
    #: None: the profile has no such field.
    allow_unverified: bool | None = None


@dataclass(frozen=True, slots=True)
class SubscribeStatus:
    """The end of a subscription."""

    code: int = 0


@dataclass(frozen=True, slots=True)
class ServerStatusRequest:
    """Which blocks does the node have?"""


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The blocks that a node has."""

    first_available_block: int = 0
    last_available_block: int = 0
    only_latest_state: bool = False
    #: In A: the versions' message as its bytes.
    version: bytes | None = None
    #: In B.
    next_expected_block: int | None = None


@dataclass(frozen=True, slots=True)
class Unset:
    """A message with no member that the profile knows."""


@dataclass(frozen=True, slots=True)
class Unread:
    """A message of a method whose messages are kept as they are."""

    raw: bytes


Message = (
    BlockItems
    | PublisherEndStream
    | BlockEnd
    | Acknowledgement
    | ItemAcknowledgement
    | EndOfStream
    | SkipBlock
    | ResendBlock
    | NodeBehind
    | SubscribeRequest
    | SubscribeStatus
    | ServerStatusRequest
    | ServerStatus
    | Unset
    | Unread
)

#: What messages are called in tables, and their class.
KINDS: Mapping[str, type[Message]] = MappingProxyType(
    {
        "block_items": BlockItems,
        "publisher_end_stream": PublisherEndStream,
        "block_end": BlockEnd,
        "acknowledgement": Acknowledgement,
        "item_acknowledgement": ItemAcknowledgement,
        "end_stream": EndOfStream,
        "skip_block": SkipBlock,
        "resend_block": ResendBlock,
        "node_behind": NodeBehind,
        "subscribe_request": SubscribeRequest,
        "subscribe_status": SubscribeStatus,
        "server_status_request": ServerStatusRequest,
        "server_status": ServerStatus,
        "unset": Unset,
        "unread": Unread,
    }
)
KIND_OF: Mapping[type[Message], str] = MappingProxyType({message: kind for kind, message in KINDS.items()})


# How each profile writes them


class _Member(NamedTuple):
    """A member of the oneof of a request or response: its number and how its value is read and written."""

    number: int
    kind: type[Message]
    #: None: kept as its bytes.
    layout: Layout | None


class _Root(NamedTuple):
    """What one side sends in one method: a message of one kind, or a oneof of members."""

    members: tuple[_Member, ...]
    #: Whether the members' message itself is what is sent.
    single: bool = False


def _numbers(kind: type[Message], *names: str, first: int = 1) -> Layout:
    return Layout(kind, tuple(Field(number, name, Form.U64) for number, name in enumerate(names, first)))


_PUBLISHER_END: Final = Layout(
    PublisherEndStream,
    (
        Field(1, "code", Form.I32),
        Field(2, "earliest_block_number", Form.U64),
        Field(3, "latest_block_number", Form.U64),
    ),
)
_BLOCK_END: Final = _numbers(BlockEnd, "block_number")
_ACKNOWLEDGEMENT_FIELDS: Final = (
    Field(1, "block_number", Form.U64),
    Field(2, "block_root_hash", Form.BYTES),
    Field(3, "block_already_exists", Form.BOOL),
)
_ITEM_ACKNOWLEDGEMENT: Final = Layout(ItemAcknowledgement, (Field(1, "items_hash", Form.BYTES),))
_END_FIELDS: Final = (
    Field(1, "code", Form.I32),
    Field(2, "block_number", Form.U64),
    Field(3, "proximate_block_number", Form.U64, present=True),
)
_SUBSCRIBE_FIELDS: Final = (
    Field(1, "start_block_number", Form.U64),
    Field(2, "end_block_number", Form.U64),
    Field(3, "allow_unverified", Form.BOOL),
)
#: Written without a tag of its own: the code is the member.
_SUBSCRIBE_STATUS: Final = Layout(SubscribeStatus, (Field(1, "code", Form.I32, present=True),))
_STATUS_FIELDS: Final = (
    Field(1, "first_available_block", Form.U64),
    Field(2, "last_available_block", Form.U64),
    Field(3, "only_latest_state", Form.BOOL),
)
_OLD_STATUS: Final = Layout(ServerStatus, (*_STATUS_FIELDS, Field(4, "version", Form.MESSAGE)))
_NEW_STATUS: Final = Layout(
    partial(ServerStatus, next_expected_block=0), (*_STATUS_FIELDS, Field(4, "next_expected_block", Form.U64))
)


def _acknowledgement(profile: Profile) -> Layout:
    fields = _ACKNOWLEDGEMENT_FIELDS[: profile.acknowledgement_fields]
    exists = any(known.name == "block_already_exists" for known in fields)
    flat = Layout(partial(Acknowledgement, block_already_exists=False) if exists else Acknowledgement, fields)
    if not profile.nested_acknowledgement:
        return flat
    members = (Field(1, "block_ack", Form.MESSAGE, flat), Field(2, "item_ack", Form.MESSAGE, _ITEM_ACKNOWLEDGEMENT))
    return Layout(_either, members, frozenset({"block_ack", "item_ack"}))


def _either(block_ack: Acknowledgement | None = None, item_ack: ItemAcknowledgement | None = None) -> Message:
    return block_ack or item_ack or Unset()


@cache
def _root(service: Service, direction: Direction, profile: Profile) -> _Root:
    client = direction is Direction.CLIENT
    if service is Service.PUBLISH:
        return _Root(_publish_requests(profile) if client else _publish_responses(profile))
    if service is Service.STATUS:
        if client:
            return _single(ServerStatusRequest, Layout(ServerStatusRequest, ()))
        return _single(ServerStatus, _NEW_STATUS if profile.new else _OLD_STATUS)
    if not client:
        end = (_Member(3, BlockEnd, _BLOCK_END),) if profile.new else ()
        return _Root((_Member(1, SubscribeStatus, _SUBSCRIBE_STATUS), _Member(2, BlockItems, None), *end))
    if profile.new:
        return _single(SubscribeRequest, Layout(SubscribeRequest, _SUBSCRIBE_FIELDS[:2]))
    return _single(SubscribeRequest, Layout(partial(SubscribeRequest, allow_unverified=False), _SUBSCRIBE_FIELDS))


def _single(kind: type[Message], layout: Layout) -> _Root:
    return _Root((_Member(0, kind, layout),), single=True)


def _publish_requests(profile: Profile) -> tuple[_Member, ...]:
    items = (_Member(1, BlockItems, None),)
    if profile.one_item:
        return items
    end = (_Member(2, PublisherEndStream, _PUBLISHER_END),)
    return (*items, *end, _Member(3, BlockEnd, _BLOCK_END)) if profile.new else (*items, *end)


def _publish_responses(profile: Profile) -> tuple[_Member, ...]:
    # Some versions lack a member, but nothing else of their package ever had its number: so all are read.
    members = (
        _Member(1, Acknowledgement, _acknowledgement(profile)),
        _Member(2, EndOfStream, Layout(EndOfStream, _END_FIELDS[: 3 if profile is B else 2])),
        _Member(3, SkipBlock, _numbers(SkipBlock, "block_number", first=profile.skip_field)),
        _Member(4, ResendBlock, _numbers(ResendBlock, "block_number", first=profile.skip_field)),
    )
    return (*members, _Member(5, NodeBehind, _numbers(NodeBehind, "block_number"))) if profile.new else members


@cache
def _layout(service: Service, direction: Direction, profile: Profile) -> Layout:
    """The root as a layout, whose value is the message."""
    root = _root(service, direction, profile)
    if root.single:
        layout = root.members[0].layout
        assert layout is not None
        return layout
    makers: dict[str, Callable[[Any], Message]] = {}
    fields = []
    for member in root.members:
        name = KIND_OF[member.kind]
        scalar = member.kind is SubscribeStatus
        fields.append(
            Field(member.number, name, Form.I32 if scalar else Form.MESSAGE, None if scalar else member.layout)
        )
        if member.kind is BlockItems:
            makers[name] = _set_of_one if profile.one_item else BlockItems
        else:
            makers[name] = SubscribeStatus if scalar else _kept

    def make(**values: Any) -> Message:
        for name, value in values.items():
            return makers[name](value)
        return Unset()

    return Layout(make, tuple(fields), frozenset(makers))


def _kept(message: Message) -> Message:
    return message


def _set_of_one(item: bytes) -> BlockItems:
    return BlockItems(protobuf.delimited(1, item))


# Decode


@dataclass(frozen=True, slots=True)
class Decoded:
    """The result of decoding: a message, and the rule that it breaks by itself; or no message, and why."""

    message: Message | None = None
    #: Fields that the profile doesn't know, or of another wire type.
    unknown_fields: int = 0
    rule: Rule | None = None
    #: The offending values in a sentence; empty without a rule.
    reason: str = ""
    #: Where in the bytes a malformed message can't be read any more.
    at: int | None = None


def decode(data: bytes, service: Service, direction: Direction, profile: Profile) -> Decoded:
    """The message `data` (uncompressed, without gRPC's prefix) that `direction` sends in a call of `service`."""
    if service is Service.OTHER:
        return Decoded(Unread(data))
    try:
        message, unknown = protobuf.read(data, _layout(service, direction, profile))
    except Malformed as malformed:
        reason = f"at byte {malformed.at}: {malformed.reason}"
        return Decoded(rule=RULE["malformed_message"], reason=reason, at=malformed.at)
    if isinstance(message, PublisherEndStream | EndOfStream | SubscribeStatus) and message.code == 0:
        return Decoded(message, unknown, RULE["code_set"], f"{KIND_OF[type(message)]} has the code 0")
    return Decoded(message, unknown)


def code_name(message: Message, profile: Profile) -> str | None:
    """What the code of `message` is called in `profile`; None = it has none, or no version gives it a name."""
    match message:
        case PublisherEndStream():
            return PUBLISHER_CODES.get(message.code)
        case EndOfStream():
            return profile.end_codes.get(message.code)
        case SubscribeStatus():
            return profile.subscribe_codes.get(message.code)
    return None


# Encode


class EncodeError(WirehouseError):
    """A message that can't be written in a profile: our own misuse, nothing that a capture can cause."""

    template = "{kind} in {profile}: {reason}"


def encode(message: Message, service: Service, direction: Direction, profile: Profile) -> bytes:
    """The bytes of `message`. Raises EncodeError for one that the call or profile lacks, or a value out of range."""
    try:
        return _encoded(message, service, direction, profile)
    except (ValueError, TypeError, Malformed) as error:
        raise EncodeError(kind=KIND_OF[type(message)], profile=profile.name, reason=str(error)) from None


def _encoded(message: Message, service: Service, direction: Direction, profile: Profile) -> bytes:
    if isinstance(message, Unread):
        return message.raw
    if isinstance(message, Unset):
        return b""
    if service is Service.OTHER:
        raise ValueError("the call's messages aren't known")
    root = _root(service, direction, profile)
    member = next((member for member in root.members if _carries(member, message)), None)
    if member is None:
        raise ValueError("the call has no such message")
    written = _member(message, member, profile)
    return written if root.single or member.layout is _SUBSCRIBE_STATUS else protobuf.delimited(member.number, written)


def _carries(member: _Member, message: Message) -> bool:
    if isinstance(message, ItemAcknowledgement):
        return member.kind is Acknowledgement and member.layout is not None and member.layout.make is _either
    return member.kind is type(message)


def _member(message: Message, member: _Member, profile: Profile) -> bytes:
    if isinstance(message, BlockItems):
        return _only_item(message.raw) if profile.one_item else message.raw
    layout = member.layout
    assert layout is not None
    if layout.make is not _either:
        _refuse_lost(message, layout)
        return protobuf.write(message, layout)
    inner = layout.fields[isinstance(message, ItemAcknowledgement)]
    assert inner.layout is not None
    return protobuf.delimited(inner.number, protobuf.write(message, inner.layout))


def _only_item(raw: bytes) -> bytes:
    first = protobuf.read_field(raw, 0, len(raw))
    if first.number != 1 or first.end != len(raw):
        raise ValueError("a message carries exactly one item")
    return raw[first.value_start :]


def _refuse_lost(message: Message, layout: Layout) -> None:
    written = {known.name for known in layout.fields}
    for name in type(message).__dataclass_fields__:
        if name not in written and getattr(message, name) is not None:
            raise ValueError(f"{name} would be lost")


# Calls whose path can't be read


class Shape(NamedTuple):
    """What a message shows about its call. None: it doesn't show it."""

    service: Service | None = None
    #: Whether it is of the newer package.
    new: bool | None = None


def shape_of(data: bytes, direction: Direction) -> Shape:
    """Which call could carry `data`: for calls whose `:path` was sent before the capture began.

    It names only what no other call's message looks like; the empty message and broken ones say nothing. (B0, the first
    release of the newer package, acknowledges as the older one, and counts as it.)
    """
    try:
        first = protobuf.read_field(data, 0, len(data))
        inner = protobuf.read_field(data, first.value_start, first.end) if first.wire_type == WireType.LEN else None
    except Malformed:
        return Shape()
    if direction is Direction.CLIENT:
        return _REQUEST_SHAPES.get((first.number, None if inner is None else inner.wire_type), Shape())
    if first.number == 1 and inner is not None and (inner.number, inner.wire_type) == (2, WireType.LEN):
        # An item's acknowledgement of the older package, or the root of block 0, whose number isn't written.
        return Shape(Service.PUBLISH)
    return _RESPONSE_SHAPES.get((first.number, None if inner is None else inner.wire_type), Shape())


#: By the number of the first field and the wire type of the first field within it; None = the first is a number.
_REQUEST_SHAPES: Mapping[tuple[int, int | None], Shape] = MappingProxyType(
    {
        (1, WireType.LEN): Shape(Service.PUBLISH),
        (2, WireType.VARINT): Shape(Service.PUBLISH),
        (3, WireType.VARINT): Shape(Service.PUBLISH, new=True),
        (3, None): Shape(Service.SUBSCRIBE, new=False),
    }
)
_RESPONSE_SHAPES: Mapping[tuple[int, int | None], Shape] = MappingProxyType(
    {
        (1, WireType.LEN): Shape(Service.PUBLISH, new=False),
        (1, WireType.VARINT): Shape(Service.PUBLISH, new=True),
        (2, WireType.VARINT): Shape(Service.PUBLISH),
        (2, WireType.LEN): Shape(Service.SUBSCRIBE),
        (4, WireType.VARINT): Shape(Service.PUBLISH),
        (5, WireType.VARINT): Shape(Service.PUBLISH, new=True),
    }
)
