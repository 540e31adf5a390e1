"""Upkeep of a lake: compacts small files of tables, removes old files and log entries, and expires landed records.

Landed records expire when they are older than `landing_days`, or exceed `landing_bytes` in all, but never before bronze
has their rows. Their manifests remain, with the time of expiry. Upkeep needs no JVM.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from deltalake import DeltaTable

from wirehouse_pipelines.delta import delta_tables, ledger
from wirehouse_pipelines.jobs import runner
from wirehouse_pipelines.jobs.bronze import capture_window
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.lake.upkeep_options import UpkeepOptions
from wirehouse_pipelines.lake.windows import NS_PER_SECOND
from wirehouse_pipelines.landing.landing import lock_name, records_of, rejected_name, remove_records
from wirehouse_pipelines.landing.manifests import FORGOTTEN, Manifest, manifests, read_manifest, write_manifest
from wirehouse_pipelines.storage.storage import Held, Storage, open_storage

LEDGER, LANDING = ledger.NAME, "landing"
_NS_PER_DAY = 86_400 * NS_PER_SECOND
#: Number of partitions that are compacted at once: each holds a few files in memory.
_JOINED_AT_ONCE = 2
_CAPTURES = "bronze.captures"
#: The folder of a table's log.
LOG = "_delta_log"


@dataclass(frozen=True, slots=True)
class Freed:
    """What upkeep did to a table, or to what a source landed."""

    #: The table or the source.
    name: str
    #: Small files that were compacted into larger ones.
    joined_files: int = 0
    #: Removed files of data, or removed landed objects.
    removed_files: int = 0
    #: Removed files of the log.
    removed_log_files: int = 0
    #: Size of all removed files.
    freed_bytes: int = 0
    #: Captures whose records expired.
    released_captures: int = 0


def parts(lake: Lake) -> dict[str, tuple[str, ...]]:
    """The parts of upkeep, each of which is done separately: the tables of each pool, and the ledger."""
    found: dict[str, tuple[str, ...]] = {}
    for job in runner.all_jobs().values():
        found[job.pool] = (*found.get(job.pool, ()), *job.outputs)
    return found | {LEDGER: (LEDGER,)}


def keep_tables(lake: Lake, names: Iterable[str], say: Callable[[str], None]) -> list[Freed]:
    """Compact small files of these tables and remove what is older than the lake's settings; what that freed.

    Waits for the writers of the tables. All jobs write the ledger.
    """
    listed = list(names)
    pools = {job.pool for job in runner.all_jobs().values() if not set(listed).isdisjoint(job.outputs)}
    with runner.writing(lake, pools, say) as held:
        return [freed for name in listed if (freed := _keep_table(lake, name, say, held))]


def folder(lake: Lake, name: str) -> str:
    """The folder of a table or of the ledger, relative to the root."""
    return name if name == LEDGER else lake.table_folder(name)


def _keep_table(lake: Lake, name: str, say: Callable[[str], None], held: Held) -> Freed | None:
    options = lake.upkeep
    held()
    table = delta_tables.opened(lake.address(folder(lake, name)))
    if table is None:
        return None
    joined = 0
    if name != LEDGER:
        # The ledger needs no compaction: each commit writes one file per partition.
        joined = table.optimize.compact(target_size=options.file_bytes, max_concurrent_tasks=_JOINED_AT_ONCE)[
            "numFilesRemoved"
        ]
    held()
    freed = _remove_old(lake, name, table, vacuum_hours=24 * options.vacuum_days, log_hours=24 * options.log_days)
    say(f"{name}: {joined} files joined, {freed.removed_files} removed, {freed.freed_bytes:,} bytes freed")
    return replace(freed, joined_files=joined)


def purge(lake: Lake, name: str) -> Freed | None:
    """Remove all files and log entries of a table that its newest version doesn't need.

    Nobody may read or write the table meanwhile. Afterwards there is no time travel to older versions.
    """
    table = delta_tables.opened(lake.address(folder(lake, name)))
    if table is None:
        return None
    freed = _remove_old(lake, name, table, vacuum_hours=0, log_hours=0)
    _set_retention(table, vacuum_hours=24 * lake.upkeep.vacuum_days, log_hours=24 * lake.upkeep.log_days)
    return freed


def _set_retention(table: DeltaTable, *, vacuum_hours: int, log_hours: int) -> None:
    """Set the table's retention properties, which Spark obeys too when it cleans a log."""
    wanted = {
        "delta.deletedFileRetentionDuration": f"interval {vacuum_hours} hours",
        "delta.logRetentionDuration": f"interval {log_hours} hours",
    }
    known = table.metadata().configuration
    if any(known.get(key) != value for key, value in wanted.items()):
        table.alter.set_table_properties(wanted)


def _remove_old(lake: Lake, name: str, table: DeltaTable, *, vacuum_hours: int, log_hours: int) -> Freed:
    """Remove files that no version within the retention needs, and log entries older than that."""
    storage, within = open_storage(lake.root), folder(lake, name)
    before = _sizes(storage, within)
    _set_retention(table, vacuum_hours=vacuum_hours, log_hours=log_hours)
    table.vacuum(vacuum_hours, dry_run=False, enforce_retention_duration=False, full=True)
    table.create_checkpoint()
    table.cleanup_metadata()
    if log_hours == 0:
        _remove_sums(storage, within, table.version())
    storage.sweep(within)
    after = _sizes(storage, within)
    gone = before.keys() - after.keys()
    log = sum(f"/{LOG}/" in one for one in gone)
    return Freed(name, 0, len(gone) - log, log, sum(before[one] for one in gone))


