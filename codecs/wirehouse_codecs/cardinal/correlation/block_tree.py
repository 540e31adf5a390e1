"""The blocks that the chain remembers, and which block is whose parent.

A block is remembered from its first message on. Its number, weight and parent are known from its Batch on. Hashes come
from the wire, so a hostile feed can make parents lead back to their own descendants; no walk here runs for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from wirehouse_codecs.core.rules import Place


@dataclass(slots=True)
class Node:
    """A block hash that a message or the configured start has named."""

    block_hash: bytes
    #: Sequence number of the first message of this life.
    seen: int
    first_place: Place | None = None
    batch_place: Place | None = None
    #: Sequence number of the Batch; None: no Batch.
    batch_order: int | None = None
    #: The topic of the Batch.
    topic: str | None = None
    number: int = 0
    weight: int = 0
    parent: bytes = b""
    #: Sequence number of the completion; None: not complete.
    complete_order: int | None = None
    #: Since when it is canonical.
    valid_from_ns: int | None = None
    #: The ancestor of the open reorg that it was linked in.
    branch: bytes | None = None
    #: Whether its life hasn't ended.
    open: bool = False
    complete_in_life: bool = False
    #: Whether it is complete, and complete ancestors lead from it to the chain.
    linked: bool = False
    #: Whether the whitelist excludes it or an ancestor.
    refused: bool = False
    #: Whether it is canonical or was.
    was_canonical: bool = False
    #: Whether its parent has a Batch.
    parent_sent: bool = False
    #: Whether `reorg_unannounced` was reported for the branch that begins here. For a start: whether it was reported
    #: that the feed never mentions it, or the feed does.
    branch_reported: bool = False
    #: Whether `parent_never_sent` was reported for it, or `no_batch_message` for its parent.
    parent_reported: bool = False
    #: Whether the number doesn't grow from the parent to it, or from an ancestor to the next.
    twisted: bool = False
    #: Whether `number_repeated_in_chain` was reported for it.
    number_reported: bool = False
    #: Whether its parents lead back to it, which no true hash can do. It isn't kept as a child of its parent.
    closes_ring: bool = False

    @property
    def has_number(self) -> bool:
        """Whether it has a Batch, or is the configured start."""
        return self.batch_order is not None or self.linked


def _completion(node: Node) -> int:
    return node.complete_order or 0


class BlockTree:
    """All remembered blocks by hash, and the hashes of each block's children in the order of their Batches."""

    def __init__(self) -> None:
        self.nodes: dict[bytes, Node] = {}
        self.children: dict[bytes, list[bytes]] = {}
        #: The last sequence number that was given out.
        self.order = 0

    def next_order(self) -> int:
        """The next sequence number. First messages, Batches and completions share one sequence."""
        self.order += 1
        return self.order

    def add_child(self, node: Node) -> None:
        """Enter the block, which has a Batch now, as a child of its parent."""
        node.closes_ring = node.parent == node.block_hash or (
            node.block_hash in self.children and any(ancestor is node for ancestor in self.ancestors(node))
        )
        if not node.closes_ring:
            self.children.setdefault(node.parent, []).append(node.block_hash)

    def drop(self, node: Node) -> None:
        """Forget the block."""
        del self.nodes[node.block_hash]
        siblings = self.children.get(node.parent, [])
        if node.block_hash in siblings:
            siblings.remove(node.block_hash)
            if not siblings:
                del self.children[node.parent]

    def restore(self, nodes: list[Node], order: int) -> None:
        """Fill an empty tree with the blocks of carried state."""
        self.order = order
        self.nodes.update((node.block_hash, node) for node in nodes)
        with_parent = [node for node in nodes if node.batch_order is not None and not node.closes_ring]
        for node in sorted(with_parent, key=lambda node: node.batch_order or 0):
            self.children.setdefault(node.parent, []).append(node.block_hash)

    # Walks

    def children_of(self, block_hash: bytes) -> list[Node]:
        """Children in the order of their Batches."""
        return [self.nodes[child] for child in self.children.get(block_hash, ())]

    def complete_children(self, node: Node) -> list[Node]:
        """Complete children in the order in which they completed."""
        children = [self.nodes[child] for child in self.children.get(node.block_hash, ())]
        return sorted((child for child in children if child.complete_order is not None), key=_completion)

    def ancestors(self, node: Node) -> Iterator[Node]:
        """Parent, parent's parent and so on. If parents lead back to the block, the block itself is the last."""
        passed = {node.block_hash}
        ancestor = self.nodes.get(node.parent)
        while ancestor is not None:
            yield ancestor
            if ancestor.block_hash in passed:
                return
            passed.add(ancestor.block_hash)
            ancestor = self.nodes.get(ancestor.parent)

    def descendants(self, node: Node) -> Iterator[Node]:
        """The block, and all blocks that have it as an ancestor."""
        waiting = [node]
        while waiting:
            descendant = waiting.pop()
            yield descendant
            waiting.extend(self.nodes[child] for child in self.children.get(descendant.block_hash, ()))

    def complete_branch(self, root: Node) -> Iterator[Node]:
        """The block, and its descendants that complete blocks lead to."""
        waiting = deque((root,))
        while waiting:
            node = waiting.popleft()
            yield node
            waiting.extend(self.complete_children(node))
