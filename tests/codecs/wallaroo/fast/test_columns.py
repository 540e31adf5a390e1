"""The vectorised twins give what the readable ones give: frames, outcomes, findings, carried state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.carried import as_text, carry
from wirehouse_codecs.compiled import arrow
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.events import End
from wirehouse_codecs.tcp.reassembly import Data
from wirehouse_codecs.wallaroo.dialects import DIALECTS, NOTHING_SEEN, Dialect
from wirehouse_codecs.wallaroo.fast import judge, runner
from wirehouse_codecs.wallaroo.fast.columns import FRAMES, decode_columns
from wirehouse_codecs.wallaroo.fast.runner import ROWS, Connection, Read
from wirehouse_codecs.wallaroo.frames import (
    KIND_OF,
    KINDS,
    Ack,
    EosMessage,
    Error,
    Frame,
    Message,
    Nack,
    Notify,
    NotifyAck,
    Ok,
    Restart,
    StreamMessage,
    WorkersLeft,
)
from wirehouse_codecs.wallaroo.options import AUTO, WallarooOptions
from wirehouse_codecs.wallaroo.session import memory, streams
from wirehouse_codecs.wallaroo.session.outcome import Kind, State
from wirehouse_codecs.wallaroo.session.sent_ids import Entry, Sent
from wirehouse_codecs.wallaroo.session.session import Session
from wirehouse_codecs.wallaroo.wire.messages import Framer, decode, encode
from wirehouse_codecs.wallaroo.wire.reader import Reader
from wirehouse_codecs.wallaroo.wire.reader_state import ReaderState

C, S = Direction.CLIENT, Direction.SERVER
Messages = Callable[..., Message]
Acks = Callable[..., Ack]
Greetings = Callable[..., Frame]
#: What a piece of the wire is: who sends, when, and its bytes.
Said = list[tuple[Direction, int, bytes]]
HOT = {"MESSAGE", "ACK", "EOS_MESSAGE", "NOTIFY", "NOTIFY_ACK"}
SECOND = 10**9


def test_kinds_are_numbered_alike() -> None:
    assert [*KINDS, "UNDECODABLE"] == list(Kind)


# Frames


def frame_of(row: dict[str, Any], dialect: Dialect) -> Frame:
    """The frame that the columns of a regular row say."""
    kind = row["kind"]
    time = None if row["event_time"] is None else int(row["event_time"])
    if kind == "MESSAGE":
        return Message(row["stream_id"], row["message_id"], row["flags"], time, row["key"], row["payload"])
    if kind == "ACK":
        return Ack(row["credits"], tuple(StreamMessage(**named(pair)) for pair in row["acks"]))
    if kind == "NOTIFY":
        return Notify(row["stream_id"], row["stream_name"], row["point_of_ref"])
    if kind == "NOTIFY_ACK":
        return NotifyAck(row["success"], row["stream_id"], row["point_of_ref"])
    assert kind == "EOS_MESSAGE"
    return EosMessage(row["stream_id"])


def named(pair: dict[str, int]) -> dict[str, int]:
    return {"stream_id": pair["stream_id"], "message_id": pair["point_of_ref"]}


def check_frame(row: dict[str, Any], body: bytes, dialect: Dialect) -> None:
    """A row says what the readable decoder says, or leaves the frame to it."""
    decoded = decode(body, dialect)
    hot = decoded.frame is not None and decoded.rule is None and KIND_OF[type(decoded.frame)] in HOT
    assert row["regular"] == hot
    if hot:
        assert frame_of(row, dialect) == decoded.frame
    else:
        assert all(row[name] is None for name in FRAMES.names[4:])


big = st.integers(0, 3) | st.integers(0, 2**64 - 1) | st.just(NOTHING_SEEN)
texts = st.binary(max_size=5)


def any_kind(name: str) -> st.SearchStrategy[bytes]:
    """Whole frames of a dialect, hot ones mostly, with all values; bodies that are none too."""
    dialect = DIALECTS[name]
    order = dialect.byte_order
    built: list[st.SearchStrategy[Frame]] = [
        st.builds(Notify, big, texts, big),
        st.builds(Ack, st.integers(0, 2**32 - 1), st.lists(st.builds(StreamMessage, big, big), max_size=3).map(tuple)),
        st.builds(Error, texts),
    ]
    if dialect.answers_notify:
        built.append(st.builds(NotifyAck, st.integers(0, 255), big, big))
    if EosMessage in dialect.tags:
        built.append(st.builds(EosMessage, big))
    tag = bytes([dialect.tags[Message]])
    # Random fields behind the tag of a MESSAGE: flags, short keys, lengths that don't fit.
    messages = st.binary(max_size=45).map(lambda rest: tag + rest)
    sane = st.tuples(st.binary(min_size=7, max_size=7), st.sampled_from([0, 1, 2, 4, 8, 16, 32, 48, 18, 64]), texts)
    flagged = sane.map(lambda parts: tag + parts[0] + bytes([1, parts[1]]) + parts[0] * 3 + b"\0\2" + parts[2])
    bodies = messages | flagged | st.binary(min_size=1, max_size=12)
    framed = bodies.map(lambda body: len(body).to_bytes(4, order) + body)
    return st.one_of(framed, *[frames.map(lambda frame: encode(frame, dialect)) for frames in built])


@pytest.mark.parametrize("name", DIALECTS)
@settings(max_examples=60)
@given(data=st.data(), rest=st.binary(max_size=6), changed=st.none() | st.integers(0, 255))
def test_frames_in_columns_are_those_of_the_readable_decoder(
    name: str, data: st.DataObject, rest: bytes, changed: int | None
) -> None:
    dialect = DIALECTS[name]
    stream = bytearray(b"".join(data.draw(st.lists(any_kind(name), max_size=8))) + rest)
    if changed is not None and stream:
        stream[data.draw(st.integers(0, len(stream) - 1))] = changed
    framer = Framer(dialect.byte_order, 100)
    framed = framer.receive(bytes(stream))
    whole = [one for one in framed if one.rule is None]
    found = decode_columns(bytes(stream), dialect, 100)
    found.batch.validate(full=True)
    assert found.batch.schema == FRAMES
    rows = found.batch.to_pylist()
    assert [(row["byte_start"], row["byte_end"]) for row in rows] == [(one.byte_start, one.byte_end) for one in whole]
    assert (found.lost, found.end) == (framer.lost is not None, whole[-1].byte_end if whole else 0)
    for row, one in zip(rows, whole, strict=True):
        check_frame(row, one.body, dialect)


@pytest.mark.parametrize("name", ["v3", "seed"])
def test_no_frame_at_all_gives_no_row(name: str) -> None:
    found = decode_columns(b"", DIALECTS[name], 100)
    assert (found.batch.num_rows, found.end, found.lost) == (0, 0, False)


def test_what_arrow_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "MOST_BYTES", 10)
    with pytest.raises(ValueError, match="11 bytes at once"):
        decode_columns(bytes(11), DIALECTS["v3"], 100)


# A connection


def pieces_of(said: Said, first: int = 0) -> list[Data]:
    at = dict.fromkeys(Direction, 0)
    pieces = []
    for number, (side, ns, part) in enumerate(said, first):
        pieces.append(Data(side, at[side], part, place(ns, number)))
        at[side] += len(part)
    return pieces


def place(ns: int, number: int) -> Place:
    return Place(ns, 0, b"", number)


def readable(options: WallarooOptions, said: Said, late: bool) -> tuple[list[Read], Reader, Session | None]:
    """Every piece through the readable twins."""
    reader, session = Reader(options, started_late=late), None
    read: list[Read] = []
    for number, (side, ns, part) in enumerate(said):
        for received in reader.receive(side, part, place(ns, number)):
            if session is None and reader.dialect is not None:
                session = Session(reader.dialect, options, started_late=late)
            read.append(Read(received, None if session is None else session.receive(received)))
    return read, reader, session


def check_runs(options: WallarooOptions, said: Said, late: bool, cuts: Sequence[int] = ()) -> Connection:
    """Pieces in runs give what the readable twins give of all."""
    expected, reader, session = readable(options, said, late)
    twin = Connection(
        Reader(options, started_late=late), options, lambda dialect: Session(dialect, options, started_late=late)
    )
    row = 0
    for begin, end in zip([0, *cuts], [*cuts, len(said)], strict=True):
        run = twin.run(pieces_of(said[begin:end], begin))
        run.rows.validate(full=True)
        assert run.rows.schema == ROWS
        for number, found in enumerate(run.rows.to_pylist()):
            check_row(found, run.read.get(number), expected[row], begin, twin.reader.dialect)
            row += 1
    assert row == len(expected)
    assert as_text(twin.reader, ReaderState) == as_text(reader, ReaderState)
    assert (twin.session is None) == (session is None)
    if twin.session is not None and session is not None:
        assert as_text(twin.session.memory) == as_text(session.memory)
    return twin


def check_row(found: dict[str, Any], read: Read | None, expected: Read, begin: int, dialect: Dialect | None) -> None:
    received, outcome = expected
    assert (found["direction"], found["byte_start"], found["byte_end"]) == (
        received.direction,
        received.byte_start,
        received.byte_end,
    )
    number = received.place.record_number
    assert found["piece"] == (number - begin if number >= begin else None)
    assert found["plain"] == (read is None)
    if read is not None:
        assert read == expected
    if outcome is None:
        return
    assert (found["kind"], found["ignored"], found["balance"], found["attributed_stream_id"]) == (
        outcome.kind,
        outcome.ignored,
        outcome.credits,
        outcome.stream_id,
    )
    assert (found["granted"], found["spent"]) == (outcome.granted, outcome.spent)
    if found["regular"]:
        assert dialect is not None
        assert frame_of(found, dialect) == received.decoded.frame
    if read is None:
        assert (outcome.findings, outcome.state, found["regular"]) == ((), State.STREAMING, True)


class Talk:
    """What both sides say: streams open, ids mostly rise, acks mostly go forward; `odd` is the rate of the rest."""

    def __init__(self, name: str, random: Random, msg: Messages) -> None:
        self.name, self.random, self.msg = name, random, msg
        self.dialect = DIALECTS[name]
        self.last: dict[int, int] = {}
        self.odd = random.choice([0, 0, 0.03, 0.2])

    def is_odd(self) -> bool:
        return self.random.random() < self.odd

    def step(self) -> list[tuple[Direction, Frame]]:
        if not self.last or self.random.random() < 0.05:
            return self._open()
        stream = self.random.choice(sorted(self.last))
        if self.is_odd():
            return [self.random.choice(self._odd(stream))]
        if self.random.random() < 0.25:
            return [(S, self._ack())]
        return [(C, self._message(stream)) for _ in range(self.random.randint(1, 6))]

    def _open(self) -> list[tuple[Direction, Frame]]:
        stream = 1 if self.name == "seed" and not self.is_odd() else self.random.choice([1, 2, 3, 2**63 + 5])
        seen = self.random.choice([0, 0, NOTHING_SEEN, 3])
        self.last.setdefault(stream, 0)
        answer: list[tuple[Direction, Frame]] = [(S, NotifyAck(1, stream, seen))] if self.dialect.answers_notify else []
        return [(C, Notify(stream, b"s%d" % stream, 0)), *answer]

    def _ack(self) -> Ack:
        known = sorted(self.last)
        streams = self.random.choices(known, k=3) if self.is_odd() else self.random.sample(known, min(2, len(known)))
        back = self.random.choice([1, 9]) if self.is_odd() else 0
        pairs = tuple(StreamMessage(one, max(0, self.last[one] - back)) for one in streams)
        return Ack(self.random.choice([0, 5, 40]), pairs[: self.random.randint(0, 3)])

    def _message(self, stream: int) -> Message:
        flags = self.random.choice([0, 0, 0, 8, 16, 32, 48] + ([2] if self.dialect.answers_notify else [2, 10]))
        flags = 1 if self.dialect.answers_notify and self.random.random() < 0.1 else flags
        if self.dialect.byte_order == "little":
            flags &= ~32
        if self.is_odd():
            flags = self.random.choice([0, 0, 1, 3, 4, 12, 64, 128])
        self.last[stream] = max(0, self.last[stream] + (self.random.choice([0, -3]) if self.is_odd() else 1))
        payload = b"x" if not self.is_odd() or self.dialect.answers_notify else b""
        return self.msg(self.name, stream, self.last[stream], flags, payload)

    def _odd(self, stream: int) -> list[tuple[Direction, Frame]]:
        frames: list[tuple[Direction, Frame]] = [
            (C, self.msg(self.name, stream, NOTHING_SEEN)),
            (C, self.msg(self.name, 77, 1)),
            (S, Ack(1, (StreamMessage(77, 1),))),
            (S, Ack(1, (StreamMessage(stream, NOTHING_SEEN), StreamMessage(stream, 4000)))),
            (S, Error(b"no")),
        ]
        if self.dialect.answers_notify:
            frames += [(S, Restart(None if self.name == "v2a" else b"")), (S, NotifyAck(0, stream, 0))]
        else:
            frames += [(S, Nack(1, stream, 1))] * 3
        if EosMessage in self.dialect.tags:
            frames += [(C, EosMessage(stream)), (S, WorkersLeft(1))]
        return frames


def conversation(name: str, random: Random, steps: int, msg: Messages, greeting: Greetings) -> Said:
    """What both sides say, cut into pieces, and damaged now and then."""
    dialect, talk = DIALECTS[name], Talk(name, random, msg)
    frames: list[tuple[Direction, Frame]] = [(C, greeting(name)), (S, Ok(random.choice([4, 40, 400])))]
    for _ in range(steps):
        frames += talk.step()
    said: Said = []
    now, size = SECOND, random.choice([3, 20, 100, 1000])
    held: tuple[Direction, bytes] = (C, b"")
    for side, frame in frames:
        if side is not held[0]:
            said.append((held[0], now, held[1]))
            held = side, b""
        held = side, held[1] + encode(frame, dialect)
        now += random.choice([6, 11]) * SECOND if random.random() < 0.03 else 1
        while len(held[1]) >= size:
            said.append((side, now, held[1][:size]))
            held = side, held[1][size:]
    said.append((held[0], now, held[1]))
    if random.random() < 0.15:
        at = random.randrange(len(said))
        side, now, part = said[at]
        said[at] = side, now, random.choice([bytes(4), b"\xff" * 4, random.randbytes(random.randint(1, 9))]) + part
    return [piece for piece in said if piece[2]]


@contextmanager
def eager(kept: int = 64, at_once: int = 1000, ids: int = 1000) -> Iterator[None]:
    """The loops are tried at every frame; a stream keeps few ids."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(judge.Plain, "cost", 1)
        patched.setattr(judge, "FRAMES_AT_ONCE", at_once)
        patched.setattr(runner, "_FEWEST_READ", 1)
        patched.setattr(runner, "_MOST_READ", 1)
        patched.setattr(runner, "_BYTES_AT_ONCE", 20 * at_once)
        patched.setattr(memory, "MAX_IDS", ids)
        patched.setattr(streams, "KEPT_ACKED", kept)
        patched.setattr(judge, "KEPT_ACKED", kept)
        yield


