"""The bytes of a connection to judged rows: `reader.Reader` and `session.Session` with compiled loops for most frames.

Once the dialect is known, all frames of a run are cut and read by columns.py, and plain.py judges those that are
plain. Any other frame goes through the readable twins, and so do all bytes while the dialect isn't known, while a
start is looked for, and after a place was lost. Both ways give the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from wirehouse_codecs.column_parts import frozen, names, validity
from wirehouse_codecs.interleaved import in_order
from wirehouse_codecs.rules import Place
from wirehouse_codecs.tcp import Direction
from wirehouse_codecs.wallaroo import loops
from wirehouse_codecs.wallaroo.columns import (
    FRAME_FIELDS,
    NAME_TYPE,
    SPAN_FIELDS,
    Arrays,
    cut,
    frame_columns,
    words_column,
)
from wirehouse_codecs.wallaroo.messages import LENGTH_BYTES, Dialect, Framed
from wirehouse_codecs.wallaroo.options import WallarooOptions
from wirehouse_codecs.wallaroo.plain import Plain, Rows
from wirehouse_codecs.wallaroo.reader import Reader, Received
from wirehouse_codecs.wallaroo.session import Kind, Outcome, Session, Where

Array = np.ndarray[Any, Any]

#: What `Connection.run` gives, a row a frame.
ROWS: pa.Schema = pa.schema(
    [
        pa.field("direction", NAME_TYPE),
        # The number of the piece that completed it; null if that was in an earlier run.
        pa.field("piece", pa.int64()),
        *SPAN_FIELDS,
        # `kind` is Outcome.kind; null where there is no outcome.
        *FRAME_FIELDS,
        # Judged by the compiled loop, so that nothing was found or ignored; if not, `Run.read` has the row.
        pa.field("plain", pa.bool_()),
        # The rest as Outcome has it. The connector's credits after the frame; null while they are unknown.
        pa.field("balance", pa.int64()),
        pa.field("granted", pa.uint32()),
        pa.field("spent", pa.uint8()),
        # The stream that the session takes it for, also where the text names none.
        pa.field("attributed_stream_id", pa.uint64()),
        pa.field("ignored", pa.string()),
    ]
)

_SIDES: Final = tuple(Direction)
_KINDS: Final = tuple(Kind)
_KIND_CODE: Mapping[Kind, int] = {kind: code for code, kind in enumerate(_KINDS)}
#: After a frame that isn't plain so many are left to the session before the loop is tried again: twice as many each
#: time that it didn't pay.
_FEWEST_READ: Final = 4
_MOST_READ: Final = 1024
#: So much is cut and read before it is judged: what stands about them fits the processor's cache.
_BYTES_AT_ONCE: Final = 1 << 21


class Pieces(NamedTuple):
    """Delivered bytes in arrival order: each piece is what follows of its side."""

    #: Who sent it, as a position in Direction: uint8.
    sides: Array
    #: Where it ends in the data of its side: int64.
    ends: Array
    #: int64.
    arrived_at_ns: Array
    #: The place of a piece by its number.
    place_of: Callable[[int], Place]

    def __len__(self) -> int:
        return len(self.ends)


class Read(NamedTuple):
    """A frame, or bytes that are none, that the readable twins took. No outcome: no session can judge it."""

    received: Received
    outcome: Outcome | None


class Run(NamedTuple):
    """What `Connection.run` gives."""

    #: ROWS, in arrival order.
    rows: pa.Table
    #: By row: those that aren't plain. They may have findings, and fields that have no column.
    read: Mapping[int, Read]


class Connection:
    """Reader and session of one connection, with compiled loops for most of its frames.

    `new_session` is asked for the session when a first frame is to be judged, unless `session` is carried state. Reader
    and session may be used beside: to advance the time, to end, and for their snapshots.
    """

    def __init__(
        self,
        reader: Reader,
        options: WallarooOptions,
        new_session: Callable[[Dialect], Session],
        session: Session | None = None,
    ) -> None:
        self.reader = reader
        self._options = options
        self._new_session = new_session
        self._plain = None if session is None else Plain(session, options)

    @property
    def session(self) -> Session | None:
        """The session; None = no frame was judged yet, or none can be."""
        return None if self._plain is None else self._plain.session

    def run(self, data: Mapping[Direction, bytes | Array], pieces: Pieces) -> Run:
        """Take `pieces` of `data`, which holds what was delivered of each side. ValueError: 2 GiB or more."""
        feed, taken = _Feed(data, pieces), _Taken()
        if self._plain is not None:
            self._plain.settle()
        while feed.piece < len(pieces):
            if self._settled(feed):
                self._receive_compiled(feed, taken)
            else:
                self._receive(feed, taken)
        return taken.run()

    def receive(self, direction: Direction, data: bytes, place: Place) -> list[Read]:
        """Take a piece by the readable twins: of a few frames, `run` would cost more."""
        return [self._read(one) for one in self.reader.receive(direction, data, place)]

    def hole(self, direction: Direction, missing: int, place: Place) -> list[Read]:
        """`missing` bytes of `direction` never came."""
        return [self._read(one) for one in self.reader.hole(direction, missing, place)]

    def finish(self, place: Place, *, closed: bool = True) -> list[Read]:
        """No more bytes come: what is left unfinished. The session goes on, to be ended."""
        return [self._read(one) for one in self.reader.finish(place, closed=closed)]

    def _settled(self, feed: _Feed) -> bool:
        """The dialect is known, and frames can be cut of each side that says more."""
        if self.reader.dialect is None:
            return False
        return all(self.reader.framer(direction) or not feed.left(side) for side, direction in enumerate(_SIDES))

    def _receive(self, feed: _Feed, taken: _Taken) -> None:
        """Take a piece, or what is left of it, by the readable twins."""
        taken.add_read(self.receive(*feed.take()), feed.known)

    def _read(self, received: Received) -> Read:
        return Read(received, None if self.reader.dialect is None else self._judge().session.receive(received))

    def _judge(self) -> Plain:
        if self._plain is None:
            assert self.reader.dialect is not None
            self._plain = Plain(self._new_session(self.reader.dialect), self._options)
        return self._plain

    def _receive_compiled(self, feed: _Feed, taken: _Taken) -> None:
        """Take the next pieces. The one in which a side loses its place goes the readable way from there on."""
        dialect = self.reader.dialect
        assert dialect is not None
        frames = _CutFrames(self.reader, feed, dialect)
        taken.add_rows(frames, self._judge_frames(frames), dialect)
        frames.leave_rest(self.reader, feed)
        if frames.lost:
            self._receive(feed, taken)

    def _judge_frames(self, frames: _CutFrames) -> dict[int, Read]:
        """Judge all frames: plain ones in a loop, and of the others each with some more by the session."""
        plain, rows = self._judge(), frames.rows
        read: dict[int, Read] = {}
        row, patience = 0, _FEWEST_READ
        while row < len(rows):
            begin = row
            if plain.possible and len(rows) - row >= plain.cost:
                row = plain.advance(rows, row)
            patience = _FEWEST_READ if row - begin >= plain.cost else min(2 * patience, _MOST_READ)
            until = min(row + patience, len(rows))
            for number in range(row, until):
                read[number] = self._read(frames.received(self.reader, number))
                frames.note(number, read[number].outcome)
            row = until
        return read


class _Feed:
    """The bytes of a run, and what of them was taken."""

    def __init__(self, data: Mapping[Direction, bytes | Array], pieces: Pieces) -> None:
        self.data = [frozen(np.frombuffer(data.get(side, b""), np.uint8)) for side in _SIDES]
        self.pieces = pieces
        #: The next piece, and how much was taken of each side.
        self.piece = 0
        self.at = [0, 0]
        sizes = np.zeros(len(pieces), np.int64)
        for side in range(len(_SIDES)):
            own = pieces.sides == side
            sizes[own] = np.diff(pieces.ends[own], prepend=0)
        self._totals = np.cumsum(sizes)
        #: The pieces that the reader took, by their place: it may hold frames back.
        self.known: dict[Place, int] = {}

    def left(self, side: int) -> int:
        return len(self.data[side]) - self.at[side]

    def next_pieces(self) -> slice:
        """The next pieces, of about _BYTES_AT_ONCE."""
        before = int(self._totals[self.piece - 1]) if self.piece else 0
        until = int(np.searchsorted(self._totals, before + _BYTES_AT_ONCE, side="right"))
        return slice(self.piece, max(until, self.piece + 1))

    def take(self) -> tuple[Direction, bytes, Place]:
        """What is left of the next piece."""
        side, end = int(self.pieces.sides[self.piece]), int(self.pieces.ends[self.piece])
        data = self.data[side][self.at[side] : end].tobytes()
        place = self.pieces.place_of(self.piece)
        self.known[place] = self.piece
        self.at[side], self.piece = end, self.piece + 1
        return _SIDES[side], data, place


class _Side(NamedTuple):
    """One side in the data of both: its unfinished frame from `begin` on, what is new from `received` to `end`."""

    begin: int
    received: int
    end: int
    #: What to add to a position for one in the side's own stream, and for one in the feed.
    to_stream: int
    to_feed: int


class _CutFrames:
    """The frames of a feed's next pieces, in arrival order; both sides stand one behind the other in `rows.data`."""

    def __init__(self, reader: Reader, feed: _Feed, dialect: Dialect) -> None:
        self._first, self._place_of = feed.piece, feed.pieces.place_of
        pieces = feed.next_pieces()
        self._owners, ends = feed.pieces.sides[pieces], feed.pieces.ends[pieces]
        parts: list[Array] = []
        self._sides: list[_Side] = []
        begin = 0
        framers = [reader.framer(direction) for direction in _SIDES]
        for number, framer in enumerate(framers):
            pending = b"" if framer is None else framer.pending
            at, own = feed.at[number], ends[self._owners == number]
            parts += [np.frombuffer(pending, np.uint8), feed.data[number][at : own[-1] if len(own) else at]]
            received = begin + len(pending)
            stream_at = 0 if framer is None else framer.byte_end
            self._sides.append(_Side(begin, received, received + len(parts[-1]), stream_at - received, at - received))
            begin = self._sides[-1].end
        data = frozen(np.concatenate(parts))
        #: Where each piece ends in the data of both.
        self._ends = ends - np.array([side.to_feed for side in self._sides])[self._owners]
        #: Where frames begin and end, and where a length ends that no frame has, or -1.
        self._bounds: list[Array] = []
        self._lost = np.full(len(_SIDES), -1, np.int64)
        for number, (framer, side) in enumerate(zip(framers, self._sides, strict=True)):
            bounds, is_lost = cut(data, side.begin, side.end, dialect, 0 if framer is None else framer.limit)
            self._bounds.append(bounds)
            self._lost[number] = bounds[-1] + LENGTH_BYTES if is_lost else -1
        #: How many frames of each side were completed.
        self._taken = np.zeros(len(_SIDES), np.int64)
        self._stop, arrays = self._put_in_order()
        arrays.read(data, dialect)
        balances = np.zeros(arrays.numbers.shape[1], np.int64)
        self.rows = Rows(data, feed.pieces.arrived_at_ns[pieces], *arrays, balances, self.where)

    @property
    def lost(self) -> bool:
        """A side loses its place in the next piece."""
        return self._stop < len(self._ends)

    def _put_in_order(self) -> tuple[int, Arrays]:
        arrays = Arrays.of(sum(map(len, self._bounds)) - len(_SIDES))
        client, server = self._bounds
        numbers, smalls = arrays.numbers, arrays.smalls
        placed = (numbers[loops.BEGIN], numbers[loops.END], numbers[loops.PIECE], smalls[loops.SIDE])
        stop = in_order(self._owners, self._ends, client, server, self._lost, *placed, self._taken)
        completed = int(self._taken.sum())
        if completed < arrays.numbers.shape[1]:
            arrays = Arrays(*(np.ascontiguousarray(column[:, :completed]) for column in arrays))
        return int(stop), arrays

    def _span(self, row: int) -> tuple[int, int]:
        begin, end = self.rows.numbers[loops.BEGIN : loops.END + 1, row].tolist()
        return begin, end

    def where(self, row: int) -> Where:
        """Where a frame stands."""
        side = int(self.rows.smalls[loops.SIDE, row])
        begin, end = self._span(row)
        shift = self._sides[side].to_stream
        place = self._place_of(self._first + int(self.rows.numbers[loops.PIECE, row]))
        return Where(_SIDES[side], place, begin + shift, end + shift)

    def received(self, reader: Reader, row: int) -> Received:
        """A frame as `reader` gives it."""
        where, (begin, end) = self.where(row), self._span(row)
        body = self.rows.data[begin + LENGTH_BYTES : end].tobytes()
        return reader.decode(where.direction, where.place, Framed(where.byte_start, where.byte_end, body))

    def note(self, row: int, outcome: Outcome | None) -> None:
        """What the session said of a frame."""
        if outcome is None:
            return
        rows = self.rows
        rows.balances[row], rows.numbers[loops.GRANTED_BY, row] = outcome.credits or 0, outcome.granted
        rows.smalls[loops.KIND, row], rows.smalls[loops.SPENT_BY, row] = _KIND_CODE[outcome.kind], outcome.spent
        rows.smalls[loops.BALANCED_BY, row] = outcome.credits is not None
        if outcome.stream_id is not None:
            rows.words[loops.STREAM_ID, row], rows.smalls[loops.ATTRIBUTED, row] = outcome.stream_id, 1

    def leave_rest(self, reader: Reader, feed: _Feed) -> None:
        """Give reader and feed what wasn't taken: of each side the unfinished frame, and the pieces that are left."""
        for number, (direction, side) in enumerate(zip(_SIDES, self._sides, strict=True)):
            own = self._ends[: self._stop][self._owners[: self._stop] == number]
            consumed = int(self._bounds[number][self._taken[number]])
            received = max(consumed, int(own[-1]) if len(own) else side.received)
            feed.at[number] = received + side.to_feed
            framer = reader.framer(direction)
            if framer is not None:
                framer.go_on(consumed + side.to_stream, self.rows.data[consumed:received].tobytes())
        feed.piece = self._first + self._stop

    def batch(self, dialect: Dialect, read: Mapping[int, Read]) -> pa.RecordBatch:
        """ROWS."""
        _, _, words, numbers, smalls, balances, _ = self.rows
        frames = len(self.rows)
        shifts = np.array([side.to_stream for side in self._sides])[smalls[loops.SIDE]]
        plain = np.ones(frames, np.bool_)
        plain[list(read)] = False
        arrays = Arrays(words, numbers, smalls)
        columns = [
            names(smalls[loops.SIDE], _SIDES, np.ones(frames, np.bool_)),
            pa.array(numbers[loops.PIECE] + np.int64(self._first)),
            pa.array(numbers[loops.BEGIN] + shifts),
            pa.array(numbers[loops.END] + shifts),
            *frame_columns(self.rows.data, arrays, dialect, _KINDS),
            pa.array(plain),
            pa.Array.from_buffers(pa.int64(), frames, [validity(smalls[loops.BALANCED_BY]), pa.py_buffer(balances)]),
            pa.array(numbers[loops.GRANTED_BY]),
            pa.array(smalls[loops.SPENT_BY].astype(np.uint8)),
            words_column(words[loops.STREAM_ID], smalls[loops.ATTRIBUTED]),
            _ignored(frames, read),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=ROWS)


