"""Packets to TCP segments: who sent them, and to which port pair they belong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type

from wirehouse_codecs import port_pairs
from wirehouse_codecs.link_types import LOOP, NULL
from wirehouse_codecs.packet_columns import ETHERTYPE_IPV4, ETHERTYPE_IPV6, TCP
from wirehouse_codecs.packets import ETHERTYPES, FAMILY_BYTES, HEAD_BYTES, HEAD_SCHEMA, parse_heads
from wirehouse_pipelines import arrow_types
from wirehouse_pipelines.tables import all_tables

_IP: Final = (ETHERTYPE_IPV4, ETHERTYPE_IPV6)
_TABLE: Final = all_tables()["bronze.segments"]
#: Columns that only a segment of a claimed port has, and why the others have none.
_READ: Final = pa.struct(
    [
        *(field for field in arrow_types.schema(_TABLE) if field.name in (*HEAD_SCHEMA.names, "flow", "direction")),
        HEAD_SCHEMA.field("payload_at"),
        HEAD_SCHEMA.field("captured_bytes"),
    ]
)


def read(landed: DataFrame, ports: Mapping[str, tuple[int, ...]]) -> DataFrame:
    """Rows of bronze.segments for landed packets; `ports` are the servers' by source.

    Payloads stay in Spark: Python is given the heads of packets and tells where the payload stands.
    """

    def read_batch(sources: pa.Array, heads: pa.Array, captured: pa.Array, link_types: pa.Array) -> pa.Array:
        return _read(sources, parse_heads(heads, captured, link_types), ports)

    reader = F.arrow_udf(read_batch, from_arrow_type(_READ))  # type: ignore[attr-defined]  # not in the stubs yet
    captured = F.coalesce(F.length("data"), F.lit(-1))
    told = landed.withColumn("read", reader("source", _head(), captured, "link_type"))
    payload = F.substring("data", F.col("read.payload_at") + 1, F.col("read.captured_bytes"))
    own = {"payload": payload} | {name: F.col(f"read.{name}") for name in _READ.names}
    return told.select(*(own.get(column.name, F.col(column.name)).alias(column.name) for column in _TABLE.columns))


def _head() -> Column:
    """The first bytes of a packet, with all its headers: the whole packet where these may be longer."""
    data, link_type = F.col("data"), F.col("link_type")
    ip_at = F.when(link_type.isin(NULL, LOOP), FAMILY_BYTES).otherwise(0)
    is_ip = F.lit(True)
    for link, (place, size) in ETHERTYPES.items():
        ip_at = F.when(link_type == link, size).otherwise(ip_at)
        known = F.substring(data, place + 1, 2).isin(*(bytearray(n.to_bytes(2, "big")) for n in _IP))
        is_ip = F.when(link_type == link, known).otherwise(is_ip)
    version, next_header = F.substring(data, ip_at + 1, 1), F.substring(data, ip_at + 7, 1)
    ipv4 = version.between(*map(_byte, (0x40, 0x4F)))
    ipv6 = version.between(*map(_byte, (0x60, 0x6F))) & (next_header == _byte(TCP))
    return F.when(is_ip & (ipv4 | ipv6), F.substring(data, 1, HEAD_BYTES)).otherwise(data)


def _byte(number: int) -> Column:
    return F.lit(bytearray((number,)))


def _read(sources: pa.StringArray, parsed: pa.RecordBatch, ports: Mapping[str, tuple[int, ...]]) -> pa.StructArray:
    """_READ of packets of `sources` whose heads were parsed."""
    claimed, direction, flow = port_pairs.sides(parsed, *_claimed(sources, parsed, ports))
    found = dict(zip(parsed.schema.names, parsed.columns, strict=True)) | {"flow": flow, "direction": direction}
    columns = {name: _only(claimed, column) for name, column in found.items()}
    columns["skip"] = port_pairs.skips(parsed, claimed)
    return pa.StructArray.from_arrays([columns[field.name].cast(field.type) for field in _READ], fields=list(_READ))


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
