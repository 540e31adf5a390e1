"""VarU64, hashes, lipmaalinks and certificate pools."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirehouse_codecs.bamboo.wire import lipmaa, varu64, yamf

VECTORS = Path(__file__).parents[3] / "vectors" / "bamboo"
VARU64 = json.loads((VECTORS / "varu64.json").read_text())
LIPMAA = json.loads((VECTORS / "lipmaa.json").read_text())
numbers = st.integers(0, varu64.MAX_U64) | st.integers(0, 300) | st.integers(0, 8).map(lambda n: (1 << 8 * n) - 1)


@pytest.mark.parametrize("vector", VARU64["encode"], ids=lambda vector: vector["n"])
def test_varu64_encodes_as_the_crate(vector: dict[str, Any]) -> None:
    assert varu64.encode(int(vector["n"])).hex() == vector["hex"]


@pytest.mark.parametrize("vector", VARU64["decode"], ids=lambda vector: vector["hex"] or "nothing")
def test_varu64_decodes_as_the_crate_but_reads_long_numbers(vector: dict[str, Any]) -> None:
    read = varu64.decode(bytes.fromhex(vector["hex"]))
    if vector["ok"]:
        assert read == (int(vector["n"]), vector["consumed"], True)
    elif vector["error"] == "UnexpectedEndOfInput":
        assert read is None
    else:
        assert vector["error"].startswith("NonCanonical")
        assert read is not None
        assert not read.canonical
        assert f"encoded_number: {read.value} " in vector["error"]


@given(numbers, st.binary(max_size=4), st.binary(max_size=4))
def test_varu64_comes_back_and_is_cut_everywhere(number: int, before: bytes, after: bytes) -> None:
    encoded = varu64.encode(number)
    assert varu64.decode(before + encoded + after, len(before)) == (number, len(before) + len(encoded), True)
    assert all(varu64.decode(encoded[:cut]) is None for cut in range(len(encoded)))


@pytest.mark.parametrize("number", [-1, 1 << 64])
def test_varu64_refuses_what_has_no_64_bits(number: int) -> None:
    with pytest.raises(ValueError, match="no unsigned 64-bit number"):
        varu64.encode(number)


def test_hashes() -> None:
    written = yamf.encode(yamf.digest(b""))
    assert written.hex().startswith("0040786a02f7")
    assert len(written) == yamf.HASH_BYTES
    assert yamf.broken(written) is None
    assert yamf.broken(b"\1" + written[1:]) == "bad_yamf_id"
    assert yamf.broken(b"\0\x3f" + written[2:]) == "bad_yamf_length"
    with pytest.raises(ValueError, match="64 bytes"):
        yamf.encode(b"short")


def test_lipmaa_as_the_crate() -> None:
    for seq, target in LIPMAA["lipmaa"]:
        assert lipmaa.lipmaa(int(seq)) == int(target)
        assert lipmaa.lipmaa_of(np.uint64(int(seq))) == int(target)


@given(st.integers(1, varu64.MAX_U64))
def test_compiled_lipmaa_is_the_same(seq: int) -> None:
    assert int(lipmaa.lipmaa_of(np.uint64(seq))) == lipmaa.lipmaa(seq)


@pytest.mark.parametrize("pool", LIPMAA["certpool"], ids=lambda pool: str(pool["n"]))
def test_certificate_pools(pool: dict[str, Any]) -> None:
    assert list(lipmaa.lower_pool(pool["n"])) == pool["lower"]
    assert list(lipmaa.upper_pool(pool["n"])) == pool["upper"]


def test_links_lead_back_and_never_cross() -> None:
    assert [lipmaa.link_targets(seq) for seq in (1, 2, 3, 4, 5, 8, 13)] == [
        (),
        (1,),
        (2,),
        (1, 3),
        (4,),
        (4, 7),
        (4, 12),
    ]
    for seq in range(2, 400):
        for between in range(lipmaa.lipmaa(seq) + 1, seq):
            assert lipmaa.lipmaa(between) >= lipmaa.lipmaa(seq)


@pytest.mark.parametrize(("start", "end"), [(3, 40), (1, 364), (27, 121), (9, 100), (5, 5)])
def test_a_path_is_the_shortest_one(start: int, end: int) -> None:
    steps = {end: 0}
    for seq in range(end, start - 1, -1):
        for target in lipmaa.link_targets(seq) if seq in steps else ():
            steps[target] = min(steps.get(target, end), steps[seq] + 1)
    path = lipmaa.path(start, end)
    assert (path[0], path[-1]) == (start, end)
    assert all(before in lipmaa.link_targets(seq) for before, seq in itertools.pairwise(path))
    assert len(path) - 1 == steps[start]


@pytest.mark.parametrize(("start", "end"), [(0, 5), (6, 5)])
def test_no_path_leads_upwards_or_to_nothing(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="no links lead"):
        lipmaa.path(start, end)


def test_there_is_no_entry_zero() -> None:
    with pytest.raises(ValueError, match="begin at 1"):
        lipmaa.lipmaa(0)


def test_spine() -> None:
    assert lipmaa.SPINE[:5] == (1, 4, 13, 40, 121)
    assert [lipmaa.spine_at_least(seq) for seq in (1, 2, 4, 5, 13, 14)] == [1, 4, 4, 13, 13, 40]
    assert lipmaa.spine_at_least(varu64.MAX_U64) > varu64.MAX_U64
    assert all(lipmaa.lipmaa(seq) == below for below, seq in zip(lipmaa.SPINE, lipmaa.SPINE[1:], strict=False))
