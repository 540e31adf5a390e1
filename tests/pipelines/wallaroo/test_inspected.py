"""`wirehouse inspect` and the pipeline say the same of one capture of packets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.comparing import assert_the_same_is_said, told_by_both
from wirehouse_codecs.simulate.pcap_writer import write_file
from wirehouse_codecs.simulate.script import Disturbances
from wirehouse_codecs.wallaroo.simulator.connector import PORT
from wirehouse_codecs.wallaroo.simulator.simulator import SimulatorConfig, simulate
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.query import sql

pytestmark = pytest.mark.property
VECTORS = Path(__file__).parents[2] / "vectors" / "wallaroo"
FAULTS = (
    ("v3", "oversize_frame"),
    ("v3", "malformed_frame"),
    ("v3", "trailing_bytes"),
    ("v3", "dialect_unsupported"),
    ("v3", "reconnect_without_backoff"),
    ("v3", "capture_ends_early"),
    ("v2b", "flags_not_allowed"),
    ("seed_sid", "nack_not_answered"),
)
#: What stays open is idle for long enough before the window ends.
MORNING_MS = 1_699_956_800_000
#: Columns made of the source's name or of a secret key.
LEFT_OUT = ("connection_id", "cookie_hash")


def test_the_pipeline_has_the_rows_that_inspect_prints(in_process: Any, tmp_path: Path) -> None:
    captures: dict[str, tuple[Path, int]] = {}
    for expected in VECTORS.rglob("expected.json"):
        for said in json.loads(expected.read_text())["captures"]:
            name = f"{expected.parent.name}-{Path(said['capture']).stem}"
            captures[name] = expected.with_name(said["capture"]), said["worker_port"]
    for dialect, fault in FAULTS:
        captures[f"{dialect}-{fault}"] = tmp_path / f"{dialect}-{fault}.pcap", PORT
        config = SimulatorConfig(dialect=dialect, messages_per_connector=30, fault=fault, start_time_ms=MORNING_MS)
        write_file(simulate(config), captures[f"{dialect}-{fault}"][0])
    captures["lossy"] = tmp_path / "lossy.pcap", PORT
    lost = Disturbances(seed=3, lost=0.02, repeated=0.05, reordered=0.05, contradicted=0.02)
    config = SimulatorConfig(messages_per_connector=2000, start_time_ms=MORNING_MS)
    write_file(simulate(config, lost), captures["lossy"][0])
    whole = captures["lossy"][0].read_bytes()
    captures["cut"] = tmp_path / "cut.pcap", PORT
    captures["cut"][0].write_bytes(whole[: len(whole) // 2] + b"junk" + whole[len(whole) // 2 :])
    sources = tuple(
        Source(name, "wallaroo", "pcap", str(path), ports=(port,)) for name, (path, port) in captures.items()
    )
    lake = Lake(str(tmp_path / "lake"), Windows("day", "2015-01-01"), sources)
    assert_the_same_is_said(told_by_both(in_process, lake, LEFT_OUT))
    balance = sql.rows(lake, "SELECT COUNT(*) AS n FROM bronze.segments WHERE skip IS NULL")["n"][0].as_py()
    packets = "SELECT SUM(client_packets + server_packets) AS n FROM silver.wallaroo_connections"
    assert sql.rows(lake, packets)["n"][0].as_py() == balance
