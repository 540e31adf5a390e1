"""Both sides of a bymux connection: streams of bytes over one connection, each with credit of its own.

`Bymux` takes the packets of both directions and checks credit, stream ids and shutdown (bymux specification).
`TRANSITIONS` lists what a side may still send. There is one state machine for each side of each stream, and one for
each side of stream creation. An input that the table doesn't list breaks the rule that `JUDGED` names for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np

from wirehouse_codecs.bamboo.rules import RULE
from wirehouse_codecs.bamboo.setup import INFINITE, VANILLA, Channel, Role, Start
from wirehouse_codecs.bamboo.wire.bymux_packets import Content, Packet, Read, Reader, Type
from wirehouse_codecs.bamboo.wire.varu64 import MAX_U64
from wirehouse_codecs.core.rules import Rule

Array = np.ndarray[Any, Any]


# Both sides


class State(Enum):
    """What one side has closed of a stream, or of stream creation. A stream ends when both sides are ENDED."""

    OPEN = "open"
    #: It sent Close, so it may write to the stream (create streams) no more.
    CLOSED = "closed"
    #: It sent StopRead, so it may give no more credit.
    STOPPED = "stopped"
    ENDED = "ended"


class Input(Enum):
    """What a side sends about a stream. GLOBAL: about stream creation."""

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
#: Packets that need an answer: the states of the sender, and the states of the other side after its answer.
_ANSWERS: Final = (("Close", _HAS_CLOSED, _HAS_STOPPED), ("StopRead", _HAS_STOPPED, _HAS_CLOSED))
_GLOBAL_INPUTS: Final = (
    Input.GLOBAL_CREDIT, Input.CREATE, Input.GLOBAL_PING, Input.GLOBAL_PONG, Input.GLOBAL_CLOSE, Input.GLOBAL_STOP_READ,
)  # fmt: skip


@dataclass(slots=True)
class _Stream:
    """A stream, or stream creation: what each side has closed, and how many bytes (streams) it may still send."""

    states: dict[Role, State]
    credit: dict[Role, int]

    @classmethod
    def new(cls, credit: Mapping[Role, int] | None = None) -> _Stream:
        return cls(dict.fromkeys(Role, State.OPEN), dict.fromkeys(Role, 0) | dict(credit or {}))

    @property
    def ended(self) -> bool:
        return all(state is State.ENDED for state in self.states.values())


class Broken(NamedTuple):
    """A rule, and the offending values in a sentence."""

    rule: Rule
    reason: str


@dataclass(frozen=True, slots=True)
class Received:
    """A packet and its effect. No packet: its type is unassigned."""

    role: Role
    byte_start: int
    byte_end: int
    packet: Packet | None
    channel: Channel | None
    #: How many bytes or streams its sender may send after it. For a Credit: how many the other side may send.
    credit: int | None
    #: The rules that it breaks. At most one is a violation, and nothing is received after that.
    broken: tuple[Broken, ...] = ()


class Delivered(NamedTuple):
    """Bytes that a side wrote to a stream."""

    role: Role
    stream_id: int
    channel: Channel | None
    byte_start: int
    data: bytes


class BymuxState(NamedTuple):
    """What a Bymux carries from window to window."""

    streams: dict[int, _Stream]
    creation: _Stream
    channels: dict[int, Channel]
    readers: dict[Role, Reader]
    #: The name of the violation that ended the connection.
    ended_by: str | None
    unused: bool
    untracked: bool
    blind: bool


class Bymux:
    """Both directions of a connection. `receive` takes their bytes in the order in which they were sent. Sans-IO.

    It holds at most `max_streams` streams and doesn't judge packets of further ones.
    """

    def __init__(self, start: Start = VANILLA, *, max_streams: int = 65_536, state: BymuxState | None = None) -> None:
        self.max_streams = max_streams
        self.streams = {stream_id: _Stream.new(credit) for stream_id, credit in start.streams.items()}
        self.creation = _Stream.new()
        self.channels = dict(start.channels)
        self.by_creation = start.by_creation
        #: No side has used a stream yet.
        self._unused = True
        #: A stream was created after `max_streams` was reached.
        self.untracked = False
        #: Bytes are missing, so neither credit nor shutdown is judged.
        self.blind = False
        self._readers = {role: Reader() for role in Role}
        #: The violation that ended the connection.
        self.ended_by: Rule | None = None
        if state is not None:
            self._restore(state)

    def receive(self, role: Role, data: bytes) -> list[Received | Delivered]:
        """The packets in `data`, which `role` sent, each before its content. Nothing after a violation."""
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
        """Whether the bytes of `role` end within a packet."""
        return self._readers[role].unfinished

    def pending(self, role: Role) -> bytes:
        """The bytes of an incomplete header of `role`."""
        return self._readers[role].pending

    @property
    def plain(self) -> bool:
        """Whether the fast path can go on: both channels are open on both sides and in use, no bytes are missing."""
        streams = [self.streams.get(stream_id) for stream_id in self.channels]
        if self.blind or self._unused or self.ended_by is not None or len(streams) != len(Channel):
            return False
        return all(one is not None and set(one.states.values()) == {State.OPEN} for one in streams)

    def reader(self, role: Role) -> Reader:
        """The reader of the bytes of `role`."""
        return self._readers[role]

    def credits(self, ids: Mapping[Channel, int]) -> Array:
        """How many bytes each side may still write to each channel."""
        both = [[self.streams[ids[channel]].credit[role] for channel in Channel] for role in Role]
        return np.array(both, np.uint64)

    def set_credits(self, ids: Mapping[Channel, int], given: Array) -> None:
        """Replace the credits, in the form of `credits`."""
        for role, row in zip(Role, given.tolist(), strict=True):
            for channel, credit in zip(Channel, row, strict=True):
                self.streams[ids[channel]].credit[role] = credit

    def lose(self, role: Role) -> None:
        """Bytes of `role` are missing, so from here on streams, shutdown and credit are unknown."""
        self._readers[role].lost = self.blind = True

    def name(self, role: Role, creating: Packet) -> None:
        """The first streams that the proactive side creates are the channels, if nothing else decides it."""
        unnamed = [channel for channel in Channel if channel not in self.channels.values()]
        if role is Role.PROACTIVE and self.by_creation and unnamed:
            self.channels[creating.amount or 0] = unnamed[0]

    def find(self, role: Role, byte_start: int) -> None:
        """The packets of `role` continue at `byte_start`."""
        self._readers[role] = Reader(byte_start, is_whole=False)

    def not_answered(self) -> list[Broken]:
        """Close and StopRead packets without an answer, after an orderly end of the connection."""
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
        self._unused = self._unused and packet.stream_id is None
        if self.blind or (stream is None and self.untracked):
            if packet.creates and self._readers[role].is_whole:
                self.name(role, packet)
            return Received(role, read.byte_start, read.byte_end, packet, channel, None, tuple(broken))
        if stream is None:
            return self._refuse(role, read, "unknown_stream", f"stream {packet.stream_id} is not active", channel)
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

    # Carried state

    @property
    def state(self) -> BymuxState:
        """All that isn't given by the options."""
        ended_by = None if self.ended_by is None else self.ended_by.name
        flags = (self._unused, self.untracked, self.blind)
        return BymuxState(self.streams, self.creation, self.channels, self._readers, ended_by, *flags)

    def _restore(self, state: BymuxState) -> None:
        """Continue from the state of an earlier machine with the same options."""
        self.streams, self.creation, self.channels, self._readers = state[:4]
        self.ended_by = None if state.ended_by is None else RULE[state.ended_by]
        self._unused, self.untracked, self.blind = state[5:]


# The table

#: What a side may send in each state, and its state afterwards.
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
    """How an input is judged: `checks` come first, `unlisted` is the rule if the table doesn't list it."""

    unlisted: str
    checks: tuple[tuple[str, Check], ...] = ()
    #: Its effect besides the change of state.
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
    bymux.name(role, packet)


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
