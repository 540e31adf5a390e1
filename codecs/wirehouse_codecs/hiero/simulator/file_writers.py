"""Writes the content of a capture of block nodes as files of nodes and test clients: block files, gRPC logs."""

from __future__ import annotations

import gzip
import io
import tarfile
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from operator import attrgetter
from pathlib import Path
from typing import Final

from wirehouse_codecs.core.intervals import Intervals
from wirehouse_codecs.hiero.profiles import Service, method_of
from wirehouse_codecs.hiero.wire import grpc_log, protobuf
from wirehouse_codecs.hiero.wire.blocks import file_name
from wirehouse_codecs.hiero.wire.compression import compress
from wirehouse_codecs.hiero.wire.grpc import events as grpc
from wirehouse_codecs.hiero.wire.grpc.reader import Reader as GrpcReader
from wirehouse_codecs.hiero.wire.grpc_log import Entry, EntryType
from wirehouse_codecs.hiero.wire.items.cutting import cut
from wirehouse_codecs.hiero.wire.items.decoded import Timestamp, decode_proof
from wirehouse_codecs.hiero.wire.items.kinds import ItemNumber
from wirehouse_codecs.hiero.wire.protobuf import Malformed
from wirehouse_codecs.logs.null_dialogue import NullDialogue
from wirehouse_codecs.logs.rows import Log
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket
from wirehouse_codecs.simulate.streams import read
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.reassembly import Closed, Connection, Data, Hole

_MOST_RUNS: Final = 1 << 16
_SERVER_LOGGER: Final = 2
_IPV4: Final = 1
_Event = grpc.Opened | grpc.Answered | grpc.MessagePart | grpc.HalfClosed | grpc.Trailers | grpc.Reset
#: How block files are compressed, one after the other.
_SUFFIXES: Final[Sequence[tuple[str, Callable[[bytes], bytes]]]] = (
    (".zstd", lambda data: compress(data, "zstd")),
    (".gz", lambda data: gzip.compress(data, 6, mtime=0)),
    ("", bytes),
)


def write_blocks(packets: Iterable[CapturedPacket], path: Path) -> int:
    """Write the blocks that publishers sent whole into the folder `path`, each once and compressed in turn.

    Block files that are there are removed. Returns how many packets were read.
    """
    path.mkdir(exist_ok=True)
    for old in path.glob("*.blk*"):
        old.unlink()
    turns = count()

    def write(number: int, block: bytes) -> None:
        suffix, packed = _SUFFIXES[next(turns) % len(_SUFFIXES)]
        (path / (file_name(number) + suffix)).write_bytes(packed(block))

    return _read_blocks(packets, write)


def write_archive(packets: Iterable[CapturedPacket], path: Path) -> int:
    """Write the blocks that publishers sent whole into a tar archive, as zstd. Returns how many packets were read."""
    with tarfile.open(path, "w") as archive:

        def write(number: int, block: bytes) -> None:
            suffix, packed = _SUFFIXES[0]
            data = packed(block)
            member = tarfile.TarInfo(file_name(number) + suffix)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))

        return _read_blocks(packets, write)


def _read_blocks(packets: Iterable[CapturedPacket], write: Callable[[int, bytes], None]) -> int:
    written = Intervals(most=_MOST_RUNS)

    def whole(number: int, block: bytes) -> None:
        if number not in written:
            written.add(number)
            write(number, block)

    def start(log: Log, connection: Connection, server: Endpoint, snapshot: str | None) -> _Blocks:
        return _Blocks(whole)

    return read(packets, start)


def write_log(packets: Iterable[CapturedPacket], path: Path) -> int:
    """Write all calls as a gRPC binary log of their servers. Returns how many packets were read."""
    entries: list[Entry] = []
    connections = count()
    with path.open("wb") as file:

        def start(log: Log, connection: Connection, server: Endpoint, snapshot: str | None) -> _Entries:
            return _Entries(entries, next(connections) << 32, log.client)

        def flush() -> None:
            for entry in sorted(entries, key=attrgetter("timestamp.ns")):
                file.write(grpc_log.frame(grpc_log.encode(entry)))
            entries.clear()

        return read(packets, start, flush)


class _Reading(NullDialogue):
    """A connection whose calls are read. A `Dialogue` that adds no rows."""

    def __init__(self) -> None:
        self._reader = GrpcReader()

    def receive(self, pieces: Sequence[Data]) -> None:
        for event in self._reader.receive(pieces):
            self.take(event)

    def hole(self, hole: Hole) -> None:
        for event in self._reader.hole(hole):
            self.take(event)

    def close(self, closed: Closed) -> None:
        for event in self._reader.finish(closed.place):
            self.take(event)

    @abstractmethod
    def take(self, event: grpc.Event) -> None:
        """Take the reader's events."""


