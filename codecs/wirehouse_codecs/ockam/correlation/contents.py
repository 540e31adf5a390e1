"""The contents of a stream: the indexes of confirmed pushes, when the highest rose, and what was deleted.

It judges `duplicate_index`, `index_decreases` and `pull_skips` (specification, "Pushing/pulling messages"). It computes
what a client can still read: `lag`, `lost`, and `age`, the age of the oldest message (`lag_seconds`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple

from wirehouse_codecs.core.intervals import Intervals, Run
from wirehouse_codecs.ockam.correlation.clients import StreamClient
from wirehouse_codecs.ockam.correlation.connections import MOST_CONNECTIONS
from wirehouse_codecs.ockam.correlation.events import Delivered, Moment, Stored, Where, messages_in, request, runs_text

#: Maximum number of runs of indexes that a set of a stream holds; its sets are of all its clients together.
MOST_RUNS: Final = 65_536
#: A push is compared with the highest index at its time if that rose at most this number of times until its confirm.
MOST_RISES: Final = 65_536
#: Number of the newest rises whose times are all kept. Of older ones, every second, fourth, eighth … is kept.
MOST_AGED: Final = 2_048


class Rise(NamedTuple):
    """The highest confirmed index rose to `highest`, for the `number`th time."""

    at_ns: int
    number: int
    highest: int
    capture_id: bytes

    @property
    def moment(self) -> Moment:
        """The time at which it was confirmed."""
        return Moment(self.at_ns, self.capture_id)


class Broken(NamedTuple):
    """A rule that a message breaks."""

    rule: str
    message: str


def _intervals() -> Intervals:
    return Intervals(most=MOST_RUNS)


@dataclass(slots=True)
class Contents:
    """Confirmed indexes of a stream, and which of them a pull passed over."""

    confirmed: Intervals = field(default_factory=_intervals)
    #: Number of confirmed pushes, and of their different indexes.
    confirms: int = 0
    indexes: int = 0
    lowest: int | None = None
    highest: int | None = None
    rises: list[Rise] = field(default_factory=list)
    rise_count: int = 0
    #: By connection, the highest index that was confirmed there, which its session compares.
    own: dict[bytes, int] = field(default_factory=dict)
    #: Whether an answer was captured before its request, or was held back until that came: then the times are of two
    #: clocks or two paths.
    clocks: bool = False
    #: Ranges with confirmed indexes that a response passed over.
    passed: Intervals = field(default_factory=_intervals)

    # Confirms

    def note_clocks(self, answer: Stored | Delivered, requested_at_ns: int | None) -> bool:
        """Note an answer. Returns whether it is the first that shows two clocks."""
        is_early = answer.early or (requested_at_ns is not None and requested_at_ns >= answer.where.arrived_at_ns)
        is_first = is_early and not self.clocks
        self.clocks = self.clocks or is_early
        return is_first

    def store(self, stored: Stored, clocks_ns: int) -> Broken | None:
        """Note a confirmed push; returns the rule that it breaks."""
        where, index = stored.where, stored.index
        self.confirms += 1
        own = self.own.get(where.connection_id)
        if own is None or index > own:
            self.own[where.connection_id] = index
            if own is None and len(self.own) > MOST_CONNECTIONS:
                del self.own[next(iter(self.own))]
        if not self.confirmed.add(index, index):
            is_forgotten = index < self.confirmed.floor
            return None if is_forgotten else Broken("duplicate_index", f"index {index} was confirmed before")
        self.indexes += 1
        if self.lowest is None or index < self.lowest:
            self.lowest = index
        if self.passed:
            # It can't have been passed over as a confirmed one.
            self.passed.remove(index, index)
        if self.highest is None or index > self.highest:
            self._rise(where, index)
            return None
        return self._decreases(stored, own, clocks_ns)

    def _rise(self, where: Where, index: int) -> None:
        self.highest = index
        self.rise_count += 1
        self.rises.append(Rise(where.arrived_at_ns, self.rise_count, index, where.capture_id))
        if len(self.rises) > 2 * MOST_RISES:
            del self.rises[:-MOST_RISES]

    def _decreases(self, stored: Stored, own: int | None, clocks_ns: int) -> Broken | None:
        """The rule that is broken if another connection had a higher index before the push was sent.

        If it was on the same connection, its session reports it.
        """
        if self.clocks or stored.pushed_at_ns is None or (own is not None and own > stored.index):
            return None
        pushed = request(stored.where, stored.pushed_at_ns, stored.requested_in)
        at = bisect_left(self.rises, (stored.pushed_at_ns,)) - 1
        while at >= 0 and not self.rises[at].moment.is_before(pushed, clocks_ns):
            if self.rises[at].highest <= stored.index:
                return None
            at -= 1
        if at < 0 or self.rises[at].number <= self.rise_count - MOST_RISES:
            return None
        before = self.rises[at].highest
        if before <= stored.index:
            return None
        shown = f"index {stored.index}, but {before} was confirmed before the message was pushed"
        return Broken("index_decreases", shown)

    # Deletion

    def returned(self, ordered: Sequence[tuple[int, int]]) -> Broken | None:
        """Note the indexes that a response returns; returns the broken rule if an earlier response passed over some."""
        if not self.passed:
            return None
        back = [
            confirmed
            for run in ordered
            for passed in self.passed.within(*run)
            for confirmed in self.confirmed.within(*passed)
        ]
        for run in ordered:
            self.passed.remove(*run)
        if not back:
            return None
        text = f"an earlier response passed over {runs_text(back)}, confirmed before it and returned here"
        return Broken("pull_skips", text)

    def pass_over(self, requested: int | None, ordered: Sequence[tuple[int, int]]) -> None:
        """Note a response to a pull from `requested`: it has these indexes, and none between them."""
        expected = ordered[0][0] if requested is None else requested
        for first, last in ordered:
            if expected < first and self.confirmed.overlaps(expected, first - 1):
                self.passed.add(expected, first - 1)
            expected = max(expected, last + 1)

    def gone(self, first: int, last: int) -> Iterator[Run]:
        """Confirmed indexes from `first` to `last` that a pull passed over, so that they can't be read any more."""
        for run in self.passed.within(first, last):
            yield from self.confirmed.within(*run)

    # What a client can still read

    def lag(self, position: int | None, held: int, passed: int) -> int | None:
        """Number of messages that can be read from `position` on: `held` are confirmed there, `passed` of them gone.
        None = it isn't known.
        """
        if position is None:
            return None
        if position >= max(self.confirmed.floor, self.passed.floor):
            return held - passed
        return self.indexes if not self.passed and self.lowest is not None and position <= self.lowest else None

    def age(self, position: int, now_ns: int) -> float | None:
        """The age in seconds of the oldest message that can be read from `position` on; None = it isn't known."""
        index, highest = position, self.highest or 0
        while (run := next(self.confirmed.within(index, highest), None)) is not None:
            passed = next(self.passed.within(run.first, highest), None)
            if passed is None or passed.first > run.first:
                break
            index = passed.last + 1
        if run is None:
            return 0.0
        begin = bisect_left(self.rises, run.first, key=attrgetter("highest"))
        rises = map(self.rises.__getitem__, range(begin, len(self.rises)))
        rise = next(filter(self._is_aged, rises), None)
        if rise is None:
            return None
        before = rise.number - _step(self.rise_count - rise.number)
        if before > 0 and self.rise_count - before >= MOST_RISES:
            # It may have come before those that are known.
            return None
        return max(0.0, (now_ns - rise.at_ns) / 1e9)

    def _is_aged(self, rise: Rise) -> bool:
        """Whether ages are counted from this rise. That depends only on the number of rises behind it."""
        behind = self.rise_count - rise.number
        return behind < MOST_RISES and not rise.number % _step(behind)

    def keep_rises(self, opened: Iterable[Moment], clocks_ns: int) -> None:
        """Keep the highest index at the times of the pushes that are open, and now."""
        by_capture: dict[bytes, list[int]] = {}
        for at, rise in enumerate(self.rises):
            by_capture.setdefault(rise.capture_id, []).append(at)
        needed = {len(self.rises) - 1}
        for pushed in set(opened):
            # The last one before it, of its own capture and of all others.
            own = by_capture.get(pushed.capture_id, [])
            before = bisect_left(own, bisect_left(self.rises, (pushed.at_ns,)))
            needed.update(own[before - 1 : before] if before else [])
            needed.add(bisect_left(self.rises, (pushed.at_ns - clocks_ns,)) - 1)
        needed.update(at for at, rise in enumerate(self.rises) if self._is_aged(rise))
        self.rises = [self.rises[at] for at in sorted(needed) if at >= 0]


def _step(behind: int) -> int:
    """Number of rises of which one is kept, if there are `behind` rises after them."""
    return 1 << (behind // MOST_AGED).bit_length()


def lost_to(client: StreamClient, gone: Iterable[Run]) -> int:
    """Number of these messages, which can't be read any more, that were not delivered to the client."""
    return sum(messages_in(client.delivered.missing(*run)) for run in gone)


def received(client: StreamClient, gone: Intervals) -> int:
    """Number of these messages that were delivered to the client, from its position on."""
    if client.last is None or not gone:
        return 0
    ahead = list(gone.within(client.position or 0, client.last))
    return messages_in(ahead) - lost_to(client, ahead)
