"""Messages that a client passed over when it saved on another connection than the one that brought it messages.

The order of two connections isn't sure: an answer may be captured after the SaveIndex that followed it, or not at all.
So what a client passed over waits until no missing bytes can explain it. Whatever comes to the client meanwhile may
have come before. On the connection that brought it messages it is judged at once, unless messages were missed there.
"""

from __future__ import annotations

from dataclasses import dataclass

from wirehouse_codecs.core.intervals import Intervals
from wirehouse_codecs.ockam.correlation.events import Delivered, Saved


@dataclass(slots=True)
class Skipped:
    """The messages that a SaveIndex passed over."""

    saved: Saved
    #: Messages outside of every response to the client.
    never: Intervals
    #: Messages inside the range of a response that lacked them.
    passed: Intervals

    def remains(self, delivered: Delivered, client_id: str | None) -> bool:
        """Whether anything is left after messages came to a client; None = it isn't known to which."""
        if client_id is None:
            return delivered.asker not in ("", self.saved.asker)
        if client_id != self.saved.client_id:
            return True
        if delivered.requested is None:
            return False
        first = min(delivered.requested, *(first for first, _ in delivered.runs))
        last = max(last for _, last in delivered.runs)
        for runs in (self.never, self.passed):
            runs.remove(first, last)
        return bool(len(self.never) or len(self.passed))


@dataclass(slots=True)
class Doubted:
    """Findings about a SaveIndex on a connection where messages were missed.

    An answer on another connection of the client may be captured only when it is sent again, after the SaveIndex. So
    the findings wait for answers to pulls that were sent before it.
    """

    saved: Saved
    #: The message of `save_ahead`; "" = it isn't broken.
    ahead: str
    #: The same runs as in `Skipped`.
    never: Intervals
    passed: Intervals

    def remains(self, delivered: Delivered, client_id: str | None) -> bool:
        """Whether the client can't have known these messages when it saved."""
        if delivered.where.connection_id == self.saved.where.connection_id:
            return True
        is_known = client_id is not None
        is_own = client_id == self.saved.client_id if is_known else delivered.asker in ("", self.saved.asker)
        asked_ns = delivered.requested_at_ns
        return not is_own or (asked_ns is not None and asked_ns > self.saved.where.arrived_at_ns)
