"""Packets to TCP segments: what stands between the link layer and the payload.

Link types as of tcpdump.org/linktypes.html: Ethernet with VLAN tags (IEEE 802.1Q), Linux cooked v1 and v2, raw IP, BSD
loopback. IPv4 (RFC 791), IPv6 with extension headers (RFC 8200, RFC 4302), TCP (RFC 9293). Checksums are not looked
at: captures are taken before network cards fill them in. IP fragments are not reassembled.

`parse` reads a batch at once; `read_packet` is the reference path.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.tcp import packet_scan
from wirehouse_codecs.tcp.link_types import ETHERNET, IPV4, IPV6, LINUX_SLL, LINUX_SLL2, LOOP, NULL, RAW_IP
from wirehouse_codecs.tcp.packet_scan import (
    AF_INET,
    AF_INET6,
    AUTHENTICATION,
    DESTINATION_OPTIONS,
    ETHERTYPE_IPV4,
    ETHERTYPE_IPV6,
    FRAGMENT,
    HOP_BY_HOP,
    MOST_FAMILY,
    ROUTING,
    TCP,
    VLAN_TAGS,
    Array,
)

#: TCP flags (RFC 9293 section 3.1), from the lowest bit on; the ninth, once NS, is AE of accurate ECN.
FIN, SYN, RST, PSH, ACK, URG, ECE, CWR, AE = (1 << bit for bit in range(9))

#: The end of an Ethernet frame (IEEE 802.3 section 3.2.9).
FRAME_CHECK_BYTES: Final = 4
#: Why a packet is no TCP segment, in the order of the codes of `tcp.packet_scan`.
SKIPS: Final = (
    None,
    "not_ip",
    "not_tcp",
    "ip_fragment",
    "truncated",
    "bad_header",
    "unknown_link_type",
    "damaged",
)

SEGMENT_SCHEMA: Final = pa.schema(
    [
        ("source_address", pa.binary()),
        ("source_port", pa.int32()),
        ("destination_address", pa.binary()),
        ("destination_port", pa.int32()),
        ("sequence", pa.int64()),
        ("acknowledgment", pa.int64()),
        ("flags", pa.int32()),
        ("window", pa.int32()),
        ("payload", pa.binary()),
        ("payload_bytes", pa.int32()),
        ("skip", pa.string()),
    ]
)


class Segment(NamedTuple):
    """A row of SEGMENT_SCHEMA: a TCP segment, or only `skip`."""

    #: 4 or 16 bytes.
    source_address: bytes | None = None
    source_port: int | None = None
    destination_address: bytes | None = None
    destination_port: int | None = None
    sequence: int | None = None
    acknowledgment: int | None = None
    #: FIN, SYN, RST, PSH, ACK, URG, ECE, CWR, AE from the lowest bit on.
    flags: int | None = None
    #: The window field as sent, before scaling.
    window: int | None = None
    #: The captured part of the payload.
    payload: bytes | None = None
    #: Number of payload bytes that were sent, by the length of the IP packet.
    payload_bytes: int | None = None
    #: Why this is no TCP segment that can be read, one of SKIPS.
    skip: str | None = None


_NUMBERS = {
    "source_port": packet_scan.SOURCE_PORT,
    "destination_port": packet_scan.DESTINATION_PORT,
    "sequence": packet_scan.SEQUENCE,
    "acknowledgment": packet_scan.ACKNOWLEDGMENT,
    "flags": packet_scan.FLAGS,
    "window": packet_scan.WINDOW,
    "payload_bytes": packet_scan.PAYLOAD_BYTES,
}
_TEXTS = {
    "source_address": packet_scan.SOURCE_ADDRESS,
    "destination_address": packet_scan.DESTINATION_ADDRESS,
    "payload": packet_scan.PAYLOAD,
}


def parse(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A row of SEGMENT_SCHEMA for every row of `batch`, which has `link_type` and `data` of PACKET_SCHEMA."""
    rows = batch.num_rows
    if not rows:
        return pa.RecordBatch.from_pylist([], schema=SEGMENT_SCHEMA)
    column = batch.column("data")
    _, offsets_buffer, data_buffer = column.buffers()
    offsets = _read_only(offsets_buffer, np.int32)[column.offset : column.offset + rows + 1]
    data = _read_only(data_buffer or pa.py_buffer(b""), np.uint8)
    present = column.is_valid().to_numpy(zero_copy_only=False)
    link_types = batch.column("link_type").fill_null(0).to_numpy().astype(np.int64)
    numbers = np.zeros((packet_scan.NUMBERS, rows), np.int64)
    ends = np.zeros((packet_scan.TEXTS, rows + 1), np.int64)
    room = int(offsets[-1] - offsets[0])
    out = (np.empty(16 * rows, np.uint8), np.empty(16 * rows, np.uint8), np.empty(room, np.uint8))
    skips = np.zeros(rows, np.int64)
    packet_scan.read_packets(data, offsets, present, link_types, numbers, ends, out, skips)
    columns = _columns(numbers, ends, out, skips)
    return pa.RecordBatch.from_arrays([columns[name] for name in SEGMENT_SCHEMA.names], schema=SEGMENT_SCHEMA)


