"""Ranges of time and sources of a board."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.support.boards import ALL, CAPTURE, CHARTS, HOUR, SECOND, TEN, Served, write
from wirehouse_orchestration.dashboards import answers, boards, pages, serving
from wirehouse_orchestration.dashboards.answers import Span
from wirehouse_orchestration.dashboards.boards import Board, Chart
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.tables import all_tables, beneath


def ends(text: str) -> tuple[int | None, int | None]:
    bounds = Span(text, text).bounds(Lake("/", Windows("day", "2026-01-01")))
    return bounds.begin_ns, bounds.end_ns


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


def test_a_chart_whose_range_of_time_cant_be_told_shows_an_error(filled: Lake) -> None:
    next(Path(filled.table_path("bronze.windows")).rglob("*.json")).write_bytes(b"no log")
    chart = next(chart for _, chart in boards.charts() if "{step}" in chart.sql)
    assert "bronze.windows can't be opened" in str(answers.answer(filled, chart, ALL).error)
