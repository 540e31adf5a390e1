"""What the chain remembers of blocks and announced reorgs, and how its carried state writes them as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from wirehouse_codecs.core.rules import Place


@dataclass(slots=True)
class Node:
    """A block hash that was heard of."""

    block_hash: bytes
    #: Order of first messages.
    seen: int
    first_place: Place | None = None
    batch_place: Place | None = None
    #: Order of Batches; None: no Batch.
    batch_order: int | None = None
    topic: str | None = None
    number: int = 0
    weight: int = 0
    parent: bytes = b""
    #: Order of completion; None: not complete.
    complete_order: int | None = None
    #: Since when it is canonical.
    valid_from_ns: int | None = None
    #: Ancestor of the open reorg that it came after.
    branch: bytes | None = None
    #: It lives.
    open: bool = False
    complete_in_life: bool = False
    linked: bool = False
    refused: bool = False
    #: It was canonical once.
    was_canonical: bool = False
    #: Its parent has a Batch.
    parent_sent: bool = False
    #: `reorg_unannounced` was found of the branch that begins here; of a start, that the feed never mentions it.
    branch_found: bool = False
    #: `parent_never_sent` was found of it, or `no_batch_message` of its parent.
    parent_found: bool = False
    #: A link at or below it goes up in number.
    twisted: bool = False
    number_found: bool = False
    #: Its parents lead back to it, which no true hash can do: it isn't kept as a child of its parent.
    closes_ring: bool = False


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
    #: Number of the head when it was announced, and when it was carried out.
    old_number: int
    old_head: bytes
    first_ns: int
    channel: str | None = None
    partition: int | None = None
    #: Ordinary topics with a copy of the Reorg.
    announced_on: list[str | None] = field(default_factory=list)
    removed: dict[bytes, None] = field(default_factory=dict)
    depth: int = 0
    heaviest: int = 0
    #: Blocks of the channel in order, those with a Batch, and those that aren't complete.
    blocks: dict[bytes, int] = field(default_factory=dict)
    batches: dict[bytes, None] = field(default_factory=dict)
    incomplete: dict[bytes, int] = field(default_factory=dict)
    #: The first broken link: position on the channel, block, words.
    broken: tuple[int, bytes, str] | None = None
    last_block: bytes | None = None
    last_weight: int = 0
    #: Rules 26, 27 and the later half of 29 are found once.
    number_found: bool = False
    other_end_found: bool = False
    shared_found: bool = False
    late_found: bool = False
    #: The Reorg on the channel after its end. A producer that is behind repeats what has come, or it is another reorg.
    again: Place | None = None


@dataclass(slots=True)
class NotCanonical:
    """A block that a Reorg or ReorgComplete named before it was canonical: it is wrong, or was read ahead."""

    number: int
    #: The first such message, and the topic of the last.
    place: Place
    topic: str | None = None
    #: The topic of one that seemed to stand on the channel.
    channel: str | None = None
    #: Nothing more is found of it.
    judged: bool = False

    def to_json(self) -> list[Any]:
        """As carried state writes it."""
        return [self.number, self.place.to_json(), self.topic, self.channel, self.judged]

    @classmethod
    def from_json(cls, row: list[Any]) -> NotCanonical:
        """What `to_json` wrote."""
        number, place, *rest = row
        return cls(number, Place.from_json(place), *rest)


def has_number(node: Node) -> bool:
    """It has a Batch, or is the configured start."""
    return node.batch_order is not None or node.linked


def completion(node: Node) -> int:
    """By which blocks sort in the order of their completion."""
    return node.complete_order or 0


def is_on(place: Place, reorg: ReorgState) -> bool:
    """The place is on the reorg's channel."""
    return reorg.channel is not None and place.topic == reorg.channel


def is_read_again(place: Place, reorg: ReorgState) -> bool:
    """The place stands before the reorg's Reorg on its channel: a reader went back to an earlier reorg."""
    begin = reorg.place
    if (place.topic, place.partition) != (begin.topic, begin.partition) or not is_on(place, reorg):
        return False
    return place.offset is not None and begin.offset is not None and place.offset < begin.offset


_FLAGS: Final = (
    "open",
    "complete_in_life",
    "linked",
    "refused",
    "was_canonical",
    "parent_sent",
    "branch_found",
    "parent_found",
    "twisted",
    "number_found",
    "closes_ring",
)


