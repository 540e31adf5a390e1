"""Packets to TCP segments: both readers agree, and say what the specifications say."""

from __future__ import annotations

import io
import ipaddress
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from wirehouse_codecs.captures import pcap
from wirehouse_codecs.captures.pcap import Packet, PacketCapture
from wirehouse_codecs.simulate.pcap_writer import (
    CapturedPacket,
    checksum,
    ethernet,
    ip_packet,
    tcp_packet,
    tcp_segment,
    write_pcap,
)
from wirehouse_codecs.tcp.endpoints import Endpoint
from wirehouse_codecs.tcp.link_types import ETHERNET, IPV4, IPV6, LINUX_SLL, LINUX_SLL2, LOOP, NULL, RAW
from wirehouse_codecs.tcp.packets import (
    ACK,
    AE,
    PSH,
    SEGMENT_SCHEMA,
    SKIPS,
    SYN,
    Segment,
    cut_by_snap_length,
    parse,
    read_packet,
)

VECTORS = Path(__file__).parents[2] / "vectors"

A4, B4 = Endpoint("10.1.2.3", 40_000), Endpoint("192.168.0.1", 5555)
A6, B6 = Endpoint("2001:db8::1", 65_535), Endpoint("fe80::2", 1)
PAYLOAD = b"what was said"
OPTIONS = bytes.fromhex("0101080a0000000100000002")


def twin(link_type: int, data: bytes) -> Segment:
    """The same as read_packet by the vectorised reader."""
    (row,) = parsed([Packet(0, link_type, len(data), data)])
    return row


def parsed(packets: list[Packet]) -> list[Segment]:
    batch = parse(pcap.to_batch(packets))
    batch.validate(full=True)
    assert batch.schema == SEGMENT_SCHEMA
    return [Segment(**row) for row in batch.to_pylist()]


Reader = Callable[[int, bytes], Segment]


@pytest.fixture(params=[read_packet, twin], ids=["readable", "twin"])
def reader(request: pytest.FixtureRequest) -> Reader:
    found: Reader = request.param
    return found


def segment_of(source: Endpoint, destination: Endpoint, payload: bytes = PAYLOAD) -> Segment:
    return Segment(
        source_address=ipaddress.ip_address(source.address).packed,
        source_port=source.port,
        destination_address=ipaddress.ip_address(destination.address).packed,
        destination_port=destination.port,
        sequence=2**32 - 1,
        acknowledgment=2**31,
        flags=ACK | PSH | AE,
        window=65_535,
        payload=payload,
        payload_bytes=len(payload),
    )


def tcp(source: Endpoint = A4, destination: Endpoint = B4, payload: bytes = PAYLOAD, options: bytes = OPTIONS) -> bytes:
    return tcp_segment(source, destination, 2**32 - 1, 2**31, ACK | PSH | AE, 65_535, options, payload)


IP4 = ip_packet(A4, B4, tcp())
IP6 = ip_packet(A6, B6, tcp(A6, B6))


def changed(data: bytes, place: int, new: bytes) -> bytes:
    return data[:place] + new + data[place + len(new) :]


def vlan(frame: bytes, *tags: int) -> bytes:
    return frame[:12] + b"".join(struct.pack(">HH", tag, 7) for tag in tags) + frame[12:]


def cooked(ethertype: int) -> bytes:
    return struct.pack(">HHH8sH", 4, 772, 6, b"address.", ethertype)


def cooked2(ethertype: int) -> bytes:
    return struct.pack(">HHIHBB8s", ethertype, 0, 3, 772, 4, 6, b"address.")


