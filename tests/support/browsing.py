"""A real Chromium for tests of pages."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
INSTALL = Path(__file__).parents[2] / "infra" / "chromium.sh"


@contextmanager
def chromium() -> Iterator[Browser]:
    """The machine's Chromium, installed if it may be."""
    path = subprocess.run([INSTALL], check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@contextmanager
def page(browser: Browser, url: str) -> Iterator[Page]:
    """A page, once all of its cards are filled; fails if a script of it did or it wrote to the console."""
    said: list[str] = []
    with browser.new_page(viewport={"width": 1400, "height": 900}) as shown:
        shown.on("console", lambda message: said.append(message.text))
        shown.on("pageerror", lambda error: said.append(str(error)))
        shown.goto(url)
        shown.wait_for_selector("html[data-ready]", timeout=60_000)
        yield shown
    assert said == []
