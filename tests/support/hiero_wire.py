"""Block nodes and who calls them, written byte by byte from the specification: TCP, HTTP/2, gRPC and messages.

Nothing here is shared with the codec or the simulator, so an error in both can't hide. Each thing that is said is a
packet of its own and takes a millisecond. What a side says acknowledges all that the other side said before, except
what is said `unaware`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache

from wirehouse_codecs.simulate.pcap_writer import CapturedPacket

MS = 10**6
HOUR_MS = 3_600_000
PORT = 40840
NODE, OTHER = "10.0.0.1", "10.0.0.2"
#: The number of a node without blocks, and "all that come" in subscriptions.
NONE = 2**64 - 1
CLIENT, SERVER = 0, 1
#: Codes by generation: of the publisher's end, of the node's, of subscriptions.
PUBLISHER_CODES = {"RESET": 1, "TIMEOUT": 2, "ERROR": 3, "TOO_FAR_BEHIND": 4}
NODE_CODES = {
    "A": {"SUCCESS": 1, "TIMEOUT": 2, "BAD_STATE_PROOF": 4, "BEHIND": 5, "INTERNAL_ERROR": 6},
    "B": {"SUCCESS": 1, "ERROR": 3, "TIMEOUT": 4, "DUPLICATE_BLOCK": 5, "BAD_BLOCK_PROOF": 6, "PERSISTENCE_FAILED": 7},
}
SUBSCRIBER_CODES = {
    "A": {"SUCCESS": 2, "NOT_AVAILABLE": 5},
    "B": {"SUCCESS": 1, "ERROR": 3, "NOT_AVAILABLE": 6},
}
_PATHS = {
    ("A", "publish"): "/com.hedera.hapi.block.BlockStreamService/publishBlockStream",
    ("A", "subscribe"): "/com.hedera.hapi.block.BlockStreamService/subscribeBlockStream",
    ("A", "status"): "/com.hedera.hapi.block.BlockNodeService/serverStatus",
    ("B", "publish"): "/org.hiero.block.api.BlockStreamPublishService/publishBlockStream",
    ("B", "subscribe"): "/org.hiero.block.api.BlockStreamSubscribeService/subscribeBlockStream",
    ("B", "status"): "/org.hiero.block.api.BlockNodeService/serverStatus",
}
_SYN, _FIN, _RST, _ACK = 2, 1, 4, 16


# Protocol buffers


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def put(number: int, value: int | bytes) -> bytes:
    """A field; zero and no bytes are absent, as in proto3."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value) if value else b""
    return held(number, value) if value else b""


def held(number: int, value: bytes) -> bytes:
    """A field of bytes or a message, also an empty one."""
    return varint(number << 3 | 2) + varint(len(value)) + value


# Blocks


def _hash(*parts: bytes) -> bytes:
    return hashlib.sha384(b"".join(parts)).digest()


def _tree(leaves: Sequence[bytes]) -> bytes:
    """The newest shape: a perfect tree as large as possible at the left, what is left over at its right."""
    if not leaves:
        return _hash(b"\0")
    if len(leaves) == 1:
        return leaves[0]
    half = 1 << (len(leaves) - 1).bit_length() - 1
    return _hash(b"\2", _tree(leaves[:half]), _tree(leaves[half:]))


def _padded(leaves: Sequence[bytes]) -> bytes:
    """The old shape: as many leaves as a power of two."""
    level = list(leaves) or [_hash()]
    level += [_hash()] * ((1 << (len(level) - 1).bit_length()) - len(level))
    while len(level) > 1:
        level = [_hash(left, right) for left, right in zip(level[::2], level[1::2], strict=True)]
    return level[0]


@dataclass(frozen=True)
class Block:
    """A block in sets of items, each a run of fields 1: its opening, its middle, its end with the proof."""

    number: int
    opening: bytes
    middle: bytes
    closing: bytes
    root: bytes


#: Chains of blocks begin with these.
FIRST = (0, 90)


@cache
def block(number: int, profile: str = "B", fork: int = 0) -> Block:
    """A block that holds the root of the one before. `fork` changes what it holds."""
    previous = bytes(48) if number in FIRST else block(number - 1, profile).root
    if fork:
        previous = bytes([previous[0] ^ fork]) + previous[1:]
    return made(number, profile, previous, [(4, b"\x08\x01")])


