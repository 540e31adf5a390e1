"""Sub-batches of a block: a header that announces a number of items, and the items.

Items that come before their header wait for it, because only the header shows which indexes are in range.
"""

from __future__ import annotations

from typing import Final

from wirehouse_codecs.cardinal.session.block import ITEMS, SUBBATCH_HEADER, Count, Missing, Received
from wirehouse_codecs.cardinal.wire.messages import SubBatchHeader, SubBatchMsg

#: Maximum number of ranges of missing items that are written out.
SHOWN_RANGES: Final = 32


class SubBatch:
    """An entry of the Batch that names a sub-batch, and what has arrived of it."""

    __slots__ = ("batch_id", "conflicts", "header", "items", "name", "topic", "tracked", "waiting")

    def __init__(self, batch_id: bytes, name: bytes, tracked: bool, topic: str | None) -> None:
        self.batch_id = batch_id
        self.name = name
        self.tracked = tracked
        self.topic = topic
        self.header: Received | None = None
        #: The first item of each index, once the header is there.
        self.items: dict[int, Received] = {}
        #: Items that wait for the header.
        self.waiting: list[Received] = []
        #: Headers and items that differ from the first, each once.
        self.conflicts: set[tuple[int | None, object]] = set()

    def row(self) -> tuple[Count, Count, Missing | None]:
        """What is expected, what was received, and what is missing."""
        name, batch_id = self.name, self.batch_id
        if self.header is None:
            indexes = {item.message.index for item in self.waiting if isinstance(item.message, SubBatchMsg)}
            return Count(name, None), Count(name, len(indexes)), Missing(name, 1, SUBBATCH_HEADER, batch_id)
        expected, received = item_count(self.header), len(self.items)
        missing = None
        if received < expected:
            ranges = _missing_ranges(sorted(self.items), expected)
            missing = Missing(name, expected - received, f"{ITEMS} {ranges}", batch_id)
        return Count(name, expected), Count(name, received), missing


def item_count(header: Received) -> int:
    """The number of items that a header announces."""
    assert isinstance(header.message, SubBatchHeader)
    return header.message.item_count


def item_content(item: SubBatchMsg) -> object:
    """What two items of one index are compared by: the set of deletes and the map of updates."""
    return frozenset(item.deletes), frozenset(dict(item.updates).items())


def _missing_ranges(indexes: list[int], expected: int) -> str:
    """The indexes of [0, expected) that aren't in the sorted `indexes`, as ranges."""
    ranges = []
    following = 0
    for index in [*indexes, expected]:
        if index > following:
            ranges.append(f"{following}-{index - 1}" if index - 1 > following else f"{following}")
        following = index + 1
    more = f" and {len(ranges) - SHOWN_RANGES} more ranges" if len(ranges) > SHOWN_RANGES else ""
    return ",".join(ranges[:SHOWN_RANGES]) + more
