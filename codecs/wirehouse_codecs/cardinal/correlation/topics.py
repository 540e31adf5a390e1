"""Topics and partitions: which are reorg channels, and how far the ordinary ones were read.

A source reads many partitions side by side, and one of them may lag behind the others. What seems to be missing may be
in the partition that lags. So nothing counts as missing before every known ordinary partition was read far enough. A
partition was read as far as the highest linked block whose first message, Batch or last message was in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from wirehouse_codecs.cardinal.correlation.reorg_state import ReorgState
from wirehouse_codecs.cardinal.options import CardinalOptions
from wirehouse_codecs.cardinal.session.channels import reorg_channel_name
from wirehouse_codecs.core.rules import Place

#: Topics of channels without a Reorg that are remembered.
MAX_EARLY: Final = 256


class Topics:
    """The topics of a source."""

    def __init__(self, options: CardinalOptions) -> None:
        self._reorg_topic = options.reorg_topic
        #: Announced reorgs by ancestor, oldest first. They make topics channels; `reorgs` changes them.
        self.reorgs: dict[bytes, ReorgState] = {}
        self._is_channel_name: Callable[[str], bool] = reorg_channel_name(options)
        #: Topics that carried a Batch of ordinary traffic.
        self.ordinary: set[str] = set()
        #: Ordinary partitions: the highest linked block that each was read to; None: no linked block yet.
        self.read: dict[tuple[str | None, int | None], int | None] = {}
        #: Partitions of channels whose Reorg hasn't come, by topic.
        self.early: dict[str, list[int | None]] = {}

    def is_channel(self, topic: str) -> bool:
        """Whether the topic is named like a reorg channel, or a Reorg has made it one."""
        return self._is_channel_name(topic) or any(reorg.channel == topic for reorg in self.reorgs.values())

    def is_ordinary(self, topic: str | None) -> bool:
        """Whether the topic is no reorg channel, or unknown."""
        return topic is None or not self.is_channel(topic)

    def is_channel_of(self, topic: str | None, ancestor: bytes) -> bool:
        """Whether a Reorg of `ancestor` on this topic is on the channel that was made for it."""
        if topic is None:
            return False
        if self._reorg_topic is not None:
            return topic == self._reorg_topic.replace("{hash}", ancestor.hex())
        return topic.endswith(f"-re-{ancestor.hex()}") or topic not in self.ordinary

    def has_batch(self, topic: str | None) -> None:
        """The topic carried a Batch."""
        if topic is not None and not self.is_channel(topic):
            self.ordinary.add(topic)

    # How far partitions were read

    def was_read(self, place: Place | None, number: int | None = None) -> None:
        """The partition of `place` was read; up to block `number` if the message is of a linked block."""
        if place is None:
            return
        partition = place.topic, place.partition
        if partition in self.read or place.topic is None or not self.is_channel(place.topic):
            known = self.read.get(partition)
            self.read[partition] = known if number is None else max(number, known or 0)

    def least_read(self) -> int:
        """Up to this number every known ordinary partition was read; -1 if one had no linked block."""
        return min((-1 if number is None else number for number in self.read.values()), default=-1)

    def least_read_for_ancestor(self, *, has_messages: bool, over: bool) -> int | None:
        """Up to this number the partitions were read that can bring what an ancestor lacks; None if one wasn't read.

        An ancestor that no message has named lacks its Batch, so only topics with Batches count.
        `over`: the time to wait is over, and partitions without a linked block don't count.
        """
        read = [
            least
            for (topic, _), least in self.read.items()
            if has_messages or topic is None or topic in self.ordinary or not self.ordinary
        ]
        known = [least for least in read if least is not None]
        if not known or (len(known) < len(read) and not over):
            return None
        return min(known)

    # Channels whose Reorg hasn't come

    def early_message(self, topic: str, partition: int | None) -> None:
        """A message came on a channel topic before its Reorg."""
        partitions = self.early.setdefault(topic, [])
        if partition not in partitions:
            partitions.append(partition)
        if len(self.early) > MAX_EARLY:
            del self.early[next(iter(self.early))]

    def became_channel(self, topic: str) -> list[int | None]:
        """The Reorg came: the topic is no ordinary one. Returns the partitions that carried messages before."""
        self.read = {read: number for read, number in self.read.items() if read[0] != topic}
        return self.early.pop(topic, [])
