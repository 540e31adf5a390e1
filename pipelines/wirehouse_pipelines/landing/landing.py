"""Landing: stores captures unchanged, as Avro objects that jobs read.

A capture is a file, whose id is its SHA-256, or a range of a broker's offsets (offset_ranges.py). Its records are
written to `landing/KIND/SOURCE/WINDOW/CAPTURE_ID-NNNN.avro`, window by window in order of arrival (clock.py). Then a
manifest (manifests.py) commits them. `land` is the entry point; landing a capture twice does nothing.

The commit protocol
-------------------
Landing holds the source's lock and takes these steps for each capture:

1. Hash the file. If there is a manifest with this id, the capture is landed: stop.
2. Write the marker `landing/begun/SOURCE/CAPTURE_ID`.
3. Write the objects with the records.
4. Hash the file again as it is read. If it isn't the same, it changed: remove the objects and the marker.
5. Write the manifest. This is the commit: records that no manifest names don't exist for jobs.
6. Delete the marker.

If landing is killed, a marker remains. The next landing of the source finds it: if there is no manifest, it removes the
capture's objects; then it deletes the marker. If step 5 fails, it may have succeeded and only its answer was lost. So
nothing is removed, and the next landing finds out in the same way.

The marker of a range of offsets contains the range. The next landing then lands the same range again, so it gets the
same id even if the killed commit still arrives at the store.

`landing/seen/SOURCE.json` caches the ids of files by their metadata, so that step 1 needn't hash unchanged files.
`landing/starts/SOURCE.json` keeps the first offset of each partition.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

import pyarrow as pa

from wirehouse_codecs.captures.rules import RULE
from wirehouse_codecs.captures.source import Origin
from wirehouse_codecs.core.errors import UsageError, WirehouseError
from wirehouse_pipelines.lake import lake_json
from wirehouse_pipelines.lake.lake import KAFKA, Lake, Source
from wirehouse_pipelines.landing.capture_files import CaptureFile, Facts, Hashed, RefusedPathError, captures_at
from wirehouse_pipelines.landing.clock import Clock, capture_findings
from wirehouse_pipelines.landing.manifests import (
    DAMAGED,
    FORGOTTEN,
    LANDED,
    MANIFESTS,
    REJECTED,
    CaptureFinding,
    Manifest,
    manifest_name,
    manifests,
    read_manifest,
    write_manifest,
)
from wirehouse_pipelines.landing.offset_ranges import Due, Gaps, OffsetRange
from wirehouse_pipelines.landing.window_objects import KINDS, RECORDS, ObjectWriter
from wirehouse_pipelines.storage.storage import RefusedError, Storage, is_local, open_storage

if TYPE_CHECKING:
    from wirehouse_pipelines.landing.broker import Broker

#: How many bytes of a rejected file are kept.
REJECTED_BYTES: Final = 16 << 20
_BEGUN = "landing/begun"
_SEEN = "landing/seen"
_STARTS = "landing/starts"


class KindError(UsageError):
    """A source's kind can't be landed."""

    template = "source {source!r}: kind {kind!r} can't be landed, only {known}"


class NotLandedError(WirehouseError):
    """Some files could not be read, or changed while they were read; all others are landed."""

    template = "source {source!r}: {count} files were left for the next run: {reason}"
    retry_helps = True


class _FileChanged(Exception):
    pass


def sources(lake: Lake) -> set[str]:
    """Names of the sources with manifests, with markers of an unfinished landing, or with known starts of topics."""
    storage = open_storage(lake.root)
    objects = (stored.name for folder in (MANIFESTS, _BEGUN) for stored in storage.list(folder))
    starts = (PurePosixPath(stored.name).stem for stored in storage.list(_STARTS))
    return {*(PurePosixPath(name).parent.name for name in objects), *starts}


def remove(lake: Lake, source: str) -> None:
    """Remove everything that `source` landed. Manifests go last, so that an interrupted removal can be repeated."""
    storage = open_storage(lake.root)
    with storage.lock(lock_name(source)):
        storage.delete(f"{_SEEN}/{source}.json")
        storage.delete(_starts_name(source))
        for folder in (*(f"landing/{kind}" for kind in RECORDS), "landing/rejected", _BEGUN, MANIFESTS):
            storage.sweep(f"{folder}/{source}")
            for stored in list(storage.list(f"{folder}/{source}")):
                storage.delete(stored.name)


def land(
    lake: Lake,
    source: Source,
    paths: Sequence[str] | None = None,
    *,
    now_ns: int | None = None,
    progress: Callable[[str], None] | None = None,
    settle_seconds: float = 0,
) -> list[Manifest]:
    """Land the new captures of `source`, or the files at `paths` as its captures; the manifests of the new captures.

    `now_ns` is the moment of landing. Files that changed within the last `settle_seconds` are left for the next run.
    Raises MissingPathError, RefusedPathError and KindError before anything is landed. Raises NotLandedError if some
    files failed, after all others are landed.
    """
    if source.kind not in RECORDS:
        raise KindError(source=source.name, kind=source.kind, known=", ".join(RECORDS))
    say = progress or (lambda text: None)
    if source.kind == KAFKA:
        if paths:
            raise RefusedPathError(source=source.name, path=paths[0], reason="its records come from a broker")
        return _land_topics(lake, source, now_ns, say)
    files = [
        file
        for path in (paths or [source.path])
        for file in captures_at(source, path, lake.root, refuse=bool(paths), say=say)
    ]
    if not files:
        say(f"{source.name}: there is no capture at {source.path}")
    lake_json.record(lake)
    storage = open_storage(lake.root)
    landed: list[Manifest] = []
    left: list[str] = []
    with storage.lock(lock_name(source.name)):
        _clear_unfinished(storage, source)
        seen = _Seen(storage, source)
        for file in files:
            try:
                if settle_seconds and not file.settled(settle_seconds):
                    say(f"{source.name}: {file.name} is still being written, left for the next run")
                    continue
                landing = _Landing(lake, storage, source, file, now_ns or time.time_ns())
                if manifest := landing.run(seen, again=bool(paths)):
                    landed.append(manifest)
                    say(f"{source.name}: {manifest.path}: {manifest.status}, {manifest.records:,} records")
                elif landing.was_forgotten:
                    say(f"{source.name}: {file.name} was forgotten, it isn't landed again")
            except FileNotFoundError:
                say(f"{source.name}: {file.name} was removed before it could be landed")
            except (_FileChanged, OSError, RefusedError) as error:
                left.append(_why_left(file, error, storage))
        seen.save()
    if left:
        raise NotLandedError(source=source.name, count=len(left), reason="; ".join(left[:3]))
    return landed


def _why_left(file: CaptureFile, error: Exception, storage: Storage) -> str:
    """A message: which file is left for the next run, and why. Raises `error` if the lake's own store refused."""
    if isinstance(error, RefusedError) and error.fields["name"] == storage.root:
        raise error
    return f"{file.name} ({error})"


