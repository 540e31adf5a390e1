"""bymux: streams of bytes over one connection, each with credit of its own (bymux specification).

A packet is a header byte, the id of a stream and an amount, each as wide as the header says, and for a Write that many
bytes. `Reader` cuts one direction into packets, `Bymux` holds both sides: credit, ids and shutdown. What a side may
still send is the table `TRANSITIONS`, a machine for each side of each stream and for creating streams: an unlisted pair
is the rule that it breaks.

The bytes of a Write are handed on as they come, so nothing is held but an unfinished header.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np

from wirehouse_codecs.bamboo.rules import RULE
from wirehouse_codecs.bamboo.setup import INFINITE, VANILLA, Channel, Role, Start
from wirehouse_codecs.bamboo.wire.varu64 import MAX_U64
from wirehouse_codecs.core.errors import StateVersionError
from wirehouse_codecs.core.rules import Rule

Array = np.ndarray[Any, Any]

SNAPSHOT_VERSION: Final = 1


class Type(IntEnum):
    """The three most significant bits of a header."""

    CREDIT = 0
    WRITE = 1
    PING = 2
    PONG = 3
    CLOSE = 4
    STOP_READ = 5


@dataclass(frozen=True, slots=True)
class Packet:
    """A packet; of a Write all but its bytes. Widths are in bytes, None = as narrow as the number allows."""

    type: Type
    #: None = global: about creating streams, or about the connection.
    stream_id: int | None = None
    #: Credit, or how many bytes a Write has. The id of the new stream in a global Write.
    amount: int | None = None
    id_width: int | None = None
    amount_width: int | None = None

    @property
    def creates(self) -> bool:
        """It creates the stream `amount`."""
        return self.type is Type.WRITE and self.stream_id is None

    @property
    def content_bytes(self) -> int:
        """How many bytes of a stream follow it."""
        return self.amount or 0 if self.type is Type.WRITE and self.stream_id is not None else 0


_GLOBAL: Final = 0x10
_WITH_AMOUNT: Final = (Type.CREDIT, Type.WRITE)


def encode(packet: Packet, content: bytes = b"") -> bytes:
    """The bytes of `packet`; a Write takes `content`.

    ValueError: a number does not fit its width, is missing or too many, or the amount of a Write isn't the size of
    `content`.
    """
    if (packet.amount is not None) != (packet.type in _WITH_AMOUNT) or packet.content_bytes != len(content):
        raise ValueError(f"{packet.type.name} of amount {packet.amount} with {len(content)} bytes")
    id_code, stream_id = _integer(packet.stream_id, packet.id_width)
    amount_code, amount = _integer(packet.amount, packet.amount_width)
    whole = _GLOBAL if packet.stream_id is None else 0
    return bytes([packet.type << 5 | whole | id_code << 2 | amount_code]) + stream_id + amount + content


def write(stream_id: int, content: bytes) -> bytes:
    """A Write of `content`."""
    return encode(Packet(Type.WRITE, stream_id, len(content)), content)


def _integer(number: int | None, width: int | None) -> tuple[int, bytes]:
    if number is None:
        return 0, b""
    width = _narrowest(number) if width is None else width
    if width not in _WIDTHS or number < 0 or number >> 8 * width:
        raise ValueError(f"{number} can't be written in {width} bytes")
    return _WIDTHS.index(width), number.to_bytes(width, "big")


_WIDTHS: Final = (1, 2, 4, 8)


def _narrowest(number: int) -> int:
    return next((width for width in _WIDTHS if not number >> 8 * width), _WIDTHS[-1])


# Packets from bytes


class Read(NamedTuple):
    """A packet cut from the bytes of one direction, or a header that is none."""

    #: Where it begins and ends, in bytes from the first one received; a Write with its content.
    byte_start: int
    byte_end: int
    #: None: its type is not assigned, and nothing after it can be told.
    packet: Packet | None
    #: An id or amount is wider than it needs to be.
    wide: bool = False


class Content(NamedTuple):
    """Bytes of a Write, as they came: a Write may be handed on in any number of them."""

    stream_id: int
    byte_start: int
    data: bytes


class Reader:
    """Cuts one direction into packets. Sans-IO."""

    __slots__ = ("_at", "_content_left", "_header", "_stream_id", "lost")

    def __init__(self, *, byte_start: int = 0, snapshot: Mapping[str, Any] | None = None) -> None:
        #: Where the unfinished header begins, or the next byte.
        self._at = byte_start
        self._header = b""
        self._content_left = 0
        self._stream_id = 0
        #: A header was none: what follows is not read.
        self.lost = False
        if snapshot is not None:
            self._at, header, self._content_left, self._stream_id, self.lost = snapshot["reader"]
            self._header = bytes.fromhex(header)

    @property
    def unfinished(self) -> bool:
        """It ends inside a packet."""
        return bool(self._header) or self._content_left > 0

    @property
    def pending(self) -> bytes:
        """The begin of a header that is cut."""
        return self._header

    @property
    def place(self) -> tuple[int, bytes, int, int]:
        """Where the next header begins, what came of it; what is left of a Write, and to which stream."""
        return self._at, self._header, self._content_left, self._stream_id

    def go_on(self, size: int, header: bytes, content_left: int, stream_id: int | None) -> None:
        """`size` bytes were read elsewhere, and what `place` says then; no stream: there was no other Write."""
        self._at, self._header, self._content_left = self._at + size, header, content_left
        self._stream_id = self._stream_id if stream_id is None else stream_id

    def receive(self, data: bytes) -> list[Read | Content]:
        """The packets that `data` completes, and the contents that it brings, in order."""
        if self._header:
            data, self._header = self._header + data, b""
        start, at = self._at, 0
        found: list[Read | Content] = []
        while at < len(data) and not self.lost:
            if self._content_left:
                piece = data[at : at + self._content_left]
                found.append(Content(self._stream_id, start + at, piece))
                self._content_left -= len(piece)
                at += len(piece)
                continue
            read = read_at(data, at, start)
            if read is None:
                self._header = data[at:]
                break
            at = read.byte_end - start
            if read.packet is None:
                self.lost = True
            elif read.packet.content_bytes:
                self._content_left, self._stream_id = read.packet.content_bytes, read.packet.stream_id or 0
                read = read._replace(byte_end=read.byte_end + self._content_left)
            found.append(read)
        self._at = start + at
        return found

    def skip(self, size: int) -> bool:
        """Pass over bytes that are missing. False: they are not all of the Write that is under way."""
        if self.lost or self._header or not 0 < size <= self._content_left:
            return False
        self._at, self._content_left = self._at + size, self._content_left - size
        return True

    def snapshot(self) -> dict[str, Any]:
        """The state as JSON holds it."""
        return {"reader": [self._at, self._header.hex(), self._content_left, self._stream_id, self.lost]}


def read_at(data: bytes | bytearray, at: int, start: int = 0) -> Read | None:
    """The packet at `at`, without content; None = it is cut. `start` is where `data` begins."""
    header = data[at]
    if header >> 5 >= len(Type):
        return Read(start + at, start + at + 1, None)
    kind = Type(header >> 5)
    stream_id = amount = id_width = amount_width = None
    wide = False
    end = at + 1
    if not header & _GLOBAL:
        id_width = _WIDTHS[header >> 2 & 3]
        end += id_width
        stream_id = int.from_bytes(data[end - id_width : end], "big")
        wide = id_width != _narrowest(stream_id)
    if kind in _WITH_AMOUNT:
        amount_width = _WIDTHS[header & 3]
        end += amount_width
        amount = int.from_bytes(data[end - amount_width : end], "big")
        wide = wide or amount_width != _narrowest(amount)
    if end > len(data):
        return None
    packet = Packet(kind, stream_id, amount, id_width, amount_width)
    return Read(start + at, start + end, packet, wide)


# Both sides


class State(Enum):
    """What one side has closed, of a stream or of creating streams. A stream ends when both sides are ENDED."""

    OPEN = "open"
    #: It sent Close: it writes, or creates, no more.
    CLOSED = "closed"
    #: It sent StopRead: it gives no more credit.
    STOPPED = "stopped"
    ENDED = "ended"


class Input(Enum):
    """What a side sends about a stream, or, GLOBAL, about creating streams."""

    CREDIT = "Credit"
    WRITE = "Write"
    PING = "Ping"
    PONG = "Pong"
    CLOSE = "Close"
    STOP_READ = "StopRead"
    GLOBAL_CREDIT = "global Credit"
    CREATE = "global Write"
    GLOBAL_PING = "global Ping"
    GLOBAL_PONG = "global Pong"
    GLOBAL_CLOSE = "global Close"
    GLOBAL_STOP_READ = "global StopRead"


_STREAM_INPUTS: Final = (Input.CREDIT, Input.WRITE, Input.PING, Input.PONG, Input.CLOSE, Input.STOP_READ)
_HAS_CLOSED: Final = (State.CLOSED, State.ENDED)
_HAS_STOPPED: Final = (State.STOPPED, State.ENDED)
#: What has to be answered: the states after it, and those of the other side after the answer.
_ANSWERS: Final = (("Close", _HAS_CLOSED, _HAS_STOPPED), ("StopRead", _HAS_STOPPED, _HAS_CLOSED))
_GLOBAL_INPUTS: Final = (
    Input.GLOBAL_CREDIT, Input.CREATE, Input.GLOBAL_PING, Input.GLOBAL_PONG, Input.GLOBAL_CLOSE, Input.GLOBAL_STOP_READ,
)  # fmt: skip


@dataclass(slots=True)
class _Stream:
    """A stream, or creating streams: what each side has closed, and how much it may still write, or create."""

    states: dict[Role, State]
    credit: dict[Role, int]

    @classmethod
    def new(cls, credit: Mapping[Role, int] | None = None) -> _Stream:
        return cls(dict.fromkeys(Role, State.OPEN), dict.fromkeys(Role, 0) | dict(credit or {}))

    @property
    def ended(self) -> bool:
        return all(state is State.ENDED for state in self.states.values())

    def to_json(self) -> list[Any]:
        return [[self.states[role].value, self.credit[role]] for role in Role]

    @classmethod
    def from_json(cls, sides: list[Any]) -> _Stream:
        states = {role: State(state) for role, (state, _) in zip(Role, sides, strict=True)}
        return cls(states, {role: credit for role, (_, credit) in zip(Role, sides, strict=True)})


class Broken(NamedTuple):
    """A rule, and the offending values in a sentence."""

    rule: Rule
    reason: str


@dataclass(frozen=True, slots=True)
class Received:
    """A packet and what it did. Without a packet its type is not assigned."""

    role: Role
    byte_start: int
    byte_end: int
    packet: Packet | None
    channel: Channel | None
    #: How much its sender may write, or create, after it; of a Credit, how much the other side may.
    credit: int | None
    #: At most one violation, after which nothing more is received.
    broken: tuple[Broken, ...] = ()


class Delivered(NamedTuple):
    """Bytes that a side wrote to a stream."""

    role: Role
    stream_id: int
    channel: Channel | None
    byte_start: int
    data: bytes


class Bymux:
    """Both directions of a connection. `receive` their bytes in the order in which they were sent. Sans-IO.

    It holds no more than `max_streams` streams; packets of further ones are not judged.
    """

    def __init__(self, start: Start = VANILLA, *, max_streams: int = 65_536, snapshot: str | None = None) -> None:
        self.max_streams = max_streams
        self.streams = {stream_id: _Stream.new(credit) for stream_id, credit in start.streams.items()}
        self.creation = _Stream.new()
        self.channels = dict(start.channels)
        self.by_creation = start.by_creation
        #: Neither side has used a stream.
        self._unused = True
        #: A stream was created for which there was no room.
        self.untracked = False
        #: Bytes are missing, so neither credit nor shutdown is judged.
        self.blind = False
        self._readers = {role: Reader() for role in Role}
        #: The violation that ended the connection.
        self.ended_by: Rule | None = None
        if snapshot is not None:
            self._restore(snapshot)

    def receive(self, role: Role, data: bytes) -> list[Received | Delivered]:
        """What `role` sends: packets, each before its content. Nothing after a violation."""
        taken: list[Received | Delivered] = []
        items = self._readers[role].receive(data) if self.ended_by is None else []
        for item in items:
            if isinstance(item, Content):
                channel = self.channels.get(item.stream_id)
                taken.append(Delivered(role, item.stream_id, channel, item.byte_start, item.data))
                continue
            received = self._take(role, item)
            taken.append(received)
            if self.ended_by is not None:
                break
        return taken

    def unfinished(self, role: Role) -> bool:
        """The bytes of `role` end inside a packet."""
        return self._readers[role].unfinished

    def pending(self, role: Role) -> bytes:
        """The begin of a header of `role` that is cut."""
        return self._readers[role].pending

    @property
    def plain(self) -> bool:
        """Both channels are open on both sides and in use, and nothing is missing."""
        streams = [self.streams.get(stream_id) for stream_id in self.channels]
        if self.blind or self._unused or self.ended_by is not None or len(streams) != len(Channel):
            return False
        return all(one is not None and set(one.states.values()) == {State.OPEN} for one in streams)

    def reader(self, role: Role) -> Reader:
        """That of the bytes of `role`."""
        return self._readers[role]

    def credits(self, ids: Mapping[Channel, int]) -> Array:
        """How much each side may write to each channel."""
        both = [[self.streams[ids[channel]].credit[role] for channel in Channel] for role in Role]
        return np.array(both, np.uint64)

    def set_credits(self, ids: Mapping[Channel, int], given: Array) -> None:
        """As `credits`."""
        for role, row in zip(Role, given.tolist(), strict=True):
            for channel, credit in zip(Channel, row, strict=True):
                self.streams[ids[channel]].credit[role] = credit

    def lose(self, role: Role) -> None:
        """Bytes of `role` are missing: what they created, closed and gave credit for isn't known from here on."""
        self._readers[role].lost = self.blind = True

    def find(self, role: Role, byte_start: int) -> None:
        """The packets of `role` go on at `byte_start`."""
        self._readers[role] = Reader(byte_start=byte_start)

    def not_answered(self) -> list[Broken]:
        """What a side closed and the other did not, at an orderly end of the connection."""
        if self.blind:
            return []
        streams = {"creating streams": self.creation} | {f"stream {n}": one for n, one in self.streams.items()}
        return [
            Broken(RULE["close_not_answered"], f"{what} of the {role} side, {name}")
            for name, stream in streams.items()
            for role in Role
            for what, sent, answers in _ANSWERS
            if stream.states[role] in sent and stream.states[role.peer] not in answers
        ]

    def _take(self, role: Role, read: Read) -> Received:
        packet = read.packet
        if packet is None:
            return self._refuse(role, read, "unknown_type", "type 110 or 111", None)
        if packet.creates and self.by_creation and self._unused:
            self.streams, self.channels, self._unused = {}, {}, False
        stream = self.creation if packet.stream_id is None else self.streams.get(packet.stream_id)
        event = (_GLOBAL_INPUTS if packet.stream_id is None else _STREAM_INPUTS)[packet.type]
        channel = None if packet.stream_id is None else self.channels.get(packet.stream_id)
        broken = [Broken(RULE["wide_integer"], "an id or amount is wider than it needs to be")] if read.wide else []
        if self.blind or (stream is None and self.untracked):
            return Received(role, read.byte_start, read.byte_end, packet, channel, None, tuple(broken))
        if stream is None:
            return self._refuse(role, read, "unknown_stream", f"stream {packet.stream_id} is not active", channel)
        self._unused = self._unused and packet.stream_id is None
        rules = JUDGED[event]
        rule = next((rule for rule, breaks in rules.checks if breaks(self, stream, role, packet)), None)
        state = TRANSITIONS.get((stream.states[role], event))
        if rule is not None or state is None:
            about = "" if packet.stream_id is None else f" for stream {packet.stream_id}"
            amount = "" if packet.amount is None else f" {packet.amount}"
            reason = f"{event.value}{amount}{about}: {stream.states[role].value}, credit {stream.credit[role]}"
            return self._refuse(role, read, rule or rules.unlisted, reason, channel)
        stream.states[role] = state
        if rules.effect is not None:
            rules.effect(self, stream, role, packet)
        if stream.ended and packet.stream_id is not None:
            del self.streams[packet.stream_id]
            self.channels.pop(packet.stream_id, None)
        credit = stream.credit[role.peer if packet.type is Type.CREDIT else role]
        if event in (Input.GLOBAL_PING, Input.GLOBAL_PONG):
            return Received(role, read.byte_start, read.byte_end, packet, channel, None, tuple(broken))
        if event is Input.CREDIT and channel is not None and (credit == INFINITE) != (channel is Channel.CONTROL):
            broken.append(Broken(RULE["channel_backpressure_wrong"], f"credit of {channel} is {credit}"))
        return Received(role, read.byte_start, read.byte_end, packet, channel, credit, tuple(broken))

    def _refuse(self, role: Role, read: Read, rule: str, reason: str, channel: Channel | None) -> Received:
        self.ended_by = RULE[rule]
        broken = (Broken(self.ended_by, reason),)
        return Received(role, read.byte_start, read.byte_end, read.packet, channel, None, broken)

    # Snapshots

    def snapshot(self) -> str:
        """The state as JSON; what was agreed on comes from the options again."""
        state = {
            "version": SNAPSHOT_VERSION,
            "streams": {str(stream_id): stream.to_json() for stream_id, stream in self.streams.items()},
            "creation": self.creation.to_json(),
            "channels": {str(stream_id): channel.value for stream_id, channel in self.channels.items()},
            "unused": self._unused,
            "untracked": self.untracked,
            "blind": self.blind,
            "readers": {role.value: reader.snapshot() for role, reader in self._readers.items()},
            "ended_by": None if self.ended_by is None else self.ended_by.name,
        }
        return json.dumps(state, separators=(",", ":"))

    def _restore(self, snapshot: str) -> None:
        state = json.loads(snapshot)
        if state.get("version") != SNAPSHOT_VERSION:
            raise StateVersionError(what="bymux", found=state.get("version"), expected=SNAPSHOT_VERSION)
        self.streams = {int(stream_id): _Stream.from_json(stream) for stream_id, stream in state["streams"].items()}
        self.creation = _Stream.from_json(state["creation"])
        self.channels = {int(stream_id): Channel(channel) for stream_id, channel in state["channels"].items()}
        self._unused, self.untracked, self.blind = state["unused"], state["untracked"], state["blind"]
        self._readers = {role: Reader(snapshot=state["readers"][role.value]) for role in Role}
        self.ended_by = None if state["ended_by"] is None else RULE[state["ended_by"]]


