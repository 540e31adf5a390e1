"""Sessions over two connections, one for each channel (specification, "Running Over Bymux": other transports).

The options say how connections between two addresses are paired. By default, a connection joins the pair that has
waited longest for its channel. With `next_port` it joins the pair whose ports fit. Connections whose begin isn't in the
capture stay alone. Each pair has one session, which takes the packets of both connections in order of arrival.

The set-ups are options, because they aren't on the wire. After a gap a connection isn't read again, so from then on the
session is partial. It is partial too if a packet depends on the other connection, and that one is missing or has a gap.
A violation on one connection ends the reading of both.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from wirehouse_codecs.bamboo.log.conversation import (
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
from wirehouse_codecs.bamboo.setup import Channel, Role
from wirehouse_codecs.bamboo.wire.messages import Cancel, Propose
from wirehouse_codecs.bamboo.wire.reader import Layer, Read, Reader
from wirehouse_codecs.core.errors import StateVersionError
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.logs.rows import Dialogue, Log
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.reassembly import Closed, Connection, Data, Hole

PAIRS_VERSION: Final = 2
#: Ends of a connection that say where the streams of its sides end.
_SAID_WHERE: Final = ("fin", "reset")


@dataclass(slots=True)
class Member:
    """A connection of a pair."""

    connection_id: bytes
    first: Place
    #: How it has ended, and where.
    closed: str | None = None
    closed_at: Place | None = None
    #: All that was sent on it was captured.
    complete: bool = False


@dataclass(slots=True)
class Pair:
    """The connections of both channels, as far as they were seen, and their session."""

    number: int
    #: The capture begins within its connections.
    late: bool
    #: The client's port of the control channel, if that says which connections belong together.
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

    def lacks(self, read: Read) -> bool:
        """Whether what the other channel says isn't at hand, and a packet may be about that."""
        if read.layer is not Layer.DATA and not isinstance(read.packet, Cancel | Propose):
            return False
        other = Channel.DATA if read.layer is not Layer.DATA else Channel.CONTROL
        connection = self.connections.get(other)
        if connection is None:
            return other not in self.members
        return connection.client.incomplete or connection.server.incomplete or bool(connection.uncaptured_sides)

    @property
    def over(self) -> bool:
        """All its connections have ended."""
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


class Pairs:
    """The pairs of connections between two addresses. A `Gathering`."""

    def __init__(self, options: BambooOptions, log: Log, snapshot: str | None) -> None:
        self.options, self._log = options, log
        self._numbers = 0
        #: Those that aren't over, in the order in which they began.
        self._pairs: dict[int, Pair] = {}
        if snapshot is not None:
            self._restore(json.loads(snapshot))

    def start(self, log: Log, connection: Connection, server: Endpoint, snapshot: str | None) -> Dialogue:
        """The dialogue of a connection: one that joins a pair, or goes on from its snapshot."""
        channel = self.options.channel_at(server.port)
        if snapshot is None:
            late = connection.began_before_capture
            pair = self._pair_of(channel, connection, log.client, late)
            reader = Reader(self.options, channel, started_late=late)
        else:
            number, read = json.loads(snapshot)
            pair, reader = self._pairs[number], Reader(self.options, channel, snapshot=read)
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
        """The pairs that aren't over, as JSON."""
        if not self._pairs:
            return None
        pairs = [
            {
                "number": pair.number,
                "late": pair.late,
                "port": pair.port,
                "session": pair.account.session.snapshot(),
                "members": {channel.value: _to_json(member) for channel, member in sorted(pair.members.items())},
            }
            for pair in self._pairs.values()
        ]
        return json.dumps({"version": PAIRS_VERSION, "numbers": self._numbers, "pairs": pairs}, separators=(",", ":"))

    def _restore(self, state: dict[str, Any]) -> None:
        if state["version"] != PAIRS_VERSION:
            raise StateVersionError(what="bamboo pairs", found=state["version"], expected=PAIRS_VERSION)
        self._numbers = state["numbers"]
        for row in state["pairs"]:
            account = Account(self._log, self.options, Session(self.options, snapshot=row["session"]))
            pair = Pair(row["number"], row["late"], row["port"], account)
            for channel, member in sorted(row["members"].items()):
                pair.join(Channel(channel), _from_json(member))
            account.settle()
            self._pairs[pair.number] = pair


def _to_json(member: Member) -> list[Any]:
    closed_at = None if member.closed_at is None else member.closed_at.to_json()
    return [member.connection_id.hex(), member.first.to_json(), member.closed, closed_at, member.complete]


def _from_json(row: list[Any]) -> Member:
    connection_id, first, closed, closed_at, complete = row
    place = None if closed_at is None else Place.from_json(closed_at)
    return Member(bytes.fromhex(connection_id), Place.from_json(first), closed, place, complete)


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
        if pieces and not session.state.partial:
            for direction in self._pair.connections[self._channel].uncaptured_sides:
                self._reader.missed(direction, 0)
                session.miss(self._pairs.options.role_of(direction))
        for piece in pieces:
            role = self._pairs.options.role_of(piece.direction)
            silent = not session.state.partial and self._reader.is_silent(role.peer)
            connection = self._pair.connections[self._channel]
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
        """The state as JSON; that of the session is the pair's."""
        return json.dumps([self._pair.number, self._reader.snapshot()], separators=(",", ":"))
