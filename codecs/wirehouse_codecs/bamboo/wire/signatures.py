"""Verifies the signatures of many entries at once (bamboo specification, "Signature"): Ed25519.

`signature_rules` takes an array of encoded entries, and returns for each the rule that its signature breaks, or None. A
compiled loop calls the libsodium of PyNaCl on the entries in the array, without copies and on all cores. Entries that
it refuses are checked again by PyNaCl, one by one (`entries.signature_rule`), which finds the rule. If libsodium can't
be called directly, PyNaCl checks all of them.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numba
import numpy as np
import pyarrow as pa

from wirehouse_codecs.bamboo.wire.entries import AUTHOR_BYTES, SIGNATURE_BYTES, signature_rule
from wirehouse_codecs.compiled.jit import compiled, external, link

Array = np.ndarray[Any, Any]

_VERIFY: Final = "crypto_sign_verify_detached"
_place, _word = numba.types.uintp, numba.types.uint64
_verify = external(_VERIFY, numba.types.int32(_place, _place, _word, _place))
#: Whether libsodium's function was found. A libsodium that PyNaCl was built against may not export it.
LINKED: Final = link("nacl._sodium", [_VERIFY])
#: Number of signatures that a thread is given at once: some milliseconds of work.
_SHARE: Final = 256


def signature_rules(entries: pa.Array) -> list[str | None]:
    """The rule that each signature breaks, as `signature_rule`, of correctly encoded entries: an array of binary."""
    refused = _refused(entries) if LINKED else range(len(entries))
    rules: list[str | None] = [None] * len(entries)
    for i in refused:
        entry = entries[i].as_py()
        signed, signature = entry[:-SIGNATURE_BYTES], entry[-SIGNATURE_BYTES:]
        rules[i] = signature_rule(entry[1 : 1 + AUTHOR_BYTES], signed, signature)
    return rules


def _refused(entries: pa.Array) -> list[int]:
    """The numbers of the entries that libsodium refuses."""
    if not len(entries):
        return []
    _, offsets, data = entries.buffers()
    ends = np.frombuffer(offsets, np.int32)[entries.offset :][: len(entries) + 1]
    right = np.zeros(len(entries), np.bool_)
    shares = range(0, len(entries), _SHARE)

    def check(begin: int) -> None:
        _check(np.frombuffer(data, np.uint8), ends[begin : begin + _SHARE + 1], right[begin : begin + _SHARE])

    if len(shares) == 1:
        check(0)
    else:
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            list(threads.map(check, shares))
    return np.flatnonzero(~right).tolist()


@compiled
def _check(data: Array, offsets: Array, right: Array) -> None:
    """Set `right` for each entry, between two offsets, whose signature is right."""
    first = data.ctypes.data
    for row in range(len(right)):
        begin, end = offsets[row], offsets[row + 1]
        if end - begin > AUTHOR_BYTES + SIGNATURE_BYTES:
            signed = end - begin - SIGNATURE_BYTES
            at = first + begin
            right[row] = _verify(at + signed, at, signed, at + 1) == 0