class _Blocks(_Reading):
    """The blocks of a connection's publishers."""

    def __init__(self, whole: Callable[[int, bytes], None]) -> None:
        super().__init__()
        self._whole = whole
        #: The message and the block of each call as they come.
        self._calls: dict[int, tuple[bytearray, bytearray]] = {}

    def take(self, event: grpc.Event) -> None:
        if isinstance(event, grpc.Opened):
            method = None if event.path is None else method_of(event.path)
            if method is not None and method.service is Service.PUBLISH:
                self._calls[event.call] = bytearray(), bytearray()
        elif isinstance(event, grpc.Closed):
            self._calls.pop(event.call, None)
        elif isinstance(event, grpc.MessagePart) and event.direction is Direction.CLIENT and event.call in self._calls:
            message, block = self._calls[event.call]
            message += event.data
            if event.last:
                self._add(_run_of(bytes(message)), block)
                message.clear()

    def _add(self, run: bytes, block: bytearray) -> None:
        for items in cut(run):
            if items.where(ItemNumber.BLOCK_HEADER):
                block.clear()
        block += run
        for items in cut(run):
            for position in items.where(ItemNumber.BLOCK_PROOF):
                proof = decode_proof(items.body(position)).value
                if proof is not None:
                    self._whole(proof.block, bytes(block))


def _run_of(request: bytes) -> bytes:
    """The items of a publisher's request; in the oldest API a request is an item, and has the bytes of a run of one."""
    try:
        member = protobuf.read_field(request, 0, len(request))
        first = protobuf.read_field(request, member.value_start, member.end)
        alone = first.number != 1 or protobuf.read_field(request, first.value_start, first.end).end != first.end
    except Malformed:
        return b""
    if member.number != 1:
        return b""
    return request if alone else request[member.value_start : member.end]


class _Entries(_Reading):
    """The calls of a connection as entries."""

    def __init__(self, entries: list[Entry], first_id: int, client: Endpoint | None) -> None:
        super().__init__()
        self._entries, self._first_id = entries, first_id
        self._peer = None if client is None else grpc_log.Address(_IPV4, client.address, client.port)
        self._messages: dict[tuple[int, Direction], bytearray] = {}
        self._sequences: dict[int, int] = {}

    def take(self, event: grpc.Event) -> None:
        match event:
            case grpc.Opened():
                fields = dict(event.metadata)
                path, authority = event.path or "", fields.get(":authority", "")
                header = grpc_log.ClientHeader(_metadata(event.metadata), path, authority)
                self._add(event, EntryType.CLIENT_HEADER, client_header=header, peer=self._peer)
            case grpc.Answered():
                header_of_server = grpc_log.ServerHeader(_metadata(event.metadata))
                self._add(event, EntryType.SERVER_HEADER, server_header=header_of_server)
            case grpc.MessagePart():
                self._add_part(event)
            case grpc.HalfClosed() if event.direction is Direction.CLIENT:
                self._add(event, EntryType.CLIENT_HALF_CLOSE)
            case grpc.Trailers():
                trailer = grpc_log.Trailer(_metadata(event.metadata), event.status or 0, event.message)
                self._add(event, EntryType.SERVER_TRAILER, trailer=trailer)
            case grpc.Reset():
                self._add(event, EntryType.CANCEL)

    def _add_part(self, event: grpc.MessagePart) -> None:
        message = self._messages.setdefault((event.call, event.direction), bytearray())
        message += event.data
        if event.last:
            data = bytes(message)
            message.clear()
            client = event.direction is Direction.CLIENT
            kind = EntryType.CLIENT_MESSAGE if client else EntryType.SERVER_MESSAGE
            self._add(event, kind, message=grpc_log.Message(len(data), data))

    def _add(self, event: _Event, kind: EntryType, **content: object) -> None:
        number = self._sequences[event.call] = self._sequences.get(event.call, 0) + 1
        seconds, nanos = divmod(event.place.arrived_at_ns, 10**9)
        about = (Timestamp(seconds, nanos), self._first_id + event.call, number, kind, _SERVER_LOGGER)
        self._entries.append(Entry(*about, **content))  # type: ignore[arg-type]


def _metadata(metadata: grpc.Metadata) -> grpc_log.Metadata:
    fields = (grpc_log.MetadataEntry(name, value.encode()) for name, value in metadata if not name.startswith(":"))
    return grpc_log.Metadata(tuple(fields))