# The table

#: What a side may send, by what it has closed, and what it has closed then.
TRANSITIONS: Final[Mapping[tuple[State, Input], State]] = MappingProxyType(
    {
        (State.OPEN, Input.CREDIT): State.OPEN,
        (State.OPEN, Input.WRITE): State.OPEN,
        (State.OPEN, Input.PING): State.OPEN,
        (State.OPEN, Input.PONG): State.OPEN,
        (State.OPEN, Input.CLOSE): State.CLOSED,
        (State.OPEN, Input.STOP_READ): State.STOPPED,
        (State.CLOSED, Input.CREDIT): State.CLOSED,
        (State.CLOSED, Input.PING): State.CLOSED,
        (State.CLOSED, Input.PONG): State.CLOSED,
        (State.CLOSED, Input.STOP_READ): State.ENDED,
        (State.STOPPED, Input.WRITE): State.STOPPED,
        (State.STOPPED, Input.PING): State.STOPPED,
        (State.STOPPED, Input.PONG): State.STOPPED,
        (State.STOPPED, Input.CLOSE): State.ENDED,
        (State.OPEN, Input.GLOBAL_CREDIT): State.OPEN,
        (State.OPEN, Input.CREATE): State.OPEN,
        (State.OPEN, Input.GLOBAL_PING): State.OPEN,
        (State.OPEN, Input.GLOBAL_PONG): State.OPEN,
        (State.OPEN, Input.GLOBAL_CLOSE): State.CLOSED,
        (State.OPEN, Input.GLOBAL_STOP_READ): State.STOPPED,
        (State.CLOSED, Input.GLOBAL_CREDIT): State.CLOSED,
        (State.CLOSED, Input.GLOBAL_PING): State.CLOSED,
        (State.CLOSED, Input.GLOBAL_PONG): State.CLOSED,
        (State.CLOSED, Input.GLOBAL_STOP_READ): State.ENDED,
        (State.STOPPED, Input.GLOBAL_PING): State.STOPPED,
        (State.STOPPED, Input.GLOBAL_PONG): State.STOPPED,
        (State.STOPPED, Input.CREATE): State.STOPPED,
        (State.STOPPED, Input.GLOBAL_CLOSE): State.ENDED,
    }
)


