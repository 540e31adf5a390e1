"""Reads captures of packets, pcap or pcapng files, into Arrow batches of bounded size.

- pcap follows draft-ietf-opsawg-pcap: versions 2.0 to 2.4, both byte orders, micro- and nanoseconds, and the modified
  format with longer packet headers.
- pcapng follows draft-ietf-opsawg-pcapng, version 1: section headers, interfaces, and enhanced, simple and obsolete
  packet blocks. Other blocks are skipped.

Several files, also of both formats, may follow each other in one capture. The content decides which format a capture
has, and how it is compressed.

Captured content never raises an exception. Packets end where the capture is damaged: `PacketCapture.damage` is
where and why, and the remaining bytes become rows with pieces of them in `damaged`. A length is only trusted if as many
bytes follow.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
import pyarrow as pa

from wirehouse_codecs.captures import pcap_scan
from wirehouse_codecs.captures.inflate import Plain, fill, open_inflated
from wirehouse_codecs.captures.pcap_scan import (
    BYTE_ORDER,
    BYTE_ORDER_SWAPPED,
    CAPTURED_FIRST,
    ENHANCED_PACKET,
    INTERFACE_DESCRIPTION,
    LEAST_BLOCK_BYTES,
    LONGER_HEADER_BYTES,
    MAJOR,
    MAX_BLOCK_BYTES,
    MAX_CAPTURED_BYTES,
    MAX_ZERO_HEADERS,
    MICROSECONDS,
    MICROSECONDS_SWAPPED,
    MODIFIED,
    MODIFIED_HEADER_BYTES,
    MODIFIED_SWAPPED,
    NANOSECONDS,
    NANOSECONDS_SWAPPED,
    NO_TIME,
    ORIGINAL_FIRST,
    PACKET,
    PACKET_BLOCK_BYTES,
    RECORD_HEADER_BYTES,
    SECTION_HEADER,
    SIMPLE_PACKET,
    SIMPLE_PACKET_BLOCK_BYTES,
    SMALLER_CAPTURED,
    Array,
)
from wirehouse_codecs.captures.source import NOWHERE, Origin

#: A capture is read in blocks of this size; a batch holds the packets of one block ...
BLOCK_BYTES: Final = 4 << 20
#: ... but consecutive small files and sections share one, until it has this many rows.
LEAST_ROWS: Final = 1_000
#: Bytes that can't be read are kept in pieces of at most this size.
PIECE_BYTES: Final = 8 << 20
#: Maximum number of interfaces in a section, all of which are held in memory.
MAX_INTERFACES: Final = 1 << 16

#: Magic, version, zone, accuracy, snap length, link type.
PCAP_HEADER_BYTES: Final = 24
#: Type, length, byte-order magic, version, section length, length.
SECTION_HEADER_BYTES: Final = 28
#: Type, length, link type, reserved, snap length, length.
INTERFACE_BYTES: Final = 20
#: Number of bytes needed to recognise the start of a file.
START_BYTES: Final = 12

_IF_TSRESOL, _IF_TSOFFSET = 9, 14
_OPTION_BYTES = {_IF_TSRESOL: 1, _IF_TSOFFSET: 8}
_MICROSECOND_EXPONENT, _NANOSECOND_EXPONENT = 6, 9
_NS_PER_S = 10**9
#: Magics of pcap files whose numbers are big-endian.
_SWAPPED: Final = (MICROSECONDS_SWAPPED, NANOSECONDS_SWAPPED, MODIFIED_SWAPPED)
#: Number of packet headers that are checked to find out how long they are.
_HEADERS_LOOKED_AT: Final = 3
_INT64_MAX = 2**63 - 1

PACKET_SCHEMA: Final = pa.schema(
    [
        ("ts_ns", pa.int64()),
        ("link_type", pa.int32()),
        ("original_length", pa.int64()),
        ("data", pa.binary()),
        ("damaged", pa.binary()),
        ("damage", pa.string()),
    ]
)


class Packet(NamedTuple):
    """A row of PACKET_SCHEMA: a packet, or `damaged` bytes that can't be read, with the reason in `damage`."""

    #: Nanoseconds since 1970 UTC, limited to the range of 64 bits; None for a packet without a time.
    ts_ns: int | None = None
    #: The number that tcpdump.org/linktypes.html registers.
    link_type: int | None = None
    #: Length on the wire; `data` may have fewer bytes.
    original_length: int | None = None
    data: bytes | None = None
    damaged: bytes | None = None
    damage: str | None = None


class Damage(Exception):
    """Why a capture can't be read further. Only this module sees this exception."""


