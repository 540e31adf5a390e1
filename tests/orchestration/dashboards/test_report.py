"""The report: all boards as one file."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support import recipe_lake
from tests.support.boards import ALL, CAPTURE, TEN, Served, write
from wirehouse_orchestration.cli import command as cli
from wirehouse_orchestration.dashboards import answers, boards, serving
from wirehouse_orchestration.dashboards.answers import Span
from wirehouse_orchestration.dashboards.report import report
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows


@pytest.mark.property
def test_the_report_leaves_out_no_rule(empty: Lake) -> None:
    found = {"protocol": "cardinal", "message": "m", "arrived_at_ns": TEN}
    notes = [found | {"rule": f"cardinal.note{number}", "severity": "note"} for number in range(30)]
    write(
        empty, "gold.cardinal_found", *notes, *notes, found | {"rule": "cardinal.topic_wrong", "severity": "violation"}
    )
    page = report(empty, ALL, lambda line: None).page
    assert "cardinal.topic_wrong</code> · violation · 1" in page
    assert page.index("cardinal.topic_wrong</code>") < page.index("cardinal.note7</code> · note · 2")


@pytest.mark.property
def test_the_report_needs_nothing_else_and_escapes_the_wire(filled: Lake, tmp_path: Path) -> None:
    page = report(filled, Span("2026-11-14", "2026-11-15"), lambda line: None).page
    assert page.count("<svg") == sum(
        not answers.is_empty(chart, answers.answer(filled, chart, ALL)) and chart.drawn for _, chart in boards.charts()
    )
    assert "<script" not in page
    assert "<img" not in page
    assert not re.search(r"(?:src|href)=\"?https?:", page)
    assert "2026-11-14 to 2026-11-15, written" in page
    assert "cardinal.extra_message</code> · violation · 13" in page
    assert (
        "wirehouse trace gold.violations source=net,window_start=2026-11-14,rule=cardinal.extra_message,"
        f"connection_id=,direction=,byte_start=,capture_id={CAPTURE.hex()},record_number=0" in page
    )
    assert "There is nothing of it in this range." in page


@pytest.mark.property
def test_the_command_writes_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    file, out = tmp_path / "wirehouse.toml", tmp_path / "out.html"
    file.write_text('[lakehouse]\nroot = "lake"\n')
    assert cli._outcome(["--config", str(file), "report", "--out", str(out)]) == 2
    assert "no window with data in all windows: the lake has no window" in capsys.readouterr().err
    recipe_lake.write_table(
        Lake(str(tmp_path / "lake"), Windows("day", "2015-01-01")), "bronze.windows", [{"records": 1}]
    )
    assert cli._outcome(["--config", str(file), "report", "--from", "2026-11-15", "--out", str(out)]) == 2
    said = "no window with data in 2026-11-15 and later: the lake has 2026-11-14 to 2026-11-14"
    assert said in capsys.readouterr().err
    assert not out.exists()
    assert cli._outcome(["--config", str(file), "report", "--out", str(out)]) == 0
    assert "No rule was broken." in out.read_text()
    told = capsys.readouterr()
    assert "all windows" in told.out
    assert "report" in told.err
    assert cli._outcome(["--config", str(file), "--quiet", "report", "--out", str(out)]) == 0
    assert capsys.readouterr().err == ""
    assert cli._outcome(["--config", str(file), "report", "--from", "2026-11-31", "--out", str(out)]) == 2


@pytest.mark.property
def test_a_source_that_never_landed_is_told(filled: Lake) -> None:
    said = "No table tells of a capture from"
    lake = replace(filled, sources=(*filled.sources, Source("idle", "cardinal", "messages", "/")))
    for of, told in ((filled, False), (lake, True)):
        with Served(serving.application(of)) as served, urlopen(f"{served.url}board/overview") as answer:
            assert (f"{said} idle yet:" in answer.read().decode()) is told
        page = report(of, ALL, lambda line: None).page
        assert page.count(said) == told
    # That it can't be asked is told by the charts.
    next(Path(filled.table_path("bronze.captures")).rglob("*.json")).write_text("{")
    assert answers.silent(lake) == []


@pytest.mark.property
def test_a_report_that_lacks_charts_is_written_and_says_so(
    filled: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    next(Path(filled.table_path("gold.cardinal_found")).rglob("*.parquet")).write_bytes(b"no parquet")
    file, out = tmp_path / "wirehouse.toml", tmp_path / "out.html"
    file.write_text('[lakehouse]\nroot = "lake"\n')
    assert cli._outcome(["--config", str(file), "--quiet", "report", "--out", str(out), "--json"]) == cli.FAILED
    told = capsys.readouterr()
    assert {"overview/rules", "findings"} <= json.loads(told.out)["failed"].keys()
    assert "overview/records" not in told.err
    assert "overview/rules: " in told.err
    page = out.read_text()
    assert "This could not be asked." in page
    assert "The findings could not be asked for: " in page
    assert "No rule was broken." not in page
