"""The session layer of the Wallaroo connector protocol: what each frame does, and which rules it breaks.

Two machines (specification, "Protocol State Machine" and "Stream State Machine"): the connection's table stands here,
the stream's in streams.py. A `Session` takes the frames of one connection in arrival order and gives one `Outcome` for
each; it holds a bounded number of streams and ids, and goes on from its `snapshot()`.

- A rule about what never came is judged at a definite time: when the connection is closed, or when the time of a later
  frame or of `advance` is past it. Its finding is the same whenever that is noticed.
- A rule is broken only if the bytes that could excuse it were captured: `lacks` says of which sides some were not.
- A side did not know what its host had not received: `peer_received` says how much that was. A connector that does not
  know a NACK goes on as before it, and a worker can't signal an error that it hasn't received. What was received is
  judged as it arrived.
- The worker's RESTART is a state of its own: the connection is left, but not in error.
- In the text MESSAGE has no stream id: it belongs to the one stream that is open, and to none that can be told if
  several are.
- The balance is what was granted less what was spent by NOTIFY and MESSAGE, so overdrawn credits make it negative.
- The cookie of a HELLO is not kept; no finding quotes the text of an ERROR, for workers print cookies into it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from wirehouse_codecs.core.errors import StateVersionError
from wirehouse_codecs.core.rules import Place, Rule
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.wallaroo.dialects import DIALECTS, Dialect
from wirehouse_codecs.wallaroo.frames import (
    KIND_OF,
    Ack,
    EosMessage,
    Error,
    Flag,
    Frame,
    Hello,
    Message,
    Nack,
    Notify,
    NotifyAck,
    Ok,
    StreamReference,
)
from wirehouse_codecs.wallaroo.options import WallarooOptions
from wirehouse_codecs.wallaroo.rules import ENDS, FRAME_RULES, RULE
from wirehouse_codecs.wallaroo.session.streams import (
    ALL,
    AckVerdict,
    Action,
    Stream,
    StreamState,
    StreamStep,
)
from wirehouse_codecs.wallaroo.wire.reader import Received

SNAPSHOT_VERSION: Final = 7
#: Of a session so many ACKs of what it did not send are remembered.
MOST_UNSENT: Final = 16
#: Streams that a session remembers; messages of further ones are not judged.
MAX_STREAMS: Final = 16_384
#: Message ids that a session remembers.
MAX_IDS: Final = 262_144
#: Findings about one frame: more than an ACK of the largest frame that workers take has entries.
MAX_FINDINGS: Final = 1024
_DIGEST_BYTES: Final = 16
#: States of a stream that a MESSAGE may be for.
_LIVE: Final = (StreamState.OPEN, StreamState.RESET)
_FRAME_RULES: Final = frozenset(rule.name for rule in FRAME_RULES)


class State(StrEnum):
    """Where a connection stands: the specification's states, and two that say why nothing more is expected."""

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
    """What a side sends: a frame of the tables, or bytes that are none."""

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


class End(StrEnum):
    """How a connection ends."""

    CLOSED = "closed"
    RESET = "reset"
    CAPTURE_END = "capture_end"


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
        """Where `received` stands."""
        return cls(received.direction, received.place, received.byte_start, received.byte_end)


class UnsentAck(NamedTuple):
    """An ACK of a message that its stream did not send in this session."""

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
    """What one frame did."""

    received: Received
    kind: Kind
    #: In the order of the checks. A rule about an earlier frame that is known only now is among them.
    findings: tuple[Found, ...]
    #: Why the worker takes no notice of it; None = it does.
    ignored: str | None
    #: The connector's credits after it; None = unknown, before OK.
    credits: int | None
    #: Credits that it granted, and that it took.
    granted: int
    spent: int
    state: State
    #: The worker has answered by OK, so no cookie is to come.
    accepted: bool
    #: The stream of a MESSAGE, also where the text leaves it out and one is open.
    stream_id: int | None
    stream_state: StreamState | None


class Step(NamedTuple):
    """What a frame does: an effect, the state after it, and the rule that the frame breaks."""

    effect: Callable[[Session, Any], None]
    state: State
    rule: str | None = None


#: `Side.peer_received` of both sides.
PeerReceived = Callable[[Direction, int], int]


def everything(_side: Direction, _byte_end: int) -> int:
    """Each side had received all that was captured before its frame."""
    return ALL


