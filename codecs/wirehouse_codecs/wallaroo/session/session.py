"""The session layer of the Wallaroo connector protocol: what each frame does, and which rules it breaks.

Two machines (specification, "Protocol State Machine" and "Stream State Machine"): the connection's table is in
transitions.py, the stream's in streams.py. A `Session` takes the frames of one connection in arrival order and returns
one `Outcome` for each; it holds a bounded number of streams and ids, and all that it carries is its `memory`.

A frame goes through these modules:

1. handshake.py finds the possible state if the beginning of the session was missed.
2. transitions.py has the effect of the frame in this state.
3. handshake.py, errors.py, credits.py and stream_frames.py are the effects: they change the memory (memory.py), and
   note the findings in the `Judgement` of judging.py.
4. outcome.py has the outcome that is returned.

- A rule about what never came is judged at a definite time: when the connection is closed, or when the time of a later
  frame or of `advance` is past it. Its finding is the same whenever that is noticed.
- A rule is broken only if the bytes that could excuse it were captured: `Memory.lacks` has the sides of which some
  weren't.
- A side did not know frames that its host had not received: `peer_received` is the number of bytes that it had
  received. Frames that were received are judged as they arrived.
"""

from __future__ import annotations

from collections.abc import Callable

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.tcp.endpoints import Direction, PeerReceived
from wirehouse_codecs.tcp.events import End
from wirehouse_codecs.wallaroo.dialects import Dialect
from wirehouse_codecs.wallaroo.frames import KIND_OF, Error, Frame
from wirehouse_codecs.wallaroo.options import WallarooOptions
from wirehouse_codecs.wallaroo.rules import RULE
from wirehouse_codecs.wallaroo.session.errors import after_error
from wirehouse_codecs.wallaroo.session.going_on import note
from wirehouse_codecs.wallaroo.session.handshake import (
    HANDSHAKE_KINDS,
    begin,
    is_first_seen,
    may_be_of_sink,
    take_hello,
)
from wirehouse_codecs.wallaroo.session.judging import Judgement, find, is_unaware, not_signalled
from wirehouse_codecs.wallaroo.session.memory import Memory
from wirehouse_codecs.wallaroo.session.outcome import (
    AFTER_ERROR,
    AFTER_VIOLATION,
    NOT_FOR_SOURCES,
    Found,
    Kind,
    Outcome,
    State,
    Where,
)
from wirehouse_codecs.wallaroo.session.streams import ALL, Stream
from wirehouse_codecs.wallaroo.session.transitions import TRANSITIONS, Step, nothing, unlisted
from wirehouse_codecs.wallaroo.wire.reader_state import Received


def everything(_side: Direction, _byte_end: int) -> int:
    """The number of received bytes if each side had received all that was captured before its frame."""
    return ALL


