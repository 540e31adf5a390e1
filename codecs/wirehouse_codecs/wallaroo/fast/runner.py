"""The bytes of a connection become judged rows: by the fast path for most frames, else by the reference path.

The reference path is `reader.Reader` and `session.Session`. The fast path has compiled loops: once the dialect is
known, columns.py cuts and reads all frames of a run, and judge.py judges those that are plain. All other frames take
the reference path, and so do all bytes while the dialect isn't known, while a start is looked for, and after frames
can't be cut any more. Both paths give the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from wirehouse_codecs.compiled.arrow import validity
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.framing import SIDES, CutFrames, Feed, Unfinished
from wirehouse_codecs.tcp.reassembly import Data
from wirehouse_codecs.wallaroo.dialects import Dialect
from wirehouse_codecs.wallaroo.fast import loops
from wirehouse_codecs.wallaroo.fast.columns import (
    FRAME_FIELDS,
    NAME_TYPE,
    SPAN_FIELDS,
    Arrays,
    cut,
    frame_columns,
    words_column,
)
from wirehouse_codecs.wallaroo.fast.judge import Plain, Rows
from wirehouse_codecs.wallaroo.options import WallarooOptions
from wirehouse_codecs.wallaroo.session.outcome import Kind, Outcome, Where
from wirehouse_codecs.wallaroo.session.session import Session
from wirehouse_codecs.wallaroo.wire.messages import LENGTH_BYTES, Framed
from wirehouse_codecs.wallaroo.wire.reader import Reader
from wirehouse_codecs.wallaroo.wire.reader_state import Received

Array = np.ndarray[Any, Any]

#: The columns that `Connection.run` gives, with one row for each frame.
ROWS: pa.Schema = pa.schema(
    [
        pa.field("direction", NAME_TYPE),
        # The number of the piece that completed it; null if that was in an earlier run.
        pa.field("piece", pa.int64()),
        *SPAN_FIELDS,
        # `kind` is Outcome.kind; null where there is no outcome.
        *FRAME_FIELDS,
        # Whether the compiled loop judged it: without a finding, and not ignored. If not, `Run.read` has the row.
        pa.field("plain", pa.bool_()),
        # The rest has the values of Outcome. The connector's credits after the frame; null while they are unknown.
        pa.field("balance", pa.int64()),
        pa.field("granted", pa.uint32()),
        pa.field("spent", pa.uint8()),
        # The stream to which the session attributes it, also if the frame names none.
        pa.field("attributed_stream_id", pa.uint64()),
        pa.field("ignored", pa.string()),
    ]
)

_KINDS: Final = tuple(Kind)
_KIND_CODE: Mapping[Kind, int] = {kind: code for code, kind in enumerate(_KINDS)}
#: Number of frames that the session takes after a frame that isn't plain, before the loop is tried again. It doubles
#: each time that the loop wasn't faster.
_FEWEST_READ: Final = 4
_MOST_READ: Final = 1024
#: Number of bytes that are cut and read before they are judged: the numbers of their frames fit the processor's cache.
_BYTES_AT_ONCE: Final = 1 << 21


class Read(NamedTuple):
    """A frame, or bytes that are none, from the reference path. No outcome: no session can judge it."""

    received: Received
    outcome: Outcome | None


class Run(NamedTuple):
    """The rows of a run."""

    #: Rows with the columns ROWS, in arrival order.
    rows: pa.Table
    #: The frames that aren't plain, by row. They may have findings, and fields that have no column.
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
        self.reader.knows_stream = self._knows_stream
        self._options = options
        self._new_session = new_session
        self._plain = None if session is None else Plain(session, options)

    def _knows_stream(self, stream_id: int) -> bool:
        return self.session is not None and stream_id in self.session.memory.streams

    @property
    def session(self) -> Session | None:
        """The session; None = no frame was judged yet, or none can be."""
        return None if self._plain is None else self._plain.session

    def run(self, pieces: Sequence[Data]) -> Run:
        """Take `pieces` of both directions, in arrival order. ValueError: 2 GiB or more."""
        feed, taken = Feed(pieces), _Taken()
        if self._plain is not None:
            self._plain.settle()
        while not feed.is_taken:
            if self._settled(feed):
                self._receive_compiled(feed, taken)
            else:
                self._receive(feed, taken)
        return taken.run()

    def receive(self, direction: Direction, data: bytes, place: Place) -> list[Read]:
        """Take a piece by the reference path: for few frames `run` would cost more."""
        return [self._read(one) for one in self.reader.receive(direction, data, place)]

    def hole(self, direction: Direction, missing: int, place: Place) -> list[Read]:
        """Take a hole: `missing` bytes of `direction` never came."""
        return [self._read(one) for one in self.reader.hole(direction, missing, place)]

    def finish(self, place: Place, *, closed: bool = True) -> list[Read]:
        """No more bytes come: return the unfinished ones. The session still has to be ended."""
        return [self._read(one) for one in self.reader.finish(place, closed=closed)]

    def _settled(self, feed: Feed) -> bool:
        """Whether the dialect is known, and frames can be cut of each side that has bytes left."""
        if self.reader.dialect is None:
            return False
        return all(self.reader.framer(side) or not feed.left(side) for side in SIDES)

    def _receive(self, feed: Feed, taken: _Taken) -> None:
        """Take a piece, or the rest of it, by the reference path."""
        number = feed.piece
        direction, data, place = feed.take()
        taken.known[place] = number
        taken.add_read(self.receive(direction, data, place))

    def _read(self, received: Received) -> Read:
        return Read(received, None if self.reader.dialect is None else self._judge().session.receive(received))

    def _judge(self) -> Plain:
        if self._plain is None:
            assert self.reader.dialect is not None
            self._plain = Plain(self._new_session(self.reader.dialect), self._options)
        return self._plain

    def _receive_compiled(self, feed: Feed, taken: _Taken) -> None:
        """Take the next pieces. The rest of a piece takes the reference path once frames can't be cut any more."""
        dialect = self.reader.dialect
        assert dialect is not None
        frames = _Frames(self.reader, feed, dialect)
        taken.add_rows(frames, self._judge_frames(frames), dialect)
        for side, rest in zip(SIDES, frames.leave_rest(), strict=True):
            framer = self.reader.framer(side)
            if framer is not None:
                framer.go_on(*rest)
        if frames.is_lost:
            self._receive(feed, taken)

    def _judge_frames(self, frames: _Frames) -> dict[int, Read]:
        """Judge all frames: plain ones in the loop, and each other one, with some frames after it, by the session."""
        plain, rows = self._judge(), frames.rows
        read: dict[int, Read] = {}
        row, left_to_session = 0, _FEWEST_READ
        while row < len(rows):
            begin = row
            if plain.possible and len(rows) - row >= plain.cost:
                row = plain.advance(rows, row)
            left_to_session = _FEWEST_READ if row - begin >= plain.cost else min(2 * left_to_session, _MOST_READ)
            until = min(row + left_to_session, len(rows))
            for number in range(row, until):
                read[number] = self._read(frames.received(self.reader, number))
                frames.note(number, read[number].outcome)
            row = until
        return read


