"""Simulated Ockam traffic: legal captures are legal, and every fault breaks its rule and no other."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.landed import landed_packets
from tests.support.searches import fast_first
from tests.support.simulators import assert_in_order_of_time, assert_never_held, assert_the_same_again
from wirehouse_codecs.captures.pcap import PacketCapture
from wirehouse_codecs.core.errors import OptionError
from wirehouse_codecs.core.rules import Severity
from wirehouse_codecs.logs import tcp_inspection
from wirehouse_codecs.logs.rows import CONNECTION, MESSAGE, QUARANTINE, VIOLATION
from wirehouse_codecs.ockam.correlation.events import ConsumerRow, Found, Told
from wirehouse_codecs.ockam.correlation.log_events import Heard
from wirehouse_codecs.ockam.inspection import recognises
from wirehouse_codecs.ockam.log.log import SCHEMA, SKIP, starter
from wirehouse_codecs.ockam.options import OckamOptions
from wirehouse_codecs.ockam.rules import RULE, RULES
from wirehouse_codecs.ockam.simulator.service import TRACING_CONTEXT, Contents, Run, Speech
from wirehouse_codecs.ockam.simulator.simulator import FAULTS, SimulatorConfig, connections, simulate
from wirehouse_codecs.ockam.wire.messages import Names, PullResponse, StreamMessage, encode_payload
from wirehouse_codecs.ockam.wire.routed import TCP, Address, Envelope, local
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket
from wirehouse_codecs.simulate.script import Conversation, Disturbances, merge, packets, written
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.link_types import ETHERNET
from wirehouse_codecs.tcp.packets import SYN, read_packet
from wirehouse_expectations.suites import findings_of

#: The simulator is run at length.
pytestmark = pytest.mark.property

SESSIONS = Path(__file__).parents[3] / "vectors" / "ockam" / "sessions"
SILVER, FOUND = "silver.ockam", "gold.ockam_found"
DIALECTS = [envelope.value for envelope in Envelope]
SMALL = SimulatorConfig(messages_per_publisher=20)
#: All that may happen to legal traffic.
LIVELY = replace(
    SMALL,
    consumers=5,
    messages_per_publisher=24,
    partitions=1,
    index_gap_share=0.2,
    resend_share=0.3,
    restarts=2,
    service_restarts=1,
    retained=12,
)
Row = dict[str, Any]


@dataclass
class Judged:
    """What the log, and all connections together, say of a capture."""

    rows: dict[str, list[Row]]
    told: list[Told]

    @property
    def found(self) -> Counter[str]:
        alone = (row["finding"]["rule"].removeprefix("ockam.") for row in self.rows[VIOLATION])
        return Counter([*alone, *(each.rule.name for each in self.told if isinstance(each, Found))])

    def messages(self, kind: str) -> list[Row]:
        """With the row's `stream_address`, `consumer`, `requester` and `connection_id`."""
        return [row | row["message"] for row in self.rows[MESSAGE] if row["message"]["kind"] == kind]


def judge(captured: Iterable[CapturedPacket], port: int | None = None) -> Judged:
    rows, heard = defaultdict(list), Heard()
    for row in tcp_inspection.read(landed_packets(captured), starter(OckamOptions()), SCHEMA, port):
        rows[row["row_kind"]].append(row)
        heard.take(row)
    return Judged(rows, heard.told())


def captured_of(conversations: Iterable[Conversation]) -> Iterator[CapturedPacket]:
    """Conversations that are read one after the other, whatever follows from each."""
    return merge([list(packets(conversation)) for conversation in conversations])


def of_fault(config: SimulatorConfig) -> list[Conversation]:
    """What one fault adds."""
    clean = {conversation.server for conversation in connections(replace(config, fault=None))}
    return [conversation for conversation in connections(config) if conversation.server not in clean]