def _read_only(buffer: pa.Buffer, kind: type[np.generic]) -> Array:
    """`buffer` as an array; always read-only, or the loops were compiled for each of the two kinds."""
    array = np.frombuffer(buffer, kind)
    array.flags.writeable = False
    return array


def _columns(numbers: Array, ends: Array, out: tuple[Array, ...], skips: Array) -> dict[str, pa.Array]:
    skipped = skips != packet_scan.SEGMENT
    bitmap = pa.py_buffer(np.packbits(~skipped, bitorder="little")) if skipped.any() else None
    columns = {"skip": pa.array(SKIPS, pa.string()).take(pa.array(skips))}
    for name, place in _NUMBERS.items():
        kind = SEGMENT_SCHEMA.field(name).type
        values = numbers[place].astype(kind.to_pandas_dtype())
        columns[name] = pa.Array.from_buffers(kind, len(skips), [bitmap, pa.py_buffer(values)])
    for name, place in _TEXTS.items():
        # A copy of what is used, so that the column doesn't keep the whole room for it.
        used, offsets = out[place][: ends[place, -1]].copy(), ends[place].astype(np.int32)
        buffers = [bitmap, pa.py_buffer(offsets), pa.py_buffer(used)]
        columns[name] = pa.Array.from_buffers(pa.binary(), len(skips), buffers)
    return columns


def cut_by_snap_length(batch: pa.RecordBatch) -> tuple[int, int]:
    """Number of packets of `batch` (PACKET_SCHEMA) that the snap length cut, and the size of the largest of these.

    A packet of which only the frame check sequence is missing is whole: cards often keep it to themselves.
    """
    sizes = pc.binary_length(batch.column("data"))
    missing = pc.subtract(batch.column("original_length"), sizes)
    is_short = pc.greater(missing, 0).fill_null(False)
    sizes, missing, short = sizes.filter(is_short), missing.filter(is_short), parse(batch.filter(is_short))
    lacks_payload = pc.greater(short.column("payload_bytes"), pc.binary_length(short.column("payload")))
    is_truncated = pc.equal(short.column("skip"), "truncated")
    shows = pc.or_(lacks_payload.fill_null(False), is_truncated.fill_null(False))
    cut = sizes.filter(pc.or_(shows, pc.greater(missing, FRAME_CHECK_BYTES)))
    return len(cut), pc.max(cut).as_py() or 0


class Skipped(Exception):
    """Why a packet is no TCP segment; becomes `skip`."""


def read_packet(link_type: int, data: bytes) -> Segment:
    """The segment of one packet, or the row with the reason why it has none."""
    try:
        version, packet = _ip_packet(link_type, data)
        return _read_ipv4(packet) if version == 4 else _read_ipv6(packet)
    except Skipped as reason:
        return Segment(skip=str(reason))


def _need(data: bytes, size: int, ip_bytes: int | None = None) -> None:
    """Skip a packet of which not all `size` bytes were captured, or that can't have as many by its IP length."""
    if ip_bytes is not None and size > ip_bytes:
        raise Skipped("bad_header")
    if size > len(data):
        raise Skipped("truncated")


