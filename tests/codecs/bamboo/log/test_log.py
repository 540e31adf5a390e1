"""The log of Bamboo connections: the rows of a capture, the same ones wherever it is cut."""

from __future__ import annotations

import base64
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codecs.bamboo.session.peers import SAFE, confirm, layer, metadata, over, propose, raw
from tests.support.landed import landed_file
from wirehouse_codecs.bamboo.inspection import inspect, recognises
from wirehouse_codecs.bamboo.log.conversation import Conversation as Talk
from wirehouse_codecs.bamboo.log.schema import SCHEMA, starter
from wirehouse_codecs.bamboo.options import BambooOptions
from wirehouse_codecs.bamboo.setup import Setup
from wirehouse_codecs.bamboo.wire import bymux_packets
from wirehouse_codecs.bamboo.wire.bymux_packets import Packet, Type
from wirehouse_codecs.bamboo.wire.encoding import encode
from wirehouse_codecs.bamboo.wire.messages import (
    Adjust,
    Cancel,
    CancelReason,
    CompressedPayload,
    Eagerness,
    Notify,
    PointToPoint,
    ProposalCredit,
    SkipBytes,
    Switch,
)
from wirehouse_codecs.bamboo.wire.reader import Layer, Reader
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.logs.flow_log import FlowLog
from wirehouse_codecs.logs.inspection import MESSAGE, VIOLATION
from wirehouse_codecs.logs.rows import Gather, Log, Window
from wirehouse_codecs.simulate import script
from wirehouse_codecs.simulate.script import Close, Conversation, Send
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_codecs.tcp.reassembly import Closed, Connection, Data, Hole, Side, TcpSegment

SESSIONS = Path(__file__).parents[3] / "vectors" / "bamboo" / "sessions"
VECTORS = sorted(SESSIONS.glob("*.pcap"))
LATE_NS = 2**62
SECOND = 1_000_000_000
CLIENT, SERVER = Endpoint("10.0.0.1", 40_000), Endpoint("10.0.0.2", 9_000)
A, B = Direction.CLIENT, Direction.SERVER
Row = dict[str, Any]
Made = list[tuple[Direction, bytes]]


def segments(made: Made, *, ends: bool = True, lost: Iterable[int] = (), late_ns: int = 0) -> list[TcpSegment]:
    """The segments of a connection in which the sides say `made`, one a second; `lost` are the indexes of some."""
    said: list[Any] = [Send(SECOND * (n + 1), side, data) for n, (side, data) in enumerate(made)]
    if ends:
        said.append(Close(SECOND * (len(made) + 2), A))
    rows = []
    seen = 0
    for number, one in enumerate(script.segments(Conversation(CLIENT, SERVER, 0, said))):
        seen += bool(one.payload)
        if one.ts_ns < late_ns or (one.payload and seen - 1 in lost):
            continue
        place = Place(one.ts_ns, 1, b"capture", number)
        numbers = (one.sequence, one.acknowledgment, one.flags)
        rows.append(TcpSegment(place, one.direction, *numbers, 500, one.payload, len(one.payload)))
    return rows


def told(given: Sequence[TcpSegment], cuts: Iterable[int] = (), **options: Any) -> list[Row]:
    """The rows of the log, with windows that end before the segments in `cuts`."""
    start, flow = (
        starter(BambooOptions(**options)),
        b"".join(end.packed + end.port.to_bytes(2, "big") for end in (SERVER, CLIENT)),
    )
    assert not isinstance(start, Gather)
    log, state, at = Log(SCHEMA), None, 0
    rows: list[Row] = []
    for cut in [*sorted(set(cuts)), len(given)]:
        reading = FlowLog(log, start, "test", flow, TcpOptions(), state)
        for segment in given[at:cut]:
            reading.receive(segment)
        reading.end_window(Window("", LATE_NS if cut == len(given) else given[cut].place.arrived_at_ns - 1))
        new = [row for batch in log.take() for row in batch.to_pylist()]
        state = next((row["state"] for row in new if row["row_kind"] == "state"), state)
        rows += new
        at = cut
    return rows


