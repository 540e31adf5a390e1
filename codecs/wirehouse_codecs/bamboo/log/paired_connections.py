"""Sessions over two connections, one for each channel (specification, "Running Over Bymux": other transports).

The options decide how connections between two addresses are paired. By default, a connection joins the pair that has
waited longest for its channel. With `next_port` it joins the pair whose ports fit. Connections whose begin isn't in the
capture stay alone. Each pair has one session, which takes the packets of both connections in order of arrival.

The set-ups are options, because they aren't on the wire. After a gap a connection isn't read again, so from then on the
session is partial. It is partial too if a packet depends on the other connection, and that one is missing or has a gap.
A violation on one connection ends the reading of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from wirehouse_codecs.bamboo.log.conversation import (
    SNAPSHOT_VERSION,
    Account,
    Senders,
    add_rest,
    begins_late,
    knows_more,
    peer_received,
    received,
    senders_of,
)
from wirehouse_codecs.bamboo.options import NEXT_PORT, BambooOptions
from wirehouse_codecs.bamboo.session.session import Session
from wirehouse_codecs.bamboo.session.state import Memory
from wirehouse_codecs.bamboo.setup import Channel, Role
from wirehouse_codecs.bamboo.wire.messages import Cancel, Propose
from wirehouse_codecs.bamboo.wire.reader import Layer, Read, Reader, ReaderState
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.core.snapshots import SnapshotCodec
from wirehouse_codecs.logs.rows import Dialogue, Log
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.reassembly import Closed, Connection, Data, Hole

#: Ends of a connection that show where the streams of its sides end.
_SAID_WHERE: Final = ("fin", "reset")


@dataclass(slots=True)
class Member:
    """A connection of a pair."""

    connection_id: bytes
    first: Place
    #: How it has ended, and where.
    closed: str | None = None
    closed_at: Place | None = None
    #: Whether all that was sent on it was captured.
    complete: bool = False


@dataclass(slots=True)
class Pair:
    """The connections of both channels, as far as they were seen, and their session."""

    number: int
    #: Whether the capture begins within its connections.
    late: bool
    #: The client's port of the control channel, if it decides which connections belong together.
    port: int | None
    account: Account
    members: dict[Channel, Member] = field(default_factory=dict)
    connections: dict[Channel, Connection] = field(default_factory=dict)

    def fits(self, channel: Channel, late: bool, port: int | None) -> bool:
        """Whether a new connection of `channel` belongs to it."""
        return channel not in self.members and self.late is late and self.port == port

    def join(self, channel: Channel, member: Member) -> None:
        """A connection of the pair."""
        self.members[channel] = member
        if channel is Channel.CONTROL:
            self.account.connection_id, self.account.first = member.connection_id, member.first
        else:
            self.account.data_connection_id = member.connection_id

    def leave(self, channel: Channel) -> None:
        """A connection that nothing was read of is none of the pair."""
        del self.members[channel]
        self.connections.pop(channel, None)
        if channel is Channel.DATA:
            self.account.data_connection_id = None

    def lacks(self, read: Read) -> bool:
        """Whether packets of the other channel aren't at hand, and a packet may be about these."""
        if read.layer is not Layer.DATA and not isinstance(read.packet, Cancel | Propose):
            return False
        other = Channel.DATA if read.layer is not Layer.DATA else Channel.CONTROL
        connection = self.connections.get(other)
        if connection is None:
            return other not in self.members
        return connection.client.incomplete or connection.server.incomplete or bool(connection.uncaptured_sides)

    @property
    def over(self) -> bool:
        """Whether all its connections have ended."""
        return all(member.closed is not None for member in self.members.values())

    def end(self) -> None:
        """All its connections have ended: what never came."""
        ends = [member.closed_at for member in self.members.values() if member.closed_at is not None]
        hows = [member.closed for member in self.members.values()]
        self.account.closed = next((how for how in hows if how != "fin"), "fin")
        control = self.members.get(Channel.CONTROL)
        if control is not None and control.complete:
            self.account.end_doubt()
        # If one channel is missing, its packets are unknown.
        self.account.end(max(ends), in_order=hows == ["fin"] * len(Channel))
        self.conclude()

    def conclude(self) -> None:
        """Its rows stand with the control channel."""
        if Channel.CONTROL in self.members:
            self.account.conclude()


