"""Erasure (`wirehouse forget`): of sources that are no longer configured, and of single captures.

A source is erased by deleting its rows, ledger entries and landed objects (`forget`).

A capture is erased in steps: `erase_landed` removes it from landing; the windows that it was in are then recomputed
without it; `purge` removes all older versions of tables, which may still have its rows. `proof` searches what is left
and raises NotErasedError if it finds anything of the capture.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from wirehouse_codecs.core.errors import UsageError, WirehouseError
from wirehouse_pipelines.delta import delta_tables, ledger, spark_tables
from wirehouse_pipelines.jobs import planning, runner, upkeep
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.landing import landing
from wirehouse_pipelines.landing.manifests import FORGOTTEN, MANIFESTS, Manifest, manifests, write_manifest
from wirehouse_pipelines.storage.storage import Held, Storage, open_storage
from wirehouse_pipelines.tables import all_tables

_CAPTURE: Final = re.compile("[0-9a-f]{64}")
#: The ending of columns that have a capture's id.
_NAMES_IT: Final = "capture_id"


class StillConfiguredError(UsageError):
    """A configured source can't be erased: the next landing would bring it back."""

    template = "source {name} is still configured: take its [[source]] out of the configuration first"


class UnknownSourceError(UsageError):
    """The lake has neither rows nor landed objects of that source."""

    template = "the lake has nothing of a source {name!r}"


def gone(lake: Lake) -> list[str]:
    """Sources with landed objects or rows that are no longer configured.

    Also sources that joined a service since: joined jobs left rows under the sources' own names.
    """
    landed = landing.sources(lake) - {source.name for source in lake.sources}
    return sorted(landed.union(*_left(lake).values()))


def _known(lake: Lake) -> set[str]:
    return landing.sources(lake) | {source for _, source, _ in ledger.read(lake)}


def _left(lake: Lake) -> dict[str, set[str]]:
    """By job: names of sources or services whose rows in its tables it will never replace."""
    written = ledger.read(lake)
    return {
        job.name: {source for table, source, _ in written if table == job.outputs[0]} - set(planning.units(lake, job))
        for job in runner.all_jobs().values()
    }


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Counts of what was deleted of a source."""

    source: str
    #: Number of captures that it had landed.
    captures: int
    #: Number of deleted rows, by table.
    rows: dict[str, int]


def forget(lake: Lake, name: str, say: runner.Progress | None = None) -> Forgotten:
    """Delete everything of source `name`: its rows, its ledger entries, and last its landed objects.

    If the source has joined a service, only the rows that joined jobs wrote under its own name are deleted, and its
    landed objects are kept. Delta keeps the files of deleted rows until they are vacuumed. Waits for writers of tables.
    Raises StillConfiguredError and UnknownSourceError.
    """
    _check_source(lake, name)
    with runner.writing(lake, say=say) as held:
        return _forget(lake, name, held)


def check(lake: Lake, what: str) -> None:
    """Check that `what`, a capture or a source, can be erased. Changes nothing.

    Raises UnknownCaptureError, SourceGoneError, UnknownSourceError and StillConfiguredError.
    """
    if is_capture(what):
        _landed(lake, what)
    else:
        _check_source(lake, what)


def _check_source(lake: Lake, name: str) -> None:
    if name not in _known(lake):
        raise UnknownSourceError(name=name)
    if name in lake.names and not any(name in sources for sources in _left(lake).values()):
        raise StillConfiguredError(name=name)


def _forget(lake: Lake, name: str, held: Held) -> Forgotten:
    configured = name in lake.names
    names = _left(lake)
    left = [job for job in runner.all_jobs().values() if name in names[job.name]]
    outputs = [table for job in left for table in job.outputs]
    physical = [table.name for table in all_tables().values() if table.view is None]
    rows: dict[str, int] = {}
    for table in outputs if configured else physical:
        written = spark_tables.rows_by_window(lake, table).items()
        if count := sum(count for (source, _), count in written if source == name):
            rows[table] = count
        held()
        spark_tables.delete(lake, table, f"source = '{name}'")
    of = {*outputs, *map(planning.checks_of, left)}
    held()
    ledger.withdraw(lake, [key for key in ledger.read(lake) if key[1] == name and (not configured or key[0] in of)])
    captures = 0 if configured else len(manifests(lake, name))
    if not configured:
        landing.remove(lake, name)
    return Forgotten(name, captures, rows)


class UnknownCaptureError(UsageError):
    """No source landed such a capture."""

    template = 'no source landed a capture {capture_id}: `wirehouse sql "SELECT capture_id, path FROM bronze.captures"`'


class SourceGoneError(UsageError):
    """A capture's source is no longer configured, so its windows can't be recomputed without the capture."""

    template = "source {name} of that capture is no longer configured: `wirehouse forget {name}` erases all of it"


class NotErasedError(WirehouseError):
    """Something of a capture is left."""

    template = "capture {capture_id} is not fully erased: {left}; run `wirehouse forget {capture_id}` again"
    retry_helps = True


def is_capture(text: str) -> bool:
    """Whether `text` has the form of a capture's id."""
    return bool(_CAPTURE.fullmatch(text))


