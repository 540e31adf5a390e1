"""Inspects one capture of packets, for all protocols over TCP.

Packets are decoded as in the pipeline, with a `FlowLog` for each port pair. The server is the side at the given port.
Without a port, the handshake decides: the sender of the SYN is the client. Without a handshake, the server is the side
at a port that is known as a server's (`detection.servers`). Where nothing shows which side is the server, it is assumed
to be the one with the lower port, or with the lower address if the ports are equal. The connection's rows then have
`sides` = ASSUMED, and no broken rule is reported: each side may be the other one.

If nobody sees more messages (`Unseen`), they are counted in the log's batches, and only other rows become Python
objects.

Memory is bounded. At most MOST_PAIRS port pairs are held: if there are more, as in a SYN flood, those that were silent
for longest are reported as idle. The last MOST_ENDED connections that ended are kept, because late segments may follow;
a late segment of any other connection would count as a new connection captured from the middle.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.captures.rules import RULE as CAPTURE_RULE
from wirehouse_codecs.core.rules import Rule, Severity
from wirehouse_codecs.logs import inspection
from wirehouse_codecs.logs.flow_log import FlowLog
from wirehouse_codecs.logs.inspection import SKIP, Inspected, Unseen
from wirehouse_codecs.logs.rows import (
    BATCH_ROWS,
    CONNECTION,
    MESSAGE,
    QUARANTINE,
    STATE,
    VIOLATION,
    Dialogue,
    Gather,
    Log,
    Start,
    pack,
    unpack,
)
from wirehouse_codecs.logs.windows import GatheredFlows, addresses
from wirehouse_codecs.tcp import port_pairs
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint, other
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_codecs.tcp.packets import ACK, SYN, parse
from wirehouse_codecs.tcp.reassembly import Connection
from wirehouse_codecs.tcp.segments import SegmentRows

#: Number of packets read at once. Their rows are held in memory and sorted by arrival.
PIECE_PACKETS: Final = 1_000
#: The same, if nobody sees the messages: no rows of them are held.
UNSEEN_PACKETS: Final = 8_000
MOST_ENDED: Final = 4_096
MOST_PAIRS: Final = 65_536
#: The servers' port or ports; None if unknown.
Port = int | tuple[int, ...] | None
#: A row of the protocol's log, or one of kind SKIP with the column `skip`.
Row = dict[str, Any]
#: A function of rows of a log: which messages among them are needed as rows though nobody sees them; None: none.
Needed = Callable[[pa.Table], pa.ChunkedArray | None]

Order = np.ndarray[Any, Any]

#: The value of `sides` in rows if nothing shows which side of their connection is the server.
ASSUMED: Final = "assumed"
#: A kind of row that is not returned. It marks the position of a batch among sorted rows.
_BEGIN: Final = "begin"
#: Number of rows of a batch that are held as Python objects.
_FEW_ROWS: Final = 256

_PLACE: Final = ("capture_id", "record_number", "arrived_at_ns")
_STREAM_PLACE: Final = ("connection_id", "direction", "byte_start", "byte_end")
_PLACED: Final = ("arrived_at_ns", "capture_arrived_at_ns", "capture_id", "record_number")
_SEGMENT: Final = ("sequence", "acknowledgment", "flags", "window", "payload", "payload_bytes")


def read(
    batches: Iterable[pa.RecordBatch],
    start: Start | Gather,
    schema: pa.Schema,
    port: int | tuple[int, ...] | None = None,
    unseen: Unseen | None = None,
    needed: Needed = lambda table: None,
    servers: Collection[int] = (),
) -> Iterator[Row]:
    """The rows for the packets in `batches` (inspection.LANDED_PACKETS), sorted by arrival in each piece.

    `start` creates the dialogues of a log with `schema`; `port` is the servers' port or ports. Without one, `servers`
    are ports that are known as servers': they decide where no handshake does. The rows within a
    connection come when it has ended. The row of the connection itself comes when no more of it can follow: at the end
    of the batch whose last packet is `TcpOptions.idle_ns` later, or at the end of the capture.

    Messages that `unseen` doesn't want are counted there, except those that are `needed` for something else.
    """
    unseen = unseen or Unseen()
    connections = _Connections(Log(schema), start, port, unseen, needed, servers)
    for batch in batches:
        begin = 0
        while begin < batch.num_rows:
            packets = PIECE_PACKETS if unseen.wanted else UNSEEN_PACKETS
            yield from connections.receive(batch.slice(begin, packets))
            begin += packets
    yield from connections.finish()


def shown(row: Row, protocol: str, own: Iterable[str] = ()) -> Inspected | None:
    """A row of a log, of a kind that all protocols share, in the form that `inspect` shows; None for other kinds.

    `own` are the protocol's own columns of violations.
    """
    place = {name: row[name] for name in _PLACE}
    finding: dict[str, str] = row.get("finding") or {}
    stream_place = {name: row.get(name) for name in _STREAM_PLACE}
    match row["row_kind"]:
        case "skip":
            return SKIP, place | {"skip": row["skip"]}
        case "violation":
            return violation(finding["rule"], finding["severity"], finding["message"], row, own)
        case "quarantine":
            why = {"protocol": protocol, "rule": finding["rule"], "reason": finding["message"]}
            return inspection.QUARANTINE, why | stream_place | place | {"value": row.get("raw")}
        case "connection":
            fields = dict(row["connection"])
            del fields["window_packets"]
            fields["one_sided"] = _only_side(fields)
            if "sides" in row:
                # Tables have no such column: there the source's ports decide which side is the server.
                fields["sides"] = row["sides"]
            return inspection.CONNECTION, {"protocol": protocol, "connection_id": row["connection_id"]} | fields | place
    return None


def _only_side(connection: Row) -> Direction | None:
    """The only side whose packets were captured; None if both sides' were."""
    if not connection["server_packets"]:
        return Direction.CLIENT
    return None if connection["client_packets"] else Direction.SERVER