def _land_topics(lake: Lake, source: Source, now_ns: int | None, say: Callable[[str], None]) -> list[Manifest]:
    """Land the new records of the source's topics.

    If a partition fails, the others are landed first and then its error is raised. If the broker fails, what is landed
    remains.
    """
    # Imported on use: the library takes a while to load, and files don't need it.
    from wirehouse_pipelines.landing.broker import BrokerError

    lake_json.record(lake)
    storage = open_storage(lake.root)
    landed: list[Manifest] = []
    failed: list[WirehouseError] = []
    with storage.lock(lock_name(source.name)):
        begun = {one.partition_key: one for one in _clear_unfinished(storage, source)}
        known = [manifest for manifest in manifests(lake, source.name) if manifest.offsets]
        broker = source_broker(source)
        new = broker.new([manifest.offsets for manifest in known if manifest.offsets], starts(lake, source))
        if new.starts:
            _keep_starts(storage, source, [*starts(lake, source), *new.starts])
        for partition, count in new.held.items():
            say(f"{source.name}: {partition}: {count:,} offsets wait for a transaction that is open there")
        for whole in new.due:
            try:
                for due in whole.as_begun(begun.get(whole.range.partition_key)):
                    before = [one.last_arrived_at_ns or 0 for one in (*known, *landed) if _goes_on(one, due.range)]
                    manifest = _RangeLanding(lake, storage, source, broker, due, max(before, default=0), now_ns).run()
                    landed.append(manifest)
                    say(f"{source.name}: {manifest.path}: {manifest.status}, {manifest.records:,} records")
            except BrokerError as error:
                # If the broker still answers, only this partition failed.
                broker.check_there()
                say(str(error))
                failed.append(error)
    if failures := (*failed, *new.failures):
        raise failures[0]
    return landed


