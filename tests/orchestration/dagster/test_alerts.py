"""The sensor that posts to a webhook, with a real one; no JVM."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import dagster as dg
import pyarrow as pa
import pytest
from dagster import DagsterInstance, build_sensor_context
from deltalake import DeltaTable, write_deltalake

from wirehouse_orchestration.dagster.assembly import assemble
from wirehouse_orchestration.dagster.defs import alerts
from wirehouse_pipelines.delta import arrow_types, ledger
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.query import sql
from wirehouse_pipelines.storage.storage import StorageError
from wirehouse_pipelines.tables import all_tables


class Webhook:
    """Takes what is posted; answers with `status`."""

    def __init__(self) -> None:
        self.posted: list[Any] = []
        self.status = 200
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if hook.status == 200:
                    hook.posted.append(json.loads(body))
                self.send_response(hook.status)
                self.send_header("Location", "/login")
                self.end_headers()

            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: object) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    hook = Webhook()
    thread = threading.Thread(target=hook.server.serve_forever)
    thread.start()
    monkeypatch.setenv(alerts.VARIABLE, hook.url)
    yield hook
    hook.server.shutdown()
    hook.server.server_close()
    thread.join()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"), Windows("day", "2015-01-01"))


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    with DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


def look(lake: Lake, instance: DagsterInstance, cursor: str | None) -> str | None:
    context = build_sensor_context(instance=instance, cursor=cursor)
    return assemble(lake).resolve_sensor_def("alerts").evaluate_tick(context).cursor


def find(lake: Lake, *rows: Mapping[str, Any], at: int) -> None:
    """As if a job had found these, and committed."""
    name = "gold.cardinal_found"
    given = {"source": "net", "window_start": "2026-11-14", "severity": "violation"}
    table = pa.Table.from_pylist([given | dict(row) for row in rows], schema=arrow_types.schema(all_tables()[name]))
    write_deltalake(lake.table_path(name), table, mode="append")
    windows = {row["window_start"] for row in table.to_pylist()}
    ledger.commit(lake, [ledger.Entry(name, "net", one, "d", None, None, None, 1, "1", at) for one in windows])


@pytest.mark.property
def test_new_violations_are_told_once(lake: Lake, instance: DagsterInstance, webhook: Webhook) -> None:
    find(lake, {"rule": "a.old"}, at=1)
    cursor = look(lake, instance, None)
    find(lake, {"rule": "a.old"}, {"rule": "a.new"}, {"rule": "a.note", "severity": "note"}, at=2)
    for _ in range(2):
        cursor = look(lake, instance, cursor)
    (told,) = webhook.posted
    assert [(alert["rule"], alert["new"], alert["findings"]) for alert in told["alerts"]] == [
        ("a.new", 1, 1),
        ("a.old", 1, 2),
    ]
    assert "`wirehouse trace gold.violations rule=a.new,source=net,window_start=2026-11-14`" in told["text"]


@pytest.mark.property
def test_findings_of_a_window_are_new_though_as_many_are_gone_of_another(
    lake: Lake, instance: DagsterInstance, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts, "MOST_WINDOWS", 2)
    later = {"rule": "a.b", "window_start": "2026-11-15"}
    find(lake, {"rule": "a.b", "window_start": "2026-11-12"}, {"rule": "a.b"}, later, at=1)
    cursor = look(lake, instance, None)
    gone = DeltaTable(lake.table_path("gold.cardinal_found"))
    gone.delete("window_start = '2026-11-14'")
    find(lake, later, at=2)
    cursor = look(lake, instance, cursor)
    (told,) = webhook.posted
    assert [(alert["window"], alert["new"]) for alert in told["alerts"]] == [("2026-11-15", 1)]
    find(lake, {"rule": "a.b", "window_start": "2026-11-16"}, {"rule": "a.b", "window_start": "2026-11-10"}, at=3)
    look(lake, instance, cursor)
    assert [(alert["window"], alert["new"]) for alert in webhook.posted[1]["alerts"]] == [(None, 1), ("2026-11-16", 1)]


@pytest.mark.property
def test_findings_are_counted_from_the_first_window_on_that_was_committed(
    lake: Lake, instance: DagsterInstance, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts, "CLOCKS_NS", 0)
    asked = Mock(wraps=sql.rows)
    monkeypatch.setattr("wirehouse_orchestration.dagster.defs.alerts.sql.rows", asked)
    old, new = {"rule": "a.b", "window_start": "2026-11-12"}, {"rule": "a.b", "window_start": "2026-11-15"}
    find(lake, old, new, at=1)
    cursor = look(lake, instance, None)
    find(lake, new, at=2)
    cursor = look(lake, instance, cursor)
    find(lake, old, at=3)
    look(lake, instance, cursor)
    firsts = [call.args[1].partition("window_start >= ")[2][:12] for call in asked.call_args_list]
    assert firsts == ["'' GROUP BY ", "'2026-11-15'", "'2026-11-12'"]
    counts = [[(told["window"], told["new"], told["findings"]) for told in post["alerts"]] for post in webhook.posted]
    assert counts == [[("2026-11-15", 1, 2)], [("2026-11-12", 1, 2)]]


@pytest.mark.property
def test_while_the_tables_cannot_be_read_failed_runs_are_told(
    lake: Lake, instance: DagsterInstance, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    find(lake, {"rule": "a.old"}, at=1)
    cursor = look(lake, instance, None)
    find(lake, {"rule": "a.new"}, at=2)

    def refuse(lake: Lake) -> None:
        raise StorageError(name=lake.root, reason="it can't be reached")

    @dg.job
    def compute() -> None:
        dg.op(name="breaks")(lambda: 1 / 0)()

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "read", refuse)
        compute.execute_in_process(instance=instance, raise_on_error=False)
        for _ in range(2):
            cursor = look(lake, instance, cursor)
    look(lake, instance, cursor)
    kinds = [[alert["kind"] for alert in told["alerts"]] for told in webhook.posted]
    assert kinds == [["failed_run", "unread_tables"], ["findings"]]
    assert "it can't be reached" in webhook.posted[0]["text"]


@pytest.mark.property
def test_a_failed_run_is_told_with_its_reason(lake: Lake, instance: DagsterInstance, webhook: Webhook) -> None:
    @dg.op
    def breaks() -> None:
        raise dg.Failure("gold.x breaks keys: run `wirehouse backfill`", allow_retries=False)

    @dg.job
    def compute() -> None:
        breaks()

    cursor = look(lake, instance, None)
    compute.execute_in_process(instance=instance, raise_on_error=False, tags={"dagster/partition": "2026-11-14"})
    for _ in range(2):
        cursor = look(lake, instance, cursor)
    (told,) = webhook.posted
    assert told["alerts"][0]["reason"].endswith("gold.x breaks keys: run `wirehouse backfill`")
    assert "(compute of 2026-11-14) failed" in told["text"]


@pytest.mark.property
def test_a_check_that_failed_is_told_as_one(lake: Lake, instance: DagsterInstance, webhook: Webhook) -> None:
    @dg.asset(key=["gold", "x"], check_specs=[dg.AssetCheckSpec("keys", asset=["gold", "x"])])
    def table() -> Iterator[Any]:
        yield dg.Output(None)
        yield dg.AssetCheckResult(passed=False)
        raise dg.Failure("gold.x breaks keys", allow_retries=False)

    cursor = look(lake, instance, None)
    dg.materialize([table], instance=instance, raise_on_error=False)
    look(lake, instance, cursor)
    (alert,) = webhook.posted[0]["alerts"]
    assert (alert["kind"], alert["checks"]) == ("failed_checks", ["gold.x keys"])
    assert "checks failed (gold.x keys): gold.x breaks keys" in alert["text"]


@pytest.mark.property
def test_what_could_not_be_told_is_told_by_the_next_tick(
    lake: Lake, instance: DagsterInstance, webhook: Webhook
) -> None:
    cursor = look(lake, instance, None)
    find(lake, {"rule": "a.new"}, at=2)
    webhook.status = 503
    with pytest.raises(Exception, match=r"503|Error occurred"):
        look(lake, instance, cursor)
    webhook.status = 200
    look(lake, instance, cursor)
    assert [alert["rule"] for told in webhook.posted for alert in told["alerts"]] == ["a.new"]


@pytest.mark.property
def test_of_many_failed_runs_each_is_told(
    lake: Lake, instance: DagsterInstance, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dg.job
    def compute() -> None:
        dg.op(name="breaks")(lambda: 1 / 0)()

    monkeypatch.setattr(alerts, "MOST_RUNS", 2)
    cursor = look(lake, instance, None)
    failed = [compute.execute_in_process(instance=instance, raise_on_error=False).run_id for _ in range(5)]
    for _ in range(4):
        cursor = look(lake, instance, cursor)
    assert [alert["run"] for told in webhook.posted for alert in told["alerts"]] == failed


@pytest.mark.parametrize(
    "url",
    ["hook/SECRET", "http://127.0.0.1:1/SECRET WORD", "file:///SECRET", "data:,SECRET", "http://127.0.0.1:SECRET/"],
)
def test_the_address_is_not_said(url: str) -> None:
    with pytest.raises(alerts.WebhookError) as failed:
        alerts._post(url, {})
    assert "SECRET" not in str(failed.value)
    # Dagster shows what an error comes from.
    assert failed.value.__suppress_context__ or failed.value.__context__ is None


def test_who_answers_byte_by_byte_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "POST_SECONDS", 0.5)
    over = threading.Event()

    def drip(taken: socket.socket) -> None:
        connection, _ = taken.accept()
        with connection, suppress(OSError):
            connection.send(b"HTTP/1.1 200 OK\r\nX-Long: ")
            while not over.wait(0.1):
                connection.send(b".")

    with socket.create_server(("127.0.0.1", 0)) as taken:
        dripping = threading.Thread(target=drip, args=(taken,))
        dripping.start()
        with pytest.raises(alerts.WebhookError, match=r"no answer within 0\.5 s"):
            alerts._post(f"http://127.0.0.1:{taken.getsockname()[1]}/", {})
        over.set()
        dripping.join()


def test_where_a_post_is_sent_on_to_is_nobody(webhook: Webhook) -> None:
    webhook.status = 302
    with pytest.raises(alerts.WebhookError, match="302"):
        alerts._post(webhook.url, {})


def test_without_a_webhook_it_says_so(lake: Lake, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(alerts.VARIABLE, raising=False)
    result = assemble(lake).resolve_sensor_def("alerts").evaluate_tick(build_sensor_context(instance=instance))
    assert result.skip_message == f"{alerts.VARIABLE} is not set: it names the webhook to post to"
