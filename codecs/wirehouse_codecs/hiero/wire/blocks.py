"""Joins the items of a block, and reads block files.

A block comes in sets of a call or as a file; both are runs of items, and `BlockBuilder` takes either as they come.
Where a file is cut off or damaged, the items before that place count, and place and reason are reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from wirehouse_codecs.core.rules import Rule
from wirehouse_codecs.hiero.rules import RULE
from wirehouse_codecs.hiero.wire.hashes import BlockHasher, HasherState, Roots, previous_hash
from wirehouse_codecs.hiero.wire.items.cutting import Items
from wirehouse_codecs.hiero.wire.items.decoded import (
    BlockFooter,
    BlockHeader,
    BlockProof,
    DecodedItem,
    ProofKind,
    decode_footer,
    decode_header,
    decode_proof,
    short_proof,
    with_footer,
)
from wirehouse_codecs.hiero.wire.items.kinds import (
    SIGNED_TRANSACTIONS_SINCE,
    ItemClass,
    ItemNumber,
    item_class,
    item_name,
)
from wirehouse_codecs.hiero.wire.protobuf import Malformed

#: Maximum number of proofs of a block that are decoded; real ones have one. Headers, footers and proofs that are larger
#: than MOST_BODY_BYTES aren't decoded: only the block of such a proof is reported.
MOST_PROOFS: Final = 16
MOST_BODY_BYTES: Final = 1 << 18
_HEAD_BYTES: Final = 32
#: Maximum number of different item numbers that are counted apart; others are counted together.
MOST_NUMBERS: Final = 64
OTHER_NUMBERS: Final = -1
#: Maximum number of findings that are kept of a block.
MOST_BROKEN: Final = 32


_DECODERS: Mapping[int, Callable[[bytes], DecodedItem]] = MappingProxyType(
    {
        ItemNumber.BLOCK_HEADER: decode_header,
        ItemNumber.BLOCK_FOOTER: decode_footer,
        ItemNumber.BLOCK_PROOF: decode_proof,
    }
)


class Broken(NamedTuple):
    """A rule that a block breaks by itself."""

    rule: Rule
    reason: str


@dataclass(frozen=True)
class Block:
    """What came of a block."""

    header: BlockHeader | None = None
    footer: BlockFooter | None = None
    proofs: tuple[BlockProof, ...] = ()
    #: How many items there are of each number; beyond MOST_NUMBERS they are OTHER_NUMBERS.
    counts: dict[int, int] = field(default_factory=dict)
    #: Bytes of the items with their tags and lengths.
    item_bytes: int = 0
    #: Fields that are no items, and those that header, footer and proofs don't know.
    unknown_fields: int = 0
    roots: Roots = field(default_factory=Roots)
    broken: tuple[Broken, ...] = ()

    @property
    def number(self) -> int | None:
        """The header's number."""
        return None if self.header is None else self.header.number

    @property
    def items_total(self) -> int:
        """How many items there are."""
        return sum(self.counts.values())

    @cached_property
    def item_counts(self) -> dict[str, int]:
        """How many items there are of each kind, by the kind's name, in the order of names."""
        old = is_old(self.header)
        return dict(sorted((item_name(number, old=old), count) for number, count in self.counts.items()))

    @property
    def proof(self) -> BlockProof | None:
        """The first proof."""
        return self.proofs[0] if self.proofs else None

    @property
    def previous_hash(self) -> bytes | None:
        """The root of the block before, as this one has it."""
        return previous_hash(self.header, self.footer, self.proof)


def is_old(header: BlockHeader | None) -> bool:
    """Whether the block's transactions are of the form before HAPI 0.69."""
    if header is None or header.hapi_proto_version is None:
        return header is not None and header.old
    return header.hapi_proto_version.numbers < SIGNED_TRANSACTIONS_SINCE


def split(items: Items) -> list[Items]:
    """`items` parted before each header: a header begins another block."""
    cuts = [0, *(position for position in items.where(ItemNumber.BLOCK_HEADER) if position), len(items)]
    if len(cuts) == 2:
        return [items]
    parts = [
        replace(
            items,
            starts=items.starts[begin:end],
            bodies=items.bodies[begin:end],
            ends=items.ends[begin:end],
            numbers=items.numbers[begin:end],
            unknown_fields=0 if begin else items.unknown_fields,
            several=0 if begin else items.several,
            fault=None,
        )
        for begin, end in pairwise(cuts)
    ]
    return [*parts[:-1], replace(parts[-1], fault=items.fault)]


