"""ERROR, RESTART, and the frames after them or after a broken rule that ends the session.

- After an ERROR nothing is valid any more. A side that sends after its own ERROR breaks a rule.
- After a rule of `ENDS` (rules.py) was broken the worker must signal an error. It can't do so before it has received
  the frame that broke the rule.
- The worker's RESTART is a state of its own: the connection is left, but not in error.
- No finding quotes the text of an ERROR, for workers print cookies into it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.wallaroo.frames import KIND_OF, EosMessage, Error, Frame, Message, Notify
from wirehouse_codecs.wallaroo.rules import ENDS, FRAME_RULES, RULE
from wirehouse_codecs.wallaroo.session.credits import spend
from wirehouse_codecs.wallaroo.session.going_on import answered, note
from wirehouse_codecs.wallaroo.session.judging import Judgement, find, forget_later, ignore, not_signalled
from wirehouse_codecs.wallaroo.session.memory import Memory
from wirehouse_codecs.wallaroo.session.outcome import (
    AFTER_ERROR,
    AFTER_RESTART,
    AFTER_VIOLATION,
    Found,
    Kind,
    State,
)

_FRAME_RULES: Final = frozenset(rule.name for rule in FRAME_RULES)
#: The rule by the word in an ERROR that names what is refused, in the order of the rules.
_REFUSALS: Final[Mapping[bytes, str]] = {b"cookie": "cookie_refused", b"version": "version_refused"}


def take_connector_error(memory: Memory, judgement: Judgement, _: Error) -> None:
    """The connector signals an error."""
    find(memory, judgement, "connector_error", f"in state {memory.state}")
    _take_error(memory, judgement, Direction.CLIENT)


def take_worker_error(memory: Memory, judgement: Judgement, error: Error) -> None:
    """The worker signals an error, or refuses HELLO by it."""
    if memory.state is State.HANDSHAKE and memory.hello is not None and not memory.may_miss(Direction.SERVER):
        _refuse_hello(memory, judgement, error)
    elif memory.ended_by is None:
        find(memory, judgement, "worker_error", f"in state {memory.state}")
    memory.answered = True
    _take_error(memory, judgement, Direction.SERVER)


def _refuse_hello(memory: Memory, judgement: Judgement, error: Error) -> None:
    """HELLO is answered by an ERROR: the finding is about the HELLO, which breaks at most one rule of frames."""
    assert memory.hello is not None
    text = error.reason.lower()
    name = next((name for word, name in _REFUSALS.items() if word in text), "hello_refused")
    if name in _FRAME_RULES and memory.hello_judged:
        return
    judgement.found.append(Found(RULE[name], memory.hello, "the worker answers HELLO by an ERROR"))
    if name in ENDS:
        memory.ended_by = name


def take_late_error(memory: Memory, judgement: Judgement, _: Error) -> None:
    """An ERROR of either side after a rule of `ENDS` was broken: it counts as the signal."""
    judgement.ignored = None if judgement.where.direction is Direction.SERVER else AFTER_VIOLATION
    _take_error(memory, judgement, judgement.where.direction)


def _take_error(memory: Memory, judgement: Judgement, side: Direction) -> None:
    memory.errors.add(side)
    memory.error = memory.error or judgement.where
    memory.violation = memory.dry = None
    forget_later(memory)


def after_error(memory: Memory, judgement: Judgement, frame: Frame | None) -> None:
    """Take a frame after an ERROR. It breaks a rule if its side sent the ERROR, else it is discarded."""
    side = judgement.where.direction
    if side is Direction.CLIENT:
        _count_message(memory, frame)
    if side in memory.errors:
        judgement.ignored = AFTER_ERROR
        find(memory, judgement, "frame_after_error", f"the {side} has sent an ERROR before")
    else:
        ignore(memory, judgement, AFTER_ERROR)
    if isinstance(frame, Error):
        memory.errors.add(side)


def after_violation(memory: Memory, judgement: Judgement, frame: Frame | None) -> None:
    """Ignore a frame after a broken rule of `ENDS`."""
    judgement.ignored = AFTER_VIOLATION
    if judgement.where.direction is Direction.CLIENT:
        _count_message(memory, frame)
    note(memory, judgement, frame)
    shown = answered(memory, judgement, frame)
    if shown is not None:
        judgement.found.append(not_signalled(memory, shown))


def take_restart(memory: Memory, _judgement: Judgement, _: Frame) -> None:
    """The worker asks the connector to connect again."""
    memory.dry = None
    for stream in memory.streams.values():
        stream.rewound = True


def after_restart(memory: Memory, judgement: Judgement, frame: Frame) -> None:
    """Take a frame after RESTART, which the connector may not have received yet: it is dropped, and takes credits."""
    if isinstance(frame, Message | Notify | EosMessage):
        judgement.stream_id = frame.stream_id
    ignore(memory, judgement, AFTER_RESTART, judgement.stream_id)
    _count_message(memory, frame)
    memory.eos_messages += isinstance(frame, EosMessage)
    if isinstance(frame, Message | Notify):
        spend(memory, judgement, Kind(KIND_OF[type(frame)]))


def _count_message(memory: Memory, frame: Frame | None) -> None:
    """Count an ignored MESSAGE for its stream, if it names a known one."""
    if isinstance(frame, Message) and frame.stream_id in memory.streams:
        memory.streams[frame.stream_id].messages += 1
