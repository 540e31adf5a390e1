"""Rows packed by buckets: what comes out is what went in, each bucket at once and in order."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirehouse_pipelines import buckets

SCHEMA = pa.schema([("at", pa.int64()), ("name", pa.string()), ("said", pa.list_(pa.binary())), ("never", pa.int64())])
ROWS = st.fixed_dictionaries(
    {
        "bucket": st.integers(0, 3),
        "at": st.none() | st.integers(-9, 9),
        "name": st.sampled_from([None, "", "a", "é"]),
        "said": st.sampled_from([None, [], [b""], [b"x", b"\0"]]),
    }
)


def key(row: dict[str, object]) -> list[tuple[bool, object]]:
    return [(value is not None, value) for value in (row["at"], row["name"])]


@given(st.lists(ROWS, max_size=20), st.sampled_from([1, 5]), st.booleans())
def test_each_bucket_comes_out_once_and_in_order(rows: list[dict[str, object]], size: int, at_once: bool) -> None:
    schema = SCHEMA.append(pa.field("bucket", pa.int32()))
    batches = pa.Table.from_pylist(rows, schema=schema).to_batches(max_chunksize=size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buckets, "_PACK_BYTES", 1 << 20 if at_once else 1)
        packed = list(buckets.pack(batches, "bucket"))
    assert len(packed) == (len({row["bucket"] for row in rows}) if at_once else len(packed))
    ordered = sorted(packed, key=lambda one: one.column("bucket")[0].as_py())
    found = [one.to_pylist() for one in buckets.unpack(ordered, SCHEMA, ("at", "name"))]
    wanted = []
    for bucket in sorted({row["bucket"] for row in rows}):  # type: ignore[type-var]
        of_bucket = [{name: row.get(name) for name in SCHEMA.names} for row in rows if row["bucket"] == bucket]
        wanted.append(sorted(of_bucket, key=key))
    assert [sorted(map(repr, one)) for one in found] == [sorted(map(repr, one)) for one in wanted]
    assert [list(map(key, one)) for one in found] == [list(map(key, one)) for one in wanted]


def test_few_rows_have_the_least_number_of_buckets_and_many_the_most() -> None:
    assert [buckets.number(rows, 100, 4) for rows in (0, 399, 900, 10**9)] == [4, 4, 9, 512]
