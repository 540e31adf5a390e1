"""The metrics of a lake for Prometheus."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import dagster as dg
import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake
from prometheus_client.parser import text_string_to_metric_families

from infra.tools.generated_pages import FOLDER as DOCS
from tests.support.boards import CAPTURE, SESSION, STREAM, TEN, Served, write
from tests.support.running import land
from wirehouse_orchestration.cli import command as cli
from wirehouse_orchestration.dagster import instance, ui
from wirehouse_orchestration.dashboards import boards, metrics, serving
from wirehouse_orchestration.servers import ports
from wirehouse_pipelines.delta import arrow_types
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.query import sql
from wirehouse_pipelines.tables import all_tables

ALERTS = Path(__file__).parents[3] / "infra" / "prometheus" / "alerts.yml"


def test_prometheus_can_scrape_what_alerts_need(filled: Lake, tmp_path: Path) -> None:
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox" / "messages.jsonl").write_bytes(STREAM.read_bytes())
    (tmp_path / "inbox" / "other.jsonl").write_text("{")
    lake = replace(filled, sources=(Source("net", "cardinal", "messages", str(tmp_path / "inbox")),))
    land(lake)
    with instance.shared_instance(lake) as shared:
        assert not dg.materialize([_nothing], instance=shared, raise_on_error=False).success
    open_one: dict[str, Any] = {"connection_id": SESSION, "state": "streaming", "credits": 0}
    others: tuple[dict[str, Any], ...] = ({"credits": 3}, {"credits": None}, {"ended": "closed"}, {"state": "error"})
    rows = (open_one | how | {"connection_id": bytes([number]) * 16} for number, how in enumerate(others, 1))
    write(lake, "gold.wallaroo_sessions_history", open_one, *rows)
    with Served(serving.application(lake)) as served, urlopen(f"{served.url}metrics") as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=1.0.0")
        text = answer.read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {(sample.name, *sample.labels.values()): sample.value for sample in samples}
    records = len(STREAM.read_text().splitlines())
    assert found["wirehouse_landed_records", "net"] == records + 1
    assert found["wirehouse_unreadable_records", "net"] == 1
    assert found["wirehouse_captures", "net", "landed"] == 2
    assert found["wirehouse_capture_bytes", "net", "landed"] == len(STREAM.read_bytes()) + 1
    assert found["wirehouse_starving_sessions", "net"] == 1
    assert found["wirehouse_stalled_chains", "net"] == 1
    assert found["wirehouse_findings", "cardinal", "cardinal.topic_wrong", "warning"] == len("topic_wrong")
    assert found["wirehouse_stale_windows", "silver.cardinal"] == 1
    assert found["wirehouse_newest_window_end_seconds", "landing", "net"] % 86_400 == 0
    assert found[("wirehouse_last_run_success",)] == 0
    assert found[("wirehouse_last_run_duration_seconds",)] >= 0
    alerts = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    needed = {name for alert in alerts for name in re.findall(r"wirehouse_\w+", alert["expr"])}
    listed = re.findall(r"^\| `(wirehouse_\w+)`", (DOCS / "metrics.md").read_text(), re.MULTILINE)
    assert needed <= {sample.name for sample in samples} == set(listed)


def test_a_scrape_counts_rows_again_only_if_there_are_other_ones(filled: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    run = sql.rows

    def noted(lake: Lake, statement: str) -> pa.Table:
        ran.append(statement)
        return run(lake, statement)

    monkeypatch.setattr(sql, "rows", noted)

    def scraped() -> str:
        ran.clear()
        return bytes(served.response().body).decode()

    served = metrics.Metrics(filled)
    counted = 'rule="cardinal.topic_wrong",severity="warning"}'
    assert f"{counted} 11.0" in scraped()
    assert len(ran) == 1 + sum(len(board.metrics) for board in boards.boards().values())
    assert f"{counted} 11.0" in scraped()
    assert ran == []
    row = {"protocol": "cardinal", "rule": "cardinal.topic_wrong", "severity": "warning", "arrived_at_ns": TEN}
    write_deltalake(
        filled.table_path("gold.cardinal_found"),
        pa.Table.from_pylist([row], schema=arrow_types.schema(all_tables()["gold.cardinal_found"])),
        mode="append",
    )
    assert f"{counted} 12.0" in scraped()
    assert ran == [metrics._FINDINGS]
    write_deltalake(
        filled.table_path("gold.cardinal_chain_updates"),
        pa.Table.from_pylist(
            [{"source": "net", "sequence": 9, "head_number": 4, "head_hash": CAPTURE, "arrived_at_ns": TEN}],
            schema=arrow_types.schema(all_tables()["gold.cardinal_chain_updates"]),
        ),
        mode="append",
    )
    scraped()
    assert ["gold.cardinal_stall_spans" in statement for statement in ran] == [True]


def test_the_ui_serves_metrics_beside_it(
    filled: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "wirehouse.toml"
    file.write_text('[lakehouse]\nroot = "lake"\n')
    answers: list[str] = []

    def serve(*_: object) -> None:
        url = re.findall(r"http://127\.0\.0\.1:\d+/metrics", capsys.readouterr().out)[0]
        with urlopen(url) as answer:
            answers.append(answer.read().decode())
        with pytest.raises(HTTPError, match="400"):
            urlopen(Request(url, headers={"Host": "rebound.example"}))
        next(Path(filled.table_path("gold.cardinal_found")).rglob("*.json")).write_text("{")
        with pytest.raises(HTTPError, match="500") as failed:
            urlopen(url)
        answers.append(failed.value.read().decode())

    monkeypatch.setattr(ui, "serve", serve)
    port = ports.free_port()
    assert cli._outcome(["--config", str(file), "ui", "--metrics-port", str(port)]) == 0
    assert 'wirehouse_findings{protocol="cardinal",rule="cardinal.topic_wrong",severity="warning"} 11.0' in answers[0]
    assert "gold.cardinal_found can't be opened" in answers[1]
    assert not ports.listens(port)


@dg.asset
def _nothing() -> None:
    raise ValueError
