"""Landing: captures kept as they came, as Avro objects that Spark reads.

A capture is one file; its id is the SHA-256 of the file. Its records go to
`landing/KIND/SOURCE/WINDOW/CAPTURE_ID-NNNN.avro`, and a manifest, written last, is the commit: what no manifest names
doesn't exist. Landing a capture again does nothing.

Order: `ts_ns` is a record's own time. `arrived_at_ns` is the running maximum of it within the capture, never before
the first window of the lake; a time later than the moment of landing moves nothing and is noted (capture.time_suspect).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import Any, BinaryIO, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wirehouse_codecs.capture_rules import RULE
from wirehouse_codecs.captures import MessageCapture
from wirehouse_codecs.errors import UsageError, WirehouseError
from wirehouse_codecs.origins import Origin, Reader
from wirehouse_codecs.packet_captures import PacketCapture
from wirehouse_codecs.rules import Rule
from wirehouse_pipelines import lake_json
from wirehouse_pipelines.capture_files import SETTLE_SECONDS as SETTLE_SECONDS
from wirehouse_pipelines.capture_files import CaptureFile, Facts, Hashed
from wirehouse_pipelines.capture_files import MissingPathError as MissingPathError
from wirehouse_pipelines.capture_files import RefusedPathError as RefusedPathError
from wirehouse_pipelines.capture_files import captures_at as captures_at
from wirehouse_pipelines.lake import Lake, Source
from wirehouse_pipelines.landed_records import FILES, MESSAGES, PACKETS, Capture, Records, blocks
from wirehouse_pipelines.protocols import FILE_READERS
from wirehouse_pipelines.storage import Storage, is_local, open_storage
from wirehouse_pipelines.windows import NS_PER_SECOND, Windows

#: A landed object takes at most this.
MAX_OBJECT_BYTES: Final = 128 << 20
#: Of a rejected file this many bytes are kept.
REJECTED_BYTES: Final = 16 << 20
#: Findings of one rule that a manifest lists; the last listed says how many more there are.
LISTED_FINDINGS: Final = 1_000
_MANIFESTS = "landing/manifests"
_BEGUN = "landing/begun"
_SEEN = "landing/seen"

LANDED, DAMAGED, REJECTED = "landed", "damaged", "rejected"


@dataclass(frozen=True, slots=True)
class Kind:
    """How captures of a kind of source are read, and how their records are landed."""

    #: Opens a capture.
    read: Reader
    #: How they are landed.
    records: Records


KINDS: Final = {
    "messages": Kind(MessageCapture, MESSAGES),
    "pcap": Kind(PacketCapture, PACKETS),
    **{kind: Kind(read, FILES) for kind, read in FILE_READERS.items()},
}


class KindError(UsageError):
    """A source's kind can't be landed."""

    template = "source {source!r}: kind {kind!r} can't be landed, only {known}"


class NotLandedError(WirehouseError):
    """Some files could not be read or changed meanwhile; all others are landed."""

    template = "source {source!r}: {count} files were left for the next run: {reason}"
    retry_helps = True


class _FileChanged(Exception):
    pass


@dataclass(frozen=True, slots=True)
class WindowObjects:
    """What a capture has in one window."""

    #: Names relative to the lake's root, in order.
    objects: tuple[str, ...]
    records: int


@dataclass(frozen=True, slots=True)
class CaptureFinding:
    """A rule `capture.*` broken by a capture or one of its records."""

    rule: str
    record_number: int | None
    arrived_at_ns: int
    message: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What was landed of a capture."""

    source: str
    protocol: str
    kind: str
    #: SHA-256 of the original file, hex.
    capture_id: str
    #: Relative to the source's place.
    path: str
    #: landed, damaged (landed up to the damage) or rejected.
    status: str
    #: Why it was rejected, or what the damage is.
    reason: str | None
    size_bytes: int
    records: int
    #: Records among them that could not be read as what the kind of source holds; their bytes are kept.
    unreadable_records: int
    first_arrived_at_ns: int | None
    last_arrived_at_ns: int | None
    landed_at_ns: int
    windows: Mapping[str, WindowObjects] = field(default_factory=dict)
    findings: tuple[CaptureFinding, ...] = ()

    def to_json(self) -> str:
        """The manifest as an object of the storage holds it."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: bytes | str) -> Manifest:
        """The manifest whose `to_json()` is `text`."""
        fields = json.loads(text)
        windows = {
            name: WindowObjects(tuple(window["objects"]), window["records"])
            for name, window in fields.pop("windows").items()
        }
        findings = tuple(CaptureFinding(**finding) for finding in fields.pop("findings"))
        return cls(**fields, windows=windows, findings=findings)


def manifest_name(source: str, capture_id: str) -> str:
    """Name of a manifest's object."""
    return f"{_MANIFESTS}/{source}/{capture_id}.json"


