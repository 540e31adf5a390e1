"""The product's reassembly beside a plain one: bytes and holes of each connection must be equal.

    python -m tests.support.compare_reassembly FOLDER

reads every capture below FOLDER (.pcap, .pcapng, .cap, also .gz and .zst), says how many connections are equal, and
shows those that are not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from tests.support.plain_reassembler import Packet, Reading, Run, distance, reassemble
from wirehouse_codecs.captures.pcap import PacketCapture
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_codecs.tcp.packets import ACK, FIN, RST, SYN, parse
from wirehouse_codecs.tcp.reassembly import Data, Event, Flow, Hole, Opened, TcpSegment

_SIDES = {True: Direction.CLIENT, False: Direction.SERVER}
_CAPTURES = ("*.pcap", "*.pcapng", "*.cap", "*.pcap.gz", "*.pcapng.gz", "*.pcap.zst", "*.pcapng.zst")
_ENDPOINTS = (Endpoint("10.0.0.1", 40_000), Endpoint("10.0.0.2", 5555))


class Difference(NamedTuple):
    """A side that both read differently."""

    client: bool
    product: tuple[Run, ...]
    plain: tuple[Reading, ...]

    def __str__(self) -> str:
        read = [f"  plain reads {_shown(reading.runs)}" for reading in self.plain[:2]]
        return "\n".join([f"{_SIDES[self.client]}: the product reads {_shown(self.product)}", *read])


def as_segments(packets: Iterable[Packet]) -> Iterator[TcpSegment]:
    """Packets as the product takes them."""
    for number, packet in enumerate(packets):
        flags = SYN * packet.syn | FIN * packet.fin | RST * packet.rst | ACK * (packet.acknowledgment is not None)
        header = (packet.sequence, packet.acknowledgment or 0, flags, 1000)
        place = Place(packet.ns, 0, b"capture", number)
        yield TcpSegment(place, _SIDES[packet.client], *header, packet.payload, packet.sent)


def differences(packets: Sequence[Packet], plain: Sequence[Packet] | None = None) -> list[Difference]:
    """What both read differently of one connection's packets; the plain one of others if they are given."""
    events = next(iter(_with_bytes(packets)), [])
    return _differences(events, packets if plain is None else plain)


def differences_in_turn(parts: Sequence[Sequence[Packet]]) -> list[Difference]:
    """What both read differently of connections that use the same ports, one after the other."""
    heard = _with_bytes([packet for part in parts for packet in part])
    told = [part for part in parts if any(reading[0].runs for reading in reassemble(part).values())]
    found = [one for events, part in zip(heard, told, strict=False) for one in _differences(events, part)]
    more = [Difference(client, runs(events, client), ()) for events in heard[len(told) :] for client in _SIDES]
    return found + more + [Difference(True, (), tuple(reassemble(part)[True])) for part in told[len(heard) :]]


def _differences(events: Sequence[Event], packets: Sequence[Packet]) -> list[Difference]:
    found = []
    for client, readings in reassemble(packets).items():
        read = runs(events, client)
        if not any(_agree(read, reading) for reading in readings):
            found.append(Difference(client, read, tuple(readings)))
    return found


def _with_bytes(packets: Iterable[Packet]) -> list[list[Event]]:
    """What the product says of the connections of which it has bytes, or holes."""
    flow = Flow("compared", *_ENDPOINTS, TcpOptions())
    connections: list[list[Event]] = [[]]
    for event in [*(event for segment in as_segments(packets) for event in flow.receive(segment)), *flow.expire(2**62)]:
        if isinstance(event, Opened):
            connections.append([])
        connections[-1].append(event)
    return [one for one in connections if any(isinstance(event, Data | Hole) for event in one)]


def forgotten(packets: Sequence[Packet], firsts: Mapping[bool, int]) -> dict[bool, set[int]]:
    """Positions of bytes that the product did not deliver, although the receiver lacked them when they were captured.

    The packets are those of one connection. Positions count from the bytes with the numbers `firsts`.
    """
    flow = Flow("compared", *_ENDPOINTS, TcpOptions())
    events = [event for segment in as_segments(packets) for event in flow.receive(segment)]
    assert flow.connection
    sides = {client: flow.connection.sides(direction)[0] for client, direction in _SIDES.items()}
    events += flow.expire(2**62)
    lacked: dict[bool, set[int]] = {True: set(), False: set()}
    received: dict[bool, int] = {}
    for packet in packets:
        client = packet.client
        if packet.rst:
            continue
        if client in received:
            at = distance(packet.first, firsts[client])
            lacked[client] |= set(range(max(at, received[client]), at + len(packet.payload)))
        if packet.acknowledgment is not None:
            at = distance(packet.acknowledgment, firsts[not client])
            received[not client] = max(received.get(not client, at), at)
    for client, side in sides.items():
        first = distance(side.expected, firsts[client]) - side.next_byte
        for run in runs(events, client):
            lacked[client] -= set(range(first + run.start, first + run.end)) if run.data is not None else set()
    return lacked


