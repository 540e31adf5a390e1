"""Block nodes, publishers and subscribers of tests: what they say in the protocol's words, sent as real bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.hiero.correlation.events import EVENT_KINDS, event_of, order_of
from wirehouse_codecs.hiero.correlation.fold import Fold
from wirehouse_codecs.hiero.correlation.known import WAITS, Waits
from wirehouse_codecs.hiero.correlation.rows import Found, Outcome
from wirehouse_codecs.hiero.log.log import Conversation
from wirehouse_codecs.hiero.log.rows import SCHEMA
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.profiles import OPEN, PROFILES, Service
from wirehouse_codecs.hiero.simulator import dialogue
from wirehouse_codecs.hiero.simulator.http2_peer import Peer
from wirehouse_codecs.hiero.wire.blocks import BlockBuilder
from wirehouse_codecs.hiero.wire.items.cutting import cut
from wirehouse_codecs.hiero.wire.items.decoded import (
    BlockFooter,
    BlockHeader,
    BlockProof,
    ProofKind,
    Timestamp,
    Version,
    encode_footer,
    encode_header,
    encode_proof,
    encode_round_header,
)
from wirehouse_codecs.hiero.wire.items.kinds import ItemNumber, encode_item
from wirehouse_codecs.hiero.wire.messages import BlockItems, ServerStatus, ServerStatusRequest, SubscribeRequest
from wirehouse_codecs.logs.rows import VIOLATION, Log
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_codecs.tcp.reassembly import Closed, Connection, Data, Hole, Side

MS = 1_000_000
SECOND = 1000 * MS
NODE, OTHER_NODE = Endpoint("10.0.0.1", 40840), Endpoint("10.0.0.2", 40840)
C, S = Direction.CLIENT, Direction.SERVER


@dataclass(frozen=True)
class Parts:
    """A block in sets: its header, what comes between, and its end with the proof."""

    header: bytes
    items: bytes
    proof: bytes
    root: bytes = b""


@cache
def block(number: int, profile: str = "B") -> Parts:
    """A block that holds the root of the one before, if its number is above 100 and below 1,000."""
    middle = encode_item(ItemNumber.EVENT_HEADER, b"\x08\x01")
    if profile.startswith("A"):
        start = encode_header(BlockHeader(number, old=True)) + encode_round_header(number)
        proof = BlockProof(number, ProofKind.SIGNATURE, b"s", previous_block_root_hash=bytes(48))
        return Parts(start, middle, encode_proof(proof))
    previous = block(number - 1).root if 100 < number < 1000 else bytes(48)
    timestamp = Timestamp(1_700_000_000 + number % 1000)
    header = BlockHeader(number, Version(0, 78), Version(0, 78), timestamp)
    parts = Parts(
        encode_header(header) + encode_round_header(number),
        middle,
        encode_footer(BlockFooter(previous, bytes(48), bytes(48)))
        + encode_proof(BlockProof(number, ProofKind.SIGNED, b"signature")),
    )
    builder = BlockBuilder()
    for part in (parts.header, parts.items, parts.proof):
        for items in cut(part):
            builder.add(items)
    roots = builder.finish().roots
    assert roots.layout is not None
    return replace(parts, root=roots.by_layout[roots.layout])


def publisher_name(name: str) -> str:
    """How a publisher of a test is known by its correlation id."""
    return "N" + "".join(str(ord(letter)) for letter in name)


@dataclass
class World:
    """Nodes and who calls them. Each thing that is said takes a millisecond."""

    options: HieroOptions = field(default_factory=HieroOptions)
    waits: Waits = WAITS
    profile: str = "B"
    #: Every conversation goes on from its snapshot before each thing that is said.
    restored: bool = False
    now_ns: int = SECOND
    log: Log = field(default_factory=lambda: Log(SCHEMA))
    _rows: list[dict[str, Any]] = field(default_factory=list)
    _count: int = 0

    def call(self, service: Service, client: str, node: Endpoint = NODE, **options: Any) -> Call:
        """A connection with one call."""
        self._count += 1
        return Call(self, self._count, service, Endpoint(client, 50_000 + self._count), node, **options)

    def publisher(self, name: str = "P", node: Endpoint = NODE, **options: Any) -> Call:
        """A publisher's call, which has the number of its attempt in its correlation id."""
        metadata = [("hiero-correlation-id", f"{publisher_name(name)}-STR{self._count}")]
        return self.call(Service.PUBLISH, f"10.1.0.{ord(name[-1])}", node, metadata=metadata, **options)

    def subscriber(self, client: str = "10.2.0.1", start: int = OPEN, end: int | None = None, **options: Any) -> Call:
        """A subscription that has asked for blocks, from any on."""
        call = self.call(Service.SUBSCRIBE, client, **options)
        last = (0 if self.profile.startswith("A") else OPEN) if end is None else end
        call.client(SubscribeRequest(start, last, False if self.profile.startswith("A") else None))
        return call

    def wait(self, ms: float) -> None:
        """Nothing is said for so long."""
        self.now_ns += round(ms * MS)

    def place(self) -> Place:
        """The next thing is said."""
        self.now_ns += MS
        return Place(self.now_ns, 0, b"capture", self.now_ns // MS)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the log so far."""
        for batch in self.log.take():
            self._rows += batch.to_pylist()
        return self._rows

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["row_kind"] == kind]

    @property
    def broken(self) -> list[str]:
        """The rules that the log says to be broken."""
        return [row["finding"]["rule"].removeprefix("hiero.") for row in self.of(VIOLATION)]

    def told(self, ends: Sequence[int] = (), until_ms: float = 0) -> list[Outcome]:
        """What calls say together, through windows that end at `ends`; after `until_ms` of silence."""
        rows = sorted((row for row in self.rows if row["row_kind"] in EVENT_KINDS), key=order_of)
        fold, told = Fold(self.options, waits=self.waits), []
        left = list(ends)
        for row in rows:
            while left and left[0] < row["arrived_at_ns"]:
                told += fold.end_window(left.pop(0))
                state = fold.snapshot()
                fold = Fold(self.options, state, self.waits)
                assert fold.snapshot() == state
            event = event_of(row)
            if event is not None:
                told += fold.take(event)
        return told + fold.end_window(self.now_ns + round(until_ms * MS))

    def found(self, until_ms: float = 0) -> list[str]:
        """The rules that calls break together."""
        return [one.rule.name for one in self.told(until_ms=until_ms) if isinstance(one, Found)]

    def all_broken(self, until_ms: float = 0) -> list[str]:
        return sorted(self.broken + self.found(until_ms))


