"""The demo on a few of its captures: it fills a fresh lake, tells what came of it, and its queries work."""

from __future__ import annotations

import io
import shlex
from dataclasses import replace
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from infra.tools import generated_pages, readme_tour
from tests.support import recipe_lake
from wirehouse_codecs.cardinal.simulator.simulator import SimulatorConfig
from wirehouse_codecs.core.rules import Severity
from wirehouse_orchestration import config
from wirehouse_orchestration.cli import command
from wirehouse_orchestration.dashboards import answers, boards
from wirehouse_orchestration.dashboards.answers import Span
from wirehouse_orchestration.demo import bamboo, cardinal, hiero, ockam, wallaroo
from wirehouse_orchestration.demo.run import FolderTakenError, demo
from wirehouse_orchestration.evidence.trace import trace
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.protocols import PROTOCOLS
from wirehouse_pipelines.landing.manifests import manifests
from wirehouse_pipelines.query import sql
from wirehouse_pipelines.tables import all_tables

#: What protocols write for a number that there isn't.
MOST = 2**64 - 1
#: Ids that peers choose: any number of 64 bits.
ANY_NUMBER = {"log_id"}
#: Columns that may be below zero: a connector may overdraw its credits, a subscriber be served before the publisher.
BELOW_ZERO = {"balance", "credits", "delivering_ns"}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo with the shortest of its streams."""
    monkeypatch.setattr(cardinal, "VECTORS", cardinal.VECTORS / "h_malformed")
    monkeypatch.setattr(cardinal, "LARGE", SimulatorConfig(blocks=20, messages_per_block=20, fork_every=5))
    monkeypatch.setattr(cardinal, "FAULTS", cardinal.FAULTS[:1])
    monkeypatch.setattr(hiero, "CAPTURES", hiero.CAPTURES[:1])
    monkeypatch.setattr(hiero, "SHOWN", hiero.SHOWN[:2])
    monkeypatch.setattr(wallaroo, "VECTORS", wallaroo.VECTORS / "v3")
    monkeypatch.setattr(wallaroo, "FAULTS", wallaroo.FAULTS[:1])


def test_a_folder_that_is_not_a_demos_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "wirehouse.toml").write_text('[lakehouse]\nroot = "lake"\n')
    with pytest.raises(FolderTakenError, match="not a demo's lake"):
        demo(tmp_path)
    assert (tmp_path / "wirehouse.toml").read_text() == '[lakehouse]\nroot = "lake"\n'


@pytest.mark.property
@pytest.mark.usefixtures("small")
def test_the_configuration_it_writes_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bamboo, "PEERS", replace(bamboo.PEERS, entries=5))
    monkeypatch.setattr(hiero, "NETWORK", replace(hiero.NETWORK, blocks=4))
    monkeypatch.setattr(ockam, "LARGE", replace(ockam.LARGE, messages_per_publisher=20))
    monkeypatch.setattr(wallaroo, "LARGE", replace(wallaroo.LARGE, messages_per_connector=50))
    monkeypatch.setattr("wirehouse_orchestration.demo.run.materialize", lambda *arguments, **named: True)
    monkeypatch.setattr("wirehouse_orchestration.demo.run.page", lambda *arguments: "")
    for _ in range(2):
        assert demo(tmp_path / "demo")
    lake = config.load(tmp_path / "demo" / "wirehouse.toml")
    names = {source.name for source in lake.sources}
    assert {"simulated", "fault_prefix_count_open", "reference_19_short_keys"} <= names
    assert {manifest.source for manifest in manifests(lake)} == names
    start = lake.source("reference_19_short_keys").options["start"]
    assert start == {
        "number": 0,
        "hash": "4e7aaf538d5c1e4ce0ce31e92415133991afbed4f42244f5b5ee6f4e2de31ce8",
        "weight": "0",
    }


@pytest.mark.spark
@pytest.mark.usefixtures("small")
def test_it_tells_what_came_of_it_and_how_to_go_on(
    tmp_path: Path, spark: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert demo(tmp_path / "demo")
    page = capsys.readouterr().out
    for part in ("Head of each chain", "Reorgs", "Blocks that never completed", "Rules that the captures broke"):
        assert part in page
    assert "cardinal.key_length_wrong" in page
    assert "found by weight" in page
    assert "messages of c/1/a/" in page
    for part in ("Sessions of connectors", "Streams that were replayed", "wallaroo.credits_overdrawn"):
        assert part in page
    for part in ("Clients that lag behind", "consumer-2", "ockam.duplicate_index"):
        assert part in page
    for part in ("Calls of publishers", "Nodes that were behind", "hiero.structure"):
        assert part in page
    for part in ("how far they are verified", "Entries that are not valid", "bamboo.backlink_mismatch"):
        assert part in page
    assert "bamboo.unknown_stream" not in page
    _queries_work(page, tmp_path)
    _pages_are_true(tmp_path / "demo")
    lake = config.load(tmp_path / "demo" / "wirehouse.toml")
    _charts_answer(lake)
    _recipes_make_sense(lake)
    _numbers_are_numbers(lake)


def _recipes_make_sense(lake: Lake) -> None:
    """Each statement has an answer in the demo's lake, but for those about what isn't in its smallest captures."""
    found = {name: sql.rows(lake, text).to_pylist() for name, text in recipe_lake.recipes().items()}
    assert {name for name, rows in found.items() if not rows} <= {
        "add-a-source 2",
        "add-a-source 3",
        "cut-captures 1",
        "hiero-publisher-backs-off 3",
    }
    order = [severity.value for severity in (Severity.VIOLATION, Severity.WARNING, Severity.NOTE)]
    severities = [order.index(row["severity"]) for row in found["alert-on-violations 1"]]
    assert severities == sorted(severities)
    assert len(set(severities)) > 1
    assert all(row["status"] == "incomplete" and row["missing"] for row in found["cardinal-chain-stalls 2"])
    assert all(row["depth"] > 0 for row in found["recipes 2"])
    lags = [row["lag"] for row in found["ockam-consumer-lags 1"]]
    assert lags == sorted(lags, reverse=True)
    # A node without blocks is behind, by nobody knows how many.
    behind = [row["behind"] for row in found["hiero-publisher-backs-off 4"]]
    assert all(each is None or each > 0 for each in behind)
    assert None in behind
    for name, rows in found.items():
        numbers = [value for row in rows for value in row.values() if isinstance(value, (int, Decimal))]
        assert all(0 <= value < MOST for value in numbers), name


def _numbers_are_numbers(lake: Lake) -> None:
    """What is unknown, or none, is null in gold, whatever number the protocol writes for it."""
    for name, table in all_tables().items():
        numbers = [column.name for column in table.columns if column.type.startswith(("DECIMAL", "BIGINT", "INT"))]
        if name.startswith("gold.") and not table.internal and numbers:
            asked = ", ".join(f"MIN(`{each}`) AS `{each}`" for each in numbers)
            most = ", ".join(f"MAX(`{each}`) AS `{each}`" for each in numbers)
            (least,), (largest,) = (sql.rows(lake, f"SELECT {it} FROM {name}").to_pylist() for it in (asked, most))
            negative = {each for each, value in least.items() if value is not None and value < 0}
            assert negative <= BELOW_ZERO, name
            assert {each for each, value in largest.items() if value is not None and value >= MOST} <= ANY_NUMBER, name


def _pages_are_true(folder: Path) -> None:
    """What the protocols' pages and the how-to guides show of the demo's lake is what it answers."""
    pages = [*(generated_pages.FOLDER / f"{name}.md" for name in PROTOCOLS), *recipe_lake.GUIDES.glob("*.md")]
    blocks = [block for page in pages for block in readme_tour.blocks(page.read_text())]
    asked = [block for block in blocks if block["body"].startswith(("$ wirehouse sql", "$ wirehouse trace"))]
    assert len(asked) > 20
    for block in asked:
        assert readme_tour.printed(block, folder) == block[0]


def _charts_answer(lake: Lake) -> None:
    """Every chart of the dashboards can be asked, most have something to show, and their rows lead to bytes."""
    shown = 0
    for _, chart in boards.charts():
        answer, behind = answers.answer(lake, chart, Span()), answers.evidence(lake, chart, Span(), most=1)
        assert answer.error is None
        assert behind.answer.error is None
        shown += not answers.is_empty(chart, answer)
        for row in behind.rows:
            out = io.StringIO()
            trace(lake, row.table, row.key, out)
            assert "row 1 of" in out.getvalue()
    assert shown > len(list(boards.charts())) / 2


def _queries_work(page: str, folder: Path) -> None:
    """The printed commands are taken by the command line as they stand."""
    after = page[page.index("Ask further") :].removeprefix("Ask further").split("See it in Dagster")[0]
    words = shlex.split(after.replace("\\\n", ""))
    starts = [index for index, word in enumerate(words) if word == "--config"]
    listed = [import_module(f"wirehouse_orchestration.demo.{name}").QUERIES for name in PROTOCOLS]
    assert len(starts) == sum(map(len, listed))
    for start in starts:
        assert command._outcome(words[start : start + 4]) == 0
    lake = config.load(folder / "demo" / "wirehouse.toml")
    for queries in listed:
        assert sql.rows(lake, queries[0]).num_rows > 0
