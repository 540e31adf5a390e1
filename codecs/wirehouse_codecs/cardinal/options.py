"""Options of a Cardinal source: what a consumer would have been configured with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Start:
    """The block a consumer starts from (it is the head before the first message)."""

    number: int
    hash: bytes
    weight: int = 0


@dataclass(frozen=True, slots=True)
class CardinalOptions:
    """See docs/cardinal.md for what each option does."""

    #: Regular expressions, unanchored, searched in each entry name of Batch.updates.
    tracked_prefixes: tuple[str, ...] = (".*",)
    reorg_threshold: int = 128
    #: None = "nowhere": the first block becomes the head.
    start: Start | None = None
    #: Block number -> the only hash accepted at that number.
    whitelist: Mapping[int, bytes] = field(default_factory=dict)
    #: Declared prefixes as regular expressions (anchored at the start); None = any.
    prefixes: tuple[str, ...] | None = None
    #: Regular expression of a prefix (anchored at the start) -> topic; None = not judged.
    topics: Mapping[str, str] | None = None
    #: Topic of a reorg channel, `{hash}` stands for the ancestor's hash in hex; None = `*-re-{hash}`.
    reorg_topic: str | None = None