class Call(dialogue.Call):
    """One call on a connection of its own."""

    def __init__(
        self,
        world: World,
        number: int,
        service: Service,
        client: Endpoint,
        node: Endpoint,
        *,
        metadata: Sequence[tuple[str, str]] = (),
        opened: str = "syn",
        encoding: str | None = None,
    ) -> None:
        self.world, self.node, self.profile = world, node, PROFILES[world.profile]
        first = world.place()
        self.connection = Connection(
            number.to_bytes(16, "big"),
            opened,  # type: ignore[arg-type]
            first,
            first,
            Side(C, options=TcpOptions(), packets=1),
            Side(S, options=TcpOptions(), packets=1),
        )
        self.endpoint = client
        self.conversation = self._conversation(None)
        self.peers = {side: Peer(side, encoding=encoding) for side in Direction}
        self.at = dict.fromkeys(Direction, 0)
        #: Who says something has received what the other side said before.
        self.acknowledges = True
        #: The connection is closed: nothing is said on it any more.
        self.closed = False
        stream, request = self.peers[C].request(self.profile.path(service), metadata)
        super().__init__(self, service, stream)
        # The headers of both sides are told at once.
        self._answered = True
        self.opening = {C: self.peers[C].start() + request, S: self.peers[S].start() + self.peers[S].response(1)}
        if opened == "syn":
            for side, data in self.opening.items():
                self.say(side, data)

    def _conversation(self, snapshot: str | None) -> Conversation:
        self.world.log.client = self.endpoint
        return Conversation(self.world.log, self.connection, self.node, self.world.options, snapshot)

    def say(self, side: Direction, data: bytes) -> Call:
        if self.closed:
            return self
        self.world.log.connection_id = self.connection.connection_id
        if self.world.restored:
            self.conversation = self._conversation(self.conversation.snapshot())
        if self.acknowledges:
            self.connection.sides(side)[0].note_received(self.at[side], self.at[S if side is C else C])
        self.conversation.receive([Data(side, self.at[side], data, self.world.place())])
        self.at[side] += len(data)
        return self

    def miss(self, side: Direction, size: int = 100) -> Call:
        if self.closed:
            return self
        self.world.log.connection_id = self.connection.connection_id
        self.conversation.hole(Hole(side, self.at[side], self.at[side] + size, self.world.place()))
        self.at[side] += size
        return self

    def close(self, how: str = "fin", by: Direction | None = C, *, by_silence: bool = False) -> Call:
        if self.closed:
            return self
        self.closed = True
        self.world.log.connection_id = self.connection.connection_id
        place = self.world.place()
        if not by_silence:
            self.connection.last = place
        self.conversation.close(Closed(place, how, by))  # type: ignore[arg-type]
        return self

    def header(self, number: int) -> Call:
        return self.client(BlockItems(block(number, self.profile.name).header))

    def items(self, number: int = 0) -> Call:
        return self.client(BlockItems(block(number, self.profile.name).items))

    def proof(self, number: int) -> Call:
        return self.client(BlockItems(block(number, self.profile.name).proof))

    def rest(self, number: int) -> Call:
        """All but the header."""
        return self.items(number).proof(number).block_end(number)

    def block(self, number: int) -> Call:
        return self.header(number).rest(number)

    def end_stream(self, code: str = "RESET", earliest: int = 1, latest: int = 1) -> Call:
        return super().end_stream(code, earliest, latest)

    def deliver(self, number: int) -> Call:
        parts = block(number, self.profile.name)
        return self.server(*map(BlockItems, (parts.header, parts.items, parts.proof))).delivered(number)

    def server_status(self, last: int) -> Call:
        """The node is asked for its status."""
        own = {"next_expected_block": last + 1} if self.profile.new else {"version": b""}
        return self.client(ServerStatusRequest()).server(ServerStatus(0, last, **own))
