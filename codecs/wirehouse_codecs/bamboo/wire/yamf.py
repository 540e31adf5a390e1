"""YAMF hashes: which hash function, and its digest (yamf-hash specification, over stlv).

Only type 0 is assigned: Blake2b with a digest of 64 bytes, without key or salt. So a hash is always 66 bytes, and
Wirehouse's tables hold the digest alone.
"""

from __future__ import annotations

import hashlib
from typing import Final

DIGEST_BYTES: Final = 64
#: Type and length, which stand before the digest.
PREFIX: Final = bytes([0, DIGEST_BYTES])
HASH_BYTES: Final = len(PREFIX) + DIGEST_BYTES


def digest(data: bytes | bytearray | memoryview) -> bytes:
    """The Blake2b digest of `data`, 64 bytes."""
    return hashlib.blake2b(data).digest()


def encode(hash_digest: bytes) -> bytes:
    """The 66 bytes of a hash. ValueError: the digest isn't 64 bytes."""
    if len(hash_digest) != DIGEST_BYTES:
        raise ValueError(f"a digest has {DIGEST_BYTES} bytes, not {len(hash_digest)}")
    return PREFIX + hash_digest


def broken(written: bytes) -> str | None:
    """The rule that the 66 bytes of a hash break: `bad_yamf_id` or `bad_yamf_length`."""
    if written[0] != PREFIX[0]:
        return "bad_yamf_id"
    return None if written[1] == PREFIX[1] else "bad_yamf_length"
