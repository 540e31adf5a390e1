"""Messages that a client passed over when it saved on another connection than the one that brought it messages.

The order of two connections isn't sure: an answer may be captured after the SaveIndex that followed it, or not at all.
So what a client passed over waits until no missing bytes can explain it. Whatever comes to the client meanwhile may
have come before.
"""

from __future__ import annotations

from dataclasses import dataclass

from wirehouse_codecs.core.intervals import Intervals
from wirehouse_codecs.ockam.correlation.events import Delivered, Saved


@dataclass(slots=True)
class Skipped:
    """What a SaveIndex passed over."""

    saved: Saved
    #: Messages that no response to the client went through, and those that one left out.
    never: Intervals
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
