"""Arrow columns from the output of compiled loops: 64-bit numbers, byte strings and lists given by offsets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from wirehouse_codecs.compiled.jit import compiled, copy_bytes, wide

Array = np.ndarray[Any, Any]

#: Arrow's offsets into byte data have 31 bits.
MOST_BYTES: Final = (1 << 31) - 1
#: Length of the cached columns that repeat one text.
_MOST_REPEATED: Final = 1 << 13
#: The type of unsigned 64-bit numbers in tables.
UNSIGNED: Final = pa.decimal128(20, 0)


def frozen(data: Array) -> Array:
    """A read-only view of `data`. Raises ValueError if it is too large.

    Arrow's buffers are read-only too. Numba compiles a loop once per array type, so all input should have the same.
    """
    if len(data) > MOST_BYTES:
        raise ValueError(f"{len(data)} bytes at once, at most {MOST_BYTES}")
    view = data.view()
    view.setflags(write=False)
    return view


def validity(has: Array) -> pa.Buffer:
    """Arrow's validity bitmap: set where `has` is true or not 0."""
    return pa.py_buffer(np.packbits(has if has.dtype == np.bool_ else has != 0, bitorder="little"))


def repeated(word: str, rows: int) -> pa.Array:
    """A column of `rows` times the same text. Short columns are slices of a cached one."""
    return _repeated(word).slice(0, rows) if rows <= _MOST_REPEATED else pa.repeat(pa.scalar(word), rows)


@lru_cache(maxsize=64)
def _repeated(word: str) -> pa.Array:
    return pa.repeat(pa.scalar(word), _MOST_REPEATED)


def names(codes: Array, shown: Sequence[str], has: Array) -> pa.Array:
    """The names in `shown` at the positions `codes`, null where `has` is false."""
    return pa.DictionaryArray.from_arrays(
        pa.array(codes.astype(np.int8), mask=~has), pa.array(map(str, shown), pa.string())
    )


def unsigned(words: Array, has: Array | None = None) -> pa.Array:
    """A column of unsigned 64-bit numbers, null where `has` is 0."""
    both = np.zeros((len(words), 2), np.uint64)
    both[:, 0] = words
    known = None if has is None else validity(has)
    return pa.Array.from_buffers(UNSIGNED, len(words), [known, pa.py_buffer(both)])


def offsets_of(sizes: Array) -> Array:
    """Arrow's offsets of consecutive items with these sizes."""
    offsets = np.zeros(len(sizes) + 1, np.int32)
    _add_up(sizes, offsets)
    return offsets


def parts(data: Array, starts: Array, sizes: Array, kind: pa.DataType, has: Array | None = None) -> pa.Array:
    """Copies of the byte strings of `data` at `starts`, as a column of `kind`; null where `has` is 0."""
    offsets = offsets_of(sizes)
    out = np.empty(offsets[-1], np.uint8)
    _gather(data, starts, offsets, out)
    return strings(offsets, out, kind, has)


def strings(offsets: Array, data: Array, kind: pa.DataType, has: Array | None = None) -> pa.Array:
    """The byte strings between `offsets`, as a column of `kind`; null where `has` is 0."""
    known = None if has is None else validity(has)
    return pa.Array.from_buffers(kind, len(offsets) - 1, [known, pa.py_buffer(offsets), pa.py_buffer(data)])


def lists(offsets: Array, values: pa.Array, has: Array) -> pa.Array:
    """Lists of the values between `offsets`, null where `has` is 0."""
    kind = pa.list_(values.type)
    return pa.Array.from_buffers(kind, len(has), [validity(has), pa.py_buffer(offsets)], children=[values])


@compiled
def _add_up(sizes: Array, offsets: Array) -> None:
    for i in range(len(sizes)):
        offsets[i + 1] = offsets[i] + sizes[i]


@compiled
def _gather(data: Array, starts: Array, offsets: Array, out: Array) -> None:
    for i in range(len(starts)):
        copy_bytes(data, wide(starts[i]), wide(offsets[i + 1]) - wide(offsets[i]), out, wide(offsets[i]))