# Carried state


@dataclass(frozen=True, slots=True)
class CarriedPair:
    """What a pair carries from window to window."""

    number: int
    late: bool
    port: int | None
    memory: Memory
    members: dict[Channel, Member]


@dataclass(frozen=True, slots=True)
class CarriedPairs:
    """What the pairs between two addresses carry."""

    #: How many pairs there were.
    numbers: int
    pairs: list[CarriedPair]


@dataclass(frozen=True, slots=True)
class CarriedChannel:
    """What the connection of one channel carries."""

    #: The number of its pair.
    pair: int
    reader: ReaderState


PAIRS_CODEC: Final = SnapshotCodec(CarriedPairs, what="bamboo pairs", version=SNAPSHOT_VERSION)
CHANNEL_CODEC: Final = SnapshotCodec(CarriedChannel, what="bamboo channel", version=SNAPSHOT_VERSION)


class Pairs:
    """The pairs of connections between two addresses. A `Gathering`."""

    def __init__(self, options: BambooOptions, log: Log, snapshot: str | None) -> None:
        self.options, self._log = options, log
        self._numbers = 0
        #: Pairs that aren't over, in the order in which they began.
        self._pairs: dict[int, Pair] = {}
        if snapshot is not None:
            self._restore(PAIRS_CODEC.read(snapshot))

    def start(self, log: Log, connection: Connection, server: Endpoint, snapshot: str | None) -> Dialogue:
        """The dialogue of a connection: one that joins a pair, or goes on from its snapshot."""
        channel = self.options.channel_at(server.port)
        if snapshot is None:
            self._leave(channel, connection)
            late = connection.began_before_capture
            pair = self._pair_of(channel, connection, log.client, late)
            reader = Reader(self.options, channel, started_late=late)
        else:
            carried = CHANNEL_CODEC.read(snapshot)
            pair, reader = self._pairs[carried.pair], Reader(self.options, channel, state=carried.reader)
        pair.connections[channel] = connection
        if channel is Channel.CONTROL:
            pair.account.session.state.peer_received = peer_received(connection, self.options)
        return Half(self, log, senders_of(self.options, log.client, server), channel, pair, reader)

    def _pair_of(self, channel: Channel, connection: Connection, client: Endpoint | None, late: bool) -> Pair:
        """The pair that a new connection joins."""
        assert client is not None
        port = client.port - (channel is Channel.DATA) if self.options.pairs == NEXT_PORT else None
        pair = next((one for one in self._pairs.values() if one.fits(channel, late, port)), None)
        pair = pair or self._new(late, port)
        pair.join(channel, Member(connection.connection_id, connection.first))
        return pair

    def _leave(self, channel: Channel, connection: Connection) -> None:
        """A connection begins again: a SYN came late, so it may belong to another pair."""
        for pair in self._pairs.values():
            member = pair.members.get(channel)
            if member is not None and member.connection_id == connection.connection_id:
                pair.leave(channel)
                if not pair.members:
                    del self._pairs[pair.number]
                return

    def _new(self, late: bool, port: int | None) -> Pair:
        account = Account(self._log, self.options, Session(self.options, started_late=late))
        effects = {Direction.CLIENT: self.options.client_setup, Direction.SERVER: self.options.server_setup}
        for direction, setup in effects.items():
            if setup is not None:
                account.session.state.setups[self.options.role_of(direction)] = setup
        pair = self._pairs[self._numbers] = Pair(self._numbers, late, port, account)
        self._numbers += 1
        return pair

    def close(self, pair: Pair, channel: Channel, closed: Closed) -> None:
        """A connection has ended."""
        member = pair.members[channel]
        connection = pair.connections.pop(channel)
        member.closed, member.closed_at = closed.how, closed.place
        missing = connection.client.missing_bytes or connection.server.missing_bytes
        member.complete = closed.how in _SAID_WHERE and not missing and not pair.late
        if pair.over:
            pair.end()
            del self._pairs[pair.number]

    def conclude(self) -> None:
        """Emit a row of each session and each proposal that changed since its last row."""
        for pair in self._pairs.values():
            pair.conclude()

    def snapshot(self) -> str | None:
        """The pairs that aren't over, as text."""
        if not self._pairs:
            return None
        pairs = [
            CarriedPair(pair.number, pair.late, pair.port, pair.account.session.state, pair.members)
            for pair in self._pairs.values()
        ]
        return PAIRS_CODEC.write(CarriedPairs(self._numbers, pairs))

    def _restore(self, state: CarriedPairs) -> None:
        self._numbers = state.numbers
        for carried in state.pairs:
            account = Account(self._log, self.options, Session(self.options, state=carried.memory))
            pair = self._pairs[carried.number] = Pair(carried.number, carried.late, carried.port, account)
            for channel, member in carried.members.items():
                pair.join(channel, member)
            account.settle()


