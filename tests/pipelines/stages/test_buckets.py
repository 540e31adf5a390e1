"""Rows packed by buckets: what comes out is what went in, each bucket at once."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirehouse_pipelines.stages import buckets

SCHEMA = pa.schema([("key", pa.string()), ("at", pa.int64()), ("said", pa.list_(pa.binary())), ("never", pa.int64())])
ROWS = st.fixed_dictionaries(
    {
        "key": st.sampled_from(["", "a", "b", "c", "é"]),
        "at": st.none() | st.integers(-9, 9),
        "said": st.sampled_from([None, [], [b""], [b"x", b"\0"]]),
        "never": st.none(),
    }
)


@given(st.lists(ROWS, max_size=20), st.sampled_from([1, 5]), st.booleans())
def test_rows_come_out_once_and_those_of_a_key_in_one_bucket(
    rows: list[dict[str, object]], size: int, at_once: bool
) -> None:
    batches = pa.Table.from_pylist(rows, schema=SCHEMA).to_batches(max_chunksize=size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buckets, "_PACK_BYTES", 1 << 20 if at_once else 1)
        packed = list(buckets.pack(batches, lambda rows: rows.column("key"), 3))
    numbers = [one.column("bucket")[0].as_py() for one in packed]
    assert set(numbers) <= {0, 1, 2}
    assert len(set(numbers)) == len(numbers) or not at_once
    of_bucket = [[one for one, number in zip(packed, numbers, strict=True) if number == bucket] for bucket in range(3)]
    found = [buckets.unpack(pieces, SCHEMA).to_pylist() for pieces in of_bucket]
    assert sorted(repr(row) for bucket in found for row in bucket) == sorted(
        repr(row) for batch in batches for row in batch.to_pylist()
    )
    keys = [{row["key"] for row in bucket} for bucket in found]
    assert sum(map(len, keys)) == len({row["key"] for row in rows})


def test_few_rows_have_the_least_number_of_buckets_and_many_the_most() -> None:
    assert [buckets.number(rows, 100, 4) for rows in (0, 399, 900, 10**9)] == [4, 4, 9, 512]
