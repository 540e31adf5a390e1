"""Trees against plain models, hashing in any pieces, and what is told of roots and signatures."""

from __future__ import annotations

from hashlib import sha384

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.carried import carry
from wirehouse_codecs.hiero.wire.hashes import (
    EMPTY_TREE,
    BlockHasher,
    BlockRoot,
    RootLayout,
    Roots,
    SignatureCheck,
    Tree,
    previous_hash,
    settle,
    signature_check,
)
from wirehouse_codecs.hiero.wire.items.cutting import cut
from wirehouse_codecs.hiero.wire.items.decoded import (
    BlockFooter,
    BlockHeader,
    BlockProof,
    ProofKind,
    Version,
    encode_header,
)
from wirehouse_codecs.hiero.wire.items.kinds import encode_item
from wirehouse_codecs.hiero.wire.protobuf import delimited

NODES = [sha384(bytes([number])).digest() for number in range(70)]


def h(*parts: bytes) -> bytes:
    return sha384(b"".join(parts)).digest()


def folded(leaves: list[bytes]) -> bytes:
    """The largest power of two to the left, the rest to the right."""
    if not leaves:
        return h(b"\0")
    if len(leaves) == 1:
        return leaves[0]
    left = 1
    while left * 2 < len(leaves):
        left *= 2
    return h(b"\2", folded(leaves[:left]), folded(leaves[left:]))


def padded(leaves: list[bytes]) -> bytes:
    size = 1
    while size < len(leaves):
        size *= 2
    level = leaves + [h(b"")] * (size - len(leaves))
    while len(level) > 1:
        level = [h(left, right) for left, right in zip(level[::2], level[1::2], strict=True)]
    return level[0]


@pytest.mark.parametrize("count", range(len(NODES)))
def test_a_tree_is_that_of_its_leaves(count: int) -> None:
    newer, older = Tree(b"\2"), Tree(b"")
    newer.add(b"".join(NODES[:count]))
    older.add(b"".join(NODES[:count]))
    assert newer.folded() == folded(NODES[:count])
    assert older.padded() == padded(NODES[:count])


@settings(max_examples=60)
@given(st.lists(st.integers(0, 9), max_size=9))
def test_leaves_may_come_in_any_batches_and_be_carried_over(batches: list[int]) -> None:
    tree, old, at = Tree(b"\2"), Tree(b""), 0
    for size in batches:
        for one in (tree, old):
            one.add(b"".join(NODES[at : at + size]))
        at = min(at + size, len(NODES))
        tree = carry(tree)
        assert tree.folded() == folded(NODES[:at])
        assert old.padded() == padded(NODES[:at])
    assert len(tree.state[1]) <= 7


def test_the_empty_tree() -> None:
    assert Tree(b"\2").folded() == EMPTY_TREE == h(b"\0")
    assert EMPTY_TREE.hex().startswith("bec021b4f368e306")
    assert Tree(b"").padded() == h(b"")


# The layouts, written out

HEADER = BlockHeader(7, Version(0, 78), raw_timestamp=b"\x08\x05")
FOOTER = BlockFooter(b"p" * 48, b"a" * 48, b"s" * 48)
ITEMS = {
    number: [bytes([number, place]) * 30 for place in range(1 + number % 3)] for number in (2, 3, 4, 5, 6, 7, 10, 11)
}
RUN = encode_header(HEADER) + b"".join(encode_item(number, value) for number in ITEMS for value in ITEMS[number])
BODIES = [items.body(position) for items in cut(RUN) for position in range(len(items))]


def leaves(prefix: bytes, *numbers: int) -> list[bytes]:
    return [h(prefix, body) for body in BODIES if body[0] >> 3 in numbers]


