"""Rules, findings, and the location of a finding.

Each protocol lists its rules as data in `PROTOCOL/rules.py`. The id of a rule is the same in the code that checks it,
in the violations table, in the suite of expectations, and on the generated rules page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """How serious it is to break the rule."""

    VIOLATION = "violation"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Rule:
    """One normative sentence of a specification, or one fact about captures."""

    protocol: str
    name: str
    severity: Severity
    #: What breaks the rule, in one sentence.
    sentence: str
    #: The section of the specification.
    place: str
    #: Whether bytes that break the rule are quarantined and excluded from all further checks.
    quarantines: bool = False

    @property
    def id(self) -> str:
        """`PROTOCOL.NAME`, the id in every table."""
        return f"{self.protocol}.{self.name}"


def by_name(rules: tuple[Rule, ...]) -> dict[str, Rule]:
    """Index `rules` by their short name."""
    return {rule.name: rule for rule in rules}


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """The location of a landed record. The first four fields are the order of arrival in a source."""

    arrived_at_ns: int
    capture_arrived_at_ns: int
    capture_id: bytes
    record_number: int
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None

    @classmethod
    def before(cls, ns: int) -> Place:
        """The location just before all records that arrived at `ns`, and after all that arrived earlier."""
        return cls(ns, 0, b"", 0)

    def to_json(self) -> list[Any]:
        """The location as it is written in carried state."""
        order = [self.arrived_at_ns, self.capture_arrived_at_ns, self.capture_id.hex(), self.record_number]
        return [*order, self.topic, self.partition, self.offset]

    @classmethod
    def from_json(cls, row: Sequence[Any]) -> Place:
        """The location that `to_json` wrote."""
        return cls(row[0], row[1], bytes.fromhex(row[2]), *row[3:])

    @property
    def order(self) -> tuple[int, int, bytes, int]:
        """The sort key of arrival."""
        return (self.arrived_at_ns, self.capture_arrived_at_ns, self.capture_id, self.record_number)


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that was broken, and where. `message` gives the offending values in words a person can act on."""

    rule: Rule
    place: Place
    message: str