class Session:
    """One connection. `receive` its frames in arrival order, `advance` the time, `end` it once.

    `started_late`: the capture began after the connection did. `state` is the memory of an earlier window, to continue
    from. `cookie_hash` makes of a cookie what may be kept. `peer_received`: the number of bytes of the other side that
    a side had received when it sent the bytes before a position. `is_late`: whether it isn't known when the byte before
    a position was sent.
    """

    def __init__(
        self,
        dialect: Dialect,
        options: WallarooOptions,
        *,
        started_late: bool = False,
        cookie_hash: Callable[[bytes], bytes] | None = None,
        peer_received: PeerReceived = everything,
        is_late: Callable[[Direction, int], bool] = lambda _direction, _byte_end: False,
        state: Memory | None = None,
    ) -> None:
        self._options = options
        self._peer_received = peer_received
        self._is_late = is_late
        self._cookie_hash = cookie_hash
        self.memory = state or Memory(dialect, late=started_late)

    def receive(self, received: Received) -> Outcome:
        """Take the next frame, or undecodable bytes, of the connection. ValueError: the connection has ended."""
        memory = self.memory
        if memory.ended is not None:
            raise ValueError("the connection has ended")
        frame, at_ns = received.decoded.frame, received.place.arrived_at_ns
        where = Where.of(received)
        is_late = self._is_late(where.direction, where.byte_end)
        judgement = Judgement(where, self._peer_received, is_late, self._cookie_hash)
        in_doubt = memory.doubt_ns is not None and at_ns >= memory.doubt_ns
        if in_doubt:
            memory.doubt()
        if frame is None and received.decoded.rule is None:
            # The frame that would be late may be in the hole.
            memory.miss(received.direction)
        if memory.violation is not None and is_unaware(memory, judgement):
            memory.unaware_ns = at_ns
        # A late ERROR is late, but it does signal.
        judgement.found += self.advance(at_ns, traffic=not isinstance(frame, Error))
        memory.first_ns = at_ns if memory.first_ns is None else memory.first_ns
        memory.last_ns = at_ns
        spent = memory.spent
        kind = Kind.UNDECODABLE if frame is None else Kind(KIND_OF[type(frame)])
        begin(memory, judgement, kind)
        if in_doubt:
            # Also HELLO may come after what it began.
            memory.lacks = set(Direction)
        if received.decoded.rule is not None and memory.state not in (State.ENDED, State.ERROR):
            find(memory, judgement, received.decoded.rule.name, received.decoded.reason)
        self._walk(judgement, received, kind, frame)
        stream = None if judgement.stream_id is None else memory.streams.get(judgement.stream_id)
        return Outcome(
            received=received,
            kind=kind,
            findings=tuple(judgement.found),
            ignored=judgement.ignored,
            credits=memory.credits,
            granted=judgement.granted,
            spent=memory.spent - spent,
            state=memory.state,
            accepted=memory.accepted,
            stream_id=judgement.stream_id,
            stream_state=None if stream is None else stream.state,
        )

    def _walk(self, judgement: Judgement, received: Received, kind: Kind, frame: Frame | None) -> None:
        """Take the step of the machine, if the frame has not ended the session by itself."""
        memory, direction = self.memory, received.direction
        if kind is Kind.UNDECODABLE:
            self._take_undecodable(judgement, received)
        elif judgement.next is None:
            shown = f"{kind} from the {direction} in state {memory.state}"
            step = self._step(judgement, direction, kind)
            if step is None and may_be_of_sink(memory, direction, kind):
                judgement.ignored = NOT_FOR_SOURCES
            elif step is None:
                find(memory, judgement, unlisted(memory.state, direction, kind), shown)
            else:
                judgement.next = step.state
                find(memory, judgement, step.rule, shown, ends=False)
                step.effect(memory, judgement, frame)
        if judgement.next is State.ENDED and memory.violation is judgement.where:
            note(memory, judgement, frame)
        memory.state = judgement.next or memory.state

    def _step(self, judgement: Judgement, direction: Direction, kind: Kind) -> Step | None:
        """The step of the table. With a sink only the frames of the handshake have the specified meaning."""
        memory = self.memory
        if kind is Kind.HELLO and direction is Direction.CLIENT and is_first_seen(memory, judgement):
            return Step(take_hello, memory.state)
        step = TRANSITIONS.get((memory.state, direction, kind))
        if memory.dialect.sink and kind not in HANDSHAKE_KINDS and memory.state in (State.HANDSHAKE, State.STREAMING):
            return Step(nothing, memory.state, None if step is None else step.rule)
        return step

    def _take_undecodable(self, judgement: Judgement, received: Received) -> None:
        memory, rule = self.memory, received.decoded.rule
        whole = rule is not None and rule.name != "truncated_frame"
        if memory.state is State.ERROR and whole:
            after_error(memory, judgement, None)
        elif memory.state in (State.ENDED, State.ERROR):
            judgement.ignored = AFTER_VIOLATION if memory.state is State.ENDED else AFTER_ERROR

    def advance(self, now_ns: int, *, traffic: bool = False) -> tuple[Found, ...]:
        """Advance the time to `now_ns`. Return findings about what is overdue. `traffic`: a frame arrives now."""
        memory, found = self.memory, list[Found]()
        close, close_s = self._options.close_timeout_ns, self._options.close_timeout_s
        if memory.error is not None and _late(memory.error, close, now_ns):
            found.append(Found(RULE["not_closed_after_error"], memory.error, f"still open {close_s} s later"))
            memory.error = None
        aware = now_ns > memory.unaware_ns + close
        if traffic and memory.violation is not None and _late(memory.violation, close, now_ns) and aware:
            found.append(not_signalled(memory, f"traffic goes on for more than {close_s} s"))
        if memory.dry is not None and _late(memory.dry, self._options.ack_timeout_ns, now_ns):
            waited = f"no credit for more than {self._options.ack_timeout_s} s"
            found.append(Found(RULE["credits_not_replenished"], memory.dry, waited))
            memory.dry = None
        return tuple(found)

    def end(self, how: End, place: Place, received: int = ALL, by: Direction | None = None) -> tuple[Found, ...]:
        """End the connection at `place`. Return findings about what never came. ValueError: it has ended before.

        `received`: the number of the worker's bytes that the connector's host had received when it closed its side.
        `by`: the side that ended it.
        """
        memory = self.memory
        if memory.ended is not None:
            raise ValueError("the connection has ended")
        # If the capture just ends, a missing answer may have come later, and so may the end of the connection.
        found = [] if how is End.CAPTURE_END else list(self.advance(place.arrived_at_ns))
        memory.ended, memory.left = how, how is End.RESET and by is Direction.CLIENT
        memory.last_ns = place.arrived_at_ns if memory.last_ns is None else max(memory.last_ns, place.arrived_at_ns)
        if how is End.CAPTURE_END:
            found.append(Found(RULE["capture_ends_early"], None, f"in state {memory.state}"))
        elif not memory.dialect.sink or memory.state is State.HANDSHAKE:
            found += _judge_end(memory, how, received)
        if how is not End.CAPTURE_END and memory.state not in (State.ERROR, State.ENDED):
            memory.state = State.DISCONNECTED
        return tuple(found)


