"""BLAKE2b within compiled loops."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from tests.support.carried import carry
from wirehouse_codecs.compiled.blake2b import DIGEST, Digest, put_digests


def test_digests_are_those_of_the_standard_library() -> None:
    data = np.random.default_rng(7).integers(0, 256, 2_000, np.uint8)
    # Blocks have 128 bytes.
    sizes = [0, 1, 63, 64, 127, 128, 129, 255, 256, 257, 1_000]
    begins = np.arange(len(sizes)) * 90
    ends = begins + sizes
    out = np.zeros(len(sizes) * DIGEST, np.uint8)
    put_digests(data, begins, ends, out)
    expected = [blake2b(data[begin:end].tobytes()).digest() for begin, end in zip(begins, ends, strict=True)]
    assert out.tobytes() == b"".join(expected)


def test_a_digest_of_pieces_is_carried() -> None:
    data = bytes(range(256)) * 12
    digest, end = Digest(), 0
    assert digest.value == blake2b().digest()
    for size in (1, 0, 126, 1, 128, 129, 1_000):
        digest.update(data[end : end + size])
        end += size
        assert digest.value == blake2b(data[:end]).digest()
        digest = carry(digest)
