"""Offsets that come without a record."""

from __future__ import annotations

import pyarrow as pa
import pytest

from wirehouse_pipelines.landing.offset_ranges import MOST_GAPS, Gaps, OffsetRange


def told(begin: int, *batches: list[int]) -> Gaps:
    gaps = Gaps(OffsetRange("c", "t", "i", 0, begin, 1000))
    given = [pa.RecordBatch.from_pydict({"offset": pa.array(offsets, pa.int64())}) for offsets in batches]
    assert list(gaps.watch(given)) == given
    return gaps


@pytest.mark.parametrize(
    ("begin", "batches", "text"),
    [
        (0, ([0, 1, 2], [3]), ""),
        (0, ([2, 3, 5], [], [9]), "0-1, 4, 6-8"),
        (7, ([8],), "7"),
        (7, (), ""),
    ],
)
def test_gaps_lie_before_records(begin: int, batches: tuple[list[int], ...], text: str) -> None:
    gaps = told(begin, *batches)
    assert (str(gaps), gaps.count) == (text, len(text.split(", ")) if text else 0)


def test_of_many_gaps_the_first_are_named() -> None:
    gaps = told(0, list(range(1, 100, 2)), list(range(101, 201, 2)))
    assert gaps.count == 100
    assert str(gaps).startswith("0, 2, 4, ")
    assert str(gaps).endswith(f"62 and {100 - MOST_GAPS} more ranges")
