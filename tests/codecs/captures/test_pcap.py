"""Captures of packets: every form of the two formats, and what is kept of captures that are damaged."""

from __future__ import annotations

import gzip
import io
import itertools
import random
import re
import struct
import subprocess
import sys
import textwrap
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wirehouse_codecs.captures import pcap as packet_captures
from wirehouse_codecs.captures import pcap_scan
from wirehouse_codecs.captures.pcap import PACKET_SCHEMA, Packet, PacketCapture
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket, write_pcap
from wirehouse_codecs.tcp.link_types import ETHERNET, RAW

VECTORS = Path(__file__).parents[2] / "vectors"
GENERATED = VECTORS / "packets" / "pcapng_test_generator"
INT64_MAX = 2**63 - 1
START_NS = 1_700_000_000_000_000_000

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "zstd": lambda data: bytes(cramjam.zstd.compress(data)),
}
ORDERS = {"little": "<", "big": ">"}


def read(data: bytes) -> tuple[list[Packet], PacketCapture]:
    capture = PacketCapture(io.BytesIO(data))
    return list(capture.rows()), capture


def packets(count: int = 4, size: int = 20) -> list[CapturedPacket]:
    return [CapturedPacket(START_NS + i * 1_000, bytes([i % 256]) * (i * 7 % size), 100 + i) for i in range(count)]


def rows_of(written: Iterable[CapturedPacket], link_type: int = ETHERNET) -> list[Packet]:
    return [Packet(packet.ts_ns, link_type, packet.original_length, packet.data) for packet in written]


def pcap(written: Iterable[CapturedPacket], order: str = "little", resolution: str = "us", **more: int) -> bytes:
    stream = io.BytesIO()
    write_pcap(written, stream, byte_order=order, resolution=resolution, **more)  # type: ignore[arg-type]
    return stream.getvalue()


class Pcapng:
    """Writes the blocks of pcapng files (draft-ietf-opsawg-pcapng section 4)."""

    def __init__(self, order: str = "little") -> None:
        self.order = ORDERS[order]

    def block(self, kind: int, body: bytes) -> bytes:
        body += bytes(-len(body) % 4)
        length = struct.pack(self.order + "I", len(body) + 12)
        return struct.pack(self.order + "I", kind) + length + body + length

    def option(self, code: int, value: bytes) -> bytes:
        return struct.pack(self.order + "HH", code, len(value)) + value + bytes(-len(value) % 4)

    def section(self, major: int = 1) -> bytes:
        return self.block(0x0A0D0D0A, struct.pack(self.order + "IHHq", 0x1A2B3C4D, major, 0, -1))

    def interface(
        self, link_type: int = ETHERNET, snap_length: int = 0, resolution: int | None = None, offset: int | None = None
    ) -> bytes:
        body = struct.pack(self.order + "HHI", link_type, 0, snap_length) + self.option(2, b"eth0 ")
        if resolution is not None:
            body += self.option(9, bytes([resolution]))
        if offset is not None:
            body += self.option(14, struct.pack(self.order + "q", offset))
        return self.block(1, body + self.option(0, b""))

    def enhanced(
        self, units: int, data: bytes, original: int, interface: int = 0, captured: int | None = None
    ) -> bytes:
        captured = len(data) if captured is None else captured
        head = struct.pack(self.order + "IIIII", interface, units >> 32, units & 0xFFFFFFFF, captured, original)
        return self.block(6, head + data + bytes(-len(data) % 4) + self.option(1, b"a comment"))

    def obsolete(self, units: int, data: bytes, original: int, interface: int = 0) -> bytes:
        numbers = (interface, 7, units >> 32, units & 0xFFFFFFFF, len(data), original)
        return self.block(2, struct.pack(self.order + "HHIIII", *numbers) + data)

    def simple(self, data: bytes, original: int) -> bytes:
        return self.block(3, struct.pack(self.order + "I", original) + data)

    def file(self, written: Iterable[CapturedPacket]) -> bytes:
        """A section with one interface that counts nanoseconds, and blocks that are none of packets."""
        blocks = [
            self.enhanced(packet.ts_ns, packet.data, packet.original_length or len(packet.data)) for packet in written
        ]
        return self.section() + self.interface(resolution=9) + self.block(5, b"statistics") + b"".join(blocks)


