"""Messages of the Ockam stream service: typed values, their schemas as data, encode and decode.

A payload is a `BasePayload`: the protocol's name and data, which is BARE by that protocol's schema. A protocol has one
schema for requests and one for responses, and only the direction decides which (specification, "Payload BARE specs").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import ClassVar, Final

from wirehouse_codecs.core.errors import WirehouseError
from wirehouse_codecs.ockam.wire.bare import (
    DATA,
    REST,
    STRING,
    UINT,
    Cursor,
    Enum,
    List,
    Malformed,
    Optional,
    Schema,
    Struct,
    Union,
    encode,
    write_uint,
)
from wirehouse_codecs.tcp.endpoints import Direction


class Kind(StrEnum):
    """What messages are called in tables. Those of partitions have the kinds of the plain ones."""

    CREATE_REQUEST = "create_request"
    CREATE_RESPONSE = "create_response"
    PUSH_REQUEST = "push_request"
    PUSH_RESPONSE = "push_response"
    PULL_REQUEST = "pull_request"
    PULL_RESPONSE = "pull_response"
    INDEX_GET = "index_get"
    INDEX_SAVE = "index_save"
    INDEX_RESPONSE = "index_response"
    CREATE_PARTITIONED_REQUEST = "create_partitioned_request"
    CREATE_PARTITIONED_RESPONSE = "create_partitioned_response"
    ERROR = "error"


class Names(StrEnum):
    """Whose names the protocols of partitions have: the specification's or those that implementations use."""

    SPECIFICATION = "specification"
    IMPLEMENTATION = "implementation"


class Status(StrEnum):
    """Whether a pushed message was saved."""

    OK = "ok"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """A message of a stream with its index."""

    index: int
    data: bytes


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """Asks the stream service for a stream; None = for one without a name."""

    stream_name: str | None
    kind: ClassVar[Kind] = Kind.CREATE_REQUEST


@dataclass(frozen=True, slots=True)
class CreateResponse:
    """Init: the stream is there, its address is the return route."""

    stream_name: str
    #: "Payload MAY contain some additional information about the stream."
    extra: bytes = b""
    kind: ClassVar[Kind] = Kind.CREATE_RESPONSE


@dataclass(frozen=True, slots=True)
class PushRequest:
    """A message to save."""

    request_id: int
    data: bytes
    kind: ClassVar[Kind] = Kind.PUSH_REQUEST


@dataclass(frozen=True, slots=True)
class PushResponse:
    """PushConfirm: whether it was saved, and with which index."""

    request_id: int
    status: Status
    index: int
    kind: ClassVar[Kind] = Kind.PUSH_RESPONSE


@dataclass(frozen=True, slots=True)
class PullRequest:
    """Asks for up to `limit` messages from `index` on."""

    request_id: int
    index: int
    limit: int
    kind: ClassVar[Kind] = Kind.PULL_REQUEST


@dataclass(frozen=True, slots=True)
class PullResponse:
    """The messages that were asked for."""

    request_id: int
    messages: tuple[StreamMessage, ...]
    kind: ClassVar[Kind] = Kind.PULL_RESPONSE


@dataclass(frozen=True, slots=True)
class IndexGet:
    """GetIndex, or with a partition GetPartitionIndex."""

    client_id: str
    stream_name: str
    partition: int | None = None
    kind: ClassVar[Kind] = Kind.INDEX_GET


@dataclass(frozen=True, slots=True)
class IndexSave:
    """SaveIndex, or with a partition SavePartitionIndex."""

    client_id: str
    stream_name: str
    index: int
    partition: int | None = None
    kind: ClassVar[Kind] = Kind.INDEX_SAVE


@dataclass(frozen=True, slots=True)
class IndexResponse:
    """Index, or with a partition PartitionIndex; no index = none was saved."""

    client_id: str
    stream_name: str
    index: int | None
    partition: int | None = None
    kind: ClassVar[Kind] = Kind.INDEX_RESPONSE


@dataclass(frozen=True, slots=True)
class CreatePartitionedRequest:
    """Asks the stream service for the streams of partitions 0 to `partitions` - 1."""

    stream_name: str | None
    partitions: int
    kind: ClassVar[Kind] = Kind.CREATE_PARTITIONED_REQUEST


@dataclass(frozen=True, slots=True)
class CreatePartitionedResponse:
    """Init of one partition: its address is the return route."""

    stream_name: str
    partition: int
    #: The same as in CreateResponse.
    extra: bytes = b""
    kind: ClassVar[Kind] = Kind.CREATE_PARTITIONED_RESPONSE


@dataclass(frozen=True, slots=True)
class Error:
    """A request was refused."""

    reason: str
    kind: ClassVar[Kind] = Kind.ERROR


