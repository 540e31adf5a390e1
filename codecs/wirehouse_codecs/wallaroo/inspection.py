"""What one capture of Wallaroo connections says, row by row, in the columns of the silver and gold tables."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator

import pyarrow as pa

from wirehouse_codecs import inspecting, stream_inspection
from wirehouse_codecs.inspecting import Inspected
from wirehouse_codecs.stream_inspection import Row
from wirehouse_codecs.stream_log import MESSAGE
from wirehouse_codecs.wallaroo.across import SessionSummary, judge
from wirehouse_codecs.wallaroo.dialects import byte_order_of
from wirehouse_codecs.wallaroo.log import SCHEMA, SESSION, starter, summary_of
from wirehouse_codecs.wallaroo.messages import LENGTH_BYTES, SEED, V3, Hello, decode
from wirehouse_codecs.wallaroo.options import WallarooOptions
from wirehouse_codecs.wallaroo.rules import PROTOCOL

_PLACE = ("connection_id", "direction", "byte_start", "byte_end", "capture_id", "record_number", "arrived_at_ns")
_FIRST = ("connection_id", "capture_id", "record_number", "arrived_at_ns")
#: Own columns of violations.
_OWN = ("stream_id",)


def recognises(client: bytes, server: bytes) -> str | None:
    """Why a connection whose sides begin so is taken for one of Wallaroo; None = it isn't."""
    order = byte_order_of(client)
    if order is None:
        return None
    length = int.from_bytes(client[:LENGTH_BYTES], order)
    hello = decode(client[LENGTH_BYTES : LENGTH_BYTES + length], V3 if order == "big" else SEED)
    return f"the client begins with a HELLO, {order} endian" if isinstance(hello.frame, Hello) else None


def inspect(batches: Iterable[pa.RecordBatch], port: int | None = None) -> Iterator[Inspected]:
    """Rows of the packets in `batches` (inspecting.LANDED_PACKETS), which stand in arrival order.

    The servers are those at `port`, else handshakes tell. The dialect is told from the frames. What sessions break
    together comes last. Cookies are compared by a hash that is never shown.
    """
    start = starter(WallarooOptions(), secrets.token_bytes(32))
    sessions: list[SessionSummary] = []
    #: The first packet of each.
    places: dict[bytes, Row] = {}
    for row in stream_inspection.read(batches, start, SCHEMA, port):
        if row["row_kind"] == MESSAGE:
            yield _message(row)
        elif row["row_kind"] == SESSION:
            sessions.append(summary_of(row["connection_id"], row["session"]))
            places[row["connection_id"]] = {name: row[name] for name in _FIRST}
        elif (told := stream_inspection.shown(row, PROTOCOL, _OWN)) is not None:
            yield told
    for found in judge(sessions):
        rule, row = found.rule, places[found.connection_id]
        yield stream_inspection.violation(rule.id, rule.severity.value, found.message, row, _OWN)


def _message(row: Row) -> Inspected:
    content = dict(row["message"], cookie_hash=None)
    kind = {"kind": content.pop("kind"), "stream_id": row["stream_id"]}
    return inspecting.MESSAGE, {name: row[name] for name in _PLACE} | kind | content
