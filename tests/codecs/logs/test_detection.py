"""Which side is the server of a connection whose handshake wasn't captured."""

from __future__ import annotations

import pytest

from tests.codecs.logs.test_cut_taps import READS, sent
from tests.support import hiero_wire
from tests.support.landed import landed_packets
from tests.support.legal_captures import INSPECT
from tests.support.wallaroo_by_hand import hello, ok
from wirehouse_codecs.hiero import inspection as hiero
from wirehouse_codecs.hiero.wire.http2.frames import PREFACE
from wirehouse_codecs.logs import detection
from wirehouse_codecs.logs.inspection import CONNECTION, MESSAGE, VIOLATION, Inspect
from wirehouse_codecs.logs.tcp_inspection import ASSUMED
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket, tcp_packet
from wirehouse_codecs.tcp.endpoints import Endpoint
from wirehouse_codecs.tcp.packets import ACK, SYN
from wirehouse_codecs.wallaroo import inspection as wallaroo

#: In an IPv4 packet in an Ethernet frame.
_PORTS, _FLAGS = (34, 36), 47
LOW, HIGH, USUAL = 30_000, 50_000, 40_840
PUBLISH = "/org.hiero.block.api.BlockStreamPublishService/publishBlockStream"
_CALL = hiero_wire.headers(1, [(":method", "POST"), (":path", PUBLISH), ("content-type", "application/grpc")])
_SETTINGS = hiero_wire.frame(4, 0, 0)
_HEADER = hiero_wire.message(1, hiero_wire.held(1, hiero_wire.block(121).opening))
#: What client and server begin with.
HELLO = (hello().data, ok().data)
CALL = (PREFACE + _SETTINGS + _CALL + _HEADER, _SETTINGS)
#: The same, when nothing in it says who is who.
PINGS = (hiero_wire.frame(6, 0, 0, bytes(8)) * 4,) * 2


def packets(client_port: int, server_port: int, said: tuple[bytes, bytes], *, opened: bool = False) -> list[bytes]:
    client, server = Endpoint("10.0.0.1", client_port), Endpoint("10.0.0.2", server_port)
    asked, answered = said
    sent = [tcp_packet(client, server, sequence=99, acknowledgment=0, flags=SYN)] if opened else []
    sent.append(tcp_packet(client, server, sequence=100, acknowledgment=500, flags=ACK, payload=asked))
    answer = tcp_packet(server, client, sequence=500, acknowledgment=100 + len(asked), flags=ACK, payload=answered)
    return [*sent, answer]


def seen(inspect: Inspect, sent: list[bytes]) -> tuple[list[tuple[int, int]], int]:
    """Client's and server's port of each connection, and how many messages were read."""
    captured = [CapturedPacket(10**18 + at * 10**6, packet) for at, packet in enumerate(sent)]
    rows = list(inspect(landed_packets(captured)))
    ports = [(row["client_port"], row["server_port"]) for what, row in rows if what == CONNECTION]
    return ports, sum(what == MESSAGE for what, _ in rows)


@pytest.mark.parametrize("ports", [(LOW, HIGH), (HIGH, LOW)])
@pytest.mark.parametrize(("inspect", "said", "messages"), [(wallaroo.inspect, HELLO, 2), (hiero.inspect, CALL, 1)])
def test_without_a_handshake_the_first_bytes_show_who_is_the_server(
    inspect: Inspect, said: tuple[bytes, bytes], messages: int, ports: tuple[int, int]
) -> None:
    assert seen(inspect, packets(*ports, said)) == ([ports], messages)


@pytest.mark.parametrize(("ports", "shown"), [((LOW, USUAL), (LOW, USUAL)), ((LOW, HIGH), (HIGH, LOW))])
def test_where_the_first_bytes_show_nothing_the_server_is_at_the_usual_port(
    ports: tuple[int, int], shown: tuple[int, int]
) -> None:
    assert seen(hiero.inspect, packets(*ports, PINGS))[0] == [shown]


def test_the_handshake_of_another_connection_shows_the_port_of_the_server() -> None:
    sent = packets(LOW, HIGH, PINGS) + packets(LOW + 1, HIGH, CALL, opened=True)
    assert sorted(seen(hiero.inspect, sent)[0]) == [(LOW, HIGH), (LOW + 1, HIGH)]


def test_the_handshake_of_the_connection_decides() -> None:
    assert seen(hiero.inspect, packets(USUAL, LOW, CALL, opened=True)) == ([(USUAL, LOW)], 1)


def moved(protocol: str, share: float, server_port: int = 60_999) -> list[CapturedPacket]:
    """Legal traffic without handshakes, from a share of it on, whose servers are at another port than usual."""
    usual = READS[protocol].ports
    captured = []
    packets = sent(protocol)
    for packet in packets[int(len(packets) * share) :]:
        data = bytearray(packet.data)
        for at in _PORTS:
            if int.from_bytes(data[at : at + 2], "big") in usual:
                data[at : at + 2] = server_port.to_bytes(2, "big")
        if not data[_FLAGS] & SYN:
            captured.append(packet._replace(data=bytes(data)))
    return captured


@pytest.mark.parametrize("share", [0, 0.5])
@pytest.mark.parametrize("protocol", INSPECT)
def test_without_a_handshake_what_the_sides_say_shows_who_is_the_server(protocol: str, share: float) -> None:
    rows = list(INSPECT[protocol](landed_packets(moved(protocol, share))))
    assert {(row["server_port"], row.get("sides")) for what, row in rows if what == CONNECTION} == {(60_999, None)}
    assert [row for what, row in rows if what == VIOLATION and row["severity"] != "note"] == []
    assert sum(what == MESSAGE for what, _ in rows) > 20


@pytest.mark.parametrize("protocol", INSPECT)
def test_where_nothing_shows_who_is_the_server_no_rule_is_judged(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detection, "_by_messages", lambda *_: set())
    monkeypatch.setattr(detection, "_heads", lambda *_: [])
    rows = list(INSPECT[protocol](landed_packets(moved(protocol, 0.5, 50_000))))
    assert {row.get("sides") for what, row in rows if what == CONNECTION} == {ASSUMED}
    assert [row for what, row in rows if what == VIOLATION and row["severity"] != "note"] == []


def sides(sent: list[bytes]) -> set[str | None]:
    captured = [CapturedPacket(10**18 + at, packet) for at, packet in enumerate(sent)]
    return {row.get("sides") for what, row in hiero.inspect(landed_packets(captured)) if what == CONNECTION}


def test_a_late_handshake_shows_who_is_the_server() -> None:
    opened, asked, answered = packets(HIGH, LOW, PINGS, opened=True)
    assert sides([asked, answered]) == {ASSUMED}
    assert sides([asked, opened, answered]) == sides([asked, answered, opened]) == {None}
