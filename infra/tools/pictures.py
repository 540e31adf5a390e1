"""`make pictures`: takes the screenshots of README and docs/ in Chromium, of the demo's lake or the lake of CONFIG."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser

from infra.tools.generated_pages import FOLDER as DOCS
from tests.support import browsing
from tests.support.processes import started

IMAGES: Final = DOCS / "images"
#: More is too much for a page of text.
MOST_BYTES: Final = 200_000
#: Name of a picture -> a page of the dashboard.
DASHBOARD: Final = {
    "dashboard-overview": "board/overview",
    "dashboard-cardinal": "board/cardinal",
    "dashboard-chart": "chart/cardinal/reorgs?depth=3",
}
#: A page of Dagster's UI, and what it shows when it is drawn.
ASSETS: Final = ("dagster-assets", "locations/wirehouse/asset-groups/gold_cardinal/lineage", "cardinal_reorgs")
#: Dagster lays a graph out in a worker, and then moves to it.
DRAWN_MS: Final = 8_000


@contextmanager
def served(command: str) -> Iterator[str]:
    """The URL of the server that this `wirehouse` command starts."""
    program = "from wirehouse_orchestration.cli.command import main; main()"
    with started([sys.executable, "-u", "-c", program, command], stdout=subprocess.PIPE) as process:
        assert process.stdout
        yield next(
            found[1] for line in process.stdout if (found := re.search(r" is at (http://127\.0\.0\.1:\d+)", line))
        )
        process.terminate()
        process.wait()


def take(browser: Browser) -> Iterator[Path]:
    """The pictures, as they are written."""
    with served("dashboard") as url:
        for name, page in DASHBOARD.items():
            with browsing.page(browser, f"{url}/{page}") as shown:
                shown.set_viewport_size({"width": 1200, "height": 1000})
                yield _written(name, shown.screenshot())
    name, place, drawn = ASSETS
    with served("ui") as url, browser.new_page(viewport={"width": 1400, "height": 900}) as shown:
        shown.goto(f"{url}/{place}")
        shown.get_by_text(drawn).first.wait_for(timeout=120_000)
        shown.wait_for_timeout(DRAWN_MS)
        yield _written(name, shown.screenshot())


def _written(name: str, picture: bytes) -> Path:
    path = IMAGES / f"{name}.png"
    if len(picture) > MOST_BYTES:
        raise SystemExit(f"{path}: {len(picture):,} bytes are more than {MOST_BYTES:,}")
    path.write_bytes(picture)
    return path


if __name__ == "__main__":
    with browsing.chromium() as running:
        for taken in take(running):
            print(f"{taken.relative_to(DOCS.parent)}: {taken.stat().st_size:,} bytes")
