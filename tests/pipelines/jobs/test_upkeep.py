"""Upkeep: files joined and removed, landed records let go of, and single captures erased without a trace."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.conftest import VECTORS, MakeLake
from tests.support.running import assert_same_rows, land, run, select
from wirehouse_pipelines.delta import arrow_types
from wirehouse_pipelines.jobs import forgetting, runner, upkeep
from wirehouse_pipelines.jobs.bronze import LandingGoneError
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.upkeep_options import UpkeepOptions
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.landing import landing
from wirehouse_pipelines.landing.manifests import ReleasedError, check_there, manifests, write_manifest
from wirehouse_pipelines.storage.storage import open_storage
from wirehouse_pipelines.tables import all_tables

MESSAGES = "bronze.messages"
DAY_NS = 86_400_000_000_000


def quiet(line: str) -> None:
    """Upkeep says how it goes."""


def write(lake: Lake, window: str, *topics: str) -> None:
    rows = [{"source": "a", "window_start": window, "topic": topic} for topic in topics]
    table = pa.Table.from_pylist(rows, schema=arrow_types.schema(all_tables()[MESSAGES]))
    write_deltalake(lake.table_path(MESSAGES), table, mode="append", partition_by=["source", "window_start"])


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A lake with a table of five small files, and some that a killed writer left."""
    lake = Lake(str(tmp_path / "lake"), Windows("day", "2015-01-01"))
    for number in range(4):
        write(lake, "2023-11-14", f"t{number}")
    write(lake, "2023-11-15", "other")
    (Path(lake.table_path(MESSAGES)) / "source=a" / "orphan.parquet").write_bytes(b"x" * 100)
    return lake


def test_small_files_are_joined_and_young_ones_stay(lake: Lake) -> None:
    rows = select(lake, f"SELECT topic FROM {MESSAGES} ORDER BY topic")
    freed = upkeep.keep_tables(lake, (MESSAGES, "bronze.files"), quiet)
    assert [(one.name, one.joined_files, one.removed_files) for one in freed] == [(MESSAGES, 4, 0)]
    assert len(DeltaTable(lake.table_path(MESSAGES)).file_uris()) == 2
    assert select(lake, f"SELECT topic FROM {MESSAGES} ORDER BY topic") == rows


def test_a_purge_leaves_the_newest_version_alone(lake: Lake) -> None:
    upkeep.keep_tables(lake, (MESSAGES,), quiet)
    DeltaTable(lake.table_path(MESSAGES)).delete("topic = 't1'")
    freed = upkeep.purge(lake, MESSAGES)
    assert freed is not None
    # Five that were joined or replaced, one that was never committed.
    assert freed.removed_files == 6
    assert freed.freed_bytes > 100
    assert freed.removed_log_files >= 6
    folder = Path(lake.table_path(MESSAGES))
    assert len(list(folder.rglob("*.parquet"))) == 2 + len(list(folder.rglob("*.checkpoint.parquet")))
    assert not [path for path in (folder / "_delta_log").glob("*.json") if "t1" in path.read_text()]
    assert [row["topic"] for row in select(lake, f"SELECT topic FROM {MESSAGES} ORDER BY topic")] == [
        "other",
        "t0",
        "t2",
        "t3",
    ]
    assert DeltaTable(lake.table_path(MESSAGES)).metadata().configuration == {
        "delta.deletedFileRetentionDuration": "interval 168 hours",
        "delta.logRetentionDuration": "interval 720 hours",
    }


def test_only_what_bronze_holds_is_let_go_of(make_lake: MakeLake) -> None:
    lake = make_lake({"chain": (VECTORS / "cardinal" / "d1_depths" / "messages.jsonl", {})})
    land(lake)
    lake = replace(lake, upkeep=UpkeepOptions(landing_bytes=1))
    said: list[str] = []
    assert upkeep.release(lake, said.append) == []
    assert said == ["chain: 1 captures stay until bronze holds them"]


def copied(name: str, inbox: Path) -> None:
    inbox.mkdir(exist_ok=True)
    shutil.copy(VECTORS / "cardinal" / name / "messages.jsonl", inbox / f"{name}.jsonl")


def passed(lake: Lake) -> None:
    """Their checks pass."""
    windows = runner.data_windows(lake)
    for name in runner.all_jobs():
        runner.pass_checks(lake, name, windows[0], windows[-1])


