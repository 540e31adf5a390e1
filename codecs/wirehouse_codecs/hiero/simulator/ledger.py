"""The blocks of a network as its nodes make them, for the simulator: true roots that chain, and items of given sizes.

The items between round header and footer contain filler that a schema's reader passes over and that can be
compressed; how blocks begin and end, and how their roots are made, is as in the profile's time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha384
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirehouse_codecs.hiero.profiles import Profile
from wirehouse_codecs.hiero.wire.blocks import BlockBuilder
from wirehouse_codecs.hiero.wire.hashes import EMPTY_TREE, AllBlocks, RootLayout
from wirehouse_codecs.hiero.wire.items.cutting import cut
from wirehouse_codecs.hiero.wire.items.decoded import (
    HASH_BYTES,
    BlockFooter,
    BlockHeader,
    BlockProof,
    ProofKind,
    Timestamp,
    Version,
    encode_footer,
    encode_header,
    encode_proof,
    encode_round_header,
)
from wirehouse_codecs.hiero.wire.items.kinds import ItemNumber

if TYPE_CHECKING:
    from wirehouse_codecs.hiero.simulator.simulator import SimulatorConfig

#: An item's tags and lengths, of two bytes each: its entry, its kind, and field 1000 with the filler.
_HEAD_BYTES: Final = 10
#: The least item size with which all its lengths have two bytes.
LEAST_ITEM_BYTES: Final = 138
MOST_ITEM_BYTES: Final = 16_000
#: A threshold signature with its proof.
_SIGNATURE_BYTES: Final = 2920
#: Filler is made of words, each of them followed by as many bytes that never come again.
_WORDS: Final = 32
_WORD_BYTES: Final = 32
_SPARE_BYTES: Final = 1 << 20
#: Blocks that are kept: a few, for all who send the newest ones.
_KEPT: Final = 8


class _Make(NamedTuple):
    """How the blocks of a profile's time are made."""

    version: tuple[int, int, int]
    layout: RootLayout
    old_header: bool = False


_MAKES: Mapping[str, _Make] = MappingProxyType(
    {
        "A0": _Make((0, 55, 0), RootLayout.TWO_SUBTREES, old_header=True),
        "A": _Make((0, 58, 0), RootLayout.TWO_SUBTREES, old_header=True),
        "A'": _Make((0, 61, 0), RootLayout.TWO_SUBTREES),
        "B0": _Make((0, 61, 0), RootLayout.TWO_SUBTREES),
        "B1": _Make((0, 62, 0), RootLayout.TWO_SUBTREES),
        "B2": _Make((0, 73, 0), RootLayout.EIGHT_LEAVES),
        "B": _Make((0, 78, 0), RootLayout.SIXTEEN_LEAVES),
    }
)
_OLD_KINDS: Final = (
    ItemNumber.EVENT_HEADER,
    ItemNumber.TRANSACTION,
    ItemNumber.TRANSACTION_RESULT,
    ItemNumber.TRANSACTION_OUTPUT,
    ItemNumber.TRANSACTION,
    ItemNumber.TRANSACTION_RESULT,
    ItemNumber.STATE_CHANGES,
)
_KINDS: Final = (*_OLD_KINDS, ItemNumber.TRACE_DATA)


@dataclass(frozen=True, slots=True)
class Block:
    """A block as sets of items, which together are its file."""

    number: int
    #: The header, and the round's.
    opening: tuple[bytes, ...]
    middle: tuple[bytes, ...]
    #: Footer and proof.
    closing: tuple[bytes, ...]
    root: bytes


