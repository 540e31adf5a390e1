"""What one side sends in a call: where in a message it is, and what of it is held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from wirehouse_codecs.hiero.wire.spans import Passed

#: The encoding of a call whose header fields weren't all read, which may have named one.
UNKNOWN_ENCODING: Final = "?"


@dataclass(slots=True)
class Inbound:
    """What one side sends in a call."""

    passed: Passed
    #: The coding of its compressed messages.
    encoding: str | None = None
    #: Whether it isn't known where a message begins; nor is it looked for in what is left of this frame.
    searching: bool = False
    hopeless: bool = False
    #: The message being read: what there is of its prefix, where that begins, its length, what is left of it, and
    #: when the prefix had arrived.
    prefix: bytes = b""
    start: int = 0
    length: int = 0
    left: int = 0
    begun_ns: int = 0
    #: Whether a part of it was given; why it will have no more.
    begun: bool = False
    fault: str = ""
    #: Compressed content.
    held: bytearray | None = None
    #: Position after the last byte that was taken.
    end: int = 0

    @property
    def irregular(self) -> bool:
        """Whether frames matter: something is looked for in them, or passed over."""
        return self.searching or bool(self.fault) or bool(self.passed.data)

    @property
    def begun_at(self) -> list[int]:
        """Where the message that is being read begins, and what is passed over or looked at."""
        return [self.start] * bool(self.left or self.prefix) + [self.passed.start] * bool(self.passed.data)

    def reset(self) -> None:
        """No message is being read."""
        self.prefix, self.left, self.begun, self.fault, self.held = b"", 0, False, "", None
