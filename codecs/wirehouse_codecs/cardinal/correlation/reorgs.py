"""Announced reorgs and what comes on their channels.

A reorg goes through the stages of `Stage`:

- A Reorg message on an ordinary topic announces it.
- The Reorg message on its channel opens it, or the first child of the ancestor there if that comes first.
- A ReorgComplete message ends it. Without one it lapses when the head is more than the threshold above the old head; if
  the channel is read late, above the head at the channel's last message.

Blocks that ordinary topics bring meanwhile may have been sent before the Reorg, in a partition that is read late, or
after the ReorgComplete, if the channel is read late. So weight alone decides about them, at any depth. Whether some of
them should have come on the channel is judged at the end, if the channel lacks blocks.

This module remembers reorgs, judges channels, and answers what an open reorg forbids. It moves no head; `head` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from wirehouse_codecs.cardinal.correlation import findings
from wirehouse_codecs.cardinal.correlation.block_tree import Node
from wirehouse_codecs.cardinal.correlation.canonical import CanonicalChain
from wirehouse_codecs.cardinal.correlation.events import (
    BatchArrived,
    ChannelMessage,
    Outcome,
    ReorgArrived,
    ReorgCompleteArrived,
    ReorgRow,
)
from wirehouse_codecs.cardinal.correlation.reorg_state import ReorgState, Stage
from wirehouse_codecs.cardinal.correlation.topics import Topics
from wirehouse_codecs.core.rules import Place

#: Maximum number of reorgs that are remembered.
MAX_REORGS: Final = 256
_32_BITS: Final = (1 << 32) - 1


def is_other_number(one: int, other: int) -> bool:
    """Whether the numbers differ. A Reorg carries 64 bits, but only the low 32 bits are compared."""
    return bool((one ^ other) & _32_BITS)


class Reorgs:
    """The announced reorgs of a source, oldest first."""

    def __init__(self, canonical: CanonicalChain, topics: Topics, threshold: int) -> None:
        self.by_ancestor = topics.reorgs
        self.topics = topics
        self._nodes = canonical.tree.nodes
        self._canonical = canonical
        self._threshold = threshold

    def open(self) -> list[ReorgState]:
        """The reorgs that are being carried out."""
        if not self.by_ancestor:
            return []
        return [reorg for reorg in self.by_ancestor.values() if reorg.stage is Stage.OPEN]

    def on(self, place: Place) -> ReorgState | None:
        """The newest reorg of a channel."""
        if not self.by_ancestor:
            return None
        return next((reorg for reorg in reversed(self.by_ancestor.values()) if reorg.is_on(place)), None)

    def announced_from(self, ancestor: bytes) -> ReorgState | None:
        """The reorg from `ancestor`, if it was announced and not carried out yet."""
        reorg = self.by_ancestor.get(ancestor)
        return reorg if reorg is not None and reorg.stage is Stage.ANNOUNCED else None

    def announce(self, place: Place, ancestor: bytes) -> ReorgState:
        """A new reorg, which begins with the Reorg at `place`."""
        head = self._canonical.head
        number = self._nodes[ancestor].number
        if len(self.by_ancestor) >= MAX_REORGS:
            del self.by_ancestor[next(iter(self.by_ancestor))]
        reorg = ReorgState(
            ancestor, number, place, Stage.ANNOUNCED, head.number, head.block_hash, first_ns=place.arrived_at_ns
        )
        self.by_ancestor[ancestor] = reorg
        return reorg

    def forget_before(self, ns: int) -> None:
        """Forget reorgs whose first message arrived before `ns`."""
        for key in [key for key, reorg in self.by_ancestor.items() if reorg.first_ns < ns]:
            del self.by_ancestor[key]

    def row(self, reorg: ReorgState, changed_at: Place) -> ReorgRow:
        """The reorg as it is now."""
        return ReorgRow(
            place=reorg.place,
            ancestor_hash=reorg.ancestor,
            ancestor_number=reorg.ancestor_number,
            depth=reorg.depth,
            old_head=reorg.old_head,
            new_head=None if reorg.stage is Stage.OPEN else self._canonical.head_hash,
            announced=True,
            channel=reorg.channel,
            completed=reorg.stage is Stage.COMPLETE,
            changed_at=changed_at,
        )

    # What a reorg allows

    def has_named(self, ancestor: bytes, branch: list[Node]) -> bool:
        """Whether a Reorg allows `branch` above `ancestor` to displace the head at any depth.

        When the Reorg was read, the branch that it removes may have been in partitions that are read later. So either
        branch may be canonical for a while, whatever the stage of the reorg. What hangs beside blocks of an open
        channel may be read before the channel's next blocks, and these displace it, too.
        """
        if ancestor in self.by_ancestor:
            return True
        return any(ancestor in reorg.batches and self.has_block_of(reorg, branch) for reorg in self.open())

    def open_for(self, ancestor: bytes, branch: list[Node]) -> ReorgState | None:
        """The open reorg from `ancestor` if its channel brought a block of `branch`."""
        reorg = self.by_ancestor.get(ancestor)
        is_open = reorg is not None and reorg.stage is Stage.OPEN
        return reorg if reorg is not None and is_open and self.has_block_of(reorg, branch) else None

    def is_removing(self, position: int) -> bool:
        """Whether a reorg that isn't over replaces blocks of the chain above `position`.

        They don't count for the depth of a side chain that forks at most the threshold below the ancestor: it was sent
        before them, or after they had been removed.
        """
        return any(
            position <= self._canonical.position(reorg.ancestor) <= position + self._threshold
            for reorg in self.by_ancestor.values()
            if reorg.stage in (Stage.ANNOUNCED, Stage.OPEN) and reorg.ancestor in self._canonical.at
        )

    def has_block_of(self, reorg: ReorgState, branch: list[Node]) -> bool:
        """Whether a block of the branch came on the channel."""
        if reorg.channel is None:
            return False
        return any(node.topic == reorg.channel or node.block_hash in reorg.batches for node in branch)

    # What an open reorg forbids

    def bars(self, node: Node, branch: list[Node]) -> bool:
        """Whether an open reorg removed a block of the branch, and `node` isn't from its channel."""
        return any(
            member.block_hash in reorg.removed
            for reorg in self.open()
            if node.topic is None or node.topic != reorg.channel
            for member in branch
        )

    def weight_to_beat(self, node: Node) -> int:
        """What the branch of `node` has to be heavier than to displace the head."""
        weights = [self._canonical.head.weight]
        for reorg in self.open():
            if node.branch != reorg.ancestor and (node.topic is None or node.topic != reorg.channel):
                weights.append(reorg.heaviest)
        return max(weights)

    def is_after_complete(self, place: Place) -> bool:
        """Whether the place is on a channel whose ReorgComplete has come: it moves no head."""
        reorg = self.on(place)
        return reorg is not None and reorg.stage is Stage.COMPLETE

    # Blocks of a reorg

    def first_message(self, place: Place, block_hash: bytes) -> None:
        """The first message of a block came at `place`."""
        for reorg in self.open():
            if reorg.is_on(place):
                self._has_block(reorg, block_hash)

    def _has_block(self, reorg: ReorgState, block_hash: bytes) -> None:
        """A block of the channel, with or without a Batch."""
        if block_hash not in reorg.blocks:
            reorg.blocks[block_hash] = len(reorg.blocks)
            node = self._nodes.get(block_hash)
            if node is None or node.complete_order is None:
                reorg.incomplete[block_hash] = reorg.blocks[block_hash]

    def batch_arrived(self, event: BatchArrived) -> Iterator[Outcome]:
        """A Batch came; on a channel also a repeated one."""
        for reorg in self.open():
            if not reorg.is_on(event.place) or reorg.is_read_again(event.place):
                continue
            yield from self.check_partition(reorg, event.place)
            if event.block_hash not in reorg.batches:
                self.add_batch(reorg, event.block_hash, event.parent, event.weight)

    def add_batch(self, reorg: ReorgState, block_hash: bytes, parent: bytes, weight: int) -> None:
        """The first Batch of a block on the channel."""
        first = not reorg.batches
        self._has_block(reorg, block_hash)
        reorg.batches[block_hash] = None
        reorg.last_block, reorg.last_weight = block_hash, weight
        words = ""
        if reorg.depth <= self._threshold:
            # The Reorg was read early, when the new branch was canonical.
            reorg.removed.pop(block_hash, None)
        if block_hash in reorg.removed:
            words = "is of the removed chain"
        elif first and parent != reorg.ancestor:
            words = f"is the first, and its parent {parent.hex()} isn't the ancestor"
        elif parent != reorg.ancestor and parent not in reorg.batches:
            words = f"has the parent {parent.hex()}, which isn't on the channel"
        if words and reorg.broken is None:
            reorg.broken = (reorg.blocks[block_hash], block_hash, words)

    def completed(self, block_hash: bytes) -> None:
        """The block is complete."""
        for reorg in self.by_ancestor.values():
            reorg.incomplete.pop(block_hash, None)

    def linked(self, node: Node, place: Place) -> None:
        """The block is linked now. If it is on the branch of an open reorg, it should be on its channel."""
        for reorg in self.open():
            parent = self._nodes.get(node.parent)
            if parent is None or reorg.ancestor not in (parent.block_hash, parent.branch):
                continue
            node.branch = reorg.ancestor
            # The channel carries all blocks up to the first that is heavier than what was removed.
            needed = parent.block_hash == reorg.ancestor or parent.weight <= reorg.heaviest
            # A channel that is read first removes little, and the ordinary topics then bring blocks beside its own.
            beside = reorg.depth <= self._threshold and parent.topic != reorg.channel
            # What came before the Reorg isn't part of it: a channel that is read late finds blocks beside its own.
            before = node.batch_place is None or node.batch_place < reorg.place
            if needed and self.topics.is_ordinary(node.topic) and not beside and not before and reorg.beside is None:
                words = f"its block {findings.name(node)} came on topic {node.topic!r}"
                reorg.beside = place, words, node.block_hash

    # Rules about channels

    def channel_message(self, event: ChannelMessage) -> Iterator[Outcome]:
        """A message came on a channel, maybe before its Reorg or after its ReorgComplete."""
        topic = event.place.topic
        reorg = self.on(event.place)
        if reorg is not None:
            yield from self.check_partition(reorg, event.place)
            late = reorg.stage is Stage.COMPLETE and reorg.again is None and self._is_new(event.block_hash)
            if late and not reorg.late_reported:
                reorg.late_reported = True
                message = f"the first message on channel {topic!r} after its ReorgComplete"
                yield findings.finding("reorg_not_completed", event.place, message)
        elif topic is not None:
            self.topics.early_message(topic, event.place.partition)

    def _is_new(self, block_hash: bytes | None) -> bool:
        """Whether the block has no Batch so far. Messages of other blocks are repeated by producers that are behind."""
        if block_hash is None:
            return False
        node = self._nodes.get(block_hash)
        return node is None or node.batch_order is None

    def check_partition(self, reorg: ReorgState, place: Place, *others: int | None) -> Iterator[Outcome]:
        """The channel has one partition. Checks that of `place`, or `others`."""
        for partition in others or (place.partition,):
            if partition != reorg.partition:
                message = f"channel {reorg.channel!r} has the partitions {reorg.partition} and {partition}"
                yield from self.shared(reorg, place, message)

    def shared(self, reorg: ReorgState, place: Place, words: str, node: Node | None = None) -> Iterator[Outcome]:
        """Rule `reorg_channel_shared`, once a reorg."""
        if not reorg.shared_reported:
            reorg.shared_reported = True
            message = f"reorg from {reorg.ancestor.hex()}: {words}"
            yield findings.finding("reorg_channel_shared", place, message, node)

    def check_number(self, reorg: ReorgState, event: ReorgArrived | ReorgCompleteArrived) -> Iterator[Outcome]:
        """Rule `reorg_ancestor_wrong` for a number, once a reorg."""
        if is_other_number(reorg.ancestor_number, event.number) and not reorg.number_reported:
            reorg.number_reported = True
            message = f"block {reorg.ancestor.hex()} has the number {reorg.ancestor_number}, not {event.number}"
            yield findings.finding("reorg_ancestor_wrong", event.place, message)

    # The end of a reorg

    def complete(self, reorg: ReorgState, place: Place) -> Iterator[Outcome]:
        """The ReorgComplete of a reorg that was carried out came."""
        if reorg.stage is Stage.OPEN:
            yield from self._check_beside(reorg)
            yield from self._check_blocks(reorg, place, reorg.incomplete)
        reorg.end(Stage.COMPLETE)
        yield self.row(reorg, place)

    def head_moved(self, place: Place) -> Iterator[Outcome]:
        """The head has moved: end the reorgs that are waited for no more, and whose ReorgComplete hasn't come."""
        for reorg in list(self.by_ancestor.values()):
            if self._is_behind(reorg):
                reorg.head_number = max(reorg.head_number, self._canonical.head.number)
            # While a channel goes on a ReorgComplete may come.
            elif self.topics.is_ordinary(place.topic) and self._is_overtaken(reorg):
                yield from self._lapse(reorg, place)

    def channel_read(self, place: Place) -> None:
        """A message of a channel was read.

        If the head is above the channel's blocks already, the channel is read late. If the Reorg removed few blocks, it
        was read early, and the old head is unknown. Either way the ReorgComplete may come for longer.
        """
        head = self._canonical.head
        for reorg in self.by_ancestor.values():
            if reorg.is_on(place) and (head.topic != reorg.channel or reorg.depth <= self._threshold):
                reorg.head_number = max(reorg.head_number, head.number)

    def _is_overtaken(self, reorg: ReorgState) -> bool:
        """Whether the chain was read so far that the ReorgComplete should have come."""
        number = reorg.head_number + self._threshold
        if self._canonical.head.number <= number or reorg.is_overtaken:
            return False
        if reorg.stage is Stage.ANNOUNCED and reorg.place.topic in self.topics.ordinary:
            return self._went_on(reorg.place, number)
        # Blocks that have waited say nothing of how far their partitions were read.
        return self.topics.least_read() > number

    def _went_on(self, announced: Place, number: int) -> bool:
        """Whether a block above `number` was sent after the announcement, and isn't of the reorg.

        Its Batch came later in the same partition. What other partitions bring may have been sent before.
        """
        for block_hash in reversed(self._canonical.hashes):
            node = self._nodes[block_hash]
            if node.number <= number:
                return False
            batch = node.batch_place
            if batch is not None and (batch.topic, batch.partition) == (announced.topic, announced.partition):
                return batch > announced
        return False

    def _is_behind(self, reorg: ReorgState) -> bool:
        """Whether the head is on a branch that the open reorg will remove: its Reorg was read before that branch."""
        if reorg.stage is not Stage.OPEN or reorg.channel is None or reorg.depth > self._threshold:
            return False
        if reorg.ancestor not in self._canonical.at:
            return False
        above = self._canonical.hashes[self._canonical.position(reorg.ancestor) + 1 :]
        return not self.has_block_of(reorg, [self._nodes[block_hash] for block_hash in above])

    def _lapse(self, reorg: ReorgState, place: Place) -> Iterator[Outcome]:
        ancestor = reorg.ancestor.hex()
        if reorg.stage is Stage.ANNOUNCED:
            reorg.end(Stage.UNMADE)
            message = f"reorg from {ancestor} was announced on topic {reorg.place.topic!r} and never made"
            yield findings.finding("reorg_not_completed", reorg.place, message)
        elif reorg.stage is Stage.OPEN:
            overdue = {block: at for block, at in reorg.incomplete.items() if self._is_overdue(block)}
            yield from self._check_beside(reorg)
            yield from self._check_blocks(reorg, place, overdue)
            # Else a ReorgComplete of another block was reported.
            if not reorg.other_end_reported:
                message = f"no ReorgComplete for the reorg from {ancestor} on topic {reorg.place.topic!r}"
                yield findings.finding("reorg_not_completed", reorg.place, message)
            reorg.end(Stage.LAPSED)
            yield self.row(reorg, place)

    def _is_overdue(self, block_hash: bytes) -> bool:
        node = self._nodes.get(block_hash)
        return node is None or not node.open

    def _check_beside(self, reorg: ReorgState) -> Iterator[Outcome]:
        """Rule `reorg_channel_shared` for a block that the channel should have brought, if it lacks one."""
        is_whole = reorg.broken is None and reorg.batches and reorg.last_weight > reorg.heaviest
        if reorg.beside is not None and not is_whole:
            place, words, block_hash = reorg.beside
            yield from self.shared(reorg, place, words, self._nodes.get(block_hash))

    def _check_blocks(self, reorg: ReorgState, place: Place, incomplete: Mapping[bytes, int]) -> Iterator[Outcome]:
        """Rule `reorg_chain_broken`: the first block of the channel that breaks it.

        A block that came elsewhere, and what is out of order because of that, was reported as `reorg_channel_shared`.
        """
        faults = [(at, block_hash, "is incomplete") for block_hash, at in incomplete.items()]
        if reorg.broken is not None and not reorg.shared_reported:
            faults.append(reorg.broken)
        last, weight = reorg.last_block, reorg.last_weight
        if reorg.channel is None:
            last, weight = self._canonical.head.block_hash, self._canonical.head.weight
        if reorg.depth and (reorg.channel is None or not reorg.shared_reported):
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
            yield findings.finding("reorg_chain_broken", evidence or place, message, node)
