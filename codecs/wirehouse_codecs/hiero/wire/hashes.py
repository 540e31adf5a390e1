"""Block roots recomputed from the items, without the ledger's keys.

All hashes are SHA-384. A block's items fall into subtrees by kind, and a top tree joins these with roots that the block
builds on. The layout changed several times without a version of its own, so what fits the bytes is computed, and the
layout is known from what the root must equal: the previous hash of the next block, or an old network's mock signature.
Items stream in; a subtree is its peaks, so memory grows with the logarithm of the number of items. What can't be
decided is reported with its reason; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha384
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np

from wirehouse_codecs.compiled.sha384 import digests
from wirehouse_codecs.hiero.wire.items.cutting import Items
from wirehouse_codecs.hiero.wire.items.decoded import HASH_BYTES, BlockFooter, BlockHeader, BlockProof, ProofKind
from wirehouse_codecs.hiero.wire.items.kinds import CLASSES, ItemClass, ItemNumber, item_class

_LEAF: Final = b"\0"
_ONE_CHILD: Final = b"\1"
_TWO_CHILDREN: Final = b"\2"
#: The root of a tree without leaves (newer layouts). A block 0 has it in all fields of its footer.
EMPTY_TREE: Final = sha384(_LEAF).digest()
#: What pads a tree of the older layout.
_PADDING: Final = sha384(b"").digest()


class RootLayout(StrEnum):
    """How a block's root is made of its items."""

    #: Newest: sixteen leaves, the last eight for extensions.
    SIXTEEN_LEAVES = "sixteen_leaves"
    #: Since HAPI 0.72: the same over eight leaves, as the single child of the top.
    EIGHT_LEAVES = "eight_leaves_single_child"
    #: Up to about HAPI 0.62: an input and an output tree.
    TWO_SUBTREES = "two_subtrees"


class Family(StrEnum):
    """How leaves are hashed; layouts of one family share all subtrees."""

    PREFIXED = "prefixed"
    PLAIN = "plain"


#: Roots of the versions between these two were never reproduced.
_PREFIXED_SINCE: Final = (0, 72, 0)
_UNKNOWN_SINCE: Final = (0, 68, 0)
#: Eight leaves were seen up to here, sixteen from there on; between them the next block decides.
_EIGHT_LEAVES_BEFORE: Final = (0, 74, 0)
_SIXTEEN_LEAVES_SINCE: Final = (0, 76, 0)


#: Least size from which the compiled loop saves more than it costs.
_COMPILED_FROM_BYTES: Final = 16 * HASH_BYTES


def _parents(prefix: bytes, nodes: bytes) -> bytes:
    """The hash of each two nodes, one behind the other; a last one without another is left out."""
    if len(nodes) < _COMPILED_FROM_BYTES:
        pairs = range(0, len(nodes) - HASH_BYTES, 2 * HASH_BYTES)
        return b"".join([sha384(prefix + nodes[pair : pair + 2 * HASH_BYTES]).digest() for pair in pairs])
    begins = np.arange(0, len(nodes) - HASH_BYTES, 2 * HASH_BYTES)
    return digests(prefix, np.frombuffer(nodes, np.uint8), begins, begins + 2 * HASH_BYTES)


class Tree:
    """A binary tree over leaves that stream in, as the roots of its complete subtrees, one a level at most."""

    __slots__ = ("_peaks", "_prefix")

    def __init__(self, prefix: bytes, peaks: Sequence[str | None] = ()) -> None:
        self._prefix = prefix
        self._peaks = [None if peak is None else bytes.fromhex(peak) for peak in peaks]

    def add(self, leaves: bytes) -> None:
        """Append leaves, each a hash, one behind the other."""
        nodes = leaves
        level = 0
        while nodes:
            if level == len(self._peaks):
                self._peaks.append(None)
            nodes = (self._peaks[level] or b"") + nodes
            self._peaks[level] = nodes[-HASH_BYTES:] if len(nodes) // HASH_BYTES & 1 else None
            nodes = _parents(self._prefix, nodes)
            level += 1

    def folded(self) -> bytes:
        """The root where nothing is padded: the last peak is joined to the one before it, and so on."""
        root: bytes | None = None
        for peak in self._peaks:
            if peak is not None:
                root = peak if root is None else sha384(self._prefix + peak + root).digest()
        return EMPTY_TREE if root is None else root

    def padded(self) -> bytes:
        """The root where leaves are padded to a power of two."""
        top = max((level for level, peak in enumerate(self._peaks) if peak is not None), default=None)
        if top is None:
            return _PADDING
        # What is right of the peaks seen so far and complete at their level; empty = nothing yet.
        rest, padding = b"", _PADDING
        for level, peak in enumerate(self._peaks[: top + 1]):
            if peak is not None:
                if level == top and not rest:
                    return peak
                rest = sha384(self._prefix + peak + (rest or padding)).digest()
            elif rest:
                rest = sha384(self._prefix + rest + padding).digest()
            padding = sha384(self._prefix + padding + padding).digest()
        return rest

    @property
    def state(self) -> tuple[bytes, list[bytes | None]]:
        """The prefix and the peaks."""
        return self._prefix, self._peaks

    @classmethod
    def from_state(cls, state: tuple[bytes, list[bytes | None]]) -> Tree:
        """The tree with this state."""
        tree = cls(state[0])
        tree._peaks = state[1]
        return tree


