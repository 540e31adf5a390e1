"""The bytes of a connection to judged messages: `reader.Reader` and `session.Session` with compiled loops for most.

Once the envelope is known, all frames of a run are cut and read by columns.py, and judge.py judges those that are
plain. Any other frame takes the reference path, and so do all bytes while a direction has not begun, while a
frame is looked for, and where one is no message. Both ways give the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from wirehouse_codecs.compiled.arrow import UNSIGNED, frozen, parts, unsigned
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.ockam.fast import judge_loops, loops
from wirehouse_codecs.ockam.fast.columns import FRAME_FIELDS, NAME_TYPE, SPAN_FIELDS, Arrays, cut, frame_columns
from wirehouse_codecs.ockam.fast.judge import Plain, Rows
from wirehouse_codecs.ockam.options import OckamOptions
from wirehouse_codecs.ockam.session.coverage import Coverage
from wirehouse_codecs.ockam.session.outcome import Outcome
from wirehouse_codecs.ockam.session.requests import Request, RequestState, Where
from wirehouse_codecs.ockam.session.session import Session
from wirehouse_codecs.ockam.wire import reader
from wirehouse_codecs.ockam.wire import resync as starts
from wirehouse_codecs.ockam.wire.bare import Malformed
from wirehouse_codecs.ockam.wire.reader import Reader
from wirehouse_codecs.ockam.wire.routed import Envelope
from wirehouse_codecs.tcp.endpoints import Direction, is_partly_within
from wirehouse_codecs.tcp.framing import SIDES, CutFrames, Feed, Unfinished
from wirehouse_codecs.tcp.reassembly import Data

Array = np.ndarray[Any, Any]

#: Plain messages, a row each, in arrival order; what isn't explained is as in outcome.Outcome.
PLAIN: pa.Schema = pa.schema(
    [
        pa.field("direction", NAME_TYPE),
        # The number of the piece that completed it.
        pa.field("piece", pa.int64()),
        *SPAN_FIELDS,
        *FRAME_FIELDS,
        pa.field("stream_address", pa.string()),
        pa.field("requester", pa.string()),
        pa.field("consumer", pa.string()),
        pa.field("missed", pa.int64()),
        # Whether it answers a request, which the next columns describe: `answers_` with fields of outcome.Answers.
        pa.field("answers", pa.bool_()),
        pa.field("answers_requested_at_ns", pa.int64()),
        pa.field("answers_request_byte_start", pa.int64()),
        pa.field("answers_request_capture_id", pa.binary()),
        pa.field("answers_index", UNSIGNED),
        pa.field("answers_limit", UNSIGNED),
        pa.field("answers_data", pa.binary()),
        pa.field("answers_data_bytes", pa.int64()),
        pa.field("answers_unsure", pa.bool_()),
        pa.field("answers_late", pa.bool_()),
    ]
)

_NONE: Final = pa.RecordBatch.from_pylist([], PLAIN)
#: After a frame that isn't plain, the session takes _FEWEST_READ frames before the loop is tried again, and twice as
#: many each time that it didn't pay. Beyond _MOST_TRIED everything goes the reference path, for twice as many pieces
#: each time, up to _MOST_READ.
_FEWEST_READ: Final = 4
_MOST_TRIED: Final = 128
_MOST_READ: Final = 1024
#: It pays to cut the frames of a run if one in this many is plain.
_WORTH: Final = 4


class Taken(NamedTuple):
    """Messages of consecutive pieces."""

    #: PLAIN.
    plain: pa.RecordBatch
    #: The other messages, and bytes that are none, each with the number of plain ones before it.
    read: Sequence[tuple[int, Outcome]]


class Connection:
    """Reader and session of one connection, with compiled loops for most of its frames.

    Both may be used beside: to advance the time, to end, and for their snapshots.
    """

    def __init__(self, reader: Reader, session: Session, options: OckamOptions) -> None:
        self.reader, self.session = reader, session
        self._plain = Plain(session, options)
        #: Number of pieces that still go the reference path, and that did after compiled loops did not get far.
        self._left_to_reference = 0
        self._reference_pieces = 1

    def run(self, pieces: Sequence[Data]) -> Iterator[Taken]:
        """Take `pieces` of both directions, in arrival order. ValueError: 2 GiB or more."""
        feed = Feed(pieces)
        while not feed.is_taken:
            if self._left_to_reference or not self._is_settled(feed):
                self._left_to_reference = max(0, self._left_to_reference - 1)
                yield Taken(_NONE, [(0, outcome) for outcome in self._receive(*feed.take())])
                continue
            yield self._receive_compiled(feed)

    def receive(self, piece: Data) -> list[Outcome]:
        """Take a piece on the reference path: for a few frames, `run` would cost more."""
        return self._receive(piece.direction, piece.data, piece.place)

    def _receive(self, direction: Direction, data: bytes, place: Place) -> list[Outcome]:
        frames = self.reader.receive(direction, data, place)
        self.session.coverage.here[direction] = self.reader.end(direction)
        outcomes = [self.session.receive(received) for received in frames]
        if self.reader.is_lost(direction):
            self.session.lose(direction, place)
        return outcomes

    def _is_settled(self, feed: Feed) -> bool:
        """Whether the envelope is known, frames of each side that sends more can be cut, and none is looked for."""
        if self.reader.detection is None or self.session.coverage.searched:
            return False
        return all(self.reader.pending(side) is not None or not feed.left(side) for side in SIDES)

    def _receive_compiled(self, feed: Feed) -> Taken:
        """Take the next pieces, up to where a frame is no message, or is too long."""
        frames = _Frames(self.reader, feed)
        read = self._judge(frames)
        for side, rest in zip(SIDES, frames.leave_rest(), strict=True):
            if self.reader.pending(side) is not None:
                self.reader.go_on(side, *rest)
                self.session.coverage.here[side] = self.reader.end(side)
        taken = frames.taken(read)
        if _WORTH * taken.plain.num_rows >= len(frames.rows):
            self._reference_pieces = 1
        else:
            self._reference_pieces = min(2 * self._reference_pieces, _MOST_READ)
        self._left_to_reference = 0 if feed.is_taken else self._reference_pieces
        return taken

    def _judge(self, frames: _Frames) -> dict[int, Outcome]:
        """Judge frames: plain ones in a loop, and of the others each with some more by the session."""
        plain, rows = self._plain, frames.rows
        read: dict[int, Outcome] = {}
        cost, row, left_to_session = plain.cost(rows), 0, _FEWEST_READ
        session, coverage = self.session, self.session.coverage
        ends = frames.stream_ends()
        held_back, unasked = frames.held_back(coverage), coverage.unasked
        while row < len(rows):
            begin, is_plain = row, rows.worth and len(rows) - row >= cost
            if coverage.unasked != unasked:
                held_back, unasked = frames.held_back(coverage), coverage.unasked
            while is_plain and row < len(rows):
                row, is_plain = plain.advance(rows, row, held_back)
                coverage.taken = _taken(coverage.taken, ends, row)
            left_to_session = _FEWEST_READ if row - begin >= cost else 2 * left_to_session
            if left_to_session > _MOST_TRIED:
                frames.stop_before(row)
                break
            until = min(row + left_to_session, len(rows))
            while row < until:
                (direction, place, byte_start, _), frame = frames.where(row), frames.bytes_of(row)
                try:
                    received = reader.read(frame, frames.envelope, len(frame), direction, place, byte_start)
                except Malformed:
                    frames.stop_before(row)
                    return read
                coverage.here = frames.here(row)
                read[row] = session.receive(received)
                row += 1
        return read


class _Frames(CutFrames):
    """The frames of a feed's next pieces."""

    def __init__(self, reader: Reader, feed: Feed) -> None:
        assert reader.detection is not None
        self.envelope: Envelope = reader.detection.envelope
        self._limit = reader.limit(self.envelope)
        super().__init__(feed, [Unfinished(*(reader.pending(side) or ())) for side in SIDES], self._cut)
        arrays = Arrays.of(len(self))
        placed = arrays.numbers[loops.BEGIN], arrays.numbers[loops.END], arrays.numbers[loops.PIECE]
        for column, positions in zip((*placed, arrays.smalls[loops.SIDE]), self.positions, strict=True):
            column[:] = positions
        arrays.read(self.data, self.envelope)
        #: By side and piece: how far its bytes are here.
        ends = self._ends + self.shifts[self._owners]
        here = [np.where(self._owners == n, ends, reader.end(side)) for n, side in enumerate(SIDES)]
        self._here = np.maximum.accumulate(np.array(here), axis=1)
        self.rows = Rows(self.data, self.envelope, arrays, self.arrived_at_ns, lambda row: Where(*self.where(row)))

    def _cut(self, data: Array, begin: int, end: int, _: int) -> tuple[Array, int]:
        bounds, is_lost = cut(data, begin, end, self.envelope, self._limit)
        first_lost = starts.first_lost(data, bounds, end, self.envelope, self._limit)
        is_lost = is_lost or first_lost < len(bounds)
        bounds = bounds[: first_lost + 1]
        return bounds, bounds[-1] + self.envelope.length_bytes if is_lost else -1

    def stream_ends(self) -> Array:
        """By side and row: where the last frame of the side up to there ends; 0 = there is none."""
        sides = self.positions.sides
        ends = self.positions.ends + self.shifts[sides]
        own = [np.where(sides == number, ends, 0) for number in range(len(SIDES))]
        return np.maximum.accumulate(np.array(own), axis=1)

    def held_back(self, coverage: Coverage) -> Array:
        """By piece: it came with the packet that showed a hole, or late, may have been answered before it came, or may
        know the rest of a frame that is begun."""
        found = self._knows_frame(coverage)
        client = SIDES.index(Direction.CLIENT)
        if late := coverage.late(Direction.CLIENT):
            begin = coverage.taken[Direction.CLIENT]
            sides, ends = self.positions.sides, self.positions.ends
            of_client = ends[sides == client] + self.shifts[client]
            for number in np.flatnonzero(self._owners == client).tolist():
                # From the begin of the first frame that ends in the piece.
                end = int(self._ends[number] + self.shifts[client])
                found[number] |= is_partly_within(late, begin, end)
                ended = int(np.searchsorted(of_client, end, side="right"))
                begin = int(of_client[ended - 1]) if ended else begin
        unasked_end, found_at = coverage.unasked
        if unasked_end:
            for number in np.flatnonzero(self._owners == client).tolist():
                size = len(self._feed.pieces[self._first + number].data)
                begin = int(self._ends[number] + self.shifts[client]) - size
                is_early = coverage.peer_received(Direction.CLIENT, begin + 1) < unasked_end
                found[number] |= is_early
                if not is_early:
                    break
        for place in (coverage.gap, found_at if unasked_end else None):
            if place is not None:
                for number in np.flatnonzero(self.arrived_at_ns == place.arrived_at_ns).tolist():
                    found[number] |= self.place_of(number) == place
        return found

    def here(self, row: int) -> dict[Direction, int]:
        """How far each side's bytes were here when a frame was complete."""
        return dict(zip(SIDES, self._here[:, int(self.positions.pieces[row])].tolist(), strict=True))

    def _knows_frame(self, coverage: Coverage) -> Array:
        """By piece: its sender had received more of the other side than is here, and that is within a frame."""
        found = np.zeros(len(self.arrived_at_ns), np.bool_)
        for other, bounds in enumerate(self._bounds):
            here = self._here[other] - self.shifts[other]
            within = bounds[np.maximum(np.searchsorted(bounds, here, "right") - 1, 0)] != here
            for number in np.flatnonzero(within & (self._owners != other)).tolist():
                own = 1 - other
                known = coverage.peer_received(SIDES[own], int(self._ends[number] + self.shifts[own]))
                found[number] = known > self._here[other, number]
        return found

    def taken(self, read: dict[int, Outcome]) -> Taken:
        """What `read` doesn't have is plain."""
        is_plain = np.ones(len(self), np.bool_)
        is_plain[list(read)] = False
        before = np.cumsum(is_plain)
        others = [(int(before[row]), outcome) for row, outcome in read.items()]
        return Taken(self._batch(np.flatnonzero(is_plain)), others)

    def _batch(self, plain: Array) -> pa.RecordBatch:
        """PLAIN for these rows."""
        rows, all_arrays = self.rows, self.rows.arrays
        arrays = all_arrays.only(plain)
        at = pa.array(rows.name_at[plain])
        requesters = pa.array([group.requester for group in rows.groups], pa.string())
        pulled = arrays.smalls[loops.KIND] == loops.PULL_RESPONSE
        columns = [
            *self.columns(plain),
            *frame_columns(rows.data, arrays, self.envelope),
            pa.array(rows.stream_addresses, pa.string()).take(at),
            requesters.take(pa.array(rows.group_of[plain])),
            pa.array(rows.consumers, pa.string()).take(pa.array(rows.name_at[plain], mask=~pulled)),
            pa.array(rows.missed[plain]),
            *self._answers(plain, arrays.smalls[loops.KIND]),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=PLAIN)

    def _answers(self, plain: Array, kinds: Array) -> list[pa.Array]:
        """The requests that these rows answer."""
        rows = self.rows
        words, numbers, smalls = rows.arrays
        answered = rows.answered[plain]
        answers = answered != judge_loops.NO_REQUEST
        is_push, is_pull = answers & (kinds == loops.PUSH_RESPONSE), answers & (kinds == loops.PULL_RESPONSE)
        # Requests of this run by their rows, then those from before.
        source = np.where(answered >= 0, answered, len(rows) + judge_loops.NO_REQUEST - 1 - answered)
        source[~answers] = 0
        old = _Carried.of(rows.carried)
        arrived = rows.arrived_at_ns[numbers[loops.PIECE]]
        starts = numbers[loops.BEGIN] + self.shifts[smalls[loops.SIDE]]

        def of(here: Array, before: Array) -> Array:
            return np.concatenate([here, before])[source] if len(before) else here[source]

        pieces = self._feed.pieces[self._first : self._first + len(rows.arrived_at_ns)]
        places = [*(piece.place for piece in pieces), *(request.where.place for request in rows.carried)]
        captures = pa.array([place.capture_id for place in places], pa.binary())
        placed = of(numbers[loops.PIECE], np.arange(len(pieces), len(places), dtype=np.uint32))
        data = rows.data
        held = is_push & of(rows.held, old.held)
        begins = of(numbers[loops.DATA], (old.begins + len(data)).astype(np.uint32))
        sizes = of(numbers[loops.DATA_BYTES], old.sizes)
        if len(old.data):
            data = frozen(np.concatenate([data, old.data]))
        return [
            pa.array(answers),
            pa.array(of(arrived, old.arrived), mask=~answers),
            pa.array(of(starts, old.starts), mask=~answers),
            captures.take(pa.array(placed, mask=~answers)),
            unsigned(of(words[loops.INDEX], old.indexes), is_pull),
            unsigned(of(words[loops.LIMIT], old.limits), is_pull),
            parts(data, begins, np.where(held, sizes, 0), pa.binary(), held),
            pa.array(sizes.astype(np.int64), mask=~is_push),
            *(pa.array(of(np.zeros(len(rows), np.bool_), known), mask=~answers) for known in (old.unsure, old.late)),
        ]