def old_pcap(
    written: Iterable[CapturedPacket],
    order: str = "little",
    version: tuple[int, int] = (2, 4),
    more: int = 0,
    swapped: bool = False,
) -> bytes:
    """A pcap file of an older version, or of the modified format with `more` bytes in each packet header."""
    magic = 0xA1B2CD34 if more else 0xA1B2C3D4
    parts = [struct.pack(ORDERS[order] + "IHHiIII", magic, *version, 0, 0, 65_535, ETHERNET)]
    for packet in written:
        original = packet.original_length if packet.original_length is not None else len(packet.data)
        lengths = (original, len(packet.data)) if swapped else (len(packet.data), original)
        times = packet.ts_ns // 10**9, packet.ts_ns % 10**9 // 1_000
        # An interface, a protocol, a kind of packet: what stands after the four numbers.
        index = struct.pack(ORDERS[order] + "IHBBBBBB", 2, 0x800, 4, 1, 1, 0, 0, 0)[:more]
        parts += [struct.pack(ORDERS[order] + "IIII", *times, *lengths), index, packet.data]
    return b"".join(parts)


FORMS: dict[str, Callable[[Iterable[CapturedPacket]], bytes]] = {
    "pcap_little_us": lambda written: pcap(written, "little", "us"),
    "pcap_little_ns": lambda written: pcap(written, "little", "ns"),
    "pcap_big_us": lambda written: pcap(written, "big", "us"),
    "pcap_big_ns": lambda written: pcap(written, "big", "ns"),
    "pcap_modified_little": lambda written: old_pcap(written, "little", more=8),
    "pcap_modified_big": lambda written: old_pcap(written, "big", more=8),
    "pcapng_little": lambda written: Pcapng("little").file(written),
    "pcapng_big": lambda written: Pcapng("big").file(written),
}


@pytest.fixture(params=PACKERS)
def pack(request: pytest.FixtureRequest) -> Callable[[bytes], bytes]:
    return PACKERS[request.param]


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Callable[[Iterable[CapturedPacket]], bytes]:
    return FORMS[request.param]


Form = Callable[[Iterable[CapturedPacket]], bytes]


# What a capture says


def test_every_form_gives_the_packets_that_were_written(form: Form, pack: Callable[[bytes], bytes]) -> None:
    written = packets(50)
    rows, capture = read(pack(form(written)))
    assert rows == rows_of(written)
    assert (capture.damage, capture.unreadable) == (None, None)


def test_batches_have_the_schema() -> None:
    batches = list(PacketCapture(io.BytesIO(pcap(packets()))).batches())
    assert [batch.schema for batch in batches] == [PACKET_SCHEMA]
    batches[0].validate(full=True)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("version", "swapped"),
    [
        ((2, 0), True),
        ((2, 1), True),
        ((2, 2), True),
        ((2, 3), False),
        ((2, 3), True),
        ((2, 4), False),
        ((543, 0), True),
    ],
)
@pytest.mark.parametrize("more", [0, 8, 12])
def test_older_versions_and_longer_headers(order: str, version: tuple[int, int], swapped: bool, more: int) -> None:
    written = packets(20)
    for some in (written, written[:1], []):
        data = old_pcap(some, order, version, more, swapped)
        rows, capture = read(data + data + pcap(some))
        assert rows == rows_of([*some] * 3)
        assert (capture.damage, capture.unreadable) == (None, None)


def test_a_modified_file_cut_in_its_first_packet_says_so() -> None:
    data = old_pcap(packets(2)[1:], more=8)
    assert read(data[:-1])[1].damage == "the packet at byte 24 is cut off: 6 of its 7 bytes are there"


@pytest.mark.parametrize("order", ORDERS)
def test_nanoseconds_are_kept_and_the_link_type_is_the_lower_half(order: str) -> None:
    written = [CapturedPacket(START_NS + 123_456_789, b"\x45", 1)]
    assert read(pcap(written, order, "ns", link_type=RAW | 0x2400_0000))[0] == rows_of(written, RAW)
    assert read(pcap(written, order, "us"))[0][0].ts_ns == START_NS + 123_456_000


