"""Packets to TCP segments in Arrow batches: who sent them, and to which port pair they belong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.packets import parse
from wirehouse_codecs.tcp import Direction
from wirehouse_pipelines import arrow_types
from wirehouse_pipelines.tables import all_tables

#: Why a segment is left out that no source's port is part of.
PORT_NOT_CLAIMED: Final = "port_not_claimed"
#: Columns of a landed packet that `read` needs, besides source and window_start.
LANDED: Final = (
    *("record_number", "ts_ns", "arrived_at_ns", "capture_arrived_at_ns", "capture_id"),
    *("link_type", "original_length", "data", "damaged", "damage"),
)
SCHEMA: Final = arrow_types.schema(all_tables()["bronze.segments"])
#: Columns that only a segment of a claimed port has.
_TCP: Final = (
    *("source_address", "source_port", "destination_address", "destination_port"),
    *("sequence", "acknowledgment", "flags", "window", "payload", "payload_bytes"),
)
_SIDES: Final = pa.array([Direction.CLIENT, Direction.SERVER], pa.string())
_NOTHING: Final = pa.scalar(b"", pa.binary())


def read(batches: Iterable[pa.RecordBatch], ports: Mapping[str, tuple[int, ...]]) -> Iterator[pa.RecordBatch]:
    """Rows of bronze.segments for landed packets (LANDED, source, window_start); `ports` are the servers' by source."""
    for batch in batches:
        yield _read(batch, ports)


def _read(batch: pa.RecordBatch, ports: Mapping[str, tuple[int, ...]]) -> pa.RecordBatch:
    parsed = parse(batch)
    columns = {name: batch.column(name) for name in ("source", "window_start", *LANDED) if name in SCHEMA.names}
    is_segment = parsed.column("skip").is_null()
    to_server, from_server = _claimed(batch.column("source"), parsed, ports)
    claimed = pc.and_(is_segment, pc.or_(to_server, from_server))
    # Between two ports of the source the lower one is the server's, and of equal ones that of the lower address.
    both = pc.and_(to_server, from_server)
    side = pc.if_else(both, _from_lower(parsed), from_server)
    for name in _TCP:
        columns[name] = _only(claimed, parsed.column(name))
    columns["direction"] = _only(claimed, _SIDES.take(side.cast(pa.int8())))
    columns["flow"] = _only(claimed, _flow(parsed, side))
    unclaimed = pc.if_else(claimed, pa.scalar(None, pa.string()), PORT_NOT_CLAIMED)
    columns["skip"] = pc.coalesce(parsed.column("skip"), unclaimed)
    arrays = [columns[field.name].cast(field.type) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _only(which: pa.BooleanArray, column: pa.Array) -> pa.Array:
    """`column` with null where `which` isn't true."""
    return column if which.true_count == len(which) else pc.if_else(which, column, pa.scalar(None, column.type))


def _claimed(
    sources: pa.StringArray, parsed: pa.RecordBatch, ports: Mapping[str, tuple[int, ...]]
) -> tuple[pa.BooleanArray, pa.BooleanArray]:
    """Whether the receiver's, and the sender's, port is one of the source."""
    names = pc.unique(sources).to_pylist()
    found = []
    for end in ("destination_port", "source_port"):
        column = parsed.column(end).fill_null(-1)
        mine = [pc.is_in(column, pa.array(ports[name], column.type)) for name in names]
        claimed = mine[0] if mine else pa.array([], pa.bool_())
        for name, here in zip(names[1:], mine[1:], strict=True):
            claimed = pc.if_else(pc.equal(sources, name), here, claimed)
        found.append(claimed)
    return found[0], found[1]


def _from_lower(parsed: pa.RecordBatch) -> pa.BooleanArray:
    """Whether the sender's port, or of equal ones its address, is the lower one."""
    ours, theirs = parsed.column("source_port"), parsed.column("destination_port")
    lower = pc.less(parsed.column("source_address"), parsed.column("destination_address"))
    return pc.if_else(pc.equal(ours, theirs), lower, pc.less(ours, theirs)).fill_null(False)


def _flow(parsed: pa.RecordBatch, from_server: pa.BooleanArray) -> pa.BinaryArray:
    ends = [(parsed.column(f"{end}_address"), _port_bytes(parsed.column(f"{end}_port"))) for end in _ENDS]
    server = [pc.if_else(from_server, ours, theirs) for ours, theirs in zip(*ends, strict=True)]
    client = [pc.if_else(from_server, theirs, ours) for ours, theirs in zip(*ends, strict=True)]
    return pc.binary_join_element_wise(*server, *client, _NOTHING)


_ENDS: Final = ("source", "destination")


def _port_bytes(ports: pa.Int32Array) -> pa.BinaryArray:
    """Ports as two bytes in network order."""
    data = ports.fill_null(0).to_numpy().astype(">u2").tobytes()
    offsets = np.arange(0, 2 * len(ports) + 1, 2, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), len(ports), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