def _taken(taken: Mapping[Direction, int], ends: Array, row: int) -> dict[Direction, int]:
    """How far each side's bytes are taken after the rows before `row`."""
    if not row:
        return dict(taken)
    return {side: max(taken[side], int(ends[number, row - 1])) for number, side in enumerate(SIDES)}


class _Carried(NamedTuple):
    """Requests from before as arrays."""

    arrived: Array
    starts: Array
    indexes: Array
    limits: Array
    unsure: Array
    late: Array
    held: Array
    begins: Array
    sizes: Array
    #: The data of all of them.
    data: Array

    @classmethod
    def of(cls, requests: Sequence[Request]) -> _Carried:
        data = [request.data or b"" for request in requests]
        held = np.array([len(one) for one in data], np.int64)
        return cls(
            np.array([request.where.place.arrived_at_ns for request in requests], np.int64),
            np.array([request.where.byte_start for request in requests], np.int64),
            np.array([request.index or 0 for request in requests], np.uint64),
            np.array([request.limit or 0 for request in requests], np.uint64),
            np.array([request.state is RequestState.UNSURE or request.shares_id for request in requests], np.bool_),
            np.array([request.is_late for request in requests], np.bool_),
            np.array([request.data is not None for request in requests], np.bool_),
            np.cumsum(held) - held,
            np.array([request.data_bytes or 0 for request in requests], np.uint32),
            np.frombuffer(b"".join(data), np.uint8),
        )