def _late(since: Where, timeout_ns: int, now_ns: int) -> bool:
    return now_ns > since.place.arrived_at_ns + timeout_ns


def _judge_end(memory: Memory, how: End, received: int) -> list[Found]:
    """The findings about answers that were owed when the connection was closed or reset."""
    found = []
    waits = memory.state is State.HANDSHAKE and memory.hello is not None and not memory.answered
    if waits and how is End.CLOSED and not memory.may_miss(Direction.SERVER):
        found.append(Found(RULE["hello_not_answered"], memory.hello, "closed without OK or ERROR"))
    if memory.state not in (State.STREAMING, State.RESTARTED):
        return found
    # If the worker's OK is missing, all its captured frames may have come after the answers.
    is_heard = memory.initial_credits is not None or not memory.may_miss(Direction.SERVER)
    for stream_id, stream in memory.streams.items():
        if stream.unanswered and is_heard:
            shown = f"{stream.unanswered} NOTIFY without an answer"
            found.append(Found(RULE["notify_not_answered"], None, shown, stream_id))
        # Without a credit left none of them may be answered.
        known = 0 if memory.credits is not None and memory.credits <= 0 else stream.known_nacks(received)
        if known and memory.state is State.STREAMING and not memory.may_miss(Direction.CLIENT):
            owed = f"{known} NACK without a NOTIFY"
            found.append(Found(RULE["nack_not_answered"], None, owed, stream_id))
        if how is End.CLOSED and memory.state is State.STREAMING and _owes_acks(memory, stream):
            unacked = stream.unacked()
            count = len(unacked) + stream.forgotten_unacked
            shown = f"{count} messages after the last acked one, the first has id {unacked[0].message_id}"
            found.append(Found(RULE["message_never_acked"], None, shown, stream_id))
    return found


def _owes_acks(memory: Memory, stream: Stream) -> bool:
    """Whether acks of a stream are missing. Workers without recovery never ack one: only a stream with acks counts."""
    if not stream.ever_acked or memory.unattributed or memory.may_miss(Direction.SERVER):
        return False
    return bool(stream.unacked())
