"""What one side sends in a call: where in a message it is, and what of it is held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from wirehouse_codecs.hiero.wire.spans import Passed, from_text, to_text
from wirehouse_codecs.tcp.endpoints import Direction

#: Of a call whose header fields weren't all read, which may have named one.
UNKNOWN_ENCODING: Final = "?"


#: What of a side carried state holds as it is.
_PLAIN: Final = (
    *("encoding", "searching", "hopeless", "start", "length", "left", "begun_ns", "begun", "fault", "end"),
)


@dataclass(slots=True)
class Inbound:
    """What one side sends in a call."""

    passed: Passed
    #: The coding of its compressed messages.
    encoding: str | None = None
    #: It isn't known where a message begins; nor is it looked for in what is left of this frame.
    searching: bool = False
    hopeless: bool = False
    #: Of the message being read: what there is of its prefix, where that begins, its length, what is left of it, and
    #: when the prefix had arrived.
    prefix: bytes = b""
    start: int = 0
    length: int = 0
    left: int = 0
    begun_ns: int = 0
    #: A part of it was given; why it will have no more.
    begun: bool = False
    fault: str = ""
    #: Compressed content.
    held: bytearray | None = None
    #: Position after the last byte that was taken.
    end: int = 0

    @property
    def irregular(self) -> bool:
        """Frames matter: something is looked for in them, or passed over."""
        return self.searching or bool(self.fault) or bool(self.passed.data)

    @property
    def begun_at(self) -> list[int]:
        """Where the message that is being read begins, and what is passed over or looked at."""
        return [self.start] * bool(self.left or self.prefix) + [self.passed.start] * bool(self.passed.data)

    def reset(self) -> None:
        """No message is being read."""
        self.prefix, self.left, self.begun, self.fault, self.held = b"", 0, False, "", None

    # Carried state

    def to_json(self) -> dict[str, Any]:
        """What `from_json` takes."""
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "prefix": to_text(self.prefix),
            "held": None if self.held is None else to_text(self.held),
            "passed": self.passed.to_json(),
        }

    @classmethod
    def from_json(cls, state: Mapping[str, Any], number: int, direction: Direction) -> Inbound:
        """What `direction` sends in call `number`, as `to_json` wrote it."""
        inbound = cls(Passed(direction, number))
        for name in _PLAIN:
            setattr(inbound, name, state[name])
        inbound.prefix = from_text(state["prefix"])
        inbound.held = None if state["held"] is None else bytearray(from_text(state["held"]))
        inbound.passed.restore(state["passed"])
        return inbound
