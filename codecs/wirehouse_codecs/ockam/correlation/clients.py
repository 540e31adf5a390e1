"""One client of a stream, as the connections show it on which it pulls, saves its index and asks for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from wirehouse_codecs.core.intervals import Intervals, Run
from wirehouse_codecs.ockam.correlation.events import Got, Moment, Where, request

#: Connections by which a client is recognised; services, and rises of the answers of each, that it remembers.
MOST_RECENT: Final = 16


@dataclass(slots=True)
class Client:
    """A client of a stream: where it stands, what came to it, and what the index service told it."""

    where: Where
    stream_name: str | None = None
    partition: int | None = None
    saved: int | None = None
    position: int | None = None
    #: It was told its saved index before.
    answered: bool = False
    #: What it resumed from is known.
    resumed: bool = False
    #: The highest index that was delivered to it, and what brought messages last.
    last: int | None = None
    brought: Where | None = None
    delivered: Intervals = field(default_factory=Intervals)
    #: What responses to it went through, from the requested index to the last. Below its floor nothing is judged: that
    #: is what the client resumed from, and then what it saved.
    covered: Intervals = field(default_factory=Intervals)
    delivered_messages: int = 0
    redelivered: int = 0
    #: Messages that were passed over before it saved a higher index.
    lost: int = 0
    #: It was known by its host and address alone when messages came to it, or the stream by its name alone when it
    #: saved: what it went through isn't judged, as the order of two connections isn't sure, or its pulls aren't known.
    split: bool = False
    connections: int = 0
    #: Connections on which it was seen last, and how often messages had been missed there.
    recent: dict[bytes, int] = field(default_factory=dict)
    #: By who captured it and service, when its answers rose, to what, when that was asked for, and the capture of the
    #: answer; by connection, the highest index that was saved or answered there. They are judged under names alone.
    answers: dict[str, list[tuple[int, int, int, str]]] = field(default_factory=dict)
    own: dict[str, int] = field(default_factory=dict)
    changed: bool = False

    @property
    def runs(self) -> int:
        return len(self.delivered) + len(self.covered)

    def seen(self, where: Where, missed: int) -> None:
        """It speaks, or is spoken to. Where something was missed that is its first sign of life again."""
        self.where, self.changed = where, True
        known = self.recent.get(where.connection_id)
        if known is None:
            self.connections += 1
        if missed > (known or 0):
            self.answered = self.resumed = False
        if missed != known:
            self.recent[where.connection_id] = missed
            if len(self.recent) > MOST_RECENT:
                del self.recent[next(iter(self.recent))]

    def resume(self, index: int) -> None:
        """Its first sign of life: what came before isn't judged."""
        if not self.resumed:
            self.resumed = True
            self.covered.forget_below(index)

    def deliver(self, where: Where, requested: int | None, runs: Sequence[tuple[int, int]]) -> None:
        self.brought = where
        first, highest = runs[0]
        if len(runs) > 1:
            first, highest = min(first for first, _ in runs), max(last for _, last in runs)
        begin = first if requested is None else requested
        if requested is None:
            # Nor is it known what the response passed over.
            self.resumed = False
        self.resume(begin)
        for first, last in runs:
            new = self.delivered.add(first, last)
            self.delivered_messages += new
            self.redelivered += last - first + 1 - new
            if first < begin:
                self.covered.add(first, last)
        self.covered.add(begin, highest)
        if self.last is None or highest > self.last:
            self.last = highest

    def is_after(self, where: Where) -> bool:
        """What is said here came after what was delivered: on one connection, and by one clock. By two, what was held
        back until an answer came is told with its packet."""
        one, other = self.brought, where
        if one is None or one.connection_id != other.connection_id:
            return False
        return (one.capture_id, one.record_number) != (other.capture_id, other.record_number)

    def note_own(self, where: Where, index: int) -> None:
        """An index that the session of its connection compares with later answers."""
        key = where.connection_id.hex()
        self.own[key] = max(index, self.own.get(key, 0))
        if len(self.own) > MOST_RECENT:
            del self.own[next(iter(self.own))]

    def lowered(self, got: Got, clocks_ns: int) -> int | None:
        """A higher index that the service had answered elsewhere before this GetIndex was sent. On one connection its
        session compares them."""
        index, own = got.index or 0, self.own.get(got.where.connection_id.hex(), 0)
        risen = self.answers.setdefault(f"{got.seen_by} {got.service}", [])
        answered_ns, asked_ns = got.where.arrived_at_ns, got.requested_at_ns
        # Where an answer comes before its request, or was held back until then, two clocks tell the time.
        is_sure = asked_ns is not None and asked_ns < answered_ns
        before = None
        if is_sure and asked_ns is not None:
            asked = request(got.where, asked_ns, got.requested_in)
            for at_ns, highest, since_ns, capture in reversed(risen):
                if Moment(at_ns, bytes.fromhex(capture)).is_before(asked, clocks_ns):
                    before = highest if since_ns < asked_ns else None
                    break
        # What a hole held back may have been answered before the service began anew.
        if index and asked_ns is not None and (not risen or index > risen[-1][1]):
            risen.append((answered_ns, index, asked_ns, got.where.capture_id.hex()))
        del risen[:-MOST_RECENT]
        if len(self.answers) > MOST_RECENT:
            del self.answers[next(iter(self.answers))]
        self.note_own(got.where, index)
        return before if before is not None and before > index >= own else None

    def undelivered(self, confirmed: Intervals, end: int) -> Iterator[Run]:
        """What was confirmed and not delivered, from what it resumed from or saved to before `end`."""
        begin = self.covered.floor
        if not self.delivered.holds(begin, end - 1):
            for run in confirmed.within(begin, end - 1):
                yield from self.delivered.missing(*run)

    def move(self, saved: int | None, position: int) -> None:
        """Its record stands at `saved` at least."""
        if saved is not None and (self.saved is None or saved > self.saved):
            self.saved = saved
        if self.position is None or position > self.position:
            self.position = position

    def to_json(self) -> dict[str, Any]:
        """What `from_json` takes."""
        told = {name: getattr(self, name) for name in self.__slots__ if name != "changed"}
        runs = {name: told[name].state for name in ("delivered", "covered")}
        recent = [[one.hex(), missed] for one, missed in self.recent.items()]
        brought = None if self.brought is None else self.brought.to_json()
        return told | runs | {"where": self.where.to_json(), "brought": brought, "recent": recent}

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Client:
        """What `to_json` wrote."""
        runs = {name: Intervals.from_state(told[name]) for name in ("delivered", "covered")}
        recent = {bytes.fromhex(one): missed for one, missed in told["recent"]}
        answers = {service: [tuple(one) for one in risen] for service, risen in told["answers"].items()}
        where, brought = (None if told[name] is None else Where.from_json(told[name]) for name in ("where", "brought"))
        return cls(**told | runs | {"where": where, "brought": brought, "recent": recent, "answers": answers})