@pytest.mark.parametrize("name", DIALECTS)
@settings(max_examples=50)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 30), late=st.integers(0, 4), forced=st.booleans())
def test_runs_give_what_the_readable_twins_give(
    name: str, seed: int, steps: int, late: int, forced: bool, msg: Messages, greeting: Greetings
) -> None:
    random = Random(seed)
    said = conversation(name, random, steps, msg, greeting)
    cuts = sorted(random.randint(0, len(said)) for _ in range(random.randint(0, 3)))
    with eager(random.choice([2, 64]), random.choice([5, 1000]), random.choice([6, 1000, 1000])):
        check_runs(WallarooOptions(dialect=name if forced else AUTO), said, late == 0, cuts)


def opened(name: str, greeting: Greetings, *notified: int, granted: int = 10_000) -> Said:
    """HELLO, OK, and open streams."""
    dialect = DIALECTS[name]
    said: list[tuple[Direction, Frame]] = [(C, greeting(name)), (S, Ok(granted))]
    for stream in notified:
        said.append((C, Notify(stream, b"s%d" % stream)))
        if dialect.answers_notify:
            said.append((S, NotifyAck(1, stream, 0)))
    return [(side, SECOND, encode(frame, dialect)) for side, frame in said]


@pytest.mark.parametrize("name", DIALECTS)
def test_typical_frames_are_plain(name: str, msg: Messages, acked: Acks, greeting: Greetings) -> None:
    dialect = DIALECTS[name]
    notified = (5,) if name == "seed" else (5, 2**64 - 2)
    said = opened(name, greeting, *notified)
    for number in range(1, 400):
        for stream in notified:
            said.append((C, SECOND + number, encode(msg(name, stream, number, 16), dialect)))
        if number % 100 == 0:
            ack = acked(300, *[(stream, number) for stream in notified])
            said.append((S, SECOND + number, encode(ack, dialect)))
    options = WallarooOptions(dialect=name)
    check_runs(options, said, late=False)
    run = Connection(Reader(options), options, lambda one: Session(one, options)).run(pieces_of(said))
    # The handshake, and what the loop waits for after it.
    assert len(run.read) < 40


