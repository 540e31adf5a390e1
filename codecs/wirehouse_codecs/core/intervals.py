"""Sets of integers that mostly come in runs, such as the indexes of a log: a sorted list of runs, of bounded length."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple


class Run(NamedTuple):
    """The integers from `first` to `last`, both included."""

    first: int
    last: int


def runs_of(numbers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """(first, last) of the runs of `numbers`, in their order: one that does not follow the one before begins a run."""
    if not numbers:
        return ()
    first, last = numbers[0], numbers[-1]
    if last - first == len(numbers) - 1 and all(map(int.__eq__, numbers, range(first, last + 1))):
        return ((first, last),)
    starts = [at for at, (one, following) in enumerate(pairwise(numbers), 1) if following != one + 1]
    firsts, lasts = [first, *(numbers[at] for at in starts)], [*(numbers[at - 1] for at in starts), last]
    return tuple(zip(firsts, lasts, strict=True))


class Intervals:
    """A set of integers of 0 and above as runs, neither overlapping nor adjacent.

    With `most`, at most so many runs are held: of more, the lowest quarter goes. Below `floor` nothing is known any
    more: nothing there is held, is new, or is missing. Adding at the end costs the same whatever is held; elsewhere it
    moves the runs behind it.
    """

    __slots__ = ("_firsts", "_lasts", "count", "floor", "most")

    def __init__(self, runs: Iterable[tuple[int, int]] = (), most: int | None = None) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self.most = most
        #: How many integers are held.
        self.count = 0
        self.floor = 0
        for first, last in runs:
            self.add(first, last)

    def __len__(self) -> int:
        """How many runs are held."""
        return len(self._firsts)

    def __iter__(self) -> Iterator[Run]:
        return map(Run, self._firsts, self._lasts)

    def __contains__(self, number: int) -> bool:
        return self.holds(number, number)

    def holds(self, first: int, last: int) -> bool:
        """All from `first` to `last` are held."""
        at = bisect_right(self._firsts, first) - 1
        return at >= 0 and last <= self._lasts[at]

    def overlaps(self, first: int, last: int) -> bool:
        """One at least from `first` to `last` is held."""
        at = bisect_left(self._lasts, first)
        return at < len(self._firsts) and self._firsts[at] <= last

    def within(self, first: int, last: int) -> Iterator[Run]:
        """What is held from `first` to `last`."""
        for at in range(bisect_left(self._lasts, first), bisect_right(self._firsts, last)):
            yield Run(max(first, self._firsts[at]), min(last, self._lasts[at]))

    def missing(self, first: int, last: int) -> Iterator[Run]:
        """What is not held from `first` to `last`."""
        expected = max(first, self.floor)
        for run in self.within(expected, last):
            if run.first > expected:
                yield Run(expected, run.first - 1)
            expected = run.last + 1
        if expected <= last:
            yield Run(expected, last)

    def counts_from(self, numbers: Iterable[int]) -> list[int]:
        """For each of `numbers`, how many are held that are equal or above."""
        firsts, lasts = self._firsts, self._lasts
        through = [0, *accumulate(last - first + 1 for first, last in zip(firsts, lasts, strict=True))]
        counts = []
        for number in numbers:
            at = bisect_left(lasts, number)
            below = max(0, number - firsts[at]) if at < len(firsts) else 0
            counts.append(self.count - through[at] - below)
        return counts

    def add(self, first: int, last: int | None = None) -> int:
        """Add all from `first` to `last`, or `first` alone; how many of them are new."""
        last = first if last is None else last
        first = max(first, self.floor)
        if last < first:
            return 0
        firsts, lasts = self._firsts, self._lasts
        if not lasts or first > lasts[-1]:
            if lasts and first == lasts[-1] + 1:
                lasts[-1] = last
            else:
                firsts.append(first)
                lasts.append(last)
            new = last - first + 1
        else:
            new = self._merge(first, last)
        self.count += new
        if self.most is not None and len(firsts) > self.most:
            self.keep(self.most - self.most // 4)
        return new

    def _merge(self, first: int, last: int) -> int:
        # The runs that the new one overlaps or touches become one with it.
        start = bisect_left(self._lasts, first - 1)
        if self._firsts[start] <= first and last <= self._lasts[start]:
            return 0
        end = bisect_right(self._firsts, last + 1)
        held = 0
        if start < end:
            first, last = min(first, self._firsts[start]), max(last, self._lasts[end - 1])
            held = sum(self._lasts[start:end]) - sum(self._firsts[start:end]) + end - start
        self._firsts[start:end], self._lasts[start:end] = [first], [last]
        return last - first + 1 - held

    def remove(self, first: int, last: int) -> None:
        """Take out all from `first` to `last`."""
        start, end = bisect_left(self._lasts, first), bisect_right(self._firsts, last)
        if start >= end:
            return
        taken = sum(run.last - run.first + 1 for run in self.within(first, last))
        left = Run(self._firsts[start], first - 1), Run(last + 1, self._lasts[end - 1])
        rest = [run for run in left if run.first <= run.last]
        self._firsts[start:end], self._lasts[start:end] = [run.first for run in rest], [run.last for run in rest]
        self.count -= taken

    def forget_below(self, floor: int) -> None:
        """Know nothing below `floor` any more."""
        if floor > self.floor:
            if self._firsts and self._firsts[0] < floor:
                self.remove(self._firsts[0], floor - 1)
            self.floor = floor

    def keep(self, runs: int) -> None:
        """Know nothing any more below the `runs` highest runs."""
        if len(self) > runs:
            self.forget_below(self._lasts[-runs - 1] + 1)

    def to_json(self) -> list[Any]:
        """The set as carried state writes it: `most`, `floor`, and the ends of the runs, each counted from the last."""
        ends = chain.from_iterable(zip(self._firsts, self._lasts, strict=True))
        return [self.most, self.floor, [later - earlier for earlier, later in pairwise(chain((0,), ends))]]

    @classmethod
    def from_json(cls, told: Sequence[Any]) -> Intervals:
        """The set that `to_json` wrote."""
        intervals = cls(most=told[0])
        ends = list(accumulate(told[2]))
        intervals.replace(ends[::2], ends[1::2], told[1])
        return intervals

    def replace(self, firsts: list[int], lasts: list[int], floor: int) -> None:
        """Hold these runs, which rise and don't touch, and know nothing below `floor`."""
        self._firsts, self._lasts, self.floor = firsts, lasts, floor
        self.count = sum(lasts) - sum(firsts) + len(firsts)
