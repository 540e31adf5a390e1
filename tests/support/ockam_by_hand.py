"""Ockam traffic by the specification alone: BARE, routed messages, TCP and pcap, without the product's encoders.

Numbers, texts and frames are written as sections 1 to 4 of the wire facts give them: uints in groups of 7 bits, texts
and data behind their length, frames of a 16-bit length around version 1 of the routed message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from wirehouse_codecs.simulate.pcap_writer import CapturedPacket

PORT = 4000
SECOND = 10**9
START = 1_750_000_000 * SECOND


# BARE


def uint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number % 128 + 128])
        number //= 128
    return out + bytes([number])


def data(value: bytes | str) -> bytes:
    value = value.encode() if isinstance(value, str) else value
    return uint(len(value)) + value


def optional(value: bytes | None) -> bytes:
    return b"\0" if value is None else b"\1" + value


def route(text: str) -> bytes:
    """Hops between `>`: a local address, or `TYPE#VALUE`."""
    hops = [hop.split("#", 1) if "#" in hop else ["0", hop] for hop in text.split(">") if hop]
    return uint(len(hops)) + b"".join(uint(int(kind)) + data(value) for kind, value in hops)


def frame(to: str, back: str, protocol: str, content: bytes) -> bytes:
    routed = uint(1) + route(to) + route(back) + data(data(protocol) + data(content))
    return struct.pack(">H", len(routed)) + routed


# Packets


def _sum(*parts: bytes) -> int:
    joined = b"".join(parts)
    joined += b"\0" * (len(joined) % 2)
    total: int = sum(struct.unpack(f">{len(joined) // 2}H", joined))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF - total


def packet(source: tuple[str, int], to: tuple[str, int], seq: int, ack: int, flags: int, payload: bytes) -> bytes:
    """An Ethernet frame with IPv4 and TCP."""
    ends = [bytes(map(int, one[0].split("."))) for one in (source, to)]
    tcp = struct.pack(">HHIIBBHHH", source[1], to[1], seq % 2**32, ack % 2**32, 0x50, flags, 65_000, 0, 0)
    check = _sum(*ends, struct.pack(">BBH", 0, 6, len(tcp) + len(payload)), tcp, payload)
    tcp = tcp[:16] + struct.pack(">H", check) + tcp[18:]
    ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp) + len(payload), 0, 0x4000, 64, 6, 0) + b"".join(ends)
    ip = ip[:10] + struct.pack(">H", _sum(ip)) + ip[12:]
    return b"\2" * 6 + b"\4" * 6 + b"\x08\x00" + ip + tcp + payload


FIN, SYN, PSH, ACK = 1, 2, 8, 16


@dataclass
class Wire:
    """A TCP connection of a host with the service, as a tap beside the service sees it."""

    talk: Talk
    host: str
    port: int
    sent: dict[str, int] = field(default_factory=lambda: {"c": 1_000, "s": 2_000_000})

    def __post_init__(self) -> None:
        self._put("c", SYN, b"", 1)
        self._put("s", SYN | ACK, b"", 1)
        self._put("c", ACK, b"")

    def _put(self, side: str, flags: int, payload: bytes, counts: int = 0) -> None:
        ends = {"c": (self.host, self.port), "s": ("10.9.9.9", PORT)}
        other = "s" if side == "c" else "c"
        ack = self.sent[other] if flags & ACK else 0
        put = packet(ends[side], ends[other], self.sent[side], ack, flags, payload)
        self.talk.now += self.talk.step
        self.talk.packets.append(CapturedPacket(self.talk.now, put))
        self.sent[side] += len(payload) + counts

    def raw(self, side: str, payload: bytes) -> Wire:
        self._put(side, PSH | ACK, payload)
        return self

    def lose(self, side: str, size: int) -> Wire:
        """Bytes of a side that the tap didn't see."""
        self.sent[side] += size
        return self

    def close(self) -> None:
        self._put("c", FIN | ACK, b"", 1)
        self._put("s", FIN | ACK, b"", 1)
        self._put("c", ACK, b"")

    # Messages: requests are `ask`, answers `say`

    def ask(self, to: str, protocol: str, content: bytes, me: str = "me") -> Wire:
        return self.raw("c", frame(to, me, protocol, content))

    def say(self, back: str, protocol: str, content: bytes, me: str = "me") -> Wire:
        return self.raw("s", frame(me, back, protocol, content))

    def create(self, name: str | None, me: str = "me") -> Wire:
        return self.ask("stream", "stream_create", optional(None if name is None else data(name)), me)

    def init(self, name: str, address: str, me: str = "me") -> Wire:
        return self.say(address, "stream_create", data(name), me)

    def opened(self, name: str, address: str, me: str = "me") -> Wire:
        return self.create(name, me).init(name, address, me)

    def push(self, address: str, number: int, what: bytes | str = b"x", me: str = "me") -> Wire:
        return self.ask(address, "stream_push", uint(number) + data(what), me)

    def confirm(self, address: str, number: int, index: int, me: str = "me", status: int = 0) -> Wire:
        return self.say(address, "stream_push", uint(number) + uint(status) + uint(index), me)

    def store(self, address: str, *indexes: int, me: str = "pub") -> Wire:
        for index in indexes:
            self.push(address, index + 1, f"d{index}", me).confirm(address, index + 1, index, me)
        return self

    def pull(self, address: str, number: int, index: int, limit: int = 100, me: str = "me") -> Wire:
        return self.ask(address, "stream_pull", uint(number) + uint(index) + uint(limit), me)

    def pulled(self, address: str, number: int, *indexes: int, me: str = "me", changed: Iterable[int] = ()) -> Wire:
        texts = [f"d{index}" + "!" * (index in changed) for index in indexes]
        listed = b"".join(uint(index) + data(text) for index, text in zip(indexes, texts, strict=True))
        return self.say(address, "stream_pull", uint(number) + uint(len(indexes)) + listed, me)

    def get(self, client: str, name: str, me: str = "me", service: str = "stream_index") -> Wire:
        return self.ask(service, "stream_index", b"\0" + data(client) + data(name), me)

    def index(self, client: str, name: str, index: int | None, me: str = "me", service: str = "stream_index") -> Wire:
        content = data(client) + data(name) + optional(None if index is None else uint(index))
        return self.say(service, "stream_index", content, me)

    def got(self, client: str, name: str, index: int | None, me: str = "me") -> Wire:
        return self.get(client, name, me).index(client, name, index, me)

    def save(self, client: str, name: str, index: int, me: str = "me") -> Wire:
        return self.ask("stream_index", "stream_index", b"\1" + data(client) + data(name) + uint(index), me)

    def error(self, back: str, reason: str = "Invalid request", me: str = "me") -> Wire:
        return self.say(back, "error", data(reason), me)


@dataclass
class Talk:
    """What one tap sees; each packet comes `step` after the one before."""

    step: int = 1_000_000
    now: int = START
    packets: list[CapturedPacket] = field(default_factory=list)
    wires: list[Wire] = field(default_factory=list)

    def open(self, host: str = "10.1.1.1") -> Wire:
        self.wires.append(Wire(self, host, 40_000 + len(self.wires)))
        return self.wires[-1]

    def wait(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)

    def close(self) -> Iterator[CapturedPacket]:
        """All connections end."""
        for wire in self.wires:
            wire.close()
        return iter(self.packets)
