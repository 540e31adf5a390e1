"""Plain frames of a session, taken by a compiled loop: the fast path of `session.Session.receive`.

A frame is plain if the session finds nothing and ignores nothing, and if neither the connection nor a stream moves in
its table: a MESSAGE of an open stream with a credit left and an id above all before, an ACK that goes forward. The
changes are written back to the session, so that either path goes on from it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from wirehouse_codecs.wallaroo.dialects import Dialect
from wirehouse_codecs.wallaroo.fast import loops
from wirehouse_codecs.wallaroo.frames import Message
from wirehouse_codecs.wallaroo.options import WallarooOptions
from wirehouse_codecs.wallaroo.session import memory as memories
from wirehouse_codecs.wallaroo.session.outcome import State, Where
from wirehouse_codecs.wallaroo.session.sent_ids import Room
from wirehouse_codecs.wallaroo.session.session import Session
from wirehouse_codecs.wallaroo.session.streams import KEPT_ACKED, Stream, StreamState, Waiting

Array = np.ndarray[Any, Any]

#: Maximum number of frames that are taken before the room for ids is checked again.
FRAMES_AT_ONCE: Final = 32_768
_FLAG_BITS: Final = 0xFFFF
_MOST_NUMBER: Final = 1 << 60


class Rows(NamedTuple):
    """Frames in arrival order, as `framing.in_order` and `loops.read_frames` return them."""

    data: Array
    #: Arrival of each piece.
    arrived_at_ns: Array
    words: Array
    numbers: Array
    smalls: Array
    #: The connector's credits after each frame.
    balances: Array
    #: The place of a frame by its row.
    where: Callable[[int], Where]

    def __len__(self) -> int:
        return int(self.words.shape[1])


class _Streams(NamedTuple):
    """Streams of a session as arrays, by rising id."""

    ids: Array
    states: Array
    marks: Array


class Plain:
    """Takes plain frames for `session`, and keeps the arrays in which its streams hold their ids."""

    def __init__(self, session: Session, options: WallarooOptions) -> None:
        self.session, self.memory = session, session.memory
        self._fixed = _fixed(session.memory.dialect, options)
        #: Whether a MESSAGE names no stream.
        self._nameless = session.memory.dialect.layouts[Message][0].name != "stream_id"
        self._room = Room.of(0)
        #: The part of the room that each stream has, and where it begins.
        self._parts: dict[int, tuple[int, Room]] = {}

    @property
    def cost(self) -> int:
        """Number of plain frames from which on the loop is faster."""
        return 16 + len(self.memory.streams) // 4

    @property
    def possible(self) -> bool:
        """Whether the session is in a state in which frames can be plain."""
        memory = self.memory
        numbers = (memory.credits or 0, memory.granted, memory.spent)
        return (
            memory.state is State.STREAMING
            and memory.ended is None
            and all(abs(number) < _MOST_NUMBER for number in numbers)
        )

    def settle(self) -> None:
        """Hold ids in arrays again where they rise."""
        for stream in self.memory.streams.values():
            stream.sent.settle()

    def advance(self, rows: Rows, begin: int) -> int:
        """Take the plain frames from row `begin` on, some thousands at most. Return the row of the next frame."""
        end = min(len(rows), begin + FRAMES_AT_ONCE)
        order = sorted(self.memory.streams)
        only = self._only_stream(order)
        self._make_room(rows, begin, end, order, only)
        streams = self._export(order)
        numbers = self._numbers(only)
        row = loops.advance(
            rows.data, rows.arrived_at_ns, begin, end, rows.words, rows.numbers, rows.smalls, *streams, *self._room,
            numbers, self._fixed, rows.balances,
        )  # fmt: skip
        if row > begin:
            self._take_numbers(numbers, rows, row)
            self._take_streams(order, streams)
        return int(row)

    def _only_stream(self, order: list[int]) -> int:
        """The index in `order` of the stream of a MESSAGE that names none; -1 = not known."""
        memory = self.memory
        if not self._nameless or memory.partial or memory.untracked:
            return -1
        live = [
            place
            for place, stream_id in enumerate(order)
            if (stream := memory.streams[stream_id]).notified and stream.state in (StreamState.OPEN, StreamState.RESET)
        ]
        return live[0] if len(live) == 1 else -1

    def _make_room(self, rows: Rows, begin: int, end: int, order: list[int], only: int) -> None:
        """Make room for the ids of the next frames: all streams hold theirs in one array, each in a part of it."""
        counts = np.zeros(len(order), np.int64)
        loops.count_messages(rows.words, rows.smalls, np.array(order, np.uint64), only, begin, end, counts)
        rising = []
        roomy = True
        for stream_id, count in zip(order, counts.tolist(), strict=True):
            sent = self.memory.streams[stream_id].sent
            if sent.rising:
                rising.append((stream_id, sent, count))
                part = self._parts.get(stream_id)
                roomy = roomy and part is not None and part[1] is sent.room and len(sent.room.ids) - sent.end >= count
        if roomy:
            return
        sizes = [len(sent) + max(count, len(sent) // 2) for _, sent, count in rising]
        self._room, self._parts, base = Room.of(sum(sizes)), {}, 0
        for (stream_id, sent, _), size in zip(rising, sizes, strict=True):
            self._parts[stream_id] = base, self._room.part(base, base + size)
            sent.move(self._parts[stream_id][1])
            base += size

    # Session and streams as arrays

    def _numbers(self, only: int) -> Array:
        memory = self.memory
        dry = memory.dry
        numbers = np.zeros(loops.SESSION_NUMBERS, np.int64)
        numbers[loops.BALANCE], numbers[loops.BALANCED] = memory.credits or 0, memory.credits is not None
        numbers[loops.GRANTED], numbers[loops.SPENT], numbers[loops.IDS] = memory.granted, memory.spent, memory.ids
        numbers[loops.DRY] = -1 if dry is None else loops.DRY_BEFORE
        numbers[loops.DRY_NS] = 0 if dry is None else dry.place.arrived_at_ns
        numbers[loops.ONLY_STREAM] = only
        return numbers

    def _take_numbers(self, numbers: Array, rows: Rows, row: int) -> None:
        memory = self.memory
        balance, _, memory.granted, memory.spent, memory.ids, dry = numbers[: loops.DRY_NS].tolist()
        if memory.credits is not None:
            memory.credits = balance
        if dry != loops.DRY_BEFORE:
            memory.dry = None if dry < 0 else rows.where(dry)
        memory.last_ns = int(rows.arrived_at_ns[rows.numbers[loops.PIECE, row - 1]])

    def _export(self, order: list[int]) -> _Streams:
        states = np.zeros((len(order), loops.STATES), np.int64)
        marks = np.zeros((len(order), loops.STREAM_WORDS), np.uint64)
        for slot, stream_id in enumerate(order):
            stream = self.memory.streams[stream_id]
            base = self._parts[stream_id][0] if stream.sent.rising else 0
            states[slot], marks[slot] = self._state(stream, base), _marks(stream)
        return _Streams(np.array(order, np.uint64), states, marks)

    def _state(self, stream: Stream, base: int) -> list[int]:
        """A row of loops.advance's `states`."""
        memory, sent = self.memory, stream.sent
        plain = memory.dialect.skips_repeats or not stream.ephemeral
        return [
            base + sent.start,
            base + sent.end,
            base + len(sent.room.ids),
            stream.messages,
            -1 if stream.acked_at is None else stream.acked_at,
            stream.forgotten_unacked,
            plain and stream.state is StreamState.OPEN,
            # The first ack after a NACK or RESTART may go back.
            stream.state is not StreamState.INTRO and not stream.rewound,
            stream.assumed or memory.partial or memory.unattributed,
            sent.rising,
            stream.last_seen is not None,
            stream.first_id is not None,
            stream.forgotten is not None,
            len(stream.references) == 1,
            stream.ever_acked,
            stream.last_acked is not None,
            False,
            -1,
            stream.forgotten_waiting.sent_ns if stream.forgotten_waiting else 0,
        ]

    def _take_streams(self, order: list[int], streams: _Streams) -> None:
        for slot in np.flatnonzero(streams.states[:, loops.CHANGED]).tolist():
            stream_id = order[slot]
            stream, state, marks = self.memory.streams[stream_id], streams.states[slot], streams.marks[slot].tolist()
            sent, base = stream.sent, self._parts[stream_id][0] if stream.sent.rising else 0
            sent.start, sent.end = int(state[loops.START]) - base, int(state[loops.STOP]) - base
            stream.messages = int(state[loops.MESSAGES])
            stream.acked_at = int(state[loops.ACKED_AT]) if state[loops.ACKED_AT] >= 0 else None
            stream.forgotten_unacked = int(state[loops.FORGOTTEN_UNACKED])
            stream.ever_acked = bool(state[loops.EVER_ACKED])
            if state[loops.SEEN]:
                stream.last_seen = marks[loops.LAST_SEEN]
            if state[loops.SENT]:
                stream.first_id, stream.last_id = marks[loops.FIRST_ID], marks[loops.LAST_ID]
                stream.highest_id = marks[loops.HIGHEST_ID]
            if state[loops.ACKED]:
                stream.last_acked = marks[loops.LAST_ACKED]
            if state[loops.FORGOTTEN]:
                stream.forgotten = marks[loops.FORGOTTEN_LOW], marks[loops.FORGOTTEN_HIGH]
            waits = Waiting(marks[loops.FORGOTTEN_WAITING], int(state[loops.FORGOTTEN_NS]))
            stream.forgotten_waiting = waits if stream.forgotten_unacked else None


