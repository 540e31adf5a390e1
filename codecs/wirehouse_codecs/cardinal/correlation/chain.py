"""The ordering layer: which of a source's blocks are the chain (specification, "Reorg Handling").

`Chain.apply` takes what happens to blocks and reorgs in arrival order and says what follows from it. It is
deterministic, and a chain restored from `snapshot()` goes on as the one it was taken of.

The rules for a completed block, after the reference and made definite:

1. A block that the whitelist excludes, or whose parent is refused, is refused with all its descendants.
2. A block that is already known is ignored. The start block and its ancestors, sent again, are taken as history: the
   chain that a consumer with this start knows already. They move no head, and no update or row tells of them.
3. A child of the head is added whatever its weight, and its waiting descendants after it.
4. Without a start the first complete block is the head. While fewer than ten blocks are linked, complete blocks above
   a parent that was never heard of become the chain over a gap as soon as one of them is heavier than the head, or as
   heavy and higher; the missing blocks become canonical below what is there if they complete, and an update adds them
   without moving the head. The reference takes lighter ones too, and so goes back when blocks come out of order.
5. A block whose parent is linked displaces the head if it or a waiting descendant is strictly heavier than the head.
6. Any other block waits for its parent.

Of several waiting children the one with the heaviest descendant follows, of equal ones the one completed first.
"Linked" is a complete block whose complete ancestors lead to the chain. All blocks that become canonical or stop being
so at one event are one `Update`: to replay the updates gives the blocks whose row says that they are canonical.

Depth is the number of canonical blocks above the common ancestor. A side chain that forks deeper than the reorg
threshold displaces the head only if a Reorg announces it; otherwise it is `reorg_unannounced`, told once for each
branch (the first block after the ancestor), and the head stays. A depth of exactly the threshold is allowed.

A Reorg on its channel reverts the head to the ancestor, and the channel's blocks follow by rule 3. A Reorg elsewhere
only announces it; if the channel's copy never comes and a child of the ancestor completes, the reorg is carried out
there. While a reorg is open, the removed blocks and what descends from them on ordinary topics displace nothing, and
other ordinary blocks have to beat the heaviest removed one. After its ReorgComplete the normal weights hold.

A channel may be read before the ordinary partitions that bring the ancestor, or after the channel of a later reorg.
Then nothing reverts: the hash stays announced, and heavier blocks above it displace the head at any depth. The hash is
wrong if it isn't canonical when the ordinary partitions were read more than the threshold above its number.

A block's life ends (`Closed`) at the first change of the head that leaves it more than the threshold below, or
`HORIZON_NS` after its first message, or when more than `MAX_BLOCKS` would be remembered. Without a Batch it has no
number, so no head ends it: its Batch may stand in another partition that is read later. So may what a block with a
Batch lacks: it lives on until every ordinary partition that is known was read as far as the head has to be; a
partition is read up to the linked blocks whose first message, Batch or last message it carried. Below a gap, and
so below the first block of a feed without a start, nothing is judged by its number either while the gap is remembered:
it may be what fills it. The chain itself is remembered for `HISTORY` thresholds below the head.
"""

from __future__ import annotations

import heapq
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice, takewhile
from typing import Any, Final

from wirehouse_codecs.cardinal.correlation.chain_state import (
    Node,
    NotCanonical,
    ReorgState,
    Stage,
    completion,
    has_number,
    is_on,
    is_read_again,
    node_from_json,
    node_to_json,
    reorg_from_json,
    reorg_to_json,
)
from wirehouse_codecs.cardinal.correlation.events import (
    BatchArrived,
    Canonical,
    ChannelMessage,
    Closed,
    Completed,
    Event,
    FirstMessage,
    Found,
    Outcome,
    Refused,
    ReorgArrived,
    ReorgCompleteArrived,
    ReorgRow,
    Update,
)
from wirehouse_codecs.cardinal.options import CardinalOptions, Start
from wirehouse_codecs.cardinal.rules import RULE
from wirehouse_codecs.cardinal.session.assembly import reorg_channel_name, where
from wirehouse_codecs.core.errors import StateVersionError
from wirehouse_codecs.core.rules import Finding, Place

SNAPSHOT_VERSION: Final = 3
#: A block lives for this span of arrival time at most.
HORIZON_NS: Final = 7 * 24 * 3600 * 1_000_000_000
#: Canonical blocks that are remembered, as a multiple of the reorg threshold, and how many at least.
HISTORY: Final = 8
HISTORY_LEAST: Final = 256
#: So many first blocks of a feed without a start may leave a gap.
FIRST_BLOCKS: Final = 10
#: Reorgs and topics of early channel messages that are remembered.
MAX_REORGS: Final = 256
#: Blocks beside the canonical ones that are remembered: a feed that invents hashes ends the lives of its oldest ones.
MAX_BLOCKS: Final = 100_000
_32_BITS: Final = (1 << 32) - 1


