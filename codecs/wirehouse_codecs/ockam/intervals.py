"""Sets of whole numbers that mostly follow one another, as runs: partitions, request ids, indexes of a stream."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence


class Intervals:
    """A set of numbers from 0 on, kept as runs. Of more than `most` runs the lowest are forgotten.

    Of numbers below `floor` nothing is known any more.
    """

    __slots__ = ("_ends", "_most", "_starts", "floor")

    def __init__(self, most: int, runs: Iterable[Sequence[int]] = (), floor: int = 0) -> None:
        self._most = most
        self.floor = floor
        #: Where each run begins, and where the next number after it is.
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in runs:
            self._starts.append(start)
            self._ends.append(end)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._starts, number)
        return at > 0 and number < self._ends[at - 1]

    def add(self, number: int) -> None:
        """Put a number in; below the floor it is forgotten at once."""
        at = bisect_right(self._starts, number)
        if number < self.floor or (at > 0 and number < self._ends[at - 1]):
            return
        after = at > 0 and self._ends[at - 1] == number
        before = at < len(self._starts) and self._starts[at] == number + 1
        if after and before:
            self._ends[at - 1] = self._ends.pop(at)
            del self._starts[at]
        elif after:
            self._ends[at - 1] = number + 1
        elif before:
            self._starts[at] = number
        else:
            self._starts.insert(at, number)
            self._ends.insert(at, number + 1)
        if len(self._starts) > self._most:
            self.floor = self._ends.pop(0)
            del self._starts[0]

    @property
    def count(self) -> int:
        """How many numbers are in it, without those that were forgotten."""
        return sum(self._ends) - sum(self._starts)

    @property
    def first_missing(self) -> int:
        """The lowest number from the floor on that isn't in it."""
        return self._ends[0] if self._starts and self._starts[0] <= self.floor else self.floor

    def to_json(self) -> list[object]:
        """What `from_json` takes."""
        return [[list(run) for run in zip(self._starts, self._ends, strict=True)], self.floor]

    @classmethod
    def from_json(cls, most: int, told: Sequence[object]) -> Intervals:
        """The set that `to_json` wrote."""
        runs, floor = told
        assert isinstance(runs, list)
        assert isinstance(floor, int)
        return cls(most, runs, floor)