def violation(rule: str, severity: str, message: str, row: Row, own: Iterable[str] = ()) -> Inspected:
    """A broken rule at the location of `row`."""
    fields = {"protocol": rule.partition(".")[0], "rule": rule, "severity": severity, "message": message}
    stream_place = {name: row.get(name) for name in (*_STREAM_PLACE, *own)}
    return inspection.VIOLATION, fields | stream_place | {name: row[name] for name in _PLACE}


@dataclass(slots=True)
class _Pair:
    """A port pair: its log, and which side is the server."""

    log: FlowLog
    #: Whether a handshake showed that the server is not the side assumed from ports and addresses.
    turned: bool
    #: Whether a handshake or the given port shows which side is the server.
    known: bool
    #: Whether that, or a port that is known as a server's, shows it.
    shown: bool
    #: The port pairs with which its dialogues share state.
    gathered: GatheredFlows | None = None


class _Connections:
    """All port pairs of a capture, ordered by their last segment."""

    def __init__(
        self,
        log: Log,
        start: Start | Gather,
        port: Port,
        unseen: Unseen,
        needed: Needed,
        servers: Collection[int],
    ) -> None:
        self._log, self._start, self._port = log, start, (port,) if isinstance(port, int) else port
        self._server_ports = {port.to_bytes(2, "big") for port in servers}
        self._unseen, self._needed = unseen, needed
        #: Rows of the log that `_count` set aside.
        self._counted: list[pa.RecordBatch] = []
        self._options = TcpOptions()
        self._pairs: OrderedDict[bytes, _Pair] = OrderedDict()
        #: Port pairs whose connection has ended, in the order of their ends.
        self._ended: OrderedDict[bytes, None] = OrderedDict()
        #: Connections for which nothing shows which side is the server.
        self._assumed: set[bytes] = set()
        #: Port pairs whose dialogues share state, by the addresses of server and client.
        self._gathered: dict[bytes, GatheredFlows] = {}

    def receive(self, packets: pa.RecordBatch) -> Iterator[Row]:
        """The rows of the next packets."""
        parsed = parse(packets)
        claimed, direction, flow = port_pairs.sides(parsed, *self._servers(parsed))
        columns = {"flow": flow, "direction": direction}
        columns |= {name: packets.column(name) for name in _PLACED} | {name: parsed.column(name) for name in _SEGMENT}
        segments = pa.RecordBatch.from_pydict(columns).filter(claimed)
        if isinstance(self._start, Gather):
            self._receive_in_order(segments)
        else:
            self._receive_by_pair(segments)
        if packets.num_rows:
            self._forget(packets.column("arrived_at_ns")[-1].as_py())
        yield from self._rows(_left_out(packets, port_pairs.skips(parsed, claimed)))

    def _receive_in_order(self, segments: pa.RecordBatch) -> None:
        """Handle segments one by one, because their dialogues share state."""
        rows = SegmentRows(segments)
        touched = {}
        for row, key in enumerate(segments.column("flow").to_pylist()):
            segment = rows.segment(row)
            pair, from_ = self._pair(key, segment.direction, segment.flags)
            if pair.gathered is not None:
                pair.gathered.turn_to(pair.log.key, segment.place.arrived_at_ns)
            pair.log.receive(segment._replace(direction=from_))
            touched[key] = pair
            self._count_if_full()
        for key, pair in touched.items():
            pair.log.flush()
            self._note_end(key, pair)

    def _receive_by_pair(self, segments: pa.RecordBatch) -> None:
        """Handle the segments of one port pair after the other, long runs of them at once."""
        pairs = segments.column("flow").dictionary_encode()
        keys, codes = pairs.dictionary.to_pylist(), pairs.indices.to_numpy()
        order = np.argsort(codes, kind="stable")
        ends = np.searchsorted(codes[order], np.arange(len(keys) + 1)).tolist()
        rows, flags = SegmentRows(segments.take(pa.array(order))), segments.column("flags").to_numpy()[order]
        for key, (begin, end) in zip(keys, pairwise(ends), strict=True):
            handshake = begin + np.flatnonzero(flags[begin:end] & SYN)
            pair = self._receive_pair(rows, key, begin, end, int(handshake.max(initial=begin - 1)) + 1)
            pair.log.release_batch()
            self._note_end(key, pair)
            self._count_if_full()
        last = np.zeros(len(keys), np.int64)
        last[codes] = np.arange(len(codes))
        for at in np.argsort(last).tolist():
            self._pairs.move_to_end(keys[at])

    def _receive_pair(self, rows: SegmentRows, key: bytes, begin: int, end: int, handshake: int) -> _Pair:
        """Handle the segments of a port pair in `rows`, and return it. Those with SYN are before row `handshake`."""
        pair, row = self._pairs.get(key), begin
        while pair is None or (not pair.known and row < handshake):
            # The handshake shows which side is the server.
            segment = rows.segment(row)
            pair, from_ = self._pair(key, segment.direction, segment.flags)
            pair.log.receive(segment._replace(direction=from_))
            if pair.known and pair.log.connection is not None:
                self._assumed.discard(pair.log.connection.connection_id)
            row += 1
        if pair.turned:
            rows.servers[row:end] ^= 1
        while row < end:
            row = pair.log.receive_rows(rows, row, end)
        return pair

    def _count_if_full(self) -> None:
        if self._log.full and not self._unseen.wanted:
            self._count()

    def finish(self) -> Iterator[Row]:
        """The rows of everything that was still open at the end of the capture."""
        for pair in self._pairs.values():
            self._finish(pair)
            if self._log.full:
                yield from self._rows()
        self._pairs.clear()
        yield from self._rows()

    def _servers(self, parsed: pa.RecordBatch) -> tuple[pa.BooleanArray, pa.BooleanArray]:
        """For each packet, whether the receiver's port may be a server's, and whether the sender's may be."""
        ports = [parsed.column(end).fill_null(-1) for end in ("destination_port", "source_port")]
        if self._port is None:
            return pc.greater_equal(ports[0], 0), pc.greater_equal(ports[1], 0)
        servers = pa.array(self._port, ports[0].type)
        return pc.is_in(ports[0], servers), pc.is_in(ports[1], servers)

    def _pair(self, key: bytes, sender: Direction, flags: int) -> tuple[_Pair, Direction]:
        """The port pair of a segment, and its sender. `sender` assumes that the server has the lower port."""
        pair = self._pairs.get(key)
        known = self._port is not None or bool(flags & SYN)
        if pair is None or (known and not pair.known):
            client = other(sender) if flags & ACK else sender
            is_server = client is Direction.SERVER if flags & SYN else self._is_at_server_port(key)
            turned = self._port is None and is_server
            if pair is not None and pair.turned is not turned:
                self._finish(pair)
                pair = None
            if pair is None:
                pair = self._new(key[len(key) // 2 :] + key[: len(key) // 2] if turned else key, turned, known)
                self._pairs[key] = pair
            pair.known, pair.shown = known, known or pair.shown
        self._pairs.move_to_end(key)
        return pair, other(sender) if pair.turned else sender

    def _is_at_server_port(self, key: bytes) -> bool:
        """Whether, of both ports, only that of the side assumed to be the client is known as a server's."""
        server, client = self._are_server_ports(key)
        return client and not server

    def _are_server_ports(self, key: bytes) -> tuple[bool, bool]:
        """Whether the ports of a key, that of the assumed server first, are known as servers'."""
        half = len(key) // 2
        return key[half - 2 : half] in self._server_ports, key[-2:] in self._server_ports

    def _new(self, flow: bytes, turned: bool, known: bool) -> _Pair:
        start = self._start
        if not isinstance(start, Gather):
            server, client = self._are_server_ports(flow)

            def begin(log: Log, connection: Connection, server: Endpoint, snapshot: str | None) -> Dialogue:
                if not pair.shown:
                    self._assumed.add(connection.connection_id)
                return start(log, connection, server, snapshot)

            log = FlowLog(self._log, begin, "", flow, self._options)
            pair = _Pair(log, turned, known, known or server is not client)
            return pair
        between = addresses(flow)
        if between not in self._gathered:
            self._gathered[between] = GatheredFlows(self._log, start, "", between, self._options, {})
        gathered = self._gathered[between]
        return _Pair(gathered.add(flow), turned, known, known, gathered)

    def _finish(self, pair: _Pair) -> None:
        """End a port pair: it has no more segments."""
        if pair.gathered is not None:
            pair.gathered.remove(pair.log)
            if pair.gathered.idle:
                del self._gathered[addresses(pair.log.key)]
        pair.log.finish()

    def _note_end(self, key: bytes, pair: _Pair) -> None:
        connection = pair.log.connection
        self._ended.pop(key, None)
        if connection is not None and connection.closed is not None:
            self._ended[key] = None

    def _forget(self, now_ns: int) -> None:
        """Drop pairs that are idle; if there are too many, also those that ended or fell silent first."""
        while self._pairs:
            key, pair = next(iter(self._pairs.items()))
            connection = pair.log.connection
            if connection is not None and connection.last.arrived_at_ns + self._options.idle_ns > now_ns:
                break
            self._drop(key)
        while len(self._ended) > MOST_ENDED:
            self._drop(next(iter(self._ended)))
        while len(self._pairs) > MOST_PAIRS:
            self._drop(next(iter(self._pairs)))

    def _drop(self, key: bytes) -> None:
        self._finish(self._pairs.pop(key))
        self._ended.pop(key, None)

    def _rows(self, left_out: Iterable[Row] = ()) -> Iterator[Row]:
        """The rows in the log and `left_out`, in order of arrival."""
        if not self._unseen.wanted:
            self._count()
        batches = (
            batch.slice(at, BATCH_ROWS)
            for batch in (*self._counted, *self._log.take())
            for at in range(0, batch.num_rows, BATCH_ROWS)
        )
        logged = [_by_arrival(batch) for batch in batches]
        self._counted.clear()
        merged = heapq.merge(sorted(left_out, key=_arrival), *logged, key=_arrival)
        return (row for row in merged if row["row_kind"] != _BEGIN and self._is_sound(row))

    def _is_sound(self, row: Row) -> bool:
        """Mark a row whose sides are assumed. Returns whether the row is valid all the same."""
        if row.get("connection_id") not in self._assumed:
            return True
        row["sides"] = ASSUMED
        finding = row.get("finding") or {}
        about_capture = str(finding.get("rule")).startswith("capture.")
        return row["row_kind"] != VIOLATION or about_capture or finding["severity"] == Severity.NOTE

    def _count(self) -> None:
        """Count the messages in the log that nobody needs as rows, and set its other rows aside."""
        taken: list[pa.RecordBatch] = []
        rows = 0
        for batch in self._log.take():
            taken.append(batch)
            rows += batch.num_rows
            if rows >= BATCH_ROWS:
                self._count_in(pa.Table.from_batches(taken))
                taken, rows = [], 0
        if taken:
            self._count_in(pa.Table.from_batches(taken))

    def _count_in(self, table: pa.Table) -> None:
        unseen = pc.equal(table.column("row_kind"), MESSAGE)
        if (needed := self._needed(table)) is not None:
            unseen = pc.and_not(unseen, needed.fill_null(False))
        kinds = pc.struct_field(table.column("message"), "kind").filter(unseen)
        for counted in pc.value_counts(kinds).to_pylist():
            self._unseen.messages[str(counted["values"])] += counted["counts"]
        self._counted += table.filter(pc.invert(unseen)).combine_chunks().to_batches()


def _by_arrival(batch: pa.RecordBatch) -> Iterator[Row]:
    """The rows of a log's batch, sorted by `_arrival`, after a row of kind _BEGIN at the location of the first.

    The batch stays compressed until the merge has passed the _BEGIN row. Only a few rows at a time are Python objects,
    because each takes some kilobytes.
    """
    kinds, numbers = batch.column("row_kind"), batch.column("record_number").fill_null(-1)
    order = np.lexsort((numbers, batch.column("arrived_at_ns"), pc.equal(kinds, CONNECTION)))
    order = order[np.asarray(pc.not_equal(kinds, STATE))[order]]
    if not len(order):
        return iter(())
    (begin,) = batch.slice(order[0], 1).select(_PLACE).to_pylist()
    return _unpacked(begin | {"row_kind": _BEGIN}, pack(pa.Table.from_batches([batch])), batch.schema, order)


def _unpacked(begin: Row, packed: pa.Buffer, schema: pa.Schema, order: Order) -> Iterator[Row]:
    yield begin
    (batch,) = unpack(packed, schema)
    for at in range(0, len(order), _FEW_ROWS):
        yield from batch.take(pa.array(order[at : at + _FEW_ROWS])).to_pylist()


def _left_out(packets: pa.RecordBatch, skips: pa.StringArray) -> Iterator[Row]:
    """Rows for the packets that aren't segments of a connection."""
    mask = skips.is_valid()
    names = (*_PLACE, "damaged", "damage")
    columns = [skips.filter(mask), *(packets.column(name).filter(mask) for name in names)]
    for skip, *fields in zip(*(column.to_pylist() for column in columns), strict=True):
        row = dict(zip(names, fields, strict=True))
        if row["damaged"] is not None:
            found = _finding(CAPTURE_RULE["file_damaged"], row["damage"])
            # Damaged bytes may come from any packet, also from one with a secret. The reason is about the capture only.
            yield row | {"row_kind": QUARANTINE} | found
            continue
        yield row | {"row_kind": SKIP, "skip": skip}
        if skip == "ip_fragment":
            yield row | {"row_kind": VIOLATION} | _finding(CAPTURE_RULE["ip_fragment"], "not reassembled")


def _finding(rule: Rule, message: str) -> Row:
    return {"finding": {"rule": rule.id, "severity": rule.severity.value, "message": message}}


def _arrival(row: Row) -> tuple[bool, int, int]:
    """The sort key of rows by arrival. Connections come last, because their location is that of their first packet."""
    number = row["record_number"]
    return row["row_kind"] == CONNECTION, row["arrived_at_ns"], -1 if number is None else number