def events(rows: Iterable[Row]) -> list[str]:
    """The rows of what happened, and the newest one of each proposal and session."""
    newest = {(row["row_kind"], row["proposal_number"]): row for row in rows if row["row_kind"] in ENTITIES}
    happened = [row for row in rows if row["row_kind"] not in (*ENTITIES, "state", "connection")]
    return sorted(map(repr, [*happened, *newest.values()]))


ENTITIES = ("session", "proposal")


def over_bymux(*said: tuple[Direction, PointToPoint]) -> Made:
    """What the sides write, each packet in a Write of its own."""
    streams = {Layer.CONTROL: 0, Layer.DATA: 1}
    made: Made = []
    for side, packet in said:
        data = encode(packet)
        if isinstance(packet, Setup):
            made.append((side, data + bymux_packets.encode(Packet(Type.CREDIT, 1, 1 << 20))))
        else:
            made.append((side, bymux_packets.write(streams[layer(packet)], data)))
    return made


def replicated(log: Any, last: int = 4) -> Made:
    """A connection in which the server sends entries 1 to `last`."""
    opening: list[tuple[Direction, PointToPoint]] = [
        (A, SAFE),
        (B, SAFE),
        (A, ProposalCredit(4)),
        (B, ProposalCredit(4)),
        (A, propose(log, end=last, upper_info=last)),
        (B, confirm()),
        (B, Switch(0)),
    ]
    for seq in range(1, last + 1):
        opening += [(B, metadata(log.entries[seq])), (B, raw(log.payloads[seq]))]
    closing: list[tuple[Direction, PointToPoint]] = [
        (B, Cancel(CancelReason.END_REACHED, 0)),
        (B, over()),
        (A, Cancel(CancelReason.CONFIRMING, 0)),
        (A, over()),
    ]
    return over_bymux(*opening, *closing)


@pytest.fixture(scope="session")
def made(make_log: Callable[..., Any]) -> Made:
    return replicated(make_log(4))


def kinds(rows: Iterable[Row]) -> Counter[str]:
    return Counter(row["row_kind"] for row in rows)


def rules(rows: Iterable[Row]) -> list[str]:
    return [row["finding"]["rule"] for row in rows if row["row_kind"] == "violation"]


def test_the_rows_of_a_connection(made: Made) -> None:
    rows = told(segments(made))
    found = kinds(rows)
    assert (found["entry"], found["violation"], found["quarantine"]) == (4, 0, 0)
    assert (found["proposal"], found["session"]) == (1, 1)
    proposal = next(row["proposal"] for row in rows if row["row_kind"] == "proposal")
    assert (proposal["state"], proposal["outcome"], proposal["proposer"]) == ("unused", "cancelled", "client")
    assert proposal["server"]["sent"]["payloads"] == 4
    session = next(row["session"] for row in rows if row["row_kind"] == "session")
    assert (session["closed"], session["client"]["send_mode"], session["data_stream"]) == ("fin", "safe", 1)


def test_rows_cover_every_byte_of_a_connection(made: Made) -> None:
    rows = told(segments(made))
    for side in (A, B):
        covered = sorted(
            (row["byte_start"], row["byte_end"])
            for row in rows
            if row["row_kind"] == "message" and row["direction"] == side and row["channel"] in ("setup", "bymux")
        )
        assert covered[0][0] == 0
        assert all(one[1] == other[0] for one, other in pairwise(covered))
        assert covered[-1][1] == sum(len(data) for sender, data in made if sender is side)


@settings(max_examples=25)
@given(data=st.data())
def test_windows_cut_anywhere_give_the_same_rows(made: Made, data: st.DataObject) -> None:
    lost = data.draw(st.sets(st.integers(0, len(made) - 1), max_size=1))
    given = segments(made, lost=lost)
    cuts = data.draw(st.sets(st.integers(1, len(given) - 1), max_size=4))
    assert events(told(given, cuts)) == events(told(given))


@pytest.mark.parametrize("cuts", [(), (1,), (2,), (1, 2, 3, 4)], ids=str)
def test_bytes_that_are_captured_before_the_syn_are_the_beginning(made: Made, cuts: tuple[int, ...]) -> None:
    given = segments(made)
    first = next(number for number, one in enumerate(given) if one.payload)
    moved = [given[first], *given[:first], *given[first + 1 :]]
    moved = [segment._replace(place=one.place) for segment, one in zip(moved, given, strict=True)]
    rows = told(moved, cuts)
    assert packets(rows) == packets(told(given))
    assert {row["row_kind"] for row in rows}.isdisjoint({"violation", "quarantine"})


