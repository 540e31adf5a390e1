"""Both directions of a connection at once: the bytes of a run, and its frames in the order that pieces complete them.

A protocol's fast path takes a run of delivered pieces as a `Feed`, cuts it with `CutFrames`, reads and judges the
frames by their positions in `CutFrames.data`, and hands back what it did not take.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from wirehouse_codecs.compiled.arrow import frozen, names
from wirehouse_codecs.compiled.jit import compiled
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.events import Data

Array = np.ndarray[Any, Any]

#: A direction's number is its position here.
SIDES: Final = tuple(Direction)


class Feed:
    """The bytes of a run, and how far they were taken. `pieces` are in arrival order. ValueError: 2 GiB or more."""

    def __init__(self, pieces: Sequence[Data]) -> None:
        self.pieces = pieces
        chunks = [piece.data for piece in pieces]
        #: By piece: the number of its side, when it arrived, and where it ends in the data of its side.
        self.owners = np.array([SIDES.index(piece.direction) for piece in pieces], np.uint8)
        self.arrived_at_ns = np.array([piece.place.arrived_at_ns for piece in pieces], np.int64)
        self.ends = np.zeros(len(pieces), np.int64)
        #: Delivered bytes, by side.
        self.data: list[Array] = []
        sizes = np.array(list(map(len, chunks)), np.int64)
        for number in range(len(SIDES)):
            own = self.owners == number
            self.data.append(frozen(np.frombuffer(b"".join(compress(chunks, own.tolist())), np.uint8)))
            self.ends[own] = np.cumsum(sizes[own])
        self._totals = np.cumsum(sizes)
        #: The next piece, and the number of bytes that were taken of each side.
        self.piece = 0
        self.at = [0] * len(SIDES)

    @property
    def is_taken(self) -> bool:
        """Whether nothing is left."""
        return self.piece == len(self.pieces)

    def left(self, direction: Direction) -> int:
        """Number of bytes of `direction` that are left."""
        side = SIDES.index(direction)
        return len(self.data[side]) - self.at[side]

    def next_pieces(self, most_bytes: int | None = None) -> slice:
        """The pieces that are left, or the next of them with about `most_bytes`."""
        if most_bytes is None:
            return slice(self.piece, len(self.pieces))
        before = int(self._totals[self.piece - 1]) if self.piece else 0
        until = int(np.searchsorted(self._totals, before + most_bytes, side="right"))
        return slice(self.piece, max(until, self.piece + 1))

    def take(self) -> tuple[Direction, bytes, Place]:
        """Take the rest of the next piece."""
        piece, end = self.pieces[self.piece], int(self.ends[self.piece])
        side = int(self.owners[self.piece])
        data = self.data[side][self.at[side] : end].tobytes()
        self.at[side], self.piece = end, self.piece + 1
        return piece.direction, data, piece.place


class Unfinished(NamedTuple):
    """The frame of a side that isn't complete yet, as a reader holds it."""

    #: Where in the side's stream it begins, and its bytes that are here.
    at: int = 0
    pending: bytes = b""


class _Side(NamedTuple):
    """One side in the data of both: its unfinished frame from `begin` on, what is new from `received` to `end`."""

    begin: int
    received: int
    end: int
    #: Numbers to add to a position: to get the one in the side's own stream, and the one in the feed.
    to_stream: int
    to_feed: int


class Positions(NamedTuple):
    """Frames in arrival order: where each begins and ends in the data of both, which piece completes it, its side."""

    #: uint32; pieces count from the first that was cut.
    begins: Array
    ends: Array
    pieces: Array
    #: uint16.
    sides: Array


#: Finds frames in `data` from `begin` to `end`, which is of the side with this number. Returns where frames begin and
#: end (int64, one more than frames), and where the bytes end that show that no frame follows there; -1 = none do.
Cut = Callable[[Array, int, int, int], tuple[Array, int]]