def made(number: int, profile: str, previous: bytes, middle: Iterable[tuple[int, bytes]], footers: int = 1) -> Block:
    """A block with such items between the round's header and its footer."""
    state, new = bytes(48), profile == "B"
    version = put(2, 78 if new else 58)
    moment = put(1, 1_700_000_000 + number % 1000)
    own = held(4, moment) if new else held(4, previous) + held(5, moment)
    header = held(1, put(1, version) + put(2, version) + put(3, number) + own)
    opening = [header, held(3, put(1, number + 1))]
    between = [held(kind, content) for kind, content in middle]
    leaves = [*opening, *between]
    if new:
        root = _new_root(leaves, previous, state, moment)
        footer = held(12, put(1, previous) + put(2, state) + put(3, state))
        closing = [footer] * footers + [held(9, put(1, number) + held(2, put(1, b"signature")))]
    else:
        # The mock signature of test networks shows that the root is right.
        root = _old_root(leaves, previous, state)
        closing = [held(9, put(1, number) + put(2, previous) + put(3, state) + put(4, _hash(root)))]
    first, middle_items, last = (b"".join(held(1, item) for item in items) for items in (opening, between, closing))
    return Block(number, first, middle_items, last, root)


def _of(leaves: Iterable[bytes], kinds: Iterable[int]) -> list[bytes]:
    return [leaf for leaf in leaves if leaf[0] >> 3 in kinds]


def _new_root(items: Sequence[bytes], previous: bytes, state: bytes, moment: bytes) -> bytes:
    kinds = ((2, 3), (4,), (1, 5, 6, 10), (7,), (11,))
    subtrees = [_tree([_hash(b"\0", item) for item in _of(items, own)]) for own in kinds]
    top = _tree([previous, state, state, *subtrees, *[_hash(b"\0")] * 8])
    return _hash(b"\2", _hash(b"\0", moment), top)


def _old_root(items: Sequence[bytes], previous: bytes, state: bytes) -> bytes:
    given, came = (_padded([_hash(item) for item in _of(items, kinds)]) for kinds in ((2, 3, 4), (1, 5, 6, 7)))
    return _hash(_hash(previous, given), _hash(came, state))


# HTTP/2 and gRPC


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def headers(stream: int, pairs: Iterable[tuple[str, str]], *, end: bool = False) -> bytes:
    """Literal fields that no table remembers."""
    block = b""
    for name, value in pairs:
        block += b"\x10" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
    return frame(1, 4 | end, stream, block)


def message(stream: int, body: bytes) -> bytes:
    return frame(0, 0, stream, b"\0" + len(body).to_bytes(4, "big") + body)


# Connections


@dataclass
class Network:
    """Time, and the packets that a capture has."""

    profile: str = "B"
    now_ns: int = 1_700_000_000_000 * MS
    packets: list[CapturedPacket] = field(default_factory=list)
    _ports: int = 49_999
    _lines: list[Line] = field(default_factory=list)

    def wait(self, ms: float) -> None:
        """Nothing is said for so long."""
        self.now_ns += round(ms * MS)

    def line(self, client: str, node: str = NODE) -> Line:
        """A connection with its handshake and settings."""
        self._ports += 1
        line = Line(self, client, node, self._ports)
        self._lines.append(line)
        return line

    def publisher(self, name: str = "N1", node: str = NODE, line: Line | None = None) -> Call:
        """A publisher's call."""
        line = line or self.line(f"10.1.0.{name[1:]}", node)
        return Call(line, "publish", [("hiero-correlation-id", f"{name}-STR{self._ports}")])

    def subscriber(
        self,
        start: int = NONE,
        end: int | None = None,
        client: str = "10.2.0.1",
        line: Line | None = None,
        node: str = NODE,
    ) -> Call:
        """A subscription; without an end, of all that come."""
        call = Call(line or self.line(client, node), "subscribe")
        if self.profile == "B":
            return call.client(put(1, start) + put(2, NONE if end is None else end))
        return call.client(put(1, start if start != NONE else 0) + put(2, end or 0))

    def status(self, last: int, client: str = "10.3.0.1", node: str = NODE, line: Line | None = None) -> Call:
        """The node is asked for its status."""
        call = Call(line or self.line(client, node), "status").client(b"")
        own = put(3, last + 1) if self.profile == "B" else b""
        return call.server(put(2, last) + own).trailers()

    def close(self) -> Network:
        """All connections that are open end."""
        for line in self._lines:
            line.close()
        return self


