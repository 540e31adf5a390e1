"""Rule `index_never_confirmed`: messages that were delivered, though no push was confirmed with their index.

A message waits as long as something may still explain it: a confirm that comes later, a push that is open, or a hole
that is not reported yet.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Final, NamedTuple

from wirehouse_codecs.core.intervals import Intervals, Run
from wirehouse_codecs.ockam.correlation.connections import MOST_CONNECTIONS, Connections
from wirehouse_codecs.ockam.correlation.contents import MOST_RUNS, Contents
from wirehouse_codecs.ockam.correlation.events import Moment, OpenPushes, Stored, Where, arrival, request, runs_text

#: Maximum number of delivered runs that wait for a push to be confirmed with them; further ones are not judged.
MOST_PENDING: Final = 16_384


class Pending(NamedTuple):
    """Indexes that were delivered, though no push had been confirmed with them."""

    first: int
    last: int
    where: Where


@dataclass(slots=True)
class Unconfirmed:
    """Delivered messages that wait for their confirms, and the pushes that may still be confirmed."""

    #: Indexes that were reported or have waited.
    indexes: Intervals = field(default_factory=lambda: Intervals(most=MOST_RUNS))
    #: Delivered runs that wait, rising.
    pending: list[Pending] = field(default_factory=list)
    #: Arrivals of the pushes that were open at the end of the last window, by connection.
    open: dict[bytes, list[Moment]] = field(default_factory=dict)
    #: Arrivals of the first pushes that stay open, as `_firsts` returns them.
    lost: list[Moment] = field(default_factory=list)

    def deliver(self, contents: Contents, ordered: Iterable[tuple[int, int]], where: Where) -> None:
        """Note delivered indexes: those that aren't confirmed wait, from their first delivery on."""
        # Indexes below the first confirmed one may have been pushed before the capture began.
        assert contents.lowest is not None
        floor = max(contents.lowest, contents.confirmed.floor)
        for first, last in ordered:
            if last >= floor and not contents.confirmed.holds(first, last):
                self._wait(contents.confirmed.missing(max(first, floor), last), where)

    def _wait(self, unconfirmed: Iterable[Run], where: Where) -> None:
        for run in unconfirmed:
            for new in list(self.indexes.missing(*run)):
                if len(self.pending) < MOST_PENDING:
                    at = bisect_left(self.pending, new.first, key=attrgetter("first"))
                    self.pending.insert(at, Pending(*new, where))
            self.indexes.add(*run)

    def excuse(self, stored: Stored, *, clocks: bool, clocks_ns: int) -> None:
        """Drop a waiting message whose push is confirmed now, unless it was surely delivered before the push was sent.
        With `clocks`, the times are of two clocks, and nothing is sure.
        """
        at = bisect_right(self.pending, stored.index, key=attrgetter("first")) - 1
        if at < 0:
            return
        first, last, where = self.pending[at]
        is_sure = not clocks and stored.pushed_at_ns is not None
        if is_sure and stored.pushed_at_ns is not None:
            pushed = request(stored.where, stored.pushed_at_ns, stored.requested_in)
            is_sure = arrival(where).is_before(pushed, clocks_ns)
        if stored.index <= last and not is_sure:
            rest = (Pending(first, stored.index - 1, where), Pending(stored.index + 1, last, where))
            self.pending[at : at + 1] = [pending for pending in rest if pending.first <= pending.last]

    def forget_since(self, at_ns: int) -> None:
        """Drop what was delivered since `at_ns`: nothing shows what came first."""
        self.pending = [pending for pending in self.pending if pending.where.arrived_at_ns <= at_ns]

    def note_open(self, opened: OpenPushes) -> None:
        """Note the pushes of a connection that are open at a window's end."""
        if opened.pushes:
            self.open[opened.connection_id] = list(opened.pushes)
        else:
            self.open.pop(opened.connection_id, None)

    def miss(self, connections: Connections) -> None:
        """Drop what is not settled: a hole may explain it."""
        self.pending = [pending for pending in self.pending if connections.is_settled(pending.where)]

    def end_window(self, closed: Iterable[bytes]) -> None:
        """Note that pushes stay open if their connection ended in this window."""
        for connection_id in closed:
            self._lose(self.open.pop(connection_id, []))
        while len(self.open) > MOST_CONNECTIONS:
            self._lose(self.open.pop(next(iter(self.open))))

    def _lose(self, pushed: Iterable[Moment]) -> None:
        self.lost = _firsts([*self.lost, *pushed])

    def never_confirmed(self, connections: Connections, *, clocks: bool, clocks_ns: int) -> Iterator[tuple[Where, str]]:
        """The settled deliveries from before the first open push, each with its place and a text.

        Settled deliveries after a push that stays open are dropped.
        """
        if not self.pending:
            return
        opened = _firsts([*chain.from_iterable(self.open.values()), *self.lost])
        waiting = []
        for pending in self.pending:
            at = arrival(pending.where)
            if not connections.is_settled(pending.where):
                waiting.append(pending)
            elif _is_before_all(at, opened, clocks=clocks, clocks_ns=clocks_ns):
                runs = runs_text([Run(pending.first, pending.last)])
                yield pending.where, f"{runs} delivered, but no push was confirmed with it"
            elif _is_before_all(at, self.lost, clocks=clocks, clocks_ns=clocks_ns):
                waiting.append(pending)
        self.pending = waiting


def _firsts(moments: Iterable[Moment]) -> list[Moment]:
    """The first one, and the first of another capture: what surely came before both came before all."""
    in_order = sorted(moments)
    return in_order[:1] + [one for one in in_order if one.capture_id != in_order[0].capture_id][:1]


def _is_before_all(moment: Moment, others: Iterable[Moment], *, clocks: bool, clocks_ns: int) -> bool:
    """Whether a moment surely came before all others; with two clocks in one capture (`clocks`), nothing is sure."""
    return all(not clocks and moment.is_before(other, clocks_ns) for other in others)
