"""Decodes one capture of a block node without a lake, into rows with the columns of the silver and gold tables.

`inspect` reads packets, `inspect_log` a gRPC binary log, `inspect_blocks` block files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.hiero.correlation.events import EVENT_KINDS, Event, event_of, order_of
from wirehouse_codecs.hiero.correlation.fold import Fold
from wirehouse_codecs.hiero.correlation.known import WAITS
from wirehouse_codecs.hiero.correlation.rows import Found, Outcome
from wirehouse_codecs.hiero.log.files import of_blocks, of_entries
from wirehouse_codecs.hiero.log.log import starter
from wirehouse_codecs.hiero.log.rows import BLOCK, CALL, SCHEMA, SKIP
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.profiles import DEFAULT_PORT, method_of
from wirehouse_codecs.hiero.rules import PROTOCOL
from wirehouse_codecs.hiero.wire.grpc import events as grpc
from wirehouse_codecs.hiero.wire.grpc.reader import Reader as GrpcReader
from wirehouse_codecs.hiero.wire.http2.frames import PREFACE
from wirehouse_codecs.hiero.wire.messages import shape_of
from wirehouse_codecs.logs import detection, files, inspection, tcp_inspection
from wirehouse_codecs.logs.inspection import Inspect, Inspected, Unseen
from wirehouse_codecs.logs.rows import MESSAGE
from wirehouse_codecs.logs.tcp_inspection import Row
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.reassembly import Data

_PLACE: Final = ("connection_id", "direction", "byte_start", "byte_end", "capture_id", "record_number", "arrived_at_ns")
_ABOUT: Final = ("call", "service", "path", "node", "client", "publisher", "block_number")
#: Own columns of violations.
_OWN: Final = ("call", "node", "publisher", "block_number")
_NOWHERE: Final = Place(0, 0, b"", 0)


def recognises(client: bytes, server: bytes) -> str | None:
    """Why a connection whose sides begin so counts as one with a block node; None = it doesn't."""
    if server.startswith(PREFACE):
        return None
    begun = client.startswith(PREFACE)
    reader = GrpcReader(started_late=not begun)
    # The server's settings decide how the client may write its headers.
    events = reader.receive([Data(Direction.SERVER, 0, server, _NOWHERE), Data(Direction.CLIENT, 0, client, _NOWHERE)])
    for event in events:
        if isinstance(event, grpc.Opened) and event.path is not None and method_of(event.path) is not None:
            # Only a client names a path.
            return f"a call of {event.path}" if event.direction is Direction.CLIENT else None
        if begun or not isinstance(event, grpc.MessagePart) or not event.last or not event.first:
            continue
        service = shape_of(bytes(event.data), event.direction).service
        if service is not None:
            return f"a message in the shape of {service}"
    return None


def inspect(
    batches: Iterable[pa.RecordBatch],
    port: int | None = None,
    options: HieroOptions | None = None,
    unseen: Unseen | None = None,
) -> Iterator[Inspected]:
    """Rows of the packets in `batches` (inspecting.LANDED_PACKETS), which are in arrival order.

    The nodes are at `port`, else handshakes show where. All connections count as those of one service; findings that
    need several calls come last.
    """
    options, unseen = options or HieroOptions(), unseen or Unseen()
    usual = (DEFAULT_PORT, *options.publish_ports, *options.subscribe_ports)
    start = starter(options)
    batches, servers = detection.servers(batches, port, recognises, start, SCHEMA, usual)
    rows = tcp_inspection.read(batches, start, SCHEMA, port, unseen, _are_events, servers)
    yield from _shown(rows, options, unseen)


def inspect_log(
    batches: Iterable[pa.RecordBatch], options: HieroOptions | None = None, unseen: Unseen | None = None
) -> Iterator[Inspected]:
    """Rows of the gRPC binary log in `batches` (inspecting.LANDED_FILES)."""
    options = options or HieroOptions()
    yield from _shown(files.rows(batches, of_entries(options), SCHEMA), options, unseen or Unseen())


def inspect_blocks(
    batches: Iterable[pa.RecordBatch], options: HieroOptions | None = None, unseen: Unseen | None = None
) -> Iterator[Inspected]:
    """Rows of the block files in `batches` (inspecting.LANDED_FILES)."""
    options = options or HieroOptions()
    yield from _shown(files.rows(batches, of_blocks(options), SCHEMA), options, unseen or Unseen())


INSPECT: Final[Mapping[str, Inspect]] = {"pcap": inspect, "grpc_log": inspect_log, "blocks": inspect_blocks}


def _are_events(rows: pa.Table) -> pa.ChunkedArray:
    """Which messages are events, see `event_of`."""
    ignored, last = (pc.struct_field(rows.column("message"), name) for name in ("ignored", "last"))
    return pc.and_(ignored.is_null(), last)


def _shown(rows: Iterable[Row], options: HieroOptions, unseen: Unseen) -> Iterator[Inspected]:
    events: list[tuple[Any, Event]] = []
    for row in rows:
        if row["row_kind"] in EVENT_KINDS and "sides" not in row and (event := event_of(row)) is not None:
            events.append((order_of(row), event))
        if row["row_kind"] == MESSAGE:
            if unseen.sees(row["message"]["kind"]):
                yield _message(row)
        elif row["row_kind"] == SKIP and isinstance(row["skip"], dict):
            yield inspection.SKIP, {name: row[name] for name in _PLACE} | row["skip"]
        elif row["row_kind"] not in (CALL, BLOCK) and (shown_row := tcp_inspection.shown(row, PROTOCOL, _OWN)):
            yield shown_row
    fold, last_ns = Fold(options), 0
    for _, event in sorted(events, key=itemgetter(0)):
        yield from _found(fold.take(event))
        last_ns = event.at_ns
    # What never came is judged as if nothing came for long enough.
    yield from _found(fold.end_window(last_ns + max(options.patience_ns, WAITS.silent_ns) + 1))


def _found(outcomes: Iterable[Outcome]) -> Iterator[Inspected]:
    for found in outcomes:
        if isinstance(found, Found):
            place = found.where._asdict() | {name: getattr(found, name) for name in _OWN}
            yield tcp_inspection.violation(found.rule.id, found.severity.value, found.message, place, _OWN)


def _message(row: Row) -> Inspected:
    content = dict(row["message"])
    counts = content["item_counts"]
    content["item_counts"] = None if counts is None else dict(counts)
    about = {"kind": content.pop("kind")} | {name: row[name] for name in _ABOUT}
    return inspection.MESSAGE, {name: row[name] for name in _PLACE} | about | content
