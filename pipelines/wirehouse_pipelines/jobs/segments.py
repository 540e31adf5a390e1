"""Turns landed packets into rows of bronze.segments: parsed headers, the sender, and the port pair (`flow`)."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.tcp import port_pairs
from wirehouse_codecs.tcp.packets import parse


def read(landed: pa.RecordBatch, ports: Collection[int]) -> pa.RecordBatch:
    """The columns of bronze.segments for landed packets of a source; `ports` are those of its servers."""
    parsed = parse(landed)
    to_server, from_server = (
        pc.is_in(parsed.column(f"{end}_port"), pa.array(sorted(ports), pa.int32())) for end in ("destination", "source")
    )
    claimed, direction, flow = port_pairs.sides(parsed, to_server, from_server)
    # Only TCP segments on one of the ports have these columns.
    found = dict(zip(parsed.schema.names, parsed.columns, strict=True)) | {"flow": flow, "direction": direction}
    columns = dict(zip(landed.schema.names, landed.columns, strict=True))
    columns |= {name: _only(claimed, column) for name, column in found.items()}
    columns["skip"] = port_pairs.skips(parsed, claimed)
    return pa.RecordBatch.from_pydict(columns)


def _only(which: pa.BooleanArray, column: pa.Array) -> pa.Array:
    """`column` with null where `which` isn't true."""
    return column if which.true_count == len(which) else pc.if_else(which, column, pa.scalar(None, column.type))
