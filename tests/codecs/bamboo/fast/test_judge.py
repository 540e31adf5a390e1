"""The compiled twin of a connection: the rows and the state of the readable one, wherever pieces are cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain, repeat
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.codecs.bamboo.conftest import grown
from tests.codecs.bamboo.log.test_log import VECTORS, from_vector
from tests.codecs.bamboo.session.peers import confirm, layer, metadata, propose, raw
from wirehouse_codecs.bamboo.fast import judge as plain_pieces
from wirehouse_codecs.bamboo.fast.judge import Plain, Spoken
from wirehouse_codecs.bamboo.log.conversation import Conversation
from wirehouse_codecs.bamboo.log.rows import ENTRY
from wirehouse_codecs.bamboo.log.schema import SCHEMA
from wirehouse_codecs.bamboo.options import BambooOptions
from wirehouse_codecs.bamboo.setup import Setup
from wirehouse_codecs.bamboo.simulator import simulator
from wirehouse_codecs.bamboo.simulator.faults import FAULTS
from wirehouse_codecs.bamboo.wire import bymux_packets
from wirehouse_codecs.bamboo.wire.bymux_packets import Packet, Type
from wirehouse_codecs.bamboo.wire.encoding import encode
from wirehouse_codecs.bamboo.wire.lzfoo import Deflater
from wirehouse_codecs.bamboo.wire.messages import CompressedPayload, PointToPoint, ProposalCredit, Switch
from wirehouse_codecs.bamboo.wire.reader import Layer
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.logs.rows import VIOLATION, Log
from wirehouse_codecs.simulate.script import Send
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_codecs.tcp.reassembly import Closed, Connection, Data, Side

#: Much is tried.
pytestmark = pytest.mark.property

A, B = Direction.CLIENT, Direction.SERVER
WIDE = Setup(True, True, 1 << 16, 1 << 16)
Made = list[tuple[Direction, bytes]]
Rows = list[dict[str, Any]]


def connection() -> Connection:
    # Both sides were captured: a side without a packet would excuse the other one.
    place, client, server = (
        Place(1, 1, b"capture", 0),
        Side(A, 1, options=TcpOptions()),
        Side(B, 1, options=TcpOptions()),
    )
    client.may_lack_beginning = server.may_lack_beginning = False
    return Connection(b"connection", "syn", place, place, client, server)


def pieces_of(made: Made, sizes: Iterator[int]) -> list[Data]:
    """What the sides say in pieces of these sizes, which don't mix sides."""
    at = dict.fromkeys(Direction, 0)
    pieces: list[Data] = []
    waiting: Made = []
    for side, data in [*made, (A, b"")]:
        if waiting and waiting[-1][0] is not side:
            sender, joined = waiting[0][0], b"".join(one for _, one in waiting)
            while joined:
                size = next(sizes)
                place = Place(len(pieces) + 2, 1, b"capture", len(pieces) + 1)
                pieces.append(Data(sender, at[sender], joined[:size], place))
                at[sender] += len(pieces[-1].data)
                joined = joined[size:]
            waiting = []
        waiting.append((side, data))
    return pieces


class Twin:
    """A conversation, and the rows that it gives."""

    def __init__(self, *, plain: bool) -> None:
        self.log = Log(SCHEMA)
        self._plain = plain
        self.log.client = Endpoint("10.0.0.1", 40_000)
        self.conversation = Conversation(self.log, connection(), Endpoint("10.0.0.2", 4_000), BambooOptions(), None)
        self.taken = 0

    def receive(self, pieces: list[Data]) -> None:
        if self._plain:
            self.conversation.receive(pieces)
            return
        for at in range(0, len(pieces), 2):
            self.conversation.receive(pieces[at : at + 2])

    def rows(self) -> Rows:
        """Those of entries come last, and after them what is found."""
        rows = [row for batch in self.log.take() for row in batch.to_pylist()]
        return sorted(rows, key=lambda row: (row["row_kind"] == VIOLATION, row["row_kind"] == ENTRY))


def compare(pieces: list[Data], cuts: list[int]) -> int:
    """Both twins give the same; how many rows came from the compiled one."""
    plain, readable = Twin(plain=True), Twin(plain=False)
    begin, compiled = 0, 0
    for end in [*cuts, len(pieces)]:
        plain.receive(pieces[begin:end])
        readable.receive(pieces[begin:end])
        compiled += sum(batch.num_rows for batch in plain.log._batches)
        assert plain.rows() == readable.rows()
        assert plain.conversation.snapshot() == readable.conversation.snapshot()
        begin = end
    closed = Closed(Place(10**6, 1, b"capture", 10**6), "fin")
    for twin in (plain, readable):
        twin.conversation.close(closed)
        twin.conversation.conclude()
    assert plain.rows() == readable.rows()
    return compiled


def entries_of(log: Any, seqs: range, random: Random, deflater: Deflater | None = None) -> Iterator[PointToPoint]:
    for seq in seqs:
        payload = log.payloads[seq]
        yield metadata(log.entries[seq], backlink=random.random() < 0.1)
        at = 0
        while at < len(payload) or not at:
            size = len(payload) if random.random() < 0.7 else random.randint(1, len(payload) + 1)
            part = payload[at : at + size]
            if deflater is not None and random.random() < 0.5:
                yield CompressedPayload(len(part), len(packed := deflater.compress(part)), packed)
            else:
                yield raw(part)
            at += max(size, 1)


