"""The frames of the connector protocol as typed messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntFlag
from types import MappingProxyType
from typing import NamedTuple


class Flag(IntFlag):
    """Bits of a MESSAGE (specification, "Message Bit-flags"); KEY only where it was implemented."""

    EPHEMERAL = 1
    BOUNDARY = 2
    EOS = 4
    UNSTABLE_REFERENCE = 8
    EVENT_TIME = 16
    KEY = 32


class VersionForm(Enum):
    """The form of the version in a HELLO. The text leaves it open; the implementations have a short string."""

    GUID16 = "guid16"
    SHORT = "short"
    U16 = "u16"
    U32 = "u32"
    U64 = "u64"


#: The width of a version that has no length of its own.
VERSION_BYTES: Mapping[VersionForm, int] = {
    VersionForm.GUID16: 16,
    VersionForm.U16: 2,
    VersionForm.U32: 4,
    VersionForm.U64: 8,
}


@dataclass(frozen=True, slots=True)
class Hello:
    """The first frame of a connector. The cookie is a secret: it is in no other value, and not in the repr."""

    version: bytes
    cookie: bytes = field(repr=False)
    program_name: bytes
    instance_name: bytes
    version_form: VersionForm = VersionForm.SHORT

    def version_text(self) -> str:
        """The version as people read it: the string, a number, or 32 hex digits."""
        if self.version_form is VersionForm.SHORT:
            return self.version.decode("utf-8", "replace")
        if self.version_form is VersionForm.GUID16:
            return self.version.hex()
        return str(int.from_bytes(self.version, "little"))


class StreamReference(NamedTuple):
    """A stream and how far the worker got with it. The text's OK has no names."""

    stream_id: int
    point_of_ref: int
    stream_name: bytes = b""


class Source(NamedTuple):
    """A source and the address where it listens."""

    name: bytes
    address: bytes


class StreamMessage(NamedTuple):
    """An entry of an ACK: this message id of this stream is safe."""

    stream_id: int
    message_id: int


@dataclass(frozen=True, slots=True)
class Ok:
    """The worker accepts a HELLO. v3 has neither list, v2a no sources, the text no sources."""

    credits: int
    streams: tuple[StreamReference, ...] = ()
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True, slots=True)
class Error:
    """Either side gives up. Real workers print both cookies into the text: see `mask`."""

    reason: bytes


@dataclass(frozen=True, slots=True)
class Notify:
    """The connector introduces or reopens a stream."""

    stream_id: int
    stream_name: bytes
    point_of_ref: int = 0


@dataclass(frozen=True, slots=True)
class NotifyAck:
    """The worker answers a NOTIFY (implemented dialects)."""

    #: The byte on the wire; the connector's library takes any but 0 as yes.
    success: int
    stream_id: int
    point_of_ref: int

    @property
    def accepted(self) -> bool:
        """Whether the stream may be used."""
        return self.success != 0


@dataclass(frozen=True, slots=True)
class Message:
    """A message or boundary of a stream. None: the dialect or the flags leave the field out."""

    #: The literal text forgot it.
    stream_id: int | None
    message_id: int | None
    flags: int | None = None
    #: Signed where it was implemented, unsigned in the text.
    event_time: int | None = None
    #: v3 writes no key as an empty one.
    key: bytes | None = None
    payload: bytes | None = b""

    def has(self, flag: Flag) -> bool:
        """Whether the flag is set; never in v3, which has none."""
        return bool((self.flags or 0) & flag)


@dataclass(frozen=True, slots=True)
class Ack:
    """Credits for the connector, and messages that are safe."""

    credits: int
    acks: tuple[StreamMessage, ...] = ()


@dataclass(frozen=True, slots=True)
class Nack:
    """The worker resets a stream to a point of reference (the text only)."""

    credits: int
    stream_id: int
    point_of_ref: int


@dataclass(frozen=True, slots=True)
class Restart:
    """The worker asks to reconnect (implemented dialects). None: v2a, which has no address."""

    address: bytes | None = None


@dataclass(frozen=True, slots=True)
class EosMessage:
    """The connector ends a stream (v3; a flag of MESSAGE before)."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class WorkersLeft:
    """Between workers: which of them left. One of the two codecs knows it, and its reader ignores it."""

    transaction: int
    workers: tuple[bytes, ...] = ()


Frame = Hello | Ok | Error | Notify | NotifyAck | Message | Ack | Nack | Restart | EosMessage | WorkersLeft
#: The class of each frame, by its name in tables.
KINDS: Mapping[str, type[Frame]] = MappingProxyType(
    {
        "HELLO": Hello,
        "OK": Ok,
        "ERROR": Error,
        "NOTIFY": Notify,
        "NOTIFY_ACK": NotifyAck,
        "MESSAGE": Message,
        "ACK": Ack,
        "NACK": Nack,
        "RESTART": Restart,
        "EOS_MESSAGE": EosMessage,
        "WORKERS_LEFT": WorkersLeft,
    }
)
KIND_OF: Mapping[type[Frame], str] = MappingProxyType({frame: kind for kind, frame in KINDS.items()})
