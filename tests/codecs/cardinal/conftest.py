"""A dialogue with the ordering layer: events in, updates out, written as in the protocol's scenarios."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from wirehouse_codecs.cardinal.correlation.chain import Chain
from wirehouse_codecs.cardinal.correlation.events import (
    BatchArrived,
    Canonical,
    ChannelMessage,
    Completed,
    Event,
    FirstMessage,
    LocatedFinding,
    Outcome,
    ReorgArrived,
    ReorgCompleteArrived,
    ReorgRow,
    Update,
)
from wirehouse_codecs.cardinal.options import CardinalOptions, Start
from wirehouse_codecs.core.rules import Place

TOPIC = "cardinal-1"
_BLOCK = re.compile(r"(?P<name>[^\s:/]+?)(?P<number>\d+)(/(?P<weight>\d+))?(:(?P<parent>\S+))?")


def hash_of(name: str) -> bytes:
    """Names stand for hashes, so that failures can be read."""
    return name.encode().ljust(32, b".")


def name_of(block_hash: bytes) -> str:
    return block_hash.rstrip(b".").decode()


class Story:
    """A chain that is told of named blocks. Before every event it is also restored from its snapshot.

    `tree` names the blocks: `b1:a0 x5/106:b1` is b at 1 on a at 0, and x at 5 of weight 106 on b; a weight that isn't
    given is the number. Blocks are then called `b1`, `x5`.
    """

    def __init__(self, tree: str, start: str | None = None, **options: object) -> None:
        self.blocks: dict[str, tuple[int, int, str]] = {}
        self.add(tree)
        if start is not None:
            number, weight, _ = self.blocks[start]
            options["start"] = Start(number, hash_of(start), weight)
        self.options = replace(CardinalOptions(), **options)  # type: ignore[arg-type]
        self.chain = Chain(self.options)
        self.outcomes: list[Outcome] = []
        self.now_ns = 0
        self._records = 0

    def add(self, tree: str) -> None:
        """Further blocks that can be named."""
        for block in tree.split():
            said = _BLOCK.fullmatch(block)
            assert said, block
            number = int(said["number"])
            self.blocks[f"{said['name']}{number}"] = (number, int(said["weight"] or number), said["parent"] or "-")

    def place(self, topic: str | None = TOPIC, partition: int = 0) -> Place:
        self._records += 1
        self.now_ns += 1
        return Place(self.now_ns, 0, b"", self._records, topic, partition, self._records)

    def tell(self, event: Event) -> list[Outcome]:
        """Both the chain and one restored from its snapshot take `event`, with equal outcomes."""
        restored = Chain(self.options, self.chain.snapshot())
        outcomes = self.chain.apply(event)
        assert restored.apply(event) == outcomes
        assert restored.snapshot() == self.chain.snapshot()
        self.outcomes += outcomes
        return outcomes

    def wait(self, span_ns: int) -> None:
        self.now_ns += span_ns

    def first(self, name: str, topic: str | None = TOPIC) -> list[Outcome]:
        return self.tell(FirstMessage(self.place(topic), hash_of(name)))

    def batch(self, name: str, topic: str | None = TOPIC, partition: int = 0) -> list[Outcome]:
        number, weight, parent = self.blocks[name]
        place = self.place(topic, partition)
        return self.tell(BatchArrived(place, hash_of(name), number, hash_of(parent), weight))

    def completed(self, name: str, topic: str | None = TOPIC) -> list[Outcome]:
        return self.tell(Completed(self.place(topic), hash_of(name)))

    def send(self, names: str, topic: str | None = TOPIC) -> list[Outcome]:
        """All of the blocks, one after the other."""
        out: list[Outcome] = []
        for name in names.split():
            out += self.first(name, topic) + self.batch(name, topic) + self.completed(name, topic)
        return out

    def reorg(self, ancestor: str, topic: str | None = TOPIC, number: int | None = None) -> list[Outcome]:
        number = self.blocks[ancestor][0] if number is None else number
        return self.tell(ReorgArrived(self.place(topic), hash_of(ancestor), number))

    def reorg_complete(self, ancestor: str, topic: str | None = TOPIC, number: int | None = None) -> list[Outcome]:
        number = self.blocks[ancestor][0] if number is None else number
        return self.tell(ReorgCompleteArrived(self.place(topic), hash_of(ancestor), number))

    def channel_message(self, topic: str, partition: int = 0, name: str | None = None) -> list[Outcome]:
        block_hash = None if name is None else hash_of(name)
        return self.tell(ChannelMessage(self.place(topic, partition), block_hash))

    def of(self, kind: type) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if type(outcome) is kind]

    @property
    def updates(self) -> list[str]:
        """`+b,c -d` for each update."""
        updates = [outcome for outcome in self.outcomes if isinstance(outcome, Update)]
        assert [update.sequence for update in updates] == list(range(len(updates)))
        return [
            " ".join(
                sign + ",".join(map(name_of, hashes))
                for sign, hashes in (("+", update.added), ("-", update.removed))
                if hashes
            )
            for update in updates
        ]

    @property
    def found(self) -> list[str]:
        """The rules broken so far, with the block they are about."""
        findings = [outcome for outcome in self.outcomes if isinstance(outcome, LocatedFinding)]
        return [
            outcome.finding.rule.name + (f" {name_of(outcome.block_hash)}" if outcome.block_hash else "")
            for outcome in findings
        ]

    @property
    def canonical(self) -> list[str]:
        """Blocks whose newest row says that they are canonical, by name."""
        rows = {(row.block_hash, row.valid_from_ns): row for row in self.outcomes if isinstance(row, Canonical)}
        return sorted(name_of(row.block_hash) for row in rows.values() if row.valid_to_ns is None)

    @property
    def reorgs(self) -> list[ReorgRow]:
        """Each reorg as it stands last."""
        return list({row.place: row for row in self.outcomes if isinstance(row, ReorgRow)}.values())

    @property
    def head(self) -> str | None:
        return None if self.chain.head is None else name_of(self.chain.head[0])


def line(name: str, first: int, last: int, parent: str, heavier_by: int = 0) -> str:
    """A tree of one chain: blocks `name` from `first` to `last`, the lowest on `parent`."""
    blocks = []
    for number in range(first, last + 1):
        blocks.append(f"{name}{number}/{number + heavier_by}:{parent}")
        parent = f"{name}{number}"
    return " ".join(blocks)


def names(name: str, first: int, last: int) -> str:
    """The blocks of `line`, to send."""
    return " ".join(f"{name}{number}" for number in range(first, last + 1))


@pytest.fixture
def story() -> Callable[..., Story]:
    return Story


@pytest.fixture
def chain_of() -> Callable[..., str]:
    return line


@pytest.fixture
def named() -> Callable[..., str]:
    return names