def sends(name: str, msg: Messages, *ids: int, flags: int = 0) -> list[tuple[Direction, int, Frame]]:
    return [(C, 0, msg(name, 1, message_id, flags)) for message_id in ids]


#: What the loop must leave to the session, or do as it does: dialect, granted credits, what is said after a NOTIFY of
#: stream 1 (side, nanoseconds later, frame), and the rules found.
Case = tuple[str, int, list[tuple[Direction, int, Frame]], list[str]]


def cases(msg: Messages, acked: Acks) -> dict[str, Case]:
    late = 10 * SECOND
    boundary = msg("seed_sid", 1, 2, 2, b"more")
    return {
        "credit in time": ("v3", 2, [*sends("v3", msg, 1), (S, late, acked(1))], []),
        "credit too late": ("v3", 2, [*sends("v3", msg, 1), (S, late + 1, acked(1))], ["credits_not_replenished"]),
        "dry again": (
            "v3",
            2,
            [*sends("v3", msg, 1), (S, 0, acked(1)), *sends("v3", msg, 2), (S, late + 1, acked(0))],
            ["credits_not_replenished"],
        ),
        "overdrawn": ("v3", 2, sends("v3", msg, 1, 2), ["credits_overdrawn"]),
        "boundary with payload": ("seed_sid", 9, [(C, 0, boundary)], ["boundary_with_payload"]),
        "ephemeral": ("seed_sid", 9, sends("seed_sid", msg, 3, 3, flags=1), ["ephemeral_id_repeated"]),
        "ephemeral, long acked": (
            "seed_sid",
            99,
            [
                *sends("seed_sid", msg, 9, flags=1),
                *sends("seed_sid", msg, 1, 2, 3),
                (S, 0, acked(1, (1, 3))),
                *sends("seed_sid", msg, 9),
            ],
            ["ephemeral_id_repeated"],
        ),
        "back in one ack": ("v3", 9, [*sends("v3", msg, 1, 2), (S, 0, acked(1, (1, 2), (1, 1)))], ["ack_goes_back"]),
        "back": (
            "v3",
            9,
            [*sends("v3", msg, 1, 2), (S, 0, acked(1, (1, 2))), (S, 0, acked(1, (1, 1)))],
            ["ack_goes_back"],
        ),
        "back to a forgotten one": (
            "v3",
            9,
            [*sends("v3", msg, 1, 2, 3, 4), (S, 0, acked(1, (1, 4))), (S, 0, acked(1, (1, 1)))],
            ["ack_goes_back"],
        ),
        "back after a NACK, once": (
            "seed_sid",
            9,
            [
                *sends("seed_sid", msg, 1, 2, 3),
                (S, 0, acked(1, (1, 2))),
                (S, 0, Nack(1, 1, 2)),
                (C, 0, Notify(1, b"s1", 2)),
                (S, 0, acked(1, (1, 3))),
                (S, 0, acked(1, (1, 2))),
            ],
            ["ack_goes_back"],
        ),
        "never sent": ("v3", 9, [*sends("v3", msg, 5), (S, 0, acked(1, (1, 4)))], []),
        "unstable": (
            "seed_sid",
            9,
            [*sends("seed_sid", msg, 1, flags=8), (S, 0, acked(1, (1, 1)))],
            ["reference_unstable"],
        ),
        "seen before": (
            "v3",
            9,
            [(S, 0, NotifyAck(1, 1, 50)), (C, 0, Notify(1, b"s1")), (S, 0, NotifyAck(1, 1, 50)), *sends("v3", msg, 50)],
            ["notify_ack_unasked", "message_ignored"],
        ),
    }


