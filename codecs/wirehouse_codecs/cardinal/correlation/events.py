"""What goes into the chain, and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass

from wirehouse_codecs.core.rules import Finding, Place

# In: events


@dataclass(frozen=True, slots=True)
class FirstMessage:
    """The first message of a block hash in this life."""

    place: Place
    block_hash: bytes


@dataclass(frozen=True, slots=True)
class BatchArrived:
    """The first Batch of a block that can be decoded.

    On the channel of a reorg a repeated Batch is an event, too: a removed block that is sent again there breaks a rule.
    """

    place: Place
    block_hash: bytes
    number: int
    parent: bytes
    weight: int


@dataclass(frozen=True, slots=True)
class Completed:
    """The block completed at this message."""

    place: Place
    block_hash: bytes


@dataclass(frozen=True, slots=True)
class ReorgArrived:
    """A Reorg. The copy on the channel counts; a copy elsewhere announces the reorg."""

    place: Place
    ancestor_hash: bytes
    number: int


@dataclass(frozen=True, slots=True)
class ReorgCompleteArrived:
    """A ReorgComplete."""

    place: Place
    ancestor_hash: bytes
    number: int


@dataclass(frozen=True, slots=True)
class ChannelMessage:
    """The first message of each partition of a reorg channel, and each block's messages after a ReorgComplete."""

    place: Place
    #: None: a Reorg or ReorgComplete.
    block_hash: bytes | None = None


Event = FirstMessage | BatchArrived | Completed | ReorgArrived | ReorgCompleteArrived | ChannelMessage


# Out: outcomes


@dataclass(frozen=True, slots=True)
class Update:
    """The chain changed. `added` and `removed` are both lowest block first; neither has the common ancestor."""

    place: Place
    #: Counts the updates of the source from 0.
    sequence: int
    added: tuple[bytes, ...]
    removed: tuple[bytes, ...]
    head_hash: bytes
    head_number: int


@dataclass(frozen=True, slots=True)
class Canonical:
    """A block became canonical, or stopped being canonical: the state of the row (block_hash, valid_from_ns)."""

    block_hash: bytes
    number: int
    valid_from_ns: int
    valid_to_ns: int | None
    place: Place


@dataclass(frozen=True, slots=True)
class ReorgRow:
    """A reorg as it is now: the state of the row `place`."""

    #: The Reorg that counts, or the message at which a heavier side chain displaced the head.
    place: Place
    ancestor_hash: bytes
    ancestor_number: int
    #: Removed blocks.
    depth: int
    old_head: bytes
    #: None while an announced reorg is open.
    new_head: bytes | None
    announced: bool
    #: The channel's topic; None for a reorg without a Reorg, or with one on ordinary topics only.
    channel: str | None
    completed: bool
    changed_at: Place


@dataclass(frozen=True, slots=True)
class LocatedFinding:
    """A finding, and the block that it is about."""

    finding: Finding
    block_hash: bytes | None
    number: int | None


@dataclass(frozen=True, slots=True)
class Refused:
    """The whitelist excludes this block or an ancestor."""

    block_hash: bytes
    place: Place


@dataclass(frozen=True, slots=True)
class Closed:
    """The block's life ends here."""

    block_hash: bytes
    #: The message that ended it; `Place.before` of a moment if time alone did.
    place: Place
    #: Whether the block is more than the threshold below the head or older than the horizon: missing parts never came.
    #: False: it was only forgotten to make room.
    judged: bool
    #: Whether it completed in this life.
    complete: bool
    #: Words for the findings of the block: the head waits for it. Empty if the head doesn't wait.
    stall: str = ""


Outcome = Update | Canonical | ReorgRow | LocatedFinding | Refused | Closed
