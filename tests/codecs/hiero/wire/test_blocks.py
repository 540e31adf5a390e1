"""Blocks from files and sets: the block files of real software, roots and chains, damage, archives, structure."""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.carried import as_text, carry
from tests.support.hiero_files import read_blocks
from wirehouse_codecs.hiero.log.rows import block_content
from wirehouse_codecs.hiero.wire.blocks import (
    MOST_BODY_BYTES,
    MOST_BROKEN,
    MOST_NUMBERS,
    MOST_PROOFS,
    OTHER_NUMBERS,
    Block,
    BlockBuilder,
    BlockFile,
    file_name,
    is_block_file,
    number_of,
    split,
)
from wirehouse_codecs.hiero.wire.hashes import AllBlocks, RootLayout, settle, signature_check
from wirehouse_codecs.hiero.wire.items.cutting import ItemReader, cut
from wirehouse_codecs.hiero.wire.items.decoded import (
    BlockFooter,
    BlockHeader,
    BlockProof,
    ProofKind,
    ProofPath,
    Timestamp,
    Version,
    encode_footer,
    encode_header,
    encode_proof,
    encode_round_header,
)
from wirehouse_codecs.hiero.wire.items.kinds import encode_item
from wirehouse_codecs.hiero.wire.protobuf import delimited

VECTORS = Path(__file__).parents[3] / "vectors" / "hiero" / "blocks"
FILES = sorted(path.name for path in VECTORS.glob("*.blk*"))
EXPECTED = {row["file"]: row for row in json.loads((VECTORS / "expected.json").read_text())}
LIMIT = 1 << 20
Row = dict[str, Any]
#: Software whose roots no known layout reproduces.
NOT_REPRODUCED = ("sim054", "sim069")


@cache
def found(name: str) -> Block:
    return built(raw(name))


def built(data: bytes) -> Block:
    builder = BlockBuilder()
    for items in cut(data):
        builder.add(items)
    return builder.finish()


@cache
def told(name: str) -> Row:
    """What the log says of a file's block."""
    (block,) = read_blocks((VECTORS / name).read_bytes(), name).blocks
    return block


def without_name(block: Row) -> Row:
    return block | {"file_name": None, "named_number": None}


def held(block: Block, after: Block | None) -> tuple[RootLayout, bytes] | None:
    """The layout and root of `block` that the block after it holds."""
    claimed = after.previous_hash if after else None
    return next((told for told in block.roots.by_layout.items() if told[1] == claimed), None)


def raw(name: str) -> bytes:
    data = (VECTORS / name).read_bytes()
    if name.endswith(".gz"):
        return gzip.decompress(data)
    return bytes(cramjam.zstd.decompress(data)) if name.endswith(".zstd") else data


def made(name: str) -> str:
    """The software and its run: files of one chain."""
    return name.rpartition("_")[0]


def following(name: str) -> Block | None:
    """The next block of the same chain, if it is among the files."""
    number = (found(name).number or 0) + 1
    return next((found(other) for other in FILES if made(other) == made(name) and found(other).number == number), None)


def root_of(name: str) -> tuple[RootLayout | None, bytes | None]:
    """The layout and root of a file's block: those that the next block holds, else those that it tells."""
    block = found(name)
    told = settle(block.roots)
    return held(block, following(name)) or (told.layout, told.root)


def test_every_vector_is_read() -> None:
    assert len(FILES) == 33
    assert len(EXPECTED) == 17


@pytest.mark.parametrize("name", FILES)
def test_a_block_file_is_whole_and_breaks_no_rule(name: str) -> None:
    read = read_blocks((VECTORS / name).read_bytes(), name)
    (row,) = read.rows
    assert (read.capture.unreadable, read.capture.damage, row["block"]["damage"]) == (None, None, None)
    assert row["block"]["file_name"] == name
    assert row["block"]["item_bytes"] == row["block"]["block_bytes"] == len(raw(name))
    assert row["block_number"] == int(re.findall(r"_(\d+)\.", name)[0])
    # 0.69 has its proof in a field that neither layout knows.
    assert row["block"]["unknown_fields"] == (1 if name.startswith("sim069") else None)
    content = block_content(found(name))
    assert {field: row["block"][field] for field in content} == content