# Subtrees

_FIRST_SUBTREE: Final = 3
_LEAVES: Final = 16
_NO_LEAF: Final = -1
_FILTERED: Final = -2
_REFUSED: Final = -3
_LEAF_OF_CLASS: Mapping[ItemClass, int] = MappingProxyType(
    {
        ItemClass.CONSENSUS: 3,
        ItemClass.INPUT: 4,
        ItemClass.OUTPUT: 5,
        ItemClass.STATE: 6,
        ItemClass.TRACE: 7,
        ItemClass.NOT_HASHED: _NO_LEAF,
        ItemClass.FILTERED: _FILTERED,
        ItemClass.REFUSED: _REFUSED,
    }
)


_INPUT: Final = 0
_OUTPUT: Final = 1
#: The tree of the older layout by number; others have no place in it.
_TREE_OF_NUMBER: Mapping[int, int] = MappingProxyType(
    {
        ItemNumber.BLOCK_HEADER: _OUTPUT,
        ItemNumber.EVENT_HEADER: _INPUT,
        ItemNumber.ROUND_HEADER: _INPUT,
        ItemNumber.TRANSACTION: _INPUT,
        ItemNumber.TRANSACTION_RESULT: _OUTPUT,
        ItemNumber.TRANSACTION_OUTPUT: _OUTPUT,
        ItemNumber.STATE_CHANGES: _OUTPUT,
        ItemNumber.FILTERED_ITEM: _FILTERED,
        ItemNumber.BLOCK_PROOF: _NO_LEAF,
        ItemNumber.REDACTED_ITEM: _FILTERED,
    }
)


def _leaf(number: int, family: Family) -> int:
    """The tree that items of a number are leaves of, or why they are in none."""
    if family is Family.PLAIN:
        return _TREE_OF_NUMBER.get(number, _REFUSED)
    known = item_class(number)
    return number % CLASSES if known is ItemClass.EXTENSION else _LEAF_OF_CLASS[known]


_PREFIX: Mapping[Family, bytes] = MappingProxyType({Family.PREFIXED: _TWO_CHILDREN, Family.PLAIN: b""})
_WHY: Mapping[int, str] = MappingProxyType(
    {
        _FILTERED: "items were filtered out or redacted",
        _REFUSED: "an item is of a kind that its layout has no place for",
    }
)


class HasherState(NamedTuple):
    """What a BlockHasher carries from window to window, without the header."""

    families: dict[Family, dict[int, Tree]]
    wrapped: bool
    why: str | None


