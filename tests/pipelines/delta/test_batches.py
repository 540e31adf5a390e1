"""Batches cut and joined by their keys."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest

from wirehouse_pipelines.delta.batches import of_keys, whole_keys


def rows(keys: list[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"key": pa.array(keys, pa.string()), "number": range(len(keys))})


@pytest.mark.parametrize("seed", range(200))
def test_all_rows_of_a_key_are_in_one_batch(seed: int) -> None:
    random = Random(seed)
    given = rows(sorted(random.choices("abcdefgh", k=random.randrange(30))))
    cuts = sorted(random.choices(range(given.num_rows + 1), k=random.randrange(6)))
    batches = [given.slice(begin, end - begin) for begin, end in zip([0, *cuts], [*cuts, given.num_rows], strict=True)]
    least = random.randrange(1, 12)
    made = list(whole_keys(batches, ["key"], least))
    assert [number for batch in made for number in batch.column("number").to_pylist()] == list(range(given.num_rows))
    keys = [set(batch.column("key").to_pylist()) for batch in made]
    assert sum(map(len, keys)) == len(set().union(*keys))
    assert all(batch.num_rows >= least for batch in made[:-1])
    # What could be passed on doesn't wait.
    most = max((given.column("key").to_pylist().count(key) for key in "abcdefgh"), default=0)
    assert all(batch.num_rows < least + most + max(batch.num_rows for batch in batches) for batch in made)


def test_keys_of_which_some_row_is_meant() -> None:
    given = rows(["a", "a", "b", "c", "c"])
    first, last = (pa.array([number in numbers for number in range(5)]) for numbers in ({0, 3}, {1, 2, 3}))
    assert of_keys(given, ["key"], first).column("key").to_pylist() == ["a", "a", "c", "c"]
    assert of_keys(given, ["key"], first, last).column("key").to_pylist() == ["a", "a", "c", "c"]
    assert of_keys(given, ["key"], last).num_rows == 5
    assert of_keys(given, ["key"], pa.array([False] * 5)).num_rows == 0