class Half:
    """The connection of one channel. A `Dialogue`."""

    dialect = None, None

    def __init__(self, pairs: Pairs, log: Log, senders: Senders, channel: Channel, pair: Pair, reader: Reader) -> None:
        self._pairs, self._log, self._senders, self._channel = pairs, log, senders, channel
        self._pair, self._reader = pair, reader

    def unread_from(self, direction: Direction) -> int:
        """Where the first byte of `direction` stands that is in no row yet."""
        return self._reader.unread_from(self._pairs.options.role_of(direction))

    def receive(self, pieces: Sequence[Data]) -> None:
        """Bytes of both directions, in arrival order."""
        self._stop()
        session = self._pair.account.session
        connection = self._pair.connections[self._channel]
        for piece in pieces:
            role = self._pairs.options.role_of(piece.direction)
            for direction in () if session.state.partial else connection.uncaptured_sides:
                session.miss(self._pairs.options.role_of(direction))
            silent = not session.state.partial and self._reader.is_silent(role.peer)
            if begins_late(connection, self._reader, role, piece):
                self._reader.missed(piece.direction, 0)
                session.miss(role)
            if silent and knows_more(connection, piece):
                session.miss(role.peer)
            elif received(connection, piece) > self._reader.received_bytes(role.peer) + 1:
                session.doubt(role.peer)
            self._take(self._reader.receive(piece.direction, piece.data, piece.place))

    def hole(self, hole: Hole) -> None:
        """Bytes that never came."""
        self._stop()
        if self._reader.missed(hole.direction, hole.byte_end - hole.byte_start):
            self._pair.account.session.miss(self._pairs.options.role_of(hole.direction))

    def doubt(self, place: Place) -> None:
        """Nobody knows which side sent first what comes next."""
        for role in Role:
            self._pair.account.session.doubt(role)

    def close(self, closed: Closed) -> None:
        """The connection has ended."""
        self._stop()
        self._take(self._reader.finish(closed.place, in_order=closed.how == "fin"))
        add_rest(self._log, self._reader, closed.place)
        self._pairs.close(self._pair, self._channel, closed)

    def _stop(self) -> None:
        """After a violation in the other connection nothing is read in this one either."""
        if self._pair.account.session.state.ended_by is not None:
            self._reader.stop()

    def _take(self, reads: Sequence[Read]) -> None:
        account = self._pair.account
        for read in reads:
            if not account.session.state.partial and self._pair.lacks(read):
                for role in Role:
                    account.session.miss(role)
            effects = account.session.receive(read)
            account.add(effects, self._senders)
            if effects.ends:
                self._reader.stop(read.role, read.byte_end)
                break

    def conclude(self) -> None:
        """Emit the last rows of the pair."""

    def snapshot(self) -> str:
        """The state as text; that of the session is the pair's."""
        return CHANNEL_CODEC.write(CarriedChannel(self._pair.number, self._reader.state))
