"""The key of the hashes that stand for secrets of the wire: equal secrets of a lake have equal hashes, no others do."""

from __future__ import annotations

import os
import secrets

from wirehouse_codecs.errors import UsageError
from wirehouse_pipelines.lake import Lake
from wirehouse_pipelines.storage import open_storage

VARIABLE = "WIREHOUSE_HASH_KEY"
#: Where a lake keeps the key that was made for it.
NAME = "hash_key"
_KEY_BYTES = 32


class HashKeyError(UsageError):
    """The key of the environment is empty."""

    template = "{variable} is set and empty: give it a secret text, or unset it, and the lake makes a key of its own"


def of(lake: Lake) -> bytes:
    """The key of WIREHOUSE_HASH_KEY, else the lake's own, made when it is first needed."""
    given = os.environ.get(VARIABLE)
    if given is not None:
        if not given:
            raise HashKeyError(variable=VARIABLE)
        return given.encode()
    storage = open_storage(lake.root)
    with storage.lock(NAME):
        if not storage.exists(NAME):
            storage.write(NAME, secrets.token_hex(_KEY_BYTES).encode())
        with storage.open(NAME) as stream:
            return stream.read()
