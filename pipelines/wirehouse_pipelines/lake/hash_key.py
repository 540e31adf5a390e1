"""The key of a lake: of the hashes that stand for secrets of the wire, and of carried state, which holds its bytes.

Equal secrets of a lake have equal hashes, those of lakes with other keys have others.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import zlib
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from functools import cached_property

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from wirehouse_codecs.core.errors import UsageError
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.storage.storage import open_storage

VARIABLE = "WIREHOUSE_HASH_KEY"
#: Where a lake keeps the key that was made for it.
NAME = "hash_key"
_KEY_BYTES = 32
_STATE = b"wirehouse carried state"


class HashKeyError(UsageError):
    """The key of the environment is empty."""

    template = "{variable} is set and empty: give it a secret text, or unset it, and the lake makes a key of its own"


class SealError(UsageError):
    """Carried state was sealed under another key, or is damaged."""

    template = (
        "carried state can't be read: it is damaged, or {variable} was another one when it was written; put the key "
        "back, or compute the windows anew from the first one with `wirehouse backfill`"
    )


def of(lake: Lake) -> bytes:
    """The key of WIREHOUSE_HASH_KEY, else the lake's own, made when it is first needed."""
    given = os.environ.get(VARIABLE)
    if given is not None:
        if not given:
            raise HashKeyError(variable=VARIABLE)
        return given.encode()
    storage = open_storage(lake.root)
    if not storage.exists(NAME):
        with storage.lock(NAME):
            if not storage.exists(NAME):
                storage.write(NAME, secrets.token_hex(_KEY_BYTES).encode(), private=True)
    with storage.open(NAME) as stream:
        return stream.read()


def name_of(lake: Lake) -> str:
    """What tells one key from another, and nothing of either: rows made under another one are stale."""
    return hashlib.sha256(b"wirehouse key name" + of(lake)).hexdigest()[:16]


@dataclass(frozen=True)
class StateSeal:
    """Carried state under the lake's key (AES-SIV, RFC 5297: equal texts stay equal, so that digests hold)."""

    key: bytes = field(repr=False)

    @cached_property
    def _cipher(self) -> AESSIV:
        return AESSIV(hashlib.sha512(_STATE + self.key).digest())

    def close(self, text: str, about: bytes) -> str:
        """`text`, compressed and sealed."""
        return b64encode(self._cipher.encrypt(zlib.compress(text.encode(), 1), [about])).decode()

    def open(self, sealed: str, about: bytes) -> str:
        """What `close` was given. Raises SealError."""
        try:
            return zlib.decompress(self._cipher.decrypt(b64decode(sealed), [about])).decode()
        except (InvalidTag, ValueError, zlib.error):
            raise SealError(variable=VARIABLE) from None

    def __getstate__(self) -> dict[str, bytes]:
        return {"key": self.key}
