"""Calls, logs and files over windows cut anywhere, run in any way, rotated or late: the same rows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.cut_anywhere import CutAnywhere, write
from tests.support.hiero_files import grpc_log_of
from tests.support.running import select
from wirehouse_codecs.captures.pcap import PacketCapture
from wirehouse_codecs.hiero.profiles import DEFAULT_PORT
from wirehouse_codecs.hiero.simulator.simulator import SimulatorConfig, simulate
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket, write_file
from wirehouse_pipelines.lake.lake import Lake, Source

pytestmark = pytest.mark.property

VECTORS = Path(__file__).parents[2] / "vectors" / "hiero"
_MINUTE_MS = 60_000
#: From 22:13 on, over midnight.
NETWORKS = {
    "busy": SimulatorConfig(seed=1, blocks=16, block_bytes=1_500, interval_ms=12 * _MINUTE_MS, incident_rounds=2),
    "lossy": SimulatorConfig(seed=2, profile="A", blocks=12, block_bytes=1_500, interval_ms=15 * _MINUTE_MS),
}


def _later(at_ns: int) -> list[CapturedPacket]:
    """Calls at another node."""
    with (VECTORS / "new" / "behind_resend.pcap").open("rb") as stream:
        told = [row for batch in PacketCapture(stream).batches() for row in batch.to_pylist()]
    shift = at_ns - told[0]["ts_ns"]
    return [CapturedPacket(row["ts_ns"] + shift, row["data"]) for row in told]


class TestWindows(CutAnywhere):
    protocol = "hiero"

    def sources(self, folder: Path) -> list[Source]:
        write(NETWORKS, simulate, folder, _later)
        logs, blocks = folder / "log", folder / "blocks"
        logs.mkdir()
        write_file(simulate(NETWORKS["busy"]), folder / "whole.pcap")
        others = (VECTORS / path for path in ("new/behind_resend.pcap", "old/duplicate_block.pcap"))
        for number, path in enumerate([folder / "whole.pcap", *others]):
            (logs / f"{number}.binlog").write_bytes(grpc_log_of(path, DEFAULT_PORT, f"network-{number}-{{}}"))
        blocks.mkdir()
        for path in (VECTORS / "blocks").glob("cn073_tss_*"):
            shutil.copy(path, blocks)
        return [
            *(Source(name, "hiero", "pcap", str(folder / name), ports=(DEFAULT_PORT,)) for name in NETWORKS),
            Source("log", "hiero", "grpc_log", str(logs)),
            Source("blocks", "hiero", "blocks", str(blocks)),
        ]

    def test_the_captures_are_worth_comparing(self, at_once: Lake, hours: Lake) -> None:
        assert {row["state"] for row in select(at_once, "SELECT state FROM gold.hiero_catch_ups")} >= {"done"}
        assert select(at_once, "SELECT * FROM gold.hiero_publisher_sessions WHERE next_call IS NOT NULL")
        assert {"capture.hole"} <= {row["rule"] for row in select(at_once, "SELECT rule FROM gold.violations")}
        carried = "SELECT * FROM silver.hiero WHERE row_kind = 'state' AND source = 'log' AND state IS NOT NULL"
        assert select(hours, carried)

    def test_legal_traffic_breaks_no_rule(self, at_once: Lake) -> None:
        """Nor does a packet that the capture lost."""
        told = "SELECT source, rule, message FROM gold.hiero_violations WHERE rule LIKE 'hiero.%'"
        assert select(at_once, told) == []