@pytest.mark.parametrize("what", cases(Mock(), Mock()))
def test_a_frame_with_consequences_is_left_to_the_session(
    what: str, msg: Messages, acked: Acks, greeting: Greetings
) -> None:
    name, granted, frames, rules = cases(msg, acked)[what]
    said = opened(name, greeting, 1, granted=granted)
    now = SECOND
    for side, later, frame in frames:
        now += later
        said.append((side, now, encode(frame, DIALECTS[name])))
    options = WallarooOptions(dialect=name)
    with eager(kept=2):
        # Every frame in a run of its own, and all in one.
        check_runs(options, said, late=False, cuts=range(1, len(said)))
        check_runs(options, said, late=False)
    expected, _, _ = readable(options, said, late=False)
    found = [finding for one in expected if one.outcome is not None for finding in one.outcome.findings]
    assert [finding.rule.name for finding in found] == rules


def test_a_message_that_names_no_stream_belongs_to_none_where_frames_were_missed(
    msg: Messages, acked: Acks, greeting: Greetings
) -> None:
    frames: list[tuple[Direction, Frame]] = [(S, acked(9)), (C, Notify(1, b"s")), (C, msg("seed", 1, 1))]
    said = [(side, SECOND, encode(frame, DIALECTS["seed"])) for side, frame in frames for _ in range(9)]
    with eager():
        twin = check_runs(WallarooOptions(dialect="seed"), said, late=True)
    assert twin.session is not None
    assert twin.session.memory.unattributed