@pytest.mark.spark
def test_what_landing_let_go_of_stays_in_bronze_and_a_capture_is_erased(
    spark: Any, make_lake: MakeLake, tmp_path: Path
) -> None:
    inbox, others = tmp_path / "inbox", tmp_path / "others"
    first, second, third = sorted(path.parent.name for path in (VECTORS / "cardinal").glob("*/messages.jsonl"))[:3]
    for name in (first, second):
        copied(name, inbox)
    lake = make_lake({"chain": (inbox, {})})
    land(lake)
    run(spark, lake)
    passed(lake)
    # Landing lets go of what is older, not of what is younger.
    lake = replace(lake, upkeep=UpkeepOptions(landing_days=2))
    landed_at_ns = max(manifest.landed_at_ns for manifest in manifests(lake))
    assert upkeep.release(lake, quiet, landed_at_ns + DAY_NS) == []
    [freed] = upkeep.release(lake, quiet, landed_at_ns + 3 * DAY_NS)
    assert freed.released_captures == 2
    assert freed.freed_bytes > 0
    assert not list(Path(lake.root, "landing").rglob("*.avro"))
    assert landing.land(lake, lake.sources[0]) == []
    # A late file is computed with what bronze holds of the others, and that is said.
    copied(third, inbox)
    land(lake)
    said: list[str] = []
    run(spark, lake, progress=said.append)
    assert any("the rows of 2 captures are kept and not recomputed" in line for line in said)
    with pytest.raises(ReleasedError, match="have expired"):
        check_there(next(manifest for manifest in manifests(lake) if manifest.released_at_ns))

    # One of those that were let go of is erased; bronze has the other, and the late one.
    gone = next(manifest.capture_id for manifest in manifests(lake) if manifest.path == f"{second}.jsonl")
    forgetting.erase_landed(lake, gone)
    with pytest.raises(forgetting.NotErasedError, match="is not fully erased"):
        forgetting.proof(lake, gone)
    run(spark, lake)
    passed(lake)
    with runner.writing(lake) as held:
        forgetting.purge(lake, held)
    proof = forgetting.proof(lake, gone)
    assert min(proof.objects, proof.tables, proof.versions, proof.files, proof.rows) > 0
    assert f"{proof.rows:,} rows in {proof.files:,} files" in proof.lines()[1]
    copied(first, others)
    copied(third, others)
    without = make_lake({"chain": (others, {})}, root="without")
    land(without)
    run(spark, without)
    assert_same_rows(lake, without)
    # Without the table what was let go of can't be computed, and that is said.
    windows = runner.data_windows(lake)
    shutil.rmtree(lake.table_path(MESSAGES))
    with pytest.raises(LandingGoneError, match="can't be recomputed"):
        runner.run_job(spark, lake, MESSAGES, windows[0], windows[-1], force=True)


def test_a_file_is_landed_again_if_it_is_asked_for_and_was_not_forgotten(make_lake: MakeLake, tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    for name in ("a_linear", "d1_depths"):
        copied(name, inbox)
    lake = make_lake({"chain": (inbox, {})})
    land(lake)
    storage = open_storage(lake.root)
    kept, gone = manifests(lake)
    write_manifest(storage, replace(kept, released_at_ns=1))
    landing.remove_records(storage, kept)
    begun = landing.begun_name("chain", gone.capture_id)
    storage.write(begun, b"")
    forgetting.erase_landed(lake, gone.capture_id)
    assert not list(Path(lake.root, "landing").rglob("*.avro"))
    assert not storage.exists(begun), "a landing killed after its commit left it"
    assert landing.land(lake, lake.sources[0]) == []
    files = [str(path) for path in inbox.iterdir()]
    [again] = landing.land(lake, lake.sources[0], files)
    assert (again.capture_id, again.released_at_ns) == (kept.capture_id, None)
    assert all(Path(lake.root, name).exists() for name in landing.records_of(again))
    assert landing.land(lake, lake.sources[0], files) == []


def test_what_is_forgotten_meanwhile_is_not_brought_back(make_lake: MakeLake, tmp_path: Path) -> None:
    copied("a_linear", tmp_path / "inbox")
    lake = make_lake({"chain": (tmp_path / "inbox", {})})
    land(lake)
    (seen,) = manifests(lake)
    forgetting.erase_landed(lake, seen.capture_id)
    assert upkeep._expire(open_storage(lake.root), "chain", [seen], {}, 1) == upkeep.Freed("chain")
    (left,) = manifests(lake)
    assert (left.status, left.path, left.released_at_ns) == ("forgotten", "", None)


def test_an_id_that_nobody_landed_is_refused(make_lake: MakeLake) -> None:
    assert forgetting.is_capture("0" * 64)
    assert not forgetting.is_capture("chain")
    with pytest.raises(forgetting.UnknownCaptureError, match="no source landed a capture 000"):
        forgetting.erase_landed(make_lake({}), "0" * 64)
