"""Sessions over two connections: which belong together, and that they say what one connection would."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codecs.bamboo.log.test_log import LATE_NS, SECOND, VECTORS, from_vector, kinds, rules, told
from tests.codecs.bamboo.log.test_log import segments as over_bymux
from tests.codecs.bamboo.session.peers import SAFE, confirm, layer, metadata, over, propose, raw
from tests.codecs.bamboo.simulator.simulated import judge
from tests.support.landed import carried, landed_packets, read_log, segments
from wirehouse_codecs.bamboo.inspection import inspect
from wirehouse_codecs.bamboo.log.schema import SCHEMA, starter
from wirehouse_codecs.bamboo.options import ORDER, TWO_CONNECTIONS, BambooOptions
from wirehouse_codecs.bamboo.setup import Setup
from wirehouse_codecs.bamboo.simulator.simulator import SimulatorConfig
from wirehouse_codecs.bamboo.wire.bymux_packets import Packet
from wirehouse_codecs.bamboo.wire.encoding import encode
from wirehouse_codecs.bamboo.wire.messages import (
    Adjust,
    Cancel,
    CancelReason,
    Metadata,
    PointToPoint,
    ProposalCredit,
    RawPayload,
    SkipPayload,
    SkipReason,
    Switch,
)
from wirehouse_codecs.bamboo.wire.reader import Layer, Reader
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.logs.inspection import MESSAGE, VIOLATION
from wirehouse_codecs.simulate import script as conversations
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket
from wirehouse_codecs.simulate.script import Close, Conversation, Disturbances, Send
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.packets import PSH

A, B = Direction.CLIENT, Direction.SERVER
CONTROL, DATA = Endpoint("10.0.0.2", 9_000), Endpoint("10.0.0.2", 9_001)
Row = dict[str, Any]
Said = list[tuple[Direction, PointToPoint]]


def options(**changed: Any) -> BambooOptions:
    ports: dict[str, Any] = {"transport": TWO_CONNECTIONS, "control_port": CONTROL.port, "data_port": DATA.port}
    return BambooOptions(**(ports | {"client_setup": SAFE, "server_setup": SAFE} | changed))


def replicated(log: Any, last: int = 4, number: int = 0, **asked: Any) -> Said:
    """The server sends entries 1 to `last`."""
    said: Said = [(A, ProposalCredit(4)), (B, ProposalCredit(4))]
    said += [(A, propose(log, number, end=last, upper_info=last, **asked)), (B, confirm(number)), (B, Switch(number))]
    for seq in range(1, last + 1):
        said += [(B, metadata(log.entries[seq])), (B, raw(log.payloads[seq]))]
    cancels = [(B, CancelReason.END_REACHED), (A, CancelReason.CONFIRMING)]
    return said + [one for side, why in cancels for one in ((side, Cancel(why, number)), (side, over(number)))]


def dialogue(
    said: Said, *, port: int = 40_000, at_ns: int = SECOND, closes: bool = True, **script: Any
) -> list[Conversation]:
    """Both connections of a session in which the sides say so, one packet a second."""
    sent: dict[Endpoint, list[Any]] = {CONTROL: [], DATA: []}
    times = count(at_ns + SECOND, SECOND)
    for side, packet in said:
        sent[DATA if layer(packet) is Layer.DATA else CONTROL].append(Send(next(times), side, encode(packet)))
    for events_ in sent.values():
        if closes:
            events_.append(Close(next(times), A))
    ends = [(CONTROL, port), (DATA, port + 1)]
    return [
        Conversation(Endpoint("10.0.0.1", client), server, at_ns + n, sent[server], **script)
        for n, (server, client) in enumerate(ends)
    ]


def captured(*talks: list[Conversation], keep: Callable[[int], bool] = lambda _: True) -> list[CapturedPacket]:
    sent = conversations.merge(conversations.packets(one) for dialogue in talks for one in dialogue)
    return [packet for number, packet in enumerate(sent) if keep(number)]


def logged(packets: Sequence[CapturedPacket], cuts: Iterable[int] = (), **changed: Any) -> list[Row]:
    """The rows of the log, with windows that begin at the packets in `cuts`; each goes on from carried state."""
    rows: list[Row] = []
    held: dict[bytes, str | None] = {}
    given = sorted(segments(landed_packets(packets), CONTROL.port, DATA.port), key=itemgetter("record_number"))
    ends = [*(given[cut]["arrived_at_ns"] - 1 for cut in sorted(set(cuts))), LATE_NS]
    begin = -1
    for end in ends:
        new = [row for row in given if begin < row["arrived_at_ns"] <= end]
        states = [carried(flow, state) for flow, state in held.items()]
        rows += read_log([*states, *new], starter(options(**changed)), SCHEMA, {"0": end})
        for row in rows:
            if row["row_kind"] == "state":
                held[row["flow"]] = row["state"]
        held = {flow: state for flow, state in held.items() if state is not None}
        begin = end
    return rows


def of_kind(rows: Iterable[Row], kind: str) -> list[Row]:
    return [row for row in rows if row["row_kind"] == kind]


def newest(rows: Iterable[Row], kind: str) -> list[Row]:
    return list({(row["connection_id"], row["proposal_number"]): row for row in of_kind(rows, kind)}.values())


@pytest.fixture(scope="session")
def said(make_log: Callable[..., Any]) -> Said:
    return replicated(make_log(4))


def test_two_connections_are_one_session(said: Said) -> None:
    rows = logged(captured(dialogue(said)))
    found = kinds(rows)
    assert (found["entry"], found["violation"], found["quarantine"], found["connection"]) == (4, 0, 0, 2)
    (session,), (proposal,) = of_kind(rows, "session"), of_kind(rows, "proposal")
    by_port = {row["connection"]["server_port"]: row["connection_id"] for row in of_kind(rows, "connection")}
    assert session["connection_id"] == proposal["connection_id"] == by_port[CONTROL.port]
    assert session["session"]["data_connection_id"] == by_port[DATA.port]
    assert (session["session"]["closed"], session["session"]["client"]["send_mode"]) == ("fin", "safe")
    assert (proposal["proposal"]["outcome"], proposal["proposal"]["server"]["sent"]["payloads"]) == ("cancelled", 4)
    channels = {(row["channel"], row["connection_id"]) for row in of_kind(rows, "message")}
    assert channels == {("control", by_port[CONTROL.port]), ("data", by_port[DATA.port])}


def packets_of(vector: str) -> Said:
    """What the sides of a session over bymux say, without the set-ups."""
    reader = Reader(BambooOptions())
    said: Said = []
    for side, data in from_vector(vector):
        reads = reader.receive(side, data, Place(1, 1, b"c", 1))
        packets = [read.packet for read in reads if read.layer in (Layer.CONTROL, Layer.DATA)]
        said += [(side, packet) for packet in packets if packet is not None and not isinstance(packet, Packet)]
    return said


def content(rows: Iterable[Row]) -> list[Any]:
    """What both channels say, and what is found in it, in order of arrival."""
    told = [
        row for row in rows if row["row_kind"] in ("message", "violation") and row["channel"] in ("control", "data")
    ]
    about = ("channel", "direction", "proposal_number", "finding")
    fields = ("kind", "cursor_before", "cursor_after", "entry_hash")
    return [
        [*(row[name] for name in about), *((row["message"] or {}).get(name) for name in fields)]
        for row in sorted(told, key=lambda row: row["arrived_at_ns"])
    ]


def set_up(rows: Iterable[Row]) -> dict[str, Any]:
    """The options that say what the set-ups of a connection did."""
    setups = [row for row in rows if row["channel"] == "setup" and row["row_kind"] == "message"]
    return {
        f"{row['direction']}_setup": Setup(
            *(row["message"][name] for name in ("sends_greedily", "receives_greedily")),
            *(int(row["message"][name]) for name in ("send_window", "receive_window")),
        )
        for row in setups
    }


@pytest.mark.parametrize("name", [path.stem for path in VECTORS])
def test_a_session_is_the_same_over_bymux_and_over_two_connections(name: str) -> None:
    said = packets_of(name)
    one = told(over_bymux(from_vector(name)))
    assert content(logged(captured(dialogue(said)), **set_up(one))) == content(one)


@settings(max_examples=25)
@given(data=st.data())
def test_windows_cut_anywhere_give_the_same_rows(said: Said, data: st.DataObject) -> None:
    whole = captured(dialogue(said), dialogue(said, port=40_500, at_ns=8 * SECOND, closes=data.draw(st.booleans())))
    lost = data.draw(st.sets(st.integers(0, len(whole) - 1), max_size=1))
    kept = [packet for number, packet in enumerate(whole) if number not in lost]
    cuts = data.draw(st.sets(st.integers(1, len(kept) - 1), max_size=4))
    assert comparable(logged(kept, cuts)) == comparable(logged(kept))


@pytest.mark.parametrize("cuts", [(), (1,), (2,), (3,), (1, 2, 3, 4)], ids=str)
def test_a_connection_whose_syn_is_captured_late_is_still_in_its_pair(said: Said, cuts: tuple[int, ...]) -> None:
    whole = captured(dialogue(said))
    first = next(packet for packet in whole if port_of(packet) == CONTROL.port and packet.data[47] & PSH)
    moved = [first, *(packet for packet in whole if packet is not first)]
    moved = [packet._replace(ts_ns=one.ts_ns) for packet, one in zip(moved, whole, strict=True)]
    rows, expected = logged(moved, cuts), logged(whole)
    names = ("direction", "byte_start", "byte_end", "channel")
    for kind in ("message", "entry", "quarantine", "violation"):
        there, here = ([[row[name] for name in names] for row in of_kind(one, kind)] for one in (expected, rows))
        assert sorted(map(str, here)) == sorted(map(str, there))
    assert [row["session"]["closed"] for row in newest(rows, "session")] == ["fin"]


def port_of(packet: CapturedPacket) -> int:
    """The server's port, if it is the receiver."""
    return int.from_bytes(packet.data[36:38], "big")


