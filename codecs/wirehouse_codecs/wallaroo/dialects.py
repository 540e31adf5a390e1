"""The dialects of the connector protocol as data: which frames there are, and their fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Literal

from wirehouse_codecs.wallaroo.frames import (
    Ack,
    EosMessage,
    Error,
    Flag,
    Frame,
    Hello,
    Message,
    Nack,
    Notify,
    NotifyAck,
    Ok,
    Restart,
    Source,
    StreamMessage,
    StreamReference,
    WorkersLeft,
)

#: The point of reference of v3 for "nothing was seen yet" (from January 2020 on); as a message id it resets the
#: duplicate check. See `Dialect.nothing_seen`.
NOTHING_SEEN: Final = (1 << 64) - 1
IMPLEMENTED_LIMIT: Final = 16_384
#: "a few megabytes" of the text.
SEED_LIMIT: Final = 4 << 20
ByteOrder = Literal["little", "big"]


class Form(StrEnum):
    """The form of a field on the wire."""

    U8 = "u8"
    U16 = "u16"
    U32 = "u32"
    U64 = "u64"
    I64 = "i64"
    #: u16 length and bytes.
    SHORT = "short"
    #: Like SHORT, but a length of 0 is read as no value.
    SHORT_OR_NONE = "short or none"
    #: u32 length and bytes.
    LONG = "long"
    #: All that is left in the frame.
    REST = "rest"
    #: Like REST, but no bytes are read as no value.
    REST_OR_NONE = "rest or none"
    #: Groups of fields: behind a u32 count, or to the end of the frame.
    COUNTED = "counted"
    TO_END = "to the end"
    #: A version in one of the forms that are tried (the text).
    OPEN_VERSION = "open version"


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a frame in one dialect: its name in the frame's class, and how it is written."""

    name: str
    form: Form
    #: The fields of one entry of a list, and what makes a value of them.
    entry: tuple[Field, ...] = ()
    make: Callable[..., Any] = tuple
    #: Written only with, or only without, this flag.
    only_with: int = 0
    only_without: int = 0

    def written(self, flags: int) -> bool:
        """Whether a message with `flags` has it."""
        return not flags & self.only_without and (not self.only_with or bool(flags & self.only_with))


