"""Bytes of a connection with their places, and those of them that nothing can be read from."""

from __future__ import annotations

from base64 import b64decode, b64encode
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple

from wirehouse_codecs.rules import Place
from wirehouse_codecs.tcp import Data, Direction

#: Bytes that nothing is read from are told in rows of so many, counted from the first: however they arrived.
UNDECODABLE_BYTES: Final = 64 << 10


class Run(NamedTuple):
    """Bytes of one side that follow each other, and the places of the pieces in which they came."""

    direction: Direction
    #: Position of the first byte in the stream of its side.
    start: int
    data: bytes
    #: Where each piece ends in that stream.
    ends: Sequence[int]
    places: Sequence[Place]

    def place_of(self, byte_end: int) -> Place:
        """The place of the piece that holds the byte before `byte_end`."""
        return self.places[min(bisect_left(self.ends, byte_end), len(self.places) - 1)]


def runs(pieces: Sequence[Data]) -> Iterator[Run]:
    """`pieces` with those of one side that follow each other put together."""
    for direction, group in groupby(pieces, attrgetter("direction")):
        own = list(group)
        ends = [piece.byte_start + len(piece.data) for piece in own]
        yield Run(direction, own[0].byte_start, b"".join(p.data for p in own), ends, [p.place for p in own])


class Undecodable(NamedTuple):
    """Bytes that nothing is read from."""

    direction: Direction
    place: Place
    byte_start: int
    byte_end: int
    #: The call that they belong to. Without one they may hold header fields, and with them secrets.
    call: int | None
    #: Empty where they are told by their position alone.
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

    def to_json(self) -> list[Any]:
        """What is collected, as carried state writes it."""
        return [self.start, to_text(self.data), self.reason]

    def restore(self, state: list[Any]) -> None:
        """Go on from what `to_json` gave."""
        self.start, data, self.reason = state
        self.data = bytearray(from_text(data))


def to_text(data: bytes | bytearray) -> str:
    """Bytes as carried state writes them."""
    return b64encode(data).decode()


def from_text(text: str) -> bytes:
    """The bytes that `to_text` was given."""
    return b64decode(text)
