"""A lake keeps the window size it was begun with, in ROOT/lake.json: all its tables are partitioned by it."""

from __future__ import annotations

import json

from wirehouse_codecs.errors import UsageError
from wirehouse_pipelines.lake import Lake
from wirehouse_pipelines.storage import Storage, open_storage

NAME = "lake.json"


class WindowSizeError(UsageError):
    """The configuration asks for another window size than the lake has."""

    template = 'the lake {root} has {found} windows, not {asked}: set window = "{found}", or choose another root'


def check(lake: Lake) -> None:
    """Raise WindowSizeError if the lake was begun with another window size; a lake not begun takes any."""
    _check(open_storage(lake.root), lake)


def record(lake: Lake) -> None:
    """Begin the lake with its window size, if it isn't begun; WindowSizeError if it was, with another."""
    storage = open_storage(lake.root)
    if not storage.exists(NAME):
        with storage.lock(NAME):
            if not storage.exists(NAME):
                storage.write(NAME, json.dumps({"window": lake.windows.size}).encode() + b"\n")
    _check(storage, lake)


def _check(storage: Storage, lake: Lake) -> None:
    if not storage.exists(NAME):
        return
    with storage.open(NAME) as stream:
        found = json.load(stream)["window"]
    if found != lake.windows.size:
        raise WindowSizeError(root=lake.root, found=found, asked=lake.windows.size)
