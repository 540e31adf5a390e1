"""Digests in one call are those of hashlib, by OpenSSL within a compiled loop and without it."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha384
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirehouse_codecs.compiled import sha384 as hashing
from wirehouse_codecs.compiled.jit import link

Parts = st.lists(st.binary(max_size=300), max_size=20)
Digests = Callable[[bytes, Any, Any, Any], bytes]


@pytest.mark.parametrize("digests", [hashing.digests, hashing.by_hashlib], ids=["digests", "by_hashlib"])
@given(st.binary(max_size=3), st.binary(max_size=9), Parts)
def test_digests_are_those_of_hashlib(digests: Digests, prefix: bytes, before: bytes, parts: list[bytes]) -> None:
    data = np.frombuffer(before + b"".join(parts), np.uint8)
    ends = len(before) + np.cumsum([len(part) for part in parts], dtype=np.int32)
    begins = (ends - [len(part) for part in parts]).astype(np.int32)
    assert digests(prefix, data, begins, ends) == b"".join(sha384(prefix + part).digest() for part in parts)


def test_a_python_that_does_not_show_openssl_is_served_by_hashlib(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not link("_hashlib", ["SHA384_None"])
    monkeypatch.setattr(hashing, "LINKED", False)
    monkeypatch.setattr(hashing, "_put_digests", None)
    data = np.frombuffer(b"abc", np.uint8)
    assert hashing.digests(b"", data, np.array([1]), np.array([3])) == sha384(b"bc").digest()
