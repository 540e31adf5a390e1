"""Landing: captures kept as they came, as Avro objects that jobs read.

A capture is one file, whose SHA-256 is its id; or a range of a broker's offsets (offset_ranges.py). Its records go to
`landing/KIND/SOURCE/WINDOW/CAPTURE_ID-NNNN.avro`, and a manifest, written last, is the commit: what no manifest names
doesn't exist. Landing a capture again does nothing.

Order: `ts_ns` is a record's own time. `arrived_at_ns` is the running maximum of it within the capture, never before
the first window of the lake; a time later than the moment of landing moves nothing and is noted (capture.time_suspect).
So is a capture of packets in the reverse order of their times (capture.reversed).
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

#: Of a rejected file this many bytes are kept.
REJECTED_BYTES: Final = 16 << 20
_BEGUN = "landing/begun"
_SEEN = "landing/seen"
_STARTS = "landing/starts"


class KindError(UsageError):
    """A source's kind can't be landed."""

    template = "source {source!r}: kind {kind!r} can't be landed, only {known}"


class NotLandedError(WirehouseError):
    """Some files could not be read or changed meanwhile; all others are landed."""

    template = "source {source!r}: {count} files were left for the next run: {reason}"
    retry_helps = True


class _FileChanged(Exception):
    pass


def sources(lake: Lake) -> set[str]:
    """Names of the sources that landed something, began to, or of which it is kept where topics begin."""
    storage = open_storage(lake.root)
    objects = (stored.name for folder in (MANIFESTS, _BEGUN) for stored in storage.list(folder))
    starts = (PurePosixPath(stored.name).stem for stored in storage.list(_STARTS))
    return {*(PurePosixPath(name).parent.name for name in objects), *starts}


def remove(lake: Lake, source: str) -> None:
    """Remove all that `source` landed. Its manifests go last: they say that there is something to remove."""
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
    """Land the captures of `source` (or these files into it) that aren't yet; the manifests of the new ones.

    `now_ns` is the moment of landing. Files that changed within `settle_seconds` wait for the next run. Raises
    MissingPathError, RefusedPathError and KindError before anything is landed, NotLandedError after everything else is.
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
                say(f"{source.name}: {file.name} was taken away")
            except (_FileChanged, OSError, RefusedError) as error:
                left.append(_why_left(file, error, storage))
        seen.save()
    if left:
        raise NotLandedError(source=source.name, count=len(left), reason="; ".join(left[:3]))
    return landed


def _why_left(file: CaptureFile, error: Exception, storage: Storage) -> str:
    """Which file waits for the next run, and why. Raises what the lake's own store refuses."""
    if isinstance(error, RefusedError) and error.fields["name"] == storage.root:
        raise error
    return f"{file.name} ({error})"


def _land_topics(lake: Lake, source: Source, now_ns: int | None, say: Callable[[str], None]) -> list[Manifest]:
    """Land what the source's topics have that isn't yet; what is landed before the broker fails stays.

    A partition that can't be read keeps back no other; that it can't is raised after them.
    """
    # Its library takes a while to load, and files don't need it.
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
                # Of this partition alone, if the broker is there.
                broker.check_there()
                say(str(error))
                failed.append(error)
    if failures := (*failed, *new.failures):
        raise failures[0]
    return landed


def starts(lake: Lake, source: Source) -> list[OffsetRange]:
    """Where partitions of a source of kind kafka began when landing first saw them, as ranges without records."""
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
    """Says of a file, as it stands, if landing has it still to read."""
    seen = _Seen(open_storage(lake.root), source)
    return lambda file, facts: seen.capture_id(file.path, facts) is None


def source_broker(source: Source) -> Broker:
    """The broker of a source of kind kafka."""
    # Its library takes a while to load, and files don't need it.
    from wirehouse_pipelines.lake.kafka_options import KafkaOptions
    from wirehouse_pipelines.landing.broker import Broker

    return Broker(source.name, source.path, KafkaOptions.from_mapping(source.kafka))


def rejected_name(source: str, capture_id: str) -> str:
    """Name of the object that holds the bytes of a rejected file."""
    return f"landing/rejected/{source}/{capture_id}"