def comparable(rows: list[Row]) -> list[str]:
    """The rows of what happened, and the newest one of each entity."""
    entities = [row for kind in ("session", "proposal") for row in newest(rows, kind)]
    happened = [row for row in rows if row["row_kind"] not in ("session", "proposal", "state", "connection")]
    return sorted(map(repr, [*happened, *entities]))


def test_inspect_gives_the_rows_of_the_log(said: Said, make_log: Callable[..., Any]) -> None:
    other = replicated(make_log(2, log_id=7), 2)
    packets = captured(
        dialogue(said),
        dialogue(other, port=41_000, at_ns=4 * SECOND),
        dialogue(said[4:], port=42_000, at_ns=9 * SECOND),
    )
    looked = list(inspect(landed_packets(packets), options=options()))
    rows = logged(packets)

    def place(row: Row) -> Any:
        return (row["direction"], row["byte_start"], row["byte_end"], row["record_number"])

    seen = sorted(place(row) for kind, row in looked if kind == MESSAGE)
    assert seen == sorted(place(row) for row in of_kind(rows, "message"))
    found = sorted(row["rule"] for kind, row in looked if kind == VIOLATION)
    assert found == sorted(rules(rows)) != []


@pytest.mark.parametrize("pairs", ["order", "next_port"])
def test_pairs_of_the_same_addresses_are_told_apart(said: Said, make_log: Callable[..., Any], pairs: str) -> None:
    other = replicated(make_log(2, log_id=7), 2)
    first, second = dialogue(said), dialogue(other, port=41_000, at_ns=SECOND + 10)
    rows = logged(captured(first, second), pairs=pairs)
    assert rules(rows) == []
    assert [row["proposal"]["server"]["sent"]["payloads"] for row in of_kind(rows, "proposal")] == [2, 4]


