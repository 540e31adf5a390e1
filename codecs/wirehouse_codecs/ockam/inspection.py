"""Decodes one capture of Ockam connections without a lake, into rows with the columns of the silver and gold tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.logs import detection, inspection, tcp_inspection
from wirehouse_codecs.logs.inspection import Inspect, Inspected, Unseen
from wirehouse_codecs.logs.rows import MESSAGE
from wirehouse_codecs.logs.tcp_inspection import Row
from wirehouse_codecs.ockam.correlation.events import Found
from wirehouse_codecs.ockam.correlation.log_events import TELLING, Heard
from wirehouse_codecs.ockam.log.log import SCHEMA, SESSION, SKIP, starter
from wirehouse_codecs.ockam.options import OckamOptions
from wirehouse_codecs.ockam.rules import PROTOCOL
from wirehouse_codecs.ockam.session.outcome import NOT_GIVEN
from wirehouse_codecs.ockam.wire import resync
from wirehouse_codecs.ockam.wire.messages import (
    CreatePartitionedRequest,
    CreateRequest,
    IndexGet,
    IndexSave,
    PullRequest,
    PushRequest,
)
from wirehouse_codecs.ockam.wire.reader import HEARTBEAT, Reader
from wirehouse_codecs.ockam.wire.routed import Envelope
from wirehouse_codecs.tcp.endpoints import Direction

_PLACE = ("connection_id", "direction", "byte_start", "byte_end", "capture_id", "record_number", "arrived_at_ns")
#: Own columns of violations.
_OWN = ("stream_address",)
_REQUESTS: Final = (CreateRequest, PushRequest, PullRequest, IndexGet, IndexSave, CreatePartitionedRequest)
#: Number of requests of the client that show the protocol, wherever in its bytes they begin.
FEW_REQUESTS: Final = 2
_NOWHERE: Final = Place(0, 0, b"", 0)


def recognises(client: bytes, server: bytes) -> str | None:
    """Why a connection whose sides begin so counts as one of Ockam; None = it doesn't.

    The client begins with a routed message. Where the connection began before the capture, it sends requests.
    """
    return _as_begun(client) or _as_requests(client)


def _as_requests(client: bytes) -> str | None:
    reader, requests = Reader(OckamOptions(), started_late=True), 0
    for received in (*reader.receive(Direction.CLIENT, client, _NOWHERE), *reader.finish(_NOWHERE, closed=False)):
        if received.decoded is not None and isinstance(received.decoded.message, _REQUESTS):
            requests += 1
            if requests == FEW_REQUESTS:
                return "the client sends requests of the stream services"
    return None


def _as_begun(client: bytes) -> str | None:
    reader, at = Reader(OckamOptions()), 0
    for received in reader.receive(Direction.CLIENT, client, _NOWHERE):
        if received.routed is None and received.skip is None:
            return None
        at = received.byte_end
        if received.routed is not None and received.skip != HEARTBEAT:
            assert reader.detection is not None
            return f"the client begins with a routed message: {reader.detection.reason}"
    envelope = Envelope.BARE16 if reader.detection is None else reader.detection.envelope
    begun = resync.look(client, at, envelope, reader.limit(envelope), searching=True)
    return "the client begins with a routed message: its length fits its routes and payload" if begun.end else None


def inspect(
    batches: Iterable[pa.RecordBatch],
    port: int | None = None,
    options: OckamOptions | None = None,
    unseen: Unseen | None = None,
) -> Iterator[Inspected]:
    """Rows of the packets in `batches` (inspecting.LANDED_PACKETS), which are in arrival order.

    The services are at `port`, else handshakes show where. The frames show the envelope. All connections
    count as those of one service; findings that need several of them come last.
    """
    options, unseen, heard = options or OckamOptions(), unseen or Unseen(), Heard()
    start = starter(options)
    batches, servers = detection.servers(batches, port, recognises, start, SCHEMA)
    for row in tcp_inspection.read(batches, start, SCHEMA, port, unseen, _are_wanted, servers):
        if "sides" not in row:
            heard.take(row)
        if row["row_kind"] == MESSAGE:
            if unseen.sees(row["message"]["kind"]):
                yield _message(row)
        elif row["row_kind"] == SKIP and isinstance(row["skip"], dict):
            yield inspection.SKIP, {name: row[name] for name in _PLACE} | row["skip"]
        elif row["row_kind"] != SESSION and (shown_row := tcp_inspection.shown(row, PROTOCOL, _OWN)) is not None:
            yield shown_row
    for found in heard.told(options.index_convention):
        if isinstance(found, Found):
            rule, place = found.rule, found.where._asdict() | {"stream_address": found.stream_address}
            yield tcp_inspection.violation(rule.id, rule.severity.value, found.message, place, _OWN)


def _are_wanted(rows: pa.Table) -> pa.ChunkedArray:
    """Which messages may be events or show data, see `Heard`."""
    kind, ignored = (pc.struct_field(rows.column("message"), name) for name in ("kind", "ignored"))
    are_events = pc.and_(pc.is_in(kind, pa.array(TELLING)), ignored.is_null())
    return pc.or_(are_events, pc.equal(ignored, NOT_GIVEN).fill_null(False))


def _message(row: Row) -> Inspected:
    content = dict(row["message"])
    about = {"kind": content.pop("kind")} | {name: row[name] for name in ("stream_address", "requester", "consumer")}
    about["requested_at_ns"] = (row["answers"] or {}).get("requested_at_ns")
    return inspection.MESSAGE, {name: row[name] for name in _PLACE} | about | content


INSPECT: Final[Mapping[str, Inspect]] = {"pcap": inspect}