def leaf_kind(path: ProofPath) -> str | None:
    """What stands at its lower end."""
    leaves = ("hash", "state_item_leaf", "block_item_leaf", "timestamp_leaf")
    return next((name for name in leaves if getattr(path, name) is not None), None)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_block_file_holds_the_facts_of_the_vector(name: str) -> None:
    said, block = EXPECTED[name], found(name)
    header, proof = block.header, block.proof
    assert header is not None
    assert proof is not None
    time = header.timestamp or Timestamp()
    shown = {
        "block_bytes": told(name)["block_bytes"],
        "number": block.number,
        "hapi_version": str(header.hapi_proto_version),
        "software_version": str(header.software_version or Version()),
        "hash_algorithm": header.hash_algorithm,
        "items_total": block.items_total,
        "items": block.item_counts,
        "timestamp": [time.seconds, time.nanos],
        "proof_block": proof.block,
        "proof_kind": proof.kind and proof.kind.value,
        "signature_bytes": len(proof.block_signature),
        "state_proof_paths": [[leaf_kind(path), len(path.siblings), path.next_path_index] for path in proof.paths],
        "record_proof_version": proof.record_version,
        "record_signatures": [signature.node_id for signature in proof.record_signatures],
        "previous_block_root_hash": (block.previous_hash or b"").hex(),
    }
    if block.footer is not None:
        shown["root_hash_of_all_block_hashes_tree"] = block.footer.root_hash_of_all_block_hashes_tree.hex()
    start = (block.footer or proof).start_of_block_state_root_hash or b""
    shown["start_of_block_state_root_hash"] = start.hex()
    compared = {key: said[key] for key in shown if key in said}
    assert len(compared) >= 12
    assert {key: shown[key] for key in compared} == compared


@pytest.mark.parametrize("name", EXPECTED)
def test_the_root_is_that_of_the_vector_and_chains(name: str) -> None:
    said, (layout, root) = EXPECTED[name]["computed_root"], root_of(name)
    assert (root and root.hex()) == said["hash"]
    assert (layout or "unconfirmed") == said["layout"]
    assert bool(held(found(name), following(name))) is said.get("chain_ok", False)
    assert settle(found(name).roots).unverified
    signed = signature_check(found(name).proof, root)
    assert bool(signed.verified) is said.get("signature_is_sha384_of_root", False)
    assert signed.reason


@pytest.mark.parametrize("name", FILES)
def test_every_block_chains_to_the_next_one_of_its_software(name: str) -> None:
    if name.startswith(NOT_REPRODUCED):
        assert root_of(name) == (None, None)
    else:
        assert bool(held(found(name), following(name))) is bool(following(name))


def test_the_tree_of_all_blocks_is_what_footers_hold() -> None:
    judged = 0
    for chain in ("cn073_tss", "cn078_tss_schnorr", "wrb_solo4n", "wrb_testnet"):
        tree = AllBlocks()
        for number in range(len([name for name in FILES if made(name) == chain])):
            name = next(name for name in FILES if name.startswith(f"{chain}_{number}."))
            footer, (_, root) = found(name).footer, root_of(name)
            assert footer is not None
            assert root is not None
            assert tree.next_block == number
            assert tree.root() == footer.root_hash_of_all_block_hashes_tree
            tree = carry(tree)
            tree.add(root)
            judged += 1
    assert judged == 17


def test_a_changed_item_breaks_the_chain() -> None:
    blocks = []
    for number in (2, 3):
        data = bytearray(raw(f"cn078_tss_schnorr_{number}.blk.gz"))
        if number == 2:
            at = data.index(b"\x0a", 3000)
            data[at + 40] ^= 1
        blocks.append(built(bytes(data)))
    assert blocks[0].roots.complete
    assert held(*blocks) is None


# However the bytes come


@pytest.mark.parametrize("name", ["sim062_5.blk", "sim069_1.blk", "gen062_10.blk.gz"])
def test_items_one_byte_at_a_time_make_the_same_block(name: str) -> None:
    data = raw(name)
    reader, builder = ItemReader(LIMIT), BlockBuilder()
    for byte in data:
        for items in reader.receive(bytes([byte])):
            builder.add(items)
    assert reader.finish() is None
    assert builder.finish() == found(name)


