"""SHA-384 of many byte strings: in a compiled loop by the OpenSSL that Python's hashlib is linked to, else by hashlib.

hashlib takes half as long again as the hash itself of a few hundred bytes.
"""

from __future__ import annotations

import ctypes
from hashlib import sha384
from typing import Any, Final

import llvmlite.binding
import numba
import numpy as np

from wirehouse_codecs.compiled import compiled

Array = np.ndarray[Any, Any]

#: Bytes of a digest.
DIGEST: Final = 48
#: More than OpenSSL's SHA512_CTX has.
_STATE_BYTES: Final = 256

_word, _place, _done = numba.types.uint64, numba.types.uintp, numba.types.int32
#: By their names in OpenSSL; those by which machine code that is kept on disk finds them again begin with ours.
_SIGNATURES: Final = {
    "SHA384_Init": _done(_place),
    "SHA384_Update": _done(_place, _place, _word),
    "SHA384_Final": _done(_place, _place),
}
_functions: tuple[Any, ...] = tuple(
    numba.types.ExternalFunction(f"wirehouse_{name}", signature) for name, signature in _SIGNATURES.items()
)
_init, _update, _final = _functions


def _link() -> bool:
    """Whether all functions were found. A Python that has OpenSSL within itself doesn't show them."""
    try:
        import _hashlib

        library = ctypes.CDLL(_hashlib.__file__)
        places = {name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in _SIGNATURES}
    except (ImportError, AttributeError, OSError):
        return False
    for name, place in places.items():
        llvmlite.binding.add_symbol(f"wirehouse_{name}", place)
    return True


LINKED: Final = _link()


def digests(prefix: bytes, data: Array, begins: Array, ends: Array) -> bytes:
    """The hashes of parts of `data`, each behind `prefix`, one behind the other."""
    if not LINKED:
        return by_hashlib(prefix, data, begins, ends)
    out = np.empty(DIGEST * len(begins), np.uint8)
    # One kind of array each, or the loop were compiled for all.
    read_only = data.view()
    read_only.flags.writeable = False
    _put_digests(np.frombuffer(prefix, np.uint8), read_only, begins.astype(np.int64), ends.astype(np.int64), out)
    return out.tobytes()


def by_hashlib(prefix: bytes, data: Array, begins: Array, ends: Array) -> bytes:
    """The readable twin of `digests`."""
    view, fresh = memoryview(data.data), sha384(prefix).copy
    hashes = []
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        state = fresh()
        state.update(view[begin:end])
        hashes.append(state.digest())
    return b"".join(hashes)


@compiled
def _put_digests(prefix: Array, data: Array, begins: Array, ends: Array, out: Array) -> None:
    memory = np.empty(_STATE_BYTES, np.uint8)
    state = memory.ctypes.data
    for row in range(len(begins)):
        _init(state)
        _update(state, prefix.ctypes.data, len(prefix))
        _update(state, data.ctypes.data + begins[row], ends[row] - begins[row])
        _final(out.ctypes.data + row * DIGEST, state)