Message = (
    CreateRequest
    | CreateResponse
    | PushRequest
    | PushResponse
    | PullRequest
    | PullResponse
    | IndexGet
    | IndexSave
    | IndexResponse
    | CreatePartitionedRequest
    | CreatePartitionedResponse
    | Error
)


# Schemas as data

_CREATE: Final = "stream_create"
_PUSH: Final = "stream_push"
_PULL: Final = "stream_pull"
_INDEX: Final = "stream_index"
_ERROR: Final = "error"
_CREATE_PARTITIONED: Mapping[Names, str] = {
    Names.SPECIFICATION: "stream_create_partitions",
    Names.IMPLEMENTATION: "stream_create_partitioned",
}
_INDEX_PARTITIONED: Mapping[Names, str] = {
    Names.SPECIFICATION: _INDEX,
    Names.IMPLEMENTATION: "stream_index_partitioned",
}

_REQUEST_ID = ("request_id", UINT)
_SOME_NAME = ("stream_name", Optional(STRING))
_NAME = ("stream_name", STRING)
_EXTRA = ("extra", REST)
_PARTITION = ("partition", UINT)
_KEY = (("client_id", STRING), _NAME)
_STREAM_MESSAGE = Struct(StreamMessage, (("index", UINT), ("data", DATA)))

_PUSH_REQUEST = Struct(PushRequest, (_REQUEST_ID, ("data", DATA)))
_PUSH_RESPONSE = Struct(PushResponse, (_REQUEST_ID, ("status", Enum(tuple(Status))), ("index", UINT)))
_PULL_REQUEST = Struct(PullRequest, (_REQUEST_ID, ("index", UINT), ("limit", UINT)))
_PULL_RESPONSE = Struct(PullResponse, (_REQUEST_ID, ("messages", List(_STREAM_MESSAGE))))
_INDEX_REQUEST = Union((Struct(IndexGet, _KEY), Struct(IndexSave, (*_KEY, ("index", UINT)))))
_INDEX_RESPONSE = Struct(IndexResponse, (*_KEY, ("index", Optional(UINT))))
_PARTITION_KEY = (*_KEY, _PARTITION)
_PARTITION_REQUEST = Union((Struct(IndexGet, _PARTITION_KEY), Struct(IndexSave, (*_PARTITION_KEY, ("index", UINT)))))
_PARTITION_RESPONSE = Struct(IndexResponse, (*_PARTITION_KEY, ("index", Optional(UINT))))
_CREATE_REQUEST = Struct(CreateRequest, (_SOME_NAME,))
_CREATE_RESPONSE = Struct(CreateResponse, (_NAME, _EXTRA))
_PARTITIONED_REQUEST = Struct(CreatePartitionedRequest, (_SOME_NAME, ("partitions", UINT)))
_PARTITIONED_RESPONSE = Struct(CreatePartitionedResponse, (_NAME, _PARTITION, _EXTRA))
_ERROR_RESPONSE = Struct(Error, (("reason", STRING),))

#: The schemas of requests and responses, by protocol. Where there are two, the one that fits to the end counts.
PROTOCOLS: Mapping[str, Mapping[Direction, tuple[Schema, ...]]] = MappingProxyType(
    {
        _CREATE: {Direction.CLIENT: (_CREATE_REQUEST,), Direction.SERVER: (_CREATE_RESPONSE,)},
        _PUSH: {Direction.CLIENT: (_PUSH_REQUEST,), Direction.SERVER: (_PUSH_RESPONSE,)},
        _PULL: {Direction.CLIENT: (_PULL_REQUEST,), Direction.SERVER: (_PULL_RESPONSE,)},
        _INDEX: {
            Direction.CLIENT: (_INDEX_REQUEST, _PARTITION_REQUEST),
            Direction.SERVER: (_INDEX_RESPONSE, _PARTITION_RESPONSE),
        },
        _INDEX_PARTITIONED[Names.IMPLEMENTATION]: {
            Direction.CLIENT: (_PARTITION_REQUEST,),
            Direction.SERVER: (_PARTITION_RESPONSE,),
        },
        **{
            name: {Direction.CLIENT: (_PARTITIONED_REQUEST,), Direction.SERVER: (_PARTITIONED_RESPONSE,)}
            for name in _CREATE_PARTITIONED.values()
        },
        _ERROR: {Direction.CLIENT: (), Direction.SERVER: (_ERROR_RESPONSE,)},
    }
)
#: How each kind is written: the protocol's name, or whose; of index messages those without a partition.
_WRITTEN: Mapping[Kind, tuple[str | Mapping[Names, str], Schema]] = {
    Kind.CREATE_REQUEST: (_CREATE, _CREATE_REQUEST),
    Kind.CREATE_RESPONSE: (_CREATE, _CREATE_RESPONSE),
    Kind.PUSH_REQUEST: (_PUSH, _PUSH_REQUEST),
    Kind.PUSH_RESPONSE: (_PUSH, _PUSH_RESPONSE),
    Kind.PULL_REQUEST: (_PULL, _PULL_REQUEST),
    Kind.PULL_RESPONSE: (_PULL, _PULL_RESPONSE),
    Kind.INDEX_GET: (_INDEX, _INDEX_REQUEST),
    Kind.INDEX_SAVE: (_INDEX, _INDEX_REQUEST),
    Kind.INDEX_RESPONSE: (_INDEX, _INDEX_RESPONSE),
    Kind.CREATE_PARTITIONED_REQUEST: (_CREATE_PARTITIONED, _PARTITIONED_REQUEST),
    Kind.CREATE_PARTITIONED_RESPONSE: (_CREATE_PARTITIONED, _PARTITIONED_RESPONSE),
    Kind.ERROR: (_ERROR, _ERROR_RESPONSE),
}
_WRITTEN_OF_PARTITION: Mapping[Kind, tuple[Mapping[Names, str], Schema]] = {
    Kind.INDEX_GET: (_INDEX_PARTITIONED, _PARTITION_REQUEST),
    Kind.INDEX_SAVE: (_INDEX_PARTITIONED, _PARTITION_REQUEST),
    Kind.INDEX_RESPONSE: (_INDEX_PARTITIONED, _PARTITION_RESPONSE),
}


