"""Block nodes with their publishers and subscribers, as simulator.py has them talk: legal, whatever happens to them.

The network makes a block at a time, and its publishers send it to their nodes: a round. Between rounds something else
happens to one node, one kind after the other: happenings.py. An incident happens once: incidents.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, Final

from wirehouse_codecs.hiero.profiles import DEFAULT_PORT, NO_BLOCK, OPEN, Service
from wirehouse_codecs.hiero.simulator import happenings, incidents
from wirehouse_codecs.hiero.simulator.dialogue import NS_PER_MS, Client, Line, Stage, Talk
from wirehouse_codecs.hiero.simulator.ledger import Block, Ledger
from wirehouse_codecs.tcp.endpoints import Endpoint

if TYPE_CHECKING:
    from wirehouse_codecs.hiero.simulator.simulator import SimulatorConfig

#: Each step sends one message.
Steps = Iterator[None]
#: The first publisher begins with this block: its node has none, and is sent all from 0 on.
FIRST_OFFERED: Final = 2
#: The reader of ranges asks once in RANGE_ROUNDS rounds, for RANGE_BLOCKS blocks.
RANGE_ROUNDS: Final = 3
RANGE_BLOCKS: Final = 2
#: Number of blocks below the last one that a publisher still has.
HELD_BLOCKS: Final = 100


class Node:
    """A block node: what it has, and who is connected."""

    def __init__(self, network: Network, number: int) -> None:
        self.endpoint = Endpoint(f"10.0.0.{number + 1}", DEFAULT_PORT)
        #: The last verified block; None = there is none.
        self.last: int | None = None
        self.publishers: list[Publisher] = []
        self.subscribers: list[Subscriber] = []
        #: Who publishes here usually.
        self.own: list[Publisher] = []
        #: Number of later blocks that are verified before its subscribers get a block.
        self.late_blocks = 0
        #: The node as a client of others.
        self.outgoing = Client(network, self.endpoint.address, number)

    @property
    def name(self) -> str:
        """The node's name, as tables have it."""
        return f"{self.endpoint.address} {self.endpoint.port}"

    @property
    def reported(self) -> int:
        """The last block, as the node reports it."""
        return NO_BLOCK if self.last is None else self.last

    @property
    def next(self) -> int:
        """The block that it waits for."""
        return 0 if self.last is None else self.last + 1


class Caller(Client):
    """A client with a call at a node, or between two."""

    def __init__(self, network: Network, address: str, number: int) -> None:
        super().__init__(network, address, number)
        self.network = network
        self.node: Node | None = None
        self._line: Line | None = None
        self._talk: Talk | None = None

    @property
    def line(self) -> Line:
        """The last connection."""
        assert self._line is not None
        return self._line

    @property
    def talk(self) -> Talk:
        """The last call."""
        assert self._talk is not None
        return self._talk

    def _join(self, node: Node, line: Line | None) -> Line:
        self.node = node
        self._line = self.connect(node.endpoint) if line is None else line
        return self._line


class Publisher(Caller):
    """A publisher, at one node or at none."""

    def __init__(self, network: Network, number: int) -> None:
        super().__init__(network, f"10.1.{number // 250}.{number % 250 + 1}", number)
        self.name = f"N{number}"
        self._attempts = 0

    def join(self, node: Node, line: Line | None = None) -> Talk:
        """A call at a node, on a connection that it has or a new one."""
        self._attempts += 1
        self._talk = self._join(node, line).publish(self.name, self._attempts)
        node.publishers.append(self)
        return self._talk

    def forsake(self) -> Node:
        """The call is over; the node where it was."""
        assert self.node is not None
        node, self.node = self.node, None
        node.publishers.remove(self)
        return node

    def leave(self, code: str) -> None:
        """End the stream and the connection."""
        last = self.forsake().last
        latest = self.network.newest if last is None else last
        self.talk.end_stream(code, max(0, latest - HELD_BLOCKS), latest).half_close().trailers()
        self.line.close()


class Subscriber(Caller):
    """A subscriber that wants all blocks."""

    def __init__(self, network: Network, number: int) -> None:
        super().__init__(network, f"10.2.{number // 250}.{number % 250 + 1}", number)
        #: The block that it needs next; None = whatever comes.
        self.needs: int | None = None if number % 2 else 0

    def join(self, node: Node, line: Line | None = None) -> None:
        """Ask a node for all blocks that are needed."""
        self._talk = self._join(node, line).call(Service.SUBSCRIBE)
        live = OPEN if self.network.profile.new else node.next
        self._talk.subscribe(live if self.needs is None else self.needs)
        node.subscribers.append(self)

    def forsake(self) -> None:
        """The call is over."""
        assert self.node is not None
        self.node.subscribers.remove(self)
        self.node = None


