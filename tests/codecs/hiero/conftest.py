"""Connections of captures as reassembly delivers them, and what a reader tells of them however its bytes were cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.carried import carry
from wirehouse_codecs.captures.pcap import PacketCapture
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.hiero.wire.grpc import events as grpc
from wirehouse_codecs.hiero.wire.grpc.reader import Reader as GrpcReader
from wirehouse_codecs.hiero.wire.spans import Undecodable
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_codecs.tcp.packets import parse
from wirehouse_codecs.tcp.reassembly import Data, Flow, Hole, TcpSegment

C, S = Direction.CLIENT, Direction.SERVER
PORT = 40840
Said = list[Data | Hole]


def place(number: int) -> Place:
    return Place(number, 0, b"capture", number)


LAST = place(1 << 40)


def segments(path: Path, *ports: int) -> dict[int, list[TcpSegment]]:
    """The segments of a capture to and from the servers' `ports`, by the client's port."""
    found: dict[int, list[TcpSegment]] = {}
    with path.open("rb") as stream:
        for batch in PacketCapture(stream).batches():
            for at_ns, packet in zip(batch.column("ts_ns").to_pylist(), parse(batch).to_pylist(), strict=True):
                from_server = packet["source_port"] in ports
                client = packet["destination_port" if from_server else "source_port"]
                fields = {name: packet[name] for name in TcpSegment._fields if name in packet}
                own = found.setdefault(client, [])
                own.append(TcpSegment(Place(at_ns, 0, b"capture", len(own)), S if from_server else C, **fields))
    return found


def delivered(own: Iterable[TcpSegment]) -> Said:
    """What reassembly delivers of a connection's segments."""
    flow = Flow("test", Endpoint("127.0.0.1", 1), Endpoint("127.0.0.1", PORT), TcpOptions())
    events = [event for segment in own for event in flow.receive(segment)]
    events += flow.expire(1 << 62)
    return [event for event in events if isinstance(event, Data | Hole)]


def cut(said: Iterable[Data | Hole], size: int, *, apart: bool = False) -> Said:
    """The same in pieces of at most `size` bytes: at the place of the whole, or all at other places."""
    pieces: Said = []
    for event in said:
        if isinstance(event, Hole):
            pieces.append(event._replace(place=place(len(pieces))) if apart else event)
            continue
        for at in range(0, len(event.data), size):
            where = place(len(pieces)) if apart else event.place
            pieces.append(Data(event.direction, event.byte_start + at, event.data[at : at + size], where))
    return pieces


def read_however_cut(said: Said, sizes: Sequence[int] = (1, 7), **options: Any) -> list[grpc.Event]:
    """What a reader tells at once; it is the same by pieces, and so is the place of everything."""
    told = whole(read(said, **options))
    for size in sizes:
        assert whole(read(cut(said, size), each=True, **options)) == told
    pieces = cut(said, 5, apart=True)
    assert whole(read(pieces, each=True, **options)) == whole(read(pieces, **options))
    return told


@dataclass
class Script:
    """What both sides say, a piece for each thing said."""

    said: Said
    at: dict[Direction, int]

    def say(self, direction: Direction, *things: bytes) -> Script:
        for data in things:
            start = self.at[direction]
            self.said.append(Data(direction, start, data, place(len(self.said))))
            self.at[direction] = start + len(data)
        return self

    def miss(self, direction: Direction, size: int) -> Script:
        start = self.at[direction]
        self.said.append(Hole(direction, start, start + size, place(len(self.said))))
        self.at[direction] = start + size
        return self


def script() -> Script:
    return Script([], {C: 0, S: 0})


def stitched(said: Sequence[Data | Hole], **options: Any) -> list[grpc.Event]:
    """What readers tell that go on from each other's snapshots, each for one piece."""
    state = GrpcReader(**options).state
    events: list[grpc.Event] = []
    options.pop("started_late", None)
    for one in said:
        reader = GrpcReader(state=carry(state), **options)
        events += feed(reader, [one])
        state = reader.state
    return events + GrpcReader(state=carry(state), **options).finish(LAST)


def feed(reader: GrpcReader, said: Sequence[Data | Hole], *, each: bool = False) -> list[grpc.Event]:
    """What a reader tells: of `each` piece, or of all between holes at once."""
    events: list[grpc.Event] = []
    pieces: list[Data] = []
    for event in said:
        if isinstance(event, Data):
            pieces.append(event)
        if each or isinstance(event, Hole):
            events += reader.receive(pieces)
            pieces = []
        if isinstance(event, Hole):
            events += reader.hole(event)
    return events + reader.receive(pieces)


def read(
    said: Sequence[Data | Hole], *, late: bool = False, closed: bool = True, each: bool = False, **options: Any
) -> list[grpc.Event]:
    reader = GrpcReader(started_late=late, **options)
    return feed(reader, said, each=each) + reader.finish(LAST, closed=closed)


def whole(events: Iterable[grpc.Event]) -> list[grpc.Event]:
    """Events with the parts of each message put together, in the order in which they were complete."""
    parts: dict[tuple[int, Direction], bytes] = {}
    told: list[grpc.Event] = []
    for event in events:
        if not isinstance(event, grpc.MessagePart):
            told.append(event)
            continue
        key = event.call, event.direction
        assert event.first == (key not in parts)
        data = parts.pop(key, b"") + bytes(event.data)
        if event.last:
            told.append(event._replace(data=data, first=True))
        else:
            parts[key] = data
    assert not parts
    return told


def messages(events: Iterable[grpc.Event], call: int, direction: Direction) -> list[bytes]:
    """The whole messages of one side of a call."""
    ours = (event for event in whole(events) if isinstance(event, grpc.MessagePart))
    return [bytes(one.data) for one in ours if (one.call, one.direction, one.fault) == (call, direction, None)]


def undecodable(events: Iterable[grpc.Event]) -> list[Undecodable]:
    return [event for event in events if isinstance(event, Undecodable)]


def balance(said: Sequence[Data | Hole], *, late: bool = False) -> None:
    """Every byte is framing, of a message, or told as bytes."""
    reader = GrpcReader(started_late=late)
    told = whole(feed(reader, said) + reader.finish(LAST))
    for direction in Direction:
        delivered_bytes = sum(len(one.data) for one in said if isinstance(one, Data) and one.direction is direction)
        bytes_told = sum(len(one.data) for one in undecodable(told) if one.direction is direction)
        content = sum(
            grpc.PREFIX_BYTES + (len(one.data) if one.fault else one.length)
            for one in told
            if isinstance(one, grpc.MessagePart) and one.direction is direction
        )
        assert reader.framing_bytes(direction) + bytes_told + content == delivered_bytes


@pytest.fixture(scope="session")
def wire() -> Callable[[], Any]:
    """The helpers of this module, which tests can't import."""
    import types

    return types.SimpleNamespace(**globals())  # type: ignore[return-value]