def test_no_frame_is_taken_after_the_end(msg: Messages, greeting: Greetings) -> None:
    said = opened("v3", greeting, 1)
    twin = check_runs(WallarooOptions(dialect="v3"), said, late=False)
    assert twin.session is not None
    twin.session.end(End.CAPTURE_END, place(2 * SECOND, 90))
    with eager(), pytest.raises(ValueError, match="has ended"):
        twin.run(pieces_of([(C, 3 * SECOND, encode(msg("v3", 1, 1), DIALECTS["v3"]))], 91))


@pytest.mark.parametrize("name", ["v3", "seed_sid"])
def test_the_room_for_ids_grows_over_many_runs(name: str, msg: Messages, acked: Acks, greeting: Greetings) -> None:
    said = opened(name, greeting, 1, 2)
    for number in range(1, 900):
        said.append((C, SECOND, encode(msg(name, 1 + number % 3 // 2, number), DIALECTS[name])))
        if number % 250 == 0:
            said.append((S, SECOND, encode(acked(1, (1, number if number % 3 < 2 else number - 1)), DIALECTS[name])))
    check_runs(WallarooOptions(dialect=name), said, late=False, cuts=range(50, 800, 90))


def test_a_hole_and_the_end_are_told_as_by_the_reader(msg: Messages, greeting: Greetings) -> None:
    options = WallarooOptions(dialect="v3")
    said = opened("v3", greeting, 1) + [(C, SECOND, encode(msg("v3", 1, number), DIALECTS["v3"])) for number in (1, 2)]
    said[-1] = C, SECOND, said[-1][2][:-1]
    _, reader, session = readable(options, said, late=False)
    twin = check_runs(options, said, late=False)
    assert session is not None
    for mine, theirs in (
        (twin.hole(C, 9, place(2 * SECOND, 90)), reader.hole(C, 9, place(2 * SECOND, 90))),
        (twin.finish(place(3 * SECOND, 91)), reader.finish(place(3 * SECOND, 91))),
    ):
        assert mine == [Read(one, session.receive(one)) for one in theirs]
    assert twin.session is not None
    assert as_text(twin.session.memory) == as_text(session.memory)


def test_a_connection_goes_on_from_carried_state(msg: Messages, acked: Acks, greeting: Greetings) -> None:
    options = WallarooOptions(dialect="v3")
    said = opened("v3", greeting, 1)
    said += [(C, SECOND, encode(msg("v3", 1, number), DIALECTS["v3"])) for number in range(1, 50)]
    said += [(S, SECOND, encode(acked(5, (1, 49)), DIALECTS["v3"]))]
    before, after = said[:20], said[20:]
    twin = Connection(Reader(options), options, lambda one: Session(one, options))
    twin.run(pieces_of(before))
    assert twin.session is not None
    session = Session(DIALECTS["v3"], options, state=carry(twin.session.memory))
    reader = Reader(options, state=carry(twin.reader, ReaderState))
    carried = Connection(reader, options, lambda one: Session(one, options), session)
    twin.run(pieces_of(after, 20))
    carried.run(pieces_of(after, 20))
    assert carried.session is session
    assert as_text(session.memory) == as_text(twin.session.memory)


# Ids that are remembered


@given(st.lists(st.tuples(st.sampled_from(["add", "add", "add", "drop", "settle"]), st.integers(0, 9)), max_size=40))
def test_ids_that_rise_and_ids_that_do_not_are_held_alike(steps: list[tuple[str, int]]) -> None:
    sent, model = Sent(), dict[int, Entry]()
    for at, (step, number) in enumerate(steps):
        if step == "add":
            entry = Entry(at, number % 4, at // 2)
            sent.add(number + at // 4, entry)
            model.pop(number + at // 4, None)
            model[number + at // 4] = entry
        elif step == "drop":
            dropped = list(model.items())[:number]
            assert sent.drop(number) == dropped
            model = dict(list(model.items())[number:])
        else:
            sent.settle()
            assert sent.rising == (list(model) == sorted(model))
        assert list(sent.items()) == list(model.items())
        assert len(sent) == len(model)
        assert [sent.get(one) for one in range(20)] == [model.get(one) for one in range(20)]
        assert sent.first_after(at - 5) == sum(entry.at <= at - 5 for entry in model.values())
