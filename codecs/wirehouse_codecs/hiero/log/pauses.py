"""The earliest time at which a client's bytes can have been written: bytes sent after a pause were written after it.

What an application writes may wait in its host's send buffer for long: until the other host acknowledges what was sent
before, or until a lost packet is sent again, perhaps one that no tap saw. So neither the time nor the acknowledgment of
a packet shows what was known when its bytes were written.

A pause shows it. In a pause, the client's host has received all that the server had sent, and for `PAUSE_NS` neither
side sends anything. Bytes in the send buffer can wait for one of three things:

- The server's host acknowledges what was sent before. The client's host would send it again within `PAUSE_NS`.
- The window of the server's host opens.
- An HTTP/2 window opens. Then the server sends something.

If none of these is so, nothing was waiting: what the client sends next was written after the pause.

A client that never pauses is judged by time alone: what an application writes is delivered within the user timeout of
TCP, or its connection ends, and so is the answer.
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
#: The user timeout (RFC 9293 section 3.9.1: five minutes), of an answer and of what is written before it comes.
DELIVERED_NS: Final = 2 * 300 * 10**9


@dataclass(slots=True)
class Pauses:
    """The pauses of a connection."""

    #: Where the client's bytes go on after each, and when they came. The last one may be within a message.
    ends: list[tuple[int, int]] = field(default_factory=list)
    #: Where the server's bytes end; when either side sent something last.
    answer_end: int = 0
    said_ns: int | None = None

    def receive(self, pieces: Sequence[Data], connection: Connection) -> None:
        """The next bytes of both sides, in the order of arrival."""
        parts = pieces.parts if isinstance(pieces, Pieces) else pieces
        for part in parts:
            end = part.byte_start + len(part.data)
            if part.direction is Direction.SERVER:
                self.answer_end = end
            elif self.answer_end and self.said_ns is not None:
                first_ns = _arrived_ns(part, part.byte_start + 1)
                self._add(part.byte_start, self.said_ns, first_ns, connection)
                for pause in part.pauses(PAUSE_NS) if isinstance(part, Stretch) else ():
                    self._add(*pause, connection)
            self.said_ns = _arrived_ns(part, end)

    def _add(self, start: int, said_ns: int, at_ns: int, connection: Connection) -> None:
        """The client's bytes from `start` on came at `at_ns`; the last bytes before them, of any side, at `said_ns`."""
        if at_ns - said_ns >= PAUSE_NS and self._is_known(start, connection):
            self.ends.append((start, at_ns))

    def _is_known(self, start: int, connection: Connection) -> bool:
        """Whether the client's host had all of the server's bytes, and the client's bytes from `start` didn't wait."""
        client = connection.client
        if client.peer_received(start + 1) < self.answer_end or client.is_late(start + 1):
            return False
        was_acknowledged = connection.server.peer_received(self.answer_end) >= start
        is_repeated = client.has_stalled(start, is_full=False) and not was_acknowledged
        return not is_repeated and not client.has_stalled(start, is_full=True)

    def written_ns(self, byte_start: int) -> int:
        """The earliest time at which the client's byte at `byte_start` may have been written."""
        at = bisect_right(self.ends, byte_start, key=lambda end: end[0]) - 1
        return 0 if at < 0 else self.ends[at][1]

    def forget(self, byte_start: int) -> None:
        """Nobody asks about bytes before `byte_start` any more."""
        del self.ends[: max(bisect_right(self.ends, byte_start, key=lambda end: end[0]) - 1, 0)]


def _arrived_ns(part: Data | Stretch, byte_end: int) -> int:
    place = part.place_of(byte_end) if isinstance(part, Stretch) else part.place
    return place.arrived_at_ns