class Line:
    """A TCP connection, and what both sides have sent and acknowledge."""

    def __init__(self, network: Network, client: str, node: str, port: int) -> None:
        self.network, self.ends = network, ((client, port), (node, PORT))
        self.sent = [1000, 5000]
        self.known = [5000, 1000]
        #: How long ago the node said what has arrived at the client, whose packets arrive now; and what it said when.
        self.round_trip_ns = 0
        self._said = [(0, 5000)]
        #: How many bytes each side takes; what each sent last.
        self.windows = [65_535, 65_535]
        self._last = [b"", b""]
        self.open, self._streams = True, 1
        for side, flags in ((CLIENT, _SYN), (SERVER, _SYN | _ACK), (CLIENT, _ACK)):
            self._packet(side, flags)
            self.sent[side] += bool(flags & _SYN)
        self.say(CLIENT, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0))
        self.say(SERVER, frame(4, 0, 0))

    def stream(self) -> int:
        self._streams += 2
        return self._streams - 2

    def say(self, side: int, data: bytes, *, unaware: bool = False) -> None:
        if self.open:
            self._packet(side, _ACK | 8, data, unaware=unaware)
            self.sent[side] += len(data)
            self._last[side] = data
            if side == SERVER:
                self._said.append((self.network.now_ns, self.sent[SERVER]))

    def acknowledge(self, side: int) -> None:
        """A side acknowledges what it has received, and offers its window."""
        self._packet(side, _ACK)

    def again(self, side: int) -> None:
        """A side sends its last bytes again."""
        self.sent[side] -= len(self._last[side])
        self._packet(side, _ACK | 8, self._last[side])
        self.sent[side] += len(self._last[side])

    def close(self, side: int = CLIENT, *, reset: bool = False) -> None:
        """One side ends the connection, and the other after it."""
        if not self.open:
            return
        self._packet(side, _RST if reset else _FIN | _ACK)
        self.sent[side] += 1
        if not reset:
            self._packet(1 - side, _FIN | _ACK)
            self.sent[1 - side] += 1
            self._packet(side, _ACK)
        self.open = False

    def arrived(self) -> int:
        """The number behind what the client had received when it sent what arrives now."""
        before = self.network.now_ns - self.round_trip_ns
        while len(self._said) > 1 and self._said[1][0] <= before:
            del self._said[0]
        return max(self._said[0][1], self.known[CLIENT])

    def _packet(self, side: int, flags: int, data: bytes = b"", *, unaware: bool = False) -> None:
        self.network.wait(1)
        if side == CLIENT and self.round_trip_ns:
            self.known[side] = self.arrived()
        elif not unaware:
            self.known[side] = self.sent[1 - side]
        (source, source_port), (destination, port) = self.ends[side], self.ends[1 - side]
        acknowledged = self.known[side] if flags & _ACK else 0
        ports, numbers = (source_port, port), (self.sent[side], acknowledged)
        tcp = struct.pack(">HHIIBBHHH", *ports, *numbers, 5 << 4, flags, self.windows[side], 0, 0)
        addresses = b"".join(bytes(map(int, one.split("."))) for one in (source, destination))
        ip = struct.pack(">BBHHHBBH", 0x45, 0, 40 + len(data), 0, 0, 64, 6, 0) + addresses
        self.network.packets.append(CapturedPacket(self.network.now_ns, bytes(12) + b"\x08\0" + ip + tcp + data))