def runs(events: Iterable[Event], client: bool) -> tuple[Run, ...]:
    """What events say of a side: bytes, or holes, that follow each other as one."""
    found: list[Run] = []
    pieces: list[bytes] = []
    for event in events:
        if not isinstance(event, Data | Hole) or event.direction is not _SIDES[client]:
            continue
        end = event.byte_start + len(event.data) if isinstance(event, Data) else event.byte_end
        goes_on = bool(found) and (found[-1].data is None) is isinstance(event, Hole)
        start = found.pop().start if goes_on else event.byte_start
        pieces = [*pieces, bytes(event.data)] if isinstance(event, Data) else []
        if isinstance(event, Data):
            found.append(Run(start, end, b"".join(pieces)))
            pieces = [b"".join(pieces)]
        else:
            found.append(Run(start, end, None))
    return tuple(found)


def _agree(read: tuple[Run, ...], reading: Reading) -> bool:
    ours, plain = (_without(one, reading.late) for one in (read, reading.runs))
    if ours == plain:
        return True
    if not reading.tail or not plain or plain[-1].data is not None:
        return False
    start, end, _ = plain[-1]
    shorter = [*plain[:-1], Run(start, end - 1, None)] if start < end - 1 else plain[:-1]
    return ours == shorter


def _without(read: Sequence[Run], ranges: Iterable[tuple[int, int]]) -> list[Run]:
    """The runs, with holes in place of the ranges."""
    for low, high in ranges:
        cut: list[Run] = []
        for run in read:
            start, end = max(run.start, low), min(run.end, high)
            if start >= end or run.data is None:
                cut.append(run)
                continue
            parts = [(run.start, start, True), (start, end, False), (end, run.end, True)]
            cut += [
                Run(a, b, run.data[a - run.start : b - run.start] if known else None) for a, b, known in parts if a < b
            ]
        read = cut
    joined: list[Run] = []
    for run in read:
        if joined and (joined[-1].data is None) is (run.data is None):
            before = joined.pop()
            run = Run(before.start, run.end, None if run.data is None else (before.data or b"") + run.data)
        joined.append(run)
    return joined


def _shown(read: Iterable[Run]) -> str:
    return ", ".join(f"{'hole' if run.data is None else 'bytes'} {run.start}-{run.end}" for run in read) or "nothing"


# Captures


def connections(path: Path) -> Iterator[tuple[str, list[Packet]]]:
    """The connections of a capture: a name, and the packets in order of arrival."""
    flows: dict[tuple[str, str], list[Packet]] = {}
    ns = 0
    with path.open("rb") as stream:
        for batch in PacketCapture(stream).batches():
            for ts_ns, row in zip(batch.column("ts_ns").to_pylist(), parse(batch).to_pylist(), strict=True):
                if row["skip"] is not None:
                    continue
                ns = max(ns, ts_ns)
                ends = [(row[f"{end}_port"], row[f"{end}_address"]) for end in ("source", "destination")]
                is_client = ends[0] >= ends[1]
                client, server = (f"{ip_address(address)}:{port}" for port, address in sorted(ends, reverse=True))
                flags = row["flags"]
                acknowledgment = row["acknowledgment"] if flags & ACK else None
                header = (ns, is_client, row["sequence"], acknowledgment, row["payload"], row["payload_bytes"])
                packet = Packet(*header, bool(flags & SYN), bool(flags & FIN), bool(flags & RST))
                flows.setdefault((client, server), []).append(packet)
    for (client, server), packets in flows.items():
        for number, part in enumerate(_split(packets)):
            yield f"{client} {server} #{number}", part


def _split(packets: Iterable[Packet]) -> Iterator[list[Packet]]:
    """Packets of a pair of ports by connection: each begins with a SYN of another number, or after hours of silence."""
    part: list[Packet] = []
    for packet in packets:
        asked = [one.sequence for one in part if one.syn and one.client is packet.client]
        asks_anew = packet.syn and packet.acknowledgment is None and bool(part) and packet.sequence not in asked
        if part and (asks_anew or packet.ns - part[-1].ns >= TcpOptions().idle_ns):
            yield part
            part = []
        part.append(packet)
    yield part


def main() -> int:
    """Compare the connections of all captures below a folder."""
    parser = argparse.ArgumentParser(description="Compare reassembly with a plain one on the captures of a folder.")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    equal = different = 0
    for path in sorted({path for pattern in _CAPTURES for path in folder.rglob(pattern)}):
        for name, packets in connections(path):
            found = differences(packets)
            equal, different = equal + (not found), different + bool(found)
            for difference in found:
                print(f"{path}: {name}\n{difference}")
    print(f"{equal} connections are equal, {different} are different")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
