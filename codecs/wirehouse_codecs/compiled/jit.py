"""Compiles Python functions that loop over bytes to machine code, with Numba."""

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
    """`function` as machine code, cached on disk if a cache folder can be written."""
    return _compile(function, nogil=True)


def inlined(function: F) -> F:
    """A small function, inlined into each compiled caller, so that no array has to be passed."""
    return _compile(function, nogil=True, inline="always")


def _compile(function: F, **options: Any) -> F:
    try:
        return cast(F, numba.njit(cache=True, **options)(function))
    except RuntimeError:  # neither the package's folder nor the user's cache is writable
        return cast(F, numba.njit(**options)(function))


@inlined
def wide(number: Any) -> int:
    """`number` as a signed 64-bit integer, so that sums of positions don't wrap and don't mix signedness."""
    in_64_bits: int = _INT64(number)
    return in_64_bits


@compiled
def copy_bytes(data: Any, at: int, size: int, out: Any, to: int) -> None:
    """Copy `size` bytes of the array `data` from `at` on into `out` at `to`. No number may be negative."""
    # An unsigned position can't count from the end, so the loop compiles to a plain copy, which takes 1/20 of the time.
    begin, target = _UINT64(at), _UINT64(to)
    for i in range(_UINT64(size)):
        out[target + i] = data[begin + i]


def external(name: str, signature: Any) -> Any:
    """A library function that compiled loops can call. `link` connects `name` to the library."""
    # Machine code cached on disk refers to the function by this name. The prefix avoids a clash with other packages.
    return numba.types.ExternalFunction(f"wirehouse_{name}", signature)


def link(module: str, names: Iterable[str]) -> bool:
    """Connect `names` to the functions of the library that a Python extension module is linked to.

    Returns False if the module or one of the functions can't be found.
    """
    try:
        library = ctypes.CDLL(import_module(module).__file__)
        places = {name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in names}
    except (ImportError, AttributeError, OSError):
        return False
    for name, place in places.items():
        llvmlite.binding.add_symbol(f"wirehouse_{name}", place)
    return True
