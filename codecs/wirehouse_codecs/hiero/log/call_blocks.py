"""The blocks that calls carry in sets of items, and their rows.

A set holds items of one block. Its items come in chunks, and are added to the block that its call has under way; a
header begins a new block. The block ends by its proof, by BlockEnd, by the next header, or with its call: then comes
its row, and what it breaks as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.hiero.log.call_rows import CallRows
from wirehouse_codecs.hiero.log.rows import block_content
from wirehouse_codecs.hiero.profiles import Service
from wirehouse_codecs.hiero.session.call_state import ComingBlock, ComingSet, Rpc
from wirehouse_codecs.hiero.wire.blocks import BlockBuilder, is_old, split
from wirehouse_codecs.hiero.wire.hashes import settle
from wirehouse_codecs.hiero.wire.items.cutting import Items
from wirehouse_codecs.hiero.wire.items.decoded import with_footer
from wirehouse_codecs.hiero.wire.items.kinds import ItemNumber, item_name
from wirehouse_codecs.tcp.endpoints import Direction

#: Held of headers, footers and proofs of unfinished blocks, of all calls of a connection.
BODIES_BYTES: Final = 1 << 20
#: Kinds of item that are counted apart in a set.
MOST_KINDS: Final = 64


class CallBlocks:
    """The blocks of all calls of a connection, which are in `rpcs`. All together hold at most BODIES_BYTES."""

    def __init__(self, rows: CallRows, rpcs: Mapping[int, Rpc]) -> None:
        self._rows, self._rpcs = rows, rpcs

    def add_items(self, rpc: Rpc, carried: ComingSet, items: Items, at_ns: int, *, is_known: bool) -> None:
        """Items of a set, in chunks as they come; the first arrived `at_ns`.

        `is_known`: nothing of the call is missing, so that a block that doesn't begin by a header lacks one.
        """
        items = with_footer(items)
        for block_items in split(items) if len(items) else [items]:
            begins = bool(len(block_items)) and int(block_items.numbers[0]) == ItemNumber.BLOCK_HEADER
            if begins and carried.counts:
                carried.broken.append(["structure", "a set holds items of two blocks"])
            if begins or rpc.block is None:
                if rpc.block is not None:
                    carried.broken += map(list, self.end(rpc, rpc.place, "header"))
                rpc.block = ComingBlock(at_ns, judged=begins or is_known)
            self._count(carried, block_items, begins)
            block = rpc.block
            block.builder.add(block_items)
            if begins:
                carried.last_header = number_of(rpc)
            if begins and carried.header is None:
                carried.header = carried.last_header
            if ItemNumber.BLOCK_PROOF in block_items.counts and carried.proof is None:
                proof = block.builder.proof
                carried.proof = None if proof is None else proof.block
            if block.judged:
                fresh = block.builder.broken[block.told :]
                carried.broken += [[one.rule.name, one.reason] for one in fresh]
            block.told = len(block.builder.broken)
            if begins or carried.proof is not None:
                self._bound_bodies()

    def _count(self, carried: ComingSet, items: Items, begins: bool) -> None:
        for kind, count in items.counts.items():
            for counts in (carried.counts, carried.part_counts):
                key = kind if kind in counts or len(counts) < MOST_KINDS else -1
                counts[key] = counts.get(key, 0) + count
        carried.part_bytes += int((items.ends - items.starts).sum(dtype="int64")) + items.passed_over
        carried.headers += begins
        carried.unknown_fields += items.unknown_fields

    def _bound_bodies(self) -> None:
        """Drop the block that holds most, if all hold too much."""
        while True:
            held = [(rpc.block.builder.held_bytes, rpc) for rpc in self._rpcs.values() if rpc.block is not None]
            if sum(size for size, _ in held) <= BODIES_BYTES:
                return
            largest = max(held, key=lambda entry: (entry[0], entry[1].number))[1]
            largest.block = ComingBlock(largest.opened_ns, judged=False)

    def end(self, rpc: Rpc, place: Place, ended_by: str) -> list[tuple[str, str]]:
        """The block is over: its row, and what it breaks as a whole."""
        block, rpc.block = rpc.block, None
        if block is None:
            return []
        built = block.builder.finish()
        if not built.counts:
            return []
        fields = block_content(built) | {
            "ended_by": ended_by,
            "first_at_ns": block.first_ns,
            "messages": block.messages,
        }
        if not block.judged:
            fields |= {"roots_complete": False}
            if any(proof.block != built.number for proof in built.proofs):
                # It is the end of another block.
                fields |= {"previous_hash": None}
        sender = Direction.SERVER if rpc.service is Service.SUBSCRIBE else Direction.CLIENT
        self._rows.block(place, sender, rpc, built.number, fields)
        if not block.judged:
            return []
        return [(one.rule.name, one.reason) for one in built.broken[block.told :]]

    def part_content(self, rpc: Rpc, carried: ComingSet, number: int, *, last: bool) -> dict[str, Any]:
        """What the row of a part of a set has of its items; the next part begins from zero."""
        old = rpc.block is not None and is_old(rpc.block.builder.header)
        counts = {item_name(kind, old=old): count for kind, count in sorted(carried.part_counts.items())}
        fields = {"part": number, "last": last, "item_counts": sorted(counts.items())}
        fields |= {"items": sum(carried.part_counts.values()), "item_bytes": carried.part_bytes}
        carried.part_counts, carried.part_bytes = {}, 0
        return fields


def number_of(rpc: Rpc) -> int | None:
    """The number of the block that the call has under way."""
    header = None if rpc.block is None else rpc.block.builder.header
    return None if header is None else header.number


def hashes_of(builder: BlockBuilder, carried: ComingSet) -> dict[str, Any]:
    """A set's part in the chain: hashes of its header, footer or proof, and the root once the block is proven."""
    if not carried.headers and carried.proof is None and ItemNumber.BLOCK_FOOTER not in carried.counts:
        return {}
    if carried.proof is None:
        header, footer = builder.header, builder.footer
        previous = footer.previous_block_root_hash if footer is not None else None
        return {"previous_hash": previous or (None if header is None else header.previous_block_hash)}
    built = builder.finish()
    root = settle(built.roots)
    kind = None if built.proof is None or built.proof.kind is None else built.proof.kind.value
    layout = None if root.layout is None else root.layout.value
    hashes = {"previous_hash": built.previous_hash, "block_root": root.root, "root_layout": layout}
    return hashes | {"proof_kind": kind}
