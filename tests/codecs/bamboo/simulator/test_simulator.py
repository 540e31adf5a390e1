"""Simulated Bamboo traffic: legal captures are legal, whatever peers agree on and whatever the capture lacks."""

from __future__ import annotations

import tracemalloc
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.codecs.bamboo.log.test_log import events, told
from tests.codecs.bamboo.simulator.simulated import Judged, Row, judge
from tests.support.searches import fast_first
from tests.support.simulators import assert_the_same_again
from wirehouse_codecs.bamboo.inspection import recognises
from wirehouse_codecs.bamboo.options import TWO_CONNECTIONS, BambooOptions
from wirehouse_codecs.bamboo.setup import Channel
from wirehouse_codecs.bamboo.simulator.scenarios import SCENARIOS
from wirehouse_codecs.bamboo.simulator.simulator import (
    OTHER_RECORDS,
    PORTS,
    WRITERS,
    SimulatorConfig,
    connections,
    entries,
    simulate,
    source_options,
)
from wirehouse_codecs.bamboo.wire import bymux_packets, entry_files
from wirehouse_codecs.bamboo.wire.channel_reader import ChannelReader
from wirehouse_codecs.bamboo.wire.entries import decode
from wirehouse_codecs.bamboo.wire.entry_verification import verify
from wirehouse_codecs.bamboo.wire.messages import KINDS, CancelReason, Eagerness
from wirehouse_codecs.core.errors import OptionError
from wirehouse_codecs.core.rules import Place
from wirehouse_codecs.logs.rows import CONNECTION, QUARANTINE
from wirehouse_codecs.simulate.script import Disturbances, disturb, segments, written
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.reassembly import TcpSegment

#: The simulator is run at length.
pytestmark = pytest.mark.property

SMALL = SimulatorConfig(connections=2, entries=20, ways=0)
#: All that may happen to legal traffic.
LIVELY = replace(SMALL, connections=6, entries=10, ways=len(SCENARIOS))


@pytest.fixture(scope="module")
def lively() -> Judged:
    return judge(LIVELY)


def test_legal_traffic_breaks_no_rule(lively: Judged) -> None:
    assert not lively.found
    assert not lively.rows[QUARANTINE]
    assert all(rule == "bad_signature" and lively.apologised(row) for row, rule in lively.invalid)


@pytest.mark.parametrize(
    "changes",
    fast_first(
        [
            {"mode": "safe", "proactive": "server"},
            {"mode": "greedy", "window_bytes": 10, "compressed_share": 1},
            {"live_share": 1, "interval_ms": 0, "window_bytes": 0, "ended_share": 1},
            {"logs": 5, "replicas": 3, "payload_bytes": 0, "ended_share": 1, "live_share": 0},
            {"logs": 0, "connections": 2, "ways": 40, "seed": 5},
            {"payload_bytes": 30_000, "entries": 2, "connections": 3},
            {"first_entry": 41, "live_share": 0.5},
            {"first_entry": 30, "logs": 4},
        ],
        count=4,
    ),
    ids=str,
)
def test_legal_traffic_of_any_shape_breaks_no_rule(changes: dict[str, Any]) -> None:
    judged = judge(replace(LIVELY, **({"connections": 4, "seed": 11} | changes)))
    assert not judged.found
    assert all(map(judged.apologised, (row for row, _ in judged.invalid)))


@pytest.mark.parametrize("lost", [0, 0.02, 0.2])
@pytest.mark.parametrize("seed", fast_first(range(2)))
def test_what_a_capture_lacks_is_nobodys_violation(lost: float, seed: int) -> None:
    disturbances = Disturbances(seed, reordered=0.2, repeated=0.2, lost=lost, kept_alive=0.05)
    judged = judge(replace(LIVELY, seed=seed, connections=4), disturbances)
    assert set(judged.severities) <= {"note"}
    assert ("capture.hole" in judged.found) == (lost > 0)


@pytest.mark.property
@pytest.mark.parametrize("lost", [0, 0.05, 0.2])
@pytest.mark.parametrize("seed", range(4))
def test_every_byte_is_that_of_one_packet_or_in_quarantine_or_missing(lost: float, seed: int) -> None:
    judged = judge(replace(LIVELY, seed=seed, connections=4), Disturbances(seed, reordered=0.2, lost=lost))
    sides: defaultdict[tuple[bytes, str], list[Row]] = defaultdict(list)
    for row in (*judged.rows["message"], *judged.rows["quarantine"]):
        sides[row["connection_id"], row["direction"]].append(row)
    holes = [row for row in judged.rows["violation"] if row["finding"]["rule"] == "capture.hole"]
    for side, rows in sides.items():
        kept = [row for row in rows if row["message"] is None]
        packets = [row for row in rows if row["message"] and row["channel"] != "bymux"]
        told = bytearray(max(row["byte_end"] for row in (*kept, *packets)))
        for row in (*packets, *kept):
            # A packet may begin in one Write and end in another.
            assert row in packets or not any(told[row["byte_start"] : row["byte_end"]])
            told[row["byte_start"] : row["byte_end"]] = b"\1" * (row["byte_end"] - row["byte_start"])
        for row in rows:
            if row["channel"] == "bymux" and row["message"]:
                said = row["message"]
                # Of other streams the Writes tell all.
                content = int(said["amount"]) if said["kind"] == "write" and said["about"] else 0
                size = row["byte_end"] - content - row["byte_start"]
                told[row["byte_start"] : row["byte_start"] + size] = b"\1" * size
        for row in holes:
            if (row["connection_id"], row["direction"]) == side:
                end = min(row["byte_end"], len(told))
                told[row["byte_start"] : end] = b"\1" * (end - min(row["byte_start"], end))
        assert 0 not in told