@dataclass(frozen=True, slots=True)
class Interface:
    """A capture interface: its link type, and the format of its timestamps."""

    link_type: int
    #: Maximum number of captured bytes per packet; 0 for no limit.
    snap_length: int = 0
    #: Timestamps count units of which a second has `base` (10 or 2) to the power of `exponent`.
    base: int = 10
    exponent: int = _MICROSECOND_EXPONENT
    #: Seconds to add to every timestamp.
    offset: int = 0

    def nanoseconds(self, units: int) -> int:
        """A timestamp of this interface as whole nanoseconds since 1970, limited to the range of 64 bits."""
        per_second: int = self.base**self.exponent
        ns = units * _NS_PER_S // per_second + self.offset * _NS_PER_S
        return max(-_INT64_MAX - 1, min(_INT64_MAX, ns))

    @property
    def factor(self) -> int:
        """Nanoseconds per unit; 0 if that is not a whole number."""
        return 0 if self.base != 10 or self.exponent > 9 else int(10 ** (9 - self.exponent))

    @property
    def end(self) -> int:
        """Timestamps below this can be converted with `factor` and `offset` alone, without overflow."""
        shift = self.offset * _NS_PER_S
        if not self.factor or not -_INT64_MAX <= shift <= _INT64_MAX:
            return 0
        return (_INT64_MAX - max(shift, 0)) // self.factor


#: Converts the timestamps of many packets at once: see Interface.
_FACTS = np.dtype([("link_type", np.int32), ("factor", np.int64), ("shift_ns", np.int64), ("end", np.uint64)])


class Section:
    """A pcap file, or a section of a pcapng file: its byte order and interfaces."""

    def __init__(self, big: bool, blocks: bool) -> None:
        self.big = big
        #: Whether this is a pcapng section, made of blocks.
        self.blocks = blocks
        #: In a pcap file: size of a packet header, and which of its two lengths comes first.
        self.header_bytes = RECORD_HEADER_BYTES
        self.lengths = CAPTURED_FIRST
        self.order = ">" if big else "<"
        self.interfaces: list[Interface] = []
        self._facts: Array = np.zeros(1, _FACTS)

    def describe(self, interface: Interface) -> None:
        """Add an interface."""
        known = len(self.interfaces)
        if known == len(self._facts):
            self._facts = np.concatenate([self._facts, np.zeros(known, _FACTS)])
        shift_ns = interface.offset * _NS_PER_S if interface.end else 0
        self._facts[known] = (interface.link_type, interface.factor, shift_ns, interface.end)
        self.interfaces.append(interface)

    @property
    def units_per_second(self) -> int:
        """How many units of the fraction in a pcap timestamp a second has."""
        return int(10 ** self.interfaces[0].exponent)

    def lengths_of(self, first: int, second: int) -> tuple[int, int]:
        """Captured and original length of a packet, from the two lengths in its header."""
        swapped = self.lengths == ORIGINAL_FIRST or (self.lengths == SMALLER_CAPTURED and second < first)
        return (second, first) if swapped else (first, second)

    def scan(self, data: Array, at: int, room: tuple[Array, Array]) -> tuple[pa.RecordBatch | None, int]:
        """The valid packets from `at` on, or None, and the position after them."""
        if self.blocks:
            snap_length = self.interfaces[0].snap_length if self.interfaces else 0
            rows, end = pcap_scan.scan_blocks(data, at, self.big, len(self.interfaces), snap_length, *room)
        else:
            layout = self.big, self.units_per_second, self.header_bytes, self.lengths
            rows, end = pcap_scan.scan_records(data, at, *layout, *room)
        return self._batch(data, room[0][:rows], room[1][:rows]) if rows else None, end

    def _batch(self, data: Array, found: Array, units: Array) -> pa.RecordBatch:
        rows = len(found)
        timeless = found[:, pcap_scan.INTERFACE] == NO_TIME
        interface = np.where(timeless, 0, found[:, pcap_scan.INTERFACE])
        facts = self._facts[interface]
        # Other timestamps may overflow here; they are computed again below.
        ts_ns = units.astype(np.int64) * facts["factor"] + facts["shift_ns"]
        for row in np.flatnonzero(units >= facts["end"]).tolist():
            ts_ns[row] = self.interfaces[interface[row]].nanoseconds(int(units[row]))
        columns = {
            "ts_ns": pa.array(ts_ns, mask=timeless),
            "link_type": pa.array(facts["link_type"].copy()),
            "original_length": pa.array(found[:, pcap_scan.ORIGINAL].copy()),
            "data": _data_column(data, found),
        }
        arrays = [columns.get(name, pa.nulls(rows, PACKET_SCHEMA.field(name).type)) for name in PACKET_SCHEMA.names]
        return pa.RecordBatch.from_arrays(arrays, schema=PACKET_SCHEMA)


