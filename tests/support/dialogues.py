"""Connections whose segments are made by hand: they go in by the position of their bytes, and events come out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_codecs.tcp.packets import ACK, FIN, SYN
from wirehouse_codecs.tcp.reassembly import (
    CODEC,
    Closed,
    Connection,
    Data,
    Event,
    Flow,
    Hole,
    Opened,
    OverlapDiffers,
    ResetIgnored,
    TcpSegment,
    Unordered,
)

VECTORS = Path(__file__).parents[1] / "vectors" / "wallaroo"


C, S = Direction.CLIENT, Direction.SERVER


CLIENT, SERVER = Endpoint("10.0.0.1", 40_000), Endpoint("10.0.0.2", 5555)


OPTIONS = TcpOptions()


SECOND = 10**9


#: Initial sequence numbers of the dialogues; the client's wraps after 9 bytes.
ISN = {C: 2**32 - 10, S: 1000}


def new_flow(options: TcpOptions = OPTIONS, snapshot: str | None = None) -> Flow:
    return Flow("a source", CLIENT, SERVER, options, snapshot)


def moment(record: int, ns: int) -> Place:
    return Place(ns, 0, b"capture", record)


class Dialogue:
    """Segments go in by the position of their bytes; events come out. Each segment arrives a microsecond later."""

    def __init__(self, options: TcpOptions = OPTIONS) -> None:
        self.flow = new_flow(options)
        self.ns = 0
        self.records = 0
        self.sent: list[TcpSegment] = []

    def send(
        self,
        direction: Direction,
        start: int,
        payload: bytes = b"",
        flags: int = ACK,
        *,
        acknowledgment: int = 0,
        size: int | None = None,
        window: int = 100,
    ) -> list[Event]:
        """`start` and `acknowledgment` count from the first bytes after SYN."""
        self.ns += 1000
        self.records += 1
        other = S if direction is C else C
        segment = TcpSegment(
            moment(self.records, self.ns),
            direction,
            (ISN[direction] + 1 + start) % 2**32,
            (ISN[other] + 1 + acknowledgment) % 2**32 if flags & ACK else 0,
            flags,
            window,
            payload,
            len(payload) if size is None else size,
        )
        self.sent.append(segment)
        return self.flow.receive(segment)

    def open(self, window: int = 100) -> Dialogue:
        """`window`: what the server takes."""
        assert plain(self.send(C, -1, flags=SYN)) == ["open syn"]
        assert self.send(S, -1, flags=SYN | ACK, window=window) == []
        assert self.send(C, 0) == []
        return self

    def restore(self) -> Dialogue:
        """Go on from the snapshot."""
        self.flow = new_flow(snapshot=self.flow.snapshot())
        return self

    def wait(self, ns: int) -> Dialogue:
        self.ns += ns
        return self

    @property
    def connection(self) -> Connection:
        assert self.flow.connection is not None
        return self.flow.connection


def plain(events: Iterable[Event]) -> list[Any]:
    """Events without places, for reading."""
    found: list[Any] = []
    for event in events:
        match event:
            case Opened(connection):
                found.append(f"open {connection.opened}")
            case Data(direction, start, data, _):
                found.append((str(direction), start, data))
            case Hole(direction, start, end, _):
                found.append((str(direction), "hole", start, end))
            case Unordered(_):
                found.append("unordered")
            case OverlapDiffers(direction, start, end, _):
                found.append((str(direction), "differs", start, end))
            case ResetIgnored(direction, _):
                found.append(f"reset of {direction} ignored")
            case Closed(_, how, _):
                found.append(f"closed {how}")
    return found


def joined(events: Iterable[Event]) -> list[Any]:
    """`plain`, bytes that follow each other as one."""
    found: list[Any] = []
    for event in plain(events):
        before = found[-1] if found else None
        goes_on = before is not None and is_data(event) and is_data(before)
        if before is not None and goes_on and (before[0], before[1] + len(before[2])) == event[:2]:
            found[-1] = (*before[:2], before[2] + event[2])
        else:
            found.append(event)
    return found


def is_data(event: Any) -> bool:
    return isinstance(event, tuple) and isinstance(event[-1], bytes)


class Sent(NamedTuple):
    """A segment of the properties, by the position of its bytes."""

    direction: Direction
    start: int
    end: int
    flags: int = ACK
    #: Bytes that were not captured.
    cut: int = 0
    #: Position of the first byte of the other side that is not acknowledged.
    acknowledged: int = 0


def as_segments(
    texts: dict[Direction, bytes], numbers: dict[Direction, int], pieces: list[Sent], pauses: list[int]
) -> list[TcpSegment]:
    """Handshake and `pieces`; before each of these its pause in seconds."""
    opening = [(C, numbers[C], SYN, b"", 0, 0), (S, numbers[S], SYN | ACK, b"", 0, 0)]
    rows = opening + [
        (
            piece.direction,
            (numbers[piece.direction] + 1 + piece.start) % 2**32,
            piece.flags,
            texts[piece.direction][piece.start : piece.end - piece.cut],
            piece.end - piece.start,
            piece.acknowledged,
        )
        for piece in pieces
    ]
    ns, segments = 0, []
    for record, (direction, sequence, flags, payload, size, acknowledged) in enumerate(rows):
        ns += pauses[record - 2] * SECOND if record > 1 else 1
        acknowledgment = (numbers[S if direction is C else C] + 1 + acknowledged) % 2**32
        place = moment(record, ns)
        segments.append(TcpSegment(place, direction, sequence, acknowledgment, flags, 9, payload, size))
    return segments


class Told(NamedTuple):
    """What a flow told of segments: events, by connection too, and the last state of each connection."""

    events: list[Any]
    connections: dict[bytes, Connection]


def told(segments: list[TcpSegment], options: TcpOptions = OPTIONS, *, cut: bool = False, short: bool = True) -> Told:
    """Everything up to the end of all idleness.

    If `cut`, each segment is taken by another flow; if not `short`, none by the short way of plain segments.
    """
    flow = new_flow(options)
    events: list[Any] = []
    connections: dict[bytes, Connection] = {}

    def note(found: list[Event]) -> None:
        for event in found:
            events.append(event.connection.connection_id if isinstance(event, Opened) else event)

    taken: Counter[Direction] = Counter()
    for segment in segments:
        if cut:
            note(flow.expire(segment.place.arrived_at_ns))
            snapshot = flow.snapshot()
            flow = new_flow(options, snapshot)
            assert flow.snapshot() == snapshot
            if flow.connection is not None:
                connections[flow.connection.connection_id] = flow.connection
        note(flow.receive(segment) if short else flow._receive_any(segment))
        assert flow.connection is not None
        connections[flow.connection.connection_id] = flow.connection
        for side in (flow.connection.client, flow.connection.server):
            assert side._waiting_bytes <= options.max_waiting_bytes
        taken[segment.direction] += len(segment.payload)
        assert counted_bytes(connections.values()) == taken
    note(flow.expire(2**62))
    assert flow.snapshot() == ""
    return Told(events, connections)


def assert_tiles(events: list[Any], texts: dict[Direction, bytes] | None = None) -> dict[Direction, bytes]:
    """Bytes and holes of each connection follow each other, and bytes are those sent. Gives those of the last one."""
    at: dict[Direction, int] = {}
    found: dict[Direction, bytearray] = {}
    for event in events:
        if isinstance(event, bytes):
            at, found = dict.fromkeys(Direction, 0), {direction: bytearray() for direction in Direction}
        elif isinstance(event, Data):
            assert event.byte_start == at[event.direction]
            assert event.data
            at[event.direction] += len(event.data)
            found[event.direction] += event.data
            if texts is not None:
                assert event.data == texts[event.direction][event.byte_start : at[event.direction]]
        elif isinstance(event, Hole):
            assert event.byte_start == at[event.direction] < event.byte_end
            at[event.direction] = event.byte_end
    return {direction: bytes(text) for direction, text in found.items()}


def counted_bytes(connections: Iterable[Connection]) -> Counter[Direction]:
    """By direction the captured bytes that are in one of the counters, or wait."""
    counted: Counter[Direction] = Counter()
    for connection in connections:
        for side in (connection.client, connection.server):
            counted[side.direction] += side.delivered_bytes + side.retransmitted_bytes + side.ignored_bytes
            counted[side.direction] += connection.waiting_bytes(side)
    return counted


def assert_balances(segments: list[TcpSegment], result: Told) -> None:
    """Every captured byte and every packet is in one counter."""
    packets: Counter[Direction] = Counter()
    for connection in result.connections.values():
        for side in (connection.client, connection.server):
            assert side._waiting_bytes == 0
            packets[side.direction] += side.packets + side.unproven
    counted = counted_bytes(result.connections.values())
    for direction in Direction:
        assert counted[direction] == sum(len(s.payload) for s in segments if s.direction is direction)
        assert packets[direction] == sum(s.direction is direction for s in segments)
    sides = [side for connection in result.connections.values() for side in (connection.client, connection.server)]
    events = result.events
    assert sum(side.delivered_bytes for side in sides) == sum(len(e.data) for e in events if isinstance(e, Data))
    missing = sum(e.byte_end - e.byte_start for e in events if isinstance(e, Hole))
    assert sum(side.missing_bytes for side in sides) == missing
    assert sum(side.overlaps_differ for side in sides) == sum(isinstance(e, OverlapDiffers) for e in events)


def states(result: Told) -> list[Any]:
    return [CODEC.write(connection.carried()) for connection in result.connections.values()]


@st.composite
def answered(draw: st.DrawFn) -> tuple[dict[Direction, bytes], list[TcpSegment], int]:
    """What two sides say when each acknowledges all that came before, the segments, and which of them has data."""
    said = draw(
        st.lists(st.tuples(st.sampled_from(Direction), st.integers(2, 20), st.booleans()), min_size=2, max_size=15)
    )
    at = dict.fromkeys(Direction, 0)
    pieces: list[Sent] = []
    for direction, size, confirmed in said:
        other = S if direction is C else C
        pieces.append(Sent(direction, at[direction], at[direction] + size, acknowledged=at[other]))
        at[direction] += size
        if confirmed:
            pieces.append(Sent(other, at[other], at[other], acknowledged=at[direction]))
    texts = {direction: draw(st.binary(min_size=size, max_size=size)) for direction, size in at.items()}
    pieces += [Sent(C, at[C], at[C], FIN | ACK, 0, at[S]), Sent(S, at[S], at[S], FIN | ACK, 0, at[C] + 1)]
    pauses = draw(st.lists(st.sampled_from([0, 0, 0, 4, 11]), min_size=len(pieces), max_size=len(pieces)))
    segments = as_segments(texts, ISN, pieces, pauses)
    return texts, segments, draw(st.sampled_from([at for at, each in enumerate(segments) if each.payload]))
