"""Digests of rows: 64 bits that are the same for the same rows, in any order and however they are cut into batches.

They show whether the state at the end of a window has changed. They are no protection against forgery.
"""

from __future__ import annotations

from typing import Any, Final
from zlib import crc32

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

_MASK: Final = 2**64 - 1
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
#: A multiplier and a shift of each round of SplitMix64's last step.
_ROUNDS: Final = ((0xBF58476D1CE4E5B9, 30), (0x94D049BB133111EB, 27))


def digest_of(rows: pa.RecordBatch | pa.Table) -> int:
    """The digest of `rows`; that of several batches is the sum of theirs, modulo 2^64. Maps don't count."""
    total = 0
    for batch in [rows] if isinstance(rows, pa.RecordBatch) else rows.to_batches():
        total += int(_mixed(_fields(batch.schema, batch.columns, batch.num_rows)).sum(dtype=np.uint64))
    return total & _MASK


def _fields(fields: Any, columns: list[pa.Array], count: int) -> Any:
    """A hash of each row of `columns`; nulls add nothing to it."""
    found = np.full(count, _STEP)
    for field, column in zip(fields, columns, strict=True):
        if column.null_count < count and not pa.types.is_map(field.type):
            own = _mixed(_values(column) + np.uint64(crc32(field.name.encode())))
            found += np.where(np.asarray(column.is_valid()), own, np.uint64(0))
    return found


def _values(values: pa.Array) -> Any:
    """A hash of each value; any number for a null."""
    kind = values.type
    if pa.types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return _fields(fields, [values.field(at) for at in range(kind.num_fields)], len(values))
    if pa.types.is_list(kind):
        return _lists(values)
    if pa.types.is_decimal(kind):
        values = values.cast(pa.string())
    if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
        return pd.util.hash_array(pc.fill_null(values, "").to_numpy(zero_copy_only=False), categorize=False)
    return np.asarray(pc.fill_null(values.cast(pa.int64()), 0)).view(np.uint64)


def _lists(values: pa.ListArray) -> Any:
    offsets = np.asarray(values.offsets)
    inside = values.values.slice(offsets[0], offsets[-1] - offsets[0])
    ends = offsets - offsets[0]
    sizes = np.diff(ends)
    at = (np.arange(len(inside)) - np.repeat(ends[:-1], sizes)).astype(np.uint64)
    item = np.where(np.asarray(inside.is_valid()), _mixed(_values(inside) + _STEP), np.uint64(0))
    totals = np.concatenate((np.zeros(1, np.uint64), np.cumsum(_mixed(item + _STEP * (at + np.uint64(1))))))
    return totals[ends[1:]] - totals[ends[:-1]] + sizes.astype(np.uint64)


def _mixed(numbers: Any) -> Any:
    """SplitMix64's last step: each bit of a number changes half of the result's."""
    for factor, shift in _ROUNDS:
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(31))