Check = Callable[[Bymux, _Stream, Role, Packet], bool]


class Judgement(NamedTuple):
    """How an input is judged: by rules that come before the state's, by the rule of a state that doesn't list it."""

    unlisted: str
    checks: tuple[tuple[str, Check], ...] = ()
    #: What it does beside the change of state.
    effect: Callable[[Bymux, _Stream, Role, Packet], None] | None = None


def _above_infinite(_: Bymux, stream: _Stream, role: Role, packet: Packet) -> bool:
    credit = stream.credit[role.peer]
    return credit != INFINITE and credit + (packet.amount or 0) > INFINITE


def _creation_above_limit(_: Bymux, stream: _Stream, role: Role, packet: Packet) -> bool:
    return stream.credit[role.peer] + (packet.amount or 0) > MAX_U64


def _is_infinite(_: Bymux, stream: _Stream, role: Role, packet: Packet) -> bool:
    return stream.credit[role.peer] == INFINITE and packet.amount != 0


def _beyond_credit(_: Bymux, stream: _Stream, role: Role, packet: Packet) -> bool:
    return packet.content_bytes > stream.credit[role]


def _no_credit(_: Bymux, stream: _Stream, role: Role, __: Packet) -> bool:
    return not stream.credit[role]


def _other_parity(_: Bymux, __: _Stream, role: Role, packet: Packet) -> bool:
    return not role.may_take(packet.amount or 0)


