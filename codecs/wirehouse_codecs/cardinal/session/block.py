"""What is known of a block: the result of assembly, and the messages that it takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from wirehouse_codecs.cardinal.wire.messages import Batch, Message
from wirehouse_codecs.core.rules import Finding, Place

#: What may be missing of an entry. Of items, `Missing.what` is this word and their ranges.
MESSAGES: Final = "messages"
SUBBATCH_HEADER: Final = "sub-batch header"
ITEMS: Final = "items"
#: What is missing of a block before its Batch.
BATCH_MESSAGE: Final = "batch message"


@dataclass(frozen=True, slots=True)
class Received:
    """A decoded message and its location."""

    place: Place
    message: Message


@dataclass(frozen=True, slots=True)
class Count:
    """The number of messages of a tracked prefix, or of items of a tracked sub-batch."""

    name: bytes
    #: None: the header of the sub-batch hasn't arrived.
    messages: int | None


@dataclass(frozen=True, slots=True)
class Missing:
    """What a tracked entry of the Batch still waits for."""

    name: bytes
    messages: int
    #: "messages", "sub-batch header", "items 3-5,9" or "batch message".
    what: str
    batch_id: bytes | None = None
    #: Number of messages that came and don't count; another finding gives the reason.
    uncounted: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class BlockUpdate:
    """A key of the block that is set, or deleted (`value` is None). A key that is both set and deleted gives both."""

    key: bytes
    value: bytes | None
    #: The message that sets or deletes it.
    place: Place


@dataclass(frozen=True, slots=True)
class Block:
    """What is known of a block after a number of its messages."""

    block_hash: bytes
    #: The first Batch.
    batch: Batch | None
    batch_place: Place | None
    first_place: Place
    last_place: Place
    #: The message after which nothing was missing any more.
    completed_place: Place | None
    #: All messages, also those that take no part.
    messages: int
    #: Messages that repeat an earlier one. Items out of range are quarantined, so none of them counts.
    duplicates: int
    #: The counts of each tracked prefix and sub-batch, by name.
    expected: tuple[Count, ...]
    received: tuple[Count, ...]
    missing: tuple[Missing, ...]
    #: The content at completion, by key, a set before a delete. Empty until then.
    updates: tuple[BlockUpdate, ...]
    findings: tuple[Finding, ...]
    #: For each finding, the message at which the rule was known to be broken, in arrival order.
    known_at: tuple[Place, ...]

    @property
    def complete(self) -> bool:
        """Whether nothing tracked is missing."""
        return self.completed_place is not None