def test_ports_tell_pairs_whose_order_does_not(said: Said, make_log: Callable[..., Any]) -> None:
    (control, data), (control_2, data_2) = dialogue(said), dialogue(replicated(make_log(2, log_id=7), 2), port=41_000)
    late = Conversation(data.client, data.server, SECOND + 500, data.events)
    packets = captured([control, late], [control_2, data_2])
    assert rules(logged(packets, pairs="next_port")) == []
    assert rules(logged(packets, pairs=ORDER)) != []


def test_a_violation_ends_the_reading_of_both(said: Said) -> None:
    bad: Said = [*said[:6], said[5], (B, Switch(0)), (A, ProposalCredit(1))]
    rows = logged(captured(dialogue(bad)))
    assert rules(rows) == ["bamboo.out_of_turn"]
    rest = [
        (row["direction"], row["finding"]["message"], row["byte_end"] - row["byte_start"])
        for row in of_kind(rows, "quarantine")
    ]
    assert sorted(rest) == [("client", "after_violation", 2), ("server", "after_violation", 2)]


def test_data_without_its_control_channel(said: Said) -> None:
    _, data = dialogue(said)
    rows = logged(captured([data]))
    assert rules(rows) == []
    assert kinds(rows)["message"] == len([packet for _, packet in said if layer(packet) is Layer.DATA])
    assert (kinds(rows)["session"], kinds(rows)["entry"]) == (0, 0)


