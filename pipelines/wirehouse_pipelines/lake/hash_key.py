"""The secret key of a lake. It keys the hashes that replace secrets of the wire, and encrypts carried state.

In one lake, equal secrets have equal hashes, so they can be compared. Lakes with different keys have different hashes.
Carried state is encrypted (sealed) because it holds bytes of the wire.
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
#: The object that holds the key if the lake generated it.
NAME = "hash_key"
_KEY_BYTES = 32
_STATE = b"wirehouse carried state"


class HashKeyError(UsageError):
    """The key in the environment is empty."""

    template = "{variable} is set but empty: set it to a secret text, or unset it to let the lake generate a key"


class SealError(UsageError):
    """Carried state was sealed with another key, or is damaged."""

    template = (
        "carried state can't be read: it is damaged, or it was written with another {variable}; restore the key, or "
        "recompute the windows from the first one on with `wirehouse backfill`"
    )


def of(lake: Lake) -> bytes:
    """The key in WIREHOUSE_HASH_KEY, else the lake's own, which is generated when it is first needed."""
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
    """An identifier of the key that reveals nothing of it. It is part of digests, so a new key makes windows stale."""
    return hashlib.sha256(b"wirehouse key name" + of(lake)).hexdigest()[:16]


@dataclass(frozen=True)
class StateSeal:
    """Encrypts carried state with the lake's key.

    AES-SIV (RFC 5297) is deterministic: equal texts have equal ciphertexts, so digests of state can be compared.
    """

    key: bytes = field(repr=False)

    @cached_property
    def _cipher(self) -> AESSIV:
        return AESSIV(hashlib.sha512(_STATE + self.key).digest())

    def close(self, text: str, about: bytes) -> str:
        """Compress and encrypt `text`. It can only be opened with the same `about`."""
        return b64encode(self._cipher.encrypt(zlib.compress(text.encode(), 1), [about])).decode()

    def open(self, sealed: str, about: bytes) -> str:
        """The text that `close` sealed. Raises SealError."""
        try:
            return zlib.decompress(self._cipher.decrypt(b64decode(sealed), [about])).decode()
        except (InvalidTag, ValueError, zlib.error):
            raise SealError(variable=VARIABLE) from None

    def __getstate__(self) -> dict[str, bytes]:
        return {"key": self.key}
