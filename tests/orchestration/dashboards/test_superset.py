"""A real Superset takes the bundle of the boards: every chart, with its statement, its words and its filters.

What it shows in Chromium is held against our own SQL.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from tests.support import browsing, recipe_lake
from tests.support.processes import started
from wirehouse_orchestration.dashboards import superset
from wirehouse_orchestration.dashboards.boards import boards
from wirehouse_orchestration.query import sql_server
from wirehouse_orchestration.servers import ports
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.windows import Windows

INFRA = Path(__file__).parents[3] / "infra"
START_SECONDS = 300


@pytest.fixture(scope="module")
def home() -> Path:
    """Where Superset is; it is installed if it isn't yet, which takes minutes."""
    subprocess.run([INFRA / "superset.sh", "--import-only"], check=True, env=os.environ | {"PYTHON": sys.executable})
    return Path(os.environ.get("SUPERSET_HOME") or INFRA / ".run" / "superset")


@pytest.fixture(scope="module")
def imported(home: Path) -> dict[str, list[dict[str, Any]]]:
    """Rows of Superset's own tables after an import."""
    with closing(sqlite3.connect(home / "superset.db")) as database:
        database.row_factory = sqlite3.Row
        return {
            name: list(map(dict, database.execute(f"SELECT * FROM {name}")))
            for name in ("dashboards", "slices", "tables", "dashboard_slices")
        }


@pytest.mark.superset
def test_superset_takes_the_bundle(imported: dict[str, list[dict[str, Any]]]) -> None:
    bundle = dict(superset.bundle(superset.URI))
    datasets = {row["table_name"]: row for row in imported["tables"]}
    charts = {row["datasource_id"]: row for row in imported["slices"]}
    for board in boards().values():
        (shown,) = (row for row in imported["dashboards"] if row["slug"] == f"wirehouse-{board.name}")
        mine = {row["slice_id"] for row in imported["dashboard_slices"] if row["dashboard_id"] == shown["id"]}
        for chart in board.charts:
            dataset = datasets[f"{board.name}_{chart.id}"]
            drawn = charts[dataset["id"]]
            assert dataset["sql"] == bundle[f"datasets/wirehouse/{board.name}_{chart.id}.yaml"]["sql"]
            assert drawn["slice_name"] == chart.question
            assert chart.empty in drawn["description"]
            mine.remove(drawn["id"])
        assert not mine
        filters = json.loads(shown["json_metadata"])["native_filter_configuration"]
        targets = [(one["name"], one["targets"][0]["datasetId"]) for one in filters]
        assert targets == [(title, datasets[f"{board.name}_spans"]["id"]) for title in superset.FILTERS.values()]


@contextmanager
def listening(port: int, *command: str | Path, **how: Any) -> Iterator[subprocess.Popen[str]]:
    """What is started by the command, once it listens on the port."""
    with started([str(word) for word in command], **how) as process:
        end = time.monotonic() + START_SECONDS
        while not ports.listens(port):
            assert process.poll() is None, f"{command[0]} ended"
            assert time.monotonic() < end, f"{command[0]} did not start"
            time.sleep(0.2)
        yield process
        process.terminate()
        process.wait()


def checking(home: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What `make superset-check` runs, for the Superset of that place and port."""
    monkeypatch.setenv("SUPERSET_HOME", str(home))
    monkeypatch.setenv("SUPERSET_PORT", str(port))
    found = util.spec_from_file_location("check", INFRA / "superset" / "check.py")
    assert found
    assert found.loader
    check = util.module_from_spec(found)
    found.loader.exec_module(check)
    return check


@pytest.mark.superset
def test_in_a_browser_charts_are_empty_then_as_our_sql_says_and_then_say_that_nobody_answers(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its own database, and the environment that is installed.
    own = tmp_path / "superset"
    own.mkdir()
    for name in ("venv", "installed"):
        (own / name).symlink_to(home / name)
    lake = Lake(str(tmp_path / "lake"), Windows("day", "2015-01-01"))
    (tmp_path / "wirehouse.toml").write_text('[lakehouse]\nroot = "lake"\n')
    tables, port = ports.free_port(), ports.free_port()
    program = "from wirehouse_orchestration.cli.command import main; main()"
    served = [sys.executable, "-c", program, "sql-server", "--port", str(tables)]
    of_superset = {"SUPERSET_HOME": own, "SUPERSET_PORT": port, "PYTHON": sys.executable}
    uri = {superset.URI_VARIABLE: f"hive://wirehouse@{ports.HOST}:{tables}/gold"}
    environment = os.environ | {name: str(value) for name, value in of_superset.items()} | uri
    check = checking(own, port, monkeypatch)
    with (
        listening(port, INFRA / "superset.sh", env=environment),
        browsing.chromium() as browser,
        browser.new_page(viewport={"width": 1400, "height": 1000}) as page,
    ):
        check.log_in(page)
        with listening(tables, *served, cwd=tmp_path):
            for filled in (False, True):
                if filled:
                    recipe_lake.write(lake)
                    time.sleep(2 * sql_server.LOOK_SECONDS)
                for board in boards().values():
                    found, errors = check.shown(page, board)
                    assert errors == set(), board.name
                    assert list(check.differences(lake, board, found)) == []
        found, errors = check.shown(page, boards()["overview"])
        assert len(list(check.differences(lake, boards()["overview"], found))) == len(boards()["overview"].charts)
        assert any("connect" in text.lower() for text in errors), errors
