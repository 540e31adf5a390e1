"""Sources that are gone: said so, kept, and deleted when asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from wirehouse_pipelines.delta import arrow_types, ledger
from wirehouse_pipelines.jobs.forgetting import Forgotten, StillConfiguredError, UnknownSourceError, forget, gone
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.landing import landing
from wirehouse_pipelines.landing.manifests import manifests
from wirehouse_pipelines.query import sql
from wirehouse_pipelines.storage.storage import LocalStorage
from wirehouse_pipelines.tables import all_tables

LINE = '{"key_b64": "/w==", "value_b64": "", "timestamp_ms": 1700000000000}\n'


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Two sources that landed a capture each and have a row and a ledger entry each; `old` isn't configured now."""
    sources = []
    for name in ("kept", "old"):
        path = tmp_path / f"{name}.jsonl"
        path.write_text(LINE)
        sources.append(Source(name, "cardinal", "messages", str(path)))
    lake = Lake(str(tmp_path / "lake"), Windows("day", "2015-01-01"), tuple(sources))
    rows: list[dict[str, Any]] = []
    for source in sources:
        landing.land(lake, source)
        rows.append({"source": source.name, "window_start": "2023-11-14"})
    schema = arrow_types.schema(all_tables()["bronze.messages"])
    table = pa.Table.from_pylist(rows, schema=schema)
    write_deltalake(lake.table_path("bronze.messages"), table, partition_by=["source", "window_start"])
    names = ("bronze.messages", "", "2023-11-14", "d", None, None, None, 1, "1", 0)
    ledger.commit(lake, [replace(ledger.Entry(*names), source=source.name) for source in sources])
    return replace(lake, sources=tuple(sources[:1]))


def test_a_source_that_is_gone_is_known_by_what_it_landed(lake: Lake) -> None:
    assert gone(lake) == ["old"]


def test_forgetting_deletes_rows_entries_and_captures_of_that_source_alone(lake: Lake) -> None:
    assert forget(lake, "old") == Forgotten("old", captures=1, rows={"bronze.messages": 1})
    assert gone(lake) == []
    rows = sql.rows(lake, "SELECT source FROM bronze.messages").to_pylist()
    assert rows == [{"source": "kept"}]
    assert {source for _, source, _ in ledger.read(lake)} == {"kept"}
    assert [manifest.source for manifest in manifests(lake)] == ["kept"]
    assert not [path for path in Path(lake.root, "landing").rglob("*.avro") if "old" in path.parts]


def test_a_source_is_known_until_the_last_of_it_is_gone(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its topics begin: a source of that name would go on from there."""
    storage = LocalStorage(lake.root)
    storage.write("landing/starts/old.json", b"[]")
    delete = LocalStorage.delete

    class Killed(BaseException):
        pass

    def dying(self: LocalStorage, name: str) -> None:
        there = self.exists(name)
        delete(self, name)
        if there and "old" in landing.sources(lake):
            raise Killed

    monkeypatch.setattr(LocalStorage, "delete", dying)
    killed = 0
    while "old" in landing.sources(lake):
        try:
            landing.remove(lake, "old")
        except Killed:
            killed += 1
    assert killed > 1
    assert not [name for name in storage.list("landing") if "old" in name.name and "lock" not in name.name]
    storage.write("landing/starts/looked-at-only.json", b"[]")
    assert gone(lake) == ["looked-at-only", "old"]


def test_what_is_configured_or_unknown_is_refused(lake: Lake) -> None:
    with pytest.raises(StillConfiguredError, match="kept is still configured"):
        forget(lake, "kept")
    with pytest.raises(UnknownSourceError, match="nothing of a source"):
        forget(lake, "x' OR source = 'kept")
