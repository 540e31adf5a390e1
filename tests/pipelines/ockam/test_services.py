"""Sources that see one service: what is known of it is as if one capture had seen everything."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.running import land, run, select
from tests.support.services import assert_seen_as_one, seen
from wirehouse_codecs.simulate.pcap_writer import write_file
from wirehouse_orchestration.evidence.trace import trace
from wirehouse_pipelines.jobs import runner
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows

pytestmark = pytest.mark.property
SESSIONS = Path(__file__).parents[2] / "vectors" / "ockam" / "sessions"
NAME = "spec_gaps"
EXPECTED = json.loads((SESSIONS / f"{NAME}.expected.json").read_text())
PORT: int = EXPECTED["server_port"]
#: Who sees what: publishers, clients that only pull, and publishers as another node sees them.
SEEN_BY: dict[str, dict[str, Any]] = {"publishers": {}, "consumers": {"others": True}, "node": {"later_ns": 50_000}}
#: Columns that say who saw it.
WHO = ("source", "capture_id", "record_number", "connection_id")
TABLES = {
    "gold.ockam_streams": "stream_address",
    "gold.ockam_stream_messages": "stream_address, `index`",
    "gold.ockam_stream_indexes": "client_id, stream_name, partition",
    "gold.ockam_delivery_holes": "client_id, stream_address, first_index",
}


@pytest.fixture(scope="module")
def lake(in_process: Any, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """One capture of everything; one of the publishers, which a second node sees too, beside one of other clients."""
    folder = tmp_path_factory.mktemp("services")
    whole = Source("whole", "ockam", "pcap", str(SESSIONS / f"{NAME}.pcap"), ports=(PORT,))
    parts = []
    ports = {said["client_port"] for said in EXPECTED["connections"] if said["client"].startswith("p")}
    for name, how in SEEN_BY.items():
        path = folder / f"{name}.pcap"
        write_file(seen(SESSIONS / f"{NAME}.pcap", ports, **how), path)
        parts.append(Source(name, "ockam", "pcap", str(path), {"service": "hub-1"}, ports=(PORT,)))
    lake = Lake(str(folder / "lake"), Windows("day", "2015-01-01"), (whole, *parts))
    land(lake)
    run(in_process, lake)
    return lake


@pytest.mark.parametrize("table", TABLES)
def test_a_service_of_two_captures_is_as_one_of_one(lake: Lake, table: str) -> None:
    assert_seen_as_one(lake, table, TABLES[table], "hub-1", WHO)


def test_what_two_nodes_see_is_found_once(lake: Lake) -> None:
    told = "SELECT rule, COUNT(*) AS times FROM gold.ockam_found WHERE source = '{}' GROUP BY rule ORDER BY rule"
    assert select(lake, told.format("hub-1")) == select(lake, told.format("whole"))


@pytest.mark.parametrize("table", ["gold.ockam_stream_messages", "gold.ockam_streams"])
def test_rows_of_a_service_lead_to_their_bytes(lake: Lake, table: str) -> None:
    row = select(lake, f"SELECT * FROM {table} WHERE source = 'hub-1'")[0]
    out = io.StringIO()
    trace(lake, table, f"source=hub-1,stream_address={row['stream_address']}", out)
    assert "consumers" in out.getvalue() or "publishers" in out.getvalue()


def test_what_one_capture_changes_is_stale_for_the_service_alone(in_process: Any, lake: Lake) -> None:
    assert runner.stale(lake) == {}
    impatient = {"service": "hub-1", "answer_timeout_s": 60}
    parts = [replace(source, options=impatient) for source in lake.sources if source.name in SEEN_BY]
    other = Lake(lake.root, lake.windows, (lake.source("whole"), *parts))
    assert set(runner.stale(other)) == {"silver.ockam", "gold.ockam"}
    windows = runner.data_windows(other)
    assert runner.run_job(in_process, other, "silver.ockam", windows[0], windows[-1]).windows == tuple(windows)
    assert runner.run_job(in_process, other, "gold.ockam", windows[0], windows[-1]).windows == tuple(windows)
    assert runner.stale(other) == {}