@settings(max_examples=25)
@given(cuts=st.lists(st.integers(0, 11_061), max_size=4))
def test_a_block_carried_over_between_pieces_is_the_same(cuts: list[int]) -> None:
    data = raw("cn073_tss_1.blk.gz")
    reader, builder = ItemReader(LIMIT), BlockBuilder()
    edges = [0, *sorted(cuts), len(data)]
    for begin, end in pairwise(edges):
        for items in reader.receive(data[begin:end]):
            builder.add(items)
        builder = carry(builder)
    assert builder.finish() == found("cn073_tss_1.blk.gz")


# Damage


def test_a_file_cut_anywhere_tells_where_and_keeps_the_items_before() -> None:
    data = raw("sim062_5.blk")
    items = next(cut(data))
    for size in range(1, len(data)):
        read = read_blocks(data[:size], "x.blk")
        whole = int((items.ends <= size).sum())
        begin = int(items.ends[whole - 1]) if whole else 0
        assert [reason.partition(": ")[0] for reason in read.damage] == (
            [] if size == begin else [f"byte {begin} of the block"]
        )
        damage = next(iter(read.damage), None)
        assert [(block["items"], block["block_bytes"], block["damage"]) for block in read.blocks] == (
            [(whole, size, damage)] if whole else []
        )


@pytest.mark.parametrize(("name", "at"), [("gen062_10.blk.gz", 100), ("wrb_testnet_0.blk.zstd", 4)])
def test_a_compressed_file_cut_or_garbled_tells_why(name: str, at: int) -> None:
    data = (VECTORS / name).read_bytes()
    for broken in (data[: len(data) // 2], data[:-3], data[:at] + b"\xff\xff\xff" + data[at + 3 :]):
        read = read_blocks(broken, name)
        (damage,) = read.damage
        assert re.search(r"(gzip|zstd) data .*byte", damage)
        assert (read.capture.damage or "") in damage


def test_an_item_above_the_limit_ends_the_file_before_it_is_read() -> None:
    data = raw("sim062_5.blk") + b"\x0a\xff\xff\xff\x7f" + bytes(3000)
    read = read_blocks(data, "x.blk", 1000)
    (damage,), (block,) = read.damage, read.blocks
    assert "the limit is 1000" in damage
    assert block["item_counts"] == told("sim062_5.blk")["item_counts"]


def test_junk_after_the_last_item_is_told() -> None:
    data = raw("sim062_5.blk")
    read = read_blocks(data + b"\x0b", "x.blk")
    damage = f"byte {len(data)} of the block: field 1 has the wire type 3"
    assert read.damage == [damage]
    counted = {"block_bytes": len(data) + 1, "damage": damage}
    assert list(map(without_name, read.blocks)) == [without_name(told("sim062_5.blk")) | counted]


def test_other_fields_of_the_file_are_counted() -> None:
    read = read_blocks(b"\x10\x05" + raw("sim062_5.blk") + b"\x1a\x01x", "x.blk")
    assert (read.damage, [block["unknown_fields"] for block in read.blocks], read.violations) == ([], [2], [])


@settings(max_examples=60)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_block_file_with_or_without_damage(data: bytes) -> None:
    read = read_blocks(data, "x.blk")
    assert bool(read.rows) is bool(data)
    assert sum(block["item_bytes"] for block in read.blocks) <= len(data)


@settings(max_examples=40)
@given(
    name=st.sampled_from(
        ["sim062_1.blk", "sim069_1.blk", "sim054_1.blk", "cn073_tss_1.blk.gz", "cn078_tss_schnorr_4.blk.gz"]
    ),
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.binary(max_size=6)), min_size=1, max_size=4),
)
def test_a_garbled_block_is_read_as_far_as_it_goes(name: str, changes: list[tuple[float, bytes]]) -> None:
    data = raw(name)
    for share, other in changes:
        at = int(share * len(data))
        data = data[:at] + other + data[at + len(other) :]
    read = read_blocks(data, "x.blk")
    assert read.blocks or read.damage
    for block in read.blocks:
        assert block["block_bytes"] == len(data) or read.damage
        assert block["block_root"] is not None or block["root_reason"]


# Archives


