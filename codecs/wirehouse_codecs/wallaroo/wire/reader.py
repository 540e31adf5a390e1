"""The bytes of a connection's two directions become frames with their place.

`Reader` joins the framer, the detection of the dialect (held_frames.py) and the decoder. Its own subject is where
frames begin:

- In the middle of a connection, or after a hole, it looks for the next credible row of frames, and gives the bytes
  that it passes over as rows of their own. Pieces of the other side wait meanwhile, within the bounds of held frames,
  so that frames come in the order in which they arrived.
- Bytes that were passed over before a dialect was known are read again once it is: with a dialect a shorter row of
  frames is credible.
- A hole within one frame whose length was captured costs that frame alone: the next one begins at its known place.
- If holes leave few frames between them, as a snap length does, a short row is credible if it reaches the next hole and
  names a stream that is known.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from operator import itemgetter
from typing import Final

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.tcp.endpoints import Direction, other
from wirehouse_codecs.wallaroo.dialects import DIALECTS, Dialect
from wirehouse_codecs.wallaroo.frames import Ack, Frame, Hello, Ok
from wirehouse_codecs.wallaroo.options import WallarooOptions
from wirehouse_codecs.wallaroo.rules import RULE
from wirehouse_codecs.wallaroo.wire.dialect_detection import Detection, Detector, byte_order_of
from wirehouse_codecs.wallaroo.wire.held_frames import HELD_BYTES, HELD_FRAMES, HeldFrames
from wirehouse_codecs.wallaroo.wire.messages import CUT, LENGTH_BYTES, Decoded, Framed, Framer, decode
from wirehouse_codecs.wallaroo.wire.reader_state import SIDES, ReaderState, Received, Rest, Taken, Waiting
from wirehouse_codecs.wallaroo.wire.resync import READINGS, resynchronise

#: Maximum number of bytes that are read again once the dialect is known.
TAKEN_BYTES: Final = 1 << 18
#: Size of a row of bytes at which no frame begins, wherever pieces end.
PASSED_BYTES: Final = 1 << 16
#: Number of frames in a row that, ending at a hole, are credible without a stream that is known.
FRAMES_WITHOUT_STREAM: Final = 2


class Reader(HeldFrames):
    """The frames of one connection. `receive` bytes in arrival order, `finish` when no more come.

    `started_late` says that the capture began after the connection did. `state` is that of an earlier window, to
    continue from.
    """

    def __init__(
        self, options: WallarooOptions, *, started_late: bool = False, state: ReaderState | None = None
    ) -> None:
        super().__init__(options, state or _begin(options, started_late))
        #: Returns whether a stream of this id was named before. The judge of the frames sets it.
        self.knows_stream: Callable[[int], bool] = _no_stream
        #: The dialects with which a start was looked for, and the size that the head must have for another look.
        self._looked: dict[Direction, tuple[tuple[Dialect, ...], int]] = dict.fromkeys(SIDES, ((), 0))
        self._taken_bytes = sum(len(one.data) for one in self.taken or ())
        #: Whether no more bytes come.
        self._ended = False

    def framer(self, direction: Direction) -> Framer | None:
        """The framer of `direction`, once the dialect is known; None = frames can't be cut yet, or no more."""
        framer = None if self.dialect is None or self.sought is not None else self.framers.get(direction)
        return framer if framer is not None and framer.lost is None and not framer.skips else None

    def rest(self, direction: Direction) -> Rest | None:
        """The bytes of `direction` from which no frame can be cut up to the end; None = there are none.

        It begins with the bytes of the row that reports this, so the quarantine has one row for all.
        """
        if self.unsupported_told:
            start, end = self.not_decoded[direction]
            return Rest(start, end, RULE["dialect_unsupported"]) if end > start else None
        framer = self.framers.get(direction)
        if framer is None or framer.lost is None or framer.lost_at is None:
            return None
        return Rest(framer.lost_at, framer.byte_end, RULE[framer.lost])

    def unread_from(self, direction: Direction) -> int:
        """The position of the first byte of `direction` that is in no frame and no row of other bytes yet."""
        if self.taken is not None and self.gave_up:
            return 0
        framer = self.framers.get(direction)
        held = [framed.byte_start for side, _, framed in self.held if side is direction]
        return min([self.at[direction] if framer is None else framer.byte_start, *held])

    def doubt_beginning(self, direction: Direction) -> None:
        """Note that the first bytes of `direction` need not begin a frame."""
        self.may_begin_within[direction] = True

    def receive(self, direction: Direction, data: bytes, place: Place) -> list[Received]:
        """Take the next bytes of `direction`. Return the frames of both directions that can be decoded now."""
        return self._take_next(Taken(direction, place, data=data))

    def hole(self, direction: Direction, missing: int, place: Place) -> list[Received]:
        """`missing` bytes of `direction` never came: the unfinished frame is undecodable, and a start is looked for.

        A hole between two frames gives a row without bytes: the judge of the frames has to know of the hole.
        """
        return self._take_next(Taken(direction, place, missing=missing))

    def _take_next(self, taken: Taken) -> list[Received]:
        found = self._read(taken)
        if self.taken is None:
            return found
        self.taken.append(taken)
        self._taken_bytes += len(taken.data)
        is_full = len(self.taken) >= HELD_FRAMES or self._taken_bytes >= TAKEN_BYTES
        if self.detection is None and not is_full:
            return [] if self.gave_up else found
        if self.gave_up:
            return self._read_again(found)
        self.taken = None
        return found

    def _read(self, taken: Taken) -> list[Received]:
        direction, place, data, missing = taken
        return self._read_hole(direction, missing, place) if missing else self._read_bytes(direction, data, place)

    def _read_again(self, found: Iterable[Received]) -> list[Received]:
        """Read all pieces once more, now with the dialect and the streams that frames name."""
        named = {one for each in found if each.decoded.frame is not None for one in _streams_of(each.decoded.frame)}
        again = Reader(self._options, started_late=self.late)
        again.guess = None if self.dialect is None else self.dialect.name
        again.may_begin_within = self.may_begin_within
        knows_stream, taken, again.taken = self.knows_stream, self.taken or [], None
        again.knows_stream = lambda stream_id: stream_id in named or knows_stream(stream_id)
        read = [one for each in taken for one in again._read(each)]
        vars(self).update(vars(again) | {"knows_stream": knows_stream})
        return read

    def _read_bytes(self, direction: Direction, data: bytes, place: Place) -> list[Received]:
        if self._waits(direction):
            return self._wait(Waiting(self._end(other(direction)), place, data))
        return self._receive(direction, data, place)

    def _read_hole(self, direction: Direction, missing: int, place: Place) -> list[Received]:
        found = self._begin(direction, final=True) if direction is self.sought else []
        cut = b""
        if direction is self.sought:
            # The held bytes give no frame any more: nothing has to wait for them.
            waiting = self._found_start()
            cut = bytes(self.heads[direction])
            self.heads[direction].clear()
            found += self._go_on(other(direction), waiting)
        return found + self._come_to_hole(direction, missing, place, cut)

    def finish(self, place: Place, *, closed: bool = True) -> list[Received]:
        """No more bytes come: decide on the dialect, and return the frames and unfinished bytes that are left.

        Not `closed`: the capture ends, so an unfinished frame breaks no rule.
        """
        found = self._finish(place, closed=closed)
        if self.taken is None or not self.gave_up:
            return found
        found = self._read_again(found)
        return found + self._finish(place, closed=closed)

    def _finish(self, place: Place, *, closed: bool) -> list[Received]:
        found: list[Received] = []
        self._ended = True
        while self.sought is not None:
            found += self._begin(self.sought, final=True)
        for direction in SIDES:
            # The other side may just have shown an unsupported draft: then all is in one row.
            if direction not in self.framers and self.heads[direction] and not self.unsupported_told:
                found += self._begin(direction, final=True)
        if self.detection is None and self.detector is not None:
            self.detection = self.detector.conclude()
            found += self._release()
        for direction in SIDES:
            found += self._unfinished(direction, place, closed)
        return found

    def _receive(self, direction: Direction, data: bytes, place: Place) -> list[Received]:
        if self.detection is not None and self.detection.dialect is None:
            self.not_decoded[direction][1] += len(data)
            return []
        if direction not in self.framers:
            self.heads[direction] += data
            self.pieces[direction].append((self._end(direction), place))
            return self._begin(direction, final=False)
        return self._take(direction, place, self.framers[direction].receive(data))

    def _come_to_hole(self, direction: Direction, missing: int, place: Place, cut: bytes) -> list[Received]:
        """Take a hole behind the bytes `cut`, or let it wait for its turn."""
        if self._waits(direction):
            return self._wait(Waiting(self._end(other(direction)), place, cut, missing))
        return self._pass_hole(direction, missing, place, cut)

    def _pass_hole(self, direction: Direction, missing: int, place: Place, cut: bytes) -> list[Received]:
        """Take a hole behind all frames given so far, and behind the bytes `cut`."""
        if self.unsupported_told:
            self.not_decoded[direction][1] += len(cut)
            return self._hole(direction, missing, place)
        # Later frames of the other side were given already, so these bytes give no frames any more.
        searched = not cut and self.searching[direction] and self.heads[direction]
        found = self._begin(direction, final=True) if searched else []
        self.heads[direction] += cut
        return found + self._hole(direction, missing, place)

    def _hole(self, direction: Direction, missing: int, place: Place) -> list[Received]:
        if self.unsupported_told:
            self.not_decoded[direction][1] += missing
            return []
        framer = self.framers.pop(direction, None)
        head = self.heads[direction]
        if framer is not None and framer.lost is not None:
            # No later frame can be cut; the rest stays one row of quarantine.
            framer.pass_over(missing)
            self.framers[direction] = framer
            return []
        pending = bytes(head) if framer is None else framer.pending
        end = self._end(direction) if framer is None else framer.byte_end
        if framer is not None and framer.skip(missing):
            self.framers[direction] = framer
        else:
            self.searching[direction] = True
        self._clear_head(direction, end + missing)
        self.lacks |= direction is Direction.CLIENT
        if self.detector is not None and self.lacks:
            self.detector.lacks = True
        if self.detection is not None:
            return [_undecodable(direction, place, end - len(pending), pending, CUT)]
        self.gave_up = self.gave_up or bool(pending)
        # Holes of a side with no frame between count as one for the judge.
        holes = takewhile(lambda one: one[2].reason == CUT, self.held[:-3:-1])
        if direction not in {side for side, _, _ in holes}:
            self.held.append((direction, place, Framed(end, end, b"", reason=CUT)))
        return [_undecodable(direction, place, end - len(pending), pending, CUT)] if pending else []

    # The start of a side

    def _begin(self, direction: Direction, *, final: bool) -> list[Received]:
        """Start cutting frames where a first one is credible. Each has the place of the piece that completed it."""
        if self.may_begin_within[direction] and not self.searching[direction]:
            begins = self._begins_with_frame(direction)
            if begins is None and not final:
                return []
            self.searching[direction] = not begins
        if self.searching[direction]:
            found = self._search(direction, final=final)
            if self.searching[direction]:
                return found
        else:
            found = []
            head = bytes(self.heads[direction])
            if self.order is None:
                self.order = byte_order_of(head)
                if self.order is None and len(head) <= LENGTH_BYTES and not final:
                    return found
                # Neither byte order gives a length that a first frame has: it counts as the newest dialect.
                self.order = self.order or "big"
        at, data, pieces = self.at[direction], bytes(self.heads[direction]), self.pieces[direction]
        assert self.order is not None
        self.framers[direction] = Framer(self.order, self._limit(direction), at)
        self._clear_head(direction, at)
        if self.detector is None and self.detection is None:
            self.detector = Detector(self.order, lacks=self.lacks)
        # If this was the sought side, it may now have to wait for the other one; else it goes on.
        take, waiting = self._receive, list[Waiting]()
        if direction is self.sought:
            take, waiting = self._read_bytes, self._found_start()
        taken, already = 0, at
        for end, place in pieces:
            before = bisect_left(waiting, end, taken, key=_after)
            found += self._go_on(other(direction), waiting[taken:before])
            found += take(direction, data[already - at : end - at], place)
            taken, already = before, end
        return found + self._go_on(other(direction), waiting[taken:])

    def _begins_with_frame(self, direction: Direction) -> bool | None:
        """Whether a whole frame is at the beginning of a side. None: more bytes are needed."""
        head = self.heads[direction]
        start = resynchronise(head, direction, self._candidates())
        if start.offset:
            return False
        length = int.from_bytes(head[:LENGTH_BYTES], start.byte_order)
        return True if len(head) > LENGTH_BYTES and len(head) >= LENGTH_BYTES + length else None

    def _search(self, direction: Direction, *, final: bool) -> list[Received]:
        """Look for a start, which ends `searching` once it is found. Return bytes that are passed, and what waited."""
        head, candidates = self.heads[direction], self._candidates()
        before, needed = self._looked[direction]
        if len(head) < needed and candidates == before and not final:
            return []
        passed = self.passed[direction]
        start = resynchronise(
            memoryview(head)[passed:],
            direction,
            candidates,
            final=final,
            credible=lambda at: self._is_credible(head[passed + at :], direction, begins=passed + at == 0),
        )
        if final and not (start.found or self._ended):
            return []
        passed += start.offset
        self._looked[direction] = candidates, passed + start.needed
        found: list[Received] = []
        while passed >= PASSED_BYTES:
            found += self._pass_over(direction, PASSED_BYTES)
            passed -= PASSED_BYTES
        if passed and (start.found or final):
            found += self._pass_over(direction, passed)
            passed = 0
        self.passed[direction] = passed
        if start.found:
            self.searching[direction] = False
            self.order = self.order or start.byte_order
        elif final and direction is self.sought:
            found += self._go_on(other(direction), self._found_start())
        elif head and self.sought is None:
            self.sought = direction
        elif direction is self.sought:
            # Up to here there is no frame to wait for.
            found += self._let_pass(self.at[direction] + passed + 1)
        return found

    def _is_credible(self, row: bytes | bytearray, direction: Direction, *, begins: bool) -> bool:
        """Whether a short row that ends where bytes are missing is credible: its first frame names known streams only.

        If it names no stream, the row needs another frame. Frames of the handshake never come late. A row that also
        `begins` where bytes are missing needs none of this. Before the dialect is known there is such a row only at
        the end.
        """
        dialect = self.dialect or (None if self.guess is None else DIALECTS[self.guess])
        if dialect is None:
            return self._ended
        framer = Framer(dialect.byte_order, self._limit(direction))
        frames = [
            decode(framed.body, dialect, self._options.version_form).frame for framed in framer.receive(bytes(row))
        ]
        first = frames[0] if frames else None
        if first is None or begins:
            return first is not None
        if any(isinstance(frame, Hello | Ok) for frame in frames):
            return False
        named = _streams_of(first)
        return all(map(self.knows_stream, named)) if named else len(frames) >= FRAMES_WITHOUT_STREAM

    def _pass_over(self, direction: Direction, size: int) -> list[Received]:
        """Give `size` bytes at which no frame begins, after all that came before the last of them."""
        self.gave_up = self.gave_up or self.detection is None
        head, pieces = self.heads[direction], self.pieces[direction]
        start, until = self.at[direction], self.at[direction] + size
        found = self._let_pass(until) if direction is self.sought else []
        place = _place_of(pieces, until)
        found.append(_undecodable(direction, place, start, bytes(head[:size]), "no frame begins here"))
        del pieces[: bisect_right(pieces, until, key=itemgetter(0))]
        del head[:size]
        self.at[direction] = until
        candidates, needed = self._looked[direction]
        self._looked[direction] = candidates, needed - size
        return found

    def _clear_head(self, direction: Direction, at: int) -> None:
        """Drop the held bytes of `direction`, which goes on at `at`."""
        self.heads[direction], self.pieces[direction] = bytearray(), []
        self.at[direction], self.passed[direction], self._looked[direction] = at, 0, ((), 0)

    # The wait for a start of the other side

    def _end(self, direction: Direction) -> int:
        """Number of bytes received of a stream without a framer."""
        return self.at[direction] + len(self.heads[direction])

    def _waits(self, direction: Direction) -> bool:
        return self.sought is not None and self.sought is not direction

    def _wait(self, one: Waiting) -> list[Received]:
        """Let a piece or hole wait. Beyond the bounds, those that waited longest go on."""
        self.waiting.append(one)
        self._waiting_bytes += len(one.data)
        found: list[Received] = []
        while self._waiting_bytes > HELD_BYTES or len(self.waiting) > HELD_FRAMES:
            found += self._let_first_pass()
        return found

    def _let_pass(self, end: int) -> list[Received]:
        """Take what came before byte `end` of the sought side: it need not wait."""
        found: list[Received] = []
        while self.waiting and self.waiting[0].after < end:
            found += self._let_first_pass()
        return found

    def _let_first_pass(self) -> list[Received]:
        assert self.sought is not None
        direction, first = other(self.sought), self.waiting.pop(0)
        self._waiting_bytes -= len(first.data)
        if first.missing:
            return self._pass_hole(direction, first.missing, first.place, first.data)
        return self._receive(direction, first.data, first.place)

    def _found_start(self) -> list[Waiting]:
        """End the wait for a start, and return what waited. A start of the other side may be sought next."""
        assert self.sought is not None
        waiting, self.waiting, self._waiting_bytes = self.waiting, [], 0
        side = other(self.sought)
        self.sought = side if self.searching[side] and self.heads[side] else None
        return waiting

    def _go_on(self, direction: Direction, waiting: Iterable[Waiting]) -> list[Received]:
        """Take what waited."""
        found: list[Received] = []
        for one in waiting:
            if one.data and one.missing:
                found += self._come_to_hole(direction, one.missing, one.place, one.data)
            elif one.missing:
                found += self._read_hole(direction, one.missing, one.place)
            else:
                found += self._read_bytes(direction, one.data, one.place)
        return found

    def _candidates(self) -> tuple[Dialect, ...]:
        """The dialects that the connection may speak, as far as it is known."""
        if self.dialect is not None:
            return (self.dialect,)
        return tuple(dialect for dialect in READINGS if self.order in (None, dialect.byte_order))

    def _unfinished(self, direction: Direction, place: Place, closed: bool) -> list[Received]:
        framer = self.framers.get(direction)
        pending = bytes(self.heads[direction]) if framer is None else framer.pending
        if not pending or (self.detection is not None and self.detection.dialect is None):
            return []
        start = self.at[direction] if framer is None else framer.byte_end - len(pending)
        rule = RULE["truncated_frame"] if closed else None
        decoded = Decoded(rule=rule, reason=f"{len(pending)} bytes of an unfinished frame")
        return [Received(direction, place, start, start + len(pending), decoded, pending)]


