"""Captures of block nodes in other kinds of file: calls as a gRPC binary log, block files as an archive."""

from __future__ import annotations

import io
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.support.landed import landed, landed_file
from wirehouse_codecs.captures.source import Origin
from wirehouse_codecs.hiero.log.files import of_blocks
from wirehouse_codecs.hiero.log.rows import SCHEMA
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.wire import grpc_log
from wirehouse_codecs.hiero.wire.captures import BlockCapture, log_capture
from wirehouse_codecs.hiero.wire.grpc import events as grpc
from wirehouse_codecs.hiero.wire.grpc.reader import Reader as GrpcReader
from wirehouse_codecs.hiero.wire.items.decoded import Timestamp
from wirehouse_codecs.logs import files, tcp_inspection
from wirehouse_codecs.logs.inspection import LANDED_FILES
from wirehouse_codecs.logs.null_dialogue import NullDialogue
from wirehouse_codecs.logs.rows import MESSAGE, QUARANTINE, VIOLATION, Dialogue, Log, schema
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.reassembly import Connection, Data, Hole


def archive_of(paths: Iterable[Path]) -> bytes:
    """The files as a tar archive, in their order."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for path in paths:
            told = tarfile.TarInfo(f"0000/{path.name}")
            told.size = path.stat().st_size
            with path.open("rb") as stream:
                archive.addfile(told, stream)
    return out.getvalue()


def grpc_log_of(pcap: Path, port: int, node: str = "{}") -> bytes:
    """The calls in `pcap` to `port` as a log would have them; nodes have the name `node`, in which {} is their own."""
    heard: list[tuple[int, int, grpc.Event]] = []
    numbers = count()

    def start(log: Log, connection: Connection, server: Endpoint, snapshot: str | None) -> Dialogue:
        return _Recorder(next(numbers), heard)

    list(tcp_inspection.read(landed_file(pcap), start, schema([]), port))
    heard.sort(key=lambda one: (one[2].place.arrived_at_ns, one[2].place.record_number))
    return b"".join(map(grpc_log.frame, _entries(heard, node)))


def landed_log(path: Path) -> Iterator[pa.RecordBatch]:
    """The entries of a log as they are landed."""
    with path.open("rb") as stream:
        yield from landed(log_capture(stream, Origin(path.name, 0)).batches(), LANDED_FILES)


def landed_blocks(*captures: BlockCapture) -> Iterator[pa.RecordBatch]:
    """The block files of captures as they are landed."""
    yield from landed((batch for capture in captures for batch in capture.batches()), LANDED_FILES)


@dataclass
class BlockRows:
    """What the log says of a capture of block files."""

    capture: BlockCapture
    rows: list[dict[str, Any]]

    @property
    def blocks(self) -> list[dict[str, Any]]:
        """What is told of each block file that holds items."""
        return [row["block"] for row in self.rows if row["row_kind"] == MESSAGE]

    @property
    def damage(self) -> list[str]:
        """Why bytes can't be read."""
        return [row["finding"]["message"] for row in self.rows if row["row_kind"] == QUARANTINE]

    @property
    def violations(self) -> list[str]:
        """The broken rules."""
        return [row["finding"]["rule"] for row in self.rows if row["row_kind"] == VIOLATION]


def read_blocks(data: bytes, name: str, limit: int = 1 << 20) -> BlockRows:
    """The rows of a block file or an archive of them; `limit` is the largest item, in bytes."""
    capture = BlockCapture(io.BytesIO(data), Origin(name))
    start = of_blocks(HieroOptions(max_message_bytes=limit))
    return BlockRows(capture, list(files.rows(landed_blocks(capture), start, SCHEMA)))


class _Recorder(NullDialogue):
    """A dialogue that keeps what is said, beside the number of its connection."""

    def __init__(self, number: int, heard: list[tuple[int, int, grpc.Event]]) -> None:
        self._number, self._heard = number, heard
        self._reader = GrpcReader()

    def _hear(self, events: Iterable[grpc.Event]) -> None:
        self._heard += ((self._number, len(self._heard), event) for event in events)

    def receive(self, pieces: Sequence[Data]) -> None:
        self._hear(self._reader.receive(pieces))

    def hole(self, hole: Hole) -> None:
        raise AssertionError(hole)


def _entries(heard: Iterable[tuple[int, int, grpc.Event]], node: str) -> Iterator[bytes]:
    kinds = grpc_log.EntryType
    held: dict[tuple[int, int, Direction], bytes] = {}
    numbers = Counter[int]()
    for connection, _, event in heard:
        content: dict[str, Any] = {}
        match event:
            case grpc.Opened() if event.path is not None:
                entries = tuple(
                    grpc_log.MetadataEntry(name, value.encode())
                    for name, value in event.metadata
                    if not name.startswith(":")
                )
                header = grpc_log.ClientHeader(
                    grpc_log.Metadata(entries), event.path, node.format(dict(event.metadata)[":authority"])
                )
                content = {"type": kinds.CLIENT_HEADER, "client_header": header}
            case grpc.MessagePart():
                key = connection, event.call, event.direction
                data = held.pop(key, b"") + event.data
                if not event.last:
                    held[key] = data
                    continue
                client = event.direction is Direction.CLIENT
                kind = kinds.CLIENT_MESSAGE if client else kinds.SERVER_MESSAGE
                content = {"type": kind, "message": grpc_log.Message(len(data), data)}
            case grpc.HalfClosed() if event.direction is Direction.CLIENT:
                content = {"type": kinds.CLIENT_HALF_CLOSE}
            case grpc.Trailers():
                content = {"type": kinds.SERVER_TRAILER, "trailer": grpc_log.Trailer(status_code=event.status or 0)}
            case _:
                continue
        seconds, nanos = divmod(event.place.arrived_at_ns, 10**9)
        call = 1000 * connection + event.call
        numbers[call] += 1
        about = (Timestamp(seconds, nanos), call, numbers[call])
        yield grpc_log.encode(grpc_log.Entry(*about, logger=2, **content))
