"""Application keys of a block: in which ways each is set or deleted, and the content that results."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

from wirehouse_codecs.cardinal.session.block import BlockUpdate, Received
from wirehouse_codecs.cardinal.session.counters import Counter
from wirehouse_codecs.core.rules import Place


class Way(Enum):
    """How a key of a block is set or deleted."""

    BATCH_MSG = "set by the BatchMsg"
    ITEM = "set by the item"
    INLINE = "set in the Batch"
    BATCH_DELETE_MSG = "deleted by the BatchDeleteMsg"
    ITEM_DELETE = "deleted by the item"
    INLINE_DELETE = "deleted in the Batch"


_SETS: Final = frozenset({Way.BATCH_MSG, Way.ITEM, Way.INLINE})


class Key:
    """One application key: its BatchMsg and BatchDeleteMsg, and the ways in which it is set or deleted."""

    __slots__ = ("deleted", "first", "further", "others", "place", "set_counter", "unset_counter", "way")

    def __init__(self) -> None:
        #: The first BatchMsg, and further values.
        self.first: Received | None = None
        self.others: list[bytes] | None = None
        self.set_counter: Counter | None = None
        #: A BatchDeleteMsg came.
        self.deleted = False
        self.unset_counter: Counter | None = None
        #: The first way and its message, and further ones. Hardly a key has a further one.
        self.way: Way | None = None
        self.place: Place | None = None
        self.further: list[tuple[Way, Place]] | None = None

    def ways(self) -> list[tuple[Way, Place]]:
        """Each way once, with its first message."""
        first = [] if self.way is None or self.place is None else [(self.way, self.place)]
        return first + (self.further or [])

    def add_way(self, way: Way, place: Place) -> Sequence[tuple[Way, Place]]:
        """The key is set or deleted by `way`. Returns the earlier ways that don't go with it."""
        if self.way is None:
            self.way, self.place = way, place
            return ()
        ways = self.ways()
        if any(known is way for known, _ in ways):
            return ()
        if self.further is None:
            self.further = []
        self.further.append((way, place))
        return [known for known in ways if way in _SETS or known[0] in _SETS]


class Content:
    """What the tracked keys of a block are set to so far, what is deleted, and by which message."""

    __slots__ = ("_set_at", "deletes", "values")

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self._set_at: dict[bytes, Place] = {}
        self.deletes: dict[bytes, Place] = {}

    def set(self, name: bytes, value: bytes, place: Place) -> None:
        """The message at `place` sets the key, whatever it had before."""
        self.values[name] = value
        self._set_at[name] = place

    def updates(self) -> tuple[BlockUpdate, ...]:
        """All keys in order, a set before a delete."""
        rows = [BlockUpdate(key, value, self._set_at[key]) for key, value in self.values.items()]
        rows += [BlockUpdate(key, None, place) for key, place in self.deletes.items()]
        rows.sort(key=lambda update: (update.key, update.value is None))
        return tuple(rows)
