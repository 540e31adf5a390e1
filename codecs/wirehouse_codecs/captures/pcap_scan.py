"""Compiled loops over the packets of a capture file: they locate the packets and join their bytes.

The loops read only valid packets. At anything else (the start of another file, an interface, a packet that is cut off
or invalid) a loop stops, and `captures.pcap` handles the bytes there.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from wirehouse_codecs.compiled.jit import compiled, copy_bytes, inlined, wide

Array = np.ndarray[Any, Any]

#: A packet has at most this many captured bytes, libpcap's own limit (MAXIMUM_SNAPLEN).
MAX_CAPTURED_BYTES: Final = 262_144
#: Maximum size of a pcapng block, Wireshark's own limit; a larger length is damage.
MAX_BLOCK_BYTES: Final = 16 << 20

#: Magics of pcap as little-endian numbers: microseconds, nanoseconds, and microseconds with longer packet headers, each
#: in both byte orders.
MICROSECONDS: Final = 0xA1B2C3D4
MICROSECONDS_SWAPPED: Final = 0xD4C3B2A1
NANOSECONDS: Final = 0xA1B23C4D
NANOSECONDS_SWAPPED: Final = 0x4D3CB2A1
MODIFIED: Final = 0xA1B2CD34
MODIFIED_SWAPPED: Final = 0x34CDB2A1
#: Versions 2.0 to 2.4 are read. DG/UX wrote 543.0, which is 2.2.
MAJOR, LAST_MINOR, MAJOR_OF_DG_UX = 2, 4, 543
#: The type of a section header reads the same in both byte orders; its magic shows which one is used.
SECTION_HEADER: Final = 0x0A0D0D0A
BYTE_ORDER: Final = 0x1A2B3C4D
BYTE_ORDER_SWAPPED: Final = 0x4D3C2B1A

INTERFACE_DESCRIPTION: Final = 1
PACKET: Final = 2
SIMPLE_PACKET: Final = 3
ENHANCED_PACKET: Final = 6

RECORD_HEADER_BYTES: Final = 16
#: Modified pcap adds interface, protocol and packet type; on some systems also the processor.
MODIFIED_HEADER_BYTES: Final = 24
LONGER_HEADER_BYTES: Final = 28
#: Maximum number of consecutive packet headers that are all zeros.
MAX_ZERO_HEADERS: Final = 4_096
#: Which of the two lengths in a packet header comes first: the original one before version 2.3, the captured one since.
#: Some 2.3 files still have the original one first, so in 2.3 the smaller one is the captured length.
CAPTURED_FIRST, ORIGINAL_FIRST, SMALLER_CAPTURED = 0, 1, 2
#: A block has its type and length before its body, and the length again after it.
LEAST_BLOCK_BYTES: Final = 12
#: Size of a block of each kind without packet data.
PACKET_BLOCK_BYTES: Final = 32
SIMPLE_PACKET_BLOCK_BYTES: Final = 16
#: Minimum size of a packet in a file.
LEAST_PACKET_BYTES: Final = 16

#: Columns of the output: where the data of a packet begins, its captured and original length, its interface.
BEGIN, CAPTURED, ORIGINAL, INTERFACE = 0, 1, 2, 3
FOUND = 4
#: Takes the place of the interface for a packet without a timestamp.
NO_TIME: Final = 1 << 32


@inlined
def number_at(data: Array, at: int, big: bool) -> int:
    """The unsigned 32-bit number at `at`."""
    a, b, c, d = wide(data[at]), wide(data[at + 1]), wide(data[at + 2]), wide(data[at + 3])
    return a << 24 | b << 16 | c << 8 | d if big else d << 24 | c << 16 | b << 8 | a


@compiled
def begins_file(data: Array, at: int) -> bool:
    """Whether a pcap file or a pcapng section begins at `at`, where there must be 12 bytes.

    A packet header with these bytes would have the magic as its seconds and the version as their fraction.
    """
    first, second = number_at(data, at, False), number_at(data, at + 4, False)
    if first == SECTION_HEADER:
        magic = number_at(data, at + 8, False)
        return magic in (BYTE_ORDER, BYTE_ORDER_SWAPPED)
    if first in (MICROSECONDS, NANOSECONDS, MODIFIED):
        return _is_version(second & 0xFFFF, second >> 16)
    if first in (MICROSECONDS_SWAPPED, NANOSECONDS_SWAPPED, MODIFIED_SWAPPED):
        second = number_at(data, at + 4, True)
        return _is_version(second >> 16, second & 0xFFFF)
    return False


@inlined
def _is_version(major: int, minor: int) -> bool:
    return minor <= LAST_MINOR if major == MAJOR else major == MAJOR_OF_DG_UX and minor == 0


@inlined
def _captured_of(first: int, second: int, order: int) -> int:
    """The captured length, from the two lengths in a packet header."""
    return second if order == ORIGINAL_FIRST or (order == SMALLER_CAPTURED and second < first) else first


@compiled
def zero_headers(data: Array, at: int, size: int) -> int:
    """How many consecutive packet headers of `size` bytes from `at` on begin with 16 zeros, up to MAX_ZERO_HEADERS."""
    count = 0
    while count < MAX_ZERO_HEADERS and at + size <= len(data):
        for each in range(RECORD_HEADER_BYTES):
            if data[at + each]:
                return count
        count += 1
        at += size
    return count


@compiled
def may_be_header(data: Array, at: int, big: bool, units_per_second: int, order: int) -> bool:
    """Whether a packet header or a file may begin at `at`, where there must be 16 bytes."""
    if begins_file(data, at):
        return True
    seconds, fraction = number_at(data, at, big), number_at(data, at + 4, big)
    first, second = number_at(data, at + 8, big), number_at(data, at + 12, big)
    captured = _captured_of(first, second, order)
    # If the zeros end in the middle of a header, it seems to have no time and no bytes.
    known = seconds | fraction | captured
    return (
        bool(known) and fraction < units_per_second and captured <= min(MAX_CAPTURED_BYTES, first + second - captured)
    )


@compiled
def scan_records(
    data: Array,
    at: int,
    big: bool,
    units_per_second: int,
    size: int,
    order: int,
    found: Array,
    units: Array,
) -> tuple[int, int]:
    """Locate the packets of a pcap file from `at` on. Returns how many there are, and the position after the last.

    Packet headers have `size` bytes, and their lengths are in `order`. `units` receives the timestamps since 1970 in
    the file's resolution.
    """
    rows = 0
    # Number of headers from here on that are all zeros and known to be followed by a valid one.
    zeros = 0
    while at + size <= len(data):
        seconds, fraction = number_at(data, at, big), number_at(data, at + 4, big)
        first, second = number_at(data, at + 8, big), number_at(data, at + 12, big)
        captured = _captured_of(first, second, order)
        if captured > MAX_CAPTURED_BYTES or captured > len(data) - at - size or begins_file(data, at):
            break
        if not (seconds | fraction | first | second):
            if not zeros:
                zeros = zero_headers(data, at, size)
                after = at + zeros * size
                if after + RECORD_HEADER_BYTES > len(data):
                    break
                if not may_be_header(data, after, big, units_per_second, order):
                    break
            zeros -= 1
        found[rows, BEGIN] = at + size
        found[rows, CAPTURED] = captured
        found[rows, ORIGINAL] = first + second - captured
        found[rows, INTERFACE] = 0
        units[rows] = seconds * units_per_second + fraction
        rows += 1
        at += size + captured
    return rows, at


@compiled
def scan_blocks(
    data: Array, at: int, big: bool, interfaces: int, snap_length: int, found: Array, units: Array
) -> tuple[int, int]:
    """Locate the packets of a pcapng section from `at` on. Returns how many, and the position after the last block.

    Simple packets depend on `snap_length`, that of the first of the section's `interfaces` (0: no limit). Blocks of
    other types are skipped.
    """
    rows = 0
    while at + LEAST_BLOCK_BYTES <= len(data):
        kind, length = number_at(data, at, big), number_at(data, at + 4, big)
        if length < LEAST_BLOCK_BYTES or length & 3 or length > MAX_BLOCK_BYTES or length > len(data) - at:
            break
        if kind in (INTERFACE_DESCRIPTION, SECTION_HEADER) or begins_file(data, at):
            break
        if number_at(data, at + length - 4, big) != length:
            break
        if kind in (ENHANCED_PACKET, PACKET):
            if length < PACKET_BLOCK_BYTES:
                break
            interface = number_at(data, at + 8, big)
            if kind == PACKET:
                interface = interface >> 16 if big else interface & 0xFFFF
            captured = number_at(data, at + 20, big)
            if interface >= interfaces or captured > MAX_CAPTURED_BYTES or captured > length - PACKET_BLOCK_BYTES:
                break
            found[rows, BEGIN] = at + 28
            found[rows, CAPTURED] = captured
            found[rows, ORIGINAL] = number_at(data, at + 24, big)
            found[rows, INTERFACE] = interface
            units[rows] = np.uint64(number_at(data, at + 12, big)) << np.uint64(32) | np.uint64(
                number_at(data, at + 16, big)
            )
            rows += 1
        elif kind == SIMPLE_PACKET:
            if length < SIMPLE_PACKET_BLOCK_BYTES or not interfaces:
                break
            original = number_at(data, at + 8, big)
            captured = min(original, snap_length) if snap_length else original
            if captured > MAX_CAPTURED_BYTES or captured > length - SIMPLE_PACKET_BLOCK_BYTES:
                break
            found[rows, BEGIN] = at + 12
            found[rows, CAPTURED] = captured
            found[rows, ORIGINAL] = original
            found[rows, INTERFACE] = NO_TIME
            units[rows] = 0
            rows += 1
        at += length
    return rows, at


@compiled
def put_together(data: Array, found: Array, offsets: Array, out: Array) -> None:
    """Join the bytes of the packets in `out`, and write to `offsets` where each begins and ends."""
    to = 0
    offsets[0] = 0
    for row in range(len(found)):
        copy_bytes(data, found[row, BEGIN], found[row, CAPTURED], out, to)
        to += found[row, CAPTURED]
        offsets[row + 1] = to


def room_for(size: int) -> tuple[Array, Array]:
    """Output arrays for the loops, large enough for all packets in `size` bytes."""
    most = size // LEAST_PACKET_BYTES + 1
    return np.empty((most, FOUND), np.int64), np.empty(most, np.uint64)
