"""The rules about a block and its parent: the order of their Batches, and their numbers.

`arrived` is called for each block when its first Batch arrives. A link is the pair of a block and its parent. The Batch
of either may come first, so one Batch may complete several links: to the parent, and to each child that came before.
"""

from __future__ import annotations

from collections.abc import Iterator

from wirehouse_codecs.cardinal.correlation import findings
from wirehouse_codecs.cardinal.correlation.block_tree import BlockTree, Node
from wirehouse_codecs.cardinal.correlation.events import LocatedFinding
from wirehouse_codecs.core.rules import Place


def arrived(tree: BlockTree, node: Node, place: Place, *, is_history: bool) -> Iterator[LocatedFinding]:
    """Check the links of a block whose first Batch arrives at `place`.

    `is_history`: the block is not above the configured start, so its order is not judged.
    """
    parent = tree.nodes.get(node.parent)
    if parent is not None and parent.has_number:
        node.parent_sent = True
        yield from _check_number(tree, node, parent, place)
    for child in tree.children_of(node.block_hash):
        child.parent_sent = True
        if not is_history:
            message = f"the Batch of block {findings.name(node)} came after the one of its child {findings.name(child)}"
            yield findings.finding("parent_after_child", place, message + findings.at_batch(child), child)
        yield from _check_number(tree, child, node, place)


def _check_number(tree: BlockTree, node: Node, parent: Node, place: Place) -> Iterator[LocatedFinding]:
    """Rule `number_repeated_in_chain` for the new link to `parent`, and for the descendants that it affects.

    While numbers grow along a chain none can repeat. So ancestors are searched only above a link where they don't grow.
    """
    if node.number <= parent.number:
        yield from _repeated(node, parent, place)
    elif not parent.twisted:
        return
    for twisted in tree.descendants(node):
        twisted.twisted = True
        same = _ancestor_of_number(tree, twisted)
        if same is not None:
            yield from _repeated(twisted, same, place)


def _repeated(node: Node, other: Node, place: Place) -> Iterator[LocatedFinding]:
    if not node.number_reported:
        node.number_reported = True
        block, ancestor = (findings.name(one) + findings.at_batch(one) for one in (node, other))
        message = f"block {block} descends from block {ancestor}"
        yield findings.finding("number_repeated_in_chain", node.batch_place or place, message, node)


def _ancestor_of_number(tree: BlockTree, node: Node) -> Node | None:
    """The nearest ancestor with the number of `node`."""
    same = (other for other in tree.ancestors(node) if other.number == node.number and other.has_number)
    return next(same, None)
