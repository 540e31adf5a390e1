"""A real Superset takes the bundle of the boards: every chart, with its statement, its words and its filters."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from wirehouse_orchestration.dashboards import superset
from wirehouse_orchestration.dashboards.boards import boards

INFRA = Path(__file__).parents[2] / "infra"


@pytest.fixture(scope="module")
def imported() -> dict[str, list[dict[str, Any]]]:
    """Rows of Superset's own tables after an import; it is installed if it isn't yet, which takes minutes."""
    subprocess.run([INFRA / "superset.sh", "--import-only"], check=True)
    home = Path(os.environ.get("SUPERSET_HOME") or INFRA / ".run" / "superset")
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
