"""Packets to TCP segments in Arrow batches: who sent them, and to which port pair they belong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs import port_pairs
from wirehouse_codecs.packets import parse
from wirehouse_pipelines import arrow_types
from wirehouse_pipelines.tables import all_tables

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


def read(batches: Iterable[pa.RecordBatch], ports: Mapping[str, tuple[int, ...]]) -> Iterator[pa.RecordBatch]:
    """Rows of bronze.segments for landed packets (LANDED, source, window_start); `ports` are the servers' by source."""
    for batch in batches:
        yield _read(batch, ports)


def _read(batch: pa.RecordBatch, ports: Mapping[str, tuple[int, ...]]) -> pa.RecordBatch:
    parsed = parse(batch)
    columns = {name: batch.column(name) for name in ("source", "window_start", *LANDED) if name in SCHEMA.names}
    claimed, direction, flow = port_pairs.sides(parsed, *_claimed(batch.column("source"), parsed, ports))
    for name in _TCP:
        columns[name] = _only(claimed, parsed.column(name))
    columns["direction"] = _only(claimed, direction)
    columns["flow"] = _only(claimed, flow)
    columns["skip"] = port_pairs.skips(parsed, claimed)
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