def erase_landed(lake: Lake, capture_id: str) -> list[Manifest]:
    """Erase a capture from landing, in every source that landed it; the manifests that it had.

    A minimal manifest remains, which only states that the capture was erased, so that it isn't landed again. Windows
    that had no other capture lose their rows. Other windows become stale: the caller must recompute them and then call
    `purge`. Raises UnknownCaptureError and SourceGoneError.
    """
    landed = _landed(lake, capture_id)
    storage = open_storage(lake.root)
    for manifest in landed:
        with storage.lock(landing.lock_name(manifest.source)):
            write_manifest(storage, _forgotten(manifest))
            landing.remove_capture(storage, manifest.kind, manifest.source, capture_id)
            landing.unsee(storage, manifest.source, capture_id)
            # A landing that was killed after its commit leaves its marker.
            storage.delete(landing.begun_name(manifest.source, capture_id))
    runner.clear_emptied(lake)
    return landed


def _landed(lake: Lake, capture_id: str) -> list[Manifest]:
    """The capture's manifests. Raises UnknownCaptureError and SourceGoneError."""
    landed = [manifest for manifest in manifests(lake) if manifest.capture_id == capture_id]
    if not landed:
        raise UnknownCaptureError(capture_id=capture_id)
    for manifest in landed:
        if manifest.source not in {source.name for source in lake.sources}:
            raise SourceGoneError(name=manifest.source)
    return landed


def _forgotten(manifest: Manifest) -> Manifest:
    """The minimal manifest of an erased capture. It keeps the range of offsets, so that this isn't landed again."""
    return Manifest(
        source=manifest.source,
        protocol=manifest.protocol,
        kind=manifest.kind,
        capture_id=manifest.capture_id,
        path="",
        status=FORGOTTEN,
        reason=None,
        size_bytes=0,
        records=0,
        unreadable_records=0,
        first_arrived_at_ns=None,
        last_arrived_at_ns=None,
        landed_at_ns=manifest.landed_at_ns,
        offsets=manifest.offsets,
    )


def _tables(lake: Lake) -> list[str]:
    return [name for names in upkeep.parts(lake).values() for name in names]


def purge(lake: Lake, held: Held) -> list[upkeep.Freed]:
    """Remove the old versions of every table; what that freed. `held` is the function that `runner.writing` yields."""
    freed: list[upkeep.Freed] = []
    for name in _tables(lake):
        held()
        freed += filter(None, [upkeep.purge(lake, name)])
    return freed