def starts(lake: Lake, source: Source) -> list[OffsetRange]:
    """The first offsets of the partitions of a source of kind kafka, as empty ranges. See Broker.new."""
    storage, name = open_storage(lake.root), _starts_name(source.name)
    if not storage.exists(name):
        return []
    with storage.open(name) as stream:
        return [OffsetRange(**one) for one in json.load(stream)]


def _keep_starts(storage: Storage, source: Source, known: Iterable[OffsetRange]) -> None:
    storage.write(_starts_name(source.name), json.dumps([asdict(one) for one in known]).encode())


def _starts_name(source: str) -> str:
    return f"{_STARTS}/{source}.json"


def _goes_on(manifest: Manifest, wanted: OffsetRange) -> bool:
    return manifest.offsets is not None and manifest.offsets.partition_key == wanted.partition_key


def unseen(lake: Lake, source: Source) -> Callable[[CaptureFile, Facts], bool]:
    """A function that returns whether a file with these metadata still has to be landed."""
    seen = _Seen(open_storage(lake.root), source)
    return lambda file, facts: seen.capture_id(file.path, facts) is None


def source_broker(source: Source) -> Broker:
    """The broker of a source of kind kafka."""
    # Imported on use: the library takes a while to load, and files don't need it.
    from wirehouse_pipelines.lake.kafka_options import KafkaOptions
    from wirehouse_pipelines.landing.broker import Broker

    return Broker(source.name, source.path, KafkaOptions.from_mapping(source.kafka))


def rejected_name(source: str, capture_id: str) -> str:
    """The name of the object with the first bytes of a rejected file."""
    return f"landing/rejected/{source}/{capture_id}"


def remove_records(storage: Storage, manifest: Manifest) -> None:
    """Remove the landed records of a capture, but not its manifest. The caller must hold the source's lock."""
    for name in (*records_of(manifest), rejected_name(manifest.source, manifest.capture_id)):
        storage.delete(name)


def records_of(manifest: Manifest) -> list[str]:
    """Names of the objects with a capture's records."""
    return [name for window in manifest.windows.values() for name in window.objects]


def begun_name(source: str, capture_id: str) -> str:
    """The name of the marker for a landing that has begun and not ended."""
    return f"{_BEGUN}/{source}/{capture_id}"


def lock_name(source: str) -> str:
    """The name of a source's lock."""
    return f"{MANIFESTS}/{source}"


def unsee(storage: Storage, source: str, capture_id: str) -> None:
    """Remove a capture from the cache of seen files. The caller must hold the source's lock."""
    name = f"{_SEEN}/{source}.json"
    if storage.exists(name):
        with storage.open(name) as stream:
            known = json.load(stream)
        kept = {path: entry for path, entry in known.items() if entry[-1] != capture_id}
        storage.write(name, json.dumps(kept).encode())


def _clear_unfinished(storage: Storage, source: Source) -> list[OffsetRange]:
    """Remove the objects of captures whose landing was killed before its commit; their ranges, for a broker."""
    unfinished = []
    for begun in list(storage.list(f"{_BEGUN}/{source.name}")):
        capture_id = begun.name.rpartition("/")[2]
        if not storage.exists(manifest_name(source.name, capture_id)):
            remove_capture(storage, source.kind, source.name, capture_id)
            if begun.size_bytes:
                with storage.open(begun.name) as stream:
                    unfinished.append(OffsetRange(**json.load(stream)))
        storage.delete(begun.name)
    return unfinished