def _remove_sums(storage: Storage, within: str, version: int) -> None:
    """Remove Spark's checksum files of versions before `version`, which contain names and statistics of old files."""
    for one in _sizes(storage, f"{within}/{LOG}"):
        number, _, ending = one.rpartition("/")[2].partition(".")
        if ending == "crc" and number.isdigit() and int(number) < version:
            storage.delete(one)


def _sizes(storage: Storage, within: str) -> dict[str, int]:
    return {stored.name: stored.size_bytes for stored in storage.list(within)}


def release(lake: Lake, say: Callable[[str], None], now_ns: int | None = None) -> list[Freed]:
    """Expire landed records that are older than `landing_days`, or exceed `landing_bytes`, the oldest first.

    Records are kept if bronze doesn't have their rows yet, or if their source is no longer configured.
    """
    now_ns, options, storage = now_ns or time.time_ns(), lake.upkeep, open_storage(lake.root)
    if options.landing_days is None and options.landing_bytes is None:
        return []
    landed = manifests(lake)
    held = _held(lake)
    sizes = _landed_sizes(storage, landed)
    due = _due(landed, sizes, options, now_ns)
    freed = []
    for source in sorted({manifest.source for manifest in due}):
        mine = [manifest for manifest in due if manifest.source == source]
        expired = [manifest for manifest in mine if held(manifest)]
        if len(mine) > len(expired):
            say(f"{source}: {len(mine) - len(expired):,} captures stay until bronze holds them")
        if expired:
            with storage.lock(lock_name(source)):
                freed.append(_expire(storage, source, expired, sizes, now_ns))
            say(f"{source}: expired {len(expired):,} captures, {freed[-1].freed_bytes:,} bytes freed")
    for source in sorted({one.source for one in landed if one.released_at_ns is not None and _bytes(one, sizes)}):
        _sweep_released(lake, storage, source)
    return freed


def _held(lake: Lake) -> Callable[[Manifest], bool]:
    """A function: whether bronze has all rows of a capture, up to date and with its checks passed."""
    due, readers = runner.due(lake), {job.name: job for job in runner.all_jobs().values() if job.kinds}

    def held(manifest: Manifest) -> bool:
        waiting = set().union(*(due.get(name, set()) for name, job in readers.items() if manifest.kind in job.kinds))
        return (
            manifest.source in {source.name for source in lake.sources}
            and waiting.isdisjoint(manifest.windows)
            and capture_window(manifest, lake) not in due.get(_CAPTURES, set())
        )

    return held


def _landed_sizes(storage: Storage, landed: Iterable[Manifest]) -> dict[str, int]:
    """The size of each landed object, including rejected files."""
    sizes: dict[str, int] = {}
    for kind in {manifest.kind for manifest in landed} | {"rejected"}:
        sizes |= _sizes(storage, f"landing/{kind}")
    return sizes


def _bytes(manifest: Manifest, sizes: Mapping[str, int]) -> int:
    names = (*records_of(manifest), rejected_name(manifest.source, manifest.capture_id))
    return sum(sizes.get(name, 0) for name in names)


def _due(landed: Iterable[Manifest], sizes: Mapping[str, int], options: UpkeepOptions, now_ns: int) -> list[Manifest]:
    """The captures to expire: those older than `landing_days`, and the oldest ones beyond `landing_bytes`."""
    found = []
    there = [one for one in landed if one.released_at_ns is None and one.status != FORGOTTEN]
    total = sum(_bytes(one, sizes) for one in there)
    for manifest in sorted(there, key=lambda one: (one.landed_at_ns, one.source, one.capture_id)):
        old = options.landing_days is not None and now_ns - manifest.landed_at_ns > options.landing_days * _NS_PER_DAY
        if old or (options.landing_bytes is not None and total > options.landing_bytes):
            total -= _bytes(manifest, sizes)
            found.append(manifest)
    return found


def _expire(
    storage: Storage, source: str, captures: Sequence[Manifest], sizes: Mapping[str, int], now_ns: int
) -> Freed:
    files = freed = captured = 0
    for manifest in captures:
        # If the capture was erased meanwhile, its manifest must not be written again.
        if read_manifest(storage, source, manifest.capture_id) != manifest:
            continue
        # The manifest is written first: if upkeep is killed in between, the next one removes the records.
        write_manifest(storage, replace(manifest, released_at_ns=now_ns))
        remove_records(storage, manifest)
        files += len(records_of(manifest))
        freed += _bytes(manifest, sizes)
        captured += 1
    return Freed(source, removed_files=files, freed_bytes=freed, released_captures=captured)


def _sweep_released(lake: Lake, storage: Storage, source: str) -> None:
    """Remove records of expired captures that a killed upkeep has left."""
    with storage.lock(lock_name(source)):
        for manifest in manifests(lake, source):
            if manifest.released_at_ns is not None:
                remove_records(storage, manifest)
