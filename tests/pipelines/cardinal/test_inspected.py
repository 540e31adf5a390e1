"""`wirehouse inspect` and the pipeline say the same of one capture."""

from __future__ import annotations

import base64
import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.running import run, select

from wirehouse_orchestration import render
from wirehouse_orchestration.inspect import inspected
from wirehouse_pipelines.lake import Lake, Source
from wirehouse_pipelines.landing import land
from wirehouse_pipelines.tables import all_tables
from wirehouse_pipelines.windows import Windows

pytestmark = pytest.mark.spark
VECTORS = Path(__file__).parents[2] / "vectors" / "cardinal"
CAPTURES = (
    *("c_subbatches", "e1_large_reorg", "g1_incomplete"),
    *("h_malformed/05_batch_garbage", "h_malformed/19_short_keys", "h_malformed/24_same_key_two_values"),
)
#: Columns that only a lake can fill.
LAKE_ONLY = ("source", "window_start", "decoder_version")
TABLES = {
    "message": "silver.cardinal_messages",
    "quarantine": "silver.cardinal_quarantine",
    "violation": "gold.violations",
}


def line(key: bytes | None, value: bytes | None, timestamp_ms: int | None) -> bytes:
    coded = [None if data is None else base64.b64encode(data).decode() for data in (key, value)]
    return json.dumps({"key_b64": coded[0], "value_b64": coded[1], "timestamp_ms": timestamp_ms}).encode() + b"\n"


def hostile() -> bytes:
    """What the vectors don't have: no times, times to come, pings, nulls, damaged lines, cut compression."""
    block = bytes(32)
    lines = [
        line(b"\x03" + block + b"k", None, None),
        line(b"\x04" + block + b"k", None, 1_700_000_000_000),
        line(b"\x04" + block + b"k", b"x", 10**15),
        b'{"key_b64": "aw==", "value_b64": "\xff"}\n',
        b"junk\n",
        line(b"\xff" + block, b"", 5),
        line(None, None, 5),
        line(b"", b"v", 5),
        line(b"\x00" + block, b"\x02", 1_700_000_000_001),
        line(b"\x05" + block, b"\x02\x02", 1_700_000_000_002),
        line(b"\x01" + block[:7], None, 1_700_000_000_002),
        line(b"\x07", b"", 1_700_000_000_003),
        line(b"\x03" + block, b"", 1_700_000_000_004),
    ]
    return gzip.compress(b"".join(lines))[:-8]


@pytest.fixture(scope="module")
def both(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[list[str]]]]:
    """Source -> kind of row -> the rows as inspect and as the pipeline tell them."""
    home = tmp_path_factory.mktemp("inspected")
    (home / "hostile.jsonl.gz").write_bytes(hostile())
    paths = {name.rpartition("/")[2]: VECTORS / name / "messages.jsonl" for name in CAPTURES}
    paths["hostile"] = home / "hostile.jsonl.gz"
    sources = tuple(Source(name, "cardinal", "messages", str(path)) for name, path in paths.items())
    lake = Lake(str(home / "lake"), Windows("day", "2015-01-01"), sources)
    now_ns = time.time_ns()
    for source in sources:
        land(lake, source, now_ns=now_ns)
    run(spark, lake)
    told: dict[str, dict[str, list[list[str]]]] = {name: {kind: [[], []] for kind in TABLES} for name in paths}
    for name, path in paths.items():
        for kind, row in inspected(str(path), None, now_ns):
            if kind in TABLES:
                told[name][kind][0].append(_line(kind, row))
    for kind, table in TABLES.items():
        for row in select(lake, f"SELECT * FROM {table}"):
            told[row["source"]][kind][1].append(_line(kind, row))
    return told


def _line(kind: str, row: dict[str, Any]) -> str:
    """A row as text, by the columns of its table: of a violation inspect prints the protocol's own, and no others."""
    names = sorted(column.name for column in all_tables()[TABLES[kind]].columns if column.name not in LAKE_ONLY)
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
