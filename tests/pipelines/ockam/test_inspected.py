"""`wirehouse inspect` and the pipeline say the same of one capture, and gold has what the vectors expect."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.comparing import Told, assert_the_same_is_said, told_by_both
from tests.support.running import select
from wirehouse_codecs.ockam.simulator.service import PORT
from wirehouse_codecs.ockam.simulator.simulator import SimulatorConfig, simulate
from wirehouse_codecs.simulate.pcap_writer import write_file
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows

pytestmark = pytest.mark.property
SESSIONS = Path(__file__).parents[2] / "vectors" / "ockam" / "sessions"
EXPECTED = {path.name.partition(".")[0]: json.loads(path.read_text()) for path in SESSIONS.glob("*.expected.json")}


#: Rules that a simulated client or service breaks, in a capture each.
FAULTS = ("frame", "routed", "payload", "data_changed", "index_never_confirmed", "index_never_saved")
#: What stays open is idle for long enough before the window ends.
MORNING_MS = 1_699_956_800_000


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    folder = tmp_path_factory.mktemp("captures")
    sources = [
        Source(name, "ockam", "pcap", str(SESSIONS / f"{name}.pcap"), ports=(said["server_port"],))
        for name, said in EXPECTED.items()
    ]
    for dialect, fault in itertools.product(("bare16", "cbor32"), FAULTS):
        path = folder / f"{dialect}-{fault}.pcap"
        config = SimulatorConfig(messages_per_publisher=40, dialect=dialect, fault=fault, start_time_ms=MORNING_MS)
        write_file(simulate(config), path)
        sources.append(Source(path.stem, "ockam", "pcap", str(path), ports=(PORT,)))
    return Lake(str(tmp_path_factory.mktemp("lake")), Windows("day", "2015-01-01"), tuple(sources))


@pytest.fixture(scope="module")
def told(in_process: Any, lake: Lake) -> Told:
    """What inspect and the pipeline tell."""
    return told_by_both(in_process, lake, ["connection_id"])


def test_the_pipeline_has_the_rows_that_inspect_prints(told: Told) -> None:
    assert_the_same_is_said(told)


@pytest.mark.usefixtures("told")
def test_only_what_is_broken_is_found(lake: Lake) -> None:
    rows = select(lake, "SELECT DISTINCT source, rule FROM gold.ockam_violations WHERE severity <> 'note'")
    found = {(row["source"], row["rule"]) for row in rows}
    broken = {(name, f"ockam.{said['violation']}") for name, said in EXPECTED.items() if said["violation"]}
    simulated = {source.name for source in lake.sources} - set(EXPECTED)
    assert found == broken | {(name, f"ockam.{name.partition('-')[2]}") for name in simulated}


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("name", EXPECTED)
def test_streams_and_their_messages(lake: Lake, name: str) -> None:
    streams = {
        row["stream_address"]: row for row in select(lake, f"SELECT * FROM gold.ockam_streams WHERE source = '{name}'")
    }
    stored = select(lake, f"SELECT * FROM gold.ockam_stream_messages WHERE source = '{name}'")
    assert set(streams) == set(EXPECTED[name]["streams"])
    for address, said in EXPECTED[name]["streams"].items():
        row = streams[address]
        told = (row["stream_name"], row["partition"], row["confirmed"], row["incarnation"])
        assert told == (said["stream_name"], said["partition"], said["confirmed"], 1)
        assert (row["first_index"], row["last_index"]) == (said["first_index"], said["last_index"])
        indexes = {index for index, _ in said["messages"]}
        assert {int(each["index"]) for each in stored if each["stream_address"] == address} == indexes


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("name", EXPECTED)
def test_how_far_clients_are(lake: Lake, name: str) -> None:
    rows = select(lake, f"SELECT * FROM gold.ockam_stream_indexes WHERE source = '{name}'")
    clients = {
        f"{row['client_id']}|{row['stream_name']}|{'' if row['partition'] is None else row['partition']}": row
        for row in rows
    }
    for key, said in EXPECTED[name]["saved_indexes_and_lag"].items():
        row = clients[key]
        assert (row["stream_address"], row["saved"], row["lag"]) == (
            said["stream_address"],
            said["saved_index"],
            said["lag_messages"],
        )
        assert (row["delivered_messages"], row["redelivered"]) == (said["delivered_distinct"], said["redelivered"])
        assert row["delivered"] == said["last_delivered"] + 1
    holes = select(lake, f"SELECT * FROM gold.ockam_delivery_holes WHERE source = '{name}'")
    # What the service deleted is no fault of the client.
    by_client = EXPECTED[name]["violation"] == "consumer_hole"
    assert {row["kind"] for row in holes} <= {"consumer_hole" if by_client else "server_gap"}
    missing = [said["not_delivered_below_saved"] for said in EXPECTED[name]["saved_indexes_and_lag"].values()]
    assert sum(row["messages"] for row in holes) == sum(map(len, missing))
