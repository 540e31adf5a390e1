"""SHA-384 of many byte strings.

A compiled loop calls the OpenSSL functions that Python's hashlib is linked to; where that isn't possible, hashlib is
used. For inputs of a few hundred bytes the overhead of hashlib is about half of the time that the hash itself takes.
"""

from __future__ import annotations

from hashlib import sha384
from typing import Any, Final

import numba
import numpy as np

from wirehouse_codecs.compiled.jit import compiled, external, link

Array = np.ndarray[Any, Any]

#: Length of a digest in bytes.
DIGEST: Final = 48
#: Memory for OpenSSL's SHA512_CTX, which is smaller.
_STATE_BYTES: Final = 256

_word, _place, _done = numba.types.uint64, numba.types.uintp, numba.types.int32
#: Signatures by the name of the function in OpenSSL.
_SIGNATURES: Final = {
    "SHA384_Init": _done(_place),
    "SHA384_Update": _done(_place, _place, _word),
    "SHA384_Final": _done(_place, _place),
}
_init, _update, _final = map(external, _SIGNATURES, _SIGNATURES.values())

#: Whether OpenSSL's functions were found. They aren't where OpenSSL is linked into Python statically.
LINKED: Final = link("_hashlib", _SIGNATURES)


def digests(prefix: bytes, data: Array, begins: Array, ends: Array) -> bytes:
    """The hashes of `prefix + data[begin:end]` for each begin and end, concatenated."""
    if not LINKED:
        return by_hashlib(prefix, data, begins, ends)
    out = np.empty(DIGEST * len(begins), np.uint8)
    # The same array types at every call, or the loop would be compiled again for each combination.
    read_only = data.view()
    read_only.flags.writeable = False
    _put_digests(np.frombuffer(prefix, np.uint8), read_only, begins.astype(np.int64), ends.astype(np.int64), out)
    return out.tobytes()


def by_hashlib(prefix: bytes, data: Array, begins: Array, ends: Array) -> bytes:
    """The reference path of `digests`."""
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