def _is_active(bymux: Bymux, _: _Stream, __: Role, packet: Packet) -> bool:
    return packet.amount in bymux.streams


def _give(_: Bymux, stream: _Stream, role: Role, packet: Packet) -> None:
    stream.credit[role.peer] += packet.amount or (INFINITE - stream.credit[role.peer])


def _spend(_: Bymux, stream: _Stream, role: Role, packet: Packet) -> None:
    if stream.credit[role] != INFINITE:
        stream.credit[role] -= packet.content_bytes


def _give_creation(_: Bymux, stream: _Stream, role: Role, packet: Packet) -> None:
    stream.credit[role.peer] += packet.amount or 0


def _create(bymux: Bymux, stream: _Stream, role: Role, packet: Packet) -> None:
    stream.credit[role] -= 1
    created = packet.amount or 0
    if len(bymux.streams) >= bymux.max_streams:
        bymux.untracked = True
        return
    bymux.streams[created] = _Stream.new()
    unnamed = [channel for channel in Channel if channel not in bymux.channels.values()]
    if role is Role.PROACTIVE and bymux.by_creation and unnamed:
        bymux.channels[created] = unnamed[0]


JUDGED: Final[Mapping[Input, Judgement]] = MappingProxyType(
    {
        Input.CREDIT: Judgement(
            "credit_after_stopread",
            (("credit_overflow", _above_infinite), ("credit_on_infinite", _is_infinite)),
            _give,
        ),
        Input.WRITE: Judgement("write_after_close", (("write_without_credit", _beyond_credit),), _spend),
        Input.PING: Judgement("ping_after_end"),
        Input.PONG: Judgement("ping_after_end"),
        Input.CLOSE: Judgement("close_twice"),
        Input.STOP_READ: Judgement("stopread_twice"),
        Input.GLOBAL_CREDIT: Judgement(
            "global_credit_after_stopread", (("global_credit_overflow", _creation_above_limit),), _give_creation
        ),
        Input.CREATE: Judgement(
            "create_after_global_close",
            (
                ("create_without_credit", _no_credit),
                ("stream_id_parity", _other_parity),
                ("stream_id_in_use", _is_active),
            ),
            _create,
        ),
        Input.GLOBAL_PING: Judgement("ping_after_end"),
        Input.GLOBAL_PONG: Judgement("ping_after_end"),
        Input.GLOBAL_CLOSE: Judgement("close_twice"),
        Input.GLOBAL_STOP_READ: Judgement("stopread_twice"),
    }
)