def test_the_last_second_of_pcap_is_no_overflow() -> None:
    written = [CapturedPacket((2**32 - 1) * 10**9 + 999_999_999, b"a", 2**32 - 1)]
    assert read(pcap(written, resolution="ns"))[0] == rows_of(written)


def units_to_ns(units: int, resolution: int | None, offset: int | None) -> int:
    """As the specification of if_tsresol and if_tsoffset reads."""
    base, exponent = (10, 6) if resolution is None else (2 if resolution & 0x80 else 10, resolution & 0x7F)
    per_second: int = base**exponent
    ns = units * 10**9 // per_second + (offset or 0) * 10**9
    return max(-INT64_MAX - 1, min(INT64_MAX, ns))


RESOLUTIONS = [None, 0, 3, 6, 8, 9, 10, 12, 19, 20, 127, *(0x80 | bits for bits in (0, 1, 10, 20, 30, 32, 33, 64, 127))]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("offset", [None, 0, 1, -1, 86_400, -1_800_000_000, 9_223_372_036, -(2**63), 2**63 - 1])
def test_times_of_every_resolution(order: str, offset: int | None) -> None:
    write = Pcapng(order)
    units = [0, 1, 999, 10**6, 1_700_000_000 * 10**6 + 7, START_NS, 2**32, 2**63 - 1, 2**63, 2**64 - 1]
    described = b"".join(write.interface(resolution=resolution, offset=offset) for resolution in RESOLUTIONS)
    cases = list(itertools.product(range(len(RESOLUTIONS)), units))
    blocks = b"".join(write.enhanced(number, b"x", 1, interface) for interface, number in cases)
    rows, capture = read(write.section() + described + blocks)
    assert capture.damage is None
    assert [row.ts_ns for row in rows] == [units_to_ns(number, RESOLUTIONS[which], offset) for which, number in cases]


@given(st.integers(0, 2**64 - 1), st.integers(0, 255), st.integers(-(2**63), 2**63 - 1))
@settings(max_examples=100)
def test_any_time(units: int, resolution: int, offset: int) -> None:
    write = Pcapng()
    data = write.section() + write.interface(resolution=resolution, offset=offset) + write.enhanced(units, b"", 1)
    assert read(data)[0] == [Packet(units_to_ns(units, resolution, offset), ETHERNET, 1, b"")]


@pytest.mark.parametrize("order", ORDERS)
def test_every_kind_of_packet_block_and_none_of_the_others(order: str) -> None:
    write = Pcapng(order)
    data = b"".join(
        [
            write.section(),
            write.block(0x0BAD, b"a custom block"),
            write.interface(RAW, snap_length=5),
            write.interface(ETHERNET, resolution=9),
            write.enhanced(7, b"abc", 3, interface=1),
            write.block(4, b"names"),
            write.simple(b"abcde", 60),
            write.simple(b"abc", 3),
            write.obsolete(7, b"defg", 1500, interface=0),
            write.block(0x8000_0001, b""),
        ]
    )
    rows, capture = read(data)
    assert capture.damage is None
    assert rows == [
        Packet(7, ETHERNET, 3, b"abc"),
        Packet(None, RAW, 60, b"abcde"),
        Packet(None, RAW, 3, b"abc"),
        Packet(7_000, RAW, 1500, b"defg"),
    ]


def test_interfaces_belong_to_their_section() -> None:
    little, big = Pcapng("little"), Pcapng("big")
    first = little.section() + little.interface(1) + little.interface(101) + little.enhanced(1, b"a", 1, interface=1)
    second = big.section() + big.interface(113) + big.enhanced(2, b"b", 1)
    rows, capture = read(first + second + second + big.enhanced(3, b"c", 1, interface=1))
    assert [row.link_type for row in rows if row.damage is None] == [101, 113, 113]
    assert capture.damage is not None
    assert "names interface 1, but only 1 are described" in capture.damage


@pytest.mark.parametrize(("first", "second"), itertools.product(FORMS, FORMS))
def test_files_may_follow_each_other(first: str, second: str, pack: Callable[[bytes], bytes]) -> None:
    written = packets()
    parts = [FORMS[first](written), FORMS[second](written[:2]), FORMS[first]([])]
    for data in (pack(b"".join(parts)), b"".join(map(pack, parts))):
        rows, capture = read(data)
        assert rows == rows_of([*written, *written[:2]])
        assert capture.damage is None


