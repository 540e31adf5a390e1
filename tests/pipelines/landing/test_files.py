"""bronze.files holds what landed of blocks, logs and entries, byte for byte; of objects that were damaged nothing."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.running import land, select
from wirehouse_codecs.hiero.wire.grpc_log import Entry, Message, encode, frame
from wirehouse_codecs.hiero.wire.items.decoded import Timestamp
from wirehouse_expectations.suites import invariants_check
from wirehouse_pipelines.jobs import runner
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.landing.manifests import manifests
from wirehouse_pipelines.landing.object_reader import DamagedObjectError

pytestmark = pytest.mark.property

VECTORS = Path(__file__).parents[2] / "vectors"
BLOCK = (VECTORS / "hiero" / "blocks" / "sim062_3.blk").read_bytes()
LINES = (VECTORS / "bamboo" / "logs" / "len40.jsonl").read_bytes()
#: Longer than a row holds.
LARGE = b"".join(
    frame(encode(Entry(timestamp=Timestamp(1_700_000_000), type=3, message=Message(n, b"m" * n)))) for n in (9 << 20, 5)
)


def test_what_landed_is_in_bronze(in_process: Any, tmp_path: Path) -> None:
    files = {"blocks": gzip.compress(BLOCK), "grpc_log": LARGE[:-1], "entries": LINES}
    for kind, data in files.items():
        (tmp_path / kind).write_bytes(data)
    sources = tuple(Source(kind, "hiero", kind, str(tmp_path / kind)) for kind in files)
    lake = Lake(str(tmp_path / "lake"), Windows("day", "2015-01-01"), sources)
    land(lake)
    windows = runner.data_windows(lake)
    assert windows == ["2015-01-01", "2023-11-14", "2025-04-10"]
    runner.run_job(in_process, lake, "bronze.files", windows[0], windows[-1])

    rows = select(lake, "SELECT * FROM bronze.files ORDER BY source, record_number")
    of = {kind: [row for row in rows if row["source"] == kind] for kind in files}
    assert all(row["capture_id"] == hashlib.sha256(files[row["source"]]).digest() for row in rows)
    assert [(row["name"], row["part"], row["last"], row["data"]) for row in of["blocks"]] == [
        ("blocks", 0, True, BLOCK)
    ]
    assert b"".join(row["data"] or row["damaged"] for row in of["grpc_log"]) == LARGE[:-1]
    assert [(row["part"], row["last"], row["damage"]) for row in of["grpc_log"]] == [
        (0, False, None),
        (1, False, None),
        (2, True, None),
        (0, True, "an entry that is cut off"),
    ]
    assert [row["data"] for row in of["entries"]] == LINES.splitlines(keepends=True)
    first = Windows("day", "2015-01-01").start_ns("2015-01-01")
    assert [row["arrived_at_ns"] - first for row in of["entries"]] == list(range(40))
    assert invariants_check(lake, None, "bronze.files", windows[0], windows[-1]).passed


def cut_to_nothing(path: Path) -> None:
    path.write_bytes(b"")


def cut_behind_a_block(path: Path) -> None:
    data = path.read_bytes()
    sync = data[-16:]
    path.write_bytes(data[: data.rindex(sync, 0, -16) + 16])


def change_a_bit(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-30] + bytes([data[-30] ^ 1]) + data[-29:])


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (cut_to_nothing, "of [0-9] records there are only 0"),
        (cut_behind_a_block, "of [0-9] records there are only [1-9]"),
        (change_a_bit, "byte [0-9]+: "),
        (Path.unlink, "it is missing"),
    ],
)
def test_an_object_that_was_damaged_changes_no_row(
    in_process: Any, tmp_path: Path, damage: Callable[[Path], None], told: str
) -> None:
    (tmp_path / "log").write_bytes(LARGE[:-1])
    lake = Lake(
        str(tmp_path / "lake"), Windows("day", "2015-01-01"), (Source("a", "hiero", "grpc_log", str(tmp_path / "log")),)
    )
    land(lake)
    (manifest,) = manifests(lake)
    ((window, has),) = manifest.windows.items()
    runner.run_job(in_process, lake, "bronze.files", window, window)
    rows = select(lake, "SELECT * FROM bronze.files ORDER BY record_number")
    assert len(rows) == has.records > 2
    damage(Path(lake.root, has.objects[-1]))
    with pytest.raises(DamagedObjectError, match=f"^{has.objects[-1]} isn't what was landed .{told}"):
        runner.run_job(in_process, lake, "bronze.files", window, window, force=True)
    assert select(lake, "SELECT * FROM bronze.files ORDER BY record_number") == rows
