"""The carried state of a chain as text: what is written at the end of a window and read at the start of the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from wirehouse_codecs.cardinal.correlation.block_tree import Node
from wirehouse_codecs.cardinal.correlation.reorg_state import EarlyAncestor, ReorgState
from wirehouse_codecs.cardinal.wire.messages import HASH_BYTES
from wirehouse_codecs.core.snapshots import SnapshotCodec

SNAPSHOT_VERSION: Final = 5


@dataclass(frozen=True, slots=True)
class ChainState:
    """All that a chain remembers. Links between blocks and queues of lives follow from it."""

    #: Fields of `Head`.
    sequence: int
    linked: int
    held: list[bytes]
    #: Fields of `BlockTree`.
    order: int
    nodes: list[Node]
    #: Fields of `CanonicalChain`; `chain` is all hashes together.
    known_from: int | None
    forgotten_below: int | None
    base: int
    chain: bytes
    gaps: list[bytes]
    #: Fields of `Topics`.
    ordinary: set[str]
    early_channels: dict[str, list[int | None]]
    read: dict[tuple[str | None, int | None], int | None]
    #: Fields of `Ancestors` and `Reorgs`.
    early_ancestors: dict[bytes, EarlyAncestor]
    reorgs: list[ReorgState]

    @property
    def hashes(self) -> list[bytes]:
        """The hashes of `chain`."""
        return [self.chain[at : at + HASH_BYTES] for at in range(0, len(self.chain), HASH_BYTES)]


CODEC: Final = SnapshotCodec(ChainState, what="cardinal chain", version=SNAPSHOT_VERSION)
