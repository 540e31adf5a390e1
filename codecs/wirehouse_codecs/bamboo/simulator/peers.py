"""Two peers of the simulator that replicate Bamboo logs: their connection, and the packets that they send.

A `Dialogue` is the connection: set-ups, bymux with its credits and its shutdown, or a connection for each channel. An
`Exchange` is one proposal on it with the cursors of both sides. In `replication.py` peers use them as the specification
wants it, in `fault_scripts.py` otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from wirehouse_codecs.bamboo.session.cursor import Piece, Plan
from wirehouse_codecs.bamboo.setup import Channel, Role, Setup
from wirehouse_codecs.bamboo.simulator.logs import Chain, Log, Published
from wirehouse_codecs.bamboo.wire import bymux_packets, varu64
from wirehouse_codecs.bamboo.wire.bymux_packets import Type
from wirehouse_codecs.bamboo.wire.encoding import encode
from wirehouse_codecs.bamboo.wire.lipmaa import has_lipmaalink, lipmaa
from wirehouse_codecs.bamboo.wire.lzfoo import Deflater
from wirehouse_codecs.bamboo.wire.messages import (
    Adjust,
    Cancel,
    Cancelled,
    CancelReason,
    CompressedPayload,
    DataPacket,
    Eagerness,
    Notify,
    PointToPoint,
    ProposalCredit,
    Propose,
    SendMode,
    SkipBytes,
    SkipPayload,
    SkipReason,
    Switch,
    send_mode,
)
from wirehouse_codecs.bamboo.wire.varu64 import MAX_U64
from wirehouse_codecs.simulate.script import PACKET_NS, ROUND_TRIP_NS, SEGMENT_BYTES, Close, Ending, Event, Send
from wirehouse_codecs.tcp.endpoints import Direction

NS_PER_MS: Final = 1_000_000
#: Time until the other side answers.
LATENCY_NS: Final = 100_000
#: Maximum time for which a segment and its share of an ACK are on the link.
_SEGMENT_NS: Final = 2 * PACKET_NS
#: Maximum size of a Write, and the credit for the data channel that a side is given at once.
MOST_WRITE_BYTES: Final = 16_384
DATA_CREDIT: Final = 1 << 18
PROPOSAL_CREDIT: Final = 4
_RAW: Final = b"\x08"
_CONTROL: Final = (ProposalCredit, Propose, Adjust, Cancel)


@dataclass(frozen=True, slots=True)
class Manner:
    """How two peers speak."""

    setups: dict[Role, Setup]
    #: The role of the side that opened the connection.
    client: Role = Role.PROACTIVE
    #: Whether the channels' streams are created, not agreed on.
    creates: bool = False
    #: Whether each channel has a connection of its own, without bymux and set-up.
    two_connections: bool = False
    #: Whether packets are also cut into several Writes.
    cuts: bool = False
    #: Whether the connection ends without a shutdown.
    resets: bool = False
    #: Share of payloads that are compressed, where there is a window.
    compressed: float = 0.5

    def mode(self, role: Role) -> SendMode:
        """How a side sends."""
        return send_mode(self.setups[role], self.setups[role.peer])

    def direction(self, role: Role) -> Direction:
        """The direction in which a side sends."""
        return Direction.CLIENT if role is self.client else Direction.SERVER


class Dialogue:
    """The packets of both sides on one connection. Each side receives the other one's packets before it sends more."""

    def __init__(self, manner: Manner, opened_ns: int, random: Random) -> None:
        self.manner, self.random = manner, random
        self.opened_ns = opened_ns
        self.now_ns = opened_ns + 2 * ROUND_TRIP_NS
        #: With the channel, if that has a connection of its own.
        self.events: list[tuple[Channel, Event]] = []
        self.streams = {Channel.CONTROL: 0, Channel.DATA: 2 if manner.creates else 1}
        #: Bytes that each side may still write to the data channel, and proposals that it may still send.
        self.data_credit = dict.fromkeys(Role, 0)
        self.credit = dict.fromkeys(Role, 0)
        self.current: dict[Role, int | None] = dict.fromkeys(Role)
        self.ids: set[int] = set()
        self._speaker: Role | None = None
        self._deflaters: dict[Role, Deflater] = {}
        self._windows = {role: manner.mode(role).window for role in Role}

    # The connection

    def begin(self) -> None:
        """Set-ups, streams, and credit for proposals."""
        if not self.manner.two_connections:
            for role in (self.manner.client, self.manner.client.peer):
                self.setup(role)
            if self.manner.creates:
                self.create_streams()
        for role in Role:
            self.say(role, ProposalCredit(PROPOSAL_CREDIT))
            self.credit[role.peer] = PROPOSAL_CREDIT

    def setup(self, role: Role) -> None:
        """A side sends its set-up."""
        self.send(role, Channel.CONTROL, encode(self.manner.setups[role]))

    def create_streams(self) -> None:
        """The proactive side creates the streams of the channels."""
        self.bymux(Role.REACTIVE, bymux_packets.Packet(Type.CREDIT, None, len(Channel)))
        for channel in Channel:
            self.bymux(Role.PROACTIVE, bymux_packets.Packet(Type.WRITE, None, self.streams[channel]))
        for role in Role:
            self.bymux(role, bymux_packets.Packet(Type.CREDIT, self.streams[Channel.CONTROL], 0))

    def send(self, role: Role, channel: Channel, data: bytes) -> None:
        """A side writes bytes to its socket."""
        if role is not self._speaker:
            self._speaker = role
            self.now_ns += LATENCY_NS
        self.events.append((channel, Send(self.now_ns, self.manner.direction(role), data)))
        self.now_ns += _SEGMENT_NS * (1 + len(data) // SEGMENT_BYTES)

    def bymux(self, role: Role, packet: bymux_packets.Packet, content: bytes = b"") -> None:
        """A side sends a packet of bymux."""
        self.send(role, Channel.CONTROL, bymux_packets.encode(packet, content))

    def write(self, role: Role, channel: Channel, data: bytes) -> None:
        """A side writes to a channel; the other gives it credit first where it has too little."""
        if self.manner.two_connections:
            self.send(role, channel, data)
            return
        if channel is Channel.DATA:
            if self.data_credit[role] < len(data):
                amount = max(DATA_CREDIT, len(data))
                self.bymux(role.peer, bymux_packets.Packet(Type.CREDIT, self.streams[channel], amount))
                self.data_credit[role] += amount
            self.data_credit[role] -= len(data)
        writes = b"".join(bymux_packets.write(self.streams[channel], piece) for piece in self._cut(data))
        self.send(role, Channel.CONTROL, writes)

    def _cut(self, data: bytes) -> Iterator[bytes]:
        at = 0
        while at < len(data):
            most = self.random.randint(1, 400) if self.manner.cuts else MOST_WRITE_BYTES
            yield data[at : at + most]
            at += most

    def say(self, role: Role, *packets: PointToPoint) -> None:
        """A side sends packets of one channel at once."""
        channel = Channel.CONTROL if isinstance(packets[0], _CONTROL) else Channel.DATA
        self.write(role, channel, b"".join(map(encode, packets)))

    def wait(self, ns: int) -> None:
        """Both sides send nothing for `ns`."""
        self.now_ns += ns

    def wait_until(self, ns: int) -> None:
        """The next packet is sent at `ns` at the earliest."""
        self.now_ns = max(self.now_ns, ns)

    def shut_down(self) -> None:
        """Both channels, and creating streams, are closed."""
        if self.manner.two_connections:
            return
        for stream_id in (self.streams[Channel.DATA], self.streams[Channel.CONTROL], None):
            self.shut(stream_id)

    def shut(self, stream_id: int | None) -> None:
        """A stream, or creating streams, is closed by both sides."""
        first = Role.PROACTIVE
        self.bymux(first, bymux_packets.Packet(Type.CLOSE, stream_id))
        self.bymux(first.peer, bymux_packets.Packet(Type.STOP_READ, stream_id))
        self.bymux(first.peer, bymux_packets.Packet(Type.CLOSE, stream_id))
        self.bymux(first, bymux_packets.Packet(Type.STOP_READ, stream_id))

    def end(self) -> None:
        """The connection ends, in order or not."""
        if self.manner.resets:
            self.close(Ending.RESET)
            return
        self.shut_down()
        self.close()

    def close(self, ending: Ending = Ending.FIN) -> None:
        """The client closes the connection, or both."""
        self.now_ns += LATENCY_NS
        for channel in Channel if self.manner.two_connections else (Channel.CONTROL,):
            self.events.append((channel, Close(self.now_ns, Direction.CLIENT, ending)))

    def take(self) -> list[tuple[Channel, Event]]:
        """The events since the last call."""
        events, self.events = self.events, []
        return events

    # What proposals share

    def new_id(self, role: Role) -> int:
        """An id that a side may use."""
        number = 0 if role is Role.PROACTIVE else 1
        while number in self.ids:
            number += 2
        self.ids.add(number)
        return number

    def spend_credit(self, role: Role) -> None:
        """A side is about to propose: the other gives it credit if it has none."""
        if not self.credit[role]:
            self.say(role.peer, ProposalCredit(PROPOSAL_CREDIT))
            self.credit[role] = PROPOSAL_CREDIT
        self.credit[role] -= 1

    def switched(self, role: Role, number: int) -> bytes:
        """What makes a proposal the current one of a side, if it isn't."""
        if self.current[role] == number:
            return b""
        self.current[role] = number
        return encode(Switch(number))

    def payload(self, role: Role, data: bytes, *, compressed: bool | None = None) -> bytes:
        """The packet of bytes of a payload; compressed, if the side may, by the share of the manner."""
        if compressed is None:
            compressed = self.random.random() < self.manner.compressed
        window = self._windows[role]
        if not compressed or not window:
            return _RAW + varu64.encode(len(data)) + data
        if role not in self._deflaters:
            self._deflaters[role] = Deflater(window)
        packed = self._deflaters[role].compress(data)
        return encode(CompressedPayload(len(data), len(packed), packed))


class Exchange:
    """A proposal: where both sides stand, and the packets that they send about it.

    `propose` and `confirm` begin it, `cancel` ends it; between them sides `send`, `notify` and so on, each from where
    it stands.
    """

    def __init__(self, dialogue: Dialogue, log: Chain, proposer: Role) -> None:
        self.dialogue, self.log, self.proposer = dialogue, log, proposer
        self.id = dialogue.new_id(proposer)
        self.plan = Plan(1, 1)
        self.index = dict.fromkeys(Role, 0)
        #: Entries whose metadata each side has sent, and bytes of the payload under its cursor.
        self._sent: dict[Role, set[int]] = {role: set() for role in Role}
        self._at = dict.fromkeys(Role, 0)

    # Control

    def propose(
        self,
        start: int = 1,
        end: int | None = None,
        *,
        lower: int = 1,
        upper: int | None = None,
        offset: int | None = None,
        eagerness: Eagerness = Eagerness.ALL,
        size_limit: int | None = None,
        smallest: int = 0,
        largest: int = MAX_U64,
        payload_only: bool = False,
        sparse: bool = False,
        mandatory: bool = False,
        expected: bytes | None = None,
    ) -> Exchange:
        """The proposer proposes."""
        lower_info = None if offset is not None else lower
        if expected is None and (lower_info is None or lower_info > 1):
            expected = self.entry(start if lower_info is None else lipmaa(lower_info)).hash
        proposal = Propose(
            id=self.id,
            author=self.log.author,
            log_id=self.log.log_id,
            start=start,
            lower_info=lower_info,
            min_payload=smallest,
            max_payload=largest,
            eagerness=eagerness,
            expected_hash=expected,
            size_limit=size_limit,
            end=end,
            upper_info=upper or end,
            offset=offset,
            payload_only=payload_only,
            sparse=sparse,
            mandatory=mandatory,
        )
        self.plan = Plan.of(proposal)
        self._at = dict.fromkeys(Role, offset or 0)
        self.dialogue.spend_credit(self.proposer)
        self.dialogue.say(self.proposer, proposal)
        return self

    def confirm(
        self, eagerness: Eagerness = Eagerness.ALL, size_limit: int | None = None, *, may_skip: bool = True
    ) -> Exchange:
        """The other side confirms."""
        self.dialogue.say(self.proposer.peer, Adjust(self.id, eagerness, size_limit, may_skip))
        return self

    def adjust(self, role: Role, **changed: Any) -> None:
        """A side adjusts."""
        adjust = Adjust(self.id, **changed)
        self.dialogue.say(role, adjust)
        places = {role: self.piece(role) for role in Role}
        self.plan = self.plan.adjusted(adjust)
        self.index = {role: self.plan.index(place) for role, place in places.items()}

    def cancel(self, role: Role, reason: CancelReason = CancelReason.END_REACHED, **shown: Any) -> None:
        """A side cancels, the other confirms that, and both do so on the data channel."""
        self.dialogue.say(role, Cancel(reason, self.id, **shown))
        self.dialogue.say(role, Cancelled(self.id))
        self.dialogue.say(role.peer, Cancel(CancelReason.CONFIRMING, self.id))
        self.dialogue.say(role.peer, Cancelled(self.id))
        self.forget()

    def forget(self) -> None:
        """Its id may be used again."""
        self.dialogue.ids.discard(self.id)
        for role, number in self.dialogue.current.items():
            if number == self.id:
                self.dialogue.current[role] = None

    # Data

    def piece(self, role: Role) -> Piece | None:
        """The cursor of a side."""
        return self.plan.piece(self.index[role])

    def entry(self, seq: int) -> Published:
        """An entry of a log that is kept."""
        assert isinstance(self.log, Log)
        return self.log.entries[seq]

    def due(self, role: Role) -> Published:
        """The entry of the piece that is due."""
        piece = self.piece(role)
        assert piece is not None
        return self.entry(piece.seq)

    def send(self, role: Role, pieces: int = 1) -> None:
        """A side sends the next pieces. A payload is sent whole, or from the cursor on."""
        sent = b"".join([self.dialogue.switched(role, self.id), *(self.bytes_due(role) for _ in range(pieces))])
        self.dialogue.write(role, Channel.DATA, sent)

    def bytes_due(self, role: Role) -> bytes:
        """The packet of the piece that is due; the cursor moves past it."""
        piece = self.piece(role)
        assert piece is not None
        published, at = self.entry(piece.seq), self._at[role]
        self.pass_over(role)
        if piece.is_payload:
            return self.dialogue.payload(role, published.payload[at:])
        backlink = has_lipmaalink(piece.seq) and piece.seq - 1 not in self._sent[role]
        self._sent[role].add(piece.seq)
        self._sent[role] = set(sorted(self._sent[role])[-2:])
        return published.metadata(backlink=backlink)

    def say(self, role: Role, *packets: PointToPoint) -> None:
        """A side sends packets of the data channel about the proposal; its cursor isn't moved."""
        switched = self.dialogue.switched(role, self.id)
        self.dialogue.write(role, Channel.DATA, switched + b"".join(map(encode, packets)))

    def pass_over(self, role: Role, pieces: int = 1) -> None:
        """The cursor of a side moves."""
        self.index[role] += pieces
        self._at[role] = 0

    def notify(self, role: Role, pieces: int = 1) -> None:
        """A side moves past pieces without sending them."""
        self.say(role, Notify(pieces, pieces != 1))
        self.pass_over(role, pieces)

    def skip(self, role: Role, reason: SkipReason) -> None:
        """A side skips a payload."""
        self.say(role, SkipPayload(reason))
        self.pass_over(role)

    def part(self, role: Role, size: int, *, compressed: bool | None = None, skips: bool = False) -> None:
        """A side sends, or skips, `size` bytes of the payload that is due."""
        published, at = self.due(role), self._at[role]
        data = published.payload[at : at + size]
        sent = encode(SkipBytes(size)) if skips else self.dialogue.payload(role, data, compressed=compressed)
        self.dialogue.write(role, Channel.DATA, self.dialogue.switched(role, self.id) + sent)
        self._at[role] += size
        if self._at[role] == len(published.payload):
            self.pass_over(role)

    def unsent(self, role: Role, packet: bytes, *after: DataPacket) -> None:
        """A side sends the packet of something that isn't due, and what takes that back."""
        sent = b"".join([self.dialogue.switched(role, self.id), packet, *map(encode, after)])
        self.dialogue.write(role, Channel.DATA, sent)
