"""Queues of the blocks whose life may end, or that may be forgotten.

An entry is a number or a time, the block's `seen`, and its hash. Entries aren't removed when a block changes. `of`
returns None for an entry that no longer holds. A block that lives again has a new `seen`.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator

from wirehouse_codecs.cardinal.correlation.block_tree import BlockTree, Node
from wirehouse_codecs.core.rules import Place

Entry = tuple[int, int, bytes]


class Lives:
    """Living blocks by time and by number, and closed blocks by number."""

    def __init__(self, tree: BlockTree) -> None:
        self._tree = tree
        self._nodes = tree.nodes
        #: Living blocks by the time of their first message, oldest first.
        self.by_time: deque[Entry] = deque()
        #: Living blocks with a Batch by number.
        self.by_number: list[Entry] = []
        #: Blocks that the head has passed and that lack something, which may be in a partition that is read later.
        self.lacking: list[Entry] = []
        #: Blocks that the head has passed and that lack something, while channels of reorgs are unfinished; and the
        #: ancestors of these reorgs.
        self.for_channels: list[Entry] = []
        self.channels: set[bytes] = set()
        #: Closed blocks by number, to be forgotten.
        self.closed: list[Entry] = []

    def restore(self, nodes: list[Node], canonical: dict[bytes, int]) -> None:
        """Fill empty queues with the blocks of carried state."""
        for node in nodes:
            if node.open and node.first_place is not None:
                self.by_time.append((node.first_place.arrived_at_ns, node.seen, node.block_hash))
                self.watch(node)
            elif not node.open and node.block_hash not in canonical:
                self.may_be_forgotten(node)

    def begin(self, place: Place, block_hash: bytes) -> None:
        """The block lives from its first message on; nothing changes if it lives already."""
        node = self._nodes.get(block_hash)
        if node is None:
            node = self._nodes[block_hash] = Node(block_hash, self._tree.next_order())
        elif node.open:
            return
        else:
            node.seen = self._tree.next_order()
        node.open, node.complete_in_life, node.first_place = True, False, place
        self.by_time.append((place.arrived_at_ns, node.seen, block_hash))
        self.watch(node)

    def watch(self, node: Node) -> None:
        """The block has changed, so the head may end its life. Without a Batch it has no number to compare."""
        if node.batch_order is not None:
            heapq.heappush(self.by_number, (node.number, node.seen, node.block_hash))

    def watch_children(self, block_hash: bytes) -> None:
        """The children of the block lack less now."""
        for child in self._tree.children.get(block_hash, ()):
            self.watch(self._nodes[child])

    def of(self, entry: Entry) -> Node | None:
        """The living block of an entry; None if the entry no longer holds."""
        node = self._nodes.get(entry[2])
        return node if node is not None and node.open and node.seen == entry[1] else None

    def living(self) -> Iterator[bytes]:
        """The hashes of all living blocks."""
        return (node.block_hash for node in self._nodes.values() if node.open)

    @property
    def oldest_ns(self) -> int | None:
        """When the first message of the oldest living block arrived."""
        while self.by_time:
            if self.of(self.by_time[0]) is not None:
                return self.by_time[0][0]
            self.by_time.popleft()
        return None

    def passed(self, below: int, read: int) -> Iterator[Entry]:
        """Take the blocks below number `below` that may end; of those that lack something only the ones below `read`.

        They come in one order, by number and first message, whether or not state was restored in between.
        """
        return heapq.merge(_taken(self.lacking, min(read, below)), _taken(self.by_number, below))

    def wait_for_channels(self, channels: set[bytes]) -> None:
        """If one of the channels that blocks wait for has ended, look at these blocks again."""
        if self.for_channels and not self.channels <= channels:
            for entry in self.for_channels:
                heapq.heappush(self.by_number, entry)
            self.for_channels = []
        self.channels = channels

    # Closed blocks

    def may_be_forgotten(self, node: Node) -> None:
        """The block is closed and isn't canonical."""
        heapq.heappush(self.closed, (node.number, node.seen, node.block_hash))

    def forget_lowest(self, canonical: dict[bytes, int]) -> None:
        """Forget the lowest closed block, unless it lives again or is canonical."""
        _, seen, block_hash = heapq.heappop(self.closed)
        node = self._nodes.get(block_hash)
        if node is not None and node.seen == seen and not node.open and block_hash not in canonical:
            self._tree.drop(node)

    def forget_below(self, number: int, canonical: dict[bytes, int]) -> None:
        """Forget the closed blocks below a number, as `forget_lowest` does."""
        while self.closed and self.closed[0][0] < number:
            self.forget_lowest(canonical)


def _taken(entries: list[Entry], below: int) -> Iterator[Entry]:
    """Take the blocks below a number off a heap, the lowest first."""
    while entries and entries[0][0] < below:
        yield heapq.heappop(entries)
