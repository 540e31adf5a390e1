"""Segments of a port pair are read in runs with the same rows as one by one."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.support.landed import landed_packets
from wirehouse_codecs.logs import tcp_inspection
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket
from wirehouse_codecs.wallaroo.log.log import starter
from wirehouse_codecs.wallaroo.log.schema import SCHEMA
from wirehouse_codecs.wallaroo.options import WallarooOptions
from wirehouse_codecs.wallaroo.simulator.connector import PORT
from wirehouse_codecs.wallaroo.simulator.simulator import SimulatorConfig, simulate


def _captured(random: Random, *, whole: bool) -> list[CapturedPacket]:
    """Packets of several connections, some of them lost, sent again or out of order; `whole`: with all handshakes."""
    config = SimulatorConfig(connectors=4, messages_per_connector=300, reconnects=1, reset_share=0.3)
    packets = list(simulate(config))
    packets = packets if whole else packets[len(packets) // 4 :]
    kept = [each for each in packets for _ in range(random.choices((0, 1, 2), (1, 98, 1))[0])]
    for at in random.sample(range(len(kept) - 1), len(kept) // 50):
        first, second = kept[at], kept[at + 1]
        kept[at : at + 2] = [second._replace(ts_ns=first.ts_ns), first._replace(ts_ns=second.ts_ns)]
    return kept


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("port", [PORT, None])
@pytest.mark.parametrize("seed", range(3))
def test_runs_of_segments_give_the_rows_that_segments_one_by_one_give(
    seed: int, port: int | None, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured = _captured(Random(seed), whole=whole)

    def rows() -> list[dict[str, Any]]:
        start = starter(WallarooOptions(), b"key")
        return list(tcp_inspection.read(landed_packets(captured), start, SCHEMA, port))

    in_runs = rows()
    monkeypatch.setattr(tcp_inspection._Connections, "_receive_by_pair", tcp_inspection._Connections._receive_in_order)
    assert in_runs == rows()
    assert {row["row_kind"] for row in in_runs} > {"message", "connection", "violation"}


def test_the_pairs_that_were_silent_for_longest_are_dropped_first(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = _captured(Random(1), whole=True)
    monkeypatch.setattr(tcp_inspection, "MOST_PAIRS", 2)
    monkeypatch.setattr(tcp_inspection, "MOST_ENDED", 0)
    monkeypatch.setattr(tcp_inspection, "PIECE_PACKETS", 50)

    def rows() -> list[dict[str, Any]]:
        return list(tcp_inspection.read(landed_packets(captured), starter(WallarooOptions(), b"key"), SCHEMA, PORT))

    in_runs = rows()
    monkeypatch.setattr(tcp_inspection._Connections, "_receive_by_pair", tcp_inspection._Connections._receive_in_order)
    assert in_runs == rows()
