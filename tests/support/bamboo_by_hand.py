"""Bytes of Bamboo peers, written from the specification by no code that the codec or the simulator has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import nacl.signing

from tests.support.bamboo_networks import CLIENT, MOST, SECOND, SERVER, digest, lipmaa, v, yamf
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket
from wirehouse_codecs.simulate.script import Close, Conversation, Event, Send, packets
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint

PORT = 9_000
SAFE, GREEDY = 0, 3
#: Eagerness on the wire: all.
ALL = 3


@dataclass
class Chain:
    """A log: what each of its entries and payloads is, by sequence number."""

    seed: int = 1
    log_id: int = 0
    entries: dict[int, bytes] = field(default_factory=lambda: {0: b""})
    payloads: dict[int, bytes] = field(default_factory=lambda: {0: b""})

    @property
    def key(self) -> nacl.signing.SigningKey:
        return nacl.signing.SigningKey(digest(b"by hand %d" % self.seed)[:32])

    @property
    def author(self) -> bytes:
        return bytes(self.key.verify_key)

    def add(self, payload: bytes, *, tag: int = 0) -> Chain:
        seq = len(self.entries)
        self.payloads[seq], self.entries[seq] = payload, self.entry(seq, payload, tag=tag)
        return self

    def entry(self, seq: int, payload: bytes, *, tag: int = 0, size: int | None = None) -> bytes:
        links = b""
        if seq > 1:
            far = yamf(self.entries[lipmaa(seq)]) if lipmaa(seq) != seq - 1 else b""
            links = far + yamf(self.entries[seq - 1])
        head = bytes([tag]) + self.author + v(self.log_id) + v(seq) + links
        signed = head + v(len(payload) if size is None else size) + yamf(payload)
        return signed + self.key.sign(signed).signature

    def branch(self, after: int) -> Chain:
        """The same log up to entry `after`."""
        kept = range(after + 1)
        entries, payloads = ({seq: of[seq] for seq in kept} for of in (self.entries, self.payloads))
        return Chain(self.seed, self.log_id, entries, payloads)

    def grow(self, size: int, text: bytes = b"payload") -> Chain:
        while len(self.entries) <= size:
            self.add(b"%s %d" % (text, len(self.entries)))
        return self

    def metadata(self, seq: int, *, backlink: bool = False) -> bytes:
        """The packet of the data channel."""
        entry = self.entries[seq]
        size = len(v(len(self.payloads[seq]))) + 66 + 64
        return bytes([128 + entry[0]]) + (yamf(self.entries[seq - 1]) if backlink else b"") + entry[-size:]

    def propose(
        self, number: int, start: int, end: int | None, *, lower: int = 1, offset: int | None = None,
        payload_only: bool = False, sparse: bool = False, mandatory: bool = False, least: int = 0, most: int = MOST,
        upper: int | None = None,
    ) -> bytes:  # fmt: skip
        """The packet of the control channel, of one that wants everything."""
        first = 0x80 | ALL << 5 | (end is not None) << 4 | (offset is not None) << 3 | payload_only << 2
        data = bytes([first | sparse << 1 | mandatory]) + v(number) + self.author + v(self.log_id) + v(start)
        data += v(lower) if offset is None else b""
        data += v(least) + v(most)
        if offset is not None:
            data += yamf(self.entries[start])
        elif lower > 1:
            data += yamf(self.entries[lipmaa(lower)])
        data += b"" if end is None else v(end) + v(end if upper is None else upper)
        return data + (b"" if offset is None else v(offset))


def confirm(number: int) -> bytes:
    return bytes([ALL << 5]) + v(number)


def switch(number: int) -> bytes:
    return b"\0" + v(number)


def raw(data: bytes) -> bytes:
    return b"\x08" + v(len(data)) + data


def lz(size: int, *elements: bytes) -> bytes:
    data = b"".join(elements)
    return b"\x09" + v(size) + v(len(data)) + data


def literal(data: bytes) -> bytes:
    return bytes([len(data)]) + data


APOLOGY, UNAVAILABLE = b"\x10", b"\x06"


def bymux(kind: int, stream: int | None, amount: int | None = None, data: bytes = b"") -> bytes:
    """A packet, global without a stream."""
    numbers, widths = [], 0
    for number, shift in ((stream, 2), (amount, 0)):
        if number is not None:
            width = next(code for code in range(4) if number < 1 << 8 * 2**code)
            numbers.append(number.to_bytes(2**width, "big"))
            widths |= width << shift
    return bytes([kind << 5 | (stream is None) << 4 | widths]) + b"".join(numbers) + data


CREDIT, WRITE, PING, PONG, CLOSE, STOP_READ = range(6)


class Talk:
    """A connection of two peers: what they write, one segment after the other.

    The data channel has credit enough, and each side may propose.
    """

    def __init__(
        self, number: int = 0, at_ns: int = 1_700_000_000 * SECOND, *, modes: Sequence[int] = (SAFE, SAFE),
        window: int = 1000, step_ns: int = SECOND // 100,
    ) -> None:  # fmt: skip
        self.client, self.server = Endpoint(f"10.1.0.{number + 1}", 40_000 + number), Endpoint("10.9.0.9", PORT)
        self.opened_ns = self.now_ns = at_ns
        self._step_ns = step_ns
        self.events: list[Event] = []
        for side, mode in zip((CLIENT, SERVER), modes, strict=True):
            self.writes(side, bytes([mode]) + v(window) + v(window))
            self.writes(side, bymux(CREDIT, 1, 2**40))
        for side in (CLIENT, SERVER):
            self.control(side, b"\0" + v(1000))

    def writes(self, side: Direction, data: bytes) -> Talk:
        self.now_ns += self._step_ns
        self.events.append(Send(self.now_ns, side, data))
        return self

    def control(self, side: Direction, data: bytes) -> Talk:
        return self.writes(side, bymux(WRITE, 0, len(data), data))

    def data(self, side: Direction, *each: bytes) -> Talk:
        for data in each:
            self.writes(side, bymux(WRITE, 1, len(data), data))
        return self

    def agreed(self, proposal: bytes, number: int = 0, *, side: Direction = CLIENT) -> Talk:
        """`side` proposes, the other one confirms and switches."""
        other = SERVER if side is CLIENT else CLIENT
        return self.control(side, proposal).control(other, confirm(number)).data(other, switch(number))

    def ended(self, number: int = 0, code: int = 130) -> Talk:
        """Both cancel the proposal."""
        self.control(SERVER, bytes([code]) + v(number)).data(SERVER, b"\x20" + v(number))
        return self.control(CLIENT, b"\x83" + v(number)).data(CLIENT, b"\x20" + v(number))

    def packets(self, *, closed: bool = True) -> list[CapturedPacket]:
        events = [*self.events, Close(self.now_ns + SECOND, CLIENT)] if closed else self.events
        talk = Conversation(self.client, self.server, self.opened_ns, events, 1000, 2000)
        return list(packets(talk))


def shown(chain: Chain, seqs: Iterable[int], number: int, at_ns: int, modes: Sequence[int] = (SAFE, SAFE)) -> Talk:
    """A connection over which the server sends the metadata of these entries, from 1 on, and no payload."""
    last = max(seqs)
    talk = Talk(number, at_ns, modes=modes).agreed(chain.propose(0, 1, last))
    for seq in range(1, last + 1):
        talk.data(SERVER, chain.metadata(seq), UNAVAILABLE)
    return talk.ended()