def manifests(lake: Lake, source: str | None = None) -> list[Manifest]:
    """All committed manifests (of one source), by source and capture id."""
    storage = open_storage(lake.root)
    prefix = _MANIFESTS if source is None else f"{_MANIFESTS}/{source}"
    found = []
    for stored in storage.list(prefix):
        with storage.open(stored.name) as stream:
            found.append(Manifest.from_json(stream.read()))
    return found


def sources(lake: Lake) -> set[str]:
    """Names of the sources that landed something, or began to."""
    storage = open_storage(lake.root)
    objects = (stored.name for folder in (_MANIFESTS, _BEGUN) for stored in storage.list(folder))
    return {PurePosixPath(name).parent.name for name in objects}


def remove(lake: Lake, source: str) -> None:
    """Remove all that `source` landed. Its manifests go last: they say that there is something to remove."""
    storage = open_storage(lake.root)
    with storage.lock(f"{_MANIFESTS}/{source}"):
        for folder in (*(f"landing/{kind}" for kind in KINDS), "landing/rejected", _BEGUN, _MANIFESTS):
            storage.sweep(f"{folder}/{source}")
            for stored in list(storage.list(f"{folder}/{source}")):
                storage.delete(stored.name)
        storage.delete(f"{_SEEN}/{source}.json")


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
    if source.kind not in KINDS:
        raise KindError(source=source.name, kind=source.kind, known=", ".join(KINDS))
    say = progress or (lambda text: None)
    files = [
        file
        for path in (paths or [source.path])
        for file in captures_at(source, path, lake.root, refuse=bool(paths), say=say)
    ]
    lake_json.record(lake)
    storage = open_storage(lake.root)
    landed: list[Manifest] = []
    left: list[str] = []
    with storage.lock(f"{_MANIFESTS}/{source.name}"):
        _clear_unfinished(storage, source)
        seen = _Seen(storage, source)
        for file in files:
            try:
                if settle_seconds and not file.settled(settle_seconds):
                    say(f"{source.name}: {file.name} is still being written, left for the next run")
                elif manifest := _Landing(lake, storage, source, file, now_ns or time.time_ns()).run(seen):
                    landed.append(manifest)
                    say(f"{source.name}: {manifest.path}: {manifest.status}, {manifest.records:,} records")
            except FileNotFoundError:
                say(f"{source.name}: {file.name} was taken away")
            except (_FileChanged, OSError) as error:
                left.append(f"{file.name} ({error})")
        seen.save()
    if left:
        raise NotLandedError(source=source.name, count=len(left), reason="; ".join(left[:3]))
    return landed


def _clear_unfinished(storage: Storage, source: Source) -> None:
    """Remove the objects of captures whose landing was killed before its commit."""
    for begun in list(storage.list(f"{_BEGUN}/{source.name}")):
        capture_id = begun.name.rpartition("/")[2]
        if not storage.exists(manifest_name(source.name, capture_id)):
            _remove_objects(storage, source, capture_id)
        storage.delete(begun.name)


def _remove_objects(storage: Storage, source: Source, capture_id: str) -> None:
    folder = f"landing/{source.kind}/{source.name}"
    storage.sweep(folder)
    for stored in list(storage.list(folder)):
        if stored.name.rpartition("/")[2].startswith(capture_id):
            storage.delete(stored.name)


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