@dataclass(frozen=True, slots=True)
class Proof:
    """Counts of what was searched for a capture without finding anything of it."""

    #: Landed objects.
    objects: int
    tables: int
    #: Versions of all tables; all are newer than the erasure.
    versions: int
    #: Files of data in the newest versions.
    files: int
    #: Rows in these files.
    rows: int

    def lines(self) -> tuple[str, ...]:
        """The proof as text, line by line."""
        return (
            f"landing: {self.objects:,} objects, none of it; its manifest says only that it was forgotten",
            f"tables: {self.rows:,} rows in {self.files:,} files of {self.tables:,} tables, none points at it",
            f"versions: {self.versions:,} are left, all of after it was erased, and no file that the newest lacks",
            "ledger: every window is computed from what is landed now",
        )


def proof(lake: Lake, capture_id: str) -> Proof:
    """Search landing, tables and ledger for the capture. Raises NotErasedError if anything of it is left."""
    storage = open_storage(lake.root)
    objects = [stored.name for stored in storage.list("landing")]
    left = [name for name in objects if capture_id in name and not name.startswith(f"{MANIFESTS}/")]
    found = [manifest for manifest in manifests(lake) if manifest.capture_id == capture_id]
    left += [f"the manifest of source {manifest.source}" for manifest in found if manifest != _forgotten(manifest)]
    left += [f"{name}, {', '.join(sorted(windows))}: not recomputed" for name, windows in runner.due(lake).items()]
    versions = files = rows = tables = 0
    for name in _tables(lake):
        if (table := delta_tables.opened(lake.address(upkeep.folder(lake, name)))) is None:
            continue
        tables += 1
        older, newest = _files_left(lake, name, table)
        left += [f"{path}: of an older version" for path in older]
        left += [f"{path}: of an older version" for path in _named_in_log(lake, name, set(newest))]
        versions += len(_log_versions(lake, name))
        for path in newest:
            files += 1
            searched, pointing = _pointing(storage, path, bytes.fromhex(capture_id))
            rows += searched
            left += [f"{pointing} rows in {path}"] if pointing else []
    if left:
        raise NotErasedError(capture_id=capture_id, left="; ".join(left[:5]))
    return Proof(len(objects), tables, versions, files, rows)


def _log_versions(lake: Lake, name: str) -> set[str]:
    names = (stored.name.rpartition("/")[2] for stored in open_storage(lake.root).list(_log(lake, name)))
    return {one[:20] for one in names if one[:20].isdigit()}


def _named_in_log(lake: Lake, name: str, newest: Collection[str]) -> Iterator[str]:
    """Log entries about files that the newest version doesn't have: entries include minimum and maximum values."""
    storage, folder = open_storage(lake.root), upkeep.folder(lake, name)
    for stored in storage.list(_log(lake, name)):
        if stored.name.endswith(".json"):
            with storage.open(stored.name) as stream:
                for line in stream.read().splitlines():
                    action = json.loads(line)
                    file = action.get("add") or action.get("remove")
                    if file and f"{folder}/{unquote(file['path'])}" not in newest:
                        yield stored.name


def _log(lake: Lake, name: str) -> str:
    return f"{upkeep.folder(lake, name)}/{upkeep.LOG}"


def _files_left(lake: Lake, name: str, table: DeltaTable) -> tuple[list[str], list[str]]:
    """Files in a table's folder: those that its newest version doesn't have, and those that it has."""
    folder = upkeep.folder(lake, name)
    known = {f"{folder}/{unquote(path)}" for path in table.get_add_actions().column("path").to_pylist()}
    log = f"{_log(lake, name)}/"
    stored = [one.name for one in open_storage(lake.root).list(folder) if not one.name.startswith(log)]
    return [path for path in stored if path not in known], [path for path in stored if path in known]


def _pointing(storage: Storage, path: str, capture_id: bytes) -> tuple[int, int]:
    """The number of rows in a file of a table, and how often its columns have the capture's id."""
    with storage.open(path) as stream:
        file = pq.ParquetFile(stream)
        named = [field.name for field in file.schema_arrow if field.name.endswith(_NAMES_IT)]
        found = 0
        for batch in file.iter_batches(columns=named):
            for column in batch.columns:
                found += pc.sum(pc.equal(column, pa.scalar(capture_id, column.type))).as_py() or 0
        return file.metadata.num_rows, found
