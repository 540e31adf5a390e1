"""Sources that see one service: what is known of it is as if one capture had seen everything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.hiero_files import grpc_log_of
from tests.running import land, run, select

from wirehouse_codecs.packet_captures import PacketCapture
from wirehouse_codecs.packet_writer import CapturedPacket, write_pcap
from wirehouse_codecs.packets import parse
from wirehouse_pipelines import jobs
from wirehouse_pipelines.lake import Lake, Source
from wirehouse_pipelines.windows import Windows

pytestmark = pytest.mark.spark
SESSION = Path(__file__).parents[2] / "vectors" / "hiero" / "new" / "happy_two_publishers.pcap"
CALLS = json.loads(SESSION.with_suffix(".expected.json").read_text())["rpcs"]
PORT: int = CALLS[0]["server_port"]
SERVICE = {"service": "nodes"}
#: Columns that say who saw it.
WHO = ("source", "capture_id", "record_number", "connection_id", "call", "next_call")
TABLES = {
    "gold.hiero_blocks": "block_number",
    "gold.hiero_publisher_sessions": "publisher",
    "gold.hiero_decisions": "publisher, byte_end",
}


def _seen_by(name: str) -> Iterator[CapturedPacket]:
    """The packets of one publisher; or of the first as another tap sees them."""
    if name == "again":
        yield from (CapturedPacket(packet.ts_ns + 50, packet.data) for packet in _seen_by("A"))
        return
    ports = {call["client_port"] for call in CALLS if call["id"].startswith(name)}
    with SESSION.open("rb") as stream:
        for batch in PacketCapture(stream).batches():
            for landed, packet in zip(batch.to_pylist(), parse(batch).to_pylist(), strict=True):
                if {packet["source_port"], packet["destination_port"]} & ports:
                    yield CapturedPacket(landed["ts_ns"], landed["data"])


@pytest.fixture(scope="module")
def lake(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """One capture of both publishers; one of each, and of the first a second; and packets of one beside a log."""
    folder = tmp_path_factory.mktemp("services")
    sources = [Source("whole", "hiero", "pcap", str(SESSION), ports=(PORT,))]
    for name in ("A", "B", "again"):
        path = folder / f"{name}.pcap"
        with path.open("wb") as stream:
            write_pcap(_seen_by(name), stream, resolution="ns")
        sources.append(Source(name.lower(), "hiero", "pcap", str(path), SERVICE, ports=(PORT,)))
    log = folder / "b.binlog"
    log.write_bytes(grpc_log_of(folder / "B.pcap", PORT, f"127.0.0.1 {PORT}"))
    mixed = {"service": "mixed"}
    sources.append(Source("packets", "hiero", "pcap", str(folder / "A.pcap"), mixed, ports=(PORT,)))
    sources.append(Source("log", "hiero", "grpc_log", str(log), mixed))
    lake = Lake(str(folder / "lake"), Windows("day", "2015-01-01"), tuple(sources))
    land(lake)
    run(spark, lake)
    return lake


@pytest.mark.parametrize("table", TABLES)
def test_a_service_of_two_captures_is_as_one_of_one(lake: Lake, table: str) -> None:
    rows = {
        name: select(lake, f"SELECT * FROM {table} WHERE source = '{name}' ORDER BY {TABLES[table]}")
        for name in ("whole", "nodes")
    }
    plain = {
        name: [{key: value for key, value in row.items() if key not in WHO} for row in listed]
        for name, listed in rows.items()
    }
    assert plain["nodes"] == plain["whole"] != []
    assert select(lake, f"SELECT * FROM {table} WHERE source NOT IN ('whole', 'nodes', 'mixed')") == []


def test_a_log_and_packets_are_one_service(lake: Lake) -> None:
    told = "SELECT block_number, block_root, chains FROM gold.hiero_blocks WHERE source = '{}' ORDER BY block_number"
    assert select(lake, told.format("mixed")) == select(lake, told.format("whole"))
    both = select(lake, "SELECT publisher FROM gold.hiero_publisher_sessions WHERE source = 'mixed' ORDER BY publisher")
    assert [row["publisher"] for row in both] == ["A", "B"]


def test_legal_traffic_breaks_no_rule(lake: Lake) -> None:
    assert select(lake, "SELECT source, rule, message FROM gold.hiero_violations WHERE rule LIKE 'hiero.%'") == []


def test_what_one_capture_changes_is_stale_for_the_service_alone(lake: Lake) -> None:
    assert jobs.stale(lake) == {}
    impatient = SERVICE | {"patience_ms": 60_000}
    sources = [replace(source, options=impatient) if source.service == "nodes" else source for source in lake.sources]
    other = Lake(lake.root, lake.windows, tuple(sources))
    assert jobs.stale(other) == {name: set(jobs.data_windows(other)) for name in ("silver.hiero", "gold.hiero")}
