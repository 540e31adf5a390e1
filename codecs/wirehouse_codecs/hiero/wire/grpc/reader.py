"""gRPC over one HTTP/2 connection (grpc/doc/PROTOCOL-HTTP2.md): from the bytes of both sides to calls and messages.

`Reader` gives the parts of a message as they come, so that one of any size passes through in bounded memory: nothing is
held of it but the five bytes of its prefix, and what of it is compressed. All parts of a message together, however they
were cut, are its content; first and last are marked.

- A compressed message is inflated when it is whole. Of all calls together HELD_BYTES are held at most; the message that
  would be beyond isn't inflated.
- A message that lacks bytes, or can't be inflated, ends by a part with a `fault`. Its other bytes are `Undecodable`.
- Where it isn't known what a call's next byte is (the capture began within it, bytes are missing, a prefix is none),
  a message is looked for in the content of each DATA frame, once all of it came (search.py).
- A call whose request headers weren't read has the path that all others of its connection have, if there is one.
- What one side sends after the other has reset the call was on its way, and is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple
from urllib.parse import unquote

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.hiero.options import MOST_MESSAGE_BYTES, MOST_RATIO
from wirehouse_codecs.hiero.wire import compression
from wirehouse_codecs.hiero.wire.grpc.events import (
    PREFIX_BYTES,
    Answered,
    Closed,
    Event,
    HalfClosed,
    How,
    MessagePart,
    Metadata,
    Opened,
    Reset,
    Trailers,
    metadata_of,
)
from wirehouse_codecs.hiero.wire.grpc.inbound import UNKNOWN_ENCODING, Inbound
from wirehouse_codecs.hiero.wire.grpc.search import first_message
from wirehouse_codecs.hiero.wire.http2 import events as http2
from wirehouse_codecs.hiero.wire.http2.reader import Reader as Http2Reader
from wirehouse_codecs.hiero.wire.http2.reader import ReaderState as Http2State
from wirehouse_codecs.hiero.wire.spans import UNDECODABLE_BYTES, Content, Passed, Run, Undecodable, run_of
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.reassembly import Data, Hole

#: Compressed bytes of unfinished messages of a connection.
HELD_BYTES: Final = 6 << 20
#: Maximum number of different paths of a connection that are remembered. An unknown call is assumed to have the
#: connection's path only if there is a single one.
MOST_PATHS: Final = 2

#: A call by the header fields of its sides, and by their messages.
Inbounds = dict[Direction, Inbound]
_Saying = http2.Body | http2.Headers | http2.Missing | http2.Reset


class ReaderState(NamedTuple):
    """What a Reader carries from window to window."""

    http2: Http2State
    calls: dict[int, Inbounds]
    paths: list[str]


class Reader:
    """The calls of one connection. `receive` bytes in arrival order, `finish` when no more come.

    `started_late`: the capture began after the connection. `state` is that of an earlier reader, to continue from.
    """

    def __init__(
        self,
        *,
        started_late: bool = False,
        max_message_bytes: int = MOST_MESSAGE_BYTES,
        max_inflated_ratio: int = MOST_RATIO,
        state: ReaderState | None = None,
    ) -> None:
        self._limit, self._ratio = max_message_bytes, max_inflated_ratio
        self._calls: dict[int, Inbounds] = {} if state is None else state.calls
        #: Calls in which a side sent something since it lost its place; there may be many others.
        self._placed = {
            direction: {number for number, call in self._calls.items() if direction in call} for direction in Direction
        }
        self._paths: list[str] = [] if state is None else state.paths
        inbounds = (inbound for call in self._calls.values() for inbound in call.values())
        self._held_bytes = sum(len(inbound.held or b"") for inbound in inbounds)
        self._http2 = Http2Reader(started_late=started_late, state=None if state is None else state.http2)

    def framing_bytes(self, direction: Direction) -> int:
        """Bytes of `direction` that are in no message, nor reported as bytes."""
        return self._http2.framing_bytes(direction)

    def unread_from(self, direction: Direction) -> int:
        """Where the first byte of `direction` stands that may be in a later event."""
        inbounds = (call[direction] for call in self._calls.values() if direction in call)
        begun = (at for inbound in inbounds for at in inbound.begun_at)
        return min([self._http2.unread_from(direction), *begun])

    def receive(self, pieces: Sequence[Data]) -> list[Event]:
        """Take the next bytes of both sides, in arrival order."""
        return self._take(self._http2.receive(pieces))

    def hole(self, hole: Hole) -> list[Event]:
        """Bytes that never came."""
        return self._take(self._http2.hole(hole))

    def finish(self, place: Place, *, closed: bool = True, by: Direction | None = None) -> list[Event]:
        """No more bytes come, as one side closed the connection: report what is left unfinished.

        Not `closed`: the capture ends, not the connection.
        """
        events = self._take(self._http2.finish(place))
        reason = f"the {'connection' if closed else 'capture'} ends within it"
        for number, call in self._calls.items():
            for inbound in call.values():
                self._stop(number, inbound, place, reason, events)
            events.append(Closed(place, number, How.CLOSED, by) if closed else Closed(place, number, How.CAPTURE_END))
        self._calls.clear()
        return events

    def _take(self, given: Iterable[http2.Event]) -> list[Event]:
        events: list[Event] = []
        for event in given:
            match event:
                case http2.Body():
                    self._take_body(event, events)
                case http2.Bodies():
                    self._take_bodies(event, events)
                case http2.Headers():
                    self._take_headers(event, events)
                case http2.Missing():
                    self._miss(event, events)
                case http2.Lost():
                    self._lose(event, events)
                    events.append(event)
                case http2.Reset():
                    self._reset(event, events)
                case http2.Gone():
                    self._close(event, events)
                case _:
                    events.append(event)
        return events

    def _take_body(self, event: http2.Body, events: list[Event]) -> None:
        inbound = self._inbound(event.stream_id, event.run.direction, event, events)
        self._read(event.stream_id, inbound, event.run, event.start, event.end, events)
        if event.frame_ends and (inbound.searching or inbound.passed.data):
            self._end_frame(event.stream_id, inbound, _place_of(event), events)
        if event.end_stream:
            self._half_close(event.stream_id, inbound, _place_of(event), events)

    def _take_bodies(self, event: http2.Bodies, events: list[Event]) -> None:
        """Take each of the bodies; while messages follow each other, frames don't matter."""
        number, part, begin = event.stream_id, 0, event.spans[0][0]
        inbound = self._inbound(number, event.run.direction, next(event.each()), events)
        if not inbound.irregular:
            content, at = Content(event.run, event.spans), 0
            end = len(content.data)
            while at < end and not inbound.irregular:
                at = self._read_message(number, inbound, content, at, end, events)
            inbound.end = content.end_of(at)
            if at == end and not inbound.irregular:
                return
            part, begin = content.part_of(at - 1)
            begin += 1
        for body in event.each(part, begin):
            self._take_body(body, events)

    # Calls

    def _inbound(self, number: int, direction: Direction, event: _Saying, events: list[Event]) -> Inbound:
        """What a side sends in a call. Of one whose headers weren't seen nothing is known."""
        call = self._calls.get(number)
        if call is None:
            call = self._calls[number] = {}
            at, place = _first_byte(event)
            path = self._likely_path()
            events.append(Opened(direction, place, at, at, number, path, path is not None, ()))
        inbound = call.get(direction)
        if inbound is None:
            inbound = call[direction] = Inbound(Passed(direction, number), UNKNOWN_ENCODING, searching=True)
        self._placed[direction].add(number)
        return inbound

    def _take_headers(self, event: http2.Headers, events: list[Event]) -> None:
        direction, place, number = event.direction, event.place, event.stream_id
        metadata = metadata_of(event.fields)
        where = (direction, place, event.byte_start, event.byte_end, number)
        if event.block is http2.Block.REQUEST:
            events.append(Opened(*where, *self._path_of(metadata), metadata))
            self._calls.setdefault(number, {})
        inbound = self._inbound(number, direction, event, events)
        if event.block is http2.Block.TRAILERS:
            self._stop(number, inbound, place, "the call ends within it", events)
            if direction is Direction.SERVER:
                events.append(Trailers(*where, *_status_of(metadata), metadata))
            else:
                inbound.end = event.byte_end
                self._half_close(number, inbound, place, events)
            return
        if event.block is http2.Block.RESPONSE:
            events.append(Answered(*where, metadata))
        # What comes next is the first message of this side.
        self._stop(number, inbound, place, "headers come within it", events)
        encoding = dict(metadata).get("grpc-encoding", None if event.complete else UNKNOWN_ENCODING)
        encoding = None if encoding == compression.IDENTITY else encoding
        self._calls[number][direction] = Inbound(Passed(direction, number), encoding, end=event.byte_end)
        if event.end_stream:
            self._half_close(number, self._calls[number][direction], place, events)

    def _path_of(self, metadata: Metadata) -> tuple[str | None, bool]:
        """The path, and whether it is taken from other calls."""
        path = dict(metadata).get(":path")
        if path is None:
            likely = self._likely_path()
            return likely, likely is not None
        if path not in self._paths and len(self._paths) < MOST_PATHS:
            self._paths.append(path)
        return path, False

    def _likely_path(self) -> str | None:
        return self._paths[0] if len(self._paths) == 1 else None

    def _half_close(self, number: int, inbound: Inbound, place: Place, events: list[Event]) -> None:
        self._stop(number, inbound, place, "the call ends within it", events)
        events.append(HalfClosed(inbound.passed.direction, place, inbound.end, number))

    def _reset(self, event: http2.Reset, events: list[Event]) -> None:
        inbound = self._inbound(event.stream_id, event.direction, event, events)
        self._stop(event.stream_id, inbound, event.place, "the call is reset within it", events)
        where = (event.direction, event.place, event.byte_start, event.byte_end)
        events.append(Reset(*where, event.stream_id, event.code))

    def _close(self, event: http2.Gone, events: list[Event]) -> None:
        if event.stream_id not in self._calls:
            # None of its frames had content.
            return
        for placed in self._placed.values():
            placed.discard(event.stream_id)
        for inbound in self._calls.pop(event.stream_id).values():
            self._stop(event.stream_id, inbound, event.place, "the call is forgotten within it", events)
        events.append(Closed(event.place, event.stream_id, How.ENDED if event.ended else How.FORGOTTEN))

    # Missing bytes

    def _miss(self, event: http2.Missing, events: list[Event]) -> None:
        """Content is missing: of one message alone, or the place is lost."""
        number, place, size = event.stream_id, event.place, event.byte_end - event.byte_start
        inbound = self._inbound(number, event.direction, event, events)
        within = event.sized and not inbound.searching and inbound.left >= size
        if within:
            self._fail(number, inbound, place, f"{size} bytes are missing", events)
            events += inbound.passed.flush(place)
            inbound.left -= size
            if not inbound.left:
                inbound.reset()
        else:
            self._stop(number, inbound, place, f"{size} bytes are missing", events)
            inbound.searching = True
        inbound.end = event.byte_end
        if event.frame_ends:
            self._end_frame(number, inbound, place, events)
        if event.end_stream:
            self._half_close(number, inbound, place, events)

    def _lose(self, event: http2.Lost, events: list[Event]) -> None:
        placed = self._placed[event.direction]
        for number in sorted(placed):
            inbound = self._calls[number][event.direction]
            self._stop(number, inbound, event.place, "bytes are missing", events)
            inbound.searching = True
        placed.clear()

    def _stop(self, number: int, inbound: Inbound, place: Place, reason: str, events: list[Event]) -> None:
        """Nothing follows on what was taken: a message that was begun isn't whole."""
        self._end_frame(number, inbound, place, events)
        if inbound.prefix:
            start, data = inbound.start, inbound.prefix
            fields = (start, inbound.end, number, data, "the prefix of a message without the rest")
            events.append(Undecodable(inbound.passed.direction, place, *fields))
        if inbound.left:
            self._fail(number, inbound, place, reason, events)
        inbound.reset()

    # Messages

    def _read(self, number: int, inbound: Inbound, run: Run, at: int, end: int, events: list[Event]) -> None:
        """Take content of a call."""
        while at < end:
            if inbound.searching:
                at = self._seek(number, inbound, run, at, end, events)
            elif inbound.fault:
                taken = min(inbound.left, end - at)
                events += inbound.passed.add(run, at, at + taken, inbound.fault)
                inbound.left -= taken
                at += taken
                if not inbound.left:
                    events += inbound.passed.flush(run.place_of(run.start + at))
                    inbound.reset()
            else:
                at = self._read_message(number, inbound, run, at, end, events)
        inbound.end = run.start + end

    def _read_message(
        self, number: int, inbound: Inbound, run: Run | Content, at: int, end: int, events: list[Event]
    ) -> int:
        """Take the prefix of a message, content, or both; the position after it."""
        if inbound.left:
            return self._take_content(number, inbound, run, at, end, events)
        return self._take_prefix(number, inbound, run, at, end, events)

    def _take_prefix(
        self, number: int, inbound: Inbound, run: Run | Content, at: int, end: int, events: list[Event]
    ) -> int:
        if not inbound.prefix:
            inbound.start = run.start_of(at)
        taken = min(PREFIX_BYTES - len(inbound.prefix), end - at)
        prefix = inbound.prefix + bytes(run.data[at : at + taken])
        at += taken
        if len(prefix) < PREFIX_BYTES:
            inbound.prefix = prefix
            return at
        inbound.prefix = b""
        flag, length = prefix[0], int.from_bytes(prefix[1:], "big")
        if flag > 1 or length > self._limit:
            reason = f"no message has the flag {flag}" if flag > 1 else f"a message of {length} bytes is too long"
            byte_end = run.end_of(at)
            fields = (inbound.start, byte_end, number, prefix, reason)
            events.append(Undecodable(run.direction, run.place_of(byte_end), *fields))
            inbound.searching = inbound.hopeless = True
            return at
        inbound.length = inbound.left = length
        inbound.begun_ns = run.place_of(run.end_of(at)).arrived_at_ns
        if flag and length:
            inbound.held = bytearray()
        elif length <= end - at:
            return self._take_content(number, inbound, run, at, end, events)
        return at

    def _take_content(
        self, number: int, inbound: Inbound, run: Run | Content, at: int, end: int, events: list[Event]
    ) -> int:
        taken = min(inbound.left, end - at)
        if inbound.held is not None:
            taken = min(taken, HELD_BYTES - self._held_bytes)
        data = run.data[at : at + taken]
        inbound.left -= taken
        at += taken
        byte_end = run.end_of(at)
        if inbound.held is None:
            self._give(number, inbound, run.place_of(byte_end), byte_end, data, events)
            return at
        inbound.held += data
        inbound.end = byte_end
        self._held_bytes += taken
        if not inbound.left:
            self._inflate(number, inbound, run.place_of(byte_end), events)
        elif self._held_bytes == HELD_BYTES:
            reason = f"more than {HELD_BYTES} compressed bytes of unfinished messages"
            self._fail(number, inbound, run.place_of(byte_end), reason, events)
        return at

    def _give(
        self, number: int, inbound: Inbound, place: Place, byte_end: int, data: memoryview, events: list[Event]
    ) -> None:
        """The next part of a message that isn't compressed."""
        first, last = not inbound.begun, not inbound.left
        span = (inbound.passed.direction, place, inbound.start, byte_end, number, inbound.length)
        events.append(MessagePart(*span, None, data, first, last, None, inbound.begun_ns))
        inbound.begun = not last

    def _inflate(self, number: int, inbound: Inbound, place: Place, events: list[Event]) -> None:
        """A compressed message is whole."""
        assert inbound.held is not None
        data, encoding = bytes(inbound.held), inbound.encoding
        if encoding == UNKNOWN_ENCODING:
            encoding = compression.encoding_of(data)
        if encoding is None:
            self._fail(number, inbound, place, "compressed, and no header says how", events)
            return
        inflated = compression.inflate(data, encoding, self._limit, self._ratio)
        if inflated.fault is not None:
            self._fail(number, inbound, place, inflated.fault, events)
            return
        self._release(inbound)
        span = (inbound.passed.direction, place, inbound.start, inbound.end, number, inbound.length, encoding)
        pieces = inflated.pieces or (b"",)
        for piece_number, piece in enumerate(pieces):
            last = piece_number == len(pieces) - 1
            events.append(MessagePart(*span, piece, not piece_number, last, None, inbound.begun_ns))
        inbound.reset()

    def _fail(self, number: int, inbound: Inbound, place: Place, fault: str, events: list[Event]) -> None:
        """The message will not be whole; what is left of it is passed over."""
        if inbound.fault:
            return
        data, encoding = b"", None
        if inbound.held is not None:
            data, encoding = bytes(inbound.held), inbound.encoding
            self._release(inbound)
        span = (inbound.passed.direction, place, inbound.start, inbound.end, number, inbound.length, encoding)
        events.append(MessagePart(*span, data, not inbound.begun, True, fault, inbound.begun_ns))
        inbound.fault = fault
        if not inbound.left:
            inbound.reset()

    def _release(self, inbound: Inbound) -> None:
        assert inbound.held is not None
        self._held_bytes -= len(inbound.held)
        inbound.held = None

    # Looking for messages

    def _seek(self, number: int, inbound: Inbound, run: Run, at: int, end: int, events: list[Event]) -> int:
        """Collect content in which a message may begin."""
        passed = inbound.passed
        if inbound.hopeless:
            events += passed.add(run, at, end, "follows on a prefix that is none")
            return end
        if not passed.data:
            passed.start, passed.reason = run.start + at, "no message begins here"
        taken = min(UNDECODABLE_BYTES - len(passed.data), end - at)
        passed.data += run.data[at : at + taken]
        at += taken
        if len(passed.data) == UNDECODABLE_BYTES:
            self._settle(number, inbound, run.place_of(run.start + at), events)
        return at

    def _settle(self, number: int, inbound: Inbound, place: Place, events: list[Event]) -> None:
        """Look for a message in what was collected, and read on from there."""
        passed = inbound.passed
        data, start = bytes(passed.data), passed.start
        offset = first_message(data, self._limit)
        if offset is None:
            events += passed.flush(place)
            return
        del passed.data[offset:]
        events += passed.flush(place)
        inbound.searching = False
        self._read(
            number,
            inbound,
            run_of(passed.direction, start + offset, data[offset:], place),
            0,
            len(data) - offset,
            events,
        )

    def _end_frame(self, number: int, inbound: Inbound, place: Place, events: list[Event]) -> None:
        """The content of a DATA frame ends here: what was collected of it is judged."""
        if inbound.searching and not inbound.hopeless:
            self._settle(number, inbound, place, events)
        inbound.hopeless = False
        events += inbound.passed.flush(place)

    @property
    def state(self) -> ReaderState:
        """What a later reader continues from."""
        return ReaderState(self._http2.state, self._calls, self._paths)


def _place_of(event: http2.Body) -> Place:
    return event.run.place_of(event.run.start + event.end)


def _first_byte(event: _Saying) -> tuple[int, Place]:
    """Where what a side sends begins; the place may not depend on how much of it came at once."""
    if not isinstance(event, http2.Body):
        return event.byte_start, event.place
    start = event.run.start + event.start
    return start, event.run.place_of(start + (event.end > event.start))


def _status_of(metadata: Metadata) -> tuple[int | None, str]:
    fields = dict(metadata)
    status = fields.get("grpc-status", "")
    known = status.isascii() and status.isdigit() and len(status) < 10
    return int(status) if known else None, unquote(fields.get("grpc-message", ""), errors="backslashreplace")
