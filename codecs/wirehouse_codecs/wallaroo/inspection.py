"""Decodes one capture of Wallaroo connections without a lake, into rows with the columns of silver and gold tables."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush
from typing import Final, get_args

import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.logs import detection, inspection, tcp_inspection
from wirehouse_codecs.logs.inspection import Inspect, Inspected, Unseen
from wirehouse_codecs.logs.rows import MESSAGE
from wirehouse_codecs.logs.tcp_inspection import Row
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_codecs.wallaroo.correlation.sessions import Folds, instance_key, keys
from wirehouse_codecs.wallaroo.dialects import SEED, V3, ByteOrder, Dialect
from wirehouse_codecs.wallaroo.frames import VERSION_BYTES, Hello
from wirehouse_codecs.wallaroo.log.log import starter
from wirehouse_codecs.wallaroo.log.rows import summary_of
from wirehouse_codecs.wallaroo.log.schema import SCHEMA, SESSION
from wirehouse_codecs.wallaroo.options import WallarooOptions
from wirehouse_codecs.wallaroo.rules import PROTOCOL
from wirehouse_codecs.wallaroo.session.summary import SessionSummary
from wirehouse_codecs.wallaroo.wire.dialect_detection import byte_order_of
from wirehouse_codecs.wallaroo.wire.messages import LENGTH_BYTES, Framer, decode
from wirehouse_codecs.wallaroo.wire.resync import FRAMES_IN_A_ROW, READINGS, RESYNC_LIMIT, resynchronise

_PLACE = ("connection_id", "direction", "byte_start", "byte_end", "capture_id", "record_number", "arrived_at_ns")
_FIRST = ("connection_id", "capture_id", "record_number", "arrived_at_ns")
#: Own columns of violations.
_OWN = ("stream_id",)
#: Number of frames of the client in a row that show the protocol, if the server's bytes are frames too.
FRAMES_OF_BOTH: Final = 2
_ORDERS: Final = get_args(ByteOrder)
#: Maximum number of sessions that wait for others which may have ended before. Beyond it the first one is judged.
MOST_WAITING: Final = 65_536


def recognises(client: bytes, server: bytes) -> str | None:
    """Why a connection whose sides begin so counts as one of Wallaroo; None = it doesn't.

    The client begins with HELLO. Where the connection began before the capture, its bytes have a row of frames of a
    connector, and those of the server, if there are any, end with frames of a worker.
    """
    return _as_hello(client) or next(filter(None, (_as_frames(client, server, order) for order in _ORDERS)), None)


def _as_frames(client: bytes, server: bytes, order: ByteOrder) -> str | None:
    spoken = tuple(dialect for dialect in READINGS if dialect.byte_order == order)
    least = FRAMES_OF_BOTH if server else FRAMES_IN_A_ROW

    def are_enough(begin: int) -> bool:
        return len(Framer(order, RESYNC_LIMIT).receive(client[begin:])) >= least

    for side, data, credible in ((Direction.CLIENT, client, are_enough), (Direction.SERVER, server, None)):
        if data and not resynchronise(data, side, spoken, final=True, credible=credible).found:
            return None
    return f"frames of a connector in a row, {order} endian" if client else None


def _as_hello(client: bytes) -> str | None:
    order = byte_order_of(client)
    if order is None:
        return None
    length, dialect = int.from_bytes(client[:LENGTH_BYTES], order), V3 if order == "big" else SEED
    body = client[LENGTH_BYTES : LENGTH_BYTES + length]
    if len(body) == length:
        is_hello = isinstance(decode(body, dialect).frame, Hello)
    else:
        is_hello = len(client) >= detection.HEAD_BYTES and _begins_as_hello(body, length, dialect)
    return f"the client begins with a HELLO, {order} endian" if is_hello else None


def _begins_as_hello(body: bytes, length: int, dialect: Dialect) -> bool:
    """Whether the strings of a HELLO, whose first bytes these are, end within it in some form of its version."""

    def fits(at: int, strings: int) -> bool:
        for _ in range(strings):
            if at + 2 > len(body):
                return at + 2 <= length
            at += 2 + int.from_bytes(body[at : at + 2], dialect.byte_order)
        return at == length

    widths = VERSION_BYTES.values() if dialect is SEED else ()
    return body[0] == dialect.tags[Hello] and (fits(1, 4) or any(fits(1 + width, 3) for width in widths))


def inspect(
    batches: Iterable[pa.RecordBatch],
    port: int | None = None,
    options: WallarooOptions | None = None,
    unseen: Unseen | None = None,
) -> Iterator[Inspected]:
    """Rows of the packets in `batches` (inspecting.LANDED_PACKETS), which are in arrival order.

    The servers are those at `port`, else handshakes show where. The dialect is found by the frames. Findings over
    several sessions come when no other session can have ended before. Cookies are compared by a hash that isn't shown.
    """
    start, unseen = starter(options or WallarooOptions(), secrets.token_bytes(32)), unseen or Unseen()
    sessions = _Sessions()
    batches, servers = detection.servers(batches, port, recognises, start, SCHEMA)
    for row in tcp_inspection.read(sessions.follow(batches), start, SCHEMA, port, unseen, _begins, servers):
        if row["row_kind"] == MESSAGE:
            if "sides" not in row:
                sessions.hear(row)
            if unseen.sees(row["message"]["kind"]):
                yield _message(row)
        elif row["row_kind"] == SESSION:
            if "sides" in row:
                continue
            sessions.add(summary_of(row["connection_id"], row["session"]), {name: row[name] for name in _FIRST})
            yield from sessions.judge()
        elif (shown_row := tcp_inspection.shown(row, PROTOCOL, _OWN)) is not None:
            yield shown_row
    yield from sessions.finish()


def _begins(rows: pa.Table) -> pa.ChunkedArray:
    """Which messages begin a session of an instance, see `_Sessions.hear`."""
    named = pc.struct_field(rows.column("message"), "instance_name").is_valid()
    return pc.and_(named, pc.equal(rows.column("byte_start").fill_null(0), 0))


class _Sessions:
    """Sessions that ended, judged in the order in which they did."""

    def __init__(self) -> None:
        self._folds = Folds()
        #: A heap of ended sessions by their end; each with its first packet.
        self._waiting: list[tuple[int, bytes, SessionSummary, Row]] = []
        #: A heap of begins of sessions of instances: time, key, connection.
        self._begun: list[tuple[int, str, bytes]] = []
        #: Time before which all ended sessions are known.
        self._known_ns = 0

    def follow(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches. The time of each is noted when the next one is asked for."""
        for batch in batches:
            yield batch
            if batch.num_rows:
                self._known_ns = batch.column("arrived_at_ns")[-1].as_py() - TcpOptions().idle_ns

    def hear(self, row: Row) -> None:
        """Take a message: with HELLO a session of an instance begins."""
        message = row["message"]
        if message["instance_name"] is not None and not row["byte_start"]:
            key = instance_key(message["program_name"].encode(), message["instance_name"].encode())
            heappush(self._begun, (row["arrived_at_ns"], key, row["connection_id"]))

    def add(self, summary: SessionSummary, first: Row) -> None:
        """Add the next session whose row came."""
        for key in keys(summary):
            heappush(self._begun, (summary.started_ns, key, summary.connection_id))
        heappush(self._waiting, (summary.ended_ns, summary.connection_id, summary, first))

    def judge(self) -> Iterator[Inspected]:
        """Rules that were broken by sessions of which all that ended before are known."""
        while self._waiting and (self._waiting[0][0] < self._known_ns or len(self._waiting) > MOST_WAITING):
            yield from self._judge_first()

    def finish(self) -> Iterator[Inspected]:
        """Rules that were broken by the sessions that are left."""
        while self._waiting:
            yield from self._judge_first()

    def _judge_first(self) -> Iterator[Inspected]:
        ended_ns, _, summary, first = heappop(self._waiting)
        while self._begun and self._begun[0][0] <= ended_ns:
            _, key, connection_id = heappop(self._begun)
            self._folds.begin(key, connection_id)
        for found in self._folds.take(summary):
            rule, row = found.rule, first
            if found.where is not None:
                place = {name: getattr(found.where.place, name) for name in _FIRST[1:]}
                bytes_of = {name: getattr(found.where, name) for name in ("direction", "byte_start", "byte_end")}
                row = first | place | bytes_of
            yield tcp_inspection.violation(rule.id, rule.severity.value, found.message, row, _OWN)


def _message(row: Row) -> Inspected:
    content = dict(row["message"], cookie_hash=None)
    kind = {"kind": content.pop("kind"), "stream_id": row["stream_id"]}
    return inspection.MESSAGE, {name: row[name] for name in _PLACE} | kind | content


INSPECT: Final[Mapping[str, Inspect]] = {"pcap": inspect}
