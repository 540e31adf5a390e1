"""Random networks of Bamboo peers that keep to the protocol, as one tap sees their packets, and the truth.

Several peers replicate parts of a few logs with one node: ranges, sparse ranges, payloads alone, payloads from an
offset, with all kinds of settings. Proposals are interleaved, cut short, or never ended. `Network` remembers what was
sent, and `known` is a model of what follows from that. It is written from the specification, without the codec.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Final

import nacl.signing

from wirehouse_codecs.simulate.pcap_writer import CapturedPacket
from wirehouse_codecs.simulate.script import Close, Conversation, Event, Send, merge, packets
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint

PORT: Final = 9_000
SECOND: Final = 10**9
CLIENT, SERVER = Direction.CLIENT, Direction.SERVER
MOST: Final = 2**64 - 1
#: Eagerness on the wire: bits 2 and 3.
NOTIFY, LIMITED, ALL = 1, 2, 3
#: Why payloads are skipped, as columns of coverage have it.
SKIPS: Final = ("skipped_small", "skipped_large", "skipped_missing")
#: A piece: the sequence number, and whether it is the payload.
Piece = tuple[int, bool]


def other(side: Direction) -> Direction:
    return SERVER if side is CLIENT else CLIENT


def v(number: int) -> bytes:
    """A VarU64."""
    size = (number.bit_length() + 7) // 8
    return bytes([number]) if number < 248 else bytes([247 + size]) + number.to_bytes(size, "big")


def digest(data: bytes) -> bytes:
    return hashlib.blake2b(data).digest()


def yamf(data: bytes) -> bytes:
    return b"\x00\x40" + digest(data)


# The graph of links


def spine(k: int) -> int:
    return sum(3**i for i in range(k))


def lipmaa(n: int) -> int:
    k = 1
    while spine(k) < n:
        k += 1
    if spine(k) == n:
        return spine(k - 1)
    left = n
    while spine(k) != left:
        k = next(i for i in range(1, 99) if spine(i) >= left)
        if spine(k) != left:
            left -= spine(k - 1)
    return n - spine(k)


def path(high: int, low: int) -> list[int]:
    """The shortest path, ascending."""
    at, found = high, [high]
    while at > low:
        at = lipmaa(at) if lipmaa(at) >= low else at - 1
        found.append(at)
    return found[::-1]


def lower_pool(n: int) -> list[int]:
    return path(n, 1)


def upper_pool(n: int) -> list[int]:
    return path(next(spine(k) for k in range(1, 99) if spine(k) >= n), n)


class Log:
    """A log with all its entries, by sequence number from 1 on."""

    def __init__(self, random: Random, number: int, length: int, *, ends: bool) -> None:
        self.key = nacl.signing.SigningKey(digest(b"%d" % (number // 2))[:32])
        self.author, self.log_id = bytes(self.key.verify_key), number % 2
        self.length, self.ends = length, ends
        self.payloads, self.entries = {0: b""}, {0: b""}
        for seq in range(1, length + 1):
            payload = bytes(random.choices(b"abc", k=random.choice((0, 1, 9, 60, 300))))
            links = b""
            if seq > 1:
                far = yamf(self.entries[lipmaa(seq)]) if lipmaa(seq) != seq - 1 else b""
                links = far + yamf(self.entries[seq - 1])
            head = bytes([ends and seq == length]) + self.author + v(self.log_id) + v(seq)
            signed = head + links + v(len(payload)) + yamf(payload)
            self.payloads[seq] = payload
            self.entries[seq] = signed + self.key.sign(signed).signature

    def metadata(self, seq: int, *, backlink: bool) -> bytes:
        """The packet of the data channel."""
        size = len(v(len(self.payloads[seq]))) + 66 + 64
        link = yamf(self.entries[seq - 1]) if backlink else b""
        return bytes([128 + (self.ends and seq == self.length)]) + link + self.entries[seq][-size:]


@dataclass
class Wants:
    """What a side wants to get of a proposal."""

    eagerness: int = 0
    limit: int = 0
    least: int = 0
    most: int = MOST
    mandatory: bool = True


@dataclass
class Done:
    """What a side did for a proposal: as the columns of gold."""

    metadata: int = 0
    payloads: int = 0
    raw_bytes: int = 0
    compressed_bytes: int = 0
    inflated_bytes: int = 0
    notified: int = 0
    skipped: int = 0
    apologies: int = 0


@dataclass
class Proposal:
    """A proposal, and what came of it."""

    log: Log
    proposer: Direction
    sender: Direction
    id: int
    start: int
    end: int
    lower: int | None
    upper: int
    offset: int | None
    payload_only: bool
    sparse: bool
    wants: dict[Direction, Wants]
    left: list[Piece] = field(default_factory=list)
    done: Done = field(default_factory=Done)
    #: Entries of which the metadata was sent, each with its backlink or without.
    sent: dict[int, bool] = field(default_factory=dict)
    #: Entries of which the payload was sent, from its first byte. `checked`: the connection had shown their metadata.
    whole: list[int] = field(default_factory=list)
    checked: set[int] = field(default_factory=set)
    #: By reason: entries of which the payload was skipped, as far as the connection shows which these are.
    skipped: dict[str, set[int]] = field(default_factory=lambda: {reason: set() for reason in SKIPS})
    #: A payload of unknown size was sent, and no metadata can show where it ended.
    lost: bool = False
    cancelled: bool = False

    @property
    def expected(self) -> int | None:
        """The entry whose hash the proposal tells; None = it tells none."""
        if self.offset is not None:
            return self.start
        return lipmaa(self.lower) if self.lower and self.lower > 1 else None

    def pieces(self) -> list[Piece]:
        """In the order of the specification."""
        range_ = path(self.end, self.start) if self.sparse else range(self.start, self.end + 1)
        middle = [(seq, payload) for seq in range_ for payload in (False, True)]
        if self.payload_only:
            return [piece for piece in middle if piece[1]]
        if self.offset is not None:
            middle = middle[1:]
        lower = [(seq, False) for seq in lower_pool(self.start) if (self.lower or self.start) <= seq < self.start]
        upper = [(seq, False) for seq in upper_pool(self.end) if self.end < seq <= self.upper]
        return [*lower, *middle, *upper]


class Connection:
    """A client, which is the proactive side, and the node. Each hears all that the other has said before it speaks."""

    def __init__(self, random: Random, number: int, logs: list[Log], now_ns: int) -> None:
        self.random, self.logs, self.opened_ns, self.now_ns = random, logs, now_ns, now_ns
        self.client, self.server = Endpoint(f"10.0.0.{number + 1}", 40_000 + number), Endpoint("10.9.0.9", PORT)
        self.events: list[Event] = []
        self.window = random.choice((0, 1000))
        #: Of bymux, for the data channel; and of proposals: what each side may still use.
        self.stream_credit = dict.fromkeys(Direction, 0)
        self.granted = dict.fromkeys(Direction, 0)
        self.proposed = dict.fromkeys(Direction, 0)
        self.current: dict[Direction, int | None] = dict.fromkeys(Direction)
        self.open: dict[int, Proposal] = {}
        self.proposals: list[Proposal] = []
        #: Entries whose metadata was sent.
        self.shown: set[tuple[Log, int]] = set()
        self.closed = random.random() < 0.8
        for side in Direction:
            self._write(side, bytes([random.choice((0, 3))]) + v(self.window) + v(self.window))
        self._talk(random.randrange(1, 7))
        if self.closed:
            self.now_ns += SECOND
            self.events.append(Close(self.now_ns, random.choice((CLIENT, SERVER))))

    def conversation(self) -> Conversation:
        return Conversation(
            self.client,
            self.server,
            self.opened_ns,
            self.events,
            self.random.getrandbits(32),
            self.random.getrandbits(32),
        )

    # bymux

    def _write(self, side: Direction, data: bytes) -> None:
        self.now_ns += self.random.choice((1, 3, 30)) * 10**6
        self.events.append(Send(self.now_ns, side, data))

    def _packet(self, kind: int, stream: int, amount: int) -> bytes:
        width = next(i for i in range(4) if amount < 1 << 8 * 2**i)
        return bytes([kind << 5 | width, stream]) + amount.to_bytes(2**width, "big")

    def _control(self, side: Direction, data: bytes) -> None:
        self._in_parts(side, 0, data)

    def _data(self, side: Direction, data: bytes) -> None:
        lacks = len(data) - self.stream_credit[side]
        if lacks > 0:
            given = lacks + self.random.choice((0, 10, 1000))
            self._write(other(side), self._packet(0, 1, given))
            self.stream_credit[side] += given
        self.stream_credit[side] -= len(data)
        self._in_parts(side, 1, data)

    def _in_parts(self, side: Direction, stream: int, data: bytes) -> None:
        cut = self.random.choice((len(data), self.random.randint(0, len(data))))
        for part in (data[:cut], data[cut:]):
            if part:
                self._write(side, self._packet(1, stream, len(part)) + part)

    # Proposals

    def _talk(self, proposals: int) -> None:
        while proposals or self.open:
            going = [one for one in self.open.values() if one.left]
            if proposals and (not self.open or self.random.random() < 0.3):
                proposals -= 1
                self._propose()
            elif going and self.random.random() < 0.9:
                self._advance(self.random.choice(going))
            elif self.open:
                one = self.random.choice(list(self.open.values()))
                if self.random.random() < 0.1 and not proposals:
                    return
                if not one.left or self.random.random() < 0.1:
                    self._cancel(one)

    def _propose(self) -> None:
        random, log = self.random, self.random.choice(self.logs)
        proposer, sender = random.choice((CLIENT, SERVER)), random.choice((CLIENT, SERVER))
        if self.granted[proposer] == self.proposed[proposer]:
            credit = random.choice((1, 2, 50))
            self.granted[proposer] += credit
            self._control(other(proposer), b"\0" + v(credit))
        self.proposed[proposer] += 1
        start = random.randint(1, log.length)
        end = random.randint(start, min(log.length, start + 12))
        offset = random.randint(0, len(log.payloads[start])) if random.random() < 0.2 else None
        lower = None if offset is not None else random.choice((1, *lower_pool(start)))
        upper = random.choice([seq for seq in upper_pool(end) if seq <= log.length])
        number = next(n for n in range(proposer is SERVER, 99, 2) if n not in self.open)
        wants = {side: self._wanted() for side in Direction}
        one = Proposal(
            log, proposer, sender, number, start, end, lower, upper, offset,
            random.random() < 0.2, random.random() < 0.2, wants,
        )  # fmt: skip
        one.left = one.pieces()
        self.open[number] = one
        self.proposals.append(one)
        self._control(proposer, self._encoded(one))
        confirms = wants[other(proposer)]
        flags = confirms.eagerness << 5 | (not confirms.mandatory) << 4
        flags |= (confirms.least > 0) << 1 | (confirms.most < MOST)
        adjust = bytes([flags]) + v(number) + (v(confirms.limit) if confirms.eagerness == LIMITED else b"")
        adjust += (v(confirms.least) if confirms.least else b"") + (v(confirms.most) if confirms.most < MOST else b"")
        self._control(other(proposer), adjust)

    def _wanted(self) -> Wants:
        random = self.random
        mandatory = random.random() < 0.7
        return Wants(
            random.choice((NOTIFY, LIMITED, ALL, ALL, ALL)), random.choice((0, 9, 100)), random.choice((0, 0, 9)),
            random.choice((MOST, MOST, 60)), mandatory,
        )  # fmt: skip

    def _encoded(self, one: Proposal) -> bytes:
        wants = one.wants[one.proposer]
        first = 0x80 | wants.eagerness << 5 | 0x10 | (one.offset is not None) << 3 | one.payload_only << 2
        first |= one.sparse << 1 | wants.mandatory
        data = bytes([first]) + v(one.id) + one.log.author + v(one.log.log_id) + v(one.start)
        data += v(one.lower) if one.lower is not None else b""
        data += v(wants.least) + v(wants.most)
        data += b"" if one.expected is None else yamf(one.log.entries[one.expected])
        data += v(wants.limit) if wants.eagerness == LIMITED else b""
        data += v(one.end) + v(one.upper)
        return data + (v(one.offset) if one.offset is not None else b"")

    # Data

    def _switch(self, side: Direction, number: int) -> bytes:
        if self.current[side] == number and self.random.random() < 0.9:
            return b""
        self.current[side] = number
        return b"\0" + v(number)

    def _advance(self, one: Proposal) -> None:
        """The sender goes on with its next pieces."""
        data = self._switch(one.sender, one.id)
        wants = one.wants[other(one.sender)]
        if wants.eagerness == NOTIFY:
            count = self.random.randint(1, len(one.left))
            del one.left[:count]
            one.done.notified += count
            data += b"\2" if count == 1 else b"\3" + v(count)
        else:
            for _ in range(self.random.randint(1, 4)):
                if one.left:
                    data += self._piece(one, *one.left.pop(0), wants)
        self._data(one.sender, data)

    def _piece(self, one: Proposal, seq: int, is_payload: bool, wants: Wants) -> bytes:
        if not is_payload:
            backlink = seq > 1 and lipmaa(seq) != seq - 1 and seq - 1 not in one.sent
            one.sent[seq] = backlink
            self.shown.add((one.log, seq))
            one.done.metadata += 1
            return one.log.metadata(seq, backlink=backlink)
        payload = one.log.payloads[seq]
        size = len(payload)
        if size < wants.least or size > wants.most:
            return self._skip(one, seq, size > wants.most)
        if wants.eagerness == LIMITED and size > wants.limit:
            one.done.notified += 1
            return b"\2"
        if not wants.mandatory and self.random.random() < 0.2:
            return self._skip(one, seq, 2)
        one.done.payloads += 1
        is_shown = (one.log, seq) in self.shown
        if not one.offset or seq != one.start:
            one.whole.append(seq)
            one.checked |= {seq} if is_shown and not one.lost else set()
        one.lost |= one.payload_only and not is_shown
        return self._payload(one.done, payload[one.offset or 0 :] if seq == one.start else payload)

    def _skip(self, one: Proposal, seq: int, reason: int) -> bytes:
        one.done.skipped += 1
        if not one.lost:
            one.skipped[SKIPS[reason]].add(seq)
        return bytes([4 + reason])

    def _payload(self, done: Done, payload: bytes) -> bytes:
        cut = self.random.randint(0, len(payload))
        parts = [payload] if self.random.random() < 0.5 else [payload[:cut], payload[cut:]]
        data = b""
        for part in [part for part in parts if part] or [b""]:
            if not self.window or self.random.random() < 0.5:
                done.raw_bytes += len(part)
                data += b"\x08" + v(len(part)) + part
                continue
            # Elements of LZFoo that are literals.
            whole = b"".join(bytes([len(each)]) + each for each in self._literals(part))
            done.compressed_bytes += len(whole)
            done.inflated_bytes += len(part)
            data += b"\x09" + v(len(part)) + v(len(whole)) + whole
        return data

    def _literals(self, data: bytes) -> Iterator[bytes]:
        for at in range(0, len(data), 119):
            yield data[at : at + 119]

    def _cancel(self, one: Proposal) -> None:
        by = self.random.choice((CLIENT, SERVER))
        self._control(by, bytes([self.random.choice((128, 129) if one.left else (128, 130))]) + v(one.id))
        for side in self.random.sample([CLIENT, SERVER], 2):
            if side is not by:
                self._control(side, b"\x83" + v(one.id))
            self._data(side, b"\x20" + v(one.id))
            if self.current[side] == one.id:
                self.current[side] = None
        one.cancelled = True
        del self.open[one.id]


@dataclass(frozen=True)
class KnownEntry:
    """What follows of an entry from what was sent."""

    author: bytes
    log_id: int
    seq: int
    #: None: not all of its links are known.
    data: bytes | None
    verdict: str


@dataclass(frozen=True)
class Coverage:
    """What came of a log."""

    known: set[int]
    verified: set[int]
    payloads: set[int]
    #: By SKIPS, how many payloads that aren't known.
    skipped: tuple[int, ...]
    #: Addresses and ports.
    served_by: set[str]


class Network:
    """Peers, their connections to a node, and what follows from what they sent."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self.logs = [
            Log(random, number, random.choice((1, 3, 14, 30)), ends=random.random() < 0.5)
            for number in range(random.randint(1, 3))
        ]
        begins = [1_700_000_000 * SECOND + random.randrange(5 * SECOND) for _ in range(random.randint(1, 4))]
        self.connections = [Connection(random, n, self.logs, at) for n, at in enumerate(begins)]
        self.packets: list[CapturedPacket] = list(merge(packets(one.conversation()) for one in self.connections))

    def sendings(self, log: Log) -> Iterator[Proposal]:
        """The proposals by which entries of a log were sent."""
        return (one for peer in self.connections for one in peer.proposals if one.log is log)

    def known(self) -> set[KnownEntry]:
        """Each entry of which the metadata was sent."""
        found = set()
        for log in self.logs:
            whole = self._whole(log)
            valid: set[int] = set()
            for seq in sorted(whole):
                if seq == 1 or {lipmaa(seq), seq - 1} & valid:
                    valid.add(seq)
            for seq in {seq for one in self.sendings(log) for seq in one.sent}:
                data = log.entries[seq] if seq in whole else None
                found.add(KnownEntry(log.author, log.log_id, seq, data, "valid" if seq in valid else "unknown"))
        return found

    def coverage(self) -> dict[tuple[bytes, int], Coverage]:
        """By author and log id, of each log with an entry whose metadata was sent."""
        found = {}
        for log in self.logs:
            known = {seq for one in self.sendings(log) for seq in one.sent}
            if known:
                verified = {
                    one.seq
                    for one in self.known()
                    if (one.author, one.log_id, one.verdict) == (log.author, log.log_id, "valid")
                }
                payloads = {seq for one in self.sendings(log) for seq in one.checked}
                payloads |= {seq for seq in known if not log.payloads[seq]}
                skipped = (
                    len({seq for one in self.sendings(log) for seq in one.skipped[reason]} - payloads)
                    for reason in SKIPS
                )
                served_by = {
                    "{}:{}".format(*(peer.client if one.sender is CLIENT else peer.server))
                    for peer in self.connections
                    for one in peer.proposals
                    if one.log is log and one.sent
                }
                found[log.author, log.log_id] = Coverage(known, verified, payloads, tuple(skipped), served_by)
        return found

    def _whole(self, log: Log) -> set[int]:
        """Entries that can be rebuilt: each link was sent, or leads to an entry whose hash is known."""
        whole: set[int] = set()
        while True:
            more = {
                seq
                for one in self.sendings(log)
                for seq, backlink in one.sent.items()
                if all(
                    target in whole or target == one.expected or (backlink and target == seq - 1)
                    for target in {lipmaa(seq), seq - 1} - {0}
                )
            }
            if more <= whole:
                return whole
            whole |= more