def roots_of(run: bytes, header: BlockHeader, *, carried: bool = False, proof: BlockProof | None = None) -> Roots:
    hasher = BlockHasher(header)
    for items in cut(run):
        for position in range(len(items)):
            hasher.add(next(cut(items.data[items.starts[position] : items.ends[position]])))
            if carried:
                hasher = BlockHasher(header, state=carry(hasher.state))
    return hasher.roots(FOOTER, proof)


@pytest.mark.parametrize("carried", [False, True])
def test_the_newest_layouts_written_out(carried: bool) -> None:
    subtrees = [folded(leaves(b"\0", *numbers)) for numbers in ((2, 3), (4,), (1, 5, 6, 10), (7,), (11,))]
    eight = [b"p" * 48, b"a" * 48, b"s" * 48, *subtrees]
    time = h(b"\0", b"\x08\x05")
    roots = roots_of(RUN, HEADER, carried=carried)
    assert roots.by_layout == {
        RootLayout.SIXTEEN_LEAVES: h(b"\2", time, folded([*eight, *[EMPTY_TREE] * 8])),
        RootLayout.EIGHT_LEAVES: h(b"\2", time, h(b"\1", folded(eight))),
    }
    assert (roots.layout, roots.complete) == (RootLayout.SIXTEEN_LEAVES, True)
    hasher = BlockHasher(HEADER)
    for items in cut(RUN):
        hasher.add(items)
    assert hasher.roots(FOOTER, None) == roots


def test_an_empty_start_state_is_the_empty_tree() -> None:
    hasher = BlockHasher(HEADER)
    empty = BlockFooter(FOOTER.previous_block_root_hash, FOOTER.root_hash_of_all_block_hashes_tree)
    full = BlockFooter(FOOTER.previous_block_root_hash, FOOTER.root_hash_of_all_block_hashes_tree, EMPTY_TREE)
    assert hasher.roots(empty, None) == hasher.roots(full, None)


@pytest.mark.parametrize("carried", [False, True])
def test_the_older_layout_written_out(carried: bool) -> None:
    header = BlockHeader(7, Version(0, 56), previous_block_hash=b"p" * 48, old=True)
    proof = BlockProof(7, ProofKind.SIGNATURE, b"", b"p" * 48, b"s" * 48)
    run = b"".join(encode_item(number, value) for number in (2, 4, 5, 6, 7) for value in ITEMS[number])
    roots = roots_of(run, header, carried=carried, proof=proof)
    inputs, outputs = padded(leaves(b"", 2, 4)), padded(leaves(b"", 5, 6, 7))
    root = h(h(b"p" * 48, inputs), h(outputs, b"s" * 48))
    assert roots.by_layout == {RootLayout.TWO_SUBTREES: root}
    assert (roots.layout, roots.complete) == (None, False)
    signed = BlockProof(7, ProofKind.SIGNATURE, h(root), b"p" * 48, b"s" * 48)
    assert roots_of(run, header, proof=signed).layout is RootLayout.TWO_SUBTREES


@pytest.mark.parametrize(
    ("minor", "layouts", "told"),
    [
        (62, {"two_subtrees"}, None),
        (67, {"two_subtrees"}, None),
        (68, set(), None),
        (71, set(), None),
        (72, {"sixteen_leaves", "eight_leaves_single_child"}, "eight_leaves_single_child"),
        (75, {"sixteen_leaves", "eight_leaves_single_child"}, None),
        (76, {"sixteen_leaves", "eight_leaves_single_child"}, "sixteen_leaves"),
    ],
)
def test_layouts_by_version(minor: int, layouts: set[str], told: str | None) -> None:
    header = BlockHeader(7, Version(0, minor), raw_timestamp=b"\x08\x05")
    roots = roots_of(encode_item(2, b"x"), header, proof=BlockProof(7))
    assert set(roots.by_layout) == layouts
    assert roots.layout == told