def _ip_packet(link_type: int, data: bytes) -> tuple[int, bytes]:
    """IP version and packet behind the link layer's header."""
    if link_type in (IPV4, IPV6):
        return 4 if link_type == IPV4 else 6, data
    if link_type in RAW_IP:
        _need(data, 1)
        if data[0] >> 4 not in (4, 6):
            raise Skipped("not_ip")
        return data[0] >> 4, data
    if link_type in (NULL, LOOP):
        _need(data, 4)
        return _version_by_family(data[:4], link_type == LOOP), data[4:]
    if link_type not in (ETHERNET, LINUX_SLL, LINUX_SLL2):
        raise Skipped("unknown_link_type")
    # Where the type of what follows stands, and the size of the header.
    place, size = {ETHERNET: (12, 14), LINUX_SLL: (14, 16), LINUX_SLL2: (0, 20)}[link_type]
    _need(data, size)
    ethertype, packet = data[place : place + 2], data[size:]
    while int.from_bytes(ethertype, "big") in VLAN_TAGS:
        _need(packet, 4)
        ethertype, packet = packet[2:4], packet[4:]
    versions = {ETHERTYPE_IPV4: 4, ETHERTYPE_IPV6: 6}
    if (version := versions.get(int.from_bytes(ethertype, "big"))) is None:
        raise Skipped("not_ip")
    return version, packet


def _version_by_family(family: bytes, network_order: bool) -> int:
    """IP version of the address family of the host that captured; LOOP's is in network order, NULL's in either."""
    number = int.from_bytes(family, "big")
    if number > MOST_FAMILY and not network_order:
        number = int.from_bytes(family, "little")
    if number != AF_INET and number not in AF_INET6:
        raise Skipped("not_ip")
    return 4 if number == AF_INET else 6


def _read_ipv4(packet: bytes) -> Segment:
    _need(packet, 20)
    header = (packet[0] & 15) * 4
    total, _, fragment = struct.unpack_from(">HHH", packet, 2)
    if packet[0] >> 4 != 4 or header < 20 or 0 < total < header:
        raise Skipped("bad_header")
    _need(packet, header)
    # Offset and more-fragments; not the bits don't-fragment and reserved.
    if fragment & 0x3FFF:
        raise Skipped("ip_fragment")
    if packet[9] != TCP:
        raise Skipped("not_tcp")
    # Network cards that segment for the host are handed packets without a length.
    ip_bytes = total or len(packet)
    return _read_tcp(packet[12:16], packet[16:20], packet[header:], ip_bytes - header)


def _read_ipv6(packet: bytes) -> Segment:
    _need(packet, 40)
    if packet[0] >> 4 != 6:
        raise Skipped("bad_header")
    left, kind = struct.unpack_from(">HB", packet, 4)
    rest = packet[40:]
    left = left or len(rest)
    while kind != TCP:
        if kind not in (HOP_BY_HOP, ROUTING, DESTINATION_OPTIONS, AUTHENTICATION, FRAGMENT):
            raise Skipped("not_tcp")
        _need(rest, 8, left)
        size = _extension_bytes(kind, rest)
        _need(rest, size, left)
        kind, rest, left = rest[0], rest[size:], left - size
    return _read_tcp(packet[8:24], packet[24:40], rest, left)


def _extension_bytes(kind: int, header: bytes) -> int:
    if kind == AUTHENTICATION:
        return (header[1] + 2) * 4
    if kind != FRAGMENT:
        return (header[1] + 1) * 8
    # A fragment header with neither offset nor more-fragments is around a whole packet.
    if int.from_bytes(header[2:4], "big") & 0xFFF9:
        raise Skipped("ip_fragment")
    return 8


def _read_tcp(source: bytes, destination: bytes, segment: bytes, ip_bytes: int) -> Segment:
    """Read a segment of `ip_bytes` by the IP length; what is captured beyond is padding of the link layer."""
    _need(segment, 20, ip_bytes)
    source_port, destination_port, sequence, acknowledgment, offset_and_flags, window = struct.unpack_from(
        ">HHIIHH", segment
    )
    header = (offset_and_flags >> 12) * 4
    if header < 20:
        raise Skipped("bad_header")
    _need(segment, header, ip_bytes)
    return Segment(
        source_address=source,
        source_port=source_port,
        destination_address=destination,
        destination_port=destination_port,
        sequence=sequence,
        acknowledgment=acknowledgment,
        flags=offset_and_flags & 0x1FF,
        window=window,
        payload=segment[header:ip_bytes],
        payload_bytes=ip_bytes - header,
    )
