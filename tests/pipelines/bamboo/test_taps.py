"""A connection that two sources of a service saw, each with losses of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.running import land, run, select
from wirehouse_codecs.bamboo.simulator.simulator import PORT, SimulatorConfig, simulate
from wirehouse_codecs.simulate.pcap_writer import write_file
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows

pytestmark = pytest.mark.property


def test_entries_that_one_of_them_lost_the_other_has(in_process: Any, tmp_path: Path) -> None:
    packets = list(simulate(SimulatorConfig(seed=3, connections=1, logs=1, entries=60, ways=0)))
    early, late = len(packets) // 3, 2 * len(packets) // 3
    sources = []
    for name, lost in {"a": early, "b": late}.items():
        write_file([*packets[:lost], *packets[lost + 3 :]], tmp_path / f"{name}.pcap")
        place = str(tmp_path / f"{name}.pcap")
        sources.append(Source(name, "bamboo", "pcap", place, {"service": "taps"}, ports=(PORT,)))
    lake = Lake(str(tmp_path / "lake"), Windows("day", "2015-01-01"), tuple(sources))
    land(lake)
    run(in_process, lake)
    sent = "SELECT DISTINCT source, entry['entry_hash'] AS entry_hash FROM silver.bamboo WHERE row_kind = 'entry'"
    by_source: dict[str, set[bytes]] = {"a": set(), "b": set()}
    for row in select(lake, sent):
        if row["entry_hash"] is not None:
            by_source[row["source"]].add(row["entry_hash"])
    assert by_source["b"] - by_source["a"]
    told = {row["entry_hash"] for row in select(lake, "SELECT entry_hash FROM gold.bamboo_entries")}
    assert told >= by_source["a"] | by_source["b"]