class _Landing:
    """Lands one file."""

    def __init__(self, lake: Lake, storage: Storage, source: Source, file: CaptureFile, now_ns: int) -> None:
        self._lake = lake
        self._storage = storage
        self._source = source
        self._file = file
        self._now_ns = now_ns

    def run(self, seen: _Seen) -> Manifest | None:
        """The new manifest; None if the capture is landed already."""
        stream, facts = self._file.open()
        with stream:
            capture_id = seen.capture_id(self._file.path, facts) or Hashed(stream).rest()
            landed = self._storage.exists(manifest_name(self._source.name, capture_id))
            manifest = None if landed else self._commit(stream, capture_id, facts.size_bytes)
            if facts.steady:
                seen.note(self._file.path, facts, capture_id)
            return manifest

    def _commit(self, stream: BinaryIO, capture_id: str, size_bytes: int) -> Manifest:
        begun = f"{_BEGUN}/{self._source.name}/{capture_id}"
        self._storage.write(begun, b"")
        try:
            read = Hashed(stream)
            manifest = self._land(cast(BinaryIO, read), capture_id, size_bytes)
            if read.rest() != capture_id:
                raise _FileChanged("it changed while it was read")
        except (_FileChanged, OSError):
            _remove_objects(self._storage, self._source, capture_id)
            self._storage.delete(begun)
            raise
        self._storage.write(manifest_name(self._source.name, capture_id), manifest.to_json().encode())
        self._storage.delete(begun)
        return manifest

    def _land(self, stream: BinaryIO, capture_id: str, size_bytes: int) -> Manifest:
        start_ns = self._lake.windows.start_ns(self._lake.windows.start)
        origin = Origin(PurePosixPath(self._file.name).name, start_ns, self._source.limits)
        capture = KINDS[self._source.kind].read(stream, origin)
        if capture.unreadable is not None:
            self._reject(stream, capture_id)
        clock = Clock(start_ns, self._now_ns)
        with _ObjectWriter(self._storage, self._source, capture_id, self._lake.windows, clock) as objects:
            for batch in _ahead(capture.batches()):
                objects.add(batch)
        return Manifest(
            source=self._source.name,
            protocol=self._source.protocol,
            kind=self._source.kind,
            capture_id=capture_id,
            path=self._file.name,
            status=REJECTED if capture.unreadable else DAMAGED if capture.damage else LANDED,
            reason=capture.unreadable or capture.damage,
            size_bytes=size_bytes,
            records=clock.records,
            unreadable_records=objects.unreadable,
            first_arrived_at_ns=clock.first,
            last_arrived_at_ns=clock.now if clock.records else None,
            landed_at_ns=self._now_ns,
            windows=objects.windows,
            findings=capture_findings(clock, capture.damage, self._now_ns),
        )

    def _reject(self, stream: BinaryIO, capture_id: str) -> None:
        stream.seek(0)
        self._storage.write(f"landing/rejected/{self._source.name}/{capture_id}", stream.read(REJECTED_BYTES))