def remove_capture(storage: Storage, kind: str, source: str, capture_id: str) -> None:
    """Remove all objects whose names begin with a capture's id. The caller must hold the source's lock.

    Unlike `remove_records`, it lists the folder and doesn't rely on a manifest.
    """
    folder = f"landing/{kind}/{source}"
    storage.sweep(folder)
    for stored in list(storage.list(folder)):
        if stored.name.rpartition("/")[2].startswith(capture_id):
            storage.delete(stored.name)
    storage.delete(rejected_name(source, capture_id))


class _Seen:
    """A cache of the ids of files by their metadata, so that a search for new captures doesn't hash the old ones.

    Without it, every file is hashed; the result is the same.
    """

    def __init__(self, storage: Storage, source: Source) -> None:
        self._storage = storage
        self._name = f"{_SEEN}/{source.name}.json"
        self._known: dict[str, list[Any]] = {}
        self._changed = False
        if storage.exists(self._name):
            with storage.open(self._name) as stream, suppress(ValueError):
                self._known = dict(json.load(stream))

    def capture_id(self, path: str, facts: Facts) -> str | None:
        """The id of the file at `path` if its metadata are the same as when it was hashed, else None."""
        *identity, capture_id = self._known.get(path, [None])
        return str(capture_id) if tuple(identity) == facts.identity else None

    def note(self, path: str, facts: Facts, capture_id: str) -> None:
        """Add a file to the cache."""
        entry = [*facts.identity, capture_id]
        if self._known.get(path) != entry:
            self._known[path] = entry
            self._changed = True

    def save(self) -> None:
        """Write the cache if it changed, without files that no longer exist."""
        if self._changed:
            known = {path: entry for path, entry in self._known.items() if _may_be(path)}
            self._storage.write(self._name, json.dumps(known).encode())


def _may_be(path: str) -> bool:
    return not is_local(path) or os.path.exists(path)


class _Commit:
    """Lands one capture: the marker, the objects, and the manifest last. Subclasses supply the records."""

    def __init__(self, lake: Lake, storage: Storage, source: Source, now_ns: int) -> None:
        self._lake = lake
        self._storage = storage
        self._source = source
        self._now_ns = now_ns

    @contextmanager
    def _begun(self, capture_id: str, about: str = "") -> Iterator[Callable[[Manifest], None]]:
        """Write the marker, with `about` as its content; yields the function that commits a manifest.

        If the block fails before the commit, the capture's objects and the marker are removed.
        """
        begun = begun_name(self._source.name, capture_id)
        self._storage.write(begun, about.encode())
        asked = False

        def commit(manifest: Manifest) -> None:
            nonlocal asked
            asked = True
            write_manifest(self._storage, manifest)

        try:
            yield commit
        except (_FileChanged, OSError, WirehouseError):
            # If a commit was attempted, it may have succeeded: leave the marker, and the next landing will see.
            if not asked:
                remove_capture(self._storage, self._source.kind, self._source.name, capture_id)
                self._storage.delete(begun)
            raise
        self._storage.delete(begun)

    def _written(
        self, capture_id: str, batches: Iterator[pa.RecordBatch], clock: Clock, **about: Any
    ) -> Callable[..., Manifest]:
        """Write the capture's records; returns a constructor of the manifest that lacks only the final facts."""
        with ObjectWriter(self._storage, self._source, capture_id, self._lake.windows, clock) as objects:
            for batch in _ahead(batches):
                objects.add(batch)
        return partial(
            Manifest,
            source=self._source.name,
            protocol=self._source.protocol,
            kind=self._source.kind,
            capture_id=capture_id,
            records=clock.records,
            unreadable_records=objects.unreadable,
            cut_packets=objects.cut,
            first_arrived_at_ns=clock.first,
            last_arrived_at_ns=clock.now if clock.records else None,
            landed_at_ns=self._now_ns,
            windows=objects.windows,
            **about,
        )