def archive(names: list[str], mode: Any = "w") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:
        for name in names:
            tar.add(VECTORS / name, arcname=f"0000/{name}")
    return out.getvalue()


SOME = ["sim062_0.blk", "expected.json", "gen062_10.blk.gz", "wrb_testnet_0.blk.zstd"]


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_an_archive_gives_its_block_files(mode: str) -> None:
    read = read_blocks(archive(SOME, mode), "0.tar")
    assert [(block["file_name"], without_name(block)) for block in read.blocks] == [
        (f"0000/{name}", without_name(told(name))) for name in SOME if name != "expected.json"
    ]
    assert (len(read.rows), read.capture.damage) == (3, None)


def test_an_archive_cut_anywhere_gives_what_came_before_and_says_where() -> None:
    data = archive(SOME[:3])
    whole = [without_name(told(name)) for name in (SOME[0], SOME[2])]
    end = len(data.rstrip(b"\0"))
    for size in range(1, end, 997):
        read = read_blocks(data[:size], "0.tar")
        good = [without_name(block) for block in read.blocks if block["damage"] is None]
        assert good == whole[: len(good)]
        assert "cut off" in (read.capture.damage or "")
        assert {block["damage"] for block in read.blocks} - {None} <= set(read.damage)
    assert read_blocks(data, "0.tar").damage == []


def headers(kind: bytes, size: int, body: bytes = b"", name: str = "x") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT) + body


@pytest.mark.parametrize(
    ("data", "damage"),
    [
        (headers(tarfile.XHDTYPE, 1 << 32, bytes(1 << 18)), "a header of 4294967296 bytes, at most 65536"),
        (
            headers(tarfile.GNUTYPE_LONGNAME, 1, b"x".ljust(512, b"\0")) * 2000,
            "byte 2048000 of the archive: it is cut off",
        ),
        (headers(tarfile.REGTYPE, 1 << 62, bytes(1024)), "byte 1536 of the archive: it is cut off"),
        (headers(tarfile.REGTYPE, 1 << 62, bytes(1024), "7.blk"), "the archive is cut off"),
        (
            headers(tarfile.REGTYPE, 0)[:-12] + bytes(12) + b"x" * 512,
            "byte 1024 of the archive: not the header of a file",
        ),
        (headers(tarfile.REGTYPE, 0).replace(b"ustar", b"USTAR"), "byte 512 of the archive: not the header of a file"),
    ],
)
def test_a_hostile_archive_ends_where_it_cannot_be_read(data: bytes, damage: str) -> None:
    read = read_blocks(data, "0.tar")
    assert damage in (read.capture.damage or "")
    assert read.blocks == []
    # Bytes that begin no file are kept with the reason.
    assert all(damage in reason for reason in read.damage)
    assert bool(read.damage) == ("of the archive: it is cut off" not in damage)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_archives_of_every_form_and_names_of_any_length(form: int) -> None:
    out = io.BytesIO()
    folder = "0000/" * (20 if form == tarfile.USTAR_FORMAT else 60)
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        link = tarfile.TarInfo("7.blk")
        link.type, link.linkname = tarfile.SYMTYPE, "elsewhere.blk"
        tar.addfile(link)
        for name in SOME:
            tar.add(VECTORS / name, arcname=folder + name)
    read = read_blocks(out.getvalue(), "0.tar")
    assert [block["file_name"] for block in read.blocks] == [folder + name for name in SOME if name != "expected.json"]
    assert (read.damage, read.capture.damage) == ([], None)


