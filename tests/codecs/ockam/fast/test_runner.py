"""The compiled twin of reader and session gives what the readable ones give: rows, findings, carried state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codecs.ockam.wire.framing import framed
from tests.support.searches import fast_first
from wirehouse_codecs.compiled import arrow
from wirehouse_codecs.core.intervals import Intervals
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.logs.rows import Log
from wirehouse_codecs.ockam.fast import judge, judge_loops, runner
from wirehouse_codecs.ockam.log import log
from wirehouse_codecs.ockam.options import OckamOptions
from wirehouse_codecs.ockam.session import memory, requests, session
from wirehouse_codecs.ockam.wire import reader
from wirehouse_codecs.ockam.wire.messages import (
    CreatePartitionedRequest,
    CreatePartitionedResponse,
    CreateRequest,
    CreateResponse,
    Error,
    IndexGet,
    IndexResponse,
    IndexSave,
    Message,
    Names,
    PullRequest,
    PullResponse,
    PushRequest,
    PushResponse,
    Status,
    StreamMessage,
    base_payload,
)
from wirehouse_codecs.ockam.wire.routed import OPENING, Envelope
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_codecs.tcp.reassembly import Closed, Connection, Data, Hole, Opening, Side

C, S = Direction
BARE, CBOR = Envelope
SECOND = 1_000_000_000
OPTIONS = OckamOptions(answer_timeout_s=30)
MOST = 2**64 - 1
Sent = tuple[Direction, bytes]


def place(ns: int, number: int) -> Place:
    return Place(ns, 7, b"capture", number)


@dataclass(frozen=True)
class Chances:
    """One in how many messages is what it says; 0 = none is."""

    odd: int = 0
    damaged: int = 0


class Talk:
    """A client with several workers, and a service, who now and then do what they should not."""

    def __init__(self, random: Random, envelope: Envelope, chances: Chances) -> None:
        self.random, self.envelope, self.chances = random, envelope, chances
        self.names = random.choice(tuple(Names))
        self.streams = [f"ST_S_{number}" for number in range(random.randint(1, 3))]
        if chances.odd and len(self.streams) > 1:
            self.streams[-1] = "1#10.0.0.1:4000=>ST_S_0"
        self.workers = ["me", "hop=>me", "other"][: random.randint(1, 3)]
        #: What is open, by kind: who, where, and the request.
        self.open: list[tuple[str, str, Message]] = []
        self.confirmed = dict.fromkeys(self.streams, 0)
        self.saved: dict[tuple[str, str, int | None], int] = {}
        self.number = random.choice([*[0] * 8, 2**62 - 20, MOST - 3])

    def said(self, count: int) -> Iterator[Sent]:
        if self.envelope is CBOR:
            yield from ((C, OPENING), (S, OPENING))
        for number, stream in enumerate(self.streams):
            if self.is_odd():
                continue
            yield self.say(C, CreateRequest(f"s{number}"), "stream", "me")
            yield self.say(S, CreateResponse(f"s{number}"), "me", stream)
        for _ in range(count):
            yield self.next()

    def is_odd(self) -> bool:
        return bool(self.chances.odd) and self.random.randrange(self.chances.odd) == 0

    def say(self, side: Direction, message: Message | bytes, to: str, back: str) -> Sent:
        context = {"tracing_context": "context"} if self.random.random() < 0.1 else {}
        written = framed(message, to, back, self.envelope, self.names, **context)
        if self.chances.damaged and self.random.randrange(self.chances.damaged) == 0:
            damaged = bytearray(written)
            what = self.random.randrange(4)
            if what == 0:
                damaged[self.random.randrange(len(damaged))] = self.random.randrange(256)
            elif what == 1:
                del damaged[self.random.randrange(len(damaged)) :]
            elif what == 2:
                damaged += bytes(self.envelope.length_bytes)
            else:
                damaged += self.random.randbytes(9)
            written = bytes(damaged)
        return side, written

    def next(self) -> Sent:
        if self.is_odd():
            return self.odd()
        if self.open and self.random.random() < 0.5:
            return self.answer(*self.open.pop(0 if self.random.random() < 0.9 else -1))
        return self.ask()

    def key(self) -> tuple[str, str, int | None]:
        stream = self.random.randrange(len(self.streams))
        return f"client{stream}", f"s{stream}", self.random.choice([None, None, 0, 1]) if stream else None

    def ask(self) -> Sent:
        random = self.random
        worker, stream = random.choice(self.workers), random.choice(self.streams)
        what = random.randrange(6)
        asked: Message
        if what < 3:
            self.number = min(self.number + 1, MOST)
            asked = PushRequest(self.number, random.randbytes(random.randrange(20)))
        elif what == 3:
            self.number = min(self.number + 1, MOST)
            index = random.randint(0, self.confirmed[stream])
            asked = PullRequest(self.number, index, random.choice([1, 5, 10, MOST]))
        else:
            key, stream, worker = self.key(), "stream_index", self.workers[0]
            asked = IndexGet(*key)
            if what == 5:
                self.saved[key] = self.saved.get(key, 0) + random.randrange(2)
                return self.say(C, IndexSave(*key[:2], self.saved[key], key[2]), stream, worker)
        self.open.append((worker, stream, asked))
        return self.say(C, asked, stream, worker)

    def answer(self, worker: str, stream: str, asked: Message) -> Sent:
        told: Message
        match asked:
            case PushRequest():
                told = PushResponse(asked.request_id, Status.OK, self.confirmed[stream])
                self.confirmed[stream] += 1
            case PullRequest():
                until = min(asked.index + asked.limit, self.confirmed[stream])
                pulled = [StreamMessage(index, b"data") for index in range(asked.index, until)]
                told = PullResponse(asked.request_id, tuple(pulled))
            case IndexGet(client, name, partition):
                told = IndexResponse(client, name, self.saved.get((client, name, partition)), partition)
            case _:
                raise AssertionError(asked)
        return self.say(S, told, worker, stream)

    def wrong(self, worker: str, stream: str, asked: Message) -> Sent:
        """An answer that should be another."""
        random, told = self.random, asked
        match asked:
            case PushRequest():
                index = random.randrange(self.confirmed[stream] + 1)
                told = PushResponse(asked.request_id, random.choice([Status.OK, Status.OK, Status.ERROR]), index)
            case PullRequest():
                at = min(asked.index, 1000)
                indexes = random.choice([[at, at], [at + 1, at], [max(0, at - 1)], range(at, at + 11)])
                told = PullResponse(asked.request_id, tuple(StreamMessage(index, b"data") for index in indexes))
            case IndexGet(client, name, partition):
                told = IndexResponse(client, name, random.choice([None, 0, 2**62]), partition)
        return self.say(S, told, worker, stream)

    def odd(self) -> Sent:
        """Something that breaks a rule, or is rare."""
        if self.open and self.random.random() < 0.5:
            return self.wrong(*self.open.pop(0))
        random, worker = self.random, self.random.choice([*self.workers, "stranger", "x" * 300])
        stream = random.choice([*self.streams, "ST_S_9", "stream", "stream_index", ""])
        number = random.choice([self.number, max(0, self.number - 2), 2**62, MOST])
        pulled = tuple(StreamMessage(random.randrange(5), b"data") for _ in range(random.randrange(4)))
        client, name, partition = self.key()
        rare: list[tuple[Direction, Message | bytes]] = [
            (S, PushResponse(number, random.choice(tuple(Status)), random.choice([0, 5, 2**63, MOST]))),
            (S, PullResponse(number, pulled)),
            (C, PushRequest(number, b"again")),
            (C, PullRequest(number, 0, 1)),
            (C, IndexSave(client, name, random.choice([0, 2**62]), partition)),
            (C, IndexSave("stranger", name, 1, partition)),
            (C, IndexGet(client, name, random.choice([0, 1, MOST]))),
            (S, IndexResponse(client, name, random.choice([None, 0, 1]), partition)),
            (S, Error("no")),
            (C, CreateRequest("s0")),
            (S, CreateResponse("s0")),
            (C, CreatePartitionedRequest("s1", 2)),
            (S, CreatePartitionedResponse("s1", random.randrange(3))),
            (random.choice((C, S)), base_payload("ping", b"")),
            (C, b"\xff"),
        ]
        side, message = random.choice(rare)
        if random.random() < 0.1:
            return self.say(side, message, "", worker)
        return self.say(side, message, stream, worker) if side is C else self.say(side, message, worker, stream)


def pieces_of(said: Iterable[Sent], random: Random) -> list[Data]:
    """The bytes in segments, in their order; sometimes much time passes."""
    waiting = {C: bytearray(), S: bytearray()}
    at = {C: 0, S: 0}
    pieces: list[Data] = []
    most, now_ns = random.choice([5, 60, 400]), SECOND

    def cut(side: Direction, size: int) -> None:
        nonlocal now_ns
        now_ns += random.choice([0, 1, SECOND, 40 * SECOND] if random.random() < 0.05 else [0, 1])
        data = bytes(waiting[side][:size])
        del waiting[side][:size]
        pieces.append(Data(side, at[side], data, place(now_ns, len(pieces))))
        at[side] += len(data)

    for side, data in said:
        waiting[side] += data
        while len(waiting[side]) > most:
            cut(side, random.randint(1, most))
        other = C if side is S else S
        if waiting[other] and random.random() < 0.8:
            cut(other, len(waiting[other]))
    for side in (C, S):
        if waiting[side]:
            cut(side, len(waiting[side]))
    return pieces


class Told:
    """The log of one connection, whose runs are compiled or not."""

    def __init__(self, opened: Opening, compiled: bool) -> None:
        self._log, self._compiled = Log(log.SCHEMA), compiled
        first, sides = (
            place(SECOND, 0),
            (Side(C, options=TcpOptions(), packets=1), Side(S, options=TcpOptions(), packets=1)),
        )
        self._connection = Connection(b"connection", opened, first, first, *sides)
        self._start(None)

    def _start(self, snapshot: str | None) -> None:
        self._dialogue = log.Conversation(self._log, self._connection, OPTIONS, snapshot)

    def take(self, events: Sequence[Data | Hole]) -> tuple[pa.Table, str]:
        """The rows of a run of pieces, or of a hole, and the state behind it."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(log, "COMPILED_FROM_BYTES", 0 if self._compiled else 1 << 60)
            # Also what would not pay is tried.
            patch.setattr(judge.Plain, "cost", lambda *_: 1)
            patch.setattr(judge, "ROWS_A_GROUP", 0)
            patch.setattr(runner, "_FEWEST_READ", 1)
            patch.setattr(runner, "_MOST_TRIED", 8)
            patch.setattr(runner, "_MOST_READ", 2)
            patch.setattr(judge, "FEWEST_AT_ONCE", 8)
            match events:
                case [Hole() as hole]:
                    self._dialogue.hole(hole)
                case _:
                    self._dialogue.receive([event for event in events if isinstance(event, Data)])
        self._dialogue.conclude()
        return self._rows(), self._dialogue.snapshot()

    def restart(self) -> None:
        self._start(self._dialogue.snapshot())

    def close(self, at: Place) -> pa.Table:
        self._dialogue.close(Closed(at, "fin"))
        self._dialogue.conclude()
        return self._rows()

    def _rows(self) -> pa.Table:
        rows = pa.Table.from_batches(self._log.take(), log.SCHEMA)
        rows.validate(full=True)
        return rows


