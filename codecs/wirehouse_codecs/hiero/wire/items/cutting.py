"""A run of block items, cut into items by kind.

A set (BlockItemSet) and a block file (Block) are the same run of items. Counting needs only the first tag of each item,
so bodies stay as their bytes. `cut` cuts a whole run by a compiled loop, a chunk of items at a time. An `ItemReader`
does so for a run whose bytes come in pieces; of an item that is too large to be held it keeps the first bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from wirehouse_codecs.hiero.wire import loops, protobuf
from wirehouse_codecs.hiero.wire.items.kinds import ItemNumber
from wirehouse_codecs.hiero.wire.protobuf import Malformed, WireType

Array = np.ndarray[Any, Any]

#: Maximum number of items that are cut at once: a hostile set has one in two bytes.
CHUNK_ITEMS: Final = 1 << 16
#: Fewer are sooner counted one by one.
_FEW_ITEMS: Final = 100
#: An item has at least a tag and a length.
_LEAST_BYTES: Final = 2


class Fault(NamedTuple):
    """Why a run of items can't be read from `at` on."""

    at: int
    reason: str


@dataclass(frozen=True, eq=False)
class Items:
    """Items of a run, at most CHUNK_ITEMS. Offsets count in `data`."""

    data: bytes | memoryview
    #: Where each item's tag begins, its body begins and it ends, int32.
    starts: Array
    bodies: Array
    ends: Array
    #: The field of BlockItem that is set, int32; 0 = none.
    numbers: Array
    #: Fields of the run that are no items.
    unknown_fields: int = 0
    #: Items that have more than one field.
    several: int = 0
    #: Number of bytes left out at the end of the only item: it was too large to be held.
    passed_over: int = 0
    #: What follows these items can't be read.
    fault: Fault | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    @cached_property
    def counts(self) -> dict[int, int]:
        """How many items there are of each number."""
        if len(self) < _FEW_ITEMS:
            return Counter(self.numbers.tolist())
        numbers, counts = np.unique(self.numbers, return_counts=True)
        return dict(zip(numbers.tolist(), counts.tolist(), strict=True))

    def where(self, number: int) -> list[int]:
        """Positions of the items of a number, in order."""
        if number not in self.counts:
            return []
        found: list[int] = np.flatnonzero(self.numbers == number).tolist()
        return found

    def body(self, position: int) -> bytes:
        """The BlockItem at `position`: its field with tag and length, without the run's."""
        return bytes(self.data[self.bodies[position] : self.ends[position]])


def cut(data: bytes | memoryview, begin: int = 0) -> Iterator[Items]:
    """The items of a whole run (BlockItemSet or Block), in chunks; the last shows if what follows can't be read.

    ValueError: `data` has 2 GiB or more.
    """
    if len(data) >= 1 << 31:
        raise ValueError(f"{len(data)} bytes at once, at most {(1 << 31) - 1}")
    at = begin
    while True:
        found, at, stopped = _walk(data, at)
        if stopped in (loops.MORE, loops.BAD):
            yield replace(found, fault=Fault(at, _reason(data, at)))
            return
        yield found
        if stopped == loops.DONE:
            return