def _data_column(data: Array, found: Array) -> pa.Array:
    rows = len(found)
    offsets = np.empty(rows + 1, np.int32)
    out = np.empty(int(found[:, pcap_scan.CAPTURED].sum()), np.uint8)
    pcap_scan.put_together(data, found, offsets, out)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(out)])


class PacketCapture:
    """The packets of one capture, read once from start to end."""

    def __init__(self, stream: BinaryIO, origin: Origin = NOWHERE) -> None:
        """`stream` must be at the capture's first byte."""
        #: Why this isn't a capture of packets at all; None if it is.
        self.unreadable: str | None = None
        #: Why the capture ends early; final once `batches` is exhausted.
        self.damage: str | None = None
        self._source = open_inflated(stream, origin.limits)
        self._place = "byte {}" if isinstance(self._source, Plain) else "byte {} of the inflated capture"
        self._held = b""
        self._room = pcap_scan.room_for(0)
        self._at = 0
        #: Number of bytes of the capture before the buffered ones.
        self._before = 0
        #: Whether the source is at its end.
        self._whole = False
        self._hold(START_BYTES)
        if self._held and not self._begins_file():
            self.unreadable = _why_unreadable(self._held, self._source.damage)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows in the capture's order."""
        if self.unreadable is not None:
            return
        try:
            yield from _gathered(self._packets())
        except Damage as damage:
            # A record cut off where the compressed data is damaged is not damage of its own.
            ends = self._whole and self._source.damage
            self.damage = self._source.damage if ends else str(damage)
            yield from self._remains(f"after the damage: {self.damage}")
        if self._source.damage and self._source.damage != self.damage:
            self.damage = f"{self.damage}; {self._source.damage}" if self.damage else self._source.damage

    def rows(self) -> Iterator[Packet]:
        """The same, row by row."""
        for batch in self.batches():
            for row in batch.to_pylist():
                yield Packet(**row)

    def _extend(self) -> bool:
        """Buffer the next block, and drop what was read. Returns False at the end of the capture."""
        piece = b"" if self._whole else fill(self._source, BLOCK_BYTES)
        self._before += self._at
        self._held, self._at = self._held[self._at :] + piece, 0
        self._whole = not piece
        if piece:
            self._room = pcap_scan.room_for(len(self._held))
        return not self._whole

    def _packets(self) -> Iterator[pa.RecordBatch]:
        """The packets. Raises Damage where the capture can't be read further."""
        section: Section | None = None
        while self._at < len(self._held) or self._extend():
            if section is not None:
                batch, self._at = section.scan(np.frombuffer(self._held, np.uint8), self._at, self._room)
                if batch is not None:
                    yield batch
            left = len(self._held) - self._at
            if left < START_BYTES and self._extend():
                continue
            if self._begins_file():
                section = self._open_section()
            elif left and section is not None:
                before = self._at, len(self._held)
                self._read_odd(section)
                # The compiled loops and `_read_odd` check the same conditions. If they ever differ, this prevents an
                # endless loop.
                if before == (self._at, len(self._held)):
                    raise Damage(f"the bytes at {self._here()} are neither a packet nor known not to be one")

    def _remains(self, damage: str) -> Iterator[pa.RecordBatch]:
        while self._at < len(self._held) or self._extend():
            if len(self._held) - self._at < PIECE_BYTES and self._extend():
                continue
            piece = self._held[self._at : self._at + PIECE_BYTES]
            self._at += len(piece)
            yield to_batch([Packet(damaged=piece, damage=damage)])

    def _here(self) -> str:
        return self._place.format(self._before + self._at)

    def _hold(self, size: int) -> bool:
        """Buffer `size` bytes from here on. Returns False if the capture has fewer."""
        while len(self._held) - self._at < size:
            if not self._extend():
                return False
        return True

    def _numbers(self, layout: str, ahead: int = 0) -> tuple[Any, ...]:
        return struct.unpack_from(layout, self._held, self._at + ahead)

    def _begins_file(self) -> bool:
        if len(self._held) - self._at < START_BYTES:
            return False
        return pcap_scan.begins_file(np.frombuffer(self._held, np.uint8), self._at)

    def _open_section(self) -> Section:
        """Read the header of a file or section."""
        (magic,) = self._numbers("<I")
        if magic == SECTION_HEADER:
            (order,) = self._numbers("<I", 8)
            section = Section(order == BYTE_ORDER_SWAPPED, blocks=True)
            length = self._whole_block(section, SECTION_HEADER_BYTES, "section header")
            major, minor = self._numbers(section.order + "HH", 12)
            if major != 1:
                raise Damage(f"the section at {self._here()} is of pcapng version {major}.{minor}; 1.x is read")
            self._at += length
            return section
        if not self._hold(PCAP_HEADER_BYTES):
            raise Damage(f"the pcap header at {self._here()} is cut off")
        section = Section(magic in _SWAPPED, blocks=False)
        fine = magic in (NANOSECONDS, NANOSECONDS_SWAPPED)
        # The upper half of the link type has the length of frame check sequences. It isn't needed: the headers of
        # packets state where their payload ends.
        major, minor, *_, link_type = self._numbers(section.order + "HHIIII", 4)
        exponent = _NANOSECOND_EXPONENT if fine else _MICROSECOND_EXPONENT
        section.describe(Interface(link_type & 0xFFFF, exponent=exponent))
        if major != MAJOR or minor < 3:
            section.lengths = ORIGINAL_FIRST
        elif minor == 3:
            section.lengths = SMALLER_CAPTURED
        self._at += PCAP_HEADER_BYTES
        if magic in (MODIFIED, MODIFIED_SWAPPED):
            section.header_bytes = self._modified_header(section)
        return section

    def _modified_header(self, section: Section) -> int:
        """The size of packet headers in a modified pcap file, which can only be derived from the packets."""
        for size in (MODIFIED_HEADER_BYTES, LONGER_HEADER_BYTES):
            if self._may_have_headers(section, size):
                return size
        return MODIFIED_HEADER_BYTES

    def _may_have_headers(self, section: Section, size: int) -> bool:
        ahead = 0
        for _ in range(_HEADERS_LOOKED_AT):
            if not self._hold(ahead + size):
                return len(self._held) - self._at == ahead
            data, at = np.frombuffer(self._held, np.uint8), self._at + ahead
            if pcap_scan.begins_file(data, at):
                return True
            if not data[at : at + size].any():
                ahead += size
                continue
            if not pcap_scan.may_be_header(data, at, section.big, section.units_per_second, section.lengths):
                return False
            ahead += size + section.lengths_of(*self._numbers(section.order + "II", ahead + 8))[0]
        return True

    def _read_odd(self, section: Section) -> None:
        """Handle bytes at which the compiled loop stopped: buffer more, add an interface, or raise Damage."""
        if not section.blocks:
            self._judge_record(section)
            return
        length = self._whole_block(section, LEAST_BLOCK_BYTES, "block")
        (kind,) = self._numbers(section.order + "I")
        if kind == INTERFACE_DESCRIPTION:
            section.describe(self._interface(section, length))
            self._at += length
        elif kind == SECTION_HEADER:
            raise Damage(f"the section header at {self._here()} has an invalid byte-order magic")
        elif kind in (ENHANCED_PACKET, PACKET, SIMPLE_PACKET):
            self._judge_block(section, kind, length)

    def _judge_record(self, section: Section) -> None:
        """Buffer the pcap packet that begins here. Raises Damage if it is cut off or invalid."""
        size, held = section.header_bytes, len(self._held) - self._at
        if not self._hold(size):
            raise Damage(f"the packet header at {self._here()} is cut off")
        header = self._numbers(section.order + "IIII")
        captured, _ = section.lengths_of(*header[2:])
        if captured > MAX_CAPTURED_BYTES:
            raise Damage(_too_large(self._here(), captured))
        if not any(header):
            # The bytes after the zeros decide.
            self._hold(size * MAX_ZERO_HEADERS + RECORD_HEADER_BYTES)
            if held < len(self._held) - self._at:
                return
            raise Damage(f"the packet header at {self._here()} is all zeros; the file wasn't written to its end")
        if not self._hold(size + captured):
            held = len(self._held) - self._at - size
            raise Damage(f"the packet at {self._here()} is cut off: {held} of its {captured} bytes are there")

    def _whole_block(self, section: Section, least: int, what: str) -> int:
        """Buffer the block that begins here, and return its length. Raises Damage if it is cut off or invalid."""
        if not self._hold(8):
            raise Damage(f"the {what} at {self._here()} is cut off")
        kind: int
        length: int
        kind, length = self._numbers(section.order + "II")
        if length < least or length % 4 or length > MAX_BLOCK_BYTES:
            raise Damage(
                f"the {what} at {self._here()} (type {kind:#x}) has the length {length}; "
                f"a multiple of 4 from {least} to {MAX_BLOCK_BYTES} was expected"
            )
        if not self._hold(length):
            held = len(self._held) - self._at
            raise Damage(f"the {what} at {self._here()} is cut off: {held} of its {length} bytes are there")
        again = self._numbers(section.order + "I", length - 4)[0]
        if again != length:
            raise Damage(f"the {what} at {self._here()} has the length {length} at its start and {again} at its end")
        return length

    def _interface(self, section: Section, length: int) -> Interface:
        """The interface described by the block that begins here."""
        order = section.order
        if length < INTERFACE_BYTES:
            raise Damage(f"the interface at {self._here()} has only {length} bytes")
        if len(section.interfaces) == MAX_INTERFACES:
            raise Damage(f"the section has more than {MAX_INTERFACES} interfaces at {self._here()}")
        link_type, _, snap_length = self._numbers(order + "HHI", 8)
        found = dict(self._options(order, 16, length - 4))
        resolution = found.get(_IF_TSRESOL, bytes([_MICROSECOND_EXPONENT]))[0]
        return Interface(
            link_type,
            snap_length,
            base=2 if resolution & 0x80 else 10,
            exponent=resolution & 0x7F,
            offset=struct.unpack(order + "q", found.get(_IF_TSOFFSET, bytes(8)))[0],
        )

    def _options(self, order: str, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
        """The options that timestamps depend on, from `begin` to `end` bytes after the current position."""
        while begin + 4 <= end:
            code, size = self._numbers(order + "HH", begin)
            if not code:
                return
            if begin + 4 + size > end or size != _OPTION_BYTES.get(code, size):
                raise Damage(f"option {code} of the interface at {self._here()} can't have {size} bytes")
            if code in _OPTION_BYTES:
                yield code, self._held[self._at + begin + 4 : self._at + begin + 4 + size]
            begin += 4 + size + -size % 4

    def _judge_block(self, section: Section, kind: int, length: int) -> None:
        """Raise Damage if the packet block that begins here is invalid."""
        if not section.interfaces:
            raise Damage(f"the packet block at {self._here()} comes before any interface")
        least = SIMPLE_PACKET_BLOCK_BYTES if kind == SIMPLE_PACKET else PACKET_BLOCK_BYTES
        if length < least:
            raise Damage(f"the packet block at {self._here()} has only {length} bytes")
        if kind == SIMPLE_PACKET:
            (original,) = self._numbers(section.order + "I", 8)
            captured = min(original, section.interfaces[0].snap_length or original)
        else:
            interface = self._numbers(section.order + ("I" if kind == ENHANCED_PACKET else "H"), 8)[0]
            (captured,) = self._numbers(section.order + "I", 20)
            if interface >= len(section.interfaces):
                known = len(section.interfaces)
                raise Damage(
                    f"the packet block at {self._here()} names interface {interface}, but only {known} are described"
                )
        if captured > MAX_CAPTURED_BYTES:
            raise Damage(_too_large(self._here(), captured))
        if captured > length - least:
            room = length - least
            raise Damage(f"the packet block at {self._here()} has room for {room} bytes and announces {captured}")


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches: many small files in one capture would give tiny ones."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    try:
        for batch in batches:
            held.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if rows >= LEAST_ROWS or size >= BLOCK_BYTES // 2:
                yield from _together(held)
                held, rows, size = [], 0, 0
    except Damage:
        yield from _together(held)
        raise
    yield from _together(held)


def _together(held: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return [pa.concat_batches(held)] if len(held) > 1 else held


def _too_large(place: str, captured: int) -> str:
    return f"the packet at {place} announces {captured} captured bytes; at most {MAX_CAPTURED_BYTES} can be"


def _why_unreadable(start: bytes, damage: str | None) -> str:
    if len(start) < START_BYTES and damage:
        return f"ends before its first {START_BYTES} bytes: {damage}"
    (magic,) = struct.unpack_from("<I", start) if len(start) >= START_BYTES else (None,)
    if magic in (MICROSECONDS, NANOSECONDS, MODIFIED, *_SWAPPED):
        order = ">HH" if magic in _SWAPPED else "<HH"
        return "pcap of version {}.{}; 2.0 to 2.4 are read".format(*struct.unpack_from(order, start, 4))
    if magic == SECTION_HEADER:
        return f"pcapng with an invalid byte-order magic; {BYTE_ORDER:#x} was expected"
    return "neither pcap nor pcapng, plain or compressed by gzip or zstd"


def to_batch(rows: list[Packet]) -> pa.RecordBatch:
    """`rows` as a batch of PACKET_SCHEMA."""
    columns = zip(*rows, strict=True) if rows else [()] * len(PACKET_SCHEMA)
    arrays = [pa.array(column, kind.type) for kind, column in zip(PACKET_SCHEMA, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=PACKET_SCHEMA)
