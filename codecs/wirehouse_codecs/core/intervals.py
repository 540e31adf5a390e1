"""A set of integers stored as a sorted list of runs, whose length can be bounded.

It suits integers that are mostly consecutive, such as the indexes of a log.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import NamedTuple


class Run(NamedTuple):
    """The integers from `first` to `last`, both included."""

    first: int
    last: int


def runs_of(numbers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """(first, last) of each run in `numbers`, in their order. A number that isn't its predecessor + 1 begins a run."""
    if not numbers:
        return ()
    first, last = numbers[0], numbers[-1]
    if last - first == len(numbers) - 1 and all(map(int.__eq__, numbers, range(first, last + 1))):
        return ((first, last),)
    starts = [at for at, (one, following) in enumerate(pairwise(numbers), 1) if following != one + 1]
    firsts, lasts = [first, *(numbers[at] for at in starts)], [*(numbers[at - 1] for at in starts), last]
    return tuple(zip(firsts, lasts, strict=True))


class Intervals:
    """A set of non-negative integers, stored as runs that neither overlap nor touch.

    `most` limits the number of runs: when there are more, the lowest quarter is dropped. Integers below `floor` have
    been dropped: they are not in the set, adding them has no effect, and they never count as missing. Adding at the
    end takes constant time; adding elsewhere moves the runs after it.
    """

    __slots__ = ("_firsts", "_lasts", "count", "floor", "most")

    def __init__(self, runs: Iterable[tuple[int, int]] = (), most: int | None = None) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self.most = most
        #: Number of integers in the set.
        self.count = 0
        self.floor = 0
        for first, last in runs:
            self.add(first, last)

    def __len__(self) -> int:
        """Number of runs."""
        return len(self._firsts)

    def __iter__(self) -> Iterator[Run]:
        return map(Run, self._firsts, self._lasts)

    def __contains__(self, number: int) -> bool:
        return self.holds(number, number)

    def holds(self, first: int, last: int) -> bool:
        """Whether all integers from `first` to `last` are in the set."""
        at = bisect_right(self._firsts, first) - 1
        return at >= 0 and last <= self._lasts[at]

    def overlaps(self, first: int, last: int) -> bool:
        """Whether at least one integer from `first` to `last` is in the set."""
        at = bisect_left(self._lasts, first)
        return at < len(self._firsts) and self._firsts[at] <= last

    def within(self, first: int, last: int) -> Iterator[Run]:
        """The runs of the set, cut to the range from `first` to `last`."""
        for at in range(bisect_left(self._lasts, first), bisect_right(self._firsts, last)):
            yield Run(max(first, self._firsts[at]), min(last, self._lasts[at]))

    def missing(self, first: int, last: int) -> Iterator[Run]:
        """The runs from `first` to `last` that aren't in the set."""
        expected = max(first, self.floor)
        for run in self.within(expected, last):
            if run.first > expected:
                yield Run(expected, run.first - 1)
            expected = run.last + 1
        if expected <= last:
            yield Run(expected, last)

    def counts_from(self, numbers: Iterable[int]) -> list[int]:
        """For each of `numbers`, how many integers of the set are equal to it or greater."""
        firsts, lasts = self._firsts, self._lasts
        through = [0, *accumulate(last - first + 1 for first, last in zip(firsts, lasts, strict=True))]
        counts = []
        for number in numbers:
            at = bisect_left(lasts, number)
            below = max(0, number - firsts[at]) if at < len(firsts) else 0
            counts.append(self.count - through[at] - below)
        return counts

    def count_from(self, number: int) -> int:
        """How many integers of the set are equal to `number` or greater. It takes as long as there are runs of them."""
        at = bisect_left(self._lasts, number)
        behind = zip(self._firsts[at:], self._lasts[at:], strict=True)
        return sum(last - max(first, number) + 1 for first, last in behind)

    def add(self, first: int, last: int | None = None) -> int:
        """Add all integers from `first` to `last`, or just `first`. Returns how many of them are new."""
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
        # Runs that the new one overlaps or touches are merged with it.
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
        """Remove all integers from `first` to `last`."""
        start, end = bisect_left(self._lasts, first), bisect_right(self._firsts, last)
        if start >= end:
            return
        taken = sum(run.last - run.first + 1 for run in self.within(first, last))
        left = Run(self._firsts[start], first - 1), Run(last + 1, self._lasts[end - 1])
        rest = [run for run in left if run.first <= run.last]
        self._firsts[start:end], self._lasts[start:end] = [run.first for run in rest], [run.last for run in rest]
        self.count -= taken

    def forget_below(self, floor: int) -> None:
        """Drop everything below `floor`, and raise the floor to it."""
        if floor > self.floor:
            if self._firsts and self._firsts[0] < floor:
                self.remove(self._firsts[0], floor - 1)
            self.floor = floor

    def keep(self, runs: int) -> None:
        """Keep only the `runs` highest runs; the floor rises to the end of the others."""
        if len(self) > runs:
            self.forget_below(self._lasts[-runs - 1] + 1)

    @property
    def state(self) -> tuple[int | None, int, list[int]]:
        """What is carried: `most`, `floor`, and the ends of the runs, each as the difference to the last."""
        ends = chain.from_iterable(zip(self._firsts, self._lasts, strict=True))
        return self.most, self.floor, [later - earlier for earlier, later in pairwise(chain((0,), ends))]

    @classmethod
    def from_state(cls, state: tuple[int | None, int, list[int]]) -> Intervals:
        """The set with this state."""
        most, floor, steps = state
        intervals = cls(most=most)
        ends = list(accumulate(steps))
        intervals.replace(ends[::2], ends[1::2], floor)
        return intervals

    def replace(self, firsts: list[int], lasts: list[int], floor: int) -> None:
        """Replace the content with these runs, which must ascend and not touch, and set `floor`."""
        self._firsts, self._lasts, self.floor = firsts, lasts, floor
        self.count = sum(lasts) - sum(firsts) + len(firsts)