def test_segments_of_one_byte_give_the_same_content(made: Made) -> None:
    def content(rows: Iterable[Row]) -> list[Any]:
        names = ("direction", "byte_start", "byte_end", "channel", "proposal_id", "message", "entry")
        shown = [[row[name] for name in names] for row in rows if row["row_kind"] in ("message", "entry")]
        return sorted(map(repr, shown))

    bytewise = [(side, data[at : at + 1]) for side, data in made for at in range(len(data))]
    assert content(told(segments(bytewise))) == content(told(segments(made)))


def test_what_follows_a_violation_is_one_row_of_each_side(made: Made) -> None:
    said = [*made[:7], *over_bymux((B, raw(b"out of turn")), (B, Switch(0)), (A, ProposalCredit(1)))]
    rows = told(segments(said))
    assert rules(rows) == ["bamboo.out_of_turn"]
    rest = [row for row in rows if row["row_kind"] == "quarantine"]
    assert [(row["direction"], row["finding"]["message"]) for row in rest] == [
        ("client", "after_violation"),
        ("server", "after_violation"),
    ]
    assert [row["byte_end"] - row["byte_start"] for row in rest] == [5, 5]


def test_a_connection_that_ends_within_a_packet(made: Made) -> None:
    side, data = made[-9]
    rows = told(segments([*made[:-9], (side, data[:-3])]))
    assert rules(rows) == ["bamboo.truncated_packet"]
    quarantined = next(row for row in rows if row["row_kind"] == "quarantine")
    assert quarantined["byte_end"] == sum(len(one) for sender, one in made[:-9] if sender is side) + len(data) - 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x08\xff" + b"\xff" * 8 + b"abc", f"data channel, in {2**64 - 1} bytes of a payload"),
        (b"\x09\x03\xf8\x07ab", "data channel, in 7 bytes of a payload"),
        (b"\x80\x00", "data channel"),
    ],
)
def test_a_packet_that_is_cut_is_kept_from_its_first_byte(made: Made, content: bytes, message: str) -> None:
    said = [*made[:7], (B, bymux_packets.write(1, content[:4])), (B, bymux_packets.write(1, content[4:] or b"\x00"))]
    given = segments(said)
    # The last segment that says something, before those that end the connection.
    last = max(number for number, one in enumerate(given) if one.payload)
    for cuts in ((), (last,), (last + 1,)):
        rows = told(given, cuts)
        assert rules(rows)[-1] == "bamboo.truncated_packet"
        (quarantined,) = [row for row in rows if row["row_kind"] == "quarantine"]
        assert quarantined["raw"] == content + (b"" if content[4:] else b"\x00")
        assert quarantined["finding"]["message"] == message


def test_bytes_that_are_no_packet(made: Made) -> None:
    for bad, rule in ((b"\xc0", "unknown_type"), (bymux_packets.write(0, b"\x88"), "unused_control_byte")):
        rows = told(segments([*made[:4], (A, bad), (B, b"more")]))
        assert rules(rows) == [f"bamboo.{rule}"]
        quarantined = [row for row in rows if row["row_kind"] == "quarantine"]
        assert quarantined[0]["raw"] == bad[-1:]


def entries(rows: Iterable[Row]) -> list[int]:
    return [int(row["entry"]["seq"]) for row in rows if row["row_kind"] == "entry"]


def again(log: Any) -> Made:
    """A second proposal of the same peers, for another log."""
    said = over_bymux(
        (A, ProposalCredit(1)), (A, propose(log, 2, end=2, upper_info=4)), (B, confirm(2)), (B, Switch(2))
    )
    for seq in (1, 2):
        said += over_bymux((B, metadata(log.entries[seq])), (B, raw(log.payloads[seq])))
    return said


def test_a_capture_that_begins_late(made: Made, make_log: Callable[..., Any]) -> None:
    rows = told(segments([*made, *again(make_log(2, log_id=5))], late_ns=6 * SECOND))
    assert rules(rows) == ["bamboo.no_setup_seen"]
    assert entries(rows) == [1, 2]
    session = [row["session"] for row in rows if row["row_kind"] == "session"][-1]
    assert session["partial"]


