"""What the two sides of a Bamboo session agree on before their first packet: channels, roles and sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

#: Credit of a stream that is not limited.
INFINITE: Final = (1 << 64) - 1


class Role(StrEnum):
    """A side of a connection. The proactive one creates even ids, the reactive one odd ids."""

    PROACTIVE = "proactive"
    REACTIVE = "reactive"

    @property
    def peer(self) -> Role:
        """The other side."""
        return Role.REACTIVE if self is Role.PROACTIVE else Role.PROACTIVE

    def may_take(self, number: int) -> bool:
        """Whether a stream or proposal of this side may have the id `number`."""
        return number % 2 == (0 if self is Role.PROACTIVE else 1)


class Channel(StrEnum):
    """What a stream is for (Point-2-Point, "Running Over Bymux")."""

    CONTROL = "control"
    DATA = "data"


@dataclass(frozen=True, slots=True)
class Start:
    """What is agreed on before the first packet."""

    #: The streams that exist, and how much each side may write at first.
    streams: Mapping[int, Mapping[Role, int]]
    channels: Mapping[int, Channel]
    #: Whether the first stream that the proactive side creates is the control channel, the second one the data channel.
    #: Streams in `channels` then count as absent if a side creates one before any of them is used.
    by_creation: bool = False


#: The start that bymux defines: no streams, and no credit.
VANILLA: Final = Start({}, {}, True)


def agreed(control: int, data: int, *, by_creation: bool) -> Start:
    """Both channels exist; control has no backpressure, data no credit yet."""
    streams = {control: dict.fromkeys(Role, INFINITE), data: dict.fromkeys(Role, 0)}
    return Start(streams, {control: Channel.CONTROL, data: Channel.DATA}, by_creation)


#: Payload packets with more bytes are handed on in pieces of this size.
PIECE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Setup:
    """What a side sends before the first packet (specification, "Session Setup"). Windows are in bytes."""

    sends_greedily: bool
    receives_greedily: bool
    send_window: int
    receive_window: int
    #: The six ignored bits of the first byte, in their position.
    ignored_bits: int = 0
