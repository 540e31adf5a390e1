"""One stream of a session: its states as a table, and which of its message ids were sent and acked.

The table is the Stream State Machine of the specification, with the two states that the implementations add: a NOTIFY
waits for its answer (PENDING), and may be refused. NACKs are stacked: each asks for a NOTIFY of its own.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.wallaroo.session.sent_ids import AWAITED, EPHEMERAL, UNSTABLE, Entry, Sent

#: Number of ids at and before the last acked one that are remembered.
KEPT_ACKED: Final = 64
#: Number of NACKs waiting for their NOTIFY whose references are remembered.
KEPT_ASKED: Final = 16
#: Number of ids without a stable reference that a stream leaves to later sessions.
KEPT_UNSTABLE: Final = 64
#: A number of bytes that no side ever sends.
ALL: Final = 1 << 62
_DIGEST_BYTES: Final = 16


class StreamState(StrEnum):
    """The state of a stream."""

    #: Never notified on this connection.
    INTRO = "intro"
    #: The NOTIFY waits for its answer (implemented dialects).
    PENDING = "pending"
    #: The NOTIFY was refused (implemented dialects).
    REFUSED = "refused"
    OPEN = "open"
    CLOSED = "closed"
    #: A NACK was sent, and not every NACK has had its NOTIFY (the text).
    RESET = "reset"


class Action(StrEnum):
    """An event of a stream."""

    #: A NOTIFY that nobody answers (the text).
    NOTIFY = "notify"
    #: A NOTIFY that will be answered (implemented dialects).
    NOTIFY_ASKED = "notify asked"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    MESSAGE = "message"
    #: A MESSAGE with the flag EOS.
    LAST_MESSAGE = "last message"
    EOS_MESSAGE = "eos message"
    ACK = "ack"
    NACK = "nack"


class StreamStep(NamedTuple):
    """The state after an action, and the rule that it breaks.

    `settled` is the state if nothing is owed any more: no NACK without its NOTIFY, no NOTIFY without its answer.
    """

    state: StreamState
    settled: StreamState
    rule: str | None = None
    #: Why the worker drops the frame, if it does so by rule.
    ignored: str | None = None


STREAM_RESET: Final = "stream_reset"


def _step(
    state: StreamState, settled: StreamState | None = None, rule: str | None = None, ignored: str | None = None
) -> StreamStep:
    return StreamStep(state, state if settled is None else settled, rule, ignored)


_INTRO, _PENDING, _REFUSED = StreamState.INTRO, StreamState.PENDING, StreamState.REFUSED
_OPEN, _CLOSED, _RESET = StreamState.OPEN, StreamState.CLOSED, StreamState.RESET
_UNASKED: Final = "notify_ack_unasked"

#: Every state and every action. A rule that ends the session leaves the stream as it is.
STREAM_TRANSITIONS: Mapping[tuple[StreamState, Action], StreamStep] = MappingProxyType(
    {
        (_INTRO, Action.NOTIFY): _step(_RESET, _OPEN),
        (_INTRO, Action.NOTIFY_ASKED): _step(_PENDING),
        (_INTRO, Action.ACCEPTED): _step(_INTRO, rule=_UNASKED),
        (_INTRO, Action.REFUSED): _step(_INTRO, rule=_UNASKED),
        (_INTRO, Action.MESSAGE): _step(_INTRO, rule="message_unknown_stream"),
        (_INTRO, Action.LAST_MESSAGE): _step(_INTRO, rule="message_unknown_stream"),
        (_INTRO, Action.EOS_MESSAGE): _step(_INTRO, rule="eos_unknown_stream"),
        (_INTRO, Action.ACK): _step(_INTRO, rule="ack_unknown_stream"),
        (_INTRO, Action.NACK): _step(_INTRO, rule="nack_unknown_stream"),
        (_PENDING, Action.NOTIFY): _step(_RESET, _OPEN),
        (_PENDING, Action.NOTIFY_ASKED): _step(_PENDING),
        (_PENDING, Action.ACCEPTED): _step(_OPEN),
        (_PENDING, Action.REFUSED): _step(_PENDING, _REFUSED),
        (_PENDING, Action.MESSAGE): _step(_PENDING, rule="message_before_notify_ack"),
        (_PENDING, Action.LAST_MESSAGE): _step(_PENDING, rule="message_before_notify_ack"),
        (_PENDING, Action.EOS_MESSAGE): _step(_PENDING, rule="eos_unknown_stream"),
        (_PENDING, Action.ACK): _step(_PENDING),
        (_PENDING, Action.NACK): _step(_RESET),
        (_REFUSED, Action.NOTIFY): _step(_RESET, _OPEN),
        (_REFUSED, Action.NOTIFY_ASKED): _step(_PENDING),
        (_REFUSED, Action.ACCEPTED): _step(_REFUSED, rule=_UNASKED),
        (_REFUSED, Action.REFUSED): _step(_REFUSED, rule=_UNASKED),
        (_REFUSED, Action.MESSAGE): _step(_REFUSED, rule="message_unknown_stream"),
        (_REFUSED, Action.LAST_MESSAGE): _step(_REFUSED, rule="message_unknown_stream"),
        (_REFUSED, Action.EOS_MESSAGE): _step(_REFUSED, rule="eos_unknown_stream"),
        (_REFUSED, Action.ACK): _step(_REFUSED),
        (_REFUSED, Action.NACK): _step(_RESET),
        (_OPEN, Action.NOTIFY): _step(_OPEN, rule="notify_open_stream"),
        # A stream in use stays so: the worker refuses the second NOTIFY.
        (_OPEN, Action.NOTIFY_ASKED): _step(_OPEN),
        (_OPEN, Action.ACCEPTED): _step(_OPEN),
        (_OPEN, Action.REFUSED): _step(_OPEN),
        (_OPEN, Action.MESSAGE): _step(_OPEN),
        (_OPEN, Action.LAST_MESSAGE): _step(_CLOSED),
        (_OPEN, Action.EOS_MESSAGE): _step(_CLOSED),
        (_OPEN, Action.ACK): _step(_OPEN),
        (_OPEN, Action.NACK): _step(_RESET),
        (_CLOSED, Action.NOTIFY): _step(_RESET, _OPEN),
        (_CLOSED, Action.NOTIFY_ASKED): _step(_PENDING),
        (_CLOSED, Action.ACCEPTED): _step(_OPEN),
        (_CLOSED, Action.REFUSED): _step(_CLOSED),
        (_CLOSED, Action.MESSAGE): _step(_CLOSED, rule="message_closed_stream"),
        (_CLOSED, Action.LAST_MESSAGE): _step(_CLOSED, rule="message_closed_stream"),
        (_CLOSED, Action.EOS_MESSAGE): _step(_CLOSED, rule="eos_unknown_stream"),
        (_CLOSED, Action.ACK): _step(_CLOSED),
        (_CLOSED, Action.NACK): _step(_RESET),
        (_RESET, Action.NOTIFY): _step(_RESET, _OPEN),
        (_RESET, Action.NOTIFY_ASKED): _step(_PENDING),
        (_RESET, Action.ACCEPTED): _step(_OPEN),
        (_RESET, Action.REFUSED): _step(_RESET),
        (_RESET, Action.MESSAGE): _step(_RESET, ignored=STREAM_RESET),
        (_RESET, Action.LAST_MESSAGE): _step(_RESET, ignored=STREAM_RESET),
        (_RESET, Action.EOS_MESSAGE): _step(_RESET, ignored=STREAM_RESET),
        (_RESET, Action.ACK): _step(_RESET),
        (_RESET, Action.NACK): _step(_RESET),
    }
)


class Waiting(NamedTuple):
    """A message whose ack is awaited, and its arrival."""

    message_id: int
    sent_ns: int


class Accepted(NamedTuple):
    """The point of reference of the first NOTIFY_ACK of a stream that accepts, and its arrival."""

    reference: int
    answered_ns: int
    #: Whether a NOTIFY before it had the same reference.
    echoed: bool


class AckVerdict(StrEnum):
    """The relation of an acked id to the ids that its stream sent."""

    FORWARD = "forward"
    #: Sent before one that was acked earlier.
    BACK = "back"
    NEVER_SENT = "never sent"
    #: Too many ids were sent since to remember it.
    FORGOTTEN = "forgotten"


@dataclass(slots=True)
class Stream:
    """A stream of a session. It remembers a bounded number of ids; see `forget`."""

    state: StreamState = StreamState.INTRO
    #: NACKs without a NOTIFY, and NOTIFYs without an answer.
    nacks: int = 0
    waiting: int = 0
    #: Number of the latter that may have been answered in a hole.
    excused: int = 0
    notified: bool = False
    #: Whether it was in use before the capture, or before a hole in it: its past is unknown.
    assumed: bool = False
    #: Digest of the name that the last NOTIFY gave.
    name: bytes | None = None
    #: Digest of the name that OK gives.
    listed: bytes | None = None
    #: References that the worker gave: by OK or NOTIFY_ACK, by the last NACK.
    references: list[int] = field(default_factory=list)
    #: References of the last NOTIFYs, until the first NOTIFY_ACK that accepts; and what that gave.
    proposed: list[int] = field(default_factory=list)
    accepted: Accepted | None = None
    #: The last refusals without anything else between them that the worker answered or the stream ended by: since when,
    #: how many, and whether there was anything else before.
    refused_ns: int | None = None
    refusals: int = 0
    was_in_use: bool = False
    #: References of the NACKs that wait for their NOTIFY; None = too many to remember.
    asked: list[int] | None = field(default_factory=list)
    #: Ends of the last NACKs that wait for their NOTIFY, and of those that a NOTIFY was counted for although its sender
    #: had not received them.
    nacked: list[int] = field(default_factory=list)
    crossed: list[int] = field(default_factory=list)
    #: References that the last NACKs replaced (0 = none), each with the end of its NACK.
    replaced: list[tuple[int, int]] = field(default_factory=list)
    last_seen: int | None = None
    last_acked: int | None = None
    messages: int = 0
    first_id: int | None = None
    last_id: int | None = None
    highest_id: int | None = None
    sent: Sent = field(default_factory=Sent)
    #: Ids of ephemeral messages, those whose ack is forgotten among them.
    ephemeral: set[int] = field(default_factory=set)
    #: Number of the message that was acked last; None = none was acked.
    acked_at: int | None = None
    #: Whether a NACK or RESTART came since the last ACK, so that the next one may go back.
    rewound: bool = False
    ever_acked: bool = False
    #: Lowest and highest acked id that is forgotten, and the number of ids that were forgotten unacked.
    forgotten: tuple[int, int] | None = None
    forgotten_unacked: int = 0
    #: The oldest of the latter.
    forgotten_waiting: Waiting | None = None
    #: Messages before the last hole in what the connector sent, in which they may have been sent again.
    before_hole: int = 0

    @property
    def remembered(self) -> int:
        """Number of ids that it remembers."""
        return len(self.sent) + len(self.ephemeral)

    def act(self, action: Action) -> StreamStep:
        """Take `action`: count what is owed, and move by the table."""
        step = STREAM_TRANSITIONS[self.state, action]
        if action is Action.NACK:
            self.nacks += 1
        elif action is Action.NOTIFY:
            self.nacks = max(0, self.nacks - 1)
            self.nacked = self.nacked[len(self.nacked) - min(len(self.nacked), self.nacks) :]
            self.notified = True
        elif action is Action.NOTIFY_ASKED:
            self.waiting += 1
            self.notified = True
        elif action in (Action.ACCEPTED, Action.REFUSED):
            if not self.waiting:
                return StreamStep(self.state, self.state, _UNASKED)
            self.waiting -= 1
            self.excused = max(0, self.excused - 1)
        owed = self.waiting if self.state is StreamState.PENDING else self.nacks
        self.state = step.state if owed else step.settled
        return step

    def ask(self, reference: int, byte_end: int) -> None:
        """A NACK, which was counted and ends at `byte_end`, asks for a NOTIFY from `reference` on."""
        self.nacked = [*self.nacked, byte_end][-KEPT_ASKED:]
        replaced = [(earlier, byte_end) for earlier in self.references or (0,)]
        self.replaced = [*self.replaced, *replaced][-KEPT_ASKED:]
        self.references, self.rewound = [reference], True
        if self.nacks == 1:
            self.asked = []
        if self.asked is not None:
            self.asked = [*self.asked, reference] if len(self.asked) < KEPT_ASKED else None

    def note_notify(self, reference: int) -> None:
        """Note the reference of a NOTIFY."""
        if self.accepted is None:
            self.proposed = [*self.proposed, reference][-KEPT_ASKED:]

    def note_answer(self, reference: int, answered_ns: int, *, accepts: bool) -> None:
        """Note a NOTIFY_ACK."""
        if accepts:
            self.note_use()
            if self.accepted is None:
                self.accepted = Accepted(reference, answered_ns, reference in self.proposed)
                self.proposed = []
        else:
            self.refused_ns = answered_ns if self.refused_ns is None else self.refused_ns
            self.refusals += 1

    def note_use(self) -> None:
        """Note that the stream is in use: accepted, asked for again or ended."""
        self.refused_ns, self.refusals, self.was_in_use = None, 0, True

    def answer(self, reference: int) -> bool:
        """Whether a waiting NACK may have asked for `reference`, which a NOTIFY gives that is counted next."""
        if not self.nacks or self.asked is None:
            return bool(self.nacks)
        if reference not in self.asked:
            return False
        self.asked.remove(reference)
        return True

    def owes(self, received: int) -> bool:
        """Whether the next counted NOTIFY still answers a NACK: its connector had `received` that many bytes.

        That is so if an earlier NOTIFY, sent before the NACK was received, was counted as the answer.
        """
        due = bool(self.crossed) and received >= self.crossed[0]
        if not self.nacks:
            del self.crossed[:due]
            return due
        # If not all NACKs are remembered, it may know the first ones.
        if len(self.nacked) == self.nacks and received < self.nacked[0]:
            self.crossed = [*self.crossed[due:], self.nacked[0]][-KEPT_ASKED:]
        return due

    def known_nacks(self, received: int) -> int:
        """Number of NACKs waiting for their NOTIFY that a connector knew which had `received` that many bytes."""
        if self.nacked and received < self.nacked[0]:
            # Neither is it known whether it knew the ones before, which are no longer remembered.
            return 0
        return self.nacks - sum(byte_end > received for byte_end in self.nacked)

    @property
    def unanswered(self) -> int:
        """Number of NOTIFYs whose answer can't have come in a hole of the capture."""
        return max(0, self.waiting - self.excused)

    def miss(self, direction: Direction) -> None:
        """Note a hole. Answers that were owed may have come in it, and so may a NACK and repeated messages."""
        self.assumed = self.rewound = True
        if direction is Direction.SERVER:
            self.excused = self.waiting
            return
        self.before_hole = self.messages
        self.nacks = 0
        self.nacked.clear()
        if self.state is StreamState.RESET:
            self.state = StreamState.OPEN

    def send(
        self,
        message_id: int,
        sent_ns: int,
        *,
        awaits_ack: bool,
        unstable: bool = False,
        ephemeral: bool = False,
        is_sentinel: bool = False,
    ) -> None:
        """A message with this id was sent, and came at `sent_ns`.

        `unstable`: it is no stable reference, unless it once was one. `is_sentinel`: as a reference the id means that
        nothing was seen, so it is no greatest one.
        """
        if self.first_id is None:
            self.first_id = message_id
        self.last_id = message_id
        if not is_sentinel:
            self.highest_id = message_id if self.highest_id is None else max(message_id, self.highest_id)
        before = self.sent.get(message_id)
        unstable = (unstable or ephemeral) and (before is None or bool(before.marks & UNSTABLE))
        marks = AWAITED * awaits_ack | UNSTABLE * unstable | EPHEMERAL * ephemeral
        self.sent.add(message_id, Entry(self.messages, marks, sent_ns))

    def ack(self, message_id: int) -> AckVerdict:
        """Note that this id is safe, and with it all that were sent before."""
        known = self.sent.get(message_id)
        if known is None:
            forgotten = self.forgotten is not None and self.forgotten[0] <= message_id <= self.forgotten[1]
            if forgotten and not self.before_hole:
                return AckVerdict.BACK
            return AckVerdict.FORGOTTEN if forgotten or self.forgotten_unacked else AckVerdict.NEVER_SENT
        self.ever_acked = True
        if self.acked_at is not None and known.at < self.acked_at and not self.rewound:
            if known.at > self.before_hole:
                return AckVerdict.BACK
            self.last_acked = message_id
            return AckVerdict.FORWARD
        self.last_acked, self.acked_at, self.rewound = message_id, known.at, False
        self.forgotten_unacked, self.forgotten_waiting = 0, None
        self._forget_acked()
        return AckVerdict.FORWARD

    def ack_unseen(self, message_id: int, *, rises: bool) -> None:
        """Note that an id is safe that was sent before this session, or in missing bytes; 0 may mean that none is.

        `rises`: a higher id is one that was sent later.
        """
        if message_id and (self.acked_at is None or (rises and message_id > (self.last_acked or 0))):
            self.last_acked = message_id

    def may_have_sent(self, message_id: int) -> bool:
        """Whether the stream may have sent the id in this session, or goes on from it."""
        if self.sent.get(message_id) is not None or self.forgotten_unacked or message_id in self.references:
            return True
        return self.forgotten is not None and self.forgotten[0] <= message_id <= self.forgotten[1]

    def given(self, received: int) -> list[int]:
        """References that the worker gave, as far as a connector knew them that had `received` that many bytes."""
        replaced = [reference for reference, byte_end in self.replaced if received < byte_end]
        return [0, *self.references, *([] if self.last_acked is None else [self.last_acked]), *replaced]

    def was_acked(self, message_id: int, received: int = ALL) -> bool:
        """Whether the id was acked, by itself or by a later one, and the stream was not reset since.

        Judged by what the connector knew after `received` bytes of the worker.
        """
        if self.forgotten is not None and self.forgotten[0] <= message_id <= self.forgotten[1]:
            return True
        known = self.sent.get(message_id)
        rewound = self.rewound and not (self.replaced and received < self.replaced[-1][1])
        if known is None or self.acked_at is None or rewound:
            return False
        return known.at <= self.acked_at

    def is_unstable(self, message_id: int) -> bool:
        """Whether the id is that of a message that is no stable reference, and was not sent again in a hole."""
        known = self.sent.get(message_id)
        return known is not None and bool(known.marks & UNSTABLE) and known.at > self.before_hole

    def unstable_ids(self) -> list[int]:
        """Ids which are no stable references, also in a later session: the last ones that are remembered."""
        unstable = (number for number, sent in self.sent.items() if sent.marks & (UNSTABLE | EPHEMERAL) == UNSTABLE)
        return list(deque(unstable, KEPT_UNSTABLE))

    def unacked(self) -> list[Waiting]:
        """Messages after the last acked one whose ack is awaited, in the order in which they were sent."""
        after = -1 if self.acked_at is None else self.acked_at
        sent = ((number, entry) for number, entry in self.sent.items() if entry.marks & AWAITED and entry.at > after)
        return [Waiting(number, entry.sent_ns) for number, entry in sent]

    def _forget_acked(self) -> None:
        """Drop all acked ids except the last ones."""
        assert self.acked_at is not None
        for message_id, _ in self.sent.drop(max(0, self.sent.first_after(self.acked_at) - KEPT_ACKED)):
            low, high = self.forgotten or (message_id, message_id)
            self.forgotten = min(low, message_id), max(high, message_id)

    def forget(self) -> None:
        """Give up the older half of what is remembered, so that memory stays bounded."""
        for message_id, sent in self.sent.drop((len(self.sent) + 1) // 2):
            if sent.marks & AWAITED and not self.forgotten_unacked:
                self.forgotten_waiting = Waiting(message_id, sent.sent_ns)
            self.forgotten_unacked += sent.marks & AWAITED
        self.ephemeral.clear()


def name_digest(name: bytes) -> bytes:
    """The digest of a stream's name, by which names are compared."""
    return hashlib.blake2b(name, digest_size=_DIGEST_BYTES).digest()