class BlockHasher:
    """The subtrees of a block whose items stream in. Made for its header; `add` takes all items, the header's too."""

    __slots__ = ("_families", "_header", "_why", "_wrapped")

    def __init__(self, header: BlockHeader | None, *, state: HasherState | None = None) -> None:
        self._header = header
        #: Until the second item came, a block can be of both.
        self._families: dict[Family, dict[int, Tree]] = {family: {} for family in _families(header)}
        #: The block wraps a record file: the version is that of the file, and the layout the newest.
        self._wrapped = False
        #: Why there is no root.
        self._why: str | None = "the block doesn't begin with a header" if header is None else None
        if state is not None:
            self._families, self._wrapped, self._why = state

    def add(self, items: Items) -> None:
        """Hash items, in the block's order."""
        if ItemNumber.RECORD_FILE in items.counts:
            self._wrapped = True
        if items.several:
            self._give_up("an item has several fields")
        if items.passed_over:
            self._give_up("an item is too large to be hashed")
        if len(self._families) > 1 and set(items.counts) - {ItemNumber.BLOCK_HEADER}:
            self._decide()
        for family, trees in self._families.items():
            leaves = {_leaf(number, family) for number in items.counts}
            least = min(leaves, default=_NO_LEAF)
            if least < _NO_LEAF:
                self._give_up(_WHY[least])
                return
            _add(items, leaves - {_NO_LEAF}, family, trees)

    def _decide(self) -> None:
        if self._wrapped:
            del self._families[Family.PLAIN]
        elif _version(self._header) < _UNKNOWN_SINCE:
            del self._families[Family.PREFIXED]
        else:
            self._give_up("the layout of its version isn't known")

    def _give_up(self, why: str) -> None:
        self._why, self._families = why, {}

    def roots(self, footer: BlockFooter | None, proof: BlockProof | None) -> Roots:
        """The roots of the block in the layouts that it can have."""
        if self._why is not None:
            return Roots(reason=self._why)
        if Family.PLAIN in self._families:
            return self._plain(proof)
        return self._prefixed(footer, proof)

    def _plain(self, proof: BlockProof | None) -> Roots:
        if proof is None:
            return Roots(reason="the block has no proof, which holds its previous hash")
        trees = self._families[Family.PLAIN]
        inputs, outputs = (trees.get(tree, Tree(b"")).padded() for tree in (_INPUT, _OUTPUT))
        left = sha384((proof.previous_block_root_hash or b"") + inputs).digest()
        right = sha384(outputs + (proof.start_of_block_state_root_hash or b"")).digest()
        root = sha384(left + right).digest()
        layout = _signed(proof, {RootLayout.TWO_SUBTREES: root})
        # Older blocks of other layouts were seen, which nothing sets apart.
        return Roots({RootLayout.TWO_SUBTREES: root}, layout, complete=layout is not None, reason=_UNDECIDED)

    def _prefixed(self, footer: BlockFooter | None, proof: BlockProof | None) -> Roots:
        if footer is None:
            return Roots(reason="the block has no footer, which holds the roots it builds on")
        if self._header is None or not self._header.raw_timestamp:
            return Roots(reason="the block's header has no timestamp")
        trees = self._families[Family.PREFIXED]
        subtrees = [trees[leaf].folded() if leaf in trees else EMPTY_TREE for leaf in range(_FIRST_SUBTREE, _LEAVES)]
        leaves = [
            footer.previous_block_root_hash,
            footer.root_hash_of_all_block_hashes_tree,
            footer.start_of_block_state_root_hash or EMPTY_TREE,
            *subtrees,
        ]
        time = sha384(_LEAF + self._header.raw_timestamp).digest()
        tops = {RootLayout.SIXTEEN_LEAVES: _top(leaves)}
        if max(trees, default=0) < _LEAVES // 2:
            tops[RootLayout.EIGHT_LEAVES] = sha384(_ONE_CHILD + _top(leaves[: _LEAVES // 2])).digest()
        roots = {layout: sha384(_TWO_CHILDREN + time + top).digest() for layout, top in tops.items()}
        usual = RootLayout.SIXTEEN_LEAVES if self._wrapped else _usual(_version(self._header))
        layout = _signed(proof, roots) or (usual if usual in roots else None)
        return Roots(roots, layout, complete=True, reason=_UNDECIDED)

    @property
    def state(self) -> HasherState:
        """What a later hasher continues from, which is given the same header."""
        return HasherState(self._families, self._wrapped, self._why)


def _version(header: BlockHeader | None) -> tuple[int, int, int]:
    if header is None or header.hapi_proto_version is None:
        return (0, 0, 0)
    return header.hapi_proto_version.numbers


def _families(header: BlockHeader | None) -> tuple[Family, ...]:
    """The families that a block with this header can be of."""
    if header is None:
        return ()
    if header.old:
        return (Family.PLAIN,)
    return (Family.PREFIXED,) if _version(header) >= _PREFIXED_SINCE else (Family.PLAIN, Family.PREFIXED)


_UNDECIDED: Final = "nothing in the block tells which layout its root has"


def _usual(version: tuple[int, int, int]) -> RootLayout | None:
    """The layout that blocks of this version were seen to have."""
    if version < _EIGHT_LEAVES_BEFORE:
        return RootLayout.EIGHT_LEAVES
    return RootLayout.SIXTEEN_LEAVES if version >= _SIXTEEN_LEAVES_SINCE else None


def _signed(proof: BlockProof | None, roots: Mapping[RootLayout, bytes]) -> RootLayout | None:
    """The layout whose root a mock signature signs."""
    return next((layout for layout, root in roots.items() if signature_check(proof, root).verified), None)


#: The tree of every number that isn't classed by its remainder, and then of the remainders.
_LEAF_TABLE: Mapping[Family, Any] = MappingProxyType(
    {
        family: np.array([_leaf(number, family) for number in [*range(CLASSES + 1), *range(41, 41 + CLASSES)]], np.int8)
        for family in Family
    }
)


def _add(items: Items, leaves: set[int], family: Family, trees: dict[int, Tree]) -> None:
    numbers, data = items.numbers, np.frombuffer(items.data, np.uint8)
    places = np.where(numbers <= CLASSES, numbers, CLASSES + 1 + (numbers - 1) % CLASSES)
    where = _LEAF_TABLE[family][places]
    for leaf in sorted(leaves):
        chosen = where == leaf
        prefix = b"" if family is Family.PLAIN else _LEAF
        hashes = digests(prefix, data, items.bodies[chosen], items.ends[chosen])
        trees.setdefault(leaf, Tree(_PREFIX[family])).add(hashes)


def _top(leaves: list[bytes]) -> bytes:
    tree = Tree(_TWO_CHILDREN)
    tree.add(b"".join(leaves))
    return tree.folded()


# The result


@dataclass(frozen=True, slots=True)
class Roots:
    """The roots that a block may have, by layout."""

    by_layout: Mapping[RootLayout, bytes] = field(default_factory=dict)
    #: The layout that the block's version or its mock signature shows; None = nothing in the block shows it.
    layout: RootLayout | None = None
    #: Whether one of them is the block's root.
    complete: bool = False
    #: Why there is none, or why the layout isn't known.
    reason: str = ""


@dataclass(frozen=True, slots=True)
class BlockRoot:
    """A block's root, as far as it is known."""

    layout: RootLayout | None = None
    root: bytes | None = None
    #: Why it isn't verified: whether the next block holds it is judged across calls and files.
    unverified: str = ""


def settle(roots: Roots) -> BlockRoot:
    """The root of a block as the block alone shows it."""
    if roots.layout is None:
        return BlockRoot(unverified=roots.reason)
    reason = "no next block is known, which would hold this root"
    return BlockRoot(roots.layout, roots.by_layout[roots.layout], reason)


@dataclass(frozen=True, slots=True)
class SignatureCheck:
    """Whether a proof's signature holds; None = it can't be checked here, and why."""

    verified: bool | None
    reason: str


def signature_check(proof: BlockProof | None, root: bytes | None) -> SignatureCheck:
    """The proof's signature against the block's root: only the mock signature of test networks can be checked."""
    if proof is None or proof.kind is None:
        return SignatureCheck(None, "the block has no proof" if proof is None else "the proof is of no known kind")
    if proof.kind is ProofKind.RECORD_FILE:
        return SignatureCheck(None, "signatures of a record file need the network's address book")
    if proof.kind is ProofKind.STATE:
        return SignatureCheck(None, "a state proof's signature needs the ledger's keys")
    if len(proof.block_signature) != HASH_BYTES:
        return SignatureCheck(None, "a threshold signature needs the ledger's keys")
    if root is None:
        return SignatureCheck(None, "the block's root isn't known")
    if proof.block_signature == sha384(root).digest():
        return SignatureCheck(True, "the mock signature is the hash of the root")
    return SignatureCheck(False, "a signature of 48 bytes isn't the hash of the root")


def previous_hash(header: BlockHeader | None, footer: BlockFooter | None, proof: BlockProof | None) -> bytes | None:
    """The root of the block before, as this one has it: in its footer, or in older layouts its proof or header."""
    if footer is not None:
        return footer.previous_block_root_hash or None
    if proof is not None and proof.previous_block_root_hash:
        return proof.previous_block_root_hash
    return None if header is None else header.previous_block_hash


class AllBlocks:
    """The tree over the roots of all blocks from 0 on."""

    __slots__ = ("_tree", "next_block")

    def __init__(self) -> None:
        self._tree = Tree(_TWO_CHILDREN)
        #: The block whose root comes next.
        self.next_block = 0

    def add(self, root: bytes) -> None:
        """The root of `next_block`."""
        self._tree.add(root)
        self.next_block += 1

    def root(self) -> bytes:
        """The tree's root: what the footer of `next_block` holds."""
        return self._tree.folded()

    @property
    def state(self) -> tuple[int, Tree]:
        """The block whose root comes next, and the tree of those before."""
        return self.next_block, self._tree

    @classmethod
    def from_state(cls, state: tuple[int, Tree]) -> AllBlocks:
        """The tree with this state."""
        blocks = cls()
        blocks.next_block, blocks._tree = state
        return blocks