class Call:
    """One call. Each method says one thing, and gives the call back."""

    def __init__(self, line: Line, service: str, metadata: Iterable[tuple[str, str]] = ()) -> None:
        self.line, self.profile, self.network = line, line.network.profile, line.network
        self.stream, self.answered, self.unaware = line.stream(), False, False
        about = [(":method", "POST"), (":scheme", "http"), (":path", _PATHS[self.profile, service])]
        about += [(":authority", "node"), ("content-type", "application/grpc"), *metadata]
        line.say(CLIENT, headers(self.stream, about))

    def wait(self, ms: float) -> Call:
        self.network.wait(ms)
        return self

    def ping(self) -> Call:
        """The node asks if the other side is there."""
        self.line.say(SERVER, frame(6, 0, 0, bytes(8)))
        return self

    def client(self, *bodies: bytes) -> Call:
        for body in bodies:
            self.line.say(CLIENT, message(self.stream, body), unaware=self.unaware)
        return self

    def server(self, *bodies: bytes) -> Call:
        self.answer()
        for body in bodies:
            self.line.say(SERVER, message(self.stream, body))
        return self

    def answer(self) -> Call:
        if not self.answered:
            self.answered = True
            self.line.say(SERVER, headers(self.stream, [(":status", "200"), ("content-type", "application/grpc")]))
        return self

    # The end

    def half_close(self) -> Call:
        self.line.say(CLIENT, frame(0, 1, self.stream))
        return self

    def trailers(self, status: int = 0) -> Call:
        self.answer()
        self.line.say(SERVER, headers(self.stream, [("grpc-status", str(status))], end=True))
        return self

    def cancel(self) -> Call:
        self.line.say(CLIENT, frame(3, 0, self.stream, struct.pack(">I", 8)))
        return self

    def reset(self) -> Call:
        self.line.say(SERVER, frame(3, 0, self.stream, struct.pack(">I", 8)))
        return self

    # Publishers

    def set(self, run: bytes) -> Call:
        return self.client(held(1, run))

    def header(self, number: int) -> Call:
        return self.set(block(number, self.profile).opening)

    def items(self, number: int) -> Call:
        return self.set(block(number, self.profile).middle)

    def proof(self, number: int, ends: int | None = None) -> Call:
        self.set(block(number, self.profile).closing)
        return self.client(held(3, put(1, number if ends is None else ends))) if self.profile == "B" else self

    def rest(self, number: int) -> Call:
        return self.items(number).proof(number)

    def block(self, number: int) -> Call:
        return self.header(number).rest(number)

    def end_stream(self, code: str | int = "RESET", earliest: int = 1, latest: int = 1) -> Call:
        told = code if isinstance(code, int) else PUBLISHER_CODES[code]
        return self.client(held(2, put(1, told) + put(2, earliest) + put(3, latest)))

    def leave(self, latest: int = 1, code: str = "RESET") -> Call:
        """End the stream, the call and the connection."""
        self.end_stream(code, min(1, latest), latest).half_close().trailers()
        self.line.close()
        return self

    # Nodes

    def ack(self, *numbers: int) -> Call:
        for number in numbers:
            body = put(1, number)
            if self.profile == "A":
                body = held(1, body + put(2, block(number, "A").root))
            self.server(held(1, body))
        return self

    def duplicate(self, number: int) -> Call:
        if self.profile == "A":
            return self.server(held(1, held(1, put(1, number) + put(3, 1))))
        return self.end("DUPLICATE_BLOCK", number).trailers()

    def behind(self, number: int) -> Call:
        return self.server(held(5, put(1, number))) if self.profile == "B" else self.end("BEHIND", number)

    def skip(self, number: int) -> Call:
        return self.server(held(3, put(1, number)))

    def resend(self, number: int) -> Call:
        return self.server(held(4, put(1, number)))

    def end(self, code: str | int, number: int = 0) -> Call:
        told = code if isinstance(code, int) else NODE_CODES[self.profile][code]
        return self.server(held(2, put(1, told) + put(2, number)))

    # Subscribers

    def deliver(self, *numbers: int) -> Call:
        for number in numbers:
            self.opening(number).ending(number)
        return self

    def opening(self, number: int) -> Call:
        one = block(number, self.profile)
        return self.server(held(2, one.opening), held(2, one.middle))

    def ending(self, number: int) -> Call:
        self.server(held(2, block(number, self.profile).closing))
        return self.server(held(3, put(1, number))) if self.profile == "B" else self

    def end_subscription(self, code: str | int) -> Call:
        told = code if isinstance(code, int) else SUBSCRIBER_CODES[self.profile][code]
        return self.server(put(1, told)).trailers()
