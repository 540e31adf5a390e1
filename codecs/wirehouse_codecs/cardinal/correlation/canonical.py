"""The canonical chain as a list of hashes, and how branches hang on it.

The list may have gaps: places where the parent of a block isn't the block below it. The lowest block always counts as
one, because what is below it is unknown or forgotten. Positions count from the lowest remembered block.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from wirehouse_codecs.cardinal.correlation.block_tree import BlockTree, Node

#: Canonical blocks that are remembered, as a multiple of the reorg threshold, and the least number of them.
HISTORY: Final = 8
HISTORY_LEAST: Final = 256


class CanonicalChain:
    """The remembered canonical blocks, lowest first."""

    def __init__(self, tree: BlockTree, threshold: int) -> None:
        self.tree = tree
        self._nodes = tree.nodes
        self._history = max(HISTORY * threshold, HISTORY_LEAST)
        self.hashes: list[bytes] = []
        #: The position of each block, plus `base`. So blocks may be added and dropped at the lower end cheaply.
        self.at: dict[bytes, int] = {}
        self.base = 0
        #: Canonical blocks whose parent isn't below them.
        self.gaps: list[bytes] = []
        #: Blocks up to this number may have a parent that was sent before the feed began, or that is forgotten.
        self.known_from: int | None = None
        #: The number of the lowest remembered block, once blocks below it were forgotten.
        self.forgotten_below: int | None = None

    def restore(self, hashes: list[bytes], base: int, gaps: Iterable[bytes]) -> None:
        """Fill an empty chain from carried state."""
        self.hashes, self.base, self.gaps = hashes, base, list(gaps)
        self._number()

    @property
    def head_hash(self) -> bytes | None:
        """The newest canonical block."""
        return self.hashes[-1] if self.hashes else None

    @property
    def head(self) -> Node:
        """The newest canonical block of a chain that has begun."""
        return self._nodes[self.hashes[-1]]

    def position(self, block_hash: bytes) -> int:
        """The position of a canonical block."""
        return self.at[block_hash] - self.base

    # What changes it

    def append(self, node: Node) -> None:
        """The block is the head now."""
        self.at[node.block_hash] = self.base + len(self.hashes)
        self.hashes.append(node.block_hash)

    def begin(self, node: Node) -> None:
        """The block is the first of the chain."""
        self.known_from = node.number
        self.gaps.append(node.block_hash)

    def cut_above(self, position: int) -> list[Node]:
        """Take off all blocks above `position`, and return them."""
        removed = [self._nodes[block_hash] for block_hash in self.hashes[position + 1 :]]
        del self.hashes[position + 1 :]
        self._leave(removed)
        return removed

    def insert_below(self, above: Node, below: Node) -> None:
        """`below` is the parent of `above`, a block with a gap below it. The gap moves down."""
        position = self.position(above.block_hash)
        self.hashes.insert(position, below.block_hash)
        self.gaps[self.gaps.index(above.block_hash)] = below.block_hash
        if position == 0:
            self.base -= 1
            self.at[below.block_hash] = self.base
        else:
            self._number()

    def close_gap(self, above: Node) -> list[Node]:
        """The parent of `above` is in the chain. Take off the blocks between them, which were another branch.

        If the parent is higher, in a branch that became canonical later, the branch that begins at `above` is the one
        to take off.
        """
        self.gaps.remove(above.block_hash)
        position, parent = self.position(above.block_hash), self.position(above.parent)
        first, end = parent + 1, position
        if parent > position:
            gaps = (self.position(gap) for gap in self.gaps)
            first, end = position, min((gap for gap in gaps if gap > position), default=position)
        between = [self._nodes[block_hash] for block_hash in self.hashes[first:end]]
        del self.hashes[first:end]
        self._leave(between)
        self._number()
        return between

    def forget_oldest(self) -> list[Node]:
        """Drop the lowest blocks beyond those that are remembered, and return them."""
        surplus = len(self.hashes) - self._history
        if surplus <= 0:
            return []
        dropped = [self._nodes[block_hash] for block_hash in self.hashes[:surplus]]
        self._leave(dropped)
        del self.hashes[:surplus]
        self.base += surplus
        self.forgotten_below = self._nodes[self.hashes[0]].number
        self.known_from = max(self.known_from or 0, self.forgotten_below)
        return dropped

    def _leave(self, nodes: list[Node]) -> None:
        for node in nodes:
            del self.at[node.block_hash]
            if node.block_hash in self.gaps:
                self.gaps.remove(node.block_hash)

    def _number(self) -> None:
        self.at = {block_hash: self.base + i for i, block_hash in enumerate(self.hashes)}

    # Gaps and branches

    @property
    def highest_gap(self) -> int:
        """The number of the highest block with a gap below it; 0 without a gap."""
        return max((self._nodes[gap].number for gap in self.gaps), default=0)

    def complete_gaps(self) -> list[Node]:
        """The complete blocks with a gap below them."""
        gaps = [self._nodes[gap] for gap in self.gaps]
        return [gap for gap in gaps if gap.complete_order is not None]

    def branch_to(self, node: Node) -> tuple[list[Node], int | None]:
        """The blocks above the chain up to `node`, and the position of the common ancestor; None if it is forgotten."""
        branch = [node]
        ancestors = self.tree.ancestors(node)
        while branch[-1].parent not in self.at:
            ancestor = next(ancestors, None)
            if ancestor is None or not ancestor.linked:
                return branch[::-1], None
            branch.append(ancestor)
        return branch[::-1], self.position(branch[-1].parent)

    def best_path(self, root: Node) -> tuple[list[Node], int]:
        """The path from `root` to its heaviest descendant, the first complete one among equals; and the weight of that.

        A descendant can be canonical already only above a gap, where wrong weights can have left it.
        """
        order = [root]
        children: dict[bytes, list[Node]] = {}
        for node in order:
            following = [child for child in self.tree.complete_children(node) if child.linked]
            children[node.block_hash] = [child for child in following if child.block_hash not in self.at]
            order.extend(children[node.block_hash])
        heaviest: dict[bytes, int] = {}
        for node in reversed(order):
            heaviest[node.block_hash] = max([node.weight, *(heaviest[c.block_hash] for c in children[node.block_hash])])
        path = [root]
        while children[path[-1].block_hash]:
            # `max` takes the first of equal ones: the one that completed first.
            path.append(max(children[path[-1].block_hash], key=lambda child: heaviest[child.block_hash]))
        return path, heaviest[root.block_hash]
