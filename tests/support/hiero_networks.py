"""Random legal networks of block nodes, and what tables should say of them: a small model of nodes and their clients.

Publishers send what they have as fast as they like, and react to what their node said a round trip ago. Nodes answer at
once, verify blocks in their order, fail and start again. Subscribers come and go. All of it is said by the encoder of
hiero_wire.py, and nobody breaks a rule.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random
from typing import Any

from tests.support.hiero_wire import MS, NODE, NONE, OTHER, Call, Line, Network

#: A node may answer SkipBlock so far below its last block.
_SKIPPED = 5
#: Of a client, from when something has arrived to when it acts on it.
_THINKS_MS = 30


@dataclass
class Session:
    """What is true of a publisher's call."""

    publisher: str
    node: str
    opened_ns: int
    headers: list[int] = field(default_factory=list)
    proven: int = 0
    acknowledged: int = 0
    publisher_code: str | None = None
    node_code: str | None = None
    #: Each header, and how the node answered it: accepted, behind, duplicate, skip, resend, ended, none.
    answers: list[list[Any]] = field(default_factory=list)


@dataclass
class Subscription:
    """What is true of a subscriber's call."""

    client: str
    node: str
    blocks: list[int] = field(default_factory=list)
    code: str | None = None


@dataclass
class Truth:
    """What is true of a network."""

    sessions: list[Session] = field(default_factory=list)
    subscriptions: list[Subscription] = field(default_factory=list)
    #: Blocks that were acknowledged.
    acknowledged: set[int] = field(default_factory=set)


def _resend(number: int, call: Call) -> None:
    call.resend(number)


class _Node:
    def __init__(self, sim: Simulation, address: str) -> None:
        self.sim, self.address = sim, address
        # Without any block it would be sent all from 0 on.
        self.last: int | None = sim.first - 1 if sim.first else None
        #: Blocks that come, and who sends them: in B one publisher, in A all.
        self.coming: dict[int, list[_Publisher]] = {}
        self.whole: set[int] = set()
        self.publishers: list[_Publisher] = []
        self.subscribers: list[_Subscriber] = []
        self.skipped: dict[int, list[_Publisher]] = {}

    @property
    def reported(self) -> int:
        return NONE if self.last is None else self.last

    @property
    def next(self) -> int:
        return self.sim.first if self.last is None else self.last + 1

    def offer(self, who: _Publisher, number: int) -> None:
        """A header has come."""
        session, new = who.session, self.sim.new
        self.drop(who)
        free = next((n for n in range(self.next, number + 1) if n not in self.coming), number)
        if number < self.next and self.last is not None:
            if new and number > self.last - _SKIPPED and self.sim.random.random() < 0.5:
                session.answers[-1][1] = "skip"
                who.say(lambda call: call.skip(number), ("skip", number))
                if who.acked_here is None or number > who.acked_here:
                    who.acknowledge(number)
                return
            session.answers[-1][1] = "duplicate"
            if new:
                session.node_code = "DUPLICATE_BLOCK"
                self.leave(who)
            last = self.last
            who.say(lambda call: call.duplicate(last), ("duplicate", last))
            return
        if new and number in self.coming:
            session.answers[-1][1] = "skip"
            self.skipped.setdefault(number, []).append(who)
            who.owed.add(number)
            who.say(lambda call: call.skip(number), ("skip", number))
            return
        if number in self.coming or number <= free:
            self.coming.setdefault(number, []).append(who)
            return
        session.answers[-1][1] = "behind"
        reported = self.reported
        who.say(lambda call: call.behind(reported), ("behind", reported))

    def prove(self, who: _Publisher, number: int) -> None:
        """A block is whole."""
        if who in self.coming.get(number, ()) and number not in self.whole:
            self.whole.add(number)
            self.sim.at(self.sim.random.choice((0, 5, 60, 200)), self.verify)

    def verify(self) -> None:
        """The next block is verified and stored, if it is whole."""
        number = self.next
        if number not in self.whole:
            return
        self.whole.discard(number)
        senders = self.coming.pop(number)
        self.skipped.pop(number, None)
        self.last = number
        told = [one for one in self.publishers if self.sim.new or one in senders]
        for one in sorted(told, key=lambda one: one not in senders):
            if one.acked_here is None or number > one.acked_here:
                one.acknowledge(number)
        if told:
            self.sim.truth.acknowledged.add(number)
        for subscriber in list(self.subscribers):
            self.sim.at(self.sim.random.randrange(5), subscriber.pump)
        self.sim.at(self.sim.random.randrange(20), self.verify)

    def leave(self, who: _Publisher) -> None:
        """A publisher's call is over."""
        self.publishers.remove(who)
        for one in self.skipped.values():
            if who in one:
                one.remove(who)
        self.drop(who)

    def drop(self, who: _Publisher) -> None:
        """A block won't be whole: who was told to skip it is asked for it."""
        for number, senders in list(self.coming.items()):
            if who not in senders or number in self.whole:
                continue
            senders.remove(who)
            if senders:
                continue
            del self.coming[number]
            others = self.skipped.pop(number, [])
            if others:
                self.coming[number] = [others[0]]
                others[0].owed.discard(number)
                others[0].resends.add(number)
                others[0].say(partial(_resend, number), ("resend", number))
                if others[1:]:
                    self.skipped[number] = others[1:]

    def fail(self, code: str) -> None:
        """All calls end, by an error or as the node starts again."""
        self.coming.clear()
        self.whole.clear()
        self.skipped.clear()
        reported = self.reported
        for who in self.publishers:
            who.session.node_code = code
            for answer in who.session.answers:
                answer[1] = answer[1] or "ended"
            who.say(lambda call: call.end(code, reported).trailers(), ("end", reported))
        self.publishers.clear()
        for one in self.subscribers:
            one.end("ERROR" if self.sim.new else "NOT_AVAILABLE")
        self.subscribers.clear()


