"""Connections over windows cut anywhere, run in any way, in files that were rotated or come late: the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cut_anywhere import CutAnywhere, write
from tests.running import select

from wirehouse_codecs.ockam.service import PORT
from wirehouse_codecs.ockam.simulator import SimulatorConfig, simulate
from wirehouse_codecs.packet_writer import CapturedPacket
from wirehouse_pipelines.lake import Lake, Source

pytestmark = pytest.mark.spark

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
        return [Source(name, "ockam", "pcap", str(folder / name), ports=(PORT,)) for name in STREAMS]

    def test_the_captures_are_worth_comparing(self, at_once: Lake) -> None:
        assert {row["kind"] for row in select(at_once, "SELECT kind FROM gold.ockam_delivery_holes")} >= {"server_gap"}
        assert select(at_once, "SELECT * FROM gold.ockam_streams WHERE incarnation = 2")
        assert select(at_once, "SELECT * FROM gold.ockam_stream_indexes WHERE lag > 0 OR connections > 1")
        assert {"capture.hole"} <= {row["rule"] for row in select(at_once, "SELECT rule FROM gold.violations")}

    def test_legal_traffic_breaks_no_rule(self, at_once: Lake) -> None:
        """Nor does a packet that the capture lost."""
        told = (
            "SELECT source, rule, message FROM gold.ockam_violations WHERE rule LIKE 'ockam.%' AND severity <> 'note'"
        )
        assert select(at_once, told) == []