class BuilderState(NamedTuple):
    """What a BlockBuilder carries from window to window."""

    counts: dict[int, int]
    item_bytes: int
    unknown_fields: int
    #: Number and bytes of header, footer and proofs.
    bodies: list[tuple[int, bytes]]
    #: Names of rules, and reasons.
    broken: list[tuple[str, str]]
    hasher: HasherState


class BlockBuilder:
    """One block as its items come: counts, the items that identify the block, and the subtrees of its root.

    `add` takes all items up to the next header; it reports a second header and goes on. Memory doesn't grow with
    the block.
    """

    __slots__ = ("_bodies", "_broken", "_hasher", "_values", "counts", "item_bytes", "unknown_fields")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.item_bytes = 0
        self.unknown_fields = 0
        #: Header, footer and proofs as they came, and decoded.
        self._bodies: list[tuple[int, bytes]] = []
        self._values: dict[int, list[Any]] = {}
        self._broken: list[Broken] = []
        self._hasher = BlockHasher(None)

    @property
    def header(self) -> BlockHeader | None:
        """The header, once it came."""
        return next(iter(self._values.get(ItemNumber.BLOCK_HEADER, ())), None)

    @property
    def footer(self) -> BlockFooter | None:
        """The footer, once it came."""
        return next(iter(self._values.get(ItemNumber.BLOCK_FOOTER, ())), None)

    @property
    def proof(self) -> BlockProof | None:
        """The first proof, once it came."""
        return next(iter(self._values.get(ItemNumber.BLOCK_PROOF, ())), None)

    @property
    def proved(self) -> bool:
        """Whether a proof came."""
        return ItemNumber.BLOCK_PROOF in self.counts

    @property
    def held_bytes(self) -> int:
        """Bytes of header, footer and proofs, which are held."""
        return sum(len(body) for _, body in self._bodies)

    @property
    def broken(self) -> tuple[Broken, ...]:
        """The rules that the items broke so far."""
        return tuple(self._broken)

    def add(self, items: Items) -> None:
        """The next items of the block."""
        items = with_footer(items)
        self._place(items)
        for number in _DECODERS:
            for position in items.where(number):
                self._decode(number, items, position)
        for number, count in items.counts.items():
            if number not in self.counts and item_class(number) is ItemClass.REFUSED:
                self._break("item_refused", f"an item of number {number}")
            key = number if number in self.counts or len(self.counts) < MOST_NUMBERS else OTHER_NUMBERS
            self.counts[key] = self.counts.get(key, 0) + count
        if items.several:
            self._break("item_refused", "an item of several fields")
        self.item_bytes += int((items.ends - items.starts).sum(dtype="int64")) + items.passed_over
        self.unknown_fields += items.unknown_fields
        self._hasher.add(items)
        if items.fault is not None:
            self._break("malformed_message", f"items from byte {items.fault.at}: {items.fault.reason}")

    def _place(self, items: Items) -> None:
        """Whether the items stand where the block's structure has them."""
        if not len(items):
            return
        first, begins = int(items.numbers[0]), not self.counts
        if begins and first != ItemNumber.BLOCK_HEADER:
            self._break("structure", f"the block begins with {item_name(first)}, not with its header")
        if items.counts.get(ItemNumber.BLOCK_HEADER, 0) > (begins and first == ItemNumber.BLOCK_HEADER):
            self._break("structure", "a header stands within the block")
        if items.counts.get(ItemNumber.BLOCK_FOOTER, 0) + self.counts.get(ItemNumber.BLOCK_FOOTER, 0) > 1:
            self._break("structure", "the block has two footers")
        proved = self._end(items, ItemNumber.BLOCK_PROOF, len(items))
        after = items.numbers[proved:]
        late = after[after != ItemNumber.BLOCK_PROOF]
        if len(late):
            self._break("structure", f"{item_name(int(late[0]))} after the proof", once=True)
        footed = self._end(items, ItemNumber.BLOCK_FOOTER, proved)
        between = items.numbers[footed:proved]
        between = between[between != ItemNumber.BLOCK_FOOTER]
        if len(between):
            self._break("structure", f"{item_name(int(between[0]))} after the footer", once=True)

    def _end(self, items: Items, number: int, end: int) -> int:
        """The position from which an item of `number` stands before what follows; `end` = there is none."""
        if number in self.counts:
            return 0
        return items.where(number)[0] if number in items.counts else end

    def _break(self, rule: str, reason: str, *, once: bool = False) -> None:
        """`once`: of any item."""
        broken = Broken(RULE[rule], reason)
        if once and any(other.reason.partition(" ")[2] == reason.partition(" ")[2] for other in self._broken):
            return
        if broken not in self._broken and len(self._broken) < MOST_BROKEN:
            self._broken.append(broken)

    def _decode(self, number: int, items: Items, position: int) -> None:
        values = self._values.setdefault(number, [])
        if len(values) == (MOST_PROOFS if number == ItemNumber.BLOCK_PROOF else 1):
            return
        size = int(items.ends[position] - items.bodies[position]) + items.passed_over
        if size <= MOST_BODY_BYTES:
            body = items.body(position)
        elif number == ItemNumber.BLOCK_PROOF:
            try:
                body = short_proof(items.body(position)[:_HEAD_BYTES])
            except Malformed:
                return
        else:
            return
        decoded = _DECODERS[number](body)
        if decoded.reason:
            self._break("malformed_message", decoded.reason)
            return
        values.append(decoded.value)
        self._bodies.append((number, body))
        self.unknown_fields += decoded.unknown_fields
        if number == ItemNumber.BLOCK_HEADER and not self.counts and not position:
            self._hasher = BlockHasher(decoded.value)

    def finish(self) -> Block:
        """The block as it stands; also of an unfinished one."""
        header, footer = self.header, self.footer
        proofs = tuple(self._values.get(ItemNumber.BLOCK_PROOF, ()))
        broken = [*self._broken, *self._missing(header, footer, proofs)]
        roots = self._hasher.roots(footer, proofs[0] if proofs else None)
        if broken:
            # That the next block holds another root would follow from it.
            roots = replace(roots, complete=False)
        if self.counts.get(ItemNumber.BLOCK_FOOTER, 0) > 1:
            footer = None
        return Block(
            header, footer, proofs, dict(self.counts), self.item_bytes, self.unknown_fields, roots, tuple(broken)
        )

    def _missing(
        self, header: BlockHeader | None, footer: BlockFooter | None, proofs: tuple[BlockProof, ...]
    ) -> Iterator[Broken]:
        for proof in proofs:
            if header is not None and proof.block != header.number:
                yield Broken(RULE["structure"], f"the proof of block {header.number} names block {proof.block}")
        new = any(proof.kind not in (None, ProofKind.SIGNATURE) for proof in proofs)
        if new and footer is None and ItemNumber.BLOCK_FOOTER not in self.counts:
            yield Broken(RULE["structure"], "a proof of the newer layout without a footer before it")

    @property
    def state(self) -> BuilderState:
        """What a later builder continues from."""
        broken = [(broken.rule.name, broken.reason) for broken in self._broken]
        return BuilderState(self.counts, self.item_bytes, self.unknown_fields, self._bodies, broken, self._hasher.state)

    @classmethod
    def from_state(cls, state: BuilderState) -> BlockBuilder:
        """The builder with this state."""
        builder = cls()
        builder.counts, builder.item_bytes, builder.unknown_fields, builder._bodies = state[:4]
        for number, body in state.bodies:
            builder._values.setdefault(number, []).append(_DECODERS[number](body).value)
        builder._broken = [Broken(RULE[name], reason) for name, reason in state.broken]
        builder._hasher = BlockHasher(builder.header, state=state.hasher)
        return builder


