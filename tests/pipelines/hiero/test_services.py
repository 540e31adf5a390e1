"""Sources that see one service: what is known of it is as if one capture had seen everything."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.hiero_files import grpc_log_of
from tests.support.running import land, run, select
from tests.support.services import assert_seen_as_one, seen
from wirehouse_codecs.simulate.pcap_writer import write_file
from wirehouse_pipelines.jobs import runner
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows

pytestmark = pytest.mark.property
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


#: Who sees what: a publisher each, and the first as another tap does.
SEEN_BY = {"a": ("A", 0), "b": ("B", 0), "again": ("A", 50)}


@pytest.fixture(scope="module")
def lake(in_process: Any, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """One capture of both publishers; one of each, and of the first a second; and packets of one beside a log."""
    folder = tmp_path_factory.mktemp("services")
    sources = [Source("whole", "hiero", "pcap", str(SESSION), ports=(PORT,))]
    for name, (publisher, later_ns) in SEEN_BY.items():
        ports = {call["client_port"] for call in CALLS if call["id"].startswith(publisher)}
        write_file(seen(SESSION, ports, later_ns=later_ns), folder / f"{name}.pcap")
        sources.append(Source(name, "hiero", "pcap", str(folder / f"{name}.pcap"), SERVICE, ports=(PORT,)))
    log = folder / "b.binlog"
    log.write_bytes(grpc_log_of(folder / "b.pcap", PORT, f"127.0.0.1 {PORT}"))
    mixed = {"service": "mixed"}
    sources.append(Source("packets", "hiero", "pcap", str(folder / "a.pcap"), mixed, ports=(PORT,)))
    sources.append(Source("log", "hiero", "grpc_log", str(log), mixed))
    lake = Lake(str(folder / "lake"), Windows("day", "2015-01-01"), tuple(sources))
    land(lake)
    run(in_process, lake)
    return lake


@pytest.mark.parametrize("table", TABLES)
def test_a_service_of_two_captures_is_as_one_of_one(lake: Lake, table: str) -> None:
    assert_seen_as_one(lake, table, TABLES[table], "nodes", WHO)


def test_a_log_and_packets_are_one_service(lake: Lake) -> None:
    told = "SELECT block_number, block_root, chains FROM gold.hiero_blocks WHERE source = '{}' ORDER BY block_number"
    assert select(lake, told.format("mixed")) == select(lake, told.format("whole"))
    both = select(lake, "SELECT publisher FROM gold.hiero_publisher_sessions WHERE source = 'mixed' ORDER BY publisher")
    assert [row["publisher"] for row in both] == ["A-1", "B-1"]


def test_legal_traffic_breaks_no_rule(lake: Lake) -> None:
    assert select(lake, "SELECT source, rule, message FROM gold.hiero_violations WHERE rule LIKE 'hiero.%'") == []


def test_what_one_capture_changes_is_stale_for_the_service_alone(lake: Lake) -> None:
    assert runner.stale(lake) == {}
    impatient = SERVICE | {"patience_ms": 60_000}
    sources = [replace(source, options=impatient) if source.service == "nodes" else source for source in lake.sources]
    other = Lake(lake.root, lake.windows, tuple(sources))
    assert runner.stale(other) == {name: set(runner.data_windows(other)) for name in ("silver.hiero", "gold.hiero")}
