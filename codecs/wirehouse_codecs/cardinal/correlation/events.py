"""What happens to a source's blocks and reorgs, and what follows from it: in and out of the chain (`chain`)."""

from __future__ import annotations

from dataclasses import dataclass

from wirehouse_codecs.core.rules import Finding, Place

# What happens


@dataclass(frozen=True, slots=True)
class FirstMessage:
    """The first message of a block hash in this life."""

    place: Place
    block_hash: bytes


@dataclass(frozen=True, slots=True)
class BatchArrived:
    """The first Batch of a block that can be decoded.

    On the channel of a reorg a repeat is worth an event too: a removed block sent again there breaks a rule.
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
    """A Reorg; the copy on the channel counts, another one announces it."""

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


# What follows from it


@dataclass(frozen=True, slots=True)
class Update:
    """The head moved. `added` and `removed` are both lowest block first, the common ancestor is in neither."""

    place: Place
    #: Counts the updates of the source from 0.
    sequence: int
    added: tuple[bytes, ...]
    removed: tuple[bytes, ...]
    head_hash: bytes
    head_number: int


@dataclass(frozen=True, slots=True)
class Canonical:
    """A block became canonical, or stopped being so: the state of the row (block_hash, valid_from_ns)."""

    block_hash: bytes
    number: int
    valid_from_ns: int
    valid_to_ns: int | None
    place: Place


@dataclass(frozen=True, slots=True)
class ReorgRow:
    """A reorg as it stands now: the state of the row `place`."""

    #: The Reorg that counts, or the message at which a heavier side chain was found.
    place: Place
    ancestor_hash: bytes
    ancestor_number: int
    #: Removed blocks.
    depth: int
    old_head: bytes
    #: None while an announced reorg is open.
    new_head: bytes | None
    announced: bool
    #: The channel's topic; None for a reorg that was found, or told on ordinary topics.
    channel: str | None
    completed: bool
    changed_at: Place


@dataclass(frozen=True, slots=True)
class Found:
    """A rule broken, and the block it is about."""

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
    #: It is more than the threshold below the head or older than the horizon, so what is missing never came; else it
    #: was only forgotten.
    judged: bool
    #: It completed in this life.
    complete: bool
    #: In words, that the head waits for this block; empty if it doesn't.
    stall: str = ""


Outcome = Update | Canonical | ReorgRow | Found | Refused | Closed
