"""The dashboards: their data is sound, every statement runs, and what a browser draws is what the SQL says."""

from __future__ import annotations

import html
import io
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, Literal
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import dagster as dg
import jinja2
import pyarrow as pa
import pytest
import uvicorn
import vl_convert
import yaml
from deltalake import write_deltalake
from playwright.sync_api import Browser, Page
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette

from infra.tools.generated_pages import FOLDER as DOCS
from tests.conftest import VECTORS
from tests.support import browsing, recipe_lake
from tests.support.processes import started
from tests.support.running import land
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket, write_file
from wirehouse_orchestration import config
from wirehouse_orchestration.cli import command as cli
from wirehouse_orchestration.dagster import instance, ui
from wirehouse_orchestration.dashboards import answers, boards, drawing, metrics, pages, serving, superset
from wirehouse_orchestration.dashboards.answers import Span
from wirehouse_orchestration.dashboards.boards import Board, BoardError, Chart, Value, written
from wirehouse_orchestration.dashboards.report import report
from wirehouse_orchestration.evidence import trace as tracing
from wirehouse_orchestration.servers import ports
from wirehouse_pipelines.delta import arrow_types, ledger
from wirehouse_pipelines.jobs import forgetting, runner
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.protocols import PROTOCOLS
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.landing.manifests import manifests
from wirehouse_pipelines.query import sql
from wirehouse_pipelines.tables import Table, all_tables, beneath

ALL = Span()
ALERTS = Path(__file__).parents[3] / "infra" / "prometheus" / "alerts.yml"
STREAM = VECTORS / "cardinal" / "d2_equal_weight" / "messages.jsonl"
#: 2026-11-14T22:00 UTC.
TEN = 1_794_693_600_000_000_000
SECOND = 10**9
HOUR = 3600 * SECOND
CAPTURE = b"\x01" * 32
HOSTILE = "<script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"
DRAWN = [pytest.param(chart, id=f"{board.name}-{chart.id}") for board, chart in boards.charts() if chart.drawn]
CHARTS = [pytest.param(board, chart, id=f"{board.name}-{chart.id}") for board, chart in boards.charts()]
#: As the data of a drawing are in the browser.
VALUES = "plot => plot.view.data('answer').map(row => ({...row}))"


def write(lake: Lake, name: str, *rows: Mapping[str, Any]) -> None:
    given = {"source": "net", "window_start": "2026-11-14", "capture_id": CAPTURE, "record_number": 0}
    known = {column.name for column in all_tables()[name].columns}
    listed = [{key: value for key, value in (given | dict(row)).items() if key in known} for row in rows]
    write_deltalake(lake.table_path(name), pa.Table.from_pylist(listed, schema=arrow_types.schema(all_tables()[name])))


