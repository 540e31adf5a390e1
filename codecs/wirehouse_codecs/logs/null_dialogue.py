"""A dialogue that does nothing: the base class of tools and tests that need only some of a connection's events.

`logs.rows` gives a dialogue the bytes, holes and end of one connection. A subclass overrides the methods that it needs.
"""

from __future__ import annotations

from collections.abc import Sequence

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.events import Closed, Data, Hole


class NullDialogue:
    """A `Dialogue` that passes over everything. It has no state, and can't be continued."""

    dialect = (None, None)

    def receive(self, pieces: Sequence[Data]) -> None:
        """Pass over the bytes."""

    def hole(self, hole: Hole) -> None:
        """Pass over missing bytes."""

    def doubt(self, place: Place) -> None:
        """Pass over the doubt."""

    def close(self, closed: Closed) -> None:
        """Pass over the end."""

    def conclude(self) -> None:
        """Add no rows: there are no entities."""

    def unread_from(self, direction: Direction) -> int:
        """The beginning: everything that is known of past bytes is kept, though nobody asks for it."""
        return 0

    def snapshot(self) -> str:
        """The empty text: there is no state."""
        return ""
