"""Since when a client's bytes can have been written: what is sent after a pause didn't wait for anything before it.

What an application writes may wait in its host's send buffer for long: until the other host acknowledges what was sent
before, or until a lost packet is sent again, perhaps one that no tap saw. So neither the time nor the acknowledgment of
a packet says what was known when its bytes were written.

A pause does. The server said something last; its host had received all that the client had sent, and the client's host
has received that. If the client then sends nothing for `PAUSE_NS`, nothing of it was waiting: what it sends next was
written after the pause.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.reassembly import Connection, Data
from wirehouse_codecs.tcp.segments import Pieces, Stretch

#: After this a lost packet was sent again (RFC 6298 section 2), and a packet has crossed the wire.
PAUSE_NS: Final = 10**9


@dataclass(slots=True)
class Pauses:
    """The pauses of a connection."""

    #: Where the client's bytes go on after each, and when they came. The last one may be within a message.
    ends: list[tuple[int, int]] = field(default_factory=list)
    #: If the server said something last, where that ends, and when it came.
    answer_end: int = 0
    answered_ns: int | None = None

    def receive(self, pieces: Sequence[Data], connection: Connection) -> None:
        """The next bytes of both sides, in the order of arrival."""
        parts = pieces.parts if isinstance(pieces, Pieces) else pieces
        for part in parts:
            end = part.byte_start + len(part.data)
            if part.direction is Direction.SERVER:
                self.answer_end, self.answered_ns = end, _arrived_ns(part, end)
            elif self.answered_ns is not None:
                first, at_ns = part.byte_start + 1, _arrived_ns(part, part.byte_start + 1)
                if at_ns - self.answered_ns >= PAUSE_NS and self._is_known(first, connection):
                    self.ends.append((part.byte_start, at_ns))
                self.answered_ns = None

    def _is_known(self, first: int, connection: Connection) -> bool:
        """Both hosts had received all that the other one sent before the client's byte before `first`."""
        client_received = connection.peer_received(Direction.CLIENT, first)
        server_received = connection.peer_received(Direction.SERVER, self.answer_end)
        is_late = connection.client.is_late(first)
        return client_received >= self.answer_end and server_received >= first - 1 and not is_late

    def written_ns(self, byte_start: int) -> int:
        """The client's byte at `byte_start` was written then or later."""
        at = bisect_right(self.ends, byte_start, key=lambda end: end[0]) - 1
        return 0 if at < 0 else self.ends[at][1]

    def forget(self, byte_start: int) -> None:
        """Nobody asks about bytes before `byte_start` any more."""
        del self.ends[: max(bisect_right(self.ends, byte_start, key=lambda end: end[0]) - 1, 0)]


def _arrived_ns(part: Data | Stretch, byte_end: int) -> int:
    place = part.place_of(byte_end) if isinstance(part, Stretch) else part.place
    return place.arrived_at_ns
