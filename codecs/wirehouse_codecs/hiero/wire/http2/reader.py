"""One cleartext HTTP/2 connection (RFC 9113) as a third party sees it: from the bytes of both sides to header blocks
and to the content of streams.

`Reader` takes what reassembly delivers and never asks for more than it gets. Frames other than DATA are held until
they are whole and read by hyperframe; DATA is passed on as it arrives, so that no frame is held for its length. Header
blocks are read by hpack.

Where RFC 9113 demands a connection error, a reader of captures goes on:

- A frame that contradicts itself is passed over as a whole. If its length is above what the other side allows, the
  place is lost, and the next credible frame is searched (resync.py). It costs a few looks at each byte. All that was
  passed over is reported. What stands between such a frame and the header that shows it is reported at the place of the
  latter.
- A hole that begins behind the header of a frame and ends within it costs that frame alone: the next one begins where
  its length leads. Of a DATA frame content is missing. A header block that is cut has no fields, and what it did to
  HPACK's dynamic table isn't known. Any other hole loses the place. Frames are found again behind it, also if holes cut
  those that show it.
- An index into HPACK's dynamic table counts back from its newest entry (RFC 7541 section 2.3.3). So where the beginning
  of a connection is missing, later entries are found, and earlier ones read as the name `?` without a value. Where a
  header block may be missing, or can't be read, all entries become earlier ones.
- SETTINGS_MAX_FRAME_SIZE and SETTINGS_HEADER_TABLE_SIZE count once they were sent; a reader doesn't know when they are
  applied, so the largest that was ever sent does. Where some may be missing, any size is allowed, within our limits.
- Streams are known until both sides have ended them; streams.py has the limits. Header blocks are in
  header_blocks.py.
- HTTP/1.1 before a preface (h2c by Upgrade) is passed over as bytes that are no frame.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from hyperframe.exceptions import HyperframeError
from hyperframe.frame import (
    ContinuationFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PushPromiseFrame,
    RstStreamFrame,
    SettingsFrame,
)

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.hiero.wire import loops
from wirehouse_codecs.hiero.wire.http2.events import (
    Bodies,
    Body,
    Event,
    GoAway,
    Lost,
    Missing,
    Placed,
    Reset,
)
from wirehouse_codecs.hiero.wire.http2.frames import (
    BLOCKS,
    CONTINUATION,
    CONTROL,
    CREDIBLE,
    CUT,
    DATA,
    END_STREAM,
    FRAME_BYTES,
    HEADER,
    HEADER_BYTES,
    MOST_FRAME_BYTES,
    PADDED,
    PREFACE,
    RESET,
    SETTINGS,
    SETTINGS_FIRST,
    STREAM_MASK,
    TLS,
    UNKNOWN_FRAME_BYTES,
    is_update,
)
from wirehouse_codecs.hiero.wire.http2.header_blocks import begin_block, break_block, continue_block, cut_block
from wirehouse_codecs.hiero.wire.http2.resync import CHAIN_FRAME_BYTES, MOST_GAPS, MOST_TRIED, Held, may_fill_opening
from wirehouse_codecs.hiero.wire.http2.side import (
    MAX_BLOCK_BYTES,
    MAX_TABLE_BYTES,
    Mode,
    Side,
)
from wirehouse_codecs.hiero.wire.http2.streams import Streams, StreamsState
from wirehouse_codecs.hiero.wire.spans import (
    UNDECODABLE_BYTES,
    Run,
    Undecodable,
    run_of,
    runs,
)
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.reassembly import Data, Hole

#: DATA frames are searched together in pieces of at least BULK_BYTES bytes, and at most MOST_SPANS at once.
BULK_BYTES: Final = 512
MOST_SPANS: Final = 1024
#: Why bytes are passed over that are no frame.
NO_FRAME: Final = "no frame begins here"
_OTHER_SIDE: Final = {Direction.CLIENT: Direction.SERVER, Direction.SERVER: Direction.CLIENT}


class ReaderState(NamedTuple):
    """What a Reader carries from window to window."""

    sides: dict[Direction, Side]
    streams: StreamsState
    other: str


class Reader:
    """The streams of one connection. `receive` bytes in arrival order, `finish` when no more come.

    `started_late`: the capture began after the connection. `state` is that of an earlier reader, to continue from.
    """

    def __init__(self, *, started_late: bool = False, state: ReaderState | None = None) -> None:
        sides = {direction: Side.begin(direction, started_late=started_late) for direction in Direction}
        self._sides = sides if state is None else state.sides
        self._streams = Streams(self._sides, None if state is None else state.streams)
        #: What it is instead of HTTP/2.
        self._other = "" if state is None else state.other
        self._spans = np.empty((MOST_SPANS, 2), np.int64)
        #: What is taken next: bytes that showed that frames begin, with the holes in them.
        self._again: list[Run | Hole | Placed] = []
        self._readers: Mapping[Mode, Callable[[Side, Run, int, list[Event]], int]] = {
            Mode.START: self._start,
            Mode.FRAMES: self._frames,
            Mode.SEARCH: self._search,
            Mode.OTHER: self._take_other,
        }

    def framing_bytes(self, direction: Direction) -> int:
        """Bytes of `direction` that are in no event's content: prefaces, frame headers, padding, frames without one."""
        return self._sides[direction].framing_bytes

    def unread_from(self, direction: Direction) -> int:
        """Where the first byte of `direction` stands that is in no event yet."""
        side = self._sides[direction]
        begun = [side.start] * bool(side.pending) + [side.block_start] * (side.block is not None)
        return min([side.end, *begun, *[side.passed.start] * bool(side.passed.data)])

    def receive(self, pieces: Sequence[Data]) -> list[Event]:
        """Take the next bytes of both sides, in arrival order."""
        events: list[Event] = []
        for run in runs(pieces):
            side, at = self._sides[run.direction], 0
            while at < len(run.data):
                at = self._readers[side.mode](side, run, at, events)
                if self._again:
                    self._take(side, _from(run, at), events)
                    break
            side.end = run.start + len(run.data)
        return events

    def hole(self, hole: Hole) -> list[Event]:
        """Bytes that never came."""
        side = self._sides[hole.direction]
        events: list[Event] = []
        side.end = hole.byte_end
        self._take(side, hole, events)
        return events

    def finish(self, place: Place) -> list[Event]:
        """No more bytes come: report what is left unfinished."""
        events: list[Event] = []
        for side in self._sides.values():
            events += side.passed.flush(place)
            if side.mode is Mode.OTHER:
                if side.end > side.start:
                    fields = (side.start, side.end, None, b"", self._other)
                    events.append(Undecodable(side.direction, place, *fields))
            else:
                while side.mode is Mode.SEARCH and self._find_last(side, place, events):
                    self._take(side, None, events)
                self._conclude(side, place, "an unfinished frame", events)
        return events

    def _take(self, side: Side, given: Run | Hole | None, events: list[Event]) -> None:
        """Take bytes or a hole, and each time that frames were found, the bytes and holes that showed it."""
        todo: list[Run | Hole | Placed] = [] if given is None else [given]
        while todo or self._again:
            todo += reversed(self._again)
            self._again.clear()
            match one := todo.pop():
                case Run():
                    at, end = 0, len(one.data)
                    while at < end and not self._again:
                        at = self._readers[side.mode](side, one, at, events)
                    if at < end:
                        todo.append(_from(one, at))
                case Hole():
                    self._take_hole(side, one, events)
                case Placed() if side.mode is Mode.FRAMES:
                    events.append(one)

    def _take_hole(self, side: Side, hole: Hole, events: list[Event]) -> None:
        place = hole.place
        if side.mode is Mode.OTHER:
            return
        events += side.passed.flush(place)
        if side.mode is Mode.SEARCH and side.pending:
            self._hold_hole(side, hole, events)
        elif side.mode is not Mode.FRAMES or not self._pass_hole(side, hole, events):
            only_preface = side.mode is Mode.FRAMES and not side.partial and hole.byte_start == len(PREFACE)
            self._conclude(side, place, CUT, events)
            self._lose(side, place, hole.byte_end, NO_FRAME, events)
            if (
                side.direction is Direction.CLIENT
                and only_preface
                and may_fill_opening(hole.byte_end - hole.byte_start)
            ):
                side.led_to = hole.byte_end

    # The first bytes

    def _start(self, side: Side, run: Run, at: int, events: list[Event]) -> int:
        if not side.pending:
            side.start = run.start + at
        needed = HEADER_BYTES if len(side.pending) < HEADER_BYTES else len(PREFACE)
        taken = min(needed - len(side.pending), len(run.data) - at)
        side.pending += run.data[at : at + taken]
        at += taken
        if len(side.pending) < needed:
            return at
        place = run.place_of(run.start + at)
        if TLS.match(side.pending) and self._sides[_OTHER_SIDE[side.direction]].mode is Mode.START:
            self._be_other("TLS", side)
        elif side.direction is Direction.SERVER and not SETTINGS_FIRST.match(side.pending):
            self._lose(side, place, run.start + at, "no SETTINGS first", events, keep=True)
        elif side.direction is Direction.SERVER:
            self._again.append(run_of(side.direction, side.start, bytes(side.pending), place))
            side.pending.clear()
            side.mode = Mode.FRAMES
        elif not PREFACE.startswith(side.pending):
            self._lose(side, place, run.start + at, "no HTTP/2 preface", events, keep=True)
        elif len(side.pending) == len(PREFACE):
            side.framing_bytes += len(PREFACE)
            side.pending.clear()
            side.mode = Mode.FRAMES
        return at

    def _be_other(self, other: str, first: Side) -> None:
        """The connection isn't HTTP/2: one row per side reports it at its end."""
        self._other = other
        for side in self._sides.values():
            if side is not first and not side.pending:
                side.start = side.end
            side.mode = Mode.OTHER
            side.pending.clear()

    def _take_other(self, _: Side, run: Run, at: int, events: list[Event]) -> int:
        return len(run.data)

    # Frames

    def _frames(self, side: Side, run: Run, at: int, events: list[Event]) -> int:
        """Take frames, and parts of frames, as long as their places are known; the position after them."""
        end = len(run.data)
        while at < end and side.mode is Mode.FRAMES:
            if end - at >= BULK_BYTES and self._takes_bulk(side, run, at):
                at = self._take_bulk(side, run, at, events)
            elif side.padded:
                side.padded, side.padding = False, run.data[at]
                side.framing_bytes += 1
                at = self._begin_padded(side, run, at + 1, events)
            elif side.content:
                taken = min(side.content, end - at)
                side.content -= taken
                ends = not side.content
                events.append(Body(run, at, at + taken, side.stream_id, ends, ends and side.end_stream))
                at += taken
                if ends and side.end_stream:
                    self._streams.end(side.stream_id, side.direction, run.place_of(run.start + at), events)
            elif side.refused:
                taken = min(side.refused, end - at)
                side.refused -= taken
                events += side.passed.add(run, at, at + taken, side.reason)
                at += taken
                if not side.refused:
                    events += side.passed.flush(run.place_of(run.start + at))
            elif side.padding:
                taken = min(side.padding, end - at)
                side.padding -= taken
                side.framing_bytes += taken
                at += taken
            else:
                at = self._hold(side, run, at, events)
        return at

    def _takes_bulk(self, side: Side, run: Run, at: int) -> bool:
        """Whether the next bytes are content of the stream that DATA was of last, and go on."""
        if side.pending or side.padded or side.padding or side.refused or side.block is not None:
            return False
        if side.content:
            return not side.end_stream
        stream = self._streams.get(side.stream_id)
        if stream is None or side.direction in stream.ended or run.data[at + 3] != DATA or run.data[at + 4]:
            return False
        high, low, _, _, stream_id = HEADER.unpack_from(run.data, at)
        length: int = high << 8 | low
        return stream_id == side.stream_id and 0 < length <= self._bulk_limit(side)

    def _bulk_limit(self, side: Side) -> int:
        """The largest frame that needs no other look."""
        return min(side.frame_limit, UNKNOWN_FRAME_BYTES) if side.partial else side.frame_limit

    def _take_bulk(self, side: Side, run: Run, at: int, events: list[Event]) -> int:
        """Take DATA frames of one stream, and parts of such frames; the position after them."""
        data = np.frombuffer(run.data, np.uint8)
        known = (side.content, side.stream_id, self._bulk_limit(side))
        count, frames, at, side.content, frame_ends = loops.data_frames(data, at, *known, self._spans)
        spans: list[tuple[int, int]] = self._spans[:count].tolist()
        if count:
            events.append(Bodies(run, spans, side.stream_id, bool(frame_ends)))
        if frames:
            side.framing_bytes += HEADER_BYTES * frames
            side.end_stream = False
            self._streams.touch(side.stream_id)
        return at

    def _hold(self, side: Side, run: Run, at: int, events: list[Event]) -> int:
        """Take of a frame what there is of its header, and of its payload if that is read as a whole."""
        held, data = side.pending, run.data
        if len(held) < HEADER_BYTES:
            if not held:
                side.start = run.start + at
            taken = min(HEADER_BYTES - len(held), len(data) - at)
            held += data[at : at + taken]
            at += taken
            if len(held) < HEADER_BYTES or not self._begin(side, run, at, events):
                return at
        size = HEADER_BYTES + int.from_bytes(held[:3], "big")
        taken = min(size - len(held), len(data) - at)
        held += data[at : at + taken]
        at += taken
        if len(held) == size:
            frame = bytes(held)
            held.clear()
            if is_update(frame):
                side.framing_bytes += size
            else:
                self._take_frame(side, frame, run.place_of(run.start + at), events)
        return at

    def _begin(self, side: Side, run: Run, at: int, events: list[Event]) -> bool:
        """A frame header was read; whether the frame is held until it is whole."""
        high, low, kind, flags, stream_id = HEADER.unpack(side.pending)
        length, stream_id = high << 8 | low, stream_id & STREAM_MASK
        if length > side.frame_limit or (side.partial and length and not CREDIBLE.match(side.pending)):
            reason = f"no frame of type {kind} with {length} bytes is credible here"
            self._lose(side, run.place_of(run.start + at), run.start + at, reason, events, keep=True)
            return False
        if side.block is not None and (kind != CONTINUATION or stream_id != side.block_stream):
            break_block(side, run.place_of(run.start + at), events)
        if kind == DATA:
            self._begin_data(side, run, at, (length, flags, stream_id), events)
            return False
        if kind in BLOCKS or kind in CONTROL:
            if length <= MAX_BLOCK_BYTES:
                return True
            self._refuse(side, run, length, f"a frame of type {kind} with {length} bytes", events)
            if kind in BLOCKS:
                side.table.forget()
            return False
        # Frames of unknown type are ignored (RFC 9113 section 4.1).
        side.pending.clear()
        side.framing_bytes += HEADER_BYTES
        side.padding = length
        return False

    def _begin_data(self, side: Side, run: Run, at: int, frame: tuple[int, int, int], events: list[Event]) -> None:
        length, flags, stream_id = frame
        refusal = None
        stream = self._streams.get(stream_id)
        if stream is None or stream.ended:
            refusal = self._streams.refusal(side, stream_id, run.place_of(run.start + at), events)
        else:
            self._streams.touch(stream_id)
        if refusal is None and flags & PADDED and not length:
            refusal = "a padded frame without padding"
        if refusal is not None:
            self._refuse(side, run, length, refusal, events)
            return
        side.pending.clear()
        side.framing_bytes += HEADER_BYTES
        side.stream_id, side.content, side.end_stream = stream_id, length, bool(flags & END_STREAM)
        side.padded = bool(flags & PADDED)
        if not length:
            self._end_empty(side, run, at, events)

    def _begin_padded(self, side: Side, run: Run, at: int, events: list[Event]) -> int:
        length = side.content - 1
        side.content = length - side.padding
        if side.content < 0:
            side.content, side.padding, side.refused = 0, 0, length
            side.reason = "a frame with more padding than bytes"
        elif not side.content:
            self._end_empty(side, run, at, events)
        return at

    def _end_empty(self, side: Side, run: Run, at: int, events: list[Event]) -> None:
        """A DATA frame without content may still end its stream."""
        if side.end_stream:
            events.append(Body(run, at, at, side.stream_id, True, True))
            self._streams.end(side.stream_id, side.direction, run.place_of(run.start + at), events)

    def _refuse(self, side: Side, run: Run, length: int, reason: str, events: list[Event]) -> None:
        """Pass over the frame whose header is held, and whose payload has `length` bytes."""
        place = run.place_of(side.start + HEADER_BYTES)
        header = run_of(side.direction, side.start, bytes(side.pending), place)
        side.pending.clear()
        events += side.passed.add(header, 0, HEADER_BYTES, reason)
        side.refused, side.reason = length, reason
        if not length:
            events += side.passed.flush(place)

    def _take_frame(self, side: Side, data: bytes, place: Place, events: list[Event]) -> None:
        """A whole frame other than DATA."""
        view = memoryview(data)
        try:
            frame, _ = Frame.parse_frame_header(view[:HEADER_BYTES])
            frame.parse_body(view[HEADER_BYTES:])
        except HyperframeError as error:
            events.append(side.undecodable(data, place, str(error)))
            if data[3] in BLOCKS:
                side.table.forget()
            return
        side.framing_bytes += len(data)
        end = side.start + len(data)
        span = (side.direction, place, side.start, end)
        match frame:
            case HeadersFrame() | PushPromiseFrame():
                begin_block(self._streams, side, frame, end, place, events)
            case ContinuationFrame():
                continue_block(self._streams, side, frame, data, place, events)
            case SettingsFrame():
                self._take_settings(side, frame)
            case RstStreamFrame() if frame.stream_id in self._streams:
                self._take_reset(side, end, frame.stream_id, frame.error_code, place, events)
            case GoAwayFrame():
                fields = (frame.last_stream_id, frame.error_code, frame.additional_data)
                events.append(GoAway(*span, *fields))

    def _take_reset(
        self, side: Side, end: int, stream_id: int, code: int | None, place: Place, events: list[Event]
    ) -> None:
        events.append(Reset(side.direction, place, side.start, end, stream_id, code))
        self._streams.end(stream_id, side.direction, place, events)
        self._streams.note_reset(stream_id, place, events)

    def _take_settings(self, side: Side, frame: SettingsFrame) -> None:
        """SETTINGS limit what the other side may send."""
        other = self._sides[_OTHER_SIDE[side.direction]]
        largest = min(frame.settings.get(SettingsFrame.MAX_FRAME_SIZE, 0), MOST_FRAME_BYTES)
        other.frame_limit = max(other.frame_limit, largest)
        size = min(frame.settings.get(SettingsFrame.HEADER_TABLE_SIZE, 0), MAX_TABLE_BYTES)
        other.decoder.max_allowed_table_size = max(other.decoder.max_allowed_table_size, size)

    # Frames that a hole cuts

    def _pass_hole(self, side: Side, hole: Hole, events: list[Event]) -> bool:
        """Pass over a hole that ends in the frame in which it begins; False = it doesn't."""
        place, start, size = hole.place, hole.byte_start, hole.byte_end - hole.byte_start
        if side.pending:
            return self._cut_frame(side, place, size, events)
        if side.content + side.refused + side.padding < size:
            return False
        sized = not side.padded
        if not sized:
            # How much is padding isn't known.
            side.padded, side.content, side.refused, side.reason = False, size, side.content - size, CUT
        content = min(side.content, size)
        refused = min(side.refused, size - content)
        side.content -= content
        side.refused -= refused
        side.padding -= size - content - refused
        if content:
            ends = not side.content
            missed = (side.stream_id, ends, ends and side.end_stream, sized)
            events.append(Missing(side.direction, place, start, start + content, *missed))
            if ends and side.end_stream:
                self._streams.end(side.stream_id, side.direction, place, events)
        return True

    def _cut_frame(self, side: Side, place: Place, size: int, events: list[Event]) -> bool:
        """Pass over a hole in a frame whose beginning is held, if its header shows what is lost; False = it doesn't."""
        held = bytes(side.pending)
        if len(held) < HEADER_BYTES:
            return False
        high, low, kind, flags, stream_id = HEADER.unpack_from(held)
        length, stream_id = high << 8 | low, stream_id & STREAM_MASK
        end = side.start + HEADER_BYTES + length
        left = HEADER_BYTES + length - len(held) - size
        if left < 0:
            return False
        side.pending.clear()
        side.refused, side.reason = left, CUT
        events.append(side.undecodable(held, place, CUT))
        if kind in BLOCKS:
            cut_block(self._streams, side, (kind, flags, stream_id, end), place, events)
        elif kind == SETTINGS:
            self._allow_all(self._sides[_OTHER_SIDE[side.direction]])
        elif kind == RESET and stream_id in self._streams:
            self._take_reset(side, end, stream_id, None, place, events)
        return True

    # Lost places

    def _lose(
        self, side: Side, place: Place, byte_end: int, reason: str, events: list[Event], *, keep: bool = False
    ) -> None:
        """Look for a frame from here on; `keep` the bytes that are held."""
        break_block(side, place, events)
        side.table.forget()
        side.partial, side.mode, side.reason = True, Mode.SEARCH, reason
        self._allow_all(self._sides[_OTHER_SIDE[side.direction]])
        side.padded, side.content, side.padding, side.refused = False, 0, 0, 0
        if not keep:
            side.pending.clear()
            side.start = byte_end
            side.gaps.clear()
        side.scanned = side.decided = 0
        events.append(Lost(side.direction, place, byte_end))

    def _allow_all(self, side: Side) -> None:
        """SETTINGS that limit what a side may send may be missing."""
        side.frame_limit = max(side.frame_limit, UNKNOWN_FRAME_BYTES)
        side.decoder.max_allowed_table_size = MAX_TABLE_BYTES

    def _search(self, side: Side, run: Run, at: int, events: list[Event]) -> int:
        """Look for a credible frame in what is held and the next bytes of the run: few, for it may be lost again."""
        if not side.pending:
            side.start = run.start + at
        end = min(at + FRAME_BYTES, len(run.data))
        side.pending += run.data[at:end]
        offset = self._scan(side, run, events)
        if offset is None:
            return end
        self._found(side, offset, side.decided, run.place_of(side.decided), events)
        return side.decided - run.start

    def _scan(self, side: Side, run: Run, events: list[Event]) -> int | None:
        """Where in what is held a frame begins. `decided` is after the byte that had to be seen to decide it."""
        held = Held.of(side.pending, side.start, side.gaps)
        while True:
            found = held.first(side.scanned)
            side.scanned = (
                max(side.scanned, held.offsets[-1], len(held.data) - HEADER_BYTES + 1) if found is None else found
            )
            while side.scanned >= UNDECODABLE_BYTES:
                # All before it was decided once the last of it could begin no frame.
                seen = max(side.decided, held.position_of(UNDECODABLE_BYTES + HEADER_BYTES - 2) + 1)
                self._quarantine(side, UNDECODABLE_BYTES, run.place_of(seen), events)
                held = Held.of(side.pending, side.start, side.gaps)
            if found is None:
                return None
            verdict = held.chain(side.scanned, _chain_limit(side), led_to=side.led_to)
            if verdict.believed is None:
                return None
            side.decided = max(side.decided, verdict.seen)
            if verdict.believed:
                return side.scanned
            side.scanned += 1

    def _hold_hole(self, side: Side, hole: Hole, events: list[Event]) -> None:
        """A hole behind bytes in which a frame is looked for: they are held if a chain in them may go on behind it.

        The first chain may be none, so later ones are tried too: the first MOST_TRIED, and those since the last hole.
        """
        place, last = hole.place, Held.of(side.pending, side.start, side.gaps).offsets[-1]
        goes_on = bool(side.gaps) and side.gaps[-1][1] == hole.byte_start
        side.gaps.append((side.gaps.pop()[0] if goes_on else hole.byte_start, hole.byte_end))
        held, limit = Held.of(side.pending, side.start, side.gaps), _chain_limit(side)
        begun: int | None = None
        at, tried = held.first(side.scanned), 0
        while at is not None:
            believed = held.chain(at, limit, led_to=side.led_to).believed
            if believed:
                self._found(side, at, held.end, place, events)
                return
            if believed is None and begun is None:
                begun = at
            tried += 1
            at = held.first(max(at + 1, last) if tried >= MOST_TRIED else at + 1)
        if begun is None or len(side.gaps) > MOST_GAPS:
            self._conclude(side, place, CUT, events)
            self._lose(side, place, hole.byte_end, NO_FRAME, events)
            return
        self._quarantine(side, begun, place, events)
        side.scanned, side.reason = 0, NO_FRAME
        events.append(Lost(side.direction, place, hole.byte_end))

    def _find_last(self, side: Side, place: Place, events: list[Event]) -> bool:
        """Whether frames begin in what is held, as no byte follows on it."""
        held = Held.of(side.pending, side.start, side.gaps)
        at = held.first(side.scanned)
        while at is not None:
            if held.chain(at, _chain_limit(side), final=True, led_to=side.led_to).believed:
                self._found(side, at, held.end, place, events)
                return True
            at = held.first(at + 1)
        return False

    def _found(self, side: Side, offset: int, until: int, place: Place, events: list[Event]) -> None:
        """Frames begin at `offset` of what is held; the first of them are what reaches up to position `until`."""
        self._quarantine(side, offset, place, events)
        held = Held.of(side.pending, side.start, side.gaps)
        first, *others = held.parts(side.direction, 0, until, place)
        side.pending.clear()
        side.gaps.clear()
        side.mode = Mode.FRAMES
        if isinstance(first, Run) and bytes(first.data[: len(PREFACE)]) == PREFACE:
            # The connection begins here.
            side.framing_bytes += len(PREFACE)
            side.partial = side.table.partial = False
            first = _from(first, len(PREFACE))
        self._again += [first, *others, Placed(side.direction, place)]

    def _quarantine(self, side: Side, size: int, place: Place, events: list[Event]) -> None:
        """Give the next `size` bytes of what is held as rows, one for each stretch between holes."""
        while size:
            taken = min(size, side.gaps[0][0] - side.start) if side.gaps else size
            data = bytes(side.pending[:taken])
            del side.pending[:taken]
            fields = (side.start, side.start + taken, None, data, side.reason)
            events.append(Undecodable(side.direction, place, *fields))
            side.start += taken
            side.scanned = max(side.scanned - taken, 0)
            size -= taken
            if side.gaps and side.start == side.gaps[0][0]:
                side.start = side.gaps.pop(0)[1]

    def _conclude(self, side: Side, place: Place, reason: str, events: list[Event]) -> None:
        """No byte follows on what is held."""
        break_block(side, place, events)
        if side.mode is not Mode.SEARCH and side.pending:
            side.reason = reason
        while side.pending:
            self._quarantine(side, min(len(side.pending), UNDECODABLE_BYTES), place, events)
        events += side.passed.flush(place)

    @property
    def state(self) -> ReaderState:
        """What a later reader continues from."""
        return ReaderState(self._sides, self._streams.state, self._other)


def _from(run: Run, at: int) -> Run:
    """The bytes of `run` from `at` on."""
    return run._replace(start=run.start + at, data=run.data[at:])


def _chain_limit(side: Side) -> int:
    """The longest frame in a chain that is believed."""
    return min(side.frame_limit, CHAIN_FRAME_BYTES)
