"""The input and output of reassembly: segments, and the events of a connection."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.packets import ACK, FIN, RST, SYN

if TYPE_CHECKING:
    from wirehouse_codecs.tcp.connection import Connection

#: Flags that decide what a segment is.
CONTROL: Final = SYN | FIN | RST | ACK

Opening = Literal["syn", "syn_ack", "middle"]

Ending = Literal["fin", "reset", "idle", "reuse"]


class TcpSegment(NamedTuple):
    """A segment as reassembly takes it."""

    place: Place
    direction: Direction
    sequence: int
    acknowledgment: int
    flags: int
    #: The window field as sent, before scaling.
    window: int
    #: The bytes that were captured.
    payload: bytes
    #: Number of bytes that were sent; more than in `payload` if the snap length cut it.
    payload_bytes: int


class Opened(NamedTuple):
    """A connection began, or the capture of it."""

    connection: Connection


class Data(NamedTuple):
    """The next bytes of a direction."""

    direction: Direction
    byte_start: int
    data: bytes
    #: The place of the segment that completed them, as for all events with a place.
    place: Place


class Hole(NamedTuple):
    """Bytes that are not in the capture; those behind them come next."""

    direction: Direction
    byte_start: int
    byte_end: int
    place: Place
    #: Whether it was given up because too much waited behind it.
    over_limit: bool = False


class Unordered(NamedTuple):
    """The next bytes of each side acknowledge the next bytes of the other, because they are retransmissions.

    A retransmission acknowledges more than the first copy did. So nobody knows which bytes were sent first, nor what
    their senders knew.
    """

    place: Place


class OverlapDiffers(NamedTuple):
    """Bytes that a segment carried again with other content: from the first to the last that differs."""

    direction: Direction
    byte_start: int
    byte_end: int
    place: Place


class ResetIgnored(NamedTuple):
    """A RST of `direction` that closed nothing: the connection went on."""

    direction: Direction
    place: Place


class Closed(NamedTuple):
    """The connection has closed: no more events of it follow."""

    place: Place
    how: Ending
    #: The side that closed it: the sender of a FIN that the other side's FIN acknowledges, or of the RST. None: silence
    #: or a new connection closed it, or both sides sent their FIN before they received the other's.
    side: Direction | None = None


Event = Opened | Data | Hole | Unordered | OverlapDiffers | ResetIgnored | Closed


class End(StrEnum):
    """How a connection ended, as its session needs to know."""

    CLOSED = "closed"
    RESET = "reset"
    #: The capture has no end of it: it may have gone on.
    CAPTURE_END = "capture_end"

    @classmethod
    def of(cls, closed: Closed) -> End:
        """The end that `closed` is."""
        return {"fin": cls.CLOSED, "reset": cls.RESET}.get(closed.how, cls.CAPTURE_END)