@pytest.fixture
def empty(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"), Windows("day", "2026-01-01"), (Source("net", "cardinal", "messages", "/"),))


@pytest.fixture
def filled(empty: Lake) -> Lake:
    """Rows of two protocols, some with text from the wire that wants to be more than text."""
    captures = [{"window_start": f"2026-11-{day}", "records": day, "size_bytes": 2**20 * day} for day in (14, 15)]
    told = {"protocol": "cardinal", "kind": "messages", "status": "landed", "path": HOSTILE, "landed_at_ns": TEN}
    times = {"first_arrived_at_ns": TEN, "last_arrived_at_ns": TEN + 100 * SECOND}
    write(empty, "bronze.captures", *(told | times | row for row in captures))
    write(empty, "bronze.windows", *(told | row for row in captures))
    found = {"protocol": "cardinal", "message": HOSTILE, "arrived_at_ns": TEN}
    severities = {"extra_message": "violation", "topic_wrong": "warning"}
    rules = [
        found | {"rule": f"cardinal.{rule}", "severity": severity, "record_number": number}
        for rule, severity in severities.items()
        for number in range(len(rule))
    ]
    write(empty, "gold.cardinal_found", *rules)
    blocks = [
        {
            "block_hash": bytes([number]) * 32,
            "number": number,
            "status": "complete" if number % 3 else "incomplete",
            "messages": number,
            "duplicates": 1,
            "arrived_at_ns": TEN + number * SECOND,
            "completed_at_ns": TEN + number * SECOND + 3**number * 1000 if number % 3 else None,
        }
        for number in range(1, 12)
    ]
    write(empty, "gold.cardinal_batches_history", *blocks)
    updates = [{"sequence": i, "head_number": i + i % 2, "arrived_at_ns": TEN + i * SECOND} for i in range(9)]
    write(
        empty, "gold.cardinal_chain_updates", *({"added": [], "removed": [], "head_hash": CAPTURE} | u for u in updates)
    )
    messages = [
        {"stream_address": HOSTILE, "index": i, "data_bytes": 100, "arrived_at_ns": TEN + i**3 * SECOND}
        for i in range(9)
    ]
    write(empty, "gold.ockam_stream_messages", *messages)
    return empty


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing.chromium() as running:
        yield running


class Served:
    """The page of a lake, in a thread."""

    def __init__(self, app: Starlette) -> None:
        self._listening = ports.taken(None, 0)
        # Before the server runs: who asks early waits.
        self._listening.listen()
        self.url = serving.address(self._listening)
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listening]})

    def __enter__(self) -> Served:
        self._thread.start()
        return self

    def __exit__(self, *trouble: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._listening.close()


def test_there_is_a_board_for_each_protocol() -> None:
    assert next(iter(boards.boards())) == boards.FIRST
    assert set(boards.boards()) == {boards.FIRST, *PROTOCOLS}


@pytest.mark.parametrize(("board", "chart"), CHARTS)
def test_an_empty_lake_is_asked_without_an_error_and_says_something_friendly(
    board: Board, chart: Chart, empty: Lake
) -> None:
    found = answers.answer(empty, chart, ALL)
    assert found.error is None
    assert answers.is_empty(chart, found)
    assert {value.field for value in chart.shown} <= set(found.names)
    assert answers.evidence(empty, chart, ALL).answer.error is None
    card = pages.page("card.html", board=board, chart=chart, span=ALL, answer=found, empty=True, spec=None)
    assert str(pages.code(chart.empty)) in card


@pytest.mark.parametrize(("board", "chart"), CHARTS)
def test_each_select_from_a_table_is_of_the_span_asked_for(board: Board, chart: Chart, empty: Lake) -> None:
    for text in (chart.sql, chart.rows.sql):
        named = re.findall(r"FROM\s+(?:bronze|silver|gold)\.\w+", text)
        assert text.count("{span}") >= len(named) > 0


def test_the_page_about_them_shows_a_board_that_is_one() -> None:
    page = (DOCS / "dashboards.md").read_text()
    example = Board(**yaml.safe_load(page.split("```yaml\n")[1].split("```")[0]), name="overview")
    assert example.charts == tuple(map(boards.boards()["overview"].chart, ("incidents", "notes", "rules")))


def changed(**how: Any) -> dict[str, Any]:
    raw: dict[str, Any] = yaml.safe_load((boards.FOLDERS[0] / "overview.yaml").read_text())
    raw["charts"][1] |= how
    return raw


@pytest.mark.parametrize(
    ("how", "place", "reason"),
    [
        ({"colour": 1}, "charts.1.colour", "Extra inputs"),
        ({"question": "records"}, "charts.1.question", "match pattern"),
        ({"sql": "SELECT 1"}, "charts.1.sql", "match pattern"),
        ({"type": "pie"}, "charts.1.type", "Input should be"),
        ({"type": "numbers"}, "charts.1", "numbers and table have values"),
        ({"y": {"field": "records", "title": "Records"}}, "charts.1", "a number has no unit"),
        ({"x": None}, "charts.1", "x and y are needed"),
        ({"id": "lake"}, "the board", "two charts have one id"),
        (
            {"rows": {"table": "gold.violations", "columns": ["rule"], "order": "rule", "time": "at_ns"}},
            "charts.1.rows",
            "no column at_ns",
        ),
        ({"rows": {"table": "gold.none", "columns": ["a"], "order": "a"}}, "charts.1.rows", "no table"),
        (
            {"rows": {"table": "gold.ockam_state", "columns": ["a"], "order": "a"}},
            "charts.1.rows",
            "no column capture_id",
        ),
    ],
)
def test_a_board_that_is_wrong_is_refused_with_its_place(
    how: dict[str, Any], place: str, reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "overview.yaml"
    file.write_text(yaml.safe_dump(changed(**how)))
    with pytest.raises(BoardError, match=reason) as error:
        boards.load(file)
    assert error.value.fields["file"] == "overview.yaml"
    assert error.value.fields["place"] == place


def test_a_span_is_part_of_the_answer(filled: Lake) -> None:
    chart = boards.boards()["overview"].chart("records")
    windows = [row["window_start"] for row in answers.answer(filled, chart, ALL).rows]
    assert windows == ["2026-11-14", "2026-11-15"]
    later = answers.answer(filled, chart, Span("2026-11-15", "2026-11-15", "net"))
    assert [(row["window_start"], row["records"]) for row in later.rows] == [("2026-11-15", 15)]
    with pytest.raises(answers.SpanError, match="no source 'x', only net"):
        Span(source="x").check(filled)
    with pytest.raises(answers.SpanError, match="begins at 2026-11-15, after its end, 2026-11-14"):
        Span("2026-11-15", "2026-11-14").check(filled)
    with pytest.raises(answers.SpanError, match="no source 'net' of ockam, only none"):
        Span(source="net").check(filled, "ockam")


def ends(text: str) -> tuple[int | None, int | None]:
    bounds = Span(text, text).bounds(Lake("/", Windows("day", "2026-01-01")))
    return bounds.begin_ns, bounds.end_ns


@pytest.mark.parametrize(
    ("text", "begin", "width"),
    [
        ("2026-11-14", TEN - 22 * HOUR, 24 * HOUR),
        ("2026-11-14T22", TEN, HOUR),
        ("2026-11-14T22:10", TEN + 600 * SECOND, 60 * SECOND),
        ("2026-11-14T22:10:05", TEN + 605 * SECOND, SECOND),
        ("2026-11-14T22:10:05.25", TEN + 605 * SECOND + SECOND // 4, SECOND // 100),
        ("2026-11-14T22:10:05.000001", TEN + 605 * SECOND + 1000, 1000),
    ],
)
def test_a_time_is_as_wide_as_it_is_written(text: str, begin: int, width: int) -> None:
    assert ends(text) == (begin, begin + width - 1)


def test_a_time_may_be_so_long_ago() -> None:
    for text, seconds in (("-30s", 30), ("-15m", 900), ("-2h", 7200), ("-30d", 30 * 86_400)):
        begin, _ = ends(text)
        assert begin is not None
        assert (time.time_ns() - begin) / SECOND == pytest.approx(seconds, abs=5)
    assert ends("-999999d") == (0, 0), "the columns hold nothing earlier"
    assert ends("9999-12-31") == (2**63 - 1, 2**63 - 1)


@pytest.mark.parametrize(
    "text", ["x", "2026-11-31", "2026-11-14T24", "2026-11-14 22:10", "2026-11", "-5", "15m", "' OR"]
)
def test_what_is_no_time_is_refused_with_the_forms(text: str, empty: Lake) -> None:
    with pytest.raises(answers.SpanError, match="is no time: write it as 2026-11-14,"):
        Span(last=text).check(empty)


def test_a_range_is_named_in_words() -> None:
    spans = (ALL, Span("a", "b", "net"), Span("a", "a"), Span("a"), Span(last="b"))
    assert [str(span) for span in spans] == ["all windows", "a to b of net", "a", "a and later", "b and earlier"]


def test_in_a_range_finer_than_windows_rows_count_by_their_time(filled: Lake) -> None:
    later = {"protocol": "cardinal", "rule": "cardinal.topic_wrong", "severity": "warning", "message": "m"}
    # Found in the next window, and broken in this one.
    late = later | {"window_start": "2026-11-15", "arrived_at_ns": TEN + 2 * SECOND}
    write(filled, "gold.ockam_found", late, later | {"arrived_at_ns": TEN + 3 * SECOND})
    chain, rules = boards.boards()["cardinal"].chart("chain"), boards.boards()["overview"].chart("rules")
    for first, last, heads, found in (
        ("2026-11-14T22:00:02", "2026-11-14T22:00:04", [2, 3, 4], 2),
        ("2026-11-14T22:00:02", "2026-11-14T22:00:02", [2], 1),
        ("2026-11-14T22:00:03", None, [3, 4, 5, 6, 7, 8], 1),
        (None, "2026-11-14T21:59", [], 0),
        ("2026-11-14T22:00:01.001", "2026-11-15", [2, 3, 4, 5, 6, 7, 8], 2),
    ):
        span = Span(first, last)
        times = sorted((row["arrived_at_ns"] - TEN) // SECOND for row in answers.answer(filled, chain, span).rows)
        assert times == heads
        assert len(answers.evidence(filled, chain, span).rows) == len(heads)
        assert sum(row["findings"] for row in answers.answer(filled, rules, span).rows) == found


def test_a_chart_of_whole_windows_says_so_in_a_finer_range(filled: Lake) -> None:
    board = boards.boards()["overview"]
    for chart, coarse in ((board.chart("records"), "2026-11-14 to 2026-11-15"), (board.chart("rules"), None)):
        found = answers.answer(filled, chart, Span("2026-11-14T22:10", "2026-11-15T03"))
        assert found.coarse == coarse
        card = pages.page("card.html", board=board, chart=chart, span=ALL, answer=found, empty=False, spec={})
        assert ("Counts whole windows: 2026-11-14 to 2026-11-15." in card) is bool(coarse)
        for whole in (ALL, Span("2026-11-14"), Span("2026-11-14T00", "2026-11-15T23:59:59")):
            assert answers.answer(filled, chart, whole).coarse is None


def test_each_chart_of_events_counts_by_their_time() -> None:
    for board, chart in boards.charts():
        table = all_tables()[chart.rows.table]
        columns = {column.name for column in table.columns}
        event = not any(all_tables()[name].entity for name in beneath(table.name)) and "last_at_ns" not in columns
        if event and "arrived_at_ns" in columns:
            assert chart.rows.time, f"{board.name}-{chart.id} has no rows.time"


def test_a_page_offers_the_sources_of_its_protocol_and_keeps_what_was_asked(empty: Lake) -> None:
    others = tuple(Source(f"c{number}", "cardinal", "messages", "/") for number in range(12))
    lake = replace(empty, sources=(*empty.sources, Source("shop", "ockam", "pcap", "/"), *others))
    row = {"protocol": "ockam", "window_start": "2026-11-14"}
    with Served(serving.application(lake)) as served:

        def page(path: str) -> str:
            with urlopen(served.url + path) as answer:
                return str(answer.read().decode())

        write(lake, "bronze.windows", row | {"source": "shop"}, *(row | {"source": one.name} for one in others))
        overview, ockam = page("board/overview?source=shop&from=-1h&refresh=10"), page("board/ockam?source=shop")
        assert '<option value="c11">' in overview, "many are typed"
        assert '<input name="source" list="sources" value="shop" placeholder="all 13"' in overview
        assert re.findall("<option(?: selected)?>(.*?)</option>", ockam) == ["shop"]
        assert 'href="/board/ockam?from=-1h&amp;source=shop&amp;refresh=10"' in overview
        assert 'href="/board/cardinal?from=-1h&amp;refresh=10"' in overview, "it has no such source"
        assert '<option value="10" selected>' in overview
        assert "selected" not in page("board/overview?refresh=0.01")
        with pytest.raises(HTTPError, match="400") as failed:
            page("board/cardinal?source=shop")
        assert "no source &#39;shop&#39; of cardinal" in failed.value.read().decode()


def test_rows_of_a_source_that_is_no_longer_configured_are_shown(filled: Lake) -> None:
    lake = replace(filled, sources=(Source("other", "ockam", "pcap", "/"),))
    chart = boards.boards()["cardinal"].chart("incidents")
    assert {row["source"] for row in answers.answer(lake, chart, ALL).rows} == {"net"}
    with Served(serving.application(lake)) as served:
        for path in ("board/cardinal?source=net", "chart/cardinal/incidents?source=net&severity=violation"):
            with urlopen(served.url + path) as page:
                text = page.read().decode()
                assert "<option selected>net</option>" in text
        assert text.count("/trace?") == len("extra_message")
        with pytest.raises(HTTPError, match="400") as failed, urlopen(f"{served.url}board/cardinal?source=nobody"):
            pass
        assert "nothing of it has landed, and it is not configured" in html.unescape(failed.value.read().decode())


def test_rows_of_a_service_that_is_no_longer_configured_are_shown(empty: Lake) -> None:
    found = {"protocol": "hiero", "rule": "hiero.x", "severity": "violation", "message": "m", "arrived_at_ns": TEN}
    write(empty, "gold.hiero_found", found | {"source": "nodes"})
    entry = ledger.Entry("gold.hiero_found", "nodes", "2026-11-14", "d", None, None, None, 1, "1", TEN)
    ledger.commit(empty, [entry])
    with Served(serving.application(empty)) as served:
        with urlopen(f"{served.url}board/hiero?source=nodes") as page:
            assert "<option selected>nodes</option>" in page.read().decode()
        with urlopen(f"{served.url}card/hiero/incidents?source=nodes") as card:
            assert "hiero.x" in card.read().decode()
        with pytest.raises(HTTPError, match="400"), urlopen(f"{served.url}board/ockam?source=nodes"):
            pass


def test_what_goes_on_is_wrong_in_each_later_range_and_notes_stand_apart(empty: Lake) -> None:
    found = {"protocol": "cardinal", "message": "m", "topic": "t", "rule": "cardinal.topic_wrong"}
    given = [
        found | {"severity": severity, "window_start": f"2026-11-{day}", "arrived_at_ns": TEN + (day - 14) * 24 * HOUR}
        for severity, day in (("warning", 14), ("note", 14), ("violation", 15), ("violation", 16))
    ]
    write(empty, "gold.cardinal_found", *given)
    moved = {"added": [], "removed": [], "head_hash": CAPTURE, "head_number": 3, "arrived_at_ns": TEN, "sequence": 1}
    write(empty, "gold.cardinal_chain_updates", moved)
    waits = {"block_hash": bytes([5]) * 32, "parent": bytes([4]) * 32, "number": 5, "status": "complete"}
    write(empty, "gold.cardinal_batches_history", waits | {"arrived_at_ns": TEN, "completed_at_ns": TEN + SECOND})

    def shown(chart: str, *ends: str) -> list[tuple[Any, ...]]:
        found = answers.answer(empty, boards.boards()["cardinal"].chart(chart), Span(*ends))
        assert found.error is None
        names = ("severity", "rule", "who", "incidents", "last_at_ns")
        return [tuple(row[name] for name in names) for row in found.rows]

    def lasts(seconds: int) -> None:
        landed = {"protocol": "cardinal", "status": "landed", "last_arrived_at_ns": TEN + seconds * SECOND}
        write(empty, "bronze.captures", landed)

    stall = ("warning", "stall", "head 3", 1, None)
    rule = "cardinal.topic_wrong"
    day = 24 * HOUR
    lasts(10)
    assert stall not in shown("incidents"), "it is as long as a stall may be while messages are under way"
    shutil.rmtree(empty.table_path("bronze.captures"))
    lasts(11)
    assert shown("incidents") == [("violation", rule, "t", 2, TEN + 2 * day), stall, ("warning", rule, "t", 1, TEN)]
    assert shown("incidents", "2026-11-16") == [("violation", rule, "t", 1, TEN + 2 * day), stall]
    assert shown("incidents", "2026-11-16T22:00") == [("violation", rule, "t", 1, TEN + 2 * day), stall]
    assert shown("notes") == [("note", rule, "t", 1, TEN)]
    assert shown("incidents", "2026-11-13", "2026-11-13") == [], "it had not begun"
    chart = boards.boards()["cardinal"].chart("incidents")
    (row,) = answers.evidence(empty, chart, Span("2026-11-16"), {"rule": "stall"}).rows
    assert row.cells["message"] == "the head waits for block 4, of which no message came; complete blocks above it: 1"


def test_what_a_capture_lacks_and_what_no_source_claims_is_wrong(empty: Lake) -> None:
    sources = ("other_ports", "some_ports", "nothing_run")
    captures = {"protocol": "wallaroo", "kind": "pcap", "status": "landed", "first_arrived_at_ns": TEN}
    earlier = captures | {"source": "other_ports", "first_arrived_at_ns": TEN - SECOND, "capture_id": b"\x02" * 32}
    write(empty, "bronze.captures", earlier, *(captures | {"source": source} for source in sources))
    skipped = {"skip": "port_not_claimed", "arrived_at_ns": TEN}
    packets = [skipped | {"source": source} for source in ("other_ports", "other_ports", "some_ports")]
    write(empty, "bronze.segments", *packets, {"source": "some_ports", "arrived_at_ns": TEN})
    hole = {"protocol": "capture", "rule": "capture.hole", "severity": "note", "message": "m", "arrived_at_ns": TEN}
    # Of two connections.
    write(empty, "gold.wallaroo_found", *(hole | {"connection_id": bytes([one]) * 16} for one in range(2)))
    nothing = ("warning", "nothing decoded", "other_ports", "other_ports", 1, TEN - SECOND, None)
    lacking = ("warning", "capture.hole", "capture", "net", 2, TEN, TEN)
    for board in ("wallaroo", "overview"):
        chart = boards.boards()[board].chart("incidents")
        found = answers.answer(empty, chart, ALL)
        assert [tuple(row[value.field] for value in chart.shown) for row in found.rows] == [nothing, lacking]
        (row,) = answers.evidence(empty, chart, ALL, {"rule": "nothing decoded"}).rows
        assert row.cells["message"] == "packets that landed, none of a port of the source: 2; why: port_not_claimed"
        assert "02" * 32 in row.key
    assert answers.answer(empty, boards.boards()["ockam"].chart("incidents"), ALL).rows == []


def test_a_fork_names_the_log(empty: Lake) -> None:
    found = {"protocol": "bamboo", "rule": "bamboo.fork", "severity": "warning", "message": "m", "arrived_at_ns": TEN}
    place = {"connection_id": b"c" * 16, "direction": "client", "byte_start": 5, "byte_end": 9, "record_number": 3}
    of_file = {"record_number": 4, "arrived_at_ns": TEN + SECOND}
    elsewhere = place | {"byte_start": 9, "arrived_at_ns": TEN + 2 * SECOND}
    write(empty, "gold.bamboo_found", found | place, found | of_file, found | elsewhere)
    log = {"author": b"\xab" * 32, "log_id": Decimal(7), "arrived_at_ns": TEN}
    later = place | {"window_start": "2026-11-15", "position": Decimal(8)}
    write(empty, "gold.bamboo_forks_history", log | place, log | later, log | of_file)
    names = {"bamboo": ["client 63636363", "abababab/7"], "overview": ["bamboo", "log 7"]}
    for board, who in names.items():
        shown = answers.answer(empty, boards.boards()[board].chart("incidents"), ALL)
        assert [(row["who"], row["incidents"]) for row in shown.rows] == list(zip(who, (1, 2), strict=True))


def test_an_incident_leads_to_the_bytes_and_packets_of_its_newest_row(empty: Lake, tmp_path: Path) -> None:
    inbox = tmp_path / "in"
    inbox.mkdir()
    records = [CapturedPacket(TEN + number * SECOND, bytes([number]) * 60) for number in range(3)]
    write_file(records, inbox / "a.pcap")
    lake = replace(empty, sources=(Source("net", "wallaroo", "pcap", str(inbox), ports=(7100,)),))
    land(lake)
    (manifest,) = manifests(lake)
    found = {"protocol": "wallaroo", "severity": "violation", "rule": "wallaroo.x", "message": "m"}
    place = {"capture_id": bytes.fromhex(manifest.capture_id)}
    given = [found | place | {"record_number": at, "arrived_at_ns": TEN + at * SECOND} for at in range(3)]
    write(lake, "gold.wallaroo_found", *given)
    with Served(serving.application(lake)) as served:

        def fetched(path: str) -> Any:
            return urlopen(served.url + path)

        with fetched("card/wallaroo/incidents") as card:
            links = re.findall(r'href="/(newest/[^"]*)"', card.read().decode())
        of_bytes, of_packets = map(html.unescape, links)
        with fetched(of_bytes) as page:
            assert "record 2 of capture" in page.read().decode()
        with fetched(of_packets) as file:
            assert file.headers["Content-Disposition"] == 'attachment; filename="gold.wallaroo_incidents.pcap"'
            excerpt = file.read()
        with pytest.raises(HTTPError, match="404"):
            fetched(of_packets.replace("newest/packets", "newest/secrets"))
        with fetched("card/cardinal/incidents") as card:
            assert "packets" not in card.read().decode()
    write_file(records[2:], tmp_path / "third.pcap")
    assert excerpt == (tmp_path / "third.pcap").read_bytes()


def test_what_comes_later_changes_nothing_in_a_range_that_ended(empty: Lake) -> None:
    block = {"block_hash": CAPTURE, "number": 7, "messages": 3, "duplicates": 0, "arrived_at_ns": TEN}
    done = block | {"status": "complete", "completed_at_ns": TEN + SECOND}
    again = done | {"window_start": "2026-11-16", "messages": 4, "duplicates": 1}
    write(empty, "gold.cardinal_batches_history", done, again)
    cardinal = boards.boards()["cardinal"]
    for last, duplicates in (("2026-11-14", 0), ("2026-11-15", 0), ("2026-11-16", 1)):
        span = Span("2026-11-14", last)
        (told,) = answers.answer(empty, cardinal.chart("blocks"), span).rows
        assert (told["blocks"], told["complete"], told["duplicates"]) == (1, 1, duplicates)
        (row,) = answers.evidence(empty, cardinal.chart("blocks"), span).rows
        assert row.cells["duplicates"] == duplicates
    (later,) = answers.answer(empty, cardinal.chart("blocks"), Span("2026-11-15")).rows
    assert later["blocks"] == 1


@pytest.mark.parametrize(("board", "chart"), CHARTS)
def test_each_statement_can_be_asked_of_a_range_that_ended(board: Board, chart: Chart, empty: Lake) -> None:
    for span in (Span("2026-11-14", "2026-11-15", "net"), Span("2026-11-14T22:10:00.5", "2026-11-14T22:11", "net")):
        assert answers.answer(empty, chart, span).error is None
        assert answers.evidence(empty, chart, span).answer.error is None


def test_a_range_of_time_is_cut_into_buckets_as_wide_as_it_asks_for(filled: Lake) -> None:
    assert answers.step(filled, "cardinal", ALL) == SECOND // 2
    assert answers.step(filled, "wallaroo", ALL) == answers.STEPS[0]
    assert answers.step(filled, "cardinal", Span("2026-11-14T22:00:10", "2026-11-14T22:00:19")) == SECOND // 20


def test_a_capture_counts_in_each_window_that_it_has_records_in(make_lake: Callable[..., Lake], tmp_path: Path) -> None:
    rows = [json.loads(line) for line in STREAM.read_text().splitlines()]
    path, day = tmp_path / "days.jsonl", 86_400_000
    later = (row | {"timestamp_ms": row["timestamp_ms"] + more * day} for more in (0, 1, 3) for row in rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in later))
    lake = make_lake({"net": (path, {})})
    land(lake)
    no_spark: Any = None
    runner.run_job(no_spark, lake, "bronze.captures", "2023-11-14", "2023-11-17")
    overview, days = boards.boards()["overview"], ["2023-11-14", "2023-11-15", "2023-11-17"]
    assert answers.windows(lake) == days
    for name in ("records", "windows"):
        found = answers.answer(lake, overview.chart(name), ALL).rows
        assert [(row["window_start"], row["records"]) for row in found] == [(window, len(rows)) for window in days]
    second = Span(days[1], days[1])
    (told,) = answers.answer(lake, overview.chart("lake"), second).rows
    assert {name: told[name] for name in ("captures", "windows", "records")} == {
        "captures": 1,
        "windows": 1,
        "records": len(rows),
    }
    assert answers.step(lake, "cardinal", second) > SECOND, "its records lie anywhere in the window"
    behind = answers.evidence(lake, overview.chart("windows"), ALL, {"window_start": days[1], "source": "net"})
    assert [row.cells["records"] for row in behind.rows] == [len(rows)]
    out = io.StringIO()
    tracing.trace(lake, behind.rows[0].table, behind.rows[0].key, out)
    assert f"{3 * len(rows):,} records" in out.getvalue()
    forgetting.erase_landed(lake, manifests(lake)[0].capture_id)
    assert answers.windows(lake) == []


def test_a_log_counts_by_source_and_what_is_missing_is_not_signed(empty: Lake) -> None:
    log = {"author": CAPTURE, "log_id": 0, "verified_up_to": 1, "length": 1000, "entries": 2, "valid": 1, "unknown": 1}
    log |= {"missing_entries": 998}
    write(empty, "gold.bamboo_logs_history", log, log | {"source": "files"})
    chart = boards.boards()["bamboo"].chart("verified")
    found = answers.answer(empty, chart, ALL).rows
    parts = {"verified": 1, "signed only": 1, "missing": 998}
    assert {(row["log"], row["part"]): row["entries"] for row in found} == {
        (f"{source} · 01010101/0 to 1", part): entries for source in ("files", "net") for part, entries in parts.items()
    }
    assert len(answers.evidence(empty, chart, ALL, {"log": "net · 01010101/0 to 1"}).rows) == 1


def test_of_many_logs_the_longest_are_drawn_with_all_that_is_known_of_them(empty: Lake) -> None:
    logs = [
        {"author": CAPTURE, "log_id": i, "length": 100 + i, "entries": 3, "valid": 2, "missing_entries": 97 + i}
        for i in range(40)
    ]
    write(empty, "gold.bamboo_logs_history", *logs)
    found = answers.answer(empty, boards.boards()["bamboo"].chart("verified"), ALL)
    drawn: dict[str, float] = {}
    for row in found.rows:
        drawn[row["log"]] = drawn.get(row["log"], 0) + row["entries"]
    assert drawn == {f"net · 01010101/{i} to 0": 100 + i for i in range(10, 40)}
    assert found.cut == 30
    card = pages.page(
        "card.html",
        board=boards.boards()["bamboo"],
        chart=boards.boards()["bamboo"].chart("verified"),
        span=ALL,
        answer=found,
        empty=False,
        spec={},
    )
    assert "Only the first 30 are drawn" in card


def test_records_that_could_not_be_read_are_damage(empty: Lake) -> None:
    capture = {"capture_id": CAPTURE, "protocol": "cardinal", "status": "landed", "records": 6, "unreadable_records": 2}
    write(empty, "bronze.captures", capture)
    write(empty, "bronze.windows", capture)
    finding = {"rule": "capture.file_damaged", "severity": "note"}
    write(empty, "silver.cardinal", {"row_kind": "finding", "capture_id": CAPTURE, "finding": finding})
    board = boards.boards()["overview"]
    (numbers,) = answers.answer(empty, board.chart("lake"), ALL).rows
    assert numbers["not_whole"] == 1
    (damage,) = answers.answer(empty, board.chart("damage"), ALL).rows
    assert (damage["rule"], damage["findings"]) == ("capture.file_damaged", 1)


SESSION, NEXT, NAMELESS = (bytes([number]) * 16 for number in range(3))


@pytest.fixture
def replayed(empty: Lake) -> Lake:
    """A stream of two sessions, of which the second had everything acknowledged; and one of a session without HELLO."""
    named = {"program_name": "feeds", "instance_name": "one", "dialect": "v3"}
    sessions: list[dict[str, Any]] = [{"connection_id": SESSION, "ended": "reset"} | named]
    sessions += [{"connection_id": NEXT} | named, {"connection_id": NAMELESS}]
    write(empty, "gold.wallaroo_sessions_history", *sessions)
    stream = {"stream_id": 1, "stream_name": "s", "state": "open", "messages": 50}
    write(
        empty,
        "gold.wallaroo_streams_history",
        stream | {"connection_id": SESSION, "unacked": 50},
        stream | {"connection_id": NEXT, "unacked": 0},
        stream | {"connection_id": NAMELESS, "stream_name": None, "unacked": 3},
    )
    write(
        empty, "gold.wallaroo_stream_progress_history", named | {"stream_id": 1, "connection_id": NEXT, "replayed": 50}
    )
    turns = ({"granted": 100, "balance": 100}, {"granted": 100, "balance": 100, "zero_at_ns": TEN + SECOND})
    told = ({"connection_id": SESSION, "arrived_at_ns": TEN + i * 10 * SECOND} | turn for i, turn in enumerate(turns))
    write(empty, "gold.wallaroo_credits", *told)
    return empty


def test_a_stream_stands_as_in_its_newest_session(replayed: Lake) -> None:
    wallaroo = boards.boards()["wallaroo"]
    (told,) = answers.answer(replayed, wallaroo.chart("sessions"), ALL).rows
    assert (told["streams"], told["unacked"], told["messages"], told["replayed"]) == (2, 3, 150, 50)
    for span in (ALL, Span("2026-11-14", "2026-11-14")):
        waiting = answers.answer(replayed, wallaroo.chart("unacked"), span).rows
        assert [(row["stream"], row["unacked"]) for row in waiting] == [("net · 1", 3)]
        (row,) = answers.evidence(replayed, wallaroo.chart("unacked"), span).rows
        assert NAMELESS.hex() in row.key
        states = answers.answer(replayed, wallaroo.chart("states"), span).rows
        assert [(row["state"], row["streams"]) for row in states] == [("open", 2)]


def test_a_balance_that_runs_out_is_drawn_as_such(replayed: Lake) -> None:
    chart = boards.boards()["wallaroo"].chart("credits")
    rows = answers.answer(replayed, chart, ALL).rows
    drawn = sorted(rows, key=lambda row: row["arrived_at_ns"])
    balances = [(row["arrived_at_ns"] - TEN, row["balance"]) for row in drawn]
    again = 10 * SECOND
    assert balances == [(0, 0), (0, 100), (SECOND, 0), (again, 0), (again, 100)]
    assert {row["connector"] for row in rows} == {"feeds/one"}
    assert drawing.spec(chart, rows)["encoding"]["y"]["scale"]["zero"]
    heads = boards.boards()["cardinal"].chart("chain")
    assert not drawing.spec(heads, [])["encoding"]["y"]["scale"]["zero"]


def test_of_too_many_rows_the_newest_of_each_source_are_drawn(empty: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MOST_DRAWN", 5)
    update = {"added": [], "removed": [], "head_hash": CAPTURE}
    heads = [update | {"sequence": i, "head_number": i, "arrived_at_ns": TEN + i} for i in range(9)]
    write(empty, "gold.cardinal_chain_updates", *heads, heads[0] | {"source": "b"})
    chart = boards.boards()["cardinal"].chart("chain")
    found = answers.answer(empty, chart, ALL)
    assert found.cut
    assert sorted((row["source"], row["head_number"]) for row in found.rows) == [
        ("b", 0),
        *(("net", i) for i in (5, 6, 7, 8)),
    ]
    card = pages.page(
        "card.html", board=boards.boards()["cardinal"], chart=chart, span=ALL, answer=found, empty=False, spec={}
    )
    assert "the newest of each source" in card


def test_incarnations_of_a_stream_stand_apart(empty: Lake) -> None:
    index = {"client_id": "c", "stream_name": "s", "partition": 0}
    lags = ({"stream_address": address, "lag": lag} for address, lag in (("a1", 40), ("a2", 2)))
    write(empty, "gold.ockam_stream_indexes_history", *(index | lag for lag in lags))
    rows = answers.answer(empty, boards.boards()["ockam"].chart("lag"), ALL).rows
    assert [(row["consumer"], row["lag"]) for row in rows] == [("c · s/0 · a1", 40), ("c · s/0 · a2", 2)]


def test_a_node_that_fetched_nothing_is_shown(empty: Lake) -> None:
    behind = {"node": "n", "connection_id": SESSION, "byte_end": 1, "state": "stalled", "fetched": 0}
    write(empty, "gold.hiero_catch_ups_history", behind)
    chart = boards.boards()["hiero"].chart("catch_ups")
    (row,) = answers.answer(empty, chart, ALL).rows
    assert (row["node"], row["state"], row["fetched"]) == ("n", "stalled", 0)


def test_a_row_of_a_table_leads_to_the_rows_behind_it_and_a_cut_table_says_so(empty: Lake) -> None:
    behind = {"connection_id": SESSION, "state": "done", "fetched": 0}
    caught_up = ({"node": "n", "byte_end": at, "arrived_at_ns": TEN + at} for at in range(2, 102))
    stalled = {"node": "n & m", "byte_end": 1, "state": "stalled", "arrived_at_ns": TEN}
    write(empty, "gold.hiero_catch_ups_history", behind | stalled, *(behind | one for one in caught_up))
    lake = replace(empty, sources=(Source("net", "hiero", "pcap", "/"),))
    with Served(serving.application(lake)) as served:

        def page(path: str) -> str:
            with urlopen(served.url + path) as answer:
                return str(answer.read().decode())

        card = page("card/hiero/catch_ups")
        assert "Only the first 100 are shown" in card
        links = re.findall(r'href="/(chart/hiero/catch_ups[^"]*)#rows"', card)
        assert len(links) == 100
        rows = page(html.unescape(links[0])).partition('id="rows"')[2]
        assert (rows.count("/trace?"), rows.count("stalled")) == (1, 2), "as a value and as what was asked"
        assert "Only the first" not in page("card/hiero/retries")


def test_what_takes_the_whole_width_stands_above_drawings() -> None:
    for board in boards.boards().values():
        drawn = [chart.drawn for chart in board.charts]
        assert drawn == sorted(drawn)
        assert board.charts[0].id == "incidents"


def test_axes_have_windows_without_data_and_times_their_day() -> None:
    records = boards.boards()["overview"].chart("records")
    rows = [{"window_start": f"2023-11-14T{hour}", "protocol": "ockam", "records": 1} for hour in (22, 23)]
    rows.append(rows[0] | {"window_start": "2023-11-15T02"})
    place = drawing.spec(records, rows)["encoding"]["x"]
    hours = ("14T22", "14T23", "15T00", "15T01", "15T02")
    assert place["scale"]["domain"] == [f"2023-11-{hour}" for hour in hours]
    years = [rows[0] | {"window_start": day} for day in ("2019-01-01", "2023-11-14")]
    assert "scale" not in drawing.spec(records, years)["encoding"]["x"], "that would be too many"
    heads = boards.boards()["cardinal"].chart("chain")
    assert heads.x
    times = [{value.field: 1 for value in heads.shown} | {heads.x.field: TEN + i * 3 * HOUR} for i in range(2)]
    assert drawing.spec(heads, times)["encoding"]["x"]["axis"]["title"].endswith(", 2026-11-14 to 2026-11-15")
    assert drawing.spec(heads, [])["encoding"]["x"]["axis"]["title"] == heads.x.label


def test_where_nothing_came_no_line_is_drawn() -> None:
    assert {chart.type for _, chart in boards.charts() if "{step}" in chart.sql} == {"points"}


def test_what_the_broker_let_go_of_is_shown(empty: Lake) -> None:
    write(empty, "bronze.findings", {"protocol": "capture", "rule": "capture.offset_gap", "severity": "note"})
    rows = answers.answer(empty, boards.boards()["overview"].chart("damage"), ALL).rows
    assert [(row["rule"], row["source"], row["findings"]) for row in rows] == [("capture.offset_gap", "net", 1)]


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


@pytest.mark.parametrize("chart", DRAWN)
def test_each_mark_leads_to_rows(chart: Chart, filled: Lake) -> None:
    for mark in answers.answer(filled, chart, ALL).rows[:3]:
        only = {name: "" if mark[name] is None else str(mark[name]) for name in chart.clickable}
        assert answers.evidence(filled, chart, ALL, only).rows


def test_a_mark_that_sums_up_rows_leads_to_all_of_them(empty: Lake) -> None:
    parts = ({"protocol": "cardinal", "path": "a", "records": i, "capture_id": bytes([i]) * 32} for i in (1, 2))
    write(empty, "bronze.windows", *parts)
    chart = boards.boards()["overview"].chart("windows")
    (mark,) = answers.answer(empty, chart, ALL).rows
    assert mark["records"] == 3
    assert len(answers.evidence(empty, chart, ALL, {name: mark[name] for name in chart.clickable}).rows) == 2


def test_what_was_rejected_has_not_landed(empty: Lake) -> None:
    told = {"protocol": "cardinal", "kind": "messages", "path": "a"}
    landed = told | {"status": "landed", "records": 3, "size_bytes": 10, "landed_at_ns": time.time_ns() - 48 * HOUR}
    rejected = told | {"status": "rejected", "records": 0, "size_bytes": 10**9, "landed_at_ns": time.time_ns()}
    rejected |= {"window_start": "2026-11-20", "capture_id": b"\2" * 32}
    write(empty, "bronze.captures", landed, rejected)
    write(empty, "bronze.windows", landed)
    overview = boards.boards()["overview"]
    (lake,) = answers.answer(empty, overview.chart("lake"), ALL).rows
    assert (lake["captures"], lake["windows"], lake["size_bytes"], lake["not_whole"]) == (1, 1, 10, 1)
    (source,) = answers.answer(empty, overview.chart("freshness"), ALL).rows
    assert source["hours"] == pytest.approx(48, abs=0.1)
    assert [row["size_bytes"] for row in answers.answer(empty, overview.chart("bytes"), ALL).rows] == [10]


def test_a_mark_leads_to_its_rows_and_these_to_their_bytes(filled: Lake) -> None:
    chart = boards.boards()["overview"].chart("rules")
    behind = answers.evidence(filled, chart, ALL, {"rule": "cardinal.topic_wrong", "severity": "warning"})
    assert len(behind.rows) == len("topic_wrong")
    words = shlex.split(behind.rows[0].command)
    key = "source=net,window_start=2026-11-14,rule=cardinal.topic_wrong,connection_id=,direction=,byte_start=,"
    key += f"capture_id={CAPTURE.hex()},record_number=0"
    assert words == ["wirehouse", "trace", "gold.violations", key]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(config.VARIABLE, "/the lake/wirehouse.toml")
        told = shlex.split(behind.rows[0].command)
    assert told == [words[0], "--config", "/the lake/wirehouse.toml", *words[1:]]
    assert answers.evidence(filled, chart, ALL, {"rule": "' OR 1=1 --"}).rows == []
    assert answers.evidence(filled, chart, ALL, most=3).answer.cut
    assert answers.Traced({}, "gold.x", "a=\x1b[2J").command == r"wirehouse trace gold.x $'a=\x1b[2J'"
    # Whoever names a stream can't lead to the bytes of another.
    streams = boards.boards()["ockam"].chart("throughput").rows
    evil = "a,\\,stream_address=good\\"
    traced = answers._traced(
        streams, dict.fromkeys(streams.names) | dict.fromkeys(streams.key, 1) | {"stream_address": evil}
    )
    assert tracing._key(all_tables()[streams.table], traced.key)["stream_address"] == evil
    slow = answers.evidence(filled, boards.boards()["cardinal"].chart("completion"), ALL, {"up_to_ms": "256"})
    assert [row.cells["number"] for row in slow.rows] == [11]


def test_the_command_of_a_row_is_of_no_other(empty: Lake) -> None:
    block = {"block_hash": CAPTURE, "status": "complete", "arrived_at_ns": TEN}
    write(empty, "gold.cardinal_batches_history", block, block | {"source": "other"})
    found = {"rule": "ockam.x", "severity": "warning", "connection_id": CAPTURE, "direction": "to_server"}
    write(empty, "gold.ockam_found", found, found | {"byte_start": 7}, found | {"source": "other"})
    for board, name in (("cardinal", "blocks"), ("overview", "rules")):
        rows = answers.evidence(empty, boards.boards()[board].chart(name), ALL).rows
        keys = {row.key for row in rows}
        assert len(keys) == len(rows) > 1
        for row in rows:
            assert len(tracing._rows(empty, all_tables()[row.table], row.key)) == 1, row.key


def test_a_chart_whose_range_of_time_cant_be_told_shows_an_error(filled: Lake) -> None:
    next(Path(filled.table_path("bronze.windows")).rglob("*.json")).write_bytes(b"no log")
    chart = next(chart for _, chart in boards.charts() if "{step}" in chart.sql)
    assert "bronze.windows can't be opened" in str(answers.answer(filled, chart, ALL).error)


def test_an_error_is_shown_as_one(filled: Lake) -> None:
    chart = boards.boards()["overview"].chart("rules").model_copy(update={"sql": "SELECT nothing FROM gold.violations"})
    found = answers.answer(filled, chart, ALL)
    assert found.error
    assert "nothing" in found.error
    page = pages.page("card.html", board=None, chart=chart, span=ALL, answer=found, empty=False, spec=None)
    assert 'role="alert"' in page


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


@pytest.mark.parametrize("chart", DRAWN)
def test_no_text_of_the_wire_ends_or_leaves_a_drawing(chart: Chart) -> None:
    texts = {value.field for value in chart.shown if not value.unit and value.kind not in ("number", "time")}
    row = {value.field: f"\x1b\x00\uffff</svg>{HOSTILE}" if value.field in texts else TEN for value in chart.shown}
    drawn = drawing.svg(chart, [row])
    assert drawn.count("<svg") == drawn.count("</svg>") == 1
    assert "<script" not in drawn
    assert "<img" not in drawn


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, as the Web Content Accessibility Guidelines define it."""

    def luminance(color: str) -> float:
        parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize(("theme", "number"), [("light", 0), ("dark", 1)])
def test_colours_stand_out_from_their_background(theme: str, number: int) -> None:
    style = pages.asset("style.css")
    variables = {name: re.findall(rf"--{name}: (#\w+);", style)[number] for name in ("card", "ground", "faint", "edge")}
    for color in (*drawing._PALETTE, *drawing._MEANINGS.values(), variables["edge"]):
        assert contrast(color, variables["card"]) >= 3, f"{color} of a mark"
    for color in (variables["faint"], *drawing._INKS[theme][:2]):
        assert min(contrast(color, variables[under]) for under in ("card", "ground")) >= 4.5, f"{color} of text"


def test_two_values_have_one_colour_only_if_it_is_grey_and_the_legend_says_so() -> None:
    chart = boards.boards()["ockam"].chart("throughput")
    rows = [
        {"at_ns": TEN + number * SECOND, "stream_address": f"s{number}", "messages_per_s": number}
        for number in range(12)
        for _ in range(12 - number)
    ]
    few = drawing.spec(chart, rows[:50])["encoding"]["color"]
    assert len(few["scale"]["domain"]) <= len(drawing._PALETTE)
    assert "range" not in few["scale"]
    many = drawing.spec(chart, rows)["encoding"]["color"]
    colors = dict(zip(many["scale"]["domain"], many["scale"]["range"], strict=True))
    grey = {name for name, color in colors.items() if color == drawing._PALETTE[-1]}
    assert grey == {"s8", "s9", "s10", "s11"}, "the rarest"
    assert len({color for name, color in colors.items() if name not in grey}) == len(colors) - len(grey)
    assert many["legend"]["title"] == "Stream; grey: 4 others"
    assert many["legend"]["values"] == [f"s{number}" for number in range(8)]


#: What is drawn: a value at each place; those of one place have different colours.
PLACED = (("a", 1), ("a", 3), ("b", 2), ("c", 5))


def marks(drawn: object) -> Iterator[dict[str, Any]]:
    """The bars, cells or points of a drawing: `x`, `y`, `width`, `height` in pixels, as far as they have them."""
    if isinstance(drawn, dict) and drawn.get("role") == "mark" and drawn["marktype"] in ("rect", "symbol"):
        yield from drawn["items"]
    elif isinstance(drawn, dict | list):
        for part in drawn.values() if isinstance(drawn, dict) else drawn:
            yield from marks(part)


@pytest.mark.parametrize("chart", DRAWN)
def test_what_is_drawn_is_as_large_as_the_value(chart: Chart) -> None:
    assert chart.x
    assert chart.y
    lies = chart.y.unit is None
    measured = chart.color if chart.type == "heat" else chart.x if lies else chart.y
    assert measured
    rows: list[dict[str, Any]] = []
    for number, (place, value) in enumerate(PLACED):
        others = {one.field: place for one in chart.shown} | ({chart.color.field: str(number)} if chart.color else {})
        times = {one.field: TEN + number * SECOND for one in chart.shown if one.kind == "time"}
        rows.append(others | times | {measured.field: value})
    if chart.type == "heat" or not chart.color:
        # There is one of each place.
        del rows[1]
    values = [row[measured.field] for row in rows]
    scene = vl_convert.vegalite_to_scenegraph(drawing.spec(chart, rows) | {"width": 700}, vl_version=drawing.VEGA_LITE)
    drawn = list(marks(scene))
    assert len(drawn) == len(rows)
    if chart.type == "heat":
        assert len({mark["fill"] for mark in drawn}) == len(rows)
    elif chart.type == "bar":
        begin, size = ("x", "width") if lies else ("y", "height")
        pixels = [mark[size] for mark in drawn]
        assert pixels == pytest.approx([value * pixels[0] for value in values])
        assert min(pixels) > 0
        ends = sorted((mark[begin], mark[begin] + mark[size]) for mark in drawn[: len(rows) - 2])
        assert all(end <= after + 1e-9 for (_, end), (after, _) in pairwise(ends)), "one hides another"
    else:
        per_unit = (drawn[0]["y"] - drawn[3]["y"]) / (values[3] - values[0])
        assert per_unit > 0
        expected = [drawn[0]["y"] - (value - values[0]) * per_unit for value in values]
        assert [mark["y"] for mark in drawn] == pytest.approx(expected)


def rounded(rows: Sequence[Mapping[str, Any]], chart: Chart) -> list[dict[str, Any]]:
    """What is compared of rows: numbers as a browser has them; how long ago something was goes on."""
    fields = [value.field for value in chart.shown if value.field != "hours"]
    return [{name: float(v) if isinstance(v := row[name], int | float) else v for name in fields} for row in rows]


def shown_in_table(row: Mapping[str, Any], value: Value) -> str:
    """The cell of a chart's table as a browser has it."""
    told = row[value.field]
    return pages.measured(told, value) if value.unit else pages.cell(told, value.field).striptags() or value.absent


@pytest.mark.servers
def test_a_browser_shows_the_values_of_the_sql(filled: Lake, browser: Browser) -> None:
    drawn = 0
    with Served(serving.application(filled)) as served:
        for board in boards.boards().values():
            with browsing.page(browser, f"{served.url}board/{board.name}") as page:
                for chart in board.charts:
                    expected = answers.answer(filled, chart, ALL)
                    card = page.locator(f"#{chart.id}")
                    if chart.folded:
                        card.locator("summary").click()
                        card.locator(".body:not([aria-busy])").wait_for()
                    if answers.is_empty(chart, expected):
                        assert card.locator(".empty").inner_text() == chart.empty.replace("`", "")
                    elif chart.drawn:
                        shown = card.locator(".plot").evaluate(VALUES)
                        assert rounded(shown, chart) == rounded(expected.rows, chart)
                        if chart.type in ("bar", "heat"):
                            assert card.locator(".mark-rect.role-mark.marks path").count() == len(expected.rows)
                        drawn += 1
                    elif chart.type == "table":
                        assert card.locator("tbody tr").count() == len(expected.rows)
                        cells = card.locator("tbody td:not(.leads)").all_text_contents()
                        assert cells == [shown_in_table(row, value) for row in expected.rows for value in chart.shown]
                    else:
                        for name, value in expected.rows[0].items():
                            told = card.locator(f"dd[data-field={name}]").get_attribute("data-value")
                            assert told == ("" if value is None else str(value))
                assert page.title() == f"{board.title} · Wirehouse", "text of the wire was run"
    assert drawn == 10


@pytest.mark.servers
def test_in_a_browser_a_bar_leads_to_its_rows_and_their_bytes(filled: Lake, browser: Browser) -> None:
    with Served(serving.application(filled)) as served, browsing.page(browser, f"{served.url}board/overview") as page:
        before = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.locator("#theme").click()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
        page.locator("#rules .mark-rect.role-mark.marks path").nth(1).click()
        page.wait_for_url("**/chart/overview/rules?*rule=cardinal.topic_wrong*")
        page.wait_for_selector("html[data-ready]")
        assert page.locator("table.rows tbody tr").count() == len("topic_wrong")
        assert HOSTILE in page.locator("table.rows").inner_text()
        assert "FROM gold.violations" in page.locator("pre.sql").inner_text()
        page.locator("table.rows a").first.click()
        page.wait_for_url("**/trace?*")
        assert "the manifest is gone" in page.locator(".error").inner_text()
        assert page.title() == "gold.violations · Wirehouse"


@pytest.mark.servers
def test_in_a_browser_the_keyboard_reaches_marks_and_their_rows(filled: Lake, browser: Browser) -> None:
    with Served(serving.application(filled)) as served, browsing.page(browser, f"{served.url}board/overview") as page:
        reached = "[document.activeElement.getAttribute('aria-label'), document.activeElement.__data__?.datum.rule]"
        page.locator("#rules a").first.focus()
        page.keyboard.press("Tab")
        assert page.evaluate(reached) == ["Arrow keys go from mark to mark, Enter shows the rows of one", None]
        found = []
        for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown", "ArrowDown"):
            page.keyboard.press(key)
            found.append(page.evaluate(reached)[1].removeprefix("cardinal."))
        one, other = "extra_message", "topic_wrong"
        assert found == [one, other, one, other, one, other, one]
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        page.keyboard.press("Enter")
        page.wait_for_url("**/chart/overview/rules?*rule=cardinal.extra_message*")


@pytest.mark.servers
def test_in_a_browser_a_part_of_a_time_axis_becomes_the_range(filled: Lake, browser: Browser) -> None:
    with Served(serving.application(filled)) as served, browsing.page(browser, f"{served.url}board/cardinal") as page:
        before = page.locator("#chain .plot").evaluate(VALUES)
        drag(page, "#chain")
        page.wait_for_url("**/board/cardinal?from=2026-11-14T22*&to=2026-11-14T22*")
        page.wait_for_selector("html[data-ready]")
        after = page.locator("#chain .plot").evaluate(VALUES)
        first, last = (page.locator(f"input[name={name}]").input_value() for name in ("from", "to"))
        bounds = Span(first, last).bounds(filled)
        assert bounds.begin_ns is not None
        assert bounds.end_ns is not None
        inside = [row for row in before if bounds.begin_ns <= row["arrived_at_ns"] <= bounds.end_ns]
        assert 0 < len(after) == len(inside) < len(before)
        assert "Counts whole windows: 2026-11-14." in page.locator("#operations").inner_text()
        page.locator(".recent a", has_text="all").click()
        page.wait_for_selector("html[data-ready]")
        assert page.locator("#chain .plot").evaluate(VALUES) == before
        page.goto(f"{served.url}board/overview")
        page.wait_for_selector("html[data-ready]")
        drag(page, "#records", 0.6, 0.9)
        page.wait_for_url("**/board/overview?from=2026-11-15&to=2026-11-15")


def drag(page: Page, card: str, begin: float = 0.3, end: float = 0.7) -> None:
    """Move the pressed pointer over a part of the width of a chart."""
    page.locator(f"{card} .plot").hover()  # once it stands still
    box = page.locator(f"{card} .plot .background").first.bounding_box()
    assert box
    for part, act in ((begin, page.mouse.down), (end, page.mouse.up)):
        page.mouse.move(box["x"] + part * box["width"], box["y"] + box["height"] / 2, steps=3)
        act()


@pytest.mark.servers
def test_in_a_browser_a_board_asks_again_by_itself(
    filled: Lake, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "REFRESH", {"1": "1 s"})
    with Served(serving.application(filled)) as served, browsing.page(browser, f"{served.url}board/overview") as page:
        page.locator("select[name=refresh]").select_option("1 s")
        page.wait_for_url(f"{served.url}board/overview?refresh=1")
        page.wait_for_selector("#quarantine .empty")
        more = {"protocol": "cardinal", "rule": "cardinal.extra_message", "severity": "violation", "arrived_at_ns": TEN}
        write(filled, "gold.ockam_found", more | {"rule": "ockam.new", "protocol": "ockam"})
        page.locator("#incidents td", has_text="ockam.new").wait_for(timeout=20_000)
        assert page.locator("#rules svg.marks").count() == 1
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url.partition("?")[0]))
        page.wait_for_timeout(5_500)
        cards = [asked.count(url) for url in set(asked)]
        assert cards
        assert max(cards) <= 5, "each card is asked for once a second"
        page.goto(f"{served.url}board/overview")
        page.wait_for_selector("html[data-ready]")
        page.evaluate("document.querySelector('#lake .body').textContent = 'old'")
        page.wait_for_timeout(2_500)
        assert page.locator("#lake .body").inner_text() == "old", "it is off"


@pytest.mark.servers
@pytest.mark.parametrize("width", [390, 1440, 2560])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser_nothing_overlaps_or_is_cut(
    filled: Lake, browser: Browser, width: int, scheme: Literal["light", "dark"]
) -> None:
    with (
        Served(serving.application(filled)) as served,
        browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme) as page,
    ):
        for board in boards.boards():
            page.goto(f"{served.url}board/{board}")
            page.wait_for_selector("html[data-ready]")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            boxes = [box for card in page.locator(".card").all() if (box := card.bounding_box())]
            for one, other in combinations(boxes, 2):
                apart = one["y"] + one["height"] <= other["y"] or other["y"] + other["height"] <= one["y"]
                beside = one["x"] + one["width"] <= other["x"] or other["x"] + other["width"] <= one["x"]
                assert apart or beside
            for plot in page.locator(".plot").all():
                cut = any(text.endswith("…") for text in plot.locator("text").all_text_contents())
                assert plot.locator("xpath=..").locator(".cut").is_visible() == cut
            for name in page.locator(".values td, .values th").filter(visible=True).all():
                inner = name.bounding_box()
                assert inner
                assert width > 390 or inner["x"] + inner["width"] <= width, f"{board}: {name.text_content()}"
            for card in page.locator(".card").all():
                for text in card.locator(".role-legend text, .role-axis-title text").all():
                    outer, inner = card.bounding_box(), text.bounding_box()
                    assert outer
                    assert inner
                    assert outer["x"] <= inner["x"], f"{board}: {text.text_content()}"
                    assert inner["x"] + inner["width"] <= outer["x"] + outer["width"], f"{board}: {text.text_content()}"


@pytest.mark.servers
@pytest.mark.parametrize("width", [390, 1200, 1440])
def test_in_a_browser_an_incident_and_its_links_are_seen_whole(empty: Lake, browser: Browser, width: int) -> None:
    found = {"protocol": "cardinal", "message": "m", "severity": "warning", "arrived_at_ns": TEN, "source": "a" * 12}
    names = {"rule": "cardinal.offsets_of_a_block_are_missing", "topic": "mainnet-of-a-long-name.blocks.receipts"}
    write(empty, "gold.cardinal_found", found | names, found | names | {"topic": "x" * 200})
    found |= {"rule": "wallaroo.credits_not_replenished", "protocol": "wallaroo", "connection_id": CAPTURE}
    write(empty, "gold.wallaroo_found", found)
    with (
        Served(serving.application(empty)) as served,
        browser.new_page(viewport={"width": width, "height": 900}) as page,
    ):
        for board in ("cardinal", "wallaroo", "overview"):
            page.goto(f"{served.url}board/{board}")
            page.wait_for_selector("html[data-ready]")
            outer = page.locator("#incidents").bounding_box()
            assert outer
            assert page.locator("#incidents a", has_text="bytes").count() > 0
            for seen in page.locator("#incidents td, #incidents td a").all():
                inner = seen.bounding_box()
                assert inner
                assert outer["x"] <= inner["x"], seen.text_content()
                assert inner["x"] + inner["width"] <= outer["x"] + outer["width"], seen.text_content()


@pytest.mark.servers
def test_in_a_browser_notes_are_asked_when_somebody_unfolds_them(filled: Lake, browser: Browser) -> None:
    found = {"protocol": "cardinal", "rule": "cardinal.noted", "severity": "note", "message": "m", "arrived_at_ns": TEN}
    shutil.rmtree(filled.table_path("gold.cardinal_found"))
    write(filled, "gold.cardinal_found", found)
    with Served(serving.application(filled)) as served, browsing.page(browser, f"{served.url}board/cardinal") as page:
        notes = page.locator("#notes")
        assert "cardinal.noted" not in str(notes.text_content())
        notes.locator("summary").click()
        notes.get_by_text("cardinal.noted").wait_for()


@pytest.mark.servers
def test_in_a_browser_an_error_shows_as_one(filled: Lake, browser: Browser, tmp_path: Path) -> None:
    broken = Path(filled.table_path("gold.cardinal_found"))
    next(broken.rglob("*.parquet")).write_bytes(b"no parquet")
    with Served(serving.application(filled)) as served:
        with browsing.page(browser, f"{served.url}board/overview") as page:
            assert "could not be asked" in page.locator("#rules .error").inner_text()
            assert page.locator("#records svg").count() == 1, "the others stand"
        with browser.new_page() as other:
            for path, status in {"board/none": 404, "board/overview?from=x": 400, "chart/overview/none": 404}.items():
                answer = other.goto(served.url + path)
                assert answer
                assert answer.status == status
                assert other.locator("[role=alert]").inner_text()


@pytest.mark.servers
def test_the_command_serves_until_a_signal_stops_it(tmp_path: Path, browser: Browser) -> None:
    file = tmp_path / "wirehouse.toml"
    file.write_text('[lakehouse]\nroot = "lake"\n')
    start = "from wirehouse_orchestration.cli.command import main; main()"
    command = [sys.executable, "-u", "-c", start, "--config", str(file), "dashboard"]
    with started(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        url = re.search(r"http://127\.0\.0\.1:\d+/", line)
        assert url
        assert line.replace(url[0], f"http://{ports.HOST}:{ports.DASHBOARD}/") in (DOCS / "dashboards.md").read_text()
        with browsing.page(browser, url[0]) as page:
            asked = [chart for chart in boards.boards()["overview"].charts if not chart.folded]
            assert page.locator(".empty").count() == len(asked)
            assert "`" not in page.locator("#lake").inner_text()
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "stopped\n"
        assert process.wait(30) == 0


def test_what_goes_wrong_is_a_page_too(empty: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    write(empty, "bronze.windows", {"protocol": "cardinal"})
    Path(empty.table_path("bronze.windows"), "_delta_log", "00000000000000000000.json").write_text("{")
    with Served(serving.application(empty)) as served:
        for said in ("bronze.windows can&#39;t be opened", "TypeError: "):
            with pytest.raises(HTTPError, match="500") as failed:
                urlopen(f"{served.url}board/overview")
            assert said in failed.value.read().decode()
            assert failed.value.headers["Content-Security-Policy"].startswith("default-src 'none'")
            monkeypatch.setattr(answers, "windows", lambda lake: lake["x"])


def test_another_sites_name_is_not_let_in(empty: Lake) -> None:
    with Served(serving.application(empty)) as served:
        with urlopen(f"{served.url}board/overview") as answer:
            assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
        with pytest.raises(HTTPError, match="400"):
            urlopen(Request(f"{served.url}board/overview", headers={"Host": "rebound.example"}))


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


def test_the_bundle_of_superset_has_every_chart_with_its_dataset_on_its_dashboard() -> None:
    bundle = dict(superset.bundle("hive://there/gold"))
    uuids = {name: config.get("uuid") for name, config in bundle.items()}
    assert len(set(uuids.values())) == len(uuids)
    assert uuids == {name: config.get("uuid") for name, config in superset.bundle("other://")}, (
        "an import renews the last"
    )
    for board, chart in boards.charts():
        name = f"{board.name}_{chart.id}"
        dataset, drawn = bundle[f"datasets/wirehouse/{name}.yaml"], bundle[f"charts/{name}.yaml"]
        assert dataset["database_uuid"] == uuids["databases/wirehouse.yaml"]
        assert drawn["dataset_uuid"] == dataset["uuid"]
        assert drawn["slice_name"] == chart.question
        assert rendered(dataset["sql"]) == superset.sql(chart)
        assert "{" not in superset.sql(chart)
        assert f"If it shows nothing: {chart.empty}" in drawn["description"]
        assert "MEDIAN" not in dataset["sql"], "Superset makes of it what Spark doesn't take"
        places = bundle[f"dashboards/{board.name}.yaml"]["position"]
        assert places[f"CHART-{chart.id}"]["meta"]["uuid"] == drawn["uuid"]
        assert f"CHART-{chart.id}" in places[places[f"CHART-{chart.id}"]["parents"][-1]]["children"]


def rendered(text: str, **chosen: Sequence[str]) -> str:
    """The SQL of a dataset as Superset writes it out for what is chosen in the filters."""
    engine = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
    engine.filters["where_in"] = lambda values: f"({', '.join(map(answers._quoted, values))})"
    return engine.from_string(text).render(filter_values=lambda name, remove_filter=False: chosen.get(name, []))


def test_a_dashboard_of_superset_is_filtered_by_source_and_window(filled: Lake) -> None:
    bundle = dict(superset.bundle("hive://there/gold"))
    text = bundle["datasets/wirehouse/overview_rules.yaml"]["sql"]

    def rules(**chosen: Sequence[str]) -> int:
        return len(sql.rows(filled, rendered(text, **chosen)).to_pylist())

    assert rules() == rules(source=["net", "it's"], window_start=["2026-11-14"]) == 2
    assert rules(source=["other"]) == rules(source=["net"], window_start=["2026-11-15"]) == 0
    for board in boards.boards().values():
        offered = bundle[f"datasets/wirehouse/{board.name}_spans.yaml"]
        assert sql.rows(filled, offered["sql"]).schema.names == list(superset.FILTERS)
        filters = bundle[f"dashboards/{board.name}.yaml"]["metadata"]["native_filter_configuration"]
        targets = [one["targets"] for one in filters]
        assert targets == [[{"datasetUuid": offered["uuid"], "column": {"name": name}}] for name in superset.FILTERS]


def test_marks_of_superset_that_lie_on_one_another_are_not_added_up() -> None:
    bundle = dict(superset.bundle("hive://there/gold"))
    added = {chart["viz_type"] for chart in _charts(bundle) if "'SUM'" in str(chart["params"])}
    assert added == {"echarts_timeseries_bar", "heatmap_v2"}
    shown = {chart["viz_type"] for chart in _charts(bundle) if "'MAX'" in str(chart["params"])}
    assert shown == {f"echarts_timeseries_{kind}" for kind in ("line", "step", "scatter")}


def _charts(bundle: Mapping[str, Any]) -> list[Any]:
    return [config for name, config in bundle.items() if name.startswith("charts/")]


def unnested(text: str) -> str:
    """SQL over temporary views, which are in no schema."""
    return re.sub(r"\b(bronze|silver|gold)\.(\w+)", r"\1_\2", text)


def _tables(spark: Any, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Tables and views with at most a row each, known to Spark."""
    made: set[str] = set()

    def make(table: Table) -> None:
        if table.name in made:
            return
        made.add(table.name)
        for name in table.reads:
            make(all_tables()[name])
        row = rows.get(table.name)
        listed = [tuple(row.get(column.name) for column in table.columns)] if row else []
        frame = spark.sql(unnested(table.view)) if table.view else spark.createDataFrame(listed, table.ddl)
        frame.createOrReplaceTempView(unnested(table.name))

    for table in all_tables().values():
        make(table)


#: Of each type of a column a value that isn't null; of others 1, or null if they are made of several.
SOME: Mapping[str, Any] = {"STRING": "x", "BINARY": CAPTURE, "BOOLEAN": True}


def _nameless(table: Table) -> dict[str, Any]:
    """A row in which all texts are null that may be."""
    sure = {"source", "window_start", *table.key} - {*table.key_may_lack}
    given = {
        column.name: None if "<" in column.type else SOME.get(column.type, 1)
        for column in table.columns
        if column.type != "STRING" or column.name in sure
    }
    return given | {"source": "net", "window_start": "2026-11-14"}


@pytest.mark.spark
def test_both_engines_answer_the_same_where_names_are_null(empty: Lake, spark: Any) -> None:
    rows = {table.name: _nameless(table) for table in all_tables().values() if not (table.view or table.internal)}
    for name, row in rows.items():
        write(empty, name, row)
    _tables(spark, {name: _as_spark(all_tables()[name], row) for name, row in rows.items()})
    answered: list[str] = []
    for board, chart in boards.charts():
        found = answers.answer(empty, chart, ALL)
        assert found.error is None
        texts = [value.field for value in chart.shown if value.kind == "category" and not value.unit]
        asked = spark.sql(unnested(superset.sql(chart))).select(*texts).collect() if texts else []
        answered += [f"{board.name}-{chart.id}"] if found.rows else []
        assert [row.asDict() for row in asked] == [{name: row[name] for name in texts} for row in found.rows if texts]
    assert {*answered} > {"wallaroo-credits", "wallaroo-unacked", "ockam-lag", "ockam-holes", "bamboo-verified"}


def _as_spark(table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    kinds = {column.name: column.type.partition("(")[0] for column in table.columns}
    made: dict[str, Callable[[Any], Any]] = {
        "DECIMAL": Decimal,
        "DOUBLE": float,
        "TIMESTAMP": lambda since: datetime.fromtimestamp(since, UTC),
    }
    return {name: made.get(kinds.get(name, ""), lambda same: same)(value) for name, value in row.items()}


@pytest.mark.spark
def test_spark_takes_every_statement_of_superset(spark: Any) -> None:
    _tables(spark, {})
    for _, chart in boards.charts():
        columns = set(spark.sql(unnested(superset.sql(chart))).columns)
        assert {value.field for value in chart.shown} <= columns
        behind = spark.sql(unnested(written(chart.rows.sql, superset.WORDS)))
        assert set(chart.rows.names) <= set(behind.columns)


def test_the_browsers_library_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda **how: "made")
    assert [drawing.library.__wrapped__() for _ in range(2)] == ["made", "made"]
    monkeypatch.delattr(vl_convert, "javascript_bundle")
    assert drawing.library.__wrapped__() == "made"
