"""What the chain remembers of a reorg: the announced one, and the ancestor that was named too early."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from wirehouse_codecs.core.rules import Place


class Stage(StrEnum):
    """The life of an announced reorg."""

    ANNOUNCED = "announced"
    OPEN = "open"
    COMPLETE = "complete"
    #: Carried out, but its ReorgComplete never came.
    LAPSED = "lapsed"
    #: Announced, and nothing followed.
    UNMADE = "unmade"


@dataclass(slots=True)
class ReorgState:
    """A Reorg and what has come on its channel."""

    ancestor: bytes
    ancestor_number: int
    place: Place
    stage: Stage
    #: The highest number of the head when it was announced, when it removed blocks, and when a message of its channel
    #: was read after blocks above the channel's. It lapses when the head is more than the threshold above.
    head_number: int
    #: The head when it was announced, and later the one that it removed.
    old_head: bytes
    first_ns: int
    channel: str | None = None
    partition: int | None = None
    #: Ordinary topics with a copy of the Reorg.
    announced_on: list[str | None] = field(default_factory=list)
    #: Whether a heavier branch above the ancestor displaced the head before the channel was read. The branch may be
    #: later than the reorg, so the Reorg on the channel reverts nothing.
    is_overtaken: bool = False
    removed: dict[bytes, None] = field(default_factory=dict)
    depth: int = 0
    #: The heaviest removed weight.
    heaviest: int = 0
    #: Blocks of the channel with their positions on it, those with a Batch, and those that aren't complete.
    blocks: dict[bytes, int] = field(default_factory=dict)
    batches: dict[bytes, None] = field(default_factory=dict)
    incomplete: dict[bytes, int] = field(default_factory=dict)
    #: The first broken link: position on the channel, block, and what is wrong with it.
    broken: tuple[int, bytes, str] | None = None
    #: The first block that came on an ordinary topic although the channel should bring it: where, and in what words.
    beside: tuple[Place, str, bytes] | None = None
    last_block: bytes | None = None
    last_weight: int = 0
    #: Whether `reorg_ancestor_wrong` was reported for its number, and for a ReorgComplete of another block;
    #: `reorg_channel_shared`; and `reorg_not_completed` for messages after the ReorgComplete. Each is reported once.
    number_reported: bool = False
    other_end_reported: bool = False
    shared_reported: bool = False
    late_reported: bool = False
    #: The Reorg that came on the channel after the end. Either a slow producer repeats it, or it is another reorg.
    again: Place | None = None

    @property
    def is_unfinished(self) -> bool:
        """Whether blocks may still come on its channel."""
        return self.stage in (Stage.ANNOUNCED, Stage.OPEN) or (self.channel is not None and self.again is not None)

    def is_on(self, place: Place) -> bool:
        """Whether the place is on the reorg's channel."""
        return self.channel is not None and place.topic == self.channel

    def is_read_again(self, place: Place) -> bool:
        """Whether the place is before the reorg's Reorg on its channel: a reader went back to an earlier reorg."""
        begin = self.place
        if (place.topic, place.partition) != (begin.topic, begin.partition) or not self.is_on(place):
            return False
        return place.offset is not None and begin.offset is not None and place.offset < begin.offset

    def end(self, stage: Stage) -> None:
        """The reorg is over, and the blocks of its channel are forgotten."""
        self.stage = stage
        self.removed, self.blocks, self.batches, self.incomplete = {}, {}, {}, {}


@dataclass(slots=True)
class EarlyAncestor:
    """A block that a Reorg or ReorgComplete named before it was canonical.

    The name is wrong, or the channel was read first.
    """

    number: int
    #: The first such message, and the topic of the last.
    place: Place
    topic: str | None = None
    #: The topic of the last one that was on the channel, as far as could be seen.
    channel: str | None = None
    #: Whether findings about it are over.
    judged: bool = False
    #: Whether the ReorgComplete on its channel came.
    ended: bool = False