def test_a_side_that_says_nothing_has_no_set_up(made: Made) -> None:
    alone = segments(made[:1])
    rows = told(alone)
    assert rules(rows) == ["bamboo.no_setup_seen"]
    assert events(told(alone, {len(alone) - 1})) == events(rows)
    assert rules(told(segments([]))) == []
    assert rules(told(segments(made[:1], ends=False))) == ["bamboo.no_setup_seen"]


def test_after_a_hole_the_next_packets_are_found(made: Made, make_log: Callable[..., Any]) -> None:
    for lost in range(7, len(made)):
        rows = told(segments([*made, *again(make_log(2, log_id=5))], lost={lost}))
        assert entries(rows)[-2:] == [1, 2]
        skipped = [row for row in rows if row["row_kind"] == "quarantine"]
        assert [row["finding"]["message"] for row in skipped] == ["no packet can be told after bytes that are missing"]


def snapped(given: Sequence[TcpSegment], sizes: Mapping[int, int]) -> list[TcpSegment]:
    """The segments as a snap length leaves them: of those at some indexes so many bytes."""
    return [
        one if number not in sizes else one._replace(payload=one.payload[: sizes[number]])
        for number, one in enumerate(given)
    ]


def packets(rows: Iterable[Row], *sides: Direction) -> list[tuple[str, int]]:
    """Those of the channels, and where they begin."""
    messages = [row for row in rows if row["row_kind"] == "message" and row["channel"] in ("control", "data")]
    wanted = sides or tuple(Direction)
    return sorted((row["direction"], row["byte_start"]) for row in messages if row["direction"] in wanted)