class Ledger:
    """Blocks by number, from `first` on. Of each block but the last few only hashes are kept, 96 bytes a block."""

    def __init__(self, config: SimulatorConfig, profile: Profile, first: int = 0) -> None:
        self._config, self._profile, self.first = config, profile, first
        self._make = _MAKES[profile.name]
        self._kept: OrderedDict[int, Block] = OrderedDict()
        self._all_blocks = AllBlocks()
        #: What the next block holds: the root of the one before, and that of the tree over all.
        self._held = bytearray(2 * EMPTY_TREE if not first else 2 * sha384(b"earlier").digest())
        least, most = config.item_bytes_least, config.item_bytes_most
        self._count = max(1, round(config.block_bytes * 2 / (least + most)))
        random = np.random.default_rng(config.seed)
        words = random.integers(0, 256, (_WORDS, _WORD_BYTES), np.uint8)
        filler = random.integers(0, 256, ((self._count * most + _SPARE_BYTES) // _WORD_BYTES, _WORD_BYTES), np.uint8)
        filler[::2] = words[random.integers(0, _WORDS, len(filler[::2]))]
        self._filler: NDArray[np.uint8] = filler.reshape(-1)
        kinds = _KINDS if self._make.layout is not RootLayout.TWO_SUBTREES else _OLD_KINDS
        self._tags = np.resize(np.array([kind << 3 | 2 for kind in kinds], np.uint8), self._count)

    def block(self, number: int) -> Block:
        """Block `number`; those before it are made first."""
        known = self._kept.get(number)
        if known is not None:
            self._kept.move_to_end(number)
            return known
        for earlier in range(self.first + len(self._held) // (2 * HASH_BYTES) - 1, number):
            self._keep(self._made(earlier))
        made = self._made(number)
        self._keep(made)
        return made

    def _keep(self, block: Block) -> None:
        self._kept[block.number] = block
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        at = (block.number - self.first + 1) * 2 * HASH_BYTES
        if at == len(self._held):
            self._all_blocks.add(block.root)
            self._held += block.root + self._all_blocks.root()

    def _made(self, number: int) -> Block:
        at = (number - self.first) * 2 * HASH_BYTES
        previous, before = bytes(self._held[at : at + HASH_BYTES]), bytes(self._held[at + HASH_BYTES :][:HASH_BYTES])
        state = EMPTY_TREE if not number else sha384(b"state %d" % number).digest()
        header, rounds = encode_header(self._header(number, previous)), encode_round_header(number + 1)
        run, cuts = self._items(number)
        footer, proof = b"", BlockProof(number, ProofKind.SIGNED, b"")
        if self._make.layout is RootLayout.TWO_SUBTREES:
            kind = ProofKind.SIGNATURE
            proof = BlockProof(number, kind, previous_block_root_hash=previous, start_of_block_state_root_hash=state)
        else:
            footer = encode_footer(BlockFooter(previous, before, state))
        builder = BlockBuilder()
        for items in cut(b"".join((header, rounds, run, footer, encode_proof(proof)))):
            builder.add(items)
        root = builder.finish().roots.by_layout[self._make.layout]
        signature = sha384(root).digest()
        if proof.kind is ProofKind.SIGNED:
            signature = np.random.default_rng([self._config.seed, number, 1]).bytes(_SIGNATURE_BYTES)
        proved = encode_proof(replace(proof, block_signature=signature))
        alone = self._profile.one_item
        return Block(
            number,
            (header, rounds) if alone else (header + rounds,),
            tuple(run[begin:end] for begin, end in pairwise(cuts)),
            tuple(filter(None, (footer, proved))) if alone else (footer + proved,),
            root,
        )

    def _header(self, number: int, previous: bytes) -> BlockHeader:
        at_ms = self._config.start_time_ms + (number - self.first) * self._config.interval_ms
        began = Timestamp(at_ms // 1000, at_ms % 1000 * 1_000_000)
        version = Version(*self._make.version)
        if self._make.old_header:
            return BlockHeader(number, version, version, began, previous_block_hash=previous, old=True)
        return BlockHeader(number, version, version, began)

    def _items(self, number: int) -> tuple[bytes, list[int]]:
        """Items as a run, and where sets of them begin and end."""
        random = np.random.default_rng([self._config.seed, number])
        sizes = random.integers(self._config.item_bytes_least, self._config.item_bytes_most + 1, self._count)
        ends = np.cumsum(sizes)
        starts = ends - sizes
        total = int(ends[-1])
        begin = int(random.integers(0, len(self._filler) - total + 1))
        run = self._filler[begin : begin + total].copy()
        heads = np.empty((self._count, _HEAD_BYTES), np.uint8)
        heads[:, 0], heads[:, 3] = 0x0A, self._tags
        heads[:, 6], heads[:, 7] = 0xC2, 0x3E
        for at, less in ((1, 3), (4, 6), (8, _HEAD_BYTES)):
            length = sizes - less
            heads[:, at], heads[:, at + 1] = length & 0x7F | 0x80, length >> 7
        run[starts[:, None] + np.arange(_HEAD_BYTES)] = heads
        cuts = [0, *ends.tolist()]
        if not self._profile.one_item:
            after = np.arange(self._config.set_bytes, total, self._config.set_bytes)
            cuts = sorted({0, total, *ends[np.searchsorted(ends, after)].tolist()})
        return run.tobytes(), cuts