@pytest.mark.parametrize("block_bytes", [1, 2, 7, 64, 1000])
def test_where_blocks_of_reading_end_makes_no_difference(
    form: Form, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packet_captures, "BLOCK_BYTES", block_bytes)
    written = packets(10)
    rows, capture = read(form(written) + form(written))
    assert (rows, capture.damage) == (rows_of(written) * 2, None)


def test_an_empty_capture_has_no_rows(pack: Callable[[bytes], bytes]) -> None:
    rows, capture = read(pack(b""))
    assert (rows, capture.damage, capture.unreadable) == ([], None, None)


def test_a_file_without_packets_has_no_rows(form: Form) -> None:
    rows, capture = read(form([]))
    assert (rows, capture.damage, capture.unreadable) == ([], None, None)


# What other programs wrote


@pytest.mark.parametrize("path", sorted((GENERATED / "output_le").rglob("*.pcapng")), ids=lambda path: path.stem)
def test_wiresharks_test_files_are_read_whole_and_alike_in_both_byte_orders(path: Path) -> None:
    counts = dict(re.findall(r"^\t(\w+): (\d+)$", path.with_suffix(".txt").read_text(), re.MULTILINE))
    rows, capture = read(path.read_bytes())
    assert (capture.damage, capture.unreadable) == (None, None)
    assert len(rows) == int(counts.get("EPB", 0)) + int(counts.get("SPB", 0))
    swapped = Path(str(path).replace("output_le", "output_be"))
    assert read(swapped.read_bytes())[0] == rows


def records_of(data: bytes) -> list[Packet]:
    """The packets of a whole little-endian pcap file with microseconds, read the plain way."""
    at, rows = 24, []
    while at < len(data):
        seconds, us, captured, original = struct.unpack_from("<IIII", data, at)
        packet = data[at + 16 : at + 16 + captured]
        rows.append(Packet(seconds * 10**9 + us * 1_000, data[20], original, packet))
        at += 16 + captured
    return rows


@pytest.mark.parametrize("path", sorted(VECTORS.rglob("*.pcap")), ids=lambda path: path.stem)
def test_real_captures_are_read_whole(path: Path, pack: Callable[[bytes], bytes]) -> None:
    data = path.read_bytes()
    rows, capture = read(pack(data))
    assert capture.damage is None
    assert rows == records_of(data)
    assert len(rows) > 10


# Damage


def kept(rows: list[Packet]) -> tuple[list[Packet], bytes]:
    """Packets, and the damaged bytes after them."""
    found = [row for row in rows if row.damage is None]
    assert rows[: len(found)] == found
    assert all(row.data is None and row.ts_ns is None for row in rows[len(found) :])
    return found, b"".join(row.damaged or b"" for row in rows[len(found) :])


def place_of(damage: str | None) -> int:
    place = re.search(r"at byte (\d+)", damage or "")
    assert place, damage
    return int(place[1])


def test_cut_anywhere_the_packets_before_are_given_and_the_rest_is_kept(form: Form) -> None:
    written = packets()
    data = form(written)
    whole = [len(form(written[:count])) for count in range(len(written) + 1)]
    # A modified file that ends four bytes after its first packet is taken for a whole one with longer headers.
    alike = whole[1] + 4 if data[:4] in (b"\x34\xcd\xb2\xa1", b"\xa1\xb2\xcd\x34") else None
    for cut in range(1, len(data)):
        rows, capture = read(data[:cut])
        if capture.unreadable or cut == alike:
            assert cut < 12 or cut == alike
            continue
        found, rest = kept(rows)
        assert found == rows_of(written[: sum(end <= cut for end in whole[1:])])
        if rest:
            assert data[:cut].endswith(rest)
            assert place_of(capture.damage) == cut - len(rest)
            assert "cut off" in (capture.damage or "")
        else:
            assert capture.damage is None
            assert cut in whole or cut <= whole[0]


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_cut_anywhere_while_compressed(name: str) -> None:
    written = packets(20)
    data = pcap(written)
    packed = PACKERS[name](data)
    for cut in range(5, len(packed), 3):
        rows, capture = read(packed[:cut])
        assert capture.damage or capture.unreadable or cut > len(packed) - 8
        found, rest = kept(rows)
        assert found == rows_of(written)[: len(found)]
        assert not rest or rest in data


