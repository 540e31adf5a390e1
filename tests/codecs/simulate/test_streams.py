"""The bytes of simulated connections as files."""

from __future__ import annotations

from pathlib import Path

import pytest

from wirehouse_codecs.logs import tcp_inspection
from wirehouse_codecs.simulate.script import written
from wirehouse_codecs.simulate.streams import write_streams
from wirehouse_codecs.wallaroo.simulator.simulator import SimulatorConfig, connections, simulate


def test_each_side_of_each_connection_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = SimulatorConfig(connectors=2, messages_per_connector=300, reconnects=2)
    folder = tmp_path / "talk.streams"
    folder.mkdir()
    for name in ("0099-client.bin", "mine.bin"):
        (folder / name).write_bytes(b"before")
    monkeypatch.setattr(tcp_inspection, "PIECE_PACKETS", 7)
    assert write_streams(simulate(config), folder) == len(list(simulate(config)))
    assert (folder / "mine.bin").read_bytes() == b"before"
    begun = [(each.opened_ns, written(each)) for each in connections(config)]
    begun.sort(key=lambda each: each[0])
    assert len(begun) == 6
    expected = {
        f"{number:04}-{direction}.bin": data
        for number, (_, sides) in enumerate(begun, 1)
        for direction, data in sides.items()
    }
    assert {path.name: path.read_bytes() for path in folder.glob("0*")} == expected