def proposed(side: Direction, log: Any, number: int, start: int) -> Iterator[tuple[Direction, PointToPoint]]:
    """A side proposes a log from entry `start` on, the other one begins to send it."""
    peer = B if side is A else A
    yield side, propose(log, number, start, lower_info=start)
    yield peer, confirm(number)
    yield peer, Switch(number)


def dialogue(
    log: Any,
    last: int,
    random: Random,
    *,
    compress: bool = True,
    other: Any = None,
    first: int = 1,
    other_first: int = 1,
    again: range = range(0),
) -> Made:
    """The server sends entries `first` to `last`, then for another proposal those of `again`; the client those of
    `other`, from `other_first` on. Packets may go over several Writes.
    """
    streams = {Layer.CONTROL: 0, Layer.DATA: 1}
    made: Made = [(A, encode(WIDE)), (B, encode(WIDE))]
    made += [
        (A, bymux_packets.encode(Packet(Type.CREDIT, 1, 1 << 14))),
        (B, bymux_packets.encode(Packet(Type.CREDIT, 1, 1 << 30))),
    ]
    given = 1 << 14

    def write(side: Direction, packet: PointToPoint) -> None:
        nonlocal given
        data = encode(packet)
        stream = streams[layer(packet)]
        cut = random.randint(1, len(data)) if stream and random.random() < 0.1 else len(data)
        for part in (data[:cut], data[cut:]):
            if side is B and stream:
                given -= len(part)
                if given < 1 << 12:
                    made.append((A, bymux_packets.encode(Packet(Type.CREDIT, 1, 1 << 14))))
                    given += 1 << 14
            if part:
                made.append((side, bymux_packets.write(stream, part)))

    for side in (A, B):
        write(side, ProposalCredit(9))
    begins = [*proposed(A, log, 0, first), *([] if other is None else proposed(B, other, 1, other_first))]
    for side, packet in begins:
        write(side, packet)
    deflater = Deflater(1 << 16) if compress else None
    theirs, more = (zip(repeat(B), entries_of(log, seqs, random, deflater)) for seqs in (range(first, last + 1), again))
    ours = iter(()) if other is None else entries_of(other, range(other_first, len(other.entries) + 1), random)
    for side, packet in chain(theirs, proposed(A, log, 2, again.start) if again else (), more):
        write(side, packet)
        if random.random() < 0.5 and (mine := next(ours, None)) is not None:
            write(A, mine)
        if random.random() < 0.02:
            write(A, ProposalCredit(1))
    return made


@pytest.fixture(scope="session")
def logs(make_log: Callable[..., Any]) -> tuple[Any, Any]:
    return make_log(90), make_log(40, log_id=300, author=2)


#: What fails is as long as what doesn't, so it isn't made shorter.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)


@cache
def long_log(author: int = 3) -> Any:
    return grown(700, author)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Spoken]:
    """What the compiled twin takes."""
    told: list[Spoken] = []

    def take(self: Plain, pieces: Sequence[Data]) -> Spoken | None:
        spoken = whole(self, pieces)
        told.extend([] if spoken is None else [spoken])
        return spoken

    whole = Plain.take
    monkeypatch.setattr(Plain, "take", take)
    return told


@settings(max_examples=10, phases=PHASES)
@given(seed=st.integers(0, 10**6), size=st.sampled_from([3, 60, 400, 1448, 20_000]), both=st.booleans())
def test_plain_connections_are_those_of_the_readable_twin(
    logs: tuple[Any, Any], seed: int, size: int, both: bool
) -> None:
    random = Random(seed)
    made = dialogue(logs[0], 12 if size < 60 else 90, random, other=logs[1] if both else None)
    pieces = pieces_of(made, iter(lambda: random.randint(1, size), 0))
    cuts = sorted(random.randrange(len(pieces)) for _ in range(3))
    compared = compare(pieces, cuts)
    assert compared or len(pieces) < 40 or size < 60


@settings(max_examples=30, phases=PHASES)
@given(seed=st.integers(0, 10**6), size=st.sampled_from([60, 1448, 20_000]), other=st.sampled_from([None, 2, 3]))
def test_logs_that_go_on_are_those_of_the_readable_twin(seed: int, size: int, other: Any) -> None:
    random = Random(seed)
    first, other_first, after = (random.choice([1, random.randint(1, 699)]) for _ in range(3))
    made = dialogue(
        long_log(),
        random.randint(first, 700),
        random,
        other=None if other is None else long_log(other),
        first=first,
        other_first=random.choice([first, other_first]),
        again=random.choice([range(0), range(after, 701)]),
    )
    pieces = pieces_of(made, iter(lambda: random.randint(1, size), 0))
    compare(pieces, sorted(random.randrange(len(pieces)) for _ in range(3)))