def test_one_damaged_byte_anywhere_leaves_what_is_before_it(form: Form) -> None:
    written = packets()
    data = form(written)
    whole = [len(form(written[:count])) for count in range(len(written) + 1)]
    header = 24 if whole[0] == 24 else whole[0]
    for place in range(len(data)):
        for change in (0x01, 0x80, 0xFF):
            garbled = bytearray(data)
            garbled[place] ^= change
            rows, capture = read(bytes(garbled))
            found, rest = kept(rows)
            assert bytes(garbled).endswith(rest)
            assert bool(rest) == (capture.damage is not None)
            if place >= header:
                before = sum(end <= place for end in whole[1:])
                assert found[:before] == rows_of(written[:before])


def test_junk_after_the_end_is_kept(form: Form) -> None:
    written = packets()
    for junk in (b"\n", b"\xff" * 100, b"\0" * 100, b"<html>not a packet</html>", random.Random(1).randbytes(1000)):
        rows, capture = read(form(written) + junk)
        assert kept(rows) == (rows_of(written), junk)
        assert place_of(capture.damage) == len(form(written))


PCAP_FORMS = {name: form for name, form in FORMS.items() if not name.startswith("pcapng")}


@pytest.mark.parametrize("form", PCAP_FORMS.values(), ids=PCAP_FORMS)
@pytest.mark.parametrize("zeros", [1, 2, 300])
@pytest.mark.parametrize("block_bytes", [64, 1000, 4 << 20])
def test_headers_of_zeros_are_packets_if_another_header_follows(
    form: Form, zeros: int, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packet_captures, "BLOCK_BYTES", block_bytes)
    empty = [CapturedPacket(0, b"", 0)] * zeros
    written = [*packets(3), *empty, *packets(2), *empty]
    rows, capture = read(form(written) + form(written[:2]))
    assert (rows, capture.damage) == (rows_of([*written, *written[:2]]), None)
    rows, capture = read(form(written))
    assert kept(rows)[0] == rows_of(written[:-zeros])
    assert "is all zeros; the file wasn't written to its end" in (capture.damage or "")


def test_the_reason_stands_beside_the_bytes() -> None:
    rows, capture = read(pcap(packets(1)) + b"junk")
    assert capture.damage == "the packet header at byte 40 is cut off"
    assert rows[-1] == Packet(damaged=b"junk", damage=f"after the damage: {capture.damage}")


def test_of_a_compressed_capture_the_place_is_in_what_it_inflates_to() -> None:
    _, capture = read(gzip.compress(pcap(packets(1)) + b"junk"))
    assert capture.damage == "the packet header at byte 40 of the inflated capture is cut off"


def test_what_is_not_whole_where_inflating_ends_is_put_down_to_that() -> None:
    noise = random.Random(1)
    data = pcap([CapturedPacket(START_NS, noise.randbytes(1000), 1000) for _ in range(3)])
    rows, capture = read(gzip.compress(data)[:-100])
    assert capture.damage is not None
    assert "gzip data is cut off" in capture.damage
    assert "packet" not in capture.damage
    assert kept(rows)[0] != []


def test_damage_of_the_file_and_of_its_compression_are_both_said() -> None:
    data = pcap(packets(1)) + b"\xff" * 16 + random.Random(1).randbytes(10 << 20)
    _, capture = read(gzip.compress(data, 1)[:-100])
    assert capture.damage is not None
    assert "announces 4294967295 captured bytes" in capture.damage
    assert "gzip data is cut off" in capture.damage