def test_behind_a_packet_that_is_cut_the_next_one_is_read(made: Made) -> None:
    whole = segments(made)
    said = [number for number, one in enumerate(whole) if one.payload]
    every = packets(told(whole))
    # Switch, then metadata and payloads by turns.
    for before, number in enumerate(said[7:15], 1):
        size = len(whole[number].payload)
        is_payload = whole[number].payload[3] == 8
        # The headers of bymux and of a payload, or metadata up to its size, are there.
        for kept in range(5 if is_payload else 7, size):
            rows = told(snapped(whole, {number: kept}))
            (cut,) = [row for row in rows if row["row_kind"] == "quarantine"]
            assert cut["byte_end"] - cut["byte_start"] == size - 3
            assert packets(rows) == [one for one in every if one != (cut["direction"], cut["byte_start"])]
            assert set(rules(rows)) <= {"capture.hole"}
            assert entries(rows) == list(range(1, before // 2 + 1))


def test_a_hole_that_ends_within_a_payload_in_two_writes(made: Made) -> None:
    content = made[8][1][3:]
    halves = [(B, bymux_packets.write(1, content[:6])), (B, bymux_packets.write(1, content[6:]))]
    whole = segments([*made[:8], *halves, *made[9:]])
    first, second = (n for n, one in enumerate(whole) if one.payload in (halves[0][1], halves[1][1]))
    every = packets(told(whole))
    payload = ("server", whole_start(whole, first) + 3)
    for sizes in ({first: 5}, {first: 8}, {second: 3}, {first: 6, second: 4}):
        rows = told(snapped(whole, sizes))
        assert packets(rows) == [one for one in every if one != payload]
        assert set(rules(rows)) <= {"capture.hole"}


def test_a_packet_that_is_cut_before_its_size_stops_its_channel_alone(made: Made, make_log: Callable[..., Any]) -> None:
    """Until two Writes in a row hold whole packets."""
    said = [*made, *again(make_log(2, log_id=5))]
    whole = segments(said)
    every = packets(told(whole), A)
    proposed = next(number for number, one in enumerate(whole) if len(one.payload) > 40 and one.direction is A)
    rows = told(snapped(whole, {proposed: 40}))
    assert packets(rows, B) == packets(told(whole), B)
    assert packets(rows, A) == [one for one in every if one != ("client", whole_start(whole, proposed) + 3)]
    assert entries(rows)[-2:] == [1, 2]
    # Where the Write after it is cut as well, these are the next two.
    later = [number for number, one in enumerate(whole) if one.payload and one.direction is A and number > proposed]
    rows = told(snapped(whole, {proposed: 40, later[0]: 3}))
    assert len(packets(rows, A)) == len(every) - 2
    for number in (proposed, later[0]):
        assert events(told(snapped(whole, {proposed: 40}), {number, number + 1})) == events(
            told(snapped(whole, {proposed: 40}))
        )


def whole_start(given: Sequence[TcpSegment], number: int) -> int:
    """Where a segment begins in its direction."""
    return sum(len(one.payload) for one in given[:number] if one.direction is given[number].direction)


@settings(max_examples=60)
@given(data=st.data())
def test_of_legal_sessions_that_are_cut_anywhere_nothing_is_found(made: Made, data: st.DataObject) -> None:
    whole = segments(from_vector("happy_1") if data.draw(st.booleans()) else made)
    numbers = [number for number, one in enumerate(whole) if len(one.payload) > 1]
    sizes = data.draw(st.dictionaries(st.sampled_from(numbers), st.integers(0, 60), max_size=6))
    given = snapped(whole, {number: min(size, len(whole[number].payload)) for number, size in sizes.items()})
    rows = told(given)
    assert set(rules(rows)) <= NOTES | {"bamboo.proposal_not_answered"}
    every = packets(told(whole))
    assert set(packets(rows)) <= set(every)
    cuts = data.draw(st.sets(st.integers(1, len(given) - 1), max_size=4))
    assert events(told(given, cuts)) == events(rows)


@pytest.mark.parametrize(("less", "knows"), [(0, True), (1, False)])
def test_what_a_segment_acknowledges_says_what_its_sender_knew(
    make_log: Callable[..., Any], less: int, knows: bool
) -> None:
    """The client wants notifies alone, and is sent one that only this allows, and then data."""
    said = replicated(make_log(4))[:9]
    said += over_bymux((A, Adjust(0, Eagerness.NOTIFY)), (B, Notify()), (B, raw(b"payload 2")))
    whole = segments(said, ends=False)
    adjusted = max(number for number, one in enumerate(whole) if one.payload and one.direction is A)
    end = whole[adjusted].sequence + len(whole[adjusted].payload)
    late = [
        one._replace(acknowledgment=end - less) for one in whole[adjusted + 1 :] if one.direction is B and one.payload
    ]
    assert rules(told([*whole[: adjusted + 1], *late])) == ["bamboo.eagerness_ignored"] * knows


#: What may be found where the capture lacks bytes.
NOTES = {
    "bamboo.no_setup_seen",
    "bamboo.link_unknown",
    "bamboo.history_unknown",
    "bamboo.truncated_packet",
    "capture.hole",
}


def from_vector(name: str) -> Made:
    vector = json.loads((SESSIONS / f"{name}.json").read_text())
    streams = {side: base64.b64decode(stream["b64"]) for side, stream in vector["stream"].items()}
    at, said = dict.fromkeys(streams, 0), []
    for _, side, size in vector["segments"]:
        said.append((A if side == "a" else B, streams[side][at[side] : at[side] + size]))
        at[side] += size
    return said


@pytest.mark.parametrize("lost", range(0, 36, 3))
def test_what_the_capture_lacks_was_said_by_the_rules(lost: int) -> None:
    """Of legal sessions nothing is found but what is missing, whatever that is."""
    notes = {"link_unknown", "no_setup_seen", "history_unknown", "proposal_not_answered", "truncated_packet"}
    said = from_vector("happy_1")
    for holes in (range(lost, lost + 1), range(lost + 1, lost + 2), range(lost + 2, lost + 3), range(lost, lost + 2)):
        found = {rule.partition(".")[2] for rule in rules(told(segments(said, lost=holes)))}
        assert found - {"hole"} <= notes
    late = {rule.partition(".")[2] for rule in rules(told(segments(said, late_ns=lost * SECOND)))}
    assert late - {"hole"} <= notes


@pytest.mark.parametrize("side", Direction)
def test_of_one_side_alone_nothing_is_found_that_rests_on_the_other(made: Made, side: Direction) -> None:
    alone = [segment for segment in segments(made) if segment.direction is side]
    assert set(rules(told(alone))) <= NOTES
    assert set(rules(told(alone, range(0, len(alone), 2)))) <= NOTES
    # The same where the bytes of the other side are said to be missing before or after what this one says.
    data = b"".join(data for of, data in made if of is side)
    other, place = B if side is A else A, Place(SECOND, 1, b"capture", 1)
    for first in (True, False):
        log = Log(SCHEMA)
        log.client = CLIENT
        connection = Connection(b"c", "syn", place, place, Side(A, options=TcpOptions()), Side(B, options=TcpOptions()))
        talk = Talk(log, connection, SERVER, BambooOptions(), None)
        connection.sides(side)[0].note_received(0, 500)
        if first:
            talk.hole(Hole(other, 0, 500, place))
        talk.receive([Data(side, 0, data, place)])
        if not first:
            talk.hole(Hole(other, 0, 500, place))
        talk.close(Closed(place, "fin"))
        assert set(rules([row for batch in log.take() for row in batch.to_pylist()])) <= NOTES


def test_nothing_is_found_in_bytes_of_something_else(made: Made) -> None:
    rows = told(
        segments([*made[:4], (A, b"lost"), (A, b"\x20\x01 something else" * 20), (A, bytes(range(256)))], lost={4})
    )
    quarantined = [row for row in rows if row["row_kind"] == "quarantine"]
    assert [row["direction"] for row in quarantined] == ["client"]


@pytest.mark.parametrize("pattern", [b"\x20\x00\x00", b"\x20\x01\xff", b"\x20\x00\x01\x00\x40\x00", b"\x00", b"\x20"])
def test_a_search_ends_soon(pattern: bytes) -> None:
    hostile = pattern * (20_000 // len(pattern))
    reader = Reader(BambooOptions(), started_late=True)
    begun = time.process_time()
    for at in range(0, len(hostile), 5_000):
        reader.receive(A, hostile[at : at + 5_000], Place(1, 1, b"c", 1))
    assert time.process_time() - begun < 2


def test_the_client_is_the_proactive_side(made: Made) -> None:
    turned = [(B if side is A else A, data) for side, data in made]
    rows = told(segments(turned), proactive=Direction.SERVER)
    plain = told(segments(made))

    def sides(rows: Iterable[Row]) -> list[Any]:
        return [(row["direction"], row["message"]["kind"]) for row in rows if row["row_kind"] == "message"]

    assert sides(rows) == sides(plain)


def test_a_write_that_announces_more_than_there_can_be(made: Made) -> None:
    huge = bymux_packets.encode(Packet(Type.WRITE, 0, 1), b"\x00")[:-1].replace(b"\x01", b"", 1)
    huge = bytes([0x23, 0]) + (2**64 - 1).to_bytes(8, "big")
    rows = told(segments([*made[:4], (A, huge + bytes([0, 1]))]))
    assert "bamboo.truncated_packet" in rules(rows)


def test_what_was_begun_before_a_hole_is_kept_with_what_follows(made: Made) -> None:
    begin = sum(len(data) for side, data in made[:7] if side is B)
    packet = b"\x08\4abcd"
    rows = told(segments([*made[:7], (B, bymux_packets.write(1, packet[:3])), (B, b"lost"), (B, b"more")], lost={8}))
    (kept,) = [row for row in rows if row["row_kind"] == "quarantine"]
    # After the header of the Write, which is told.
    assert (kept["byte_start"], kept["byte_end"]) == (begin + 3, begin + 3 + 3 + 8)


def test_a_write_ends_where_its_bytes_would(made: Made) -> None:
    begin = sum(len(data) for side, data in made[:4] if side is A)
    rows = told(segments([*made[:4], (A, bymux_packets.write(0, b"\0\5\0\5")[:-2])]))
    write = [row for row in rows if row["row_kind"] == "message" and row["direction"] == "client"][-2]
    assert (write["message"]["kind"], write["byte_start"], write["byte_end"]) == ("write", begin, begin + 7)
    assert rules(rows) == ["bamboo.truncated_packet"]


@settings(max_examples=60)
@given(data=st.data())
def test_whatever_bytes_come_none_is_lost(made: Made, data: st.DataObject) -> None:
    garbled = list(made)
    for _ in range(data.draw(st.integers(1, 3))):
        index = data.draw(st.integers(0, len(garbled) - 1))
        side, old = garbled[index]
        at = data.draw(st.integers(0, len(old)))
        new = old[:at] + data.draw(st.binary(max_size=20)) + old[at + data.draw(st.integers(0, 20)) :]
        garbled[index] = (side, new or b"\0")
    rows = told(segments(garbled))
    for sender in (A, B):
        size = sum(len(one) for side, one in garbled if side is sender)
        ranges = sorted(
            (row["byte_start"], row["byte_end"])
            for row in rows
            if row["row_kind"] in ("message", "quarantine") and row["direction"] == sender
        )
        end = 0
        for begin, after in ranges:
            assert begin <= end
            end = max(end, after)
        assert end >= size


def test_the_largest_numbers_have_their_place(make_log: Callable[..., Any]) -> None:
    log = make_log(1)
    most = 2**64 - 1
    said: list[tuple[Direction, PointToPoint]] = [
        (A, Setup(True, True, most, most)),
        (B, Setup(True, True, most, most)),
        (A, ProposalCredit(most)),
        (B, ProposalCredit(most)),
        (A, propose(log, most - 1, end=None, author=bytes([255]) * 32, log_id=most, eagerness=Eagerness.NOTIFY)),
        (B, Adjust(most - 1, Eagerness.LIMITED, most, True, min_payload=most, max_payload=most)),
        (B, Switch(most - 1)),
        (B, Notify(most)),
        (B, Notify(most - 5)),
        (A, Switch(most - 1)),
        (A, metadata(log.entries[1], payload_size=most)),
        (A, CompressedPayload(most - 7, 1, b"x")),
        (A, SkipBytes(1)),
        (B, Cancel(CancelReason.END_OF_LOG, most - 1, most)),
    ]
    rows = told(segments(over_bymux(*said)))
    assert kinds(rows)["proposal"] == 1
    assert set(rules(rows)) == {
        *("bamboo.history_unknown", "bamboo.cancel_reason_untrue", "bamboo.cancel_not_confirmed")
    }


@pytest.mark.parametrize("lost", [(), (6,), (10, 11)])
def test_a_window_for_every_packet(lost: tuple[int, ...]) -> None:
    given = segments(from_vector("happy_1"), lost=lost)
    assert events(told(given, range(1, len(given)))) == events(told(given))


# Captures


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_captures_of_the_vectors(path: Path) -> None:
    expected = json.loads(path.with_suffix(".json").read_text())["expected"]
    rows = list(inspect(landed_file(path)))
    steps = [row for kind, row in rows if kind == MESSAGE and row["channel"] != "bymux"]
    side = {"a": "client", "b": "server"}
    assert [(row["channel"], row["kind"], row["direction"], row["byte_end"]) for row in steps] == [
        (step["chan"], step["kind"], side[step["dir"]], step["end_offset"]) for step in expected["steps"]
    ]
    for row, step in zip(steps, expected["steps"], strict=True):
        if "before" in step:
            assert (row["cursor_before"], row["cursor_after"]) == (step["before"], step["after"])
    violated = [row["rule"] for kind, row in rows if kind == VIOLATION and row["severity"] == "violation"]
    wanted = expected["violation"]
    assert violated == ([] if wanted is None else [f"bamboo.{wanted['invariant']}"])


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_connections_are_recognised(path: Path) -> None:
    streams = json.loads(path.with_suffix(".json").read_text())["stream"]
    client, server = (base64.b64decode(streams[side]["b64"]) for side in "ab")
    assert recognises(client, server)
    assert recognises(client[:100], b"")


def test_without_control_packets_the_set_ups_of_both_sides_tell() -> None:
    pings = bymux_packets.encode(Packet(Type.PING)) + bymux_packets.encode(Packet(Type.CLOSE))
    begun, unwilling = (encode(Setup(False, False, window, 9)) for window in (400, 0))
    assert recognises(begun + pings, begun + pings)
    assert recognises(begun + pings, b"") is None
    assert recognises(begun + pings, begun) is None
    # It may also be a length of four bytes.
    assert recognises(begun + pings, unwilling + pings) is None


@pytest.mark.parametrize(
    "head", [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(40), b"\0\0\0\x10" + b"HELLO" * 20, b"\xff" * 50]
)
def test_others_are_not(head: bytes) -> None:
    assert recognises(head, head) is None
    assert recognises(head, b"") is None
