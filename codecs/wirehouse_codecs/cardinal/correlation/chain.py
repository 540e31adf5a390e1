"""The ordering layer: which of a source's blocks are the chain (specification, "Reorg Handling").

Events of blocks and reorgs go in, in arrival order (`events`). Out comes what follows from each: updates of the chain,
rows of canonical blocks and reorgs, findings, and ends of blocks' lives. `Chain` is deterministic, and a chain that is
restored from a snapshot continues as the original would.

How a chain is built
--------------------
A producer sends each block as several messages. One of them, the Batch, carries the block's number, its weight and the
hash of its parent. `session.assembly` reports a block as complete when all that its Batch announces has arrived. Here
complete blocks are put into order. The parents make them a tree (`block_tree`). One path through the tree is the
canonical chain (`canonical`), and its upper end is the head. A complete block is *linked* if complete ancestors lead
from it to the canonical chain. Other complete blocks wait for a parent.

All blocks that become canonical or stop being canonical by one move of the chain form one `Update`, with the head after
it. An event that fills a gap may cause two moves: blocks are added below the head, and then a side chain that is linked
now displaces it. Whoever replays the updates gets exactly the blocks whose rows are canonical.

The rules for a completed block, after the reference implementation and made definite (`head`):

1. A block is refused if the whitelist excludes it or if its parent is refused. So all its descendants are refused.
2. A block that is already known is ignored. The start block and its ancestors, if they are sent again, count as history
   that the consumer knows. They move no head, and they have no update and no row.
3. A child of the head is added whatever its weight, and then its waiting descendants.
4. Without a configured start, the first complete block is the head. While fewer than ten blocks are linked, the chain
   may leave a gap. Complete blocks above a parent that no message has named become canonical as soon as one of them is
   heavier than the head, or as heavy and higher. The missing blocks become canonical below them if they complete; an
   update adds them without moving the head. The reference also accepts lighter blocks, so it goes back when blocks come
   out of order.
5. A block whose parent is linked displaces the head if it or a waiting descendant is strictly heavier than the head.
6. Any other block waits for its parent.

Among several waiting children, the one with the heaviest descendant follows; among equal ones, the first to complete.

What ends a block
-----------------
A block's life begins with its first message. It ends when the head is more than the reorg threshold above it, when
`HORIZON_NS` have passed, or when too many blocks are remembered (`endings`). Later messages of the block take no part.
At the end the block is judged: what is missing now never came. The chain remembers closed blocks for as long as
canonical blocks of their number: `HISTORY` thresholds below the head.

What a reorg may do
-------------------
The depth of a reorg is the number of canonical blocks above the common ancestor. Up to the threshold, weight alone
decides: a heavier side chain displaces the head by rule 5. A depth of exactly the threshold is allowed. A deeper side
chain needs a Reorg, a message that names the ancestor. Without one the head stays, and `reorg_unannounced` is reported
once for each branch (the first block above the ancestor).

A deep reorg has a channel: a topic of its own with one partition that carries the Reorg, the new blocks and then the
ReorgComplete (`reorgs`).

- A Reorg on its channel reverts the head to the ancestor. The blocks of the channel follow by rule 3.
- A Reorg elsewhere only announces the reorg. If the copy on the channel never comes and a child of the ancestor
  completes there, the reorg is carried out then.
- A Reorg names its ancestor. From then on weight alone decides between the branches above this block, at any depth.
- While a reorg is open, removed blocks and their descendants on ordinary topics displace nothing. Other ordinary blocks
  have to be heavier than the heaviest removed one. After the ReorgComplete, rule 5 holds as usual, and side chains that
  had to wait are tried again.

What a lagging partition does
-----------------------------
Messages of one block may be in several partitions, and one partition may be read long after the others (`topics`).

- A block isn't judged before every known ordinary partition was read as far as the head, nor while a reorg is
  unfinished.
- A Reorg may be read before the partition that brings the ancestor or the branch above it, or after the channel of a
  later reorg. Then nothing reverts. The hash stays named, and heavier blocks above it displace the head at any depth.
  The hash is wrong if it isn't canonical when the ordinary partitions were read more than the threshold above its
  number (`ancestors`).
- If only a part of the old branch was read, an open reorg removes what comes later, too: each time that blocks of its
  channel displace the head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from wirehouse_codecs.cardinal.correlation import links
from wirehouse_codecs.cardinal.correlation.ancestors import Ancestors
from wirehouse_codecs.cardinal.correlation.announcements import Announcements
from wirehouse_codecs.cardinal.correlation.block_tree import BlockTree, Node
from wirehouse_codecs.cardinal.correlation.canonical import CanonicalChain
from wirehouse_codecs.cardinal.correlation.endings import Endings
from wirehouse_codecs.cardinal.correlation.events import (
    BatchArrived,
    ChannelMessage,
    Completed,
    Event,
    FirstMessage,
    Outcome,
    ReorgArrived,
    ReorgCompleteArrived,
)
from wirehouse_codecs.cardinal.correlation.head import Head
from wirehouse_codecs.cardinal.correlation.life_queues import Lives
from wirehouse_codecs.cardinal.correlation.reorgs import Reorgs
from wirehouse_codecs.cardinal.correlation.snapshot import CODEC, ChainState
from wirehouse_codecs.cardinal.correlation.topics import Topics
from wirehouse_codecs.cardinal.options import CardinalOptions, Start
from wirehouse_codecs.core.horizon import HORIZON_NS


class Chain:
    """One source's blocks as a consumer would order them."""

    def __init__(self, options: CardinalOptions, carried: str | None = None) -> None:
        """An empty chain, or the one that `snapshot` wrote as `carried`."""
        self._start = options.start
        self._tree = BlockTree()
        self._canonical = CanonicalChain(self._tree, options.reorg_threshold)
        self._lives = Lives(self._tree)
        self._topics = Topics(options)
        self._reorgs = Reorgs(self._canonical, self._topics, options.reorg_threshold)
        self._ancestors = Ancestors(options, self._canonical, self._topics)
        self._head = Head(options, self._canonical, self._lives, self._reorgs, self._ancestors)
        self._announcements = Announcements(self._reorgs, self._ancestors, self._head)
        self._endings = Endings(options, self._canonical, self._lives, self._topics, self._ancestors)
        self._handlers: dict[type, Callable[[Any], Iterator[Outcome]]] = {
            FirstMessage: self._first_message,
            BatchArrived: self._batch_arrived,
            Completed: self._completed,
            ReorgArrived: self._announcements.reorg_arrived,
            ReorgCompleteArrived: self._announcements.reorg_complete,
            ChannelMessage: self._reorgs.channel_message,
        }
        if carried is not None:
            self._restore(CODEC.read(carried))
        elif options.start is not None:
            self._begin(options.start)

    def _begin(self, start: Start) -> None:
        order = self._tree.next_order()
        node = Node(start.hash, order, number=start.number, weight=start.weight, linked=True, was_canonical=True)
        self._tree.nodes[start.hash] = node
        self._head.start(node)

    @property
    def head(self) -> tuple[bytes, int] | None:
        """Hash and number of the newest canonical block."""
        return None if self._canonical.head_hash is None else (self._canonical.head_hash, self._canonical.head.number)

    def living(self) -> Iterator[bytes]:
        """The blocks whose life hasn't ended."""
        return self._lives.living()

    def lives(self, block_hash: bytes) -> bool:
        """Whether the block's life has begun and hasn't ended."""
        node = self._tree.nodes.get(block_hash)
        return node is not None and node.open

    @property
    def oldest_ns(self) -> int | None:
        """When the first message of the oldest living block arrived."""
        return self._lives.oldest_ns

    def is_channel(self, topic: str) -> bool:
        """Whether the topic is named like a reorg channel, or a Reorg has made it one."""
        return self._topics.is_channel(topic)

    def apply(self, event: Event) -> list[Outcome]:
        """Process the next event in arrival order. An event of a block outside its life has no effect."""
        now_ns = event.place.arrived_at_ns
        out = list(self.expire(now_ns)) if self._is_any_due(now_ns) else []
        hashes = self._canonical.hashes
        head = hashes[-1] if hashes else None
        out.extend(self._handlers[type(event)](event))
        if hashes and self._reorgs.by_ancestor:
            self._reorgs.channel_read(event.place)
        if hashes and hashes[-1] != head:
            out.extend(self._endings.head_moved(event.place))
            if self._reorgs.by_ancestor:
                out.extend(self._reorgs.head_moved(event.place))
            self._endings.forget()
        return out

    def expire(self, now_ns: int) -> Iterator[Outcome]:
        """End what began longer than the horizon before `now_ns`: lives of blocks, reorgs, waits for ancestors."""
        yield from self._endings.expire(now_ns)
        self._reorgs.forget_before(now_ns - HORIZON_NS)
        yield from self._ancestors.expire_before(now_ns - HORIZON_NS)

    def _is_any_due(self, now_ns: int) -> bool:
        """Whether `expire` may have something to do. For nearly every event it hasn't."""
        by_time = self._lives.by_time
        is_old = bool(by_time) and by_time[0][0] + HORIZON_NS < now_ns
        return is_old or bool(self._reorgs.by_ancestor) or bool(self._ancestors.early)

    # Events of blocks

    def _first_message(self, event: FirstMessage) -> Iterator[Outcome]:
        self._lives.begin(event.place, event.block_hash)
        self._topics.was_read(event.place)
        self._lives.watch_children(event.block_hash)
        self._reorgs.first_message(event.place, event.block_hash)
        yield from self._endings.make_room(event.place)

    def _batch_arrived(self, event: BatchArrived) -> Iterator[Outcome]:
        node = self._tree.nodes.get(event.block_hash)
        is_first = node is not None and node.open and node.batch_order is None
        if is_first:
            yield from self._announcements.new_block(event)
        yield from self._reorgs.batch_arrived(event)
        if node is None or not is_first:
            return
        node.batch_order, node.batch_place, node.topic = self._tree.next_order(), event.place, event.place.topic
        node.number, node.weight, node.parent = event.number, event.weight, event.parent
        self._topics.was_read(event.place)
        self._lives.watch(node)
        self._topics.has_batch(node.topic)
        is_history = self._start is not None and node.number <= self._start.number
        yield from links.arrived(self._tree, node, event.place, is_history=is_history)
        self._tree.add_child(node)

    def _completed(self, event: Completed) -> Iterator[Outcome]:
        node = self._tree.nodes.get(event.block_hash)
        if node is None or not node.open or node.batch_order is None:
            # Its life ended before this message.
            return
        node.complete_in_life = True
        if node.complete_order is not None:
            return
        node.complete_order = self._tree.next_order()
        self._lives.watch(node)
        self._reorgs.completed(node.block_hash)
        yield from self._head.place(node, event.place)
        for place in (node.first_place, node.batch_place, event.place):
            self._topics.was_read(place, node.number if node.linked else None)
        yield from self._ancestors.judge()

    # Carried state

    def snapshot(self) -> str:
        """The state as text. Equal chains give equal text."""
        tree, canonical, topics = self._tree, self._canonical, self._topics
        return CODEC.write(
            ChainState(
                sequence=self._head.sequence,
                order=tree.order,
                linked=self._head.linked,
                held=list(self._head.held),
                known_from=canonical.known_from,
                forgotten_below=canonical.forgotten_below,
                base=canonical.base,
                chain=b"".join(canonical.hashes),
                gaps=canonical.gaps,
                ordinary=topics.ordinary,
                early_channels=topics.early,
                read=topics.read,
                early_ancestors=self._ancestors.early,
                nodes=sorted(tree.nodes.values(), key=lambda node: node.seen),
                reorgs=list(self._reorgs.by_ancestor.values()),
            )
        )

    def _restore(self, state: ChainState) -> None:
        self._tree.restore(state.nodes, state.order)
        self._canonical.restore(state.hashes, state.base, state.gaps)
        self._canonical.known_from, self._canonical.forgotten_below = state.known_from, state.forgotten_below
        self._lives.restore(state.nodes, self._canonical.at)
        self._topics.ordinary, self._topics.early, self._topics.read = state.ordinary, state.early_channels, state.read
        self._reorgs.by_ancestor.update((reorg.ancestor, reorg) for reorg in state.reorgs)
        self._ancestors.early.update(state.early_ancestors)
        self._head.sequence, self._head.linked = state.sequence, state.linked
        self._head.held = dict.fromkeys(state.held)
