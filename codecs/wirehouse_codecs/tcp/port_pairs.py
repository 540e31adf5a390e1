"""Which segments belong together, and which side of them is the server: vectorised over Arrow batches."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.tcp.endpoints import Direction

#: Why a segment is left out if neither of its ports is a server's.
PORT_NOT_CLAIMED: Final = "port_not_claimed"
_SIDES: Final = pa.array([Direction.CLIENT, Direction.SERVER], pa.string())
_NOTHING: Final = pa.scalar(b"", pa.binary())
_ENDS: Final = ("source", "destination")


class Sides(NamedTuple):
    """Columns with a row for each segment: whether a port of it is a server's, who sent it, and the port pair."""

    claimed: pa.BooleanArray
    #: client or server; means nothing where it isn't claimed, like `flow`.
    direction: pa.StringArray
    #: Address and port of the server, then of the client: all segments of a port pair have the same.
    flow: pa.BinaryArray


def sides(parsed: pa.RecordBatch, to_server: pa.BooleanArray, from_server: pa.BooleanArray) -> Sides:
    """The sides of rows of packets.SEGMENT_SCHEMA, given whether the receiver's, and the sender's, port is a server's.

    Between two such ports the lower one is the server's, and of equal ones that of the lower address.
    """
    claimed = pc.and_(parsed.column("skip").is_null(), pc.or_(to_server, from_server))
    both = pc.and_(to_server, from_server)
    side = pc.if_else(both, _from_lower(parsed), from_server)
    return Sides(claimed, _SIDES.take(side.cast(pa.int8())), _flow(parsed, side))


def skips(parsed: pa.RecordBatch, claimed: pa.BooleanArray) -> pa.StringArray:
    """Why each packet is left out; null where it is claimed."""
    unclaimed = pc.if_else(claimed, pa.scalar(None, pa.string()), PORT_NOT_CLAIMED)
    return pc.coalesce(parsed.column("skip"), unclaimed)


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


def _port_bytes(ports: pa.Int32Array) -> pa.BinaryArray:
    """Ports as two bytes in network order."""
    data = ports.fill_null(0).to_numpy().astype(">u2").tobytes()
    offsets = np.arange(0, 2 * len(ports) + 1, 2, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), len(ports), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
