"""What a Reorg and a ReorgComplete do.

Copies of both may come on ordinary topics, on the channel, from several producers, and again from a reader that went
back. This module decides which copy counts; `reorgs` judges the channel, and `head` carries the reorg out.
"""

from __future__ import annotations

from collections.abc import Iterator

from wirehouse_codecs.cardinal.correlation import findings
from wirehouse_codecs.cardinal.correlation.ancestors import Ancestors
from wirehouse_codecs.cardinal.correlation.events import BatchArrived, Outcome, ReorgArrived, ReorgCompleteArrived
from wirehouse_codecs.cardinal.correlation.head import Head
from wirehouse_codecs.cardinal.correlation.reorg_state import ReorgState, Stage
from wirehouse_codecs.cardinal.correlation.reorgs import Reorgs
from wirehouse_codecs.core.rules import Place


class Announcements:
    """Takes the messages about reorgs."""

    def __init__(self, reorgs: Reorgs, ancestors: Ancestors, head: Head) -> None:
        self._reorgs = reorgs
        self._by_ancestor = reorgs.by_ancestor
        self._topics = reorgs.topics
        self._ancestors = ancestors
        self._head = head

    def reorg_arrived(self, event: ReorgArrived) -> Iterator[Outcome]:
        """A Reorg: a new reorg, or a further copy of a known one."""
        place, ancestor = event.place, event.ancestor_hash
        on_channel = self._topics.is_channel_of(place.topic, ancestor)
        reorg = self._by_ancestor.get(ancestor)
        if reorg is not None and on_channel:
            reorg = self._after_end(reorg, place)
        if self._is_early(ancestor, reorg, on_channel=on_channel):
            self._by_ancestor.pop(ancestor, None)
            yield from self._ancestors.remember(event)
            return
        if reorg is None:
            reorg = self._reorgs.announce(place, ancestor)
            reorg.number_reported = self._ancestors.let_go(ancestor)
        # A wrong number doesn't hide which block is meant.
        yield from self._reorgs.check_number(reorg, event)
        if not on_channel:
            if place.topic not in reorg.announced_on:
                reorg.announced_on.append(place.topic)
        elif reorg.channel is None:
            yield from self._open_channel(reorg, place)
        else:
            yield from self._reorgs.check_partition(reorg, place)

    def _is_early(self, ancestor: bytes, reorg: ReorgState | None, *, on_channel: bool) -> bool:
        """Whether the Reorg is only remembered, so that weight alone decides about the branches above its ancestor.

        Neither the first announcement nor the Reorg of the channel reverts anything that was not read yet.
        """
        ancestors = self._ancestors
        if not ancestors.was_canonical(ancestor):
            return True
        if ancestor in ancestors.early and not (on_channel and ancestors.was_only_announced(ancestor)):
            return True
        if reorg is None:
            return ancestors.is_out_of_order(ancestor)
        is_first = on_channel and reorg.stage is Stage.ANNOUNCED
        return is_first and (reorg.is_overtaken or ancestors.is_out_of_order(ancestor))

    def _after_end(self, reorg: ReorgState, place: Place) -> ReorgState | None:
        """The reorg that a Reorg on the channel belongs to if the known one ended; None if it is another reorg."""
        if reorg.stage not in (Stage.COMPLETE, Stage.LAPSED, Stage.UNMADE):
            return reorg
        if reorg.channel is None and reorg.stage is not Stage.UNMADE:
            reorg.channel, reorg.partition = place.topic, place.partition
        elif place.topic == reorg.channel:
            reorg.again = place
        if place.topic != reorg.channel:
            del self._by_ancestor[reorg.ancestor]
            return None
        return reorg

    def _open_channel(self, reorg: ReorgState, place: Place) -> Iterator[Outcome]:
        """The Reorg on its channel: the one that counts."""
        assert place.topic is not None
        reorg.channel, reorg.partition = place.topic, place.partition
        for partition in self._topics.became_channel(place.topic):
            yield from self._reorgs.check_partition(reorg, place, partition)
        if reorg.stage is Stage.ANNOUNCED:
            reorg.place = place
            yield from self._head.carry_out(reorg, place, None)

    def new_block(self, event: BatchArrived) -> Iterator[Outcome]:
        """A new block. On a channel whose Reorg came again it begins another reorg from the same ancestor."""
        before = self._reorgs.on(event.place)
        if before is None or before.again is None:
            return
        del self._by_ancestor[before.ancestor]
        if self._ancestors.was_canonical(before.ancestor):
            reorg = self._reorgs.announce(before.again, before.ancestor)
            reorg.channel, reorg.partition = before.channel, before.partition
            reorg.announced_on, reorg.number_reported = before.announced_on, before.number_reported
            yield from self._head.carry_out(reorg, event.place, None)

    def reorg_complete(self, event: ReorgCompleteArrived) -> Iterator[Outcome]:
        """A ReorgComplete: the end of a reorg, unless it names another block than the Reorg of its channel."""
        place, ancestor = event.place, event.ancestor_hash
        open_here = self._reorgs.on(place)
        if open_here is not None and open_here.stage is Stage.OPEN and open_here.ancestor != ancestor:
            if not open_here.other_end_reported:
                open_here.other_end_reported = True
                message = f"block {ancestor.hex()}, but the Reorg of this channel names {open_here.ancestor.hex()}"
                yield findings.finding("reorg_ancestor_wrong", place, message)
            return
        if ancestor in self._ancestors.early or not self._ancestors.was_canonical(ancestor):
            yield from self._ancestors.remember(event)
            return
        reorg = self._by_ancestor.get(ancestor)
        if reorg is None:
            yield self._unasked(event)
        elif not reorg.is_read_again(place):
            yield from self._end(reorg, event)

    def _end(self, reorg: ReorgState, event: ReorgCompleteArrived) -> Iterator[Outcome]:
        """The ReorgComplete of a known reorg, on its channel or elsewhere."""
        place, is_running = event.place, reorg.stage in (Stage.OPEN, Stage.LAPSED)
        yield from self._reorgs.check_number(reorg, event)
        reorg.again = None
        if reorg.is_on(place):
            yield from self._reorgs.check_partition(reorg, place)
            if is_running:
                yield from self._reorgs.complete(reorg, place)
                yield from self._head.try_held(place)
        elif place.topic in reorg.announced_on:
            yield from self._reorgs.shared(reorg, place, f"its ReorgComplete came on topic {place.topic!r}")
            if reorg.stage is Stage.ANNOUNCED:
                # Its blocks came on ordinary topics, too, and weight alone decided about them.
                reorg.end(Stage.COMPLETE)
        else:
            yield self._unasked(event)

    def _unasked(self, event: ReorgCompleteArrived) -> Outcome:
        message = f"no Reorg of block {event.ancestor_hash.hex()} is open on topic {event.place.topic!r}"
        return findings.finding("reorg_complete_unasked", event.place, message)
