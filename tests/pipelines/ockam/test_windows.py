"""Connections over windows cut anywhere, run in any way, in files that were rotated or come late: the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cut_anywhere import CutAnywhere, rotate, write
from tests.support.ockam_clients import PORT as CLIENTS_PORT
from tests.support.ockam_clients import STORED, captured, consumed
from tests.support.running import select
from wirehouse_codecs.ockam.simulator.service import PORT
from wirehouse_codecs.ockam.simulator.simulator import SimulatorConfig, simulate
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket
from wirehouse_pipelines.lake.lake import Lake, Source

pytestmark = pytest.mark.property

_MINUTE_MS = 60_000
#: From 22:13 on, over midnight.
STREAMS = {
    "busy": SimulatorConfig(
        seed=1,
        messages_per_publisher=300,
        interval_ms=5 * _MINUTE_MS,
        poll_ms=7 * _MINUTE_MS,
        resend_share=0.05,
        index_gap_share=0.1,
        restarts=2,
        service_restarts=1,
    ),
    "retained": SimulatorConfig(
        seed=2,
        dialect="cbor32",
        names="specification",
        messages_per_publisher=200,
        retained=40,
        interval_ms=8 * _MINUTE_MS,
        poll_ms=50 * _MINUTE_MS,
    ),
    "lossy": SimulatorConfig(seed=3, messages_per_publisher=200, interval_ms=8 * _MINUTE_MS, poll_ms=10 * _MINUTE_MS),
}


def _later(at_ns: int) -> Iterator[CapturedPacket]:
    """Another connection."""
    return simulate(SimulatorConfig(publishers=1, messages_per_publisher=20, start_time_ms=at_ns // 1_000_000))


class TestWindows(CutAnywhere):
    protocol = "ockam"

    def sources(self, folder: Path) -> list[Source]:
        write(STREAMS, simulate, folder, _later)
        # Its client's connections and the messages on each lie in several windows.
        said = [*STORED, *consumed("a1", "a2")]
        split = list(captured(*said, second_ns=5400 * 10**9, start_ns=1_700_000_000 * 10**9))
        rotate([*split, *_later(split[-1].ts_ns + 5 * 3600 * 10**9)], folder / "split")
        streams = [Source(name, "ockam", "pcap", str(folder / name), ports=(PORT,)) for name in STREAMS]
        return [*streams, Source("split", "ockam", "pcap", str(folder / "split"), ports=(PORT, CLIENTS_PORT))]

    def test_the_captures_are_worth_comparing(self, at_once: Lake) -> None:
        assert {row["kind"] for row in select(at_once, "SELECT kind FROM gold.ockam_delivery_holes")} >= {"server_gap"}
        assert select(at_once, "SELECT * FROM gold.ockam_streams WHERE incarnation = 2")
        assert select(at_once, "SELECT * FROM gold.ockam_stream_indexes WHERE lag > 0 OR connections > 1")
        assert {"capture.hole"} <= {row["rule"] for row in select(at_once, "SELECT rule FROM gold.violations")}

    def test_a_client_is_followed_over_connections(self, at_once: Lake) -> None:
        told = "SELECT stream_address, saved, delivered, lag, connections FROM gold.ockam_stream_indexes"
        row = {"stream_address": "orders-1", "saved": 4, "delivered": 4, "lag": 6, "connections": 2}
        assert select(at_once, f"{told} WHERE client_id = 'me'") == [row]

    def test_the_last_change_of_lag_is_how_a_client_stands(self, at_once: Lake) -> None:
        names = "source, client_id, stream_name, stream_address, saved, `position`, delivered, latest, lag, lost"
        newest = "PARTITION BY source, client_id, stream_address ORDER BY arrived_at_ns DESC, record_number DESC"
        last = f"SELECT *, ROW_NUMBER() OVER ({newest}) AS newer FROM gold.ockam_lag"
        changed = select(at_once, f"SELECT {names} FROM ({last}) AS changes WHERE newer = 1")
        stand = select(at_once, f"SELECT {names} FROM gold.ockam_stream_indexes WHERE stream_address IS NOT NULL")
        assert sorted(map(str, changed)) == sorted(map(str, stand))
        causes = select(at_once, "SELECT DISTINCT cause FROM gold.ockam_lag")
        assert {row["cause"] for row in causes} == {"push", "save", "pull", "delete", "incarnation"}

    def test_legal_traffic_breaks_no_rule(self, at_once: Lake) -> None:
        """Nor does a packet that the capture lost."""
        told = (
            "SELECT source, rule, message FROM gold.ockam_violations WHERE rule LIKE 'ockam.%' AND severity <> 'note'"
        )
        assert select(at_once, told) == []