@pytest.mark.parametrize(
    ("dialect", "names"), [("bare16", "implementation"), ("bare16", "specification"), ("cbor32", "specification")]
)
@pytest.mark.parametrize("config", [SMALL, LIVELY], ids=["calm", "lively"])
def test_legal_traffic_breaks_no_rule(dialect: str, names: str, config: SimulatorConfig) -> None:
    judged = judge(simulate(replace(config, dialect=dialect, names=names, seed=len(names))))
    assert not judged.found
    assert not judged.rows[QUARANTINE]
    assert {row["connection"]["dialect"] for row in judged.rows[CONNECTION]} == {dialect}
    told = {row["message"]["protocol_name"] for row in judged.rows[MESSAGE]}
    assert ("stream_create_partitions" in told) == (names == "specification")


@pytest.mark.parametrize(
    "changes",
    [
        {"streams": 1, "partitions": 0},
        {"streams": 0, "partitions": 4},
        {"consumers": 0},
        {"publishers": 7, "messages_per_publisher": 5, "burst_messages": 3},
        {"interval_ms": 0, "poll_ms": 10},
        {"poll_ms": 2000, "retained": 1},
        {"messages_per_publisher": 1, "restarts": 3, "service_restarts": 3},
        {"burst_messages": 250, "resend_share": 0.5},
        {"data_bytes": 10_000, "pull_limit": 1000, "dialect": "cbor32"},
        {"data_bytes": 8, "pull_limit": 1, "index_gap_share": 1.0},
    ],
    ids=str,
)
def test_legal_traffic_of_any_shape_breaks_no_rule(changes: dict[str, Any]) -> None:
    assert not judge(simulate(replace(LIVELY, seed=11, **changes))).found


CASES = [(name, dialect) for name in FAULTS for dialect in DIALECTS]


@pytest.mark.parametrize(("name", "dialect"), CASES, ids=["-".join(case) for case in CASES])
def test_a_fault_breaks_its_rule_and_no_other(name: str, dialect: str) -> None:
    config = SimulatorConfig(dialect=dialect, messages_per_publisher=1, consumers=0, fault=name)
    judged, alone, together = judge(captured_of(of_fault(config))), findings_of(SILVER), findings_of(FOUND)
    assert judged.found == {name: 1}
    assert alone is not None
    assert together is not None
    assert {row["finding"]["rule"] for row in judged.rows[VIOLATION]} <= {rule.id for rule in alone.rules}
    assert {one.rule.id for one in judged.told if isinstance(one, Found)} <= {rule.id for rule in together.rules}


def test_every_rule_has_a_fault() -> None:
    assert list(FAULTS) == [rule.name for rule in RULES]
    assert set(FAULTS) == set(RULE)
    assert all(fault.sentence.endswith(".") for fault in FAULTS.values())


def test_a_fault_is_in_the_capture_beside_legal_traffic() -> None:
    judged = judge(simulate(replace(SMALL, fault="consumer_hole", names="specification")))
    assert judged.found == {"consumer_hole": 1}
    assert len({row["connection"]["server_address"] for row in judged.rows[CONNECTION]}) == 2


def test_all_is_stored_once_and_comes_to_every_consumer() -> None:
    config = replace(SMALL, consumers=4, index_gap_share=0.3)
    judged = judge(simulate(config))
    confirmed = defaultdict(list)
    for row in judged.messages("push_response"):
        confirmed[row["stream_address"]].append(int(row["index"]))
    assert len(confirmed) == config.streams + config.partitions
    (indexes,) = {tuple(each) for each in map(sorted, confirmed.values())}
    assert len(set(indexes)) == config.publishers * config.messages_per_publisher < indexes[-1]
    rows = [row for row in judged.told if isinstance(row, ConsumerRow) and row.stream_address is not None]
    assert {(row.client_id, row.saved, row.lag) for row in rows} == {
        (f"consumer-{n}", indexes[-1] + 1, 0) for n in range(config.consumers)
    }
    assert {(row.delivered_messages, row.redelivered) for row in rows} == {(len(indexes), 0)}


