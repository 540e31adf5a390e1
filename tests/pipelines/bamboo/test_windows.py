"""Connections over windows cut anywhere, run in any way, in files that were rotated or come late: the same rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.cut_anywhere import CutAnywhere, write
from tests.support.running import select
from wirehouse_codecs.bamboo.simulator.simulator import PORT, SimulatorConfig, simulate, write_pcap
from wirehouse_pipelines.lake.lake import Lake, Source

pytestmark = pytest.mark.property

_MINUTE_MS = 60_000
#: From 22:13 on, over midnight. Two peers replicate the same logs.
STREAMS = {
    "busy": SimulatorConfig(
        seed=1,
        connections=2,
        replicas=2,
        entries=40,
        live_share=0.8,
        interval_ms=10 * _MINUTE_MS,
        ways=12,
        forks=2,
    ),
    "again": SimulatorConfig(seed=5, connections=2, entries=30, ways=0, ended_share=0.0),
    "lossy": SimulatorConfig(seed=3, connections=1, entries=40, live_share=0.5, interval_ms=16 * _MINUTE_MS, ways=4),
}


class TestWindows(CutAnywhere):
    protocol = "bamboo"

    def sources(self, folder: Path) -> list[Source]:
        write(STREAMS, simulate, folder)
        later = replace(
            STREAMS["again"],
            first_entry=31,
            entries=70,
            start_time_ms=STREAMS["again"].start_time_ms + 200 * _MINUTE_MS,
        )
        with (folder / "again" / "later.pcap").open("wb") as stream:
            write_pcap(simulate(later), stream)
        return [Source(name, "bamboo", "pcap", str(folder / name), ports=(PORT,)) for name in STREAMS]

    def test_the_captures_are_worth_comparing(self, at_once: Lake, hours: Lake) -> None:
        assert select(
            at_once, "SELECT * FROM gold.bamboo_entries WHERE cardinality(seen_from) > 1 AND verdict = 'valid'"
        )
        assert select(at_once, "SELECT * FROM gold.bamboo_forks")
        assert select(hours, "SELECT * FROM gold.bamboo_entries_history WHERE superseded") or select(
            at_once, "SELECT * FROM gold.bamboo_entries WHERE verdict = 'unknown'"
        )
        assert {"capture.hole"} <= {row["rule"] for row in select(at_once, "SELECT rule FROM gold.violations")}

    def test_logs_that_go_on_later_are_verified_with_what_was_known(self, at_once: Lake) -> None:
        logs = select(at_once, "SELECT entries, valid, verified_up_to FROM gold.bamboo_logs WHERE source = 'again'")
        assert [tuple(row.values()) for row in logs] == [(100, 100, 100)] * 4
        # On the wire alone this can't be known.
        sent = "SELECT * FROM silver.bamboo WHERE source = 'again' AND row_kind = 'entry' AND entry['data'] IS NULL"
        assert select(at_once, sent)

    def test_legal_traffic_breaks_no_rule(self, at_once: Lake) -> None:
        """Nor does a packet that the capture lost. A peer that shows a fork tells of somebody else's."""
        told = (
            "SELECT source, rule, message FROM gold.bamboo_violations WHERE rule LIKE 'bamboo.%' AND severity <> 'note'"
        )
        assert [row for row in select(at_once, told) if row["rule"] != "bamboo.fork"] == []
