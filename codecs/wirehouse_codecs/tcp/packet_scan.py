"""The fast path of `packets.read_packet`: all packets of a batch in one loop of machine code.

The same tests check both paths. What a packet means is documented in `packets`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from wirehouse_codecs.compiled.jit import compiled, copy_bytes, inlined, wide
from wirehouse_codecs.tcp.link_types import ETHERNET, IPV4, IPV6, LINUX_SLL, LINUX_SLL2, LOOP, NULL, RAW_IP

Array = np.ndarray[Any, Any]

#: Positions in SKIPS.
SEGMENT, NOT_IP, NOT_TCP, IP_FRAGMENT, TRUNCATED, BAD_HEADER, UNKNOWN_LINK_TYPE, DAMAGED = range(8)

#: Numbers of a segment, as columns.
SOURCE_PORT, DESTINATION_PORT, SEQUENCE, ACKNOWLEDGMENT, FLAGS, WINDOW, PAYLOAD_BYTES = range(7)
NUMBERS = 7
#: Bytes of a segment, as columns of where each ends.
SOURCE_ADDRESS, DESTINATION_ADDRESS, PAYLOAD = 0, 1, 2
TEXTS = 3

VLAN_TAGS: Final = (0x8100, 0x88A8, 0x9100)
ETHERTYPE_IPV4, ETHERTYPE_IPV6 = 0x0800, 0x86DD
AF_INET: Final = 2
AF_INET6: Final = (24, 28, 30)
MOST_FAMILY: Final = 0xFFFF

HOP_BY_HOP, TCP, ROUTING, FRAGMENT, AUTHENTICATION, DESTINATION_OPTIONS = 0, 6, 43, 44, 51, 60
IPV4_HEADER_BYTES, IPV6_HEADER_BYTES, TCP_HEADER_BYTES, EXTENSION_BYTES = 20, 40, 20, 8


@inlined
def short_at(data: Array, at: int) -> int:
    """The 16-bit number at `at`, in network order."""
    return wide(data[at]) << 8 | wide(data[at + 1])


@inlined
def long_at(data: Array, at: int) -> int:
    """The 32-bit number at `at`, in network order."""
    return wide(data[at]) << 24 | wide(data[at + 1]) << 16 | wide(data[at + 2]) << 8 | wide(data[at + 3])


@inlined
def cut_or_bad(needed: int, ip_end: int) -> int:
    """Why a header doesn't end before `needed`: the IP packet is shorter itself, or was not captured up to there."""
    return BAD_HEADER if needed > ip_end else TRUNCATED


@compiled
def ip_by_ethertype(data: Array, ethertype: int, at: int, end: int) -> tuple[int, int, int]:
    """Pass over VLAN tags; returns what `find_ip` returns."""
    while ethertype in VLAN_TAGS:
        if at + 4 > end:
            return TRUNCATED, 0, at
        ethertype = short_at(data, at + 2)
        at += 4
    if ethertype == ETHERTYPE_IPV4:
        return SEGMENT, 4, at
    if ethertype == ETHERTYPE_IPV6:
        return SEGMENT, 6, at
    return NOT_IP, 0, at


@compiled
def ip_by_family(data: Array, at: int, end: int, network_order: bool) -> tuple[int, int, int]:
    """Read the address family of BSD loopback, in network order or any host's; returns what `find_ip` returns."""
    if at + 4 > end:
        return TRUNCATED, 0, at
    family = long_at(data, at)
    if not network_order and family > MOST_FAMILY:
        family = wide(data[at]) | wide(data[at + 1]) << 8 | wide(data[at + 2]) << 16 | wide(data[at + 3]) << 24
    if family == AF_INET:
        return SEGMENT, 4, at + 4
    if family in AF_INET6:
        return SEGMENT, 6, at + 4
    return NOT_IP, 0, at


@compiled
def find_ip(data: Array, at: int, end: int, link_type: int) -> tuple[int, int, int]:
    """Skip, IP version and position of the IP header of the packet from `at` to `end`."""
    if link_type == ETHERNET:
        return ip_by_ethertype(data, short_at(data, at + 12), at + 14, end) if at + 14 <= end else (TRUNCATED, 0, at)
    if link_type == LINUX_SLL:
        return ip_by_ethertype(data, short_at(data, at + 14), at + 16, end) if at + 16 <= end else (TRUNCATED, 0, at)
    if link_type == LINUX_SLL2:
        return ip_by_ethertype(data, short_at(data, at), at + 20, end) if at + 20 <= end else (TRUNCATED, 0, at)
    if link_type in (NULL, LOOP):
        return ip_by_family(data, at, end, link_type == LOOP)
    if link_type == IPV4:
        return SEGMENT, 4, at
    if link_type == IPV6:
        return SEGMENT, 6, at
    if link_type not in RAW_IP:
        return UNKNOWN_LINK_TYPE, 0, at
    if at >= end:
        return TRUNCATED, 0, at
    version = wide(data[at]) >> 4
    return (SEGMENT if version in (4, 6) else NOT_IP), version, at