@settings(max_examples=40)
@given(
    changes=st.lists(st.tuples(st.integers(0, 511), st.integers(0, 255)), min_size=1, max_size=3),
    summed=st.booleans(),
    form=st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_a_garbled_header_of_an_archive_is_told_or_read(
    changes: list[tuple[int, int]], summed: bool, form: Any
) -> None:
    info = tarfile.TarInfo("e" * 70 + ".blk")
    body = raw("sim062_5.blk")
    info.size = len(body)
    data = bytearray(info.tobuf(form))
    for at, byte in changes:
        data[at] = byte
    if summed:
        data[148:156] = b" " * 8
        data[148:156] = b"%06o\0 " % sum(data[:512])
    whole = bytes(data) + body + bytes(-len(body) % 512 + 1024)
    read = read_blocks(whole, "0.tar")
    assert sum(block["block_bytes"] for block in read.blocks) <= 2 * len(whole)


# Names


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("0000000000000000182.blk.zstd", 182),
        ("000000000000000000000000000000000002.blk", 2),
        ("000/000/0000000000000012345.blk.zstd", 12345),
        ("bucket/0000/0000/0010/8273/182.blk.zstd", 108273182),
        ("0000/0010/8273/182.blk.zstd", 182),
        ("7.blk.gz", 7),
        ("18446744073709551615.blk", 2**64 - 1),
        ("18446744073709551616.blk", None),
        ("sim062_0.blk", None),
        ("7.blk.bz2", None),
        ("７.blk", None),
        ("", None),
    ],
)
def test_the_number_by_the_name(path: str, number: int | None) -> None:
    assert number_of(path) == number


def test_names_of_block_files() -> None:
    assert file_name(182) == "0000000000000000182.blk"
    assert number_of(file_name(2**63)) == 2**63
    assert is_block_file("x/7.blk.zstd")
    assert not is_block_file("x/7.blk.tmp")
    assert BlockFile("a/7.blk", Block()).named_number == 7


# Structure

HEADER = encode_header(BlockHeader(7, Version(0, 76), timestamp=Timestamp(5, 6)))
FOOTER = encode_footer(BlockFooter(b"p" * 48, b"a" * 48, b"s" * 48))
EARLIER_FOOTER = encode_item(21, next(cut(FOOTER)).body(0)[3:])
SEVERAL = delimited(1, delimited(5, b"") + delimited(23, b""))
PROOF = encode_proof(BlockProof(7, ProofKind.SIGNED, b"x" * 2920))
ROUND = encode_round_header(3)
OLD_PROOF = encode_proof(BlockProof(7, ProofKind.SIGNATURE, b"x" * 48, b"p" * 48, b"s" * 48))


def broken(*sets: bytes) -> list[tuple[str, str]]:
    builder = BlockBuilder()
    for data in sets:
        for items in cut(data):
            builder.add(items)
    return [(rule.name, reason) for rule, reason in builder.finish().broken]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ([HEADER, ROUND, FOOTER, PROOF], []),
        ([HEADER, ROUND, FOOTER, PROOF, PROOF], []),
        ([HEADER, ROUND, OLD_PROOF], []),
        ([HEADER, ROUND], []),
        ([ROUND, FOOTER, PROOF], [("structure", "the block begins with round_header, not with its header")]),
        ([HEADER, HEADER, FOOTER, PROOF], [("structure", "a header stands within the block")]),
        ([HEADER, FOOTER, PROOF, ROUND], [("structure", "round_header after the proof")]),
        ([HEADER, FOOTER, FOOTER, PROOF], [("structure", "the block has two footers")]),
        ([HEADER, FOOTER, ROUND, PROOF], [("structure", "round_header after the footer")]),
        ([HEADER, ROUND, PROOF], [("structure", "a proof of the newer layout without a footer before it")]),
        ([HEADER, encode_item(13, b"")], [("item_refused", "an item of number 13")]),
        ([HEADER, encode_item(20, b""), FOOTER, PROOF], []),
        ([HEADER, encode_item(21, b"")], [("item_refused", "an item of number 21")]),
        ([HEADER, SEVERAL], [("item_refused", "an item of several fields")]),
        ([HEADER, ROUND, EARLIER_FOOTER, PROOF], []),
        ([HEADER, encode_item(36, b""), encode_item(36, b"")], [("item_refused", "an item of number 36")]),
        (
            [HEADER, FOOTER, encode_proof(BlockProof(8, ProofKind.SIGNED, b"x"))],
            [("structure", "the proof of block 7 names block 8")],
        ),
        (
            [encode_item(1, b"\x18")],
            [("malformed_message", "block_header: a number is cut off after 0 bytes")],
        ),
        ([HEADER, ROUND[:-1]], [("malformed_message", "items from byte")]),
    ],
)
def test_what_breaks_the_structure_of_a_block(data: list[bytes], expected: list[tuple[str, str]]) -> None:
    """In one set, and each item in a set of its own."""
    for found in (broken(b"".join(data)), broken(*data)):
        rules = {name for name, _ in found}
        assert rules == {name for name, _ in expected}
        for name, reason in expected:
            assert any(name == other and said.startswith(reason) for other, said in found), found


