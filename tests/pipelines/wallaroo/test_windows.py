"""Connections over windows cut anywhere, run in any way, in files that were rotated or come late: the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cut_anywhere import CutAnywhere, write
from tests.support.running import select
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_codecs.wallaroo.simulator.connector import PORT
from wirehouse_codecs.wallaroo.simulator.simulator import SimulatorConfig, simulate
from wirehouse_pipelines.lake import hash_key
from wirehouse_pipelines.lake.lake import Lake, Source

pytestmark = pytest.mark.property

_MINUTE_MS = 60_000
#: From 22:13 on, over midnight. The connections of `slow` are silent for longer than one may be idle.
STREAMS = {
    "busy": SimulatorConfig(
        seed=1,
        messages_per_connector=600,
        burst_messages=30,
        interval_ms=10 * _MINUTE_MS,
        checkpoint_ms=15 * _MINUTE_MS,
        reset_share=0.1,
        reconnects=2,
        reopens=1,
    ),
    "text": SimulatorConfig(
        seed=2,
        dialect="seed_sid",
        connectors=1,
        messages_per_connector=200,
        burst_messages=20,
        interval_ms=20 * _MINUTE_MS,
        reset_share=0.2,
    ),
    "slow": SimulatorConfig(
        seed=3, connectors=1, messages_per_connector=60, burst_messages=20, interval_ms=150 * _MINUTE_MS
    ),
    "unruly": SimulatorConfig(seed=4, connectors=1, messages_per_connector=40, fault="reconnect_without_backoff"),
    "lossy": SimulatorConfig(seed=5, connectors=2, messages_per_connector=200, interval_ms=12 * _MINUTE_MS),
}
#: Of a source that reads the captures of `slow`: silence that ends no connection.
PATIENT = TcpOptions(idle_ns=4 * 3600 * 10**9)


@pytest.fixture(scope="module", autouse=True)
def _one_hash_key() -> Iterator[None]:
    """Cookies of all lakes have the same hashes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(hash_key.VARIABLE, "key of the tests")
        yield


def _later(at_ns: int) -> Iterator[CapturedPacket]:
    """Another connection."""
    return simulate(SimulatorConfig(connectors=1, messages_per_connector=20, start_time_ms=at_ns // 1_000_000))


class TestWindows(CutAnywhere):
    protocol = "wallaroo"

    def sources(self, folder: Path) -> list[Source]:
        write(STREAMS, simulate, folder, _later)
        patient = Source("patient", "wallaroo", "pcap", str(folder / "slow"), ports=(PORT,), tcp=PATIENT)
        listed = [Source(name, "wallaroo", "pcap", str(folder / name), ports=(PORT,)) for name in STREAMS]
        return [*listed, patient]

    def test_the_captures_are_worth_comparing(self, at_once: Lake) -> None:
        rules = {row["rule"] for row in select(at_once, "select rule from gold.violations")}
        assert {"wallaroo.reconnect_without_backoff", "capture.hole"} <= rules
        closed = {
            (row["source"], row["closed"]) for row in select(at_once, "select source, closed from silver.connections")
        }
        assert {("busy", "fin"), ("slow", "idle"), ("patient", "fin")} <= closed
        assert ("patient", "idle") not in closed
        assert select(at_once, "select * from gold.wallaroo_stream_progress where replayed > 0")
        assert select(at_once, "select * from silver.quarantine")