class Session:
    """One connection. `receive` its frames in arrival order, `advance` the time, `end` it once.

    `started_late`: the capture began after the connection did. `unseen`: sides of which nothing was captured when the
    other one said something, so that they may have said anything. `cookie_hash` makes of a cookie what may be kept.
    `peer_received`: how many bytes of the other side a side had received when it sent those before a position.
    """

    def __init__(
        self,
        dialect: Dialect,
        options: WallarooOptions,
        *,
        started_late: bool = False,
        unseen: Collection[Direction] = (),
        cookie_hash: Callable[[bytes], bytes] | None = None,
        peer_received: PeerReceived = everything,
        snapshot: str | None = None,
    ) -> None:
        self.dialect = dialect
        self._options = options
        self._cookie_hash = cookie_hash
        self._peer_received = peer_received
        self.state = State.CONNECTED
        #: Frames from before were missed, and sides of which bytes were: what is unknown may be legal.
        self.late = started_late
        self.lacks = set(unseen)
        #: What the sides said may have come in another order.
        self.unordered = bool(unseen)
        #: From when on that is so, if it is not for all that comes.
        self.doubt_ns: int | None = None
        self.credits: int | None = None
        self.granted = self.spent = 0
        #: EOS_MESSAGE frames: workers take a credit for each, connectors count none.
        self.eos_messages = 0
        self.initial_credits: int | None = None
        self.version: str | None = None
        self.program_name: bytes | None = None
        self.instance_name: bytes | None = None
        self.cookie_empty: bool | None = None
        self.cookie_digest: bytes | None = None
        self.streams: dict[int, Stream] = {}
        self.accepted = False
        #: The rule of `ENDS` that was broken.
        self.ended_by: str | None = None
        self.errors: set[Direction] = set()
        #: Rule `ack_never_sent`, if no earlier session of the instance sent them.
        self.unsent: list[UnsentAck] = []
        self.ended: End | None = None
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self._names: dict[bytes, int] = {}
        #: A stream was seen for which there was no room; a message couldn't be told to belong to one.
        self.untracked = False
        self.unattributed = False
        #: How many ids the streams hold.
        self.ids = 0
        self._started = False
        self._hello: Where | None = None
        self._hello_judged = False
        self._answered = False
        #: An OK came before HELLO.
        self._early_ok = False
        #: The frames that started a time to wait: ERROR, a rule of ENDS, the last credit.
        self._error: Where | None = None
        self._violation: Where | None = None
        self._violated: tuple[int | None, int | None] = (None, None)
        #: When the worker said something last without having received what broke the rule.
        self._unaware_ns = 0
        self.dry: Where | None = None
        self._clear()
        if snapshot is not None:
            self._restore(snapshot)

    def _clear(self) -> None:
        """What holds for the frame that is being taken."""
        self._where: Where | None = None
        self._found: list[Found] = []
        self._judged = False
        self._ignored: str | None = None
        self._stream_id: int | None = None
        self._next: State | None = None

    @property
    def partial(self) -> bool:
        """The capture lacks some of it."""
        return self.late or bool(self.lacks)

    def may_miss(self, side: Direction) -> bool:
        """`side` may have said more than was captured."""
        return self.late or side in self.lacks

    # Input

    def receive(self, received: Received) -> Outcome:
        """Take the next frame, or undecodable bytes, of the connection. ValueError: the connection has ended."""
        if self.ended is not None:
            raise ValueError("the connection has ended")
        frame = received.decoded.frame
        in_doubt = self.doubt_ns is not None and received.place.arrived_at_ns >= self.doubt_ns
        if in_doubt:
            self.doubt()
        if frame is None and received.decoded.rule is None:
            # What would be late may stand in the hole.
            self._miss(received.direction)
        if self._violation is not None and self._is_unaware(received.direction, received.byte_end):
            self._unaware_ns = received.place.arrived_at_ns
        # A late ERROR is late, but it does signal.
        timed = self.advance(received.place.arrived_at_ns, traffic=not isinstance(frame, Error))
        self._clear()
        self._found += timed
        self._where = Where.of(received)
        self.first_ns = received.place.arrived_at_ns if self.first_ns is None else self.first_ns
        self.last_ns = received.place.arrived_at_ns
        granted, spent = self.granted, self.spent
        kind = Kind.UNDECODABLE if frame is None else Kind(KIND_OF[type(frame)])
        self._begin(received.direction, kind)
        if in_doubt:
            # Also HELLO may come after what it began.
            self.lacks = set(Direction)
        if received.decoded.rule is not None and self.state not in (State.ENDED, State.ERROR):
            self._find(received.decoded.rule.name, received.decoded.reason)
        self._walk(received, kind, frame)
        stream = None if self._stream_id is None else self.streams.get(self._stream_id)
        return Outcome(
            received=received,
            kind=kind,
            findings=tuple(self._found),
            ignored=self._ignored,
            credits=self.credits,
            granted=self.granted - granted,
            spent=self.spent - spent,
            state=self.state,
            accepted=self.accepted,
            stream_id=self._stream_id,
            stream_state=None if stream is None else stream.state,
        )

    def _is_unaware(self, direction: Direction, byte_end: int) -> bool:
        """The worker sends something without having received the connector's frame that broke a rule."""
        broken = self._violation
        return (
            broken is not None
            and (broken.direction, direction) == (Direction.CLIENT, Direction.SERVER)
            and self._peer_received(direction, byte_end) < broken.byte_end
        )

    def _begin(self, direction: Direction, kind: Kind) -> None:
        """Where a capture begins late, the first frame shows how late."""
        if kind is Kind.UNDECODABLE:
            return
        if self._started:
            self._catch_up(direction, kind)
            return
        self._started = True
        if kind is Kind.HELLO and direction is Direction.CLIENT:
            # A late start misses nothing of the connector then, but the place of the worker's first frames may be lost.
            self.lacks = self.lacks - {Direction.CLIENT} | ({Direction.SERVER} if self.late else set())
            self.late = False
        if not self.may_miss(Direction.CLIENT):
            return
        self._found.append(Found(RULE["no_handshake_seen"], self._where, "the first frame seen is " + kind))
        self.state = State.HANDSHAKE if kind is Kind.OK else State.STREAMING
        self._answered = self.accepted = kind is not Kind.OK

    def _catch_up(self, direction: Direction, kind: Kind) -> None:
        """Where the capture lacks bytes these may have been HELLO and OK, which this frame comes after."""
        if kind is Kind.OK and direction is Direction.SERVER:
            unseen = self.state is State.STREAMING and self.initial_credits is None
            if unseen or (self.state is State.CONNECTED and self.may_miss(Direction.CLIENT)):
                self.state = State.HANDSHAKE
            return
        if kind in _HANDSHAKE_KINDS or self.state not in (State.CONNECTED, State.HANDSHAKE):
            return
        # No HELLO came if all that the connector said was captured, whatever else is missing.
        known = self.state is State.CONNECTED and not self.may_miss(Direction.CLIENT)
        if (self.partial and not known) or (self._early_ok and self.state is State.HANDSHAKE):
            self.state = State.STREAMING
            self._answered = self.accepted = True

    def _walk(self, received: Received, kind: Kind, frame: Frame | None) -> None:
        direction = received.direction
        if kind is Kind.UNDECODABLE:
            self._take_undecodable(received)
        elif self._next is None:
            shown = f"{kind} from the {direction} in state {self.state}"
            step = self._step(direction, kind)
            if step is None and self._may_be_of_sink(direction, kind):
                self._ignored = NOT_FOR_SOURCES
            elif step is None:
                self._find(unlisted(self.state, direction, kind), shown)
            else:
                self._next = step.state
                self._find(step.rule, shown, ends=False)
                step.effect(self, frame)
        self.state = self._next or self.state

    def _step(self, direction: Direction, kind: Kind) -> Step | None:
        """The step of the table. Of what a sink says or hears only the handshake means what the specification says."""
        if kind is Kind.HELLO and direction is Direction.CLIENT and self._is_first_seen():
            return Step(Session._take_hello, self.state)
        step = TRANSITIONS.get((self.state, direction, kind))
        if self.dialect.sink and kind not in _HANDSHAKE_KINDS and self.state in (State.HANDSHAKE, State.STREAMING):
            return Step(Session._nothing, self.state, None if step is None else step.rule)
        return step

    def _is_first_seen(self) -> bool:
        """Nothing of the connector was captured before, but what the worker answered was: by another clock, say."""
        assert self._where is not None
        return self.state in (State.STREAMING, State.RESTARTED) and self.version is None and not self._where.byte_start

    def _may_be_of_sink(self, direction: Direction, kind: Kind) -> bool:
        """What only sinks send, where the HELLO was not captured that tells a sink."""
        known = self.version is not None or self.dialect.byte_order == "little"
        return kind is Kind.MESSAGE and direction is Direction.SERVER and not known and self.may_miss(Direction.CLIENT)

    def _take_undecodable(self, received: Received) -> None:
        rule = received.decoded.rule
        whole = rule is not None and rule.name != "truncated_frame"
        if self.state is State.ERROR and whole:
            self._after_error(None)
        elif self.state in (State.ENDED, State.ERROR):
            self._ignored = AFTER_VIOLATION if self.state is State.ENDED else AFTER_ERROR

    def doubt(self) -> None:
        """Nobody knows which side sent first what comes next."""
        self.unordered, self.doubt_ns = True, None
        for direction in Direction:
            self._miss(direction)

    def _miss(self, direction: Direction) -> None:
        """Bytes that the capture lacks may have been anything: what they would change is unknown from here on."""
        self.lacks.add(direction)
        self.credits = self.dry = None
        if direction is Direction.SERVER:
            self._violation = None
        for stream in self.streams.values():
            stream.miss(direction)

    def advance(self, now_ns: int, *, traffic: bool = False) -> tuple[Found, ...]:
        """Time goes on to `now_ns`; what has not come by now. `traffic`: a frame arrives then."""
        self._clear()
        close = self._options.close_timeout_ns
        if self._error is not None and _late(self._error, close, now_ns):
            self._note("not_closed_after_error", self._error, f"still open {self._options.close_timeout_s} s later")
            self._error = None
        aware = now_ns > self._unaware_ns + close
        if traffic and self._violation is not None and _late(self._violation, close, now_ns) and aware:
            self._not_signalled(f"traffic goes on for more than {self._options.close_timeout_s} s")
        if self.dry is not None and _late(self.dry, self._options.ack_timeout_ns, now_ns):
            waited = f"no credit for more than {self._options.ack_timeout_s} s"
            self._note("credits_not_replenished", self.dry, waited)
            self.dry = None
        return tuple(self._found)

    def end(self, how: End, place: Place, received: int = ALL) -> tuple[Found, ...]:
        """The connection ends at `place`; the rules about what never came. ValueError: it has ended before.

        So many of the worker's bytes the connector's host had `received` when it closed its side.
        """
        if self.ended is not None:
            raise ValueError("the connection has ended")
        # Where the capture just ends, what never came may have come later, and so may the end of the connection.
        found = [] if how is End.CAPTURE_END else list(self.advance(place.arrived_at_ns))
        self._clear()
        self.ended = how
        self.last_ns = place.arrived_at_ns if self.last_ns is None else max(self.last_ns, place.arrived_at_ns)
        if how is End.CAPTURE_END:
            self._found.append(Found(RULE["capture_ends_early"], None, f"in state {self.state}"))
        elif not self.dialect.sink or self.state is State.HANDSHAKE:
            self._judge_end(how, received)
        if how is not End.CAPTURE_END and self.state not in (State.ERROR, State.ENDED):
            self.state = State.DISCONNECTED
        return tuple(found + self._found)

    def _judge_end(self, how: End, received: int) -> None:
        waits = self.state is State.HANDSHAKE and self._hello is not None and not self._answered
        if waits and how is End.CLOSED and not self.may_miss(Direction.SERVER):
            self._found.append(Found(RULE["hello_not_answered"], self._hello, "closed without OK or ERROR"))
        if self.state not in (State.STREAMING, State.RESTARTED):
            return
        for stream_id, stream in self.streams.items():
            if stream.unanswered:
                shown = f"{stream.unanswered} NOTIFY without an answer"
                self._found.append(Found(RULE["notify_not_answered"], None, shown, stream_id))
            # Without a credit left none of them may be answered.
            known = 0 if self.credits is not None and self.credits <= 0 else stream.known_nacks(received)
            if known and self.state is State.STREAMING and not self.may_miss(Direction.CLIENT):
                owed = f"{known} NACK without a NOTIFY"
                self._found.append(Found(RULE["nack_not_answered"], None, owed, stream_id))
            if how is End.CLOSED and self.state is State.STREAMING:
                self._judge_unacked(stream_id, stream)

    def _judge_unacked(self, stream_id: int, stream: Stream) -> None:
        """Workers that keep nothing for recovery never ack a stream, so only one that was ever acked is judged."""
        unacked = stream.unacked()
        if not stream.ever_acked or not unacked or self.unattributed or self.may_miss(Direction.SERVER):
            return
        count = len(unacked) + stream.forgotten_unacked
        shown = f"{count} messages after the last acked one, the first has id {unacked[0]}"
        self._found.append(Found(RULE["message_never_acked"], None, shown, stream_id))

    # Findings

    def _find(self, name: str | None, message: str, stream_id: int | None = None, *, ends: bool = True) -> bool:
        """The frame breaks a rule; True if it ends the session. Of the rules of frames only the first one counts.

        Not `ends`: the table says where it leads.
        """
        if name is None:
            return False
        if name in _FRAME_RULES:
            if self._judged:
                return False
            self._judged = True
        elif len(self._found) >= MAX_FINDINGS:
            return False
        self._found.append(Found(RULE[name], self._where, message, stream_id))
        if name in ENDS and ends:
            self._next = State.ENDED
            self.ended_by = name
            self._violation = None if self.may_miss(Direction.SERVER) else self._where
            self.dry = None
            return True
        return False

    def _note(self, name: str, where: Where, message: str) -> None:
        self._found.append(Found(RULE[name], where, message))

    def _not_signalled(self, why: str) -> None:
        assert self._violation is not None
        self._note("error_not_signalled", self._violation, f"{self.ended_by}, and {why}")
        self._violation = None

    def _ignore(self, reason: str, stream_id: int | None = None) -> None:
        self._ignored = reason
        self._find("message_ignored", reason, stream_id)

    # Handshake and errors

    def _take_hello(self, hello: Hello) -> None:
        self._hello = self._where
        self._hello_judged = self._judged
        self.version = hello.version_text()
        self.program_name, self.instance_name = hello.program_name, hello.instance_name
        self.cookie_empty = not hello.cookie
        if self._cookie_hash is not None and hello.cookie:
            self.cookie_digest = self._cookie_hash(hello.cookie)

    def _take_early_ok(self, ok: Ok) -> None:
        """Its rule is broken; what follows breaks none because of it."""
        self._early_ok = True
        self._take_ok(ok)
        self.accepted = False

    def _take_ok(self, ok: Ok) -> None:
        # The first that a worker says: all that comes after it is known.
        hello_missed = Direction.CLIENT in self.lacks
        self.late, self.lacks = False, self.lacks - {Direction.SERVER} | ({Direction.CLIENT} if self.late else set())
        self.accepted = self._answered = True
        self.initial_credits = ok.credits
        self.credits = 0
        self._grant(ok.credits)
        if hello_missed:
            # Sinks use none, and only their HELLO tells them.
            self.credits = None
        if not ok.credits:
            self._find("zero_initial_credits", "OK with 0 credits")
            self._run_dry()
        for reference in ok.streams:
            stream = self._stream(reference.stream_id)
            if stream is not None:
                stream.references = [reference.point_of_ref]
                self._note_listed(reference, stream)

    def _note_listed(self, reference: StreamReference, stream: Stream) -> None:
        """The name that OK gives a stream, which the connector chose in an earlier session; the text gives none."""
        if reference.stream_name:
            stream.listed = _digest(reference.stream_name)
            if len(self._names) < MAX_STREAMS:
                self._names.setdefault(stream.listed, reference.stream_id)

    def _take_connector_error(self, _: Error) -> None:
        self._find("connector_error", f"in state {self.state}")
        self._take_error(Direction.CLIENT)

    def _take_worker_error(self, error: Error) -> None:
        if self.state is State.HANDSHAKE and self._hello is not None and not self.may_miss(Direction.SERVER):
            self._refuse_hello(error)
        elif self.ended_by is None:
            self._find("worker_error", f"in state {self.state}")
        self._answered = True
        self._take_error(Direction.SERVER)

    def _refuse_hello(self, error: Error) -> None:
        """HELLO is answered by an ERROR: the finding is about the HELLO, which breaks at most one rule of frames."""
        assert self._hello is not None
        text = error.reason.lower()
        name = next((name for word, name in _REFUSALS.items() if word in text), "hello_refused")
        if name in _FRAME_RULES and self._hello_judged:
            return
        self._found.append(Found(RULE[name], self._hello, "the worker answers HELLO by an ERROR"))
        if name in ENDS:
            self.ended_by = name

    def _take_late_error(self, _: Error) -> None:
        """An ERROR after a rule that ends the session was broken: it is signalled, by whichever side."""
        assert self._where is not None
        self._ignored = None if self._where.direction is Direction.SERVER else AFTER_VIOLATION
        self._take_error(self._where.direction)

    def _take_error(self, side: Direction) -> None:
        self.errors.add(side)
        self._error = self._error or self._where
        self._violation = self.dry = None

    def _after_error(self, frame: Frame | None) -> None:
        """Nothing is valid any more. A side that sends after its own ERROR breaks a rule, the other is discarded."""
        assert self._where is not None
        side = self._where.direction
        if side is Direction.CLIENT:
            self._count(frame)
        if side in self.errors:
            self._ignored = AFTER_ERROR
            self._find("frame_after_error", f"the {side} has sent an ERROR before")
        else:
            self._ignore(AFTER_ERROR)
        if isinstance(frame, Error):
            self.errors.add(side)

    def _after_violation(self, frame: Frame | None) -> None:
        self._ignored = AFTER_VIOLATION
        assert self._where is not None
        if self._where.direction is Direction.CLIENT:
            self._count(frame)
        unaware = self._is_unaware(self._where.direction, self._where.byte_end)
        if self._violation is not None and isinstance(frame, Ack) and not unaware and self._acks_violation(frame):
            self._not_signalled("the worker acks it")

    def _acks_violation(self, ack: Ack) -> bool:
        """The ACK names the message that broke the rule, by its id alone where it is known to belong to no stream."""
        stream_id, message_id = self._violated
        if message_id is None:
            return False
        if stream_id is not None:
            return (stream_id, message_id) in ack.acks
        return message_id in (pair.message_id for pair in ack.acks)

    # Credits

    def _grant(self, count: int) -> None:
        """OK sets the balance: what comes before counts for nothing."""
        if self.credits is None and self.state is State.HANDSHAKE:
            return
        self.granted += count
        if self.credits is None:
            return
        self.credits += count
        if count:
            self.dry = None
            self._run_dry()

    def _run_dry(self) -> None:
        """Without a credit the connector waits from here on; with a sink, and once the session ends, it needs none."""
        waits = self.state in (State.HANDSHAKE, State.STREAMING) and self._next is not State.ENDED
        if waits and not self.dialect.sink and self.credits is not None and self.credits <= 0:
            self.dry = self._where

    def _spend(self, kind: Kind) -> None:
        """NOTIFY and MESSAGE take a credit each; before OK there is none."""
        if self.state is State.HANDSHAKE:
            return
        self.spent += 1
        if self.credits is None:
            return
        if self.credits <= 0 and self._next is not State.ENDED and self.state is not State.RESTARTED:
            self._find("credits_overdrawn", f"{kind} at a balance of {self.credits}", self._stream_id)
        self.credits -= 1
        if self.credits == 0:
            self._run_dry()

    # Streams

    def _stream(self, stream_id: int) -> Stream | None:
        """The stream of an id, made if there is room for it."""
        stream = self.streams.get(stream_id)
        if stream is None and len(self.streams) < MAX_STREAMS:
            stream = self.streams[stream_id] = Stream()
        elif stream is None:
            self.untracked = True
        return stream

    def _known(self, stream_id: int) -> Stream | None:
        """The stream of an id for a frame that needs one; None = it can't be judged.

        Where the connector's were missed, a stream that was never seen is taken for one that is open.
        """
        stream = self.streams.get(stream_id)
        if stream is None and self.untracked:
            return None
        stream = stream or self._stream(stream_id)
        new = stream is not None and not stream.notified and stream.state is StreamState.INTRO
        if new and stream is not None and self._may_follow_unseen():
            stream.assumed = True
            stream.state = StreamState.OPEN
        return stream

    def _may_follow_unseen(self) -> bool:
        """What the connector said before this frame may not have been captured, or not have been told yet."""
        assert self._where is not None
        answers = self.unordered and self._where.direction is Direction.SERVER
        return answers or self.may_miss(Direction.CLIENT)

    def _take_notify(self, notify: Notify) -> None:
        self._stream_id = notify.stream_id
        stream = self._stream(notify.stream_id)
        if stream is not None:
            self._check_name(notify, stream)
            if self.dialect.answers_notify:
                stream.act(Action.NOTIFY_ASKED)
            else:
                assert self._where is not None
                received = self._peer_received(Direction.CLIENT, self._where.byte_end)
                owed = stream.owes(received)
                self._check_reference(notify, stream, received, owed=owed)
                step = stream.act(Action.NOTIFY)
                if not stream.assumed and not self.partial and not owed:
                    self._find(step.rule, f"stream {notify.stream_id} is open", notify.stream_id)
            stream.assumed = False
        self._spend(Kind.NOTIFY)

    def _check_name(self, notify: Notify, stream: Stream) -> None:
        digest = _digest(notify.stream_name)
        other = self._names.get(digest, notify.stream_id)
        if len(self._names) < MAX_STREAMS:
            self._names.setdefault(digest, notify.stream_id)
        if stream.name not in (None, digest):
            self._find("stream_id_reused", f"stream {notify.stream_id} had another name", notify.stream_id)
        elif stream.listed not in (None, digest):
            self._find("stream_id_reused", f"OK gives stream {notify.stream_id} another name", notify.stream_id)
        elif other != notify.stream_id:
            self._find("stream_id_reused", f"the name was that of stream {other}", notify.stream_id)
        stream.name = digest

    def _check_reference(self, notify: Notify, stream: Stream, received: int, *, owed: bool) -> None:
        reference = notify.point_of_ref
        given = stream.given(received)
        asked = stream.answer(reference)
        if asked or owed or reference in given or stream.was_acked(reference, received):
            return
        if stream.assumed or self.partial or self.unattributed:
            return
        shown = f"reference {reference}, the worker gave {', '.join(str(value) for value in given[1:] if value)}"
        self._find("notify_reference_unexpected", shown.removesuffix(", the worker gave "), notify.stream_id)

    def _take_notify_ack(self, answer: NotifyAck) -> None:
        self._stream_id = answer.stream_id
        stream = self._known(answer.stream_id)
        if stream is None:
            return
        if not stream.waiting and (stream.assumed or self._may_follow_unseen()):
            stream.act(Action.NOTIFY_ASKED)
        step = stream.act(Action.ACCEPTED if answer.accepted else Action.REFUSED)
        if step.rule is not None:
            self._find(step.rule, f"no NOTIFY of stream {answer.stream_id} waits", answer.stream_id)
            return
        if not answer.accepted:
            self._find("notify_refused", f"stream {answer.stream_id} is refused", answer.stream_id)
            return
        stream.references = [answer.point_of_ref]
        # 0, or what stands for it: nothing was seen yet, so the first id may be any.
        nothing = answer.point_of_ref in (0, self.dialect.nothing_seen)
        stream.last_seen = None if nothing else answer.point_of_ref

    def _take_message(self, message: Message) -> None:
        kept, stream = self._stream_of(message)
        if stream is not None and self._stream_id is not None:
            self._judge_message(message, stream)
        elif not kept:
            self._find("message_unknown_stream", "no stream was ever notified")
        elif message.has(Flag.EOS):
            self._end_any()
        if self._next is not State.ENDED:
            self._check_flags(message)
        elif not self._sent_before(message.message_id, stream):
            self._violated = (self._stream_id, message.message_id)
        self._spend(Kind.MESSAGE)

    def _sent_before(self, message_id: int | None, stream: Stream | None) -> bool:
        """The id may be acked for a message that broke no rule. Without a stream it may be that of any."""
        streams = self.streams.values() if stream is None else (stream,)
        return message_id is not None and any(one.may_have_sent(message_id) for one in streams)

    def _stream_of(self, message: Message) -> tuple[bool, Stream | None]:
        """Whether the message may belong to some stream, and which one, if that can be told."""
        if message.stream_id is not None:
            self._stream_id = message.stream_id
            return True, self._known(message.stream_id)
        notified = ((sid, stream) for sid, stream in self.streams.items() if stream.notified)
        # More than two make no difference, and there may be very many.
        live = list(islice((sid for sid, stream in notified if stream.state in _LIVE), 2))
        if not live and not self.partial and not self.untracked:
            ended = list(islice((sid for sid, stream in self.streams.items() if stream.notified), 2))
            if not ended:
                return False, None
            # All have ended, so whichever it is for, it is too late.
            live = ended if len(ended) == 1 else []
            if not live:
                self._find("message_closed_stream", "every stream has ended")
                return True, None
        if len(live) != 1 or self.partial or self.untracked:
            self.unattributed = True
            return True, None
        self._stream_id = live[0]
        return True, self.streams[live[0]]

    def _end_any(self) -> None:
        """One of the open streams has ended, and nobody can tell which: a NOTIFY may open each of them again."""
        for stream in self.streams.values():
            if stream.state is StreamState.OPEN:
                stream.assumed = True

    def _judge_message(self, message: Message, stream: Stream) -> None:
        stream_id = self._stream_id
        last = message.has(Flag.EOS)
        stream.messages += 1
        step = self._act(stream, Action.LAST_MESSAGE if last else Action.MESSAGE)
        if step.rule is not None:
            self._find(step.rule, f"MESSAGE for stream {stream_id}, which is {stream.state}", stream_id)
            return
        if step.ignored is not None:
            self._ignore(step.ignored, stream_id)
        elif self._repeats(message, stream):
            self._ignore(NOT_ABOVE_LAST_SEEN, stream_id)
            return
        self._note_sent(message, stream)

    def _act(self, stream: Stream, action: Action) -> StreamStep:
        """A message or end of a stream, which was opened where it wasn't seen if it can't be otherwise."""
        step = stream.act(action)
        unseen = stream.assumed or (self.may_miss(Direction.SERVER) and stream.state is StreamState.PENDING)
        if step.rule is None or not unseen:
            return step
        stream.state = StreamState.OPEN
        return stream.act(action)

    def _repeats(self, message: Message, stream: Stream) -> bool:
        """The worker skips ids that aren't above the last one seen, but for what it can't compare."""
        if not self.dialect.skips_repeats or message.message_id is None or message.has(Flag.EOS):
            return False
        if message.message_id == 0 and self.dialect.flags is not None:
            return False
        if message.message_id == self.dialect.nothing_seen:
            stream.last_seen = None
            return False
        if stream.last_seen is not None and message.message_id <= stream.last_seen:
            return True
        stream.last_seen = message.message_id
        return False

    def _note_sent(self, message: Message, stream: Stream) -> None:
        message_id = message.message_id
        if message_id is None:
            return
        stream_id = self._stream_id
        before = stream.remembered
        ephemeral = message.has(Flag.EPHEMERAL)
        twice = message_id in stream.ephemeral or (ephemeral and stream.sent.get(message_id) is not None)
        if twice and not self.dialect.skips_repeats and self._ignored is None:
            self._find("ephemeral_id_repeated", f"id {message_id} of stream {stream_id}", stream_id)
        # Workers with flags drop what only marks a place or an end, so it is never acked.
        marks = self.dialect.skips_repeats and (message.has(Flag.BOUNDARY) or message.has(Flag.EOS))
        unstable = ephemeral or message.has(Flag.UNSTABLE_REFERENCE)
        stream.send(message_id, awaits_ack=not marks and self._ignored is None, unstable=unstable)
        if ephemeral:
            stream.ephemeral.add(message_id)
        self.ids += stream.remembered - before
        if self.ids > MAX_IDS:
            before = stream.remembered
            stream.forget()
            self.ids += stream.remembered - before

    def _check_flags(self, message: Message) -> None:
        flags, allowed = message.flags, self.dialect.flags
        if flags is None or allowed is None:
            return
        pair = next((pair for pair in self.dialect.forbidden_flags if flags & pair == pair), None)
        if pair is not None:
            self._find("flags_not_allowed", f"flags {flags} hold both of {pair}", self._stream_id)
        elif flags & ~allowed:
            self._find("reserved_flags_set", f"flags {flags}, of which {flags & ~allowed} is reserved", self._stream_id)
        if message.has(Flag.BOUNDARY) and not self.dialect.answers_notify and message.payload:
            beyond = f"{len(message.payload)} bytes after the id of a boundary"
            self._find("boundary_with_payload", beyond, self._stream_id)

    def _take_eos(self, eos: EosMessage) -> None:
        self._stream_id = eos.stream_id
        self.eos_messages += 1
        stream = self._known(eos.stream_id)
        if stream is None:
            return
        step = self._act(stream, Action.EOS_MESSAGE)
        if step.ignored is not None:
            self._ignore(step.ignored, eos.stream_id)
        self._find(step.rule, f"EOS_MESSAGE for stream {eos.stream_id}, which is {stream.state}", eos.stream_id)

    def _take_ack(self, ack: Ack) -> None:
        self._grant(ack.credits)
        for stream_id, message_id in ack.acks:
            stream = self._known(stream_id)
            if stream is not None:
                self._judge_ack(stream_id, message_id, stream)

    def _judge_ack(self, stream_id: int, message_id: int, stream: Stream) -> None:
        step = stream.act(Action.ACK)
        if step.rule is not None:
            self._find(step.rule, f"stream {stream_id} was never notified", stream_id)
            return
        if message_id == self.dialect.nothing_seen:
            return
        before = stream.remembered
        verdict = stream.ack(message_id)
        self.ids += stream.remembered - before
        if verdict is AckVerdict.BACK:
            self._find("ack_goes_back", f"id {message_id}, after {stream.last_acked} was acked", stream_id)
        elif verdict is AckVerdict.NEVER_SENT and not self._from_before(message_id, stream):
            assert self._where is not None
            if len(self.unsent) < MOST_UNSENT:
                self.unsent.append(UnsentAck(stream_id, message_id, self._where))
        elif verdict is not AckVerdict.FORWARD:
            stream.ack_unseen(message_id, rises=self.dialect.skips_repeats)
        if not self.dialect.answers_notify and stream.is_unstable(message_id):
            self._find("reference_unstable", f"ACK of id {message_id}", stream_id)

    def _from_before(self, message_id: int, stream: Stream) -> bool:
        """The id may have been sent before this session, or where it wasn't seen."""
        if stream.assumed or self.partial or self.unattributed or message_id in stream.references:
            return True
        # Where no NOTIFY_ACK says how far the worker is, it may go on with what came before a reconnect.
        if not self.dialect.answers_notify and stream.acked_at is None:
            return True
        given = (reference for reference in stream.references if reference != self.dialect.nothing_seen)
        return self.dialect.skips_repeats and any(message_id <= reference for reference in given)

    def _take_nack(self, nack: Nack) -> None:
        self._stream_id = nack.stream_id
        self._grant(nack.credits)
        stream = self._known(nack.stream_id)
        if stream is None:
            return
        step = stream.act(Action.NACK)
        self._find(step.rule, f"stream {nack.stream_id} was never notified", nack.stream_id)
        assert self._where is not None
        stream.ask(nack.point_of_ref, self._where.byte_end)
        if stream.is_unstable(nack.point_of_ref):
            self._find("reference_unstable", f"NACK to id {nack.point_of_ref}", nack.stream_id)

    def _take_restart(self, _: Frame) -> None:
        self.dry = None
        for stream in self.streams.values():
            stream.rewound = True

    def _after_restart(self, frame: Frame) -> None:
        """The connector may not have heard of it yet: its frames are dropped, and take credits."""
        if isinstance(frame, Message | Notify | EosMessage):
            self._stream_id = frame.stream_id
        self._ignore(AFTER_RESTART, self._stream_id)
        self._count(frame)
        self.eos_messages += isinstance(frame, EosMessage)
        if isinstance(frame, Message | Notify):
            self._spend(Kind(KIND_OF[type(frame)]))

    def _count(self, frame: Frame | None) -> None:
        """A MESSAGE that is ignored is one of its stream, if it names one that is known."""
        if isinstance(frame, Message) and frame.stream_id in self.streams:
            self.streams[frame.stream_id].messages += 1

    def _pass_over(self, _: Frame) -> None:
        self._ignored = NOT_FOR_SOURCES

    def _nothing(self, _: Frame) -> None:
        """The frame says nothing that is kept."""

    # Carried state

    def snapshot(self) -> str:
        """The state as JSON; dialect and options are given again. Equal sessions give equal text."""
        plain = {name: getattr(self, name) for name in _PLAIN}
        marks = {name: _where_to_json(getattr(self, name)) for name in _MARKS}
        texts = {name: None if getattr(self, name) is None else getattr(self, name).hex() for name in _BYTES}
        return json.dumps(
            {
                "version": SNAPSHOT_VERSION,
                "dialect": self.dialect.name,
                "plain": plain,
                "marks": marks,
                "bytes": texts,
                "state": self.state,
                "ended": self.ended,
                "errors": sorted(self.errors),
                "lacks": sorted(self.lacks),
                "violated": self._violated,
                "unsent": [[*one[:2], _where_to_json(one.where)] for one in self.unsent],
                "names": [[name.hex(), stream_id] for name, stream_id in self._names.items()],
                "streams": [[stream_id, stream.to_json()] for stream_id, stream in self.streams.items()],
            },
            separators=(",", ":"),
        )

    def _restore(self, snapshot: str) -> None:
        state = json.loads(snapshot)
        if state.get("version") != SNAPSHOT_VERSION:
            raise StateVersionError(what="wallaroo session", found=state.get("version"), expected=SNAPSHOT_VERSION)
        self.dialect = DIALECTS[state["dialect"]]
        for name in _PLAIN:
            setattr(self, name, state["plain"][name])
        for name in _MARKS:
            setattr(self, name, _where_from_json(state["marks"][name]))
        for name in _BYTES:
            text = state["bytes"][name]
            setattr(self, name, None if text is None else bytes.fromhex(text))
        self.state = State(state["state"])
        self.ended = None if state["ended"] is None else End(state["ended"])
        self.errors = {Direction(side) for side in state["errors"]}
        self.lacks = {Direction(side) for side in state["lacks"]}
        self._violated = (state["violated"][0], state["violated"][1])
        for stream_id, message_id, row in state["unsent"]:
            where = _where_from_json(row)
            assert where is not None
            self.unsent.append(UnsentAck(stream_id, message_id, where))
        self._names = {bytes.fromhex(name): stream_id for name, stream_id in state["names"]}
        self.streams = {stream_id: Stream.from_json(row) for stream_id, row in state["streams"]}


