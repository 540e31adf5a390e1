"""BLAKE2b for compiled loops. They call libsodium's function, which comes with PyNaCl."""

from __future__ import annotations

from typing import Any, Final

import llvmlite.binding
import numba
import numpy as np
from nacl._sodium import ffi, lib
from nacl.bindings import crypto_generichash as generichash

from wirehouse_codecs.compiled.jit import compiled, inlined

Array = np.ndarray[Any, Any]

#: The longest digest, in bytes.
DIGEST: Final = 64

#: The name of the function in machine code, including code cached on disk.
_SYMBOL: Final = "wirehouse_blake2b"
llvmlite.binding.add_symbol(
    _SYMBOL, int(ffi.cast("intptr_t", ffi.addressof(lib, "crypto_generichash_blake2b_salt_personal")))
)
_word, _place = numba.types.uint64, numba.types.uintp
_signature = numba.types.int32(_place, _word, _place, _word, _place, _word, _place, _place)
_blake2b: Any = numba.types.ExternalFunction(_SYMBOL, _signature)


@inlined
def put_digest(data: Array, begin: int, end: int, out: Array, to: int) -> None:
    """Write the digest of `data[begin:end]`, 64 bytes, to `out` at `to`."""
    # No key, no salt, no personal string.
    _blake2b(out.ctypes.data + to, DIGEST, data.ctypes.data + begin, end - begin, 0, 0, 0, 0)


@compiled
def put_digests(data: Array, begins: Array, ends: Array, out: Array) -> None:
    """Write the digests of the byte strings `data[begin:end]` to `out`, one after the other."""
    for row in range(len(begins)):
        put_digest(data, begins[row], ends[row], out, row * DIGEST)


class Digest:
    """The digest of bytes that arrive in pieces. Its state can be stored and restored."""

    def __init__(self) -> None:
        self._hash = generichash.generichash_blake2b_init(digest_size=DIGEST)

    def update(self, data: bytes | bytearray) -> None:
        """Add the next bytes."""
        generichash.generichash_blake2b_update(self._hash, bytes(data))

    @property
    def value(self) -> bytes:
        """The digest of all bytes added so far."""
        digest: bytes = generichash.generichash_blake2b_final(self._hash.copy())
        return digest

    @property
    def state(self) -> bytes:
        """The state, from which `from_state` continues."""
        return bytes(ffi.buffer(self._hash._statebuf))

    @classmethod
    def from_state(cls, state: bytes) -> Digest:
        """A digest that continues from `state`. ValueError: it has another size."""
        digest = cls()
        ffi.buffer(digest._hash._statebuf)[:] = state
        return digest