# Encode


class EncodeError(WirehouseError):
    """A message that can't be written: our own misuse, nothing that a capture can cause."""

    template = "{kind}: {reason}"


def encode_payload(message: Message, names: Names = Names.IMPLEMENTATION) -> bytes:
    """The BasePayload of `message`; `names` decides where the specification and the implementations differ.

    Raises EncodeError for a value that its field can't have.
    """
    protocol, schema = _WRITTEN[message.kind]
    if isinstance(message, IndexGet | IndexSave | IndexResponse) and message.partition is not None:
        protocol, schema = _WRITTEN_OF_PARTITION[message.kind]
    try:
        data = encode(schema, message)
    except (TypeError, ValueError) as error:
        raise EncodeError(kind=message.kind.value, reason=str(error)) from None
    return base_payload(protocol if isinstance(protocol, str) else protocol[names], data)


def base_payload(protocol: str, data: bytes) -> bytes:
    """A BasePayload of any protocol (proposal 0008)."""
    out = bytearray()
    STRING.write(out, protocol)
    write_uint(out, len(data))
    return bytes(out + data)


# Decode


@dataclass(frozen=True, slots=True)
class Decoded:
    """The content of a payload: a message, or why it is none."""

    message: Message | None = None
    #: The name as written; None = the payload is no BasePayload.
    protocol_name: str | None = None
    #: Which field is malformed and where, in bytes from the begin of the payload; empty with a message.
    reason: str = ""
    #: Whether every uint, tag and enum is as short as can be.
    canonical: bool = True
    #: Under the shared name `stream_index` some bytes are two responses: `message` without, and this with a partition.
    also: IndexResponse | None = None


UNKNOWN_PROTOCOL: Final = "unknown protocol"


def decode_payload(payload: bytes, direction: Direction) -> Decoded:
    """The message of a BasePayload that was sent by `direction`: the client sends requests, the server responses."""
    outer = Cursor(payload)
    protocol: str | None = None
    try:
        protocol = STRING.read(outer, "protocol")
        begin = outer.skip(outer.uint("data"), "data")
        outer.finish()
    except Malformed as malformed:
        # A name alone, as the beginning of other bytes may be one, doesn't make it a BasePayload.
        return Decoded(protocol_name=protocol if protocol in PROTOCOLS else None, reason=str(malformed))
    schemas = PROTOCOLS.get(protocol)
    if schemas is None:
        return Decoded(protocol_name=protocol, reason=UNKNOWN_PROTOCOL, canonical=outer.canonical)
    found: list[tuple[Message, bool]] = []
    furthest: Malformed | None = None
    for schema in schemas[direction]:
        cursor = Cursor(payload, begin)
        try:
            message = schema.read(cursor, protocol)
            cursor.finish()
        except Malformed as malformed:
            furthest = malformed if furthest is None or malformed.offset > furthest.offset else furthest
            continue
        found.append((message, outer.canonical and cursor.canonical))
    if not found:
        reason = "the protocol has no requests" if furthest is None else str(furthest)
        return Decoded(protocol_name=protocol, reason=reason)
    message, canonical = found[0]
    also = found[1][0] if len(found) > 1 else None
    assert also is None or isinstance(also, IndexResponse)
    return Decoded(message, protocol, canonical=canonical, also=also)
