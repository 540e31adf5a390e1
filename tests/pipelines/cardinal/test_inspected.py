"""`wirehouse inspect` and the pipeline say the same of one capture."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.comparing import assert_the_same_is_said, told_by_both
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows

pytestmark = pytest.mark.property
VECTORS = Path(__file__).parents[2] / "vectors" / "cardinal"
CAPTURES = (
    *("c_subbatches", "e1_large_reorg", "g1_incomplete"),
    *("h_malformed/05_batch_garbage", "h_malformed/19_short_keys", "h_malformed/24_same_key_two_values"),
)


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


def test_the_pipeline_has_the_rows_that_inspect_prints(in_process: Any, tmp_path: Path) -> None:
    (tmp_path / "hostile.jsonl.gz").write_bytes(hostile())
    paths = {name.rpartition("/")[2]: VECTORS / name / "messages.jsonl" for name in CAPTURES}
    paths["hostile"] = tmp_path / "hostile.jsonl.gz"
    sources = tuple(Source(name, "cardinal", "messages", str(path)) for name, path in paths.items())
    assert_the_same_is_said(
        told_by_both(in_process, Lake(str(tmp_path / "lake"), Windows("day", "2015-01-01"), sources))
    )
