"""What a lake was begun with, in ROOT/lake.json: its tables are partitioned by windows of one size from one start."""

from __future__ import annotations

import json

from wirehouse_codecs.core.errors import UsageError
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.storage.storage import Storage, open_storage

NAME = "lake.json"


class WindowSizeError(UsageError):
    """The configuration asks for another window size than the lake has."""

    template = 'the lake {root} has {found} windows, not {asked}: set window = "{found}", or choose another root'


class StartError(UsageError):
    """The configuration asks for a later first window than the lake has."""

    template = (
        'the lake {root} begins at {found}, and rows before {asked} would be lost: set start = "{found}" or earlier'
    )


class DamagedError(UsageError):
    """lake.json is not what was written there."""

    template = '{root}/{name} is damaged: it should hold {{"window": "day" or "hour", "start": first window}}'


def check(lake: Lake) -> None:
    """Raise WindowSizeError or StartError if the lake was begun otherwise; a lake not begun takes anything."""
    begun(lake)


def begun(lake: Lake) -> bool:
    """Whether something has landed in it. Raises as `check`, and StorageError if its bucket isn't there."""
    storage = open_storage(lake.root)
    found = _begun(storage, lake) is not None
    if not found:
        # A store says of an object in no bucket no more than that it isn't there.
        next(storage.list(NAME), None)
    return found


def record(lake: Lake) -> None:
    """Begin the lake with its windows if it isn't begun, or move its start back. Raises as `check`."""
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
