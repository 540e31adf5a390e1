"""The streams of a connection: which are open, who has ended them, and what their header blocks are.

- Streams are known until both sides have ended them, at most MAX_STREAMS: then the one that was silent for longest is
  forgotten.
- A reset ends what its sender sends; what the other side had sent before it received it is read, of the MAX_RESET
  streams that were reset last.
- A stream whose beginning wasn't captured is opened by what is sent in it, if bytes are missing.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.hiero.wire.http2.events import Block, Event, Gone
from wirehouse_codecs.hiero.wire.http2.side import Side
from wirehouse_codecs.tcp.endpoints import Direction

MAX_STREAMS: Final = 256
MAX_RESET: Final = 16
#: Maximum number of ended streams that are remembered, so that their late frames don't count as a new stream's.
MAX_CLOSED: Final = 256
_SIDES: Final = tuple(Direction)


@dataclass(slots=True)
class Stream:
    """A stream that is open."""

    #: Whether the client's first header block was seen.
    requested: bool
    ended: list[Direction] = field(default_factory=list)


class StreamsState(NamedTuple):
    """What the streams of a connection carry from window to window."""

    known: dict[int, Stream]
    reset: dict[int, None]
    closed: list[int]
    #: The highest id that the client has opened.
    highest: int


class Streams:
    """The streams of the connection with these `sides`."""

    def __init__(self, sides: Mapping[Direction, Side], state: StreamsState | None = None) -> None:
        self._sides = sides
        known, reset, closed, self._highest = state or StreamsState({}, {}, [], 0)
        #: The one that was silent for longest first.
        self._known: OrderedDict[int, Stream] = OrderedDict(known)
        #: The known streams that one side has reset.
        self._reset: dict[int, None] = reset
        self._closed: deque[int] = deque(closed, maxlen=MAX_CLOSED)

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._known

    def get(self, stream_id: int) -> Stream | None:
        """A stream that is open; None = it isn't."""
        return self._known.get(stream_id)

    def touch(self, stream_id: int) -> None:
        """Something was sent in a stream that is open."""
        self._known.move_to_end(stream_id)

    def take_block(self, side: Side, place: Place, events: list[Event]) -> tuple[Block, str | None]:
        """What the header block of a side is, and why it can't be."""
        stream_id = side.block_stream
        known = self._known.get(stream_id)
        if side.direction is Direction.CLIENT and known is None:
            if not stream_id % 2 or stream_id in self._closed or (stream_id <= self._highest and not side.partial):
                return Block.REQUEST, f"stream {stream_id} can't be opened"
            self._open(stream_id, place, events, requested=True)
            return Block.REQUEST, None
        refusal = self.refusal(side, stream_id, place, events)
        if refusal is not None:
            return Block.RESPONSE, refusal
        stream = self._known[stream_id]
        if side.direction is Direction.CLIENT and not stream.requested:
            stream.requested = True
            return Block.REQUEST, None
        trailers = side.direction is Direction.CLIENT or side.block_ends
        return Block.TRAILERS if trailers else Block.RESPONSE, None

    def refusal(self, side: Side, stream_id: int, place: Place, events: list[Event]) -> str | None:
        """Why a side can't send in this stream. One whose beginning wasn't seen is opened."""
        stream = self._known.get(stream_id)
        if stream is not None:
            self._known.move_to_end(stream_id)
            return f"stream {stream_id} was ended" if side.direction in stream.ended else None
        # Behind missing bytes of a server stand answers to requests that come later.
        partial = self._sides[Direction.CLIENT].partial or side.partial
        if not (partial and stream_id % 2 and stream_id not in self._closed):
            return f"stream {stream_id} is not open"
        self._open(stream_id, place, events, requested=False)
        return None

    def _open(self, stream_id: int, place: Place, events: list[Event], *, requested: bool) -> None:
        while len(self._known) >= MAX_STREAMS:
            self._forget(next(iter(self._known)), place, events)
        self._known[stream_id] = Stream(requested)
        if requested:
            self._highest = max(self._highest, stream_id)

    def end(self, stream_id: int, direction: Direction, place: Place, events: list[Event]) -> None:
        """A side has sent all it will."""
        stream = self._known.get(stream_id)
        if stream is None or direction in stream.ended:
            return
        stream.ended.append(direction)
        if len(stream.ended) == len(_SIDES):
            self._forget(stream_id, place, events)

    def note_reset(self, stream_id: int, place: Place, events: list[Event]) -> None:
        """Wait for what the other side has sent, of the last streams alone."""
        if stream_id in self._known:
            self._reset[stream_id] = None
            if len(self._reset) > MAX_RESET:
                self._forget(next(iter(self._reset)), place, events)

    def _forget(self, stream_id: int, place: Place, events: list[Event]) -> None:
        stream = self._known.pop(stream_id)
        ended = stream_id in self._reset or len(stream.ended) == len(_SIDES)
        self._reset.pop(stream_id, None)
        self._closed.append(stream_id)
        events.append(Gone(place, stream_id, ended))
        for side in self._sides.values():
            if side.content and side.stream_id == stream_id:
                side.refused, side.content, side.reason = side.content, 0, "of a stream that was forgotten"

    @property
    def state(self) -> StreamsState:
        """What later streams continue from."""
        return StreamsState(self._known, self._reset, list(self._closed), self._highest)
