"""bronze.segments says of a packet what the readable reader says, and whose it is."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tests.codecs.tcp.test_packets import A4, B4, HOP, IP4, SEGMENTS, SKIPPED, extended, options4, tcp, vlan
from wirehouse_codecs.logs.inspection import LANDED_PACKETS
from wirehouse_codecs.simulate.pcap_writer import ethernet, ip_packet
from wirehouse_codecs.tcp.link_types import ETHERNET, IPV4, IPV6
from wirehouse_codecs.tcp.packets import Segment, read_packet
from wirehouse_pipelines.jobs import segments

PACKETS = [
    *((link_type, data) for link_type, data, _ in SEGMENTS.values()),
    *((link_type, data) for link_type, _, data in SKIPPED.values()),
    (ETHERNET, vlan(ethernet(IP4), *[0x8100] * 60)),
    (IPV6, extended(*[HOP] * 60)),
    (IPV6, extended(*[HOP] * 60)[:300]),
    (IPV4, options4(ip_packet(A4, B4, tcp(options=bytes(40), payload=b"said" * 500)), 40)),
]


def rows(packets: list[tuple[int, bytes | None]], ports: range | tuple[int, ...]) -> list[dict[str, Any]]:
    landed = [
        {"record_number": number, "link_type": link_type, "data": data, "damaged": b"junk" if data is None else None}
        for number, (link_type, data) in enumerate(packets)
    ]
    found: list[dict[str, Any]] = segments.read(pa.RecordBatch.from_pylist(landed, LANDED_PACKETS), ports).to_pylist()
    return found


def segment(row: dict[str, Any]) -> Segment:
    return Segment._make(row[name] for name in Segment._fields)


def test_rows_are_what_the_readable_reader_says() -> None:
    found = rows([*PACKETS, (ETHERNET, None)], range(2**16))
    assert [segment(row) for row in found[:-1]] == [read_packet(link_type, data) for link_type, data in PACKETS]
    assert segment(found[-1]) == Segment(skip="damaged")
    assert found[-1]["damaged"] == b"junk"
    assert [row["record_number"] for row in found] == list(range(len(PACKETS) + 1))


def test_packets_of_other_ports_have_no_columns_of_tcp() -> None:
    (row,) = rows([(ETHERNET, ethernet(IP4))], (1,))
    assert segment(row) == Segment(skip="port_not_claimed")
    assert (row["flow"], row["direction"]) == (None, None)