def test_a_message_is_sent_again_under_its_id() -> None:
    judged = judge(simulate(replace(SMALL, resend_share=0.3, streams=1, partitions=0)))
    pushes = judged.messages("push_request")
    told = {(row["requester"], int(row["request_id"])): row["data"] for row in pushes}
    assert len(set(told.values())) == len(told) < len(pushes)
    assert all(told[row["requester"], int(row["request_id"])] == row["data"] for row in pushes)
    assert len({int(row["index"]) for row in judged.messages("push_response")}) == len(pushes)


def test_consumers_that_fail_go_on_from_what_they_saved() -> None:
    config = replace(SMALL, restarts=2)
    judged = judge(simulate(config))
    rows = [row for row in judged.told if isinstance(row, ConsumerRow) and row.stream_address is not None]
    assert {row.connections for row in rows} == {1 + config.restarts}
    assert all(row.redelivered > 0 and row.lag == 0 for row in rows)


def test_the_service_begins_anew_under_other_addresses() -> None:
    config = replace(SMALL, service_restarts=1)
    judged = judge(simulate(config))
    first = defaultdict(list)
    for row in judged.messages("push_response"):
        first[row["stream_address"]].append(int(row["index"]))
    assert len(first) == 2 * (config.streams + config.partitions)
    assert {min(indexes) for indexes in first.values()} == {0}
    assert len(judged.rows[CONNECTION]) == 2 * (config.publishers + config.consumers)


def test_old_messages_are_deleted() -> None:
    config = replace(SMALL, retained=10, poll_ms=3000, interval_ms=200)
    judged = judge(simulate(config))
    assert not judged.found
    answers = [row for row in judged.messages("pull_response") if row["messages"]]
    assert any(row["messages"][0]["index"] > row["answers"]["index"] for row in answers)


def test_clients_speak_in_several_ways() -> None:
    judged = judge(simulate(SMALL))
    routes = {row["requester"] for row in judged.messages("push_request") + judged.messages("pull_request")}
    assert routes == {
        "0#publisher-0",
        "0#hop-x=>0#publisher-1",
        "1#192.0.2.7:4000=>0#consumer-0",
        "0#consumer-1",
        "0#consumer-2",
    }
    assert {row["message"]["version"] for row in judged.rows[MESSAGE]} == {1, 2}
    assert {row["message"]["tracing_context"] for row in judged.rows[MESSAGE]} == {None, TRACING_CONTEXT}
    assert {row["skip"]["name"] for row in judged.rows[SKIP]} == {"heartbeat", "ping"}
    assert any(not row["messages"] for row in judged.messages("pull_response"))


@pytest.mark.parametrize("envelope", Envelope)
@pytest.mark.parametrize("context", [None, TRACING_CONTEXT])
def test_frames_are_written_as_routed_writes_them(envelope: Envelope, context: str | None) -> None:
    speech = Speech(envelope, tracing_context=context)
    onward, back = (Address(TCP, b"192.0.2.7:4000"), *local("me")), local("ST_S_x")
    for size in (0, 1, 100, 255, 256, 60_000):
        payload = b"\xff" * size
        message = PullResponse(1, (StreamMessage(1, payload),))
        for _ in range(2):
            assert speech.write(message, onward, back) == speech.write_routed(onward, back, encode_payload(message))