def runs_of(pieces: Sequence[Data], random: Random, holes: bool) -> Iterator[list[Data | Hole]]:
    """Some are lost; with the packet that shows it comes what waited for them."""
    most, begin, waited = random.choice([10, 50, 10_000]), 0, 0
    while begin < len(pieces):
        if holes and random.random() < 0.2:
            lost = pieces[begin]
            waited = min(begin + random.choice([1, 1, 5, 20]), len(pieces) - 1)
            shows_it = pieces[waited].place
            yield [Hole(lost.direction, lost.byte_start, lost.byte_start + len(lost.data), shows_it)]
            begin += 1
            continue
        end = begin + random.randint(1, most)
        late = [piece._replace(place=pieces[waited].place) for piece in pieces[begin:waited]]
        yield [*late[: end - begin], *pieces[max(begin, waited) : end]]
        begin = end


def check(seed: int, envelope: Envelope, chances: Chances, *, holes: bool = False, count: int = 150) -> None:
    random = Random(seed)
    opened: Opening = random.choice(["syn", "syn", "middle"])
    pieces = pieces_of(Talk(random, envelope, chances).said(count), random)
    readable, compiled = (Told(opened, is_compiled) for is_compiled in (False, True))
    for run in runs_of(pieces, random, holes):
        expected, found = readable.take(run), compiled.take(run)
        check_rows(found[0], expected[0])
        assert found[1] == expected[1]
        if random.random() < 0.2:
            readable.restart()
            compiled.restart()
    last = pieces[-1].place
    check_rows(compiled.close(last), readable.close(last))


