"""Types that the tables of all methods share: a step, its effect, a call's memory, and what a sender may have known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from wirehouse_codecs.core.rules import Rule
from wirehouse_codecs.hiero.profiles import NO_BLOCK
from wirehouse_codecs.hiero.rules import RULE
from wirehouse_codecs.tcp.endpoints import Direction

if TYPE_CHECKING:
    from wirehouse_codecs.hiero.session.session import Call

#: A node verifies a block before it answers: a publisher that ends its call sooner didn't wait for that.
ANSWER_NS: Final = 2 * 10**9


class CallInput(NamedTuple):
    """An input of a call's state machine, with the values of its message."""

    input: StrEnum
    at_ns: int
    #: The number of the header, the acknowledgement or the answer.
    number: int | None = None
    #: The code of the publisher's EndStream, or the subscriber's status.
    code: str | None = None
    earliest: int = 0
    #: The latest block of the publisher's EndStream, or the last block that a subscriber asks for; None = without end.
    latest: int | None = 0
    #: Position after its last byte, and how many bytes of the other side its sender had received, at most; None = that
    #: isn't known.
    byte_end: int = 0
    received: int | None = None
    #: Whether it came late: its sender may have received more, and other messages may have come before it.
    late: bool = False
    #: The earliest time at which its first byte may have been written; None = when it came, as in a log.
    written_ns: int | None = None


class Found(NamedTuple):
    """A rule that the call breaks by its last message."""

    rule: Rule
    message: str
    #: The side whose bytes alone show it; nothing that the other one sends could excuse it.
    alone: Direction | None = None


@dataclass(slots=True)
class Memory:
    """What a publisher's call remembers."""

    #: The last header, where it ends, and how many there were.
    header: int | None = None
    header_end: int = 0
    headers: int = 0
    #: Headers that have no answer, in the order in which they came.
    waiting: list[int] = field(default_factory=list)
    #: The last answer's number, time and end, and the header that it answered.
    reported: int | None = None
    reported_ns: int = 0
    reported_end: int = 0
    refused: int | None = None
    #: The blocks that answers and acknowledgements made the next ones, of old ones too.
    wanted: list[int] = field(default_factory=list)
    #: Whether a finding about the last answer, or about the end, was reported already.
    went_on: bool = False
    #: Whether the last block is complete: the next header may have been on its way when it was refused.
    complete: bool = False
    #: The highest acknowledgement.
    acknowledged: int | None = None
    #: Skipped blocks, and when, that wait for an acknowledgement or ResendBlock.
    skips: list[tuple[int, int]] = field(default_factory=list)
    #: When and where the node ended the call.
    ended_ns: int = 0
    ended_end: int = 0
    #: Whether messages were missed: what was held back behind them comes late.
    missed: bool = False
    #: The highest header of a subscription; None = no header since the last one that couldn't be read.
    highest: int | None = None
    #: The first and the last block that a subscription asked for.
    first: int | None = None
    last: int | None = None


Broken = Sequence[tuple[str, str] | tuple[str, str, Direction]]
Effect = Callable[["Call", CallInput], Broken]


@dataclass(frozen=True, slots=True)
class Step:
    """What a table states: the next state, the effect, and the rule that is broken in any case."""

    state: StrEnum
    effect: Effect | None = None
    rule: str | None = None


def found_of(broken: Broken) -> tuple[Found, ...]:
    """The findings that effects name."""
    return tuple(Found(RULE[one[0]], one[1], one[2] if len(one) == 3 else None) for one in broken)


def unknowing(given: CallInput, end: int) -> bool:
    """Whether its sender can't have read all bytes of the other side before `end`: its host hadn't received them."""
    return given.received is not None and given.received < end


def knowing(given: CallInput, answered_ns: int, in_flight_ns: int) -> bool:
    """Whether its sender had read what the other side sent at `answered_ns`: it was written later than that was in
    flight."""
    written_ns = given.at_ns if given.written_ns is None else given.written_ns
    return written_ns - answered_ns > in_flight_ns


def after(number: int) -> int:
    """The block after the reported one; a node without blocks reports all ones."""
    return 0 if number == NO_BLOCK else number + 1


def fits(answer: str, reported: int, number: int) -> bool:
    """Whether the header of block `number` may be answered by `answer`, `duplicate` or `behind`."""
    if answer == "behind":
        return number > after(reported)
    return number <= reported != NO_BLOCK


def block_name(number: int) -> str:
    """The number of a block as findings have it; a node without blocks reports all ones."""
    return "none" if number == NO_BLOCK else str(number)