def _fixed(dialect: Dialect, options: WallarooOptions) -> Array:
    bad_flags = 0 if dialect.flags is None else _FLAG_BITS & ~dialect.flags
    numbers = np.zeros(loops.FIXED_NUMBERS, np.int64)
    numbers[loops.SINK], numbers[loops.TEXTUAL] = dialect.sink, not dialect.skips_repeats
    numbers[loops.HAS_NO_FLAGS], numbers[loops.BAD_FLAGS] = dialect.flags is None, bad_flags
    numbers[loops.MOST_IDS], numbers[loops.KEPT] = memories.MAX_IDS, KEPT_ACKED
    numbers[loops.DRY_FOR_NS] = options.ack_timeout_ns
    numbers[loops.HAS_NOTHING_SEEN] = dialect.nothing_seen is not None
    return numbers


def _marks(stream: Stream) -> list[int]:
    """A row of loops.advance's `marks`; 0 = there is none."""
    low, high = stream.forgotten or (0, 0)
    reference = stream.references[0] if stream.references else 0
    sent = (stream.first_id, stream.last_id, stream.highest_id)
    waits = stream.forgotten_waiting
    words = (stream.last_seen, *sent, stream.last_acked, low, high, reference, waits and waits.message_id)
    return [word or 0 for word in words]
