"""What one capture of a block node says, row by row, in the columns of the silver and gold tables.

`inspect` reads packets, `inspect_entries` a gRPC binary log, `inspect_blocks` block files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa

from wirehouse_codecs import inspecting, stream_inspection
from wirehouse_codecs.hiero import grpc, grpc_log
from wirehouse_codecs.hiero.across import Fold
from wirehouse_codecs.hiero.across_rows import Found
from wirehouse_codecs.hiero.blocks import BlockFile
from wirehouse_codecs.hiero.events import Event, event_of, order_of
from wirehouse_codecs.hiero.http2 import PREFACE
from wirehouse_codecs.hiero.log import EntryLog, add_block_file, starter
from wirehouse_codecs.hiero.messages import shape_of
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.profiles import method_of
from wirehouse_codecs.hiero.rows import BLOCK, CALL, SCHEMA, SKIP
from wirehouse_codecs.hiero.rules import PROTOCOL
from wirehouse_codecs.inspecting import Inspect, Inspected
from wirehouse_codecs.rules import Place
from wirehouse_codecs.stream_inspection import Row
from wirehouse_codecs.stream_log import MESSAGE, Log
from wirehouse_codecs.tcp import Data, Direction

_PLACE: Final = ("connection_id", "direction", "byte_start", "byte_end", "capture_id", "record_number", "arrived_at_ns")
_ABOUT: Final = ("call", "service", "path", "node", "client", "publisher", "block_number")
#: Own columns of violations.
_OWN: Final = ("call", "node", "publisher", "block_number")
_NOWHERE: Final = Place(0, 0, b"", 0)


def recognises(client: bytes, server: bytes) -> str | None:
    """Why a connection whose sides begin so is taken for one with a block node; None = it isn't."""
    begun = client.startswith(PREFACE)
    reader = grpc.Reader(started_late=not begun)
    events = reader.receive([Data(Direction.CLIENT, 0, client, _NOWHERE), Data(Direction.SERVER, 0, server, _NOWHERE)])
    for event in events:
        if isinstance(event, grpc.Opened) and event.path is not None and method_of(event.path) is not None:
            return f"a call of {event.path}"
        if begun or not isinstance(event, grpc.MessagePart) or not event.last or not event.first:
            continue
        service = shape_of(bytes(event.data), event.direction).service
        if service is not None:
            return f"a message in the shape of {service}"
    return None


def inspect(batches: Iterable[pa.RecordBatch], port: int | None = None) -> Iterator[Inspected]:
    """Rows of the packets in `batches` (inspecting.LANDED_PACKETS), which stand in arrival order.

    The nodes are at `port`, else handshakes tell where. All connections are taken for those of one service; what calls
    break together comes last.
    """
    options = HieroOptions()
    yield from _told(stream_inspection.read(batches, starter(options), SCHEMA, port), options)


def inspect_entries(pieces: Iterable[bytes], capture_id: bytes) -> Iterator[Inspected]:
    """Rows of a gRPC binary log, whose bytes come in `pieces`. What has arrived when is told by its entries."""
    options = HieroOptions()
    yield from _told(_entry_rows(pieces, capture_id, options), options)


def _entry_rows(pieces: Iterable[bytes], capture_id: bytes, options: HieroOptions) -> Iterator[Row]:
    log, framer = Log(SCHEMA), grpc_log.Framer()
    log.connection_id = hashlib.sha256(capture_id).digest()[:16]
    entries = EntryLog(log, options)
    number = arrived_at_ns = 0

    def take(framed: grpc_log.Framed) -> None:
        nonlocal number, arrived_at_ns
        entry = framed.reason or grpc_log.decode(framed.data)
        if isinstance(entry, grpc_log.Entry):
            arrived_at_ns = max(arrived_at_ns, min(entry.timestamp.ns, _LATEST_NS))
        entries.receive(framed, entry, Place(arrived_at_ns, 0, capture_id, number))
        number += 1

    for piece in pieces:
        for framed in framer.receive(piece):
            take(framed)
            if log.full:
                yield from _rows(log)
    for framed in framer.finish():
        take(framed)
    entries.finish(Place(arrived_at_ns, 0, capture_id, number))
    yield from _rows(log)


def inspect_blocks(files: Iterable[BlockFile], capture_id: bytes) -> Iterator[Inspected]:
    """Rows of block files, in the order of `files`. They stand at their headers' times."""
    options = HieroOptions()

    def rows() -> Iterator[Row]:
        log = Log(SCHEMA)
        for number, file in enumerate(files):
            header = file.block.header
            at_ns = 0 if header is None or header.timestamp is None else header.timestamp.ns
            add_block_file(log, file, Place(min(max(at_ns, 0), _LATEST_NS), 0, capture_id, number))
            yield from _rows(log)

    yield from _told(rows(), options)


_LATEST_NS: Final = (1 << 63) - 1


def _rows(log: Log) -> Iterator[Row]:
    for batch in log.take():
        yield from batch.to_pylist()


def _told(rows: Iterable[Row], options: HieroOptions) -> Iterator[Inspected]:
    events: list[tuple[Any, Event]] = []
    for row in rows:
        event = event_of(row) if row["row_kind"] in (MESSAGE, CALL, BLOCK) else None
        # What is open when the capture ends is not over: it isn't known what came then.
        if event is not None and event.told.get("how") != grpc.How.CAPTURE_END:
            events.append((order_of(row), event))
        if row["row_kind"] == MESSAGE:
            yield _message(row)
        elif row["row_kind"] == SKIP and isinstance(row["skip"], dict):
            yield inspecting.SKIP, {name: row[name] for name in _PLACE} | row["skip"]
        elif row["row_kind"] not in (CALL, BLOCK) and (told := stream_inspection.shown(row, PROTOCOL, _OWN)):
            yield told
    fold = Fold(options)
    for _, event in sorted(events, key=itemgetter(0)):
        for found in fold.take(event):
            if isinstance(found, Found):
                yield _found(found)


def _found(found: Found) -> Inspected:
    place = found.where._asdict() | {name: getattr(found, name) for name in _OWN}
    return stream_inspection.violation(found.rule.id, found.severity.value, found.message, place, _OWN)


def _message(row: Row) -> Inspected:
    content = dict(row["message"])
    counts = content["item_counts"]
    content["item_counts"] = None if counts is None else dict(counts)
    about = {"kind": content.pop("kind")} | {name: row[name] for name in _ABOUT}
    return inspecting.MESSAGE, {name: row[name] for name in _PLACE} | about | content


INSPECT: Final[Mapping[str, Inspect]] = {"pcap": inspect}
