"""LZFoo: the vectors, both decoders, the history that is carried, and a compressor that is worth it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import cramjam
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.carried import as_text, carry
from wirehouse_codecs.bamboo.wire import varu64
from wirehouse_codecs.bamboo.wire.lzfoo import MAX_HISTORY_BYTES, Deflater, Inflated, Inflater, inflate

VECTORS = json.loads((Path(__file__).parents[3] / "vectors" / "bamboo" / "lzfoo.json").read_text())["vectors"]
#: What the vectors call a cut element.
RULES = {"truncated": "lzfoo_truncated"}
WORDS = b"lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt".split()


def literal(data: bytes) -> bytes:
    return b"".join(bytes([len(piece)]) + piece for at in range(0, len(data), 119) if (piece := data[at : at + 119]))


def both(data: bytes, size: int, window: int = varu64.MAX_U64, history: bytes = b"") -> Inflated:
    """By the readable decoder, and by the compiled one with its history carried to another window."""
    plain = inflate(data, size, window, history)
    before = Inflater(window)
    assert before.inflate(literal(history), len(history)) == Inflated(history, None)
    compiled = carry(before)
    assert compiled.inflate(data, size) == plain
    return plain


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_vectors(vector: dict[str, Any]) -> None:
    data, history = bytes.fromhex(vector["hex"]), bytes.fromhex(vector["history_hex"])
    window = varu64.MAX_U64 if vector["window"] is None else vector["window"]
    if vector["ok"]:
        out = bytes.fromhex(vector["out_hex"])
        assert both(data, len(out), window, history) == Inflated(out, None)
        assert both(data, len(out) + 1, window, history).rule == "length_mismatch"
    else:
        assert both(data, 8, window, history) == Inflated(None, RULES.get(vector["error"], vector["error"]))


def test_a_copy_runs_into_its_own_output() -> None:
    assert both(b"\3abc\x85\2", 8) == Inflated(b"abcbcbcb", None)
    assert both(b"\1a\xf9\3\xe8\1", 1001) == Inflated(b"a" * 1001, None)


@pytest.mark.parametrize(
    ("data", "size", "rule"),
    [
        (b"\2ab\x82\0", 4, "offset_zero"),
        (b"\2ab\x82\3", 4, "offset_before_start"),
        (b"\2ab\x82\5", 4, "window_exceeded"),
        (b"\2ab\x82", 4, "lzfoo_truncated"),
        (b"\3ab", 3, "lzfoo_truncated"),
        (b"\x7f" + b"\xff" * 8 + b"ab", 3, "lzfoo_truncated"),
        (b"\1a\xff" + b"\xff" * 8 + b"\1", 3, "length_mismatch"),
        (b"\3abc", 2, "length_mismatch"),
        (b"\3abc", 4, "length_mismatch"),
        (b"", 1, "length_mismatch"),
        # Elements are judged one after the other.
        (b"\2ab\x82\0\3a", 4, "offset_zero"),
        (b"\3abc\x82\0", 2, "length_mismatch"),
    ],
)
def test_what_is_broken(data: bytes, size: int, rule: str) -> None:
    assert both(data, size, window=4) == Inflated(None, rule)


@pytest.mark.parametrize(
    ("offset", "wide"),
    [(b"\3", False), (b"\xf8\3", True), (b"\xf9\0\3", True), (b"\xff" + bytes(7) + b"\3", True)],
)
def test_an_offset_that_is_longer_than_it_needs_to_be_is_said(offset: bytes, wide: bool) -> None:
    data = literal(b"abc") + b"\x86" + offset
    assert both(data, 9) == Inflated(b"abcabcabc", None, wide)
    source, numbers = np.frombuffer(data, np.uint8), np.array([0, len(data), 9])
    _, count = Inflater(varu64.MAX_U64).inflate_all(source, numbers[:1], numbers[1:2], numbers[2:])
    assert count == (0 if wide else 1)


@pytest.mark.parametrize("offset", [247, 248, 255, 256, 65_535, 65_536])
def test_an_offset_in_the_shortest_way_is_not(offset: int) -> None:
    assert not both(b"\x81" + varu64.encode(offset), 1, history=bytes(70_000)).wide


def test_the_window_bounds_copies_also_into_earlier_packets() -> None:
    history = bytes(range(40))
    assert both(b"\x82\x10", 2, 16, history) == Inflated(bytes([24, 25]), None)
    assert both(b"\x82\x11", 2, 16, history).rule == "window_exceeded"
    assert both(b"\x81\1", 1, 0, history).rule == "window_exceeded"
    assert both(b"\1a", 1, 0, history) == Inflated(b"a", None)


def test_hostile_sizes_take_no_memory() -> None:
    inflater = Inflater(varu64.MAX_U64)
    endless = bytes(100_000)
    assert inflater.inflate(endless, 0) == Inflated(b"", None)
    assert inflater.inflate(b"\3abc", varu64.MAX_U64) == Inflated(None, "length_mismatch")
    assert inflater.inflate(b"\1a\xff" + b"\xff" * 7 + b"\xfe\1", 1 << 62).rule == "length_mismatch"
    assert len(as_text(inflater)) < 200
    # These elements do give as much as they announce.
    for size in (1 << 40, varu64.MAX_U64):
        run = b"\1a\xff" + (size - 1).to_bytes(8, "big") + b"\1"
        assert inflater.inflate(run, size) == Inflated(None, "history_unknown")
    assert inflater.inflate(b"\x81\1", 1).rule == "history_unknown"
    small = Inflater(10, max_bytes=5)
    assert small.inflate(b"\6abcdef", 6).rule == "history_unknown"
    assert small.inflate(b"\5abcde", 5).data == b"abcde"


def test_what_is_not_known_is_not_a_violation() -> None:
    late = Inflater(1000, from_start=False)
    assert late.inflate(b"\x82\5", 2) == Inflated(None, "history_unknown")
    assert late.inflate(b"\5abcde\x82\5", 7) == Inflated(b"abcdeab", None)
    assert late.inflate(b"\x82\7", 2) == Inflated(b"ab", None)
    # What was not read belongs to the history, so all from before is at an unknown place.
    assert late.inflate(b"\x82\x20", 2).rule == "history_unknown"
    assert late.inflate(b"\x82\2", 2).rule == "history_unknown"
    assert late.inflate(b"\x82\xf9\4\0", 2).rule == "window_exceeded"
    known = Inflater(1000)
    assert known.inflate(b"\x82\5", 2).rule == "offset_before_start"
    known.forget()
    assert known.inflate(b"\x82\5", 2).rule == "history_unknown"
    assert carry(known).inflate(b"\x82\5", 2).rule == "history_unknown"


def test_of_a_huge_window_only_the_last_bytes_are_kept() -> None:
    inflater = Inflater(varu64.MAX_U64)
    size = MAX_HISTORY_BYTES + 5
    run = b"\1a\xfb" + (size - 1).to_bytes(4, "big") + b"\1"
    assert inflater.inflate(run, size).data == b"a" * size
    offset = varu64.encode(MAX_HISTORY_BYTES)
    assert inflater.inflate(b"\x81" + offset, 1) == Inflated(b"a", None)
    assert inflater.inflate(b"\x81" + varu64.encode(MAX_HISTORY_BYTES + 1), 1).rule == "history_unknown"


def text(seed: int, size: int) -> bytes:
    chosen = random.Random(seed)
    words = b" ".join(chosen.choices(WORDS, k=size // 3))
    return words[:size]


texts = st.builds(text, st.integers(0, 3), st.integers(0, 900))
payloads = st.lists(st.binary(max_size=300) | texts | st.builds(bytes, st.integers(0, 700)), max_size=6)


@settings(max_examples=120)
@given(payloads, st.sampled_from([0, 1, 3, 16, 300, 70_000, varu64.MAX_U64]))
def test_what_is_compressed_comes_back(sent: list[bytes], window: int) -> None:
    deflater, inflater = Deflater(window), Inflater(window)
    history = b""
    for payload in sent:
        packet = deflater.compress(payload)
        assert inflate(packet, len(payload), window, history) == Inflated(payload, None)
        assert inflater.inflate(packet, len(payload)) == Inflated(payload, None)
        again = carry(inflater)
        assert again.state == inflater.state
        inflater = again
        history += payload
        runs = len(payload) // 119 + 1
        assert len(packet) <= len(payload) + 2 * runs


def test_the_buffer_slides_over_many_packets() -> None:
    deflater, inflater = Deflater(1000), Inflater(1000)
    sent = [text(seed, 200 + seed % 700) for seed in range(1000)]
    packets = [deflater.compress(payload) for payload in sent]
    assert [inflater.inflate(packet, len(p)).data for packet, p in zip(packets, sent, strict=True)] == sent
    big = text(1, 300_000)
    assert inflater.inflate(deflater.compress(big), len(big)).data == big
    assert inflater.inflate(deflater.compress(sent[0]), len(sent[0])).data == sent[0]


def test_compression_is_worth_it() -> None:
    data = text(7, 100_000)
    assert len(Deflater(1 << 16).compress(data)) < len(cramjam.snappy.compress_raw(data))
    # Short payloads live on what was sent before.
    deflater = Deflater(1 << 16)
    sizes = [len(deflater.compress(text(seed, 200))) for seed in range(300)]
    assert sum(sizes[100:]) < 0.5 * 200 * 200


@settings(max_examples=300)
@given(st.binary(max_size=40), st.integers(0, 60), st.sampled_from([0, 2, 300]), st.binary(max_size=20))
def test_any_bytes(data: bytes, size: int, window: int, history: bytes) -> None:
    both(data, size, window, history)


@settings(max_examples=50)
@given(
    sent=st.lists(st.binary(max_size=60) | st.sampled_from([b"abc" * 30, b"x" * 200]), min_size=1, max_size=8),
    window=st.sampled_from([1, 30, 1 << 16]),
    bad=st.none() | st.integers(0, 7),
    before=st.integers(0, 7),
)
def test_many_at_once_are_what_each_is(sent: list[bytes], window: int, bad: int | None, before: int) -> None:
    deflater, one, many = Deflater(window), Inflater(window), Inflater(window)
    packed = [deflater.compress(data) for data in sent]
    for inflater in (one, many):
        for data, size in list(zip(packed, map(len, sent), strict=True))[:before]:
            inflater.inflate(data, size)
    sizes = [len(data) + (number == bad) for number, data in enumerate(sent)][before:]
    expected = []
    for data, size in zip(packed[before:], sizes, strict=True):
        inflated = one.inflate(data, size)
        if inflated.data is None:
            break
        expected.append(inflated.data)
    lengths = np.array([len(data) for data in packed[before:]], np.int64)
    source = np.frombuffer(b"".join(packed[before:]), np.uint8)
    out, count = many.inflate_all(source, np.cumsum(lengths) - lengths, lengths, np.array(sizes, np.int64))
    assert count == len(expected)
    given_back = out[: sum(map(len, expected))]
    assert given_back.tobytes() == b"".join(expected)
    many.add(given_back)
    assert many.state == one.state
