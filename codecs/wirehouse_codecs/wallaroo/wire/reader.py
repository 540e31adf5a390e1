"""From the bytes of a connection's two directions to frames with their place.

`Reader` puts framer, detection and decoder together. Until the dialect is known it holds the frames back, at most
`HELD_FRAMES` and `HELD_BYTES` of them, so that each is decoded once and in the right layout. In the middle of a
connection, or after a hole, it looks for the next credible row of frames and gives back what it passed over. What the
other side says meanwhile waits, within the same bounds, so that frames come in the order in which they arrived. What
was passed over before a dialect was found is read again then: by it a shorter row of frames is credible. A hole
within one frame whose length was captured costs that frame alone: the next one begins at its known place. Where holes
leave few frames between them, as a snap length does, a short row is credible if it reaches the next hole and names a
stream that is known.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from operator import itemgetter
from typing import Final, NamedTuple

from wirehouse_codecs.core.rules import Place, Rule
from wirehouse_codecs.core.snapshots import carried_fields
from wirehouse_codecs.tcp.endpoints import Direction, other
from wirehouse_codecs.wallaroo.dialects import DIALECTS, SEED, V2A, V3, ByteOrder, Dialect
from wirehouse_codecs.wallaroo.frames import Ack, Frame, Hello, Ok, Restart
from wirehouse_codecs.wallaroo.options import WallarooOptions
from wirehouse_codecs.wallaroo.rules import RULE
from wirehouse_codecs.wallaroo.wire.dialect_detection import UNTOLD, Detection, Detector, byte_order_of
from wirehouse_codecs.wallaroo.wire.messages import CUT, LENGTH_BYTES, Decoded, Framed, Framer, decode
from wirehouse_codecs.wallaroo.wire.resync import READINGS, resynchronise

#: More than a connector has streams: it may notify all of them before the message that tells the dialect.
HELD_FRAMES: Final = 2048
HELD_BYTES: Final = 1 << 20
#: So much is read again once the dialect is known.
TAKEN_BYTES: Final = 1 << 18
#: Of bytes in which no frame begins each so many are a row, wherever pieces end.
PASSED_BYTES: Final = 1 << 16
#: So many frames in a row that end at a hole are credible without a stream that is known.
FRAMES_WITHOUT_STREAM: Final = 2
_SIDES: Final = tuple(Direction)


@dataclass(frozen=True, slots=True)
class Received:
    """What one side sent: a frame, or bytes that are none; where it stands, and in which bytes of its stream."""

    direction: Direction
    place: Place
    byte_start: int
    byte_end: int
    decoded: Decoded
    #: The bytes that couldn't be decoded, for quarantine; empty with a frame.
    undecoded: bytes = b""


class _Waiting(NamedTuple):
    """A piece, or a hole, of the side that waits while a start of the other one is looked for."""

    #: How many bytes of the other side had come before.
    after: int
    place: Place
    #: Of a hole the bytes before it that no frame was cut from any more.
    data: bytes
    #: Bytes of the hole.
    missing: int = 0


class Taken(NamedTuple):
    """A piece, or a hole of so many bytes, as the reader got it."""

    direction: Direction
    place: Place
    data: bytes = b""
    missing: int = 0


class Rest(NamedTuple):
    """From where to where bytes stand that no frame is told from, for good, and the rule that says why."""

    byte_start: int
    byte_end: int
    rule: Rule


@dataclass
class ReaderState:
    """What a Reader carries from window to window."""

    detection: Detection | None = None
    order: ByteOrder | None = None
    detector: Detector | None = None
    framers: dict[Direction, Framer] = field(default_factory=dict)
    #: Bytes that no framer has: until the byte order is known, and while a start is looked for.
    heads: dict[Direction, bytearray] = field(default_factory=lambda: {side: bytearray() for side in _SIDES})
    #: Of the pieces in these: where each ends, and its place.
    pieces: dict[Direction, list[tuple[int, Place]]] = field(default_factory=lambda: {side: [] for side in _SIDES})
    at: dict[Direction, int] = field(default_factory=lambda: dict.fromkeys(_SIDES, 0))
    searching: dict[Direction, bool] = field(default_factory=lambda: dict.fromkeys(_SIDES, False))
    #: The first bytes may stand within a frame: if they are none, a start is looked for.
    may_begin_within: dict[Direction, bool] = field(default_factory=lambda: dict.fromkeys(_SIDES, False))
    #: The capture began after the connection did.
    late: bool = False
    #: Some of what the connector said before the dialect was known was not captured.
    lacks: bool = False
    #: While a start is looked for: how many bytes of the head are none.
    passed: dict[Direction, int] = field(default_factory=lambda: dict.fromkeys(_SIDES, 0))
    #: The side whose start the other one waits for, and what waits.
    sought: Direction | None = None
    waiting: list[_Waiting] = field(default_factory=list)
    #: Frames that wait for the dialect.
    held: list[tuple[Direction, Place, Framed]] = field(default_factory=list)
    #: All that came before the dialect was known; None once that is over.
    taken: list[Taken] | None = None
    #: In some of that a start was looked for, and given up. It is read again once a dialect is found.
    gave_up: bool = False
    #: The dialect that was found then: by it shorter rows are credible, which may show another one.
    guess: str | None = None
    unsupported_told: bool = False
    #: Of a connection that isn't decoded, from where to where its bytes reach in each direction.
    not_decoded: dict[Direction, list[int]] = field(default_factory=lambda: {side: [0, 0] for side in _SIDES})


class Reader(ReaderState):
    """The frames of one connection. `receive` bytes in arrival order, `finish` when no more come.

    `started_late` says that the capture began after the connection did. `state` is that of an earlier window, to
    continue from.
    """

    def __init__(
        self, options: WallarooOptions, *, started_late: bool = False, state: ReaderState | None = None
    ) -> None:
        state = state or _begin(options, started_late)
        super().__init__(**carried_fields(ReaderState, state))
        self._options = options
        #: Whether a stream of this id was named before, as whoever judges the frames knows.
        self.knows_stream: Callable[[int], bool] = _no_stream
        #: By which dialects a start was looked for, and up to where in the head it takes bytes to look again.
        self._looked: dict[Direction, tuple[tuple[Dialect, ...], int]] = dict.fromkeys(_SIDES, ((), 0))
        self._waiting_bytes = sum(len(one.data) for one in self.waiting)
        self._held_bytes = sum(len(framed.body) for _, _, framed in self.held)
        self._taken_bytes = sum(len(one.data) for one in self.taken or ())
        #: No more bytes come.
        self._ended = False

    @property
    def dialect(self) -> Dialect | None:
        """The dialect, once it is known and can be decoded."""
        return None if self.detection is None else self.detection.dialect

    def framer(self, direction: Direction) -> Framer | None:
        """What cuts the frames of `direction`, once the dialect is known; None = it doesn't yet, or no more."""
        framer = None if self.dialect is None or self.sought is not None else self.framers.get(direction)
        return framer if framer is not None and framer.lost is None and not framer.skips else None

    def rest(self, direction: Direction) -> Rest | None:
        """What no frame of `direction` is told from, for good; None = there is nothing.

        It begins with the bytes of the row that says so, so the quarantine has one row for all.
        """
        if self.unsupported_told:
            start, end = self.not_decoded[direction]
            return Rest(start, end, RULE["dialect_unsupported"]) if end > start else None
        framer = self.framers.get(direction)
        if framer is None or framer.lost is None or framer.lost_at is None:
            return None
        return Rest(framer.lost_at, framer.byte_end, RULE[framer.lost])

    def unread_from(self, direction: Direction) -> int:
        """Where the first byte of `direction` stands that is in no frame and no row of other bytes yet."""
        if self.taken is not None and self.gave_up:
            return 0
        framer = self.framers.get(direction)
        held = [framed.byte_start for side, _, framed in self.held if side is direction]
        return min([self.at[direction] if framer is None else framer.byte_start, *held])

    def doubt_beginning(self, direction: Direction) -> None:
        """What comes first of `direction` need not begin a frame."""
        self.may_begin_within[direction] = True

    def receive(self, direction: Direction, data: bytes, place: Place) -> list[Received]:
        """Take the next bytes of `direction`; the frames of both directions that are complete and decodable now."""
        return self._take_next(Taken(direction, place, data=data))

    def hole(self, direction: Direction, missing: int, place: Place) -> list[Received]:
        """`missing` bytes of `direction` never came: what was unfinished is undecodable, and a start is looked for.

        Between two frames that is a row without bytes: whoever judges the frames has to know of the hole.
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
        """Read all that came once more, with what was found: the dialect and the streams that frames name."""
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
            return self._wait(_Waiting(self._end(other(direction)), place, data))
        return self._receive(direction, data, place)

    def _read_hole(self, direction: Direction, missing: int, place: Place) -> list[Received]:
        found = self._begin(direction, final=True) if direction is self.sought else []
        cut = b""
        if direction is self.sought:
            # No frame of what was held comes any more: nobody waits for it.
            waiting = self._found_start()
            cut = bytes(self.heads[direction])
            self.heads[direction].clear()
            found += self._go_on(other(direction), waiting)
        return found + self._come_to_hole(direction, missing, place, cut)

    def finish(self, place: Place, *, closed: bool = True) -> list[Received]:
        """No more bytes come: conclude on the dialect, and tell what is left unfinished.

        Not `closed`: the capture ends, which is no fault of an unfinished frame.
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
        for direction in _SIDES:
            # Of a draft, which the other side may just have shown it to be, all is in one row.
            if direction not in self.framers and self.heads[direction] and not self.unsupported_told:
                found += self._begin(direction, final=True)
        if self.detection is None and self.detector is not None:
            self.detection = self.detector.conclude()
            found += self._release()
        for direction in _SIDES:
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
        """A hole, in its turn, behind the bytes `cut`."""
        if self._waits(direction):
            return self._wait(_Waiting(self._end(other(direction)), place, cut, missing))
        return self._pass_hole(direction, missing, place, cut)

    def _pass_hole(self, direction: Direction, missing: int, place: Place, cut: bytes) -> list[Received]:
        """A hole behind the frames that are told, and behind the bytes `cut`."""
        if self.unsupported_told:
            self.not_decoded[direction][1] += len(cut)
            return self._hole(direction, missing, place)
        # What the other side said after these bytes was told, so they are no frames any more.
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
            # The place is lost for good; the rest stays one row of quarantine.
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
        # Holes of a side with no frame between are one to whoever judges.
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
                # Neither byte order gives a length that a first frame has: judged as the dialect that was spoken last.
                self.order = self.order or "big"
        at, data, pieces = self.at[direction], bytes(self.heads[direction]), self.pieces[direction]
        assert self.order is not None
        self.framers[direction] = Framer(self.order, self._limit(direction), at)
        self._clear_head(direction, at)
        if self.detector is None and self.detection is None:
            self.detector = Detector(self.order, lacks=self.lacks)
        # Who was waited for may have to wait in turn; who wasn't goes on.
        take, waiting = self._receive, list[_Waiting]()
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
        """Whether a whole frame stands at the beginning of a side. None: it takes more bytes to say."""
        head = self.heads[direction]
        start = resynchronise(head, direction, self._candidates())
        if start.offset:
            return False
        length = int.from_bytes(head[:LENGTH_BYTES], start.byte_order)
        return True if len(head) > LENGTH_BYTES and len(head) >= LENGTH_BYTES + length else None

    def _search(self, direction: Direction, *, final: bool) -> list[Received]:
        """Look for a start; it is found if no search is on any more. What was passed over, and waits no longer."""
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
        """The frames of a short row that ends where bytes are missing: the first one names streams that are known.

        One that names none needs another, and frames of the handshake are none that come late. A row that also
        `begins` where bytes are missing needs none of this. Before the dialect is known there is no such row but at
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
        """Bytes at which no frame begins, after what came before the last of them."""
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
        """No bytes are held of `direction`, which goes on at `at`."""
        self.heads[direction], self.pieces[direction] = bytearray(), []
        self.at[direction], self.passed[direction], self._looked[direction] = at, 0, ((), 0)

    # What waits for a start of the other side

    def _end(self, direction: Direction) -> int:
        """How much of a stream without a framer was received."""
        return self.at[direction] + len(self.heads[direction])

    def _waits(self, direction: Direction) -> bool:
        return self.sought is not None and self.sought is not direction

    def _wait(self, one: _Waiting) -> list[Received]:
        """Let it wait; if that is too much, what waited longest goes on."""
        self.waiting.append(one)
        self._waiting_bytes += len(one.data)
        found: list[Received] = []
        while self._waiting_bytes > HELD_BYTES or len(self.waiting) > HELD_FRAMES:
            found += self._let_first_pass()
        return found

    def _let_pass(self, end: int) -> list[Received]:
        """What came before byte `end` of the start that is looked for, and need not wait."""
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

    def _found_start(self) -> list[_Waiting]:
        """Nobody waits for this start any more: what did. A start of the other side may be the next that is sought."""
        assert self.sought is not None
        waiting, self.waiting, self._waiting_bytes = self.waiting, [], 0
        side = other(self.sought)
        self.sought = side if self.searching[side] and self.heads[side] else None
        return waiting

    def _go_on(self, direction: Direction, waiting: Iterable[_Waiting]) -> list[Received]:
        """Take what has waited."""
        found: list[Received] = []
        for one in waiting:
            if one.data and one.missing:
                found += self._come_to_hole(direction, one.missing, one.place, one.data)
            elif one.missing:
                found += self._read_hole(direction, one.missing, one.place)
            else:
                found += self._read_bytes(direction, one.data, one.place)
        return found

    # Frames

    def _candidates(self) -> tuple[Dialect, ...]:
        """The dialects that the connection may speak, as far as is known."""
        if self.dialect is not None:
            return (self.dialect,)
        return tuple(dialect for dialect in READINGS if self.order in (None, dialect.byte_order))

    def _limit(self, direction: Direction) -> int:
        dialect = self.dialect or (SEED if self.order == "little" else V3)
        return self._options.limit(dialect, direction)

    def _take(self, direction: Direction, place: Place, frames: list[Framed]) -> list[Received]:
        if self.detection is not None:
            return [self.decode(direction, place, framed) for framed in frames]
        for framed in frames:
            self.held.append((direction, place, framed))
            self._held_bytes += len(framed.body)
            # What breaks framing is a length, and no tag for the detector to read.
            if self.detection is None and self.detector is not None and framed.rule is None:
                self.detection = self.detector.offer(direction, framed.body)
        full = len(self.held) >= HELD_FRAMES or self._held_bytes >= HELD_BYTES
        if full and self.detection is None and self.detector is not None:
            self.detection = self.detector.conclude()
        return [] if self.detection is None else self._release()

    def _release(self) -> list[Received]:
        """The frames that were held back, now that the dialect is known."""
        held, self.held, self._held_bytes, self.detector = self.held, [], 0, None
        for direction, framer in self.framers.items():
            framer.limit = self._limit(direction)
        if self.dialect is None:
            return self._unsupported(held)
        return [self.decode(direction, place, framed) for direction, place, framed in held]

    def _unsupported(self, held: list[tuple[Direction, Place, Framed]]) -> list[Received]:
        """One row for all, but for what stands before a hole, and nothing more of this connection."""
        assert self.detection is not None
        first = next((one for one in held if one[2].body), None)
        if self.unsupported_told or first is None:
            return []
        # With the rest of a frame that a hole cut.
        spans = [one for one in held if one[2].byte_end > one[2].byte_start]
        self.unsupported_told = True
        for side in _SIDES:
            framer, head = self.framers.get(side), self.heads[side]
            end = self.at[side] + len(head) if framer is None else framer.byte_end
            begun = end - len(head) if framer is None else end - len(framer.pending)
            own = (framed.byte_start for direction, _, framed in spans if direction is side)
            self.not_decoded[side] = [next((start for start in own if start >= self.at[side]), begun), end]
        if self.sought is not None:
            self.not_decoded[other(self.sought)][1] += sum(len(one.data) + one.missing for one in self.waiting)
            self.sought, self.waiting, self._waiting_bytes = None, [], 0
        direction, place, framed = first
        reason = f"dialect {self.detection.name}: {self.detection.reason}"
        decoded = Decoded(rule=RULE["dialect_unsupported"], reason=reason)
        said = Received(direction, place, framed.byte_start, framed.byte_end, decoded, framed.body)
        # Rows of what follows on these frames were told already.
        before = [
            Received(direction, place, framed.byte_start, framed.byte_end, Decoded(reason=reason), framed.body)
            for direction, place, framed in spans
            if framed.byte_start < self.at[direction]
        ]
        return [said, *before]

    def decode(self, direction: Direction, place: Place, framed: Framed) -> Received:
        """A frame that was cut, now that the dialect is known."""
        assert self.dialect is not None
        if framed.reason:
            decoded = Decoded(rule=None if framed.rule is None else RULE[framed.rule], reason=framed.reason)
        else:
            decoded = decode(framed.body, self._dialect_of(framed.body), self._options.version_form)
        undecoded = framed.body if decoded.frame is None else b""
        return Received(direction, place, framed.byte_start, framed.byte_end, decoded, undecoded)

    def _dialect_of(self, body: bytes) -> Dialect:
        """The dialect of a frame: where nothing had told v2a from v2b, a RESTART without a body does."""
        assert self.detection is not None
        assert self.detection.dialect is not None
        is_v2a = body == bytes([V2A.tags[Restart]]) and self.detection.reason.endswith(UNTOLD)
        return V2A if is_v2a else self.detection.dialect

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
    """Before the first byte."""
    state = ReaderState(searching=dict.fromkeys(_SIDES, started_late), late=started_late, lacks=started_late)
    if options.forced is not None:
        dialect = DIALECTS[options.forced]
        state.order = dialect.byte_order
        state.detection = Detection(dialect, dialect.name, "forced by the configuration")
    else:
        state.taken = []
    return state


def _no_stream(_stream_id: int) -> bool:
    """Nobody knows of streams."""
    return False


def _streams_of(frame: Frame) -> list[int]:
    """The streams that a frame names."""
    if isinstance(frame, Ack):
        return [pair.stream_id for pair in frame.acks]
    stream_id: int | None = getattr(frame, "stream_id", None)
    return [] if stream_id is None else [stream_id]


def _after(one: _Waiting) -> int:
    return one.after


def _place_of(pieces: Sequence[tuple[int, Place]], end: int) -> Place:
    """The place of the piece that the byte before `end` is in."""
    return pieces[min(bisect_left(pieces, end, key=itemgetter(0)), len(pieces) - 1)][1]


def _undecodable(direction: Direction, place: Place, start: int, data: bytes, reason: str) -> Received:
    """Bytes that no frame is cut from; no rule: the wire isn't at fault for what the capture lacks."""
    return Received(direction, place, start, start + len(data), Decoded(reason=reason), data)
