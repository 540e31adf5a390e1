"""A lake keeps the window size it was begun with, in ROOT/lake.json: all its tables are partitioned by it."""

from __future__ import annotations

import json
from pathlib import Path

from wirehouse_codecs.errors import WirehouseError
from wirehouse_pipelines.lake import Lake

FILE = "lake.json"


class WindowSizeError(WirehouseError):
    """The configuration asks for another window size than the lake has."""

    template = "{root} was begun with {found} windows, not {asked}: set window = {found!r}, or another root"


def check(lake: Lake) -> None:
    """Raise WindowSizeError if the lake was begun with another window size; a lake not begun takes any."""
    place = Path(lake.root, FILE)
    if place.exists() and (found := json.loads(place.read_text())["window"]) != lake.windows.size:
        raise WindowSizeError(root=lake.root, found=found, asked=lake.windows.size)


def record(lake: Lake) -> None:
    """Begin the lake with its window size, if it isn't begun; WindowSizeError if it was, with another."""
    place = Path(lake.root, FILE)
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_suffix(".part")
        part.write_text(json.dumps({"window": lake.windows.size}) + "\n")
        part.replace(place)
    check(lake)
