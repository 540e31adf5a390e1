"""The pieces of a proposal, the cursor over them, and what may be sent where."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.carried import carry
from wirehouse_codecs.bamboo.session.cursor import JUDGED, Cursor, Piece, Plan, Sent, Settings, Turn, judge, move
from wirehouse_codecs.bamboo.setup import Channel, Role, agreed
from wirehouse_codecs.bamboo.wire.bymux import Bymux, Delivered
from wirehouse_codecs.bamboo.wire.channel_reader import ChannelReader
from wirehouse_codecs.bamboo.wire.encoding import decode_setup, encode
from wirehouse_codecs.bamboo.wire.lipmaa import lower_pool, path, upper_pool
from wirehouse_codecs.bamboo.wire.messages import (
    Adjust,
    Apology,
    CompressedPayload,
    DataPacket,
    Eagerness,
    Metadata,
    Notify,
    PointToPoint,
    Propose,
    RawPayload,
    SkipBytes,
    SkipPayload,
    SkipReason,
    Switch,
    kind_of,
)
from wirehouse_codecs.bamboo.wire.varu64 import MAX_U64

METADATA = Metadata(False, None, 0, bytes(66), bytes(64))
ALL = Settings(Eagerness.ALL)
SMALL, LARGE, MISSING = (SkipPayload(reason) for reason in SkipReason)


def pieces(plan: Plan, most: int = 60) -> str:
    """All pieces, or the first ones of an endless plan."""
    assert plan.piece(plan.size) is None
    count = min(most, plan.size)
    return " ".join(str(plan.piece(index)) for index in range(count))


def test_the_examples() -> None:
    assert pieces(Plan(10, 1, 13, 13)) == "m1 m4 m8 m9 m10 p10 m11 p11 m12 p12 m13 p13"
    assert pieces(Plan(3, 3, 7, 13)) == "m3 p3 m4 p4 m5 p5 m6 p6 m7 p7 m8 m12 m13"
    assert pieces(Plan(3, 3, 8, 13)) == "m3 p3 m4 p4 m5 p5 m6 p6 m7 p7 m8 p8 m12 m13"


def test_other_forms() -> None:
    assert pieces(Plan(3, 1, None), 5) == "m1 m2 m3 p3 m4"
    assert pieces(Plan(3, 3, 5, 8, offset=7)) == "p3 m4 p4 m5 p5 m6 m7 m8"
    assert pieces(Plan(3, 1, 5, 13, payload_only=True)) == "p3 p4 p5"
    assert pieces(Plan(3, 3, 4, 4, offset=0, payload_only=True)) == "p3 p4"
    assert pieces(Plan(2, 2, 9, 12, sparse=True)) == "m2 p2 m3 p3 m4 p4 m8 p8 m9 p9 m10 m11 m12"
    assert pieces(Plan(4, 4, 9, 9, sparse=True, payload_only=True)) == "p4 p8 p9"
    assert pieces(Plan(9, 4, 9, None)) == "m4 m8 m9 p9 m10 m11 m12 m13"
    assert pieces(Plan(1, 1, 1, 1)) == "m1 p1"


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    start = draw(st.integers(1, 40) | st.integers(1, 1 << 40))
    end = draw(st.none() | st.integers(start, start + 30))
    lower = draw(st.sampled_from(lower_pool(start)))
    upper = None if end is None else draw(st.sampled_from(upper_pool(end)))
    offset = draw(st.none() | st.integers(0, 9))
    sparse = end is not None and draw(st.booleans())
    return Plan(start, start if offset is not None else lower, end, upper, offset, draw(st.booleans()), sparse)


@given(plans())
def test_pieces_and_indexes(plan: Plan) -> None:
    count = min(200, plan.size)
    told = [plan.piece(index) for index in range(count)]
    assert [plan.index(piece) for piece in told] == list(range(count))
    listed = [piece for piece in told if piece is not None]
    assert listed == sorted(listed)
    assert len(set(listed)) == count
    if plan.end is not None:
        dense = range(plan.start, plan.end + 1)
        inside = path(plan.start, plan.end) if plan.sparse else dense
        assert [piece.seq for piece in listed if piece.is_payload] == list(inside)


@given(plans(), st.integers(0, 80), st.integers(0, 40), st.booleans())
def test_an_adjusted_end_keeps_the_place(plan: Plan, steps: int, lower_by: int, with_upper: bool) -> None:
    if plan.end is None:
        return
    cursor = Cursor.begin(plan)
    cursor.pass_over(min(steps, plan.size))
    before = cursor.piece
    end = max(plan.start, plan.end - lower_by)
    if plan.sparse and end not in path(plan.start, plan.end):
        end = plan.end
    adjusted = plan.adjusted(Adjust(0, end=end, upper_info=upper_pool(end)[0] if with_upper else None))
    cursor.adjust(adjusted)
    if before is not None and before in [adjusted.piece(index) for index in range(adjusted.size)]:
        assert cursor.piece == before
    elif before is not None:
        assert cursor.piece is None or cursor.piece > before
    else:
        assert cursor.piece is None


def test_a_raised_end_is_ignored() -> None:
    plan = Plan(3, 3, 8, 13)
    assert plan.adjusted(Adjust(0, end=9, upper_info=40)) == plan
    assert plan.adjusted(Adjust(0, end=7)) == Plan(3, 3, 7, 13)
    assert plan.adjusted(Adjust(0, upper_info=12)) == Plan(3, 3, 8, 12)
    endless = Plan(3, 3)
    assert pieces(endless.adjusted(Adjust(0, end=5))) == "m3 p3 m4 p4 m5 p5 m6 m7 m8 m12 m13"


def test_sparse_without_an_end_is_followed_to_its_start() -> None:
    cursor = Cursor.begin(Plan(3, 2, sparse=True))
    receiver = Cursor.begin(cursor.plan)
    places = []
    for size in (None, None, 4):
        places.append(str(cursor))
        packet = METADATA if size is None else RawPayload(size, bytes(size))
        turn = Turn(cursor, receiver, ALL, {3: size}.get)
        assert judge(packet, turn) is None
        move(packet, turn)
    assert (*places, str(cursor)) == ("m2", "m3", "p3", "unknown")
    assert judge(Notify(5), Turn(cursor, receiver, ALL, lambda _: None)) is None
    # What was sent last can still be retracted, what comes next isn't known even with an end.
    assert not cursor.lost
    cursor.adjust(cursor.plan.adjusted(Adjust(0, end=8)))
    assert cursor.lost


def test_plan_and_settings_of_a_proposal() -> None:
    propose = Propose(0, bytes(32), 7, 5, None, 2, 9, Eagerness.LIMITED, bytes(64), 6, 8, 12, 3, mandatory=True)
    assert Plan.of(propose) == Plan(5, 5, 8, 12, 3)
    assert Settings.of(propose) == Settings(Eagerness.LIMITED, 6, 2, 9, True)
    assert Settings.of(replace(propose, mandatory=False)).mandatory is False


def test_settings_are_adjusted() -> None:
    confirmed = Settings().adjusted(Adjust(0, Eagerness.LIMITED, 100, min_payload=5, max_payload=500))
    assert confirmed == Settings(Eagerness.LIMITED, 100, 5, 500, True)
    assert confirmed.adjusted(Adjust(0, may_skip=True)) == replace(confirmed, mandatory=False)
    assert confirmed.adjusted(Adjust(0, Eagerness.ALL)) == replace(confirmed, eagerness=Eagerness.ALL, size_limit=None)
    assert not confirmed.unwanted(5)
    assert not confirmed.unwanted(500)
    assert confirmed.unwanted(4)
    assert confirmed.unwanted(501)


class Dialogue:
    """One side sends to another, which wants what `wanted` says; payloads are 10 bytes."""

    def __init__(self, plan: Plan, wanted: Settings = ALL, sizes: dict[int, int | None] | None = None) -> None:
        self.sender, self.receiver = Cursor.begin(plan), Cursor.begin(plan)
        self.wanted = wanted
        self.sizes = sizes or {}

    def turn(self) -> Turn:
        return Turn(self.sender, self.receiver, self.wanted, lambda seq: self.sizes.get(seq, 10))

    def send(self, *packets: DataPacket) -> str:
        """The places after each packet; the last one may be a rule that is broken."""
        places: list[str] = []
        for packet in packets:
            rule = judge(packet, self.turn())
            if rule is not None:
                return " ".join([*places, rule])
            move(packet, self.turn())
            self.sender = carry(self.sender)
            places.append(str(self.sender))
        return " ".join(places)


PLAN = Plan(5, 4, 6, 6)


def raw(size: int) -> RawPayload:
    return RawPayload(size, bytes(size))


def lz(size: int) -> CompressedPayload:
    return CompressedPayload(size, 1, b"x")


def test_sending_everything() -> None:
    told = Dialogue(PLAN).send(METADATA, METADATA, raw(4), lz(6), METADATA, raw(10))
    assert told == "m5 p5 p5+4 m6 p6 end"


@pytest.mark.parametrize("packet", [METADATA, raw(1), raw(0), lz(1), SMALL, SkipBytes(1), Notify()], ids=repr)
def test_nothing_comes_after_the_end(packet: DataPacket) -> None:
    dialogue = Dialogue(PLAN)
    dialogue.sender.pass_over(5)
    assert dialogue.send(packet) == "past_end"


def test_a_skip_of_0_bytes_is_nothing() -> None:
    told = Dialogue(PLAN).send(SkipBytes(0), METADATA, SkipBytes(0), METADATA, raw(4), SkipBytes(0))
    assert told == "m4 m5 m5 p5 p5+4 p5+4"
    dialogue = Dialogue(PLAN)
    dialogue.sender.pass_over(5)
    assert dialogue.send(SkipBytes(0)) == "end"


def test_pieces_alternate() -> None:
    assert Dialogue(PLAN).send(raw(1)) == "out_of_turn"
    assert Dialogue(PLAN).send(SkipBytes(1)) == "out_of_turn"
    assert Dialogue(PLAN).send(MISSING) == "out_of_turn"
    assert Dialogue(PLAN).send(METADATA, METADATA, METADATA) == "m5 p5 out_of_turn"
    assert Dialogue(PLAN).send(METADATA, METADATA, raw(5), METADATA) == "m5 p5 p5+5 out_of_turn"
    assert Dialogue(Plan(5, 4, 8, 8)).send(Switch(3)) == "m4"


def test_payloads_have_the_size_that_is_said() -> None:
    dialogue = Dialogue(PLAN, sizes={5: 0})
    assert dialogue.send(METADATA, METADATA, raw(0), METADATA, raw(11)) == "m5 p5 m6 p6 payload_overrun"
    assert dialogue.send(lz(11)) == "payload_overrun"
    assert dialogue.send(lz(9), lz(2)) == "p6+9 payload_overrun"
    # The first piece of a large packet already says how much it is.
    begun = Dialogue(PLAN)
    begun.sender.pass_over(2)
    assert begun.send(RawPayload(11, b"abcd")) == "payload_overrun"
    assert begun.send(RawPayload(10, b"abcd"), RawPayload(10, bytes(6), 4)) == "p5+4 m6"
    begun.sender.pass_over(1)
    assert begun.send(CompressedPayload(10, 4, b"ab"), CompressedPayload(10, 4, b"cd", 2)) == "p6 end"


def test_an_offset() -> None:
    dialogue = Dialogue(Plan(5, 5, 6, 6, offset=7))
    assert str(dialogue.sender) == "p5+7"
    assert dialogue.send(raw(4)) == "payload_overrun"
    assert dialogue.send(raw(2), Apology(), raw(3), Apology(), raw(3)) == "p5+9 p5+7 m6 p5+7 m6"
    assert Dialogue(Plan(5, 5, 6, 6, offset=10)).send(raw(0)) == "m6"
    assert Dialogue(Plan(5, 5, 6, 6, offset=11)).send(raw(0)) == "payload_overrun"


def test_a_size_that_is_not_known_loses_the_place() -> None:
    dialogue = Dialogue(Plan(5, 5, 6, 6, payload_only=True), sizes={5: None})
    assert dialogue.send(raw(5000), METADATA) == "unknown unknown"


def test_eagerness() -> None:
    notify = Settings(Eagerness.NOTIFY)
    assert Dialogue(PLAN, notify).send(Notify(2), raw(1)) == "p5 eagerness_ignored"
    assert Dialogue(PLAN, notify).send(METADATA) == "eagerness_ignored"
    assert Dialogue(PLAN, notify).send(Notify(5), Notify(0)) == "end end"
    limited = Settings(Eagerness.LIMITED, 10)
    sizes: dict[int, int | None] = {5: 11, 6: 10}
    assert Dialogue(PLAN, limited, sizes).send(METADATA, METADATA, raw(1)) == "m5 p5 eagerness_ignored"
    assert Dialogue(PLAN, limited, sizes).send(METADATA, METADATA, Notify(), METADATA, raw(10)) == "m5 p5 m6 p6 end"
    assert Dialogue(PLAN, limited).send(METADATA, METADATA, Notify()) == "m5 p5 eagerness_ignored"
    assert Dialogue(PLAN, limited, {5: 11}).send(METADATA, METADATA, Notify(2)) == "m5 p5 eagerness_ignored"
    assert Dialogue(PLAN).send(Notify()) == "eagerness_ignored"


def test_a_notify_follows_what_the_other_side_has_sent() -> None:
    dialogue = Dialogue(PLAN)
    dialogue.receiver.pass_over(3)
    assert dialogue.send(Notify(3), Notify()) == "m6 eagerness_ignored"
    other = Dialogue(PLAN)
    other.receiver.pass_over(3)
    assert other.send(Notify(4)) == "eagerness_ignored"
    # The rest of a begun payload is one piece.
    begun = Dialogue(PLAN)
    begun.receiver.pass_over(3)
    assert begun.send(Notify(2), raw(3), Notify(), METADATA) == "p5 p5+3 m6 p6"


def test_a_notify_past_what_is_not_wanted_or_not_known() -> None:
    payloads = Plan(5, 5, 9, 9, payload_only=True)
    small = Settings(Eagerness.ALL, min_payload=11)
    assert Dialogue(payloads, small).send(Notify(3)) == "p8"
    assert Dialogue(payloads, ALL, {5: None}).send(Notify(), Notify()) == "p6 eagerness_ignored"


def test_huge_notifies() -> None:
    dialogue = Dialogue(Plan(5, 5), Settings(Eagerness.NOTIFY))
    assert dialogue.send(Notify(1 << 63)) == f"m{5 + (1 << 62)}"
    assert dialogue.send(Notify(1 << 63), Notify(MAX_U64)) == f"m{5 + (1 << 63)} past_end"
    most = dialogue.sender.plan.size - dialogue.sender.index
    assert dialogue.send(Notify(most), Notify()) == "end past_end"
    assert Dialogue(Plan(5, 5), ALL).send(Notify(MAX_U64)) == "eagerness_ignored"
    unknown = Dialogue(Plan(5, 5, payload_only=True), ALL, dict.fromkeys(range(5, 3000)))
    assert unknown.send(Notify(2000)) == "p2005"


def test_skips() -> None:
    wanted = Settings(Eagerness.ALL, min_payload=10, max_payload=20, mandatory=False)
    for size, packet, told in [
        (9, SMALL, "m6"),
        (10, SMALL, "skip_size_untrue"),
        (21, LARGE, "m6"),
        (20, LARGE, "skip_size_untrue"),
        (15, MISSING, "m6"),
    ]:
        dialogue = Dialogue(PLAN, wanted, {5: size})
        dialogue.sender.pass_over(2)
        assert dialogue.send(packet) == told
    dialogue = Dialogue(PLAN, replace(wanted, mandatory=True))
    dialogue.sender.pass_over(2)
    assert dialogue.send(MISSING) == "skip_of_mandatory_payload"


def test_skipping_bytes_catches_up_with_the_other_side() -> None:
    dialogue = Dialogue(PLAN)
    dialogue.sender.pass_over(2)
    assert dialogue.send(SkipBytes(1)) == "skip_beyond_peer"
    dialogue.receiver.pass_over(2)
    dialogue.receiver.send_bytes(6, 10)
    assert dialogue.send(SkipBytes(7)) == "skip_beyond_peer"
    assert dialogue.send(SkipBytes(6), raw(1), SkipBytes(1)) == "p5+6 p5+7 skip_beyond_peer"
    assert dialogue.send(SkipBytes(0)) == "p5+7", "that is nothing"
    dialogue.receiver.send_bytes(4, 10)
    assert dialogue.send(SkipBytes(4)) == "payload_overrun"
    assert dialogue.send(SkipBytes(3)) == "m6"


def test_apologies() -> None:
    dialogue = Dialogue(PLAN)
    assert dialogue.send(Apology()) == "apology_without_data"
    assert dialogue.send(METADATA, Apology(), METADATA, Apology(), Apology()) == "m5 m4 m5 m4 apology_repeated"
    assert dialogue.send(METADATA, METADATA, raw(3), Apology()) == "m5 p5 p5+3 p5"
    assert dialogue.send(raw(10), Apology(), raw(10)) == "m6 p5 m6"
    for _ in range(2):
        dialogue.receiver.pass_over(2)
    assert dialogue.send(Notify(), Apology()) == "p6 apology_without_data"
    dialogue.receiver.pass_over(1)
    assert dialogue.send(SkipBytes(4), Apology()) == "p6+4 apology_without_data"
    assert dialogue.send(raw(2), SkipBytes(4), Apology()) == "p6+6 end p6"


def test_a_backlink_is_left_out_where_it_is_known() -> None:
    dialogue = Dialogue(Plan(13, 4, 13, 13))
    assert pieces(dialogue.sender.plan) == "m4 m13 p13"
    assert dialogue.sender.has_backlink()
    dialogue.send(METADATA)
    assert dialogue.sender.has_backlink()
    near = Dialogue(Plan(7, 7, 8, 8))
    assert not near.sender.has_backlink()
    near.send(METADATA, raw(10))
    assert not near.sender.has_backlink()
    # What was retracted was not sent, nor what was only notified of.
    far = Dialogue(Plan(8, 8, 9, 9))
    assert far.sender.has_backlink()
    notified = Dialogue(Plan(7, 7, 8, 8), Settings(Eagerness.NOTIFY))
    notified.send(Notify(2))
    assert notified.sender.has_backlink()
    retracted = Dialogue(Plan(11, 11, 12, 12, offset=0))
    retracted.send(raw(10))
    assert retracted.sender.has_backlink()
    retracted.send(METADATA, Apology())
    assert retracted.sender.has_backlink()
    assert retracted.sender.metadata == ()


@pytest.mark.parametrize("last", Sent)
def test_every_state_and_packet(last: Sent) -> None:
    """An apology depends on what was sent last, and nothing else does."""
    packets: list[DataPacket] = [METADATA, raw(1), lz(1), SMALL, MISSING, SkipBytes(1), Notify(), Apology(), Switch(0)]
    for packet in packets:
        for index in range(6):
            dialogue = Dialogue(PLAN)
            dialogue.sender.pass_over(index)
            free = judge(packet, dialogue.turn())
            dialogue.sender.last = last
            rule = judge(packet, dialogue.turn())
            if isinstance(packet, Apology):
                expected = {Sent.NOTHING: "apology_without_data", Sent.APOLOGY: "apology_repeated"}
                assert rule == expected.get(last)
            else:
                assert rule == free
            assert rule is None or rule in [name for name, _ in JUDGED[type(packet)]]


def test_pieces_are_called_as_in_the_tables() -> None:
    assert (str(Piece(4, False)), str(Piece(10, True))) == ("m4", "p10")


SESSIONS = sorted((Path(__file__).parents[3] / "vectors" / "bamboo" / "sessions").glob("*.json"))
ROLES = {"a": Role.PROACTIVE, "b": Role.REACTIVE}


def packets_of(vector: dict[str, Any]) -> dict[tuple[str, str], list[PointToPoint]]:
    """What each side says at set-up and on each channel."""
    bymux = Bymux(agreed(0, 1, by_creation=True))
    found: dict[tuple[str, str], list[PointToPoint]] = {}
    readers = {(role, channel): ChannelReader(channel) for role in Role for channel in Channel}
    sent = {side: base64.b64decode(vector["stream"][side]["b64"]) for side in ROLES}
    begin = {}
    for side, data in sent.items():
        setup = decode_setup(data)
        assert setup is not None
        assert setup.packet is not None
        found[side, "setup"], begin[side] = [setup.packet], setup.byte_end
    at = dict.fromkeys(ROLES, 0)
    for _, side, size in vector["segments"]:
        data = sent[side][max(at[side], begin[side]) : at[side] + size]
        at[side] += size
        for item in bymux.receive(ROLES[side], data):
            if isinstance(item, Delivered) and item.channel is not None:
                received = readers[item.role, item.channel].receive(item.data)
                assert all(one.rule is None for one in received)
                found.setdefault((side, item.channel), []).extend(
                    one.packet for one in received if one.packet is not None
                )
    assert bymux.ended_by is None
    return found


class Replication:
    """As much of a session as moves cursors: proposals and adjusts as they come, sizes from metadata."""

    def __init__(self) -> None:
        self.cursors: dict[tuple[str, int], Cursor] = {}
        self.settings: dict[tuple[str, int], Settings] = {}
        self.sizes: dict[tuple[int, int], int] = {}
        self.current: dict[str, int] = {}

    def take(self, side: str, packet: PointToPoint) -> tuple[str, str] | None:
        """The sender's places before and after a packet that moves its cursor; or a rule, and nothing."""
        if isinstance(packet, Propose):
            for one in ROLES:
                self.cursors[one, packet.id] = Cursor.begin(Plan.of(packet))
                self.settings[one, packet.id] = Settings.of(packet) if one == side else Settings()
        elif isinstance(packet, Adjust):
            self.settings[side, packet.id] = self.settings[side, packet.id].adjusted(packet)
            for one in ROLES:
                self.cursors[one, packet.id].adjust(self.cursors[one, packet.id].plan.adjusted(packet))
        elif isinstance(packet, Switch):
            self.current[side] = packet.id
        elif type(packet) in JUDGED:
            return self.move(side, cast("DataPacket", packet))
        return None

    def move(self, side: str, packet: DataPacket) -> tuple[str, str]:
        number = self.current[side]
        other = "b" if side == "a" else "a"
        sender = self.cursors[side, number]
        turn = Turn(
            sender,
            self.cursors[other, number],
            self.settings[other, number],
            lambda seq: self.sizes.get((number, seq)),
        )
        before, rule = str(sender), judge(packet, turn)
        if rule is not None:
            return rule, ""
        if isinstance(packet, Metadata):
            assert sender.piece is not None
            assert sender.has_backlink() == (packet.backlink is not None)
            self.sizes[number, sender.piece.seq] = packet.payload_size
        move(packet, turn)
        return before, str(sender)


@pytest.mark.parametrize("session", SESSIONS, ids=lambda session: session.stem)
def test_sessions_of_the_vectors(session: Path) -> None:
    """Every packet moves the cursor as the vector says, up to the violation if that is one of turns and settings."""
    vector: dict[str, Any] = json.loads(session.read_text())
    packets = packets_of(vector)
    replication = Replication()
    violation = vector["expected"]["violation"]
    for step in vector["expected"]["steps"]:
        packet = packets[step["dir"], step["chan"]].pop(0)
        assert (kind_of(packet), len(encode(packet))) == (step["kind"], step["size"])
        assert encode(packet).hex().startswith(step["hex"].rstrip("."))
        moved = replication.take(step["dir"], packet)
        if violation is not None and violation["step"] == step["i"]:
            assert moved == (violation["invariant"], "") or violation["invariant"] not in MOVING
        elif moved is not None:
            assert moved == (step["before"], step["after"])
    assert not any(packets.values())


MOVING = {name for rules in JUDGED.values() for name, _ in rules}