@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("minor", [44, 69, 73, 75])
def test_a_wrapped_record_file_has_the_newest_layout_whatever_its_version(carried: bool, minor: int) -> None:
    old = BlockHeader(7, Version(0, minor), raw_timestamp=b"\x08\x05")
    run = encode_header(old) + encode_item(10, b"record")
    wrapped = roots_of(run, old, carried=carried)
    assert wrapped.layout is RootLayout.SIXTEEN_LEAVES
    new = BlockHeader(7, Version(0, 78), raw_timestamp=b"\x08\x05")
    assert wrapped.by_layout == roots_of(run, new).by_layout


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (encode_item(19, b"\x0a\x30" + b"h" * 48), "items were filtered out or redacted"),
        (delimited(1, delimited(5, b"") + delimited(23, b"")), "an item has several fields"),
        (encode_item(21, b""), "an item is of a kind that its layout has no place for"),
    ],
)
@pytest.mark.parametrize("carried", [False, True])
def test_roots_that_can_not_be_told(item: bytes, reason: str, carried: bool) -> None:
    assert roots_of(RUN + item, HEADER, carried=carried) == Roots(reason=reason)
    old = BlockHeader(7, Version(0, 56), previous_block_hash=b"p" * 48, old=True)
    assert roots_of(item, old, proof=BlockProof(7)) == Roots(reason=reason)


def test_an_item_that_nodes_ignore_is_no_leaf() -> None:
    assert roots_of(RUN + encode_item(20, b"x"), HEADER) == roots_of(RUN, HEADER)


# What is told

TWO = {RootLayout.SIXTEEN_LEAVES: b"16", RootLayout.EIGHT_LEAVES: b"8"}


@pytest.mark.parametrize(
    ("roots", "expected"),
    [
        (
            Roots(TWO, RootLayout.EIGHT_LEAVES, True),
            BlockRoot(RootLayout.EIGHT_LEAVES, b"8", "no next block is known, which would hold this root"),
        ),
        (Roots({RootLayout.TWO_SUBTREES: b"2"}, reason="untold"), BlockRoot(unverified="untold")),
        (Roots(reason="why"), BlockRoot(unverified="why")),
    ],
)
def test_a_root_is_that_of_the_layout_that_is_told(roots: Roots, expected: BlockRoot) -> None:
    assert settle(roots) == expected


@pytest.mark.parametrize(
    ("proof", "root", "verified", "reason"),
    [
        (None, b"r", None, "no proof"),
        (BlockProof(1), b"r", None, "no known kind"),
        (BlockProof(1, ProofKind.SIGNED, h(b"r")), b"r", True, "mock signature"),
        (BlockProof(1, ProofKind.SIGNATURE, h(b"r")), b"r", True, "mock signature"),
        (BlockProof(1, ProofKind.SIGNATURE, h(b"x")), b"r", False, "isn't the hash"),
        (BlockProof(1, ProofKind.SIGNATURE, h(b"x")), None, None, "root isn't known"),
        (BlockProof(1, ProofKind.SIGNED, bytes(2920)), b"r", None, "ledger's keys"),
        (BlockProof(1, ProofKind.STATE, h(b"r")), b"r", None, "ledger's keys"),
        (BlockProof(1, ProofKind.RECORD_FILE), b"r", None, "address book"),
    ],
)
def test_only_a_mock_signature_is_checked(
    proof: BlockProof | None, root: bytes | None, verified: bool | None, reason: str
) -> None:
    check = signature_check(proof, root)
    assert isinstance(check, SignatureCheck)
    assert check.verified is verified
    assert reason in check.reason


def test_the_previous_hash_is_in_footer_proof_or_header() -> None:
    header = BlockHeader(previous_block_hash=b"h")
    proof = BlockProof(previous_block_root_hash=b"p")
    assert previous_hash(header, BlockFooter(b"f"), proof) == b"f"
    assert previous_hash(header, None, proof) == b"p"
    assert previous_hash(header, None, BlockProof()) == previous_hash(header, None, None) == b"h"
    assert previous_hash(None, BlockFooter(), None) is previous_hash(None, None, None) is None