LITTLE = Pcapng("little")
OPENED = LITTLE.section() + LITTLE.interface()
HOSTILE = {
    pcap([]) + struct.pack("<IIII", 1, 1, 262_145, 262_145): "announces 262145 captured bytes; at most 262144 can be",
    pcap([]) + struct.pack("<IIII", 1, 1, 2**32 - 1, 1): "announces 4294967295 captured bytes",
    pcap([]) + struct.pack("<IIII", 1, 1, 262_144, 1): "0 of its 262144 bytes are there",
    pcap([]) + bytes(1600): "all zeros; the file wasn't written to its end",
    # The zeros end amid a header.
    pcap([]) + bytes(28) + pcap(packets(2))[24:]: "all zeros; the file wasn't written to its end",
    pcap([]) + bytes(16 * 4_097) + pcap(packets(2))[24:]: "all zeros; the file wasn't written to its end",
    OPENED + struct.pack("<II", 6, 2**32 - 4): "has the length 4294967292",
    OPENED + struct.pack("<II", 6, 0): "has the length 0",
    OPENED + struct.pack("<II", 77, 8): "has the length 8",
    OPENED + struct.pack("<II", 77, 13) + bytes(13): "a multiple of 4",
    OPENED + struct.pack("<II", 6, 16 << 20): "8 of its 16777216 bytes are there",
    OPENED + struct.pack("<III", 77, 16, 0) + struct.pack("<I", 20): "the length 16 at its start and 20 at its end",
    OPENED + LITTLE.block(6, bytes(16)): "has only 28 bytes",
    OPENED + LITTLE.block(3, b""): "has only 12 bytes",
    OPENED + LITTLE.enhanced(1, b"abc", 3, captured=100): "has room for 20 bytes and announces 100",
    OPENED + LITTLE.enhanced(1, b"abc", 3, captured=2**31): "announces 2147483648 captured bytes",
    OPENED + LITTLE.enhanced(1, bytes(262_145), 3): "announces 262145 captured bytes",
    OPENED + LITTLE.enhanced(1, b"abc", 3, interface=2**32 - 1): "names interface 4294967295, but only 1 are described",
    OPENED + LITTLE.obsolete(1, b"abc", 3, interface=9): "names interface 9, but only 1 are described",
    OPENED + LITTLE.simple(b"abc", 2**32 - 1): "announces 4294967295 captured bytes",
    OPENED + LITTLE.simple(b"abc", 9): "has room for 4 bytes and announces 9",
    OPENED + LITTLE.block(1, bytes(4)): "has only 16 bytes",
    OPENED + LITTLE.block(1, bytes(8) + struct.pack("<HH", 9, 60000)): "option 9 of the interface",
    OPENED
    + LITTLE.block(1, bytes(8) + LITTLE.option(14, b"123")): "option 14 of the interface at byte 64 can't have 3",
    OPENED + LITTLE.block(0x0A0D0D0A, bytes(16)): "has an invalid byte-order magic",
    LITTLE.section() + LITTLE.enhanced(1, b"abc", 3): "comes before any interface",
    LITTLE.section() + LITTLE.simple(b"abc", 3): "comes before any interface",
    LITTLE.section(major=2): "is of pcapng version 2.0",
    pcap([])[:20]: "the pcap header at byte 0 is cut off",
}