class Chain:
    """One source's blocks as a consumer would order them."""

    def __init__(self, options: CardinalOptions, snapshot: str | None = None) -> None:
        self._options = options
        self._threshold = options.reorg_threshold
        self._history = max(HISTORY * options.reorg_threshold, HISTORY_LEAST)
        self._is_channel_name = reorg_channel_name(options)
        self._nodes: dict[bytes, Node] = {}
        #: Blocks with a Batch, by parent, in the order of their Batches.
        self._children: dict[bytes, list[bytes]] = {}
        #: The canonical blocks, lowest first, and the place of each counted from `_base`.
        self._chain: list[bytes] = []
        self._at: dict[bytes, int] = {}
        self._base = 0
        #: Canonical blocks whose parent isn't below them yet.
        self._gaps: list[bytes] = []
        self._reorgs: dict[bytes, ReorgState] = {}
        #: Topics that carried a Batch of ordinary traffic.
        self._ordinary: set[str] = set()
        #: Partitions of channel topics whose Reorg hasn't come.
        self._partitions: dict[str, list[int | None]] = {}
        self._sequence = 0
        self._order = 0
        self._linked = 0
        #: Blocks up to this number may have had a parent that we don't know.
        self._known_from: int | None = None
        self._forgotten_below: int | None = None
        #: Hashes that a Reorg or ReorgComplete named before they were canonical, oldest first.
        self._unknown: dict[bytes, NotCanonical] = {}
        #: Living blocks by first message; living ones with a Batch and closed ones by number.
        self._lives: deque[tuple[int, int, bytes]] = deque()
        self._by_number: list[tuple[int, int, bytes]] = []
        self._leaving: list[tuple[int, int, bytes]] = []
        #: Those that the head has passed and that lack something, which may stand in a partition that is read later.
        self._lacking: list[tuple[int, int, bytes]] = []
        #: Ordinary partitions: up to which number of a linked block each was read, as far as is known.
        self._read: dict[tuple[str | None, int | None], int | None] = {}
        if snapshot is not None:
            self._restore(snapshot)
        elif options.start is not None:
            self._begin(options.start)

    def _begin(self, start: Start) -> None:
        node = Node(start.hash, self._next(), number=start.number, weight=start.weight, linked=True, was_canonical=True)
        self._nodes[start.hash] = node
        self._chain.append(start.hash)
        self._at[start.hash] = 0
        self._gaps.append(start.hash)
        self._known_from = start.number

    @property
    def head(self) -> tuple[bytes, int] | None:
        """Hash and number of the newest canonical block."""
        return (self._chain[-1], self._nodes[self._chain[-1]].number) if self._chain else None

    def living(self) -> Iterator[bytes]:
        """The blocks whose life hasn't ended."""
        return (node.block_hash for node in self._nodes.values() if node.open)

    @property
    def oldest_ns(self) -> int | None:
        """When the first message of the oldest living block arrived."""
        while self._lives:
            first_ns, seen, block_hash = self._lives[0]
            node = self._nodes.get(block_hash)
            if node is not None and node.open and node.seen == seen:
                return first_ns
            self._lives.popleft()
        return None

    def apply(self, event: Event) -> list[Outcome]:
        """Take the next event in arrival order. What happens to a block outside its life has no effect."""
        out: list[Outcome] = list(self.expire(event.place.arrived_at_ns))
        head = self._chain[-1] if self._chain else None
        for outcome in _EVENTS[type(event)](self, event):
            out.append(outcome)
        if self._chain and self._chain[-1] != head:
            out.extend(self._judge(event.place))
        return out

    def _next(self) -> int:
        self._order += 1
        return self._order

    # Lives of blocks

    def _first_message(self, event: FirstMessage) -> Iterator[Outcome]:
        self._live(event.place, event.block_hash)
        self._was_read(event.place, None)
        self._watch_children(event.block_hash)
        for reorg in self._open_reorgs():
            if is_on(event.place, reorg):
                self._heard_on_channel(reorg, event.block_hash)
        yield from self._make_room(event.place)

    def _live(self, place: Place, block_hash: bytes) -> Node:
        """The block, which lives from now if it didn't."""
        node = self._nodes.get(block_hash)
        if node is None:
            node = self._nodes[block_hash] = Node(block_hash, self._next())
        elif node.open:
            return node
        else:
            node.seen = self._next()
        node.open, node.complete_in_life, node.first_place = True, False, place
        self._lives.append((place.arrived_at_ns, node.seen, block_hash))
        self._watch(node)
        return node

    def _watch(self, node: Node) -> None:
        if node.batch_order is not None:
            heapq.heappush(self._by_number, (node.number, node.seen, node.block_hash))

    def _watch_children(self, block_hash: bytes) -> None:
        """They lack less now."""
        for child in self._children.get(block_hash, ()):
            self._watch(self._nodes[child])

    def _was_read(self, place: Place | None, number: int | None) -> None:
        """A message stands at `place`; `number` if it is of a linked block."""
        if place is None:
            return
        partition = place.topic, place.partition
        if partition in self._read or place.topic is None or not self.is_channel(place.topic):
            known = self._read.get(partition)
            self._read[partition] = known if number is None else max(number, known or 0)

    def expire(self, now_ns: int) -> Iterator[Outcome]:
        """End the lives of blocks that were first seen longer than the horizon before `now_ns`."""
        while self._lives and self._lives[0][0] + HORIZON_NS < now_ns:
            first_ns, _, _ = self._lives[0]
            yield from self._end_oldest(Place.before(first_ns + HORIZON_NS + 1), judged=True)
        for key in [key for key, reorg in self._reorgs.items() if reorg.first_ns + HORIZON_NS < now_ns]:
            del self._reorgs[key]
        while self._unknown:
            ancestor, named = next(iter(self._unknown.items()))
            if named.place.arrived_at_ns + HORIZON_NS >= now_ns:
                break
            yield from self._judge_ancestor(ancestor, named, over=True)
            del self._unknown[ancestor]

    def _end_oldest(self, place: Place, *, judged: bool) -> Iterator[Outcome]:
        _, seen, block_hash = self._lives.popleft()
        node = self._nodes.get(block_hash)
        if node is not None and node.open and node.seen == seen:
            if judged:
                yield from self._never_came(node, place)
                yield from self._check_start(node, place)
            stall = self._stall(node) if judged else ""
            yield self._close(node, place, judged, stall)
            if block_hash not in self._at:
                self._drop(node)

    def _make_room(self, place: Place) -> Iterator[Outcome]:
        """While there are too many blocks forget closed ones from the lowest on, then end lives from the oldest on."""
        while len(self._nodes) - len(self._at) > MAX_BLOCKS and (self._leaving or len(self._lives) > 1):
            if self._leaving:
                self._drop_lowest()
            else:
                yield from self._end_oldest(place, judged=False)

    def _judge(self, place: Place) -> Iterator[Outcome]:
        """After the head has changed: blocks and reorgs that it left more than the threshold below."""
        below = self._nodes[self._chain[-1]].number - self._threshold
        # Only a start has nothing to wait for below it.
        above_gap = (
            max((self._nodes[gap].number for gap in self._gaps), default=0) if self._options.start is None else 0
        )
        read = min((-1 if number is None else number for number in self._read.values()), default=-1) - self._threshold
        waiting = []
        # In one order, whether or not a window's end put all of them on one heap.
        for entry in heapq.merge(_taken(self._lacking, min(read, below)), _taken(self._by_number, below)):
            _, seen, block_hash = entry
            node = self._nodes.get(block_hash)
            if node is None or not node.open or node.seen != seen:
                continue
            lacks = node.complete_order is None or not self._is_parent_heard_of(node)
            if node.number < above_gap:
                waiting.append(entry)
            elif lacks and node.number >= read:
                heapq.heappush(self._lacking, entry)
            else:
                yield from self._never_came(node, place)
                yield self._close(node, place, judged=True)
                heapq.heappush(self._leaving, entry)
        for entry in waiting:
            heapq.heappush(self._by_number, entry)
        for reorg in [reorg for reorg in self._reorgs.values() if reorg.old_number < below]:
            # While the channel goes on its end may come.
            if not is_on(place, reorg):
                yield from self._lapse(reorg, place)
        self._forget()

    def _never_came(self, node: Node, place: Place) -> Iterator[Outcome]:
        if node.batch_order is None:
            # That it has none is a finding of the block itself, and not once more of its children.
            for child in self._children.get(node.block_hash, ()):
                self._nodes[child].parent_found = True
            self._watch_children(node.block_hash)
            # The Batch of a start block came before the feed.
            if not node.linked:
                first = node.first_place or place
                words = f"block {node.block_hash.hex()} has messages from {where(first)} on, and no Batch"
                yield self._found("no_batch_message", first, words, node)
        elif not self._is_parent_heard_of(node) and self._known_from is not None and node.number > self._known_from:
            node.parent_found = True
            words = f"parent {node.parent.hex()} of block {_name(node)} was never sent"
            yield self._found("parent_never_sent", node.batch_place or place, words, node)

    def _check_start(self, node: Node, place: Place) -> Iterator[Outcome]:
        """Rule `parent_never_sent` of a start that the feed never mentions, once: no head ever follows on it."""
        start = self._nodes[self._chain[0]] if self._options.start is not None and len(self._chain) == 1 else None
        if start is None or start.batch_order is not None or start.branch_found or start.block_hash in self._children:
            return
        if node.complete_order is None or not any(one.weight > start.weight for one in self._complete_branch(node)):
            return
        start.branch_found = True
        if not node.parent_found:
            (lowest,) = deque((node, *filter(has_number, self._ancestors(node))), maxlen=1)
            words = (
                f"start {_name(start)} was neither sent nor named as a parent, and the head stays there; "
                f"block {_name(lowest)} is the lowest of a heavier chain"
            )
            yield self._found("parent_never_sent", lowest.batch_place or place, words, lowest)

    def _is_parent_heard_of(self, node: Node) -> bool:
        """The parent has a Batch, or messages that wait for one, or a finding that it has none."""
        parent = self._nodes.get(node.parent)
        return node.parent_sent or node.parent_found or (parent is not None and parent.open)

    def _stall(self, node: Node) -> str:
        """That the head is the parent of a block that never completed, and complete blocks wait above it."""
        waits = node.complete_order is None and self._chain and node.parent == self._chain[-1]
        if not waits or not self._complete_children(node):
            return ""
        return f"; the head stays at {_name(self._nodes[node.parent])}, and complete blocks wait above this one"

    def _close(self, node: Node, place: Place, judged: bool, stall: str = "") -> Closed:
        node.open = False
        node.first_place = node.batch_place = None
        return Closed(node.block_hash, place, judged, node.complete_in_life, stall)

    def _forget(self) -> None:
        """Drop the oldest canonical blocks, and closed blocks that are lower than those remembered."""
        surplus = max(len(self._chain) - self._history, 0)
        for block_hash in self._chain[:surplus]:
            del self._at[block_hash]
            if block_hash in self._gaps:
                self._gaps.remove(block_hash)
            node = self._nodes[block_hash]
            node.valid_from_ns = None
            if not node.open:
                self._drop(node)
        if surplus:
            del self._chain[:surplus]
            self._base += surplus
            self._forgotten_below = self._nodes[self._chain[0]].number
            self._known_from = max(self._known_from or 0, self._forgotten_below)
        while self._forgotten_below is not None and self._leaving and self._leaving[0][0] < self._forgotten_below:
            self._drop_lowest()

    def _drop_lowest(self) -> None:
        """Drop the lowest closed block, unless it lives again or is canonical."""
        _, seen, block_hash = heapq.heappop(self._leaving)
        left = self._nodes.get(block_hash)
        if left is not None and left.seen == seen and not left.open and block_hash not in self._at:
            self._drop(left)

    def _drop(self, node: Node) -> None:
        del self._nodes[node.block_hash]
        siblings = self._children.get(node.parent, [])
        if node.block_hash in siblings:
            siblings.remove(node.block_hash)
            if not siblings:
                del self._children[node.parent]

    def _found(self, rule: str, place: Place, message: str, node: Node | None = None) -> Found:
        number = node.number if node is not None and (node.batch_order is not None or node.linked) else None
        return Found(Finding(RULE[rule], place, message), node.block_hash if node else None, number)

    # Batches

    def _batch_arrived(self, event: BatchArrived) -> Iterator[Outcome]:
        node = self._nodes.get(event.block_hash)
        first = node is not None and node.open and node.batch_order is None
        if first:
            yield from self._open_again(event)
        yield from self._batch_on_channel(event)
        if node is None or not first:
            return
        node.batch_order, node.batch_place, node.topic = self._next(), event.place, event.place.topic
        node.number, node.weight, node.parent = event.number, event.weight, event.parent
        self._was_read(event.place, None)
        self._watch(node)
        if node.topic is not None and not self.is_channel(node.topic):
            self._ordinary.add(node.topic)
        yield from self._check_links(node, event.place)
        node.closes_ring = node.parent == node.block_hash or (
            node.block_hash in self._children and any(ancestor is node for ancestor in self._ancestors(node))
        )
        if not node.closes_ring:
            self._children.setdefault(node.parent, []).append(node.block_hash)

    def _check_links(self, node: Node, place: Place) -> Iterator[Outcome]:
        """Rules 11 and 12: order of arrival and numbers of this block, its parent and its children."""
        parent = self._nodes.get(node.parent)
        if parent is not None and has_number(parent):
            node.parent_sent = True
            yield from self._check_number(node, parent, place)
        for child in [self._nodes[child] for child in self._children.get(node.block_hash, ())]:
            child.parent_sent = True
            if not self._is_history(node):
                words = f"the Batch of block {_name(node)} came after the one of its child {_name(child)}"
                yield self._found("parent_after_child", place, words + _at_batch(child), child)
            yield from self._check_number(child, node, place)

    def _is_history(self, node: Node) -> bool:
        return self._options.start is not None and node.number <= self._options.start.number

    def _check_number(self, node: Node, parent: Node, place: Place) -> Iterator[Outcome]:
        """Rule `number_repeated_in_chain` of the link to `parent`, and of what it makes known of descendants.

        While numbers only grow along a chain none can repeat, so ancestors are looked through only above a link where
        they don't.
        """
        if node.number <= parent.number:
            yield from self._repeated(node, parent, place)
        elif not parent.twisted:
            return
        for twisted in self._descendants(node):
            twisted.twisted = True
            same = self._ancestor_of_number(twisted)
            if same is not None:
                yield from self._repeated(twisted, same, place)

    def _repeated(self, node: Node, other: Node, place: Place) -> Iterator[Outcome]:
        if not node.number_found:
            node.number_found = True
            words = f"block {_name(node)}{_at_batch(node)} descends from block {_name(other)}{_at_batch(other)}"
            yield self._found("number_repeated_in_chain", node.batch_place or place, words, node)

    def _descendants(self, node: Node) -> Iterator[Node]:
        """The block and all that have it as an ancestor."""
        waiting = [node]
        while waiting:
            found = waiting.pop()
            yield found
            waiting.extend(self._nodes[child] for child in self._children.get(found.block_hash, ()))

    def _ancestors(self, node: Node) -> Iterator[Node]:
        """Parent, parent's parent and so on; hostile parents may lead back to the block, which then is the last."""
        passed = {node.block_hash}
        ancestor = self._nodes.get(node.parent)
        while ancestor is not None:
            yield ancestor
            if ancestor.block_hash in passed:
                return
            passed.add(ancestor.block_hash)
            ancestor = self._nodes.get(ancestor.parent)

    def _ancestor_of_number(self, node: Node) -> Node | None:
        """The nearest ancestor with the number of `node`."""
        same = (other for other in self._ancestors(node) if other.number == node.number and has_number(other))
        return next(same, None)

    # Completed blocks

    def _completed(self, event: Completed) -> Iterator[Outcome]:
        node = self._nodes.get(event.block_hash)
        if node is None or not node.open or node.batch_order is None:
            # Its life ended before this message.
            return
        node.complete_in_life = True
        if node.complete_order is not None:
            return
        node.complete_order = self._next()
        self._watch(node)
        for reorg in self._reorgs.values():
            reorg.incomplete.pop(node.block_hash, None)
        if self._is_refused(node):
            yield from self._refuse(node, event.place)
        elif node.block_hash in self._at:
            yield from self._take_history(node, event.place)
        elif any(gap.parent == node.block_hash for gap in self._complete_gaps()):
            yield from self._take_history(self._gap_above(node), event.place)
        else:
            yield from self._place_block(node, event.place)
        for place in (node.first_place, node.batch_place, event.place):
            self._was_read(place, node.number if node.linked else None)
        yield from self._judge_ancestors()

    def _is_refused(self, node: Node) -> bool:
        parent = self._nodes.get(node.parent)
        pinned = self._options.whitelist.get(node.number, node.block_hash)
        return pinned != node.block_hash or (parent is not None and parent.refused)

    def _refuse(self, node: Node, place: Place) -> Iterator[Outcome]:
        """Rule 1, for the block and its complete descendants; the others follow when they complete."""
        waiting = [node]
        while waiting:
            refused = waiting.pop()
            if not refused.refused:
                refused.refused = True
                yield Refused(refused.block_hash, place)
                waiting.extend(reversed(self._complete_children(refused)))

    def _complete_children(self, node: Node) -> list[Node]:
        """In the order in which they completed."""
        children = [self._nodes[child] for child in self._children.get(node.block_hash, ())]
        return sorted((child for child in children if child.complete_order is not None), key=completion)

    def _place_block(self, node: Node, place: Place) -> Iterator[Outcome]:
        """Rules 3 to 6."""
        parent = self._nodes.get(node.parent)
        if not self._chain:
            yield from self._first_head(node, place)
        elif parent is not None and parent.linked:
            yield from self._link(node, place)
            yield from self._move_head(node, parent, place)
        elif (lowest := self._over_gap(node)) is not None:
            yield from self._link(lowest, place)
            self._gaps.append(lowest.block_hash)
            yield from self._switch(len(self._chain) - 1, self._best_path(lowest)[0], place)

    def _first_head(self, node: Node, place: Place) -> Iterator[Outcome]:
        yield from self._link(node, place)
        self._known_from = node.number
        self._gaps.append(node.block_hash)
        yield from self._switch(-1, self._best_path(node)[0], place)

    def _over_gap(self, node: Node) -> Node | None:
        """The lowest block of the branch of `node` if it becomes the chain over a gap, by rule 4."""
        if self._options.start is not None or self._linked >= FIRST_BLOCKS:
            return None
        head = self._nodes[self._chain[-1]]
        branch = islice(self._complete_branch(node), self._threshold)
        if not any((one.weight, one.number) > (head.weight, head.number) for one in branch):
            return None
        lowest = node
        for ancestor in islice(self._ancestors(node), self._threshold):
            if ancestor.complete_order is None or ancestor.linked:
                return None
            lowest = ancestor
        return lowest if lowest.parent not in self._nodes else None

    def _complete_branch(self, root: Node) -> Iterator[Node]:
        """The block and its complete descendants."""
        waiting = deque((root,))
        while waiting:
            node = waiting.popleft()
            yield node
            waiting.extend(self._complete_children(node))

    def _link(self, root: Node, place: Place) -> Iterator[Outcome]:
        """The block and its waiting descendants lead to the chain now."""
        waiting = [root]
        while waiting:
            node = waiting.pop()
            node.linked = True
            self._linked = min(self._linked + 1, FIRST_BLOCKS)
            yield from self._link_to_reorg(node, place)
            waiting.extend(child for child in self._complete_children(node) if not child.linked and not child.refused)

    def _best_path(self, root: Node) -> tuple[list[Node], int]:
        """From `root` on, always the child with the heaviest descendant; and the heaviest weight from `root` on.

        A descendant can be canonical already only above a gap, which wrong weights can leave in the wrong place.
        """
        order = [root]
        children: dict[bytes, list[Node]] = {}
        for node in order:
            following = [child for child in self._complete_children(node) if child.linked]
            children[node.block_hash] = [child for child in following if child.block_hash not in self._at]
            order.extend(children[node.block_hash])
        heaviest: dict[bytes, int] = {}
        for node in reversed(order):
            heaviest[node.block_hash] = max([node.weight, *(heaviest[c.block_hash] for c in children[node.block_hash])])
        path = [root]
        while children[path[-1].block_hash]:
            # `max` takes the first of equal ones: the one that completed first.
            path.append(max(children[path[-1].block_hash], key=lambda child: heaviest[child.block_hash]))
        return path, heaviest[root.block_hash]

    def _move_head(self, node: Node, parent: Node, place: Place) -> Iterator[Outcome]:
        """Rules 3 and 5, for a block that is linked now."""
        if self._after_complete(place):
            return
        announced = self._reorgs.get(parent.block_hash)
        if announced is not None and announced.stage is Stage.ANNOUNCED:
            yield from self._carry_out(announced, place, node)
        elif parent.block_hash == self._chain[-1]:
            yield from self._switch(len(self._chain) - 1, self._best_path(node)[0], place)
        else:
            path, heaviest = self._best_path(node)
            if heaviest > self._weight_to_beat(node):
                yield from self._displace(node, path, place)

    def _displace(self, node: Node, path: list[Node], place: Place) -> Iterator[Outcome]:
        """A side chain through `node` is heavier than the head."""
        branch, ancestor = self._branch(node)
        if ancestor is None or self._is_barred(node, branch):
            return
        depth = len(self._chain) - 1 - ancestor
        announced = self._reorgs.get(self._chain[ancestor])
        if depth <= self._threshold or self._chain[ancestor] in self._unknown:
            yield from self._switch(ancestor, branch + path[1:], place, told=True)
        elif announced is not None and announced.stage is Stage.ANNOUNCED:
            yield from self._carry_out(announced, place, branch[0])
        elif not branch[0].branch_found:
            branch[0].branch_found = True
            # That the Reorg of their channel names another block was found.
            named_on = {named.topic for named in self._unknown.values()}
            misled = {topic for topic in named_on if topic is not None and self.is_channel(topic)}
            if misled.intersection(member.topic for member in (*branch, *path)):
                return
            head, fork = self._nodes[self._chain[-1]], self._nodes[self._chain[ancestor]]
            words = (
                f"side chain up to {_name(path[-1])} of weight {path[-1].weight} forks {depth} blocks below the head "
                f"{_name(head)} of weight {head.weight}, and no Reorg names the ancestor {_name(fork)}"
            )
            yield self._found("reorg_unannounced", place, words, path[-1])

    def _branch(self, node: Node) -> tuple[list[Node], int | None]:
        """The blocks from above the chain up to `node`, and the position of the common ancestor if it is remembered."""
        branch = [node]
        ancestors = self._ancestors(node)
        while branch[-1].parent not in self._at:
            ancestor = next(ancestors, None)
            if ancestor is None or not ancestor.linked:
                return branch[::-1], None
            branch.append(ancestor)
        return branch[::-1], self._position(branch[-1].parent)

    def _position(self, block_hash: bytes) -> int:
        return self._at[block_hash] - self._base

    def _switch(self, ancestor: int, added: list[Node], place: Place, *, told: bool = False) -> Iterator[Outcome]:
        """The chain goes on from position `ancestor` with `added`. `told`: it is a reorg that weight alone made."""
        removed = [self._nodes[block_hash] for block_hash in self._chain[ancestor + 1 :]]
        if not removed and not added:
            return
        old_head = self._chain[-1] if self._chain else b""
        del self._chain[ancestor + 1 :]
        canonical = [row for node in removed for row in self._uncanonize(node, place)]
        for node in added:
            self._at[node.block_hash] = self._base + len(self._chain)
            self._chain.append(node.block_hash)
            canonical.append(self._canonize(node, place))
        yield self._update(place, added, removed)
        yield from canonical
        if told and removed:
            fork = self._nodes[self._chain[ancestor]]
            blocks = (fork.block_hash, fork.number, len(removed), old_head, self._chain[-1])
            named = self._unknown.get(fork.block_hash)
            channel = None if named is None else named.channel
            yield ReorgRow(
                place, *blocks, announced=named is not None, channel=channel, completed=True, changed_at=place
            )

    def _update(self, place: Place, added: list[Node], removed: list[Node]) -> Update:
        head = self._nodes[self._chain[-1]]
        hashes = tuple(node.block_hash for node in added), tuple(node.block_hash for node in removed)
        self._sequence += 1
        return Update(place, self._sequence - 1, *hashes, head.block_hash, head.number)

    def _canonize(self, node: Node, place: Place) -> Canonical:
        node.was_canonical = True
        node.valid_from_ns = place.arrived_at_ns
        return Canonical(node.block_hash, node.number, node.valid_from_ns, None, place)

    def _uncanonize(self, node: Node, place: Place) -> Iterator[Canonical]:
        del self._at[node.block_hash]
        if node.block_hash in self._gaps:
            self._gaps.remove(node.block_hash)
        if not node.open:
            heapq.heappush(self._leaving, (node.number, node.seen, node.block_hash))
        # A start and its ancestors have no row.
        if node.valid_from_ns is not None:
            yield Canonical(node.block_hash, node.number, node.valid_from_ns, place.arrived_at_ns, place)
        node.valid_from_ns = None

    # History

    def _complete_gaps(self) -> list[Node]:
        gaps = [self._nodes[gap] for gap in self._gaps]
        return [gap for gap in gaps if gap.complete_order is not None]

    def _gap_above(self, node: Node) -> Node:
        return next(gap for gap in self._complete_gaps() if gap.parent == node.block_hash)

    def _take_history(self, above: Node, place: Place) -> Iterator[Outcome]:
        """Rules 2 and 4: complete ancestors of a canonical block with a gap below it are canonical; no head moves."""
        yield from self._link(above, place)
        taken: list[Node] = []
        canonical: list[Canonical] = []
        removed: list[Node] = []
        while above.block_hash in self._gaps and above.parent not in self._at:
            below = self._nodes.get(above.parent)
            if below is None or below.complete_order is None or below.refused:
                break
            self._insert_below(above, below)
            yield from self._link(below, place)
            below.was_canonical = True
            taken.append(below)
            above = below
        # Several branches may stand above one gap.
        for gap in self._complete_gaps():
            if gap.parent in self._at and gap.block_hash in self._gaps:
                between = self._close_gap(gap)
                canonical += (row for node in between for row in self._uncanonize(node, place))
                self._at = {block_hash: self._base + i for i, block_hash in enumerate(self._chain)}
                removed += (node for node in between if not any(node is one for one in taken))
        if self._options.start is None:
            added = [node for node in reversed(taken) if node.block_hash in self._at]
            canonical += (self._canonize(node, place) for node in added)
            if added or removed:
                yield self._update(place, added, removed)
            yield from canonical
            for child in [child for below in taken for child in self._complete_children(below)]:
                if child.linked and child.block_hash not in self._at:
                    path, heaviest = self._best_path(child)
                    if heaviest > self._weight_to_beat(child):
                        yield from self._displace(child, path, place)

    def _insert_below(self, above: Node, below: Node) -> None:
        position = self._position(above.block_hash)
        self._chain.insert(position, below.block_hash)
        self._gaps[self._gaps.index(above.block_hash)] = below.block_hash
        if position == 0:
            self._base -= 1
            self._at[below.block_hash] = self._base
        else:
            self._at = {block_hash: self._base + i for i, block_hash in enumerate(self._chain)}

    def _close_gap(self, above: Node) -> list[Node]:
        """The parent is in the chain: what stood between them, and leaves it now, was another branch.

        If the parent stands higher, in a branch that became the chain later, the branch that begins here is the other.
        """
        self._gaps.remove(above.block_hash)
        position, parent = self._position(above.block_hash), self._position(above.parent)
        first, end = parent + 1, position
        if parent > position:
            gaps = (self._position(gap) for gap in self._gaps)
            first, end = position, min((gap for gap in gaps if gap > position), default=position)
        between = [self._nodes[block_hash] for block_hash in self._chain[first:end]]
        del self._chain[first:end]
        return between

    # Announced reorgs

    def _open_reorgs(self) -> list[ReorgState]:
        return [reorg for reorg in self._reorgs.values() if reorg.stage is Stage.OPEN]

    def is_channel(self, topic: str) -> bool:
        """Whether the topic is named like a reorg channel, or a Reorg has made it one."""
        return self._is_channel_name(topic) or any(reorg.channel == topic for reorg in self._reorgs.values())

    def _is_channel_of(self, topic: str | None, ancestor: bytes) -> bool:
        """Whether a Reorg on this topic stands on the channel made for it."""
        if topic is None:
            return False
        if self._options.reorg_topic is not None:
            return topic == self._options.reorg_topic.replace("{hash}", ancestor.hex())
        return topic.endswith(f"-re-{ancestor.hex()}") or topic not in self._ordinary

    def _was_canonical(self, ancestor: bytes) -> bool:
        node = self._nodes.get(ancestor)
        return ancestor in self._reorgs or (node is not None and node.was_canonical)

    def _not_canonical(self, event: ReorgArrived | ReorgCompleteArrived) -> Iterator[Outcome]:
        """The event names a block that is wrong, or that the ordinary partitions still have to bring."""
        place, ancestor = event.place, event.ancestor_hash
        named = self._unknown.get(ancestor)
        if named is None:
            if len(self._unknown) >= MAX_REORGS:
                del self._unknown[next(iter(self._unknown))]
            named = self._unknown[ancestor] = NotCanonical(event.number, place)
        named.topic = place.topic
        if self._is_channel_of(place.topic, ancestor):
            named.channel = place.topic
        yield from self._judge_ancestors()

    def _was_only_announced(self, ancestor: bytes) -> bool:
        """It was named before it was canonical, and its channel hasn't begun."""
        named = self._unknown.get(ancestor)
        return named is not None and not self._is_channel_of(named.channel, ancestor)

    def _is_out_of_order(self, ancestor: bytes) -> bool:
        """A Reorg of the head removes nothing yet; one of a block that another large reorg removed comes too late."""
        node = self._nodes.get(ancestor)
        if node is None or ancestor in self._at:
            return self._chain[-1:] == [ancestor]
        return len(self._branch(node)[0]) > self._threshold

    def _judge_ancestors(self) -> Iterator[Outcome]:
        for ancestor, named in self._unknown.items():
            yield from self._judge_ancestor(ancestor, named)

    def _judge_ancestor(self, ancestor: bytes, named: NotCanonical, *, over: bool = False) -> Iterator[Outcome]:
        """Rule `reorg_ancestor_wrong` of a hash, once: the copies of a Reorg and its ReorgComplete repeat it."""
        node = self._nodes.get(ancestor)
        if named.judged:
            return
        if node is not None and node.was_canonical:
            named.judged = True
            if (node.number ^ named.number) & _32_BITS:
                words = f"block {ancestor.hex()} has the number {node.number}, not {named.number}"
                yield self._found("reorg_ancestor_wrong", named.place, words)
        elif self._was_passed(named.number, node, over) and not self._may_be_right(ancestor, node):
            named.judged = True
            words = (
                f"block {ancestor.hex()} (number {named.number}) was never canonical, as far back as the chain is "
                "remembered"
            )
            yield self._found("reorg_ancestor_wrong", named.place, words)

    def _was_passed(self, number: int, node: Node | None, over: bool) -> bool:
        """The ordinary partitions were read so far that a block of the number is canonical by now or never was.

        What a hash that was never heard of lacks is its Batch. `over`: no more can be waited for.
        """
        partitions = self._read.items()
        read = [
            least
            for (topic, _), least in partitions
            if node is not None or topic is None or topic in self._ordinary or not self._ordinary
        ]
        known = [least for least in read if least is not None]
        if not known or (len(known) < len(read) and not over):
            return False
        least = min(known)
        # Its low 32 bits count: the number nearest to what was read.
        near = least + ((number - least + (1 << 31)) & _32_BITS) - (1 << 31)
        lowest = max((self._nodes[gap].number for gap in self._gaps), default=0)
        return near >= lowest and (over or near + self._threshold < least)

    def _may_be_right(self, ancestor: bytes, node: Node | None) -> bool:
        """Why a right ancestor never was canonical: a reorg read before it passed it over, or it fills a gap."""
        if node is None:
            return self._options.start is None and ancestor in self._children
        others = (self._nodes.get(other) for other in (*self._reorgs, *self._unknown) if other != ancestor)
        return node.linked and any(other is not None and other.was_canonical for other in others)

    def _check_ancestor_number(
        self, reorg: ReorgState, event: ReorgArrived | ReorgCompleteArrived
    ) -> Iterator[Outcome]:
        """Rule `reorg_ancestor_wrong` of a number, once a reorg; it is compared in its low 32 bits."""
        if (reorg.ancestor_number ^ event.number) & _32_BITS and not reorg.number_found:
            reorg.number_found = True
            words = f"block {reorg.ancestor.hex()} has the number {reorg.ancestor_number}, not {event.number}"
            yield self._found("reorg_ancestor_wrong", event.place, words)

    def _reorg_arrived(self, event: ReorgArrived) -> Iterator[Outcome]:
        place, ancestor = event.place, event.ancestor_hash
        on_channel = self._is_channel_of(place.topic, ancestor)
        if on_channel and self._was_canonical(ancestor) and self._was_only_announced(ancestor):
            del self._unknown[ancestor]
        if ancestor in self._unknown:
            yield from self._not_canonical(event)
            return
        reorg = self._reorgs.get(ancestor)
        if reorg is not None and on_channel and reorg.stage in (Stage.COMPLETE, Stage.LAPSED, Stage.UNMADE):
            if reorg.channel is None and reorg.stage is not Stage.UNMADE:
                reorg.channel, reorg.partition = place.topic, place.partition
            elif place.topic == reorg.channel:
                reorg.again = place
            if place.topic != reorg.channel:
                # The same ancestor once more: another reorg.
                del self._reorgs[ancestor]
                reorg = None
        out_of_order = reorg is None and on_channel and self._is_out_of_order(ancestor)
        if out_of_order or not self._was_canonical(ancestor):
            yield from self._not_canonical(event)
            return
        if reorg is None:
            reorg = self._announce(place, ancestor)
        # A wrong number doesn't hide which block is meant.
        yield from self._check_ancestor_number(reorg, event)
        if not on_channel:
            if place.topic not in reorg.announced_on:
                reorg.announced_on.append(place.topic)
        elif reorg.channel is None:
            yield from self._open_channel(reorg, place)
        else:
            yield from self._check_partition(reorg, place)

    def _announce(self, place: Place, ancestor: bytes) -> ReorgState:
        head = self._nodes[self._chain[-1]]
        number = self._nodes[ancestor].number
        if len(self._reorgs) >= MAX_REORGS:
            del self._reorgs[next(iter(self._reorgs))]
        reorg = ReorgState(
            ancestor, number, place, Stage.ANNOUNCED, head.number, head.block_hash, first_ns=place.arrived_at_ns
        )
        self._reorgs[ancestor] = reorg
        return reorg

    def _open_channel(self, reorg: ReorgState, place: Place) -> Iterator[Outcome]:
        """The Reorg on its channel: the one that counts."""
        assert place.topic is not None
        reorg.channel, reorg.partition = place.topic, place.partition
        self._read = {read: number for read, number in self._read.items() if read[0] != place.topic}
        for partition in self._partitions.pop(place.topic, []):
            yield from self._check_partition(reorg, place, partition)
        if reorg.stage is Stage.ANNOUNCED:
            reorg.place = place
            yield from self._carry_out(reorg, place, None)

    def _open_again(self, event: BatchArrived) -> Iterator[Outcome]:
        """A new block on a channel whose Reorg came again: another reorg from the same ancestor."""
        before = self._reorg_on(event.place)
        if before is None or before.again is None:
            return
        del self._reorgs[before.ancestor]
        if self._was_canonical(before.ancestor):
            reorg = self._announce(before.again, before.ancestor)
            reorg.channel, reorg.partition = before.channel, before.partition
            reorg.announced_on, reorg.number_found = before.announced_on, before.number_found
            yield from self._carry_out(reorg, event.place, None)

    def _check_partition(self, reorg: ReorgState, place: Place, *others: int | None) -> Iterator[Outcome]:
        for partition in others or (place.partition,):
            if partition != reorg.partition:
                words = f"channel {reorg.channel!r} has the partitions {reorg.partition} and {partition}"
                yield from self._shared(reorg, place, words)

    def _shared(self, reorg: ReorgState, place: Place, words: str, node: Node | None = None) -> Iterator[Outcome]:
        if not reorg.shared_found:
            reorg.shared_found = True
            yield self._found("reorg_channel_shared", place, f"reorg from {reorg.ancestor.hex()}: {words}", node)

    def _carry_out(self, reorg: ReorgState, place: Place, child: Node | None) -> Iterator[Outcome]:
        """Revert to the ancestor. `child` is its first new block, if that and not the channel's Reorg sets it off."""
        fork = self._nodes.get(reorg.ancestor)
        lead, position = self._lead_to(fork)
        if fork is None or position is None:
            words = f"block {reorg.ancestor.hex()} has left the part of the chain that is remembered"
            yield self._found("reorg_ancestor_wrong", place, words)
            return
        removed = [self._nodes[block_hash] for block_hash in self._chain[position + 1 :]]
        head = self._nodes[self._chain[-1]]
        reorg.stage, reorg.old_head, reorg.old_number = Stage.OPEN, head.block_hash, head.number
        reorg.removed = {node.block_hash: None for node in removed}
        reorg.depth = len(removed)
        # What stands above a gap may be of the new chain.
        below_gap = takewhile(lambda node: node.block_hash not in self._gaps, removed)
        reorg.heaviest = max((node.weight for node in below_gap), default=0)
        if child is not None:
            path = self._best_path(child)[0]
            yield from self._set_off(reorg, child, place)
        else:
            path = self._known_branch(reorg, fork)
        for node in path:
            node.branch = reorg.ancestor
        yield from self._switch(position, lead + path, place)
        yield self._row(reorg, place)

    def _lead_to(self, fork: Node | None) -> tuple[list[Node], int | None]:
        """The position of a canonical block; of another one that of its canonical ancestor, and what lies between."""
        if fork is None:
            return [], None
        return ([], self._position(fork.block_hash)) if fork.block_hash in self._at else self._branch(fork)

    def _set_off(self, reorg: ReorgState, child: Node, place: Place) -> Iterator[Outcome]:
        if child.topic is not None and self.is_channel(child.topic):
            reorg.channel, reorg.partition = child.topic, child.batch_place.partition if child.batch_place else None
            self._batch_of_channel(reorg, child.block_hash, child.parent, child.weight)
        else:
            words = f"its first block {_name(child)} came on topic {child.topic!r}"
            yield from self._shared(reorg, place, words, child)

    def _known_branch(self, reorg: ReorgState, fork: Node) -> list[Node]:
        """The side chain that the reorg makes canonical, if it is there already and heavier than what is removed."""
        found: tuple[list[Node], int] = ([], reorg.heaviest)
        for child in self._complete_children(fork):
            if child.linked and child.block_hash not in reorg.removed and child.block_hash not in self._at:
                candidate = self._best_path(child)
                found = candidate if candidate[1] > found[1] else found
        return found[0]

    def _row(self, reorg: ReorgState, changed_at: Place) -> ReorgRow:
        done = reorg.stage is not Stage.OPEN
        return ReorgRow(
            place=reorg.place,
            ancestor_hash=reorg.ancestor,
            ancestor_number=reorg.ancestor_number,
            depth=reorg.depth,
            old_head=reorg.old_head,
            new_head=self._chain[-1] if done else None,
            announced=True,
            channel=reorg.channel,
            completed=reorg.stage is Stage.COMPLETE,
            changed_at=changed_at,
        )

    def _link_to_reorg(self, node: Node, place: Place) -> Iterator[Outcome]:
        """A block that is linked now belongs to the branch of an open reorg, which should be on its channel."""
        parent = self._nodes.get(node.parent)
        for reorg in self._open_reorgs():
            if parent is None or reorg.ancestor not in (parent.block_hash, parent.branch):
                continue
            node.branch = reorg.ancestor
            # The channel carries all blocks up to the first that is heavier than what was removed.
            needed = parent.block_hash == reorg.ancestor or parent.weight <= reorg.heaviest
            # A reorg read ahead removes little, and what hung beside it on ordinary topics comes later.
            beside = reorg.depth <= self._threshold and parent.topic != reorg.channel
            # What came before the Reorg isn't of it: a channel read late finds what hangs beside its blocks.
            before = node.batch_place is None or node.batch_place < reorg.place
            ordinary = node.topic is None or not self.is_channel(node.topic)
            if needed and ordinary and not beside and not before:
                yield from self._shared(reorg, place, f"its block {_name(node)} came on topic {node.topic!r}", node)

    def _is_barred(self, node: Node, branch: list[Node]) -> bool:
        """An open reorg removed the branch, and the block doesn't come on its channel."""
        return any(
            member.block_hash in reorg.removed
            for reorg in self._open_reorgs()
            if node.topic is None or node.topic != reorg.channel
            for member in branch
        )

    def _weight_to_beat(self, node: Node) -> int:
        weights = [self._nodes[self._chain[-1]].weight]
        for reorg in self._open_reorgs():
            if node.branch != reorg.ancestor and (node.topic is None or node.topic != reorg.channel):
                weights.append(reorg.heaviest)
        return max(weights)

    def _after_complete(self, place: Place) -> bool:
        """The place is on a channel whose ReorgComplete has come: it moves no chain."""
        reorg = self._reorg_on(place)
        return reorg is not None and reorg.stage is Stage.COMPLETE

    def _reorg_on(self, place: Place) -> ReorgState | None:
        """The newest reorg of a channel."""
        return next((reorg for reorg in reversed(self._reorgs.values()) if is_on(place, reorg)), None)

    # Channels

    def _heard_on_channel(self, reorg: ReorgState, block_hash: bytes) -> None:
        """A block of the channel, maybe without a Batch."""
        if block_hash not in reorg.blocks:
            reorg.blocks[block_hash] = len(reorg.blocks)
            node = self._nodes.get(block_hash)
            if node is None or node.complete_order is None:
                reorg.incomplete[block_hash] = reorg.blocks[block_hash]

    def _batch_on_channel(self, event: BatchArrived) -> Iterator[Outcome]:
        for reorg in self._open_reorgs():
            if not is_on(event.place, reorg) or is_read_again(event.place, reorg):
                continue
            yield from self._check_partition(reorg, event.place)
            if event.block_hash not in reorg.batches:
                self._batch_of_channel(reorg, event.block_hash, event.parent, event.weight)

    def _batch_of_channel(self, reorg: ReorgState, block_hash: bytes, parent: bytes, weight: int) -> None:
        """The first Batch of a block on the channel."""
        first = not reorg.batches
        self._heard_on_channel(reorg, block_hash)
        reorg.batches[block_hash] = None
        reorg.last_block, reorg.last_weight = block_hash, weight
        words = ""
        if block_hash in reorg.removed:
            words = "is of the removed chain"
        elif first and parent != reorg.ancestor:
            words = f"is the first, and its parent {parent.hex()} isn't the ancestor"
        elif parent != reorg.ancestor and parent not in reorg.batches:
            words = f"has the parent {parent.hex()}, which isn't on the channel"
        if words and reorg.broken is None:
            reorg.broken = (reorg.blocks[block_hash], block_hash, words)

    def _channel_message(self, event: ChannelMessage) -> Iterator[Outcome]:
        topic = event.place.topic
        reorg = self._reorg_on(event.place)
        if reorg is not None:
            yield from self._check_partition(reorg, event.place)
            late = reorg.stage is Stage.COMPLETE and reorg.again is None and self._is_new(event.block_hash)
            if late and not reorg.late_found:
                reorg.late_found = True
                words = f"the first message on channel {topic!r} after its ReorgComplete"
                yield self._found("reorg_not_completed", event.place, words)
        elif topic is not None:
            partitions = self._partitions.setdefault(topic, [])
            if event.place.partition not in partitions:
                partitions.append(event.place.partition)
            if len(self._partitions) > MAX_REORGS:
                del self._partitions[next(iter(self._partitions))]

    def _is_new(self, block_hash: bytes | None) -> bool:
        """A block without a Batch so far; of others a producer that is behind repeats messages."""
        if block_hash is None:
            return False
        node = self._nodes.get(block_hash)
        return node is None or node.batch_order is None

    def _reorg_complete(self, event: ReorgCompleteArrived) -> Iterator[Outcome]:
        place, ancestor = event.place, event.ancestor_hash
        open_here = self._reorg_on(place)
        if open_here is not None and open_here.stage is Stage.OPEN and open_here.ancestor != ancestor:
            if not open_here.other_end_found:
                open_here.other_end_found = True
                words = f"block {ancestor.hex()}, but the Reorg of this channel names {open_here.ancestor.hex()}"
                yield self._found("reorg_ancestor_wrong", place, words)
            return
        if ancestor in self._unknown or not self._was_canonical(ancestor):
            yield from self._not_canonical(event)
            return
        reorg = self._reorgs.get(ancestor)
        if reorg is not None and is_read_again(place, reorg):
            return
        running = reorg is not None and reorg.stage in (Stage.OPEN, Stage.LAPSED)
        if reorg is not None:
            yield from self._check_ancestor_number(reorg, event)
            reorg.again = None
        if reorg is not None and is_on(place, reorg):
            yield from self._check_partition(reorg, place)
            if running:
                yield from self._complete_reorg(reorg, place)
        elif reorg is not None and place.topic in reorg.announced_on:
            yield from self._shared(reorg, place, f"its ReorgComplete came on topic {place.topic!r}")
            if running and reorg.channel is None:
                yield from self._complete_reorg(reorg, place)
        else:
            words = f"no Reorg of block {ancestor.hex()} is open on topic {place.topic!r}"
            yield self._found("reorg_complete_unasked", place, words)

    def _complete_reorg(self, reorg: ReorgState, place: Place) -> Iterator[Outcome]:
        if reorg.stage is Stage.OPEN:
            yield from self._check_channel(reorg, place, reorg.incomplete)
        self._end(reorg, Stage.COMPLETE)
        yield self._row(reorg, place)

    def _lapse(self, reorg: ReorgState, place: Place) -> Iterator[Outcome]:
        """The old head is more than the threshold below the new one, and no ReorgComplete has come."""
        if reorg.stage is Stage.ANNOUNCED:
            self._end(reorg, Stage.UNMADE)
            words = f"reorg from {reorg.ancestor.hex()} was announced on topic {reorg.place.topic!r} and never made"
            yield self._found("reorg_not_completed", reorg.place, words)
        elif reorg.stage is Stage.OPEN:
            overdue = {block: at for block, at in reorg.incomplete.items() if self._is_overdue(block)}
            yield from self._check_channel(reorg, place, overdue)
            # A ReorgComplete of another block was found.
            if not reorg.other_end_found:
                words = f"no ReorgComplete for the reorg from {reorg.ancestor.hex()} on topic {reorg.place.topic!r}"
                yield self._found("reorg_not_completed", reorg.place, words)
            self._end(reorg, Stage.LAPSED)
            yield self._row(reorg, place)

    def _is_overdue(self, block_hash: bytes) -> bool:
        node = self._nodes.get(block_hash)
        return node is None or not node.open

    def _check_channel(self, reorg: ReorgState, place: Place, incomplete: Mapping[bytes, int]) -> Iterator[Outcome]:
        """Rule `reorg_chain_broken`: the first block of the channel that breaks it.

        What came elsewhere, or for that reason in another order, was found, and is no further finding.
        """
        faults = [(at, block_hash, "is incomplete") for block_hash, at in incomplete.items()]
        if reorg.broken is not None and not reorg.shared_found:
            faults.append(reorg.broken)
        last, weight = reorg.last_block, reorg.last_weight
        if reorg.channel is None:
            last, weight = self._chain[-1], self._nodes[self._chain[-1]].weight
        if reorg.depth and (reorg.channel is None or not reorg.shared_found):
            if last is None:
                faults.append((0, reorg.ancestor, "has no block after it"))
            elif weight <= reorg.heaviest:
                words = f"is the last, and its weight {weight} isn't above {reorg.heaviest}, the heaviest removed"
                faults.append((reorg.blocks.get(last, 0), last, words))
        if faults:
            _, block_hash, words = min(faults)
            node = self._nodes.get(block_hash)
            evidence = node.batch_place or node.first_place if node is not None else None
            message = f"reorg from {reorg.ancestor.hex()}: block {block_hash.hex()} {words}"
            yield self._found("reorg_chain_broken", evidence or place, message, node)

    def _end(self, reorg: ReorgState, stage: Stage) -> None:
        reorg.stage = stage
        reorg.removed, reorg.blocks, reorg.batches, reorg.incomplete = {}, {}, {}, {}

    # Carried state

    def snapshot(self) -> str:
        """The state as JSON: equal chains give equal text."""
        return json.dumps(
            {
                "version": SNAPSHOT_VERSION,
                "sequence": self._sequence,
                "order": self._order,
                "linked": self._linked,
                "known_from": self._known_from,
                "forgotten_below": self._forgotten_below,
                "base": self._base,
                "chain": "".join(block_hash.hex() for block_hash in self._chain),
                "gaps": [gap.hex() for gap in self._gaps],
                "ordinary": sorted(self._ordinary),
                "partitions": list(self._partitions.items()),
                "read": [(*partition, number) for partition, number in self._read.items()],
                "unknown": [(block_hash.hex(), *named.to_json()) for block_hash, named in self._unknown.items()],
                "nodes": [node_to_json(node) for node in sorted(self._nodes.values(), key=lambda node: node.seen)],
                "reorgs": [reorg_to_json(reorg) for reorg in self._reorgs.values()],
            },
            separators=(",", ":"),
        )

    def _restore(self, snapshot: str) -> None:
        state = json.loads(snapshot)
        if state.get("version") != SNAPSHOT_VERSION:
            raise StateVersionError(what="cardinal chain", found=state.get("version"), expected=SNAPSHOT_VERSION)
        self._sequence, self._order, self._linked = state["sequence"], state["order"], state["linked"]
        self._known_from, self._forgotten_below = state["known_from"], state["forgotten_below"]
        self._base = state["base"]
        chain = bytes.fromhex(state["chain"])
        self._chain = [chain[i : i + 32] for i in range(0, len(chain), 32)]
        self._at = {block_hash: self._base + i for i, block_hash in enumerate(self._chain)}
        self._gaps = [bytes.fromhex(gap) for gap in state["gaps"]]
        self._ordinary = set(state["ordinary"])
        self._partitions = {topic: list(partitions) for topic, partitions in state["partitions"]}
        self._read = {(topic, partition): number for topic, partition, number in state["read"]}
        self._unknown = {
            bytes.fromhex(block_hash): NotCanonical.from_json(named) for block_hash, *named in state["unknown"]
        }
        self._reorgs = {reorg.ancestor: reorg for reorg in map(reorg_from_json, state["reorgs"])}
        self._restore_nodes([node_from_json(row) for row in state["nodes"]])

    def _restore_nodes(self, nodes: list[Node]) -> None:
        self._nodes = {node.block_hash: node for node in nodes}
        linked = [node for node in nodes if node.batch_order is not None and not node.closes_ring]
        for node in sorted(linked, key=lambda node: node.batch_order or 0):
            self._children.setdefault(node.parent, []).append(node.block_hash)
        for node in nodes:
            if node.open and node.first_place is not None:
                self._lives.append((node.first_place.arrived_at_ns, node.seen, node.block_hash))
                self._watch(node)
            elif not node.open and node.block_hash not in self._at:
                heapq.heappush(self._leaving, (node.number, node.seen, node.block_hash))


def _taken(numbers: list[tuple[int, int, bytes]], below: int) -> Iterator[tuple[int, int, bytes]]:
    """Take the blocks below a number off a heap, the lowest first."""
    while numbers and numbers[0][0] < below:
        yield heapq.heappop(numbers)


def _name(node: Node) -> str:
    return f"{node.number} ({node.block_hash.hex()})"


def _at_batch(node: Node) -> str:
    return f" at {where(node.batch_place)}" if node.batch_place is not None else ""


_EVENTS: Mapping[type, Callable[[Chain, Any], Iterator[Outcome]]] = {
    FirstMessage: Chain._first_message,
    BatchArrived: Chain._batch_arrived,
    Completed: Chain._completed,
    ReorgArrived: Chain._reorg_arrived,
    ReorgCompleteArrived: Chain._reorg_complete,
    ChannelMessage: Chain._channel_message,
}