def node_to_json(node: Node) -> list[Any]:
    """A block as carried state writes it."""
    return [
        node.block_hash.hex(),
        node.seen,
        sum(1 << bit for bit, flag in enumerate(_FLAGS) if getattr(node, flag)),
        node.batch_order,
        node.complete_order,
        node.number,
        f"{node.weight:x}",
        node.parent.hex(),
        node.topic,
        node.valid_from_ns,
        None if node.branch is None else node.branch.hex(),
        node.first_place and node.first_place.to_json(),
        node.batch_place and node.batch_place.to_json(),
    ]


def node_from_json(row: list[Any]) -> Node:
    """The block that `node_to_json` wrote."""
    (block_hash, seen, flags, batch_order, complete_order, *rest) = row
    (number, weight, parent, topic, valid_from_ns, branch, first_place, batch_place) = rest
    return Node(
        bytes.fromhex(block_hash),
        seen,
        batch_order=batch_order,
        complete_order=complete_order,
        number=number,
        weight=int(weight, 16),
        parent=bytes.fromhex(parent),
        topic=topic,
        valid_from_ns=valid_from_ns,
        branch=None if branch is None else bytes.fromhex(branch),
        first_place=first_place and Place.from_json(first_place),
        batch_place=batch_place and Place.from_json(batch_place),
        **{flag: bool(flags >> bit & 1) for bit, flag in enumerate(_FLAGS)},
    )


def reorg_to_json(reorg: ReorgState) -> dict[str, Any]:
    """A reorg as carried state writes it."""
    return {
        "ancestor": reorg.ancestor.hex(),
        "ancestor_number": reorg.ancestor_number,
        "place": reorg.place.to_json(),
        "stage": reorg.stage.value,
        "old_number": reorg.old_number,
        "old_head": reorg.old_head.hex(),
        "first_ns": reorg.first_ns,
        "channel": reorg.channel,
        "partition": reorg.partition,
        "announced_on": reorg.announced_on,
        "removed": [block_hash.hex() for block_hash in reorg.removed],
        "depth": reorg.depth,
        "heaviest": f"{reorg.heaviest:x}",
        "blocks": [block_hash.hex() for block_hash in reorg.blocks],
        "batches": [block_hash.hex() for block_hash in reorg.batches],
        "incomplete": [block_hash.hex() for block_hash in reorg.incomplete],
        "broken": reorg.broken and [reorg.broken[0], reorg.broken[1].hex(), reorg.broken[2]],
        "last_block": reorg.last_block and reorg.last_block.hex(),
        "last_weight": f"{reorg.last_weight:x}",
        "number_found": reorg.number_found,
        "other_end_found": reorg.other_end_found,
        "shared_found": reorg.shared_found,
        "late_found": reorg.late_found,
        "again": reorg.again and reorg.again.to_json(),
    }


def reorg_from_json(row: dict[str, Any]) -> ReorgState:
    """The reorg that `reorg_to_json` wrote."""
    blocks = {bytes.fromhex(block_hash): at for at, block_hash in enumerate(row["blocks"])}
    return ReorgState(
        bytes.fromhex(row["ancestor"]),
        row["ancestor_number"],
        Place.from_json(row["place"]),
        Stage(row["stage"]),
        row["old_number"],
        bytes.fromhex(row["old_head"]),
        row["first_ns"],
        channel=row["channel"],
        partition=row["partition"],
        announced_on=row["announced_on"],
        removed={bytes.fromhex(block_hash): None for block_hash in row["removed"]},
        depth=row["depth"],
        heaviest=int(row["heaviest"], 16),
        blocks=blocks,
        batches={bytes.fromhex(block_hash): None for block_hash in row["batches"]},
        incomplete={(block := bytes.fromhex(block_hash)): blocks[block] for block_hash in row["incomplete"]},
        broken=row["broken"] and (row["broken"][0], bytes.fromhex(row["broken"][1]), row["broken"][2]),
        last_block=row["last_block"] and bytes.fromhex(row["last_block"]),
        last_weight=int(row["last_weight"], 16),
        number_found=row["number_found"],
        other_end_found=row["other_end_found"],
        shared_found=row["shared_found"],
        late_found=row["late_found"],
        again=row["again"] and Place.from_json(row["again"]),
    )
