"""Simulated Wallaroo traffic: legal captures are legal, and every fault breaks its rule and no other."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from operator import itemgetter
from typing import Any

import pytest

from tests.support.searches import fast_first
from tests.support.simulators import assert_never_held, assert_the_same_again
from wirehouse_codecs.captures.pcap import PacketCapture
from wirehouse_codecs.core.errors import OptionError
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.simulate.script import Close, Conversation, Ending, Event, Send, written
from wirehouse_codecs.tcp.endpoints import Direction, Endpoint
from wirehouse_codecs.tcp.events import End
from wirehouse_codecs.tcp.packets import FIN, RST, parse
from wirehouse_codecs.wallaroo.correlation.sessions import Folds
from wirehouse_codecs.wallaroo.dialects import DIALECTS, NOTHING_SEEN
from wirehouse_codecs.wallaroo.frames import (
    Ack,
    EosMessage,
    Flag,
    Frame,
    Hello,
    Message,
    Nack,
    Notify,
    NotifyAck,
    Restart,
)
from wirehouse_codecs.wallaroo.options import WallarooOptions
from wirehouse_codecs.wallaroo.rules import RULE, RULES
from wirehouse_codecs.wallaroo.session.session import Session
from wirehouse_codecs.wallaroo.session.summary import SessionSummary, summarise
from wirehouse_codecs.wallaroo.simulator.connector import PORT
from wirehouse_codecs.wallaroo.simulator.simulator import FAULTS, SimulatorConfig, connections, simulate, write_pcap
from wirehouse_codecs.wallaroo.wire.messages import encode
from wirehouse_codecs.wallaroo.wire.reader import Reader
from wirehouse_codecs.wallaroo.wire.reader_state import Received
from wirehouse_expectations.suites import findings_of

#: The simulator is run at length.
pytestmark = pytest.mark.property

SILVER, FOUND = "silver.wallaroo", "gold.wallaroo_found"
OPTIONS = WallarooOptions()
SMALL = SimulatorConfig(connectors=2, messages_per_connector=200, burst_messages=20, credits=50, refill_at=20)
#: All that may happen to legal traffic.
LIVELY = replace(SMALL, reset_share=0.1, reconnects=3, reopens=3)
SOURCES = [name for name, dialect in DIALECTS.items() if not dialect.sink]


class Judged:
    """What reader and session, and the rules over several sessions, say of conversations."""

    def __init__(self, conversations: Iterable[Conversation]) -> None:
        self.found: Counter[str] = Counter()
        #: Of these the ones that several sessions tell.
        self.together: set[str] = set()
        self.dialects: set[str] = set()
        self.frames: list[tuple[Direction, Frame]] = []
        self.conversations: list[Conversation] = []
        self._records = 0
        summaries = []
        for number, conversation in enumerate(conversations):
            self.conversations.append(conversation)
            summary = self._judge(conversation, number)
            if summary is not None:
                summaries.append(summary)
        folds = Folds()
        for summary in sorted(summaries, key=lambda summary: (summary.ended_ns, summary.connection_id)):
            told = [each.rule.name for each in folds.take(summary)]
            self.found.update(told)
            self.together.update(told)

    def _judge(self, conversation: Conversation, number: int) -> SessionSummary | None:
        late = bool(conversation.captured_from_ns)
        reader = Reader(OPTIONS, started_late=late)
        how, place = End.CAPTURE_END, Place(0, 0, b"", 0)
        received: list[Received] = []
        for event in conversation.events:
            self._records += 1
            if event.ts_ns < conversation.captured_from_ns:
                continue
            place = Place(event.ts_ns, 0, b"", self._records)
            if isinstance(event, Close):
                how = End.CLOSED if event.ending is Ending.FIN else End.RESET
            else:
                received += reader.receive(event.direction, event.data, place)
        received += reader.finish(place, closed=how is not End.CAPTURE_END)
        assert reader.detection is not None
        self.dialects.add(reader.detection.name)
        if reader.dialect is None:
            self.found.update(each.decoded.rule.name for each in received if each.decoded.rule)
            return None
        session = Session(reader.dialect, OPTIONS, started_late=late)
        for each in received:
            self.found.update(found.rule.name for found in session.receive(each).findings)
            if each.decoded.frame is not None:
                self.frames.append((each.direction, each.decoded.frame))
        self.found.update(found.rule.name for found in session.end(how, place))
        return summarise(session.memory, number.to_bytes(4, "big"), str(conversation.server))

    def count(self, kind: type[Frame]) -> int:
        return sum(isinstance(frame, kind) for _, frame in self.frames)


def shown(dialect: str) -> str:
    """The name by which a dialect is told."""
    return "sink" if DIALECTS[dialect].sink else dialect


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("config", [SMALL, LIVELY], ids=["calm", "lively"])
@pytest.mark.parametrize("seed", fast_first(range(4)))
def test_legal_traffic_breaks_no_rule(dialect: str, config: SimulatorConfig, seed: int) -> None:
    judged = Judged(connections(replace(config, dialect=dialect, seed=seed)))
    assert not judged.found
    assert judged.dialects == {shown(dialect)}


@pytest.mark.parametrize("dialect", fast_first(DIALECTS))
@pytest.mark.parametrize(
    "changes",
    [
        {"streams_per_connector": 1},
        {"streams_per_connector": 40, "reopens": 20},
        {"credits": 2, "refill_at": 1},
        {"credits": 7, "refill_at": 6, "burst_messages": 3},
        {"keys": 0, "payload_bytes": 0},
        {"reset_share": 0.5, "messages_per_connector": 100},
        {"checkpoint_ms": 1, "interval_ms": 0},
        {"checkpoint_ms": 5000, "reconnects": 20},
        {"messages_per_connector": 1, "reconnects": 2, "reopens": 2},
    ],
    ids=str,
)
def test_legal_traffic_of_any_shape_breaks_no_rule(dialect: str, changes: dict[str, Any]) -> None:
    assert not Judged(connections(replace(LIVELY, dialect=dialect, seed=11, **changes))).found


CASES = [(name, dialect) for name, fault in FAULTS.items() for dialect in fault.dialects]


@pytest.mark.parametrize(("name", "dialect"), fast_first(CASES, count=2, by=itemgetter(0)))
def test_a_fault_breaks_its_rule_and_no_other(name: str, dialect: str) -> None:
    config = replace(SMALL, dialect=dialect, messages_per_connector=20, fault=name)
    judged, alone, together = Judged(connections(config)), findings_of(SILVER), findings_of(FOUND)
    assert judged.found == Counter({name, *FAULTS[name].also})
    assert alone is not None
    assert together is not None
    assert judged.together <= {rule.name for rule in together.rules}
    assert judged.found.keys() - judged.together <= {rule.name for rule in alone.rules}


def test_every_rule_has_a_fault() -> None:
    assert set(FAULTS) == set(RULE)
    assert list(FAULTS) == [rule.name for rule in RULES]
    assert all(fault.sentence.endswith(".") and fault.dialects for fault in FAULTS.values())
    assert all(fault.also <= set(RULE) for fault in FAULTS.values())


def test_what_may_happen_to_legal_traffic_happens() -> None:
    for dialect in SOURCES:
        judged = Judged(connections(replace(LIVELY, dialect=dialect, reset_share=0.2)))
        calm = Judged(connections(replace(SMALL, dialect=dialect)))
        text = DIALECTS[dialect].byte_order == "little"
        assert judged.count(Nack if text else Restart) > 3
        assert calm.count(Nack) + calm.count(Restart) == 0
        # Each connector lost its connection three times and has a stream more often than it has streams.
        assert len({each.server for each in judged.conversations}) == 1
        assert len(judged.conversations) >= 8
        assert judged.count(Notify) > 3 * len(judged.conversations)
        ends = judged.count(EosMessage) + sum(isinstance(f, Message) and f.has(Flag.EOS) for _, f in judged.frames)
        assert ends == 2 * (3 + LIVELY.reopens)
        assert judged.count(Message) > calm.count(Message) >= 2 * SMALL.messages_per_connector
        assert calm.count(Ack) > 2 * SMALL.messages_per_connector // (SMALL.credits - SMALL.refill_at)


def test_a_replay_repeats_what_was_not_acked() -> None:
    config = replace(SMALL, connectors=1, streams_per_connector=1, reconnects=4, checkpoint_ms=60)
    judged = Judged(connections(config))
    sent = [frame for _, frame in judged.frames if isinstance(frame, Message)]
    by_id = {frame.message_id: frame for frame in sent}
    assert len(sent) > len(by_id) == config.messages_per_connector
    assert all(by_id[frame.message_id] == frame for frame in sent)
    starts = [frame.point_of_ref for _, frame in judged.frames if isinstance(frame, NotifyAck)]
    assert starts[0] == NOTHING_SEEN
    assert len(starts) == 5
    assert starts[-1] > 0


@pytest.mark.parametrize("dialect", DIALECTS)
def test_frames_are_written_as_encode_writes_them(dialect: str) -> None:
    for config in (replace(LIVELY, dialect=dialect), replace(SMALL, dialect=dialect, keys=0, payload_bytes=3)):
        judged = Judged(connections(config))
        sent = [written(conversation) for conversation in connections(config)]
        for side in Direction:
            encoded = (encode(frame, DIALECTS[dialect]) for sender, frame in judged.frames if sender is side)
            assert b"".join(encoded) == b"".join(streams[side] for streams in sent)


def test_frames_have_the_sizes_and_keys_that_were_asked_for() -> None:
    judged = Judged(connections(replace(SMALL, payload_bytes=80, keys=7)))
    sent = [frame for _, frame in judged.frames if isinstance(frame, Message)]
    sizes = [len(frame.payload or b"") for frame in sent]
    assert (min(sizes), max(sizes)) >= (40, 110)
    assert max(sizes) <= 120
    assert 76 < sum(sizes) / len(sizes) < 84
    assert len({frame.key for frame in sent}) == 7


def of_capture(config: SimulatorConfig) -> list[Conversation]:
    """The conversations again from a capture file, in the order of their packets."""
    file = io.BytesIO()
    write_pcap(simulate(config), file, resolution="ns")
    capture = PacketCapture(io.BytesIO(file.getvalue()))
    events: dict[tuple[Any, ...], list[Event]] = {}
    last_ns = 0
    for batch in capture.batches():
        for ts_ns, row in zip(batch.column("ts_ns").to_pylist(), parse(batch).to_pylist(), strict=True):
            assert row["skip"] is None
            assert ts_ns >= last_ns
            last_ns = ts_ns
            ends = [(row["source_address"], row["source_port"]), (row["destination_address"], row["destination_port"])]
            direction = Direction.SERVER if row["source_port"] == PORT else Direction.CLIENT
            connection = events.setdefault(tuple(sorted(ends)), [])
            if connection and isinstance(connection[-1], Close):
                continue
            if row["payload"]:
                connection.append(Send(ts_ns, direction, row["payload"]))
            if row["flags"] & (FIN | RST):
                connection.append(Close(ts_ns, direction, Ending.RESET if row["flags"] & RST else Ending.FIN))
    assert capture.damage is None
    nobody = Endpoint("10.0.0.1", 1)
    return [Conversation(nobody, Endpoint("10.1.0.1", PORT), each[0].ts_ns, each) for each in events.values()]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_capture_says_what_the_connections_say(dialect: str) -> None:
    config = replace(LIVELY, dialect=dialect, start_time_ms=1_600_000_000_000)
    captured = Judged(of_capture(config))
    assert not captured.found
    assert captured.dialects == {shown(dialect)}
    assert Counter(captured.frames) == Counter(Judged(connections(config)).frames)


def test_a_fault_is_in_the_capture_beside_legal_traffic() -> None:
    config = replace(SMALL, fault="ack_goes_back")
    judged = Judged(of_capture(config))
    assert judged.found == Counter(["ack_goes_back"])
    assert judged.count(Hello) == SMALL.connectors + 1


def test_a_conversation_that_is_not_read_does_not_change_the_next() -> None:
    # Connectors go on from where a connection ended, so its script is played even if nobody reads it.
    skipped = [conversation.opened_ns for conversation in connections(LIVELY)]
    assert skipped == [conversation.opened_ns for conversation in connections(LIVELY) if written(conversation)]


def test_a_capture_is_never_held_in_memory() -> None:
    config = SimulatorConfig(messages_per_connector=10**9, streams_per_connector=8, reopens=2, burst_messages=100)
    assert_never_held(simulate(config), 500, 5_000)


def test_the_same_configuration_gives_the_same_packets() -> None:
    assert_the_same_again(simulate, LIVELY)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"dialect": "v4"}, "dialect"),
        ({"connectors": 0}, "connectors"),
        ({"streams_per_connector": 1000}, "streams_per_connector"),
        ({"payload_bytes": 10_001}, "payload_bytes"),
        ({"reset_share": 0.6}, "reset_share"),
        ({"credits": 10, "refill_at": 10}, "refill_at"),
        ({"fault": "no_such_rule"}, "fault"),
        ({"fault": "nack_not_answered"}, "fault"),
    ],
)
def test_what_can_not_be_simulated_is_refused(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(OptionError) as refused:
        SimulatorConfig(**changes)
    assert refused.value.fields["key"] == key


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_largest_frames_are_within_the_limit(dialect: str) -> None:
    config = replace(SMALL, dialect=dialect, payload_bytes=10_000, streams_per_connector=256, reconnects=1)
    assert not Judged(connections(replace(config, connectors=1, messages_per_connector=100))).found
