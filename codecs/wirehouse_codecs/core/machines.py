"""State machines as the docs draw them: `session/machines.py` of each protocol names its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import product
from typing import Any, NamedTuple


class Edge(NamedTuple):
    """What an input does in a state, in the words of the table."""

    state: str
    input: str
    #: The state after it; None: the input is not foreseen there.
    becomes: str | None
    #: Name of the rule that the input breaks.
    rule: str | None = None
    #: On which condition.
    when: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """A table `transitions`, (state, input, …) -> step, where states and inputs are members of enumerations.

    A step has `state`, the state after it; `settled`, that on a condition, if the machine has one; and perhaps `rule`.
    """

    #: What has these states, as "connection".
    name: str
    #: The state that it begins in.
    start: Enum
    transitions: Mapping[Any, Any]
    #: The condition under which `settled` is the state after a step.
    settled_when: str = ""
    #: The rule that a pair breaks which the table hasn't.
    unlisted: Callable[..., str | None] | None = None
    #: What changes the state besides inputs: (state, what happens) -> state.
    besides: Mapping[Any, Enum] = field(default_factory=dict)

    def edges(self) -> list[Edge]:
        """By state: every pair that the table has, what changes the state besides, and pairs that break a rule."""
        states = [_word(state) for state in type(self.start)]
        return sorted([*self._listed(), *self._unlisted()], key=lambda edge: states.index(edge.state))

    def _listed(self) -> Iterator[Edge]:
        for key, step in self.transitions.items():
            state, told, rule = _word(key[0]), _words(key), getattr(step, "rule", None)
            yield Edge(state, told, _word(step.state), rule)
            if self.settled_when and step.settled is not step.state:
                yield Edge(state, told, _word(step.settled), rule, self.settled_when)
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
    """A member as the specification calls it: its text, or the name of the class that it stands for."""
    return member.value.__name__ if isinstance(member.value, type) else str(member.value)
