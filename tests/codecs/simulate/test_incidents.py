"""Incidents of all simulators: the seed decides on whom and since when, and the correlation finds just that."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from ipaddress import ip_address
from itertools import pairwise
from typing import Any

import pytest

from tests.codecs.bamboo.simulator import simulated as bamboo
from tests.codecs.cardinal.correlation import test_consumer as cardinal
from tests.codecs.ockam.simulator import test_simulator as ockam
from tests.codecs.wallaroo.simulator import test_simulator as wallaroo
from tests.support import hiero_captures as hiero
from wirehouse_codecs.cardinal.correlation.events import Canonical, ReorgRow
from wirehouse_codecs.core.errors import OptionError
from wirehouse_codecs.hiero.correlation.rows import CatchUpRow, SessionRow
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.ockam.correlation.events import ConsumerRow
from wirehouse_codecs.tcp.endpoints import Direction
from wirehouse_codecs.tcp.link_types import ETHERNET
from wirehouse_codecs.tcp.packets import read_packet
from wirehouse_codecs.wallaroo.frames import Message, NotifyAck
from wirehouse_codecs.wallaroo.simulator.connector import PORT
from wirehouse_codecs.wallaroo.simulator.incidents import LOST_MESSAGES, LOST_NS

Truth = Mapping[str, Any]
SEEDS = range(8)
#: What is affected is seen so soon, nanoseconds.
SOON_NS = 3 * 10**9
MODULES = {
    name: import_module(f"wirehouse_codecs.{name}.simulator.simulator")
    for name in ("cardinal", "ockam", "hiero", "wallaroo", "bamboo")
}
INCIDENTS = [(protocol, name) for protocol, module in MODULES.items() for name in module.INCIDENTS]


def configured(protocol: str, name: str, **changes: Any) -> Any:
    module = MODULES[protocol]
    return module.SimulatorConfig(incident=name, **{**module.INCIDENTS[name].settings, **changes})


def truth(config: Any, protocol: str) -> Truth:
    told: Truth = MODULES[protocol].INCIDENTS[config.incident].truth(config)
    return told


def simulated(protocol: str, config: Any) -> list[Any]:
    return list(MODULES[protocol].simulate(config))


def soon(truth: Truth, at_ns: int) -> bool:
    return -SOON_NS < at_ns - int(truth["since_ns"]) < SOON_NS


@pytest.mark.parametrize(("protocol", "name"), INCIDENTS)
def test_the_seed_decides_whom_it_affects_and_since_when(protocol: str, name: str) -> None:
    told = [truth(configured(protocol, name, seed=seed), protocol) for seed in SEEDS]
    assert told == [truth(configured(protocol, name, seed=seed), protocol) for seed in SEEDS]
    assert len({str(one) for one in told}) > len(SEEDS) // 2
    start_ns = configured(protocol, name).start_time_ms * 10**6
    assert all(0 <= one["since_ns"] - start_ns < 90 * 10**9 for one in told)


def test_a_name_is_of_one_incident() -> None:
    names = [name for _, name in INCIDENTS]
    assert len(names) == len(set(names)) == 13
    assert all(MODULES[protocol].INCIDENTS[name].what.endswith(".") for protocol, name in INCIDENTS)


@pytest.mark.parametrize("protocol", MODULES)
def test_an_unknown_incident_is_refused(protocol: str) -> None:
    with pytest.raises(OptionError, match="no incident 'none'"):
        MODULES[protocol].SimulatorConfig(incident="none")


@pytest.mark.parametrize(
    ("protocol", "name", "changes"),
    [
        ("ockam", "consumer-lag", {"consumers": 0}),
        ("ockam", "retention-loss", {"retained": 0}),
        ("hiero", "node-behind", {"nodes": 1}),
        ("hiero", "blocks-late", {"subscribers": 0}),
        ("wallaroo", "connector-without-credit", {"messages_per_connector": 100}),
    ],
)
def test_an_incident_that_can_not_begin_affects_nobody(protocol: str, name: str, changes: dict[str, Any]) -> None:
    config = configured(protocol, name, **changes)
    assert truth(config, protocol) == {}
    assert simulated(protocol, config)


def test_dialects_without_resume_have_no_incident() -> None:
    for dialect in ("seed", "sink"):
        with pytest.raises(OptionError, match=f"there is no resume-lost-messages in {dialect}, but in v2a, v2b, v3"):
            configured("wallaroo", "resume-lost-messages", dialect=dialect)


@pytest.mark.parametrize("seed", range(2))
def test_a_chain_stalls(seed: int) -> None:
    config = configured("cardinal", "chain-stall", seed=seed)
    told = cardinal.consumed(config)
    # An announced reorg or weight made none; a head that misses nothing moves on.
    heads = [one for one in told.outcomes if isinstance(one, Canonical)]
    assert max(one.number for one in heads) == truth(config, "cardinal")["head_number"]
    assert not [one for one in told.outcomes if isinstance(one, ReorgRow)]


@pytest.mark.parametrize("seed", range(2))
def test_a_chain_is_reorganised(seed: int) -> None:
    config = configured("cardinal", "chain-reorg", seed=seed)
    true = truth(config, "cardinal")
    told = cardinal.consumed(config)
    reorg = next(one for one in told.outcomes if isinstance(one, ReorgRow))
    assert (reorg.ancestor_number, reorg.depth) == (true["ancestor_number"], true["depth"])
    assert soon(true, reorg.place.arrived_at_ns)
    assert cardinal.found(told) == set()


@pytest.mark.parametrize("name", ["consumer-lag", "retention-loss"])
def test_a_consumer_lags(name: str) -> None:
    config = configured("ockam", name, seed=3)
    true = truth(config, "ockam")
    judged = ockam.judge(simulated("ockam", config))
    rows = [one for one in judged.told if isinstance(one, ConsumerRow)]
    (worst,) = (one for one in rows if one.lag and one.lag > 100)
    assert all(getattr(worst, key) == value for key, value in true.items() if key != "since_ns")
    assert bool(worst.lost) == (name == "retention-loss")
    assert not judged.found


def test_a_publisher_backs_off() -> None:
    config = configured("hiero", "publisher-backoff", seed=3)
    true = truth(config, "hiero")
    judged = hiero.judge(simulated("hiero", config), HieroOptions())
    failed = {one.call: one for one in judged.of(SessionRow) if one.failed}.values()
    assert {(one.publisher, one.node) for one in failed} == {(true["publisher"], true["node"])}
    assert soon(true, min(one.opened_at_ns for one in failed))
    assert not judged.found


def test_a_node_falls_behind() -> None:
    config = configured("hiero", "node-behind", seed=3)
    true = truth(config, "hiero")
    judged = hiero.judge(simulated("hiero", config), HieroOptions())
    late = {one.where: one for one in judged.of(CatchUpRow) if one.reported is not None}.values()
    assert [one.node for one in late] == [true["node"]]
    assert all(soon(true, one.attempts[0][0]) and one.fetched for one in late)
    assert not judged.found


def test_blocks_are_late_at_subscribers() -> None:
    config = configured("hiero", "blocks-late", seed=3)
    true = truth(config, "hiero")
    judged = hiero.judge(simulated("hiero", config), HieroOptions())
    assert not judged.found
    stored = {(row["node"], row["block_number"]): row["arrived_at_ns"] for row in judged.messages("acknowledgement")}
    late = [
        (row["node"], stored[row["node"], row["block_number"]])
        for row in judged.rows["block"]
        if row["publisher"] is None and row["client"].startswith("10.2.")
        if row["block"]["first_at_ns"] - stored[row["node"], row["block_number"]] > 10**9
    ]
    assert {node for node, _ in late} == {true["node"]}
    assert soon(true, min(at_ns for _, at_ns in late))
    assert len(late) > 20


def test_a_connector_has_no_credit() -> None:
    config = configured("wallaroo", "connector-without-credit", seed=3)
    judged = wallaroo.Judged(MODULES["wallaroo"].connections(config))
    assert judged.found == {"credits_not_replenished": 1, "message_never_acked": 3}


def test_a_resume_loses_messages() -> None:
    config = configured("wallaroo", "resume-lost-messages", seed=3)
    true = truth(config, "wallaroo")
    judged = wallaroo.Judged(MODULES["wallaroo"].connections(config))
    (resumed,) = (
        frame
        for side, frame in judged.frames
        if side is Direction.SERVER and isinstance(frame, NotifyAck) and frame.point_of_ref == true["resume_point"]
    )
    ids = {
        frame.message_id
        for _, frame in judged.frames
        if isinstance(frame, Message) and frame.stream_id == resumed.stream_id and frame.message_id is not None
    }
    assert set(range(1, max(ids) + 1)) - ids == set(
        range(true["resume_point"] - LOST_MESSAGES + 1, true["resume_point"] + 1)
    )


def test_a_capture_lacks_bytes() -> None:
    config = configured("wallaroo", "bytes-lost-in-capture", seed=3)
    true = truth(config, "wallaroo")
    sent: dict[str, list[int]] = {}
    for packet in simulated("wallaroo", config):
        segment = read_packet(ETHERNET, packet.data)
        assert segment.source_address is not None
        sent.setdefault(str(ip_address(segment.source_address)), []).append(packet.ts_ns)
    (client,) = (
        name
        for name, times in sent.items()
        if name.startswith("10.0.") and any(after - at > LOST_NS for at, after in pairwise(times))
    )
    assert client == true["client_address"]
    assert not [at for at in sent[client] if 0 <= at - true["since_ns"] < LOST_NS]


def test_workers_are_at_another_port() -> None:
    config = configured("wallaroo", "nothing-decoded", seed=3)
    ports = {conversation.server.port for conversation in MODULES["wallaroo"].connections(config)}
    assert ports == {truth(config, "wallaroo")["server_port"]}
    assert PORT not in ports


def test_a_log_forks() -> None:
    config = configured("bamboo", "log-forked", seed=3)
    true = truth(config, "bamboo")
    judged = bamboo.judge(config)
    assert judged.found == {"fork": 1}
    assert {(fork.author, fork.log_id) for fork in judged.verified.forks} == {(true["author"], true["log_id"])}


def test_payloads_are_missing() -> None:
    config = configured("bamboo", "payloads-missing", seed=3)
    true = truth(config, "bamboo")
    judged = bamboo.judge(config)
    skipped = [row for row in judged.messages if row["kind"] == "skip_missing"]
    assert [int(row["seq"]) for row in skipped] == list(range(5, 13))
    assert all(soon(true, row["arrived_at_ns"]) for row in skipped)
    assert not judged.found