class _Frames(CutFrames):
    """The frames of a feed's next pieces."""

    def __init__(self, reader: Reader, feed: Feed, dialect: Dialect) -> None:
        framers = [reader.framer(direction) for direction in SIDES]

        def cut_side(data: Array, begin: int, end: int, side: int) -> tuple[Array, int]:
            framer = framers[side]
            bounds, is_lost = cut(data, begin, end, dialect, 0 if framer is None else framer.limit)
            return bounds, bounds[-1] + LENGTH_BYTES if is_lost else -1

        unfinished = [
            Unfinished() if framer is None else Unfinished(framer.byte_end - len(framer.pending), framer.pending)
            for framer in framers
        ]
        super().__init__(feed, unfinished, cut_side, _BYTES_AT_ONCE)
        arrays = Arrays.of(len(self))
        placed = arrays.numbers[loops.BEGIN], arrays.numbers[loops.END], arrays.numbers[loops.PIECE]
        for column, positions in zip((*placed, arrays.smalls[loops.SIDE]), self.positions, strict=True):
            column[:] = positions
        arrays.read(self.data, dialect)
        balances = np.zeros(len(self), np.int64)
        self.rows = Rows(self.data, self.arrived_at_ns, *arrays, balances, lambda row: Where(*self.where(row)))

    def received(self, reader: Reader, row: int) -> Received:
        """A frame in the form in which `reader` gives it."""
        direction, place, byte_start, byte_end = self.where(row)
        return reader.decode(direction, place, Framed(byte_start, byte_end, self.bytes_of(row)[LENGTH_BYTES:]))

    def note(self, row: int, outcome: Outcome | None) -> None:
        """Note the outcome of a frame that the session judged."""
        if outcome is None:
            return
        rows = self.rows
        rows.balances[row], rows.numbers[loops.GRANTED_BY, row] = outcome.credits or 0, outcome.granted
        rows.smalls[loops.KIND, row], rows.smalls[loops.SPENT_BY, row] = _KIND_CODE[outcome.kind], outcome.spent
        rows.smalls[loops.BALANCED_BY, row] = outcome.credits is not None
        if outcome.stream_id is not None:
            rows.words[loops.STREAM_ID, row], rows.smalls[loops.ATTRIBUTED, row] = outcome.stream_id, 1

    def batch(self, dialect: Dialect, read: Mapping[int, Read]) -> pa.RecordBatch:
        """The rows, with the columns ROWS."""
        _, _, words, numbers, smalls, balances, _ = self.rows
        frames = len(self.rows)
        plain = np.ones(frames, np.bool_)
        plain[list(read)] = False
        arrays = Arrays(words, numbers, smalls)
        columns = [
            *self.columns(slice(None)),
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
    """Collects the rows of a run."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._read: dict[int, Read] = {}
        self._rows = 0
        #: Pieces that the reader took, by their place: it may hold frames back.
        self.known: dict[Place, int] = {}

    def add_rows(self, frames: _Frames, read: Mapping[int, Read], dialect: Dialect) -> None:
        """Add frames that were cut, and those among them that took the reference path."""
        self._read.update((self._rows + row, one) for row, one in read.items())
        self._rows += len(frames.rows)
        self._batches.append(frames.batch(dialect, read))

    def add_read(self, read: list[Read]) -> None:
        """Add frames from the reference path."""
        if not read:
            return
        self._read.update((self._rows + row, one) for row, one in enumerate(read))
        self._rows += len(read)
        self._batches.append(pa.RecordBatch.from_pylist([_row_of(one, self.known) for one in read], schema=ROWS))

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
