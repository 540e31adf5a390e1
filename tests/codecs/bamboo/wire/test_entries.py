"""Entries: encode, sign, and the strict decoder with its compiled twin."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import nacl.signing
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wirehouse_codecs.bamboo.wire import yamf
from wirehouse_codecs.bamboo.wire.entries import (
    FOLLOWING,
    MAX_ENTRY_BYTES,
    Entry,
    begins_right,
    decode,
    end_of,
    find,
    following,
    publish,
    scan,
    signature_rule,
)
from wirehouse_codecs.bamboo.wire.lipmaa import link_targets
from wirehouse_codecs.bamboo.wire.varu64 import MAX_U64, encode

VECTORS = Path(__file__).parents[3] / "vectors" / "bamboo"
LOGS = sorted((VECTORS / "logs").glob("*.jsonl"))
digests = st.binary(min_size=64, max_size=64)
numbers = st.integers(0, 300) | st.integers(0, MAX_U64)


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    seq = draw(st.integers(1, 45) | st.integers(1, MAX_U64))
    links = len(link_targets(seq))
    return Entry(
        author=draw(st.binary(min_size=32, max_size=32)),
        log_id=draw(numbers),
        seq=seq,
        lipmaalink=draw(digests) if links == 2 else None,
        backlink=draw(digests) if links else None,
        payload_size=draw(numbers),
        payload_hash=draw(digests),
        signature=draw(digests),
        end_of_log=draw(st.booleans()),
    )


def rule_of(data: bytes) -> str | None:
    decoded = decode(data)
    assert (decoded.rule is None) == (decoded.entry is not None)
    assert (decoded.rule is None) == (decoded.reason == "")
    # The compiled twin takes exactly what the readable decoder takes.
    assert bool(scan(pa.array([data], pa.binary())).right[0]) == (decoded.rule is None)
    return None if decoded.rule is None else decoded.rule.name


@settings(max_examples=60)
@given(entries(), st.binary(max_size=3))
def test_entries_come_back(entry: Entry, junk: bytes) -> None:
    data = entry.encode()
    assert decode(data).entry == entry
    assert len(data) <= MAX_ENTRY_BYTES
    assert end_of(junk + data + junk, len(junk)) == len(junk) + len(data)
    assert begins_right(data + junk, 0) == (True, len(data))
    # Of a longer array, a part.
    rows = pa.array([junk, b"", data, None, junk], pa.binary())[1:]
    row = scan(rows)
    assert row.right.tolist() == [False, True, False, False]
    assert (int(row.log_id[1]), int(row.seq[1]), int(row.payload_size[1])) == (
        entry.log_id,
        entry.seq,
        entry.payload_size,
    )
    assert bool(row.end_of_log[1]) == entry.end_of_log
    at = int(row.payload_hash_at[1])
    assert row.data[at : at + 66].tobytes() == yamf.encode(entry.payload_hash)
    links = row.data[int(row.links_at[1]) :][: int(row.links[1]) * 66].tobytes()
    assert links == b"".join(yamf.encode(link) for link in (entry.lipmaalink, entry.backlink) if link)
    right, columns = following(rows)
    assert right.tolist() == row.right.tolist()
    assert {name: column.to_pylist() for name, column in columns.items()} == {
        name: [None, getattr(entry, name), None, None] for name in FOLLOWING
    }


@settings(max_examples=30)
@given(entries())
def test_an_entry_is_cut_everywhere(entry: Entry) -> None:
    data = entry.encode()
    for cut in range(len(data)):
        assert rule_of(data[:cut]) == "truncated"
        assert begins_right(data[:cut], 0) == (True, None)
        assert end_of(data[:cut]) is None
    assert rule_of(data + b"\0") == "trailing_bytes"


@settings(max_examples=200)
@given(entries(), st.data())
def test_damaged_entries_never_pass_both_ways_or_raise(entry: Entry, data: st.DataObject) -> None:
    damaged = bytearray(entry.encode())
    for at in data.draw(st.lists(st.integers(0, len(damaged) - 1), min_size=1, max_size=4)):
        damaged[at] = data.draw(st.integers(0, 255))
    decoded = decode(bytes(damaged))
    rule_of(bytes(damaged))
    if decoded.entry is not None:
        assert decoded.entry.encode() == bytes(damaged)
    right, end = begins_right(damaged, 0)
    assert (right and end == len(damaged)) == (decoded.entry is not None)


def test_each_rule_of_encoding(make_log: Callable[..., Any]) -> None:
    entry = make_log(4).entries[4]
    data = entry.encode()
    links, hash_at = 35, 35 + 132 + 1
    assert (data[links : links + 2], data[hash_at : hash_at + 2]) == (yamf.PREFIX, yamf.PREFIX)
    assert rule_of(data) is None
    assert rule_of(data[:-1]) == "truncated"
    assert rule_of(b"") == "truncated"
    assert rule_of(data + b"x") == "trailing_bytes"
    assert rule_of(data[:links] + data[links + 66 :]) == "malformed"
    assert rule_of(data[:34] + b"\5" + data[35:]) == "malformed"
    assert rule_of(b"\2" + data[1:]) == "bad_tag"
    first = make_log(1).entries[1].encode()
    assert rule_of(first[:34] + b"\0" + first[35:]) == "seq_zero"
    assert rule_of(data[:33] + b"\xf8\0" + data[34:]) == "noncanonical_varu64"
    assert rule_of(data[:34] + b"\xf8\4" + data[35:]) == "noncanonical_varu64"
    assert rule_of(data[: hash_at - 1] + b"\xf8\x09" + data[hash_at:]) == "noncanonical_varu64"
    for at in (links, links + 66, hash_at):
        assert rule_of(data[:at] + b"\1" + data[at + 1 :]) == "bad_yamf_id"
        assert rule_of(data[: at + 1] + b"\x3f" + data[at + 2 :]) == "bad_yamf_length"


def test_the_first_rule_in_their_order_is_told(make_log: Callable[..., Any]) -> None:
    data = make_log(2).entries[2].encode()
    assert rule_of(b"\2" + data[1:-1]) == "truncated"
    assert rule_of(b"\2" + data[1:33] + b"\xf8\0" + data[34:]) == "bad_tag"
    assert rule_of(data[:33] + b"\xf8\0\2\1" + data[36:]) == "noncanonical_varu64"
    assert rule_of(data[:35] + b"\0\x3f" + data[37:102] + b"\1" + data[103:]) == "bad_yamf_id"


def test_what_can_be_read_of_a_damaged_entry_is_told(make_log: Callable[..., Any]) -> None:
    entry = make_log(3, log_id=300).entries[3]
    told = decode(entry.encode()[:-1])
    assert (told.author, told.log_id, told.seq) == (entry.author, 300, 3)
    assert decode(entry.encode()[:36]).seq is None
    assert decode(entry.encode()[:20]).author is None


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_vectors_say_of_themselves_what_is_read(path: Path) -> None:
    for line in path.read_text().splitlines():
        row = json.loads(line)
        told = decode(bytes.fromhex(row["entry_hex"]))
        assert told.author is not None
        assert (told.author.hex(), str(told.log_id), told.seq) == (row["author"], row["log_id"], row["seq"])
        if told.entry is not None:
            assert told.entry.encode().hex() == row["entry_hex"]


def test_published_entries_are_signed() -> None:
    key = nacl.signing.SigningKey(bytes(32))
    first = publish(key, b"hello")
    assert (first.seq, first.payload_size, first.payload_hash) == (1, 5, yamf.digest(b"hello"))
    assert len(first.encode()) == 166
    second = publish(key, b"", seq=2, backlink=yamf.digest(first.encode()), end_of_log=True)
    assert len(second.encode()) == 232
    for entry in (first, second):
        assert signature_rule(entry.author, entry.signed_bytes(), entry.signature) is None
        changed = replace(entry, payload_size=9)
        assert signature_rule(entry.author, changed.signed_bytes(), entry.signature) == "bad_signature"
    with pytest.raises(ValueError, match="links to none"):
        publish(key, b"", backlink=bytes(64))
    with pytest.raises(ValueError, match=r"links to \(1, 3\)"):
        publish(key, b"", seq=4, backlink=bytes(64))


@pytest.mark.parametrize(
    ("author", "rule"),
    [
        (b"\xff" * 32, "bad_author_key"),
        ((2**255 - 19).to_bytes(32, "little"), "bad_author_key"),
        ((2).to_bytes(32, "little"), "bad_author_key"),
        # A point, if one of small order.
        ((1).to_bytes(32, "little"), "bad_signature"),
        (bytes(nacl.signing.SigningKey(bytes(32)).verify_key), "bad_signature"),
    ],
)
def test_keys_that_are_no_points(author: bytes, rule: str) -> None:
    assert signature_rule(author, b"signed", bytes(64)) == rule


def test_the_next_entry_is_found_in_bytes(make_log: Callable[..., Any]) -> None:
    data = make_log(4).entries[4].encode()
    junk = bytes(range(256)) + encode(MAX_U64)
    assert find(junk) == -1
    assert find(junk + data) == len(junk)
    assert find(junk + data[:-1]) == -1
    assert find(data + data, 1) == len(data)
    assert find(b"") == -1
