"""One frame while it is judged, and how findings about it are made.

What a frame does is an effect `(memory, judgement, frame)`: it changes the memory of the session, and notes in the
judgement the findings, why the frame is ignored, and the next state. Of the rules of frames (rules.py,
`FRAME_RULES`) a frame breaks at most the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from wirehouse_codecs.tcp.endpoints import Direction, PeerReceived
from wirehouse_codecs.wallaroo.rules import ENDS, FRAME_RULES, RULE
from wirehouse_codecs.wallaroo.session.memory import Memory
from wirehouse_codecs.wallaroo.session.outcome import Found, State, Where

#: Maximum number of findings about one frame: more than an ACK of the largest size has entries.
MAX_FINDINGS: Final = 1024
_FRAME_RULES: Final = frozenset(rule.name for rule in FRAME_RULES)


@dataclass(slots=True)
class Judgement:
    """The decisions about a frame."""

    where: Where
    peer_received_of: PeerReceived
    #: Whether it isn't known when its last byte was sent first.
    is_late: bool = False
    #: Makes of a cookie what may be kept; None = nothing may.
    cookie_hash: Callable[[bytes], bytes] | None = None
    found: list[Found] = field(default_factory=list)
    #: Whether it breaks a rule of frames.
    frame_rule_broken: bool = False
    ignored: str | None = None
    stream_id: int | None = None
    #: Credits that it grants.
    granted: int = 0
    #: The next state; None = the session stays in its state.
    next: State | None = None

    def peer_received(self) -> int:
        """Number of bytes of the other side that its sender had received. It may be more if the frame `is_late`."""
        return self.peer_received_of(self.where.direction, self.where.byte_end)


def find(
    memory: Memory,
    judgement: Judgement,
    name: str | None,
    message: str,
    stream_id: int | None = None,
    *,
    ends: bool = True,
) -> bool:
    """Note that the frame breaks a rule. True if that ends the session. Only the first rule of frames counts.

    With `ends=False` the rule doesn't end the session: the table has the next state.
    """
    if name is None:
        return False
    if name in _FRAME_RULES:
        if judgement.frame_rule_broken:
            return False
        judgement.frame_rule_broken = True
    elif len(judgement.found) >= MAX_FINDINGS:
        return False
    judgement.found.append(Found(RULE[name], judgement.where, message, stream_id))
    if name in ENDS and ends:
        judgement.next = State.ENDED
        memory.ended_by = name
        memory.violation = None if memory.may_miss(Direction.SERVER) else judgement.where
        memory.dry = None
        return True
    return False


def ignore(memory: Memory, judgement: Judgement, reason: str, stream_id: int | None = None) -> None:
    """Note that the worker ignores the frame, and why."""
    judgement.ignored = reason
    find(memory, judgement, "message_ignored", reason, stream_id)


def is_unaware(memory: Memory, judgement: Judgement) -> bool:
    """Whether the worker sent the frame before it had received the connector's frame that broke a rule."""
    broken = memory.violation
    return (
        broken is not None
        and (broken.direction, judgement.where.direction) == (Direction.CLIENT, Direction.SERVER)
        and judgement.peer_received() < broken.byte_end
    )


def not_signalled(memory: Memory, why: str) -> Found:
    """The finding that the worker goes on after a broken rule that it must signal."""
    assert memory.violation is not None
    found = Found(RULE["error_not_signalled"], memory.violation, f"{memory.ended_by}, and {why}")
    memory.violation = None
    forget_later(memory)
    return found


def forget_later(memory: Memory) -> None:
    """Forget the frames since the broken rule: nothing is expected of the worker any more."""
    memory.later_hello, memory.later_notifies, memory.later_messages = None, [], []