def check_rows(found: pa.Table, expected: pa.Table) -> None:
    if not found.equals(expected):
        assert found.to_pylist() == expected.to_pylist()


def narrow(patch: pytest.MonkeyPatch) -> None:
    """What is held is soon beyond its limits."""
    patch.setattr(requests, "MOST_REQUESTS", 4)
    patch.setattr(requests, "MOST_DATA_BYTES", 30)
    patch.setattr(memory, "MOST_RUNS", 3)
    patch.setattr(memory, "MOST_KNOWN", 3)


seeds = st.integers(0, 2**32 - 1)
envelopes = st.sampled_from(Envelope)


@given(seeds, envelopes)
@settings(max_examples=4)
def test_steady_traffic(seed: int, envelope: Envelope) -> None:
    check(seed, envelope, Chances(), count=300)


@given(seeds, envelopes, st.sampled_from([2, 10, 50]))
@settings(max_examples=5)
def test_what_breaks_rules_and_what_is_rare(seed: int, envelope: Envelope, odd: int) -> None:
    check(seed, envelope, Chances(odd=odd))


@given(seeds, envelopes, st.sampled_from([5, 40]))
@settings(max_examples=5)
def test_damaged_bytes_and_holes(seed: int, envelope: Envelope, damaged: int) -> None:
    check(seed, envelope, Chances(odd=40, damaged=damaged), holes=True)


