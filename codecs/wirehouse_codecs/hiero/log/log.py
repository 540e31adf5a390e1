"""Turns the calls of a block node into rows of the log `silver.hiero`.

A row of kind `message` for each gRPC message (of a set above `reassembly.PART_BYTES` one for each part, the last with
its place), `call` where a call begins and where it ends, `block` where a block that came in sets ends, `quarantine` for
bytes that are no message, `violation` for each broken rule. At the end of a window `skip` rows count the bytes of a
connection that frame its calls, from its begin on. `Conversation` reads a TCP connection, `EntryLog` a gRPC binary log;
`add_block_file` adds the row of a block file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.core.snapshots import SnapshotCodec
from wirehouse_codecs.hiero.log.calls import Calls, CallsState
from wirehouse_codecs.hiero.log.rows import BLOCK_FILE, FRAMING, MOST_CHARACTERS, SKIP, block_content
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.rules import RULE
from wirehouse_codecs.hiero.wire import grpc_log
from wirehouse_codecs.hiero.wire.blocks import BlockFile
from wirehouse_codecs.hiero.wire.grpc.reader import Reader as GrpcReader
from wirehouse_codecs.hiero.wire.grpc.reader import ReaderState
from wirehouse_codecs.hiero.wire.grpc_log import KnownCall
from wirehouse_codecs.hiero.wire.items.kinds import ItemNumber
from wirehouse_codecs.logs.rows import MESSAGE, QUARANTINE, Dialogue, Log, Start, Where
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.reassembly import Closed, Connection, Data, Hole

SNAPSHOT_VERSION: Final = 13


def starter(options: HieroOptions) -> Start:
    """Dialogues of a source with these options."""

    def start(log: Log, connection: Connection, server: Endpoint, snapshot: str | None) -> Dialogue:
        return Conversation(log, connection, server, options, snapshot)

    return start


def add_block_file(log: Log, file: BlockFile, place: Place) -> None:
    """The rows of a block file: a message row with its block, what it breaks, and what of it can't be read."""
    block = file.block
    fields = block_content(block) | {
        "ended_by": BLOCK_FILE,
        "file_name": file.name[-MOST_CHARACTERS:],
        "named_number": file.named_number,
        "block_bytes": file.block_bytes,
        "damage": file.damage,
    }
    names = ("item_counts", "items", "item_bytes", "previous_hash", "block_root", "root_layout", "proof_kind")
    message = {name: fields[name] for name in names} | {"kind": BLOCK_FILE, "proof": fields["proof_block"]}
    message |= {"header": block.number, "message_bytes": file.block_bytes, "part": 0, "last": True}
    number = block.number
    if block.counts or file.damage is None:
        log.add(MESSAGE, place, block_number=number, message=message, block=fields)
    if file.damage is not None:
        finding = {"rule": None, "severity": None, "message": file.damage}
        log.add(QUARANTINE, place, block_number=number, finding=finding)
    for broken in block.broken:
        log.find(broken.rule, broken.reason, place, block_number=number)
    if block.counts and ItemNumber.BLOCK_PROOF not in block.counts and file.damage is None:
        log.find(RULE["structure"], "the file has no block proof", place, block_number=number)


