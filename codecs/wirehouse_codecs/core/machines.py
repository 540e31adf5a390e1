"""State machines as lists of edges, from which the docs are drawn.

`session/machines.py` of each protocol passes its transition tables to `Machine`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import product
from typing import Any, NamedTuple


class Edge(NamedTuple):
    """The effect of one input in one state, with the names used in the table."""

    state: str
    input: str
    #: The next state; None if the table has no entry for the input.
    becomes: str | None
    #: Name of the rule that the input breaks.
    rule: str | None = None
    #: The condition of this edge; empty if it has none.
    when: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """A table `transitions`, (state, input, …) -> step, whose states and inputs are members of enumerations.

    A step has `state`, the next state. It has `settled`, the next state if `settled_when` holds, where the machine
    has such a condition. It may have `rule`, the rule that the input breaks.
    """

    #: The thing that has these states, such as "connection".
    name: str
    #: The initial state.
    start: Enum
    transitions: Mapping[Any, Any]
    #: The condition under which `settled` is the next state.
    settled_when: str = ""
    #: Gives the rule broken by a pair of state and input that isn't in the table.
    unlisted: Callable[..., str | None] | None = None
    #: State changes that no input causes: (state, cause) -> next state.
    besides: Mapping[Any, Enum] = field(default_factory=dict)
    #: A sentence for the docs: what the table doesn't show.
    note: str = ""

    def edges(self) -> list[Edge]:
        """All edges, sorted by state: those of the table, those without an input, and pairs that break a rule."""
        states = [_word(state) for state in type(self.start)]
        return sorted([*self._listed(), *self._unlisted()], key=lambda edge: states.index(edge.state))

    def _listed(self) -> Iterator[Edge]:
        for key, step in self.transitions.items():
            state, given, rule = _word(key[0]), _words(key), getattr(step, "rule", None)
            yield Edge(state, given, _word(step.state), rule)
            if self.settled_when and step.settled is not step.state:
                yield Edge(state, given, _word(step.settled), rule, self.settled_when)
        for (before, what), after in self.besides.items():
            yield Edge(_word(before), what, _word(after))

    def _unlisted(self) -> Iterator[Edge]:
        members: list[type[Enum]] = [type(part) for part in next(iter(self.transitions))]
        for key in product(*members):
            rule = self.unlisted(*key) if self.unlisted and key not in self.transitions else None
            if rule is not None:
                yield Edge(_word(key[0]), _words(key), None, rule)


def _words(key: tuple[Enum, ...]) -> str:
    return " ".join(map(_word, key[1:]))


def _word(member: Enum) -> str:
    """The specification's name of a member: its text, or the name of the class that is its value."""
    return member.value.__name__ if isinstance(member.value, type) else str(member.value)