@pytest.mark.parametrize(("data", "said"), HOSTILE.items(), ids=HOSTILE.values())
def test_what_can_not_be_is_damage_and_allocates_nothing(data: bytes, said: str) -> None:
    read(b"")
    tracemalloc.start()
    try:
        rows, capture = read(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert said in (capture.damage or "")
    assert data.endswith(kept(rows)[1])
    assert kept(rows)[1]
    assert peak < 3 << 20


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_packet_may_have_as_many_bytes_as_libpcap_captures(form: Form) -> None:
    written = [CapturedPacket(START_NS, random.Random(1).randbytes(262_144), 262_144)] * 40
    rows, capture = read(form(written))
    assert rows == rows_of(written)
    assert capture.damage is None


def test_large_blocks_of_other_kinds_are_passed_over_and_larger_ones_are_lengths_that_were_garbled() -> None:
    packet = LITTLE.enhanced(1, b"abc", 3)
    rows, capture = read(OPENED + LITTLE.block(77, bytes(15 << 20)) + packet)
    assert (len(rows), capture.damage) == (1, None)
    rows, capture = read(OPENED + packet + LITTLE.block(77, bytes(16 << 20)) + packet)
    assert "has the length 16777228" in (capture.damage or "")
    assert len(kept(rows)[1]) == (16 << 20) + 12 + len(packet)


def test_a_packet_that_the_loop_leaves_without_a_reason_is_damage(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    for loop in ("scan_records", "scan_blocks"):
        monkeypatch.setattr(pcap_scan, loop, lambda data, at, *_: (0, at))
    rows, capture = read(form(packets(2)))
    assert "are neither a packet nor known not to be one" in (capture.damage or "")
    assert form(packets(2)).endswith(kept(rows)[1])


def test_interfaces_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packet_captures, "MAX_INTERFACES", 10)
    _, capture = read(LITTLE.section() + LITTLE.interface() * 11)
    assert "more than 10 interfaces" in (capture.damage or "")
    assert read(LITTLE.section() + LITTLE.interface() * 10)[1].damage is None


def test_what_is_kept_comes_in_pieces() -> None:
    junk = random.Random(1).randbytes(20 << 20)
    rows, _ = read(pcap(packets(1)) + b"\xff" * 16 + junk)
    assert kept(rows)[1] == b"\xff" * 16 + junk
    assert [len(row.damaged or b"") for row in rows[1:]] == [8 << 20, 8 << 20, (4 << 20) + 16]


NOT_CAPTURES = {
    b"GET / HTTP/1.1\r\n": "neither pcap nor pcapng",
    b"{}": "neither pcap nor pcapng",
    bytes(1000): "neither pcap nor pcapng",
    pcap([])[:11]: "neither pcap nor pcapng",
    b"\xd4\xc3\xb2\xa1\x05\x00\x01\x00" + bytes(16): "pcap of version 5.1; 2.0 to 2.4 are read",
    b"\xa1\xb2\xc3\xd4\x00\x02\x00\x05" + bytes(16): "pcap of version 2.5; 2.0 to 2.4 are read",
    b"\x34\xcd\xb2\xa1\x01\x00\x03\x00" + bytes(16): "pcap of version 1.3; 2.0 to 2.4 are read",
    b"\x0a\x0d\x0d\x0a" + bytes(30): "pcapng with an invalid byte-order magic",
}


@pytest.mark.parametrize(("data", "said"), NOT_CAPTURES.items(), ids=NOT_CAPTURES.values())
def test_what_is_no_capture_of_packets_is_unreadable(data: bytes, said: str, pack: Callable[[bytes], bytes]) -> None:
    rows, capture = read(pack(data))
    assert rows == []
    assert said in (capture.unreadable or "")


@given(st.data())
@settings(max_examples=200)
def test_nothing_raises_whatever_the_bytes(data: st.DataObject) -> None:
    garbled = bytearray(FORMS[data.draw(st.sampled_from(sorted(FORMS)))](packets(3)))
    for _ in range(data.draw(st.integers(1, 4))):
        begin = data.draw(st.integers(0, len(garbled)))
        end = data.draw(st.integers(begin, min(len(garbled), begin + 16)))
        garbled[begin:end] = data.draw(st.binary(max_size=20))
    rows, capture = read(bytes(garbled))
    assert bytes(garbled).endswith(kept(rows)[1])
    assert capture.unreadable is None or rows == []


@pytest.mark.property
def test_memory_stays_flat_whatever_the_size(tmp_path: Path) -> None:
    script = """
        import resource, sys
        from wirehouse_codecs.captures.pcap import PacketCapture
        with open(sys.argv[1], "rb") as stream:
            print(sum(batch.num_rows for batch in PacketCapture(stream).batches()))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    """

    def peak_mib(size: int) -> float:
        packet = pcap([CapturedPacket(START_NS, random.Random(1).randbytes(700), 700)])[24:]
        path = tmp_path / f"{size}.pcap"
        with path.open("wb") as stream:
            stream.write(pcap([]))
            for _ in range(size // (1 << 20)):
                stream.write(packet * ((1 << 20) // len(packet)))
        arguments = [sys.executable, "-c", textwrap.dedent(script), str(path)]
        said = subprocess.run(arguments, check=True, capture_output=True, text=True).stdout.split()
        assert int(said[0]) == (size >> 20) * ((1 << 20) // len(packet))
        return int(said[1]) / 1024

    assert peak_mib(72 << 20) < peak_mib(24 << 20) + 24
