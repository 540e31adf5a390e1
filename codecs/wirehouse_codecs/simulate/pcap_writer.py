"""Builds TCP packets and writes pcap files, for simulators, excerpts and tests."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Final, Literal, NamedTuple

from wirehouse_codecs.captures.compressed_output import endings, opened
from wirehouse_codecs.captures.pcap_scan import MAX_CAPTURED_BYTES, MICROSECONDS, NANOSECONDS
from wirehouse_codecs.tcp.endpoints import Endpoint
from wirehouse_codecs.tcp.link_types import ETHERNET
from wirehouse_codecs.tcp.packet_scan import ETHERTYPE_IPV4, ETHERTYPE_IPV6, TCP
from wirehouse_codecs.tcp.packets import ACK

_ETHERTYPES: Final = {4: ETHERTYPE_IPV4, 6: ETHERTYPE_IPV6}
_HOP_LIMIT = 64
_NS_PER_S = 10**9
_MAX_IP_BYTES = 65_535


class CapturedPacket(NamedTuple):
    """A packet to write to a capture."""

    #: Nanoseconds since 1970 UTC.
    ts_ns: int
    #: Captured bytes.
    data: bytes
    #: Length on the wire; None if it is that of `data`.
    original_length: int | None = None


def write_pcap(
    packets: Iterable[CapturedPacket],
    stream: IO[bytes],
    *,
    byte_order: Literal["little", "big"] = "little",
    resolution: Literal["us", "ns"] = "us",
    link_type: int = ETHERNET,
    snap_length: int = MAX_CAPTURED_BYTES,
) -> None:
    """Write a pcap file (draft-ietf-opsawg-pcap) with the first `snap_length` bytes of each packet.

    Times must be from 1970 to 2106; with the resolution `us` they are truncated to microseconds.
    """
    order = "<" if byte_order == "little" else ">"
    magic, unit_ns = (NANOSECONDS, 1) if resolution == "ns" else (MICROSECONDS, 1_000)
    stream.write(struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, snap_length, link_type))
    header = struct.Struct(order + "IIII")
    for packet in packets:
        seconds, ns = divmod(packet.ts_ns, _NS_PER_S)
        original = len(packet.data) if packet.original_length is None else packet.original_length
        data = packet.data[:snap_length]
        stream.write(header.pack(seconds, ns // unit_ns, len(data), original) + data)


def write_file(packets: Iterable[CapturedPacket], path: Path, *, link_type: int = ETHERNET) -> int:
    """Write a pcap file with nanoseconds, compressed if `path` ends in `.gz` or `.zst`.

    Returns the number of packets.
    """
    written = 0

    def counted() -> Iterator[CapturedPacket]:
        nonlocal written
        for packet in packets:
            written += 1
            yield packet

    with opened(path) as file:
        write_pcap(counted(), file, resolution="ns", link_type=link_type)
    return written


#: Functions that write captures, by the suffix of the file name.
WRITERS: Final = endings(".pcap", write_file)


def tcp_packet(
    source: Endpoint,
    destination: Endpoint,
    *,
    sequence: int,
    acknowledgment: int = 0,
    flags: int = ACK,
    window: int = 65_535,
    options: bytes = b"",
    payload: bytes = b"",
) -> bytes:
    """An Ethernet frame with a TCP segment over IPv4 or IPv6, depending on the addresses, with valid checksums.

    `options` are TCP options, a multiple of 4 bytes. Raises ValueError if one address is IPv4 and the other IPv6, or
    if the payload is too long.
    """
    return ethernet(
        ip_packet(
            source,
            destination,
            tcp_segment(source, destination, sequence, acknowledgment, flags, window, options, payload),
        )
    )


def ethernet(packet: bytes) -> bytes:
    """An Ethernet frame around an IP packet, always between the same two local addresses."""
    return bytes.fromhex("020000000002020000000001") + struct.pack(">H", _ETHERTYPES[packet[0] >> 4]) + packet


def ip_packet(source: Endpoint, destination: Endpoint, segment: bytes) -> bytes:
    """An IP packet without options around a TCP segment."""
    from_, to = _addresses(source, destination)
    if len(segment) > _MAX_IP_BYTES - 40:
        raise ValueError(f"a segment of {len(segment)} bytes is longer than an IP packet can be")
    if len(from_) == 16:
        return struct.pack(">IHBB", 6 << 28, len(segment), TCP, _HOP_LIMIT) + from_ + to + segment
    head = struct.pack(">BBHHHBB", 0x45, 0, 20 + len(segment), 0, 0x4000, _HOP_LIMIT, TCP)
    return head + struct.pack(">H", checksum(head + from_ + to)) + from_ + to + segment


def tcp_segment(
    source: Endpoint,
    destination: Endpoint,
    sequence: int,
    acknowledgment: int,
    flags: int,
    window: int,
    options: bytes,
    payload: bytes,
) -> bytes:
    """A TCP segment (RFC 9293 section 3.1) with its checksum."""
    if len(options) % 4 or len(options) > 40:
        raise ValueError(f"{len(options)} bytes of TCP options; a multiple of 4 up to 40 was expected")
    from_, to = _addresses(source, destination)
    offset_and_flags = (5 + len(options) // 4) << 12 | flags
    head = struct.pack(
        ">HHIIHH", source.port, destination.port, sequence % 2**32, acknowledgment % 2**32, offset_and_flags, window
    )
    tail = bytes(2) + options + payload
    pseudo = from_ + to + struct.pack(">II", len(head) + 2 + len(tail), TCP)
    return head + struct.pack(">H", checksum(pseudo + head + bytes(2) + tail)) + tail


def checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071): a sum of 16-bit words with end-around carry is their value modulo 65535."""
    return -int.from_bytes(data + bytes(len(data) % 2), "big") % 0xFFFF


def _addresses(source: Endpoint, destination: Endpoint) -> tuple[bytes, bytes]:
    from_, to = source.packed, destination.packed
    if len(from_) != len(to):
        raise ValueError(f"{source.address} and {destination.address} are of two kinds")
    return from_, to