class _Publisher:
    def __init__(self, sim: Simulation, number: int) -> None:
        self.sim, self.name = sim, f"N{number + 1}"
        self.node: _Node | None = None
        self.call: Call | None = None
        self.line: Line | None = None
        self.position = sim.first
        self.latest = 0
        self.round_trip_ns = sim.random.choice((0, 0, 5, 20, 90)) * MS
        self.ahead = sim.random.choice((1, 1, 3))
        self.gap_ms = 300.0
        self.behinds = 0
        self._reset()

    def _reset(self) -> None:
        #: What the node said: when, what, which block.
        self.inbox: list[tuple[int, str, int]] = []
        self.parts: list[tuple[str, int]] = []
        self.unanswered: list[int] = []
        self.unacknowledged: set[int] = set()
        self.acked_here: int | None = None
        #: The highest that was acknowledged as far as the publisher knows; blocks skipped that aren't.
        self.told: int | None = None
        self.waits: set[int] = set()
        self.owed: set[int] = set()
        self.resends: set[int] = set()
        self.streams: int | None = None
        self.over = False

    def say(self, what: Callable[[Call], object], meaning: tuple[str, int]) -> None:
        """The node says something on the call."""
        assert self.call is not None
        # It is heard with its first packet.
        self.inbox.append((self.sim.net.now_ns + MS, *meaning))
        what(self.call)

    def acknowledge(self, number: int) -> None:
        for answer in self.session.answers:
            if (answer[0] == number and answer[1] is None) or (
                self.sim.new and answer[1] is None and int(str(answer[0])) < number
            ):
                answer[1] = "accepted"
        self.acked_here = number
        self.session.acknowledged += 1
        self.say(lambda call: call.ack(number), ("ack", number))

    def connect(self) -> None:
        """A call, on the last connection or a new one."""
        if self.sim.over or self.call is not None:
            return
        random = self.sim.random
        if self.node is None or not random.randrange(6):
            if self.line is not None:
                self.line.close()
            self.line, self.node = None, random.choice(self.sim.nodes)
        if self.line is None or not self.line.open or not random.randrange(3):
            if self.line is not None:
                self.line.close()
            self.line = self.sim.net.line(f"10.1.0.{self.name[1:]}", self.node.address)
            self.line.round_trip_ns = self.round_trip_ns
        self._reset()
        opened_ns = self.sim.net.now_ns
        self.call = self.sim.net.publisher(self.name, self.node.address, self.line)
        self.session = Session(self.name, self.node.address, opened_ns)
        self.sim.truth.sessions.append(self.session)
        self.node.publishers.append(self)
        self.sim.at(random.randrange(10), self.act)

    def act(self) -> None:
        """React to what has arrived, and say the next thing."""
        # What is said now is captured a millisecond later.
        before = self.sim.net.now_ns + MS - self.round_trip_ns
        while self.call is not None and self.inbox and self.inbox[0][0] <= before:
            self._hear(*self.inbox.pop(0)[1:])
        if self.call is None:
            return
        if not self.sim.over or self.parts:
            self._speak()
        elif self._may_leave():
            self._leave("RESET")
            return
        if self.call is not None:
            self.sim.at(self.sim.random.choice((1, 1, 3, _THINKS_MS)), self.act)

    def _hear(self, what: str, number: int) -> None:
        if what == "ack":
            self.told = number if self.told is None else max(self.told, number)
            self.latest = max(self.latest, number)
            self.gap_ms, self.behinds = 300.0, 0
            self.unacknowledged = {one for one in self.unacknowledged if one > number}
            self.unanswered = [one for one in self.unanswered if one > number]
            self.waits = {one for one in self.waits if one > number}
            self.position = max(self.position, number + 1) if not self.parts else self.position
        elif what == "skip":
            self._drop(number)
            self.waits.add(number)
            self.unanswered = [one for one in self.unanswered if one != number]
            self.position = max(self.position, number + 1)
        elif what == "resend":
            self.waits.discard(number)
            self._drop_all()
            self.position = number
        elif what == "behind":
            self._go_behind(number)
        elif what == "duplicate":
            self._drop_all()
            self.unanswered = self.unanswered[1:]
            self.position = number + 1
            self.latest = max(self.latest, number)
            if self.sim.new:
                self._end()
        elif what == "end":
            self._end(resume=number)

    def _go_behind(self, reported: int) -> None:
        wanted = self.sim.first if reported == NONE else reported + 1
        refused = next((one for one in self.unanswered if one > wanted), None)
        if refused is None:
            return
        self.unanswered.remove(refused)
        self.unacknowledged.discard(refused)
        if self.streams is not None and self.streams <= wanted:
            # It is the answer to an earlier one.
            return
        self._drop_all()
        self.position = wanted
        if not self.behinds and not self.sim.random.randrange(3):
            self.behinds += 1
            self._leave("TOO_FAR_BEHIND")

    def _drop(self, number: int) -> None:
        if self.streams == number:
            self._drop_all()

    def _drop_all(self) -> None:
        self.parts, self.streams = [], None

    def _speak(self) -> None:
        call, node, sim = self.call, self.node, self.sim
        assert call is not None
        assert node is not None
        if self.parts:
            part, number = self.parts.pop(0)
            getattr(call, part)(number)
            if part == "proof":
                self.streams = None
                self.unacknowledged.add(number)
                self.position = number + 1
                if self in node.publishers:
                    self.session.proven += 1
                    node.prove(self, number)
            return
        random = sim.random
        if not random.randrange(150) and self._may_leave():
            self._leave("RESET")
            return
        if self.position > sim.head or len(self.unacknowledged) >= self.ahead:
            return
        number = self.position
        call.header(number)
        self.streams, self.parts = number, [("items", number), ("proof", number)]
        self.unanswered.append(number)
        if self not in node.publishers:
            # The node has ended the call, and passes it over.
            return
        self.session.headers.append(number)
        self.session.answers.append([number, None])
        if number in self.resends:
            self.resends.discard(number)
            if number >= node.next:
                return
        node.offer(self, number)
        if not random.randrange(60) and self._may_leave(within=True):
            self._fail(random.choice(("ERROR", "TIMEOUT")))

    def _may_leave(self, *, within: bool = False) -> bool:
        """Nothing that it has sent waits for its answer."""
        streams = bool(self.parts) and not within
        return not (self.unacknowledged or self.waits or self.owed or self.inbox or streams) and self._at_node

    @property
    def _at_node(self) -> bool:
        return self.node is not None and self in self.node.publishers

    def _fail(self, code: str) -> None:
        node = self.node
        assert node is not None
        self._leave(code)
        if code == "ERROR" and not node.publishers:
            for one in node.subscribers:
                one.end("ERROR" if self.sim.new else "NOT_AVAILABLE")
            node.subscribers.clear()

    def _leave(self, code: str) -> None:
        """The publisher's EndStream, and the end of the call."""
        call, node = self.call, self.node
        assert call is not None
        assert node is not None
        latest = max(self.latest, self.sim.first, 1)
        call.end_stream(code, min(self.sim.first, latest), latest)
        if self in node.publishers:
            self.session.publisher_code = code
            for answer in self.session.answers:
                answer[1] = answer[1] or "none"
            node.leave(self)
        call.half_close().trailers()
        self.call = None
        self._retry(failed=code not in ("RESET",))

    def _end(self, resume: int | None = None) -> None:
        """The node has ended the call."""
        self.call = None
        if resume is not None:
            self.position = self.sim.first if resume == NONE else resume + 1
        self._retry(failed=True)

    def _retry(self, *, failed: bool) -> None:
        self._drop_all()
        wait = self.gap_ms if failed else self.sim.random.randrange(500)
        if failed:
            self.gap_ms *= 2
        self.sim.at(wait, self.connect)