@given(seeds, envelopes)
@settings(max_examples=5)
def test_what_is_beyond_the_limits_of_what_is_held(seed: int, envelope: Envelope) -> None:
    with pytest.MonkeyPatch.context() as patch:
        narrow(patch)
        check(seed, envelope, Chances(odd=40))


def begun() -> list[Data]:
    """A stream, two pushes and their confirms, a segment each."""
    said: list[tuple[Direction, Message, str, str]] = [
        (C, CreateRequest("s"), "stream", "me"),
        (S, CreateResponse("s"), "me", "s_1"),
        (C, PushRequest(1, b"data"), "s_1", "me"),
        (S, PushResponse(1, Status.OK, 5), "me", "s_1"),
        (C, PushRequest(2, b"data"), "s_1", "me"),
        (S, PushResponse(2, Status.OK, 7), "me", "s_1"),
    ]
    at, pieces = {C: 0, S: 0}, []
    for number, (side, message, to, back) in enumerate(said):
        data = framed(message, to, back, BARE, Names.SPECIFICATION)
        pieces.append(Data(side, at[side], data, place(SECOND + number, number)))
        at[side] += len(data)
    return pieces


def after(pieces: Sequence[Data], *said: tuple[Direction, Message], missing: int = 0) -> list[Data]:
    """More between the same two; all in one packet, before which so many bytes of the service are missing."""
    at = {side: sum(len(piece.data) for piece in pieces if piece.direction is side) for side in (C, S)}
    at[S] += missing
    more = []
    for side, message in said:
        to, back = ("s_1", "me") if side is C else ("me", "s_1")
        data = framed(message, to, back, BARE, Names.SPECIFICATION)
        more.append(Data(side, at[side], data, place(2 * SECOND, 99)))
        at[side] += len(data)
    return more


def check_alike(*runs: Sequence[Data | Hole]) -> None:
    readable, compiled = (Told("syn", is_compiled) for is_compiled in (False, True))
    for run in runs:
        expected, found = readable.take(run), compiled.take(run)
        check_rows(found[0], expected[0])
        assert found[1] == expected[1]


@pytest.mark.parametrize("seed", [1022, 2000, 2020])
def test_a_side_that_is_searched_and_says_nothing_more_stays_as_far_as_it_is(seed: int) -> None:
    check(seed, Envelope.CBOR32, Chances(odd=40, damaged=5), holes=True)


