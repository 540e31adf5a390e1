"""Sources that the configuration no longer names: their rows stay until they are asked to go."""

from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable

from wirehouse_codecs.errors import UsageError
from wirehouse_pipelines import landing, ledger
from wirehouse_pipelines.lake import Lake
from wirehouse_pipelines.tables import all_tables


class StillConfiguredError(UsageError):
    """A source that is configured can't be forgotten: the next landing would bring it back."""

    template = "source {name} is still configured: take its [[source]] out of the configuration first"


class UnknownSourceError(UsageError):
    """The lake has nothing of such a source."""

    template = "the lake has nothing of a source {name!r}"


def gone(lake: Lake) -> list[str]:
    """Sources that landed something or have rows, and aren't configured any more."""
    return sorted(_known(lake) - lake.names)


def _known(lake: Lake) -> set[str]:
    return landing.sources(lake) | {source for _, source, _ in ledger.read(lake)}


def forget(lake: Lake, name: str) -> None:
    """Delete everything of source `name`: its rows, its ledger entries, and last its landed objects.

    Delta keeps the files of deleted rows until they are vacuumed. What a run that is under way writes of the source
    stays, and is `gone` again. Raises StillConfiguredError and UnknownSourceError.
    """
    if name in lake.names:
        raise StillConfiguredError(name=name)
    if name not in _known(lake):
        raise UnknownSourceError(name=name)
    physical = [lake.table_path(table.name) for table in all_tables().values() if table.view is None]
    for path in (ledger.path(lake), *physical):
        if (Path(path) / "_delta_log").exists():
            DeltaTable(path).delete(f"source = '{name}'")
    landing.remove(lake, name)
