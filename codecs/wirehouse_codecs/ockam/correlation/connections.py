"""The connections that say something of a stream or a name: which go on, and what of them may still be reported."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from wirehouse_codecs.ockam.correlation.events import Where
from wirehouse_codecs.tcp.options import TcpOptions

#: So long after a packet that wasn't captured its hole is reported at the latest: its connection says more, or ends.
HOLE_NS: Final = TcpOptions().idle_ns + TcpOptions().hole_wait_ns
#: Captures may have clocks that differ by so much: what two of them show is in a sure order if it is further apart.
CLOCKS_NS: Final = TcpOptions().hole_wait_ns
#: Connections that are known, of each kind of knowledge.
MOST_CONNECTIONS: Final = 4_096


@dataclass(slots=True)
class Connections:
    """Connections with a stream or a name, and until when all that they lack is known."""

    #: Those that have not ended; b"" stands for those beyond the bound.
    alive: dict[bytes, None] = field(default_factory=dict)
    #: One of them lacks bytes.
    partial: bool = False
    last_at_ns: int = 0
    #: What was said until then is judged, whatever is missed later.
    settled_ns: int = -1
    #: Those that ended in this window.
    closed: set[bytes] = field(default_factory=set, init=False)
    #: As HOLE_NS.
    hole_ns: int = field(default=HOLE_NS, init=False)

    def note(self, where: Where) -> None:
        """A connection says something."""
        self.last_at_ns = where.arrived_at_ns
        self._note_alive(where.connection_id)

    def note_asking(self, where: Where) -> None:
        """A connection hears of the stream or the name, or may, and shows nothing of it."""
        self.last_at_ns = max(self.last_at_ns, where.arrived_at_ns)
        self._note_alive(where.connection_id)

    def _note_alive(self, connection_id: bytes) -> None:
        if connection_id not in self.alive and connection_id not in self.closed:
            self.alive[connection_id if len(self.alive) < MOST_CONNECTIONS else b""] = None

    def close(self, connection_id: bytes) -> None:
        """A connection has ended."""
        self.closed.add(connection_id)
        self.alive.pop(connection_id, None)
        if not self.alive:
            self.settle()

    def miss(self) -> None:
        """A connection lacks bytes, from now on."""
        self.partial = True
        self.settle()

    def settle(self) -> None:
        """No hole will be reported that might explain what was said by then."""
        waits_ns = self.hole_ns if self.alive else 0
        self.settled_ns = max(self.settled_ns, self.last_at_ns - waits_ns)

    def is_settled(self, where: Where) -> bool:
        """Whatever was missed before this message is known."""
        return where.arrived_at_ns <= self.settled_ns