@pytest.mark.parametrize("lost", [0, 0.05])
def test_windows_cut_anywhere_give_the_same_rows(lost: float) -> None:
    config = replace(SMALL, entries=8, connections=1, ways=6, start_time_ms=0)
    (conversation,) = connections(config)
    given = []
    sent = disturb(segments(conversation), Disturbances(1, lost=lost), Random(1))
    for number, one in enumerate(sent):
        place = Place(one.ts_ns, 1, b"capture", number)
        numbers = (one.sequence, one.acknowledgment, one.flags)
        given.append(TcpSegment(place, one.direction, *numbers, 500, one.payload, len(one.payload)))
    whole = events(told(given))
    assert len(whole) > 200
    assert events(told(given, range(1, len(given), 5))) == whole


def payloads(judged: Judged) -> dict[tuple[Any, ...], set[bytes]]:
    """The payloads that came in full, by author, log id and sequence number."""
    logs = {(row["connection_id"], row["proposal_number"]): row["proposal"] for row in judged.rows["proposal"]}
    found = defaultdict(set)
    for row in judged.messages:
        payload = row["payload"]
        if payload is not None and payload["checked"] and payload["rule"] is None:
            proposal = logs[row["connection_id"], row["proposal_number"]]
            data = payload["data"] if payload["packets"] > 1 else row["data"]
            found[proposal["author"], proposal["log_id"], row["seq"]].add(data)
    return found


def test_logs_come_back_whole() -> None:
    config = replace(SMALL, logs=3, entries=50, live_share=0.3)
    judged = judge(config)
    made = list(entries(config))
    assert sorted(row["data"] for row in judged.entries) == sorted(one.data for one in made)
    assert len(made) == 2 * 3 * 50
    assert set(judged.verified.entries["verdict"].to_pylist()) == {"valid"}
    told = payloads(judged)
    for one in made:
        entry = decode(one.data)
        assert told[entry.author, entry.log_id, entry.seq] == {one.payload}


def test_replicas_hold_the_same_entries() -> None:
    judged = judge(replace(SMALL, connections=4, replicas=2))
    seen = Counter(row["data"] for row in judged.entries)
    assert set(seen.values()) == {2}
    assert len(seen) == 2 * SMALL.logs * SMALL.entries


def test_all_of_the_protocol_is_said(lively: Judged) -> None:
    kinds = {row["kind"] for row in lively.messages if row["channel"] != "bymux"}
    assert kinds == set(KINDS)
    assert {row["kind"] for row in lively.messages if row["channel"] == "bymux"} == {
        kind.name.lower() for kind in bymux_packets.Type
    }
    codes = {row["code"] for row in lively.messages} - {None}
    assert codes == {reason.value for reason in CancelReason} - {CancelReason.FORKED}
    assert {row["eagerness"] for row in lively.messages} - {None} == {one.name.lower() for one in Eagerness}
    proposals = [row["proposal"] for row in lively.rows["proposal"]]
    assert {row["outcome"] for row in proposals} == {"cancelled", "dropped"}
    for flag in ("payload_only", "sparse"):
        assert any(row[flag] for row in proposals)
    assert any(row["offset"] for row in proposals)
    assert any(row["lower_info"] not in (None, 1, row["start"]) for row in proposals)
    sessions = [row["session"] for row in lively.rows["session"]]
    assert {row[side]["send_mode"] for row in sessions for side in ("client", "server")} == {"safe", "greedy"}
    assert {row["client"]["compression_window"] for row in sessions} == {0, 8192, 32768}
    for row in sessions:
        for side, peer in (("client", "server"), ("server", "client")):
            assert row[side]["receive_mode"] == row[peer]["send_mode"]
            assert row[side]["decompression_window"] == row[peer]["compression_window"]
    assert {row["data_stream"] for row in sessions} == {1, 2}
    assert {row["closed"] for row in sessions} == {"fin", "reset"}


def test_ids_are_used_again(lively: Judged) -> None:
    proposals = [(row["connection_id"], row["proposal_id"]) for row in lively.rows["proposal"]]
    assert len(set(proposals)) < len(proposals) / 2


