"""The choice of the head: what a complete block, or a reorg, does to the canonical chain.

`Head.place` gets each block that completes, `Head.carry_out` each announced reorg. The numbers of rules in this module
are those of `chain`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Final

from wirehouse_codecs.cardinal.correlation import findings
from wirehouse_codecs.cardinal.correlation.ancestors import Ancestors
from wirehouse_codecs.cardinal.correlation.block_tree import Node
from wirehouse_codecs.cardinal.correlation.canonical import CanonicalChain
from wirehouse_codecs.cardinal.correlation.events import Canonical, Outcome, Refused, ReorgRow, Update
from wirehouse_codecs.cardinal.correlation.life_queues import Lives
from wirehouse_codecs.cardinal.correlation.reorg_state import ReorgState, Stage
from wirehouse_codecs.cardinal.correlation.reorgs import Reorgs
from wirehouse_codecs.cardinal.options import CardinalOptions
from wirehouse_codecs.core.rules import Place

#: Number of first blocks, in a feed without a start, that may leave a gap.
FIRST_BLOCKS: Final = 10
#: Blocks of side chains that are remembered while they wait for the end of a reorg.
MAX_HELD: Final = 256


class Head:
    """Moves the head of the canonical chain."""

    def __init__(
        self, options: CardinalOptions, canonical: CanonicalChain, lives: Lives, reorgs: Reorgs, ancestors: Ancestors
    ) -> None:
        self._options = options
        self._threshold = options.reorg_threshold
        self._tree = canonical.tree
        self._nodes = canonical.tree.nodes
        self._canonical = canonical
        self._lives = lives
        self._reorgs = reorgs
        self._ancestors = ancestors
        #: Updates so far.
        self.sequence = 0
        #: Linked blocks, counted up to FIRST_BLOCKS.
        self.linked = 0
        #: Linked blocks of side chains that were heavier than the head and had to wait, oldest first.
        self.held: dict[bytes, None] = {}

    def start(self, node: Node) -> None:
        """The block is the configured start: the lowest of the chain."""
        self._canonical.begin(node)
        self._canonical.append(node)

    def place(self, node: Node, place: Place) -> Iterator[Outcome]:
        """The block completed at `place`."""
        if self._is_refused(node):
            return self._refuse(node, place)
        if node.block_hash in self._canonical.at:
            return self._fill_gap(node, place)
        if above := [gap for gap in self._canonical.complete_gaps() if gap.parent == node.block_hash]:
            return self._fill_gap(above[0], place)
        return self._place_block(node, place)

    # Rule 1

    def _is_refused(self, node: Node) -> bool:
        parent = self._nodes.get(node.parent)
        pinned = self._options.whitelist.get(node.number, node.block_hash)
        return pinned != node.block_hash or (parent is not None and parent.refused)

    def _refuse(self, node: Node, place: Place) -> Iterator[Outcome]:
        """Refuse the block and its complete descendants. The others are refused when they complete."""
        waiting = [node]
        while waiting:
            refused = waiting.pop()
            if not refused.refused:
                refused.refused = True
                yield Refused(refused.block_hash, place)
                waiting.extend(reversed(self._tree.complete_children(refused)))

    # Rules 3 to 6

    def _place_block(self, node: Node, place: Place) -> Iterator[Outcome]:
        parent = self._nodes.get(node.parent)
        if not self._canonical.hashes:
            yield from self._first_head(node, place)
        elif parent is not None and parent.linked:
            self._link(node, place)
            yield from self._move(node, parent, place)
        elif (lowest := self._over_gap(node)) is not None:
            self._link(lowest, place)
            self._canonical.gaps.append(lowest.block_hash)
            yield from self._extend(self._canonical.best_path(lowest)[0], place)

    def _first_head(self, node: Node, place: Place) -> Iterator[Outcome]:
        self._link(node, place)
        self._canonical.begin(node)
        yield from self._extend(self._canonical.best_path(node)[0], place)

    def _over_gap(self, node: Node) -> Node | None:
        """The lowest block of the branch of `node` if the branch becomes canonical over a gap, by rule 4."""
        if self._options.start is not None or self.linked >= FIRST_BLOCKS:
            return None
        head = self._canonical.head
        branch = islice(self._tree.complete_branch(node), self._threshold)
        if not any((one.weight, one.number) > (head.weight, head.number) for one in branch):
            return None
        lowest = node
        for ancestor in islice(self._tree.ancestors(node), self._threshold):
            if ancestor.complete_order is None or ancestor.linked:
                return None
            lowest = ancestor
        return lowest if lowest.parent not in self._nodes else None

    def _link(self, root: Node, place: Place) -> None:
        """The block and its waiting descendants are linked now."""
        waiting = [root]
        while waiting:
            node = waiting.pop()
            node.linked = True
            self.linked = min(self.linked + 1, FIRST_BLOCKS)
            self._reorgs.linked(node, place)
            children = self._tree.complete_children(node)
            waiting.extend(child for child in children if not child.linked and not child.refused)

    def _move(self, node: Node, parent: Node, place: Place) -> Iterator[Outcome]:
        """Rules 3 and 5, for a block that is linked now."""
        if self._reorgs.is_after_complete(place):
            return
        announced = self._reorgs.announced_from(parent.block_hash)
        # On an ordinary topic it may be of the branch that the reorg removes, in a partition that is read late.
        if announced is not None and not self._reorgs.topics.is_ordinary(node.topic):
            yield from self.carry_out(announced, place, node)
        elif parent.block_hash == self._canonical.hashes[-1]:
            yield from self._extend(self._canonical.best_path(node)[0], place)
        else:
            yield from self._try_side_chain(node, place)

    def _try_side_chain(self, node: Node, place: Place) -> Iterator[Outcome]:
        """Rule 5: the side chain through `node` displaces the head if it is heavy enough."""
        path, heaviest = self._canonical.best_path(node)
        if heaviest <= self._canonical.head.weight:
            return
        branch, ancestor = self._canonical.branch_to(node)
        if ancestor is None:
            return
        if heaviest <= self._reorgs.weight_to_beat(node) or self._reorgs.bars(node, branch):
            self._hold(node)
            return
        ancestor_hash = self._canonical.hashes[ancestor]
        depth = len(self._canonical.hashes) - 1 - ancestor
        added = branch + path[1:]
        if depth and (reorg := self._reorgs.open_for(ancestor_hash, added)) is not None:
            yield from self._displace_again(reorg, ancestor, added, place)
        elif depth <= self._threshold or self._is_named(ancestor_hash, added):
            yield from self._displace(ancestor, added, place)
        elif self._reorgs.is_removing(ancestor):
            self._hold(node)
        elif not branch[0].branch_reported:
            branch[0].branch_reported = True
            # Otherwise it was reported that the Reorg of their channel names another block.
            if not self._ancestors.has_misled([*branch, *path]):
                yield self._unannounced(path[-1], self._nodes[ancestor_hash], depth, place)

    def _hold(self, node: Node) -> None:
        """The side chain through `node` waits for the end of a reorg."""
        self.held[node.block_hash] = None
        if len(self.held) > MAX_HELD:
            del self.held[next(iter(self.held))]

    def try_held(self, place: Place) -> Iterator[Outcome]:
        """A reorg is over: side chains that had to wait displace the head if they are still heavier."""
        held, self.held = self.held, {}
        for block_hash in held:
            node = self._nodes.get(block_hash)
            if node is not None and node.linked and block_hash not in self._canonical.at:
                yield from self._try_side_chain(node, place)

    def _is_named(self, ancestor: bytes, branch: list[Node]) -> bool:
        """Whether a Reorg names the ancestor, so that the branch above it may displace the head at any depth."""
        return ancestor in self._ancestors.early or self._reorgs.has_named(ancestor, branch)

    def _unannounced(self, top: Node, fork: Node, depth: int, place: Place) -> Outcome:
        head = self._canonical.head
        message = (
            f"side chain up to {findings.name(top)} of weight {top.weight} forks {depth} blocks below the head "
            f"{findings.name(head)} of weight {head.weight}, and no Reorg names the ancestor {findings.name(fork)}"
        )
        return findings.finding("reorg_unannounced", place, message, top)

    # What becomes canonical

    def _extend(self, added: list[Node], place: Place) -> Iterator[Outcome]:
        """The chain goes on from the head with `added`."""
        return self._switch(len(self._canonical.hashes) - 1, added, place)

    def _displace(self, ancestor: int, added: list[Node], place: Place) -> Iterator[Outcome]:
        """A reorg that weight alone makes: the chain goes on from position `ancestor` with `added`."""
        if (announced := self._reorgs.announced_from(self._canonical.hashes[ancestor])) is not None:
            announced.is_overtaken = True
        depth, old_head = len(self._canonical.hashes) - 1 - ancestor, self._canonical.head.block_hash
        yield from self._switch(ancestor, added, place)
        if depth:
            fork = self._nodes[self._canonical.hashes[ancestor]]
            channel = self._channel_of(fork.block_hash, added)
            is_deep = depth > self._threshold
            yield ReorgRow(
                place=place,
                ancestor_hash=fork.block_hash,
                ancestor_number=fork.number,
                depth=depth,
                old_head=old_head,
                new_head=self._canonical.head_hash,
                announced=channel is not None or is_deep or fork.block_hash in self._ancestors.early,
                channel=channel,
                completed=True,
                changed_at=place,
            )

    def _channel_of(self, ancestor: bytes, added: list[Node]) -> str | None:
        """The channel that the blocks above the ancestor came on, as far as a Reorg has named it."""
        if (named := self._ancestors.early.get(ancestor)) is not None:
            return named.channel
        reorg = self._reorgs.by_ancestor.get(ancestor)
        return reorg.channel if reorg is not None and self._reorgs.has_block_of(reorg, added) else None

    def _displace_again(self, reorg: ReorgState, ancestor: int, added: list[Node], place: Place) -> Iterator[Outcome]:
        """The channel of an open reorg displaces blocks that were read after its Reorg: it removes these too."""
        self._remove(reorg, ancestor)
        yield from self._switch(ancestor, added, place)
        yield self._reorgs.row(reorg, place)

    def _switch(self, ancestor: int, added: list[Node], place: Place) -> Iterator[Outcome]:
        """The chain goes on from position `ancestor` with `added`."""
        removed = self._canonical.cut_above(ancestor)
        if not removed and not added:
            return
        rows = [row for node in removed for row in self._stops(node, place)]
        for node in added:
            self._canonical.append(node)
            rows.append(self._becomes(node, place))
        yield self._update(place, added, removed)
        yield from rows

    def _update(self, place: Place, added: list[Node], removed: list[Node]) -> Update:
        head = self._canonical.head
        hashes = tuple(node.block_hash for node in added), tuple(node.block_hash for node in removed)
        self.sequence += 1
        return Update(place, self.sequence - 1, *hashes, head.block_hash, head.number)

    def _becomes(self, node: Node, place: Place) -> Canonical:
        """The block is canonical from `place` on."""
        node.was_canonical = True
        node.valid_from_ns = place.arrived_at_ns
        return Canonical(node.block_hash, node.number, node.valid_from_ns, None, place)

    def _stops(self, node: Node, place: Place) -> Iterator[Canonical]:
        """The block, which was taken off the chain, is canonical up to `place`."""
        if not node.open:
            self._lives.may_be_forgotten(node)
        # A start and its ancestors have no row.
        if node.valid_from_ns is not None:
            yield Canonical(node.block_hash, node.number, node.valid_from_ns, place.arrived_at_ns, place)
        node.valid_from_ns = None

    # Gaps

    def _fill_gap(self, above: Node, place: Place) -> Iterator[Outcome]:
        """Rules 2 and 4: complete ancestors of `above`, which has a gap below it, become canonical. No head moves."""
        self._link(above, place)
        taken: list[Node] = []
        while above.block_hash in self._canonical.gaps and above.parent not in self._canonical.at:
            below = self._nodes.get(above.parent)
            if below is None or below.complete_order is None or below.refused:
                break
            self._canonical.insert_below(above, below)
            self._link(below, place)
            below.was_canonical = True
            taken.append(below)
            above = below
        rows: list[Canonical] = []
        removed: list[Node] = []
        # Several branches may be above one gap.
        for gap in self._canonical.complete_gaps():
            if gap.parent in self._canonical.at and gap.block_hash in self._canonical.gaps:
                between = self._canonical.close_gap(gap)
                rows += (row for node in between for row in self._stops(node, place))
                removed += (node for node in between if not any(node is one for one in taken))
        if self._options.start is None:
            yield from self._update_below(taken, removed, rows, place)

    def _update_below(
        self, taken: list[Node], removed: list[Node], rows: list[Canonical], place: Place
    ) -> Iterator[Outcome]:
        """The update of blocks that filled a gap. Side chains that are linked now may displace the head."""
        added = [node for node in reversed(taken) if node.block_hash in self._canonical.at]
        rows += [self._becomes(node, place) for node in added]
        if added or removed:
            yield self._update(place, added, removed)
        yield from rows
        for child in [child for below in taken for child in self._tree.complete_children(below)]:
            if child.linked and child.block_hash not in self._canonical.at:
                yield from self._try_side_chain(child, place)

    # Announced reorgs

    def carry_out(self, reorg: ReorgState, place: Place, child: Node | None) -> Iterator[Outcome]:
        """Revert to the ancestor of an announced reorg.

        `child` is the first new block, if that block, on the channel, and not the Reorg there opens the reorg.
        """
        fork = self._nodes.get(reorg.ancestor)
        lead, position = self._lead_to(fork)
        if fork is None or position is None:
            message = f"block {reorg.ancestor.hex()} has left the part of the chain that is remembered"
            yield findings.finding("reorg_ancestor_wrong", place, message)
            return
        reorg.stage = Stage.OPEN
        self._remove(reorg, position)
        if child is not None:
            path = self._canonical.best_path(child)[0]
            self._opened_by(reorg, child)
        else:
            path = self._heavier_branch(reorg, fork)
        for node in path:
            node.branch = reorg.ancestor
        # The channel may be read after blocks that are later than the reorg, and heavier.
        self._hold(self._canonical.head)
        yield from self._switch(position, lead + path, place)
        yield self._reorgs.row(reorg, place)

    def _remove(self, reorg: ReorgState, position: int) -> None:
        """The reorg removes the blocks above `position`."""
        removed = [self._nodes[block_hash] for block_hash in self._canonical.hashes[position + 1 :]]
        head = self._canonical.head
        reorg.head_number = max(reorg.head_number, head.number)
        if len(removed) >= reorg.depth:
            reorg.old_head, reorg.depth = head.block_hash, len(removed)
        reorg.removed |= {node.block_hash: None for node in removed}
        # What is above a gap may belong to the new chain.
        below_gap = takewhile(lambda node: node.block_hash not in self._canonical.gaps, removed)
        reorg.heaviest = max([reorg.heaviest, *(node.weight for node in below_gap)])

    def _lead_to(self, fork: Node | None) -> tuple[list[Node], int | None]:
        """The position of a canonical block. Of another block that of its canonical ancestor, and what is between."""
        if fork is None:
            return [], None
        if fork.block_hash in self._canonical.at:
            return [], self._canonical.position(fork.block_hash)
        return self._canonical.branch_to(fork)

    def _opened_by(self, reorg: ReorgState, child: Node) -> None:
        reorg.channel, reorg.partition = child.topic, child.batch_place.partition if child.batch_place else None
        self._reorgs.add_batch(reorg, child.block_hash, child.parent, child.weight)

    def _heavier_branch(self, reorg: ReorgState, fork: Node) -> list[Node]:
        """The side chain above the ancestor, if it is there already and heavier than what is removed."""
        best: tuple[list[Node], int] = ([], reorg.heaviest)
        for child in self._tree.complete_children(fork):
            if child.linked and child.block_hash not in reorg.removed and child.block_hash not in self._canonical.at:
                candidate = self._canonical.best_path(child)
                best = candidate if candidate[1] > best[1] else best
        return best[0]