@compiled
def tcp_in_ipv4(data: Array, at: int, end: int) -> tuple[int, int, int]:
    """Skip, position of the TCP header and end of the IP packet at `at`."""
    if at + IPV4_HEADER_BYTES > end:
        return TRUNCATED, 0, 0
    header, total = (wide(data[at]) & 15) * 4, short_at(data, at + 2)
    if data[at] >> 4 != 4 or header < IPV4_HEADER_BYTES or 0 < total < header:
        return BAD_HEADER, 0, 0
    if at + header > end:
        return TRUNCATED, 0, 0
    if short_at(data, at + 6) & 0x3FFF:
        return IP_FRAGMENT, 0, 0
    if data[at + 9] != TCP:
        return NOT_TCP, 0, 0
    return SEGMENT, at + header, at + total if total else end


@compiled
def tcp_in_ipv6(data: Array, at: int, end: int) -> tuple[int, int, int]:
    """Skip, position of the TCP header and end of the IP packet at `at`."""
    if at + IPV6_HEADER_BYTES > end:
        return TRUNCATED, 0, 0
    if data[at] >> 4 != 6:
        return BAD_HEADER, 0, 0
    length, kind = short_at(data, at + 4), wide(data[at + 6])
    at += IPV6_HEADER_BYTES
    ip_end = at + length if length else end
    limit = min(ip_end, end)
    while kind != TCP:
        if kind not in (HOP_BY_HOP, ROUTING, DESTINATION_OPTIONS, AUTHENTICATION, FRAGMENT):
            return NOT_TCP, 0, 0
        if at + EXTENSION_BYTES > limit:
            return cut_or_bad(at + EXTENSION_BYTES, ip_end), 0, 0
        size = (wide(data[at + 1]) + 1) * 8
        if kind == AUTHENTICATION:
            size = (wide(data[at + 1]) + 2) * 4
        elif kind == FRAGMENT:
            size = EXTENSION_BYTES
            if short_at(data, at + 2) & 0xFFF9:
                return IP_FRAGMENT, 0, 0
        if at + size > limit:
            return cut_or_bad(at + size, ip_end), 0, 0
        kind = wide(data[at])
        at += size
    return SEGMENT, at, ip_end


@compiled
def read_one(data: Array, at: int, end: int, link_type: int, row: int, numbers: Array, ends: Array, out: Any) -> int:
    """Read the packet from `at` to `end` into `row`; returns why it is no segment, or SEGMENT."""
    skip, version, ip = find_ip(data, at, end, link_type)
    if skip != SEGMENT:
        return skip
    skip, tcp, ip_end = tcp_in_ipv4(data, ip, end) if version == 4 else tcp_in_ipv6(data, ip, end)
    if skip != SEGMENT:
        return skip
    limit = min(ip_end, end)
    if tcp + TCP_HEADER_BYTES > limit:
        return cut_or_bad(tcp + TCP_HEADER_BYTES, ip_end)
    header = (wide(data[tcp + 12]) >> 4) * 4
    if header < TCP_HEADER_BYTES:
        return BAD_HEADER
    payload = tcp + header
    if payload > limit:
        return cut_or_bad(payload, ip_end)
    numbers[SOURCE_PORT, row] = short_at(data, tcp)
    numbers[DESTINATION_PORT, row] = short_at(data, tcp + 2)
    numbers[SEQUENCE, row] = long_at(data, tcp + 4)
    numbers[ACKNOWLEDGMENT, row] = long_at(data, tcp + 8)
    numbers[FLAGS, row] = short_at(data, tcp + 12) & 0x1FF
    numbers[WINDOW, row] = short_at(data, tcp + 14)
    numbers[PAYLOAD_BYTES, row] = ip_end - payload
    size, address = (4, ip + 12) if version == 4 else (16, ip + 8)
    copy_bytes(data, address, size, out[SOURCE_ADDRESS], ends[SOURCE_ADDRESS, row])
    copy_bytes(data, address + size, size, out[DESTINATION_ADDRESS], ends[DESTINATION_ADDRESS, row])
    copy_bytes(data, payload, limit - payload, out[PAYLOAD], ends[PAYLOAD, row])
    ends[SOURCE_ADDRESS, row + 1] += size
    ends[DESTINATION_ADDRESS, row + 1] += size
    ends[PAYLOAD, row + 1] += limit - payload
    return SEGMENT


@compiled
def read_packets(
    data: Array,
    offsets: Array,
    present: Array,
    link_types: Array,
    numbers: Array,
    ends: Array,
    out: Any,
    skips: Array,
) -> None:
    """Read all packets; `ends` begin with a column of zeros, `out` has room for addresses and payloads."""
    for row in range(len(link_types)):
        for text in range(TEXTS):
            ends[text, row + 1] = ends[text, row]
        skips[row] = DAMAGED
        if present[row]:
            skips[row] = read_one(
                data, wide(offsets[row]), wide(offsets[row + 1]), link_types[row], row, numbers, ends, out
            )