def test_both_sides_propose_and_both_send(lively: Judged) -> None:
    proposals = [row["proposal"] for row in lively.rows["proposal"]]
    assert {row["proposer"] for row in proposals} == {"client", "server"}
    senders = {row["direction"] for row in lively.messages if row["kind"] == "metadata"}
    assert senders == {"client", "server"}


@pytest.mark.parametrize("share", [0, 1])
def test_logs_end_or_do_not(share: float) -> None:
    tags = [one.data[0] for one in entries(replace(SMALL, ended_share=share))]
    assert sum(tags) == share * SMALL.connections * SMALL.logs
    assert sum(tags[SMALL.entries - 1 :: SMALL.entries]) == sum(tags)


def test_forks_are_proved() -> None:
    judged = judge(replace(SMALL, forks=1))
    assert judged.found == {"fork": 2}
    shown = [row for row in judged.messages if row["code"] == CancelReason.FORKED]
    assert {len(row["entries"]) for row in shown} == {2}


def test_connections_are_recognised_by_their_beginning() -> None:
    for conversation in connections(replace(SMALL, connections=6, entries=1)):
        sides = written(conversation)
        told = recognises(sides[Direction.CLIENT][:400], sides[Direction.SERVER][:400])
        # Streams that are created come with packets that are about no usual stream.
        assert told is not None or b"\x30\x02" in sides[Direction.CLIENT][:40]


def test_without_bymux_each_channel_has_a_connection() -> None:
    config = replace(LIVELY, transport=TWO_CONNECTIONS, connections=2)
    options = BambooOptions.from_mapping(source_options(config))
    pairs = list(connections(config))
    assert [pair.server.port for pair in pairs] == [*PORTS.values()] * 2
    for conversation in pairs:
        channel = options.channel_at(conversation.server.port)
        assert channel is not None
        for data in written(conversation).values():
            received = ChannelReader(Channel(channel)).receive(data)
            assert len(received) > 20
            assert all(one.rule is None for one in received)
            assert received[-1].byte_end == len(data)


@pytest.mark.parametrize("mode", ["safe", "greedy"])
def test_legal_traffic_over_two_connections_breaks_no_rule(mode: str) -> None:
    config = replace(LIVELY, transport=TWO_CONNECTIONS, connections=3, mode=mode, proactive="server")
    judged = judge(config)
    assert not judged.found
    assert all(map(judged.apologised, (row for row, _ in judged.invalid)))
    assert {row["data"] for row in judged.entries} >= {one.data for one in entries(config)}
    sessions = [row["session"] for row in judged.rows["session"]]
    assert {row["client"]["send_mode"] for row in sessions} == {mode}


@pytest.mark.parametrize("seed", range(2))
def test_what_a_capture_of_two_connections_lacks_is_nobodys_violation(seed: int) -> None:
    config = replace(LIVELY, transport=TWO_CONNECTIONS, connections=3, seed=seed)
    judged = judge(config, Disturbances(seed, reordered=0.2, repeated=0.2, lost=0.05))
    assert set(judged.severities) == {"note"}


def test_the_same_configuration_gives_the_same_packets() -> None:
    assert_the_same_again(simulate, replace(LIVELY, connections=2))


@pytest.mark.parametrize("suffix", list(OTHER_RECORDS))
def test_files_of_entries_are_read_back(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"log{suffix}"
    name, make = OTHER_RECORDS[suffix]
    made = list(make(SMALL))
    assert name == "entries"
    assert WRITERS[suffix](iter(made), path) == len(made) == SMALL.connections * SMALL.logs * SMALL.entries
    read = list(entry_files.read([path.read_bytes()]))
    assert [one.entry for one in read] == [one.data for one in made]
    assert [one.payload for one in read] == [one.payload if suffix == ".jsonl" else None for one in made]
    verdicts = verify([one.data for one in made], [one.payload for one in made]).entries["verdict"]
    assert set(verdicts.to_pylist()) == {"valid"}


def test_what_is_kept_does_not_grow() -> None:
    def peak(count: int) -> int:
        packets = simulate(replace(SMALL, connections=1, logs=1, entries=10_000, payload_bytes=9000, live_share=0))
        for _ in islice(packets, 200):
            pass
        tracemalloc.start()
        for _ in islice(packets, count):
            pass
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    assert peak(3000) < peak(1500) * 1.3


@pytest.mark.parametrize(
    ("key", "value"),
    [("mode", "both"), ("transport", "tcp"), ("connections", 0), ("live_share", 1.5), ("fault", "none"), ("ways", -1)],
)
def test_a_wrong_option_is_refused(key: str, value: Any) -> None:
    with pytest.raises(OptionError, match=key):
        SimulatorConfig(**{key: value})


def test_a_connection_for_each_pair(lively: Judged) -> None:
    assert len(lively.rows[CONNECTION]) == LIVELY.connections
