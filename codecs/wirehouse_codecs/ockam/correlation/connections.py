"""The connections with messages about a stream or a name: which are open, and which holes may still be reported."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from wirehouse_codecs.ockam.correlation.events import Where
from wirehouse_codecs.tcp.options import TcpOptions

#: Maximum time from a packet that wasn't captured to the report of its hole: its connection goes on, or ends.
HOLE_NS: Final = TcpOptions().idle_ns + TcpOptions().hole_wait_ns
#: Maximum difference of the clocks of captures: events of two captures are in a sure order if they are further apart.
CLOCKS_NS: Final = TcpOptions().hole_wait_ns
#: Maximum number of connections that are known, for each kind of knowledge.
MOST_CONNECTIONS: Final = 4_096


@dataclass(slots=True)
class Connections:
    """Connections with a stream or a name, and until when all that they lack is known."""

    #: Connections that have not ended; b"" stands for all beyond the bound.
    alive: dict[bytes, None] = field(default_factory=dict)
    #: Whether one of them lacks bytes.
    partial: bool = False
    last_at_ns: int = 0
    #: The time up to which messages are judged, whatever is missed later.
    settled_ns: int = -1
    #: Connections that ended in this window.
    closed: set[bytes] = field(default_factory=set, init=False)
    #: The value that is used as HOLE_NS.
    hole_ns: int = field(default=HOLE_NS, init=False)

    def note(self, where: Where) -> None:
        """Note a message of a connection."""
        self.last_at_ns = where.arrived_at_ns
        self._note_alive(where.connection_id)

    def note_asking(self, where: Where) -> None:
        """Note a connection that learns of the stream or the name, or may, and shows nothing about it."""
        self.last_at_ns = max(self.last_at_ns, where.arrived_at_ns)
        self._note_alive(where.connection_id)

    def _note_alive(self, connection_id: bytes) -> None:
        if connection_id not in self.alive and connection_id not in self.closed:
            self.alive[connection_id if len(self.alive) < MOST_CONNECTIONS else b""] = None

    def close(self, connection_id: bytes) -> None:
        """Note that a connection has ended."""
        self.closed.add(connection_id)
        self.alive.pop(connection_id, None)
        if not self.alive:
            self.settle()

    def miss(self) -> None:
        """Note that a connection lacks bytes, from now on."""
        self.partial = True
        self.settle()

    def settle(self) -> None:
        """Settle the messages that no hole can explain any more, as none that is so old will be reported."""
        waits_ns = self.hole_ns if self.alive else 0
        self.settled_ns = max(self.settled_ns, self.last_at_ns - waits_ns)

    def is_settled(self, where: Where) -> bool:
        """Whether everything that was missed before this message is known."""
        return where.arrived_at_ns <= self.settled_ns
