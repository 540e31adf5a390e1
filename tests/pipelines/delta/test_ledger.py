"""The ledger tells what stands in it now, whoever wrote it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.conftest import MakeLake
from wirehouse_pipelines.delta import ledger
from wirehouse_pipelines.lake.lake import Lake

_COMMIT = """
import sys
from tests.pipelines.delta.test_ledger import entry
from wirehouse_pipelines.delta import ledger
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.windows import Windows
ledger.commit(Lake(sys.argv[1], Windows("day", "2015-01-01"), ()), [entry("gold.a", "2023-11-15", rows=9)])
"""


def entry(table: str, window: str, rows: int = 1) -> ledger.Entry:
    return ledger.Entry(table, "mainnet", window, "d", None, None, None, rows, "1", 7)


@pytest.fixture
def lake(make_lake: MakeLake) -> Lake:
    return make_lake({})


def told(lake: Lake) -> set[tuple[str, str, int]]:
    return {(known.table_name, known.window_start, known.rows) for known in ledger.read(lake).values()}


def test_an_entry_takes_the_place_of_that_of_its_window(lake: Lake) -> None:
    assert told(lake) == set()
    ledger.commit(lake, [entry("gold.a", "2023-11-14"), entry("gold.b", "2023-11-14")])
    ledger.commit(lake, [entry("gold.a", "2023-11-14", rows=2), entry("gold.a", "2023-11-15")])
    ledger.withdraw(lake, [("gold.b", "mainnet", "2023-11-14"), ("gold.c", "mainnet", "2023-11-14")])
    assert told(lake) == {("gold.a", "2023-11-14", 2), ("gold.a", "2023-11-15", 1)}


@pytest.mark.property
def test_what_another_process_committed_is_read(lake: Lake) -> None:
    ledger.commit(lake, [entry("gold.a", "2023-11-14"), entry("gold.b", "2023-11-14")])
    assert len(told(lake)) == 2
    subprocess.run([sys.executable, "-c", _COMMIT, lake.root], check=True)
    assert told(lake) == {("gold.a", "2023-11-14", 1), ("gold.a", "2023-11-15", 9), ("gold.b", "2023-11-14", 1)}


def test_of_a_lake_made_anew_nothing_is_remembered(lake: Lake) -> None:
    ledger.commit(lake, [entry("gold.a", "2023-11-14")])
    assert told(lake)
    shutil.rmtree(Path(ledger.path(lake)))
    assert told(lake) == set()
    ledger.commit(lake, [entry("gold.a", "2023-11-16")])
    assert told(lake) == {("gold.a", "2023-11-16", 1)}


def test_of_a_table_that_did_not_change_no_file_is_read(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.commit(lake, [entry("gold.a", "2023-11-14"), entry("gold.b", "2023-11-14")])
    told(lake)
    before = ledger._last
    read = Mock(wraps=ledger._rows)
    monkeypatch.setattr(ledger, "_rows", read)
    ledger.commit(lake, [entry("gold.a", "2023-11-15")])
    assert len(told(lake)) == 3
    # What this process wrote it needn't read.
    assert read.call_args_list == []
    # As if another process had committed.
    monkeypatch.setattr(ledger, "_last", before)
    assert len(told(lake)) == 3
    told(lake)
    assert [call.args[1] for call in read.call_args_list] == [["gold.a"]]
