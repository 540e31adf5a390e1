"""What a rule is, where a record stands, and what is found when a rule is broken.

Every protocol lists its rules as data (`PROTOCOL/rules.py`); the same id stands in the code that finds it,
in the violations table, in the suite and on the generated rules page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """How strong the specification's sentence is."""

    VIOLATION = "violation"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Rule:
    """One normative sentence of a specification (or one fact about captures)."""

    protocol: str
    name: str
    severity: Severity
    #: What breaks it, one sentence.
    sentence: str
    #: Where the specification says so.
    place: str
    #: The bytes that break it go to quarantine and take no part in what follows.
    quarantines: bool = False

    @property
    def id(self) -> str:
        """`PROTOCOL.NAME`, as written to every table."""
        return f"{self.protocol}.{self.name}"


def by_name(rules: tuple[Rule, ...]) -> dict[str, Rule]:
    """Index `rules` by their short name."""
    return {rule.name: rule for rule in rules}


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a landed record stands. The first four fields are the arrival order of a source."""

    arrived_at_ns: int
    capture_arrived_at_ns: int
    capture_id: bytes
    record_number: int
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None

    @classmethod
    def before(cls, ns: int) -> Place:
        """A moment: before every record that arrived at `ns`, after all that came earlier."""
        return cls(ns, 0, b"", 0)

    def to_json(self) -> list[Any]:
        """The place as carried state writes it."""
        order = [self.arrived_at_ns, self.capture_arrived_at_ns, self.capture_id.hex(), self.record_number]
        return [*order, self.topic, self.partition, self.offset]

    @classmethod
    def from_json(cls, row: Sequence[Any]) -> Place:
        """The place that `to_json` wrote."""
        return cls(row[0], row[1], bytes.fromhex(row[2]), *row[3:])

    @property
    def order(self) -> tuple[int, int, bytes, int]:
        """The sort key of arrival."""
        return (self.arrived_at_ns, self.capture_arrived_at_ns, self.capture_id, self.record_number)


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule broken at a place. `message` names the offending values in words a person can act on."""

    rule: Rule
    place: Place
    message: str