_PLAIN: Final = (
    "late",
    "unordered",
    "doubt_ns",
    "credits",
    "granted",
    "spent",
    "eos_messages",
    "initial_credits",
    "version",
    "cookie_empty",
    "accepted",
    "ended_by",
    "first_ns",
    "last_ns",
    "untracked",
    "unattributed",
    "ids",
    "_started",
    "_hello_judged",
    "_answered",
    "_early_ok",
    "_unaware_ns",
)
_MARKS: Final = ("_hello", "_error", "_violation", "dry")
_BYTES: Final = ("program_name", "instance_name", "cookie_digest")

#: The word in an ERROR that says what is refused, in the order of the rules.
_REFUSALS: Mapping[bytes, str] = {b"cookie": "cookie_refused", b"version": "version_refused"}


def _digest(name: bytes) -> bytes:
    return hashlib.blake2b(name, digest_size=_DIGEST_BYTES).digest()


def _late(since: Where, timeout_ns: int, now_ns: int) -> bool:
    return now_ns > since.place.arrived_at_ns + timeout_ns


def _where_to_json(where: Where | None) -> list[Any] | None:
    if where is None:
        return None
    return [where.direction, where.place.to_json(), where.byte_start, where.byte_end]


def _where_from_json(row: list[Any] | None) -> Where | None:
    return None if row is None else Where(Direction(row[0]), Place.from_json(row[1]), row[2], row[3])