class _RangeLanding(_Commit):
    """Lands one range of a broker's offsets."""

    def __init__(
        self,
        lake: Lake,
        storage: Storage,
        source: Source,
        broker: Broker,
        due: Due,
        before_ns: int,
        now_ns: int | None,
    ) -> None:
        """`before_ns` is the arrival of the partition's last record before the range."""
        super().__init__(lake, storage, source, now_ns or time.time_ns())
        self._broker, self._due, self._before_ns = broker, due, before_ns

    def run(self) -> Manifest:
        """Land the range; its manifest."""
        wanted, capture_id = self._due.range, self._due.range.capture_id
        clock = Clock(max(self._before_ns, self._lake.windows.start_ns(self._lake.windows.start)), self._now_ns)
        gaps = Gaps(wanted)
        with self._begun(capture_id, wanted.to_json()) as commit:
            batches = gaps.watch(self._broker.batches(wanted))
            made = self._written(capture_id, batches, clock, path=wanted.name, size_bytes=0)
            manifest = made(status=LANDED, reason=None, findings=self._findings(clock, gaps), offsets=wanted)
            commit(manifest)
        return manifest

    def _findings(self, clock: Clock, gaps: Gaps) -> tuple[CaptureFinding, ...]:
        """The clock's findings, and one finding for all offsets that are missing."""
        wanted, missing = self._due.range, []
        if self._due.lost:
            missing.append(f"offsets {self._due.expected} to {wanted.begin - 1} were gone before they were landed")
        if gaps.count and self._broker.is_compacted(wanted.topic):
            missing.append(f"the broker has no record at the offsets {gaps} any more, as the topic is compacted")
        if not missing:
            return clock.findings()
        message = f"{wanted.topic}/{wanted.partition}: {'; '.join(missing)}"
        at_ns = clock.now if clock.first is None else clock.first
        return (*clock.findings(), CaptureFinding(RULE["offset_gap"].id, None, at_ns, message))


class _Landing(_Commit):
    """Lands one file."""

    def __init__(self, lake: Lake, storage: Storage, source: Source, file: CaptureFile, now_ns: int) -> None:
        super().__init__(lake, storage, source, now_ns)
        self._file = file
        self.was_forgotten = False

    def run(self, seen: _Seen, *, again: bool) -> Manifest | None:
        """Land the file; its manifest, or None if it is landed already. With `again`, expired records are relanded."""
        stream, facts = self._file.open()
        with stream:
            capture_id = seen.capture_id(self._file.path, facts) or Hashed(stream).rest()
            known = read_manifest(self._storage, self._source.name, capture_id)
            self.was_forgotten = known is not None and known.status == FORGOTTEN
            new = known is None or (again and known.released_at_ns is not None)
            manifest = self._commit(stream, capture_id, facts.size_bytes) if new else None
            if facts.steady:
                seen.note(self._file.path, facts, capture_id)
            return manifest

    def _commit(self, stream: BinaryIO, capture_id: str, size_bytes: int) -> Manifest:
        with self._begun(capture_id) as commit:
            read = Hashed(stream)
            manifest = self._land(cast(BinaryIO, read), capture_id, size_bytes)
            if read.rest() != capture_id:
                raise _FileChanged("it changed while it was read")
            commit(manifest)
        return manifest

    def _land(self, stream: BinaryIO, capture_id: str, size_bytes: int) -> Manifest:
        start_ns = self._lake.windows.start_ns(self._lake.windows.start)
        origin = Origin(PurePosixPath(self._file.name).name, start_ns, self._source.limits)
        capture = KINDS[self._source.kind].read(stream, origin)
        if capture.unreadable is not None:
            self._reject(stream, capture_id)
        clock = Clock(start_ns, self._now_ns)
        made = self._written(capture_id, capture.batches(), clock, path=self._file.name, size_bytes=size_bytes)
        return made(
            status=REJECTED if capture.unreadable else DAMAGED if capture.damage else LANDED,
            reason=capture.unreadable or capture.damage,
            findings=capture_findings(clock, capture.damage, self._now_ns, self._source.kind),
        )

    def _reject(self, stream: BinaryIO, capture_id: str) -> None:
        stream.seek(0)
        self._storage.write(rejected_name(self._source.name, capture_id), stream.read(REJECTED_BYTES))


def _ahead(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield `batches`, but read the next one in a thread while one is written. Both mostly run without the GIL."""
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = reader.submit(next, batches, None)
            yield batch
