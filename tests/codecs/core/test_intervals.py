"""Sets of integers as runs: the same as a plain set, in bounded room."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirehouse_codecs.core.intervals import Intervals, Run, runs_of

LARGEST = 2**64 - 1
NUMBERS = st.integers(0, 40)
#: What is done to a set: its name and a range.
STEPS = st.lists(st.tuples(st.sampled_from(["add", "remove", "forget_below"]), NUMBERS, st.integers(0, 6)), max_size=30)


def numbers(runs: object) -> set[int]:
    return {number for first, last in runs for number in range(first, last + 1)}  # type: ignore[attr-defined]


@given(STEPS, NUMBERS, NUMBERS)
def test_the_same_as_a_set(steps: list[tuple[str, int, int]], first: int, last: int) -> None:
    intervals, floor = Intervals(), 0
    known: set[int] = set()
    for step, begin, size in steps:
        given_range = set(range(begin, begin + size + 1))
        match step:
            case "add":
                new = {number for number in given_range if number >= floor} - known
                assert intervals.add(begin, begin + size) == len(new)
                known |= new
            case "remove":
                intervals.remove(begin, begin + size)
                known -= given_range
            case "forget_below":
                intervals.forget_below(begin)
                floor = max(floor, begin)
                known = {number for number in known if number >= floor}
        assert numbers(intervals) == known
        assert intervals.count == len(known)
        assert all(later.first > earlier.last + 1 for earlier, later in pairwise(intervals))
    asked = set(range(first, last + 1))
    assert [number in intervals for number in range(50)] == [number in known for number in range(50)]
    assert numbers(intervals.within(first, last)) == asked & known
    assert numbers(intervals.missing(first, last)) == {number for number in asked - known if number >= floor}
    assert intervals.overlaps(first, last) == bool(asked & known) or not asked
    assert intervals.holds(first, last) == (asked <= known) or not asked
    assert intervals.counts_from([first, last]) == [sum(n >= at for n in known) for at in (first, last)]
    assert intervals.count_from(first) == sum(n >= first for n in known)
    again = Intervals.from_state(json.loads(json.dumps(intervals.state)))
    assert (list(again), again.count, again.floor, again.most) == (list(intervals), len(known), floor, None)


@given(st.lists(st.integers(0, 12)))
def test_runs_of_numbers_in_any_order(given_numbers: list[int]) -> None:
    runs = runs_of(given_numbers)
    assert [number for first, last in runs for number in range(first, last + 1)] == given_numbers
    assert all(later[0] != earlier[1] + 1 for earlier, later in pairwise(runs))


def test_the_largest_numbers() -> None:
    intervals = Intervals([(0, LARGEST)])
    assert (len(intervals), intervals.count) == (1, 2**64)
    intervals.remove(1, LARGEST - 1)
    assert list(intervals) == [Run(0, 0), Run(LARGEST, LARGEST)]
    assert intervals.counts_from([0, 1, LARGEST]) == [2, 1, 1]
    assert list(Intervals.from_state(json.loads(json.dumps(intervals.state)))) == list(intervals)


@pytest.mark.parametrize("most", [1, 2, 7, 100])
def test_of_too_many_runs_the_lowest_are_forgotten(most: int) -> None:
    intervals = Intervals(most=most)
    for number in range(0, 10 * most, 2):
        assert intervals.add(number) == 1
        assert len(intervals) <= most
    assert number in intervals
    assert intervals.floor > 0
    assert intervals.add(0, intervals.floor - 1) == 0
    assert not intervals.overlaps(0, intervals.floor - 1)
    assert list(intervals.missing(0, intervals.floor)) in ([], [Run(intervals.floor, intervals.floor)])
    assert Intervals.from_state(intervals.state).most == most


def test_a_range_across_the_floor_is_held_from_the_floor_on() -> None:
    intervals = Intervals()
    intervals.forget_below(5)
    assert intervals.add(0, 9) == 5
    assert list(intervals) == [Run(5, 9)]
    intervals.keep(0)
    assert (len(intervals), intervals.floor) == (0, 10)
