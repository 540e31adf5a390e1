"""The landed packets of one TCP connection, in order of arrival, from which rows of silver and gold were computed.

Spark isn't needed: manifests show which objects may have packets of the port pair, and these are reassembled again.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import dropwhile
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.core.errors import UsageError
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_codecs.tcp.packets import SYN, parse
from wirehouse_codecs.tcp.reassembly import Data, Flow, TcpSegment
from wirehouse_pipelines.lake.lake import PACKET_KINDS, Lake
from wirehouse_pipelines.landing import object_reader
from wirehouse_pipelines.landing.manifests import Manifest, check_there, manifests
from wirehouse_pipelines.storage.storage import open_storage

_COLUMNS: Final = ("sequence", "acknowledgment", "flags", "window", "payload", "payload_bytes")


@dataclass(frozen=True, slots=True)
class TracedConnection:
    """A connection, from a row of silver.connections."""

    source: str
    connection_id: bytes
    client: Endpoint
    server: Endpoint
    #: Capture and record of the first packet.
    first: tuple[bytes, int]
    #: Arrivals of the first and the last packet.
    started_at_ns: int
    last_at_ns: int

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> TracedConnection:
        """The connection of a row."""
        return cls(
            row["source"],
            row["connection_id"],
            Endpoint(row["client_address"], row["client_port"]),
            Endpoint(row["server_address"], row["server_port"]),
            (row["capture_id"], row["record_number"]),
            row["started_at_ns"],
            row["last_at_ns"],
        )


class PacketsGoneError(UsageError):
    """The connection of a row can't be found in landing."""

    template = (
        "connection {connection} of source {source} can't be reassembled from what is landed; "
        "if captures were landed or removed since, run `wirehouse run`"
    )


class LandedPacket(NamedTuple):
    """A landed packet and the segment in it."""

    place: Place
    #: The landed record.
    record: Mapping[str, Any]
    segment: TcpSegment

    @property
    def name(self) -> tuple[bytes, int]:
        """Capture and record."""
        return self.place.capture_id, self.place.record_number


class Carried(NamedTuple):
    """A packet of the connection, and the range of its stream that it carries."""

    packet: LandedPacket
    #: Its payload in the stream; None where the stream isn't numbered.
    byte_start: int | None
    #: What came to be read with it, of both directions.
    data: tuple[Data, ...]
    #: The first byte of each direction that is still to come.
    next_bytes: Mapping[str, int]


def packets(lake: Lake, connection: TracedConnection) -> Iterator[Carried]:
    """All packets of the connection in order of arrival. PacketsGoneError if landing doesn't have its first one."""
    # Rows stay when their source is taken out of the configuration.
    tcp = next((source.tcp for source in lake.sources if source.name == connection.source), TcpOptions())
    flow = Flow(connection.source, connection.client, connection.server, tcp)
    begun: bytes | None = None
    for packet in dropwhile(lambda packet: packet.name != connection.first, _of_port_pair(lake, connection)):
        segment = packet.segment
        events = flow.receive(segment)
        # Where a coarse clock gives several connections one moment, the first one's id is another here.
        if flow.connection is None or (begun or flow.connection.connection_id) != flow.connection.connection_id:
            break
        begun = flow.connection.connection_id
        side, _ = flow.connection.sides(segment.direction)
        start = side.position(segment.sequence + bool(segment.flags & SYN)) if segment.payload else None
        next_bytes = {str(direction): flow.connection.sides(direction)[0].next_byte for direction in Direction}
        yield Carried(packet, start, tuple(event for event in events if isinstance(event, Data)), next_bytes)
    if not begun:
        raise PacketsGoneError(connection=connection.connection_id.hex(), source=connection.source)


def _of_port_pair(lake: Lake, connection: TracedConnection) -> Iterator[LandedPacket]:
    """Packets between the two ends within the connection's time, by arrival."""

    def read(manifest: Manifest) -> Iterator[LandedPacket]:
        return _of_capture(lake, manifest, connection)

    captures = (
        manifest
        for manifest in manifests(lake, connection.source)
        if manifest.kind in PACKET_KINDS
        and manifest.records
        and (manifest.first_arrived_at_ns or 0) <= connection.last_at_ns
        and (manifest.last_arrived_at_ns or 0) >= connection.started_at_ns
    )
    return _merged(sorted(captures, key=_first_arrival), read)


def _first_arrival(manifest: Manifest) -> int:
    return manifest.first_arrived_at_ns or 0


def _merged(captures: list[Manifest], read: Callable[[Manifest], Iterator[LandedPacket]]) -> Iterator[LandedPacket]:
    """The packets of all captures by arrival. A capture is opened only when its time comes: there may be many."""
    waiting = deque(captures)
    heads: list[tuple[tuple[int, int, bytes, int], LandedPacket, Iterator[LandedPacket]]] = []

    def advance(one: Iterator[LandedPacket]) -> None:
        for packet in one:
            heapq.heappush(heads, (packet.place.order, packet, one))
            return

    while waiting or heads:
        while waiting and (not heads or _first_arrival(waiting[0]) <= heads[0][1].place.arrived_at_ns):
            advance(read(waiting.popleft()))
        if heads:
            _, packet, one = heapq.heappop(heads)
            yield packet
            advance(one)


def _of_capture(lake: Lake, manifest: Manifest, connection: TracedConnection) -> Iterator[LandedPacket]:
    check_there(manifest)
    storage = open_storage(lake.root)
    first, last = lake.windows.of(connection.started_at_ns), lake.windows.of(connection.last_at_ns)
    for window, listed in manifest.windows.items():
        if not first <= window <= last:
            continue
        for name in listed.objects:
            with storage.open(name) as stream:
                for records in object_reader.read(stream, name):
                    yield from _of_records(records, connection)


def _of_records(records: pa.RecordBatch, connection: TracedConnection) -> Iterator[LandedPacket]:
    """The packets among landed records that are between the two ends, within the connection's time."""
    arrived = pc.field("arrived_at_ns")
    records = records.filter((arrived >= connection.started_at_ns) & (arrived <= connection.last_at_ns))
    parsed = parse(records)
    ends = connection.client, connection.server
    sent = {
        Direction.CLIENT: _between(parsed, *ends),
        Direction.SERVER: _between(parsed, *reversed(ends)),
    }
    rows = pc.indices_nonzero(pc.or_(*sent.values()))
    from_client = sent[Direction.CLIENT].take(rows).to_pylist()
    columns = [parsed.column(name).take(rows).to_pylist() for name in _COLUMNS]
    for record, is_client, *fields in zip(records.take(rows).to_pylist(), from_client, *columns, strict=True):
        place = Place(
            record["arrived_at_ns"], record["capture_arrived_at_ns"], record["capture_id"], record["record_number"]
        )
        direction = Direction.CLIENT if is_client else Direction.SERVER
        yield LandedPacket(place, record, TcpSegment(place, direction, *fields))


def _between(parsed: pa.RecordBatch, sender: Endpoint, receiver: Endpoint) -> pa.BooleanArray:
    """Whether each segment goes from `sender` to `receiver`."""
    wanted = {
        "source_address": sender.packed,
        "source_port": sender.port,
        "destination_address": receiver.packed,
        "destination_port": receiver.port,
    }
    found = parsed.column("skip").is_null()
    for name, value in wanted.items():
        column = parsed.column(name)
        found = pc.and_(found, pc.equal(column, pa.scalar(value, column.type)).fill_null(False))
    return found