def test_a_link_may_be_to_what_was_said_for_another_proposal() -> None:
    made = dialogue(long_log(), 300, Random(4), again=range(250, 500))
    assert compare(pieces_of(made, repeat(100)), [])


@pytest.mark.parametrize("both", [False, True])
def test_entries_with_links_that_are_not_known_are_taken(taken: list[Spoken], both: bool) -> None:
    other = {"other": long_log(), "other_first": 300} if both else {}
    made = dialogue(long_log(), 700, Random(4), first=300, **other)
    compare(pieces_of(made, repeat(100)), [])
    sizes = np.concatenate([side_data.sizes for spoken in taken for side_data in spoken.by_side.values()])
    assert np.count_nonzero(sizes == 0) > 250


def test_of_very_many_packets_few_are_taken_at_once(
    logs: tuple[Any, Any], taken: list[Spoken], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_pieces, "_MOST_ROWS", 20)
    writes = [(side, bymux_packets.write(1, b"") * count) for side in (A, B) for count in (1, 5, 20, 21, 3, 3) * 4]
    assert compare(pieces_of([*dialogue(logs[0], 1, Random(1)), *writes], repeat(40)), [])
    assert 10 < max(spoken.bymux.shape[1] for spoken in taken) <= 20


@settings(max_examples=30, phases=PHASES)
@given(seed=st.integers(0, 10**6), data=st.data())
def test_what_is_odd_is_told_as_by_the_readable_twin(logs: tuple[Any, Any], seed: int, data: st.DataObject) -> None:
    random = Random(seed)
    made = dialogue(logs[0], 60, random, other=logs[1] if random.random() < 0.3 else None)
    for _ in range(random.randint(1, 3)):
        index = random.randrange(len(made))
        side, old = made[index]
        at = random.randrange(len(old))
        made[index] = (side, old[:at] + random.randbytes(random.randint(0, 3)) + old[at + random.randint(0, 3) :])
    pieces = pieces_of(made, iter(lambda: random.randint(1, 1448), 0))
    compare(pieces, [])


@pytest.mark.parametrize(
    ("kind", "widths"),
    [(Type.WRITE, {"id_width": 2}), (Type.WRITE, {"amount_width": 8}), (Type.CREDIT, {"amount_width": 8})],
)
def test_a_number_wider_than_it_need_be_is_odd(logs: tuple[Any, Any], kind: Type, widths: dict[str, int]) -> None:
    made = dialogue(logs[0], 60, Random(2))
    made.insert(len(made) // 2, (A, bymux_packets.encode(Packet(Type.CREDIT, 1, 9))))
    at = max(at for at, (_, data) in enumerate(made) if data[0] >> 5 == kind)
    side, data = made[at]
    read = bymux_packets.Reader().receive(data)[0]
    assert isinstance(read, bymux_packets.Read)
    assert read.packet is not None
    wide = Packet(kind, read.packet.stream_id, read.packet.amount, **widths)
    made[at] = side, bymux_packets.encode(wide, data[len(data) - wide.content_bytes :])
    compare(pieces_of(made, iter(lambda: 1448, 0)), [])


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
@pytest.mark.parametrize("size", [1, 11, 100])
def test_vectors(path: Any, size: int) -> None:
    compare(pieces_of(from_vector(path.stem), iter(lambda: size, 0)), [])


def test_credits_of_created_streams_before_anything_is_written_there() -> None:
    made: Made = [(A, encode(WIDE)), (B, encode(WIDE)), (B, bymux_packets.encode(Packet(Type.CREDIT, None, 4)))]
    made += [(A, bymux_packets.encode(Packet(Type.WRITE, None, stream))) for stream in (0, 2)]
    made += [(side, bymux_packets.encode(Packet(Type.CREDIT, 0, 0))) for side in (A, B)]
    made += [(side, bymux_packets.encode(Packet(Type.CREDIT, 2, 1000 + i))) for i in range(20) for side in (B, A)]
    assert compare(pieces_of(made, iter(lambda: 1448, 0)), []) > 0


def simulated(**config: Any) -> Iterator[Made]:
    """What the sides of simulated connections write."""
    for dialogue in simulator.connections(simulator.SimulatorConfig(**config)):
        yield [(event.direction, event.data) for event in dialogue.events if isinstance(event, Send)]


def compared(**config: Any) -> int:
    """How many rows of simulated connections the compiled twin gave."""
    random, rows = Random(1), 0
    for made in simulated(**config):
        pieces = pieces_of(made, iter(lambda: random.randint(600, 1448), 0))
        rows += compare(pieces, [len(pieces) // 3])
    return rows


def test_simulated_traffic() -> None:
    assert compared(connections=2, logs=2, entries=60, ways=4) > 0


@pytest.mark.parametrize("mode", [simulator.SAFE, simulator.GREEDY, simulator.MIXED])
def test_simulated_logs_that_go_on(mode: str) -> None:
    assert compared(connections=2, logs=2, entries=60, first_entry=500, ways=4, mode=mode) > 0


@pytest.mark.parametrize("fault", FAULTS)
def test_simulated_faults(fault: str) -> None:
    compared(connections=1, logs=1, entries=12, ways=0, fault=fault)