@pytest.mark.parametrize("gap_share", [0, 0.1, 0.5, 1])
def test_what_the_service_holds_agrees_with_when_it_was_pushed(gap_share: float) -> None:
    config = replace(SMALL, publishers=3, messages_per_publisher=23, index_gap_share=gap_share, resend_share=0.4)
    contents = Contents(config)
    run = Run(config, contents, 0, 10**18)
    numbers: list[int] = []
    for burst in range(run.bursts):
        for publisher in range(config.publishers):
            pushed = run.burst(burst, publisher)
            stored_ns = run.stored_ns(burst, publisher)
            assert run.stored(stored_ns - 1) == len(numbers)
            numbers += pushed
            assert run.stored(stored_ns) == len(numbers)
            assert run.pushed_ns(burst, publisher) < stored_ns < run.pushed_ns(burst + 1, publisher)
            assert {run.sent(number) for number in pushed} <= set(pushed)
    assert numbers == list(range(run.total))
    indexes = [run.index(number) for number in numbers]
    steps = Counter(after - before for before, after in pairwise([-1, *indexes]))
    assert set(steps) <= {1, 2, 3}
    assert abs((indexes[-1] + 1) / (1 + gap_share) - run.total) < 2


@pytest.mark.parametrize("dialect", DIALECTS)
def test_connections_are_recognised_by_their_beginning(dialect: str) -> None:
    for conversation in connections(replace(SMALL, dialect=dialect, messages_per_publisher=1)):
        streams = written(conversation)
        why = recognises(streams[Direction.CLIENT][:4096], streams[Direction.SERVER][:4096])
        assert why is not None
        assert ("CBOR" if dialect == "cbor32" else "BARE") in why


