"""Block items: the compiled walk and its readable twin, pieces of any size, and layouts told from the bytes."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.carried import carry
from wirehouse_codecs.hiero.wire import protobuf
from wirehouse_codecs.hiero.wire.items import cutting, decoded
from wirehouse_codecs.hiero.wire.items.cutting import CHUNK_ITEMS, Fault, Item, ItemReader, cut, read_item
from wirehouse_codecs.hiero.wire.items.decoded import (
    BlockFooter,
    BlockHeader,
    BlockProof,
    DecodedItem,
    ProofKind,
    ProofPath,
    RecordSignature,
    SiblingHash,
    Timestamp,
    Version,
    decode_footer,
    decode_header,
    decode_proof,
    encode_footer,
    encode_header,
    encode_proof,
    encode_round_header,
    with_footer,
)
from wirehouse_codecs.hiero.wire.items.kinds import ItemClass, ItemNumber, encode_item, item_class, item_name
from wirehouse_codecs.hiero.wire.protobuf import Malformed, delimited, varint

LIMIT = 1 << 20
u64 = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**63, 2**64 - 1])
i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
hashes = st.binary(min_size=48, max_size=48)

#: Items, other fields of a run, and things that only look like them.
pieces = st.one_of(
    st.builds(encode_item, st.integers(1, 40) | st.just((1 << 29) - 1), st.binary(max_size=5)),
    st.builds(lambda value: delimited(1, value), st.binary(max_size=4)),
    st.builds(
        lambda *fields: delimited(1, b"".join(fields)), *[st.builds(delimited, st.integers(2, 30), st.just(b""))] * 2
    ),
    st.builds(lambda number, value: varint(number << 3) + varint(value), st.integers(1, 3), u64),
    st.builds(delimited, st.integers(2, 3), st.binary(max_size=4)),
    st.sampled_from([b"\x0a\x00", b"\x09" + bytes(8), b"\x0d" + bytes(4), b"\x0a\x02\x09\x01", b"\x8a\x00\x01\x12"]),
    st.sampled_from(
        [b"\x0a" + b"\x80" * 9 + b"\x01", b"\x0a" + b"\xff" * 11, b"\x0a\x80\x80\x00", b"\x0a\xff\xff\x7f"]
    ),
    st.sampled_from([b"\x0b", b"\x0c", b"\x00", b"\xff" * 11, b"\x0a", b"\x0a\x02\x0b\x00", b"\x0a\x01\x80"]),
    st.binary(max_size=3),
)
runs = st.lists(pieces, max_size=6).map(b"".join)


def readable(data: bytes) -> tuple[list[Item], tuple[int, int], Fault | None]:
    """The run as the readable twin has it: its items, how many fields are none and how many items have several."""
    found: list[Item] = []
    unknown = several = at = 0
    while at < len(data):
        try:
            item = read_item(data, at, len(data))
        except Malformed as malformed:
            return found, (unknown, several), Fault(at, malformed.reason)
        at = item.end
        if item.number is None:
            unknown += 1
        else:
            found.append(item._replace(several=False))
            several += item.several
    return found, (unknown, several), None


def compiled(data: bytes) -> tuple[list[Item], tuple[int, int], Fault | None]:
    found: list[Item] = []
    unknown, several, fault = 0, 0, None
    for chunk in cut(data):
        assert fault is None
        columns = (chunk.starts, chunk.bodies, chunk.ends, chunk.numbers)
        found += [Item(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
        unknown, several, fault = unknown + chunk.unknown_fields, several + chunk.several, chunk.fault
    return found, (unknown, several), fault


@settings(max_examples=200)
@given(runs)
def test_the_compiled_walk_is_the_readable_one(data: bytes) -> None:
    assert compiled(data) == readable(data)


@pytest.mark.parametrize("size", range(1, 14))
def test_both_walks_read_numbers_of_any_length_alike(size: int) -> None:
    for byte in (0x00, 0x01, 0x02, 0x7F):
        for filler in (0x80, 0x81, 0xFF):
            number = bytes([filler] * (size - 1) + [byte])
            for data in (b"\x0a" + number + bytes(20), number + bytes(20), b"\x0a\x10" + number + bytes(20), number):
                assert compiled(data) == readable(data)


def test_items_come_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "CHUNK_ITEMS", 3)
    data = encode_round_header(1) * 10
    chunks = list(cut(data))
    assert [len(chunk) for chunk in chunks] == [3, 3, 3, 1]
    assert b"".join(chunk.data[chunk.starts[0] : chunk.ends[-1]] for chunk in chunks) == data
    monkeypatch.undo()
    assert [len(chunk) for chunk in cut(b"\x0a\x00" * (CHUNK_ITEMS + 1))] == [CHUNK_ITEMS, 1]


def test_counts_and_bodies() -> None:
    data = encode_round_header(5) + encode_item(4, b"abc") + encode_round_header(6) + delimited(1, b"")
    chunk = next(cut(data))
    assert chunk.counts == Counter(chunk.numbers.tolist()) == {0: 1, 3: 2, 4: 1}
    assert (chunk.where(3), chunk.where(4), chunk.where(9)) == ([0, 2], [1], [])
    assert chunk.body(1) == delimited(4, b"abc")
    assert [chunk.body(position) for position in chunk.where(3)] == [
        delimited(3, b"\x08\x05"),
        delimited(3, b"\x08\x06"),
    ]


@settings(max_examples=150)
@given(data=runs, cuts=st.lists(st.integers(0, 60), max_size=4))
def test_pieces_of_any_size_give_the_same_items(data: bytes, cuts: list[int]) -> None:
    reader = ItemReader(LIMIT)
    found: list[tuple[bytes, int]] = []
    unknown = 0
    edges = [0, *sorted(min(at, len(data)) for at in cuts), len(data)]
    for begin, end in pairwise(edges):
        for chunk in reader.receive(data[begin:end]):
            found += [(chunk.body(at), int(number)) for at, number in enumerate(chunk.numbers)]
            unknown += chunk.unknown_fields
    fault = reader.finish()
    items, (all_unknown, _), expected = readable(data)
    assert found == [(data[item.body : item.end], item.number) for item in items]
    assert (unknown, reader.received) == (all_unknown, len(data))
    if fault is None or expected is None or "the limit is" not in fault.reason:
        assert fault == expected
    assert reader.receive(b"\x0a\x00") == [] or fault is None


def test_an_item_above_the_limit_is_refused_by_its_length() -> None:
    reader = ItemReader(100)
    assert len(reader.receive(encode_round_header(1) + b"\x0a\xe8\x07")) == 1
    assert reader.fault == Fault(6, "an entry of 1003 bytes, the limit is 100")
    assert reader.receive(encode_round_header(1)) == []
    assert reader.received == 6 + 3 + 6


@settings(max_examples=100)
@given(st.lists(st.integers(1, 5000), max_size=8), st.integers(0, 40), st.booleans())
def test_an_item_that_is_too_large_to_be_held_is_told_without_its_end(
    cuts: list[int], number: int, carried: bool
) -> None:
    large = encode_item(number + 1, bytes(3000))
    if number % 2:
        large = delimited(1, delimited(number + 1, bytes(2900)) + delimited(5, bytes(100)))
    data = encode_round_header(1) + large + encode_round_header(2) + delimited(2, bytes(2000)) + encode_round_header(3)
    reader = ItemReader(LIMIT, 1000)
    edges = [0, *sorted(min(at, len(data)) for at in cuts), len(data)]
    pieces = [
        data[begin + part : min(begin + part + 900, end)]
        for begin, end in pairwise(edges)
        for part in range(0, end - begin, 900)
    ]
    numbers: list[int] = []
    size = several = unknown = 0
    for piece in pieces:
        for chunk in reader.receive(piece):
            numbers += chunk.numbers.tolist()
            size += int((chunk.ends - chunk.starts).sum()) + (chunk.passed_over if len(chunk) else 0)
            several, unknown = several + chunk.several, unknown + chunk.unknown_fields
        assert reader.held <= 1000
        if carried:
            reader = carry(reader)
    assert (reader.finish(), reader.received) == (None, len(data))
    assert (numbers, several, unknown) == ([3, number + 1, 3, 3], number % 2, 1)
    assert size == len(large) + 3 * len(encode_round_header(1))


def test_what_is_wrong_with_an_item_that_is_not_held() -> None:
    for data, reason in (
        (encode_item(5, bytes(3000))[:-1], "1 bytes of an item are missing"),
        (delimited(1, b"\x2a\xff\x7f" + bytes(3000)), "an item of 3006 bytes: a field has 16383 bytes"),
        (b"\x0a\x80\x80\x80\x01", f"an entry of {(1 << 21) + 5} bytes, the limit is {LIMIT}"),
    ):
        reader = ItemReader(LIMIT, 1000)
        for at in range(0, len(data), 500):
            reader.receive(data[at : at + 500])
        fault = reader.finish()
        assert fault is not None
        assert fault.reason == reason


def test_an_unfinished_item_is_held_and_not_read_again_and_again() -> None:
    data = encode_item(10, bytes(100_000))
    reader = ItemReader(LIMIT)
    for at in range(0, len(data) - 1000, 1000):
        assert reader.receive(data[at : at + 1000]) == []
    assert len(reader._pieces) == 100
    assert [len(chunk) for chunk in reader.receive(data[-(len(data) % 1000 or 1000) :])] in ([], [1])


def test_two_gigabytes_at_once_are_refused() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 1 << 31

    with pytest.raises(ValueError, match="at most 2147483647"):
        next(cut(Huge()))


# Names and classes


def test_names_of_items() -> None:
    assert item_name(ItemNumber.BLOCK_HEADER) == "block_header"
    assert (item_name(4), item_name(4, old=True)) == ("signed_transaction", "event_transaction")
    assert (item_name(8), item_name(8, old=True)) == ("filtered_single_item", "filtered_item_hash")
    assert item_name(12, old=True) == "block_footer"
    assert (item_name(13), item_name(0), item_name(-1)) == ("item_13", "unset", "other")


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([2, 3, 23, 43], ItemClass.CONSENSUS),
        ([4, 24], ItemClass.INPUT),
        ([1, 5, 6, 10, 25], ItemClass.OUTPUT),
        ([7, 26], ItemClass.STATE),
        ([11, 27], ItemClass.TRACE),
        ([28, 35, 48], ItemClass.EXTENSION),
        ([9, 12, 20, 39, 40, 59, 60], ItemClass.NOT_HASHED),
        ([8, 19], ItemClass.FILTERED),
        ([0, 13, 14, 15, 16, 17, 18, 21, 22, 36, 37, 38], ItemClass.REFUSED),
    ],
)
def test_the_class_of_every_number(numbers: list[int], expected: ItemClass) -> None:
    assert {item_class(number) for number in numbers} == {expected}


def test_items_of_several_fields_are_counted() -> None:
    two = delimited(1, delimited(5, b"") + delimited(23, b"x"))
    (chunk,) = cut(encode_round_header(1) + two + two)
    assert (chunk.numbers.tolist(), chunk.several) == ([3, 5, 5], 2)
    (chunk,) = cut(two + delimited(1, delimited(5, b"") + b"\x12"))
    assert (len(chunk), chunk.several) == (1, 1)
    assert chunk.fault is not None


def test_a_footer_of_its_earlier_number() -> None:
    footer = encode_footer(BlockFooter(b"p" * 48, b"a" * 48, b"s" * 48))
    (today,) = cut(footer)
    earlier = encode_item(21, today.body(0)[3:])
    (chunk,) = cut(earlier + encode_item(21, b"\x0a\x01x") + encode_item(21, b"\xff"))
    named = with_footer(chunk)
    assert (chunk.numbers.tolist(), named.numbers.tolist()) == ([21, 21, 21], [12, 21, 21])
    assert decode_footer(named.body(0)) == decode_footer(today.body(0))


# Header, footer and proof

texts = st.text("ab0-", max_size=4)
versions = st.builds(Version, i32, i32, i32, texts, texts)
times = st.builds(Timestamp, i64, i32)
siblings = st.lists(st.builds(SiblingHash, st.booleans(), hashes), max_size=2).map(tuple)
leaves = st.sampled_from(["hash", "state_item_leaf", "block_item_leaf", "timestamp_leaf"])
paths = st.builds(
    lambda below, index, leaf, value: ProofPath(below, index, **({leaf: value} if value is not None else {})),
    siblings,
    st.integers(0, 2**32 - 1),
    leaves,
    st.none() | st.binary(max_size=5),
)
old_headers = st.builds(
    BlockHeader,
    number=u64,
    hapi_proto_version=st.none() | versions,
    software_version=st.none() | versions,
    timestamp=st.none() | times,
    raw_timestamp=st.just(b""),
    hash_algorithm=i32,
    previous_block_hash=hashes,
    address_book_version=st.none() | versions,
    old=st.just(True),
)
new_headers = st.builds(
    BlockHeader,
    number=u64,
    hapi_proto_version=st.none() | versions,
    software_version=st.none() | versions,
    timestamp=times,
    raw_timestamp=st.just(b""),
    hash_algorithm=i32,
    previous_block_hash=st.none(),
    address_book_version=st.none(),
    old=st.just(False),
)
proofs = st.one_of(
    st.builds(
        BlockProof,
        u64,
        st.just(ProofKind.SIGNATURE),
        st.binary(min_size=1, max_size=60),
        hashes,
        hashes,
        siblings,
        st.none() | st.integers(1, 9),
        st.none() | st.binary(min_size=1, max_size=5),
        st.just(()),
        st.none(),
        st.just(()),
    ),
    st.builds(lambda block, signature: BlockProof(block, ProofKind.SIGNED, signature), u64, st.binary(max_size=80)),
    st.builds(
        lambda block, signature, state: BlockProof(block, ProofKind.STATE, signature, paths=state),
        u64,
        st.binary(max_size=9),
        st.lists(paths, max_size=3).map(tuple),
    ),
    st.builds(
        lambda block, version, signatures: BlockProof(
            block, ProofKind.RECORD_FILE, record_version=version, record_signatures=signatures
        ),
        u64,
        st.integers(0, 9),
        st.lists(st.builds(RecordSignature, st.binary(max_size=5), i64), max_size=3).map(tuple),
    ),
    st.builds(BlockProof, u64, st.none()).map(lambda proof: BlockProof(proof.block)),
)


def body_of(entry: bytes) -> bytes:
    return next(cut(entry)).body(0)


@settings(max_examples=60)
@given(old_headers | new_headers)
def test_a_header_of_both_layouts_comes_back(header: BlockHeader) -> None:
    decoded = decode_header(body_of(encode_header(header)))
    assert (decoded.reason, decoded.unknown_fields) == ("", 0)
    again = decoded.value
    if not header.old:
        # No fields are a timestamp of 0.
        assert again.raw_timestamp or header.timestamp == Timestamp()
        header = header if again.raw_timestamp else BlockHeader(**{**_fields(header), "timestamp": None})
        header = BlockHeader(**{**_fields(header), "raw_timestamp": again.raw_timestamp})
    assert again == header


def _fields(header: BlockHeader) -> dict[str, Any]:
    return {name: getattr(header, name) for name in BlockHeader.__dataclass_fields__}


@settings(max_examples=80)
@given(proofs)
def test_a_proof_of_every_kind_comes_back(proof: BlockProof) -> None:
    decoded = decode_proof(body_of(encode_proof(proof)))
    assert decoded == DecodedItem(proof)


def test_a_footer_comes_back() -> None:
    footer = BlockFooter(b"p" * 48, b"a" * 48, b"")
    assert decode_footer(body_of(encode_footer(footer))) == DecodedItem(footer)


def test_a_timestamp_is_no_hash() -> None:
    """The old schema reads a new header without an error, with the timestamp for the previous hash."""
    new = delimited(1, delimited(4, b"\x08\x05\x10\x06") + b"\x28\x00")
    header = decode_header(new).value
    assert (header.old, header.timestamp, header.previous_block_hash) == (False, Timestamp(5, 6), None)
    assert header.raw_timestamp == b"\x08\x05\x10\x06"
    old = delimited(1, delimited(4, b"h" * 48) + delimited(5, b"\x08\x05"))
    header = decode_header(old).value
    assert (header.old, header.timestamp, header.previous_block_hash) == (True, Timestamp(5), b"h" * 48)


@pytest.mark.parametrize(
    ("fields", "old"),
    [
        (delimited(5, b"\x08\x05"), True),
        (b"\x28\x00", False),
        (b"\x30\x00", True),
        (delimited(7, b""), True),
        (b"\x18\x07", False),
        (b"", False),
    ],
)
def test_a_header_without_field_4_is_told_by_the_others(fields: bytes, old: bool) -> None:
    assert decode_header(delimited(1, fields)).value.old is old


def test_proofs_of_both_layouts_are_told_apart() -> None:
    signature = b"s" * 48
    only = delimited(9, delimited(4, signature))
    assert decode_proof(delimited(9, delimited(2, b"h" * 48))).value.kind is ProofKind.SIGNATURE
    assert decode_proof(delimited(9, delimited(3, b"h" * 48) + delimited(4, b"x"))).value.block_signature == b"x"
    assert decode_proof(delimited(9, delimited(2, delimited(1, signature)))).value == BlockProof(
        0, ProofKind.SIGNED, signature
    )
    assert decode_proof(only).reason or decode_proof(only).value.kind is ProofKind.RECORD_FILE
    unknown = decode_proof(delimited(9, b"\x08\x02" + delimited(5, delimited(1, signature))))
    assert unknown == DecodedItem(BlockProof(2), 1)


@settings(max_examples=150)
@given(st.binary(max_size=40), st.sampled_from([1, 9, 12]))
def test_any_bytes_are_an_item_or_say_why_not(data: bytes, number: int) -> None:
    decoders = (decode_header, decode_footer, decode_proof)
    for body in (data, delimited(number, data)):
        for decode in decoders:
            decoded = decode(body)
            assert (decoded.value is None) == (decoded.reason != "")


def test_an_item_of_another_number_is_not_decoded() -> None:
    assert decode_header(body_of(encode_footer(BlockFooter()))).reason == "the item is of number 12, not 1"
    assert decode_header(b"").reason


def test_extremes_of_times_are_kept() -> None:
    for seconds, nanos in ((2**63 - 1, 2**31 - 1), (-(2**63), -(2**31))):
        header = BlockHeader(1, timestamp=Timestamp(seconds, nanos))
        again = decode_header(body_of(encode_header(header))).value.timestamp
        assert again == Timestamp(seconds, nanos)
        assert again.ns == seconds * 10**9 + nanos


def test_versions_are_shown_as_people_write_them() -> None:
    assert str(Version(0, 78, 0, "SNAPSHOT", "0")) == "0.78.0-SNAPSHOT+0"
    assert str(Version(0, 54)) == "0.54.0"
    with suppress(Malformed):
        assert protobuf.read(b"\x22\x01\xff", decoded._VERSION).value.pre == "\N{REPLACEMENT CHARACTER}"
