"""Captures that lack a side of each connection, or half of its packets: what was not captured is nobody's violation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from tests.support.landed import landed, landed_packets
from tests.support.searches import fast_first
from wirehouse_codecs.bamboo.inspection import inspect
from wirehouse_codecs.bamboo.options import TWO_CONNECTIONS, BambooOptions
from wirehouse_codecs.bamboo.simulator.scenarios import SCENARIOS
from wirehouse_codecs.bamboo.simulator.simulator import PORT, SimulatorConfig, connections, source_options
from wirehouse_codecs.captures.pcap import Packet, PacketCapture, to_batch
from wirehouse_codecs.logs import inspection
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket
from wirehouse_codecs.simulate.script import Conversation, merge, packets
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.link_types import ETHERNET

LIVELY = SimulatorConfig(connections=6, entries=10, ways=len(SCENARIOS))
SHAPES = (
    LIVELY,
    replace(LIVELY, mode="safe", proactive="server", seed=3),
    replace(LIVELY, mode="greedy", window_bytes=10, compressed_share=1, seed=4),
    replace(LIVELY, live_share=1, interval_ms=0, window_bytes=0, ended_share=1, seed=5),
    replace(LIVELY, transport=TWO_CONNECTIONS, seed=6),
    replace(LIVELY, logs=0, connections=2, ways=40, seed=8),
)
HAPPY = Path(__file__).parents[3] / "vectors" / "bamboo" / "sessions" / "happy_1.pcap"
HAPPY_PORT = 7070
#: Of an IPv4 packet in an Ethernet frame.
_SOURCE_PORT = slice(34, 36)


@dataclass(frozen=True)
class Loss:
    """What is lost of a side: all packets, or half of them as the seed says."""

    side: Direction
    seed: int | None = None

    def keeps(self, random: Random) -> bool:
        return self.seed is not None and random.random() < 0.5


LOSSES = [Loss(side, seed) for seed in (None, *range(20)) for side in Direction]


def lossy(conversation: Conversation, loss: Loss) -> Iterator[CapturedPacket]:
    end = conversation.client if loss.side is Direction.CLIENT else conversation.server
    random = Random(f"{loss.seed} {conversation.client_sequence}")
    for packet in packets(conversation):
        if int.from_bytes(packet.data[_SOURCE_PORT], "big") != end.port or loss.keeps(random):
            yield packet


def cut(captured: Iterable[CapturedPacket], snap: int | None) -> Iterator[pa.RecordBatch]:
    """Packets as a snap length, or one of their own for a tenth of them, leaves them."""
    random = Random(1)
    rows = []
    for packet in captured:
        size = snap or (random.randrange(70, 300) if random.random() < 0.1 else len(packet.data))
        rows.append(Packet(packet.ts_ns, ETHERNET, len(packet.data), packet.data[:size]))
    return landed([to_batch(rows)])


@pytest.mark.parametrize("snap", [None, 80, 96, 128, 200])
@pytest.mark.parametrize("config", fast_first(SHAPES), ids=range(len(SHAPES)))
def test_what_a_snap_length_cut_off_is_nobodys_violation(config: SimulatorConfig, snap: int | None) -> None:
    options = BambooOptions.from_mapping(source_options(config))
    assert findings(cut(merge(map(packets, connections(config))), snap), None if options.ports else PORT, options) == []


def test_most_packets_are_read_however_many_payloads_are_cut() -> None:
    config = SimulatorConfig(connections=1, entries=40, ways=0, logs=1, window_bytes=0, payload_bytes=400, live_share=1)
    counts = []
    for snap in (1 << 16, 220):
        rows = inspect(cut(merge(map(packets, connections(config))), snap), PORT, BambooOptions())
        counts.append(Counter(row["kind"] for kind, row in rows if kind == inspection.MESSAGE))
    # Metadata and the header of each payload are there, in one Write.
    assert counts[0].pop("raw") == 40
    assert counts[1] == counts[0]


def findings(batches: Iterable[Any], port: int | None, options: BambooOptions) -> list[Any]:
    rows = inspect(batches, port, options)
    return [row for kind, row in rows if kind == inspection.VIOLATION and row["severity"] != "note"]


@pytest.mark.parametrize("loss", fast_first(LOSSES, by=lambda loss: (loss.side, loss.seed is None), most=2), ids=str)
@pytest.mark.parametrize("config", fast_first(SHAPES, 2), ids=range(len(SHAPES)))
def test_what_a_side_may_have_said_is_nobodys_violation(config: SimulatorConfig, loss: Loss) -> None:
    options = BambooOptions.from_mapping(source_options(config))
    captured = merge(lossy(conversation, loss) for conversation in connections(config))
    assert findings(landed_packets(captured), None if options.ports else PORT, options) == []


@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_what_a_side_writes_to_streams_that_the_other_created_is_named_if_that_is_missing(size: int) -> None:
    config = SimulatorConfig(connections=1, logs=1, entries=4, ways=0)
    (conversation,) = connections(config)
    captured = lossy(replace(conversation, segment_bytes=size), Loss(Direction.CLIENT))
    rows = list(inspect(landed_packets(captured), PORT, BambooOptions(streams="created")))
    writes = [row for kind, row in rows if kind == inspection.MESSAGE and row["kind"] == "write"]
    named = [(row["byte_start"], row["byte_end"]) for kind, row in rows if kind == inspection.QUARANTINE]
    assert named == [(row["byte_end"] - row["amount"], row["byte_end"]) for row in writes]
    assert sum(row["amount"] for row in writes) > 1_000


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_a_good_vector_stays_good(loss: Loss) -> None:
    random = Random(f"{loss.seed}")
    with HAPPY.open("rb") as stream:
        batches = list(PacketCapture(stream).batches())
    kept = []
    for batch in batches:
        ports = [int.from_bytes(data[_SOURCE_PORT], "big") for data in batch.column("data").to_pylist()]
        is_lossy = [(port == HAPPY_PORT) == (loss.side is Direction.SERVER) for port in ports]
        kept.append(batch.filter(pa.array([not one or loss.keeps(random) for one in is_lossy])))
    assert findings(landed(kept), HAPPY_PORT, BambooOptions()) == []


def test_half_of_the_bytes_still_say_who_breaks_a_rule() -> None:
    config = replace(LIVELY, connections=2, fault="id_parity")
    captured = []
    for number, conversation in enumerate(connections(config)):
        is_faulty = number == config.connections
        captured.append(packets(conversation) if is_faulty else lossy(conversation, Loss(Direction.SERVER, 1)))
    options = BambooOptions.from_mapping(source_options(config))
    assert [row["rule"] for row in findings(landed_packets(merge(captured)), PORT, options)] == ["bamboo.id_parity"]


BY_CLIENT = [config for config in SHAPES if config.proactive == Direction.CLIENT]


@pytest.mark.parametrize("config", fast_first(BY_CLIENT), ids=range(len(BY_CLIENT)))
def test_all_packets_of_the_side_that_creates_the_channels_are_read(config: SimulatorConfig) -> None:
    """Also where further streams are created later."""
    options = BambooOptions.from_mapping(source_options(config))
    port = None if options.ports else PORT
    whole = messages(merge(map(packets, connections(config))), port, options)
    found = messages(merge(lossy(one, Loss(Direction.SERVER)) for one in connections(config)), port, options)
    assert found == Counter({message: count for message, count in whole.items() if message[0] == Direction.CLIENT})


def messages(captured: Iterable[CapturedPacket], port: int | None, options: BambooOptions) -> Counter[tuple[Any, ...]]:
    rows = (row for kind, row in inspect(landed_packets(captured), port, options) if kind == inspection.MESSAGE)
    return Counter((row["direction"], row["byte_start"], row["byte_end"], row["kind"]) for row in rows)
