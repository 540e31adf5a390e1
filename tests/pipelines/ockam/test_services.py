"""Sources that see one service: what is known of it is as if one capture had seen everything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.running import land, run, select

from wirehouse_codecs.packet_captures import PacketCapture
from wirehouse_codecs.packet_writer import CapturedPacket, write_pcap
from wirehouse_codecs.packets import parse
from wirehouse_pipelines import jobs
from wirehouse_pipelines.lake import Lake, Source
from wirehouse_pipelines.windows import Windows

pytestmark = pytest.mark.spark
SESSIONS = Path(__file__).parents[2] / "vectors" / "ockam" / "sessions"
NAME = "spec_gaps"
EXPECTED = json.loads((SESSIONS / f"{NAME}.expected.json").read_text())
PORT: int = EXPECTED["server_port"]
#: Columns that say who saw it.
WHO = ("source", "capture_id", "record_number", "connection_id")
TABLES = {
    "gold.ockam_streams": "stream_address",
    "gold.ockam_stream_messages": "stream_address, `index`",
    "gold.ockam_stream_indexes": "client_id, stream_name, partition",
    "gold.ockam_delivery_holes": "client_id, stream_address, first_index",
}


def _split(publishers: bool) -> Iterator[CapturedPacket]:
    """The packets of publishers, or of clients that only pull."""
    ports = {said["client_port"] for said in EXPECTED["connections"] if said["client"].startswith("p")}
    with (SESSIONS / f"{NAME}.pcap").open("rb") as stream:
        for batch in PacketCapture(stream).batches():
            for landed, packet in zip(batch.to_pylist(), parse(batch).to_pylist(), strict=True):
                theirs = bool({packet["source_port"], packet["destination_port"]} & ports)
                if theirs is publishers:
                    yield CapturedPacket(landed["ts_ns"], landed["data"])


@pytest.fixture(scope="module")
def lake(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """One capture of everything, and one of the publishers beside one of the other clients."""
    folder = tmp_path_factory.mktemp("services")
    whole = Source("whole", "ockam", "pcap", str(SESSIONS / f"{NAME}.pcap"), ports=(PORT,))
    parts = []
    for name in ("publishers", "consumers"):
        path = folder / f"{name}.pcap"
        with path.open("wb") as stream:
            write_pcap(_split(name == "publishers"), stream)
        parts.append(Source(name, "ockam", "pcap", str(path), {"service": "hub-1"}, ports=(PORT,)))
    lake = Lake(str(folder / "lake"), Windows("day", "2015-01-01"), (whole, *parts))
    land(lake)
    run(spark, lake)
    return lake


@pytest.mark.parametrize("table", TABLES)
def test_a_service_of_two_captures_is_as_one_of_one(lake: Lake, table: str) -> None:
    rows = {
        name: select(lake, f"SELECT * FROM {table} WHERE source = '{name}' ORDER BY {TABLES[table]}")
        for name in ("whole", "hub-1")
    }
    plain = {
        name: [{key: value for key, value in row.items() if key not in WHO} for row in listed]
        for name, listed in rows.items()
    }
    assert plain["hub-1"] == plain["whole"] != []
    assert select(lake, f"SELECT * FROM {table} WHERE source IN ('publishers', 'consumers')") == []


def test_what_one_capture_changes_is_stale_for_the_service_alone(spark: Any, lake: Lake) -> None:
    assert jobs.stale(lake) == {}
    publishers = lake.source("publishers")
    impatient = replace(publishers, options={"service": "hub-1", "answer_timeout_s": 60})
    other = Lake(lake.root, lake.windows, (lake.source("whole"), impatient, lake.source("consumers")))
    assert set(jobs.stale(other)) == {"silver.ockam", "gold.ockam"}
    windows = jobs.data_windows(other)
    assert jobs.run_job(spark, other, "silver.ockam", windows[0], windows[-1]).windows == tuple(windows)
    assert jobs.run_job(spark, other, "gold.ockam", windows[0], windows[-1]).windows == tuple(windows)
    assert jobs.stale(other) == {}