class _Subscriber:
    def __init__(self, sim: Simulation, number: int) -> None:
        self.sim, self.client = sim, f"10.2.0.{number + 1}"
        self.call: Call | None = None
        self.node: _Node | None = None

    def connect(self) -> None:
        if self.sim.over:
            return
        random = self.sim.random
        self.node = random.choice(self.sim.nodes)
        if self.node.last is None:
            self.sim.at(200, self.connect)
            return
        live = random.random() < 0.3
        self.needs = self.node.next if live else random.randint(self.sim.first, self.node.next)
        self.end_at = None if random.random() < 0.6 else self.needs + random.randrange(4)
        start = NONE if live and self.sim.new and self.end_at is None else self.needs
        if start == 0 and not self.sim.new:
            start = self.needs = 1
            self.end_at = None
        self.call = self.sim.net.subscriber(start, self.end_at, self.client, node=self.node.address)
        self.row = Subscription(self.client, self.node.address)
        self.sim.truth.subscriptions.append(self.row)
        self.node.subscribers.append(self)
        self.sim.at(1, self.pump)

    def pump(self) -> None:
        """The node sends the next block that it has."""
        call, node = self.call, self.node
        if call is None or node is None:
            return
        if self.end_at is not None and self.needs > self.end_at:
            node.subscribers.remove(self)
            self.end("SUCCESS")
        elif node.last is not None and self.needs <= node.last:
            call.deliver(self.needs)
            self.row.blocks.append(self.needs)
            self.needs += 1
            self.sim.at(self.sim.random.randrange(30), self.pump)
        elif self.sim.over or not self.sim.random.randrange(20):
            call.cancel()
            node.subscribers.remove(self)
            self._gone()

    def end(self, code: str) -> None:
        """The node ends the subscription."""
        assert self.call is not None
        self.row.code = code
        self.call.end_subscription(code)
        self._gone()

    def _gone(self) -> None:
        assert self.call is not None
        self.call.line.close()
        self.call = None
        self.sim.at(self.sim.random.randrange(20, 400), self.connect)


