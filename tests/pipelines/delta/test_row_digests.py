"""The digest of rows: the same however they are ordered and cut, and another one for other rows."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirehouse_pipelines.delta.row_digests import digest_of

SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("data", pa.binary()),
        ("number", pa.int64()),
        ("large", pa.decimal128(20, 0)),
        ("at", pa.timestamp("us", "UTC")),
        ("flag", pa.bool_()),
        ("held", pa.struct([("key", pa.binary()), ("count", pa.int32())])),
        ("items", pa.list_(pa.int64())),
        ("sets", pa.list_(pa.struct([("name", pa.binary()), ("deep", pa.list_(pa.string()))]))),
    ]
)
SETS = st.fixed_dictionaries({"name": st.sampled_from([None, b"", b"n"]), "deep": st.none() | st.just(["x", None])})
ROW = st.fixed_dictionaries(
    {
        "text": st.sampled_from([None, "", "a", "é"]),
        "data": st.sampled_from([None, b"", b"\xff"]),
        "number": st.none() | st.integers(-(2**63), 2**63 - 1),
        "large": st.none() | st.integers(0, 2**64).map(Decimal),
        "at": st.none() | st.integers(0, 9),
        "flag": st.none() | st.booleans(),
        "held": st.none() | st.fixed_dictionaries({"key": st.sampled_from([None, b"k"]), "count": st.integers(0, 3)}),
        "items": st.none() | st.lists(st.none() | st.integers(0, 3), max_size=3),
        "sets": st.none() | st.lists(st.none() | SETS, max_size=2),
    }
)
Row = dict[str, Any]


def digest(rows: list[Row]) -> int:
    return digest_of(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))


@given(st.lists(ROW, max_size=12), st.randoms(use_true_random=False), st.integers(1, 5))
def test_order_and_cuts_do_not_matter(rows: list[Row], random: Any, size: int) -> None:
    whole = digest(rows)
    batches = pa.Table.from_pylist(rows, schema=SCHEMA).to_batches(max_chunksize=size)
    assert sum(map(digest_of, batches)) % 2**64 == whole
    mixed = random.sample(rows, len(rows))
    assert digest(mixed) == whole


@given(ROW, ROW)
def test_different_rows_differ(row: Row, other: Row) -> None:
    assert (digest([row]) == digest([other])) == (row == other)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("items", [None, [], [None], [0], [0, 0], [0, 1], [1, 0], [None, 0], [0, None]]),
        ("sets", [None, [], [None], [{"name": None, "deep": None}], [{"name": None, "deep": []}]]),
        ("held", [None, {"key": None, "count": None}, {"key": b"", "count": None}, {"key": None, "count": 0}]),
        ("text", [None, "", "0"]),
        ("number", [None, 0, -1]),
    ],
)
def test_nothing_is_not_the_same_as_empty(column: str, values: list[Any]) -> None:
    empty = dict.fromkeys(SCHEMA.names)
    assert len({digest([empty | {column: value}]) for value in values}) == len(values)


def test_a_value_counts_for_its_column() -> None:
    empty = dict.fromkeys(SCHEMA.names)
    assert digest([empty | {"text": "a"}]) != digest([empty | {"data": b"a"}])
    assert digest([empty, empty]) != digest([empty])
    assert digest([]) == 0