def test_what_is_asked_in_the_packet_that_shows_a_hole_may_have_been_answered() -> None:
    pieces = begun()
    more = after(pieces, (C, PushRequest(3, b"data")), (C, PushRequest(4, b"data")), missing=5)
    at = sum(len(piece.data) for piece in pieces if piece.direction is S)
    later = after([*pieces, *more], (C, PushRequest(5, b"data")), (C, PushRequest(6, b"data")), missing=5)
    later = [piece._replace(place=place(3 * SECOND, 100)) for piece in later]
    check_alike(pieces, [Hole(S, at, at + 5, more[0].place)], more, later)


def test_answers_behind_a_hole_are_unsure_and_plain() -> None:
    pieces = begun()
    pieces += after(pieces, *((C, PushRequest(number, b"data")) for number in (3, 4, 5)), (C, PullRequest(6, 0, 9)))
    lost = sum(len(piece.data) for piece in pieces if piece.direction is S)
    shown = place(3 * SECOND, 100)
    hole = Hole(S, lost, lost + 5, shown)
    # By these it is found again where frames begin.
    found = after(pieces, *((S, PushResponse(number, Status.OK, 5 + number)) for number in (3, 4)), missing=5)
    found += after([*pieces, *found], (C, PushRequest(8, b"data")), (C, PushRequest(9, b"data")), missing=5)
    found = [piece._replace(place=shown) for piece in found]
    pull = PullResponse(6, (StreamMessage(5, b"data"),))
    said = (S, PushResponse(5, Status.OK, 10)), (S, pull), (C, PushRequest(7, b"data"))
    last = after([*pieces, *found], *said, (S, PushResponse(7, Status.OK, 11)), missing=5)
    last = [piece._replace(place=place(4 * SECOND, 101)) for piece in last]
    check_alike(pieces, [hole], found, last)
    compiled = Told("syn", compiled=True)
    for run in (pieces, [hole], found):
        compiled.take(run)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session.Session, "receive", None)
        rows, _ = compiled.take(last)
    messages = [row for row in rows.to_pylist() if row["row_kind"] == "message"]
    assert [row["answers"] and row["answers"]["unsure"] for row in messages] == [True, True, None, False]
    assert all(row["missed"] for row in messages)


def late_pieces() -> list[Data]:
    """A capture from the middle: confirms, then a packet that releases several frames of the client, then answers."""
    said: list[tuple[Direction, Message, int]] = [
        *((S, PushResponse(number, Status.OK, number), 1) for number in (7, 8, 9)),
        (C, PushRequest(10, b"data"), 2),
        *((C, PullRequest(number, 0, 9), 2) for number in range(11, 17)),
        (S, PushResponse(10, Status.OK, 10), 3),
        *((S, PullResponse(number, ()), 3) for number in range(11, 17)),
        *((C, PushRequest(number, b"data"), 4) for number in (5, 17, 17, 18)),
        *((S, PushResponse(number, Status.OK, 2 * number), 5) for number in (5, 17, 17, 18)),
    ]
    at, pieces = {C: 0, S: 0}, []
    for side, message, number in said:
        to, back = ("s_1", "me") if side is C else ("me", "s_1")
        data = framed(message, to, back, BARE, Names.SPECIFICATION)
        pieces.append(Data(side, at[side], data, place(SECOND + number, number)))
        at[side] += len(data)
    return pieces


def test_answers_of_a_connection_that_began_before_are_as_unsure_wherever_its_pieces_are_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pieces, told = late_pieces(), []
    # The client had received the confirms of what it sent before.
    received = {C: sum(len(piece.data) for piece in pieces[:3]), S: 0}
    monkeypatch.setattr(Connection, "peer_received", lambda _, side, byte_end: received[side])
    for cut in range(len(pieces) + 1):
        for is_compiled in (False, True):
            one = Told("middle", is_compiled)
            rows = [row for run in (pieces[:cut], pieces[cut:]) if run for row in one.take(run)[0].to_pylist()]
            told.append([(row["byte_start"], row["answers"]) for row in rows if row["row_kind"] == "message"])
    assert all(each == told[0] for each in told)
    assert any(answers and answers["unsure"] for _, answers in told[0])
    assert any(answers and not answers["unsure"] for _, answers in told[0])


