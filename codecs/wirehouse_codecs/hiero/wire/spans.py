"""Bytes of a connection with their places, and those of them that nothing can be read from."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from operator import attrgetter
from typing import Final, NamedTuple, cast

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.reassembly import Data
from wirehouse_codecs.tcp.segments import Pieces, Stretch

#: Size of a row of bytes from which nothing is read, counted from the first of them, however they arrived.
UNDECODABLE_BYTES: Final = 64 << 10


class Run(NamedTuple):
    """Bytes of one side that follow each other, and the places of the pieces in which they came."""

    direction: Direction
    #: Position of the first byte in the stream of its side.
    start: int
    data: memoryview
    places: _Places | Stretch

    def place_of(self, byte_end: int) -> Place:
        """The place of the piece that holds the byte before `byte_end`."""
        return self.places.place_of(byte_end)

    def start_of(self, at: int) -> int:
        """Position of the byte at `at`."""
        return self.start + at

    def end_of(self, at: int) -> int:
        """Position after the byte before `at`."""
        return self.start + at


class _Places(NamedTuple):
    #: Where each piece ends in the stream of its side.
    ends: Sequence[int]
    places: Sequence[Place]

    def place_of(self, byte_end: int) -> Place:
        return self.places[min(bisect_left(self.ends, byte_end), len(self.places) - 1)]


def run_of(direction: Direction, start: int, data: bytes, place: Place) -> Run:
    """Bytes that stand at one place."""
    return Run(direction, start, memoryview(data), _Places((start + len(data),), (place,)))


def runs(pieces: Sequence[Data]) -> Iterator[Run]:
    """`pieces`, in which those of one side that follow each other are joined."""
    parts: Sequence[Data | Stretch] = pieces.parts if isinstance(pieces, Pieces) else pieces
    for kind, group in groupby(parts, type):
        if issubclass(kind, Stretch):
            yield from (
                Run(part.direction, part.byte_start, part.data, part) for part in cast(Iterator[Stretch], group)
            )
        else:
            yield from _joined(cast(Iterator[Data], group))


def _joined(pieces: Iterator[Data]) -> Iterator[Run]:
    for direction, group in groupby(pieces, attrgetter("direction")):
        own = list(group)
        ends = [piece.byte_start + len(piece.data) for piece in own]
        data = memoryview(b"".join(piece.data for piece in own))
        yield Run(direction, own[0].byte_start, data, _Places(ends, [piece.place for piece in own]))


class Content:
    """Parts of a run that belong together, as if nothing stood between them."""

    __slots__ = ("_offsets", "data", "run", "spans")

    def __init__(self, run: Run, spans: Sequence[tuple[int, int]]) -> None:
        self.run = run
        #: Where each part begins and ends in the run.
        self.spans = spans
        begin, end = spans[0]
        self.data = run.data[begin:end]
        if len(spans) > 1:
            self.data = memoryview(b"".join([run.data[begin:end] for begin, end in spans]))
        self._offsets = [0, *accumulate(end - begin for begin, end in spans)]

    @property
    def direction(self) -> Direction:
        """Who sends."""
        return self.run.direction

    def place_of(self, byte_end: int) -> Place:
        """The place of the piece that holds the byte before `byte_end`."""
        return self.run.place_of(byte_end)

    def part_of(self, at: int) -> tuple[int, int]:
        """The part that holds the byte at `at`, and where in the run that stands."""
        part = bisect_right(self._offsets, at) - 1
        return part, self.spans[part][0] + at - self._offsets[part]

    def start_of(self, at: int) -> int:
        """Position of the byte at `at`."""
        return self.run.start + self.part_of(at)[1]

    def end_of(self, at: int) -> int:
        """Position after the byte before `at`."""
        return self.run.start + self.part_of(at - 1)[1] + 1


class Undecodable(NamedTuple):
    """Bytes that nothing is read from."""

    direction: Direction
    place: Place
    byte_start: int
    byte_end: int
    #: The call that they belong to. Without one they may hold header fields, and with them secrets.
    call: int | None
    #: Empty where only their position is reported.
    data: bytes
    reason: str


@dataclass(slots=True)
class Passed:
    """Bytes that are passed over: collected to one row, or to one for each UNDECODABLE_BYTES."""

    direction: Direction
    call: int | None = None
    start: int = 0
    data: bytearray = field(default_factory=bytearray)
    reason: str = ""

    def add(self, run: Run, at: int, end: int, reason: str) -> Iterator[Undecodable]:
        """`run.data[at:end]`, which follows what was collected before, if anything was."""
        while at < end:
            if not self.data:
                self.start, self.reason = run.start + at, reason
            taken = min(UNDECODABLE_BYTES - len(self.data), end - at)
            self.data += run.data[at : at + taken]
            at += taken
            if len(self.data) == UNDECODABLE_BYTES:
                yield from self.flush(run.place_of(run.start + at))

    def flush(self, place: Place) -> Iterator[Undecodable]:
        """No more bytes belong to the row."""
        if self.data:
            data = bytes(self.data)
            self.data.clear()
            yield Undecodable(self.direction, place, self.start, self.start + len(data), self.call, data, self.reason)