def test_a_control_channel_without_its_data(said: Said) -> None:
    control, _ = dialogue(said)
    rows = logged(captured([control]))
    assert rules(rows) == []
    assert [row["session"]["data_connection_id"] for row in of_kind(rows, "session")] == [None]


def test_what_the_capture_lacks_was_said_by_the_rules(said: Said) -> None:
    notes = {"link_unknown", "history_unknown", "proposal_not_answered", "truncated_packet", "hole"}
    whole = captured(dialogue(said))
    for lost in range(len(whole)):
        for kept in (whole[:lost] + whole[lost + 1 :], whole[lost:]):
            assert {rule.partition(".")[2] for rule in rules(logged(kept))} <= notes, lost


def test_a_pair_outlives_one_of_its_connections(said: Said) -> None:
    control, data = dialogue(said)
    early = Conversation(
        control.client, control.server, control.opened_ns, [*list(control.events)[:4], Close(6 * SECOND, A)]
    )
    packets = captured([early, data])
    whole = logged(packets)
    assert kinds(whole)["entry"] == 4
    for cut in range(1, len(packets)):
        assert comparable(logged(packets, [cut])) == comparable(whole)


@pytest.mark.parametrize("seed", [13, 148])
def test_with_holes_nobody_is_blamed(seed: int) -> None:
    """The end-of-log entry, sent on the other connection, that a cancel speaks of is missing."""
    config = SimulatorConfig(seed=seed, transport=TWO_CONNECTIONS, connections=2, logs=1, entries=30, ways=8)
    judged = judge(config, Disturbances(seed=seed, lost=0.05))
    assert set(judged.severities) == {"note"}


def test_that_the_end_is_reached_is_judged_when_all_is_said(make_log: Callable[..., Any]) -> None:
    """A cancel may overtake the data that was sent before it, over another connection."""
    said = replicated(make_log(4))
    at = next(n for n, (_, packet) in enumerate(said) if isinstance(packet, Cancel))
    assert said[at][1] == Cancel(CancelReason.END_REACHED, 0)
    early = [*said[:5], said[at], *said[5:at], *said[at + 1 :]]
    assert rules(logged(captured(dialogue(early)))) == []
    never = [one for one in said if not isinstance(one[1], RawPayload | Metadata)]
    assert rules(logged(captured(dialogue(never)))) == ["bamboo.cancel_reason_untrue"]