# Files

_FILE_NAME: Final = re.compile(r"([0-9]{1,36})\.blk(\.gz|\.zstd)?")
_GROUP: Final = re.compile(r"[0-9]{4}")
_GROUPS: Final = 4
_NAME_DIGITS: Final = 19


def is_block_file(path: str) -> bool:
    """Whether the name is that of a block file."""
    return path.endswith((".blk", ".blk.gz", ".blk.zstd"))


def number_of(path: str) -> int | None:
    """The block's number by the name of its file; None = the name has none.

    Names have 19 digits (before: 36), all others that are only digits count too; in a bucket the first 16 of the 19 are
    four folders, as `PREFIX/0000/0000/0010/8273/182.blk.zstd`.
    """
    *folders, name = PurePosixPath(path).parts or ("",)
    matched = _FILE_NAME.fullmatch(name)
    if matched is None:
        return None
    digits, groups = matched[1], folders[-_GROUPS:]
    if len(digits) == _NAME_DIGITS - 4 * _GROUPS and len(groups) == _GROUPS and all(map(_GROUP.fullmatch, groups)):
        digits = "".join(groups) + digits
    number = int(digits)
    return number if number < 1 << 64 else None


def file_name(number: int) -> str:
    """The name of a block's file, without the suffix of its compression."""
    return f"{number:0{_NAME_DIGITS}}.blk"


@dataclass(frozen=True, slots=True)
class BlockFile:
    """A block file, as far as it can be read."""

    name: str
    block: Block
    #: How many bytes it inflates to, up to the damage.
    block_bytes: int = 0
    #: Where and why it ends early; None = it is whole.
    damage: str | None = None

    @property
    def named_number(self) -> int | None:
        """The number in the file's name."""
        return number_of(self.name)