def _ignored(frames: int, read: Mapping[int, Read]) -> pa.Array:
    reasons = {row: one.outcome.ignored for row, one in read.items() if one.outcome is not None and one.outcome.ignored}
    kinds = sorted(set(reasons.values()))
    codes = np.full(frames, -1, np.int32)
    codes[list(reasons)] = [kinds.index(reason) for reason in reasons.values()]
    return pa.array(kinds, pa.string()).take(pa.array(codes, mask=codes < 0))


class _Taken:
    """The rows of a run as they come."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._read: dict[int, Read] = {}
        self._rows = 0

    def add_rows(self, frames: _CutFrames, read: Mapping[int, Read], dialect: Dialect) -> None:
        """Frames that were cut, and those among them that were read."""
        self._read.update((self._rows + row, one) for row, one in read.items())
        self._rows += len(frames.rows)
        self._batches.append(frames.batch(dialect, read))

    def add_read(self, read: list[Read], known: Mapping[Place, int]) -> None:
        """Frames from the readable reader; `known` are the numbers of pieces."""
        if not read:
            return
        self._read.update((self._rows + row, one) for row, one in enumerate(read))
        self._rows += len(read)
        self._batches.append(pa.RecordBatch.from_pylist([_row_of(one, known) for one in read], schema=ROWS))

    def run(self) -> Run:
        return Run(pa.Table.from_batches(self._batches, ROWS), self._read)


def _row_of(read: Read, known: Mapping[Place, int]) -> dict[str, Any]:
    received, outcome = read
    row = {
        "direction": received.direction,
        "piece": known.get(received.place),
        "byte_start": received.byte_start,
        "byte_end": received.byte_end,
        "regular": False,
        "plain": False,
    }
    if outcome is None:
        return row
    return row | {
        "kind": outcome.kind,
        "balance": outcome.credits,
        "granted": outcome.granted,
        "spent": outcome.spent,
        "attributed_stream_id": outcome.stream_id,
        "ignored": outcome.ignored,
    }
