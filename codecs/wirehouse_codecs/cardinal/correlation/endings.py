"""What ends a block's life, and the rules about what never came.

A life ends at the first of these:

- The head moves so that the block is more than the threshold below it. This ending judges the block.
- `HORIZON_NS` have passed since its first message. This ending judges it, too.
- More than `MAX_BLOCKS` blocks would be remembered. Then the oldest life ends without a judgement.

A block without a Batch has no number, so no head ends its life: its Batch may be in another partition that is read
later. The same holds for what a block with a Batch lacks: it lives until every known ordinary partition was read as
far as the head has to be, and until no reorg is unfinished, because the channel may bring it or lower the head. Below a
gap, and so below the first block of a feed without a start, no number is judged either while the gap is remembered: the
block may be what fills the gap.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Final

from wirehouse_codecs.cardinal.correlation import findings
from wirehouse_codecs.cardinal.correlation.ancestors import Ancestors
from wirehouse_codecs.cardinal.correlation.block_tree import Node
from wirehouse_codecs.cardinal.correlation.canonical import CanonicalChain
from wirehouse_codecs.cardinal.correlation.events import Closed, Outcome
from wirehouse_codecs.cardinal.correlation.life_queues import Lives
from wirehouse_codecs.cardinal.correlation.topics import Topics
from wirehouse_codecs.cardinal.options import CardinalOptions
from wirehouse_codecs.cardinal.session.texts import location
from wirehouse_codecs.core.horizon import HORIZON_NS
from wirehouse_codecs.core.rules import Place

#: Blocks beside the canonical ones that are remembered. A feed that invents hashes ends the lives of its oldest blocks.
MAX_BLOCKS: Final = 100_000


class Endings:
    """Ends the lives of blocks, and forgets closed blocks."""

    def __init__(
        self, options: CardinalOptions, canonical: CanonicalChain, lives: Lives, topics: Topics, ancestors: Ancestors
    ) -> None:
        self._has_start = options.start is not None
        self._threshold = options.reorg_threshold
        self._tree = canonical.tree
        self._canonical = canonical
        self._lives = lives
        self._topics = topics
        self._ancestors = ancestors

    def expire(self, now_ns: int) -> Iterator[Outcome]:
        """End the lives that began longer than the horizon before `now_ns`."""
        by_time = self._lives.by_time
        while by_time and by_time[0][0] + HORIZON_NS < now_ns:
            yield from self._end_oldest(Place.before(by_time[0][0] + HORIZON_NS + 1), judged=True)

    def make_room(self, place: Place) -> Iterator[Outcome]:
        """While there are too many blocks forget closed ones from the lowest on, then end lives from the oldest on."""
        nodes, canonical, lives = self._tree.nodes, self._canonical.at, self._lives
        while len(nodes) - len(canonical) > MAX_BLOCKS and (lives.closed or len(lives.by_time) > 1):
            if lives.closed:
                lives.forget_lowest(canonical)
            else:
                yield from self._end_oldest(place, judged=False)

    def _end_oldest(self, place: Place, *, judged: bool) -> Iterator[Outcome]:
        node = self._lives.of(self._lives.by_time.popleft())
        if node is None:
            return
        if judged:
            yield from self._never_came(node, place)
            yield from self._check_start(node, place)
        stall = self._stall(node) if judged else ""
        yield self._close(node, place, judged, stall)
        if node.block_hash not in self._canonical.at:
            if self._stays_at_start() and node.parent == self._canonical.head_hash:
                # The feed has named the start, also when the child that did so is forgotten.
                self._canonical.head.branch_reported = True
            self._tree.drop(node)

    def head_moved(self, place: Place) -> Iterator[Outcome]:
        """End the lives that the new head leaves more than the threshold below."""
        below = self._canonical.head.number - self._threshold
        # Below a start nothing is waited for.
        above_gap = 0 if self._has_start else self._canonical.highest_gap
        read = self._topics.least_read() - self._threshold
        below_gap = []
        channels = self._ancestors.unfinished()
        self._lives.wait_for_channels(channels)
        for entry in self._lives.passed(below, read):
            node = self._lives.of(entry)
            if node is None:
                continue
            lacks = node.complete_order is None or not self._is_parent_known(node)
            if node.number < above_gap:
                below_gap.append(entry)
            elif lacks and node.number >= read:
                heapq.heappush(self._lives.lacking, entry)
            elif lacks and channels:
                self._lives.for_channels.append(entry)
            else:
                yield from self._never_came(node, place)
                yield self._close(node, place, judged=True)
                self._lives.may_be_forgotten(node)
        for entry in below_gap:
            heapq.heappush(self._lives.by_number, entry)

    def _close(self, node: Node, place: Place, judged: bool, stall: str = "") -> Closed:
        node.open = False
        node.first_place = node.batch_place = None
        return Closed(node.block_hash, place, judged, node.complete_in_life, stall)

    def forget(self) -> None:
        """Forget the oldest canonical blocks, and closed blocks that are lower than those remembered."""
        for node in self._canonical.forget_oldest():
            node.valid_from_ns = None
            if not node.open:
                self._tree.drop(node)
        if self._canonical.forgotten_below is not None:
            self._lives.forget_below(self._canonical.forgotten_below, self._canonical.at)

    # Rules about what never came

    def _never_came(self, node: Node, place: Place) -> Iterator[Outcome]:
        """Rules `no_batch_message` and `parent_never_sent`, for a block whose life ends."""
        known_from = self._canonical.known_from
        if node.batch_order is None:
            # The missing Batch is one finding, of the block itself, and not one more of each child.
            for child in self._tree.children_of(node.block_hash):
                child.parent_reported = True
            self._lives.watch_children(node.block_hash)
            # The Batch of a start block was sent before the feed began.
            if not node.linked:
                first = node.first_place or place
                message = f"block {node.block_hash.hex()} has messages from {location(first)} on, and no Batch"
                yield findings.finding("no_batch_message", first, message, node)
        elif not self._is_parent_known(node) and known_from is not None and node.number > known_from:
            node.parent_reported = True
            message = f"parent {node.parent.hex()} of block {findings.name(node)} was never sent"
            yield findings.finding("parent_never_sent", node.batch_place or place, message, node)

    def _is_parent_known(self, node: Node) -> bool:
        """Whether the parent has a Batch, or messages that wait for one, or a finding that it has none."""
        if node.parent_sent or node.parent_reported:
            return True
        parent = self._tree.nodes.get(node.parent)
        return parent is not None and parent.open

    def _check_start(self, node: Node, place: Place) -> Iterator[Outcome]:
        """Rule `parent_never_sent`, once, for a start that the feed never mentions: no head ever follows on it."""
        if not self._stays_at_start():
            return
        start = self._canonical.head
        is_named = start.batch_order is not None or start.block_hash in self._tree.children
        if is_named or start.branch_reported or node.complete_order is None:
            return
        if not any(one.weight > start.weight for one in self._tree.complete_branch(node)):
            return
        start.branch_reported = True
        if not node.parent_reported:
            above_start = (one for one in self._tree.ancestors(node) if one.has_number)
            (lowest,) = deque((node, *above_start), maxlen=1)
            message = (
                f"start {findings.name(start)} was neither sent nor named as a parent, and the head stays there; "
                f"block {findings.name(lowest)} is the lowest of a heavier chain"
            )
            yield findings.finding("parent_never_sent", lowest.batch_place or place, message, lowest)

    def _stays_at_start(self) -> bool:
        return self._has_start and len(self._canonical.hashes) == 1

    def _stall(self, node: Node) -> str:
        """The words for a head that can't move because its child never completed while complete blocks wait above."""
        waits = node.complete_order is None and self._canonical.head_hash == node.parent
        if not waits or not self._tree.complete_children(node):
            return ""
        parent = findings.name(self._tree.nodes[node.parent])
        return f"; the head stays at {parent}, and complete blocks wait above this one"
