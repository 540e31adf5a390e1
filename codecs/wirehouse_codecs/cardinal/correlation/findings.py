"""How the chain words its findings."""

from __future__ import annotations

from wirehouse_codecs.cardinal.correlation.block_tree import Node
from wirehouse_codecs.cardinal.correlation.events import LocatedFinding
from wirehouse_codecs.cardinal.rules import RULE
from wirehouse_codecs.cardinal.session.texts import location
from wirehouse_codecs.core.rules import Finding, Place


def finding(rule: str, place: Place, message: str, node: Node | None = None) -> LocatedFinding:
    """The record at `place` breaks `rule`; `node` is the block that it is about."""
    number = node.number if node is not None and node.has_number else None
    return LocatedFinding(Finding(RULE[rule], place, message), node.block_hash if node else None, number)


def name(node: Node) -> str:
    """Number and hash of a block."""
    return f"{node.number} ({node.block_hash.hex()})"


def at_batch(node: Node) -> str:
    """Where the Batch of a block is; empty if that is unknown."""
    return f" at {location(node.batch_place)}" if node.batch_place is not None else ""