class Simulation:
    """A network that `seed` selects, and what is true of it."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(f"hiero network {seed}")
        self.net = Network(random.choice(("A", "B", "B")))
        self.new = self.net.profile == "B"
        self.first = random.choice((0, 91, 100))
        self.head = self.first + random.choice((0, 0, 2))
        self.truth, self.over = Truth(), False
        self.nodes = [_Node(self, address) for address in (NODE, OTHER)[: random.randint(1, 2)]]
        self.publishers = [_Publisher(self, number) for number in range(random.randint(1, 4))]
        self.subscribers = [_Subscriber(self, number) for number in range(random.randrange(4))]
        self._events: list[tuple[int, int, Callable[[], object]]] = []
        self._order = count()
        self.interval_ms = random.choice((50, 300, 1000))
        self._run()

    def at(self, ms: float, what: Callable[[], object]) -> None:
        """Something happens in so many milliseconds."""
        heapq.heappush(self._events, (self.net.now_ns + round(ms * MS), next(self._order), what))

    def _run(self) -> None:
        connects = [one.connect for one in self.publishers] + [one.connect for one in self.subscribers]
        for connect in connects:
            self.at(self.random.randrange(1000), connect)
        self._left = self.random.randint(3, 14)
        self.at(self.interval_ms, self._produce)
        for _ in range(self.random.choice((0, 0, 1, 2))):
            self.at(self.random.randrange(500, 6000), self._fail)
        end_ns = self.net.now_ns + 120_000 * MS
        while self._events and self.net.now_ns < end_ns:
            at_ns, _, what = heapq.heappop(self._events)
            self.net.now_ns = max(self.net.now_ns, at_ns)
            what()
        self.net.close()

    def _produce(self) -> None:
        self.head += 1
        self._left -= 1
        if self._left:
            self.at(self.interval_ms, self._produce)
        else:
            self.at(2000, self._stop)

    def _stop(self) -> None:
        self.over = True
        for node in self.nodes:
            for one in list(node.subscribers):
                self.at(0, one.pump)

    def _fail(self) -> None:
        if not self.over:
            code = self.random.choice(
                ("ERROR", "PERSISTENCE_FAILED", "SUCCESS") if self.new else ("INTERNAL_ERROR", "SUCCESS")
            )
            self.random.choice(self.nodes).fail(code)