class CutFrames:
    """The frames that the next pieces of a feed complete, in arrival order; in `data` one side stands behind the other.

    `unfinished` is what the reader holds of each side. About `most_bytes` of the feed are cut, or all that are left.
    Pieces are taken up to the one in which a side has bytes that begin no frame.
    """

    def __init__(self, feed: Feed, unfinished: Sequence[Unfinished], cut: Cut, most_bytes: int | None = None) -> None:
        self._feed, self._first = feed, feed.piece
        pieces = feed.next_pieces(most_bytes)
        #: By piece that was cut.
        self.arrived_at_ns = feed.arrived_at_ns[pieces]
        self._owners, ends = feed.owners[pieces], feed.ends[pieces]
        parts: list[Array] = []
        self._sides: list[_Side] = []
        begin = 0
        for number, (stream_at, pending) in enumerate(unfinished):
            at, own = feed.at[number], ends[self._owners == number]
            parts += [np.frombuffer(pending, np.uint8), feed.data[number][at : own[-1] if len(own) else at]]
            received = begin + len(pending)
            end = received + len(parts[-1])
            self._sides.append(_Side(begin, received, end, stream_at - begin, at - received))
            begin = end
        self.data = frozen(np.concatenate(parts))
        #: Number to add to a position in the data to get the one in the stream of its side, by side.
        self.shifts = np.array([side.to_stream for side in self._sides])
        #: The end of each piece in the data of both.
        self._ends = ends - np.array([side.to_feed for side in self._sides])[self._owners]
        cuts = [cut(self.data, side.begin, side.end, number) for number, side in enumerate(self._sides)]
        self._bounds = [bounds for bounds, _ in cuts]
        lost = np.array([at for _, at in cuts], np.int64)
        #: Number of completed frames of each side. `_stop` is the piece in which no frame follows, if there is one.
        self._taken = np.zeros(len(SIDES), np.int64)
        most = sum(map(len, self._bounds)) - len(SIDES)
        begins, stops, numbers = np.zeros((3, most), np.uint32)
        every = Positions(begins, stops, numbers, np.zeros(most, np.uint16))
        client, server = self._bounds
        self._stop = int(in_order(self._owners, self._ends, client, server, lost, *every, self._taken))
        self.positions = Positions(*(column[: len(self)] for column in every))

    def __len__(self) -> int:
        return int(self._taken.sum())

    @property
    def is_lost(self) -> bool:
        """Whether no frame follows in the next piece, or one wasn't taken."""
        return self._stop < len(self._ends)

    def place_of(self, piece: int) -> Place:
        """The place of a piece that was cut."""
        return self._feed.pieces[self._first + piece].place

    def where(self, row: int) -> tuple[Direction, Place, int, int]:
        """The location of a frame: its direction, the place that completes it, and its bytes in the stream."""
        begin, end, piece, side = (int(column[row]) for column in self.positions)
        shift = self._sides[side].to_stream
        return SIDES[side], self.place_of(piece), begin + shift, end + shift

    def bytes_of(self, row: int) -> bytes:
        """A frame as it was sent."""
        return self.data[self.positions.begins[row] : self.positions.ends[row]].tobytes()

    def columns(self, rows: Array | slice) -> list[pa.Array]:
        """Columns of some frames: direction, the number of the piece in the feed, and their bytes in the stream."""
        begins, ends, pieces, sides = (column[rows] for column in self.positions)
        shifts = self.shifts[sides]
        return [
            names(sides, SIDES, np.ones(len(sides), np.bool_)),
            pa.array(pieces + np.int64(self._first)),
            pa.array(begins + shifts),
            pa.array(ends + shifts),
        ]

    def stop_before(self, row: int) -> None:
        """Take neither this frame nor any behind it."""
        sides = self.positions.sides[:row]
        self._stop = int(self.positions.pieces[row])
        self._taken = np.array([np.count_nonzero(sides == number) for number in range(len(SIDES))], np.int64)

    def leave_rest(self) -> list[Unfinished]:
        """Give the feed back the pieces that weren't taken; returns each side's frame that isn't complete."""
        rest = []
        for number, side in enumerate(self._sides):
            own = self._ends[: self._stop][self._owners[: self._stop] == number]
            consumed = int(self._bounds[number][self._taken[number]])
            received = max(consumed, int(own[-1]) if len(own) else side.received)
            self._feed.at[number] = received + side.to_feed
            rest.append(Unfinished(consumed + side.to_stream, self.data[consumed:received].tobytes()))
        self._feed.piece = self._first + self._stop
        return rest


@compiled
def in_order(
    owners: Array,
    ends: Array,
    client: Array,
    server: Array,
    lost: Array,
    begins: Array,
    stops: Array,
    pieces: Array,
    sides: Array,
    taken: Array,
) -> int:
    """Order the frames of both sides by the pieces that complete them; returns the piece where a place is lost.

    Each piece has the next bytes of its side, 0 or 1 in `owners`, up to `ends`. `client` and `server` have where frames
    begin and end. `lost` has where the length ends that no frame has; -1 = there is none. The function writes each
    frame to `begins`, `stops`, `pieces` and `sides`, and the number of frames of each side to `taken`. Without a lost
    place, it writes all frames and returns the number of pieces.
    """
    row = 0
    for piece in range(len(owners)):
        side, end = owners[piece], ends[piece]
        bounds = server if side else client
        frame = taken[side]
        while frame + 1 < len(bounds) and bounds[frame + 1] <= end:
            begins[row], stops[row] = bounds[frame], bounds[frame + 1]
            pieces[row], sides[row] = piece, side
            frame += 1
            row += 1
        taken[side] = frame
        if 0 <= lost[side] <= end:
            return piece
    return len(owners)
