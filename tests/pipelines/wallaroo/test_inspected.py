"""`wirehouse inspect` and the pipeline say the same of one capture of packets."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.running import run, select

from wirehouse_codecs.conversations import Disturbances
from wirehouse_codecs.packet_writer import write_pcap
from wirehouse_codecs.wallaroo.connector import PORT
from wirehouse_codecs.wallaroo.simulator import SimulatorConfig, simulate
from wirehouse_orchestration import render
from wirehouse_orchestration.inspect import inspected
from wirehouse_pipelines import sql
from wirehouse_pipelines.lake import Lake, Source
from wirehouse_pipelines.landing import land
from wirehouse_pipelines.tables import all_tables
from wirehouse_pipelines.windows import Windows

pytestmark = pytest.mark.spark
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
TABLES = {
    "message": "silver.wallaroo_messages",
    "quarantine": "silver.wallaroo_quarantine",
    "violation": "gold.violations",
    "connection": "silver.wallaroo_connections",
}
#: Columns that only a lake can fill, and those made of the source's name or of a secret key.
LEFT_OUT = ("source", "window_start", "decoder_version", "connection_id", "cookie_hash")


@pytest.fixture(scope="module")
def both(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[list[str]]]]:
    """Source -> kind of row -> the rows as inspect and as the pipeline tell them."""
    home = tmp_path_factory.mktemp("inspected")
    captures: dict[str, tuple[Path, int]] = {}
    for expected in VECTORS.rglob("expected.json"):
        for said in json.loads(expected.read_text())["captures"]:
            name = f"{expected.parent.name}-{Path(said['capture']).stem}"
            captures[name] = expected.with_name(said["capture"]), said["worker_port"]
    for dialect, fault in FAULTS:
        captures[f"{dialect}-{fault}"] = home / f"{dialect}-{fault}.pcap", PORT
        with captures[f"{dialect}-{fault}"][0].open("wb") as stream:
            config = SimulatorConfig(dialect=dialect, messages_per_connector=30, fault=fault, start_time_ms=MORNING_MS)
            write_pcap(simulate(config), stream)
    captures["lossy"] = home / "lossy.pcap", PORT
    lost = Disturbances(seed=3, lost=0.02, repeated=0.05, reordered=0.05, contradicted=0.02)
    with captures["lossy"][0].open("wb") as stream:
        write_pcap(simulate(SimulatorConfig(messages_per_connector=2000, start_time_ms=MORNING_MS), lost), stream)
    whole = captures["lossy"][0].read_bytes()
    captures["cut"] = home / "cut.pcap", PORT
    captures["cut"][0].write_bytes(whole[: len(whole) // 2] + b"junk" + whole[len(whole) // 2 :])
    sources = tuple(
        Source(name, "wallaroo", "pcap", str(path), ports=(port,)) for name, (path, port) in captures.items()
    )
    lake = Lake(str(home / "lake"), Windows("day", "2015-01-01"), sources)
    now_ns = time.time_ns()
    for source in sources:
        land(lake, source, now_ns=now_ns)
    run(spark, lake)
    told: dict[str, dict[str, list[list[str]]]] = {name: {kind: [[], []] for kind in TABLES} for name in captures}
    for name, (path, port) in captures.items():
        for kind, row in inspected(str(path), "wallaroo", now_ns, port=port):
            if kind in TABLES:
                told[name][kind][0].append(_line(kind, row))
    for kind, table in TABLES.items():
        for row in select(lake, f"SELECT * FROM {table}"):
            told[row["source"]][kind][1].append(_line(kind, row))
    balance = sql.rows(lake, "SELECT COUNT(*) AS n FROM bronze.segments WHERE skip IS NULL")["n"][0].as_py()
    packets = "SELECT SUM(client_packets + server_packets) AS n FROM silver.wallaroo_connections"
    assert sql.rows(lake, packets)["n"][0].as_py() == balance
    return told


def _line(kind: str, row: dict[str, Any]) -> str:
    """A row as text, by the columns of its table: of a violation inspect prints the protocol's own, and no others."""
    names = sorted(column.name for column in all_tables()[TABLES[kind]].columns if column.name not in LEFT_OUT)
    return render.json_line({name: row.get(name) for name in names})


@pytest.mark.parametrize("kind", TABLES)
def test_the_pipeline_has_the_rows_that_inspect_prints(both: dict[str, dict[str, list[list[str]]]], kind: str) -> None:
    differing = {}
    for name, kinds in both.items():
        printed, stored = map(sorted, kinds[kind])
        if printed != stored:
            only = [row for row in printed if row not in stored], [row for row in stored if row not in printed]
            differing[name] = {"only inspect": only[0][:3], "only the pipeline": only[1][:3]}
    assert differing == {}
    assert any(kinds[kind][0] for kinds in both.values())
