"""bymux: the vectors, the table walked whole, and both sides cut anywhere."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.carried import as_text, carry
from wirehouse_codecs.bamboo.setup import INFINITE, VANILLA, Channel, Role, Start, agreed
from wirehouse_codecs.bamboo.wire.bymux import JUDGED, TRANSITIONS, Bymux, Delivered, Input, Received, State
from wirehouse_codecs.bamboo.wire.bymux_packets import Packet, Type, encode, write

VECTORS = json.loads((Path(__file__).parents[3] / "vectors" / "bamboo" / "bymux.json").read_text())["vectors"]
ROLES = {"a": Role.PROACTIVE, "b": Role.REACTIVE}
P, R = Role.PROACTIVE, Role.REACTIVE


class Dialogue:
    """Both sides in turn. Before each input the machine is restored from its snapshot as well."""

    def __init__(self, start: Start = VANILLA, **options: Any) -> None:
        self.start, self.options = start, options
        self.bymux = Bymux(start, **options)
        self.taken: list[Received | Delivered] = []

    def send(self, role: Role, data: bytes) -> Dialogue:
        restored = Bymux(self.start, state=carry(self.bymux.state), **self.options)
        taken = self.bymux.receive(role, data)
        assert restored.receive(role, data) == taken
        assert restored.state == self.bymux.state
        self.taken += taken
        return self

    def p(self, *packets: Packet | bytes) -> Dialogue:
        for packet in packets:
            self.send(P, packet if isinstance(packet, bytes) else encode(packet))
        return self

    def r(self, *packets: Packet | bytes) -> Dialogue:
        for packet in packets:
            self.send(R, packet if isinstance(packet, bytes) else encode(packet))
        return self

    @property
    def rules(self) -> list[str]:
        return [one.rule.name for taken in self.taken if isinstance(taken, Received) for one in taken.broken]

    @property
    def ended_by(self) -> str | None:
        return None if self.bymux.ended_by is None else self.bymux.ended_by.name

    def content(self, role: Role, channel: Channel | None) -> bytes:
        delivered = [one for one in self.taken if isinstance(one, Delivered)]
        return b"".join(one.data for one in delivered if (one.role, one.channel) == (role, channel))


def preset(vector: dict[str, Any]) -> Start:
    if vector["preset"] is None:
        return VANILLA
    credit = vector["preset"]["credit"]
    named = {"inf": INFINITE}
    return Start(
        {
            stream: {ROLES[side]: named.get(credit[side][str(stream)], credit[side][str(stream)]) for side in ROLES}
            for stream in vector["preset"]["streams"]
        },
        {},
    )


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "byte by byte"])
@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_vectors(vector: dict[str, Any], whole: bool) -> None:
    dialogue = Dialogue(preset(vector))
    for event in vector["events"]:
        data = bytes.fromhex(event["hex"])
        assert dialogue.ended_by is None
        for piece in [data] if whole else [data[at : at + 1] for at in range(len(data))]:
            dialogue.send(ROLES[event["dir"]], piece)
    assert dialogue.ended_by == vector["error"]
    assert (dialogue.ended_by is None) == vector["ok"]


def test_packets_as_the_specification_writes_them() -> None:
    assert write(1, b"hi").hex() == "2001026869"
    assert encode(Packet(Type.CREDIT, 1, 300, id_width=4)).hex() == "0900000001012c"
    assert encode(Packet(Type.WRITE, None, 4)).hex() == "3004"
    assert encode(Packet(Type.WRITE, None, 2, amount_width=2)).hex() == "310002"
    assert encode(Packet(Type.PONG)).hex() == "70"
    assert encode(Packet(Type.STOP_READ, 1)).hex() == "a001"


@pytest.mark.parametrize(
    ("packet", "content"),
    [
        (Packet(Type.PING, 1, 5), b""),
        (Packet(Type.CREDIT, 1), b""),
        (Packet(Type.WRITE, 1, 5), b"four"),
        (Packet(Type.CREDIT, 256, 5, id_width=1), b""),
        (Packet(Type.CREDIT, -1, 5), b""),
        (Packet(Type.CREDIT, 1, 1 << 64), b""),
        (Packet(Type.CREDIT, 1, 5, amount_width=3), b""),
    ],
)
def test_packets_that_cant_be_written(packet: Packet, content: bytes) -> None:
    with pytest.raises(ValueError, match=r"can't be written|of amount"):
        encode(packet, content)


numbers = st.integers(0, 300) | st.integers(0, INFINITE)


packets = st.one_of(
    st.builds(write, st.integers(0, 2), st.binary(max_size=5)),
    st.builds(encode, st.builds(Packet, st.just(Type.CREDIT), st.none() | st.integers(0, 2), numbers)),
    st.builds(encode, st.builds(Packet, st.just(Type.WRITE), st.none(), st.integers(0, 5))),
    st.builds(encode, st.builds(Packet, st.sampled_from(list(Type)[2:]), st.none() | st.integers(0, 2))),
    st.binary(max_size=4),
)


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(Role), packets), max_size=12), st.data())
def test_cut_anywhere_it_is_the_same(sent: list[tuple[Role, bytes]], data: st.DataObject) -> None:
    start = agreed(0, 1, by_creation=True)
    whole, cut = Bymux(start), Dialogue(start)
    taken = [one for role, piece in sent for one in whole.receive(role, piece)]
    for role, piece in sent:
        at = data.draw(st.integers(0, len(piece)))
        cut.send(role, piece[:at]).send(role, piece[at:])
    assert [one for one in cut.taken if isinstance(one, Received)] == [
        one for one in taken if isinstance(one, Received)
    ]
    assert cut.bymux.ended_by == whole.ended_by
    if whole.ended_by is None:
        assert cut.bymux.state == whole.state
    for role in Role:
        spans = [(one.byte_start, one.byte_end) for one in taken if isinstance(one, Received) and one.role is role]
        assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(spans))


#: A packet for each input, about stream 0.
SAID = {
    Input.CREDIT: encode(Packet(Type.CREDIT, 0, 1)),
    Input.WRITE: write(0, b"x"),
    Input.PING: encode(Packet(Type.PING, 0)),
    Input.PONG: encode(Packet(Type.PONG, 0)),
    Input.CLOSE: encode(Packet(Type.CLOSE, 0)),
    Input.STOP_READ: encode(Packet(Type.STOP_READ, 0)),
    Input.GLOBAL_CREDIT: encode(Packet(Type.CREDIT, None, 1)),
    Input.CREATE: encode(Packet(Type.WRITE, None, 2)),
    Input.GLOBAL_PING: encode(Packet(Type.PING)),
    Input.GLOBAL_PONG: encode(Packet(Type.PONG)),
    Input.GLOBAL_CLOSE: encode(Packet(Type.CLOSE)),
    Input.GLOBAL_STOP_READ: encode(Packet(Type.STOP_READ)),
}
#: Those about creating streams, or the connection.
GLOBAL = {said for said in Input if said.value.startswith("global")}
CLOSES = {
    False: (SAID[Input.CLOSE], SAID[Input.STOP_READ]),
    True: (SAID[Input.GLOBAL_CLOSE], SAID[Input.GLOBAL_STOP_READ]),
}


@pytest.mark.parametrize("said", Input, ids=lambda said: said.value)
@pytest.mark.parametrize("state", State, ids=lambda state: state.value)
def test_every_state_and_input(state: State, said: Input) -> None:
    is_global = said in GLOBAL
    dialogue = Dialogue(Start({0: dict.fromkeys(Role, 5)}, {}))
    dialogue.r(encode(Packet(Type.CREDIT, None, 3)))
    close, stop = CLOSES[is_global]
    ways = {State.OPEN: (), State.CLOSED: (close,), State.STOPPED: (stop,), State.ENDED: (close, stop)}
    dialogue.p(*ways[state])
    stream = dialogue.bymux.creation if is_global else dialogue.bymux.streams[0]
    assert stream.states[P] is state
    dialogue.p(SAID[said])
    after = TRANSITIONS.get((state, said))
    if after is None:
        assert dialogue.ended_by == JUDGED[said].unlisted
    else:
        assert dialogue.ended_by is None
        assert stream.states[P] is after


@pytest.mark.parametrize("kind", [Type.PING, Type.PONG])
def test_a_global_ping_or_pong_may_come_until_its_side_has_ended(kind: Type) -> None:
    said = encode(Packet(kind))
    dialogue = Dialogue(Start({0: {}}, {})).p(*CLOSES[True]).r(CLOSES[True][0], said)
    assert dialogue.ended_by is None, "the other side may still say it"
    assert dialogue.p(said).rules == ["ping_after_end"]
    assert Dialogue(Start({0: {}}, {})).p(*CLOSES[False], said).ended_by is None, "that is of a stream"


def credits_of(dialogue: Dialogue, stream: int) -> dict[Role, int]:
    return dialogue.bymux.streams[stream].credit


def test_credit_is_spent_by_bytes_and_may_be_infinite() -> None:
    dialogue = Dialogue(Start({0: {P: 3, R: INFINITE}}, {}))
    dialogue.p(write(0, b"ab")).r(write(0, b"x" * 500))
    assert credits_of(dialogue, 0) == {P: 1, R: INFINITE}
    dialogue.r(encode(Packet(Type.CREDIT, 0, INFINITE - 1)))
    assert credits_of(dialogue, 0)[P] == INFINITE
    dialogue.r(encode(Packet(Type.CREDIT, 0, 0))).p(write(0, b"more than one"))
    assert dialogue.ended_by is None
    dialogue.r(encode(Packet(Type.CREDIT, 0, 1)))
    assert dialogue.ended_by == "credit_on_infinite"


def test_a_credit_of_0_is_infinite_but_for_creating() -> None:
    dialogue = Dialogue(Start({0: {}}, {})).p(encode(Packet(Type.CREDIT, 0, 0)))
    assert credits_of(dialogue, 0) == {P: 0, R: INFINITE}
    dialogue.p(encode(Packet(Type.CREDIT, None, 0))).r(encode(Packet(Type.WRITE, None, 1)))
    assert dialogue.ended_by == "create_without_credit"


@pytest.mark.parametrize(
    ("rule", "reactive", "proactive"),
    [
        ("write_without_credit", (), write(0, b"abcdef")),
        # It comes before the rule of the state.
        ("write_without_credit", (), SAID[Input.CLOSE] + write(0, b"abcdef")),
        ("write_after_close", (), SAID[Input.CLOSE] + write(0, b"abcde")),
        ("credit_overflow", (), encode(Packet(Type.CREDIT, 0, INFINITE - 4))),
        ("global_credit_overflow", (), 2 * encode(Packet(Type.CREDIT, None, 1 << 63))),
        ("stream_id_parity", (SAID[Input.GLOBAL_CREDIT],), encode(Packet(Type.WRITE, None, 3))),
        ("stream_id_in_use", (SAID[Input.GLOBAL_CREDIT],), encode(Packet(Type.WRITE, None, 0))),
        ("unknown_stream", (), encode(Packet(Type.CLOSE, 7))),
        ("unknown_type", (), b"\xd0"),
        ("unknown_type", (), b"\xff"),
    ],
)
def test_rules_before_the_state(rule: str, reactive: tuple[bytes, ...], proactive: bytes) -> None:
    dialogue = Dialogue(Start({0: dict.fromkeys(Role, 5)}, {})).r(*reactive).p(proactive)
    assert dialogue.ended_by == rule
    assert dialogue.rules == [rule]
    before = len(dialogue.taken)
    dialogue.p(SAID[Input.PING]).r(SAID[Input.PING])
    assert len(dialogue.taken) == before


def test_creation_credit_up_to_the_limit_is_a_number() -> None:
    dialogue = Dialogue().r(encode(Packet(Type.CREDIT, None, INFINITE))).p(encode(Packet(Type.WRITE, None, 2)))
    assert dialogue.bymux.creation.credit[P] == INFINITE - 1


def test_an_ended_stream_is_free_again() -> None:
    dialogue = Dialogue(Start({2: {}}, {2: Channel.DATA}))
    close, stop = encode(Packet(Type.CLOSE, 2)), encode(Packet(Type.STOP_READ, 2))
    dialogue.p(close, stop).r(stop)
    assert 2 in dialogue.bymux.streams
    dialogue.r(close, encode(Packet(Type.CREDIT, None, 1)))
    assert dialogue.bymux.streams == {}
    assert dialogue.bymux.channels == {}
    dialogue.p(encode(Packet(Type.WRITE, None, 2)))
    assert dialogue.ended_by is None


def test_what_was_not_answered() -> None:
    dialogue = Dialogue(Start({0: {}, 1: {}}, {}))
    assert dialogue.bymux.not_answered() == []
    dialogue.p(SAID[Input.CLOSE]).r(SAID[Input.GLOBAL_STOP_READ])
    reasons = [one.reason for one in dialogue.bymux.not_answered()]
    assert reasons == ["StopRead of the reactive side, creating streams", "Close of the proactive side, stream 0"]
    dialogue.r(SAID[Input.STOP_READ]).p(SAID[Input.GLOBAL_CLOSE])
    assert dialogue.bymux.not_answered() == []


def test_channels_are_there_or_created() -> None:
    dialogue = Dialogue(agreed(0, 1, by_creation=True)).p(write(0, b"control"))
    assert dialogue.content(P, Channel.CONTROL) == b"control"
    dialogue.r(encode(Packet(Type.CREDIT, 1, 9)), encode(Packet(Type.CREDIT, None, 1))).p(write(1, b"data"))
    assert dialogue.content(P, Channel.DATA) == b"data"
    # Both channels have a stream, so what is created later is none of them.
    dialogue.p(encode(Packet(Type.WRITE, None, 4)))
    assert dialogue.bymux.channels == {0: Channel.CONTROL, 1: Channel.DATA}

    created = Dialogue(agreed(0, 1, by_creation=True)).r(encode(Packet(Type.CREDIT, None, 3)))
    created.p(encode(Packet(Type.WRITE, None, 0)), encode(Packet(Type.WRITE, None, 6)))
    assert created.ended_by is None
    assert created.bymux.channels == {0: Channel.CONTROL, 6: Channel.DATA}

    fixed = Dialogue(agreed(0, 1, by_creation=False)).r(encode(Packet(Type.CREDIT, None, 3)))
    assert fixed.p(encode(Packet(Type.WRITE, None, 0))).ended_by == "stream_id_in_use"


def test_backpressure_of_the_channels() -> None:
    dialogue = Dialogue(VANILLA).r(encode(Packet(Type.CREDIT, None, 3)))
    dialogue.p(encode(Packet(Type.WRITE, None, 0)), encode(Packet(Type.WRITE, None, 2)))
    dialogue.p(encode(Packet(Type.CREDIT, 0, 0)), encode(Packet(Type.CREDIT, 2, 10)))
    assert dialogue.rules == []
    dialogue.r(encode(Packet(Type.CREDIT, 0, 10)), encode(Packet(Type.CREDIT, 2, 0)))
    assert dialogue.rules == ["channel_backpressure_wrong"] * 2


def test_wide_integers_are_noted() -> None:
    dialogue = Dialogue(agreed(0, 1, by_creation=False))
    dialogue.p(encode(Packet(Type.PING, 0, id_width=2)), encode(Packet(Type.CREDIT, 1, 5, amount_width=8)))
    assert dialogue.rules == ["wide_integer"] * 2
    # The width bits of the id mean nothing in a global packet.
    dialogue.p(b"\x5c", b"\x1d\0\5")
    assert dialogue.rules == ["wide_integer"] * 3


def test_a_write_is_told_before_its_bytes_come() -> None:
    dialogue = Dialogue(Start({0: {P: INFINITE}}, {0: Channel.CONTROL}))
    dialogue.p(encode(Packet(Type.WRITE, 0, 0, amount_width=8))[:-8] + (1 << 40).to_bytes(8, "big") + b"begin")
    first, content = dialogue.taken
    assert isinstance(first, Received)
    assert (first.byte_start, first.byte_end) == (0, 10 + (1 << 40))
    assert content == Delivered(P, 0, Channel.CONTROL, 10, b"begin")
    assert dialogue.bymux.unfinished(P)
    assert not dialogue.bymux.unfinished(R)
    assert len(as_text(dialogue.bymux.state)) < 700


def test_streams_beyond_the_limit_are_not_judged() -> None:
    dialogue = Dialogue(VANILLA, max_streams=2).r(encode(Packet(Type.CREDIT, None, 9)))
    dialogue.p(*(encode(Packet(Type.WRITE, None, stream)) for stream in (0, 2, 4)), encode(Packet(Type.CLOSE, 4)))
    assert dialogue.ended_by is None
    assert dialogue.bymux.untracked
    assert set(dialogue.bymux.streams) == {0, 2}
