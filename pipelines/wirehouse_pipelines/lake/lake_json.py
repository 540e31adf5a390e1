"""ROOT/lake.json: the window size and the first window that a lake was created with.

All tables of a lake are partitioned by windows of this size, so the size can't change, and the start can only move
back. The first landing writes the file. A lake without the file is called "not begun".
"""

from __future__ import annotations

import json

from wirehouse_codecs.core.errors import UsageError
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.storage.storage import Storage, open_storage

NAME = "lake.json"


class WindowSizeError(UsageError):
    """The configuration has another window size than the lake."""

    template = 'the lake {root} has {found} windows, not {asked}: set window = "{found}", or choose another root'


class StartError(UsageError):
    """The configuration has a later first window than the lake."""

    template = (
        'the lake {root} begins at {found}, and rows before {asked} would be lost: set start = "{found}" or earlier'
    )


class DamagedError(UsageError):
    """lake.json can't be parsed."""

    template = '{root}/{name} is damaged: it should hold {{"window": "day" or "hour", "start": first window}}'


def check(lake: Lake) -> None:
    """Raise WindowSizeError or StartError if the configuration contradicts lake.json, if there is one."""
    begun(lake)


def begun(lake: Lake) -> bool:
    """Whether the lake has its lake.json. Raises as `check`, and StorageError if its bucket doesn't exist."""
    storage = open_storage(lake.root)
    found = _begun(storage, lake) is not None
    if not found:
        # `exists` can't distinguish a missing object from a missing bucket; listing can, and raises.
        next(storage.list(NAME), None)
    return found


def record(lake: Lake) -> None:
    """Write lake.json if there is none, or if its start moves back. Raises as `check`."""
    storage = open_storage(lake.root)
    wanted = {"window": lake.windows.size, "start": lake.windows.start}
    if _begun(storage, lake) != wanted:
        with storage.lock(NAME):
            if _begun(storage, lake) != wanted:
                storage.write(NAME, json.dumps(wanted).encode() + b"\n")


def _begun(storage: Storage, lake: Lake) -> dict[str, str] | None:
    if not storage.exists(NAME):
        return None
    try:
        with storage.open(NAME) as stream:
            begun = {name: str(value) for name, value in dict(json.load(stream)).items()}
        begun["window"], begun["start"]
    except (ValueError, TypeError, KeyError):
        raise DamagedError(root=lake.root, name=NAME) from None
    if begun["window"] != lake.windows.size:
        raise WindowSizeError(root=lake.root, found=begun["window"], asked=lake.windows.size)
    if begun["start"] < lake.windows.start:
        raise StartError(root=lake.root, found=begun["start"], asked=lake.windows.start)
    return begun