def _begin(options: WallarooOptions, started_late: bool) -> ReaderState:
    """The state before the first byte."""
    state = ReaderState(searching=dict.fromkeys(SIDES, started_late), late=started_late, lacks=started_late)
    if options.forced is not None:
        dialect = DIALECTS[options.forced]
        state.order = dialect.byte_order
        state.detection = Detection(dialect, dialect.name, "forced by the configuration")
    else:
        state.taken = []
    return state


def _no_stream(_stream_id: int) -> bool:
    """Whether a stream is known: none is."""
    return False


def _streams_of(frame: Frame) -> list[int]:
    """The streams that a frame names."""
    if isinstance(frame, Ack):
        return [pair.stream_id for pair in frame.acks]
    stream_id: int | None = getattr(frame, "stream_id", None)
    return [] if stream_id is None else [stream_id]


def _after(one: Waiting) -> int:
    return one.after


def _place_of(pieces: Sequence[tuple[int, Place]], end: int) -> Place:
    """The place of the piece that the byte before `end` is in."""
    return pieces[min(bisect_left(pieces, end, key=itemgetter(0)), len(pieces) - 1)][1]


def _undecodable(direction: Direction, place: Place, start: int, data: bytes, reason: str) -> Received:
    """Bytes that no frame is cut from; no rule: the wire isn't at fault for what the capture lacks."""
    return Received(direction, place, start, start + len(data), Decoded(reason=reason), data)
