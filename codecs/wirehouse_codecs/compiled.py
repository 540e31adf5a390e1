"""Loops over bytes as machine code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np

F = TypeVar("F", bound=Callable[..., Any])
_INT64: Any = np.int64
_UINT64: Any = np.uint64


def compiled(function: F) -> F:
    """`function` as machine code, kept on disk where there is a place to keep it."""
    return _compile(function, nogil=True)


def inlined(function: F) -> F:
    """The same for a small function: its code is put in the place of each call, so that no array is handed over."""
    return _compile(function, nogil=True, inline="always")


def _compile(function: F, **options: Any) -> F:
    try:
        return cast(F, numba.njit(cache=True, **options)(function))
    except RuntimeError:  # neither the package's folder nor the user's cache can be written
        return cast(F, numba.njit(**options)(function))


@inlined
def wide(number: Any) -> int:
    """`number` in 64 bits, so that sums of positions don't wrap and mix no signs."""
    in_64_bits: int = _INT64(number)
    return in_64_bits


@compiled
def copy_bytes(data: Any, at: int, size: int, out: Any, to: int) -> None:
    """Copy `size` bytes of the array `data` from `at` on into `out` at `to`; none of the numbers is negative."""
    # Unsigned, as a position that can't count from the end lets the loop be a plain copy: it takes a twentieth.
    begin, target = _UINT64(at), _UINT64(to)
    for i in range(_UINT64(size)):
        out[target + i] = data[begin + i]