@dataclass(frozen=True, slots=True)
class Dialect:
    """One version of the protocol, by the way in which it writes its frames."""

    name: str
    byte_order: ByteOrder
    tags: Mapping[type[Frame], int]
    layouts: Mapping[type[Frame], tuple[Field, ...]]
    #: The largest length that a worker takes, in bytes.
    max_frame_bytes: int
    #: Whether NOTIFY is answered, and messages wait for the answer.
    answers_notify: bool
    #: Whether the worker skips message ids that aren't above the last one seen.
    skips_repeats: bool
    #: The point of reference for "nothing was seen yet", which is no id; None = each number may be an id.
    nothing_seen: int | None = None
    #: Bits of a MESSAGE that may be set, and pairs that may not; None = the dialect has no flags.
    flags: int | None = None
    forbidden_flags: tuple[int, ...] = ()
    #: Whether the connector is Wallaroo and the worker a sink: the roles are reversed.
    sink: bool = False
    _frames: dict[int, type[Frame]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._frames.update({tag: frame for frame, tag in self.tags.items()})

    @property
    def state(self) -> str:
        """Its form in carried state: its name."""
        return self.name

    @classmethod
    def from_state(cls, name: str) -> Dialect:
        """The dialect with this name. ValueError: there is none."""
        if name not in DIALECTS:
            raise ValueError(f"no dialect is named {name}")
        return DIALECTS[name]

    def frame_of(self, tag: int) -> type[Frame] | None:
        """The class that `tag` stands for."""
        return self._frames.get(tag)


_VERSION = Field("version", Form.SHORT)
#: The texts of HELLO, after its version.
HELLO_TEXTS = tuple(Field(name, Form.SHORT) for name in ("cookie", "program_name", "instance_name"))
_STREAM_ID = Field("stream_id", Form.U64)
_MESSAGE_ID = Field("message_id", Form.U64)
_REFERENCE = Field("point_of_ref", Form.U64)
_CREDITS = Field("credits", Form.U32)
_NOTIFY = (_STREAM_ID, Field("stream_name", Form.SHORT), _REFERENCE)
_ERROR = (Field("reason", Form.SHORT),)
_ACK_ENTRY = (_STREAM_ID, _MESSAGE_ID)


def _stream_with_name(stream_id: int, stream_name: bytes, point_of_ref: int) -> StreamReference:
    return StreamReference(stream_id, point_of_ref, stream_name)


_STREAMS = Field("streams", Form.COUNTED, _NOTIFY, _stream_with_name)
_SOURCES = Field("sources", Form.COUNTED, (Field("name", Form.SHORT), Field("address", Form.SHORT)), Source)
_ACKS = Field("acks", Form.COUNTED, _ACK_ENTRY, StreamMessage)
_SEED_MESSAGE = (
    Field("flags", Form.U16),
    _MESSAGE_ID,
    # A boundary ends with its id whatever else is flagged; bytes after it are payload that it may not have.
    Field("event_time", Form.U64, only_with=Flag.EVENT_TIME, only_without=Flag.BOUNDARY),
    Field("payload", Form.REST, only_without=Flag.BOUNDARY),
    Field("payload", Form.REST_OR_NONE, only_with=Flag.BOUNDARY),
)
_SEED_LAYOUTS: Mapping[type[Frame], tuple[Field, ...]] = {
    Hello: (Field("version", Form.OPEN_VERSION), *HELLO_TEXTS),
    Ok: (_CREDITS, Field("streams", Form.TO_END, (_STREAM_ID, _REFERENCE), StreamReference)),
    Error: _ERROR,
    Notify: _NOTIFY,
    Message: _SEED_MESSAGE,
    Ack: (_CREDITS, Field("acks", Form.TO_END, _ACK_ENTRY, StreamMessage)),
    Nack: (_CREDITS, _STREAM_ID, _REFERENCE),
}
_SEED_TAGS: Mapping[type[Frame], int] = {
    Hello: ord("H"),
    Ok: ord("O"),
    Error: ord("E"),
    Notify: ord("N"),
    Message: ord("M"),
    Ack: ord("A"),
    Nack: ord("!"),
}
_V2B_LAYOUTS: Mapping[type[Frame], tuple[Field, ...]] = {
    Hello: (_VERSION, *HELLO_TEXTS),
    Ok: (_CREDITS, _STREAMS, _SOURCES),
    Error: _ERROR,
    Notify: _NOTIFY,
    NotifyAck: (Field("success", Form.U8), _STREAM_ID, _REFERENCE),
    Message: (
        _STREAM_ID,
        Field("flags", Form.U8),
        Field("message_id", Form.U64, only_without=Flag.EPHEMERAL),
        Field("event_time", Form.I64, only_with=Flag.EVENT_TIME),
        Field("key", Form.SHORT, only_with=Flag.KEY),
        Field("payload", Form.REST, only_without=Flag.BOUNDARY),
    ),
    Ack: (_CREDITS, _ACKS),
    Restart: (Field("address", Form.LONG),),
}
_V2_TAGS: Mapping[type[Frame], int] = {
    Hello: 0,
    Ok: 1,
    Error: 2,
    Notify: 3,
    NotifyAck: 4,
    Message: 5,
    Ack: 6,
    Restart: 7,
}
_V2A_LAYOUTS: Mapping[type[Frame], tuple[Field, ...]] = {**_V2B_LAYOUTS, Ok: (_CREDITS, _STREAMS), Restart: ()}
_V3_LAYOUTS: Mapping[type[Frame], tuple[Field, ...]] = {
    **_V2B_LAYOUTS,
    Ok: (_CREDITS,),
    Message: (
        _STREAM_ID,
        _MESSAGE_ID,
        Field("event_time", Form.I64),
        Field("key", Form.SHORT_OR_NONE),
        Field("payload", Form.REST),
    ),
    EosMessage: (_STREAM_ID,),
    WorkersLeft: (
        Field("transaction", Form.U64),
        Field("workers", Form.COUNTED, (Field("worker", Form.SHORT),), bytes),
    ),
}
_V3_TAGS: Mapping[type[Frame], int] = {**_V2_TAGS, EosMessage: 8, WorkersLeft: 9}
_SEED_FLAGS: Final = Flag.EPHEMERAL | Flag.BOUNDARY | Flag.EOS | Flag.UNSTABLE_REFERENCE | Flag.EVENT_TIME
_V2_FLAGS: Final = _SEED_FLAGS | Flag.KEY
_V2_FORBIDDEN: Final = (
    Flag.EPHEMERAL | Flag.BOUNDARY,
    Flag.EPHEMERAL | Flag.UNSTABLE_REFERENCE,
    Flag.BOUNDARY | Flag.UNSTABLE_REFERENCE,
    Flag.BOUNDARY | Flag.KEY,
)


def _seed(name: str, layouts: Mapping[type[Frame], tuple[Field, ...]]) -> Dialect:
    return Dialect(name, "little", _SEED_TAGS, layouts, SEED_LIMIT, False, False, None, int(_SEED_FLAGS))


def _v2(name: str, layouts: Mapping[type[Frame], tuple[Field, ...]], *, sink: bool = False) -> Dialect:
    flags, forbidden = int(_V2_FLAGS), tuple(map(int, _V2_FORBIDDEN))
    return Dialect(name, "big", _V2_TAGS, layouts, IMPLEMENTED_LIMIT, True, True, None, flags, forbidden, sink=sink)


def _v3(name: str, *, sink: bool = False) -> Dialect:
    return Dialect(name, "big", _V3_TAGS, _V3_LAYOUTS, IMPLEMENTED_LIMIT, True, True, NOTHING_SEEN, sink=sink)


SEED: Final = _seed("seed", _SEED_LAYOUTS)
SEED_SID: Final = _seed("seed_sid", {**_SEED_LAYOUTS, Message: (_STREAM_ID, *_SEED_MESSAGE)})
V2A: Final = _v2("v2a", _V2A_LAYOUTS)
V2B: Final = _v2("v2b", _V2B_LAYOUTS)
V3: Final = _v3("v3")
#: Sinks wrote the frames of v3 in the end, and those of v2b before.
SINK: Final = _v3("sink", sink=True)
SINK_V2B: Final = _v2("sink_v2b", _V2B_LAYOUTS, sink=True)
DIALECTS: Mapping[str, Dialect] = MappingProxyType(
    {dialect.name: dialect for dialect in (SEED, SEED_SID, V2A, V2B, V3, SINK, SINK_V2B)}
)