class Network(Stage):
    """All messages in the order of time; `advance` sends the next one."""

    def __init__(self, config: SimulatorConfig) -> None:
        super().__init__(config)
        self.ledger = Ledger(config, self.profile)
        self.newest = FIRST_OFFERED - 1
        self.nodes: list[Node] = [Node(self, number) for number in range(config.nodes)]
        self.publishers = [Publisher(self, number) for number in range(config.publishers)]
        self.subscribers = [Subscriber(self, number) for number in range(config.subscribers)]
        for publisher, node in zip(self.publishers, cycle(self.nodes), strict=False):
            node.own.append(publisher)
        #: Asks for ranges and for the status.
        self.reader = Client(self, "10.3.0.1", 0) if config.subscribers else None
        self._reading: Line | None = None
        #: How long the last round took.
        self.round_ns = 0
        self._incident_began = False
        #: Whom the incident affects, by the names of the tables' columns, and since when; None = nobody yet.
        self.affected: dict[str, Any] | None = None
        self._steps = self._story()

    def advance(self) -> bool:
        """Send the next thing; False = all was sent."""
        return next(self._steps, False) is None

    def affects(self, **who: str) -> None:
        """What the incident does is seen from now on, if there is one."""
        if self._incident_began and self.affected is None:
            self.affected = who | {"since_ns": self.now_ns}

    @property
    def more(self) -> int:
        """How many blocks are still to be made."""
        return self.config.blocks - 1 - self.newest

    # The story

    def _story(self) -> Steps:
        yield from self._begin()
        rounds = 0
        happening = cycle(happenings.order(self.config.seed))
        trouble = incidents.trouble(self.config)
        while self.more > 0:
            yield from self.round()
            rounds += 1
            if trouble is not None and rounds == trouble.round:
                yield from self._begin_incident(trouble.what, self.nodes[trouble.node])
            if not rounds % RANGE_ROUNDS:
                yield from self._read(rounds // RANGE_ROUNDS)
            if self.config.incident_rounds and not rounds % self.config.incident_rounds and self.more > 0:
                node = self.busy[rounds // self.config.incident_rounds % len(self.busy)]
                yield from self._happen(happening, node)
        yield from self._end()

    def _begin_incident(self, happening: happenings.Happening, node: Node) -> Steps:
        if happening.possible(self, node):
            self._incident_began = True
            yield from happening.act(self, node)

    def _happen(self, happening: Iterator[happenings.Happening], node: Node) -> Steps:
        """The next thing that can happen to a node."""
        able = (one for one in islice(happening, len(happenings.HAPPENINGS)) if one.possible(self, node))
        for one in able:
            yield from one.act(self, node)
            return

    def _begin(self) -> Steps:
        """The first publisher of each node sends it all blocks so far; then all others come."""
        self.newest = min(FIRST_OFFERED, self.config.blocks - 1)
        for node in self.nodes:
            if not node.own:
                continue
            first, *others = node.own
            yield from self.fill(first, node)
            for publisher in others:
                publisher.join(node)
                yield
        for subscriber, node in zip(self.subscribers, cycle(self.served), strict=False):
            yield from self.subscribe(subscriber, node)

    def _end(self) -> Steps:
        """All leave; of a last block there is only the beginning, and no proof."""
        block = self.ledger.block(self.newest + 1)
        for node in self.nodes:
            for publisher in list(node.publishers):
                if not self.profile.one_item:
                    publisher.talk.header(block).sets(block.middle[:1])
                publisher.leave("RESET")
                yield
            for subscriber in list(node.subscribers):
                subscriber.talk.cancel()
                subscriber.forsake()
                subscriber.line.close()
                yield
        if self._reading is not None:
            self._reading.close()

    @property
    def served(self) -> list[Node]:
        """Nodes with blocks."""
        return [node for node in self.nodes if node.last is not None]

    @property
    def busy(self) -> list[Node]:
        """Nodes with publishers."""
        return [node for node in self.nodes if node.publishers]

    # Messages that repeat

    def round(self, *, but: Node | None = None) -> Steps:
        """The next block, to all nodes that wait for it."""
        began_ns = self.now_ns
        self.newest += 1
        for node in self.nodes:
            if node is not but and node.publishers and node.next == self.newest:
                yield from self.publish(node, self.newest)
        self.round_ns = self.now_ns - began_ns
        self.now_ns = max(self.now_ns, began_ns + self.config.interval_ms * NS_PER_MS)
        yield

    def publish(self, node: Node, number: int) -> Steps:
        """All publishers of a node offer a block. It takes it from one, or from all if it can't skip the others."""
        block = self.ledger.block(number)
        at = number % len(node.publishers)
        first, *others = (*node.publishers[at:], *node.publishers[:at])
        senders = [first] if self.skips else [first, *others]
        for publisher in (first, *others):
            publisher.talk.header(block)
            if publisher not in senders:
                publisher.talk.skip(number)
            yield
        yield from self.send(node, block, senders)
        yield from self.verify(node, block, [first, *others])

    def send(self, node: Node, block: Block, senders: list[Publisher]) -> Steps:
        """What follows on the header; subscribers get it as it comes."""
        yield from self._forward(node, block.opening)
        for one in block.middle:
            for publisher in senders:
                publisher.talk.sets((one,))
            yield from self._forward(node, (one,))
        for publisher in senders:
            publisher.talk.proof(block).block_end(block.number)
            yield

    def verify(self, node: Node, block: Block, publishers: list[Publisher]) -> Steps:
        """The node has verified and stored a block: it is acknowledged, first to who sent it."""
        node.last = block.number
        for publisher in publishers:
            publisher.talk.ack(block.number, root=block.root)
            yield
        if node.late_blocks:
            yield from happenings.deliver(self, node, block.number - node.late_blocks)
            return
        yield from self._forward(node, block.closing)
        for subscriber in node.subscribers:
            subscriber.talk.delivered(block.number)
            subscriber.needs = block.number + 1
            yield

    def _forward(self, node: Node, sets: tuple[bytes, ...]) -> Steps:
        if node.late_blocks:
            return
        for subscriber in node.subscribers:
            subscriber.talk.forward(sets)
            yield
        yield

    def fill(self, publisher: Publisher, node: Node) -> Steps:
        """A publisher offers the newest block to a node that lacks earlier ones, and sends these."""
        talk = publisher.join(node)
        if self.newest > node.next:
            talk.header(self.ledger.block(self.newest)).behind(node.reported)
            if self.behind_ends:
                talk.half_close().trailers()
                publisher.forsake()
                publisher.join(node, publisher.line)
        yield
        while node.next <= self.newest:
            yield from self.publish(node, node.next)

    def subscribe(self, subscriber: Subscriber, node: Node, line: Line | None = None) -> Steps:
        """A subscriber comes, and gets what is there."""
        subscriber.join(node, line)
        if subscriber.needs is None:
            subscriber.needs = node.next
        while subscriber.needs < node.next:
            subscriber.talk.deliver(self.ledger.block(subscriber.needs))
            subscriber.needs += 1
            yield
        yield

    def _read(self, number: int) -> Steps:
        """The reader asks a node for its status, and for a range."""
        if self.reader is None:
            return
        node = self.served[number % len(self.served)]
        assert node.last is not None
        if self._reading is None or self._reading.node != node.endpoint:
            if self._reading is not None:
                self._reading.close()
            self._reading = self.reader.connect(node.endpoint)
        self._reading.call(Service.STATUS).server_status(0, node.last).trailers()
        yield
        talk = self._reading.call(Service.SUBSCRIBE)
        if number % 2:
            start = max(0, node.last - RANGE_BLOCKS * number)
            end = min(start + RANGE_BLOCKS - 1, node.last)
            talk.subscribe(start, end).half_close()
            for block in range(start, end + 1):
                talk.deliver(self.ledger.block(block))
                yield
            talk.status("SUCCESS").trailers()
        else:
            talk.subscribe(node.last + 1000, node.last + 1001).half_close()
            talk.status("INVALID_START_BLOCK_NUMBER").trailers()
        yield

    # The profile

    @property
    def skips(self) -> bool:
        """Whether the node sends SkipBlock to publishers of a block that another one sends."""
        return self.profile.new or self.profile.name == "A'"

    @property
    def behind_ends(self) -> bool:
        """Whether Behind ends the call."""
        return self.profile.new and self.profile.name != "B"
