"""The `Outcome` that a session gives for each frame, with its findings, states and kinds.

The reasons for which the worker ignores a frame are values of the log's column `ignored`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from wirehouse_codecs.core.rules import Place, Rule
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.wallaroo.session.streams import StreamState
from wirehouse_codecs.wallaroo.wire.reader_state import Received


class State(StrEnum):
    """The state of a connection: the specification's states, and two after which nothing more is expected."""

    CONNECTED = "connected"
    HANDSHAKE = "handshake"
    STREAMING = "streaming"
    #: The worker asked to reconnect (implemented dialects).
    RESTARTED = "restarted"
    #: A rule was broken after which the worker must close.
    ENDED = "ended"
    ERROR = "error"
    DISCONNECTED = "disconnected"


class Kind(StrEnum):
    """The kind of a frame, or of bytes that are none."""

    HELLO = "HELLO"
    OK = "OK"
    ERROR = "ERROR"
    NOTIFY = "NOTIFY"
    NOTIFY_ACK = "NOTIFY_ACK"
    MESSAGE = "MESSAGE"
    ACK = "ACK"
    NACK = "NACK"
    RESTART = "RESTART"
    EOS_MESSAGE = "EOS_MESSAGE"
    WORKERS_LEFT = "WORKERS_LEFT"
    UNDECODABLE = "UNDECODABLE"


AFTER_ERROR: Final = "after_error"
AFTER_VIOLATION: Final = "after_violation"
AFTER_RESTART: Final = "after_restart"
NOT_ABOVE_LAST_SEEN: Final = "id_not_above_last_seen"
NOT_FOR_SOURCES: Final = "not_for_sources"


@dataclass(frozen=True, slots=True)
class Where:
    """The frame that a finding is about."""

    direction: Direction
    place: Place
    byte_start: int
    byte_end: int

    @classmethod
    def of(cls, received: Received) -> Where:
        """The location of `received`."""
        return cls(received.direction, received.place, received.byte_start, received.byte_end)


class Reference(NamedTuple):
    """A message that its stream did not send in this session, and the worker's frame that points at it."""

    stream_id: int
    message_id: int
    where: Where


@dataclass(frozen=True, slots=True)
class Found:
    """A rule broken by the frame at `where`, or, with None, by the connection as a whole."""

    rule: Rule
    where: Where | None
    message: str
    stream_id: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The effect of one frame."""

    received: Received
    kind: Kind
    #: Findings in the order of the checks, also those about earlier frames that are known only now.
    findings: tuple[Found, ...]
    #: The reason for which the worker ignores it; None = it doesn't.
    ignored: str | None
    #: The connector's credits after it; None = unknown, before OK.
    credits: int | None
    #: Credits that it granted, and that it took.
    granted: int
    spent: int
    state: State
    #: Whether the worker has answered by OK, so that no cookie can follow.
    accepted: bool
    #: The stream of a MESSAGE, also where the text leaves it out and one is open.
    stream_id: int | None
    stream_state: StreamState | None
