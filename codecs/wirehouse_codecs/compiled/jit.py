"""Loops over bytes as machine code."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, TypeVar, cast

import llvmlite.binding
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


def external(name: str, signature: Any) -> Any:
    """The function `name` of a library that `link` takes it from, for compiled loops to call."""
    # Machine code that is kept on disk finds it again by its name, which begins with ours: another may have it too.
    return numba.types.ExternalFunction(f"wirehouse_{name}", signature)


def link(module: str, names: Iterable[str]) -> bool:
    """Take functions from the library that an extension module of Python is linked to; false = it doesn't show them."""
    try:
        library = ctypes.CDLL(import_module(module).__file__)
        places = {name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in names}
    except (ImportError, AttributeError, OSError):
        return False
    for name, place in places.items():
        llvmlite.binding.add_symbol(f"wirehouse_{name}", place)
    return True