def _ahead(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same, the next one read by another thread while one is written: both are mostly outside the interpreter."""
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = reader.submit(next, batches, None)
            yield batch


class Clock:
    """Gives records their arrival, and notes the times that can't be."""

    def __init__(self, start_ns: int, landed_at_ns: int) -> None:
        #: Arrival of the last record; the lake's start before the first.
        self.now = start_ns
        #: Arrival of the first record.
        self.first: int | None = None
        self.records = 0
        self._landed_at_ns = landed_at_ns
        self._suspects: list[CaptureFinding] = []
        self._suspect_count = 0

    def tick(self, ts_ns: pa.Array) -> npt.NDArray[np.int64]:
        """`arrived_at_ns` of the next records, whose own times are `ts_ns`."""
        times = ts_ns.fill_null(np.iinfo(np.int64).min).to_numpy(zero_copy_only=False)
        suspect = times > self._landed_at_ns
        arrived = np.maximum.accumulate(np.maximum(np.where(suspect, np.iinfo(np.int64).min, times), self.now))
        found = np.flatnonzero(suspect)
        self._suspect_count += len(found)
        for i in found[: LISTED_FINDINGS - len(self._suspects)].tolist():
            self._suspects.append(self._suspicion(i, int(times[i]), int(arrived[i])))
        if len(arrived):
            self.first = int(arrived[0]) if self.first is None else self.first
            self.now = int(arrived[-1])
            self.records += len(arrived)
        return arrived

    def _suspicion(self, i: int, ts_ns: int, arrived_at_ns: int) -> CaptureFinding:
        rule: Rule = RULE["time_suspect"]
        ahead = (ts_ns - self._landed_at_ns) / NS_PER_SECOND
        message = f"time {ts_ns} ns is {ahead:.3f} s later than the landing at {self._landed_at_ns} ns"
        return CaptureFinding(rule.id, self.records + i, arrived_at_ns, message)

    def findings(self) -> tuple[CaptureFinding, ...]:
        """One finding a suspect time, the first LISTED_FINDINGS of them."""
        more = self._suspect_count - len(self._suspects)
        if more:
            last = self._suspects[-1]
            message = f"{last.message}; {more} more later records are not listed"
            self._suspects[-1] = CaptureFinding(last.rule, last.record_number, last.arrived_at_ns, message)
        return tuple(self._suspects)


def capture_findings(clock: Clock, damage: str | None, landed_at_ns: int) -> tuple[CaptureFinding, ...]:
    """What there is to note about a capture that was read to its end or damage."""
    if damage is None:
        return clock.findings()
    arrived_at_ns = clock.now if clock.records else landed_at_ns
    return (*clock.findings(), CaptureFinding(RULE["file_damaged"].id, None, arrived_at_ns, damage))


class _ObjectWriter:
    """Writes a capture's records to objects, one open at a time: arrival never goes back."""

    def __init__(self, storage: Storage, source: Source, capture_id: str, windows: Windows, clock: Clock) -> None:
        self._storage = storage
        self._records = KINDS[source.kind].records
        self._folder = f"landing/{source.kind}/{source.name}"
        self._capture_id = bytes.fromhex(capture_id)
        self._lake_windows = windows
        self._clock = clock
        self._window = ""
        self._open = ExitStack()
        self._stream: BinaryIO | None = None
        self._container: Any = None
        #: Records that could not be read.
        self.unreadable = 0
        #: Window -> its objects so far.
        self.windows: dict[str, WindowObjects] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Write the next records."""
        first_number = self._clock.records
        damaged = batch.column("damaged")
        self.unreadable += len(damaged) - damaged.null_count
        arrived = self._clock.tick(batch.column("ts_ns"))
        for window, begin, end in _runs(self._lake_windows, arrived):
            if window != self._window:
                self.close()
                self._window = window
            self._write(batch.slice(begin, end - begin), arrived[begin:end], first_number + begin)

    def _write(self, batch: pa.RecordBatch, arrived: npt.NDArray[np.int64], number: int) -> None:
        first = self._clock.first
        assert first is not None  # the clock has ticked for this batch
        capture = Capture(np.frombuffer(self._capture_id, np.uint8), number, first)
        for block in blocks(self._records.encode(batch, capture, arrived), self._records.codec):
            if self._stream is not None and self._stream.tell() + block.largest > MAX_OBJECT_BYTES:
                self.close()
            if self._container is None:
                self._begin()
            self._container.write_block(block)
            window = self.windows[self._window]
            self.windows[self._window] = WindowObjects(window.objects, window.records + block.num_records)

    def _begin(self) -> None:
        window = self.windows.get(self._window, WindowObjects((), 0))
        name = f"{self._folder}/{self._window}/{self._capture_id.hex()}-{len(window.objects):04d}.avro"
        self._stream = self._open.enter_context(self._storage.writer(name))
        self._container = self._records.container(self._stream)
        self.windows[self._window] = WindowObjects((*window.objects, name), window.records)

    def close(self) -> None:
        """Finish the open object."""
        self._stream = self._container = None
        self._open.close()

    def __enter__(self) -> _ObjectWriter:
        return self

    def __exit__(self, *error: Any) -> None:
        """Finish the open object, or drop it after an error."""
        self._stream = self._container = None
        self._open.__exit__(*error)


def _runs(windows: Windows, arrived: npt.NDArray[np.int64]) -> Iterator[tuple[str, int, int]]:
    """Cut rising arrivals at the windows' bounds: window, first and end position."""
    begin = 0
    while begin < len(arrived):
        window = windows.of(int(arrived[begin]))
        end = int(np.searchsorted(arrived, windows.start_ns(windows.after(window)), "left"))
        yield window, begin, end
        begin = end