class Conversation:
    """One TCP connection. A `Dialogue`."""

    def __init__(
        self, log: Log, connection: Connection, server: Endpoint, options: HieroOptions, snapshot: str | None
    ) -> None:
        self._log, self._connection = log, connection
        late = connection.began_before_capture
        ports = (*options.publish_ports, *options.subscribe_ports)
        # Where services are parted by port, they are still those of one node.
        node = server.address if server.port in ports else f"{server.address} {server.port}"
        client = None if log.client is None else log.client.address
        self._calls = Calls(log, options, node, server.port, client, connection)
        reader = partial(GrpcReader, max_message_bytes=options.max_message_bytes)
        reader = partial(reader, max_inflated_ratio=options.max_inflated_ratio)
        self._reported = dict.fromkeys(Direction, 0)
        if snapshot is None:
            self._reader = reader(started_late=late)
        else:
            carried = CODEC.read(snapshot)
            self._reader = reader(state=carried.reader)
            self._reported = self._framing()
            self._calls.resume(carried.calls)

    @property
    def dialect(self) -> tuple[str | None, str | None]:
        """Calls have profiles, not their connection."""
        return None, None

    def unread_from(self, direction: Direction) -> int:
        """Where the first byte of `direction` stands that is in no row yet."""
        return self._reader.unread_from(direction)

    def receive(self, pieces: Sequence[Data]) -> None:
        """Bytes of both directions, in arrival order."""
        self._calls.pauses.receive(pieces, self._connection)
        self._calls.take(self._reader.receive(pieces))
        self._calls.pauses.forget(self.unread_from(Direction.CLIENT))

    def hole(self, hole: Hole) -> None:
        """Bytes that never came. They may be what a call lacks that ends with them."""
        self._calls.miss(hole.place)
        self._calls.take(self._reader.hole(hole))
        self._calls.miss(hole.place)

    def doubt(self, place: Place) -> None:
        """Nobody knows which side sent first what comes next."""
        self._calls.doubt(place)

    def close(self, closed: Closed) -> None:
        """The connection has ended. A RST that only silence confirms may be forged: then more follows."""
        is_doubtful = closed.how == "reset" and closed.place != self._connection.last
        if is_doubtful:
            self._calls.miss(closed.place)
        is_closed = closed.how in ("fin", "reset") and not is_doubtful
        self._calls.take(self._reader.finish(closed.place, closed=is_closed, by=closed.side))

    def conclude(self) -> None:
        """A row for each side whose framing grew."""
        counted = self._framing()
        for side, size in counted.items():
            if size != self._reported[side]:
                skip = {"name": FRAMING, "bytes": size}
                self._log.add(SKIP, self._connection.first, direction=side.value, skip=skip)
        self._reported = counted

    def _framing(self) -> dict[Direction, int]:
        return {side: self._reader.framing_bytes(side) for side in Direction}

    def snapshot(self) -> str:
        """The state as text. It holds bytes of the wire, so it is sealed where it is stored."""
        return CODEC.write(Carried(self._reader.state, self._calls.state))


@dataclass(frozen=True, slots=True)
class Carried:
    """What a conversation carries from window to window."""

    reader: ReaderState
    calls: CallsState


@dataclass(frozen=True, slots=True)
class CarriedLog:
    """What a gRPC binary log carries."""

    entries: dict[int, KnownCall]
    calls: CallsState


CODEC: Final = SnapshotCodec(Carried, what="hiero connection", version=SNAPSHOT_VERSION)
LOG_CODEC: Final = SnapshotCodec(CarriedLog, what="hiero log", version=SNAPSHOT_VERSION)


class EntryLog:
    """The entries of one gRPC binary log, in their order. The log's `connection_id` names the file."""

    def __init__(self, log: Log, options: HieroOptions, snapshot: str | None = None) -> None:
        self._log = log
        self._calls = Calls(log, options, None, None, None)
        limit = options.max_message_bytes
        self._entries = grpc_log.Calls(max_message_bytes=limit)
        if snapshot is not None:
            carried = LOG_CODEC.read(snapshot)
            self._entries = grpc_log.Calls(carried.entries, max_message_bytes=limit)
            self._calls.resume(carried.calls)

    def receive(self, framed: grpc_log.Framed, entry: grpc_log.Entry | str, place: Place) -> None:
        """The next bytes that the file is cut into: an entry, or why they are none."""
        if isinstance(entry, str):
            where = Where(Direction.CLIENT, framed.byte_start, framed.byte_end)
            finding = {"rule": None, "severity": None, "message": entry}
            self._log.add(QUARANTINE, place, where, finding=finding, raw=framed.data)
            return
        self._calls.take(self._entries.receive(entry, place, framed.byte_start, framed.byte_end))

    def finish(self, place: Place) -> None:
        """The file has ended."""
        self._calls.take(self._entries.finish(place))

    def snapshot(self) -> str:
        """The state as text."""
        return LOG_CODEC.write(CarriedLog(self._entries.state, self._calls.state))
