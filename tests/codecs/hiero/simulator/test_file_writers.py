"""A simulated network as block files and as a gRPC log: the same blocks and calls, read by what reads real ones."""

from __future__ import annotations

import gzip
import io
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.hiero_captures import judge
from tests.support.hiero_files import landed_log, read_blocks
from tests.support.searches import fast_first
from wirehouse_codecs.captures.pcap import PacketCapture
from wirehouse_codecs.hiero.inspection import inspect_log
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.profiles import PROFILES
from wirehouse_codecs.hiero.simulator.ledger import Ledger
from wirehouse_codecs.hiero.simulator.simulator import FAULTS, RECORDS, WRITERS, SimulatorConfig, simulate
from wirehouse_codecs.hiero.wire.blocks import number_of

CONFIG = SimulatorConfig(blocks=12, block_bytes=1500, set_bytes=600, incident_rounds=2)


@pytest.mark.parametrize("profile", PROFILES)
def test_blocks_are_files(tmp_path: Path, profile: str) -> None:
    config, folder = replace(CONFIG, profile=profile), tmp_path / "node.blocks"
    written = WRITERS[".blocks"](simulate(config), folder)
    assert written == len(list(simulate(config)))
    paths = sorted(folder.iterdir(), key=lambda path: path.name)
    assert [number_of(path.name) for path in paths] == list(range(config.blocks))
    assert {"".join(path.suffixes) for path in paths} == {".blk", ".blk.gz", ".blk.zstd"}
    ledger = Ledger(config, PROFILES[profile])
    rows = [row for path in paths for row in read_blocks(path.read_bytes(), path.name).rows]
    # A row for each block, nothing that it breaks.
    assert [(row["block_number"], row["block"]["damage"]) for row in rows] == [(n, None) for n in range(config.blocks)]
    for row, following in pairwise(rows):
        assert following["block"]["previous_hash"] in [root["root"] for root in row["block"]["roots"]]
        made = ledger.block(int(row["block_number"]))
        assert row["block"]["item_bytes"] == sum(map(len, (*made.opening, *made.middle, *made.closing)))


def test_blocks_are_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "blocks.tar"
    WRITERS[".tar"](simulate(CONFIG), path)
    rows = read_blocks(path.read_bytes(), "blocks.tar").rows
    assert sorted(row["block_number"] for row in rows) == list(range(CONFIG.blocks))
    assert not any(row["block"]["damage"] for row in rows)
    again = tmp_path / "again.tar"
    WRITERS[".tar"](simulate(CONFIG), again)
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("profile", ["A", "B"])
@pytest.mark.parametrize("fault", fast_first([None, "malformed_message", "resend_from_l1"], count=2))
def test_calls_are_a_log(tmp_path: Path, profile: str, fault: str | None) -> None:
    config, path = replace(CONFIG, blocks=6, profile=profile, fault=fault), tmp_path / "calls.grpclog"
    WRITERS[".grpclog"](simulate(config), path)
    rows = list(inspect_log(landed_log(path)))
    assert [row["rule"] for kind, row in rows if kind == "violation"] == ([] if fault is None else [f"hiero.{fault}"])
    captured = judge(simulate(config), HieroOptions()).rows["message"]
    logged = Counter(row["kind"] for kind, row in rows if kind == "message")
    assert logged == Counter(row["message"]["kind"] for row in captured)
    times = [row["arrived_at_ns"] for kind, row in rows if kind == "message"]
    assert times == sorted(times)


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_capture_is_written_in_every_way(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"capture{suffix}"
    config = replace(CONFIG, blocks=3, fault=next(iter(FAULTS)))
    assert RECORDS == "packets"
    assert WRITERS[suffix](simulate(config), path) == len(list(simulate(config)))
    assert path.is_dir() == (suffix in (".streams", ".blocks"))
    if suffix == ".pcap.gz":
        batches = PacketCapture(io.BytesIO(gzip.decompress(path.read_bytes()))).batches()
        assert sum(batch.num_rows for batch in batches) > 0