# The table

_C, _S = Direction.CLIENT, Direction.SERVER
#: What each side sends once the session streams.
_CONNECTOR_KINDS: Mapping[Kind, Callable[[Session, Any], None]] = {
    Kind.NOTIFY: Session._take_notify,
    Kind.MESSAGE: Session._take_message,
    Kind.EOS_MESSAGE: Session._take_eos,
}
_WORKER_KINDS: Mapping[Kind, Callable[[Session, Any], None]] = {
    Kind.NOTIFY_ACK: Session._take_notify_ack,
    Kind.ACK: Session._take_ack,
    Kind.NACK: Session._take_nack,
}
#: All that is judged where the worker is a sink: it uses neither streams nor credits as the specification has them.
_HANDSHAKE_KINDS: Final = frozenset({Kind.HELLO, Kind.OK, Kind.ERROR})
_FRAMES: Final = tuple(kind for kind in Kind if kind is not Kind.UNDECODABLE)
_TALKING: Final = (State.CONNECTED, State.HANDSHAKE, State.STREAMING, State.RESTARTED)

#: An unlisted pair is the rule that `unlisted` names.
TRANSITIONS: Mapping[tuple[State, Direction, Kind], Step] = MappingProxyType(
    {
        (State.CONNECTED, _C, Kind.HELLO): Step(Session._take_hello, State.HANDSHAKE),
        # What a worker says too early ends nothing: the HELLO that follows is judged as any.
        (State.CONNECTED, _S, Kind.OK): Step(Session._take_early_ok, State.CONNECTED, "frame_before_hello"),
        **{
            (State.CONNECTED, _S, kind): Step(Session._nothing, State.CONNECTED, "frame_before_hello")
            for kind in (*_WORKER_KINDS, Kind.RESTART, Kind.WORKERS_LEFT)
        },
        (State.HANDSHAKE, _S, Kind.OK): Step(Session._take_ok, State.STREAMING),
        **{
            (State.HANDSHAKE, side, kind): Step(effect, State.HANDSHAKE, "frame_before_ok")
            for side, kinds in ((_C, _CONNECTOR_KINDS), (_S, _WORKER_KINDS))
            for kind, effect in kinds.items()
        },
        (State.HANDSHAKE, _S, Kind.RESTART): Step(Session._take_restart, State.RESTARTED, "frame_before_ok"),
        (State.STREAMING, _S, Kind.OK): Step(Session._nothing, State.STREAMING, "duplicate_ok"),
        **{(State.STREAMING, _C, kind): Step(effect, State.STREAMING) for kind, effect in _CONNECTOR_KINDS.items()},
        **{(State.STREAMING, _S, kind): Step(effect, State.STREAMING) for kind, effect in _WORKER_KINDS.items()},
        (State.STREAMING, _S, Kind.RESTART): Step(Session._take_restart, State.RESTARTED),
        (State.RESTARTED, _S, Kind.OK): Step(Session._nothing, State.RESTARTED, "duplicate_ok"),
        **{(State.RESTARTED, _C, kind): Step(Session._after_restart, State.RESTARTED) for kind in _CONNECTOR_KINDS},
        **{(State.RESTARTED, _S, kind): Step(effect, State.RESTARTED) for kind, effect in _WORKER_KINDS.items()},
        (State.RESTARTED, _S, Kind.RESTART): Step(Session._take_restart, State.RESTARTED),
        **{(state, _C, Kind.ERROR): Step(Session._take_connector_error, State.ERROR) for state in _TALKING},
        **{(state, _S, Kind.ERROR): Step(Session._take_worker_error, State.ERROR) for state in _TALKING},
        **{
            (State.HANDSHAKE, side, Kind.WORKERS_LEFT): Step(Session._pass_over, State.HANDSHAKE, "frame_before_ok")
            for side in Direction
        },
        **{
            (state, side, Kind.WORKERS_LEFT): Step(Session._pass_over, state)
            for state in (State.STREAMING, State.RESTARTED)
            for side in Direction
        },
        **{
            (State.ENDED, side, kind): Step(Session._after_violation, State.ENDED)
            for side in Direction
            for kind in _FRAMES
        },
        **{(State.ENDED, side, Kind.ERROR): Step(Session._take_late_error, State.ERROR) for side in Direction},
        **{
            (State.ERROR, side, kind): Step(Session._after_error, State.ERROR) for side in Direction for kind in _FRAMES
        },
    }
)


def unlisted(state: State, direction: Direction, kind: Kind) -> str | None:
    """The rule that a pair breaks which is not in the table; None in the state that has no communication."""
    if state is State.DISCONNECTED or kind is Kind.UNDECODABLE:
        return None
    if direction is Direction.CLIENT and state is State.CONNECTED:
        return "frame_before_hello"
    if direction is Direction.CLIENT and kind is Kind.HELLO:
        return "duplicate_hello"
    return "wrong_direction"