def test_two_footers_are_one_finding_or_two_never_none() -> None:
    assert ("structure", "the block has two footers") in broken(HEADER + FOOTER, FOOTER + PROOF)


def test_only_the_first_proofs_are_decoded() -> None:
    builder = BlockBuilder()
    for items in cut(HEADER + FOOTER + PROOF * 100):
        builder.add(items)
    block = builder.finish()
    assert len(block.proofs) == MOST_PROOFS
    assert block.counts[9] == 100
    assert builder.proved


def test_what_is_kept_of_a_hostile_block_is_bounded() -> None:
    builder = BlockBuilder()
    many = b"".join(encode_item(number, b"") for number in range(100, 2100))
    for items in cut(HEADER + many + encode_item(9, bytes(MOST_BODY_BYTES + 1))):
        builder.add(items)
    block = builder.finish()
    assert len(block.counts) == MOST_NUMBERS + 1
    assert block.items_total == 2002
    assert block.item_counts["other"] == block.counts[OTHER_NUMBERS] > 1900
    assert len(block.broken) == MOST_BROKEN
    assert len(as_text(builder)) < 10_000


@pytest.mark.parametrize("carried", [False, True])
def test_a_proof_that_is_too_large_to_be_decoded_says_its_block(carried: bool) -> None:
    for number, expected in ((7, []), (8, [("structure", "the proof of block 7 names block 8")])):
        builder = BlockBuilder()
        for items in cut(HEADER + FOOTER + encode_proof(BlockProof(number, ProofKind.SIGNED, bytes(MOST_BODY_BYTES)))):
            builder.add(items)
        builder = carry(builder) if carried else builder
        block = builder.finish()
        assert (block.proofs, builder.proved) == ((BlockProof(number),), True)
        assert [(rule.name, reason) for rule, reason in block.broken] == expected
        assert builder.held_bytes < 1000
    for one in (encode_item(9, bytes(MOST_BODY_BYTES + 1)), encode_item(12, bytes(MOST_BODY_BYTES + 1))):
        assert broken(HEADER + one) == []


def test_items_are_parted_before_each_header() -> None:
    items = next(cut(ROUND + HEADER + ROUND + HEADER + b"\x10\x05" + b"\x0a"))
    parts = split(items)
    assert [part.numbers.tolist() for part in parts] == [[3], [1, 3], [1]]
    assert [part.unknown_fields for part in parts] == [1, 0, 0]
    assert [part.fault is None for part in parts] == [True, True, False]
    assert b"".join(part.data[part.starts[0] : part.ends[-1]] for part in parts) == ROUND + HEADER + ROUND + HEADER
    assert split(next(cut(HEADER + ROUND)))[0].numbers.tolist() == [1, 3]


def test_a_root_needs_header_and_footer() -> None:
    assert broken(HEADER + ROUND) == []
    for data, why in (
        (ROUND + HEADER, "the block doesn't begin with a header"),
        (HEADER, "the block has no footer"),
        (encode_header(BlockHeader(7, Version(0, 70), timestamp=Timestamp(1))) + ROUND, "of its version isn't known"),
        (HEADER + FOOTER + encode_item(8, b"x"), "items were filtered out"),
        (HEADER + FOOTER + encode_item(13, b"x"), "of a kind that its layout has no place for"),
    ):
        builder = BlockBuilder()
        for items in cut(data):
            builder.add(items)
        root = settle(builder.finish().roots)
        assert root.root is None
        assert why in root.unverified


def test_an_extension_item_has_its_leaf_only_in_the_newest_layout() -> None:
    plain, extended = (
        next(iter(built(HEADER + ROUND + extra + FOOTER + PROOF).roots.by_layout.values()))
        for extra in (b"", encode_item(28, b"x"))
    )
    assert plain != extended
    assert set(built(HEADER + FOOTER).roots.by_layout) == {RootLayout.SIXTEEN_LEAVES, RootLayout.EIGHT_LEAVES}
    assert set(built(HEADER + encode_item(28, b"") + FOOTER).roots.by_layout) == {RootLayout.SIXTEEN_LEAVES}
