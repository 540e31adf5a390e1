"""Opens the dashboards of a running Superset in Chromium and holds what each chart shows against our own SQL.

`make superset-check`, with `make superset` and `wirehouse sql-server` running beside it. Pictures go to the folder that
is named, if one is.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from math import isclose
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, Response, sync_playwright
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from wirehouse_orchestration import config
from wirehouse_orchestration.dashboards import answers, superset
from wirehouse_orchestration.dashboards.boards import Board, Chart, boards, written
from wirehouse_orchestration.servers import ports
from wirehouse_orchestration.terminal.render import plain
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.query import sql

HERE = Path(__file__).parent
HOME = Path(os.environ.get("SUPERSET_HOME") or HERE.parent / ".run" / "superset")
URL = f"http://{ports.HOST}:{os.environ.get('SUPERSET_PORT', ports.SUPERSET)}"
#: Half of the charts' first answers take the Thrift server a minute.
WAIT_MS = 300_000
#: Characters shown of an error.
MOST_TEXT = 500


def numbers(rows: Iterable[Mapping[str, Any]], without: str | None = None) -> list[float]:
    """All numbers in rows, in order, except those of a column. What is not drawn is 0 or null in Superset."""
    values = (value for row in rows for name, value in row.items() if name != without)
    return sorted(float(value) for value in values if isinstance(value, int | float) and value is not True and value)


def expected(lake: Lake, chart: Chart) -> list[float]:
    """The same of our own answer: all numbers of a table, else those that are drawn."""
    rows = sql.rows(lake, written(chart.sql, superset.WORDS | answers.WORDS)).to_pylist()
    if not chart.drawn:
        return numbers({value.field: plain(row[value.field]) for value in chart.values} for row in rows)
    measured = chart.color if chart.type == "heat" else chart.y if chart.y and chart.y.unit else chart.x
    assert measured
    marks: dict[tuple[Any, ...], list[float]] = {}
    where = [value for value in chart.shown if value != measured]
    for row in rows:
        if row[measured.field] is not None:
            at = (_placed(row[value.field], value.kind) for value in where)
            marks.setdefault(tuple(at), []).append(plain(row[measured.field]))
    one = sum if superset.aggregate(chart) == "SUM" else max
    return numbers({measured.field: one(found)} for found in marks.values())


def _placed(value: Any, kind: str | None) -> Any:
    """Moments there are of a microsecond."""
    return value // 1000 if kind == "time" and value is not None else value


def listed(found: list[float]) -> str:
    """The numbers in few words."""
    return f"{len(found)} numbers that add up to {sum(found):,g}"


def place(chart: Chart) -> str | None:
    """The column of the axis that is no measure."""
    if not chart.drawn:
        return None
    assert chart.x
    assert chart.y
    return chart.y.field if chart.y.unit is None and chart.type != "heat" else chart.x.field


def shown(page: Page, board: Board) -> tuple[dict[str, Any], set[str]]:
    """What the charts of a board were answered, by their question, and the errors that the page shows."""
    found: dict[str, Any] = {}
    errors: set[str] = set()

    def keep(response: Response) -> None:
        if "/api/v1/chart/data" in response.url:
            asked: Any = response.request.post_data_json
            # The others are of filters.
            if name := names.get(asked["form_data"].get("slice_id")):
                found[name] = response.json()

    listed = page.request.get(f"{URL}/api/v1/dashboard/wirehouse-{board.name}/charts").json()["result"]
    names = {chart["id"]: chart["slice_name"] for chart in listed}
    page.on("response", keep)
    page.goto(f"{URL}/superset/dashboard/wirehouse-{board.name}/")
    for _ in range(WAIT_MS // 1000):
        page.mouse.wheel(0, 600)
        page.wait_for_timeout(1000)
        errors |= set(page.get_by_role("alert").all_inner_texts())
        if len(found) == len(board.charts):
            break
    page.remove_listener("response", keep)
    return found, errors


def differences(lake: Lake, board: Board, found: Mapping[str, Any]) -> Iterator[str]:
    """The differences from the answers of our own SQL."""
    for chart in board.charts:
        answer = found.get(chart.question)
        if answer is None or "result" not in answer:
            yield f"{board.name}: {chart.question}: {'no answer' if answer is None else str(answer)[:MOST_TEXT]}"
            continue
        if "{now_ns}" in chart.sql:
            continue
        data = answer["result"][0]["data"]
        if chart.type == "heat" and chart.color:
            # Superset adds the rank of each cell.
            data = [{chart.color.label: row[chart.color.label]} for row in data]
        there, here = numbers(data, place(chart)), expected(lake, chart)
        if len(there) != len(here) or not all(map(isclose, there, here)):
            yield f"{board.name}: {chart.question}: {listed(there)} there, {listed(here)} here"


def log_in(page: Page) -> None:
    """Log in as admin. Superset now and then forgets at once that somebody did: then again."""
    for wait_ms in (20_000, 40_000, 60_000):
        page.goto(f"{URL}/login/")
        with suppress(PlaywrightTimeout):
            if "/login/" in page.url:
                page.fill("#username", "admin")
                page.fill("#password", (HOME / "password").read_text().strip())
                page.keyboard.press("Enter")
            page.wait_for_url("**/superset/welcome/**", timeout=wait_ms)
            return
    raise SystemExit(f"superset-check: {URL} didn't let admin in with the password in {HOME / 'password'}")


def main() -> int:
    """0 if every chart shows the answers of our SQL."""
    lake = config.load(os.environ.get(config.VARIABLE))
    pictures = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    browser_path = subprocess.run([HERE.parent / "chromium.sh"], check=True, stdout=subprocess.PIPE, text=True).stdout
    trouble: list[str] = []
    with sync_playwright() as playwright:
        path, arguments = (
            browser_path.split()[-1],
            ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"],
        )
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        log_in(page)
        for board in boards().values():
            found, errors = shown(page, board)
            wrong = [*differences(lake, board, found), *(f"{board.name}: the page shows: {text}" for text in errors)]
            trouble += wrong
            print(f"{board.title}: {len(found)} of {len(board.charts)} charts answered, {len(wrong)} wrong")
            print(*wrong, sep="\n", end="\n" if wrong else "", flush=True)
            if pictures:
                page.screenshot(path=pictures / f"superset-{board.name}.png")
        browser.close()
    print(f"{len(trouble)} charts are wrong" if trouble else "every chart shows the answers of our SQL")
    return bool(trouble)


if __name__ == "__main__":
    sys.exit(main())
