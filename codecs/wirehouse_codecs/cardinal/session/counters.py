"""Counted prefixes of a Batch: which of them counts a key, and how many messages it still waits for."""

from __future__ import annotations

from dataclasses import dataclass

from wirehouse_codecs.cardinal.session.block import MESSAGES, Count, Missing


@dataclass(slots=True)
class Counter:
    """An entry of the Batch with a count."""

    name: bytes
    count: int
    tracked: bool
    topic: str | None
    received: int = 0
    #: Keys that came and don't count; each has a finding of its own.
    uncounted: int = 0

    def row(self) -> tuple[Count, Count, Missing | None]:
        """What is expected, what was received, and what is missing."""
        left = self.count - self.received
        missing = Missing(self.name, left, MESSAGES, uncounted=self.uncounted) if left else None
        return Count(self.name, self.count), Count(self.name, self.received), missing


class Counters:
    """The counters of a block by name. Call `sort` when all are in."""

    __slots__ = ("_at_boundary", "_not_at_boundary", "by_name")

    def __init__(self) -> None:
        self.by_name: dict[bytes, Counter] = {}
        #: Lengths of the names that end in a slash, and of those that don't, longest first.
        self._at_boundary: list[int] = []
        self._not_at_boundary: list[int] = []

    def sort(self) -> None:
        """Prepare the search: no counter is added any more."""
        self._at_boundary = sorted({len(name) for name in self.by_name if name.endswith(b"/")}, reverse=True)
        self._not_at_boundary = sorted({len(name) for name in self.by_name if not name.endswith(b"/")}, reverse=True)

    def nearest(self, name: bytes) -> Counter | None:
        """The counter of a key: the entry that is the whole key, else the longest that ends in a slash and begins it.

        An open counter comes before a closed one, and among open ones a tracked one before others.
        """
        counters = self.by_name
        untracked = closed = None
        candidate = counters.get(name)
        lengths = iter(self._at_boundary)
        while True:
            if candidate is not None:
                if candidate.received < candidate.count:
                    if candidate.tracked:
                        return candidate
                    untracked = untracked or candidate
                closed = closed or candidate
            for length in lengths:
                candidate = counters.get(name[:length]) if length < len(name) else None
                if candidate is not None:
                    break
            else:
                return untracked or closed

    def not_at_boundary(self, name: bytes) -> Counter | None:
        """The counter with the longest name that begins a longer key and has no slash at its end."""
        for length in self._not_at_boundary:
            counter = self.by_name.get(name[:length]) if length < len(name) else None
            if counter is not None and not counter.name.endswith(b"/"):
                return counter
        return None
