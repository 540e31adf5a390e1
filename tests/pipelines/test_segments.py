"""bronze.segments says of a packet what the readable reader says, though Python is given but its head."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.codecs.test_packets import A4, B4, HOP, IP4, SEGMENTS, SKIPPED, extended, options4, tcp, vlan

from wirehouse_codecs.link_types import ETHERNET, IPV4, IPV6
from wirehouse_codecs.packet_writer import ethernet, ip_packet
from wirehouse_codecs.packets import HEAD_BYTES, Segment, parse_heads, read_packet
from wirehouse_pipelines import segments

PORTS = {"mine": tuple(range(2**16)), "other": (1,)}
LANDED = (
    "source STRING, window_start STRING, capture_id BINARY, capture_arrived_at_ns BIGINT, record_number BIGINT, "
    "ts_ns BIGINT, arrived_at_ns BIGINT, link_type INT, original_length BIGINT, data BINARY, damaged BINARY, "
    "damage STRING"
)
PACKETS = [
    *((link_type, data) for link_type, data, _ in SEGMENTS.values()),
    *((link_type, data) for link_type, _, data in SKIPPED.values()),
    (ETHERNET, vlan(ethernet(IP4), *[0x8100] * 60)),
    (IPV6, extended(*[HOP] * 60)),
    (IPV6, extended(*[HOP] * 60)[:300]),
    (IPV4, options4(ip_packet(A4, B4, tcp(options=bytes(40), payload=b"said" * 500)), 40)),
]
#: All of them with more behind them than is looked at.
LONG = [(link_type, data + bytes(HEAD_BYTES)) for link_type, data in PACKETS]


def rows(spark: Any, packets: list[tuple[int, bytes | None]], source: str = "mine") -> list[Any]:
    landed = [
        (source, "0", b"id", 1, number, 2, 3, link_type, 4, data, None if data is not None else b"junk", None)
        for number, (link_type, data) in enumerate(packets)
    ]
    found = segments.read(spark.createDataFrame(landed, LANDED), PORTS)
    return sorted(found.collect(), key=lambda row: row.record_number)


def segment(row: Any) -> Segment:
    return Segment._make(bytes(one) if isinstance(one, bytearray) else one for one in (row[n] for n in Segment._fields))


@pytest.mark.spark
def test_rows_are_what_the_readable_reader_says(spark: Any) -> None:
    packets = [*PACKETS, *LONG]
    wanted = [read_packet(link_type, data) for link_type, data in packets]
    found = rows(spark, [*packets, (ETHERNET, None)])
    assert [segment(row) for row in found[:-1]] == wanted
    assert segment(found[-1]) == Segment(skip="damaged")
    assert bytes(found[-1].damaged) == b"junk"
    assert max(len(one.payload or b"") for one in wanted) == 2000


@pytest.mark.spark
def test_packets_of_other_ports_have_no_columns_of_tcp(spark: Any) -> None:
    for row in rows(spark, [(ETHERNET, ethernet(IP4))], "other"):
        assert segment(row) == Segment(skip="port_not_claimed")
        assert (row.flow, row.direction) == (None, None)


def test_headers_that_go_on_after_the_head_are_truncated() -> None:
    for link_type, data in PACKETS:
        whole = read_packet(link_type, data)
        for size in {0, 30, 60, HEAD_BYTES}:
            head = data[:size]
            heads, sizes = pa.array([head], pa.binary()), pa.array([len(data)], pa.int32())
            (row,) = parse_heads(heads, sizes, pa.array([link_type], pa.int32())).to_pylist()
            if row["skip"] is None:
                at = row.pop("payload_at")
                captured = row.pop("captured_bytes")
                assert Segment(**row | {"payload": data[at : at + captured]}) == whole
            else:
                assert row["skip"] in (whole.skip, "truncated")