@pytest.mark.parametrize(
    "begin", [b"", b"\x01", b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x20\x00\x09abcdefghi", bytes(64)]
)
def test_other_connections_are_not_recognised(begin: bytes) -> None:
    assert recognises(begin, b"") is None


def severe(captured: Iterable[CapturedPacket], port: int | None = None) -> list[str]:
    """Rules that are broken, without notes: what a capture lacks is one."""
    judged = judge(captured, port)
    alone = [row["finding"]["rule"] for row in judged.rows[VIOLATION] if row["finding"]["severity"] != Severity.NOTE]
    found = [each.rule.id for each in judged.told if isinstance(each, Found)]
    return alone + [name for name in found if RULE[name.removeprefix("ockam.")].severity is not Severity.NOTE]


@pytest.mark.parametrize("dialect", fast_first(DIALECTS))
def test_a_packet_that_is_missing_breaks_no_rule(dialect: str) -> None:
    config = replace(LIVELY, dialect=dialect, publishers=1, consumers=1, streams=1, partitions=0, data_bytes=8)
    captured = list(simulate(replace(config, messages_per_publisher=8, restarts=1)))
    assert len(captured) > 50
    for missing in range(len(captured)):
        assert severe(captured[:missing] + captured[missing + 1 :]) == [], missing


@pytest.mark.parametrize("seed", fast_first(range(10), count=4))
def test_packets_that_are_missing_break_no_rule(seed: int) -> None:
    random = Random(seed)
    config = replace(
        LIVELY if seed % 2 else SMALL,
        seed=seed,
        dialect=DIALECTS[seed // 2 % 2],
        messages_per_publisher=random.randint(5, 30),
        # What is missing is told at once, much later, or when the connection is given up.
        interval_ms=random.choice((0, 20, 2000, 15_000, 480_000, 7_800_000)),
        pull_limit=random.choice((1, 3, 10)),
        data_bytes=random.choice((8, 100, 1500)),
    )
    config = replace(config, poll_ms=max(50, config.interval_ms * random.choice((1, 5)) // 4))
    lost = random.choice((0.005, 0.05, 0.2))
    lossy = Disturbances(seed, lost=lost, reordered=0.02, repeated=0.02, contradicted=0.01, kept_alive=0.02)
    captured = list(simulate(config, lossy))
    begins = random.choice((0, random.randrange(len(captured) // 2)))
    ends = random.choice((len(captured), random.randrange(len(captured) // 2, len(captured))))
    assert severe(captured[begins:ends]) == []


def halves_of(name: str) -> tuple[int, list[CapturedPacket], list[bool]]:
    """The server's port, the packets of a legal capture, and whether the client sent each."""
    if name in VECTORS:
        with (SESSIONS / f"{name}.pcap").open("rb") as stream:
            rows = [row for batch in PacketCapture(stream).batches() for row in batch.to_pylist()]
        captured = [CapturedPacket(row["ts_ns"], row["data"]) for row in rows if row["data"] is not None]
    else:
        shape, dialect, names = name.split("-")
        config = replace(SMALL if shape == "calm" else LIVELY, messages_per_publisher=12, dialect=dialect, names=names)
        captured = list(simulate(config))
    segments = [read_packet(ETHERNET, packet.data) for packet in captured]
    port = next(segment.destination_port for segment in segments if segment.flags == SYN)
    assert port is not None
    return port, captured, [segment.destination_port == port for segment in segments]


VECTORS = ("ref_elixir_bare", "spec_gaps")
HALVED = [
    *VECTORS,
    *(f"{shape}-{dialect}-{names.value}" for shape in ("lively", "calm") for dialect in DIALECTS for names in Names),
]


@pytest.mark.parametrize("name", fast_first(HALVED, count=3))
def test_a_capture_of_one_side_breaks_no_rule(name: str) -> None:
    port, captured, of_client = halves_of(name)
    for side in (True, False):
        assert severe([packet for packet, own in zip(captured, of_client, strict=True) if own is side], port) == []


@pytest.mark.parametrize("seed", fast_first(range(20), most=2))
@pytest.mark.parametrize("name", HALVED)
def test_half_of_the_packets_of_one_side_break_no_rule(name: str, seed: int) -> None:
    port, captured, of_client = halves_of(name)
    for side in (True, False):
        random = Random(seed)
        kept = [one for one, own in zip(captured, of_client, strict=True) if own is side or random.random() < 0.5]
        assert severe(kept, port) == []


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_beside_connections_of_which_one_side_was_captured(name: str) -> None:
    config = replace(SMALL, messages_per_publisher=3, consumers=1, fault=name)
    faulty = {conversation.server for conversation in of_fault(config)}
    clean = [conversation for conversation in connections(config) if conversation.server not in faulty]
    port, of_client = clean[0].server.port, []
    for conversation in clean:
        of_client += [
            packet for packet in packets(conversation) if read_packet(ETHERNET, packet.data).destination_port == port
        ]
    packets_in_order = sorted([*of_client, *captured_of(of_fault(config))], key=lambda packet: packet.ts_ns)
    judged = judge(packets_in_order, port)
    assert judged.found[name] == 1


def test_a_conversation_that_is_not_read_does_not_change_the_next() -> None:
    skipped = [conversation.opened_ns for conversation in connections(LIVELY)]
    assert skipped == [conversation.opened_ns for conversation in connections(LIVELY) if written(conversation)]


@pytest.mark.parametrize("config", [SMALL, LIVELY], ids=["calm", "lively"])
def test_what_is_said_is_in_order_of_time_and_ends_with_a_close(config: SimulatorConfig) -> None:
    assert_in_order_of_time(connections(config))


def test_a_capture_is_never_held_in_memory() -> None:
    config = SimulatorConfig(messages_per_publisher=10**9, resend_share=0.1, retained=1000, index_gap_share=0.01)
    assert_never_held(simulate(config), 300, 2_000)


def test_the_same_configuration_gives_the_same_packets() -> None:
    assert_the_same_again(simulate, LIVELY)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"dialect": "bare"}, "dialect"),
        ({"names": "both"}, "names"),
        ({"publishers": 0}, "publishers"),
        ({"streams": 0, "partitions": 0}, "streams"),
        ({"data_bytes": 7}, "data_bytes"),
        ({"resend_share": 0.6}, "resend_share"),
        ({"poll_ms": 0}, "poll_ms"),
        ({"fault": "no_such_rule"}, "fault"),
    ],
)
def test_what_can_not_be_simulated_is_refused(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(OptionError) as refused:
        SimulatorConfig(**changes)
    assert refused.value.fields["key"] == key
