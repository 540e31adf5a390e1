"""`/metrics` of `wirehouse dashboard` and `wirehouse ui`: the state of a lake for Prometheus.

A scrape reads the manifests, the ledger and the last run. Numbers that SQL counts over tables are kept from scrape to
scrape until one of these tables has a new version.

`wirehouse dashboard` serves it beside its boards. Dagster's server has no place for it, so `wirehouse ui` serves it on
a port of its own. Neither needs a JVM.

All metrics are gauges, because rows of a lake can be recomputed or forgotten. Times are seconds since 1970, as is usual
in Prometheus: `time() - wirehouse_newest_window_end_seconds` is an age.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from dagster import DagsterRunStatus, RunsFilter
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from wirehouse_codecs.core.errors import WirehouseError
from wirehouse_orchestration.dagster.instance import shared_instance
from wirehouse_orchestration.dashboards.boards import boards
from wirehouse_orchestration.servers import ports
from wirehouse_pipelines.delta import ledger
from wirehouse_pipelines.jobs import runner
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.landing.manifests import Manifest, manifests
from wirehouse_pipelines.query import sql
from wirehouse_pipelines.tables import NAMED, beneath

_NS_PER_S = 1e9
_ENDED = (DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED)
#: Tables with their id and version; None for one that was not written yet.
_Versions = dict[str, tuple[str, int] | None]
_FINDINGS = "SELECT protocol, rule, severity, COUNT(*) AS findings FROM gold.violations GROUP BY 1, 2, 3"


class Metrics:
    """The metrics of a lake, for one server."""

    def __init__(self, lake: Lake) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_OfLake(lake))

    def response(self) -> Response:
        """The answer to a scrape. Raises WirehouseError if the lake can't be read."""
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)


class _Counted:
    """Rows of statements, which are run again only if a table beneath them has a new version."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._known: dict[str, tuple[_Versions, list[dict[str, Any]]]] = {}

    def rows(self, statement: str) -> list[dict[str, Any]]:
        # Versions are read first, so what is committed meanwhile is counted at the next scrape, too.
        versions = self._versions(statement)
        known = self._known.get(statement)
        if known is None or known[0] != versions:
            known = self._known[statement] = (versions, sql.rows(self._lake, statement).to_pylist())
        return known[1]

    def _versions(self, statement: str) -> _Versions:
        names = set().union(*map(beneath, NAMED.findall(statement)))
        return {name: sql.version(self._lake, name) for name in names}


def application(lake: Lake) -> Starlette:
    """A web application with nothing but `/metrics`."""

    def refused(_: Request, error: Exception) -> Response:
        return PlainTextResponse(str(error), 500)

    # Another site's name that leads to this machine is not let in.
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=[ports.HOST, "localhost"])
    metrics = Metrics(lake)
    routes = [Route("/metrics", lambda _: metrics.response())]
    return Starlette(routes=routes, middleware=[hosts], exception_handlers={WirehouseError: refused})


@contextmanager
def serving(lake: Lake, port: int | None, say: Callable[[str], None]) -> Iterator[None]:
    """Serve `/metrics` of `lake` in a thread during the block. Raises PortTakenError."""
    with ports.taken(port, ports.METRICS) as listening:
        listening.listen()
        server = uvicorn.Server(uvicorn.Config(application(lake), log_level="warning", access_log=False))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        say(f"metrics for Prometheus are at http://{ports.HOST}:{listening.getsockname()[1]}/metrics")
        try:
            yield
        finally:
            server.should_exit = True
            thread.join()


class _OfLake(Collector):
    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._counted = _Counted(lake)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        landed = manifests(self._lake)
        yield from _landed(landed)
        yield _newest(self._lake, landed)
        yield _gauge("stale_windows", "Windows that the next run computes.", "job", _stale(self._lake))
        yield _findings(self._counted)
        yield from _of_boards(self._counted)
        yield from _last_run(self._lake)

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Return nothing. Otherwise the registry would read the lake to find the names."""
        return iter(())