@pytest.mark.parametrize("least", [2**62 - 1, 2**62, 2**62 + 5, MOST])
def test_what_is_asked_of_a_large_index(least: int) -> None:
    """Before, in and behind a run that is compiled."""
    key = ("client", "s")
    saved, asked, told = IndexSave(*key, least), IndexGet(*key), IndexResponse(*key, least)
    said: list[tuple[Direction, Message]] = [(C, saved), (C, asked), (C, asked), (S, told), (C, asked), (S, told)]
    pieces: list[Data] = []
    for number, (side, message) in enumerate(said * 3):
        to, back = ("stream_index", "me") if side is C else ("me", "stream_index")
        data = framed(message, to, back, BARE, Names.SPECIFICATION)
        at = sum(len(piece.data) for piece in pieces if piece.direction is side)
        pieces.append(Data(side, at, data, place(SECOND + number, number)))
    for end in range(1, len(said) + 1):
        check_alike(pieces[:end], pieces[end:-1], pieces[-1:])


@pytest.mark.parametrize("index", [5, 6, 7, 8])
def test_a_confirmed_index_that_does_not_rise(index: int) -> None:
    pieces = begun()
    check_alike(pieces, after(pieces, (C, PushRequest(3, b"data")), (S, PushResponse(3, Status.OK, index))))


def test_steady_traffic_is_plain() -> None:
    """Else the twin would be of no use: most is taken by the loop."""
    random = Random(1)
    talk = Talk(random, BARE, Chances())
    talk.number = 0
    pieces = pieces_of(talk.said(3000), random)
    options = OckamOptions()
    twin = runner.Connection(reader.Reader(options), session.Session(options), options)
    taken = list(twin.run(pieces))
    plain_rows, others = (sum(map(len, parts)) for parts in zip(*taken, strict=True))
    assert plain_rows > 2000
    assert plain_rows + others == 3000 + 2 * len(talk.streams)


@given(st.lists(st.integers(0, 40), max_size=60))
def test_sets_in_compiled_loops_hold_what_intervals_hold(numbers: list[int]) -> None:
    most = 4
    expected = Intervals(most=most)
    sets, runs = np.zeros((1, judge_loops.PAIR_NUMBERS), np.int64), np.zeros((1, 2, most + 1), np.int64)
    for number in numbers:
        expected.add(number)
        judge_loops.add(0, number, sets, runs, most)
        held = int(sets[0, judge_loops.RUNS])
        assert list(zip(*runs[0, :, :held].tolist(), strict=True)) == list(expected)
        assert sets[0, judge_loops.FLOOR] == expected.floor
        assert [judge_loops.holds(0, one, sets, runs) for one in range(42)] == [one in expected for one in range(42)]


def test_a_run_holds_no_more_than_arrow_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "MOST_BYTES", 10)
    options = OckamOptions()
    twin = runner.Connection(reader.Reader(options), session.Session(options), options)
    first = framed(CreateRequest("s"), "stream", "me", BARE, Names.SPECIFICATION)
    with pytest.raises(ValueError, match="bytes at once"):
        list(twin.run([Data(C, 0, first, place(1, 0)), Data(C, len(first), first, place(2, 1))]))


@pytest.mark.parametrize("size", fast_first([7, 1, 1 << 20]))
@pytest.mark.parametrize("junk", [b"\xff\xffjunkjunk", b"\x00\x0ajunk", b"\x00\x05junk!", b"\x00\x40" + b"Z" * 20])
@pytest.mark.parametrize("side", Direction)
def test_stray_bytes_before_a_run_and_within_one(side: Direction, junk: bytes, size: int) -> None:
    """The piece that shows that no message begins there ends what is compiled, however far its length would lead."""
    pieces = begun()
    at = {direction: sum(len(piece.data) for piece in pieces if piece.direction is direction) for direction in (C, S)}
    said: list[Sent] = [(side, junk)]
    for number in range(3, 9):
        said.append((C, framed(PushRequest(number, b"data"), "s_1", "me", BARE, Names.SPECIFICATION)))
        said.append((S, framed(PushResponse(number, Status.OK, 5 + number), "me", "s_1", BARE, Names.SPECIFICATION)))
    more: list[Data] = []
    for direction, data in said:
        for begin in range(0, len(data), size):
            chunk = data[begin : begin + size]
            more.append(Data(direction, at[direction], chunk, place(2 * SECOND + len(more), 10 + len(more))))
            at[direction] += len(chunk)
    for end in {0, 1, len(junk) // size + 1, len(more) // 2}:
        check_alike([*pieces, *more[:end]], more[end:])
    check_alike(pieces, more)
    check_alike([*pieces, *more])