def _walk(data: bytes | memoryview, at: int) -> tuple[Items, int, int]:
    room = min(CHUNK_ITEMS, (len(data) - at) // _LEAST_BYTES + 1)
    out = np.empty((loops.ROWS, room), np.int32)
    count, at, stopped, unknown, several = loops.walk(np.frombuffer(data, np.uint8), at, len(data), out)
    starts, bodies, ends, numbers = out[:, :count]
    return Items(data, starts, bodies, ends, numbers, unknown, several), at, stopped


def _reason(data: bytes | memoryview, at: int) -> str:
    """What the reference path finds at `at`."""
    try:
        read_item(data, at, len(data))
    except Malformed as malformed:
        return malformed.reason
    raise AssertionError(f"the walk stopped at byte {at} for no reason")


class Item(NamedTuple):
    """A field of a run."""

    start: int
    body: int
    end: int
    #: None: the field is no item.
    number: int | None
    #: Whether it has more than one field.
    several: bool = False


def read_item(data: bytes | memoryview, at: int, end: int) -> Item:
    """The field of a run at `at`. Raises Malformed."""
    field = protobuf.read_field(data, at, end)
    if field.number != 1 or field.wire_type != WireType.LEN:
        return Item(at, field.value_start, field.end, None)
    if field.value_start == field.end:
        return Item(at, field.value_start, field.end, ItemNumber.UNSET)
    try:
        first = protobuf.read_field(data, field.value_start, field.end)
        here = first.end
        while here < field.end:
            here = protobuf.read_field(data, here, field.end).end
    except Malformed as malformed:
        raise Malformed(at, f"an item of {field.end - field.value_start} bytes: {malformed.reason}") from None
    number = first.number if first.wire_type == WireType.LEN else ItemNumber.UNSET
    return Item(at, field.value_start, field.end, number, first.end < field.end)


#: Number of first bytes of an item that show its number, and whether it has several fields.
_HEAD_BYTES: Final = 32
_ITEM_TAG: Final = 0x0A


class ItemReaderState(NamedTuple):
    """What an ItemReader carries from window to window."""

    limit: int
    most_held: int
    #: Where the unfinished item begins in the run, and what there is of it.
    at: int
    pieces: bytearray
    #: Bytes that came after `at`.
    held: int
    fault: Fault | None
    #: Bytes to come of an item that isn't held.
    passing: int


class ItemReader:
    """Items of a run whose bytes come in pieces. Sans-IO; it holds at most one unfinished item.

    After a fault a run can't be read: what follows is only counted.
    """

    __slots__ = ("_at", "_held", "_needed", "_passing", "_pieces", "fault", "limit", "most_held")

    def __init__(self, limit: int, most_held: int | None = None) -> None:
        #: The largest item, in bytes with its tag and length; and the largest that is held until it is whole.
        self.limit, self.most_held = limit, limit if most_held is None else most_held
        #: Bytes to come of an item that isn't held.
        self._passing = 0
        self._pieces: list[bytes | memoryview] = []
        self._held = 0
        #: Number of bytes that must be held before there is anything to read.
        self._needed = 1
        #: Where the pieces begin in the run.
        self._at = 0
        #: Where in the run it can't be read any more, and why.
        self.fault: Fault | None = None

    @property
    def received(self) -> int:
        """How many bytes have come."""
        return self._at + self._held

    def receive(self, data: bytes | memoryview) -> list[Items]:
        """The items that `data` completes, in chunks; their offsets count in their own `data`."""
        if self._passing:
            taken = min(self._passing, len(data))
            self._passing -= taken
            self._at += taken
            data = data[taken:]
            if not len(data):
                return []
        self._held += len(data)
        if self.fault is not None:
            return []
        if self._held < self._needed:
            self._pieces.append(bytes(data))
            return []
        self._pieces.append(data)
        run = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        chunks, at, stopped = [], 0, loops.FULL
        while stopped == loops.FULL:
            found, at, stopped = _walk(run, at)
            if len(found) or found.unknown_fields:
                chunks.append(found)
        self._at += at
        self._held -= at
        self._pieces = [bytes(run[at:])]
        if stopped == loops.BAD:
            self._lose(_reason(run, at))
        elif self._look() and (passed := self.pass_over()) is not None:
            chunks.append(passed)
        return chunks

    def _look(self) -> bool:
        """How much of the unfinished item is needed; whether that is more than may be held, and its head is there."""
        needed = _needed(self._pieces[0], 0)
        if needed > self.limit:
            self._lose(f"an entry of {needed} bytes, the limit is {self.limit}")
            return False
        large = needed > self.most_held
        self._needed = _HEAD_BYTES if large else needed
        return large and self._held >= _HEAD_BYTES

    def pass_over(self) -> Items | None:
        """Hold nothing more of the unfinished item, and return it without its rest; None = too little of it came."""
        head = b"".join(self._pieces)
        if len(head) < _HEAD_BYTES:
            return None
        size, found = _needed(head, 0), None
        try:
            _, body = protobuf.read_varint(head, 0, len(head))
            _, body = protobuf.read_varint(head, body, len(head))
            found = _without_rest(head, body, size)
        except Malformed as malformed:
            self._lose(f"an item of {size} bytes: {malformed.reason}")
            return None
        self._at, self._held, self._pieces = self._at + len(head), 0, []
        self._needed, self._passing = 1, size - len(head)
        return found

    def _lose(self, reason: str) -> None:
        self.fault = Fault(self._at, reason)
        self._pieces = []

    @property
    def held(self) -> int:
        """Bytes of the unfinished item."""
        return 0 if self.fault is not None else self._held

    @property
    def state(self) -> ItemReaderState:
        """What a later reader continues from."""
        pieces = bytearray().join(self._pieces)
        return ItemReaderState(self.limit, self.most_held, self._at, pieces, self._held, self.fault, self._passing)

    @classmethod
    def from_state(cls, state: ItemReaderState) -> ItemReader:
        """The reader with this state."""
        reader = cls(state.limit, state.most_held)
        reader._at, reader._pieces, reader._held = state.at, [bytes(state.pieces)], state.held
        reader.fault, reader._passing = state.fault, state.passing
        if reader.fault is None:
            reader._look()
        return reader

    def finish(self) -> Fault | None:
        """The run ends here: an unfinished item is a fault."""
        if self.fault is None and self._held:
            self._lose(_reason(b"".join(self._pieces), 0))
        if self.fault is None and self._passing:
            self._lose(f"{self._passing} bytes of an item are missing")
        return self.fault


def _without_rest(head: bytes, body: int, size: int) -> Items:
    """The item that begins with `head` and has `size` bytes, its content from `body` on. Raises Malformed."""
    tag, value = protobuf.read_varint(head, body, len(head))
    number, several = int(ItemNumber.UNSET), False
    if tag & 7 == WireType.LEN:
        length, at = protobuf.read_varint(head, value, len(head))
        number, several = tag >> 3, at + length < size
        if at + length > size:
            raise Malformed(value, f"a field has {length} bytes")
    is_item = head[0] == _ITEM_TAG
    start, begin, end, kind = (np.array([at] * is_item, np.int32) for at in (0, body, len(head), number))
    counts = (int(not is_item), int(several and is_item), size - len(head))
    return Items(head, start, begin, end, kind, *counts)


def _needed(data: bytes | memoryview, at: int) -> int:
    """The size of the unfinished field at `at`, as far as it is known."""
    held = len(data) - at
    try:
        tag, body = protobuf.read_varint(data, at, len(data))
        if tag & 7 == WireType.LEN:
            length, body = protobuf.read_varint(data, body, len(data))
            return body - at + length
    except Malformed:
        pass
    return held + 1
