"""The state machine of a connection as a table (specification, "Protocol State Machine"): what each frame does.

A frame of a kind, from a side, in a state: its effect, the state after it, and the rule that it breaks in any case.
The effects are in handshake.py, errors.py and stream_frames.py. The machine of a stream is in streams.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.wallaroo.frames import Frame
from wirehouse_codecs.wallaroo.session.errors import (
    after_error,
    after_restart,
    after_violation,
    take_connector_error,
    take_late_error,
    take_restart,
    take_worker_error,
)
from wirehouse_codecs.wallaroo.session.handshake import take_early_ok, take_hello, take_ok
from wirehouse_codecs.wallaroo.session.judging import Judgement
from wirehouse_codecs.wallaroo.session.memory import Memory
from wirehouse_codecs.wallaroo.session.outcome import NOT_FOR_SOURCES, Kind, State
from wirehouse_codecs.wallaroo.session.stream_frames import (
    take_ack,
    take_eos,
    take_message,
    take_nack,
    take_notify,
    take_notify_ack,
)


class Step(NamedTuple):
    """A step of the machine: an effect, the state after it, and the rule that the frame breaks."""

    effect: Callable[[Memory, Judgement, Any], None]
    state: State
    rule: str | None = None


def pass_over(_: Memory, judgement: Judgement, _frame: Frame) -> None:
    """Take a frame that sources don't use."""
    judgement.ignored = NOT_FOR_SOURCES


def nothing(_: Memory, _judgement: Judgement, _frame: Frame) -> None:
    """Take a frame of which nothing is kept."""


_C, _S = Direction.CLIENT, Direction.SERVER
#: Frames that each side sends once the session streams.
_CONNECTOR_KINDS: Final[Mapping[Kind, Callable[[Memory, Judgement, Any], None]]] = {
    Kind.NOTIFY: take_notify,
    Kind.MESSAGE: take_message,
    Kind.EOS_MESSAGE: take_eos,
}
_WORKER_KINDS: Final[Mapping[Kind, Callable[[Memory, Judgement, Any], None]]] = {
    Kind.NOTIFY_ACK: take_notify_ack,
    Kind.ACK: take_ack,
    Kind.NACK: take_nack,
}
_FRAMES: Final = tuple(kind for kind in Kind if kind is not Kind.UNDECODABLE)
#: States in which frames of both sides still count.
TALKING: Final = (State.CONNECTED, State.HANDSHAKE, State.STREAMING, State.RESTARTED)

#: An unlisted pair is the rule that `unlisted` names.
TRANSITIONS: Mapping[tuple[State, Direction, Kind], Step] = MappingProxyType(
    {
        (State.CONNECTED, _C, Kind.HELLO): Step(take_hello, State.HANDSHAKE),
        # A worker's early frame doesn't end the session: the HELLO that follows is judged as usual.
        (State.CONNECTED, _S, Kind.OK): Step(take_early_ok, State.CONNECTED, "frame_before_hello"),
        **{
            (State.CONNECTED, _S, kind): Step(nothing, State.CONNECTED, "frame_before_hello")
            for kind in (*_WORKER_KINDS, Kind.RESTART, Kind.WORKERS_LEFT)
        },
        (State.HANDSHAKE, _S, Kind.OK): Step(take_ok, State.STREAMING),
        **{
            (State.HANDSHAKE, side, kind): Step(effect, State.HANDSHAKE, "frame_before_ok")
            for side, kinds in ((_C, _CONNECTOR_KINDS), (_S, _WORKER_KINDS))
            for kind, effect in kinds.items()
        },
        # Too early to leave the connection: an OK that follows is still the first.
        (State.HANDSHAKE, _S, Kind.RESTART): Step(nothing, State.HANDSHAKE, "frame_before_ok"),
        (State.STREAMING, _S, Kind.OK): Step(nothing, State.STREAMING, "duplicate_ok"),
        **{(State.STREAMING, _C, kind): Step(effect, State.STREAMING) for kind, effect in _CONNECTOR_KINDS.items()},
        **{(State.STREAMING, _S, kind): Step(effect, State.STREAMING) for kind, effect in _WORKER_KINDS.items()},
        (State.STREAMING, _S, Kind.RESTART): Step(take_restart, State.RESTARTED),
        (State.RESTARTED, _S, Kind.OK): Step(nothing, State.RESTARTED, "duplicate_ok"),
        **{(State.RESTARTED, _C, kind): Step(after_restart, State.RESTARTED) for kind in _CONNECTOR_KINDS},
        **{(State.RESTARTED, _S, kind): Step(effect, State.RESTARTED) for kind, effect in _WORKER_KINDS.items()},
        (State.RESTARTED, _S, Kind.RESTART): Step(take_restart, State.RESTARTED),
        **{(state, _C, Kind.ERROR): Step(take_connector_error, State.ERROR) for state in TALKING},
        **{(state, _S, Kind.ERROR): Step(take_worker_error, State.ERROR) for state in TALKING},
        **{
            (State.HANDSHAKE, side, Kind.WORKERS_LEFT): Step(pass_over, State.HANDSHAKE, "frame_before_ok")
            for side in Direction
        },
        **{
            (state, side, Kind.WORKERS_LEFT): Step(pass_over, state)
            for state in (State.STREAMING, State.RESTARTED)
            for side in Direction
        },
        **{(State.ENDED, side, kind): Step(after_violation, State.ENDED) for side in Direction for kind in _FRAMES},
        **{(State.ENDED, side, Kind.ERROR): Step(take_late_error, State.ERROR) for side in Direction},
        **{(State.ERROR, side, kind): Step(after_error, State.ERROR) for side in Direction for kind in _FRAMES},
    }
)


def unlisted(state: State, direction: Direction, kind: Kind) -> str | None:
    """The rule that a frame breaks whose pair isn't in the table; None in the state without communication."""
    if state is State.DISCONNECTED or kind is Kind.UNDECODABLE:
        return None
    if direction is Direction.CLIENT and state is State.CONNECTED:
        return "frame_before_hello"
    if direction is Direction.CLIENT and kind is Kind.HELLO:
        return "duplicate_hello"
    return "wrong_direction"
