"""Reads packets from the bytes of both sides of a connection: set-up, bymux, and the two channels within it.

Each side sends its set-up first, then bymux begins ("Running Over Bymux"). A packet of a channel may span several
Writes, so a read has the positions of its first and last byte in the connection. After `stop` nothing is read, and the
later bytes of a direction are its `rest`.

After missing bytes, or at a start within the connection, the reader resynchronises (`resync.py`). If bytes are missing
within a Write, only packets of its channel are lost, because the next packet of bymux begins where the Write ends. If
the header of a cut packet shows where it ends, the channel continues there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from wirehouse_codecs.bamboo.options import BambooOptions
from wirehouse_codecs.bamboo.rules import ENDS, RULE
from wirehouse_codecs.bamboo.setup import Channel, Role, Setup
from wirehouse_codecs.bamboo.wire import bymux, bymux_packets
from wirehouse_codecs.bamboo.wire.bymux import Broken, Bymux, BymuxState, Delivered
from wirehouse_codecs.bamboo.wire.channel_reader import ChannelReader
from wirehouse_codecs.bamboo.wire.encoding import decode_setup
from wirehouse_codecs.bamboo.wire.messages import PointToPoint
from wirehouse_codecs.bamboo.wire.resync import Held, Search, Writes
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.tcp.endpoints import Direction

#: A Write may announce more bytes than any connection has.
MOST_BYTES: Final = (1 << 63) - 1
AFTER_VIOLATION: Final = "after_violation"
AFTER_HOLE: Final = "no packet can be told after bytes that are missing"
STARTED_LATE: Final = "no packet can be told, the capture begins within the connection"
CUT: Final = "cut by bytes that are missing; the next packet stands where this one ends"
CUT_WRITE: Final = "no packet of the channel can be told after bytes of a Write that are missing"
UNKNOWN_STREAM: Final = "what a stream is for can't be told, it was created in bytes that are missing"


class Layer(StrEnum):
    """What a packet belongs to: `channel` in tables."""

    SETUP = "setup"
    BYMUX = "bymux"
    CONTROL = "control"
    DATA = "data"


_LAYERS: Final = {Channel.CONTROL: Layer.CONTROL, Channel.DATA: Layer.DATA}


class Read(NamedTuple):
    """A packet, and what reading finds about it."""

    role: Role
    place: Place
    layer: Layer
    #: In bytes of the direction. A Write is read when its header comes, but ends after its content.
    byte_start: int
    byte_end: int
    #: None: bytes that are no packet.
    packet: PointToPoint | bymux_packets.Packet | None
    #: At most one violation.
    broken: tuple[Broken, ...] = ()
    #: The stream's credit after a packet of bymux, as `bymux.Received`.
    credit: int | None = None
    #: The channel that a packet of bymux is about.
    channel: Channel | None = None
    #: Bytes that are no packet, as far as they are at hand; and why, if no rule states it.
    undecoded: bytes = b""
    reason: str = ""
    #: Whether it waited for bytes, or was read after a resync: later packets of the other side may be read before it.
    late: bool = False


class Rest(NamedTuple):
    """The bytes of a direction that were not read to its end, and why."""

    byte_start: int
    byte_end: int
    reason: str


@dataclass(slots=True)
class _ChannelState:
    """What one side writes to a channel."""

    reader: ChannelReader
    #: Where in the connection its unfinished packet begins.
    begun_at: int = 0
    #: Number of bytes left of a packet that missing bytes cut.
    skip: int = 0
    #: What looks for the next packets, once missing bytes cut one whose end isn't known.
    search: Writes | None = None


@dataclass(slots=True)
class _Side:
    """One direction of a connection."""

    channels: dict[Channel, _ChannelState]
    received_bytes: int = 0
    #: The begin of a set-up.
    head: bytes = b""
    #: Where reading stopped, and why.
    stopped: tuple[int, str] | None = None
    #: How many bytes came before the first packet of bymux.
    setup_bytes: int = 0
    #: Whether the set-up is over, or was before the capture.
    past_setup: bool = False
    #: What looks for the next packets, once bytes came after those that are missing.
    search: Search | None = None
    #: Bytes that arrived before may have waited for some that are missing.
    late_until_ns: int = 0
    #: Bytes of a Write to a stream that nobody knows, which aren't reported yet.
    unnamed: tuple[int, int] | None = None
    #: Cut bytes are reported up to here.
    reported_to: int = 0
    #: The last captured byte ends here.
    captured_to: int = 0
    #: What is not read begins here or later: the bytes before are missing.
    missing_to: int = 0

    def miss(self, size: int) -> None:
        """The capture lacks the next `size` bytes."""
        begin = self.received_bytes
        self.received_bytes += size
        if self.stopped is not None and max(self.stopped[0], self.missing_to) == begin:
            self.missing_to = self.received_bytes


class ReaderState(NamedTuple):
    """What a Reader carries from window to window."""

    bymux: BymuxState
    streams: dict[Channel, int]
    sides: dict[Role, _Side]


class Reader:
    """Both directions of one connection. Sans-IO; it holds no more than a packet of each channel.

    The connection is one of bymux, or that of the `channel` alone: this has no set-up, and isn't read on after a hole.
    """

    def __init__(
        self,
        options: BambooOptions,
        channel: Channel | None = None,
        *,
        started_late: bool = False,
        state: ReaderState | None = None,
    ) -> None:
        """`state` is that of an earlier reader with the same options, to continue from."""
        self._options, self._channel = options, channel
        self._bymux = Bymux(options.start())
        self._sides = {role: _Side(self._channels()) for role in Role}
        #: The stream that each channel was carried by last.
        self.streams = {channel: stream_id for stream_id, channel in self._bymux.channels.items()}
        if started_late:
            for role, side in self._sides.items():
                side.stopped = (0, STARTED_LATE)
                self._bymux.lose(role)
        if state is not None:
            self._bymux = Bymux(options.start(), state=state.bymux)
            self.streams, self._sides = state.streams, state.sides

    def _channels(self) -> dict[Channel, _ChannelState]:
        size = self._options.max_packet_bytes
        return {channel: _ChannelState(ChannelReader(channel, piece_bytes=size)) for channel in Channel}

    def receive(self, direction: Direction, data: bytes, place: Place) -> list[Read]:
        """The packets that `data` completes, in order."""
        role = self._options.role_of(direction)
        side = self._sides[role]
        start = side.received_bytes
        side.received_bytes = side.captured_to = start + len(data)
        if side.stopped is not None:
            lost = side.stopped[1] == AFTER_VIOLATION or self._channel is not None
            return [] if lost else self._search(role, data, place)
        if self._channel is not None:
            return self._deliver(role, Delivered(role, 0, self._channel, start, data), place)
        if side.past_setup:
            return self._packets(role, data, start, place)
        start -= len(side.head)
        data, side.head = side.head + data, b""
        received = decode_setup(data)
        if received is None:
            side.head = data
            return []
        assert isinstance(received.packet, Setup)
        side.past_setup, side.setup_bytes = True, received.byte_end
        end = start + received.byte_end
        broken = tuple(map(_noncanonical, received.noncanonical))
        setup = Read(role, place, Layer.SETUP, start, end, received.packet, broken)
        return [setup, *self._packets(role, data[received.byte_end :], end, place)]

    def _packets(self, role: Role, data: bytes, start: int, place: Place) -> list[Read]:
        """The packets that the bytes from `start` on complete."""
        reads: list[Read] = []
        is_passing = self._is_passing(role)
        late = is_passing or place.arrived_at_ns <= self._sides[role].late_until_ns
        #: Where the bytes begin, counted from the first packet of bymux.
        before = start - self._sides[role].setup_bytes
        for item in self._bymux.receive(role, data):
            if isinstance(item, Delivered):
                if item.channel is not None:
                    reads += self._deliver(role, item, place)
                elif self._bymux.blind and self._bymux.by_creation:
                    reads += self._leave_unnamed(role, item, place, start + len(data))
            else:
                reads.append(self._read_of(role, item, place, data[item.byte_start - before :][:1]))
                reads += self._begin_write(role, item, place) if is_passing else []
        if self._bymux.ended_by is not None:
            self.stop(role, reads[-1].byte_end)
        return [read._replace(late=True) for read in reads] if late else reads

    def _leave_unnamed(self, role: Role, content: Delivered, place: Place, received_bytes: int) -> list[Read]:
        """Bytes of a Write to a stream that nobody knows: they are reported once the Write is over."""
        side = self._sides[role]
        begin = side.setup_bytes + content.byte_start
        end = begin + len(content.data)
        side.unnamed = (begin if side.unnamed is None else side.unnamed[0], end)
        _, _, left, _ = self._bymux.reader(role).place
        if left and end == received_bytes:
            return [Read(role, place, Layer.BYMUX, end, end, None, reason=UNKNOWN_STREAM)]
        return self._report_unnamed(role, place)

    def _report_unnamed(self, role: Role, place: Place) -> list[Read]:
        side = self._sides[role]
        unnamed, side.unnamed = side.unnamed, None
        return [] if unnamed is None else [Read(role, place, Layer.BYMUX, *unnamed, None, reason=UNKNOWN_STREAM)]

    def _search(self, role: Role, data: bytes, place: Place) -> list[Read]:
        """Look for the next packets: those that are found, after the bytes before them."""
        side = self._sides[role]
        assert side.stopped is not None
        side.search = side.search or Search()
        content = side.search.take(data, self._bymux.channels)
        if content is None:
            return []
        begin = side.received_bytes - len(content)
        left_out = Read(role, place, Layer.BYMUX, side.stopped[0], begin, None, reason=side.stopped[1])
        side.search, side.stopped, side.past_setup = None, None, True
        side.channels = self._channels()
        self._bymux.find(role, begin - side.setup_bytes)
        return [left_out, *(read._replace(late=True) for read in self._packets(role, content, begin, place))]

    def _is_passing(self, role: Role) -> bool:
        """Whether packets of a channel are looked for."""
        return any(carried.search is not None for carried in self._sides[role].channels.values())

    def _begin_write(self, role: Role, received: bymux.Received, place: Place) -> list[Read]:
        """A Write, if it is to a channel whose packets are looked for."""
        side, packet = self._sides[role], received.packet
        search = None if received.channel is None else side.channels[received.channel].search
        if search is None or packet is None or packet.type is not bymux_packets.Type.WRITE:
            return []
        assert received.channel is not None
        held = search.begin(received.byte_end - packet.content_bytes, received.byte_end)
        return self._passed(role, received.channel, held, place)

    def _passed(self, role: Role, channel: Channel, writes: Iterable[Held], place: Place) -> list[Read]:
        """Contents of Writes in which no packets can be read."""
        at, layer = self._sides[role].setup_bytes, _LAYERS[channel]
        bounds = [(at + one.byte_start, at + one.byte_end) for one in writes]
        return [self._left_out(role, place, layer, begin, end, CUT_WRITE) for begin, end in bounds]

    def _left_out(self, role: Role, place: Place, layer: Layer, begin: int, end: int, reason: str) -> Read:
        """Cut bytes that aren't reported yet."""
        side, end = self._sides[role], min(end, MOST_BYTES)
        begin = min(max(begin, side.reported_to), end)
        side.reported_to = max(side.reported_to, end)
        return Read(role, place, layer, begin, end, None, reason=reason)

    def _find(self, role: Role, delivered: Delivered, place: Place) -> list[Read]:
        """Bytes of a Write to a channel whose packets are looked for."""
        side = self._sides[role]
        assert delivered.channel is not None
        carried = side.channels[delivered.channel]
        assert carried.search is not None
        writes, believed = carried.search.take(delivered.data)
        if not believed:
            return self._passed(role, delivered.channel, writes, place)
        carried.search = None
        contents = [delivered._replace(byte_start=one.byte_start, data=bytes(one.data)) for one in writes]
        return [read for content in contents for read in self._deliver(role, content, place)]

    def _read_of(self, role: Role, received: bymux.Received, place: Place, first: bytes) -> Read:
        at = self._sides[role].setup_bytes
        begin, end = at + received.byte_start, at + received.byte_end
        # What is refused has no content.
        if received.packet is not None and any(broken.rule.name in ENDS for broken in received.broken):
            end -= received.packet.content_bytes
        return Read(
            role,
            place,
            Layer.BYMUX,
            begin,
            min(end, MOST_BYTES),
            received.packet,
            received.broken,
            received.credit,
            received.channel,
            first if received.packet is None else b"",
        )

    def _deliver(self, role: Role, delivered: Delivered, place: Place) -> list[Read]:
        """The packets of a channel that the bytes of a Write complete."""
        side, channel = self._sides[role], delivered.channel
        assert channel is not None
        self.streams[channel] = delivered.stream_id
        carried = side.channels[channel]
        if carried.search is not None:
            return self._find(role, delivered, place)
        if carried.skip:
            passed = min(carried.skip, len(delivered.data))
            carried.skip -= passed
            begin = side.setup_bytes + delivered.byte_start
            left_out = [self._left_out(role, place, _LAYERS[channel], begin, begin + passed, CUT)]
            delivered = delivered._replace(byte_start=delivered.byte_start + passed, data=delivered.data[passed:])
        else:
            left_out = []
        reader, layer = carried.reader, _LAYERS[channel]
        before = reader.byte_end
        #: Where in the connection a byte of these stands, by its place in the channel.
        shift = side.setup_bytes + delivered.byte_start - before
        if not reader.unfinished:
            carried.begun_at = before + shift
        reads: list[Read] = [one for one in left_out if one.byte_end > one.byte_start]
        for one in reader.receive(delivered.data):
            start = carried.begun_at if one.byte_start < before else one.byte_start + shift
            # An unassigned first byte is reported as soon as it comes.
            first = b"" if one.packet is not None else delivered.data[one.byte_start - before :][:1]
            broken = tuple(map(_noncanonical, one.noncanonical))
            if one.rule is not None:
                broken = (Broken(one.rule, one.reason), *broken)
            end = one.byte_end + shift
            reads.append(Read(role, place, layer, start, end, one.packet, broken, undecoded=first))
        if reader.begin >= before:
            carried.begun_at = reader.begin + shift
        return reads

    # For what is read elsewhere

    @property
    def plain(self) -> Bymux | None:
        """The state of bymux, if the packets of both sides can be read and no bytes are missing."""
        sides = self._sides.values()
        is_read = all(side.past_setup and side.stopped is None for side in sides)
        return self._bymux if self._channel is None and is_read and self._bymux.plain else None

    def is_silent(self, role: Role) -> bool:
        """Whether the capture has no byte of a side, and lacks none."""
        return not self._sides[role].received_bytes

    def received_bytes(self, role: Role) -> int:
        """How many bytes of a side came, or are missing."""
        return self._sides[role].received_bytes

    def setup_bytes(self, role: Role) -> int:
        """Where the first packet of bymux of a side begins."""
        return self._sides[role].setup_bytes

    def unfinished(self, role: Role) -> tuple[bytes, int] | None:
        """The unfinished packet of the data channel, and its position in the connection. None: unknown."""
        carried = self._sides[role].channels[Channel.DATA]
        begun = carried.reader.begun
        return None if begun is None else (begun, carried.begun_at)

    def go_on(self, role: Role, received_bytes: int) -> None:
        """Note that the first `received_bytes` bytes of a side were received, and read elsewhere."""
        self._sides[role].received_bytes = self._sides[role].captured_to = received_bytes

    def read_on(self, role: Role, begun: bytes, read_bytes: int, begun_at: int) -> None:
        """`read_bytes` of the data channel, from the unfinished packet on, were read elsewhere; `begun` is left."""
        carried, size = self._sides[role].channels[Channel.DATA], self._options.max_packet_bytes
        at = carried.reader.begin + read_bytes
        carried.reader, carried.begun_at = ChannelReader(Channel.DATA, size, at), begun_at
        carried.reader.receive(begun)
        self.streams[Channel.DATA] = {channel: stream_id for stream_id, channel in self._bymux.channels.items()}[
            Channel.DATA
        ]

    def excuse(self) -> None:
        """Packets of a side are unknown, but its next bytes can be read."""
        self._bymux.blind = True

    def cut(self, direction: Direction, size: int, place: Place) -> list[Read] | None:
        """Bytes that the capture lacks: what they cut; None: they are not all of one Write."""
        role = self._options.role_of(direction)
        side = self._sides[role]
        if self._channel is not None or side.stopped is not None or not side.past_setup:
            return None
        _, _, left, stream_id = self._bymux.reader(role).place
        channel = self._bymux.channels.get(stream_id)
        if (channel is None and self._bymux.blind) or not self._bymux.reader(role).skip(size):
            return None
        at = side.received_bytes
        side.received_bytes += size
        # What comes now waited for the missing bytes: the other side may have used its credit before.
        self._bymux.blind, side.late_until_ns = True, place.arrived_at_ns
        if channel is None:
            return self._report_unnamed(role, place)
        carried, layer = side.channels[channel], _LAYERS[channel]
        if carried.search is not None:
            return self._passed(role, channel, carried.search.drop(), place)
        begin = carried.begun_at if carried.reader.unfinished else at
        known = carried.skip or carried.reader.left
        carried.skip = max(known - size, 0)
        carried.reader = ChannelReader(channel, piece_bytes=self._options.max_packet_bytes)
        if size <= known:
            return [self._left_out(role, place, layer, begin, at + min(known, left), CUT)]
        carried.search = Writes(channel)
        return [self._left_out(role, place, layer, begin, at + left, CUT_WRITE)]

    def give_up(self, role: Role, place: Place) -> list[Read]:
        """The Writes in which packets were looked for, and what came of one to a stream that nobody knows."""
        channels = self._sides[role].channels.items()
        searches = [(name, one.search) for name, one in channels if one.search is not None]
        passed = [read for name, search in searches for read in self._passed(role, name, search.drop(), place)]
        return passed + self._report_unnamed(role, place)

    def missed(self, direction: Direction, size: int) -> bool:
        """Bytes are missing from the capture. Returns True if packets of the direction could be read up to here."""
        role = self._options.role_of(direction)
        side = self._sides[role]
        is_first = side.stopped is None
        if is_first:
            side.stopped = (self._unreported_from(role), AFTER_HOLE)
        side.miss(size)
        side.search = None
        if is_first:
            self._bymux.lose(role)
            side.head = b""
        return is_first

    def unread_from(self, role: Role) -> int:
        """Where the first byte of a side stands that may still be in a read: of an unfinished packet, or one sought."""
        side = self._sides[role]
        begun = [one.begun_at for one in side.channels.values() if one.reader.unfinished]
        searches = [one.search for one in side.channels.values() if one.search is not None]
        begun += [side.setup_bytes + write.byte_start for search in searches for write in search.held]
        begun += [] if side.unnamed is None else [side.unnamed[0]]
        held = len(side.head) if side.search is None else len(side.search.state)
        return min([side.received_bytes - held - len(self._bymux.pending(role)), *begun])

    def _unreported_from(self, role: Role) -> int:
        """Where the first byte of a side stands that is in no read yet."""
        return max(self._sides[role].reported_to, self.unread_from(role))

    def stop(self, role: Role | None = None, byte_end: int = 0) -> None:
        """A violation ended the session: what `role` sent after `byte_end`, and its peer after now, isn't read.

        The first of several violations counts, in whatever order they are reported.
        """
        for each, side in self._sides.items():
            at = byte_end if each is role else self._unreported_from(each)
            if side.stopped is None or (each is role and at < side.stopped[0]):
                side.stopped = (at, AFTER_VIOLATION)
            elif side.stopped[1] != AFTER_VIOLATION:
                # Packets are not looked for any more.
                side.stopped = (side.stopped[0], AFTER_VIOLATION)

    def finish(self, place: Place, *, in_order: bool) -> list[Read]:
        """The connection has ended: what is cut, and, if it ended in order, what was not answered."""
        reads = [read for role in Role for read in self._cut(role, place)]
        if in_order and not reads and all(side.stopped is None for side in self._sides.values()):
            for broken in self._bymux.not_answered():
                end = self._sides[Role.PROACTIVE].received_bytes
                reads.append(Read(Role.PROACTIVE, place, Layer.BYMUX, end, end, None, (broken,)))
        return reads

    def _cut(self, role: Role, place: Place) -> list[Read]:
        side = self._sides[role]
        if side.stopped is not None:
            return []
        passed = self.give_up(role, place)
        end = side.received_bytes
        cut: list[tuple[Layer, int, bytes, str]] = []
        if side.head:
            cut.append((Layer.SETUP, end - len(side.head), side.head, "set-up"))
        for channel, carried in side.channels.items():
            if carried.reader.unfinished:
                what, announced = f"{channel} channel", carried.reader.announced
                if announced is not None:
                    what += f", in {announced} bytes of a payload"
                cut.append((_LAYERS[channel], carried.begun_at, carried.reader.pending, what))
        header = self._bymux.pending(role)
        if header or (self._bymux.unfinished(role) and not cut):
            cut.append((Layer.BYMUX, end - len(header), header, "bymux"))
        return passed + [
            Read(role, place, layer, at, end, None, (Broken(RULE["truncated_packet"], what),), undecoded=raw)
            for layer, at, raw, what in cut
        ]

    def rest(self, role: Role) -> Rest | None:
        """The bytes that were captured and not read, once the connection has ended."""
        side = self._sides[role]
        if side.stopped is None:
            return None
        begin = max(side.stopped[0], side.missing_to)
        return Rest(begin, side.captured_to, side.stopped[1]) if begin < side.captured_to else None

    @property
    def state(self) -> ReaderState:
        """All that isn't given by the options."""
        return ReaderState(self._bymux.state, self.streams, self._sides)


def _noncanonical(name: str) -> Broken:
    return Broken(RULE["noncanonical_varu64"], f"{name} is longer than it needs to be")
