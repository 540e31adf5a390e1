"""What a browser draws of a board is what the SQL answers, and every part of a page works there."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page

from infra.tools.generated_pages import FOLDER as DOCS
from tests.support import browsing
from tests.support.boards import ALL, CAPTURE, HOSTILE, TEN, Served, write
from tests.support.processes import started
from wirehouse_orchestration.dashboards import answers, boards, pages, serving
from wirehouse_orchestration.dashboards.answers import Span
from wirehouse_orchestration.dashboards.boards import Chart, Value
from wirehouse_orchestration.servers import ports
from wirehouse_pipelines.lake.lake import Lake

#: As the data of a drawing are in the browser.
VALUES = "plot => plot.view.data('answer').map(row => ({...row}))"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing.chromium() as running:
        yield running


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
