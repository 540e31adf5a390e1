"""Signatures of many entries at once are judged as PyNaCl judges each, wherever the entries stand."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirehouse_codecs.bamboo.simulator.simulator import SimulatorConfig, entries
from wirehouse_codecs.bamboo.wire import signatures
from wirehouse_codecs.bamboo.wire.entries import AUTHOR_BYTES, SIGNATURE_BYTES, signature_rule
from wirehouse_codecs.bamboo.wire.signatures import signature_rules

ENTRIES = [written.data for written in entries(SimulatorConfig(seed=3, connections=1, logs=2, entries=40))]
#: Keys and points of small order, and encodings that aren't canonical (RFC 8032, 5.1.3).
ODD = [
    bytes(32),
    b"\x01" + bytes(31),
    b"\xff" * 32,
    (2**255 - 19).to_bytes(32, "little"),
    b"\xec" + b"\xff" * 30 + b"\x7f",
]


def one_by_one(listed: list[bytes]) -> list[str | None]:
    return [
        signature_rule(entry[1 : 1 + AUTHOR_BYTES], entry[:-SIGNATURE_BYTES], entry[-SIGNATURE_BYTES:])
        for entry in listed
    ]


def changed(entry: bytes, at: int, bit: int) -> bytes:
    at %= len(entry)
    return entry[:at] + bytes([entry[at] ^ 1 << bit]) + entry[at + 1 :]


def with_parts(entry: bytes, author: bytes, point: bytes) -> bytes:
    return entry[:1] + author + entry[1 + AUTHOR_BYTES : -SIGNATURE_BYTES] + point + entry[-SIGNATURE_BYTES // 2 :]


CHANGED = st.builds(changed, st.sampled_from(ENTRIES), st.integers(0, 400), st.integers(0, 7))
PARTS = st.builds(with_parts, st.sampled_from(ENTRIES), st.sampled_from(ODD), st.sampled_from(ODD))


@given(st.lists(st.sampled_from(ENTRIES) | CHANGED | PARTS, max_size=12), st.integers(0, 3), st.integers(1, 5))
def test_rules_are_those_of_each_entry_by_itself(listed: list[bytes], skipped: int, share: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signatures, "_SHARE", share)
        assert signature_rules(pa.array(listed, pa.binary())[skipped:]) == one_by_one(listed[skipped:])


def test_a_libsodium_that_shows_nothing_is_asked_through_pynacl(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [ENTRIES[0], changed(ENTRIES[1], -1, 0), ENTRIES[2]]
    monkeypatch.setattr(signatures, "LINKED", False)
    monkeypatch.setattr(signatures, "_check", None)
    assert signature_rules(pa.array(listed, pa.binary())) == [None, "bad_signature", None]