def options4(packet: bytes, size: int) -> bytes:
    """`packet` with `size` bytes of IPv4 options."""
    total = struct.pack(">H", len(packet) + size)
    return changed(changed(packet, 0, bytes([0x45 + size // 4])), 2, total)[:20] + b"\x01" * size + packet[20:]


def extended(*headers: tuple[int, bytes], kind: int = 6, payload: bytes | None = None) -> bytes:
    """IPv6 with these extension headers: of each its kind, and its bytes after the next header's kind."""
    kinds = [*(header[0] for header in headers), kind]
    rest = b"".join(bytes([following]) + header[1] for header, following in zip(headers, kinds[1:], strict=True))
    rest += tcp(A6, B6) if payload is None else payload
    return changed(IP6, 4, struct.pack(">HB", len(rest), kinds[0]))[:40] + rest


HOP, ROUTING, DESTINATION = (0, bytes(7)), (43, b"\x02" + bytes(22)), (60, b"\x01" + bytes(14))
AUTHENTICATION, WHOLE = (51, b"\x04" + bytes(22)), (44, b"\x00\x00\x00id..")

SEGMENTS = {
    "ethernet": (ETHERNET, ethernet(IP4), A4),
    "ethernet, IPv6": (ETHERNET, ethernet(IP6), A6),
    "one VLAN tag": (ETHERNET, vlan(ethernet(IP4), 0x8100), A4),
    "nested VLAN tags": (ETHERNET, vlan(ethernet(IP6), 0x88A8, 0x9100, 0x8100, 0x8100, 0x8100), A6),
    "cooked": (LINUX_SLL, cooked(0x0800) + IP4, A4),
    "cooked, IPv6": (LINUX_SLL, cooked(0x86DD) + IP6, A6),
    "cooked with a VLAN tag": (LINUX_SLL, cooked(0x8100) + b"\x00\x07\x08\x00" + IP4, A4),
    "cooked v2": (LINUX_SLL2, cooked2(0x0800) + IP4, A4),
    "cooked v2, IPv6": (LINUX_SLL2, cooked2(0x86DD) + IP6, A6),
    "cooked v2 with a VLAN tag": (LINUX_SLL2, cooked2(0x8100) + b"\x00\x07\x86\xdd" + IP6, A6),
    **{f"raw {link_type}": (link_type, IP4, A4) for link_type in (RAW, 12, 14, IPV4)},
    **{f"raw {link_type}, IPv6": (link_type, IP6, A6) for link_type in (RAW, 12, 14, IPV6)},
    "loopback, little": (NULL, b"\x02\x00\x00\x00" + IP4, A4),
    "loopback, big": (NULL, b"\x00\x00\x00\x02" + IP4, A4),
    **{f"loopback, IPv6 as {family}": (NULL, struct.pack("<I", family) + IP6, A6) for family in (24, 28, 30)},
    "loopback, big, IPv6": (NULL, struct.pack(">I", 30) + IP6, A6),
    "loop": (LOOP, b"\x00\x00\x00\x02" + IP4, A4),
    "loop, IPv6": (LOOP, b"\x00\x00\x00\x18" + IP6, A6),
    "IPv4 options": (IPV4, options4(IP4, 4), A4),
    "the most IPv4 options": (IPV4, options4(IP4, 40), A4),
    "padding is no payload": (ETHERNET, ethernet(IP4) + bytes(40), A4),
    "padding is no payload, IPv6": (ETHERNET, ethernet(IP6) + bytes(40), A6),
    "total length 0": (IPV4, changed(IP4, 2, b"\0\0"), A4),
    "payload length 0": (IPV6, changed(IP6, 4, b"\0\0"), A6),
    "don't fragment": (IPV4, changed(IP4, 6, b"\x40\0"), A4),
    "the reserved bit": (IPV4, changed(IP4, 6, b"\x80\0"), A4),
    "wrong checksums": (IPV4, changed(changed(IP4, 10, b"\xff\xff"), 36, b"\xff\xff"), A4),
    "extension headers": (IPV6, extended(HOP, ROUTING, DESTINATION, AUTHENTICATION, DESTINATION), A6),
    "one fragment that is whole": (IPV6, extended(HOP, WHOLE), A6),
    "reserved bits of a fragment": (IPV6, extended((44, b"\xff\x00\x06id..")), A6),
}

SKIPPED = {
    "ARP": (ETHERNET, "not_ip", changed(ethernet(IP4), 12, b"\x08\x06")),
    "an 802.3 length": (ETHERNET, "not_ip", changed(ethernet(IP4), 12, b"\x00\x40")),
    "ARP in a VLAN": (ETHERNET, "not_ip", vlan(changed(ethernet(IP4), 12, b"\x08\x06"), 0x8100)),
    "raw IPv5": (RAW, "not_ip", changed(IP4, 0, b"\x55")),
    "loopback of AppleTalk": (NULL, "not_ip", b"\x10\0\0\0" + IP4),
    "loop in little endian": (LOOP, "not_ip", b"\x02\0\0\0" + IP4),
    "UDP": (IPV4, "not_tcp", changed(IP4, 9, b"\x11")),
    "UDP over IPv6": (IPV6, "not_tcp", changed(IP6, 6, b"\x11")),
    "ICMPv6 after extensions": (IPV6, "not_tcp", extended(HOP, kind=58)),
    "encrypted": (IPV6, "not_tcp", extended(HOP, kind=50)),
    "no next header": (IPV6, "not_tcp", extended(kind=59, payload=b"")),
    "first fragment": (IPV4, "ip_fragment", changed(IP4, 6, b"\x20\x00")),
    "last fragment": (IPV4, "ip_fragment", changed(IP4, 6, b"\x00\x01")),
    "a fragment of UDP": (IPV4, "ip_fragment", changed(changed(IP4, 9, b"\x11"), 6, b"\x3f\xff")),
    "first fragment, IPv6": (IPV6, "ip_fragment", extended((44, b"\0\0\x01id.."))),
    "last fragment, IPv6": (IPV6, "ip_fragment", extended((44, b"\0\0\x08id.."))),
    "nothing": (ETHERNET, "truncated", b""),
    "nothing, raw": (RAW, "truncated", b""),
    "a header of 4 words": (IPV4, "bad_header", changed(IP4, 0, b"\x44")),
    "IPv6 in IPv4's place": (IPV4, "bad_header", changed(IP4, 0, b"\x65")),
    "IPv4 in IPv6's place": (IPV6, "bad_header", changed(IP6, 0, b"\x45")),
    "total length less than the header": (IPV4, "bad_header", changed(IP4, 2, b"\0\x13")),
    "total length less than TCP's header": (IPV4, "bad_header", changed(IP4, 2, b"\0\x27")),
    "total length within TCP's options": (IPV4, "bad_header", changed(IP4, 2, b"\0\x29")),
    "payload length less than TCP's header": (IPV6, "bad_header", changed(IP6, 4, b"\0\x13")),
    "a TCP header of 4 words": (IPV4, "bad_header", changed(IP4, 32, b"\x40")),
    "extension header beyond the packet": (IPV6, "bad_header", extended((0, b"\xff" + bytes(6)))),
    "extension header cut off by the packet": (IPV6, "bad_header", changed(extended(HOP), 4, b"\0\x04")),
    "Bluetooth": (187, "unknown_link_type", IP4),
    "a link type of 65535": (65_535, "unknown_link_type", IP4),
}


@pytest.mark.parametrize("name", SEGMENTS)
def test_a_segment_has_every_field_whatever_is_around_it(name: str, reader: Reader) -> None:
    link_type, data, source = SEGMENTS[name]
    assert reader(link_type, data) == segment_of(source, B4 if source == A4 else B6)


@pytest.mark.parametrize("name", SKIPPED)
def test_what_is_no_segment_is_skipped_by_name(name: str, reader: Reader) -> None:
    link_type, reason, data = SKIPPED[name]
    assert reader(link_type, data) == Segment(skip=reason)


@pytest.mark.parametrize("name", SEGMENTS)
def test_cut_anywhere_headers_are_truncated_and_payloads_are_short(name: str, reader: Reader) -> None:
    link_type, data, source = SEGMENTS[name]
    whole = reader(link_type, data)
    if "length 0" in name:
        return
    begin = data.index(PAYLOAD)
    for cut in range(len(data)):
        if cut < begin:
            assert reader(link_type, data[:cut]) == Segment(skip="truncated"), cut
        else:
            captured = data[begin : min(cut, begin + len(PAYLOAD))]
            assert reader(link_type, data[:cut]) == whole._replace(payload=captured), cut
    assert source in (A4, A6)


def test_without_a_length_the_payload_is_what_was_captured(reader: Reader) -> None:
    for link_type, data, place in ((IPV4, IP4, 2), (IPV6, IP6, 4)):
        cut = reader(link_type, changed(data, place, b"\0\0")[:-3])
        assert (cut.payload, cut.payload_bytes) == (PAYLOAD[:-3], len(PAYLOAD) - 3)


def test_a_segment_may_be_as_long_as_ip_packets_can_be(reader: Reader) -> None:
    payload = bytes(range(256)) * 255
    found = reader(ETHERNET, tcp_packet(A4, B4, sequence=1, payload=payload))
    assert (found.payload, found.payload_bytes) == (payload, len(payload))


def test_an_empty_payload_is_no_missing_one(reader: Reader) -> None:
    found = reader(ETHERNET, tcp_packet(A4, B4, sequence=1, flags=SYN))
    assert (found.payload, found.payload_bytes, found.flags) == (b"", 0, SYN)


def test_a_batch_has_a_row_for_each_packet_in_order() -> None:
    cases = [(link_type, data) for link_type, data, _ in SEGMENTS.values()]
    cases += [(link_type, data) for link_type, _, data in SKIPPED.values()]
    rows = [Packet(0, link_type, len(data), data) for link_type, data in cases]
    rows.insert(3, Packet(damaged=b"junk", damage="why"))
    wanted = [
        Segment(skip="damaged") if row.data is None else read_packet(row.link_type or 0, row.data) for row in rows
    ]
    assert parsed(rows) == wanted
    assert {row.skip for row in wanted} == set(SKIPS)
    batch = pcap.to_batch(rows)
    for begin in range(0, len(rows), 5):
        part = parse(batch.slice(begin, 7))
        part.validate(full=True)
        assert [Segment(**row) for row in part.to_pylist()] == wanted[begin : begin + 7]


def test_packets_that_the_snap_length_cut_are_counted() -> None:
    whole = IP4
    rows = [
        Packet(1, IPV4, len(whole) + 4, whole),
        Packet(1, IPV4, len(whole) + 5, whole),
        Packet(1, IPV4, len(whole), whole),
        Packet(1, IPV4, len(whole), whole[:-1]),
        Packet(1, IPV4, len(whole), whole[:30]),
        Packet(1, IPV4, 3, b"12345"),
        Packet(damaged=b"x", damage="junk"),
    ]
    assert cut_by_snap_length(pcap.to_batch(rows)) == (3, len(whole))
    assert cut_by_snap_length(pcap.to_batch(rows[3:5])) == (2, len(whole) - 1)
    assert cut_by_snap_length(pcap.to_batch([rows[0], *rows[5:]])) == (0, 0), "a frame check sequence is no payload"
    assert cut_by_snap_length(pcap.to_batch([])) == (0, 0)


def test_a_batch_without_packets_has_no_rows() -> None:
    assert parsed([]) == []
    assert parsed([Packet(damaged=b"junk", damage="why")]) == [Segment(skip="damaged")]


@given(st.data())
@settings(max_examples=300)
def test_the_twin_is_the_readable_reader_on_damaged_packets(data: st.DataObject) -> None:
    rows = []
    for _ in range(data.draw(st.integers(1, 5))):
        link_type, packet, _ = SEGMENTS[data.draw(st.sampled_from(sorted(SEGMENTS)))]
        garbled = bytearray(packet[: data.draw(st.integers(0, len(packet)))] if data.draw(st.booleans()) else packet)
        for _ in range(data.draw(st.integers(0, 3))):
            # Most of what matters stands within the headers.
            place = data.draw(st.integers(0, 80))
            if place < len(garbled):
                garbled[place] = data.draw(st.sampled_from([0, 1, 4, 6, 17, 43, 44, 51, 60, 0x40, 0x45, 0x80, 0xFF]))
        rows.append(Packet(0, link_type, 0, bytes(garbled)))
    assert parsed(rows) == [read_packet(row.link_type or 0, row.data or b"") for row in rows]


@given(st.sampled_from([0, 1, 12, 14, 101, 108, 113, 228, 229, 276, 5]), st.binary(max_size=120))
@example(229, bytes.fromhex("60000000ffff0040") + bytes(32) + b"\0\0" * 500)
@example(1, bytes.fromhex("000000000000000000000000") + bytes.fromhex("81000000") * 300)
@settings(max_examples=200)
def test_the_twin_is_the_readable_reader_on_any_bytes(link_type: int, data: bytes) -> None:
    assert twin(link_type, data) == read_packet(link_type, data)


@pytest.mark.parametrize("path", sorted(VECTORS.rglob("*.pcap*")), ids=lambda path: path.stem)
def test_the_twin_is_the_readable_reader_on_real_captures(path: Path) -> None:
    rows = list(PacketCapture(io.BytesIO(path.read_bytes())).rows())
    found = parsed(rows)
    assert found == [read_packet(row.link_type or 0, row.data or b"") for row in rows]
    assert path.suffix == ".pcapng" or {row.skip for row in found} == {None}


# What is written


def checksums_hold(packet: bytes) -> bool:
    """Those of an IP packet without options or extension headers and its TCP segment sum to nothing."""
    if packet[0] >> 4 == 4:
        addresses, segment = packet[12:20], packet[20:]
        assert checksum(packet[:20]) == 0
    else:
        addresses, segment = packet[8:40], packet[40:]
    return checksum(addresses + struct.pack(">II", len(segment), 6) + segment) == 0


@pytest.mark.parametrize(("source", "destination"), [(A4, B4), (A6, B6)])
@pytest.mark.parametrize("payload", [b"", b"odd", b"even", b"\xff" * 999])
def test_checksums_are_right(source: Endpoint, destination: Endpoint, payload: bytes) -> None:
    for sequence in (0, 1, 2**32 - 1):
        assert checksums_hold(tcp_packet(source, destination, sequence=sequence, payload=payload)[14:])


def test_a_checksum_is_that_of_the_rfcs_example() -> None:
    assert checksum(bytes.fromhex("0001f203f4f5f6f7")) == 0xFFFF - 0xDDF2


def test_real_packets_have_the_checksums_that_are_written() -> None:
    path = VECTORS / "wallaroo" / "v3" / "e_no_notify.pcap"
    for row in PacketCapture(io.BytesIO(path.read_bytes())).rows():
        found = read_packet(row.link_type or 0, row.data or b"")
        source = Endpoint(str(ipaddress.ip_address(found.source_address or b"")), found.source_port or 0)
        destination = Endpoint(str(ipaddress.ip_address(found.destination_address or b"")), found.destination_port or 0)
        packet = ip_packet(source, destination, (row.data or b"")[14 + 20 :])
        assert read_packet(RAW, packet) == found


def test_a_packet_is_cut_at_the_snap_length() -> None:
    stream = io.BytesIO()
    write_pcap([CapturedPacket(0, ethernet(IP4))], stream, snap_length=60)
    (row,) = PacketCapture(io.BytesIO(stream.getvalue())).rows()
    assert (row.data, row.original_length) == (ethernet(IP4)[:60], len(ethernet(IP4)))
    assert read_packet(ETHERNET, row.data or b"").skip == "truncated"


def test_what_can_not_be_written_is_refused() -> None:
    with pytest.raises(ValueError, match="two kinds"):
        tcp_packet(A4, B6, sequence=1)
    with pytest.raises(ValueError, match="longer than an IP packet"):
        tcp_packet(A4, B4, sequence=1, payload=bytes(65_500))
    with pytest.raises(ValueError, match="multiple of 4"):
        tcp_packet(A4, B4, sequence=1, options=b"\x01")
