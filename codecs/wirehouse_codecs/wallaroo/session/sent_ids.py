"""The message ids that a stream remembers, in the order in which they were sent.

Ids mostly rise. While they do they are in arrays, which a compiled loop searches and extends as well (loops.py);
otherwise in a dict, until `settle` finds them rising again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Any, Final, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

#: Marks of an id: its ack is awaited; it is no stable reference; it names its message only in this session.
AWAITED: Final = 1
UNSTABLE: Final = 2
EPHEMERAL: Final = 4
_FEWEST: Final = 16


class Entry(NamedTuple):
    """The number of the stream's message with which an id was sent, the id's marks, and the arrival of that message."""

    at: int
    marks: int
    sent_ns: int


class Room(NamedTuple):
    """Columns of ids, and of their entries."""

    ids: Array
    ats: Array
    marks: Array
    times: Array

    @classmethod
    def of(cls, size: int) -> Room:
        """Room for `size` ids."""
        return cls(*(np.empty(size, kind) for kind in (np.uint64, np.int64, np.uint8, np.int64)))

    def part(self, start: int, end: int) -> Room:
        """The same memory from `start` to `end`."""
        return Room(*(column[start:end] for column in self))


class Sent:
    """Ids in the order in which they were last sent. `start` and `end` say which of `room` are held."""

    __slots__ = ("_mixed", "end", "room", "start")

    def __init__(self) -> None:
        self.room = Room.of(0)
        self.start = self.end = 0
        #: All ids, once they don't rise.
        self._mixed: dict[int, Entry] | None = None

    @property
    def state(self) -> tuple[list[int], ...]:
        """The carried form: columns of ids and of their entries, the oldest first."""
        if self._mixed is not None:
            return list(self._mixed), *(
                [entry[at] for entry in self._mixed.values()] for at in range(len(Entry._fields))
            )
        return tuple(column.tolist() for column in self.room.part(self.start, self.end))

    @classmethod
    def from_state(cls, state: tuple[list[int], ...]) -> Sent:
        """The ids that `state` has."""
        sent = cls()
        for message_id, *entry in zip(*state, strict=True):
            sent.add(message_id, Entry(*entry))
        return sent

    @property
    def rising(self) -> bool:
        """Whether the ids rise, and are in `room`."""
        return self._mixed is None

    def __len__(self) -> int:
        return self.end - self.start if self._mixed is None else len(self._mixed)

    def get(self, message_id: int) -> Entry | None:
        """The entry of an id; None = it isn't held."""
        if self._mixed is not None:
            return self._mixed.get(message_id)
        at = self.start + int(np.searchsorted(self.room.ids[self.start : self.end], np.uint64(message_id)))
        if at == self.end or int(self.room.ids[at]) != message_id:
            return None
        return Entry(int(self.room.ats[at]), int(self.room.marks[at]), int(self.room.times[at]))

    def items(self, most: int | None = None) -> Iterator[tuple[int, Entry]]:
        """Ids and their entries, the oldest first, at most `most` of them."""
        if self._mixed is not None:
            yield from islice(self._mixed.items(), most)
            return
        end = self.end if most is None else min(self.end, self.start + most)
        for message_id, *entry in zip(*(column.tolist() for column in self.room.part(self.start, end)), strict=True):
            yield message_id, Entry(*entry)

    def add(self, message_id: int, entry: Entry) -> None:
        """An id is sent, for the first time or again; `entry.at` is above that of all others."""
        if self._mixed is None and len(self) and message_id <= int(self.room.ids[self.end - 1]):
            self._mixed = dict(self.items())
            self.room, self.start, self.end = Room.of(0), 0, 0
        if self._mixed is not None:
            self._mixed.pop(message_id, None)
            self._mixed[message_id] = entry
            return
        if self.end == len(self.room.ids):
            self.move(Room.of(max(_FEWEST, 2 * len(self))))
        self._put(message_id, entry)

    def _put(self, message_id: int, entry: Entry) -> None:
        ids, ats, marks, times = self.room
        ids[self.end], ats[self.end], marks[self.end], times[self.end] = message_id, *entry
        self.end += 1

    def move(self, room: Room) -> None:
        """Hold the ids, which rise, in `room`, which is large enough for them."""
        held = len(self)
        for old, new in zip(self.room, room, strict=True):
            new[:held] = old[self.start : self.end]
        self.room, self.start, self.end = room, 0, held

    def settle(self) -> None:
        """Hold the ids in arrays again, if they rise."""
        mixed = self._mixed
        if mixed is None or any(later <= earlier for earlier, later in pairwise(mixed)):
            return
        self._mixed = None
        self.move(Room.of(len(mixed)))
        for message_id, entry in mixed.items():
            self._put(message_id, entry)

    def first_after(self, at: int) -> int:
        """Number of ids that were sent up to `at`."""
        if self._mixed is None:
            return int(np.searchsorted(self.room.ats[self.start : self.end], at, side="right"))
        return next((place for place, entry in enumerate(self._mixed.values()) if entry.at > at), len(self._mixed))

    def drop(self, count: int) -> list[tuple[int, Entry]]:
        """Drop the `count` oldest ids and return them."""
        dropped = list(self.items(count))
        if self._mixed is None:
            self.start += len(dropped)
        else:
            for message_id, _ in dropped:
                del self._mixed[message_id]
        return dropped
