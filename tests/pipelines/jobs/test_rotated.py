"""One long connection in many rotated files gives the rows of the single file, in whatever order these are landed."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.cut_anywhere import rotate
from tests.support.running import select
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket
from wirehouse_codecs.tcp.link_types import ETHERNET
from wirehouse_codecs.tcp.packets import SYN, Segment, read_packet
from wirehouse_codecs.wallaroo.simulator.connector import PORT
from wirehouse_codecs.wallaroo.simulator.simulator import SimulatorConfig, simulate
from wirehouse_pipelines.jobs import bronze, runner
from wirehouse_pipelines.lake import hash_key
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.landing import landing

pytestmark = pytest.mark.spark

FILES = 100
#: 22:13 to 23:40.
CONFIG = SimulatorConfig(seed=7, connectors=1, messages_per_connector=900, burst_messages=9, interval_ms=50_000)
#: Where a row comes from; the source's name is part of the connection's.
_PLACE = {"source", "capture_id", "record_number", "connection_id"}


def segment(packet: CapturedPacket) -> Segment:
    return read_packet(ETHERNET, packet.data)


def by_sender(packets: list[CapturedPacket]) -> list[list[CapturedPacket]]:
    """What an observer of each host captures: the packets that it sends."""
    from_server = [segment(packet).source_port == PORT for packet in packets]
    return [[packet for packet, one in zip(packets, from_server, strict=True) if one is side] for side in (False, True)]


@pytest.fixture(scope="module")
def lake(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A source of the single file, and one for each way to rotate it."""
    folder = tmp_path_factory.mktemp("captures")
    packets = list(simulate(CONFIG))
    assert sum(bool((segment(packet).flags or 0) & SYN) for packet in packets) == 2
    assert len(packets) > 3 * FILES
    rotate(packets, folder / "single", 1)
    rotate(packets, folder / "ordered", FILES)
    rotate(packets, folder / "shuffled", FILES)
    for name, captured in zip(("a", "b"), by_sender(packets), strict=True):
        rotate(captured, folder / "taps" / name, FILES // 2)
    sources = {
        name: Source(name, "wallaroo", "pcap", str(folder / name), ports=(PORT,))
        for name in ("single", "ordered", "shuffled", "taps")
    }
    lake = Lake(str(tmp_path_factory.mktemp("lake")), Windows("hour", "2023-11-14T22"), tuple(sources.values()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(hash_key.VARIABLE, "key of the tests")
        for source in sources.values():
            files = sorted(map(str, Path(source.path).rglob("*.pcap")))
            if source.name != "single":
                assert len(files) == FILES
            if source.name == "shuffled":
                Random(1).shuffle(files)
            # Not at once: several landings, as files come.
            for at in range(0, len(files), 30):
                landing.land(lake, source, files[at : at + 30])
        windows = runner.data_windows(lake)
        assert len(windows) > 1
        for name in (*(job.name for job in bronze.JOBS), "silver.wallaroo"):
            runner.run_job(spark, lake, name, windows[0], windows[-1])
    return lake


@pytest.mark.parametrize("table", ["silver.connections", "silver.wallaroo_messages"])
@pytest.mark.parametrize("source", ["ordered", "shuffled", "taps"])
def test_rotated_files_give_the_rows_of_the_single_one(lake: Lake, table: str, source: str) -> None:
    assert rows(lake, table, source) == rows(lake, table, "single")


def test_the_single_file_is_one_connection(lake: Lake) -> None:
    (row,) = select(lake, "SELECT * FROM silver.connections WHERE source = 'single'")
    assert (row["opened"], row["client_missing_bytes"], row["server_missing_bytes"]) == ("syn", 0, 0)
    assert len(rows(lake, "silver.wallaroo_messages", "single")) > CONFIG.messages_per_connector


def rows(lake: Lake, table: str, source: str) -> list[str]:
    """The rows of a source without their place, in an order of their own."""
    found = select(lake, f"SELECT * FROM {table} WHERE source = '{source}'")
    return sorted(repr({name: value for name, value in row.items() if name not in _PLACE}) for row in found)
