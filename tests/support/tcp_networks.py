"""Connections of two simulated hosts as an observer captures them: `simulate(seed)` is legal TCP, and disturbed.

Both hosts keep to RFC 9293: they acknowledge what they have received, send again what is not acknowledged (by timeout
or after three duplicate acknowledgments, in other pieces than before), and end with FIN or RST. The network loses,
delays and repeats packets on either side of the observer, and the observer misses some. Only copies with other content
and RSTs of strangers are not of the hosts.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from random import Random
from typing import Final

from tests.support.plain_reassembler import Packet

_MS: Final = 10**6
_SECOND: Final = 10**9
#: Seconds after which nothing more is simulated.
_ENDS_NS: Final = 120 * _SECOND


class Disturbance(StrEnum):
    """What happens to a connection or its capture."""

    #: The network loses packets, in front of the observer and behind it.
    LOSS = "loss"
    #: The observer misses packets that arrive.
    UNCAPTURED = "uncaptured"
    REORDERING = "reordering"
    DUPLICATION = "duplication"
    #: Segments come again with other bytes, and retransmissions are cut in other places.
    OVERLAP = "overlap"
    #: Nothing of one side is captured.
    ONE_SIDED = "one_sided"
    #: Half of the packets of one side or of both are captured.
    HALF = "half"
    #: The server has forgotten its first answer to the SYN, and gives another.
    SECOND_SYN_ACK = "second_syn_ack"
    #: A stranger sends a RST with a wrong number.
    INJECTED_RST = "injected_rst"
    #: What is lost is sent again by a timeout alone, once by one that is longer than a reader waits for a gap.
    LATE = "late_retransmission"
    #: The capture begins in the middle, often shortly before a retransmission.
    MIDDLE = "start_in_the_middle"
    WRAP = "wrap"
    #: Two observers with two clocks, each near a host.
    TWO_TAPS = "two_taps"
    SNAP_LENGTH = "snap_length"
    #: The SYN carries data.
    FAST_OPEN = "fast_open"
    #: Nothing is said for longer than a reader waits for a gap.
    PAUSE = "pause"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Simulated:
    """A captured connection, and what was sent."""

    disturbances: frozenset[Disturbance]
    packets: list[Packet]
    #: By side (the client is True): all bytes, and the sequence number of the first.
    streams: dict[bool, bytes]
    firsts: dict[bool, int]


def simulate(seed: int, disturbances: frozenset[Disturbance] | None = None) -> Simulated:
    """A connection with these disturbances, or with those that the seed selects."""
    random = Random(f"network {seed}")
    chosen = [one for one in Disturbance if random.random() < 0.22]
    if disturbances is None:
        disturbances = frozenset(chosen)
    return _Network(random, disturbances).run()


@dataclass(slots=True)
class _Host:
    """One end: positions count from the first byte, SYN has -1."""

    client: bool
    isn: int
    stream: bytes
    #: What the application has written so far, and that it writes no more.
    written: int = 0
    done: bool = False
    is_open: bool = False
    is_dead: bool = False
    sent_syn: bool = False
    peer_isn: int = 0
    una: int = -1
    nxt: int = -1
    most: int = -1
    rto_ns: int = 300 * _MS
    timer: int = 0
    duplicates: int = 0
    received: int = 0
    #: Behind a gap.
    apart: list[tuple[int, int]] = field(default_factory=list)
    fin_at: int | None = None
    unacknowledged: int = 0
    delayed: int = 0

    @property
    def end(self) -> int:
        """Position behind all that may be sent now, FIN included."""
        return self.written + self.done


class _Network:
    def __init__(self, random: Random, disturbances: frozenset[Disturbance]) -> None:
        self.random, self.disturbances = random, disturbances
        self.now = 1_700_000_000 * _SECOND
        self.begun = self.now
        self.events: list[tuple[int, int, Callable[[], None]]] = []
        self.order = count()
        self.captured: list[tuple[int, int, Packet]] = []
        self.mss = random.choice((1, 7, 100, 536, 1448))
        self.window = random.choice((1, 2, 4, 10))
        self.hosts = {client: self._host(client) for client in (True, False)}
        self.tap_ns = random.choice((-20, -3, 0, 3, 20)) * _MS
        self.late = D.LATE in disturbances
        self.forgets = D.SECOND_SYN_ACK in disturbances
        # Without losses nothing is sent again.
        self.loss = random.choice((0.03, 0.1)) if {D.LOSS, D.LATE, D.MIDDLE} & disturbances else 0.0
        self.missed = random.choice((0.03, 0.1, 0.3)) if D.UNCAPTURED in disturbances else 0.0

    def _host(self, client: bool) -> _Host:
        random = self.random
        isn = random.getrandbits(32)
        size = random.choice((0, 1, 3, 10, 30)) * self.mss + random.randrange(self.mss)
        if D.WRAP in self.disturbances:
            isn = (-random.randrange(max(size, 1) + 2)) % 2**32
        return _Host(client, isn, random.randbytes(size))

    def run(self) -> Simulated:
        client, server = self.hosts[True], self.hosts[False]
        self._plan()
        self._connect(client)
        while self.events and self.events[0][0] - self.begun < _ENDS_NS:
            self.now, _, event = heapq.heappop(self.events)
            event()
        packets = [packet for *_, packet in sorted(self.captured, key=lambda one: one[:2])]
        return Simulated(
            self.disturbances,
            self._observed(packets),
            {host.client: host.stream for host in (client, server)},
            {host.client: (host.isn + 1) % 2**32 for host in (client, server)},
        )

    def _at(self, delay_ns: int, event: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now + delay_ns, next(self.order), event))

    # Applications

    def _plan(self) -> None:
        """When both sides write, and how they end."""
        random = self.random
        pause = random.randint(11, 25) * _SECOND if D.PAUSE in self.disturbances else 0
        last = 0
        for host in self.hosts.values():
            at, written = 5 * _MS, 0
            while written < len(host.stream):
                size = min(random.randint(1, 6 * self.mss), len(host.stream) - written)
                written += size
                self._at(at, lambda host=host, written=written: self._write(host, written))  # type: ignore[misc]
                at += random.choice((0, 1, 30, 300)) * _MS
                if pause and random.random() < 0.3:
                    at, pause = at + pause, 0
            last = max(last, at)
        how = random.choice(("fin", "fin", "fin", "open", "one fin"))
        if D.ABORT in self.disturbances:
            self._at(random.randint(10 * _MS, last + _SECOND), lambda: self._abort(self.hosts[random.random() < 0.5]))
        for host in list(self.hosts.values())[: {"fin": 2, "one fin": 1, "open": 0}[how]]:
            self._at(last + random.randint(0, 500) * _MS, lambda host=host: self._finish(host))  # type: ignore[misc]

    def _write(self, host: _Host, written: int) -> None:
        host.written = max(host.written, written)
        self._push(host)

    def _finish(self, host: _Host) -> None:
        host.done = True
        self._push(host)

    def _abort(self, host: _Host) -> None:
        if host.is_open and not host.is_dead:
            host.is_dead = True
            self._send(host, host.most, rst=True)

    # Senders

    def _connect(self, client: _Host) -> None:
        if client.is_open or client.is_dead:
            return
        early = b""
        if D.FAST_OPEN in self.disturbances and D.SECOND_SYN_ACK not in self.disturbances:
            client.written = max(client.written, min(self.mss, len(client.stream)))
            early = client.stream[: client.written][: self.mss]
        self._send(client, -1, early, syn=True)
        client.most = max(client.most, len(early))
        client.nxt = max(client.nxt, 0)
        self._at(_SECOND, lambda: self._connect(client))

    def _push(self, host: _Host) -> None:
        """Send what the window allows."""
        if not host.is_open or host.is_dead:
            return
        while host.nxt < host.end and host.nxt < max(host.una, 0) + self.window * self.mss:
            host.nxt = max(host.nxt, 0)
            host.nxt = self._segment(host, host.nxt, self.mss)
        self._watch(host)

    def _segment(self, host: _Host, at: int, size: int) -> int:
        """Send up to `size` bytes from `at` on, and FIN if it follows."""
        data = host.stream[at : min(at + size, host.written)]
        fin = host.done and at + len(data) == host.written
        self._send(host, at, data, fin=fin)
        host.most = max(host.most, at + len(data) + fin)
        return at + len(data) + fin

    def _watch(self, host: _Host) -> None:
        host.timer += 1
        if max(host.una, 0) < host.most and not host.is_dead:
            timer = host.timer
            self._at(host.rto_ns, lambda: self._time_out(host, timer))

    def _time_out(self, host: _Host, timer: int) -> None:
        if host.timer != timer or host.is_dead:
            return
        if self.late and host.is_open:
            self.late = False
            self._at(14 * _SECOND, lambda: self._time_out(host, timer))
            return
        host.rto_ns = min(2 * host.rto_ns, 3 * _SECOND)
        self._retransmit(host)
        if self.random.random() < 0.5:
            # All over again.
            host.nxt = max(host.una, 0)
            self._push(host)
        self._watch(host)

    def _retransmit(self, host: _Host) -> None:
        at = max(host.una, 0)
        size = self.mss
        if D.OVERLAP in self.disturbances:
            size = self.random.randint(1, 2 * self.mss)
        self._segment(host, at, min(size, max(host.most - at, 1)))

    # Receivers

    def _receive(self, host: _Host, packet: Packet) -> None:
        if host.is_dead:
            if not packet.rst and packet.acknowledgment is not None:
                self._emit(Packet(0, host.client, packet.acknowledgment, None, rst=True))
            return
        if packet.rst:
            if host.is_open and packet.sequence == (host.peer_isn + 1 + host.received) % 2**32:
                host.is_dead = True
            return
        if packet.syn and not self._is_welcome(host, packet):
            return
        if not host.is_open and not (packet.syn or host.sent_syn):
            return
        if packet.acknowledgment is not None:
            self._acknowledged(host, packet)
        if host.client or not packet.syn:
            host.is_open = True
        at = _ahead(packet.first, host.peer_isn + 1)
        if packet.payload or packet.fin:
            self._take(host, at, packet)
        elif packet.syn and host.client:
            self._acknowledge(host)
        if not host.client and packet.syn:
            self._send(host, -1, syn=True)
            host.most = max(host.most, 0)
            host.nxt = max(host.nxt, 0)
        self._push(host)

    def _is_welcome(self, host: _Host, packet: Packet) -> bool:
        """A SYN that is new; another one is answered."""
        if host.client:
            if host.is_open:
                self._acknowledge(host)
                return False
            if packet.acknowledgment is None or _ahead(packet.acknowledgment, host.isn + 1) < 0:
                return False
        elif host.is_open:
            self._acknowledge(host)
            return False
        elif self.forgets:
            self.forgets = False
            # The answer is captured, and never arrives.
            host.peer_isn = packet.sequence
            self._send(host, -1, syn=True, lost=True)
            host.isn = self.random.getrandbits(32)
            return False
        host.peer_isn = packet.sequence
        host.sent_syn = True
        return True

    def _acknowledged(self, host: _Host, packet: Packet) -> None:
        assert packet.acknowledgment is not None
        at = _ahead(packet.acknowledgment, host.isn + 1)
        if not -1 < at + 1 <= host.most + 1:
            return
        if at > host.una:
            host.una, host.duplicates, host.rto_ns = at, 0, 300 * _MS
            host.nxt = max(host.nxt, at)
            self._watch(host)
        elif at == host.una < host.most and not packet.payload:
            host.duplicates += 1
            if host.duplicates == 3 and D.LATE not in self.disturbances:
                self._retransmit(host)

    def _take(self, host: _Host, at: int, packet: Packet) -> None:
        end = at + len(packet.payload)
        if packet.fin:
            host.fin_at = end
        in_order = at <= host.received < end
        host.apart = sorted([*host.apart, (at, end)])
        received = host.received
        for low, high in host.apart:
            if low <= host.received:
                host.received = max(host.received, high)
        host.apart = [one for one in host.apart if one[1] > host.received]
        if host.fin_at == host.received:
            host.received += 1
        host.unacknowledged += 1
        if not in_order or host.received != end or received == host.received or host.unacknowledged > 1:
            self._acknowledge(host)
            return
        host.delayed += 1
        delayed = host.delayed
        self._at(40 * _MS, lambda: self._acknowledge(host) if host.delayed == delayed else None)

    def _acknowledge(self, host: _Host) -> None:
        self._send(host, max(host.most, 0))

    # The network and its observers

    def _send(
        self,
        host: _Host,
        at: int,
        data: bytes = b"",
        *,
        syn: bool = False,
        fin: bool = False,
        rst: bool = False,
        lost: bool = False,
    ) -> None:
        has_peer = host.sent_syn or not host.client
        acknowledgment = (host.peer_isn + 1 + host.received) % 2**32 if has_peer else None
        host.unacknowledged, host.delayed = 0, host.delayed + 1
        sequence = (host.isn + 1 + at) % 2**32
        self._emit(Packet(0, host.client, sequence, acknowledgment, data, len(data), syn, fin, rst), lost=lost)

    def _emit(self, packet: Packet, *, lost: bool = False) -> None:
        random = self.random
        for _ in range(1 + (D.DUPLICATION in self.disturbances and random.random() < 0.1)):
            if random.random() < self.loss:
                continue
            before, after = (random.randint(100, 200) * 1000 for _ in range(2))
            if D.REORDERING in self.disturbances and random.random() < 0.15:
                before += random.randint(0, 5 * _MS)
            if D.REORDERING in self.disturbances and random.random() < 0.15:
                after += random.randint(0, 5 * _MS)
            self._capture(packet, before, after)
            if lost or random.random() < self.loss:
                continue
            peer = self.hosts[not packet.client]
            self._at(before + after, lambda peer=peer: self._receive(peer, packet))  # type: ignore[misc]

    def _capture(self, packet: Packet, before: int, after: int) -> None:
        taps = [before]
        if D.TWO_TAPS in self.disturbances:
            # Each direction by the observer at one end, or by both.
            near = {True: 1000, False: before + after - 1000 + self.tap_ns}
            ends = self.random.choice(((packet.client,), (packet.client,), (True, False)))
            taps = [near[end] if packet.client else near[not end] for end in ends]
        for delay in taps:
            if self.random.random() < self.missed:
                continue
            ns = self.now + delay
            self.captured.append((ns, next(self.order), packet._replace(ns=ns)))
            if D.OVERLAP in self.disturbances and packet.payload and not packet.syn and self.random.random() < 0.1:
                other = packet._replace(ns=ns, payload=bytes(byte ^ 0xFF for byte in packet.payload))
                self.captured.append((ns, next(self.order), other))

    def _observed(self, packets: list[Packet]) -> list[Packet]:
        """What the observer adds and leaves out."""
        random, chosen = self.random, self.disturbances
        if D.INJECTED_RST in chosen and packets:
            packets = self._injected(packets)
        if D.SNAP_LENGTH in chosen:
            most = random.randint(1, self.mss)
            packets = [packet._replace(payload=packet.payload[:most]) for packet in packets]
        if D.MIDDLE in chosen:
            packets = packets[self._middle(packets) :]
        if D.ONE_SIDED in chosen:
            seen = random.random() < 0.5
            packets = [packet for packet in packets if packet.client is seen]
        if D.HALF in chosen:
            halved = random.choice(((True,), (False,), (True, False)))
            packets = [packet for packet in packets if packet.client not in halved or random.random() < 0.5]
        return packets

    def _middle(self, packets: list[Packet]) -> int:
        """Where the capture begins."""
        random = self.random
        ends: dict[bool, int] = {}
        again = []
        for number, packet in enumerate(packets):
            if packet.payload:
                end = _ahead(packet.first, self.hosts[packet.client].isn) + packet.sent
                if end <= ends.get(packet.client, 0):
                    again.append(number)
                ends[packet.client] = max(end, ends.get(packet.client, 0))
        if again and random.random() < 0.5:
            return max(1, random.choice(again) - random.randint(0, 3))
        return random.randint(1, max(1, len(packets) // 2))

    def _injected(self, packets: list[Packet]) -> list[Packet]:
        random = self.random
        at = random.randrange(len(packets))
        model = packets[at]
        wrong = random.choice((random.getrandbits(32), 0, (model.sequence + random.randint(-9999, 9999)) % 2**32))
        acknowledgment = random.choice((None, model.acknowledgment))
        reset = Packet(model.ns, model.client, wrong, acknowledgment, rst=True)
        return [*packets[: at + 1], reset, *packets[at + 1 :]]


D = Disturbance


def _ahead(number: int, other: int) -> int:
    return (number - other + 2**31) % 2**32 - 2**31