def remove_records(storage: Storage, manifest: Manifest) -> None:
    """Remove what landing holds of a capture but for its manifest. Only for who holds the source's lock."""
    for name in (*records_of(manifest), rejected_name(manifest.source, manifest.capture_id)):
        storage.delete(name)


def records_of(manifest: Manifest) -> list[str]:
    """Names of the objects that hold a capture's records."""
    return [name for window in manifest.windows.values() for name in window.objects]


def begun_name(source: str, capture_id: str) -> str:
    """Name of the object that says of a capture that its landing began, and hasn't ended."""
    return f"{_BEGUN}/{source}/{capture_id}"


def lock_name(source: str) -> str:
    """What landings of a source lock."""
    return f"{MANIFESTS}/{source}"


def unsee(storage: Storage, source: str, capture_id: str) -> None:
    """Forget which file a capture was. Only for who holds the source's lock."""
    name = f"{_SEEN}/{source}.json"
    if storage.exists(name):
        with storage.open(name) as stream:
            known = json.load(stream)
        kept = {path: entry for path, entry in known.items() if entry[-1] != capture_id}
        storage.write(name, json.dumps(kept).encode())


def _clear_unfinished(storage: Storage, source: Source) -> list[OffsetRange]:
    """Remove the objects of captures whose landing was killed before its commit; of a broker's records which ranges."""
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
    """Remove all landed objects of a capture but its manifest. Only for who holds the source's lock."""
    folder = f"landing/{kind}/{source}"
    storage.sweep(folder)
    for stored in list(storage.list(folder)):
        if stored.name.rpartition("/")[2].startswith(capture_id):
            storage.delete(stored.name)
    storage.delete(rejected_name(source, capture_id))


class _Seen:
    """Ids of files that were hashed before, so that looking for new captures doesn't read the old ones again.

    It is only a memory: without it every file is hashed, and what isn't landed is landed.
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
        """The id that the file had when it was as it is now."""
        *identity, capture_id = self._known.get(path, [None])
        return str(capture_id) if tuple(identity) == facts.identity else None

    def note(self, path: str, facts: Facts, capture_id: str) -> None:
        """Remember a file."""
        entry = [*facts.identity, capture_id]
        if self._known.get(path) != entry:
            self._known[path] = entry
            self._changed = True

    def save(self) -> None:
        """Keep what was noted, of the files that still are there."""
        if self._changed:
            known = {path: entry for path, entry in self._known.items() if _may_be(path)}
            self._storage.write(self._name, json.dumps(known).encode())


def _may_be(path: str) -> bool:
    return not is_local(path) or os.path.exists(path)


class _Commit:
    """Lands one capture: its objects, and its manifest last."""

    def __init__(self, lake: Lake, storage: Storage, source: Source, now_ns: int) -> None:
        self._lake = lake
        self._storage = storage
        self._source = source
        self._now_ns = now_ns

    @contextmanager
    def _begun(self, capture_id: str, about: str = "") -> Iterator[Callable[[Manifest], None]]:
        """Gives what commits a manifest. Of what isn't committed nothing stays; a killed landing leaves `about` it."""
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
            # A commit whose answer was lost may have come through: the next landing sees.
            if not asked:
                remove_capture(self._storage, self._source.kind, self._source.name, capture_id)
                self._storage.delete(begun)
            raise
        self._storage.delete(begun)

    def _written(
        self, capture_id: str, batches: Iterator[pa.RecordBatch], clock: Clock, **about: Any
    ) -> Callable[..., Manifest]:
        """Writes the capture's records; gives what makes its manifest, but for what is known at the end."""
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
        """`before_ns`: the last arrival of the partition's records before."""
        super().__init__(lake, storage, source, now_ns or time.time_ns())
        self._broker, self._due, self._before_ns = broker, due, before_ns

    def run(self) -> Manifest:
        """The manifest."""
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
        """One for all that is missing."""
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
        """The new manifest; None if the capture is landed already. `again`: also what landing let go of."""
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
    """The same, the next one read by another thread while one is written: both are mostly outside the interpreter."""
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = reader.submit(next, batches, None)
            yield batch
