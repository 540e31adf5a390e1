"""A real Prometheus scrapes `wirehouse dashboard`, with the alert rules of infra/prometheus."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from tests.support import recipe_lake
from tests.support.processes import started
from wirehouse_orchestration.servers.ports import HOST, free_port
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.landing.landing import land

COMMAND = "from wirehouse_orchestration.cli.command import main; main()"
STREAM = Path(__file__).parents[2] / "vectors" / "cardinal" / "a_linear" / "messages.jsonl"
FOLDER = Path(__file__).parents[3] / "infra" / "prometheus"
WAIT_SECONDS = 120
NOTHING_NEW = 'ALERTS{alertname="WirehouseNothingNew"}'


@pytest.fixture(scope="module")
def programs() -> Path:
    installed = subprocess.run([FOLDER / "install.sh"], check=True, stdout=subprocess.PIPE, text=True)
    return Path(installed.stdout.strip())


@pytest.mark.servers
def test_the_alert_rules_are_ones(programs: Path) -> None:
    checked = subprocess.run([programs / "promtool", "check", "rules", FOLDER / "alerts.yml"], capture_output=True)
    assert checked.returncode == 0, checked.stderr


#: Series in steps of a minute, and the alert that they raise after 20 minutes.
RAISED = {
    'wirehouse_stalled_chains{source="net"}': "WirehouseChainStalled",
    'wirehouse_starving_sessions{source="net"}': "WirehouseStarvation",
}


@pytest.mark.servers
@pytest.mark.parametrize("series", RAISED)
def test_what_goes_on_for_a_while_raises_an_alert(programs: Path, tmp_path: Path, series: str) -> None:
    name = RAISED[series]

    def listed(minutes: str, names: list[str]) -> dict[str, Any]:
        query = f"count by (alertname, source) (ALERTS{{alertname='{name}', alertstate='firing'}})"
        found = [{"labels": f'{{alertname="{one}", source="net"}}', "value": 1} for one in names]
        return {"expr": query, "eval_time": minutes, "exp_samples": found}

    told = {
        "interval": "1m",
        "input_series": [{"series": series, "values": "1x20 0x10"}],
        "promql_expr_test": [listed("10m", []), listed("20m", [name]), listed("25m", [])],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": [str(FOLDER / "alerts.yml")], "tests": [told]}))
    checked = subprocess.run([programs / "promtool", "test", "rules", tmp_path / "test.yml"], capture_output=True)
    assert checked.returncode == 0, checked.stderr + checked.stdout


def asked(url: str, query: str) -> Iterator[dict[str, Any]]:
    """The series that a query gives."""
    with urlopen(f"{url}/api/v1/query?{urlencode({'query': query})}") as answer:
        yield from json.load(answer)["data"]["result"]


@pytest.mark.servers
def test_prometheus_scrapes_a_lake_and_raises_its_alerts(programs: Path, tmp_path: Path) -> None:
    source = Source("net", "cardinal", "messages", str(STREAM))
    lake = Lake(str(tmp_path / "lake"), Windows("day", "2015-01-01"), (source,))
    recipe_lake.write(lake)
    land(lake, source)
    (tmp_path / "wirehouse.toml").write_text('[lakehouse]\nroot = "lake"\n')
    page, port = free_port(), free_port()
    scrape = {"job_name": "wirehouse", "static_configs": [{"targets": [f"{HOST}:{page}"]}]}
    settings = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(FOLDER / "alerts.yml")],
        "scrape_configs": [scrape],
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(settings))
    served = [sys.executable, "-c", COMMAND, "--config", "wirehouse.toml", "dashboard", "--port", str(page)]
    scraping = [str(programs / "prometheus"), "--config.file=prometheus.yml", f"--web.listen-address={HOST}:{port}"]
    with started(served, cwd=tmp_path), started([*scraping, "--log.level=error"], cwd=tmp_path):
        url = f"http://{HOST}:{port}"
        findings = eventually(url, "wirehouse_findings")
        assert {one["metric"]["job"] for one in findings} == {"wirehouse"}
        assert sum(float(one["value"][1]) for one in findings) > 0
        assert [one["value"][1] for one in asked(url, "up")] == ["1"]
        alerts = {(one["metric"]["alertname"], one["metric"]["source"]) for one in eventually(url, NOTHING_NEW)}
    assert alerts == {("WirehouseNothingNew", "net")}


def eventually(url: str, query: str) -> list[dict[str, Any]]:
    """The series of a query, once there are some."""
    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end:
        with suppress(URLError):
            if series := list(asked(url, query)):
                return series
        time.sleep(0.5)
    raise AssertionError(f"{query} gives nothing")
