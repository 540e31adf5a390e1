"""Sources that the configuration no longer names: their rows stay until they are asked to go."""

from __future__ import annotations

from wirehouse_codecs.errors import UsageError
from wirehouse_pipelines import delta_tables, jobs, landing, ledger
from wirehouse_pipelines.lake import Lake
from wirehouse_pipelines.tables import all_tables


class StillConfiguredError(UsageError):
    """A source that is configured can't be forgotten: the next landing would bring it back."""

    template = "source {name} is still configured: take its [[source]] out of the configuration first"


class UnknownSourceError(UsageError):
    """The lake has nothing of such a source."""

    template = "the lake has nothing of a source {name!r}"


def gone(lake: Lake) -> list[str]:
    """Sources that landed something or have rows, and aren't configured any more; also those that joined a service."""
    landed = landing.sources(lake) - {source.name for source in lake.sources}
    return sorted(landed.union(*_left(lake).values()))


def _known(lake: Lake) -> set[str]:
    return landing.sources(lake) | {source for _, source, _ in ledger.read(lake)}


def _left(lake: Lake) -> dict[str, set[str]]:
    """By job: names under which its tables have rows that it won't write again."""
    written = ledger.read(lake)
    return {
        job.name: {source for table, source, _ in written if table == job.outputs[0]} - set(jobs.units(lake, job))
        for job in jobs.all_jobs().values()
    }


def forget(lake: Lake, name: str) -> None:
    """Delete everything of source `name`: its rows, its ledger entries, and last its landed objects.

    Of a source that joined a service what jobs wrote under its own name goes, and what it landed stays. Delta keeps
    the files of deleted rows until they are vacuumed. What a run that is under way writes of the source stays, and is
    `gone` again. Raises StillConfiguredError and UnknownSourceError.
    """
    if name not in _known(lake):
        raise UnknownSourceError(name=name)
    configured = name in lake.names
    left = [job for job in jobs.all_jobs().values() if name in _left(lake)[job.name]]
    if configured and not left:
        raise StillConfiguredError(name=name)
    outputs = [table for job in left for table in job.outputs]
    physical = [table.name for table in all_tables().values() if table.view is None]
    for table in outputs if configured else physical:
        _delete(lake.table_path(table), f"source = '{name}'")
    of = " OR ".join(f"table_name = '{table}'" for table in (*outputs, *map(jobs.checks_of, left)))
    _delete(ledger.path(lake), f"source = '{name}' AND ({of if configured else 'true'})")
    if not configured:
        landing.remove(lake, name)


def _delete(path: str, condition: str) -> None:
    if known := delta_tables.opened(path):
        known.delete(condition)