def test_what_a_message_of_the_other_connection_may_have_allowed_is_judged_at_the_end(
    make_log: Callable[..., Any],
) -> None:
    """An adjust that lets payloads be skipped is late, is missing, or was never sent."""
    said = replicated(make_log(4), 2, mandatory=True)
    at = next(n for n, (_, packet) in enumerate(said) if isinstance(packet, RawPayload))
    skips: Said = [*said[:at], (B, SkipPayload(SkipReason.UNAVAILABLE)), *said[at + 1 :]]
    allows = (A, Adjust(0, may_skip=True))
    cancelled = next(n for n, one in enumerate(skips) if isinstance(one[1], Cancel))
    for late in range(at, cancelled + 1):
        assert rules(logged(captured(dialogue([*skips[:late], allows, *skips[late:]])))) == []
    assert rules(logged(captured(dialogue(skips, closes=False)))) == []
    whole = captured(dialogue(skips))
    rows = logged(whole)
    assert rules(rows) == ["bamboo.skip_of_mandatory_payload"]
    (found,) = of_kind(rows, "violation")
    assert (found["channel"], found["direction"], found["proposal_number"]) == ("data", "server", 0)
    assert newest(rows, "session")[0]["session"]["ended_by"] == "skip_of_mandatory_payload"
    for cut in range(1, len(whole), 3):
        assert comparable(logged(whole, [cut])) == comparable(rows)
    allowed = captured(dialogue([*skips[:at], allows, *skips[at:]]))
    (lost,) = (n for n, packet in enumerate(allowed) if packet.data.endswith(encode(allows[1])))
    assert "bamboo.skip_of_mandatory_payload" not in rules(logged([*allowed[:lost], *allowed[lost + 1 :]]))


def test_a_switch_that_comes_before_its_proposal_breaks_no_rule(said: Said) -> None:
    at = next(n for n, (_, packet) in enumerate(said) if isinstance(packet, Switch))
    early: Said = [*said[: at - 2], said[at], *said[at - 2 : at], *said[at + 1 :]]
    assert rules(logged(captured(dialogue(early)))) == []
    never: Said = [*said[:at], (B, Switch(2)), *said[at + 1 :]]
    assert rules(logged(captured(dialogue(never)))) == ["bamboo.switch_inactive"]


@pytest.mark.parametrize(("knew", "found"), [(True, ["bamboo.cancel_or_adjust_inactive"]), (False, [])])
def test_who_had_not_received_what_drops_its_proposal_still_speaks_of_it(
    make_log: Callable[..., Any], knew: bool, found: list[str]
) -> None:
    log = make_log(8)
    less, rival = propose(log, 0, start=5, lower_info=5, end=6, upper_info=6), propose(log, 1, end=8)
    said: Said = [(A, ProposalCredit(4)), (B, ProposalCredit(4)), (A, less), (B, rival)]
    said.append((A, Cancel(CancelReason.RESOURCES, 0)))
    given = segments(landed_packets(captured(dialogue(said, closes=False))), CONTROL.port, DATA.port)
    rows = sorted(given, key=itemgetter("record_number"))
    if not knew:
        sent = [row for row in rows if row["payload"]]
        at = rows.index(next(row for row in sent if row["payload"] == encode(rival)))
        cancel = next(row for row in sent if row["payload"] == encode(said[-1][1]))
        cancel["acknowledgment"] -= len(encode(rival))
        rows = [row for row in rows if row["direction"] != A or row["payload"] or rows.index(row) < at]
    told = of_kind(read_log(rows, starter(options()), SCHEMA), "violation")
    assert [row["finding"]["rule"] for row in told if row["finding"]["severity"] == "violation"] == found