def _gauge(name: str, help_text: str, label: str, values: dict[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"wirehouse_{name}", help_text, labels=[label])
    for value, count in sorted(values.items()):
        family.add_metric([value], count)
    return family


def _landed(landed: list[Manifest]) -> Iterator[GaugeMetricFamily]:
    captures = GaugeMetricFamily("wirehouse_captures", "Captures by their status.", labels=["source", "status"])
    counts = Counter((each.source, each.status) for each in landed)
    for (source, status), count in sorted(counts.items()):
        captures.add_metric([source, status], count)
    yield captures
    records: Counter[str] = Counter()
    unreadable: Counter[str] = Counter()
    size: Counter[tuple[str, str]] = Counter()
    for each in landed:
        records[each.source] += each.records
        unreadable[each.source] += each.unreadable_records
        size[each.source, each.status] += each.size_bytes
    yield _gauge("landed_records", "Records of captures.", "source", dict(records))
    yield _gauge("unreadable_records", "Records that landing kept as bytes.", "source", dict(unreadable))
    given = "Size of captures as they were given, bytes."
    sizes = GaugeMetricFamily("wirehouse_capture_bytes", given, labels=["source", "status"])
    for (source, status), count in sorted(size.items()):
        sizes.add_metric([source, status], count)
    yield sizes


def _newest(lake: Lake, landed: list[Manifest]) -> GaugeMetricFamily:
    """The newest window of each source or service in landing and in each layer."""
    newest: dict[tuple[str, str], str] = {}
    windows = [(each.source, "landing", window) for each in landed for window in each.windows]
    windows += [(source, table.partition(".")[0], window) for table, source, window in ledger.read(lake)]
    for source, layer, window in windows:
        newest[source, layer] = max(window, newest.get((source, layer), ""))
    family = GaugeMetricFamily(
        "wirehouse_newest_window_end_seconds",
        "End of the newest window with data, seconds since 1970.",
        labels=["source", "layer"],
    )
    for (source, layer), window in sorted(newest.items()):
        family.add_metric([source, layer], lake.windows.end_ns(window) / _NS_PER_S)
    return family


def _stale(lake: Lake) -> dict[str, float]:
    found = runner.stale(lake)
    return {name: len(found.get(name, ())) for name in runner.all_jobs()}


def _findings(counted: _Counted) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "wirehouse_findings", "Rules that captures broke, in all windows.", labels=["protocol", "rule", "severity"]
    )
    for row in counted.rows(_FINDINGS):
        family.add_metric([row["protocol"], row["rule"], row["severity"]], row["findings"])
    return family


def _of_boards(counted: _Counted) -> Iterator[GaugeMetricFamily]:
    """The metrics that boards define."""
    for metric in (metric for board in boards().values() for metric in board.metrics):
        values = {row["source"]: row["value"] for row in counted.rows(metric.sql)}
        yield _gauge(metric.name, metric.help, "source", values)


def _last_run(lake: Lake) -> Iterator[GaugeMetricFamily]:
    """The result of the last run that ended; nothing if none has."""
    with shared_instance(lake) as instance:
        records = instance.get_run_records(RunsFilter(statuses=list(_ENDED)), limit=1, order_by="end_time")
    if not records or (end := records[0].end_time) is None:
        return
    (record,) = records
    yield GaugeMetricFamily("wirehouse_last_run_end_seconds", "End of the last run, seconds since 1970.", end)
    if record.start_time is not None:
        took = end - record.start_time
        yield GaugeMetricFamily("wirehouse_last_run_duration_seconds", "How long the last run took.", took)
    ok = record.dagster_run.status is DagsterRunStatus.SUCCESS
    yield GaugeMetricFamily("wirehouse_last_run_success", "1 if the last run succeeded, else 0.", int(ok))
