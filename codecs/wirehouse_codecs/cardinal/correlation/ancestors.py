"""Ancestors of reorgs: is the block that a Reorg or ReorgComplete names the right one?

It has to be canonical, or to have been. If it isn't, either the message is wrong, or its channel was read before the
partitions that bring the ancestor. So the hash is remembered, and judged when the ordinary partitions were read so far
that the block is canonical by now or never was.
"""

from __future__ import annotations

from collections.abc import Iterator

from wirehouse_codecs.cardinal.correlation import findings
from wirehouse_codecs.cardinal.correlation.block_tree import Node
from wirehouse_codecs.cardinal.correlation.canonical import CanonicalChain
from wirehouse_codecs.cardinal.correlation.events import LocatedFinding, ReorgArrived, ReorgCompleteArrived
from wirehouse_codecs.cardinal.correlation.reorg_state import EarlyAncestor
from wirehouse_codecs.cardinal.correlation.reorgs import MAX_REORGS, is_other_number
from wirehouse_codecs.cardinal.correlation.topics import Topics
from wirehouse_codecs.cardinal.options import CardinalOptions


class Ancestors:
    """The hashes that a Reorg or ReorgComplete named before they were canonical: `early`, oldest first."""

    def __init__(self, options: CardinalOptions, canonical: CanonicalChain, topics: Topics) -> None:
        self._has_start = options.start is not None
        self._threshold = options.reorg_threshold
        self._tree = canonical.tree
        self._canonical = canonical
        self._topics = topics
        self._reorgs = topics.reorgs
        self.early: dict[bytes, EarlyAncestor] = {}

    def was_canonical(self, ancestor: bytes) -> bool:
        """Whether the block is canonical or was, as far as is remembered."""
        node = self._tree.nodes.get(ancestor)
        return ancestor in self._reorgs or (node is not None and node.was_canonical)

    def was_only_announced(self, ancestor: bytes) -> bool:
        """Whether it was named before it was canonical, and its channel hasn't begun."""
        named = self.early.get(ancestor)
        return named is not None and not self._topics.is_channel_of(named.channel, ancestor)

    def let_go(self, ancestor: bytes) -> bool:
        """Remember the hash no longer as named too early. Returns whether its number was reported as wrong."""
        named, node = self.early.pop(ancestor, None), self._tree.nodes.get(ancestor)
        if named is None or node is None:
            return False
        return named.judged and is_other_number(node.number, named.number)

    def is_out_of_order(self, ancestor: bytes) -> bool:
        """Whether the Reorg was read too early or too late.

        A Reorg of the head removes nothing yet. A Reorg of a block that another large reorg removed comes too late.
        """
        node = self._tree.nodes.get(ancestor)
        if node is None or ancestor in self._canonical.at:
            return self._canonical.head_hash == ancestor
        return len(self._canonical.branch_to(node)[0]) > self._threshold

    def has_misled(self, nodes: list[Node]) -> bool:
        """Whether one of the blocks came on a channel whose Reorg names a block that wasn't canonical."""
        named_on = {named.topic for named in self.early.values()}
        channels = {topic for topic in named_on if topic is not None and self._topics.is_channel(topic)}
        return not channels.isdisjoint(node.topic for node in nodes)

    def unfinished(self) -> set[bytes]:
        """The ancestors of reorgs whose channels may still bring blocks."""
        known = {ancestor for ancestor, reorg in self._reorgs.items() if reorg.is_unfinished}
        early = {ancestor for ancestor, named in self.early.items() if not named.ended}
        wrong = {ancestor for ancestor in early if self.early[ancestor].judged and not self.was_canonical(ancestor)}
        return known | early - wrong

    def remember(self, event: ReorgArrived | ReorgCompleteArrived) -> Iterator[LocatedFinding]:
        """The event names a block that isn't canonical."""
        place, ancestor = event.place, event.ancestor_hash
        named = self.early.get(ancestor)
        if named is None:
            if len(self.early) >= MAX_REORGS:
                del self.early[next(iter(self.early))]
            named = self.early[ancestor] = EarlyAncestor(event.number, place)
        named.topic = place.topic
        if self._topics.is_channel_of(place.topic, ancestor):
            named.channel, named.ended = place.topic, isinstance(event, ReorgCompleteArrived)
        yield from self.judge()

    def judge(self) -> Iterator[LocatedFinding]:
        """Judge the hashes that nothing more has to be waited for."""
        for ancestor, named in self.early.items():
            yield from self._judge(ancestor, named)

    def expire_before(self, ns: int) -> Iterator[LocatedFinding]:
        """Judge and forget the hashes that were first named before `ns`."""
        while self.early:
            ancestor, named = next(iter(self.early.items()))
            if named.place.arrived_at_ns >= ns:
                break
            yield from self._judge(ancestor, named, over=True)
            del self.early[ancestor]

    def _judge(self, ancestor: bytes, named: EarlyAncestor, *, over: bool = False) -> Iterator[LocatedFinding]:
        """Rule `reorg_ancestor_wrong`, once a hash: the copies of a Reorg and its ReorgComplete repeat it."""
        node = self._tree.nodes.get(ancestor)
        if named.judged:
            return
        if node is not None and node.was_canonical:
            named.judged = True
            if is_other_number(node.number, named.number):
                message = f"block {ancestor.hex()} has the number {node.number}, not {named.number}"
                yield findings.finding("reorg_ancestor_wrong", named.place, message)
        elif self._was_passed(named.number, node, over) and not self._may_be_right(ancestor, node):
            named.judged = True
            message = (
                f"block {ancestor.hex()} (number {named.number}) was never canonical, as far back as the chain is "
                "remembered"
            )
            yield findings.finding("reorg_ancestor_wrong", named.place, message)

    def _was_passed(self, number: int, node: Node | None, over: bool) -> bool:
        """Whether partitions were read so far that a block of the number is canonical by now or never was."""
        least = self._topics.least_read_for_ancestor(has_messages=node is not None, over=over)
        if least is None:
            return False
        # Only the low 32 bits of the number count. The number meant is the nearest to what was read.
        near = least + ((number - least + (1 << 31)) & ((1 << 32) - 1)) - (1 << 31)
        return near >= self._canonical.highest_gap and (over or near + self._threshold < least)

    def _may_be_right(self, ancestor: bytes, node: Node | None) -> bool:
        """Whether the ancestor may be right although it was never canonical.

        A reorg that was read first may have passed it over, or it is in a gap.
        """
        if node is None:
            return not self._has_start and ancestor in self._tree.children
        others = (self._tree.nodes.get(other) for other in (*self._reorgs, *self.early) if other != ancestor)
        return node.linked and any(other is not None and other.was_canonical for other in others)
